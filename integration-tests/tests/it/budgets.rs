//! Disruption budgets through command line and API: what preemption and drains may take, whoever decides.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use prost::Message as _;

fn two_nodes() -> Layout {
    Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 2, n_binders: 1, ..Layout::default() }
}

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

fn fails(cluster: &Cluster, args: &[&str], code: i32, part: &str) {
    let output = cluster.godel(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", shown(&output));
    assert!(shown(&output).contains(part), "{args:?}: {}", shown(&output));
}

/// A unit of whole nodes of 4 cores.
fn whole(name: &str, priority: i32, replicas: u32, app: &str) -> v1::UnitSpec {
    let spec = unit(name, "", replicas, resources(4_000, 16), None, 0);
    let meta = spec.meta.map(|meta| v1::ObjectMeta { labels: [("app".into(), app.into())].into(), ..meta });
    v1::UnitSpec { meta, priority: Some(priority), ..spec }
}

async fn n_running(cluster: &Cluster, name: &str) -> Result<u32> {
    let unit = cluster.api.get_unit(name).await?.unit.unwrap_or_default();
    Ok(unit.counts.unwrap_or_default().running)
}

async fn wait_running(cluster: &Cluster, name: &str, n: u32) {
    wait_for(&format!("{n} running units of {name}"), LIMIT, async || {
        let running = n_running(cluster, name).await?;
        ensure!(running == n, "{running} run");
        Ok(())
    })
    .await;
}

fn described(cluster: &Cluster, name: &str) -> serde_json::Value {
    let output = cluster.godel(&["budget", "describe", name, "-o", "json"]);
    assert!(output.status.success(), "{}", shown(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Expected, available, required, allowed.
fn counts(cluster: &Cluster, name: &str) -> [u64; 4] {
    let view = described(cluster, name);
    ["expected", "available", "required", "allowed"].map(|field| view[field].as_u64().unwrap())
}

async fn wait_counts(cluster: &Cluster, name: &str, expected: [u64; 4]) {
    wait_for(&format!("the use of {name} to be {expected:?}"), LIMIT, async || {
        let found = counts(cluster, name);
        ensure!(found == expected, "{found:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preemption_takes_what_budgets_allow_and_no_more() {
    let mut cluster = Cluster::start(two_nodes()).await;
    cluster.start_agent("agent-2", &["4x cpu=4,memory=8Gi,name=small".to_owned()], &[], 4).await;
    run(&cluster, &["node", "cordon", "openb-node-0000"]);
    cluster.api.submit(whole("web", 1, 2, "web")).await.unwrap();
    cluster.api.submit(whole("api", 1, 2, "web")).await.unwrap();
    for name in ["web", "api"] {
        wait_running(&cluster, name, 2).await;
    }
    let file = cluster.path("budgets.yaml");
    let text = "kind: disruption-budget\nname: web\nselector: {app: web}\nmax_unavailable: 25%\n";
    std::fs::write(&file, text).unwrap();
    let apply = ["apply", "-f", file.to_str().unwrap()];
    assert!(run(&cluster, &apply).contains("disruption-budget web created"));
    assert!(run(&cluster, &apply).contains("disruption-budget web unchanged"));
    assert_eq!(described(&cluster, "web")["units"], 2);
    assert_eq!(counts(&cluster, "web"), [4, 4, 3, 1]);

    // Three seekers at two schedulers: one of them gets what may be missing, the others wait.
    for name in ["high-1", "high-2", "high-3"] {
        cluster.api.submit(whole(name, 9, 1, "batch")).await.unwrap();
    }
    wait_counts(&cluster, "web", [4, 3, 3, 0]).await;
    wait_for("one seeker to run and two to wait", LIMIT, async || {
        let (mut n, mut n_parked) = (0, 0);
        for name in ["high-1", "high-2", "high-3"] {
            let unit = cluster.api.get_unit(name).await?.unit.unwrap_or_default();
            n += unit.counts.unwrap_or_default().running;
            n_parked += u32::from(unit.phase() == v1::UnitPhase::Unschedulable);
        }
        ensure!((n, n_parked) == (1, 2), "{n} run, {n_parked} wait");
        Ok(())
    })
    .await;
    assert_eq!(counts(&cluster, "web"), [4, 3, 3, 0]);

    // One more may be missing: somebody looks again.
    run(&cluster, &["budget", "set", "web", "--max-unavailable", "2"]);
    wait_counts(&cluster, "web", [4, 2, 2, 0]).await;
    fails(
        &cluster,
        &["budget", "set", "web", "--min-available", "1", "--revision", "1"],
        5,
        "it has changed",
    );
    fails(&cluster, &["budget", "create", "web", "--unit", "web"], 5, "`godel budget set` changes it");
    fails(&cluster, &["budget", "create", "none"], 2, "unit: neither a unit nor labels");
    fails(
        &cluster,
        &["budget", "create", "x", "--unit", "x", "--min-available", "few"],
        2,
        "`few` is neither",
    );
    fails(&cluster, &["budget", "describe", "nobody"], 4, "`godel budget list` shows");
    let listed = run(&cluster, &["budget", "list"]);
    assert!(listed.contains("max-unavailable=2"), "{listed}");
    run(&cluster, &["budget", "delete", "web"]);
    for name in ["high-1", "high-2", "high-3"] {
        wait_running(&cluster, name, 1).await;
    }
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_a_budget_and_its_deadline_does_not() {
    let mut cluster = Cluster::start(two_nodes()).await;
    cluster.start_agent("agent-2", &["2x cpu=8,memory=16Gi,name=old,label.rack=r1".to_owned()], &[], 2).await;
    run(&cluster, &["node", "cordon", "openb-node-0000"]);
    for name in ["web", "api"] {
        // A batch unit alone would spare all but one at once.
        cluster.api.submit(whole(name, 1, 2, "web")).await.unwrap();
        wait_running(&cluster, name, 2).await;
    }
    run(&cluster, &["budget", "create", "web", "-l", "app=web", "--max-unavailable", "1"]);
    assert_eq!(counts(&cluster, "web"), [4, 4, 3, 1]);
    let from = cluster.api.store_status().await.unwrap().revision;

    // Nowhere else to go: the second one waits for the first.
    run(&cluster, &["node", "drain", "-l", "rack=r1"]);
    wait_counts(&cluster, "web", [4, 3, 3, 0]).await;
    wait_for("a node that waits for the budget", LIMIT, async || {
        let said = ["old-0000", "old-0001"].map(|node| run(&cluster, &["node", "describe", node])).concat();
        ensure!(said.contains("disruption budget web: 3 of 4 are available, max_unavailable 1"), "{said}");
        Ok(())
    })
    .await;
    run(&cluster, &["node", "uncordon", "openb-node-0000"]);
    wait_for("all of them elsewhere", LIMIT, async || {
        for name in ["web", "api"] {
            let running = cluster.api.get_unit(name).await?.running_units;
            let moved =
                |one: &v1::RunningUnit| one.phase() == v1::RunPhase::Running && one.node.starts_with("openb");
            ensure!(running.len() == 2 && running.iter().all(moved), "{running:?}");
        }
        Ok(())
    })
    .await;
    // Never two told to leave before the first one's successor ran.
    let (mut n_gone, mut n_back) = (0, 0);
    let seen = cluster.api.watch_until(from + 1, &[v1::Kind::Rows], |commit| {
        for op in &commit.ops {
            match v1::Op::decode(op.clone()).unwrap().op {
                Some(v1::op::Op::Evict(evict)) => n_gone += evict.ordinals.len(),
                Some(v1::op::Op::RunStatus(statuses)) => {
                    n_back += statuses.phases().filter(|phase| *phase == v1::RunPhase::Running).count();
                }
                _ => {}
            }
            assert!(n_gone <= n_back + 1, "{n_gone} gone, {n_back} back at revision {}", commit.revision);
        }
        n_back == 4
    });
    seen.await.unwrap();

    run(&cluster, &["node", "undrain", "-l", "rack=r1"]);
    run(&cluster, &["budget", "set", "web", "--max-unavailable", "0"]);
    let said = cluster.godel(&["node", "drain", "openb-node-0000", "--wait", "--timeout", "3s"]);
    assert_eq!(said.status.code(), Some(6), "{}", shown(&said));
    assert!(shown(&said).contains("disruption budget web"), "{}", shown(&said));
    assert_eq!(counts(&cluster, "web"), [4, 4, 4, 0]);
    let said = run(
        &cluster,
        &["node", "drain", "openb-node-0000", "--deadline", "1s", "--wait", "--timeout", "50s"],
    );
    assert!(said.contains("1 node is empty"), "{said}");
    cluster.audit(&[]);
    cluster.assert_quiet();
}
