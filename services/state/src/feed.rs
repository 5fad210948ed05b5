//! Follows the store's commits for the sessions: what is bound to a node or told to leave it goes into the
//! node's cell, and from there to its agent. Keeps the names of nodes and their committed readiness.
//!
//! It never waits for a session, so it never holds the store up. If it falls behind so far that the store
//! cuts it off, it reads everything anew and has every session compared.

use std::{sync::Arc, task::Waker};

use godel_base::ids::{NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    demand::Pool,
    running_units::{Phase, RunChange, RunningUnit},
};
use godel_proto::v1;
use godel_store::{Key as RecordKey, Published, State, WatchEnd, Watcher};
use godel_wire::ops::ParsedOp;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::sessions::{NodeSessions, live_row, wake};

/// Everything that the cells need, as of one revision.
struct LoadedStore {
    revision: Revision,
    specs: Vec<(NodeId, bytes::Bytes)>,
    reports: Vec<(NodeId, bytes::Bytes)>,
    usages: Vec<(NodeId, bytes::Bytes)>,
    time_ms: i64,
    /// Live rows, by node and key; whether they are told to leave, and when they were bound.
    live: Vec<(NodeId, RunningUnitId, bool, i64)>,
}

/// Fills the cells from the store at a start: nodes that were ready stay so for a full lease.
pub(crate) fn load(hub: &NodeSessions) -> Watcher {
    let watcher = reload(hub);
    let (now, deadline) = (hub.now(), hub.deadline());
    hub.for_each_slot(|slot| {
        let mut cell = slot.cell.lock();
        // The absence of those that are not ready counts from this start on.
        cell.deadline = if cell.ready { deadline } else { now };
    });
    watcher
}

/// Follows until `stop`.
pub(crate) async fn run(hub: Arc<NodeSessions>, mut watcher: Watcher, stop: CancellationToken) {
    loop {
        let next = tokio::select! {
            next = watcher.next() => next,
            () = stop.cancelled() => return,
        };
        match next {
            Ok(group) => {
                apply(&hub, &group);
                if let Some(last) = group.last() {
                    hub.delivery.advance(last.revision(), last.commit.commit_time_ms);
                }
            }
            Err(WatchEnd::Lagged { .. } | WatchEnd::Compacted(_)) => {
                tracing::warn!("sessions fell behind the store and are compared again");
                watcher = reload(&hub);
            }
            Err(WatchEnd::Closed) => return,
        }
    }
}

/// Takes over the whole state, and watches from there.
fn reload(hub: &NodeSessions) -> Watcher {
    loop {
        let loaded = hub.store.read(LoadedStore::read);
        // The newest revision is always in the history: at worst one more try.
        if let Ok(watcher) = hub.store.watch(Revision(loaded.revision.0 + 1)) {
            take_over(hub, loaded);
            return watcher;
        }
    }
}

impl LoadedStore {
    fn read(state: &State) -> Self {
        let values = |kind| {
            let record = |(key, record): (&RecordKey, &godel_store::Record)| match key {
                RecordKey::Id(id) => Some((NodeId(u32::try_from(*id).ok()?), record.value.clone())),
                RecordKey::Name(_) => None,
            };
            state.records(kind, None).filter_map(record).collect()
        };
        let mut live = Vec::new();
        for (unit, _, rows) in state.rows().iter(None) {
            for (ordinal, row) in rows.live() {
                let key = RunningUnitId::new(unit, ordinal, row.incarnation);
                live.push((row.node, key, row.eviction.is_some(), row.bound_time_ms));
            }
        }
        Self {
            revision: state.revision(),
            specs: values(v1::Kind::NodeSpec),
            reports: values(v1::Kind::NodeReport),
            usages: values(v1::Kind::NodeUsage),
            time_ms: state.commit_time_ms(),
            live,
        }
    }
}

