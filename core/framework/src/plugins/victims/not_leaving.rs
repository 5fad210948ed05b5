//! Victim rule `not-leaving`: what leaves already gives its room to the one that it leaves for.

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct NotLeaving;

impl Plugin for NotLeaving {
    const NAME: &'static str = "not-leaving";
    const DOC: &'static str = "The running unit is of another unit than the preemptor, has not ended, and is not being evicted already.";
}

impl VictimRule for NotLeaving {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        if of.unit == of.seeker.unit || !of.row.phase.is_live() || of.row.eviction.is_some() {
            return Err(Spared::Refused("leaves already"));
        }
        Ok(())
    }
}
