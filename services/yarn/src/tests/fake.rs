//! A manager for tests of the faces: the real [`YarnAdapter`] over a cluster with room for everything.

use std::collections::BTreeMap;

use godel_base::{ids::ReplicaId, time::Millis};
use godel_core_yarn::{
    adapter::{
        AdapterTerms, AdapterTime, AllocateAnswer, AllocateCall, AllocatedContainer, AppRecord, MASTER,
        Registration, YarnAction, YarnAdapter, YarnApplication,
    },
    application::{FinalStatus, PublicAppState},
    asks::ExecutionType,
    container::PublicContainerState,
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_core_yarn_leader::{
    AppFilter, AppReport, AttemptReport, ClusterReport, ContainerPlace, ContainerReport, LaunchNode,
    LaunchUnit, ManagerRefusal, MasterAnswer, QueueReport, RegisterAnswer, SubmittedApp, YarnAmount,
    YarnNodeReport, YarnNodeState,
};
use parking_lot::{Mutex, MutexGuard};
use tonic::async_trait;

use super::samples::{self, CLUSTER, RACK, START, amount, app_id, attempt_id, queue};
use crate::{ResourceManager, YarnCaller};

/// What there is of an application beside the adapter.
#[derive(Debug, Default)]
struct App {
    tags: Vec<String>,
    progress: f32,
    /// Turns of the adapter that its master has not seen.
    n_unseen: i32,
    is_kill_asked: bool,
}

#[derive(Debug)]
struct State {
    adapter: YarnAdapter,
    apps: BTreeMap<YarnApplicationId, App>,
    nodes: Vec<YarnNodeReport>,
    queues: Vec<QueueReport>,
    wall_ms: i64,
    n_new: u32,
    n_placed: usize,
    /// The first call that kills an application only asks for it, and the second one finds it done.
    is_killed_late: bool,
}

/// The manager, and what was called.
#[derive(Debug)]
pub(crate) struct FakeManager {
    state: Mutex<State>,
    pub(crate) submitted: Mutex<Vec<(YarnApplicationId, SubmittedApp)>>,
    /// Calls that change something, beside submissions.
    pub(crate) calls: Mutex<Vec<String>>,
    /// Every call is refused so.
    pub(crate) refusal: Mutex<Option<ManagerRefusal>>,
}

impl FakeManager {
    /// Without applications.
    pub(crate) fn new(nodes: Vec<YarnNodeReport>) -> Self {
        let state = State {
            adapter: YarnAdapter::new(AdapterTerms::default()),
            apps: BTreeMap::new(),
            nodes,
            queues: vec![queue("root", 100.0), queue("root.default", 60.0), queue("root.prod", 40.0)],
            wall_ms: START,
            n_new: 0,
            n_placed: 0,
            is_killed_late: false,
        };
        Self {
            state: Mutex::new(state),
            submitted: Mutex::default(),
            calls: Mutex::default(),
            refusal: Mutex::default(),
        }
    }

    /// With a running application, one that has finished, and one that waits.
    pub(crate) fn with_canned_applications() -> Self {
        let manager = Self::new(samples::nodes());
        manager.state.lock().fill().unwrap();
        manager
    }

    fn read(&self) -> Result<MutexGuard<'_, State>, ManagerRefusal> {
        self.refusal.lock().clone().map_or_else(|| Ok(self.state.lock()), Err)
    }

    /// What a call changes, as it is noted.
    fn change(&self, said: String) -> Result<MutexGuard<'_, State>, ManagerRefusal> {
        let state = self.read()?;
        self.calls.lock().push(said);
        Ok(state)
    }
}

impl State {
    fn fill(&mut self) -> Result<(), ManagerRefusal> {
        self.queues = samples::queues();
        self.is_killed_late = true;
        for submitted in samples::submitted() {
            let id = self.next_id();
            self.submit(id, &submitted)?;
        }
        for (number, progress) in [(1, 0.25), (2, 1.0)] {
            self.register(attempt_id(number), samples::registration())?;
            self.allocate(attempt_id(number), &samples::ask(), progress)?;
        }
        self.wall_ms = START + 304_578;
        self.finish(attempt_id(2), FinalStatus::Succeeded, "")?;
        self.end(app_id(2), ReplicaId::new(MASTER, 0), YarnExitStatus(0))
    }

    fn next_id(&mut self) -> YarnApplicationId {
        self.n_new += 1;
        app_id(self.n_new)
    }

