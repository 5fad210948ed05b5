//! The sessions of a shard's nodes: a few are opened at a time, and one that is lost is opened again after a while.

use std::sync::Arc;

use godel_core_agent::{SessionBegins, SessionTerms, SessionWelcomed, StoreChange};
use godel_kit::status::{has_reason, reason, retry_after};
use godel_proto::v1;
use rand::RngExt as _;
use tonic::{Code, Status as RpcStatus};

use super::{Connections, HostedNode, Shard, ShardEnd, Timer};
use crate::{
    runtime::process::{Home, left},
    session::{self, Progress, Step},
};

/// Longest time that state may ask for before a session is opened again, milliseconds.
const RETRY_ASKED_MS_MAX: u64 = 60_000;
/// An agent that waits for the name of its node says so this often, milliseconds.
const WARN_EVERY_MS: u64 = 60_000;

impl Connections {
    /// How the shard ends, if it speaks for none of its nodes any more.
    pub(super) fn end(&mut self, n_nodes: usize) -> Option<ShardEnd> {
        if n_nodes == 0 || self.n_refused + self.n_left < n_nodes {
            return None;
        }
        let refused = self.refused.take().filter(|_| self.n_left == 0);
        Some(refused.map_or(ShardEnd::Left, |(node, message)| ShardEnd::Refused(node, message)))
    }
}

impl Shard {
    pub(super) fn start_connecting(&mut self) {
        let Connections { client, n_connecting_max, waiting, connecting, .. } = &mut self.connections;
        while connecting.len() < *n_connecting_max {
            let Some(node) = waiting.pop_front() else { return };
            let def = &self.nodes[node].def;
            let report = self.real.report(def, self.mode);
            connecting.push(session::register(client.clone(), node, def, report, self.instance));
        }
    }

