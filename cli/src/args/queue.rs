//! Verbs and flags of queues, priority classes and files of them.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// `godel queue`.
#[derive(Clone, Debug, Subcommand)]
pub enum Queue {
    /// Create a queue below one that exists, or at the top.
    Create {
        /// Path: labels with `.` between them, as `prod.search`. Each of several gets the same.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// What it has.
        #[command(flatten)]
        settings: Settings,
    },
    /// List queues with what they use: `used/guaranteed/max` and `+borrowed`.
    List,
    /// Show one queue.
    Describe {
        /// Paths, whole. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Change a queue: what is not named stays as it is.
    Set {
        /// Paths, whole. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// What changes.
        #[command(flatten)]
        settings: Settings,
        /// Only if the queue has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Delete queues that no unit names and nothing is below.
    Delete {
        /// Paths, whole. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Only if the queue has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
}

/// What a queue has.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Settings {
    /// Guaranteed, as `cpu=4,memory=8Gi,gpu=2`; `cpu-` takes it away.
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE=QUANTITY")]
    pub min: Vec<String>,
    /// Most it may use with those below it, as `cpu=8`; `cpu=0` allows none, `cpu-` any.
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE=QUANTITY")]
    pub max: Vec<String>,
    /// Most running units of it and those below it; 0 for no limit.
    #[arg(long, value_name = "N")]
    pub max_running_units: Option<u32>,
    /// Share among its siblings above their guarantees.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub weight: Option<u32>,
    /// Order of its units: fifo, priority, drf or fair-share.
    #[arg(long)]
    pub policy: Option<String>,
    /// Owners who may submit, instead of those named before.
    #[arg(long = "submit-owner", value_delimiter = ',', value_name = "OWNER", conflicts_with = "any_owner")]
    pub submit_owners: Vec<String>,
    /// Whoever may submit above it may submit here.
    #[arg(long)]
    pub any_owner: bool,
    /// Under fair-share, what owners weigh beside each other, as `ann=3`; `ann-` makes it 1 again.
    #[arg(long = "owner-weight", value_delimiter = ',', value_name = "OWNER=N")]
    pub owner_weights: Vec<String>,
    /// Who runs it.
    #[arg(long)]
    pub owner: Option<String>,
    /// Labels `key=value`; `key-` removes one.
    #[arg(long = "label", value_delimiter = ',', value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
}

/// `godel priority-class`.
#[derive(Clone, Debug, Subcommand)]
pub enum PriorityClass {
    /// Create a priority class.
    Create {
        /// A label, as `gold`. Each of several gets the same.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Priority of units that have none of their own; higher wins.
        #[arg(long, allow_negative_numbers = true)]
        value: i32,
        /// Its running units are never made to leave for others.
        #[arg(long)]
        not_preemptible: bool,
        /// Free text.
        #[arg(long, default_value = "")]
        description: String,
    },
    /// List priority classes, built-in ones too.
    List,
    /// Show one priority class.
    Describe {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Change a priority class: what is not named stays as it is.
    Set {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Priority of units that have none of their own.
        #[arg(long, allow_negative_numbers = true)]
        value: Option<i32>,
        /// Whether its running units may be made to leave for others.
        #[arg(long, value_name = "BOOL")]
        preemptible: Option<bool>,
        /// Free text.
        #[arg(long)]
        description: Option<String>,
        /// Only if the class has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Delete priority classes that no unit names.
    Delete {
        /// Whole names. Each is tried.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Only if the class has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
}

/// `godel apply`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Apply {
    /// Files of queues, priority classes, disruption budgets, reservations and units (`kind:` says which); `-` reads standard input.
    #[arg(long = "file", short = 'f', required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}