    fn get(&self, id: YarnApplicationId) -> Result<&YarnApplication, ManagerRefusal> {
        self.adapter.get(id).ok_or(ManagerRefusal::NoApplication(id))
    }

    fn at(&self) -> AdapterTime {
        AdapterTime { now: Millis(0), wall_ms: self.wall_ms }
    }

    /// Something of an application happens, and all that follows from it.
    fn with<T>(
        &mut self,
        id: YarnApplicationId,
        what: impl FnOnce(&mut YarnApplication, AdapterTerms, AdapterTime, &mut Vec<YarnAction>) -> T,
    ) -> Result<T, ManagerRefusal> {
        let (at, mut out) = (self.at(), Vec::new());
        let done = self.adapter.with(id, |app, terms| what(app, terms, at, &mut out))?;
        self.act(out)?;
        Ok(done)
    }

    /// Does what the adapter wants done, in a cluster that answers at once.
    fn act(&mut self, actions: Vec<YarnAction>) -> Result<(), ManagerRefusal> {
        for action in actions {
            match action {
                YarnAction::PutRecord(id, version) => {
                    self.with(id, |app, terms, at, out| app.saved(version, terms, at, out))?;
                }
                YarnAction::SubmitUnit(id) => {
                    self.with(id, |app, terms, at, out| app.unit_answered(Ok(()), terms, at, out))?;
                    if self.get(id)?.submission().master.is_some() {
                        self.place(id, MASTER)?;
                    }
                }
                YarnAction::NextMaster(id) => self.place(id, MASTER)?,
                YarnAction::Grow(id, added) => {
                    for growth in added {
                        let first = AppRecord::of(self.get(id)?).next_ordinal;
                        let ordinals = first..first + growth.n;
                        self.with(id, |app, _, _, out| app.grown(&growth, ordinals.clone(), out))?;
                        ordinals.into_iter().try_for_each(|ordinal| self.place(id, ordinal))?;
                    }
                }
                YarnAction::Release(id, ordinals) => {
                    for ordinal in ordinals {
                        self.end(id, ReplicaId::new(ordinal, 0), YarnExitStatus::KILLED_BY_APPMASTER)?;
                    }
                }
                YarnAction::LaunchMaster(attempt, _) => {
                    self.with(attempt.application, |app, terms, at, out| {
                        app.master_launched(attempt, Ok(()), terms, at, out);
                    })?;
                }
                YarnAction::StopMaster(attempt) => {
                    let master = ReplicaId::new(MASTER, attempt.number - 1);
                    self.end(attempt.application, master, YarnExitStatus::KILLED_BY_RESOURCEMANAGER)?;
                }
                YarnAction::MoveUnit(..) | YarnAction::CancelUnit(_) => {}
            }
        }
        Ok(())
    }

    /// A running unit gets a place on one running node after the other.
    fn place(&mut self, id: YarnApplicationId, ordinal: u32) -> Result<(), ManagerRefusal> {
        let nodes: Vec<_> = self.nodes.iter().filter(|node| node.state == YarnNodeState::Running).collect();
        let Some(node) = nodes.get(self.n_placed % nodes.len().max(1)) else { return Ok(()) };
        let node = format!("{}:{}", node.host, node.port);
        self.n_placed += 1;
        let incarnation = if ordinal == MASTER { self.get(id)?.attempts().incarnation() } else { 0 };
        let replica = ReplicaId::new(ordinal, incarnation);
        self.with(id, |app, terms, at, out| app.placed(replica, &node, RACK, terms, at, out))
    }

    fn end(
        &mut self,
        id: YarnApplicationId,
        replica: ReplicaId,
        exit: YarnExitStatus,
    ) -> Result<(), ManagerRefusal> {
        self.with(id, |app, terms, at, out| app.ended(replica, exit, terms, at, out))
    }

    fn submit(&mut self, id: YarnApplicationId, submitted: &SubmittedApp) -> Result<(), ManagerRefusal> {
        self.apps.entry(id).or_insert(App { tags: submitted.tags.clone(), ..App::default() });
        let (at, mut out) = (self.at(), Vec::new());
        self.adapter.submit(id, submitted.submission.clone(), at, &mut out)?;
        self.act(out)
    }

    fn register(
        &mut self,
        attempt: YarnAttemptId,
        registration: Registration,
    ) -> Result<Vec<AllocatedContainer>, ManagerRefusal> {
        let id = attempt.application;
        Ok(self.with(id, |app, terms, at, out| app.register(attempt, registration, terms, at, out))??)
    }

