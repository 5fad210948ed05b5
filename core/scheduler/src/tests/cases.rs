//! One situation each.

use godel_domain::{
    allocation::DeviceSet,
    change::{Commit, PartitionMode},
    node::NodeAllocatable,
    node::{Taint, TaintEffect},
    queue_spec::PriorityClass,
    records::Record,
    running_units::{Requeue, Statuses},
    unit::OnBelowMin,
};

use super::*;

mod outcomes;

fn config(name: &str) -> Config {
    Config { name: name.to_owned(), ..Config::default() }
}

pub(super) fn scheduler(nodes: &[(i64, usize)]) -> Scheduler {
    let mut scheduler = Scheduler::new(config("a"), 7);
    for (id, (cpu, n_gpus)) in (1u32..).zip(nodes) {
        scheduler
            .picture
            .cluster
            .nodes_mut()
            .put_report(node_report(id, resources(*cpu, 100), *n_gpus, "A10"), Revision(1));
        scheduler.picture.cluster.nodes_mut().put_spec(node_spec(id), Revision(1));
    }
    scheduler
}

pub(super) fn cpu(cpu: i64) -> Demand {
    Demand { requests: resources(cpu, 1), devices: Vec::new(), host_ports: Vec::new(), zones: None }
}

pub(super) fn assign(scheduler: &mut Scheduler, record: &UnitRecord) {
    assign_with(scheduler, record, Permit::default());
}

fn assign_with(scheduler: &mut Scheduler, record: &UnitRecord, permit: Permit) {
    let assigned = Assignment { permit, ..assignment(record, Revision(1), &all(record), 0) };
    scheduler.on_assign(&assigned, Millis(0));
}

/// The outcome that takes everything.
fn taken(decision: &Decision) -> Outcome {
    let revision = Revision(decision.id + 10);
    Outcome { decision_id: decision.id, unit: decision.unit, revision, ..Outcome::default() }
}

/// The outcome that refuses everything.
fn refused(decision: &Decision, reason: RejectionReason) -> Outcome {
    let group = &decision.groups[0];
    let rejection =
        Rejection { reason, ordinals: group.ordinals.clone(), node: group.nodes[0], detail: String::new() };
    let (decision_id, unit) = (decision.id, decision.unit);
    Outcome { decision_id, unit, rejections: vec![rejection], ..Outcome::default() }
}

pub(super) fn states(step: &Step) -> Vec<(u64, ReportState)> {
    step.reports.iter().map(|report| (report.unit.0, report.state)).collect()
}

fn bind(decision: &Decision, demand: &Demand) -> Change {
    let group = &decision.groups[0];
    let bind = Bind {
        demand: Arc::new(demand.clone()),
        ordinals: group.ordinals.clone(),
        nodes: group.nodes.clone(),
        devices: group.devices.clone(),
        ..Bind::default()
    };
    Change::Rows(decision.unit, RunChange::Bind(bind))
}

fn ended(unit: u64, ordinal: u32) -> Change {
    let statuses = Statuses { ordinals: vec![ordinal], phases: vec![Phase::Failed], ..Statuses::default() };
    Change::Rows(UnitId(unit), RunChange::Statuses(statuses))
}

#[test]
fn a_decision_rests_on_the_last_change_of_nodes_or_rows_read() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let spec = unit(1, 1, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let commit = |revision, changes| Commit { revision: Revision(revision), time_ms: 0, changes };
    scheduler.apply(&commit(7, vec![Change::Put(Record::NodeSpec(node_spec(1)))]), Millis(0));
    // Neither is read by the binder: only its next bookmark would bring it there.
    scheduler.apply(&commit(8, vec![Change::Put(Record::Partition(Partition::default()))]), Millis(0));
    scheduler.apply(&commit(9, Vec::new()), Millis(0));
    assert_eq!(scheduler.step(Millis(0), 100).decisions[0].nodes_as_of, Revision(7));
    // A list shows what is newer than itself: what came between may not be known.
    scheduler.on_reset();
    scheduler.load(
        &Change::Put(Record::NodeReport(node_report(1, resources(4000, 100), 0, ""))),
        Revision(30),
        0,
        Millis(0),
    );
    scheduler.load(&Change::Put(Record::NodeSpec(node_spec(1))), Revision(7), 0, Millis(0));
    scheduler.on_listed(Revision(20));
    assign(&mut scheduler, &unit(2, 1, 1, cpu(1000)));
    assert_eq!(scheduler.step(Millis(0), 100).decisions[0].nodes_as_of, Revision(20));
}

