//! Nodes: one that is ready, and its changes as a chain of calls.

use std::ops::Range;

use godel_base::{
    ids::NodeId,
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    node::{Device, DeviceDetails, DeviceProfile, NodeReport, NodeSpec},
    zone::Zone,
};

/// The records of a node.
#[derive(Clone, Debug, Default)]
pub struct TestNode {
    /// The administrators' record.
    pub spec: NodeSpec,
    /// The agent's record.
    pub report: NodeReport,
}

/// Returns a node that is ready and has nothing; its name is `n` and its id. The methods of [`TestNode`] change it.
pub fn node(id: u32) -> TestNode {
    let id = NodeId(id);
    TestNode {
        spec: NodeSpec { id, name: format!("n{id}"), ..NodeSpec::default() },
        report: NodeReport { id, ready: true, ..NodeReport::default() },
    }
}

impl TestNode {
    /// Has so many milli-cores.
    #[must_use]
    pub fn cpu(self, milli: i64) -> Self {
        self.has(CPU, milli)
    }

    /// Has so many bytes of memory.
    #[must_use]
    pub fn memory(self, bytes: i64) -> Self {
        self.has(MEMORY, bytes)
    }

    /// Has so much of a resource.
    #[must_use]
    pub fn has(mut self, name: &str, amount: i64) -> Self {
        self.report.capacity.add_amount(name, amount);
        self
    }

    /// Has a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.spec.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Has more devices of a kind and model, near the zones with these indices in turn.
    #[must_use]
    pub fn devices(mut self, kind: &str, model: &str, near: &[u32]) -> Self {
        let device = |zone: &u32| Device {
            kind: kind.to_owned(),
            model: model.to_owned(),
            numa_zone: *zone,
            details: None,
        };
        self.report.devices.extend(near.iter().map(device));
        self
    }

    /// Says more of some of its devices, by index.
    #[must_use]
    pub fn details(mut self, devices: Range<usize>, details: &DeviceDetails) -> Self {
        for device in &mut self.report.devices[devices] {
            device.details = Some(Box::new(details.clone()));
        }
        self
    }

    /// Can divide devices.
    #[must_use]
    pub fn profile(mut self, kind: &str, model: &str, name: &str, shapes: &[u64]) -> Self {
        self.report.profiles.push(DeviceProfile {
            kind: kind.to_owned(),
            model: model.to_owned(),
            name: name.to_owned(),
            shapes: shapes.to_vec(),
        });
        self
    }

    /// Has sockets with these NUMA zones each, all of so many cores with so many threads, and as many CPUs and milli-cores as
    /// these have; memory is divided evenly. The sockets are the first zones.
    #[must_use]
    pub fn zones(mut self, n_sockets: u8, n_zones_each: u8, n_cores: u32, threads: u8) -> Self {
        let n_zones = n_sockets * n_zones_each;
        let n_cpus = n_cores * u32::from(threads);
        let amounts = [
            (CPU, i64::from(n_cpus) * 1_000),
            (MEMORY, self.report.capacity.get(MEMORY) / i64::from(n_zones.max(1))),
        ];
        let capacity = Resources::new(amounts).unwrap_or_default();
        let socket = Zone { kind: "socket".to_owned(), ..Zone::default() };
        self.report.zones = vec![socket; usize::from(n_sockets)];
        for at in 0..n_zones {
            let first = u32::from(at) * n_cpus;
            self.report.zones.push(Zone {
                kind: "numa".to_owned(),
                parent: Some(at / n_zones_each),
                capacity: capacity.clone(),
                cpus: (first..first + n_cpus).collect(),
                threads_per_core: threads,
            });
        }
        self.cpu(i64::from(n_cpus) * i64::from(n_zones) * 1_000)
    }

    /// Has a zone without a capacity in another one, which has some of its CPUs.
    #[must_use]
    pub fn inner_zone(mut self, kind: &str, parent: u8, cpus: Range<u32>) -> Self {
        let threads_per_core = self.report.zones[usize::from(parent)].threads_per_core;
        let (kind, cpus) = (kind.to_owned(), cpus.collect());
        let zone = Zone { kind, parent: Some(parent), cpus, threads_per_core, ..Zone::default() };
        self.report.zones.push(zone);
        self
    }
}
