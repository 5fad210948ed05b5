//! Validation: what a transaction must be to be committed, and why it is refused.

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, StoreId, UnitId};
use godel_domain::{demand::Pool, running_units::RunChange};
use godel_proto::{raw, v1};
use godel_wire::{
    TXN_BYTES_MAX,
    ops::{self, ParsedOp},
};
use prost::Message as _;

use super::{State, changes::change_ops, group_keys, kind_idx, undo::Undo, unit_of_group};
use crate::{
    feed::Published,
    record::Key,
    role::{Role, Writes},
};

/// A new node's id may be at most so far above the next one: ids index dense arrays.
const NODE_ID_GAP_MAX: u32 = 65_536;

/// A committed transaction's place in history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Store revision.
    pub revision: Revision,
    /// Unix milliseconds.
    pub commit_time_ms: i64,
}

/// Why a transaction was not committed. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TxnRefusal {
    /// For programs.
    pub reason: RefusalReason,
    /// Of the failed precondition or operation.
    pub index: u32,
    /// Present revision of the record, where it is about one.
    pub revision: Revision,
    /// For people.
    pub message: String,
}

/// Reactions of a writer to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// Read again, plan again.
    Precondition,
    /// The lease is lost: stop acting.
    StaleEpoch,
    /// The lease was granted in another store: stop acting.
    StoreChanged,
    /// A condition rests on a revision that there is not yet: what the writer has read is not this store.
    FutureRevision,
    /// The role may not write that.
    Forbidden,
    /// Can never be valid.
    Invalid,
    /// The disk is full: try later.
    StoreFull,
    /// A node that an operation binds to has another spec than its writer knew.
    NodeChanged,
    /// A row or a record is not in the state that the operation needs.
    RowConflict,
    /// The store is closing: try elsewhere or later. Whether it was committed is unknown.
    Closed,
}

/// What became of a transaction that was not refused.
#[derive(Debug)]
pub(crate) enum TxnOutcome {
    /// Applied as the next revision; not durable yet.
    Applied(Published),
    /// It was committed before.
    Repeated(Committed),
}

impl TxnRefusal {
    pub(crate) fn new(reason: RefusalReason, index: usize, message: impl Into<String>) -> Self {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        Self { reason, index, revision: Revision(0), message: message.into() }
    }

    fn about(mut self, revision: Revision) -> Self {
        self.revision = revision;
        self
    }

    pub(crate) fn closed() -> Self {
        Self::new(RefusalReason::Closed, 0, "the store is closing")
    }
}

fn conflict(message: impl Into<String>) -> TxnRefusal {
    TxnRefusal::new(RefusalReason::RowConflict, 0, message)
}

pub(super) fn invalid(message: impl Into<String>) -> TxnRefusal {
    TxnRefusal::new(RefusalReason::Invalid, 0, message)
}

/// Bytes that a transaction counts for.
pub(crate) fn txn_bytes(txn: &raw::TxnRequest) -> usize {
    let ops: usize = txn.ops.iter().map(|op| op.len() + 4).sum();
    let changes: usize = txn.changes.iter().map(|change| change.encoded_len() + 8).sum();
    ops + changes + txn.preconditions.len() * size_of::<v1::Precondition>() + 64
}

