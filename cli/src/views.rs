//! What commands show: small structs with stable field names, made from the messages of the API.

use std::{collections::BTreeMap, fmt};

use godel_core::{quantity, resources::CPU, resources::MEMORY};
use godel_proto::v1;
use serde::Serialize;

use crate::output::View;

mod queue;

pub use queue::{PriorityClassView, QueueView, parse_policy};

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeView {
    /// Unique name.
    pub name: String,
    /// Durable number.
    pub node_id: u32,
    /// Of this installation.
    pub uid: String,
    /// `Ready`, `NotReady`, with `,Cordoned`, and `,Draining` or `,Drained`.
    pub status: String,
    /// Running units bound here.
    pub running_units: u32,
    /// In force, by resource.
    pub allocatable: BTreeMap<String, i64>,
    /// Requested by what is bound of the guaranteed pool.
    pub allocated: BTreeMap<String, i64>,
    /// What the best-effort pool may take in all.
    pub best_effort_allocatable: BTreeMap<String, i64>,
    /// Requested by what is bound of it.
    pub best_effort_allocated: BTreeMap<String, i64>,
    /// Measured last; empty when not measured.
    pub usage: BTreeMap<String, i64>,
    /// Of that what guaranteed running units use.
    pub guaranteed_usage: BTreeMap<String, i64>,
    /// Kept from best-effort for their smoothed use; empty: none is known.
    pub reserved: BTreeMap<String, i64>,
    /// Devices.
    pub devices: Vec<DeviceView>,
    /// An agent's session is open.
    pub connected: bool,
    /// The agent's attributes, overlaid by the administrator's labels.
    pub labels: BTreeMap<String, String>,
    /// `key=value:effect`.
    pub taints: Vec<String>,
    /// Of a drained node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainView>,
}

/// How far the drain of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DrainView {
    /// When it was asked for first, Unix milliseconds.
    pub since_ms: i64,
    /// From here on nothing is spared, Unix milliseconds; 0 never.
    pub deadline_ms: i64,
    /// Running units that were here when it was asked for.
    pub running_units: u32,
    /// Running units that are here now.
    pub left: u32,
}

impl fmt::Display for DrainView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = self.running_units.saturating_sub(self.left);
        write!(f, "{gone} of {} running units have left", self.running_units)
    }
}

/// A device of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceView {
    /// Position.
    pub index: usize,
    /// `gpu`.
    pub kind: String,
    /// For example `A10`.
    pub model: String,
    /// Thousandths that are free.
    pub free_milli: u32,
}

pub(crate) fn amounts(resources: Option<&v1::Resources>) -> BTreeMap<String, i64> {
    resources.map(|resources| resources.amounts.clone().into_iter().collect()).unwrap_or_default()
}

impl From<&v1::Node> for NodeView {
    fn from(node: &v1::Node) -> Self {
        let spec = node.spec.clone().unwrap_or_default();
        let report = node.report.clone().unwrap_or_default();
        let meta = spec.meta.clone().unwrap_or_default();
        let mut labels: BTreeMap<String, String> = report.attributes.into_iter().collect();
        labels.extend(meta.labels);
        let mut status = if report.ready { "Ready" } else { "NotReady" }.to_owned();
        if spec.cordoned {
            status.push_str(",Cordoned");
        }
        if spec.drain.is_some() {
            status.push_str(if node.running_units > 0 { ",Draining" } else { ",Drained" });
        }
        let drain = spec.drain.map(|drain| DrainView {
            since_ms: drain.since_ms,
            deadline_ms: drain.deadline_ms,
            running_units: drain.running_units,
            left: node.running_units,
        });
        let devices = report.devices.iter().enumerate().map(|(index, device)| DeviceView {
            index,
            kind: device.kind.clone(),
            model: device.model.clone(),
            free_milli: node.device_free_milli.get(index).copied().unwrap_or(0),
        });
        Self {
            name: meta.name,
            node_id: node.node_id,
            uid: meta.uid,
            status,
            running_units: node.running_units,
            allocatable: amounts(node.allocatable.as_ref()),
            allocated: amounts(node.allocated.as_ref()),
            best_effort_allocatable: amounts(node.best_effort_allocatable.as_ref()),
            best_effort_allocated: amounts(node.best_effort_allocated.as_ref()),
            usage: amounts(node.usage.as_ref()),
            guaranteed_usage: amounts(node.guaranteed_usage.as_ref()),
            reserved: amounts(node.reserved.as_ref()),
            devices: devices.collect(),
            connected: node.connected,
            labels,
            taints: spec.taints.iter().map(taint).collect(),
            drain,
        }
    }
}

