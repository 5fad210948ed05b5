//! Ended units for accounting: what is kept of those whose records were deleted, and those whose records are still there.
//!
//! The records are written with the deletion of a unit's record, so one of both is always there. The oldest go once
//! they, or the replicas that they list, are too many, or they are too old.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter::Peekable,
    sync::Arc,
};

use godel_base::ids::UnitId;
use godel_domain::{lifecycle, lifecycle::UnitPhase, sight::Sight, unit_history::UnitHistory};
use godel_rules::history::{self, UnitTimes};

use super::{read::is_within, unit_entry::UnitEntry, units::Units};

/// Records that go in one transaction.
const GO_MAX: usize = 1_000;

/// What is kept of units that are deleted.
#[derive(Debug, Default)]
pub(super) struct UnitHistories {
    kept: BTreeMap<UnitId, Arc<UnitHistory>>,
    /// Of `kept`, by the time of the end.
    by_end: BTreeSet<(i64, UnitId)>,
    /// Of `kept` those whose deletion is on its way.
    going: BTreeSet<UnitId>,
    /// Replicas that `kept` lists.
    n_runs: usize,
    limits: HistoryLimits,
}

/// How much is kept of units that are deleted. The oldest go beyond any of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Units; 0: nothing is kept.
    pub n_units_max: usize,
    /// Replicas that they list together; the newest unit stays whatever it lists.
    pub n_runs_max: usize,
    /// Time since the end of a unit, milliseconds.
    pub age_ms: u64,
}

/// Which ended units to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFilter {
    /// Those that are seen.
    pub sight: Sight,
    /// Empty: all.
    pub owner: String,
    /// Path of a queue: of it and those below it. Empty: all.
    pub queue: String,
    /// `None`: all.
    pub phase: Option<UnitPhase>,
    /// Ended then or later, Unix milliseconds.
    pub since_ms: i64,
}

/// A bounded part of a list of ended units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryChunk {
    /// The newest first, and whether the record of each is still there.
    pub units: Vec<(Arc<UnitHistory>, bool)>,
    /// The last unit looked at; `None` after the last chunk.
    pub next: Option<UnitId>,
}

impl HistoryFilter {
    fn matches(&self, kept: &UnitHistory) -> bool {
        self.sight.sees_unit_of(&kept.namespace, &kept.owner)
            && (self.owner.is_empty() || kept.owner == self.owner)
            && (self.queue.is_empty() || is_within(&kept.queue, &self.queue))
            && self.phase.is_none_or(|phase| kept.phase == phase)
            && kept.ended_ms >= self.since_ms
    }
}

impl UnitHistories {
    pub(super) fn new(limits: HistoryLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(super) fn put(&mut self, kept: Arc<UnitHistory>) {
        self.remove(kept.id);
        self.by_end.insert((kept.ended_ms, kept.id));
        self.n_runs += kept.runs.len();
        self.kept.insert(kept.id, kept);
    }

    pub(super) fn remove(&mut self, unit: UnitId) {
        if let Some(kept) = self.kept.remove(&unit) {
            self.by_end.remove(&(kept.ended_ms, unit));
            self.n_runs -= kept.runs.len();
        }
        self.going.remove(&unit);
    }

    /// A list is complete: what it did not show is gone.
    pub(super) fn retain(&mut self, is_listed: impl Fn(UnitId) -> bool) {
        let gone: Vec<UnitId> = self.kept.keys().copied().filter(|unit| !is_listed(*unit)).collect();
        gone.into_iter().for_each(|unit| self.remove(unit));
    }

    /// The oldest that are too many or too old, of which none is on its way yet.
    pub(super) fn take_old(&mut self, wall_ms: i64) -> Vec<UnitId> {
        if !self.going.is_empty() {
            return Vec::new();
        }
        let age_ms = i64::try_from(self.limits.age_ms).unwrap_or(i64::MAX);
        let (mut n_units, mut n_runs) = (self.kept.len(), self.n_runs);
        let mut old = Vec::new();
        for (ended_ms, unit) in &self.by_end {
            let are_too_many =
                n_units > self.limits.n_units_max || (n_runs > self.limits.n_runs_max && n_units > 1);
            let is_old = wall_ms.saturating_sub(*ended_ms) > age_ms;
            if old.len() >= GO_MAX || !(are_too_many || is_old) {
                break;
            }
            n_units -= 1;
            n_runs -= self.kept.get(unit).map_or(0, |kept| kept.runs.len());
            old.push(*unit);
        }
        self.going.extend(&old);
        old
    }

    /// The deletion did not come about.
    pub(super) fn on_delete_failed(&mut self) {
        self.going.clear();
    }

    /// Whether anything is to be kept.
    pub(super) fn is_on(&self) -> bool {
        self.limits.n_units_max > 0
    }
}

/// What is kept of an ended unit, or would be.
fn of(entry: &UnitEntry) -> UnitHistory {
    let times = UnitTimes {
        created_ms: entry.create_time_ms,
        bound_ms: entry.bound_time_ms,
        ended_ms: entry.ended_wall_ms,
    };
    history::of(&entry.record, &entry.rows, &entry.counts, entry.phase, times)
}

impl Units {
    /// What is to be kept of a unit whose record is deleted; `None`: nothing is kept.
    pub(super) fn history_of(&self, unit: UnitId) -> Option<UnitHistory> {
        self.get(unit).filter(|_| self.histories.is_on()).map(of)
    }

