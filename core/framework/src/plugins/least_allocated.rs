//! Score `least-allocated`: spreads. The emptier the node would be over cpu, memory and devices, the better.

use super::most_allocated::allocated;
use crate::{SCORE_MAX, Score, ScoreInput};

/// The plugin.
#[derive(Debug)]
pub struct LeastAllocated;

impl Score for LeastAllocated {
    fn name(&self) -> &'static str {
        "least-allocated"
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        SCORE_MAX - allocated(place)
    }
}
