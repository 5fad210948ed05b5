//! Units whose decisions are refused, and those that change, go or are bound by others before the outcome.

use godel_domain::unit::TaskGroup;

use super::*;

#[test]
fn rejections_are_tried_again_at_once_then_later_and_later() {
    let mut scheduler = scheduler(&[(1000, 0), (1000, 0)]);
    assign(&mut scheduler, &unit(1, 1, 1, cpu(600)));
    let mut now = Millis(0);
    let first = scheduler.step(now, 10).decisions.remove(0);
    let node = first.groups[0].nodes[0];
    let mut outcome = refused(&first, RejectionReason::InsufficientResources);
    let allocated = resources(600, 1);
    outcome.nodes = vec![FreshNode { node, allocated, revision: Revision(3), ..FreshNode::default() }];
    scheduler.on_outcome(&outcome, now);
    let second = scheduler.step(now, 10).decisions.remove(0);
    assert_ne!(second.groups[0].nodes[0], node, "it has learnt that the node is taken");
    let mut decision = second;
    let mut waits = Vec::new();
    for _ in 0..14 {
        scheduler.on_outcome(&refused(&decision, RejectionReason::NodeNotReady), now);
        assert_eq!(scheduler.stats().backoff_units, 1);
        // Again and again it keeps nobody else from being tried.
        let n_credited = if waits.len() < 5 { 1 } else { 0 };
        assert_eq!(
            scheduler.credits(),
            Config::default().held_max - n_credited,
            "after {} waits",
            waits.len()
        );
        while scheduler.stats().ready_units == 0 && scheduler.stats().backoff_units == 1 {
            let wake = scheduler.next_wake().unwrap();
            assert!(wake > now);
            let step = scheduler.step(wake, 10);
            if let Some(again) = step.decisions.into_iter().next() {
                waits.push(wake.since(now));
                (now, decision) = (wake, again);
                break;
            }
        }
    }
    assert!((5..=10).contains(&waits[0]) && (10..=20).contains(&waits[1]), "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 10_000) && waits[13] >= 5_000, "{waits:?}");
    assert_eq!(scheduler.stats().conflicts, 1, "a node that is not ready is nobody's conflict");
}

#[test]
fn what_is_refused_of_decisions_made_together_is_one_rejection() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    assign(&mut scheduler, &unit(1, 4, 1, cpu(1000)));
    let mut now = Millis(0);
    for most_ms in [0, 10, 20, 40] {
        // One running unit in each step, and its decision.
        let decisions: Vec<_> = (0..4).flat_map(|_| scheduler.step(now, 1).decisions).collect();
        assert_eq!(decisions.len(), 4);
        for decision in &decisions {
            scheduler.on_outcome(&refused(decision, RejectionReason::NodeNotReady), now);
        }
        let wake = scheduler.next_wake().unwrap().max(now);
        assert!(wake.since(now) <= most_ms, "{} ms of {most_ms}", wake.since(now));
        now = wake;
    }
}

#[test]
fn what_has_left_since_the_binder_looked_is_not_taken_by_others() {
    for read in [3, 4] {
        let mut scheduler = scheduler(&[(1000, 0)]);
        let (demand, ordinals) = (Arc::new(cpu(600)), vec![0]);
        let nodes = vec![NodeId(1)];
        let bind = Bind { demand, ordinals: ordinals.clone(), nodes, ..Bind::default() };
        let of_other = |rows| Change::Rows(UnitId(9), rows);
        scheduler.load(&of_other(RunChange::Bind(bind)), Revision(2), 0, Millis(0));
        assign(&mut scheduler, &unit(1, 1, 1, cpu(400)));
        let decision = scheduler.step(Millis(0), 10).decisions.remove(0);
        let ended = Statuses { ordinals, phases: vec![Phase::Succeeded], ..Statuses::default() };
        scheduler.load(&of_other(RunChange::Statuses(ended)), Revision(4), 0, Millis(0));
        let fresh = FreshNode {
            node: NodeId(1),
            allocated: resources(1000, 2),
            revision: Revision(read),
            ..FreshNode::default()
        };
        let nodes = vec![fresh];
        let outcome = Outcome { nodes, ..refused(&decision, RejectionReason::InsufficientResources) };
        scheduler.on_outcome(&outcome, Millis(1));
        let step = scheduler.step(Millis(1), 10);
        assert_eq!(step.decisions.len(), if read == 3 { 1 } else { 0 }, "the binder has read up to {read}");
    }
}

