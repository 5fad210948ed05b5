//! `godel reschedule`: verbs and flags.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// Which movements are listed.
#[derive(Clone, Debug, ClapArgs)]
pub struct MovementList {
    /// Only movements of this policy.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "POLICY")]
    pub policy: String,
    /// Maximum number of movements.
    #[arg(long, default_value_t = 100)]
    pub limit: usize,
}

/// `godel reschedule movements`.
#[derive(Clone, Debug, Subcommand)]
pub enum Movements {
    /// List movements, the newest first.
    List(MovementList),
    /// Show movements with each of their moves: where the running unit was, where it was to go, where it is, and why.
    Describe {
        /// Names, as `pack-7`.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// End movements: moves that have begun run to their end, and no other one is made.
    Abort {
        /// Names, as `pack-7`.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Reason, shown to users.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
    },
}

/// `godel reschedule make-room`.
#[derive(Clone, Debug, ClapArgs)]
pub struct MakeRoom {
    /// Name of the unit, or `namespace/name`.
    #[arg(value_name = "UNIT")]
    pub name: String,
    /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Only show the moves.
    #[arg(long)]
    pub dry_run: bool,
}

/// `godel reschedule`.
#[derive(Clone, Debug, Subcommand)]
pub enum Reschedule {
    /// List the policies of the configuration, with when each ran last and runs next.
    Policies,
    /// Show what a policy would move now, in which batches and why, with its objective before and after. Nothing is moved.
    Plan {
        /// Name of the policy. It need not be enabled.
        #[arg(value_name = "POLICY")]
        name: String,
    },
    /// Run a policy now, whatever its triggers say.
    Run {
        /// Name of the policy.
        #[arg(value_name = "POLICY")]
        name: String,
    },
    /// Move running units so that a waiting gang gets in, as few and as cheap ones as are found.
    MakeRoom(MakeRoom),
    /// Show what the rescheduler does, why it does nothing, and what is wrong with its configuration.
    Status,
    /// Show and end movements: runs of policies that move something.
    #[command(subcommand)]
    Movements(Movements),
    /// Report how much units talk to one another, for co-location. Pairs that are not in the file stay as they are; a pair with
    /// weight 0 is forgotten.
    Traffic {
        /// File with a pair a line: two units, as `web` or `namespace/web`, and a weight, as `web shop/orders 12.5`. `-`: standard input.
        #[arg(long, short = 'f', value_name = "FILE")]
        file: PathBuf,
    },
}
