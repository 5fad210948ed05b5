//! Victim rule `unreserved`: the room of a slot would go to its reservation, not to the preemptor.

use godel_base::ids::RunningUnitId;

use crate::point::{Plugin, Spared, VictimInput, VictimRule};

/// The plugin.
#[derive(Debug)]
pub struct Unreserved;

impl Plugin for Unreserved {
    const NAME: &'static str = "unreserved";
    const DOC: &'static str =
        "The running unit is not in a slot of a reservation, whose room would go to the reservation.";
}

impl VictimRule for Unreserved {
    #[inline]
    fn check(of: &VictimInput<'_>) -> Result<(), Spared> {
        if of.cluster.held().has_slots()
            && of
                .cluster
                .held()
                .slot_of(&RunningUnitId::new(of.unit, of.ordinal, of.row.incarnation))
                .is_some()
        {
            return Err(Spared::Refused("is in a slot of a reservation"));
        }
        Ok(())
    }
}
