//! Repairs of closed stores: a record is removed, or what cannot be recovered is given up.

use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use godel_base::ids::{NodeId, UnitId};
use godel_crash::CrashPoints;
use godel_proto::{raw, v1};
use prost::Message as _;

use super::{AdminError, Copy, Loss, export::make_store};
use crate::{
    chunk, identity,
    log::{
        Log, LogError,
        sled::{Which, is_store, lock, repair},
    },
    migration,
    record::Key,
    recovery,
    role::Role,
    snapshot,
    state::{Committed, State, TxnOutcome},
    store::{self, Engine, SledConfig},
};

/// What [`truncate`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TruncateReport {
    /// Last revision that was recovered.
    pub recovered: u64,
    /// Revision of the store as it is now.
    pub revision: u64,
    /// What is given up.
    pub loss: Loss,
    /// Where the damaged store is kept.
    pub kept_in: PathBuf,
}

/// What [`remove`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoveReport {
    /// Of the commit that did it.
    pub revision: u64,
    /// What went, in words.
    pub removed: Vec<String>,
}

/// Makes the store in `dir` one that opens, of all that can be recovered. What was committed after that is given up,
/// and so is the watch history; the damaged store is kept in a directory beside. Since something that was acknowledged
/// is lost, the result is another store.
///
/// # Errors
/// There is no store, another process has it, its state is whole, or the disk has no room for a second one.
pub fn truncate(dir: &Path) -> Result<TruncateReport, AdminError> {
    if !is_store(dir) {
        return Err(AdminError::NoStore { dir: dir.to_owned() });
    }
    let lock = lock(dir)?;
    migration::judge_serving(&Engine::Sled(SledConfig::new(dir)))?;
    let copy = Copy::under(dir, Which::All, &lock)?;
    let log = copy.open()?;
    let (reader, claimed) = (log.reader(), log.claimed());
    if copy.copied.problem.is_none()
        && log.unopened().is_empty()
        && let Ok(whole) = recovery::recover(&*reader, &claimed)
    {
        return Err(AdminError::NotDamaged { dir: dir.to_owned(), revision: whole.state.revision().0 });
    }
    let mut state = recovery::salvage(&*reader)?;
    let recovered = state.revision();
    identity::renew(&mut state);
    repair::clear(dir)?;
    make_store(&state, &Engine::Sled(SledConfig::new(repair::workshop(dir))))?;
    let kept_in = repair::replace(dir)?;
    let loss = Loss::after(recovered, &claimed);
    Ok(TruncateReport { recovered: recovered.0, revision: state.revision().0, loss, kept_in })
}

/// Removes one record from the store in `dir`, whole otherwise, by a commit of its own. With a unit go its rows, with a
/// node its report, allocatable, use and holds; running units that are bound there end as lost, in the same commit. `now_ms`
/// is the time, Unix milliseconds.
///
/// # Errors
/// There is no store, another process has it, it is damaged, or the record is not there or must stay.
pub fn remove(dir: &Path, kind: v1::Kind, key: &Key, now_ms: i64) -> Result<RemoveReport, AdminError> {
    if !is_store(dir) {
        return Err(AdminError::NoStore { dir: dir.to_owned() });
    }
    refuse_removal(kind, key)?;
    let log = migration::open_unmarked(&Engine::Sled(SledConfig::new(dir)), CrashPoints::default())?;
    remove_from(log, kind, key, now_ms)
}

/// Why a record must stay, if it must.
pub(super) fn refuse_removal(kind: v1::Kind, key: &Key) -> Result<(), AdminError> {
    let refused = |why: &str| Err(not_removed(kind, key, why.to_owned()));
    match kind {
        v1::Kind::Lease => refused("an epoch must never be forgotten"),
        v1::Kind::Rows => refused("rows are removed with their unit: remove KIND_UNIT"),
        _ => Ok(()),
    }
}

fn not_removed(kind: v1::Kind, key: &Key, why: String) -> AdminError {
    AdminError::NotRemoved { kind: kind.as_str_name(), key: key.to_string(), why }
}

