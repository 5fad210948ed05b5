//! Configuration of an agent process.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use godel_base::{
    quantity,
    resources::{CPU, MEMORY, Resources},
};
use godel_core_agent::{ADMINISTRATOR, LocalUserRow, user_table};
use godel_kit::{
    address::{ServerAddress, parse_list},
    config::{ClientConfig, HumanDuration, IdentityConfig},
};
use serde::{Deserialize, Serialize};

pub use self::local_users::LocalUserConfig;
use crate::use_model::UseModel;

mod local_users;

/// A smaller file would hold a few lines only.
const LOG_BYTES_MIN: u64 = 1024;

/// Where an installation keeps what the cluster is administered with.
const CLUSTER_PATHS: [&str; 3] = ["/etc/godel", "/run/godel", "/var/lib/godel"];

/// Longest name of a network interface, as the kernel has it.
const INTERFACE_LEN_MAX: usize = 15;

/// What becomes of running units when their agent is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnitsAtStop {
    /// They go on.
    #[default]
    Keep,
    /// They end, each with its grace.
    End,
}

/// Whether units that have an image run as containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UseDocker {
    /// Once the engine answers.
    #[default]
    Auto,
    /// The agent does not start without the engine.
    On,
    /// Never.
    Off,
}

godel_kit::section! {
    /// What a real node needs to start YARN containers (see `docs/nodes.md`).
    pub struct YarnConfig {
        /// Start containers for application masters, which call the node over Hadoop RPC. The node then has the attribute
        /// `godel.dev/yarn-port`, and `godel.dev/yarn-host`.
        pub enabled: bool = false,
        /// Address at which application masters call. Port 0: a free one. One that other machines can reach needs `simple_auth`.
        pub listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8041)),
        /// Let masters on other machines call, over Hadoop RPC, which is not encrypted: each shows the token of its container.
        pub simple_auth: bool = false,
        /// User that containers run as where the agent runs as root, as YARN's `nonsecure-mode.local-user`; where units have users
        /// (`agent.users`), it is one of them, and owners that have a row of their own run as that says. Not set: the first of
        /// `agent.users`, or without these the user of the agent.
        pub local_user: Option<String> = None,
        /// All containers run as `local_user`, as with YARN's `nonsecure-mode.limit-users`, since nobody proves to be a submitter. `false`:
        /// submitters with a row in `agent.users` run as themselves, unless the row has `administers`. Without `agent.users`, in
        /// plain text, submitters run as themselves in any case if this machine has a user of the name, and it is not root.
        pub limit_users: bool = true,
        /// `JAVA_HOME` of containers that do not set it themselves. Not set: none.
        pub java_home: Option<String> = None,
        /// `HADOOP_CONF_DIR` of containers that do not set it themselves. Not set: none.
        pub hadoop_conf_dir: Option<String> = None,
        /// Bytes of the resources of one container, unpacked; a container with larger ones fails.
        pub resource_max_bytes: u64 = 16 << 30,
        /// File with the certificates (PEM) of the authorities that certify web servers from which resources come over `https:`.
        pub resource_ca_file: PathBuf = PathBuf::from("/etc/ssl/certs/ca-certificates.crt"),
    }
}

