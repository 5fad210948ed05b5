//! Gangs that find no place take turns.

use godel_base::ids::HoldId;
use godel_domain::{
    change::PartitionMode,
    hold::{GangTurn, Hold},
    queue_spec::QueueSpec,
    refusals::{RefusalCount, WaitReason},
};

use super::*;

fn gang(id: u64) -> UnitRecord {
    spec(id, 2).min_member(2)
}

/// Units handed out with a turn in the next step.
fn turns(rig: &mut Rig) -> Vec<u64> {
    let assigned = rig.core.step(rig.now).into_iter().filter_map(|action| match action {
        Action::Assign(_, one) => one.permit.turn.then_some(one.record.id.0),
        _ => None,
    });
    assigned.collect()
}

fn later(rig: &mut Rig, ms: u64) {
    rig.now = rig.now.plus(ms);
}

fn hold(id: u64, unit: u64) -> Arc<Hold> {
    Arc::new(Hold {
        id: HoldId(id),
        node: NodeId(1),
        unit: UnitId(unit),
        ordinals: vec![0, 1],
        expires_ms: 900,
        turn: Some(GangTurn { since_ms: 500, priority: 0, sub_cluster: None }),
        ..Hold::default()
    })
}

/// Two gangs and a single unit that a scheduler has parked.
fn parked() -> Rig {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.put(gang(1));
    rig.put(gang(2));
    rig.put(spec(3, 1));
    assert_eq!(turns(&mut rig), [0; 0]);
    for unit in 1..=3 {
        rig.report(1, unit, ReportState::Parked);
    }
    rig
}

#[test]
fn gangs_that_wait_for_long_take_turns() {
    let mut rig = parked();
    later(&mut rig, 59_999);
    assert_eq!(turns(&mut rig), [0; 0]);
    later(&mut rig, 501);
    assert_eq!(turns(&mut rig), [1], "the single unit never");
    assert_eq!(rig.core.summary().gangs_waiting, 2);
    rig.core.on_hold(hold(1, 1), rig.now);
    let view = rig.core.unit(UnitId(1)).unwrap();
    assert_eq!(view.turn, Some(TurnView { n_places: 2, n_nodes: 1, since_ms: 500, expires_ms: 900 }));
    assert_eq!(view.waits_for, "holds room for 2 as it becomes free on 1 node");
    assert_eq!(view.phase, UnitPhase::Scheduling);
    // However long that lasts.
    for _ in 0..20 {
        later(&mut rig, 60_000);
        assert_eq!(turns(&mut rig), [0; 0]);
    }
    rig.core.on_hold_deleted(HoldId(1), rig.now);
    later(&mut rig, 500);
    assert_eq!(turns(&mut rig), [2]);
    rig.core.on_hold(hold(2, 2), rig.now);
    rig.core.on_hold_deleted(HoldId(2), rig.now);
    rig.report(1, 1, ReportState::Parked);
    later(&mut rig, 119_000);
    assert_eq!(turns(&mut rig), [0; 0], "both had one that came to nothing");
    later(&mut rig, 1_000);
    assert_eq!(turns(&mut rig), [1], "it comes again");
}

#[test]
fn without_turns_a_gang_waits_as_long_as_others_take_its_room() {
    let mut rig = Rig::with(Config { gang_hold_after_ms: 0, ..Config::default() });
    rig.attach("a", 1, 1, &[], 100);
    rig.put(gang(1));
    rig.step();
    rig.report(1, 1, ReportState::Parked);
    for small in 10..100 {
        rig.put(sized(small, 100));
        assert_eq!(turns(&mut rig), [0; 0]);
        rig.bind(small, &[0]);
        rig.status(small, &[0], RowPhase::Succeeded);
        later(&mut rig, 60_000);
    }
}

#[test]
fn a_turn_that_came_to_nothing_doubles_the_wait_for_the_next() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.put(gang(1));
    assert_eq!(turns(&mut rig), [0; 0]);
    rig.report(1, 1, ReportState::Parked);
    later(&mut rig, 60_000);
    let mut waits = Vec::new();
    for id in 1..=9 {
        let since = rig.now;
        while turns(&mut rig).is_empty() {
            later(&mut rig, 500);
        }
        waits.push(rig.now.since(since) / 60_000);
        rig.core.on_hold(hold(id, 1), rig.now);
        rig.core.on_hold_deleted(HoldId(id), rig.now);
        rig.report(1, 1, ReportState::Parked);
    }
    assert_eq!(waits, [0, 2, 4, 8, 16, 32, 64, 64, 64]);
    let words = rig.core.unit(UnitId(1)).unwrap().waits_for;
    assert_eq!(words, "9 turns to gather room came to nothing; the next one in 1h 4m at the earliest");
    // Another record of it may fit.
    rig.put(gang(1));
    later(&mut rig, 500);
    assert_eq!(turns(&mut rig), [1]);
}

