//! What the watch shows of a run: which running units are bound where, since when, and which have ended.
//!
//! Part of what is measured, so it does as little as it can: it reads row changes only and keeps them in arrays by
//! unit id. Which unit of the load an id belongs to is looked up after the run.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_audit::World;
use godel_domain::{limits::REPLICAS_MAX, running_units::Phase};
use godel_proto::{raw, v1};
use prost::Message as _;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use godel_client::{client::Client, exit::Failure};

/// Field numbers of row changes in `godel.v1.Op`.
pub(super) const BIND: u32 = 20;
pub(super) const RUN_STATUS: u32 = 22;
pub(super) const REQUEUE: u32 = 23;
/// Ids of one run lie this close together; one further away is a fault.
const N_UNITS_MAX: usize = 16 << 20;
/// Differences that a failure names.
const N_SHOWN: usize = 5;
/// Watches opened before it is given up.
const N_WATCHES_MAX: u32 = 20;

/// Not seen bound.
const NOWHERE: u32 = u32::MAX;
/// Pending again.
const PENDING: u32 = 0;

/// One running unit.
#[derive(Clone, Copy)]
struct Spot {
    node: u32,
    ended: bool,
}

/// One unit.
#[derive(Clone, Default)]
struct Seen {
    spots: Vec<Spot>,
    n_bound: usize,
    /// Of the last first binding, since the board's start.
    last_bound: Duration,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// (unit, ordinal)s seen bound, each once.
    pub(super) n_bound: usize,
    /// (unit, ordinal)s seen ended, each once.
    pub(super) n_ended: usize,
    /// When the last one was bound, since the board's start.
    pub(super) last_bound: Duration,
    /// When the last one ended, since the board's start.
    pub(super) last_ended: Duration,
    goal: (usize, usize),
}

/// See the module.
pub(super) struct Board {
    started: Instant,
    /// Ids of this run are above it.
    id_base: u64,
    inner: Mutex<Inner>,
    progress: watch::Sender<Progress>,
}

#[derive(Default)]
struct Inner {
    /// By id above the base.
    seen: Vec<Seen>,
    read_up_to: u64,
    failure: Option<Failure>,
}

