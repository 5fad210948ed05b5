//! What commands show: small structs with stable field names, made from the messages of the API.

use std::collections::BTreeMap;

use godel_base::words;
use godel_domain::zone::show_cpus;
use godel_proto::v1;
use godel_wire::ops::{eviction_reason_from_proto, run_end_reason_from_proto};
use serde::Serialize;

use crate::{
    output::{self, View, ViewColumn},
    view,
};

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

view! {
    /// A unit.
    pub struct UnitView from (unit: &v1::Unit) with {
        let spec = unit.spec.clone().unwrap_or_default();
        let status = unit.status.clone().unwrap_or_default();
        let meta = spec.meta.clone().unwrap_or_default();
        let counts = unit.counts.unwrap_or_default();
    } {
        /// Unique with the namespace.
        pub name: String = meta.name,
        /// Default `default`.
        pub namespace: String = meta.namespace,
        /// Durable number.
        pub unit_id: u64 = unit.unit_id,
        /// Idempotence key of its submission.
        pub uid: String = meta.uid,
        /// Derived.
        pub phase: String = phase(unit.phase()),
        /// `service`, `gang` and so on.
        pub class: String = class(spec.workload_class),
        /// Wanted.
        pub replicas: u32 = counts.replicas,
        /// Without a node.
        pub pending: u32 = counts.pending,
        /// On a node, not ended.
        pub bound: u32 = counts.bound,
        /// Running.
        pub running: u32 = counts.running,
        /// Ended with 0.
        pub succeeded: u32 = counts.succeeded,
        /// Ended otherwise.
        pub failed: u32 = counts.failed,
        /// The first binding has at least so many.
        pub min_member: u32 = spec.min_member.unwrap_or_default(),
        /// Queue path.
        pub queue: String = spec.queue,
        /// Higher wins.
        pub priority: i32 = spec.priority.unwrap_or_default(),
        /// Says the priority where that is 0.
        pub priority_class: String = spec.priority_class,
        /// May have to leave for units of higher priority.
        pub preemptible: bool = spec.preemptible.unwrap_or_default(),
        /// Not before it has run so long, milliseconds.
        pub min_run_ms: u64 = spec.min_run_ms,
        /// So many replacements may start before what they replace stops.
        pub max_surge: u32 = spec.max_surge,
        /// Whether the rescheduler may move its running units; absent: where they may be preempted.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub movable: Option<bool> = spec.movable,
        /// Replicas that start before those stop that they replace.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub replacements: Vec<String> = replacements(&status),
        /// It may wait so long before it is said that it finds no place, milliseconds; 0: 5 min.
        pub scheduling_timeout_ms: u64 = spec.scheduling_timeout_ms.unwrap_or_default(),
        /// It fails once it was active so long, milliseconds; 0: never.
        pub active_deadline_ms: u64 = spec.active_deadline_ms.unwrap_or_default(),
        /// Why the dispatcher ended it: `below-min` or `deadline`; empty if it did not.
        pub ended: String = ended(status.ended()),
        /// Whose leaving it waits for.
        pub waits_for: String = unit.waits_for.clone(),
        /// Units that preempted some of it, the newest last.
        pub preempted_by: Vec<String> = unit.preempted_by.clone(),
        /// What all its task groups demand; empty: no sub-cluster.
        pub sub_cluster: String = unit.sub_cluster.clone(),
        /// The domains that its running units are in, level by level, then those of its task groups; only in `describe`, and only of a
        /// unit or task groups with a topology.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub topology: String = String::new(),
        /// Who submitted it, in the submitter's words.
        pub owner: String = meta.owner,
        /// Who submitted it, as the call was judged: `person/admin`; absent: it was not.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub principal: String = status.principal.clone(),
        /// The scheduler that has it now.
        pub scheduler: String = unit.scheduler.clone(),
        /// Commit time of its submission, Unix milliseconds.
        pub create_time_ms: i64 = meta.create_time_ms,
        /// Commit time of its first binding, Unix milliseconds; 0 before.
        pub bound_time_ms: i64 = unit.bound_time_ms,
        /// Of its last change.
        pub revision: u64 = unit.revision,
        /// Since its submission, milliseconds; `None`: nobody has looked at a clock.
        #[serde(skip)]
        pub age_ms: Option<u64> = None,
        /// The first nodes on which its running units are; in `describe` each of them has its own line.
        pub nodes: Vec<String> = unit.nodes.clone(),
        /// There are more nodes than those.
        pub more_nodes: bool = unit.more_nodes,
        /// Why it waits, or how it ended, in a few words.
        pub reason: String = reason(unit),
        /// Labels.
        pub labels: BTreeMap<String, String> = meta.labels.into_iter().collect(),
        /// Why nodes refused it in its last try; absent while none has failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub refusals: Option<RefusalsView> = unit.refusals.as_ref().map(RefusalsView::from),
        /// One per task group, of a unit with several; only in `describe`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub task_groups: Vec<TaskGroupView> = Vec::new(),
        /// One per running unit; only in `describe`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub running_units: Vec<RunningUnitView> = Vec::new(),
    }
}

