//! Replicas that move, in queues that are at a maximum.

use godel_domain::records::{Record, RecordKey};
use godel_queueing::QueueIdx;

use super::*;

/// A unit of two in `a.b`, on nodes 1 and 2 of four.
fn two_in_queue() -> UnitRecord {
    unit(1, 2, 1, demand(100, 0)).queue("a.b").owner("ann")
}

/// The same, of three replicas.
fn three_in_queue() -> UnitRecord {
    unit(1, 3, 1, demand(100, 0)).queue("a.b").owner("ann")
}

fn most(n: u32) -> Change {
    Change::Put(Record::Queue(Arc::new(QueueSpec { max_running_units: n, ..QueueSpec::new("a") })))
}

impl World {
    fn counted(&self, path: &str) -> i128 {
        let quota = self.binder.picture.quotas.quota();
        let queue: QueueIdx = quota.tree().find(path).unwrap();
        quota.usage().running_units(queue)
    }

    /// One more unit that waits, in another queue below `a`; its revision.
    fn waits(&mut self, id: u64) -> u64 {
        self.unit(unit(id, 1, 1, demand(10, 0)).queue("a.c").owner("ann"))
    }

    /// What a decision for such a unit is told: that the queue is full.
    fn is_kept_out(&mut self, id: u64, revision: u64, step: &str) -> String {
        let Verdict::Reject(rejections) = self.binder.check(&place(id, revision, &[(0, 4)])) else {
            panic!("{step}: bound in the place of the replica that moves");
        };
        assert_eq!(short(&rejections), [(RejectionReason::QueueFull, vec![0])], "{step}");
        rejections[0].detail.clone()
    }
}

#[test]
fn a_replica_that_moves_counts_once_all_the_way() {
    let mut world = World::new(4);
    world.change(most(2));
    let revision = world.running(two_in_queue(), &[(0, 1), (1, 2)]);
    let other = world.waits(2);
    let check = |world: &mut World, step: &str| {
        let words = world.is_kept_out(2, other, step);
        assert_eq!((world.counted("a"), world.counted("a.b"), world.counted("a.c")), (2, 2, 0), "{step}");
        words
    };
    let plain = "queue a is at its maximum of running units";
    let accepted = world.moves(asked(1, 0, 0, 3));
    assert_eq!(check(&mut world, "asked"), plain);
    world.show(&accepted);
    assert_eq!(check(&mut world, "it leaves"), plain);
    world.statuses(1, &[0], Phase::Stopped);
    let kept = format!("{plain}; the place of 1 replica that moves is kept there");
    assert_eq!(check(&mut world, "it has left"), kept);
    let work = world.binder.take_requeues(10).remove(0);
    world.change(Change::Rows(UnitId(1), RunChange::Requeue(work.requeue)));
    assert_eq!(check(&mut world, "it is pending"), kept);
    let refused = world.accept(&next(1, revision, 0, 3));
    assert_eq!(check(&mut world, "its binding is under way"), plain);
    world.binder.take_back(refused.ticket);
    assert_eq!(check(&mut world, "its binding was refused"), kept);
    let placed = world.accept(&next(1, revision, 0, 3));
    world.commit(&placed);
    check(&mut world, "it is bound");
    world.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
    check(&mut world, "its hold is gone");
    let (ordinals, incarnations, phases) = (vec![0], vec![1], vec![Phase::Succeeded]);
    let ended = Statuses { ordinals, incarnations, phases, ..Statuses::default() };
    world.change(Change::Rows(UnitId(1), RunChange::Statuses(ended)));
    assert_eq!(world.counted("a"), 1);
    assert!(world.accept(&place(2, other, &[(0, 4)])).rejections.is_empty());
}

#[test]
fn what_one_owner_may_take_counts_a_replica_that_moves() {
    let mut world = World::new(4);
    let max_per_owner = [(CPU.to_owned(), 205)].into();
    world.change(Change::Put(Record::Queue(Arc::new(QueueSpec { max_per_owner, ..QueueSpec::new("a") }))));
    let revision = world.running(two_in_queue(), &[(0, 1), (1, 2)]);
    let other = world.waits(2);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    world.is_kept_out(2, other, "owner");
    assert!(world.accept(&next(1, revision, 0, 3)).rejections.is_empty());
}

#[test]
fn a_replica_that_moves_has_its_place_before_others_of_its_decision() {
    for (mover, other) in [(1, 2), (2, 0)] {
        let mut world = World::new(4);
        world.change(most(2));
        let stays = 3 - mover - other;
        let revision = world.running(three_in_queue(), &[(mover, 1), (stays, 2)]);
        let accepted = world.moves(asked(1, mover, 0, 3));
        world.show(&accepted);
        world.left(1, mover);
        let mut places = [(mover, 3), (other, 4)];
        places.sort_unstable();
        let mut decision = place(1, revision, &places);
        decision.groups[0].incarnations =
            places.iter().map(|(ordinal, _)| u32::from(*ordinal == mover)).collect();
        let bound = world.accept(&decision);
        assert_eq!(bound.binds[0].ordinals, [mover]);
        assert_eq!(short(&bound.rejections), [(RejectionReason::QueueFull, vec![other])]);
        world.commit(&bound);
        assert_eq!(world.counted("a"), 2);
        // Where the node refuses the one that moves, nobody gets its place in the queue.
        let mut decision = place(1, revision, &[(other, 4)]);
        decision.groups[0].incarnations = vec![0];
        assert_eq!(world.refuse(&decision), [(RejectionReason::QueueFull, vec![other])]);
    }
}

