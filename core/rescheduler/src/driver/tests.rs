use std::collections::{BTreeMap, BTreeSet};

use godel_domain::allocation::DeviceSet;

use super::*;
use crate::movement::{RecordedReason, RunCause};

mod properties;

const TERMS: DriverTerms = DriverTerms {
    move_timeout_ms: 10_000,
    movement_timeout_ms: 600_000,
    retry_ms: (100, 1_000),
    failed_max_percent: 50,
    plan_age_max_ms: 5_000,
    n_replans_max: 2,
};
const NAME: &str = "pack-1";

/// Replicas by unit, ordinal 0 of each.
#[derive(Clone, Debug, Default)]
struct World {
    replicas: BTreeMap<u64, ReplicaView>,
    moved: BTreeMap<u64, u32>,
    surge: BTreeMap<u64, u32>,
    surged: BTreeMap<u64, ReplicaView>,
    /// Units that cannot spare a replica, and units that do not want to be moved.
    unspared: BTreeSet<u64>,
    kept: BTreeSet<u64>,
}

impl MovementWorld for World {
    fn replica(&self, unit: UnitId, ordinal: u32) -> Option<ReplicaView> {
        let of = if ordinal == 0 { &self.replicas } else { &self.surged };
        of.get(&unit.0).copied()
    }

    fn held_ordinal(&self, _: &str, from: RunningUnitId) -> Option<u32> {
        self.surge.get(&from.unit.0).copied()
    }

    fn was_moved(&self, movement: &str, from: RunningUnitId) -> bool {
        movement == NAME && self.moved.get(&from.unit.0) == Some(&from.replica.incarnation)
    }

    fn node_name(&self, node: NodeId) -> String {
        format!("n{node}")
    }

    fn may_leave(&self, running: RunningUnitId, missing: &[u32]) -> Result<(), String> {
        let is_spared = missing.is_empty() && !self.unspared.contains(&running.unit.0);
        if is_spared { Ok(()) } else { Err("one may be missing at a time".to_owned()) }
    }

    fn keeps(&self, running: RunningUnitId) -> Option<KeptReason> {
        self.kept.contains(&running.unit.0).then_some(KeptReason::NotMovable)
    }
}

fn view(incarnation: u32, phase: Phase, node: u32) -> ReplicaView {
    ReplicaView { incarnation, phase, node: NodeId(node), eviction: None }
}

impl World {
    fn running(units: u64) -> Self {
        Self {
            replicas: (1..=units).map(|unit| (unit, view(0, Phase::Running, 1))).collect(),
            ..Self::default()
        }
    }

    fn evict(&mut self, unit: u64) {
        if let Some(replica) = self.replicas.get_mut(&unit) {
            replica.eviction = Some(EvictionReason::Rescheduled);
            self.moved.insert(unit, replica.incarnation);
        }
    }

    fn next(&mut self, unit: u64, phase: Phase, node: u32) {
        if let Some(replica) = self.replicas.get_mut(&unit) {
            *replica = view(1, phase, node);
        }
    }
}

fn planned(unit: u64, batch: u32) -> MovementMove {
    MovementMove {
        id: RunningUnitId::new(UnitId(unit), 0, 0),
        unit: format!("default/u{unit}"),
        from: (NodeId(1), "n1".to_owned()),
        to: (NodeId(2), "n2".to_owned()),
        devices: DeviceSet::NONE,
        batch,
        is_detour: false,
        cost_ms: 1,
        reason: RecordedReason::default(),
        phase: MovePhase::Waiting,
        actual: None,
        detail: String::new(),
        n_tries: 0,
        changed_ms: 0,
        surge_ordinal: None,
    }
}

