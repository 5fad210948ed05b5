//! Victim rule `min-run`: what has just begun is left alone for a while.

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct MinRun;

impl Plugin for MinRun {
    const NAME: &'static str = "min-run";
    const DOC: &'static str = "The running unit has run for `min_run` of its unit. Until then the preemptor waits, and looks again at the \
                               moment at which the first running unit may leave.";
}

impl VictimRule for MinRun {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        let min_run_ms = of.terms.map_or(0, |terms| i64::try_from(terms.min_run_ms).unwrap_or(i64::MAX));
        let free_at = of.row.bound_time_ms.saturating_add(min_run_ms);
        if free_at > of.seeker.now_ms { Err(Spared::Until(free_at)) } else { Ok(()) }
    }
}
