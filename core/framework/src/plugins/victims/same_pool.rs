//! Victim rule `same-pool`: only the pool that pays for the preemptor gains room for it.

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct SamePool;

impl Plugin for SamePool {
    const NAME: &'static str = "same-pool";
    const DOC: &'static str = "The running unit is charged to the pool of the preemptor.";
}

impl VictimRule for SamePool {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        let group = of.rows.groups.get(usize::from(of.row.group)).and_then(Option::as_ref);
        if group.map(|group| group.pool) != Some(of.seeker.pool) {
            return Err(Spared::Refused("is of another pool"));
        }
        Ok(())
    }
}