#[test]
fn a_unit_is_decided_bound_and_let_go() {
    let mut scheduler = scheduler(&[(4000, 2), (1000, 0)]);
    let record = unit(
        1,
        3,
        1,
        Demand {
            requests: resources(1000, 1),
            devices: gpus(1, 500, &[]),
            host_ports: Vec::new(),
            zones: None,
        },
    );
    assign(&mut scheduler, &record);
    assert_eq!(scheduler.credits(), Config::default().held_max - 3);
    assert_eq!(scheduler.next_wake(), Some(Millis(0)));
    let step = scheduler.step(Millis(0), 100);
    let decision = &step.decisions[0];
    assert_eq!(decision.groups[0].ordinals, [0, 1, 2]);
    assert_eq!(decision.groups[0].devices, [0b01, 0b01, 0b10].map(DeviceSet));
    assert!(decision.groups[0].incarnations.is_empty());
    assert_eq!(scheduler.undecided(), step.decisions);
    assert_eq!(scheduler.step(Millis(1), 100), Step::default(), "waits for the outcome");
    scheduler.load(&bind(decision, &record.spec.task_groups[0].template.demand), Revision(5), 0, Millis(1));
    scheduler.on_outcome(&taken(decision), Millis(1));
    scheduler.on_outcome(&taken(decision), Millis(1));
    assert_eq!(states(&scheduler.step(Millis(2), 100)), [(1, ReportState::Done)]);
    assert!(scheduler.inventory().is_empty());
    assert_eq!(scheduler.credits(), Config::default().held_max);
    assert_eq!(scheduler.stats().placed, 3);
    let (allocated, free) = scheduler.picture.cluster.free().node_state(NodeId(1)).unwrap();
    assert_eq!((allocated.get(CPU), free), (3000, vec![0, 500]), "counted once");
}

#[test]
fn what_was_bound_and_gone_before_a_list_takes_no_room_after_it() {
    // Answered before the reset, between it and the end of the list, and after that.
    for answered in 0..3 {
        let mut scheduler = scheduler(&[(4000, 0)]);
        assign(&mut scheduler, &unit(1, 1, 1, cpu(1000)));
        let decision = scheduler.step(Millis(0), 10).decisions[0].clone();
        let answer = |scheduler: &mut Scheduler, at| {
            if at == answered {
                scheduler.on_outcome(&taken(&decision), Millis(1));
            }
        };
        answer(&mut scheduler, 0);
        scheduler.on_reset();
        let report = node_report(1, resources(4000, 100), 0, "A10");
        scheduler.load(&Change::Put(Record::NodeReport(report)), Revision(1), 0, Millis(1));
        answer(&mut scheduler, 1);
        assert_eq!(
            scheduler.picture.cluster.free().node_state(NodeId(1)).unwrap().0.get(CPU),
            1000,
            "it may be listed yet"
        );
        scheduler.on_listed(Revision(20));
        answer(&mut scheduler, 2);
        assert_eq!(
            scheduler.picture.cluster.free().node_state(NodeId(1)).unwrap().0.get(CPU),
            0,
            "{answered}"
        );
    }
}

