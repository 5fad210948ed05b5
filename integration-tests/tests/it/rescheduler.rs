//! The rescheduler on a whole control plane of real processes: it moves what runs, goes on after kill -9 of anybody, and hurts nobody.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

use crate::kills::AWAY;

mod event_log;
mod loads;
mod rooms;
mod stays;
mod undone;

const NAME: &str = "rescheduler-1";
/// Nodes of the cluster.
const N_NODES: usize = 4;
/// Replicas of each unit: spread over all nodes.
const N_REPLICAS: u32 = 4;

/// A policy that puts everything on few nodes when it is asked to. Policies are in files only.
const PACK: &str = "
rescheduler:
  policies:
    pack:
      kind: binpack
      moved_max_percent: 100
      args: {use_max: 1.0, ends_within: 0s}
";

/// A cluster with the policy `pack`, to which lines are added.
async fn start(more: &str) -> Cluster {
    let shape = format!("{N_NODES}x cpu=64,memory=256Gi,name=node");
    let mut cluster = start_with(format!("{PACK}{more}"), &shape, N_NODES).await;
    cluster.add_service("rescheduler", NAME).await;
    wait_leading(&cluster).await;
    cluster
}

/// A cluster with this configuration of the rescheduler, which does not run yet, and nodes of one shape.
async fn start_with(config_file: String, shape: &str, n_nodes: usize) -> Cluster {
    let settings = [
        ("rescheduler.rate_moves", "1000"),
        ("rescheduler.retry_min", "50ms"),
        ("rescheduler.retry_max", "200ms"),
        ("rescheduler.reload_interval", "500ms"),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let layout = Layout {
        n_nodes: 0,
        n_dispatchers: 1,
        n_schedulers: 2,
        n_binders: 1,
        settings: settings.to_vec(),
        config_file,
        ..Layout::default()
    };
    let mut cluster = Cluster::start(layout).await;
    cluster.start_agent("agent", &[shape.to_owned()], &[], n_nodes).await;
    cluster.wait_ready().await;
    cluster.wait_nodes_known().await;
    cluster
}

async fn wait_leading(cluster: &Cluster) {
    wait_for("a rescheduler that leads", LIMIT, async || {
        let request = v1::GetRescheduleStatusRequest {};
        cluster.api.rescheduler().await?.get_reschedule_status(request).await?;
        anyhow::Ok(())
    })
    .await;
}

/// Submits a unit and waits until all of it runs.
async fn run_unit(cluster: &Cluster, name: &str, replicas: u32) {
    run_unit_of(cluster, name, replicas, resources(1_000, 1_024)).await;
}

/// The same with what each replica takes.
async fn run_unit_of(cluster: &Cluster, name: &str, replicas: u32, requests: v1::Resources) {
    let spec = unit(name, "", replicas, requests, None, 0);
    cluster
        .api
        .submit(v1::UnitSpec { workload_class: v1::WorkloadClass::Service.into(), ..spec })
        .await
        .unwrap();
    wait_for(&format!("{replicas} running units of {name}"), LIMIT, async || {
        let rows = rows(cluster, name).await?;
        let running = rows.iter().filter(|row| row.phase() == v1::RunPhase::Running);
        ensure!(running.count() == usize::try_from(replicas)?, "{rows:?}");
        Ok(())
    })
    .await;
}

async fn rows(cluster: &Cluster, name: &str) -> Result<Vec<v1::RunningUnit>> {
    Ok(cluster.api.get_unit(name).await?.running_units)
}

async fn nodes_of(cluster: &Cluster, name: &str) -> BTreeSet<String> {
    rows(cluster, name).await.unwrap().into_iter().map(|row| row.node).collect()
}

/// Runs the policy, tried until the rescheduler answers; the name of its movement.
async fn run_pack(cluster: &Cluster) -> Result<String> {
    let request = v1::RunPolicyRequest { policy: "pack".to_owned() };
    let answer = cluster.api.rescheduler().await?.run_policy(request).await?.into_inner();
    ensure!(!answer.movement.is_empty(), "nothing is moved: {}", answer.why_not);
    Ok(answer.movement)
}

async fn movement(cluster: &Cluster, name: &str) -> Result<v1::Movement> {
    let request = v1::GetMovementRequest { name: name.to_owned() };
    let answer = cluster.api.rescheduler().await?.get_movement(request).await?.into_inner();
    answer.movement.context("a movement")
}

async fn newest(cluster: &Cluster) -> Result<v1::Movement> {
    let request = v1::ListMovementsRequest::default();
    let list = cluster.api.rescheduler().await?.list_movements(request).await?.into_inner();
    let newest = list.movements.into_iter().next().and_then(|summary| summary.movement);
    movement(cluster, &newest.context("no movement")?.name).await
}

/// Waits until the newest movement has ended.
async fn wait_ended(cluster: &Cluster) -> v1::Movement {
    wait_for("the end of the movement", LIMIT, async || {
        let movement = newest(cluster).await?;
        ensure!(movement.phase() != v1::MovementPhase::Running, "{movement:?}");
        Ok(movement)
    })
    .await
}

fn moved(movement: &v1::Movement) -> usize {
    movement.moves.iter().filter(|one| one.phase() == v1::MovePhase::Moved).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_moves_what_runs_and_says_why() {
    let cluster = start("").await;
    run_unit(&cluster, "web", N_REPLICAS).await;
    assert_eq!(nodes_of(&cluster, "web").await.len(), N_NODES, "spread before");
    let mut client = cluster.api.rescheduler().await.unwrap();
    let plan = client.plan_policy(v1::PlanPolicyRequest { policy: "pack".to_owned() }).await.unwrap();
    let plan = plan.into_inner().plan.unwrap();
    assert!(plan.objective_after < plan.objective_before && !plan.moves.is_empty(), "{plan:?}");
    let reason = plan.moves[0].reason.clone().unwrap();
    assert!(!reason.why_unit.is_empty() && !reason.why_node.is_empty() && !reason.why_now.is_empty());
    assert_eq!(nodes_of(&cluster, "web").await.len(), N_NODES, "a plan does nothing");

    let name = run_pack(&cluster).await.unwrap();
    assert_eq!(name, "pack-1");
    let ended = wait_ended(&cluster).await;
    assert_eq!(ended.phase(), v1::MovementPhase::Done, "{ended:?}");
    assert_eq!((moved(&ended), ended.moves.len()), (N_NODES - 1, N_NODES - 1), "{ended:?}");
    let rows = rows(&cluster, "web").await.unwrap();
    assert_eq!(nodes_of(&cluster, "web").await.len(), 1, "{rows:?}");
    let by: BTreeSet<String> = rows.iter().filter_map(|row| Some(row.last_eviction.clone()?.by)).collect();
    assert_eq!(by, BTreeSet::from(["movement pack-1".to_owned()]));
    // It is packed now: nothing is left to move.
    let again = client.run_policy(v1::RunPolicyRequest { policy: "pack".to_owned() }).await.unwrap();
    let again = again.into_inner();
    assert!(again.movement.is_empty() && again.why_not.contains("nothing to move"), "{again:?}");
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_movement_outlives_kills_of_the_rescheduler() {
    let mut cluster = start("").await;
    cluster.announce(&["crash point"]);
    let points = [
        "rescheduler.before-commit",
        "rescheduler.after-commit",
        "rescheduler.before-move",
        "rescheduler.after-move",
        "rescheduler.after-commit:2",
        "rescheduler.before-commit:3",
    ];
    for (round, point) in points.into_iter().enumerate() {
        cluster.note(point);
        let unit = format!("u{round}");
        run_unit(&cluster, &unit, N_REPLICAS).await;
        cluster.kill(NAME);
        cluster.restart_with(NAME, &[("GODEL_RESCHEDULER__CRASH_POINTS".to_owned(), point.to_owned())]);
        wait_leading(&cluster).await;
        // It may die before it answers.
        let _ = run_pack(&cluster).await;
        cluster.wait_ended(NAME).await;
        cluster.restart(NAME);
        wait_leading(&cluster).await;
        // What was not recorded is not known: it is asked for again.
        wait_for("a movement or nothing to move", LIMIT, async || {
            let last = newest(&cluster).await;
            if last.as_ref().is_ok_and(|last| last.phase() == v1::MovementPhase::Running) {
                anyhow::bail!("{last:?}");
            }
            if nodes_of(&cluster, &unit).await.len() > 1 {
                run_pack(&cluster).await?;
                anyhow::bail!("asked again");
            }
            Ok(())
        })
        .await;
        let last = newest(&cluster).await.unwrap();
        assert_eq!(last.phase(), v1::MovementPhase::Done, "{point}: {last:?}");
        for row in rows(&cluster, &unit).await.unwrap() {
            assert!(row.incarnation <= 1, "{point}: moved once at most: {row:?}");
        }
    }
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_movement_outlives_kills_of_binder_and_schedulers() {
    let mut cluster = start("").await;
    cluster.announce(AWAY);
    for (round, victims) in
        [vec!["binder-1"], vec!["scheduler-1"], vec!["binder-1", "scheduler-2", NAME]].into_iter().enumerate()
    {
        cluster.note(&format!("{victims:?}"));
        let unit = format!("u{round}");
        run_unit(&cluster, &unit, N_REPLICAS).await;
        run_pack(&cluster).await.unwrap();
        victims.iter().for_each(|name| cluster.kill(name));
        victims.iter().for_each(|name| cluster.restart(name));
        wait_leading(&cluster).await;
        let ended = wait_ended(&cluster).await;
        assert!(
            matches!(ended.phase(), v1::MovementPhase::Done | v1::MovementPhase::Stopped),
            "{victims:?}: {ended:?}"
        );
        wait_for("all replicas to run", LIMIT, async || {
            let rows = rows(&cluster, &unit).await?;
            ensure!(rows.iter().all(|row| row.phase() == v1::RunPhase::Running), "{rows:?}");
            Ok(())
        })
        .await;
    }
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_movement_makes_no_further_move() {
    // One replica may be missing at a time, and a successor takes a while: batches come one by one.
    let cluster = start("").await;
    run_unit(&cluster, "web", N_REPLICAS).await;
    let file = cluster.path("budget.yaml");
    std::fs::write(&file, "kind: disruption-budget\nname: web\nunit: web\nmax_unavailable: 1\n").unwrap();
    let output = cluster.godel(&["apply", "-f", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let name = wait_for("a movement in batches", LIMIT, async || run_pack(&cluster).await).await;
    let request = v1::AbortMovementRequest { name: name.clone(), reason: "not now".to_owned() };
    let mut client = cluster.api.rescheduler().await.unwrap();
    let answer = client.abort_movement(request.clone()).await.unwrap().into_inner().movement.unwrap();
    assert!(answer.moves.iter().any(|one| one.phase() == v1::MovePhase::Aborted), "{answer:?}");
    let ended = wait_ended(&cluster).await;
    assert_eq!((ended.phase(), ended.message.as_str()), (v1::MovementPhase::Aborted, "not now"), "{ended:?}");
    assert!(moved(&ended) < ended.moves.len(), "{ended:?}");
    client.abort_movement(request).await.unwrap();
    let unknown = v1::AbortMovementRequest { name: "pack-99".to_owned(), reason: String::new() };
    assert_eq!(client.abort_movement(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
    cluster.audit(&[]);
    cluster.assert_quiet();
}

#[tokio::test(flavor = "multi_thread")]
async fn http_runs_a_policy_on_loopback() {
    let cluster = start("      dry_run: true\n").await;
    run_unit(&cluster, "web", N_REPLICAS).await;
    let address = cluster.metrics_address(NAME).unwrap();
    let post = async |path: &str, header: &str| {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(post("/policies/pack/run", "").await.starts_with("HTTP/1.1 202"));
    assert!(post("/policies/none/run", "").await.starts_with("HTTP/1.1 404"));
    assert!(post("/policies/pack/run", "Origin: http://evil\r\n").await.starts_with("HTTP/1.1 403"));
    assert!(post("/metrics", "").await.starts_with("HTTP/1.1 405"));
    wait_for("the dry run", LIMIT, async || {
        let policies = cluster.api.rescheduler().await?.list_policies(v1::ListPoliciesRequest {}).await?;
        let pack = policies.into_inner().policies.into_iter().next().context("a policy")?;
        ensure!(pack.last_result.starts_with("dry run: 3 moves"), "{pack:?}");
        Ok(())
    })
    .await;
    assert_eq!(nodes_of(&cluster, "web").await.len(), N_NODES, "nothing moved");
    cluster.assert_quiet();
}
