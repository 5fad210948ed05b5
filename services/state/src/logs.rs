//! Passes the output of running units from agents to readers.
//!
//! Nobody listens on a node: a reader's request goes down the node's session, and the agent answers it with a call of its own
//! (`SendLog`), on a connection of its own, so that a slow reader holds nothing else up. Of each answer a few parts wait here
//! at most; the agent reads on when the reader has.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use godel_base::ids::{NodeId, UnitId};
use godel_domain::running_units::Phase;
use godel_kit::{
    room::{Room, Share, Taken},
    security, server,
    status::{self, reason},
};
use godel_proto::v1;
use godel_store::Key;
use godel_wire::BadField;
use parking_lot::Mutex;
use prost::Message as _;
use rustc_hash::FxHashMap;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    rights,
    sessions::{NodeSessions, wake},
};

/// Logs that are read at a time.
const N_READERS_MAX: usize = 256;
/// Logs that are read of one node at a time: as many as its agent sends.
const N_READERS_OF_NODE_MAX: usize = 16;
/// A reader that takes nothing for so long loses its place to one that was refused.
const READ_PATIENCE: Duration = Duration::from_secs(10);
/// A reader that comes when there are as many is told to come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Parts of one log that wait for its reader.
const N_PARTS_MAX: usize = 4;
/// Bytes of one part.
const PART_BYTES_MAX: usize = 64 << 10;
/// An agent begins to answer in this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What arrives for a reader.
type LogAnswer = Result<v1::ReadLogResponse, Status>;

/// `LogService`.
pub(crate) struct Logs {
    hub: Arc<NodeSessions>,
    waiting: Arc<WaitingReaders>,
    places: Arc<ReaderPlaces>,
    stop: CancellationToken,
}

/// Places for readers, over all nodes and on each: shared over connections, so that one that reads many logs and takes
/// none of them leaves places for others.
#[derive(Debug)]
struct ReaderPlaces {
    all: PlacesOf,
    of_node: Mutex<FxHashMap<NodeId, Arc<PlacesOf>>>,
}

#[derive(Debug)]
struct PlacesOf {
    room: Arc<Room>,
    shares: Mutex<FxHashMap<u64, Share>>,
    /// When a reader found no place last.
    refused_at: Mutex<Option<Instant>>,
}

impl PlacesOf {
    fn new(n_max: usize) -> Self {
        Self { room: Room::new(n_max), shares: Mutex::default(), refused_at: Mutex::default() }
    }

    /// A place for a reader on the connection with this number.
    fn take(&self, connection: u64) -> Option<Taken> {
        let mut shares = self.shares.lock();
        shares.retain(|_, share| share.held() > 0);
        let taken = shares.entry(connection).or_insert_with(|| self.room.share()).try_take(1);
        if taken.is_none() {
            *self.refused_at.lock() = Some(Instant::now());
        }
        taken
    }

    /// Whether a reader was refused within the last `READ_PATIENCE`.
    fn are_wanted(&self, now: Instant) -> bool {
        self.refused_at.lock().is_some_and(|at| now.saturating_duration_since(at) < READ_PATIENCE)
    }
}

impl Default for ReaderPlaces {
    fn default() -> Self {
        Self { all: PlacesOf::new(N_READERS_MAX), of_node: Mutex::default() }
    }
}

impl ReaderPlaces {
    fn of(&self, node: NodeId) -> Arc<PlacesOf> {
        let mut of_node = self.of_node.lock();
        of_node.retain(|_, places| places.room.used() > 0 || Arc::strong_count(places) > 1);
        Arc::clone(of_node.entry(node).or_insert_with(|| Arc::new(PlacesOf::new(N_READERS_OF_NODE_MAX))))
    }

    /// Whether a reader of this node that takes nothing is in the way of others.
    fn are_wanted(&self, node: Option<NodeId>, now: Instant) -> bool {
        let of_node = node.and_then(|node| self.of_node.lock().get(&node).cloned());
        self.all.are_wanted(now) || of_node.is_some_and(|places| places.are_wanted(now))
    }
}

/// Readers that no agent has answered yet, by request id.
#[derive(Debug, Default)]
struct WaitingReaders(Mutex<FxHashMap<u64, WaitingReader>>);

