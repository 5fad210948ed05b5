use godel_domain::{
    allocation::{DeviceSet, ZoneSet},
    unit::RestartPolicy,
};

use super::*;
use crate::{
    RunWeight, StatusReport,
    ended_runs::N_REMEMBERED_MAX,
    reports::{N_REPORTS_MAX, N_STATUSES_MAX},
};

mod disowned;
mod left;

const A: RunKey = RunKey { unit: 1, ordinal: 0 };
const B: RunKey = RunKey { unit: 1, ordinal: 1 };

/// What happens to a node, as text; `check` compares what it does and says.
#[derive(Clone, Copy, Debug)]
enum Input {
    Assign(RunKey, u32),
    /// An earlier agent has left it running.
    Adopt(RunKey, u32),
    /// With a policy, a limit of restarts in a row, and restarts so far.
    AssignAgain(RunKey, RestartPolicy, u32, u32),
    /// It stops after so long without contact.
    AssignTied(RunKey, u32),
    /// The time is.
    At(u64),
    /// Its pause is over.
    Again(RunKey, u32),
    Stop(RunKey, u32),
    Started(RunKey, u32),
    Ended(RunKey, u32, i32),
    Ack(u64),
    Reopen,
    /// It is left over of another store.
    LeftOver(RunKey, u32),
    /// What is here now is another store's.
    OtherStore,
    /// Without contact for so long.
    Alone(u64),
}

use Input::{
    Ack, Adopt, Again, Alone, Assign, AssignAgain, AssignTied, At, Ended, LeftOver, OtherStore, Reopen,
    Started, Stop,
};
use RestartPolicy::{Always, Never, OnFailure};

fn name(key: RunKey, incarnation: u32) -> String {
    format!("{}{incarnation}", if key == A { 'a' } else { 'b' })
}

fn weight(cpu_milli: i64, memory: i64) -> RunWeight {
    RunWeight { cpu_milli, memory, network: 0 }
}

fn orders() -> RunOrders<()> {
    RunOrders { weight: weight(1, 2), ..RunOrders::default() }
}

fn say(status: &RunStatus) -> String {
    let restarts = if status.restarts == 0 { String::new() } else { format!("+{}", status.restarts) };
    format!("{}:{:?}{restarts}", name(status.key, status.incarnation), status.phase)
}

fn how(exit_code: i32) -> HowEnded {
    HowEnded { exit_code, ..HowEnded::default() }
}

fn run(inputs: &[Input]) -> Vec<String> {
    let mut life = NodeLife::new(RestartBackoff { first_ms: 1, max_ms: 3, reset_ms: 600 });
    let mut said = Vec::new();
    let mut now = Millis(0);
    for input in inputs {
        let mut out = Vec::new();
        match *input {
            Assign(key, incarnation) => life.assign(key, incarnation, orders(), &mut out),
            AssignAgain(key, restart_policy, max_restarts, restarts) => {
                let orders = RunOrders { restart_policy, max_restarts, restarts, ..orders() };
                life.assign(key, 0, orders, &mut out);
            }
            AssignTied(key, stop_after_ms) => {
                life.assign(key, 0, RunOrders { stop_after_ms, ..orders() }, &mut out);
            }
            Adopt(key, incarnation) => {
                let left = LeftRunning { restarts: 2, in_row: 1, started_ms: 77 };
                let adopted = life.adopt(key, incarnation, orders(), left, now);
                said.push(format!("adopted {adopted}"));
            }
            At(ms) => now = Millis(ms),
            Again(key, restarts) => life.restart(key, 0, restarts, &mut out),
            Stop(key, incarnation) => life.stop(key, incarnation, 9, &mut out),
            Started(key, incarnation) => life.started(key, incarnation, 0, now),
            Ended(key, incarnation, exit_code) => {
                life.ended(key, incarnation, how(exit_code), None, now, &mut out);
            }
            Ack(sequence) => life.acknowledged(sequence, &mut out),
            Reopen => {
                let all: Vec<String> = life.open().iter().map(say).collect();
                said.push(format!("open[{}]", all.join(" ")));
            }
            LeftOver(key, incarnation) => life.abandon(key, incarnation, 5, &mut out),
            OtherStore => life.change_store(),
            Alone(alone_ms) => {
                if let Some(next) = life.stop_without_contact(alone_ms, &mut out) {
                    said.push(format!("next {next}"));
                }
            }
        }
        said.extend(out.iter().map(|action| match action {
            AgentAction::Start(key, incarnation) => format!("start {}", name(*key, *incarnation)),
            AgentAction::Wait { key, incarnation, restarts, after_ms } => {
                format!("wait {}+{restarts} {after_ms}", name(*key, *incarnation))
            }
            AgentAction::Stop { key, incarnation, grace_ms, reason: _ } => {
                format!("stop {} {grace_ms}", name(*key, *incarnation))
            }
            AgentAction::Keep(status) => format!("keep {}", name(status.key, status.incarnation)),
            AgentAction::Forget(status) => format!("forget {}", name(status.key, status.incarnation)),
            other => format!("{other:?}"),
        }));
        while let Some(StatusReport { sequence, statuses }) = life.reports_mut().next(N_STATUSES_MAX) {
            for status in statuses {
                said.push(format!("#{sequence} {}", say(&status)));
            }
        }
    }
    said
}

