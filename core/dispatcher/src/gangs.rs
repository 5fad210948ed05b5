//! Whose turn it is to gather room: of the gangs that wait for long, one per sub-cluster and pool, each in turn.
//!
//! A gang waits from the first try that found no place for it: then it was at the head of its queue, and was handed out.
//! After `gang_hold_after_ms` it is offered the next turn: its scheduler hears of it with the assignment,
//! chooses nodes, and the binder holds what is free there, and what becomes free, for it alone. The turn is over when it is
//! bound or its holds end, at their expiry at the latest; the next one is that of the gang whose last turn is longest ago.
//! An offer that came to nothing counts as a turn: nobody waits for a gang that has no nodes to gather on. After each turn
//! that came to nothing a gang waits twice as long as before for its next one, until it is bound or another record of it is
//! read: what is kept for one that does not come to fit is kept from all others.
//!
//! A gang of no sub-cluster may want any node, so it has its turn while no other one of its pool has; those behind it that may
//! want the same nodes do not pass it, or it would wait for ever.
//!
//! Nothing survives a restart: a new leader learns from the records who gathers, and counts waits anew.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_domain::{
    change::{NodeScope, PartitionMode},
    demand::Pool,
    hold::Hold,
    ids::{HoldId, NodeId, UnitId},
    lifecycle, sub_cluster,
    time::Millis,
};

use super::{
    assignments::Assignments,
    following::Settle,
    unit_entry::{UnitEntry, Whereabouts},
};

/// An offer without a hold after this is over, milliseconds: many times what a decision takes.
const OFFER_MS: u64 = 5_000;
/// The wait doubles so many times at most: with the default of a minute to an hour and four minutes.
const N_DOUBLINGS_MAX: u32 = 6;
/// Between two looks while gangs wait, milliseconds.
const LOOK_MS: u64 = 500;

/// Gangs that wait for room, and offers.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    after_ms: u64,
    waiting: BTreeMap<UnitId, GangWait>,
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
    /// Turns in a row that came to nothing.
    n_vain: u32,
    /// After them it has none before.
    not_before: Millis,
}

/// A gang that may have the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GangCandidate<'a> {
    unit: UnitId,
    pool: Pool,
    sub_cluster: Option<&'a str>,
    priority: i32,
    /// It gathers already.
    gathers: bool,
}

/// Sub-clusters of one pool that have a turn, or whose next one is somebody's.
#[derive(Default)]
struct Busy<'a> {
    names: BTreeSet<&'a str>,
    /// A gang of none has it.
    everywhere: bool,
}

impl<'a> Busy<'a> {
    /// As [`godel_domain::sub_cluster::overlap`], with all of them.
    fn meets(&self, sub_cluster: Option<&str>) -> bool {
        self.everywhere || sub_cluster.map_or(!self.names.is_empty(), |name| self.names.contains(name))
    }

    fn add(&mut self, sub_cluster: Option<&'a str>) {
        match sub_cluster {
            Some(name) => {
                self.names.insert(name);
            }
            None => self.everywhere = true,
        }
    }
}

impl Gangs {
    pub(super) fn new(after_ms: u64) -> Self {
        Self { after_ms, ..Self::default() }
    }

    /// A gang found no place.
    pub(super) fn note(&mut self, unit: UnitId, now: Millis) {
        if self.after_ms > 0 {
            let wait = GangWait { since: now, last_turn: 0, n_vain: 0, not_before: Millis(0) };
            self.waiting.entry(unit).or_insert(wait);
        }
    }

    /// Another record of a unit is read: it may fit now.
    pub(super) fn change(&mut self, unit: UnitId) {
        if let Some(wait) = self.waiting.get_mut(&unit) {
            (wait.n_vain, wait.not_before) = (0, Millis(0));
        }
    }

    /// The turn of a gang is over. If it was bound it waits no more, and this is forgotten with the next look.
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
        let turns = godel_domain::words::count(wait.n_vain, "turn");
        let left_ms = wait.not_before.since(now).div_ceil(1_000).saturating_mul(1_000);
        let left = godel_domain::duration::show_ms(left_ms);
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

    pub(super) fn next_at(&self) -> Option<Millis> {
        (!self.waiting.is_empty()).then_some(self.look_at)
    }

