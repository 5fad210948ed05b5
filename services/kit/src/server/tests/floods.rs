//! What one connection cannot do to the others.

use std::{net::SocketAddr, time::Duration};

use godel_proto::{
    codec::GodelCodec,
    v1::{
        self, member_service_client::MemberServiceClient, queue_service_client::QueueServiceClient,
        state_service_client::StateServiceClient,
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;

use super::{any_port, get_status, watch};
use crate::{
    config::ServerConfig,
    metrics::Metrics,
    status,
    tests::fake::{Fake, Served, eventually, soon},
};

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;

/// A client that speaks HTTP/2 as it likes.
struct Raw {
    stream: TcpStream,
    next: u32,
}

fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(content);
    bytes
}

/// Headers of a call, each as it is.
fn head(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "x"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "99999999H"),
    ];
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(u8::try_from(text.len()).unwrap());
            bytes.extend(text.bytes());
        }
    }
    bytes
}

impl Raw {
    async fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        hello.extend(frame(SETTINGS, 0, 0, &[]));
        stream.write_all(&hello).await.unwrap();
        Self { stream, next: 1 }
    }

    /// The id of the next stream.
    fn id(&mut self) -> u32 {
        let id = self.next;
        self.next += 2;
        id
    }

    /// Sends unless the server has closed.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Frames until one of `kind`: its content. `None` when the server closes first.
    async fn until(&mut self, kind: u8) -> Option<Vec<u8>> {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut content = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut content).await.ok()?;
            if head[3] == kind {
                return Some(content);
            }
        }
    }
}

/// A server, and what its metrics say.
async fn served(fake: &Fake, config: ServerConfig) -> (Served, Metrics) {
    let metrics = Metrics::new("fake");
    let config = ServerConfig { stop_grace: Duration::from_millis(1).into(), ..config };
    (fake.serve_metered(any_port(), &config, &metrics).await, metrics)
}

/// Waits until a metric without further labels has a value.
pub(super) async fn shows(metrics: &Metrics, name: &str, is: impl Fn(u64) -> bool) {
    let line = format!("godel_{name}{{service=\"fake\"}} ");
    let value = || metrics.encode().lines().find_map(|found| found.strip_prefix(&line)?.parse().ok());
    eventually(name, || value().filter(|value: &u64| is(*value))).await;
}

async fn is_answered(served: &Served) {
    let mut client = StateServiceClient::new(served.channel());
    soon("another's call", client.get_store_status(get_status())).await.unwrap();
}

#[tokio::test]
async fn streams_that_are_reset_at_once_end_their_connection() {
    let fake = Fake::new();
    let (served, metrics) = served(&fake, ServerConfig::default()).await;
    let mut raw = Raw::connect(served.address).await;
    let head = head("/godel.v1.StateService/GetStoreStatus");
    let mut bytes = Vec::new();
    for _ in 0..1_000 {
        let id = raw.id();
        bytes.extend(frame(HEADERS, END_HEADERS, id, &head));
        bytes.extend(frame(RESET, 0, id, &8u32.to_be_bytes()));
    }
    raw.send(&bytes).await;
    let content = soon("the end of the connection", raw.until(GO_AWAY)).await.unwrap();
    assert_eq!(content[4..8], ENHANCE_YOUR_CALM.to_be_bytes());
    shows(&metrics, "connections_ended_total", |n| n == 1).await;
    is_answered(&served).await;
}

#[tokio::test]
async fn dropping_many_sessions_leaves_the_connection_open() {
    let fake = Fake::new();
    let (served, metrics) = served(&fake, ServerConfig::default()).await;
    let client = StateServiceClient::new(served.channel());
    let mut witness = client.clone().watch(watch(1)).await.unwrap().into_inner();
    let mut streams = Vec::new();
    for _ in 0..2_000 {
        streams.push(client.clone().watch(watch(1)).await.unwrap());
    }
    drop(streams);
    shows(&metrics, "rpc_in_flight", |n| n == 1).await;
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", witness.next()).await.unwrap().unwrap().revision, 1);
    shows(&metrics, "connections", |n| n == 1).await;
}

#[tokio::test]
async fn calls_without_a_message_hold_no_slot_and_are_few() {
    let fake = Fake::new();
    let config = ServerConfig { concurrency_limit: 2, messages_waiting_max: 16, ..ServerConfig::default() };
    let (served, metrics) = served(&fake, config).await;
    let mut raw = Raw::connect(served.address).await;
    for path in ["/godel.v1.StateService/GetStoreStatus", "/godel.v1.StateService/Watch"] {
        let head = head(path);
        for _ in 0..50 {
            let id = raw.id();
            assert!(raw.send(&frame(HEADERS, END_HEADERS, id, &head)).await);
        }
    }
    // Half of the places for the one connection, whatever it calls.
    shows(&metrics, "rpc_shed_total", |n| n == 92).await;
    is_answered(&served).await;
    let mut client = MemberServiceClient::new(served.channel());
    soon("a lease", client.list_members(v1::ListMembersRequest::default())).await.unwrap();
}

