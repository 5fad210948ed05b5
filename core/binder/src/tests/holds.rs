//! Holds: decisions with victims, what becomes of them, and random histories judged by the invariants.

use godel_base::ids::RunningUnitId;
use godel_domain::{
    allocation::DeviceSet,
    decision::{NodeVictims, Preemption},
    records::{Record, RecordKey},
};
use godel_framework::point::Seeker;
use godel_placement::preempt::{self, Lent, N_VICTIMS_MAX, Preference, Rights, SoFar, VictimQuery};
use godel_queueing::Need;
use proptest::prelude::*;
use rustc_hash::FxHashSet;

use super::*;

mod guarantees;
mod life;
mod replaced;
mod run;
mod under_way;

use run::{Run, Step, step};

/// Returns what a decision evicts, to be changed.
#[track_caller]
pub(super) fn preemption(decision: &mut Decision) -> &mut Preemption {
    match &mut decision.claim {
        Claim::Preemption(preemption) => preemption,
        other => panic!("no preemption: {other:?}"),
    }
}

/// Decides on the place that the search finds, for the first ordinals of a unit.
pub(super) fn claims(
    binder: &Binder,
    record: &UnitRecord,
    revision: u64,
    members: &[(u32, u32)],
) -> Option<Decision> {
    let mut cluster = binder.cluster().clone();
    let demand = record.spec.task_groups[0].template.demand.clone();
    let shape = cluster.shape(&demand, record.spec.pool);
    let seeker = Seeker {
        unit: record.id,
        priority: record.spec.priority,
        pool: record.spec.pool,
        now_ms: binder.picture.now_ms,
        spares_masters: false,
    };
    let nodes: Vec<usize> =
        (1..cluster.free().n_indices()).filter(|idx| cluster.nodes().is_usable(*idx)).collect();
    let mut quota = binder.picture.quotas.quota().clone();
    let queue = quota.queue(&record.spec.queue);
    let need = Need { ask: quota.usage_mut().intern(&demand), n: u32::try_from(members.len()).unwrap() };
    let rights = Rights::new(&quota, queue, &[need]);
    let (claimed, so_far, lent) = (&FxHashSet::default(), &SoFar::default(), &Lent::default());
    let query = VictimQuery { seeker: &seeker, shape, rights: rights.as_ref(), claimed, so_far, lent };
    let found = preempt::search_lent(&mut cluster, &query, nodes, members.len(), &Preference::default());
    if found.places.len() < members.len() {
        return None;
    }
    let has_devices = !demand.devices.is_empty();
    let group = GroupPlacement {
        group: 0,
        ordinals: members.iter().map(|member| member.0).collect(),
        incarnations: members.iter().map(|member| member.1).collect(),
        nodes: found.places.iter().map(|place| place.0).collect(),
        devices: found.places.iter().filter(|_| has_devices).map(|place| place.1.devices).collect(),
        zones: Vec::new(),
    };
    let claim = |(node, victims): (NodeId, Vec<RunningUnitId>)| NodeVictims {
        group: 0,
        node,
        victims,
        holds: Vec::new(),
    };
    let preemption =
        Preemption { nodes: found.claims.into_iter().map(claim).collect(), others: found.others };
    Some(Decision {
        id: 1,
        unit: record.id,
        spec_revision: Revision(revision),
        nodes_as_of: binder.revision(),
        groups: vec![group],
        claim: if preemption.n_victims() > 0 { preemption.into() } else { Claim::FreeRoom },
    })
}

impl World {
    pub(super) fn hold(&mut self, record: &UnitRecord, revision: u64, n: u32) -> Accepted {
        let members: Vec<(u32, u32)> = (0..n).map(|ordinal| (ordinal, 0)).collect();
        let decision = claims(&self.binder, record, revision, &members).expect("there are victims");
        let accepted = self.accept(&decision);
        assert!(accepted.binds.is_empty() && !accepted.holds.is_empty());
        accepted
    }

    pub(super) fn commit_hold(&mut self, accepted: &Accepted) {
        self.binder.commit(accepted.ticket, Revision(self.revision + 1));
        self.revision += 1;
        for (unit, evict) in &accepted.evictions {
            let change = Change::Rows(*unit, RunChange::Evict(evict.clone()));
            self.binder.on_change(change, Revision(self.revision), 1);
        }
        for hold in &accepted.holds {
            self.binder.on_change(Change::Put(Record::Hold(Arc::clone(hold))), Revision(self.revision), 1);
        }
        for (id, _) in &accepted.gone {
            self.binder.on_change(Change::Gone(RecordKey::Hold(*id)), Revision(self.revision), 1);
        }
        self.binder.on_revision(Revision(self.revision));
    }

