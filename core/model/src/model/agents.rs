//! The agents: what each decides is `core/agent`'s; what its service does around it is played, and so is the machine that it runs on.
//!
//! A machine goes on without its agent, as keepers do. What it runs is judged as it starts: an incarnation that has ended is over, one replica
//! runs once on a machine, and what must not run twice runs on one machine only.

use std::collections::{BTreeMap, BTreeSet};

use godel_audit::{AgentReport, AgentRun};
use godel_base::ids::{NodeId, RunningUnitId, UnitId};
use godel_core_agent::{
    AgentAction, AgentOutbox, HowEnded, JournalEntry, JournalKept, LeftRunning, MayWait, NodeAgent,
    RestartBackoff, RunKey, RunOrders, SessionTerms, StopOrder,
};
use godel_membership::agent_admission::Has;

use super::{
    net::{Event, Net},
    numbers::idx,
    reach::Mark,
    sessions::{FromAgent, FromState, StateSession},
};

/// The store behind state.
const STORE: u64 = 7;
/// What is started again in place waits for so long.
const BACKOFF: RestartBackoff = RestartBackoff { first_ms: 1, max_ms: 50, reset_ms: 1_000 };
/// Exit code of what was told to stop.
const STOPPED: i32 = 143;
/// It has room for whatever is bound there: that is judged at each commit.
const HAS: Has = Has {
    cpu_milli: i64::MAX,
    memory: i64::MAX,
    n_devices: 64,
    zones: godel_domain::allocation::ZoneSet(u64::MAX),
    n_running_units: u32::MAX,
};

/// Something that happens in an agent's process.
#[derive(Clone, Copy, Debug)]
pub(super) enum InAgent {
    Restart {
        key: RunKey,
        incarnation: u32,
        restarts: u32,
    },
    StopNoticed(StopOrder),
    /// Contact is looked at.
    Look,
    /// Reports go out.
    Report,
    /// The process is gone: its keepers look at contact.
    Alone,
}

/// What becomes of a run on its machine.
#[derive(Clone, Copy, Debug)]
pub(super) enum OnMachine {
    Started,
    Ended(i32),
}

/// One start of an incarnation, with a keeper.
#[derive(Debug)]
struct KeptRun {
    /// Which start it is.
    number: u64,
    orders: RunOrders<()>,
    left: LeftRunning,
    is_stopping: bool,
    /// It ends by itself as soon as it has started.
    is_short: bool,
    /// It has ended, and no agent has read how.
    ended: Option<HowEnded>,
}

/// How the certificate of an agent counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PlayedLeaf {
    #[default]
    Valid,
    Expired,
    Revoked,
}

/// A node: its machine, its disk, and the agent's process if there is one.
#[derive(Debug, Default)]
pub(super) struct PlayedNode {
    pub(super) in_contact: bool,
    pub(super) leaf: PlayedLeaf,
    agent: Option<NodeAgent<(), FromState>>,
    /// Which process it is.
    life: u64,
    journal: JournalKept,
    runs: BTreeMap<(RunKey, u32), KeptRun>,
    /// What has ended here for good.
    over: BTreeSet<(RunKey, u32)>,
    out: AgentOutbox,
    pub(super) session: StateSession,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Agents {
    pub(super) nodes: BTreeMap<NodeId, PlayedNode>,
    /// What must not run twice ends after so long without contact, milliseconds.
    pub(super) stop_after_ms: u32,
    /// Some runs are slow to start or end by themselves at once, and some reports wait.
    is_odd: bool,
    n_starts: u64,
    /// What should not be.
    pub(super) wrong: Option<String>,
}

impl Agents {
    pub(super) fn new(stop_after_ms: u32, is_odd: bool) -> Self {
        Self { nodes: BTreeMap::new(), stop_after_ms, is_odd, n_starts: 0, wrong: None }
    }

    /// A node joins.
    pub(super) fn join(&mut self, node: NodeId, net: &mut Net) {
        let agent = Some(NodeAgent::new(BACKOFF, 0, 0, net.millis()));
        self.nodes.insert(node, PlayedNode { in_contact: true, agent, ..PlayedNode::default() });
        self.open(node, net);
    }

    pub(super) fn disconnect(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    pub(super) fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    pub(super) fn is_in_contact(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.in_contact)
    }

    /// How the certificate of a node's agent counts.
    pub(super) fn leaf(&self, node: NodeId) -> PlayedLeaf {
        self.nodes.get(&node).map(|node| node.leaf).unwrap_or_default()
    }

