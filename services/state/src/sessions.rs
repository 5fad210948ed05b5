//! Agents' sessions: one stream per node, thousands per process.
//!
//! A session is a stream that is polled by its connection's own task: no task, no timer, no channel per
//! session. What changes for a node is put into its [`cell::Cell`] by the feed and picked up by that stream;
//! what agents report goes to one committer for all. The lease of each node is a number in its cell, looked
//! at by one periodic scan.
//!
//! Locks: the store's state may be read while no cell is locked, and never the other way round, so nobody
//! waits in a circle.

pub(crate) mod cell;
pub(crate) mod committer;
pub(crate) mod delivery;
pub(crate) mod due_nodes;
pub(crate) mod epochs;
pub(crate) mod failures;
pub(crate) mod measure;
mod peers;
pub(crate) mod statuses;
pub(crate) mod stream;
pub(crate) mod templates;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cell::{Cell, CellReport, Close};
use committer::Queue;
use delivery::Delivery;
use due_nodes::DueNodes;
use epochs::SessionEpochs;
use failures::Failures;
use godel_base::{
    ids::{NodeId, RunningUnitId, StoreId},
    time::Millis,
};
use godel_domain::{node::Quarantine, running_units::RunningUnit};
use godel_kit::{clock::SharedClock, quiet::Quiet};
use godel_proto::v1;
use godel_store::{Key as RecordKey, State, Store};
use measure::Measuring;
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use templates::UnitTemplates;

use godel_membership::{
    agent_admission::AssignmentRefusal,
    node_failures::FailureConfig,
    node_identity::{Rival, RivalKind},
    quarantine,
};

use crate::{metrics::StateMetrics, nodes::names::NodeNames, processes::Questions};

/// Names of the keys that nodes need: of masters that call them, and of containers to be started.
const NODE_KEYS: [&str; 2] = ["nm", "container"];

/// A node of this process.
#[derive(Debug)]
pub(crate) struct NodeEntry {
    pub(crate) node: NodeId,
    pub(crate) cell: Mutex<Cell>,
}

/// Intervals of sessions, milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) heartbeat_interval_ms: u32,
    pub(crate) heartbeat_jitter_percent: u32,
    pub(crate) report_statuses_max: u32,
    pub(crate) lease_ttl_ms: u32,
    pub(crate) stop_after_disconnect_ms: u32,
    pub(crate) open_timeout_ms: u32,
    /// From the loss of a node to the end of what runs there; the dispatcher asks for it.
    pub(crate) node_grace_ms: u32,
    /// From the loss of a node without running units to the end of its record; 0: never.
    pub(crate) node_absence_ms: u64,
}

/// Everything that sessions, the feed and the RPCs share.
pub(crate) struct NodeSessions {
    pub(crate) store: Store,
    clock: SharedClock,
    pub(crate) timing: Timing,
    pub(crate) measuring: Measuring,
    quarantine: quarantine::Config,
    failing: FailureConfig,
    failures: Mutex<Failures>,
    pub(crate) names: RwLock<NodeNames>,
    pub(crate) templates: UnitTemplates,
    pub(crate) queue: Queue,
    pub(crate) metrics: StateMetrics,
    pub(crate) crash: godel_crash::CrashPoints,
    pub(crate) questions: Questions,
    /// By node id.
    slots: RwLock<Vec<Option<Arc<NodeEntry>>>>,
    next_session: AtomicU64,
    n_sessions: AtomicU64,
    pub(crate) epochs: SessionEpochs,
    pub(crate) delivery: Delivery,
    pub(crate) due_nodes: DueNodes,
    /// Nodes whose agents are to end when their records are gone.
    leaving: Mutex<BTreeSet<NodeId>>,
    /// When a conflict was last logged.
    rivals_said: Quiet,
    /// Until when nodes are quarantined, by their records, Unix milliseconds.
    quarantined: Mutex<BTreeMap<NodeId, i64>>,
    /// Nodes whose records say that the certificates of their agents have expired.
    expired: Mutex<BTreeSet<NodeId>>,
}

impl NodeSessions {
    pub(crate) fn new(
        store: Store,
        clock: SharedClock,
        timing: Timing,
        measuring: Measuring,
        quarantine: quarantine::Config,
        failing: FailureConfig,
        metrics: StateMetrics,
        crash: godel_crash::CrashPoints,
    ) -> Self {
        Self {
            store,
            clock,
            timing,
            measuring,
            quarantine,
            failing,
            failures: Mutex::default(),
            names: RwLock::default(),
            templates: UnitTemplates::new(timing.stop_after_disconnect_ms),
            queue: Queue::default(),
            metrics,
            crash,
            questions: Questions::default(),
            slots: RwLock::default(),
            next_session: AtomicU64::new(1),
            n_sessions: AtomicU64::new(0),
            epochs: SessionEpochs::default(),
            delivery: Delivery::default(),
            due_nodes: DueNodes::default(),
            leaving: Mutex::default(),
            rivals_said: Quiet::default(),
            quarantined: Mutex::default(),
            expired: Mutex::default(),
        }
    }

