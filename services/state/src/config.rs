//! Configuration of the state service.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use godel_identity::{
    leaves::{LIFETIME_MS_MAX, LIFETIME_MS_MIN},
    names::ClusterName,
};
use godel_kit::{
    address::Speech,
    config::{HumanDuration, LeaseConfig, ServerConfig},
};
use godel_membership::leases::{TTL_MS_MAX, TTL_MS_MIN};
use godel_wire::BadField;
use serde::{Deserialize, Serialize};

use crate::identities::{SealPlace, server_names};

mod etcd;

pub use etcd::EtcdSection;

/// Port of the state service.
pub const PORT: u16 = 7700;
/// The time that an agent has to stop a running unit before state places it elsewhere.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// Most DNS names and addresses that are configured: with those that state knows itself they fit its certificate.
const N_SAN_MAX: usize = 24;

/// Most statuses in one message of an agent: what one session may have that is not durable yet.
const STATUSES_MAX: u32 = 16_384;

/// Where the store keeps its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// In files of the data directory; survives power loss.
    #[default]
    Sled,
    /// In memory; gone with the process. For tests.
    Memory,
    /// In an etcd; survives what that survives.
    Etcd,
}

/// Whether members prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// No: state answers plain text, and whoever reaches it is an administrator.
    Off,
    /// Yes.
    On,
    /// Yes, and plain text is answered too, for as long as not everybody speaks TLS yet.
    Migrate,
}

impl TlsMode {
    /// What state speaks.
    pub fn speech(self) -> Speech {
        match self {
            Self::Off => Speech::PlainText,
            Self::Migrate => Speech::Both,
            Self::On => Speech::Tls,
        }
    }
}

