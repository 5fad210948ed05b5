//! Whose turn it is to gather room: of what waits for long, in the order of queues, one gang per sub-cluster and pool, or as many units that gather
//! for one running unit each as their queues are due.
//!
//! A gang waits from the first try that found no place for it: then it was at the head of its queue, and was handed out. What is placed one
//! by one waits for a *room* ([`Rooms`]); that is starved from the moment at which somebody was bound whose turn comes after that of the
//! room's first unit, until a place of it is given out. After `gang_hold_after_ms` whose turn comes before that of the unit that was bound last
//! is offered a turn to gather room: its scheduler hears of it with the assignment, chooses nodes, and the binder holds what is free there, and
//! what becomes free, for it alone, for the whole gang or for one running unit. The turn is over when it is bound or its holds end, at their
//! expiry at the latest; the next one is that of whoever comes first in the order of queues, and in a queue of whom had the last turn longest
//! ago. An offer that came to nothing counts as a turn: nobody waits for a unit that has no nodes to gather on. After each turn
//! that came to nothing a unit waits twice as long as before for its next one, until it is bound or another record of it is
//! read: what is kept for one that does not come to fit is kept from all others.
//!
//! A unit of no sub-cluster may want any node, so it has its turn while no other one of its pool has; those behind it that may
//! want the same nodes do not pass it, or it would wait for ever.
//!
//! Nothing survives a restart: a new leader learns from the records who gathers, and counts waits anew.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{HoldId, NodeId, UnitId},
    time::Millis,
};
use godel_domain::{
    change::{NodeScope, PartitionMode},
    demand::Pool,
    hold::Hold,
    lifecycle,
    refusals::{Refusals, WaitReason},
    sub_cluster,
};
use godel_queueing::Waiting;

use super::{
    assignments::Assignments,
    following::Settle,
    queues::Queueing,
    rooms::Rooms,
    unit_entry::{UnitEntry, Whereabouts},
};

mod candidates;
mod passed;

use candidates::{Busy, GangCandidate, in_order};
use passed::LastBound;

/// An offer without a hold after this is over, milliseconds: many times what a decision takes.
const OFFER_MS: u64 = 5_000;
/// The wait doubles so many times at most: with the default of a minute to an hour and four minutes.
const N_DOUBLINGS_MAX: u32 = 6;
/// Between two looks while somebody waits, milliseconds.
const LOOK_MS: u64 = 500;
/// Rooms that are looked at at a time.
const N_ROOMS_MAX: usize = 1_024;
/// The first unit of a room may not be the first one any more when it was not seen as that for so long, milliseconds.
const SEEN_MS: u64 = 5_000;

/// Gangs and others that wait for room, and offers.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    after_ms: u64,
    waiting: BTreeMap<UnitId, GangWait>,
    /// Who was bound before the last look while units waited for room, and since then.
    last_bound: LastBound,
    bound: LastBound,
    /// Where the next look at rooms begins.
    next_room: usize,
    /// Until when each is in force.
    offers: BTreeMap<UnitId, Millis>,
    look_at: Millis,
    n_turns: u64,
    /// Offered a turn, with no scheduler that could hear of it: to be handed out.
    offered: Vec<UnitId>,
}

#[derive(Clone, Copy, Debug)]
struct GangWait {
    since: Millis,
    /// Number of its last turn; 0: it had none.
    last_turn: u64,
    /// Turns that there had been when it began to wait: who comes later goes behind those who had theirs before.
    n_before: u64,
    /// Turns in a row that came to nothing.
    n_vain: u32,
    /// After them it has none before.
    not_before: Millis,
    /// When it was last seen as the first unit of a starved room.
    seen: Option<Millis>,
}

impl GangWait {
    fn since(since: Millis, n_before: u64) -> Self {
        Self { since, last_turn: 0, n_before, n_vain: 0, not_before: Millis(0), seen: None }
    }

    fn is_first_of_room(&self, now: Millis) -> bool {
        self.seen.is_some_and(|seen| now.since(seen) < SEEN_MS)
    }
}

impl Gangs {
    pub(super) fn new(after_ms: u64) -> Self {
        Self { after_ms, ..Self::default() }
    }

