//! What faces ask of the adapter.

use std::{collections::BTreeMap, sync::Arc};

use godel_core_yarn::{
    AppAccess, QueueAccess, YarnUser,
    adapter::{AdapterTime, AllocateCall, Registration},
    application::{FinalStatus, PublicAppState},
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_core_yarn_leader::{
    AppCaller, AppFilter, AppReport, AppSubmitter, AttemptReport, ClusterReport, ContainerReport,
    ManagerRefusal, MasterAnswer, QueueReport, RegisterAnswer, SubmittedApp, YarnAmount, YarnNodeReport,
    YarnShown,
};
use godel_domain::{change_line::CallCause, names::yarn_user};
use godel_kit::{client::retry_idempotent, security::Principal};
use godel_proto::v1::{self, node_service_client::NodeServiceClient};
use tokio::sync::oneshot;
use tonic::async_trait;

use super::{Context, Leader, Manager, Orders};
use crate::{
    manager::{ResourceManager, YarnCaller},
    rules::{acls_of_launch, groups_of},
};

/// Of what kind the objects of lines of the change log are that applications have.
fn objects_of(id: YarnApplicationId) -> [String; 1] {
    [format!("application/{id}")]
}

impl Manager {
    /// Does something with an application or a queue on behalf of a user, with what decides whether the user may.
    fn by<T>(&self, user: &str, what: impl FnOnce(YarnUser<'_>) -> T) -> T {
        let (principal, groups) = self.known_of(user, self.shared.context.group_questions.access);
        match &principal {
            Some(principal) => what(YarnUser::judged(principal, &groups)),
            None => what(YarnUser::believed(user, &groups)),
        }
    }

    /// Has a caller change an application. The change log has a line for it if who it is does not let it.
    fn change<T>(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        what: impl FnOnce(&mut Leader, AppCaller<'_>, AdapterTime, &mut Orders) -> Result<T, ManagerRefusal>,
    ) -> Result<T, ManagerRefusal> {
        let cause = self.cause(by, objects_of(id));
        let changed = self.by(&by.user, |user| {
            self.shared.run(|leader, at, out| what(leader, AppCaller { user, cause }, at, out))
        });
        changed.inspect_err(|refusal| self.note_refused(by, objects_of(id), refusal))
    }

    /// Drains a node within a time, or has it in service again.
    async fn update_node(&self, name: &str, timeout_ms: Option<u64>) -> Result<(), ManagerRefusal> {
        let directory = &self.shared.context.directory;
        let drain = timeout_ms.map(|ms| v1::DrainOrder { deadline_in_ms: Some(ms) });
        let request = v1::UpdateNodeRequest {
            name: name.to_owned(),
            undrain: drain.is_none(),
            cordoned: drain.is_none().then_some(false),
            drain,
            ..v1::UpdateNodeRequest::default()
        };
        let policy = directory.policy();
        let updated = retry_idempotent(&policy, || async {
            NodeServiceClient::new(directory.state()).update_node(request.clone()).await
        });
        updated.await.map(drop).map_err(|status| match godel_kit::status::is_retryable_idempotent(&status) {
            true => ManagerRefusal::Unavailable(status.message().to_owned()),
            false => ManagerRefusal::Invalid(status.message().to_owned()),
        })
    }

    /// A call for the change log; `None`: it has no line.
    fn cause(&self, by: &YarnCaller, objects: impl IntoIterator<Item = String>) -> Option<CallCause> {
        let Context { callers, config, .. } = &self.shared.context;
        let call = by.call.as_ref().filter(|_| callers.is_judged())?;
        Some(call.clone().about(&config.namespace, objects))
    }

    /// Notes for the change log that a caller was refused for who it is.
    fn note_refused(
        &self,
        by: &YarnCaller,
        objects: impl IntoIterator<Item = String>,
        refusal: &ManagerRefusal,
    ) {
        if let Some((lacks, call)) = refusal.lacks().zip(self.cause(by, objects)) {
            self.shared.context.callers.note_refused(call, lacks.refused_for());
        }
    }

    /// What a user may do, and its groups: those of its principal. Of a name that is not proved they are read from files, if somebody asks for them.
    fn known_of(&self, user: &str, is_asked: bool) -> (Option<Arc<Principal>>, Vec<String>) {
        let principal = self.shared.context.callers.principal(user);
        let proved = principal.as_ref().filter(|principal| !principal.is_yarn_simple());
        let groups =
            proved.map_or_else(|| groups_if(is_asked, yarn_user(user)), |proved| proved.groups.clone());
        (principal, groups)
    }

    /// Looks at what is shown now.
    fn shown<T>(&self, what: impl FnOnce(YarnShown<'_>) -> T) -> T {
        let now_ms = self.shared.at().wall_ms;
        what(self.shared.led.lock().leader.shown(now_ms))
    }
}

/// Groups of a user, if somebody asks for them: they are read from files.
fn groups_if(is_asked: bool, user: &str) -> Vec<String> {
    if is_asked { groups_of(user) } else { Vec::new() }
}

/// What came of something that was waited for.
async fn heard<T>(answer: oneshot::Receiver<Result<T, ManagerRefusal>>) -> Result<T, ManagerRefusal> {
    // Who steps down answers everybody: the adapter stops.
    answer.await.unwrap_or(Err(ManagerRefusal::Standby(None)))
}

#[async_trait]
impl ResourceManager for Manager {
    async fn new_application(&self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal> {
        self.shared.run(|leader, _, _| leader.new_application())
    }

    async fn submit(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        submitted: SubmittedApp,
    ) -> Result<(), ManagerRefusal> {
        let is_asked = self.shared.context.group_questions.submission;
        let (principal, groups) = self.known_of(&submitted.submission.user, is_asked);
        // The unit of an application says who owns it, which is who submits it unless somebody does so for another one.
        let is_for_other = by.call.as_ref().is_some_and(|call| call.principal != submitted.submission.user);
        let cause = if is_for_other { self.cause(by, objects_of(id)) } else { None };
        let submitter = AppSubmitter { groups, principal, acls: acls_of_launch(&submitted.launch), cause };
        let (sender, answer) = oneshot::channel();
        self.shared.run(|leader, at, out| leader.submit(id, submitted, submitter, sender, at, out));
        heard(answer).await.inspect_err(|refusal| self.note_refused(by, objects_of(id), refusal))
    }

    async fn kill(&self, id: YarnApplicationId, by: &YarnCaller, why: &str) -> Result<bool, ManagerRefusal> {
        self.change(id, by, |leader, by, at, out| leader.kill(id, by, why, at, out))
    }

    async fn fail_attempt(&self, id: YarnAttemptId, by: &YarnCaller) -> Result<(), ManagerRefusal> {
        self.change(id.application, by, |leader, by, at, out| leader.fail_attempt(id, by, at, out))
    }

    async fn move_to(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        queue: &str,
    ) -> Result<String, ManagerRefusal> {
        let (sender, answer) = oneshot::channel();
        let name =
            self.change(id, by, |leader, by, at, out| leader.move_to(id, by, queue, sender, at, out))?;
        heard(answer).await?;
        Ok(name)
    }

    async fn set_priority(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        priority: i32,
    ) -> Result<i32, ManagerRefusal> {
        let (sender, answer) = oneshot::channel();
        self.change(id, by, |leader, by, at, out| leader.set_priority(id, by, priority, sender, at, out))?;
        heard(answer).await?;
        Ok(self.application(id)?.priority)
    }

    async fn set_timeout(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        at_ms: i64,
    ) -> Result<(), ManagerRefusal> {
        self.change(id, by, |leader, by, at, out| leader.set_timeout(id, by, at_ms, at, out))
    }

    fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal> {
        self.shown(|shown| shown.application(id))
    }

    fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal> {
        self.shown(|shown| shown.applications(filter))
    }

    fn statistics(&self) -> Result<BTreeMap<(String, PublicAppState), u64>, ManagerRefusal> {
        self.shown(|shown| shown.statistics())
    }

    fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal> {
        self.shown(|shown| shown.attempts(id))
    }

    fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal> {
        self.shown(|shown| shown.containers(id))
    }

    fn nodes(&self) -> Result<Vec<YarnNodeReport>, ManagerRefusal> {
        self.shown(|shown| shown.nodes())
    }

    fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal> {
        self.shown(|shown| shown.queues())
    }

    fn cluster(&self) -> Result<ClusterReport, ManagerRefusal> {
        Ok(self.shown(|shown| shown.cluster()))
    }

    fn allow(&self, id: YarnApplicationId, by: &YarnCaller, access: AppAccess) -> Result<(), ManagerRefusal> {
        let allowed = self.by(&by.user, |user| self.shown(|shown| shown.allow(id, user, access)));
        allowed.inspect_err(|refusal| self.note_refused(by, objects_of(id), refusal))
    }

    fn note_done(&self, id: YarnApplicationId, by: &YarnCaller) {
        if let Some(call) = self.cause(by, objects_of(id)) {
            self.shared.context.callers.note_done(call);
        }
    }

    fn hide(&self, user: &str, apps: &mut [AppReport]) {
        if self.shared.context.group_questions.access {
            self.by(user, |user| self.shown(|shown| shown.hide(user, apps)));
        }
    }

    fn retain_viewable(&self, user: &str, apps: &mut Vec<AppReport>) {
        self.by(user, |user| self.shown(|shown| shown.retain_viewable(user, apps)));
    }

    fn may_use(&self, user: &str, queue: &QueueReport, access: QueueAccess) -> bool {
        self.by(user, |user| self.shown(|shown| shown.may_use(user, queue, access)))
    }

    fn allow_administration(&self, by: &YarnCaller) -> Result<(), ManagerRefusal> {
        let user = by.user.as_str();
        let (principal, groups) = self.known_of(user, self.shared.context.group_questions.administration);
        let may = self.shown(|shown| {
            shown.may_administer(match &principal {
                Some(principal) => YarnUser::judged(principal, &groups),
                None => YarnUser::believed(user, &groups),
            })
        });
        if may {
            return Ok(());
        }
        if let Some(call) = self.cause(by, []) {
            self.shared.context.callers.note_refused(call, "not an administrator");
        }
        let user = yarn_user(user);
        let said = format!("User {user} doesn't have permission to call 'refreshNodes'");
        Err(ManagerRefusal::NotAllowed(said))
    }

    async fn register(
        &self,
        attempt: YarnAttemptId,
        registration: Registration,
    ) -> Result<RegisterAnswer, ManagerRefusal> {
        let (sender, answer) = oneshot::channel();
        self.shared.run(|leader, at, out| leader.register(attempt, registration, sender, at, out));
        heard(answer).await
    }

    async fn allocate(
        &self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        progress: f32,
    ) -> Result<MasterAnswer, ManagerRefusal> {
        let answer = self.shared.run(|leader, at, out| leader.allocate(attempt, call, progress, at, out))?;
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let metrics = &self.shared.context.metrics;
        metrics.allocated.inc_by(count(answer.answer.allocated.len()));
        metrics.completed.inc_by(count(answer.answer.completed.len()));
        Ok(answer)
    }

    async fn finish(
        &self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        diagnostics: &str,
    ) -> Result<bool, ManagerRefusal> {
        self.shared.run(|leader, at, out| leader.finish(attempt, said, tracking_url, diagnostics, at, out))
    }

    async fn decommission(
        &self,
        nodes: &[String],
        timeout_ms: Option<u64>,
        by: &YarnCaller,
    ) -> Result<(), ManagerRefusal> {
        self.allow_administration(by)?;
        let names = self.shown(|shown| shown.node_names(nodes))?;
        let (mut answer, mut updated) = (Ok(()), Vec::new());
        for name in names {
            answer = self.update_node(&name, timeout_ms).await;
            if answer.is_err() {
                break;
            }
            updated.push(format!("node/{name}"));
        }
        // State has written that on behalf of the adapter.
        if let Some(call) = by.call.clone().filter(|_| !updated.is_empty()) {
            self.shared.context.callers.note_done(call.about("", updated));
        }
        answer
    }
}
