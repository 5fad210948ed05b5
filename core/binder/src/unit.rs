//! What the binder keeps of a unit's record: the part that its questions need, a tenth of the record's memory. There
//! may be a million of them.

use godel_base::ids::Revision;
use godel_cluster::{Cluster, ShapeId};
use godel_domain::{
    demand::Pool,
    lifecycle::{GangCount, GangTerms, returns},
    node::RuntimeNeed,
    running_units::{End, RunningUnit, RunningUnits},
    sub_cluster,
    surge::{self, Surge},
    unit::UnitRecord,
};
use godel_framework::{NodeAsk, NodeRequirements};
use godel_queueing::{PayerIdx, QueueIdx};
use godel_rules::budget::{UnitIdentity, WantedOrdinals};
use smallvec::SmallVec;

use super::{classes::Priority, quotas::QuotaShape};

/// A unit.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Of its record.
    pub(super) revision: Revision,
    pub(super) groups: SmallVec<[KnownGroup; 1]>,
    pub(super) queue: QueueIdx,
    /// Its owner in its queue.
    pub(super) payer: PayerIdx,
    /// Its first task group is that of application masters.
    pub(super) has_masters: bool,
    pub(super) priority: Priority,
    pub(super) terms: GangTerms,
    pub(super) pool: Pool,
    pub(super) is_wanted: bool,
    /// Each replica is bound once those before it run.
    pub(super) is_ordered: bool,
    /// All that has ended of it comes back.
    pub(super) restarting: bool,
    /// Replicas that come back as somebody asked for.
    pub(super) next_incarnations: Vec<(u32, u32)>,
    /// So many replicas may start before those stop that they replace.
    pub(super) max_surge: u32,
    /// Those that do.
    pub(super) surges: Box<[Surge]>,
    pub(super) preemptible: bool,
    pub(super) min_run_ms: u64,
    /// Seconds, rounded up; 0: none.
    pub(super) active_deadline_s: u32,
    /// Whether its running units end by themselves.
    pub(super) end: End,
    /// Its priority class.
    pub(super) class: Option<u32>,
    /// What budgets know it by.
    pub(super) identity: UnitIdentity,
    /// Its record cannot be read: of what stands here only the queue counts.
    pub(super) is_unread: bool,
}

/// A task group.
#[derive(Clone, Debug)]
pub(super) struct KnownGroup {
    pub(super) shape: ShapeId,
    /// As in [`godel_domain::unit::UnitStatus`].
    ordinals: SmallVec<[(u32, u32); 1]>,
    /// Most accept any node without taints whose runtime takes them.
    requirements: Option<Box<NodeRequirements>>,
    runtime: RuntimeNeed,
}

impl Unit {
    pub(super) fn new(
        record: &UnitRecord,
        revision: Revision,
        queue: QueueIdx,
        payer: PayerIdx,
        priority: Priority,
        class: Option<u32>,
        cluster: &mut Cluster,
    ) -> Self {
        let groups = record.spec.task_groups.iter().zip(&record.status.ordinals).map(|(group, ordinals)| {
            let requirements = NodeRequirements::of(&group.template);
            let runtime = requirements.runtime;
            let any = requirements == *NodeRequirements::nothing(runtime);
            KnownGroup {
                shape: cluster.shape_below(&group.template.demand, record.spec.pool, group.template.max_load),
                ordinals: SmallVec::from_slice(ordinals),
                requirements: (!any).then(|| Box::new(requirements)),
                runtime,
            }
        });
        Self {
            revision,
            groups: groups.collect(),
            queue,
            payer,
            has_masters: record.spec.is_of_masters(0),
            priority,
            terms: GangTerms::of(record),
            pool: record.spec.pool,
            is_wanted: record.is_wanted(),
            is_ordered: record.spec.is_ordered(),
            restarting: record.status.restarting && !record.status.cancelled && record.status.ended.is_none(),
            next_incarnations: record.status.next_incarnations.clone(),
            max_surge: record.spec.max_surge,
            surges: record.status.surges.clone().into(),
            preemptible: record.spec.preemptible,
            min_run_ms: record.spec.min_run_ms,
            active_deadline_s: u32::try_from(record.spec.active_deadline_ms.div_ceil(1_000))
                .unwrap_or(u32::MAX),
            end: record.spec.end(),
            class,
            identity: UnitIdentity::of(&record.spec),
            is_unread: false,
        }
    }

