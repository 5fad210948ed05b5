//! Time, messages and connections: what is sent arrives later, in order on each way, or never.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    ids::{Epoch, NodeId, Revision, UnitId},
    time::Millis,
};
use godel_core_agent::{RunKey, RunStatus};
use godel_core_dispatcher::EvictRequest;
use godel_core_rescheduler_leader::{MovesAnswered, PlanWork, RescheduleWrite, WriteFailure, WriteTicket};
use godel_domain::{
    assignment::Assignment,
    decision::{Decision, Outcome},
    requested_move::RequestedMove,
    running_units::EvictionReason,
    unit_report::{RoomReport, UnitReport},
};

use super::{
    agents::{InAgent, OnMachine},
    numbers::Numbers,
    reach::MarkCounts,
    sessions::{FromAgent, FromState},
    store::{Answer, EPOCH_MS, Txn},
};

/// A part of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Dispatcher,
    Binder,
    Scheduler(usize),
    Rescheduler,
}

/// A stream of a scheduler, by who is at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    Attach,
    Decide,
}

impl Line {
    pub(super) const ALL: [Self; 2] = [Self::Attach, Self::Decide];

    pub(super) fn end(self) -> Part {
        match self {
            Self::Attach => Part::Dispatcher,
            Self::Decide => Part::Binder,
        }
    }
}

/// What is sent on a stream.
#[derive(Debug)]
pub(super) enum Message {
    /// Opens the stream to the dispatcher: what is held, credits, what is parked.
    Attach(Epoch, Vec<(UnitId, Revision)>, u32, Vec<UnitReport>),
    /// Opens the stream to the binder: decisions without an outcome.
    Open(Epoch, Vec<Decision>),
    Welcome,
    Assign(Assignment),
    Revoke(UnitId),
    /// What became of units, and the room that parked ones have.
    Reports(Vec<UnitReport>, Vec<RoomReport>),
    Credits(u32),
    Decisions(Vec<Decision>),
    Outcomes(Vec<Outcome>),
    Closed,
}

/// A request to move running units.
#[derive(Clone, Debug)]
pub(super) struct MoveCall {
    /// `None`: nobody waits for an answer.
    pub(super) caller: Option<MoveCaller>,
    pub(super) movement: String,
    pub(super) moves: Vec<RequestedMove>,
    pub(super) expires_ms: i64,
    /// What the rescheduler had read.
    pub(super) read: Revision,
}

/// Who waits for the answer to a [`MoveCall`].
#[derive(Clone, Debug)]
pub(super) struct MoveCaller {
    /// The life of the rescheduler.
    pub(super) life: u64,
    /// The number of the movement.
    pub(super) number: u64,
    /// Which of its moves, by position.
    pub(super) asked: Vec<usize>,
}

/// Something that happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    /// The step of this number.
    Step(usize),
    /// A part's next life begins.
    Begin(Part, u64),
    /// A part stands for its lease again.
    Stand(Part, u64),
    /// State judges a part's lease.
    Expire(Part),
    /// A part has the list that it asked for.
    List(Part, u64),
    /// A part hears of commits.
    Watch(Part, u64),
    /// A transaction arrives at the store; of which leadership, number.
    Txn(Part, u64, u64, Box<Txn>),
    /// Its answer arrives.
    Answer(Part, u64, u64, Answer),
    Wake(Part),
    /// A scheduler opens a stream.
    Connect(usize, Line),
    /// A message of a stream: scheduler, whether towards it, session.
    Message(usize, Line, bool, u64, Box<Message>),
    /// The dispatcher asks the binder to evict; of which leadership of the dispatcher.
    Evict(u64, Vec<EvictRequest>),
    /// What became of that.
    Evicted(u64, Vec<(UnitId, EvictionReason)>, bool),
    /// The rescheduler asks the binder to move running units.
    Move(Box<MoveCall>),
    /// The binder's answer to that; for which life.
    Moved(u64, Box<MovesAnswered>),
    /// Records of the rescheduler arrive at the store; of which life and epoch.
    Write(u64, Epoch, WriteTicket, Vec<RescheduleWrite>),
    /// What became of them.
    Written(u64, WriteTicket, Result<(), WriteFailure>),
    /// A rescheduler that begins to lead has the records that it asked for.
    Movements(u64),
    /// A plan is made.
    Plan(u64, Box<PlanWork>),
    /// The dispatcher says what keeps a gang out.
    Refusals(u64, UnitId),
    /// State tells an agent what is new; of which session.
    Tell(NodeId, u64),
    /// What state says arrives at an agent; of which session.
    Down(NodeId, u64, Box<FromState>),
    /// What an agent says arrives at state; of which session.
    Up(NodeId, u64, Box<FromAgent>),
    /// What an agent said arrives at the store; of which session, and its number there.
    Durable(NodeId, u64, u64, Vec<RunStatus>),
    /// Something happens in the process of an agent; of which one.
    InAgent(NodeId, u64, InAgent),
    /// Something happens to a start of an incarnation on its machine; of which start.
    OnMachine(NodeId, RunKey, u32, u64, OnMachine),
    /// The session of a node broke, and its agent opens the next one.
    Reopen(NodeId),
    /// A node loses contact.
    Lose(NodeId),
    /// State judges a node's lease.
    Judge(NodeId),
    /// A node's agent is back.
    Back(NodeId),
    /// State looks at the certificate of a node's agent.
    ScanLeaf(NodeId),
    /// An agent has renewed its certificate.
    Renewed(NodeId),
    /// An agent that was revoked is let in again.
    Allowed(NodeId),
}

