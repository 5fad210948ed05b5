//! What is kept of one unit.

use std::{collections::BTreeSet, sync::Arc};

use godel_base::{
    ids::{ReplicaId, Revision},
    time::Millis,
};
use godel_domain::{
    change::NodeScope,
    hold::Hold,
    lifecycle::{self, Counts, GangTerms, Soft, UnitPhase},
    priority_classes::PriorityClasses,
    queue_spec::Band,
    refusals::Refusals,
    running_units::{EvictionReason, Phase as RowPhase, RunChange, RunningUnit, RunningUnits},
    txn::Receipt,
    unit::UnitRecord,
    unit_report::{ReportState, UnitReport},
};
use godel_queueing::{Account, FloorChange, Need, Queues, RoomIdx, VictimClass, VictimCount, Waiting};
use smallvec::SmallVec;

use super::{limits::NEVER, targets::HeldTargets};

#[derive(Debug)]
pub(super) struct UnitEntry {
    pub(super) record: Arc<UnitRecord>,
    pub(super) revision: Revision,
    pub(super) rows_revision: Revision,
    /// Of the last room that was held for a replica that is moved; 0: there was none.
    pub(super) moves_revision: Revision,
    pub(super) create_revision: Revision,
    pub(super) create_time_ms: i64,
    pub(super) rows: RunningUnits,
    pub(super) counts: Counts,
    pub(super) phase: UnitPhase,
    pub(super) place: Whereabouts,
    pub(super) account: Account,
    /// By task group: what its queue is told.
    pub(super) shares: SmallVec<[GroupShare; 1]>,
    /// Counted among the units of its queue that wait for bindings.
    pub(super) is_wanting: bool,
    /// Schedulers that gave it back since it was last tried on all nodes.
    pub(super) tried: SmallVec<[u32; 2]>,
    /// How often in a row its full queue sent it back, and how many replicas it wanted to place then.
    pub(super) sent_back: (u8, u32),
    pub(super) refusals: Option<Arc<Refusals>>,
    /// Commit time of the first binding; 0 before.
    pub(super) bound_time_ms: i64,
    /// Set once it is over: when its record goes.
    pub(super) delete_at: Option<Millis>,
    /// When it was over; `None` before, or if it was when this dispatcher began.
    pub(super) ended_at: Option<Millis>,
    /// A transaction that deletes it is on its way.
    pub(super) deleting: bool,
    /// When that was, Unix milliseconds; 0: not over, or over at the start.
    pub(super) ended_wall_ms: i64,
    /// No node known now could ever hold one of its replicas.
    pub(super) infeasible: bool,
    /// A scheduler has had it.
    pub(super) was_handed_out: bool,
    /// It has waited for longer than it should.
    pub(super) is_overdue: bool,
    /// When it will have; [`NEVER`] while it does not wait.
    pub(super) wait_due: Millis,
    /// Room that the binder holds for it; most units have none.
    pub(super) holds: Vec<Arc<Hold>>,
    /// Room that it holds for replicas that move, which wait for nobody.
    pub(super) targets: HeldTargets,
}

/// Running units of one task group, as far as its queue is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupShare {
    /// With a node and not ended.
    live: u32,
    /// Wanted, without a node.
    pending: u32,
    /// Charged in the queue: what is live, and what a scheduler has in hand.
    charged: u32,
    /// Noted as bound in the queue.
    bound: u32,
    /// How these stand, as noted there.
    standing: VictimClass,
}

