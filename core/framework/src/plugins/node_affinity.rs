//! Score `node-affinity`: prefers nodes that meet preferred terms.
//!
//! The score is the sum of the weights of the terms that the node meets, as a part of the sum of all of them: as in Kubernetes,
//! but for the divisor, which is the highest sum that any node has there.

use crate::{
    args::NoArgs,
    ask::Ask,
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
};

/// The plugin.
#[derive(Debug)]
pub struct NodeAffinityScore;

impl Plugin for NodeAffinityScore {
    const NAME: &'static str = "node-affinity";
    const DOC: &'static str = "Prefers nodes that meet terms of `node_affinity.preferred`: the weights of the terms that a node meets, as a part of the \
                               sum of all weights. No effect on replicas that prefer nothing.";
}

impl Score for NodeAffinityScore {
    type Args = NoArgs;

    fn new(NoArgs {}: NoArgs) -> Result<Self, String> {
        Ok(Self)
    }

    fn concerns(&self, ask: &Ask) -> bool {
        !ask.requirements().node_affinity.preferred.is_empty()
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let labels = place.cluster.nodes().node_labels(place.idx);
        let preferred = &place.ask.preferred;
        let met = preferred.iter().filter(|(_, term)| term.accept(labels)).map(|(weight, _)| weight);
        let (met, all) = (met.sum::<i64>(), preferred.iter().map(|(weight, _)| weight).sum::<i64>());
        met * SCORE_MAX / all.max(1)
    }
}
