//! What the leader is configured with.

use godel_core_yarn::adapter::AdapterTerms;
use godel_domain::yarn_keys::YarnKeyPeriod;

use crate::reports::YarnAmount;

/// What the leader is configured with, beside who may do what.
#[derive(Clone, Debug)]
pub struct YarnLeaderConfig {
    /// How attempts and containers end by themselves.
    pub terms: AdapterTerms,
    /// Namespace of the units that applications become.
    pub namespace: String,
    /// Path of the queue that YARN's clients see as `root`; empty: all queues are below `root`.
    pub root_queue: String,
    /// Label or attribute of nodes whose value is their rack, without `/`.
    pub rack_key: String,
    /// Label of nodes whose value is their label in YARN.
    pub label_key: String,
    /// An attempt whose master cannot be started within this time has failed, milliseconds.
    pub launch_timeout_ms: u64,
    /// What one container gets at least, as clients are told.
    pub minimum_allocation: YarnAmount,
    /// Applications that have not ended, at most.
    pub applications_max: usize,
    /// Applications that have ended and are still shown, at most.
    pub completed_max: usize,
    /// Bytes of how a master is started, at most.
    pub launch_bytes_max: usize,
    /// When keys roll over.
    pub key_period: YarnKeyPeriod,
}
