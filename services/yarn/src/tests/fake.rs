//! A manager for tests of the faces: the real [`YarnAdapter`] over a cluster of two nodes with room for everything.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use godel_base::{ids::ReplicaId, time::Millis};
use godel_core_yarn::{
    adapter::{
        AdapterTerms, AdapterTime, AllocateCall, AppRecord, Registration, YarnAction, YarnAdapter,
        YarnApplication,
    },
    application::{EndTarget, FinalStatus, PublicAppState},
    asks::AskKey,
    attempt::AttemptState,
    container::PublicContainerState,
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_core_yarn_leader::{
    AppFilter, AppReport, AttemptReport, ClusterReport, ContainerPlace, ContainerReport, LaunchNode,
    LaunchUnit, ManagerRefusal, MasterAnswer, QueueReport, RegisterAnswer, SubmittedApp, YarnAmount,
    YarnNodeReport, YarnNodeState,
};
use parking_lot::Mutex;
use tonic::async_trait;

use crate::ResourceManager;

/// When it began: the first part of ids.
pub(crate) const BEGAN_MS: i64 = 1_700_000_000_000;
const RACK: &str = "/default-rack";

pub(crate) fn amount(memory_mb: i64, vcores: i64) -> YarnAmount {
    YarnAmount { memory_mb, vcores, others: BTreeMap::new() }
}

/// A node that runs nothing.
pub(crate) fn node(host: &str) -> YarnNodeReport {
    YarnNodeReport {
        host: host.to_owned(),
        port: 8_041,
        rack: RACK.to_owned(),
        state: YarnNodeState::Running,
        total: amount(16_384, 16),
        used: YarnAmount::default(),
        n_containers: 0,
        label: String::new(),
        attributes: BTreeMap::new(),
        heard_ms: BEGAN_MS,
        health: String::new(),
    }
}

/// A queue with a share of its parent, in which nothing runs.
pub(crate) fn queue(path: &str, capacity: f32) -> QueueReport {
    QueueReport {
        path: path.to_owned(),
        capacity,
        maximum_capacity: 100.0,
        absolute_capacity: capacity,
        absolute_maximum_capacity: 100.0,
        absolute_used_capacity: 0.0,
        used_capacity: 0.0,
        is_running: true,
        used: YarnAmount::default(),
        pending: YarnAmount::default(),
        n_containers: 0,
        n_pending_containers: 0,
        n_active: 0,
        n_pending: 0,
        submit_owners: Vec::new(),
        is_leaf: path != "root",
    }
}

/// A container that has a place.
#[derive(Clone, Debug)]
struct Placed {
    id: YarnContainerId,
    key: Option<AskKey>,
    node: String,
    has_ended: bool,
}

/// What there is beside the adapter.
#[derive(Debug, Default)]
struct App {
    launch: Arc<[u8]>,
    tags: Vec<String>,
    next_ordinal: u32,
    placed: BTreeMap<u32, Placed>,
    priority: Option<i32>,
    timeout_at_ms: Option<i64>,
}

#[derive(Debug)]
struct State {
    adapter: YarnAdapter,
    apps: BTreeMap<YarnApplicationId, App>,
    nodes: Vec<YarnNodeReport>,
    n_new: u32,
    n_placed: usize,
}

/// The manager.
#[derive(Debug)]
pub(crate) struct FakeManager {
    state: Mutex<State>,
    /// It refuses everything.
    pub(crate) stands_by: std::sync::atomic::AtomicBool,
}

impl FakeManager {
    pub(crate) fn new(nodes: Vec<YarnNodeReport>) -> Self {
        let adapter = YarnAdapter::new(AdapterTerms::default());
        let state = State { adapter, apps: BTreeMap::new(), nodes, n_new: 0, n_placed: 0 };
        Self { state: Mutex::new(state), stands_by: false.into() }
    }

    /// As long as it leads.
    fn leads(&self) -> Result<(), ManagerRefusal> {
        if self.stands_by.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(ManagerRefusal::Standby(None));
        }
        Ok(())
    }

    /// Something of an application happens, and all that follows from it.
    fn with<T>(
        &self,
        id: YarnApplicationId,
        what: impl FnOnce(&mut YarnApplication, AdapterTerms, AdapterTime, &mut Vec<YarnAction>) -> T,
    ) -> Result<T, ManagerRefusal> {
        self.leads()?;
        let mut state = self.state.lock();
        let mut out = Vec::new();
        let done = state.adapter.with(id, |app, terms| what(app, terms, at(), &mut out));
        let done = done.map_err(|_| ManagerRefusal::NoApplication(id))?;
        state.act(out);
        Ok(done)
    }

    /// The launch context of an application, as it was submitted.
    pub(crate) fn launch_of(&self, id: YarnApplicationId) -> Arc<[u8]> {
        self.state.lock().apps.get(&id).map(|app| app.launch.clone()).unwrap_or_default()
    }
}

