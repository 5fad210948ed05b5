//! Verbs and flags of queues, priority classes and files of them.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::records::{ChangedRecords, DeletedRecords, NewRecords, RecordNames};

const NEW_PATHS: &str = "Paths: labels separated by `.`, as `prod.search`. All get the same settings";
const PATHS: &str = "Full paths. All are processed, also after an error";

/// `godel queue`.
#[derive(Clone, Debug, Subcommand)]
pub enum Queue {
    /// Create a queue below an existing queue, or at the top.
    #[command(mut_arg("names", |arg| arg.help(NEW_PATHS)))]
    Create(NewRecords<QueueSettings>),
    /// List queues with their usage: `used/guaranteed/max` and `+borrowed`.
    List,
    /// Show queues.
    #[command(mut_arg("names", |arg| arg.help(PATHS)))]
    Describe(RecordNames),
    /// Change queues; other settings stay.
    #[command(mut_arg("names", |arg| arg.help(PATHS)))]
    #[command(mut_arg("revision", |arg| arg.help("Fail unless the queue has this revision; 0: any")))]
    Set(ChangedRecords<QueueSettings>),
    /// Delete queues without units and without children.
    #[command(mut_arg("names", |arg| arg.help(PATHS)))]
    #[command(mut_arg("revision", |arg| arg.help("Fail unless the queue has this revision; 0: any")))]
    Delete(DeletedRecords),
}

/// Settings of a queue.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct QueueSettings {
    /// Guarantee, as `cpu=4,memory=8Gi,gpu=2`; `cpu-` removes one.
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE=QUANTITY")]
    pub min: Vec<String>,
    /// Maximum for the queue and the queues below it, as `cpu=8`; `cpu=0` allows none, `cpu-` removes the maximum.
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE=QUANTITY")]
    pub max: Vec<String>,
    /// Maximum number of running units of the queue and the queues below it; 0: no limit.
    #[arg(long, value_name = "N")]
    pub max_running_units: Option<u32>,
    /// Maximum for the running units of any one owner, as `cpu=8`; `cpu-` removes it.
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE=QUANTITY")]
    pub max_per_owner: Vec<String>,
    /// Share of each maximum that application masters of YARN may take together, as `0.1`; 0: no limit of their own.
    #[arg(long, value_name = "SHARE")]
    pub am_share: Option<String>,
    /// Share among siblings above their guarantees.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub weight: Option<u32>,
    /// Order of its units: fifo, priority, drf or fair-share.
    #[arg(long)]
    pub policy: Option<String>,
    /// Owners, principals and groups who may submit; replaces the previous list.
    #[arg(long = "submit-owner", value_delimiter = ',', value_name = "OWNER", conflicts_with = "any_owner")]
    pub submit_owners: Vec<String>,
    /// Clear the list of owners: the owners of the queue above may submit.
    #[arg(long)]
    pub any_owner: bool,
    /// Weights of owners for fair-share, as `ann=3`; `ann-` resets the weight to 1.
    #[arg(long = "owner-weight", value_delimiter = ',', value_name = "OWNER=N")]
    pub owner_weights: Vec<String>,
    /// Owner of the queue.
    #[arg(long)]
    pub owner: Option<String>,
    /// Labels `key=value`; `key-` removes one.
    #[arg(long = "label", value_delimiter = ',', value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
}

/// `godel priority-class`.
#[derive(Clone, Debug, Subcommand)]
pub enum PriorityClassVerb {
    /// Create a priority class.
    Create {
        /// Names (labels, as `gold`). All get the same settings.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Priority of units that have none of their own; higher wins.
        #[arg(long, allow_negative_numbers = true)]
        value: i32,
        /// Running units of the class are never preempted.
        #[arg(long)]
        not_preemptible: bool,
        /// Free text.
        #[arg(long, default_value = "")]
        description: String,
    },
    /// List priority classes, including built-in ones.
    List,
    /// Show priority classes.
    Describe(RecordNames),
    /// Change priority classes; other settings stay.
    Set {
        /// Full names. All are processed, also after an error.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Priority of units that have none of their own.
        #[arg(long, allow_negative_numbers = true)]
        value: Option<i32>,
        /// Whether running units of the class may be preempted.
        #[arg(long, value_name = "BOOL")]
        preemptible: Option<bool>,
        /// Free text.
        #[arg(long)]
        description: Option<String>,
        /// Fail unless the class has this revision; 0: any.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Delete priority classes that no unit names.
    #[command(mut_arg("revision", |arg| arg.help("Fail unless the class has this revision; 0: any")))]
    Delete(DeletedRecords),
}

/// `godel apply`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Apply {
    /// Files of queues, priority classes, disruption budgets, reservations and units (by `kind:`); `-` reads standard
    /// input.
    #[arg(long = "file", short = 'f', required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}
