//! `godel top`: verbs and flags.

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use godel_client::unit_file::label_pair;

/// What to order lines by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Most CPU first.
    #[default]
    Cpu,
    /// Most memory first.
    Memory,
    /// By name.
    Name,
}

/// `godel top node`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TopNode {
    /// Names of nodes. Default: all nodes.
    pub names: Vec<String>,
    /// Only nodes with these labels, as `zone=a`.
    #[arg(long, short = 'l', value_delimiter = ',', value_parser = label_pair)]
    pub selector: Vec<(String, String)>,
    /// Order of the lines.
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// Maximum number of lines.
    #[arg(long, default_value_t = 10_000)]
    pub limit: usize,
}

/// `godel top unit`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TopUnit {
    /// Names of units, or `namespace/name`. Default: all units that run on nodes which measure it.
    pub names: Vec<String>,
    /// Only this namespace; that of names without one.
    #[arg(long, short = 'n')]
    pub namespace: Option<String>,
    /// A line for each replica.
    #[arg(long, short = 'r')]
    pub replicas: bool,
    /// Order of the lines.
    #[arg(long, value_enum, default_value_t)]
    pub sort: Sort,
    /// Maximum number of lines.
    #[arg(long, default_value_t = 10_000)]
    pub limit: usize,
}

/// `godel top`.
#[derive(Clone, Debug, Subcommand)]
pub enum Top {
    /// Show CPU and memory of nodes: used now, as a share of what running units may have, and the 95th percentile of the last
    /// 5 minutes.
    Node(TopNode),
    /// Show CPU and memory of units or their replicas, where agents measure them: on nodes that run processes, with control groups.
    Unit(TopUnit),
}