impl Board {
    /// Watches from now on, until `stop`.
    pub(super) async fn start(client: &Client, stop: CancellationToken) -> Result<Arc<Self>, Failure> {
        let status = client.store_status().await?;
        let board = Arc::new(Self {
            started: Instant::now(),
            id_base: status.last_unit_id,
            inner: Mutex::new(Inner { read_up_to: status.revision, ..Inner::default() }),
            progress: watch::channel(Progress::default()).0,
        });
        let (watching, client) = (Arc::clone(&board), client.clone());
        godel_kit::task::spawn("bench.watch", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                failure = watch(
                    &client,
                    &[v1::Kind::Rows],
                    || watching.lock().read_up_to,
                    |answer| watching.take(answer),
                ) => watching.lock().failure = Some(failure),
            }
        });
        Ok(board)
    }

    /// Ids of this run are above it.
    pub(super) fn id_base(&self) -> u64 {
        self.id_base
    }

    /// Since the start.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The moment to which all times refer.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// How far it is.
    pub(super) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Waits until so many were bound and so many have ended.
    pub(super) async fn reached(&self, n_bound: usize, n_ended: usize) -> Progress {
        // Only the last step towards a goal wakes whoever waits for it.
        self.progress.send_modify(|progress| progress.goal = (n_bound, n_ended));
        let mut seen = self.progress.subscribe();
        let reached = seen.wait_for(Progress::is_reached).await;
        // The sender lives as long as this board.
        reached.map(|progress| *progress).unwrap_or_default()
    }

    /// Revision that it has seen.
    pub(super) fn read_up_to(&self) -> u64 {
        self.lock().read_up_to
    }

    /// Why it does not watch any more.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// When the last binding of each unit was seen, by unit id.
    pub(super) fn bound_times(&self) -> impl Iterator<Item = (u64, Duration)> {
        let times: Vec<Duration> = self.lock().seen.iter().map(|seen| seen.last_bound).collect();
        let first = self.id_base + 1;
        (first..).zip(times)
    }

    /// Where a list of everything differs from what was seen; empty when it does not.
    pub(super) fn differences(&self, world: &World) -> Vec<String> {
        let inner = self.lock();
        let mut differences = Vec::new();
        let listed = world.units.iter().filter(|(id, _)| id.0 > self.id_base);
        let n_listed: usize = listed.map(|(_, unit)| unit.rows.len()).sum();
        let n_seen: usize = inner.seen.iter().map(|seen| seen.n_bound).sum();
        if n_listed != n_seen {
            differences.push(format!("{n_seen} running units were seen bound, {n_listed} are listed"));
        }
        for (id, seen) in (self.id_base + 1..).zip(&inner.seen) {
            let unit = world.units.get(&godel_base::ids::UnitId(id));
            for (ordinal, spot) in (0u32..).zip(&seen.spots).filter(|(_, spot)| spot.node != NOWHERE) {
                let row = unit.and_then(|unit| unit.rows.get(&ordinal));
                let same = row.is_some_and(|row| {
                    // One that waits has no node now, wherever it ran.
                    let node = if row.phase == Phase::Pending { 0 } else { row.node.0 };
                    node == spot.node && row.phase.is_ended() >= spot.ended
                });
                if !same && differences.len() < N_SHOWN {
                    differences.push(format!(
                        "unit {id}, ordinal {ordinal}: seen on node {}, listed {row:?}",
                        spot.node
                    ));
                }
            }
        }
        differences
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that holds the lock can leave it half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, answer: &v1::WatchResponse) -> Result<(), Status> {
        let now = self.now();
        let mut inner = self.lock();
        let (mut n_bound, mut n_ended) = (0, 0);
        for op in answer.commits.iter().flat_map(|commit| &commit.ops) {
            match raw::op_payload(op) {
                Some((BIND, payload)) => n_bound += self.on_bind(&mut inner, payload, now)?,
                Some((RUN_STATUS, payload)) => n_ended += self.on_statuses(&mut inner, payload)?,
                Some((REQUEUE, payload)) => self.on_requeue(&mut inner, payload)?,
                _ => {}
            }
        }
        inner.read_up_to = inner.read_up_to.max(answer.revision);
        drop(inner);
        if n_bound + n_ended > 0 {
            self.progress.send_if_modified(|progress| {
                progress.n_bound += n_bound;
                progress.n_ended += n_ended;
                if n_bound > 0 {
                    progress.last_bound = now;
                }
                if n_ended > 0 {
                    progress.last_ended = now;
                }
                progress.is_reached()
            });
        }
        Ok(())
    }

    /// Running units bound for the first time.
    fn on_bind(&self, inner: &mut Inner, payload: Bytes, now: Duration) -> Result<usize, Status> {
        let bind = v1::Binding::decode(payload).map_err(unreadable)?;
        let seen = self.seen(inner, bind.unit_id)?;
        let mut n_fresh = 0;
        for (ordinal, node) in bind.ordinals.iter().zip(&bind.node_ids) {
            let spot = seen.spot(*ordinal)?;
            n_fresh += usize::from(spot.node == NOWHERE);
            spot.node = *node;
        }
        seen.n_bound += n_fresh;
        if n_fresh > 0 {
            seen.last_bound = now;
        }
        Ok(n_fresh)
    }

    /// Running units ended for the first time.
    fn on_statuses(&self, inner: &mut Inner, payload: Bytes) -> Result<usize, Status> {
        let statuses = v1::RunStatuses::decode(payload).map_err(unreadable)?;
        let seen = self.seen(inner, statuses.unit_id)?;
        let mut n_fresh = 0;
        for (ordinal, phase) in statuses.ordinals.iter().zip(statuses.phases()) {
            use v1::RunPhase::{Failed, Stopped, Succeeded};
            let spot = seen.spot(*ordinal)?;
            if matches!(phase, Succeeded | Failed | Stopped) {
                n_fresh += usize::from(!std::mem::replace(&mut spot.ended, true));
            }
        }
        Ok(n_fresh)
    }

    /// Running units that wait for a node again.
    fn on_requeue(&self, inner: &mut Inner, payload: Bytes) -> Result<(), Status> {
        let requeue = v1::Requeue::decode(payload).map_err(unreadable)?;
        let seen = self.seen(inner, requeue.unit_id)?;
        for ordinal in &requeue.ordinals {
            *seen.spot(*ordinal)? = Spot { node: PENDING, ended: false };
        }
        Ok(())
    }

    fn seen<'a>(&self, inner: &'a mut Inner, id: u64) -> Result<&'a mut Seen, Status> {
        let idx = id.checked_sub(self.id_base + 1).and_then(|idx| usize::try_from(idx).ok());
        let idx = idx.filter(|idx| *idx < N_UNITS_MAX);
        let idx = idx.ok_or_else(|| Status::data_loss(format!("unit {id} does not belong to this run")))?;
        if idx >= inner.seen.len() {
            inner.seen.resize_with(idx + 1, Seen::default);
        }
        Ok(&mut inner.seen[idx])
    }
}

impl Progress {
    fn is_reached(&self) -> bool {
        self.n_bound >= self.goal.0 && self.n_ended >= self.goal.1
    }
}

impl Seen {
    fn spot(&mut self, ordinal: u32) -> Result<&mut Spot, Status> {
        let idx = usize::try_from(ordinal).ok().filter(|_| ordinal < REPLICAS_MAX);
        let idx = idx.ok_or_else(|| Status::data_loss(format!("impossible ordinal {ordinal}")))?;
        if idx >= self.spots.len() {
            self.spots.resize(idx + 1, Spot { node: NOWHERE, ended: false });
        }
        Ok(&mut self.spots[idx])
    }
}