#[test]
fn a_gang_that_restarts_as_a_whole_is_placed_as_a_whole() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let gang = unit(1, 2, 2, cpu(1000)).on_below_min(OnBelowMin::Restart);
    // Not read yet: its first incarnations have gone.
    let bind = Bind {
        demand: Arc::new(cpu(1000)),
        ordinals: vec![0, 1],
        nodes: vec![NodeId(1), NodeId(1)],
        ..Bind::default()
    };
    let bound = Change::Rows(UnitId(1), RunChange::Bind(bind));
    scheduler.load(&bound, Revision(2), 0, Millis(0));
    scheduler.on_assign(&assignment(&gang, Revision(1), &replicas(&[(0, 1), (1, 1)]), 0), Millis(0));
    let decision = scheduler.step(Millis(0), 1).decisions[0].clone();
    assert_eq!(decision.len(), 1, "as one that is whole and gets what is left");
    for ordinal in 0..2 {
        scheduler.load(&ended(1, ordinal), Revision(3), 0, Millis(1));
        let requeue = Requeue { ordinals: vec![ordinal], incarnations: vec![1], anew: false };
        scheduler.load(&Change::Rows(UnitId(1), RunChange::Requeue(requeue)), Revision(4), 0, Millis(1));
    }
    scheduler.on_outcome(&refused(&decision, RejectionReason::MinMember), Millis(1));
    let again = scheduler.step(Millis(1), 10).decisions;
    assert_eq!(again.iter().map(Decision::len).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_gang_is_placed_whole_or_not_at_all_and_says_why() {
    let mut scheduler = scheduler(&[(2000, 0), (1000, 0)]);
    assign(&mut scheduler, &unit(1, 4, 4, cpu(1000)));
    assign(&mut scheduler, &unit(2, 3, 3, cpu(1000)));
    let step = scheduler.step(Millis(0), 1);
    assert!(step.decisions.is_empty(), "its failed try used the budget");
    assert_eq!(states(&step), [(1, ReportState::Parked)]);
    let refusals = step.reports[0].refusals.as_ref().unwrap();
    assert_eq!((refusals.nodes, refusals.attempts), (2, 1));
    let reason = RefusalCount { plugin: "resources-fit".into(), reason: "insufficient cpu".into(), nodes: 2 };
    assert_eq!(refusals.reasons, [reason]);
    let words = "room for 3 of 4 together; n1 lacks cpu (0 free of 1 asked)";
    assert_eq!(refusals.nearest_miss, words);
    let step = scheduler.step(Millis(1), 1);
    assert_eq!(step.decisions[0].len(), 3, "the minimum goes in one decision, whatever the budget");
}

#[test]
fn replicas_beyond_the_minimum_follow_when_there_is_room() {
    let mut scheduler = scheduler(&[(2000, 0)]);
    let spec = unit(1, 3, 1, cpu(1000));
    assign(&mut scheduler, &spec);
    let step = scheduler.step(Millis(0), 10);
    assert_eq!((step.decisions[0].len(), states(&step)), (2, vec![(1, ReportState::Parked)]));
    scheduler.on_outcome(&taken(&step.decisions[0]), Millis(1));
    scheduler.load(&bind(&step.decisions[0], &cpu(1000)), Revision(11), 0, Millis(1));
    assert_eq!((scheduler.stats().parked_units, scheduler.credits()), (1, Config::default().held_max));
    scheduler.load(&ended(1, 0), Revision(12), 0, Millis(2));
    let step = step_and_call(&mut scheduler, Millis(2), 10);
    assert_eq!(states(&step), []);
    assert_eq!(step.decisions[0].groups[0].ordinals, [2]);
}

#[test]
fn higher_priority_goes_first_and_then_the_earlier_one() {
    let mut scheduler = scheduler(&[(10_000, 0)]);
    for (id, priority) in [(1, 0), (2, 5), (3, 5), (4, -1)] {
        assign(&mut scheduler, &unit(id, 1, 1, cpu(1)).priority(priority));
    }
    let decided: Vec<u64> =
        scheduler.step(Millis(0), 10).decisions.iter().map(|decision| decision.unit.0).collect();
    assert_eq!(decided, [2, 3, 1, 4]);
}

#[test]
fn a_unit_without_a_priority_goes_by_its_class() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let (name, description) = ("gold".to_owned(), String::new());
    let gold =
        Change::Put(Record::PriorityClass(PriorityClass { name, value: 7, preemptible: true, description }));
    scheduler.load(&gold, Revision(1), 0, Millis(0));
    for (id, priority, class) in [(1, 5, ""), (2, 0, "gold"), (3, 0, "online"), (4, 0, "gone")] {
        let priority_class = class.to_owned();
        assign(&mut scheduler, &unit(id, 1, 1, cpu(10)).priority(priority).priority_class(priority_class));
    }
    let order: Vec<u64> =
        scheduler.step(Millis(0), 100).decisions.iter().map(|decision| decision.unit.0).collect();
    assert_eq!(order, [3, 2, 1, 4]);
}

