//! What a node says on the wire, and how its session is opened.

use std::{future::Future, pin::Pin, time::Duration};

use futures_util::Stream;
use godel_kit::client::Channel;
use godel_proto::v1::{self, node_service_client::NodeServiceClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status as RpcStatus, Streaming};

use crate::{inventory::NodeDef, life};

/// Messages of one node that wait for its stream.
const N_OUTBOUND_MAX: usize = 16;
/// An answer that takes longer is as good as none.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A step towards an open session.
pub(crate) enum Progress {
    /// The node has its id and the epoch of its next session.
    Registered { node: usize, result: Result<v1::RegisterNodeResponse, RpcStatus> },
    /// The session's stream is open.
    Opened { node: usize, generation: u64, result: Result<Box<Inbound>, RpcStatus> },
}

pub(crate) type Step = Pin<Box<dyn Future<Output = Progress> + Send>>;
pub(crate) type Client = NodeServiceClient<Channel>;

/// Registers a node.
pub(crate) fn register(mut client: Client, node: usize, def: &NodeDef) -> Step {
    let meta = v1::ObjectMeta { name: def.name.clone(), uid: def.uid.clone(), ..v1::ObjectMeta::default() };
    let report = v1::NodeReport {
        capacity: Some(godel_kit::to_proto::resources(&def.capacity)),
        devices: def.devices.iter().map(godel_kit::to_proto::device).collect(),
        ready: true,
        attributes: def.attributes.clone().into_iter().collect(),
        ..v1::NodeReport::default()
    };
    let request = v1::RegisterNodeRequest { meta: Some(meta), report: Some(report), taints: Vec::new() };
    Box::pin(async move {
        let result = in_time(client.register_node(request)).await.map(Response::into_inner);
        Progress::Registered { node, result }
    })
}

/// Opens a session; `open` is its first message. Returns where to send further ones, and the step to wait for.
pub(crate) fn open(
    mut client: Client,
    node: usize,
    generation: u64,
    open: v1::SessionOpen,
) -> (mpsc::Sender<v1::SessionRequest>, Step) {
    let (tx, rx) = mpsc::channel(N_OUTBOUND_MAX);
    tx.try_send(message(v1::session_request::Message::Open(open))).expect("the channel is new and has room");
    let step = Box::pin(async move {
        let result = in_time(client.session(ReceiverStream::new(rx)))
            .await
            .map(|response| Box::new(Inbound { node, generation, stream: Some(response.into_inner()) }));
        Progress::Opened { node, generation, result }
    });
    (tx, step)
}

async fn in_time<T>(call: impl Future<Output = Result<T, RpcStatus>>) -> Result<T, RpcStatus> {
    tokio::time::timeout(ANSWER_TIMEOUT, call)
        .await
        .unwrap_or_else(|_| Err(RpcStatus::deadline_exceeded("no answer in time")))
}

/// What state sends to one node; says so once when the stream is over.
pub(crate) struct Inbound {
    node: usize,
    generation: u64,
    stream: Option<Streaming<v1::SessionResponse>>,
}

/// Something arrived for a node; `None`: its stream is over.
pub(crate) struct Arrival {
    pub(crate) node: usize,
    pub(crate) generation: u64,
    pub(crate) message: Option<Result<v1::SessionResponse, RpcStatus>>,
}

impl Stream for Inbound {
    type Item = Arrival;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let (node, generation) = (self.node, self.generation);
        let Some(stream) = &mut self.stream else { return std::task::Poll::Ready(None) };
        Pin::new(stream).poll_next(cx).map(|message| {
            if !matches!(message, Some(Ok(_))) {
                self.stream = None;
            }
            Some(Arrival { node, generation, message })
        })
    }
}

pub(crate) fn message(message: v1::session_request::Message) -> v1::SessionRequest {
    v1::SessionRequest { message: Some(message) }
}

/// A status on the wire.
pub(crate) fn run_status(status: &life::Status) -> v1::RunStatus {
    v1::RunStatus {
        unit_id: status.key.unit,
        ordinal: status.key.ordinal,
        incarnation: status.incarnation,
        phase: godel_kit::to_proto::phase(status.phase).into(),
        exit_code: status.exit_code,
        // Restarts in place are planned; an ended one is reported at once.
        restarts: 0,
    }
}