    /// A gang found no place.
    pub(super) fn note(&mut self, unit: UnitId, now: Millis) {
        if self.after_ms > 0 {
            let n_turns = self.n_turns;
            self.waiting.entry(unit).or_insert_with(|| GangWait::since(now, n_turns));
        }
    }

    /// Something of a unit is bound: whoever waits for room and comes before it is passed.
    pub(super) fn on_bind(&mut self, entry: &UnitEntry, rooms: &Rooms, queueing: &Queueing) {
        if self.after_ms > 0 && !rooms.is_empty() {
            // Whose other replicas were placed before is no older for that.
            let bound = entry.waiting(false, &queueing.classes);
            self.bound.add(entry.record.spec.pool, bound, &queueing.queues);
        }
    }

    /// Another record of a unit is read: it may fit now.
    pub(super) fn change(&mut self, unit: UnitId) {
        if let Some(wait) = self.waiting.get_mut(&unit) {
            (wait.n_vain, wait.not_before) = (0, Millis(0));
        }
    }

    /// A hold is gone, of a unit that may be known. The turn that it was of is over with the last one.
    pub(super) fn on_hold_gone(&mut self, hold: &Hold, entry: Option<&UnitEntry>, now: Millis) {
        if hold.turn.is_none() || entry.is_some_and(|entry| gathers(entry, Some(hold.id))) {
            return;
        }
        let is_bound = |entry: &UnitEntry| hold.replicas().all(|replica| entry.is_bound(replica));
        if !entry.is_some_and(is_bound) {
            self.end(hold.unit, now);
        } else if let Some(wait) = self.waiting.get_mut(&hold.unit) {
            // What else it wants begins to wait anew.
            *wait = GangWait { last_turn: wait.last_turn, ..GangWait::since(now, self.n_turns) };
        }
    }

    /// The turn of a unit has come to nothing. If it was bound elsewhere it waits no more, and this is forgotten with the next look.
    pub(super) fn end(&mut self, unit: UnitId, now: Millis) {
        let after_ms = self.after_ms;
        if let Some(wait) = self.waiting.get_mut(&unit) {
            wait.n_vain = wait.n_vain.saturating_add(1);
            let wait_ms = after_ms.saturating_mul(1 << wait.n_vain.min(N_DOUBLINGS_MAX));
            wait.not_before = now.plus(wait_ms);
        }
    }

    /// Why a gang has no turn now, in words; empty: it has one, or is as good as any.
    pub(super) fn waits_for(&self, unit: UnitId, now: Millis) -> String {
        let Some(wait) = self.waiting.get(&unit).filter(|wait| now < wait.not_before) else {
            return String::new();
        };
        let turns = godel_base::words::count(wait.n_vain, "turn");
        let left_ms = wait.not_before.since(now).div_ceil(1_000).saturating_mul(1_000);
        let left = godel_base::duration::show_ms(left_ms);
        format!("{turns} to gather room came to nothing; the next one in {left} at the earliest")
    }

    pub(super) fn remove(&mut self, unit: UnitId) {
        self.waiting.remove(&unit);
    }

    /// It is this unit's turn, and nothing is held for it yet.
    pub(super) fn is_offered(&self, unit: UnitId) -> bool {
        self.offers.contains_key(&unit)
    }

    /// Gangs that have waited for long enough to be offered a turn.
    pub(super) fn n_due(&self, now: Millis) -> usize {
        self.waiting.values().filter(|wait| self.is_due(wait, now)).count()
    }

    /// The next look; `has_rooms`: units wait for room.
    pub(super) fn next_at(&self, has_rooms: bool) -> Option<Millis> {
        (!self.waiting.is_empty() || (has_rooms && self.after_ms > 0)).then_some(self.look_at)
    }

    fn is_due(&self, wait: &GangWait, now: Millis) -> bool {
        now.since(wait.since) >= self.after_ms && now >= wait.not_before
    }

    /// A unit is parked with these refusals. If it was offered a turn, and they say that there are no nodes on which to gather room, the offer
    /// is over.
    pub(super) fn on_parked(&mut self, unit: UnitId, refusals: Option<&Refusals>, now: Millis) {
        let Some(until) = self.offers.get_mut(&unit) else { return };
        if refusals.is_some_and(|all| all.reasons.iter().any(|one| one.is(WaitReason::GangTurn))) {
            *until = now;
        }
    }