godel_kit::section! {
    /// Agents: sessions with state, and simulated nodes.
    pub struct Config {
        /// Number of connections over which the sessions are spread.
        pub connections: usize = 8,
        /// Maximum number of nodes that register at the same time, over all connections.
        pub registrations_in_flight: usize = 256,
        /// Divisor of simulated durations and of the pauses before restarts.
        pub speed: f64 = 1.0,
        /// Longest random delay before a lost session is opened again.
        pub reconnect_spread: HumanDuration = HumanDuration::from_secs(5),
        /// Directory of what the agent has to know when it starts again: running units that go on without it, their logs, and
        /// terminal statuses that are not acknowledged yet. One agent at a time may use it. Not set: in memory only, and
        /// running units end with the agent.
        pub state_dir: Option<PathBuf> = None,
        /// Host name or address at which running units of other nodes reach those of this one (`GODEL_PEERS`). Not set: the name of
        /// the node.
        pub advertise: Option<String> = None,
        /// What becomes of the running units of a real node when its agent is stopped: `keep` lets them go on, and the next
        /// agent takes them over; `end` ends them, each with its grace. An agent that is killed always leaves them running.
        pub units_at_stop: UnitsAtStop = UnitsAtStop::Keep,
        /// A file of the log of a running unit holds this many bytes before the next one begins.
        pub log_max_bytes: u64 = 16 << 20,
        /// Number of files of the log of one running unit; the oldest is removed when there would be more. At least 2.
        pub log_files: usize = 4,
        /// Time for which logs of earlier incarnations of a replica are kept after their end. The last two on the node are kept as
        /// long as the unit is.
        pub log_keep: HumanDuration = HumanDuration::from_secs(24 * 3600),
        /// Bytes of the logs of ended running units, in all; above it the oldest are removed.
        pub log_ended_max_bytes: u64 = 10 << 30,
        /// While less memory of a real node is available than this many percent, best-effort running units are ended, those first
        /// that are furthest above what they asked for. 0: never.
        pub memory_low_percent: u32 = 3,
        /// Address of the HTTP server for `/metrics` and `/healthz`. Not set: no server.
        pub metrics_listen: Option<SocketAddr> = None,
        /// Listen in plain text on an address that other machines can reach (`metrics_listen`, and `yarn.listen` as with
        /// `yarn.simple_auth`): nothing is encrypted, and nobody is asked who calls. The flag `--insecure` sets this.
        pub insecure: bool = false,
        /// Local users as which units of a real node may run, the first one also those that name none; for an agent that runs as root.
        /// Units that name another user, by image or not, do not start. A row with `owners` and `groups` is for their units alone, which run
        /// as its user unless they name another one. Empty: `godel-unit`; where the agent calls state in plain text, any user.
        pub users: Vec<LocalUserConfig> = Vec::new(),
        /// Files and directories of the cluster on this machine, such as `pki`, sockets, identities and join files. Units run as the owner
        /// of one, or of something directly in one, only where the row of that user in `users` has `administers`.
        pub cluster_paths: Vec<PathBuf> = CLUSTER_PATHS.map(PathBuf::from).to_vec(),
        /// The principal that started the agent: an agent that calls state over TLS and does not run as root runs units of this
        /// principal alone. A `*` at the end stands for anything, as in `yarn/*`.
        pub principal: String = ADMINISTRATOR.to_owned(),
        /// Time window of the usage that agents report as its median and 95th percentile.
        pub load_window: HumanDuration = HumanDuration::from_secs(300),
        /// Modelled mean usage of guaranteed running units on a simulated node, in percent of their requests.
        pub usage_percent: u32 = 50,
        /// Modelled usage of best-effort running units, in percent of their requests. It is constant.
        pub usage_best_effort_percent: u32 = 90,
        /// Daily swing of the modelled usage up and down, in percent of the requests. A process starts at the lowest
        /// point.
        pub usage_swing_percent: u32 = 0,
        /// Length of the modelled day, divided by `speed`.
        pub usage_day: HumanDuration = HumanDuration::from_secs(24 * 3600),
        /// Random noise of the modelled usage up and down, in percent of the requests. It follows from `seed`.
        pub usage_noise_percent: u32 = 0,
        /// Time from the start of the process to a burst of usage, divided by `speed`.
        pub usage_burst_at: HumanDuration = HumanDuration::from_secs(0),
        /// Length of the burst of usage, divided by `speed`. 0: no burst.
        pub usage_burst_for: HumanDuration = HumanDuration::from_secs(0),
        /// Increase of usage during the burst, in percent of the requests.
        pub usage_burst_percent: u32 = 0,
        /// Maximum number of running units on a node, unless the list or shape of the node sets another limit.
        pub max_running_units: u32 = godel_domain::node::MAX_RUNNING_UNITS,
        /// CPUs of a real node that running units are not given, as `500m` or `2`: they are for the system and the agent.
        pub reserve_cpu: String = "0".to_owned(),
        /// Memory of a real node that running units are not given, as `4Gi`.
        pub reserve_memory: String = "0".to_owned(),
        /// TOML file with what cannot be discovered of a real node, or is to be other than it is found: attributes,
        /// capacity, devices and zones (see `docs/nodes.md`). Not set: none.
        pub inventory: Option<PathBuf> = None,
        /// NVIDIA's management library, which a real node asks for its GPUs: a name that the loader finds, or a path.
        pub nvml_library: String = "libnvidia-ml.so.1".to_owned(),
        /// A management library that has not listed the GPUs within this time is left alone: its driver hangs.
        pub nvml_timeout: HumanDuration = HumanDuration::from_secs(10),
        /// Run each command of a real node in a control group of its own, with its CPU and memory limits and the CPUs of
        /// its zones.
        pub cgroups: bool = true,
        /// Control group below which those of running units are made, as `/godel`; the same in every hierarchy. Not set: the
        /// group of the agent.
        pub cgroup_root: Option<String> = None,
        /// Measure what running units of a real node send and receive (`nft`) and use of the memory's bandwidth (`resctrl`), and keep them to
        /// what they ask for of `network` (`tc`) and `memory-bandwidth`, as far as the machine can.
        pub bandwidth: bool = true,
        /// Network interfaces on which running units are kept to what they ask for of `network`, with commas between them. Empty: those that
        /// are hardware.
        pub network_interfaces: String = String::new(),
        /// Run units that have an image as containers of the Docker engine of a real node: `auto` once the engine answers; `on`
        /// always, and the agent does not start without the engine; `off` never.
        pub docker: UseDocker = UseDocker::Auto,
        /// Socket of the Docker engine.
        pub docker_socket: PathBuf = PathBuf::from("/var/run/docker.sock"),
        /// Time in which the registry of an image must deliver it, if the image is not on the node.
        pub docker_pull_timeout: HumanDuration = HumanDuration::from_secs(600),
        /// For tests: number of assignments that each node refuses first.
        pub refuse_first: u32 = 0,
        /// Seed of the jitter. Not set: a new seed for each process.
        pub seed: Option<u64> = None,
    }
    sections {
        /// Clients of the state service. Opening a connection may take longer than elsewhere: after a restart of state thousands of
        /// handshakes are under way at once, and one that is given up is done for nothing. For the same reason they are begun over 5 s.
        pub client: ClientConfig = ClientConfig {
            connect_timeout: HumanDuration::from_secs(10),
            state_retry_max: HumanDuration::from_secs(5),
            ..ClientConfig::default()
        },
        /// The certificate of the agent.
        pub identity: IdentityConfig,
        /// YARN containers on a real node.
        pub yarn: YarnConfig,
    }
}

