//! I6 for disruption budgets: preemptions and drains took no more than each allowed, counted anew at every commit.
//!
//! The binder judges what it has read and what it has under way; a hold says up to which revision that was, a drain's
//! eviction does not: some revision of the last ones must do. What was written between that and the commit is taken away
//! again, but for what the binder itself had leave of those that counted then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_base::ids::{Revision, UnitId};
use godel_domain::{
    budget_spec::{Amount, BudgetSpec, Limit},
    change::Change,
    records::{Record, RecordKey},
    running_units::{EvictionReason, Phase, RunChange},
    unit::{OnEviction, UnitRecord},
};

use super::{
    history::LATE_MS,
    preemptions::RunTurn,
    verdict::Findings,
    world::{Commit, World, WorldRow, WorldUnit},
};

/// Commits that are looked back on: a binder is never so far behind.
const N_BACK_MAX: usize = 10_000;
/// Clocks of a binder and of state differ by less, milliseconds.
const SKEW_MS: i64 = 10_000;

/// Expected, and available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BudgetCounts(i64, i64);

impl BudgetCounts {
    fn add(&mut self, other: Self, sign: i64) {
        self.0 += other.0 * sign;
        self.1 += other.1 * sign;
    }
}

/// A unit that some budget selects.
#[derive(Default)]
struct SelectedUnit {
    names: BTreeSet<String>,
    counts: BudgetCounts,
    /// Which ordinals it wanted, half-open ranges, from which revision on.
    wanted: Vec<(Revision, Vec<(u32, u32)>)>,
}

impl SelectedUnit {
    fn wanted_at(&self, ordinal: u32, at: Revision) -> bool {
        let then = self.wanted.iter().rfind(|(since, _)| *since <= at);
        then.is_some_and(|(_, ranges)| ranges.iter().any(|(start, end)| (*start..*end).contains(&ordinal)))
    }
}

/// A running unit that a commit makes leave and budgets may count.
#[derive(Clone, Copy)]
struct Victim {
    unit: UnitId,
    ordinal: u32,
    running_since: Revision,
}

/// By name of a budget.
type Victims = BTreeMap<String, Vec<Victim>>;

/// What a commit did.
struct CommitShifts {
    revision: Revision,
    shifts: BTreeMap<String, BudgetCounts>,
    victims: Victims,
}

/// What is counted from commit to commit.
#[derive(Default)]
pub(super) struct BudgetLedger {
    by_name: BTreeMap<String, BudgetCounts>,
    /// When the record of a budget changed last.
    since: BTreeMap<String, Revision>,
    units: BTreeMap<UnitId, SelectedUnit>,
    back: VecDeque<CommitShifts>,
    pub(super) findings: Findings,
    /// Evictions that some budget counted.
    pub(super) n_judged: usize,
    /// Judgements that may rest on what was read before the first commit that is judged.
    pub(super) n_before: usize,
    /// When that was made; `None` if nothing was there before it.
    began_ms: Option<i64>,
}

impl BudgetLedger {
    /// What is there where the judgement begins, with a commit made at `time_ms`.
    pub(super) fn begin(&mut self, world: &World, time_ms: i64) {
        self.began_ms = (world.revision > Revision(0)).then_some(time_ms);
        if !world.budgets.is_empty() {
            world.units.keys().for_each(|unit| drop(self.recount(world, *unit, world.revision)));
        }
    }

    /// A unit's record and rows are about to go.
    pub(super) fn forget(&mut self, unit: UnitId) {
        let Some(SelectedUnit { names, counts, .. }) = self.units.remove(&unit) else { return };
        for name in names {
            self.by_name.entry(name.clone()).or_default().add(counts, -1);
            if let Some(step) = self.back.back_mut() {
                step.shifts.entry(name).or_default().add(counts, -1);
            }
        }
    }

