//! By whom calls are judged, whatever comes with them, and until when.

use std::{
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};

use godel_identity::leaves::LIFETIME_MS;
use godel_membership::front_door::ServingPart;
use godel_proto::v1::{self, queue_service_client::QueueServiceClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync,
};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status, body::Body};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    super::layers::ForwardedFrom,
    any_port, get,
    secure::{called, configured, over_tls, refused, serve},
    watch,
};
use crate::{
    client::{channel, channel_to, open},
    config::ServerConfig,
    metrics::Metrics,
    security::{
        BearerToken, Caller, ClientSecurity, ExpectedServer, Role, ServerSecurity, tests::TestCluster,
    },
    server::{ForwardTo, Server, bind},
    status::{self, reason},
    tests::fake::{Fake, soon},
    tls::HttpVersion,
};

/// Says in its answer by whom a call was judged.
#[derive(Clone)]
struct WhoCalls;

impl tonic::server::NamedService for WhoCalls {
    const NAME: &'static str = "godel.v1.QueueService";
}

impl tower::Service<http::Request<Body>> for WhoCalls {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<http::Response<Body>, std::convert::Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), std::convert::Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let caller = request.extensions().get::<Caller>().map(ToString::to_string).unwrap_or_default();
        let token = request.headers().contains_key("authorization");
        let forwarded = request.extensions().get::<ForwardedFrom>().is_some();
        let said = format!("{caller}, token: {token}, forwarded: {forwarded}");
        ready(Ok(Status::aborted(said).into_http()))
    }
}

/// Every call goes to one address.
struct OneMember(String);

impl ForwardTo for OneMember {
    fn address(&self, _: ServingPart, _: Option<&str>) -> Result<String, Status> {
        Ok(self.0.clone())
    }
}

/// Serves calls that are forwarded to a dispatcher, and says where both are.
pub(super) async fn front_door(cluster: &TestCluster, stop: &CancellationToken) -> (String, String) {
    let mut urls = Vec::new();
    for key in ["dispatcher/d", "state/main"] {
        let config = ServerConfig { security: cluster.server(key), ..ServerConfig::default() };
        let server = Server::new(&config, &Metrics::new("fake"));
        let server = match urls.first() {
            None => server.add(WhoCalls),
            Some(dispatcher) => server.forward(Arc::new(OneMember(String::clone(dispatcher))), 8),
        };
        let listener = bind(any_port()).await.unwrap();
        urls.push(format!("https://{}", listener.local_addr().unwrap()));
        let stop = stop.clone();
        crate::task::spawn("server", async move { server.serve(listener, stop).await.unwrap() });
    }
    (urls.pop().unwrap(), urls.pop().unwrap())
}

/// Headers that servers of godel send each other.
pub(super) type InternalHeaders<'a> = &'a [(&'static str, &'static str)];

/// What [`WhoCalls`] answers at `url`, or why it is not asked.
pub(super) async fn asked(
    url: &str,
    role: Role,
    security: ClientSecurity,
    headers: InternalHeaders<'_>,
) -> Status {
    let channel = channel_to(&ExpectedServer::any_of(role), url, &configured(security)).unwrap();
    let mut client = QueueServiceClient::new(channel);
    let mut request = Request::new(v1::ListQueuesRequest::default());
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    soon("an answer", client.list_queues(request)).await.unwrap_err()
}

pub(super) const CALLER: &str = "godel-caller";
const FORWARDED: &str = "godel-forwarded";

#[tokio::test]
async fn nobody_but_state_says_who_calls() {
    let (cluster, stop) = (TestCluster::new(), CancellationToken::new());
    let _stop = stop.clone().drop_guard();
    let (state, dispatcher) = front_door(&cluster, &stop).await;
    let by_state =
        async |security, headers: InternalHeaders<'_>| asked(&state, Role::State, security, headers).await;
    let direct = async |security, headers: InternalHeaders<'_>| {
        asked(&dispatcher, Role::Dispatcher, security, headers).await
    };
    let answer = by_state(cluster.person(), &[]).await;
    assert_eq!(
        (answer.code(), answer.message()),
        (Code::Aborted, "person/admin, token: false, forwarded: true")
    );
    let answer = direct(cluster.person(), &[]).await;
    assert_eq!(
        (answer.code(), answer.message()),
        (Code::Aborted, "person/admin, token: true, forwarded: false")
    );
    // What its own leaf does not allow, nobody gets by naming another one, or a client of another one.
    for agent in
        [by_state(cluster.member("agent/n1"), &[]).await, direct(cluster.member("agent/n1"), &[]).await]
    {
        assert_eq!(agent.code(), Code::PermissionDenied, "{agent}");
        assert!(status::has_reason(&agent, reason::NOT_ALLOWED));
    }
    for security in [
        cluster.member("agent/n1"),
        cluster.member("scheduler/s1"),
        cluster.member("dispatcher/d"),
        cluster.person(),
        cluster.stranger(),
    ] {
        for header in [(CALLER, "person/admin"), (FORWARDED, "7")] {
            for forged in
                [by_state(security.clone(), &[header]).await, direct(security.clone(), &[header]).await]
            {
                assert_eq!(forged.code(), Code::PermissionDenied, "{forged}");
                assert!(status::has_reason(&forged, reason::FORGED_CALLER), "{forged}");
                assert!(forged.message().contains(header.0), "{forged}");
            }
        }
    }
    // State's word counts, and no more than who it names may do.
    let passed_on =
        async |named| direct(cluster.member("state/main"), &[(CALLER, named), (FORWARDED, "7")]).await;
    assert_eq!(passed_on("person/admin").await.message(), "person/admin, token: false, forwarded: true");
    assert_eq!(passed_on("agent/n1").await.code(), Code::PermissionDenied);
    assert_eq!(passed_on("anonymous").await.code(), Code::Unauthenticated);
    assert!(status::has_reason(&passed_on("root").await, reason::FORGED_CALLER));
    cluster.pass_ms(LIFETIME_MS);
    let late = passed_on("person/admin").await;
    assert!(status::has_reason(&late, reason::IDENTITY_EXPIRED), "{late}");
    // That the leaf of state has expired is no fault of the caller's: the call may be made again.
    let late = by_state(cluster.person(), &[]).await;
    assert!(late.message().contains("state/main has expired") && status::is_retryable(&late), "{late}");
}

