//! Whether queues and priority classes may be changed as asked: pure, all that is wrong at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use godel_base::{quantity, resources::N_NAMES_MAX};
use godel_domain::{
    names::{self, BadName, ENTRIES_MAX},
    record_change::{
        DESCRIPTION_LEN_MAX, Ground, N_USERS_NAMED, RecordChange, Report, Users, Violation, existence, list,
    },
};
use godel_domain::{
    priority_classes::PriorityClasses,
    queue_spec::{DEFAULT_QUEUE, PRIORITY_MAX, PriorityClass, QueueSpec, WEIGHT_MAX, parent},
};

use super::tree::{NamedAmounts, QueueTree, guaranteed, shift};

/// Most queues with a record.
pub const N_QUEUES_MAX: usize = 65_536;
/// Most owners in one list, and most with a weight.
pub const N_OWNERS_MAX: usize = 1_000;
/// Largest amount of a guarantee or a maximum: 2^60, so that the sum of two never overflows.
pub const AMOUNT_MAX: i64 = 1 << 60;
/// A change of a queue.
pub type QueueChange = RecordChange<Arc<QueueSpec>>;
/// A change of a priority class.
pub type ClassChange = RecordChange<PriorityClass>;

/// Checks changes of queues, made together. `users` says which units, not ended and expired, name a queue.
///
/// Costs follow what changes and what is above it; of siblings only sums are looked at.
///
/// # Errors
/// Everything wrong, in order of the changes.
pub fn queues(
    tree: &QueueTree,
    changes: &[QueueChange],
    users: &dyn Fn(&str) -> Users,
) -> Result<(), Vec<Violation>> {
    let after = After::new(tree, changes);
    let mut report = Report::default();
    let mut seen = BTreeSet::new();
    for (idx, change) in changes.iter().enumerate() {
        report.change = idx;
        let path = path_of(change);
        if !seen.insert(path) {
            report.add(Ground::Invalid, "meta.name", format!("`{path}` stands twice"));
        }
        match change.put() {
            Some(spec) => {
                fields(spec, &mut report);
                existence(change, known(tree, path), "queue", path, "meta.name", &mut report);
                after.place(spec, users, &mut report);
                after.guarantees(spec, &mut report);
            }
            None => after.deletion(path, users, &mut report),
        }
    }
    if after.n_records > N_QUEUES_MAX {
        report.add(Ground::State, "meta.name", format!("there are {N_QUEUES_MAX} queues; no more are kept"));
    }
    report.finish()
}

/// Checks changes of priority classes, made together. `users` says which units, not ended and expired, name one.
///
/// # Errors
/// Everything wrong, in order of the changes.
pub fn classes(
    classes: &PriorityClasses,
    changes: &[ClassChange],
    users: &dyn Fn(&str) -> Users,
) -> Result<(), Vec<Violation>> {
    let mut report = Report::default();
    let mut seen = BTreeSet::new();
    for (idx, change) in changes.iter().enumerate() {
        report.change = idx;
        let name = match change {
            RecordChange::Delete(name) => name,
            RecordChange::Create(class) | RecordChange::Update(class) | RecordChange::Put(class) => {
                class_fields(class, &mut report);
                &class.name
            }
        };
        if !seen.insert(name) {
            report.add(Ground::Invalid, "name", format!("`{name}` stands twice"));
        }
        existence(change, classes.get(name).is_some(), "priority class", name, "name", &mut report);
        if PriorityClasses::is_built_in(name) && !matches!(change, RecordChange::Create(_)) {
            report.add(Ground::State, "name", format!("priority class `{name}` is built in"));
        } else if matches!(change, RecordChange::Delete(_)) {
            let users = users(name);
            if users.n > 0 {
                report.add(Ground::State, "name", format!("named by units: {}", users.named()));
            }
        }
    }
    report.finish()
}

fn path_of(change: &QueueChange) -> &str {
    match change {
        RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec) => &spec.name,
        RecordChange::Delete(path) => path,
    }
}

fn known(tree: &QueueTree, path: &str) -> bool {
    tree.find(path).is_some_and(|queue| tree.record(queue).is_some())
}

