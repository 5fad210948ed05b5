//! Tables for each reason, and properties against a naive model ([`model`]).

mod ahead;
mod budgets;
mod follows;
mod frozen;
mod gangs;
mod holds;
mod minima;
mod model;
mod moves;
mod properties;
mod queues;
mod requeues;
mod reservations;
mod squeeze;
mod suspended;
mod terms;

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{HoldId, NodeId},
    resources::{CPU, Resources},
};
use godel_domain::{
    allocation::{CoreSet, DeviceSet, GivenZones, ZoneSet},
    change::{Change, Commit},
    decision::{Claim, Decision, GroupPlacement, N_PLACEMENTS_MAX, RejectionReason},
    demand::{Demand, DeviceRequest, Pool},
    node::{Device, NodeReport, NodeSpec, Taint, TaintEffect},
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    running_units::{EvictionReason, Phase, Requeue, RunChange, RunningUnits, Statuses},
    unit::UnitRecord,
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest},
};
use godel_testkit::{BuildDemand as _, BuildUnit as _};

use super::*;

pub(super) fn node(id: u32) -> NodeSpec {
    NodeSpec { id: NodeId(id), name: format!("n{id}"), uid: format!("u{id}"), ..NodeSpec::default() }
}

pub(super) fn report(id: u32, cpu: i64, n_gpus: usize) -> NodeReport {
    let gpu = Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
    NodeReport {
        id: NodeId(id),
        capacity: Resources::new([(CPU, cpu)]).unwrap(),
        devices: vec![gpu; n_gpus],
        ready: true,
        ..NodeReport::default()
    }
}

pub(super) fn demand(cpu: i64, gpu_milli: u32) -> Demand {
    godel_testkit::demand(cpu).gpus(1, gpu_milli, &[])
}

pub(super) fn unit(id: u64, replicas: u32, min_member: u32, demand: Demand) -> UnitRecord {
    godel_testkit::unit(format!("unit{id}"))
        .id(UnitId(id))
        .uid(format!("uid{id}"))
        .main_group(replicas, demand)
        .min_member(min_member)
}

/// Places `(ordinal, node)` pairs, all incarnation 0, device 0 if the unit asks for any.
pub(super) fn place(unit: u64, spec_revision: u64, places: &[(u32, u32)]) -> Decision {
    Decision {
        id: 1,
        unit: UnitId(unit),
        spec_revision: Revision(spec_revision),
        nodes_as_of: Revision(0),
        groups: vec![GroupPlacement {
            group: 0,
            ordinals: places.iter().map(|place| place.0).collect(),
            nodes: places.iter().map(|place| NodeId(place.1)).collect(),
            ..GroupPlacement::default()
        }],
        claim: Claim::FreeRoom,
    }
}

/// A binder and the next revision, with commits as state would make them.
struct World {
    binder: Binder,
    revision: u64,
    /// Of commits.
    time_ms: i64,
}

impl World {
    /// `n_nodes` nodes of 1,000 milli-cores and one GPU.
    fn new(n_nodes: u32) -> Self {
        let mut world = Self { binder: Binder::new(), revision: 0, time_ms: 1 };
        for id in 1..=n_nodes {
            world.change(Change::Put(Record::NodeSpec(node(id))));
            world.change(Change::Put(Record::NodeReport(report(id, 1000, 1))));
        }
        world
    }

    fn change(&mut self, change: Change) -> u64 {
        self.revision += 1;
        let (revision, time_ms) = (Revision(self.revision), self.time_ms);
        self.binder.apply(&Commit { revision, time_ms, changes: vec![change] });
        self.revision
    }

    fn unit(&mut self, record: UnitRecord) -> u64 {
        self.change(Change::Put(Record::Unit(Arc::new(record))))
    }

