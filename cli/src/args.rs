//! Verbs and flags.

pub mod node;
pub mod queue;

use std::{path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use godel_proto::v1;

use crate::{exit::EXIT_CODES, output::Format};

const EXAMPLES: &str = "Try:
  godel up --simulate '100x cpu=32,memory=128Gi,gpu=8:A10'   a whole control plane with 100 simulated nodes
  godel unit submit --name web --class service --replicas 3 --cpu 500m --memory 1Gi
  godel unit list
  godel audit";

/// The unified scheduling system: online services, batch, streams and training in one pool.
#[derive(Debug, Parser)]
#[command(name = "godel", version, propagate_version = true, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Args {
    /// Where the state service is; every other service is found there.
    #[arg(
        long,
        global = true,
        env = "GODEL_ADDR",
        default_value = "http://127.0.0.1:7700",
        value_name = "URL"
    )]
    pub address: String,
    /// How results are printed.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub output: Format,
    /// Log lines on standard error, as `info,godel_state=debug`.
    #[arg(long, global = true, env = "GODEL_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the whole control plane in this process.
    Up(Up),
    /// Bring up a simulated cluster from a trace, submit its tasks, show what happened.
    Demo(Demo),
    /// Run one part of the control plane.
    Serve(Serve),
    /// Run the agent of this machine, or simulated nodes.
    Agent(Agent),
    /// Nodes.
    #[command(subcommand)]
    Node(node::Node),
    /// Scheduling units.
    #[command(subcommand)]
    Unit(Unit),
    /// Queues: who may use how much, and who goes first.
    #[command(subcommand)]
    Queue(queue::Queue),
    /// Priority classes.
    #[command(subcommand)]
    PriorityClass(queue::PriorityClass),
    /// Create or change what files say: queues and priority classes together, then units.
    Apply(queue::Apply),
    /// Schedulers.
    #[command(subcommand)]
    Scheduler(Scheduler),
    /// How nodes are split over schedulers.
    #[command(subcommand)]
    Partition(Partition),
    /// How the control plane is doing.
    Status,
    /// Check the invariants on the live system; exit 0 only when all hold.
    Audit(Audit),
    /// Measure the control plane and this machine.
    #[command(subcommand)]
    Bench(crate::bench::Bench),
    /// Traces.
    #[command(subcommand)]
    Trace(Trace),
    /// A store that no process has open.
    #[command(subcommand)]
    State(State),
    /// Configuration.
    #[command(subcommand)]
    Config(Config),
    /// Print the completion script of a shell.
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Configuration layers below the flags.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Layers {
    /// Configuration file, TOML or YAML (see `godel config reference`); later ones win.
    #[arg(long = "config", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Set a key of the configuration, as `scheduler.surplus=10`.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    pub set: Vec<(String, String)>,
}

/// Which nodes to simulate.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Simulated {
    /// Simulate nodes: `COUNT x SHAPE`, as `100x cpu=32,memory=64Gi,gpu=8:A10`; may be repeated.
    #[arg(long, value_name = "SHAPE")]
    pub simulate: Vec<String>,
    /// Simulate the nodes of a list: CSV `sn,cpu_milli,memory_mib,gpu,model`.
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Simulated durations are divided by this.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
}

/// `godel up`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Up {
    /// Where state is kept.
    #[arg(long, default_value = "godel-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Keep state in memory only.
    #[arg(long)]
    pub memory: bool,
    /// Schedulers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub schedulers: u16,
    /// Binders: one leads, the others stand by.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub binders: u16,
    /// Dispatchers: one leads, the others stand by.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub dispatchers: u16,
    /// Port of state; the others follow (dispatcher + 1, binder + 2, scheduler + 3). 0 takes free ones.
    #[arg(long, default_value_t = 7700)]
    pub port: u16,
    /// Which nodes to simulate.
    #[command(flatten)]
    pub nodes: Simulated,
    /// Configuration below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel demo`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Demo {
    /// Node list: CSV `sn,cpu_milli,memory_mib,gpu,model`.
    #[arg(long, default_value = "data/openb/openb_node_list_all_node.csv", value_name = "FILE")]
    pub nodes: PathBuf,
    /// Tasks: CSV as `godel trace replay` reads it.
    #[arg(long, default_value = "data/openb/openb_pod_list_default.csv", value_name = "FILE")]
    pub tasks: PathBuf,
    /// Stop afterwards; exit 0 only if the audit holds.
    #[arg(long)]
    pub once: bool,
    /// Write the summary here as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write every acknowledged task here: `uid,name,revision`.
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Let tasks end: the trace's lifetimes divided by this. Without it none ends.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
    /// Schedulers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub schedulers: u16,
    /// Where state is kept; emptied at the start.
    #[arg(long, default_value = "godel-data/demo", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Keep state in memory only.
    #[arg(long)]
    pub memory: bool,
    /// Port of state, as in `godel up`; with --once free ports are taken unless this is given.
    #[arg(long)]
    pub port: Option<u16>,
    /// Give up after this.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Configuration below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel serve`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Serve {
    /// Which part.
    #[arg(value_enum)]
    pub part: Part,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Address for metrics; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics_listen: Option<String>,
    /// Name (state, scheduler).
    #[arg(long)]
    pub name: Option<String>,
    /// Where the store is (state).
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Configuration below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// A part of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Every object, watch streams, leases, agent sessions.
    State,
    /// Submission, queues, dispatch.
    Dispatcher,
    /// Decides where units go.
    Scheduler,
    /// Commits placements.
    Binder,
}

