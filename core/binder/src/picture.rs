//! The picture of the cluster that decisions are judged by: what the records say, and the room that is taken on top of
//! them.
//!
//! Follows the committed records; knows neither decisions nor holds under way, but that the cluster counts the room that
//! these take, and the quotas what they take of queues. Nothing here survives a restart.

use std::{collections::BTreeSet, sync::Arc};

use godel_base::ids::{IdMap, NodeId, Revision, UnitId};
use godel_cluster::{AffinityTerms, Cluster, GroupDeltas};
use godel_domain::{
    budget_spec::BudgetSpec,
    decision::{Decision, FreshNode, Rejection},
    hold::Hold,
    running_units::{RunChange, RunningUnits},
    unit::UnitRecord,
};
use godel_queueing::{Amounts, Need, QueueIdx, Quota};
use godel_rules::budget::UnitIdentity;

use super::{
    check::PlacedReplica,
    classes::Classes,
    gangs::{self, Gathering},
    quotas::Quotas,
    unit::Unit,
};

/// What the records say, and the room that is taken on top of them.
#[derive(Debug, Default)]
pub struct BinderPicture {
    pub(super) cluster: Cluster,
    pub(super) quotas: Quotas,
    pub(super) classes: Classes,
    pub(super) units: IdMap<UnitId, Box<Unit>>,
    /// Time of day, Unix milliseconds.
    pub(super) now_ms: i64,
    /// Label of nodes that says their sub-cluster; empty: there are none.
    pub(super) sub_cluster_key: String,
    /// Everything up to here has been read.
    pub(super) revision: Revision,
}

/// What a unit's record has changed, beside the unit itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnitPut {
    /// The unit counts in another queue from now on, or its owner is known.
    pub(super) has_moved: bool,
    /// The unit wants running units that it did not want before.
    pub(super) is_resumed: bool,
}

impl BinderPicture {
    /// Returns the gangs that gather now, by pool. `O(holds)`.
    pub fn gathering(&self) -> Vec<Gathering> {
        gangs::gathering(&self.cluster)
    }

    /// Queues, and what is taken of them, by bindings under way too.
    pub fn quota(&self) -> &Quota {
        self.quotas.quota()
    }

    /// Forgets the records.
    pub(super) fn reset(&mut self) {
        self.cluster.reset();
        self.classes.reset();
        self.quotas.reset();
        self.units.clear();
        self.revision = Revision(0);
    }

    /// A unit's record; `None`: this one or a later one is known.
    pub(super) fn put_unit(&mut self, record: &UnitRecord, revision: Revision) -> Option<UnitPut> {
        let known = self.units.get(&record.id);
        if known.is_some_and(|known| known.revision >= revision) {
            return None;
        }
        let before = known.map(|known| (known.queue, known.payer));
        // One that could not be read was not wanted, as far as anybody knew.
        let is_resumed = known.is_some_and(|known| !known.is_wanted || known.is_unread) && record.is_wanted();
        let is_resumed =
            is_resumed || record.status.restarting || !record.status.next_incarnations.is_empty();
        let queue = self.quotas.queue(&record.spec.queue);
        let moves = before.is_none_or(|(before, payer)| before != queue || payer == queue.into());
        let payer = match before {
            Some((_, payer)) if !moves => payer,
            _ => self.quotas.enter(queue, &record.spec.owner),
        };
        if moves && let Some((_, payer)) = before {
            self.count_rows(record.id, -1);
            self.quotas.leave(payer);
        }
        let priority = self.classes.of(&record.spec);
        let class = self.classes.id(&record.spec.priority_class);
        let unit = Unit::new(record, revision, queue, payer, priority, class, &mut self.cluster);
        self.units.insert(record.id, Box::new(unit));
        // A task group that had a topology may be gone.
        if record.spec.has_terms() || self.cluster.domains().has_terms_of(record.id) {
            let identity = UnitIdentity::of(&record.spec);
            let groups = record.group_topologies();
            if self.cluster.units_mut().put_terms(
                record.id,
                &identity,
                &AffinityTerms::of(&record.spec, &groups),
            ) {
                self.offer_all();
            }
        }
        if record.spec.is_daemon() {
            self.cluster.taken_mut().put_daemon(record.id);
        }
        self.offer(record.id);
        if moves {
            self.count_rows(record.id, 1);
        }
        Some(UnitPut { has_moved: moves, is_resumed })
    }

    /// A unit's records and rows are gone.
    pub(super) fn remove_unit(&mut self, unit: UnitId) {
        self.count_rows(unit, -1);
        if let Some(known) = self.units.remove(&unit) {
            self.quotas.leave(known.payer);
        }
        self.cluster.units_mut().remove(unit);
    }

    /// A disruption budget's record; older ones than the one known are ignored.
    pub(super) fn put_budget(&mut self, spec: Arc<BudgetSpec>, revision: Revision) {
        if self.cluster.taken_mut().put_budget(spec, revision) {
            self.offer_all();
        }
    }

