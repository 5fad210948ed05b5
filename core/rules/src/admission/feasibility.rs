//! Whether any node could ever hold one replica: capacities only, whatever is taken now.
//!
//! Nodes of equal capacity and devices count as one shape, so the question costs as many comparisons as there
//! are kinds of machines.

use std::collections::BTreeMap;

use godel_base::{
    ids::NodeId,
    quantity,
    quantity::MILLI_WHOLE,
    resources::{RUNNING_UNITS, Resources},
    words,
};
use godel_domain::{
    allocation::DeviceSet,
    demand::{Demand, DeviceRequest},
    node::{Device, NodeReport, NodeRuntime, RuntimeNeed},
    unit::{TaskGroup, Template, UnitSpec},
    zone::{CpuMode, ZonePolicy},
};

/// Why no node takes a replica without a command.
const NO_SIMULATED: &str = "it has no command, and every node that is large enough runs processes; give it a `command`, or `simulated` if a \
                            simulated run is meant";

/// Why no node takes a replica with an image.
const NO_IMAGES: &str = "it has an image, and no node that is large enough runs images";

/// Capacities of all nodes, by shape.
#[derive(Clone, Debug, Default)]
pub struct Capacities {
    shapes: Vec<FeasibleShape>,
    ids: BTreeMap<ShapeKey, usize>,
    nodes: Vec<Option<usize>>,
    n_nodes: usize,
}

/// What tells shapes apart: capacity, devices, capacities of zones, whether it takes any, and what becomes of running units.
type ShapeKey = (Resources, Vec<DeviceKey>, Vec<Resources>, bool, NodeRuntime);

/// What tells devices apart wherever they lie: kind, model, memory, speed, kind of links.
type DeviceKey = (String, String, i64, u32, String);

#[derive(Clone, Debug)]
struct FeasibleShape {
    capacity: Resources,
    devices: Vec<Device>,
    /// The capacities of its zones.
    zones: Vec<Resources>,
    /// It takes some running unit.
    takes_any: bool,
    runtime: NodeRuntime,
    n_nodes: usize,
}

impl Capacities {
    /// A node is there, or has another capacity now. True when that is a shape not seen before, or not there
    /// any more: what was infeasible may have become feasible.
    pub fn put(&mut self, report: &NodeReport) -> bool {
        let device = |device: &Device| {
            let known = device.known();
            (device.kind.clone(), device.model.clone(), known.memory, known.gbps, known.link.clone())
        };
        let devices = report.devices.iter().map(device).collect();
        let assigned = report.zones.iter().filter(|zone| zone.is_assigned());
        let zones: Vec<Resources> = assigned.map(|zone| zone.capacity.clone()).collect();
        let takes_any = report.max_running_units > 0;
        let runtime = report.runtime;
        let key = (report.capacity.clone(), devices, zones.clone(), takes_any, runtime);
        let shape = if let Some(shape) = self.ids.get(&key) {
            *shape
        } else {
            let (capacity, devices) = (report.capacity.clone(), report.devices.clone());
            let shape = FeasibleShape { capacity, devices, zones, takes_any, runtime, n_nodes: 0 };
            self.shapes.push(shape);
            self.ids.insert(key, self.shapes.len() - 1);
            self.shapes.len() - 1
        };
        let idx = report.id.idx();
        if self.nodes.len() <= idx {
            self.nodes.resize(idx + 1, None);
        }
        if self.nodes[idx] == Some(shape) {
            return false;
        }
        self.remove(report.id);
        self.nodes[idx] = Some(shape);
        self.n_nodes += 1;
        self.shapes[shape].n_nodes += 1;
        self.shapes[shape].n_nodes == 1
    }

    /// A node is gone.
    pub fn remove(&mut self, node: NodeId) {
        if let Some(shape) = self.nodes.get_mut(node.idx()).and_then(Option::take) {
            self.shapes[shape].n_nodes -= 1;
            self.n_nodes -= 1;
        }
    }