    /// Ended units that are older than `before`, the newest first: looks at `n_scan` units at most, and keeps the first
    /// `n_units` matches.
    pub fn list_history(
        &self,
        filter: &HistoryFilter,
        before: Option<UnitId>,
        n_scan: usize,
        n_units: usize,
    ) -> HistoryChunk {
        let mut chunk = HistoryChunk::default();
        let mut last = None;
        for (scanned, unit) in self.newest_first(before).enumerate() {
            if scanned >= n_scan || chunk.units.len() >= n_units {
                chunk.next = last;
                break;
            }
            last = Some(unit);
            let entry = self.get(unit);
            let found = match entry.filter(|entry| lifecycle::is_over(entry.phase, &entry.counts)) {
                Some(entry) => Some((Arc::new(of(entry)), true)),
                None => self.histories.kept.get(&unit).map(|kept| (Arc::clone(kept), false)),
            };
            chunk.units.extend(found.filter(|(kept, _)| filter.matches(kept)));
        }
        chunk
    }

    /// Units that are known or of which something is kept, each once.
    fn newest_first(&self, before: Option<UnitId>) -> impl Iterator<Item = UnitId> + '_ {
        let end = before.unwrap_or(UnitId(u64::MAX));
        let known: Peekable<_> = self.ids.range(..end).rev().copied().peekable();
        let kept: Peekable<_> = self.histories.kept.range(..end).rev().map(|(unit, _)| *unit).peekable();
        merged(known, kept)
    }
}

/// Two descending sequences as one.
fn merged(
    mut one: Peekable<impl Iterator<Item = UnitId>>,
    mut other: Peekable<impl Iterator<Item = UnitId>>,
) -> impl Iterator<Item = UnitId> {
    std::iter::from_fn(move || {
        let next = match (one.peek().copied(), other.peek().copied()) {
            (Some(a), Some(b)) => a.max(b),
            (a, b) => a.or(b)?,
        };
        one.next_if_eq(&next);
        other.next_if_eq(&next);
        Some(next)
    })
}

#[cfg(test)]
mod tests {
    use godel_base::ids::NodeId;
    use godel_domain::{running_units::Phase, unit::WorkloadClass, unit_history::RunHistory};

    use super::*;

    fn limits(n_units_max: usize, n_runs_max: usize, age_ms: u64) -> HistoryLimits {
        HistoryLimits { n_units_max, n_runs_max, age_ms }
    }

    fn kept(id: u64, ended_ms: i64) -> Arc<UnitHistory> {
        Arc::new(UnitHistory {
            id: UnitId(id),
            namespace: "default".to_owned(),
            name: format!("u{id}"),
            uid: String::new(),
            owner: String::new(),
            queue: "default".to_owned(),
            class: WorkloadClass::Batch,
            phase: UnitPhase::Completed,
            ended: None,
            created_ms: 0,
            bound_ms: 0,
            ended_ms,
            replicas: 1,
            succeeded: 1,
            failed: 0,
            run_ms: 0,
            used: BTreeMap::new(),
            starts: 0,
            runs: Vec::new(),
            principal: String::new(),
        })
    }

    #[test]
    fn the_oldest_go_once_they_are_too_many_or_too_old() {
        let mut histories = UnitHistories::new(limits(2, 9, 1_000));
        for (id, ended_ms) in [(1, 30), (2, 10), (3, 20)] {
            histories.put(kept(id, ended_ms));
        }
        assert_eq!(histories.take_old(50), [UnitId(2)], "one too many");
        assert_eq!(histories.take_old(5_000), [], "one transaction at a time");
        histories.remove(UnitId(2));
        assert_eq!(histories.take_old(1_025), [UnitId(3)], "too old");
        histories.on_delete_failed();
        assert_eq!(histories.take_old(9_999), [UnitId(3), UnitId(1)]);
        histories.retain(|unit| unit == UnitId(1));
        assert_eq!(histories.kept.keys().collect::<Vec<_>>(), [&UnitId(1)]);
    }

    #[test]
    fn the_oldest_go_once_they_list_too_many_replicas() {
        let run = RunHistory {
            ordinal: 0,
            incarnation: 0,
            phase: Phase::Succeeded,
            node: NodeId(1),
            exit_code: 0,
            restarts: 0,
            bound_ms: 0,
            ended_ms: 0,
        };
        let of = |id, ended_ms, n_runs| {
            Arc::new(UnitHistory { runs: vec![run; n_runs], ..UnitHistory::clone(&kept(id, ended_ms)) })
        };
        let mut histories = UnitHistories::new(limits(9, 5, 1_000));
        for (id, n_runs) in [(1, 2), (2, 2), (3, 1)] {
            histories.put(of(id, 10, n_runs));
        }
        assert_eq!(histories.take_old(20), [], "exactly as many as are kept");
        histories.put(of(4, 15, 2));
        assert_eq!(histories.take_old(20), [UnitId(1)]);
        histories.remove(UnitId(1));
        histories.put(of(3, 12, 7));
        assert_eq!(histories.take_old(20), [UnitId(2), UnitId(3)]);
        histories.remove(UnitId(2));
        histories.remove(UnitId(3));
        histories.put(of(4, 15, 900));
        assert_eq!(histories.take_old(20), [], "the newest stays, whatever it lists");
        histories.put(of(5, 16, 0));
        assert_eq!(histories.take_old(20), [UnitId(4)]);
    }

    #[test]
    fn two_sequences_are_one() {
        let of = |ids: &[u64]| ids.iter().map(|id| UnitId(*id)).collect::<Vec<_>>().into_iter().peekable();
        let ids: Vec<u64> = merged(of(&[9, 5, 4]), of(&[7, 5, 1])).map(|unit| unit.0).collect();
        assert_eq!(ids, [9, 7, 5, 4, 1]);
    }
}
