//! An older export restored: for everyone who knew the store it is another one.

use std::path::Path;

use godel_kit::status::{has_reason, reason};
use godel_proto::v1::{self, RunPhase, session_response::Message};
use godel_store::admin::{self, UnreadablePolicy};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

use crate::harness::{Agent, State, acquire, bind, put_unit, says, until};

async fn start(dir: &Path) -> State {
    State::start_as_configured(|config| config.data_dir = dir.to_owned()).await
}

/// Stops it and makes an export of what it has.
async fn export(state: State, dir: &Path, file: &Path) {
    state.stop().await;
    admin::export(dir, file).unwrap();
}

async fn status(state: &State) -> v1::GetStoreStatusResponse {
    state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner()
}

async fn page(state: &State, page_token: &str) -> Result<v1::ListRecordsResponse, Status> {
    let kinds = vec![v1::Kind::Unit.into()];
    let request = v1::ListRecordsRequest { kinds, page_size: 1, page_token: page_token.to_owned() };
    Ok(state.state().list_records(request).await?.into_inner())
}

async fn nodes_page(state: &State, page_token: &str) -> Result<v1::ListNodesResponse, Status> {
    let request =
        v1::ListNodesRequest { page_size: 1, page_token: page_token.to_owned(), ..Default::default() };
    Ok(state.nodes().list_nodes(request).await?.into_inner())
}

/// How a watch begins: with what it is refused for, if it is.
async fn watch(state: &State, from_revision: u64, store_id: u64) -> Option<Status> {
    let request = v1::WatchRequest { from_revision, store_id, ..v1::WatchRequest::default() };
    match state.state().watch(request).await {
        Err(refused) => Some(refused),
        Ok(stream) => stream.into_inner().next().await.and_then(Result::err),
    }
}

fn is(refused: Option<Status>, code: Code, reason: &str) -> bool {
    refused.is_some_and(|refused| refused.code() == code && has_reason(&refused, reason))
}

#[tokio::test]
async fn a_restored_older_export_is_another_store_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let (d1, d2, file) = (dir.path().join("d1"), dir.path().join("d2"), dir.path().join("export"));
    let state = start(&d1).await;
    let mut dispatcher = state.writer("dispatcher").await;
    dispatcher.write([put_unit(1), put_unit(2)]).await.unwrap();
    for name in ["n1", "n2"] {
        state.register(name).await;
    }
    let before = status(&state).await;
    assert_ne!(before.store_id, 0);
    let listed = page(&state, "").await.unwrap();
    assert_eq!(listed.store_id, before.store_id);
    export(state, &d1, &file).await;

    // The future that is lost. A start alone makes no other store.
    let state = start(&d1).await;
    let lost = status(&state).await;
    assert_eq!(lost.store_id, before.store_id);
    assert!(page(&state, &listed.next_page_token).await.is_ok());
    assert!(watch(&state, listed.revision + 1, listed.store_id).await.is_none());
    let old = acquire(&state.channel, "dispatcher", "tester", 60_000).await.unwrap();
    assert_eq!(old.store_id, before.store_id);
    (dispatcher.client, dispatcher.epoch) = (state.state(), old.epoch);
    let revision = dispatcher.write([put_unit(3)]).await.unwrap();
    let nodes = nodes_page(&state, "").await.unwrap();
    assert_eq!(nodes.store_id, before.store_id);
    state.stop().await;

    let report = admin::restore(&file, &d2, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
    let state = start(&d2).await;
    let after = status(&state).await;
    assert!(after.store_id == report.store_id && after.store_id != before.store_id);
    assert!(after.revision > revision && after.last_unit_id > 3, "{after:?}");
    assert_eq!((after.units, after.nodes), (2, 2));

    // Lists and watches.
    let out_of_range = Code::OutOfRange;
    let token = page(&state, &listed.next_page_token).await.err();
    assert!(is(token, out_of_range, reason::STORE_CHANGED));
    let token = nodes_page(&state, &nodes.next_page_token).await.err();
    assert!(is(token, out_of_range, reason::STORE_CHANGED));
    for from in [0, 1, revision + 1, after.revision + 1] {
        assert!(
            is(watch(&state, from, before.store_id).await, out_of_range, reason::STORE_CHANGED),
            "{from}"
        );
    }
    let unsaid = watch(&state, revision + 1, 0).await;
    assert!(is(unsaid, out_of_range, reason::COMPACTED), "a client that does not say lists anew as well");
    let last = status(&state).await.revision;
    assert!(is(watch(&state, last + 1_000, after.store_id).await, out_of_range, reason::FUTURE_REVISION));
    assert!(watch(&state, last + 1, after.store_id).await.is_none());

    // Leases: the old one is over, and its epoch will not come again.
    let renew = async |store_id| {
        let lease = "dispatcher".to_owned();
        let request = v1::RenewLeaseRequest { lease, epoch: old.epoch, status: None, store_id };
        state.members().renew_lease(request).await.err()
    };
    assert!(is(renew(before.store_id).await, Code::FailedPrecondition, reason::STORE_CHANGED));
    assert!(is(renew(0).await, Code::FailedPrecondition, reason::STALE_EPOCH));
    let new = acquire(&state.channel, "dispatcher", "another", 60_000).await.unwrap();
    assert!(new.epoch > old.epoch + 1_000 && new.store_id == after.store_id, "{new:?}");
    let lease = "dispatcher".to_owned();
    let release =
        v1::ReleaseLeaseRequest { lease: lease.clone(), epoch: new.epoch, store_id: before.store_id };
    state.members().release_lease(release).await.unwrap();
    let renew = v1::RenewLeaseRequest { lease, epoch: new.epoch, status: None, store_id: new.store_id };
    state.members().renew_lease(renew).await.unwrap();

    // Transactions.
    (dispatcher.client, dispatcher.epoch) = (state.state(), new.epoch);
    let mut txn = dispatcher.txn([put_unit(1)]);
    txn.store_id = before.store_id;
    let refused = dispatcher.client.txn(txn.clone()).await.err();
    assert!(is(refused, Code::FailedPrecondition, reason::STORE_CHANGED));
    let mut answers = dispatcher.client.transact(tokio_stream::iter([txn])).await.unwrap().into_inner();
    let refusal = answers.next().await.unwrap().unwrap().refusal.unwrap();
    assert_eq!(refusal.reason(), v1::TxnRefusalReason::StoreChanged);
    let mut txn = dispatcher.txn([put_unit(1)]);
    (txn.store_id, txn.nodes_as_of) = (new.store_id, after.revision + 1_000);
    let refused = dispatcher.client.txn(txn).await.err();
    assert!(is(refused, out_of_range, reason::FUTURE_REVISION));
    assert_eq!(dispatcher.write([put_unit(3)]).await.unwrap_err().code(), Code::InvalidArgument);
    dispatcher.write([put_unit(after.last_unit_id + 1)]).await.unwrap();
    state.stop().await;
}

