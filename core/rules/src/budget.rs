//! Disruption budgets: how many running units of some units may be made to leave at a time for the sake of others.
//!
//! A budget names one unit, or selects units of a namespace by labels. Its use is a function of the records: of what the
//! selected units want and what has not ended by itself (*expected*), how much runs and is not told to leave
//! (*available*). What is available above the [`floor`](godel_domain::budget_spec::Limit::floor) may leave now. What does not run yet may
//! always.
//!
//! [`Budgets`] is one index for whoever asks: the binder and schedulers keep it beside their rows, the dispatcher beside
//! its units. It knows no unit that nothing selects, so a new budget has to be offered all of them. Evictions that are
//! decided and not read yet count as if they were.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{IdMap, Revision, UnitId};
use godel_domain::{
    running_units::{Phase, RunningUnit, RunningUnits},
    surge,
    unit::{OnEviction, UnitRecord, UnitSpec},
};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

pub mod check;
#[cfg(test)]
mod tests;

use godel_domain::budget_spec::BudgetSpec;

/// Between the parts of an [`UnitIdentity`]: neither names nor labels have it.
const END: char = '\u{1f}';

/// A budget of [`Budgets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetIdx(u32);

/// What budgets know a unit by: namespace, name and labels, as one string, since there may be a million.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitIdentity(Arc<str>);

impl UnitIdentity {
    /// Of a unit.
    pub fn of(spec: &UnitSpec) -> Self {
        let labels = spec.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Self::new(&spec.namespace, &spec.name, labels)
    }

    /// Returns the identity of a unit of this namespace, name and labels.
    pub fn new<'a>(
        namespace: &str,
        name: &str,
        labels: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Self {
        let n_bytes: usize = labels.clone().map(|(key, value)| key.len() + value.len() + 2).sum();
        let mut text = String::with_capacity(namespace.len() + name.len() + 1 + n_bytes);
        text += namespace;
        text.push(END);
        text += name;
        for (key, value) in labels {
            text.push(END);
            text += key;
            text.push(END);
            text += value;
        }
        Self(text.into())
    }

    /// Keys of budgets that may select it: by its name, and by each label.
    fn keys(&self) -> impl Iterator<Item = String> {
        let mut parts = self.0.split(END);
        let (namespace, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let labels = std::iter::from_fn(move || Some((parts.next()?, parts.next()?)));
        let by_label = labels.map(move |(key, value)| label_key(namespace, key, value));
        std::iter::once(unit_key(namespace, name)).chain(by_label)
    }

    /// Whether it is in a namespace and has all of some labels.
    pub fn is_labelled(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| self.label(key) == Some(value.as_str());
        self.namespace() == namespace && labels.iter().all(has)
    }

    /// Returns its namespace.
    pub fn namespace(&self) -> &str {
        self.0.split(END).next().unwrap_or_default()
    }

    /// Returns its labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut parts = self.0.split(END).skip(2);
        std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
    }

    /// Returns the value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().find(|(own, _)| *own == key).map(|(_, value)| value)
    }
}

fn unit_key(namespace: &str, name: &str) -> String {
    format!("{namespace}{END}{name}")
}

/// No unit has an empty name.
fn label_key(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}{END}{END}{key}{END}{value}")
}

/// Where units that a budget selects are to be found; the first label stands for all of them.
fn key_of(spec: &BudgetSpec) -> String {
    match spec.selector.first_key_value() {
        Some((key, value)) if spec.unit.is_empty() => label_key(&spec.namespace, key, value),
        _ => unit_key(&spec.namespace, &spec.unit),
    }
}

/// Running units that a unit wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedOrdinals {
    /// Half-open ranges; none while it wants nothing.
    ordinals: SmallVec<[(u32, u32); 1]>,
    /// What was made to leave does not come back.
    ends_evicted: bool,
}

impl WantedOrdinals {
    /// Returns what a unit wants.
    pub fn of(record: &UnitRecord) -> Self {
        // Who is to replace another one counts once it does: until then nothing is missing without it.
        let ranges = record.ranges().filter(|_| record.is_wanted());
        Self::new(surge::settled(ranges, &record.status.surges), record.spec.on_eviction)
    }

    /// Returns what a unit wants that has these ordinals.
    pub fn new(ranges: impl IntoIterator<Item = (u32, u32)>, on_eviction: OnEviction) -> Self {
        Self { ordinals: ranges.into_iter().collect(), ends_evicted: on_eviction == OnEviction::Fail }
    }

    fn has(&self, ordinal: u32) -> bool {
        self.ordinals.iter().any(|(start, end)| (*start..*end).contains(&ordinal))
    }

    /// It has ended, and is not expected again.
    fn is_over(&self, row: &RunningUnit) -> bool {
        let by_itself = matches!(row.phase, Phase::Succeeded | Phase::Failed) && row.eviction.is_none();
        by_itself || (self.ends_evicted && row.phase.is_ended())
    }
}

/// It runs and is not told to leave.
fn is_available(row: &RunningUnit) -> bool {
    row.phase == Phase::Running && row.eviction.is_none()
}

