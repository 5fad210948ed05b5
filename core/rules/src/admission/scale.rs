//! Scaling: new ordinals at the end, the highest ones leave first.

use godel_domain::{
    limits::{COMPACTED_ORDINAL_MAX, ORDINAL_MAX, REPLICAS_MAX},
    running_units::RunningUnits,
    unit::{UnitRecord, WorkloadClass},
};

use super::{SpecViolation, stop::note_begin};
use crate::compaction::is_compacted;

/// Ranges of ordinals of all groups together, of 10 bytes in the record at most: what scaling up and down in turn
/// may add to a record's 64 KiB.
pub const N_RANGES_MAX: usize = 4_096;

/// Why a unit cannot be scaled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleRefusal {
    /// The request is wrong.
    Invalid(Vec<SpecViolation>),
    /// It was cancelled.
    Cancelled,
    /// So many ordinals have been used up that it must be submitted anew.
    OrdinalsUsedUp,
}

/// The unit with `replicas` replicas in `group` (empty: the only one); `None` when that changes nothing.
///
/// New ordinals begin after every one that the unit wants or that was ever bound, so `rows` must be known up to
/// the revision of `spec`. `min_member`, of the unit and of the group, is lowered where there would otherwise be fewer replicas.
///
/// # Errors
/// See [`ScaleRefusal`].
pub fn scale(
    record: &UnitRecord,
    rows: &RunningUnits,
    group: &str,
    replicas: u32,
) -> Result<Option<UnitRecord>, ScaleRefusal> {
    scale_to(record, rows, group, replicas, least_replicas(record.spec.class))
}

/// As [`scale`], as one of several changes: how few replicas may be left is judged after all of them.
pub(super) fn scale_within(
    record: &UnitRecord,
    rows: &RunningUnits,
    group: &str,
    replicas: u32,
) -> Result<Option<UnitRecord>, ScaleRefusal> {
    scale_to(record, rows, group, replicas, 0)
}

fn scale_to(
    record: &UnitRecord,
    rows: &RunningUnits,
    group: &str,
    replicas: u32,
    least: u32,
) -> Result<Option<UnitRecord>, ScaleRefusal> {
    let wrong = |field: &str, description: String| {
        ScaleRefusal::Invalid(vec![SpecViolation { field: field.to_owned(), description }])
    };
    if record.spec.is_daemon() {
        let why = "a daemon has one replica on each node that its template may have: change labels or taints of nodes";
        return Err(wrong("replicas", why.to_owned()));
    }
    let idx = match (group, record.spec.task_groups.as_slice()) {
        ("", [_]) => 0,
        ("", groups) => {
            let names = groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(wrong("task_group", format!("the unit has several groups; name one of {names}")));
        }
        (name, groups) => groups
            .iter()
            .position(|group| group.name == name)
            .ok_or_else(|| wrong("task_group", format!("the unit has no group `{name}`")))?,
    };
    let others = record.spec.replicas() - record.spec.task_groups[idx].replicas;
    let total = u64::from(others) + u64::from(replicas);
    if total < u64::from(least) || total > u64::from(REPLICAS_MAX) {
        return Err(wrong("replicas", format!("{total} over all groups is not in {least}..={REPLICAS_MAX}")));
    }
    if record.status.cancelled {
        return Err(ScaleRefusal::Cancelled);
    }
    let present = record.spec.task_groups[idx].replicas;
    if replicas == present {
        return Ok(None);
    }
    let mut scaled = record.clone();
    scaled.note_submitted();
    if replicas > present {
        let start = next_ordinal(record, rows);
        let goes_on =
            |ranges: &Vec<(u32, u32)>| ranges.last().is_some_and(|(from, to)| from < to && *to == start);
        let start = match record.status.ordinals.get(idx).is_some_and(goes_on) {
            true => start,
            false => record.segment_start(idx, start),
        };
        let end = start.saturating_add(replicas - present);
        if end > ordinal_max(record) {
            return Err(ScaleRefusal::OrdinalsUsedUp);
        }
        extend(&mut scaled.status.ordinals[idx], start, end);
        if scaled.ranges().count() > N_RANGES_MAX {
            return Err(ScaleRefusal::OrdinalsUsedUp);
        }
    } else {
        shrink(&mut scaled.status.ordinals[idx], present - replicas);
        // To a unit that grows others are added: none of them gets an ordinal that this group gave back.
        let begin = next_ordinal(record, rows);
        if record.status.own_groups > 0 && next_ordinal(&scaled, rows) < begin {
            note_begin(&mut scaled, begin);
        }
    }
    let group = &mut scaled.spec.task_groups[idx];
    (group.replicas, group.min_member) = (replicas, group.min_member.min(replicas));
    let most = u32::try_from(total).unwrap_or(REPLICAS_MAX).max(1);
    scaled.spec.min_member = scaled.spec.min_member.min(most);
    Ok(Some(scaled))
}

/// The highest ordinal that a unit may ever reach.
pub(super) fn ordinal_max(record: &UnitRecord) -> u32 {
    if is_compacted(record) { COMPACTED_ORDINAL_MAX } else { ORDINAL_MAX }
}

/// The ordinal behind every one that the unit wants or that was ever bound.
pub(crate) fn next_ordinal(record: &UnitRecord, rows: &RunningUnits) -> u32 {
    let wanted = record.ranges().map(|range| range.1).max();
    let bound = rows.rows.end();
    wanted.unwrap_or(0).max(bound)
}

/// The fewest replicas of a unit: a service may have none for a while, and is there all the same.
pub(crate) fn least_replicas(class: WorkloadClass) -> u32 {
    match class {
        WorkloadClass::Service | WorkloadClass::Daemon => 0,
        WorkloadClass::Stateful
        | WorkloadClass::Batch
        | WorkloadClass::Gang
        | WorkloadClass::Stream
        | WorkloadClass::Training
        | WorkloadClass::Yarn => 1,
    }
}

/// Adds the ordinals from `start` to `end` behind all others.
pub(crate) fn extend(ranges: &mut Vec<(u32, u32)>, start: u32, end: u32) {
    match ranges.last_mut() {
        Some(last) if last.0 < last.1 && last.1 == start => last.1 = end,
        _ => ranges.push((start, end)),
    }
}

fn shrink(ranges: &mut Vec<(u32, u32)>, mut excess: u32) {
    // Where new ordinals begin, see `super::stop`.
    let mut begin = None;
    while excess > 0
        && let Some((start, end)) = ranges.pop()
    {
        if start == end {
            begin.get_or_insert((start, end));
        } else if end - start > excess {
            ranges.push((start, end - excess));
            excess = 0;
        } else {
            excess -= end - start;
        }
    }
    ranges.extend(begin);
}
