//! What is asked of the adapter, what it answers, and why it refuses.

use std::sync::Arc;

use godel_core_yarn::{
    AppAcls, YarnUser,
    adapter::{AllocateAnswer, AllocatedContainer, AppSubmission, ClientRefusal, MasterRefusal},
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_domain::change_line::CallCause;
use godel_identity::permission::{Permission, Principal};

use crate::reports::{YarnAmount, YarnNodeReport};

/// What a client submits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmittedApp {
    /// What decides anything. Its queue is given as the client names it, `root.prod.search`, `search`, or empty for the default one:
    /// the adapter finds godel's queue.
    pub submission: AppSubmission,
    /// How its master is started: a `ContainerLaunchContextProto`, as the client sent it. Empty if it runs elsewhere.
    pub launch: Arc<[u8]>,
    /// Words for filters of lists.
    pub tags: Vec<String>,
}

/// What is known of who submits, beside the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppSubmitter {
    /// Groups of the user.
    pub groups: Vec<String>,
    /// What the user may do; `None`: nobody is judged.
    pub principal: Option<Arc<Principal>>,
    /// What the application allows others, as its launch context says.
    pub acls: AppAcls,
    /// The call as the change log names it, where the unit of the application does not say who submits it; `None`: it has no line of its own.
    pub cause: Option<CallCause>,
}

/// Who asks for a change of an application.
#[derive(Clone, Debug)]
pub struct AppCaller<'a> {
    /// What decides whether it may.
    pub user: YarnUser<'a>,
    /// The call as the change log names it; `None`: it has no line.
    pub cause: Option<CallCause>,
}

impl AppSubmitter {
    /// Who submits as `owner`.
    pub(crate) fn user<'a>(&'a self, owner: &'a str) -> YarnUser<'a> {
        match &self.principal {
            Some(principal) => YarnUser::judged(principal, &self.groups),
            None => YarnUser::believed(owner, &self.groups),
        }
    }
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
    pub updated_nodes: Vec<YarnNodeReport>,
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
    /// The permissions of the caller do not have that queue.
    #[error("{0}")]
    Denied(String),
    /// YARN's access controls do not let the caller do that.
    #[error("{0}")]
    NotAllowed(String),
    /// YARN's access controls do not let the caller use that queue.
    #[error("{0}")]
    QueueNotAllowed(String),
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

impl ManagerRefusal {
    /// What the caller lacks, as the change log says it; `None`: it is refused for another reason than who it is.
    pub fn lacks(&self) -> Option<Permission> {
        match self {
            Self::Denied(_) | Self::QueueNotAllowed(_) => Some(Permission::Queue),
            Self::NotAllowed(_) => Some(Permission::Owner),
            Self::NoApplication(_)
            | Self::NoAttempt(_)
            | Self::NoContainer(_)
            | Self::NoQueue(_)
            | Self::Taken(_)
            | Self::Invalid(_)
            | Self::Master(_)
            | Self::Standby(_)
            | Self::Unavailable(_) => None,
        }
    }
}

impl From<ClientRefusal> for ManagerRefusal {
    fn from(refusal: ClientRefusal) -> Self {
        match refusal {
            ClientRefusal::NoApplication(id) => Self::NoApplication(id),
            ClientRefusal::Taken(id) => Self::Taken(id),
        }
    }
}

/// Where a master has its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchNode {
    /// Name of the node in godel.
    pub name: String,
    /// The host under which masters reach the node.
    pub host: String,
    /// Port of the node for containers (attribute `godel.dev/yarn-port`).
    pub port: u16,
}

/// The running unit that a master is: field 7001 of its container token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchUnit {
    /// Id of the unit.
    pub unit_id: u64,
    /// Ordinal within the unit.
    pub ordinal: u32,
    /// Incarnation of the ordinal.
    pub incarnation: u32,
}

/// A master that is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterLaunch {
    /// Its attempt.
    pub attempt: YarnAttemptId,
    /// Its container.
    pub container: YarnContainerId,
    /// Its node.
    pub node: LaunchNode,
    /// Its running unit.
    pub unit: LaunchUnit,
    /// What it has there.
    pub amount: YarnAmount,
    /// Who submitted the application.
    pub user: String,
    /// Queue of the application, as YARN names it.
    pub queue: String,
    /// A `ContainerLaunchContextProto`, as the client sent it.
    pub launch: Arc<[u8]>,
    /// When the application was submitted, Unix milliseconds.
    pub submit_ms: i64,
    /// Attempts that the application has at most.
    pub max_attempts: u32,
}

/// Why a master was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchRefusal {
    /// The node does not answer, or not yet; the same call may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// The node refuses, and would again: the attempt has failed.
    #[error("{0}")]
    Refused(String),
    /// No node can start it: the application has failed.
    #[error("{0}")]
    Hopeless(String),
}
