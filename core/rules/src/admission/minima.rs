//! The minima of a unit and of its task groups.

use std::borrow::Cow;

use godel_base::words;
use godel_domain::{
    defaults::{AppliedDefault, ClassDefaults, DefaultValue, MinMember},
    limits::{MIN_MEMBER_MAX, REPLICAS_MAX},
    submission::GroupSubmission,
    unit::TaskGroup,
};

use super::{GROUPS_MAX, ViolationList};

/// Returns what each task group says of its minimum; nothing if none says anything, as most do.
pub(super) fn given(groups: &[GroupSubmission]) -> Vec<Option<u32>> {
    match groups.iter().any(|group| group.min_member.is_some()) {
        true => groups.iter().map(|group| group.min_member).take(GROUPS_MAX).collect(),
        false => Vec::new(),
    }
}

/// Checks the minima that task groups have of their own and fills them in. Where one group has a minimum and the class needs all
/// replicas at once, a group that says nothing needs all of its own.
pub(super) fn of_groups(
    given: &[Option<u32>],
    groups: &mut [TaskGroup],
    by_class: &ClassDefaults,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) {
    for (idx, (given, group)) in given.iter().zip(groups).enumerate() {
        let field = || format!("task_groups[{idx}].min_member");
        match (given, by_class.min_member) {
            (Some(given), _) if (1..=group.replicas).contains(given) => group.min_member = *given,
            (Some(given), _) => {
                let replicas = words::count(u64::from(group.replicas), "replica");
                report.add(
                    format_args!("{}", field()),
                    format_args!("{given}, and the group has {replicas}: at least 1 and at most as many, or leave it out"),
                );
            }
            (None, MinMember::Replicas) => {
                group.min_member = group.replicas;
                let value = DefaultValue::Number(i64::from(group.replicas));
                defaults.push(AppliedDefault { field: Cow::Owned(field()), value });
            }
            (None, MinMember::One) => {}
        }
    }
}

/// Checks the minimum of a unit, or fills in that of its class: at least what its task groups need together.
pub(super) fn min_member(
    given: Option<u32>,
    groups: &[TaskGroup],
    by_class: &ClassDefaults,
    report: &mut ViolationList,
    defaults: &mut Vec<AppliedDefault>,
) -> u32 {
    let sum = |of: fn(&TaskGroup) -> u32| groups.iter().map(|group| u64::from(of(group))).sum::<u64>();
    let (replicas, of_groups) = (sum(|group| group.replicas), sum(|group| group.min_member));
    let Some(given) = given else {
        let value = match by_class.min_member {
            _ if of_groups > 0 => of_groups,
            MinMember::One => 1,
            MinMember::Replicas => replicas,
        };
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        if value > MIN_MEMBER_MAX && replicas <= u64::from(REPLICAS_MAX) {
            let wrong = match of_groups {
                0 => format!(
                    "all {replicas} replicas would be bound at once; at most {MIN_MEMBER_MAX}: say how many"
                ),
                n => format!(
                    "the task groups need {n} at once; at most {MIN_MEMBER_MAX}: lower their min_member"
                ),
            };
            report.add("min_member", format_args!("{wrong}"));
        }
        defaults.push(AppliedDefault::number("min_member", i64::from(value)));
        return value;
    };
    let wrong = if given == 0 {
        format!("0 is not in 1..={MIN_MEMBER_MAX}; leave it out for the default of its class")
    } else if given > MIN_MEMBER_MAX {
        format!("{given} is not in 1..={MIN_MEMBER_MAX}")
    } else if u64::from(given) > replicas.max(1) {
        format!("{given} is above the {}", words::count(replicas, "replica"))
    } else if u64::from(given) < of_groups {
        format!(
            "{given} is below the {of_groups} that the task groups need: leave it out, or lower their min_member"
        )
    } else {
        return given;
    };
    report.add("min_member", format_args!("{wrong}"));
    given
}

#[cfg(test)]
mod tests {
    use godel_base::ids::UnitId;
    use godel_domain::{
        running_units::RunningUnits,
        submission::{Given, GroupSubmission, Submission},
        unit::{UnitRecord, WorkloadClass},
    };

    use crate::admission::{admit, scale::scale, stop::stop};

    fn unit(class: WorkloadClass, groups: &[(u32, Option<u32>)], min_member: Option<u32>) -> UnitRecord {
        let group = |(idx, (replicas, min_member)): (usize, &(u32, Option<u32>))| GroupSubmission {
            name: format!("g{idx}"),
            replicas: *replicas,
            min_member: *min_member,
            ..GroupSubmission::default()
        };
        let submission = Submission {
            name: "u".to_owned(),
            uid: "0190163d-8694-739b-aea5-000000000001".to_owned(),
            class: Given::Value(class),
            task_groups: groups.iter().enumerate().map(group).collect(),
            min_member,
            ..Submission::default()
        };
        UnitRecord::new(UnitId(1), admit(submission).unwrap().spec)
    }

    fn minima(record: &UnitRecord) -> (u32, Vec<u32>) {
        let groups = record.spec.task_groups.iter().map(|group| group.min_member);
        (record.spec.min_member, groups.collect())
    }

    #[test]
    fn minima_of_groups_are_filled_in_by_class() {
        use WorkloadClass::{Batch, Gang};
        for (class, groups, given, expected) in [
            (Gang, &[(1, None), (8, None)][..], None, (9, vec![0, 0])),
            (Gang, &[(1, None), (8, Some(4))], None, (5, vec![1, 4])),
            (Gang, &[(1, Some(1)), (8, Some(4))], Some(7), (7, vec![1, 4])),
            (Batch, &[(1, None), (8, Some(4))], None, (4, vec![0, 4])),
            (Batch, &[(3, None), (8, Some(4))], Some(6), (6, vec![0, 4])),
        ] {
            assert_eq!(minima(&unit(class, groups, given)), expected, "{class:?} {groups:?} {given:?}");
        }
    }

    #[test]
    fn minima_of_groups_follow_a_smaller_size() {
        let record = unit(WorkloadClass::Gang, &[(2, Some(2)), (4, Some(3))], None);
        let rows = RunningUnits::default();
        let scaled = scale(&record, &rows, "g1", 2).unwrap().unwrap();
        assert_eq!(minima(&scaled), (4, vec![2, 2]));
        assert_eq!(scaled.status.submitted.as_ref().map(|size| size.group_minima.clone()), Some(vec![2, 3]));
        assert_eq!(minima(&scale(&record, &rows, "g1", 3).unwrap().unwrap()), (5, vec![2, 3]));
        let stopped = stop(&record, &rows, &[0, 1]).unwrap().unwrap();
        assert_eq!(minima(&stopped), (4, vec![0, 3]));
    }
}