fn taint(taint: &v1::Taint) -> String {
    let effect = match taint.effect() {
        v1::TaintEffect::PreferNoSchedule => "prefer-no-schedule",
        v1::TaintEffect::NoSchedule | v1::TaintEffect::Unspecified => "no-schedule",
    };
    if taint.value.is_empty() {
        format!("{}:{effect}", taint.key)
    } else {
        format!("{}={}:{effect}", taint.key, taint.value)
    }
}

impl NodeView {
    fn share(&self, name: &str) -> String {
        share(name, &self.allocated, &self.allocatable)
    }

    fn best_effort_share(&self, name: &str) -> String {
        share(name, &self.best_effort_allocated, &self.best_effort_allocatable)
    }

    /// Measured use; empty when there is none.
    fn used(&self, name: &str) -> String {
        self.usage.get(name).map_or_else(String::new, |used| quantity::show(name, *used))
    }

    /// `used/all` GPUs, in whole ones with up to two decimals.
    fn gpus(&self) -> String {
        if self.devices.is_empty() {
            return String::new();
        }
        let used: u64 =
            self.devices.iter().map(|device| u64::from(1000u32.saturating_sub(device.free_milli))).sum();
        format!("{}/{} {}", milli(used), self.devices.len(), self.devices[0].model)
    }
}

fn share(name: &str, used: &BTreeMap<String, i64>, all: &BTreeMap<String, i64>) -> String {
    let of = |amounts: &BTreeMap<String, i64>| amounts.get(name).copied().unwrap_or(0);
    format!("{}/{}", quantity::show(name, of(used)), quantity::show(name, of(all)))
}

fn milli(milli: u64) -> String {
    quantity::show_cpu(i64::try_from(milli).unwrap_or(i64::MAX))
}

impl View for NodeView {
    const HEADERS: &'static [&'static str] = &["NAME", "STATUS", "UNITS", "CPU", "MEMORY", "GPU"];
    const WIDE: &'static [&'static str] =
        &["BE-CPU", "BE-MEMORY", "USE-CPU", "USE-MEM", "AGENT", "ID", "UID", "TAINTS", "LABELS"];

    fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.status.clone(),
            self.running_units.to_string(),
            self.share(CPU),
            self.share(MEMORY),
            self.gpus(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            self.best_effort_share(CPU),
            self.best_effort_share(MEMORY),
            self.used(CPU),
            self.used(MEMORY),
            if self.connected { "connected" } else { "gone" }.to_owned(),
            self.node_id.to_string(),
            self.uid.clone(),
            self.taints.join(","),
            pairs(&self.labels),
        ]
    }
}

