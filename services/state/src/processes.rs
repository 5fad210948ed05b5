//! Asks agents which processes really run on their machines.
//!
//! What an agent reports is what it remembers. Somebody who does not trust that asks at a moment: the question goes down the
//! sessions of all nodes that run processes, and each agent looks and answers up its session. An answer is small and is kept for
//! nobody else. Simulated nodes are not asked.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use godel_base::ids::NodeId;
use godel_kit::{
    status::{self, reason},
    task,
};
use godel_proto::v1;
use godel_wire::BadField;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::sessions::{NodeSessions, wake};

/// Readers at a time.
const N_READERS_MAX: usize = 8;
/// A reader that comes when there are as many is told to come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Messages that wait for a reader.
const N_WAITING_MAX: usize = 16;
/// All agents answer in this time, or did not.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A reader that takes no message for so long is cut off.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Running units in one answer.
const N_RUNNING_MAX: usize = 4_096;
/// Orphans in one answer.
const N_ORPHANS_MAX: usize = 256;
/// Bytes of each text of an answer.
const N_BYTES_MAX: usize = 1_024;

/// What a reader gets.
pub(crate) type ProcessesStream = ReceiverStream<Result<v1::ListRunProcessesResponse, Status>>;
type ProcessMessages = mpsc::Sender<Result<v1::ListRunProcessesResponse, Status>>;
type ProcessesAnswer = (NodeId, v1::ProcessesReport);

/// Questions that are being answered, by request id.
#[derive(Debug)]
pub(crate) struct Questions {
    waiting: Mutex<FxHashMap<u64, mpsc::Sender<ProcessesAnswer>>>,
    readers: Arc<Semaphore>,
}

impl Default for Questions {
    fn default() -> Self {
        Self { waiting: Mutex::default(), readers: Arc::new(Semaphore::new(N_READERS_MAX)) }
    }
}

impl Questions {
    /// An agent answers. What nobody waits for any more is dropped.
    pub(crate) fn answer(&self, node: NodeId, report: v1::ProcessesReport) {
        let asked = self.waiting.lock().get(&report.request_id).cloned();
        if let Some(asked) = asked {
            // There is room for one answer of each; a second one means nothing.
            let _second = asked.try_send((node, report));
        }
    }
}

/// A question that is forgotten with its reader.
struct ProcessesQuestion {
    hub: Arc<NodeSessions>,
    id: u64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ProcessesQuestion {
    fn drop(&mut self) {
        self.hub.questions.waiting.lock().remove(&self.id);
    }
}

/// Asks all nodes that run processes and are connected.
pub(crate) fn ask_all(hub: Arc<NodeSessions>, stop: CancellationToken) -> Result<ProcessesStream, Status> {
    let permit = Arc::clone(&hub.questions.readers).try_acquire_owned().map_err(|_| {
        let text = format!("{N_READERS_MAX} others ask for processes: try again when some are done");
        status::resource_exhausted(reason::OVERLOADED, text, RETRY_AFTER)
    })?;
    let (messages, receiver) = mpsc::channel(N_WAITING_MAX);
    let (id, _) = uuid::Uuid::new_v4().as_u64_pair();
    let question = ProcessesQuestion { hub, id, _permit: permit };
    task::spawn("processes", async move {
        let end = tokio::select! {
            end = run(&question, &messages) => end.err(),
            () = stop.cancelled() => Some(status::stopping()),
            () = messages.closed() => None,
        };
        if let Some(status) = end {
            // The end of a stream says that it is whole, so a reader has to hear of this; it may have left.
            let _left = messages.try_send(Err(status));
        }
    });
    Ok(ReceiverStream::new(receiver))
}

async fn run(question: &ProcessesQuestion, messages: &ProcessMessages) -> Result<(), Status> {
    let ProcessesQuestion { hub, id, .. } = question;
    let mut nodes = Vec::new();
    hub.for_each_slot(|slot| nodes.extend(slot.cell.lock().runs_processes.then_some(slot.node)));
    // Of each node one answer may wait. Before the first is asked.
    let (asked, mut said) = mpsc::channel(nodes.len().max(1));
    hub.questions.waiting.lock().insert(*id, asked);
    let request = v1::ProcessesRequest { request_id: *id };
    let mut open: BTreeSet<NodeId> = BTreeSet::new();
    for node in nodes {
        let asked = hub.slot(node).map(|slot| slot.cell.lock().ask_for_processes(request));
        let (is_asked, waker) = asked.unwrap_or_default();
        wake(waker);
        open.extend(is_asked.then_some(node));
    }
    let until = tokio::time::Instant::now() + ANSWER_TIMEOUT;
    while !open.is_empty() {
        match tokio::time::timeout_at(until, said.recv()).await {
            Ok(Some((node, report))) if open.remove(&node) => send(hub, messages, node, report).await?,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    for node in open {
        let failure = format!("its agent has not answered within {} s", ANSWER_TIMEOUT.as_secs());
        let report = v1::ProcessesReport { failure, ..v1::ProcessesReport::default() };
        send(hub, messages, node, report).await?;
    }
    Ok(())
}

async fn send(
    hub: &NodeSessions,
    messages: &ProcessMessages,
    node: NodeId,
    report: v1::ProcessesReport,
) -> Result<(), Status> {
    let name = hub.names.read().of(node).map(|(name, _)| name.to_owned()).unwrap_or_default();
    let v1::ProcessesReport { request_id: _, running, orphans, failure } = report;
    let answer = v1::ListRunProcessesResponse { node_id: node.0, node: name, running, orphans, failure };
    match tokio::time::timeout(SEND_TIMEOUT, messages.send(Ok(answer))).await {
        // A reader that has left hears nothing.
        Ok(_) => Ok(()),
        Err(_) => Err(Status::deadline_exceeded("the reader takes no answer")),
    }
}

/// Whether an agent's answer is within its bounds.
pub(crate) fn check(report: &v1::ProcessesReport) -> Result<(), Status> {
    let bad = |field: &str, why: String| Err(BadField::new(format!("processes.{field}"), why).into());
    if report.running.len() > N_RUNNING_MAX {
        return bad("running", format!("more than {N_RUNNING_MAX}"));
    }
    if report.orphans.len() > N_ORPHANS_MAX {
        return bad("orphans", format!("more than {N_ORPHANS_MAX}"));
    }
    let texts = report.orphans.iter().flat_map(|orphan| [&orphan.name, &orphan.unit_uid]);
    if texts.chain([&report.failure]).any(|text| text.len() > N_BYTES_MAX) {
        return bad("orphans", format!("a text has more than {N_BYTES_MAX} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_bounds() {
        let report = v1::ProcessesReport::default();
        assert!(check(&report).is_ok());
        let running = vec![v1::RunProcesses::default(); N_RUNNING_MAX + 1];
        let many = v1::ProcessesReport { running, ..report.clone() };
        assert!(check(&many).unwrap_err().message().contains("processes.running"));
        let orphans = vec![v1::OrphanProcess::default(); N_ORPHANS_MAX + 1];
        assert!(check(&v1::ProcessesReport { orphans, ..report.clone() }).is_err());
        let long = v1::OrphanProcess { name: "x".repeat(N_BYTES_MAX + 1), ..Default::default() };
        assert!(check(&v1::ProcessesReport { orphans: vec![long], ..report }).is_err());
    }
}
