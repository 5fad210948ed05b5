//! How the adapter starts and stops application masters on their nodes.
//!
//! The adapter decides when; a [`Launcher`] makes the tokens and calls the node. Starting a master twice does nothing, so that an
//! adapter that has started again asks once more.

use bytes::Bytes;
use godel_core_yarn::ids::{YarnAttemptId, YarnContainerId};
use tonic::async_trait;

use crate::reports::YarnAmount;

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
    pub launch: Bytes,
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

/// Starts and stops masters.
#[async_trait]
pub trait Launcher: Send + Sync + std::fmt::Debug {
    /// Has a node start a master; one that it has started already is left alone.
    async fn launch(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal>;

    /// Has a node stop a master, and give its place back if it was never started. One that is not there any more is stopped.
    async fn stop(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal>;
}
