//! Reserve `given-zones`: cores, memory and everything else of zones.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom, topology::ZoneTake};

/// The plugin.
pub(super) struct ReservedZones;

impl Reserve for ReservedZones {
    const NAME: &'static str = "given-zones";
    const DOC: &'static str = "Takes the cores and amounts of the zones that the replica is given.";

    #[inline]
    fn concerns(_taken: &TakenRoom, of: &Taking<'_>) -> bool {
        !of.allocation.zones.is_empty()
    }

    #[inline]
    fn shift(_taken: &mut TakenRoom, free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        free.hardware[of.node.idx()]
            .shift_zones(&ZoneTake::of(of.shape(), of.allocation.zones), i32::from(sign));
    }
}
