//! More comes than the control plane can place.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use anyhow::{Result, ensure};
use godel_integration_tests::{
    api,
    cluster::Cluster,
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
const DISPATCHERS: [&str; 2] = ["dispatcher-1", "dispatcher-2"];
const BINDERS: [&str; 3] = ["binder-1", "binder-2", "binder-3"];

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

pub(crate) async fn calls_beyond_the_limit_are_refused_and_none_is_lost(cluster: &mut Cluster) {
    // Both of them: whoever leads has the limit.
    for name in DISPATCHERS {
        cluster.kill(name);
        let limit = ("GODEL_DISPATCHER__CALLS_IN_HAND_MAX".to_owned(), IN_HAND_MAX.to_string());
        cluster.restart_with(name, &[limit]);
    }
    cluster.wait_ready().await;
    let before = cluster.wait_all_bound(0).await.units.len();
    // Whatever is admitted stays in hand.
    for name in BINDERS {
        cluster.freeze(name);
    }
    let leader = cluster.api.holder("dispatcher").await.unwrap().address;
    let refused = Arc::new(AtomicUsize::new(0));
    let clients = LocalSet::new();
    let calls: Vec<_> = (0..N_CLIENTS)
        .map(|number| clients.spawn_local(submit(leader.clone(), number, Arc::clone(&refused))))
        .collect();
    clients.run_until(all_but_those_in_hand_are_refused(cluster, before, &refused)).await;
    for name in BINDERS {
        cluster.thaw(name);
    }
    clients.await;
    for call in calls {
        assert!(call.await.unwrap().unwrap() > 0, "admitted at a revision");
    }
    let records = cluster.wait_all_bound(before + N_CLIENTS).await;
    assert_eq!(records.units.len(), before + N_CLIENTS);
    let status = cluster.api.dispatcher_status().await.unwrap();
    assert_eq!((status.queued_units, status.repairs), (0, 0));
    cluster.audit(&[]);
    for name in DISPATCHERS {
        cluster.kill(name);
        cluster.restart(name);
    }
    cluster.wait_ready().await;
}

/// A call is in hand before its unit is admitted, so the last ones may be admitted after the others were refused.
async fn all_but_those_in_hand_are_refused(cluster: &Cluster, n_before: usize, refused: &AtomicUsize) {
    let n_units = wait_for("all the others to be refused", LIMIT, async || {
        let n_refused = refused.load(SeqCst);
        ensure!(n_refused >= N_CLIENTS - IN_HAND_MAX, "refused: {n_refused}");
        let status = cluster.api.dispatcher_status().await?;
        let n_units = usize::try_from(status.units)?.saturating_sub(n_before);
        ensure!(n_units >= IN_HAND_MAX, "{status:?}");
        anyhow::Ok(n_units)
    })
    .await;
    assert_eq!(n_units, IN_HAND_MAX, "no more are admitted than are taken in hand");
}
