//! Reserve `kinds-of-work`: the counts that the score `complementary` reads.

use super::{Reserve, Taking};
use crate::{free::FreeRoom, taken::TakenRoom};

/// The plugin.
pub(super) struct KindsOfWork;

impl Reserve for KindsOfWork {
    const NAME: &'static str = "kinds-of-work";
    const DOC: &'static str = "Counts replicas by node and kind of work, for the score `complementary`.";

    #[inline]
    fn concerns(taken: &TakenRoom, _of: &Taking<'_>) -> bool {
        taken.work.is_active()
    }

    #[inline]
    fn shift(taken: &mut TakenRoom, _free: &mut FreeRoom, of: &Taking<'_>, sign: i8) {
        taken.work.shift(of.unit, of.node, sign);
    }
}
