//! What persons may do, and what becomes of their streams when that changes.

use std::time::Duration;

use godel_identity::permission::{PersonRole, Principal};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{
    any_port,
    callers::{CALLER, InternalHeaders, ask_secured, asked, front_door},
    secure::{called, over_tls, refused, serve},
    watch,
};
use crate::{
    config::ServerConfig,
    metrics::Metrics,
    security::{Role, tests::TestCluster},
    status::{self, reason},
    tests::fake::{Fake, soon},
};

const PRINCIPAL: &str = "godel-principal";

#[tokio::test]
async fn each_role_calls_what_its_row_says() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, _) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    for role in PersonRole::ALL {
        cluster.set_principal(Principal::new("ann", role));
        let client = over_tls(&served, cluster.client_of("ann", "t1"));
        called(&client).await.unwrap();
        // Raw records are for those who see the whole cluster.
        let watched = soon("an answer", client.clone().watch(watch(1))).await.map(drop);
        if role >= PersonRole::Operator {
            watched.unwrap();
            continue;
        }
        let refusal = watched.unwrap_err();
        assert_eq!(refusal.code(), Code::PermissionDenied, "{role}: {refusal}");
        assert!(status::has_reason(&refusal, reason::NOT_ALLOWED), "{refusal}");
        let words = format!("needs role operator; ann has role {role}");
        assert!(refusal.message().contains(&words), "{refusal}");
    }
    // Nobody of that name, also with a token whose signature is right.
    let nobody = refused(&over_tls(&served, cluster.client_of("eve", "t1"))).await;
    assert!(status::has_reason(&nobody, reason::BAD_TOKEN) && nobody.message().contains("eve"), "{nobody}");
}

#[tokio::test]
async fn what_a_person_may_do_state_says_of_calls_that_it_passes_on() {
    let (cluster, stop) = (TestCluster::new(), CancellationToken::new());
    let _stop = stop.clone().drop_guard();
    let (state, dispatcher) = front_door(&cluster, &stop).await;
    let viewer = Principal::new("ann", PersonRole::Viewer);
    cluster.set_principal(viewer);
    let answer = asked(&state, Role::State, cluster.client_of("ann", "t1"), &[]).await;
    assert_eq!(answer.message(), "person/ann, token: false, forwarded: true");
    let passed_on = async |headers: InternalHeaders<'_>| {
        asked(&dispatcher, Role::Dispatcher, cluster.member("state/main"), headers).await
    };
    // Of a principal that the member has not heard of yet.
    let told = passed_on(&[(CALLER, "person/new"), (PRINCIPAL, "role=viewer")]).await;
    assert_eq!(told.code(), Code::Aborted, "{told}");
    for headers in [&[(CALLER, "person/new")][..], &[(CALLER, "person/new"), (PRINCIPAL, "role=king")]] {
        let refusal = passed_on(headers).await;
        assert_eq!(refusal.code(), Code::Unauthenticated, "{refusal}");
        assert!(status::has_reason(&refusal, reason::BAD_TOKEN), "{refusal}");
    }
    // Nobody gives it to himself.
    for url in [(&state, Role::State), (&dispatcher, Role::Dispatcher)] {
        let headers: InternalHeaders<'_> = &[(PRINCIPAL, "role=admin")];
        let refusal = asked(url.0, url.1, cluster.client_of("eve", "t1"), headers).await;
        assert!(status::has_reason(&refusal, reason::BAD_TOKEN), "{refusal}");
    }
}