fn pairs(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// A unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnitView {
    /// Unique with the namespace.
    pub name: String,
    /// Default `default`.
    pub namespace: String,
    /// Durable number.
    pub unit_id: u64,
    /// Idempotence key of its submission.
    pub uid: String,
    /// Derived.
    pub phase: String,
    /// `service`, `gang` and so on.
    pub class: String,
    /// Wanted.
    pub replicas: u32,
    /// Without a node.
    pub pending: u32,
    /// On a node, not ended.
    pub bound: u32,
    /// Running.
    pub running: u32,
    /// Ended with 0.
    pub succeeded: u32,
    /// Ended otherwise.
    pub failed: u32,
    /// The first binding has at least so many.
    pub min_member: u32,
    /// Queue path.
    pub queue: String,
    /// Higher wins.
    pub priority: i32,
    /// Says the priority where that is 0.
    pub priority_class: String,
    /// May have to leave for units of higher priority.
    pub preemptible: bool,
    /// Not before it has run so long, milliseconds.
    pub min_run_ms: u64,
    /// It may wait so long before it is said that it finds no place, milliseconds; 0: 5 min.
    pub scheduling_timeout_ms: u64,
    /// It fails once it was active so long, milliseconds; 0: never.
    pub active_deadline_ms: u64,
    /// Why the dispatcher ended it: `below-min` or `deadline`; empty if it did not.
    pub ended: String,
    /// Whose leaving it waits for.
    pub waits_for: String,
    /// Units that preempted some of it, the newest last.
    pub preempted_by: Vec<String>,
    /// Who submitted it.
    pub owner: String,
    /// The scheduler that has it now.
    pub scheduler: String,
    /// Commit time of its submission, Unix milliseconds.
    pub create_time_ms: i64,
    /// Commit time of its first binding, Unix milliseconds; 0 before.
    pub bound_time_ms: i64,
    /// Of its last change.
    pub revision: u64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Why nodes refused it in its last try; absent while none has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<RefusalsView>,
    /// One per running unit; only in `describe`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub running_units: Vec<RunningUnitView>,
}

/// Why nodes refused a unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusalsView {
    /// Nodes looked at.
    pub nodes: u32,
    /// Tries.
    pub attempts: u32,
    /// Most frequent first.
    pub reasons: Vec<ReasonView>,
    /// The node that came nearest, in words.
    pub nearest_miss: String,
}

/// One reason and how many nodes gave it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReasonView {
    /// The plugin that refused.
    pub plugin: String,
    /// For example `insufficient cpu`.
    pub reason: String,
    /// Nodes.
    pub nodes: u32,
}

/// A running unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunningUnitView {
    /// Position in its unit.
    pub ordinal: u32,
    /// Which life.
    pub incarnation: u32,
    /// Of which group.
    pub task_group: String,
    /// Life.
    pub phase: String,
    /// Where.
    pub node: String,
    /// Device indices there.
    pub devices: Vec<u32>,
    /// Of the devices.
    pub device_model: String,
    /// Of an ended one.
    pub exit_code: i32,
    /// In place.
    pub restarts: u32,
}

/// `UNIT_PHASE_RUNNING` as `Running`.
fn word(name: &str, prefix: &str) -> String {
    let rest = name.strip_prefix(prefix).unwrap_or(name);
    rest.split('_')
        .map(|part| {
            let lower = part.to_lowercase();
            let mut chars = lower.chars();
            chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
        })
        .collect()
}

/// A unit's phase as shown: `Running`.
pub fn phase(phase: v1::UnitPhase) -> String {
    word(phase.as_str_name(), "UNIT_PHASE_")
}

/// A phase by its shown name, any case.
pub fn parse_phase(text: &str) -> Option<v1::UnitPhase> {
    v1::UnitPhase::from_str_name(&format!("UNIT_PHASE_{}", text.to_uppercase()))
}

/// Phases that can be asked for.
pub const PHASES: [&str; 9] = [
    "queued",
    "scheduling",
    "unschedulable",
    "scheduled",
    "running",
    "completed",
    "failed",
    "cancelled",
    "suspended",
];

impl From<&v1::Refusals> for RefusalsView {
    fn from(refusals: &v1::Refusals) -> Self {
        let reasons = refusals.reasons.iter().map(|reason| ReasonView {
            plugin: reason.plugin.clone(),
            reason: reason.reason.clone(),
            nodes: reason.nodes,
        });
        Self {
            nodes: refusals.nodes,
            attempts: refusals.attempts,
            reasons: reasons.collect(),
            nearest_miss: refusals.nearest_miss.clone(),
        }
    }
}

