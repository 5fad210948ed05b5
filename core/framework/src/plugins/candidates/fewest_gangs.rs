//! Candidate cost `fewest-gangs`: few units that end as a whole.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct FewestGangs;

impl Plugin for FewestGangs {
    const NAME: &'static str = "fewest-gangs";
    const DOC: &'static str = "Prefers places for which the fewest units leave whole because they would be too small without their victims.";
}

impl CandidateCost for FewestGangs {
    const NOBODY: i64 = 0;

    #[inline]
    fn with(cost: i64, victim: &CountedVictim) -> i64 {
        cost + i64::from(victim.ends_gang)
    }
}
