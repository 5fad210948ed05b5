//! The scheduler's whole state machine: units in, decisions out.
//!
//! A unit is *ready* (in the queue of its workflow, by priority and dispatch order), in *backoff* after rejections, *parked*
//! when a full scan found no place, or *waiting* for the outcome of its decisions. Decisions are assumed at once in
//! the scheduler's own [`Cluster`]; an outcome or the watch settles them. Equal events and an equal seed give
//! equal decisions: nothing depends on hash order or on time other than the `now` passed in. Nothing
//! survives a restart: the dispatcher assigns again.
//!
//! # Modules
//!
//! - `assigned_unit`: a unit that the scheduler was assigned.
//! - `attach`: units that are assigned, change their state, and go.
//! - `changes`: committed changes of records, and what each of them brings about.
//! - `cycle`: the unit cycle: try the next unit, decide, or park it.
//! - `elsewhere`: units with a hold that fit on other nodes by now.
//! - `flows`: one workflow per sub-cluster.
//! - `gather`: a gang whose turn it is to gather room.
//! - `maxima`: a unit whose queue is at a maximum.
//! - `outcome`: what is left to place of a unit, after assignments and outcomes.
//! - `park`: units without a place, grouped by what they need.
//! - `plan`: what would become of a unit that is not submitted.
//! - `preemption`: preemption: a unit without a place looks for victims.
//! - `rooms`: room for parked units, reported to the dispatcher.
//! - `shares`: what queues use, for ranks and for what is lacking under maxima.
//! - `slots`: units that own slots of reservations.
//! - `window`: how many decisions may be without an outcome.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use godel_cluster::Cluster;
use godel_domain::{
    change::{Partition, Scope},
    decision::Decision,
    ids::{IdMap, NodeId, Revision, UnitId},
    lifecycle::GangTerms,
    pause::{self, Pauses},
    priority_classes::PriorityClasses,
    reservation_spec::marks,
    sub_cluster,
    time::Millis,
    unit::UnitSpec,
    unit_report::{RoomReport, UnitReport},
};
use godel_placement::place::{Moved, Placer, Profiles, Settings};
use rustc_hash::FxHashMap;

use self::{
    assigned_unit::{AssignedUnit, DecisionIds, State},
    flows::Flows,
    park::Parked,
    preemption::PreemptionSearch,
    shares::Shares,
    window::Window,
};

mod assigned_unit;
mod attach;
mod changes;
mod cycle;
mod elsewhere;
mod flows;
mod gather;
mod maxima;
mod outcome;
mod park;
mod plan;
mod preemption;
mod rooms;
mod shares;
mod slots;
mod window;

#[cfg(test)]
mod tests;

pub use plan::{PlanOutcome, PlanReport};

/// How a scheduler works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// As in the lease `scheduler/<name>`; finds its slot in a partition.
    pub name: String,
    /// A scan stops at so many feasible nodes more than replicas are asked for.
    pub surplus: u32,
    /// Feasible nodes are kept from one replica and unit to the next of the same template.
    pub cache: bool,
    /// A scan stops early at all; false looks at every node.
    pub limit_scan: bool,
    /// Most running units held in ready, backoff and in flight together, but for those that back off after many
    /// rejections.
    pub held_max: u32,
    /// Most running units decided and not yet answered; fewer while there are conflicts.
    pub in_flight_max: u32,
    /// First wait after a second rejection in a row, milliseconds.
    pub backoff_ms_min: u64,
    /// Longest wait, milliseconds.
    pub backoff_ms_max: u64,
    /// What a rejection said of a node is believed so long, milliseconds.
    pub foreign_ms: u64,
    /// Units without a place look for running units of lower rank to have them leave.
    pub preemption: bool,
    /// How nodes are preferred.
    pub profiles: Profiles,
    /// Label or attribute of nodes whose value is their sub-cluster; empty: there are none.
    pub sub_cluster_key: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: String::new(),
            surplus: 50,
            cache: true,
            limit_scan: true,
            held_max: 200_000,
            in_flight_max: 100_000,
            backoff_ms_min: 10,
            backoff_ms_max: 10_000,
            foreign_ms: 1_000,
            preemption: true,
            profiles: Profiles::default(),
            sub_cluster_key: sub_cluster::KEY.to_owned(),
        }
    }
}

