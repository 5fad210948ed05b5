//! A store with a record of each kind that nobody can read: every service starts on it, names it, serves the rest, and
//! breaks nothing that rests on it.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use godel_crash::CrashPoints;
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::{raw, v1};
use godel_store::{Engine, Role, SledConfig, Store, StoreConfig};
use prost::Message as _;

/// What every part says of a record that it cannot read.
const SAID: &str = "a record cannot be read";

/// Writes into the store of a stopped state service, past its checks, as who may write each.
struct Planter {
    store: Store,
    sequence: u64,
}

impl Planter {
    fn open(cluster: &Cluster) -> Self {
        let engine = Engine::Sled(SledConfig::new(cluster.path("state")));
        let now = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
            i64::try_from(since.as_millis()).unwrap()
        };
        let store = Store::open(StoreConfig::new(engine), Arc::new(now), CrashPoints::default()).unwrap();
        Self { store, sequence: 0 }
    }

    /// One transaction for each lease, each under a grant of its own.
    async fn write(&mut self, lease: &str, ops: Vec<v1::op::Op>) {
        let known = self.store.read(|state| {
            let key = godel_store::Key::Name(lease.to_owned());
            state.record(v1::Kind::Lease, &key).map(|record| record.value.clone())
        });
        let known = v1::LeaseRecord::decode(known.unwrap_or_default()).unwrap();
        let (holder, address) = ("planter".to_owned(), "http://127.0.0.1:1".to_owned());
        let epoch = known.epoch + 1;
        let granted = v1::LeaseRecord { lease: lease.to_owned(), holder, address, epoch, ttl_ms: 500 };
        self.submit(None, Role::State, vec![v1::op::Op::PutLease(granted)]).await;
        self.sequence += 1;
        let writer = v1::Writer { lease: lease.to_owned(), epoch, sequence: self.sequence };
        self.submit(Some(writer), Role::Leased, ops).await;
    }

    async fn submit(&self, writer: Option<v1::Writer>, role: Role, ops: Vec<v1::op::Op>) {
        let ops: Vec<Bytes> = ops.into_iter().map(raw::encode_op).collect();
        let txn = raw::TxnRequest { writer, ops, ..raw::TxnRequest::default() };
        self.store.submit(txn, role).await.unwrap();
    }

    async fn close(self) {
        self.store.close().await;
    }
}

fn run(cluster: &Cluster, args: &[&str]) -> String {
    let output = cluster.godel(args);
    assert!(output.status.success(), "{args:?}: {}", shown(&output));
    shown(&output)
}

/// Of `cpu` cores, that runs until it is told to leave.
fn of(name: &str, replicas: u32, cpu: i64) -> v1::UnitSpec {
    unit(name, "", replicas, resources(cpu * 1_000, 16), None, 0)
}

async fn counts(cluster: &Cluster, name: &str) -> Result<v1::UnitCounts> {
    cluster.api.get_unit(name).await?.unit.unwrap_or_default().counts.context("no counts")
}

async fn wait_running(cluster: &Cluster, name: &str, n: u32) {
    wait_for(&format!("{n} running units of {name}"), LIMIT, async || {
        let running = counts(cluster, name).await?.running;
        ensure!(running == n, "{running} run");
        Ok(())
    })
    .await;
}

/// Where replicas of a unit are, by node id.
async fn nodes_of(cluster: &Cluster, name: &str) -> Vec<u32> {
    let records = cluster.api.records().await.unwrap();
    let meta = |unit: &v1::UnitRecord| unit.spec.as_ref().and_then(|spec| spec.meta.clone());
    let is_named = |unit: &&v1::UnitRecord| meta(unit).is_some_and(|meta| meta.name == name);
    let id = records.units.values().find(is_named).map(|unit| unit.unit_id).unwrap();
    let blocks = records.rows.get(&id).into_iter().flat_map(|rows| &rows.blocks);
    blocks.flat_map(|block| block.node_ids.clone()).filter(|node| *node != 0).collect()
}
fn negative() -> v1::Resources {
    v1::Resources { amounts: BTreeMap::from([("cpu".to_owned(), -1)]) }
}

fn queue(policy: i32, max_running_units: u32) -> v1::op::Op {
    let meta = v1::ObjectMeta { name: "capped".to_owned(), ..v1::ObjectMeta::default() };
    v1::op::Op::PutQueue(v1::Queue {
        meta: Some(meta),
        policy,
        max_running_units: Some(max_running_units),
        ..v1::Queue::default()
    })
}