/// See the module.
pub(super) struct Net {
    pub(super) now: u64,
    pub(super) numbers: Numbers,
    /// Longest usual delay, milliseconds.
    pub(super) delay_ms: u64,
    pub(super) reach: MarkCounts,
    /// Whatever shows that something goes on.
    pub(super) active_at: u64,
    /// Told step by step, for people.
    pub(super) trace: Option<Vec<String>>,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    /// When the last message arrives on each way.
    ways: BTreeMap<(u8, usize), u64>,
    /// Sessions that have ended: nothing more arrives on them.
    dead: BTreeSet<u64>,
    last_session: u64,
}

impl Net {
    pub(super) fn new(numbers: Numbers, delay_ms: u64, is_traced: bool) -> Self {
        Self {
            now: 1_000,
            numbers,
            delay_ms,
            reach: MarkCounts::default(),
            active_at: 1_000,
            trace: is_traced.then(Vec::new),
            events: BTreeMap::new(),
            sequence: 0,
            ways: BTreeMap::new(),
            dead: BTreeSet::new(),
            last_session: 0,
        }
    }

    pub(super) fn millis(&self) -> Millis {
        Millis(self.now)
    }

    /// Unix milliseconds.
    pub(super) fn wall_ms(&self) -> i64 {
        EPOCH_MS + i64::try_from(self.now).unwrap_or(i64::MAX)
    }

    /// What a scheduler says is known to the dispatcher so much later, milliseconds, unless something fails.
    pub(super) fn known_after_ms(&self) -> i64 {
        i64::try_from(40 * self.delay_ms + 50).unwrap_or(i64::MAX)
    }

    pub(super) fn trace(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>6} {}", self.now, what()));
        }
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((at.max(self.now), self.sequence), event);
    }

    pub(super) fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now + ms, event);
    }

    /// At some moment soon, now and then much later.
    pub(super) fn soon(&mut self, event: Event) {
        let delay = self.delay();
        self.after(delay, event);
    }

    /// The same, after all that was sent this way before.
    pub(super) fn send(&mut self, way: (u8, usize), event: Event) {
        let delay_ms = self.delay();
        self.send_after(delay_ms, way, event);
    }

    /// After some time, and after all that was sent this way before.
    pub(super) fn send_after(&mut self, delay_ms: u64, way: (u8, usize), event: Event) {
        let at = self.now + delay_ms;
        let last = self.ways.entry(way).or_default();
        *last = at.max(*last);
        let at = *last;
        self.at(at, event);
    }

    fn delay(&mut self) -> u64 {
        let longest = if self.numbers.chance(4) { 10 * self.delay_ms } else { self.delay_ms };
        self.numbers.below(longest + 1)
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn new_session(&mut self) -> u64 {
        self.last_session += 1;
        self.last_session
    }

    pub(super) fn is_dead(&self, session: u64) -> bool {
        self.dead.contains(&session)
    }

    /// Sends on a stream.
    pub(super) fn message(
        &mut self,
        scheduler: usize,
        line: Line,
        is_down: bool,
        session: u64,
        what: Message,
    ) {
        let way = 2 * (2 * u8::from(is_down) + u8::from(line == Line::Decide));
        self.send((way, scheduler), Event::Message(scheduler, line, is_down, session, Box::new(what)));
    }

    /// State says something to the agent of a node.
    pub(super) fn down(&mut self, node: NodeId, session: u64, what: FromState) {
        let delay_ms = self.delay() / 3;
        self.send_after(delay_ms, (9, node.0 as usize), Event::Down(node, session, Box::new(what)));
    }

    /// The agent of a node says something to state, if it has a session.
    pub(super) fn up(&mut self, node: NodeId, session: u64, what: FromAgent) {
        if session > 0 {
            let delay_ms = self.delay() / 3;
            self.send_after(delay_ms, (8, node.0 as usize), Event::Up(node, session, Box::new(what)));
        }
    }

    /// A stream ends: what is on its way is lost, and both ends hear of it.
    pub(super) fn close(&mut self, scheduler: usize, line: Line, session: u64) {
        if session > 0 && self.dead.insert(session) {
            for is_down in [false, true] {
                self.message(scheduler, line, is_down, session, Message::Closed);
            }
        }
    }
}
