use std::collections::HashMap;

use godel_kit::status::{has_reason, reason, violations_of};
use godel_proto::v1;
use tonic::Code;

use crate::harness::{Agent, State, bind, put_unit, registration, says, uid, until};

async fn list(state: &State, request: v1::ListNodesRequest) -> v1::ListNodesResponse {
    state.nodes().list_nodes(request).await.unwrap().into_inner()
}

fn names(page: &v1::ListNodesResponse) -> Vec<&str> {
    let metas = page.nodes.iter().map(|node| node.spec.as_ref().unwrap().meta.as_ref().unwrap());
    metas.map(|meta| meta.name.as_str()).collect()
}

#[tokio::test]
async fn registering_is_idempotent_and_survives_a_restart() {
    let state = State::start().await;
    let first = state.register("n1").await;
    let again = state.register("n1").await;
    assert_eq!(again.node_id, first.node_id);
    assert!(again.epoch > first.epoch);
    let other = state.register("n2").await;
    assert_eq!(other.node_id, first.node_id + 1);
    let commits = |status: v1::GetStoreStatusResponse| status.revision;
    let before =
        commits(state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner());
    state.register("n1").await;
    let after =
        commits(state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner());
    assert_eq!(before, after, "nothing new, nothing written");
    let state = state.restart().await;
    let later = state.register("n1").await;
    assert_eq!(later.node_id, first.node_id);
    assert!(later.epoch > other.epoch, "session epochs rise over restarts");
    state.stop().await;
}

#[tokio::test]
async fn a_name_belongs_to_one_uid_while_its_lease_lives() {
    let state = State::start_with(|config| {
        config.heartbeat_interval = std::time::Duration::from_millis(50).into();
        config.node_lease_ttl = std::time::Duration::from_millis(1_000).into();
        config.node_scan_interval = std::time::Duration::from_millis(20).into();
    })
    .await;
    let registered = state.register("n1").await;
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    until("ready", async || state.node("n1").await.report.unwrap().ready.then_some(())).await;
    agent.heartbeat(None).await;
    let other = registration("n1", &uid("other"));
    let refused = state.nodes().register_node(other.clone()).await.unwrap_err();
    assert!(
        refused.code() == Code::AlreadyExists && has_reason(&refused, reason::DUPLICATE_NAME),
        "{refused}"
    );
    // Silent from here on: the lease runs out, and the name may be taken over.
    let taken =
        until("the name is free", async || state.nodes().register_node(other.clone()).await.ok()).await;
    assert_eq!(taken.into_inner().node_id, registered.node_id, "it stays the same node");
    let told = agent.next().await;
    assert!(matches!(told, v1::session_response::Message::Conflict(_)), "{told:?}");
    let ended = agent.try_next().await.unwrap_err();
    assert!(has_reason(&ended, "NODE_REPLACED"), "{ended}");
    let taken_uid = registration("n2", &uid("other"));
    assert_eq!(state.nodes().register_node(taken_uid).await.unwrap_err().code(), Code::AlreadyExists);
    state.stop().await;
}

#[tokio::test]
async fn a_thousand_registrations_share_commits() {
    let state = State::start().await;
    let before =
        state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner().commits;
    let mut registering = tokio::task::JoinSet::new();
    for n in 0..1_000 {
        let mut client = state.nodes();
        registering.spawn(async move {
            let name = format!("node-{n:04}");
            client.register_node(registration(&name, &uid(&name))).await.unwrap().into_inner().node_id
        });
    }
    let mut ids = registering.join_all().await;
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 1_000);
    let after =
        state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner().commits;
    assert!(after - before < 300, "{} commits", after - before);
    state.stop().await;
}

