//! `godel unit`: verbs and flags.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use godel_domain::duration;
use godel_proto::v1;

use super::pair;

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

/// `godel unit submit`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Submit {
    /// Unit files; `-` reads standard input.
    #[arg(long = "file", short = 'f', value_name = "FILE", required_unless_present = "name")]
    pub files: Vec<PathBuf>,
    /// Name of a unit made from flags.
    #[arg(long, conflicts_with = "files")]
    pub name: Option<String>,
    /// Namespace of a unit made from flags, or of those whose file names none.
    #[arg(long, short = 'n', default_value = "")]
    pub namespace: String,
    /// Idempotence key of its submission, a UUID; made up if absent.
    #[arg(long, requires = "name", value_name = "UUID")]
    pub uid: Option<String>,
    /// Labels for selection, as `app=web`.
    #[arg(long = "label", requires = "name", value_delimiter = ',', value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Who submits it.
    #[arg(long, requires = "name")]
    pub owner: Option<String>,
    /// Workload class: service, stateful, batch, gang, stream, training, yarn or daemon; default batch.
    #[arg(long, requires = "name")]
    pub class: Option<String>,
    /// Path of its queue, as `prod.search`.
    #[arg(long, requires = "name", value_name = "PATH")]
    pub queue: Option<String>,
    /// Higher wins; default that of its priority class, or by workload class.
    #[arg(long, requires = "name", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Name of its priority class.
    #[arg(long, requires = "name", value_name = "NAME")]
    pub priority_class: Option<String>,
    /// Who pays: guaranteed or best-effort; default by workload class.
    #[arg(long, requires = "name")]
    pub pool: Option<String>,
    /// The first binding has at least so many running units, or there is none; default by workload class.
    #[arg(long, requires = "name", value_name = "N")]
    pub min_member: Option<u32>,
    /// Replicas.
    #[arg(long, default_value_t = 1, requires = "name")]
    pub replicas: u32,
    /// CPU of each, as `500m`.
    #[arg(long, requires = "name")]
    pub cpu: Option<String>,
    /// Memory of each, as `1Gi`.
    #[arg(long, requires = "name")]
    pub memory: Option<String>,
    /// Any resources of each, as `fpga=1`.
    #[arg(long = "request", requires = "name", value_delimiter = ',', value_name = "RESOURCE=QUANTITY", value_parser = pair)]
    pub requests: Vec<(String, String)>,
    /// GPUs of each: `2`, `2:A10`, or `0.5` for a share of one.
    #[arg(long, requires = "name")]
    pub gpu: Option<String>,
    /// Labels that its nodes must have, as `zone=a`.
    #[arg(long, requires = "name", value_delimiter = ',', value_name = "KEY=VALUE", value_parser = pair)]
    pub node_selector: Vec<(String, String)>,
    /// Taints that it accepts: `KEY=VALUE:EFFECT`; without value all of the key, without effect both
    /// (no-schedule, prefer-no-schedule), `*` for all keys.
    #[arg(long = "toleration", requires = "name", value_delimiter = ',', value_name = "TAINT")]
    pub tolerations: Vec<String>,
    /// Environment of its program, as `MODE=live`.
    #[arg(long, requires = "name", value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Between the polite and the forced end of a stop; default 0s.
    #[arg(long, requires = "name", value_parser = duration::parse_ms)]
    pub stop_grace: Option<u64>,
    /// How long a simulated run lasts; default until stopped.
    #[arg(long, requires = "name", value_parser = duration::parse_ms)]
    pub duration: Option<u64>,
    /// Exit code of a simulated run; default 0.
    #[arg(long, requires = "name", allow_negative_numbers = true)]
    pub exit_code: Option<i32>,
    /// Whether a replica that ended by itself is started again: never, on-failure or always; default by workload class.
    #[arg(long, requires = "name", value_name = "POLICY")]
    pub restart_policy: Option<String>,
    /// In-place restarts in a row; default 3.
    #[arg(long, requires = "name", value_name = "N")]
    pub max_restarts: Option<u32>,
    /// How nodes are preferred: least-allocated (spread) or most-allocated (pack); default by workload class.
    #[arg(long, requires = "name", value_name = "PROFILE")]
    pub scoring: Option<String>,
    /// What becomes of a replica that has to leave for others' sake; default requeue.
    #[arg(long, requires = "name", value_enum)]
    pub on_eviction: Option<OnEviction>,
    /// What becomes of the unit once fewer than its min_member are left; default keep.
    #[arg(long, requires = "name", value_enum)]
    pub on_below_min: Option<OnBelowMin>,
    /// What becomes of the unit once a replica has failed and is not started again; default by workload class.
    #[arg(long, requires = "name", value_enum)]
    pub on_failure: Option<OnFailure>,
    /// Whether it may have to leave for units of higher rank; default by workload class.
    #[arg(long, requires = "name", value_name = "BOOL")]
    pub preemptible: Option<bool>,
    /// It does not have to leave for units of higher rank before it has run so long; default 0s.
    #[arg(long, requires = "name", value_parser = duration::parse_ms)]
    pub min_run: Option<u64>,
    /// Say that it finds no place after it has waited so long; default 5m. It is tried on.
    #[arg(long, requires = "name", value_parser = duration::parse_ms)]
    pub scheduling_timeout: Option<u64>,
    /// It fails once it was active so long; default never.
    #[arg(long, requires = "name", value_parser = duration::parse_ms)]
    pub active_deadline: Option<u64>,
    /// Kept so long after its end; default 1h.
    #[arg(long, requires = "name", value_parser = duration::parse_ms)]
    pub ttl_after_finished: Option<u64>,
    /// Wait until every replica is bound.
    #[arg(long)]
    pub wait: bool,
    /// Give up waiting after this.
    #[arg(long, default_value = "60s", value_parser = duration::parse_whole)]
    pub timeout: Duration,
    /// Program and arguments.
    #[arg(last = true, requires = "name")]
    pub command: Vec<String>,
}

