//! Units that run again after their end: the same record, whose ended replicas return as their next incarnations.
//!
//! What was in the way of the unit is taken back: its cancellation, its suspension, the reason for which the dispatcher
//! ended it, and the count of restarts of the whole. Until the ended replicas are pending again the unit is being
//! restarted, as after a failure that restarts all of it, so no replica is ever there in two incarnations.

use std::collections::BTreeSet;

use godel_domain::{
    lifecycle::Counts,
    limits::SPEC_BYTES_MAX,
    node_affinity::PreferredNodes,
    running_units::{RunningUnit, RunningUnits},
    submission::NodeAffinitySubmission,
    unit::UnitRecord,
};

use super::{SpecViolation, ViolationList, affinity::node_affinity, grow::own_fits};

/// Which replicas of an ended unit run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryScope {
    /// Those that have not succeeded.
    Failed,
    /// Every one.
    All,
}

/// Replicas that one request has run again.
pub const RETRIED_MAX: usize = 1_000;

/// Why a unit does not run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryRefusal {
    /// The request is wrong.
    Invalid(SpecViolation),
    /// This replica has not ended.
    NotEnded(u32),
    /// Nothing of the unit is to run, or it starts again as a whole: single replicas do not run again.
    NotWanted,
    /// So many running units have yet to leave their nodes.
    Leaving(u32),
    /// Every replica has succeeded, so nothing would run.
    AllSucceeded,
}

/// The record of a unit that has ended, once it is retried at `now_ms` (Unix milliseconds).
///
/// # Errors
/// See [`RetryRefusal`].
pub fn retry(
    record: &UnitRecord,
    counts: &Counts,
    scope: RetryScope,
    now_ms: i64,
) -> Result<UnitRecord, RetryRefusal> {
    if counts.live > 0 {
        return Err(RetryRefusal::Leaving(counts.live));
    }
    let keeps_succeeded = scope == RetryScope::Failed;
    if keeps_succeeded && counts.replicas > 0 && counts.succeeded >= counts.replicas {
        return Err(RetryRefusal::AllSucceeded);
    }
    let returning = counts.failed + counts.stopped + if keeps_succeeded { 0 } else { counts.succeeded };
    let mut retried = record.clone();
    let status = &mut retried.status;
    (status.cancelled, status.suspended, status.ended) = (false, false, None);
    status.whole_restarts = 0;
    // Without anything that has ended there is nothing to wait for.
    status.restarting = returning > 0;
    status.keeps_succeeded = keeps_succeeded && returning > 0;
    status.retried_ms = now_ms;
    Ok(retried)
}

/// The nodes that task groups are to prefer whose replicas run again.
///
/// # Errors
/// Everything that is wrong with them.
pub fn preferred_nodes(given: NodeAffinitySubmission) -> Result<Vec<PreferredNodes>, Vec<SpecViolation>> {
    let mut report = ViolationList::default();
    let preferred = node_affinity(0, given, &mut report).preferred;
    let rename = |violation: SpecViolation| SpecViolation {
        field: violation.field.replace("task_groups[0].template.node_affinity.preferred", "preferred_nodes"),
        ..violation
    };
    report.finish(preferred).map_err(|found| found.into_iter().map(rename).collect())
}

/// The record of a unit of which these replicas run again, each as its next incarnation, whatever became of the last one, with what
/// their task groups prefer from then on, if anything is said; `None` if all of them are on their way already.
///
/// # Errors
/// See [`RetryRefusal`].
pub fn retry_replicas(
    record: &UnitRecord,
    rows: &RunningUnits,
    ordinals: &[u32],
    preferred: &[PreferredNodes],
) -> Result<Option<UnitRecord>, RetryRefusal> {
    let wrong =
        |field: String, description: String| RetryRefusal::Invalid(SpecViolation { field, description });
    if ordinals.len() > RETRIED_MAX {
        let description = format!("{} at once; at most {RETRIED_MAX}", ordinals.len());
        return Err(wrong("ordinals".to_owned(), description));
    }
    if let Some(at) = ordinals.iter().position(|ordinal| record.group_of(*ordinal).is_none()) {
        let description = format!("the unit has no replica {}", ordinals[at]);
        return Err(wrong(format!("ordinals[{at}]"), description));
    }
    if !record.is_wanted() {
        return Err(RetryRefusal::NotWanted);
    }
    let mut retried = record.clone();
    let next = &mut retried.status.next_incarnations;
    // Those that came back already are no longer awaited.
    next.retain(|(ordinal, incarnation)| rows.row(*ordinal).incarnation < *incarnation);
    let n_known = next.len();
    for ordinal in ordinals {
        let row = rows.row(*ordinal);
        let is_awaited = next.iter().any(|(known, _)| known == ordinal);
        if row.phase.is_ended() && !is_awaited {
            next.push((*ordinal, row.incarnation + 1));
        } else if row.phase.is_live() {
            return Err(RetryRefusal::NotEnded(*ordinal));
        }
    }
    if next.len() == n_known {
        return Ok(None);
    }
    if !preferred.is_empty() {
        let groups: BTreeSet<usize> = ordinals.iter().filter_map(|of| record.group_of(*of)).collect();
        let is_there = |row: &RunningUnit| groups.contains(&usize::from(row.group));
        if rows.live().any(|(_, row)| is_there(row)) {
            let description = "another replica of a task group is on a node: leave them out".to_owned();
            return Err(wrong("preferred_nodes".to_owned(), description));
        }
        for group in groups {
            preferred.clone_into(&mut retried.spec.task_groups[group].template.node_affinity.preferred);
        }
        if !own_fits(&retried) {
            let description =
                format!("the templates of the unit would have more than {SPEC_BYTES_MAX} bytes");
            return Err(wrong("preferred_nodes".to_owned(), description));
        }
        // What was submitted is not known any more.
        retried.status.updated = true;
    }
    Ok(Some(retried))
}

