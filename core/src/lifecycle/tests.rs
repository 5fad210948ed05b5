use proptest::prelude::*;

use super::*;
use crate::{
    admission::{GroupSubmission, Submission, admit, scale::scale},
    ids::{NodeId, Revision, UnitId},
    rows::{Bind, Evict, Requeue, RowChange, Statuses},
};

fn unit(replicas: u32, min_member: u32) -> UnitSpec {
    let group = GroupSubmission { replicas, ..GroupSubmission::default() };
    let submission = Submission {
        name: "u".into(),
        uid: "0190163d-8694-739b-aea5-966c26f8ad91".into(),
        task_groups: vec![group],
        min_member,
        ..Submission::default()
    };
    UnitSpec { id: UnitId(1), ..admit(submission).unwrap().spec }
}

/// Pending, live, running, succeeded, failed; the rest of the replicas is stopped.
fn counts(spec: &UnitSpec, numbers: [u32; 5]) -> Counts {
    let [pending, live, running, succeeded, failed] = numbers;
    Counts {
        replicas: spec.replicas(),
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
    let cases: [(&str, &UnitSpec, [u32; 5], Soft, Phase); 16] = [
        ("new", &single, [4, 0, 0, 0, 0], Soft::Waiting, Phase::Queued),
        ("held", &single, [4, 0, 0, 0, 0], Soft::Held, Phase::Scheduling),
        ("parked", &single, [4, 0, 0, 0, 0], Soft::Parked, Phase::Unschedulable),
        ("one is enough", &single, [3, 1, 0, 0, 0], Soft::Parked, Phase::Scheduled),
        ("gang", &all_or_nothing, [0, 4, 3, 0, 0], Soft::Waiting, Phase::Scheduled),
        ("gang runs", &all_or_nothing, [0, 4, 4, 0, 0], Soft::Waiting, Phase::Running),
        ("gang, some ended", &all_or_nothing, [0, 1, 1, 2, 1], Soft::Waiting, Phase::Running),
        ("gang broken", &all_or_nothing, [1, 3, 3, 0, 0], Soft::Waiting, Phase::Queued),
        ("gang broken and held", &all_or_nothing, [1, 3, 3, 0, 0], Soft::Held, Phase::Scheduling),
        ("runs", &single, [3, 1, 1, 0, 0], Soft::Held, Phase::Running),
        ("between two", &single, [2, 1, 0, 1, 0], Soft::Held, Phase::Scheduled),
        ("nothing live", &single, [2, 0, 0, 2, 0], Soft::Held, Phase::Scheduling),
        ("all succeeded", &single, [0, 0, 0, 4, 0], Soft::Waiting, Phase::Completed),
        ("one failed", &single, [0, 0, 0, 3, 1], Soft::Waiting, Phase::Failed),
        ("evicted, to come back", &single, [0, 0, 0, 3, 0], Soft::Waiting, Phase::Queued),
        ("all but one", &single, [0, 1, 1, 3, 0], Soft::Waiting, Phase::Running),
    ];
    for (name, spec, numbers, soft, expect) in cases {
        let counts = counts(spec, numbers);
        assert_eq!(phase(spec, &counts, soft), expect, "{name}");
        let cancelled = UnitSpec { cancelled: true, ..spec.clone() };
        assert_eq!(phase(&cancelled, &counts, soft), Phase::Cancelled, "{name}, cancelled");
        assert_eq!(is_over(Phase::Cancelled, &counts), counts.live == 0, "{name}");
    }
}

#[test]
fn the_transition_table_is_rendered() {
    let text = render_transitions();
    assert_eq!(text.lines().count(), 2 + TRANSITIONS.len());
    assert!(text.contains("| Scheduling, Unschedulable | Queued | its scheduler was lost or gave it back |"));
    assert!(!may_become(Phase::Cancelled, Phase::Queued) && may_become(Phase::Running, Phase::Cancelled));
}

#[test]
fn scaled_in_and_cancelled_rows_are_surplus_highest_first() {
    let spec = unit(4, 1);
    let mut rows = UnitRows::default();
    let bind = Bind { ordinals: vec![0, 1, 2, 3], nodes: vec![NodeId(1); 4], ..Bind::default() };
    rows.apply(&RowChange::Bind(bind), Revision(1), 7, |_, _, _| {});
    assert_eq!(surplus(&spec, &rows, 10).1, [0u32; 0]);
    let small = scale(&spec, &rows, "", 1).unwrap().unwrap();
    assert_eq!(surplus(&small, &rows, 2), (EvictionReason::ScaledIn, vec![3, 2], vec![0, 0]));
    assert_eq!(Counts::of(&small, &rows).surplus, 3);
    let cancelled = UnitSpec { cancelled: true, ..spec };
    assert_eq!(surplus(&cancelled, &rows, 10).1, [3, 2, 1, 0]);
    assert_eq!(pending(&cancelled, &rows).0, [0u32; 0]);
}

#[derive(Clone, Debug)]
enum Event {
    Bind(u32),
    Evict(u32),
    Status(u32, RowPhase),
    Requeue(u32),
    Scale(u32),
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
        2 => (0..8u32).prop_map(Event::Evict),
        10 => (0..8u32, phases).prop_map(|(ordinal, phase)| Event::Status(ordinal, phase)),
        4 => (0..8u32).prop_map(Event::Requeue),
        2 => (1..6u32).prop_map(Event::Scale),
        1 => Just(Event::Cancel),
    ]
}

