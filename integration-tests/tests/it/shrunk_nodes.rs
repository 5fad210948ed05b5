//! A node that comes back with less than it had keeps what runs there, and gets nothing new until it fits.

use anyhow::ensure;
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

/// CPU of a node that may be used, milli.
async fn cpu(cluster: &Cluster, name: &str) -> anyhow::Result<i64> {
    let request = v1::GetNodeRequest { name: name.into() };
    let node = cluster.api.nodes().get_node(request).await?.into_inner().node.unwrap_or_default();
    ensure!(node.connected && node.report.is_some_and(|report| report.ready), "{name} is not back");
    Ok(node.allocatable.unwrap_or_default().amounts.get("cpu").copied().unwrap_or(0))
}

async fn wait_running(cluster: &Cluster, name: &str, ordinals: &[u32]) {
    wait_for(&format!("{name} {ordinals:?}"), LIMIT, async || {
        let runs = cluster.api.get_unit(name).await?.running_units;
        let is_running = |run: &&v1::RunningUnit| run.phase() == v1::RunPhase::Running && !run.evicting;
        let running: Vec<(u32, u32)> =
            runs.iter().filter(is_running).map(|run| (run.ordinal, run.incarnation)).collect();
        let expected: Vec<(u32, u32)> = ordinals.iter().map(|ordinal| (*ordinal, 0)).collect();
        ensure!(running == expected, "{runs:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shrunk_node_keeps_what_it_has_and_gets_nothing_new_until_it_fits() {
    let layout = Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 1, n_binders: 1, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(&["session", "not ready"]);
    cluster.add_agent("agent-2", "1x cpu=8,memory=16Gi,name=old", 1).await;
    let output = cluster.godel(&["node", "cordon", "openb"]);
    assert!(output.status.success(), "{}", shown(&output));
    let of = |name: &str, replicas| unit(name, "", replicas, resources(1_000, 16), None, 0);
    cluster.api.submit(of("first", 6)).await.unwrap();
    wait_running(&cluster, "first", &[0, 1, 2, 3, 4, 5]).await;

    // The same node: none more.
    cluster.stop("agent-2").await;
    cluster.add_agent("agent-3", "1x cpu=3,memory=16Gi,name=old", 0).await;
    wait_for("the smaller node", LIMIT, async || {
        let cpu = cpu(&cluster, "old").await?;
        ensure!(cpu == 3_000, "{cpu}");
        Ok(())
    })
    .await;
    cluster.api.submit(of("second", 1)).await.unwrap();
    wait_for("a failed try", LIMIT, async || {
        let unit = cluster.api.get_unit("second").await?.unit.unwrap_or_default();
        ensure!(unit.phase() == v1::UnitPhase::Unschedulable, "{:?}", unit.phase());
        Ok(())
    })
    .await;
    wait_running(&cluster, "first", &[0, 1, 2, 3, 4, 5]).await;
    cluster.audit(&[]);

    // Three fit, so all of it is in use; with two there is room for one more.
    let output = cluster.godel(&["unit", "stop", "first", "0", "2", "4"]);
    assert!(output.status.success(), "{}", shown(&output));
    wait_running(&cluster, "first", &[1, 3, 5]).await;
    let second = cluster.api.get_unit("second").await.unwrap().unit.unwrap();
    assert_eq!(second.phase(), v1::UnitPhase::Unschedulable);
    let output = cluster.godel(&["unit", "stop", "first", "3"]);
    assert!(output.status.success(), "{}", shown(&output));
    wait_running(&cluster, "second", &[0]).await;
    wait_running(&cluster, "first", &[1, 5]).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}