    fn allocate(
        &mut self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        progress: f32,
    ) -> Result<AllocateAnswer, ManagerRefusal> {
        let id = attempt.application;
        let App { n_unseen, .. } = *self.apps.entry(id).or_default();
        let call = AllocateCall { seen: call.seen.saturating_add(n_unseen), ..call.clone() };
        let mut answer =
            self.with(id, |app, terms, at, out| app.allocate(attempt, &call, terms, at, out))??;
        answer.response_id -= n_unseen;
        // Opportunistic containers are there at once: that takes a turn more.
        if call.asks.iter().any(|row| row.key.group.execution == ExecutionType::Opportunistic) {
            let seen = answer.response_id + n_unseen;
            let next = AllocateCall { seen, ..AllocateCall::default() };
            let more =
                self.with(id, |app, terms, at, out| app.allocate(attempt, &next, terms, at, out))??;
            answer.allocated.extend(more.allocated);
            answer.completed.extend(more.completed);
            self.apps.entry(id).or_default().n_unseen += 1;
        }
        self.apps.entry(id).or_default().progress = progress;
        Ok(answer)
    }

    fn finish(
        &mut self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
    ) -> Result<bool, ManagerRefusal> {
        let finish =
            |app: &mut YarnApplication, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>| {
                app.finish(attempt, said, tracking_url, terms, at, out)
            };
        self.with(attempt.application, finish)??;
        // What follows from it has happened: the same call says so.
        Ok(self.with(attempt.application, finish)??)
    }

    /// The whole path of a queue, by that or by its last name.
    fn queue(&self, name: &str) -> Result<String, ManagerRefusal> {
        let named = |known: &&QueueReport| known.path == name || known.path.rsplit('.').next() == Some(name);
        let known = self.queues.iter().find(named).ok_or_else(|| ManagerRefusal::NoQueue(name.to_owned()))?;
        Ok(known.path.clone())
    }

    fn report(&self, app: &YarnApplication) -> AppReport {
        let (start_ms, finish_ms) = app.times_ms();
        let (id, submission, last) = (app.id(), app.submission().clone(), app.attempts().last());
        AppReport {
            id,
            tags: self.apps.get(&id).map(|known| known.tags.clone()).unwrap_or_default(),
            state: app.public_state(),
            final_status: app.final_status(),
            diagnostics: app.diagnostics().to_owned(),
            start_ms,
            launch_ms: start_ms + 1_000,
            finish_ms: finish_ms.unwrap_or(0),
            progress: self.apps.get(&id).map_or(0.0, |known| known.progress),
            attempt: app.attempts().current(),
            is_launched: last.is_some_and(|attempt| attempt.state.is_launched()),
            registration: last.and_then(|attempt| attempt.registration.clone()),
            master_node: last.and_then(|attempt| attempt.node.clone()),
            is_unmanaged: submission.master.is_none(),
            name: submission.name,
            user: submission.user,
            queue: submission.queue,
            kind: submission.kind,
            priority: submission.priority,
            label: submission.label,
            master_label: String::new(),
            used: amount(3_072, 3),
            n_containers: 2,
            pending: amount(1_024, 1),
            n_pending: 1,
            memory_seconds: 206_464,
            vcore_seconds: 201,
            timeout_at_ms: submission.lifetime_ms.map(|lifetime| start_ms + lifetime),
        }
    }
}

fn is_asked(filter: &AppFilter, app: &AppReport) -> bool {
    let any = |wanted: &[String], is: &dyn Fn(&str) -> bool| {
        wanted.is_empty() || wanted.iter().any(|wanted| is(wanted))
    };
    let is_within = |range: Option<(i64, i64)>, at_ms: i64| {
        range.is_none_or(|(begin, end)| (begin..=end).contains(&at_ms))
    };
    (filter.states.is_empty() || filter.states.contains(&app.state))
        && (filter.final_statuses.is_empty() || filter.final_statuses.contains(&app.final_status))
        && any(&filter.kinds, &|kind| kind.eq_ignore_ascii_case(&app.kind))
        && any(&filter.tags, &|tag| app.tags.iter().any(|known| known == tag))
        && any(&filter.users, &|user| user == app.user)
        && any(&filter.queues, &|queue| queue.rsplit('.').next() == app.queue.rsplit('.').next())
        && is_within(filter.started_ms, app.start_ms)
        && is_within(filter.finished_ms, app.finish_ms)
        && filter.name.as_ref().is_none_or(|name| *name == app.name)
}

