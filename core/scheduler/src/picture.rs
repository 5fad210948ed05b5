//! The picture of the cluster that a scheduler decides on: what it has read, and what it assumes.

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, ReplicaId, Revision, UnitId};
use godel_cluster::{Cluster, GroupDeltas};
use godel_domain::{
    change::{Block, Partition},
    hold::Hold,
    pause::Pauses,
    priority_classes::PriorityClasses,
    queue_spec::Band,
    running_units::{Phase, RunChange, RunningUnit, RunningUnits},
    unit::UnitRecord,
    work_kind::WorkKind,
};
use godel_placement::place::{Moved, Placer, Settings};
use rustc_hash::FxHashSet;

use super::{
    Config,
    assigned_unit::{AssignedUnit, GroupWork, UnitWork},
    shares::{QueueNeeds, Shares},
};

mod foreign_notes;
mod gather;
pub(super) mod group_domains;
mod grouping;
mod ordinal_order;
mod placing;
mod recommended;
pub(super) mod segments;
pub(super) mod topology;
mod unit_selection;
mod volumes;

use self::{foreign_notes::ForeignNotes, unit_selection::UnitSelection};
pub(super) use self::{
    gather::TurnSearch,
    ordinal_order::follow_topology,
    placing::{Try, append, may_serve},
    segments::LevelGroup,
    volumes::{join_groups, part_by_volumes},
};

/// What a scheduler decides on.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) cluster: Cluster,
    pub(super) placer: Placer,
    pub(super) shares: Shares,
    pub(super) classes: PriorityClasses,
    pub(super) pauses: Pauses,
    /// What rejections said of nodes.
    pub(super) foreign: ForeignNotes,
    /// Time of day, Unix milliseconds: how long running units have run.
    pub(super) wall_ms: i64,
    /// Every record up to here was read.
    pub(super) revision: Revision,
    /// Of the last change of running units or holds that was read.
    pub(super) used_as_of: Revision,
    /// The last change that the binder follows too. It may be read before what came earlier has been: in a list.
    pub(super) seen: Revision,
    pub(super) selection: UnitSelection,
    /// Kept for its memory: nodes that gained room, while they are offered.
    gained: Vec<NodeId>,
}

impl Picture {
    pub(super) fn new(config: &Config, seed: u64) -> Self {
        let settings = Settings {
            profiles: config.profiles.clone(),
            seed,
            surplus: config.surplus,
            cache: config.cache,
            limit_scan: config.limit_scan,
        };
        let mut cluster = Cluster::new();
        cluster.nodes_mut().set_sub_cluster_key(&config.sub_cluster_key);
        config.profiles.intern(&mut cluster);
        Self {
            cluster,
            placer: Placer::new(settings),
            shares: Shares::default(),
            classes: PriorityClasses::default(),
            pauses: Pauses::default(),
            foreign: ForeignNotes::default(),
            wall_ms: 0,
            revision: Revision(0),
            used_as_of: Revision(0),
            seen: Revision(0),
            selection: UnitSelection::default(),
            gained: Vec::new(),
        }
    }

    /// A list follows: all records are forgotten. What is assumed and what decisions take of queues stays.
    pub(super) fn reset(&mut self) {
        self.cluster.reset();
        self.placer.view.forget_blocks();
        self.shares.reset();
        self.classes = PriorityClasses::default();
        self.pauses = Pauses::default();
        (self.revision, self.seen, self.used_as_of) = (Revision(0), Revision(0), Revision(0));
        self.foreign.clear();
    }

    /// It is this late at least.
    pub(super) fn note_time(&mut self, wall_ms: i64) {
        self.wall_ms = self.wall_ms.max(wall_ms);
    }

    /// Decisions rest on every change of nodes, and of what is taken on them, up to this revision.
    pub(super) fn as_of(&self) -> Revision {
        self.revision.min(self.seen)
    }