fn at() -> AdapterTime {
    AdapterTime { now: Millis(0), wall_ms: BEGAN_MS + 1 }
}

impl State {
    /// Does what the adapter wants done, in a cluster that answers at once.
    fn act(&mut self, actions: Vec<YarnAction>) {
        let mut todo: VecDeque<YarnAction> = actions.into();
        while let Some(action) = todo.pop_front() {
            let mut out = Vec::new();
            match action {
                YarnAction::PutRecord(id, version) => {
                    let _known =
                        self.adapter.with(id, |app, terms| app.saved(version, terms, at(), &mut out));
                }
                YarnAction::SubmitUnit(id) => {
                    let _known =
                        self.adapter.with(id, |app, terms| app.unit_answered(Ok(()), terms, at(), &mut out));
                    if self.adapter.get(id).is_some_and(|app| AppRecord::of(app).submission.master.is_some())
                    {
                        self.place(id, 0, 0, None, &mut out);
                    }
                }
                YarnAction::NextMaster(id) => {
                    let number = self.adapter.get(id).and_then(|app| app.attempts().current());
                    self.place(id, 0, number.map_or(0, |attempt| attempt.number - 1), None, &mut out);
                }
                YarnAction::Grow(id, added) => {
                    for growth in added {
                        let key = AskKey { group: growth.group(), ..growth.key.clone() };
                        let n = growth.n;
                        let first = self.apps.get(&id).map_or(1, |app| app.next_ordinal);
                        let ordinals = first..first + n;
                        if let Some(app) = self.apps.get_mut(&id) {
                            app.next_ordinal = ordinals.end;
                        }
                        let grown = ordinals.clone();
                        let _known = self.adapter.with(id, |app, _| app.grown(&growth, grown, &mut out));
                        for ordinal in ordinals {
                            self.place(id, ordinal, 0, Some(&key), &mut out);
                        }
                    }
                }
                YarnAction::Release(id, ordinals) => {
                    for ordinal in ordinals {
                        self.end(id, ordinal, 0, YarnExitStatus::KILLED_BY_APPMASTER, &mut out);
                    }
                }
                YarnAction::LaunchMaster(attempt, _) => {
                    let launched = |app: &mut YarnApplication, terms| {
                        app.master_launched(attempt, Ok(()), terms, at(), &mut out);
                    };
                    let _known = self.adapter.with(attempt.application, launched);
                }
                YarnAction::StopMaster(attempt) => {
                    let exit = YarnExitStatus::KILLED_BY_RESOURCEMANAGER;
                    self.end(attempt.application, 0, attempt.number - 1, exit, &mut out);
                }
                YarnAction::MoveUnit(..) | YarnAction::CancelUnit(_) => {}
            }
            todo.extend(out);
        }
    }

    fn place(
        &mut self,
        id: YarnApplicationId,
        ordinal: u32,
        incarnation: u32,
        key: Option<&AskKey>,
        out: &mut Vec<YarnAction>,
    ) {
        let node = &self.nodes[self.n_placed % self.nodes.len()];
        self.n_placed += 1;
        let node = format!("{}:{}", node.host, node.port);
        let attempt = self.adapter.get(id).and_then(|app| app.attempts().current());
        let attempt = attempt.unwrap_or(YarnAttemptId { application: id, number: 1 });
        let container = YarnContainerId { attempt, epoch: 0, number: u64::from(ordinal) + 1 };
        let placed = Placed { id: container, key: key.cloned(), node: node.clone(), has_ended: false };
        self.apps.entry(id).or_default().placed.insert(ordinal, placed);
        let _known = self.adapter.with(id, |app, terms| {
            app.placed(ReplicaId::new(ordinal, incarnation), &node, RACK, terms, at(), out);
        });
    }