fn movement(batches: &[u32]) -> MovementRecord {
    let moves: Vec<MovementMove> = (1..).zip(batches).map(|(unit, batch)| planned(unit, *batch)).collect();
    MovementRecord {
        name: NAME.to_owned(),
        policy: "pack".to_owned(),
        number: 1,
        for_unit: None,
        created_ms: 0,
        plan_revision: Revision(7),
        objective: (5.0, 3.0),
        finding: "found".to_owned(),
        phase: MovementPhase::Running,
        ending: None,
        ended_ms: 0,
        message: String::new(),
        n_batches: batches.iter().max().map_or(0, |last| last + 1),
        batch: 0,
        n_replans: 0,
        cause: RunCause::Rpc,
        moves,
    }
}

fn phases(driver: &MovementDriver) -> Vec<MovePhase> {
    driver.movement().moves.iter().map(|one| one.phase).collect()
}

#[test]
fn batches_are_made_one_after_the_other() {
    let mut world = World::running(3);
    let mut driver = MovementDriver::new(movement(&[0, 0, 1]));
    let step = driver.step(&world, &TERMS, 1);
    assert_eq!((step.has_changed, &step.asked[..]), (true, &[0, 1][..]));
    assert_eq!(driver.step(&world, &TERMS, 2).asked, [0; 0], "it is asked once");
    driver.on_verdicts([(0, MoveReply::Moved), (1, MoveReply::Moved)], &TERMS, 3);
    assert_eq!(driver.take_begun(), [UnitId(1), UnitId(2)]);
    [1, 2].into_iter().for_each(|unit| world.evict(unit));
    assert_eq!(driver.step(&world, &TERMS, 4).asked, [0; 0]);
    world.next(1, Phase::Pending, 1);
    world.next(2, Phase::Bound, 3);
    assert!(driver.step(&world, &TERMS, 5).has_changed);
    assert_eq!(phases(&driver), [MovePhase::Pending, MovePhase::Starting, MovePhase::Waiting]);
    assert!(!driver.step(&world, &TERMS, 5).has_changed, "nothing is new");
    world.next(1, Phase::Running, 2);
    world.next(2, Phase::Running, 3);
    let step = driver.step(&world, &TERMS, 6);
    assert_eq!((step.asked, driver.movement().batch), (vec![2], 1));
    assert_eq!(phases(&driver), [MovePhase::Moved, MovePhase::Mismatched, MovePhase::Waiting]);
    assert_eq!(driver.movement().moves[1].actual, Some((NodeId(3), "n3".to_owned())));
    driver.on_verdicts([(2, MoveReply::Moved)], &TERMS, 7);
    world.evict(3);
    world.next(3, Phase::Running, 2);
    driver.step(&world, &TERMS, 8);
    let movement = driver.movement();
    assert_eq!((movement.phase, movement.ended_ms), (MovementPhase::Done, 8));
    assert_eq!((movement.counts().moved, movement.counts().mismatched), (2, 1));
}

#[test]
fn a_budget_that_says_later_is_asked_again_and_not_for_ever() {
    let world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    assert_eq!(driver.step(&world, &TERMS, 0).asked, [0]);
    let later = || [(0, MoveReply::Later("budget `web`".to_owned()))];
    driver.on_verdicts(later(), &TERMS, 0);
    let step = driver.step(&world, &TERMS, 50);
    assert_eq!(step.asked, [0; 0]);
    let due = step.next_ms.unwrap();
    assert!((100..=125).contains(&due), "{due}");
    assert_eq!(driver.step(&world, &TERMS, due).asked, [0]);
    driver.on_verdicts(later(), &TERMS, due);
    assert!(driver.step(&world, &TERMS, due).next_ms.unwrap() >= due + 200);
    driver.step(&world, &TERMS, 10_000);
    driver.on_verdicts(later(), &TERMS, 10_000);
    driver.step(&world, &TERMS, 10_001);
    let one = &driver.movement().moves[0];
    assert_eq!(one.phase, MovePhase::Refused);
    assert!(one.detail.contains("budget `web`"), "{}", one.detail);
    assert!(driver.movement().is_ended());
}

