//! Leases: granted, renewed and ended here, on state's monotonic clock only.
//!
//! [`Leases`] decides; one task writes what it decides, at most one change per lease and commit, so a grant
//! is durable before anybody hears of it. Renewals touch memory only. Deadlines do not survive a restart:
//! every held lease then has its full TTL anew. A holder whose connection ends is asked for once: see `holders`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use godel_base::ids::{Epoch, Revision, StoreId};
use godel_crash::CrashPoints;
use godel_domain::{change::Lease, names};
use godel_kit::{
    clock::SharedClock,
    security,
    server::{self, CallerConnection},
    status::{self, reason, resource_exhausted, with_info},
};
use godel_membership::{
    front_door::{self, ServingPart},
    leases::{self, ConnectionId, HolderProbe, LeaseContact, LeaseDenied, LeaseRequest, Leases, MemberFacts},
};
use godel_proto::{raw, v1};
use godel_store::{RefusalReason, Role, State, Store};
use godel_wire::{BadField, from_proto, to_proto};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use crate::{
    check, error,
    holders::{self, HolderWatches},
    leader_watch::{LeaderStream, LeaderWatch},
    metrics::StateMetrics,
    rights,
};

/// Changes of leases that may wait.
const N_WAITING_MAX: usize = 1_024;
/// Longest time between two looks at the deadlines; shorter when one is nearer.
const LOOK_INTERVAL_MS: u64 = 250;
/// Longest holder or address.
const TEXT_LEN_MAX: usize = 253;
/// Longest version of a program.
const VERSION_LEN_MAX: usize = 64;

/// The leases of this state, and its `MemberService`.
#[derive(Clone)]
pub(crate) struct Members {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    clock: SharedClock,
    crash: CrashPoints,
    metrics: StateMetrics,
    leases: Mutex<Leases>,
    jobs: mpsc::Sender<LeaseJob>,
    leader: LeaderWatch,
    holders: HolderWatches,
}

enum LeaseJob {
    Acquire { ask: LeaseRequest, reply: oneshot::Sender<Result<Granted, Status>> },
    Release { name: String, epoch: Epoch, reply: oneshot::Sender<Result<(), Status>> },
    Dead { last: LeaseContact },
}

/// A durable grant.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) lease: Lease,
    pub(crate) revision: Revision,
}

/// Writes what is decided. Keeps state's own registration alive as long as it runs.
pub(crate) struct LeaseWriter {
    inner: Arc<Inner>,
    jobs: mpsc::Receiver<LeaseJob>,
    own: LeaseRequest,
}

/// One commit of lease records.
#[derive(Default)]
struct LeaseRound {
    records: BTreeMap<String, Lease>,
    answers: Vec<LeaseAnswer>,
}

enum LeaseAnswer {
    Acquired(String, oneshot::Sender<Result<Granted, Status>>),
    Released(oneshot::Sender<Result<(), Status>>),
}

impl Members {
    /// From the lease records of the store. `own` is state's own registration, and `leader` says which state leads.
    pub(crate) fn new(
        store: Store,
        clock: SharedClock,
        crash: CrashPoints,
        metrics: StateMetrics,
        own: LeaseRequest,
        leader: LeaderWatch,
    ) -> (Self, LeaseWriter) {
        let records: Vec<v1::LeaseRecord> = store.read(|state| state.leases().cloned().collect());
        // What the store has taken has a name.
        let records = records.into_iter().filter_map(|record| from_proto::lease(record).ok());
        let floor = Epoch(store.read(State::epoch_floor));
        let leases = Mutex::new(Leases::load(records, floor, clock.now()));
        let (sender, jobs) = mpsc::channel(N_WAITING_MAX);
        let inner = Arc::new(Inner {
            store,
            clock,
            crash,
            metrics,
            leases,
            jobs: sender,
            leader,
            holders: HolderWatches::default(),
        });
        (Self { inner: Arc::clone(&inner) }, LeaseWriter { inner, jobs, own })
    }
}

impl LeaseWriter {
    /// Registers state itself, whoever had its name before: there is one state per store. Returns its epoch,
    /// which is higher at each start.
    pub(crate) async fn register(&self) -> Result<Epoch, godel_store::TxnRefusal> {
        let lease = self.inner.leases.lock().grant_to_state(&self.own);
        self.inner.write([&lease]).await?;
        let epoch = lease.epoch;
        self.inner.leases.lock().apply(lease, self.inner.clock.now());
        Ok(epoch)
    }