/// Where the pending running units of a unit are. `Idle` exactly when there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    Idle,
    /// Read at the start; waits for schedulers to come back and say what they hold. Or its full queue sent it back again and
    /// again, and it rests.
    Unsettled,
    /// Kept from being handed out by an administrator.
    Paused,
    Queued(Waiting),
    Dispatched(Dispatched),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dispatched {
    pub(super) scheduler: usize,
    /// It found no place: as it waits for room in its queue.
    pub(super) parked: Option<Waiting>,
    /// The scheduler says that all is bound; the rows have yet to say so.
    pub(super) done_at: Option<Millis>,
    /// Revision of the record that the scheduler works with.
    pub(super) revision: Revision,
    /// Running units counted as outstanding at the scheduler.
    pub(super) load: u32,
    /// The scheduler has yet to hear of the newest record or rows.
    pub(super) resend: bool,
    pub(super) scope: NodeScope,
    /// A queue of it was at a maximum: others there have to leave first.
    pub(super) at_maximum: bool,
    /// Running units of it that are not on their way to a node: its scheduler has said that they have no place, or they are more than
    /// it was given places for. `None`: all of them are, or none of a unit that is parked.
    pub(super) unplaced: Option<u32>,
    /// Number of its last assignment in the stream; 0 of one that was made on an older stream.
    pub(super) assigned: u64,
    /// The same of the last one that may have placed something of it.
    pub(super) tried: u64,
    /// What bands earned and spent for so many running units of it that were handed out last.
    pub(super) floor: (FloorChange, u32),
}

impl Dispatched {
    /// Just handed to a scheduler, which works with the record of `revision`.
    pub(super) fn to(scheduler: usize, revision: Revision, scope: NodeScope) -> Self {
        Self {
            scheduler,
            parked: None,
            done_at: None,
            revision,
            load: 0,
            resend: false,
            scope,
            at_maximum: false,
            unplaced: None,
            assigned: 0,
            tried: 0,
            floor: (FloorChange::default(), 0),
        }
    }

    /// Its scheduler has answered: so many running units of it have no place, if that is known. Returns what was earned and spent for
    /// those of them that were to be placed.
    pub(super) fn take_floor(&mut self, unplaced: Option<u32>) -> FloorChange {
        let (floor, n) = std::mem::take(&mut self.floor);
        let n_missed = unplaced.map_or(n, |all| all.saturating_sub(self.unplaced.unwrap_or(0)));
        floor.part(n_missed, n)
    }

    /// Whether what its scheduler says is about an earlier assignment than the one that is to be answered. That it waits answers any that may have
    /// placed something; that the scheduler has it no longer has to be about the last one.
    pub(super) fn is_outdated(&self, report: &UnitReport) -> bool {
        match report.assigned {
            0 => report.spec_revision < self.revision,
            n if report.state == ReportState::Parked => n < self.tried,
            n => n < self.assigned,
        }
    }
}

impl Whereabouts {
    /// As it waits in its queue, for a scheduler or for room.
    pub(super) fn waiting(&self) -> Option<&Waiting> {
        match self {
            Self::Queued(waiting) => Some(waiting),
            Self::Dispatched(held) => held.parked.as_ref(),
            Self::Idle | Self::Unsettled | Self::Paused => None,
        }
    }

    pub(super) fn waiting_mut(&mut self) -> Option<&mut Waiting> {
        match self {
            Self::Queued(waiting) => Some(waiting),
            Self::Dispatched(held) => held.parked.as_mut(),
            Self::Idle | Self::Unsettled | Self::Paused => None,
        }
    }
}

impl UnitEntry {
    /// Whether a replica that moves has no node yet: it was told to leave for another one, or starts before one that is.
    pub(super) fn has_moved(&self) -> bool {
        let is_moved = |(ordinal, row): (u32, &RunningUnit)| {
            let last = self.rows.last_eviction(ordinal).filter(|_| row.phase == RowPhase::Pending);
            last.is_some_and(|last| {
                last.reason == EvictionReason::Rescheduled
                    && last.replica.incarnation.checked_add(1) == Some(row.incarnation)
            })
        };
        self.moves_revision > Revision(0)
            && self.counts.pending > 0
            && (!self.record.status.surges.is_empty()
                || self.rows.rows.iter().any(|(at, row)| is_moved((at, row))))
    }

