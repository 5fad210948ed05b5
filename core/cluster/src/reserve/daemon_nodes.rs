//! Reserve `daemon-reach`: the nodes that a daemon has a replica on.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct DaemonReach;

impl Reserve for DaemonReach {
    const NAME: &'static str = "daemon-reach";
    const DOC: &'static str = "Notes the node as one that has a replica of the daemon, for the filter `daemon` and the locator `daemon-nodes`.";

    #[inline]
    fn concerns(taken: &TakenRoom, _of: &Taking<'_>) -> bool {
        !taken.daemons.is_empty()
    }

    #[inline]
    fn shift(taken: &mut TakenRoom, _free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        taken.daemons.shift(of.unit, of.node, sign);
    }
}
