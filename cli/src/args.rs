//! Verbs and flags.

pub mod agent;
pub mod backup;
pub mod budget;
pub mod changes;
pub mod context;
mod history;
pub mod identity;
pub mod node;
mod offline;
pub mod people;
pub mod queue;
pub mod records;
pub mod reschedule;
pub mod reservation;
pub mod top;
pub mod unit;
pub mod yarn;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use godel_client::{exit::EXIT_CODES, output::Format};

use godel_client::unit_file::{label_pair, pair};
pub use history::{HistoryArgs, HistoryKey};
pub use offline::{Audit, Config, DoctorArgs, EtcdArgs, ReplayArgs, State, Trace};
pub use unit::{
    CheckpointArgs, Delete, EditArgs, ListArgs, LogsArgs, Moment, Move, NamedUnits, Retry, ScaleArgs,
    SortKey, Stop, UnitVerb, WhichUnits, split,
};

const EXAMPLES: &str = "Try:
  godel up --simulate '100x cpu=32,memory=128Gi,gpu=8:A10'   a whole control plane with 100 simulated nodes
  godel unit submit --name web --class service --replicas 3 --cpu 500m --memory 1Gi
  godel unit list
  godel audit";

/// The unified scheduler: online services, batch, streams and training in one pool.
#[derive(Debug, Parser)]
#[command(name = "godel", version, propagate_version = true, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct Args {
    /// Address of the state service, which lists all other services, or the addresses of several states of one cluster, with commas between
    /// them. Default: that of the context, or else http://127.0.0.1:7700.
    #[arg(long, global = true, env = "GODEL_ADDR", value_name = "URL")]
    pub address: Option<String>,
    /// The context to use instead of the current one (see `godel context`). An address wins over it.
    #[arg(long, global = true, env = "GODEL_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// Output format.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub output: Format,
    /// Filter of log lines on standard error, as `info,godel_state=debug`.
    #[arg(long, global = true, env = "GODEL_LOG", value_name = "FILTER")]
    pub log: Option<String>,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verb.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the whole control plane in this process.
    Up(Up),
    /// Start a simulated cluster from a trace, submit its tasks, and print a summary.
    Demo(Demo),
    /// Run one service of the control plane.
    Serve(Serve),
    /// Run the agent of this machine, or simulated nodes.
    Agent(Agent),
    /// Manage nodes.
    #[command(subcommand)]
    Node(node::NodeVerb),
    /// Manage scheduling units.
    #[command(subcommand)]
    Unit(UnitVerb),
    /// List ended units, also those whose records are deleted, with what they used; or sums for owners or queues.
    History(HistoryArgs),
    /// Show what nodes or units use now, as agents measure it.
    #[command(subcommand)]
    Top(top::Top),
    /// Manage queues: guarantees, maxima, weights and policies.
    #[command(subcommand)]
    Queue(queue::Queue),
    /// Manage priority classes.
    #[command(subcommand)]
    PriorityClass(queue::PriorityClassVerb),
    /// Manage disruption budgets: how many running units may be evicted at a time.
    #[command(subcommand)]
    Budget(budget::Budget),
    /// Manage reservations: room kept for running units of certain units.
    #[command(subcommand)]
    Reservation(reservation::Reservation),
    /// Show what the rescheduler would move and why, have it move running units, and end its movements.
    #[command(subcommand)]
    Reschedule(reschedule::Reschedule),
    /// Manage applications of YARN, and import the configuration of a YARN cluster.
    #[command(subcommand)]
    Yarn(yarn::Yarn),
    /// Create or change objects from files: queues and priority classes together, then disruption budgets and
    /// reservations, then units.
    Apply(queue::Apply),
    /// Show schedulers.
    #[command(subcommand)]
    Scheduler(SchedulerVerb),
    /// Set how nodes are split over schedulers.
    #[command(subcommand)]
    Partition(PartitionVerb),
    /// Create a join token, with which a process joins the cluster; list or delete those that there are.
    JoinToken(identity::JoinTokenArgs),
    /// Manage identities: who may call, by which certificate.
    #[command(subcommand)]
    Identity(identity::IdentityVerb),
    /// Create, list and revoke tokens, with which people and programs call.
    #[command(subcommand)]
    Token(people::TokenVerb),
    /// Manage principals: people and programs, and what each may do.
    #[command(subcommand)]
    Principal(people::PrincipalVerb),
    /// Log in: keep a token in a context together with the roots of the cluster. Without a token, get one from the socket of state on this machine.
    Login(context::LoginArgs),
    /// Show who you are, and what you may do.
    Whoami,
    /// Ask what you may do.
    #[command(subcommand)]
    Auth(people::AuthVerb),
    /// Show who changed what, when and from where, and who was refused.
    Changes(changes::ChangesArgs),
    /// Manage the CA, which signs the certificates of identities.
    #[command(subcommand)]
    Ca(identity::Ca),
    /// Administer the control plane.
    #[command(subcommand)]
    Admin(Admin),
    /// Manage contexts: the clusters that you use, and how each is reached.
    #[command(subcommand)]
    Context(context::ContextVerb),
    /// Show the status of the control plane.
    Status,
    /// Ask one service or agent whether it can do its work. Exit code 0 only if it says so.
    Health(Health),
    /// Check the invariants on the live system. Exit code 0 only if all hold.
    Audit(Audit),
    /// Check who can reach the cluster and how callers prove their identity: addresses, certificates, tokens, clocks, plain text, file modes,
    /// versions. Exit code 1 if there are errors.
    Doctor(DoctorArgs),
    /// Measure the control plane and this machine. Runs `godel-bench`; `godel bench --help` lists the benchmarks.
    #[command(disable_help_flag = true)]
    Bench {
        /// The benchmark and its flags.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        words: Vec<OsString>,
    },
    /// Replay traces.
    #[command(subcommand)]
    Trace(Trace),
    /// Back up the running state, list and verify backups, and create a store from them.
    #[command(subcommand)]
    Backup(backup::Backup),
    /// Check, export, restore, repair or move a store that no process has open.
    #[command(subcommand)]
    State(State),
    /// Show the configuration reference.
    #[command(subcommand)]
    Config(Config),
    /// Print the completion script of a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Configuration layers below the flags.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Layers {
    /// Configuration file, TOML or YAML (see `godel config reference`). A later file overrides an earlier one.
    #[arg(long = "config", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Set a key of the configuration, as `scheduler.surplus=10`.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    pub set: Vec<(String, String)>,
}

