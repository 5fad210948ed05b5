//! One connection and all nodes that share it, driven by one task.

use std::{collections::VecDeque, ffi::OsString, sync::Arc, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    stream::{FuturesUnordered, SelectAll},
};
use godel_base::time::Millis;
use godel_core_agent::{AgentOutbox, JournalEntry, MayWait, RestartBackoff, RunKey, StopOrder};
use godel_kit::{CancellationToken, clock::SharedClock, quiet::Quiet};
use godel_proto::v1::{self, session_request, session_response::Message};
use rand::{RngExt as _, rngs::StdRng};
use tokio::sync::{mpsc, watch};
use tonic::Status as RpcStatus;

use crate::{
    Config, NodeDef,
    claim::DirClaim,
    journal::Journal,
    runtime::{Event, Runtime, simulated::Simulated},
    service::{Error, Mode, Stats},
    session::{self, Arrival, Client, Inbound, Progress, Step},
    timers::Timers,
    yarn::server::Ask,
};

mod condition;
mod contact;
pub(crate) mod containers;
mod ending;
mod logs;
mod node;
mod processes;
mod real_node;
mod sessions;
mod takeover;
mod usage;
mod work;

use containers::ContainerDesk;
use node::HostedNode;
pub(crate) use node::KeptOfNode;
use processes::LookDone;
use real_node::RealNode;
use usage::NodeUse;

/// Arrivals handled before reports go out: one report for many.
const N_ARRIVALS_MAX: usize = 512;
/// A node whose stream is full tries again after this.
const FULL_RETRY_MS: u64 = 50;
/// Events of child processes that wait.
const N_EVENTS_MAX: usize = 1024;
/// State hears a goodbye in this time, or finds out when the lease is over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

enum Timer {
    Connect(usize),
    Heartbeat { node: usize, generation: u64 },
    Report(usize),
    Restart { node: usize, key: RunKey, incarnation: u32, restarts: u32 },
    Stop(usize, StopOrder),
}

/// What wakes a shard.
enum Woken {
    Arrival(Arrival),
    Progress(Progress),
    Event(Event),
    Looked(LookDone),
    Ask(Ask),
    Condition,
    Timer,
}

/// What a shard is made of.
pub(crate) struct ShardSetup {
    pub(crate) config: Arc<Config>,
    pub(crate) client: Client,
    pub(crate) mode: Mode,
    /// Of this start of the agent: a random number.
    pub(crate) instance: u64,
    pub(crate) clock: SharedClock,
    pub(crate) rng: StdRng,
    /// Where it says how it is doing.
    pub(crate) stats: watch::Sender<Stats>,
    /// Sessions that are opened at a time.
    pub(crate) n_connecting_max: usize,
    /// See [`crate::Deps::says_goodbye`].
    pub(crate) says_goodbye: bool,
    /// How a keeper is started; see [`crate::Deps::keeper`].
    pub(crate) keeper: Vec<OsString>,
    /// The state directory is this agent's alone.
    pub(crate) claim: Option<Arc<DirClaim>>,
    /// For masters of YARN; `None`: no containers are started here.
    pub(crate) containers: Option<ContainerDesk>,
}

/// Sessions that are being opened, and those that are open.
struct Connections {
    client: Client,
    n_connecting_max: usize,
    /// Nodes that want a session.
    waiting: VecDeque<usize>,
    connecting: FuturesUnordered<Step>,
    inbound: SelectAll<Inbound>,
    /// Sessions that could not be opened: only the first is worth a line.
    n_failures: u64,
    /// Nodes that are given up, and the first of them with state's words.
    n_refused: usize,
    refused: Option<(String, String)>,
    /// Nodes that have left for good.
    n_left: usize,
    /// When it was last logged that another agent has the name of a node.
    names_said: Quiet,
}

/// What is to be written down before reports go out.
#[derive(Default)]
struct Unwritten {
    keep: Vec<JournalEntry>,
    forget: Vec<JournalEntry>,
}

