//! I6 for disruption budgets: preemptions and drains took no more than each allowed, counted anew at every commit.
//!
//! The binder judges what it has read and what it has under way; a hold says up to which revision that was, a drain's
//! eviction does not: some revision of the last ones must do. What agents and the dispatcher wrote between that and the
//! commit is taken away again; other evictions by the binder are not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    Findings,
    preemptions::Turn,
    world::{Commit, World, WorldRow, WorldUnit},
};
use crate::{
    budget::spec::{Amount, BudgetSpec, Limit},
    change::Change,
    ids::{Revision, UnitId},
    rows::{EvictionReason, Phase, RowChange},
    unit::OnEviction,
};

/// Commits that are looked back on: a binder is never so far behind.
const N_BACK_MAX: usize = 10_000;
/// Clocks of a binder and of state differ by less, milliseconds.
const SKEW_MS: i64 = 10_000;

/// Expected, and available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts(i64, i64);

impl Counts {
    fn add(&mut self, other: Self, sign: i64) {
        self.0 += other.0 * sign;
        self.1 += other.1 * sign;
    }
}

/// What is counted from commit to commit.
#[derive(Default)]
pub(super) struct Budgets {
    by_name: BTreeMap<String, Counts>,
    /// When the record of a budget changed last.
    since: BTreeMap<String, Revision>,
    units: BTreeMap<UnitId, (BTreeSet<String>, Counts)>,
    /// By commit: how counts changed but for evictions that are judged.
    back: VecDeque<(Revision, BTreeMap<String, Counts>)>,
    pub(super) findings: Findings,
    /// Evictions that some budget counted.
    pub(super) n_judged: usize,
}

impl Budgets {
    /// A unit's record and rows are about to go.
    pub(super) fn forget(&mut self, unit: UnitId) {
        let Some((names, counts)) = self.units.remove(&unit) else { return };
        for name in names {
            self.by_name.entry(name.clone()).or_default().add(counts, -1);
            if let Some((_, shifts)) = self.back.back_mut() {
                shifts.entry(name).or_default().add(counts, -1);
            }
        }
    }

    /// A commit that `world` has applied.
    pub(super) fn on_commit(&mut self, world: &World, commit: &Commit, turns: &[Turn<'_>]) {
        let mut touched: BTreeSet<UnitId> = BTreeSet::new();
        for change in &commit.changes {
            match change {
                Change::Budget(spec) => {
                    self.since.insert(spec.name.clone(), commit.revision);
                    touched.extend(world.units.keys());
                }
                Change::BudgetDeleted(name) => {
                    self.by_name.remove(name);
                    self.units.values_mut().for_each(|(names, _)| {
                        names.remove(name);
                    });
                }
                Change::UnitSpec(spec) => {
                    touched.insert(spec.id);
                }
                _ => {}
            }
        }
        if world.budgets.is_empty() {
            (self.by_name, self.units, self.back) = Default::default();
            return;
        }
        touched.extend(turns.iter().map(|turn| turn.unit));
        let victims = victims(world, commit, turns);
        self.judge(world, commit, &victims);
        let mut shifts: BTreeMap<String, Counts> = BTreeMap::new();
        for unit in touched {
            let Some(known) = world.units.get(&unit) else { continue };
            let names = selecting(world, known);
            let after = counts(known);
            let (old_names, before) = self.units.remove(&unit).unwrap_or_default();
            let n_gone = victims.iter().filter(|(other, ..)| *other == unit).count();
            let n_gone = i64::try_from(n_gone).unwrap_or(i64::MAX);
            for (name, sign, counts) in old_names
                .iter()
                .map(|name| (name, -1, before))
                .chain(names.iter().map(|name| (name, 1, after)))
            {
                self.by_name.entry(name.clone()).or_default().add(counts, sign);
                shifts.entry(name.clone()).or_default().add(counts, sign);
            }
            for name in &names {
                shifts.entry(name.clone()).or_default().add(Counts(0, n_gone), 1);
            }
            if !names.is_empty() {
                self.units.insert(unit, (names, after));
            }
        }
        self.back.push_back((commit.revision, shifts));
        if self.back.len() > N_BACK_MAX {
            self.back.pop_front();
        }
    }

    fn judge(&mut self, world: &World, commit: &Commit, victims: &[(UnitId, u32, Revision)]) {
        let mut by_name: BTreeMap<&str, Vec<Revision>> = BTreeMap::new();
        for (unit, _, running_since) in victims {
            for name in self.units.get(unit).map(|(names, _)| names).into_iter().flatten() {
                by_name.entry(name.as_str()).or_default().push(*running_since);
            }
        }
        let judged = commit.changes.iter().filter_map(|change| match change {
            // A slot that somebody enters is no judgement of now.
            Change::Hold(hold) if hold.slot.is_none() => Some(hold.judged),
            _ => None,
        });
        let judged = judged.max();
        for (name, since) in &by_name {
            self.n_judged += since.len();
            let Some(record) = world.budgets.get(*name) else { continue };
            let asked = |at: Revision, then: Counts| {
                let n = i64::try_from(since.iter().filter(|since| **since <= at).count()).unwrap_or(i64::MAX);
                (n, (then.1 - least(&record.value, then.0)).max(0))
            };
            let mut then = self.by_name.get(*name).copied().unwrap_or_default();
            let mut at = Revision(commit.revision.0.saturating_sub(1));
            let (n, allowed) = asked(at, then);
            let mut back = self.back.iter().rev();
            let is_fine = loop {
                let is_asked = judged.is_none_or(|judged| at <= judged);
                let (n, allowed) = asked(at, then);
                let was_other = self.since.get(*name).is_some_and(|since| *since > at);
                if is_asked && (n <= allowed || was_other) {
                    break true;
                }
                if judged.is_some_and(|judged| at <= judged) {
                    break false;
                }
                // Of a revision older than what is kept nothing is said.
                let Some((revision, shifts)) = back.next() else { break judged.is_some() };
                then.add(shifts.get(*name).copied().unwrap_or_default(), -1);
                at = Revision(revision.0.saturating_sub(1));
            };
            if !is_fine {
                let revision = commit.revision;
                self.findings.add(|| {
                    format!("disruption budget {name}: {n} were made to leave, {allowed} might (revision {revision})")
                });
            }
        }
    }
}

/// Running units that a commit makes leave and budgets may count: unit, ordinal, and since when each ran.
fn victims(world: &World, commit: &Commit, turns: &[Turn<'_>]) -> Vec<(UnitId, u32, Revision)> {
    let is_held_back = |turn: &&Turn<'_>| match turn.change {
        RowChange::Evict(evict) => match evict.reason {
            EvictionReason::Preempted => true,
            EvictionReason::Drained => {
                let spec = world.nodes.get(&turn.before.node).and_then(|node| node.spec.as_ref());
                let drain = spec.and_then(|spec| spec.value.drain.as_ref());
                drain.is_some_and(|drain| !drain.is_overdue(commit.time_ms.saturating_add(SKEW_MS)))
            }
            _ => false,
        },
        _ => false,
    };
    let counts = |turn: &&Turn<'_>| {
        let unit = world.units.get(&turn.unit);
        runs(&turn.before) && !runs(&turn.after) && unit.is_some_and(|unit| wants(unit, turn.ordinal))
    };
    let victims = turns.iter().filter(is_held_back).filter(counts);
    victims.map(|turn| (turn.unit, turn.ordinal, turn.before.revision)).collect()
}

