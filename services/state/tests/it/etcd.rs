//! State with its store in a real etcd.

use std::{path::Path, time::Duration};

use godel_etcd::process::{EtcdProcesses, ProcessConfig};
use godel_kit::config::HumanDuration;
use godel_proto::v1;
use godel_state::EngineKind;
use godel_testkit::skip;

use crate::harness::{PATIENCE, State, put_unit};

/// A state whose directory is `dir`, in the etcd of `processes`.
async fn start(processes: &EtcdProcesses, dir: &Path) -> State {
    let (endpoints, data_dir) = (processes.endpoints(), dir.to_owned());
    State::start_as_configured(move |config| {
        config.engine = EngineKind::Etcd;
        config.data_dir = data_dir;
        config.etcd.endpoints = endpoints;
        config.etcd.timeout = HumanDuration::from_millis(500);
    })
    .await
}

async fn status(state: &State) -> v1::GetStoreStatusResponse {
    state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner()
}

/// Waits until commits wait for etcd, or do so no longer.
async fn until_waiting(state: &State, waits: bool) -> String {
    let waiting = async {
        loop {
            let why = status(state).await.waiting_for;
            if why.is_empty() != waits {
                return why;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("commits wait in vain")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_keeps_its_records_in_etcd_and_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut processes = match EtcdProcesses::start(ProcessConfig::new(dir.path().join("etcd"))) {
        Ok(processes) => processes,
        Err(why) => return skip(why),
    };
    let state = start(&processes, &dir.path().join("state")).await;
    let mut dispatcher = state.writer("dispatcher").await;
    state.register("n1").await;
    let first = dispatcher.write([put_unit(1)]).await.unwrap();
    let now = status(&state).await;
    assert!(now.engine == "etcd" && now.revision >= first && now.waiting_for.is_empty(), "{now:?}");

    processes.kill(0);
    let pending = tokio::spawn(async move { dispatcher.write([put_unit(2)]).await });
    let why = until_waiting(&state, true).await;
    assert!(why.contains("127.0.0.1"), "{why}");
    assert_eq!(state.list(&[v1::Kind::Unit]).await.len(), 1, "reads go on");
    processes.restart(0).unwrap();
    pending.await.unwrap().unwrap();
    until_waiting(&state, false).await;

    // It stops and starts while etcd is away.
    processes.pause(0);
    let before = state.list(&[v1::Kind::Unit, v1::Kind::NodeSpec]).await;
    let state = state.restart().await;
    processes.resume(0);
    assert_eq!(state.list(&[v1::Kind::Unit, v1::Kind::NodeSpec]).await, before);
    state.stop().await;

    // On another machine.
    let state = start(&processes, &dir.path().join("other")).await;
    assert_eq!(state.list(&[v1::Kind::Unit, v1::Kind::NodeSpec]).await, before);
    state.stop().await;
}
