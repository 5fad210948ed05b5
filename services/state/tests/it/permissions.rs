//! What principals may call, and until when their tokens count.

use std::sync::Arc;

use godel_identity::{needs::needs_of, permission::PersonRole};
use godel_kit::{
    CancellationToken,
    client::Channel,
    clock::SystemClock,
    security::{BearerToken, Caller, ClientSecurity, Role, ServerSecurity, Transport},
    status::{has_reason, reason},
};
use godel_proto::v1::{
    self, identity_service_client::IdentityServiceClient, state_service_client::StateServiceClient,
};
use godel_state::TlsMode;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use prost_reflect::DescriptorPool;
use tokio::sync::watch;
use tonic::{Code, Status, body::Body};
use tower::ServiceExt as _;

use crate::{
    harness::PATIENCE,
    joining::{Joiner, until},
    rights,
    tls::{SecuredState, status_of},
};

/// Paths of all methods of the API.
fn methods() -> Vec<String> {
    let pool = DescriptorPool::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap();
    let path = |method: prost_reflect::MethodDescriptor| {
        format!("/{}/{}", method.parent_service().full_name(), method.name())
    };
    pool.services().flat_map(|service| service.methods().map(path).collect::<Vec<_>>()).collect()
}

/// A principal of state, as whoever may open its socket makes it.
pub(crate) struct PeopleOfState<'a>(pub(crate) &'a SecuredState);

impl PeopleOfState<'_> {
    pub(crate) fn administrator(&self) -> IdentityServiceClient<Channel> {
        IdentityServiceClient::new(self.0.socket())
    }

    pub(crate) async fn create(
        &self,
        name: &str,
        role: &str,
        namespaces: &[&str],
    ) -> v1::CreateTokenResponse {
        let namespaces = namespaces.iter().map(|namespace| (*namespace).to_owned()).collect();
        let terms = v1::PrincipalTerms { role: role.to_owned(), namespaces, ..Default::default() };
        let request = v1::CreateTokenRequest {
            principal: name.to_owned(),
            ttl_ms: 0,
            terms: Some(terms),
            for_yarn: false,
        };
        self.administrator().create_token(request).await.unwrap().into_inner()
    }

    async fn set_role(&self, name: &str, role: &str) {
        let terms = v1::PrincipalTerms { role: role.to_owned(), ..Default::default() };
        let request = v1::SetPrincipalRequest { principal: name.to_owned(), terms: Some(terms) };
        self.administrator().set_principal(request).await.unwrap();
    }

    pub(crate) async fn revoke(&self, token_id: &str, principal: &str) -> u32 {
        let (token_id, principal) = (token_id.to_owned(), principal.to_owned());
        let request = v1::RevokeTokenRequest { token_id, principal };
        self.administrator().revoke_token(request).await.unwrap().into_inner().n_revoked
    }

    pub(crate) async fn client(&self, token: &str) -> Channel {
        let security = ClientSecurity::new(self.0.identity(None).await);
        let token = BearerToken::new(token).unwrap();
        self.0.tls(security.with_token(watch::channel(token).1))
    }

    async fn calls(&self, token: &str) -> IdentityServiceClient<Channel> {
        IdentityServiceClient::new(self.client(token).await)
    }
}

