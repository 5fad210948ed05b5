//! Calls over TLS, unix sockets and plain text, and who makes them.

use std::time::Duration;

use godel_identity::leaves::LIFETIME_MS;
use godel_proto::v1::state_service_client::StateServiceClient;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{any_port, floods::shows, get, get_status, watch};
use crate::{
    client::{Channel, channel, open},
    config::{ClientConfig, ServerConfig},
    metrics::Metrics,
    security::{Caller, ClientSecurity, ExpectedServer, Role, ServerSecurity, tests::TestCluster},
    server::{Listeners, UnixDoor, bind},
    status::{self, reason},
    tests::fake::{Fake, Served, client_config, soon},
    tls::HttpVersion,
};

/// A server as `security` says.
pub(super) async fn serve(fake: &Fake, security: ServerSecurity, config: ServerConfig) -> (Served, Metrics) {
    let metrics = Metrics::new("fake");
    let config = ServerConfig { security, stop_grace: Duration::from_millis(1).into(), ..config };
    (fake.serve_metered(any_port(), &config, &metrics).await, metrics)
}

pub(super) fn configured(security: ClientSecurity) -> ClientConfig {
    ClientConfig { security, ..client_config() }
}

pub(super) fn over_tls(served: &Served, security: ClientSecurity) -> StateServiceClient<Channel> {
    let address = format!("https://{}", served.address);
    StateServiceClient::new(channel(&address, &configured(security)).unwrap())
}

/// How a call of `client` ends.
pub(super) async fn called(client: &StateServiceClient<Channel>) -> Result<(), Status> {
    soon("an answer", client.clone().get_store_status(get_status())).await.map(drop)
}

pub(super) async fn refused(client: &StateServiceClient<Channel>) -> Status {
    called(client).await.unwrap_err()
}

pub(super) fn member(role: Role, name: &str) -> Caller {
    Caller::Member { role, name: name.to_owned() }
}

#[tokio::test]
async fn calls_over_tls_a_unix_socket_and_plain_text_have_their_callers() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("godel.sock");
    let security = cluster.server("state/main").with_plain_text();
    let stop_grace = Duration::from_millis(1).into();
    let config = ServerConfig { security, stop_grace, ..ServerConfig::default() };
    let listener = bind(any_port()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let listeners = Listeners::from(listener).and_unix(UnixDoor::bind(&path).await.unwrap());
    let metrics = Metrics::new("fake");
    let served = fake.serve_at(listeners, address, &config, &metrics);
    let scheduler = cluster.member("scheduler/s1").with_plain_text();
    let tls = format!("https://{address}");
    let without_scheme = address.to_string();
    for (address, security, caller) in [
        (&tls, scheduler.clone(), member(Role::Scheduler, "s1")),
        (&without_scheme, scheduler.clone(), member(Role::Scheduler, "s1")),
        (&tls, cluster.person(), Caller::admin()),
        (&format!("unix:{}", path.display()), ClientSecurity::default(), Caller::admin()),
        (&served.url(), ClientSecurity::default(), Caller::Unjudged),
        (&served.url(), scheduler, Caller::Unjudged),
    ] {
        let client = StateServiceClient::new(channel(address, &configured(security)).unwrap());
        called(&client).await.unwrap();
        let mut stream = client.clone().watch(watch(1)).await.unwrap().into_inner();
        let revision = fake.commit(vec![bytes::Bytes::from(vec![7; 100_000])]);
        while soon("a commit", stream.next()).await.unwrap().unwrap().revision < revision {}
        assert_eq!(fake.with(|world| world.callers.pop()), Some(caller), "{address}");
    }
    shows(&metrics, "connections_plain_text", |n| n == 0).await;
    let plain = TcpStream::connect(address).await.unwrap();
    plain.try_write(b"P").unwrap();
    shows(&metrics, "connections_plain_text", |n| n == 1).await;
    assert_eq!(metrics.plain_text_connections(), 1);
    soon("the stop", served.kill()).await;
    assert!(!path.exists());
}

