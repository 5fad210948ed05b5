use super::*;

fn bind(ordinals: &[u32], incarnation: u32, node: u32) -> RunChange {
    RunChange::Bind(Bind {
        ordinals: ordinals.to_vec(),
        incarnations: vec![incarnation; ordinals.len()],
        nodes: vec![NodeId(node); ordinals.len()],
        ..Bind::default()
    })
}

fn status(ordinal: u32, incarnation: u32, phase: Phase) -> RunChange {
    RunChange::Statuses(Statuses {
        ordinals: vec![ordinal],
        incarnations: vec![incarnation],
        phases: vec![phase],
        ..Statuses::default()
    })
}

fn apply(rows: &mut RunningUnits, revision: u64, change: &RunChange) -> usize {
    let mut changed = 0;
    rows.apply(change, Revision(revision), 0, |_, _, _| changed += 1);
    changed
}

#[test]
fn an_ordinal_binds_once_per_incarnation() {
    let mut rows = RunningUnits::default();
    assert_eq!(rows.check(&bind(&[0, 2], 0, 7)), Ok(()));
    assert_eq!(apply(&mut rows, 1, &bind(&[0, 2], 0, 7)), 2);
    assert_eq!(rows.check(&bind(&[2], 0, 8)), Err(RowConflict::Bound(2)));
    assert_eq!(rows.check(&bind(&[1, 1], 0, 8)), Err(RowConflict::Repeated(1)));
    let wrong = RowConflict::Incarnation { ordinal: 1, current: 0, asked: 1 };
    assert_eq!(rows.check(&bind(&[1], 1, 8)), Err(wrong));
    assert_eq!(rows.live().count(), 2);
}

#[test]
fn reports_go_forward_only_and_repeats_change_nothing() {
    let mut rows = RunningUnits::default();
    apply(&mut rows, 1, &bind(&[0], 0, 7));
    assert_eq!(apply(&mut rows, 2, &status(0, 0, Phase::Running)), 1);
    assert_eq!(apply(&mut rows, 3, &status(0, 0, Phase::Starting)), 0);
    assert_eq!(apply(&mut rows, 3, &status(0, 1, Phase::Succeeded)), 0);
    assert_eq!(apply(&mut rows, 4, &status(0, 0, Phase::Failed)), 1);
    assert_eq!(apply(&mut rows, 5, &status(0, 0, Phase::Succeeded)), 0);
    assert_eq!(rows.row(0).phase, Phase::Failed);
}

#[test]
fn the_rule_of_reports_is_the_table() {
    let changes = PhaseChange::all();
    for (from, to) in Phase::ALL.into_iter().flat_map(|from| Phase::ALL.map(|to| (from, to))) {
        for restarts in [1, 2, 3] {
            let row = Progress { phase: from, restarts: 2 };
            let report = Progress { phase: to, restarts };
            let expected = TRANSITIONS.iter().any(|line| {
                let counts = match line.restarts {
                    Restarts::Same => restarts == 2,
                    Restarts::Higher => restarts > 2,
                    Restarts::Any => true,
                };
                counts && line.from.contains(&from) && line.to.contains(&to)
            });
            assert_eq!(row.may_become(report), expected, "{row:?} {report:?}");
            let change = PhaseChange::between(row, row.followed_by(report));
            assert!(!expected || change.is_some_and(|change| changes.contains_key(&change)), "{change:?}");
            // What has happened does not happen again.
            assert!(!expected || !row.followed_by(report).may_become(report), "{row:?} {report:?}");
        }
    }
    let text = render_transitions();
    assert_eq!(text.lines().count(), 2 + TRANSITIONS.len());
    assert!(text.contains("| Bound, Starting, Running | Starting, Running | higher | it ended"), "{text}");
}

#[test]
fn changes_of_the_phase_have_names_of_their_own() {
    let names: Vec<String> = PhaseChange::all().keys().map(ToString::to_string).collect();
    // A binding, 3 + 6 + 9 that agents report, and 3 returns.
    assert_eq!(names.len(), 1 + 3 + 6 + 9 + 3, "{names:?}");
    for name in ["pending-bound", "running-succeeded", "running-starting-again", "stopped-pending"] {
        assert_eq!(names.iter().filter(|known| *known == name).count(), 1, "{name}: {names:?}");
    }
    let running = Progress { phase: Phase::Running, restarts: 1 };
    assert_eq!(PhaseChange::between(running, running), None);
    let again = PhaseChange { from: Phase::Running, to: Phase::Running, again: true };
    assert_eq!(PhaseChange::between(running, Progress { restarts: 2, ..running }), Some(again));
}

