//! The flags of `godel unit submit`: everything that a unit file with one task group can say.

use std::{path::PathBuf, time::Duration};

use clap::{
    Args as ClapArgs,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use godel_base::duration;
use godel_domain::{host_port::HostPort, names};

use super::{run::RunFlags, words};

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

/// Reads a label that is asked for, `key=value`.
///
/// # Errors
/// It is of another form: an operator that selectors of commands do not know would match nothing.
pub fn label_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, value)| {
        // `==` is an operator elsewhere.
        names::label_key(key).is_ok()
            && names::text(value, names::NAME_LEN_MAX).is_ok()
            && !value.starts_with('=')
    });
    let Some((key, value)) = pair else {
        return Err(format!(
            "`{text}` is not of the form key=value: a label and the value that it has; there are no other operators here"
        ));
    };
    Ok((key.to_owned(), value.to_owned()))
}

/// `godel unit submit`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Submit {
    /// Unit files; `-` reads standard input.
    #[arg(long = "file", short = 'f', value_name = "FILE", required_unless_present = "named")]
    pub files: Vec<PathBuf>,
    /// Name of a unit given by flags.
    #[arg(long, group = "named", conflicts_with = "files")]
    pub name: Option<String>,
    /// Beginning of the name of a unit given by flags, instead of --name: eight letters and digits are added.
    #[arg(long, group = "named", value_name = "PREFIX", conflicts_with_all = ["files", "name"])]
    pub generate_name: Option<String>,
    /// Namespace of a unit given by flags, or of units whose file has none. Default: that of your principal (`godel whoami`), or `default`.
    #[arg(long, short = 'n', default_value = "")]
    pub namespace: String,
    /// Idempotence key of the submission, a UUID. Default: generated.
    #[arg(long, requires = "named", value_name = "UUID")]
    pub uid: Option<String>,
    /// Labels for selection, as `app=web`.
    #[arg(long = "label", requires = "named", value_delimiter = ',', value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Owner of the unit. Default: the name of the user who submits it.
    #[arg(long, requires = "named")]
    pub owner: Option<String>,
    /// Workload class: service, stateful, batch, gang, stream, training, yarn or daemon; default batch.
    #[arg(long, requires = "named")]
    pub class: Option<String>,
    /// Path of the queue, as `prod.search`.
    #[arg(long, requires = "named", value_name = "PATH")]
    pub queue: Option<String>,
    /// Priority; higher wins. Default from the priority class, or by workload class.
    #[arg(long, requires = "named", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Name of the priority class.
    #[arg(long, requires = "named", value_name = "NAME")]
    pub priority_class: Option<String>,
    /// Pool: guaranteed or best-effort. Default by workload class.
    #[arg(long, requires = "named")]
    pub pool: Option<String>,
    /// Minimum size of the first binding. Default by workload class.
    #[arg(long, requires = "named", value_name = "N")]
    pub min_member: Option<u32>,
    /// Number of replicas. Default 1; not for a daemon, which has one on each node that it may have.
    #[arg(long, requires = "named", value_name = "N")]
    pub replicas: Option<u32>,
    /// CPU of each replica, as `500m`.
    #[arg(long, requires = "named")]
    pub cpu: Option<String>,
    /// Memory of each replica, as `1Gi`.
    #[arg(long, requires = "named")]
    pub memory: Option<String>,
    /// Any resources of each replica, as `fpga=1`.
    #[arg(long = "request", requires = "named", value_delimiter = ',', value_name = "RESOURCE=QUANTITY", value_parser = pair)]
    pub requests: Vec<(String, String)>,
    /// GPUs of each replica: `2`, `2:A10`, or `0.5` for a share of one.
    #[arg(long, requires = "named")]
    pub gpu: Option<String>,
    /// Other devices of each replica, by kind: `nic=1`, or `nic=0.5` for a share of one. As with `--gpu`, `;key=value` says what
    /// they have to be besides: `nic=1;gbps=100;same_zone_as=gpu`.
    #[arg(long = "device", requires = "named", value_delimiter = ',', value_name = "KIND=COUNT", value_parser = pair)]
    pub devices: Vec<(String, String)>,
    /// How the resources of each replica lie in the zones of its node: none, best-effort, restricted, single-zone or exclusive;
    /// default none, or single-zone with dedicated CPUs.
    #[arg(long, requires = "named", value_name = "POLICY", value_parser = |text: &str| words::of(text, &words::ZONE_POLICY))]
    pub zone_policy: Option<i32>,
    /// Whose the CPUs of each replica are: shared, dedicated or reclaimed; default by pool.
    #[arg(long, requires = "named", value_name = "MODE", value_parser = |text: &str| words::of(text, &words::CPU_MODE))]
    pub cpu_mode: Option<i32>,
    /// Ports of the node that each replica listens on: `8080`, `53/udp`. No other replica of the node has one of them.
    #[arg(long = "host-port", requires = "named", value_delimiter = ',', value_name = "PORT[/PROTOCOL]")]
    pub host_ports: Vec<HostPort>,
    /// Conditions on the labels of the nodes, all of which must hold: `zone=a`, `'zone in (a, b), !spot, cores > 64'`.
    #[arg(long, requires = "named", value_name = "SELECTOR")]
    pub node_selector: Vec<String>,
    /// Terms of conditions on the labels of the nodes, one of which must hold: give the flag once for each term.
    #[arg(long, requires = "named", value_name = "SELECTOR")]
    pub require_nodes: Vec<String>,
    /// Nodes that are better than others, by their labels: `10:disk=ssd`; the weight is 1 to 100, by default 1.
    #[arg(long, requires = "named", value_name = "WEIGHT:SELECTOR")]
    pub prefer_nodes: Vec<String>,
    /// How much of a node may be used when it takes a replica, in percent: `cpu=80,memory=90`.
    #[arg(long, requires = "named", value_delimiter = ',', value_name = "RESOURCE=PERCENT", value_parser = pair)]
    pub max_load: Vec<(String, String)>,
    /// Topology key of which all replicas are in one domain: a label of nodes, as `rack`, or `node`.
    #[arg(long, requires = "named", value_name = "KEY")]
    pub topology: Option<String>,
    /// Topology keys of which the first min_member replicas are in one domain if that is possible, the narrowest first.
    #[arg(long, requires = "named", value_delimiter = ',', value_name = "KEY")]
    pub prefer_topology: Vec<String>,
    /// Label of which the nodes of all replicas have one value, as `gpu.model`.
    #[arg(long, requires = "named", value_name = "KEY")]
    pub homogeneous: Option<String>,
    /// Groups of so many replicas are each in one domain, as `8@rack`.
    #[arg(long, requires = "named", value_name = "SIZE@KEY")]
    pub segments: Option<String>,
    /// Units beside which each replica runs: in `rack:app=db` the topology key, which is a label of nodes (`node`: the
    /// node itself), then conditions on the labels of the units; without these, the unit itself. `10@rack:app=db` is a
    /// preference with the weight 10 of 1 to 100. Give the flag once for each term.
    #[arg(long, requires = "named", value_name = "[WEIGHT@]TOPOLOGY[:SELECTOR]")]
    pub near: Vec<String>,
    /// Units apart from which each replica runs, in the notation of --near: `node` for replicas on different nodes,
    /// `5@rack:app=web`.
    #[arg(long, requires = "named", value_name = "[WEIGHT@]TOPOLOGY[:SELECTOR]")]
    pub apart: Vec<String>,
    /// Domains over which units are spread evenly, in the notation of --near: `rack`, `rack=2` for a difference of at
    /// most 2 (default 1), `10@rack=2:app=web`.
    #[arg(long, requires = "named", value_name = "[WEIGHT@]TOPOLOGY[=MAX_SKEW][:SELECTOR]")]
    pub spread: Vec<String>,
    /// Tolerated taints: `KEY=VALUE:EFFECT`; without value all of the key, without effect both (no-schedule,
    /// prefer-no-schedule), `*` for all keys.
    #[arg(long = "toleration", requires = "named", value_delimiter = ',', value_name = "TAINT")]
    pub tolerations: Vec<String>,
    /// What each replica runs.
    #[command(flatten)]
    pub run: RunFlags,
    /// When a replica that ended by itself is restarted: never, on-failure or always. Default by workload class.
    #[arg(long, requires = "named", value_name = "POLICY")]
    pub restart_policy: Option<String>,
    /// Maximum number of in-place restarts in a row. Default 3.
    #[arg(long, requires = "named", value_name = "N")]
    pub max_restarts: Option<u32>,
    /// Name of the profile that the unit is placed by: least-allocated (spreads), most-allocated (packs) or another one of
    /// the schedulers' configuration. Default by sub-cluster, else by workload class.
    #[arg(long, requires = "named", value_name = "NAME")]
    pub profile: Option<String>,
    /// Effect of an eviction for the sake of others. Default requeue.
    #[arg(long, requires = "named", value_parser = on_eviction())]
    pub on_eviction: Option<i32>,
    /// Effect when fewer than min_member replicas are left. Default keep.
    #[arg(long, requires = "named", value_parser = on_below_min())]
    pub on_below_min: Option<i32>,
    /// Effect when a replica has failed and is not restarted. Default by workload class.
    #[arg(long, requires = "named", value_parser = on_failure())]
    pub on_failure: Option<i32>,
    /// Whether units of higher rank may preempt it. Default by workload class.
    #[arg(long, requires = "named", value_name = "BOOL")]
    pub preemptible: Option<bool>,
    /// Time after the binding in which a running unit is not preempted. Default 0s.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub min_run: Option<u64>,
    /// Replacements of a service that may start before what they replace stops, where it is moved. Default 0.
    #[arg(long, requires = "named")]
    pub max_surge: Option<u32>,
    /// Whether the rescheduler may move its running units. Default: unless they may not be preempted.
    #[arg(long, requires = "named", value_name = "BOOL")]
    pub movable: Option<bool>,
    /// Wait after which the unit is shown as Unschedulable; it is still tried. Default 5m.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub scheduling_timeout: Option<u64>,
    /// Active time after which the unit fails. Default: never.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub active_deadline: Option<u64>,
    /// How long the record is kept after the end. Default 1h.
    #[arg(long, requires = "named", value_parser = duration::parse_ms)]
    pub ttl_after_finished: Option<u64>,
    /// Wait until every replica is bound.
    #[arg(long)]
    pub wait: bool,
    /// Timeout of the wait.
    #[arg(long, default_value = "60s", value_parser = duration::parse_whole)]
    pub timeout: Duration,
    /// Program and arguments.
    #[arg(last = true, requires = "named")]
    pub command: Vec<String>,
}

/// Parses the words for what becomes of a replica or of a unit; each has its help.
fn effects<const N: usize>(
    words: words::WordTable<N>,
    helps: [&'static str; N],
) -> impl TypedValueParser<Value = i32> {
    let values = words.into_iter().zip(helps).map(|((word, _), help)| PossibleValue::new(word).help(help));
    PossibleValuesParser::new(values).map(move |given| words::of(&given, &words).unwrap_or_default())
}

fn on_eviction() -> impl TypedValueParser<Value = i32> {
    effects(words::ON_EVICTION, ["The replica returns as its next incarnation", "The replica has failed"])
}

fn on_below_min() -> impl TypedValueParser<Value = i32> {
    effects(
        words::ON_BELOW_MIN,
        [
            "The rest continues; the missing ones return one by one",
            "The rest is evicted too, and min_member are bound together again",
            "The unit ends as failed",
        ],
    )
}

fn on_failure() -> impl TypedValueParser<Value = i32> {
    effects(
        words::ON_FAILURE,
        [
            "The rest continues",
            "The whole unit restarts, at most max_restarts times; then it ends",
            "The unit ends as failed",
        ],
    )
}
