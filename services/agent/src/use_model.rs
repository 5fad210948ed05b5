//! Modelled use of a simulated node: what its running units use of what they ask for, over the day.
//!
//! Guaranteed ones follow a day that begins at its ebb when the process starts, with noise of their own on each node, and
//! bursts if that is configured; best-effort ones use the same at all times. Pure integers: equal seeds use equal amounts.

use godel_base::time::Millis;
use godel_core_agent::{PoolWeights, RunWeight};

/// See the module. Times are those of the process, whatever its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UseModel {
    /// Mean of guaranteed running units, per cent of what they ask for.
    pub mean_percent: u32,
    /// Best-effort ones, per cent.
    pub best_effort_percent: u32,
    /// The day's crest is so much above the mean and its ebb as much below, per cent of what is asked for.
    pub swing_percent: u32,
    /// Length of the day, milliseconds.
    pub day_ms: u64,
    /// Up and down from one look to another, per cent of what is asked for.
    pub noise_percent: u32,
    /// A burst begins so long after the start, milliseconds.
    pub burst_at_ms: u64,
    /// It lasts so long; 0: there is none.
    pub burst_ms: u64,
    /// By so much it goes up, per cent of what is asked for.
    pub burst_percent: u32,
    /// Of the noise.
    pub seed: u64,
}

/// Cosine of the sixteenths of a circle, thousandths.
const COSINE: [i64; 17] =
    [1000, 924, 707, 383, 0, -383, -707, -924, -1000, -924, -707, -383, 0, 383, 707, 924, 1000];
/// Noise stays the same for so long, milliseconds.
const NOISE_MS: u64 = 1_000;

impl UseModel {
    /// What guaranteed and best-effort running units of node number `node` use that ask for so much.
    pub fn used(&self, node: usize, asked: PoolWeights, now: Millis) -> PoolWeights {
        let share = |weight: RunWeight, percent: i64| RunWeight {
            cpu_milli: weight.cpu_milli / 100 * percent,
            memory: weight.memory / 100 * percent,
            network: weight.network / 100 * percent,
        };
        let level = self.level(node, now);
        let of_best_effort = i64::from(self.best_effort_percent.min(100));
        PoolWeights {
            guaranteed: share(asked.guaranteed, level),
            best_effort: share(asked.best_effort, of_best_effort),
        }
    }

    /// Per cent that guaranteed running units use now, 0 to 100.
    pub fn level(&self, node: usize, now: Millis) -> i64 {
        let day_ms = self.day_ms.max(1);
        let sixteenth = (now.0 % day_ms).saturating_mul(16);
        let (at, within) = (usize::try_from(sixteenth / day_ms).unwrap_or(0).min(15), sixteenth % day_ms);
        let within = i64::try_from(within.saturating_mul(1000) / day_ms).unwrap_or(0);
        let cosine = COSINE[at] + (COSINE[at + 1] - COSINE[at]) * within / 1000;
        let swing = -cosine * i64::from(self.swing_percent) / 1000;
        let in_burst = now.0 >= self.burst_at_ms && now.0 - self.burst_at_ms < self.burst_ms;
        let burst = if in_burst { i64::from(self.burst_percent) } else { 0 };
        (i64::from(self.mean_percent) + swing + burst + self.noise(node, now)).clamp(0, 100)
    }

    fn noise(&self, node: usize, now: Millis) -> i64 {
        if self.noise_percent == 0 {
            return 0;
        }
        let node = u64::try_from(node).unwrap_or(0);
        let mut mixed = self.seed ^ node.rotate_left(32) ^ (now.0 / NOISE_MS);
        // The finaliser of splitmix64.
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let span = 2 * u64::from(self.noise_percent) + 1;
        i64::try_from((mixed ^ (mixed >> 31)) % span).unwrap_or(0) - i64::from(self.noise_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: UseModel = UseModel {
        mean_percent: 50,
        best_effort_percent: 90,
        swing_percent: 30,
        day_ms: 24_000,
        noise_percent: 0,
        burst_at_ms: 0,
        burst_ms: 0,
        burst_percent: 0,
        seed: 1,
    };

    #[test]
    fn the_day_begins_at_its_ebb_and_ends_there() {
        let level = |at| DAY.level(0, Millis(at));
        assert_eq!(
            [level(0), level(6_000), level(12_000), level(18_000), level(24_000)],
            [20, 50, 80, 50, 20]
        );
        let rises = (0..12_000).step_by(100).map(|at| (level(at), level(at + 100)));
        assert!(rises.into_iter().all(|(before, after)| after >= before));
    }

    #[test]
    fn a_constant_use_is_a_share_of_what_is_asked_for() {
        let model = UseModel { swing_percent: 0, ..DAY };
        let asked = RunWeight { cpu_milli: 4_000, memory: 1_000, network: 200 };
        let asked = PoolWeights { guaranteed: asked, best_effort: asked };
        let PoolWeights { guaranteed, best_effort } = model.used(3, asked, Millis(123_456));
        assert_eq!(guaranteed, RunWeight { cpu_milli: 2_000, memory: 500, network: 100 });
        assert_eq!(best_effort, RunWeight { cpu_milli: 3_600, memory: 900, network: 180 });
    }

    #[test]
    fn bursts_come_and_go_and_nobody_uses_more_than_everything() {
        let model = UseModel { swing_percent: 0, burst_at_ms: 100, burst_ms: 50, burst_percent: 80, ..DAY };
        let levels = [99, 100, 149, 150].map(|at| model.level(0, Millis(at)));
        assert_eq!(levels, [50, 100, 100, 50]);
    }

    #[test]
    fn noise_is_of_the_seed_and_the_node_and_has_no_lean() {
        let model = UseModel { swing_percent: 0, noise_percent: 10, ..DAY };
        let levels: Vec<i64> = (0..1_000).map(|node| model.level(node, Millis(0))).collect();
        assert!(levels.iter().all(|level| (40..=60).contains(level)));
        assert!((49_000..51_000).contains(&levels.iter().sum::<i64>()), "{}", levels.iter().sum::<i64>());
        assert_eq!(model.level(7, Millis(500)), model.level(7, Millis(999)));
        let other = UseModel { seed: 2, ..model };
        assert!((0..20).any(|node| other.level(node, Millis(0)) != levels[node]));
    }
}