#[test]
fn a_restart_returns_to_starting_and_its_count_only_grows() {
    let mut rows = RunningUnits::default();
    apply(&mut rows, 1, &bind(&[0], 0, 7));
    let says = |phase, restarts| {
        let RunChange::Statuses(statuses) = status(0, 0, phase) else { unreachable!() };
        RunChange::Statuses(Statuses { restarts: vec![restarts], ..statuses })
    };
    for (revision, phase, restarts, n_changed) in [
        (2, Phase::Running, 0, 1),
        (3, Phase::Starting, 1, 1),
        (4, Phase::Running, 0, 0),
        (5, Phase::Running, 1, 1),
        (6, Phase::Starting, 1, 0),
        // Of several that were reported together the last may be the only one to come.
        (7, Phase::Running, 3, 1),
        (8, Phase::Starting, 2, 0),
        (9, Phase::Stopped, 0, 1),
        (10, Phase::Starting, 4, 0),
    ] {
        assert_eq!(apply(&mut rows, revision, &says(phase, restarts)), n_changed, "{revision}");
    }
    let row = rows.row(0);
    assert_eq!((row.phase, row.restarts, row.incarnation), (Phase::Stopped, 3, 0));
}

#[test]
fn an_old_change_seen_again_changes_nothing() {
    let mut rows = RunningUnits::default();
    apply(&mut rows, 5, &bind(&[0], 0, 7));
    assert_eq!(apply(&mut rows, 5, &bind(&[0], 0, 7)), 0);
    assert_eq!(apply(&mut rows, 4, &status(0, 0, Phase::Running)), 0);
}

#[test]
fn an_evicted_unit_keeps_its_room_until_its_end_and_returns() {
    let mut rows = RunningUnits::default();
    apply(&mut rows, 1, &bind(&[0], 0, 7));
    let evict = RunChange::Evict(Evict {
        ordinals: vec![0],
        incarnations: vec![0],
        reason: EvictionReason::Drained,
        by: String::new(),
        preemptor: UnitId(0),
    });
    assert_eq!(apply(&mut rows, 2, &evict), 1);
    assert!(rows.row(0).phase.is_live());
    let requeue = RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], anew: false });
    assert_eq!(rows.check(&requeue), Err(RowConflict::Bound(0)));
    apply(&mut rows, 3, &status(0, 0, Phase::Stopped));
    assert_eq!(rows.check(&requeue), Ok(()));
    apply(&mut rows, 4, &requeue);
    assert_eq!((rows.row(0).phase, rows.row(0).incarnation), (Phase::Pending, 1));
}

#[test]
fn an_eviction_from_a_lost_node_ends_all_that_runs_there() {
    let evict = |reason| {
        RunChange::Evict(Evict {
            ordinals: vec![0, 1],
            incarnations: vec![],
            reason,
            by: String::new(),
            preemptor: UnitId(0),
        })
    };
    let mut rows = RunningUnits::default();
    apply(&mut rows, 1, &bind(&[0, 1], 0, 7));
    let cancelled = RunChange::Evict(Evict {
        ordinals: vec![1],
        incarnations: vec![],
        reason: EvictionReason::Cancelled,
        by: String::new(),
        preemptor: UnitId(0),
    });
    apply(&mut rows, 2, &cancelled);
    assert_eq!(apply(&mut rows, 3, &evict(EvictionReason::NodeLost)), 2);
    for (ordinal, reason) in [(0, EvictionReason::NodeLost), (1, EvictionReason::Cancelled)] {
        let row = rows.row(ordinal);
        assert_eq!((row.phase, row.eviction), (Phase::Stopped, Some(reason)), "the first reason stays");
    }
    assert_eq!(apply(&mut rows, 4, &evict(EvictionReason::NodeLost)), 0);
    assert_eq!(apply(&mut rows, 5, &status(0, 0, Phase::Succeeded)), 0, "what is heard later is too late");
}