/// See the module.
pub(crate) struct Shard {
    config: Arc<Config>,
    mode: Mode,
    /// Of this start of the agent.
    instance: u64,
    clock: SharedClock,
    rng: StdRng,
    stats: watch::Sender<Stats>,
    says_goodbye: bool,
    connections: Connections,
    nodes: Vec<HostedNode>,
    /// What the agent of a node wants done just now.
    out: AgentOutbox,
    timers: Timers<Timer>,
    /// Nodes whose contact has to be looked at, before anything else.
    looks: Timers<usize>,
    backoff: RestartBackoff,
    /// Nodes with something to say.
    to_report: Vec<usize>,
    unwritten: Unwritten,
    /// The first one that takes a kind of work does it.
    runtimes: Vec<Box<dyn Runtime>>,
    /// Of a real node.
    real: RealNode,
    node_use: NodeUse,
    /// The agent is being stopped, and what runs is ending, until then at most.
    ends_by: Option<Millis>,
    containers: Option<ContainerDesk>,
}

/// How a shard ends.
pub(crate) enum ShardEnd {
    /// It was told to.
    Stopped,
    /// The last of its nodes has left for good.
    Left,
    /// State will never let any of its nodes in: the first of them, and why.
    Refused(String, String),
}

impl Shard {
    pub(crate) fn new(setup: ShardSetup) -> Self {
        let ShardSetup { config, client, mode, instance, clock, mut rng, .. } = setup;
        Self {
            node_use: NodeUse::new(&config, &clock, rng.random()),
            backoff: RestartBackoff::default().scaled(|ms| config.scaled_ms(ms)),
            runtimes: vec![Box::new(Simulated::new(Arc::clone(&config)))],
            real: RealNode::new(Arc::clone(&config), setup.keeper, setup.claim),
            config,
            mode,
            instance,
            clock,
            rng,
            stats: setup.stats,
            says_goodbye: setup.says_goodbye,
            connections: Connections {
                client,
                n_connecting_max: setup.n_connecting_max,
                waiting: VecDeque::new(),
                connecting: FuturesUnordered::new(),
                inbound: SelectAll::new(),
                n_failures: 0,
                n_refused: 0,
                refused: None,
                n_left: 0,
                names_said: Quiet::default(),
            },
            nodes: Vec::new(),
            out: AgentOutbox::new(),
            timers: Timers::default(),
            looks: Timers::default(),
            to_report: Vec::new(),
            unwritten: Unwritten::default(),
            ends_by: None,
            containers: setup.containers,
        }
    }

    /// Speaks for one node more, of which a journal kept this.
    pub(crate) fn add(&mut self, def: NodeDef, kept: KeptOfNode) {
        self.connections.waiting.push_back(self.nodes.len());
        self.nodes.push(HostedNode::new(def, kept, self.backoff, self.config.refuse_first, self.clock.now()));
    }

    pub(crate) async fn run(
        mut self,
        journal: Option<Journal>,
        stop: CancellationToken,
    ) -> Result<ShardEnd, Error> {
        let (events_tx, mut events) = mpsc::channel(N_EVENTS_MAX);
        if self.mode == Mode::Processes {
            let processes = self.take_over(events_tx).await?;
            self.runtimes.insert(0, Box::new(processes));
        }
        loop {
            if let Some(end) = self.connections.end(self.nodes.len()) {
                return Ok(end);
            }
            if self.has_ended() {
                self.say_goodbye().await;
                return self.real.how_it_ends();
            }
            self.start_connecting();
            let timer = tokio::time::sleep(self.pause());
            let woken = tokio::select! {
                biased;
                () = stop.cancelled(), if self.ends_by.is_none() => {
                    self.begin_to_end();
                    Woken::Timer
                }
                Some(arrival) = self.connections.inbound.next(), if !self.connections.inbound.is_empty() => {
                    Woken::Arrival(arrival)
                }
                Some(progress) = self.connections.connecting.next(), if !self.connections.connecting.is_empty() => {
                    Woken::Progress(progress)
                }
                Some(event) = events.recv() => Woken::Event(event),
                Some(looked) = self.real.looks.next(), if !self.real.looks.is_idle() => {
                    Woken::Looked(looked)
                }
                Some(ask) = containers::next_ask(&mut self.containers) => Woken::Ask(ask),
                () = self.real.condition.changed() => Woken::Condition,
                () = timer => Woken::Timer,
            };
            self.check_contact();
            match woken {
                Woken::Arrival(arrival) => self.on_arrivals(arrival),
                Woken::Progress(progress) => self.on_progress(progress),
                Woken::Event(event) => self.on_event(event),
                Woken::Looked(looked) => self.real.on_looked(looked, &self.nodes),
                Woken::Ask(ask) => self.on_ask(ask),
                Woken::Condition => self.on_condition(),
                Woken::Timer => {}
            }
            self.on_timers();
            self.real.end_followed_logs(&self.nodes);
            self.unwritten.write(journal.as_ref()).await?;
            self.runtimes.iter_mut().for_each(|runtime| runtime.settle());
            self.send_reports();
        }
    }