impl State {
    /// Validates `txn` and applies it as the next revision, or changes nothing.
    ///
    /// In order: a repeated sequence returns its first answer, also under an epoch that is over since (it was
    /// committed); then the fence; then the preconditions; then each operation on the state that the ones
    /// before it have made.
    pub(crate) fn transact(
        &mut self,
        txn: raw::TxnRequest,
        role: Role,
        wall_ms: i64,
    ) -> Result<TxnOutcome, TxnRefusal> {
        let is_of_log = role == Role::Changes && !txn.changes.is_empty();
        if txn.ops.is_empty() && !is_of_log {
            return Err(invalid("a transaction needs at least one operation"));
        }
        if txn_bytes(&txn) > TXN_BYTES_MAX {
            return Err(invalid(format!("a transaction may have at most {TXN_BYTES_MAX} bytes")));
        }
        let (writes, writer) = match role {
            Role::Agent => (Writes::Agent, None),
            Role::Admin => (Writes::Admin, None),
            Role::State => (Writes::State, None),
            Role::Identities => (Writes::Identities, None),
            Role::Changes => (Writes::Changes, None),
            Role::Repair => (Writes::Repair, None),
            Role::Leased => {
                let writer = txn.writer.ok_or_else(|| invalid("writer is required"))?;
                self.check_store(StoreId(txn.store_id))?;
                if let Some(committed) = self.windows.find(&writer) {
                    return Ok(TxnOutcome::Repeated(committed));
                }
                (self.fence(&writer)?, Some(writer))
            }
        };
        self.check_preconditions(&txn.preconditions, writes)?;
        let nodes_as_of = Revision(txn.nodes_as_of);
        self.check_known(nodes_as_of, 0, "nodes_as_of")?;
        let store_id = if self.store_id.0 == 0 { self.given_id.0 } else { 0 };
        let revision = self.revision.0 + 1;
        let n_own = txn.ops.len();
        let mut ops = txn.ops;
        ops.extend(change_ops(Revision(revision), txn.changes)?);
        let published = encode(raw::Commit {
            revision,
            commit_time_ms: wall_ms.max(self.commit_time_ms + 1),
            writer,
            ops,
            store_id,
        })?;
        self.apply_all(&published, writes, n_own, nodes_as_of)?;
        Ok(TxnOutcome::Applied(published))
    }

    /// Before anything else: also a repeated sequence is another one in another store.
    fn check_store(&self, asked: StoreId) -> Result<(), TxnRefusal> {
        if self.store_id.may_be(asked) {
            return Ok(());
        }
        let message = format!("the lease was granted in store {asked}, and this is store {}", self.store_id);
        Err(TxnRefusal::new(RefusalReason::StoreChanged, 0, message))
    }

    fn check_known(&self, revision: Revision, index: usize, what: &str) -> Result<(), TxnRefusal> {
        if revision <= self.revision {
            return Ok(());
        }
        let message = format!("{what} is revision {revision}, but the last one is {}", self.revision);
        Err(TxnRefusal::new(RefusalReason::FutureRevision, index, message).about(self.revision))
    }

    fn fence(&self, writer: &v1::Writer) -> Result<Writes, TxnRefusal> {
        let v1::Writer { lease, epoch, .. } = writer;
        let writes = Writes::of_lease(lease).ok_or_else(|| {
            TxnRefusal::new(RefusalReason::Forbidden, 0, format!("lease `{lease}` may not write"))
        })?;
        match self.leases.get(lease) {
            Some(record)
                if record.epoch == *epoch && *epoch > self.epoch_floor && !record.holder.is_empty() =>
            {
                Ok(writes)
            }
            record => {
                let current = record.map_or(0, |record| record.epoch);
                let message =
                    format!("epoch {epoch} of lease `{lease}` is not in force; the last is {current}");
                Err(TxnRefusal::new(RefusalReason::StaleEpoch, 0, message))
            }
        }
    }

    fn check_preconditions(
        &self,
        preconditions: &[v1::Precondition],
        writes: Writes,
    ) -> Result<(), TxnRefusal> {
        for (index, precondition) in preconditions.iter().enumerate() {
            let kind = precondition.kind();
            if !writes.may_rest_on(kind) {
                let message =
                    format!("preconditions[{index}]: {writes:?} may not rest on {}", kind.as_str_name());
                return Err(TxnRefusal::new(RefusalReason::Forbidden, index, message));
            }
            let key = ops::key_from_proto(kind, precondition.key.as_ref()).map_err(|error| {
                TxnRefusal::new(RefusalReason::Invalid, index, format!("preconditions[{index}]: {error}"))
            })?;
            self.check_known(Revision(precondition.revision), index, &format!("preconditions[{index}]"))?;
            let revision = match (kind, &key) {
                (v1::Kind::Rows, Key::Id(id)) => self.rows.revision(UnitId(*id)),
                _ => self.record(kind, &key).map_or(Revision(0), |record| record.revision),
            };
            if revision.0 != precondition.revision {
                let message = format!(
                    "{} {key} is at revision {revision}, not {}",
                    kind.as_str_name(),
                    precondition.revision
                );
                return Err(TxnRefusal::new(RefusalReason::Precondition, index, message).about(revision));
            }
        }
        Ok(())
    }

