//! Submission of many units on one stream: goes on after a lost connection or a change of leader from the last watermark.
//! Uids make a unit that was sent before harmless.

use std::{collections::HashSet, sync::Arc, time::Duration};

use godel_kit::{client::Backoff, status::is_retryable_idempotent};
use godel_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Code as Rpc, Status};

use crate::{client::Client, exit::Failure, output::shown};

/// Units that wait for the stream: it is bounded by the server's reading.
const N_AHEAD: usize = 1024;
/// Streams opened without any progress before it is given up.
const N_STREAMS_MAX: u32 = 600;
/// Pauses before the next stream, at random up to these.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A unit that was refused for good: its position, and why.
pub type RefusedUnit = (usize, v1::SubmitError);

/// Hears which units have become durable, and at which revision.
type OnDurable<'a, E> = dyn FnMut(&[usize], u64) -> Result<(), E> + Send + 'a;

/// Submits units in order and says of each when it is sent (`sent`) and durable (`durable`, with a revision), by position.
/// Units that the server could not take for now are sent again after the others. Returns what was refused.
///
/// # Errors
/// The server is away for too long, or `durable` fails. What was durable before is.
pub async fn submit(
    client: &Client,
    units: Arc<Vec<v1::UnitSpec>>,
    sent: Arc<dyn Fn(usize) + Send + Sync>,
    durable: &mut OnDurable<'_, Failure>,
) -> Result<Vec<RefusedUnit>, Failure> {
    let mut work = BulkWork { order: Arc::new((0..units.len()).collect()), ..BulkWork::default() };
    let mut n_idle_streams = 0;
    let mut backoff = Backoff::new(PAUSE, PAUSE_MAX);
    while work.done < work.order.len() {
        let before = work.done;
        let mut broken = None;
        let ended = stream(client, &units, &mut work, &sent, &mut |fresh, revision| {
            durable(fresh, revision).map_err(|failure| {
                broken = Some(failure);
                Status::data_loss("the durable watermark is not known")
            })
        })
        .await;
        if let Some(failure) = broken {
            return Err(failure);
        }
        n_idle_streams = if work.done > before { 0 } else { n_idle_streams + 1 };
        if let Err(failed) = ended {
            if !is_retryable_idempotent(&failed.status) || n_idle_streams > N_STREAMS_MAX {
                return Err(client.explain_leader("dispatcher", failed).during("the submission"));
            }
            tokio::time::sleep(backoff.pause()).await;
        } else {
            backoff.reset();
        }
        if work.done == work.order.len() && !work.again.is_empty() {
            work.order = Arc::new(std::mem::take(&mut work.again));
            work.done = 0;
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(work.refused)
}

/// What is still to be submitted.
#[derive(Default)]
struct BulkWork {
    /// Positions of units, in the order of this pass.
    order: Arc<Vec<usize>>,
    /// Of this pass.
    done: usize,
    /// For the next pass.
    again: Vec<usize>,
    refused: Vec<RefusedUnit>,
}

impl BulkWork {
    fn failed(&mut self, at: usize, error: v1::SubmitError) {
        let Some(idx) = self.order.get(at).copied() else { return };
        let for_now = [Rpc::Unavailable, Rpc::ResourceExhausted, Rpc::DeadlineExceeded, Rpc::Cancelled];
        if for_now.contains(&Rpc::from_i32(error.code)) {
            self.again.push(idx);
        } else {
            self.refused.push((idx, error));
        }
    }
}

/// One stream, from where the last one ended.
async fn stream(
    client: &Client,
    units: &Arc<Vec<v1::UnitSpec>>,
    work: &mut BulkWork,
    sent: &Arc<dyn Fn(usize) + Send + Sync>,
    durable: &mut OnDurable<'_, Status>,
) -> Result<(), godel_kit::client::FailedCall> {
    let (tx, rx) = mpsc::channel(N_AHEAD);
    let first = work.done;
    let feed = feed(Arc::clone(units), Arc::clone(&work.order), first, Arc::clone(sent), tx);
    let feeding = godel_kit::task::spawn("submit.feed", feed);
    let ended = client
        .leading_units(async |mut service| {
            let mut stream = service.submit_units(ReceiverStream::new(rx)).await?.into_inner();
            let mut errors = HashSet::new();
            let at = |index: u64| first.saturating_add(usize::try_from(index).unwrap_or(usize::MAX));
            while let Some(answer) = stream.next().await {
                let answer = answer?;
                for error in answer.errors {
                    let at = at(error.index);
                    if errors.insert(at) {
                        work.failed(at, error);
                    }
                }
                let below = at(answer.durable_below).min(work.order.len());
                if below > work.done {
                    let fresh = (work.done..below).filter(|at| !errors.contains(at));
                    let fresh: Vec<usize> = fresh.map(|at| work.order[at]).collect();
                    durable(&fresh, answer.revision)?;
                    work.done = below;
                }
                if work.done == work.order.len() {
                    return Ok(());
                }
            }
            Err(Status::unavailable("the stream ended"))
        })
        .await;
    feeding.abort();
    ended
}

async fn feed(
    units: Arc<Vec<v1::UnitSpec>>,
    order: Arc<Vec<usize>>,
    first: usize,
    sent: Arc<dyn Fn(usize) + Send + Sync>,
    tx: mpsc::Sender<v1::SubmitUnitsRequest>,
) {
    for (index, idx) in (0u64..).zip(&order[first..]) {
        sent(*idx);
        if tx.send(v1::SubmitUnitsRequest { index, unit: Some(units[*idx].clone()) }).await.is_err() {
            return;
        }
    }
}

/// Why a unit was refused, as a call of its own would have said it.
pub fn failure(error: &v1::SubmitError) -> Failure {
    let line = |bad: &v1::FieldViolation| format!("  {}: {}", shown(&bad.field), shown(&bad.description));
    if error.violations.is_empty() {
        return Failure::from(Status::new(Rpc::from_i32(error.code), error.message.clone()));
    }
    let lines: Vec<String> = error.violations.iter().map(line).collect();
    Failure::usage(format!("invalid input\n{}", lines.join("\n")))
}
