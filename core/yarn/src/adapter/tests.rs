//! Whole lives of applications on a cluster that is played, with the adapter killed wherever it hurts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_base::ids::ReplicaId;
use proptest::prelude::*;

use super::*;
use crate::{
    application::PublicAppState,
    asks::{ANY, AskRow, ExecutionType},
};

mod end_times;
mod masters;
mod unfetched;

const ID: YarnApplicationId = YarnApplicationId { cluster_timestamp: 1, number: 1 };

fn group(memory: i64) -> AskGroup {
    AskGroup {
        priority: 1,
        execution: ExecutionType::Guaranteed,
        capability: [("memory".to_owned(), memory)].into(),
        label: String::new(),
    }
}

fn submission() -> AppSubmission {
    AppSubmission {
        name: "pi".to_owned(),
        user: "ann".to_owned(),
        queue: "prod".to_owned(),
        kind: "SPARK".to_owned(),
        priority: 0,
        master: Some(group(1)),
        label: String::new(),
        max_attempts: 2,
        validity_interval_ms: 0,
        keeps_containers: false,
        lifetime_ms: None,
    }
}

fn ask(n: u32) -> AskRow {
    let key = AskKey { group: group(2), allocation_request_id: NO_REQUEST_ID };
    AskRow { key, name: ANY.to_owned(), n, relax_locality: true, label: None }
}

/// A store, a dispatcher and nodes, as far as the adapter sees them.
struct Played {
    adapter: YarnAdapter,
    now: u64,
    record: Option<AppRecord>,
    /// Ordinals of the unit, with a place or without, and their keys; 0 is the master.
    unit: BTreeMap<u32, (Option<AskKey>, bool)>,
    has_unit: bool,
    incarnation: u32,
    next_ordinal: u32,
    next_opportunistic: u32,
    /// Where masters have their places, one after the other.
    nodes: Vec<&'static str>,
    launched: BTreeSet<YarnAttemptId>,
    /// What comes of starting a master.
    launch: Result<(), LaunchFailure<'static>>,
    todo: VecDeque<YarnAction>,
    done: Vec<YarnAction>,
}

impl Played {
    fn new(submission: AppSubmission) -> Self {
        let mut played = Self {
            adapter: YarnAdapter::new(AdapterTerms::default()),
            now: 1_000,
            record: None,
            unit: BTreeMap::new(),
            has_unit: false,
            incarnation: 0,
            next_ordinal: 1,
            next_opportunistic: OPPORTUNISTIC + 1,
            nodes: vec!["n1"],
            launched: BTreeSet::new(),
            launch: Ok(()),
            todo: VecDeque::new(),
            done: Vec::new(),
        };
        let mut out = Vec::new();
        played.adapter.submit(ID, submission, played.at(), &mut out).unwrap();
        played.todo.extend(out);
        played
    }

    fn at(&self) -> AdapterTime {
        AdapterTime { now: Millis(self.now), wall_ms: i64::try_from(self.now).unwrap() }
    }

    fn app(&self) -> &YarnApplication {
        self.adapter.get(ID).unwrap()
    }

    fn with<T>(
        &mut self,
        what: impl FnOnce(&mut YarnApplication, AdapterTerms, AdapterTime, &mut Vec<YarnAction>) -> T,
    ) -> T {
        let (at, mut out) = (self.at(), Vec::new());
        let answer = self.adapter.with(ID, |app, terms| what(app, terms, at, &mut out)).unwrap();
        self.todo.extend(out);
        answer
    }

