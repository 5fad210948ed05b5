//! The deciders in simulated time, with any number of schedulers: where adding one stops paying.
//!
//! The event loop: messages arrive at parts, parts work for a while of virtual time, what they send arrives later.
//!
//! A part is either busy or idle. It takes up what has arrived in one turn, as the services do, and is busy for as long as
//! the delays say; what it sends leaves when the work on it is done. Events of the same moment happen in the order in
//! which they were made, so a run depends on nothing but its setup.

mod binder;
mod delays;
mod dispatcher;
mod scheduler;
mod state;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
};

use godel_audit::{Commit, Evidence, History, InvariantReport, World, check_all};
use godel_base::{
    ids::{Revision, UnitId},
    time::Millis,
};
use godel_domain::{
    assignment::Assignment,
    change::{Change, Partition},
    decision::{Decision, Outcome},
    node::{NodeReport, NodeSpec},
    records::Record,
    running_units::RunChange,
    unit::UnitRecord,
    unit_report::{RoomReport, UnitReport},
};

pub use self::delays::{Delay, Nanos, SimulationDelays, WorkCost};
use self::{
    binder::TimedBinder,
    dispatcher::{TimedClient, TimedDispatcher},
    scheduler::TimedScheduler,
    state::TimedState,
};

/// Index of the part that submits.
const CLIENT: usize = 0;
/// Index of the dispatcher.
pub const DISPATCHER: usize = 1;
/// Index of state.
pub const STATE: usize = 2;
/// Index of the binder.
pub const BINDER: usize = 3;
/// Index of the first scheduler.
pub const SCHEDULERS: usize = 4;

/// A part takes up messages for so long before it looks at what they mean together: the services count them instead,
/// for each source by itself, but theirs are small.
const TURN_MAX: Nanos = 1_000_000;
/// A part that wants to be woken at once waits so long all the same: time must pass.
const WAKE_MIN: Nanos = 100_000;
/// Without a binding for so long nothing will be bound any more: three times the longest backoff.
const STALLED: Nanos = 30_000_000_000;

/// What a run starts from.
pub struct SimulationSetup<'a> {
    /// In order of their numbers.
    pub nodes: &'a [(NodeSpec, NodeReport)],
    /// In order of submission, with ids.
    pub units: &'a [Arc<UnitRecord>],
    /// Whose the nodes are.
    pub partition: Partition,
    /// Of every scheduler.
    pub config: godel_core_scheduler::Config,
    /// Of the schedulers' scans and ties.
    pub seed: u64,
    /// What takes how long.
    pub delays: &'a SimulationDelays,
    /// Hundredths of a core that a scheduler may use.
    pub scheduler_share: u32,
}

/// What a run ended with.
#[derive(Clone, Debug, Default)]
pub struct SimulationOutcome {
    /// Running units bound.
    pub n_bound: u64,
    /// When the last binding was seen, from the first submission.
    pub last_bound: Nanos,
    /// Answers of the binder.
    pub answers: BinderAnswers,
    /// How long each part was busy.
    pub busy: Vec<Nanos>,
    /// Invariants, from the history.
    pub audit: Vec<InvariantReport>,
}

/// Running units in the binder's answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BinderAnswers {
    /// Decided, each time.
    pub decided: u64,
    /// Refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Refused because another party was faster.
    pub conflicts: u64,
}

/// A transaction on its way to state.
#[derive(Debug)]
struct TimedTxn {
    from: usize,
    /// Of `from`.
    id: u64,
    changes: Vec<Change>,
}

/// What parts send each other.
#[derive(Debug)]
enum PartMessage {
    Submit(Vec<Arc<UnitRecord>>),
    Submitted,
    Txn(TimedTxn),
    Committed {
        id: u64,
        revision: Revision,
    },
    /// Positions in the history.
    Commits(Range<usize>),
    Assign(Vec<Assignment>),
    Revoke(UnitId),
    Reports(usize, Vec<UnitReport>, Vec<RoomReport>),
    Credits(usize, u32),
    Decisions(usize, Vec<Decision>),
    Outcomes(Vec<Outcome>),
}