    pub(super) fn dropped(&mut self) -> Vec<&'static str> {
        let work = self.binder.take_hold_work();
        let why = work.iter().map(|work| match work {
            HoldWork::Drop { why, .. } => *why,
            HoldWork::Bind(_) | HoldWork::Reserve { .. } => panic!("not dropped"),
        });
        let why = why.collect();
        for work in work {
            if let HoldWork::Drop { holds, .. } = work {
                for (hold, _) in holds {
                    self.change(Change::Gone(RecordKey::Hold(hold)));
                }
            }
        }
        why
    }
}

/// One node, filled by unit 1 of priority 0, and unit 2 of priority 9 that wants 600.
pub(super) fn filled() -> (World, UnitRecord, u64) {
    let mut world = World::new(1);
    let low = world.unit(unit(1, 2, 1, demand(500, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 1)]));
    world.commit(&accepted);
    let high = unit(2, 1, 1, demand(600, 0)).priority(9);
    let revision = world.unit(high.clone());
    (world, high, revision)
}

#[test]
fn two_units_of_risen_priority_do_not_preempt_each_other() {
    let mut world = World::new(2);
    let mut risen = Vec::new();
    for (id, node) in [(1, 1), (2, 2)] {
        let revision = world.unit(unit(id, 1, 1, demand(1000, 0)));
        let accepted = world.accept(&place(id, revision, &[(0, node)]));
        world.commit(&accepted);
        // What runs stands as it did when it was bound.
        let spec = unit(id, 2, 1, demand(1000, 0)).priority(9);
        let revision = world.unit(spec.clone());
        risen.push((spec, revision));
    }
    let claim = |world: &World, (spec, revision): &(UnitRecord, u64)| {
        claims(&world.binder, spec, *revision, &[(1, 0)]).expect("there are victims")
    };
    let (first, second) = (claim(&world, &risen[0]), claim(&world, &risen[1]));
    let accepted = world.accept(&first);
    assert_eq!(accepted.evictions[0].0, UnitId(2));
    assert_eq!(accepted.victims, [(UnitId(2), Revision(risen[1].1))], "by that record it was judged");
    assert_eq!(
        world.refuse(&second),
        [(RejectionReason::PreemptionLoop, vec![1])],
        "its transaction is under way"
    );
    world.binder.take_back(accepted.ticket);
    world.accept(&second);
}

#[test]
fn a_hold_without_room_takes_no_other_of_a_bound_gang_with_it() {
    let mut world = World::new(3);
    let low = world.unit(unit(1, 2, 1, demand(1000, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 2), (1, 3)]));
    world.commit(&accepted);
    let high = unit(2, 3, 1, demand(600, 0)).priority(9);
    let revision = world.unit(high.clone());
    let accepted = world.accept(&place(2, revision, &[(0, 1)]));
    world.commit(&accepted);
    let decision = claims(&world.binder, &high, revision, &[(1, 0), (2, 0)]).expect("there are victims");
    let accepted = world.accept(&decision);
    world.commit_hold(&accepted);
    let on = |world: &World, node| {
        let members = decision.groups[0].ordinals.iter().zip(&decision.groups[0].nodes);
        assert_eq!(world.binder.n_holds(), 2);
        members.into_iter().find(|(_, on)| **on == NodeId(node)).map(|(ordinal, _)| *ordinal).unwrap()
    };
    let stays = on(&world, 3);
    // Both are ready when one node comes to have too little.
    world.statuses(1, &[0, 1], Phase::Stopped);
    world.change(Change::Put(Record::NodeReport(report(2, 500, 1))));
    let work = world.binder.take_hold_work();
    let [HoldWork::Drop { holds, why: "no-room", .. }] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!(holds.len(), 1);
    world.change(Change::Gone(RecordKey::Hold(holds[0].0)));
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!((&bound.binds[0].ordinals[..], &bound.binds[0].nodes[..]), (&[stays][..], &[NodeId(3)][..]));
}

/// A unit of queue `lender`, which guarantees so much.
fn lender(world: &mut World, min: i64, record: UnitRecord) -> u64 {
    let queue = QueueSpec { min: [(CPU.to_owned(), min)].into(), ..QueueSpec::new("lender") };
    world.change(Change::Put(Record::Queue(Arc::new(queue))));
    world.unit(record.queue("lender"))
}

