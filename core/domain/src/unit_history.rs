//! What is kept of a unit once its record is deleted: who it was, how it ended, and what it used.

use std::collections::BTreeMap;

use crate::{
    lifecycle::UnitPhase,
    running_units::Phase,
    unit::{UnitEnd, WorkloadClass},
};
use godel_base::ids::{NodeId, UnitId};

/// Replicas that are kept one by one; of a larger unit only the sums tell of the others.
pub const N_RUNS_MAX: usize = 1_000;

/// An ended unit, for accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitHistory {
    /// Its id.
    pub id: UnitId,
    /// Of its record.
    pub namespace: String,
    /// Of its record.
    pub name: String,
    /// Of its record.
    pub uid: String,
    /// Of its record.
    pub owner: String,
    /// Path of the queue that paid.
    pub queue: String,
    /// Kind of work.
    pub class: WorkloadClass,
    /// How it ended: a terminal phase.
    pub phase: UnitPhase,
    /// Why the dispatcher ended it.
    pub ended: Option<UnitEnd>,
    /// Commit time of its submission, Unix milliseconds.
    pub created_ms: i64,
    /// Commit time of its first binding, Unix milliseconds; 0: it had no node.
    pub bound_ms: i64,
    /// Time of its end, Unix milliseconds.
    pub ended_ms: i64,
    /// Replicas wanted, with those that were compacted before the unit's end.
    pub replicas: u32,
    /// Of those the ones that ended with exit code 0.
    pub succeeded: u32,
    /// Of those the ones that failed.
    pub failed: u32,
    /// Time on nodes of the last incarnation of each replica, added up, milliseconds.
    pub run_ms: u64,
    /// What they were given for so long, by resource or kind of device: milli-core-seconds of `cpu`, mebibyte-seconds of
    /// `memory`, thousandths of devices for seconds, and of anything else whole ones for seconds.
    pub used: BTreeMap<String, u64>,
    /// The first replicas that had a node, by ordinal.
    pub runs: Vec<RunHistory>,
    /// How often replicas had a node: each incarnation of each counts.
    pub starts: u64,
    /// Who submitted it, as in its record.
    pub principal: String,
}

/// A replica of an ended unit, in its last incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHistory {
    /// Its ordinal.
    pub ordinal: u32,
    /// The incarnation.
    pub incarnation: u32,
    /// How far it came.
    pub phase: Phase,
    /// Its last node.
    pub node: NodeId,
    /// Of its end.
    pub exit_code: i32,
    /// In place.
    pub restarts: u32,
    /// Commit time of its binding, Unix milliseconds.
    pub bound_ms: i64,
    /// Time of its end, Unix milliseconds.
    pub ended_ms: i64,
}