/// Who may reach what this process listens on.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Exposure {
    /// Speak plain text, also on addresses that other machines can reach: nothing is encrypted, and every caller is an administrator.
    #[arg(long)]
    pub insecure: bool,
}

impl Exposure {
    /// Value of the key `insecure`, if the flag is given.
    pub fn flag(&self) -> Option<String> {
        self.insecure.then(|| true.to_string())
    }
}

/// Values of `--tls`.
const TLS_MODES: [&str; 3] = ["on", "migrate", "off"];

/// What the whole control plane speaks, and who may reach it.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct ControlPlaneExposure {
    #[command(flatten)]
    exposure: Exposure,
    /// What state speaks: only TLS (`on`), TLS and plain text (`migrate`), or only plain text (`off`). Default: `on`, but `off` with `--insecure`
    /// and for a store that was made without TLS.
    #[arg(long, value_name = "MODE", value_parser = TLS_MODES)]
    tls: Option<String>,
}

impl ControlPlaneExposure {
    /// Returns configuration keys with the values that the flags give them.
    pub fn flags(&self) -> [(&'static str, Option<String>); 7] {
        let insecure = || self.exposure.flag();
        [
            ("state.tls", self.tls.clone()),
            ("state.server.insecure", insecure()),
            ("dispatcher.server.insecure", insecure()),
            ("scheduler.server.insecure", insecure()),
            ("binder.server.insecure", insecure()),
            ("yarn.server.insecure", insecure()),
            ("rescheduler.server.insecure", insecure()),
        ]
    }
}

/// The nodes to simulate.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct SimulatedNodes {
    /// Simulate nodes: `COUNT x SHAPE`, as `100x cpu=32,memory=64Gi,gpu=8:A10`; may be repeated. A shape may also have
    /// `name=PREFIX`, `max_running_units=N` and `label.KEY=VALUE`.
    #[arg(long, value_name = "SHAPE")]
    pub simulate: Vec<String>,
    /// Simulate the nodes of a list: CSV `sn,cpu_milli,memory_mib,gpu,model`, with an optional column
    /// `max_running_units`.
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Divisor of simulated durations.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
}

impl SimulatedNodes {
    /// Whether simulated nodes are asked for, however many are found.
    pub fn is_asked_for(&self) -> bool {
        self.nodes.is_some() || !self.simulate.is_empty()
    }
}

