//! What grows with the number of running units that have come and gone.

use std::{collections::BTreeMap, time::Duration};

use godel_client::replay::Latency;
use godel_state::Config;
use serde::{Deserialize, Serialize};

use crate::{
    processes,
    report::{by_process, count, wide},
};

const MIB: f64 = 1_048_576.0;
/// A generation is its log, its snapshot and what the engine adds: up to so many times the bytes of its log
/// (`docs/adr/0001-store-durability.md`, Consequences).
const FILES_OF_LOG: f64 = 2.5;

/// One look at every process and at the store.
#[derive(Clone, Debug, Default)]
pub(super) struct GrowthSample {
    pub(super) n_ended: usize,
    /// Bytes held now, by process.
    pub(super) rss: BTreeMap<String, u64>,
    /// Since the start of each process.
    pub(super) cpu: BTreeMap<String, Duration>,
    pub(super) bytes_written: u64,
    pub(super) disk_bytes: u64,
    pub(super) live_bytes: u64,
}

/// What the retention contract allows on the disk, apart from live data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskBound {
    generation_bytes: u64,
    history_bytes: u64,
}

impl DiskBound {
    /// Of a store with these settings.
    pub(super) fn of(set: &[String]) -> Self {
        let usual = Config::default();
        let set = |key: &str| {
            let value = set.iter().rev().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok())
        };
        Self {
            generation_bytes: set("state.generation_bytes_min").unwrap_or(usual.generation_bytes_min),
            history_bytes: set("state.history_bytes_min").unwrap_or(usual.history_bytes_min),
        }
    }

    /// 3 × live data, two generations, history and the generation on which it ends, in the engine's files.
    fn bytes(self, live_bytes: u64) -> f64 {
        let live = wide(live_bytes);
        let generation = wide(self.generation_bytes).max(2.0 * live);
        FILES_OF_LOG * (3.0 * live + 3.0 * generation + wide(self.history_bytes))
    }
}

/// What a run says about growth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Endurance {
    /// Of each unit.
    pub(crate) replicas: u32,
    /// Running units before those that are judged.
    pub(crate) warm_up: usize,
    /// The steepest of all processes but the load generator.
    pub(crate) memory_slope_max_mib_per_million: f64,
    /// By process: MiB more for a million running units; least squares after the warm-up.
    pub(crate) memory_slope_mib_per_million: BTreeMap<String, f64>,
    /// By process, in order of time, warm-up included: running units ended, in millions, and MiB held.
    pub(crate) memory_mib: BTreeMap<String, Vec<(f64, f64)>>,
    /// By process, before the first unit and after the last.
    pub(crate) rss_start_mib: BTreeMap<String, f64>,
    pub(crate) rss_end_mib: BTreeMap<String, f64>,
    /// The most that the store's files ever took, and what was allowed just then.
    pub(crate) disk_mib: f64,
    pub(crate) disk_allowed_mib: f64,
    pub(crate) disk_within_contract: bool,
    /// Of the first and of the last tenth of the judged units.
    pub(crate) latency_first_tenth_ms: Latency,
    pub(crate) latency_last_tenth_ms: Latency,
    /// The last tenth's p99 over the first's.
    pub(crate) p99_ratio: f64,
}

impl Endurance {
    /// Of at least two samples. `latencies`: in order of submission.
    pub(super) fn of(
        warm_up: usize,
        replicas: u32,
        samples: &[GrowthSample],
        latencies: &[Duration],
        bound: DiskBound,
    ) -> Self {
        let mib = |sample: Option<&GrowthSample>| -> BTreeMap<String, f64> {
            let rss = sample.into_iter().flat_map(|sample| &sample.rss);
            rss.map(|(name, bytes)| (name.clone(), wide(*bytes) / MIB)).collect()
        };
        let mut memory: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in samples {
            for (name, rss) in mib(Some(sample)) {
                memory.entry(name).or_default().push((count(sample.n_ended) / 1e6, rss));
            }
        }
        let is_judged = |point: &&(f64, f64)| point.0 * 1e6 >= count(warm_up);
        let judged = |points: &[(f64, f64)]| points.iter().filter(is_judged).copied().collect::<Vec<_>>();
        let slopes = memory.iter().map(|(name, points)| (name.clone(), slope(&judged(points))));
        let slopes: BTreeMap<String, f64> = slopes.collect();
        let of_plane = slopes.iter().filter(|(name, _)| *name != "load");
        let slope_max = of_plane.map(|(_, slope)| *slope).fold(f64::NEG_INFINITY, f64::max);
        let n_warm_up = warm_up.div_ceil(usize::try_from(replicas).unwrap_or(usize::MAX).max(1));
        let latencies = latencies.get(n_warm_up..).unwrap_or_default();
        // Nearest to its bound, or furthest beyond it.
        let fullest = samples.iter().map(|sample| (wide(sample.disk_bytes), bound.bytes(sample.live_bytes)));
        let (disk, allowed) = fullest.max_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1))).unwrap_or_default();
        let n_tenth = latencies.len().div_ceil(10);
        let first = Latency::of(latencies.iter().take(n_tenth).copied().collect());
        let last = Latency::of(latencies.iter().rev().take(n_tenth).copied().collect());
        Self {
            replicas,
            warm_up,
            memory_slope_max_mib_per_million: slope_max,
            memory_slope_mib_per_million: slopes,
            memory_mib: memory,
            rss_start_mib: mib(samples.first()),
            rss_end_mib: mib(samples.last()),
            disk_mib: disk / MIB,
            disk_allowed_mib: allowed / MIB,
            disk_within_contract: disk <= allowed,
            latency_first_tenth_ms: first,
            latency_last_tenth_ms: last,
            p99_ratio: last.p99 / first.p99.max(1e-6),
        }
    }

    /// For people, as lines of a report.
    pub(crate) fn text(&self) -> String {
        let within = if self.disk_within_contract { "within" } else { "BEYOND" };
        format!(
            "MiB/million  {}\n\
             first MiB    {}\n\
             last MiB     {}\n\
             disk MiB     {:.1}, {within} the contract's {:.1}\n\
             p99 ms       {:.1} of the first tenth, {:.1} of the last: ratio {:.2}\n",
            by_process(&self.memory_slope_mib_per_million, 1),
            by_process(&self.rss_start_mib, 1),
            by_process(&self.rss_end_mib, 1),
            self.disk_mib,
            self.disk_allowed_mib,
            self.latency_first_tenth_ms.p99,
            self.latency_last_tenth_ms.p99,
            self.p99_ratio,
        )
    }
}