impl From<&v1::Unit> for UnitView {
    fn from(unit: &v1::Unit) -> Self {
        let spec = unit.spec.clone().unwrap_or_default();
        let meta = spec.meta.clone().unwrap_or_default();
        let counts = unit.counts.unwrap_or_default();
        Self {
            name: meta.name,
            namespace: meta.namespace,
            unit_id: spec.unit_id,
            uid: meta.uid,
            phase: phase(unit.phase()),
            class: word(
                v1::WorkloadClass::try_from(spec.workload_class).unwrap_or_default().as_str_name(),
                "WORKLOAD_CLASS_",
            )
            .to_lowercase(),
            replicas: counts.replicas,
            pending: counts.pending,
            bound: counts.bound,
            running: counts.running,
            succeeded: counts.succeeded,
            failed: counts.failed,
            min_member: spec.min_member,
            queue: spec.queue,
            priority: spec.priority,
            priority_class: spec.priority_class,
            preemptible: spec.preemptible.unwrap_or_default(),
            min_run_ms: spec.min_run_ms,
            scheduling_timeout_ms: spec.scheduling_timeout_ms,
            active_deadline_ms: spec.active_deadline_ms,
            ended: ended(v1::UnitEnd::try_from(spec.ended).unwrap_or_default()),
            waits_for: unit.waits_for.clone(),
            preempted_by: unit.preempted_by.clone(),
            owner: meta.owner,
            scheduler: unit.scheduler.clone(),
            create_time_ms: meta.create_time_ms,
            bound_time_ms: unit.bound_time_ms,
            revision: unit.revision,
            labels: meta.labels.into_iter().collect(),
            refusals: unit.refusals.as_ref().map(RefusalsView::from),
            running_units: Vec::new(),
        }
    }
}

fn ended(end: v1::UnitEnd) -> String {
    match end {
        v1::UnitEnd::Unspecified => String::new(),
        end => word(end.as_str_name(), "UNIT_END_").to_lowercase().replace('_', "-"),
    }
}

impl UnitView {
    /// With its running units.
    pub fn described(answer: &v1::GetUnitResponse) -> Self {
        let unit = answer.unit.clone().unwrap_or_default();
        let running_units = answer.running_units.iter().map(RunningUnitView::from).collect();
        Self { running_units, ..Self::from(&unit) }
    }

    /// `name`, with its namespace unless that is `default`.
    pub fn shown(&self) -> String {
        if self.namespace == "default" {
            self.name.clone()
        } else {
            format!("{}/{}", self.namespace, self.name)
        }
    }
}

impl From<&v1::RunningUnit> for RunningUnitView {
    fn from(run: &v1::RunningUnit) -> Self {
        let phase = match run.phase() {
            v1::RunPhase::Unspecified => "Pending".to_owned(),
            phase => word(phase.as_str_name(), "RUN_PHASE_"),
        };
        Self {
            ordinal: run.ordinal,
            incarnation: run.incarnation,
            task_group: run.task_group.clone(),
            phase: if run.evicting { format!("{phase},Evicting") } else { phase },
            node: run.node.clone(),
            devices: run.devices.clone(),
            device_model: run.device_model.clone(),
            exit_code: run.exit_code,
            restarts: run.restarts,
        }
    }
}

impl View for UnitView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "PHASE", "CLASS", "READY", "PENDING", "QUEUE", "PRIORITY"];
    const WIDE: &'static [&'static str] =
        &["SUCCEEDED", "FAILED", "MIN", "SCHEDULER", "OWNER", "ID", "UID", "LABELS"];

    fn row(&self) -> Vec<String> {
        vec![
            self.shown(),
            self.phase.clone(),
            self.class.clone(),
            format!("{}/{}", self.running, self.replicas),
            self.pending.to_string(),
            self.queue.clone(),
            match (self.priority, self.priority_class.as_str()) {
                (0, class) if !class.is_empty() => class.to_owned(),
                (priority, _) => priority.to_string(),
            },
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            self.succeeded.to_string(),
            self.failed.to_string(),
            self.min_member.to_string(),
            self.scheduler.clone(),
            self.owner.clone(),
            self.unit_id.to_string(),
            self.uid.clone(),
            pairs(&self.labels),
        ]
    }
}