    /// The accepted part's transaction commits, and is read.
    fn commit(&mut self, accepted: &Accepted) {
        self.binder.commit(accepted.ticket, Revision(self.revision + 1));
        for bind in &accepted.binds {
            self.revision += 1;
            let change = Change::Rows(accepted.unit, RunChange::Bind(bind.clone()));
            self.binder.on_change(change, Revision(self.revision), self.time_ms);
        }
        self.binder.on_revision(Revision(self.revision));
    }

    fn accept(&mut self, decision: &Decision) -> Accepted {
        match self.binder.check(decision) {
            Verdict::Bind(accepted) => *accepted,
            other => panic!("not accepted: {other:?}"),
        }
    }

    /// Reasons and ordinals of a decision that binds nothing.
    fn refuse(&mut self, decision: &Decision) -> Vec<(RejectionReason, Vec<u32>)> {
        match self.binder.check(decision) {
            Verdict::Reject(rejections) => short(&rejections),
            other => panic!("not refused: {other:?}"),
        }
    }

    fn statuses(&mut self, unit: u64, ordinals: &[u32], phase: Phase) {
        let statuses = Statuses {
            ordinals: ordinals.to_vec(),
            phases: vec![phase; ordinals.len()],
            ..Statuses::default()
        };
        self.change(Change::Rows(UnitId(unit), RunChange::Statuses(statuses)));
    }

    fn evict(&mut self, unit: u64, ordinals: &[u32], reason: EvictionReason) {
        self.change(Change::Rows(UnitId(unit), RunChange::Evict(eviction(ordinals, reason))));
    }
}

fn eviction(ordinals: &[u32], reason: EvictionReason) -> Evict {
    Evict {
        ordinals: ordinals.to_vec(),
        incarnations: Vec::new(),
        reason,
        by: "test".to_owned(),
        preemptor: UnitId(0),
    }
}

fn short(rejections: &[Rejection]) -> Vec<(RejectionReason, Vec<u32>)> {
    rejections.iter().map(|rejection| (rejection.reason, rejection.ordinals.clone())).collect()
}

#[test]
fn two_schedulers_on_one_last_slot() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 2, 1, demand(600, 0)));
    let first = world.accept(&place(1, revision, &[(0, 1)]));
    assert_eq!(first.unit_revision, Revision(revision));
    let bind = &first.binds[0];
    assert!(bind.incarnations.is_empty() && bind.devices.is_empty(), "nothing but 0 is left out");
    // Under way, committed but not read, read: the room is taken all along.
    let second = place(1, revision, &[(1, 1)]);
    let short_of_cpu = vec![(RejectionReason::InsufficientResources, vec![1])];
    assert_eq!(world.refuse(&second), short_of_cpu);
    world.binder.commit(first.ticket, Revision(world.revision + 1));
    assert_eq!(world.refuse(&second), short_of_cpu);
    world.commit(&first);
    assert_eq!(world.refuse(&second), short_of_cpu);
    assert_eq!(world.binder.n_open(), 0);
}

#[test]
fn a_node_takes_no_more_running_units_than_it_says() {
    let mut world = World::new(0);
    world.change(Change::Put(Record::NodeSpec(node(1))));
    world.change(Change::Put(Record::NodeReport(NodeReport { max_running_units: 2, ..report(1, 1000, 0) })));
    let revision = world.unit(unit(1, 3, 1, demand(0, 0)));
    let two = world.accept(&place(1, revision, &[(0, 1), (1, 1)]));
    let full = vec![(RejectionReason::InsufficientResources, vec![2])];
    assert_eq!(world.refuse(&place(1, revision, &[(2, 1)])), full);
    world.commit(&two);
    assert_eq!(world.refuse(&place(1, revision, &[(2, 1)])), full);
}

