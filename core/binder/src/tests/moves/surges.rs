//! Moves of replicas whose replacement starts first: room for another ordinal, and nothing leaves.

use godel_domain::records::{Record, RecordKey};
use godel_rules::surge;

use super::*;

/// Of the record and of its rows, as the binder knows them.
type Known = (UnitRecord, u64);

fn service(replicas: u32, max_surge: u32) -> UnitRecord {
    unit(1, replicas, 1, demand(300, 0)).class(WorkloadClass::Service).max_surge(max_surge)
}

/// A service of two on nodes 1 and 2 of four, of which so many replacements may start first.
fn surging(max_surge: u32) -> (World, Known) {
    let mut world = World::new(4);
    let record = service(2, max_surge);
    let revision = world.running(record.clone(), &[(0, 1), (1, 2)]);
    (world, (record, revision))
}

impl World {
    fn rows(&self) -> RunningUnits {
        self.binder.cluster().rows().of(UnitId(1)).unwrap().clone()
    }

    /// The dispatcher adds the replica that is held for, and it is written.
    fn begins(&mut self, (record, _): &Known, accepted: &AcceptedMove) -> Known {
        let next = surge::begin(record, &self.rows(), &accepted.hold).unwrap();
        let revision = self.unit(next.clone());
        (next, revision)
    }
}

/// Whether a move is made, and for which ordinal it is held.
fn made_for(world: &mut World, of: RequestedMove) -> Option<(bool, Option<u32>)> {
    match world.ask(of) {
        MoveVerdict::Made(made) => Some((made.hold != HoldId(0), made.surge)),
        MoveVerdict::Refuse(_) => None,
        MoveVerdict::Move(accepted) => panic!("made anew: {accepted:?}"),
    }
}

#[test]
fn the_next_ordinal_gets_room_and_nothing_leaves() {
    let (mut world, known) = surging(1);
    let accepted = world.moves(asked(1, 0, 0, 3));
    assert_eq!((accepted.evict.is_none(), accepted.budgets.len()), (true, 0));
    let hold = Arc::clone(&accepted.hold);
    assert_eq!((hold.node, &hold.ordinals[..], &hold.incarnations[..]), (NodeId(3), &[2][..], &[0][..]));
    assert_eq!(hold.surge_ordinal(), Some(2));
    world.show(&accepted);
    assert!(world.dropped().is_empty(), "it waits for the dispatcher");
    assert_eq!(made_for(&mut world, asked(1, 0, 0, 3)), Some((true, Some(2))));
    let (record, revision) = world.begins(&known, &accepted);
    assert!(world.dropped().is_empty());
    let placed = world.accept(&place(1, revision, &[(2, 3)]));
    assert_eq!(placed.gone, [(hold.id, "placed")]);
    world.commit(&placed);
    world.change(Change::Gone(RecordKey::Hold(hold.id)));
    assert_eq!(made_for(&mut world, asked(1, 0, 0, 3)), Some((false, Some(2))), "by what the record says");
    assert_eq!(world.stays(asked(1, 2, 0, 4)).reason, RejectionReason::NotMovable, "not the new one yet");
    world.statuses(1, &[2], Phase::Running);
    let rows = world.rows();
    let done = surge::follow(&record, &rows, |_| false, 0).unwrap();
    world.unit(done);
    assert_eq!(world.stays(asked(1, 0, 0, 3)).reason, RejectionReason::UnitChanged);
    assert_eq!(world.moves(asked(1, 2, 0, 4)).hold.surge_ordinal(), Some(3), "no ordinal comes back");
}

#[test]
fn so_many_start_first_and_no_more() {
    let (mut world, known) = surging(2);
    let first = world.moves(asked(1, 0, 0, 3));
    let second = world.moves(asked(1, 1, 0, 4));
    assert_eq!((first.hold.surge_ordinal(), second.hold.surge_ordinal()), (Some(2), Some(3)));
    let full = |world: &mut World| {
        let refusal = check_move(&mut world.binder, &terms("other"), &asked(1, 0, 0, 4));
        let MoveVerdict::Refuse(refusal) = refusal else { panic!("{refusal:?}") };
        assert_eq!((refusal.reason, refusal.later), (RejectionReason::NotMovable, true));
    };
    full(&mut world);
    world.show(&first);
    world.show(&second);
    let known = world.begins(&known, &first);
    full(&mut world);
    world.begins(&known, &second);
    full(&mut world);
    let (mut one, _) = surging(1);
    let first = one.moves(asked(1, 0, 0, 3));
    let refusal = one.stays(asked(1, 1, 0, 4));
    assert_eq!((refusal.reason, refusal.later), (RejectionReason::NotMovable, true));
    move_refused(&mut one.binder, &first);
    assert_eq!(one.moves(asked(1, 1, 0, 4)).hold.surge_ordinal(), Some(2));
}

