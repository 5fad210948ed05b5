//! Running units that move: what is held for them, why they may not, and what ends it.

mod queues;
mod surges;
mod terms;

use godel_base::ids::RunningUnitId;
use godel_domain::{
    records::{Record, RecordKey},
    requested_move::{MadeMove, MoveRefusal, RequestedMove},
    unit::{OnBelowMin, OnEviction, WorkloadClass},
    unit_affinity::UnitTerm,
    unit_topology::{Segments, UnitTopology},
};
use godel_testkit::{BuildUnit as _, web_budget};

use super::*;
use crate::{
    AcceptedMove, MoveTerms, MoveVerdict,
    moves::{check_move, move_refused},
};

const EXPIRES_MS: i64 = 1_000;

fn terms(movement: &str) -> MoveTerms {
    MoveTerms { movement: Arc::from(movement), expires_ms: EXPIRES_MS }
}

fn asked(unit: u64, ordinal: u32, incarnation: u32, to: u32) -> RequestedMove {
    RequestedMove {
        running: RunningUnitId::new(UnitId(unit), ordinal, incarnation),
        to: NodeId(to),
        wanted: DeviceSet(0).into(),
    }
}

impl World {
    /// A unit whose replicas run on these nodes.
    fn running(&mut self, record: UnitRecord, places: &[(u32, u32)]) -> u64 {
        let id = record.id.0;
        let revision = self.unit(record);
        let accepted = self.accept(&place(id, revision, places));
        assert!(accepted.rejections.is_empty(), "{:?}", accepted.rejections);
        self.commit(&accepted);
        let ordinals: Vec<u32> = places.iter().map(|place| place.0).collect();
        self.statuses(id, &ordinals, Phase::Running);
        revision
    }

    fn ask(&mut self, of: RequestedMove) -> MoveVerdict {
        check_move(&mut self.binder, &terms("m"), &of)
    }

    fn moves(&mut self, of: RequestedMove) -> AcceptedMove {
        match self.ask(of) {
            MoveVerdict::Move(accepted) => *accepted,
            other => panic!("not moved: {other:?}"),
        }
    }