/// Watches until that is hopeless; a watch that breaks off goes on behind what was read.
pub(super) async fn watch(
    client: &Client,
    kinds: &[v1::Kind],
    read_up_to: impl Fn() -> u64,
    take: impl Fn(&v1::WatchResponse) -> Result<(), Status>,
) -> Failure {
    let mut n_watches = 0;
    loop {
        n_watches += 1;
        let request = v1::WatchRequest {
            from_revision: read_up_to() + 1,
            kinds: kinds.iter().map(|kind| i32::from(*kind)).collect(),
            ..v1::WatchRequest::default()
        };
        let status = follow(client, request, &take).await;
        if n_watches > N_WATCHES_MAX || !may_go_on(&status) {
            return client.explain(status).during("the watch");
        }
    }
}

async fn follow(
    client: &Client,
    request: v1::WatchRequest,
    take: impl Fn(&v1::WatchResponse) -> Result<(), Status>,
) -> Status {
    let mut stream = match client.state().watch(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status,
    };
    while let Some(answer) = stream.next().await {
        if let Err(status) = answer.and_then(|answer| take(&answer)) {
            return status;
        }
    }
    Status::unavailable("the watch ended")
}

fn may_go_on(status: &Status) -> bool {
    godel_kit::status::is_retryable_idempotent(status)
        || godel_kit::status::has_reason(status, godel_kit::status::reason::SLOW_WATCHER)
}

/// A change that is none.
pub(super) fn unreadable(error: prost::DecodeError) -> Status {
    Status::data_loss(format!("a change cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use godel_audit::Commit;
    use godel_base::ids::Revision;
    use godel_wire::from_proto;

    use super::*;

    fn board() -> Board {
        Board {
            started: Instant::now(),
            id_base: 10,
            inner: Mutex::default(),
            progress: watch::channel(Progress::default()).0,
        }
    }

    fn bind(unit_id: u64, ordinals: &[u32], node: u32) -> v1::op::Op {
        let node_ids = vec![node; ordinals.len()];
        v1::op::Op::Bind(v1::Binding {
            unit_id,
            ordinals: ordinals.to_vec(),
            node_ids,
            ..v1::Binding::default()
        })
    }

    fn ended(unit_id: u64, ordinal: u32) -> v1::op::Op {
        let phases = vec![v1::RunPhase::Succeeded.into()];
        let statuses =
            v1::RunStatuses { unit_id, ordinals: vec![ordinal], phases, ..v1::RunStatuses::default() };
        v1::op::Op::RunStatus(statuses)
    }

    fn take(board: &Board, ops: Vec<v1::op::Op>) -> Result<Progress, Status> {
        let ops = ops.into_iter().map(raw::encode_op).collect();
        let commit = raw::Commit { revision: 5, ops, ..raw::Commit::default() };
        board.take(&v1::WatchResponse { commits: vec![commit], revision: 5 })?;
        Ok(board.progress())
    }

    /// A world in which these happened.
    fn listed(ops: Vec<v1::op::Op>) -> World {
        let changes = ops.into_iter().map(|op| from_proto::op(&raw::encode_op(op)).unwrap());
        let commit = Commit { revision: Revision(5), time_ms: 1, changes: changes.collect() };
        let mut world = World::default();
        world.apply(&commit, |_, _| {});
        world
    }

    #[test]
    fn each_running_unit_counts_once() {
        let board = board();
        let progress = take(&board, vec![bind(11, &[0, 1], 7), bind(13, &[0], 8)]).unwrap();
        assert_eq!((progress.n_bound, progress.n_ended), (3, 0));
        let progress = take(&board, vec![bind(11, &[1, 2], 9), ended(11, 0), ended(11, 0)]).unwrap();
        assert_eq!((progress.n_bound, progress.n_ended), (4, 1));
        assert_eq!(board.bound_times().map(|(id, _)| id).collect::<Vec<_>>(), [11, 12, 13]);
        assert!(take(&board, vec![bind(10, &[0], 7)]).is_err(), "a unit from before the run");
    }

    #[test]
    fn what_is_listed_otherwise_is_named() {
        let board = board();
        take(&board, vec![bind(11, &[0, 1], 7), ended(11, 1)]).unwrap();
        let same = listed(vec![bind(11, &[0, 1], 7), ended(11, 1)]);
        assert_eq!(board.differences(&same), Vec::<String>::new());
        let elsewhere = listed(vec![bind(11, &[0], 8), bind(11, &[1], 7), ended(11, 1)]);
        assert_eq!(board.differences(&elsewhere).len(), 1);
        let not_ended = listed(vec![bind(11, &[0, 1], 7)]);
        assert_eq!(board.differences(&not_ended).len(), 1);
        let requeue = v1::Requeue { unit_id: 11, ordinals: vec![1], incarnations: vec![1], anew: false };
        let again = vec![bind(11, &[0, 1], 7), ended(11, 1), v1::op::Op::Requeue(requeue.clone())];
        assert_eq!(board.differences(&listed(again.clone())).len(), 1);
        let requeued = self::board();
        take(&requeued, again.clone()).unwrap();
        assert_eq!(requeued.differences(&listed(again)), Vec::<String>::new());
        let more = listed(vec![bind(11, &[0, 1, 2], 7), ended(11, 1)]);
        assert_eq!(board.differences(&more).len(), 1);
        assert_eq!(board.differences(&World::default()).len(), 3, "everything is lost");
    }
}
