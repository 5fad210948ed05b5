//! Two policies of which one would undo what the other does: a check relation keeps them from it, and without one neither runs.

use std::collections::BTreeMap;

use super::{event_log::EventLog, *};

/// Runs of each policy that are waited for once both have nothing left to do.
const N_ROUNDS: u64 = 4;
/// Replicas on the first node, of which one node may have half.
const N_DEEP: u32 = 4;

/// Bin packing wants all on one node, the spread wants each unit on two.
fn both(checked_by: &str) -> String {
    format!(
        "
rescheduler:
  policies:
    pack:
      kind: binpack
      every: 1s
      moved_max_percent: 100
      checked_by: [{checked_by}]
      args: {{use_max: 1.0, ends_within: 0s}}
    part:
      kind: spread
      every: 1s
      moved_max_percent: 100
      args: {{domains: 2}}
"
    )
}

async fn policies(cluster: &Cluster) -> Result<BTreeMap<String, v1::ReschedulePolicy>> {
    let request = v1::ListPoliciesRequest {};
    let list = cluster.api.rescheduler().await?.list_policies(request).await?.into_inner();
    Ok(list.policies.into_iter().map(|policy| (policy.name.clone(), policy)).collect())
}

async fn movements(cluster: &Cluster) -> Result<Vec<v1::Movement>> {
    let request = v1::ListMovementsRequest::default();
    let list = cluster.api.rescheduler().await?.list_movements(request).await?.into_inner();
    Ok(list.movements.into_iter().filter_map(|summary| summary.movement).collect())
}

/// How many running units of a unit each node has.
async fn per_node(cluster: &Cluster, unit: &str) -> Result<BTreeMap<String, usize>> {
    let mut count = BTreeMap::new();
    for row in rows(cluster, unit).await? {
        ensure!(row.phase() == v1::RunPhase::Running, "{row:?}");
        *count.entry(row.node).or_default() += 1;
    }
    Ok(count)
}

/// Waits until both policies have run so often that each has seen what the other left, without a movement.
async fn wait_settled(cluster: &Cluster) -> Vec<v1::Movement> {
    let mut since: Option<(usize, BTreeMap<String, u64>)> = None;
    wait_for("rounds in which nothing moves", LIMIT, async || {
        let movements = movements(cluster).await?;
        let policies = policies(cluster).await?;
        let runs = |name: &str| policies.get(name).map_or(0, |policy| policy.runs);
        let is_same = since.as_ref().is_some_and(|(n, _)| *n == movements.len());
        if !is_same || movements.iter().any(|movement| movement.phase() == v1::MovementPhase::Running) {
            let now = policies.iter().map(|(name, policy)| (name.clone(), policy.runs)).collect();
            since = Some((movements.len(), now));
            anyhow::bail!("something moves: {movements:?}");
        }
        let (_, before) = since.as_ref().context("a first look")?;
        for name in ["pack", "part"] {
            let n = runs(name).saturating_sub(before.get(name).copied().unwrap_or_default());
            ensure!(n >= N_ROUNDS, "{n} rounds of {name}");
        }
        Ok(movements)
    })
    .await
}

pub(super) async fn policies_that_would_undo_each_other_do_not(cluster: &Cluster) {
    let others = ["node-0001", "node-0002", "node-0003"];
    godel(cluster, &[&["node", "cordon"], &others[..]].concat());
    run_unit(cluster, "deep", N_DEEP).await;
    let before = movements(cluster).await.unwrap().iter().map(|movement| movement.number).max();
    configure(cluster, &both("part")).await;
    godel(cluster, &[&["node", "uncordon"], &others[..]].concat());
    // The spread opens another node, which bin packing alone would empty.
    wait_for("a spread over two nodes", LIMIT, async || {
        let count = per_node(cluster, "deep").await?;
        ensure!(count.len() == 2 && count.values().all(|n| *n == 2), "{count:?}");
        Ok(())
    })
    .await;
    wait_settled(cluster).await;
    // Bin packing does what it may: what comes to a node of its own does not stay there.
    run_unit(cluster, "lone", 1).await;
    wait_for("a node that is emptied", LIMIT, async || {
        let movements = movements(cluster).await?;
        ensure!(
            movements.iter().any(|one| one.policy == "pack" && Some(one.number) > before),
            "{movements:?}"
        );
        Ok(())
    })
    .await;
    let movements = wait_settled(cluster).await;
    assert!(movements.iter().any(|movement| movement.policy == "part"), "{movements:?}");
    let deep = per_node(cluster, "deep").await.unwrap();
    assert!(deep.len() == 2 && deep.values().all(|n| *n == 2), "the bound of the spread holds: {deep:?}");
    let lone = per_node(cluster, "lone").await.unwrap();
    assert!(lone.keys().all(|node| deep.contains_key(node)), "two nodes have work: {lone:?} {deep:?}");

    let log = EventLog::read(cluster, 0).await.unwrap();
    for unit in ["deep", "lone"] {
        let unit_id = cluster.api.get_unit(unit).await.unwrap().unit.unwrap().unit_id;
        for (ordinal, nodes) in log.nodes_of(unit_id) {
            let visited: BTreeSet<u32> = nodes.iter().copied().collect();
            assert_eq!(visited.len(), nodes.len(), "{unit}/{ordinal} was moved back: {nodes:?}");
        }
    }
    // Bin packing would go on: what keeps it from that is the check of the other policy, and the plan says so.
    let mut client = cluster.api.rescheduler().await.unwrap();
    let plan = client.plan_policy(v1::PlanPolicyRequest { policy: "pack".to_owned() }).await.unwrap();
    let plan = plan.into_inner().plan.unwrap();
    assert!(plan.moves.is_empty(), "{plan:?}");
    let refused = plan.refusals.iter().find(|one| one.reason.contains("a check of policy kind `spread`"));
    assert!(refused.is_some_and(|one| one.n > 0), "{:?}", plan.refusals);
    configure(cluster, PACK).await;
    clear(cluster, &["deep", "lone"]).await;
}

pub(super) async fn policies_without_a_check_between_them_are_refused(cluster: &mut Cluster) {
    let unrelated = "policies `pack` and `part` are enabled and neither is checked by the other";
    cluster.stop(NAME).await;
    write_config(cluster, &both(""));
    cluster.announce(&["neither is checked by the other"]);
    cluster.restart(NAME);
    cluster.wait_ended(NAME).await;
    assert!(cluster.log(NAME).contains(unrelated), "{}", cluster.log(NAME));

    // While it runs, what was in force stays.
    write_config(cluster, &both("part"));
    cluster.restart(NAME);
    wait_leading(cluster).await;
    write_config(cluster, &both(""));
    wait_for("the fault of the configuration", LIMIT, async || {
        let status = status(cluster).await?;
        ensure!(status.config_faults.iter().any(|fault| fault.contains(unrelated)), "{status:?}");
        ensure!(status.enabled_policies == 2, "{status:?}");
        Ok(())
    })
    .await;
    let policies = policies(cluster).await.unwrap();
    assert_eq!(policies["pack"].checked_by, ["part"]);
    configure(cluster, PACK).await;
}