#[tokio::test]
async fn nodes_are_found_by_name_uid_and_unique_prefix() {
    let state = State::start().await;
    for name in ["web-1", "web-10", "db"] {
        state.register(name).await;
    }
    let db = uid("db");
    for (asked, expect) in [
        ("web-1", Ok("web-1")),
        ("web-10", Ok("web-10")),
        ("d", Ok("db")),
        (db.as_str(), Ok("db")),
        (&db[..34], Ok("db")),
        ("web", Err((Code::InvalidArgument, reason::AMBIGUOUS_NAME))),
        ("nothing", Err((Code::NotFound, reason::UNKNOWN_NAME))),
    ] {
        let found = state.nodes().get_node(v1::GetNodeRequest { name: asked.to_owned() }).await;
        match (found, expect) {
            (Ok(found), Ok(name)) => {
                assert_eq!(
                    found.into_inner().node.unwrap().spec.unwrap().meta.unwrap().name,
                    name,
                    "{asked}"
                );
            }
            (Err(status), Err((code, reason))) => {
                assert!(status.code() == code && has_reason(&status, reason), "{asked}: {status}");
            }
            (found, expect) => panic!("{asked}: {found:?} is not {expect:?}"),
        }
    }
    assert!(state.nodes().get_node(v1::GetNodeRequest::default()).await.is_err());
    state.stop().await;
}

#[tokio::test]
async fn nodes_are_changed_by_whole_names_and_uids_only() {
    let state = State::start().await;
    for name in ["web-1", "web-10", "db"] {
        state.register(name).await;
    }
    let cordon = |name: &str| v1::UpdateNodeRequest {
        name: name.to_owned(),
        cordoned: Some(true),
        ..v1::UpdateNodeRequest::default()
    };
    let short = &uid("db")[..34];
    for (asked, near) in [("d", "`db`"), ("web", "`web-1`, `web-10`"), (short, "`db`")] {
        let updated = state.nodes().update_node(cordon(asked)).await.map(drop);
        let deleted =
            state.nodes().delete_node(v1::DeleteNodeRequest { name: asked.to_owned() }).await.map(drop);
        for refused in [updated, deleted] {
            let status = refused.unwrap_err();
            assert!(status.code() == Code::NotFound && has_reason(&status, reason::UNKNOWN_NAME), "{status}");
            assert_eq!(status.message(), format!("no node `{asked}`; did you mean {near}?"));
        }
    }
    let nodes = state.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    assert!(nodes.len() == 3 && nodes.iter().all(|node| !node.spec.as_ref().unwrap().cordoned));
    let changed = state.nodes().update_node(cordon(&uid("db"))).await.unwrap().into_inner();
    assert!(changed.changed && changed.spec.unwrap().meta.unwrap().name == "db");
    assert!(!state.nodes().update_node(cordon("db")).await.unwrap().into_inner().changed, "it is so already");
    state.nodes().delete_node(v1::DeleteNodeRequest { name: "web-1".to_owned() }).await.unwrap();
    state.stop().await;
}

#[tokio::test]
async fn a_node_shows_what_is_bound_there() {
    let state = State::start().await;
    let registered = state.register("n1").await;
    let node_id = registered.node_id;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    dispatcher.write([put_unit(1)]).await.unwrap();
    let v1::op::Op::Bind(mut shares) = bind(1, &[2, 3], node_id) else { unreachable!() };
    shares.task_group = 1;
    shares.device_masks = vec![0b10, 0b10];
    shares.demand.as_mut().unwrap().devices = vec![v1::DeviceRequest {
        kind: "gpu".to_owned(),
        count: 1,
        milli_per_device: Some(250),
        models: Vec::new(),
        terms: None,
    }];
    binder.write([bind(1, &[0, 1], node_id), v1::op::Op::Bind(shares)]).await.unwrap();
    let shown = state.node("n1").await;
    assert_eq!((shown.running_units, shown.connected), (4, false));
    assert_eq!(shown.allocated.unwrap().amounts["cpu"], 2_000);
    assert_eq!(shown.device_free_milli, [1000, 500]);
    assert_eq!(shown.allocatable.unwrap().amounts["cpu"], 10_000, "without a grant the capacity");

    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    assert_eq!(agent.assigned().await.len(), 4);
    agent.heartbeat(Some(crate::harness::resources(&[("cpu", 77)]))).await;
    let sequence = agent.report(vec![says(1, 0, v1::RunPhase::Succeeded)]).await;
    agent.acked(sequence).await;
    let request = v1::GetNodeRequest { name: "n1".to_owned() };
    let shown = state.nodes().get_node(request).await.unwrap().into_inner();
    let node = shown.node.unwrap();
    assert_eq!((node.running_units, node.connected), (3, true));
    assert_eq!(node.usage.unwrap().amounts["cpu"], 77);
    let bound: Vec<_> = shown.running_units.iter().map(|one| (one.ordinal, one.unit_name.as_str())).collect();
    assert_eq!(bound, [(1, "default/unit-1"), (2, "default/unit-1"), (3, "default/unit-1")]);

    state.stop().await;
}