/// Where containers are.
fn places(id: YarnApplicationId, containers: &[AllocatedContainer]) -> Vec<ContainerPlace> {
    let place = |container: &AllocatedContainer| {
        let (host, port) = container.node.rsplit_once(':').unwrap_or((&container.node, "0"));
        let port = port.parse().unwrap_or(0);
        let unit = LaunchUnit { unit_id: id.number.into(), ordinal: container.ordinal, incarnation: 0 };
        ContainerPlace { node: LaunchNode { name: host.to_owned(), host: host.to_owned(), port }, unit }
    };
    containers.iter().map(place).collect()
}

#[async_trait]
impl ResourceManager for FakeManager {
    async fn new_application(&self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal> {
        Ok((self.read()?.next_id(), amount(8_192, 4)))
    }

    async fn submit(
        &self,
        id: YarnApplicationId,
        _: &YarnCaller,
        submitted: SubmittedApp,
    ) -> Result<(), ManagerRefusal> {
        let mut state = self.read()?;
        if !submitted.submission.queue.is_empty() {
            state.queue(&submitted.submission.queue)?;
        }
        state.submit(id, &submitted)?;
        self.submitted.lock().push((id, submitted));
        Ok(())
    }

    async fn kill(
        &self,
        id: YarnApplicationId,
        YarnCaller { user, .. }: &YarnCaller,
        why: &str,
    ) -> Result<bool, ManagerRefusal> {
        let mut state = self.change(format!("kill {id} {user} {why}"))?;
        let is_late = state.is_killed_late;
        let is_known = std::mem::replace(&mut state.apps.entry(id).or_default().is_kill_asked, true);
        if is_known || !is_late {
            state.with(id, |app, terms, at, out| app.kill(why, terms, at, out))?;
        }
        Ok(state.get(id)?.times_ms().1.is_some())
    }

    async fn fail_attempt(
        &self,
        id: YarnAttemptId,
        YarnCaller { user, .. }: &YarnCaller,
    ) -> Result<(), ManagerRefusal> {
        let mut state = self.change(format!("fail {id} {user}"))?;
        let why = format!("Attempt failed by user {user}");
        state
            .with(id.application, |app, terms, at, out| app.fail_attempt(id, &why, terms, at, out))?
            .map_err(|_| ManagerRefusal::NoAttempt(id))
    }

    async fn move_to(
        &self,
        id: YarnApplicationId,
        YarnCaller { user, .. }: &YarnCaller,
        queue: &str,
    ) -> Result<String, ManagerRefusal> {
        let path = self.read()?.queue(queue)?;
        let mut state = self.change(format!("move {id} {user} {queue}"))?;
        // The application has it by the name that its client gave it.
        state.with(id, |app, terms, at, out| app.change_queue(queue.to_owned(), terms, at, out))?;
        Ok(path)
    }

    async fn set_priority(
        &self,
        id: YarnApplicationId,
        YarnCaller { user, .. }: &YarnCaller,
        priority: i32,
    ) -> Result<i32, ManagerRefusal> {
        let mut state = self.change(format!("priority {id} {user} {priority}"))?;
        let set = priority.min(10);
        state.with(id, |app, _, _, out| app.change_priority(set, out))?;
        Ok(set)
    }

    async fn set_timeout(
        &self,
        id: YarnApplicationId,
        YarnCaller { user, .. }: &YarnCaller,
        at_ms: i64,
    ) -> Result<(), ManagerRefusal> {
        let mut state = self.change(format!("timeout {id} {user} {at_ms}"))?;
        state.with(id, |app, _, _, out| app.change_lifetime(Some(at_ms - app.times_ms().0), out))
    }

    fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal> {
        let state = self.read()?;
        Ok(state.report(state.get(id)?))
    }

    fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal> {
        let state = self.read()?;
        let reports = state.adapter.iter().map(|app| state.report(app));
        let mut asked: Vec<AppReport> = reports.filter(|report| is_asked(filter, report)).collect();
        asked.reverse();
        asked.truncate(filter.limit.unwrap_or(usize::MAX));
        Ok(asked)
    }

    fn statistics(&self) -> Result<BTreeMap<(String, PublicAppState), u64>, ManagerRefusal> {
        let mut statistics = BTreeMap::new();
        for report in self.applications(&AppFilter::default())? {
            *statistics.entry((report.kind, report.state)).or_default() += 1;
        }
        Ok(statistics)
    }

    fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal> {
        let state = self.read()?;
        let app = state.get(id)?;
        let shown = app.attempts().iter().map(|attempt| AttemptReport {
            id: attempt.id,
            state: attempt.state,
            master: attempt.node.is_some().then_some(YarnContainerId {
                attempt: attempt.id,
                epoch: 0,
                number: 1,
            }),
            node: attempt.node.clone(),
            registration: attempt.registration.clone(),
            diagnostics: app.diagnostics().to_owned(),
            start_ms: START,
            finish_ms: 0,
        });
        Ok(shown.collect())
    }

    fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal> {
        let state = self.read()?;
        let app = state.get(id.application)?;
        let attempt = app.attempts().iter().find(|known| known.id == id);
        let master = attempt.ok_or(ManagerRefusal::NoAttempt(id))?.node.clone();
        let master = master.map(|node| (YarnContainerId { attempt: id, epoch: 0, number: 1 }, None, node));
        let held = app.containers().iter().filter(|(_, container)| container.id.attempt == id);
        let held = held.map(|(_, held)| (held.id, Some(held.key.clone()), held.node.clone()));
        let shown = master.into_iter().chain(held).map(|(id, key, node)| ContainerReport {
            id,
            key,
            amount: amount(1_536, 1),
            state: PublicContainerState::Running,
            node,
            start_ms: START,
            finish_ms: 0,
            exit: -1_000,
            diagnostics: String::new(),
        });
        Ok(shown.collect())
    }

    fn nodes(&self) -> Result<Vec<YarnNodeReport>, ManagerRefusal> {
        Ok(self.read()?.nodes.clone())
    }

    fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal> {
        Ok(self.read()?.queues.clone())
    }

    fn cluster(&self) -> Result<ClusterReport, ManagerRefusal> {
        let state = self.read()?;
        let mut nodes = BTreeMap::new();
        for node in &state.nodes {
            *nodes.entry(node.state).or_default() += 1;
        }
        let mut applications = BTreeMap::new();
        for app in state.adapter.iter() {
            *applications.entry(app.public_state()).or_default() += 1;
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
            nodes,
            minimum_allocation: amount(1_024, 1),
            maximum_allocation: amount(8_192, 4),
        })
    }