    /// The mode or the schedulers changed; `name` is the own one.
    pub(super) fn set_partition(&mut self, partition: &Partition, name: &str) {
        let was_strict = self.placer.view.is_strict();
        let n_nodes = self.cluster.free().n_indices();
        let moved = self.placer.set_partition(partition, name, n_nodes);
        self.note_moved(moved);
        if was_strict && !self.placer.view.is_strict() {
            // More nodes than those that moved may be used now: all of the others'.
            let others: Vec<NodeId> =
                self.cluster.nodes().ids().filter(|node| !self.placer.view.is_own(node.idx())).collect();
            others.into_iter().for_each(|node| self.cluster.nodes_mut().note_moved(node, true));
        }
    }

    /// Nodes of a block have other owners.
    pub(super) fn put_block(&mut self, block: Block) {
        let moved = self.placer.view.put_block(block);
        self.note_moved(moved);
    }

    /// The lists of candidates and the parked units follow the nodes that moved, and no others. Who could not use a node
    /// before that is its own now is woken if it fits there.
    fn note_moved(&mut self, moved: impl IntoIterator<Item = Moved>) {
        let is_strict = self.placer.view.is_strict();
        let mut own = Vec::new();
        for (node, gained) in moved.into_iter().flat_map(Moved::nodes) {
            self.cluster.nodes_mut().note_moved(node, gained && is_strict);
            own.extend(gained.then_some(node));
        }
        self.placer.note_gained(&self.cluster, &own);
    }

    /// A hold's record is gone.
    pub(super) fn remove_hold(&mut self, id: HoldId, revision: Revision) -> Option<Arc<Hold>> {
        let hold = self.cluster.held_mut().remove(id);
        self.shares.drop_hold(id);
        if let Some(hold) = &hold {
            self.foreign.note_left(hold.node, revision);
        }
        hold
    }

    /// Whether what a unit's templates know of terms about running units is not what holds now. One with decisions under way is
    /// asked later.
    pub(super) fn has_other_rules(&self, assigned: &AssignedUnit) -> bool {
        if !self.cluster.domains().is_active() || !assigned.decisions.is_empty() {
            return false;
        }
        let mut asks = assigned.groups.iter().map(|group| &self.placer.templates.get(group.template).ask);
        asks.any(|ask| !ask.has_rules_of_now(&self.cluster, assigned.unit()))
    }

    /// Running units of a unit changed. Returns which task groups take more or less room than before; where their terms
    /// changed, all that they take.
    pub(super) fn change_running_units(
        &mut self,
        unit: UnitId,
        change: &RunChange,
        revision: Revision,
        time_ms: i64,
    ) -> GroupDeltas {
        if matches!(change, RunChange::Terms(_)) {
            self.shares.count_unit(unit, -1, &self.cluster);
            self.cluster.apply_rows(unit, change, revision, time_ms);
            self.shares.count_unit(unit, 1, &self.cluster);
            return self.cluster.rows().of(unit).map(GroupDeltas::of).unwrap_or_default();
        }
        self.foreign.note_leaving(unit, change, revision, &self.cluster);
        let deltas = self.cluster.apply_rows(unit, change, revision, time_ms);
        self.shares.count_deltas(unit, &deltas, &self.cluster);
        deltas
    }

    /// Running units of a unit as a list has them.
    pub(super) fn load_running_units(&mut self, unit: UnitId, rows: RunningUnits) {
        self.shares.count_unit(unit, -1, &self.cluster);
        self.cluster.load_rows(unit, rows);
        self.shares.count_unit(unit, 1, &self.cluster);
    }

    /// A unit's records are gone.
    pub(super) fn remove_unit(&mut self, unit: UnitId) {
        self.shares.count_unit(unit, -1, &self.cluster);
        self.cluster.units_mut().remove(unit);
    }

    /// Takes the nodes that gained room since this was called last; to be given back by [`Self::give_back_gained`].
    pub(super) fn take_gained(&mut self) -> Vec<NodeId> {
        let mut gained = std::mem::take(&mut self.gained);
        self.cluster.free_mut().generations.take_gained(&mut gained);
        gained
    }

    /// Keeps the memory of a list of nodes for the next one.
    pub(super) fn give_back_gained(&mut self, gained: Vec<NodeId>) {
        self.gained = gained;
    }

