//! What every face asks of the adapter.

use std::collections::BTreeMap;

use godel_core_yarn::{
    AppAccess, QueueAccess,
    adapter::{AllocateCall, Registration},
    application::{FinalStatus, PublicAppState},
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_core_yarn_leader::{
    AppFilter, AppReport, AttemptReport, ClusterReport, ContainerReport, ManagerRefusal, MasterAnswer,
    QueueReport, RegisterAnswer, SubmittedApp, YarnAmount, YarnNodeReport,
};
use godel_domain::change_line::CallCause;
use tonic::async_trait;

/// Who calls a face.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct YarnCaller {
    /// On whose behalf: the owner of what it submits, or the name that it says where nobody is judged.
    pub user: String,
    /// The call for the change log, which does not say yet what it is about; `None`: it has no line.
    pub call: Option<CallCause>,
}

impl YarnCaller {
    /// A user who calls `method`, a row of the table of permissions, from `address`.
    pub fn new(user: &str, method: &str, address: &str) -> Self {
        Self { user: user.to_owned(), call: Some(CallCause::new(user, method, address)) }
    }

    /// A user whose calls have no lines.
    pub fn unnoted(user: &str) -> Self {
        Self { user: user.to_owned(), call: None }
    }
}

/// The adapter, for its faces. Reads are answered from memory, without waiting.
#[async_trait]
pub trait ResourceManager: Send + Sync + std::fmt::Debug {
    /// An id that nobody else gets, and the most that one container may ask for.
    async fn new_application(&self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal>;

    /// Takes a submission; the same again changes nothing. Answers when it is recorded.
    async fn submit(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        submitted: SubmittedApp,
    ) -> Result<(), ManagerRefusal>;

    /// Ends an application on behalf of a user. Whether it is over.
    async fn kill(&self, id: YarnApplicationId, by: &YarnCaller, why: &str) -> Result<bool, ManagerRefusal>;

    /// Has an attempt fail on behalf of a user: another one follows while the application may have one.
    async fn fail_attempt(&self, id: YarnAttemptId, by: &YarnCaller) -> Result<(), ManagerRefusal>;

    /// Puts an application into another queue; the name of the queue it is in afterwards.
    async fn move_to(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        queue: &str,
    ) -> Result<String, ManagerRefusal>;

    /// Changes the priority of an application; what it has afterwards.
    async fn set_priority(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        priority: i32,
    ) -> Result<i32, ManagerRefusal>;

    /// Has an application end at a time, Unix milliseconds.
    async fn set_timeout(
        &self,
        id: YarnApplicationId,
        by: &YarnCaller,
        at_ms: i64,
    ) -> Result<(), ManagerRefusal>;

    /// An application.
    fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal>;

    /// Applications that a filter lets through, the newest first.
    fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal>;

    /// Applications by kind and public state, of those that are known.
    fn statistics(&self) -> Result<BTreeMap<(String, PublicAppState), u64>, ManagerRefusal>;

    /// Attempts of an application, the first one first.
    fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal>;

    /// Containers that an attempt has.
    fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal>;

    /// Every node that runs containers of YARN.
    fn nodes(&self) -> Result<Vec<YarnNodeReport>, ManagerRefusal>;

    /// Queues, those above before those below.
    fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal>;

    /// The cluster.
    fn cluster(&self) -> Result<ClusterReport, ManagerRefusal>;

    /// Whether YARN's access controls let a user do something with an application. Calls that change one ask this themselves.
    ///
    /// # Errors
    /// They do not, or there is no such application.
    fn allow(&self, id: YarnApplicationId, by: &YarnCaller, access: AppAccess) -> Result<(), ManagerRefusal> {
        let _ = (by, access);
        self.application(id).map(drop)
    }

    /// Takes from reports what a user may not see.
    fn hide(&self, user: &str, apps: &mut [AppReport]) {
        let _ = (user, apps);
    }

    /// Leaves the reports of applications that a user may see.
    fn retain_viewable(&self, user: &str, apps: &mut Vec<AppReport>) {
        let _ = (user, apps);
    }

    /// Whether a user may do something with a queue.
    fn may_use(&self, user: &str, queue: &QueueReport, access: QueueAccess) -> bool {
        access == QueueAccess::Administer || queue.lets_submit(user, &[])
    }

    /// Whether a caller administers the cluster.
    ///
    /// # Errors
    /// It does not.
    fn allow_administration(&self, by: &YarnCaller) -> Result<(), ManagerRefusal> {
        let _ = by;
        Ok(())
    }

    /// Notes for the change log what a caller has done to an application that no record of it says.
    fn note_done(&self, id: YarnApplicationId, by: &YarnCaller) {
        let _ = (id, by);
    }

    /// A master registers.
    async fn register(
        &self,
        attempt: YarnAttemptId,
        registration: Registration,
    ) -> Result<RegisterAnswer, ManagerRefusal>;

    /// A master says what it wants and hears what it has. A call that changes nothing waits for nothing.
    async fn allocate(
        &self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        progress: f32,
    ) -> Result<MasterAnswer, ManagerRefusal>;

    /// A master says goodbye. Whether that is recorded: until then it calls again.
    async fn finish(
        &self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        diagnostics: &str,
    ) -> Result<bool, ManagerRefusal>;

    /// Has nodes run nothing new and lets what they have end, for so long at most; none: they are in service again.
    async fn decommission(
        &self,
        nodes: &[String],
        timeout_ms: Option<u64>,
        by: &YarnCaller,
    ) -> Result<(), ManagerRefusal>;
}
