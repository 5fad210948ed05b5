//! `godel unit`: verbs and flags.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand};
use godel_domain::duration;

use godel_client::unit_file::{Submit, pair};

/// Which units, to look at.
#[derive(Clone, Debug, ClapArgs)]
pub struct Which {
    /// Names, uids, or unique prefixes; `namespace/name` works too.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Namespace.
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
}

/// Namespace and name.
pub fn split<'a>(namespace: &'a str, name: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((namespace, name))
}

/// Which units, to be changed.
#[derive(Clone, Debug, ClapArgs)]
pub struct Named {
    /// Whole names or uids; `namespace/name` works too. Each is tried.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Namespace.
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
    /// Only if the unit has this revision.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// `godel unit stop`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Stop {
    /// Whole names or uids, then ordinals or ranges of them, as `web 0 3-5`. A second name that looks like an ordinal is
    /// none; `namespace/name` works too.
    #[arg(required = true, value_name = "NAME|ORDINAL")]
    pub words: Vec<String>,
    /// Namespace.
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
    /// Only if the unit has this revision.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// `godel unit scale`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Scale {
    /// Which units.
    #[command(flatten)]
    pub units: Named,
    /// Wanted.
    #[arg(long)]
    pub replicas: u32,
    /// Which task group; default the only one.
    #[arg(long, default_value = "")]
    pub group: String,
}

/// `godel unit delete`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Delete {
    /// Which units.
    #[command(flatten)]
    pub units: Named,
    /// Cancel those that have not ended, and wait until they have.
    #[arg(long)]
    pub cancel: bool,
    /// Wait until those that have not ended have.
    #[arg(long)]
    pub wait: bool,
    /// Give up waiting for one after this.
    #[arg(long, default_value = "60s", value_parser = duration::parse_whole)]
    pub timeout: Duration,
}

/// `godel unit`.
#[derive(Clone, Debug, Subcommand)]
pub enum Unit {
    /// Submit units from files, or one from flags.
    Submit(Box<Submit>),
    /// Check unit files; needs no server.
    Validate {
        /// Unit files; `-` reads standard input.
        #[arg(long = "file", short = 'f', required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List units.
    List {
        /// Only this namespace.
        #[arg(long, short = 'n')]
        namespace: Option<String>,
        /// Only units in this phase.
        #[arg(long, value_name = "PHASE")]
        phase: Option<String>,
        /// Only those with these labels, as `app=web`.
        #[arg(long, short = 'l', value_delimiter = ',', value_parser = pair)]
        selector: Vec<(String, String)>,
        /// At most so many.
        #[arg(long, default_value_t = 10_000)]
        limit: usize,
    },
    /// Show units, where they run, or why nowhere. With `-o json` one unit is an object, several are an array.
    Describe(Which),
    /// Say what would become of units if they were submitted now; nothing is changed.
    Plan(Box<Submit>),
    /// Cancel units: what waits goes, what runs is stopped.
    Cancel(Named),
    /// Suspend units: what runs is stopped, the record stays, their queue has its quota back.
    Suspend(Named),
    /// Resume suspended units: they are queued again, with the ordinals that they had.
    Resume(Named),
    /// Stop single running units for good: the unit has so many replicas less, their ordinals are never used again.
    Stop(Stop),
    /// Change the replicas of a task group.
    Scale(Scale),
    /// Delete the records of units that have ended: their names are free at once.
    Delete(Delete),
    /// Print each change as it commits, until interrupted. It goes on after a change of leader.
    Watch {
        /// Names, or unique prefixes; all units without any.
        names: Vec<String>,
        /// Namespace.
        #[arg(long, short = 'n', default_value = "")]
        namespace: String,
        /// Stop after so many lines.
        #[arg(long)]
        count: Option<usize>,
    },
    /// Wait for a condition of each unit, and say how it came. Exit code 1: it can no more come, or, of `finished`, the
    /// unit failed or was cancelled; 4: there is no such unit (any more); 6: not in time.
    Wait {
        /// Whole names or uids; `namespace/name` works too.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Namespace.
        #[arg(long, short = 'n', default_value = "default")]
        namespace: String,
        /// `phase=NAME[,NAME]`, `bound` (every replica), `finished` (completed; fails if it ends otherwise), or `deleted`.
        #[arg(long = "for", value_name = "CONDITION")]
        condition: String,
        /// Give up after this.
        #[arg(long, default_value = "60s", value_parser = duration::parse_whole)]
        timeout: Duration,
    },
}