/// A part of the control plane.
trait TimedPart {
    /// Takes up what has come and works.
    fn turn(&mut self, turn: &mut PartTurn<'_>);
}

/// One turn of a part: what it may read, and what it leaves behind.
struct PartTurn<'a> {
    delays: &'a SimulationDelays,
    inbox: &'a mut VecDeque<PartMessage>,
    ledger: &'a mut SimulationLedger,
    now: Nanos,
    busy: Nanos,
    wake: Option<Nanos>,
    /// Work before it, time on its way, to whom, what.
    sent: Vec<(Nanos, Nanos, usize, PartMessage)>,
}

/// What is committed, and what was answered.
#[derive(Debug, Default)]
struct SimulationLedger {
    commits: Vec<Commit>,
    n_bound: u64,
    last_bound: Nanos,
    answers: BinderAnswers,
}

impl PartTurn<'_> {
    /// As the deciders see time.
    fn now_ms(&self) -> Millis {
        Millis(self.now / 1_000_000)
    }

    /// How long it is busy so far.
    fn busy(&self) -> Nanos {
        self.busy
    }

    /// Is busy for so long, on top of what it did in this turn already.
    fn work(&mut self, nanos: Nanos) {
        self.busy += nanos;
    }

    /// Sends a message that arrives so long after the work done so far.
    fn send(&mut self, to: usize, after: Nanos, message: PartMessage) {
        self.sent.push((self.busy, after, to, message));
    }

    /// Sends a message to another service.
    fn call(&mut self, to: usize, message: PartMessage) {
        self.send(to, self.delays.hop.0, message);
    }

    /// Wants a turn then, whatever comes.
    fn wake_at(&mut self, at: Option<Millis>) {
        self.wake = at.map(|at| at.0.saturating_mul(1_000_000).max(self.now + WAKE_MIN));
    }

    /// The next message, while the turn has not lasted long.
    fn next(&mut self) -> Option<PartMessage> {
        if self.busy >= TURN_MAX {
            return None;
        }
        self.inbox.pop_front()
    }

    /// Works as a follower of these commits: every unit concerned, every row.
    fn follow(&mut self, commits: &Range<usize>, sees_units: bool) {
        for commit in &self.ledger.commits[commits.clone()] {
            let (n_units, n_rows) = weight(&commit.changes, sees_units);
            self.busy += self.delays.follow.of(n_units, n_rows);
        }
    }
}

/// Units and running units that changes are about.
fn weight(changes: &[Change], with_specs: bool) -> (usize, usize) {
    changes.iter().fold((0, 0), |(n_units, n_rows), change| match change {
        Change::Rows(_, RunChange::Bind(bind)) => (n_units + 1, n_rows + bind.ordinals.len()),
        Change::Put(Record::Unit(_)) if with_specs => (n_units + 1, n_rows),
        _ => (n_units, n_rows),
    })
}

/// A part with its messages.
struct Seat {
    part: Box<dyn TimedPart>,
    inbox: VecDeque<PartMessage>,
    is_busy: bool,
    /// The one wake-up that counts.
    wake: Option<Nanos>,
    busy: Nanos,
}

enum SimulationEvent {
    Arrives(PartMessage),
    /// The end of a turn.
    Free,
    Wake,
}

