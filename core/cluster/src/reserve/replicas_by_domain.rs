//! Reserve `replicas-by-domain`: the counts that terms of units are judged by.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct ReplicasByDomain;

impl Reserve for ReplicasByDomain {
    const NAME: &'static str = "replicas-by-domain";
    const DOC: &'static str = "Counts replicas by rack, zone or node for the terms of units that select them: `affinity.near`, `affinity.apart`, `affinity.spread` and `topology`.";

    #[inline]
    fn concerns(taken: &TakenRoom, _of: &Taking<'_>) -> bool {
        taken.domains.is_active()
    }

    #[inline]
    fn shift(taken: &mut TakenRoom, _free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        taken.domains.shift(of.unit, of.node, sign);
    }
}