    fn is_due(&self, wait: &GangWait, now: Millis) -> bool {
        now.since(wait.since) >= self.after_ms && now >= wait.not_before
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

    /// Offers turns to candidates that all wait, one in each sub-cluster of a pool that has none: to those whose last turn is
    /// longest ago, then by priority, then to those that wait longest.
    fn offer(&mut self, candidates: &[GangCandidate<'_>], now: Millis) -> Vec<UnitId> {
        let mut busy: BTreeMap<Pool, Busy<'_>> = BTreeMap::new();
        for one in candidates.iter().filter(|one| one.gathers) {
            busy.entry(one.pool).or_default().add(one.sub_cluster);
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
                && known
                    .get(unit)
                    .is_some_and(|one| !busy.entry(one.pool).or_default().meets(one.sub_cluster))
        });
        vain.into_iter().for_each(|unit| self.end(unit, now));
        for one in self.offers.keys().filter_map(|unit| known.get(unit)) {
            busy.entry(one.pool).or_default().add(one.sub_cluster);
        }
        let turn = |one: &&GangCandidate<'_>| {
            let wait = self.waiting.get(&one.unit).filter(|wait| self.is_due(wait, now))?;
            Some((wait.last_turn, Reverse(one.priority), wait.since, one.unit))
        };
        let mut due: Vec<_> = candidates.iter().filter_map(|one| Some((turn(&one)?, one))).collect();
        due.sort_unstable_by_key(|(turn, _)| *turn);
        let mut offered = Vec::new();
        for (_, one) in due {
            let busy = busy.entry(one.pool).or_default();
            if one.gathers || self.offers.contains_key(&one.unit) {
                continue;
            }
            if !busy.meets(one.sub_cluster) {
                self.n_turns += 1;
                if let Some(wait) = self.waiting.get_mut(&one.unit) {
                    wait.last_turn = self.n_turns;
                }
                self.offers.insert(one.unit, now.plus(OFFER_MS));
                offered.push(one.unit);
            }
            // If it has to wait, the next turn there is its own.
            busy.add(one.sub_cluster);
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

    /// Looks at the gangs that wait: offers the next turns.
    pub(super) fn offer_turns(
        &mut self,
        assignments: &mut Assignments,
        sub_cluster_key: &str,
        mode: PartitionMode,
        now: Millis,
    ) {
        if self.waiting.is_empty() || now < self.look_at || assignments.settling.phase != Settle::Settled {
            return;
        }
        self.look_at = now.plus(LOOK_MS);
        let Assignments { units, queueing, schedulers, .. } = assignments;
        self.waiting.retain(|unit, _| units.get(*unit).is_some_and(waits));
        let candidate = |unit: &UnitId| {
            let entry = units.get(*unit)?;
            let record = &entry.record;
            Some(GangCandidate {
                unit: *unit,
                pool: record.spec.pool,
                sub_cluster: sub_cluster::of(&record.spec, sub_cluster_key),
                priority: queueing.classes.priority(&record.spec),
                gathers: gathers(entry, None),
            })
        };
        let candidates: Vec<GangCandidate<'_>> = self.waiting.keys().filter_map(candidate).collect();
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
}

/// It waits for a first binding of several, in the hands of schedulers or held.
fn waits(entry: &UnitEntry) -> bool {
    let (record, rows) = (&entry.record, &entry.rows);
    let is_whole = || {
        let terms = lifecycle::GangTerms::of(record);
        terms.is_reached(&lifecycle::counted(rows, &terms))
    };
    let is_out = match entry.place {
        Whereabouts::Dispatched(_) | Whereabouts::Queued(_) => true,
        Whereabouts::Idle => gathers(entry, None),
        Whereabouts::Unsettled | Whereabouts::Paused => false,
    };
    // Others leave for it already.
    let has_victims = || entry.holds().iter().any(|hold| hold.is_claim());
    let is_gang = record.is_wanted() && record.spec.min_member > 1;
    is_out && is_gang && !is_whole() && !has_victims()
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
    use super::*;

    fn candidate(unit: u64, priority: i32) -> GangCandidate<'static> {
        GangCandidate {
            unit: UnitId(unit),
            pool: Pool::Guaranteed,
            sub_cluster: None,
            priority,
            gathers: false,
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
    fn switched_off_nobody_waits() {
        let mut gangs = Gangs::new(0);
        gangs.note(UnitId(1), Millis(0));
        assert!(gangs.offer(&[candidate(1, 0)], Millis(1_000_000)).is_empty());
        assert_eq!(gangs.next_at(), None);
    }
}