/// CPU seconds by process and bytes written, from the first sample to the last.
pub(super) fn used(samples: &[GrowthSample]) -> (BTreeMap<String, f64>, u64) {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Default::default() };
    (processes::used(&first.cpu, &last.cpu), last.bytes_written.saturating_sub(first.bytes_written))
}

/// Least squares; 0 where all lie at one place.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = count(points.len()).max(1.0);
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let xx: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let xy: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    if xx > 0.0 { xy / xx } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rss_mib: &[u64]) -> Vec<GrowthSample> {
        let sample = |(n_ended, mib): (usize, &u64)| GrowthSample {
            n_ended: n_ended * 100_000,
            rss: [("state".to_owned(), mib << 20)].into(),
            disk_bytes: 100 << 20,
            live_bytes: 1 << 20,
            ..GrowthSample::default()
        };
        (0..).zip(rss_mib).map(sample).collect()
    }

    #[test]
    fn what_comes_before_the_end_of_the_warm_up_is_not_judged() {
        let warm = samples(&[10, 20, 30, 40, 50, 50, 50, 50, 50]);
        let mut latencies = vec![Duration::from_millis(90); 4];
        latencies.extend([10, 20, 20, 20, 20, 20, 20, 20, 20, 15].map(Duration::from_millis));
        let growth = Endurance::of(400_000, 100_000, &warm, &latencies, DiskBound::of(&[]));
        assert_eq!((growth.warm_up, growth.memory_slope_mib_per_million["state"]), (400_000, 0.0));
        assert_eq!((growth.rss_start_mib["state"], growth.rss_end_mib["state"]), (10.0, 50.0));
        assert_eq!(growth.memory_mib["state"][..2], [(0.0, 10.0), (0.1, 20.0)]);
        assert_eq!((growth.p99_ratio, growth.disk_mib, growth.disk_within_contract), (1.5, 100.0, true));
        assert!(growth.text().contains("within the contract's"));
        let all = Endurance::of(0, 100_000, &warm, &latencies, DiskBound::of(&[]));
        assert!(all.memory_slope_max_mib_per_million > 40.0 && all.p99_ratio < 1.0, "{all:?}");
    }

    #[test]
    fn a_leak_of_any_process_but_the_load_generator_is_found() {
        for (name, found) in [("state", 10.0), ("agents", 10.0), ("load", 0.0)] {
            let mut leak = samples(&[10, 10, 10, 10, 10, 10]);
            for (sample, mib) in leak.iter_mut().zip([10u64, 10, 10, 11, 12, 13]) {
                sample.rss.insert(name.to_owned(), mib << 20);
            }
            let growth = Endurance::of(200_000, 7, &leak, &[], DiskBound::of(&[]));
            assert!((growth.memory_slope_max_mib_per_million - found).abs() < 1e-9, "{name}: {growth:?}");
        }
    }

    #[test]
    fn the_disk_is_held_to_the_settings_of_the_store() {
        let set = ["state.generation_bytes_min=1000", "state.history_bytes_min=500"].map(str::to_owned);
        let bound = DiskBound::of(&set);
        assert_eq!(bound.bytes(100), 2.5 * (300.0 + 3000.0 + 500.0));
        assert_eq!(bound.bytes(1000), 2.5 * (3000.0 + 6000.0 + 500.0), "generations follow large snapshots");
        let growth = Endurance::of(0, 1, &samples(&[1, 1]), &[], bound);
        assert!(!growth.disk_within_contract, "{growth:?}");
    }
}