#[tokio::test]
async fn a_node_is_deleted_only_without_agent_and_running_units() {
    let state = State::start().await;
    let registered = state.register("n1").await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    until("ready", async || state.node("n1").await.report.unwrap().ready.then_some(())).await;
    dispatcher.write([put_unit(1)]).await.unwrap();
    binder.write([bind(1, &[0], registered.node_id)]).await.unwrap();
    assert_eq!(agent.assigned().await.len(), 1);
    let refused = async |words: &str| {
        let delete = v1::DeleteNodeRequest { name: "n1".to_owned() };
        let status = state.nodes().delete_node(delete).await.unwrap_err();
        assert!(status.code() == Code::FailedPrecondition && status.message().contains(words), "{status}");
    };
    refused("is connected: stop its agent").await;
    leave(&state, agent).await;
    refused("1 running unit is bound there").await;
    let registered = state.register("n1").await;
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    assert_eq!(agent.assigned().await.len(), 1);
    let sequence = agent.report(vec![says(1, 0, v1::RunPhase::Failed)]).await;
    agent.acked(sequence).await;
    refused("is connected: stop its agent").await;
    leave(&state, agent).await;
    let delete = v1::DeleteNodeRequest { name: "n1".to_owned() };
    state.nodes().delete_node(delete).await.unwrap();
    assert!(list(&state, v1::ListNodesRequest::default()).await.nodes.is_empty());
    state.stop().await;
}

/// Says goodbye; the node is not ready then, though its lease would last on.
async fn leave(state: &State, mut agent: Agent) {
    agent.send(v1::session_request::Message::Leave(v1::SessionLeave {})).await;
    assert_eq!(agent.try_next().await.unwrap_err().code(), Code::Cancelled, "the session ends");
    until("not ready", async || (!state.node("n1").await.report.unwrap().ready).then_some(())).await;
}

#[tokio::test]
async fn a_goodbye_ends_its_own_session_only() {
    let state = State::start_with(|config| {
        // Nobody waits for that.
        config.node_lease_ttl = std::time::Duration::from_secs(300).into();
        config.node_grace = std::time::Duration::from_secs(600).into();
    })
    .await;
    let registered = state.register("n1").await;
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    let ready = async || state.node("n1").await.report.unwrap().ready;
    until("ready", async || ready().await.then_some(())).await;
    leave(&state, agent).await;
    let registered = state.register("n1").await;
    let old = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    until("ready again", async || ready().await.then_some(())).await;
    // A newer session has taken over: the goodbye of the old one says nothing of the node.
    let registered = state.register("n1").await;
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    old.send_late(v1::session_request::Message::Leave(v1::SessionLeave {})).await;
    agent.heartbeat(None).await;
    assert!(ready().await);
    leave(&state, agent).await;
    state.stop().await;
}

