//! What agents do by themselves: stop without contact what must not run twice.

use std::time::Duration;

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, keep_up, wait_for},
};
use godel_proto::v1;
use prost::Message as _;

/// One node, one of each service.
fn tiny(env: &[(&'static str, &'static str, &str)]) -> Layout {
    Layout {
        n_nodes: 1,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        env: env.iter().map(|(process, key, value)| (*process, *key, (*value).to_owned())).collect(),
        ..Layout::default()
    }
}

/// Waits until every replica of the unit runs as `incarnation`.
async fn wait_running(cluster: &Cluster, name: &str, n_running: usize, incarnation: u32) {
    wait_for(&format!("{name} to run as incarnation {incarnation}"), LIMIT, async || {
        let running = cluster.api.get_unit(name).await?.running_units;
        let is_so =
            |run: &v1::RunningUnit| run.phase() == v1::RunPhase::Running && run.incarnation == incarnation;
        ensure!(running.len() == n_running && running.iter().all(is_so), "{running:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_contact_gangs_stop_and_services_go_on() {
    const STOP_AFTER: Duration = Duration::from_secs(4);
    let layout = tiny(&[
        ("state", "GODEL_STATE__HEARTBEAT_INTERVAL", "200ms"),
        ("state", "GODEL_STATE__NODE_LEASE_TTL", "2s"),
        ("state", "GODEL_STATE__NODE_GRACE", "10s"),
        ("state", "GODEL_STATE__STOP_AFTER_DISCONNECT", "4s"),
        // The connection stays: the agent finds out by itself.
        ("agent", "GODEL_AGENT__CLIENT__KEEPALIVE_TIMEOUT", "60s"),
    ]);
    let mut cluster = Cluster::start(Layout { is_proxied: true, ..layout }).await;
    cluster.announce(&["no contact for too long"]);
    let of_class = |name: &str, replicas, class: v1::WorkloadClass| v1::UnitSpec {
        workload_class: class.into(),
        ..unit(name, "", replicas, resources(10, 1), None, 0)
    };
    cluster.api.submit(of_class("web", 1, v1::WorkloadClass::Service)).await.unwrap();
    cluster.api.submit(of_class("ring", 2, v1::WorkloadClass::Gang)).await.unwrap();
    wait_running(&cluster, "web", 1, 0).await;
    wait_running(&cluster, "ring", 2, 0).await;

    // State hears nothing any more, while the agent still hears state.
    let unit_id = cluster.api.get_unit("ring").await.unwrap().unit.unwrap().unit_id;
    let proxy = cluster.proxy_to_state("agent");
    proxy.hold();
    wait_for("the agent to stop the gang", LIMIT, async || {
        for ordinal in 0..2 {
            let phase = v1::RunPhase::Stopped.into();
            let stopped =
                v1::RunStatus { unit_id, ordinal, phase, exit_code: 143, ..v1::RunStatus::default() };
            ensure!(proxy.holds(&stopped.encode_to_vec()), "{ordinal} runs");
        }
        Ok(())
    })
    .await;
    proxy.heal();
    wait_running(&cluster, "ring", 2, 1).await;
    wait_running(&cluster, "web", 1, 0).await;

    // A pause of the whole process is the same.
    cluster.freeze("agent");
    keep_up(STOP_AFTER).await;
    cluster.thaw("agent");
    wait_running(&cluster, "ring", 2, 2).await;
    wait_running(&cluster, "web", 1, 0).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}
