//! Requests of masters on nodes that are named: where their containers go, what follows a change, and what is refused.

use std::collections::BTreeMap;

use godel_core_yarn::asks::{BadAsk, BlacklistChange};

use super::*;

/// Nodes of 4 CPUs in racks, some of them with a label.
fn shapes(nodes: &[(&str, &str, &str)]) -> Vec<String> {
    let shape = |(host, rack, label): &(&str, &str, &str)| {
        let label =
            if label.is_empty() { String::new() } else { format!(",label.godel.dev/yarn-label={label}") };
        format!(
            "1 x name={host},cpu=4,memory=8Gi,label.godel.dev/yarn-port=8041,label.godel.dev/yarn-host={host},label.rack={rack}{label},\
             max_running_units=100"
        )
    };
    nodes.iter().map(shape).collect()
}

/// A master that runs elsewhere, of an application with a label.
async fn master(adapter: &Adapter, label: &str) -> Master {
    let mut app = submitted();
    (app.submission.master, app.submission.label) = (None, label.to_owned());
    let id = until("leader", async || adapter.manager.new_application().await.ok()).await.0;
    until("recorded application", async || {
        match adapter.manager.submit(id, &user("ann"), app.clone()).await {
            Ok(()) => Some(()),
            Err(ManagerRefusal::Unavailable(_)) => None,
            Err(refusal) => panic!("{refusal}"),
        }
    })
    .await;
    let attempt = launched(adapter, id, 1).await;
    Master::register(adapter, attempt).await.0
}

fn at(name: &str, n: u32) -> AskRow {
    AskRow { name: name.to_owned(), ..ask(n) }
}

fn strict(row: AskRow) -> AskRow {
    AskRow { relax_locality: false, ..row }
}

fn labelled(label: &str, row: AskRow) -> AskRow {
    AskRow { label: Some(label.to_owned()), ..row }
}

fn lower(priority: i32, row: AskRow) -> AskRow {
    let group = AskGroup { priority, ..row.key.group };
    AskRow { key: AskKey { group, ..row.key }, ..row }
}

fn refusing(add: &[&str], remove: &[&str], asks: Vec<AskRow>) -> AllocateCall {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    AllocateCall {
        asks,
        blacklist: BlacklistChange { add: names(add), remove: names(remove) },
        ..AllocateCall::default()
    }
}

/// Containers by host.
fn hosts(containers: &[AllocatedContainer]) -> BTreeMap<&str, usize> {
    let mut hosts = BTreeMap::new();
    for container in containers {
        *hosts.entry(container.node.split(':').next().unwrap()).or_default() += 1;
    }
    hosts
}

fn ids(containers: &[AllocatedContainer]) -> Vec<YarnContainerId> {
    containers.iter().map(|container| container.id).collect()
}

