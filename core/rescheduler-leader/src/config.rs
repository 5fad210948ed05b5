//! What the leader is configured with beside its policies.

use godel_core_rescheduler::DriverTerms;

use crate::SnapshotConfig;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescheduleLeaderConfig {
    /// What bounds the execution of movements.
    pub driver: DriverTerms,
    /// What snapshots depend on.
    pub snapshot: SnapshotConfig,
    /// Most moves of one movement.
    pub moves_max: usize,
    /// How long the best that any plan could reach is looked for when somebody wants to see a plan, milliseconds; 0: not at all.
    pub bound_ms: u64,
    /// A gang that has waited for so long asks for room by itself, milliseconds; 0: none does.
    pub make_room_after_ms: u64,
    /// Most ended movements that are kept.
    pub movements_max: usize,
    /// Ended movements are kept for so long, milliseconds.
    pub movements_ttl_ms: u64,
}
