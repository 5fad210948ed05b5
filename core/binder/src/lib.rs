//! The conflict check: the one place that says which of the schedulers' decisions become bindings.
//!
//! [`Binder`] owns a picture of the cluster that follows the committed records, and on top of it the bindings
//! that are under way: accepted by [`Binder::check`], not yet known to be committed. Every check counts both,
//! so bindings of several transactions in flight never take the same room, on a node or in a queue. It also knows which running
//! units have to come back (evicted, ended, still wanted) and which of the evictions asked for still make
//! sense. Writing transactions, and answering, is the caller's business.
//!
//! Nothing here survives a restart and nothing needs to: a new binder reads the records and goes on.
//!
//! # Modules
//!
//! - `budgets`: disruption budgets, and evictions by drains.
//! - `check`: one decision against the records and against everything under way.
//! - `claims`: decisions with victims, and turns of gangs: both become holds.
//! - `classes`: priorities of units by their class.
//! - `frozen`: what is not decided while records cannot be read.
//! - `gangs`: turns of gangs that gather room.
//! - `holds`: holds until they are bound, or end.
//! - `leader`: the leading binder: decisions in, transactions and outcomes out.
//! - `maxima`: maxima of queues where victims leave the queue.
//! - `quotas`: what queues may use, and do use with bindings under way.
//! - `requeue`: running units that have to come back.
//! - `reservations`: slots of reservations: where they are, and who takes them.
//! - `squeeze_victims`: which best-effort running units leave a node that is over its room.
//! - `squeeze`: when best-effort running units have to leave.
//! - `unit`: what is kept of a unit's record.

mod budgets;
mod check;
mod claims;
mod classes;
mod frozen;
mod gangs;
mod holds;
pub mod leader;
mod maxima;
mod quotas;
mod requeue;
mod reservations;
mod squeeze;
mod squeeze_victims;
mod unit;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use godel_cluster::{Cluster, GroupDeltas};
use godel_domain::{
    change::Change,
    decision::{FreshNode, Rejection},
    hold::Hold,
    ids::{Epoch, HoldId, IdMap, NodeId, Revision, UnitId},
    running_units::{Bind, Evict, Phase, RunChange, RunningUnits},
    unit::UnitSpec,
};
use godel_queueing::{QueueIdx, Quota};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::{
    classes::Classes,
    holds::Holds,
    quotas::{Needs, Quotas},
    reservations::Reservations,
    squeeze::{Cause, Squeezes},
    unit::Unit,
};

pub use self::{budgets::Departure, gangs::Gathering, holds::HoldWork, requeue::RequeueWork};

/// An accepted decision whose transaction is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What a check says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Write it; the room is taken until [`Binder::commit`] or [`Binder::take_back`].
    Bind(Box<Accepted>),
    /// Check again later; nothing was taken.
    Wait(Wait),
    /// Nothing of it can be bound; nothing was taken.
    Reject(Vec<Rejection>),
}

/// What a decision has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the records are read up to here.
    Revision(Revision),
    /// Until this transaction's fate is known.
    Ticket(Ticket),
}

/// The part of a decision that can be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Names it until its transaction's fate is known.
    pub ticket: Ticket,
    /// The unit.
    pub unit: UnitId,
    /// Revision of the unit's record: a precondition.
    pub unit_revision: Revision,
    /// The unit's queue: [`Binder::queue_records`] of it are preconditions.
    pub queue: QueueIdx,
    /// By task group, none empty; none at all where room is held instead.
    pub binds: Vec<Bind>,
    /// Room to be held until its victims have left.
    pub holds: Vec<Arc<Hold>>,
    /// The victims.
    pub evictions: Vec<(UnitId, Evict)>,
    /// Holds that the binding takes the place of, with the revisions of their records.
    pub ends: Vec<(HoldId, Revision)>,
    /// What was refused.
    pub rejections: Vec<Rejection>,
    /// Disruption budgets that the victims rest on, with the revisions of their records: preconditions.
    pub budgets: Vec<(String, Revision)>,
    /// Slots of reservations that are taken, with who is in them now.
    pub slots: Vec<Arc<Hold>>,
    /// Holds that go, and why, as metrics name it: the unit's own, as it is placed elsewhere, and those that it takes over.
    pub gone: Vec<(HoldId, &'static str)>,
}