    fn stays(&mut self, of: RequestedMove) -> MoveRefusal {
        match self.ask(of) {
            MoveVerdict::Refuse(refusal) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// The transaction of a move commits, and is read.
    fn show(&mut self, accepted: &AcceptedMove) {
        self.revision += 1;
        let evict = accepted.evict.clone().map(|evict| Change::Rows(accepted.unit, RunChange::Evict(evict)));
        let changes =
            evict.into_iter().chain([Change::Put(Record::Hold(Arc::clone(&accepted.hold)))]).collect();
        let (revision, time_ms) = (Revision(self.revision), self.time_ms);
        self.binder.apply(&Commit { revision, time_ms, changes });
    }

    /// Who moved has left, and is pending as its next incarnation.
    fn left(&mut self, unit: u64, ordinal: u32) {
        self.statuses(unit, &[ordinal], Phase::Stopped);
        let work = self.binder.take_requeues(10).remove(0);
        assert_eq!((work.unit, &work.requeue.ordinals[..]), (UnitId(unit), &[ordinal][..]));
        self.change(Change::Rows(UnitId(unit), RunChange::Requeue(work.requeue)));
    }
}

fn made(hold: HoldId) -> MoveVerdict {
    MoveVerdict::Made(MadeMove { hold, surge: None })
}

/// Places the first incarnation after a move.
fn next(unit: u64, revision: u64, ordinal: u32, node: u32) -> Decision {
    let mut decision = place(unit, revision, &[(ordinal, node)]);
    decision.groups[0].incarnations = vec![1];
    decision
}

/// A unit of two on nodes 1 and 2 that takes 600 of 1,000 milli-cores each, and a third node.
fn two() -> (World, u64) {
    let mut world = World::new(3);
    let revision = world.running(unit(1, 2, 1, demand(600, 0)), &[(0, 1), (1, 2)]);
    (world, revision)
}

#[test]
fn room_is_held_while_the_old_one_leaves() {
    let (mut world, revision) = two();
    let other = world.unit(unit(2, 4, 1, demand(500, 0)));
    let accepted = world.moves(asked(1, 0, 0, 3));
    assert_eq!((accepted.unit, accepted.unit_revision), (UnitId(1), Revision(revision)));
    let Evict { ordinals, incarnations, reason, by, .. } = accepted.evict.as_ref().unwrap();
    assert_eq!((&ordinals[..], &incarnations[..], by.as_str()), (&[0][..], &[0][..], "movement m"));
    assert_eq!(*reason, EvictionReason::Rescheduled);
    let hold = &accepted.hold;
    assert_eq!((hold.node, &hold.ordinals[..], &hold.incarnations[..]), (NodeId(3), &[0][..], &[1][..]));
    assert_eq!((hold.expires_ms, hold.priority, hold.is_claim()), (EXPIRES_MS, None, false));
    // Under way, held, and while nobody is there: nobody else gets the room of either node.
    let full = |world: &mut World, node| {
        assert_eq!(
            world.refuse(&place(2, other, &[(0, node)])),
            [(RejectionReason::InsufficientResources, vec![0])]
        );
    };
    full(&mut world, 3);
    world.show(&accepted);
    full(&mut world, 3);
    full(&mut world, 1);
    world.left(1, 0);
    full(&mut world, 3);
    assert!(world.dropped().is_empty());
    let home = world.accept(&place(2, other, &[(0, 1)]));
    world.binder.take_back(home.ticket);
    // Its own scheduler finds it: the hold goes with the binding.
    let placed = world.accept(&next(1, revision, 0, 3));
    assert_eq!(placed.gone, [(hold.id, "placed")]);
    world.commit(&placed);
    world.change(Change::Gone(RecordKey::Hold(hold.id)));
    full(&mut world, 3);
    let row = world.binder.cluster().rows().of(UnitId(1)).unwrap().row(0);
    assert_eq!((row.node, row.incarnation, row.phase), (NodeId(3), 1, Phase::Bound));
    assert_eq!(world.binder.n_holds(), 0);
}

#[test]
fn who_moves_may_be_placed_elsewhere() {
    let (mut world, revision) = two();
    let accepted = world.moves(asked(1, 0, 0, 3));
    world.show(&accepted);
    world.left(1, 0);
    let placed = world.accept(&next(1, revision, 0, 1));
    assert_eq!(placed.gone, [(accepted.hold.id, "placed")]);
    // Until that is read the target is kept, and once it is refused the hold is as before.
    world.binder.take_back(placed.ticket);
    assert!(world.dropped().is_empty());
    let placed = world.accept(&next(1, revision, 0, 1));
    world.commit(&placed);
    world.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
    let other = world.unit(unit(2, 1, 1, demand(900, 0)));
    assert!(world.accept(&place(2, other, &[(0, 3)])).rejections.is_empty());
}

#[test]
fn a_move_that_cannot_be_made_changes_nothing() {
    let changed = |change: fn(UnitRecord) -> UnitRecord| {
        let mut world = World::new(3);
        let record = change(unit(1, 2, 1, demand(600, 0)));
        world.running(record, &[(0, 1), (1, 2)]);
        world
    };
    let plain = || two().0;
    let filled = || {
        let mut world = plain();
        world.running(unit(2, 1, 1, demand(500, 0)), &[(0, 3)]);
        world
    };
    let after = |change: Change| {
        let mut world = plain();
        world.change(change);
        world
    };
    let tainted =
        Taint { key: "k".to_owned(), value: String::new(), effect: TaintEffect::NoSchedule, added_ms: 0 };
    let cordoned = after(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(3) })));
    let tainted = after(Change::Put(Record::NodeSpec(NodeSpec { taints: vec![tainted], ..node(3) })));
    let cancelled = unit(1, 2, 1, demand(600, 0)).cancelled(true);
    let whole = |record: UnitRecord| record.min_member(2).on_below_min(OnBelowMin::Stop);
    let evicting = || {
        let mut world = plain();
        world.evict(1, &[0], EvictionReason::Drained);
        world
    };
    let over = || {
        let mut world = plain();
        world.binder.on_wall(EXPIRES_MS);
        world
    };
    use RejectionReason as Reason;
    for (mut world, of, reason, detail) in [
        (plain(), asked(7, 0, 0, 3), Reason::NotThere, "nothing of its unit is bound"),
        (plain(), asked(1, 5, 0, 3), Reason::NotThere, "it has ended, or has no node"),
        (plain(), asked(1, 0, 1, 3), Reason::NotThere, "incarnation 0 is current"),
        (evicting(), asked(1, 0, 0, 3), Reason::NotThere, "it leaves already"),
        (plain(), asked(1, 0, 0, 1), Reason::Invalid, "it is on that node"),
        (over(), asked(1, 0, 0, 3), Reason::Invalid, "the time for which room is to be held is over"),
        (plain(), asked(1, 0, 0, 9), Reason::NodeGone, ""),
        (plain(), asked(1, 0, 0, 2), Reason::InsufficientResources, "cpu"),
        (filled(), asked(1, 0, 0, 3), Reason::InsufficientResources, "cpu"),
        (cordoned, asked(1, 0, 0, 3), Reason::NodeCordoned, ""),
        (tainted, asked(1, 0, 0, 3), Reason::Taint, "k:NoSchedule"),
        (
            after(Change::Put(Record::Unit(Arc::new(cancelled)))),
            asked(1, 0, 0, 3),
            Reason::UnitChanged,
            "its unit does not want it any more",
        ),
        (
            changed(|record| record.on_eviction(OnEviction::Fail)),
            asked(1, 0, 0, 3),
            Reason::NotMovable,
            "it would have failed: on_eviction of its unit is fail",
        ),
        (
            changed(whole),
            asked(1, 0, 0, 3),
            Reason::NotMovable,
            "too few of its unit would be left, and on_below_min would have the rest leave",
        ),
    ] {
        let before = world.binder.cluster().free().node_state(of.to);
        let refusal = world.stays(of);
        assert_eq!((refusal.reason, refusal.later), (reason, false), "{detail}");
        assert!(refusal.detail.starts_with(detail.split(':').next().unwrap()), "{}", refusal.detail);
        assert_eq!(world.binder.cluster().free().node_state(of.to), before, "{detail}");
        assert_eq!((world.binder.n_holds(), world.binder.evictions.n_asked()), (0, 0), "{detail}");
    }
}