/// How much of a budget is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Running units that are to run: wanted, and not over by themselves.
    pub expected: u64,
    /// Of these, running and not told to leave.
    pub available: u64,
}

/// A budget as it stands.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Its record.
    pub spec: Arc<BudgetSpec>,
    /// Of its record.
    pub revision: Revision,
    /// Over all units that it selects.
    pub used: Use,
    /// Units that it selects.
    pub n_units: u64,
}

impl Budget {
    /// How many must be left.
    pub fn floor(&self) -> u64 {
        self.spec.limit.floor(self.used.expected)
    }

    /// How many may leave now.
    pub fn allowed(&self) -> u64 {
        self.used.available.saturating_sub(self.floor())
    }
}

/// A unit that some budget selects.
#[derive(Clone, Debug)]
struct Selected {
    budgets: SmallVec<[BudgetIdx; 1]>,
    wanted: WantedOrdinals,
    used: Use,
}

/// Running units to leave, by budget that counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent(SmallVec<[(BudgetIdx, u64); 2]>);

impl Spent {
    fn add(&mut self, budget: BudgetIdx) {
        match self.0.iter_mut().find(|(known, _)| *known == budget) {
            Some((_, n)) => *n += 1,
            None => self.0.push((budget, 1)),
        }
    }

    fn of(&self, budget: BudgetIdx) -> u64 {
        self.0.iter().find(|(known, _)| *known == budget).map_or(0, |(_, n)| *n)
    }

    /// Returns the budgets of which something is spent.
    pub fn budgets(&self) -> impl Iterator<Item = BudgetIdx> {
        self.0.iter().map(|(budget, _)| *budget)
    }
}

/// Budgets, and the units that they select.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    /// By index; one that is gone leaves its place to the next.
    all: Vec<Option<Budget>>,
    by_name: BTreeMap<String, BudgetIdx>,
    by_key: FxHashMap<String, SmallVec<[BudgetIdx; 1]>>,
    units: IdMap<UnitId, Selected>,
    /// Told to leave, and not read yet.
    leaving: FxHashSet<(UnitId, u32)>,
    /// Rises whenever somebody may leave who might not before.
    n_gains: u64,
}

impl Budgets {
    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// In order of name.
    pub fn iter(&self) -> impl Iterator<Item = &Budget> {
        self.by_name.values().filter_map(|budget| self.at(*budget))
    }

    /// One by name.
    pub fn get(&self, name: &str) -> Option<&Budget> {
        self.at(*self.by_name.get(name)?)
    }

    /// Returns a budget by its index.
    pub fn at(&self, budget: BudgetIdx) -> Option<&Budget> {
        self.all.get(budget.0 as usize)?.as_ref()
    }

    /// Rises whenever somebody may leave who might not before.
    pub fn n_gains(&self) -> u64 {
        self.n_gains
    }

    /// A list follows: what is under way stays.
    pub fn reset(self) -> Self {
        Self { leaving: self.leaving, n_gains: self.n_gains + 1, ..Self::default() }
    }

    /// A budget's record; older ones than the one known are ignored. True if all units have to be offered: it selects
    /// others than it did.
    pub fn put(&mut self, spec: Arc<BudgetSpec>, revision: Revision) -> bool {
        self.n_gains += 1;
        if let Some(idx) = self.by_name.get(&spec.name).copied()
            && let Some(known) = self.all[idx.0 as usize].as_mut()
        {
            if known.revision > revision {
                return false;
            }
            if known.spec.selects_as(&spec) {
                (known.spec, known.revision) = (spec, revision);
                return false;
            }
            self.remove(&spec.name);
        }
        let at = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        let idx = BudgetIdx(u32::try_from(at).unwrap_or(u32::MAX));
        if at == self.all.len() {
            self.all.push(None);
        }
        self.by_name.insert(spec.name.clone(), idx);
        self.by_key.entry(key_of(&spec)).or_default().push(idx);
        self.all[at] = Some(Budget { spec, revision, used: Use::default(), n_units: 0 });
        true
    }

    /// A budget's record is gone.
    pub fn remove(&mut self, name: &str) {
        let Some(idx) = self.by_name.remove(name) else { return };
        self.n_gains += 1;
        let Some(gone) = self.all[idx.0 as usize].take() else { return };
        let key = key_of(&gone.spec);
        if let Some(of_key) = self.by_key.get_mut(&key) {
            of_key.retain(|other| *other != idx);
            if of_key.is_empty() {
                self.by_key.remove(&key);
            }
        }
        self.units.retain(|_, selected| {
            selected.budgets.retain(|other| *other != idx);
            !selected.budgets.is_empty()
        });
    }

