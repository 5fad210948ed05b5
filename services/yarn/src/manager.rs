//! What every face asks of the adapter, and why it refuses.

use std::collections::BTreeMap;

use bytes::Bytes;
use godel_core_yarn::{
    AppAccess, QueueAccess,
    adapter::{
        AllocateAnswer, AllocateCall, AllocatedContainer, AppSubmission, ClientRefusal, MasterRefusal,
        Registration,
    },
    application::FinalStatus,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use tonic::async_trait;

use crate::{
    launcher::{LaunchNode, LaunchUnit},
    reports::{
        AppFilter, AppReport, AttemptReport, ClusterReport, ContainerReport, NodeReport, QueueReport,
        YarnAmount,
    },
};

/// What a client submits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmittedApp {
    /// What decides anything. Its queue is given as the client names it, `root.prod.search`, `search`, or empty for the default one:
    /// whoever implements [`ResourceManager`] finds godel's queue, as in [`ResourceManager::move_to`].
    pub submission: AppSubmission,
    /// How its master is started: a `ContainerLaunchContextProto`, as the client sent it. Empty if it runs elsewhere.
    pub launch: Bytes,
    /// Words for filters of lists.
    pub tags: Vec<String>,
}

/// Where a container has its place: what its tokens say, beside its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlace {
    /// Its node, as its master reaches it.
    pub node: LaunchNode,
    /// Its running unit.
    pub unit: LaunchUnit,
}

/// A master has registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisterAnswer {
    /// What earlier attempts have left it.
    pub containers: Vec<AllocatedContainer>,
    /// Where `containers` are, in the same order.
    pub places: Vec<ContainerPlace>,
    /// Who submitted its application.
    pub user: String,
    /// The most that one container may ask for.
    pub maximum: YarnAmount,
    /// Queue of its application, as YARN names it.
    pub queue: String,
}

/// What a master is told with each answer to `allocate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterAnswer {
    /// Containers that came and went.
    pub answer: AllocateAnswer,
    /// Where `answer.allocated` are, in the same order.
    pub places: Vec<ContainerPlace>,
    /// Who submitted its application; may be empty while nothing is allocated.
    pub user: String,
    /// Nodes that have become usable or unusable since the last answer.
    pub updated_nodes: Vec<NodeReport>,
    /// What its application may still get: the headroom.
    pub headroom: YarnAmount,
    /// Nodes of the cluster.
    pub n_nodes: u32,
    /// Containers that will be taken from it unless it gives back as much.
    pub preempted: Vec<YarnContainerId>,
    /// Priority of its application.
    pub priority: i32,
}

/// Why the adapter refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagerRefusal {
    /// No such application.
    #[error("there is no application {0}; `godel yarn app list` shows what there is")]
    NoApplication(YarnApplicationId),
    /// No such attempt.
    #[error("there is no attempt {0}")]
    NoAttempt(YarnAttemptId),
    /// No such container, or its application is over.
    #[error("there is no container {0}")]
    NoContainer(YarnContainerId),
    /// No such queue.
    #[error("there is no queue `{0}`; `godel queue list` shows what there is")]
    NoQueue(String),
    /// The id is that of an application which was submitted with another specification.
    #[error("application {0} was submitted already, with another specification: ask for a new id")]
    Taken(YarnApplicationId),
    /// What the client says cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The caller may not do that.
    #[error("{0}")]
    Denied(String),
    /// YARN's access controls do not let the caller do that.
    #[error("{0}")]
    NotAllowed(String),
    /// A master is refused.
    #[error(transparent)]
    Master(#[from] MasterRefusal),
    /// This adapter stands by; `Some`: that one leads.
    #[error("this YARN adapter stands by: ask the one that leads{}", .0.as_ref().map(|at| format!(", at {at}")).unwrap_or_default())]
    Standby(Option<String>),
    /// The control plane does not answer now; the same call may succeed later.
    #[error("{0}")]
    Unavailable(String),
}

impl From<ClientRefusal> for ManagerRefusal {
    fn from(refusal: ClientRefusal) -> Self {
        match refusal {
            ClientRefusal::NoApplication(id) => Self::NoApplication(id),
            ClientRefusal::Taken(id) => Self::Taken(id),
        }
    }
}

/// The adapter, for its faces. Reads are answered from memory, without waiting.
#[async_trait]
pub trait ResourceManager: Send + Sync + std::fmt::Debug {
    /// An id that nobody else gets, and the most that one container may ask for.
    async fn new_application(&self) -> Result<(YarnApplicationId, YarnAmount), ManagerRefusal>;

    /// Takes a submission; the same again changes nothing. Answers when it is recorded.
    async fn submit(&self, id: YarnApplicationId, submitted: SubmittedApp) -> Result<(), ManagerRefusal>;

    /// Ends an application on behalf of a user. Whether it is over.
    async fn kill(&self, id: YarnApplicationId, user: &str, why: &str) -> Result<bool, ManagerRefusal>;

    /// Has an attempt fail on behalf of a user: another one follows while the application may have one.
    async fn fail_attempt(&self, id: YarnAttemptId, user: &str) -> Result<(), ManagerRefusal>;

    /// Puts an application into another queue; the name of the queue it is in afterwards.
    async fn move_to(&self, id: YarnApplicationId, user: &str, queue: &str)
    -> Result<String, ManagerRefusal>;

    /// Changes the priority of an application; what it has afterwards.
    async fn set_priority(
        &self,
        id: YarnApplicationId,
        user: &str,
        priority: i32,
    ) -> Result<i32, ManagerRefusal>;

    /// Has an application end at a time, Unix milliseconds.
    async fn set_timeout(&self, id: YarnApplicationId, user: &str, at_ms: i64) -> Result<(), ManagerRefusal>;

    /// An application.
    fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal>;

    /// Applications that a filter lets through, the newest first.
    fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal>;

    /// Applications by kind and public state, of those that are known.
    fn statistics(
        &self,
    ) -> Result<BTreeMap<(String, godel_core_yarn::application::PublicAppState), u64>, ManagerRefusal>;

    /// Attempts of an application, the first one first.
    fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal>;

    /// Containers that an attempt has.
    fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal>;

    /// Every node that runs containers of YARN.
    fn nodes(&self) -> Result<Vec<NodeReport>, ManagerRefusal>;

    /// Queues, those above before those below.
    fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal>;

    /// The cluster.
    fn cluster(&self) -> Result<ClusterReport, ManagerRefusal>;

    /// Whether YARN's access controls let a user do something with an application. Calls that change one ask this themselves.
    ///
    /// # Errors
    /// They do not, or there is no such application.
    fn allow(&self, id: YarnApplicationId, user: &str, access: AppAccess) -> Result<(), ManagerRefusal> {
        let _ = (user, access);
        self.application(id).map(drop)
    }

    /// Takes from reports what a user may not see.
    fn hide(&self, user: &str, apps: &mut [AppReport]) {
        let _ = (user, apps);
    }

    /// Whether a user may do something with a queue.
    fn may_use(&self, user: &str, queue: &QueueReport, access: QueueAccess) -> bool {
        access == QueueAccess::Administer || queue.lets_submit(user)
    }

    /// Whether a user administers the cluster.
    fn may_administer(&self, user: &str) -> bool {
        let _ = user;
        true
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
        user: &str,
    ) -> Result<(), ManagerRefusal>;
}