    /// Does one thing that the adapter wants done. Returns whether there was one.
    fn step(&mut self) -> bool {
        let Some(action) = self.todo.pop_front() else { return false };
        match action.clone() {
            YarnAction::PutRecord(_, version) => {
                self.record = Some(AppRecord::of(self.app()));
                self.with(|app, terms, at, out| app.saved(version, terms, at, out));
            }
            YarnAction::SubmitUnit(_) => {
                if !std::mem::replace(&mut self.has_unit, true) {
                    self.unit.insert(MASTER, (None, true));
                }
                self.with(|app, terms, at, out| app.unit_answered(Ok(()), terms, at, out));
                self.place_master();
            }
            YarnAction::NextMaster(_) => {
                let wanted = self.app().attempts().incarnation();
                if self.incarnation < wanted {
                    self.incarnation = wanted;
                    self.unit.insert(MASTER, (None, true));
                }
                self.place_master();
            }
            YarnAction::Grow(_, add) => {
                for growth in add {
                    let AskGrowth { key, wish: _, n } = growth.clone();
                    let next = match key.group.execution {
                        ExecutionType::Guaranteed => &mut self.next_ordinal,
                        ExecutionType::Opportunistic => &mut self.next_opportunistic,
                    };
                    let ordinals = *next..*next + n;
                    *next += n;
                    self.unit.extend(ordinals.clone().map(|ordinal| (ordinal, (Some(key.clone()), false))));
                    self.with(|app, _, _, out| app.grown(&growth, ordinals, out));
                }
            }
            YarnAction::Release(_, ordinals) => {
                for ordinal in ordinals {
                    self.unit.remove(&ordinal);
                }
            }
            YarnAction::LaunchMaster(attempt, _) => {
                self.launched.insert(attempt);
                let launch = self.launch;
                self.with(|app, terms, at, out| app.master_launched(attempt, launch, terms, at, out));
            }
            YarnAction::StopMaster(_) => drop(self.unit.remove(&MASTER)),
            YarnAction::CancelUnit(_) => self.unit.clear(),
            YarnAction::MoveUnit(..) => {}
        }
        self.done.push(action);
        true
    }

    fn run(&mut self) {
        while self.step() {}
    }

    fn place_master(&mut self) {
        if self.unit.contains_key(&MASTER) {
            let incarnation = self.incarnation;
            let node = self.nodes[usize::try_from(incarnation).unwrap() % self.nodes.len()];
            self.with(|app, terms, at, out| {
                app.placed(ReplicaId::new(MASTER, incarnation), node, "r1", terms, at, out)
            });
        }
    }

    fn place_all(&mut self) {
        let waiting: Vec<u32> =
            self.unit.iter().filter(|(_, (_, is_placed))| !is_placed).map(|(ordinal, _)| *ordinal).collect();
        for ordinal in waiting {
            self.unit.get_mut(&ordinal).unwrap().1 = true;
            self.with(|app, terms, at, out| {
                app.placed(ReplicaId::new(ordinal, 0), "n2", "r1", terms, at, out)
            });
        }
    }

    fn end(&mut self, ordinal: u32, exit: i32) {
        if self.unit.remove(&ordinal).is_some() {
            let incarnation = if ordinal == MASTER { self.incarnation } else { 0 };
            let exit = YarnExitStatus(exit);
            self.with(|app, terms, at, out| {
                app.ended(ReplicaId::new(ordinal, incarnation), exit, terms, at, out)
            });
        }
    }

    fn attempt(&self) -> YarnAttemptId {
        self.app().attempts().current().unwrap()
    }

    fn register(&mut self) -> Result<Vec<AllocatedContainer>, MasterRefusal> {
        let attempt = self.attempt();
        self.with(|app, terms, at, out| app.register(attempt, Registration::default(), terms, at, out))
    }

    fn allocate(&mut self, seen: i32, asks: Vec<AskRow>) -> Result<AllocateAnswer, MasterRefusal> {
        let attempt = self.attempt();
        let call = AllocateCall { seen, asks, ..AllocateCall::default() };
        self.with(|app, terms, at, out| app.allocate(attempt, &call, terms, at, out))
    }

    fn finish(&mut self) -> Result<bool, MasterRefusal> {
        let attempt = self.attempt();
        self.with(|app, terms, at, out| app.finish(attempt, FinalStatus::Succeeded, "", terms, at, out))
    }