    pub(super) fn new(
        record: Arc<UnitRecord>,
        revision: Revision,
        created: Receipt,
        account: Account,
    ) -> Self {
        let counts = Counts::of(&record, &RunningUnits::default());
        let phase = lifecycle::phase(&record, &counts, Soft::Waiting);
        let shares = SmallVec::from_elem(GroupShare::default(), record.spec.task_groups.len());
        let mut entry = Self {
            record,
            revision,
            rows_revision: Revision(0),
            moves_revision: Revision(0),
            create_revision: created.revision,
            create_time_ms: created.time_ms,
            rows: RunningUnits::default(),
            counts,
            phase,
            place: Whereabouts::Idle,
            account,
            shares,
            is_wanting: false,
            tried: SmallVec::new(),
            sent_back: (0, 0),
            refusals: None,
            bound_time_ms: 0,
            was_handed_out: false,
            delete_at: None,
            ended_at: None,
            deleting: false,
            ended_wall_ms: 0,
            infeasible: false,
            is_overdue: false,
            wait_due: NEVER,
            holds: Vec::new(),
            targets: HeldTargets::default(),
        };
        entry.count_groups();
        entry
    }

    /// Counts anew from record and rows; what the queue was told stays.
    pub(super) fn recount(&mut self) {
        self.counts = Counts::of(&self.record, &self.rows);
        self.shares.resize(self.record.spec.task_groups.len(), GroupShare::default());
        self.count_groups();
    }

    /// All rows, from a list.
    pub(super) fn load(&mut self, rows: RunningUnits) {
        self.rows_revision = rows.rows.values().map(|row| row.revision).max().unwrap_or_default();
        let compacted = self.record.status.compacted.as_ref().map(|compacted| compacted.bound_ms);
        let times = rows.rows.values().map(|row| row.bound_time_ms).chain(compacted);
        let first = times.filter(|time| *time > 0).min();
        self.bound_time_ms = first.unwrap_or(self.bound_time_ms);
        self.rows = rows;
        self.recount();
    }

    /// As a scheduler has it, if one has.
    pub(super) fn dispatched_mut(&mut self) -> Option<&mut Dispatched> {
        match &mut self.place {
            Whereabouts::Dispatched(held) => Some(held),
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Queued(_) => None,
        }
    }

    /// What a change of rows makes of counts and shares.
    pub(super) fn apply(&mut self, change: &RunChange, revision: Revision, time_ms: i64) -> bool {
        let Self { record, rows, counts, shares, .. } = self;
        let mut is_changed = matches!(change, RunChange::Terms(_));
        if shares.len() == 1 {
            rows.apply(change, revision, time_ms, |ordinal, before, after| {
                is_changed = true;
                counts.move_row(record, ordinal, before, after);
            });
        } else {
            rows.apply(change, revision, time_ms, |ordinal, before, after| {
                is_changed = true;
                counts.move_row(record, ordinal, before, after);
                GroupShare::move_row(shares, record, ordinal, before, after);
            });
        }
        is_changed
    }

    /// Whether counts and what the queue was told follow from record, rows and place.
    pub(super) fn is_sound(&self) -> bool {
        let mut in_flight = self.in_flight();
        let of_groups = by_group(&self.record, &self.rows, &self.counts);
        self.counts == Counts::of(&self.record, &self.rows)
            && self.shares.iter().zip(of_groups).enumerate().rev().all(|(group, (share, (live, pending)))| {
                let charged = live + self.n_taken(group, pending, &mut in_flight);
                let standing = self.standing(group);
                *share == GroupShare { live, pending, charged, bound: live, standing }
            })
    }

    /// Pending running units that a scheduler tries to place, or has placed although the rows have yet to say so. Those for
    /// which it found no place use nothing, nor do those beyond what it was given places for: they would keep others out.
    fn in_flight(&self) -> u32 {
        let pending = if self.record.spec.is_ordered() { self.to_place() } else { self.counts.pending };
        match self.place {
            // Of a unit that was never bound only what room is held for is tried.
            Whereabouts::Dispatched(_) if !self.holds.is_empty() && !self.was_placed() => 0,
            Whereabouts::Dispatched(Dispatched { parked: Some(_), unplaced, .. }) => {
                pending.saturating_sub(unplaced.unwrap_or(pending))
            }
            Whereabouts::Dispatched(held) => pending.saturating_sub(held.unplaced.unwrap_or(0)),
            _ => 0,
        }
    }

