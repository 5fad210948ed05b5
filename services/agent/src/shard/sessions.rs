//! The sessions of a shard's nodes: a few are opened at a time, and one that is lost is opened again after a while.

use std::sync::Arc;

use godel_base::ids::StoreId;
use godel_kit::status::{has_reason, reason, retry_after};
use godel_proto::v1;
use rand::RngExt as _;
use tonic::{Code, Status as RpcStatus};

use super::{JITTER_PERCENT, JITTER_PERCENT_MAX, Shard, Timer};
use crate::{
    journal::Entry,
    life::N_STATUSES_MAX,
    runtime::process::{Home, left},
    session::{self, Progress, Step},
};

/// Longest time that state may ask for before a session is opened again, milliseconds.
const RETRY_ASKED_MS_MAX: u64 = 60_000;
/// An agent that waits for the name of its node says so this often, milliseconds.
const WARN_EVERY_MS: u64 = 60_000;

impl Shard {
    pub(super) fn start_connecting(&mut self) {
        while self.connecting.len() < self.n_connecting_max {
            let Some(node) = self.waiting.pop_front() else { return };
            let (client, def, report) = (self.client.clone(), &self.slots[node].def, self.report(node));
            self.connecting.push(session::register(client, node, def, report, self.instance));
        }
    }

    pub(super) fn on_progress(&mut self, progress: Progress) {
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
                    instance: self.instance,
                };
                let (tx, step) = session::open(self.client.clone(), node, slot.generation, open);
                slot.outbound = Some(tx);
                // What an agent of another directory has left is this node's once state lets this one speak for it, and not before.
                let is_first = !slot.was_welcomed || registered.store_id != slot.store;
                self.connecting.push(match self.home.clone().filter(|_| is_first) {
                    Some(home) => ending_predecessors(home, registered.store_id, step),
                    None => step,
                });
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

    pub(super) fn on_welcome(&mut self, node: usize, welcome: &v1::SessionWelcome) {
        let slot = &mut self.slots[node];
        slot.heartbeat_ms = u64::from(welcome.heartbeat_interval_ms.max(1));
        slot.lease_ms = u64::from(welcome.lease_ttl_ms);
        let jitter = welcome.heartbeat_jitter_percent.map_or(JITTER_PERCENT, u64::from);
        slot.jitter_percent = jitter.min(JITTER_PERCENT_MAX);
        let n_max = welcome.report_statuses_max.filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
        slot.n_statuses_max = n_max.unwrap_or(N_STATUSES_MAX);
        let opened = slot.opened;
        self.heard(node, opened);
        self.settle_store(node, welcome.store_id);
        self.ask_for_yarn_keys(node);
        let slot = &mut self.slots[node];
        if !slot.welcomed {
            slot.welcomed = true;
            slot.was_welcomed = true;
            slot.warned = None;
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
        slot.volumes_said = None;
        if store == 0 || store == slot.store {
            return;
        }
        if slot.store != 0 {
            slot.life.change_store();
            let (before, left_over) = (slot.store, slot.life.has_left_over());
            // Thousands of nodes may live in one process: worth a line is what has to end.
            if left_over {
                tracing::info!(node = %slot.name, before, store, "running units of another store are stopped");
            } else {
                tracing::debug!(node = %slot.name, before, store, "the store is another one");
            }
        }
        slot.store = store;
        if let Some(home) = &self.home {
            home.set_store(store);
        }
        // Behind the entries of what is left over, which are forgotten: until then they are of the store before.
        self.forget.push(Entry::Store(slot.name.clone(), store));
        self.forget_yarn_revision();
    }

    /// The session is over: open a new one after a while.
    pub(super) fn lose(&mut self, node: usize, status: &RpcStatus) {
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
        if has_reason(status, reason::NODE_LEFT) {
            tracing::info!(node = %self.slots[node].name, "the node has left: its session is not opened again");
            self.n_left += 1;
            return;
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
        tracing::error!(node = %slot.name, code = ?status.code(), message, "state refuses this node for good: its session is not opened again");
        self.n_refused += 1;
        self.refused.get_or_insert((slot.name.to_string(), message));
        self.count(|stats| stats.refused += 1);
    }

    /// Another agent has the node: what runs here is not this one's any more, and may run elsewhere already. It ends before the
    /// node is asked for again, which happens as long as this agent lives.
    fn wait_for_the_name(&mut self, node: usize, status: &RpcStatus) {
        let now = self.clock.now();
        let slot = &mut self.slots[node];
        let is_due = slot.warned.is_none_or(|warned| now.since(warned) >= WARN_EVERY_MS);
        // Of thousands of nodes one is worth a line.
        if is_due && self.names_said.may_speak() {
            slot.warned = Some(now);
            tracing::warn!(node = %slot.name, why = status.message(), "state does not let this agent speak for the node; it tries again");
        }
        let mut actions = Vec::new();
        slot.life.disown(&mut actions);
        if !actions.is_empty() {
            tracing::warn!(node = %slot.name, n = actions.len(), "running units that are another agent's now are ended");
        }
        self.act(node, actions);
    }

    fn retry(&mut self, node: usize, status: &RpcStatus) {
        let waits_for_an_admin =
            matches!(status.code(), Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented);
        if status.code() == Code::AlreadyExists || has_reason(status, reason::NODE_IN_USE) {
            self.wait_for_the_name(node, status);
        } else if waits_for_an_admin || self.n_failures == 0 {
            tracing::info!(node = %self.slots[node].name, code = ?status.code(), why = status.message(), "no session, retrying");
        }
        self.n_failures += 1;
        let spread = u64::try_from(self.config.reconnect_spread.as_millis()).unwrap_or(u64::MAX).max(1);
        // A state that is overloaded says when to come back; so many come that they are spread behind that too.
        let asked = retry_after(status).map_or(0, |asked| u64::try_from(asked.as_millis()).unwrap_or(0));
        let wait = asked.min(RETRY_ASKED_MS_MAX) + self.rng.random_range(1..=spread);
        self.timers.set(self.clock.now().plus(wait), Timer::Connect(node));
    }
}

/// A step before which everything ends that agents have left which spoke for the node in this store before.
fn ending_predecessors(home: Arc<Home>, store: u64, step: Step) -> Step {
    Box::pin(async move {
        left::end_predecessors(home, store).await;
        step.await
    })
}
