//! What nodes, units and replicas use now.

use std::collections::BTreeMap;

use godel_base::{quantity, resources};
use godel_proto::v1;
use serde::Serialize;

use super::{
    amounts,
    bandwidth::{self, NetworkView},
};
use crate::output::View;

/// A node and what is used of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeUseView {
    /// Unique.
    pub node: String,
    /// Used now, by resource; absent: it is not measured.
    pub used: Option<BTreeMap<String, i64>>,
    /// Of that by guaranteed running units, and by what is not godel's.
    pub guaranteed: BTreeMap<String, i64>,
    /// What running units may have.
    pub allocatable: BTreeMap<String, i64>,
    /// 95th percentile over the last minutes; empty: it is not known.
    pub p95: BTreeMap<String, i64>,
    /// What its interfaces carry; absent: it is not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkView>,
    /// Of zones, by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneUseView>,
    /// Of devices, by index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceUseView>,
}

/// What is used of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceUseView {
    /// Index.
    pub device: u32,
    /// Share of the time in which it worked.
    pub percent: u32,
    /// Bytes of its own memory.
    pub memory: i64,
}

/// What is used of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ZoneUseView {
    /// Index.
    pub zone: u32,
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
    /// Bits per second of the network cards that lie near it.
    pub network: i64,
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

impl From<&v1::Node> for NodeUseView {
    fn from(node: &v1::Node) -> Self {
        let meta = node.spec.as_ref().and_then(|spec| spec.meta.as_ref());
        let load = node.load.as_ref().and_then(|load| load.p95.as_ref());
        let p95 = load.map(|load| {
            [(resources::CPU, load.cpu), (resources::MEMORY, load.memory)]
                .map(|(name, amount)| (name.to_owned(), amount))
        });
        let zone = |usage: &v1::ZoneUsage| ZoneUseView {
            zone: usage.zone,
            cpu_milli: usage.cpu_milli,
            memory: usage.memory,
            network: usage.network,
        };
        let device = |usage: &v1::DeviceUsage| DeviceUseView {
            device: usage.device,
            percent: usage.percent,
            memory: usage.memory,
        };
        Self {
            node: meta.map_or(String::new(), |meta| meta.name.clone()),
            used: node.usage.as_ref().filter(|_| node.connected).map(|usage| amounts(Some(usage))),
            guaranteed: amounts(node.guaranteed_usage.as_ref().filter(|_| node.connected)),
            allocatable: amounts(node.allocatable.as_ref()),
            p95: p95.into_iter().flatten().collect(),
            network: node.network.as_ref().filter(|_| node.connected).map(NetworkView::from),
            zones: node.zone_usage.iter().map(zone).collect(),
            devices: node.device_usage.iter().map(device).collect(),
        }
    }
}

impl NodeUseView {
    /// Used now; nothing if it is not measured.
    pub fn used_of(&self, resource: &str) -> i64 {
        self.used.as_ref().and_then(|used| used.get(resource)).copied().unwrap_or(0)
    }

    fn cells(&self, resource: &str) -> [String; 2] {
        let Some(used) = &self.used else { return ["-".to_owned(), "-".to_owned()] };
        let used = used.get(resource).copied().unwrap_or(0);
        [quantity::show_about(resource, used), self.percent(resource, used)]
    }

    fn percent(&self, resource: &str, used: i64) -> String {
        match self.allocatable.get(resource).copied().unwrap_or(0) {
            all if all > 0 => {
                format!("{}%", (i128::from(used) * 100 + i128::from(all) / 2) / i128::from(all))
            }
            _ => "-".to_owned(),
        }
    }

    fn p95_cell(&self, resource: &str) -> String {
        self.p95.get(resource).map_or_else(|| "-".to_owned(), |used| self.percent(resource, *used))
    }
}

impl View for NodeUseView {
    const HEADERS: &'static [&'static str] =
        &["NODE", "CPU", "CPU%", "MEMORY", "MEMORY%", "RECEIVED", "SENT", "P95-CPU%", "P95-MEMORY%"];
    const WIDE: &'static [&'static str] = &["GUARANTEED-CPU", "GUARANTEED-MEMORY", "ZONES", "DEVICES"];

    fn row(&self) -> Vec<String> {
        let [cpu, cpu_percent] = self.cells(resources::CPU);
        let [memory, memory_percent] = self.cells(resources::MEMORY);
        let (p95_cpu, p95_memory) = (self.p95_cell(resources::CPU), self.p95_cell(resources::MEMORY));
        let [received, sent] = bandwidth::cells(self.network);
        let node = self.node.clone();
        vec![node, cpu, cpu_percent, memory, memory_percent, received, sent, p95_cpu, p95_memory]
    }

    fn wide(&self) -> Vec<String> {
        let of = |resource: &str| {
            self.guaranteed
                .get(resource)
                .map_or_else(|| "-".to_owned(), |used| quantity::show_about(resource, *used))
        };
        let zone = |zone: &ZoneUseView| {
            let (cpu, memory) =
                (quantity::show_cpu(zone.cpu_milli), quantity::show_about(resources::MEMORY, zone.memory));
            let network = match zone.network {
                0 => String::new(),
                network => format!("/{}", quantity::show_about(resources::NETWORK, network)),
            };
            format!("{}:{cpu}/{memory}{network}", zone.zone)
        };
        let zones: Vec<String> = self.zones.iter().map(zone).collect();
        let device = |device: &DeviceUseView| {
            let memory = quantity::show_about(resources::MEMORY, device.memory);
            format!("{}:{}%/{memory}", device.device, device.percent)
        };
        let devices: Vec<String> = self.devices.iter().map(device).collect();
        vec![of(resources::CPU), of(resources::MEMORY), zones.join(" "), devices.join(" ")]
    }
}

impl View for UnitUseView {
    const HEADERS: &'static [&'static str] =
        &["UNIT", "REPLICAS", "CPU", "MEMORY", "GPU", "RECEIVED", "SENT", "NODE"];
    const WIDE: &'static [&'static str] = &["MEMORY-BANDWIDTH"];

    fn row(&self) -> Vec<String> {
        let (name, replicas) = match self.ordinal {
            Some(ordinal) => (format!("{}/{ordinal}", self.unit), String::new()),
            None => (self.unit.clone(), self.replicas.to_string()),
        };
        let memory = quantity::show_about(resources::MEMORY, self.memory);
        let devices = quantity::show_devices(i64::from(self.device_milli));
        let [received, sent] = bandwidth::cells(self.network);
        let (cpu, node) = (quantity::show_cpu(self.cpu_milli), self.node.clone());
        vec![name, replicas, cpu, memory, devices, received, sent, node]
    }

    fn wide(&self) -> Vec<String> {
        let show = |rate| quantity::show_about(resources::MEMORY, rate);
        vec![self.memory_bandwidth.map_or_else(|| "-".to_owned(), show)]
    }
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