#[tokio::test]
async fn after_a_restore_only_earlier_bindings_go_on_at_agents() {
    let dir = tempfile::tempdir().unwrap();
    let (d1, d2, file) = (dir.path().join("d1"), dir.path().join("d2"), dir.path().join("export"));
    let state = start(&d1).await;
    let (mut dispatcher, mut binder) = (state.writer("dispatcher").await, state.writer("binder").await);
    dispatcher.write([put_unit(1)]).await.unwrap();
    let registered = state.register("n1").await;
    let old = registered.store_id;
    assert_eq!(old, status(&state).await.store_id);
    binder.write([bind(1, &[0, 1, 2], registered.node_id)]).await.unwrap();
    let mut agent = Agent::open(&state.channel, "n1", registered, vec![]).await;
    agent.assigned().await;
    let reported = agent.report(vec![says(1, 0, RunPhase::Running), says(1, 1, RunPhase::Running)]).await;
    agent.acked(reported).await;
    export(state, &d1, &file).await;
    admin::restore(&file, &d2, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();

    // Of the lost future: 1/1 has ended, 1/3 was bound here and 9/0 too. Here 1/3 is bound anew before the agent comes.
    let state = start(&d2).await;
    let granted = acquire(&state.channel, "binder", "tester", 60_000).await.unwrap();
    (binder.client, binder.epoch) = (state.state(), granted.epoch);
    let registered = state.register("n1").await;
    let new = registered.store_id;
    assert_ne!(new, old);
    binder.write([bind(1, &[3], registered.node_id)]).await.unwrap();
    let running = vec![
        says(1, 0, RunPhase::Running),
        says(1, 1, RunPhase::Succeeded),
        says(1, 3, RunPhase::Succeeded),
        says(9, 0, RunPhase::Running),
    ];
    let mut agent = Agent::try_open_from(old, &state.channel, "n1", registered, running.clone()).await;
    let Message::Stop(stops) = agent.next().await else { panic!("what is left over comes first") };
    let left_over: Vec<_> = stops.stops.iter().map(|stop| (stop.unit_id, stop.ordinal)).collect();
    assert!(stops.left_over);
    assert_eq!(left_over, [(1, 3), (9, 0)]);
    let Message::Welcome(welcome) = agent.next().await else { panic!("then it is welcome") };
    assert_eq!(welcome.store_id, new);
    assert_eq!(agent.assigned().await, [(1, 2, 0), (1, 3, 0)]);
    let phases = [RunPhase::Running, RunPhase::Succeeded, RunPhase::Bound, RunPhase::Bound].map(i32::from);
    until("what goes on is recorded", async || (state.row_phases(1).await == phases).then_some(())).await;

    // Once it is welcome nothing is left over.
    let registered = state.register("n1").await;
    let mut agent = Agent::try_open_from(new, &state.channel, "n1", registered, running).await;
    assert!(matches!(agent.next().await, Message::Welcome(_)));
    state.stop().await;
}