/// How much the queue `lender` has beyond its guarantee.
fn borrowed(world: &World) -> i128 {
    let quota = world.binder.picture.quotas.quota();
    let (queue, usage) = (quota.tree().find("lender").unwrap(), quota.usage());
    let asked = usage.amounts_of(&demand(250, 0));
    (0..).find(|less| usage.guarantees().n_beyond(queue, &asked, |_| *less) == 0).unwrap()
}

#[test]
fn labels_count_where_a_node_has_changed_since_a_claim_was_made() {
    let (mut world, _, _) = filled();
    let mut picky = unit(3, 1, 1, demand(600, 0)).priority(9);
    picky.spec.task_groups[0].template.node_selector.insert("disk".to_owned(), "ssd".to_owned());
    let revision = world.unit(picky.clone());
    let claim = claims(&world.binder, &picky, revision, &[(0, 0)]).expect("there are victims");
    let accepted = world.accept(&claim);
    world.binder.take_back(accepted.ticket);
    world.change(Change::Put(Record::NodeSpec(NodeSpec {
        labels: [("disk".into(), "hdd".into())].into(),
        ..node(1)
    })));
    assert_eq!(world.refuse(&claim), [(RejectionReason::NodeSelector, vec![0])]);
}

#[test]
fn a_claim_waits_for_the_binding_of_its_victim() {
    let mut world = World::new(1);
    let low = world.unit(unit(1, 1, 1, demand(900, 0)));
    let high = unit(2, 1, 1, demand(600, 0)).priority(9);
    let revision = world.unit(high.clone());
    let accepted = world.accept(&place(1, low, &[(0, 1)]));
    let mut seen = World::new(1);
    seen.unit(unit(1, 1, 1, demand(900, 0)));
    seen.unit(high.clone());
    let elsewhere = seen.accept(&place(1, low, &[(0, 1)]));
    seen.commit(&elsewhere);
    let claim = claims(&seen.binder, &high, revision, &[(0, 0)]).expect("who read it finds a victim");
    assert_eq!(world.binder.check(&claim), Verdict::Wait(Wait::Ticket(accepted.ticket)));
    let next = Revision(world.revision + 1);
    world.binder.commit(accepted.ticket, next);
    assert_eq!(world.binder.check(&claim), Verdict::Wait(Wait::Revision(next)));
    world.commit(&accepted);
    assert_eq!(world.accept(&claim).evictions[0].0, UnitId(1));
}

#[test]
fn a_claim_waits_for_a_claim_on_the_same_victims() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 3, 2, demand(500, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2), (2, 2)]));
    world.commit(&accepted);
    let mut of = |id, cpu| {
        let spec = unit(id, 1, 1, demand(cpu, 0)).priority(9);
        let revision = world.unit(spec.clone());
        (spec, revision)
    };
    let (one, (_, two)) = (of(2, 600), of(3, 1000));
    let first = world.hold(&one.0, one.1, 1);
    assert_eq!(first.evictions[0].1.ordinals, [0]);
    let victims = [1, 2].map(|ordinal| RunningUnitId::new(UnitId(1), ordinal, 0)).to_vec();
    let claims = vec![NodeVictims { group: 0, node: NodeId(2), victims, holds: Vec::new() }];
    let preemption = Preemption { nodes: claims, others: Vec::new() };
    let second = Decision { claim: preemption.into(), ..place(3, two, &[(0, 2)]) };
    assert_eq!(world.binder.check(&second), Verdict::Wait(Wait::Ticket(first.ticket)));
    // Refused, it would have left one of at least two.
    world.binder.take_back(first.ticket);
    assert_eq!(world.refuse(&second), [(RejectionReason::VictimGone, vec![0])]);
    let first = world.hold(&one.0, one.1, 1);
    world.commit_hold(&first);
    assert_eq!(world.accept(&second).evictions[0].1.ordinals, [1, 2]);
}

#[test]
fn a_hold_says_what_it_is_for() {
    let (mut world, high, _) = filled();
    let high = high.queue("a");
    let revision = world.unit(high.clone());
    let judged = world.binder.revision();
    let accepted = world.hold(&high, revision, 1);
    let hold = &*accepted.holds[0];
    let expected = Hold {
        id: hold.id,
        node: NodeId(1),
        unit: UnitId(2),
        spec_revision: Revision(revision),
        demand: Arc::new(demand(600, 0)),
        ordinals: vec![0],
        victims: [0, 1].map(|ordinal| RunningUnitId::new(UnitId(1), ordinal, 0)).to_vec(),
        expires_ms: world.time_ms + 600_000,
        queue: Some(Arc::from("a")),
        judged,
        priority: Some(9),
        ..Hold::default()
    };
    assert_eq!((hold, hold.id == HoldId(0)), (&expected, false));
}

