//! The change log: what has a line, who sees it, and what a flood of refused calls costs.

use std::sync::Arc;

use godel_kit::{
    CancellationToken,
    client::Channel,
    clock::SystemClock,
    security::{ClientSecurity, Role, Transport},
    status::{has_reason, reason},
};
use godel_proto::v1::{
    self, change_service_client::ChangeServiceClient, identity_service_client::IdentityServiceClient,
    node_service_client::NodeServiceClient, state_service_client::StateServiceClient,
};
use godel_state::TlsMode;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use tonic::Code;

use crate::{
    harness::PATIENCE,
    joining::{HOUR_MS, Joiner, JumpingClock, until},
    permissions::PeopleOfState,
    tls::{SecuredState, status_of},
};

/// Everything that a caller sees, the newest first, by pages of three.
async fn listed(channel: Channel, request: v1::ListChangesRequest) -> Vec<v1::LoggedChange> {
    let (mut client, mut listed) = (ChangeServiceClient::new(channel), Vec::new());
    let mut request = v1::ListChangesRequest { page_size: 3, ..request };
    loop {
        let page = client.list_changes(request.clone()).await.unwrap().into_inner();
        assert!(page.changes.len() <= 3);
        listed.extend(page.changes);
        if page.next_page_token.is_empty() {
            return listed;
        }
        request.page_token = page.next_page_token;
    }
}

async fn all(state: &SecuredState) -> Vec<v1::LoggedChange> {
    listed(state.socket(), v1::ListChangesRequest::default()).await
}

/// A line as principal, method, objects, reason and number of calls.
fn text(logged: &v1::LoggedChange) -> String {
    let change = logged.change.clone().unwrap();
    let call = change.call.unwrap();
    let method = call.method.rsplit_once("Service/").map_or(call.method.as_str(), |(_, method)| method);
    let refused = if change.refused.is_empty() { String::new() } else { format!(": {}", change.refused) };
    format!("{} {method} {}{refused} x{}", call.principal, call.objects.join(","), change.calls)
}

fn texts(logged: &[v1::LoggedChange]) -> Vec<String> {
    logged.iter().map(text).collect()
}