#[test]
fn lives() {
    let cases: &[(&str, &[Input], &[&str])] = &[
        (
            "runs to its end, is acknowledged and forgotten",
            &[Assign(A, 0), Started(A, 0), Ended(A, 0, 0), Ack(2), Reopen],
            &["start a0", "#1 a0:Running", "keep a0", "#2 a0:Succeeded", "forget a0", "open[]"],
        ),
        (
            "a failure is told from a success and from a stop",
            &[Assign(A, 0), Ended(A, 0, 3), Assign(B, 0), Started(B, 0), Stop(B, 0), Ended(B, 0, 143)],
            &[
                "start a0",
                "keep a0",
                "#1 a0:Failed",
                "start b0",
                "#2 b0:Running",
                "stop b0 9",
                "keep b0",
                "#3 b0:Stopped",
            ],
        ),
        (
            "copies of an assignment, of a stop and of an end change nothing",
            &[
                Assign(A, 0),
                Assign(A, 0),
                Started(A, 0),
                Started(A, 0),
                Stop(A, 0),
                Stop(A, 0),
                Ended(A, 0, 0),
                Ended(A, 0, 1),
                Assign(A, 0),
            ],
            &["start a0", "#1 a0:Running", "stop a0 9", "keep a0", "#2 a0:Stopped"],
        ),
        (
            "an assignment that comes after the end was acknowledged starts nothing and is answered",
            &[Assign(A, 0), Ended(A, 0, 0), Ack(1), Assign(A, 0)],
            &["start a0", "keep a0", "#1 a0:Succeeded", "forget a0", "#2 a0:Succeeded"],
        ),
        (
            "a stop of something unknown is answered, and its late assignment starts nothing",
            &[Stop(A, 0), Assign(A, 0), Ack(1), Assign(A, 0)],
            &["keep a0", "#1 a0:Stopped", "forget a0", "#2 a0:Stopped"],
        ),
        (
            "a newer incarnation replaces an older one, which ends unheard, and before it",
            &[
                Assign(A, 0),
                Started(A, 0),
                Assign(A, 1),
                Assign(B, 0),
                Assign(A, 2),
                Ended(A, 0, 0),
                Assign(A, 0),
                Started(A, 2),
            ],
            &["start a0", "#1 a0:Running", "stop a0 0", "start b0", "start a2", "#2 a2:Running"],
        ),
        (
            "what was not acknowledged is said again in a new session, in order",
            &[Assign(A, 0), Started(A, 0), Ended(A, 0, 0), Ack(1), Reopen, Ack(1), Ack(1), Reopen],
            &[
                "start a0",
                "#1 a0:Running",
                "keep a0",
                "#2 a0:Succeeded",
                "open[a0:Succeeded]",
                "#1 a0:Succeeded",
                "forget a0",
                "open[]",
            ],
        ),
        (
            "a session opens with everything that runs",
            &[Assign(B, 2), Assign(A, 0), Started(A, 0), Reopen],
            &["start b2", "start a0", "#1 a0:Running", "open[a0:Running b2:Starting]", "#1 a0:Running"],
        ),
    ];
    check(cases);
}

