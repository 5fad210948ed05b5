//! Time limits of units: waiting, being active, being kept after the end.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

async fn view(cluster: &Cluster, name: &str) -> Result<v1::Unit> {
    Ok(cluster.api.get_unit(name).await?.unit.unwrap_or_default())
}

async fn wait_for_phase(cluster: &Cluster, name: &str, phase: v1::UnitPhase) -> v1::Unit {
    wait_for(&format!("{name} {phase:?}"), LIMIT, async || {
        let unit = view(cluster, name).await?;
        ensure!(unit.phase() == phase, "{:?} {:?}", unit.phase(), unit.counts);
        Ok(unit)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_wait_are_active_or_are_over_for_too_long() {
    let layout = Layout { n_nodes: 1, n_dispatchers: 2, n_schedulers: 1, n_binders: 1, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(&["lease"]);
    run(&cluster, &["queue", "create", "closed", "--max", "cpu=1m"]);
    // Nothing but its queue holds it up, and its scheduler never sees it.
    let args = ["unit", "submit", "--name", "late", "--queue", "closed", "--cpu", "1"];
    run(&cluster, &[&args[..], &["--scheduling-timeout", "1s"]].concat());
    let late = wait_for_phase(&cluster, "late", v1::UnitPhase::Unschedulable).await;
    let plugins: Vec<String> =
        late.refusals.unwrap_or_default().reasons.into_iter().map(|reason| reason.plugin).collect();
    assert_eq!(plugins, ["scheduling-timeout", "queue"]);
    run(&cluster, &["queue", "set", "closed", "--max", "cpu=2"]);
    let late = wait_for_phase(&cluster, "late", v1::UnitPhase::Running).await;
    assert_eq!(late.refusals, None);

    // The deadline follows from the records: another leader keeps it.
    let args = ["unit", "submit", "--name", "long", "--cpu", "1", "--replicas", "2"];
    run(&cluster, &[&args[..], &["--active-deadline", "4s", "--on-eviction", "fail"]].concat());
    wait_for_phase(&cluster, "long", v1::UnitPhase::Running).await;
    let leader = cluster.leader("dispatcher").await;
    let epoch = cluster.api.holder("dispatcher").await.unwrap().epoch;
    cluster.kill(&leader);
    cluster.wait_other_leader("dispatcher", epoch).await;
    let long = wait_for_phase(&cluster, "long", v1::UnitPhase::Failed).await;
    assert_eq!(long.spec.unwrap().ended(), v1::UnitEnd::Deadline);
    wait_for("the end of both replicas", LIMIT, async || {
        let counts = view(&cluster, "long").await?.counts.unwrap_or_default();
        ensure!(counts.bound == 0 && counts.pending == 0, "{counts:?}");
        Ok(())
    })
    .await;
    let said = run(&cluster, &["unit", "describe", "long"]);
    assert!(said.contains("by the dispatcher: deadline"), "{said}");
    let output = cluster.godel(&["unit", "resume", "long"]);
    assert!(shown(&output).contains("the unit is over: Failed"), "{}", shown(&output));

    // Expiry after the end: the record goes, and with it everything that would name it.
    let brief =
        v1::UnitSpec { ttl_after_finished_ms: 500, ..unit("brief", "", 2, resources(100, 16), None, 200) };
    let unit_id = cluster.api.submit(brief).await.unwrap().unit_id;
    wait_for("the expiry", LIMIT, async || {
        let records = cluster.api.records().await?;
        let (spec, rows) = (records.units.get(&unit_id), records.rows.get(&unit_id));
        ensure!(spec.is_none() && rows.is_none(), "{spec:?} {rows:?}");
        Ok(())
    })
    .await;
    let output = cluster.godel(&["unit", "describe", "brief"]);
    assert_eq!(output.status.code(), Some(4), "{}", shown(&output));
    cluster.audit(&[]);
    cluster.assert_quiet();
}
