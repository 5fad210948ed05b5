//! One connection and all nodes that share it, driven by one task.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    stream::{FuturesUnordered, SelectAll},
};
use godel_domain::{ids::StoreId, time::Millis};
use godel_kit::{CancellationToken, clock::SharedClock};
use godel_proto::v1::{self, session_response::Message};
use rand::{RngExt as _, rngs::StdRng};
use tokio::sync::{mpsc, watch};
use tonic::{Code, Status as RpcStatus};

use crate::{
    Config, NodeDef,
    journal::{self, Entry, Journal},
    life::{Action, Backoff, Key, NodeLife, Status, Weight, Work},
    outbound::Outbound,
    process::{Event, Processes},
    service::{Mode, Stats},
    session::{self, Arrival, Client, Inbound, Progress, Step},
    timers::Timers,
    use_model::UseModel,
};

mod contact;

/// Arrivals handled before reports go out: one report for many.
const N_ARRIVALS_MAX: usize = 512;
/// A node whose stream is full tries again after this.
const FULL_RETRY_MS: u64 = 50;
/// Exit code of a simulated run that was told to stop: 128 + SIGTERM.
const STOPPED: i32 = 143;
/// Events of child processes that wait.
const N_EVENTS_MAX: usize = 1024;
/// State hears a goodbye in this time, or finds out when the lease is over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Jitter of heartbeats: up to a tenth of the interval, taken off.
const HEARTBEAT_JITTER: u64 = 10;

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
}

enum Timer {
    Connect(usize),
    Heartbeat { node: usize, generation: u64 },
    Report(usize),
    Restart { node: usize, key: Key, incarnation: u32, restarts: u32 },
    Finish { node: usize, key: Key, incarnation: u32, exit_code: i32, since: Millis },
}

/// What wakes a shard.
enum Woken {
    Arrival(Arrival),
    Progress(Progress),
    Event(Event),
    Timer,
}

/// See the module.
pub(crate) struct Shard {
    use_model: UseModel,
    /// The modelled day begins here.
    started: Millis,
    config: Arc<Config>,
    client: Client,
    mode: Mode,
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
    processes: Option<Processes>,
    /// Sessions that could not be opened: only the first is worth a line.
    n_failures: u64,
    /// See [`crate::Deps::says_goodbye`].
    says_goodbye: bool,
    /// Nodes that are given up, and the first of them with state's words.
    n_refused: usize,
    refused: Option<(String, String)>,
}

/// How a shard ends.
pub(crate) enum Ended {
    /// It was told to.
    Stopped,
    /// State will never let any of its nodes in: the first of them, and why.
    Refused(String, String),
}

impl Shard {
    pub(crate) fn new(
        config: Arc<Config>,
        client: Client,
        mode: Mode,
        (clock, mut rng): (SharedClock, StdRng),
    ) -> Self {
        let backoff = Backoff::default().scaled(|ms| config.scaled_ms(ms));
        let use_model = config.use_model(rng.random());
        Self {
            use_model,
            started: clock.now(),
            config,
            client,
            mode,
            clock,
            rng,
            stats: None,
            n_connecting_max: 1,
            slots: Vec::new(),
            timers: Timers::default(),
            looks: Timers::default(),
            backoff,
            waiting: VecDeque::new(),
            connecting: FuturesUnordered::new(),
            inbound: SelectAll::new(),
            to_report: Vec::new(),
            keep: Vec::new(),
            forget: Vec::new(),
            processes: None,
            n_failures: 0,
            says_goodbye: false,
            n_refused: 0,
            refused: None,
        }
    }