fn check(cases: &[(&str, &[Input], &[&str])]) {
    for (what, inputs, expected) in cases {
        assert_eq!(run(inputs), *expected, "{what}");
    }
}

#[test]
fn what_is_left_over_counts_until_it_has_ended() {
    let mut life = NodeLife::<()>::new(RestartBackoff::default());
    let mut out = Vec::new();
    life.assign(A, 0, orders(), &mut out);
    life.assign(B, 0, orders(), &mut out);
    life.abandon(A, 0, 0, &mut out);
    life.change_store();
    assert_eq!((life.live().n(), life.live().weights().guaranteed), (2, weight(2, 4)));
    assert!(life.has_left_over());
    life.ended(A, 0, how(0), None, Millis(1), &mut out);
    assert_eq!((life.live().n(), life.live().weights().guaranteed), (1, weight(1, 2)));
    assert!(!life.has_left_over());
}

#[test]
fn without_contact() {
    check(&[
        (
            "what has to stop does, once, at its time; everything else goes on",
            &[
                Assign(A, 0),
                AssignTied(B, 50),
                Started(A, 0),
                Started(B, 0),
                Alone(49),
                Alone(50),
                Alone(51),
                Ended(B, 0, 0),
            ],
            &[
                "start a0",
                "start b0",
                "#1 a0:Running",
                "#2 b0:Running",
                "next 50",
                "stop b0 0",
                "keep b0",
                "#3 b0:Stopped",
            ],
        ),
        (
            "it remembers over a lost session, and the next is the earliest of the rest",
            &[
                AssignTied(A, 90),
                AssignTied(B, 50),
                Reopen,
                AssignTied(B, 0),
                Alone(10),
                Alone(60),
                Alone(90),
            ],
            &[
                "start a0",
                "start b0",
                "open[a0:Starting b0:Starting]",
                "next 50",
                "next 90",
                "stop b0 0",
                "stop a0 0",
            ],
        ),
        (
            "what is over needs no contact",
            &[AssignTied(A, 50), Ended(A, 0, 0), Alone(60)],
            &["start a0", "keep a0", "#1 a0:Succeeded"],
        ),
    ]);
}

#[test]
fn restarts() {
    check(&[
        (
            "a failure starts again in place up to its limit, and is then final",
            &[
                AssignAgain(A, OnFailure, 2, 0),
                Started(A, 0),
                Ended(A, 0, 1),
                Again(A, 1),
                Started(A, 0),
                Ended(A, 0, 1),
                Again(A, 2),
                Started(A, 0),
                Ended(A, 0, 1),
            ],
            &[
                "start a0",
                "#1 a0:Running",
                "wait a0+1 1",
                "#2 a0:Starting+1",
                "start a0",
                "#3 a0:Running+1",
                "wait a0+2 2",
                "#4 a0:Starting+2",
                "start a0",
                "#5 a0:Running+2",
                "keep a0",
                "#6 a0:Failed+2",
            ],
        ),
        (
            "never, and on-failure after exit code 0, start nothing again",
            &[AssignAgain(A, Never, 2, 0), Ended(A, 0, 1), AssignAgain(B, OnFailure, 2, 0), Ended(B, 0, 0)],
            &["start a0", "keep a0", "#1 a0:Failed", "start b0", "keep b0", "#2 b0:Succeeded"],
        ),
        (
            "always starts again after every end, also without a start that worked; its last end counts",
            &[AssignAgain(A, Always, 1, 0), Ended(A, 0, 0), Again(A, 1), Ended(A, 0, 0)],
            &["start a0", "wait a0+1 1", "#1 a0:Starting+1", "start a0", "keep a0", "#2 a0:Succeeded+1"],
        ),
        (
            "one that ran for long begins a new row, and its count goes on",
            &[
                AssignAgain(A, Always, 1, 0),
                Ended(A, 0, 1),
                Again(A, 1),
                Started(A, 0),
                At(600),
                Ended(A, 0, 1),
                Again(A, 2),
                Started(A, 0),
                At(1_199),
                Ended(A, 0, 1),
            ],
            &[
                "start a0",
                "wait a0+1 1",
                "#1 a0:Starting+1",
                "start a0",
                "#2 a0:Running+1",
                "wait a0+2 1",
                "#3 a0:Starting+2",
                "start a0",
                "#4 a0:Running+2",
                "keep a0",
                "#5 a0:Failed+2",
            ],
        ),
    ]);
}