#[test]
fn a_gang_for_which_others_leave_is_offered_no_turn() {
    let mut rig = parked();
    rig.core.on_hold(Arc::new(Hold { turn: None, ..(*hold(1, 1)).clone() }), rig.now);
    later(&mut rig, 60_500);
    assert_eq!(turns(&mut rig), [2]);
}

#[test]
fn a_unit_whose_held_room_was_taken_over_says_by_whom() {
    let mut rig = parked();
    let mine = Arc::new(Hold { turn: None, ..(*hold(1, 1)).clone() });
    rig.core.on_hold(Arc::clone(&mine), rig.now);
    assert_eq!(rig.core.unit(UnitId(1)).unwrap().phase, UnitPhase::Scheduling);
    let theirs = Hold {
        id: HoldId(2),
        unit: UnitId(3),
        ordinals: vec![0],
        taken_from: vec![UnitId(1)],
        ..(*mine).clone()
    };
    rig.core.on_hold(Arc::new(theirs), rig.now);
    rig.core.on_hold_deleted(HoldId(1), rig.now);
    let words = rig.core.unit(UnitId(1)).unwrap().waits_for;
    assert_eq!(words, "waits again, as default/u3 took over the room that was held for it");
    // Handed out again, with all that it lacks.
    let assigned = rig.core.step(rig.now).into_iter().filter_map(|action| match action {
        Action::Assign(_, one) if one.record.id == UnitId(1) => Some(one.ordinals),
        _ => None,
    });
    assert_eq!(assigned.collect::<Vec<_>>(), [vec![0, 1]]);
    rig.bind(1, &[0, 1]);
    assert_eq!(rig.core.unit(UnitId(1)).unwrap().waits_for, "");
}

#[test]
fn an_offer_that_comes_to_nothing_is_the_next_ones() {
    let mut rig = parked();
    later(&mut rig, 60_500);
    assert_eq!(turns(&mut rig), [1]);
    rig.report(1, 1, ReportState::Parked);
    later(&mut rig, 4_000);
    assert_eq!(turns(&mut rig), [0; 0]);
    later(&mut rig, 1_500);
    assert_eq!(turns(&mut rig), [2]);
}

#[test]
fn who_is_placed_or_gone_waits_no_more() {
    let mut rig = parked();
    later(&mut rig, 60_500);
    rig.bind(1, &[0, 1]);
    rig.core.on_unit_deleted(UnitId(2), rig.now);
    assert_eq!(turns(&mut rig), [0; 0]);
    assert_eq!(rig.core.summary().gangs_waiting, 0);
    assert!(rig.core.next_wake(rig.now).is_some_and(|at| at > rig.now));
}

#[test]
fn a_new_leader_knows_who_gathers() {
    let mut rig = Rig::loading(Config::default());
    rig.put(gang(1));
    rig.put(gang(2));
    put(&mut rig.core, Record::Hold(hold(1, 1)), rig.now);
    rig.core.on_synced(Revision(rig.revision), rig.now);
    rig.attach("a", 1, 1, &[], 100);
    rig.core.streams().on_lease(&lease("a", 1, "h"), rig.now);
    assert_eq!(turns(&mut rig), [0; 0]);
    rig.report(1, 2, ReportState::Parked);
    later(&mut rig, 120_000);
    assert_eq!(turns(&mut rig), [0; 0], "the other one gathers");
    rig.core.on_hold_deleted(HoldId(1), rig.now);
    later(&mut rig, 500);
    assert_eq!(turns(&mut rig), [2], "it had its turn");
}

