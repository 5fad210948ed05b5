//! DispatchService.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use godel_base::ids::{Epoch, NodeId, Revision, StoreId, UnitId};
use godel_core_dispatcher::{
    Attach, Dispatcher, ModeChoice, SchedulerCounts, SessionId, read::SchedulerView,
};
use godel_domain::{change::PartitionMode, names};
use godel_kit::{
    CancellationToken,
    client::Directory,
    message::RECEIVED_BYTES_MAX,
    security::{Caller, Role, caller, person_call},
    status,
};
use godel_proto::v1::{
    self, attach_request::Message as Up, dispatch_service_server::DispatchService,
    member_service_client::MemberServiceClient,
};
use godel_wire::{BadField, from_proto, hidden::HideNames as _, to_proto};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    config::Config,
    convert,
    leader_client::{Front, LeaderHandle, term_over},
    requests::{AttachCall, ChangeCaller, LeaderRequest, SchedulerMessage},
};

/// Bytes of the reason of a pause.
const REASON_LEN_MAX: usize = 253;
/// Prefix of schedulers' leases.
const LEASE_PREFIX: &str = "scheduler/";
/// A stream must open within this, and bring the rest of its inventory within this again.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Units of an inventory, 16 bytes each: more than any dispatcher could have handed out.
const N_INVENTORY_MAX: usize = 4 << 20;
/// Rates are over this.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Between two looks at the counters.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// And at least, however short the windows are in which load is counted.
const SAMPLE_EVERY_MIN: Duration = Duration::from_millis(20);
/// An answer of state must come within this to be shown.
const MEMBERS_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Dispatch {
    front: Front,
    rates: Arc<Rates>,
    queue: usize,
}

impl Dispatch {
    pub(crate) fn new(front: Front, directory: Directory, config: &Config, stop: CancellationToken) -> Self {
        let rates = Arc::new(Rates { directory, samples: Mutex::new(VecDeque::new()) });
        // Some times in each window that decides on the mode.
        let every = SAMPLE_EVERY.min(*config.shuffle.window / 4).max(SAMPLE_EVERY_MIN);
        let (sampled, led) = (Arc::clone(&rates), front.clone());
        godel_kit::task::spawn("rates", async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(every) => {}
                }
                if let Ok(term) = led.term() {
                    let members = sampled.members().await;
                    // The next ones say it all again.
                    let _ = term.calls.try_send(LeaderRequest::Counted(counted(&members)));
                }
            }
        });
        Self { front, rates, queue: config.scheduler_queue.max(16) }
    }
}

