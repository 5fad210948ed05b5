//! What commands show: small structs with stable field names, made from the messages of the API.

use std::collections::BTreeMap;

use godel_base::words;
use godel_domain::zone::show_cpus;
use godel_proto::v1;
use godel_wire::ops::{eviction_reason_from_proto, run_end_reason_from_proto};
use serde::Serialize;

use crate::output::{self, View};

mod bandwidth;
mod budget;
mod history;
mod node;
mod queue;
mod reschedule;
mod reservation;
mod task_groups;
mod top;
mod why;
mod yarn;
mod zones;

pub use bandwidth::{CareView, NetworkView};
pub use budget::{BudgetView, parse_limit};
pub use history::{HistorySumView, HistoryView, RunHistoryView};
pub use node::amounts;
use node::pairs;
pub use node::{ConflictView, DeviceView, DrainView, NodeView, NoticeView, QuarantineView, SlotsView};
pub use queue::{PriorityClassView, QueueView, parse_policy};
pub use reschedule::{
    MoveReasonView, MoveView, MovementView, ReschedulePlanView, ReschedulePolicyView, RescheduleStatusView,
};
pub use reservation::{PlaceView, ReservationView};
pub use task_groups::TaskGroupView;
pub use top::{DeviceUseView, NodeUseView, UnitUseView, ZoneUseView};
use why::{ended, reason, replacements};
pub use yarn::{YarnAmountView, YarnAppView, YarnAttemptView, YarnQueueView};
pub use zones::{ZonePartView, ZoneView, zones};

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
    /// So many replacements may start before what they replace stops.
    pub max_surge: u32,
    /// Whether the rescheduler may move its running units; absent: where they may be preempted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub movable: Option<bool>,
    /// Replicas that start before those stop that they replace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replacements: Vec<String>,
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
    /// What all its task groups demand; empty: no sub-cluster.
    pub sub_cluster: String,
    /// The domains that its running units are in, level by level, then those of its task groups; only in `describe`, and only of a
    /// unit or task groups with a topology.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology: String,
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
    /// Since its submission, milliseconds; `None`: nobody has looked at a clock.
    #[serde(skip)]
    pub age_ms: Option<u64>,
    /// The first nodes on which its running units are; in `describe` each of them has its own line.
    pub nodes: Vec<String>,
    /// There are more nodes than those.
    pub more_nodes: bool,
    /// Why it waits, or how it ended, in a few words.
    pub reason: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Why nodes refused it in its last try; absent while none has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<RefusalsView>,
    /// One per task group, of a unit with several; only in `describe`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub task_groups: Vec<TaskGroupView>,
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
    /// Zone indices on the node.
    pub zones: Vec<u32>,
    /// Of its only zone the indices of the cores that are its own.
    pub cores: Vec<u32>,
    /// Of the devices.
    pub device_model: String,
    /// Of an ended one.
    pub exit_code: i32,
    /// In place.
    pub restarts: u32,
    /// Why its command is over: `out-of-memory`; empty if it is not, or that is not known.
    pub reason: String,
    /// Why it is or was evicted: `preempted`; empty if it was not.
    pub eviction: String,
    /// The last eviction of the replica, in this or an earlier incarnation.
    pub last_eviction: Option<LastEvictionView>,
    /// When its command was started last, Unix milliseconds; 0: not known.
    pub started_time_ms: i64,
    /// When it ended, Unix milliseconds; 0: not known.
    pub ended_time_ms: i64,
}

/// The last eviction of a replica.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LastEvictionView {
    /// Which life was evicted.
    pub incarnation: u32,
    /// Why: `preempted`.
    pub reason: String,
    /// Who wanted it: `unit default/web`, `drain of node n1`; empty: not known.
    pub by: String,
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
        let status = unit.status.clone().unwrap_or_default();
        let meta = spec.meta.clone().unwrap_or_default();
        let counts = unit.counts.unwrap_or_default();
        Self {
            name: meta.name,
            namespace: meta.namespace,
            unit_id: unit.unit_id,
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
            min_member: spec.min_member.unwrap_or_default(),
            queue: spec.queue,
            priority: spec.priority.unwrap_or_default(),
            priority_class: spec.priority_class,
            preemptible: spec.preemptible.unwrap_or_default(),
            min_run_ms: spec.min_run_ms,
            max_surge: spec.max_surge,
            movable: spec.movable,
            replacements: replacements(&status),
            scheduling_timeout_ms: spec.scheduling_timeout_ms.unwrap_or_default(),
            active_deadline_ms: spec.active_deadline_ms.unwrap_or_default(),
            ended: ended(status.ended()),
            waits_for: unit.waits_for.clone(),
            preempted_by: unit.preempted_by.clone(),
            sub_cluster: unit.sub_cluster.clone(),
            topology: String::new(),
            owner: meta.owner,
            scheduler: unit.scheduler.clone(),
            create_time_ms: meta.create_time_ms,
            bound_time_ms: unit.bound_time_ms,
            revision: unit.revision,
            age_ms: None,
            nodes: unit.nodes.clone(),
            more_nodes: unit.more_nodes,
            reason: reason(unit),
            labels: meta.labels.into_iter().collect(),
            refusals: unit.refusals.as_ref().map(RefusalsView::from),
            task_groups: Vec::new(),
            running_units: Vec::new(),
        }
    }
}