    /// Gangs that were offered a turn and that no scheduler has.
    pub(super) fn take_offered(&mut self) -> Vec<UnitId> {
        std::mem::take(&mut self.offered)
    }

    /// A gang gathers: an older leader may have offered that turn.
    fn begin(&mut self, unit: UnitId) {
        self.offers.remove(&unit);
        if let Some(wait) = self.waiting.get_mut(&unit).filter(|wait| wait.last_turn == 0) {
            self.n_turns += 1;
            wait.last_turn = self.n_turns;
        }
    }

    /// Offers turns to candidates that all wait, one in each sub-cluster of a pool that has none: in the order of their queues, in a queue to
    /// those whose last turn is longest ago, then by priority, then to those that wait longest.
    fn offer(&mut self, candidates: &[GangCandidate<'_>], now: Millis) -> Vec<UnitId> {
        let mut busy: BTreeMap<Pool, Busy<'_>> = BTreeMap::new();
        for one in candidates.iter().filter(|one| one.gathers) {
            busy.entry(one.pool).or_default().begin_turn(one);
        }
        // An offer ends with its time, or once another gang gathers where it is for.
        let known: BTreeMap<UnitId, &GangCandidate<'_>> =
            candidates.iter().map(|one| (one.unit, one)).collect();
        let mut vain = Vec::new();
        self.offers.retain(|unit, until| {
            if now >= *until {
                vain.push(*unit);
            }
            now < *until
                && known.get(unit).is_some_and(|one| !busy.entry(one.pool).or_default().has_to_wait(one))
        });
        vain.into_iter().for_each(|unit| self.end(unit, now));
        for one in self.offers.keys().filter_map(|unit| known.get(unit)) {
            busy.entry(one.pool).or_default().begin_turn(one);
        }
        let turn = |one: &&GangCandidate<'_>| {
            let wait = self.waiting.get(&one.unit).filter(|wait| one.is_passed && self.is_due(wait, now))?;
            Some((one.place, wait.last_turn.max(wait.n_before), Reverse(one.priority), wait.since, one.unit))
        };
        let mut due: Vec<_> = candidates.iter().filter_map(|one| Some((turn(&one)?, one))).collect();
        due.sort_unstable_by_key(|(turn, _)| *turn);
        let mut offered = Vec::new();
        for (_, one) in due {
            let busy = busy.entry(one.pool).or_default();
            if one.gathers || self.offers.contains_key(&one.unit) {
                continue;
            }
            // What a queue gathers already counts in it: it gathers more while it is still due.
            if !one.is_gang && !one.is_due && busy.queues.contains(&one.queue) {
                continue;
            }
            if !busy.has_to_wait(one) {
                self.n_turns += 1;
                if let Some(wait) = self.waiting.get_mut(&one.unit) {
                    wait.last_turn = self.n_turns;
                }
                self.offers.insert(one.unit, now.plus(OFFER_MS));
                offered.push(one.unit);
                busy.begin_turn(one);
            } else {
                busy.take_next(one);
            }
        }
        offered
    }

    /// A hold of a gang's turn, from its record: whoever leads now has to know of it.
    pub(super) fn on_gathering(&mut self, hold: &Hold, now: Millis) {
        if hold.turn.is_some() {
            self.note(hold.unit, now);
            self.begin(hold.unit);
            self.look_at = now;
        }
    }