fn budget(amount: Option<v1::budget_amount::Amount>) -> v1::op::Op {
    v1::op::Op::PutDisruptionBudget(v1::DisruptionBudget {
        name: "all".to_owned(),
        namespace: "default".to_owned(),
        unit: "first".to_owned(),
        limit: Some(v1::disruption_budget::Limit::MaxUnavailable(v1::BudgetAmount { amount })),
        ..v1::DisruptionBudget::default()
    })
}

/// One of each kind. Nodes: 1 has `first`, and 2 to 5 a record each that cannot be read.
async fn plant(cluster: &Cluster, mut first: v1::UnitRecord) {
    use v1::op::Op;
    let mut planter = Planter::open(cluster);
    first.spec.as_mut().unwrap().workload_class = 99;
    let hold = v1::Hold {
        hold_id: 1 << 40,
        node_id: 5,
        unit_id: first.unit_id,
        pool: 9,
        ordinals: vec![7],
        demand: Some(v1::Demand {
            requests: Some(resources(1_000, 16)),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        }),
        ..v1::Hold::default()
    };
    let reservation = v1::Reservation {
        name: "kept".to_owned(),
        slots: 1,
        demand: Some(v1::Demand {
            requests: Some(negative()),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        }),
        ..v1::Reservation::default()
    };
    let partition = v1::Partition {
        name: "default".to_owned(),
        node_ids: vec![1, 2],
        slots: vec![9],
        ..Default::default()
    };
    let dispatcher = vec![
        queue(99, 9),
        budget(None),
        Op::PutReservation(reservation),
        Op::PutUnit(first),
        Op::PutPartition(partition),
    ];
    planter.write("dispatcher", dispatcher).await;
    let allocatable = v1::NodeAllocatable { node_id: 4, allocatable: Some(negative()) };
    planter.write("binder", vec![Op::PutHold(hold), Op::PutNodeAllocatable(allocatable)]).await;
    let usage =
        v1::NodeUsage { node_id: 3, reserved: Some(negative()), as_of_ms: 1, ..v1::NodeUsage::default() };
    let report = v1::NodeReport { node_id: 3, capacity: Some(negative()), ..v1::NodeReport::default() };
    planter.submit(None, Role::Agent, vec![Op::PutNodeUsage(usage), Op::PutNodeReport(report)]).await;
    let spec =
        planter.store.read(|state| state.record(v1::Kind::NodeSpec, &godel_store::Key::Id(2)).cloned());
    let mut spec = v1::NodeSpec::decode(spec.unwrap().value).unwrap();
    spec.taints.push(v1::Taint { key: "new".to_owned(), value: String::new(), effect: 77, added_time_ms: 0 });
    planter.submit(None, Role::Admin, vec![Op::PutNodeSpec(spec)]).await;
    planter.close().await;
}