    async fn register(
        &self,
        attempt: YarnAttemptId,
        registration: Registration,
    ) -> Result<RegisterAnswer, ManagerRefusal> {
        let mut state = self.change(format!("register {attempt}"))?;
        let containers = state.register(attempt, registration)?;
        let submission = state.get(attempt.application)?.submission().clone();
        Ok(RegisterAnswer {
            places: places(attempt.application, &containers),
            containers,
            user: submission.user,
            maximum: amount(8_192, 4),
            queue: submission.queue,
        })
    }

    async fn allocate(
        &self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        progress: f32,
    ) -> Result<MasterAnswer, ManagerRefusal> {
        let mut state = self.change(format!("allocate {attempt} {call:?} {progress}"))?;
        let answer = state.allocate(attempt, call, progress)?;
        let n_nodes = state.nodes.iter().filter(|node| node.state == YarnNodeState::Running).count();
        Ok(MasterAnswer {
            places: places(attempt.application, &answer.allocated),
            answer,
            user: state.get(attempt.application)?.submission().user.clone(),
            headroom: amount(4_096, 4),
            n_nodes: n_nodes.try_into().unwrap(),
            ..MasterAnswer::default()
        })
    }

    async fn finish(
        &self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        diagnostics: &str,
    ) -> Result<bool, ManagerRefusal> {
        let mut state = self.change(format!("finish {attempt} {said:?} {tracking_url} {diagnostics}"))?;
        state.finish(attempt, said, tracking_url)
    }

    async fn decommission(
        &self,
        nodes: &[String],
        timeout_ms: Option<u64>,
        YarnCaller { user, .. }: &YarnCaller,
    ) -> Result<(), ManagerRefusal> {
        let mut state = self.change(format!("decommission {nodes:?} {timeout_ms:?} {user}"))?;
        for node in state.nodes.iter_mut().filter(|node| nodes.contains(&node.host)) {
            node.state = match timeout_ms {
                None => YarnNodeState::Running,
                Some(0) => YarnNodeState::Decommissioned,
                Some(_) => YarnNodeState::Decommissioning,
            };
        }
        Ok(())
    }
}
