use super::*;

const A: Key = Key { unit: 1, ordinal: 0 };
const B: Key = Key { unit: 1, ordinal: 1 };

/// What happens to a node, as text; `check` compares what it does and says.
#[derive(Clone, Copy, Debug)]
enum Input {
    Assign(Key, u32),
    Stop(Key, u32),
    Started(Key, u32),
    Ended(Key, u32, i32),
    Ack(u64),
    Reopen,
    Alone,
}

use Input::{Ack, Alone, Assign, Ended, Reopen, Started, Stop};

fn name(key: Key, incarnation: u32) -> String {
    format!("{}{incarnation}", if key == A { 'a' } else { 'b' })
}

fn run(inputs: &[Input]) -> Vec<String> {
    let mut life = NodeLife::default();
    let mut said = Vec::new();
    for input in inputs {
        let mut out = Vec::new();
        match *input {
            Assign(key, incarnation) => {
                life.assign(key, incarnation, Weight { cpu_milli: 1, memory: 2 }, &mut out)
            }
            Stop(key, incarnation) => life.stop(key, incarnation, 9, &mut out),
            Started(key, incarnation) => life.started(key, incarnation),
            Ended(key, incarnation, exit_code) => life.ended(key, incarnation, exit_code, &mut out),
            Ack(sequence) => life.acknowledged(sequence, &mut out),
            Reopen => {
                let all: Vec<String> = life
                    .open()
                    .iter()
                    .map(|status| format!("{}:{:?}", name(status.key, status.incarnation), status.phase))
                    .collect();
                said.push(format!("open[{}]", all.join(" ")));
            }
            Alone => life.stop_all(&mut out),
        }
        said.extend(out.iter().map(|action| match action {
            Action::Start(key, incarnation) => format!("start {}", name(*key, *incarnation)),
            Action::Stop { key, incarnation, grace_ms } => {
                format!("stop {} {grace_ms}", name(*key, *incarnation))
            }
            Action::Keep(status) => format!("keep {}", name(status.key, status.incarnation)),
            Action::Forget(status) => format!("forget {}", name(status.key, status.incarnation)),
        }));
        while let Some((sequence, statuses)) = life.next_report() {
            for status in statuses {
                said.push(format!("#{sequence} {}:{:?}", name(status.key, status.incarnation), status.phase));
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
            "a newer incarnation replaces an older one, which ends unheard",
            &[Assign(A, 0), Started(A, 0), Assign(A, 1), Ended(A, 0, 0), Assign(A, 0), Started(A, 1)],
            &["start a0", "#1 a0:Running", "stop a0 0", "start a1", "#2 a1:Running"],
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
        (
            "alone for too long it stops everything, once",
            &[Assign(A, 0), Started(A, 0), Alone, Alone, Ended(A, 0, 0)],
            &["start a0", "#1 a0:Running", "stop a0 0", "keep a0", "#2 a0:Stopped"],
        ),
    ];
    for (what, inputs, expected) in cases {
        assert_eq!(run(inputs), *expected, "{what}");
    }
}

#[test]
fn weights_follow_what_lives() {
    let mut life = NodeLife::default();
    let mut out = Vec::new();
    life.assign(A, 0, Weight { cpu_milli: 5, memory: 7 }, &mut out);
    life.assign(B, 0, Weight { cpu_milli: 1, memory: 1 }, &mut out);
    life.ended(B, 0, 0, &mut out);
    assert_eq!((life.n_live(), life.weight()), (1, Weight { cpu_milli: 5, memory: 7 }));
    life.assign(A, 1, Weight { cpu_milli: 2, memory: 2 }, &mut out);
    assert_eq!((life.n_live(), life.weight()), (1, Weight { cpu_milli: 2, memory: 2 }));
}

#[test]
fn a_report_that_could_not_be_sent_is_the_next_one() {
    let mut life = NodeLife::default();
    life.assign(A, 0, Weight::default(), &mut Vec::new());
    life.started(A, 0);
    let first = life.next_report().unwrap();
    life.unsent();
    assert_eq!(life.next_report(), Some(first));
}

#[test]
fn reports_on_their_way_and_memories_are_bounded() {
    let mut life = NodeLife::default();
    let mut out = Vec::new();
    for ordinal in 0..200 {
        let key = Key { unit: 1, ordinal };
        life.assign(key, 0, Weight::default(), &mut out);
        life.ended(key, 0, 0, &mut out);
        life.next_report();
    }
    assert_eq!(life.in_flight.len(), N_REPORTS_MAX);
    life.acknowledged(u64::MAX, &mut out);
    while life.next_report().is_some() {}
    life.acknowledged(u64::MAX, &mut out);
    assert!(life.runs.is_empty() && !life.is_dirty());
    assert_eq!(life.remembered.len(), N_REMEMBERED_MAX);
}

#[test]
fn what_a_journal_kept_is_reported_first() {
    let mut life = NodeLife::default();
    let ended = Status { key: A, incarnation: 3, phase: Phase::Failed, exit_code: 2 };
    life.restore(ended);
    assert_eq!(life.open(), [ended]);
    assert_eq!(life.next_report(), Some((1, vec![ended])));
}