/// What becomes of an evicted replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnEviction {
    /// As the server says.
    #[default]
    #[value(skip)]
    Absent,
    /// It comes back as its next incarnation.
    Requeue,
    /// It has failed.
    Fail,
}

impl OnEviction {
    /// As the API says it.
    pub fn into_api(self) -> v1::OnEviction {
        match self {
            Self::Absent => v1::OnEviction::Unspecified,
            Self::Requeue => v1::OnEviction::Requeue,
            Self::Fail => v1::OnEviction::Fail,
        }
    }
}

/// What becomes of a unit of which a replica has failed for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnFailure {
    /// As the server says.
    #[default]
    #[value(skip)]
    Absent,
    /// The rest goes on.
    Keep,
    /// All of it starts again, max_restarts times at most; then it ends.
    Restart,
    /// It ends, and has failed.
    Stop,
}

impl OnFailure {
    /// As the API says it.
    pub fn into_api(self) -> v1::OnFailure {
        match self {
            Self::Absent => v1::OnFailure::Unspecified,
            Self::Keep => v1::OnFailure::Keep,
            Self::Restart => v1::OnFailure::Restart,
            Self::Stop => v1::OnFailure::Stop,
        }
    }
}

/// What becomes of a unit of which too few are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnBelowMin {
    /// As the server says.
    #[default]
    #[value(skip)]
    Absent,
    /// The rest goes on; the missing ones come back one by one.
    Keep,
    /// The rest is evicted too, and min_member are bound together again.
    Restart,
    /// It ends, and has failed.
    Stop,
}

impl OnBelowMin {
    /// As the API says it.
    pub fn into_api(self) -> v1::OnBelowMin {
        match self {
            Self::Absent => v1::OnBelowMin::Unspecified,
            Self::Keep => v1::OnBelowMin::Keep,
            Self::Restart => v1::OnBelowMin::Restart,
            Self::Stop => v1::OnBelowMin::Stop,
        }
    }
}
