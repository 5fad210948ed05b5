//! Slots of reservations.

use godel_domain::{
    hold::{Hold, Slot},
    reservation_spec::ReservationSpec,
    zone::{CpuMode, ZonePolicy, ZoneRequest},
};
use godel_testkit::node;

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
                .nodes_mut()
                .put_spec(NodeSpec { id: node, name: node.to_string(), ..NodeSpec::default() }, Revision(1));
            let capacity = Resources::new([(CPU, 4_000)]).unwrap();
            cluster.nodes_mut().put_report(
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
            cluster.held_mut().put(Arc::clone(&slots[idx]));
        }
        let cpu = |node| cluster.free().node_state(NodeId(node)).unwrap().0.get(CPU);
        assert_eq!((cpu(1), cpu(2)), (3_000, 3_000), "in the order {order:?}");
    }
}

#[test]
fn a_replica_in_a_slot_has_of_the_zones_that_are_kept() {
    use ZonePolicy::{Exclusive, Restricted, SingleZone};
    let on = NodeId(1);
    let asks = |cpu, policy, cpu_mode| {
        let zones = Some(ZoneRequest { policy, cpu_mode });
        Demand { zones, ..demand(cpu, 0, 0, &[]) }
    };
    let shared = |cpu, policy| asks(cpu, policy, CpuMode::Shared);
    let dedicated = |cpu, policy| asks(cpu, policy, CpuMode::Dedicated);
    // What the slot keeps, what a replica asks for, and the zones and cores that it is given.
    let cases = [
        (dedicated(4_000, SingleZone), dedicated(4_000, SingleZone), Some((0b100, 0b11))),
        (dedicated(4_000, SingleZone), dedicated(2_000, SingleZone), Some((0b100, 0b1))),
        (dedicated(8_000, Restricted), dedicated(8_000, Restricted), Some((0b1100, 0))),
        (dedicated(8_000, Restricted), dedicated(4_000, Restricted), Some((0b100, 0b11))),
        (shared(4_000, SingleZone), shared(3_000, SingleZone), Some((0b100, 0))),
        (shared(2_000, Exclusive), shared(1_000, Exclusive), Some((0b100, 0))),
        (shared(4_000, SingleZone), dedicated(4_000, SingleZone), None),
        (dedicated(2_000, SingleZone), dedicated(4_000, SingleZone), None),
        (demand(4_000, 0, 0, &[]), shared(1_000, SingleZone), None),
    ];
    for (kept, asked, expected) in cases {
        // Two sockets, zones 2 to 5, each of 4 CPUs in two cores.
        let of = node(1).memory(64).zones(2, 2, 2, 2);
        let mut cluster = Cluster::new();
        cluster.nodes_mut().put_spec(of.spec, Revision(1));
        cluster.nodes_mut().put_report(of.report, Revision(1));
        let spec = ReservationSpec { name: "r".to_owned(), slots: 1, ..ReservationSpec::default() };
        cluster.holds_mut().put_reservation(Arc::new(spec));
        let (shape, of_replica) =
            (cluster.shape(&kept, Pool::Guaranteed), cluster.shape(&asked, Pool::Guaranteed));
        let given = cluster.free().pick(shape, on).unwrap();
        cluster.held_mut().put(Arc::new(Hold {
            id: HoldId(1),
            node: on,
            demand: Arc::new(kept.clone()),
            ordinals: vec![0],
            zones: vec![given.zones],
            slot: Some(Slot { reservation: Arc::from("r"), occupant: None }),
            ..Hold::default()
        }));
        // Nothing else is free.
        let all = cluster.shape(&shared(1_000, SingleZone), Pool::Guaranteed);
        let mut others = 0;
        while cluster.free().fits(all, on).is_ok()
            && let Some(given) = cluster.free().pick(all, on)
        {
            cluster.assume(RunningUnitId::new(UnitId(9), others, 0), all, on, given);
            others += 1;
        }
        let owned = cluster.held().owned(Pool::Guaranteed, |_| true);
        let slot = cluster.held().slot_on(&owned, of_replica, on);
        let found = slot.map(|(_, given)| (given.zones.zones.0, given.zones.cores.0));
        assert_eq!(found, expected, "{kept:?}: {asked:?}");
        let Some((slot, given)) = slot else { continue };
        assert_eq!(cluster.free().suits(of_replica, on, given), Ok(()), "{asked:?}");
        let id = RunningUnitId::new(UnitId(1), 0, 0);
        cluster.assume(id, of_replica, on, given);
        cluster.held_mut().occupy(slot, id);
        assert!(cluster.free().hardware(on.idx()).is_sound(), "no zone and no core is taken twice");
        assert!(cluster.free().fits(all, on).is_err(), "what the replica leaves of the slot stays kept");
        cluster.forget(id);
        assert_eq!(
            cluster.held().slot_on(&owned, of_replica, on),
            Some((slot, given)),
            "the slot is as it was"
        );
        assert!(cluster.free().fits(all, on).is_err());
    }
}
