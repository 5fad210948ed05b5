//! Audits of stores that were written without the parts that keep the rules, through a real state.

use std::{path::Path, sync::Arc, time::Duration};

use godel_audit::{Invariant, InvariantReport};
use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_kit::CancellationToken;
use godel_proto::{raw, v1};
use godel_store::{Engine, Role, SledConfig, Store, StoreConfig};
use tokio::net::TcpListener;
use v1::op::Op;

use super::*;

/// Writes whatever it is told, as whoever may.
struct Book {
    store: Store,
    n_written: u64,
}

impl Book {
    async fn open(dir: &Path) -> Self {
        let config = StoreConfig {
            generation_bytes_min: 2_000,
            snapshot_piece_bytes: 400,
            history_bytes_min: 0,
            history_age_min: Duration::MAX,
            reserve_bytes: 0,
            ..StoreConfig::new(Engine::Sled(SledConfig::new(dir)))
        };
        let store = Store::open(config, Arc::new(|| 1_000_000), CrashPoints::default()).unwrap();
        let mut book = Self { store, n_written: 0 };
        book.leases("tester").await;
        book
    }

    async fn leases(&mut self, holder: &str) {
        let lease = |lease: &str| {
            let (lease, holder) = (lease.to_owned(), holder.to_owned());
            Op::PutLease(v1::LeaseRecord { lease, holder, epoch: 1, ttl_ms: 3_600_000, ..Default::default() })
        };
        self.write(Role::State, None, vec![lease("binder"), lease("dispatcher")]).await;
    }

    async fn write(&mut self, role: Role, lease: Option<&str>, ops: Vec<Op>) -> Revision {
        self.n_written += 1;
        let writer =
            lease.map(|lease| v1::Writer { lease: lease.to_owned(), epoch: 1, sequence: self.n_written });
        let ops = ops.into_iter().map(raw::encode_op).collect();
        let txn = raw::TxnRequest { writer, ops, ..raw::TxnRequest::default() };
        self.store.submit(txn, role).await.unwrap().revision
    }

    async fn dispatcher(&mut self, op: Op) -> Revision {
        self.write(Role::Leased, Some("dispatcher"), vec![op]).await
    }

    async fn binder(&mut self, op: Op) -> Revision {
        self.write(Role::Leased, Some("binder"), vec![op]).await
    }

    /// One of 4 CPUs.
    async fn node(&mut self, node_id: u32) {
        let name = format!("n{node_id}");
        let uid = format!("00000000-0000-0000-0000-{node_id:012}");
        let meta = Some(v1::ObjectMeta { name, uid, ..v1::ObjectMeta::default() });
        let spec = v1::NodeSpec { node_id, meta, ..v1::NodeSpec::default() };
        let report = v1::NodeReport {
            node_id,
            capacity: Some(resources(4_000)),
            ready: true,
            ..v1::NodeReport::default()
        };
        self.write(Role::Agent, None, vec![Op::PutNodeSpec(spec), Op::PutNodeReport(report)]).await;
    }

    /// One replica of it on a node.
    async fn placed(&mut self, unit_id: u64, cpu: i64, node_id: u32) -> Revision {
        self.dispatcher(unit(unit_id, cpu)).await;
        self.binder(Op::Bind(v1::Binding {
            unit_id,
            demand: Some(v1::Demand {
                requests: Some(resources(cpu)),
                devices: Vec::new(),
                host_ports: Vec::new(),
                zones: None,
            }),
            pool: v1::Pool::Guaranteed.into(),
            ordinals: vec![0],
            node_ids: vec![node_id],
            ..v1::Binding::default()
        }))
        .await
    }

    /// What makes the oldest commits go.
    async fn time_goes_by(&mut self) {
        for n in 0..200 {
            let (name, max) = ("q".to_owned(), Some(resources(10_000 + n)));
            let meta = Some(v1::ObjectMeta { name, owner: "x".repeat(60), ..v1::ObjectMeta::default() });
            self.dispatcher(Op::PutQueue(v1::Queue { meta, max, ..v1::Queue::default() })).await;
        }
    }