/// What a queue says of itself alone.
fn fields(spec: &QueueSpec, report: &mut Report) {
    report.named("meta.name", names::queue(&spec.name));
    report.named("meta.owner", names::text(&spec.owner, names::NAME_LEN_MAX));
    if spec.labels.len() > ENTRIES_MAX {
        let n = spec.labels.len();
        report.add(Ground::Invalid, "meta.labels", format!("{n} entries; at most {ENTRIES_MAX}"));
    }
    for (key, value) in &spec.labels {
        for checked in [names::label_key(key), names::text(value, names::NAME_LEN_MAX)] {
            report.named(&format!("meta.labels[{key:?}]"), checked);
        }
    }
    for (field, amounts) in [("min", &spec.min), ("max", &spec.max), ("max_per_owner", &spec.max_per_owner)] {
        if amounts.len() > N_NAMES_MAX {
            let n = amounts.len();
            report.add(Ground::Invalid, field, format!("{n} entries; at most {N_NAMES_MAX}"));
        }
        for (name, amount) in amounts {
            report.named(&format!("{field}[{name:?}]"), names::asked(name));
            if !(0..=AMOUNT_MAX).contains(amount) {
                let shown = |amount| quantity::show_queued(name, amount);
                let description = format!("{} is not in 0 to {}", shown(*amount), shown(AMOUNT_MAX));
                report.add(Ground::Invalid, &format!("{field}[{name:?}]"), description);
            }
        }
    }
    for (name, amount) in &spec.min {
        if let Some(max) = spec.max.get(name).filter(|max| *max < amount) {
            let shown = |amount| quantity::show_queued(name, amount);
            let description = format!("{} is above the maximum {}", shown(*amount), shown(*max));
            report.add(Ground::Invalid, &format!("min[{name:?}]"), description);
        }
    }
    if spec.am_share_milli > 1_000 {
        let description = format!("{} is not in 1 to 1000", spec.am_share_milli);
        report.add(Ground::Invalid, "am_share_milli", description);
    }
    if spec.am_share_milli > 0 && spec.max.is_empty() {
        let description = "application masters get a share of what `max` allows: name that, too";
        report.add(Ground::Invalid, "am_share_milli", description.to_owned());
    }
    if !(1..=WEIGHT_MAX).contains(&spec.weight) {
        let description = format!("{} is not in 1..={WEIGHT_MAX}", spec.weight);
        report.add(Ground::Invalid, "weight", description);
    }
    if spec.submit_owners.len() > N_OWNERS_MAX {
        let n = spec.submit_owners.len();
        report.add(Ground::Invalid, "submit_owners", format!("{n} owners; at most {N_OWNERS_MAX}"));
    }
    for (idx, owner) in spec.submit_owners.iter().enumerate().take(N_OWNERS_MAX) {
        let checked =
            if owner.is_empty() { Err(BadName::Empty) } else { names::text(owner, names::NAME_LEN_MAX) };
        report.named(&format!("submit_owners[{idx}]"), checked);
    }
    owner_weights(spec, report);
}

fn owner_weights(spec: &QueueSpec, report: &mut Report) {
    if spec.owner_weights.len() > N_OWNERS_MAX {
        let n = spec.owner_weights.len();
        report.add(Ground::Invalid, "owner_weights", format!("{n} owners; at most {N_OWNERS_MAX}"));
    }
    for (owner, weight) in spec.owner_weights.iter().take(N_OWNERS_MAX) {
        let field = format!("owner_weights[{owner:?}]");
        report.named(&field, names::text(owner, names::NAME_LEN_MAX));
        if !(1..=WEIGHT_MAX).contains(weight) {
            report.add(Ground::Invalid, &field, format!("{weight} is not in 1..={WEIGHT_MAX}"));
        }
    }
}

fn class_fields(class: &PriorityClass, report: &mut Report) {
    report.named("name", names::label(&class.name));
    if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&class.value) {
        let description = format!("{} is not in {}..={PRIORITY_MAX}", class.value, -PRIORITY_MAX);
        report.add(Ground::Invalid, "value", description);
    }
    report.named("description", names::text(&class.description, DESCRIPTION_LEN_MAX));
}

/// The tree as it would be, as far as it differs.
struct After<'a> {
    tree: &'a QueueTree,
    /// What paths would have for a record.
    records: BTreeMap<&'a str, Option<&'a QueueSpec>>,
    /// What the children of the paths above them would guarantee together.
    below: BTreeMap<&'a str, NamedAmounts>,
    n_records: usize,
}

impl<'a> After<'a> {
    fn new(tree: &'a QueueTree, changes: &'a [QueueChange]) -> Self {
        let mut records = BTreeMap::new();
        for change in changes {
            records.insert(path_of(change), change.put().map(AsRef::as_ref));
        }
        let n_new = records.iter().filter(|(path, spec)| spec.is_some() && !known(tree, path)).count();
        let mut after = Self { tree, records, below: BTreeMap::new(), n_records: tree.n_records() + n_new };
        // The deepest first: a change shows in the sums of those above it.
        let mut touched: Vec<&str> = after.records.keys().flat_map(|path| upwards(path)).collect();
        touched.sort_unstable_by_key(|path| (std::cmp::Reverse(path.matches('.').count()), *path));
        touched.dedup();
        for path in touched {
            let Some(above) = parent(path) else { continue };
            let new = guaranteed(after.record(path).map(|spec| &spec.min), &after.below(path));
            let mut sums = after.below.remove(above).unwrap_or_else(|| after.below_now(above));
            if let Some(queue) = tree.find(path) {
                shift(&mut sums, tree.guaranteed(queue), -1);
            }
            shift(&mut sums, &new, 1);
            after.below.insert(above, sums);
        }
        after
    }

