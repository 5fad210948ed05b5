//! Several agents that claim one node.

use godel_kit::status::{has_reason, reason};
use godel_proto::v1::{self, NodeConflictKind, RunPhase, session_response::Message as Down};
use tonic::{Code, Status};

use crate::harness::{Agent, State, bind, evict, put_unit, registration, says, uid, until};

async fn quick_state() -> State {
    State::start_with(|config| {
        config.heartbeat_interval = std::time::Duration::from_millis(50).into();
        config.node_lease_ttl = std::time::Duration::from_millis(1_000).into();
        config.node_scan_interval = std::time::Duration::from_millis(20).into();
    })
    .await
}

/// Registers a start of the agent of node `n1`.
async fn register(state: &State, instance: u64) -> Result<v1::RegisterNodeResponse, Status> {
    let request = v1::RegisterNodeRequest { instance, ..registration("n1", &uid("n1")) };
    state.nodes().register_node(request).await.map(tonic::Response::into_inner)
}

async fn open(state: &State, instance: u64) -> Agent {
    let v1::RegisterNodeResponse { node_id, epoch, .. } = register(state, instance).await.unwrap();
    let uid = uid("n1");
    let open = v1::SessionOpen { node_id, uid, epoch, instance, ..v1::SessionOpen::default() };
    let mut agent = Agent::open_with(&state.channel, open).await;
    assert!(matches!(agent.next().await, Down::Welcome(_)));
    agent
}

#[tokio::test]
async fn both_sides_hear_of_another_installation() {
    let state = State::start().await;
    let mut agent = open(&state, 1).await;
    let other = registration("n1", &uid("other"));
    let refused = state.nodes().register_node(other.clone()).await.unwrap_err();
    let words = ["connected with another uid", "`godel agent --name`", "`godel node delete n1`"];
    assert!(
        refused.code() == Code::AlreadyExists && words.iter().all(|words| refused.message().contains(words)),
        "{refused}"
    );
    let Down::Conflict(told) = agent.next().await else { panic!("no conflict") };
    let shown = state.node("n1").await.conflict.unwrap();
    assert_eq!(told, shown);
    assert_eq!((shown.kind(), shown.uid.clone()), (NodeConflictKind::OtherInstallation, uid("other")));
    let address: std::net::SocketAddr = shown.address.parse().unwrap();
    assert!(address.ip().is_loopback() && address.port() > 0);
    assert!(shown.first_ms > 0 && shown.attempts == 1);
    // It comes again and again: one conflict, told once.
    assert!(state.nodes().register_node(other).await.is_err());
    let shown = state.node("n1").await.conflict.unwrap();
    assert_eq!((shown.attempts, shown.first_ms), (2, told.first_ms));
    agent.heartbeat(None).await;
    assert!(state.node("n1").await.connected, "the one that lives keeps its session");
    state.stop().await;
}

#[tokio::test]
async fn two_agents_with_one_identity_do_not_take_turns() {
    let state = quick_state().await;
    let mut first = open(&state, 1).await;
    let mut second = open(&state, 2).await;
    let replaced = first.try_next().await.unwrap_err();
    assert!(has_reason(&replaced, "SESSION_REPLACED"), "a restart takes over: {replaced}");
    let refused = register(&state, 1).await.unwrap_err();
    assert!(
        refused.code() == Code::AlreadyExists && has_reason(&refused, reason::NODE_DISPLACED),
        "{refused}"
    );
    let Down::Conflict(told) = second.next().await else { panic!("no conflict") };
    assert_eq!((told.kind(), told.uid), (NodeConflictKind::SameInstallation, uid("n1")));
    // A third start is a restart again. Who was displaced before stays out.
    let _third = open(&state, 3).await;
    for instance in [1, 2] {
        assert!(register(&state, instance).await.is_err(), "{instance}");
    }
    // Silent from here on: one of the others may come back.
    let back = until("the lease is over", async || register(&state, 1).await.ok()).await;
    assert!(back.epoch > 0);
    state.stop().await;
}

