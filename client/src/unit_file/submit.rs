//! The flags of `godel unit submit`: everything that a unit file with one task group can say.

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, ValueEnum};
use godel_domain::duration;
use godel_proto::v1;

/// Reads `key=value`.
///
/// # Errors
/// It is of another form, or has no key.
pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not of the form key=value")),
    }
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