    /// Budgets, or terms of units, select others than before.
    fn offer_all(&mut self) {
        for (unit, known) in &self.units {
            self.cluster.units_mut().offer(*unit, &known.identity, || known.wanted());
        }
    }

    /// Tells budgets and terms of a unit whose record is another one.
    fn offer(&mut self, unit: UnitId) {
        if self.cluster.taken().budgets().is_empty() && !self.cluster.domains().is_active() {
            return;
        }
        if let Some(known) = self.units.get(&unit) {
            self.cluster.units_mut().offer(unit, &known.identity, || known.wanted());
        }
    }

    /// Rows of a unit changed.
    pub(super) fn apply_rows(&mut self, unit: UnitId, change: &RunChange, revision: Revision, time_ms: i64) {
        let turns = self.cluster.apply_rows(unit, change, revision, time_ms);
        if let Some(known) = self.units.get(&unit) {
            self.quotas.charge_groups(unit, known, &turns, 1, &self.cluster);
        }
    }

    /// All rows of a unit, from a list.
    pub(super) fn load_rows(&mut self, unit: UnitId, rows: RunningUnits) {
        self.count_rows(unit, -1);
        self.cluster.load_rows(unit, rows);
        self.count_rows(unit, 1);
    }

    /// All that a unit's rows take counts (`sign` 1) in its queue, or does no longer (-1); in none while the unit is
    /// not known.
    pub(super) fn count_rows(&mut self, unit: UnitId, sign: i64) {
        if let Some((known, rows)) = self.units.get(&unit).zip(self.cluster.rows().of(unit)) {
            self.quotas.charge_groups(unit, known, &GroupDeltas::of(rows), sign, &self.cluster);
        }
    }

    /// Priority of a unit, its own or that of its class; 0 when it is unknown.
    pub(super) fn priority(&self, unit: UnitId) -> i32 {
        self.units.get(&unit).map_or(0, |unit| self.classes.value(unit.priority))
    }

    /// Fresh state of the nodes that rejections of a unit name, ascending.
    pub fn fresh_nodes(&self, unit: UnitId, rejections: &[Rejection]) -> Vec<FreshNode> {
        if rejections.is_empty() {
            return Vec::new();
        }
        let pool = self.units.get(&unit).map(|unit| unit.pool).unwrap_or_default();
        let nodes: BTreeSet<NodeId> =
            rejections.iter().map(|rejection| rejection.node).filter(|node| *node != NodeId(0)).collect();
        nodes
            .into_iter()
            .filter_map(|node| {
                let (allocated, device_free_milli) = self.cluster.free().pool_state(node, pool)?;
                Some(FreshNode { node, pool, allocated, device_free_milli, revision: self.revision })
            })
            .collect()
    }

    /// What a hold of a unit that is known takes of its queue.
    pub(super) fn need_of_hold(&mut self, hold: &Hold) -> Need {
        let unit = &self.units[&hold.unit];
        let shape = unit.in_quota(hold.group, unit.groups[usize::from(hold.group)].shape);
        let n = u32::try_from(hold.ordinals.len()).unwrap_or(u32::MAX);
        self.quotas.need(shape, n, &self.cluster)
    }

    /// The queue of a running unit, and what the running unit takes of it; `None` if either is not known.
    pub(super) fn need_of_row(&mut self, unit: UnitId, ordinal: u32) -> Option<(QueueIdx, Need)> {
        let known = self.units.get(&unit)?;
        let group = self.cluster.rows().of(unit)?.row(ordinal).group;
        let shape = known.in_quota(group, self.cluster.rows().group_shape(unit, group)?);
        Some((known.queue, self.quotas.need(shape, 1, &self.cluster)))
    }

    /// What the unit's queue may claim for all that a decision adds to it.
    pub(super) fn needs_of(&mut self, decision: &Decision, members: &[PlacedReplica]) -> Vec<Need> {
        if !self.quotas.quota().usage().guarantees().is_any() {
            return Vec::new();
        }
        let of_group = members.chunk_by(|a, b| a.group == b.group);
        of_group
            .filter_map(|members| {
                let group = decision.groups[members[0].group].group;
                let unit = self.units.get(&decision.unit)?;
                let shape = unit.in_quota(group, unit.groups.get(usize::from(group))?.shape);
                let n = u32::try_from(members.len()).unwrap_or(u32::MAX);
                Some(self.quotas.need(shape, n, &self.cluster))
            })
            .collect()
    }

    /// The queue of a running unit of a task group, and what the running unit takes of it as `quota` counts.
    pub(super) fn pays(
        &self,
        quota: &Quota,
        unit: UnitId,
        rows: &RunningUnits,
        group: u16,
    ) -> (QueueIdx, Amounts) {
        let queue = self.units.get(&unit).map_or(QueueIdx::DEFAULT, |unit| unit.queue);
        let group = rows.groups.get(usize::from(group)).and_then(Option::as_ref);
        (queue, group.map(|group| quota.usage().amounts_of(&group.demand)).unwrap_or_default())
    }
}
