//! What is left of an earlier agent, or of another store.

use super::*;

#[test]
fn what_an_earlier_agent_left_running() {
    check(&[
        (
            "it goes on, and its assignment starts nothing",
            &[Adopt(A, 3), Assign(A, 3), Assign(B, 0), Reopen, Ended(A, 3, 0)],
            &["adopted true", "start b0", "open[a3:Running+2 b0:Starting]", "keep a3", "#1 a3:Succeeded+2"],
        ),
        (
            "what is to leave ends before anything starts",
            &[Adopt(A, 0), Stop(A, 0), Assign(B, 0), Assign(A, 1), Ended(A, 0, 143), Started(B, 0)],
            &["adopted true", "stop a0 9", "stop a0 0", "start b0", "start a1", "#1 b0:Running"],
        ),
        (
            "its end is reported, and what was held starts",
            &[Adopt(A, 0), Stop(A, 0), Assign(B, 0), Ended(A, 0, 143)],
            &["adopted true", "stop a0 9", "start b0", "keep a0", "#1 a0:Stopped+2"],
        ),
        (
            "what state has asked for since holds nothing when it leaves",
            &[Adopt(A, 0), Assign(A, 0), Stop(A, 0), Assign(B, 0)],
            &["adopted true", "stop a0 9", "start b0"],
        ),
        (
            "an end that is known, or a later incarnation, is what counts",
            &[Stop(A, 2), Adopt(A, 2), Adopt(A, 3), Adopt(A, 1)],
            &["keep a2", "#1 a2:Stopped", "adopted false", "adopted true", "adopted false"],
        ),
    ]);
    let mut life = NodeLife::new(RestartBackoff { first_ms: 1, max_ms: 3, reset_ms: 600 });
    let mut out = Vec::new();
    let again = RunOrders { restart_policy: Always, max_restarts: 2, stop_grace_ms: 7, ..orders() };
    let left = LeftRunning { restarts: 5, in_row: 1, started_ms: 77 };
    assert!(life.adopt(A, 0, again.clone(), left, Millis(0)));
    assert!(life.adopt(B, 0, again, left, Millis(0)));
    let end = RunEnd { reason: Some(RunEndReason::Lost), started_ms: 77, ended_ms: 99 };
    life.ended(A, 0, HowEnded { exit_code: 137, end, refused: None }, None, Millis(1), &mut out);
    assert!(matches!(out[..], [AgentAction::Wait { restarts: 6, .. }]), "it starts again in place: {out:?}");
    out.clear();
    life.stop_with_agent(&mut out);
    let stop = AgentAction::Stop { key: B, incarnation: 0, grace_ms: 7, reason: RunEndReason::AgentStopped };
    assert!(
        matches!(out[0], AgentAction::Keep(RunStatus { phase: Phase::Stopped, .. })),
        "it waited: {out:?}"
    );
    assert_eq!(out[1..], [stop]);
    life.ended(B, 0, HowEnded { exit_code: 0, end, refused: None }, None, Millis(2), &mut out);
    assert!(matches!(out[2], AgentAction::Keep(RunStatus { end: said, .. }) if said == end), "{out:?}");
    assert_eq!(life.live().n(), 0);
}

#[test]
fn what_was_left_before_it_ran_starts_when_it_runs() {
    let mut life = NodeLife::new(RestartBackoff::default());
    assert!(life.adopt(A, 0, orders(), LeftRunning::default(), Millis(0)));
    assert_eq!(life.open()[0].phase, Phase::Starting, "its image is on its way");
    life.started(A, 0, 77, Millis(5));
    assert_eq!(
        (life.open()[0].phase, life.live_run(A, 0).and_then(LocalRun::running_since)),
        (Phase::Running, Some(Millis(5)))
    );
}

#[test]
fn another_store() {
    check(&[
        (
            "what is left over ends unheard, and nothing starts before it has",
            &[Assign(A, 0), Started(A, 0), LeftOver(A, 0), OtherStore, Assign(B, 0), Ended(A, 0, 143)],
            &["start a0", "#1 a0:Running", "stop a0 5", "start b0"],
        ),
        (
            "what comes under the name of one that is left over is another",
            &[
                Assign(A, 0),
                Started(A, 0),
                LeftOver(A, 0),
                OtherStore,
                Assign(A, 0),
                Started(A, 0),
                Ended(A, 0, 1),
                Started(A, 0),
                Ended(A, 0, 0),
            ],
            &[
                "start a0",
                "#1 a0:Running",
                "stop a0 5",
                "start a0",
                "#2 a0:Running",
                "keep a0",
                "#3 a0:Succeeded",
            ],
        ),
        (
            "an end of another store is forgotten, acknowledged or not",
            &[
                Assign(A, 0),
                Ended(A, 0, 0),
                Assign(B, 0),
                Ended(B, 0, 0),
                Ack(1),
                LeftOver(B, 0),
                OtherStore,
                Assign(A, 0),
                Assign(B, 0),
            ],
            &[
                "start a0",
                "keep a0",
                "#1 a0:Succeeded",
                "start b0",
                "keep b0",
                "#2 b0:Succeeded",
                "forget a0",
                "forget b0",
                "start a0",
                "start b0",
            ],
        ),
        (
            "what waits for the end of what is left over may be stopped, and then it never starts",
            &[Assign(A, 0), LeftOver(A, 0), OtherStore, Assign(B, 0), Stop(B, 0), Ended(A, 0, 0)],
            &["start a0", "stop a0 5", "keep b0", "#1 b0:Stopped"],
        ),
        (
            "what the other store knows too goes on, and what is left over is not said to run",
            &[
                Assign(A, 0),
                Started(A, 0),
                Assign(B, 0),
                Started(B, 0),
                LeftOver(B, 0),
                OtherStore,
                Reopen,
                Ended(A, 0, 0),
            ],
            &[
                "start a0",
                "#1 a0:Running",
                "start b0",
                "#2 b0:Running",
                "stop b0 5",
                "open[a0:Running]",
                "#1 a0:Running",
                "keep a0",
                "#2 a0:Succeeded",
            ],
        ),
        (
            "what waits to be started again is gone at once",
            &[
                AssignAgain(A, Always, 3, 0),
                Started(A, 0),
                Ended(A, 0, 0),
                LeftOver(A, 0),
                OtherStore,
                Assign(B, 0),
                Again(A, 1),
            ],
            &["start a0", "#1 a0:Running", "wait a0+1 1", "#2 a0:Starting+1", "start b0"],
        ),
    ]);
}