fn take_over(hub: &NodeSessions, loaded: LoadedStore) {
    let LoadedStore { revision, specs, reports, usages, time_ms, mut live } = loaded;
    let mut gone: Vec<NodeId> = hub.slots().iter().map(|slot| slot.node).collect();
    gone.retain(|node| specs.binary_search_by_key(node, |(node, _)| *node).is_err());
    for node in gone {
        hub.names.write().remove(node);
        hub.remove(node);
    }
    for (node, value) in specs {
        put_spec(hub, node, &value);
    }
    for (node, value) in reports {
        put_report(hub, node, &value);
    }
    live.sort_unstable_by_key(|(node, key, ..)| (*node, *key));
    let mut by_node = live.chunk_by(|a, b| a.0 == b.0).peekable();
    let mut rows = Vec::new();
    hub.for_each_slot(|slot| {
        rows.clear();
        let mut last_ms = None;
        // Bindings are to registered nodes only, and both are in order of node.
        while let Some(chunk) = by_node.next_if(|chunk| chunk[0].0 <= slot.node) {
            if chunk[0].0 == slot.node {
                rows.extend(chunk.iter().map(|(_, key, evicting, _)| (*key, *evicting)));
                last_ms = chunk.iter().map(|(.., bound_ms)| *bound_ms).max();
            }
        }
        let mut cell = slot.cell.lock();
        if let Some(last_ms) = last_ms {
            cell.measure.bound_at(last_ms);
        }
        wake(cell.reload(&rows));
    });
    for (node, value) in usages {
        put_usage(hub, node, &value);
    }
    hub.delivery.advance(revision, time_ms);
}

fn apply(hub: &NodeSessions, group: &[Arc<Published>]) {
    let mut wakers = Vec::new();
    let ops = group
        .iter()
        .flat_map(|published| published.changes.iter().map(|op| (op, published.commit.commit_time_ms)));
    for (op, time_ms) in ops {
        match op {
            ParsedOp::Rows { unit, change } => apply_rows(hub, *unit, change, time_ms, &mut wakers),
            ParsedOp::Put { kind, key: RecordKey::Id(id), value } => {
                let Ok(node) = u32::try_from(*id).map(NodeId) else { continue };
                match kind {
                    v1::Kind::NodeSpec => put_spec(hub, node, value),
                    v1::Kind::NodeReport => put_report(hub, node, value),
                    v1::Kind::NodeUsage => put_usage(hub, node, value),
                    _ => {}
                }
            }
            ParsedOp::Delete { kind: v1::Kind::NodeSpec, key: RecordKey::Id(id) } => {
                let Ok(node) = u32::try_from(*id).map(NodeId) else { continue };
                hub.names.write().remove(node);
                hub.remove(node);
            }
            ParsedOp::Put { .. } | ParsedOp::Delete { .. } => {}
        }
    }
    // At the end: a session then finds everything of this group at once.
    wakers.into_iter().for_each(Waker::wake);
}

fn apply_rows(hub: &NodeSessions, unit: UnitId, change: &RunChange, time_ms: i64, wakers: &mut Vec<Waker>) {
    match change {
        RunChange::Bind(bind) => {
            let places = bind.nodes.iter().enumerate().map(|(idx, node)| {
                (
                    *node,
                    RunningUnitId::new(
                        unit,
                        bind.ordinals[idx],
                        bind.incarnations.get(idx).copied().unwrap_or(0),
                    ),
                )
            });
            let is_guaranteed = bind.pool == Pool::Guaranteed;
            hub.visit(places, |slot, key| {
                let mut cell = slot.cell.lock();
                if is_guaranteed {
                    cell.measure.bound_at(time_ms);
                }
                wakers.extend(cell.bind(key));
            });
        }
        RunChange::Evict(evict) => {
            let keys = keys(unit, &evict.ordinals, &evict.incarnations);
            if evict.reason.is_end() {
                let ended = nodes(hub, keys, |row| row.phase.is_ended());
                hub.visit(ended, |slot, key| wakers.extend(slot.cell.lock().end(key)));
                return;
            }
            let live = nodes(hub, keys, |row| row.phase.is_live());
            hub.visit(live, |slot, key| wakers.extend(slot.cell.lock().evict(key)));
        }
        RunChange::Statuses(statuses) => {
            let keys = keys(unit, &statuses.ordinals, &statuses.incarnations).enumerate();
            let ended =
                keys.filter(|(idx, _)| statuses.phases.get(*idx).copied().is_some_and(Phase::is_ended));
            let ended = nodes(hub, ended.map(|(_, key)| key), |row| row.phase.is_ended());
            hub.visit(ended, |slot, key| wakers.extend(slot.cell.lock().end(key)));
        }
        // Its row had ended; agents have nothing to do with queues and ranks.
        RunChange::Requeue(_) | RunChange::Terms(_) | RunChange::Compact(_) => {}
    }
}