#[test]
fn what_is_taken_back_is_free_again() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 2, 1, demand(600, 1000)));
    let mut decision = place(1, revision, &[(0, 1)]);
    decision.groups[0].devices = vec![DeviceSet(1)];
    let before = world.binder.cluster().free().node_state(NodeId(1));
    let first = world.accept(&decision);
    assert_ne!(world.binder.cluster().free().node_state(NodeId(1)), before);
    world.binder.take_back(first.ticket);
    assert_eq!(world.binder.cluster().free().node_state(NodeId(1)), before);
    let again = world.accept(&decision);
    world.binder.take_back_all();
    assert_eq!(world.binder.cluster().free().node_state(NodeId(1)), before);
    world.binder.take_back(again.ticket);
    assert_eq!(world.binder.n_open(), 0);
}

#[test]
fn a_repeated_decision_waits_and_is_then_bound_already() {
    let mut world = World::new(2);
    let revision = world.unit(unit(1, 2, 1, demand(100, 0)));
    let decision = place(1, revision, &[(0, 1), (1, 2)]);
    let first = world.accept(&decision);
    assert_eq!(world.binder.check(&decision), Verdict::Wait(Wait::Ticket(first.ticket)));
    let landed = Revision(world.revision + 1);
    world.binder.commit(first.ticket, landed);
    assert_eq!(world.binder.check(&decision), Verdict::Wait(Wait::Revision(landed)));
    world.commit(&first);
    let Verdict::Reject(rejections) = world.binder.check(&decision) else { panic!("bound twice") };
    assert!(rejections.iter().all(|rejection| rejection.reason == RejectionReason::AlreadyBound));
    assert_eq!(rejections.iter().map(|rejection| rejection.node).collect::<Vec<_>>(), [NodeId(1), NodeId(2)]);
    assert_eq!(world.binder.picture.fresh_nodes(UnitId(1), &rejections).len(), 2);
    // Also once the unit's record has changed: the placement stands.
    world.unit(unit(1, 3, 1, demand(100, 0)));
    assert_eq!(
        world.refuse(&place(1, revision, &[(0, 1), (2, 1)])),
        [(RejectionReason::AlreadyBound, vec![0]), (RejectionReason::UnitChanged, vec![2])]
    );
}

#[test]
fn a_decision_from_the_future_waits() {
    let mut world = World::new(1);
    world.unit(unit(1, 1, 1, demand(100, 0)));
    let future = Revision(world.revision + 5);
    assert_eq!(world.binder.check(&place(1, future.0, &[(0, 1)])), Verdict::Wait(Wait::Revision(future)));
}

#[test]
fn gangs_bind_whole_or_not_at_all() {
    let mut world = World::new(2);
    let revision = world.unit(unit(1, 3, 3, demand(600, 0)));
    assert_eq!(
        world.refuse(&place(1, revision, &[(0, 1), (1, 2), (2, 2)])),
        [(RejectionReason::InsufficientResources, vec![2]), (RejectionReason::MinMember, vec![0, 1])]
    );
    assert_eq!(world.binder.cluster().free().node_state(NodeId(1)).unwrap().0, Resources::default());

    // Beyond its minimum what fits is bound.
    let revision = world.unit(unit(2, 3, 2, demand(600, 0)));
    let accepted = world.accept(&place(2, revision, &[(0, 1), (1, 2), (2, 2)]));
    assert_eq!(accepted.binds[0].ordinals, [0, 1]);
    assert_eq!(short(&accepted.rejections), [(RejectionReason::InsufficientResources, vec![2])]);
    world.commit(&accepted);
    world.change(Change::Put(Record::NodeSpec(node(3))));
    world.change(Change::Put(Record::NodeReport(report(3, 1000, 0))));
    // Later members go one by one.
    let rest = world.accept(&place(2, revision, &[(2, 3)]));
    assert_eq!(rest.binds[0].nodes, [NodeId(3)]);
}