    async fn close(mut self) {
        self.leases("").await;
        self.store.close().await;
    }
}

fn resources(cpu: i64) -> v1::Resources {
    v1::Resources { amounts: [("cpu".to_owned(), cpu)].into() }
}

fn unit(unit_id: u64, cpu: i64) -> Op {
    let template = v1::Template {
        demand: Some(v1::Demand {
            requests: Some(resources(cpu)),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        }),
        ..v1::Template::default()
    };
    let group = v1::TaskGroup {
        name: "main".to_owned(),
        replicas: 1,
        template: Some(template),
        ..v1::TaskGroup::default()
    };
    let meta = v1::ObjectMeta {
        namespace: "default".to_owned(),
        name: format!("unit-{unit_id}"),
        uid: format!("uid-{unit_id}"),
        ..v1::ObjectMeta::default()
    };
    let spec = v1::UnitSpec {
        meta: Some(meta),
        task_groups: vec![group],
        min_member: Some(1),
        queue: "q".to_owned(),
        workload_class: v1::WorkloadClass::Service.into(),
        pool: v1::Pool::Guaranteed.into(),
        restart_policy: v1::RestartPolicy::Never.into(),
        profile: "least-allocated".to_owned(),
        ..v1::UnitSpec::default()
    };
    let ranges = vec![v1::OrdinalRange { start: 0, end: 1 }];
    let status = v1::UnitStatus { ordinals: vec![v1::OrdinalRanges { ranges }], ..v1::UnitStatus::default() };
    Op::PutUnit(v1::UnitRecord { unit_id, spec: Some(spec), status: Some(status) })
}

/// What an audit says of the store in `dir`, with nothing but state there.
async fn audited(dir: &Path, ledger: Option<Vec<Acknowledged>>) -> AuditFindings {
    let mut config = godel_state::Config { data_dir: dir.to_owned(), ..godel_state::Config::default() };
    config.tls = Some(godel_state::TlsMode::Off);
    config.server.metrics = false;
    config.disk_reserve_bytes = 0;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let deps = godel_state::Deps { listener: Some(listener), ..godel_state::Deps::default() };
    let serving = tokio::spawn(godel_state::serve(config, deps, stop.clone()));
    let client = Client::patient(&address).unwrap();
    client.store_status().await.unwrap();
    let found =
        run(&Client::new(&address).unwrap(), Wanted { ledger, patience: Duration::ZERO, look_here: None })
            .await;
    stop.cancel();
    serving.await.unwrap().unwrap();
    found.unwrap()
}

fn report(findings: &AuditFindings, invariant: Invariant) -> &InvariantReport {
    findings.reports.iter().find(|report| report.invariant == invariant).unwrap()
}

#[track_caller]
fn failed(findings: &AuditFindings, invariant: Invariant, words: &str) {
    let report = report(findings, invariant);
    assert!(report.violations.iter().any(|violation| violation.contains(words)), "{report}");
}