#[test]
fn restarts_and_everything_else() {
    check(&[
        (
            "a stop while it waits is its end at once, and nothing starts it again",
            &[AssignAgain(A, Always, 9, 0), Ended(A, 0, 1), Stop(A, 0), Again(A, 1), Ended(A, 0, 1)],
            &["start a0", "wait a0+1 1", "#1 a0:Starting+1", "keep a0", "#2 a0:Stopped+1"],
        ),
        (
            "an end that was asked for starts nothing again",
            &[AssignAgain(A, Always, 9, 0), Started(A, 0), Stop(A, 0), Ended(A, 0, 143)],
            &["start a0", "#1 a0:Running", "stop a0 9", "keep a0", "#2 a0:Stopped"],
        ),
        (
            "a lost session loses no restart: the next opens with its count",
            &[AssignAgain(A, Always, 9, 0), Ended(A, 0, 1), Reopen, Again(A, 1), Started(A, 0), Reopen],
            &[
                "start a0",
                "wait a0+1 1",
                "#1 a0:Starting+1",
                "open[a0:Starting+1]",
                "#1 a0:Starting+1",
                "start a0",
                "#2 a0:Running+1",
                "open[a0:Running+1]",
                "#1 a0:Starting+1",
                "#1 a0:Running+1",
            ],
        ),
        (
            "an agent that was started anew counts on, and against the limit",
            &[AssignAgain(A, Always, 3, 2), Ended(A, 0, 1), Again(A, 2), Again(A, 3), Ended(A, 0, 1)],
            &["start a0", "wait a0+3 3", "#1 a0:Starting+3", "start a0", "keep a0", "#2 a0:Failed+3"],
        ),
        (
            "a copy of the assignment while it waits, a late pause and a newer incarnation change its life no more",
            &[
                AssignAgain(A, Always, 9, 0),
                Ended(A, 0, 1),
                AssignAgain(A, Always, 9, 0),
                Assign(A, 1),
                Again(A, 1),
            ],
            &["start a0", "wait a0+1 1", "#1 a0:Starting+1", "start a1"],
        ),
    ]);
}

#[test]
fn weights_follow_what_lives() {
    let mut life = NodeLife::<()>::new(RestartBackoff::default());
    let mut out = Vec::new();
    let weighs = |cpu_milli, memory| RunOrders { weight: weight(cpu_milli, memory), ..orders() };
    life.assign(A, 0, weighs(5, 7), &mut out);
    life.assign(B, 0, weighs(1, 1), &mut out);
    life.ended(B, 0, how(0), None, Millis(0), &mut out);
    assert_eq!((life.live().n(), life.live().weights().guaranteed), (1, weight(5, 7)));
    life.assign(A, 1, weighs(2, 2), &mut out);
    assert_eq!(
        (life.live().n(), life.live().weights().guaranteed),
        (2, weight(7, 9)),
        "the older one has yet to end"
    );
    life.ended(A, 0, how(143), None, Millis(0), &mut out);
    assert_eq!((life.live().n(), life.live().weights().guaranteed), (1, weight(2, 2)));
}