godel_kit::section! {
    /// The state service.
    pub struct Config {
        /// Name of this state service in the directory of members: `member/state/<name>`.
        pub name: String = "main".to_owned(),
        /// Storage engine: `sled` stores everything in `data_dir`; `etcd` stores it in the etcd of `etcd.endpoints`, and in `data_dir`
        /// how far it came; `memory` stores nothing beyond the process.
        pub engine: EngineKind = EngineKind::Sled,
        /// Directory of the store. It is created if absent.
        pub data_dir: PathBuf = PathBuf::from("godel-data/state"),
        /// Interval at which agents send heartbeats.
        pub heartbeat_interval: HumanDuration = HumanDuration::from_millis(3_300),
        /// Agents shorten each heartbeat interval by a random part of it, up to this percentage, so that thousands of
        /// nodes do not speak at once. At most 50.
        pub heartbeat_jitter_percent: u32 = 10,
        /// Maximum number of statuses of running units that an agent sends in one message.
        pub report_statuses_max: u32 = 4_096,
        /// A node is not ready after this long without contact. At least two heartbeat intervals.
        pub node_lease_ttl: HumanDuration = HumanDuration::from_secs(10),
        /// Interval between checks of the nodes' leases.
        pub node_scan_interval: HumanDuration = HumanDuration::from_millis(250),
        /// Time from the loss of a node's lease to the eviction of its running units, which are then placed on other
        /// nodes. A new leader of the dispatcher reads this value and restarts the grace of each lost node. More than
        /// 5 s above `node_lease_ttl`.
        pub node_grace: HumanDuration = HumanDuration::from_secs(60),
        /// The record of a node on which nothing runs is deleted after this long without a session. Not set: never. A
        /// restart of state begins the count anew. At least `node_grace`.
        pub node_absence: Option<HumanDuration> = None,
        /// Agents stop gangs and stateful groups after this long without contact. 0: never. Not set: `node_grace`
        /// minus 5 s, which is also the maximum. A change applies to later assignments only.
        pub stop_after_disconnect: Option<HumanDuration> = None,
        /// Time window of the usage that is withheld from best-effort running units: the 95th percentile of the usage
        /// of guaranteed running units over the window, or their moving average if that is higher.
        pub usage_window: HumanDuration = HumanDuration::from_secs(600),
        /// Half-life of the moving average of usage.
        pub usage_half_life: HumanDuration = HumanDuration::from_secs(60),
        /// Headroom that is withheld from best-effort running units beyond the usage, in percent of the usage. At
        /// most 1,000.
        pub usage_headroom_percent: u32 = 10,
        /// The usage of a node is recorded when it has changed by more than this percentage of the node. At most 100.
        pub usage_step_percent: u32 = 2,
        /// The median and the 95th percentile of the usage of a node are recorded when one of them has changed by more than
        /// this percentage of the node. At most 100.
        pub load_step_percent: u32 = 5,
        /// A node whose agent refuses this many assignments within `quarantine_window` is quarantined: it gets no new
        /// assignments. 0: never.
        pub quarantine_refusals: usize = 3,
        /// A node on which this many replicas end at once within `quarantine_window`, whose commands run on other nodes, is
        /// quarantined; so is one where this many units with different commands do, nothing else does well, and other units do
        /// elsewhere. It never is the last node that something could use. 0: never.
        pub quarantine_failures: usize = 3,
        /// Time window in which refused assignments and replicas that end at once are counted (`quarantine_refusals`,
        /// `quarantine_failures`).
        pub quarantine_window: HumanDuration = HumanDuration::from_secs(60),
        /// Length of a quarantine. `godel node uncordon` ends it earlier.
        pub quarantine_for: HumanDuration = HumanDuration::from_secs(600),
        /// Timeout for the first message of a session.
        pub session_open_timeout: HumanDuration = HumanDuration::from_secs(10),
        /// Interval at which an idle watch sends its progress (a bookmark). At most 1 s.
        pub watch_bookmark_interval: HumanDuration = HumanDuration::from_millis(500),
        /// A generation of the log ends at this many bytes, or at twice the size of its snapshot if that is more.
        pub generation_bytes_min: u64 = 32 << 20,
        /// Watch history that is kept on disk: this many bytes of log, or the log of the last `history_age_min` if
        /// that is less. The log since the previous generation is always kept.
        pub history_bytes_min: u64 = 256 << 20,
        /// Age of the watch history that is kept on disk (`history_bytes_min`).
        pub history_age_min: HumanDuration = HumanDuration::from_secs(600),
        /// Writes are refused while fewer bytes than this are free on the disk. With the engine `etcd`, a fifth of `etcd.quota_bytes`.
        pub disk_reserve_bytes: u64 = 64 << 20,
        /// Memory for the newest watch history, in bytes.
        pub watch_history_bytes: u64 = 64 << 20,
        /// A watch that is further behind than this many bytes is closed.
        pub watch_backlog_bytes: u64 = 48 << 20,
        /// A watch that is further behind than this many transactions is closed.
        pub watch_backlog_items: u64 = 65_536,
        /// Maximum number of calls, and of streams, that state forwards at once to the dispatcher, the binder and schedulers. Further
        /// ones are refused with RESOURCE_EXHAUSTED and a retry hint. One connection may hold as many as are free, that is, at
        /// most half of them.
        pub forwarded_max: usize = 2_048,
        /// TLS: `on` makes a CA at the first start, and members, agents and people prove who they are; `migrate` answers plain
        /// text as well; `off` answers plain text alone, and whoever reaches it is an administrator. Not set: `on`; but `off` with
        /// `--insecure`, and for a store that was made without a CA.
        pub tls: Option<TlsMode> = None,
        /// Name of the cluster in identities; read when the CA is made, and never again. Not set: `godel-` and 8 random
        /// hexadecimal digits.
        pub cluster: Option<String> = None,
        /// Directory of `seal.key`, the key that seals the CA's keys in the store. It is created if absent. Not set: `pki` beside
        /// `data_dir`, in a directory that is this cluster's own; with the engine `memory` the key is in memory too.
        pub pki_dir: Option<PathBuf> = None,
        /// Unix socket at which whoever runs state is the administrator without a token; with TLS only. Not set: `godel.sock` beside
        /// `data_dir`, as with `pki_dir`; with the engine `memory` none.
        pub socket: Option<PathBuf> = None,
        /// Lifetime of the certificates of identities. They are renewed after a third of it. 30 s to 30 days.
        pub leaf_lifetime: HumanDuration = HumanDuration::from_secs(24 * 3_600),
        /// Further DNS names and addresses in the certificate of state, for people's tools; at most 24.
        pub san: Vec<String> = Vec::new(),
        /// Lines of the change log go after this long. At least 1 s.
        pub changes_age_max: HumanDuration = HumanDuration::from_secs(30 * 24 * 3_600),
        /// Maximum number of lines of the change log; the oldest go first. At most half of them are of refused calls, so that these push out
        /// no changes. At least 100.
        pub changes_max: usize = 50_000,
        /// For tests: `name[:n][,…]` aborts the process at the n-th hit of a crash point. Empty: no crash point is
        /// armed.
        pub crash_points: String = String::new(),
        /// For tests: while this file exists, state signs nothing, so that no certificate is issued or renewed. Not set: it always signs.
        pub signing_fails_while: Option<PathBuf> = None,
    }
    sections {
        /// The gRPC server.
        pub server: ServerConfig = ServerConfig { concurrency_limit: 8_192, ..ServerConfig::on_port(PORT) },
        /// The lease of the registration.
        pub lease: LeaseConfig,
        /// The etcd of the engine `etcd`.
        pub etcd: EtcdSection,
    }
}

