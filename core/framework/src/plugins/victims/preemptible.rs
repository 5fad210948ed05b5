//! Victim rule `preemptible`: some units are never preempted.

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct Preemptible;

impl Plugin for Preemptible {
    const NAME: &'static str = "preemptible";
    const DOC: &'static str = "The unit of the running unit is `preemptible` (by default every class but `daemon`), its priority class is \
                               preemptible, and it is not in the band `system`.";
}

impl VictimRule for Preemptible {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        match of.terms {
            Some(terms) if terms.preemptible => Ok(()),
            _ => Err(Spared::Refused("is not preemptible")),
        }
    }
}
