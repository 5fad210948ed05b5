//! What faces ask of the adapter.

use std::{collections::BTreeMap, time::Duration};

use godel_core_yarn::{
    AppAccess, QueueAccess,
    adapter::{
        AllocateAnswer, AllocateCall, AllocatedContainer, AppSubmission, MASTER, MasterRefusal, Registration,
        YarnApplication,
    },
    application::{FinalStatus, PublicAppState},
    asks::{ANY, AskRow, BadAsk},
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_domain::names::{APPLICATION_NAME_LEN_MAX, APPLICATION_QUEUE_LEN_MAX, N_TAGS_MAX, NAME_LEN_MAX};
use godel_kit::client::retry_idempotent;
use godel_proto::v1::{self, node_service_client::NodeServiceClient};
use tonic::async_trait;

use super::{
    Manager, act,
    queues::{godel_path, yarn_name},
    shared::{AppEntry, Inner},
    show,
};
use crate::{
    manager::{ContainerPlace, ManagerRefusal, MasterAnswer, RegisterAnswer, ResourceManager, SubmittedApp},
    picture::Picture,
    record::AppNotes,
    reports::{
        AppFilter, AppReport, AttemptReport, ClusterReport, ContainerReport, NodeReport, QueueReport,
        YarnAmount, yarn_resource,
    },
};

/// A record is written within that, or the client calls again.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

impl Manager {
    fn of_attempt(id: YarnAttemptId, refusal: ManagerRefusal) -> ManagerRefusal {
        match refusal {
            ManagerRefusal::NoApplication(_) => ManagerRefusal::NoAttempt(id),
            other => other,
        }
    }

    /// Finds the queue of godel that a client means.
    pub(super) fn queue(&self, inner: &Inner, name: &str) -> Result<String, ManagerRefusal> {
        let root = &self.shared.context.config.root_queue;
        let path = godel_path(&inner.picture.queues, root, name);
        path.ok_or_else(|| ManagerRefusal::NoQueue(name.to_owned()))
    }

    fn judge(&self, submitted: &SubmittedApp) -> Result<(), ManagerRefusal> {
        let config = &self.shared.context.config;
        let SubmittedApp { submission, launch, tags } = submitted;
        if launch.len() > config.launch_bytes_max {
            return Err(ManagerRefusal::Invalid(format!(
                "the launch context of the master has {} bytes; `yarn.launch_bytes_max` allows {}",
                launch.len(),
                config.launch_bytes_max
            )));
        }
        if tags.len() > N_TAGS_MAX {
            return Err(ManagerRefusal::Invalid(format!("{} tags; at most {N_TAGS_MAX}", tags.len())));
        }
        let master = submission.master.as_ref();
        let label = master.map(|master| master.label.as_str()).unwrap_or_default();
        for (field, text, most) in [
            ("name", &*submission.name, APPLICATION_NAME_LEN_MAX),
            ("user", &submission.user, NAME_LEN_MAX),
            ("queue", &submission.queue, APPLICATION_QUEUE_LEN_MAX),
            ("type", &submission.kind, NAME_LEN_MAX),
            ("node label expression", &submission.label, NAME_LEN_MAX),
            ("node label expression of its master", label, NAME_LEN_MAX),
        ] {
            if text.len() > most {
                let n = text.len();
                let why = format!("the {field} of the application has {n} bytes; at most {most} are kept");
                return Err(ManagerRefusal::Invalid(why));
            }
        }
        let capability = master.map(|master| &master.capability);
        if capability.is_some_and(|capability| !capability.values().any(|amount| *amount > 0)) {
            return Err(ManagerRefusal::Invalid("the master needs memory and CPUs above 0".to_owned()));
        }
        Ok(())
    }

    fn place_of(inner: &Inner, containers: &[AllocatedContainer]) -> Vec<ContainerPlace> {
        let place = |container: &AllocatedContainer| {
            let (node, unit) = inner.picture.place(container.id.attempt.application, container.ordinal)?;
            Some(ContainerPlace { node, unit })
        };
        containers.iter().filter_map(place).collect()
    }

    /// Runs something on one application.
    fn on_application<T>(
        &self,
        id: YarnApplicationId,
        what: impl FnOnce(&mut YarnApplication, &Call, &mut Vec<godel_core_yarn::adapter::YarnAction>) -> T,
    ) -> Result<T, ManagerRefusal> {
        let ran = self.shared.run(|inner, at, out| {
            inner.adapter.with(id, |application, terms| what(application, &Call { terms, at }, out))
        })?;
        ran.map_err(|_| ManagerRefusal::NoApplication(id))
    }
}

/// Terms and time of a call.
struct Call {
    terms: godel_core_yarn::adapter::AdapterTerms,
    at: godel_core_yarn::adapter::AdapterTime,
}

#[async_trait]
impl ResourceManager for Manager {
    async fn new_application(&self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal> {
        self.shared.run(|inner, _, _| {
            let number = inner.next_number;
            inner.next_number = number.wrapping_add(1).max(1);
            let id = YarnApplicationId { cluster_timestamp: inner.cluster_timestamp, number };
            (id, show::largest(inner))
        })
    }

    async fn submit(&self, id: YarnApplicationId, submitted: SubmittedApp) -> Result<(), ManagerRefusal> {
        self.judge(&submitted)?;
        let SubmittedApp { submission, launch, tags } = submitted;
        let config = &self.shared.context.config;
        let groups = self.groups(&submission.user);
        self.shared.run(|inner, at, out| {
            let queue = self.admit(inner, id, &submission, &groups)?;
            if inner.adapter.get(id).is_none() {
                judge_submission(&inner.picture, &submission).map_err(MasterRefusal::from)?;
            }
            let submission = AppSubmission { queue, ..submission };
            if inner.adapter.get(id).is_none() {
                let active = inner.adapter.iter().filter(|application| !application.is_over()).count();
                if active >= config.applications_max {
                    return Err(ManagerRefusal::Unavailable(format!(
                        "{active} applications have not ended; `yarn.applications_max` allows no more"
                    )));
                }
                let notes = AppNotes { launch, tags, ..AppNotes::default() };
                inner.entries.insert(id, AppEntry::new(notes, 0));
                self.shared.context.metrics.submitted.inc();
            }
            inner.adapter.submit(id, submission, at, out).map_err(ManagerRefusal::from)
        })??;
        let is_written = |inner: &Inner| inner.entries.get(&id).is_none_or(|entry| entry.saved > 0);
        if !self.shared.until_in(WRITE_LIMIT, is_written).await {
            let why = "the store has not recorded the application yet: submit it again";
            return Err(ManagerRefusal::Unavailable(why.to_owned()));
        }
        // Another leader may have followed before it was written.
        self.shared.inner.lock().application(id).map(drop)
    }

    async fn kill(&self, id: YarnApplicationId, user: &str, why: &str) -> Result<bool, ManagerRefusal> {
        self.allowed(id, user, AppAccess::Modify)?;
        let why = if why.is_empty() {
            format!("Application killed by user {user}")
        } else {
            format!("Application killed by user {user}: {why}")
        };
        self.on_application(id, |application, call, out| {
            application.kill(&why, call.terms, call.at, out);
            application.is_over()
        })
    }

    async fn fail_attempt(&self, id: YarnAttemptId, user: &str) -> Result<(), ManagerRefusal> {
        self.allowed(id.application, user, AppAccess::Modify)?;
        let why = format!("Attempt failed by user {user}");
        let failed = self.on_application(id.application, |application, call, out| {
            application.fail_attempt(id, &why, call.terms, call.at, out)
        });
        Ok(failed.map_err(|refusal| Self::of_attempt(id, refusal))??)
    }

    async fn move_to(
        &self,
        id: YarnApplicationId,
        user: &str,
        queue: &str,
    ) -> Result<String, ManagerRefusal> {
        self.allowed(id, user, AppAccess::Modify)?;
        let path = {
            let inner = self.shared.inner.lock();
            let (application, _) = inner.application(id)?;
            if application.is_over() {
                return Err(ManagerRefusal::Invalid(format!(
                    "application {id} is over: it stays in its queue"
                )));
            }
            self.queue(&inner, queue)?
        };
        self.allowed_target(id, user, &path)?;
        // The dispatcher decides; a unit that is not there yet is submitted to the new queue, or moved then.
        let moved = act::change_unit(&self.shared, id, |spec| spec.queue.clone_from(&path)).await;
        moved.map_err(|status| ManagerRefusal::Invalid(status.message().to_owned()))?;
        let name = yarn_name(&self.shared.context.config.root_queue, &path);
        self.on_application(id, |application, call, out| {
            application.change_queue(path, call.terms, call.at, out);
        })?;
        Ok(name)
    }

    async fn set_priority(
        &self,
        id: YarnApplicationId,
        user: &str,
        priority: i32,
    ) -> Result<i32, ManagerRefusal> {
        self.allowed(id, user, AppAccess::Modify)?;
        self.shared.inner.lock().application(id)?;
        let changed = act::change_unit(&self.shared, id, |spec| spec.priority = Some(priority)).await;
        changed.map_err(|status| ManagerRefusal::Invalid(status.message().to_owned()))?;
        self.on_application(id, |application, _, out| {
            application.change_priority(priority, out);
            application.submission().priority
        })
    }

    async fn set_timeout(&self, id: YarnApplicationId, user: &str, at_ms: i64) -> Result<(), ManagerRefusal> {
        self.allowed(id, user, AppAccess::Modify)?;
        self.on_application(id, |application, call, out| {
            if application.is_over() {
                return Err(ManagerRefusal::Invalid(format!("application {id} is over")));
            }
            if at_ms <= call.at.wall_ms {
                return Err(ManagerRefusal::Invalid("the time of the end has passed already".to_owned()));
            }
            let lifetime = at_ms.saturating_sub(application.times_ms().0);
            application.change_lifetime(Some(lifetime), out);
            Ok(())
        })?
    }

    fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal> {
        let inner = self.shared.inner.lock();
        let (application, entry) = inner.application(id)?;
        Ok(show::application(&self.shared, &inner, application, entry))
    }

    fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal> {
        let inner = self.shared.inner.lock();
        inner.term()?;
        Ok(show::applications(&self.shared, &inner, filter))
    }

    fn statistics(&self) -> Result<BTreeMap<(String, PublicAppState), u64>, ManagerRefusal> {
        let inner = self.shared.inner.lock();
        inner.term()?;
        let mut counts = BTreeMap::new();
        for application in inner.adapter.iter() {
            *counts
                .entry((application.submission().kind.clone(), application.public_state()))
                .or_default() += 1;
        }
        Ok(counts)
    }

    fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal> {
        let inner = self.shared.inner.lock();
        let (application, entry) = inner.application(id)?;
        Ok(show::attempts(application, entry))
    }

    fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal> {
        let inner = self.shared.inner.lock();
        let (application, _) =
            inner.application(id.application).map_err(|refusal| Self::of_attempt(id, refusal))?;
        if !application.attempts().iter().any(|attempt| attempt.id == id) {
            return Err(ManagerRefusal::NoAttempt(id));
        }
        Ok(show::containers(&inner, application, id))
    }

    fn nodes(&self) -> Result<Vec<NodeReport>, ManagerRefusal> {
        let inner = self.shared.inner.lock();
        inner.term()?;
        Ok(show::nodes(&self.shared, &inner, self.shared.at().wall_ms, 0))
    }

    fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal> {
        let inner = self.shared.inner.lock();
        inner.term()?;
        Ok(show::queues(&self.shared, &inner))
    }

    fn cluster(&self) -> Result<ClusterReport, ManagerRefusal> {
        Ok(show::cluster(&self.shared, &self.shared.inner.lock()))
    }

    fn allow(&self, id: YarnApplicationId, user: &str, access: AppAccess) -> Result<(), ManagerRefusal> {
        self.shared.inner.lock().application(id)?;
        self.allowed(id, user, access)
    }

    fn hide(&self, user: &str, apps: &mut [AppReport]) {
        self.hide_from(user, apps);
    }

    fn may_use(&self, user: &str, queue: &QueueReport, access: QueueAccess) -> bool {
        self.may_with_queue(user, queue, access)
    }

    fn may_administer(&self, user: &str) -> bool {
        self.is_admin(user)
    }

    async fn register(
        &self,
        attempt: YarnAttemptId,
        registration: Registration,
    ) -> Result<RegisterAnswer, ManagerRefusal> {
        let id = attempt.application;
        let root = &self.shared.context.config.root_queue;
        // It may follow its submission, or its own start, more quickly than these are recorded. Who still comes early is told so.
        let is_early = |inner: &Inner| inner.application(id).is_ok_and(|(of, _)| of.is_early(attempt));
        self.shared.until_in(WRITE_LIMIT, |inner| !is_early(inner)).await;
        self.shared.run(|inner, at, out| {
            let registered = inner
                .adapter
                .with(id, |application, terms| application.register(attempt, registration, terms, at, out));
            let containers = registered.map_err(|_| ManagerRefusal::NoAttempt(attempt))??;
            let (application, _) = inner.application(id)?;
            let submission = application.submission();
            Ok(RegisterAnswer {
                places: Self::place_of(inner, &containers),
                containers,
                user: submission.user.clone(),
                maximum: show::largest(inner),
                queue: yarn_name(root, &submission.queue),
            })
        })?
    }

    async fn allocate(
        &self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        progress: f32,
    ) -> Result<MasterAnswer, ManagerRefusal> {
        let id = attempt.application;
        let shared = &self.shared;
        shared.run(|inner, at, out| {
            let known = inner.adapter.get(id).ok_or(ManagerRefusal::NoAttempt(attempt))?;
            judge_asks(&inner.picture, known, &call.asks).map_err(MasterRefusal::from)?;
            let answer = inner
                .adapter
                .with(id, |application, terms| application.allocate(attempt, call, terms, at, out));
            let answer: AllocateAnswer = answer.map_err(|_| ManagerRefusal::NoAttempt(attempt))??;
            let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            shared.context.metrics.allocated.inc_by(count(answer.allocated.len()));
            shared.context.metrics.completed.inc_by(count(answer.completed.len()));
            let n_changes = inner.picture.n_node_changes;
            let told = inner.entries.get_mut(&id).and_then(|entry| {
                entry.progress = if progress.is_finite() { progress.clamp(0.0, 1.0) } else { 0.0 };
                entry.n_node_changes_told.replace(n_changes)
            });
            let updated_nodes = match told {
                Some(told) if told < n_changes => show::nodes(shared, inner, at.wall_ms, told),
                Some(_) | None => Vec::new(),
            };
            let headroom = show::headroom(inner, id);
            let (application, _) = inner.application(id)?;
            Ok(MasterAnswer {
                places: Self::place_of(inner, &answer.allocated),
                user: application.submission().user.clone(),
                updated_nodes,
                headroom,
                n_nodes: inner.picture.sums.n_nodes,
                preempted: preempted(inner, application),
                priority: application.submission().priority,
                answer,
            })
        })?
    }

    async fn finish(
        &self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        diagnostics: &str,
    ) -> Result<bool, ManagerRefusal> {
        let id = attempt.application;
        self.shared.run(|inner, at, out| {
            let finished = inner.adapter.with(id, |application, terms| {
                application.finish(attempt, said, tracking_url, terms, at, out)
            });
            let is_recorded = finished.map_err(|_| ManagerRefusal::NoAttempt(attempt))??;
            let idx = usize::try_from(attempt.number).ok().and_then(|number| number.checked_sub(1));
            let entry = inner.entries.get_mut(&id).zip(idx);
            if let Some(notes) = entry.and_then(|(entry, idx)| entry.notes.attempts.get_mut(idx)) {
                notes.diagnostics = diagnostics.chars().take(show::DIAGNOSTICS_MAX).collect();
            }
            Ok(is_recorded)
        })?
    }

    async fn decommission(
        &self,
        nodes: &[String],
        timeout_ms: Option<u64>,
        user: &str,
    ) -> Result<(), ManagerRefusal> {
        if !self.is_admin(user) {
            let said = format!("User {user} doesn't have permission to call 'refreshNodes'");
            return Err(ManagerRefusal::NotAllowed(said));
        }
        let names = {
            let inner = self.shared.inner.lock();
            inner.term()?;
            nodes.iter().map(|node| show::node_name(&inner, node)).collect::<Result<Vec<String>, _>>()?
        };
        let directory = &self.shared.context.directory;
        let policy = directory.policy();
        for name in names {
            let drain = timeout_ms.map(|ms| v1::DrainOrder { deadline_in_ms: Some(ms) });
            let request = v1::UpdateNodeRequest {
                name,
                undrain: drain.is_none(),
                cordoned: drain.is_none().then_some(false),
                drain,
                ..v1::UpdateNodeRequest::default()
            };
            let updated = retry_idempotent(&policy, || async {
                NodeServiceClient::new(directory.state()).update_node(request.clone()).await
            });
            updated.await.map_err(|status| match godel_kit::status::is_retryable_idempotent(&status) {
                true => ManagerRefusal::Unavailable(status.message().to_owned()),
                false => ManagerRefusal::Invalid(status.message().to_owned()),
            })?;
        }
        Ok(())
    }
}

/// Refuses labels and resources that no node has, as YARN does. What was asked for before stays, whatever becomes of the nodes.
fn judge_asks(picture: &Picture, application: &YarnApplication, asks: &[AskRow]) -> Result<(), BadAsk> {
    for AskRow { key, label, .. } in asks.iter().filter(|row| row.n > 0 && row.name == ANY) {
        let is_known = application.asks().n_wanted(key) > 0;
        let label =
            label.as_ref().filter(|label| !label.is_empty() && !application.asks().has_label(key, label));
        if let Some(label) = label.filter(|label| !picture.has_label(label)) {
            return Err(BadAsk::Label(label.clone()));
        }
        if !is_known {
            judge_resources(picture, &key.group.capability)?;
        }
    }
    Ok(())
}

/// The same of a submission.
fn judge_submission(picture: &Picture, submission: &AppSubmission) -> Result<(), BadAsk> {
    let of_master = submission.master.as_ref();
    let labels = [Some(&submission.label), of_master.map(|master| &master.label)];
    for label in labels.into_iter().flatten().filter(|label| !label.is_empty()) {
        if !picture.has_label(label) {
            return Err(BadAsk::Label(label.clone()));
        }
    }
    of_master.map_or(Ok(()), |master| judge_resources(picture, &master.capability))
}

fn judge_resources(picture: &Picture, capability: &BTreeMap<String, i64>) -> Result<(), BadAsk> {
    match capability.keys().find(|name| !picture.has_resource(name)) {
        Some(unknown) => Err(BadAsk::Resource(yarn_resource(unknown).to_owned())),
        None => Ok(()),
    }
}

/// Containers that are about to be taken from an application, its master among them.
fn preempted(inner: &Inner, application: &YarnApplication) -> Vec<YarnContainerId> {
    let leaving = inner.picture.leaving(application.id());
    let named = leaving.filter_map(|ordinal| match ordinal {
        MASTER => application.current_master(),
        _ => application.container(ordinal).map(|container| container.id),
    });
    named.collect()
}
