//! Stopping single running units for good: their ordinals are wanted no more, and never given again.

use std::collections::BTreeSet;

use godel_domain::{
    running_units::RunningUnits,
    surge::Surge,
    unit::{TaskGroup, UnitRecord},
};

use super::{
    SpecViolation,
    scale::{N_RANGES_MAX, ScaleRefusal, next_ordinal},
};

/// Ordinals in one request.
pub const ORDINALS_MAX: usize = 10_000;

/// The unit without these ordinals, and with so many replicas less; `None` when it wants none of them any more.
///
/// `min_member`, of the unit and of its groups, is lowered where there would otherwise be fewer replicas. An empty range notes where new ordinals
/// begin once one is stopped that never had a node: rows do not show that it was there. A daemon gets a new replica on the
/// node of each.
///
/// # Errors
/// One that the unit never had, or none would be left; see [`ScaleRefusal`].
pub fn stop(
    record: &UnitRecord,
    rows: &RunningUnits,
    ordinals: &[u32],
) -> Result<Option<UnitRecord>, ScaleRefusal> {
    let left = without(record, rows, ordinals)?;
    if left.as_ref().is_some_and(|left| left.spec.replicas() == 0) && !record.spec.is_daemon() {
        return Err(wrong("ordinals", "no replica would be left: cancel the unit instead".to_owned()));
    }
    Ok(left)
}

/// As [`stop`], as one of several changes: whether a replica is left is judged after all of them.
///
/// # Errors
/// One that the unit never had; see [`ScaleRefusal`].
pub(super) fn without(
    record: &UnitRecord,
    rows: &RunningUnits,
    ordinals: &[u32],
) -> Result<Option<UnitRecord>, ScaleRefusal> {
    let known = next_ordinal(record, rows);
    check(ordinals, known)?;
    if record.status.cancelled {
        return Err(ScaleRefusal::Cancelled);
    }
    let mut stopped: BTreeSet<u32> =
        ordinals.iter().copied().filter(|ordinal| record.group_of(*ordinal).is_some()).collect();
    if stopped.is_empty() {
        return Ok(None);
    }
    // Who is to replace one of them is not wanted either.
    let surges = record.status.surges.iter().filter(|surge| stopped.contains(&surge.replaces));
    let replacements: Vec<u32> = surges.map(|surge| surge.ordinal).collect();
    stopped.extend(replacements);
    let left = without_ordinals(record, rows, &stopped);
    if left.ranges().count() > N_RANGES_MAX {
        return Err(ScaleRefusal::OrdinalsUsedUp);
    }
    Ok(Some(left))
}

/// The unit without these ordinals, and without the surges that are about one of them.
pub(crate) fn without_ordinals(
    record: &UnitRecord,
    rows: &RunningUnits,
    stopped: &BTreeSet<u32>,
) -> UnitRecord {
    let known = next_ordinal(record, rows);
    let mut left = record.clone();
    left.note_submitted();
    for (group, ranges) in left.spec.task_groups.iter_mut().zip(&mut left.status.ordinals) {
        remove(group, ranges, stopped);
    }
    let is_about = |surge: &Surge| stopped.contains(&surge.ordinal) || stopped.contains(&surge.replaces);
    left.status.surges.retain(|surge| !is_about(surge));
    let replicas = left.spec.replicas();
    if stopped.last().is_some_and(|last| *last >= rows.rows.end()) {
        note_begin(&mut left, known);
    }
    if !record.spec.is_daemon() {
        left.spec.min_member = left.spec.min_member.min(replicas.max(1));
    }
    left
}

/// New ordinals begin at `begin` or later.
pub(crate) fn note_begin(record: &mut UnitRecord, begin: u32) {
    for ranges in &mut record.status.ordinals {
        ranges.retain(|(start, end)| start < end);
    }
    if let Some(ranges) = record.status.ordinals.last_mut() {
        ranges.push((begin, begin));
    }
}

fn check(ordinals: &[u32], known: u32) -> Result<(), ScaleRefusal> {
    if ordinals.is_empty() {
        return Err(wrong("ordinals", "empty: name those that are to stop".to_owned()));
    }
    if ordinals.len() > ORDINALS_MAX {
        return Err(wrong("ordinals", format!("{} at once; at most {ORDINALS_MAX}", ordinals.len())));
    }
    match ordinals.iter().position(|ordinal| *ordinal >= known) {
        None => Ok(()),
        Some(idx) => {
            let description = match known.checked_sub(1) {
                Some(highest) => format!("the unit never had {}; its highest is {highest}", ordinals[idx]),
                None => format!("the unit never had {}, nor any other", ordinals[idx]),
            };
            Err(wrong(&format!("ordinals[{idx}]"), description))
        }
    }
}

fn wrong(field: &str, description: String) -> ScaleRefusal {
    ScaleRefusal::Invalid(vec![SpecViolation { field: field.to_owned(), description }])
}

/// Takes ordinals out of a group.
pub(crate) fn remove(group: &mut TaskGroup, ranges: &mut Vec<(u32, u32)>, stopped: &BTreeSet<u32>) {
    let mut left: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for &(start, end) in &*ranges {
        if start == end {
            left.push((start, end));
            continue;
        }
        let mut from = start;
        for &ordinal in stopped.range(start..end) {
            if from < ordinal {
                left.push((from, ordinal));
            }
            from = ordinal + 1;
        }
        if from < end {
            left.push((from, end));
        }
    }
    group.replicas = left.iter().map(|(start, end)| end - start).sum();
    group.min_member = group.min_member.min(group.replicas);
    *ranges = left;
}