#[tokio::test]
async fn a_message_is_waited_for_so_long_and_no_longer() {
    let fake = Fake::new();
    let config =
        ServerConfig { message_timeout: Duration::from_millis(20).into(), ..ServerConfig::default() };
    let (served, metrics) = served(&fake, config).await;
    let mut raw = Raw::connect(served.address).await;
    for path in ["/godel.v1.StateService/GetStoreStatus", "/godel.v1.StateService/Watch"] {
        let id = raw.id();
        assert!(raw.send(&frame(HEADERS, END_HEADERS, id, &head(path))).await);
        soon("an answer", raw.until(HEADERS)).await.unwrap();
        let line = format!("method=\"{path}\",code=\"DEADLINE_EXCEEDED\"}} 1");
        eventually("the refusal", || metrics.encode().contains(&line).then_some(())).await;
    }
    // Whoever has sent the message may take as long as the deadline lets it.
    fake.with(|world| world.block_status = true);
    let mut client = StateServiceClient::new(served.channel());
    let slow = crate::task::spawn("slow", async move { client.get_store_status(get_status()).await });
    eventually("it is at work", || fake.with(|world| (world.status_calls == 1).then_some(()))).await;
    let mut late = Raw::connect(served.address).await;
    let id = late.id();
    late.send(&frame(HEADERS, END_HEADERS, id, &head("/godel.v1.StateService/Watch"))).await;
    soon("the other's refusal", late.until(HEADERS)).await.unwrap();
    fake.with(|world| world.block_status = false);
    soon("the slow one", slow).await.unwrap().unwrap();
}

#[tokio::test]
async fn one_connection_holds_half_of_the_slots_at_most() {
    let fake = Fake::new();
    let config = ServerConfig { concurrency_limit: 4, ..ServerConfig::default() };
    let (served, metrics) = served(&fake, config).await;
    fake.with(|world| world.block_status = true);
    let slow = |served: &Served| {
        let mut client = StateServiceClient::new(served.channel());
        async move { client.get_store_status(get_status()).await }
    };
    let mut greedy = tokio::task::JoinSet::new();
    let client = StateServiceClient::new(served.channel());
    for _ in 0..6 {
        let mut client = client.clone();
        greedy.spawn(async move { client.get_store_status(get_status()).await });
    }
    shows(&metrics, "rpc_shed_total", |n| n == 4).await;
    let other = crate::task::spawn("other", slow(&served));
    eventually("another gets in", || fake.with(|world| (world.status_calls == 3).then_some(()))).await;
    let third = crate::task::spawn("third", slow(&served));
    eventually("and one more", || fake.with(|world| (world.status_calls == 4).then_some(()))).await;
    let refused = soon("a refusal", slow(&served)).await.unwrap_err();
    assert!(status::has_reason(&refused, status::reason::OVERLOADED), "{refused}");
    // All slots are taken: leases and streams do not care.
    let mut members = MemberServiceClient::new(served.channel());
    soon("a lease", members.list_members(v1::ListMembersRequest::default())).await.unwrap();
    soon("a stream", client.clone().watch(watch(1))).await.unwrap();
    fake.with(|world| world.block_status = false);
    soon("the other", other).await.unwrap().unwrap();
    soon("the third", third).await.unwrap().unwrap();
    let answers = soon("all", greedy.join_all()).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2);
}

#[tokio::test]
async fn no_caller_gives_itself_a_longer_deadline_than_there_is() {
    let fake = Fake::new();
    let config =
        ServerConfig { request_deadline_max: Duration::from_millis(20).into(), ..ServerConfig::default() };
    let (served, _) = served(&fake, config).await;
    fake.with(|world| world.block_status = true);
    let mut request = get_status();
    request.set_timeout(Duration::from_secs(3_600));
    let mut client = StateServiceClient::new(served.channel());
    let late = soon("the longest deadline", client.get_store_status(request)).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn connections_without_a_call_are_closed_and_others_are_not() {
    let fake = Fake::new();
    let config = ServerConfig { idle_timeout: Duration::from_millis(30).into(), ..ServerConfig::default() };
    let (served, metrics) = served(&fake, config).await;
    let mut client = StateServiceClient::new(served.channel());
    let mut stream = client.watch(watch(1)).await.unwrap().into_inner();
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    let mut rest = Vec::new();
    soon("the end of the silent one", silent.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
    // Who speaks HTTP/2 is told.
    let mut raw = Raw::connect(served.address).await;
    let content = soon("the farewell", raw.until(GO_AWAY)).await.unwrap();
    assert_eq!(content[4..8], [0; 4], "in good order");
    shows(&metrics, "connections_closed_idle_total", |n| n >= 2).await;
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);
    // A client whose connection was closed opens another.
    drop(stream);
    shows(&metrics, "connections", |n| n == 0).await;
    soon("a new connection", client.get_store_status(get_status())).await.unwrap();
}

#[tokio::test]
async fn of_one_address_only_so_many_connections_stay_idle() {
    let fake = Fake::new();
    let config = ServerConfig { idle_connections_per_address_max: 3, ..ServerConfig::default() };
    let (served, metrics) = served(&fake, config).await;
    let mut client = StateServiceClient::new(served.channel());
    let mut stream = client.watch(watch(1)).await.unwrap().into_inner();
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(TcpStream::connect(served.address).await.unwrap());
    }
    shows(&metrics, "connections", |n| n == 4).await;
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);
}

