mod callers;
mod change_log;
mod floods;
mod permissions;
mod secure;

use std::{net::SocketAddr, time::Duration};

use godel_proto::v1::{self, state_service_client::StateServiceClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::{v1 as reflection_v1, v1alpha as reflection_v1alpha};

use crate::{
    config::ServerConfig,
    metrics::Metrics,
    status,
    telemetry::REQUEST_ID,
    tests::fake::{Fake, eventually, soon},
};

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn get_status() -> Request<v1::GetStoreStatusRequest> {
    Request::new(v1::GetStoreStatusRequest {})
}

fn watch(from_revision: u64) -> v1::WatchRequest {
    v1::WatchRequest { from_revision, kinds: vec![], ..v1::WatchRequest::default() }
}

#[tokio::test]
async fn calls_beyond_the_limit_get_a_hint_and_streams_do_not_count() {
    let fake = Fake::new();
    let config = ServerConfig {
        concurrency_limit: 1,
        retry_after: Duration::from_millis(70).into(),
        ..ServerConfig::default()
    };
    let served = fake.serve_with(any_port(), &config).await;
    let client = StateServiceClient::new(served.channel());
    // Open streams hold no slot.
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(client.clone().watch(watch(1)).await.unwrap());
    }
    fake.with(|world| world.block_status = true);
    let mut slow = client.clone();
    let slow = crate::task::spawn("slow", async move { slow.get_store_status(get_status()).await });
    eventually("the slot is taken", || fake.with(|world| (world.status_calls == 1).then_some(()))).await;
    let refusal = client.clone().get_store_status(get_status()).await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert_eq!(status::retry_after(&refusal), Some(Duration::from_millis(70)));
    assert!(status::has_reason(&refusal, status::reason::OVERLOADED));
    fake.with(|world| world.block_status = false);
    soon("the slow one", slow).await.unwrap().unwrap();
    client.clone().get_store_status(get_status()).await.unwrap();
}

#[tokio::test]
async fn deadlines_end_calls_but_not_streams() {
    let fake = Fake::new();
    let config =
        ServerConfig { request_deadline: Duration::from_millis(40).into(), ..ServerConfig::default() };
    let served = fake.serve_with(any_port(), &config).await;
    // A bare channel: no deadline of the client's.
    let bare = tonic::transport::Endpoint::from_shared(served.url()).unwrap().connect().await.unwrap();
    let mut client = StateServiceClient::new(bare);
    let mut stream = client.watch(watch(1)).await.unwrap().into_inner();
    fake.with(|world| world.block_status = true);
    let late = soon("the default deadline", client.get_store_status(get_status())).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    // The stream has been open longer than that by now.
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", stream.next()).await.unwrap().unwrap().revision, 1);

    // The caller's own deadline, longer than the default one, is respected.
    let mut request = get_status();
    request.set_timeout(Duration::from_secs(9));
    let mut patient = client.clone();
    let patient = crate::task::spawn("patient", async move { patient.get_store_status(request).await });
    let late = soon("the default deadline", client.get_store_status(get_status())).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    fake.with(|world| world.block_status = false);
    soon("the patient one", patient).await.unwrap().unwrap();
}

#[tokio::test]
async fn request_ids_are_echoed_made_and_handed_down() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let bare = tonic::transport::Endpoint::from_shared(served.url()).unwrap().connect().await.unwrap();
    let mut client = StateServiceClient::new(bare);
    let mut request = get_status();
    request.metadata_mut().insert(REQUEST_ID, "mine-7".parse().unwrap());
    let answer = client.get_store_status(request).await.unwrap();
    assert_eq!(answer.metadata().get(REQUEST_ID).unwrap(), "mine-7");
    let made = client.get_store_status(get_status()).await.unwrap();
    let made = made.metadata().get(REQUEST_ID).unwrap().to_str().unwrap().to_owned();
    assert!(uuid::Uuid::parse_str(&made).is_ok(), "{made}");
    let mut request = get_status();
    request.metadata_mut().insert(REQUEST_ID, "x".repeat(500).parse().unwrap());
    client.get_store_status(request).await.unwrap();
    let ids = fake.with(|world| world.request_ids.clone());
    assert_eq!(ids[..2], ["mine-7".to_owned(), made]);
    assert!(ids[2].len() < 100, "an id of a stranger does not fill the logs");
}