#[cfg(test)]
mod tests {
    use godel_base::ids::{NodeId, Revision, UnitId};
    use godel_domain::{
        running_units::{Bind, RunChange},
        submission::{GroupSubmission, Submission},
    };
    use godel_testkit::BuildUnit as _;
    use proptest::prelude::*;

    use super::*;
    use crate::admission::{admit, scale::scale};

    fn unit(groups: &[u32], min_member: u32) -> UnitRecord {
        let group = |(idx, replicas): (usize, &u32)| GroupSubmission {
            name: format!("g{idx}"),
            replicas: *replicas,
            ..GroupSubmission::default()
        };
        let submission = Submission {
            name: "u".to_owned(),
            uid: "0190163d-8694-739b-aea5-000000000001".to_owned(),
            task_groups: groups.iter().enumerate().map(group).collect(),
            min_member: Some(min_member),
            ..Submission::default()
        };
        UnitRecord::new(UnitId(1), admit(submission).unwrap().spec)
    }

    fn bound(ordinals: Vec<u32>) -> RunningUnits {
        let mut rows = RunningUnits::default();
        let nodes = vec![NodeId(1); ordinals.len()];
        rows.apply(
            &RunChange::Bind(Bind { ordinals, nodes, ..Bind::default() }),
            Revision(1),
            1,
            |_, _, _| {},
        );
        rows
    }

    #[test]
    fn ranges_are_split_and_replicas_go_down() {
        let record = unit(&[4, 4], 7);
        let left = stop(&record, &bound((0..8).collect()), &[5, 1, 1, 0]).unwrap().unwrap();
        assert_eq!(left.status.ordinals[..], [vec![(2, 4)], vec![(4, 5), (6, 8)]]);
        let replicas = |group: usize| left.spec.task_groups[group].replicas;
        assert_eq!((replicas(0), replicas(1)), (2, 3));
        assert_eq!(left.spec.min_member, 5);
        assert_eq!(stop(&left, &bound((0..8).collect()), &[0, 5]), Ok(None), "stopped before");
    }

    #[test]
    fn what_was_stopped_before_it_had_a_node_is_not_given_again() {
        let never = RunningUnits::default();
        let left = stop(&unit(&[4], 1), &never, &[3, 2]).unwrap().unwrap();
        assert_eq!(left.status.ordinals[0], [(0, 2), (4, 4)]);
        let up = scale(&left, &never, "", 3).unwrap().unwrap();
        assert_eq!(up.status.ordinals[0], [(0, 2), (4, 4), (4, 5)]);
        let down = scale(&left, &never, "", 1).unwrap().unwrap();
        assert_eq!(down.status.ordinals[0], [(0, 1), (4, 4)]);
        let up = scale(&down, &never, "", 2).unwrap().unwrap();
        assert_eq!(up.status.ordinals[0], [(0, 1), (4, 4), (4, 5)]);
        let down = scale(&up, &never, "", 1).unwrap().unwrap();
        assert_eq!(down.status.ordinals[0], [(0, 1), (4, 4)]);
    }

    #[test]
    fn wrong_ordinals_are_named() {
        let field =
            |record: &UnitRecord, ordinals: &[u32]| match stop(record, &RunningUnits::default(), ordinals) {
                Err(ScaleRefusal::Invalid(violations)) => violations[0].field.clone(),
                other => panic!("{other:?}"),
            };
        let record = unit(&[3], 1);
        assert_eq!(field(&record, &[]), "ordinals");
        assert_eq!(field(&record, &[1, 3]), "ordinals[1]");
        assert_eq!(field(&record, &[0, 1, 2]), "ordinals");
        assert_eq!(field(&record, &vec![0; ORDINALS_MAX + 1]), "ordinals");
        let mut none = unit(&[1], 1);
        (none.spec.task_groups[0].replicas, none.status.ordinals[0]) = (0, Vec::new());
        assert_eq!(field(&none, &[0]), "ordinals[0]", "a service that has none");
        let cancelled = record.cancelled(true);
        assert_eq!(stop(&cancelled, &RunningUnits::default(), &[0]), Err(ScaleRefusal::Cancelled));
    }

    proptest! {
        /// Whatever is stopped and scaled in turn, an ordinal that was stopped is never wanted again.
        #[test]
        fn ordinals_are_never_given_again(
            steps in prop::collection::vec((any::<bool>(), 0u32..12), 1..30),
            n_bound in 0u32..4,
        ) {
            let rows = bound((0..n_bound).collect());
            let mut record = unit(&[4], 1);
            let mut stopped = BTreeSet::new();
            for (stops, number) in steps {
                let next = if stops { stop(&record, &rows, &[number]) } else { scale(&record, &rows, "", number) };
                let Ok(Some(next)) = next else { continue };
                if stops {
                    stopped.insert(number);
                }
                record = next;
                let wanted: Vec<u32> = record.iter_ordinals().collect();
                prop_assert_eq!(wanted.len(), record.spec.task_groups[0].replicas as usize);
                prop_assert!(wanted.is_sorted_by(|a, b| a < b), "{:?}", record.status.ordinals);
                prop_assert!(wanted.iter().all(|one| !stopped.contains(one)), "{wanted:?} {stopped:?}");
            }
        }
    }
}