    /// Running units of a record of a unit for which room is held until it is bound there. What is held by an older one is given
    /// up, though that may not be read yet; where a replica moves to it is placed as any other.
    pub(super) fn held_of(&self, unit: UnitId, revision: Revision) -> FxHashSet<ReplicaId> {
        if !self.cluster.holds().is_any() {
            return FxHashSet::default();
        }
        let ids = self.cluster.holds().of(unit);
        let holds = ids.iter().filter_map(|id| self.cluster.holds().get(*id));
        let awaits = |hold: &&Arc<Hold>| hold.movement.is_none() && hold.spec_revision >= revision;
        holds.filter(awaits).flat_map(|hold| hold.replicas()).collect()
    }

    /// What is to be placed by task group, without what has a row already; and what is not because room is held for it. Counts
    /// a use of each template.
    pub(super) fn group_work(
        &mut self,
        record: &UnitRecord,
        revision: Revision,
        pending: impl Iterator<Item = ReplicaId>,
    ) -> (UnitWork, Vec<(u16, ReplicaId)>) {
        let mut held = Vec::new();
        let mut by_group: Vec<Vec<ReplicaId>> = vec![Vec::new(); record.spec.task_groups.len()];
        let rows = self.cluster.rows().of(record.id);
        let held_now = self.held_of(record.id, revision);
        for wanted in pending {
            let row = rows.map(|rows| rows.row(wanted.ordinal)).unwrap_or_default();
            let is_current = !is_past(&row, wanted.incarnation);
            let Some(group) = record.group_of(wanted.ordinal).filter(|_| is_current) else { continue };
            if held_now.contains(&wanted) {
                held.extend(u16::try_from(group).map(|group| (group, wanted)));
            } else {
                by_group[group].push(wanted);
            }
        }
        self.selection.put_terms(record, &mut self.cluster);
        if self.cluster.taken().work.is_active() {
            // It may have been assigned before its record was read.
            self.cluster.units_mut().put_work(record.id, WorkKind::of(&record.spec));
        }
        if record.spec.is_daemon() {
            self.cluster.taken_mut().put_daemon(record.id);
        }
        let spreads = record.spec.class.spreads() && record.spec.replicas() > 1;
        let groups = (0u16..).zip(&record.spec.task_groups).zip(by_group).map(|((idx, group), wanted)| {
            let template =
                self.placer.intern(&mut self.cluster, &group.template, record.id, &record.spec, spreads);
            let mut work = GroupWork::new(idx, template);
            work.add(&wanted);
            work
        });
        (groups.collect(), held)
    }

    /// When running units of a unit may be preempted after their binding, milliseconds; `None`: never.
    pub(super) fn leaves_after(&self, record: &UnitRecord) -> Option<u64> {
        let is_system = Band::of(record.spec.pool, self.classes.priority(&record.spec)) == Band::System;
        let may_leave = record.spec.preemptible
            && !is_system
            && self.classes.may_be_preempted(&record.spec.priority_class);
        may_leave.then_some(record.spec.min_run_ms)
    }

    /// Counts the device work of a new unit: placement keeps devices usable for what is seen most.
    pub(super) fn note_device_work(&mut self, assigned: &AssignedUnit) {
        for group in &assigned.groups {
            let shape = self.placer.templates.get(group.template).ask.shape();
            if !self.cluster.catalogue().demand(shape).devices.is_empty() {
                self.placer.typical.note(shape, group.pending().len() as u64);
            }
        }
    }

    /// What the counted running units of each task group take of a queue.
    pub(super) fn needs(
        &mut self,
        assigned: &AssignedUnit,
        counts: impl IntoIterator<Item = (u16, usize)>,
    ) -> QueueNeeds {
        self.shares.needs(assigned, counts, &self.placer.templates, &self.cluster)
    }
}

/// A running unit of this incarnation cannot be bound any more: it was, or a later one is current.
pub(super) fn is_past(row: &RunningUnit, incarnation: u32) -> bool {
    row.incarnation > incarnation || (row.incarnation == incarnation && row.phase != Phase::Pending)
}
