//! Score `spread`: prefers nodes with fewer replicas of the unit, for units of class service and stateful.
//!
//! Each replica counts `STEP`: of two nodes that hold one replica more or less, the emptier one is taken unless its other
//! scores are 10 points of 100 worse, which is what *near-equal* means. A node of which a tenth more is taken is still a good
//! one for a service, and the loss of a node costs it one replica less. Where every node has many replicas it is enough to
//! tell them apart.

use crate::{
    args::NoArgs,
    ask::Ask,
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
};

/// Points that a replica costs its node, for the first [`N_STEPS`] replicas.
const STEP: i64 = SCORE_MAX / 10;
/// With more replicas the rest of the points is divided among them: the score falls with each replica and stays above 0.
const N_STEPS: i64 = 9;

/// The plugin.
#[derive(Debug)]
pub struct Spread;

impl Plugin for Spread {
    const NAME: &'static str = "spread";
    const DOC: &'static str = "For units of class service and stateful with several replicas: prefers nodes with fewer replicas of the unit; \
                               each replica counts 10 points of 100. No effect on other units.";
}

impl Score for Spread {
    type Args = NoArgs;

    fn new(NoArgs {}: NoArgs) -> Result<Self, String> {
        Ok(Self)
    }

    fn concerns(&self, ask: &Ask) -> bool {
        ask.spreads()
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        of_replicas(place.cluster.taken().counts.of(place.idx))
    }
}

fn of_replicas(n: u32) -> i64 {
    let n = i64::from(n);
    if n <= N_STEPS { SCORE_MAX - n * STEP } else { STEP * N_STEPS / n }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_replica_makes_a_node_worse() {
        assert_eq!([0, 1, 9].map(of_replicas), [100_000, 90_000, 10_000]);
        assert!((0..300).all(|n| of_replicas(n) > of_replicas(n + 1)));
        assert!(of_replicas(u32::MAX) >= 0);
    }
}
