//! The stream of submissions: items in, the durable watermark and errors of single items out.
//!
//! Two tasks. One reads items, admits them and passes them on in batches, waiting for room: nothing is read
//! while the admission queue is full, or while much is durable and waits for schedulers that are behind. The other gathers
//! what became of them. An item's room is given back only once its answer is on its way, so a client that does not read
//! its answers holds up itself alone.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use godel_domain::unit_caller::UnitCaller;
use godel_kit::{
    message::{MESSAGE_BYTES_MAX, field_len},
    room::Share,
    security::{ListedNames, PersonCall, permit_submission},
};
use godel_proto::v1;
use godel_rules::admission::Admitted;
use godel_wire::BadField;
use prost::Message as _;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Code, Status, Streaming};

use super::units::admit;
use crate::{
    leader_client::{LeaderHandle, term_over},
    metrics::DispatcherMetrics,
    requests::{LeaderRequest, PendingSubmission, Refused, StreamItem, Submitter},
};

/// How long a stream waits before it tries again what found no room, and a call at least.
pub(super) const RETRY_FULL: Duration = Duration::from_millis(100);
/// Items passed on at once.
const BATCH: usize = 256;
/// Answers gathered into one message.
const ANSWERS: usize = 4_096;
/// A message with so many bytes of errors takes no further one.
const ERRORS_BYTES: usize = MESSAGE_BYTES_MAX / 2;
/// Most bytes of one error; what is over quotes a unit that is itself too large, and is cut.
const ERROR_BYTES_MAX: usize = 64 << 10;

type SubmissionAnswers = mpsc::Sender<Result<v1::SubmitUnitsResponse, Status>>;

/// Who submits the units of a stream. The stream ends when what a person may do changes.
pub(super) struct SubmittedBy {
    pub(super) principal: Arc<str>,
    pub(super) names: ListedNames,
    pub(super) call: PersonCall,
}

/// Serves one stream.
pub(super) fn spawn(
    term: LeaderHandle,
    items: Streaming<v1::SubmitUnitsRequest>,
    by: SubmittedBy,
    metrics: DispatcherMetrics,
) -> ReceiverStream<Result<v1::SubmitUnitsResponse, Status>> {
    let (answers, stream) = mpsc::channel(16);
    let (done, results) = mpsc::unbounded_channel();
    let received = Arc::new(AtomicU64::new(0));
    let (end_sender, end) = watch::channel(None);
    let reader = SubmissionReader {
        share: term.room.share(by.call.name()),
        term: term.clone(),
        items,
        by,
        done,
        batch: Vec::new(),
        next_index: 0,
        received: Arc::clone(&received),
        metrics,
    };
    let (closed, calls) = (answers.clone(), term.calls.clone());
    godel_kit::task::spawn("submissions", async move {
        let ended = tokio::select! {
            // Nobody reads the answers any more.
            () = closed.closed() => return,
            () = calls.closed() => Err(term_over()),
            ended = reader.run() => ended,
        };
        end_sender.send_replace(ended.err());
    });
    let writer = Writer { term, answers, received, states: VecDeque::new(), base: 0, revision: 0 };
    godel_kit::task::spawn("submission-answers", writer.run(results, end));
    ReceiverStream::new(stream)
}

struct SubmissionReader {
    term: LeaderHandle,
    items: Streaming<v1::SubmitUnitsRequest>,
    by: SubmittedBy,
    /// What its principal has of the room.
    share: Option<Share>,
    done: mpsc::UnboundedSender<StreamItem>,
    batch: Vec<PendingSubmission>,
    next_index: u64,
    received: Arc<AtomicU64>,
    metrics: DispatcherMetrics,
}

/// What the stream has next.
enum NextItem {
    Item(Box<v1::SubmitUnitsRequest>),
    /// Nothing has arrived yet.
    Nothing,
    End,
}

impl SubmissionReader {
    /// Until the stream's end or the first thing that ends it; what came before that is passed on.
    async fn run(mut self) -> Result<(), Status> {
        let ended = self.read().await;
        let passed = self.pass_on().await;
        ended.and(passed)
    }

    async fn read(&mut self) -> Result<(), Status> {
        loop {
            if !self.term.call_limiter.is_open() {
                self.pass_on().await?;
                self.term.call_limiter.opened().await;
            }
            let next = if self.batch.is_empty() {
                self.items.message().await?.map_or(NextItem::End, |item| NextItem::Item(Box::new(item)))
            } else {
                self.ready().await?
            };
            match next {
                NextItem::Item(item) => self.take(item).await?,
                NextItem::Nothing => self.pass_on().await?,
                NextItem::End => return Ok(()),
            }
            if self.batch.len() >= BATCH {
                self.pass_on().await?;
            }
        }
    }

    /// What has arrived already.
    async fn ready(&mut self) -> Result<NextItem, Status> {
        let items = &mut self.items;
        std::future::poll_fn(|cx| {
            Poll::Ready(match Pin::new(&mut *items).poll_next(cx) {
                Poll::Ready(Some(item)) => item.map(|item| NextItem::Item(Box::new(item))),
                Poll::Ready(None) => Ok(NextItem::End),
                Poll::Pending => Ok(NextItem::Nothing),
            })
        })
        .await
    }