    fn record(&self, path: &str) -> Option<&QueueSpec> {
        match self.records.get(path) {
            Some(changed) => *changed,
            None => self.tree.record(self.tree.find(path)?).map(AsRef::as_ref),
        }
    }

    fn below_now(&self, path: &str) -> NamedAmounts {
        self.tree.find(path).map(|queue| self.tree.guaranteed_below(queue).clone()).unwrap_or_default()
    }

    fn below(&self, path: &str) -> NamedAmounts {
        self.below.get(path).cloned().unwrap_or_else(|| self.below_now(path))
    }

    /// Below what, and beside whose units.
    fn place(&self, spec: &QueueSpec, users: &dyn Fn(&str) -> Users, report: &mut Report) {
        let Some(above) = parent(&spec.name) else { return };
        if above == DEFAULT_QUEUE {
            let description =
                format!("`{DEFAULT_QUEUE}` takes units that name no queue: nothing can be below it");
            report.add(Ground::Invalid, "meta.name", description);
        } else if self.record(above).is_none() {
            let description = format!("there is no queue `{above}` for it to be below");
            report.add(Ground::NotFound, "meta.name", description);
        } else if !known(self.tree, &spec.name) {
            let users = users(above);
            if users.n > 0 {
                let description = format!("queue `{above}` has units of its own: {}", users.named());
                report.add(Ground::State, "meta.name", description);
            }
        }
    }

    /// Sums of guarantees: of those below it, and its own with its siblings' in what is above.
    fn guarantees(&self, spec: &QueueSpec, report: &mut Report) {
        let below = self.below(&spec.name);
        for (name, sum) in &below {
            if let Some(own) = spec.min.get(name).filter(|own| *own < sum) {
                let (own, sum) = (quantity::show_queued(name, *own), quantity::show_queued(name, *sum));
                let description =
                    format!("{own} is less than the {sum} that the queues below it have together");
                report.add(Ground::Invalid, &format!("min[{name:?}]"), description);
            }
            if let Some(max) = spec.max.get(name).filter(|max| *max < sum) {
                let (max, sum) = (quantity::show_queued(name, *max), quantity::show_queued(name, *sum));
                let description = format!("{max} is less than the {sum} guaranteed to the queues below it");
                report.add(Ground::Invalid, &format!("max[{name:?}]"), description);
            }
        }
        for (name, own) in guaranteed(Some(&spec.min), &below) {
            self.bounds_above(&spec.name, &name, own, report);
        }
    }

    /// What the first level above that does not change itself says to a guarantee.
    fn bounds_above(&self, path: &str, name: &str, own: i64, report: &mut Report) {
        let field = format!("min[{name:?}]");
        for above in upwards(path).skip(1) {
            let Some(spec) = self.record(above) else { return };
            let sum = self.below(above).get(name).copied().unwrap_or(0);
            let risen = sum > self.below_now(above).get(name).copied().unwrap_or(0);
            // A changed level says so itself.
            if risen && !self.records.contains_key(above) {
                let shown = |amount| quantity::show_queued(name, amount);
                let (own, shown_sum) = (shown(own), shown(sum));
                if let Some(max) = spec.max.get(name).filter(|max| **max < sum) {
                    let description = format!(
                        "with {own} here {shown_sum} would be guaranteed below `{above}`, whose maximum is {}",
                        shown(*max)
                    );
                    report.add(Ground::Invalid, &field, description);
                }
                if let Some(min) = spec.min.get(name).filter(|min| **min < sum) {
                    let description = format!(
                        "with {own} here the queues below `{above}` would have {shown_sum}; it is guaranteed {}",
                        shown(*min)
                    );
                    report.add(Ground::Invalid, &field, description);
                }
            }
            if spec.min.contains_key(name) {
                return;
            }
        }
    }

    fn deletion(&self, path: &str, users: &dyn Fn(&str) -> Users, report: &mut Report) {
        let Some(queue) = self.tree.find(path).filter(|queue| self.tree.record(*queue).is_some()) else {
            report.add(Ground::NotFound, "name", format!("there is no queue `{path}`"));
            return;
        };
        let new = self.records.iter().filter(|(other, spec)| spec.is_some() && parent(other) == Some(path));
        let staying = self.tree.children(queue).into_iter().map(|child| self.tree.path(child));
        let staying = staying.filter(|child| !matches!(self.records.get(child), Some(None)));
        let below: BTreeSet<&str> = staying.chain(new.map(|(other, _)| *other)).collect();
        if !below.is_empty() {
            let first: Vec<String> =
                below.iter().take(N_USERS_NAMED).map(|child| (*child).to_owned()).collect();
            report.add(Ground::State, "name", format!("queues are below it: {}", list(&first, below.len())));
        }
        // Without its record `default` goes on without limits.
        let users = if path == DEFAULT_QUEUE { Users::default() } else { users(path) };
        if users.n > 0 {
            report.add(Ground::State, "name", format!("units name it: {}", users.named()));
        }
    }
}

/// The path and those above it.
fn upwards(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| parent(path))
}

#[cfg(test)]
mod tests;
