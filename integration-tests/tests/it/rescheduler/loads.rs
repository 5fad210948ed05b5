//! A node that is hot by what really runs on it is cooled: agents measure, the rescheduler takes percentiles, and the right running unit moves.

use super::*;
use crate::keepers::{command, wait_running};

/// So much of the machine each of the busy units asks for, and uses all of it, thousandths.
const BUSY_MILLI: i64 = 50;
/// The idle ones ask for much more.
const IDLE_MILLI: i64 = 150;

/// Two busy units make a node hot, one does not: by what is measured, and not by what is asked for.
const COOL: &str = "
rescheduler:
  usage_interval: 500ms
  usage_window: 30s
  usage_percentile: 100
  # Both nodes are this machine, and measure all that it does.
  other_load: false
  policies:
    cool:
      kind: load-balance
      moved_max_percent: 100
      args: {hot: 0.08, calm: 0.07}
";

async fn run(cluster: &Cluster, name: &str, script: &str, milli: i64) {
    let n_cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut spec = command(name, 1, script, name);
    let template = spec.task_groups[0].template.as_mut().unwrap();
    let requests = resources(milli * i64::try_from(n_cpus).unwrap(), 64);
    template.demand.as_mut().unwrap().requests = Some(requests);
    cluster.api.submit(spec).await.unwrap();
    wait_running(cluster, name, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cools_by_what_is_measured_on_it() {
    let layout = Layout {
        n_nodes: 0,
        n_dispatchers: 1,
        n_schedulers: 1,
        n_binders: 1,
        config_file: COOL.to_owned(),
        ..Layout::default()
    };
    let mut cluster = Cluster::start(layout).await;
    // This machine may have anything, and may not let us make control groups.
    cluster.announce(&["the topology of this machine", "control groups"]);
    cluster.start_agent_of_this_machine("hot", "hot", &[]).await;
    cluster.wait_ready().await;
    if cluster.log("hot").contains("without control groups") {
        return println!("SKIPPED: there are no control groups here, by which running units are measured");
    }
    for name in ["idle-1", "idle-2"] {
        run(&cluster, name, "exec sleep 100000", IDLE_MILLI).await;
    }
    for name in ["busy-1", "busy-2"] {
        run(&cluster, name, "while :; do :; done", BUSY_MILLI).await;
    }
    cluster.start_agent_of_this_machine("calm", "calm", &[]).await;
    cluster.add_service("rescheduler", NAME).await;
    wait_leading(&cluster).await;
    // Before it is measured, what is asked for counts: by that, one move cools nothing.
    let plan = wait_for("a plan by what is measured", LIMIT, async || {
        let request = v1::PlanPolicyRequest { policy: "cool".to_owned() };
        let plan = cluster.api.rescheduler().await?.plan_policy(request).await?.into_inner();
        let plan = plan.plan.context("a plan")?;
        ensure!(plan.moves.len() == 1 && plan.objective_after == 0.0, "{plan:?}");
        Ok(plan)
    })
    .await;
    assert_eq!(
        (plan.moves[0].from_node.as_str(), plan.moves[0].to_node.as_str()),
        ("hot", "calm"),
        "{plan:?}"
    );
    assert!(plan.moves[0].unit.contains("busy"), "{plan:?}");
    let request = v1::RunPolicyRequest { policy: "cool".to_owned() };
    let answer = cluster.api.rescheduler().await.unwrap().run_policy(request.clone()).await.unwrap();
    assert_eq!(answer.into_inner().movement, "cool-1");
    let ended = wait_ended(&cluster).await;
    assert_eq!((ended.phase(), moved(&ended)), (v1::MovementPhase::Done, 1), "{ended:?}");
    let mut on = BTreeMap::<String, Vec<&str>>::new();
    for name in ["idle-1", "idle-2", "busy-1", "busy-2"] {
        on.entry(nodes_of(&cluster, name).await.into_iter().collect()).or_default().push(name);
    }
    assert_eq!(on["calm"].len(), 1, "{on:?}");
    assert!(on["calm"][0].starts_with("busy") && on["hot"].len() == 3, "{on:?}");
    // Neither node is hot now, by what is measured on both.
    let again = cluster.api.rescheduler().await.unwrap().run_policy(request).await.unwrap().into_inner();
    assert!(again.movement.is_empty() && again.why_not.contains("nothing to move"), "{again:?}");
    cluster.audit(&[]);
}
