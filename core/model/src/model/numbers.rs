//! Numbers that look random and are the same for the same seed, on every machine.

use godel_base::seed::mix;

/// A stream of numbers.
#[derive(Clone, Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// In so many of a hundred cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them.
    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[idx(self.next(), of.len())].clone()
    }

    /// One by weight.
    pub(super) fn draw<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut left = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in of {
            if left < *weight {
                return *one;
            }
            left -= weight;
        }
        of[0].1
    }
}

/// A position in something of `len`, which is not 0.
pub(super) fn idx(number: u64, len: usize) -> usize {
    usize::try_from(number % len as u64).expect("below a usize")
}