#[test]
fn nobody_gets_the_place_of_a_replica_that_its_node_refuses() {
    let mut world = World::new(4);
    world.change(most(2));
    let revision = world.running(three_in_queue(), &[(0, 1), (1, 2)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    let mut decision = place(1, revision, &[(0, 9), (2, 4)]);
    decision.groups[0].incarnations = vec![1, 0];
    let refused = world.refuse(&decision);
    assert!(refused.contains(&(RejectionReason::QueueFull, vec![2])), "{refused:?}");
    assert_eq!((refused.len(), world.counted("a")), (2, 2));
}

#[test]
fn a_maximum_that_is_lowered_keeps_no_replica_on_its_way() {
    let mut world = World::new(4);
    world.change(most(2));
    let revision = world.running(two_in_queue(), &[(0, 1), (1, 2)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    world.change(most(1));
    let placed = world.accept(&next(1, revision, 0, 3));
    assert!(placed.rejections.is_empty());
    world.commit(&placed);
    assert_eq!(world.counted("a"), 2);
}

#[test]
fn a_hold_that_goes_unused_keeps_no_place() {
    let mut world = World::new(4);
    world.change(most(2));
    let revision = world.running(two_in_queue(), &[(0, 1), (1, 2)]);
    let other = world.waits(2);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    world.binder.on_wall(EXPIRES_MS);
    let work = world.binder.take_hold_work();
    assert!(matches!(&work[..], [HoldWork::Drop { why: "expired", .. }]), "{work:?}");
    world.is_kept_out(2, other, "its end is not read yet");
    let late = world.binder.check(&next(1, revision, 0, 1));
    assert!(matches!(late, Verdict::Wait(_)), "the end of its hold is being written: {late:?}");
    assert_eq!(world.counted("a"), 2);
    world.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
    assert_eq!(world.counted("a"), 1);
    let bound = world.accept(&place(2, other, &[(0, 4)]));
    world.commit(&bound);
    assert_eq!(world.refuse(&next(1, revision, 0, 3)), [(RejectionReason::QueueFull, vec![0])]);
}

#[test]
fn another_binder_counts_the_same_in_any_order() {
    let mut world = World::new(4);
    let record = two_in_queue();
    world.running(record.clone(), &[(0, 1), (1, 2)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    let changes = [
        Change::Put(Record::Unit(Arc::new(record))),
        Change::RowsLoaded(UnitId(1), rows),
        Change::Put(Record::Hold(Arc::clone(&accepted.hold))),
        most(2),
    ];
    for order in [[0, 1, 2, 3], [2, 1, 0, 3], [1, 2, 0, 3], [3, 2, 0, 1], [2, 0, 3, 1], [0, 2, 1, 3]] {
        let mut later = World::new(4);
        order.iter().for_each(|at: &usize| {
            later.change(changes[*at].clone());
        });
        let other = later.waits(2);
        later.is_kept_out(2, other, &format!("{order:?}"));
        assert_eq!((later.counted("a"), later.counted("a.b")), (2, 2), "{order:?}");
        // Its records are listed anew.
        later.binder.reset();
        for (at, change) in changes.iter().enumerate() {
            later.binder.on_change(change.clone(), Revision(100 + at as u64), 1);
        }
        assert_eq!(later.counted("a.b"), 2, "{order:?}");
        later.change(Change::Gone(RecordKey::Unit(UnitId(1))));
        assert_eq!(later.counted("a.b"), 0, "{order:?}");
        later.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
        assert_eq!((later.counted("a"), later.counted("a.b")), (0, 0), "{order:?}");
    }
}

#[test]
fn a_replica_that_moves_counts_in_the_queue_that_its_unit_goes_to() {
    let mut world = World::new(4);
    world.running(two_in_queue(), &[(0, 1), (1, 2)]);
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    let revision = world.unit(two_in_queue().queue("z"));
    assert_eq!((world.counted("a"), world.counted("z")), (0, 2));
    let placed = world.accept(&next(1, revision, 0, 3));
    world.commit(&placed);
    world.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
    assert_eq!((world.counted("a"), world.counted("z")), (0, 2));
}

#[test]
fn a_replacement_that_starts_first_counts_from_its_hold_on() {
    let mut world = World::new(4);
    world.change(most(3));
    let record = two_in_queue().class(WorkloadClass::Service).max_surge(2);
    world.running(record.clone(), &[(0, 1), (1, 2)]);
    let other = world.waits(2);
    let first = world.moves(asked(1, 0, 0, 3));
    assert_eq!(world.counted("a"), 3);
    world.is_kept_out(2, other, "held");
    assert_eq!(world.stays(asked(1, 1, 0, 4)).reason, RejectionReason::QueueFull, "one place, one of them");
    world.show(&first);
    world.is_kept_out(2, other, "read");
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    let revision = world.unit(godel_rules::surge::begin(&record, &rows, &first.hold).unwrap());
    let placed = world.accept(&place(1, revision, &[(2, 3)]));
    assert_eq!(world.counted("a"), 3);
    world.commit(&placed);
    world.change(Change::Gone(RecordKey::Hold(first.hold.id)));
    assert_eq!(world.counted("a"), 3);
    world.is_kept_out(2, other, "both run");
}
