//! A gang that only fragmentation keeps out gets in by moves: within budgets, on held targets, and whatever is killed meanwhile.

use super::{event_log::EventLog, *};
use crate::kills::AWAY;

/// Members of the gang; each wants a whole node.
const N_MEMBERS: u32 = 3;
/// Nothing of these may move: the nodes that they are on cannot become free.
const PROTECTED: &str = "
rescheduler:
  protected_units: [default/fill]
";

/// Units that serve, with their replicas.
type Webs = [(&'static str, u32)];
/// One replica of it leaves at a time.
const WEB: &Webs = &[("web", N_MEMBERS)];
/// All of these may leave at once.
const ALONE: &Webs = &[("web-0", 1), ("web-1", 1), ("web-2", 1)];

/// Three nodes of which `webs` have one core each, with 10 GiB, and three that are full but for one core each, with 44 GiB. The gang
/// wants the former, and `webs` have room on the latter. Neither the gang nor the rescheduler is there yet.
async fn fill(cluster: &Cluster, webs: &Webs) {
    let full: Vec<String> = (0..N_MEMBERS).map(|number| format!("full-{number:04}")).collect();
    let full: Vec<&str> = full.iter().map(String::as_str).collect();
    godel(cluster, &[&["node", "cordon"], &full[..]].concat());
    // Two of them have no room on one node.
    for (name, replicas) in webs {
        run_unit_of(cluster, name, *replicas, resources(1_000, 10 * 1_024)).await;
    }
    godel(cluster, &[&["node", "uncordon"], &full[..]].concat());
    run_unit_of(cluster, "fill", N_MEMBERS, resources(3_000, 20 * 1_024)).await;
    let nodes = nodes_of_all(cluster, webs).await;
    let n_nodes = usize::try_from(N_MEMBERS).unwrap();
    assert!(nodes.len() == n_nodes && nodes.iter().all(|node| node.starts_with("free")), "{nodes:?}");
}

/// Starts the rescheduler with this configuration.
async fn start_rescheduler(cluster: &mut Cluster, config: &str) {
    write_config(cluster, config);
    cluster.restart(NAME);
    wait_leading(cluster).await;
}

/// Leaves the nodes empty, and the rescheduler stopped.
async fn leave(cluster: &mut Cluster, webs: &Webs, others: &[&str]) {
    let webs: Vec<&str> = webs.iter().map(|(name, _)| *name).collect();
    clear(cluster, &[&webs[..], &["fill", "gang"], others].concat()).await;
    cluster.stop(NAME).await;
}

async fn nodes_of_all(cluster: &Cluster, webs: &Webs) -> BTreeSet<String> {
    let mut nodes = BTreeSet::new();
    for (name, _) in webs {
        nodes.append(&mut nodes_of(cluster, name).await);
    }
    nodes
}

async fn submit_gang(cluster: &Cluster, name: &str, queue: &str) {
    let spec = unit(name, "", N_MEMBERS, resources(4_000, 1_024), None, 0);
    let class = v1::WorkloadClass::Gang.into();
    let gang = v1::UnitSpec { workload_class: class, queue: queue.to_owned(), ..spec };
    cluster.api.submit(gang).await.unwrap();
}

/// Asks for room for the gang; the name of the movement.
async fn make_room(cluster: &Cluster) -> Result<String> {
    let request = v1::MakeRoomForRequest { unit: "gang".to_owned(), ..Default::default() };
    let answer = cluster.api.rescheduler().await?.make_room_for(request).await?.into_inner();
    ensure!(!answer.movement.is_empty(), "nothing is moved: {}", answer.why_not);
    Ok(answer.movement)
}

async fn wait_running(cluster: &Cluster, name: &str, replicas: u32) {
    wait_for(&format!("all of {name} to run"), LIMIT, async || {
        let rows = rows(cluster, name).await?;
        let running = rows.iter().filter(|row| row.phase() == v1::RunPhase::Running);
        ensure!(running.count() == usize::try_from(replicas)?, "{rows:?}");
        Ok(())
    })
    .await;
}

async fn id_of(cluster: &Cluster, name: &str) -> u64 {
    cluster.api.get_unit(name).await.unwrap().unit.unwrap().unit_id
}

/// The gang has the nodes of `webs`, whose replicas were moved once each to the others.
async fn assert_let_in(cluster: &Cluster, webs: &Webs) {
    wait_running(cluster, "gang", N_MEMBERS).await;
    for (name, replicas) in webs {
        wait_running(cluster, name, *replicas).await;
        for row in rows(cluster, name).await.unwrap() {
            assert_eq!(row.incarnation, 1, "moved once: {row:?}");
        }
    }
    let (gang, web) = (nodes_of(cluster, "gang").await, nodes_of_all(cluster, webs).await);
    assert!(gang.iter().all(|node| node.starts_with("free")), "{gang:?}");
    assert!(web.iter().all(|node| node.starts_with("full")), "{web:?}");
}

/// Each check begins with six empty nodes, and no rescheduler.
#[tokio::test(flavor = "multi_thread")]
async fn gangs_get_in_by_moves() {
    let n_nodes = usize::try_from(N_MEMBERS).unwrap();
    let mut cluster =
        start_with(PROTECTED.to_owned(), &format!("{N_MEMBERS}x cpu=4,memory=16Gi,name=free"), n_nodes).await;
    let shape = format!("{N_MEMBERS}x cpu=4,memory=64Gi,name=full");
    cluster.start_agent("agent-2", &[shape], &[], n_nodes).await;
    cluster.wait_ready().await;
    cluster.wait_nodes_known().await;
    cluster.add_service("rescheduler", NAME).await;
    wait_leading(&cluster).await;
    cluster.stop(NAME).await;
    cluster.note("targets that others want");
    a_gang_gets_in_by_moves_and_nobody_takes_their_targets(&mut cluster).await;
    cluster.note("kills and a budget");
    room_for_a_gang_outlives_kills_and_keeps_budgets(&mut cluster).await;
    cluster.note("gangs that ask by themselves");
    a_gang_asks_for_room_by_itself_unless_its_queue_keeps_it_out(&mut cluster).await;
    cluster.audit(&[]);
    cluster.assert_quiet();
}

async fn a_gang_gets_in_by_moves_and_nobody_takes_their_targets(cluster: &mut Cluster) {
    let begun = cluster.api.store_status().await.unwrap().revision;
    fill(cluster, ALONE).await;
    submit_gang(cluster, "gang", "").await;
    start_rescheduler(cluster, PROTECTED).await;
    cluster.assert_quiet();
    cluster.announce(&["paused scope=all"]);
    // While nothing is placed there is time to want the targets.
    godel(cluster, &["admin", "pause", "all"]);
    let name = wait_for("a movement", LIMIT, async || make_room(cluster).await).await;
    wait_for("moves that have left", LIMIT, async || {
        let movement = movement(cluster, &name).await?;
        let pending = movement.moves.iter().filter(|one| one.phase() == v1::MovePhase::Pending);
        ensure!(pending.count() == usize::try_from(N_MEMBERS)?, "{movement:?}");
        Ok(())
    })
    .await;
    // Only the nodes with much memory take these, and there is one core of each.
    let takers = unit("taker", "", N_MEMBERS, resources(1_000, 20 * 1_024), None, 0);
    cluster.api.submit(takers).await.unwrap();
    godel(cluster, &["admin", "resume", "all"]);
    let ended = wait_ended(cluster).await;
    let n_moves = usize::try_from(N_MEMBERS).unwrap();
    assert_eq!((ended.phase(), moved(&ended)), (v1::MovementPhase::Done, n_moves), "{ended:?}");
    assert_let_in(cluster, ALONE).await;
    assert_eq!(rows(cluster, "taker").await.unwrap().iter().filter(|row| !row.node.is_empty()).count(), 0);
    let log = EventLog::read(cluster, begun).await.unwrap();
    assert_eq!(log.bound_beside_holds(), (Vec::new(), n_moves));
    assert_eq!(log.nodes_of(id_of(cluster, "taker").await).len(), 0);
    leave(cluster, ALONE, &["taker"]).await;
}

async fn room_for_a_gang_outlives_kills_and_keeps_budgets(cluster: &mut Cluster) {
    let begun = cluster.api.store_status().await.unwrap().revision;
    fill(cluster, WEB).await;
    with_file(cluster, &["apply"], "kind: disruption-budget\nname: web\nunit: web\nmax_unavailable: 1\n");
    submit_gang(cluster, "gang", "").await;
    cluster.assert_quiet();
    cluster.announce(AWAY);
    cluster.announce(&["crash point"]);
    let point = ("GODEL_RESCHEDULER__CRASH_POINTS".to_owned(), "rescheduler.after-move".to_owned());
    cluster.restart_with(NAME, &[point]);
    wait_leading(cluster).await;
    // The first batch is asked for, and the rescheduler does not hear the answer.
    wait_for("a movement", LIMIT, async || make_room(cluster).await).await;
    cluster.wait_ended(NAME).await;
    cluster.restart(NAME);
    wait_leading(cluster).await;
    for n_moved in [1, 2] {
        wait_for(&format!("{n_moved} moves"), LIMIT, async || {
            let movement = newest(cluster).await?;
            ensure!(moved(&movement) >= n_moved, "{movement:?}");
            Ok(())
        })
        .await;
        cluster.note(&format!("{n_moved} moved"));
        let victims = if n_moved == 1 { vec!["binder-1"] } else { vec!["binder-1", NAME] };
        victims.iter().for_each(|name| cluster.kill(name));
        victims.iter().for_each(|name| cluster.restart(name));
        wait_leading(cluster).await;
    }
    let ended = wait_ended(cluster).await;
    assert_eq!(ended.phase(), v1::MovementPhase::Done, "{ended:?}");
    assert_let_in(cluster, WEB).await;
    let log = EventLog::read(cluster, begun).await.unwrap();
    let missing = log.missing(id_of(cluster, "web").await, usize::try_from(N_MEMBERS).unwrap());
    assert_eq!(missing.iter().map(|(_, n)| *n).max(), Some(1), "one may be missing at a time: {missing:?}");
    let (beside, n_holds) = log.bound_beside_holds();
    assert!(beside.is_empty() && n_holds >= usize::try_from(N_MEMBERS).unwrap(), "{beside:?} {n_holds}");
    godel(cluster, &["budget", "delete", "web"]);
    leave(cluster, WEB, &[]).await;
}

async fn a_gang_asks_for_room_by_itself_unless_its_queue_keeps_it_out(cluster: &mut Cluster) {
    fill(cluster, WEB).await;
    with_file(cluster, &["apply"], "kind: queue\nname: small\nmax: {cpu: 1}\n");
    submit_gang(cluster, "kept", "small").await;
    wait_for("the queue to keep a gang out", LIMIT, async || {
        let unit = cluster.api.get_unit("kept").await?.unit.context("a unit")?;
        let refusals = unit.refusals.unwrap_or_default().reasons;
        ensure!(refusals.iter().any(|refused| refused.plugin == "queue"), "{refusals:?}");
        Ok(())
    })
    .await;
    submit_gang(cluster, "gang", "").await;
    start_rescheduler(cluster, &format!("{PROTECTED}  make_room_after: 500ms\n")).await;
    // The one that its queue keeps out was submitted first, and asks first.
    assert_let_in(cluster, WEB).await;
    let movement = wait_ended(cluster).await;
    assert!(movement.name.starts_with("room-") && movement.trigger == "waiting", "{movement:?}");
    assert_eq!(movement.for_unit_id, id_of(cluster, "gang").await);
    let kept = id_of(cluster, "kept").await;
    let mut client = cluster.api.rescheduler().await.unwrap();
    let all =
        client.list_movements(v1::ListMovementsRequest::default()).await.unwrap().into_inner().movements;
    let for_kept = all.iter().filter_map(|one| one.movement.as_ref()).filter(|one| one.for_unit_id == kept);
    assert_eq!(for_kept.count(), 0, "{all:?}");
    assert!(rows(cluster, "kept").await.unwrap().iter().all(|row| row.node.is_empty()));
}