    /// Writes until `stop`, then gives state's own registration back.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                let look = tokio::time::sleep(self.until_next_look());
                tokio::select! {
                    job = self.jobs.recv() => waiting.extend(job),
                    () = look => {}
                    () = stop.cancelled() => break,
                }
            }
            while let Ok(job) = self.jobs.try_recv() {
                waiting.push_back(job);
            }
            self.renew_own();
            let round = self.round(&mut waiting);
            self.commit(round).await;
        }
        let own = self.own_epoch().and_then(|epoch| self.inner.leases.lock().release(&self.own.name, epoch));
        if let Some(own) = own
            && let Err(refusal) = self.inner.write([&own]).await
        {
            match refusal.reason {
                // Another state leads by now.
                RefusalReason::Closed => tracing::debug!(%refusal, "own registration was not released"),
                _ => tracing::warn!(%refusal, "own registration was not released"),
            }
        }
    }

    fn until_next_look(&self) -> Duration {
        let now = self.inner.clock.now();
        let leases = self.inner.leases.lock();
        let remaining = leases.list("", now).filter(|shown| !shown.lease.holder.is_empty());
        let nearest = remaining.map(|shown| shown.remaining_ms).min().unwrap_or(LOOK_INTERVAL_MS);
        // One more, so that it is over when looked at.
        Duration::from_millis(nearest.min(LOOK_INTERVAL_MS - 1) + 1)
    }

    fn own_epoch(&self) -> Option<Epoch> {
        let leases = self.inner.leases.lock();
        leases.list(&self.own.name, self.inner.clock.now()).next().map(|shown| shown.lease.epoch)
    }

    /// While this runs, state is there.
    fn renew_own(&self) {
        let now = self.inner.clock.now();
        let mut leases = self.inner.leases.lock();
        let own = leases.list(&self.own.name, now).next().map(|shown| shown.lease.clone());
        if let Some(own) = own.filter(|own| own.holder == self.own.holder) {
            leases.apply(own, now);
        }
    }

    /// Takes jobs, at most one per lease, and adds what has expired.
    fn round(&self, waiting: &mut VecDeque<LeaseJob>) -> LeaseRound {
        let now = self.inner.clock.now();
        let leases = self.inner.leases.lock();
        let mut round = LeaseRound::default();
        for _ in 0..waiting.len() {
            let Some(job) = waiting.pop_front() else { break };
            let name = match &job {
                LeaseJob::Acquire { ask, .. } => &ask.name,
                LeaseJob::Release { name, .. } => name,
                LeaseJob::Dead { last } => &last.lease,
            };
            if round.records.contains_key(name) {
                waiting.push_back(job);
                continue;
            }
            match job {
                LeaseJob::Acquire { ask, reply } => match leases.grant(&ask, now) {
                    Ok(lease) => {
                        round.answers.push(LeaseAnswer::Acquired(ask.name.clone(), reply));
                        round.records.insert(ask.name, lease);
                    }
                    Err(refusal) => drop(reply.send(Err(refused(&refusal)))),
                },
                LeaseJob::Release { name, epoch, reply } => match leases.release(&name, epoch) {
                    Some(lease) => {
                        round.answers.push(LeaseAnswer::Released(reply));
                        round.records.insert(name, lease);
                    }
                    None => drop(reply.send(Ok(()))),
                },
                LeaseJob::Dead { last } => {
                    if let Some(lease) = leases.end_of_dead(&last, HolderProbe::Refused, now) {
                        let (name, epoch) = (&lease.name, lease.epoch.0);
                        let address = &lease.address;
                        tracing::info!(
                            lease = name,
                            epoch,
                            address,
                            "the holder is gone: its connection has ended and its address refuses; its lease ends"
                        );
                        round.records.insert(last.lease, lease);
                    }
                }
            }
        }
        for lease in leases.expired(now) {
            round.records.entry(lease.name.clone()).or_insert_with(|| {
                tracing::info!(lease = lease.name, epoch = lease.epoch.0, "lease expired");
                lease
            });
        }
        round
    }

    async fn commit(&self, round: LeaseRound) {
        if round.records.is_empty() {
            return;
        }
        self.inner.crash.hit("state.lease-grant");
        let written = self.inner.write(round.records.values()).await;
        if let Ok(committed) = &written {
            let now = self.inner.clock.now();
            let mut leases = self.inner.leases.lock();
            for lease in round.records.values() {
                tracing::info!(
                    lease = lease.name,
                    holder = lease.holder,
                    epoch = lease.epoch.0,
                    "lease changed"
                );
                leases.apply(lease.clone(), now);
            }
            self.inner.metrics.lease_changes.inc_by(round.records.len() as u64);
            self.inner.crash.hit("state.before-answer");
            drop(leases);
            for answer in round.answers {
                // Who asked may have left.
                match answer {
                    LeaseAnswer::Acquired(name, reply) => {
                        if let Some(lease) = round.records.get(&name) {
                            let granted = Granted { lease: lease.clone(), revision: committed.revision };
                            drop(reply.send(Ok(granted)));
                        }
                    }
                    LeaseAnswer::Released(reply) => drop(reply.send(Ok(()))),
                }
            }
        } else if let Err(refusal) = written {
            tracing::warn!(%refusal, "lease records were refused");
            for answer in round.answers {
                match answer {
                    LeaseAnswer::Acquired(_, reply) => drop(reply.send(Err(error::status(&refusal, None)))),
                    LeaseAnswer::Released(reply) => drop(reply.send(Err(error::status(&refusal, None)))),
                }
            }
            // Expiries are tried again with the next round; not at once.
            tokio::time::sleep(Duration::from_millis(LOOK_INTERVAL_MS)).await;
        }
    }
}