    /// The first `n_own` operations are the writer's, and what follows is for the change log.
    fn apply_all(
        &mut self,
        published: &Published,
        writes: Writes,
        n_own: usize,
        nodes_as_of: Revision,
    ) -> Result<(), TxnRefusal> {
        let (revision, time_ms) = (Revision(published.commit.revision), published.commit.commit_time_ms);
        let mut undo = Undo::new(self);
        let last = published.changes.len().saturating_sub(1);
        for (index, op) in published.changes.iter().enumerate() {
            let writes = if index < n_own { writes } else { Writes::Changes };
            let check = OpCheck { state: self, writes, nodes_as_of };
            if let Err(refusal) = check.check(op) {
                undo.revert(self);
                let message = format!("ops[{index}]: {}", refusal.message);
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                return Err(TxnRefusal { index, message, ..refusal });
            }
            // Nothing that follows the last one can be refused.
            self.apply(op, revision, time_ms, (index < last).then_some(&mut undo));
        }
        if let Some(writer) = &published.commit.writer {
            self.windows.remember(writer, Committed { revision, commit_time_ms: time_ms });
        }
        self.take_id(published.commit.store_id);
        self.revision = revision;
        self.commit_time_ms = time_ms;
        Ok(())
    }

    /// Positions of the task groups that were added to a unit.
    fn added_groups(&self, unit: UnitId) -> impl Iterator<Item = u32> {
        let [from, to] = group_keys(unit);
        let groups = kind_idx(v1::Kind::TaskGroup).map(|idx| self.records[idx].range(from..to));
        groups.into_iter().flatten().filter_map(|(key, _)| match key {
            Key::Name(name) => name.split_once('/')?.1.parse().ok(),
            Key::Id(_) => None,
        })
    }

    /// Why readers cannot put a unit together from its own task groups and those that were added to it.
    pub(crate) fn misplaced_groups(&self, unit: UnitId) -> Option<String> {
        let own = self.record(v1::Kind::Unit, &Key::Id(unit.0)).map(|record| n_own_groups(&record.value));
        // A unit without any is for its readers to refuse.
        let own = own.filter(|own| *own > 0)?;
        let mut added: Vec<u64> = self.added_groups(unit).map(u64::from).collect();
        added.sort_unstable();
        let wrong = (own..).zip(&added).find(|(wanted, idx)| wanted != *idx);
        wrong.map(|(wanted, idx)| match *idx > wanted {
            true => format!("task_groups[{wanted}]: has no record"),
            false => format!("task_groups[{idx}]: was added, and is a group of its own record as well"),
        })
    }
}

/// Whether an operation may follow on the state that those before it have made.
struct OpCheck<'a> {
    state: &'a State,
    writes: Writes,
    nodes_as_of: Revision,
}

