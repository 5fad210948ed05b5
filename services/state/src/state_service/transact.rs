//! Transactions as a pipeline: many under way, answered in order.
//!
//! One task per stream moves requests into the store's queue and their pending answers into a bounded channel;
//! the answers are awaited by the connection's own task. When the channel is full the stream is not read.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use godel_identity::caller::Caller;
use godel_kit::{status, task};
use godel_proto::{raw, v1};
use godel_store::{Pending, Role, TxnRefusal};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::{check, error, rights, sessions::NodeSessions};

/// Transactions of one stream under way; their bytes are bounded by the store's queue.
const N_UNDER_WAY_MAX: usize = 256;

/// One transaction under way.
struct TxnsUnderWay {
    sequence: u64,
    pending: Result<Pending, TxnRefusal>,
}

/// The answers of one stream.
pub(crate) struct Answers {
    hub: Arc<NodeSessions>,
    under_way: mpsc::Receiver<Result<TxnsUnderWay, Status>>,
    first: Option<TxnsUnderWay>,
    over: bool,
}

/// Starts the pipeline of one stream.
pub(super) fn start(
    hub: Arc<NodeSessions>,
    requests: Streaming<raw::TxnRequest>,
    caller: Caller,
    stop: CancellationToken,
) -> Answers {
    let (sender, under_way) = mpsc::channel(N_UNDER_WAY_MAX);
    task::spawn("transact", enqueue(Arc::clone(&hub), requests, caller, sender, stop));
    Answers { hub, under_way, first: None, over: false }
}

async fn enqueue(
    hub: Arc<NodeSessions>,
    mut requests: Streaming<raw::TxnRequest>,
    caller: Caller,
    sender: mpsc::Sender<Result<TxnsUnderWay, Status>>,
    stop: CancellationToken,
) {
    loop {
        // The place first: what is in the store's queue always has one.
        let Ok(place) = sender.reserve().await else { return };
        let request = tokio::select! {
            request = requests.message() => request,
            () = stop.cancelled() => {
                place.send(Err(status::stopping()));
                return;
            }
            () = sender.closed() => return,
        };
        let txn = match request {
            Ok(Some(txn)) => txn,
            Ok(None) | Err(_) => return,
        };
        let sequence = txn.writer.as_ref().map_or(0, |writer| writer.sequence);
        let lease = txn.writer.as_ref().map_or("", |writer| &writer.lease);
        if let Err(refusal) = rights::check_lease(&caller, lease) {
            place.send(Err(refusal));
            return;
        }
        let pending = match check::readable(&txn) {
            Ok(()) => hub.store.enqueue(txn, Role::Leased).await,
            Err(refusal) => Err(refusal),
        };
        place.send(Ok(TxnsUnderWay { sequence, pending }));
    }
}

impl Answers {
    fn answer(
        &self,
        sequence: u64,
        result: Result<godel_store::Committed, TxnRefusal>,
    ) -> Result<v1::TxnResponse, Status> {
        self.hub.crash.hit("state.before-answer");
        match result {
            Ok(committed) => {
                self.hub.metrics.txns.inc();
                let (revision, commit_time_ms) = (committed.revision.0, committed.commit_time_ms);
                Ok(v1::TxnResponse { revision, commit_time_ms, refusal: None, sequence })
            }
            Err(refusal) => {
                self.hub.metrics.refused(error::reason_name(refusal.reason));
                match error::refusal(&refusal) {
                    Some(refusal) => {
                        Ok(v1::TxnResponse { refusal: Some(refusal), sequence, ..Default::default() })
                    }
                    None => Err(status::stopping()),
                }
            }
        }
    }
}

impl Stream for Answers {
    type Item = Result<v1::TxnResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        let mut first = match this.first.take() {
            Some(first) => first,
            None => match ready!(this.under_way.poll_recv(cx)) {
                Some(Ok(first)) => first,
                Some(Err(status)) => {
                    this.over = true;
                    return Poll::Ready(Some(Err(status)));
                }
                None => return Poll::Ready(None),
            },
        };
        let result = match &mut first.pending {
            Ok(pending) => match Pin::new(pending).poll(cx) {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    this.first = Some(first);
                    return Poll::Pending;
                }
            },
            Err(refusal) => Err(refusal.clone()),
        };
        let answer = this.answer(first.sequence, result);
        this.over = answer.is_err();
        Poll::Ready(Some(answer))
    }
}
