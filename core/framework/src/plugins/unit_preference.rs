//! Score `unit-preference`: prefers domains near to running units, or apart from others.

use crate::{
    args::NoArgs,
    ask::Ask,
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
};

/// The plugin.
#[derive(Debug)]
pub struct UnitPreference;

impl Plugin for UnitPreference {
    const NAME: &'static str = "unit-preference";
    const DOC: &'static str = "Prefers nodes by the terms of `affinity.near` and `affinity.apart` that have a weight: the weights of the terms that the \
                               domain of the node meets, as a part of all. No effect on units without such terms.";
}

impl Score for UnitPreference {
    type Args = NoArgs;

    fn new(NoArgs {}: NoArgs) -> Result<Self, String> {
        Ok(Self)
    }

    fn concerns(&self, ask: &Ask) -> bool {
        ask.unit().is_some_and(|unit| unit.rules.prefers())
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let unit = place.ask.unit();
        unit.map_or(0, |unit| place.cluster.domains().preference(&unit.rules, place.idx) * SCORE_MAX / 1_000)
    }
}
