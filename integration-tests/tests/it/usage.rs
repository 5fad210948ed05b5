//! What a real node and its running units use, as `godel top` shows it, and best-effort work that gives way: checks of one real node.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, kept, shown},
    trace::resources,
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

use super::{
    keepers::{NODE, command, wait_running},
    processes::end,
};

/// What a command prints as JSON.
fn json(cluster: &Cluster, arguments: &[&str]) -> Result<serde_json::Value> {
    let output = cluster.godel(&[arguments, &["-o", "json"]].concat());
    ensure!(output.status.success(), "{}", shown(&output));
    Ok(serde_json::from_slice(&output.stdout)?)
}

pub(crate) async fn use_of_nodes_and_running_units_is_measured(cluster: &Cluster) {
    // One fills 64 MiB and sleeps, the other keeps a tenth of a CPU busy.
    let fill = "x=$(head -c 64M /dev/zero | tr '\\0' x); while :; do sleep 100; done";
    for (name, script) in [("fills", fill), ("works", "while :; do :; done")] {
        let mut spec = command(name, 1, script, name);
        let template = spec.task_groups[0].template.as_mut().unwrap();
        template.demand.as_mut().unwrap().requests = Some(resources(100, 512));
        cluster.api.submit(spec).await.unwrap();
        wait_running(cluster, name, 1).await;
    }
    wait_for("the use of the node", LIMIT, async || {
        let nodes = json(cluster, &["top", "node", NODE])?;
        let used = |name: &str| nodes[0]["used"][name].as_i64().unwrap_or(0);
        ensure!(used("cpu") > 0 && used("memory") > 64 << 20, "{nodes}");
        ensure!(nodes[0]["network"]["received"].is_i64() && nodes[0]["network"]["sent"].is_i64(), "{nodes}");
        Ok(())
    })
    .await;
    if cluster.log(NODE).contains("without control groups") {
        cluster.note("SKIPPED: there are no control groups here, by which running units are measured");
        return end(cluster, &["fills", "works"]).await;
    }
    wait_for("the use of running units", LIMIT, async || {
        let units = json(cluster, &["top", "unit", "--replicas", "--sort", "memory"])?;
        ensure!(units.as_array().is_some_and(|units| units.len() == 2), "{units}");
        ensure!(units[0]["unit"] == "fills" && units[0]["node"] == NODE, "{units}");
        ensure!(units[0]["memory"].as_i64() > Some(64 << 20), "{units}");
        ensure!(units[1]["unit"] == "works" && units[1]["cpu_milli"].as_i64() > Some(0), "{units}");
        Ok(())
    })
    .await;
    // Whatever this machine can do about bandwidths, it is said, and done.
    let described = shown(&cluster.godel(&["node", "describe", NODE]));
    assert!(
        described.contains("\nbandwidths\nnetwork ") && described.contains("\nmemory-bandwidth "),
        "{described}"
    );
    if described.contains("network measured") {
        wait_for("the network use of running units", LIMIT, async || {
            let units = json(cluster, &["top", "unit", "--replicas"])?;
            let is_measured = |unit: &serde_json::Value| unit["network"]["sent"] == 0;
            ensure!(units.as_array().is_some_and(|units| units.iter().all(is_measured)), "{units}");
            Ok(())
        })
        .await;
    }
    let missing = cluster.godel(&["top", "unit", "nobody"]);
    assert_eq!(missing.status.code(), Some(4), "{}", shown(&missing));
    end(cluster, &["fills", "works"]).await;
}

/// The first check of a node: what it is busy with later may leave no room for best-effort work.
pub(crate) async fn best_effort_work_gives_way_without_memory(cluster: &mut Cluster) {
    // However much there is: it is short of memory as soon as its agent says so.
    if cluster.log(NODE).contains("without control groups") {
        return cluster
            .note("SKIPPED: there are no control groups here, by which running units are measured");
    }
    let (spare, firm) = (format!("spare-{}", std::process::id()), format!("firm-{}", std::process::id()));
    let mut low = command("spare", 1, "exec sleep 100000", &spare);
    low.pool = v1::Pool::BestEffort.into();
    cluster.api.submit(low).await.unwrap();
    cluster.api.submit(command("firm", 1, "exec sleep 100000", &firm)).await.unwrap();
    wait_running(cluster, "spare", 1).await;
    wait_running(cluster, "firm", 1).await;
    let (_, kept_by) = (cluster.stop(NODE).await, kept::with_env("MARK", &firm));
    // Less than all of it is always available.
    cluster.restart_with(NODE, &[("GODEL_AGENT__MEMORY_LOW_PERCENT".to_owned(), "100".to_owned())]);
    wait_for("best-effort work to give way", LIMIT, async || {
        let running = cluster.api.get_unit("spare").await?.running_units;
        ensure!(
            running.iter().any(|run| run.incarnation > 0 || run.reason() == v1::RunEndReason::Squeezed),
            "{running:?}"
        );
        Ok(())
    })
    .await;
    assert!(cluster.log(NODE).contains("memory is short"), "the agent says so");
    assert_eq!(kept::with_env("MARK", &firm), kept_by, "guaranteed work goes on");
    end(cluster, &["spare", "firm"]).await;
    cluster.stop(NODE).await;
    cluster.restart(NODE);
    cluster.announce(&["memory is short"]);
    cluster.wait_ready().await;
}
