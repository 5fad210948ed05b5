//! Score `spread-preference`: prefers domains with fewer running units.

use crate::{
    args::NoArgs,
    ask::Ask,
    point::{Plugin, SCORE_MAX, Score, ScoreInput},
};

/// The plugin.
#[derive(Debug)]
pub struct SpreadPreference;

impl Plugin for SpreadPreference {
    const NAME: &'static str = "spread-preference";
    const DOC: &'static str = "Prefers nodes whose domains have fewer running units, by the entries of `affinity.spread` that have a weight: with ten \
                               more than in the domain with the fewest the score is half. No effect on units without such entries.";
}

impl Score for SpreadPreference {
    type Args = NoArgs;

    fn new(NoArgs {}: NoArgs) -> Result<Self, String> {
        Ok(Self)
    }

    fn concerns(&self, ask: &Ask) -> bool {
        ask.unit().is_some_and(|unit| unit.rules.prefers_spread())
    }

    fn score(&self, place: &ScoreInput<'_>) -> i64 {
        let Some(unit) = place.ask.unit() else { return SCORE_MAX };
        // Hundredths of a running unit; it falls with each of them and stays above 0.
        let more = place.cluster.domains().unevenness(&unit.rules, unit.takers, place.idx);
        SCORE_MAX * 1_000 / more.saturating_add(1_000)
    }
}
