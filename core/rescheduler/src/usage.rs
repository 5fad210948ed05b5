//! What running units used of late: what was measured in a time window, and the percentiles of that, which plans rest on.

use std::collections::BTreeMap;

use godel_base::{
    ids::{IdMap, UnitId},
    time::Millis,
};

use crate::snapshot::MeasuredUse;

/// Measurements of one replica that are kept, at most: the newest ones.
pub const N_LOOKS_KEPT_MAX: usize = 100;

/// What replicas use, by unit and ordinal.
pub type UsageTable = IdMap<UnitId, BTreeMap<u32, MeasuredUse>>;

/// What others than running units use of nodes, by the name of the node.
pub type NodeUseTable = BTreeMap<String, MeasuredUse>;

/// What was measured of each replica in a time window. What a replica used before it moved counts: a node is not calm because
/// what makes it hot has only just come.
#[derive(Clone, Debug, Default)]
pub struct UsageHistory {
    of_unit: IdMap<UnitId, BTreeMap<u32, Vec<UsageLook>>>,
    of_node: BTreeMap<String, Vec<UsageLook>>,
}

/// One measurement: with hundreds of thousands of running units, its size counts.
#[derive(Clone, Copy, Debug)]
struct UsageLook {
    at_s: u32,
    cpu_milli: u32,
    network_kbps: u32,
}

impl UsageHistory {
    /// Takes what is measured now, and forgets what was measured longer than `window_ms` ago.
    pub fn look(&mut self, now: Millis, window_ms: u64, measured: &UsageTable) {
        let at_s = seconds(now.0);
        for (unit, of_unit) in measured {
            let looks = self.of_unit.entry(*unit).or_default();
            for (ordinal, usage) in of_unit {
                note(looks.entry(*ordinal).or_default(), at_s, usage);
            }
        }
        let oldest_s = seconds(now.0.saturating_sub(window_ms));
        self.of_unit.retain(|_, of_unit| {
            of_unit.retain(|_, looks| {
                looks.retain(|look| look.at_s >= oldest_s);
                !looks.is_empty()
            });
            !of_unit.is_empty()
        });
    }

    /// Takes what others than running units use of nodes now, and forgets what was measured longer than `window_ms` ago.
    pub fn look_at_nodes(&mut self, now: Millis, window_ms: u64, measured: &NodeUseTable) {
        for (node, usage) in measured {
            match self.of_node.get_mut(node) {
                Some(looks) => note(looks, seconds(now.0), usage),
                None => note(self.of_node.entry(node.clone()).or_default(), seconds(now.0), usage),
            }
        }
        let oldest_s = seconds(now.0.saturating_sub(window_ms));
        self.of_node.retain(|_, looks| {
            looks.retain(|look| look.at_s >= oldest_s);
            !looks.is_empty()
        });
    }

    /// Returns the same percentile as [`percentile`](Self::percentile) of what others used of each node, as far as two looks in a row saw it
    /// (the only look counts as it is): the second in which a unit starts or ends looks like the use of others.
    pub fn percentile_of_nodes(&self, percent: u32) -> NodeUseTable {
        let mut amounts = Vec::new();
        let mut of_node = |(node, looks): (&String, &Vec<UsageLook>)| {
            let lasting: Vec<UsageLook> = looks.windows(2).filter_map(lower).collect();
            let looks = if lasting.is_empty() { looks } else { &lasting };
            (node.clone(), percentile_of(looks, percent, &mut amounts))
        };
        self.of_node.iter().map(&mut of_node).collect()
    }

    /// Returns the percentile of what each replica used, CPU and network each by itself: the least amount that so many per cent of the
    /// measurements do not exceed (nearest rank; 100: the highest one).
    pub fn percentile(&self, percent: u32) -> UsageTable {
        let mut amounts = Vec::new();
        let mut usage_of = |looks: &Vec<UsageLook>| percentile_of(looks, percent, &mut amounts);
        let of_unit = self.of_unit.iter();
        of_unit
            .map(|(unit, of_unit)| {
                (*unit, of_unit.iter().map(|(ordinal, looks)| (*ordinal, usage_of(looks))).collect())
            })
            .collect()
    }
}

/// Adds a measurement to those of one replica or node.
fn note(looks: &mut Vec<UsageLook>, at_s: u32, usage: &MeasuredUse) {
    if looks.len() >= N_LOOKS_KEPT_MAX {
        looks.remove(0);
    }
    looks.push(UsageLook {
        at_s,
        cpu_milli: small(usage.cpu_milli),
        network_kbps: small(usage.network_bps / 1_000),
    });
}

/// Returns the lower amounts of two measurements, at the time of the second.
fn lower(looks: &[UsageLook]) -> Option<UsageLook> {
    let [first, second] = looks else { return None };
    Some(UsageLook {
        at_s: second.at_s,
        cpu_milli: first.cpu_milli.min(second.cpu_milli),
        network_kbps: first.network_kbps.min(second.network_kbps),
    })
}

