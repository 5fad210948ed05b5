//! One connection and all nodes that share it, driven by one task.

use std::{
    collections::{BTreeSet, VecDeque},
    ffi::OsString,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use futures_util::{
    FutureExt as _, StreamExt as _,
    stream::{FuturesUnordered, SelectAll},
};
use godel_base::time::Millis;
use godel_kit::{CancellationToken, clock::SharedClock, quiet::Quiet};
use godel_membership::load_window::NodeLoadWindow;
use godel_proto::v1::{self, session_response::Message};
use godel_wire::to_proto;
use rand::{RngExt as _, rngs::StdRng};
use tokio::sync::{mpsc, watch};
use tonic::Status as RpcStatus;

use crate::{
    Config, NodeDef,
    claim::DirClaim,
    journal::{Entry, Journal},
    life::{Backoff, Key, N_STATUSES_MAX, NodeLife, Status},
    logs::LogSenders,
    measure::Measured,
    outbound::Outbound,
    runtime::{Event, Runtime, process::Home, simulated::Simulated},
    service::{Error, Mode, Stats},
    session::{self, Arrival, Client, Inbound, Progress, Step},
    timers::Timers,
    use_model::UseModel,
    yarn::server::Ask,
};

mod condition;
mod contact;
pub(crate) mod containers;
mod ending;
mod logs;
mod processes;
mod sessions;
mod stops;
mod takeover;
mod usage;
mod work;

use condition::Watched;
use containers::ContainerDesk;
use processes::{Looked, Looks};
use usage::{GpuUses, PartsOfUse, load_of, usage_of};

/// Arrivals handled before reports go out: one report for many.
const N_ARRIVALS_MAX: usize = 512;
/// A node whose stream is full tries again after this.
const FULL_RETRY_MS: u64 = 50;
/// Events of child processes that wait.
const N_EVENTS_MAX: usize = 1024;
/// State hears a goodbye in this time, or finds out when the lease is over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Jitter of heartbeats, taken off the interval, where state does not say how much.
const JITTER_PERCENT: u64 = 10;
/// More is never taken off: state has to hear of the node in time, and not much more often.
const JITTER_PERCENT_MAX: u64 = 50;

struct NodeEntry {
    def: NodeDef,
    name: Arc<str>,
    life: NodeLife,
    /// Set from the first message of a session to its loss.
    outbound: Option<Outbound<v1::SessionRequest>>,
    /// Of the present session; timers and messages of an earlier one mean nothing.
    generation: u64,
    welcomed: bool,
    /// Some session was, at some time.
    was_welcomed: bool,
    heartbeat_ms: u64,
    /// See `SessionWelcome`.
    jitter_percent: u64,
    n_statuses_max: usize,
    lease_ms: u64,
    /// The sending of the present session's open.
    opened: Millis,
    /// The sending of the newest message that state has answered.
    contact: Millis,
    /// When contact is looked at next; none while nothing has to stop without it.
    look_at: Option<Millis>,
    /// Assignments and stops of the present session that wait for an answer of state.
    held: Vec<Message>,
    /// It is in `Shard::to_report`.
    noted: bool,
    /// The store that this node's last welcomed session was of; 0: none, or not known.
    store: u64,
    /// The present session is of another one, and not welcomed yet: what is here may mean nothing there, so nothing is
    /// said of it.
    is_other_store: bool,
    /// Assignments that it has yet to refuse, for a test.
    n_to_refuse: u32,
    /// What is used of it of late.
    load: NodeLoadWindow,
    /// The same of the zones that running units are given.
    zone_loads: Vec<(usize, NodeLoadWindow)>,
    /// When it said last that another agent has its name.
    warned: Option<Millis>,
    /// When the volumes had changed that it said last in this session.
    volumes_said: Option<SystemTime>,
}

enum Timer {
    Connect(usize),
    Heartbeat { node: usize, generation: u64 },
    Report(usize),
    Restart { node: usize, key: Key, incarnation: u32, restarts: u32 },
    Stop { node: usize, key: Key, incarnation: u32, grace_ms: u32 },
}

/// What wakes a shard.
enum Woken {
    Arrival(Arrival),
    Progress(Progress),
    Event(Event),
    Looked(Looked),
    Ask(Ask),
    Condition,
    Timer,
}

/// See the module.
pub(crate) struct Shard {
    use_model: UseModel,
    load_window_ms: u64,
    /// The modelled day begins here.
    started: Millis,
    config: Arc<Config>,
    client: Client,
    mode: Mode,
    /// Of this start of the agent: a random number.
    instance: u64,
    clock: SharedClock,
    rng: StdRng,
    stats: Option<watch::Sender<Stats>>,
    n_connecting_max: usize,
    slots: Vec<NodeEntry>,
    timers: Timers<Timer>,
    /// Nodes whose contact has to be looked at, before anything else.
    looks: Timers<usize>,
    backoff: Backoff,
    waiting: VecDeque<usize>,
    connecting: FuturesUnordered<Step>,
    inbound: SelectAll<Inbound>,
    /// Nodes with something to say.
    to_report: Vec<usize>,
    keep: Vec<Entry>,
    forget: Vec<Entry>,
    /// The first one that takes a kind of work does it.
    runtimes: Vec<Box<dyn Runtime>>,
    /// How a keeper is started; see [`crate::Deps::keeper`].
    keeper: Vec<OsString>,
    /// The runs of a real node.
    home: Option<Arc<Home>>,
    /// What a real node uses.
    measured: Arc<Mutex<Measured>>,
    /// What is used of its GPUs.
    gpus: Arc<Mutex<GpuUses>>,
    /// Logs that are being sent.
    senders: LogSenders,
    /// What state asks of the processes of a real node.
    process_looks: Looks,
    /// Units of which a real node keeps logs and has nothing else; state is asked which of them are gone.
    log_units: Arc<Mutex<BTreeSet<u64>>>,
    /// The state directory is this agent's alone.
    claim: Option<Arc<DirClaim>>,
    /// What a real node can do, as it was found last.
    condition: Watched,
    /// The agent is being stopped, and what runs is ending, until then at most.
    ends_by: Option<Millis>,
    /// Sessions that could not be opened: only the first is worth a line.
    n_failures: u64,
    /// See [`crate::Deps::says_goodbye`].
    says_goodbye: bool,
    /// Nodes that are given up, and the first of them with state's words.
    n_refused: usize,
    refused: Option<(String, String)>,
    /// Nodes that have left for good.
    n_left: usize,
    /// When it was last logged that another agent has the name of a node.
    names_said: Quiet,
    /// For masters of YARN; `None`: no containers are started here.
    containers: Option<ContainerDesk>,
}

/// How a shard ends.
pub(crate) enum Ended {
    /// It was told to.
    Stopped,
    /// The last of its nodes has left for good.
    Left,
    /// State will never let any of its nodes in: the first of them, and why.
    Refused(String, String),
}

impl Shard {
    pub(crate) fn new(
        config: Arc<Config>,
        client: Client,
        mode: Mode,
        instance: u64,
        clock: SharedClock,
        mut rng: StdRng,
    ) -> Self {
        Self {
            use_model: config.use_model(rng.random()),
            backoff: Backoff::default().scaled(|ms| config.scaled_ms(ms)),
            runtimes: vec![Box::new(Simulated::new(Arc::clone(&config)))],
            load_window_ms: u64::try_from(config.load_window.as_millis()).unwrap_or(u64::MAX),
            started: clock.now(),
            config,
            client,
            mode,
            instance,
            clock,
            rng,
            stats: None,
            n_connecting_max: 1,
            slots: Vec::new(),
            timers: Timers::default(),
            looks: Timers::default(),
            waiting: VecDeque::new(),
            connecting: FuturesUnordered::new(),
            inbound: SelectAll::new(),
            to_report: Vec::new(),
            keep: Vec::new(),
            forget: Vec::new(),
            keeper: Vec::new(),
            home: None,
            measured: Arc::default(),
            gpus: Arc::default(),
            senders: LogSenders::default(),
            process_looks: Looks::default(),
            log_units: Arc::default(),
            claim: None,
            condition: Watched::default(),
            ends_by: None,
            n_failures: 0,
            says_goodbye: false,
            n_refused: 0,
            refused: None,
            n_left: 0,
            names_said: Quiet::default(),
            containers: None,
        }
    }

    pub(crate) fn says_goodbye(&mut self, says_goodbye: bool) {
        self.says_goodbye = says_goodbye;
    }

    /// Says by what the state directory is this agent's.
    pub(crate) fn claim(&mut self, claim: Option<Arc<DirClaim>>) {
        self.claim = claim;
    }

    /// Says how to start a keeper.
    pub(crate) fn keep_with(&mut self, keeper: Vec<OsString>) {
        self.keeper = keeper;
    }

    pub(crate) fn report_to(&mut self, stats: watch::Sender<Stats>, n_connecting_max: usize) {
        self.stats = Some(stats);
        self.n_connecting_max = n_connecting_max;
    }

    /// Speaks for one node more, of which a journal kept `ended`, in `store`.
    pub(crate) fn add(&mut self, def: NodeDef, ended: Vec<Status>, store: u64) {
        let mut life = NodeLife::new(self.backoff);
        for status in ended {
            life.restore(status);
        }
        let name = Arc::from(def.name.as_str());
        let assigned: Vec<usize> =
            def.zones.iter().enumerate().filter(|(_, zone)| zone.is_assigned()).map(|(at, _)| at).collect();
        let assigned = assigned.into_iter();
        self.waiting.push_back(self.slots.len());
        self.slots.push(NodeEntry {
            def,
            name,
            life,
            outbound: None,
            generation: 0,
            welcomed: false,
            was_welcomed: false,
            heartbeat_ms: 0,
            jitter_percent: JITTER_PERCENT,
            n_statuses_max: N_STATUSES_MAX,
            lease_ms: 0,
            opened: Millis(0),
            contact: Millis(0),
            look_at: None,
            held: Vec::new(),
            noted: false,
            store,
            is_other_store: false,
            n_to_refuse: self.config.refuse_first,
            load: NodeLoadWindow::default(),
            zone_loads: assigned.map(|zone| (zone, NodeLoadWindow::default())).collect(),
            warned: None,
            volumes_said: None,
        });
    }

    pub(crate) async fn run(
        mut self,
        journal: Option<Journal>,
        stop: CancellationToken,
    ) -> Result<Ended, Error> {
        let (events_tx, mut events) = mpsc::channel(N_EVENTS_MAX);
        if self.mode == Mode::Processes {
            let processes = self.take_over(events_tx).await?;
            self.runtimes.insert(0, Box::new(processes));
        }
        loop {
            if !self.slots.is_empty() && self.n_refused + self.n_left == self.slots.len() {
                return Ok(match self.refused.take() {
                    Some((node, message)) if self.n_left == 0 => Ended::Refused(node, message),
                    _ => Ended::Left,
                });
            }
            if self.has_ended() {
                self.say_goodbye().await;
                return self.how_it_ends();
            }
            self.start_connecting();
            let now = self.clock.now();
            let ends = self.runtimes.iter().filter_map(|runtime| runtime.next_at());
            let next_at = self.timers.next_at().into_iter().chain(self.looks.next_at()).chain(ends).min();
            let pause = next_at.map(|at| Duration::from_millis(at.since(now)));
            let pause = pause.into_iter().chain(self.until_end()).min();
            let timer = tokio::time::sleep(pause.unwrap_or(Duration::from_secs(3600)));
            let woken = tokio::select! {
                biased;
                () = stop.cancelled(), if self.ends_by.is_none() => {
                    self.begin_to_end();
                    Woken::Timer
                }
                Some(arrival) = self.inbound.next(), if !self.inbound.is_empty() => Woken::Arrival(arrival),
                Some(progress) = self.connecting.next(), if !self.connecting.is_empty() => {
                    Woken::Progress(progress)
                }
                Some(event) = events.recv() => Woken::Event(event),
                Some(looked) = self.process_looks.next(), if !self.process_looks.is_idle() => {
                    Woken::Looked(looked)
                }
                Some(ask) = containers::next_ask(&mut self.containers) => Woken::Ask(ask),
                () = self.condition.changed() => Woken::Condition,
                () = timer => Woken::Timer,
            };
            self.check_contact();
            match woken {
                Woken::Arrival(arrival) => self.on_arrivals(arrival),
                Woken::Progress(progress) => self.on_progress(progress),
                Woken::Event(event) => self.on_event(event),
                Woken::Looked(looked) => self.on_looked(looked),
                Woken::Ask(ask) => self.on_ask(ask),
                Woken::Condition => self.on_condition(),
                Woken::Timer => {}
            }
            self.on_timers();
            self.end_followed_logs();
            self.write_down(journal.as_ref()).await?;
            self.runtimes.iter_mut().for_each(|runtime| runtime.settle());
            self.send_reports();
        }
    }

    /// Says goodbye for every node, and waits until state has heard it.
    async fn say_goodbye(&mut self) {
        if !self.says_goodbye {
            return;
        }
        for slot in &mut self.slots {
            // The stream ends behind what waits in it.
            if let Some(outbound) = slot.outbound.take() {
                outbound.send(session::message(v1::session_request::Message::Leave(v1::SessionLeave {})));
            }
        }
        let over = async { while self.inbound.next().await.is_some() {} };
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
            next = if n < N_ARRIVALS_MAX { self.inbound.next().now_or_never().flatten() } else { None };
        }
    }

    fn on_arrival(&mut self, arrival: Arrival) {
        let Arrival { node, generation, message } = arrival;
        if self.slots[node].generation != generation {
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
        if !self.holds(node, &message) {
            self.obey(node, message);
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
                let mut actions = Vec::new();
                self.slots[node].life.acknowledged(sequence, &mut actions);
                self.act(node, actions);
            }
            Message::HeartbeatEcho(echo) => self.on_echo(node, echo),
            Message::Conflict(conflict) => self.on_conflict(node, &conflict),
            Message::Log(request) => self.send_log(node, request),
            Message::ForgetLogs(forget) => self.forget_logs(forget),
            Message::YarnKeys(keys) => self.on_yarn_keys(keys),
            Message::Processes(v1::ProcessesRequest { request_id }) => {
                self.look_at_processes(node, request_id);
            }
            Message::HeartbeatIntervalMs(interval) => {
                self.slots[node].heartbeat_ms = u64::from(interval.max(1));
            }
        }
        self.note(node);
    }

    /// State has refused another agent that claims a node of this one.
    fn on_conflict(&self, node: usize, conflict: &v1::NodeConflict) {
        if !self.names_said.may_speak() {
            return;
        }
        let v1::NodeConflict { address, uid, attempts, .. } = conflict;
        let what = match conflict.kind() {
            v1::NodeConflictKind::SameInstallation => {
                "an agent with a copy of this one's identity wants this node: stop it, or give it another name"
            }
            v1::NodeConflictKind::OtherInstallation | v1::NodeConflictKind::Unspecified => {
                "another machine wants the name of this node: stop its agent, or give it another name"
            }
        };
        tracing::warn!(node = %self.slots[node].name, address, uid, attempts, "{what}; state refuses it");
    }

    fn on_timers(&mut self) {
        let now = self.clock.now();
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Connect(node) => self.waiting.push_back(node),
                Timer::Heartbeat { node, generation } => self.heartbeat(node, generation, now),
                Timer::Report(node) => self.note(node),
                Timer::Restart { node, key, incarnation, restarts } => {
                    let mut actions = Vec::new();
                    self.slots[node].life.restart(key, incarnation, restarts, &mut actions);
                    self.act(node, actions);
                    self.note(node);
                }
                Timer::Stop { node, key, incarnation, grace_ms } => {
                    self.stop_noticed(node, key, incarnation, grace_ms);
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
        let slot = &self.slots[node];
        if slot.outbound.is_none() || slot.generation != generation {
            return;
        }
        self.send_heartbeat(node, now);
        let slot = &self.slots[node];
        let early = self.rng.random_range(0..=slot.heartbeat_ms * slot.jitter_percent / 100);
        let at = now.plus((slot.heartbeat_ms - early).max(1));
        self.timers.set(at, Timer::Heartbeat { node, generation });
    }

    fn send_heartbeat(&mut self, node: usize, now: Millis) {
        let (age, window_ms) = (Millis(now.since(self.started)), self.load_window_ms);
        if self.slots[node].outbound.is_none() {
            return;
        }
        let used = self.used(node, age);
        let zone_use = if used.is_some() { self.zone_use(node, age) } else { Vec::new() };
        let slot = &mut self.slots[node];
        let load = used.map(|(guaranteed, best_effort)| {
            to_proto::node_load(&slot.load.add(&load_of(guaranteed.plus(best_effort)), age, window_ms))
        });
        let zone_loads = zone_use.iter().filter_map(|(zone, used)| {
            let (_, window) = slot.zone_loads.iter_mut().find(|(known, _)| known == zone)?;
            let load = Some(to_proto::node_load(&window.add(used, age, window_ms)));
            Some(v1::ZoneLoad { zone: u32::try_from(*zone).ok()?, load })
        });
        let zone_loads = zone_loads.collect();
        let usage = used.map(|(guaranteed, best_effort)| usage_of(guaranteed.plus(best_effort)));
        let guaranteed_usage = used.map(|(guaranteed, _)| usage_of(guaranteed));
        let PartsOfUse { running, zones, devices, network, bandwidth } = self.parts_of_use(node);
        let echo = self.echo(node, now);
        // A full queue carries messages that show life as well.
        let heartbeat = v1::Heartbeat {
            usage,
            echo,
            guaranteed_usage,
            load,
            running,
            zones,
            devices,
            zone_loads,
            network,
            bandwidth,
        };
        if let Some(outbound) = &self.slots[node].outbound {
            outbound.send(session::message(v1::session_request::Message::Heartbeat(heartbeat)));
        }
        self.ask_for_kept_logs(node);
        self.ask_for_yarn_keys(node);
        self.report_volumes(node);
    }

    /// Ends are on the disk before anybody hears of them.
    async fn write_down(&mut self, journal: Option<&Journal>) -> Result<(), Error> {
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

    fn note(&mut self, node: usize) {
        let slot = &mut self.slots[node];
        if !slot.noted && slot.life.is_dirty() && slot.outbound.is_some() && !slot.is_other_store {
            slot.noted = true;
            self.to_report.push(node);
        }
    }

    fn send_reports(&mut self) {
        for node in std::mem::take(&mut self.to_report) {
            let slot = &mut self.slots[node];
            slot.noted = false;
            let Some(outbound) = slot.outbound.as_ref().filter(|_| !slot.is_other_store) else { continue };
            while outbound.has_room() {
                let Some((sequence, statuses)) = slot.life.next_report(slot.n_statuses_max) else { break };
                let statuses = statuses.iter().map(session::run_status).collect();
                let report = v1::RunStatusReport { sequence, statuses };
                outbound.send(session::message(v1::session_request::Message::Status(report)));
            }
            if slot.life.is_dirty() && !outbound.has_room() {
                self.timers.set(self.clock.now().plus(FULL_RETRY_MS), Timer::Report(node));
            }
        }
    }

    fn count(&self, change: impl FnOnce(&mut Stats)) {
        if let Some(stats) = &self.stats {
            stats.send_modify(change);
        }
    }
}