    pub(super) fn on_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Registered { node, result: Ok(registered) } => {
                let HostedNode { def, agent, outbound, .. } = &mut self.nodes[node];
                let store = agent.session().store();
                let SessionBegins { generation, running, is_first } =
                    agent.open(registered.store_id, self.clock.now());
                let open = v1::SessionOpen {
                    node_id: registered.node_id,
                    uid: def.uid.clone(),
                    epoch: registered.epoch,
                    running: running.iter().map(session::run_status).collect(),
                    more: false,
                    store_id: store,
                    instance: self.instance,
                };
                let (tx, step) = session::open(self.connections.client.clone(), node, generation, open);
                *outbound = Some(tx);
                // What an agent of another directory has left is this node's once state lets this one speak for it, and not before.
                self.connections.connecting.push(match self.real.home.clone().filter(|_| is_first) {
                    Some(home) => ending_predecessors(home, registered.store_id, step),
                    None => step,
                });
                self.note(node);
            }
            Progress::Opened { result: Ok(inbound), .. } => self.connections.inbound.push(*inbound),
            Progress::Registered { node, result: Err(status) } => self.retry_or_give_up(node, &status),
            Progress::Opened { node, generation, result: Err(status) } => {
                if self.nodes[node].agent.session().generation() == generation {
                    self.lose(node, &status);
                }
            }
        }
    }

    pub(super) fn on_welcome(&mut self, at: usize, welcome: &v1::SessionWelcome) {
        let n_statuses_max = welcome.report_statuses_max.filter(|n| *n > 0);
        let terms = SessionTerms {
            heartbeat_ms: u64::from(welcome.heartbeat_interval_ms.max(1)),
            lease_ms: u64::from(welcome.lease_ttl_ms),
            jitter_percent: welcome.heartbeat_jitter_percent.map(u64::from),
            n_statuses_max: n_statuses_max.and_then(|n| usize::try_from(n).ok()),
            store: welcome.store_id,
        };
        let now = self.clock.now();
        let node = &mut self.nodes[at];
        node.volumes_said = None;
        let SessionWelcomed { is_new, age_ms, store_change } = node.agent.welcome(&terms, now, &mut self.out);
        self.real.renew_contact(age_ms);
        if let Some(StoreChange { before, store }) = store_change {
            // Thousands of nodes may live in one process: worth a line is what has to end.
            if node.agent.life().has_left_over() {
                tracing::info!(node = %node.name, before, store, "running units of another store are stopped");
            } else {
                tracing::debug!(node = %node.name, before, store, "the store is another one");
            }
        }
        self.act(at);
        let node = &mut self.nodes[at];
        self.containers.iter().for_each(|desk| desk.ask_for_keys(node));
        if is_new {
            node.warned = None;
            let generation = node.agent.session().generation();
            // Spread over the interval, so that thousands of nodes do not speak at once.
            let first = self.rng.random_range(0..=node.agent.heartbeat_ms());
            self.timers.set(now.plus(first), Timer::Heartbeat { node: at, generation });
            self.stats.send_modify(|stats| stats.connected += 1);
        }
    }

    /// The session is over: open a new one after a while.
    pub(super) fn lose(&mut self, at: usize, status: &RpcStatus) {
        let node = &mut self.nodes[at];
        node.outbound = None;
        if node.agent.lose() {
            self.stats.send_modify(|stats| {
                stats.connected -= 1;
                stats.lost += 1;
            });
        }
        if has_reason(status, reason::NODE_LEFT) {
            tracing::info!(node = %node.name, "the node has left: its session is not opened again");
            self.connections.n_left += 1;
            return;
        }
        self.retry(at, status);
    }

    /// A registration was refused. What state will never take from a node that was never let in is not asked for again;
    /// one that was let in before may have been refused by a state of another version for a while.
    fn retry_or_give_up(&mut self, at: usize, status: &RpcStatus) {
        let node = &self.nodes[at];
        if !waits_for_an_admin(status) || node.agent.session().was_welcomed() {
            self.retry(at, status);
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
        tracing::error!(node = %node.name, code = ?status.code(), message, "state refuses this node for good: its session is not opened again");
        self.connections.n_refused += 1;
        self.connections.refused.get_or_insert((node.name.to_string(), message));
        self.stats.send_modify(|stats| stats.refused += 1);
    }

    /// Another agent has the node: what runs here is not this one's any more, and may run elsewhere already. It ends before the
    /// node is asked for again, which happens as long as this agent lives.
    fn wait_for_the_name(&mut self, at: usize, status: &RpcStatus) {
        let now = self.clock.now();
        let node = &mut self.nodes[at];
        let is_due = node.warned.is_none_or(|warned| now.since(warned) >= WARN_EVERY_MS);
        // Of thousands of nodes one is worth a line.
        if is_due && self.connections.names_said.may_speak() {
            node.warned = Some(now);
            tracing::warn!(node = %node.name, why = status.message(), "state does not let this agent speak for the node; it tries again");
        }
        node.agent.life_mut().disown(&mut self.out);
        if !self.out.is_empty() {
            tracing::warn!(node = %node.name, n = self.out.len(), "running units that are another agent's now are ended");
        }
        self.act(at);
    }

    fn retry(&mut self, node: usize, status: &RpcStatus) {
        if status.code() == Code::AlreadyExists || has_reason(status, reason::NODE_IN_USE) {
            self.wait_for_the_name(node, status);
        } else if waits_for_an_admin(status) || self.connections.n_failures == 0 {
            tracing::info!(node = %self.nodes[node].name, code = ?status.code(), why = status.message(), "no session, retrying");
        }
        self.connections.n_failures += 1;
        let spread = u64::try_from(self.config.reconnect_spread.as_millis()).unwrap_or(u64::MAX).max(1);
        // A state that is overloaded says when to come back; so many come that they are spread behind that too.
        let asked = retry_after(status).map_or(0, |asked| u64::try_from(asked.as_millis()).unwrap_or(0));
        let wait = asked.min(RETRY_ASKED_MS_MAX) + self.rng.random_range(1..=spread);
        self.timers.set(self.clock.now().plus(wait), Timer::Connect(node));
    }
}

/// Whether state refuses what asking again does not change.
fn waits_for_an_admin(status: &RpcStatus) -> bool {
    matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented)
}

/// A step before which everything ends that agents have left which spoke for the node in this store before.
fn ending_predecessors(home: Arc<Home>, store: u64, step: Step) -> Step {
    Box::pin(async move {
        left::end_predecessors(home, store).await;
        step.await
    })
}
