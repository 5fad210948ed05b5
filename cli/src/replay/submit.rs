//! Submission on one stream: goes on after a lost connection from the last watermark, and writes down what was
//! acknowledged.

use std::{
    collections::HashSet,
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use godel_kit::message::RECEIVED_BYTES_MAX;
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::watch::Board;
use crate::{client::Client, exit::Failure};

/// Units that wait for the stream: it is bounded by the server's reading.
const N_AHEAD: usize = 1024;
/// Streams opened without any progress before it is given up.
const N_STREAMS_MAX: u32 = 600;
/// Pause before the next stream.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Submitter {
    client: Client,
    ledger: Option<BufWriter<File>>,
}

impl Submitter {
    pub(super) fn new(client: Client, ledger: Option<&Path>) -> Result<Self, Failure> {
        let ledger = ledger
            .map(|path| {
                File::create(path).map(BufWriter::new).map_err(|error| {
                    Failure::usage(format!("the ledger {} cannot be written: {error}", path.display()))
                })
            })
            .transpose()?;
        Ok(Self { client, ledger })
    }

    /// Submits every unit in order; returns what was refused, by name. Units that the server could not take for
    /// now are sent again after the others.
    pub(super) async fn run(
        mut self,
        units: Arc<Vec<v1::UnitSpec>>,
        board: Arc<Board>,
        stop: CancellationToken,
    ) -> Result<Vec<String>, Failure> {
        let mut work = Work { order: Arc::new((0..units.len()).collect()), ..Work::default() };
        let mut n_idle_streams = 0;
        while work.done < work.order.len() {
            let before = work.done;
            let ended = tokio::select! {
                ended = self.stream(&units, &mut work, &board) => ended,
                () = stop.cancelled() => return Ok(work.refused),
            };
            n_idle_streams = if work.done > before { 0 } else { n_idle_streams + 1 };
            if let Err(status) = ended {
                let hopeless = !godel_kit::status::is_retryable_idempotent(&status);
                if hopeless || n_idle_streams > N_STREAMS_MAX {
                    return Err(self.client.explain(status).during("the submission"));
                }
                tokio::time::sleep(PAUSE).await;
            }
            if work.done == work.order.len() && !work.again.is_empty() {
                work.order = Arc::new(std::mem::take(&mut work.again));
                work.done = 0;
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(work.refused)
    }

    /// One stream, from where the last one ended. Uids make a unit that was sent before harmless.
    async fn stream(
        &mut self,
        units: &Arc<Vec<v1::UnitSpec>>,
        work: &mut Work,
        board: &Arc<Board>,
    ) -> Result<(), Status> {
        let leader = self.client.directory().leader("dispatcher").await?;
        let channel = self.client.directory().channel(&leader.address)?;
        let (tx, rx) = mpsc::channel(N_AHEAD);
        let first = work.done;
        let feeding = godel_kit::task::spawn(
            "replay.feed",
            feed(Arc::clone(units), Arc::clone(&work.order), first, Arc::clone(board), tx),
        );
        let answers = async {
            let mut service = UnitServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
            let mut stream = service.submit_units(ReceiverStream::new(rx)).await?.into_inner();
            let mut errors = HashSet::new();
            while let Some(answer) = stream.next().await {
                let answer = answer?;
                for error in answer.errors {
                    let at = first.saturating_add(usize::try_from(error.index).unwrap_or(usize::MAX));
                    if errors.insert(at) {
                        work.failed(units, at, &error);
                    }
                }
                let below = first.saturating_add(usize::try_from(answer.durable_below).unwrap_or(usize::MAX));
                let below = below.min(work.order.len());
                if below > work.done {
                    let fresh: Vec<usize> = (work.done..below)
                        .filter(|at| !errors.contains(at))
                        .map(|at| work.order[at])
                        .collect();
                    self.acknowledge(units, &fresh, answer.revision).map_err(|error| {
                        Status::data_loss(format!("the ledger cannot be written: {error}"))
                    })?;
                    board.acknowledged(fresh.len());
                    work.done = below;
                }
                if work.done == work.order.len() {
                    return Ok(());
                }
            }
            Err(Status::unavailable("the stream ended"))
        };
        let ended = answers.await;
        feeding.abort();
        if let Err(status) = &ended {
            self.client.directory().failed("dispatcher", &leader, status);
        }
        ended
    }

    fn acknowledge(&mut self, units: &[v1::UnitSpec], fresh: &[usize], revision: u64) -> std::io::Result<()> {
        let Some(ledger) = &mut self.ledger else { return Ok(()) };
        for meta in fresh.iter().filter_map(|idx| units[*idx].meta.as_ref()) {
            writeln!(ledger, "{},{},{revision}", meta.uid, meta.name)?;
        }
        ledger.flush()
    }
}

/// What is still to be submitted.
#[derive(Default)]
struct Work {
    /// Positions of units, in the order of this pass.
    order: Arc<Vec<usize>>,
    /// Of this pass.
    done: usize,
    /// For the next pass.
    again: Vec<usize>,
    refused: Vec<String>,
}

impl Work {
    fn failed(&mut self, units: &[v1::UnitSpec], at: usize, error: &v1::SubmitError) {
        let Some(idx) = self.order.get(at).copied() else { return };
        let for_now = [Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded, Code::Cancelled];
        if for_now.contains(&Code::from_i32(error.code)) {
            self.again.push(idx);
        } else {
            self.refused.push(refusal(&units[idx], error));
        }
    }
}

async fn feed(
    units: Arc<Vec<v1::UnitSpec>>,
    order: Arc<Vec<usize>>,
    first: usize,
    board: Arc<Board>,
    tx: mpsc::Sender<v1::SubmitUnitsRequest>,
) {
    let started = board.started();
    for (index, idx) in (0u64..).zip(&order[first..]) {
        board.sent(*idx, started);
        if tx.send(v1::SubmitUnitsRequest { index, unit: Some(units[*idx].clone()) }).await.is_err() {
            return;
        }
    }
}

fn refusal(unit: &v1::UnitSpec, error: &v1::SubmitError) -> String {
    let name = unit.meta.as_ref().map_or("?", |meta| meta.name.as_str());
    let fields: Vec<String> = error
        .violations
        .iter()
        .map(|violation| format!("{}: {}", violation.field, violation.description))
        .collect();
    if fields.is_empty() {
        format!("{name}: {}", error.message)
    } else {
        format!("{name}: {}", fields.join(", "))
    }
}