    /// Of a group's pending running units those that use room in the queue: of what is `in_flight`, and is less for the next
    /// group, and what room is held for. The last group is asked first: that of an application's master, which may never have a
    /// place, is the first one. Who moves uses room from the end of its old incarnation on, whoever has the unit: it is placed before the
    /// others, so it is among those in flight, and as soon as it has ended, which is before it is pending.
    fn n_taken(&self, group: usize, pending: u32, in_flight: &mut u32) -> u32 {
        let n = pending.min(*in_flight);
        *in_flight -= n;
        let n = n.max(self.n_held(group).min(pending));
        if self.targets.is_empty() {
            return n;
        }
        let movers = self.targets.counted(&self.record, &self.rows, group);
        n.max(movers.n_pending.min(pending)) + movers.n_coming
    }

    /// Brings what the queue is told up to date.
    pub(super) fn charge(&mut self, queues: &mut Queues) {
        let mut in_flight = self.in_flight();
        if let [one] = self.shares.as_mut_slice() {
            (one.live, one.pending) = (self.counts.live, self.counts.pending);
        }
        for group in (0..self.shares.len()).rev() {
            let standing = self.standing(group);
            let n_taken = self.n_taken(group, self.shares[group].pending, &mut in_flight);
            let share = &mut self.shares[group];
            let charged = share.live + n_taken;
            share.set(queues, &self.account, group, charged, share.live, standing);
        }
    }

    /// Takes back all that the queue was told, before the unit leaves it.
    pub(super) fn discharge(&mut self, queues: &mut Queues) {
        for (group, share) in self.shares.iter_mut().enumerate() {
            share.set(queues, &self.account, group, 0, 0, None);
        }
    }

    /// Of a unit with one group the counts are those of its group, and are looked at when it is charged.
    fn count_groups(&mut self) {
        if self.shares.len() > 1 {
            let groups = by_group(&self.record, &self.rows, &self.counts);
            for (share, (live, pending)) in self.shares.iter_mut().zip(groups) {
                (share.live, share.pending) = (live, pending);
            }
        }
    }

    pub(super) fn soft(&self) -> Soft {
        match self.place {
            Whereabouts::Dispatched(held) if held.parked.is_some() && self.holds.is_empty() => Soft::Parked,
            Whereabouts::Queued(waiting) if waiting.room != RoomIdx::NONE && self.holds.is_empty() => {
                Soft::Parked
            }
            _ if self.infeasible || self.is_overdue => Soft::Parked,
            // A scheduler found it a place; whoever is there has yet to leave.
            _ if !self.holds.is_empty() => Soft::Dispatched,
            Whereabouts::Dispatched(_) => Soft::Dispatched,
            Whereabouts::Idle | Whereabouts::Unsettled | Whereabouts::Paused | Whereabouts::Queued(_) => {
                Soft::Waiting
            }
        }
    }

    /// Tells the queue which groups it waits for. Call before [`Self::waiting`] when records or rows have changed.
    pub(super) fn choose(&mut self, queues: &mut Queues) {
        if self.shares.len() > 1 {
            let groups: SmallVec<[usize; 4]> =
                if self.was_placed() { self.groups_to_place().collect() } else { SmallVec::new() };
            queues.choose(&mut self.account, groups);
        }
    }

    /// As it waits in its queue. `again`: it was dispatched before.
    pub(super) fn waiting(&self, again: bool, classes: &PriorityClasses) -> Waiting {
        let priority = classes.priority(&self.record.spec);
        let first = || self.groups_to_place().next().unwrap_or(0);
        Waiting {
            unit: self.record.id,
            queue: self.account.queue,
            owner: self.account.owner,
            payer: self.account.payer,
            band: Band::of(self.record.spec.pool, priority),
            priority,
            again,
            created_ms: self.create_time_ms,
            need: self.account.need(self.was_placed().then(first)),
            running_units: self.to_place(),
            room: RoomIdx::NONE,
            held_by: None,
        }
    }