impl View for RunningUnitView {
    const HEADERS: &'static [&'static str] = &["ORDINAL", "PHASE", "NODE", "DEVICES", "EXIT"];
    const WIDE: &'static [&'static str] = &["GROUP", "INCARNATION", "RESTARTS"];

    fn row(&self) -> Vec<String> {
        let devices: Vec<String> = self.devices.iter().map(u32::to_string).collect();
        let devices = if devices.is_empty() {
            String::new()
        } else {
            format!("{} {}", devices.join(","), self.device_model)
        };
        let ended = matches!(self.phase.as_str(), "Succeeded" | "Failed" | "Stopped");
        vec![
            self.ordinal.to_string(),
            self.phase.clone(),
            self.node.clone(),
            devices,
            if ended { self.exit_code.to_string() } else { String::new() },
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![self.task_group.clone(), self.incarnation.to_string(), self.restarts.to_string()]
    }
}

/// A scheduler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchedulerView {
    /// As in its lease.
    pub name: String,
    /// Where it serves.
    pub address: String,
    /// `Attached`, `Detached` or `Lost`.
    pub status: String,
    /// Of its lease.
    pub epoch: u64,
    /// Left of its lease, milliseconds.
    pub lease_remaining_ms: u32,
    /// In its partition.
    pub nodes: u32,
    /// Units that it has.
    pub units: u32,
    /// Of them parked.
    pub parked_units: u32,
    /// Running units that it has.
    pub running_units: u32,
    /// Running units placed since its start.
    pub placed: u64,
    /// Over the last 10 s.
    pub placed_per_s: f64,
    /// Decisions refused by the binder.
    pub conflicts: u64,
    /// Of its candidate cache.
    pub cache_hits: u64,
    /// Of its candidate cache.
    pub cache_misses: u64,
}

impl From<&v1::SchedulerStatus> for SchedulerView {
    fn from(status: &v1::SchedulerStatus) -> Self {
        let state = match (status.attached, status.lease_remaining_ms) {
            (true, _) => "Attached",
            (false, 0) => "Lost",
            (false, _) => "Detached",
        };
        Self {
            name: status.name.clone(),
            address: status.address.clone(),
            status: state.to_owned(),
            epoch: status.epoch,
            lease_remaining_ms: status.lease_remaining_ms,
            nodes: status.nodes,
            units: status.units,
            parked_units: status.parked_units,
            running_units: status.running_units,
            placed: status.placed,
            placed_per_s: status.placed_per_s,
            conflicts: status.conflicts,
            cache_hits: status.cache_hits,
            cache_misses: status.cache_misses,
        }
    }
}

impl View for SchedulerView {
    const HEADERS: &'static [&'static str] = &[
        "NAME",
        "STATUS",
        "LEASE",
        "NODES",
        "UNITS",
        "PARKED",
        "PLACED",
        "PLACED/S",
        "CONFLICTS",
        "CACHE-HITS",
    ];
    const WIDE: &'static [&'static str] = &["EPOCH", "RUNNING-UNITS", "ADDRESS"];

    fn row(&self) -> Vec<String> {
        let tries = self.cache_hits + self.cache_misses;
        let hits =
            (self.cache_hits * 100).checked_div(tries).map_or_else(String::new, |share| format!("{share}%"));
        vec![
            self.name.clone(),
            self.status.clone(),
            format!("{}ms", self.lease_remaining_ms),
            self.nodes.to_string(),
            self.units.to_string(),
            self.parked_units.to_string(),
            self.placed.to_string(),
            format!("{:.0}", self.placed_per_s),
            self.conflicts.to_string(),
            hits,
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![self.epoch.to_string(), self.running_units.to_string(), self.address.clone()]
    }
}

#[cfg(test)]
mod tests;
