//! The load generator: units encoded before the clock starts, submitted through the public API.

pub(super) mod unary;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_proto::v1;
use prost::Message as _;
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tonic::{GrpcMethod, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use godel_client::{client::Client, exit::Failure};

const SERVICE: &str = "godel.v1.UnitService";
/// Units of a paced load that wait for the stream.
const N_AHEAD: usize = 65_536;

/// How units are submitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SubmitWay {
    /// As fast as one stream takes them.
    Stream,
    /// So many clients, each with a connection of its own and one call at a time.
    Unary(usize),
    /// On one stream, a unit at each of its moments whatever became of those before.
    Paced {
        /// Between two units.
        interval: Duration,
    },
}

/// Units as they go over the wire.
#[derive(Debug, Default)]
pub(super) struct Load {
    units: Vec<EncodedSpec>,
    n_replicas: usize,
    /// Some of its running units may find no room.
    pub(super) may_wait: bool,
    /// Nothing of it ends by itself, where agents run it either.
    pub(super) stays: bool,
    /// Microseconds on the board's clock at which each was handed over, or was due to be.
    sent: Vec<AtomicU64>,
}

#[derive(Debug)]
struct EncodedSpec {
    uid: String,
    bytes: Bytes,
}

impl Load {
    /// One more unit, in order.
    pub(super) fn push(&mut self, unit: &v1::UnitSpec) {
        let replicas: u32 = unit.task_groups.iter().map(|group| group.replicas).sum();
        self.n_replicas += usize::try_from(replicas).unwrap_or(usize::MAX);
        let uid = unit.meta.as_ref().map(|meta| meta.uid.clone()).unwrap_or_default();
        self.units.push(EncodedSpec { uid, bytes: unit.encode_to_vec().into() });
        self.sent.push(AtomicU64::new(0));
    }

    /// The units themselves, in order.
    pub(super) fn units(&self) -> impl Iterator<Item = Result<v1::UnitSpec, prost::DecodeError>> {
        self.units.iter().map(|unit| v1::UnitSpec::decode(unit.bytes.clone()))
    }

    /// Units.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Running units that it asks for.
    pub(super) fn n_replicas(&self) -> usize {
        self.n_replicas
    }

    /// Uids, and when each was handed over.
    pub(super) fn sent(&self) -> impl Iterator<Item = (&str, Duration)> {
        let sent = self.sent.iter().map(|at| Duration::from_micros(at.load(Ordering::Relaxed)));
        self.units.iter().map(|unit| unit.uid.as_str()).zip(sent)
    }

    fn hand_over(&self, idx: usize, at: Duration) -> Bytes {
        let micros = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        self.sent[idx].store(micros, Ordering::Relaxed);
        self.units[idx].bytes.clone()
    }

    /// Submits every unit and waits until all are durable. `epoch` is the board's start.
    pub(super) async fn submit(
        self: Arc<Self>,
        client: Client,
        way: SubmitWay,
        epoch: Instant,
    ) -> Result<(), Failure> {
        let n_units = self.len();
        let items = (0..n_units).zip(0u64..);
        let submitted = match way {
            SubmitWay::Stream => {
                let load = Arc::clone(&self);
                let items =
                    items.map(move |(idx, index)| Item { index, unit: load.hand_over(idx, epoch.elapsed()) });
                stream(&client, tokio_stream::iter(items), n_units).await
            }
            SubmitWay::Paced { interval } => {
                let (tx, rx) = tokio::sync::mpsc::channel(N_AHEAD);
                let load = Arc::clone(&self);
                // A thread: timers of the runtime come a millisecond late, which would be called latency.
                let pace = move || {
                    let mut due = epoch.elapsed();
                    for (idx, index) in items {
                        std::thread::sleep(due.saturating_sub(epoch.elapsed()));
                        let item = Item { index, unit: load.hand_over(idx, due) };
                        if tx.blocking_send(item).is_err() {
                            return;
                        }
                        due += interval;
                    }
                };
                let pacing = tokio::task::spawn_blocking(pace);
                let submitted = stream(&client, ReceiverStream::new(rx), n_units).await;
                let paced = pacing.await.map_err(|_| Status::internal("the offered rate was not reached"));
                submitted.and(paced)
            }
            SubmitWay::Unary(n_clients) => unary::submit(self, &client, n_clients, epoch).await,
        };
        submitted.map_err(|status| client.explain(status).during("the submission"))
    }
}

/// `godel.v1.SubmitUnitsRequest` with an encoded unit.
#[derive(Clone, PartialEq, prost::Message)]
struct Item {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(bytes = "bytes", tag = "2")]
    unit: Bytes,
}

async fn stream(
    client: &Client,
    items: impl Stream<Item = Item> + Send + 'static,
    n_units: usize,
) -> Result<(), Status> {
    let leader = client.directory().leader("dispatcher").await?;
    let mut grpc = Grpc::new(client.directory().leader_channel("dispatcher", &leader)?);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<Item, v1::SubmitUnitsResponse>::default();
    let path = PathAndQuery::from_static("/godel.v1.UnitService/SubmitUnits");
    let mut request = Request::new(items);
    request.extensions_mut().insert(GrpcMethod::new(SERVICE, "SubmitUnits"));
    let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
    while let Some(answer) = answers.next().await {
        let answer = answer?;
        if let Some(error) = answer.errors.first() {
            return Err(Status::new(tonic::Code::from_i32(error.code), error.message.clone()));
        }
        if answer.durable_below >= u64::try_from(n_units).unwrap_or(u64::MAX) {
            return Ok(());
        }
    }
    Err(Status::unavailable("the stream ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_units_are_what_the_api_reads() {
        let unit = v1::UnitSpec {
            min_member: Some(3),
            task_groups: vec![v1::TaskGroup { replicas: 7, ..v1::TaskGroup::default() }],
            ..v1::UnitSpec::default()
        };
        let mut load = Load::default();
        load.push(&unit);
        assert_eq!((load.len(), load.n_replicas()), (1, 7));
        let item = Item { index: 4, unit: load.hand_over(0, Duration::from_millis(2)) }.encode_to_vec();
        let expected = v1::SubmitUnitsRequest { index: 4, unit: Some(unit.clone()) };
        assert_eq!(v1::SubmitUnitsRequest::decode(item.as_slice()).unwrap(), expected);
        assert_eq!(load.sent().collect::<Vec<_>>(), [("", Duration::from_millis(2))]);
    }
}