    /// The store that is served.
    pub(crate) fn store_id(&self) -> StoreId {
        self.store.read(State::store_id)
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    pub(crate) fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// A node lost its lease unless it is heard of until then.
    pub(crate) fn deadline(&self) -> Millis {
        self.now().plus(u64::from(self.timing.lease_ttl_ms))
    }

    /// The node of `cell` has just been heard of.
    pub(crate) fn heard(&self, node: NodeId, cell: &mut Cell) {
        cell.deadline = self.deadline();
        cell.left = false;
        if !cell.ready {
            self.due_nodes.look_at(node);
        }
    }

    /// The agent of `cell` has said goodbye: its lease is over.
    pub(crate) fn left(&self, node: NodeId, cell: &mut Cell) {
        cell.deadline = self.now();
        cell.left = true;
        self.due_nodes.look_at(node);
    }

    /// An agent was refused because another one speaks for its node: that one is told, and so is who looks at the node.
    pub(crate) fn note_rival(&self, node: NodeId, rival: Rival) {
        let Some(slot) = self.slot(node) else { return };
        let (address, uid) = (rival.address.clone(), rival.uid.clone());
        let kind = rival.kind;
        let (is_told, waker) = slot.cell.lock().note_rival(rival, self.wall_ms());
        // Thousands of nodes may be claimed at once: one line is enough, the others are shown with their nodes.
        if is_told && self.rivals_said.may_speak() {
            let name = self.names.read().of(node).map(|(name, _)| name.to_owned()).unwrap_or_default();
            let what = match kind {
                RivalKind::OtherInstallation => "another installation claims the name of a node",
                RivalKind::SameInstallation => "two agents share the identity of a node",
            };
            tracing::warn!(
                node = name,
                address,
                uid,
                "{what}: it was refused, and the connected agent keeps the node"
            );
        }
        wake(waker);
    }

    /// The slot of a node, if it is registered.
    pub(crate) fn slot(&self, node: NodeId) -> Option<Arc<NodeEntry>> {
        self.slots.read().get(node.idx())?.clone()
    }

    /// The slot of a node, made now if there is none.
    pub(crate) fn slot_or_new(&self, node: NodeId) -> Arc<NodeEntry> {
        if let Some(slot) = self.slot(node) {
            return slot;
        }
        let mut slots = self.slots.write();
        if slots.len() <= node.idx() {
            slots.resize(node.idx() + 1, None);
        }
        // Its absence counts from here on.
        let now = self.now();
        let new = || Arc::new(NodeEntry { node, cell: Mutex::new(Cell::new(now)) });
        Arc::clone(slots[node.idx()].get_or_insert_with(new))
    }

    /// All slots, in order of node id.
    pub(crate) fn slots(&self) -> Vec<Arc<NodeEntry>> {
        self.slots.read().iter().flatten().cloned().collect()
    }

    /// A node record is gone: its session ends.
    pub(crate) fn remove(&self, node: NodeId) {
        self.quarantine(node, None);
        self.note_expired(node, None);
        self.note_spec(node, None);
        let slot = self.slots.write().get_mut(node.idx()).and_then(Option::take);
        if let Some(slot) = slot {
            let why = if self.leaving.lock().remove(&node) { Close::Left } else { Close::Deleted };
            wake(slot.cell.lock().close(why));
        }
    }

    /// The record of a node is about to go for good; or it stays after all.
    pub(crate) fn set_leaving(&self, node: NodeId, leaves: bool) {
        let mut leaving = self.leaving.lock();
        if leaves {
            leaving.insert(node)
        } else {
            leaving.remove(&node)
        };
    }

    /// Ends every session.
    pub(crate) fn close_all(&self, why: Close) {
        for slot in self.slots() {
            wake(slot.cell.lock().close(why));
        }
    }

    pub(crate) fn n_sessions(&self) -> u64 {
        self.n_sessions.load(Ordering::Relaxed)
    }

    /// The measured use of a node that is older is not known any more, milliseconds: three reports.
    pub(crate) fn load_age_max_ms(&self) -> u64 {
        3 * u64::from(self.timing.heartbeat_interval_ms)
    }

    /// The agent of a node did not start what it was assigned. After too many the writer of node records quarantines it.
    pub(crate) fn refused(&self, node: NodeId, cell: &mut Cell, why: AssignmentRefusal) {
        self.metrics.assignments_refused.get_or_create(&vec![("why", why.name())]).inc();
        let refusals = cell.agent.refusals.get_or_insert_default();
        if let Some(reason) = refusals.note(why, self.now(), &self.quarantine) {
            let since_ms = self.wall_ms();
            let lasts_ms = i64::try_from(self.quarantine.lasts_ms).unwrap_or(i64::MAX);
            let quarantine = Quarantine { since_ms, until_ms: since_ms.saturating_add(lasts_ms), reason };
            self.due_nodes.quarantine(node, quarantine);
        }
    }

    /// A node's record says until when it is quarantined, Unix milliseconds; `None`: it is not.
    pub(crate) fn quarantine(&self, node: NodeId, until_ms: Option<i64>) {
        let mut quarantined = self.quarantined.lock();
        match until_ms {
            Some(until_ms) => quarantined.insert(node, until_ms),
            None => quarantined.remove(&node),
        };
        self.metrics.nodes_quarantined.set(i64::try_from(quarantined.len()).unwrap_or(i64::MAX));
    }

    /// A node's record says since when the certificate of its agent has expired, Unix milliseconds; `None`: it has not.
    pub(crate) fn note_expired(&self, node: NodeId, since_ms: Option<i64>) {
        let mut expired = self.expired.lock();
        match since_ms {
            Some(_) => expired.insert(node),
            None => expired.remove(&node),
        };
        self.metrics.identities_expired.set(i64::try_from(expired.len()).unwrap_or(i64::MAX));
    }

    /// Nodes whose records say that the certificates of their agents have expired.
    pub(crate) fn expired_identities(&self) -> BTreeSet<NodeId> {
        self.expired.lock().clone()
    }

    /// Whether the record of a node says that the certificate of its agent has expired.
    pub(crate) fn is_recorded_expired(&self, node: NodeId) -> bool {
        self.expired.lock().contains(&node)
    }

    /// Nodes whose quarantine is over.
    pub(crate) fn over_quarantined(&self) -> Vec<NodeId> {
        let now_ms = self.wall_ms();
        let quarantined = self.quarantined.lock();
        quarantined.iter().filter(|(_, until_ms)| **until_ms <= now_ms).map(|(node, _)| *node).collect()
    }

    /// Calls `visit` for every slot, in order of node id.
    pub(crate) fn for_each_slot(&self, mut visit: impl FnMut(&NodeEntry)) {
        self.slots.read().iter().flatten().for_each(|slot| visit(slot));
    }

    /// Calls `visit` with the slot of each of `nodes` that is registered, in their order.
    pub(crate) fn visit(
        &self,
        nodes: impl IntoIterator<Item = (NodeId, RunningUnitId)>,
        mut visit: impl FnMut(&NodeEntry, RunningUnitId),
    ) {
        let slots = self.slots.read();
        for (node, key) in nodes {
            if let Some(Some(slot)) = slots.get(node.idx()) {
                visit(slot, key);
            }
        }
    }

    /// Of what an agent has of store `asked`: what is this store's too, and what is left over. In another store only
    /// what is bound here since before the last restore or truncation is the same as it was: what is bound later is new,
    /// whatever its name.
    pub(crate) fn of_this_store(
        &self,
        node: NodeId,
        asked: StoreId,
        running: Vec<CellReport>,
    ) -> (Vec<CellReport>, Vec<RunningUnitId>) {
        if self.store_id().may_be(asked) {
            return (running, Vec::new());
        }
        let (ours, left_over): (Vec<_>, Vec<_>) = self.store.read(|state| {
            let is_ours = |row: RunningUnit| row.node == node && row.bound_time_ms <= state.renewed_ms();
            running.into_iter().partition(|report| live_row(state, report.key).is_some_and(is_ours))
        });
        (ours, left_over.into_iter().map(|report| report.key).collect())
    }

    /// Those of some units that have no record.
    pub(crate) fn gone(&self, mut units: Vec<u64>) -> Vec<u64> {
        self.store.read(|state| {
            units.retain(|unit| state.record(v1::Kind::Unit, &RecordKey::Id(*unit)).is_none());
        });
        units
    }

    /// The keys by which nodes check tokens of YARN, if there are others than at `revision`.
    pub(crate) fn yarn_keys(&self, revision: u64) -> Option<v1::NodeYarnKeys> {
        let read = |state: &State| {
            NODE_KEYS.map(|name| {
                let record = state.record(v1::Kind::YarnKeys, &RecordKey::Name(name.to_owned()))?;
                Some((record.revision, record.value.clone()))
            })
        };
        let found: Vec<_> = self.store.read(read).into_iter().flatten().collect();
        let newest =
            found.iter().map(|(revision, _)| revision.0).max().filter(|newest| *newest > revision)?;
        // One that cannot be read helps no agent.
        let keys = found.into_iter().filter_map(|(_, value)| v1::YarnKeys::decode(value).ok());
        Some(v1::NodeYarnKeys { revision: newest, keys: keys.collect() })
    }

    /// Those of `keys` whose rows are over or elsewhere, sorted. They will never be live here again.
    pub(crate) fn over(&self, node: NodeId, keys: &[RunningUnitId]) -> Vec<RunningUnitId> {
        self.store.read(|state| {
            keys.iter()
                .filter(|key| live_row(state, **key).is_none_or(|row| row.node != node))
                .copied()
                .collect()
        })
    }
}

/// The row of `key` if it is current and holds room.
pub(crate) fn live_row(state: &State, key: RunningUnitId) -> Option<RunningUnit> {
    let row = state.rows().get(key.unit)?.row(key.replica.ordinal);
    (row.incarnation == key.replica.incarnation && row.phase.is_live()).then_some(row)
}

/// Wakes whom a cell says.
pub(crate) fn wake(waker: Option<std::task::Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