fn runs(row: &WorldRow) -> bool {
    row.phase == Phase::Running && row.eviction.is_none()
}

fn wants(unit: &WorldUnit, ordinal: u32) -> bool {
    let spec = unit.spec.as_ref().map(|spec| &spec.value);
    spec.is_some_and(|spec| spec.is_wanted() && spec.group_of(ordinal).is_some())
}

/// What a unit wants and has not done with, and what of it runs.
fn counts(unit: &WorldUnit) -> Counts {
    let Some(spec) = unit.spec.as_ref().map(|spec| &spec.value).filter(|spec| spec.is_wanted()) else {
        return Counts::default();
    };
    let mut counts = Counts(i64::from(spec.replicas()), 0);
    for (_, row) in unit.rows.iter().filter(|(ordinal, _)| spec.group_of(**ordinal).is_some()) {
        let by_itself = matches!(row.phase, Phase::Succeeded | Phase::Failed) && row.eviction.is_none();
        let for_good = row.phase.is_ended() && spec.on_eviction == OnEviction::Fail;
        counts.0 -= i64::from(by_itself || for_good);
        counts.1 += i64::from(runs(row));
    }
    counts
}

fn selecting(world: &World, unit: &WorldUnit) -> BTreeSet<String> {
    let Some(spec) = unit.spec.as_ref().map(|spec| &spec.value) else { return BTreeSet::new() };
    let selects = |budget: &BudgetSpec| {
        let by_name = budget.unit == spec.name;
        let by_label = || budget.selector.iter().all(|(key, value)| spec.labels.get(key) == Some(value));
        budget.namespace == spec.namespace && if budget.unit.is_empty() { by_label() } else { by_name }
    };
    let selected = world.budgets.values().filter(|budget| selects(&budget.value));
    selected.map(|budget| budget.value.name.clone()).collect()
}

/// How many a budget wants left.
fn least(budget: &BudgetSpec, expected: i64) -> i64 {
    match budget.limit {
        Limit::MaxUnavailable(Amount::Count(n)) => expected - i64::from(n),
        Limit::MaxUnavailable(Amount::Percent(percent)) => expected - expected * i64::from(percent) / 100,
        Limit::MinAvailable(Amount::Count(n)) => i64::from(n),
        Limit::MinAvailable(Amount::Percent(percent)) => (expected * i64::from(percent) + 99) / 100,
    }
}