    async fn take(&mut self, item: Box<v1::SubmitUnitsRequest>) -> Result<(), Status> {
        let index = item.index;
        if index != self.next_index {
            let description = format!("{index}, expected {}", self.next_index);
            return Err(godel_kit::status::invalid_argument([BadField::new("index", description)]));
        }
        self.next_index += 1;
        self.received.store(self.next_index, Ordering::SeqCst);
        let mut unit = item.unit.unwrap_or_default();
        let permitted = permit_submission(&self.by.call, &mut unit);
        match permitted.and_then(|()| admit(unit).map_err(godel_kit::status::invalid_argument)) {
            Ok((Admitted { spec, .. }, kib)) => {
                let room = match self.term.room.take_now(self.share.as_ref(), kib) {
                    Some(room) => room,
                    None => {
                        // What is in hand must go on first: its room may be what is missing.
                        self.pass_on().await?;
                        let room = self.term.room.take(self.share.as_ref(), kib).await;
                        room.map_err(|_| term_over())?
                    }
                };
                let waiter = Submitter::Stream { index, done: self.done.clone() };
                let names = self.by.names.beside(&spec.owner);
                let by = UnitCaller { principal: Arc::clone(&self.by.principal), names };
                let since = Instant::now();
                self.batch.push(PendingSubmission { spec, by, waiter, since, room, pass: None });
            }
            Err(status) => {
                self.metrics.rejected.inc();
                let result = Err(Refused::Status(status));
                let _ = self.done.send(StreamItem { index, result, room: None });
            }
        }
        Ok(())
    }

    async fn pass_on(&mut self) -> Result<(), Status> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.term.calls.send(LeaderRequest::Submit(batch)).await.map_err(|_| term_over())
    }
}

struct Writer {
    term: LeaderHandle,
    answers: SubmissionAnswers,
    received: Arc<AtomicU64>,
    /// Whether each item from `base` on is done.
    states: VecDeque<bool>,
    base: u64,
    revision: u64,
}

impl Writer {
    async fn run(
        mut self,
        mut results: mpsc::UnboundedReceiver<StreamItem>,
        mut end: watch::Receiver<Option<Status>>,
    ) {
        let mut again: Vec<PendingSubmission> = Vec::new();
        let mut gathered = Vec::new();
        loop {
            let n_results = tokio::select! {
                n_results = results.recv_many(&mut gathered, ANSWERS) => n_results,
                () = tokio::time::sleep(RETRY_FULL), if !again.is_empty() => {
                    if self.term.calls.send(LeaderRequest::Submit(std::mem::take(&mut again))).await.is_err() {
                        break;
                    }
                    continue;
                }
            };
            if n_results == 0 {
                break;
            }
            let (mut answer, mut n_bytes) = (v1::SubmitUnitsResponse::default(), 0);
            let mut rooms = Vec::new();
            for item in gathered.drain(..) {
                rooms.extend(item.room);
                match item.result {
                    Ok(submitted) => self.revision = self.revision.max(submitted.revision.0),
                    Err(Refused::Full(item, _)) => {
                        again.push(*item);
                        continue;
                    }
                    Err(Refused::Status(status)) => {
                        let error = error(item.index, &status);
                        n_bytes += field_len(error.encoded_len());
                        answer.errors.push(error);
                        if n_bytes >= ERRORS_BYTES {
                            n_bytes = 0;
                            self.mark(item.index);
                            if !self.send(std::mem::take(&mut answer)).await {
                                return;
                            }
                            continue;
                        }
                    }
                }
                self.mark(item.index);
            }
            if !self.send(answer).await {
                return;
            }
            // Room comes back only now.
            drop(rooms);
        }
        self.finish(&mut end).await;
    }

    /// Everything is answered, or nobody is left who would answer.
    async fn finish(self, end: &mut watch::Receiver<Option<Status>>) {
        // The reader says how it ended before its side is dropped.
        let _ = end.changed().await;
        let failed = end.borrow().clone();
        let status = match failed {
            Some(status) => status,
            None if self.base < self.received.load(Ordering::SeqCst) => term_over(),
            None => return,
        };
        let _ = self.answers.send(Err(status)).await;
    }

    fn mark(&mut self, index: u64) {
        let Some(offset) = index.checked_sub(self.base).and_then(|offset| usize::try_from(offset).ok())
        else {
            return;
        };
        if self.states.len() <= offset {
            self.states.resize(offset + 1, false);
        }
        self.states[offset] = true;
        while self.states.front() == Some(&true) {
            self.states.pop_front();
            self.base += 1;
        }
    }

    async fn send(&self, mut answer: v1::SubmitUnitsResponse) -> bool {
        answer.durable_below = self.base;
        answer.revision = self.revision;
        self.answers.send(Ok(answer)).await.is_ok()
    }
}

fn error(index: u64, status: &Status) -> v1::SubmitError {
    let violations = match status.code() {
        Code::InvalidArgument => godel_kit::status::violations_of(status),
        _ => Vec::new(),
    };
    let mut error = v1::SubmitError {
        index,
        code: status.code().into(),
        message: status.message().to_owned(),
        violations: violations
            .into_iter()
            .map(|bad| v1::FieldViolation { field: bad.path, description: bad.description })
            .collect(),
    };
    if error.encoded_len() > ERROR_BYTES_MAX {
        error.message = error.message.chars().take(1_000).collect();
        error.violations.clear();
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_bounded_whatever_it_quotes() {
        let errors = |n: usize, len: usize| {
            let wrong = (0..n).map(|idx| BadField::new(format!("f[{idx}]"), "ö".repeat(len)));
            error(7, &godel_kit::status::invalid_argument(wrong))
        };
        let whole = errors(100, 100);
        assert_eq!((whole.index, whole.violations.len()), (7, 100));
        for cut in [errors(100, 1_000), errors(1, 1 << 20)] {
            assert!(cut.encoded_len() <= ERROR_BYTES_MAX && cut.message.starts_with("f[0]: ö"));
            assert!(cut.violations.is_empty());
        }
    }
}
