//! What nodes, units and replicas use now.

use std::collections::BTreeMap;

use godel_base::{quantity, resources};
use godel_proto::v1;
use serde::Serialize;

use super::{
    amounts,
    bandwidth::{self, NetworkView},
};
use crate::{
    output::{View, ViewColumn},
    view,
};

view! {
    /// A node and what is used of it.
    #[derive(Default)]
    pub struct NodeUseView from (node: &v1::Node) with {
        let meta = node.spec.as_ref().and_then(|spec| spec.meta.as_ref());
        let load = node.load.as_ref().and_then(|load| load.p95.as_ref());
        let p95 = load.map(|load| {
            [(resources::CPU, load.cpu), (resources::MEMORY, load.memory)]
                .map(|(name, amount)| (name.to_owned(), amount))
        });
    } {
        /// Unique.
        pub node: String = meta.map_or(String::new(), |meta| meta.name.clone()),
        /// Used now, by resource; absent: it is not measured.
        pub used: Option<BTreeMap<String, i64>> =
            node.usage.as_ref().filter(|_| node.connected).map(|usage| amounts(Some(usage))),
        /// Of that by guaranteed running units, and by what is not godel's.
        pub guaranteed: BTreeMap<String, i64> =
            amounts(node.guaranteed_usage.as_ref().filter(|_| node.connected)),
        /// What running units may have.
        pub allocatable: BTreeMap<String, i64> = amounts(node.allocatable.as_ref()),
        /// 95th percentile over the last minutes; empty: it is not known.
        pub p95: BTreeMap<String, i64> = p95.into_iter().flatten().collect(),
        /// What its interfaces carry; absent: it is not measured.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub network: Option<NetworkView> =
            node.network.as_ref().filter(|_| node.connected).map(NetworkView::from),
        /// Of zones, by index.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub zones: Vec<ZoneUseView> = node.zone_usage.iter().map(ZoneUseView::from).collect(),
        /// Of devices, by index.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub devices: Vec<DeviceUseView> = node.device_usage.iter().map(DeviceUseView::from).collect(),
    }
}

view! {
    /// What is used of a device.
    #[derive(Copy, Default, Eq)]
    pub struct DeviceUseView from (usage: &v1::DeviceUsage) {
        /// Index.
        pub device: u32 = usage.device,
        /// Share of the time in which it worked.
        pub percent: u32 = usage.percent,
        /// Bytes of its own memory.
        pub memory: i64 = usage.memory,
    }
}

view! {
    /// What is used of a zone.
    #[derive(Copy, Default, Eq)]
    pub struct ZoneUseView from (usage: &v1::ZoneUsage) {
        /// Index.
        pub zone: u32 = usage.zone,
        /// Milli-cores.
        pub cpu_milli: i64 = usage.cpu_milli,
        /// Bytes.
        pub memory: i64 = usage.memory,
        /// Bits per second of the network cards that lie near it.
        pub network: i64 = usage.network,
    }
}

/// A unit, or a replica of it, and what it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnitUseView {
    /// `namespace/name`, or `name` in namespace `default`.
    pub unit: String,
    /// Of a replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<u32>,
    /// Of a replica.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Replicas that are measured.
    pub replicas: u32,
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// Thousandths of devices that worked for it.
    pub device_milli: u32,
    /// Its traffic; absent: it is not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkView>,
    /// Bytes per second between CPUs and memory; absent: they are not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bandwidth: Option<i64>,
}

impl NodeUseView {
    /// Used now; nothing if it is not measured.
    pub fn used_of(&self, resource: &str) -> i64 {
        self.used.as_ref().and_then(|used| used.get(resource)).copied().unwrap_or(0)
    }

    fn used_text(&self, resource: &str) -> String {
        let used = self.used.as_ref().map(|_| self.used_of(resource));
        or_dash(used.map(|used| quantity::show_about(resource, used)))
    }

    fn used_percent(&self, resource: &str) -> String {
        or_dash(self.used.as_ref().and_then(|_| self.percent(resource, self.used_of(resource))))
    }

    fn percent(&self, resource: &str, used: i64) -> Option<String> {
        let all = self.allocatable.get(resource).copied().filter(|all| *all > 0)?;
        Some(format!("{}%", (i128::from(used) * 100 + i128::from(all) / 2) / i128::from(all)))
    }

    fn p95_percent(&self, resource: &str) -> String {
        or_dash(self.p95.get(resource).and_then(|used| self.percent(resource, *used)))
    }

    fn guaranteed_text(&self, resource: &str) -> String {
        or_dash(self.guaranteed.get(resource).map(|used| quantity::show_about(resource, *used)))
    }
}

/// What is known, or `-`.
fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