#[cfg(test)]
mod tests {
    use godel_domain::{running_units::Phase, unit::UnitEnd};
    use godel_testkit::BuildUnit as _;

    use super::*;

    fn counts(succeeded: u32, failed: u32, stopped: u32, live: u32) -> Counts {
        Counts { replicas: 4, succeeded, failed, stopped, live, ..Counts::default() }
    }

    #[test]
    fn what_kept_a_unit_from_running_is_taken_back() {
        let unit = godel_testkit::unit("u").cancelled(true).suspended(true).whole_restarts(3);
        let unit = unit.ended(Some(UnitEnd::Deadline));
        let again = retry(&unit, &counts(1, 2, 1, 0), RetryScope::Failed, 7).unwrap();
        assert!(again.status.restarting && again.status.keeps_succeeded && !again.is_wanted());
        assert!(!again.status.cancelled && !again.status.suspended && again.status.ended.is_none());
        assert_eq!((again.status.whole_restarts, again.status.retried_ms), (0, 7));
        let all = retry(&unit, &counts(4, 0, 0, 0), RetryScope::All, 7).unwrap();
        assert!(all.status.restarting && !all.status.keeps_succeeded);
        let never = retry(&unit, &counts(0, 0, 0, 0), RetryScope::Failed, 7).unwrap();
        assert!(never.is_wanted(), "nothing has ended that would have to come back first");
    }

    #[test]
    fn single_replicas_come_back_as_their_next_incarnation() {
        let unit = godel_testkit::unit("u").replicas(3);
        let mut rows = RunningUnits::default();
        rows.rows.grow(&[2]);
        (rows.rows.get_mut(0).unwrap().phase, rows.rows.get_mut(0).unwrap().incarnation) = (Phase::Failed, 4);
        rows.rows.get_mut(1).unwrap().phase = Phase::Running;
        let retried = retry_replicas(&unit, &rows, &[0], &[]).unwrap().unwrap();
        assert_eq!(retried.status.next_incarnations, [(0, 5)]);
        assert_eq!(retry_replicas(&retried, &rows, &[0], &[]), Ok(None), "it is on its way");
        assert_eq!(retry_replicas(&unit, &rows, &[2], &[]), Ok(None), "it waits for its first node");
        assert_eq!(retry_replicas(&unit, &rows, &[0, 1], &[]), Err(RetryRefusal::NotEnded(1)));
        let counts = Counts::of(&retried, &rows);
        assert_eq!((counts.failed, counts.stopped), (0, 1), "so it has not failed");
        // It came back, and fails again.
        rows.rows.get_mut(0).unwrap().incarnation = 5;
        let again = retry_replicas(&retried, &rows, &[0], &[]).unwrap().unwrap();
        assert_eq!(again.status.next_incarnations, [(0, 6)]);
        let wrong = |ordinals: &[u32]| match retry_replicas(&unit, &rows, ordinals, &[]) {
            Err(RetryRefusal::Invalid(violation)) => violation.field,
            other => panic!("{other:?}"),
        };
        assert_eq!((wrong(&[0, 3]), wrong(&[0; RETRIED_MAX + 1])), ("ordinals[1]".into(), "ordinals".into()));
        let cancelled = unit.cancelled(true);
        assert_eq!(retry_replicas(&cancelled, &rows, &[0], &[]), Err(RetryRefusal::NotWanted));
    }

    #[test]
    fn replicas_that_come_back_may_prefer_other_nodes() {
        let unit = godel_testkit::unit("u").replicas(2);
        let mut rows = RunningUnits::default();
        rows.rows.grow(&[1]);
        rows.rows.get_mut(0).unwrap().phase = Phase::Failed;
        let given = |weight| NodeAffinitySubmission {
            preferred: vec![(weight, Vec::new())],
            ..NodeAffinitySubmission::default()
        };
        let wrong: Vec<String> =
            preferred_nodes(given(0)).unwrap_err().into_iter().map(|one| one.field).collect();
        assert_eq!(wrong, ["preferred_nodes[0].weight", "preferred_nodes[0].nodes"]);
        let preferred = [PreferredNodes { weight: 7, term: Vec::new() }];
        let retried = retry_replicas(&unit, &rows, &[0], &preferred).unwrap().unwrap();
        assert_eq!(retried.spec.task_groups[0].template.node_affinity.preferred, preferred);
        assert_eq!(retry_replicas(&retried, &rows, &[0], &preferred), Ok(None), "it is on its way");
        rows.rows.get_mut(1).unwrap().phase = Phase::Running;
        let refused = retry_replicas(&unit, &rows, &[0], &preferred);
        assert!(matches!(refused, Err(RetryRefusal::Invalid(found)) if found.field == "preferred_nodes"));
    }

    #[test]
    fn a_unit_that_nothing_would_come_of_is_refused() {
        let unit = godel_testkit::unit("u").cancelled(true);
        let refused = |counts: &Counts, scope| retry(&unit, counts, scope, 7).unwrap_err();
        assert_eq!(refused(&counts(3, 0, 0, 1), RetryScope::All), RetryRefusal::Leaving(1));
        assert_eq!(refused(&counts(4, 0, 0, 0), RetryScope::Failed), RetryRefusal::AllSucceeded);
    }
}
