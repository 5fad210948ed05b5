//! More comes than the control plane can place.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    api,
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use tokio::task::LocalSet;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Units in hand at most.
const IN_HAND_MAX: usize = 8;
/// Clients, each with one unit: ten times as many.
const N_CLIENTS: usize = 10 * IN_HAND_MAX;

/// A refusal that says when to come back.
fn is_for_now(refusal: &Status) -> bool {
    refusal.code() == Code::ResourceExhausted
        && refusal.get_details_error_info().is_some_and(|info| info.reason == "OVERLOADED")
        && refusal
            .get_details_retry_info()
            .and_then(|retry| retry.retry_delay)
            .is_some_and(|delay| !delay.is_zero())
}

/// Tries until the unit is admitted; counts itself among those refused once it has been.
async fn submit(dispatcher: String, number: usize, refused: Arc<AtomicUsize>) -> Result<u64> {
    let mut client = UnitServiceClient::new(api::channel(&dispatcher)?);
    let uid = uuid::Uuid::now_v7().to_string();
    let request = v1::SubmitUnitRequest {
        unit: Some(unit(&format!("u{number:02}"), &uid, 1, resources(100, 16), None, 0)),
    };
    let mut was_refused = false;
    let answer = wait_for("an admission", LIMIT, async || match client.submit_unit(request.clone()).await {
        Ok(answer) => Ok(answer.into_inner()),
        Err(refusal) => {
            if is_for_now(&refusal) && !std::mem::replace(&mut was_refused, true) {
                refused.fetch_add(1, SeqCst);
            }
            Err(refusal)
        }
    })
    .await;
    Ok(answer.revision)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limit_are_refused_and_none_is_lost() {
    let layout = Layout {
        n_nodes: 20,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        settings: vec![("dispatcher.calls_in_hand_max".into(), IN_HAND_MAX.to_string())],
        ..Layout::default()
    };
    let mut cluster = Cluster::start(layout).await;
    // Whatever is admitted stays in hand.
    cluster.freeze("binder-1");
    let leader = cluster.api.holder("dispatcher").await.unwrap().address;
    let refused = Arc::new(AtomicUsize::new(0));
    let clients = LocalSet::new();
    let calls: Vec<_> = (0..N_CLIENTS)
        .map(|number| clients.spawn_local(submit(leader.clone(), number, Arc::clone(&refused))))
        .collect();
    clients.run_until(all_but_those_in_hand_are_refused(&cluster, &refused)).await;
    cluster.thaw("binder-1");
    clients.await;
    for call in calls {
        assert!(call.await.unwrap().unwrap() > 0, "admitted at a revision");
    }
    let records = cluster.wait_all_bound(N_CLIENTS).await;
    assert_eq!(records.units.len(), N_CLIENTS);
    let status = cluster.api.dispatcher_status().await.unwrap();
    assert_eq!((status.queued_units, status.repairs), (0, 0));
    cluster.audit(&[]);
}

/// A call is in hand before its unit is admitted, so the last ones may be admitted after the others were refused.
async fn all_but_those_in_hand_are_refused(cluster: &Cluster, refused: &AtomicUsize) {
    let n_units = wait_for("all the others to be refused", LIMIT, async || {
        let n_refused = refused.load(SeqCst);
        ensure!(n_refused >= N_CLIENTS - IN_HAND_MAX, "refused: {n_refused}");
        let status = cluster.api.dispatcher_status().await?;
        ensure!(status.units >= IN_HAND_MAX as u64, "{status:?}");
        anyhow::Ok(status.units)
    })
    .await;
    assert_eq!(n_units, IN_HAND_MAX as u64, "no more are admitted than are taken in hand");
}
