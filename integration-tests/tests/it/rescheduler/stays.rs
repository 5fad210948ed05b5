//! What plans leave alone: units that may not be preempted, and nodes that take no more running units.

use super::*;

/// A service that may not be preempted, with a line that says more.
fn web(more: &str) -> String {
    format!(
        "name: web\nclass: service\nreplicas: {N_REPLICAS}\npreemptible: false\n{more}template: {{requests: {{cpu: 1, memory: 1Gi}}}}\n"
    )
}

pub(super) async fn what_may_not_be_preempted_is_moved_once_its_unit_says_that_it_may(cluster: &Cluster) {
    with_file(cluster, &["apply"], &web(""));
    wait_for("all replicas to run", LIMIT, async || {
        let rows = rows(cluster, "web").await?;
        let running = rows.iter().filter(|row| row.phase() == v1::RunPhase::Running);
        ensure!(running.count() == usize::try_from(N_REPLICAS)?, "{rows:?}");
        Ok(())
    })
    .await;
    let shown = godel(cluster, &["reschedule", "plan", "pack"]);
    assert!(shown.contains("0 moves"), "{shown}");
    let said = format!("does not say `movable: true`: {N_REPLICAS}");
    assert!(shown.contains("it may not be preempted") && shown.contains(&said), "{shown}");
    let why = run_pack(cluster).await.unwrap_err().to_string();
    assert!(why.contains("nothing to move"), "{why}");
    with_file(cluster, &["unit", "edit", "web"], &web("movable: true\n"));
    wait_for("a movement", LIMIT, async || run_pack(cluster).await).await;
    let ended = wait_ended(cluster).await;
    assert_eq!((ended.phase(), moved(&ended)), (v1::MovementPhase::Done, N_NODES - 1), "{ended:?}");
    // Of a service one replica is missing at a time, though no budget says so.
    assert_eq!(usize::try_from(ended.n_batches).unwrap(), N_NODES - 1, "{ended:?}");
    clear(cluster, &["web"]).await;
}

/// The last check: the other nodes are cordoned after it.
pub(super) async fn a_node_that_is_full_of_running_units_receives_none(cluster: &mut Cluster) {
    let empty: Vec<String> = (0..N_NODES).map(|number| format!("node-{number:04}")).collect();
    let empty: Vec<&str> = empty.iter().map(String::as_str).collect();
    godel(cluster, &[&["node", "cordon"], &empty[..]].concat());
    let shape = format!("{N_NODES}x cpu=64,memory=256Gi,max_running_units=2,name=small");
    cluster.start_agent("agent-2", &[shape], &[], N_NODES).await;
    cluster.wait_ready().await;
    cluster.wait_nodes_known().await;
    run_unit(cluster, "web", N_REPLICAS).await;
    assert_eq!(nodes_of(cluster, "web").await.len(), N_NODES, "spread before");
    wait_for("a movement", LIMIT, async || run_pack(cluster).await).await;
    let ended = wait_ended(cluster).await;
    assert_eq!((ended.phase(), moved(&ended)), (v1::MovementPhase::Done, 2), "{ended:?}");
    assert_eq!((ended.moves.len(), ended.n_replans), (2, 0), "the binder refused nothing: {ended:?}");
    assert_eq!(nodes_of(cluster, "web").await.len(), 2, "two of them on each");
}