    fn end(
        &mut self,
        id: YarnApplicationId,
        ordinal: u32,
        incarnation: u32,
        exit: YarnExitStatus,
        out: &mut Vec<YarnAction>,
    ) {
        if let Some(placed) = self.apps.get_mut(&id).and_then(|app| app.placed.get_mut(&ordinal)) {
            placed.has_ended = true;
        }
        let _known = self
            .adapter
            .with(id, |app, terms| app.ended(ReplicaId::new(ordinal, incarnation), exit, terms, at(), out));
    }

    fn report(&self, app: &YarnApplication) -> AppReport {
        let AppRecord { id, submission, attempts, start_ms, finish_ms, .. } = AppRecord::of(app);
        let known = self.apps.get(&id);
        let placed = known.into_iter().flat_map(|known| known.placed.values());
        let n_containers = placed.filter(|placed| !placed.has_ended).count();
        let last = attempts.last();
        AppReport {
            id,
            name: submission.name,
            user: submission.user,
            queue: submission.queue,
            kind: submission.kind,
            tags: known.map(|known| known.tags.clone()).unwrap_or_default(),
            priority: known.and_then(|known| known.priority).unwrap_or(submission.priority),
            state: app.public_state(),
            final_status: app.final_status(),
            diagnostics: app.diagnostics().to_owned(),
            start_ms,
            launch_ms: start_ms,
            finish_ms: finish_ms.unwrap_or(0),
            progress: 0.5,
            attempt: app.attempts().current(),
            is_launched: app.attempts().last().is_some_and(|attempt| attempt.state.is_launched()),
            registration: last.and_then(|attempt| attempt.registration.clone()),
            master_node: last.and_then(|attempt| attempt.node.clone()),
            is_unmanaged: submission.master.is_none(),
            label: submission.label,
            master_label: String::new(),
            used: amount(i64::try_from(n_containers).unwrap_or(0) * 1_024, 1),
            n_containers: u32::try_from(n_containers).unwrap_or(0),
            pending: YarnAmount::default(),
            n_pending: 0,
            memory_seconds: 1_024,
            vcore_seconds: 1,
            timeout_at_ms: known.and_then(|known| known.timeout_at_ms),
        }
    }
}

fn is_asked(filter: &AppFilter, report: &AppReport) -> bool {
    let AppFilter { states, kinds, tags, users, queues, name, .. } = filter;
    (states.is_empty() || states.contains(&report.state))
        && (kinds.is_empty() || kinds.iter().any(|kind| kind.eq_ignore_ascii_case(&report.kind)))
        && (tags.is_empty() || tags.iter().any(|tag| report.tags.contains(tag)))
        && (users.is_empty() || users.contains(&report.user))
        && (queues.is_empty() || queues.iter().any(|queue| queue.ends_with(&report.queue)))
        && name.as_ref().is_none_or(|name| *name == report.name)
}

fn master_refused(refusal: godel_core_yarn::adapter::MasterRefusal) -> ManagerRefusal {
    ManagerRefusal::Master(refusal)
}

/// Where containers are.
fn places<'a>(
    id: YarnApplicationId,
    containers: impl IntoIterator<Item = &'a godel_core_yarn::adapter::AllocatedContainer>,
) -> Vec<ContainerPlace> {
    let place = |container: &godel_core_yarn::adapter::AllocatedContainer| {
        let (host, port) = container.node.rsplit_once(':').unwrap_or((&container.node, "0"));
        let port = port.parse().unwrap_or(0);
        let unit = LaunchUnit { unit_id: id.number.into(), ordinal: container.ordinal, incarnation: 0 };
        ContainerPlace { node: LaunchNode { name: host.to_owned(), host: host.to_owned(), port }, unit }
    };
    containers.into_iter().map(place).collect()
}