/// State of the conflict check.
#[derive(Debug, Default)]
pub struct Binder {
    cluster: Cluster,
    quotas: Quotas,
    classes: Classes,
    units: IdMap<UnitId, Box<Unit>>,
    open: IdMap<Ticket, Open>,
    open_of: IdMap<UnitId, SmallVec<[Ticket; 2]>>,
    /// Committed, but our reading is not there yet.
    landed: BTreeSet<(Revision, Ticket)>,
    last_ticket: u64,
    requeues: requeue::Requeues,
    holds: Holds,
    reservations: Reservations,
    squeezes: Squeezes,
    /// Their evictions are under way: the incarnation of each.
    departing: FxHashMap<(UnitId, u32), u32>,
    /// Time of day, Unix milliseconds.
    now_ms: i64,
    /// Label of nodes that says their sub-cluster; empty: there are none.
    sub_cluster_key: String,
    revision: Revision,
}

#[derive(Debug)]
struct Open {
    unit: UnitId,
    /// (ordinal, incarnation), ascending.
    members: SmallVec<[(u32, u32); 1]>,
    landed: Option<Revision>,
    queue: QueueIdx,
    /// What it takes of the queue, but for groups whose rows show it already.
    needs: Needs,
    /// Most have to do with none.
    holds: Option<Box<OpenHolds>>,
    /// Records were listed anew since: they need not show what became of it.
    is_listed: bool,
}

/// Holds that a decision under way has to do with.
#[derive(Debug, Default)]
struct OpenHolds {
    /// It makes them.
    made: Vec<HoldId>,
    /// It takes their place.
    converted: Vec<HoldId>,
    /// It ends them.
    ended: Vec<HoldId>,
    /// Running units that have to leave for those made.
    victims: Vec<(UnitId, u32)>,
}

impl Open {
    fn holds(&self) -> &OpenHolds {
        const NONE: &OpenHolds =
            &OpenHolds { made: Vec::new(), converted: Vec::new(), ended: Vec::new(), victims: Vec::new() };
        self.holds.as_deref().unwrap_or(NONE)
    }

    fn contains(&self, member: (u32, u32)) -> bool {
        self.members.first().is_some_and(|first| *first <= member)
            && self.members.last().is_some_and(|last| member <= *last)
            && self.members.binary_search(&member).is_ok()
    }
}

impl Binder {
    /// Without nodes and units.
    pub fn new() -> Self {
        Self::default()
    }

    /// A list follows: forgets the records, keeps what is under way.
    pub fn reset(&mut self) {
        self.cluster.reset();
        self.classes.reset();
        self.quotas.reset();
        for open in self.open.values_mut() {
            self.quotas.add(open.queue, &open.needs);
            open.is_listed = true;
        }
        self.units.clear();
        self.requeues.clear();
        self.reservations.reset();
        self.reset_holds();
        self.squeezes.reset();
        self.revision = Revision(0);
    }

