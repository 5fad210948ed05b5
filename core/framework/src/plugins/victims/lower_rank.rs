//! Victim rule `lower-rank`: nobody leaves for its equal.

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct LowerRank;

impl Plugin for LowerRank {
    const NAME: &'static str = "lower-rank";
    const DOC: &'static str = "The rank of the running unit is strictly lower than that of the preemptor: a queue within its guarantee \
                               stands above one that borrows, then the priority decides.";
}

impl VictimRule for LowerRank {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        let is_lower = |priority| of.sides.outranked(of.seeker.priority, priority);
        match of.terms {
            Some(terms) if is_lower(terms.priority) => Ok(()),
            _ => Err(Spared::Refused("its rank is not lower")),
        }
    }
}
