//! Candidate cost `lowest-rank-sum`: all victims together, each by its rank.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct LowestRankSum;

impl Plugin for LowestRankSum {
    const NAME: &'static str = "lowest-rank-sum";
    const DOC: &'static str = "Prefers places with the lowest sum of the ranks of all victims. Each victim counts, so that one more is never less.";
}

impl CandidateCost for LowestRankSum {
    const NOBODY: i64 = 0;

    #[inline]
    fn with(cost: i64, victim: &CountedVictim) -> i64 {
        cost.saturating_add(victim.rank.weight())
    }
}
