//! The rescheduler on a whole control plane of real processes: it moves what runs, goes on after kill -9 of anybody, and hurts nobody.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;

mod event_log;
mod kills;
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

/// A cluster with the policy `pack`.
async fn start() -> Cluster {
    let shape = format!("{N_NODES}x cpu=64,memory=256Gi,name=node");
    let mut cluster = start_with(PACK.to_owned(), &shape, N_NODES).await;
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

fn godel(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

/// Runs a verb on a file with this text.
fn with_file(cluster: &Cluster, verb: &[&str], text: &str) {
    let path = cluster.path("objects.yaml");
    std::fs::write(&path, text).unwrap();
    godel(cluster, &[verb, &["-f", path.to_str().unwrap()]].concat());
}

/// Another configuration of the rescheduler, which it may be reading: never half of it.
fn write_config(cluster: &Cluster, text: &str) {
    let (new, path) = (cluster.path("godel.yaml.new"), cluster.path("godel.yaml"));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

async fn status(cluster: &Cluster) -> Result<v1::GetRescheduleStatusResponse> {
    let request = v1::GetRescheduleStatusRequest {};
    Ok(cluster.api.rescheduler().await?.get_reschedule_status(request).await?.into_inner())
}

/// Writes another configuration, and waits until it is in force.
async fn configure(cluster: &Cluster, text: &str) {
    let before = status(cluster).await.unwrap().config_read_ms;
    write_config(cluster, text);
    wait_for("the configuration to be read", LIMIT, async || {
        let status = status(cluster).await?;
        ensure!(status.config_read_ms > before && status.config_faults.is_empty(), "{status:?}");
        Ok(())
    })
    .await;
}

/// Deletes units, and waits until the schedulers have read that their nodes are empty: the next check may fill them again.
async fn clear(cluster: &Cluster, units: &[&str]) {
    godel(cluster, &[&["unit", "delete", "--cancel"], units].concat());
    let is_unknown = |error: &anyhow::Error| {
        error.downcast_ref::<tonic::Status>().is_some_and(|status| status.code() == tonic::Code::NotFound)
    };
    for name in units {
        wait_for(&format!("the end of {name}"), LIMIT, async || {
            let left = cluster.api.get_unit(name).await;
            ensure!(left.as_ref().is_err_and(is_unknown), "{left:?}");
            Ok(())
        })
        .await;
    }
    cluster.wait_schedulers_have_read_all().await;
}

async fn wait_leading(cluster: &Cluster) {
    wait_for("a rescheduler that leads", LIMIT, async || status(cluster).await.map(drop)).await;
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

/// Policies that nobody disturbs. Each check begins with the policy `pack` and four empty nodes.
#[tokio::test(flavor = "multi_thread")]
async fn policies_move_what_they_may_and_say_why() {
    let mut cluster = start().await;
    cluster.note("a policy moves what runs");
    a_policy_moves_what_runs_and_says_why(&cluster).await;
    cluster.note("an aborted movement");
    an_aborted_movement_makes_no_further_move(&cluster).await;
    cluster.note("http");
    http_runs_a_policy_on_loopback(&cluster).await;
    cluster.note("what may not be preempted");
    stays::what_may_not_be_preempted_is_moved_once_its_unit_says_that_it_may(&cluster).await;
    cluster.note("policies that would undo each other");
    undone::policies_that_would_undo_each_other_do_not(&cluster).await;
    cluster.note("policies without a check between them");
    undone::policies_without_a_check_between_them_are_refused(&mut cluster).await;
    cluster.note("nodes that are full of running units");
    stays::a_node_that_is_full_of_running_units_receives_none(&mut cluster).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

async fn a_policy_moves_what_runs_and_says_why(cluster: &Cluster) {
    run_unit(cluster, "web", N_REPLICAS).await;
    assert_eq!(nodes_of(cluster, "web").await.len(), N_NODES, "spread before");
    let mut client = cluster.api.rescheduler().await.unwrap();
    let plan = client.plan_policy(v1::PlanPolicyRequest { policy: "pack".to_owned() }).await.unwrap();
    let plan = plan.into_inner().plan.unwrap();
    assert!(plan.objective_after < plan.objective_before && !plan.moves.is_empty(), "{plan:?}");
    let reason = plan.moves[0].reason.clone().unwrap();
    assert!(!reason.why_unit.is_empty() && !reason.why_node.is_empty() && !reason.why_now.is_empty());
    assert_eq!(nodes_of(cluster, "web").await.len(), N_NODES, "a plan does nothing");

    let name = run_pack(cluster).await.unwrap();
    assert_eq!(name, "pack-1");
    let ended = wait_ended(cluster).await;
    assert_eq!(ended.phase(), v1::MovementPhase::Done, "{ended:?}");
    assert_eq!((moved(&ended), ended.moves.len()), (N_NODES - 1, N_NODES - 1), "{ended:?}");
    let rows = rows(cluster, "web").await.unwrap();
    assert_eq!(nodes_of(cluster, "web").await.len(), 1, "{rows:?}");
    let by: BTreeSet<String> = rows.iter().filter_map(|row| Some(row.last_eviction.clone()?.by)).collect();
    assert_eq!(by, BTreeSet::from(["movement pack-1".to_owned()]));
    // It is packed now: nothing is left to move.
    let again = client.run_policy(v1::RunPolicyRequest { policy: "pack".to_owned() }).await.unwrap();
    let again = again.into_inner();
    assert!(again.movement.is_empty() && again.why_not.contains("nothing to move"), "{again:?}");
    clear(cluster, &["web"]).await;
}

async fn an_aborted_movement_makes_no_further_move(cluster: &Cluster) {
    // One replica may be missing at a time, and a successor takes a while: batches come one by one.
    run_unit(cluster, "web", N_REPLICAS).await;
    with_file(cluster, &["apply"], "kind: disruption-budget\nname: web\nunit: web\nmax_unavailable: 1\n");
    let name = wait_for("a movement in batches", LIMIT, async || run_pack(cluster).await).await;
    let request = v1::AbortMovementRequest { name: name.clone(), reason: "not now".to_owned() };
    let mut client = cluster.api.rescheduler().await.unwrap();
    let answer = client.abort_movement(request.clone()).await.unwrap().into_inner().movement.unwrap();
    assert!(answer.moves.iter().any(|one| one.phase() == v1::MovePhase::Aborted), "{answer:?}");
    let ended = wait_ended(cluster).await;
    assert_eq!((ended.phase(), ended.message.as_str()), (v1::MovementPhase::Aborted, "not now"), "{ended:?}");
    assert!(moved(&ended) < ended.moves.len(), "{ended:?}");
    client.abort_movement(request).await.unwrap();
    let unknown = v1::AbortMovementRequest { name: "pack-99".to_owned(), reason: String::new() };
    assert_eq!(client.abort_movement(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
    godel(cluster, &["budget", "delete", "web"]);
    clear(cluster, &["web"]).await;
}

async fn http_runs_a_policy_on_loopback(cluster: &Cluster) {
    configure(cluster, &format!("{PACK}      dry_run: true\n")).await;
    run_unit(cluster, "web", N_REPLICAS).await;
    let post = async |path: &str, header: &str| {
        cluster.ask_page(NAME, &format!("POST {path}"), header).await.unwrap()
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
    assert_eq!(nodes_of(cluster, "web").await.len(), N_NODES, "nothing moved");
    clear(cluster, &["web"]).await;
    configure(cluster, PACK).await;
}
