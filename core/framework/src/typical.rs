//! The device work that a scheduler sees most.

use std::cmp::Reverse;

use godel_cluster::ShapeId;
use rustc_hash::FxHashMap;

/// The device work seen most: shapes with weights.
#[derive(Clone, Debug, Default)]
pub struct Typical {
    counts: FxHashMap<ShapeId, u64>,
    seen: u64,
    refresh_at: u64,
    shapes: Vec<(ShapeId, i64)>,
}

impl Typical {
    /// Weights add up to about this.
    pub const WEIGHT_SUM: i64 = 1 << 10;
    /// Shapes kept. On the openb trace 8 to 24 place alike; each costs time in every score of a device node.
    const N_SHAPES: usize = 16;
    /// Counts are halved at this sum, so that yesterday's work fades.
    const SEEN_MAX: u64 = 1 << 20;

    /// Running units of a shape with devices arrived.
    pub fn note(&mut self, shape: ShapeId, n_running_units: u64) {
        *self.counts.entry(shape).or_default() += n_running_units;
        self.seen += n_running_units;
        if self.seen >= self.refresh_at {
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        if self.seen >= Self::SEEN_MAX {
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
            self.seen = self.counts.values().sum();
        }
        let mut counted: Vec<_> = self.counts.iter().map(|(shape, count)| (*shape, *count)).collect();
        counted.sort_unstable_by_key(|(shape, count)| (Reverse(*count), *shape));
        counted.truncate(Self::N_SHAPES);
        let sum: u64 = counted.iter().map(|(_, count)| count).sum();
        let weight = |count: u64| i64::try_from(count * (1 << 10) / sum.max(1)).unwrap_or(0);
        self.shapes = counted.into_iter().map(|(shape, count)| (shape, weight(count).max(1))).collect();
        // Again when an eighth has been added: cheap, and early work counts soon.
        self.refresh_at = self.seen + self.seen / 8 + 1;
    }

    /// Most frequent first.
    pub fn shapes(&self) -> &[(ShapeId, i64)] {
        &self.shapes
    }
}
