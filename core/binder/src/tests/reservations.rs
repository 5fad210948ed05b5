//! Slots of reservations: where they are held, who takes them, and what becomes of them.

use godel_base::ids::RunningUnitId;
use godel_domain::{
    allocation::DeviceSet,
    hold,
    records::{Record, RecordKey},
    reservation_spec::ReservationSpec,
};

use super::*;

pub(super) fn reservation(slots: u32, demand: Demand) -> ReservationSpec {
    ReservationSpec {
        name: "kept".to_owned(),
        namespace: "default".to_owned(),
        selector: [("app".to_owned(), "web".to_owned())].into(),
        slots,
        demand,
        ..ReservationSpec::default()
    }
}

pub(super) fn owner(id: u64, replicas: u32, demand: Demand) -> UnitRecord {
    unit(id, replicas, 1, demand).labels([("app".to_owned(), "web".to_owned())].into())
}

impl World {
    pub(super) fn reserve(&mut self, spec: ReservationSpec) {
        self.change(Change::Put(Record::Reservation(Arc::new(spec))));
        self.work();
    }

    /// What is to be done about holds is done, until nothing is. Why holds were given up.
    pub(super) fn work(&mut self) -> Vec<&'static str> {
        let mut given_up = Vec::new();
        while self.binder.has_hold_work() {
            for work in self.binder.take_hold_work() {
                match work {
                    HoldWork::Reserve { holds, .. } => {
                        holds.into_iter().for_each(|hold| {
                            self.change(Change::Put(Record::Hold(hold)));
                        });
                    }
                    HoldWork::Drop { holds, why } => {
                        given_up.push(why);
                        holds.into_iter().for_each(|(id, _)| {
                            self.change(Change::Gone(RecordKey::Hold(id)));
                        });
                    }
                    HoldWork::Bind(bound) => panic!("{bound:?}"),
                }
            }
        }
        given_up
    }

    fn commit_slots(&mut self, accepted: &Accepted) {
        self.commit(accepted);
        for slot in &accepted.slots {
            self.change(Change::Put(Record::Hold(Arc::clone(slot))));
        }
    }

    /// Node and occupant of each slot.
    pub(super) fn slots(&self) -> Vec<(u32, Option<u64>)> {
        let holds = self.binder.cluster().holds().all();
        holds
            .iter()
            .map(|hold| {
                (hold.node.0, self.binder.cluster().held().occupant_of(hold.id).map(|who| who.unit.0))
            })
            .collect()
    }

    fn taken(&self, node: u32) -> i64 {
        self.binder.cluster().free().node_state(NodeId(node)).unwrap().0.get(CPU)
    }
}

#[test]
fn slots_are_spread_and_only_owners_get_them() {
    let mut world = World::new(2);
    world.reserve(reservation(3, demand(400, 0)));
    assert_eq!(world.slots(), [(1, None), (2, None), (1, None)]);
    assert_eq!((world.taken(1), world.taken(2)), (800, 400));
    let other = world.unit(unit(1, 2, 1, demand(400, 0)));
    let short = vec![(RejectionReason::InsufficientResources, vec![0])];
    assert_eq!(world.refuse(&place(1, other, &[(0, 1)])), short);
    let own = world.unit(owner(2, 3, demand(300, 0)));
    let accepted = world.accept(&place(2, own, &[(0, 1), (1, 1)]));
    // Taken, under way: what they leave of the slots is kept.
    assert_eq!((accepted.slots.len(), world.taken(1)), (2, 800));
    assert_eq!(world.slots(), [(1, Some(2)), (2, None), (1, Some(2))]);
    let own_place = place(2, own, &[(2, 1)]);
    assert_eq!(world.refuse(&own_place), [(RejectionReason::InsufficientResources, vec![2])]);
    world.commit_slots(&accepted);
    assert_eq!((world.slots(), world.taken(1)), (vec![(1, Some(2)), (2, None), (1, Some(2))], 800));
    assert!(world.work().is_empty());
    // It ends: the slot is held again, where it was.
    world.statuses(2, &[0], Phase::Succeeded);
    assert_eq!((world.slots()[0], world.taken(1)), ((1, None), 800));
    assert_eq!(world.refuse(&place(1, other, &[(0, 1)])), short);
}

#[test]
fn what_is_taken_back_leaves_the_slot() {
    let mut world = World::new(1);
    world.reserve(reservation(1, demand(800, 1000)));
    let own = world.unit(owner(1, 1, demand(800, 1000)));
    let accepted = world.accept(&place(1, own, &[(0, 1)]));
    assert_eq!(accepted.binds[0].devices, [DeviceSet(1)], "the device of the slot");
    world.binder.take_back(accepted.ticket);
    assert_eq!((world.slots(), world.taken(1)), (vec![(1, None)], 800));
    let again = world.accept(&place(1, own, &[(0, 1)]));
    assert_eq!(again.slots.len(), 1);
    // The binder stands down, and reads that it was written.
    world.binder.take_back_all();
    world.commit_slots(&again);
    assert_eq!((world.slots(), world.taken(1)), (vec![(1, Some(1))], 800));
}

#[test]
fn a_slot_that_lacks_something_is_no_place() {
    let mut world = World::new(1);
    world.reserve(reservation(1, demand(800, 0)));
    let own = world.unit(owner(1, 1, demand(900, 0)));
    let short = vec![(RejectionReason::InsufficientResources, vec![0])];
    assert_eq!(world.refuse(&place(1, own, &[(0, 1)])), short);
    let best_effort = owner(2, 1, demand(800, 0)).pool(Pool::BestEffort);
    let revision = world.unit(best_effort);
    let accepted = world.accept(&place(2, revision, &[(0, 1)]));
    assert!(accepted.slots.is_empty(), "of best-effort room nothing is kept");
}

