//! What servers note of calls that they refuse, for the change log.

use godel_domain::change_line::ChangeLine;
use godel_identity::permission::{PersonRole, Principal};
use tokio_util::sync::CancellationToken;

use super::{
    callers::{CALLER, InternalHeaders, asked, front_door},
    secure::{called, over_tls, refused, serve},
    watch,
};
use crate::{
    config::ServerConfig,
    security::{
        BearerToken, CallObject, ClientSecurity, PersonCall, Role, ServerSecurity, tests::TestCluster,
    },
    tests::fake::{Fake, soon},
};

const ADDRESS: &str = "godel-address";

/// Lines as principal, method, reason and number of calls, in order.
fn noted(security: &ServerSecurity) -> Vec<String> {
    let lines = security.call_log().unwrap().take(100, u64::MAX);
    let text = |line: ChangeLine| {
        let method = line.call.method.rsplit('/').next().unwrap().to_owned();
        format!("{} {method} {} {}", line.call.principal, line.refused, line.n_calls)
    };
    let mut texts: Vec<String> = lines.into_iter().map(text).collect();
    texts.sort();
    texts
}

fn with_token(cluster: &TestCluster, token: BearerToken) -> ClientSecurity {
    cluster.stranger().with_token(tokio::sync::watch::channel(token).1)
}

#[tokio::test]
async fn refused_calls_are_noted_by_who_proved_to_be_there_and_why() {
    let (fake, cluster) = (Fake::new(), TestCluster::new());
    let security = cluster.server("state/main");
    let (served, _) = serve(&fake, security.clone(), ServerConfig::default()).await;
    cluster.set_principal(Principal::new("ann", PersonRole::Viewer));
    let ann = over_tls(&served, cluster.client_of("ann", "t1"));
    called(&ann).await.unwrap();
    assert_eq!(noted(&security), [""; 0], "what is allowed is not noted here");
    for _ in 0..3 {
        soon("an answer", ann.clone().watch(watch(1))).await.unwrap_err();
    }
    let other = TestCluster::new();
    let expired = cluster.token_of("ann", "t2", 0);
    let tampered = {
        let token = cluster.token_of("ann", "t3", 60_000).header();
        let text = token.to_str().unwrap().trim_start_matches("Bearer ").to_owned();
        let (signed, signature) = text.rsplit_once('.').unwrap();
        let flipped = if signature.starts_with('A') { 'B' } else { 'A' };
        BearerToken::new(&format!("{signed}.{flipped}{}", &signature[1..])).unwrap()
    };
    for token in
        [expired, tampered, other.token_of("ann", "t4", 60_000), cluster.token_of("eve", "t5", 60_000)]
    {
        refused(&over_tls(&served, with_token(&cluster, token))).await;
    }
    cluster.revoke_token("t1");
    refused(&ann).await;
    refused(&over_tls(&served, cluster.stranger())).await;
    // A process is none of the change log's.
    let agent = over_tls(&served, cluster.member("agent/n1"));
    soon("an answer", agent.clone().watch(watch(1))).await.unwrap_err();
    assert_eq!(
        noted(&security),
        [
            "ann GetStoreStatus expired token 1",
            "ann GetStoreStatus revoked token 1",
            "ann Watch role 3",
            "eve GetStoreStatus no such principal 1",
            "unknown GetStoreStatus no token 1",
            "unknown GetStoreStatus token of another key 1",
            "unknown GetStoreStatus token with a wrong signature 1",
        ]
    );
}

#[tokio::test]
async fn a_call_comes_from_where_state_says_and_from_nowhere_else() {
    let (cluster, stop) = (TestCluster::new(), CancellationToken::new());
    let _stop = stop.clone().drop_guard();
    let (state, dispatcher) = front_door(&cluster, &stop).await;
    let log = cluster.server("state/main");
    let address = || {
        let lines = log.call_log().unwrap().take(9, u64::MAX);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines[0].call.address.clone()
    };
    let headers: InternalHeaders<'_> = &[(CALLER, "person/new"), (ADDRESS, "10.9.8.7:6")];
    asked(&dispatcher, Role::Dispatcher, cluster.member("state/main"), headers).await;
    assert_eq!(address(), "10.9.8.7:6");
    // Whoever else sends it came from where it came from.
    let forged: InternalHeaders<'_> = &[(ADDRESS, "10.9.8.7:6")];
    for (url, role) in [(&state, Role::State), (&dispatcher, Role::Dispatcher)] {
        asked(url, role, cluster.client_of("eve", "t1"), forged).await;
        assert!(address().starts_with("127.0.0.1:"));
    }
}

#[tokio::test]
async fn what_a_call_is_about_is_noted_where_it_is_refused() {
    let cluster = TestCluster::new();
    let security = cluster.server("dispatcher/d");
    let ann = std::sync::Arc::new(Principal::new("ann", PersonRole::User));
    let call =
        PersonCall::new(ann, "/godel.v1.UnitService/CancelUnit").with_origin(security.origin("10.0.0.1:7"));
    let foreign = CallObject { namespace: Some("team-b"), ..CallObject::default() };
    assert!(!call.may(&foreign));
    assert!(security.call_log().unwrap().take(9, u64::MAX).is_empty(), "nothing was refused");
    call.check(&foreign).unwrap_err();
    let lines = security.call_log().unwrap().take(9, u64::MAX);
    assert_eq!((lines.len(), lines[0].refused.as_str()), (1, "namespace"));
    let cause = &lines[0].call;
    assert_eq!((cause.objects[0].as_str(), cause.namespace.as_str()), ("namespace/team-b", "team-b"));
    let cause = call.cause_about_unit("", "web").unwrap();
    assert_eq!((cause.namespace.as_str(), cause.objects[0].as_str()), ("default", "unit/default/web"));
    assert_eq!((cause.principal.as_str(), cause.address.as_str()), ("ann", "10.0.0.1:7"));
    call.note_done(["evictions".to_owned()]);
    let lines = security.call_log().unwrap().take(9, u64::MAX);
    assert!(lines.len() == 1 && !lines[0].is_refused() && lines[0].call.objects == ["evictions"]);
    // Nobody was judged.
    assert_eq!(PersonCall::default().cause("", None), None);
}