/// `godel up`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Up {
    /// Directory of the store.
    #[arg(long, default_value = "godel-data", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Keep the store in memory only.
    #[arg(long)]
    pub memory: bool,
    /// Number of schedulers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub schedulers: u16,
    /// Number of binders: one leads, the others stand by.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub binders: u16,
    /// Number of dispatchers: one leads, the others stand by.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub dispatchers: u16,
    /// Port of state; dispatcher + 1, binder + 2, scheduler + 3, YARN adapter + 4, rescheduler + 5. 0 takes free
    /// ports.
    #[arg(long, default_value_t = 7700)]
    pub port: u16,
    /// Run the YARN adapter, too (`yarn.enabled`). Its ports for clients of YARN are those of `yarn.*_address`.
    #[arg(long)]
    pub yarn: bool,
    /// Run no rescheduler (`rescheduler.enabled`). Without policies in the configuration it moves nothing anyway.
    #[arg(long)]
    pub no_rescheduler: bool,
    /// The nodes to simulate.
    #[command(flatten)]
    pub nodes: SimulatedNodes,
    /// What the control plane speaks, and who may reach it.
    #[command(flatten)]
    pub exposure: ControlPlaneExposure,
    /// Configuration layers below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel demo`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Demo {
    /// Node list: CSV `sn,cpu_milli,memory_mib,gpu,model`.
    #[arg(long, default_value = "data/openb/openb_node_list_all_node.csv", value_name = "FILE")]
    pub nodes: PathBuf,
    /// Task list: CSV as for `godel trace replay`.
    #[arg(long, default_value = "data/openb/openb_pod_list_default.csv", value_name = "FILE")]
    pub tasks: PathBuf,
    /// Stop at the end. Exit code 0 only if the audit judges everything and all invariants hold.
    #[arg(long)]
    pub once: bool,
    /// Write the summary to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write every acknowledged task to this file: `uid,name,revision`.
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Let tasks end after their lifetime in the trace divided by this factor. Without it no task ends.
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
    /// Number of schedulers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub schedulers: u16,
    /// Directory of the store; emptied at the start.
    #[arg(long, default_value = "godel-data/demo", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Keep the store in memory only.
    #[arg(long)]
    pub memory: bool,
    /// Port of state, as in `godel up`. Default with --once: free ports.
    #[arg(long)]
    pub port: Option<u16>,
    /// Timeout.
    #[arg(long, default_value = "10m", value_parser = godel_base::duration::parse_whole)]
    pub timeout: Duration,
    /// What the control plane speaks, and who may reach it.
    #[command(flatten)]
    pub exposure: ControlPlaneExposure,
    /// Configuration layers below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel serve`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Serve {
    /// The service.
    #[arg(value_enum)]
    pub part: ServicePart,
    /// Address to listen on. Port 0 takes a free port.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Address for metrics. Port 0 takes a free port.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics_listen: Option<String>,
    /// Address at which others reach the service, such as `https://10.0.0.7:7700`; `host-name`: the name of this host. Default: the
    /// address to listen on.
    #[arg(long, value_name = "URL")]
    pub advertise: Option<String>,
    /// Name of the service. Default, but for state: the name of the host.
    #[arg(long)]
    pub name: Option<String>,
    /// Directory of the store (state).
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Storage engine of state: `sled` in the directory of the store, `etcd`, or `memory`. Default: sled.
    #[arg(long, value_name = "ENGINE", value_parser = ["sled", "etcd", "memory"])]
    pub engine: Option<String>,
    /// Endpoints of the etcd that state keeps its store in, as `http://10.0.0.7:2379`, separated by commas; with `--engine etcd`.
    #[arg(long, value_name = "URL,…")]
    pub etcd_endpoints: Option<String>,
    /// File with a join token, with which the service gets its first certificate (`godel join-token`); `-` is standard input. Not for state.
    #[arg(long, value_name = "FILE")]
    pub join_file: Option<String>,
    /// What state speaks: only TLS (`on`), TLS and plain text (`migrate`), or only plain text (`off`). Default: `on`, but `off` with `--insecure`
    /// and for a store that was made without TLS. For state only.
    #[arg(long, value_name = "MODE", value_parser = TLS_MODES)]
    pub tls: Option<String>,
    /// Who may reach what this process listens on.
    #[command(flatten)]
    pub exposure: Exposure,
    /// Configuration layers below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel health`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Health {
    /// Address of its metrics (`metrics_listen`), where it answers `/healthz`, in plain text or over TLS.
    #[arg(default_value = "127.0.0.1:7800", value_name = "HOST:PORT")]
    pub metrics: String,
}

/// A service of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServicePart {
    /// Stores all objects; watch streams, leases, agent sessions.
    State,
    /// Accepts submissions, queues units, assigns them to schedulers.
    Dispatcher,
    /// Picks nodes for units.
    Scheduler,
    /// Checks decisions and commits placements.
    Binder,
    /// Serves clients of YARN.
    Yarn,
    /// Moves running units that should be elsewhere.
    Rescheduler,
}

