//! What must never be, counted at each commit from the changes alone: it shares nothing with the parts, nor with the rescheduler.
//!
//! A move is an eviction by a movement, or room that is held for a replacement that starts first. Of the latter nothing leaves
//! until the replacement runs, so no budget is asked; the rate counts both.

use std::collections::{BTreeMap, VecDeque};

use godel_audit::Commit;
use godel_base::ids::UnitId;
use godel_core_rescheduler::MoveRate;
use godel_domain::{
    budget_spec::Limit,
    change::Change,
    hold::Hold,
    records::{Record, RecordKey},
    running_units::{EvictionReason, Phase, RunChange},
    surge::Surge,
    unit::UnitRecord,
};

/// A replica as the changes describe it.
#[derive(Clone, Copy, Debug, Default)]
struct SeenReplica {
    incarnation: u32,
    phase: Phase,
    is_leaving: bool,
}

impl SeenReplica {
    /// Whether it runs and is not told to leave.
    fn stays(&self) -> bool {
        self.phase == Phase::Running && !self.is_leaving
    }
}

/// A unit as the changes describe it.
#[derive(Clone, Debug, Default)]
struct SeenUnit {
    name: String,
    is_wanted: bool,
    /// Replicas that it is to have, without those that are to replace others.
    n_wanted: u32,
    max_surge: u32,
    /// Half-open ranges of the ordinals that it has.
    ordinals: Vec<(u32, u32)>,
    surges: Vec<Surge>,
    replicas: BTreeMap<u32, SeenReplica>,
    /// When replicas of it were moved, Unix milliseconds.
    moves: VecDeque<i64>,
}

/// How replacements that started first ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenSurges {
    pub(super) n_replaced: u64,
    pub(super) n_given_up: u64,
}

/// Follows every commit.
pub(super) struct WeekJudge {
    rate: Option<MoveRate>,
    units: BTreeMap<UnitId, SeenUnit>,
    /// Fewest running units that a budget demands of so many, by the name of its unit.
    floors: BTreeMap<String, (String, Limit)>,
    surges: SeenSurges,
}

impl WeekJudge {
    /// Returns a judge of movements that keep a rate; without one there are to be no movements.
    pub(super) fn new(rate: Option<MoveRate>) -> Self {
        Self { rate, units: BTreeMap::new(), floors: BTreeMap::new(), surges: SeenSurges::default() }
    }

    pub(super) fn surges(&self) -> SeenSurges {
        self.surges
    }

    /// Reads a commit, or says what is wrong with it.
    pub(super) fn read(&mut self, commit: &Commit) -> Result<(), String> {
        let mut evicted: Vec<(UnitId, u32)> = Vec::new();
        let mut changed: Vec<UnitId> = Vec::new();
        let mut released: Vec<(UnitId, Surge)> = Vec::new();
        for change in &commit.changes {
            match change {
                Change::Put(Record::Unit(record)) => {
                    let ended = self.on_unit(record);
                    released.extend(ended.into_iter().map(|surge| (record.id, surge)));
                    changed.push(record.id);
                }
                Change::Gone(RecordKey::Unit(unit)) => {
                    self.units.remove(unit);
                }
                Change::Put(Record::Budget(budget)) => {
                    self.floors.insert(budget.unit.clone(), (budget.name.clone(), budget.limit));
                }
                Change::Gone(RecordKey::Budget(name)) => self.floors.retain(|_, (known, _)| known != name),
                Change::Put(Record::Hold(hold)) if is_surge(hold) => self.check_rate(hold.unit, 1, commit)?,
                Change::Rows(unit, change) => {
                    let n = self.on_rows(*unit, change);
                    if n > 0 {
                        evicted.push((*unit, n));
                    }
                    changed.push(*unit);
                }
                _ => {}
            }
        }
        for (unit, n) in evicted {
            self.check_starts_first(unit, commit)?;
            self.check_budget(unit, commit)?;
            self.check_rate(unit, n, commit)?;
        }
        for (unit, surge) in released {
            self.check_released(unit, &surge, commit)?;
        }
        changed.into_iter().try_for_each(|unit| self.check_number(unit, commit))
    }

    /// Follows the record of a unit, and returns the surges whose new replicas took the places of the old ones.
    fn on_unit(&mut self, record: &UnitRecord) -> Vec<Surge> {
        let unit = self.units.entry(record.id).or_default();
        let surges = record.status.surges.clone();
        let before = std::mem::replace(&mut unit.surges, surges);
        unit.name.clone_from(&record.spec.name);
        unit.is_wanted = record.is_wanted();
        let n_surges = u32::try_from(unit.surges.len()).unwrap_or(u32::MAX);
        unit.n_wanted = record.spec.replicas().saturating_sub(n_surges);
        unit.max_surge = record.spec.max_surge;
        unit.ordinals = record.ranges().collect();
        let over = before.into_iter().filter(|surge| !unit.surges.contains(surge));
        let (replaced, given_up): (Vec<_>, Vec<_>) = over.partition(|surge| unit.has(surge.ordinal));
        self.surges.n_replaced += u64::try_from(replaced.len()).unwrap_or(0);
        self.surges.n_given_up += u64::try_from(given_up.len()).unwrap_or(0);
        replaced
    }