impl Inner {
    fn store_id(&self) -> StoreId {
        self.store.read(State::store_id)
    }

    /// That a lease was granted in this store, as far as its holder says.
    fn check_store(&self, lease: &str, store_id: u64) -> Result<(), Status> {
        let (asked, id) = (StoreId(store_id), self.store_id());
        if id.may_be(asked) {
            return Ok(());
        }
        self.metrics.refused(reason::STORE_CHANGED);
        Err(status::lease_of_other_store(lease, asked, id))
    }

    /// The holder of a lease has called: the end of its connection may say that it has died.
    fn note_contact(self: &Arc<Self>, lease: &str, epoch: Epoch, connection: Option<CallerConnection>) {
        let id = connection.as_ref().map(|connection| ConnectionId(connection.number));
        // Until the watch is there, so that two calls at once leave the watch of the last one.
        let mut leases = self.leases.lock();
        if !leases.note_contact(lease, epoch, id) {
            return;
        }
        let watch = connection.map(|connection| {
            let last =
                LeaseContact { lease: lease.to_owned(), epoch, connection: ConnectionId(connection.number) };
            ask_once_gone(Arc::downgrade(self), connection, last)
        });
        self.holders.replace(lease, watch);
    }

    async fn write<'a>(
        &self,
        records: impl IntoIterator<Item = &'a Lease>,
    ) -> Result<godel_store::Committed, godel_store::TxnRefusal> {
        let ops =
            records.into_iter().map(|lease| raw::encode_op(v1::op::Op::PutLease(to_proto::lease(lease))));
        let txn = raw::TxnRequest { ops: ops.collect(), ..raw::TxnRequest::default() };
        debug_assert_eq!(check::readable(&txn), Ok(()));
        self.store.submit(txn, Role::State).await
    }
}

/// Waits for the end of a holder's connection. If its address refuses then, its lease ends; otherwise the lease lasts for its time.
async fn ask_once_gone(inner: Weak<Inner>, connection: CallerConnection, last: LeaseContact) {
    connection.ended.cancelled().await;
    let asked = inner.upgrade().and_then(|inner| {
        let leases = inner.leases.lock();
        let lease = leases.out_of_contact(&last, inner.clock.now())?;
        Some((lease.address.clone(), inner.jobs.clone()))
    });
    let Some((address, jobs)) = asked else { return };
    // A writer that is full or gone ends no lease early.
    let probe = holders::probe(&address, connection.peer.ip()).await;
    tracing::debug!(lease = last.lease, address, ?probe, "asked a holder whose connection has ended");
    if probe == HolderProbe::Refused {
        drop(jobs.try_send(LeaseJob::Dead { last }));
    }
}

impl server::ForwardTo for Members {
    fn address(&self, part: ServingPart, scheduler: Option<&str>) -> Result<String, Status> {
        let leases = self.inner.leases.lock();
        let member = front_door::member(part, scheduler, &leases, self.inner.clock.now());
        member.map(|lease| lease.address).map_err(|nobody| status::no_leader(&nobody.lease))
    }
}

#[tonic::async_trait]
impl v1::member_service_server::MemberService for Members {
    type WatchLeaderStream = LeaderStream;

    async fn watch_leader(
        &self,
        request: Request<v1::WatchLeaderRequest>,
    ) -> Result<Response<LeaderStream>, Status> {
        Ok(Response::new(self.inner.leader.stream(request.get_ref())))
    }