#[test]
fn a_hold_turns_into_a_binding_after_its_last_victim() {
    let (mut world, high, revision) = filled();
    let again = claims(&world.binder, &high, revision, &[(0, 0)]).expect("there are victims");
    let accepted = world.hold(&high, revision, 1);
    let victims: Vec<u32> = accepted.evictions[0].1.ordinals.clone();
    assert_eq!((accepted.evictions[0].0, victims.as_slice()), (UnitId(1), &[0, 1][..]));
    assert_eq!(accepted.evictions[0].1.preemptor, UnitId(2));
    world.commit_hold(&accepted);
    assert!(world.binder.take_hold_work().is_empty());
    // Decided again nobody leaves twice.
    assert_eq!(world.refuse(&again), [(RejectionReason::AlreadyHeld, vec![0])]);
    let ahead = Revision(world.binder.revision().0 + 1);
    let later = Decision { nodes_as_of: ahead, ..again };
    let Verdict::Wait(Wait::Revision(at)) = world.binder.check(&later) else {
        panic!("the hold may have ended")
    };
    assert_eq!(at, ahead);
    world.statuses(1, &[0], Phase::Stopped);
    assert!(world.binder.has_hold_work());
    assert!(world.binder.take_hold_work().is_empty(), "one is still there");
    // What is held is not for others.
    let third = world.unit(unit(3, 1, 1, demand(401, 0)));
    assert_eq!(
        world.refuse(&place(3, third, &[(0, 1)])),
        [(RejectionReason::InsufficientResources, vec![0])]
    );
    world.statuses(1, &[1], Phase::Stopped);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!((bound.unit, bound.binds[0].nodes.as_slice()), (UnitId(2), &[NodeId(1)][..]));
    assert_eq!(bound.ends.len(), 1);
    // Refused, it is bound again.
    world.binder.take_back(bound.ticket);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    let bound = bound.clone();
    world.commit(&bound);
    world.change(Change::Gone(RecordKey::Hold(bound.ends[0].0)));
    assert_eq!(world.binder.n_holds(), 0);
    let (taken, _) = world.binder.cluster().free().node_state(NodeId(1)).unwrap();
    assert_eq!(taken.get(CPU), 600);
    let fourth = world.unit(unit(4, 1, 1, demand(400, 0)));
    assert_eq!(world.accept(&place(4, fourth, &[(0, 1)])).binds[0].ordinals, [0]);
}

#[test]
fn a_hold_waits_for_another_binding_of_its_unit_and_no_longer() {
    let (mut world, _, _) = filled();
    let spec = unit(2, 2, 1, demand(600, 0)).priority(9);
    let revision = world.unit(spec.clone());
    let held = world.hold(&spec, revision, 1);
    world.commit_hold(&held);
    world.change(Change::Put(Record::NodeSpec(node(2))));
    world.change(Change::Put(Record::NodeReport(report(2, 1000, 0))));
    let other = world.accept(&place(2, revision, &[(1, 2)]));
    world.statuses(1, &[0, 1], Phase::Stopped);
    assert!(world.binder.take_hold_work().is_empty(), "it is under way");
    assert!(!world.binder.has_hold_work());
    world.binder.take_back(other.ticket);
    assert!(world.binder.has_hold_work());
    let work = world.binder.take_hold_work();
    assert!(matches!(work.as_slice(), [HoldWork::Bind(_)]), "{work:?}");
}

#[test]
fn victims_are_checked() {
    let (mut world, high, revision) = filled();
    let decision = claims(&world.binder, &high, revision, &[(0, 0)]).unwrap();
    let reasons = |world: &mut World, decision: &Decision| -> Vec<RejectionReason> {
        world.refuse(decision).into_iter().map(|(reason, _)| reason).collect()
    };
    let mut stale = decision.clone();
    preemption(&mut stale).nodes[0].victims[0].replica.incarnation = 7;
    assert_eq!(reasons(&mut world, &stale), [RejectionReason::VictimGone]);
    let mut twice = decision.clone();
    let other = twice.claim.preemption().unwrap().nodes[0].victims[0];
    preemption(&mut twice).others.push(other);
    assert_eq!(reasons(&mut world, &twice), [RejectionReason::Invalid]);
    let mut many = decision.clone();
    let others = &mut preemption(&mut many).others;
    let absent = |ordinal| RunningUnitId::new(UnitId(77), ordinal, 0);
    others.extend((0..).map(absent).take(N_VICTIMS_MAX - decision.claim.preemption().unwrap().n_victims()));
    assert_eq!(reasons(&mut world, &many), [RejectionReason::VictimGone], "just as many as may be");
    preemption(&mut many).others.push(RunningUnitId::new(UnitId(78), 0, 0));
    assert_eq!(reasons(&mut world, &many), [RejectionReason::Invalid]);
    let mut too_few = decision.clone();
    preemption(&mut too_few).nodes[0].victims.pop();
    assert_eq!(reasons(&mut world, &too_few), [RejectionReason::InsufficientResources]);
    let peer = world.unit(unit(3, 1, 1, demand(600, 0)).priority(0));
    let same_rank = Decision { unit: UnitId(3), spec_revision: Revision(peer), ..decision.clone() };
    assert_eq!(reasons(&mut world, &same_rank), [RejectionReason::VictimGone]);
    // The first wins.
    let accepted = world.accept(&decision);
    world.commit_hold(&accepted);
    let rival = world.unit(unit(4, 1, 1, demand(600, 0)).priority(99));
    let late = Decision { unit: UnitId(4), spec_revision: Revision(rival), ..decision };
    assert_eq!(reasons(&mut world, &late), [RejectionReason::VictimGone]);
}