#[test]
fn slots_wait_for_room_and_move_with_nodes() {
    let mut world = World::new(2);
    let low = world.unit(unit(1, 2, 1, demand(700, 0)));
    let accepted = world.accept(&place(1, low, &[(0, 1), (1, 2)]));
    world.commit(&accepted);
    world.reserve(reservation(2, demand(600, 0)));
    assert_eq!(world.slots(), []);
    world.statuses(1, &[1], Phase::Succeeded);
    world.work();
    assert_eq!(world.slots(), [(2, None)]);
    // Its node is closed: it waits, and moves once there is room.
    world.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(2) })));
    assert_eq!(world.work(), ["node-lost"]);
    assert_eq!(world.slots(), []);
    world.statuses(1, &[0], Phase::Succeeded);
    world.work();
    assert_eq!(world.slots(), [(1, None)]);
    // The node has come to have too little.
    world.change(Change::Put(Record::NodeReport(report(1, 500, 1))));
    assert_eq!(world.work(), ["no-room"]);
    assert_eq!(world.slots(), []);
}

#[test]
fn who_is_in_a_slot_stays_when_it_goes() {
    let mut world = World::new(1);
    world.reserve(reservation(2, demand(400, 0)));
    let own = world.unit(owner(1, 1, demand(300, 0)));
    let accepted = world.accept(&place(1, own, &[(0, 1)]));
    world.commit_slots(&accepted);
    world.change(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(1) })));
    assert_eq!(world.work(), ["node-lost"]);
    assert_eq!(world.slots(), [(1, Some(1))], "as long as it runs");
    world.reserve(ReservationSpec { slots: 0, ..reservation(0, demand(400, 0)) });
    assert_eq!((world.slots(), world.taken(1)), (vec![], 300));
    world.change(Change::Put(Record::NodeSpec(node(1))));
    world.reserve(ReservationSpec { expires_ms: Some(50), ..reservation(1, demand(400, 0)) });
    assert_eq!((world.slots(), world.taken(1)), (vec![(1, None)], 700));
    world.binder.on_wall(50);
    assert_eq!((world.work(), world.taken(1)), (vec!["expired"], 300));
    world.reserve(reservation(1, demand(400, 0)));
    world.change(Change::Gone(RecordKey::Reservation("kept".to_owned())));
    assert_eq!((world.work(), world.taken(1)), (vec!["changed"], 300));
}

#[test]
fn nobody_has_those_in_slots_leave() {
    let mut world = World::new(1);
    world.reserve(reservation(1, demand(800, 0)));
    let own = world.unit(owner(1, 1, demand(800, 0)));
    let accepted = world.accept(&place(1, own, &[(0, 1)]));
    world.commit_slots(&accepted);
    let high = unit(2, 1, 1, demand(600, 0)).priority(9);
    let revision = world.unit(high.clone());
    assert_eq!(holds::claims(&world.binder, &high, revision, &[(0, 0)]), None);
    let member = RunningUnitId::new(UnitId(1), 0, 0);
    assert!(world.binder.cluster().held().slot_of(&member).is_some());
}

#[test]
fn a_slot_says_what_it_is_for() {
    let mut world = World::new(1);
    world.change(Change::Put(Record::Reservation(Arc::new(reservation(1, demand(400, 500))))));
    let judged = world.binder.revision();
    let work = world.binder.take_hold_work();
    let [HoldWork::Reserve { holds, .. }] = work.as_slice() else { panic!("{work:?}") };
    let expected = Hold {
        id: holds[0].id,
        node: NodeId(1),
        demand: Arc::new(demand(400, 500)),
        ordinals: vec![0],
        devices: vec![DeviceSet(1)],
        judged,
        slot: Some(hold::Slot { reservation: Arc::from("kept"), occupant: None }),
        ..Hold::default()
    };
    assert_eq!(*holds[0], expected);
}

#[test]
fn slots_of_a_reservation_missing_in_a_list_are_dropped() {
    let mut world = World::new(1);
    world.reserve(reservation(1, demand(400, 0)));
    let slot = Arc::clone(world.binder.cluster().holds().all()[0]);
    world.binder.reset();
    world.change(Change::Put(Record::NodeSpec(node(1))));
    world.change(Change::Put(Record::NodeReport(report(1, 1000, 1))));
    world.change(Change::Put(Record::Hold(slot)));
    assert_eq!(world.work(), ["changed"]);
    assert_eq!((world.slots(), world.taken(1)), (vec![], 0));
}

#[test]
fn a_refused_transaction_holds_nothing() {
    let mut world = World::new(1);
    world.change(Change::Put(Record::Reservation(Arc::new(reservation(1, demand(400, 0))))));
    let work = world.binder.take_hold_work();
    let [HoldWork::Reserve { reservation, holds }] = work.as_slice() else { panic!("{work:?}") };
    assert_eq!((reservation.0.as_str(), world.taken(1)), ("kept", 400));
    let own = world.unit(owner(1, 1, demand(400, 0)));
    let accepted = world.accept(&place(1, own, &[(0, 1)]));
    assert!(accepted.slots.is_empty(), "it is not there yet");
    world.binder.unreserve(holds);
    assert_eq!(world.taken(1), 400);
    world.work();
    assert_eq!((world.slots(), world.taken(1)), (vec![(1, None)], 800));
}