#[derive(Debug)]
struct WaitingReader {
    incarnation: u32,
    /// Of which the log is read, if that is known.
    node: Option<NodeId>,
    parts: mpsc::Sender<LogAnswer>,
    /// Set when the reader loses its place.
    has_lost: Arc<AtomicBool>,
}

/// A reader's place among those that wait, which it leaves with its call.
#[derive(Debug)]
struct LogPlace {
    id: u64,
    waiting: Arc<WaitingReaders>,
}

impl Drop for LogPlace {
    fn drop(&mut self) {
        self.waiting.0.lock().remove(&self.id);
    }
}

/// Who may keep a log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keepers {
    /// The node on which the incarnation was or is.
    One(NodeId, String),
    /// Where an earlier one was is not written down.
    All,
}

impl Logs {
    pub(crate) fn new(hub: Arc<NodeSessions>, stop: CancellationToken) -> Self {
        Self { hub, waiting: Arc::default(), places: Arc::default(), stop }
    }

    /// That a person may read the logs of a unit. One that is not in sight is answered as one that is not there.
    fn permit(&self, call: &security::PersonCall, unit_id: u64) -> Result<(), Status> {
        let sight = call.sight();
        if sight.is_all() {
            return Ok(());
        }
        let record = self
            .hub
            .store
            .read(|state| state.record(v1::Kind::Unit, &Key::Id(unit_id)).map(|record| record.value.clone()));
        let record = record.and_then(|record| v1::UnitRecord::decode(record).ok());
        let is_seen = |meta: v1::ObjectMeta| sight.sees_unit_of(&meta.namespace, &meta.owner);
        let meta = record.and_then(|record| record.spec?.meta);
        if meta.is_some_and(is_seen) { Ok(()) } else { Err(no_unit(unit_id)) }
    }

    /// Which incarnation is asked for, and who may keep its log.
    fn keepers(&self, asked: &v1::ReadLogRequest) -> Result<(u32, Keepers), Status> {
        let v1::ReadLogRequest { unit_id, ordinal, incarnation, previous, .. } = *asked;
        let (record, row) = self.hub.store.read(|state| {
            let record = state.record(v1::Kind::Unit, &Key::Id(unit_id)).map(|record| record.value.clone());
            let added = state.task_groups(UnitId(unit_id)).map(|group| group.value.clone());
            let record = record.map(|record| (record, added.collect::<Vec<_>>()));
            (record, state.rows().get(UnitId(unit_id)).map(|rows| rows.row(ordinal)).unwrap_or_default())
        });
        let Some((record, added)) = record else {
            return Err(no_unit(unit_id));
        };
        if row.node == NodeId(0)
            && !may_have(&record, ordinal)
            && !added.iter().any(|group| may_have_added(group, ordinal))
        {
            return Err(Status::not_found(format!("the unit has no replica {ordinal}")));
        }
        let wanted = match (previous, incarnation) {
            (false, incarnation) => incarnation,
            (true, None) if row.incarnation > 0 => Some(row.incarnation - 1),
            (true, None) => {
                let text = format!("replica {ordinal} is in its first incarnation: there is none before");
                return Err(Status::not_found(text));
            }
            (true, Some(_)) => {
                return Err(BadField::new("previous", "cannot be combined with incarnation").into());
            }
        };
        match wanted {
            Some(earlier) if earlier < row.incarnation => return Ok((earlier, Keepers::All)),
            Some(later) if later > row.incarnation => {
                let text = format!(
                    "replica {ordinal} has no incarnation {later}: the current one is {}",
                    row.incarnation
                );
                return Err(Status::not_found(text));
            }
            Some(_) | None => {}
        }
        if row.phase == Phase::Pending || row.node == NodeId(0) {
            let hint = match row.incarnation {
                0 => String::new(),
                now => format!("; what it wrote before is in incarnation {}", now - 1),
            };
            let text = format!("replica {ordinal} waits for a node and has written nothing{hint}");
            return Err(status::failed_precondition("NOT_PLACED", "ordinal", text));
        }
        let name = self.hub.names.read().of(row.node).map(|(name, _)| name.to_owned());
        let Some(name) = name else {
            return Err(Status::not_found(
                "the node on which it ran has left the cluster, and its log with it",
            ));
        };
        if self.is_simulated(row.node) {
            let text = format!("node {name} is simulated: what runs there writes nothing");
            return Err(status::failed_precondition("SIMULATED_NODE", name, text));
        }
        Ok((row.incarnation, Keepers::One(row.node, name)))
    }