#[test]
fn equal_units_park_together_and_only_as_many_are_called_as_fit() {
    let mut scheduler = scheduler(&[(2000, 0)]);
    for id in 1..=50 {
        assign(&mut scheduler, &unit(id, 1, 1, cpu(1000)));
    }
    let step = scheduler.step(Millis(0), 100);
    assert_eq!((step.decisions.len(), step.reports.len()), (2, 48));
    let scans = scheduler.stats().cache_misses;
    for decision in &step.decisions {
        scheduler.on_outcome(&taken(decision), Millis(0));
        scheduler.load(&bind(decision, &cpu(1000)), Revision(3), 0, Millis(0));
    }
    assign(&mut scheduler, &unit(51, 1, 1, cpu(1000)));
    let step = scheduler.step(Millis(1), 100);
    assert_eq!(states(&step).last(), Some(&(51, ReportState::Parked)));
    assert_eq!(scheduler.stats().cache_misses, scans, "known without another scan");
    scheduler.load(&ended(1, 0), Revision(4), 0, Millis(2));
    let step = step_and_call(&mut scheduler, Millis(2), 100);
    assert_eq!((step.decisions.len(), step.rooms[0].places), (1, 1));
    assert_eq!(states(&step), [], "nobody is tried for whom there is no room");
    assert_eq!(scheduler.next_wake(), None);
}

#[test]
fn a_unit_gets_no_more_places_than_it_was_given() {
    let mut scheduler = scheduler(&[(4000, 0)]);
    let record = unit(1, 5, 1, cpu(1000));
    let permit = |n, called| Permit { places_max: Some(n), called, ..Permit::default() };
    assign_with(&mut scheduler, &record, permit(1, false));
    let step = scheduler.step(Millis(0), 100);
    assert_eq!((step.decisions.len(), step.decisions[0].len()), (1, 1));
    let [report] = step.reports.as_slice() else { panic!("{:?}", step.reports) };
    assert_eq!((report.state, report.unplaced, report.assigned), (ReportState::Parked, Some(4), 1));
    // Nobody has asked the nodes for what is left: they are counted now.
    let [room] = step.rooms.as_slice() else { panic!("{:?}", step.rooms) };
    assert_eq!((room.need, room.places), (report.need, 3));
    // It hears of its new record, and waits on.
    let again = assignment(&record, Revision(2), &all(&record)[1..], 1);
    scheduler.on_assign(&Assignment { permit: permit(0, false), ..again.clone() }, Millis(1));
    let step = scheduler.step(Millis(1), 100);
    assert_eq!((step.decisions.len(), step.reports.len()), (0, 1));
    assert_eq!((step.reports[0].unplaced, step.reports[0].assigned), (Some(4), 2));
    assert_eq!((step.rooms[0].places, step.rooms[0].assigned), (3, 2), "said again, as it may be forgotten");
    // Called for more than there is it finds that nothing is left.
    scheduler.on_assign(&Assignment { permit: permit(4, true), ..again }, Millis(2));
    let step = scheduler.step(Millis(2), 100);
    assert_eq!((step.decisions[0].len(), states(&step)), (3, vec![(1, ReportState::Parked)]));
    assert_eq!((step.reports[0].unplaced, step.rooms.len()), (Some(1), 0));
}

