//! Verbs and flags.

pub mod budget;
pub mod node;
pub mod queue;
pub mod reservation;
pub mod unit;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use godel_domain::duration;

use godel_client::{exit::EXIT_CODES, output::Format};

use godel_client::unit_file::pair;
pub use unit::{Delete, Named, Scale, Stop, Unit, Which, split};

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
    /// Disruption budgets: how many running units may be made to leave at a time.
    #[command(subcommand)]
    Budget(budget::Budget),
    /// Reservations: room that is kept for running units of some units.
    #[command(subcommand)]
    Reservation(reservation::Reservation),
    /// Create or change what files say: queues and priority classes together, then disruption budgets and reservations, then
    /// units.
    Apply(queue::Apply),
    /// Schedulers.
    #[command(subcommand)]
    Scheduler(Scheduler),
    /// How nodes are split over schedulers.
    #[command(subcommand)]
    Partition(Partition),
    /// What administrators do to the whole control plane.
    #[command(subcommand)]
    Admin(Admin),
    /// How the control plane is doing.
    Status,
    /// Check the invariants on the live system; exit 0 only when all hold.
    Audit(Audit),
    /// Measure the control plane and this machine: runs `godel-bench`, which says what there is (`godel bench --help`).
    #[command(disable_help_flag = true)]
    Bench {
        /// The benchmark and its flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        words: Vec<OsString>,
    },
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
    /// Simulate nodes: `COUNT x SHAPE`, as `100x cpu=32,memory=64Gi,gpu=8:A10`; may be repeated. Also in a shape:
    /// `name=PREFIX`, `max_running_units=N`, `label.KEY=VALUE`.
    #[arg(long, value_name = "SHAPE")]
    pub simulate: Vec<String>,
    /// Simulate the nodes of a list: CSV `sn,cpu_milli,memory_mib,gpu,model`, and `max_running_units` where you like.
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Simulated durations are divided by this.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
}

impl Simulated {
    /// Whether simulated nodes are asked for, however many are found.
    pub fn is_asked_for(&self) -> bool {
        self.nodes.is_some() || !self.simulate.is_empty()
    }
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
    /// Stop afterwards; exit 0 only if the audit judges everything, and it holds.
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
    #[arg(long, default_value = "10m", value_parser = godel_domain::duration::parse_whole)]
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
    /// Most running units that a node takes, whatever they ask for; default 1000.
    #[arg(long, value_name = "N")]
    pub max_running_units: Option<u32>,
    /// Configuration below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel admin`.
#[derive(Clone, Debug, Subcommand)]
pub enum Admin {
    /// Pause scheduling: what runs goes on, nothing new is handed out. It outlives restarts; `godel status` shows it.
    Pause {
        /// `all`, `queue/PATH` (and the queues below it), `sub-cluster/NAME`, or `preemption` alone.
        #[arg(required = true, value_name = "SCOPE")]
        scopes: Vec<String>,
        /// Why: for those who see it.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Go on with what was paused.
    Resume {
        /// As paused.
        #[arg(required = true, value_name = "SCOPE")]
        scopes: Vec<String>,
    },
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
        mode: PartitionChoice,
    },
}

/// What `godel partition set` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PartitionChoice {
    /// Global, or split as `dispatcher.shuffle` says while schedulers are in each other's way.
    Auto,
    /// Every scheduler sees all nodes alike.
    Global,
    /// Own nodes first, then the others.
    Preferred,
    /// Own nodes only; what no scheduler's nodes can hold is tried once on all nodes.
    Strict,
}

/// `godel audit`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Audit {
    /// Acknowledgements that a submitter wrote down (`uid,name,revision`); may be repeated.
    #[arg(long, value_name = "FILE")]
    pub ledger: Vec<PathBuf>,
    /// Fail (exit code 1, not 9) if something could not be judged.
    #[arg(long)]
    pub strict: bool,
    /// Wait so long for what cannot be judged yet, as units under way and agents that connect again.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse_whole)]
    pub patience: Duration,
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
    #[arg(long, default_value = "10m", value_parser = godel_domain::duration::parse_whole)]
    pub timeout: Duration,
}

/// `godel state`.
#[derive(Clone, Debug, Subcommand)]
pub enum State {
    /// Verify every checksum of a store, rebuild its state and read its records; changes nothing. Exits with 1 if
    /// anything is damaged, missing or cannot be read.
    Check {
        /// Directory of the store.
        dir: PathBuf,
    },
    /// Write the state of a store to a new file, which only its owner may read.
    Export {
        /// Directory of the store.
        dir: PathBuf,
        /// The file to make; it must not exist.
        file: PathBuf,
    },
    /// Make a store from an export.
    Restore {
        /// The export.
        file: PathBuf,
        /// Directory of the new store; absent or empty.
        dir: PathBuf,
        /// Restore records too that cannot be read, to remove them with `state repair --remove`.
        #[arg(long)]
        keep_unreadable: bool,
    },
    /// Repair a store: remove a record that cannot be read, or give up what cannot be recovered.
    #[command(group(clap::ArgGroup::new("repair").required(true).args(["remove", "truncate"])))]
    Repair {
        /// Directory of the store.
        dir: PathBuf,
        /// Remove one record, as `--remove queue prod` or `--remove unit-spec 17`. The running units of a unit or a
        /// node that is removed end as lost.
        #[arg(long, num_args = 2, value_names = ["KIND", "KEY"])]
        remove: Vec<String>,
        /// Go on without the commits that `state check` says are missing. The damaged store is kept beside.
        #[arg(long)]
        truncate: bool,
    },
}

/// `godel config`.
#[derive(Clone, Debug, Subcommand)]
pub enum Config {
    /// Print every key with its default, environment variable and meaning, as Markdown.
    Reference,
}

/// `key=value`.
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
                let (namespace, name) = split(&which.namespace, &which.names[0]);
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
