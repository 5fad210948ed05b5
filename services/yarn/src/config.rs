//! Configuration of the YARN adapter.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use godel_core_yarn::adapter::AdapterTerms;
use godel_core_yarn_leader::{YarnAmount, YarnLeaderConfig};
use godel_domain::yarn_keys::YarnKeyPeriod;
use godel_kit::config::{
    ClientConfig, HumanDuration, IdentityConfig, LeaseConfig, ServerConfig, TelemetryConfig, TxnConfig,
};

/// Longest notice of an eviction that a unit may have.
const NOTICE_MS_MAX: u32 = 300_000;
/// Longest time for which a unit may be kept after its end, milliseconds.
const TTL_MS_MAX: u64 = 365 * DAY * 1_000;
/// Seconds of a day.
const DAY: u64 = 86_400;

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

godel_kit::section! {
    /// The YARN adapter: unmodified YARN clients submit applications, and godel schedules them.
    pub struct Config {
        /// Run the adapter in `godel up`. `godel serve yarn` runs it in any case.
        pub enabled: bool = false,
        /// Address for clients of YARN (`yarn.resourcemanager.address`).
        pub client_address: SocketAddr = loopback(8032),
        /// Address for application masters (`yarn.resourcemanager.scheduler.address`).
        pub master_address: SocketAddr = loopback(8030),
        /// Address for administrators (`yarn.resourcemanager.admin.address`).
        pub admin_address: SocketAddr = loopback(8033),
        /// Address of the REST API (`yarn.resourcemanager.webapp.address`).
        pub rest_address: SocketAddr = loopback(8088),
        /// Let clients and masters on other machines call: `client_address`, `master_address`, `admin_address` and `rest_address` may
        /// be addresses that other machines can reach. Users without a token are believed by name, as with YARN's simple authentication,
        /// and nothing is encrypted: whoever reaches these addresses runs commands in YARN's queues. Each such address is warned of.
        pub simple_auth: bool = false,
        /// File with hosts that take no containers, one a line (`yarn.resourcemanager.nodes.exclude-path`), which `yarn rmadmin -refreshNodes`
        /// has read. Not set: that call is refused.
        pub exclude_file: Option<PathBuf> = None,
        /// Time that nodes get to become empty where `yarn rmadmin -refreshNodes -g` names none
        /// (`yarn.resourcemanager.nodemanager-graceful-decommission-timeout-secs`).
        pub decommission_timeout: HumanDuration = HumanDuration::from_secs(3_600),
        /// Folder with YARN's `capacity-scheduler.xml` and `yarn-site.xml`, of which the adapter takes who may do what (`yarn.acl.enable`,
        /// `yarn.admin.acl`, `acl_*` of queues) and which queues users go to (`yarn.scheduler.capacity.queue-mappings`). Read at the
        /// start. Not set: everybody may do everything, and applications go to the queue that they name.
        pub conf_dir: Option<PathBuf> = None,
        /// Namespace of the units that applications become.
        pub namespace: String = "yarn".to_owned(),
        /// Path of the queue that YARN's clients see as `root`. Empty: all queues are below `root`.
        pub root_queue: String = String::new(),
        /// Label of nodes whose value is their rack, without `/`; if the label is absent, the attribute of that name.
        pub rack_key: String = "rack".to_owned(),
        /// Label of nodes whose value is their label (partition) in YARN. Containers without a label do not go to nodes with one.
        pub label_key: String = "godel.dev/yarn-label".to_owned(),
        /// Maximum number of attempts of one application (`yarn.resourcemanager.am.max-attempts`).
        pub max_attempts: u32 = 2,
        /// A master that is silent for this long has failed (`yarn.am.liveness-monitor.expiry-interval-ms`).
        pub master_expiry: HumanDuration = HumanDuration::from_secs(600),
        /// A container that its master does not start within this time is given back
        /// (`yarn.resourcemanager.rm.container-allocation.expiry-interval-ms`).
        pub container_expiry: HumanDuration = HumanDuration::from_secs(600),
        /// Time between telling a master that a container is taken from it by preemption and its stop, at most 5min.
        /// 0: none. What runs in the best-effort pool has none.
        pub preemption_grace: HumanDuration = HumanDuration::from_secs(5),
        /// An attempt whose master cannot be started within this time has failed.
        pub launch_timeout: HumanDuration = HumanDuration::from_secs(120),
        /// Memory that one container gets at least, MiB (`yarn.scheduler.minimum-allocation-mb`), as clients are told.
        pub minimum_allocation_mb: u32 = 1_024,
        /// CPUs that one container gets at least (`yarn.scheduler.minimum-allocation-vcores`), as clients are told.
        pub minimum_allocation_vcores: u32 = 1,
        /// Maximum number of applications that have not ended. Beyond the limit submissions are refused.
        pub applications_max: usize = 10_000,
        /// Maximum number of applications that have ended and are still shown (`yarn.resourcemanager.max-completed-applications`).
        pub completed_max: usize = 1_000,
        /// The unit of an application is kept for this long after its end, with its logs, at most one year. Until then every service that
        /// follows the store has some KiB of it.
        pub unit_ttl: HumanDuration = HumanDuration::from_secs(3_600),
        /// Maximum size of how a master is started (its launch context), bytes.
        pub launch_bytes_max: usize = 256 << 10,
        /// Maximum number of calls of the dispatcher in progress.
        pub calls_max: usize = 64,
        /// A key signs tokens for this long. Tokens do not live longer.
        pub key_period: HumanDuration = HumanDuration::from_secs(DAY),
        /// The next key is handed out this long before it signs.
        pub key_lead: HumanDuration = HumanDuration::from_secs(300),
        /// For tests: `name[:n][,…]` aborts the process at the n-th hit of a crash point. Empty: no crash point is armed.
        pub crash_points: String = String::new(),
    }
    sections {
        /// The gRPC server.
        pub server: ServerConfig = ServerConfig::on_port(7704),
        /// Clients of the state service and the dispatcher.
        pub client: ClientConfig,
        /// The certificate of the process.
        pub identity: IdentityConfig,
        /// The lease of the leader.
        pub lease: LeaseConfig,
        /// The transactions to the store.
        pub txn: TxnConfig,
        /// Logs.
        pub telemetry: TelemetryConfig,
    }
}

