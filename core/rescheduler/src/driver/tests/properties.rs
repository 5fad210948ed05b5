//! Any order of answers, faults and progress.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The binder answers; what, follows from the number.
    Answer(u8),
    /// The call fails; whether the binder did it follows from the number.
    Lost(u8),
    /// Successors go one step on, to the node that follows from the number.
    Progress(u8),
    /// The rescheduler is killed and begins anew with what is recorded.
    Kill,
    Abort,
    Wait(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<u8>().prop_map(Event::Answer),
        1 => any::<u8>().prop_map(Event::Lost),
        6 => any::<u8>().prop_map(Event::Progress),
        1 => Just(Event::Kill),
        1 => any::<bool>().prop_map(|is_abort| if is_abort { Event::Abort } else { Event::Wait(1) }),
        2 => (0u16..2_000).prop_map(Event::Wait),
    ]
}

struct Run {
    world: World,
    driver: MovementDriver,
    /// As of the last record.
    recorded: MovementRecord,
    asked: Vec<usize>,
    n_evicted: u32,
}

impl Run {
    fn step(&mut self, now: i64) {
        let before = self.driver.movement().clone();
        let step = self.driver.step(&self.world, &TERMS, now);
        assert_eq!(step.has_changed, before != *self.driver.movement(), "it says whether it is another one");
        if step.has_changed {
            self.recorded = self.driver.movement().clone();
        }
        let moves = &self.driver.movement().moves;
        for at in &step.asked {
            assert!(!self.asked.contains(at), "asked twice at a time");
            let batch = moves[*at].batch;
            let open = moves.iter().filter(|one| one.batch < batch && !one.phase.is_ended());
            assert_eq!(open.count(), 0, "an earlier batch goes on");
            assert!(self.recorded.moves[*at].n_tries > 0, "it is recorded before it is asked for");
            assert_eq!(self.recorded.ending, None, "what ends asks for nothing");
        }
        self.asked.extend(step.asked);
        if step.replans {
            self.driver.replace_plan(Revision(9), "again", Vec::new(), 0, now);
            self.recorded = self.driver.movement().clone();
            self.asked.clear();
        }
    }

    fn binder_does(&mut self, at: usize) {
        let unit = self.driver.movement().moves[at].id.unit.0;
        let is_there =
            self.world.replicas.get(&unit).is_some_and(|now| now.incarnation == 0 && now.eviction.is_none());
        if is_there {
            self.world.evict(unit);
            self.n_evicted += 1;
        }
    }

    fn on(&mut self, event: Event, now: i64) {
        match event {
            Event::Answer(what) => {
                let asked = std::mem::take(&mut self.asked);
                let mut verdicts = Vec::new();
                for at in asked {
                    verdicts.push((
                        at,
                        match (usize::from(what) + at) % 5 {
                            0 => MoveReply::Later("budget".to_owned()),
                            1 => MoveReply::Refused("not there".to_owned()),
                            _ => {
                                self.binder_does(at);
                                MoveReply::Moved
                            }
                        },
                    ));
                }
                self.driver.on_verdicts(verdicts, &TERMS, now);
            }
            Event::Lost(what) => {
                let asked = std::mem::take(&mut self.asked);
                for at in asked.iter().filter(|at| (usize::from(what) >> (**at % 8)) & 1 == 1) {
                    self.binder_does(*at);
                }
                self.driver.on_no_answer(&asked, &TERMS, now);
            }
            Event::Progress(what) => {
                let node = if what % 4 == 0 { 3 } else { 2 };
                for (unit, replica) in &mut self.world.replicas {
                    if (u64::from(what) >> (unit % 3)) & 1 == 0 {
                        continue;
                    }
                    *replica = match (replica.incarnation, replica.phase, replica.eviction) {
                        (0, _, Some(_)) => view(1, Phase::Pending, 1),
                        (1, Phase::Pending, _) => view(1, Phase::Bound, node),
                        (1, Phase::Bound, _) => view(1, Phase::Running, replica.node.0),
                        _ => *replica,
                    };
                }
            }
            Event::Kill => {
                self.driver = MovementDriver::new(self.recorded.clone());
                self.asked.clear();
            }
            Event::Abort => {
                if self.driver.abort("by hand", now) {
                    self.recorded = self.driver.movement().clone();
                }
            }
            Event::Wait(_) => {}
        }
    }
}

proptest! {
    /// Whatever the binder says, whoever is killed: batches come in order, nothing is asked for unrecorded or twice at a time, the
    /// movement ends, and every running unit that left is accounted for.
    #[test]
    fn a_movement_ends_whatever_happens(
        batches in prop::collection::vec(0u32..3, 1..6),
        events in prop::collection::vec(event(), 0..80),
    ) {
        let n = u64::try_from(batches.len()).unwrap();
        let movement = movement(&batches);
        let mut run = Run {
            world: World::running(n),
            driver: MovementDriver::new(movement.clone()),
            recorded: movement,
            asked: Vec::new(),
            n_evicted: 0,
        };
        let mut now = 0;
        for event in events {
            now += match event { Event::Wait(ms) => i64::from(ms), _ => 10 };
            run.step(now);
            run.on(event, now);
        }
        for round in 0..200u8 {
            now += 1_000;
            run.step(now);
            if run.driver.movement().is_ended() {
                break;
            }
            run.on(Event::Answer(if round < 150 { 2 } else { 1 }), now);
            run.on(Event::Progress(u8::MAX), now);
        }
        let ended = run.driver.movement().clone();
        prop_assert!(ended.is_ended(), "{ended:?}");
        prop_assert!(ended.moves.iter().all(|one| one.phase.is_ended()));
        let arrived = ended.counts().moved + ended.counts().mismatched;
        prop_assert!(arrived <= run.n_evicted, "{} of {}", arrived, run.n_evicted);
    }
}
