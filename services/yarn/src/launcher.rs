//! How the adapter starts and stops application masters on their nodes.
//!
//! The adapter decides when; a [`Launcher`] makes the tokens and calls the node. Starting a master twice does nothing, so that an
//! adapter that has started again asks once more.

use godel_core_yarn_leader::{LaunchRefusal, MasterLaunch};
use tonic::async_trait;

/// Starts and stops masters.
#[async_trait]
pub trait Launcher: Send + Sync + std::fmt::Debug {
    /// Has a node start a master; one that it has started already is left alone.
    async fn launch(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal>;

    /// Has a node stop a master, and give its place back if it was never started. One that is not there any more is stopped.
    async fn stop(&self, launch: MasterLaunch) -> Result<(), LaunchRefusal>;
}
