//! Scheduling units: what was submitted, with its defaults filled in, and what the control plane adds to it.

use std::collections::BTreeMap;

use smallvec::SmallVec;

pub use crate::template::{RunSpec, Template, Volume};
use crate::{
    demand::Pool,
    fields::FieldVisitor,
    running_units::End,
    surge::Surge,
    unit_affinity::UnitAffinity,
    unit_topology::{GroupTopology, UnitTopology},
};
use godel_base::ids::UnitId;

/// So long a unit may wait by default before it is said that it finds no place, milliseconds.
pub const SCHEDULING_TIMEOUT_MS: u64 = 5 * 60 * 1_000;

/// The stored record of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitRecord {
    /// Its id, which is never reused.
    pub id: UnitId,
    /// What the submitter asked for. Scaling and stopping change `replicas` and `min_member`.
    pub spec: UnitSpec,
    /// What the control plane writes.
    pub status: UnitStatus,
}

/// What the control plane writes into the record of a unit. A new unit has the default, with its ordinals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitStatus {
    /// The ordinals of each task group, by position: half-open ranges `[start, end)`, ascending, disjoint over all groups.
    /// An empty one at the end says that new ordinals begin there or later.
    pub ordinals: SmallVec<[Vec<(u32, u32)>; 1]>,
    /// The unit was cancelled.
    pub cancelled: bool,
    /// The unit runs nothing until it is resumed.
    pub suspended: bool,
    /// Why the dispatcher ended the unit.
    pub ended: Option<UnitEnd>,
    /// Number of restarts of the whole unit, [`UnitSpec::max_restarts`] at most.
    pub whole_restarts: u32,
    /// The whole unit is being restarted, or retried after its end: its running units leave, and none is placed before all have left.
    pub restarting: bool,
    /// The submitted values of what scaling and stopping have changed since; `None` while neither has happened.
    pub submitted: Option<Box<SubmittedSize>>,
    /// While it is being restarted: what has succeeded stays as it is.
    pub keeps_succeeded: bool,
    /// When it was last retried after its end, Unix milliseconds; 0: never.
    pub retried_ms: i64,
    /// It was changed since: what was submitted is known by its uid and name alone.
    pub updated: bool,
    /// How many of the task groups the unit's own record has, the first ones; the others were added and have records of their
    /// own, see [`crate::task_group_record`]. 0: none was added, its own record has all.
    pub own_groups: u16,
    /// Replicas that come back once they have ended, however they ended, as somebody asked for it: ordinal and incarnation.
    pub next_incarnations: Vec<(u32, u32)>,
    /// Sums of the replicas of which nothing else is kept, as they ended long ago; `None`: there are none.
    pub compacted: Option<Box<CompactedRuns>>,
    /// Replicas that are to run before others stop, which they replace.
    pub surges: Vec<Surge>,
    /// Who submitted it, as its call was judged: `person/admin`, `yarn/NAME`. Empty: the call was not judged. It never changes.
    pub principal: String,
}

/// Sums of replicas that were compacted away. See [`crate::unit_history::UnitHistory`] for what they mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactedRuns {
    /// How many.
    pub replicas: u64,
    /// Of those the ones that the unit still wanted and that ended with exit code 0.
    pub succeeded: u64,
    /// Of those the ones that the unit still wanted and that failed.
    pub failed: u64,
    /// How often they had a node.
    pub starts: u64,
    /// Time on nodes of the last incarnation of each, added up, milliseconds.
    pub run_ms: u64,
    /// What they were given for so long.
    pub used: BTreeMap<String, u64>,
    /// Earliest binding of those that ended by themselves, Unix milliseconds; 0: none did.
    pub bound_ms: i64,
}