#[test]
fn a_unit_whose_queue_is_full_goes_back_and_holds_nothing() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let spec = unit(1, 3, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let decision = scheduler.step(Millis(0), 100).decisions.remove(0);
    let mut outcome = refused(&decision, RejectionReason::QueueFull);
    outcome.revision = Revision(7);
    outcome.rejections[0] = Rejection {
        ordinals: vec![1, 2],
        node: NodeId(0),
        detail: "queue prod is at its maximum of cpu".to_owned(),
        ..outcome.rejections[0].clone()
    };
    scheduler.on_outcome(&outcome, Millis(1));
    let step = scheduler.step(Millis(1), 100);
    assert_eq!(states(&step), [(1, ReportState::QueueFull)]);
    assert!(step.decisions.is_empty(), "it is not tried again");
    let reason = RefusalCount::waits(WaitReason::Queue, "queue prod is at its maximum of cpu".to_owned());
    assert_eq!(step.reports[0].refusals.as_ref().unwrap().reasons, [reason]);
    assert!(scheduler.inventory().is_empty());
    assert_eq!(scheduler.credits(), Config::default().held_max);
    assert_eq!((scheduler.stats().placed, scheduler.stats().conflicts), (1, 0));
    let (allocated, _) = scheduler.picture.cluster.free().node_state(NodeId(1)).unwrap();
    assert_eq!(allocated.get(CPU), 1000, "what was bound");
    // Assigned again it is tried again.
    scheduler.on_assign(&assignment(&spec, Revision(2), &replicas(&[(1, 0), (2, 0)]), 1), Millis(2));
    assert_eq!(scheduler.step(Millis(2), 100).decisions[0].groups[0].ordinals, [1, 2]);
}

#[test]
fn a_gang_whose_queue_is_full_goes_back_at_once() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let spec = unit(1, 2, 2, cpu(1000));
    assign(&mut scheduler, &spec);
    let decision = scheduler.step(Millis(0), 100).decisions.remove(0);
    scheduler.on_outcome(&refused(&decision, RejectionReason::QueueFull), Millis(5));
    let step = scheduler.step(Millis(5), 100);
    assert_eq!(states(&step), [(1, ReportState::QueueFull)]);
    assert!(step.decisions.is_empty() && scheduler.inventory().is_empty());
    // Assigned anew it is tried at once.
    assign(&mut scheduler, &spec);
    assert_eq!(scheduler.step(Millis(6), 100).decisions.len(), 1);
}

#[test]
fn groups_that_a_full_queue_may_take_are_tried_first() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let small =
        TaskGroup { name: "small".to_owned(), ..unit(2, 1, 1, cpu(3000)).spec.task_groups[0].clone() };
    let spec = unit(1, 1, 1, cpu(4000)).group(small);
    let decide = |scheduler: &mut Scheduler, at: u64| {
        let step = scheduler.step(Millis(at), 100);
        let group = step.decisions.first().map(|decision| decision.groups[0].group);
        (group, step)
    };
    let full = |scheduler: &mut Scheduler, step: &Step| {
        scheduler.on_outcome(&refused(&step.decisions[0], RejectionReason::QueueFull), Millis(1));
    };
    // The large one alone has room on the node, and none in the queue: the small one goes there.
    scheduler.on_assign(&assignment(&spec, Revision(1), &replicas(&[(0, 0), (1, 0)]), 1), Millis(0));
    let (group, step) = decide(&mut scheduler, 0);
    assert_eq!(group, Some(0));
    full(&mut scheduler, &step);
    let (group, step) = decide(&mut scheduler, 1);
    assert_eq!(group, Some(1));
    scheduler.on_outcome(&taken(&step.decisions[0]), Millis(2));
    let step = scheduler.step(Millis(2), 100);
    assert_eq!(states(&step), [(1, ReportState::QueueFull)], "the large one still waits for its queue");
    assert!(scheduler.inventory().is_empty());
}

