//! What units say about running units, and ports, against decisions of schedulers that did not know of one another.

use godel_domain::{
    label_expression::parse,
    node::NodeUsage,
    node_load::{LoadAmounts, MaxLoad, NodeLoad},
    records::Record,
    unit_affinity::{NODE, SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
};

use super::*;

/// Nodes 1 and 2 are in rack `a`, 3 and 4 in rack `b`.
fn racks() -> World {
    let mut world = World::new(4);
    for id in 1..=4 {
        let rack = if id <= 2 { "a" } else { "b" };
        let labels = [("rack".to_owned(), rack.to_owned())].into();
        world.change(Change::Put(Record::NodeSpec(NodeSpec { labels, ..node(id) })));
    }
    world
}

fn labelled(id: u64, app: &str, replicas: u32) -> UnitRecord {
    let mut record = unit(id, replicas, 1, demand(10, 0));
    record.spec.labels = [("app".to_owned(), app.to_owned())].into();
    record
}

fn term(units: &str, topology: &str) -> UnitTerm {
    let units = if units.is_empty() { Vec::new() } else { parse(units).unwrap() };
    UnitTerm { units, topology: topology.to_owned(), weight: 0 }
}

fn bound(world: &mut World, decision: &Decision) {
    let accepted = world.accept(decision);
    assert!(accepted.rejections.is_empty(), "{:?}", accepted.rejections);
    world.commit(&accepted);
}

#[test]
fn what_running_units_say_is_checked_once_more() {
    let mut world = racks();
    let web = world.unit(labelled(1, "web", 4));
    bound(&mut world, &place(1, web, &[(0, 1)]));

    // Apart from `web`, and `web` from it.
    let mut quiet = labelled(2, "quiet", 2);
    quiet.spec.affinity.apart = vec![term("app = web", "rack")];
    let quiet = world.unit(quiet);
    let reason = RejectionReason::UnitAffinity;
    assert_eq!(world.refuse(&place(2, quiet, &[(0, 2)])), [(reason, vec![0])]);
    bound(&mut world, &place(2, quiet, &[(0, 3)]));
    assert_eq!(world.refuse(&place(1, web, &[(1, 4)])), [(reason, vec![1])]);
    bound(&mut world, &place(1, web, &[(1, 2)]));

    // Near to `quiet`.
    let mut near = labelled(3, "near", 2);
    near.spec.affinity.near = vec![term("app = quiet", "rack")];
    let near = world.unit(near);
    assert_eq!(world.refuse(&place(3, near, &[(0, 1)])), [(reason, vec![0])]);
    bound(&mut world, &place(3, near, &[(0, 4)]));

    // Evenly: of two at once the second one is too many for its rack.
    let spread = SpreadTerm { units: Vec::new(), topology: "rack".to_owned(), max_skew: 1, weight: 0 };
    let mut even = unit(4, 4, 1, demand(10, 0));
    even.spec.affinity = UnitAffinity { spread: vec![spread], ..UnitAffinity::default() };
    let even = world.unit(even);
    let accepted = world.accept(&place(4, even, &[(0, 1), (1, 2)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::TopologySpread, vec![1])]);
    world.commit(&accepted);
    bound(&mut world, &place(4, even, &[(1, 3), (2, 4)]));

    // A port that is taken, and one of another protocol.
    let listens = |port: &str| Demand { host_ports: vec![port.parse().unwrap()], ..demand(10, 0) };
    let first = world.unit(unit(5, 2, 1, listens("80")));
    let accepted = world.accept(&place(5, first, &[(0, 1), (1, 1)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::HostPort, vec![1])]);
    world.commit(&accepted);
    let second = world.unit(unit(6, 1, 1, listens("80/udp")));
    bound(&mut world, &place(6, second, &[(0, 1)]));

    // A node of which more is used than the unit accepts, and one of which nothing is known.
    let mut careful = unit(7, 2, 1, demand(10, 0));
    careful.spec.task_groups[0].template.max_load = MaxLoad { cpu: Some(50), memory: None };
    let careful = world.unit(careful);
    let used = LoadAmounts { cpu: i64::MAX, ..LoadAmounts::default() };
    let load = Some(NodeLoad { p50: LoadAmounts::default(), p95: used });
    world.change(Change::Put(Record::NodeUsage(NodeUsage { id: NodeId(1), load, ..NodeUsage::default() })));
    let accepted = world.accept(&place(7, careful, &[(0, 1), (1, 2)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::LoadThreshold, vec![0])]);
}

#[test]
fn a_unit_that_requires_a_domain_is_bound_in_one() {
    let mut world = racks();
    let mut gang = unit(1, 4, 2, demand(10, 0));
    gang.spec.topology = UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() };
    let gang = world.unit(gang);
    let refused = world.refuse(&place(1, gang, &[(0, 1), (1, 3)]));
    assert!(refused.contains(&(RejectionReason::UnitAffinity, vec![1])), "{refused:?}");
    bound(&mut world, &place(1, gang, &[(0, 3), (1, 4)]));
    // What comes later goes where the others are.
    assert_eq!(world.refuse(&place(1, gang, &[(2, 1)])), [(RejectionReason::UnitAffinity, vec![2])]);
    bound(&mut world, &place(1, gang, &[(2, 3)]));
}