#[test]
fn a_turn_is_for_all_nodes_where_partitions_are_strict() {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.core.partition.mode = PartitionMode::Strict;
    rig.put(gang(1));
    rig.core.step(rig.now);
    rig.report(1, 1, ReportState::Parked);
    later(&mut rig, 60_500);
    let assigned = rig.core.step(rig.now).into_iter().filter_map(|action| match action {
        Action::Assign(_, one) => Some((one.permit.turn, one.permit.scope)),
        _ => None,
    });
    assert_eq!(assigned.collect::<Vec<_>>(), [(true, NodeScope::Global)]);
}

/// A unit of one running unit that takes so many milli-cores.
fn sized(id: u64, cpu: i64) -> UnitRecord {
    let mut unit = spec(id, 1);
    unit.spec.task_groups[0].template.demand = godel_testkit::demand(cpu);
    unit
}

/// A large unit has found no place, as the first one of two queues of the same weight or behind others of its queue.
fn large_parked(large: UnitRecord, before: &[u64]) -> Rig {
    let mut rig = Rig::new();
    for name in ["a", "b"] {
        let revision = rig.next();
        rig.core.on_change(
            &Change::Put(Record::Queue(Arc::new(QueueSpec::new(name)))),
            revision,
            Receipt { revision, time_ms: 5 },
            rig.now,
        );
    }
    rig.attach("a", 1, 1, &[], 1_000);
    let id = large.id.0;
    for small in before {
        rig.put(sized(*small, 100).queue(&large.spec.queue));
    }
    rig.put(large);
    rig.step();
    rig.report(1, id, ReportState::Parked);
    rig
}

/// Small units come, find places and go for two minutes, or until somebody is offered a turn. Returns who, and after how many seconds.
fn stream_of_small(rig: &mut Rig, queue: &str, first: u64) -> Vec<(u64, u64)> {
    let (mut offered, begin) = (Vec::new(), rig.now);
    for id in first..first + 120 {
        rig.put(sized(id, 100).queue(queue));
        let seconds = rig.now.since(begin) / 1_000;
        offered.extend(turns(rig).into_iter().map(|unit| (unit, seconds)));
        if !offered.is_empty() {
            break;
        }
        rig.bind(id, &[0]);
        rig.status(id, &[0], RowPhase::Succeeded);
        later(rig, 1_000);
    }
    offered
}

#[test]
fn one_large_unit_behind_a_stream_of_small_ones_has_its_turn() {
    // Whatever the small ones are of: its own queue, or another one of the same weight.
    for queue in ["a", "b"] {
        let mut rig = large_parked(sized(1, 8_000).queue("a"), &[]);
        let offered = stream_of_small(&mut rig, queue, 10);
        assert_eq!(offered.first(), Some(&(1, 61)), "queue {queue}: {offered:?}");
    }
}

#[test]
fn an_offer_for_which_there_are_no_nodes_is_the_next_ones_at_once() {
    let mut rig = parked();
    later(&mut rig, 60_500);
    assert_eq!(turns(&mut rig), [1]);
    let reasons = vec![RefusalCount::waits(WaitReason::GangTurn, "nobody ends".to_owned())];
    let report = UnitReport {
        unit: UnitId(1),
        spec_revision: rig.core.unit(UnitId(1)).unwrap().spec_revision,
        state: ReportState::Parked,
        refusals: Some(Arc::new(Refusals { reasons, ..Refusals::default() })),
        need: 1,
        unplaced: None,
        lacking: Vec::new(),
        assigned: 0,
    };
    rig.core.streams().on_report(SessionId(1), report, rig.now);
    later(&mut rig, 500);
    assert_eq!(turns(&mut rig), [2]);
}

#[test]
fn who_is_passed_by_nobody_has_no_turn() {
    // What comes before it finds places, and then nobody does.
    let mut rig = large_parked(sized(9, 8_000).queue("a"), &[1, 2]);
    for small in [1, 2] {
        rig.bind(small, &[0]);
    }
    for _ in 0..200 {
        later(&mut rig, 1_000);
        assert_eq!(turns(&mut rig), [0; 0]);
    }
}

#[test]
fn who_is_not_due_has_no_turn_until_it_is() {
    // Its queue has much, the other one a little at a time.
    let mut rig = large_parked(sized(9, 8_000).queue("b"), &[1, 2, 3]);
    [1, 2, 3].into_iter().for_each(|small| rig.bind(small, &[0]));
    assert_eq!(stream_of_small(&mut rig, "a", 10), []);
    [1, 2, 3].into_iter().for_each(|small| rig.status(small, &[0], RowPhase::Succeeded));
    rig.put(sized(150, 100).queue("a"));
    rig.step();
    rig.bind(150, &[0]);
    let offered = stream_of_small(&mut rig, "a", 200);
    assert_eq!(offered.first().map(|(unit, _)| *unit), Some(9), "{offered:?}");
}

