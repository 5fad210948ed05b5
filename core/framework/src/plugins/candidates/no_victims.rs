//! Candidate cost `no-victims`: room without an eviction comes first.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct NoVictims;

impl Plugin for NoVictims {
    const NAME: &'static str = "no-victims";
    const DOC: &'static str = "Prefers places for which nobody has to leave.";
}

impl CandidateCost for NoVictims {
    const NOBODY: i64 = 0;

    #[inline]
    fn with(_cost: i64, _victim: &CountedVictim) -> i64 {
        1
    }
}