    async fn acquire_lease(
        &self,
        request: Request<v1::AcquireLeaseRequest>,
    ) -> Result<Response<v1::AcquireLeaseResponse>, Status> {
        rights::check_lease(security::caller(&request), &request.get_ref().lease)?;
        let connection = server::caller_connection(&request);
        let ask = ask(request.into_inner()).map_err(status::invalid_argument)?;
        // A lease that is plainly held costs no commit and no turn of the writer.
        let now = self.inner.clock.now();
        {
            let mut leases = self.inner.leases.lock();
            if let Err(refusal) = leases.grant(&ask, now) {
                leases.note_standby(&ask, now);
                return Err(refused(&refusal));
            }
        }
        let (reply, answer) = oneshot::channel();
        self.inner.jobs.try_send(LeaseJob::Acquire { ask, reply }).map_err(error::queue)?;
        let granted = answer.await.map_err(|_| status::stopping())??;
        self.inner.note_contact(&granted.lease.name, granted.lease.epoch, connection);
        Ok(Response::new(v1::AcquireLeaseResponse {
            epoch: granted.lease.epoch.0,
            ttl_ms: granted.lease.ttl_ms,
            revision: granted.revision.0,
            store_id: self.inner.store_id().0,
        }))
    }

    async fn renew_lease(
        &self,
        request: Request<v1::RenewLeaseRequest>,
    ) -> Result<Response<v1::RenewLeaseResponse>, Status> {
        self.inner.crash.hit("state.lease-renew");
        rights::check_lease(security::caller(&request), &request.get_ref().lease)?;
        let connection = server::caller_connection(&request);
        let v1::RenewLeaseRequest { lease, epoch, status: facts, store_id } = request.into_inner();
        let facts = facts.map(member_facts).transpose()?;
        self.inner.check_store(&lease, store_id)?;
        let now = self.inner.clock.now();
        let renewed = self.inner.leases.lock().renew(&lease, Epoch(epoch), facts, now);
        let ttl_ms = renewed.map_err(|_| {
            self.inner.metrics.refused(reason::STALE_EPOCH);
            status::stale_epoch(&lease, epoch)
        })?;
        self.inner.note_contact(&lease, Epoch(epoch), connection);
        Ok(Response::new(v1::RenewLeaseResponse { ttl_ms }))
    }

    async fn release_lease(
        &self,
        request: Request<v1::ReleaseLeaseRequest>,
    ) -> Result<Response<v1::ReleaseLeaseResponse>, Status> {
        rights::check_lease(security::caller(&request), &request.get_ref().lease)?;
        let v1::ReleaseLeaseRequest { lease: name, epoch, store_id } = request.into_inner();
        if !self.inner.store_id().may_be(StoreId(store_id)) {
            // A lease of another store is not held here: given back it is.
            return Ok(Response::new(v1::ReleaseLeaseResponse {}));
        }
        let (reply, answer) = oneshot::channel();
        let job = LeaseJob::Release { name, epoch: Epoch(epoch), reply };
        self.inner.jobs.try_send(job).map_err(error::queue)?;
        answer.await.map_err(|_| status::stopping())??;
        Ok(Response::new(v1::ReleaseLeaseResponse {}))
    }