#[tonic::async_trait]
impl DispatchService for Dispatch {
    type AttachStream = ReceiverStream<Result<v1::AttachResponse, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let term = self.front.term()?;
        let (messages, stream) = mpsc::channel(self.queue);
        let directory = self.rates.directory.clone();
        let caller = caller(&request).clone();
        godel_kit::task::spawn("scheduler-stream", async move {
            let served = serve_scheduler(term, &directory, &caller, request.into_inner(), messages.clone());
            if let Err(status) = served.await {
                let _ = messages.try_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn list_schedulers(
        &self,
        _request: Request<v1::ListSchedulersRequest>,
    ) -> Result<Response<v1::ListSchedulersResponse>, Status> {
        let look = |core: &Dispatcher| {
            let (partition, nodes) = (core.partition(), core.nodes());
            (core.schedulers().views(partition, nodes), partition.mode())
        };
        let (views, mode) = self.front.read(look).await?;
        let members = self.rates.members().await;
        let rates = self.rates.per_s().await;
        let show = |view: &SchedulerView| {
            let rate = rates.get(&view.name).copied().unwrap_or(0.0);
            scheduler(view, members.get(&view.name), rate)
        };
        Ok(Response::new(v1::ListSchedulersResponse {
            schedulers: views.iter().map(show).collect(),
            partition_mode: to_proto::partition_mode(mode).into(),
        }))
    }

    async fn set_partition_mode(
        &self,
        request: Request<v1::SetPartitionModeRequest>,
    ) -> Result<Response<v1::SetPartitionModeResponse>, Status> {
        let cause = person_call(&request).cause("", ["partition".to_owned()]);
        let v1::SetPartitionModeRequest { mode: number, automatic } = request.into_inner();
        let wrong = |description: String| status::invalid_argument([BadField::new("mode", description)]);
        let choice = match v1::PartitionMode::try_from(number) {
            Ok(v1::PartitionMode::Unspecified) if automatic => ModeChoice::Automatic,
            Ok(_) if automatic => return Err(wrong("omit it with `automatic`".to_owned())),
            Ok(v1::PartitionMode::Global) => ModeChoice::Fixed(PartitionMode::Global),
            Ok(v1::PartitionMode::Preferred) => ModeChoice::Fixed(PartitionMode::Preferred),
            Ok(v1::PartitionMode::Strict) => ModeChoice::Fixed(PartitionMode::Strict),
            Ok(v1::PartitionMode::Unspecified) => return Err(wrong("missing".to_owned())),
            Err(_) => return Err(wrong(format!("{number} is not a value of this enum"))),
        };
        let set = |reply| LeaderRequest::SetMode { choice, caller: ChangeCaller { cause, reply } };
        let revision = self.front.ask(set).await??;
        Ok(Response::new(v1::SetPartitionModeResponse { revision: revision.unwrap_or_default().0 }))
    }

    async fn get_drain(
        &self,
        request: Request<v1::GetDrainRequest>,
    ) -> Result<Response<v1::GetDrainResponse>, Status> {
        let sight = person_call(&request).sight();
        let node = request.into_inner().node_id;
        if node == 0 {
            return Err(status::invalid_argument([BadField::new("node_id", "missing")]));
        }
        let drain = self.front.read(move |core| convert::drain(core, NodeId(node))).await?;
        Ok(Response::new(drain.within_sight(&sight)))
    }

    async fn resume_evictions(
        &self,
        request: Request<v1::ResumeEvictionsRequest>,
    ) -> Result<Response<v1::ResumeEvictionsResponse>, Status> {
        let (resumed, summary) = self.front.ask(LeaderRequest::ResumeEvictions).await?;
        if resumed {
            // Nothing of it is in the store.
            person_call(&request).note_done(["evictions".to_owned()]);
        }
        let nodes_not_ready = u32::try_from(summary.nodes_not_ready).unwrap_or(u32::MAX);
        Ok(Response::new(v1::ResumeEvictionsResponse { resumed, nodes_not_ready }))
    }

    async fn set_pause(
        &self,
        request: Request<v1::SetPauseRequest>,
    ) -> Result<Response<v1::SetPauseResponse>, Status> {
        let call = person_call(&request);
        let v1::SetPauseRequest { scope, paused, reason } = request.into_inner();
        let scope = from_proto::pause_scope(&scope).map_err(|bad| status::invalid_argument([bad]))?;
        if let Err(wrong) = names::text(&reason, REASON_LEN_MAX) {
            return Err(status::invalid_argument([BadField::new("reason", wrong.to_string())]));
        }
        let reason = if paused { reason } else { String::new() };
        let cause = call.cause("", [format!("pause/{scope}")]);
        let set =
            |reply| LeaderRequest::SetPause { scope, paused, reason, caller: ChangeCaller { cause, reply } };
        let revision = self.front.ask(set).await??;
        let changed = revision.is_some();
        let revision = revision.map_or(0, |revision| revision.0);
        Ok(Response::new(v1::SetPauseResponse { revision, changed }))
    }

    async fn get_dispatcher_status(
        &self,
        _request: Request<v1::GetDispatcherStatusRequest>,
    ) -> Result<Response<v1::GetDispatcherStatusResponse>, Status> {
        let term = self.front.term()?;
        let epoch = term.epoch;
        term.read(move |core| convert::status(core, epoch)).await.map(Response::new)
    }
}

/// Reads a scheduler's stream to its end.
async fn serve_scheduler(
    term: LeaderHandle,
    directory: &Directory,
    caller: &Caller,
    mut stream: Streaming<v1::AttachRequest>,
    messages: mpsc::Sender<Result<v1::AttachResponse, Status>>,
) -> Result<(), Status> {
    let first = timeout(OPEN_WITHIN, stream.message()).await;
    let first =
        first.map_err(|_| Status::deadline_exceeded("the stream did not open with an inventory"))??;
    let Some(Up::Open(open)) = first.and_then(|first| first.message) else {
        return Err(status::invalid_argument([BadField::new("open", "must be the first message")]));
    };
    if open.name.is_empty() || open.epoch == 0 {
        let field = if open.name.is_empty() { "open.name" } else { "open.epoch" };
        return Err(status::invalid_argument([BadField::new(field, "missing")]));
    }
    check_scheduler(caller, &open.name)?;
    let lease = format!("{LEASE_PREFIX}{}", open.name);
    if !term.store.may_be(StoreId(open.store_id)) {
        return Err(status::lease_of_other_store(&lease, StoreId(open.store_id), term.store));
    }
    // The loop believes an epoch that its watch has yet to show: it must be a real one.
    directory.check_lease(&lease, Epoch(open.epoch)).await?;
    let late = |_| Status::deadline_exceeded("the inventory did not end");
    let inventory =
        timeout(OPEN_WITHIN, inventory(open.inventory, open.more, &mut stream)).await.map_err(late)??;
    let attach = Attach {
        name: open.name,
        epoch: Epoch(open.epoch),
        session: SessionId(0),
        inventory,
        credits: open.credits,
    };
    let (reply, answer) = oneshot::channel();
    let over = CancellationToken::new();
    let call = AttachCall { attach, messages: messages.clone(), over: over.clone(), reply };
    term.calls.send(LeaderRequest::Attach(call)).await.map_err(|_| term_over())?;
    let session = answer.await.map_err(|_| term_over())??;
    let ended = tokio::select! {
        // The loop has said why, if it could.
        () = over.cancelled() => Ok(()),
        ended = read(&term, session, &mut stream, &messages) => ended,
    };
    // The loop may be over, and with it everything that it knew of the stream.
    let _ = term.calls.send(LeaderRequest::Detach(session)).await;
    ended
}

/// Whether a caller may speak as the scheduler of that name: a certificate is good for its own.
fn check_scheduler(caller: &Caller, scheduler: &str) -> Result<(), Status> {
    caller.check_speaks_as(Role::Scheduler, scheduler).map_err(|refusal| {
        let (code, reason) = (Code::PermissionDenied, status::reason::FORBIDDEN);
        status::with_info(code, reason, refusal.to_string(), [("scheduler", scheduler)])
    })
}

/// What a scheduler holds: the units named by its opening message and by those that continue it.
async fn inventory<S>(
    opening: Vec<v1::HeldUnit>,
    mut more: bool,
    stream: &mut S,
) -> Result<Vec<(UnitId, Revision)>, Status>
where
    S: Stream<Item = Result<v1::AttachRequest, Status>> + Unpin,
{
    let held = |held: v1::HeldUnit| (UnitId(held.unit_id), Revision(held.spec_revision));
    let wrong = |description: String| status::invalid_argument([BadField::new("inventory", description)]);
    let mut inventory: Vec<_> = opening.into_iter().map(held).collect();
    while more {
        let message = stream.next().await.transpose()?.and_then(|message| message.message);
        let Some(Up::Inventory(part)) = message else {
            return Err(wrong("must continue in the next message if `more` is set".to_owned()));
        };
        if inventory.len() + part.units.len() > N_INVENTORY_MAX {
            return Err(wrong(format!("has more than {N_INVENTORY_MAX} units")));
        }
        inventory.extend(part.units.into_iter().map(held));
        more = part.more;
    }
    Ok(inventory)
}

async fn read(
    term: &LeaderHandle,
    session: SessionId,
    stream: &mut Streaming<v1::AttachRequest>,
    messages: &mpsc::Sender<Result<v1::AttachResponse, Status>>,
) -> Result<(), Status> {
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = messages.closed() => return Ok(()),
            () = term.calls.closed() => return Err(term_over()),
        };
        // A transport error is the other side's end.
        let Ok(Some(message)) = message else { return Ok(()) };
        let message = match message.message {
            Some(Up::Credits(credits)) => SchedulerMessage::Credits(credits),
            Some(Up::Reports(reports)) => {
                SchedulerMessage::Reports(reports.reports.into_iter().filter_map(convert::report).collect())
            }
            Some(Up::Rooms(rooms)) => {
                SchedulerMessage::Rooms(rooms.rooms.iter().map(convert::room).collect())
            }
            Some(Up::Open(_)) => {
                return Err(status::invalid_argument([BadField::new(
                    "open",
                    "must be the first message only",
                )]));
            }
            Some(Up::Inventory(_)) => {
                return Err(status::invalid_argument([BadField::new("inventory", "must follow open")]));
            }
            None => return Err(status::invalid_argument([BadField::new("message", "missing")])),
        };
        term.calls.send(LeaderRequest::FromScheduler(session, message)).await.map_err(|_| term_over())?;
    }
}

/// What a scheduler counted, by name; 0 if it does not say.
fn counter(member: Option<&v1::Member>, name: &str) -> u64 {
    let counters = member.and_then(|member| member.status.as_ref()).map(|status| &status.counters);
    counters.and_then(|counters| counters.get(name)).copied().unwrap_or(0)
}

fn counted(members: &BTreeMap<String, v1::Member>) -> Vec<SchedulerCounts> {
    let of = |(name, member): (&String, &v1::Member)| SchedulerCounts {
        scheduler: name.clone(),
        epoch: Epoch(member.epoch),
        placed: counter(Some(member), "placed"),
        conflicts: counter(Some(member), "conflicts"),
    };
    members.iter().map(of).collect()
}

fn scheduler(view: &SchedulerView, member: Option<&v1::Member>, placed_per_s: f64) -> v1::SchedulerStatus {
    let counter = |name: &str| counter(member, name);
    v1::SchedulerStatus {
        name: view.name.clone(),
        address: view.address.clone(),
        epoch: view.epoch.0,
        attached: view.attached,
        lease_remaining_ms: member.map_or(0, |member| member.remaining_ms),
        nodes: view.nodes,
        units: view.units,
        running_units: u32::try_from(view.running_units).unwrap_or(u32::MAX),
        parked_units: view.parked_units,
        placed: counter("placed"),
        conflicts: counter("conflicts"),
        cache_hits: counter("cache_hits"),
        cache_misses: counter("cache_misses"),
        placed_per_s,
    }
}

/// What schedulers say of themselves with their leases, and how it grew lately.
struct Rates {
    directory: Directory,
    samples: Mutex<VecDeque<RateSample>>,
}

struct RateSample {
    at: Instant,
    /// Epoch and placements by scheduler.
    placed: BTreeMap<String, (u64, u64)>,
}

impl Rates {
    /// Members by scheduler name; none when state does not answer in time.
    async fn members(&self) -> BTreeMap<String, v1::Member> {
        let request = v1::ListMembersRequest { prefix: LEASE_PREFIX.to_owned() };
        let mut client =
            MemberServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX);
        let answer = timeout(MEMBERS_WITHIN, client.list_members(request)).await;
        let Ok(Ok(answer)) = answer else { return BTreeMap::new() };
        let members = answer.into_inner().members.into_iter().filter_map(|member| {
            let name = member.lease.strip_prefix(LEASE_PREFIX)?.to_owned();
            Some((name, member))
        });
        let members: BTreeMap<String, v1::Member> = members.collect();
        self.sample(&members).await;
        members
    }

