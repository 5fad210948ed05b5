//! Candidate cost `fewest-masters`: an application ends with its master.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct FewestMasters;

impl Plugin for FewestMasters {
    const NAME: &'static str = "fewest-masters";
    const DOC: &'static str = "Prefers places for which the fewest masters of YARN applications leave.";
}

impl CandidateCost for FewestMasters {
    const NOBODY: i64 = 0;

    #[inline]
    fn with(cost: i64, victim: &CountedVictim) -> i64 {
        cost + i64::from(victim.is_master)
    }
}
