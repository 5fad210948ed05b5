//! What recommenders recommend, and to whom.

use std::sync::Arc;

use godel_base::ids::{HoldId, ReplicaId};
use godel_cluster::Owned;
use godel_domain::{
    hold::{Hold, MovementTarget, Slot},
    reservation_spec::ReservationSpec,
    running_units::{Bind, Phase, RunChange, Statuses},
};

use super::*;
use crate::point::{AnyRecommender, RecommendInput};

fn named(name: &str) -> &'static dyn AnyRecommender {
    RECOMMENDERS.into_iter().find(|one| one.name() == name).unwrap()
}

fn slot(id: u64, reservation: &str, node: NodeId, cpu: i64) -> Hold {
    let demand = Arc::new(demand(cpu, 1, None));
    let slot = Some(Slot { reservation: Arc::from(reservation), occupant: None });
    Hold { id: HoldId(id), node, demand, ordinals: vec![u32::try_from(id).unwrap()], slot, ..Hold::default() }
}

#[test]
fn free_slots_that_cover_a_replica_are_recommended() {
    let plugin = named("reservation");
    let mut cluster = cluster(0, |_, _| {});
    let far = NodeId(NODE.0 + 1);
    cluster
        .nodes_mut()
        .put_spec(NodeSpec { id: far, name: "far".to_owned(), ..NodeSpec::default() }, Revision(1));
    let capacity = Resources::new([(CPU, 10), (MEMORY, 100)]).unwrap();
    cluster
        .nodes_mut()
        .put_report(NodeReport { id: far, capacity, ready: true, ..NodeReport::default() }, Revision(1));
    let specs = ["b", "a"].map(|name| ReservationSpec {
        name: name.to_owned(),
        selector: [("app".to_owned(), name.to_owned())].into(),
        slots: 2,
        demand: demand(2, 1, None),
        ..ReservationSpec::default()
    });
    specs.iter().for_each(|spec| cluster.holds_mut().put_reservation(Arc::new(spec.clone())));
    // Two on one node, one that is too small, and one of the other reservation.
    for hold in [slot(1, "b", NODE, 2), slot(2, "b", NODE, 2), slot(3, "b", far, 1), slot(4, "a", far, 2)] {
        cluster.held_mut().put(Arc::new(hold));
    }
    let ask = Ask::new(&mut cluster, &template(demand(2, 1, None)), Pool::Guaranteed);
    let of = |cluster: &Cluster, ask: &Ask, owns: &[&str]| {
        let owned = cluster.held().owned(Pool::Guaranteed, |spec| owns.contains(&spec.name.as_str()));
        let input = RecommendInput { ask, unit: UnitId(5), owned: &owned, returns: true, moves: false };
        plugin.concerns(&input).then(|| plugin.for_any(cluster, &input))
    };
    let unit = UnitId(5);
    for (owns, expected) in [
        (&["b"][..], Some(vec![NODE, NODE])),
        (&["a"], Some(vec![far])),
        (&["b", "a"], Some(vec![far, NODE, NODE])),
        (&[], None),
    ] {
        assert_eq!(of(&cluster, &ask, owns), expected, "{owns:?}");
    }
    let daemon = Some(cluster.taken_mut().put_daemon(unit));
    assert_eq!(of(&cluster, &ask.clone().of_daemon(daemon), &["b"]), Some(vec![NODE]), "one for each node");
    // Somebody is in one of them.
    let id = RunningUnitId::new(unit, 0, 0);
    cluster.assume(id, ask.shape(), NODE, Allocation::default());
    cluster.held_mut().occupy(HoldId(1), id);
    assert_eq!(of(&cluster, &ask, &["b"]), Some(vec![NODE]));
}

#[test]
fn the_former_node_is_recommended_to_a_replica_that_returns() {
    let plugin = named("former-node");
    let mut cluster = cluster(0, |_, _| {});
    let ask = Ask::new(&mut cluster, &template(demand(1, 1, None)), Pool::Guaranteed);
    let bind = Bind {
        demand: Arc::new(demand(1, 1, None)),
        ordinals: vec![0],
        nodes: vec![NODE],
        ..Bind::default()
    };
    let left = Statuses {
        ordinals: vec![0],
        incarnations: vec![0],
        phases: vec![Phase::Stopped],
        ..Statuses::default()
    };
    for (revision, change) in (2..).zip([RunChange::Bind(bind), RunChange::Statuses(left)]) {
        cluster.apply_rows(UnitId(5), &change, Revision(revision), 0);
    }
    let owned = Owned::new();
    let of = |unit, ordinal, returns| {
        let input = RecommendInput { ask: &ask, unit: UnitId(unit), owned: &owned, returns, moves: false };
        let replica = ReplicaId::new(ordinal, 1);
        plugin.concerns(&input).then(|| plugin.for_replica(&cluster, &input, replica))
    };
    assert_eq!(of(5, 0, true), Some(Some(NODE)));
    assert_eq!(of(5, 1, true), Some(None), "it never ran");
    assert_eq!(of(6, 0, true), Some(None), "nothing of the unit ran");
    assert_eq!(of(5, 0, false), None, "of a unit whose replicas are alike");
}

#[test]
fn who_moves_goes_where_room_is_held_for_it() {
    let plugin = named("movement");
    assert_eq!(RECOMMENDERS[0].name(), "movement", "before all others");
    let mut cluster = cluster(0, |_, _| {});
    let unit = UnitId(5);
    let hold = |id: u64, ordinal: u32, movement: Option<MovementTarget>| Hold {
        id: HoldId(id),
        node: NODE,
        unit,
        demand: Arc::new(demand(1, 1, None)),
        ordinals: vec![ordinal],
        incarnations: vec![3],
        movement,
        ..Hold::default()
    };
    let target = |ordinal| {
        Some(MovementTarget { movement: Arc::from("m"), from: RunningUnitId::new(unit, ordinal, 2) })
    };
    cluster.held_mut().put(Arc::new(hold(1, 0, target(0))));
    cluster.held_mut().put(Arc::new(hold(2, 1, None)));
    let ask = Ask::new(&mut cluster, &template(demand(1, 1, None)), Pool::Guaranteed);
    let owned = Owned::new();
    let of = |unit: u64, ordinal, incarnation, moves| {
        let input = RecommendInput { ask: &ask, unit: UnitId(unit), owned: &owned, returns: false, moves };
        let replica = ReplicaId::new(ordinal, incarnation);
        plugin.concerns(&input).then(|| plugin.for_replica(&cluster, &input, replica))
    };
    for (unit, ordinal, incarnation, moves, expected) in [
        (5, 0, 3, true, Some(Some(NODE))),
        (5, 0, 2, true, Some(None)),
        (5, 0, 4, true, Some(None)),
        (5, 1, 3, true, Some(None)),
        (6, 0, 3, true, Some(None)),
        (5, 0, 3, false, None),
    ] {
        assert_eq!(of(unit, ordinal, incarnation, moves), expected, "{unit} {ordinal} {incarnation}");
    }
}