    /// As it waits in its queue now, if it did as `old`.
    pub(super) fn waiting_again(&self, old: &Waiting, classes: &PriorityClasses) -> Waiting {
        let new = self.waiting(old.again, classes);
        // Who needs something else lacks something else; a scheduler that has it says so. Of several task groups others may be
        // pending now than when it joined, so it is looked at again.
        let is_same = new.need == old.need && self.record.spec.task_groups.len() == 1;
        let stays = old.held_by.is_some() || is_same;
        if stays { Waiting { room: old.room, held_by: old.held_by, ..new } } else { new }
    }

    /// Running units of a task group that are wanted and have no node.
    pub(super) fn n_pending(&self, group: usize) -> u32 {
        self.shares.get(group).map_or(0, |share| share.pending)
    }

    /// Task groups of which some are pending without room held for them.
    fn groups_to_place(&self) -> impl Iterator<Item = usize> {
        (0..self.shares.len()).filter(|group| self.shares[*group].pending > self.n_held(*group))
    }

    /// What all that is on nodes, or on its way from one to another, takes of a queue.
    pub(super) fn live_needs(&self) -> SmallVec<[Need; 1]> {
        let live = by_group(&self.record, &self.rows, &self.counts).into_iter().enumerate();
        let with_movers = live.map(|(group, (n, _))| {
            let movers = self.targets.counted(&self.record, &self.rows, group);
            (group, n + movers.n_pending + movers.n_coming)
        });
        with_movers.filter_map(|(group, n)| Some(Need { ask: self.account.ask(group)?, n })).collect()
    }

    /// What bound running units of a task group are to those who might have them leave.
    fn standing(&self, group: usize) -> VictimClass {
        let standing = self.rows.standing(u16::try_from(group).ok()?)?;
        standing.preemptible.then_some((self.record.spec.pool, standing.priority))
    }

    /// Running units of a task group for which room is held.
    fn n_held(&self, group: usize) -> u32 {
        let of_group = self.holds().iter().filter(|hold| usize::from(hold.group) == group);
        of_group.map(|hold| u32::try_from(hold.ordinals.len()).unwrap_or(u32::MAX)).sum()
    }

    /// Whether a replica has a node.
    pub(super) fn is_bound(&self, replica: ReplicaId) -> bool {
        let row = self.rows.row(replica.ordinal);
        row.incarnation == replica.incarnation && row.phase != RowPhase::Pending
    }

    /// Room that the binder holds for it.
    pub(super) fn holds(&self) -> &[Arc<Hold>] {
        &self.holds
    }

    /// Running units for which a place is to be found now: pending, whether room is held for them or not, as they may fit
    /// elsewhere sooner. Those beyond a first binding that room is held for wait until that is made.
    pub(super) fn to_place(&self) -> u32 {
        if !self.record.spec.is_ordered() && (self.holds.is_empty() || self.was_placed()) {
            return self.counts.pending;
        }
        u32::try_from(self.pending().0.len()).unwrap_or(u32::MAX)
    }

    /// Of those that are to be placed the ones without a place, as far as is known: others may be placed, and the rows have yet to say so.
    pub(super) fn n_unplaced(&self) -> u32 {
        let n_to_place = self.to_place();
        match self.place {
            Whereabouts::Dispatched(Dispatched { parked: Some(_), unplaced: Some(n), .. }) => {
                n.min(n_to_place)
            }
            _ => n_to_place,
        }
    }

    /// Of its next `n` running units how many are of which task group, as [`Self::charge`] counts.
    pub(super) fn next_by_group(&self, n: u32) -> SmallVec<[(usize, u32); 2]> {
        let mut left = n;
        let of_group = |group: usize| {
            let n = self.n_pending(group).min(left);
            left -= n;
            (group, n)
        };
        (0..self.shares.len()).rev().map(of_group).filter(|(_, n)| *n > 0).collect()
    }

