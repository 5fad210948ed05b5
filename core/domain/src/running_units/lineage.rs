//! Who had running units of a unit leave, beside their rows: most units are never evicted.

use std::{cmp::Reverse, sync::Arc};

use super::{Evict, EvictionReason, N_PREEMPTORS_MAX, RunningUnits};
use godel_base::ids::{ReplicaId, Revision, UnitId};

/// Replicas of a unit of which the last eviction is known, those evicted last.
pub const N_EVICTIONS_MAX: usize = 1_024;
/// Bytes of who asked for an eviction; the rest is left out.
pub const EVICTED_BY_LEN_MAX: usize = 96;

/// Who had running units of a unit leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Units that preempted some, the newest last, at most [`N_PREEMPTORS_MAX`].
    pub preemptors: Vec<UnitId>,
    /// The last one of each replica, in order of ordinals, at most [`N_EVICTIONS_MAX`].
    pub evictions: Arc<Vec<LastEviction>>,
}

/// The last eviction of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastEviction {
    /// The replica, and the life of it that was evicted.
    pub replica: ReplicaId,
    /// Why.
    pub reason: EvictionReason,
    /// Who asked, at most [`EVICTED_BY_LEN_MAX`] bytes: in words, or a unit by its id as `unit 17`.
    pub by: Arc<str>,
    /// Of the transaction that evicted it.
    pub revision: Revision,
}

impl LastEviction {
    /// The unit that asked, if it was one.
    pub fn by_unit(&self) -> Option<UnitId> {
        self.by.strip_prefix("unit ")?.parse().ok().map(UnitId)
    }
}

impl RunningUnits {
    /// Units that preempted some of its running units, the newest last: it may not preempt theirs.
    pub fn preemptors(&self) -> &[UnitId] {
        self.lineage.as_ref().map_or(&[], |lineage| &lineage.preemptors)
    }

    /// The last evictions of its replicas, in order of ordinals.
    pub fn evictions(&self) -> &[LastEviction] {
        self.lineage.as_ref().map_or(&[], |lineage| &lineage.evictions)
    }

    /// The last eviction of a replica, of its current or of an earlier incarnation; `None`: there was none, or it is not known any more.
    pub fn last_eviction(&self, ordinal: u32) -> Option<&LastEviction> {
        let evictions = self.evictions();
        let at = evictions.binary_search_by_key(&ordinal, |eviction| eviction.replica.ordinal);
        at.ok().map(|at| &evictions[at])
    }

    /// Sets who had some of them leave, as loaded.
    pub fn set_lineage(&mut self, mut preemptors: Vec<UnitId>, mut evictions: Vec<LastEviction>) {
        preemptors.truncate(N_PREEMPTORS_MAX);
        keep_newest(&mut evictions);
        let is_empty = preemptors.is_empty() && evictions.is_empty();
        let lineage = || Box::new(Lineage { preemptors, evictions: Arc::new(evictions) });
        self.lineage = (!is_empty).then(lineage);
    }

    /// Once each, the newest last, the oldest forgotten.
    pub(super) fn note_preemptor(&mut self, preemptor: UnitId) {
        let known = &mut self.lineage.get_or_insert_default().preemptors;
        known.retain(|other| *other != preemptor);
        if known.len() >= N_PREEMPTORS_MAX {
            known.remove(0);
        }
        known.push(preemptor);
    }

    /// These have just been told to leave, by a transaction of this revision.
    pub(super) fn note_evictions(&mut self, told: &[ReplicaId], evict: &Evict, revision: Revision) {
        if told.is_empty() {
            return;
        }
        let by: Arc<str> = evict.by[..evict.by.floor_char_boundary(EVICTED_BY_LEN_MAX)].into();
        let known = Arc::make_mut(&mut self.lineage.get_or_insert_default().evictions);
        known.extend(told.iter().map(|&replica| LastEviction {
            replica,
            reason: evict.reason,
            by: Arc::clone(&by),
            revision,
        }));
        keep_newest(known);
    }
}

impl RunningUnits {
    /// Nothing is known any more of what had these leave.
    pub(super) fn forget_evictions(&mut self, ordinals: &[u32]) {
        let Some(lineage) = self.lineage.as_mut().filter(|lineage| !lineage.evictions.is_empty()) else {
            return;
        };
        let is_gone = |eviction: &LastEviction| ordinals.binary_search(&eviction.replica.ordinal).is_ok();
        if lineage.evictions.iter().any(is_gone) {
            Arc::make_mut(&mut lineage.evictions).retain(|eviction| !is_gone(eviction));
        }
        if lineage.evictions.is_empty() && lineage.preemptors.is_empty() {
            self.lineage = None;
        }
    }
}

/// Keeps the newest one of each replica, in order of ordinals, and of too many the newest. What is left is the same in whatever order
/// they have come: a follower may read a list and the changes since its beginning.
fn keep_newest(evictions: &mut Vec<LastEviction>) {
    evictions.sort_by_key(|eviction| (eviction.replica.ordinal, Reverse(eviction.revision)));
    evictions.dedup_by_key(|eviction| eviction.replica.ordinal);
    let n_old = evictions.len().saturating_sub(N_EVICTIONS_MAX);
    if n_old > 0 {
        let age = |eviction: &LastEviction| (eviction.revision, eviction.replica.ordinal);
        let mut ages: Vec<_> = evictions.iter().map(age).collect();
        let (_, &mut oldest, _) = ages.select_nth_unstable(n_old);
        evictions.retain(|eviction| age(eviction) >= oldest);
    }
}