#[test]
fn a_late_member_waits_for_its_gangs_first_binding() {
    let mut world = World::new(2);
    let revision = world.unit(unit(1, 3, 2, demand(100, 0)));
    let first = world.accept(&place(1, revision, &[(0, 1), (1, 2)]));
    let late = place(1, revision, &[(2, 2)]);
    assert_eq!(world.binder.check(&late), Verdict::Wait(Wait::Ticket(first.ticket)));
    world.binder.take_back(first.ticket);
    assert_eq!(world.refuse(&late), [(RejectionReason::MinMember, vec![2])]);
    let first = world.accept(&place(1, revision, &[(0, 1), (1, 2)]));
    world.commit(&first);
    assert_eq!(world.accept(&late).binds[0].ordinals, [2]);
}

#[test]
fn what_is_bound_counts_towards_a_minimum_that_rose() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 2, 1, demand(300, 0)));
    let first = world.accept(&place(1, revision, &[(0, 1)]));
    world.commit(&first);
    let under_way = world.accept(&place(1, revision, &[(1, 1)]));
    let revision = world.unit(unit(1, 4, 3, demand(300, 0)));
    let third = place(1, revision, &[(2, 1)]);
    assert_eq!(world.binder.check(&third), Verdict::Wait(Wait::Ticket(under_way.ticket)), "three of three");
    world.binder.take_back(under_way.ticket);
    let Verdict::Reject(rejections) = world.binder.check(&place(1, revision, &[(1, 1)])) else {
        panic!("two of three")
    };
    assert_eq!(short(&rejections), [(RejectionReason::MinMember, vec![1])]);
    assert_eq!(rejections[0].detail, "2 of 3 would be bound");
    let rest = world.accept(&place(1, revision, &[(1, 1), (2, 1)]));
    assert_eq!(rest.binds[0].ordinals, [1, 2]);
    assert_eq!(
        world.refuse(&place(1, revision, &[(3, 1)])),
        [(RejectionReason::InsufficientResources, vec![3])],
        "their room is taken"
    );
}

#[test]
fn a_gang_has_several_and_needs_every_one() {
    let mut world = World::new(1);
    for (replicas, min_member, is_gang) in [(1, 1, false), (3, 1, false), (3, 2, false), (3, 3, true)] {
        world.unit(unit(1, replicas, min_member, demand(100, 0)));
        assert_eq!(world.binder.picture.units[&UnitId(1)].is_gang(), is_gang, "{min_member} of {replicas}");
    }
}

#[test]
fn malformed_decisions_are_invalid() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 4, 1, demand(100, 0)));
    let fine = place(1, revision, &[(0, 1), (1, 1)]);
    let mut cases = vec![place(1, revision, &[]), place(1, revision, &[(1, 1), (1, 1)])];
    let mut short_nodes = fine.clone();
    short_nodes.groups[0].nodes.pop();
    let mut short_masks = fine.clone();
    short_masks.groups[0].devices = vec![DeviceSet(0)];
    let mut group_twice = fine.clone();
    group_twice.groups.push(GroupPlacement {
        ordinals: vec![2],
        nodes: vec![NodeId(1)],
        ..fine.groups[0].clone()
    });
    let mut twice_over_groups = fine.clone();
    twice_over_groups.groups.push(GroupPlacement { group: 1, ..fine.groups[0].clone() });
    let mut no_such_group = fine.clone();
    no_such_group.groups[0].group = 7;
    let huge: Vec<(u32, u32)> =
        (0..=u32::try_from(N_PLACEMENTS_MAX).unwrap()).map(|ordinal| (ordinal, 1)).collect();
    cases.extend([short_nodes, short_masks, group_twice, twice_over_groups, no_such_group]);
    cases.push(place(1, revision, &huge));
    for case in cases {
        let reasons = world.refuse(&case);
        assert!(
            reasons.iter().all(|(reason, _)| *reason == RejectionReason::Invalid),
            "{case:?}: {reasons:?}"
        );
    }
    let accepted = world.accept(&fine);
    world.binder.take_back(accepted.ticket);
    let most = world.accept(&place(1, revision, &huge[1..]));
    assert_eq!(most.binds[0].ordinals, [1, 2, 3], "just as many as may be");
}