#[test]
fn an_answer_about_an_older_incarnation_changes_nothing() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let spec = unit(1, 1, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let old = scheduler.step(Millis(0), 100).decisions.remove(0);
    // It was bound, the answer was lost; it has left, and is to be placed anew.
    scheduler.on_assign(&assignment(&spec, Revision(1), &replicas(&[(0, 1)]), 1), Millis(1));
    scheduler.on_outcome(&refused(&old, RejectionReason::UnitChanged), Millis(2));
    let new = scheduler.step(Millis(2), 100).decisions.remove(0);
    assert_eq!(new.groups[0].incarnations, [1]);
    // A change that is not known yet is waited for.
    scheduler.on_outcome(&refused(&new, RejectionReason::UnitChanged), Millis(3));
    assert!(scheduler.step(Millis(3), 100).decisions.is_empty());
    assert_eq!(scheduler.inventory().len(), 1);
}

#[test]
fn a_newer_assignment_replaces_what_is_pending() {
    let mut scheduler = scheduler(&[(2000, 0)]);
    let spec = unit(1, 4, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let decision = scheduler.step(Millis(0), 2).decisions.remove(0);
    assert_eq!(decision.groups[0].ordinals, [0, 1]);
    // Meanwhile the unit shrank to three; the dispatcher has not seen the decision.
    let smaller = unit(1, 3, 1, cpu(1000));
    scheduler.on_assign(&assignment(&smaller, Revision(2), &all(&smaller), 0), Millis(1));
    scheduler.on_assign(&assignment(&spec, Revision(1), &all(&spec), 0), Millis(1));
    assert_eq!(scheduler.inventory(), [(UnitId(1), Revision(2))], "an older one is ignored");
    assert_eq!(scheduler.stats().running_units, 3);
    scheduler.on_outcome(&refused(&decision, RejectionReason::UnitChanged), Millis(2));
    let step = scheduler.step(Millis(2), 10);
    assert_eq!(step.decisions[0].groups[0].ordinals, [0, 1], "of the new assignment");
    assert_eq!(step.decisions[0].spec_revision, Revision(2));
}

#[test]
fn a_changed_unit_waits_for_its_new_assignment() {
    let mut scheduler = scheduler(&[(2000, 0)]);
    let spec = unit(1, 1, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let decision = scheduler.step(Millis(0), 2).decisions.remove(0);
    scheduler.on_outcome(&refused(&decision, RejectionReason::UnitChanged), Millis(1));
    assert_eq!(scheduler.step(Millis(1), 10), Step::default());
    assert_eq!(scheduler.inventory().len(), 1);
    scheduler.on_assign(&assignment(&spec, Revision(4), &all(&spec), 0), Millis(2));
    assert_eq!(scheduler.step(Millis(2), 10).decisions.len(), 1);
}

#[test]
fn already_bound_counts_as_placed() {
    let mut scheduler = scheduler(&[(2000, 0)]);
    let spec = unit(1, 2, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let other = Decision {
        unit: UnitId(1),
        groups: vec![GroupPlacement {
            ordinals: vec![1],
            nodes: vec![NodeId(1)],
            ..GroupPlacement::default()
        }],
        ..Decision::default()
    };
    scheduler.load(&bind(&other, &cpu(1000)), Revision(2), 0, Millis(0));
    let decision = scheduler.step(Millis(0), 10).decisions.remove(0);
    assert_eq!(decision.groups[0].ordinals, [0]);
    scheduler.on_outcome(&refused(&decision, RejectionReason::AlreadyBound), Millis(1));
    assert_eq!(states(&scheduler.step(Millis(1), 10)), [(1, ReportState::Done)]);
}

#[test]
fn a_revoked_unit_keeps_its_room_until_the_outcome() {
    let mut scheduler = scheduler(&[(1000, 0)]);
    let spec = unit(1, 1, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let decision = scheduler.step(Millis(0), 10).decisions.remove(0);
    scheduler.on_revoke(UnitId(1));
    assert!(scheduler.inventory().is_empty());
    assign(&mut scheduler, &unit(2, 1, 1, cpu(1000)));
    assert_eq!(states(&scheduler.step(Millis(1), 10)), [(2, ReportState::Parked)]);
    // Back again before the outcome: what is under way is not decided twice.
    assign(&mut scheduler, &spec);
    assert!(scheduler.step(Millis(1), 10).decisions.is_empty());
    scheduler.on_revoke(UnitId(1));
    scheduler.on_outcome(&refused(&decision, RejectionReason::UnitChanged), Millis(2));
    let step = step_and_call(&mut scheduler, Millis(2), 10);
    assert_eq!((step.decisions[0].unit, states(&step)), (UnitId(2), vec![]));
}
