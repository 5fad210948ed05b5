//! What becomes of units as their running units come and go.

#![allow(clippy::unwrap_used, reason = "a test")]

use godel_base::ids::{NodeId, Revision, UnitId};
use godel_domain::{
    lifecycle::*,
    running_units::{
        Bind, Evict, EvictionReason, Phase as RowPhase, Requeue, RunChange, RunningUnit, RunningUnits,
        Statuses,
    },
    submission::{GroupSubmission, Submission},
    unit::{OnBelowMin, OnEviction, OnFailure, RestartPolicy, TaskGroup, UnitEnd, UnitRecord, WorkloadClass},
};
use godel_rules::admission::{admit, scale::scale};
use godel_testkit::BuildUnit as _;
use proptest::prelude::*;

mod stateful;

fn unit(replicas: u32, min_member: u32) -> UnitRecord {
    let group = GroupSubmission { replicas, ..GroupSubmission::default() };
    let submission = Submission {
        name: "u".into(),
        uid: "0190163d-8694-739b-aea5-966c26f8ad91".into(),
        task_groups: vec![group],
        min_member: Some(min_member),
        ..Submission::default()
    };
    UnitRecord::new(UnitId(1), admit(submission).unwrap().spec)
}

/// How many of a unit count towards its minimum.
fn counted(rows: &RunningUnits, terms: &GangTerms) -> usize {
    godel_domain::lifecycle::counted(rows, terms).total
}

/// Pending, live, running, succeeded, failed; the rest of the replicas is stopped.
fn counts(record: &UnitRecord, numbers: [u32; 5]) -> Counts {
    let [pending, live, running, succeeded, failed] = numbers;
    Counts {
        replicas: record.spec.replicas(),
        pending,
        live,
        placed: live,
        running,
        succeeded,
        failed,
        ..Counts::default()
    }
}

#[test]
fn phases() {
    let all_or_nothing = unit(4, 4);
    let single = unit(4, 1);
    let cases: [(&str, &UnitRecord, [u32; 5], Soft, UnitPhase); 16] = [
        ("new", &single, [4, 0, 0, 0, 0], Soft::Waiting, UnitPhase::Queued),
        ("held", &single, [4, 0, 0, 0, 0], Soft::Dispatched, UnitPhase::Scheduling),
        ("parked", &single, [4, 0, 0, 0, 0], Soft::Parked, UnitPhase::Unschedulable),
        ("one is enough", &single, [3, 1, 0, 0, 0], Soft::Parked, UnitPhase::Scheduled),
        ("gang", &all_or_nothing, [0, 4, 3, 0, 0], Soft::Waiting, UnitPhase::Scheduled),
        ("gang runs", &all_or_nothing, [0, 4, 4, 0, 0], Soft::Waiting, UnitPhase::Running),
        ("gang, some ended", &all_or_nothing, [0, 1, 1, 2, 1], Soft::Waiting, UnitPhase::Running),
        ("gang broken", &all_or_nothing, [1, 3, 3, 0, 0], Soft::Waiting, UnitPhase::Queued),
        ("gang broken and held", &all_or_nothing, [1, 3, 3, 0, 0], Soft::Dispatched, UnitPhase::Scheduling),
        ("runs", &single, [3, 1, 1, 0, 0], Soft::Dispatched, UnitPhase::Running),
        ("between two", &single, [2, 1, 0, 1, 0], Soft::Dispatched, UnitPhase::Scheduled),
        ("nothing live", &single, [2, 0, 0, 2, 0], Soft::Dispatched, UnitPhase::Scheduling),
        ("all succeeded", &single, [0, 0, 0, 4, 0], Soft::Waiting, UnitPhase::Completed),
        ("one failed", &single, [0, 0, 0, 3, 1], Soft::Waiting, UnitPhase::Failed),
        ("evicted, to come back", &single, [0, 0, 0, 3, 0], Soft::Waiting, UnitPhase::Queued),
        ("all but one", &single, [0, 1, 1, 3, 0], Soft::Waiting, UnitPhase::Running),
    ];
    for (name, spec, numbers, soft, expect) in cases {
        let counts = counts(spec, numbers);
        assert_eq!(phase(spec, &counts, soft), expect, "{name}");
        let cancelled = spec.clone().cancelled(true);
        assert_eq!(phase(&cancelled, &counts, soft), UnitPhase::Cancelled, "{name}, cancelled");
        assert_eq!(is_over(UnitPhase::Cancelled, &counts), counts.live == 0, "{name}");
    }
}

