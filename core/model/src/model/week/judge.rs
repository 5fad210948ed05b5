//! What must never be, counted at each commit from the changes alone: it shares nothing with the parts, nor with the rescheduler.

use std::collections::{BTreeMap, VecDeque};

use godel_audit::Commit;
use godel_core_rescheduler::MoveRate;
use godel_domain::{
    change::Change,
    ids::UnitId,
    running_units::{EvictionReason, Phase, RunChange},
};

use super::movements::MOVED;

/// A replica as the changes describe it.
#[derive(Clone, Copy, Debug, Default)]
struct SeenReplica {
    incarnation: u32,
    is_running: bool,
    is_leaving: bool,
}

/// A unit as the changes describe it.
#[derive(Clone, Debug, Default)]
struct SeenUnit {
    name: String,
    n_wanted: u64,
    replicas: BTreeMap<u32, SeenReplica>,
    /// When replicas of it were moved, Unix milliseconds.
    moves: VecDeque<i64>,
}

/// Follows every commit.
pub(super) struct WeekJudge {
    rate: Option<MoveRate>,
    units: BTreeMap<UnitId, SeenUnit>,
    /// Fewest running units that a budget demands of so many, by the name of its unit.
    floors: BTreeMap<String, (String, godel_domain::budget_spec::Limit)>,
}

impl WeekJudge {
    /// Returns a judge of movements that keep a rate; without one there are to be no movements.
    pub(super) fn new(rate: Option<MoveRate>) -> Self {
        Self { rate, units: BTreeMap::new(), floors: BTreeMap::new() }
    }

    /// Reads a commit, or says what is wrong with it.
    pub(super) fn read(&mut self, commit: &Commit) -> Result<(), String> {
        let mut moved: Vec<(UnitId, u32)> = Vec::new();
        for change in &commit.changes {
            match change {
                Change::Unit(record) => {
                    let unit = self.units.entry(record.id).or_default();
                    unit.name.clone_from(&record.spec.name);
                    unit.n_wanted = if record.is_wanted() { u64::from(record.spec.replicas()) } else { 0 };
                }
                Change::UnitDeleted(unit) => {
                    self.units.remove(unit);
                }
                Change::Budget(budget) => {
                    self.floors.insert(budget.unit.clone(), (budget.name.clone(), budget.limit));
                }
                Change::BudgetDeleted(name) => self.floors.retain(|_, (known, _)| known != name),
                Change::Rows(unit, change) => {
                    let n = self.on_rows(*unit, change);
                    if n > 0 {
                        moved.push((*unit, n));
                    }
                }
                _ => {}
            }
        }
        for (unit, n) in moved {
            self.check_budget(unit, commit)?;
            self.check_rate(unit, n, commit)?;
        }
        Ok(())
    }

    /// Follows a change of running units, and says how many of them it moves.
    fn on_rows(&mut self, unit: UnitId, change: &RunChange) -> u32 {
        let replicas = &mut self.units.entry(unit).or_default().replicas;
        let incarnation = |of: &[u32], idx: usize| of.get(idx).copied().unwrap_or(0);
        match change {
            RunChange::Bind(bind) => {
                for (idx, ordinal) in bind.ordinals.iter().enumerate() {
                    let incarnation = incarnation(&bind.incarnations, idx);
                    replicas.insert(*ordinal, SeenReplica { incarnation, ..SeenReplica::default() });
                }
            }
            RunChange::Evict(evict) => {
                for (idx, ordinal) in evict.ordinals.iter().enumerate() {
                    let replica = replicas.entry(*ordinal).or_default();
                    if replica.incarnation == incarnation(&evict.incarnations, idx) {
                        replica.is_leaving = true;
                        replica.is_running &= evict.reason != EvictionReason::NodeLost;
                    }
                }
                if evict.reason == MOVED {
                    return u32::try_from(evict.ordinals.len()).unwrap_or(u32::MAX);
                }
            }
            RunChange::Statuses(statuses) => {
                for (idx, ordinal) in statuses.ordinals.iter().enumerate() {
                    let replica = replicas.entry(*ordinal).or_default();
                    if replica.incarnation == incarnation(&statuses.incarnations, idx) {
                        replica.is_running = statuses.phases.get(idx) == Some(&Phase::Running);
                    }
                }
            }
            RunChange::Requeue(_) | RunChange::Terms(_) | RunChange::Compact(_) => {}
        }
        0
    }

    fn check_budget(&self, unit: UnitId, commit: &Commit) -> Result<(), String> {
        let Some(seen) = self.units.get(&unit) else { return Ok(()) };
        let Some((budget, limit)) = self.floors.get(&seen.name) else { return Ok(()) };
        let n_left = seen.replicas.values().filter(|one| one.is_running && !one.is_leaving).count();
        let floor = limit.floor(seen.n_wanted);
        if u64::try_from(n_left).unwrap_or(0) < floor {
            return Err(format!(
                "budget {budget}: a movement leaves {n_left} of {} running, fewer than {floor}, at {}",
                seen.n_wanted, commit.revision
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use godel_domain::{
        budget_spec::BudgetSpec,
        ids::{NodeId, Revision},
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
            reason: MOVED,
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
            Change::Unit(Arc::new(record)),
            Change::Budget(Arc::new(budget)),
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
}