    pub(super) fn set_leaf(&mut self, node: NodeId, leaf: PlayedLeaf) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.leaf = leaf;
        }
    }

    /// Contact is lost: nothing more arrives on the session, either way, and the agent does not know yet.
    pub(super) fn lose_contact(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.in_contact = false;
            node.session = StateSession::default();
        }
    }

    /// The session of a node breaks, and both ends hear of it.
    pub(super) fn cut(&mut self, node: NodeId) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.session = StateSession::default();
            if let Some(agent) = &mut node.agent {
                agent.lose();
            }
        }
    }

    /// The agent of a node opens a session, unless it has one. One that was killed begins anew before.
    pub(super) fn open(&mut self, id: NodeId, net: &mut Net) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.session.number == 0) else { return };
        node.in_contact = true;
        if node.agent.is_none() {
            self.begin(id, net);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(agent) = &mut node.agent else { return };
        agent.lose();
        node.session = StateSession::new(net.new_session());
        let running = agent.open(STORE, net.millis()).running;
        net.up(id, node.session.number, FromAgent::Open(running));
        self.act(id, net);
    }

    /// A process begins: it has the journal, and what keepers have gone on with.
    fn begin(&mut self, id: NodeId, net: &mut Net) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let store = node.journal.stores.values().next().copied().unwrap_or(0);
        let now = net.millis();
        let mut agent = NodeAgent::new(BACKOFF, store, 0, now);
        for status in node.journal.ended.values() {
            agent.life_mut().restore(*status);
        }
        let newest: BTreeMap<RunKey, u32> = node.runs.keys().copied().collect();
        for ((key, incarnation), run) in std::mem::take(&mut node.runs) {
            let is_adopted = newest[&key] == incarnation
                && agent.adopt(key, incarnation, run.orders.clone(), run.left, now, &mut node.out);
            match run.ended {
                // It ends before anything else happens.
                _ if !is_adopted => {}
                Some(ended) => {
                    agent.life_mut().ended(key, incarnation, ended, None, now, &mut node.out);
                    if agent.life().live_run(key, incarnation).is_none() {
                        node.over.insert((key, incarnation));
                    }
                }
                None => {
                    net.reach.mark(Mark::TakenOverRuns);
                    node.runs.insert((key, incarnation), run);
                }
            }
        }
        node.agent = Some(agent);
        self.act(id, net);
    }

    /// The process of an agent dies, and what runs on its machine with it, or not.
    pub(super) fn kill(&mut self, id: NodeId, dies_all: bool, net: &mut Net) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.agent = None;
        node.life += 1;
        node.out.clear();
        if dies_all {
            if node.runs.values().any(|run| run.ended.is_none()) {
                net.reach.mark(Mark::KilledWithRuns);
            }
            node.runs.retain(|_, run| run.ended.is_some());
        }
        net.after(u64::from(self.stop_after_ms), Event::InAgent(id, node.life, InAgent::Alone));
        self.lose_contact(id);
    }

    /// A message of state arrives.
    pub(super) fn hear(&mut self, id: NodeId, session: u64, message: FromState, net: &mut Net) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.in_contact) else { return };
        let Some(agent) = node.agent.as_mut().filter(|_| node.session.number == session) else { return };
        let kind = match &message {
            FromState::Assign { runs, .. } if runs.iter().any(|run| run.orders.stop_after_ms > 0) => {
                MayWait::MustStop
            }
            FromState::Assign { .. } | FromState::Stop(_) => MayWait::Follows,
            FromState::Welcome(_) | FromState::Ack(_) | FromState::Echo(_) => MayWait::Never,
        };
        if !agent.must_wait(kind, net.millis()) {
            self.obey(id, message, net);
        } else if agent.hold(message) {
            net.up(id, session, FromAgent::Heartbeat(agent.echo(net.millis())));
        }
    }

    fn obey(&mut self, id: NodeId, message: FromState, net: &mut Net) {
        let now = net.millis();
        let Some(PlayedNode { agent: Some(agent), out, .. }) = self.nodes.get_mut(&id) else { return };
        let mut held = Vec::new();
        match message {
            FromState::Welcome(n_statuses_max) => {
                let terms = SessionTerms {
                    heartbeat_ms: u64::from(self.stop_after_ms / 6),
                    lease_ms: u64::from(self.stop_after_ms),
                    jitter_percent: None,
                    n_statuses_max: Some(n_statuses_max),
                    store: STORE,
                };
                agent.welcome(&terms, now, out);
            }
            FromState::Assign { runs } => {
                for run in runs {
                    if let Err(why) = agent.assign(run, &HAS, out) {
                        self.wrong.get_or_insert(format!("node {id} refuses what fits there: {why:?}"));
                    }
                }
            }
            FromState::Stop(stops) => stops.into_iter().for_each(|stop| agent.stop(stop, out)),
            FromState::Ack(sequence) => agent.life_mut().acknowledged(sequence, out),
            FromState::Echo(echo) => held = agent.on_echo(echo, now).1,
        }
        self.act(id, net);
        held.into_iter().for_each(|message| self.obey(id, message, net));
    }

    /// Something happens in an agent's process.
    pub(super) fn on_agent(&mut self, id: NodeId, life: u64, what: InAgent, net: &mut Net) {
        let now = net.millis();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.life == life) else { return };
        let Some(agent) = &mut node.agent else {
            if matches!(what, InAgent::Alone) {
                self.end_alone(id);
            }
            return;
        };
        let out = &mut node.out;
        match what {
            InAgent::Restart { key, incarnation, restarts } => {
                agent.life_mut().restart(key, incarnation, restarts, out);
            }
            InAgent::StopNoticed(StopOrder { key, incarnation, grace_ms, .. }) => {
                agent.life_mut().stop_noticed(key, incarnation, grace_ms, out);
            }
            InAgent::Look => {
                let mut held = Vec::new();
                if node.in_contact && node.session.is_open {
                    // Its last heartbeat was answered.
                    held = agent.on_echo(now.0, now).1;
                }
                agent.check_contact(now, out);
                self.act(id, net);
                held.into_iter().for_each(|message| self.obey(id, message, net));
                return;
            }
            InAgent::Report => {
                agent.begin_reports();
                while let Some(report) = agent.next_report() {
                    net.up(id, node.session.number, FromAgent::Status(report));
                }
                return;
            }
            InAgent::Alone => return,
        }
        self.act(id, net);
    }

    /// Keepers without an agent end what must not run twice.
    fn end_alone(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        for run in node.runs.values_mut().filter(|run| run.orders.stop_after_ms > 0) {
            run.ended.get_or_insert(HowEnded { exit_code: STOPPED, ..HowEnded::default() });
        }
    }

    /// Something happens to a run on its machine.
    pub(super) fn on_machine(
        &mut self,
        id: NodeId,
        key: RunKey,
        incarnation: u32,
        number: u64,
        what: OnMachine,
        net: &mut Net,
    ) {
        let now = net.millis();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let run = node.runs.get_mut(&(key, incarnation)).filter(|run| run.number == number);
        let Some(run) = run.filter(|run| run.ended.is_none()) else { return };
        match what {
            OnMachine::Started => {
                run.left.started_ms = net.wall_ms();
                if let Some(agent) = &mut node.agent {
                    agent.life_mut().started(key, incarnation, run.left.started_ms, now);
                }
                if run.is_short {
                    let exit_code = i32::from(net.numbers.chance(60));
                    net.after(0, Event::OnMachine(id, key, incarnation, number, OnMachine::Ended(exit_code)));
                }
            }
            OnMachine::Ended(exit_code) => {
                let ended = HowEnded { exit_code, ..HowEnded::default() };
                run.ended = Some(ended);
                if let Some(agent) = &mut node.agent {
                    node.runs.remove(&(key, incarnation));
                    agent.life_mut().ended(key, incarnation, ended, None, now, &mut node.out);
                    if agent.life().live_run(key, incarnation).is_none() {
                        node.over.insert((key, incarnation));
                    }
                }
            }
        }
        self.act(id, net);
    }

    /// One of the running units ends by itself.
    pub(super) fn end_one(&mut self, choice: u64, is_well: bool, net: &mut Net) {
        let all = self.nodes.iter().flat_map(|(id, node)| node.runs.iter().map(move |run| (*id, run)));
        let live = all.filter(|(_, (_, run))| run.left.started_ms > 0 && run.ended.is_none());
        let live: Vec<_> =
            live.map(|(id, ((key, incarnation), run))| (id, *key, *incarnation, run.number)).collect();
        if !live.is_empty() {
            let (id, key, incarnation, number) = live[idx(choice, live.len())];
            self.on_machine(id, key, incarnation, number, OnMachine::Ended(i32::from(!is_well)), net);
        }
    }

    /// Does what the agent of a node wants, and what follows from that.
    fn act(&mut self, id: NodeId, net: &mut Net) {
        let mut at = 0;
        while let Some(action) = self.nodes.get(&id).and_then(|node| node.out.get(at)).copied() {
            at += 1;
            self.do_action(id, action, net);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.out.clear();
        if node.agent.as_mut().is_some_and(NodeAgent::note) {
            // Now and then the stream is full.
            let longest_ms = if self.is_odd && net.numbers.chance(15) { 40 } else { 2 };
            let after_ms = net.numbers.below(longest_ms);
            net.after(after_ms, Event::InAgent(id, node.life, InAgent::Report));
        }
    }

    fn do_action(&mut self, id: NodeId, action: AgentAction, net: &mut Net) {
        let now = net.millis();
        let name = format!("n{id}").into();
        if let AgentAction::Start(key, incarnation) = action {
            return self.start(id, key, incarnation, net);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let life = node.life;
        match action {
            AgentAction::Start(..) => {}
            AgentAction::Wait { key, incarnation, restarts, after_ms } => {
                let restart = InAgent::Restart { key, incarnation, restarts };
                net.after(after_ms, Event::InAgent(id, life, restart));
            }
            AgentAction::Stop { key, incarnation, .. } => match node.runs.get_mut(&(key, incarnation)) {
                Some(run) => {
                    // Some take longer to stop.
                    let longest_ms = if self.is_odd && net.numbers.chance(20) { 60 } else { 3 };
                    if !std::mem::replace(&mut run.is_stopping, true) {
                        let ended = OnMachine::Ended(STOPPED);
                        let after_ms = net.numbers.below(longest_ms);
                        net.after(after_ms, Event::OnMachine(id, key, incarnation, run.number, ended));
                    }
                }
                None => {
                    let Some(agent) = &mut node.agent else { return };
                    let ended = HowEnded { exit_code: STOPPED, ..HowEnded::default() };
                    agent.life_mut().ended(key, incarnation, ended, None, now, &mut node.out);
                }
            },
            AgentAction::StopLater(stop) => {
                net.after(u64::from(stop.notice_ms), Event::InAgent(id, life, InAgent::StopNoticed(stop)));
            }
            AgentAction::Keep(status) => node.journal.apply(&JournalEntry::Ended(name, status)),
            // Nothing is lost with this but a repeated report.
            AgentAction::Forget(status) if !net.numbers.chance(20) => {
                node.journal.apply(&JournalEntry::Acknowledged(name, status));
            }
            AgentAction::Forget(_) => {}
            AgentAction::KeepStore(store) => node.journal.apply(&JournalEntry::Store(name, store)),
            AgentAction::LookAt(at) => net.at(at.0, Event::InAgent(id, life, InAgent::Look)),
        }
    }

    fn start(&mut self, id: NodeId, key: RunKey, incarnation: u32, net: &mut Net) {
        let RunKey { unit, ordinal } = key;
        let lives = |node: &PlayedNode| {
            let mut runs = node.runs.range((key, 0)..=(key, u32::MAX));
            runs.any(|(_, run)| run.ended.is_none())
        };
        let is_elsewhere = self.nodes.iter().any(|(other, node)| *other != id && lives(node));
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let Some(run) = node.agent.as_ref().and_then(|agent| agent.life().live_run(key, incarnation)) else {
            return;
        };
        let left = LeftRunning { restarts: run.restarts(), in_row: run.restarts_in_row(), started_ms: 0 };
        let orders = run.orders().clone();
        for (is_wrong, why) in [
            (node.over.contains(&(key, incarnation)), "has ended there"),
            (lives(node), "runs there"),
            (is_elsewhere && orders.stop_after_ms > 0, "runs elsewhere"),
        ] {
            if is_wrong {
                self.wrong.get_or_insert(format!(
                    "{unit}/{ordinal} incarnation {incarnation} starts on node {id}, and {why}"
                ));
            }
        }
        self.n_starts += 1;
        let number = self.n_starts;
        let is_slow = self.is_odd && net.numbers.chance(8);
        // What has failed once often fails again.
        let is_short = self.is_odd && net.numbers.chance(if is_slow || left.restarts > 0 { 50 } else { 1 });
        let kept = KeptRun { number, orders, left, is_stopping: false, is_short, ended: None };
        node.runs.insert((key, incarnation), kept);
        let longest_ms = if is_slow { 200 } else { 2 };
        let after_ms = net.numbers.below(longest_ms);
        net.after(after_ms, Event::OnMachine(id, key, incarnation, number, OnMachine::Started));
    }

    /// For the audit.
    pub(super) fn reports(&self) -> Vec<AgentReport> {
        let report = |(id, node): (&NodeId, &PlayedNode)| {
            let agent = node.agent.as_ref();
            let running =
                agent.into_iter().flat_map(|agent| agent.life().statuses()).map(|status| AgentRun {
                    id: RunningUnitId::new(UnitId(status.key.unit), status.key.ordinal, status.incarnation),
                    phase: status.phase,
                });
            AgentReport {
                node: *id,
                name: format!("n{id}"),
                connected: node.in_contact,
                running: running.collect(),
            }
        };
        self.nodes.iter().map(report).collect()
    }
}