    /// The adapter is killed, and starts again from what is recorded.
    fn crash(&mut self) {
        self.todo.clear();
        self.adapter = YarnAdapter::new(AdapterTerms::default());
        let mut out = Vec::new();
        match self.record.clone() {
            // Nothing was acknowledged: the client submits again.
            None => self.adapter.submit(ID, submission(), self.at(), &mut out).unwrap(),
            Some(record) => self.adapter.recover(record, self.at(), &mut out),
        }
        self.todo.extend(out);
        for (ordinal, (key, is_placed)) in self.unit.clone() {
            match key {
                None => self.place_master(),
                Some(key) => {
                    let node = is_placed.then_some("n2");
                    self.with(|app, _, at, out| app.found(ordinal, key.group, node, None, at, out));
                }
            }
        }
        if self.has_unit && !self.unit.contains_key(&MASTER) {
            // Its end is in the unit's record as well.
            let incarnation = self.incarnation;
            self.with(|app, terms, at, out| {
                app.ended(ReplicaId::new(MASTER, incarnation), YarnExitStatus(0), terms, at, out)
            });
        }
    }
}

/// One that has registered and runs.
fn running(submission: AppSubmission) -> Played {
    let mut played = Played::new(submission);
    played.run();
    assert_eq!(played.app().public_state(), PublicAppState::Accepted);
    assert_eq!(played.register(), Ok(Vec::new()));
    played.run();
    assert_eq!(played.app().public_state(), PublicAppState::Running);
    played
}

#[test]
fn an_application_runs_to_its_end() {
    let mut played = running(submission());
    assert_eq!(
        played.allocate(0, vec![ask(2)]).unwrap(),
        AllocateAnswer { response_id: 1, ..Default::default() }
    );
    played.run();
    played.place_all();
    let answer = played.allocate(1, Vec::new()).unwrap();
    let ids: Vec<String> = answer.allocated.iter().map(|container| container.id.to_string()).collect();
    assert_eq!(ids, ["container_1_0001_01_000002", "container_1_0001_01_000003"]);
    // The call did not see the last answer: it is given again. With response 2 given, 1 was seen last.
    assert_eq!(played.allocate(1, Vec::new()), Ok(answer));
    let wrong = played.allocate(7, Vec::new()).unwrap_err();
    assert!(wrong.exception().ends_with(".InvalidApplicationMasterRequestException"), "{wrong}");
    let n_done = played.done.len();
    assert_eq!(played.allocate(2, vec![ask(0)]).unwrap().response_id, 3);
    played.run();
    assert_eq!(played.done.len(), n_done, "a call that changes nothing has nothing done");
    played.with(|app, _, at, out| app.containers_mut().started(1, at, out));
    played.end(1, 0);
    let answer = played.allocate(3, Vec::new()).unwrap();
    assert_eq!(
        answer.completed.iter().map(|ended| (ended.id.number, ended.exit.0)).collect::<Vec<_>>(),
        [(2, 0)]
    );
    assert!(!played.done.contains(&YarnAction::Release(ID, vec![1])), "its master may not have heard of it");
    played.allocate(4, Vec::new()).unwrap();
    played.run();
    assert_eq!(played.done.last(), Some(&YarnAction::Release(ID, vec![1])));
    assert_eq!(played.finish(), Ok(false), "not recorded yet");
    played.run();
    assert_eq!(played.finish(), Ok(true));
    assert_eq!(played.app().public_state(), PublicAppState::Finished);
    played.end(MASTER, 0);
    played.run();
    assert_eq!(played.app().final_status(), FinalStatus::Succeeded);
    assert!(played.app().state.is_over() && played.unit.is_empty());
    assert!(
        played
            .allocate(5, Vec::new())
            .unwrap_err()
            .exception()
            .ends_with(".ApplicationAttemptNotFoundException")
    );
}

#[test]
fn a_failed_master_is_followed_by_another() {
    for keeps_containers in [false, true] {
        let mut played = running(AppSubmission { keeps_containers, ..submission() });
        played.allocate(0, vec![ask(2)]).unwrap();
        played.run();
        played.place_all();
        played.allocate(1, vec![ask(1)]).unwrap();
        played.run();
        played.end(MASTER, 1);
        played.run();
        assert_eq!(played.app().public_state(), PublicAppState::Accepted);
        assert_eq!(played.attempt().number, 2);
        // What has no place is asked for by the next one again.
        assert_eq!(played.unit.len(), if keeps_containers { 3 } else { 1 });
        let left = played.register().unwrap();
        assert_eq!(left.len(), if keeps_containers { 2 } else { 0 });
        played.run();
        assert_eq!(played.allocate(0, vec![ask(1)]).unwrap().completed, []);
        played.run();
        played.place_all();
        let new = played.allocate(1, Vec::new()).unwrap().allocated;
        assert_eq!(new.iter().map(|container| container.id.attempt.number).collect::<Vec<_>>(), [2]);
        played.end(MASTER, 1);
        played.run();
        assert_eq!(played.app().public_state(), PublicAppState::Failed);
        assert_eq!(played.app().final_status(), FinalStatus::Failed);
        assert!(played.app().diagnostics().contains("failed 2 times") && played.unit.is_empty());
    }
}