impl Part {
    /// As in configuration keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Dispatcher => "dispatcher",
            Self::Scheduler => "scheduler",
            Self::Binder => "binder",
        }
    }
}

/// `godel agent`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Agent {
    /// Which nodes to simulate.
    #[command(flatten)]
    pub nodes: Simulated,
    /// Name of this machine's node; default the host name.
    #[arg(long, conflicts_with_all = ["simulate", "nodes"])]
    pub name: Option<String>,
    /// Keeps terminal statuses here until they are acknowledged.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// Which unit.
#[derive(Clone, Debug, ClapArgs)]
pub struct Which {
    /// Name, uid, or a unique prefix of one; `namespace/name` works too.
    pub name: String,
    /// Namespace.
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
}

impl Which {
    /// Namespace and name.
    pub fn split(&self) -> (&str, &str) {
        self.name.split_once('/').unwrap_or((&self.namespace, &self.name))
    }
}

/// Which units.
#[derive(Clone, Debug, ClapArgs)]
pub struct Named {
    /// Names, uids, or unique prefixes; `namespace/name` works too.
    #[arg(required = true)]
    pub names: Vec<String>,
    /// Namespace.
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
    /// Only if the unit has this revision.
    #[arg(long, default_value_t = 0)]
    pub revision: u64,
}