    /// Looks at who waits: offers the next turns.
    pub(super) fn offer_turns(
        &mut self,
        assignments: &mut Assignments,
        rooms: &mut Rooms,
        sub_cluster_key: &str,
        mode: PartitionMode,
        now: Millis,
    ) {
        let is_idle = self.waiting.is_empty() && rooms.is_empty();
        if self.after_ms == 0
            || is_idle
            || now < self.look_at
            || assignments.settling.phase != Settle::Settled
        {
            return;
        }
        self.look_at = now.plus(LOOK_MS);
        if !self.bound.is_empty() {
            self.last_bound = std::mem::take(&mut self.bound);
        }
        self.look_at_rooms(assignments, rooms, now);
        let Assignments { units, queueing, schedulers, .. } = assignments;
        self.waiting.retain(|unit, wait| units.get(*unit).is_some_and(|entry| waits(entry, wait, now)));
        let mut waiting: Vec<(Waiting, GangCandidate<'_>)> = Vec::with_capacity(self.waiting.len());
        for unit in self.waiting.keys() {
            let Some(entry) = units.get(*unit) else { continue };
            let spec = &entry.record.spec;
            let own = entry.waiting(entry.was_placed(), &queueing.classes);
            let passed = self.last_bound.passed(spec.pool, &own, &queueing.queues);
            let is_passed = passed.unwrap_or(true) && !entry.infeasible;
            let candidate = GangCandidate {
                unit: *unit,
                pool: spec.pool,
                sub_cluster: sub_cluster::of(spec, sub_cluster_key),
                priority: own.priority,
                gathers: gathers(entry, None),
                is_passed,
                is_due: self.last_bound.is_due(spec.pool, &own, &queueing.queues),
                is_gang: is_gang(entry),
                queue: own.queue,
                place: 0,
            };
            waiting.push((own, candidate));
        }
        let candidates = in_order(waiting, &queueing.queues);
        for unit in self.offer(&candidates, now) {
            match units.get_mut(unit).map(|entry| &mut entry.place) {
                Some(Whereabouts::Dispatched(held)) => {
                    if mode == PartitionMode::Strict {
                        held.scope = NodeScope::Global;
                    }
                    schedulers.tell_again(unit, held);
                }
                Some(Whereabouts::Queued(_)) => self.offered.push(unit),
                _ => {}
            }
        }
    }

    /// Finds rooms that are starved, of which the first unit is passed by others. Those that wait longest are noted.
    fn look_at_rooms(&mut self, assignments: &Assignments, rooms: &mut Rooms, now: Millis) {
        let Assignments { units, queueing, .. } = assignments;
        for idx in rooms.starvable(&mut self.next_room, N_ROOMS_MAX) {
            let Some(first) = queueing.queues.first_lacking(idx) else { continue };
            // Whoever has room held for it, or has a maximum in its way, waits for something else.
            let may_gather = |entry: &&UnitEntry| entry.holds().is_empty() && !entry.infeasible;
            let Some(entry) = units.get(first.unit).filter(may_gather) else { continue };
            let (pool, gave) = (entry.record.spec.pool, rooms.take_gave(idx));
            let is_starved = self.last_bound.starves(pool, first, gave, &queueing.queues);
            let Some(since) = rooms.note_passed(idx, is_starved, now) else { continue };
            if now.since(since) >= self.after_ms {
                let n_turns = self.n_turns;
                let wait = self.waiting.entry(first.unit).or_insert_with(|| GangWait::since(since, n_turns));
                wait.seen = Some(now);
            }
        }
    }
}

/// It waits for a first binding of several, or for room for one: in the hands of schedulers or held.
fn waits(entry: &UnitEntry, wait: &GangWait, now: Millis) -> bool {
    let is_out = match entry.place {
        Whereabouts::Dispatched(_) | Whereabouts::Queued(_) => true,
        Whereabouts::Idle => gathers(entry, None),
        Whereabouts::Unsettled | Whereabouts::Paused => false,
    };
    // Others leave for it already.
    let has_victims = || entry.holds().iter().any(|hold| hold.is_claim());
    // What is placed one by one waits while it is the first one of its room, has a turn, or has to wait for the next.
    let waits_for_one = || {
        entry.counts.pending > 0
            && (wait.is_first_of_room(now) || gathers(entry, None) || now < wait.not_before)
    };
    is_out && entry.record.is_wanted() && (is_first_of_gang(entry) || waits_for_one()) && !has_victims()
}

/// Its first binding is of several at once.
fn is_first_of_gang(entry: &UnitEntry) -> bool {
    let (record, rows) = (&entry.record, &entry.rows);
    let is_whole = || {
        let terms = lifecycle::GangTerms::of(record);
        terms.is_reached(&lifecycle::counted(rows, &terms))
    };
    record.spec.min_member > 1 && !is_whole()
}

/// Whether a unit gathers, or would gather, room for several running units at once.
fn is_gang(entry: &UnitEntry) -> bool {
    let gathering = entry.holds().iter().filter(|hold| hold.turn.is_some());
    match gathering.map(|hold| hold.ordinals.len()).sum::<usize>() {
        0 => entry.together() > 1,
        n_places => n_places > 1,
    }
}

/// Whether room is gathered for a unit, by another hold than `except`.
pub(super) fn gathers(entry: &UnitEntry, except: Option<HoldId>) -> bool {
    entry.holds().iter().any(|hold| hold.turn.is_some() && Some(hold.id) != except)
}

/// A turn in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnView {
    /// Running units for which room is gathered.
    pub n_places: usize,
    /// On so many nodes.
    pub n_nodes: usize,
    /// Unix milliseconds.
    pub since_ms: i64,
    /// Unix milliseconds.
    pub expires_ms: i64,
}