#[tokio::test]
async fn health_and_both_reflections_answer() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let mut health = HealthClient::new(served.channel());
    for service in ["", "godel.v1.StateService", "godel.v1.MemberService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "{service}");
    }
    let unknown = health.check(HealthCheckRequest { service: "x".to_owned() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    macro_rules! listed {
        ($package:ident) => {{
            use $package::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };
            let ask =
                |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
            let asked = tokio_stream::iter([
                ask(MessageRequest::ListServices(String::new())),
                ask(MessageRequest::FileContainingSymbol("godel.v1.StateService".to_owned())),
                // What the details of an error are made of.
                ask(MessageRequest::FileContainingSymbol("google.rpc.BadRequest".to_owned())),
            ]);
            let mut client = ServerReflectionClient::new(served.channel());
            let mut answers = client.server_reflection_info(asked).await.unwrap().into_inner();
            let first = answers.next().await.unwrap().unwrap().message_response.unwrap();
            let MessageResponse::ListServicesResponse(list) = first else { panic!("{first:?}") };
            let second = answers.next().await.unwrap().unwrap().message_response.unwrap();
            let MessageResponse::FileDescriptorResponse(file) = second else { panic!("{second:?}") };
            assert!(!file.file_descriptor_proto.is_empty());
            let third = answers.next().await.unwrap().unwrap().message_response.unwrap();
            assert!(matches!(third, MessageResponse::FileDescriptorResponse(_)), "{third:?}");
            let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
            names.sort();
            names
        }};
    }
    let expected = [
        "godel.v1.MemberService",
        "godel.v1.StateService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    assert_eq!(listed!(reflection_v1), expected);
    assert_eq!(listed!(reflection_v1alpha), expected);
}

#[tokio::test]
async fn a_stop_cuts_streams_within_its_grace() {
    let fake = Fake::new();
    let served = fake.serve().await;
    let mut client = StateServiceClient::new(served.channel());
    let mut stream = client.watch(watch(1)).await.unwrap().into_inner();
    let address = soon("the stop", served.kill()).await;
    assert!(soon("the end of the stream", stream.next()).await.is_none_or(|last| last.is_err()));
    // The port is free again.
    fake.serve_with(address, &ServerConfig::default()).await;
    soon("the new server", async {
        while client.get_store_status(get_status()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The body of a plain HTTP answer.
async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn calls_are_counted_by_method_and_code() {
    let fake = Fake::new();
    let metrics = Metrics::with_labels("fake", [("instance", "f1")]);
    let served = fake.serve_metered(any_port(), &ServerConfig::default(), &metrics).await;
    let stop = CancellationToken::new();
    let address = metrics.serve(any_port(), stop.clone()).await.unwrap();
    let mut client = StateServiceClient::new(served.channel());
    client.get_store_status(get_status()).await.unwrap();
    fake.with(|world| (world.floor, world.revision) = (9, 8));
    client.watch(watch(1)).await.unwrap_err();
    client.list_agent_reports(v1::ListAgentReportsRequest {}).await.unwrap_err();
    let open = client.watch(watch(9)).await.unwrap();
    let expected = [
        "godel_rpc_finished_total{service=\"fake\",instance=\"f1\",method=\"/godel.v1.StateService/GetStoreStatus\",code=\"OK\"} 1",
        "godel_rpc_finished_total{service=\"fake\",instance=\"f1\",method=\"/godel.v1.StateService/Watch\",code=\"OUT_OF_RANGE\"} 1",
        "method=\"unknown\",code=\"UNIMPLEMENTED\"} 1",
        "godel_rpc_duration_seconds_count{service=\"fake\",instance=\"f1\",method=\"/godel.v1.StateService/Watch\"} 2",
        "godel_rpc_in_flight{service=\"fake\",instance=\"f1\"} 1",
    ];
    let shown = |text: &String| expected.iter().all(|line| text.contains(line));
    eventually("the counters", || Some(metrics.encode()).filter(shown)).await;
    drop(open);
    let left = "method=\"/godel.v1.StateService/Watch\",code=\"CANCELLED\"} 1";
    eventually("the stream is over", || metrics.encode().contains(left).then_some(())).await;
    let page = get(address, "/metrics").await;
    assert!(
        page.contains("application/openmetrics-text") && page.contains("godel_rpc_finished_total"),
        "{page}"
    );
    assert!(get(address, "/healthz").await.ends_with("ok\n"));
    stop.cancel();
}
