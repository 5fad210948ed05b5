//! `godel yarn`: verbs and flags.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// What is read, and what it is imported for.
#[derive(Clone, Debug, ClapArgs)]
pub struct YarnQueues {
    /// Directory with `capacity-scheduler.xml` and, if there is one, `yarn-site.xml`; or one such file.
    #[arg(long, value_name = "DIR")]
    pub conf: PathBuf,
    /// Path of the queue that stands for YARN's `root`. Default: the queues below `root` are queues at the top.
    #[arg(long, value_name = "PATH")]
    pub under: Option<String>,
    /// What YARN's queues have together, as `cpu=100,memory=400Gi`: 100 per cent. Default: what all nodes have now.
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE=QUANTITY")]
    pub total: Vec<String>,
}

/// `godel yarn`.
#[derive(Clone, Debug, Subcommand)]
pub enum Yarn {
    /// Create or change queues as the CapacityScheduler's configuration says, all together or not at all. Queues that it
    /// does not name stay.
    ImportQueues {
        /// What is read.
        #[command(flatten)]
        queues: YarnQueues,
        /// Print the queues as a file for `godel apply`, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Show for each property of YARN's configuration what godel makes of it: mapped, approximated or unsupported, with the
    /// effect.
    Preflight {
        /// What is read.
        #[command(flatten)]
        queues: YarnQueues,
    },
}