    fn is_simulated(&self, node: NodeId) -> bool {
        let report = self.hub.store.read(|state| {
            let record = state.record(v1::Kind::NodeReport, &Key::Id(u64::from(node.0)))?;
            v1::NodeReport::decode(record.value.clone()).ok()
        });
        report.is_some_and(|report| report.runtime() == v1::NodeRuntime::Simulated)
    }

    /// Sends the request to those that may keep the log.
    fn ask(&self, keepers: &Keepers, request: &v1::LogRequest) -> Result<(), Status> {
        match keepers {
            Keepers::One(node, name) => {
                let slot = self.hub.slot(*node);
                let asked = slot.map(|slot| slot.cell.lock().ask_for_log(*request));
                let (is_asked, waker) = asked.unwrap_or_default();
                wake(waker);
                if !is_asked {
                    let text =
                        format!("the agent of node {name} is away or busy: its logs cannot be read now");
                    return Err(status::agent_away(name, text));
                }
            }
            Keepers::All => {
                for slot in self.hub.slots() {
                    let (_, waker) = slot.cell.lock().ask_for_log(*request);
                    wake(waker);
                }
            }
        }
        Ok(())
    }
}

fn no_unit(unit_id: u64) -> Status {
    Status::not_found(format!("there is no unit {unit_id}"))
}

/// Whether a unit has or had such a replica. What cannot be read may have any.
fn may_have(record: &[u8], ordinal: u32) -> bool {
    let Ok(v1::UnitRecord { spec, status, .. }) = v1::UnitRecord::decode(record) else { return true };
    let groups = spec.unwrap_or_default().task_groups;
    let n_first = groups.iter().map(|group| group.replicas).fold(0, u32::saturating_add);
    let ranges = status.unwrap_or_default().ordinals.into_iter().flat_map(|group| group.ranges);
    ranges.map(|range| range.end).chain([n_first]).any(|end| ordinal < end)
}

/// Whether a task group that was added to a unit has or had an ordinal.
fn may_have_added(group: &[u8], ordinal: u32) -> bool {
    let Ok(v1::TaskGroupRecord { ordinals, .. }) = v1::TaskGroupRecord::decode(group) else { return true };
    ordinals.unwrap_or_default().ranges.iter().any(|range| ordinal < range.end)
}

/// Why no answer has come.
fn unanswered(keepers: &Keepers, incarnation: u32) -> Status {
    match keepers {
        Keepers::One(_, name) => {
            let seconds = ANSWER_TIMEOUT.as_secs();
            let text = format!("the agent of node {name} has not answered within {seconds} s");
            status::agent_away(name, text)
        }
        Keepers::All => Status::not_found(format!(
            "no connected node keeps the log of incarnation {incarnation}: its node is away, or the log was removed"
        )),
    }
}

#[tonic::async_trait]
impl v1::log_service_server::LogService for Logs {
    type ReadLogStream = LogStream;

    async fn read_log(&self, request: Request<v1::ReadLogRequest>) -> Result<Response<LogStream>, Status> {
        let connection = server::connection_number(&request);
        let call = security::person_call(&request);
        let asked = request.into_inner();
        self.permit(&call, asked.unit_id)?;
        let place = self.places.all.take(connection).ok_or_else(|| no_place(N_READERS_MAX, "all nodes"))?;
        let (incarnation, keepers) = self.keepers(&asked)?;
        let node = match &keepers {
            Keepers::One(node, name) => {
                let of_node = self.places.of(*node).take(connection);
                Some((
                    *node,
                    of_node.ok_or_else(|| no_place(N_READERS_OF_NODE_MAX, &format!("node {name}")))?,
                ))
            }
            Keepers::All => None,
        };
        let (node, of_node) = node.unzip();
        let (id, _) = uuid::Uuid::new_v4().as_u64_pair();
        let (parts, mut said) = mpsc::channel(N_PARTS_MAX);
        let has_lost = Arc::new(AtomicBool::new(false));
        let reader = WaitingReader { incarnation, node, parts, has_lost: Arc::clone(&has_lost) };
        self.waiting.0.lock().insert(id, reader);
        let waiting = LogPlace { id, waiting: Arc::clone(&self.waiting) };
        let request = v1::LogRequest {
            request_id: id,
            unit_id: asked.unit_id,
            ordinal: asked.ordinal,
            incarnation,
            tail_lines: asked.tail_lines,
            follow: asked.follow,
            from_offset: asked.from_offset,
            if_kept: keepers == Keepers::All,
        };
        self.ask(&keepers, &request)?;
        let first = tokio::select! {
            first = tokio::time::timeout(ANSWER_TIMEOUT, said.recv()) => first,
            () = self.stop.cancelled() => return Err(status::stopping()),
        };
        match first {
            Ok(Some(Ok(first))) => {
                let places = (place, of_node);
                let stream =
                    LogStream { first: Some(first), said, has_lost, _waiting: waiting, _places: places };
                Ok(Response::new(stream))
            }
            Ok(Some(Err(status))) => Err(status),
            Ok(None) | Err(_) => Err(unanswered(&keepers, incarnation)),
        }
    }