    async fn sample(&self, members: &BTreeMap<String, v1::Member>) {
        let placed = members.iter().filter_map(|(name, member)| {
            let placed = *member.status.as_ref()?.counters.get("placed")?;
            Some((name.clone(), (member.epoch, placed)))
        });
        let mut samples = self.samples.lock().await;
        let now = Instant::now();
        // Calls may come more often than is worth remembering.
        if samples.len() >= 2 && samples.back().is_some_and(|last| now - last.at < SAMPLE_EVERY / 4) {
            samples.pop_back();
        }
        samples.push_back(RateSample { at: now, placed: placed.collect() });
        while samples.len() > 2 && samples.get(1).is_some_and(|second| now - second.at >= RATE_WINDOW) {
            samples.pop_front();
        }
    }

    async fn per_s(&self) -> BTreeMap<String, f64> {
        let samples = self.samples.lock().await;
        let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return BTreeMap::new() };
        let seconds = (last.at - first.at).as_secs_f64();
        if seconds <= 0.0 {
            return BTreeMap::new();
        }
        let rate = |(name, (epoch, placed)): (&String, &(u64, u64))| {
            let before =
                first.placed.get(name).filter(|before| before.0 == *epoch).map_or(0, |before| before.1);
            let grown = u32::try_from(placed.saturating_sub(before)).unwrap_or(u32::MAX);
            (name.clone(), f64::from(grown) / seconds)
        };
        last.placed.iter().map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::iter;