#[tokio::test]
async fn without_a_certificate_of_the_cluster_nobody_calls() {
    let (fake, cluster, other) = (Fake::new(), TestCluster::new(), TestCluster::new());
    let (served, metrics) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    // A server of another cluster is none.
    let stranger = refused(&over_tls(&served, other.member("scheduler/s1"))).await;
    assert_eq!(stranger.code(), Code::Unavailable);
    assert!(stranger.message().contains("the server is not one of this cluster"), "{stranger}");
    // Nor is a client of another one.
    let foreign = ClientSecurity::new(cluster.identity(Some(other.leaf("scheduler/s1"))));
    let stranger = refused(&over_tls(&served, foreign)).await;
    assert_eq!(stranger.code(), Code::Unavailable);
    assert!(stranger.message().contains("refused our certificate"), "{stranger}");
    // Nor is another member the one that was meant.
    let binder = serve(&fake, cluster.server("binder/b"), ServerConfig::default()).await.0;
    let another = refused(&over_tls(&binder, cluster.member("scheduler/s1"))).await;
    assert!(another.message().contains("binder/b, and a server of role state was meant"), "{another}");
    shows(&metrics, "handshakes_failed_total", |n| n >= 2).await;
    // Who shows nothing may ask how the server is.
    let nobody = over_tls(&served, cluster.stranger());
    let unknown = refused(&nobody).await;
    assert_eq!(unknown.code(), Code::Unauthenticated);
    assert!(status::has_reason(&unknown, reason::NO_IDENTITY), "{unknown}");
    let address = format!("https://{}", served.address);
    let health = channel(&address, &configured(cluster.stranger())).unwrap();
    let mut health = HealthClient::new(health);
    let request = HealthCheckRequest { service: String::new() };
    assert_eq!(health.check(request).await.unwrap().into_inner().status, 1);
    let person = cluster.person();
    cluster.pass_ms(3_600_000);
    let late = refused(&over_tls(&served, person)).await;
    assert!(status::has_reason(&late, reason::BAD_TOKEN) && late.message().contains("has expired"), "{late}");
    // Made-up methods make no series.
    let mut made_up = tonic::client::Grpc::new(health_channel(&address, cluster.stranger()));
    made_up.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/made.up/Method");
    let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
    let unknown = made_up.unary(Request::new(HealthCheckRequest::default()), path, codec).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unauthenticated);
    assert!(!metrics.encode().contains("made.up") && fake.with(|world| world.status_calls) == 0);
}

fn health_channel(address: &str, security: ClientSecurity) -> Channel {
    channel(address, &configured(security)).unwrap()
}

#[tokio::test]
async fn plain_text_at_a_port_with_tls_is_answered_with_a_sentence() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, metrics) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    let client = StateServiceClient::new(served.channel());
    let refusal = refused(&client).await;
    assert_eq!(refusal.code(), Code::Unauthenticated);
    assert!(status::has_reason(&refusal, reason::TLS_REQUIRED), "{refusal}");
    assert!(refusal.message().contains(&format!("use https://{}", served.address)), "{refusal}");
    // A stream too.
    let refusal = soon("a refusal", client.clone().watch(watch(1))).await.unwrap_err();
    assert!(status::has_reason(&refusal, reason::TLS_REQUIRED), "{refusal}");
    // As curl asks.
    let page = soon("a page", get(served.address, "/")).await;
    assert!(page.starts_with("HTTP/1.1 400 ") && page.contains("this port speaks TLS"), "{page}");
    shows(&metrics, "connections_plain_text_refused_total", |n| n >= 2).await;
    assert_eq!(fake.with(|world| world.status_calls), 0);
    // And the client does not go there by itself.
    let bad = channel(&served.url(), &configured(cluster.member("scheduler/s1"))).unwrap_err();
    assert!(bad.to_string().contains("is plain text"), "{bad}");
    let bad = channel("https://127.0.0.1:1", &client_config()).unwrap_err();
    assert!(bad.to_string().contains("knows no roots"), "{bad}");
}