/// `godel unit`.
#[derive(Clone, Debug, Subcommand)]
pub enum Unit {
    /// Submit units from files, or one from flags.
    Submit(Submit),
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
    /// Show one unit, where it runs, or why nowhere.
    Describe(Which),
    /// Cancel units: what waits goes, what runs is stopped.
    Cancel(Named),
    /// Suspend units: what runs is stopped, the record stays, their queue has its quota back.
    Suspend(Named),
    /// Resume suspended units: they are queued again, with the ordinals that they had.
    Resume(Named),
    /// Stop single running units for good: the unit has so many replicas less, their ordinals are never used again.
    Stop {
        /// Name, uid, or a unique prefix of one; `namespace/name` works too.
        name: String,
        /// Ordinals, or ranges of them as `3-5`.
        #[arg(required = true, value_name = "ORDINAL", value_parser = ordinals)]
        ordinals: Vec<std::ops::RangeInclusive<u32>>,
        /// Namespace.
        #[arg(long, short = 'n', default_value = "default")]
        namespace: String,
        /// Only if the unit has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Change the replicas of a task group.
    Scale {
        /// Which unit.
        #[command(flatten)]
        which: Which,
        /// Wanted.
        #[arg(long)]
        replicas: u32,
        /// Which task group; default the only one.
        #[arg(long, default_value = "")]
        group: String,
        /// Only if the unit has this revision.
        #[arg(long, default_value_t = 0)]
        revision: u64,
    },
    /// Print each change as it commits, until interrupted.
    Watch {
        /// Name, or a unique prefix; all units without it.
        #[arg(default_value = "")]
        name: String,
        /// Namespace.
        #[arg(long, short = 'n', default_value = "")]
        namespace: String,
        /// Stop after so many lines.
        #[arg(long)]
        count: Option<usize>,
    },
    /// Wait for a condition.
    Wait {
        /// Which unit.
        #[command(flatten)]
        which: Which,
        /// `phase=NAME[,NAME]`, `bound` (every replica), `finished`, or `deleted`.
        #[arg(long = "for", value_name = "CONDITION")]
        condition: String,
        /// Give up after this.
        #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
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
    /// Workload class.
    #[arg(long, requires = "name")]
    pub class: Option<String>,
    /// Path of its queue, as `prod.search`.
    #[arg(long, requires = "name", value_name = "PATH")]
    pub queue: Option<String>,
    /// Name of its priority class.
    #[arg(long, requires = "name", value_name = "NAME")]
    pub priority_class: Option<String>,
    /// Replicas.
    #[arg(long, default_value_t = 1, requires = "name")]
    pub replicas: u32,
    /// CPU of each, as `500m`.
    #[arg(long, requires = "name")]
    pub cpu: Option<String>,
    /// Memory of each, as `1Gi`.
    #[arg(long, requires = "name")]
    pub memory: Option<String>,
    /// GPUs of each: `2`, `2:A10`, or `0.5` for a share of one.
    #[arg(long, requires = "name")]
    pub gpu: Option<String>,
    /// How long a simulated run lasts; default until stopped.
    #[arg(long, requires = "name", value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// What becomes of a replica that has to leave for others' sake; default requeue.
    #[arg(long, requires = "name", value_enum)]
    pub on_eviction: Option<OnEviction>,
    /// What becomes of the unit once fewer than its min_member are left; default keep.
    #[arg(long, requires = "name", value_enum)]
    pub on_below_min: Option<OnBelowMin>,
    /// Say that it finds no place after it has waited so long; default 5m. It is tried on.
    #[arg(long, requires = "name", value_parser = humantime::parse_duration)]
    pub scheduling_timeout: Option<Duration>,
    /// It fails once it was active so long; default never.
    #[arg(long, requires = "name", value_parser = humantime::parse_duration)]
    pub active_deadline: Option<Duration>,
    /// Kept so long after its end; default 1h.
    #[arg(long, requires = "name", value_parser = humantime::parse_duration)]
    pub ttl_after_finished: Option<Duration>,
    /// Wait until every replica is bound.
    #[arg(long)]
    pub wait: bool,
    /// Give up waiting after this.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
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

/// `godel scheduler`.
#[derive(Clone, Debug, Subcommand)]
pub enum Scheduler {
    /// List schedulers: lease, load, what they placed.
    List,
}

/// `godel partition`.
#[derive(Clone, Debug, Subcommand)]
pub enum Partition {
    /// Set how nodes are split over schedulers.
    Set {
        /// The mode.
        #[arg(value_enum)]
        mode: Mode,
    },
}

/// How nodes are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Every scheduler sees all nodes alike.
    Global,
    /// Own nodes first, then the others.
    Preferred,
}

/// `godel audit`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Audit {
    /// Acknowledgements that a submitter wrote down (`uid,name,revision`); may be repeated.
    #[arg(long, value_name = "FILE")]
    pub ledger: Vec<PathBuf>,
}

/// `godel trace`.
#[derive(Clone, Debug, Subcommand)]
pub enum Trace {
    /// Submit a trace's tasks in file order at once and watch until nothing moves any more.
    Replay(Replay),
}

/// `godel trace replay`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Replay {
    /// CSV `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,…`.
    pub file: PathBuf,
    /// Namespace of the units.
    #[arg(long, short = 'n', default_value = "default")]
    pub namespace: String,
    /// Let tasks end: the trace's lifetimes divided by this. Without it none ends.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
    /// Only the first so many tasks.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Write every acknowledged task here: `uid,name,revision`.
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Write the summary here as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Count the CPU time of these processes of this machine, too.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub cpu_pids: Vec<u32>,
    /// Audit at the end.
    #[arg(long)]
    pub audit: bool,
    /// Give up after this.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// `godel state`.
#[derive(Clone, Debug, Subcommand)]
pub enum State {
    /// Verify every checksum of a store and rebuild its state; changes nothing.
    Check {
        /// Directory of the store.
        dir: PathBuf,
    },
    /// Write the state of a store to a file.
    Export {
        /// Directory of the store.
        dir: PathBuf,
        /// The file to make.
        file: PathBuf,
    },
    /// Make a store from an export.
    Restore {
        /// The export.
        file: PathBuf,
        /// Directory of the new store; absent or empty.
        dir: PathBuf,
    },
}

/// `godel config`.
#[derive(Clone, Debug, Subcommand)]
pub enum Config {
    /// Print every key with its default, environment variable and meaning, as Markdown.
    Reference,
}

/// `3`, or `3-5`.
fn ordinals(text: &str) -> Result<std::ops::RangeInclusive<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u32>().map_err(|error| format!("`{text}`: {error}"));
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("{first} is above {last}"));
    }
    Ok(first..=last)
}

/// `key=value`.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not of the form key=value")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err(format!("`{text}` is not a number above 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn units_are_named_in_three_ways() {
        let split = |words: &[&str]| match Args::try_parse_from(words).unwrap().verb {
            Verb::Unit(Unit::Describe(which)) => {
                let (namespace, name) = which.split();
                (namespace.to_owned(), name.to_owned())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(split(&["godel", "unit", "describe", "web"]), ("default".to_owned(), "web".to_owned()));
        assert_eq!(split(&["godel", "unit", "describe", "shop/web"]), ("shop".to_owned(), "web".to_owned()));
        assert_eq!(
            split(&["godel", "unit", "describe", "-n", "shop", "web"]),
            ("shop".to_owned(), "web".to_owned())
        );
    }
}