view! {
    /// Why nodes refused a unit.
    pub struct RefusalsView from (refusals: &v1::Refusals) with {
        let reasons = refusals.reasons.iter().map(|reason| ReasonView {
            plugin: reason.plugin.clone(),
            reason: reason.reason.clone(),
            nodes: reason.nodes,
        });
    } {
        /// Nodes looked at.
        pub nodes: u32 = refusals.nodes,
        /// Tries.
        pub attempts: u32 = refusals.attempts,
        /// Most frequent first.
        pub reasons: Vec<ReasonView> = reasons.collect(),
        /// The node that came nearest, in words.
        pub nearest_miss: String = refusals.nearest_miss.clone(),
    }
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

view! {
    /// A running unit.
    pub struct RunningUnitView from (run: &v1::RunningUnit) with {
        let phase = match run.phase() {
            v1::RunPhase::Unspecified => "Pending".to_owned(),
            phase => word(phase.as_str_name(), "RUN_PHASE_"),
        };
    } {
        /// Position in its unit.
        pub ordinal: u32 = run.ordinal,
        /// Which life.
        pub incarnation: u32 = run.incarnation,
        /// Of which group.
        pub task_group: String = run.task_group.clone(),
        /// Life.
        pub phase: String = if run.evicting { format!("{phase},Evicting") } else { phase },
        /// Where.
        pub node: String = run.node.clone(),
        /// Device indices there.
        pub devices: Vec<u32> = run.devices.clone(),
        /// Zone indices on the node.
        pub zones: Vec<u32> = run.zones.clone(),
        /// Of its only zone the indices of the cores that are its own.
        pub cores: Vec<u32> = run.cores.clone(),
        /// Of the devices.
        pub device_model: String = run.device_model.clone(),
        /// Of an ended one.
        pub exit_code: i32 = run.exit_code,
        /// In place.
        pub restarts: u32 = run.restarts,
        /// Why its command is over: `out-of-memory`; empty if it is not, or that is not known.
        pub reason: String = run_end_reason_from_proto(run.reason)
                .map_or_else(String::new, |reason| reason.name().to_owned()),
        /// Why it is or was evicted: `preempted`; empty if it was not.
        pub eviction: String = eviction_name(run.eviction),
        /// The last eviction of the replica, in this or an earlier incarnation.
        pub last_eviction: Option<LastEvictionView> = run.last_eviction.as_ref().map(|eviction| LastEvictionView {
                incarnation: eviction.incarnation,
                reason: eviction_name(eviction.reason),
                by: eviction.by.clone(),
            }),
        /// When its command was started last, Unix milliseconds; 0: not known.
        pub started_time_ms: i64 = run.started_time_ms,
        /// When it ended, Unix milliseconds; 0: not known.
        pub ended_time_ms: i64 = run.ended_time_ms,
    }
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

/// The word of a workload class: `gang`.
fn class(number: i32) -> String {
    let class = v1::WorkloadClass::try_from(number).unwrap_or_default();
    word(class.as_str_name(), "WORKLOAD_CLASS_").to_lowercase()
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

impl View for UnitView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.shown()),
        ("PHASE", |view| view.phase.clone()),
        ("CLASS", |view| view.class.clone()),
        ("READY", |view| view.ready()),
        ("PENDING", |view| view.pending.to_string()),
        ("QUEUE", |view| view.queue.clone()),
        ("PRIORITY", |view| match (view.priority, view.priority_class.as_str()) {
            (0, class) if !class.is_empty() => class.to_owned(),
            (priority, _) => priority.to_string(),
        }),
        ("AGE", |view| view.age_ms.map_or_else(String::new, output::span)),
        ("NODE", |view| view.places()),
        ("REASON", |view| view.reason.clone()),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("SUCCEEDED", |view| view.succeeded.to_string()),
        ("FAILED", |view| view.failed.to_string()),
        ("MIN", |view| view.min_member.to_string()),
        ("SCHEDULER", |view| view.scheduler.clone()),
        ("OWNER", |view| view.owner.clone()),
        ("ID", |view| view.unit_id.to_string()),
        ("UID", |view| view.uid.clone()),
        ("LABELS", |view| pairs(&view.labels)),
    ];
}