    /// Follows a change of running units, and says how many of them a movement evicts.
    fn on_rows(&mut self, unit: UnitId, change: &RunChange) -> u32 {
        let replicas = &mut self.units.entry(unit).or_default().replicas;
        let incarnation = |of: &[u32], idx: usize| of.get(idx).copied().unwrap_or(0);
        match change {
            RunChange::Bind(bind) => {
                for (idx, ordinal) in bind.ordinals.iter().enumerate() {
                    let incarnation = incarnation(&bind.incarnations, idx);
                    replicas.insert(
                        *ordinal,
                        SeenReplica { incarnation, phase: Phase::Bound, is_leaving: false },
                    );
                }
            }
            RunChange::Evict(evict) => {
                for (idx, ordinal) in evict.ordinals.iter().enumerate() {
                    let replica = replicas.entry(*ordinal).or_default();
                    if replica.incarnation == incarnation(&evict.incarnations, idx) {
                        replica.is_leaving = true;
                        if evict.reason == EvictionReason::NodeLost {
                            replica.phase = Phase::Stopped;
                        }
                    }
                }
                if evict.reason == EvictionReason::Rescheduled {
                    return u32::try_from(evict.ordinals.len()).unwrap_or(u32::MAX);
                }
            }
            RunChange::Statuses(statuses) => {
                for (idx, ordinal) in statuses.ordinals.iter().enumerate() {
                    let replica = replicas.entry(*ordinal).or_default();
                    let phase = statuses.phases.get(idx).copied();
                    let is_this = replica.incarnation == incarnation(&statuses.incarnations, idx);
                    if let Some(phase) = phase.filter(|_| is_this && replica.phase.is_live()) {
                        replica.phase = phase;
                    }
                }
            }
            RunChange::Requeue(_) | RunChange::Terms(_) | RunChange::Compact(_) => {}
        }
        0
    }

    /// A unit whose replacements start first never has one fewer by a movement.
    fn check_starts_first(&self, unit: UnitId, commit: &Commit) -> Result<(), String> {
        match self.units.get(&unit) {
            Some(seen) if seen.max_surge > 0 => Err(format!(
                "a movement evicts a replica of {}, whose replacements start first, at {}",
                seen.name, commit.revision
            )),
            _ => Ok(()),
        }
    }

    /// A replica that stays is let go when the one runs that takes its place.
    fn check_released(&self, unit: UnitId, surge: &Surge, commit: &Commit) -> Result<(), String> {
        let Some(seen) = self.units.get(&unit).filter(|seen| seen.is_wanted) else { return Ok(()) };
        let stays = |ordinal: u32| seen.replicas.get(&ordinal).is_some_and(SeenReplica::stays);
        if !seen.has(surge.replaces) && stays(surge.replaces) && !stays(surge.ordinal) {
            return Err(format!(
                "{} lets {} go before {} runs, at {}",
                seen.name, surge.replaces, surge.ordinal, commit.revision
            ));
        }
        Ok(())
    }

    /// A unit has no more running units than its replicas and those that may start before others stop. A replica that was let go
    /// for its replacement counts no more, though it takes a while to stop.
    fn check_number(&self, unit: UnitId, commit: &Commit) -> Result<(), String> {
        let Some(seen) = self.units.get(&unit).filter(|seen| seen.is_wanted) else { return Ok(()) };
        let is_live = |(ordinal, one): &(&u32, &SeenReplica)| one.phase.is_live() && seen.has(**ordinal);
        let n_live = seen.replicas.iter().filter(is_live).count();
        let n_max = u64::from(seen.n_wanted) + u64::from(seen.max_surge);
        if u64::try_from(n_live).unwrap_or(u64::MAX) > n_max {
            return Err(format!(
                "{n_live} of {} are live, more than {n_max}, at {}",
                seen.name, commit.revision
            ));
        }
        Ok(())
    }

    fn check_budget(&self, unit: UnitId, commit: &Commit) -> Result<(), String> {
        let Some(seen) = self.units.get(&unit) else { return Ok(()) };
        let Some((budget, limit)) = self.floors.get(&seen.name) else { return Ok(()) };
        let counts = |(ordinal, one): &(&u32, &SeenReplica)| one.stays() && seen.is_settled(**ordinal);
        let n_left = seen.replicas.iter().filter(counts).count();
        let n_wanted = if seen.is_wanted { seen.n_wanted } else { 0 };
        let floor = limit.floor(u64::from(n_wanted));
        if u64::try_from(n_left).unwrap_or(0) < floor {
            return Err(format!(
                "budget {budget}: a movement leaves {n_left} of {n_wanted} running, fewer than {floor}, at {}",
                commit.revision
            ));
        }
        Ok(())
    }