/// How a call of `path` with an empty message begins; `None`: not with its end.
async fn begin(channel: &Channel, path: &str) -> Option<Status> {
    let request = http::Request::post(format!("https://state{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        // A frame of no bytes.
        .body(Body::new("\0".repeat(5)))
        .unwrap();
    let answer = tokio::time::timeout(PATIENCE, channel.clone().oneshot(request)).await.unwrap().unwrap();
    Status::from_header_map(answer.headers())
}

#[tokio::test]
async fn every_method_is_refused_to_roles_below_its_own() {
    let (state, methods) = (SecuredState::start(TlsMode::On).await, methods());
    let expected = rights::expected();
    let least_of = |path: &str| expected[path.trim_start_matches("/godel.v1.")];
    let people = PeopleOfState(&state);
    assert!(methods.len() >= 102, "{}", methods.len());
    for role in [PersonRole::Viewer, PersonRole::User, PersonRole::Operator] {
        let made = people.create(role.as_str(), role.as_str(), &[]).await;
        let channel = people.client(&made.token).await;
        for path in &methods {
            let least = least_of(path);
            let may = least.is_some_and(|least| role >= least);
            let begun = begin(&channel, path).await;
            let is_refused = begun.as_ref().is_some_and(|status| has_reason(status, reason::NOT_ALLOWED));
            assert_eq!(is_refused, !may, "{role} {path}: {begun:?}");
            if let Some(status) = begun.filter(|_| is_refused) {
                assert_eq!(status.code(), Code::PermissionDenied);
                // What it needs is in the message.
                let least = least.map(|least| format!("needs role {least}"));
                let needs = least.unwrap_or_else(|| "needs a certificate of role".to_owned());
                assert!(status.message().contains(&needs), "{}", status.message());
            }
        }
    }
    // Whoever shows nothing calls what needs nothing.
    let nobody = state.tls(ClientSecurity::new(state.identity(None).await));
    for path in &methods {
        let begun = begin(&nobody, path).await;
        let is_unknown = begun.as_ref().is_some_and(|status| has_reason(status, reason::NO_IDENTITY));
        assert_eq!(is_unknown, needs_of(path) != godel_identity::needs::Needs::Anyone, "{path}: {begun:?}");
    }
}

#[tokio::test]
async fn a_token_says_who_calls_until_it_is_revoked() {
    let state = SecuredState::start(TlsMode::On).await;
    let people = PeopleOfState(&state);
    let made = people.create("ann", "user", &["team-a"]).await;
    let info = made.info.unwrap();
    assert_eq!(info.ends_ms - info.created_ms, 30 * 24 * 3_600_000);
    let mut ann = people.calls(&made.token).await;
    let who = ann.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
    let principal = who.principal.unwrap();
    assert_eq!((who.caller.as_str(), principal.role.as_str()), ("person/ann", "user"));
    assert_eq!((who.token_id, who.token_ends_ms), (info.token_id.clone(), info.ends_ms));
    assert_eq!(principal.namespaces, ["team-a"]);

    // It shows its own tokens, and revokes them.
    let other = people.create("bob", "viewer", &[]).await.info.unwrap();
    let listed = ann.list_tokens(v1::ListTokensRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.tokens, std::slice::from_ref(&info));
    let of_bob = v1::ListTokensRequest { principal: "bob".to_owned() };
    assert_eq!(ann.list_tokens(of_bob).await.unwrap_err().code(), Code::PermissionDenied);
    let of_bob = v1::RevokeTokenRequest { token_id: other.token_id, ..Default::default() };
    assert_eq!(ann.revoke_token(of_bob).await.unwrap_err().code(), Code::NotFound);
    // It is no session: it is not renewed, and gives no other token.
    let renewed = ann.issue_token(v1::IssueTokenRequest {}).await.unwrap_err();
    assert_eq!(renewed.code(), Code::PermissionDenied, "{renewed}");
    let own = v1::RevokeTokenRequest { token_id: info.token_id.clone(), ..Default::default() };
    assert_eq!(ann.revoke_token(own).await.unwrap().into_inner().n_revoked, 1);

    // Stolen or not, nobody calls with it any more.
    for channel in [people.client(&made.token).await, people.client(&made.token).await] {
        let refusal = status_of(channel).await.unwrap_err();
        assert!(
            has_reason(&refusal, reason::BAD_TOKEN) && refusal.message().contains("revoked"),
            "{refusal}"
        );
    }
    assert_eq!(people.revoke(&info.token_id, "").await, 0);
    let next = people.create("ann", "user", &["team-a"]).await;
    status_of(people.client(&next.token).await).await.unwrap();

    // All of it, and the principal itself.
    assert_eq!(people.revoke("", "ann").await, 1);
    assert!(status_of(people.client(&next.token).await).await.is_err());
    let next = people.create("ann", "user", &[]).await;
    status_of(people.client(&next.token).await).await.unwrap();
    let gone = v1::DeletePrincipalRequest { principal: "ann".to_owned() };
    people.administrator().delete_principal(gone).await.unwrap();
    people.create("ann", "admin", &[]).await;
    let refusal = status_of(people.client(&next.token).await).await.unwrap_err();
    assert!(has_reason(&refusal, reason::BAD_TOKEN), "{refusal}");

    // Sessions of the administrator end with all of its tokens, and the socket gives the next one.
    let session = state.token().await;
    status_of(people.client(&session).await).await.unwrap();
    people.revoke("", "admin").await;
    assert!(status_of(people.client(&session).await).await.is_err());
    status_of(people.client(&state.token().await).await).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_made_is_refused_with_what_to_do() {
    let state = SecuredState::start(TlsMode::On).await;
    let people = PeopleOfState(&state);
    people.create("ann", "user", &["a"]).await;
    let ask = async |name: &str, ttl_ms, terms: v1::PrincipalTerms| {
        let request = v1::CreateTokenRequest {
            principal: name.to_owned(),
            ttl_ms,
            terms: Some(terms),
            for_yarn: false,
        };
        people.administrator().create_token(request).await.unwrap_err()
    };
    let role = |role: &str| v1::PrincipalTerms { role: role.to_owned(), ..Default::default() };
    for (refusal, code, words) in [
        (ask("admin", 0, role("")).await, Code::FailedPrecondition, "`godel context login`"),
        (ask("ann", 0, role("operator")).await, Code::AlreadyExists, "`godel principal set ann`"),
        (ask("Ann", 0, role("")).await, Code::InvalidArgument, "principal"),
        (ask("bob", 0, role("king")).await, Code::InvalidArgument, "terms.role"),
        (ask("bob", 91 * 24 * 3_600_000, role("")).await, Code::InvalidArgument, "90 days"),
    ] {
        assert_eq!(refusal.code(), code, "{refusal}");
        let text = format!("{refusal:?}");
        assert!(text.contains(words), "{words}: {text}");
    }
    let listed = people.administrator().list_principals(v1::ListPrincipalsRequest {}).await.unwrap();
    let names: Vec<String> =
        listed.into_inner().principals.into_iter().map(|principal| principal.name).collect();
    assert_eq!(names, ["admin", "ann"]);
    let ask = async |method: &str, as_principal: &str, namespace: &str| {
        let (method, as_principal) = (method.to_owned(), as_principal.to_owned());
        let namespace = namespace.to_owned();
        let request = v1::CanIRequest { method, as_principal, namespace, ..Default::default() };
        people.administrator().can_i(request).await.map(tonic::Response::into_inner)
    };
    assert!(ask("RotateCa", "", "").await.unwrap().is_allowed);
    assert!(ask("SubmitUnit", "ann", "a").await.unwrap().is_allowed);
    let foreign = ask("SubmitUnit", "ann", "b").await.unwrap();
    assert!(!foreign.is_allowed && foreign.why.contains("in namespace b"), "{foreign:?}");
    assert!(!ask("RotateCa", "ann", "").await.unwrap().is_allowed);
    assert_eq!(ask("RotateCa", "bob", "").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(ask("Fly", "", "").await.unwrap_err().code(), Code::InvalidArgument);
    // Others ask for themselves.
    let viewer = people.create("vic", "viewer", &[]).await;
    let request = v1::CanIRequest {
        method: "ListUnits".to_owned(),
        as_principal: "ann".to_owned(),
        ..Default::default()
    };
    let refusal = people.calls(&viewer.token).await.can_i(request).await.unwrap_err();
    assert_eq!(refusal.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn an_open_stream_ends_with_the_role_that_it_needs() {
    let state = SecuredState::start(TlsMode::On).await;
    let people = PeopleOfState(&state);
    let made = people.create("ann", "admin", &[]).await;
    let mut client = StateServiceClient::new(people.client(&made.token).await);
    let request = v1::WatchRequest { from_revision: 1, ..v1::WatchRequest::default() };
    let mut stream = client.watch(request.clone()).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    people.set_role("ann", "user").await;
    let end = async {
        loop {
            if let Err(end) = stream.message().await {
                return end;
            }
        }
    };
    let end = tokio::time::timeout(PATIENCE, end).await.unwrap();
    assert!(has_reason(&end, reason::TOKEN_ENDED), "{end}");
    let refusal = client.watch(request).await.unwrap_err();
    assert!(has_reason(&refusal, reason::NOT_ALLOWED), "{refusal}");
}

/// Pages for viewers and for operators.
const METRICS: &str = "GET /metrics";
const RUN_POLICY: &str = "POST /policies/{name}/run";

#[tokio::test]
async fn services_hear_of_principals_and_of_revoked_tokens() {
    let state = SecuredState::start(TlsMode::On).await;
    let people = PeopleOfState(&state);
    let (stop, clock) = (CancellationToken::new(), SystemClock::shared());
    let service = Joiner::new(&state, Role::Dispatcher, "d1", Arc::clone(&clock));
    let service = service.with_token(&state, "dispatcher", 0o600).await.take(&stop).await.unwrap().server;
    let judged = |service: &ServerSecurity, token: &str, page| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap());
        service.judge_page(&Transport::Tls { leaf: None }, &headers, page)
    };
    let made = people.create("ann", "user", &[]).await;
    let ann = Caller::Person { name: "ann".to_owned() };
    until("the service knows ann", async || {
        judged(&service, &made.token, METRICS).is_ok_and(|caller| caller == ann)
    })
    .await;
    let lesser = judged(&service, &made.token, RUN_POLICY).unwrap_err();
    assert!(has_reason(&lesser, reason::NOT_ALLOWED), "{lesser}");
    people.set_role("ann", "operator").await;
    until("it knows the role", async || judged(&service, &made.token, RUN_POLICY).is_ok()).await;
    people.revoke(&made.info.unwrap().token_id, "").await;
    until("it refuses the token", async || judged(&service, &made.token, METRICS).is_err()).await;
}