    /// Until something is due.
    fn pause(&self) -> Duration {
        let now = self.clock.now();
        let ends = self.runtimes.iter().filter_map(|runtime| runtime.next_at());
        let next_at = self.timers.next_at().into_iter().chain(self.looks.next_at()).chain(ends).min();
        let pause = next_at.map(|at| Duration::from_millis(at.since(now)));
        pause.into_iter().chain(self.until_end()).min().unwrap_or(Duration::from_secs(3600))
    }

    /// Says goodbye for every node, and waits until state has heard it.
    async fn say_goodbye(&mut self) {
        if !self.says_goodbye {
            return;
        }
        for node in &mut self.nodes {
            node.send(session_request::Message::Leave(v1::SessionLeave {}));
            // The stream ends behind what waits in it.
            node.outbound = None;
        }
        let over = async { while self.connections.inbound.next().await.is_some() {} };
        if tokio::time::timeout(LEAVE_TIMEOUT, over).await.is_err() {
            tracing::info!(
                "state has not answered the sign-off in time: nodes stay ready until their leases expire"
            );
        }
    }

    fn on_arrivals(&mut self, first: Arrival) {
        let mut next = Some(first);
        let mut n = 0;
        while let Some(arrival) = next {
            self.on_arrival(arrival);
            n += 1;
            next = if n < N_ARRIVALS_MAX {
                self.connections.inbound.next().now_or_never().flatten()
            } else {
                None
            };
        }
    }

    fn on_arrival(&mut self, arrival: Arrival) {
        let Arrival { node, generation, message } = arrival;
        if self.nodes[node].agent.session().generation() != generation {
            return;
        }
        match message {
            Some(Ok(v1::SessionResponse { message: Some(message) })) => self.on_message(node, message),
            Some(Ok(v1::SessionResponse { message: None })) => {}
            Some(Err(status)) => self.lose(node, &status),
            None => self.lose(node, &RpcStatus::unavailable("the session was closed")),
        }
    }

    fn on_message(&mut self, node: usize, message: Message) {
        let now = self.clock.now();
        let agent = &mut self.nodes[node].agent;
        if !agent.must_wait(may_wait(&message), now) {
            self.obey(node, message);
        } else if agent.hold(message) {
            self.send_heartbeat(node, now);
        }
    }

    fn obey(&mut self, node: usize, message: Message) {
        match message {
            Message::Welcome(welcome) => self.on_welcome(node, &welcome),
            Message::Assign(assignments) => {
                for assignment in &assignments.assignments {
                    self.on_assignment(node, assignment, assignments.again);
                }
            }
            Message::Stop(stops) => self.on_stops(node, &stops),
            Message::AckSequence(sequence) => {
                self.nodes[node].agent.life_mut().acknowledged(sequence, &mut self.out);
                self.act(node);
            }
            Message::HeartbeatEcho(echo) => self.on_echo(node, echo),
            Message::Conflict(conflict) => {
                if self.connections.names_said.may_speak() {
                    self.nodes[node].warn_of_rival(&conflict);
                }
            }
            Message::Log(request) => self.real.send_log(&self.nodes[node], request),
            Message::ForgetLogs(forget) => self.real.forget_logs(forget),
            Message::YarnKeys(keys) => {
                if let Some(desk) = &mut self.containers {
                    desk.on_keys(keys);
                }
            }
            Message::Processes(v1::ProcessesRequest { request_id }) => {
                self.real.look_at_processes(node, request_id);
            }
            Message::HeartbeatIntervalMs(interval) => {
                self.nodes[node].agent.set_heartbeat_ms(u64::from(interval.max(1)));
            }
        }
        self.note(node);
    }