/// A unit as submitted, with its defaults filled in: task groups that are placed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitSpec {
    /// Unique with `name`.
    pub namespace: String,
    /// Unique with `namespace`.
    pub name: String,
    /// Idempotence key of its submission.
    pub uid: String,
    /// For selection.
    pub labels: BTreeMap<String, String>,
    /// Who submitted it.
    pub owner: String,
    /// Source of its defaults.
    pub class: WorkloadClass,
    /// At least one.
    pub task_groups: Vec<TaskGroup>,
    /// Its first binding commits at least so many, or none.
    pub min_member: u32,
    /// Path of its queue.
    pub queue: String,
    /// Higher wins. 0 with a priority class: that of the class.
    pub priority: i32,
    /// Name of a priority class; empty: none.
    pub priority_class: String,
    /// Pays for it.
    pub pool: Pool,
    /// Of replicas that ended by themselves.
    pub restart_policy: RestartPolicy,
    /// Name of the profile that it is placed by; empty: that of its sub-cluster or class.
    pub profile: String,
    /// Kept so long after its end, milliseconds.
    pub ttl_after_finished_ms: u64,
    /// In-place restarts.
    pub max_restarts: u32,
    /// Of running units that have to leave for another reason than the unit's own wish.
    pub on_eviction: OnEviction,
    /// Of a unit that had `min_member` and has fewer left.
    pub on_below_min: OnBelowMin,
    /// Of a unit of which a running unit has failed for good.
    pub on_failure: OnFailure,
    /// So long it may wait before it is said that it finds no place, milliseconds; 0: [`SCHEDULING_TIMEOUT_MS`].
    pub scheduling_timeout_ms: u64,
    /// It fails once it was active so long, milliseconds; 0: never.
    pub active_deadline_ms: u64,
    /// Its running units may have to leave for units of higher rank.
    pub preemptible: bool,
    /// Not before they have run so long, milliseconds.
    pub min_run_ms: u64,
    /// Where its replicas go in relation to running units.
    pub affinity: UnitAffinity,
    /// Where its running units go in relation to one another.
    pub topology: UnitTopology,
    /// So many replicas may start before those that they replace stop.
    pub max_surge: u32,
    /// Whether the rescheduler may move its running units; `None`: where they may be preempted now.
    pub movable: Option<bool>,
}

impl UnitSpec {
    /// Whether some task group has a minimum of its own.
    pub fn has_group_minima(&self) -> bool {
        self.task_groups.iter().any(|group| group.min_member > 0)
    }

    /// Whether where its replicas go depends on running units.
    pub fn has_terms(&self) -> bool {
        !self.affinity.is_empty() || !self.topology.is_empty() || self.has_group_topologies()
    }

    /// Whether some task group has a topology of its own.
    pub fn has_group_topologies(&self) -> bool {
        self.task_groups.iter().any(|group| group.topology.is_some())
    }

    /// Shows a visitor the fields of two units, one field after the other, by their keys in unit files. The uid is no
    /// field that a file has to have.
    pub fn visit(&self, other: &Self, visitor: &mut impl FieldVisitor) {
        // A new field breaks the build here.
        let Self {
            namespace,
            name,
            uid: _,
            labels,
            owner,
            class,
            task_groups,
            min_member,
            queue,
            priority,
            priority_class,
            pool,
            restart_policy,
            profile,
            ttl_after_finished_ms,
            max_restarts,
            on_eviction,
            on_below_min,
            on_failure,
            scheduling_timeout_ms,
            active_deadline_ms,
            preemptible,
            min_run_ms,
            affinity: UnitAffinity { near, apart, spread },
            topology,
            max_surge,
            movable,
        } = self;
        visitor.field("namespace", namespace, &other.namespace);
        visitor.field("name", name, &other.name);
        visitor.field("labels", labels, &other.labels);
        visitor.field("owner", owner, &other.owner);
        visitor.field("class", class, &other.class);
        visitor.groups(task_groups, &other.task_groups);
        visitor.field("min_member", min_member, &other.min_member);
        visitor.field("queue", queue, &other.queue);
        visitor.field("priority", priority, &other.priority);
        visitor.field("priority_class", priority_class, &other.priority_class);
        visitor.field("pool", pool, &other.pool);
        visitor.field("restart_policy", restart_policy, &other.restart_policy);
        visitor.field("profile", profile, &other.profile);
        visitor.field("ttl_after_finished", ttl_after_finished_ms, &other.ttl_after_finished_ms);
        visitor.field("max_restarts", max_restarts, &other.max_restarts);
        visitor.field("on_eviction", on_eviction, &other.on_eviction);
        visitor.field("on_below_min", on_below_min, &other.on_below_min);
        visitor.field("on_failure", on_failure, &other.on_failure);
        visitor.field("preemptible", preemptible, &other.preemptible);
        visitor.field("min_run", min_run_ms, &other.min_run_ms);
        visitor.field("scheduling_timeout", scheduling_timeout_ms, &other.scheduling_timeout_ms);
        visitor.field("active_deadline", active_deadline_ms, &other.active_deadline_ms);
        visitor.field("affinity.near", near, &other.affinity.near);
        visitor.field("affinity.apart", apart, &other.affinity.apart);
        visitor.field("affinity.spread", spread, &other.affinity.spread);
        visitor.field("topology", topology, &other.topology);
        visitor.field("max_surge", max_surge, &other.max_surge);
        visitor.field("movable", movable, &other.movable);
    }
}