impl OpCheck<'_> {
    fn check(&self, op: &ParsedOp) -> Result<(), TxnRefusal> {
        self.check_nodes(op)?;
        let exists = || match op {
            ParsedOp::Put { kind, key, .. } | ParsedOp::Delete { kind, key } => {
                self.state.record(*kind, key).is_some()
            }
            ParsedOp::Rows { .. } => true,
        };
        if !self.writes.may(op, exists) {
            let message = format!("{:?} may not write that", self.writes);
            return Err(TxnRefusal::new(RefusalReason::Forbidden, 0, message));
        }
        match op {
            ParsedOp::Put { kind, key, value } => self.check_put(*kind, key, value),
            ParsedOp::Delete { kind, key } => self.check_delete(*kind, key),
            ParsedOp::Rows { unit, change } => self.check_rows(*unit, change),
        }
    }

    /// That no node of a binding or of a hold has a spec or a report changed after `nodes_as_of`, or a use where best-effort
    /// room depends on it. One comparison unless some node has.
    fn check_nodes(&self, op: &ParsedOp) -> Result<(), TxnRefusal> {
        let as_of = self.nodes_as_of;
        if as_of == Revision(0) || self.state.nodes_changed.max(self.state.node_usages_changed) <= as_of {
            return Ok(());
        }
        match op {
            ParsedOp::Rows { change, .. } => match &**change {
                RunChange::Bind(bind) => self.check_nodes_of(&bind.nodes, bind.pool),
                RunChange::Evict(_)
                | RunChange::Statuses(_)
                | RunChange::Requeue(_)
                | RunChange::Terms(_)
                | RunChange::Compact(_) => Ok(()),
            },
            ParsedOp::Put { kind: v1::Kind::Hold, value, .. } => {
                let hold = hold(value)?;
                let is_best_effort = hold.pool == i32::from(v1::Pool::BestEffort);
                let pool = if is_best_effort { Pool::BestEffort } else { Pool::Guaranteed };
                self.check_nodes_of(&[NodeId(hold.node_id)], pool)
            }
            ParsedOp::Put { .. } | ParsedOp::Delete { .. } => Ok(()),
        }
    }

    fn check_nodes_of(&self, nodes: &[NodeId], pool: Pool) -> Result<(), TxnRefusal> {
        let as_of = self.nodes_as_of;
        let rests_on_use = pool == Pool::BestEffort && self.state.node_usages_changed > as_of;
        let kinds = [
            (v1::Kind::NodeSpec, self.state.nodes_changed > as_of),
            (v1::Kind::NodeReport, self.state.nodes_changed > as_of),
            (v1::Kind::NodeUsage, rests_on_use),
        ];
        for (kind, _) in kinds.into_iter().filter(|(_, may_differ)| *may_differ) {
            self.check_unchanged(kind, nodes)?;
        }
        Ok(())
    }

    fn check_unchanged(&self, kind: v1::Kind, nodes: &[NodeId]) -> Result<(), TxnRefusal> {
        let as_of = self.nodes_as_of;
        for node in nodes {
            let record = self.state.record(kind, &Key::Id(u64::from(node.0)));
            if let Some(record) = record.filter(|record| record.revision > as_of) {
                let message =
                    format!("node {node} has changed at revision {}, after {as_of}", record.revision);
                return Err(TxnRefusal::new(RefusalReason::NodeChanged, 0, message).about(record.revision));
            }
        }
        Ok(())
    }

    fn check_put(&self, kind: v1::Kind, key: &Key, value: &Bytes) -> Result<(), TxnRefusal> {
        match (kind, key) {
            (v1::Kind::Unit, Key::Id(id)) => {
                let fresh = UnitId(*id) > self.state.last_unit_id;
                if fresh || self.state.record(kind, key).is_some() {
                    return self.check_own_groups(UnitId(*id), value);
                }
                Err(invalid(format!("unit id {id} was used before; the last is {}", self.state.last_unit_id)))
            }
            (v1::Kind::NodeSpec, Key::Id(id)) => {
                let next = u64::from(self.state.next_node_id.0);
                let fresh =
                    (next..=next + u64::from(NODE_ID_GAP_MAX)).contains(id) && *id < u64::from(u32::MAX);
                if fresh || self.state.record(kind, key).is_some() {
                    return Ok(());
                }
                Err(invalid(format!("node id {id} was used before or is too high; the next is {next}")))
            }
            (v1::Kind::NodeReport | v1::Kind::NodeAllocatable | v1::Kind::NodeUsage, key) => {
                match self.state.record(v1::Kind::NodeSpec, key) {
                    Some(_) => Ok(()),
                    None => Err(conflict(format!("node {key} is not registered"))),
                }
            }
            (v1::Kind::TaskGroup, Key::Name(name)) => {
                let unit = unit_of_group(name);
                let Some(record) = unit.as_ref().and_then(|unit| self.state.record(v1::Kind::Unit, unit))
                else {
                    return Err(conflict(format!("the unit of task group {name} does not exist")));
                };
                self.check_added_group(name, &record.value)
            }
            (v1::Kind::Hold, _) => {
                let node = NodeId(hold(value)?.node_id);
                if self.state.rows.nodes.get(node).registered {
                    return Ok(());
                }
                Err(conflict(format!("node {node} is not registered")))
            }
            (v1::Kind::Lease, Key::Name(name)) => {
                let lease =
                    v1::LeaseRecord::decode(value.clone()).map_err(|_| invalid("lease does not decode"))?;
                self.check_lease(name, &lease)
            }
            _ => Ok(()),
        }
    }

    /// A unit's own task groups come before those that were added to it: a record that has more or fewer of them would leave
    /// the unit unreadable.
    fn check_own_groups(&self, unit: UnitId, value: &Bytes) -> Result<(), TxnRefusal> {
        let Some(first) = self.state.added_groups(unit).min() else { return Ok(()) };
        let n_own = n_own_groups(value);
        if n_own == 0 || n_own == u64::from(first) {
            return Ok(());
        }
        Err(invalid(format!(
            "spec.task_groups: {n_own} task groups, but the groups that were added to unit {unit} begin at {first}"
        )))
    }

    /// An added task group comes right after all others of its unit, or in place of one that was added.
    fn check_added_group(&self, name: &str, unit_value: &Bytes) -> Result<(), TxnRefusal> {
        let n_own = n_own_groups(unit_value);
        let Some((unit, idx)) = name.split_once('/') else { return Ok(()) };
        let (Ok(unit), Ok(idx)) = (unit.parse(), idx.parse::<u64>()) else { return Ok(()) };
        let next = n_own + self.state.added_groups(UnitId(unit)).count() as u64;
        if n_own == 0 || (n_own..=next).contains(&idx) {
            return Ok(());
        }
        Err(invalid(format!(
            "task_group: {idx} is not in {n_own}..={next}, where groups of unit {unit} are added"
        )))
    }

    /// Epochs rise with each grant and are never reissued; within one, a holder can only leave.
    fn check_lease(&self, name: &str, lease: &v1::LeaseRecord) -> Result<(), TxnRefusal> {
        let current = self.state.leases.get(name);
        let last = current.map_or(0, |current| current.epoch).max(self.state.epoch_floor);
        let stays = |current: &v1::LeaseRecord| {
            let is_in_force = current.epoch > self.state.epoch_floor && current.holder == lease.holder;
            current.epoch == lease.epoch && (is_in_force || lease.holder.is_empty())
        };
        if lease.epoch > last || current.is_some_and(stays) {
            return Ok(());
        }
        Err(invalid(format!(
            "epoch {} of lease `{name}` may have been granted before: it is not above {last}",
            lease.epoch
        )))
    }

    fn check_delete(&self, kind: v1::Kind, key: &Key) -> Result<(), TxnRefusal> {
        if kind_idx(kind).is_none_or(|idx| !self.state.records[idx].contains_key(key)) {
            return Err(conflict(format!("{} {key} does not exist", kind.as_str_name())));
        }
        let live = match (kind, key) {
            (v1::Kind::Unit, Key::Id(id)) => self.state.rows.live_of_unit(UnitId(*id)),
            (v1::Kind::NodeSpec, Key::Id(id)) => {
                u32::try_from(*id).map_or(0, |id| self.state.rows.live_on_node(NodeId(id)))
            }
            _ => 0,
        };
        if live > 0 {
            return Err(conflict(format!(
                "{} {key} has {} bound",
                kind.as_str_name(),
                godel_base::words::count(live, "running unit")
            )));
        }
        let n_holds = if kind == v1::Kind::NodeSpec { self.n_holds_on(key)? } else { 0 };
        if n_holds > 0 {
            return Err(conflict(format!("{n_holds} holds are on {} {key}", kind.as_str_name())));
        }
        Ok(())
    }

    /// `O(holds)`: nodes are seldom deleted.
    fn n_holds_on(&self, node: &Key) -> Result<usize, TxnRefusal> {
        let holds = kind_idx(v1::Kind::Hold).map(|idx| self.state.records[idx].values());
        let mut n_holds = 0;
        for record in holds.into_iter().flatten() {
            n_holds += usize::from(Key::Id(u64::from(hold(&record.value)?.node_id)) == *node);
        }
        Ok(n_holds)
    }

    fn check_rows(&self, unit: UnitId, change: &RunChange) -> Result<(), TxnRefusal> {
        let spec = Key::Id(unit.0);
        if self.state.record(v1::Kind::Unit, &spec).is_none() {
            return Err(conflict(format!("unit {unit} does not exist")));
        }
        if let RunChange::Bind(bind) = change {
            for node in &bind.nodes {
                if !self.state.rows.nodes.get(*node).registered {
                    return Err(conflict(format!("node {node} is not registered")));
                }
            }
        }
        let empty = godel_domain::running_units::RunningUnits::default();
        let rows = self.state.rows.get(unit).unwrap_or(&empty);
        rows.check(change).map_err(|error| conflict(format!("unit {unit}: {error}")))?;
        match change {
            // No process serves a store that is repaired: the agents end them once one does.
            RunChange::Evict(evict) if evict.reason.is_end() && self.writes != Writes::Repair => {
                self.check_lost(rows, &evict.ordinals)
            }
            RunChange::Bind(_)
            | RunChange::Evict(_)
            | RunChange::Statuses(_)
            | RunChange::Requeue(_)
            | RunChange::Terms(_)
            | RunChange::Compact(_) => Ok(()),
        }
    }

    /// That running units said to be lost with their nodes are on nodes that are not ready: whoever asked may not
    /// have read yet that one is back.
    fn check_lost(
        &self,
        rows: &godel_domain::running_units::RunningUnits,
        ordinals: &[u32],
    ) -> Result<(), TxnRefusal> {
        let nodes: std::collections::BTreeSet<NodeId> =
            ordinals.iter().map(|ordinal| rows.row(*ordinal).node).collect();
        for node in nodes {
            let Some(record) = self.state.record(v1::Kind::NodeReport, &Key::Id(u64::from(node.0))) else {
                continue;
            };
            let report = v1::NodeReport::decode(record.value.clone())
                .map_err(|_| invalid(format!("the report of node {node} does not decode")))?;
            if report.ready {
                return Err(conflict(format!("node {node} is ready, not lost")).about(record.revision));
            }
        }
        Ok(())
    }
}