    pub(crate) fn says_goodbye(&mut self, says_goodbye: bool) {
        self.says_goodbye = says_goodbye;
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
            lease_ms: 0,
            opened: Millis(0),
            contact: Millis(0),
            look_at: None,
            held: Vec::new(),
            noted: false,
            store,
            is_other_store: false,
            n_to_refuse: self.config.refuse_first,
        });
    }

    pub(crate) async fn run(
        mut self,
        journal: Option<Journal>,
        stop: CancellationToken,
    ) -> Result<Ended, journal::Error> {
        let (events_tx, mut events) = mpsc::channel(N_EVENTS_MAX);
        if self.mode == Mode::Processes {
            let log_dir = self.config.state_dir.as_ref().map(|dir| dir.join("logs"));
            self.processes = Some(Processes::new(events_tx, log_dir));
        }
        loop {
            if let Some((node, message)) = self.refused.take_if(|_| self.n_refused == self.slots.len()) {
                return Ok(Ended::Refused(node, message));
            }
            self.start_connecting();
            let now = self.clock.now();
            let next_at = self.timers.next_at().into_iter().chain(self.looks.next_at()).min();
            let pause = next_at.map(|at| Duration::from_millis(at.since(now)));
            let timer = tokio::time::sleep(pause.unwrap_or(Duration::from_secs(3600)));
            let woken = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.leave().await;
                    return Ok(Ended::Stopped);
                }
                Some(arrival) = self.inbound.next(), if !self.inbound.is_empty() => Woken::Arrival(arrival),
                Some(progress) = self.connecting.next(), if !self.connecting.is_empty() => {
                    Woken::Progress(progress)
                }
                Some(event) = events.recv() => Woken::Event(event),
                () = timer => Woken::Timer,
            };
            self.check_contact();
            match woken {
                Woken::Arrival(arrival) => self.on_arrivals(arrival),
                Woken::Progress(progress) => self.on_progress(progress),
                Woken::Event(event) => self.on_event(event),
                Woken::Timer => {}
            }
            self.on_timers();
            self.write_down(journal.as_ref()).await?;
            self.send_reports();
        }
    }

    /// Says goodbye for every node, and waits until state has heard it.
    async fn leave(&mut self) {
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
                "state has not answered a goodbye in time: nodes are ready until their leases are over"
            );
        }
    }

    fn start_connecting(&mut self) {
        while self.connecting.len() < self.n_connecting_max {
            let Some(node) = self.waiting.pop_front() else { return };
            self.connecting.push(session::register(self.client.clone(), node, &self.slots[node].def));
        }
    }

    fn on_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Registered { node, result: Ok(registered) } => {
                let slot = &mut self.slots[node];
                slot.generation += 1;
                slot.opened = self.clock.now();
                slot.is_other_store = !StoreId(slot.store).may_be(StoreId(registered.store_id));
                let open = v1::SessionOpen {
                    node_id: registered.node_id,
                    uid: slot.def.uid.clone(),
                    epoch: registered.epoch,
                    running: slot.life.open().iter().map(session::run_status).collect(),
                    more: false,
                    store_id: slot.store,
                };
                let (tx, step) = session::open(self.client.clone(), node, slot.generation, open);
                slot.outbound = Some(tx);
                self.connecting.push(step);
                self.note(node);
            }
            Progress::Opened { result: Ok(inbound), .. } => self.inbound.push(*inbound),
            Progress::Registered { node, result: Err(status) } => self.retry_or_give_up(node, &status),
            Progress::Opened { node, generation, result: Err(status) } => {
                if self.slots[node].generation == generation {
                    self.lose(node, &status);
                }
            }
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
            Message::Stop(stops) => {
                let mut actions = Vec::new();
                let life = &mut self.slots[node].life;
                for v1::StopRequest { unit_id, ordinal, incarnation, grace_ms } in stops.stops {
                    let key = Key { unit: unit_id, ordinal };
                    if stops.left_over {
                        life.leave_over(key, incarnation, grace_ms, &mut actions);
                    } else {
                        life.stop(key, incarnation, grace_ms, &mut actions);
                    }
                }
                self.act(node, actions);
            }
            Message::AckSequence(sequence) => {
                let mut actions = Vec::new();
                self.slots[node].life.acknowledged(sequence, &mut actions);
                self.act(node, actions);
            }
            Message::HeartbeatEcho(echo) => self.on_echo(node, echo),
            Message::HeartbeatIntervalMs(interval) => {
                self.slots[node].heartbeat_ms = u64::from(interval.max(1));
            }
        }
        self.note(node);
    }

    fn on_welcome(&mut self, node: usize, welcome: &v1::SessionWelcome) {
        let slot = &mut self.slots[node];
        slot.heartbeat_ms = u64::from(welcome.heartbeat_interval_ms.max(1));
        slot.lease_ms = u64::from(welcome.lease_ttl_ms);
        let opened = slot.opened;
        self.heard(node, opened);
        self.settle_store(node, welcome.store_id);
        let slot = &mut self.slots[node];
        if !slot.welcomed {
            slot.welcomed = true;
            slot.was_welcomed = true;
            let (generation, heartbeat_ms) = (slot.generation, slot.heartbeat_ms);
            // Spread over the interval, so that thousands of nodes do not speak at once.
            let first = self.rng.random_range(0..=heartbeat_ms);
            self.timers.set(self.clock.now().plus(first), Timer::Heartbeat { node, generation });
            self.count(|stats| stats.connected += 1);
        }
    }

    /// The session that begins is of `store`.
    fn settle_store(&mut self, node: usize, store: u64) {
        let slot = &mut self.slots[node];
        slot.is_other_store = false;
        if store == 0 || store == slot.store {
            return;
        }
        if slot.store != 0 {
            slot.life.change_store();
            let (before, left_over) = (slot.store, slot.life.has_left_over());
            // Thousands of nodes may live in one process: worth a line is what has to end.
            if left_over {
                tracing::info!(node = %slot.name, before, store, "what is left over of another store ends");
            } else {
                tracing::debug!(node = %slot.name, before, store, "the store is another one");
            }
        }
        slot.store = store;
        // Behind the entries of what is left over, which are forgotten: until then they are of the store before.
        self.forget.push(Entry::Store(slot.name.clone(), store));
    }

    fn on_assignment(&mut self, node: usize, assignment: &v1::Assignment, again: bool) {
        if assignment.stop_after_disconnect_ms > 0 {
            self.look_after(node, assignment.stop_after_disconnect_ms);
        }
        let mut actions = Vec::new();
        for ordinal in session::ordinals(assignment) {
            let orders = session::orders(assignment, ordinal, self.processes.is_some());
            let key = Key { unit: assignment.unit_id, ordinal };
            let slot = &mut self.slots[node];
            if again {
                slot.life.assign(key, assignment.incarnation, orders, &mut actions);
                continue;
            }
            let told = slot.n_to_refuse > 0;
            slot.n_to_refuse = slot.n_to_refuse.saturating_sub(1);
            let has = slot.def.has();
            if let Err(why) = slot.life.offer(key, assignment.incarnation, orders, (&has, told), &mut actions)
            {
                let (unit, why) = (assignment.unit_name.as_str(), why.name());
                tracing::info!(node = %slot.name, unit, ordinal, why, "assignment refused");
            }
        }
        self.act(node, actions);
    }

    /// Does what a life asks for.
    fn act(&mut self, node: usize, actions: Vec<Action>) {
        let mut more = Vec::new();
        for action in actions {
            match action {
                Action::Start(key, incarnation) => self.start(node, key, incarnation),
                Action::Wait { key, incarnation, restarts, after_ms } => {
                    let at = self.clock.now().plus(after_ms);
                    self.timers.set(at, Timer::Restart { node, key, incarnation, restarts });
                }
                Action::Stop { key, incarnation, grace_ms } => match &mut self.processes {
                    Some(processes) if processes.has(key, incarnation) => {
                        processes.stop(key, incarnation, Duration::from_millis(grace_ms.into()));
                    }
                    _ => {
                        let now = self.clock.now();
                        self.slots[node].life.ended(key, incarnation, STOPPED, now, &mut more);
                    }
                },
                Action::Keep(status) => self.keep.push(Entry::Ended(self.slots[node].name.clone(), status)),
                Action::Forget(status) => {
                    self.forget.push(Entry::Acknowledged(self.slots[node].name.clone(), status));
                }
            }
        }
        if !more.is_empty() {
            self.act(node, more);
        }
    }

    fn start(&mut self, node: usize, key: Key, incarnation: u32) {
        let life = &mut self.slots[node].life;
        match life.work(key, incarnation) {
            None => {}
            Some(Work::Program(program)) => {
                if let Some(processes) = &mut self.processes {
                    processes.start(key, incarnation, node, program);
                }
            }
            Some(&Work::Simulated { duration_ms, exit_code }) => {
                let now = self.clock.now();
                life.started(key, incarnation, now);
                if let Some(duration_ms) = duration_ms {
                    let at = now.plus(self.config.scaled_ms(duration_ms));
                    self.timers.set(at, Timer::Finish { node, key, incarnation, exit_code, since: now });
                }
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        let Some(processes) = &mut self.processes else { return };
        let now = self.clock.now();
        let mut actions = Vec::new();
        let node = match event {
            Event::Started(node, key, incarnation) => {
                self.slots[node].life.started(key, incarnation, now);
                node
            }
            Event::Ended(node, key, incarnation, exit_code) => {
                processes.forget(key, incarnation);
                self.slots[node].life.ended(key, incarnation, exit_code, now, &mut actions);
                node
            }
        };
        self.act(node, actions);
        self.note(node);
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
                Timer::Finish { node, key, incarnation, exit_code, since } => {
                    // Of what had its name in another store it is none.
                    if self.slots[node].life.running_since(key, incarnation) != Some(since) {
                        continue;
                    }
                    let mut actions = Vec::new();
                    self.slots[node].life.ended(key, incarnation, exit_code, now, &mut actions);
                    self.act(node, actions);
                    self.note(node);
                }
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
        let early = self.rng.random_range(0..=slot.heartbeat_ms / HEARTBEAT_JITTER);
        let at = now.plus((slot.heartbeat_ms - early).max(1));
        self.timers.set(at, Timer::Heartbeat { node, generation });
    }

    fn send_heartbeat(&self, node: usize, now: Millis) {
        let slot = &self.slots[node];
        let Some(outbound) = &slot.outbound else { return };
        let used = (self.mode == Mode::Simulated)
            .then(|| self.use_model.used(node, slot.life.weights(), Millis(now.since(self.started))));
        let usage = used.map(|(guaranteed, best_effort)| usage_of(guaranteed.plus(best_effort)));
        let guaranteed_usage = used.map(|(guaranteed, _)| usage_of(guaranteed));
        // A full queue carries messages that show life as well.
        let heartbeat = v1::Heartbeat { usage, echo: self.echo(node, now), guaranteed_usage };
        outbound.send(session::message(v1::session_request::Message::Heartbeat(heartbeat)));
    }

    /// Ends are on the disk before anybody hears of them.
    async fn write_down(&mut self, journal: Option<&Journal>) -> Result<(), journal::Error> {
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
                let Some((sequence, statuses)) = slot.life.next_report() else { break };
                let statuses = statuses.iter().map(session::run_status).collect();
                let report = v1::RunStatusReport { sequence, statuses };
                outbound.send(session::message(v1::session_request::Message::Status(report)));
            }
            if slot.life.is_dirty() && !outbound.has_room() {
                self.timers.set(self.clock.now().plus(FULL_RETRY_MS), Timer::Report(node));
            }
        }
    }

    /// The session is over: open a new one after a while.
    fn lose(&mut self, node: usize, status: &RpcStatus) {
        let slot = &mut self.slots[node];
        slot.generation += 1;
        slot.outbound = None;
        slot.held.clear();
        let was_welcomed = std::mem::take(&mut slot.welcomed);
        if was_welcomed {
            self.count(|stats| {
                stats.connected -= 1;
                stats.lost += 1;
            });
        }
        self.retry(node, status);
    }

    /// A registration was refused. What state will never take from a node that was never let in is not asked for again;
    /// one that was let in before may have been refused by a state of another version for a while.
    fn retry_or_give_up(&mut self, node: usize, status: &RpcStatus) {
        let is_for_good =
            matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented);
        let slot = &self.slots[node];
        if !is_for_good || slot.was_welcomed {
            self.retry(node, status);
            return;
        }
        let message = godel_kit::status::violations_of(status)
            .into_iter()
            .map(|bad| format!("{}: {}", bad.path, bad.description));
        let message = message.collect::<Vec<_>>().join("; ");
        let message = match (message.is_empty(), status.message()) {
            (false, _) => message,
            (true, "") => {
                format!("{:?}: is {} the address of state?", status.code(), self.config.client.state)
            }
            (true, words) => words.to_owned(),
        };
        tracing::error!(node = %slot.name, code = ?status.code(), message, "state refuses this node for good: it is given up");
        self.n_refused += 1;
        self.refused.get_or_insert((slot.name.to_string(), message));
        self.count(|stats| stats.refused += 1);
    }

    fn retry(&mut self, node: usize, status: &RpcStatus) {
        let waits_for_an_admin = matches!(
            status.code(),
            Code::AlreadyExists | Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented
        );
        if waits_for_an_admin || self.n_failures == 0 {
            tracing::info!(node = %self.slots[node].name, code = ?status.code(), why = status.message(), "no session, trying again");
        }
        self.n_failures += 1;
        let spread = u64::try_from(self.config.reconnect_spread.as_millis()).unwrap_or(u64::MAX).max(1);
        let wait = self.rng.random_range(1..=spread);
        self.timers.set(self.clock.now().plus(wait), Timer::Connect(node));
    }

    fn count(&self, change: impl FnOnce(&mut Stats)) {
        if let Some(stats) = &self.stats {
            stats.send_modify(change);
        }
    }
}

/// Use on the wire.
fn usage_of(used: Weight) -> v1::Resources {
    let amounts = [
        (godel_domain::resources::CPU.to_owned(), used.cpu_milli),
        (godel_domain::resources::MEMORY.to_owned(), used.memory),
    ];
    v1::Resources { amounts: amounts.into_iter().collect() }
}
