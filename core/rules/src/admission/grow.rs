//! Task groups that are added to a unit, and other changes of its task groups in one request.
//!
//! Ordinals of an added group follow after the last one that the unit ever had. A group keeps its name and its position until
//! nothing is left of it and another one takes its place, see [`crate::compaction`]. What the unit's first binding needs
//! (`min_member`) stays as it is, unless fewer replicas are left.

use std::{collections::BTreeSet, slice};

use godel_domain::{
    fields::{FieldValue, FieldVisitor},
    limits::{REPLICAS_MAX, SPEC_BYTES_MAX},
    running_units::RunningUnits,
    submission::{GroupChanges, GroupSubmission},
    task_group_record::TASK_GROUPS_MAX,
    unit::{TaskGroup, UnitRecord},
};

use super::{
    SpecViolation, ViolationList, admit_group,
    scale::{N_RANGES_MAX, ScaleRefusal, least_replicas, next_ordinal, ordinal_max, scale_within},
    stop::{note_begin, without},
    topology::SEGMENTS_OF_UNIT,
    update::UnitUpdate,
};

/// Bytes of all records of task groups that were added to a unit. With its own record, of at most [`SPEC_BYTES_MAX`], a unit
/// is less than a fifth of what a message may have: one to a scheduler names up to [`REPLICAS_MAX`] ordinals too.
pub const ADDED_BYTES_MAX: usize = 128 * 1024;

/// The unit with these changes; `None` if it has them already. First ordinals are released, then the groups get their sizes,
/// then groups are added.
///
/// # Errors
/// See [`ScaleRefusal`].
pub fn grow(
    record: &UnitRecord,
    rows: &RunningUnits,
    changes: &GroupChanges,
) -> Result<Option<UnitUpdate>, ScaleRefusal> {
    let wrong = |field: &str, description: String| {
        ScaleRefusal::Invalid(vec![SpecViolation { field: field.to_owned(), description }])
    };
    if changes.added.is_empty() && changes.sizes.is_empty() && changes.released.is_empty() {
        return Err(wrong("groups", "empty: add a group, give one a size, or release ordinals".to_owned()));
    }
    if record.spec.is_daemon() {
        let why = "a daemon has one replica on each node that its template may have: submit another daemon";
        return Err(wrong("groups", why.to_owned()));
    }
    let named: BTreeSet<&String> = changes.sizes.iter().map(|(name, _)| name).collect();
    if named.len() < changes.sizes.len() {
        return Err(wrong("groups.sizes", "a task group is named twice".to_owned()));
    }
    let added = admitted(record, &changes.added)?;
    if record.status.cancelled {
        return Err(ScaleRefusal::Cancelled);
    }
    let mut next = match changes.released.as_slice() {
        [] => record.clone(),
        ordinals => without(record, rows, ordinals)?.unwrap_or_else(|| record.clone()),
    };
    for (at, (name, replicas)) in changes.sizes.iter().enumerate() {
        // A repeated request releases nothing more: the size is what is left.
        let sized = scale_within(&next, rows, name, *replicas).map_err(|refusal| match refusal {
            ScaleRefusal::Invalid(found) => {
                ScaleRefusal::Invalid(under(&format!("groups.sizes[{at}]"), found))
            }
            other => other,
        })?;
        next = sized.unwrap_or(next);
    }
    // What was never bound is not seen in the rows, and is not given again all the same.
    let begin = next_ordinal(record, rows);
    if next_ordinal(&next, rows) < begin {
        note_begin(&mut next, begin);
    }
    let n_known = next.spec.task_groups.len();
    for group in added {
        add_group(&mut next, rows, group)?;
    }
    check_size(&next)?;
    next.spec.min_member = record.spec.min_member.min(next.spec.replicas().max(1));
    if next == *record {
        return Ok(None);
    }
    let is_moved = next.spec.task_groups.len() > n_known;
    Ok(Some(UnitUpdate { record: next, rests_on_rows: false, is_moved, takes_rows_along: false }))
}

/// The groups that are to be added, with their defaults. One that the unit has already, as it would be made of the same
/// request, is left out.
fn admitted(record: &UnitRecord, added: &[GroupSubmission]) -> Result<Vec<TaskGroup>, ScaleRefusal> {
    let mut report = ViolationList::default();
    let mut groups: Vec<TaskGroup> = Vec::with_capacity(added.len());
    for (at, submission) in added.iter().enumerate() {
        if submission.min_member.is_some() {
            let why =
                "a group that is added to a unit has no minimum: leave it out, or update the whole unit";
            report.add(format_args!("task_groups[{at}].min_member"), why);
        }
        if submission.topology.is_some() && record.spec.topology.segments.is_some() {
            report.add(format_args!("task_groups[{at}].topology"), SEGMENTS_OF_UNIT);
        }
        let group = admit_group(
            at,
            submission.clone(),
            record.spec.pool,
            Some(0),
            &groups,
            &mut report,
            &mut Vec::new(),
        );
        let known = record.spec.task_groups.iter().find(|known| known.name == group.name);
        match known {
            Some(known) if known.template == group.template && known.topology == group.topology => {}
            Some(_) => report.add(
                format_args!("task_groups[{at}].name"),
                format_args!(
                    "the unit has a group `{}` with another template or topology: choose another name",
                    group.name
                ),
            ),
            None => groups.push(group),
        }
    }
    let rename = |violation: SpecViolation| SpecViolation {
        field: violation.field.replacen("task_groups", "groups.added", 1),
        ..violation
    };
    report.finish(groups).map_err(|found| ScaleRefusal::Invalid(found.into_iter().map(rename).collect()))
}