/// What a step produced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// For the binder, in order.
    pub decisions: Vec<Decision>,
    /// For the dispatcher, in order.
    pub reports: Vec<UnitReport>,
    /// For the dispatcher, after these.
    pub rooms: Vec<RoomReport>,
}

/// Counters and queue lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Nodes of its own partition; all of them in global mode.
    pub nodes: u32,
    /// Units in the ready queue.
    pub ready_units: u32,
    /// Units waiting after rejections.
    pub backoff_units: u32,
    /// Units without a place.
    pub parked_units: u32,
    /// Units assigned.
    pub units: u32,
    /// Running units held in ready, backoff and in flight.
    pub running_units: u32,
    /// Decisions without an outcome.
    pub in_flight: u32,
    /// Running units bound by its decisions.
    pub placed: u64,
    /// Running units refused because another party was faster.
    pub conflicts: u64,
    /// Replicas placed from a kept candidate list.
    pub cache_hits: u64,
    /// Scans made.
    pub cache_misses: u64,
    /// Searches for victims.
    pub preemptions_tried: u64,
    /// Running units that decisions of this scheduler have leave.
    pub victims: u64,
    /// Units spared because the one that searched had been preempted for them.
    pub loops_refused: u64,
}

/// A scheduler.
#[derive(Debug)]
pub struct Scheduler {
    /// What it decides on.
    pub cluster: Cluster,
    config: Config,
    seed: u64,
    /// Every record up to here was read.
    revision: Revision,
    /// Of the last change of running units or holds that was read.
    used_as_of: Revision,
    /// The last change that the binder follows too. It may be read before what came earlier has been: in a list.
    seen: Revision,
    placer: Placer,
    classes: PriorityClasses,
    units: IdMap<UnitId, Box<AssignedUnit>>,
    /// Decisions without an outcome of units not assigned any more.
    orphans: IdMap<UnitId, DecisionIds>,
    ready: Flows,
    backoff: BTreeSet<(Millis, UnitId)>,
    parked: Parked,
    /// Units in `ready` that the dispatcher called.
    n_called: usize,
    /// Assignments of this stream.
    n_assigned: u64,
    undecided: BTreeMap<u64, Decision>,
    unread: Unread,
    last_decision: u64,
    last_turn: u64,
    /// Running units in ready and backoff.
    working: u64,
    /// Running units in decisions without an outcome.
    in_flight: u64,
    window: Window,
    /// Ends of foreign notes, and the end of each node's.
    notes: BTreeSet<(Millis, NodeId)>,
    noted: FxHashMap<NodeId, Millis>,
    reports: Vec<UnitReport>,
    gained: Vec<NodeId>,
    seeks: PreemptionSearch,
    shares: Shares,
    pauses: Pauses,
    placed: u64,
    conflicts: u64,
}

/// Bindings that were answered and not read yet: their room is assumed until then.
#[derive(Debug, Default)]
struct Unread {
    /// As they were answered.
    decisions: VecDeque<(Revision, Decision)>,
    /// A list is under way.
    lists: bool,
    /// What the last one showed: what was bound before it and had gone by then was never read.
    listed: Revision,
}

impl Scheduler {
    /// Without units and nodes. Equal events and an equal seed give equal decisions; schedulers of one cluster
    /// should have different seeds.
    pub fn new(config: Config, seed: u64) -> Self {
        let window = Window::new(config.in_flight_max);
        let settings = Settings {
            profiles: config.profiles.clone(),
            seed,
            surplus: config.surplus,
            cache: config.cache,
            limit_scan: config.limit_scan,
        };
        let mut cluster = Cluster::new();
        cluster.set_sub_cluster_key(&config.sub_cluster_key);
        config.profiles.intern(&mut cluster);
        Self {
            cluster,
            placer: Placer::new(settings),
            classes: PriorityClasses::default(),
            config,
            seed,
            revision: Revision(0),
            used_as_of: Revision(0),
            seen: Revision(0),
            units: IdMap::default(),
            orphans: IdMap::default(),
            ready: Flows::default(),
            backoff: BTreeSet::new(),
            parked: Parked::default(),
            n_called: 0,
            n_assigned: 0,
            undecided: BTreeMap::new(),
            unread: Unread::default(),
            last_decision: 0,
            last_turn: 0,
            working: 0,
            in_flight: 0,
            window,
            notes: BTreeSet::new(),
            noted: FxHashMap::default(),
            reports: Vec::new(),
            gained: Vec::new(),
            seeks: PreemptionSearch::default(),
            shares: Shares::default(),
            pauses: Pauses::default(),
            placed: 0,
            conflicts: 0,
        }
    }