#[test]
fn who_was_preempted_does_not_preempt_back() {
    let (mut world, high, revision) = filled();
    let accepted = world.hold(&high, revision, 1);
    world.commit_hold(&accepted);
    world.statuses(1, &[0, 1], Phase::Stopped);
    let work = world.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    let bound = bound.clone();
    world.commit(&bound);
    world.change(Change::Gone(RecordKey::Hold(bound.ends[0].0)));
    let requeue = world.binder.take_requeues(10).remove(0).requeue;
    world.change(Change::Rows(UnitId(1), RunChange::Requeue(requeue)));
    // Its priority is raised above that of who preempted it.
    let revenge = unit(1, 2, 1, demand(500, 0)).priority(99);
    let revision = world.unit(revenge.clone());
    assert_eq!(claims(&world.binder, &revenge, revision, &[(0, 1)]), None);
    let victim = RunningUnitId::new(UnitId(2), 0, 0);
    let claim = NodeVictims { group: 0, node: NodeId(1), victims: vec![victim], holds: Vec::new() };
    let mut decision = place(1, revision, &[(0, 1)]);
    decision.groups[0].incarnations = vec![1];
    decision.claim = Preemption { nodes: vec![claim], ..Preemption::default() }.into();
    assert_eq!(world.refuse(&decision), [(RejectionReason::PreemptionLoop, vec![0])]);
}

#[test]
fn a_gang_is_held_whole_and_bound_whole() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 2, 1, demand(1000, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    let gang = unit(2, 2, 2, demand(1000, 0)).priority(9);
    let revision = world.unit(gang.clone());
    let accepted = world.hold(&gang, revision, 2);
    assert_eq!(accepted.holds.len(), 2);
    world.commit_hold(&accepted);
    world.statuses(1, &[0], Phase::Stopped);
    assert!(world.binder.take_hold_work().is_empty(), "one alone is worth nothing");
    // A new binder goes on from the records.
    let mut other = World::new(2);
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    other.revision = world.revision;
    other.binder.on_change(Change::RowsLoaded(UnitId(1), rows), Revision(world.revision), 1);
    other.binder.on_change(Change::Put(Record::Unit(Arc::new(gang))), Revision(revision), 1);
    for hold in world.binder.cluster().holds().all() {
        other.binder.on_change(Change::Put(Record::Hold(Arc::clone(hold))), Revision(world.revision), 1);
    }
    other.binder.on_revision(Revision(world.revision));
    assert!(other.binder.take_hold_work().is_empty());
    other.statuses(1, &[1], Phase::Stopped);
    let work = other.binder.take_hold_work();
    let [HoldWork::Bind(bound)] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!((bound.binds[0].ordinals.as_slice(), bound.ends.len()), (&[0, 1][..], 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn holds_keep_the_invariants(steps in prop::collection::vec(step(), 0..120)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.judge();
        run.settle();
        run.judge();
        let is_slot = run.world.holds.values().all(|hold| hold.value.slot.is_some());
        prop_assert!(is_slot, "every hold but slots comes to an end");
        prop_assert_eq!(run.binder.n_holds(), run.world.holds.len());
        run.assert_same_picture();
        for name in ["kept", "more"] {
            run.step(&Step::Reserve { name, slots: None, milli: 0 });
        }
        run.settle();
        run.judge();
        prop_assert_eq!(run.binder.n_holds(), 0);
        prop_assert!(run.world.holds.is_empty());
        run.assert_same_picture();
    }
}
