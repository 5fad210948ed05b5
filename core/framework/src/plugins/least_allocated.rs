//! Score `least-allocated`: spreads. The emptier the node would be over cpu, memory and devices, the better.

use super::most_allocated::{AllocationArgs, ResourceWeights, allocated};
use crate::point::{Plugin, SCORE_MAX, Score, ScoreInput};

/// The plugin.
#[derive(Debug)]
pub struct LeastAllocated {
    weights: ResourceWeights,
}

impl Plugin for LeastAllocated {
    const NAME: &'static str = "least-allocated";
    const DOC: &'static str =
        "Prefers nodes of which the least would be allocated after the placement: spreads.";
}

impl Score for LeastAllocated {
    type Args = AllocationArgs;

    fn new(args: AllocationArgs) -> Result<Self, String> {
        Ok(Self { weights: args.weights()? })
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        SCORE_MAX - allocated(&self.weights, place)
    }
}