    /// A unit to place, or a unit assigned already with an equal or newer record: `pending` (ordinal, incarnation)
    /// replaces what was to be placed; `bound` counts running units that count for the unit's first binding
    /// already. What rows or decisions under way cover is left out.
    pub fn on_assign(
        &mut self,
        spec: &UnitSpec,
        spec_revision: Revision,
        pending: &[(u32, u32)],
        bound: u32,
        _now: Millis,
    ) {
        let unit = spec.id;
        self.n_assigned += 1;
        if self.units.get(&unit).is_some_and(|assigned| assigned.revision > spec_revision) {
            return;
        }
        let (groups, awaiting_hold) = self.group_work(spec, spec_revision, pending);
        let old = self.detach(unit);
        let turn = old.as_ref().map_or(self.last_turn + 1, |old| old.turn.1);
        self.last_turn = self.last_turn.max(turn);
        let class = PriorityClasses::deciding(spec).filter(|class| !PriorityClasses::is_built_in(class));
        let mut assigned = Box::new(AssignedUnit {
            revision: spec_revision,
            turn: (Reverse(self.classes.priority(spec)), turn, unit),
            class: class.map(Box::from),
            terms: GangTerms::of(spec),
            pool: spec.pool,
            flow: self.flow_of(&groups, spec.pool),
            queue: self.shares.queue(&spec.queue),
            scope: Scope::default(),
            at_maximum: false,
            has_turn: false,
            is_called: false,
            no_turn: false,
            active_deadline_ms: spec.active_deadline_ms,
            leaves_after_ms: self.leaves_after(spec),
            marks: marks(&spec.namespace, &spec.labels).collect(),
            bound,
            groups,
            state: State::Waiting,
            decisions: self.orphans.remove(&unit).unwrap_or_default(),
            in_flight: 0,
            wanted_again: Vec::new(),
            awaiting_hold,
            awaits: false,
            woken_from: None,
            attempts: 0,
            failures: 0,
            rests: false,
            one_by_one: false,
            full: None,
        });
        if let Some(mut old) = old {
            assigned.attempts = old.attempts;
            assigned.no_turn = old.no_turn && old.revision == spec_revision;
            assigned.decisions = std::mem::take(&mut old.decisions);
            self.let_go(old);
        }
        self.leave_out_decided(&mut assigned);
        for group in &assigned.groups {
            let shape = self.placer.templates.get(group.template).ask.shape();
            if self.cluster.demand(shape).devices.is_some() {
                self.placer.typical.note(shape, group.pending().len() as u64);
            }
        }
        self.attach(assigned, State::Ready);
    }

    /// Whose nodes a unit that was just assigned may use; its own partition's until this says otherwise.
    pub fn set_scope(&mut self, unit: UnitId, scope: Scope) {
        if let Some(assigned) = self.units.get_mut(&unit) {
            assigned.scope = scope;
        }
    }

    /// The unit is no longer its business. Decisions under way stay until their outcome.
    pub fn on_revoke(&mut self, unit: UnitId) {
        if let Some(assigned) = self.detach(unit) {
            self.let_go(assigned);
        }
    }

    /// The mode or the schedulers changed (also by [`Self::on_change`]).
    pub fn on_partition(&mut self, partition: &Partition) {
        let was_strict = self.placer.view.is_strict();
        let n_nodes = self.cluster.n_indices();
        let moved = self.placer.set_partition(partition, &self.config.name, n_nodes);
        self.note_moved(moved);
        if was_strict && !self.placer.view.is_strict() {
            // More nodes than those that moved may be used now: all of the others'.
            let others: Vec<NodeId> =
                self.cluster.nodes().filter(|node| !self.placer.view.is_own(node.idx())).collect();
            others.into_iter().for_each(|node| self.cluster.note_moved(node, true));
        }
    }

