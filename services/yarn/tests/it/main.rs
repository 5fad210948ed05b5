//! Applications on a whole control plane: their masters are played by the test, their nodes are simulated.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should end")]

mod cluster;
mod requests;

use std::{collections::BTreeSet, time::Duration};

use cluster::{Adapter, Cluster, until};
use godel_core_yarn::{
    adapter::{
        AllocateCall, AllocatedContainer, AppSubmission, MasterRefusal, NO_REQUEST_ID, OPPORTUNISTIC,
        Registration,
    },
    application::{FinalStatus, PublicAppState},
    asks::{ANY, AskGroup, AskKey, AskRow, ExecutionType},
    attempt::AttemptState,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_core_yarn_leader::{AppFilter, ManagerRefusal, MasterAnswer, SubmittedApp, YarnAmount};
use godel_proto::v1;
use godel_yarn::{ResourceManager as _, YarnCaller};

const LONG: Duration = Duration::from_secs(300);

fn user(name: &str) -> YarnCaller {
    YarnCaller::unnoted(name)
}

fn group(memory_mb: i64) -> AskGroup {
    let amount = YarnAmount { memory_mb, vcores: 1, others: [].into() };
    AskGroup {
        priority: 1,
        execution: ExecutionType::Guaranteed,
        capability: amount.to_capability(),
        label: String::new(),
    }
}

fn submitted() -> SubmittedApp {
    let submission = AppSubmission {
        name: "pi".to_owned(),
        user: "ann".to_owned(),
        queue: "root.default".to_owned(),
        kind: "SPARK".to_owned(),
        priority: 0,
        master: Some(group(1_024)),
        label: String::new(),
        max_attempts: 2,
        validity_interval_ms: 0,
        keeps_containers: false,
        lifetime_ms: None,
    };
    SubmittedApp { submission, launch: (*b"context").into(), tags: vec!["nightly".to_owned()] }
}

fn ask(n: u32) -> AskRow {
    let key = AskKey { group: group(512), allocation_request_id: NO_REQUEST_ID };
    AskRow { key, name: ANY.to_owned(), n, relax_locality: true, label: None }
}

/// Submits an application as soon as the adapter leads.
async fn submit(adapter: &Adapter) -> YarnApplicationId {
    let id = until("leader", async || adapter.manager.new_application().await.ok()).await.0;
    until("recorded application", async || {
        match adapter.manager.submit(id, &user("ann"), submitted()).await {
            Ok(()) => Some(()),
            Err(ManagerRefusal::Unavailable(_)) => None,
            Err(refusal) => panic!("{refusal}"),
        }
    })
    .await;
    id
}

/// Waits until the master of an attempt was started.
async fn launched(adapter: &Adapter, id: YarnApplicationId, number: u32) -> YarnAttemptId {
    until("launched master", async || {
        let attempts = adapter.manager.attempts(id).ok()?;
        let last = attempts.last()?;
        (last.id.number == number && last.state == AttemptState::Launched).then_some(last.id)
    })
    .await
}

async fn state(adapter: &Adapter, id: YarnApplicationId, expected: PublicAppState) {
    until(&format!("{expected:?} application"), async || {
        (adapter.manager.application(id).ok()?.state == expected).then_some(())
    })
    .await;
}

/// A master that calls as masters do.
struct Master {
    attempt: YarnAttemptId,
    seen: i32,
}

impl Master {
    async fn register(adapter: &Adapter, attempt: YarnAttemptId) -> (Self, Vec<AllocatedContainer>) {
        let registration =
            Registration { host: "n1".to_owned(), rpc_port: 7, tracking_url: "http://n1:4040".to_owned() };
        let answer = adapter.manager.register(attempt, registration).await.unwrap();
        assert_eq!((answer.user.as_str(), answer.queue.as_str()), ("ann", "root.default"));
        assert_eq!(answer.places.len(), answer.containers.len());
        (Self { attempt, seen: 0 }, answer.containers)
    }

    async fn allocate(
        &mut self,
        adapter: &Adapter,
        asks: Vec<AskRow>,
        release: Vec<YarnContainerId>,
    ) -> Result<MasterAnswer, ManagerRefusal> {
        self.call(adapter, AllocateCall { asks, release, ..AllocateCall::default() }).await
    }

    async fn call(&mut self, adapter: &Adapter, call: AllocateCall) -> Result<MasterAnswer, ManagerRefusal> {
        let call = AllocateCall { seen: self.seen, ..call };
        let answer = adapter.manager.allocate(self.attempt, &call, 0.5).await?;
        self.seen = answer.answer.response_id;
        Ok(answer)
    }

    /// Calls until it has so many containers more.
    async fn fetch(&mut self, adapter: &Adapter, n: usize) -> Vec<AllocatedContainer> {
        let mut fetched = Vec::new();
        until("allocated containers", async || {
            let answer = self.allocate(adapter, Vec::new(), Vec::new()).await.unwrap();
            assert_eq!(answer.places.len(), answer.answer.allocated.len());
            fetched.extend(answer.answer.allocated);
            (fetched.len() >= n).then_some(())
        })
        .await;
        assert_eq!(fetched.len(), n);
        fetched
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_outlives_its_adapter() {
    let cluster = Cluster::start().await;
    let first = cluster.adapter(LONG).await;
    let id = submit(&first).await;
    // The same again changes nothing, and another one is refused.
    first.manager.submit(id, &user("ann"), submitted()).await.unwrap();
    let mut other = submitted();
    other.submission.name = "tau".to_owned();
    assert!(
        matches!(first.manager.submit(id, &user("ann"), other).await, Err(ManagerRefusal::Taken(taken)) if taken == id)
    );
    let attempt = launched(&first, id, 1).await;
    let launch = cluster.launcher.launched.lock().unwrap()[0].clone();
    assert_eq!((launch.attempt, launch.launch.as_ref(), launch.node.port), (attempt, &b"context"[..], 8_041));
    assert_eq!((launch.unit.ordinal, launch.unit.incarnation, launch.amount.memory_mb), (0, 0, 1_024));
    assert_eq!(
        launch.container.to_string(),
        format!(
            "{}_000001",
            attempt.to_string().replace("appattempt", "container").replace("_000001", "_01")
        )
    );

    let (mut master, left) = Master::register(&first, attempt).await;
    assert!(left.is_empty());
    state(&first, id, PublicAppState::Running).await;
    master.allocate(&first, vec![ask(3)], Vec::new()).await.unwrap();
    let fetched = master.fetch(&first, 3).await;
    let numbers: BTreeSet<u64> = fetched.iter().map(|container| container.id.number).collect();
    assert_eq!(numbers, BTreeSet::from([2, 3, 4]));
    let report = first.manager.application(id).unwrap();
    assert_eq!((report.n_containers, report.used.memory_mb, report.progress), (4, 1_024 + 3 * 512, 0.5));
    // One goes back, and the unit has one replica less.
    master.allocate(&first, vec![ask(0)], vec![fetched[0].id]).await.unwrap();
    until("released container", async || {
        (first.manager.application(id).ok()?.n_containers == 3).then_some(())
    })
    .await;

    first.stop().await;
    let second = cluster.adapter(LONG).await;
    state(&second, id, PublicAppState::Accepted).await;
    let refused = master.allocate(&second, Vec::new(), Vec::new()).await.unwrap_err();
    assert_eq!(refused, ManagerRefusal::Master(MasterRefusal::NotRegistered(attempt)));
    let (mut master, known) = Master::register(&second, attempt).await;
    let kept: BTreeSet<YarnContainerId> = known.iter().map(|container| container.id).collect();
    assert_eq!(kept, fetched[1..].iter().map(|container| container.id).collect());
    master.allocate(&second, vec![ask(1)], Vec::new()).await.unwrap();
    let more = master.fetch(&second, 1).await;
    assert_eq!(more[0].id.number, 5, "ordinals are given once");
    let later = second.manager.new_application().await.unwrap().0;
    assert!(later.cluster_timestamp > id.cluster_timestamp);

    until("recorded end", async || {
        let said = second.manager.finish(attempt, FinalStatus::Succeeded, "", "done").await;
        said.unwrap().then_some(())
    })
    .await;
    state(&second, id, PublicAppState::Finished).await;
    let report = second.manager.application(id).unwrap();
    assert_eq!((report.final_status, report.diagnostics.as_str()), (FinalStatus::Succeeded, "done"));
    cluster.audit().await;
    second.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opportunistic_containers_outlive_the_adapter() {
    let cluster = Cluster::start().await;
    let first = cluster.adapter(LONG).await;
    let id = submit(&first).await;
    let attempt = launched(&first, id, 1).await;
    let (mut master, _) = Master::register(&first, attempt).await;
    let row = ask(2);
    let group = AskGroup { execution: ExecutionType::Opportunistic, ..row.key.group.clone() };
    let opportunistic = AskRow { key: AskKey { group, allocation_request_id: 7 }, ..row };
    master.allocate(&first, vec![ask(1), opportunistic.clone()], Vec::new()).await.unwrap();
    let fetched = master.fetch(&first, 3).await;
    let shown = |containers: &[AllocatedContainer]| -> BTreeSet<(u64, ExecutionType, i64)> {
        let shown = |container: &AllocatedContainer| {
            (container.id.number, container.key.group.execution, container.key.allocation_request_id)
        };
        containers.iter().map(shown).collect()
    };
    let base = u64::from(OPPORTUNISTIC);
    let expected = BTreeSet::from([
        (2, ExecutionType::Guaranteed, NO_REQUEST_ID),
        (base + 2, ExecutionType::Opportunistic, 7),
        (base + 3, ExecutionType::Opportunistic, 7),
    ]);
    assert_eq!(shown(&fetched), expected);
    let unit = cluster.unit(&format!("{}-opportunistic", id.to_string().replace('_', "-"))).await;
    assert_eq!((unit.pool(), unit.queue.as_str()), (v1::Pool::BestEffort, "default"));
    let report = first.manager.application(id).unwrap();
    assert_eq!((report.n_containers, report.used.memory_mb), (4, 1_024 + 3 * 512));
    let listed: BTreeSet<u64> =
        first.manager.containers(attempt).unwrap().iter().map(|container| container.id.number).collect();
    assert_eq!(listed, BTreeSet::from([1, 2, base + 2, base + 3]));

    first.stop().await;
    let second = cluster.adapter(LONG).await;
    state(&second, id, PublicAppState::Accepted).await;
    let (mut master, known) = Master::register(&second, attempt).await;
    assert_eq!(shown(&known), expected);
    let released = fetched.iter().find(|container| container.id.number == base + 2).unwrap().id;
    master.allocate(&second, Vec::new(), vec![released]).await.unwrap();
    until("released container", async || {
        (second.manager.application(id).ok()?.n_containers == 3).then_some(())
    })
    .await;
    // One more gets an ordinal that nobody had.
    let one = AskRow { n: 1, ..opportunistic };
    master.allocate(&second, vec![one], Vec::new()).await.unwrap();
    assert_eq!(master.fetch(&second, 1).await[0].id.number, base + 4);
    second.manager.kill(id, &user("bob"), "").await.unwrap();
    state(&second, id, PublicAppState::Killed).await;
    until("empty cluster", async || (second.manager.cluster().ok()?.n_containers == 0).then_some(())).await;
    cluster.audit().await;
    second.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_application_leaves_nothing() {
    let cluster = Cluster::start().await;
    let adapter = cluster.adapter(LONG).await;
    let id = submit(&adapter).await;
    let attempt = launched(&adapter, id, 1).await;
    let (mut master, _) = Master::register(&adapter, attempt).await;
    master.allocate(&adapter, vec![ask(2)], Vec::new()).await.unwrap();
    master.fetch(&adapter, 2).await;
    adapter.manager.kill(id, &user("bob"), "").await.unwrap();
    state(&adapter, id, PublicAppState::Killed).await;
    until("empty cluster", async || (adapter.manager.cluster().ok()?.n_containers == 0).then_some(())).await;
    // An answer about the application may be of another moment than one about the cluster.
    let report = until("end", async || {
        adapter.manager.application(id).ok().filter(|report| report.finish_ms > 0 && report.n_containers == 0)
    })
    .await;
    assert_eq!(report.diagnostics, "Application killed by user bob");
    assert!(report.finish_ms >= report.start_ms);
    assert_eq!(cluster.launcher.stopped.lock().unwrap().len(), 1);
    let gone = master.allocate(&adapter, Vec::new(), Vec::new()).await.unwrap_err();
    assert_eq!(gone, ManagerRefusal::Master(MasterRefusal::NoAttempt(attempt)));
    let killed = AppFilter { states: vec![PublicAppState::Killed], ..AppFilter::default() };
    assert_eq!(adapter.manager.applications(&killed).unwrap().len(), 1);
    let unknown = YarnApplicationId { cluster_timestamp: 1, number: 1 };
    assert_eq!(
        adapter.manager.kill(unknown, &user("bob"), "").await,
        Err(ManagerRefusal::NoApplication(unknown))
    );
    let mut lost = submitted();
    lost.submission.queue = "nowhere".to_owned();
    let refused = adapter.manager.submit(unknown, &user("ann"), lost).await;
    assert_eq!(refused, Err(ManagerRefusal::NoQueue("nowhere".to_owned())));
    cluster.audit().await;
    adapter.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_fails_has_a_second_attempt() {
    let cluster = Cluster::start().await;
    // Nodes give up a master that nobody really starts.
    let adapter = cluster.adapter(Duration::from_secs(4)).await;
    let id = submit(&adapter).await;
    launched(&adapter, id, 1).await;
    let second = launched(&adapter, id, 2).await;
    let launches = cluster.launcher.launched.lock().unwrap().clone();
    let incarnations: BTreeSet<(u32, u32)> =
        launches.iter().map(|launch| (launch.attempt.number, launch.unit.incarnation)).collect();
    assert_eq!(incarnations, BTreeSet::from([(1, 0), (2, 1)]));
    assert!(second.to_string().ends_with("_000002"));
    let unit = cluster.unit(&id.to_string().replace('_', "-")).await;
    let affinity = unit.task_groups[0].template.clone().unwrap().node_affinity.unwrap();
    assert_eq!(affinity.preferred.len(), 1, "{affinity:?}");
    let nodes: BTreeSet<&str> = launches.iter().map(|launch| launch.node.name.as_str()).collect();
    assert_eq!(nodes.len(), 2, "the second one avoids the node of the first one: {nodes:?}");
    state(&adapter, id, PublicAppState::Failed).await;
    let report = adapter.manager.application(id).unwrap();
    assert!(report.diagnostics.contains("failed 2 times"), "{}", report.diagnostics);
    assert!(report.diagnostics.ends_with("_000002 exited with exitCode: 127"), "{}", report.diagnostics);
    assert_eq!(report.final_status, FinalStatus::Failed);
    let states: Vec<AttemptState> =
        adapter.manager.attempts(id).unwrap().iter().map(|attempt| attempt.state).collect();
    assert_eq!(states, [AttemptState::Failed, AttemptState::Failed]);
    cluster.audit().await;
    adapter.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn masters_may_register_right_after_their_submission_and_those_that_wait_say_why() {
    let cluster = Cluster::start().await;
    let adapter = cluster.adapter(LONG).await;
    let new = async || until("leader", async || adapter.manager.new_application().await.ok()).await.0;
    for _ in 0..20 {
        let id = new().await;
        let mut unmanaged = submitted();
        unmanaged.submission.master = None;
        adapter.manager.submit(id, &user("ann"), unmanaged).await.unwrap();
        let attempt = YarnAttemptId { application: id, number: 1 };
        let registered = adapter.manager.register(attempt, Registration::default()).await;
        assert!(registered.is_ok(), "{registered:?}");
        let next = YarnAttemptId { application: id, number: 2 };
        let refused = adapter.manager.register(next, Registration::default()).await;
        assert_eq!(refused.unwrap_err(), ManagerRefusal::Master(MasterRefusal::NoAttempt(next)));
    }
    let id = new().await;
    let mut large = submitted();
    large.submission.master = Some(group(20 * 1_024));
    adapter.manager.submit(id, &user("ann"), large).await.unwrap();
    let waits = until("reason", async || {
        let waits = adapter.manager.application(id).ok()?.diagnostics;
        (waits.starts_with("Application is") && waits.contains(": ")).then_some(waits)
    })
    .await;
    assert_eq!(adapter.manager.attempts(id).unwrap()[0].diagnostics, waits);
    adapter.manager.kill(id, &user("bob"), "").await.unwrap();
    state(&adapter, id, PublicAppState::Killed).await;
    assert_eq!(adapter.manager.application(id).unwrap().diagnostics, "Application killed by user bob");
    // One that has a node says what keeps that from starting it, and goes on.
    let why = "node n1 (nowhere:8041) cannot be called: no address is known for it";
    *cluster.launcher.unavailable.lock().unwrap() = Some(why.to_owned());
    let id = submit(&adapter).await;
    until("reason", async || {
        let waits = adapter.manager.application(id).ok()?.diagnostics;
        (waits == format!("AM container is allocated, waiting for its node to start it: {why}")).then_some(())
    })
    .await;
    assert_eq!(adapter.manager.application(id).unwrap().state, PublicAppState::Accepted);
    *cluster.launcher.unavailable.lock().unwrap() = None;
    launched(&adapter, id, 1).await;
    adapter.stop().await;
    cluster.stop().await;
}
