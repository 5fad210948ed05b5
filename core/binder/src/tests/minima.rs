//! First bindings of units whose task groups have minima of their own.

use godel_domain::{
    records::Record,
    unit::{TaskGroup, Template},
};

use super::*;

/// Two groups of three replicas, of which the second needs two.
fn two_groups(id: u64) -> UnitRecord {
    let template = Template { demand: demand(100, 0), ..Template::default() };
    let groups = vec![
        godel_testkit::group("first", 3, template.clone()),
        TaskGroup { min_member: 2, ..godel_testkit::group("second", 3, template) },
    ];
    unit(id, 1, 1, demand(100, 0)).task_groups(groups).min_member(3)
}

/// Places ordinals of both groups on node 1.
fn place_both(unit: u64, revision: u64, first: &[u32], second: &[u32]) -> Decision {
    let group = |group, ordinals: &[u32]| GroupPlacement {
        group,
        ordinals: ordinals.to_vec(),
        nodes: vec![NodeId(1); ordinals.len()],
        ..GroupPlacement::default()
    };
    let groups = vec![group(0, first), group(1, second)];
    Decision { groups, ..place(unit, revision, &[]) }
}

#[test]
fn a_first_binding_has_the_minimum_of_each_group() {
    let mut world = World::new(1);
    let revision = world.unit(two_groups(1));
    let too_few = |ordinals: &[u32]| [(RejectionReason::MinMember, ordinals.to_vec())];
    assert_eq!(world.refuse(&place_both(1, revision, &[0, 1, 2], &[3])), too_few(&[0, 1, 2, 3]));
    assert_eq!(world.refuse(&place_both(1, revision, &[], &[3, 4])), too_few(&[3, 4]));
    let accepted = world.accept(&place_both(1, revision, &[0], &[3, 4]));
    let minima: Vec<u32> = accepted
        .binds
        .iter()
        .map(|bind| bind.standing.as_ref().map_or(9, |standing| standing.group_min_member))
        .collect();
    assert_eq!(minima, [0, 2], "who leaves for others is judged by what stands in the rows");
    // What is under way may make it whole.
    let waits = world.binder.check(&place_both(1, revision, &[1], &[]));
    assert!(matches!(waits, Verdict::Wait(_)), "{waits:?}");
    world.commit(&accepted);
    assert_eq!(world.accept(&place_both(1, revision, &[1], &[])).binds.len(), 1);
}

#[test]
fn a_full_queue_gives_each_group_its_minimum_first() {
    let mut world = World::new(1);
    let max = [(CPU.to_owned(), 300)].into();
    world.change(Change::Put(Record::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new("q") }))));
    let revision = world.unit(two_groups(1).queue("q"));
    let accepted = world.accept(&place_both(1, revision, &[0, 1, 2], &[3, 4, 5]));
    let bound: Vec<&[u32]> = accepted.binds.iter().map(|bind| bind.ordinals.as_slice()).collect();
    assert_eq!(bound, [&[0][..], &[3, 4][..]]);
}