/// What must be seen whoever reads the records, and from wherever it began to read them.
async fn serves_the_rest(cluster: &mut Cluster, round: &str) {
    for part in ["dispatcher-1", "binder-1", "scheduler-1"] {
        assert!(cluster.is_running(part), "{part} has ended");
    }
    wait_for("the parts to say what they cannot read", LIMIT, async || {
        let said = shown(&cluster.godel(&["status"]));
        for member in ["dispatcher", "binder", "scheduler/scheduler-1"] {
            ensure!(said.contains(&format!("{member} cannot read")), "{said}");
        }
        Ok(())
    })
    .await;
    let kinds = [
        "node spec",
        "node report",
        "node allocatable",
        "node usage",
        "hold",
        "queue",
        "reservation",
        "disruption budget",
        "partition",
        "unit",
    ];
    // The status may arrive before what the processes print.
    wait_for("a complaint of each kind", LIMIT, async || {
        let complaints = cluster.all_complaints();
        for kind in kinds {
            let is_said = |line: &String| line.contains(SAID) && line.contains(kind);
            ensure!(complaints.iter().any(is_said), "nobody says {kind}: {complaints:?}");
        }
        Ok(())
    })
    .await;
    // The rest is served: the one node with room of which everything can be read.
    let [new, urgent] = ["new", "urgent"].map(|name| format!("{name}-{round}"));
    cluster.api.submit(of(&new, 1, 3)).await.unwrap();
    wait_running(cluster, &new, 1).await;
    assert_eq!(nodes_of(cluster, &new).await, [6]);
    // The unit that runs goes on, the maximum of the queue holds, and nobody is preempted.
    assert_eq!(nodes_of(cluster, "first").await, [1]);
    assert_eq!(nodes_of(cluster, "second").await, [1], "one of two may run");
    cluster.api.submit(v1::UnitSpec { priority: Some(900), ..of(&urgent, 1, 5) }).await.unwrap();
    wait_for("no place for who would preempt", LIMIT, async || {
        let unit = cluster.api.get_unit(&urgent).await?.unit.unwrap_or_default();
        ensure!(unit.phase() == v1::UnitPhase::Unschedulable, "{:?}", unit.phase());
        Ok(())
    })
    .await;
    assert_eq!(counts(cluster, &new).await.unwrap().running, 1);
    run(cluster, &["unit", "cancel", &urgent]);
    run(cluster, &["unit", "cancel", &new]);
    wait_running(cluster, &new, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_record_of_each_kind_breaks_nothing() {
    let layout = Layout { n_nodes: 0, n_dispatchers: 1, n_schedulers: 1, n_binders: 1, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.announce(&[SAID]);
    let shape = "6x cpu=5,memory=8Gi,name=small".to_owned();
    cluster.start_agent("agent-2", &[shape], &[], 6).await;
    cluster.wait_ready().await;
    let file = cluster.path("queue.yaml");
    std::fs::write(&file, "{kind: queue, name: capped, max_running_units: 1}\n").unwrap();
    run(&cluster, &["apply", "-f", file.to_str().unwrap()]);
    // Everything but node 1 is closed, so that it is known where each is.
    let records = cluster.api.records().await.unwrap();
    assert_eq!(records.nodes.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    for node in 2..=6 {
        close(&cluster, node, true).await;
    }
    cluster.api.submit(of("first", 1, 2)).await.unwrap();
    cluster.api.submit(v1::UnitSpec { queue: "capped".to_owned(), ..of("second", 2, 1) }).await.unwrap();
    wait_running(&cluster, "first", 1).await;
    wait_running(&cluster, "second", 1).await;
    // What agents say of node 3 is written anew whenever it is heard: it stays closed.
    for node in [2, 4, 5, 6] {
        close(&cluster, node, false).await;
    }
    let mut units = cluster.api.records().await.unwrap().units.into_values();
    let meta = |unit: &v1::UnitRecord| unit.spec.as_ref().and_then(|spec| spec.meta.clone());
    let first = units.find(|unit| meta(unit).is_some_and(|meta| meta.name == "first")).unwrap();

    // Those that run see them come.
    cluster.stop("state").await;
    plant(&cluster, first).await;
    cluster.restart("state");
    cluster.wait_state().await;
    serves_the_rest(&mut cluster, "watched").await;

    // Those that start find them there.
    for part in ["dispatcher-1", "binder-1", "scheduler-1"] {
        cluster.kill(part);
    }
    for part in ["dispatcher-1", "binder-1", "scheduler-1"] {
        cluster.restart(part);
    }
    cluster.wait_ready().await;
    serves_the_rest(&mut cluster, "listed").await;

    // A pause whose scope nobody can read is of everything, until it is gone.
    cluster.stop("state").await;
    let mut planter = Planter::open(&cluster);
    let scope = "everything\n".to_owned();
    let pause = v1::op::Op::PutPause(v1::Pause { scope: scope.clone(), ..v1::Pause::default() });
    planter.write("dispatcher", vec![pause]).await;
    planter.close().await;
    cluster.restart("state");
    cluster.wait_ready().await;
    let refused = cluster.api.submit(of("late", 1, 1)).await.unwrap_err().to_string();
    assert!(refused.contains("pause everything"), "{refused}");
    cluster.stop("state").await;
    let mut planter = Planter::open(&cluster);
    let key = Some(v1::Key { id: 0, name: scope });
    let gone = v1::op::Op::Delete(v1::Delete { kind: v1::Kind::Pause.into(), key });
    // The queue and the budget can be read again as well.
    let count = v1::budget_amount::Amount::Count(1);
    planter.write("dispatcher", vec![gone, queue(1, 2), budget(Some(count))]).await;
    planter.close().await;
    cluster.restart("state");
    cluster.wait_ready().await;
    cluster.api.submit(of("late", 1, 1)).await.unwrap();
    wait_running(&cluster, "late", 1).await;
    wait_running(&cluster, "second", 2).await;
    let panics = cluster.complaints(&[SAID]);
    assert!(!panics.iter().any(|line| line.contains("panicked")), "{panics:?}");
}

/// Closes a node, or opens it.
async fn close(cluster: &Cluster, node: u32, cordoned: bool) {
    let request = v1::ListNodesRequest::default();
    let nodes = cluster.api.nodes().list_nodes(request).await.unwrap().into_inner().nodes;
    let name = nodes.into_iter().find(|one| one.node_id == node).and_then(|one| one.spec?.meta).unwrap().name;
    let request =
        v1::UpdateNodeRequest { name, cordoned: Some(cordoned), ..v1::UpdateNodeRequest::default() };
    cluster.api.nodes().update_node(request).await.unwrap();
}