impl RunningUnitView {
    fn devices_text(&self) -> String {
        match listed(&self.devices) {
            none if none.is_empty() => none,
            devices => format!("{devices} {}", self.device_model),
        }
    }

    fn zones_text(&self) -> String {
        let cores =
            if self.cores.is_empty() { String::new() } else { format!(" cores {}", show_cpus(&self.cores)) };
        listed(&self.zones) + &cores
    }

    fn exit_text(&self) -> String {
        let ended = matches!(self.phase.as_str(), "Succeeded" | "Failed" | "Stopped");
        if ended { self.exit_code.to_string() } else { String::new() }
    }

    /// Who wanted it says more than that it was wanted.
    fn reason_text(&self) -> String {
        match (self.eviction.as_str(), self.reason.as_str()) {
            ("", reason) | (reason, "" | "told") => reason.to_owned(),
            (eviction, reason) => format!("{eviction},{reason}"),
        }
    }
}

/// Numbers with commas between.
fn listed(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

impl View for RunningUnitView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("ORDINAL", |view| view.ordinal.to_string()),
        ("PHASE", |view| view.phase.clone()),
        ("NODE", |view| view.node.clone()),
        ("DEVICES", Self::devices_text),
        ("ZONES", Self::zones_text),
        ("EXIT", Self::exit_text),
        ("REASON", Self::reason_text),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("GROUP", |view| view.task_group.clone()),
        ("INCARNATION", |view| view.incarnation.to_string()),
        ("RESTARTS", |view| view.restarts.to_string()),
        ("STARTED", |view| shown_time(view.started_time_ms)),
        ("ENDED", |view| shown_time(view.ended_time_ms)),
    ];
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

view! {
    /// A scheduler.
    pub struct SchedulerView from (status: &v1::SchedulerStatus) with {
        let state = match (status.attached, status.lease_remaining_ms) {
            (true, _) => "Attached",
            (false, 0) => "Lost",
            (false, _) => "Detached",
        };
    } {
        /// As in its lease.
        pub name: String = status.name.clone(),
        /// Where it serves.
        pub address: String = status.address.clone(),
        /// `Attached`, `Detached` or `Lost`.
        pub status: String = state.to_owned(),
        /// Of its lease.
        pub epoch: u64 = status.epoch,
        /// Left of its lease, milliseconds.
        pub lease_remaining_ms: u32 = status.lease_remaining_ms,
        /// In its partition.
        pub nodes: u32 = status.nodes,
        /// Units that it has.
        pub units: u32 = status.units,
        /// Of them parked.
        pub parked_units: u32 = status.parked_units,
        /// Running units that it has.
        pub running_units: u32 = status.running_units,
        /// Running units placed since its start.
        pub placed: u64 = status.placed,
        /// Over the last 10 s.
        pub placed_per_s: f64 = status.placed_per_s,
        /// Decisions refused by the binder.
        pub conflicts: u64 = status.conflicts,
        /// Of its candidate cache.
        pub cache_hits: u64 = status.cache_hits,
        /// Of its candidate cache.
        pub cache_misses: u64 = status.cache_misses,
    }
}

impl SchedulerView {
    fn hits_text(&self) -> String {
        let hits = (self.cache_hits * 100).checked_div(self.cache_hits + self.cache_misses);
        hits.map_or_else(String::new, |share| format!("{share}%"))
    }
}

impl View for SchedulerView {
    const COLUMNS: &'static [ViewColumn<Self>] = &[
        ("NAME", |view| view.name.clone()),
        ("STATUS", |view| view.status.clone()),
        ("LEASE", |view| format!("{}ms", view.lease_remaining_ms)),
        ("NODES", |view| view.nodes.to_string()),
        ("UNITS", |view| view.units.to_string()),
        ("PARKED", |view| view.parked_units.to_string()),
        ("PLACED", |view| view.placed.to_string()),
        ("PLACED/S", |view| format!("{:.0}", view.placed_per_s)),
        ("CONFLICTS", |view| view.conflicts.to_string()),
        ("CACHE-HITS", Self::hits_text),
    ];
    const WIDE: &'static [ViewColumn<Self>] = &[
        ("EPOCH", |view| view.epoch.to_string()),
        ("RUNNING-UNITS", |view| view.running_units.to_string()),
        ("ADDRESS", |view| view.address.clone()),
    ];
}

#[cfg(test)]
mod tests;