/// Removes a record from a log that no store runs on, by a commit.
pub(super) fn remove_from(
    log: Box<dyn Log>,
    kind: v1::Kind,
    key: &Key,
    now_ms: i64,
) -> Result<RemoveReport, AdminError> {
    let (log, recovered, _) = store::recover(log)?;
    let (ops, removed) = removal(&recovered.state, kind, key);
    let committed = commit(log, recovered, ops, now_ms)?.map_err(|why| not_removed(kind, key, why))?;
    Ok(RemoveReport { revision: committed.revision.0, removed })
}

/// The operations that remove a record, and what goes in words.
fn removal(state: &State, kind: v1::Kind, key: &Key) -> (Vec<Bytes>, Vec<String>) {
    let (mut ops, mut removed) = (Vec::new(), Vec::new());
    let mut end = |unit: UnitId, on: Option<NodeId>| {
        let Some(rows) = state.rows().get(unit) else { return };
        let live: Vec<_> = rows.live().filter(|(_, row)| on.is_none_or(|node| row.node == node)).collect();
        if live.is_empty() {
            return;
        }
        let evict = v1::Eviction {
            unit_id: unit.0,
            ordinals: live.iter().map(|(ordinal, _)| *ordinal).collect(),
            incarnations: live.iter().map(|(_, row)| row.incarnation).collect(),
            reason: v1::EvictionReason::NodeLost.into(),
            by: "state repair".to_owned(),
            preemptor_id: 0,
        };
        ops.push(raw::encode_op(v1::op::Op::Evict(evict)));
        removed.push(format!("{} running units of unit {unit} end as lost", live.len()));
    };
    let mut holds = Vec::new();
    match (kind, key) {
        (v1::Kind::Unit, Key::Id(id)) => end(UnitId(*id), None),
        (v1::Kind::NodeSpec, Key::Id(id)) => {
            let node = NodeId(u32::try_from(*id).unwrap_or(u32::MAX));
            for (unit, ..) in state.rows().iter(None) {
                end(unit, Some(node));
            }
            let on_node =
                |value: &Bytes| v1::Hold::decode(value.clone()).is_ok_and(|hold| hold.node_id == node.0);
            let of_node = state.records(v1::Kind::Hold, None).filter(|(_, hold)| on_node(&hold.value));
            holds.extend(of_node.map(|(key, _)| key.clone()));
        }
        _ => {}
    }
    for (kind, key) in holds.iter().map(|hold| (v1::Kind::Hold, hold)).chain([(kind, key)]) {
        ops.push(delete(kind, key));
        removed.push(format!("{} {key}", kind.as_str_name()));
    }
    if kind == v1::Kind::NodeSpec {
        for with in godel_proto::kinds::of_node().filter(|with| *with != kind) {
            if state.record(with, key).is_some() {
                removed.push(format!("{} {key}", with.as_str_name()));
            }
        }
    }
    (ops, removed)
}

fn delete(kind: v1::Kind, key: &Key) -> Bytes {
    let key = match key {
        Key::Id(id) => v1::Key { id: *id, name: String::new() },
        Key::Name(name) => v1::Key { id: 0, name: name.clone() },
    };
    raw::encode_op(v1::op::Op::Delete(v1::Delete { kind: kind.into(), key: Some(key) }))
}

/// Commits one transaction to a log that no store runs on, and closes it; or why it was refused.
fn commit(
    mut log: Box<dyn Log>,
    recovered: recovery::Recovered,
    ops: Vec<Bytes>,
    now_ms: i64,
) -> Result<Result<Committed, String>, LogError> {
    let recovery::Recovered { mut state, crc, .. } = recovered;
    let txn = raw::TxnRequest { ops, ..raw::TxnRequest::default() };
    let committed = match state.transact(txn, Role::Repair, now_ms) {
        Ok(TxnOutcome::Applied(published)) => {
            let mut payload = BytesMut::new();
            recovery::put_commit(&published.encoded, &mut payload);
            let revision = published.revision();
            let (chunks, crc) = chunk::cut(revision.0, revision.0, &payload, crc);
            let fence = log.fence();
            snapshot::until_known(|| log.append(revision, &chunks, fence))?;
            log.synced(revision, crc)?;
            Ok(Committed { revision, commit_time_ms: published.commit.commit_time_ms })
        }
        Ok(TxnOutcome::Repeated(committed)) => Ok(committed),
        Err(refusal) => Err(refusal.message),
    };
    log.close()?;
    Ok(committed)
}