    /// A unit as it is now, with its rows: those that select it count it.
    pub fn offer(
        &mut self,
        unit: UnitId,
        identity: &UnitIdentity,
        wanted: impl FnOnce() -> WantedOrdinals,
        rows: Option<&RunningUnits>,
    ) {
        if self.is_empty() {
            return;
        }
        self.forget(unit);
        let budgets = self.selecting(identity);
        if budgets.is_empty() {
            return;
        }
        for idx in &budgets {
            if let Some(budget) = self.all[idx.0 as usize].as_mut() {
                budget.n_units += 1;
            }
        }
        self.units.insert(unit, Selected { budgets, wanted: wanted(), used: Use::default() });
        self.recount(unit, rows);
    }

    fn selecting(&self, identity: &UnitIdentity) -> SmallVec<[BudgetIdx; 1]> {
        let mut budgets = SmallVec::new();
        for key in identity.keys() {
            for idx in self.by_key.get(&key).into_iter().flatten() {
                let selector = self.at(*idx).map(|budget| &budget.spec.selector);
                let suits = selector
                    .into_iter()
                    .flatten()
                    .all(|(key, value)| identity.label(key) == Some(value.as_str()));
                if suits {
                    budgets.push(*idx);
                }
            }
        }
        budgets.sort_unstable();
        budgets
    }

    /// A unit is gone.
    pub fn forget(&mut self, unit: UnitId) {
        let Some(Selected { budgets, used, .. }) = self.units.remove(&unit) else { return };
        self.n_gains += 1;
        for idx in budgets {
            if let Some(budget) = self.all[idx.0 as usize].as_mut() {
                budget.n_units -= 1;
                budget.used.expected -= used.expected;
                budget.used.available -= used.available;
            }
        }
    }

    /// Some budget selects a unit.
    pub fn selects(&self, unit: UnitId) -> bool {
        !self.units.is_empty() && self.units.contains_key(&unit)
    }

    /// Rows of a unit changed. `O(its rows)` for one that is selected.
    pub fn recount(&mut self, unit: UnitId, rows: Option<&RunningUnits>) {
        let Some(selected) = self.units.get_mut(&unit) else { return };
        let (wanted, mut used) = (&selected.wanted, Use::default());
        for &(start, end) in &wanted.ordinals {
            used.expected += u64::from(end.saturating_sub(start));
            let known = rows.into_iter().flat_map(|rows| rows.rows.from(start));
            for (ordinal, row) in known.take_while(|(ordinal, _)| *ordinal < end) {
                used.expected -= u64::from(wanted.is_over(row));
                let is_told = !self.leaving.is_empty() && self.leaving.contains(&(unit, ordinal));
                used.available += u64::from(is_available(row) && !is_told);
            }
        }
        let before = std::mem::replace(&mut selected.used, used);
        if before == used {
            return;
        }
        self.n_gains += u64::from(used.available > before.available || used.expected < before.expected);
        for idx in &selected.budgets {
            if let Some(budget) = self.all[idx.0 as usize].as_mut() {
                budget.used.expected = budget.used.expected + used.expected - before.expected;
                budget.used.available = budget.used.available + used.available - before.available;
            }
        }
    }

    /// Running units of one unit are told to leave, which the rows do not show yet.
    pub fn depart(&mut self, unit: UnitId, members: &[(UnitId, u32)], rows: Option<&RunningUnits>) {
        self.leaving.extend(members);
        self.recount(unit, rows);
    }

    /// The rows show it, or they stay.
    pub fn arrive(&mut self, unit: UnitId, members: &[(UnitId, u32)], rows: Option<&RunningUnits>) {
        for member in members {
            self.leaving.remove(member);
        }
        self.recount(unit, rows);
    }

    /// Budgets that count a running unit now: it runs, is wanted, and is not told to leave.
    pub fn counting(&self, unit: UnitId, ordinal: u32, row: &RunningUnit) -> &[BudgetIdx] {
        if self.is_empty() {
            return &[];
        }
        let selected = self.units.get(&unit).filter(|selected| {
            is_available(row) && selected.wanted.has(ordinal) && !self.leaving.contains(&(unit, ordinal))
        });
        selected.map_or(&[], |selected| &selected.budgets)
    }

    /// Counts one more that is to leave.
    pub fn spend(&self, unit: UnitId, ordinal: u32, row: &RunningUnit, spent: &mut Spent) {
        self.counting(unit, ordinal, row).iter().for_each(|budget| spent.add(*budget));
    }

    /// The first budget that allows fewer.
    pub fn exceeded(&self, spent: &Spent) -> Option<BudgetIdx> {
        let is_short = |(idx, n): &&(BudgetIdx, u64)| self.at(*idx).is_some_and(|one| one.allowed() < *n);
        spent.0.iter().filter(is_short).map(|(idx, _)| *idx).min()
    }

    /// The first budget that does not allow one more beside those that are to leave.
    pub fn forbids(&self, unit: UnitId, ordinal: u32, row: &RunningUnit, spent: &Spent) -> Option<BudgetIdx> {
        let counting = self.counting(unit, ordinal, row).iter().copied();
        let is_used_up = |idx: &BudgetIdx| self.at(*idx).is_some_and(|one| one.allowed() <= spent.of(*idx));
        counting.filter(is_used_up).min()
    }
}
