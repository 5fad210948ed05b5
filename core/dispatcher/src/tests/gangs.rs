//! Gangs that find no place take turns.

use godel_domain::{
    change::PartitionMode,
    hold::{GangTurn, Hold},
    ids::HoldId,
};

use super::*;

fn gang(id: u64) -> UnitRecord {
    spec(id, 2).min_member(2)
}

/// Units handed out with a turn in the next step.
fn turns(rig: &mut Rig) -> Vec<u64> {
    let assigned = rig.core.step(rig.now).into_iter().filter_map(|action| match action {
        Action::Assign(one) => one.turn.then_some(one.record.id.0),
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
        Action::Assign(one) if one.record.id == UnitId(1) => Some(one.ordinals),
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
    rig.core.on_hold(hold(1, 1), rig.now);
    rig.core.on_synced(Revision(rig.revision), rig.now);
    rig.attach("a", 1, 1, &[], 100);
    rig.core.on_lease(&lease("a", 1, "h"), rig.now);
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
        Action::Assign(one) => Some((one.turn, one.scope)),
        _ => None,
    });
    assert_eq!(assigned.collect::<Vec<_>>(), [(true, NodeScope::Global)]);
}
