//! Preemption through the real API: who leaves, for whom, and what becomes of the room when something comes between.

use anyhow::{Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

fn one_node() -> Layout {
    Layout { n_nodes: 1, n_dispatchers: 1, n_schedulers: 2, n_binders: 1, ..Layout::default() }
}

/// CPU of the only node.
async fn cpu(cluster: &Cluster) -> i64 {
    let nodes =
        cluster.api.nodes().list_nodes(v1::ListNodesRequest::default()).await.unwrap().into_inner().nodes;
    nodes[0].allocatable.as_ref().unwrap().amounts["cpu"]
}

fn with_priority(name: &str, priority: i32, replicas: u32, cpu_milli: i64) -> v1::UnitSpec {
    v1::UnitSpec { priority, ..unit(name, "", replicas, resources(cpu_milli, 1), None, 0) }
}

async fn submit(cluster: &Cluster, spec: v1::UnitSpec) {
    cluster.api.submit(spec).await.unwrap();
}

async fn shown(cluster: &Cluster, name: &str) -> Result<v1::Unit> {
    Ok(cluster.api.get_unit(name).await?.unit.unwrap_or_default())
}

async fn wait_running(cluster: &Cluster, name: &str, n_running: u32) {
    wait_for(&format!("{n_running} running units of {name}"), LIMIT, async || {
        let counts = shown(cluster, name).await?.counts.unwrap_or_default();
        ensure!(counts.running == n_running && counts.evicting == 0, "{counts:?}");
        Ok(())
    })
    .await;
}

async fn cancel(cluster: &Cluster, name: &str) {
    let request = v1::CancelUnitRequest { name: name.into(), ..Default::default() };
    cluster.api.units().await.unwrap().cancel_unit(request).await.unwrap();
}

/// Waits until the unit waits for others to leave.
async fn wait_held(cluster: &Cluster, name: &str) {
    wait_for(&format!("room held for {name}"), LIMIT, async || {
        let unit = shown(cluster, name).await?;
        ensure!(unit.waits_for.contains("to leave node"), "{:?} {:?}", unit.phase(), unit.waits_for);
        ensure!(unit.phase() == v1::UnitPhase::Scheduling, "{:?}", unit.phase());
        Ok(())
    })
    .await;
}

/// Holds in the state.
async fn n_holds(cluster: &Cluster) -> Result<usize> {
    let request = v1::ListRecordsRequest { kinds: vec![v1::Kind::Hold.into()], ..Default::default() };
    Ok(cluster.api.state().list_records(request).await?.into_inner().records.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lowest_priority_leaves_and_comes_back() {
    let cluster = Cluster::start(one_node()).await;
    let half = cpu(&cluster).await / 2;
    submit(&cluster, with_priority("low", 1, 1, half)).await;
    submit(&cluster, with_priority("mid", 5, 1, half)).await;
    wait_running(&cluster, "low", 1).await;
    wait_running(&cluster, "mid", 1).await;
    submit(&cluster, with_priority("high", 9, 1, half)).await;
    wait_running(&cluster, "high", 1).await;
    wait_running(&cluster, "mid", 1).await;
    let low = shown(&cluster, "low").await.unwrap();
    assert_eq!(low.preempted_by, ["default/high"]);
    assert_eq!(low.counts.unwrap_or_default().running, 0);
    let described = cluster.godel(&["unit", "describe", "low"]);
    let text = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(text.contains("by default/high"), "{text}");
    // Nobody of a higher priority is there to leave for it.
    submit(&cluster, with_priority("peer", 5, 1, half)).await;
    cancel(&cluster, "high").await;
    wait_running(&cluster, "peer", 1).await;
    cancel(&cluster, "peer").await;
    wait_running(&cluster, "low", 1).await;
    assert_eq!(n_holds(&cluster).await.unwrap(), 0);
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_leaves_whole_and_what_is_not_preemptible_stays() {
    let cluster = Cluster::start(one_node()).await;
    let quarter = cpu(&cluster).await / 4;
    let gang = v1::UnitSpec {
        workload_class: v1::WorkloadClass::Gang.into(),
        ..with_priority("gang", 1, 3, quarter)
    };
    submit(&cluster, gang).await;
    wait_running(&cluster, "gang", 3).await;
    let safe = v1::UnitSpec { preemptible: Some(false), ..with_priority("safe", 1, 1, quarter) };
    submit(&cluster, safe).await;
    wait_running(&cluster, "safe", 1).await;
    submit(&cluster, with_priority("high", 9, 1, quarter)).await;
    wait_running(&cluster, "high", 1).await;
    wait_running(&cluster, "safe", 1).await;
    // All of it left, though one was enough. What was bound before comes back one by one.
    wait_for("the next incarnation of every member", LIMIT, async || {
        let members = cluster.api.get_unit("gang").await?.running_units;
        ensure!(members.iter().all(|member| member.incarnation == 1), "{members:?}");
        Ok(())
    })
    .await;
    cancel(&cluster, "high").await;
    wait_running(&cluster, "gang", 3).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preemptor_cancelled_while_victims_leave_leaves_no_hold() {
    let mut cluster = Cluster::start(one_node()).await;
    let all = cpu(&cluster).await;
    submit(&cluster, with_priority("low", 1, 1, all)).await;
    wait_running(&cluster, "low", 1).await;
    cluster.freeze("agent");
    submit(&cluster, with_priority("high", 9, 1, all)).await;
    wait_held(&cluster, "high").await;
    cancel(&cluster, "high").await;
    wait_for("the end of the hold", LIMIT, async || {
        ensure!(n_holds(&cluster).await? == 0, "still held");
        Ok(())
    })
    .await;
    cluster.thaw("agent");
    // The eviction runs to its end, and the victim comes back.
    wait_for("the victim's next incarnation", LIMIT, async || {
        let running = cluster.api.get_unit("low").await?.running_units;
        let is_back = running.iter().any(|one| one.incarnation == 1 && one.phase() == v1::RunPhase::Running);
        ensure!(is_back, "{running:?}");
        Ok(())
    })
    .await;
    cluster.audit(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binder_killed_between_claim_and_binding_goes_on() {
    let mut cluster = Cluster::start(one_node()).await;
    let all = cpu(&cluster).await;
    submit(&cluster, with_priority("low", 1, 1, all)).await;
    wait_running(&cluster, "low", 1).await;
    cluster.freeze("agent");
    submit(&cluster, with_priority("high", 9, 1, all)).await;
    wait_held(&cluster, "high").await;
    cluster.kill("binder-1");
    cluster.thaw("agent");
    cluster.restart("binder-1");
    wait_running(&cluster, "high", 1).await;
    wait_for("the end of the hold", LIMIT, async || {
        ensure!(n_holds(&cluster).await? == 0, "still held");
        Ok(())
    })
    .await;
    assert_eq!(shown(&cluster, "low").await.unwrap().preempted_by, ["default/high"]);
    cluster.audit(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_want_one_victim() {
    let cluster = Cluster::start(one_node()).await;
    let all = cpu(&cluster).await;
    submit(&cluster, with_priority("low", 1, 1, all)).await;
    wait_running(&cluster, "low", 1).await;
    let names: Vec<String> = (0..6).map(|number| format!("high-{number}")).collect();
    for name in &names {
        submit(&cluster, with_priority(name, 9, 1, all)).await;
    }
    // One after the other, whoever is first.
    for n_left in (1..=names.len()).rev() {
        let winner = wait_for("one of them to run", LIMIT, async || {
            for name in &names {
                let unit = shown(&cluster, name).await?;
                if unit.phase() == v1::UnitPhase::Running {
                    return Ok(name.clone());
                }
            }
            anyhow::bail!("{n_left} wait")
        })
        .await;
        if n_left == names.len() {
            let victim = cluster.api.get_unit("low").await.unwrap().running_units;
            assert_eq!(victim[0].incarnation, 1, "it left once, whoever wanted it");
        }
        cancel(&cluster, &winner).await;
        wait_for("its end", LIMIT, async || {
            let unit = shown(&cluster, &winner).await?;
            ensure!(unit.phase() == v1::UnitPhase::Cancelled, "{:?}", unit.phase());
            Ok(())
        })
        .await;
    }
    wait_for("the victim to be back", LIMIT, async || {
        let running = cluster.api.get_unit("low").await?.running_units;
        ensure!(running.len() == 1 && running[0].phase() == v1::RunPhase::Running, "{running:?}");
        Ok(())
    })
    .await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_preempted_does_not_preempt_back() {
    let mut cluster = Cluster::start(Layout { n_schedulers: 1, ..one_node() }).await;
    let all = cpu(&cluster).await;
    let class = |value: &str| ["priority-class", "set", "tide", "--value", value].map(str::to_owned);
    let created = cluster.godel(&["priority-class", "create", "tide", "--value", "1"]);
    assert!(created.status.success(), "{created:?}");
    let first = v1::UnitSpec { priority_class: "tide".into(), ..with_priority("first", 0, 1, all) };
    submit(&cluster, first).await;
    wait_running(&cluster, "first", 1).await;
    submit(&cluster, with_priority("second", 5, 1, all)).await;
    wait_running(&cluster, "second", 1).await;
    let raised = class("9");
    let raised = cluster.godel(&raised.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(raised.status.success(), "{raised:?}");
    // A scheduler that begins anew sees the first above the second.
    cluster.kill("scheduler-1");
    cluster.restart("scheduler-1");
    wait_for("a search that spares the second", LIMIT, async || {
        let refusals = shown(&cluster, "first").await?.refusals.unwrap_or_default();
        let spared = refusals.reasons.iter().any(|one| one.plugin == "preemption");
        ensure!(spared, "{refusals:?}");
        Ok(())
    })
    .await;
    wait_running(&cluster, "second", 1).await;
    assert!(shown(&cluster, "second").await.unwrap().preempted_by.is_empty());
    cluster.audit(&[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_takes_back_what_others_borrowed_and_no_more() {
    let cluster = Cluster::start(one_node()).await;
    let quarter = cpu(&cluster).await / 4;
    let half = format!("cpu={}m", quarter * 2);
    for args in [&["queue", "create", "own", "--min", half.as_str()][..], &["queue", "create", "lab"]] {
        let created = cluster.godel(args);
        assert!(created.status.success(), "{created:?}");
    }
    let of = |queue: &str, spec: v1::UnitSpec| v1::UnitSpec { queue: queue.into(), ..spec };
    submit(&cluster, of("lab", with_priority("lent", 9, 4, quarter))).await;
    wait_running(&cluster, "lent", 4).await;
    // Of lower priority, and one more than the guarantee has room for.
    submit(&cluster, of("own", with_priority("owner", 1, 3, quarter))).await;
    wait_running(&cluster, "owner", 2).await;
    wait_running(&cluster, "lent", 2).await;
    assert_eq!(shown(&cluster, "lent").await.unwrap().preempted_by, ["default/owner"]);
    wait_for("both to be parked with what they lack", LIMIT, async || {
        let status = cluster.api.dispatcher_status().await?;
        ensure!(status.parked_units == 2, "{} parked", status.parked_units);
        Ok(())
    })
    .await;
    assert!(
        shown(&cluster, "owner").await.unwrap().preempted_by.is_empty(),
        "who borrows takes nothing back"
    );
    // What the guarantee is raised by is taken back too.
    let more = format!("cpu={}m", quarter * 3);
    let raised = cluster.godel(&["queue", "set", "own", "--min", more.as_str()]);
    assert!(raised.status.success(), "{raised:?}");
    wait_running(&cluster, "owner", 3).await;
    wait_running(&cluster, "lent", 1).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_just_begun_is_left_alone_for_its_minimum_run() {
    let cluster = Cluster::start(one_node()).await;
    let all = cpu(&cluster).await;
    let low = v1::UnitSpec { min_run_ms: 3_000, ..with_priority("low", 1, 1, all) };
    submit(&cluster, low).await;
    wait_running(&cluster, "low", 1).await;
    submit(&cluster, with_priority("high", 9, 1, all)).await;
    // That it ran for so long, the audit says.
    wait_running(&cluster, "high", 1).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}
