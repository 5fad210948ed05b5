//! What units lack that wait for the same room.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use godel_domain::{unit::UnitRecord, unit_report::UnitReport};
use godel_queueing::QueueIdx;
use rustc_hash::FxHasher;
use smallvec::SmallVec;

use super::{Queueing, UnitEntry};

/// What a unit lacks: everything that the answer of all nodes depends on.
#[derive(Debug)]
pub(super) struct RoomKey {
    pub(super) like: Arc<UnitRecord>,
    /// Running units that must be placed together; 0 when any one would do.
    pub(super) together: u32,
    /// Task groups of `like`, with the running units pending of each; 0 where any one would do.
    groups: SmallVec<[(usize, u32); 1]>,
    /// Where those of one queue may have to leave for those of another.
    queue: Option<QueueIdx>,
    /// Slots of reservations go by labels, and so do units that keep others away.
    by_labels: bool,
}

impl RoomKey {
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = FxHasher::default();
        (self.together, self.queue, self.like.spec.pool, self.like.spec.active_deadline_ms).hash(&mut hasher);
        for (group, n) in &self.groups {
            let template = &self.like.spec.task_groups[*group].template;
            (n, &template.demand, &template.node_selector, &template.tolerations).hash(&mut hasher);
            (&template.node_affinity.required, template.max_load).hash(&mut hasher);
            template.run.runtime_need().hash(&mut hasher);
        }
        if self.like.spec.goes_by_unit() {
            self.like.id.hash(&mut hasher);
        }
        if self.by_labels {
            (&self.like.spec.namespace, &self.like.spec.labels).hash(&mut hasher);
        }
        hasher.finish()
    }
}

impl PartialEq for RoomKey {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.like, &other.like);
        let same_group = |(one, two): (&(usize, u32), &(usize, u32))| {
            let (x, y) = (&a.spec.task_groups[one.0].template, &b.spec.task_groups[two.0].template);
            one.1 == two.1
                && x.demand == y.demand
                && x.node_selector == y.node_selector
                && x.tolerations == y.tolerations
                && x.node_affinity.required == y.node_affinity.required
                && x.max_load == y.max_load
                && x.run.runtime_need() == y.run.runtime_need()
        };
        // One that has terms about running units, or is a daemon, lacks what no other does.
        let is_single = a.spec.goes_by_unit() || b.spec.goes_by_unit();
        (self.together, self.queue, self.by_labels) == (other.together, other.queue, other.by_labels)
            && (!is_single || a.id == b.id)
            && (a.spec.pool, a.spec.active_deadline_ms) == (b.spec.pool, b.spec.active_deadline_ms)
            && self.groups.len() == other.groups.len()
            && self.groups.iter().zip(&other.groups).all(same_group)
            && (!self.by_labels || (&a.spec.namespace, &a.spec.labels) == (&b.spec.namespace, &b.spec.labels))
    }
}

/// What a parked unit lacks, as its scheduler says. The scheduler has placed the rest, which the records may have yet to say: by
/// these, units that lack what this one has found would wait for the same room, which has no place to tell of.
pub(super) fn lack_of_parked(
    entry: &UnitEntry,
    report: &UnitReport,
    queueing: &Queueing,
    by_labels: bool,
) -> RoomKey {
    let mut lack = lack_of(entry, queueing, by_labels);
    let is_placed_in_part = report.unplaced.is_some_and(|unplaced| unplaced < entry.to_place());
    if is_placed_in_part && !report.lacking.is_empty() {
        let lacks = |group: usize| {
            u32::try_from(group).is_ok_and(|group| report.lacking.binary_search(&group).is_ok())
        };
        lack.groups.retain(|(group, _)| lacks(*group));
        // What had to be placed together is placed.
        lack.together = 0;
        lack.groups.iter_mut().for_each(|(_, n)| *n = 0);
    }
    lack
}

/// What a unit lacks if it finds no place.
pub(super) fn lack_of(entry: &UnitEntry, queueing: &Queueing, by_labels: bool) -> RoomKey {
    let record = &entry.record;
    let together = entry.together();
    let count = |group: usize| if together > 0 { entry.n_pending(group) } else { 0 };
    let all = || (0..record.spec.task_groups.len()).map(|group| (group, count(group)));
    let mut groups: SmallVec<[(usize, u32); 1]> =
        all().filter(|(group, _)| entry.n_pending(*group) > 0).collect();
    if groups.is_empty() {
        groups = all().collect();
    }
    let queue = queueing.quota().usage().guarantees().is_any().then_some(entry.account.queue);
    RoomKey { like: Arc::clone(record), together, groups, queue, by_labels }
}