    /// A commit that `world` has applied.
    pub(super) fn on_commit(&mut self, world: &World, commit: &Commit, turns: &[RunTurn<'_>]) {
        let mut touched: BTreeSet<UnitId> = BTreeSet::new();
        for change in &commit.changes {
            match change {
                Change::Put(Record::Budget(spec)) => {
                    self.since.insert(spec.name.clone(), commit.revision);
                    touched.extend(world.units.keys());
                }
                Change::Gone(RecordKey::Budget(name)) => {
                    self.by_name.remove(name);
                    self.units.values_mut().for_each(|selected| {
                        selected.names.remove(name);
                    });
                }
                Change::Put(record) => touched.extend(record.unit()),
                _ => {}
            }
        }
        if world.budgets.is_empty() {
            (self.by_name, self.units, self.back) = Default::default();
            return;
        }
        touched.extend(turns.iter().map(|turn| turn.unit));
        let mut by_name = Victims::new();
        for victim in victims(world, commit, turns) {
            for name in self.units.get(&victim.unit).into_iter().flat_map(|selected| &selected.names) {
                by_name.entry(name.clone()).or_default().push(victim);
            }
        }
        self.judge(world, commit, &by_name);
        let mut shifts: BTreeMap<String, BudgetCounts> = BTreeMap::new();
        for unit in touched {
            for (name, sign, counts) in self.recount(world, unit, commit.revision) {
                shifts.entry(name).or_default().add(counts, sign);
            }
        }
        self.back.push_back(CommitShifts { revision: commit.revision, shifts, victims: by_name });
        if self.back.len() > N_BACK_MAX {
            self.back.pop_front();
        }
    }

    /// Counts a unit anew; how the budgets that select it, or did, changed by it.
    fn recount(&mut self, world: &World, unit: UnitId, at: Revision) -> Vec<(String, i64, BudgetCounts)> {
        let Some(known) = world.units.get(&unit) else { return Vec::new() };
        let names = selecting(world, known);
        let after = counts(known);
        let mut selected = self.units.remove(&unit).unwrap_or_default();
        let old = selected.names.iter().map(|name| (name.clone(), -1, selected.counts));
        let shifts: Vec<_> = old.chain(names.iter().map(|name| (name.clone(), 1, after))).collect();
        for (name, sign, counts) in &shifts {
            self.by_name.entry(name.clone()).or_default().add(*counts, *sign);
        }
        if !names.is_empty() {
            let ranges = wanted(known);
            if selected.wanted.last().is_none_or(|(_, before)| *before != ranges) {
                let since = known.record.as_ref().map_or(at, |spec| spec.revision);
                selected.wanted.push((since, ranges));
            }
            self.units.insert(unit, SelectedUnit { names, counts: after, wanted: selected.wanted });
        }
        shifts
    }

    fn judge(&mut self, world: &World, commit: &Commit, by_name: &Victims) {
        let judged = commit.changes.iter().filter_map(|change| match change {
            // A slot that somebody enters is no judgement of now.
            Change::Put(Record::Hold(hold)) if hold.slot.is_none() => Some(hold.judged),
            _ => None,
        });
        let judged = judged.max();
        let may_be_older =
            self.began_ms.is_some_and(|began_ms| commit.time_ms.saturating_sub(began_ms) <= LATE_MS);
        for (name, victims) in by_name {
            self.n_judged += victims.len();
            let Some(record) = world.budgets.get(name) else { continue };
            let mut then = self.by_name.get(name).copied().unwrap_or_default();
            let mut at = Revision(commit.revision.0.saturating_sub(1));
            let mut under_way: Vec<Victim> = Vec::new();
            let mut back = self.back.iter().rev();
            // As far as the binder may have read at the most.
            let mut latest = None;
            let is_fine = loop {
                if judged.is_none_or(|judged| at <= judged) {
                    let n = self.n_counted(victims, at);
                    let available = then.1 - self.n_counted(&under_way, at);
                    let allowed = (available - least(&record.value, then.0)).max(0);
                    let was_other = self.since.get(name).is_some_and(|since| *since > at);
                    if n <= allowed || was_other {
                        break true;
                    }
                    latest.get_or_insert((n, allowed));
                    if judged.is_some() {
                        break false;
                    }
                }
                // Of a revision older than what is kept nothing is said.
                let Some(step) = back.next() else {
                    self.n_before += usize::from(may_be_older);
                    break judged.is_some() || may_be_older;
                };
                then.add(step.shifts.get(name).copied().unwrap_or_default(), -1);
                under_way.extend(step.victims.get(name).into_iter().flatten());
                at = Revision(step.revision.0.saturating_sub(1));
            };
            if let Some((n, allowed)) = latest.filter(|_| !is_fine) {
                let revision = commit.revision;
                self.findings.add(|| {
                    format!("disruption budget {name}: {n} were made to leave, {allowed} might (revision {revision})")
                });
            }
        }
    }

    /// Who of those that have left since ran at a revision, and was wanted.
    fn n_counted(&self, victims: &[Victim], at: Revision) -> i64 {
        let counts = |victim: &&Victim| {
            let unit = self.units.get(&victim.unit);
            victim.running_since <= at && unit.is_none_or(|unit| unit.wanted_at(victim.ordinal, at))
        };
        i64::try_from(victims.iter().filter(counts).count()).unwrap_or(i64::MAX)
    }
}

fn victims(world: &World, commit: &Commit, turns: &[RunTurn<'_>]) -> Vec<Victim> {
    let is_held_back = |turn: &&RunTurn<'_>| match turn.change {
        RunChange::Evict(evict) => match evict.reason {
            EvictionReason::Preempted | EvictionReason::Rescheduled => true,
            EvictionReason::Drained => {
                let spec = world.nodes.get(&turn.before.node).and_then(|node| node.spec.as_ref());
                let drain = spec.and_then(|spec| spec.value.drain.as_ref());
                drain.is_some_and(|drain| !drain.is_overdue(commit.time_ms.saturating_add(SKEW_MS)))
            }
            _ => false,
        },
        _ => false,
    };
    let counts = |turn: &&RunTurn<'_>| {
        let unit = world.units.get(&turn.unit);
        runs(&turn.before) && !runs(&turn.after) && unit.is_some_and(|unit| wants(unit, turn.ordinal))
    };
    let victims = turns.iter().filter(is_held_back).filter(counts);
    let victim = |turn: &RunTurn<'_>| Victim {
        unit: turn.unit,
        ordinal: turn.ordinal,
        running_since: turn.before.revision,
    };
    victims.map(victim).collect()
}