    async fn send_log(
        &self,
        request: Request<Streaming<v1::SendLogRequest>>,
    ) -> Result<Response<v1::SendLogResponse>, Status> {
        let caller = security::caller(&request).clone();
        let mut stream = request.into_inner();
        let Some(first) = stream.message().await? else {
            return Err(BadField::new("request_id", "is required").into());
        };
        let (id, node) = (first.request_id, first.node.clone());
        rights::check_node(&caller, &node)?;
        let reader = self.waiting.0.lock().remove(&id);
        let Some(WaitingReader { incarnation, node: of_node, parts, has_lost }) = reader else {
            return Err(Status::not_found("nobody reads this log any more, or somebody has answered"));
        };
        // Whatever node it says: the reader asked for the log of this one.
        if let Some(asked) = of_node {
            let names = self.hub.names.read();
            rights::check_node(&caller, names.of(asked).map_or("", |(name, _)| name))?;
        }
        let mut next = Ok(Some(first));
        loop {
            let (said, is_last) = match next {
                Ok(Some(part)) => part_of(part, &node, incarnation),
                Ok(None) => return Ok(Response::new(v1::SendLogResponse {})),
                Err(_) => {
                    let text = format!("the agent of node {node} went away");
                    (Err(status::agent_away(&node, text)), true)
                }
            };
            let are_wanted = || self.places.are_wanted(of_node, Instant::now());
            let passed = pass_on(&parts, said, READ_PATIENCE, are_wanted).await;
            has_lost.store(passed == Passed::LostPlace, Ordering::Release);
            if passed != Passed::On || is_last {
                return Ok(Response::new(v1::SendLogResponse {}));
            }
            next = tokio::select! {
                next = stream.message() => next,
                () = parts.closed() => return Ok(Response::new(v1::SendLogResponse {})),
                () = self.stop.cancelled() => {
                    // A reader that is behind finds out by the end of its connection.
                    let _is_behind = parts.try_send(Err(status::stopping()));
                    return Err(status::stopping());
                }
            };
        }
    }
}

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    /// More may follow.
    On,
    /// Its reader has left.
    Left,
    /// Its reader takes nothing while others are refused.
    LostPlace,
}

/// Passes a part on to its reader.
async fn pass_on(
    parts: &mpsc::Sender<LogAnswer>,
    said: LogAnswer,
    patience: Duration,
    are_wanted: impl Fn() -> bool,
) -> Passed {
    loop {
        match tokio::time::timeout(patience, parts.reserve()).await {
            Ok(Ok(permit)) => {
                permit.send(said);
                return Passed::On;
            }
            Ok(Err(_left)) => return Passed::Left,
            Err(_elapsed) if are_wanted() => return Passed::LostPlace,
            Err(_elapsed) => {}
        }
    }
}

fn lost_place() -> Status {
    let text = "this log was not read on while others were refused: its place was given up";
    status::resource_exhausted(reason::OVERLOADED, text, RETRY_AFTER)
}

fn no_place(n_max: usize, of: &str) -> Status {
    let text =
        format!("as many logs of {of} are being read as may be, {n_max} at most: close some, or try again");
    status::resource_exhausted(reason::OVERLOADED, text, RETRY_AFTER)
}