#[test]
fn neither_budgets_nor_minima_are_asked_and_the_queue_is() {
    let mut world = World::new(4);
    world.change(Change::Put(Record::Budget(Arc::new(web_budget(0)))));
    let record = service(2, 1).labels([("app".to_owned(), "web".to_owned())].into()).min_member(2);
    let record = record.on_below_min(OnBelowMin::Stop).on_eviction(OnEviction::Fail);
    world.running(record.clone(), &[(0, 1), (1, 2)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    let allowed = |world: &World| world.binder.cluster().taken().budgets().get("web").unwrap().used;
    let before = allowed(&world);
    world.begins(&(record.clone(), 0), &accepted);
    assert_eq!(allowed(&world), before, "who is to come is not missing");

    let mut world = World::new(4);
    let mut queue = QueueSpec::new("q");
    queue.max_running_units = 2;
    world.change(Change::Put(Record::Queue(Arc::new(queue.clone()))));
    world.running(service(2, 1).queue("q"), &[(0, 1), (1, 2)]);
    let refusal = world.stays(asked(1, 0, 0, 3));
    assert_eq!((refusal.reason, refusal.later), (RejectionReason::QueueFull, true));
    queue.max_running_units = 3;
    world.change(Change::Put(Record::Queue(Arc::new(queue))));
    assert_eq!(world.moves(asked(1, 0, 0, 3)).hold.surge_ordinal(), Some(2));
}

#[test]
fn room_is_judged_beside_the_one_that_is_replaced() {
    let mut world = World::new(2);
    let apart = UnitTerm { units: Vec::new(), topology: "node".to_owned(), weight: 0 };
    let record = service(1, 1).edit(|unit| unit.spec.affinity.apart = vec![apart]);
    world.running(record, &[(0, 1)]);
    assert_eq!(world.stays(asked(1, 0, 0, 1)).reason, RejectionReason::Invalid);
    assert_eq!(world.moves(asked(1, 0, 0, 2)).hold.surge_ordinal(), Some(1));
}

#[test]
fn room_goes_when_nobody_will_come() {
    let held = || {
        let (mut world, known) = surging(1);
        let accepted = world.moves(asked(1, 0, 0, 3));
        world.show(&accepted);
        (world, known, accepted)
    };
    // Before the dispatcher knows: the ordinal is given to somebody else, or there is nobody to be replaced.
    let (mut world, ..) = held();
    world.unit(service(3, 1));
    assert_eq!(world.dropped(), ["changed"]);
    let (mut world, ..) = held();
    world.evict(1, &[0], EvictionReason::Drained);
    assert_eq!(world.dropped(), ["changed"]);
    let (mut world, ..) = held();
    world.unit(service(2, 0));
    assert_eq!(world.dropped(), ["changed"]);
    let (mut world, ..) = held();
    world.binder.on_wall(EXPIRES_MS);
    assert_eq!(world.dropped(), ["expired"]);
    // Afterwards: it is given up, or takes the place of one that has left.
    let (mut world, known, accepted) = held();
    let (record, _) = world.begins(&known, &accepted);
    let given_up = surge::without_surges(&record, &world.rows()).into_owned();
    world.unit(given_up);
    assert_eq!(world.dropped(), ["changed"]);
    let (mut world, known, accepted) = held();
    let (record, _) = world.begins(&known, &accepted);
    world.statuses(1, &[0], Phase::Failed);
    assert!(world.dropped().is_empty());
    let replaced = surge::follow(&record, &world.rows(), |_| true, 0).unwrap();
    world.unit(replaced);
    assert!(world.dropped().is_empty(), "it still comes");
}
