//! BindService: hands what comes to the engine.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use godel_base::ids::{Epoch, HoldId, Revision, StoreId, UnitId};
use godel_core_binder::{
    Gathering, MoveTerms,
    leader::{MoveReport, StreamId},
};
use godel_domain::{
    decision::Decision,
    names,
    requested_move::{MOVE_HOLD_MS_MAX, MOVEMENT_LEN_MAX, MadeMove, N_MOVES_MAX, RequestedMove},
    running_units::{Evict, EvictionReason, RunChange},
};
use godel_kit::{
    client::{Directory, retry_idempotent},
    clock::SharedClock,
    message::RECEIVED_BYTES_MAX,
    security::{self, Caller, caller},
    status,
};
use godel_proto::v1::{
    self, bind_service_server::BindService, decide_request::Message, state_service_client::StateServiceClient,
};
use godel_wire::{BadField, from_proto, to_proto};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    metrics::BinderMetrics,
    streams::{OutcomeSender, StreamReply},
};

/// What the names of the schedulers' leases begin with.
const SCHEDULER_LEASE_PREFIX: &str = "scheduler/";
/// Most running units in one request to evict: all of the largest unit.
const N_EVICTIONS_MAX: usize = 100_000;

/// Whether this binder leads, as its engine says: not before it has read everything up to its grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Standby {
        leader: Option<String>,
    },
    /// Under a lease that was granted in `store`.
    Leader {
        epoch: Epoch,
        store: StoreId,
    },
}

/// From the streams to the engine.
#[derive(Debug)]
pub(crate) enum Input {
    Open { id: StreamId, scheduler: String, epoch: Epoch, outcomes: OutcomeSender },
    Decisions { id: StreamId, decisions: Vec<Decision> },
    Close { id: StreamId },
}

/// A request to have running units leave where they are.
#[derive(Debug)]
pub(crate) struct LeaveRequest {
    pub(crate) asked: Leave,
    /// What the caller had read.
    pub(crate) read: Revision,
}

/// What is asked for, and where the answer goes.
#[derive(Debug)]
pub(crate) enum Leave {
    /// To evict.
    Evict(Vec<(UnitId, Evict)>, StreamReply<Revision>),
    /// To move.
    Move(MoveTerms, Vec<RequestedMove>, StreamReply<MoveReport>),
}

/// The service; clones share it.
#[derive(Clone)]
pub(crate) struct BinderRpc {
    pub(crate) role: watch::Receiver<Role>,
    /// As of the last second.
    pub(crate) gathering: watch::Receiver<Vec<Gathering>>,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) leaves: mpsc::Sender<LeaveRequest>,
    pub(crate) metrics: BinderMetrics,
    pub(crate) outcomes_queued_max: usize,
    pub(crate) last_stream: Arc<AtomicU64>,
    pub(crate) directory: Directory,
    pub(crate) clock: SharedClock,
    pub(crate) stop: CancellationToken,
}

impl BinderRpc {
    /// The store that is led in.
    fn leading(&self) -> Result<StoreId, Status> {
        if self.stop.is_cancelled() {
            return Err(status::stopping());
        }
        match &*self.role.borrow() {
            Role::Leader { store, .. } => Ok(*store),
            Role::Standby { leader } => Err(status::not_leader(leader.as_deref())),
        }
    }

    /// That the store has come to the revision that a caller says to have read. Mostly it was read here already.
    async fn check_read(&self, read: Revision) -> Result<(), Status> {
        if read.0 <= u64::try_from(self.metrics.revision.get()).unwrap_or(0) {
            return Ok(());
        }
        let policy = self.directory.policy();
        let answer = retry_idempotent(&policy, || async {
            let mut client =
                StateServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX);
            client.get_store_status(v1::GetStoreStatusRequest {}).await
        });
        let last = Revision(answer.await?.into_inner().revision);
        if read > last { Err(status::future_revision(read, last)) } else { Ok(()) }
    }

    /// Has running units leave: reads what is asked for, if the caller speaks of the store that is led in, hands it to the engine,
    /// and waits for its answer.
    async fn leave<Asked, Answer>(
        &self,
        asked_of: StoreId,
        read: Revision,
        read_request: impl FnOnce() -> Result<Asked, Vec<BadField>>,
        leave: impl FnOnce(Asked, StreamReply<Answer>) -> Leave,
    ) -> Result<Answer, Status> {
        let store = self.leading()?;
        if !store.may_be(asked_of) {
            return Err(status::store_changed(asked_of, store));
        }
        let asked = read_request().map_err(status::invalid_argument)?;
        self.check_read(read).await?;
        let (reply, answer) = oneshot::channel();
        let request = LeaveRequest { asked: leave(asked, reply), read };
        self.leaves.send(request).await.map_err(|_| status::stopping())?;
        answer.await.map_err(|_| status::stopping())?
    }
}