    /// Whether a node is known.
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes.get(node.idx()).is_some_and(Option::is_some)
    }

    /// Model of the first of some devices of a node; empty if there is none.
    pub fn model(&self, node: NodeId, devices: DeviceSet) -> &str {
        let shape = self.nodes.get(node.idx()).copied().flatten().map(|shape| &self.shapes[shape]);
        shape.and_then(|shape| shape.devices.get(devices.iter().next()?)).map_or("", |device| &device.model)
    }

    /// Nodes known.
    pub fn len(&self) -> usize {
        self.n_nodes
    }

    /// No node known.
    pub fn is_empty(&self) -> bool {
        self.n_nodes == 0
    }

    /// What all nodes have together, devices by their kind in thousandths.
    pub fn total(&self) -> BTreeMap<String, i64> {
        let mut total = BTreeMap::new();
        for shape in self.live() {
            let n_nodes = i64::try_from(shape.n_nodes).unwrap_or(i64::MAX);
            for (name, amount) in shape.amounts() {
                let sum: &mut i64 = total.entry(name.to_owned()).or_default();
                *sum = sum.saturating_add(amount.saturating_mul(n_nodes));
            }
        }
        total
    }

    /// Share of each node, by index, in what all have together ([`partition::share`](crate::partition::share)); 0 for
    /// one that is not known.
    pub fn shares(&self, total: &BTreeMap<String, i64>) -> Vec<u64> {
        let of_shape: Vec<u64> =
            self.shapes.iter().map(|shape| crate::partition::share(shape.amounts(), total)).collect();
        self.nodes.iter().map(|shape| shape.map_or(0, |shape| of_shape[shape])).collect()
    }

    /// Why no node could ever hold a replica of one of the unit's groups; `None` when each group has a node.
    pub fn infeasible(&self, spec: &UnitSpec) -> Option<String> {
        spec.task_groups.iter().find_map(|group| {
            let Template { demand, run, .. } = &group.template;
            let takes = |shape: &FeasibleShape| shape.runtime.takes(run) && shape.lacks(demand).is_none();
            let fits = self.live().any(takes);
            let why = || {
                let is_runtime = self.live().any(|shape| shape.lacks(demand).is_none());
                match run.runtime_need() {
                    RuntimeNeed::Images if is_runtime => NO_IMAGES.to_owned(),
                    RuntimeNeed::Nothing | RuntimeNeed::Simulation if is_runtime => NO_SIMULATED.to_owned(),
                    _ => self.reason(demand),
                }
            };
            (!fits).then(|| format!("task group `{}`: {}", group.name, why()))
        })
    }

    /// What the submitter of a unit may not have meant: a group without a command while nodes run processes, or one with an image
    /// while nodes run none.
    pub fn warnings(&self, spec: &UnitSpec) -> Vec<String> {
        let warning = |group: &TaskGroup| {
            let need = group.template.run.runtime_need();
            let n_all = words::count(self.n_nodes, "node");
            let n: usize = self.live().filter(|s| s.runtime.meets(need)).map(|s| s.n_nodes).sum();
            let (name, is_meant) = (&group.name, n == self.n_nodes);
            match need {
                _ if is_meant => None,
                RuntimeNeed::Nothing => None,
                RuntimeNeed::Simulation => Some(format!(
                    "task group `{name}` has no command: it goes to simulated nodes only ({n} of {n_all}); give it a `command`, or \
                     `simulated` if a simulated run is meant"
                )),
                RuntimeNeed::Images => Some(format!(
                    "task group `{name}` has an image: it goes to nodes that run images only ({n} of {n_all})"
                )),
            }
        };
        spec.task_groups.iter().filter_map(warning).collect()
    }

    /// Of the shape that comes nearest: the one that lacks least by kind of lack, then has the most nodes.
    fn reason(&self, demand: &Demand) -> String {
        if self.is_empty() {
            return "no node is registered".to_owned();
        }
        if self.live().all(|shape| !shape.takes_any) {
            return "no node takes any running unit: max_running_units is 0".to_owned();
        }
        if let Some((name, amount, most)) = demand.requests.iter().find_map(|(name, amount)| {
            let most = self.live().map(|shape| shape.capacity.get(name)).max().unwrap_or(0);
            (amount > most).then_some((name, amount, most))
        }) {
            let show = |amount| quantity::show(name, amount);
            return format!("asks for {} {name}; the largest node has {}", show(amount), show(most));
        }
        for devices in &demand.devices {
            let most = self.live().map(|shape| shape.matching(devices)).max().unwrap_or(0);
            if u64::from(devices.count) > most as u64 {
                let models = if devices.models.is_empty() {
                    String::new()
                } else {
                    format!(" of model {}", devices.models.join(", "))
                };
                return format!(
                    "asks for {} {}{models} on one node; no node has more than {most}",
                    devices.count, devices.kind
                );
            }
        }
        if self.live().all(|shape| shape.lacks_zones(demand)) {
            let asked = demand.zones.map_or("", |zones| zones.policy.name());
            return format!("asks for the zone policy {asked}; no node has zones that are large enough");
        }
        let n_nodes = self.n_nodes;
        format!("each amount is there on some node, but no single one of {n_nodes} nodes has them all")
    }

    fn live(&self) -> impl Iterator<Item = &FeasibleShape> {
        self.shapes.iter().filter(|shape| shape.n_nodes > 0)
    }
}

impl FeasibleShape {
    /// Devices by their kind in thousandths.
    fn amounts(&self) -> impl Iterator<Item = (&str, i64)> {
        let devices = self.devices.iter().map(|device| (device.kind.as_str(), i64::from(MILLI_WHOLE)));
        self.capacity.iter().chain(devices)
    }

    fn lacks<'a>(&self, demand: &'a Demand) -> Option<&'a str> {
        if !self.takes_any {
            return Some(RUNNING_UNITS);
        }
        if let Some((name, _)) =
            demand.requests.iter().find(|(name, amount)| *amount > self.capacity.get(name))
        {
            return Some(name);
        }
        if self.lacks_zones(demand) {
            return Some("zones");
        }
        let is_short = |devices: &&DeviceRequest| self.matching(devices) < devices.count as usize;
        demand.devices.iter().find(is_short).map(|devices| devices.kind.as_str())
    }

    /// Whether no zones of an empty node could serve a demand, as far as one look tells.
    fn lacks_zones(&self, demand: &Demand) -> bool {
        let Some(request) = demand.zones else { return false };
        if self.zones.is_empty() {
            return request.policy != ZonePolicy::BestEffort || request.cpu_mode == CpuMode::Dedicated;
        }
        let holds = |zone: &Resources| {
            let mut of_zone = zone.iter();
            of_zone.all(|(name, capacity)| demand.requests.get(name) <= capacity)
        };
        request.policy == ZonePolicy::SingleZone && !self.zones.iter().any(holds)
    }

    fn matching(&self, request: &DeviceRequest) -> usize {
        self.devices.iter().filter(|device| request.accepts(device)).count()
    }
}