#[test]
fn a_taken_target_has_the_rest_planned_anew_so_often_and_then_the_others_move() {
    let terms = DriverTerms { failed_max_percent: 100, ..TERMS };
    let world = World::running(4);
    let mut driver = MovementDriver::new(movement(&[0, 1]));
    for replan in 0..=TERMS.n_replans_max {
        let step = driver.step(&world, &terms, 1);
        assert_eq!(step.asked.len(), 1, "{replan}: {:?}", driver.movement());
        let taken = MoveReply::TargetTaken("memory".to_owned());
        driver.on_verdicts([(step.asked[0], taken)], &terms, 1);
        let step = driver.step(&world, &terms, 2);
        if replan == TERMS.n_replans_max {
            assert!(!step.replans);
            assert_eq!(step.asked, [driver.movement().moves.len() - 1], "the others move all the same");
            break;
        }
        assert!(step.replans && step.asked.is_empty());
        assert!(driver.step(&world, &terms, 2).replans, "until there is a plan");
        let moves = vec![planned(3, 0), planned(4, 1)];
        driver.replace_plan(Revision(8), "again", moves, 2, 3);
        assert_eq!(driver.movement().n_replans, replan + 1);
    }
    let movement = driver.movement();
    assert_eq!(movement.phase, MovementPhase::Running);
    assert_eq!(movement.n_replans, TERMS.n_replans_max);
}

#[test]
fn nothing_left_to_move_ends_a_movement_that_is_planned_anew() {
    let world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    assert!(driver.step(&world, &TERMS, 5_001).replans, "the plan is old and nothing has begun");
    driver.replace_plan(Revision(8), "", Vec::new(), 0, 5_002);
    assert_eq!(driver.movement().phase, MovementPhase::Done);
    assert!(driver.movement().moves.is_empty() && !driver.movement().message.is_empty());
}

#[test]
fn a_movement_stops_above_the_ratio_of_failures() {
    let mut world = World::running(6);
    let mut driver = MovementDriver::new(movement(&[0, 0, 0, 0, 0, 1]));
    driver.step(&world, &TERMS, 1);
    let refused = || MoveReply::Refused("gone".to_owned());
    let verdicts = (0..3).map(|at| (at, refused())).chain([(3, MoveReply::Moved), (4, MoveReply::Moved)]);
    driver.on_verdicts(verdicts.collect::<Vec<_>>(), &TERMS, 1);
    driver.step(&world, &TERMS, 2);
    assert_eq!(driver.movement().ending, Some(MovementPhase::Stopped));
    assert_eq!(phases(&driver)[5], MovePhase::Aborted);
    assert!(!driver.movement().is_ended(), "what has begun runs to its end");
    for unit in [4, 5] {
        world.evict(unit);
        world.next(unit, Phase::Running, 2);
    }
    driver.step(&world, &TERMS, 3);
    assert_eq!(driver.movement().phase, MovementPhase::Stopped);
}

#[test]
fn two_failures_stop_no_movement() {
    let world = World::running(3);
    let mut driver = MovementDriver::new(movement(&[0, 0, 1]));
    driver.step(&world, &TERMS, 1);
    let refused = || MoveReply::Refused("gone".to_owned());
    driver.on_verdicts([(0, refused()), (1, refused())], &TERMS, 1);
    assert_eq!(driver.step(&world, &TERMS, 2).asked, [2]);
}

#[test]
fn an_abort_gives_up_what_has_not_begun() {
    let mut world = World::running(3);
    let mut driver = MovementDriver::new(movement(&[0, 0, 1]));
    driver.step(&world, &TERMS, 1);
    driver.on_verdicts([(0, MoveReply::Moved)], &TERMS, 1);
    assert!(driver.abort("not today", 2));
    assert!(!driver.abort("twice", 2), "repeated it changes nothing");
    assert_eq!(phases(&driver), [MovePhase::Leaving, MovePhase::Waiting, MovePhase::Aborted]);
    // The binder did not know of the end when it was asked.
    driver.on_verdicts([(1, MoveReply::Moved)], &TERMS, 3);
    for unit in [1, 2] {
        world.evict(unit);
        world.next(unit, Phase::Running, 2);
    }
    driver.step(&world, &TERMS, 4);
    let movement = driver.movement();
    assert_eq!((movement.phase, movement.message.as_str()), (MovementPhase::Aborted, "not today"));
    assert_eq!((movement.counts().moved, movement.counts().aborted), (2, 1));
    assert!(!driver.abort("too late", 5));
}

