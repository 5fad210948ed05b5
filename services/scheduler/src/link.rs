//! Streams to leaders that are opened again and again: to the dispatcher and to the binder.
//!
//! A link finds the leader, opens a stream, hands its sending end to the engine, passes on what comes, and
//! starts anew with a bounded jittered pause when the stream ends, when NOT_LEADER points elsewhere, or when
//! state names another holder of the lease (a leader that was stopped closes nothing).

use std::{collections::VecDeque, future::pending, time::Duration};

use godel_base::ids::Epoch;
use godel_kit::{
    client::{Backoff, Channel, Directory, Leader},
    message::RECEIVED_BYTES_MAX,
};
use godel_proto::v1::{
    self, bind_service_client::BindServiceClient, dispatch_service_client::DispatchServiceClient,
};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

/// Messages that wait on an open stream; beyond that they wait in the engine, which stops deciding.
const N_OUTGOING: usize = 16;
/// Messages from one stream that wait for the engine.
const N_INCOMING: usize = 64;
/// First pause before a stream is opened again.
const RECONNECT_BASE: Duration = Duration::from_millis(10);

/// A kind of stream.
pub(crate) trait Protocol: Send + 'static {
    /// What goes out.
    type Request: Send + 'static;
    /// What comes in.
    type Response: Send + 'static;
    /// Lease of who serves it.
    const LEASE: &'static str;

    /// Opens a stream.
    fn call(
        channel: Channel,
        requests: ReceiverStream<Self::Request>,
    ) -> impl Future<Output = Result<Streaming<Self::Response>, Status>> + Send;
}

/// The stream to the dispatcher.
pub(crate) struct DispatcherLink;

impl Protocol for DispatcherLink {
    type Request = v1::AttachRequest;
    type Response = v1::AttachResponse;
    const LEASE: &'static str = "dispatcher";

    async fn call(
        channel: Channel,
        requests: ReceiverStream<v1::AttachRequest>,
    ) -> Result<Streaming<v1::AttachResponse>, Status> {
        let mut client = DispatchServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        Ok(client.attach(requests).await?.into_inner())
    }
}

/// The stream to the binder.
pub(crate) struct Decide;

impl Protocol for Decide {
    type Request = v1::DecideRequest;
    type Response = v1::DecideResponse;
    const LEASE: &'static str = "binder";

    async fn call(
        channel: Channel,
        requests: ReceiverStream<v1::DecideRequest>,
    ) -> Result<Streaming<v1::DecideResponse>, Status> {
        let mut client = BindServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        Ok(client.decide(requests).await?.into_inner())
    }
}

/// What happens on a link, in order.
#[derive(Debug)]
pub(crate) enum LinkEvent<P: Protocol> {
    /// A stream is being opened: what is sent here goes out first.
    Opening(mpsc::Sender<P::Request>),
    /// Something came.
    Message(P::Response),
    /// The stream ended.
    Closed,
}

/// The engine's end of a link.
#[derive(Debug)]
pub(crate) struct Link<P: Protocol> {
    events: mpsc::Receiver<LinkEvent<P>>,
    line: Option<mpsc::Sender<P::Request>>,
    /// To be sent, in order.
    outgoing: VecDeque<P::Request>,
    /// The other side has answered the opening message.
    welcomed: bool,
}

impl<P: Protocol> Link<P> {
    /// Starts to connect, until `stop`.
    pub(crate) fn spawn(directory: &Directory, reconnect_max: Duration, stop: CancellationToken) -> Self {
        let (sender, events) = mpsc::channel(N_INCOMING);
        let task = LinkTask::<P> {
            directory: directory.clone(),
            leaders: directory.follow(P::LEASE),
            events: sender,
            backoff: Backoff::new(RECONNECT_BASE, reconnect_max.max(RECONNECT_BASE)),
        };
        godel_kit::task::spawn("link", async move {
            tokio::select! {
                () = task.run() => {}
                () = stop.cancelled() => {}
            }
        });
        Self { events, line: None, outgoing: VecDeque::new(), welcomed: false }
    }

    /// The next event. Waits for ever on a link that was stopped.
    pub(crate) async fn next(&mut self) -> LinkEvent<P> {
        match self.events.recv().await {
            Some(event) => event,
            None => pending().await,
        }
    }

    /// The next event if one waits already.
    pub(crate) fn try_next(&mut self) -> Option<LinkEvent<P>> {
        self.events.try_recv().ok()
    }

    /// A stream is being opened: `requests` go out first. What was not sent on the old one is dropped.
    pub(crate) fn open(
        &mut self,
        line: mpsc::Sender<P::Request>,
        requests: impl IntoIterator<Item = P::Request>,
    ) {
        self.line = Some(line);
        self.welcomed = false;
        self.outgoing = requests.into_iter().collect();
        self.pump();
    }

    /// The stream ended.
    pub(crate) fn close(&mut self) {
        self.line = None;
        self.welcomed = false;
        self.outgoing.clear();
    }