#[tokio::test]
async fn tls_at_a_port_without_is_refused_at_once() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, metrics) = serve(&fake, ServerSecurity::default(), ServerConfig::default()).await;
    let refusal = refused(&over_tls(&served, cluster.member("scheduler/s1"))).await;
    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(refusal.message().contains("speaks plain text, not TLS"), "{refusal}");
    shows(&metrics, "connections_tls_refused_total", |n| n == 1).await;
}

/// The first bytes of a handshake that nobody goes on with.
fn hello(cluster: &TestCluster) -> Vec<u8> {
    let config = cluster.stranger().config(&ExpectedServer::any_of(Role::State), HttpVersion::Two);
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut session = rustls::ClientConnection::new(config.unwrap(), name).unwrap();
    let mut bytes = Vec::new();
    session.write_tls(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn endless_handshakes_keep_nobody_out() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let config = ServerConfig {
        handshakes_max: 2,
        handshake_timeout: Duration::from_millis(500).into(),
        ..ServerConfig::default()
    };
    let (served, metrics) = serve(&fake, cluster.server("state/main"), config).await;
    let witness = over_tls(&served, cluster.member("binder/b"));
    let mut stream = witness.clone().watch(watch(1)).await.unwrap().into_inner();
    let hello = hello(&cluster);
    let mut flood = Vec::new();
    for n in 0..60 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        // Whole messages, and only beginnings of one.
        let bytes = if n % 2 == 0 { &hello[..] } else { &hello[..1 + n % 7] };
        stream.write_all(bytes).await.unwrap();
        flood.push(stream);
    }
    for n in 0..3 {
        // Each over a connection of its own.
        called(&over_tls(&served, cluster.member(&format!("scheduler/s{n}")))).await.unwrap();
    }
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);
    shows(&metrics, "handshakes_ended_total", |n| n == 60).await;
    called(&witness).await.unwrap();
    // As the server has left them.
    for mut stream in flood {
        let mut rest = Vec::new();
        let _ = soon("the end", stream.read_to_end(&mut rest)).await;
    }
}

#[tokio::test]
async fn handshakes_that_never_end_keep_no_connection() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let config = ServerConfig {
        idle_connections_per_address_max: 3,
        handshake_timeout: Duration::from_millis(500).into(),
        ..ServerConfig::default()
    };
    let (served, metrics) = serve(&fake, cluster.server("state/main"), config).await;
    let witness = over_tls(&served, cluster.member("binder/b"));
    let mut stream = witness.clone().watch(watch(1)).await.unwrap().into_inner();
    let hello = hello(&cluster);
    let mut flood = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        flood.push(stream);
    }
    shows(&metrics, "connections", |n| n <= 4).await;
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);
}

#[tokio::test]
async fn the_frames_above_tls_are_counted() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let config = ServerConfig { frames_per_second: 1_000, ..ServerConfig::default() };
    let (served, metrics) = serve(&fake, cluster.server("state/main"), config).await;
    let address = format!("https://{}", served.address);
    let config = configured(cluster.member("scheduler/s1"));
    let state = ExpectedServer::any_of(Role::State);
    let mut stream = open(&address, &state, &config, HttpVersion::Two).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // Settings, then pings.
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    bytes.extend([0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(2_000));
    stream.write_all(&bytes).await.unwrap();
    stream.flush().await.unwrap();
    shows(&metrics, "connections_slowed_total", |n| n == 1).await;
    called(&over_tls(&served, cluster.member("scheduler/s2"))).await.unwrap();
}

#[tokio::test]
async fn records_of_tls_that_bring_little_are_counted() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let config = ServerConfig { frames_per_second: 1_000, ..ServerConfig::default() };
    let (served, metrics) = serve(&fake, cluster.server("state/main"), config).await;
    let address = format!("https://{}", served.address);
    let config = configured(cluster.member("scheduler/s1"));
    let state = ExpectedServer::any_of(Role::State);
    let mut stream = open(&address, &state, &config, HttpVersion::Two).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    stream.write_all(&bytes).await.unwrap();
    // A frame of an unknown kind, whose content nobody looks at.
    stream.write_all(&[0, 8, 0, 0xee, 0, 0, 0, 0, 0]).await.unwrap();
    for _ in 0..2_048 {
        stream.write_all(&[7]).await.unwrap();
        stream.flush().await.unwrap();
    }
    shows(&metrics, "connections_slowed_total", |n| n == 1).await;
    called(&over_tls(&served, cluster.member("scheduler/s2"))).await.unwrap();
}