#[test]
fn what_left_before_is_not_moved() {
    let mut world = World::running(3);
    world.next(1, Phase::Running, 5);
    world.replicas.remove(&2);
    if let Some(replica) = world.replicas.get_mut(&3) {
        replica.eviction = Some(EvictionReason::Drained);
    }
    let mut driver = MovementDriver::new(movement(&[0, 0, 0]));
    let step = driver.step(&world, &TERMS, 1);
    assert_eq!(step.asked, [0; 0]);
    assert_eq!(phases(&driver), [MovePhase::Refused; 3]);
}

#[test]
fn somebody_elses_eviction_is_not_taken_for_the_own_move() {
    let mut world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    driver.step(&world, &TERMS, 1);
    driver.on_verdicts([(0, MoveReply::Later("budget".to_owned()))], &TERMS, 1);
    world.next(1, Phase::Running, 2);
    driver.step(&world, &TERMS, 2);
    assert_eq!(phases(&driver), [MovePhase::Refused]);
    assert!(driver.take_begun().is_empty());
}

#[test]
fn a_successor_that_does_not_run_in_time_has_failed() {
    let mut world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    driver.step(&world, &TERMS, 0);
    driver.on_verdicts([(0, MoveReply::Moved)], &TERMS, 0);
    world.evict(1);
    world.next(1, Phase::Pending, 1);
    assert_eq!(driver.step(&world, &TERMS, 100).next_ms, Some(10_100));
    driver.step(&world, &TERMS, 10_100);
    assert_eq!(phases(&driver), [MovePhase::TimedOut]);
}

#[test]
fn a_replacement_that_starts_first_is_followed_by_its_ordinal() {
    let mut world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    driver.step(&world, &TERMS, 1);
    driver.on_verdicts([(0, MoveReply::Moved)], &TERMS, 1);
    world.surge.insert(1, 4);
    driver.step(&world, &TERMS, 2);
    assert_eq!(driver.movement().moves[0].surge_ordinal, Some(4));
    world.surged.insert(1, view(0, Phase::Running, 2));
    driver.step(&world, &TERMS, 3);
    assert_eq!((phases(&driver), driver.movement().is_ended()), (vec![MovePhase::Moved], true));
}

#[test]
fn the_answer_says_which_ordinal_replaces_the_one_that_moves() {
    let mut world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    driver.step(&world, &TERMS, 1);
    driver.on_verdicts([(0, MoveReply::Surges(4))], &TERMS, 1);
    assert_eq!(driver.take_begun(), [UnitId(1)]);
    // The one that moves is not wanted any more before anybody looks.
    world.replicas.clear();
    world.surged.insert(1, view(0, Phase::Starting, 2));
    driver.step(&world, &TERMS, 2);
    assert_eq!(phases(&driver), [MovePhase::Starting]);
    world.surged.insert(1, view(0, Phase::Running, 2));
    driver.step(&world, &TERMS, 3);
    assert_eq!(phases(&driver), [MovePhase::Moved]);
}

#[test]
fn a_replacement_that_ran_before_the_answer_came_is_followed() {
    let mut world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    driver.step(&world, &TERMS, 1);
    world.replicas.clear();
    world.surged.insert(1, view(0, Phase::Running, 2));
    driver.step(&world, &TERMS, 2);
    assert_eq!(phases(&driver), [MovePhase::Waiting], "the answer says which one it is");
    driver.on_verdicts([(0, MoveReply::Surges(4))], &TERMS, 3);
    driver.step(&world, &TERMS, 3);
    assert_eq!((phases(&driver), driver.take_begun()), (vec![MovePhase::Moved], vec![UnitId(1)]));
}