#[test]
fn every_kind_of_gain_wakes() {
    type Gain = fn(&mut Scheduler);
    let gains: [Gain; 5] = [
        |scheduler| {
            let grown = node_report(1, resources(2000, 100), 0, "");
            scheduler.load(&Change::Put(Record::NodeReport(grown)), Revision(9), 0, Millis(1));
        },
        |scheduler| {
            let granted = Change::Put(Record::NodeAllocatable(NodeAllocatable {
                id: NodeId(1),
                amounts: resources(2000, 100),
            }));
            scheduler.load(&granted, Revision(9), 0, Millis(1));
        },
        |scheduler| scheduler.load(&Change::Put(Record::NodeSpec(node_spec(2))), Revision(9), 0, Millis(1)),
        |scheduler| scheduler.load(&Change::Put(Record::NodeSpec(node_spec(3))), Revision(9), 0, Millis(1)),
        |scheduler| {
            let ready = node_report(4, resources(2000, 100), 0, "");
            scheduler.load(&Change::Put(Record::NodeReport(ready)), Revision(9), 0, Millis(1));
        },
    ];
    for gain in gains {
        let mut scheduler = scheduler(&[(500, 0), (2000, 0), (2000, 0), (2000, 0)]);
        scheduler
            .picture
            .cluster
            .nodes_mut()
            .put_spec(NodeSpec { cordoned: true, ..node_spec(2) }, Revision(2));
        let effect = TaintEffect::NoSchedule;
        let taints = vec![Taint { key: "k".to_owned(), value: String::new(), effect, added_ms: 0 }];
        scheduler.picture.cluster.nodes_mut().put_spec(NodeSpec { taints, ..node_spec(3) }, Revision(2));
        let report = NodeReport { ready: false, ..node_report(4, resources(2000, 100), 0, "") };
        scheduler.picture.cluster.nodes_mut().put_report(report, Revision(2));
        assign(&mut scheduler, &unit(1, 1, 1, cpu(1000)));
        let step = scheduler.step(Millis(0), 10);
        let reasons = &step.reports[0].refusals.as_ref().unwrap().reasons;
        let told: Vec<(&str, &str)> =
            reasons.iter().map(|count| (&*count.plugin, count.reason.as_str())).collect();
        let expected = [
            ("node-ready", "node is cordoned"),
            ("node-ready", "node is not ready"),
            ("resources-fit", "insufficient cpu"),
            ("taints", "taint k not tolerated"),
        ];
        assert_eq!(told, expected);
        assert_eq!(scheduler.next_wake(), None);
        gain(&mut scheduler);
        assert_eq!(scheduler.next_wake(), Some(Millis(0)));
        assert_eq!(step_and_call(&mut scheduler, Millis(1), 10).decisions.len(), 1);
    }
}

#[test]
fn own_nodes_come_first_and_strict_gives_back() {
    let slots: Vec<(NodeId, u32)> = vec![(NodeId(1), 1), (NodeId(2), 1), (NodeId(3), 0), (NodeId(4), 0)];
    let schedulers = vec!["a".to_owned(), "b".to_owned()];
    let nodes_of = |mode: PartitionMode| {
        let mut scheduler = scheduler(&[(1000, 0); 4]);
        let partition =
            Partition { mode, schedulers: schedulers.clone(), slots: slots.clone(), ..Partition::default() };
        scheduler.load(&Change::Put(Record::Partition(partition)), Revision(2), 0, Millis(0));
        assign(&mut scheduler, &unit(1, 3, 1, cpu(1000)));
        let step = scheduler.step(Millis(0), 10);
        let nodes: Vec<u32> = step.decisions[0].groups[0].nodes.iter().map(|node| node.0).collect();
        // Not before it is known what became of the first ones.
        assert_eq!(states(&step), []);
        scheduler.on_outcome(&taken(&step.decisions[0]), Millis(1));
        (nodes, states(&scheduler.step(Millis(1), 10)), scheduler.stats().nodes)
    };
    let (nodes, states, n_own) = nodes_of(PartitionMode::Preferred);
    assert!(nodes[..2].iter().all(|node| *node >= 3) && nodes[2] <= 2, "{nodes:?}");
    assert_eq!((states, n_own), (vec![(1, ReportState::Done)], 2));
    let (nodes, states, _) = nodes_of(PartitionMode::Strict);
    assert_eq!((nodes.len(), states), (2, vec![(1, ReportState::Returned)]));
    assert_eq!(nodes_of(PartitionMode::Global).2, 4);
}