    /// The other side has answered the opening message.
    pub(crate) fn welcome(&mut self) {
        self.welcomed = true;
    }

    /// Open, answered, and nothing waits to be sent.
    pub(crate) fn is_free(&self) -> bool {
        self.welcomed && self.outgoing.is_empty()
    }

    /// Sends, or queues in order when the stream is full. Dropped when no stream is open: the opening
    /// messages of the next one say it all again.
    pub(crate) fn send(&mut self, request: P::Request) {
        if self.line.is_some() {
            self.outgoing.push_back(request);
            self.pump();
        }
    }

    /// Hands queued messages to the stream while it takes them.
    pub(crate) fn pump(&mut self) {
        let Some(line) = &self.line else { return };
        while !self.outgoing.is_empty() {
            let Ok(permit) = line.try_reserve() else { return };
            let Some(request) = self.outgoing.pop_front() else { return };
            permit.send(request);
        }
    }

    /// Messages that wait for the stream.
    pub(crate) fn n_queued(&self) -> usize {
        self.outgoing.len()
    }

    /// The sending end of the stream that is open or being opened.
    pub(crate) fn line(&self) -> Option<mpsc::Sender<P::Request>> {
        self.line.clone()
    }
}

/// Waits until a stream takes another message; for ever when it is closed, which is an event of its own.
pub(crate) async fn writable<T>(line: Option<mpsc::Sender<T>>) {
    if let Some(line) = line
        && line.reserve().await.is_ok()
    {
        return;
    }
    pending().await
}

struct LinkTask<P: Protocol> {
    directory: Directory,
    leaders: watch::Receiver<Option<Leader>>,
    events: mpsc::Sender<LinkEvent<P>>,
    backoff: Backoff,
}

impl<P: Protocol> LinkTask<P> {
    /// Runs until nobody listens.
    async fn run(mut self) {
        while !self.events.is_closed() {
            match self.directory.leader(P::LEASE).await {
                Ok(leader) => {
                    let end = self.connect(&leader).await;
                    tracing::debug!(
                        lease = P::LEASE,
                        address = leader.address,
                        code = ?end.code(),
                        why = end.message(),
                        "stream ended"
                    );
                    self.directory.failed(P::LEASE, &leader, &end);
                }
                Err(failure) => {
                    tracing::debug!(lease = P::LEASE, why = failure.message(), "no leader known");
                }
            }
            let pause = self.backoff.pause();
            tokio::select! {
                () = sleep(pause) => {}
                changed = self.leaders.changed() => {
                    if changed.is_err() {
                        sleep(pause).await;
                    }
                }
            }
        }
    }

    /// One stream, from its opening to its end.
    async fn connect(&mut self, leader: &Leader) -> Status {
        let channel = match self.directory.leader_channel(P::LEASE, leader) {
            Ok(channel) => channel,
            Err(bad) => return bad.into(),
        };
        let (line, requests) = mpsc::channel(N_OUTGOING);
        if self.events.send(LinkEvent::Opening(line)).await.is_err() {
            return Status::cancelled("nobody listens");
        }
        self.leaders.mark_unchanged();
        let end = tokio::select! {
            end = pass_on::<P>(&self.directory, channel, requests, &self.events, &mut self.backoff) => end,
            () = replaced(&mut self.leaders, leader) => Status::unavailable("the leader has changed"),
        };
        // Fails only when nobody listens.
        let _ = self.events.send(LinkEvent::Closed).await;
        end
    }
}

async fn pass_on<P: Protocol>(
    directory: &Directory,
    channel: Channel,
    requests: mpsc::Receiver<P::Request>,
    events: &mpsc::Sender<LinkEvent<P>>,
    backoff: &mut Backoff,
) -> Status {
    let opening = P::call(channel, ReceiverStream::new(requests));
    let mut responses = match timeout(*directory.config().request_timeout, opening).await {
        Ok(Ok(responses)) => responses,
        Ok(Err(status)) => return status,
        Err(_elapsed) => return Status::deadline_exceeded("timeout: the stream was not opened"),
    };
    loop {
        match responses.message().await {
            Ok(Some(message)) => {
                backoff.reset();
                if events.send(LinkEvent::Message(message)).await.is_err() {
                    return Status::cancelled("nobody listens");
                }
            }
            Ok(None) => return Status::unavailable("the stream was ended"),
            Err(status) => return status,
        }
    }
}

/// Waits until state names another holder than `leader`.
async fn replaced(leaders: &mut watch::Receiver<Option<Leader>>, leader: &Leader) {
    loop {
        let other = leaders.borrow_and_update().as_ref().is_some_and(|now| {
            now.address != leader.address || (leader.epoch != Epoch(0) && now.epoch > leader.epoch)
        });
        if other {
            return;
        }
        if leaders.changed().await.is_err() {
            return pending().await;
        }
    }
}
