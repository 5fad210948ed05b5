//! Masters that come early, that cannot be started, and that fail.

use super::*;
use crate::ids::YarnAttemptId;

fn attempt(number: u32) -> YarnAttemptId {
    YarnAttemptId { application: ID, number }
}

fn unstarted(why: &'static str, scope: LaunchFailureScope, has_other_node: bool) -> LaunchFailure<'static> {
    LaunchFailure { why, scope, has_other_node }
}

/// One whose masters are placed on these nodes in turn, each of which refuses to start it.
fn refused(nodes: &[&'static str], failure: LaunchFailure<'static>) -> Played {
    let mut played = Played::new(submission());
    (played.nodes, played.launch) = (nodes.to_vec(), Err(failure));
    played.run();
    played
}

impl Played {
    fn register_as(&mut self, number: u32) -> Result<Vec<AllocatedContainer>, MasterRefusal> {
        let registration = Registration::default();
        self.with(|app, terms, at, out| app.register(attempt(number), registration, terms, at, out))
    }
}

#[test]
fn a_master_that_comes_before_its_attempt_may_come_again() {
    for master in [Some(group(1)), None] {
        let mut played = Played::new(AppSubmission { master, ..submission() });
        let mut n_early = 0;
        // It calls after every step of what its submission leads to.
        loop {
            match played.register_as(1) {
                Err(MasterRefusal::NotYet(early)) => assert_eq!(early, attempt(1)),
                other => {
                    assert_eq!(other, Ok(Vec::new()));
                    break;
                }
            }
            n_early += 1;
            assert!(played.step(), "{:?}", played.app());
        }
        assert!(n_early >= 3, "{n_early}");
        played.run();
        assert_eq!(played.app().public_state(), PublicAppState::Running);
        assert!(matches!(played.register_as(1), Err(MasterRefusal::AlreadyRegistered(_))));
        assert!(matches!(played.register_as(2), Err(MasterRefusal::NoAttempt(_))), "none follows");
    }
}

#[test]
fn a_master_that_comes_before_the_next_attempt_may_come_again() {
    let mut played = running(submission());
    played.end(MASTER, 1);
    while let Err(refusal) = played.register_as(2) {
        assert_eq!(refusal, MasterRefusal::NotYet(attempt(2)));
        assert!(refusal.exception().ends_with(".RetriableException"));
        assert!(played.step(), "{:?}", played.app());
    }
    assert!(matches!(played.register_as(1), Err(MasterRefusal::NoAttempt(_))), "another one has followed");
    // After the last one none follows.
    played.end(MASTER, 1);
    played.run();
    assert!(matches!(played.register_as(3), Err(MasterRefusal::NoAttempt(_))));
    assert_eq!(played.app().public_state(), PublicAppState::Failed);
}

#[test]
fn after_a_restart_a_master_that_has_not_registered_may() {
    let mut played = Played::new(AppSubmission { master: None, ..submission() });
    while played.app().attempts().is_empty() {
        assert!(played.step());
    }
    // The attempt is not recorded yet: it is another one after the restart.
    played.crash();
    assert_eq!(played.register_as(1), Err(MasterRefusal::NotYet(attempt(1))));
    played.run();
    assert_eq!(played.register_as(1), Ok(Vec::new()));
}

#[test]
fn an_attempt_that_waits_for_a_place_cannot_be_failed_and_one_that_has_one_can() {
    let fail = |played: &mut Played| {
        played.with(|app, terms, at, out| app.fail_attempt(attempt(1), "by ann", terms, at, out))
    };
    let mut played = Played::new(submission());
    assert!(played.step(), "its record is written");
    played.with(|app, terms, at, out| app.unit_answered(Ok(()), terms, at, out));
    assert_eq!(fail(&mut played), Err(MasterRefusal::NoPlace(attempt(1))));
    played.with(|app, terms, at, out| app.placed(ReplicaId::new(MASTER, 0), "n1", "r1", terms, at, out));
    played.unit.insert(MASTER, (None, true));
    played.has_unit = true;
    assert_eq!(fail(&mut played), Ok(()));
    played.run();
    assert!(played.done.contains(&YarnAction::StopMaster(attempt(1))), "its place is given back");
    assert_eq!(played.attempt(), attempt(2));
}

#[test]
fn a_place_in_which_no_master_can_be_started_is_given_back_at_once() {
    // It is not reached, and there is no other node: each counts.
    let played = refused(&["n1"], unstarted("n1 does not answer", LaunchFailureScope::Late, false));
    assert_eq!(played.app().public_state(), PublicAppState::Failed);
    let stopped = |number| YarnAction::StopMaster(attempt(number));
    let next = YarnAction::NextMaster(ID);
    let order: Vec<&YarnAction> =
        played.done.iter().filter(|done| [&stopped(1), &stopped(2), &next].contains(done)).collect();
    assert_eq!(order, [&stopped(1), &next, &stopped(2)]);
    let said = played.app().diagnostics().to_owned();
    assert!(said.contains("appattempt_1_0001_000002 was not started: n1 does not answer"), "{said}");
    assert!(said.ends_with("Application failed 2 times (global limit 2)"), "{said}");
}

#[test]
fn what_no_node_can_start_is_not_tried_again() {
    let why = "its launch context cannot be read";
    for (scope, has_other_node) in [(LaunchFailureScope::Everywhere, true), (LaunchFailureScope::Node, false)]
    {
        let played = refused(&["n1", "n2"], unstarted(why, scope, has_other_node));
        assert_eq!((played.app().public_state(), played.attempt().number), (PublicAppState::Failed, 1));
        let said = played.app().diagnostics();
        assert!(
            said.contains(why) && said.ends_with("no node starts its master, which was to run on n1"),
            "{said}"
        );
    }
}

#[test]
fn what_one_node_does_not_start_goes_elsewhere_and_uses_up_no_attempt() {
    let one = AppSubmission { max_attempts: 1, ..submission() };
    let mut played = Played::new(one);
    played.nodes = vec!["n1", "n2"];
    played.launch = Err(unstarted("n1 has no such user", LaunchFailureScope::Node, true));
    while played.app().attempts().current().is_none_or(|attempt| attempt.number == 1) {
        assert!(played.step());
    }
    played.launch = Ok(());
    played.run();
    assert_eq!((played.app().public_state(), played.attempt().number), (PublicAppState::Accepted, 2));
    assert_eq!(played.app().attempts().failed_nodes().into_iter().collect::<Vec<_>>(), ["n1"]);
    played.register().unwrap();
    played.run();
    // The only attempt that it may have has run now.
    played.end(MASTER, 1);
    played.run();
    assert_eq!((played.app().public_state(), played.attempt().number), (PublicAppState::Failed, 2));
}

#[test]
fn what_several_nodes_do_not_start_has_failed_whatever_attempts_it_has_left() {
    let why = "the resource app.jar cannot be fetched";
    let nodes = ["n1", "n2", "n3", "n4"];
    let played = refused(&nodes, unstarted(why, LaunchFailureScope::Node, true));
    assert_eq!((played.app().public_state(), played.attempt().number), (PublicAppState::Failed, 3));
    let said = played.app().diagnostics();
    assert!(said.contains(&format!("appattempt_1_0001_000003 was not started: {why}")), "{said}");
    assert!(said.ends_with("no node starts its master, which was to run on n1, n2, n3"), "{said}");
    // One that is reached on no node keeps the attempts that it has: the third one on other nodes counts, and then all begins anew.
    let played = refused(&nodes, unstarted("no answer", LaunchFailureScope::Late, true));
    assert_eq!((played.app().public_state(), played.attempt().number), (PublicAppState::Failed, 6));
    assert_eq!(AppRecord::of(played.app()).failed.len(), 2);
}

#[test]
fn a_master_whose_command_never_ran_goes_elsewhere_and_a_restart_forgets_nothing() {
    let never_ran = |played: &mut Played| {
        let (incarnation, why) = (played.incarnation, "app.jar is not there");
        played.unit.remove(&MASTER);
        let failure = unstarted(why, LaunchFailureScope::Node, true);
        played.with(|app, terms, at, out| app.master_never_ran(incarnation, failure, terms, at, out));
    };
    let mut played = Played::new(submission());
    played.nodes = vec!["n1", "n2", "n3"];
    for number in 1..=3 {
        played.run();
        assert_eq!(
            (played.app().public_state(), played.attempt().number),
            (PublicAppState::Accepted, number)
        );
        never_ran(&mut played);
        // Its record says so, and no more is done before the adapter is killed.
        assert!(matches!(played.todo.front(), Some(YarnAction::PutRecord(..))), "{:?}", played.todo);
        played.record = Some(AppRecord::of(played.app()));
        played.crash();
    }
    played.run();
    assert_eq!((played.app().public_state(), played.attempt().number), (PublicAppState::Failed, 3));
    let said = played.app().diagnostics();
    assert!(said.ends_with("no node starts its master, which was to run on n1, n2, n3"), "{said}");
}

#[test]
fn nodes_on_which_masters_failed_are_named_and_so_is_how_the_last_one_ended() {
    let mut played = running(submission());
    assert!(played.app().attempts().failed_nodes().is_empty());
    // A preempted master says nothing of its node.
    played.end(MASTER, -102);
    played.run();
    assert!(played.app().attempts().failed_nodes().is_empty());
    played.register().unwrap();
    played.run();
    played.end(MASTER, 1);
    played.run();
    assert_eq!(played.app().attempts().failed_nodes().into_iter().collect::<Vec<_>>(), ["n1"]);
    played.crash();
    assert_eq!(played.app().attempts().failed_nodes().len(), 1, "that is recorded");
    played.run();
    played.end(MASTER, 3);
    played.run();
    let said = played.app().diagnostics();
    let how = "failed 3 times (global limit 2) due to AM Container for appattempt_1_0001_000003 exited with exitCode: 3";
    assert!(said.ends_with(how), "{said}");
}

#[test]
fn pages_of_masters_move() {
    let mut played = running(submission());
    let attempt = played.attempt();
    let url = Some("http://n1:4040".to_owned());
    let call = AllocateCall { tracking_url: url, ..AllocateCall::default() };
    played.with(|app, terms, at, out| app.allocate(attempt, &call, terms, at, out)).unwrap();
    played.run();
    let version = played.record.as_ref().unwrap().version;
    let call = AllocateCall { seen: 1, ..call };
    played.with(|app, terms, at, out| app.allocate(attempt, &call, terms, at, out)).unwrap();
    played.run();
    let recorded = played.record.as_ref().unwrap();
    let registration = recorded.attempts[0].registration.as_ref().unwrap();
    assert_eq!((registration.tracking_url.as_str(), recorded.version), ("http://n1:4040", version));
}