    /// A committed change, in order of revision. Older ones than what is known are ignored.
    pub fn on_change(&mut self, change: Change, revision: Revision, time_ms: i64) {
        self.on_wall(time_ms);
        if !self.note_unreadable(&change) {
            return;
        }
        self.look_at_change(&change);
        match change {
            Change::NodeSpec(spec) => self.cluster.put_spec(spec, revision),
            Change::NodeReport(report) => {
                let node = report.id;
                self.cluster.put_report(report, revision);
                self.look_for_squeeze(node, Cause::Node);
            }
            Change::NodeGrant(node, allocatable) => {
                self.cluster.put_grant(node, allocatable, revision);
                self.look_for_squeeze(node, Cause::Node);
            }
            Change::NodeUsage(usage) => {
                let node = usage.id;
                self.cluster.put_usage(usage, revision);
                self.look_for_squeeze(node, Cause::Usage);
            }
            Change::NodeDeleted(node) => self.cluster.remove_node(node),
            Change::UnitSpec(spec) => self.put_unit(&spec, revision),
            Change::Queue(spec) => self.quotas.put(spec, revision),
            Change::QueueDeleted(path) => self.quotas.remove(&path, revision),
            Change::PriorityClass(class) => self.classes.put(class),
            Change::PriorityClassDeleted(name) => self.classes.remove(&name),
            Change::Budget(spec) => self.put_budget(spec, revision),
            Change::BudgetDeleted(name) => self.cluster.remove_budget(&name),
            Change::Reservation(spec) => self.put_reservation(spec, revision),
            Change::ReservationDeleted(name) => self.remove_reservation(&name),
            Change::UnitDeleted(unit) => {
                self.count_rows(unit, -1);
                self.units.remove(&unit);
                self.requeues.remove_unit(unit);
                self.cluster.remove_unit(unit);
                self.convert_none(unit);
            }
            Change::Rows(unit, change) => {
                let turns = self.cluster.apply_rows(unit, &change, revision, time_ms);
                if let Some(known) = self.units.get(&unit) {
                    self.quotas.turn((known.queue, unit), &turns, 1, &self.cluster);
                }
                match &change {
                    RunChange::Bind(bind) => {
                        self.look_at_bind(unit, bind);
                        self.is_shown(unit, bind);
                    }
                    RunChange::Evict(evict) => {
                        self.are_told(unit, evict.ordinals.iter().copied());
                        self.departures_shown(unit, evict.members());
                    }
                    RunChange::Statuses(_) | RunChange::Requeue(_) => {}
                }
                if let Some(rows) = self.cluster.rows(unit) {
                    let restarting = self.units.get(&unit).is_some_and(|unit| unit.restarting);
                    self.requeues.look_at(unit, rows, touched(&change), restarting);
                }
            }
            Change::RowsLoaded(unit, rows) => {
                let restarting = self.units.get(&unit).is_some_and(|unit| unit.restarting);
                self.requeues.look_at_all(unit, &rows, restarting);
                self.count_rows(unit, -1);
                self.cluster.load_rows(unit, rows);
                self.count_rows(unit, 1);
                self.place_unread(unit);
                self.are_shown(unit);
            }
            Change::Hold(hold) => {
                let (node, unit) = (hold.node, hold.unit);
                self.put_hold(hold, revision);
                self.look_for_squeeze(node, Cause::Unit(unit));
            }
            Change::HoldDeleted(id) => self.drop_hold(id),
            Change::Unreadable(unreadable) => self.freeze(&unreadable.subject),
            Change::Lease(_)
            | Change::Partition(_)
            | Change::PartitionBlock(_)
            | Change::Pause(_)
            | Change::PauseDeleted(_)
            | Change::UnreadableGone(_) => {}
        }
    }