fn change(rows: &UnitRows, event: &Event) -> Option<RowChange> {
    let one = |ordinal: u32| (vec![ordinal], vec![rows.row(ordinal).incarnation]);
    Some(match event {
        Event::Bind(ordinal) => {
            let (ordinals, incarnations) = one(*ordinal);
            RowChange::Bind(Bind { ordinals, incarnations, nodes: vec![NodeId(1)], ..Bind::default() })
        }
        Event::Evict(ordinal) => {
            let (ordinals, incarnations) = one(*ordinal);
            RowChange::Evict(Evict {
                ordinals,
                incarnations,
                reason: EvictionReason::Drained,
                by: String::new(),
            })
        }
        Event::Status(ordinal, phase) => {
            let (ordinals, incarnations) = one(*ordinal);
            RowChange::Statuses(Statuses {
                ordinals,
                incarnations,
                phases: vec![*phase],
                ..Statuses::default()
            })
        }
        Event::Requeue(ordinal) => {
            let (ordinals, incarnations) = one(*ordinal);
            RowChange::Requeue(Requeue {
                ordinals,
                incarnations: incarnations.iter().map(|one| one + 1).collect(),
            })
        }
        Event::Scale(_) | Event::Cancel => return None,
    })
}

proptest! {
    /// Followed counts equal counts from scratch, and what they say equals a look at each ordinal.
    #[test]
    fn counts_follow_the_rows(events in prop::collection::vec(event(), 0..60), min_member in 1..4u32) {
        let (mut spec, mut rows) = (unit(4, min_member), UnitRows::default());
        let mut counts = Counts::of(&spec, &rows);
        for (revision, event) in (1u64..).zip(&events) {
            match event {
                Event::Scale(replicas) if !spec.cancelled => {
                    if let Ok(Some(scaled)) = scale(&spec, &rows, "", *replicas) {
                        spec = scaled;
                        counts = Counts::of(&spec, &rows);
                    }
                }
                Event::Cancel => {
                    spec.cancelled = true;
                    counts = Counts::of(&spec, &rows);
                }
                _ => if let Some(change) = change(&rows, event) {
                    rows.apply(&change, Revision(revision), 1, |ordinal, before, after| {
                        counts.move_row(&spec, ordinal, before, after);
                    });
                },
            }
            prop_assert_eq!(counts, Counts::of(&spec, &rows));
            let (ordinals, incarnations) = pending(&spec, &rows);
            prop_assert_eq!(ordinals.len(), counts.pending as usize);
            for (ordinal, incarnation) in ordinals.iter().zip(&incarnations) {
                prop_assert_eq!(rows.row(*ordinal).incarnation, *incarnation);
            }
            prop_assert_eq!(surplus(&spec, &rows, 100).1.len(), counts.surplus as usize);
            prop_assert_eq!(counts.live, counts.placed + counts.evicting + counts.surplus);
            let named = counts.succeeded + counts.failed + counts.stopped;
            prop_assert!(named + counts.pending + counts.placed <= counts.replicas);
        }
    }
}