#[test]
fn each_segment_is_bound_in_one_domain() {
    let mut world = racks();
    let mut record = unit(1, 4, 1, demand(10, 0));
    let segments = Some(Segments { size: 2, within: "rack".to_owned() });
    record.spec.topology = UnitTopology { segments, ..UnitTopology::default() };
    let revision = world.unit(record);
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 3), (2, 4), (3, 3)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::UnitAffinity, vec![1])]);
    world.commit(&accepted);
    bound(&mut world, &place(1, revision, &[(1, 2)]));
}

#[test]
fn replicas_that_keep_apart_on_nodes_are_one_to_a_node() {
    let mut world = racks();
    let mut record = unit(1, 3, 1, demand(10, 0));
    record.spec.affinity.apart = vec![term("", NODE)];
    let revision = world.unit(record);
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 2)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::UnitAffinity, vec![1])]);
}

#[test]
fn replicas_of_a_daemon_are_one_to_a_node() {
    let mut world = World::new(3);
    let record = unit(1, 4, 1, demand(10, 0)).class(godel_domain::unit::WorkloadClass::Daemon);
    let revision = world.unit(record);
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 1), (2, 2)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::UnitAffinity, vec![1])]);
    world.commit(&accepted);
    assert_eq!(world.refuse(&place(1, revision, &[(1, 2)])), [(RejectionReason::UnitAffinity, vec![1])]);
    bound(&mut world, &place(1, revision, &[(1, 3)]));
}

#[test]
fn replicas_of_a_stateful_unit_are_bound_once_those_before_run() {
    let mut world = World::new(3);
    let record = unit(1, 3, 1, demand(10, 0)).class(godel_domain::unit::WorkloadClass::Stateful);
    let revision = world.unit(record);
    let too_early = |ordinal| [(RejectionReason::MinMember, vec![ordinal])];
    assert_eq!(world.refuse(&place(1, revision, &[(1, 1)])), too_early(1));
    let accepted = world.accept(&place(1, revision, &[(0, 1), (1, 2)]));
    assert_eq!(short(&accepted.rejections), too_early(1));
    world.commit(&accepted);
    assert_eq!(
        world.refuse(&place(1, revision, &[(1, 2)])),
        too_early(1),
        "it is bound, and does not run yet"
    );
    world.statuses(1, &[0], Phase::Running);
    bound(&mut world, &place(1, revision, &[(1, 2)]));
}

#[test]
fn task_groups_are_bound_in_domains_of_their_own() {
    let mut world = racks();
    let in_rack = UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() };
    let pairs = UnitTopology {
        segments: Some(Segments { size: 2, within: "rack".to_owned() }),
        ..UnitTopology::default()
    };
    let mut record = unit(1, 1, 1, demand(10, 0));
    let template = record.spec.task_groups[0].template.clone();
    let group = |name: &str, replicas, topology: &UnitTopology| godel_domain::unit::TaskGroup {
        topology: Some(Box::new(topology.clone())),
        ..godel_testkit::group(name, replicas, template.clone())
    };
    record.spec.task_groups = vec![group("a", 2, &in_rack), group("b", 3, &in_rack), group("c", 3, &pairs)];
    let of = UnitRecord::new(record.id, record.spec);
    let revision = world.unit(of);
    let in_group = |group: u16, replicas: &[(u32, u32)]| {
        let mut decision = place(1, revision, replicas);
        decision.groups[0].group = group;
        decision
    };
    bound(&mut world, &in_group(0, &[(0, 1), (1, 2)]));
    // Another group may be elsewhere, and is one by itself.
    let accepted = world.accept(&in_group(1, &[(2, 3), (3, 1), (4, 4)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::UnitAffinity, vec![3])]);
    world.commit(&accepted);
    // Ordinals 5 and 6 are a segment, 7 begins the next one.
    let accepted = world.accept(&in_group(2, &[(5, 1), (6, 3), (7, 4)]));
    assert_eq!(short(&accepted.rejections), [(RejectionReason::UnitAffinity, vec![6])]);
    world.commit(&accepted);
    bound(&mut world, &in_group(2, &[(6, 2)]));
    // A node in no rack is of no domain.
    world.change(Change::Put(Record::NodeSpec(node(5))));
    assert_eq!(world.refuse(&in_group(1, &[(3, 5)])), [(RejectionReason::UnitAffinity, vec![3])]);
}