impl ZoneUseView {
    fn text(&self) -> String {
        let (cpu, memory) =
            (quantity::show_cpu(self.cpu_milli), quantity::show_about(resources::MEMORY, self.memory));
        let network = match self.network {
            0 => String::new(),
            network => format!("/{}", quantity::show_about(resources::NETWORK, network)),
        };
        format!("{}:{cpu}/{memory}{network}", self.zone)
    }
}

impl DeviceUseView {
    fn text(&self) -> String {
        format!("{}:{}%/{}", self.device, self.percent, quantity::show_about(resources::MEMORY, self.memory))
    }
}

impl View for NodeUseView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NODE", |view| view.node.clone()),
        ("CPU", |view| view.used_text(resources::CPU)),
        ("CPU%", |view| view.used_percent(resources::CPU)),
        ("MEMORY", |view| view.used_text(resources::MEMORY)),
        ("MEMORY%", |view| view.used_percent(resources::MEMORY)),
        ("RECEIVED", |view| bandwidth::received(view.network)),
        ("SENT", |view| bandwidth::sent(view.network)),
        ("P95-CPU%", |view| view.p95_percent(resources::CPU)),
        ("P95-MEMORY%", |view| view.p95_percent(resources::MEMORY)),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("GUARANTEED-CPU", |view| view.guaranteed_text(resources::CPU)),
        ("GUARANTEED-MEMORY", |view| view.guaranteed_text(resources::MEMORY)),
        ("ZONES", |view| view.zones.iter().map(ZoneUseView::text).collect::<Vec<_>>().join(" ")),
        ("DEVICES", |view| view.devices.iter().map(DeviceUseView::text).collect::<Vec<_>>().join(" ")),
    ];
}

impl View for UnitUseView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("UNIT", |view| match view.ordinal {
            Some(ordinal) => format!("{}/{ordinal}", view.unit),
            None => view.unit.clone(),
        }),
        ("REPLICAS", |view| view.ordinal.map_or_else(|| view.replicas.to_string(), |_| String::new())),
        ("CPU", |view| quantity::show_cpu(view.cpu_milli)),
        ("MEMORY", |view| quantity::show_about(resources::MEMORY, view.memory)),
        ("GPU", |view| quantity::show_devices(i64::from(view.device_milli))),
        ("RECEIVED", |view| bandwidth::received(view.network)),
        ("SENT", |view| bandwidth::sent(view.network)),
        ("NODE", |view| view.node.clone()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[("MEMORY-BANDWIDTH", |view| {
        or_dash(view.memory_bandwidth.map(|rate| quantity::show_about(resources::MEMORY, rate)))
    })];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Format, table};

    #[test]
    fn use_is_shown_as_a_share() {
        let resources = |cpu, memory| v1::Resources {
            amounts: [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)].into_iter().collect(),
        };
        let meta = Some(v1::ObjectMeta { name: "a".to_owned(), ..v1::ObjectMeta::default() });
        let node = v1::Node {
            spec: Some(v1::NodeSpec { meta, ..v1::NodeSpec::default() }),
            connected: true,
            usage: Some(resources(1_500, 3 << 30)),
            guaranteed_usage: Some(resources(1_000, 1 << 30)),
            allocatable: Some(resources(4_000, 8 << 30)),
            network: Some(v1::NetworkRate { received: 1_000_000, sent: 2_000 }),
            zone_usage: vec![v1::ZoneUsage { zone: 1, cpu_milli: 700, memory: 1 << 30, network: 0 }],
            device_usage: vec![v1::DeviceUsage { device: 3, percent: 40, memory: 2 << 30 }],
            ..v1::Node::default()
        };
        let away = v1::Node { connected: false, ..node.clone() };
        let views = [NodeUseView::from(&node), NodeUseView::from(&away)];
        let text = table(Format::Wide, &views);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1],
            [
                "a",
                "1.5",
                "38%",
                "3Gi",
                "38%",
                "1000000",
                "2000",
                "-",
                "-",
                "1",
                "1Gi",
                "1:700m/1Gi",
                "3:40%/2Gi"
            ]
        );
        assert_eq!(rows[2][1..9], ["-"; 8]);
    }

    #[test]
    fn replicas_are_shown_with_their_nodes() {
        let unit = UnitUseView {
            unit: "web".to_owned(),
            replicas: 2,
            cpu_milli: 250,
            memory: 64 << 20,
            device_milli: 500,
            network: Some(NetworkView { received: 5, sent: 7 }),
            ..UnitUseView::default()
        };
        let replica = UnitUseView { ordinal: Some(3), node: "n".to_owned(), ..unit.clone() };
        let text = table(Format::Table, &[unit, replica]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["web", "2", "250m", "64Mi", "0.5", "5", "7", "-"]);
        assert_eq!(rows[2], ["web/3", "-", "250m", "64Mi", "0.5", "5", "7", "n"]);
    }
}