/// The percentile of some measurements; `amounts` is room to work in.
fn percentile_of(looks: &[UsageLook], percent: u32, amounts: &mut Vec<u32>) -> MeasuredUse {
    let mut of_looks = |amount: fn(&UsageLook) -> u32| -> i64 {
        amounts.clear();
        amounts.extend(looks.iter().map(amount));
        let rank = amounts.len().saturating_mul(percent.clamp(1, 100) as usize).div_ceil(100);
        let at = rank.saturating_sub(1).min(amounts.len().saturating_sub(1));
        if amounts.is_empty() { 0 } else { i64::from(*amounts.select_nth_unstable(at).1) }
    };
    MeasuredUse {
        cpu_milli: of_looks(|look| look.cpu_milli),
        network_bps: of_looks(|look| look.network_kbps) * 1_000,
    }
}

fn seconds(ms: u64) -> u32 {
    u32::try_from(ms / 1_000).unwrap_or(u32::MAX)
}

fn small(amount: i64) -> u32 {
    u32::try_from(amount.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: UnitId = UnitId(7);
    const WINDOW_MS: u64 = 60_000;

    fn measured(cpu_milli: i64, network_bps: i64) -> UsageTable {
        [(UNIT, [(3, MeasuredUse { cpu_milli, network_bps })].into())].into_iter().collect()
    }

    /// Looks once a second.
    fn history(cpu: impl IntoIterator<Item = i64>) -> UsageHistory {
        let mut history = UsageHistory::default();
        for (at, cpu) in (0..).zip(cpu) {
            history.look(Millis(at * 1_000), WINDOW_MS, &measured(cpu, 2_000 * cpu));
        }
        history
    }

    fn cpu(history: &UsageHistory, percent: u32) -> i64 {
        history.percentile(percent)[&UNIT][&3].cpu_milli
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        // 20, 19, …, 1: ninety-five per cent of twenty are nineteen.
        let falling = history((1..=20).rev());
        for (percent, expected) in
            [(100, 20), (96, 20), (95, 19), (50, 10), (5, 1), (1, 1), (0, 1), (200, 20)]
        {
            assert_eq!(cpu(&falling, percent), expected, "{percent}");
        }
        assert_eq!(cpu(&history([5]), 50), 5);
        let both = falling.percentile(50)[&UNIT][&3];
        assert_eq!(both, MeasuredUse { cpu_milli: 10, network_bps: 20_000 });
    }

    #[test]
    fn one_peak_does_not_make_a_percentile_and_a_window_forgets() {
        let peak = |at: u64| if at == 30 { 9_000 } else { 100 };
        let mut history = history((0..60).map(peak));
        assert_eq!((cpu(&history, 95), cpu(&history, 100)), (100, 9_000));
        history.look(Millis(91_000), WINDOW_MS, &measured(100, 0));
        assert_eq!(cpu(&history, 100), 100, "the peak is older than the window");
        history.look(Millis(91_000 + WINDOW_MS + 1_000), WINDOW_MS, &UsageTable::default());
        assert!(history.percentile(95).is_empty(), "nothing was measured in the window");
    }

    #[test]
    fn what_others_use_of_nodes_is_forgotten_with_the_window() {
        let mut history = UsageHistory::default();
        let others = |cpu_milli| -> NodeUseTable {
            [("n".to_owned(), MeasuredUse { cpu_milli, network_bps: 2_000 })].into()
        };
        let of = |history: &UsageHistory, percent| history.percentile_of_nodes(percent)["n"].cpu_milli;
        let mut seen = Vec::new();
        for (at, cpu) in [(0, 900), (1_000, 800), (2_000, 300), (3_000, 700)] {
            history.look_at_nodes(Millis(at), WINDOW_MS, &others(cpu));
            seen.push((of(&history, 50), of(&history, 95)));
        }
        // The only look counts as it is; later on what two in a row saw.
        assert_eq!(seen, [(900, 900), (800, 800), (300, 800), (300, 800)]);
        history.look_at_nodes(Millis(WINDOW_MS + 500), WINDOW_MS, &NodeUseTable::new());
        assert_eq!(of(&history, 95), 800);
        history.look_at_nodes(Millis(WINDOW_MS + 1_500), WINDOW_MS, &NodeUseTable::new());
        assert_eq!(of(&history, 95), 300, "the first look is older than the window");
        history.look_at_nodes(Millis(9 * WINDOW_MS), WINDOW_MS, &NodeUseTable::new());
        assert!(history.percentile_of_nodes(95).is_empty());
    }

    #[test]
    fn the_newest_measurements_are_kept_and_no_amount_is_too_large() {
        let n = i64::try_from(N_LOOKS_KEPT_MAX).unwrap();
        let mut history = UsageHistory::default();
        for value in 0..2 * n {
            history.look(Millis(0), WINDOW_MS, &measured(value, -1));
        }
        assert_eq!((cpu(&history, 1), cpu(&history, 100)), (n, 2 * n - 1));
        history.look(Millis(0), WINDOW_MS, &measured(i64::MAX, i64::MAX));
        assert_eq!(cpu(&history, 100), i64::from(u32::MAX));
    }
}