fn hold(value: &Bytes) -> Result<v1::Hold, TxnRefusal> {
    v1::Hold::decode(value.clone()).map_err(|_| invalid("hold does not decode"))
}

/// Encodes a commit once, and decodes its operations as slices of that encoding.
fn encode(commit: raw::Commit) -> Result<Published, TxnRefusal> {
    let encoded = Bytes::from(commit.encode_to_vec());
    Published::decode(encoded).map_err(|error| {
        let index = error.index.unwrap_or(0);
        let name = commit.ops.get(index).and_then(|op| raw::op_name(raw::op_field(op)?));
        // The path of the field, where it is about one.
        let message = match (name, error.is_of_field()) {
            (Some(name), true) => format!("ops[{index}].{name}.{error}"),
            (Some(name), false) => format!("ops[{index}].{name}: {error}"),
            (None, _) => format!("ops[{index}]: {error}"),
        };
        TxnRefusal::new(RefusalReason::Invalid, index, message)
    })
}

/// Task groups in a unit's own record; 0 where it does not decode, which its readers say.
fn n_own_groups(value: &Bytes) -> u64 {
    /// The field of a unit's record that is needed.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Record {
        #[prost(message, optional, tag = "2")]
        spec: Option<Spec>,
    }
    /// Its task groups, undecoded.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Spec {
        #[prost(bytes = "bytes", repeated, tag = "3")]
        task_groups: Vec<Bytes>,
    }
    let record = Record::decode(value.clone()).unwrap_or_default();
    record.spec.map_or(0, |spec| spec.task_groups.len() as u64)
}
