//! Reserve `replicas-by-node`: the counts that the score `spread` reads.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct ReplicasByNode;

impl Reserve for ReplicasByNode {
    const NAME: &'static str = "replicas-by-node";
    const DOC: &'static str =
        "Counts the replicas of the unit that is being placed by node, for the score `spread`.";

    #[inline]
    fn concerns(taken: &TakenRoom, of: &Taking<'_>) -> bool {
        taken.counts.counts(of.unit)
    }

    #[inline]
    fn shift(taken: &mut TakenRoom, _free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        taken.counts.shift(of.node, sign);
    }
}