/// The size of a unit as it was submitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmittedSize {
    /// Its first binding.
    pub min_member: u32,
    /// Of each task group, by position.
    pub replicas: Vec<u32>,
    /// Minimum of each task group, by position; empty: no group has one.
    pub group_minima: Vec<u32>,
}

/// Replicas of one template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskGroup {
    /// Unique in the unit.
    pub name: String,
    /// Number of its ordinals in [`UnitStatus::ordinals`].
    pub replicas: u32,
    /// The first binding of the unit commits at least so many of this group, or none of the unit; 0: the group has no minimum of
    /// its own. The minima of all groups together are at most that of the unit.
    pub min_member: u32,
    /// One replica.
    pub template: Template,
    /// Where the replicas of this group go in relation to one another, within what the topology of the unit says; `None`: the
    /// group says nothing.
    pub topology: Option<Box<UnitTopology>>,
}

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkloadClass {
    /// Long-running, replicas independent.
    Service,
    /// Long-running with stable ordinals, started in their order.
    Stateful,
    /// Runs to completion, replicas independent.
    Batch,
    /// All or nothing.
    Gang,
    /// Streaming job.
    Stream,
    /// Training job.
    Training,
    /// A YARN application.
    Yarn,
    /// One replica on each node that it may have; the control plane says how many that are.
    Daemon,
}

impl WorkloadClass {
    /// Every class.
    pub const ALL: [Self; 8] = [
        Self::Service,
        Self::Stateful,
        Self::Batch,
        Self::Gang,
        Self::Stream,
        Self::Training,
        Self::Yarn,
        Self::Daemon,
    ];

    /// Its replicas serve by themselves: they are better on different nodes, where that costs little.
    pub fn spreads(self) -> bool {
        match self {
            Self::Service | Self::Stateful => true,
            Self::Batch | Self::Gang | Self::Stream | Self::Training | Self::Yarn | Self::Daemon => false,
        }
    }
}

/// When a running unit that ended by itself is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestartPolicy {
    /// Never.
    Never,
    /// After a failure.
    OnFailure,
    /// Always.
    Always,
}

impl RestartPolicy {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Never, Self::OnFailure, Self::Always];
}

/// What becomes of an evicted running unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnEviction {
    /// It comes back as its next incarnation.
    #[default]
    Requeue,
    /// It has failed.
    Fail,
}

impl OnEviction {
    /// Every effect.
    pub const ALL: [Self; 2] = [Self::Requeue, Self::Fail];
}

/// What becomes of a unit of which fewer than `min_member` are placed or over by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnBelowMin {
    /// The rest goes on; the missing come back one by one.
    #[default]
    Keep,
    /// The rest goes too, and `min_member` are bound together again.
    Restart,
    /// The unit ends.
    Stop,
}

impl OnBelowMin {
    /// Every effect.
    pub const ALL: [Self; 3] = [Self::Keep, Self::Restart, Self::Stop];
}

/// What becomes of a unit once a running unit of it has failed and is not started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The rest goes on.
    #[default]
    Keep,
    /// All of it comes back, `max_restarts` times at most; then it ends.
    Restart,
    /// The unit ends.
    Stop,
}

impl OnFailure {
    /// Every effect.
    pub const ALL: [Self; 3] = [Self::Keep, Self::Restart, Self::Stop];
}

