//! Candidate cost `fewest-victims`: few evictions, whatever their ranks are.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct FewestVictims;

impl Plugin for FewestVictims {
    const NAME: &'static str = "fewest-victims";
    const DOC: &'static str = "Prefers places for which the fewest running units leave.";
}

impl CandidateCost for FewestVictims {
    const NOBODY: i64 = 0;

    #[inline]
    fn with(cost: i64, _victim: &CountedVictim) -> i64 {
        cost + 1
    }
}