#[tokio::test]
async fn in_plain_text_nobody_says_who_calls() {
    let (cluster, stop) = (TestCluster::new(), CancellationToken::new());
    let _stop = stop.clone().drop_guard();
    let headers: InternalHeaders<'_> = &[(CALLER, "person/admin"), (FORWARDED, "7")];
    for (security, said) in [
        (cluster.server("dispatcher/d").with_plain_text(), "unjudged, token: false, forwarded: false"),
        // Where nobody is told apart, state forwards in plain text too.
        (ServerSecurity::default(), "unjudged, token: false, forwarded: true"),
    ] {
        let config = ServerConfig { security, ..ServerConfig::default() };
        let server = Server::new(&config, &Metrics::new("fake")).add(WhoCalls);
        let listener = bind(any_port()).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = stop.clone();
        crate::task::spawn("server", async move { server.serve(listener, stop).await.unwrap() });
        let answer = asked(&url, Role::Dispatcher, ClientSecurity::default(), headers).await;
        assert_eq!(answer.message(), said);
    }
}

#[test]
fn a_request_that_came_through_no_server_is_nobodys() {
    assert_eq!(*crate::security::caller(&Request::new(())), Caller::Anonymous);
}

/// What a page answers over TLS.
pub(super) async fn ask_secured(url: &str, request: &str, security: ClientSecurity) -> String {
    let token = security.token().map(|token| token.borrow().header());
    let token = token.map(|token| format!("Authorization: {}\r\n", token.to_str().unwrap()));
    let state = ExpectedServer::any_of(Role::State);
    let mut stream = open(url, &state, &configured(security), HttpVersion::One).await.unwrap();
    let request =
        format!("{request} HTTP/1.1\r\nHost: x\r\n{}Connection: close\r\n\r\n", token.unwrap_or_default());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon("the page", stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn metrics_need_an_identity_changes_a_person_and_health_nothing() {
    let (cluster, stop) = (TestCluster::new(), CancellationToken::new());
    let _stop = stop.clone().drop_guard();
    let security = cluster.server("state/main");
    let metrics = Metrics::new("fake");
    metrics.answer_posts(|post| Box::pin(async move { (202, format!("changed {}", post.path)) }));
    let address = metrics.serve_secured(any_port(), &security, stop).await.unwrap().address;
    let url = format!("https://{address}");
    let ok = "HTTP/1.1 200 OK";
    let (unknown, forbidden) = ("HTTP/1.1 401 Unauthorized", "HTTP/1.1 403 Forbidden");
    for (request, security, expected) in [
        ("GET /healthz", cluster.stranger(), ok),
        ("GET /healthz", cluster.member("agent/n1"), ok),
        ("GET /healthz", ClientSecurity::unverified(), ok),
        ("GET /metrics", cluster.member("agent/n1"), ok),
        ("GET /metrics", cluster.person(), ok),
        ("GET /metrics", cluster.stranger(), unknown),
        ("GET /metrics", ClientSecurity::unverified(), unknown),
        ("GET /", cluster.stranger(), unknown),
        ("GET /", cluster.member("agent/n1"), forbidden),
        ("GET /", cluster.person(), "HTTP/1.1 404 Not Found"),
        ("POST /x", cluster.stranger(), unknown),
        ("POST /x", cluster.member("agent/n1"), forbidden),
        ("POST /x", cluster.member("state/main"), forbidden),
        ("DELETE /metrics", cluster.member("agent/n1"), forbidden),
        ("POST /x", cluster.person(), "HTTP/1.1 202 Accepted"),
    ] {
        let page = ask_secured(&url, request, security).await;
        assert!(page.starts_with(expected), "{request}: {page}");
    }
    let page = soon("a page", get(address, "/metrics")).await;
    assert!(page.starts_with("HTTP/1.1 400 ") && page.contains("use https://"), "{page}");
    cluster.revoke("agent/n1");
    let page = ask_secured(&url, "GET /metrics", cluster.member("agent/n1")).await;
    assert!(page.starts_with("HTTP/1.1 401") && page.contains("revoked"), "{page}");
}

#[tokio::test]
async fn a_token_that_does_not_count_refuses_no_call_that_needs_none() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, _) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    let address = format!("https://{}", served.address);
    let made_up = BearerToken::new("made.up.token").unwrap();
    for token in [made_up, cluster.token_for(0)] {
        let security = cluster.stranger().with_token(sync::watch::channel(token).1);
        let mut health = HealthClient::new(channel(&address, &configured(security.clone())).unwrap());
        let request = HealthCheckRequest { service: String::new() };
        assert_eq!(health.check(request.clone()).await.unwrap().into_inner().status, 1);
        let mut followed = health.watch(request).await.unwrap().into_inner();
        assert_eq!(soon("the health", followed.next()).await.unwrap().unwrap().status, 1);
        // Whatever else it calls is judged by the token.
        let refusal = refused(&over_tls(&served, security)).await;
        assert!(status::has_reason(&refusal, reason::BAD_TOKEN), "{refusal}");
    }
}