    use super::*;

    #[test]
    fn a_scheduler_speaks_as_itself() {
        let scheduler = Caller::Member { role: Role::Scheduler, name: "s1".to_owned() };
        assert!(
            check_scheduler(&scheduler, "s1").is_ok() && check_scheduler(&Caller::Unjudged, "s1").is_ok()
        );
        for (caller, name) in [(&scheduler, "s2"), (&Caller::admin(), "s1")] {
            assert_eq!(check_scheduler(caller, name).unwrap_err().code(), Code::PermissionDenied);
        }
    }

    fn units(ids: std::ops::Range<u64>) -> Vec<v1::HeldUnit> {
        ids.map(|unit_id| v1::HeldUnit { unit_id, spec_revision: unit_id + 1 }).collect()
    }

    fn part(ids: std::ops::Range<u64>, more: bool) -> Up {
        Up::Inventory(v1::Inventory { units: units(ids), more })
    }

    async fn read_all(more: bool, messages: Vec<Up>) -> Result<usize, Status> {
        let mut stream = iter(messages).map(|message| Ok(v1::AttachRequest { message: Some(message) }));
        let held = inventory(units(0..2), more, &mut stream).await?;
        assert!((0..).zip(&held).all(|(id, held)| *held == (UnitId(id), Revision(id + 1))));
        Ok(held.len())
    }

    #[tokio::test]
    async fn an_inventory_ends_where_it_says_so() {
        assert_eq!(read_all(false, vec![Up::Credits(1)]).await.unwrap(), 2);
        assert_eq!(read_all(true, vec![part(2..5, false), Up::Credits(1)]).await.unwrap(), 5);
        let three = vec![part(2..3, true), part(3..3, true), part(3..1_000, false)];
        assert_eq!(read_all(true, three).await.unwrap(), 1_000);
        for cut in
            [vec![], vec![part(2..3, true)], vec![Up::Credits(1)], vec![part(2..3, true), Up::Credits(1)]]
        {
            let refused = read_all(true, cut).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        }
    }
}
