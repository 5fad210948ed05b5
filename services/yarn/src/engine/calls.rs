//! What faces ask of the adapter.

use std::{collections::BTreeMap, sync::Arc};

use godel_core_yarn::{
    AppAccess, QueueAccess, YarnUser,
    adapter::{AllocateCall, Registration},
    application::{FinalStatus, PublicAppState},
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_core_yarn_leader::{
    AppFilter, AppReport, AppSubmitter, AttemptReport, ClusterReport, ContainerReport, ManagerRefusal,
    MasterAnswer, QueueReport, RegisterAnswer, SubmittedApp, YarnAmount, YarnNodeReport, YarnShown,
};
use godel_domain::names::yarn_user;
use godel_kit::{client::retry_idempotent, security::Principal};
use godel_proto::v1::{self, node_service_client::NodeServiceClient};
use tokio::sync::oneshot;
use tonic::async_trait;

use super::Manager;
use crate::{
    manager::ResourceManager,
    rules::{acls_of_launch, groups_of},
};

impl Manager {
    /// Does something with an application or a queue on behalf of a user, with what decides whether the user may.
    fn by<T>(&self, user: &str, what: impl FnOnce(YarnUser<'_>) -> T) -> T {
        let (principal, groups) = self.known_of(user, self.shared.context.group_questions.access);
        match &principal {
            Some(principal) => what(YarnUser::judged(principal, &groups)),
            None => what(YarnUser::believed(user, &groups)),
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

    async fn submit(&self, id: YarnApplicationId, submitted: SubmittedApp) -> Result<(), ManagerRefusal> {
        let is_asked = self.shared.context.group_questions.submission;
        let (principal, groups) = self.known_of(&submitted.submission.user, is_asked);
        let by = AppSubmitter { groups, principal, acls: acls_of_launch(&submitted.launch) };
        let (sender, answer) = oneshot::channel();
        self.shared.run(|leader, at, out| leader.submit(id, submitted, by, sender, at, out));
        heard(answer).await
    }

    async fn kill(&self, id: YarnApplicationId, user: &str, why: &str) -> Result<bool, ManagerRefusal> {
        self.by(user, |user| self.shared.run(|leader, at, out| leader.kill(id, user, why, at, out)))
    }

    async fn fail_attempt(&self, id: YarnAttemptId, user: &str) -> Result<(), ManagerRefusal> {
        self.by(user, |user| self.shared.run(|leader, at, out| leader.fail_attempt(id, user, at, out)))
    }

    async fn move_to(
        &self,
        id: YarnApplicationId,
        user: &str,
        queue: &str,
    ) -> Result<String, ManagerRefusal> {
        let (sender, answer) = oneshot::channel();
        let name = self.by(user, |user| {
            self.shared.run(|leader, at, out| leader.move_to(id, user, queue, sender, at, out))
        })?;
        heard(answer).await?;
        Ok(name)
    }

    async fn set_priority(
        &self,
        id: YarnApplicationId,
        user: &str,
        priority: i32,
    ) -> Result<i32, ManagerRefusal> {
        let (sender, answer) = oneshot::channel();
        self.by(user, |user| {
            self.shared.run(|leader, at, out| leader.set_priority(id, user, priority, sender, at, out))
        })?;
        heard(answer).await?;
        Ok(self.application(id)?.priority)
    }

    async fn set_timeout(&self, id: YarnApplicationId, user: &str, at_ms: i64) -> Result<(), ManagerRefusal> {
        self.by(user, |user| self.shared.run(|leader, at, out| leader.set_timeout(id, user, at_ms, at, out)))
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

    fn allow(&self, id: YarnApplicationId, user: &str, access: AppAccess) -> Result<(), ManagerRefusal> {
        self.by(user, |user| self.shown(|shown| shown.allow(id, user, access)))
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

    fn may_administer(&self, user: &str) -> bool {
        let (principal, groups) = self.known_of(user, self.shared.context.group_questions.administration);
        self.shown(|shown| {
            shown.may_administer(match &principal {
                Some(principal) => YarnUser::judged(principal, &groups),
                None => YarnUser::believed(user, &groups),
            })
        })
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
        user: &str,
    ) -> Result<(), ManagerRefusal> {
        if !self.may_administer(user) {
            let user = yarn_user(user);
            let said = format!("User {user} doesn't have permission to call 'refreshNodes'");
            return Err(ManagerRefusal::NotAllowed(said));
        }
        let names = self.shown(|shown| shown.node_names(nodes))?;
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