#[tokio::test]
async fn a_persons_stream_ends_with_its_token_and_goes_on_with_the_next() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let config = ServerConfig { idle_timeout: Duration::from_secs(1).into(), ..ServerConfig::default() };
    let (served, _) = serve(&fake, cluster.server("state/main"), config).await;
    let (newer, shown) = sync::watch::channel(cluster.token_for(60_000));
    let person = over_tls(&served, cluster.stranger().with_token(shown));
    let process = over_tls(&served, cluster.member("binder/b"));
    let mut ended = person.clone().watch(watch(1)).await.unwrap().into_inner();
    let mut kept = process.clone().watch(watch(1)).await.unwrap().into_inner();
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", ended.next()).await.unwrap().unwrap().revision, 1);
    cluster.pass_ms(59_000);
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", ended.next()).await.unwrap().unwrap().revision, 2);
    cluster.pass_ms(1_000);
    let end = soon("the end", ended.next()).await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unauthenticated);
    assert!(status::has_reason(&end, reason::TOKEN_ENDED) && status::is_retryable_idempotent(&end), "{end}");
    assert!(end.message().contains("has expired") && end.message().contains("log in again"), "{end}");
    // The same token opens no other one; the next one does.
    let refusal = soon("an answer", person.clone().watch(watch(3))).await.unwrap_err();
    assert!(status::has_reason(&refusal, reason::BAD_TOKEN), "{refusal}");
    assert!(!status::is_retryable_idempotent(&refusal));
    newer.send_replace(cluster.token_for(60_000));
    let mut next = person.clone().watch(watch(3)).await.unwrap().into_inner();
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", next.next()).await.unwrap().unwrap().revision, 3);
    // A key that goes ends the tokens that it signed.
    cluster.drop_token_keys();
    let end = soon("the end", next.next()).await.unwrap().unwrap_err();
    assert!(status::has_reason(&end, reason::TOKEN_ENDED), "{end}");
    assert!(end.message().contains("is not one of the cluster any more"), "{end}");
    let last = async { while soon("a commit", kept.next()).await.unwrap().unwrap().revision < 3 {} };
    last.await;
}

#[tokio::test]
async fn refused_client_answers_most_of_its_calls_itself_until_it_has_another_leaf() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, _) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    let identity = cluster.process("binder/b");
    let client = over_tls(&served, ClientSecurity::new(identity.clone()));
    called(&client).await.unwrap();
    cluster.revoke("binder/b");
    let mut refusals = Vec::new();
    while refusals.len() < 50 {
        let refusal = refused(&client).await;
        // The connection may end first.
        if status::has_reason(&refusal, reason::IDENTITY_REFUSED) {
            assert!(refusal.message().contains("its name is revoked"), "{refusal}");
            refusals.push(refusal);
        }
    }
    let n_asked = refusals.iter().filter(|refusal| status::retry_after(refusal).is_none()).count();
    assert!((1..25).contains(&n_asked), "{n_asked}");
    // What needs nothing is asked for all the same.
    let (address, config) =
        (format!("https://{}", served.address), configured(ClientSecurity::new(identity.clone())));
    let mut health = HealthClient::new(channel(&address, &config).unwrap());
    health.check(HealthCheckRequest { service: String::new() }).await.unwrap();
    cluster.forget_revocation("binder/b");
    identity.replace_own(cluster.leaf("binder/b"));
    called(&client).await.unwrap();
}