/// Why the dispatcher ended a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnitEnd {
    /// Fewer than `min_member` were left.
    BelowMin,
    /// It was active for `active_deadline_ms`.
    Deadline,
    /// A running unit of it failed for good.
    Failure,
}

impl UnitEnd {
    /// Every ground.
    pub const ALL: [Self; 3] = [Self::BelowMin, Self::Deadline, Self::Failure];

    /// As shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::BelowMin => "below-min",
            Self::Deadline => "deadline",
            Self::Failure => "failure",
        }
    }
}

impl TaskGroup {
    /// The group at a position at which there was another one, of which nothing is left: it wants nothing, and the next group
    /// that is added to the unit takes its position.
    pub fn vacant(idx: usize) -> Self {
        Self {
            name: format!("vacant-{idx}"),
            replicas: 0,
            min_member: 0,
            template: Template::default(),
            topology: None,
        }
    }

    /// Whether nothing is left of the group that was at this position.
    pub fn is_vacant(&self, idx: usize) -> bool {
        self.replicas == 0 && self.name.starts_with("vacant-") && *self == Self::vacant(idx)
    }
}

impl UnitRecord {
    /// Returns the record of a new unit: its groups have the ordinals from 0 on, one after the other.
    pub fn new(id: UnitId, spec: UnitSpec) -> Self {
        let mut next = 0u32;
        let ordinals = spec.task_groups.iter().map(|group| {
            let start = next;
            next = start.saturating_add(group.replicas);
            vec![(start, next)]
        });
        let status = UnitStatus { ordinals: ordinals.collect(), ..UnitStatus::default() };
        Self { id, spec, status }
    }

    /// Whether something of it is to run: nobody has cancelled, ended or suspended it, and it is not being restarted as a
    /// whole.
    pub fn is_wanted(&self) -> bool {
        let UnitStatus { cancelled, suspended, restarting, ended, .. } = &self.status;
        !cancelled && !suspended && !restarting && ended.is_none()
    }

    /// Whether whoever a principal names may change what the unit runs: a person may, and who is not judged (an empty principal). A member
    /// may if one of its role has submitted the unit, so that nobody runs what another principal is trusted for.
    pub fn may_be_rewritten_by(&self, principal: &str) -> bool {
        fn role(principal: &str) -> Option<&str> {
            principal.split_once('/').map(|(role, _)| role)
        }
        match role(principal) {
            None | Some("person") => true,
            // An application that was submitted in plain text goes on.
            Some("yarn") if self.status.principal.is_empty() => self.spec.class == WorkloadClass::Yarn,
            by => by == role(&self.status.principal),
        }
    }

    /// Notes its size before the first change of it.
    pub fn note_submitted(&mut self) {
        if self.status.submitted.is_none() {
            let own = || self.spec.task_groups.iter().take(self.n_own_groups());
            let replicas = own().map(|group| group.replicas).collect();
            let group_minima = match self.spec.has_group_minima() {
                true => own().map(|group| group.min_member).collect(),
                false => Vec::new(),
            };
            let size = SubmittedSize { min_member: self.spec.min_member, replicas, group_minima };
            self.status.submitted = Some(Box::new(size));
        }
    }

    /// How many of its task groups, the first ones, its own record has.
    pub fn n_own_groups(&self) -> usize {
        match self.status.own_groups {
            0 => self.spec.task_groups.len(),
            n => usize::from(n),
        }
    }

    /// Returns the first ordinal, `from` or later, with which a whole segment of a task group begins; `from` if it has no segments.
    pub fn segment_start(&self, idx: usize, from: u32) -> u32 {
        let topologies = self.group_topologies();
        let of_group = topologies.iter().find(|known| usize::from(known.group) == idx);
        let segments = of_group.and_then(|known| Some((known.first, known.topology.segments.as_ref()?)));
        let Some((first, segments)) = segments.filter(|(first, _)| from >= *first) else { return from };
        let size = segments.size.max(1);
        (from - first).div_ceil(size).saturating_mul(size).saturating_add(first)
    }

