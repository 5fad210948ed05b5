//! `godel node`.

use clap::{Args as ClapArgs, Subcommand};

use super::pair;

/// Nodes by name or by label.
#[derive(Clone, Debug, ClapArgs)]
pub struct Nodes {
    /// Names, or unique prefixes of names or uids.
    pub names: Vec<String>,
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
    /// Show one node and what runs there.
    Describe {
        /// Name, or a unique prefix of name or uid.
        name: String,
    },
    /// No new placements.
    Cordon(Nodes),
    /// New placements again.
    Uncordon(Nodes),
    /// Set labels (`key=value`) or remove them (`key-`).
    Label {
        /// Name, or a unique prefix of name or uid.
        name: String,
        /// `key=value` or `key-`.
        #[arg(required = true)]
        changes: Vec<String>,
    },
    /// Set taints (`key[=value]:no-schedule`) or remove them (`key-`).
    Taint {
        /// Name, or a unique prefix of name or uid.
        name: String,
        /// `key[=value]:effect` or `key-`.
        #[arg(required = true)]
        changes: Vec<String>,
    },
    /// Evict from lost nodes again, after so many were lost at once that evictions paused.
    ResumeEvictions,
    /// Delete the record of a node on which nothing runs.
    Delete {
        /// Its full name.
        name: String,
    },
}