fn runs(row: &WorldRow) -> bool {
    row.phase == Phase::Running && row.eviction.is_none()
}

fn wants(unit: &WorldUnit, ordinal: u32) -> bool {
    let record = unit.record.as_ref().map(|record| &record.value);
    record.is_some_and(|record| record.is_wanted() && counts_for(record, ordinal))
}

/// Whether a unit wants a replica, and not only in the place of one that is still there.
fn counts_for(record: &UnitRecord, ordinal: u32) -> bool {
    let replaces = record.status.surges.iter().any(|surge| surge.ordinal == ordinal);
    record.group_of(ordinal).is_some() && !replaces
}

/// Ordinals that count of what a unit wants.
fn wanted(unit: &WorldUnit) -> Vec<(u32, u32)> {
    let record = unit.record.as_ref().map(|record| &record.value).filter(|record| record.is_wanted());
    let Some(record) = record else { return Vec::new() };
    if record.status.surges.is_empty() {
        return record.ranges().collect();
    }
    let counted = record.iter_ordinals().filter(|ordinal| counts_for(record, *ordinal));
    counted.map(|ordinal| (ordinal, ordinal + 1)).collect()
}

/// What a unit wants and has not done with, and what of it runs.
fn counts(unit: &WorldUnit) -> BudgetCounts {
    let Some(record) = unit.record.as_ref().map(|record| &record.value).filter(|record| record.is_wanted())
    else {
        return BudgetCounts::default();
    };
    let n_surges = i64::try_from(record.status.surges.len()).unwrap_or(i64::MAX);
    let mut counts = BudgetCounts(i64::from(record.spec.replicas()) - n_surges, 0);
    for (_, row) in unit.rows.iter().filter(|(ordinal, _)| counts_for(record, **ordinal)) {
        let by_itself = matches!(row.phase, Phase::Succeeded | Phase::Failed) && row.eviction.is_none();
        let for_good = row.phase.is_ended() && record.spec.on_eviction == OnEviction::Fail;
        counts.0 -= i64::from(by_itself || for_good);
        counts.1 += i64::from(runs(row));
    }
    counts
}

fn selecting(world: &World, unit: &WorldUnit) -> BTreeSet<String> {
    let Some(record) = unit.record.as_ref().map(|record| &record.value) else { return BTreeSet::new() };
    let selects = |budget: &BudgetSpec| {
        let by_name = budget.unit == record.spec.name;
        let by_label =
            || budget.selector.iter().all(|(key, value)| record.spec.labels.get(key) == Some(value));
        budget.namespace == record.spec.namespace && if budget.unit.is_empty() { by_label() } else { by_name }
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
