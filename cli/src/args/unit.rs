//! `godel unit`: verbs and flags.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use godel_base::duration;

use godel_client::unit_file::{Submit, label_pair, parse_time};

/// Units to show.
#[derive(Clone, Debug, ClapArgs)]
pub struct WhichUnits {
    /// Names, uids, or unique prefixes; `namespace/name` works too.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
    pub namespace: String,
}

/// Namespace and name.
pub fn split<'a>(namespace: &'a str, name: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((namespace, name))
}

/// Units to change.
#[derive(Clone, Debug, ClapArgs)]
pub struct NamedUnits {
    /// Full names or uids, or `namespace/name`. All are processed, also after an error.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Fail unless the unit has this revision; 0: any.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// `godel unit stop`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Stop {
    /// Full names or uids, or `namespace/name`, then ordinals or ranges of them, as `web 0 3-5`. Words after the first
    /// name that look like ordinals are ordinals.
    #[arg(required = true, value_name = "NAME|ORDINAL")]
    pub words: Vec<String>,
    /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Fail unless the unit has this revision; 0: any.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// `godel unit scale`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ScaleArgs {
    /// The units.
    #[command(flatten)]
    pub units: NamedUnits,
    /// The new number of replicas.
    #[arg(long)]
    pub replicas: u32,
    /// Name of the task group. Default: the only group.
    #[arg(long, default_value = "")]
    pub group: String,
}

/// `godel unit move`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Move {
    /// The units.
    #[command(flatten)]
    pub units: NamedUnits,
    /// Path of the queue.
    #[arg(long)]
    pub queue: String,
}

/// `godel unit edit`.
#[derive(Clone, Debug, ClapArgs)]
pub struct EditArgs {
    /// Full name or uid, or `namespace/name`.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Unit file to take instead of an editor; `-` reads standard input.
    #[arg(long, short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Do not ask.
    #[arg(long, short = 'y')]
    pub yes: bool,
    /// Fail unless the unit has this revision; 0: any.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// `godel unit retry`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Retry {
    /// The units.
    #[command(flatten)]
    pub units: NamedUnits,
    /// Run replicas again too that have succeeded.
    #[arg(long)]
    pub all: bool,
    /// Run only these replicas again, as 0 or 3-5, also while the unit goes on.
    #[arg(long, value_name = "ORDINALS", conflicts_with = "all")]
    pub replicas: Vec<String>,
}

/// `godel unit delete`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Delete {
    /// The units.
    #[command(flatten)]
    pub units: NamedUnits,
    /// Cancel units that have not ended, and wait for their end.
    #[arg(long)]
    pub cancel: bool,
    /// Wait for the end of units that have not ended.
    #[arg(long)]
    pub wait: bool,
    /// Timeout of the wait for each unit.
    #[arg(long, default_value = "60s", value_parser = duration::parse_whole)]
    pub timeout: Duration,
}

/// `godel unit logs`.
#[derive(Clone, Debug, ClapArgs)]
pub struct LogsArgs {
    /// The unit, by name, uid or unique prefix, and an ordinal: `web/0`, `team/web/0` in namespace `team`. Without an ordinal the
    /// logs of all replicas are printed, each line behind the ordinal of its replica if there are several.
    #[arg(value_name = "NAME[/ORDINAL]")]
    pub name: String,
    /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Go on with what is written later, until the running unit is over.
    #[arg(long, short = 'f', conflicts_with = "previous")]
    pub follow: bool,
    /// Print the log of the incarnation before the current one.
    #[arg(long, short = 'p')]
    pub previous: bool,
    /// Print the last lines only, so many. Default: all that is kept.
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u64>,
}

/// `godel unit checkpoint`.
#[derive(Clone, Debug, ClapArgs)]
pub struct CheckpointArgs {
    /// The unit and an ordinal: `train/0`, `team/train/0` in namespace `team`. Without an ordinal all replicas that run are meant.
    #[arg(value_name = "NAME[/ORDINAL]")]
    pub name: String,
    /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
    pub namespace: String,
    /// Only replicas of this task group.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub group: String,
    /// When the work was saved: how long ago, as `90s`, or a time, as `2030-01-31T12:00:00Z`. Default: now.
    #[arg(long, value_name = "AGO|TIME", value_parser = moment)]
    pub at: Option<Moment>,
}

/// A moment, as people say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So many milliseconds ago.
    Ago(u64),
    /// A time, Unix milliseconds.
    Time(i64),
}

fn moment(text: &str) -> Result<Moment, String> {
    let ago = duration::parse_ms(text).map(Moment::Ago).ok();
    let moment = ago.or_else(|| parse_time(text).map(Moment::Time).ok());
    moment.ok_or_else(|| {
        format!("`{text}` is neither a duration such as `90s` nor a time such as `2030-01-31T12:00:00Z`")
    })
}

