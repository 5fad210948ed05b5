//! Reserve `requested-resources`: cpu, memory and everything else that nodes have amounts of.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct ReservedResources;

impl Reserve for ReservedResources {
    const NAME: &'static str = "requested-resources";
    const DOC: &'static str = "Takes the requested resources, and one of the number of running units that the node takes, of the room of the pool that pays.";

    #[inline]
    fn concerns(_taken: &TakenRoom, _of: &Taking<'_>) -> bool {
        true
    }

    #[inline]
    fn shift(_taken: &mut TakenRoom, free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        free.pools.shift(of.node.idx(), of.shape(), i64::from(sign));
    }
}
