//! Totals of the cluster, of which shares are parts.

/// Shares are in parts of this whole. Sixteen times the cluster handed out does not yet overflow.
pub(super) const SHARE_BITS: u32 = 60;
/// Totals are scaled below 2^36, in parts of which their reciprocals are exact to a sixteen-millionth.
const TOTAL_BITS: u32 = 36;
/// Totals follow the cluster in steps of a 128th: each step re-orders every queue, and 10,000 nodes that come one by
/// one shall not do so 10,000 times. All shares keep the same scale, so only resources that grow apart show.
const TOTAL_STEP: i64 = 128;

/// A total as a factor: multiplying beats dividing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scale {
    total: i64,
    shift: u32,
    reciprocal: u64,
}

impl Scale {
    pub(super) fn new(total: i64) -> Self {
        let total = total.max(0);
        let shift = (i64::BITS - total.leading_zeros()).saturating_sub(TOTAL_BITS);
        let scaled = u64::try_from(total >> shift).unwrap_or(0);
        Self { total, shift, reciprocal: (1u64 << SHARE_BITS).checked_div(scaled).unwrap_or(0) }
    }

    /// Far from `total`, or one of them is nothing.
    pub(super) fn is_stale(&self, total: i64) -> bool {
        let total = total.max(0);
        total != self.total
            && (total == 0 || self.total == 0 || (total - self.total).abs() >= self.total / TOTAL_STEP)
    }

    /// The largest share that a row has of any resource.
    pub(super) fn dominant_share(scales: &[Self], row: &[i128]) -> u64 {
        row.iter().zip(scales).map(|(used, scale)| scale.share(*used)).max().unwrap_or(0)
    }

    fn share(&self, amount: i128) -> u64 {
        let parts = u64::try_from(amount.max(0) >> self.shift).unwrap_or(u64::MAX);
        u64::try_from(u128::from(parts) * u128::from(self.reciprocal)).unwrap_or(u64::MAX)
    }
}