impl UnitView {
    /// With its running units.
    pub fn described(answer: &v1::GetUnitResponse) -> Self {
        let unit = answer.unit.clone().unwrap_or_default();
        let running_units: Vec<_> = answer.running_units.iter().map(RunningUnitView::from).collect();
        let task_groups = unit.spec.as_ref().map(|spec| task_groups::task_groups(spec, &running_units));
        Self { task_groups: task_groups.unwrap_or_default(), running_units, ..Self::from(&unit) }
    }

    /// With its age at a time, Unix milliseconds.
    #[must_use]
    pub fn at(mut self, now_ms: i64) -> Self {
        self.age_ms = u64::try_from(now_ms.saturating_sub(self.create_time_ms)).ok();
        self
    }

    /// Where its running units are: `n1,n2,n3,...` if they are on more nodes than those.
    fn places(&self) -> String {
        let more = if self.more_nodes { ",..." } else { "" };
        format!("{}{more}", self.nodes.join(","))
    }

    /// How many of its replicas run or have succeeded: `3/4`, of a daemon `3 of 4 nodes`.
    pub fn ready(&self) -> String {
        let ready = self.running.saturating_add(self.succeeded);
        match self.class.as_str() {
            "daemon" => format!("{} of {}", self.running, words::count(self.replicas, "node")),
            _ => format!("{ready}/{}", self.replicas),
        }
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
            zones: run.zones.clone(),
            cores: run.cores.clone(),
            device_model: run.device_model.clone(),
            exit_code: run.exit_code,
            restarts: run.restarts,
            reason: run_end_reason_from_proto(run.reason)
                .map_or_else(String::new, |reason| reason.name().to_owned()),
            eviction: eviction_name(run.eviction),
            last_eviction: run.last_eviction.as_ref().map(|eviction| LastEvictionView {
                incarnation: eviction.incarnation,
                reason: eviction_name(eviction.reason),
                by: eviction.by.clone(),
            }),
            started_time_ms: run.started_time_ms,
            ended_time_ms: run.ended_time_ms,
        }
    }
}

impl View for UnitView {
    const HEADERS: &'static [&'static str] =
        &["NAME", "PHASE", "CLASS", "READY", "PENDING", "QUEUE", "PRIORITY", "AGE", "NODE", "REASON"];
    const WIDE: &'static [&'static str] =
        &["SUCCEEDED", "FAILED", "MIN", "SCHEDULER", "OWNER", "ID", "UID", "LABELS"];

    fn row(&self) -> Vec<String> {
        vec![
            self.shown(),
            self.phase.clone(),
            self.class.clone(),
            self.ready(),
            self.pending.to_string(),
            self.queue.clone(),
            match (self.priority, self.priority_class.as_str()) {
                (0, class) if !class.is_empty() => class.to_owned(),
                (priority, _) => priority.to_string(),
            },
            self.age_ms.map_or_else(String::new, output::span),
            self.places(),
            self.reason.clone(),
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
    const HEADERS: &'static [&'static str] =
        &["ORDINAL", "PHASE", "NODE", "DEVICES", "ZONES", "EXIT", "REASON"];
    const WIDE: &'static [&'static str] = &["GROUP", "INCARNATION", "RESTARTS", "STARTED", "ENDED"];

    fn row(&self) -> Vec<String> {
        let devices: Vec<String> = self.devices.iter().map(u32::to_string).collect();
        let devices = if devices.is_empty() {
            String::new()
        } else {
            format!("{} {}", devices.join(","), self.device_model)
        };
        let zones: Vec<String> = self.zones.iter().map(u32::to_string).collect();
        let mut zones = zones.join(",");
        if !self.cores.is_empty() {
            zones.push_str(&format!(" cores {}", show_cpus(&self.cores)));
        }
        let ended = matches!(self.phase.as_str(), "Succeeded" | "Failed" | "Stopped");
        vec![
            self.ordinal.to_string(),
            self.phase.clone(),
            self.node.clone(),
            devices,
            zones,
            if ended { self.exit_code.to_string() } else { String::new() },
            // Who wanted it says more than that it was wanted.
            match (self.eviction.as_str(), self.reason.as_str()) {
                ("", reason) | (reason, "" | "told") => reason.to_owned(),
                (eviction, reason) => format!("{eviction},{reason}"),
            },
        ]
    }

    fn wide(&self) -> Vec<String> {
        vec![
            self.task_group.clone(),
            self.incarnation.to_string(),
            self.restarts.to_string(),
            shown_time(self.started_time_ms),
            shown_time(self.ended_time_ms),
        ]
    }
}

/// Why something is evicted; empty for none, and for what this version does not know.
fn eviction_name(reason: i32) -> String {
    let reason = eviction_reason_from_proto(reason).ok().flatten();
    reason.map_or_else(String::new, |reason| reason.name().to_owned())
}

/// A time that may not be known.
fn shown_time(unix_ms: i64) -> String {
    if unix_ms == 0 { String::new() } else { output::time(unix_ms) }
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