#[test]
fn who_could_not_come_back_into_its_queue_does_not_move() {
    let mut world = World::new(4);
    let mut queue = QueueSpec::new("q");
    queue.max_running_units = 2;
    world.change(Change::Put(Record::Queue(Arc::new(queue.clone()))));
    world.running(unit(1, 2, 1, demand(10, 0)).queue("q"), &[(0, 1), (1, 2)]);
    // It is at its maximum: who leaves makes room for itself.
    let accepted = world.moves(asked(1, 0, 0, 3));
    move_refused(&mut world.binder, &accepted);
    queue.max_running_units = 1;
    world.change(Change::Put(Record::Queue(Arc::new(queue))));
    let refusal = world.stays(asked(1, 0, 0, 3));
    assert_eq!((refusal.reason, refusal.later), (RejectionReason::QueueFull, true));
}

#[test]
fn daemons_do_not_move() {
    let mut world = World::new(2);
    let record = unit(1, 1, 1, demand(10, 0)).class(WorkloadClass::Daemon);
    world.running(record, &[(0, 1)]);
    assert_eq!(world.stays(asked(1, 0, 0, 2)).reason, RejectionReason::NotMovable);
}

#[test]
fn a_refused_transaction_gives_everything_back() {
    let (mut world, _) = two();
    let before = world.binder.cluster().free().node_state(NodeId(3));
    let accepted = world.moves(asked(1, 0, 0, 3));
    assert_ne!(world.binder.cluster().free().node_state(NodeId(3)), before);
    move_refused(&mut world.binder, &accepted);
    assert_eq!(world.binder.cluster().free().node_state(NodeId(3)), before);
    // The same with the lease.
    world.moves(asked(1, 0, 0, 3));
    world.binder.take_back_all();
    assert_eq!(world.binder.cluster().free().node_state(NodeId(3)), before);
    assert_eq!((world.binder.n_holds(), world.binder.evictions.n_asked()), (0, 0));
}

#[test]
fn the_same_move_is_made_once() {
    let (mut world, revision) = two();
    let of = asked(1, 0, 0, 3);
    let accepted = world.moves(of);
    let under_way = world.stays(of);
    assert_eq!((under_way.reason, under_way.later), (RejectionReason::AlreadyHeld, true));
    world.show(&accepted);
    assert_eq!(world.ask(of), made(accepted.hold.id));
    let other = check_move(&mut world.binder, &terms("other"), &of);
    let MoveVerdict::Refuse(other) = other else { panic!("{other:?}") };
    assert_eq!((other.reason, other.later), (RejectionReason::NotThere, false));
    world.left(1, 0);
    assert_eq!(world.ask(of), made(accepted.hold.id));
    let placed = world.accept(&next(1, revision, 0, 1));
    world.commit(&placed);
    world.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
    assert_eq!(world.ask(of), made(HoldId(0)), "by what its row remembers");
    assert_eq!(world.stays(asked(1, 1, 1, 3)).reason, RejectionReason::NotThere);
    // Another binder reads the same, and goes on.
    let rows = world.binder.cluster().rows().of(UnitId(1)).unwrap().clone();
    let mut later = World::new(3);
    later.unit(unit(1, 2, 1, demand(600, 0)));
    later.change(Change::RowsLoaded(UnitId(1), rows));
    assert_eq!(later.ask(of), made(HoldId(0)));
}

