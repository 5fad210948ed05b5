//! Each thing that the reconciler compares is broken by hand; it is found, counted once and put right.

use godel_base::ids::HoldId;
use godel_domain::hold::Hold;

use super::*;

/// Unit 1 runs one of two and waits for room with the other; unit 2 is in a scheduler's hands.
fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.attach("a", 1, 1, &[], 100);
    rig.submit([1, 2]);
    rig.step();
    rig.bind(1, &[0]);
    let hold = Hold { id: HoldId(7), unit: UnitId(1), ordinals: vec![1], ..Hold::default() };
    rig.core.on_hold(Arc::new(hold), rig.now);
    rig.step();
    rig
}

/// Passes until all has been looked at; how much was repaired.
fn repairs(rig: &mut Rig) -> u64 {
    let before = rig.core.summary().counters.repairs;
    for _ in 0..3 {
        rig.now = rig.now.plus(2_000);
        rig.step();
    }
    rig.core.summary().counters.repairs - before
}

#[test]
fn a_healthy_run_needs_no_repair() {
    assert_eq!(repairs(&mut rig()), 0);
}

#[test]
fn room_that_is_held_is_known_and_no_other() {
    let mut rig = rig();
    let held = |rig: &Rig| rig.core.assignments.units.entries[&UnitId(1)].holds.len();
    assert_eq!(held(&rig), 1);
    // Where its place no longer follows either, that counts too.
    rig.core.assignments.units.entries.get_mut(&UnitId(1)).unwrap().holds.clear();
    assert!(repairs(&mut rig) >= 1);
    assert_eq!(held(&rig), 1);
    let hold = rig.core.holds.remove(&HoldId(7)).unwrap();
    assert!(repairs(&mut rig) >= 1);
    assert_eq!(held(&rig), 0);
    rig.core.on_hold(hold, rig.now);
    assert_eq!((repairs(&mut rig), held(&rig)), (0, 1));
}

#[test]
fn what_schedulers_hold_adds_up() {
    let mut rig = rig();
    let scheduler = |rig: &Rig| {
        (rig.core.assignments.schedulers.all[0].outstanding, rig.core.assignments.schedulers.all[0].parked)
    };
    let sound = scheduler(&rig);
    rig.core.assignments.schedulers.all[0].outstanding += 5;
    rig.core.assignments.schedulers.all[0].parked += 1;
    assert_eq!((repairs(&mut rig), scheduler(&rig)), (1, sound));
    rig.submit([3]);
    rig.core.streams().on_credits(SessionId(1), 0);
    rig.core.assignments.schedulers.all[0].held.insert(UnitId(3));
    rig.core.assignments.schedulers.all[0].held.insert(UnitId(4));
    assert_eq!(repairs(&mut rig), 2);
    assert!(!rig.core.assignments.schedulers.all[0].held.contains(&UnitId(4)));
}

#[test]
fn a_unit_that_its_scheduler_lost_goes_back_to_the_queue() {
    let mut rig = rig();
    rig.core.assignments.schedulers.all[0].held.remove(&UnitId(2));
    assert!(repairs(&mut rig) > 0);
    assert!(rig.core.assignments.schedulers.all[0].held.contains(&UnitId(2)), "handed out anew");
}

#[test]
fn what_runs_on_a_node_that_nobody_knows_is_lost_with_it() {
    let mut rig = rig();
    rig.core.on_node_deleted(NodeId(1), rig.now);
    assert_eq!(repairs(&mut rig), 1, "once");
    rig.now = rig.now.plus(Config::default().losses.grace_ms);
    let mut asked = Vec::new();
    for _ in 0..5 {
        asked.extend(rig.step());
        rig.now = rig.now.plus(1_000);
    }
    assert!(asked.iter().any(|action| action.starts_with("evict 1 NodeLost")), "{asked:?}");
}
