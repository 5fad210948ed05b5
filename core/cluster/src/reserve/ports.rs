//! Reserve `requested-ports`: ports of nodes that replicas listen on.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct ReservedPorts;

impl Reserve for ReservedPorts {
    const NAME: &'static str = "requested-ports";
    const DOC: &'static str = "Takes the ports of `host_ports`, for the filter `host-ports`.";

    #[inline]
    fn concerns(_taken: &TakenRoom, of: &Taking<'_>) -> bool {
        of.shape().has_ports
    }

    #[inline]
    fn shift(_taken: &mut TakenRoom, free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        free.ports.shift(of.node.idx(), &of.shape().demand.host_ports, sign);
    }
}
