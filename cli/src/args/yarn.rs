//! `godel yarn`: verbs and flags.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// What is read, and what it is imported for.
#[derive(Clone, Debug, ClapArgs)]
pub struct YarnImportArgs {
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

/// Which applications are listed.
#[derive(Clone, Debug, ClapArgs)]
pub struct YarnAppList {
    /// Only applications in these states: new, new-saving, submitted, accepted, running, finished, failed or killed.
    #[arg(long = "state", value_delimiter = ',', value_name = "STATE")]
    pub states: Vec<String>,
    /// Only applications of these users.
    #[arg(long = "user", value_delimiter = ',', value_name = "USER")]
    pub users: Vec<String>,
    /// Only applications of these queues, by whole path or last name.
    #[arg(long = "queue", value_delimiter = ',', value_name = "QUEUE")]
    pub queues: Vec<String>,
    /// Only applications of these kinds, as `spark`.
    #[arg(long = "kind", value_delimiter = ',', value_name = "KIND")]
    pub kinds: Vec<String>,
    /// Only applications with any of these tags.
    #[arg(long = "tag", value_delimiter = ',', value_name = "TAG")]
    pub tags: Vec<String>,
    /// Only applications of this name.
    #[arg(long, default_value = "")]
    pub name: String,
    /// Maximum number of applications.
    #[arg(long, default_value_t = 1_000)]
    pub limit: usize,
}

/// `godel yarn app`.
#[derive(Clone, Debug, Subcommand)]
pub enum YarnApp {
    /// List applications, the newest first.
    List(YarnAppList),
    /// Show applications with their attempts.
    Describe {
        /// Ids, as application_1700000000000_0001.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// End applications. A master that is running is stopped with all its containers.
    Kill {
        /// Ids, as application_1700000000000_0001.
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Who ends them, with the rights of that user. Default: you.
        #[arg(long)]
        user: Option<String>,
        /// Reason, shown to users.
        #[arg(long, default_value = "")]
        reason: String,
    },
}

/// `godel yarn queue`.
#[derive(Clone, Debug, Subcommand)]
pub enum YarnQueueVerb {
    /// List queues as YARN sees them, in percentages of what is above them.
    List,
}

/// `godel yarn`.
#[derive(Clone, Debug, Subcommand)]
pub enum Yarn {
    /// Manage applications that clients of YARN have submitted. Needs a running YARN adapter.
    #[command(subcommand)]
    App(YarnApp),
    /// Show queues as clients of YARN see them. Needs a running YARN adapter.
    #[command(subcommand)]
    Queue(YarnQueueVerb),
    /// Create or change queues as the CapacityScheduler's configuration says, all together or not at all. Queues that it
    /// does not name stay.
    ImportQueues {
        /// What is read.
        #[command(flatten)]
        queues: YarnImportArgs,
        /// Print the queues as a file for `godel apply`, and change nothing.
        #[arg(long)]
        dry_run: bool,
        /// Also name `yarn-simple:USER` for each user in lists of queues: users of YARN who show no token.
        #[arg(long)]
        simple_users: bool,
    },
    /// Show for each property of YARN's configuration what godel makes of it: mapped, approximated or unsupported, with the
    /// effect.
    Preflight {
        /// What is read.
        #[command(flatten)]
        queues: YarnImportArgs,
    },
}