#[test]
fn reports_on_their_way_and_memories_are_bounded() {
    let mut life = NodeLife::<()>::new(RestartBackoff::default());
    let mut out = Vec::new();
    for ordinal in 0..200 {
        let key = RunKey { unit: 1, ordinal };
        life.assign(key, 0, orders(), &mut out);
        life.ended(key, 0, how(0), None, Millis(0), &mut out);
        life.reports_mut().next(N_STATUSES_MAX);
    }
    assert_eq!(life.reports().in_flight.len(), N_REPORTS_MAX);
    life.acknowledged(u64::MAX, &mut out);
    while life.reports_mut().next(N_STATUSES_MAX).is_some() {}
    life.acknowledged(u64::MAX, &mut out);
    assert!(life.runs.is_empty() && !life.reports().is_waiting());
    assert_eq!(life.remembered.len(), N_REMEMBERED_MAX);
}

#[test]
fn what_a_journal_kept_is_reported_first() {
    let mut life = NodeLife::<()>::new(RestartBackoff::default());
    let end = RunEnd { reason: Some(RunEndReason::Exited), started_ms: 5, ended_ms: 9 };
    let ended = RunStatus {
        key: A,
        incarnation: 3,
        phase: Phase::Failed,
        exit_code: 2,
        restarts: 4,
        refused: None,
        end,
    };
    life.restore(ended);
    assert_eq!(life.open(), [ended]);
    assert_eq!(
        life.reports_mut().next(N_STATUSES_MAX),
        Some(StatusReport { sequence: 1, statuses: vec![ended] })
    );
}

#[test]
fn room_made_for_a_burst_goes_with_it() {
    let mut life = NodeLife::<()>::new(RestartBackoff::default());
    let mut out = Vec::new();
    let keys: Vec<RunKey> = (0..1000).map(|ordinal| RunKey { unit: 7, ordinal }).collect();
    for key in &keys {
        life.assign(*key, 0, orders(), &mut out);
        life.started(*key, 0, 0, Millis(1));
        life.ended(*key, 0, how(0), None, Millis(2), &mut out);
    }
    assert!(life.runs.capacity() >= 1000 && life.reports().waiting.capacity() >= 2000);
    let StatusReport { sequence, statuses } = life.reports_mut().next(N_STATUSES_MAX).unwrap();
    assert_eq!((statuses.len(), life.reports().waiting.capacity()), (2000, 0));
    life.assign(A, 0, orders(), &mut out);
    life.acknowledged(sequence, &mut out);
    assert_eq!((life.runs.len(), life.live_run(A, 0).is_some()), (1, true));
    assert!(life.runs.capacity() <= N_ROOM_KEPT);
}