#[test]
fn units_that_changed_get_nothing() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 2, 1, demand(100, 0)));
    let changed = |ordinals: &[u32]| vec![(RejectionReason::UnitChanged, ordinals.to_vec())];
    assert_eq!(world.refuse(&place(9, revision, &[(0, 1)])), changed(&[0]), "unknown unit");
    assert_eq!(world.refuse(&place(1, revision, &[(2, 1)])), changed(&[2]), "not wanted");
    let mut later = place(1, revision, &[(0, 1)]);
    later.groups[0].incarnations = vec![1];
    assert_eq!(world.refuse(&later), changed(&[0]), "incarnation");
    let newer = world.unit(unit(1, 2, 1, demand(200, 0)));
    assert_eq!(world.refuse(&place(1, revision, &[(0, 1)])), changed(&[0]), "other record");
    let cancelled = world.unit(unit(1, 2, 1, demand(200, 0)).cancelled(true));
    assert!(newer < cancelled);
    assert_eq!(world.refuse(&place(1, cancelled, &[(0, 1)])), changed(&[0]), "cancelled");
    world.change(Change::Gone(RecordKey::Unit(UnitId(1))));
    assert_eq!(world.refuse(&place(1, cancelled, &[(0, 1)])), changed(&[0]), "deleted");
}

#[test]
fn nodes_are_checked_as_they_are_now() {
    let mut world = World::new(1);
    let mut picky = unit(1, 1, 1, demand(100, 0));
    picky.spec.task_groups[0].template.node_selector.insert("disk".to_owned(), "ssd".to_owned());
    let revision = world.unit(picky);
    let mut decision = place(1, revision, &[(0, 1)]);
    let one = |reason| vec![(reason, vec![0])];
    assert_eq!(world.refuse(&decision), one(RejectionReason::NodeSelector));
    // It rests on the node as it is: labels and taints were checked by the scheduler.
    decision.nodes_as_of = Revision(world.revision);
    let accepted = world.accept(&decision);
    world.binder.take_back(accepted.ticket);

    let mut tainted = node(1);
    tainted.labels.insert("disk".to_owned(), "ssd".to_owned());
    tainted.taints.push(Taint {
        key: "gpu".to_owned(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
        added_ms: 0,
    });
    world.change(Change::Put(Record::NodeSpec(tainted)));
    assert_eq!(world.refuse(&decision), one(RejectionReason::Taint));
    world.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(1) })));
    assert_eq!(world.refuse(&decision), one(RejectionReason::NodeCordoned));
    world.change(Change::Put(Record::NodeSpec(node(1))));
    world.change(Change::Put(Record::NodeReport(NodeReport { ready: false, ..report(1, 1000, 0) })));
    assert_eq!(world.refuse(&decision), one(RejectionReason::NodeNotReady));
    world.change(Change::Gone(RecordKey::NodeSpec(NodeId(1))));
    assert_eq!(world.refuse(&decision), one(RejectionReason::NodeGone));
    assert_eq!(world.refuse(&place(1, revision, &[(0, 77)])), one(RejectionReason::NodeGone));
}

#[test]
fn devices_are_shared_to_the_milli() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 3, 1, demand(10, 600)));
    let on_device = |ordinal: u32, mask: u64| {
        let mut decision = place(1, revision, &[(ordinal, 1)]);
        decision.groups[0].devices = vec![DeviceSet(mask)];
        decision
    };
    assert_eq!(world.refuse(&on_device(0, 0)), [(RejectionReason::DeviceTaken, vec![0])], "names none");
    assert_eq!(
        world.refuse(&on_device(0, 2)),
        [(RejectionReason::DeviceTaken, vec![0])],
        "names a missing one"
    );
    let accepted = world.accept(&on_device(0, 1));
    assert_eq!(accepted.binds[0].devices, [DeviceSet(1)]);
    assert_eq!(world.refuse(&on_device(1, 1)), [(RejectionReason::DeviceTaken, vec![1])]);
    world.commit(&accepted);
    assert_eq!(world.refuse(&on_device(1, 1)), [(RejectionReason::DeviceTaken, vec![1])]);
}