#[test]
fn moves_count_for_disruption_budgets() {
    let mut world = World::new(4);
    world.change(Change::Put(Record::Budget(Arc::new(web_budget(1)))));
    let record = unit(1, 2, 1, demand(600, 0)).labels([("app".to_owned(), "web".to_owned())].into());
    let revision = world.running(record, &[(0, 1), (1, 2)]);
    let first = world.moves(asked(1, 0, 0, 3));
    assert_eq!(first.budgets.len(), 1);
    let kept = |world: &mut World| {
        let refusal = world.stays(asked(1, 1, 0, 4));
        assert_eq!((refusal.reason, refusal.later), (RejectionReason::DisruptionBudget, true));
        assert_eq!(refusal.detail, "disruption budget web allows 0 to leave now");
    };
    kept(&mut world);
    move_refused(&mut world.binder, &first);
    let first = world.moves(asked(1, 0, 0, 3));
    world.show(&first);
    kept(&mut world);
    world.left(1, 0);
    kept(&mut world);
    let placed = world.accept(&next(1, revision, 0, 3));
    world.commit(&placed);
    world.change(Change::Gone(RecordKey::Hold(first.hold.id)));
    kept(&mut world);
    let runs = Statuses {
        ordinals: vec![0],
        incarnations: vec![1],
        phases: vec![Phase::Running],
        ..Statuses::default()
    };
    world.change(Change::Rows(UnitId(1), RunChange::Statuses(runs)));
    world.moves(asked(1, 1, 0, 4));
}

/// Nodes 1 and 2 in the rack `a`, 3 and 4 in the rack `b`.
fn two_racks() -> World {
    let mut world = World::new(4);
    for id in 1..=4 {
        let rack = if id <= 2 { "a" } else { "b" };
        let labels = [("rack".to_owned(), rack.to_owned())].into();
        world.change(Change::Put(Record::NodeSpec(NodeSpec { labels, ..node(id) })));
    }
    world
}

#[test]
fn who_moves_is_thought_away_from_where_it_is() {
    let mut world = two_racks();
    let mut record = unit(1, 2, 1, demand(100, 0));
    record.spec.affinity.apart = vec![UnitTerm { units: Vec::new(), topology: "rack".to_owned(), weight: 0 }];
    world.running(record, &[(0, 1), (1, 3)]);
    // In the rack of the other one it would be too many, in its own it takes its own place.
    assert_eq!(world.stays(asked(1, 0, 0, 4)).reason, RejectionReason::UnitAffinity);
    let accepted = world.moves(asked(1, 0, 0, 2));
    move_refused(&mut world.binder, &accepted);
    assert_eq!(world.stays(asked(1, 0, 0, 4)).reason, RejectionReason::UnitAffinity, "it is there again");
}

#[test]
fn who_moves_stays_in_the_domain_of_its_segment() {
    let mut world = two_racks();
    let mut record = unit(1, 5, 1, demand(100, 0));
    let segments = Some(Segments { size: 2, within: "rack".to_owned() });
    record.spec.topology = UnitTopology { segments, ..UnitTopology::default() };
    let revision = world.running(record, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 3)]);
    for (ordinal, to) in [(0, 3), (0, 4), (3, 1), (3, 2)] {
        let refused = world.stays(asked(1, ordinal, 0, to));
        assert_eq!(refused.reason, RejectionReason::UnitAffinity, "{ordinal} to {to}");
    }
    // Nobody else is in the segment of the last one: its own place binds it to nothing.
    let alone = world.moves(asked(1, 4, 0, 1));
    move_refused(&mut world.binder, &alone);
    let accepted = world.moves(asked(1, 0, 0, 2));
    world.show(&accepted);
    world.left(1, 0);
    // Its next incarnation is not bound away from its segment either.
    assert_eq!(world.refuse(&next(1, revision, 0, 3)), [(RejectionReason::UnitAffinity, vec![0])]);
    let placed = world.accept(&next(1, revision, 0, 2));
    assert_eq!(placed.gone, [(accepted.hold.id, "placed")]);
}

#[test]
fn who_moves_stays_in_the_domain_that_is_required() {
    let in_rack = UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() };
    let mut of_unit = unit(1, 2, 1, demand(100, 0));
    of_unit.spec.topology = in_rack.clone();
    let mut of_group = unit(1, 2, 1, demand(100, 0));
    of_group.spec.task_groups[0].topology = Some(Box::new(in_rack));
    for record in [of_unit, of_group] {
        let mut world = two_racks();
        world.running(record, &[(0, 1), (1, 1)]);
        assert_eq!(world.stays(asked(1, 0, 0, 3)).reason, RejectionReason::UnitAffinity);
        world.moves(asked(1, 0, 0, 2));
    }
}