/// `godel unit list`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ListArgs {
    /// Only this namespace.
    #[arg(long, short = 'n')]
    pub namespace: Option<String>,
    /// Only units in this phase.
    #[arg(long, value_name = "PHASE")]
    pub phase: Option<String>,
    /// Only units of this queue and the queues below it.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub queue: String,
    /// Only units of this owner.
    #[arg(long, default_value = "")]
    pub owner: String,
    /// Only units of which a running unit is on this node.
    #[arg(long, default_value = "")]
    pub node: String,
    /// Only units of this workload class.
    #[arg(long)]
    pub class: Option<String>,
    /// Only units with these labels, as `app=web`.
    #[arg(long, short = 'l', value_delimiter = ',', value_parser = label_pair)]
    pub selector: Vec<(String, String)>,
    /// Order of the units.
    #[arg(long, value_enum, default_value_t)]
    pub sort: SortKey,
    /// Maximum number of units.
    #[arg(long, default_value_t = 10_000)]
    pub limit: usize,
}

/// Orders of units; units that are equal in it are in order of namespace and name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// By namespace and name.
    #[default]
    Name,
    /// The newest first.
    Age,
    /// By phase, waiting ones first.
    Phase,
    /// The highest priority first.
    Priority,
    /// By path of the queue.
    Queue,
    /// By owner.
    Owner,
    /// The largest first.
    Replicas,
}

/// `godel unit`.
#[derive(Clone, Debug, Subcommand)]
pub enum UnitVerb {
    /// Submit units from files, or one from flags.
    Submit(Box<Submit>),
    /// Check unit files; needs no server.
    Validate {
        /// Unit files; `-` reads standard input.
        #[arg(long = "file", short = 'f', required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List units.
    List(ListArgs),
    /// Show units with the nodes of their running units, or the reasons why they wait. With `-o json` one unit is an
    /// object, several are an array. `-o yaml` prints their unit files, which can be submitted elsewhere.
    Describe(WhichUnits),
    /// Show the result of submitting units now; changes nothing.
    Plan(Box<Submit>),
    /// Cancel units: pending running units are dropped, the others are stopped.
    Cancel(NamedUnits),
    /// Suspend units: stop their running units and free their queue usage; the records stay.
    Suspend(NamedUnits),
    /// Resume suspended units: queue them again with the same ordinals.
    Resume(NamedUnits),
    /// Stop single running units for good: the number of replicas decreases, and their ordinals are never used again.
    Stop(Stop),
    /// Change the replicas of a task group.
    Scale(ScaleArgs),
    /// Move units to another queue, running or not: what runs of them goes on, and counts in that queue, which must take them and
    /// have room for what runs.
    Move(Move),
    /// Change a unit: open its file in `$VISUAL` or `$EDITOR`, show what differs, and ask. With `-f` a file is taken as it
    /// is. Fails if somebody else changes the unit meanwhile.
    Edit(EditArgs),
    /// Run ended units again: replicas that have failed or were stopped return as their next incarnations.
    Retry(Retry),
    /// Delete the records of ended units: their names are free at once.
    Delete(Delete),
    /// Print what running units have written to standard output and standard error. Restarts in place write to one log; a replica that
    /// was placed again has a new one. Logs of ended running units are kept as long as their unit.
    Logs(LogsArgs),
    /// Report that running units have saved their work: a move of them loses what they did since. Programs report each of their
    /// checkpoints, as `godel unit checkpoint $GODEL_UNIT/$GODEL_ORDINAL`.
    Checkpoint(CheckpointArgs),
    /// Print each change as it commits, until interrupted. The watch continues after a change of leader.
    Watch {
        /// Names or unique prefixes. Default: all units.
        names: Vec<String>,
        /// Namespace. Default: with names that of your principal (`godel whoami`) or `default`, without all that you may see.
        #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
        namespace: String,
        /// Stop after this number of lines.
        #[arg(long)]
        count: Option<usize>,
    },
    /// Wait for a condition of each unit, and print the result. Exit code 1: the condition can no longer hold, or, for
    /// `finished`, the unit failed or was cancelled; 4: the unit does not exist (any more); 6: timeout.
    Wait {
        /// Full names or uids, or `namespace/name`.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Namespace. Default: that of your principal (`godel whoami`), or `default`.
        #[arg(long, short = 'n', default_value = "", hide_default_value = true)]
        namespace: String,
        /// `phase=NAME[,NAME]`, `bound` (every replica), `finished` (completed; fails if it ends otherwise), or `deleted`.
        #[arg(long = "for", value_name = "CONDITION")]
        condition: String,
        /// Timeout.
        #[arg(long, default_value = "60s", value_parser = duration::parse_whole)]
        timeout: Duration,
    },
}