#[test]
fn devices_of_two_kinds_are_bound_together() {
    let mut world = World::new(1);
    let mut both = report(1, 1000, 1);
    both.devices.push(Device { kind: "nic".to_owned(), ..both.devices[0].clone() });
    world.change(Change::Put(Record::NodeReport(both)));
    let mut asked = demand(10, 600);
    asked.devices.push(DeviceRequest { kind: "nic".to_owned(), milli: 300, ..asked.devices[0].clone() });
    let revision = world.unit(unit(1, 3, 1, asked));
    let on = |ordinal: u32, devices: u64| {
        let mut decision = place(1, revision, &[(ordinal, 1)]);
        decision.groups[0].devices = vec![DeviceSet(devices)];
        decision
    };
    assert_eq!(world.refuse(&on(0, 0b01)), [(RejectionReason::DeviceTaken, vec![0])], "no card");
    let accepted = world.accept(&on(0, 0b11));
    assert_eq!(accepted.binds[0].devices, [DeviceSet(0b11)]);
    assert_eq!(world.refuse(&on(1, 0b11)), [(RejectionReason::DeviceTaken, vec![1])], "the GPU is short");
    world.commit(&accepted);
    let (_, free) = world.binder.cluster().free().node_state(NodeId(1)).unwrap();
    assert_eq!(free, [400, 700], "each device by the request of its kind");
}

#[test]
fn zones_of_a_node_that_has_none_are_refused() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 2, 1, demand(10, 0)));
    let mut decision = place(1, revision, &[(0, 1)]);
    decision.groups[0].zones = vec![ZoneSet(0b1).into()];
    assert_eq!(world.refuse(&decision), [(RejectionReason::ZoneTaken, vec![0])]);
    decision.groups[0].zones = vec![ZoneSet::NONE.into()];
    let accepted = world.accept(&decision);
    assert!(accepted.binds[0].zones.is_empty(), "no zones are written");
    decision.groups[0].zones = vec![ZoneSet(0b1).into(); 2];
    assert_eq!(world.refuse(&decision), [(RejectionReason::Invalid, vec![0])], "columns of unequal length");
}

#[test]
fn taken_zones_are_replaced_by_free_ones_of_the_node() {
    let mut world = World::new(1);
    let zone = |at: u32| Zone {
        kind: "numa".to_owned(),
        capacity: Resources::new([("cpu", 2_000)]).unwrap(),
        cpus: vec![2 * at, 2 * at + 1],
        ..Zone::default()
    };
    world.change(Change::Put(Record::NodeReport(NodeReport {
        zones: vec![zone(0), zone(1)],
        ..report(1, 4_000, 0)
    })));
    let zones = Some(ZoneRequest { policy: ZonePolicy::SingleZone, cpu_mode: CpuMode::Dedicated });
    let asked = Demand { zones, requests: Resources::new([("cpu", 1_000)]).unwrap(), ..demand(10, 0) };
    let revision = world.unit(unit(1, 5, 1, asked));
    let in_zone = |ordinal: u32, zones: u64, cores: u64| {
        let mut decision = place(1, revision, &[(ordinal, 1)]);
        decision.groups[0].zones = vec![GivenZones { zones: ZoneSet(zones), cores: CoreSet(cores) }];
        decision
    };
    let mut given = Vec::new();
    for (ordinal, zones, cores) in [(0, 0b01, 0b10), (1, 0b01, 0b10), (2, 0b01, 0b01)] {
        let accepted = world.accept(&in_zone(ordinal, zones, cores));
        let zones = accepted.binds[0].zones[0];
        given.push((zones.zones.0, zones.cores.0));
        world.commit(&accepted);
    }
    assert_eq!(given, [(0b01, 0b10), (0b01, 0b01), (0b10, 0b01)], "as decided, then what is free");
    world.accept(&in_zone(3, 0b10, 0b11));
    let plain = world.unit(unit(2, 1, 1, demand(0, 0)));
    let mut decision = place(2, plain, &[(0, 1)]);
    decision.groups[0].zones = vec![ZoneSet(0b1).into()];
    assert_eq!(world.refuse(&decision), [(RejectionReason::ZoneTaken, vec![0])], "it asks for none");
}

