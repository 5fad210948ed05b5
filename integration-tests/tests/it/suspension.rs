//! Suspended units: what runs is stopped, the record stays, and what is resumed comes back as its next incarnation.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

fn one_node() -> Layout {
    Layout { n_nodes: 1, n_dispatchers: 2, n_schedulers: 2, n_binders: 1, ..Layout::default() }
}

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

async fn cpu(cluster: &Cluster) -> i64 {
    let nodes =
        cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    nodes[0].allocatable.as_ref().unwrap().amounts["cpu"]
}

async fn view(cluster: &Cluster, name: &str) -> Result<v1::Unit> {
    Ok(cluster.api.get_unit(name).await?.unit.unwrap_or_default())
}

/// Waits until the unit is in `phase` with so many live running units, and none on its way out.
async fn wait_for_phase(cluster: &Cluster, name: &str, phase: v1::UnitPhase, n_live: u32) {
    wait_for(&format!("{name} {phase:?} with {n_live}"), LIMIT, async || {
        let unit = view(cluster, name).await?;
        let counts = unit.counts.unwrap_or_default();
        ensure!(unit.phase() == phase && counts.bound == n_live, "{:?} {counts:?}", unit.phase());
        ensure!(counts.evicting == 0, "{counts:?}");
        Ok(())
    })
    .await;
}

/// Ordinals and incarnations of what runs.
async fn running(cluster: &Cluster, name: &str) -> Vec<(u32, u32)> {
    let runs = cluster.api.get_unit(name).await.unwrap().running_units;
    let is_running = |run: &&v1::RunningUnit| run.phase() == v1::RunPhase::Running;
    runs.iter().filter(is_running).map(|run| (run.ordinal, run.incarnation)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_gang_gives_its_quota_back_and_is_resumed_whole_whoever_leads() {
    let mut cluster = Cluster::start(one_node()).await;
    cluster.announce(&["lease"]);
    let cpu_milli = cpu(&cluster).await / 8;
    let max = cpu_milli * 4;
    run(&cluster, &["queue", "create", "team", "--max", &format!("cpu={max}m")]);
    let of = |name: &str, class: v1::WorkloadClass| v1::UnitSpec {
        workload_class: class.into(),
        queue: "team".to_owned(),
        on_below_min: v1::OnBelowMin::Stop.into(),
        ..unit(name, "", 4, resources(cpu_milli, 1), None, 0)
    };
    cluster.api.submit(of("ring", v1::WorkloadClass::Gang)).await.unwrap();
    wait_for_phase(&cluster, "ring", v1::UnitPhase::Running, 4).await;
    cluster.api.submit(of("next", v1::WorkloadClass::Gang)).await.unwrap();
    wait_for("the full queue", LIMIT, async || {
        let refusals = view(&cluster, "next").await?.refusals.unwrap_or_default();
        ensure!(refusals.reasons.iter().any(|reason| reason.plugin == "queue"), "{refusals:?}");
        Ok(())
    })
    .await;

    let output = cluster.godel(&["unit", "suspend", "ring", "--revision", "1"]);
    assert_eq!(output.status.code(), Some(5), "{}", shown(&output));
    run(&cluster, &["unit", "suspend", "ring"]);
    run(&cluster, &["unit", "suspend", "ring"]);
    // The room under the maximum is free for the other one, which shows that the quota is back.
    wait_for_phase(&cluster, "ring", v1::UnitPhase::Suspended, 0).await;
    wait_for_phase(&cluster, "next", v1::UnitPhase::Running, 4).await;
    let said = run(&cluster, &["unit", "list", "--phase", "suspended"]);
    assert!(said.contains("ring"), "{said}");

    let leader = cluster.leader("dispatcher").await;
    let epoch = cluster.api.holder("dispatcher").await.unwrap().epoch;
    cluster.kill(&leader);
    cluster.wait_other_leader("dispatcher", epoch).await;
    wait_for_phase(&cluster, "ring", v1::UnitPhase::Suspended, 0).await;
    run(&cluster, &["unit", "suspend", "next"]);
    wait_for_phase(&cluster, "next", v1::UnitPhase::Suspended, 0).await;
    run(&cluster, &["unit", "resume", "ring", "default/ring"]);
    wait_for_phase(&cluster, "ring", v1::UnitPhase::Running, 4).await;
    assert_eq!(running(&cluster, "ring").await, [(0, 1), (1, 1), (2, 1), (3, 1)]);
    run(&cluster, &["unit", "cancel", "next"]);
    let output = cluster.godel(&["unit", "resume", "next"]);
    assert!(shown(&output).contains("the unit is over: Cancelled"), "{}", shown(&output));
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn units_are_suspended_at_any_moment_also_while_room_is_held_for_them() {
    let mut cluster = Cluster::start(one_node()).await;
    let all = cpu(&cluster).await;
    // On their way between dispatcher, scheduler and binder.
    for number in 0..20 {
        let name = format!("way-{number}");
        cluster.api.submit(unit(&name, "", 5, resources(all / 200, 1), None, 0)).await.unwrap();
        run(&cluster, &["unit", "suspend", &name]);
    }
    for number in 0..20 {
        wait_for_phase(&cluster, &format!("way-{number}"), v1::UnitPhase::Suspended, 0).await;
    }
    let low = v1::UnitSpec { priority: 1, ..unit("low", "", 1, resources(all, 1), None, 0) };
    cluster.api.submit(low).await.unwrap();
    wait_for_phase(&cluster, "low", v1::UnitPhase::Running, 1).await;
    cluster.freeze("agent");
    let high = v1::UnitSpec { priority: 9, ..unit("high", "", 1, resources(all, 1), None, 0) };
    cluster.api.submit(high).await.unwrap();
    let n_holds = async || -> Result<usize> {
        let request = v1::ListRecordsRequest { kinds: vec![v1::Kind::Hold.into()], ..Default::default() };
        Ok(cluster.api.state().list_records(request).await?.into_inner().records.len())
    };
    wait_for("a hold", LIMIT, async || {
        ensure!(n_holds().await? == 1, "no hold");
        Ok(())
    })
    .await;
    let request = v1::SuspendUnitRequest { name: "high".into(), ..Default::default() };
    cluster.api.units().await.unwrap().suspend_unit(request).await.unwrap();
    wait_for("the end of the hold", LIMIT, async || {
        ensure!(n_holds().await? == 0, "still held");
        Ok(())
    })
    .await;
    cluster.thaw("agent");
    wait_for_phase(&cluster, "high", v1::UnitPhase::Suspended, 0).await;
    wait_for("the next incarnation of the victim", LIMIT, async || {
        let runs = cluster.api.get_unit("low").await?.running_units;
        let is_back = runs[0].incarnation == 1 && runs[0].phase() == v1::RunPhase::Running;
        ensure!(is_back, "{runs:?}");
        Ok(())
    })
    .await;
    run(&cluster, &["unit", "cancel", "low"]);
    run(&cluster, &["unit", "resume", "high"]);
    wait_for_phase(&cluster, "high", v1::UnitPhase::Running, 1).await;
    run(&cluster, &["unit", "cancel", "high"]);
    for number in 0..20 {
        run(&cluster, &["unit", "resume", &format!("way-{number}")]);
    }
    for number in 0..20 {
        wait_for_phase(&cluster, &format!("way-{number}"), v1::UnitPhase::Running, 5).await;
    }
    cluster.audit(&[]);
    cluster.assert_quiet();
}