/// What a part says to its reader, and whether it is the last one.
fn part_of(part: v1::SendLogRequest, node: &str, incarnation: u32) -> (LogAnswer, bool) {
    let v1::SendLogRequest { offset, data, failure, .. } = part;
    if let Some(v1::LogFailure { not_kept, message, busy }) = failure {
        let text = format!("node {node}: {message}");
        let status = match (not_kept, busy) {
            (true, _) => Status::not_found(text),
            (false, true) => status::resource_exhausted(reason::OVERLOADED, text, RETRY_AFTER),
            (false, false) => Status::internal(text),
        };
        return (Err(status), true);
    }
    if data.len() > PART_BYTES_MAX {
        let text = format!("node {node} sends more than {PART_BYTES_MAX} bytes at a time");
        return (Err(Status::internal(text)), true);
    }
    (Ok(v1::ReadLogResponse { node: node.to_owned(), incarnation, offset, data }), false)
}

/// A log as its reader gets it.
#[derive(Debug)]
pub(crate) struct LogStream {
    first: Option<v1::ReadLogResponse>,
    said: mpsc::Receiver<LogAnswer>,
    has_lost: Arc<AtomicBool>,
    _waiting: LogPlace,
    /// Over all nodes, and of its node.
    _places: (Taken, Option<Taken>),
}

impl Stream for LogStream {
    type Item = LogAnswer;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LogAnswer>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.said.poll_recv(cx).map(|said| {
                let is_told = || self.has_lost.swap(false, Ordering::AcqRel);
                said.or_else(|| is_told().then(|| Err(lost_place())))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_sends_is_checked() {
        let part = |data: Vec<u8>, failure| v1::SendLogRequest {
            offset: 7,
            data,
            failure,
            ..v1::SendLogRequest::default()
        };
        let (said, is_last) = part_of(part(b"text".to_vec(), None), "n", 3);
        let expected =
            v1::ReadLogResponse { node: "n".to_owned(), incarnation: 3, offset: 7, data: b"text".to_vec() };
        assert_eq!((said.unwrap(), is_last), (expected, false));
        for (not_kept, busy, code) in [
            (true, false, tonic::Code::NotFound),
            (false, false, tonic::Code::Internal),
            (false, true, tonic::Code::ResourceExhausted),
        ] {
            let failure = v1::LogFailure { not_kept, message: "no".to_owned(), busy };
            let (said, is_last) = part_of(part(Vec::new(), Some(failure)), "n", 0);
            let status = said.unwrap_err();
            assert_eq!((status.code(), status.message(), is_last), (code, "node n: no", true));
        }
        let (said, is_last) = part_of(part(vec![0; PART_BYTES_MAX + 1], None), "n", 0);
        assert!(said.is_err() && is_last);
    }

    #[test]
    fn one_connection_takes_half_of_the_places_of_a_node() {
        let places = ReaderPlaces::default();
        let of_node = places.of(NodeId(7));
        let greedy: Vec<Taken> = std::iter::from_fn(|| of_node.take(1)).collect();
        assert_eq!(greedy.len(), N_READERS_OF_NODE_MAX / 2);
        let other = of_node.take(2);
        assert!(other.is_some() && places.of(NodeId(8)).take(1).is_some());
        assert!(places.are_wanted(Some(NodeId(7)), Instant::now()), "one was refused");
        assert!(!places.are_wanted(Some(NodeId(8)), Instant::now()));
        drop((greedy, other));
        assert_eq!(of_node.room.used(), 0);
        assert_eq!(no_place(16, "node n").code(), tonic::Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn a_reader_that_takes_nothing_loses_its_place_when_others_want_it() {
        let (parts, mut said) = mpsc::channel(1);
        let part = || Ok(v1::ReadLogResponse::default());
        assert_eq!(pass_on(&parts, part(), READ_PATIENCE, || true).await, Passed::On);
        // Its queue is full: nobody wants the place at first, then somebody does.
        let n_looks = std::cell::Cell::new(0);
        let are_wanted = || n_looks.replace(n_looks.get() + 1) == 2;
        assert_eq!(pass_on(&parts, part(), Duration::ZERO, are_wanted).await, Passed::LostPlace);
        assert_eq!(n_looks.get(), 3);
        said.recv().await.unwrap().unwrap();
        assert_eq!(pass_on(&parts, part(), READ_PATIENCE, || true).await, Passed::On);
        drop(said);
        assert_eq!(pass_on(&parts, part(), READ_PATIENCE, || false).await, Passed::Left);
    }
}