#[async_trait]
impl ResourceManager for FakeManager {
    async fn new_application(&self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal> {
        self.leads()?;
        let mut state = self.state.lock();
        state.n_new += 1;
        Ok((YarnApplicationId { cluster_timestamp: BEGAN_MS, number: state.n_new }, amount(8_192, 4)))
    }

    async fn submit(&self, id: YarnApplicationId, submitted: SubmittedApp) -> Result<(), ManagerRefusal> {
        self.leads()?;
        let SubmittedApp { submission, launch, tags } = submitted;
        let mut state = self.state.lock();
        let app = App { launch, tags, next_ordinal: 1, ..App::default() };
        state.apps.entry(id).or_insert(app);
        let mut out = Vec::new();
        let submitted = state.adapter.submit(id, submission, at(), &mut out);
        submitted?;
        state.act(out);
        Ok(())
    }

    async fn kill(&self, id: YarnApplicationId, _: &str, why: &str) -> Result<bool, ManagerRefusal> {
        self.with(id, |app, terms, at, out| app.kill(why, terms, at, out))?;
        Ok(self.application(id)?.finish_ms > 0)
    }

    async fn fail_attempt(&self, id: YarnAttemptId, user: &str) -> Result<(), ManagerRefusal> {
        let why = format!("Attempt failed by user {user}");
        self.with(id.application, |app, terms, at, out| app.fail_attempt(id, &why, terms, at, out))?
            .map_err(|_| ManagerRefusal::NoAttempt(id))
    }

    async fn move_to(&self, id: YarnApplicationId, _: &str, queue: &str) -> Result<String, ManagerRefusal> {
        if queue == "nope" {
            return Err(ManagerRefusal::NoQueue(queue.to_owned()));
        }
        self.with(id, |app, terms, at, out| app.change_queue(queue.to_owned(), terms, at, out))?;
        Ok(queue.to_owned())
    }

    async fn set_priority(
        &self,
        id: YarnApplicationId,
        _: &str,
        priority: i32,
    ) -> Result<i32, ManagerRefusal> {
        self.application(id)?;
        let set = priority.min(10);
        self.state.lock().apps.entry(id).or_default().priority = Some(set);
        Ok(set)
    }

    async fn set_timeout(&self, id: YarnApplicationId, _: &str, at_ms: i64) -> Result<(), ManagerRefusal> {
        self.application(id)?;
        self.state.lock().apps.entry(id).or_default().timeout_at_ms = Some(at_ms);
        Ok(())
    }

    fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal> {
        self.leads()?;
        let state = self.state.lock();
        let found = state.adapter.get(id).ok_or(ManagerRefusal::NoApplication(id))?;
        Ok(state.report(found))
    }

    fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal> {
        self.leads()?;
        let state = self.state.lock();
        let reports = state.adapter.iter().map(|app| state.report(app));
        Ok(reports.filter(|report| is_asked(filter, report)).collect())
    }

    fn statistics(&self) -> Result<BTreeMap<(String, PublicAppState), u64>, ManagerRefusal> {
        let mut statistics = BTreeMap::new();
        for report in self.applications(&AppFilter::default())? {
            *statistics.entry((report.kind, report.state)).or_default() += 1;
        }
        Ok(statistics)
    }

    fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal> {
        self.leads()?;
        let state = self.state.lock();
        let found = state.adapter.get(id).ok_or(ManagerRefusal::NoApplication(id))?;
        let attempts = AppRecord::of(found).attempts;
        let numbered = (1_u32..).zip(attempts);
        Ok(numbered
            .map(|(number, attempt)| AttemptReport {
                id: YarnAttemptId { application: id, number },
                state: match attempt.target {
                    Some(EndTarget::Finishing) => AttemptState::Finishing,
                    Some(EndTarget::Finished) => AttemptState::Finished,
                    Some(EndTarget::Failed) => AttemptState::Failed,
                    Some(EndTarget::Killed) => AttemptState::Killed,
                    None if attempt.registration.is_some() => AttemptState::Running,
                    None => AttemptState::Launched,
                },
                master: attempt.node.as_ref().map(|_| YarnContainerId {
                    attempt: YarnAttemptId { application: id, number },
                    epoch: 0,
                    number: 1,
                }),
                node: attempt.node,
                registration: attempt.registration,
                diagnostics: found.diagnostics().to_owned(),
                start_ms: BEGAN_MS,
                finish_ms: 0,
            })
            .collect())
    }

    fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal> {
        self.application(id.application)?;
        let state = self.state.lock();
        let placed = state.apps.get(&id.application).into_iter().flat_map(|app| app.placed.values());
        let of_attempt = placed.filter(|placed| placed.id.attempt == id);
        Ok(of_attempt
            .map(|placed| ContainerReport {
                id: placed.id,
                key: placed.key.clone(),
                amount: amount(1_024, 1),
                state: if placed.has_ended {
                    PublicContainerState::Complete
                } else {
                    PublicContainerState::Running
                },
                node: placed.node.clone(),
                start_ms: BEGAN_MS,
                finish_ms: 0,
                exit: -1_000,
                diagnostics: String::new(),
            })
            .collect())
    }

    fn nodes(&self) -> Result<Vec<YarnNodeReport>, ManagerRefusal> {
        self.leads()?;
        Ok(self.state.lock().nodes.clone())
    }

    fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal> {
        self.leads()?;
        Ok(vec![queue("root", 100.0), queue("root.default", 60.0), queue("root.prod", 40.0)])
    }

    fn cluster(&self) -> Result<ClusterReport, ManagerRefusal> {
        self.leads()?;
        let state = self.state.lock();
        let mut nodes = BTreeMap::new();
        for node in &state.nodes {
            *nodes.entry(node.state).or_insert(0) += 1;
        }
        Ok(ClusterReport {
            cluster_timestamp: BEGAN_MS,
            started_ms: BEGAN_MS,
            is_active: true,
            total: amount(32_768, 32),
            nodes,
            minimum_allocation: amount(1_024, 1),
            maximum_allocation: amount(8_192, 4),
            ..ClusterReport::default()
        })
    }

    async fn register(
        &self,
        attempt: YarnAttemptId,
        registration: Registration,
    ) -> Result<RegisterAnswer, ManagerRefusal> {
        let id = attempt.application;
        let containers = self
            .with(id, |app, terms, at, out| app.register(attempt, registration, terms, at, out))?
            .map_err(master_refused)?;
        let AppReport { user, queue, .. } = self.application(id)?;
        Ok(RegisterAnswer {
            places: places(id, &containers),
            containers,
            user,
            maximum: amount(8_192, 4),
            queue,
        })
    }

    async fn allocate(
        &self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        _: f32,
    ) -> Result<MasterAnswer, ManagerRefusal> {
        let id = attempt.application;
        let answer = self
            .with(id, |app, terms, at, out| app.allocate(attempt, call, terms, at, out))?
            .map_err(master_refused)?;
        Ok(MasterAnswer {
            places: places(id, &answer.allocated),
            answer,
            user: self.application(id)?.user,
            headroom: amount(8_192, 8),
            n_nodes: 2,
            ..MasterAnswer::default()
        })
    }

    async fn finish(
        &self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        _: &str,
    ) -> Result<bool, ManagerRefusal> {
        self.with(attempt.application, |app, terms, at, out| {
            app.finish(attempt, said, tracking_url, terms, at, out)
        })?
        .map_err(master_refused)?;
        // What follows from it has happened: the same call says so.
        let again = |app: &mut YarnApplication, terms, at, out: &mut Vec<YarnAction>| {
            app.finish(attempt, said, tracking_url, terms, at, out)
        };
        self.with(attempt.application, again)?.map_err(master_refused)
    }

    async fn decommission(
        &self,
        nodes: &[String],
        timeout_ms: Option<u64>,
        _: &str,
    ) -> Result<(), ManagerRefusal> {
        self.leads()?;
        let mut state = self.state.lock();
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
