//! A manager that shows what the test says, for tests of what faces make of reports.

use std::collections::BTreeMap;

use godel_core_yarn::{
    adapter::{AllocateAnswer, AllocateCall, AllocatedContainer, MasterRefusal, Registration},
    application::{FinalStatus, PublicAppState},
    asks::{AskGroup, AskKey, ExecutionType},
    attempt::AttemptState,
    container::PublicContainerState,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_core_yarn_leader::{
    AppFilter, AppReport, AttemptReport, ClusterReport, ContainerReport, ManagerRefusal, MasterAnswer,
    QueueReport, RegisterAnswer, SubmittedApp, YarnAmount, YarnNodeReport, YarnNodeState,
};
use parking_lot::Mutex;
use tonic::async_trait;

use super::fake::{self, amount};
use crate::manager::ResourceManager;

/// First part of ids of applications.
pub(crate) const CLUSTER: i64 = 1_700_000_000_000;
/// When everything is submitted.
pub(crate) const START: i64 = 1_700_000_100_000;

/// Applications that are there, and what was called.
#[derive(Debug, Default)]
pub(crate) struct CannedManager {
    pub(crate) apps: Mutex<BTreeMap<YarnApplicationId, AppReport>>,
    pub(crate) submitted: Mutex<Vec<(YarnApplicationId, SubmittedApp)>>,
    pub(crate) calls: Mutex<Vec<String>>,
    /// Every call is refused so.
    pub(crate) refusal: Mutex<Option<ManagerRefusal>>,
}

pub(crate) fn app_id(number: u32) -> YarnApplicationId {
    YarnApplicationId { cluster_timestamp: CLUSTER, number }
}

pub(crate) fn attempt_id(number: u32) -> YarnAttemptId {
    YarnAttemptId { application: app_id(number), number: 1 }
}

/// A queue of so many per cent.
pub(crate) fn queue(path: &str, capacity: f32) -> QueueReport {
    QueueReport {
        absolute_used_capacity: 12.5,
        used_capacity: 25.0,
        used: amount(2_048, 2),
        pending: amount(1_024, 1),
        n_containers: 2,
        n_pending_containers: 1,
        n_active: 1,
        is_leaf: true,
        ..fake::queue(path, capacity)
    }
}

/// A running application.
pub(crate) fn app(number: u32) -> AppReport {
    AppReport {
        id: app_id(number),
        name: "word count".to_owned(),
        user: "ann".to_owned(),
        queue: "root.default".to_owned(),
        kind: "SPARK".to_owned(),
        tags: vec!["night".to_owned(), "etl".to_owned()],
        priority: 0,
        state: PublicAppState::Running,
        final_status: FinalStatus::Undefined,
        diagnostics: String::new(),
        start_ms: START,
        launch_ms: START + 1_000,
        finish_ms: 0,
        progress: 0.25,
        attempt: Some(attempt_id(number)),
        is_launched: true,
        registration: Some(Registration {
            host: "n1".to_owned(),
            rpc_port: 40_193,
            tracking_url: "http://n1:4040".to_owned(),
        }),
        master_node: Some("n1:8041".to_owned()),
        is_unmanaged: false,
        label: String::new(),
        master_label: String::new(),
        used: amount(3_072, 3),
        n_containers: 2,
        pending: amount(1_024, 1),
        n_pending: 1,
        memory_seconds: 206_464,
        vcore_seconds: 201,
        timeout_at_ms: None,
    }
}

impl CannedManager {
    /// With a running application, one that has finished, and one that waits.
    pub(crate) fn with_apps() -> Self {
        let finished = AppReport {
            state: PublicAppState::Finished,
            final_status: FinalStatus::Succeeded,
            finish_ms: START + 304_578,
            progress: 1.0,
            ..app(2)
        };
        let waiting = AppReport {
            state: PublicAppState::Accepted,
            user: "bob".to_owned(),
            kind: "MAPREDUCE".to_owned(),
            tags: Vec::new(),
            registration: None,
            master_node: None,
            launch_ms: 0,
            progress: 0.0,
            used: YarnAmount::default(),
            n_containers: 0,
            ..app(3)
        };
        let apps = [app(1), finished, waiting].map(|app| (app.id, app));
        Self { apps: Mutex::new(apps.into()), ..Self::default() }
    }

    fn check(&self) -> Result<(), ManagerRefusal> {
        self.refusal.lock().clone().map_or(Ok(()), Err)
    }

    fn change<T>(
        &self,
        id: YarnApplicationId,
        said: String,
        change: impl FnOnce(&mut AppReport) -> T,
    ) -> Result<T, ManagerRefusal> {
        self.check()?;
        self.calls.lock().push(said);
        let mut apps = self.apps.lock();
        apps.get_mut(&id).map(change).ok_or(ManagerRefusal::NoApplication(id))
    }

    fn attempt(&self, id: YarnAttemptId) -> Result<(), ManagerRefusal> {
        self.check()?;
        if self.apps.lock().contains_key(&id.application) && id.number == 1 {
            return Ok(());
        }
        Err(MasterRefusal::NoAttempt(id).into())
    }
}

fn key() -> AskKey {
    let capability = amount(1_024, 1).to_capability();
    let group =
        AskGroup { priority: 7, execution: ExecutionType::Guaranteed, capability, label: String::new() };
    AskKey { group, allocation_request_id: 5 }
}

fn is_let_through(filter: &AppFilter, app: &AppReport) -> bool {
    let any = |wanted: &[String], is: &dyn Fn(&str) -> bool| {
        wanted.is_empty() || wanted.iter().any(|wanted| is(wanted))
    };
    (filter.states.is_empty() || filter.states.contains(&app.state))
        && (filter.final_statuses.is_empty() || filter.final_statuses.contains(&app.final_status))
        && any(&filter.kinds, &|kind| kind.eq_ignore_ascii_case(&app.kind))
        && any(&filter.tags, &|tag| app.tags.iter().any(|known| known == tag))
        && any(&filter.users, &|user| user == app.user)
        && any(&filter.queues, &|queue| app.queue == queue || app.queue.ends_with(&format!(".{queue}")))
        && filter.started_ms.is_none_or(|(begin, end)| (begin..=end).contains(&app.start_ms))
        && filter.finished_ms.is_none_or(|(begin, end)| (begin..=end).contains(&app.finish_ms))
        && filter.name.as_ref().is_none_or(|name| *name == app.name)
}

#[async_trait]
impl ResourceManager for CannedManager {
    async fn new_application(&self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal> {
        self.check()?;
        let next = self.apps.lock().keys().last().map_or(1, |last| last.number + 1);
        Ok((app_id(next), amount(8_192, 4)))
    }

    async fn submit(&self, id: YarnApplicationId, submitted: SubmittedApp) -> Result<(), ManagerRefusal> {
        self.check()?;
        let AppSubmissionParts { name, user, kind } = (&submitted).into();
        if submitted.submission.queue == "nowhere" {
            return Err(ManagerRefusal::NoQueue("nowhere".to_owned()));
        }
        let report = AppReport {
            name,
            user,
            kind,
            tags: submitted.tags.clone(),
            is_unmanaged: submitted.submission.master.is_none(),
            state: PublicAppState::Accepted,
            registration: None,
            id,
            attempt: Some(YarnAttemptId { application: id, number: 1 }),
            is_launched: false,
            ..app(id.number)
        };
        self.apps.lock().insert(id, report);
        self.submitted.lock().push((id, submitted));
        Ok(())
    }

    async fn kill(&self, id: YarnApplicationId, user: &str, why: &str) -> Result<bool, ManagerRefusal> {
        self.change(id, format!("kill {id} {user} {why}"), |app| {
            // The first call asks, the second one finds it done.
            let is_asked = app.diagnostics == "asked";
            app.diagnostics = "asked".to_owned();
            if is_asked && app.finish_ms == 0 {
                app.state = PublicAppState::Killed;
                app.finish_ms = START + 5_000;
            }
            app.finish_ms > 0
        })
    }

    async fn fail_attempt(&self, id: YarnAttemptId, user: &str) -> Result<(), ManagerRefusal> {
        self.attempt(id)?;
        self.calls.lock().push(format!("fail {id} {user}"));
        Ok(())
    }

    async fn move_to(
        &self,
        id: YarnApplicationId,
        user: &str,
        queue: &str,
    ) -> Result<String, ManagerRefusal> {
        let known = self
            .queues()?
            .into_iter()
            .find(|known| known.path == queue || known.path.rsplit('.').next() == Some(queue));
        let known = known.ok_or_else(|| ManagerRefusal::NoQueue(queue.to_owned()))?;
        self.change(id, format!("move {id} {user} {queue}"), |app| {
            app.queue = known.path;
            app.queue.clone()
        })
    }

    async fn set_priority(
        &self,
        id: YarnApplicationId,
        user: &str,
        priority: i32,
    ) -> Result<i32, ManagerRefusal> {
        self.change(id, format!("priority {id} {user} {priority}"), |app| {
            app.priority = priority;
            priority
        })
    }

    async fn set_timeout(&self, id: YarnApplicationId, user: &str, at_ms: i64) -> Result<(), ManagerRefusal> {
        self.change(id, format!("timeout {id} {user} {at_ms}"), |app| app.timeout_at_ms = Some(at_ms))
    }

    fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal> {
        self.check()?;
        self.apps.lock().get(&id).cloned().ok_or(ManagerRefusal::NoApplication(id))
    }

    fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal> {
        self.check()?;
        let apps = self.apps.lock();
        let let_through = apps.values().rev().filter(|app| is_let_through(filter, app)).cloned();
        Ok(let_through.take(filter.limit.unwrap_or(usize::MAX)).collect())
    }

    fn statistics(&self) -> Result<BTreeMap<(String, PublicAppState), u64>, ManagerRefusal> {
        self.check()?;
        let mut counted = BTreeMap::new();
        for app in self.apps.lock().values() {
            *counted.entry((app.kind.clone(), app.state)).or_default() += 1;
        }
        Ok(counted)
    }

    fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal> {
        let app = self.application(id)?;
        let attempt = YarnAttemptId { application: id, number: 1 };
        Ok(vec![AttemptReport {
            id: attempt,
            state: AttemptState::Running,
            master: Some(YarnContainerId { attempt, epoch: 0, number: 1 }),
            node: Some("n1:8041".to_owned()),
            registration: app.registration,
            diagnostics: String::new(),
            start_ms: START,
            finish_ms: 0,
        }])
    }

    fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal> {
        self.attempt(id)?;
        let container = |number: u64, key| ContainerReport {
            id: YarnContainerId { attempt: id, epoch: 0, number },
            key,
            amount: amount(1_536, 1),
            state: PublicContainerState::Running,
            node: "n1:8041".to_owned(),
            start_ms: START,
            finish_ms: 0,
            exit: -1_000,
            diagnostics: String::new(),
        };
        Ok(vec![container(1, None), container(2, Some(key()))])
    }

    fn nodes(&self) -> Result<Vec<YarnNodeReport>, ManagerRefusal> {
        self.check()?;
        let node = |host: &str, state, label: &str| YarnNodeReport {
            state,
            total: amount(8_192, 8),
            used: amount(2_048, 2),
            n_containers: 2,
            label: label.to_owned(),
            attributes: [("godel.dev/os".to_owned(), "linux".to_owned())].into(),
            heard_ms: START,
            ..fake::node(host)
        };
        Ok(vec![node("n1", YarnNodeState::Running, ""), node("n2", YarnNodeState::Lost, "gpu")])
    }

    fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal> {
        self.check()?;
        let root = QueueReport { is_leaf: false, ..queue("root", 100.0) };
        let night = QueueReport { submit_owners: vec!["ann".to_owned()], ..queue("root.night", 50.0) };
        Ok(vec![root, queue("root.default", 50.0), night])
    }

    fn cluster(&self) -> Result<ClusterReport, ManagerRefusal> {
        self.check()?;
        let mut applications = BTreeMap::new();
        for app in self.apps.lock().values() {
            *applications.entry(app.state).or_default() += 1;
        }
        Ok(ClusterReport {
            cluster_timestamp: CLUSTER,
            started_ms: START,
            is_active: true,
            applications,
            total: amount(16_384, 16),
            used: amount(4_096, 4),
            pending: amount(1_024, 1),
            n_containers: 4,
            n_pending_containers: 1,
            nodes: [(YarnNodeState::Running, 1), (YarnNodeState::Lost, 1)].into(),
            minimum_allocation: amount(1_024, 1),
            maximum_allocation: amount(8_192, 4),
        })
    }

    async fn register(
        &self,
        attempt: YarnAttemptId,
        registration: Registration,
    ) -> Result<RegisterAnswer, ManagerRefusal> {
        self.attempt(attempt)?;
        self.change(attempt.application, format!("register {attempt}"), |app| {
            app.state = PublicAppState::Running;
            app.registration = Some(registration);
        })?;
        let queue = "root.default".to_owned();
        Ok(RegisterAnswer { maximum: amount(8_192, 4), queue, ..RegisterAnswer::default() })
    }

    async fn allocate(
        &self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        progress: f32,
    ) -> Result<MasterAnswer, ManagerRefusal> {
        self.attempt(attempt)?;
        self.calls.lock().push(format!("allocate {attempt} {call:?} {progress}"));
        let allocated = call.asks.iter().flat_map(|row| (0..row.n).map(|_| row.key.clone()));
        let allocated = (2..).zip(allocated).map(|(number, key)| AllocatedContainer {
            id: YarnContainerId { attempt, epoch: 0, number },
            ordinal: 1,
            node: "n1:8041".to_owned(),
            key,
        });
        let answer = AllocateAnswer {
            response_id: call.seen + 1,
            allocated: allocated.collect(),
            completed: Vec::new(),
        };
        Ok(MasterAnswer { answer, n_nodes: 1, headroom: amount(4_096, 4), ..MasterAnswer::default() })
    }

    async fn finish(
        &self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        diagnostics: &str,
    ) -> Result<bool, ManagerRefusal> {
        self.attempt(attempt)?;
        let said = format!("finish {attempt} {said:?} {tracking_url} {diagnostics}");
        self.calls.lock().push(said);
        Ok(true)
    }

    async fn decommission(
        &self,
        nodes: &[String],
        timeout_ms: Option<u64>,
        user: &str,
    ) -> Result<(), ManagerRefusal> {
        self.check()?;
        self.calls.lock().push(format!("decommission {nodes:?} {timeout_ms:?} {user}"));
        Ok(())
    }
}

/// What a report takes over of a submission.
struct AppSubmissionParts {
    name: String,
    user: String,
    kind: String,
}

impl From<&SubmittedApp> for AppSubmissionParts {
    fn from(submitted: &SubmittedApp) -> Self {
        let submission = submitted.submission.clone();
        Self { name: submission.name, user: submission.user, kind: submission.kind }
    }
}