impl Config {
    /// After how long without contact an agent stops what must not run twice; zero never.
    pub fn stop_after_disconnect(&self) -> Duration {
        match self.stop_after_disconnect {
            Some(given) => *given,
            None => self.node_grace.saturating_sub(STOP_MARGIN),
        }
    }

    /// Where the unix socket is.
    pub fn socket(&self) -> Option<PathBuf> {
        match (&self.socket, self.engine) {
            (Some(path), _) => Some(path.clone()),
            (None, EngineKind::Memory) => None,
            (None, EngineKind::Sled | EngineKind::Etcd) => Some(self.beside_data().join("godel.sock")),
        }
    }

    /// The directory in which the data directory is.
    pub(crate) fn beside_data(&self) -> &Path {
        let parent = self.data_dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    /// Where the key is that seals what signs.
    pub(crate) fn seal_place(&self) -> SealPlace {
        match (&self.pki_dir, self.engine) {
            (Some(dir), _) => SealPlace::Dir(dir.clone()),
            (None, EngineKind::Memory) => SealPlace::Memory,
            (None, EngineKind::Sled | EngineKind::Etcd) => {
                SealPlace::Beside { data_dir: self.data_dir.clone(), pki: self.beside_data().join("pki") }
            }
        }
    }

    /// Checks what the types do not say.
    ///
    /// # Errors
    /// The first impossible setting.
    pub fn validate(&self) -> Result<(), BadField> {
        let bad = |path: &str, what: &str| Err(BadField::new(path, what));
        if !godel_membership::leases::is_lease_name(&format!("member/state/{}", self.name)) {
            return bad("name", "must be lower-case letters, digits, - and ., 1 to 63 of them");
        }
        if self.heartbeat_interval.as_millis() < 10 {
            return bad("heartbeat_interval", "must be at least 10 ms");
        }
        if self.heartbeat_jitter_percent > 50 {
            return bad("heartbeat_jitter_percent", "must be at most 50");
        }
        if !(1..=STATUSES_MAX).contains(&self.report_statuses_max) {
            return bad("report_statuses_max", "must be 1 to 16,384");
        }
        if self.node_lease_ttl.as_millis() < 2 * self.heartbeat_interval.as_millis() {
            return bad("node_lease_ttl", "must be at least two heartbeat intervals");
        }
        if *self.node_grace <= *self.node_lease_ttl + STOP_MARGIN {
            return bad("node_grace", "must be more than 5 s above node_lease_ttl");
        }
        if self.node_absence.is_some_and(|absence| *absence < *self.node_grace) {
            return bad("node_absence", "must be at least node_grace; leave it out to keep every node");
        }
        let stop_after = self.stop_after_disconnect();
        let longest = self.node_grace.saturating_sub(STOP_MARGIN);
        if !stop_after.is_zero() && !(*self.node_lease_ttl..=longest).contains(&stop_after) {
            return bad("stop_after_disconnect", "must be 0, or from node_lease_ttl to node_grace minus 5 s");
        }
        if self.node_scan_interval.is_zero() {
            return bad("node_scan_interval", "must be above 0");
        }
        if self.usage_window.as_millis() < 60 {
            return bad("usage_window", "must be at least 60 ms");
        }
        if self.usage_half_life.is_zero() {
            return bad("usage_half_life", "must be above 0");
        }
        if self.usage_headroom_percent > 1_000 {
            return bad("usage_headroom_percent", "must be at most 1,000");
        }
        if self.usage_step_percent > 100 {
            return bad("usage_step_percent", "must be at most 100");
        }
        if self.load_step_percent > 100 {
            return bad("load_step_percent", "must be at most 100");
        }
        if self.watch_bookmark_interval.is_zero() || self.watch_bookmark_interval.as_millis() > 1_000 {
            return bad("watch_bookmark_interval", "must be above 0 and at most 1 s");
        }
        let lifetime_ms = self.leaf_lifetime.as_millis();
        if !(u128::from(LIFETIME_MS_MIN)..=u128::from(LIFETIME_MS_MAX)).contains(&lifetime_ms) {
            return bad("leaf_lifetime", "must be 30 s to 30 days");
        }
        if self.changes_age_max.as_millis() < 1_000 {
            return bad("changes_age_max", "must be at least 1 s");
        }
        if self.changes_max < 100 {
            return bad("changes_max", "must be at least 100");
        }
        if let Some(Err(why)) = self.cluster.as_ref().map(|cluster| cluster.parse::<ClusterName>()) {
            return bad("cluster", &why.to_string());
        }
        if self.san.len() > N_SAN_MAX {
            return bad("san", "must be at most 24 names and addresses");
        }
        server_names(&self.san).map_err(|bad| BadField::new("san", bad.to_string()))?;
        if !(u128::from(TTL_MS_MIN)..=u128::from(TTL_MS_MAX)).contains(&self.lease.ttl.as_millis()) {
            return bad("lease.ttl", "must be 500 ms to 60 s");
        }
        if self.engine == EngineKind::Etcd {
            self.etcd.validate()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_named() {
        assert_eq!(Config::default().validate(), Ok(()));
        type Change = fn(&mut Config);
        let changes: [(&str, Change); 24] = [
            ("leaf_lifetime", |config| config.leaf_lifetime = HumanDuration::from_secs(29)),
            ("cluster", |config| config.cluster = Some("My Cluster".to_owned())),
            ("san", |config| config.san = vec!["http://state".to_owned()]),
            ("san", |config| config.san = vec!["state".to_owned(); 25]),
            ("usage_window", |config| config.usage_window = HumanDuration::from_millis(59)),
            ("usage_half_life", |config| config.usage_half_life = HumanDuration::from_millis(0)),
            ("usage_headroom_percent", |config| config.usage_headroom_percent = 1_001),
            ("usage_step_percent", |config| config.usage_step_percent = 101),
            ("load_step_percent", |config| config.load_step_percent = 101),
            ("name", |config| config.name = "No Such".to_owned()),
            ("heartbeat_interval", |config| config.heartbeat_interval = HumanDuration::from_millis(1)),
            ("heartbeat_jitter_percent", |config| config.heartbeat_jitter_percent = 51),
            ("report_statuses_max", |config| config.report_statuses_max = 0),
            ("report_statuses_max", |config| config.report_statuses_max = 16_385),
            ("node_lease_ttl", |config| config.node_lease_ttl = HumanDuration::from_secs(5)),
            ("node_grace", |config| config.node_grace = HumanDuration::from_secs(15)),
            ("node_absence", |config| config.node_absence = Some(HumanDuration::from_secs(59))),
            ("stop_after_disconnect", |config| {
                config.stop_after_disconnect = Some(HumanDuration::from_millis(55_001));
            }),
            ("stop_after_disconnect", |config| {
                config.stop_after_disconnect = Some(HumanDuration::from_secs(9));
            }),
            ("node_scan_interval", |config| config.node_scan_interval = HumanDuration::from_millis(0)),
            ("watch_bookmark_interval", |config| {
                config.watch_bookmark_interval = HumanDuration::from_secs(2)
            }),
            ("changes_age_max", |config| config.changes_age_max = HumanDuration::from_millis(999)),
            ("changes_max", |config| config.changes_max = 99),
            ("lease.ttl", |config| config.lease.ttl = HumanDuration::from_millis(10)),
        ];
        for (path, change) in changes {
            let mut config = Config::default();
            change(&mut config);
            assert_eq!(config.validate().unwrap_err().path, path);
        }
    }

    #[test]
    fn agents_stop_before_the_grace_is_over() {
        let config = Config::default();
        assert_eq!(config.stop_after_disconnect(), Duration::from_secs(55));
        let never = Config { stop_after_disconnect: Some(HumanDuration::from_secs(0)), ..Config::default() };
        assert_eq!((never.validate(), never.stop_after_disconnect()), (Ok(()), Duration::ZERO));
    }
}
