//! Passes the output of running units from agents to readers.
//!
//! Nobody listens on a node: a reader's request goes down the node's session, and the agent answers it with a call of its own
//! (`SendLog`), on a connection of its own, so that a slow reader holds nothing else up. Of each answer a few parts wait here
//! at most; the agent reads on when the reader has.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use godel_domain::{
    ids::{NodeId, UnitId},
    running_units::Phase,
};
use godel_kit::status::{self, reason};
use godel_proto::v1;
use godel_store::Key;
use godel_wire::BadField;
use parking_lot::Mutex;
use prost::Message as _;
use rustc_hash::FxHashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::sessions::{NodeSessions, wake};

/// Logs that are read at a time.
const N_READERS_MAX: usize = 256;
/// A reader that comes when there are as many is told to come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Parts of one log that wait for its reader.
const N_PARTS_MAX: usize = 4;
/// Bytes of one part.
const PART_BYTES_MAX: usize = 64 << 10;
/// An agent begins to answer in this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What arrives for a reader.
type Said = Result<v1::ReadLogResponse, Status>;

/// `LogService`.
pub(crate) struct Logs {
    hub: Arc<NodeSessions>,
    waiting: Arc<WaitingReaders>,
    readers: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Readers that no agent has answered yet, by request id.
#[derive(Debug, Default)]
struct WaitingReaders(Mutex<FxHashMap<u64, Reader>>);

#[derive(Debug)]
struct Reader {
    incarnation: u32,
    parts: mpsc::Sender<Said>,
}

/// A reader's place among those that wait, which it leaves with its call.
#[derive(Debug)]
struct Place {
    id: u64,
    waiting: Arc<WaitingReaders>,
}

impl Drop for Place {
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
        let readers = Arc::new(Semaphore::new(N_READERS_MAX));
        Self { hub, waiting: Arc::default(), readers, stop }
    }

    /// Which incarnation is asked for, and who may keep its log.
    fn keepers(&self, asked: &v1::ReadLogRequest) -> Result<(u32, Keepers), Status> {
        let v1::ReadLogRequest { unit_id, ordinal, incarnation, previous, .. } = *asked;
        let (record, row) = self.hub.store.read(|state| {
            let record = state.record(v1::Kind::Unit, &Key::Id(unit_id)).map(|record| record.value.clone());
            let added = state.task_groups(UnitId(unit_id)).map(|group| group.value.clone());
            let record = record.map(|record| (record, added.collect::<Vec<_>>()));
            (record, state.rows(UnitId(unit_id)).map(|rows| rows.row(ordinal)).unwrap_or_default())
        });
        let Some((record, added)) = record else {
            return Err(Status::not_found(format!("there is no unit {unit_id}")));
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
                    return Err(Status::unavailable(format!(
                        "the agent of node {name} is away or busy: its logs cannot be read now"
                    )));
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
        Keepers::One(_, name) => Status::unavailable(format!(
            "the agent of node {name} has not answered within {} s",
            ANSWER_TIMEOUT.as_secs()
        )),
        Keepers::All => Status::not_found(format!(
            "no connected node keeps the log of incarnation {incarnation}: its node is away, or the log was removed"
        )),
    }
}

#[tonic::async_trait]
impl v1::log_service_server::LogService for Logs {
    type ReadLogStream = LogStream;

    async fn read_log(&self, request: Request<v1::ReadLogRequest>) -> Result<Response<LogStream>, Status> {
        let asked = request.into_inner();
        let permit = Arc::clone(&self.readers).try_acquire_owned().map_err(|_| {
            let text = format!("{N_READERS_MAX} logs are being read: try again when some are done");
            status::resource_exhausted(reason::OVERLOADED, text, RETRY_AFTER)
        })?;
        let (incarnation, keepers) = self.keepers(&asked)?;
        let (id, _) = uuid::Uuid::new_v4().as_u64_pair();
        let (parts, mut said) = mpsc::channel(N_PARTS_MAX);
        self.waiting.0.lock().insert(id, Reader { incarnation, parts });
        let place = Place { id, waiting: Arc::clone(&self.waiting) };
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
                let stream = LogStream { first: Some(first), said, _place: place, _permit: permit };
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
        let mut stream = request.into_inner();
        let Some(first) = stream.message().await? else {
            return Err(BadField::new("request_id", "is required").into());
        };
        let (id, node) = (first.request_id, first.node.clone());
        let reader = self.waiting.0.lock().remove(&id);
        let Some(Reader { incarnation, parts }) = reader else {
            return Err(Status::not_found("nobody reads this log any more, or somebody has answered"));
        };
        let mut next = Ok(Some(first));
        loop {
            let (said, is_last) = match next {
                Ok(Some(part)) => part_of(part, &node, incarnation),
                Ok(None) => return Ok(Response::new(v1::SendLogResponse {})),
                Err(_) => (Err(Status::unavailable(format!("the agent of node {node} went away"))), true),
            };
            // Fails when nobody reads any more.
            if parts.send(said).await.is_err() || is_last {
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

/// What a part says to its reader, and whether it is the last one.
fn part_of(part: v1::SendLogRequest, node: &str, incarnation: u32) -> (Said, bool) {
    let v1::SendLogRequest { offset, data, failure, .. } = part;
    if let Some(v1::LogFailure { not_kept, message }) = failure {
        let text = format!("node {node}: {message}");
        let status = if not_kept { Status::not_found(text) } else { Status::internal(text) };
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
    said: mpsc::Receiver<Said>,
    _place: Place,
    _permit: OwnedSemaphorePermit,
}

impl Stream for LogStream {
    type Item = Said;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Said>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.said.poll_recv(cx),
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
        for (not_kept, code) in [(true, tonic::Code::NotFound), (false, tonic::Code::Internal)] {
            let failure = v1::LogFailure { not_kept, message: "no".to_owned() };
            let (said, is_last) = part_of(part(Vec::new(), Some(failure)), "n", 0);
            let status = said.unwrap_err();
            assert_eq!((status.code(), status.message(), is_last), (code, "node n: no", true));
        }
        let (said, is_last) = part_of(part(vec![0; PART_BYTES_MAX + 1], None), "n", 0);
        assert!(said.is_err() && is_last);
    }
}
