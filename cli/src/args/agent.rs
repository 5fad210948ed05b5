//! Verbs of `godel agent` about the node of this machine.

use std::{path::PathBuf, time::Duration};

use clap::Args as ClapArgs;
use godel_base::duration;

use super::Layers;

/// `godel agent leave`.
#[derive(Clone, Debug, ClapArgs)]
pub struct LeaveArgs {
    /// Which node.
    #[command(flatten)]
    pub node: OwnNode,
    /// Drain the node first, and wait until it is empty.
    #[arg(long)]
    pub drain: bool,
    /// After this time of the drain evict all running units, whatever their units can spare.
    #[arg(long, requires = "drain", value_parser = duration::parse_whole)]
    pub deadline: Option<Duration>,
    /// Evict all running units at once, and wait until they have ended.
    #[arg(long, conflicts_with = "drain")]
    pub force: bool,
    /// Stop waiting after this time. The node then stays, and stays drained.
    #[arg(long, default_value = "15m", value_parser = duration::parse_whole)]
    pub timeout: Duration,
}

/// Which node this machine is: the flags with which its agent runs.
#[derive(Clone, Debug, ClapArgs)]
pub struct OwnNode {
    /// Name of this machine's node. Default: the host name.
    #[arg(long)]
    pub name: Option<String>,
    /// State directory of the agent.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration layers below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel agent notice`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Notice {
    /// Which node.
    #[command(flatten)]
    pub node: OwnNode,
    /// Reason, shown to users.
    #[arg(long, default_value = "notice")]
    pub reason: String,
    /// Time until the machine may be gone. Running units that are left then are evicted, whatever their units can
    /// spare.
    #[arg(long, value_parser = duration::parse_whole)]
    pub deadline: Duration,
}
