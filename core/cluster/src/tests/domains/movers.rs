//! Terms of units beside replicas that move.

use super::*;

/// Node 0 in a rack of its own, 1 and 2 in another one. Unit 1 runs on node 0 and moves to 1.
fn moving(terms: u64) -> World {
    let mut world = World::default();
    for (node, rack) in [(0, 0), (1, 1), (2, 1)] {
        world.apply(&Event::Node(node, Some(rack), Kind::Open));
    }
    world.apply(&Event::Terms(4, usize::try_from(terms).unwrap()));
    world.offer(1);
    world.apply(&Event::Assume(1, 0, 0));
    world.apply(&Event::Bind(1, 0));
    world.apply(&Event::Move(1, 0, 1));
    world
}

fn admitted(world: &World, unit: u64) -> Vec<u32> {
    let domains = world.cluster.domains();
    let Some(rules) = domains.rules_of(UnitId(unit)) else { return (0..3).collect() };
    (0..3).filter(|node| domains.is_admitted(&rules, *node as usize)).collect()
}

#[test]
fn who_follows_a_replica_that_moves_goes_to_its_target() {
    // Unit 4 is near to it.
    let mut world = moving(0);
    assert_eq!(admitted(&world, 4), [1, 2], "though it is on node 0 yet");
    gained(&mut world);
    world.apply(&Event::Left(1, 0));
    assert_eq!(admitted(&world, 4), [1, 2]);
    world.apply(&Event::Unhold(1, 0));
    assert_eq!(admitted(&world, 4), [] as [u32; 0]);
}

#[test]
fn whom_a_replica_that_moves_keeps_away_stays_away_from_both_of_its_nodes() {
    // Unit 4 is apart from it, node by node.
    let mut world = moving(2);
    assert_eq!(admitted(&world, 4), [2]);
    world.apply(&Event::Left(1, 0));
    assert_eq!(admitted(&world, 4), [0, 2]);
    // It is placed elsewhere: until that is bound and its hold has gone both are closed.
    world.apply(&Event::Assume(1, 0, 2));
    assert_eq!(admitted(&world, 4), [0]);
    world.apply(&Event::Bind(1, 0));
    assert_eq!(admitted(&world, 4), [0, 1]);
}

#[test]
fn its_own_target_is_in_nobodys_way_while_a_place_is_looked_for_it() {
    let mut world = moving(2);
    world.apply(&Event::Left(1, 0));
    gained(&mut world);
    let id = RunningUnitId::new(UnitId(1), 0, 1);
    let mut trial = world.cluster.trial();
    assert!(trial.lift_target(id));
    let mark = trial.pause();
    assert_eq!(admitted(&world, 4), [0, 1, 2]);
    world.cluster.take_back(mark);
    assert_eq!(admitted(&world, 4), [0, 2]);
    assert_eq!(gained(&mut world), [] as [u32; 0], "nothing was given back");
    assert!(!world.cluster.trial().lift_target(RunningUnitId::new(UnitId(1), 1, 0)), "it has no target");
    // A place elsewhere that comes to nothing.
    let shape = world.cluster.shape(&demand(1, 0, 0, &[]), Pool::Guaranteed);
    let mark = world.cluster.trial_mark();
    let mut trial = world.cluster.trial();
    assert!(trial.lift_target(id));
    trial.assume(id, shape, NodeId(2), Allocation::default());
    trial.join();
    assert_eq!(admitted(&world, 4), [0]);
    world.cluster.take_back(mark);
    assert_eq!(admitted(&world, 4), [0, 2]);
    world.check();
}

#[test]
fn a_target_keeps_the_ports_of_its_replica() {
    let mut world = moving(2);
    let port = Demand { host_ports: vec!["80/tcp".parse().unwrap()], ..Demand::default() };
    let shape = world.cluster.shape(&port, Pool::Guaranteed);
    let from = RunningUnitId::new(UnitId(2), 0, 0);
    let hold = Hold {
        id: HoldId(7),
        node: NodeId(2),
        unit: UnitId(2),
        demand: Arc::new(port),
        ordinals: vec![0],
        incarnations: vec![1],
        movement: Some(MovementTarget { movement: Arc::from("m"), from }),
        ..Hold::default()
    };
    world.cluster.held_mut().put(Arc::new(hold.clone()));
    let has_ports = |cluster: &Cluster, idx| cluster.free().taken_port(shape, idx).is_none();
    assert!(!has_ports(&world.cluster, 2) && has_ports(&world.cluster, 1));
    let mut trial = world.cluster.trial();
    trial.lift_holds(&[HoldId(7)]);
    assert!(has_ports(&trial, 2));
    drop(trial);
    world.cluster.held_mut().remove(HoldId(7));
    assert!(has_ports(&world.cluster, 2));
    // What others hold is checked again when it is bound.
    world.cluster.held_mut().put(Arc::new(Hold { movement: None, ..hold }));
    assert!(has_ports(&world.cluster, 2));
}