    async fn list_members(
        &self,
        request: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersResponse>, Status> {
        let prefix = request.into_inner().prefix;
        let now = self.inner.clock.now();
        let leases = self.inner.leases.lock();
        let members = leases.list(&prefix, now).map(|shown| v1::Member {
            lease: shown.lease.name.clone(),
            holder: if shown.remaining_ms == 0 { String::new() } else { shown.lease.holder.clone() },
            address: shown.lease.address.clone(),
            epoch: shown.lease.epoch.0,
            remaining_ms: u32::try_from(shown.remaining_ms).unwrap_or(u32::MAX),
            status: Some(member_status(shown.facts)),
            standbys: shown
                .standbys()
                .map(|(holder, address)| v1::Standby {
                    holder: holder.to_owned(),
                    address: address.to_owned(),
                })
                .collect(),
        });
        Ok(Response::new(v1::ListMembersResponse { members: members.collect() }))
    }
}

fn refused(refusal: &LeaseDenied) -> Status {
    match refusal {
        LeaseDenied::Held { held, remaining_ms } => {
            let metadata = [
                ("lease", held.name.clone()),
                ("holder", held.holder.clone()),
                ("address", held.address.clone()),
                ("remaining_ms", remaining_ms.to_string()),
            ];
            with_info(Code::FailedPrecondition, reason::LEASE_HELD, refusal.to_string(), metadata)
        }
        LeaseDenied::TooMany => {
            resource_exhausted(reason::OVERLOADED, refusal.to_string(), Duration::from_secs(60))
        }
    }
}

fn ask(request: v1::AcquireLeaseRequest) -> Result<LeaseRequest, Vec<BadField>> {
    let v1::AcquireLeaseRequest { lease, holder, address, ttl_ms } = request;
    let mut bad = Vec::new();
    if !leases::is_lease_name(&lease) {
        let rule = "must be dispatcher, binder, scheduler/<name> or member/<kind>/<name>";
        bad.push(BadField::new("lease", rule));
    }
    for (path, text) in [("holder", &holder), ("address", &address)] {
        if text.is_empty() || text.len() > TEXT_LEN_MAX || names::text(text, TEXT_LEN_MAX).is_err() {
            let rule = format!("must have 1 to {TEXT_LEN_MAX} bytes, none of them a control character");
            bad.push(BadField::new(path, rule));
        }
    }
    if bad.is_empty() && !is_url(&address) {
        bad.push(BadField::new("address", "must be a URL such as http://127.0.0.1:7701"));
    }
    let ttl_ms = if ttl_ms == 0 { leases::TTL_MS_DEFAULT } else { ttl_ms };
    if !(leases::TTL_MS_MIN..=leases::TTL_MS_MAX).contains(&ttl_ms) {
        let rule = format!("must be {} to {}, or 0", leases::TTL_MS_MIN, leases::TTL_MS_MAX);
        bad.push(BadField::new("ttl_ms", rule));
    }
    if bad.is_empty() { Ok(LeaseRequest { name: lease, holder, address, ttl_ms }) } else { Err(bad) }
}

/// What a holder says of itself.
///
/// # Errors
/// It says too much.
fn member_facts(status: v1::MemberStatus) -> Result<MemberFacts, BadField> {
    let v1::MemberStatus { counters, version, plain_text_addresses } = status;
    if counters.len() > leases::N_COUNTERS_MAX {
        let description = format!("at most {} counters", leases::N_COUNTERS_MAX);
        return Err(BadField::new("status.counters", description));
    }
    if names::text(&version, VERSION_LEN_MAX).is_err() {
        let rule = format!("must have at most {VERSION_LEN_MAX} bytes, none of them a control character");
        return Err(BadField::new("status.version", rule));
    }
    let is_text = |text: &String| names::text(text, TEXT_LEN_MAX).is_ok();
    let mut listeners = plain_text_addresses.iter();
    if plain_text_addresses.len() > leases::N_PLAIN_TEXT_MAX
        || !listeners.all(|(name, address)| is_text(name) && is_text(address))
    {
        let rule = format!("at most {} texts of at most {TEXT_LEN_MAX} bytes", leases::N_PLAIN_TEXT_MAX);
        return Err(BadField::new("status.plain_text_addresses", rule));
    }
    let plain_text = plain_text_addresses.into_iter().collect();
    Ok(MemberFacts { counters: counters.into_iter().collect(), version, plain_text })
}

fn member_status(facts: &MemberFacts) -> v1::MemberStatus {
    let MemberFacts { counters, version, plain_text } = facts.clone();
    v1::MemberStatus {
        counters: counters.into_iter().collect(),
        version,
        plain_text_addresses: plain_text.into_iter().collect(),
    }
}

/// Whether clients can connect to it: a scheme and a host.
fn is_url(address: &str) -> bool {
    let uri = address.parse::<tonic::transport::Uri>();
    uri.is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_holder_says_of_itself_is_bounded() {
        let addresses = |n: usize, len: usize| v1::MemberStatus {
            plain_text_addresses: (0..n).map(|idx| (idx.to_string(), "a".repeat(len))).collect(),
            ..v1::MemberStatus::default()
        };
        let version =
            |text: &str| v1::MemberStatus { version: text.to_owned(), ..v1::MemberStatus::default() };
        let counters = |n: usize| v1::MemberStatus {
            counters: (0..n).map(|idx| (idx.to_string(), 1)).collect(),
            ..v1::MemberStatus::default()
        };
        for status in [addresses(16, 253), version(&"1".repeat(64)), counters(64)] {
            let facts = member_facts(status.clone()).unwrap();
            assert_eq!(member_status(&facts), status);
        }
        for (status, path) in [
            (addresses(17, 1), "status.plain_text_addresses"),
            (addresses(1, 254), "status.plain_text_addresses"),
            (version(&"1".repeat(65)), "status.version"),
            (version("1\n"), "status.version"),
            (counters(65), "status.counters"),
        ] {
            assert_eq!(member_facts(status).unwrap_err().path, path);
        }
    }
}