    fn on_timers(&mut self) {
        let now = self.clock.now();
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Connect(node) => self.connections.waiting.push_back(node),
                Timer::Heartbeat { node, generation } => self.heartbeat(node, generation, now),
                Timer::Report(node) => self.note(node),
                Timer::Restart { node, key, incarnation, restarts } => {
                    self.nodes[node].agent.life_mut().restart(key, incarnation, restarts, &mut self.out);
                    self.act(node);
                    self.note(node);
                }
                Timer::Stop(node, StopOrder { key, incarnation, grace_ms, notice_ms: _ }) => {
                    self.nodes[node].agent.life_mut().stop_noticed(key, incarnation, grace_ms, &mut self.out);
                    self.act(node);
                    self.note(node);
                }
            }
        }
        for idx in 0..self.runtimes.len() {
            while let Some(event) = self.runtimes[idx].take_due(now) {
                self.on_event(event);
            }
        }
    }

    fn heartbeat(&mut self, node: usize, generation: u64, now: Millis) {
        if !self.nodes[node].agent.session().is_open_as(generation) {
            return;
        }
        self.send_heartbeat(node, now);
        let agent = &self.nodes[node].agent;
        let early_ms = self.rng.random_range(0..=agent.early_ms_max());
        let at = now.plus((agent.heartbeat_ms() - early_ms).max(1));
        self.timers.set(at, Timer::Heartbeat { node, generation });
    }

    fn send_heartbeat(&mut self, at: usize, now: Millis) {
        let node = &mut self.nodes[at];
        if node.outbound.is_none() {
            return;
        }
        let heartbeat = self.node_use.heartbeat(at, node, now);
        // A full queue carries messages that show life as well.
        node.send(session_request::Message::Heartbeat(heartbeat));
        self.real.ask_for_kept_logs(node);
        self.containers.iter().for_each(|desk| desk.ask_for_keys(node));
        self.real.report_volumes(node);
    }

    fn note(&mut self, node: usize) {
        if self.nodes[node].agent.note() {
            self.to_report.push(node);
        }
    }

    fn send_reports(&mut self) {
        for at in std::mem::take(&mut self.to_report) {
            let HostedNode { agent, outbound, .. } = &mut self.nodes[at];
            agent.begin_reports();
            let Some(outbound) = outbound.as_ref().filter(|_| agent.session().may_report()) else { continue };
            while outbound.has_room() {
                let Some(report) = agent.next_report() else { break };
                let statuses = report.statuses.iter().map(session::run_status).collect();
                let report = v1::RunStatusReport { sequence: report.sequence, statuses };
                outbound.send(session::message(session_request::Message::Status(report)));
            }
            if agent.life().reports().is_waiting() && !outbound.has_room() {
                self.timers.set(self.clock.now().plus(FULL_RETRY_MS), Timer::Report(at));
            }
        }
    }
}

impl Unwritten {
    /// Ends are on the disk before anybody hears of them.
    async fn write(&mut self, journal: Option<&Journal>) -> Result<(), Error> {
        let Some(journal) = journal else {
            self.keep.clear();
            self.forget.clear();
            return Ok(());
        };
        if !self.keep.is_empty() {
            journal.write(std::mem::take(&mut self.keep)).await?;
        }
        if !self.forget.is_empty() {
            journal.write_soon(std::mem::take(&mut self.forget)).await?;
        }
        Ok(())
    }
}

fn may_wait(message: &Message) -> MayWait {
    match message {
        Message::Assign(assign) => {
            let mut assignments = assign.assignments.iter();
            if assignments.any(|assignment| assignment.stop_after_disconnect_ms > 0) {
                MayWait::MustStop
            } else {
                MayWait::Follows
            }
        }
        Message::Stop(_) => MayWait::Follows,
        _ => MayWait::Never,
    }
}