    fn check_rate(&mut self, unit: UnitId, n: u32, commit: &Commit) -> Result<(), String> {
        let Some(rate) = self.rate else { return Err(format!("moved without a rescheduler: {unit}")) };
        let Some(seen) = self.units.get_mut(&unit) else { return Ok(()) };
        let within_ms = i64::try_from(rate.within_ms).unwrap_or(i64::MAX);
        while seen.moves.front().is_some_and(|at| commit.time_ms - at >= within_ms) {
            seen.moves.pop_front();
        }
        seen.moves.extend((0..n).map(|_| commit.time_ms));
        if seen.moves.len() > rate.n_moves_max as usize {
            let n = seen.moves.len();
            return Err(format!("unit {} was moved {n} times within {within_ms} ms", seen.name));
        }
        Ok(())
    }
}

impl SeenUnit {
    /// Whether it is to have a replica.
    fn has(&self, ordinal: u32) -> bool {
        self.ordinals.iter().any(|(start, end)| (*start..*end).contains(&ordinal))
    }

    /// The same, without those that are to replace others.
    fn is_settled(&self, ordinal: u32) -> bool {
        self.has(ordinal) && self.surges.iter().all(|surge| surge.ordinal != ordinal)
    }
}

/// Whether room is held for a replacement that starts first.
fn is_surge(hold: &Hold) -> bool {
    hold.movement.as_ref().is_some_and(|target| !hold.ordinals.contains(&target.from.replica.ordinal))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_base::ids::{NodeId, ReplicaId, Revision, RunningUnitId};
    use godel_domain::{
        budget_spec::BudgetSpec,
        hold::MovementTarget,
        running_units::{Bind, Evict, Statuses},
        unit::UnitRecord,
    };
    use godel_testkit::{BuildUnit as _, demand};

    use super::*;

    const UNIT: UnitId = UnitId(1);

    fn commit(number: u64, change: Change) -> Commit {
        let time_ms = 1_000 * i64::try_from(number).unwrap();
        Commit { revision: Revision(number), time_ms, changes: vec![change] }
    }

    fn statuses(ordinal: u32, incarnation: u32) -> Change {
        let statuses = Statuses {
            ordinals: vec![ordinal],
            incarnations: vec![incarnation],
            phases: vec![Phase::Running],
            ..Statuses::default()
        };
        Change::Rows(UNIT, RunChange::Statuses(statuses))
    }

    fn bind(ordinal: u32, incarnation: u32) -> Change {
        let (ordinals, incarnations) = (vec![ordinal], vec![incarnation]);
        let bind = Bind { ordinals, incarnations, nodes: vec![NodeId(1)], ..Bind::default() };
        Change::Rows(UNIT, RunChange::Bind(bind))
    }

    fn moved(ordinal: u32, incarnation: u32) -> Change {
        let evict = Evict {
            ordinals: vec![ordinal],
            incarnations: vec![incarnation],
            reason: EvictionReason::Rescheduled,
            by: String::new(),
            preemptor: UnitId(0),
        };
        Change::Rows(UNIT, RunChange::Evict(evict))
    }

    /// Two replicas that run, of which one may be missing.
    fn two_running(rate: MoveRate) -> (WeekJudge, u64) {
        let record: UnitRecord = godel_testkit::unit("w1").id(UNIT).main_group(2, demand(1));
        let budget = BudgetSpec { name: "b1".to_owned(), unit: "w1".to_owned(), ..BudgetSpec::default() };
        let changes = [
            Change::Put(Record::Unit(Arc::new(record))),
            Change::Put(Record::Budget(Arc::new(budget))),
            bind(0, 1),
            statuses(0, 1),
            bind(1, 1),
            statuses(1, 1),
        ];
        let mut judge = WeekJudge::new(Some(rate));
        let mut n = 0;
        for change in changes {
            n += 1;
            judge.read(&commit(n, change)).unwrap();
        }
        (judge, n)
    }

    #[test]
    fn a_move_below_the_floor_of_a_budget_is_wrong() {
        let (mut judge, n) = two_running(MoveRate::default());
        judge.read(&commit(n + 1, moved(0, 1))).unwrap();
        let wrong = judge.read(&commit(n + 2, moved(1, 1))).unwrap_err();
        assert!(wrong.contains("budget b1"), "{wrong}");
        // Once it runs again elsewhere, the other one may go.
        let (mut judge, n) = two_running(MoveRate::default());
        for (idx, change) in [moved(0, 1), bind(0, 2), statuses(0, 2), moved(1, 1)].into_iter().enumerate() {
            judge.read(&commit(n + 1 + u64::try_from(idx).unwrap(), change)).unwrap();
        }
    }

    #[test]
    fn more_moves_than_the_rate_are_wrong() {
        let rate = MoveRate { n_moves_max: 1, within_ms: 10_000 };
        let again = [bind(0, 2), statuses(0, 2)];
        for (gap, is_wrong) in [(9, true), (10, false)] {
            let (mut judge, n) = two_running(rate);
            judge.read(&commit(n + 1, moved(0, 1))).unwrap();
            again.iter().for_each(|change| judge.read(&commit(n + 2, change.clone())).unwrap());
            let last = judge.read(&commit(n + 1 + gap, moved(0, 2)));
            assert_eq!(last.is_err(), is_wrong, "{gap}: {last:?}");
        }
    }

    /// A unit of one replica that lets one replacement start first, and the record with ordinals and surges.
    fn surging(ordinals: (u32, u32), surges: &[(u32, u32)]) -> Change {
        let surge = |(ordinal, replaces): &(u32, u32)| Surge {
            ordinal: *ordinal,
            replaces: *replaces,
            movement: String::new(),
            expires_ms: 0,
        };
        let n = ordinals.1 - ordinals.0;
        let mut record = godel_testkit::unit("w1").id(UNIT).max_surge(1).main_group(n, demand(1));
        record.status.ordinals = vec![vec![ordinals]].into();
        record.status.surges = surges.iter().map(surge).collect();
        Change::Put(Record::Unit(Arc::new(record)))
    }

    fn held(ordinal: u32) -> Change {
        let from = RunningUnitId { unit: UNIT, replica: ReplicaId::new(0, 0) };
        let movement = Some(MovementTarget { movement: Arc::from("m"), from });
        Change::Put(Record::Hold(Arc::new(Hold {
            unit: UNIT,
            ordinals: vec![ordinal],
            movement,
            ..Hold::default()
        })))
    }

    fn read_all(judge: &mut WeekJudge, changes: impl IntoIterator<Item = Change>) -> Result<(), String> {
        (1..).zip(changes).try_for_each(|(n, change)| judge.read(&commit(n, change)))
    }

    #[test]
    fn a_replica_that_goes_before_its_replacement_runs_is_wrong() {
        let begin = || {
            let one = surging((0, 1), &[]);
            [one, bind(0, 0), statuses(0, 0), held(1), surging((0, 2), &[(1, 0)]), bind(1, 0)]
        };
        let mut judge = WeekJudge::new(Some(MoveRate::default()));
        let good = begin().into_iter().chain([statuses(1, 0), surging((1, 2), &[])]);
        read_all(&mut judge, good).unwrap();
        assert_eq!(judge.surges(), SeenSurges { n_replaced: 1, n_given_up: 0 });
        let mut judge = WeekJudge::new(Some(MoveRate::default()));
        let wrong = read_all(&mut judge, begin().into_iter().chain([surging((1, 2), &[])])).unwrap_err();
        assert!(wrong.contains("lets 0 go before 1 runs"), "{wrong}");
        let mut judge = WeekJudge::new(Some(MoveRate::default()));
        read_all(&mut judge, begin().into_iter().chain([surging((0, 1), &[])])).unwrap();
        assert_eq!(judge.surges(), SeenSurges { n_replaced: 0, n_given_up: 1 });
    }

    #[test]
    fn an_eviction_of_what_starts_first_is_wrong() {
        let mut judge = WeekJudge::new(Some(MoveRate::default()));
        let changes = [surging((0, 1), &[]), bind(0, 0), statuses(0, 0), moved(0, 0)];
        let wrong = read_all(&mut judge, changes).unwrap_err();
        assert!(wrong.contains("whose replacements start first"), "{wrong}");
    }

    #[test]
    fn more_live_replicas_than_may_start_first_are_wrong() {
        let mut judge = WeekJudge::new(Some(MoveRate::default()));
        let two = [surging((0, 1), &[]), bind(0, 0), surging((0, 2), &[(1, 0)]), bind(1, 0)];
        read_all(&mut judge, two).unwrap();
        judge.read(&commit(8, surging((0, 3), &[(1, 0), (2, 0)]))).unwrap();
        let wrong = judge.read(&commit(9, bind(2, 0))).unwrap_err();
        assert!(wrong.contains("3 of w1 are live, more than 2"), "{wrong}");
    }

    #[test]
    fn the_rate_counts_replacements_that_start_first() {
        let mut judge = WeekJudge::new(Some(MoveRate { n_moves_max: 1, within_ms: 10_000 }));
        let wrong = read_all(&mut judge, [surging((0, 1), &[]), held(1), held(2)]).unwrap_err();
        assert!(wrong.contains("was moved 2 times"), "{wrong}");
    }
}
