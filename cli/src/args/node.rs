//! `godel node`.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

use super::label_pair;

/// Nodes by name or by label.
#[derive(Clone, Debug, ClapArgs)]
pub struct NamedNodes {
    /// Full names or uids. All are processed, also after an error.
    pub names: Vec<String>,
    /// Every node with these labels, as `zone=a,rack=r1`.
    #[arg(long, short = 'l', value_delimiter = ',', value_parser = label_pair)]
    pub selector: Vec<(String, String)>,
}

/// `godel node drain`.
#[derive(Clone, Debug, ClapArgs)]
pub struct DrainArgs {
    /// The nodes.
    #[command(flatten)]
    pub nodes: NamedNodes,
    /// After this time evict all running units, whatever their units can spare.
    #[arg(long, value_parser = godel_base::duration::parse_whole)]
    pub deadline: Option<Duration>,
    /// Evict all running units at once: a deadline of 0.
    #[arg(long, conflicts_with = "deadline")]
    pub force: bool,
    /// Wait until the nodes are empty.
    #[arg(long)]
    pub wait: bool,
    /// Stop waiting after this time; the drain continues.
    #[arg(long, default_value = "15m", value_parser = godel_base::duration::parse_whole)]
    pub timeout: Duration,
}

/// `godel node notice`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Notice {
    /// The nodes.
    #[command(flatten)]
    pub nodes: NamedNodes,
    /// Reason, shown to users.
    #[arg(long, default_value = "notice")]
    pub reason: String,
    /// Time until the machine may be gone. Running units that are left then are evicted, whatever their units can
    /// spare.
    #[arg(long, value_parser = godel_base::duration::parse_whole)]
    pub deadline: Duration,
}

/// `godel node label` and `godel node taint`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Changes {
    /// Full names or uids, then the changes. Words like `a-` and `a=b` are changes, not names.
    #[arg(required = true)]
    pub words: Vec<String>,
    /// Every node with these labels, as `zone=a,rack=r1`.
    #[arg(long, short = 'l', value_delimiter = ',', value_parser = label_pair)]
    pub selector: Vec<(String, String)>,
}

/// `godel node`.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeVerb {
    /// List nodes.
    List {
        /// Only nodes with these labels, as `zone=a,rack=r1`.
        #[arg(long, short = 'l', value_delimiter = ',', value_parser = label_pair)]
        selector: Vec<(String, String)>,
    },
    /// Show nodes and their running units. With `-o json` one node is an object, several are an array.
    Describe {
        /// Names, or unique prefixes of names or uids.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Cordon nodes: no new placements.
    Cordon(NamedNodes),
    /// Uncordon nodes: allow new placements again.
    Uncordon(NamedNodes),
    /// Drain nodes: evict running units as their units can spare them, and block new placements.
    Drain(DrainArgs),
    /// Give notice that the machines of nodes go away, as spot machines that are reclaimed: drain them until the deadline.
    Notice(Notice),
    /// End a drain, and a notice: the remaining running units stay, and new placements are allowed again unless the node is cordoned.
    Undrain(NamedNodes),
    /// Set labels (`key=value`) or remove them (`key-`).
    Label(Changes),
    /// Set taints (`key[=value]:no-schedule`, `:prefer-no-schedule` or `:no-execute`) or remove them (`key-`). A taint
    /// of effect no-execute evicts running units that do not tolerate it.
    Taint(Changes),
    /// Create a token with which an agent joins the cluster, and say what to run on its machine.
    #[command(after_help = super::identity::JOIN_NODE)]
    JoinToken(super::identity::NodeJoinToken),
    /// Resume evictions from lost nodes after the brake has stopped them.
    ResumeEvictions,
    /// Delete the records of nodes on which nothing runs.
    Delete {
        /// Full names or uids. All are processed, also after an error.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}