#[tokio::test]
async fn a_node_that_leaves_is_gone_for_good() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let mut agent = open(&state, 1).await;
    until("ready", async || state.node("n1").await.report.unwrap().ready.then_some(())).await;
    let node_id = state.node("n1").await.node_id;
    dispatcher.write([put_unit(1)]).await.unwrap();
    binder.write([bind(1, &[0], node_id)]).await.unwrap();
    assert_eq!(agent.assigned().await, [(1, 0, 0)]);
    let leave = async || {
        let request = v1::DeregisterNodeRequest { name: uid("n1") };
        state.nodes().deregister_node(request).await
    };
    let refused = leave().await.unwrap_err();
    assert!(
        refused.code() == Code::FailedPrecondition && refused.message().contains("1 running unit is bound"),
        "{refused}"
    );
    let sequence = agent.report(vec![says(1, 0, RunPhase::Succeeded)]).await;
    agent.acked(sequence).await;
    assert!(leave().await.unwrap().into_inner().revision > 0);
    let ended = agent.try_next().await.unwrap_err();
    assert!(has_reason(&ended, reason::NODE_LEFT), "its agent does not come back: {ended}");
    assert_eq!(leave().await.unwrap_err().code(), Code::NotFound);
    // Somebody may start one again: a new node.
    assert_ne!(register(&state, 2).await.unwrap().node_id, node_id);
    state.stop().await;
}

#[tokio::test]
async fn an_absent_node_goes_by_itself_unless_something_is_bound() {
    let state = State::start_with(|config| {
        config.heartbeat_interval = std::time::Duration::from_millis(50).into();
        config.node_lease_ttl = std::time::Duration::from_millis(100).into();
        config.node_scan_interval = std::time::Duration::from_millis(20).into();
        config.node_grace = std::time::Duration::from_millis(5_200).into();
        config.node_absence = Some(std::time::Duration::from_millis(5_200).into());
    })
    .await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let busy = state.register("busy").await;
    state.register("idle").await;
    dispatcher.write([put_unit(1)]).await.unwrap();
    binder.write([bind(1, &[0], busy.node_id)]).await.unwrap();
    let shown = async |name: &str| {
        let request = v1::GetNodeRequest { name: name.to_owned() };
        state.nodes().get_node(request).await.is_ok()
    };
    until("the idle node is gone", async || (!shown("idle").await).then_some(())).await;
    assert!(shown("busy").await, "its unit is not given away yet");
    let v1::op::Op::Evict(lost) = evict(1, &[0]) else { unreachable!() };
    let lost = v1::Eviction { reason: v1::EvictionReason::NodeLost.into(), ..lost };
    binder.write([v1::op::Op::Evict(lost)]).await.unwrap();
    until("the other one is gone too", async || (!shown("busy").await).then_some(())).await;
    state.stop().await;
}

#[tokio::test]
async fn a_new_machine_gets_the_name_without_the_old_units() {
    let state = quick_state().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let mut old = open(&state, 1).await;
    until("ready", async || state.node("n1").await.report.unwrap().ready.then_some(())).await;
    let node_id = state.node("n1").await.node_id;
    dispatcher.write([put_unit(1)]).await.unwrap();
    binder.write([bind(1, &[0], node_id)]).await.unwrap();
    assert_eq!(old.assigned().await, [(1, 0, 0)]);
    let sequence = old.report(vec![says(1, 0, RunPhase::Running)]).await;
    old.acked(sequence).await;
    // The old machine is silent. Its unit may run there still, so the name is not free yet.
    let new = registration("n1", &uid("new"));
    let register_new = async || state.nodes().register_node(new.clone()).await;
    until("its lease is over", async || {
        let refused = register_new().await.unwrap_err();
        has_reason(&refused, reason::NODE_IN_USE).then_some(())
    })
    .await;
    until("not ready", async || (!state.node("n1").await.report.unwrap().ready).then_some(())).await;
    let v1::op::Op::Evict(lost) = evict(1, &[0]) else { unreachable!() };
    let lost = v1::Eviction { reason: v1::EvictionReason::NodeLost.into(), ..lost };
    binder.write([v1::op::Op::Evict(lost)]).await.unwrap();
    let registered = register_new().await.unwrap().into_inner();
    assert_eq!(registered.node_id, node_id, "it stays the same node");
    let v1::RegisterNodeResponse { epoch, .. } = registered;
    let opening =
        v1::SessionOpen { node_id, uid: uid("new"), epoch, instance: 9, ..v1::SessionOpen::default() };
    let mut agent = Agent::open_with(&state.channel, opening).await;
    assert!(matches!(agent.next().await, Down::Welcome(_)));
    // The old one is another installation now.
    let refused = register(&state, 1).await.unwrap_err();
    assert!(has_reason(&refused, reason::DUPLICATE_NAME), "{refused}");
    let Down::Conflict(told) = agent.next().await else { panic!("nothing of the old one is assigned") };
    assert_eq!(told.uid, uid("n1"));
    state.stop().await;
}