    /// One whose record was never read.
    pub(super) fn unread() -> Self {
        Self {
            revision: Revision(0),
            groups: SmallVec::new(),
            queue: QueueIdx::DEFAULT,
            payer: QueueIdx::DEFAULT.into(),
            has_masters: false,
            priority: Priority::Own(0),
            terms: GangTerms::unknown(),
            pool: Pool::default(),
            is_wanted: false,
            is_ordered: false,
            restarting: false,
            next_incarnations: Vec::new(),
            max_surge: 0,
            surges: Box::default(),
            preemptible: false,
            min_run_ms: 0,
            active_deadline_s: 0,
            end: End::Unknown,
            class: None,
            identity: UnitIdentity::default(),
            is_unread: true,
        }
    }

    /// What a running unit of a task group takes of its queue.
    pub(super) fn in_quota(&self, group: u16, shape: ShapeId) -> QuotaShape {
        QuotaShape { shape, is_of_master: self.has_masters && group == 0 }
    }

    /// As budgets count it.
    pub(super) fn wanted(&self) -> WantedOrdinals {
        let ranges = self.terms.ranges().filter(|_| self.is_wanted);
        WantedOrdinals::new(surge::settled(ranges, &self.surges), self.terms.on_eviction)
    }

    /// Returns the ordinal behind every one that it wants or that was ever bound.
    pub(super) fn next_ordinal(&self, rows: Option<&RunningUnits>) -> u32 {
        let wanted = self.groups.iter().flat_map(|group| &group.ordinals).map(|range| range.1).max();
        wanted.unwrap_or(0).max(rows.map_or(0, |rows| rows.rows.end()))
    }

    /// Its sub-cluster, `key` being the label of nodes that says theirs.
    pub(super) fn sub_cluster(&self, key: &str) -> Option<&str> {
        sub_cluster::of_all(self.groups.iter().map(|group| &group.on_node().requirements.node_selector), key)
    }

    /// Counts a replica towards the minima.
    pub(super) fn count_one(&self, mut count: GangCount, ordinal: u32) -> GangCount {
        let group = self.groups.iter().position(|group| group.owns(ordinal));
        let group = group.and_then(|group| u16::try_from(group).ok()).unwrap_or(u16::MAX);
        self.terms.add(&mut count, group, 1);
        count
    }

    /// Whether a replica that has ended may have to come back.
    pub(super) fn may_return(&self, ordinal: u32, row: &RunningUnit) -> bool {
        row.was_sent_away()
            || (self.restarting && row.phase.is_ended())
            || returns(&self.next_incarnations, ordinal, row)
    }

    /// It needs every replica: whatever leaves of it leaves as a whole.
    pub(super) fn is_gang(&self) -> bool {
        let lens = self.terms.ranges().map(|(start, end)| end - start);
        self.terms.min_member > 1 && self.terms.min_member >= lens.sum()
    }
}

impl KnownGroup {
    pub(super) fn owns(&self, ordinal: u32) -> bool {
        self.ordinals.iter().any(|(start, end)| (*start..*end).contains(&ordinal))
    }

    /// Returns what filters judge a node by, but for what its unit says about running units, and that it is a daemon.
    pub(super) fn on_node(&self) -> NodeAsk<'_> {
        let requirements = self.requirements.as_deref().unwrap_or(NodeRequirements::nothing(self.runtime));
        NodeAsk { shape: self.shape, requirements, unit: None, daemon: None, volume_node: None }
    }
}