#[test]
fn taken_devices_are_replaced_by_free_ones_of_the_node() {
    let mut world = World::new(1);
    world.change(Change::Put(Record::NodeSpec(node(2))));
    world.change(Change::Put(Record::NodeReport(report(2, 1000, 2))));
    let revision = world.unit(unit(1, 4, 1, demand(10, 600)));
    let on_first = |ordinal: u32| {
        let mut decision = place(1, revision, &[(ordinal, 2)]);
        decision.groups[0].devices = vec![DeviceSet(1)];
        decision
    };
    let devices = |accepted: &Accepted| accepted.binds[0].devices.clone();
    assert_eq!(devices(&world.accept(&on_first(0))), [DeviceSet(1)]);
    assert_eq!(devices(&world.accept(&on_first(1))), [DeviceSet(2)], "the other one is as good");
    assert_eq!(world.refuse(&on_first(2)), [(RejectionReason::DeviceTaken, vec![2])]);
}

#[test]
fn evictions_skip_what_is_gone_or_going() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 4, 1, demand(100, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 1)]));
    world.commit(&accepted);
    world.evict(1, &[0], EvictionReason::Drained);
    world.statuses(1, &[1], Phase::Succeeded);
    let asked = [
        (UnitId(1), eviction(&[3, 2, 1, 0, 2], EvictionReason::Cancelled)),
        (UnitId(7), eviction(&[0], EvictionReason::Cancelled)),
    ];
    let left = world.binder.evictions(&asked);
    assert_eq!(left.len(), 1);
    assert_eq!(
        (left[0].0, &left[0].1.ordinals[..], &left[0].1.incarnations[..]),
        (UnitId(1), &[2][..], &[0][..])
    );
}

#[test]
fn a_new_list_keeps_what_is_under_way() {
    let mut world = World::new(1);
    let revision = world.unit(unit(1, 2, 1, demand(600, 0)));
    let accepted = world.accept(&place(1, revision, &[(0, 1)]));
    world.binder.reset();
    assert_eq!(world.binder.revision(), Revision(0));
    world.binder.on_change(Change::Put(Record::NodeSpec(node(1))), Revision(1), 1);
    world.binder.on_change(Change::Put(Record::NodeReport(report(1, 1000, 1))), Revision(2), 1);
    world.binder.on_change(
        Change::Put(Record::Unit(Arc::new(unit(1, 2, 1, demand(600, 0))))),
        Revision(revision),
        1,
    );
    world.binder.on_revision(Revision(revision));
    let other = place(1, revision, &[(1, 1)]);
    assert_eq!(world.refuse(&other), [(RejectionReason::InsufficientResources, vec![1])]);
    // The list may show the binding before its answer arrives: it counts once.
    let mut rows = RunningUnits::default();
    rows.apply(&RunChange::Bind(accepted.binds[0].clone()), Revision(revision + 1), 1, |_, _, _| {});
    world.binder.on_change(Change::RowsLoaded(UnitId(1), rows), Revision(revision + 1), 1);
    world.binder.on_revision(Revision(revision + 1));
    world.binder.commit(accepted.ticket, Revision(revision + 1));
    assert_eq!(world.binder.n_open(), 0);
    let (allocated, _) = world.binder.cluster().free().node_state(NodeId(1)).unwrap();
    assert_eq!(allocated.get(CPU), 600);
}