    /// The time of day, Unix milliseconds: how long victims have run, and when holds expire.
    pub fn on_wall(&mut self, now_ms: i64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// Leads with this epoch: holds get ids that no other binder gives, and last `hold_ms`; nodes may be above their
    /// best-effort room for `squeeze_ms`.
    pub fn lead(&mut self, epoch: Epoch, hold_ms: u64, squeeze_ms: u64) {
        self.holds.lead(epoch, hold_ms);
        self.squeezes.lead(squeeze_ms);
    }

    /// Everything up to `revision` has been read.
    pub fn on_revision(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
        while let Some((landed, ticket)) =
            self.landed.first().copied().filter(|(landed, _)| *landed <= self.revision)
        {
            self.landed.remove(&(landed, ticket));
            self.close_read(ticket);
        }
        self.settle_reliefs();
    }

    /// Everything up to here has been read.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The nodes, and what is taken on them.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Queues, and what is taken of them, by bindings under way too.
    pub fn quota(&self) -> &Quota {
        self.quotas.quota()
    }

    /// A queue and those above it: path, and revision of the record that maxima were read from, 0 without one. A
    /// binding rests on all of them: a maximum may be lowered, or set, while it is under way.
    pub fn queue_records(&self, queue: QueueIdx) -> impl Iterator<Item = (QueueIdx, &str, Revision)> {
        self.quotas.records(queue)
    }

    /// Priority of a unit, its own or that of its class; 0 when it is unknown.
    pub fn priority(&self, unit: UnitId) -> i32 {
        self.units.get(&unit).map_or(0, |unit| self.classes.value(unit.priority))
    }

    /// Decisions accepted whose transactions are under way, or committed and not read yet.
    pub fn n_open(&self) -> usize {
        self.open.len()
    }

    /// The transaction of a ticket committed at `revision`. Its room stays taken until the records show it.
    pub fn commit(&mut self, ticket: Ticket, revision: Revision) {
        if revision <= self.revision {
            self.close_read(ticket);
        } else if let Some(open) = self.open.get_mut(&ticket) {
            open.landed = Some(revision);
            self.landed.insert((revision, ticket));
        }
    }

    /// What shows what became of something under way.
    fn outcome_of(&self, ticket: Ticket) -> Wait {
        let landed = self.open.get(&ticket).and_then(|open| open.landed);
        landed.map_or(Wait::Ticket(ticket), Wait::Revision)
    }

    /// The transaction of a ticket was refused: its room is free again.
    pub fn take_back(&mut self, ticket: Ticket) {
        if let Some(open) = self.close(ticket) {
            self.take_back_holds(ticket, &open.holds().made, &open.holds().converted);
            self.keep_ended(&open.holds().ended);
            for (ordinal, incarnation) in open.members {
                self.cluster.forget(open.unit, ordinal, incarnation);
            }
        }
    }

    /// The lease is lost: gives up everything whose fate is unknown. What was committed is read as records.
    pub fn take_back_all(&mut self) {
        let mut unknown: Vec<Ticket> =
            self.open.iter().filter(|(_, open)| open.landed.is_none()).map(|(ticket, _)| *ticket).collect();
        unknown.sort_unstable();
        for ticket in unknown {
            self.take_back(ticket);
        }
        self.requeues.give_up();
        self.give_up_departures();
        self.keep_all_holds();
        self.squeezes.reset();
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
                let (allocated, device_free_milli) = self.cluster.pool_state(node, pool)?;
                Some(FreshNode { node, pool, allocated, device_free_milli, revision: self.revision })
            })
            .collect()
    }

    /// Of the evictions asked for those that make sense now: live, of the current incarnation, not leaving
    /// yet and not being told to; for the loss of a node those on nodes that are not ready. Empty when there is nothing
    /// (left) to do.
    pub fn evictions(&self, asked: &[(UnitId, Evict)]) -> Vec<(UnitId, Evict)> {
        let mut evictions = Vec::new();
        for (unit, evict) in asked {
            let Some(rows) = self.cluster.rows(*unit) else { continue };
            let members: BTreeSet<(u32, u32)> = evict
                .members()
                .filter(|(ordinal, incarnation)| {
                    let row = rows.row(*ordinal);
                    if self.is_kept_there(*unit, row.node, evict.reason) {
                        return false;
                    }
                    let leaves = match evict.reason.is_end() {
                        // A node that is back reports for itself.
                        true => !self.cluster.report(row.node).is_some_and(|report| report.ready),
                        false => {
                            row.eviction.is_none()
                                && !self.departs(*unit, *ordinal, *incarnation)
                                && !self.holds.is_leaving(*unit, *ordinal)
                        }
                    };
                    row.phase.is_live() && row.incarnation == *incarnation && leaves
                })
                .collect();
            if !members.is_empty() {
                let (ordinals, incarnations) = members.into_iter().unzip();
                evictions.push((
                    *unit,
                    Evict {
                        ordinals,
                        incarnations,
                        reason: evict.reason,
                        by: evict.by.clone(),
                        preemptor: evict.preemptor,
                    },
                ));
            }
        }
        evictions
    }

    fn put_unit(&mut self, spec: &UnitSpec, revision: Revision) {
        let known = self.units.get(&spec.id);
        if known.is_some_and(|known| known.revision >= revision) {
            return;
        }
        let before = known.map(|known| known.queue);
        // One that could not be read was not wanted, as far as anybody knew.
        let is_resumed = known.is_some_and(|known| !known.is_wanted || known.is_unread) && spec.is_wanted();
        let is_resumed = is_resumed || spec.restarting;
        let queue = self.quotas.queue(&spec.queue);
        if before.is_some_and(|before| before != queue) {
            self.count_rows(spec.id, -1);
        }
        let placed = (queue, self.classes.of(spec), self.classes.id(&spec.priority_class));
        self.units.insert(spec.id, Box::new(Unit::new(spec, revision, placed, &mut self.cluster)));
        self.offer(spec.id);
        if before != Some(queue) {
            self.count_rows(spec.id, 1);
            self.move_holds(spec.id, queue);
        }
        if is_resumed && let Some(rows) = self.cluster.rows(spec.id) {
            self.requeues.look_at_all(spec.id, rows, spec.restarting);
        }
    }

    /// All that a unit's rows take counts (`sign` 1) in its queue, or does no longer (-1); in none while the unit is
    /// not known.
    fn count_rows(&mut self, unit: UnitId, sign: i64) {
        if let Some((known, rows)) = self.units.get(&unit).zip(self.cluster.rows(unit)) {
            self.quotas.turn((known.queue, unit), &GroupDeltas::of(rows), sign, &self.cluster);
        }
    }

    /// The rows show a binding: what was under way of it does not count a second time.
    fn is_shown(&mut self, unit: UnitId, bind: &Bind) {
        let Some(&first) = bind.ordinals.first() else { return };
        let member = (first, bind.incarnations.first().copied().unwrap_or(0));
        for ticket in self.open_of.get(&unit).into_iter().flatten() {
            if let Some(open) = self.open.get_mut(ticket).filter(|open| open.contains(member)) {
                let queue = open.queue;
                open.needs.retain(|(group, need)| {
                    let is_other = *group != bind.group;
                    if !is_other {
                        self.quotas.give_back(queue, *need);
                    }
                    is_other
                });
            }
        }
    }

    /// The same after a list. A binding of which only some rows are there yet counts twice until the others come.
    fn are_shown(&mut self, unit: UnitId) {
        let told = self.cluster.rows(unit).into_iter().flat_map(RunningUnits::live);
        let told = told.filter(|(_, row)| row.eviction.is_some()).map(|(ordinal, _)| ordinal);
        let told: Vec<u32> = told.collect();
        self.are_told(unit, told);
        self.settle_departures(unit);
        let Some(rows) = self.cluster.rows(unit) else { return };
        for ticket in self.open_of.get(&unit).into_iter().flatten() {
            let Some(open) = self.open.get_mut(ticket) else { continue };
            let is_there = |(ordinal, incarnation): &(u32, u32)| {
                let row = rows.row(*ordinal);
                row.incarnation > *incarnation
                    || (row.incarnation == *incarnation && row.phase != Phase::Pending)
            };
            if open.members.iter().all(is_there) {
                for (_, need) in std::mem::take(&mut open.needs) {
                    self.quotas.give_back(open.queue, need);
                }
            }
        }
    }

    /// The records show what became of a ticket.
    fn close_read(&mut self, ticket: Ticket) {
        if let Some(open) = self.close(ticket) {
            self.forget_made(&open.holds().made);
            self.holds.converted(ticket, &open.holds().converted);
            if open.is_listed {
                // Its unit may have ended, or have gone, before the list: nothing in that takes its place.
                for (ordinal, incarnation) in open.members {
                    self.cluster.forget(open.unit, ordinal, incarnation);
                }
            }
        }
    }

    fn close(&mut self, ticket: Ticket) -> Option<Open> {
        let mut open = self.open.remove(&ticket)?;
        self.holds.look();
        self.left(&open.holds().victims);
        for (_, need) in std::mem::take(&mut open.needs) {
            self.quotas.give_back(open.queue, need);
        }
        if let Some(tickets) = self.open_of.get_mut(&open.unit) {
            tickets.retain(|other| *other != ticket);
            if tickets.is_empty() {
                self.open_of.remove(&open.unit);
            }
        }
        if let Some(revision) = open.landed {
            self.landed.remove(&(revision, ticket));
        }
        Some(open)
    }
}

/// Ordinals of which a change may alter whether they have to come back.
fn touched(change: &RunChange) -> &[u32] {
    match change {
        RunChange::Bind(_) => &[],
        RunChange::Evict(evict) => &evict.ordinals,
        RunChange::Statuses(statuses) => &statuses.ordinals,
        RunChange::Requeue(requeue) => &requeue.ordinals,
    }
}
