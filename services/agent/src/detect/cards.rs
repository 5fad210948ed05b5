//! Network cards and disks of a machine.

use std::collections::BTreeMap;

use godel_domain::node::DeviceDetails;

use super::{Located, tree::Tree};

const NET: &str = "/sys/class/net";
const BLOCK: &str = "/sys/block";
/// Sysfs counts sizes of disks in these, whatever the disk's own are.
const SECTOR: u64 = 512;
const GIB: u64 = 1 << 30;

/// Finds the network cards in order of their names, which come with them: those that are hardware, and up or of a known speed.
pub(super) fn nics(tree: &Tree) -> Vec<(String, Located)> {
    let of_name = |name: String| {
        let path = format!("{NET}/{name}");
        // A bridge, a tunnel or one end of a pair is no device; a virtual function is a part of one that is counted already.
        if !tree.has(&format!("{path}/device")) || tree.has(&format!("{path}/device/physfn")) {
            return None;
        }
        let is_up = tree.text(&format!("{path}/operstate")).as_deref() == Some("up");
        let mbps: Option<u32> =
            tree.number::<i64>(&format!("{path}/speed")).and_then(|mbps| u32::try_from(mbps).ok());
        let gbps = mbps.filter(|mbps| *mbps > 0).map(|mbps| mbps / 1_000);
        let gbps = gbps.or_else(|| infiniband_gbps(tree, &path));
        if gbps.is_none() && !is_up {
            return None;
        }
        let model = tree.link_name(&format!("{path}/device/driver")).unwrap_or_default();
        let numa = tree.number::<i64>(&format!("{path}/device/numa_node"));
        let numa = numa.and_then(|numa| u32::try_from(numa).ok());
        let details = DeviceDetails { gbps: gbps.unwrap_or(0), ..DeviceDetails::default() };
        Some((name, Located::new("nic", &model, details, numa)))
    };
    tree.names(NET).into_iter().filter_map(of_name).collect()
}

/// The rate of the fastest InfiniBand port of a card, as `200 Gb/sec (4X HDR)`.
fn infiniband_gbps(tree: &Tree, path: &str) -> Option<u32> {
    let cards = format!("{path}/device/infiniband");
    let ports = tree.names(&cards).into_iter().flat_map(|card| {
        let ports = format!("{cards}/{card}/ports");
        tree.names(&ports).into_iter().map(move |port| format!("{ports}/{port}"))
    });
    let rate = |port: String| {
        let is_active = tree.text(&format!("{port}/state"))?.contains("ACTIVE");
        let rate = tree.text(&format!("{port}/rate"))?;
        let gbps: f64 = rate.split_whitespace().next()?.parse().ok()?;
        // Rates have a digit behind the point at most, as 2.5.
        (is_active && (1.0..1e6).contains(&gbps)).then(|| format!("{:.0}", gbps.floor()).parse().ok())?
    };
    ports.filter_map(rate).max()
}

/// Facts on the disks: how many there are of each kind, and their size together in GiB.
pub(super) fn disks(tree: &Tree) -> BTreeMap<String, String> {
    let mut by_kind: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for name in tree.names(BLOCK) {
        let path = format!("{BLOCK}/{name}");
        let sectors: u64 = tree.number(&format!("{path}/size")).unwrap_or(0);
        let is_removable = tree.number::<u32>(&format!("{path}/removable")) == Some(1);
        // Loops, volumes and arrays are made of others.
        if !tree.has(&format!("{path}/device")) || sectors == 0 || is_removable {
            continue;
        }
        let turns = tree.number::<u32>(&format!("{path}/queue/rotational")) == Some(1);
        let kind = match (name.starts_with("nvme"), turns) {
            (true, _) => "nvme",
            (false, true) => "hdd",
            (false, false) => "ssd",
        };
        let (n, bytes) = by_kind.entry(kind).or_default();
        *n += 1;
        *bytes = bytes.saturating_add(sectors.saturating_mul(SECTOR));
    }
    let facts = by_kind.into_iter().flat_map(|(kind, (n, bytes))| {
        [(format!("disks-{kind}"), n.to_string()), (format!("disks-{kind}-gib"), (bytes / GIB).to_string())]
    });
    facts.collect()
}