    /// Index of the group that owns `ordinal`; `None` when it is not wanted (any more).
    pub fn group_of(&self, ordinal: u32) -> Option<usize> {
        let has = |(start, end): &(u32, u32)| (*start..*end).contains(&ordinal);
        self.status.ordinals.iter().position(|ranges| ranges.iter().any(has))
    }

    /// Returns the topologies of task groups, by position; none if no group has one, as in most units. Their segments are counted from
    /// the ordinal that was the first of the group when the unit was submitted, those of added groups from 0, so that they stay as
    /// they are however the unit is scaled.
    pub fn group_topologies(&self) -> Vec<GroupTopology> {
        if !self.spec.has_group_topologies() {
            return Vec::new();
        }
        let mut next = 0u32;
        let mut found = Vec::new();
        for (idx, group) in self.spec.task_groups.iter().enumerate() {
            let submitted = self.status.submitted.as_ref().and_then(|size| size.replicas.get(idx));
            let first = if idx < self.n_own_groups() { next } else { 0 };
            next = first.saturating_add(submitted.copied().unwrap_or(group.replicas));
            let (Some(topology), Ok(group)) = (&group.topology, u16::try_from(idx)) else { continue };
            let ordinals = self.status.ordinals.get(idx).cloned().unwrap_or_default();
            found.push(GroupTopology { group, topology: UnitTopology::clone(topology), first, ordinals });
        }
        found
    }

    /// The ordinals of all groups, group by group, as half-open ranges.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        self.status.ordinals.iter().flatten().copied()
    }

    /// The ordinals of all groups, group by group.
    pub fn iter_ordinals(&self) -> impl Iterator<Item = u32> {
        self.ranges().flat_map(|(start, end)| start..end)
    }
}

impl UnitSpec {
    /// Whether its running units end by themselves: an active deadline ends them, or they have an end of their own and no
    /// restart policy that begins anew after it. Of what is simulated the duration says so, of all else the class.
    pub fn end(&self) -> End {
        if self.active_deadline_ms > 0 {
            return End::ByItself;
        }
        let is_simulated = |group: &TaskGroup| group.template.run.simulated_duration_ms.is_some();
        let has_end = match self.class {
            WorkloadClass::Batch | WorkloadClass::Gang | WorkloadClass::Training | WorkloadClass::Yarn => {
                true
            }
            WorkloadClass::Service
            | WorkloadClass::Stateful
            | WorkloadClass::Stream
            | WorkloadClass::Daemon => self.task_groups.iter().all(is_simulated),
        };
        if has_end && self.restart_policy != RestartPolicy::Always { End::ByItself } else { End::Never }
    }

    /// So long it may wait before it is said that it finds no place, milliseconds.
    pub fn scheduling_timeout_ms(&self) -> u64 {
        if self.scheduling_timeout_ms == 0 { SCHEDULING_TIMEOUT_MS } else { self.scheduling_timeout_ms }
    }

    /// Whether the running units of a task group are application masters: those of the first one of a YARN application.
    pub fn is_of_masters(&self, group: usize) -> bool {
        group == 0 && self.class == WorkloadClass::Yarn
    }

    /// Whether its replicas follow the nodes: one on each that it may have, and no end of its own while nodes may join.
    pub fn is_daemon(&self) -> bool {
        self.class == WorkloadClass::Daemon
    }

    /// Whether its replicas start one after the other in the order of their ordinals, each once those before it run, and stop in
    /// the reverse order: stateful units do, unless their first replicas have to start together.
    pub fn is_ordered(&self) -> bool {
        self.class == WorkloadClass::Stateful && self.min_member <= 1 && !self.has_group_minima()
    }

    /// Whether which nodes it may have depends on the unit, and not on its templates alone: on running units, or on where
    /// its own replicas are.
    pub fn goes_by_unit(&self) -> bool {
        self.has_terms() || self.is_daemon() || self.has_volumes()
    }

    /// Whether nodes keep volumes for its replicas.
    pub fn has_volumes(&self) -> bool {
        self.task_groups.iter().any(|group| !group.template.run.volumes.is_empty())
    }

    /// Running units wanted, over all groups.
    pub fn replicas(&self) -> u32 {
        self.task_groups.iter().map(|group| group.replicas).sum()
    }
}