#[test]
fn a_unit_that_fits_no_partition_is_tried_on_all_nodes() {
    let mut scheduler = scheduler(&[(1000, 0); 4]);
    let slots = (1..=4).map(|node| (NodeId(node), u32::from(node <= 2))).collect();
    let schedulers = vec!["a".to_owned(), "b".to_owned()];
    let partition = Partition { mode: PartitionMode::Strict, schedulers, slots, ..Partition::default() };
    scheduler.load(&Change::Put(Record::Partition(partition)), Revision(2), 0, Millis(0));
    let gang = unit(1, 4, 4, cpu(1000));
    assign(&mut scheduler, &gang);
    let step = scheduler.step(Millis(0), 10);
    assert_eq!((step.decisions.len(), states(&step)), (0, vec![(1, ReportState::Returned)]));
    // Nobody is held any more, and the next one of the partition's size still goes there.
    assert_eq!(scheduler.stats().units, 0);
    assign_with(&mut scheduler, &gang, ANYWHERE);
    let step = scheduler.step(Millis(0), 10);
    let mut nodes: Vec<u32> = step.decisions[0].groups[0].nodes.iter().map(|node| node.0).collect();
    assert!(nodes[..2].iter().all(|node| *node >= 3), "own nodes first: {nodes:?}");
    nodes.sort_unstable();
    assert_eq!(nodes, [1, 2, 3, 4]);
    scheduler.on_outcome(&taken(&step.decisions[0]), Millis(1));
    scheduler.load(&bind(&step.decisions[0], &cpu(1000)), Revision(20), 0, Millis(1));
    assert_eq!(states(&scheduler.step(Millis(1), 10)), [(1, ReportState::Done)]);
    // Full: one with all nodes in view parks, and room on another's node wakes it; a confined one goes back.
    assign_with(&mut scheduler, &unit(2, 1, 1, cpu(1000)), ANYWHERE);
    assign(&mut scheduler, &unit(3, 1, 1, cpu(1000)));
    let step = scheduler.step(Millis(2), 10);
    assert_eq!(states(&step), [(2, ReportState::Parked), (3, ReportState::Returned)]);
    let on_first = step_ordinal_on(&scheduler, NodeId(1));
    scheduler.load(&ended(1, on_first), Revision(21), 0, Millis(3));
    let step = step_and_call(&mut scheduler, Millis(3), 10);
    assert_eq!(step.decisions[0].groups[0].nodes, [NodeId(1)]);
    // What comes after that is confined again.
    scheduler.on_outcome(&refused(&step.decisions[0], RejectionReason::InsufficientResources), Millis(4));
    scheduler.on_revoke(UnitId(2));
    assign(&mut scheduler, &unit(4, 1, 1, cpu(1000)));
    let step = scheduler.step(Millis(5), 10);
    assert_eq!((step.decisions.len(), states(&step).last()), (0, Some(&(4, ReportState::Returned))));
}

/// The running unit of unit 1 on a node.
fn step_ordinal_on(scheduler: &Scheduler, node: NodeId) -> u32 {
    let rows = &scheduler.picture.cluster.rows().of(UnitId(1)).expect("it is bound").rows;
    rows.iter().find(|(_, row)| row.node == node).expect("on the node").0
}

#[test]
fn lists_of_nodes_that_went_to_another_end_at_once() {
    let mut scheduler = scheduler(&[(1000, 0), (1000, 0)]);
    let strict = |own: u32| Partition {
        mode: PartitionMode::Strict,
        schedulers: vec!["a".to_owned(), "other".to_owned()],
        slots: [1, 2].map(|node| (NodeId(node), u32::from(node != own))).into_iter().collect(),
        ..Partition::default()
    };
    for own in [1, 2] {
        scheduler.on_partition(&strict(own));
        assign(&mut scheduler, &unit(u64::from(own), 1, 1, cpu(100)));
        let step = scheduler.step(Millis(1), 10);
        assert_eq!(step.decisions[0].groups[0].nodes, [NodeId(own)]);
    }
}

