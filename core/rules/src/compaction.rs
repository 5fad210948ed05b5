//! What is compacted of a unit that goes on: replicas that ended or were released long ago, and task groups that have none left.
//!
//! An application of YARN takes and gives back containers for as long as it lives. What a decision needs of those that are gone
//! is nothing: their rows go, and the unit's record keeps their sums for its history. Where new ordinals begin is noted in the
//! record, so that none comes back.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::ids::Revision;
use godel_domain::{
    lifecycle,
    running_units::{Compaction, Phase, RunningUnit, RunningUnits},
    task_group_record::TASK_GROUPS_MAX,
    unit::{OnBelowMin, OnFailure, TaskGroup, UnitRecord, WorkloadClass},
};

use crate::{
    admission::{
        grow::{ADDED_BYTES_MAX, group_bytes},
        scale::{N_RANGES_MAX, next_ordinal},
        stop::{note_begin, remove},
    },
    history,
};

/// Rows that one transaction compacts: one operation stays far below what a message may have.
pub const N_COMPACTED_MAX: usize = 10_000;

/// A unit and its rows with less in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactedUnit {
    /// The record to be written.
    pub record: UnitRecord,
    /// The rows that go with it.
    pub compaction: Compaction,
    /// Others may go at once, by a transaction of their own.
    pub is_more: bool,
}

/// Whether ended replicas of a unit are compacted while it goes on: it grows, by task groups that are added or as an
/// application of YARN does.
pub fn is_compacted(record: &UnitRecord) -> bool {
    record.spec.class == WorkloadClass::Yarn || record.status.own_groups > 0
}

/// What a unit, which is not over, is without the replicas whose last change is not after `until`; `None`: nothing goes.
///
/// Replicas go that were released and have ended, and of task groups that were added to an application of YARN those that ended
/// by themselves and do not come back. Task groups whose replicas are all gone make room for others once
/// half of what a unit may have of them is used up. O(rows + ordinals).
pub fn compact(
    record: &UnitRecord,
    rows: &RunningUnits,
    until: Revision,
    now_ms: i64,
) -> Option<CompactedUnit> {
    if !is_compacted(record) || !record.is_wanted() {
        return None;
    }
    let mut past =
        rows.rows.iter().filter(|(ordinal, row)| row.revision <= until && is_past(record, *ordinal, row));
    let mut gone: BTreeMap<u32, RunningUnit> =
        past.by_ref().take(N_COMPACTED_MAX).map(|(ordinal, row)| (ordinal, *row)).collect();
    let is_more = past.next().is_some();
    let mut next = without(record, &gone.keys().copied().collect());
    if next.ranges().count() > N_RANGES_MAX {
        // What is wanted would be scattered too much to be written down: those that are wanted stay for now.
        gone.retain(|ordinal, _| record.group_of(*ordinal).is_none());
        next = record.clone();
    }
    let groups = vacate(&mut next, rows, &gone);
    if gone.is_empty() && groups.is_empty() {
        return None;
    }
    let begin = next_ordinal(record, rows);
    if next.ranges().map(|range| range.1).max().unwrap_or(0) < begin {
        note_begin(&mut next, begin);
    }
    let sums = next.status.compacted.get_or_insert_default();
    for (ordinal, row) in &gone {
        history::compact(sums, rows, *ordinal, row, now_ms);
        let is_named = record.group_of(*ordinal).is_some();
        sums.succeeded += u64::from(is_named && row.phase == Phase::Succeeded);
        sums.failed += u64::from(is_named && row.phase == Phase::Failed);
    }
    let incarnations: Vec<u32> = gone.values().map(|row| row.incarnation).collect();
    let ordinals = gone.into_keys().collect();
    Some(CompactedUnit { record: next, compaction: Compaction { ordinals, incarnations, groups }, is_more })
}

/// Whether a replica has ended and nothing comes of it any more.
fn is_past(record: &UnitRecord, ordinal: u32, row: &RunningUnit) -> bool {
    if !row.phase.is_ended() || lifecycle::returns(&record.status.next_incarnations, ordinal, row) {
        return false;
    }
    let Some(group) = record.group_of(ordinal) else { return true };
    let has_ended = matches!(row.phase, Phase::Succeeded | Phase::Failed) && !row.was_sent_away();
    let is_added = record.status.own_groups > 0 && group >= record.n_own_groups();
    // What has ended counts for the minimum of a unit that does not go on without it.
    let goes_on = (record.spec.on_failure, record.spec.on_below_min) == (OnFailure::Keep, OnBelowMin::Keep);
    has_ended && is_added && goes_on && record.spec.class == WorkloadClass::Yarn
}

/// The record without these ordinals.
fn without(record: &UnitRecord, ordinals: &BTreeSet<u32>) -> UnitRecord {
    let mut next = record.clone();
    let before = next.spec.replicas();
    for (group, ranges) in next.spec.task_groups.iter_mut().zip(&mut next.status.ordinals) {
        remove(group, ranges, ordinals);
    }
    let replicas = next.spec.replicas();
    if replicas < before {
        next.spec.min_member = next.spec.min_member.min(replicas.max(1));
    }
    next
}

/// Empties task groups of which nothing is left, if the unit has used up half of what it may have of added ones. Returns their
/// positions.
fn vacate(next: &mut UnitRecord, rows: &RunningUnits, gone: &BTreeMap<u32, RunningUnit>) -> Vec<u16> {
    let n_own = next.n_own_groups();
    let groups = &next.spec.task_groups;
    let is_vacant = |idx: usize| groups.get(idx).is_some_and(|group| group.is_vacant(idx));
    let n_used = (0..groups.len()).filter(|idx| !is_vacant(*idx)).count();
    let bytes: usize = groups.iter().skip(n_own).map(group_bytes).sum();
    if next.status.own_groups == 0 || (n_used <= TASK_GROUPS_MAX / 2 && bytes <= ADDED_BYTES_MAX / 2) {
        return Vec::new();
    }
    let stays =
        |(ordinal, row): &(u32, &RunningUnit)| row.revision > Revision(0) && !gone.contains_key(ordinal);
    let in_use: BTreeSet<u16> = rows.rows.iter().filter(stays).map(|(_, row)| row.group).collect();
    let was_bound = |idx: u16| rows.groups.get(usize::from(idx)).is_some_and(Option::is_some);
    let empty: Vec<u16> = (0u16..)
        .zip(groups)
        .skip(n_own)
        .filter(|(idx, group)| group.replicas == 0 && was_bound(*idx) && !in_use.contains(idx))
        .map(|(idx, _)| idx)
        .collect();
    for idx in &empty {
        let at = usize::from(*idx);
        if let Some(group) = next.spec.task_groups.get_mut(at) {
            *group = TaskGroup::vacant(at);
        }
    }
    empty
}

#[cfg(test)]
mod tests;