impl Config {
    /// What the leader needs of it.
    pub(crate) fn leader(&self) -> YarnLeaderConfig {
        let signed = |duration: &HumanDuration| i64::try_from(duration.ms()).unwrap_or(i64::MAX);
        YarnLeaderConfig {
            terms: AdapterTerms {
                max_attempts: self.max_attempts,
                master_expiry_ms: self.master_expiry.ms(),
                container_expiry_ms: self.container_expiry.ms(),
            },
            namespace: self.namespace.clone(),
            root_queue: self.root_queue.clone(),
            rack_key: self.rack_key.clone(),
            label_key: self.label_key.clone(),
            launch_timeout_ms: self.launch_timeout.ms(),
            minimum_allocation: YarnAmount {
                memory_mb: i64::from(self.minimum_allocation_mb),
                vcores: i64::from(self.minimum_allocation_vcores),
                others: BTreeMap::new(),
            },
            applications_max: self.applications_max,
            completed_max: self.completed_max,
            launch_bytes_max: self.launch_bytes_max,
            key_period: YarnKeyPeriod { every_ms: signed(&self.key_period), lead_ms: signed(&self.key_lead) },
        }
    }

    /// The notice of a container that is preempted, within what a unit may have.
    pub(crate) fn notice_ms(&self) -> u32 {
        u32::try_from(self.preemption_grace.ms()).unwrap_or(u32::MAX).min(NOTICE_MS_MAX)
    }

    /// Milliseconds for which a unit is kept after its end.
    pub(crate) fn unit_ttl_ms(&self) -> u64 {
        self.unit_ttl.ms().min(TTL_MS_MAX)
    }

    /// How long a running unit waits for its command: as long as its master is given to start it, and the same for the master.
    pub(crate) fn await_ms(&self, is_master: bool) -> u64 {
        if is_master { self.launch_timeout.ms() } else { self.container_expiry.ms() }
    }
}