impl Config {
    /// What is wrong with it, by field; empty when nothing is.
    pub fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if !(self.speed.is_finite() && self.speed > 0.0) {
            wrong.push(format!("speed: {} is not a number above 0", self.speed));
        }
        for (key, value) in
            [("connections", self.connections), ("registrations_in_flight", self.registrations_in_flight)]
        {
            if value == 0 {
                wrong.push(format!("{key}: must be at least 1"));
            }
        }
        for (key, percent) in [
            ("usage_percent", self.usage_percent),
            ("usage_best_effort_percent", self.usage_best_effort_percent),
            ("usage_swing_percent", self.usage_swing_percent),
            ("usage_noise_percent", self.usage_noise_percent),
            ("usage_burst_percent", self.usage_burst_percent),
        ] {
            if percent > 100 {
                wrong.push(format!("{key}: {percent} is more than 100"));
            }
        }
        if self.log_max_bytes < LOG_BYTES_MIN {
            wrong.push(format!("log_max_bytes: {} is less than {LOG_BYTES_MIN}", self.log_max_bytes));
        }
        if self.memory_low_percent > 100 {
            wrong.push(format!("memory_low_percent: {} is more than 100", self.memory_low_percent));
        }
        if self.log_files < 2 {
            wrong.push(
                "log_files: must be at least 2, so that something is there when a new one begins".to_owned(),
            );
        }
        if self.load_window.is_zero() {
            wrong.push("load_window: must be above 0".to_owned());
        }
        if self.usage_day.is_zero() {
            wrong.push("usage_day: must be above 0".to_owned());
        }
        // The names stand in commands of `tc`.
        let is_name = |name: &str| {
            name.len() <= INTERFACE_LEN_MAX
                && name.chars().all(|char| char.is_ascii_alphanumeric() || "._-@".contains(char))
        };
        if let Some(name) = self.network_interfaces().find(|name| !is_name(name)) {
            wrong.push(format!("network_interfaces: `{name}` is no name of an interface"));
        }
        if self.docker_pull_timeout.is_zero() {
            wrong.push("docker_pull_timeout: must be above 0".to_owned());
        }
        if !self.principal.contains('/') {
            wrong.push(format!("principal: `{}` is not one, as `{ADMINISTRATOR}` is", self.principal));
        }
        wrong.extend(self.reserve().err());
        wrong
    }

    /// Paths whose owners administer the cluster: those that are configured, and the files of the agent's own identity.
    pub(crate) fn own_cluster_paths(&self) -> Vec<PathBuf> {
        let own = [self.identity.dir.as_str(), self.identity.join_file.as_str()].map(PathBuf::from);
        let is_file = |path: &PathBuf| !path.as_os_str().is_empty() && path.as_os_str() != "-";
        // The keeper of a run has another working directory.
        let own = own.into_iter().filter(is_file).filter_map(|path| std::path::absolute(path).ok());
        self.cluster_paths.iter().cloned().chain(own).collect()
    }

    /// Whether it calls state so that each knows who the other one is, and not in plain text.
    fn has_identity(&self) -> bool {
        let addresses = parse_list(&self.client.state, self.client.security.speaks_tls());
        let is_plain = |address: &ServerAddress| matches!(address, ServerAddress::PlainText(_));
        !addresses.is_ok_and(|addresses| addresses.iter().any(is_plain))
    }

    /// As whom units may run; `None`: as anybody.
    pub(crate) fn user_table(&self) -> Option<Vec<LocalUserRow>> {
        let rows: Vec<LocalUserRow> = self.users.iter().map(LocalUserConfig::row).collect();
        // Without root it runs them as itself, if they are of its principal, and as those of a table that it cannot become not at all.
        let is_root = rustix::process::geteuid().is_root();
        let yarn_user = self.yarn.local_user.as_deref();
        user_table(&rows, yarn_user, self.has_identity() && is_root)
    }

    /// The principal whose units alone may run; empty: anybody's may.
    pub(crate) fn only_principal(&self, is_root: bool) -> String {
        if self.has_identity() && !is_root { self.principal.clone() } else { String::new() }
    }

    /// The interfaces that are named.
    pub(crate) fn network_interfaces(&self) -> impl Iterator<Item = &str> {
        self.network_interfaces.split(',').map(str::trim).filter(|name| !name.is_empty())
    }

    /// Returns what a real node keeps from running units.
    ///
    /// # Errors
    /// A quantity that cannot be read, with the name of its key.
    pub(crate) fn reserve(&self) -> Result<Resources, String> {
        let amount = |name: &'static str, text: &str| {
            let amount = quantity::parse(name, text).map_err(|error| format!("reserve_{name}: {error}"))?;
            Ok::<_, String>((name, amount))
        };
        Resources::new([amount(CPU, &self.reserve_cpu)?, amount(MEMORY, &self.reserve_memory)?])
    }

    /// Modelled use, in the time of this process.
    pub(crate) fn use_model(&self, seed: u64) -> UseModel {
        let scaled = |duration: HumanDuration| match u64::try_from(duration.as_millis()).unwrap_or(u64::MAX) {
            0 => 0,
            ms => self.scaled_ms(ms),
        };
        UseModel {
            mean_percent: self.usage_percent,
            best_effort_percent: self.usage_best_effort_percent,
            swing_percent: self.usage_swing_percent,
            day_ms: scaled(self.usage_day),
            noise_percent: self.usage_noise_percent,
            burst_at_ms: scaled(self.usage_burst_at),
            burst_ms: scaled(self.usage_burst_for),
            burst_percent: self.usage_burst_percent,
            seed,
        }
    }

    /// A simulated duration in the time of this process.
    pub(crate) fn scaled_ms(&self, duration_ms: u64) -> u64 {
        let scaled = Duration::from_millis(duration_ms).as_secs_f64() / self.speed;
        let longest = Duration::from_secs(365 * 24 * 3600);
        let duration = Duration::try_from_secs_f64(scaled).unwrap_or(longest).min(longest);
        // At least one, however fast the clock runs.
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_scale_with_speed_and_never_become_endless() {
        let at = |speed| Config { speed, ..Config::default() };
        assert_eq!(at(1.0).scaled_ms(1500), 1500);
        assert_eq!(at(100.0).scaled_ms(150_000), 1500);
        assert_eq!(at(1e12).scaled_ms(10), 1);
        assert_eq!(at(1e-300).scaled_ms(10), 24 * 365 * 3_600_000);
        assert_eq!(at(0.0).violations().len(), 1);
        assert_eq!(at(f64::NAN).violations().len(), 1);
        assert!(Config::default().violations().is_empty());
        let of_nobody = Config { principal: "admin".to_owned(), ..Config::default() };
        assert_eq!(of_nobody.violations(), ["principal: `admin` is not one, as `person/admin` is"]);
        let named = |names: &str| Config { network_interfaces: names.to_owned(), ..Config::default() };
        assert!(named("eth0, bond0.7").violations().is_empty());
        assert_eq!(named("eth0,a b").violations(), ["network_interfaces: `a b` is no name of an interface"]);
    }

    #[test]
    fn an_agent_without_root_has_a_principal_where_it_has_an_identity() {
        for (state, is_root, principal) in [
            ("http://127.0.0.1:7700", false, ""),
            ("127.0.0.1:7700", false, ""),
            ("http://127.0.0.1:7700,http://127.0.0.2:7700", false, ""),
            ("https://127.0.0.1:7700", false, "person/admin"),
            ("https://127.0.0.1:7700,https://127.0.0.2:7700", false, "person/admin"),
            ("https://127.0.0.1:7700", true, ""),
        ] {
            let mut config = Config::default();
            state.clone_into(&mut config.client.state);
            assert_eq!(config.only_principal(is_root), principal, "{state}");
        }
    }

    #[test]
    fn a_reserve_is_read_or_named() {
        let with = |cpu: &str, memory: &str| Config {
            reserve_cpu: cpu.to_owned(),
            reserve_memory: memory.to_owned(),
            ..Config::default()
        };
        let reserve = with("500m", "4Gi").reserve().unwrap();
        assert_eq!((reserve.get(CPU), reserve.get(MEMORY)), (500, 4 << 30));
        assert!(with("-1", "0").violations()[0].starts_with("reserve_cpu: `-1`"));
        assert!(with("0", "much").violations()[0].starts_with("reserve_memory: `much`"));
    }
}