#[test]
fn a_plan_has_no_effect() {
    let mut planned = scheduler(&[(4000, 2), (3000, 0)]);
    let mut plain = scheduler(&[(4000, 2), (3000, 0)]);
    let report = planned.plan(&unit(9, 8, 1, cpu(1000)).spec);
    assert_eq!((report.outcome, report.nodes.len(), report.unplaced), (PlanOutcome::Partly, 7, 1));
    assert_eq!(report.refusals.unwrap().reasons[0].reason, "insufficient cpu");
    // Of a gang that does not fit together nothing is placed.
    let report = planned.plan(&unit(9, 8, 8, cpu(1000)).spec);
    assert_eq!((report.outcome, report.nodes.len(), report.unplaced), (PlanOutcome::Waits, 0, 8));
    let refusals = report.refusals.unwrap();
    assert_eq!(refusals.reasons[0].reason, "insufficient cpu");
    assert!(refusals.nearest_miss.starts_with("room for 7 of 8 together; "), "{}", refusals.nearest_miss);
    let report = planned.plan(&unit(9, 1, 1, cpu(1000)).spec);
    assert_eq!((report.outcome, report.refusals, report.why.as_str()), (PlanOutcome::Fits, None, ""));
    for scheduler in [&mut planned, &mut plain] {
        for id in 1..=6 {
            assign(scheduler, &unit(id, 1, 1, cpu(1000)));
        }
    }
    assert_eq!(planned.step(Millis(0), 10), plain.step(Millis(0), 10));
    assert_eq!(planned.stats(), plain.stats());
}

#[test]
fn groups_of_a_unit_are_placed_together() {
    let mut scheduler = scheduler(&[(2000, 0), (4000, 1)]);
    let ps = unit(
        1,
        1,
        3,
        Demand {
            requests: resources(1000, 1),
            devices: gpus(1, 1000, &["A10"]),
            host_ports: Vec::new(),
            zones: None,
        },
    );
    let template = Template { demand: cpu(2000), ..Template::default() };
    let workers = godel_testkit::group("workers", 2, template);
    assign(&mut scheduler, &ps.group(workers));
    let step = scheduler.step(Millis(0), 10);
    let decision = &step.decisions[0];
    let ordinals: Vec<&[u32]> = decision.groups.iter().map(|group| group.ordinals.as_slice()).collect();
    assert_eq!(ordinals, [&[0][..], &[1, 2][..]]);
    assert_eq!((decision.groups[0].nodes[0], decision.groups[1].group), (NodeId(2), 1));
    assert!(decision.groups[1].devices.is_empty());
}

#[test]
fn a_known_node_that_gets_a_soft_taint_comes_behind_one_that_opens() {
    let mut scheduler = scheduler(&[(4000, 0), (4000, 0)]);
    let closed = NodeSpec { cordoned: true, ..node_spec(2) };
    scheduler.load(&Change::Put(Record::NodeSpec(closed)), Revision(2), 0, Millis(0));
    let node_of = |scheduler: &mut Scheduler, id: u64| {
        assign(scheduler, &unit(id, 1, 1, cpu(500)));
        let step = scheduler.step(Millis(0), 10);
        scheduler.on_outcome(&taken(&step.decisions[0]), Millis(0));
        step.decisions[0].groups[0].nodes[0]
    };
    assert_eq!(node_of(&mut scheduler, 1), NodeId(1));
    scheduler.load(&Change::Put(Record::NodeSpec(node_spec(2))), Revision(3), 0, Millis(0));
    let soft = |id: u32| {
        let effect = TaintEffect::PreferNoSchedule;
        let taints = vec![Taint { key: "k".to_owned(), value: String::new(), effect, added_ms: 0 }];
        Change::Put(Record::NodeSpec(NodeSpec { taints, ..node_spec(id) }))
    };
    scheduler.load(&soft(1), Revision(4), 0, Millis(0));
    assert_eq!(node_of(&mut scheduler, 2), NodeId(2), "its list of candidates has the first one alone");
    // Where all have one, it makes no difference.
    scheduler.load(&soft(2), Revision(5), 0, Millis(0));
    let misses = scheduler.picture.placer.misses;
    let nodes: Vec<NodeId> = (3..6).map(|id| node_of(&mut scheduler, id)).collect();
    assert_eq!(nodes.len(), 3);
    assert_eq!(scheduler.picture.placer.misses - misses, 1, "one scan");
}
