//! Slots of reservations.

use godel_domain::hold::{Hold, Slot};

use super::*;

/// A slot on a node, with the last occupant that its record names.
fn slot(id: u64, node: u32, occupant: RunningUnitId) -> Arc<Hold> {
    let slot = Slot { reservation: Arc::from("r"), occupant: Some(occupant) };
    Arc::new(Hold {
        id: HoldId(id),
        node: NodeId(node),
        demand: Arc::new(demand(3_000, 0, 0, &[])),
        ordinals: vec![0],
        slot: Some(slot),
        ..Hold::default()
    })
}

#[test]
fn a_former_occupant_elsewhere_does_not_end_the_present_one() {
    for order in [[0, 1], [1, 0]] {
        let mut cluster = Cluster::new();
        for node in [1, 2].map(NodeId) {
            cluster
                .put_spec(NodeSpec { id: node, name: node.to_string(), ..NodeSpec::default() }, Revision(1));
            let capacity = Resources::new([(CPU, 4_000)]).unwrap();
            cluster.put_report(
                NodeReport { id: node, capacity, ready: true, ..NodeReport::default() },
                Revision(1),
            );
        }
        let of_incarnation = |incarnation| RunningUnitId::new(UnitId(1), 0, incarnation);
        let bind = Bind {
            demand: Arc::new(demand(1_000, 0, 0, &[])),
            ordinals: vec![0],
            incarnations: vec![1],
            nodes: vec![NodeId(2)],
            ..Bind::default()
        };
        cluster.apply_rows(UnitId(1), &RunChange::Bind(bind), Revision(2), 1);
        let slots = [slot(1, 2, of_incarnation(1)), slot(2, 1, of_incarnation(0))];
        for idx in order {
            cluster.put_hold(Arc::clone(&slots[idx]));
        }
        let cpu = |node| cluster.node_state(NodeId(node)).unwrap().0.get(CPU);
        assert_eq!((cpu(1), cpu(2)), (3_000, 3_000), "in the order {order:?}");
    }
}