#[test]
fn what_nobody_can_help_does_not_count() {
    let mut played = running(submission());
    for _ in 0..5 {
        played.end(MASTER, -102);
        played.run();
        assert_eq!(played.app().public_state(), PublicAppState::Accepted);
        played.register().unwrap();
        played.run();
    }
    assert_eq!(played.attempt().number, 6);
}

#[test]
fn a_failed_attempt_is_followed_by_another() {
    let mut played = running(submission());
    let first = played.attempt();
    for n in [1, 2] {
        let failed =
            played.with(|app, terms, at, out| app.fail_attempt(first, "ann had it fail", terms, at, out));
        played.run();
        assert_eq!((played.attempt().number, played.app().public_state()), (2, PublicAppState::Accepted));
        assert_eq!(failed.err(), (n == 2).then_some(MasterRefusal::NoAttempt(first)));
    }
    assert!(played.app().diagnostics().contains("ann had it fail"));
}

#[test]
fn applications_are_killed_refused_and_moved() {
    let mut played = running(submission());
    played.allocate(0, vec![ask(3)]).unwrap();
    played.run();
    played.with(|app, terms, at, out| app.change_queue("dev".to_owned(), terms, at, out));
    played.run();
    assert!(played.done.contains(&YarnAction::MoveUnit(ID, "dev".to_owned())));
    assert_eq!(played.record.as_ref().unwrap().submission.queue, "dev");
    played.with(|app, terms, at, out| app.kill("ann killed it", terms, at, out));
    assert_eq!(played.app().public_state(), PublicAppState::Running, "until that is recorded");
    played.run();
    assert_eq!(
        (played.app().public_state(), played.app().final_status()),
        (PublicAppState::Killed, FinalStatus::Killed)
    );
    assert!(played.unit.is_empty() && played.app().diagnostics() == "ann killed it");
    let again = AppSubmission { queue: "dev".to_owned(), ..submission() };
    let mut out = Vec::new();
    assert_eq!(played.adapter.submit(ID, again, played.at(), &mut out), Ok(()));
    let taken = played.adapter.submit(ID, submission(), played.at(), &mut out);
    assert_eq!((taken, out), (Err(ClientRefusal::Taken(ID)), Vec::new()));

    let mut adapter = YarnAdapter::new(AdapterTerms::default());
    let (at, mut out) = (AdapterTime::default(), Vec::new());
    adapter.submit(ID, submission(), at, &mut out).unwrap();
    let refused = |app: &mut YarnApplication, terms| {
        app.saved(1, terms, at, &mut out);
        app.unit_answered(Err("no queue `prod`"), terms, at, &mut out);
        app.saved(2, terms, at, &mut out);
        (app.public_state(), app.diagnostics().to_owned())
    };
    let refused = adapter.with(ID, refused).unwrap();
    assert_eq!(refused, (PublicAppState::Failed, "no queue `prod`".to_owned()));
}

