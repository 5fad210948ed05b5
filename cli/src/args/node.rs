//! `godel node`.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

use super::pair;

/// Nodes by name or by label.
#[derive(Clone, Debug, ClapArgs)]
pub struct Nodes {
    /// Whole names or uids. Each is tried.
    pub names: Vec<String>,
    /// Every node with these labels, as `zone=a,rack=r1`.
    #[arg(long, short = 'l', value_delimiter = ',', value_parser = pair)]
    pub selector: Vec<(String, String)>,
}

/// `godel node drain`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Drain {
    /// Which nodes.
    #[command(flatten)]
    pub nodes: Nodes,
    /// After this they all go, whatever their units lose by it.
    #[arg(long, value_parser = godel_domain::duration::parse_whole)]
    pub deadline: Option<Duration>,
    /// They all go at once: a deadline of 0.
    #[arg(long, conflicts_with = "deadline")]
    pub force: bool,
    /// Wait until the nodes are empty.
    #[arg(long)]
    pub wait: bool,
    /// Give up waiting after this; the drain goes on.
    #[arg(long, default_value = "15m", value_parser = godel_domain::duration::parse_whole)]
    pub timeout: Duration,
}

/// `godel node label` and `godel node taint`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Changes {
    /// Whole names or uids; then the changes. A name that looks like a change (`a-`, `a=b`)
    /// is none.
    #[arg(required = true)]
    pub words: Vec<String>,
    /// Every node with these labels, as `zone=a,rack=r1`.
    #[arg(long, short = 'l', value_delimiter = ',', value_parser = pair)]
    pub selector: Vec<(String, String)>,
}

/// `godel node`.
#[derive(Clone, Debug, Subcommand)]
pub enum Node {
    /// List nodes.
    List {
        /// Only those with these labels, as `zone=a,rack=r1`.
        #[arg(long, short = 'l', value_delimiter = ',', value_parser = pair)]
        selector: Vec<(String, String)>,
    },
    /// Show nodes and what runs there. With `-o json` one node is an object, several are an array.
    Describe {
        /// Names, or unique prefixes of names or uids.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// No new placements.
    Cordon(Nodes),
    /// New placements again.
    Uncordon(Nodes),
    /// Make running units leave as their units can spare them; no new placements.
    Drain(Drain),
    /// End a drain: what has not left yet stays, new placements come again unless the node is cordoned.
    Undrain(Nodes),
    /// Set labels (`key=value`) or remove them (`key-`).
    Label(Changes),
    /// Set taints (`key[=value]:no-schedule`, `:prefer-no-schedule` or `:no-execute`) or remove them (`key-`). What does not
    /// tolerate a taint of effect no-execute leaves the node.
    Taint(Changes),
    /// Evict from lost nodes again, after so many were lost at once that evictions paused.
    ResumeEvictions,
    /// Delete the records of nodes on which nothing runs.
    Delete {
        /// Whole names or uids. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}
