//! Configuration of the binder.

use godel_core_binder::leader::BinderLeaderConfig;
use godel_domain::sub_cluster;
use godel_kit::config::{
    ClientConfig, HumanDuration, IdentityConfig, LeaseConfig, ServerConfig, TelemetryConfig, TxnConfig,
};

godel_kit::section! {
    /// The binder: conflict check and commit.
    pub struct Config {
        /// Maximum number of bytes of operations and preconditions in one transaction. A larger decision gets a
        /// transaction of its own.
        pub txn_bytes_max: usize = 512 << 10,
        /// Maximum number of running units in one transaction.
        pub txn_placements_max: usize = 8_192,
        /// Maximum number of transactions in progress. A low value makes larger transactions.
        pub txns_in_flight_max: usize = 4,
        /// Maximum number of decisions that wait to be checked. Beyond the limit the binder stops reading streams.
        pub queued_max: usize = 65_536,
        /// Maximum number of running units in decisions without an outcome. Beyond the limit the binder stops reading
        /// streams.
        pub placements_open_max: usize = 1 << 20,
        /// Longest time that a decision waits for a record on which it depends and which the binder has not read yet.
        pub wait_max: HumanDuration = HumanDuration::from_secs(10),
        /// Longest time that room is held for running units whose victims have not left yet.
        pub hold_max: HumanDuration = HumanDuration::from_secs(600),
        /// Longest time that a gang or a large unit gathers room. Then the turn passes to the next one.
        pub gang_hold_max: HumanDuration = HumanDuration::from_secs(300),
        /// Node label whose value is the sub-cluster of the node; if the label is absent, the attribute of that name.
        /// Must equal the dispatcher's key. Gangs of different sub-clusters gather room at the same time.
        pub sub_cluster_key: String = sub_cluster::KEY.to_owned(),
        /// Best-effort running units are evicted (squeezed) after they have exceeded the room that guaranteed running
        /// units leave on their node for this long.
        pub squeeze_after: HumanDuration = HumanDuration::from_secs(2),
        /// Maximum number of answers that wait on one stream. The stream of a scheduler that does not read them is
        /// closed.
        pub outcomes_queued_max: usize = 1_024,
        /// For tests: `name[:n][,…]` aborts the process at the n-th hit of a crash point. Empty: no crash point is
        /// armed.
        pub crash_points: String = String::new(),
    }
    sections {
        /// The gRPC server.
        pub server: ServerConfig = ServerConfig::on_port(7702),
        /// Clients of the state service.
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
    /// What the leading binder needs of it.
    pub(crate) fn leader(&self) -> BinderLeaderConfig {
        let ms = |duration: &HumanDuration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        BinderLeaderConfig {
            txn_bytes_max: self.txn_bytes_max,
            txn_placements_max: self.txn_placements_max,
            queued_max: self.queued_max,
            placements_open_max: self.placements_open_max,
            wait_ms: ms(&self.wait_max),
            hold_ms: ms(&self.hold_max),
            gang_hold_ms: ms(&self.gang_hold_max),
            squeeze_ms: ms(&self.squeeze_after),
            sub_cluster_key: self.sub_cluster_key.clone(),
        }
    }
}
