//! Configuration of the binder.

use godel_core_binder::leader::BinderLeaderConfig;
use godel_domain::sub_cluster;
use godel_kit::config::{ClientConfig, HumanDuration, LeaseConfig, ServerConfig, TelemetryConfig, TxnConfig};

godel_kit::section! {
    /// The binder: conflict check and commit.
    pub struct Config {
        /// Bytes of operations and preconditions in one transaction; a single larger decision still goes.
        pub txn_bytes_max: usize = 512 << 10,
        /// Running units in one transaction.
        pub txn_placements_max: usize = 8_192,
        /// Transactions under way at once. Few: while they are, decisions gather into larger ones.
        pub txns_in_flight_max: usize = 4,
        /// Decisions that wait to be checked; beyond that streams are read no further.
        pub queued_max: usize = 65_536,
        /// Running units in decisions without an outcome; beyond that streams are read no further.
        pub placements_open_max: usize = 1 << 20,
        /// A decision waits so long for a record that it rests on and that was not read yet.
        pub wait_max: HumanDuration = HumanDuration::from_secs(10),
        /// Room is held so long at most for running units whose victims have yet to leave.
        pub hold_max: HumanDuration = HumanDuration::from_secs(600),
        /// A gang gathers room so long at most; then it is the next one's turn.
        pub gang_hold_max: HumanDuration = HumanDuration::from_secs(300),
        /// Label, or else attribute, of a node whose value is its sub-cluster; as the dispatcher's. Gangs of different ones
        /// gather room at the same time.
        pub sub_cluster_key: String = sub_cluster::KEY.to_owned(),
        /// Best-effort running units leave when they are above what guaranteed ones leave of their node for so long.
        pub squeeze_after: HumanDuration = HumanDuration::from_secs(2),
        /// Answers that may wait on one stream; a scheduler that does not read them is cut off.
        pub outcomes_queued_max: usize = 1_024,
        /// For tests: `name[:n][,…]` makes the process die at the n-th hit of a point; empty arms nothing.
        pub crash_points: String = String::new(),
    }
    sections {
        /// Where it serves.
        pub server: ServerConfig = ServerConfig::on_port(7702),
        /// How it calls the state service.
        pub client: ClientConfig,
        /// Its leadership.
        pub lease: LeaseConfig,
        /// Its transactions.
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
