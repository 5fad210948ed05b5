//! Reserve `default-requests`: what replicas that ask for nothing count in scores.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct DefaultRequests;

impl Reserve for DefaultRequests {
    const NAME: &'static str = "default-requests";
    const DOC: &'static str =
        "Counts 100m of cpu and 200Mi of memory in scores for a replica that asks for none.";

    #[inline]
    fn concerns(_taken: &TakenRoom, of: &Taking<'_>) -> bool {
        of.shape().nominal != [0; 2]
    }

    #[inline]
    fn shift(_taken: &mut TakenRoom, free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        free.nominal.shift(of.node.idx(), of.shape().nominal, sign);
    }
}