#[tokio::test]
async fn nodes_are_listed_by_name_page_by_page_and_by_label() {
    let state = State::start().await;
    for name in ["c", "a", "d", "b", "e"] {
        state.register(name).await;
    }
    let set = |name: &str, value: &str| v1::UpdateNodeRequest {
        name: name.to_owned(),
        set_labels: HashMap::from([("rack".to_owned(), value.to_owned())]),
        ..v1::UpdateNodeRequest::default()
    };
    for name in ["b", "d"] {
        state.nodes().update_node(set(name, "r2")).await.unwrap();
    }
    let mut request = v1::ListNodesRequest { page_size: 2, ..v1::ListNodesRequest::default() };
    let mut all = Vec::new();
    loop {
        let page = list(&state, request.clone()).await;
        assert_eq!(page.total, 5);
        all.extend(names(&page).into_iter().map(str::to_owned));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(all, ["a", "b", "c", "d", "e"]);
    for (pairs, expect) in [
        (&[("rack", "r2")][..], &["b", "d"][..]),
        (&[("rack", "r1")], &["a", "c", "e"]),
        (&[("rack", "r1"), ("zone", "z1")], &["a", "c", "e"]),
        (&[("rack", "r1"), ("zone", "z2")], &[]),
    ] {
        let label_selector =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let page =
            list(&state, v1::ListNodesRequest { label_selector, ..v1::ListNodesRequest::default() }).await;
        assert_eq!((names(&page), page.total as usize), (expect.to_vec(), expect.len()));
    }
    let bad = v1::ListNodesRequest { page_token: "?".to_owned(), ..v1::ListNodesRequest::default() };
    assert_eq!(state.nodes().list_nodes(bad).await.unwrap_err().code(), Code::InvalidArgument);
    state.stop().await;
}

#[tokio::test]
async fn updates_compare_revisions_and_keep_what_was_not_named() {
    let state = State::start().await;
    state.register("n1").await;
    let cordon = v1::UpdateNodeRequest {
        name: "n1".to_owned(),
        cordoned: Some(true),
        ..v1::UpdateNodeRequest::default()
    };
    let first = state.nodes().update_node(cordon.clone()).await.unwrap().into_inner();
    assert!(first.spec.as_ref().unwrap().cordoned);
    assert_eq!(first.spec.unwrap().meta.unwrap().revision, first.revision);
    let again = state.nodes().update_node(cordon.clone()).await.unwrap().into_inner();
    assert_eq!(again.revision, first.revision, "nothing changed");
    let taint = v1::Taint { key: "gpu".to_owned(), value: String::new(), effect: 1, added_time_ms: 0 };
    let stale = v1::UpdateNodeRequest {
        expected_revision: first.revision - 1,
        set_taints: vec![taint.clone()],
        name: "n1".to_owned(),
        ..v1::UpdateNodeRequest::default()
    };
    let refused = state.nodes().update_node(stale.clone()).await.unwrap_err();
    assert!(refused.code() == Code::Aborted && has_reason(&refused, reason::REVISION_MISMATCH), "{refused}");
    let fresh = v1::UpdateNodeRequest { expected_revision: first.revision, ..stale };
    let spec = state.nodes().update_node(fresh).await.unwrap().into_inner().spec.unwrap();
    let added_time_ms = spec.taints[0].added_time_ms;
    assert!(added_time_ms > 0, "state says since when");
    assert_eq!((spec.cordoned, &spec.taints[..]), (true, &[v1::Taint { added_time_ms, ..taint }][..]));
    assert_eq!(spec.meta.unwrap().labels["zone"], "z1");
    state.stop().await;
}

#[tokio::test]
async fn bad_input_names_its_fields() {
    let state = State::start().await;
    let good = registration("n1", &uid("n1"));
    let with = |change: &dyn Fn(&mut v1::RegisterNodeRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    for (request, fields) in [
        (v1::RegisterNodeRequest::default(), &["meta.name", "meta.uid", "report"][..]),
        (with(&|request| request.meta.as_mut().unwrap().name = "Not OK".to_owned()), &["meta.name"]),
        (with(&|request| request.meta.as_mut().unwrap().uid = "7".to_owned()), &["meta.uid"]),
        (with(&|request| request.report = None), &["report"]),
        (with(&|request| request.taints = vec![v1::Taint::default()]), &["taints[0].key"]),
    ] {
        let status = state.nodes().register_node(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        let found: Vec<String> = violations_of(&status).into_iter().map(|bad| bad.path).collect();
        assert_eq!(found, fields);
    }
    let unknown = v1::UpdateNodeRequest { name: "ghost".to_owned(), ..v1::UpdateNodeRequest::default() };
    assert_eq!(state.nodes().update_node(unknown).await.unwrap_err().code(), Code::NotFound);
    let ghost = v1::DeleteNodeRequest { name: "ghost".to_owned() };
    assert_eq!(state.nodes().delete_node(ghost).await.unwrap_err().code(), Code::NotFound);
    assert!(state.nodes().delete_node(v1::DeleteNodeRequest::default()).await.is_err());
    state.stop().await;
}