/// Waits until the lines of refused calls, in order, are these.
async fn refusals(state: &SecuredState, expected: &[&str]) {
    let request = || v1::ListChangesRequest { refused_only: true, ..Default::default() };
    let mut last = Vec::new();
    let reached = async {
        loop {
            last = texts(&listed(state.socket(), request()).await);
            last.sort();
            if last == expected {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, reached).await.is_err() {
        panic!("expected {expected:#?}, and there is {last:#?}");
    }
}

async fn cordon(channel: Channel, name: &str) -> Result<(), tonic::Status> {
    let request = v1::UpdateNodeRequest { name: name.to_owned(), cordoned: Some(true), ..Default::default() };
    NodeServiceClient::new(channel).update_node(request).await.map(drop)
}

#[tokio::test]
async fn what_people_change_has_a_line_in_the_same_transaction() {
    let state = SecuredState::start(TlsMode::On).await;
    let people = PeopleOfState(&state);
    let ann = people.create("ann", "operator", &[]).await;
    let id = ann.info.unwrap().token_id;
    let join = state.join_token("agent").await;
    let agent = state.join(&join, "n1").await.unwrap();
    let mut nodes = NodeServiceClient::new(state.tls(ClientSecurity::new(state.identity(Some(agent)).await)));
    nodes.register_node(crate::harness::registration("n1", &crate::harness::uid("n1"))).await.unwrap();
    let channel = people.client(&ann.token).await;
    cordon(channel.clone(), "n1").await.unwrap();
    // It is so already: nothing changes.
    cordon(channel.clone(), "n1").await.unwrap();
    cordon(channel.clone(), "nosuch").await.unwrap_err();
    people.revoke(&id, "").await;
    let lines = all(&state).await;
    assert_eq!(
        texts(&lines),
        [
            format!("admin RevokeToken token/{id} x1"),
            "ann UpdateNode node/n1 x1".to_owned(),
            format!("admin CreateJoinToken join-token/{} x1", join.id()),
            format!("admin CreateToken principal/ann,token/{id} x1"),
        ]
    );
    let call = |idx: usize| lines[idx].change.clone().unwrap().call.unwrap();
    assert_eq!(call(0).address, "socket");
    assert!(call(1).address.starts_with("127.0.0.1:"), "{:?}", call(1));
    assert!(lines.is_sorted_by(|newer, older| newer.time_ms > older.time_ms));
    // The line is in the commit of the change: with the node's record.
    let change_id = lines[1].change.as_ref().unwrap().change_id;
    let mut client = StateServiceClient::new(state.socket());
    let request = v1::WatchRequest { from_revision: change_id / 1_024, ..Default::default() };
    let mut commits = client.watch(request).await.unwrap().into_inner();
    let commit = commits.message().await.unwrap().unwrap().commits.remove(0);
    let fields: Vec<_> = commit.ops.iter().filter_map(|op| godel_proto::raw::op_field(op)).collect();
    assert_eq!((commit.revision, &fields[..]), (change_id / 1_024, &[1, 37][..]));

    // Found by who, by what, and by when.
    let found = async |request| texts(&listed(state.socket(), request).await).len();
    let who =
        |principal: &str| v1::ListChangesRequest { principal: principal.to_owned(), ..Default::default() };
    let about = |object: &str| v1::ListChangesRequest { object: object.to_owned(), ..Default::default() };
    assert_eq!((found(who("ann")).await, found(who("admin")).await, found(who("bob")).await), (1, 3, 0));
    assert_eq!((found(about("node")).await, found(about("n1")).await, found(about("ann")).await), (1, 1, 1));
    assert_eq!(found(about(&id)).await, 2);
    let since = |since_ms| v1::ListChangesRequest { since_ms, ..Default::default() };
    assert_eq!((found(since(lines[1].time_ms)).await, found(since(lines[0].time_ms + 1)).await), (2, 0));
    let mut client = ChangeServiceClient::new(state.socket());
    for request in [
        v1::ListChangesRequest { page_size: 501, ..Default::default() },
        v1::ListChangesRequest { page_token: "x".to_owned(), ..Default::default() },
        about("a\nb"),
    ] {
        assert_eq!(client.list_changes(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn everybody_sees_its_own_lines_and_follows_them() {
    let state = SecuredState::start(TlsMode::On).await;
    let people = PeopleOfState(&state);
    let ann = people.create("ann", "user", &[]).await;
    let channel = people.client(&ann.token).await;
    let mut client = ChangeServiceClient::new(channel.clone());
    let mut watch = client.watch_changes(v1::WatchChangesRequest::default()).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert!(first.changes.is_empty() && first.now_ms > 0);
    let mut of_admin = ChangeServiceClient::new(state.socket());
    let wanted = v1::WatchChangesRequest { principal: "admin".to_owned(), ..Default::default() };
    let mut watch_of_admin = of_admin.watch_changes(wanted).await.unwrap().into_inner();
    watch_of_admin.message().await.unwrap().unwrap();
    people.create("bob", "user", &[]).await;
    cordon(channel.clone(), "n1").await.unwrap_err();
    let own = v1::RevokeTokenRequest { token_id: "nosuch".to_owned(), ..Default::default() };
    IdentityServiceClient::new(channel.clone()).revoke_token(own).await.unwrap_err();
    let heard = tokio::time::timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(texts(&heard.changes), ["ann UpdateNode : role x1"]);
    let heard = tokio::time::timeout(PATIENCE, watch_of_admin.message()).await.unwrap().unwrap().unwrap();
    assert!(text(&heard.changes[0]).starts_with("admin CreateToken principal/bob"), "{heard:?}");
    let seen = listed(channel, v1::ListChangesRequest::default()).await;
    assert_eq!(texts(&seen), ["ann UpdateNode : role x1"]);
    assert!(all(&state).await.len() >= 3);
    // The stream ends with the token.
    people.revoke("", "ann").await;
    let end = tokio::time::timeout(PATIENCE, watch.message()).await.unwrap().unwrap_err();
    assert!(has_reason(&end, reason::TOKEN_ENDED), "{end}");
}

#[tokio::test]
async fn refused_tokens_have_lines_and_members_report_theirs() {
    let state = SecuredState::start(TlsMode::On).await;
    let people = PeopleOfState(&state);
    let ann = people.create("ann", "viewer", &[]).await;
    let stolen = people.client(&ann.token).await;
    people.revoke(&ann.info.unwrap().token_id, "").await;
    status_of(stolen).await.unwrap_err();
    let old = people.create("ann", "viewer", &[]).await;
    let strange = format!("{}A", old.token);
    status_of(people.client(&strange).await).await.unwrap_err();
    status_of(state.tls(ClientSecurity::new(state.identity(None).await))).await.unwrap_err();
    let expected = [
        "ann GetStoreStatus : revoked token x1",
        "unknown GetStoreStatus : no token x1",
        "unknown GetStoreStatus : token with a wrong signature x1",
    ];
    refusals(&state, &expected).await;

    // A member notes what it refuses and says it with the next question.
    let (stop, system) = (CancellationToken::new(), SystemClock::shared());
    let service = Joiner::new(&state, Role::Dispatcher, "d1", system);
    let service = service.with_token(&state, "dispatcher", 0o600).await.take(&stop).await.unwrap().server;
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {}", old.token)).unwrap());
    let page = || service.judge_page(&Transport::Tls { leaf: None }, &headers, "POST /policies/{name}/run");
    until("the member knows the role", async || {
        page().is_err_and(|refusal| has_reason(&refusal, reason::NOT_ALLOWED))
    })
    .await;
    let request = || v1::ListChangesRequest { refused_only: true, ..Default::default() };
    until("the report is written", async || {
        texts(&listed(state.socket(), request()).await)
            .iter()
            .any(|line| line.starts_with("ann POST /policies/{name}/run : role"))
    })
    .await;

    let short = v1::CreateTokenRequest { principal: "ann".to_owned(), ttl_ms: 1_000, ..Default::default() };
    let short = people.administrator().create_token(short).await.unwrap().into_inner();
    let channel = people.client(&short.token).await;
    until("the token has expired", async || status_of(channel.clone()).await.is_err()).await;
    until("the expired token has a line", async || {
        let lines = texts(&listed(state.socket(), request()).await);
        lines.iter().any(|line| line == "ann GetStoreStatus : expired token x1")
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_refused_calls_is_a_few_lines() {
    let clock = JumpingClock::new();
    let dir = tempfile::tempdir().unwrap();
    let state = SecuredState::start_at(dir, TlsMode::On, Arc::clone(&clock) as _).await;
    let people = PeopleOfState(&state);
    let ann = people.create("ann", "viewer", &[]).await;
    let channel = people.client(&ann.token).await;
    let commits = async || {
        let status =
            StateServiceClient::new(state.socket()).get_store_status(v1::GetStoreStatusRequest {}).await;
        status.unwrap().into_inner().commits
    };
    let (began, before) = (tokio::time::Instant::now(), commits().await);
    const N: u64 = 4_000;
    for idx in 0..N {
        let refused = match idx % 2 {
            0 => cordon(channel.clone(), &format!("n{idx}")).await,
            _ => NodeServiceClient::new(channel.clone())
                .delete_node(v1::DeleteNodeRequest { name: format!("n{idx}") })
                .await
                .map(drop),
        };
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    }
    let request = || v1::ListChangesRequest { refused_only: true, ..Default::default() };
    let n_calls = |lines: &[v1::LoggedChange]| -> u64 {
        lines.iter().map(|line| line.change.as_ref().unwrap().calls).sum()
    };
    // The rest is due when the quiet minute is over.
    clock.jump(61_000);
    until("each call is counted", async || n_calls(&listed(state.socket(), request()).await) == N).await;
    let lines = listed(state.socket(), request()).await;
    assert!((2..=4).contains(&lines.len()), "{:#?}", texts(&lines));
    // One commit a second at most; beside them state renews its own lease, which is none.
    let n_commits = commits().await - before;
    assert!(n_commits <= began.elapsed().as_secs() + 4, "{n_commits} commits");
}

#[tokio::test]
async fn lines_go_when_they_are_too_many_or_too_old_and_stay_over_a_restart() {
    let clock = JumpingClock::new();
    let dir = tempfile::tempdir().unwrap();
    let small = |config: &mut godel_state::Config| config.changes_max = 100;
    let state = SecuredState::start_with(dir, TlsMode::On, Arc::clone(&clock) as _, small).await;
    let set = async |state: &SecuredState, name: &str, group: usize| {
        let terms = v1::PrincipalTerms { groups: vec![format!("g{group}")], ..Default::default() };
        let request = v1::SetPrincipalRequest { principal: name.to_owned(), terms: Some(terms) };
        PeopleOfState(state).administrator().set_principal(request).await.unwrap();
    };
    for idx in 0..140 {
        set(&state, "ann", idx).await;
    }
    until("the first ones go", async || all(&state).await.len() == 100).await;
    let newest = texts(&all(&state).await);
    let dir = state.stop().await;
    let state = SecuredState::start_with(dir, TlsMode::On, Arc::clone(&clock) as _, small).await;
    assert_eq!(texts(&all(&state).await), newest);
    clock.jump(31 * 24 * HOUR_MS);
    set(&state, "bob", 0).await;
    until("the old ones go", async || texts(&all(&state).await) == ["admin SetPrincipal principal/bob x1"])
        .await;
}

#[tokio::test]
async fn members_may_say_no_more_than_a_line_has() {
    let state = SecuredState::start(TlsMode::On).await;
    let token = state.join_token("dispatcher").await;
    let leaf = state.join(&token, "d1").await.unwrap();
    let channel = state.tls(ClientSecurity::new(state.identity(Some(leaf)).await));
    let mut client = ChangeServiceClient::new(channel.clone());
    let call = |principal: &str| v1::CallCause {
        principal: principal.to_owned(),
        method: "/m".to_owned(),
        ..v1::CallCause::default()
    };
    let line = |call| v1::ChangeRecord {
        call: Some(call),
        refused: "role".to_owned(),
        calls: 1,
        ..Default::default()
    };
    let long = v1::CallCause { objects: vec!["x".repeat(401)], ..call("ann") };
    for (calls, path) in [
        (vec![line(call(""))], "calls[0].call.principal"),
        (vec![line(call("ann")), line(long)], "calls[1].call.objects[0]"),
        (vec![v1::ChangeRecord { calls: 0, ..line(call("ann")) }], "calls[0].calls"),
        (vec![v1::ChangeRecord::default()], "calls[0].call"),
        (vec![line(call("ann")); 257], "calls"),
    ] {
        let refused = client.report_calls(v1::ReportCallsRequest { calls, more_calls: 0 }).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(format!("{refused:?}").contains(path), "{path}: {refused:?}");
    }
    client
        .report_calls(v1::ReportCallsRequest { calls: vec![line(call("ann"))], more_calls: 5 })
        .await
        .unwrap();
    refusals(&state, &["ann /m : role x1"]).await;
    let lines = all(&state).await;
    assert_eq!(lines[0].change.as_ref().unwrap().more_calls, 5);
    // The log is for people.
    let refused = client.list_changes(v1::ListChangesRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let request = v1::ListRecordsRequest { kinds: vec![v1::Kind::Change.into()], ..Default::default() };
    let records = StateServiceClient::new(channel).list_records(request.clone()).await.unwrap().into_inner();
    assert!(records.records.is_empty());
    let records = StateServiceClient::new(state.socket()).list_records(request).await.unwrap().into_inner();
    assert!(!records.records.is_empty());
}
