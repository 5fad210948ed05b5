//! The tree of queues together with what each of them uses: what the binder enforces, and the dispatcher estimates.

use std::{collections::BTreeSet, sync::Arc};

use godel_domain::{
    queue_spec::QueueSpec,
    record_change::{Ground, RecordChange, Users, Violation},
};

use super::{
    check::{self, QueueChange},
    select::PendingReason,
    tree::{QueueIdx, QueueTree},
    usage::{PayerIdx, QueueMaximum, Usage},
};

/// Queues and their usage.
#[derive(Clone, Debug)]
pub struct Quota {
    tree: QueueTree,
    usage: Usage,
}

impl Default for Quota {
    fn default() -> Self {
        let (tree, mut usage) = (QueueTree::default(), Usage::default());
        usage.sums_mut().grow(&tree);
        Self { tree, usage }
    }
}

impl Quota {
    /// The queues.
    pub fn tree(&self) -> &QueueTree {
        &self.tree
    }

    /// What they use.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// For counting.
    pub fn usage_mut(&mut self) -> &mut Usage {
        &mut self.usage
    }

    /// The index of a path, given now if it is new.
    pub fn queue(&mut self, path: &str) -> QueueIdx {
        let queue = self.tree.intern(path);
        self.usage.sums_mut().grow(&self.tree);
        queue
    }

    /// Whether a queue, or one above it, limits what one owner takes.
    pub(super) fn limits_owners(&self, queue: QueueIdx) -> bool {
        let mut records = self.tree.upwards(queue).filter_map(|level| self.tree.record(level));
        records.any(|record| !record.max_per_owner.is_empty())
    }

    /// Who pays for the running units of one more unit: its owner in its queue. Kept until [`Self::leave`].
    pub fn enter(&mut self, queue: QueueIdx, owner: &str) -> PayerIdx {
        self.usage.owners_mut().enter(queue, owner, self.tree.upwards(queue))
    }

    /// Ends one use of a payer.
    pub fn leave(&mut self, payer: PayerIdx) {
        self.usage.owners_mut().leave(payer);
    }

    /// A record as committed. Returns its queue and whichever above it guarantee something else now.
    pub fn put(&mut self, record: Arc<QueueSpec>) -> Vec<QueueIdx> {
        let changed = self.tree.put(record);
        self.update_usage(changed)
    }

    /// A record is gone. Returns what [`Self::put`] does.
    pub fn remove(&mut self, path: &str) -> Vec<QueueIdx> {
        let changed = self.tree.remove(path);
        self.update_usage(changed)
    }

    /// Forgets records and usage, before a new list; indices and what is held stay.
    pub fn reset(&mut self) {
        let paths: Vec<String> = self.tree.iter().map(|queue| self.tree.path(queue).to_owned()).collect();
        for path in paths {
            self.remove(&path);
        }
        self.usage.clear();
    }

    /// Checks changes of queues, made together; see [`check::queues`].
    ///
    /// # Errors
    /// Everything wrong.
    pub fn check(
        &self,
        changes: &[QueueChange],
        users: &dyn Fn(&str) -> Users,
    ) -> Result<(), Vec<Violation>> {
        let mut violations = check::queues(&self.tree, changes, users).err().unwrap_or_default();
        let mut new = BTreeSet::new();
        for (idx, change) in changes.iter().enumerate() {
            let (RecordChange::Create(spec) | RecordChange::Update(spec) | RecordChange::Put(spec)) = change
            else {
                continue;
            };
            for (field, amounts) in
                [("min", &spec.min), ("max", &spec.max), ("max_per_owner", &spec.max_per_owner)]
            {
                for name in amounts.keys() {
                    if !self.usage.columns().has_place_for(name, &mut new) {
                        violations.push(Violation {
                            change: idx,
                            ground: Ground::State,
                            field: format!("{field}[{name:?}]"),
                            description: "too many resources are known already".to_owned(),
                        });
                    }
                }
            }
        }
        if violations.is_empty() { Ok(()) } else { Err(violations) }
    }

    /// A maximum in words: the queue, and of what.
    pub fn limit(&self, limit: QueueMaximum) -> (&str, &str) {
        (self.tree.path(limit.queue), self.usage.columns().name(limit.resource))
    }

    /// Why what does not fit under a maximum waits.
    pub fn full(&self, limit: QueueMaximum) -> PendingReason {
        let (resource, is_of_masters) = self.usage.columns().resource_of(limit);
        let (queue, resource) = (self.tree.path(limit.queue).to_owned(), resource.to_owned());
        let (used, max) = (self.usage.taken_of(limit), self.usage.max_of(limit));
        match self.usage.owners().owner_of(limit) {
            Some(owner) => PendingReason::OwnerFull { queue, owner: owner.to_owned(), resource, used, max },
            None if is_of_masters => PendingReason::MastersFull { queue, resource, used, max },
            None => PendingReason::Full { queue, resource },
        }
    }

    fn update_usage(&mut self, changed: Vec<QueueIdx>) -> Vec<QueueIdx> {
        for &queue in &changed {
            self.usage.update_queue(&self.tree, queue);
        }
        changed
    }
}