#[test]
fn what_the_binder_may_have_made_counts_for_the_rate() {
    let begun_of = |mut driver: MovementDriver, world: &World| {
        driver.step(world, &TERMS, 3);
        assert_eq!(phases(&driver), [MovePhase::Refused]);
        driver.take_begun()
    };
    let mut world = World::running(1);
    let mut asked = MovementDriver::new(movement(&[0]));
    asked.step(&world, &TERMS, 1);
    let (mut unheard, mut later, mut under_way) = (asked.clone(), asked.clone(), asked.clone());
    unheard.on_no_answer(&[0], &TERMS, 2);
    later.on_verdicts([(0, MoveReply::Later("a budget".to_owned()))], &TERMS, 2);
    let same = MoveReply::refused(RejectionReason::AlreadyHeld, true, "the same move".to_owned());
    under_way.on_verdicts([(0, same)], &TERMS, 2);
    world.replicas.clear();
    assert_eq!(begun_of(unheard, &world), [UnitId(1)]);
    assert_eq!(begun_of(MovementDriver::new(asked.movement().clone()), &world), [UnitId(1)], "after a kill");
    assert_eq!(begun_of(under_way, &world), [UnitId(1)], "an earlier request of it");
    assert_eq!(begun_of(later, &world), []);
}

#[test]
fn a_detour_goes_on_from_the_replacement() {
    let mut world = World::running(1);
    let mut movement = movement(&[0, 1]);
    movement.moves[0].is_detour = true;
    movement.moves[1].id = RunningUnitId::new(UnitId(1), 0, 1);
    let mut driver = MovementDriver::new(movement);
    driver.step(&world, &TERMS, 1);
    driver.on_verdicts([(0, MoveReply::Surges(4))], &TERMS, 1);
    world.replicas.clear();
    world.surged.insert(1, view(0, Phase::Running, 2));
    assert_eq!(driver.step(&world, &TERMS, 2).asked, [1]);
    assert_eq!(phases(&driver), [MovePhase::Moved, MovePhase::Waiting]);
    assert_eq!(driver.movement().moves[1].id, RunningUnitId::new(UnitId(1), 4, 0));
}

#[test]
fn what_has_stopped_before_the_answer_came_was_moved() {
    let mut world = World::running(2);
    let mut driver = MovementDriver::new(movement(&[0, 0]));
    driver.step(&world, &TERMS, 1);
    world.evict(1);
    for unit in [1, 2] {
        world.replicas.get_mut(&unit).unwrap().phase = Phase::Stopped;
    }
    driver.step(&world, &TERMS, 2);
    assert_eq!(
        phases(&driver),
        [MovePhase::Leaving, MovePhase::Waiting],
        "somebody else stopped the other one, or another ordinal replaces it"
    );
    let gone = MoveReply::Refused("it has ended".to_owned());
    driver.on_verdicts([(0, MoveReply::Moved), (1, gone)], &TERMS, 3);
    world.next(1, Phase::Running, 2);
    driver.step(&world, &TERMS, 4);
    assert_eq!(phases(&driver), [MovePhase::Moved, MovePhase::Refused]);
}

#[test]
fn a_replacement_that_is_given_up_ends_its_move() {
    let mut world = World::running(1);
    let mut driver = MovementDriver::new(movement(&[0]));
    let ended = |driver: &mut MovementDriver, world: &World, now| {
        driver.step(world, &TERMS, now);
        let one = &driver.movement().moves[0];
        (one.phase, one.detail.clone())
    };
    driver.step(&world, &TERMS, 1);
    driver.on_verdicts([(0, MoveReply::Surges(4))], &TERMS, 1);
    assert_eq!(ended(&mut driver, &world, 2).0, MovePhase::Pending, "the hold is not seen yet");
    world.surge.insert(1, 4);
    assert_eq!(ended(&mut driver, &world, 3).0, MovePhase::Pending);
    world.surged.insert(1, view(0, Phase::Starting, 2));
    assert_eq!(ended(&mut driver, &world, 4).0, MovePhase::Starting);
    let mut next = MovementDriver::new(driver.movement().clone());
    world.surge.clear();
    world.surged.clear();
    let refused = (MovePhase::Refused, "its replacement was given up".to_owned());
    assert_eq!(ended(&mut driver, &world, 5), refused);
    assert_eq!(ended(&mut next, &world, 5), refused, "whoever leads next");
    assert!(driver.movement().is_ended());
}