#[test]
fn devices_are_held_with_the_room() {
    let mut world = World::new(2);
    world.change(Change::Put(Record::NodeReport(report(2, 1000, 2))));
    let mut first = place(1, world.unit(unit(1, 1, 1, demand(100, 1000))), &[(0, 1)]);
    first.groups[0].devices = vec![DeviceSet(0b01)];
    let accepted = world.accept(&first);
    world.commit(&accepted);
    world.statuses(1, &[0], Phase::Running);
    let wanted = RequestedMove { wanted: DeviceSet(0b10).into(), ..asked(1, 0, 0, 2) };
    let accepted = world.moves(wanted);
    assert_eq!(accepted.hold.devices, [DeviceSet(0b10)]);
    world.show(&accepted);
    let other = world.unit(unit(2, 2, 1, demand(100, 1000)));
    let mut one = place(2, other, &[(0, 2)]);
    one.groups[0].devices = vec![DeviceSet(0b10)];
    let taken = world.accept(&one);
    assert_eq!(taken.binds[0].devices, [DeviceSet(0b01)]);
    world.commit(&taken);
    one.groups[0].ordinals = vec![1];
    assert_eq!(world.refuse(&one), [(RejectionReason::DeviceTaken, vec![1])]);
}

#[test]
fn a_target_is_given_up_when_nobody_will_come() {
    let moving = || {
        let (mut world, _) = two();
        let accepted = world.moves(asked(1, 0, 0, 3));
        world.show(&accepted);
        assert!(world.dropped().is_empty());
        world
    };
    let after = |change: Change| {
        let mut world = moving();
        world.change(change);
        world
    };
    let record = || unit(1, 2, 1, demand(600, 0));
    let ended_by_itself = {
        let mut world = moving();
        world.statuses(1, &[0], Phase::Succeeded);
        world
    };
    let expired = {
        let mut world = moving();
        world.binder.on_wall(EXPIRES_MS);
        world
    };
    let mut fewer = record();
    fewer.spec.task_groups[0].replicas = 1;
    fewer.status.ordinals[0] = vec![(1, 2)];
    let mut larger = record();
    larger.spec.task_groups[0].template.demand = demand(700, 0);
    for (mut world, expected) in [
        (expired, &["expired"][..]),
        (after(Change::Gone(RecordKey::NodeSpec(NodeId(3)))), &["node-lost"]),
        (after(Change::Put(Record::NodeSpec(NodeSpec { cordoned: true, ..node(3) }))), &["node-lost"]),
        (after(Change::Put(Record::Unit(Arc::new(record().cancelled(true))))), &["changed"]),
        (after(Change::Put(Record::Unit(Arc::new(fewer)))), &["changed"]),
        (after(Change::Put(Record::Unit(Arc::new(larger)))), &["changed"]),
        (after(Change::Gone(RecordKey::Unit(UnitId(1)))), &["changed"]),
        // Other changes of the unit let it move on.
        (after(Change::Put(Record::Unit(Arc::new(record().priority(7))))), &[]),
        (ended_by_itself, &["changed"]),
    ] {
        assert_eq!(world.dropped(), expected);
        assert_eq!(world.binder.n_holds(), usize::from(expected.is_empty()));
        assert!(world.dropped().is_empty());
    }
}

#[test]
fn the_end_of_a_target_is_read_before_its_replica_is_bound() {
    for is_refused in [false, true] {
        let (mut world, revision) = two();
        let accepted = world.moves(asked(1, 0, 0, 3));
        world.show(&accepted);
        world.left(1, 0);
        world.binder.on_wall(EXPIRES_MS);
        let work = world.binder.take_hold_work();
        let [HoldWork::Drop { why: "expired", holds }] = &work[..] else { panic!("{work:?}") };
        // Were it bound now, and the end refused, room would be held for it where it does not go any more.
        let elsewhere = next(1, revision, 0, 1);
        let after = Wait::Revision(Revision(world.revision + 1));
        assert_eq!(world.binder.check(&elsewhere), Verdict::Wait(after), "{is_refused}");
        let gone = match is_refused {
            true => {
                world.binder.keep_holds(holds);
                vec![(accepted.hold.id, "placed")]
            }
            false => {
                world.change(Change::Gone(RecordKey::Hold(accepted.hold.id)));
                Vec::new()
            }
        };
        let placed = world.accept(&elsewhere);
        assert!(placed.rejections.is_empty(), "{:?}", placed.rejections);
        assert_eq!(placed.gone, gone);
    }
}