#[tokio::test]
async fn floods_of_pings_are_read_slowly_and_continuations_refused() {
    let fake = Fake::new();
    let config = ServerConfig { frames_per_second: 1_000, ..ServerConfig::default() };
    let (served, metrics) = served(&fake, config).await;
    for (kind, content) in [(PING, vec![0; 8]), (SETTINGS, vec![])] {
        let mut raw = Raw::connect(served.address).await;
        let slowed = |n: u64| move |now: u64| now == n;
        let n = if kind == PING { 1 } else { 2 };
        let bytes = frame(kind, 0, 0, &content).repeat(2_000);
        assert!(raw.send(&bytes).await);
        shows(&metrics, "connections_slowed_total", slowed(n)).await;
        is_answered(&served).await;
    }
    let mut raw = Raw::connect(served.address).await;
    let id = raw.id();
    raw.send(&frame(HEADERS, 0, id, &head("/x.Y/Z"))).await;
    let more = frame(CONTINUATION, 0, id, &[0; 0]).repeat(20_000);
    raw.send(&more).await;
    let mut rest = Vec::new();
    let ended = soon("the end of the connection", raw.stream.read_to_end(&mut rest)).await;
    assert!(ended.is_err() || !rest.is_empty(), "closed by the server");
    is_answered(&served).await;
}

#[tokio::test]
async fn streams_that_nobody_reads_wait_by_themselves() {
    let fake = Fake::new();
    let (served, _) = served(&fake, ServerConfig::default()).await;
    let client = StateServiceClient::new(served.channel());
    let mut unread = Vec::new();
    for _ in 0..50 {
        unread.push(client.clone().watch(watch(1)).await.unwrap());
    }
    for _ in 0..50 {
        fake.commit(vec![bytes::Bytes::from(vec![0; 64 * 1024])]);
    }
    // A connection of its own, as another client has.
    let mut other = StateServiceClient::new(served.channel()).watch(watch(1)).await.unwrap().into_inner();
    for revision in 1..=50 {
        assert_eq!(soon("a commit", other.next()).await.unwrap().unwrap().revision, revision);
    }
    is_answered(&served).await;
    drop(unread);
}

#[tokio::test]
async fn what_cannot_be_decoded_is_the_callers_fault() {
    let fake = Fake::new();
    let (served, metrics) = served(&fake, ServerConfig::default()).await;
    let mut grpc = tonic::client::Grpc::new(served.channel());
    // A text where the revision should be.
    let wrong = HealthCheckRequest { service: "x".to_owned() };
    let path = http::uri::PathAndQuery::from_static("/godel.v1.StateService/Watch");
    grpc.ready().await.unwrap();
    let codec = GodelCodec::<HealthCheckRequest, v1::WatchResponse>::default();
    let refused = grpc.server_streaming(Request::new(wrong), path, codec).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().starts_with("not a valid godel.v1.WatchRequest: "), "{refused}");

    let mut raw = Raw::connect(served.address).await;
    let id = raw.id();
    let mut bytes = frame(HEADERS, END_HEADERS, id, &head("/godel.v1.StateService/GetStoreStatus"));
    // The end of the stream, in the middle of a message.
    bytes.extend(frame(0, 1, id, &[0, 0, 0, 0, 9, 1]));
    raw.send(&bytes).await;
    soon("a refusal", raw.until(HEADERS)).await.unwrap();
    let line = "method=\"/godel.v1.StateService/GetStoreStatus\",code=\"INVALID_ARGUMENT\"} 1";
    eventually("the refusal", || metrics.encode().contains(line).then_some(())).await;
}

#[tokio::test]
async fn what_is_not_served_here_is_answered_with_words() {
    let fake = Fake::new();
    let (served, _) = served(&fake, ServerConfig::default()).await;
    let mut queues = QueueServiceClient::new(served.channel());
    let refused = queues.list_queues(v1::ListQueuesRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("is served by the dispatcher"), "{refused}");
}
