//! Percentiles of a node's use over the last minutes, as its agent measures and reports them.
//!
//! The window has `N_PARTS` parts; of the samples in one part the mean counts, so a node costs half a KiB however often it is
//! measured. Percentiles are by the nearest rank: the least sample that so many per cent of all do not exceed.

use godel_base::time::Millis;
use godel_domain::node_load::{LoadAmounts, NodeLoad};

/// Parts of the window: with heartbeats of a few seconds and five minutes each has one to three samples.
const N_PARTS: usize = 30;
/// Bytes in a MiB, bits per second in what is kept of network use: amounts are kept in 32 bits.
const MIB: i64 = 1 << 20;
const KBIT: i64 = 1_000;

/// Milli-cores, MiB and thousands of bits per second.
type Sample = [u32; 3];

#[derive(Clone, Copy, Debug)]
struct WindowPart {
    /// Number of the part since the clock began.
    number: u64,
    mean: Sample,
}

/// Samples of one node. Bounded: `N_PARTS` parts.
#[derive(Clone, Debug, Default)]
pub struct NodeLoadWindow {
    /// Oldest first.
    parts: Vec<WindowPart>,
    /// Samples in the last part.
    n_last: u32,
}

impl NodeLoadWindow {
    /// Takes a measurement, and returns the percentiles of the last `window_ms`. `O(N_PARTS)`.
    pub fn add(&mut self, used: &LoadAmounts, now: Millis, window_ms: u64) -> NodeLoad {
        let part_ms = (window_ms / N_PARTS as u64).max(1);
        let number = now.0 / part_ms;
        let first = (number + 1).saturating_sub(N_PARTS as u64);
        let n_old = self.parts.iter().take_while(|part| part.number < first).count();
        self.parts.drain(..n_old);
        let sample = sample(used);
        match self.parts.last_mut() {
            Some(part) if part.number >= number => {
                let n = u64::from(self.n_last);
                for (mean, value) in part.mean.iter_mut().zip(sample) {
                    let sum = u64::from(*mean) * n + u64::from(value);
                    *mean = u32::try_from(sum.div_ceil(n + 1)).unwrap_or(u32::MAX);
                }
                self.n_last = self.n_last.saturating_add(1);
            }
            Some(_) | None => {
                if self.parts.capacity() == 0 {
                    self.parts.reserve_exact(N_PARTS);
                }
                self.parts.push(WindowPart { number, mean: sample });
                self.n_last = 1;
            }
        }
        NodeLoad { p50: self.percentile(50), p95: self.percentile(95) }
    }

    fn percentile(&self, percent: usize) -> LoadAmounts {
        let [cpu, memory, network] = std::array::from_fn(|id| {
            let mut values = [0; N_PARTS];
            let of = &mut values[..self.parts.len()];
            for (value, part) in of.iter_mut().zip(&self.parts) {
                *value = part.mean[id];
            }
            let rank = (of.len() * percent).div_ceil(100).saturating_sub(1);
            if of.is_empty() { 0 } else { i64::from(*of.select_nth_unstable(rank).1) }
        });
        LoadAmounts { cpu, memory: memory * MIB, network: network * KBIT }
    }
}

/// Rounded up: what is used is not nothing.
fn sample(used: &LoadAmounts) -> Sample {
    let LoadAmounts { cpu, memory, network } = *used;
    let up = |amount: i64, unit: i64| amount.max(0) / unit + i64::from(amount.max(0) % unit > 0);
    [cpu.max(0), up(memory, MIB), up(network, KBIT)].map(|amount| u32::try_from(amount).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW_MS: u64 = 300_000;

    fn cpu(cpu: i64) -> LoadAmounts {
        LoadAmounts { cpu, memory: cpu * MIB, network: cpu * KBIT }
    }

    /// A sample each ten seconds; returns the last percentiles of cpu.
    fn feed(window: &mut NodeLoadWindow, from: u64, values: impl IntoIterator<Item = i64>) -> (i64, i64) {
        let loads =
            (from..).zip(values).map(|(at, value)| window.add(&cpu(value), Millis(at * 10_000), WINDOW_MS));
        let load = loads.last().unwrap();
        assert_eq!((load.p95.memory, load.p95.network), (load.p95.cpu * MIB, load.p95.cpu * KBIT));
        (load.p50.cpu, load.p95.cpu)
    }

    #[test]
    fn percentiles_are_of_the_window_by_nearest_rank() {
        type Case<'a> = (&'a str, Vec<i64>, (i64, i64));
        let cases: [Case<'_>; 6] = [
            ("one sample is every percentile", vec![7], (7, 7)),
            ("of two the first is the median", vec![4, 8], (4, 8)),
            ("one of thirty is above the 95th", (1..=30).collect(), (15, 29)),
            ("a single peak is above it", [vec![100; 29], vec![900]].concat(), (100, 100)),
            ("two peaks are not", [vec![100; 28], vec![900; 2]].concat(), (100, 900)),
            ("what is older is forgotten", [vec![900; 30], vec![100; 30]].concat(), (100, 100)),
        ];
        for (name, values, expected) in cases {
            assert_eq!(feed(&mut NodeLoadWindow::default(), 0, values), expected, "{name}");
        }
    }

    #[test]
    fn of_samples_close_together_the_mean_counts() {
        let mut window = NodeLoadWindow::default();
        for (at, value) in [(0, 100), (3_000, 200), (6_000, 300), (9_999, 400)] {
            window.add(&cpu(value), Millis(at), WINDOW_MS);
        }
        assert_eq!((window.parts.len(), window.percentile(95).cpu), (1, 250));
    }

    #[test]
    fn small_and_wrong_amounts_do_not_vanish_or_panic() {
        let load = |used| NodeLoadWindow::default().add(&used, Millis(0), 1).p50;
        let least = load(LoadAmounts { cpu: 1, memory: 1, network: 1 });
        assert_eq!(least, LoadAmounts { cpu: 1, memory: MIB, network: KBIT });
        assert_eq!(load(LoadAmounts { cpu: -1, memory: -1, network: -1 }), LoadAmounts::default());
        assert_eq!(load(LoadAmounts { cpu: i64::MAX, memory: 0, network: 0 }).cpu, i64::from(u32::MAX));
    }

    proptest! {
        #[test]
        fn percentiles_are_samples_in_order(
            steps in prop::collection::vec((0i64..100_000, 1u64..40_000), 1..200)
        ) {
            let (mut window, mut now) = (NodeLoadWindow::default(), 0);
            for (used, wait) in &steps {
                now += wait;
                let load = window.add(&cpu(*used), Millis(now), WINDOW_MS);
                prop_assert!(load.p50.cpu <= load.p95.cpu && window.parts.len() <= N_PARTS);
                let highest = steps.iter().map(|(used, _)| *used).max().unwrap();
                prop_assert!(load.p95.cpu <= highest);
            }
        }
    }
}
