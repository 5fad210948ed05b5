//! Candidate cost `least-lost-work`: what victims have done so far is lost.

use crate::point::{CandidateCost, CountedVictim, Plugin};

/// The plugin.
#[derive(Debug)]
pub struct LeastLostWork;

impl Plugin for LeastLostWork {
    const NAME: &'static str = "least-lost-work";
    const DOC: &'static str = "Prefers places whose victims have run for the shortest time, all together.";
}

impl CandidateCost for LeastLostWork {
    const NOBODY: i64 = 0;

    #[inline]
    fn with(cost: i64, victim: &CountedVictim) -> i64 {
        cost.saturating_add(victim.ran_ms)
    }
}