fn keys<'a>(
    unit: UnitId,
    ordinals: &'a [u32],
    incarnations: &'a [u32],
) -> impl Iterator<Item = RunningUnitId> + 'a {
    ReplicaId::of_columns(ordinals, incarnations).map(move |replica| RunningUnitId { unit, replica })
}

/// Nodes of those of `keys` whose rows are still of that incarnation and as `wanted`. The store may be ahead:
/// a row that is of a newer incarnation by now ended here and is found out when its cell is next compared.
fn nodes(
    hub: &NodeSessions,
    keys: impl Iterator<Item = RunningUnitId>,
    wanted: impl Fn(&RunningUnit) -> bool,
) -> Vec<(NodeId, RunningUnitId)> {
    hub.store.read(|state| {
        keys.filter_map(|key| {
            let row = state.rows().get(key.unit)?.row(key.replica.ordinal);
            (row.incarnation == key.replica.incarnation && wanted(&row)).then_some((row.node, key))
        })
        .collect()
    })
}

fn put_spec(hub: &NodeSessions, node: NodeId, value: &bytes::Bytes) {
    // State has written it and the store has decoded it.
    let spec = v1::NodeSpec::decode(value.clone()).unwrap_or_default();
    hub.note_spec(node, Some(&spec));
    let v1::NodeSpec { meta, quarantine, identity_expired_since_ms, .. } = spec;
    hub.quarantine(node, quarantine.map(|quarantine| quarantine.until_ms));
    hub.note_expired(node, identity_expired_since_ms);
    let meta = meta.unwrap_or_default();
    let mut names = hub.names.write();
    let replaced = names.of(node).is_some_and(|(_, uid)| uid != meta.uid);
    names.put(node, meta.name, meta.uid);
    drop(names);
    let slot = hub.slot_or_new(node);
    if replaced {
        wake(slot.cell.lock().replace());
    }
}

fn put_report(hub: &NodeSessions, node: NodeId, value: &bytes::Bytes) {
    let report = FeedReport::decode(value.clone()).unwrap_or_default();
    let slot = hub.slot_or_new(node);
    let mut cell = slot.cell.lock();
    cell.ready = report.ready;
    cell.runs_processes =
        matches!(report.runtime(), v1::NodeRuntime::Processes | v1::NodeRuntime::Containers);
    cell.agent.address = report.address.into();
    cell.measure.set_capacity(&report.capacity.unwrap_or_default());
    cell.measure.set_zones(report.zones.iter().map(|zone| zone.capacity.as_ref()));
}

fn put_usage(hub: &NodeSessions, node: NodeId, value: &bytes::Bytes) {
    let usage = v1::NodeUsage::decode(value.clone()).unwrap_or_default();
    hub.slot_or_new(node).cell.lock().measure.recorded(Some(&usage));
}

/// The fields of a NodeReport that cells need; decoding it walks the others.
#[derive(Clone, PartialEq, prost::Message)]
struct FeedReport {
    #[prost(message, optional, tag = "2")]
    capacity: Option<v1::Resources>,
    #[prost(bool, tag = "4")]
    ready: bool,
    #[prost(message, repeated, tag = "7")]
    zones: Vec<ReportZone>,
    #[prost(enumeration = "v1::NodeRuntime", tag = "9")]
    runtime: i32,
    #[prost(string, tag = "10")]
    address: String,
}

/// The field of a Zone that cells need.
#[derive(Clone, PartialEq, prost::Message)]
struct ReportZone {
    #[prost(message, optional, tag = "3")]
    capacity: Option<v1::Resources>,
}

/// Those of `keys` that are live on `node`, for a look at one node.
pub(crate) fn live_on(
    state: &State,
    node: NodeId,
    keys: &[RunningUnitId],
) -> Vec<(RunningUnitId, RunningUnit)> {
    let live =
        |key: &RunningUnitId| live_row(state, *key).filter(|row| row.node == node).map(|row| (*key, row));
    keys.iter().filter_map(live).collect()
}