#[test]
fn the_last_eviction_of_each_replica_is_kept() {
    let evict = |ordinals: &[u32], incarnation, reason, by: &str| {
        RunChange::Evict(Evict {
            ordinals: ordinals.to_vec(),
            incarnations: vec![incarnation; ordinals.len()],
            reason,
            by: by.to_owned(),
            preemptor: UnitId(0),
        })
    };
    let mut rows = RunningUnits::default();
    apply(&mut rows, 1, &bind(&[0, 1, 2], 0, 7));
    assert_eq!((rows.last_eviction(0), &rows.lineage), (None, &None), "nothing is kept of most units");
    apply(&mut rows, 2, &evict(&[0, 1, 9], 0, EvictionReason::Preempted, "unit 17"));
    // The first reason counts, and who is not there is not evicted.
    apply(&mut rows, 3, &evict(&[0, 1], 0, EvictionReason::NodeLost, "loss of node n"));
    let last = rows.last_eviction(0).unwrap();
    assert_eq!(
        (last.reason, &*last.by, last.by_unit()),
        (EvictionReason::Preempted, "unit 17", Some(UnitId(17)))
    );
    assert_eq!(rows.evictions().len(), 2);
    // It is kept in the next incarnation, until that one is evicted as well.
    apply(
        &mut rows,
        4,
        &RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], anew: false }),
    );
    apply(&mut rows, 5, &bind(&[0], 1, 8));
    assert_eq!(rows.last_eviction(0).unwrap().replica, ReplicaId::new(0, 0));
    apply(&mut rows, 6, &evict(&[0], 1, EvictionReason::Drained, &"ä".repeat(60)));
    let last = rows.last_eviction(0).unwrap();
    assert_eq!((last.replica, last.by_unit()), (ReplicaId::new(0, 1), None));
    assert_eq!(&*last.by, "ä".repeat(EVICTED_BY_LEN_MAX / 2));
    let kept: Vec<_> = rows.evictions().iter().map(|one| (one.replica.ordinal, one.revision)).collect();
    assert_eq!(kept, [(0, Revision(6)), (1, Revision(2))]);
    // A list and the changes since its beginning make the same.
    let mut listed = rows.clone();
    listed.set_lineage(Vec::new(), rows.evictions().iter().rev().chain(rows.evictions()).cloned().collect());
    assert_eq!(listed, rows);
    // The oldest are forgotten.
    let all: Vec<u32> = (3..3_000).collect();
    apply(&mut rows, 7, &bind(&all, 0, 7));
    apply(&mut rows, 8, &evict(&all, 0, EvictionReason::Cancelled, "cancel"));
    let kept = rows.evictions();
    assert_eq!((kept.len(), kept[0].replica.ordinal), (N_EVICTIONS_MAX, 3_000 - 1_024));
    assert_eq!(rows.last_eviction(1), None);
}

#[test]
fn changed_terms_are_those_of_every_group_that_was_bound() {
    let terms = |queue: &str| Arc::new(PreemptionTerms { queue: Some(queue.into()), ..Default::default() });
    let change = |queue: &str| {
        RunChange::Terms(Arc::new(UnitTerms { others: terms(queue), group_minima: vec![0, 0, 3] }))
    };
    let with_minimum =
        |queue: &str| Arc::new(PreemptionTerms { group_min_member: 3, ..(*terms(queue)).clone() });
    let mut rows = RunningUnits::default();
    assert_eq!(apply(&mut rows, 1, &change("a")), 0);
    assert_eq!(rows, RunningUnits::default(), "nothing was bound");
    let RunChange::Bind(first) = bind(&[0], 0, 7) else { unreachable!() };
    for (group, ordinals) in [(0, vec![0]), (2, vec![4])] {
        let standing = Some(terms("a"));
        let bind = Bind { group, ordinals, standing, ..first.clone() };
        apply(&mut rows, 2, &RunChange::Bind(bind));
    }
    assert_eq!(rows.check(&change("b")), Ok(()));
    assert_eq!(apply(&mut rows, 3, &change("b")), 0, "no row changes");
    assert_eq!(
        (rows.standing(0), rows.standing(1), rows.standing(2)),
        (Some(&terms("b")), None, Some(&with_minimum("b")))
    );
    // What is bound later of such a group has them too.
    apply(&mut rows, 4, &RunChange::Bind(Bind { ordinals: vec![1], standing: Some(terms("a")), ..first }));
    assert_eq!(rows.standing(0), Some(&terms("b")));
}
