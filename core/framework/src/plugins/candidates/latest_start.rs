//! Candidate cost `latest-start`: what has run for longest stays.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct LatestStart;

impl Plugin for LatestStart {
    const NAME: &'static str = "latest-start";
    const DOC: &'static str = "Prefers places whose longest-running victim was bound last.";
}

impl CandidateCost for LatestStart {
    const NOBODY: i64 = i64::MIN;

    #[inline]
    fn with(cost: i64, victim: &CountedVictim) -> i64 {
        // `!` turns the order of times around, without an overflow.
        cost.max(!victim.bound_time_ms)
    }
}