    /// The lists of candidates and the parked units follow the nodes that moved, and no others. Who could not use a node
    /// before that is its own now is woken if it fits there.
    fn note_moved(&mut self, moved: impl IntoIterator<Item = Moved>) {
        let is_strict = self.placer.view.is_strict();
        let mut own = Vec::new();
        for (node, gained) in moved.into_iter().flat_map(Moved::nodes) {
            self.cluster.note_moved(node, gained && is_strict);
            own.extend(gained.then_some(node));
        }
        self.placer.note_gained(&self.cluster, &own);
    }

    /// Whoever is parked may find room anywhere, or victims.
    fn wake_all(&mut self) {
        self.note_change();
        self.parked.ask_all();
        self.seek_again(Millis(0));
    }

    /// A list follows: nodes and rows are forgotten, units and decisions stay. No step may be made before the
    /// list is complete: half a picture shows room that is taken.
    pub fn on_reset(&mut self) {
        self.cluster.reset();
        self.placer.view.forget_blocks();
        self.reset_shares();
        self.classes = PriorityClasses::default();
        self.pauses = Pauses::default();
        self.pause_seeks(&pause::Scope::Preemption, false);
        (self.revision, self.seen, self.used_as_of) = (Revision(0), Revision(0), Revision(0));
        self.unread.lists = true;
        self.notes.clear();
        self.noted.clear();
    }

    /// Everything up to `revision` has been read.
    pub fn on_revision(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
        if std::mem::take(&mut self.unread.lists) {
            self.unread.listed = self.revision;
            self.requeue_all_released();
        }
        self.forget_read();
        self.forget_held();
        self.end_flights();
        self.parked.note_change();
    }

    /// The time of day, Unix milliseconds: how long victims have run.
    pub fn on_wall(&mut self, wall_ms: i64) {
        self.seeks.wall_ms = self.seeks.wall_ms.max(wall_ms);
    }

    /// When to step again without an event: at 0 if there is something to do now, else at the end of the
    /// first backoff or foreign note.
    pub fn next_wake(&self) -> Option<Millis> {
        let can_decide = !self.ready.is_empty() && self.window.is_open(self.in_flight);
        let can_wake = !self.parked.is_empty() && (self.cluster.has_gained() || self.parked.is_stale());
        if can_decide || can_wake || !self.reports.is_empty() {
            return Some(Millis(0));
        }
        let backoff = self.backoff.first().map(|(end, _)| *end);
        let note = self.notes.first().map(|(end, _)| *end);
        let below = self.seeks.newly_below.map(|(at, _)| at);
        let maxima = self.maxima_end();
        let seek = self.seeks.again_at.into_iter().chain(below).min().filter(|_| !self.parked.is_idle());
        backoff.into_iter().chain(note).chain(seek).chain(maxima).min()
    }

    /// Every unit assigned, ascending, with the revision of its record.
    pub fn inventory(&self) -> Vec<(UnitId, Revision)> {
        let mut units: Vec<_> =
            self.units.values().map(|assigned| (assigned.unit(), assigned.revision)).collect();
        units.sort_unstable();
        units
    }

    /// Decisions without an outcome, in order: to be sent again after a reconnect.
    pub fn undecided(&self) -> Vec<Decision> {
        self.undecided.values().cloned().collect()
    }

    /// Running units that it can take beyond what it holds in ready, backoff and in flight.
    pub fn credits(&self) -> u32 {
        let assigned = u32::try_from(self.working + self.in_flight).unwrap_or(u32::MAX);
        self.config.held_max.saturating_sub(assigned)
    }

    /// Counters and queue lengths. `O(nodes)`.
    pub fn stats(&self) -> Stats {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Stats {
            nodes: count(self.cluster.nodes().filter(|node| self.placer.view.is_own(node.idx())).count()),
            ready_units: count(self.ready.len()),
            backoff_units: count(self.backoff.len()),
            parked_units: count(self.parked.len()),
            units: count(self.units.len()),
            running_units: u32::try_from(self.working + self.in_flight).unwrap_or(u32::MAX),
            in_flight: count(self.undecided.len()),
            placed: self.placed,
            conflicts: self.conflicts,
            cache_hits: self.placer.hits,
            cache_misses: self.placer.misses,
            preemptions_tried: self.seeks.n_tried,
            victims: self.seeks.n_victims,
            loops_refused: self.seeks.n_loops,
        }
    }
}
