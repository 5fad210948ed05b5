//! Candidate cost `lowest-highest-rank`: the most important victim decides.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct LowestHighestRank;

impl Plugin for LowestHighestRank {
    const NAME: &'static str = "lowest-highest-rank";
    const DOC: &'static str = "Prefers places whose victim of the highest rank has the lowest one.";
}

impl CandidateCost for LowestHighestRank {
    const NOBODY: i64 = 0;

    #[inline]
    fn with(cost: i64, victim: &CountedVictim) -> i64 {
        cost.max(victim.rank.weight())
    }
}