#[test]
fn the_transition_table_is_rendered() {
    let text = render_transitions();
    assert_eq!(text.lines().count(), 2 + TRANSITIONS.len());
    assert!(text.contains("| Scheduling, Unschedulable | Queued | its scheduler was lost or gave it back |"));
    assert!(
        !may_become(UnitPhase::Cancelled, UnitPhase::Running)
            && may_become(UnitPhase::Running, UnitPhase::Cancelled)
    );
    assert!(may_become(UnitPhase::Completed, UnitPhase::Queued), "it is retried");
    assert!(!may_become(UnitPhase::Completed, UnitPhase::Suspended), "its end stays its end");
}

#[test]
fn what_is_pending_ascends_though_task_groups_take_turns() {
    let unit = unit(2, 1);
    let other = unit.spec.task_groups[0].clone();
    let mut unit = unit.group(other);
    unit.status.ordinals[0] = vec![(0, 1), (3, 4)];
    unit.status.ordinals[1] = vec![(1, 3)];
    let mut rows = rows_of(&[(RowPhase::Pending, None); 4]);
    for (row, incarnation) in rows.rows.values_mut().zip([4, 5, 6, 7]) {
        row.incarnation = incarnation;
    }
    assert_eq!(pending(&unit, &rows), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
}

#[test]
fn scaled_in_and_cancelled_rows_are_surplus_highest_first() {
    let spec = unit(4, 1);
    let mut rows = RunningUnits::default();
    let bind = Bind { ordinals: vec![0, 1, 2, 3], nodes: vec![NodeId(1); 4], ..Bind::default() };
    rows.apply(&RunChange::Bind(bind), Revision(1), 7, |_, _, _| {});
    assert_eq!(surplus(&spec, &rows, 10).1, [0u32; 0]);
    let small = scale(&spec, &rows, "", 1).unwrap().unwrap();
    assert_eq!(surplus(&small, &rows, 2), (EvictionReason::ScaledIn, vec![3, 2], vec![0, 0]));
    assert_eq!(Counts::of(&small, &rows).surplus, 3);
    let cancelled = spec.cancelled(true);
    assert_eq!(surplus(&cancelled, &rows, 10).1, [3, 2, 1, 0]);
    assert_eq!(pending(&cancelled, &rows).0, [0u32; 0]);
}

fn rows_of(phases: &[(RowPhase, Option<EvictionReason>)]) -> RunningUnits {
    let rows = phases.iter().map(|(phase, eviction)| RunningUnit {
        phase: *phase,
        eviction: *eviction,
        ..RunningUnit::default()
    });
    RunningUnits { rows: rows.collect(), ..RunningUnits::default() }
}

#[test]
fn an_evicted_one_has_failed_where_its_unit_says_so() {
    let failing = unit(3, 1).on_eviction(OnEviction::Fail);
    let gone = |reason| (RowPhase::Stopped, reason);
    let rows =
        rows_of(&[gone(Some(EvictionReason::Drained)), gone(None), gone(Some(EvictionReason::BelowMin))]);
    let counts = Counts::of(&failing, &rows);
    assert_eq!((counts.failed, counts.stopped), (2, 1), "the rest of a broken gang comes back");
    assert_eq!(Counts::of(&unit(3, 1), &rows).stopped, 3);
    let all = rows_of(&[gone(Some(EvictionReason::NodeLost)); 3]);
    assert_eq!(phase(&failing, &Counts::of(&failing, &all), Soft::Waiting), UnitPhase::Failed);
}

#[test]
fn a_failure_for_good_is_kept_or_turns_the_unit() {
    let running = (RowPhase::Running, None);
    let failed = rows_of(&[running, (RowPhase::Failed, None), running]);
    let of = |on_failure, whole_restarts| {
        unit(3, 3).on_failure(on_failure).whole_restarts(whole_restarts).max_restarts(2)
    };
    let look = |record: &UnitRecord, rows: &RunningUnits| {
        let turned = turned(record, &Counts::of(record, rows), rows, 0);
        turned.map(|record| (record.status.ended, record.status.restarting, record.status.whole_restarts))
    };
    let ends = Some((Some(UnitEnd::Failure), false, 0));
    assert_eq!(look(&of(OnFailure::Keep, 0), &failed), None);
    assert_eq!(look(&of(OnFailure::Stop, 0), &failed), ends);
    assert_eq!(look(&of(OnFailure::Restart, 1), &failed), Some((None, true, 2)));
    assert_eq!(look(&of(OnFailure::Restart, 2), &failed), Some((Some(UnitEnd::Failure), false, 2)));
    // What leaves for others comes back, whatever its exit code; unless that is a failure.
    let drained = rows_of(&[running, (RowPhase::Failed, Some(EvictionReason::Drained)), running]);
    assert_eq!(look(&of(OnFailure::Stop, 0), &drained), None);
    let brittle = of(OnFailure::Stop, 0).on_eviction(OnEviction::Fail);
    assert_eq!(look(&brittle, &drained), ends);
    // Where nothing is left there is nothing to end.
    let all = rows_of(&[(RowPhase::Succeeded, None), (RowPhase::Failed, None), (RowPhase::Succeeded, None)]);
    assert_eq!(look(&of(OnFailure::Stop, 0), &all), None);
    assert_eq!(
        phase(&of(OnFailure::Stop, 0), &Counts::of(&of(OnFailure::Stop, 0), &all), Soft::Waiting),
        UnitPhase::Failed
    );
    let again = of(OnFailure::Restart, 0);
    assert_eq!(
        phase(&again, &Counts::of(&again, &all), Soft::Waiting),
        UnitPhase::Queued,
        "all of it comes back"
    );
}

#[test]
fn a_whole_restart_binds_min_member_together_again() {
    let spec = unit(3, 3).on_failure(OnFailure::Restart).max_restarts(2).restarting(true);
    let left = Some(EvictionReason::Failure);
    let mut rows =
        rows_of(&[(RowPhase::Stopped, left), (RowPhase::Failed, None), (RowPhase::Succeeded, None)]);
    assert_eq!(pending(&spec, &rows).0, [0u32; 0], "nothing comes before all have left");
    assert_eq!(turned(&spec, &Counts::of(&spec, &rows), &rows, 0), None);
    let again = Requeue { ordinals: vec![0, 1, 2], incarnations: vec![1; 3], anew: false };
    rows.apply(&RunChange::Requeue(again), Revision(3), 1, |_, _, _| {});
    let done = turned(&spec, &Counts::of(&spec, &rows), &rows, 0).unwrap();
    assert!(!done.status.restarting);
    assert_eq!(pending(&done, &rows), (vec![0, 1, 2], vec![1; 3]));
    assert_eq!((counted(&rows, &GangTerms::of(&done)), rows.was_placed()), (0, false));
    // One that was drained meanwhile comes back the same way.
    rows.rows.get_mut(0).unwrap().eviction = None;
    assert_eq!(counted(&rows, &GangTerms::of(&done)), 0);
}

#[test]
fn a_broken_gang_keeps_restarts_or_stops() {
    let running = (RowPhase::Running, None);
    let rows = rows_of(&[running, (RowPhase::Stopped, Some(EvictionReason::NodeLost)), running, running]);
    let of = |on_below_min, min_member| unit(4, min_member).on_below_min(on_below_min);
    let look = |spec: &UnitRecord| {
        let counts = Counts::of(spec, &rows);
        (leaving(spec, &counts, &rows, 10), has_to_end(spec, &counts, &rows, 0))
    };
    let nobody = (EvictionReason::ScaledIn, vec![], vec![]);
    assert_eq!(look(&of(OnBelowMin::Keep, 4)), (nobody.clone(), None));
    let rest = (EvictionReason::BelowMin, vec![3, 2, 0], vec![0; 3]);
    assert_eq!(look(&of(OnBelowMin::Restart, 4)), (rest.clone(), None));
    assert_eq!(look(&of(OnBelowMin::Restart, 3)), (nobody.clone(), None), "enough are left");
    assert_eq!(look(&of(OnBelowMin::Stop, 4)), (nobody, Some(UnitEnd::BelowMin)));
    let never = RunningUnits::default();
    let brittle = of(OnBelowMin::Stop, 4);
    assert_eq!(has_to_end(&brittle, &Counts::of(&brittle, &never), &never, 0), None, "it never began");
    let ended = of(OnBelowMin::Stop, 4).ended(Some(UnitEnd::BelowMin));
    assert_eq!(look(&ended), (rest, None));
    assert_eq!(phase(&ended, &Counts::of(&ended, &rows), Soft::Waiting), UnitPhase::Failed);
    assert_eq!(pending(&ended, &rows).0, [0u32; 0]);
    let counts = |on_below_min, min_member| counted(&rows, &GangTerms::of(&of(on_below_min, min_member)));
    assert_eq!((counts(OnBelowMin::Keep, 4), counts(OnBelowMin::Restart, 3)), (4, 3));
    assert_eq!(counts(OnBelowMin::Restart, 4), 0, "the rest leaves first");
    let rows =
        rows_of(&[running, (RowPhase::Succeeded, None), (RowPhase::Pending, None), (RowPhase::Failed, None)]);
    let counts = |min_member| counted(&rows, &GangTerms::of(&of(OnBelowMin::Restart, min_member)));
    assert_eq!((counts(4), counts(3)), (2, 3), "who has ended by itself does not come back");
    let lost = Some(EvictionReason::NodeLost);
    let rows = rows_of(&[
        (RowPhase::Stopped, lost),
        (RowPhase::Succeeded, lost),
        (RowPhase::Stopped, Some(EvictionReason::BelowMin)),
        (RowPhase::Stopped, Some(EvictionReason::ScaledIn)),
    ]);
    for (on_eviction, restart_policy, n) in [
        (OnEviction::Fail, RestartPolicy::Always, 2),
        (OnEviction::Fail, RestartPolicy::Never, 2),
        (OnEviction::Requeue, RestartPolicy::Never, 1),
        (OnEviction::Requeue, RestartPolicy::Always, 0),
    ] {
        let spec = of(OnBelowMin::Restart, 4).on_eviction(on_eviction).restart_policy(restart_policy);
        assert_eq!(
            counted(&rows, &GangTerms::of(&spec)),
            n,
            "{on_eviction:?}, {restart_policy:?}: nor do these"
        );
    }
}

#[test]
fn a_gang_that_left_whole_comes_back_whole() {
    use EvictionReason::{Drained, NodeLost, Preempted};
    let (running, ended) = ((RowPhase::Running, None), (RowPhase::Succeeded, None));
    let gone = |reason| (RowPhase::Stopped, Some(reason));
    let back = (RowPhase::Pending, None);
    let kept = |min_member| unit(4, min_member).on_below_min(OnBelowMin::Keep);
    let lacks = |spec: &UnitRecord, rows: &[(RowPhase, Option<EvictionReason>); 4]| {
        let mut rows = rows_of(rows);
        for ordinal in 0..4 {
            let row = rows.rows.get_mut(ordinal).unwrap();
            // What waits again is the next incarnation of what was there.
            row.incarnation = u32::from(row.phase == RowPhase::Pending);
        }
        let terms = GangTerms::of(spec);
        terms.lacks(&godel_domain::lifecycle::counted(&rows, &terms))
    };
    for reason in [Preempted, Drained, NodeLost] {
        assert_eq!(lacks(&kept(4), &[gone(reason); 4]), 4, "{reason:?}");
        assert_eq!(
            lacks(&kept(4), &[back, gone(reason), back, back]),
            4,
            "{reason:?}: some are read to be back"
        );
        let leaving = (RowPhase::Running, Some(reason));
        assert_eq!(lacks(&kept(4), &[leaving, back, back, back]), 4, "{reason:?}: nobody stays");
        assert_eq!(
            lacks(&kept(4), &[running, gone(reason), back, back]),
            0,
            "{reason:?}: one waits for the others"
        );
        assert_eq!(
            lacks(&kept(4), &[ended, gone(reason), back, back]),
            3,
            "{reason:?}: one is over for good"
        );
    }
    assert_eq!(lacks(&kept(3), &[back; 4]), 3, "as many as its first binding had");
    assert_eq!(lacks(&kept(1), &[back; 4]), 0, "each one by itself is of use");
}

#[test]
fn a_gang_that_stops_below_its_minimum_ends_when_all_of_it_has_left() {
    let rows = rows_of(&[(RowPhase::Stopped, Some(EvictionReason::Preempted)); 4]);
    let spec = unit(4, 4).on_below_min(OnBelowMin::Stop);
    assert_eq!(has_to_end(&spec, &Counts::of(&spec, &rows), &rows, 0), Some(UnitEnd::BelowMin));
}

#[test]
fn who_is_wanted_no_more_counts_no_more() {
    let ended = [(RowPhase::Running, None), (RowPhase::Succeeded, None), (RowPhase::Succeeded, None)];
    let rows = rows_of(&ended);
    for on_below_min in [OnBelowMin::Keep, OnBelowMin::Restart, OnBelowMin::Stop] {
        let gang = |n| unit(n, n).on_below_min(on_below_min);
        assert_eq!(counted(&rows, &GangTerms::of(&gang(3))), 3);
        assert_eq!(counted(&rows, &GangTerms::of(&gang(2))), 2, "{on_below_min:?}: scaled in");
        let mut apart = gang(2);
        apart.status.ordinals[0] = vec![(0, 1), (2, 3), (4, 4)];
        assert_eq!(counted(&rows, &GangTerms::of(&apart)), 2);
        apart.status.ordinals[0] = vec![(3, 5)];
        assert_eq!(counted(&rows, &GangTerms::of(&apart)), 0, "{on_below_min:?}: others are wanted");
    }
}

#[test]
fn a_resumed_unit_returns_whole_as_its_next_incarnations() {
    use EvictionReason::{NodeLost, Suspended};
    let gang = |on_below_min| unit(4, 4).on_below_min(on_below_min);
    let suspended = |on_below_min| gang(on_below_min).suspended(true);
    let mut rows = RunningUnits::default();
    let bind = |ordinals: Vec<u32>, incarnation| {
        let n = ordinals.len();
        let (incarnations, nodes) = (vec![incarnation; n], vec![NodeId(1); n]);
        RunChange::Bind(Bind { ordinals, incarnations, nodes, ..Bind::default() })
    };
    rows.apply(&bind(vec![0, 1, 2, 3], 0), Revision(1), 7, |_, _, _| {});
    let spec = suspended(OnBelowMin::Keep);
    let counts = Counts::of(&spec, &rows);
    assert_eq!(phase(&spec, &counts, Soft::Waiting), UnitPhase::Suspended);
    assert_eq!((counts.pending, counts.surplus), (0, 4));
    assert_eq!(leaving(&spec, &counts, &rows, 10), (Suspended, vec![3, 2, 1, 0], vec![0; 4]));
    let cancelled = spec.clone().cancelled(true);
    assert_eq!(phase(&cancelled, &counts, Soft::Waiting), UnitPhase::Cancelled);

    // One of them was on a lost node, which is nobody's suspension.
    let evict = |ordinals: Vec<u32>, reason| {
        let incarnations = vec![0; ordinals.len()];
        let (by, preemptor) = (String::new(), UnitId(0));
        RunChange::Evict(Evict { ordinals, incarnations, reason, by, preemptor })
    };
    rows.apply(&evict(vec![3], NodeLost), Revision(2), 7, |_, _, _| {});
    rows.apply(&evict(vec![0, 1, 2], Suspended), Revision(3), 7, |_, _, _| {});
    let phases = vec![RowPhase::Stopped; 3];
    let stopped = Statuses { ordinals: vec![0, 1, 2], phases, ..Statuses::default() };
    rows.apply(&RunChange::Statuses(stopped), Revision(4), 7, |_, _, _| {});
    assert!(rows.rows.values().all(RunningUnit::was_sent_away));
    let failing = spec.clone().on_eviction(OnEviction::Fail);
    assert_eq!(Counts::of(&failing, &rows).failed, 1, "the lost one");
    let requeue = Requeue { ordinals: vec![0, 1, 2, 3], incarnations: vec![1; 4], anew: false };
    rows.apply(&RunChange::Requeue(requeue), Revision(5), 7, |_, _, _| {});
    assert_eq!(pending(&gang(OnBelowMin::Keep), &rows), (vec![0, 1, 2, 3], vec![1; 4]));
    for on_below_min in [OnBelowMin::Keep, OnBelowMin::Restart, OnBelowMin::Stop] {
        let gang = gang(on_below_min);
        assert_eq!(counted(&rows, &GangTerms::of(&gang)), 0, "{on_below_min:?}: all or nothing once more");
        let counts = Counts::of(&gang, &rows);
        assert_eq!(has_to_end(&gang, &counts, &rows, 0), None, "{on_below_min:?}");
        assert_eq!(phase(&gang, &counts, Soft::Waiting), UnitPhase::Queued);
    }
    rows.apply(&bind(vec![0, 1, 2, 3], 1), Revision(6), 9, |_, _, _| {});
    assert!(rows.rows.values().all(|row| row.eviction.is_none() && row.had_node()));
    assert_eq!(counted(&rows, &GangTerms::of(&gang(OnBelowMin::Keep))), 4);
}

#[test]
fn a_unit_is_active_since_its_earliest_present_binding() {
    let spec = unit(3, 1).active_deadline_ms(100);
    let row = |phase, bound_time_ms| RunningUnit { phase, bound_time_ms, ..RunningUnit::default() };
    let look = |spec: &UnitRecord, rows: Vec<RunningUnit>, now_ms| {
        let rows = RunningUnits { rows: rows.into(), ..RunningUnits::default() };
        let counts = Counts::of(spec, &rows);
        (deadline_ms(spec, &counts, &rows), has_to_end(spec, &counts, &rows, now_ms))
    };
    let rows = || vec![row(RowPhase::Pending, 0), row(RowPhase::Running, 40), row(RowPhase::Stopped, 10)];
    assert_eq!(look(&spec, rows(), 139), (Some(140), None), "what was sent away does not count");
    assert_eq!(look(&spec, rows(), 140), (Some(140), Some(UnitEnd::Deadline)));
    let ended = || vec![row(RowPhase::Succeeded, 10), row(RowPhase::Running, 40)];
    assert_eq!(look(&spec, ended(), 110), (Some(110), Some(UnitEnd::Deadline)));
    assert_eq!(look(&spec, vec![row(RowPhase::Failed, 10); 3], 999), (None, None), "it is over");
    assert_eq!(look(&spec, vec![], 999), (None, None), "it waits");
    assert_eq!(look(&spec.clone().suspended(true), rows(), 999), (None, None));
    assert_eq!(look(&unit(3, 1), rows(), 999), (None, None), "without one");
    let ended = spec.ended(Some(UnitEnd::Deadline));
    let rows = RunningUnits { rows: rows().into(), ..RunningUnits::default() };
    assert_eq!(surplus(&ended, &rows, 9), (EvictionReason::Deadline, vec![1], vec![0]));
    let gone = RunningUnit {
        phase: RowPhase::Stopped,
        eviction: Some(EvictionReason::Deadline),
        ..RunningUnit::default()
    };
    assert!(!gone.was_sent_away());
}

#[test]
fn a_unit_that_is_retried_is_placed_whole_once_more() {
    use EvictionReason::{BelowMin, Cancelled, Deadline, Preempted};
    let ended = [
        (RowPhase::Failed, None),
        (RowPhase::Stopped, Some(Cancelled)),
        (RowPhase::Stopped, Some(Preempted)),
        (RowPhase::Stopped, Some(BelowMin)),
        (RowPhase::Stopped, Some(Deadline)),
        (RowPhase::Succeeded, None),
    ];
    for on_below_min in [OnBelowMin::Keep, OnBelowMin::Restart, OnBelowMin::Stop] {
        for keeps_succeeded in [true, false] {
            let record = unit(6, 6).on_below_min(on_below_min).active_deadline_ms(10);
            let mut retried = record.restarting(true).keeps_succeeded(keeps_succeeded).retried_ms(50);
            let mut rows = rows_of(&ended);
            let terms = GangTerms::of(&retried);
            let returns = |ordinal: &u32| terms.comes_again(&rows.row(*ordinal));
            let ordinals: Vec<u32> = (0..6).filter(returns).collect();
            assert_eq!(ordinals.len(), if keeps_succeeded { 5 } else { 6 });
            assert_eq!(
                turned(&retried, &Counts::of(&retried, &rows), &rows, 99),
                None,
                "they are not back yet"
            );
            let incarnations = vec![1; ordinals.len()];
            let requeue = Requeue { ordinals: ordinals.clone(), incarnations, anew: true };
            rows.apply(&RunChange::Requeue(requeue), Revision(2), 60, |_, _, _| {});
            retried = turned(&retried, &Counts::of(&retried, &rows), &rows, 99).unwrap();
            assert!(retried.is_wanted() && !retried.status.keeps_succeeded);
            let counts = Counts::of(&retried, &rows);
            assert_eq!(pending(&retried, &rows).0, ordinals);
            let n_there = 6 - ordinals.len();
            assert_eq!(counted(&rows, &GangTerms::of(&retried)), n_there, "{on_below_min:?}");
            assert_eq!(has_to_end(&retried, &counts, &rows, 99), None, "what ended before does not count");
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Bind(u32),
    Evict(u32, bool),
    Status(u32, RowPhase),
    Requeue(u32),
    Scale(u32),
    Suspend(bool),
    Cancel,
}

fn event() -> impl Strategy<Value = Event> {
    let phases = prop::sample::select(vec![
        RowPhase::Starting,
        RowPhase::Running,
        RowPhase::Succeeded,
        RowPhase::Failed,
        RowPhase::Stopped,
    ]);
    prop_oneof![
        8 => (0..8u32).prop_map(Event::Bind),
        2 => (0..8u32, any::<bool>()).prop_map(|(ordinal, suspends)| Event::Evict(ordinal, suspends)),
        10 => (0..8u32, phases).prop_map(|(ordinal, phase)| Event::Status(ordinal, phase)),
        4 => (0..8u32).prop_map(Event::Requeue),
        2 => (1..6u32).prop_map(Event::Scale),
        2 => any::<bool>().prop_map(Event::Suspend),
        1 => Just(Event::Cancel),
    ]
}

fn change(rows: &RunningUnits, event: &Event) -> Option<RunChange> {
    let one = |ordinal: u32| (vec![ordinal], vec![rows.row(ordinal).incarnation]);
    Some(match event {
        Event::Bind(ordinal) => {
            let (ordinals, incarnations) = one(*ordinal);
            RunChange::Bind(Bind { ordinals, incarnations, nodes: vec![NodeId(1)], ..Bind::default() })
        }
        Event::Evict(ordinal, suspends) => {
            let (ordinals, incarnations) = one(*ordinal);
            RunChange::Evict(Evict {
                ordinals,
                incarnations,
                reason: if *suspends { EvictionReason::Suspended } else { EvictionReason::Drained },
                by: String::new(),
                preemptor: UnitId(0),
            })
        }
        Event::Status(ordinal, phase) => {
            let (ordinals, incarnations) = one(*ordinal);
            RunChange::Statuses(Statuses {
                ordinals,
                incarnations,
                phases: vec![*phase],
                ..Statuses::default()
            })
        }
        Event::Requeue(ordinal) => {
            let (ordinals, incarnations) = one(*ordinal);
            RunChange::Requeue(Requeue {
                ordinals,
                incarnations: incarnations.iter().map(|one| one + 1).collect(),
                anew: *ordinal % 2 == 0,
            })
        }
        Event::Scale(_) | Event::Suspend(_) | Event::Cancel => return None,
    })
}

proptest! {
    /// Followed counts equal counts from scratch, and what they say equals a look at each ordinal.
    #[test]
    fn counts_follow_the_rows(
        events in prop::collection::vec(event(), 0..60),
        min_member in 1..4u32,
        on_eviction in prop::sample::select(vec![OnEviction::Requeue, OnEviction::Fail]),
        on_below_min in prop::sample::select(vec![OnBelowMin::Keep, OnBelowMin::Restart, OnBelowMin::Stop]),
    ) {
        let mut record = unit(4, min_member).on_eviction(on_eviction).on_below_min(on_below_min);
        let mut rows = RunningUnits::default();
        let mut counts = Counts::of(&record, &rows);
        for (revision, event) in (1u64..).zip(&events) {
            match event {
                Event::Scale(replicas) if !record.status.cancelled => {
                    if let Ok(Some(scaled)) = scale(&record, &rows, "", *replicas) {
                        record = scaled;
                        counts = Counts::of(&record, &rows);
                    }
                }
                Event::Suspend(suspended) => {
                    record.status.suspended = *suspended;
                    counts = Counts::of(&record, &rows);
                }
                Event::Cancel => {
                    record.status.cancelled = true;
                    counts = Counts::of(&record, &rows);
                }
                _ => if let Some(change) = change(&rows, event) {
                    rows.apply(&change, Revision(revision), 1, |ordinal, before, after| {
                        counts.move_row(&record, ordinal, before, after);
                    });
                },
            }
            prop_assert_eq!(&counts, &Counts::of(&record, &rows));
            let (ordinals, incarnations) = pending(&record, &rows);
            prop_assert_eq!(ordinals.len(), counts.pending as usize);
            for (ordinal, incarnation) in ordinals.iter().zip(&incarnations) {
                prop_assert_eq!(rows.row(*ordinal).incarnation, *incarnation);
            }
            prop_assert_eq!(surplus(&record, &rows, 100).1.len(), counts.surplus as usize);
            let (reason, leaving, _) = leaving(&record, &counts, &rows, 100);
            let n_leaving = n_leaving(&record, &counts) as usize;
            let are_two_kinds = counts.surplus > 0;
            prop_assert_eq!(leaving.len(), if are_two_kinds { counts.surplus as usize } else { n_leaving });
            prop_assert!(reason != EvictionReason::BelowMin || on_below_min == OnBelowMin::Restart);
            prop_assert_eq!(counts.live, counts.placed + counts.evicting + counts.surplus);
            let named = counts.succeeded + counts.failed + counts.stopped;
            prop_assert!(named + counts.pending + counts.placed <= counts.replicas);
        }
    }
}

#[test]
fn a_unit_is_whole_once_each_group_has_its_minimum() {
    let launcher = godel_testkit::group("launcher", 1, Default::default());
    let workers = godel_testkit::group("workers", 4, Default::default());
    let groups = vec![TaskGroup { min_member: 1, ..launcher }, TaskGroup { min_member: 2, ..workers }];
    let record = godel_testkit::unit("u").task_groups(groups).min_member(3).on_below_min(OnBelowMin::Restart);
    let running = |ordinals: &[u32]| {
        let phase = |ordinal| match ordinals.contains(&ordinal) {
            true => (RowPhase::Running, None),
            false => (RowPhase::Pending, None),
        };
        rows_of(&(0..5).map(phase).collect::<Vec<_>>())
    };
    // Ordinals that run; how many more are needed at least, the groups that lack some, the phase, how many have to leave.
    type Expected<'a> = (usize, &'a [(u16, usize)], UnitPhase, u32);
    let cases: [(&[u32], Expected<'_>); 5] = [
        (&[], (3, &[(0, 1), (1, 2)], UnitPhase::Queued, 0)),
        (&[0, 1, 2], (0, &[], UnitPhase::Running, 0)),
        (&[0, 1, 2, 3, 4], (0, &[], UnitPhase::Running, 0)),
        // Once it is broken nothing counts that has to leave.
        (&[1, 2, 3, 4], (3, &[(0, 1), (1, 2)], UnitPhase::Queued, 4)),
        (&[0, 1], (3, &[(0, 1), (1, 2)], UnitPhase::Queued, 2)),
    ];
    let terms = GangTerms::of(&record);
    for (ordinals, expected) in cases {
        let rows = running(ordinals);
        let (counted, counts) = (godel_domain::lifecycle::counted(&rows, &terms), Counts::of(&record, &rows));
        let lacking: Vec<(u16, usize)> = terms.lacking(&counted).collect();
        let phase = phase(&record, &counts, Soft::Waiting);
        let found = (terms.lacks(&counted), lacking.as_slice(), phase, n_leaving(&record, &counts));
        assert_eq!(found, expected, "{ordinals:?}");
        assert_eq!(terms.is_reached(&counted), expected.0 == 0, "{ordinals:?}");
    }
    let mut count = GangCount::default();
    terms.add(&mut count, 1, 4);
    assert_eq!((terms.words(&count), terms.lacks(&count)), ("0 of 1 of task group 0".to_owned(), 1));
}