impl ServicePart {
    /// As in configuration keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Dispatcher => "dispatcher",
            Self::Scheduler => "scheduler",
            Self::Binder => "binder",
            Self::Yarn => "yarn",
            Self::Rescheduler => "rescheduler",
        }
    }
}

/// `godel agent`.
#[derive(Clone, Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Agent {
    /// What to do instead of running the agent.
    #[command(subcommand)]
    pub verb: Option<AgentVerb>,
    /// The nodes to simulate.
    #[command(flatten)]
    pub nodes: SimulatedNodes,
    /// Name of this machine's node. Default: the host name.
    #[arg(long, conflicts_with_all = ["simulate", "nodes"])]
    pub name: Option<String>,
    /// File with a join token, with which the agent gets its first certificate (`godel node join-token`); `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub join_file: Option<String>,
    /// Directory in which terminal statuses wait until they are acknowledged.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Host name or address at which running units of other nodes reach those of this one. Default: the name of the node.
    #[arg(long, value_name = "HOST", conflicts_with_all = ["simulate", "nodes"])]
    pub advertise: Option<String>,
    /// Maximum number of running units on a node, whatever they request. Default 1000.
    #[arg(long, value_name = "N")]
    pub max_running_units: Option<u32>,
    /// Who may reach what this process listens on.
    #[command(flatten)]
    pub exposure: Exposure,
    /// Configuration layers below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// Verbs of `godel agent` that run no agent.
#[derive(Clone, Debug, Subcommand)]
pub enum AgentVerb {
    /// Show what an agent finds of this machine: capacity, zones, devices and attributes, and what it cannot find out.
    Topology(TopologyArgs),
    /// Give notice that this machine goes away, as a spot machine that is reclaimed: its node is drained until the
    /// deadline.
    Notice(agent::Notice),
    /// Take this machine's node out of the cluster for good: delete its record and end its agent. Refused while running
    /// units are on the node.
    Leave(agent::LeaveArgs),
    /// Keep one running unit: agents start it, nobody else does.
    #[command(hide = true)]
    Keep {
        /// Directory of the run.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// `godel agent topology`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TopologyArgs {
    /// Name of this machine's node. Default: the host name.
    #[arg(long)]
    pub name: Option<String>,
    /// Directory with a copy of the `/proc` and `/sys` of another machine.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Configuration layers below the flags.
    #[command(flatten)]
    pub layers: Layers,
}

/// `godel admin`.
#[derive(Clone, Debug, Subcommand)]
pub enum Admin {
    /// Pause scheduling: running units continue, and no new units are handed out. A pause outlives restarts; `godel
    /// status` shows it.
    Pause {
        /// `all`, `queue/PATH` (with the queues below it), `sub-cluster/NAME`, or `preemption` (preemption only).
        #[arg(required = true, value_name = "SCOPE")]
        scopes: Vec<String>,
        /// Reason, shown to users.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// End pauses.
    Resume {
        /// Scopes as given to `pause`.
        #[arg(required = true, value_name = "SCOPE")]
        scopes: Vec<String>,
    },
}

/// `godel scheduler`.
#[derive(Clone, Debug, Subcommand)]
pub enum SchedulerVerb {
    /// List schedulers with lease, load and placements.
    List,
}

/// `godel partition`.
#[derive(Clone, Debug, Subcommand)]
pub enum PartitionVerb {
    /// Set the partition mode.
    Set {
        /// The partition mode.
        #[arg(value_enum)]
        mode: PartitionChoice,
    },
}

/// A partition mode, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PartitionChoice {
    /// Changes between global and a split mode by the number of conflicts (`dispatcher.shuffle`).
    Auto,
    /// Every scheduler uses all nodes alike.
    Global,
    /// Own nodes first, then the others.
    Preferred,
    /// Own nodes only; a unit that fits on no scheduler's nodes is tried once on all nodes.
    Strict,
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
            Verb::Unit(UnitVerb::Describe(which)) => {
                let (namespace, name) = split(&which.namespace, &which.names[0]);
                (namespace.to_owned(), name.to_owned())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(split(&["godel", "unit", "describe", "web"]), (String::new(), "web".to_owned()));
        assert_eq!(split(&["godel", "unit", "describe", "shop/web"]), ("shop".to_owned(), "web".to_owned()));
        assert_eq!(
            split(&["godel", "unit", "describe", "-n", "shop", "web"]),
            ("shop".to_owned(), "web".to_owned())
        );
    }
}