#[tokio::test]
async fn a_stream_ends_when_its_role_is_taken_away_or_its_token_is_revoked() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, _) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    cluster.set_principal(Principal::new("ann", PersonRole::Admin));
    let ann = over_tls(&served, cluster.client_of("ann", "t1"));
    let admin = over_tls(&served, cluster.client_of("admin", "t9"));
    let mut kept = admin.clone().watch(watch(1)).await.unwrap().into_inner();
    let mut open = ann.clone().watch(watch(1)).await.unwrap().into_inner();
    fake.commit(vec![bytes::Bytes::new()]);
    assert_eq!(soon("a commit", open.next()).await.unwrap().unwrap().revision, 1);
    cluster.set_principal(Principal::new("ann", PersonRole::User));
    let end = soon("the end", open.next()).await.unwrap().unwrap_err();
    assert!(status::has_reason(&end, reason::TOKEN_ENDED), "{end}");
    assert!(end.message().contains("the permissions of ann have changed (open it again)"), "{end}");
    let refusal = soon("an answer", ann.clone().watch(watch(2))).await.unwrap_err();
    assert!(status::has_reason(&refusal, reason::NOT_ALLOWED), "{refusal}");
    called(&ann).await.unwrap();

    // A copy of a revoked token is worth as little as the token.
    cluster.set_principal(Principal::new("ann", PersonRole::Admin));
    let mut open = ann.clone().watch(watch(2)).await.unwrap().into_inner();
    cluster.revoke_token("t1");
    let end = soon("the end", open.next()).await.unwrap().unwrap_err();
    assert!(status::has_reason(&end, reason::TOKEN_ENDED), "{end}");
    assert!(end.message().contains("the token was revoked"), "{end}");
    for stolen in [ann, over_tls(&served, cluster.client_of("ann", "t1"))] {
        let refusal = refused(&stolen).await;
        assert!(status::has_reason(&refusal, reason::BAD_TOKEN), "{refusal}");
        assert!(refusal.message().contains("was revoked"), "{refusal}");
    }
    called(&over_tls(&served, cluster.client_of("ann", "t2"))).await.unwrap();
    fake.commit(vec![bytes::Bytes::new()]);
    let last = async { while soon("a commit", kept.next()).await.unwrap().unwrap().revision < 2 {} };
    last.await;
}

#[tokio::test]
async fn persons_are_told_to_come_back_while_state_is_silent() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let (served, _) = serve(&fake, cluster.server("state/main"), ServerConfig::default()).await;
    let person = over_tls(&served, cluster.person());
    called(&person).await.unwrap();
    cluster.silence(Duration::from_secs(60));
    let refusal = refused(&person).await;
    assert_eq!(refusal.code(), Code::Unavailable, "{refusal}");
    assert!(
        status::has_reason(&refusal, reason::STATE_SILENT) && status::is_retryable(&refusal),
        "{refusal}"
    );
    assert!(refusal.message().starts_with("state was last heard 6"), "{refusal}");
    // Processes show what they are by themselves.
    called(&over_tls(&served, cluster.member("binder/b"))).await.unwrap();
    cluster.silence(Duration::ZERO);
    called(&person).await.unwrap();
}

#[tokio::test]
async fn what_changes_anything_by_http_an_operator_asks_for() {
    let (cluster, stop) = (TestCluster::new(), CancellationToken::new());
    let _stop = stop.clone().drop_guard();
    let metrics = Metrics::new("fake");
    metrics.answer_posts(|post| Box::pin(async move { (202, format!("changed {}", post.path)) }));
    let address =
        metrics.serve_secured(any_port(), &cluster.server("state/main"), stop).await.unwrap().address;
    let url = format!("https://{address}");
    for (role, expected) in [
        (PersonRole::Viewer, "HTTP/1.1 403 Forbidden"),
        (PersonRole::User, "HTTP/1.1 403 Forbidden"),
        (PersonRole::Operator, "HTTP/1.1 202 Accepted"),
        (PersonRole::Admin, "HTTP/1.1 202 Accepted"),
    ] {
        cluster.set_principal(Principal::new("ann", role));
        let page = ask_secured(&url, "GET /metrics", cluster.client_of("ann", "t1")).await;
        assert!(page.starts_with("HTTP/1.1 200 OK"), "{role}: {page}");
        let page = ask_secured(&url, "POST /policies/spread/run", cluster.client_of("ann", "t1")).await;
        assert!(page.starts_with(expected), "{role}: {page}");
    }
}