#[test]
fn what_takes_too_long_ends() {
    let mut played = running(AppSubmission { lifetime_ms: Some(2_000_000), ..submission() });
    played.allocate(0, vec![ask(1)]).unwrap();
    played.run();
    played.place_all();
    played.allocate(1, Vec::new()).unwrap();
    let tick = |played: &mut Played, now| {
        played.now = now;
        let (at, mut out) = (played.at(), Vec::new());
        played.adapter.tick(at, &mut out);
        played.todo.extend(out);
        played.run();
    };
    // Its master is heard of, and starts nothing.
    tick(&mut played, 500_000);
    played.allocate(2, Vec::new()).unwrap();
    tick(&mut played, 700_000);
    let ended = played.allocate(3, Vec::new()).unwrap().completed;
    assert_eq!(ended.iter().map(|ended| ended.exit).collect::<Vec<_>>(), [YarnExitStatus::ABORTED]);
    // Then nobody is.
    tick(&mut played, 1_400_000);
    assert_eq!((played.app().public_state(), played.attempt().number), (PublicAppState::Accepted, 2));
    played.register().unwrap();
    played.run();
    tick(&mut played, 1_900_000);
    played.allocate(0, Vec::new()).unwrap();
    tick(&mut played, 1_999_999);
    assert_eq!(played.app().public_state(), PublicAppState::Running);
    tick(&mut played, 2_001_000);
    assert_eq!(played.app().public_state(), PublicAppState::Killed);
}

#[test]
fn ends_are_told_again_after_a_restart() {
    let mut played = running(submission());
    played.allocate(0, vec![ask(1)]).unwrap();
    played.run();
    played.place_all();
    played.allocate(1, Vec::new()).unwrap();
    played.crash();
    let group = ask(1).key.group;
    played.with(|app, _, at, out| app.found(1, group, Some("n2:8041"), Some(YarnExitStatus(7)), at, out));
    played.run();
    assert_eq!(played.register(), Ok(Vec::new()));
    let completed = played.allocate(0, Vec::new()).unwrap().completed;
    assert_eq!(completed.iter().map(|ended| (ended.id.number, ended.exit.0)).collect::<Vec<_>>(), [(2, 7)]);
}

#[test]
fn priorities_and_lifetimes_are_recorded() {
    let mut played = running(submission());
    assert!(played.with(|app, _, _, out| app.change_priority(7, out)));
    assert!(!played.with(|app, _, _, out| app.change_priority(7, out)));
    played.with(|app, _, _, out| app.change_lifetime(Some(5), out));
    played.run();
    let recorded = &played.record.as_ref().unwrap().submission;
    assert_eq!((recorded.priority, recorded.lifetime_ms), (7, Some(5)));
}

#[test]
fn masters_register_again_after_a_restart() {
    let mut played = running(submission());
    played.allocate(0, vec![ask(2)]).unwrap();
    played.run();
    played.place_all();
    let known = played.allocate(1, vec![ask(1)]).unwrap().allocated;
    played.run();
    assert_eq!(played.unit.len(), 4);
    played.crash();
    played.run();
    assert_eq!(played.unit.len(), 3, "what waits is asked for again");
    let refused = played.allocate(2, Vec::new()).unwrap_err();
    assert!(refused.exception().ends_with(".ApplicationMasterNotRegisteredException"));
    assert_eq!(played.register().unwrap(), known);
    assert!(matches!(played.register(), Err(MasterRefusal::AlreadyRegistered(_))));
    played.run();
    assert_eq!(played.allocate(0, vec![ask(1)]).unwrap().response_id, 1);
    played.run();
    assert_eq!(played.unit.len(), 4);
    assert_eq!(played.launched.len(), 1);
}

#[test]
fn numbers_of_asks_survive_a_restart() {
    let mut played = running(submission());
    let numbered = |n, allocation_request_id| {
        let row = ask(n);
        AskRow { key: AskKey { allocation_request_id, ..row.key }, ..row }
    };
    played.allocate(0, vec![numbered(2, 7), numbered(1, 8), ask(1)]).unwrap();
    // The replicas are there, and their numbers not recorded yet.
    let grow = played.todo.pop_back().unwrap();
    played.todo.push_front(grow);
    assert!(played.step() && matches!(played.todo.back(), Some(YarnAction::PutRecord(..))));
    played.place_all();
    let numbers = |containers: Vec<AllocatedContainer>| -> Vec<i64> {
        containers.into_iter().map(|container| container.key.allocation_request_id).collect()
    };
    let shown = numbers(played.allocate(1, Vec::new()).unwrap().allocated);
    assert_eq!(shown, [NO_REQUEST_ID], "numbers that are not recorded are not shown");
    played.run();
    assert_eq!(numbers(played.allocate(2, Vec::new()).unwrap().allocated), [7, 7, 8]);
    played.crash();
    played.run();
    assert_eq!(numbers(played.register().unwrap()), [NO_REQUEST_ID, 7, 7, 8]);
    let ordinals: Vec<u32> = played.app().containers().iter().map(|(ordinal, _)| ordinal).collect();
    for ordinal in ordinals {
        played.end(ordinal, 0);
    }
    assert_eq!(AppRecord::of(played.app()).request_ids, BTreeMap::new());
}

