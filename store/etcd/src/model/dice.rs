//! Chance, all from one seed.

/// Rolls follow from the seed (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// A number below `below`; 0 if that is 0.
    pub(super) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    /// A place in a list of `len`, which is not empty.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).unwrap_or(0)
    }

    /// Whether something happens that happens so many times in a thousand.
    pub(super) fn has_luck(&mut self, per_mille: u64) -> bool {
        self.roll(1_000) < per_mille
    }
}