/// The turn that holds are of.
pub(super) fn turn_of(holds: &[Arc<Hold>]) -> Option<TurnView> {
    let gathering = || holds.iter().filter(|hold| hold.turn.is_some());
    let since_ms = gathering().filter_map(|hold| hold.turn.as_ref()).map(|turn| turn.since_ms).min()?;
    let nodes: BTreeSet<NodeId> = gathering().map(|hold| hold.node).collect();
    Some(TurnView {
        n_places: gathering().map(|hold| hold.ordinals.len()).sum(),
        n_nodes: nodes.len(),
        since_ms,
        expires_ms: gathering().map(|hold| hold.expires_ms).max()?,
    })
}

#[cfg(test)]
mod tests {
    use godel_queueing::QueueIdx;

    use super::*;

    fn candidate(unit: u64, priority: i32) -> GangCandidate<'static> {
        GangCandidate {
            unit: UnitId(unit),
            pool: Pool::Guaranteed,
            sub_cluster: None,
            priority,
            gathers: false,
            is_passed: true,
            is_due: true,
            is_gang: true,
            queue: QueueIdx::default(),
            place: 0,
        }
    }

    fn waiting(units: &[(u64, u64)]) -> Gangs {
        let mut gangs = Gangs::new(1_000);
        for (unit, since) in units {
            gangs.note(UnitId(*unit), Millis(*since));
        }
        gangs
    }

    #[test]
    fn the_first_turn_goes_by_priority_and_wait_then_by_rotation() {
        let mut gangs = waiting(&[(1, 0), (2, 10), (3, 20)]);
        let all = [candidate(1, 0), candidate(2, 5), candidate(3, 0)];
        assert!(gangs.offer(&all, Millis(999)).is_empty(), "nobody has waited for long");
        let mut turns = Vec::new();
        for round in 0..6u64 {
            let now = Millis(2_000 + round * OFFER_MS);
            turns.extend(gangs.offer(&all, now));
            assert!(gangs.offer(&all, now.plus(OFFER_MS - 1)).is_empty(), "one at a time");
        }
        assert_eq!(turns, [2, 1, 3, 2, 1, 3].map(UnitId));
    }

    #[test]
    fn turns_go_by_the_places_of_queues_and_to_nobody_whom_nobody_passed() {
        let mut gangs = waiting(&[(1, 0), (2, 10), (3, 20)]);
        let of = |unit, place, is_passed| GangCandidate { place, is_passed, ..candidate(unit, 0) };
        let all = [of(1, 2, true), of(2, 0, false), of(3, 1, true)];
        assert_eq!(gangs.offer(&all, Millis(2_000)), [UnitId(3)]);
    }

    #[test]
    fn who_comes_later_goes_behind_those_who_had_their_turns_before() {
        let mut gangs = waiting(&[(1, 0)]);
        assert_eq!(gangs.offer(&[candidate(1, 0)], Millis(2_000)), [UnitId(1)]);
        gangs.note(UnitId(2), Millis(2_500));
        let all = [candidate(1, 0), candidate(2, 0)];
        let begin = Millis(2_000 + OFFER_MS);
        assert_eq!(gangs.offer(&all, begin), [UnitId(2)], "the first one pauses");
        assert_eq!(gangs.offer(&all, begin.plus(OFFER_MS)), [UnitId(1)]);
    }

    #[test]
    fn nobody_is_offered_a_turn_while_another_gathers_in_its_pool() {
        let mut gangs = waiting(&[(1, 0), (2, 0), (3, 0)]);
        let other_pool = GangCandidate { pool: Pool::BestEffort, ..candidate(3, 0) };
        let gathers = GangCandidate { gathers: true, ..candidate(1, 0) };
        let now = Millis(5_000);
        assert_eq!(gangs.offer(&[gathers, candidate(2, 9), other_pool], now), [UnitId(3)]);
        assert!(gangs.is_offered(UnitId(3)) && !gangs.is_offered(UnitId(2)));
        assert_eq!(gangs.offer(&[candidate(1, 0), candidate(2, 9)], now), [UnitId(2)]);
    }

    #[test]
    fn one_in_each_sub_cluster_has_its_turn_at_the_same_time() {
        let mut gangs = waiting(&[(1, 0), (2, 0), (3, 0), (4, 0)]);
        let of = |sub_cluster, unit| GangCandidate { sub_cluster: Some(sub_cluster), ..candidate(unit, 0) };
        let all = [of("a", 1), of("a", 2), of("b", 3), of("b", 4)];
        let now = Millis(5_000);
        assert_eq!(gangs.offer(&all, now), [UnitId(1), UnitId(3)]);
        let gathers = GangCandidate { gathers: true, ..all[0] };
        let later = now.plus(OFFER_MS);
        assert_eq!(gangs.offer(&[gathers, all[1], all[2], all[3]], later), [UnitId(4)], "only in b");
    }

    #[test]
    fn a_gang_without_sub_cluster_waits_for_all_and_keeps_its_turn() {
        let mut gangs = waiting(&[(1, 0), (2, 1), (3, 2), (4, 3)]);
        let of = |sub_cluster, unit| GangCandidate { sub_cluster: Some(sub_cluster), ..candidate(unit, 0) };
        let mut all = [of("a", 1), candidate(2, 0), of("a", 3), of("b", 4)];
        let mut now = Millis(5_000);
        assert_eq!(gangs.offer(&all, now), [UnitId(1)], "4 would pass 2");
        all[0].gathers = true;
        now = now.plus(OFFER_MS);
        assert!(gangs.offer(&all, now).is_empty());
        assert_eq!(gangs.offer(&all[1..], now), [UnitId(2)]);
        all[1].gathers = true;
        now = now.plus(OFFER_MS);
        assert!(gangs.offer(&all[1..], now).is_empty(), "it gathers wherever there is room");
        assert_eq!(gangs.offer(&all[2..], now), [UnitId(3), UnitId(4)]);
    }

    #[test]
    fn of_one_running_unit_each_several_gather_while_their_queues_are_due() {
        let mut gangs = waiting(&[(1, 0), (2, 1), (3, 2), (4, 3)]);
        let of_one = |unit| GangCandidate { is_gang: false, ..candidate(unit, 0) };
        let gathers = |unit| GangCandidate { gathers: true, ..of_one(unit) };
        let mut now = Millis(5_000);
        let mut offer = |all: &[GangCandidate<'_>]| {
            now = now.plus(OFFER_MS);
            gangs.offer(all, now)
        };
        assert_eq!(offer(&[of_one(1), of_one(2)]), [UnitId(1)], "one offer at a time");
        assert_eq!(offer(&[gathers(1), of_one(2)]), [UnitId(2)]);
        let is_served = GangCandidate { is_due: false, ..of_one(3) };
        assert!(offer(&[gathers(1), gathers(2), is_served]).is_empty(), "what is gathered counts");
        let of_gang = candidate(3, 9);
        assert!(
            offer(&[gathers(1), gathers(2), of_gang, of_one(4)]).is_empty(),
            "the gang comes next, alone"
        );
        assert_eq!(offer(&[of_gang, of_one(4)]), [UnitId(3)]);
        assert!(offer(&[GangCandidate { gathers: true, ..of_gang }, of_one(4)]).is_empty());
    }

    #[test]
    fn switched_off_nobody_waits() {
        let mut gangs = Gangs::new(0);
        gangs.note(UnitId(1), Millis(0));
        assert!(gangs.offer(&[candidate(1, 0)], Millis(1_000_000)).is_empty());
        assert_eq!(gangs.next_at(false), None);
    }
}
