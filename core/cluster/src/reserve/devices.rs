//! Reserve `given-devices`: whole devices and parts of them.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct ReservedDevices;

impl Reserve for ReservedDevices {
    const NAME: &'static str = "given-devices";
    const DOC: &'static str =
        "Takes the devices that the replica is given, each of them whole or in thousandths.";

    #[inline]
    fn concerns(_taken: &TakenRoom, of: &Taking<'_>) -> bool {
        !of.allocation.devices.is_empty()
    }

    #[inline]
    fn shift(_taken: &mut TakenRoom, free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        free.shift_devices(of.catalogue, of.node.idx(), of.shape, of.allocation.devices, sign);
    }
}
