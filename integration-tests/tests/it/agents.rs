//! What agents do by themselves: stop without contact what must not run twice.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::Cluster,
    trace::{resources, unit},
    wait::{LIMIT, keep_up, wait_for},
};
use godel_proto::v1;
use prost::Message as _;

use crate::machines::STOP_AFTER;

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

/// Without contact, or while their agent is paused, gangs stop and services go on.
pub(crate) async fn lose_contact_with_simulated_nodes(cluster: &mut Cluster) {
    const AGENT: &str = "simulated";
    let shapes = ["1x cpu=8,memory=16Gi,name=simulated".to_owned()];
    // The connection stays: the agent finds out by itself.
    let settings = ["agent.client.keepalive_timeout=60s".to_owned()];
    cluster.start_agent(AGENT, &shapes, &settings, 1).await;
    cluster.wait_ready().await;
    let of_class = |name: &str, replicas, class: v1::WorkloadClass| v1::UnitSpec {
        workload_class: class.into(),
        ..unit(name, "", replicas, resources(10, 1), None, 0)
    };
    cluster.api.submit(of_class("web", 1, v1::WorkloadClass::Service)).await.unwrap();
    cluster.api.submit(of_class("ring", 2, v1::WorkloadClass::Gang)).await.unwrap();
    wait_running(cluster, "web", 1, 0).await;
    wait_running(cluster, "ring", 2, 0).await;

    // State hears nothing any more, while the agent still hears state.
    let unit_id = cluster.api.get_unit("ring").await.unwrap().unit.unwrap().unit_id;
    let proxy = cluster.proxy_to_state(AGENT);
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
    wait_running(cluster, "ring", 2, 1).await;
    wait_running(cluster, "web", 1, 0).await;

    // A pause of the whole process is the same.
    cluster.freeze(AGENT);
    keep_up(STOP_AFTER).await;
    cluster.thaw(AGENT);
    wait_running(cluster, "ring", 2, 2).await;
    wait_running(cluster, "web", 1, 0).await;
    cluster.audit(&[]);
    cluster.delete_units(&["web", "ring"]);
    cluster.retire_agent(AGENT, "simulated-0000").await;
}