#[test]
fn the_next_one_that_lacks_the_same_waits_for_no_minute_of_its_own() {
    let mut rig = large_parked(sized(1, 8_000).queue("a"), &[]);
    rig.put(sized(2, 8_000).queue("a"));
    assert_eq!(turns(&mut rig), [0; 0], "it lacks what the first one does");
    let offered = stream_of_small(&mut rig, "a", 10);
    assert_eq!(offered.first(), Some(&(1, 61)));
    let one = Arc::new(Hold { ordinals: vec![0], ..(*hold(1, 1)).clone() });
    rig.core.on_hold(one, rig.now);
    rig.bind(1, &[0]);
    rig.core.on_hold_deleted(HoldId(1), rig.now);
    rig.put(sized(500, 100).queue("a"));
    rig.step();
    rig.report(1, 2, ReportState::Parked);
    rig.bind(500, &[0]);
    later(&mut rig, 500);
    assert_eq!(turns(&mut rig), [2]);
}

#[test]
fn turns_go_by_the_order_of_queues_and_not_by_who_waits_longest() {
    let mut rig = Rig::new();
    for name in ["a", "b"] {
        let revision = rig.next();
        rig.core.on_change(
            &Change::Put(Record::Queue(Arc::new(QueueSpec::new(name)))),
            revision,
            Receipt { revision, time_ms: 5 },
            rig.now,
        );
    }
    rig.attach("a", 1, 1, &[], 1_000);
    rig.put(sized(1, 100).queue("a"));
    rig.step();
    rig.bind(1, &[0]);
    // The first queue has something, the second one nothing.
    for (id, queue) in [(2, "a"), (3, "b")] {
        rig.put(gang(id).queue(queue));
        rig.step();
        rig.report(1, id, ReportState::Parked);
        later(&mut rig, 1_000);
    }
    later(&mut rig, 60_500);
    assert_eq!(turns(&mut rig), [3]);
}

#[test]
fn while_one_replica_gathers_room_the_others_use_nothing() {
    let mut large = sized(1, 8_000).queue("a");
    large.spec.task_groups[0].replicas = 3;
    let mut rig = large_parked(large, &[]);
    let used = |rig: &Rig| {
        let quota = rig.core.queueing().quota();
        quota.usage().running_units(quota.tree().find("a").unwrap())
    };
    // As schedulers say it: what is behind the room that is held is not looked for.
    let parked = |rig: &mut Rig, unplaced: u32| {
        let spec_revision = rig.core.unit(UnitId(1)).unwrap().spec_revision;
        let report = UnitReport {
            unit: UnitId(1),
            spec_revision,
            state: ReportState::Parked,
            refusals: None,
            need: 1,
            unplaced: Some(unplaced),
            lacking: Vec::new(),
            assigned: 0,
        };
        rig.core.streams().on_report(SessionId(1), report, rig.now);
    };
    assert_eq!(stream_of_small(&mut rig, "b", 10).first().map(|(unit, _)| *unit), Some(1));
    assert_eq!(used(&rig), 1, "one is handed out to gather room");
    let one = |id: u64| Arc::new(Hold { ordinals: vec![0], ..(*hold(id, 1)).clone() });
    rig.core.on_hold(one(1), rig.now);
    parked(&mut rig, 0);
    assert_eq!(used(&rig), 1, "room is held for one");
    // The turn comes to nothing while others wait.
    rig.put(sized(500, 100).queue("b"));
    rig.step();
    rig.report(1, 500, ReportState::Parked);
    rig.core.on_hold_deleted(HoldId(1), rig.now);
    assert_eq!(used(&rig), 0, "it waits for its queue's turn");
    rig.step();
    assert_eq!(used(&rig), 0, "its scheduler hears of it without being given places");
    parked(&mut rig, 3);
    // Another turn, and one is bound: the others wait.
    rig.core.on_hold(one(2), rig.now);
    parked(&mut rig, 0);
    rig.bind(1, &[0]);
    rig.core.on_hold_deleted(HoldId(2), rig.now);
    rig.step();
    assert_eq!(used(&rig), 1, "what is bound");
}