/// Waits until a master is told of so much room. Rooms are summed up once a second, and the racks of hosts are found then too.
async fn room(master: &mut Master, adapter: &Adapter, cpus: i64) {
    until(&format!("room for {cpus} CPUs"), async || {
        let answer = master.allocate(adapter, Vec::new(), Vec::new()).await.unwrap();
        (answer.headroom.vcores == cpus).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_go_where_label_numbers_and_strictness_say() {
    let nodes = [("h1", "r1", ""), ("h2", "r1", ""), ("h3", "r2", "fast"), ("h4", "r2", "fast")];
    let cluster = Cluster::start_with(&shapes(&nodes)).await;
    let adapter = cluster.adapter(LONG).await;
    until("nodes", async || (adapter.manager.nodes().ok()?.len() == 4).then_some(())).await;

    // Requests without a label have that of the application; places belong to `*` whatever its label.
    let mut fast = master(&adapter, "fast").await;
    fast.allocate(&adapter, vec![at("h4", 1), strict(ask(1))], Vec::new()).await.unwrap();
    let placed = fast.fetch(&adapter, 1).await;
    assert_eq!((hosts(&placed), placed[0].key.group.label.as_str()), (BTreeMap::from([("h4", 1)]), "fast"));
    let plain = lower(2, labelled("", ask(1)));
    fast.allocate(&adapter, vec![plain], Vec::new()).await.unwrap();
    assert!(!hosts(&fast.fetch(&adapter, 1).await).contains_key("h4"), "explicitly without a label");
    let report = adapter.manager.application(fast.attempt.application).unwrap();
    assert_eq!(report.label, "fast");
    let label_at_any = labelled("fast", strict(ask(1)));
    let mut other = master(&adapter, "").await;
    other.allocate(&adapter, vec![at("h3", 1), label_at_any], Vec::new()).await.unwrap();
    assert_eq!(hosts(&other.fetch(&adapter, 1).await), BTreeMap::from([("h3", 1)]));
    for attempt in [fast.attempt, other.attempt] {
        adapter.manager.kill(attempt.application, &user("ann"), "").await.unwrap();
    }
    until("empty cluster", async || (adapter.manager.cluster().ok()?.n_containers == 0).then_some(())).await;

    // As many on each host as were asked for there, whichever way round.
    for (of_h1, of_h2) in [(1, 3), (3, 1)] {
        let mut even = master(&adapter, "").await;
        room(&mut even, &adapter, 8).await;
        let rows = vec![at("h1", of_h1), at("h2", of_h2), at("/r1", 4), ask(4)];
        even.allocate(&adapter, rows, Vec::new()).await.unwrap();
        let placed = even.fetch(&adapter, 4).await;
        let count = |n: u32| usize::try_from(n).unwrap();
        assert_eq!(hosts(&placed), BTreeMap::from([("h1", count(of_h1)), ("h2", count(of_h2))]));
        adapter.manager.kill(even.attempt.application, &user("ann"), "").await.unwrap();
        until("empty cluster", async || (adapter.manager.cluster().ok()?.n_containers == 0).then_some(()))
            .await;
    }

    // A strict request for a full node waits for it, though its rack has room.
    let mut first = master(&adapter, "").await;
    first.allocate(&adapter, vec![at("h1", 4), strict(ask(4))], Vec::new()).await.unwrap();
    let full = first.fetch(&adapter, 4).await;
    assert_eq!(hosts(&full), BTreeMap::from([("h1", 4)]));
    let rows = vec![at("h1", 1), strict(at("/r1", 1)), strict(ask(1)), lower(2, ask(1))];
    first.allocate(&adapter, rows, Vec::new()).await.unwrap();
    assert_eq!(hosts(&first.fetch(&adapter, 1).await), BTreeMap::from([("h2", 1)]), "the one behind it");
    first.allocate(&adapter, Vec::new(), vec![full[0].id]).await.unwrap();
    assert_eq!(hosts(&first.fetch(&adapter, 1).await), BTreeMap::from([("h1", 1)]));
    // With a rack that relaxes it does not wait.
    first.allocate(&adapter, vec![at("h1", 1), at("/r1", 1), strict(ask(1))], Vec::new()).await.unwrap();
    assert_eq!(hosts(&first.fetch(&adapter, 1).await), BTreeMap::from([("h2", 1)]));
    cluster.audit().await;
    adapter.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_follows_blacklist_and_places_and_headroom_says_what_is_left() {
    let nodes = [("h1", "r1", ""), ("h2", "r1", ""), ("h3", "r2", "fast")];
    let cluster = Cluster::start_with(&shapes(&nodes)).await;
    let adapter = cluster.adapter(LONG).await;
    until("nodes", async || (adapter.manager.nodes().ok()?.len() == 3).then_some(())).await;
    let mut master = master(&adapter, "").await;

    // A blacklist of any length holds, in racks, too.
    let many: Vec<String> = (0..500).map(|idx| format!("a-host-of-another-rack-{idx}")).collect();
    let mut names: Vec<&str> = many.iter().map(String::as_str).collect();
    names.extend(["h1", "/r2"]);
    master.call(&adapter, refusing(&names, &[], vec![ask(4)])).await.unwrap();
    let placed = master.fetch(&adapter, 4).await;
    assert_eq!(hosts(&placed), BTreeMap::from([("h2", 4)]));
    // h1 is free, and does not count.
    room(&mut master, &adapter, 0).await;
    // It waits, until h1 is wanted again.
    master.call(&adapter, refusing(&[], &[], vec![ask(2)])).await.unwrap();
    let unit = master.attempt.application.to_string().replace('_', "-");
    until("waiting replicas", async || {
        let spec = cluster.unit(&unit).await;
        let n: u32 = spec.task_groups.iter().map(|group| group.replicas).sum();
        // The master, four that run and two that wait.
        (n == 7).then_some(())
    })
    .await;
    master.call(&adapter, refusing(&[], &["h1"], Vec::new())).await.unwrap();
    assert_eq!(hosts(&master.fetch(&adapter, 2).await), BTreeMap::from([("h1", 2)]));
    room(&mut master, &adapter, 2).await;
    // The other way round: what waits for h2, which is full, is not wanted there any more and goes elsewhere.
    master.call(&adapter, refusing(&[], &[], vec![at("h2", 1), strict(ask(1))])).await.unwrap();
    master.call(&adapter, refusing(&[], &[], vec![at("h2", 0), at("h1", 1), strict(ask(1))])).await.unwrap();
    assert_eq!(hosts(&master.fetch(&adapter, 1).await), BTreeMap::from([("h1", 1)]));
    // A label of its own, while it waits.
    master.call(&adapter, refusing(&["h1"], &["/r2"], vec![ask(1)])).await.unwrap();
    master.call(&adapter, refusing(&[], &[], vec![labelled("fast", ask(1))])).await.unwrap();
    assert_eq!(hosts(&master.fetch(&adapter, 1).await), BTreeMap::from([("h3", 1)]));
    master.allocate(&adapter, Vec::new(), ids(&placed[..2])).await.unwrap();
    room(&mut master, &adapter, 2).await;

    // What no node has is refused, as a whole.
    let refused = async |master: &mut Master, call| match master.call(&adapter, call).await.unwrap_err() {
        ManagerRefusal::Master(MasterRefusal::BadAsk(bad)) => bad,
        other => panic!("{other}"),
    };
    let unknown = refused(&mut master, refusing(&["h2"], &[], vec![labelled("slow", ask(1))])).await;
    assert_eq!(unknown, BadAsk::Label("slow".to_owned()));
    let mut row = ask(1);
    row.key.group.capability.insert("gpu".to_owned(), 1_000);
    let unknown = refused(&mut master, refusing(&[], &[], vec![row])).await;
    assert_eq!(unknown, BadAsk::Resource("yarn.io/gpu".to_owned()));
    room(&mut master, &adapter, 2).await;
    let id = adapter.manager.new_application().await.unwrap().0;
    let mut app = submitted();
    app.submission.label = "slow".to_owned();
    let refusal = adapter.manager.submit(id, &user("ann"), app).await.unwrap_err();
    assert_eq!(refusal, MasterRefusal::BadAsk(BadAsk::Label("slow".to_owned())).into());
    cluster.audit().await;
    adapter.stop().await;
    cluster.stop().await;
}