#[tokio::test]
async fn a_store_that_breaks_the_rules_is_found_through_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = Book::open(dir.path()).await;
    book.node(1).await;
    let max = Some(resources(5_000));
    let meta = Some(v1::ObjectMeta { name: "q".to_owned(), ..v1::ObjectMeta::default() });
    book.dispatcher(Op::PutQueue(v1::Queue { meta, max, ..v1::Queue::default() })).await;
    book.placed(1, 3_000, 1).await;
    let over = book.placed(2, 3_000, 1).await;
    let reason = v1::EvictionReason::Cancelled.into();
    let eviction = v1::Eviction { unit_id: 1, ordinals: vec![0], reason, ..v1::Eviction::default() };
    book.binder(Op::Evict(eviction)).await;
    book.close().await;
    let (uid, name) = ("uid-9".to_owned(), "unit-9".to_owned());
    let ledger = vec![Acknowledged { uid, name, revision: over }];
    let findings = audited(dir.path(), Some(ledger)).await;
    failed(&findings, Invariant::I1, &format!("node n1: guaranteed cpu 6000 of 4000 (revision {over})"));
    failed(&findings, Invariant::I2, "unit unit-9 (uid-9): acknowledged");
    failed(&findings, Invariant::I5, &format!("queue q: cpu 6000 of 5000 (revision {over})"));
    failed(&findings, Invariant::I6, "evicted as cancelled, but its unit is not");
    assert!(report(&findings, Invariant::I7).holds() && report(&findings, Invariant::I9).holds());
    assert_eq!(findings.view().verdict, "failed");
}

#[tokio::test]
async fn a_history_without_beginning_is_judged_from_its_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = Book::open(dir.path()).await;
    book.node(1).await;
    book.placed(1, 3_000, 1).await;
    book.time_goes_by().await;
    let over = book.placed(2, 3_000, 1).await;
    let reason = v1::EvictionReason::Cancelled.into();
    let eviction = v1::Eviction { unit_id: 1, ordinals: vec![0], reason, ..v1::Eviction::default() };
    book.binder(Op::Evict(eviction)).await;
    book.close().await;
    let findings = audited(dir.path(), None).await;
    // Only with the row of unit 1, which was bound before the history begins, is it too much.
    failed(&findings, Invariant::I1, &format!("node n1: guaranteed cpu 6000 of 4000 (revision {over})"));
    failed(&findings, Invariant::I6, "unit-1/0 on n1: evicted as cancelled, but its unit is not");
    let watch = report(&findings, Invariant::I7);
    assert!(watch.holds() && !watch.checked.contains("commits from revision 1 "), "{watch}");
    for invariant in [Invariant::I2, Invariant::I4, Invariant::I5, Invariant::I9] {
        let report = report(&findings, invariant);
        assert!(report.holds(), "{report}");
    }
    assert!(report(&findings, Invariant::I4).checked.contains("where the kept history begins"));
}

#[tokio::test]
async fn what_cannot_be_judged_is_said_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = Book::open(dir.path()).await;
    book.node(1).await;
    book.dispatcher(unit(1, 100)).await;
    book.close().await;
    let findings = audited(dir.path(), None).await;
    assert_eq!(
        report(&findings, Invariant::I3).not_judged,
        ["what runs on 1 nodes whose agents are not connected: n1"]
    );
    assert_eq!(
        report(&findings, Invariant::I8).not_judged,
        ["whether any of 1 units that wait could be placed: no dispatcher answers"]
    );
    assert_eq!(findings.view().verdict, "not_judged");
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_and_the_rest_is_judged() {
    let dir = tempfile::tempdir().unwrap();
    let mut book = Book::open(dir.path()).await;
    book.node(1).await;
    let meta = Some(v1::ObjectMeta { name: "odd".to_owned(), ..v1::ObjectMeta::default() });
    book.dispatcher(Op::PutQueue(v1::Queue { meta, policy: 99, ..v1::Queue::default() })).await;
    let over = book.placed(1, 5_000, 1).await;
    book.close().await;
    let findings = audited(dir.path(), None).await;
    failed(&findings, Invariant::I1, &format!("node n1: guaranteed cpu 5000 of 4000 (revision {over})"));
    for invariant in [Invariant::I5, Invariant::I7, Invariant::I9] {
        let report = report(&findings, invariant);
        assert_eq!(report.not_judged, ["what cannot be read is left out: queue odd"]);
        assert!(!report.has_failed(), "{report}");
    }
    let text = findings.text(crate::output::Paint::plain());
    assert!(text.contains("cannot be read: queue odd: record.policy: "), "{text}");
}