#[tonic::async_trait]
impl BindService for BinderRpc {
    type DecideStream = ReceiverStream<Result<v1::DecideResponse, Status>>;

    async fn decide(
        &self,
        request: Request<Streaming<v1::DecideRequest>>,
    ) -> Result<Response<Self::DecideStream>, Status> {
        let store = self.leading()?;
        let id = StreamId(self.last_stream.fetch_add(1, Ordering::Relaxed) + 1);
        let (outcomes, responses) = mpsc::channel(self.outcomes_queued_max.max(1));
        let (inputs, stop) = (self.inputs.clone(), self.stop.clone());
        let directory = self.directory.clone();
        let caller = caller(&request).clone();
        let reader = read(id, store, caller, request.into_inner(), inputs, outcomes.clone(), directory);
        godel_kit::task::spawn("decide-stream", async move {
            let end = tokio::select! {
                end = reader => end,
                () = stop.cancelled() => Err(status::stopping()),
                () = outcomes.closed() => Ok(()),
            };
            if let Err(status) = end {
                // Whoever does not read has its end already.
                let _ = outcomes.try_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn evict_running_units(
        &self,
        request: Request<v1::EvictRunningUnitsRequest>,
    ) -> Result<Response<v1::EvictRunningUnitsResponse>, Status> {
        let request = request.into_inner();
        let (store, read) = (StoreId(request.store_id), Revision(request.read_revision));
        let read_request = || evictions(request);
        let Revision(revision) = self.leave(store, read, read_request, Leave::Evict).await?;
        Ok(Response::new(v1::EvictRunningUnitsResponse { revision }))
    }

    async fn move_running_units(
        &self,
        request: Request<v1::MoveRunningUnitsRequest>,
    ) -> Result<Response<v1::MoveRunningUnitsResponse>, Status> {
        let request = request.into_inner();
        let (store, read) = (StoreId(request.store_id), Revision(request.read_revision));
        let read_request = || moves(request, self.clock.wall_ms());
        let asked = |(terms, moves), reply| Leave::Move(terms, moves, reply);
        let MoveReport { moves, revision: Revision(revision) } =
            self.leave(store, read, read_request, asked).await?;
        let answers = moves.into_iter().map(|answer| match answer {
            Ok(MadeMove { hold: HoldId(hold_id), surge: surge_ordinal }) => {
                v1::MoveAnswer { refused: None, hold_id, surge_ordinal }
            }
            Err(refusal) => v1::MoveAnswer {
                refused: Some(to_proto::move_refusal(&refusal)),
                ..v1::MoveAnswer::default()
            },
        });
        Ok(Response::new(v1::MoveRunningUnitsResponse { answers: answers.collect(), revision }))
    }

    async fn get_binder_status(
        &self,
        _request: Request<v1::GetBinderStatusRequest>,
    ) -> Result<Response<v1::GetBinderStatusResponse>, Status> {
        let epoch = match &*self.role.borrow() {
            Role::Leader { epoch, .. } => Some(*epoch),
            Role::Standby { .. } => None,
        };
        let rejected = self.metrics.rejected_by_reason();
        Ok(Response::new(v1::GetBinderStatusResponse {
            epoch: epoch.map_or(0, |epoch| epoch.0),
            leader: epoch.is_some(),
            decisions: self.metrics.decisions.get(),
            bound: self.metrics.bound.get(),
            rejected: rejected.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect(),
            txns: self.metrics.txns.get(),
            txns_refused: self.metrics.txns_refused.get(),
            revision: u64::try_from(self.metrics.revision.get()).unwrap_or(0),
            gathering: self.gathering.borrow().iter().map(gathering).collect(),
        }))
    }
}

fn gathering(gang: &Gathering) -> v1::Gathering {
    v1::Gathering {
        unit_id: gang.unit.0,
        pool: to_proto::pool(gang.pool).into(),
        since_ms: gang.since_ms,
        until_ms: gang.expires_ms,
        held: u32::try_from(gang.n_gathered).unwrap_or(u32::MAX),
        wanted: u32::try_from(gang.n_wanted).unwrap_or(u32::MAX),
    }
}

/// Reads a stream to its end. A full engine is waited for: the scheduler feels it as a full stream.
async fn read(
    id: StreamId,
    store: StoreId,
    caller: Caller,
    mut requests: Streaming<v1::DecideRequest>,
    inputs: mpsc::Sender<Input>,
    outcomes: OutcomeSender,
    directory: Directory,
) -> Result<(), Status> {
    let first = requests.message().await?.and_then(|request| request.message);
    let Some(Message::Open(open)) = first else {
        return Err(status::invalid_argument([BadField::new("open", "the first message must be open")]));
    };
    if open.scheduler.is_empty() || open.epoch == 0 {
        return Err(status::invalid_argument([BadField::new("open", "scheduler and epoch are required")]));
    }
    check_scheduler(&caller, &open.scheduler)?;
    let lease = format!("{SCHEDULER_LEASE_PREFIX}{}", open.scheduler);
    if !store.may_be(StoreId(open.store_id)) {
        return Err(status::lease_of_other_store(&lease, StoreId(open.store_id), store));
    }
    // A made-up epoch would push the real scheduler's stream aside.
    directory.check_lease(&lease, Epoch(open.epoch)).await?;
    let _guard = CloseGuard { id, inputs: inputs.clone() };
    let opened = Input::Open { id, scheduler: open.scheduler, epoch: Epoch(open.epoch), outcomes };
    inputs.send(opened).await.map_err(|_| status::stopping())?;
    while let Some(request) = requests.message().await? {
        match request.message {
            Some(Message::Decisions(pb)) => {
                let decisions = pb.decisions.into_iter().map(from_proto::decision).collect();
                inputs.send(Input::Decisions { id, decisions }).await.map_err(|_| status::stopping())?;
            }
            Some(Message::Open(_)) => {
                return Err(status::invalid_argument([BadField::new("open", "the stream is open already")]));
            }
            None => return Err(status::invalid_argument([BadField::new("message", "missing")])),
        }
    }
    Ok(())
}

/// Whether a caller may speak as the scheduler of that name: a certificate is good for its own.
fn check_scheduler(caller: &Caller, scheduler: &str) -> Result<(), Status> {
    caller.check_speaks_as(security::Role::Scheduler, scheduler).map_err(|refusal| {
        let (code, reason) = (Code::PermissionDenied, status::reason::FORBIDDEN);
        status::with_info(code, reason, refusal.to_string(), [("scheduler", scheduler)])
    })
}

/// Tells the engine that a stream has ended, however its reader ended.
struct CloseGuard {
    id: StreamId,
    inputs: mpsc::Sender<Input>,
}

impl Drop for CloseGuard {
    fn drop(&mut self) {
        let (id, inputs) = (self.id, self.inputs.clone());
        // A full queue must not lose it.
        if let Err(mpsc::error::TrySendError::Full(input)) = inputs.try_send(Input::Close { id }) {
            godel_kit::task::spawn("decide-close", async move {
                let _ = inputs.send(input).await;
            });
        }
    }
}

/// The evictions asked for, or every wrong field.
fn evictions(request: v1::EvictRunningUnitsRequest) -> Result<Vec<(UnitId, Evict)>, Vec<BadField>> {
    let mut asked = Vec::with_capacity(request.evictions.len());
    let mut bad = Vec::new();
    let mut n_running_units = 0;
    for (idx, eviction) in request.evictions.into_iter().enumerate() {
        let path = format!("evictions[{idx}]");
        n_running_units += eviction.ordinals.len();
        let n_incarnations = eviction.incarnations.len();
        if n_incarnations != 0 && n_incarnations != eviction.ordinals.len() {
            bad.push(BadField::new(format!("{path}.incarnations"), "empty, or one per ordinal"));
            continue;
        }
        match from_proto::evict(eviction) {
            Ok((_, RunChange::Evict(evict))) if evict.reason == EvictionReason::Rescheduled => {
                bad.push(BadField::new(format!("{path}.reason"), "who moves is named in MoveRunningUnits"));
            }
            Ok((unit, RunChange::Evict(evict))) => asked.push((unit, evict)),
            Ok(_) => bad.push(BadField::new(path, "not an eviction")),
            Err(field) => bad.push(field.under(&path)),
        }
    }
    if n_running_units > N_EVICTIONS_MAX {
        bad.push(BadField::new(
            "evictions",
            format!("{n_running_units} running units, at most {N_EVICTIONS_MAX}"),
        ));
    }
    if asked.is_empty() && bad.is_empty() {
        bad.push(BadField::new("evictions", "empty"));
    }
    if bad.is_empty() { Ok(asked) } else { Err(bad) }
}

/// The moves asked for at `now_ms`, or every wrong field.
fn moves(
    request: v1::MoveRunningUnitsRequest,
    now_ms: i64,
) -> Result<(MoveTerms, Vec<RequestedMove>), Vec<BadField>> {
    let v1::MoveRunningUnitsRequest { movement, moves, expires_ms, read_revision: _, store_id: _ } = request;
    let mut bad = Vec::new();
    if let Err(wrong) = names::text(&movement, MOVEMENT_LEN_MAX) {
        bad.push(BadField::new("movement", wrong.to_string()));
    } else if movement.is_empty() {
        bad.push(BadField::new("movement", "missing"));
    }
    if expires_ms <= now_ms || expires_ms > now_ms.saturating_add(MOVE_HOLD_MS_MAX) {
        bad.push(BadField::new("expires_ms", "later than now, by a day at most"));
    }
    if moves.is_empty() || moves.len() > N_MOVES_MAX {
        bad.push(BadField::new("moves", format!("1 to {N_MOVES_MAX}")));
        return Err(bad);
    }
    let mut seen = BTreeSet::new();
    let mut asked = Vec::with_capacity(moves.len());
    for (idx, one) in moves.into_iter().enumerate() {
        let path = format!("moves[{idx}]");
        match from_proto::requested_move(one) {
            Ok(one) if seen.insert((one.running.unit, one.running.replica.ordinal)) => asked.push(one),
            Ok(_) => bad.push(BadField::new(path, "the replica stands twice")),
            Err(field) => bad.push(field.under(&path)),
        }
    }
    let terms = MoveTerms { movement: Arc::from(movement), expires_ms };
    if bad.is_empty() { Ok((terms, asked)) } else { Err(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_speaks_as_itself() {
        let scheduler = Caller::Member { role: security::Role::Scheduler, name: "s1".to_owned() };
        assert!(
            check_scheduler(&scheduler, "s1").is_ok() && check_scheduler(&Caller::Unjudged, "s1").is_ok()
        );
        for (caller, name) in [(&scheduler, "s2"), (&Caller::admin(), "s1")] {
            assert_eq!(check_scheduler(caller, name).unwrap_err().code(), Code::PermissionDenied);
        }
    }

    #[test]
    fn wrong_evictions_are_named_all_at_once() {
        let eviction = |unit_id, ordinals: &[u32], incarnations: &[u32]| v1::Eviction {
            unit_id,
            ordinals: ordinals.to_vec(),
            incarnations: incarnations.to_vec(),
            reason: v1::EvictionReason::Cancelled.into(),
            by: "test".to_owned(),
            preemptor_id: 0,
        };
        let request = |evictions| v1::EvictRunningUnitsRequest { evictions, ..Default::default() };
        let good = evictions(request(vec![eviction(7, &[1, 2], &[])])).unwrap();
        assert_eq!((good[0].0, good[0].1.reason), (UnitId(7), EvictionReason::Cancelled));
        let bad = evictions(request(vec![
            eviction(0, &[1], &[]),
            eviction(1, &[1], &[0, 0]),
            v1::Eviction { reason: 99, ..eviction(1, &[1], &[]) },
        ]))
        .unwrap_err();
        assert_eq!(bad.len(), 3, "{bad:?}");
        assert_eq!(evictions(request(Vec::new())).unwrap_err()[0].path, "evictions");
        let many: Vec<u32> = (0..100_001).collect();
        assert!(evictions(request(vec![eviction(1, &many, &[])])).is_err());
    }

    #[test]
    fn wrong_moves_are_named_all_at_once() {
        let one = |unit_id, ordinal, to_node_id| v1::RequestedMove {
            unit_id,
            ordinal,
            to_node_id,
            device_mask: 0b10,
            ..v1::RequestedMove::default()
        };
        let request = |movement: &str, expires_ms, moves| v1::MoveRunningUnitsRequest {
            movement: movement.to_owned(),
            moves,
            expires_ms,
            ..v1::MoveRunningUnitsRequest::default()
        };
        let (terms, asked) = moves(request("m-1", 8, vec![one(7, 1, 2), one(7, 2, 2)]), 7).unwrap();
        assert_eq!((&*terms.movement, terms.expires_ms, asked.len()), ("m-1", 8, 2));
        assert_eq!((asked[0].running.unit, asked[0].wanted.devices.0), (UnitId(7), 0b10));
        let paths = |request| {
            let bad = moves(request, 7).unwrap_err();
            bad.into_iter().map(|field| field.path).collect::<Vec<_>>()
        };
        let twice = vec![one(0, 1, 2), one(1, 1, 0), one(1, 2, 2), one(1, 2, 3)];
        assert_eq!(
            paths(request("", 7, twice)),
            ["movement", "expires_ms", "moves[0].unit_id", "moves[1].to_node_id", "moves[3]"]
        );
        assert_eq!(paths(request("m", 8 + MOVE_HOLD_MS_MAX, vec![one(1, 1, 1)])), ["expires_ms"]);
        assert_eq!(paths(request(&"m".repeat(81), 8, Vec::new())), ["movement", "moves"]);
        let many = (0..=1_024).map(|ordinal| one(1, ordinal, 1)).collect();
        assert_eq!(paths(request("m", 8, many)), ["moves"]);
    }
}