#[test]
fn a_unit_that_cannot_spare_a_replica_holds_up_its_own_moves_alone() {
    let mut world = World::running(3);
    world.unspared.insert(2);
    let mut driver = MovementDriver::new(movement(&[0, 0, 0]));
    let step = driver.step(&world, &TERMS, 1);
    assert_eq!(step.asked, [0, 2]);
    let waiting = &driver.movement().moves[1];
    assert_eq!((waiting.phase, waiting.n_tries), (MovePhase::Waiting, 0));
    assert_eq!(waiting.detail, "one may be missing at a time");
    let due = step.next_ms.unwrap();
    assert!((101..=126).contains(&due), "{due}");
    world.unspared.clear();
    assert_eq!(driver.step(&world, &TERMS, due).asked, [1]);
    // One that is never spared is given up in time.
    let mut driver = MovementDriver::new(movement(&[0]));
    world.unspared.insert(1);
    driver.step(&world, &TERMS, 1);
    driver.step(&world, &TERMS, 10_001);
    let one = &driver.movement().moves[0];
    assert_eq!(one.phase, MovePhase::Refused);
    assert!(one.detail.contains("could not spare it in time"), "{}", one.detail);
    assert!(driver.movement().is_ended());
}

#[test]
fn of_one_unit_the_next_replica_is_asked_for_when_the_one_before_runs() {
    let mut world = World::running(1);
    world.surged.insert(1, view(0, Phase::Running, 1));
    let mut both = movement(&[0, 0]);
    both.moves[1].id = RunningUnitId::new(UnitId(1), 1, 0);
    let mut driver = MovementDriver::new(both);
    assert_eq!(driver.step(&world, &TERMS, 1).asked, [0]);
    // The answer of the binder is heard before the watch shows that the replica leaves.
    driver.on_verdicts([(0, MoveReply::Moved)], &TERMS, 2);
    assert_eq!(driver.step(&world, &TERMS, 500).asked, [0; 0]);
    world.evict(1);
    world.next(1, Phase::Running, 2);
    let mut next = driver.clone();
    assert_eq!(driver.step(&world, &TERMS, 5_000).asked, [1]);
    next.step(&world, &TERMS, 600);
    let mut next = MovementDriver::new(next.movement().clone());
    assert_eq!(next.step(&world, &TERMS, 5_000).asked, [1], "whoever leads next");
}

#[test]
fn a_unit_that_says_so_meanwhile_is_not_moved() {
    let mut world = World::running(2);
    let mut driver = MovementDriver::new(movement(&[0, 1]));
    driver.step(&world, &TERMS, 1);
    driver.on_verdicts([(0, MoveReply::Moved)], &TERMS, 2);
    world.kept.insert(2);
    world.evict(1);
    world.next(1, Phase::Running, 2);
    driver.step(&world, &TERMS, 3);
    assert_eq!(phases(&driver), [MovePhase::Moved, MovePhase::Refused]);
    assert_eq!(driver.movement().moves[1].detail, "the unit says `movable: false`");
}

#[test]
fn a_replica_that_fails_again_and_again_counts_once() {
    let mut movement = movement(&[0, 0, 0, 0]);
    for one in &mut movement.moves[..3] {
        one.id = RunningUnitId::new(UnitId(9), 0, 0);
        one.phase = MovePhase::Refused;
    }
    assert_eq!(movement.n_failed(), (1, 1));
    movement.moves[3].phase = MovePhase::Moved;
    assert_eq!(movement.n_failed(), (1, 2));
    movement.moves[3].id = movement.moves[0].id;
    assert_eq!(movement.n_failed(), (0, 1), "in the end it moved");
}