/// Runs until every unit is bound, or nothing has been bound for long.
pub fn run(setup: &SimulationSetup<'_>) -> SimulationOutcome {
    let mut ledger = SimulationLedger { commits: records(setup), ..SimulationLedger::default() };
    let mut seats: Vec<Seat> = parts(setup, &ledger.commits)
        .into_iter()
        .map(|part| Seat { part, inbox: VecDeque::new(), is_busy: false, wake: None, busy: 0 })
        .collect();
    let wanted: u64 = setup.units.iter().map(|unit| u64::from(unit.spec.replicas())).sum();
    let mut events: BTreeMap<(Nanos, u64), (usize, SimulationEvent)> = BTreeMap::new();
    let mut sequence = 0;
    let mut push = |events: &mut BTreeMap<_, _>, at: Nanos, seat: usize, event: SimulationEvent| {
        sequence += 1;
        events.insert((at, sequence), (seat, event));
    };
    for seat in 0..seats.len() {
        push(&mut events, 0, seat, SimulationEvent::Free);
    }
    while let Some(((now, _), (idx, event))) = events.pop_first() {
        if ledger.n_bound >= wanted || now > ledger.last_bound + STALLED {
            break;
        }
        let seat = &mut seats[idx];
        match event {
            SimulationEvent::Arrives(message) => seat.inbox.push_back(message),
            SimulationEvent::Free => seat.is_busy = false,
            SimulationEvent::Wake if seat.wake == Some(now) => seat.wake = None,
            SimulationEvent::Wake => continue,
        }
        if seat.is_busy {
            continue;
        }
        let mut turn = PartTurn {
            delays: setup.delays,
            inbox: &mut seat.inbox,
            ledger: &mut ledger,
            now,
            busy: 0,
            wake: None,
            sent: Vec::new(),
        };
        seat.part.turn(&mut turn);
        let PartTurn { busy, wake, sent, .. } = turn;
        let share = if idx >= SCHEDULERS { Nanos::from(setup.scheduler_share) } else { 100 };
        let lasts = |nanos: Nanos| nanos * 100 / share;
        let busy = lasts(busy);
        seat.busy += busy;
        if busy > 0 || !seat.inbox.is_empty() {
            seat.is_busy = true;
            push(&mut events, now + busy, idx, SimulationEvent::Free);
        } else if let Some(at) = wake.filter(|at| seat.wake.is_none_or(|known| *at < known)) {
            seat.wake = Some(at);
            push(&mut events, at, idx, SimulationEvent::Wake);
        }
        for (worked, after, to, message) in sent {
            push(&mut events, now + lasts(worked) + after, to, SimulationEvent::Arrives(message));
        }
    }
    let busy = seats.iter().map(|seat| seat.busy).collect();
    drop(seats);
    let SimulationLedger { commits, n_bound, last_bound, answers } = ledger;
    SimulationOutcome { n_bound, last_bound, answers, busy, audit: audit(commits) }
}

fn parts(setup: &SimulationSetup<'_>, records: &[Commit]) -> Vec<Box<dyn TimedPart>> {
    let n_schedulers = setup.partition.schedulers.len();
    let mut parts: Vec<Box<dyn TimedPart>> = vec![
        Box::new(TimedClient::new(setup.units)),
        Box::new(TimedDispatcher::new(records, &setup.partition.schedulers, setup.config.held_max)),
        Box::new(TimedState::new(n_schedulers)),
        Box::new(TimedBinder::new(records, n_schedulers, &setup.config.sub_cluster_key)),
    ];
    for (idx, name) in setup.partition.schedulers.iter().enumerate() {
        let config = godel_core_scheduler::Config { name: name.clone(), ..setup.config.clone() };
        // As unlike as the seeds of two names.
        let seed = (setup.seed ^ (idx as u64 + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        parts.push(Box::new(TimedScheduler::new(idx, config, seed, records)));
    }
    parts
}

/// The records that are there before the first submission.
fn records(setup: &SimulationSetup<'_>) -> Vec<Commit> {
    let nodes = setup.nodes.iter().cloned();
    let nodes = nodes.flat_map(|(spec, report)| {
        [Change::Put(Record::NodeSpec(spec)), Change::Put(Record::NodeReport(report))]
    });
    vec![
        Commit { revision: Revision(1), time_ms: 0, changes: nodes.collect() },
        Commit {
            revision: Revision(2),
            time_ms: 0,
            changes: vec![Change::Put(Record::Partition(setup.partition.clone()))],
        },
    ]
}

/// The invariants on the whole history. Nothing is under way any more: what is left over had its time.
fn audit(commits: Vec<Commit>) -> Vec<InvariantReport> {
    let mut listed = World::default();
    for commit in &commits {
        listed.apply(commit, |_, _| {});
    }
    let up_to = listed.revision;
    let history = History { floor: Revision(1), commits, up_to, ..History::default() };
    check_all(&Evidence { listed_again: listed.clone(), listed, history, ..Evidence::default() })
}