#[test]
fn opportunistic_containers_have_ordinals_of_their_own() {
    let mut played = running(AppSubmission { keeps_containers: true, ..submission() });
    let row = ask(1);
    let group = AskGroup { execution: ExecutionType::Opportunistic, ..row.key.group.clone() };
    let opportunistic = AskRow { key: AskKey { group, ..row.key.clone() }, ..row };
    played.allocate(0, vec![ask(1), opportunistic.clone()]).unwrap();
    played.run();
    played.place_all();
    let ids = |containers: Vec<AllocatedContainer>| -> Vec<String> {
        containers.into_iter().map(|container| container.id.to_string()).collect()
    };
    let first = ids(played.allocate(1, Vec::new()).unwrap().allocated);
    assert_eq!(first, ["container_1_0001_01_000002", "container_1_0001_01_2147483650"]);
    played.crash();
    played.run();
    assert_eq!(ids(played.register().unwrap()), first);
    played.run();
    // What the next attempt asks for is its own.
    played.end(MASTER, 1);
    played.run();
    assert_eq!(ids(played.register().unwrap()), first);
    played.run();
    played.allocate(0, vec![ask(1), opportunistic]).unwrap();
    played.run();
    played.place_all();
    let second = ids(played.allocate(1, Vec::new()).unwrap().allocated);
    assert_eq!(second, ["container_1_0001_02_000003", "container_1_0001_02_2147483651"]);
    let released = first[1].parse().unwrap();
    let call = AllocateCall { seen: 2, release: vec![released], ..AllocateCall::default() };
    let attempt = played.attempt();
    played.with(|app, terms, at, out| app.allocate(attempt, &call, terms, at, out)).unwrap();
    played.run();
    assert!(played.done.contains(&YarnAction::Release(ID, vec![OPPORTUNISTIC + 1])));
}

proptest! {
    /// Wherever the adapter is killed, the application comes to its end, and nothing of its unit is left.
    #[test]
    fn a_killed_adapter_goes_on(crashes in prop::collection::vec(0usize..40, 0..4), fails: bool) {
        let mut played = Played::new(submission());
        let (mut n_steps, mut n_calls, mut seen, mut has_failed) = (0, 0, 0, false);
        while !played.adapter.get(ID).is_some_and(|app| app.state.is_over()) || !played.todo.is_empty() {
            prop_assert!(n_steps < 1_000, "no end: {:?}", played.app());
            n_steps += 1;
            if crashes.contains(&n_steps) {
                played.crash();
            }
            if played.step() {
                continue;
            }
            played.place_all();
            // A master that was started does what masters do.
            if !played.unit.contains_key(&MASTER) || !played.launched.contains(&played.attempt()) {
                continue;
            }
            match played.allocate(seen, vec![ask(if n_calls < 3 { 2 } else { 0 })]) {
                Ok(answer) => (seen, n_calls) = (answer.response_id, n_calls + 1),
                Err(MasterRefusal::NotRegistered(_)) if n_calls < 6 => {
                    seen = 0;
                    prop_assert!(played.register().is_ok());
                }
                Err(_) => {}
            }
            if fails && n_calls == 2 && !has_failed {
                has_failed = true;
                played.end(MASTER, 1);
            } else if n_calls >= 6 {
                match played.finish() {
                    Ok(true) => played.end(MASTER, 0),
                    Ok(false) => {}
                    Err(_) => {
                        seen = 0;
                        let _again = played.register();
                    }
                }
            }
        }
        prop_assert_eq!(played.app().public_state(), PublicAppState::Finished);
        prop_assert_eq!(played.app().final_status(), FinalStatus::Succeeded);
        prop_assert!(played.unit.is_empty());
        prop_assert_eq!(played.attempt().number, if fails { 2 } else { 1 });
    }
}
