//! Whoever waits is answered, however the engine or a task of it ends.

mod judged;

use std::time::Duration;

use godel_base::ids::Epoch;
use godel_core_yarn::{adapter::AppSubmission, ids::YarnApplicationId};
use godel_core_yarn_leader::{AppSubmitter, FOLLOWS, LaunchRefusal, MasterLaunch, SubmittedApp};
use godel_kit::{
    clock::ManualClock,
    config::TxnConfig,
    informer::FollowConfig,
    lease::{Fence, Leadership},
    metrics::Metrics,
};
use tokio::{runtime::Runtime, sync::watch, task::yield_now, time::timeout};
use tonic::async_trait;

use super::*;
use crate::keys;

/// No master is started.
#[derive(Debug)]
struct NoLauncher;

#[async_trait]
impl Launcher for NoLauncher {
    async fn launch(&self, _: MasterLaunch) -> Result<(), LaunchRefusal> {
        Ok(())
    }

    async fn stop(&self, _: MasterLaunch) -> Result<(), LaunchRefusal> {
        Ok(())
    }
}

/// An adapter whose store never answers.
fn manager() -> Manager {
    manager_of(YarnCallers::default(), AdapterRules::default())
}

/// The same with these callers and rules.
fn manager_of(callers: YarnCallers, rules: AdapterRules) -> Manager {
    let config = Config::default();
    Manager::new(ManagerParts {
        directory: Directory::new(&config.client).unwrap(),
        config,
        crash: CrashPoints::default(),
        metrics: YarnMetrics::new(&Metrics::new("yarn")),
        launcher: Arc::new(NoLauncher),
        clock: Arc::new(ManualClock::new(1_000)),
        rules,
        callers,
    })
}

/// Leads, and has an application written: who waits for that.
fn submit(manager: &Manager) -> oneshot::Receiver<Result<(), ManagerRefusal>> {
    lead(manager);
    submit_as(manager, 1, "ann")
}

/// Leads.
fn lead(manager: &Manager) {
    let Context { config, directory, .. } = &manager.shared.context;
    let fence = Fence::unlimited("yarn", Epoch(1));
    let pipeline = TxnPipeline::spawn(directory.state(), fence, &config.txn);
    manager.shared.run_led(|Led { leader, term }, at, out| {
        leader.lead(Vec::new(), at, out);
        *term = Some(Term { pipeline, stop: CancellationToken::new() });
    });
}

/// Submits an application of an owner.
fn submit_as(manager: &Manager, number: u32, owner: &str) -> oneshot::Receiver<Result<(), ManagerRefusal>> {
    let submission = AppSubmission {
        name: "pi".to_owned(),
        user: owner.to_owned(),
        queue: String::new(),
        kind: "SPARK".to_owned(),
        priority: 0,
        master: None,
        label: String::new(),
        max_attempts: 1,
        validity_interval_ms: 0,
        keeps_containers: false,
        lifetime_ms: None,
    };
    let submitted = SubmittedApp { submission, launch: (*b"run").into(), tags: Vec::new() };
    let id = YarnApplicationId { cluster_timestamp: 1, number };
    let (sender, answer) = oneshot::channel();
    manager.shared.run(|leader, at, out| {
        leader.submit(id, submitted, AppSubmitter::default(), sender, at, out);
    });
    answer
}

#[tokio::test]
async fn an_engine_whose_election_is_over_answers_those_who_wait() {
    let manager = manager();
    let state = manager.shared.context.directory.state();
    let (sender, leadership) = watch::channel(Leadership::Standby { leader: None });
    let stop = CancellationToken::new();
    let follower = Informer::spawn(state.clone(), FOLLOWS, FollowConfig::default(), stop.clone());
    let (source, _ring) = keys::ring();
    let terms = LeaderTerms::new(leadership, state, TxnConfig::default());
    let engine = manager.engine(follower, terms, source, stop);
    let engine = godel_kit::task::spawn("test.engine", engine);
    yield_now().await;
    let mut answer = submit(&manager);
    yield_now().await;
    assert!(answer.try_recv().is_err(), "it is not written yet");
    drop(sender);
    let answer = timeout(Duration::from_secs(10), answer).await.unwrap();
    assert_eq!(answer, Ok(Err(ManagerRefusal::Standby(None))));
    assert!(matches!(engine.await.unwrap(), Err(Error::Lease)));
}

#[test]
fn a_transaction_whose_task_ends_early_is_answered() {
    let runtime = Runtime::new().unwrap();
    let (manager, mut answer) = runtime.block_on(async {
        let manager = manager();
        let answer = submit(&manager);
        yield_now().await;
        (manager, answer)
    });
    assert!(answer.try_recv().is_err(), "it is not written yet");
    drop(runtime);
    assert_eq!(answer.try_recv(), Ok(Err(ManagerRefusal::Standby(None))));
    assert!(!manager.shared.led.lock().leader.leads());
}