#[test]
fn refused_offers_are_reported_until_durable() {
    let mut life = NodeLife::<()>::new(RestartBackoff { first_ms: 1, max_ms: 3, reset_ms: 600 });
    let zones = ZoneSet::NONE;
    let has = Has { cpu_milli: 10, memory: 100, n_devices: 1, zones, n_running_units: 100 };
    let of = |cpu_milli| RunOrders { weight: weight(cpu_milli, 1), ..RunOrders::default() };
    let mut out = Vec::new();
    assert_eq!(life.offer(A, 0, of(6), &has, false, &mut out), Ok(()));
    assert_eq!(life.offer(B, 2, of(6), &has, false, &mut out), Err(AssignmentRefusal::Room));
    // It comes late once more: said already.
    assert_eq!(life.offer(B, 2, of(6), &has, false, &mut out), Ok(()));
    assert_eq!(out[0], AgentAction::Start(A, 0));
    assert!(
        matches!(out[1], AgentAction::Keep(RunStatus { refused: Some(AssignmentRefusal::Room), .. }))
            && out.len() == 2
    );
    let StatusReport { sequence, statuses } = life.reports_mut().next(N_STATUSES_MAX).unwrap();
    let said = |status: &RunStatus| (status.key, status.incarnation, status.phase, status.refused);
    assert_eq!(
        statuses.iter().map(said).collect::<Vec<_>>(),
        [(B, 2, Phase::Stopped, Some(AssignmentRefusal::Room))]
    );
    out.clear();
    life.acknowledged(sequence, &mut out);
    assert_eq!(out.len(), 1, "forgotten: {out:?}");
    assert_eq!(life.live().n(), 1);
    // Who is told to leave gives its room, whatever still runs of it.
    life.started(A, 0, 0, Millis(0));
    life.stop(A, 0, 9, &mut out);
    assert_eq!(life.offer(B, 3, of(10), &has, false, &mut out), Ok(()));
    // So does an older incarnation of the same one, which leaves in any case.
    assert_eq!(life.offer(B, 4, of(10), &has, false, &mut out), Ok(()));
    out.clear();
    assert_eq!(life.offer(B, 5, of(1), &has, true, &mut out), Err(AssignmentRefusal::Told));
    assert!(matches!(out[..], [AgentAction::Keep(_)]), "it has waited for the older one: {out:?}");
    // What was bound before it is no matter of what there is.
    let key = RunKey { unit: 9, ordinal: 0 };
    life.assign(key, 0, of(1_000), &mut out);
    assert_eq!(life.live().n(), 3, "what has not ended counts");
    let gpu = RunOrders {
        allocation: DeviceSet(0b10).into(),
        devices: std::iter::once((DeviceSet(0b10), 1_000)).collect(),
        ..of(0)
    };
    let other = RunKey { unit: 10, ordinal: 0 };
    let has = Has { cpu_milli: 10_000, ..has };
    assert_eq!(life.offer(other, 0, gpu, &has, false, &mut out), Err(AssignmentRefusal::Devices));
}

#[test]
fn what_never_ran_for_the_sake_of_the_node_uses_up_no_attempt() {
    let mut life = NodeLife::<()>::new(RestartBackoff::default());
    let mut out = Vec::new();
    let orders =
        || RunOrders { restart_policy: RestartPolicy::Always, max_restarts: 3, ..RunOrders::default() };
    for (ordinal, policy) in
        [(0, RestartPolicy::Never), (1, RestartPolicy::OnFailure), (2, RestartPolicy::Always)]
    {
        let key = RunKey { unit: 1, ordinal };
        life.assign(key, 0, RunOrders { restart_policy: policy, ..orders() }, &mut out);
        out.clear();
        let end = RunEnd { reason: Some(RunEndReason::CannotStart), started_ms: 0, ended_ms: 5 };
        let ended = HowEnded { exit_code: 127, end, refused: Some(AssignmentRefusal::Disk) };
        life.ended(key, 0, ended, None, Millis(1), &mut out);
        let [AgentAction::Keep(status)] = out[..] else { panic!("{out:?}") };
        let said = (status.phase, status.exit_code, status.restarts, status.refused);
        assert_eq!(said, (Phase::Stopped, 0, 0, Some(AssignmentRefusal::Disk)), "{policy:?}");
    }
    assert_eq!(life.live().n(), 0);
    let StatusReport { statuses: said, .. } = life.reports_mut().next(9).unwrap();
    assert!(said.iter().all(|status| status.refused == Some(AssignmentRefusal::Disk)), "{said:?}");
    // What was told to stop meanwhile has stopped, and nobody refused it.
    let key = RunKey { unit: 2, ordinal: 0 };
    life.assign(key, 0, orders(), &mut out);
    life.stop(key, 0, 0, &mut out);
    out.clear();
    life.ended(
        key,
        0,
        HowEnded { refused: Some(AssignmentRefusal::Disk), ..HowEnded::default() },
        None,
        Millis(1),
        &mut out,
    );
    assert!(
        matches!(out[..], [AgentAction::Keep(RunStatus { phase: Phase::Stopped, refused: None, .. })]),
        "{out:?}"
    );
}