#[tokio::test]
async fn another_leaf_and_other_roots_count_for_new_connections() {
    let (fake, cluster, next) = (Fake::new(), TestCluster::new(), TestCluster::new());
    let server = cluster.process("state/main");
    let (served, _) = serve(&fake, cluster.server_of(server.clone()), ServerConfig::default()).await;
    let old = over_tls(&served, cluster.member("binder/b"));
    let mut stream = old.clone().watch(watch(1)).await.unwrap().into_inner();
    let new = || over_tls(&served, next.stranger());
    assert_eq!(refused(&new()).await.code(), Code::Unavailable);
    server.replace_own(next.leaf("state/main"));
    server.replace_trust(next.trust());
    assert_eq!(refused(&new()).await.code(), Code::Unauthenticated, "it is believed to be the server");
    called(&old).await.unwrap();
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);
    let late = refused(&over_tls(&served, cluster.member("binder/b"))).await;
    assert_eq!(late.code(), Code::Unavailable, "{late}");
}

#[tokio::test]
async fn a_revoked_leaf_ends_its_streams_and_calls() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let config = ServerConfig { idle_timeout: Duration::from_secs(1).into(), ..ServerConfig::default() };
    let (served, metrics) = serve(&fake, cluster.server("state/main"), config).await;
    let revoked = over_tls(&served, cluster.member("binder/b"));
    let other = over_tls(&served, cluster.member("scheduler/s1"));
    let mut lost = revoked.clone().watch(watch(1)).await.unwrap().into_inner();
    let mut kept = other.clone().watch(watch(1)).await.unwrap().into_inner();
    cluster.revoke("binder/b");
    assert!(soon("the end of the stream", lost.next()).await.is_none_or(|last| last.is_err()));
    let refusal = refused(&revoked).await;
    assert_eq!(refusal.code(), Code::Unauthenticated);
    assert!(status::has_reason(&refusal, reason::IDENTITY_REFUSED), "{refusal}");
    assert!(refusal.message().contains("binder/b") && refusal.message().contains("revoked"), "{refusal}");
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", kept.next()).await.unwrap().unwrap().revision, 1);
    shows(&metrics, "connections_revoked_total", |n| n >= 1).await;
    // An expired one goes on with what it has, and calls what that needs.
    cluster.pass_ms(LIFETIME_MS);
    called(&other).await.unwrap();
    let mut client = other.clone();
    let reports = client.list_agent_reports(godel_proto::v1::ListAgentReportsRequest {});
    let refusal = soon("an answer", reports).await.err().unwrap();
    assert!(status::has_reason(&refusal, reason::IDENTITY_EXPIRED), "{refusal}");
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", kept.next()).await.unwrap().unwrap().revision, 2);
}

#[tokio::test]
async fn a_renewed_leaf_is_shown_with_the_next_call_and_streams_go_on() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, _) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    let renewed = cluster.process("scheduler/old");
    let client = over_tls(&served, ClientSecurity::new(renewed.clone()));
    let mut stream = client.clone().watch(watch(1)).await.unwrap().into_inner();
    called(&client).await.unwrap();
    let first = fake.with(|world| world.connection);
    renewed.replace_own(cluster.leaf("scheduler/new"));
    // Also clones that were made before.
    for client in [&client, &client.clone()] {
        called(client).await.unwrap();
        assert_eq!(fake.with(|world| world.callers.pop()), Some(member(Role::Scheduler, "new")));
    }
    let second = fake.with(|world| world.connection);
    called(&client).await.unwrap();
    assert!(first != second && fake.with(|world| world.connection) == second, "one more connection");
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);
}