/// Adds a task group behind all others. Its ordinals follow after every one that the unit wants or that was ever bound.
///
/// # Errors
/// The unit would have too many groups, or too many bytes of them; see [`ScaleRefusal`].
pub(super) fn add_group(
    record: &mut UnitRecord,
    rows: &RunningUnits,
    group: TaskGroup,
) -> Result<(), ScaleRefusal> {
    let n_groups = record.spec.task_groups.len();
    let wrong = |description: String| {
        ScaleRefusal::Invalid(vec![SpecViolation { field: "task_groups".to_owned(), description }])
    };
    // Whatever was bound of a group that was emptied is gone, and so is what it took.
    let vacant = (record.status.own_groups > 0).then(|| {
        let mut added = record.spec.task_groups.iter().enumerate().skip(record.n_own_groups());
        added.find(|(idx, group)| group.is_vacant(*idx) && rows.groups.get(*idx).is_none_or(Option::is_none))
    });
    let vacant = vacant.flatten().map(|(idx, _)| idx);
    if vacant.is_none() && n_groups >= TASK_GROUPS_MAX {
        return Err(wrong(format!("a unit has at most {TASK_GROUPS_MAX} groups: submit another unit")));
    }
    let (start, replicas) = (next_ordinal(record, rows), group.replicas);
    if record.status.own_groups == 0 {
        record.status.own_groups = u16::try_from(n_groups).unwrap_or(u16::MAX);
        // What was submitted is not known any more: a repeated submission is known by its uid and name alone.
        record.status.updated = true;
    }
    let idx = match vacant {
        Some(idx) => {
            record.spec.task_groups[idx] = group;
            idx
        }
        None => {
            record.status.ordinals.push(Vec::new());
            record.spec.task_groups.push(group);
            n_groups
        }
    };
    // Its segments are whole from the first one on.
    let start = record.segment_start(idx, start);
    let end = start.saturating_add(replicas);
    if end > ordinal_max(record) {
        return Err(ScaleRefusal::OrdinalsUsedUp);
    }
    record.status.ordinals[idx].extend((start < end).then_some((start, end)));
    if record.ranges().count() > N_RANGES_MAX {
        return Err(ScaleRefusal::OrdinalsUsedUp);
    }
    let added: usize = record.spec.task_groups.iter().skip(record.n_own_groups()).map(group_bytes).sum();
    if added > ADDED_BYTES_MAX {
        return Err(wrong(format!(
            "about {added} bytes of groups that were added; at most {ADDED_BYTES_MAX}: submit another unit"
        )));
    }
    Ok(())
}

/// Replicas over all groups.
fn check_size(record: &UnitRecord) -> Result<(), ScaleRefusal> {
    let replicas = record.spec.task_groups.iter().map(|group| u64::from(group.replicas)).sum::<u64>();
    let least = least_replicas(record.spec.class);
    if (u64::from(least)..=u64::from(REPLICAS_MAX)).contains(&replicas) {
        return Ok(());
    }
    let description = format!("{replicas} replicas over all groups are not in {least}..={REPLICAS_MAX}");
    Err(ScaleRefusal::Invalid(vec![SpecViolation { field: "groups".to_owned(), description }]))
}

/// Whether a unit's own record stays within its limit, whatever its added groups have.
pub(super) fn own_fits(record: &UnitRecord) -> bool {
    let groups = record.spec.task_groups.iter().take(record.n_own_groups()).map(group_bytes);
    record.spec.labels.n_bytes() + groups.sum::<usize>() <= SPEC_BYTES_MAX
}

fn under(path: &str, found: Vec<SpecViolation>) -> Vec<SpecViolation> {
    let rename = |one: SpecViolation| SpecViolation { field: format!("{path}.{}", one.field), ..one };
    found.into_iter().map(rename).collect()
}

/// The ids, the number of replicas, and the lengths of the messages that each record of a group has.
const BASE: usize = 56;

/// So many bytes the record of a group has at most, without its ordinals.
pub fn group_bytes(group: &TaskGroup) -> usize {
    let mut bytes = GroupBytes(0);
    bytes.groups(slice::from_ref(group), &[]);
    bytes.0
}

struct GroupBytes(usize);

impl FieldVisitor for GroupBytes {
    fn field<V: FieldValue>(&mut self, _key: &str, one: &V, _other: &V) {
        self.0 += one.n_bytes();
    }

    fn groups(&mut self, one: &[TaskGroup], _other: &[TaskGroup]) {
        for TaskGroup { name, replicas: _, min_member, template, topology } in one {
            self.0 += BASE + name.n_bytes() + min_member.n_bytes() + topology.n_bytes();
            template.visit(template, self);
        }
    }
}

#[cfg(test)]
mod tests;