    /// Ordinals and incarnations for which a place is to be found now.
    pub(super) fn pending(&self) -> (Vec<u32>, Vec<u32>) {
        let (ordinals, incarnations) = lifecycle::pending(&self.record, &self.rows);
        if self.holds.is_empty() || self.was_placed() {
            return (ordinals, incarnations);
        }
        let held: BTreeSet<ReplicaId> = self.holds().iter().flat_map(|hold| hold.replicas()).collect();
        let pending = ReplicaId::of_columns(&ordinals, &incarnations);
        ReplicaId::columns(pending.filter(|replica| held.contains(replica)))
    }

    /// Running units that must be placed at once before any may be; 0 where one by one will do. A unit that restarts as a
    /// whole needs them once more.
    pub(super) fn together(&self) -> u32 {
        if self.record.spec.min_member <= 1 {
            return 0;
        }
        let terms = GangTerms::of(&self.record);
        let lacks = terms.lacks(&lifecycle::counted(&self.rows, &terms));
        let n = u32::try_from(lacks).unwrap_or(u32::MAX).min(self.counts.pending);
        if n > 1 { n } else { 0 }
    }

    /// Whether it waits for places: a daemon that no node is for does not.
    pub(super) fn waits(&self) -> bool {
        self.phase.waits() && (self.counts.pending > 0 || !self.record.spec.is_daemon())
    }

    /// Whether something of it had a node before, since it was last suspended.
    pub(super) fn was_placed(&self) -> bool {
        self.rows.was_placed()
    }
}

impl GroupShare {
    /// Follows one row, as [`Counts::move_row`] does.
    fn move_row(
        shares: &mut [Self],
        record: &UnitRecord,
        ordinal: u32,
        before: &RunningUnit,
        after: &RunningUnit,
    ) {
        for (row, is_after) in [(before, false), (after, true)] {
            let change = |n: &mut u32| *n = if is_after { *n + 1 } else { n.saturating_sub(1) };
            if row.phase.is_live()
                && let Some(share) = shares.get_mut(usize::from(row.group))
            {
                change(&mut share.live);
            }
            if row.phase == RowPhase::Pending
                && record.is_wanted()
                && let Some(share) = record.group_of(ordinal).and_then(|group| shares.get_mut(group))
            {
                change(&mut share.pending);
            }
        }
    }

    fn set(
        &mut self,
        queues: &mut Queues,
        account: &Account,
        group: usize,
        charged: u32,
        bound: u32,
        standing: VictimClass,
    ) {
        if charged > self.charged {
            queues.charge(account, group, charged - self.charged);
        } else if charged < self.charged {
            queues.discharge(account, group, self.charged - charged);
        }
        if bound != self.bound {
            queues.note_bound(account, group, self.bound, bound);
        }
        if bound != self.bound || standing != self.standing {
            let before = VictimCount { class: self.standing, n: self.bound };
            queues.note_standing(account, before, VictimCount { class: standing, n: bound });
        }
        (self.charged, self.bound, self.standing) = (charged, bound, standing);
    }
}

/// By task group, running units with a node and not ended, and those wanted without one.
fn by_group(record: &UnitRecord, rows: &RunningUnits, counts: &Counts) -> SmallVec<[(u32, u32); 1]> {
    if record.spec.task_groups.len() == 1 {
        return SmallVec::from_buf([(counts.live, counts.pending)]);
    }
    let wanted = |replicas: u32| if record.is_wanted() { replicas } else { 0 };
    let mut groups: SmallVec<[(u32, u32); 1]> =
        record.spec.task_groups.iter().map(|group| (0, wanted(group.replicas))).collect();
    for (ordinal, row) in &rows.rows {
        if row.phase.is_live()
            && let Some((live, _)) = groups.get_mut(usize::from(row.group))
        {
            *live += 1;
        }
        if row.phase != RowPhase::Pending
            && record.is_wanted()
            && let Some((_, pending)) = record.group_of(ordinal).and_then(|group| groups.get_mut(group))
        {
            *pending = pending.saturating_sub(1);
        }
    }
    groups
}
