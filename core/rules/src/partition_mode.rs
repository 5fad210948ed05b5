//! When nodes are split over schedulers without being told to, and when they are shared again.
//!
//! Schedulers that share all nodes place best as long as they do not pick the same nodes at the same time: each conflict
//! costs a second decision. Where there are many, on a full cluster or on a small busy one, each scheduler begins with
//! nodes of its own. What decides is how many conflicts there are, counted in windows. Split nodes have few whatever the
//! load, so that calm there does not say that it will last: where conflicts were soon back after the last time, the next
//! calm has to last twice as long, and nodes do not change hands over and over.

use std::fmt;

use godel_domain::change::PartitionMode;

/// Limits and patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether the mode ever changes by itself.
    pub is_on: bool,
    /// How nodes are split when sharing them does not do.
    pub split: PartitionMode,
    /// Length of a window, milliseconds.
    pub window_ms: u64,
    /// Above these there are too many conflicts for sharing.
    pub high: ModeLimits,
    /// Fewer conflicts than so many per second are never too many.
    pub conflicts_per_s: u64,
    /// Nodes are split under pressure only: more allocated or more placed than `high` says; and shared again without it
    /// only: less of both than `low` says.
    pub needs_pressure: bool,
    /// So many windows in a row above `high` split the nodes.
    pub n_windows: u32,
    /// Below these there are few.
    pub low: ModeLimits,
    /// Windows below `low` in a row share the nodes again once they last so long together, milliseconds.
    pub calm_ms: u64,
    /// The same where conflicts came back within the calm before: twice as long each time, up to this.
    pub calm_ms_max: u64,
}

/// What a window is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeLimits {
    /// Of the scarcest resource, per cent.
    pub allocated_percent: u32,
    /// Running units bound per second.
    pub placed_per_s: u64,
    /// Of all answers to schedulers, thousandths.
    pub conflicts_permille: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            is_on: true,
            split: PartitionMode::Preferred,
            window_ms: 10_000,
            high: ModeLimits { allocated_percent: 90, placed_per_s: 2_000, conflicts_permille: 10 },
            conflicts_per_s: 10,
            needs_pressure: false,
            n_windows: 3,
            low: ModeLimits { allocated_percent: 80, placed_per_s: 1_500, conflicts_permille: 5 },
            calm_ms: 60_000,
            calm_ms_max: 1_800_000,
        }
    }
}

/// What was counted in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadWindow {
    /// Its length, milliseconds.
    pub ms: u64,
    /// Of the scarcest resource at its end, thousandths.
    pub allocated_permille: u32,
    /// Running units bound.
    pub placed: u64,
    /// Running units refused because another party was faster.
    pub conflicts: u64,
}

/// What the windows so far come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streak {
    /// In a row above the high limits.
    n_high: u32,
    /// Of those in a row below the low ones.
    calm_ms: u64,
    /// How long nodes have been shared since they were the last time; `None`: they never were split.
    shared_ms: Option<u64>,
    /// How often in a row conflicts came back soon.
    n_relapses: u32,
}

/// The mode is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// To this one.
    pub mode: PartitionMode,
    /// Why, in words.
    pub reason: String,
}

/// What one more window makes of the streak and, perhaps, of the mode. Pure.
pub fn follow(
    config: &Config,
    mode: PartitionMode,
    streak: Streak,
    window: &LoadWindow,
) -> (Streak, Option<Switch>) {
    if !config.is_on || window.ms == 0 {
        return (Streak::default(), None);
    }
    match mode {
        PartitionMode::Global => {
            let n_high = if window.is_above(config) { streak.n_high.saturating_add(1) } else { 0 };
            let shared_ms = streak.shared_ms.map(|ms| ms.saturating_add(window.ms));
            // A split that is none would be written for nothing.
            if n_high < config.n_windows.max(1) || config.split == PartitionMode::Global {
                return (Streak { n_high, calm_ms: 0, shared_ms, ..streak }, None);
            }
            let is_relapse = shared_ms.is_some_and(|ms| ms <= streak.patience_ms(config));
            let n_relapses = if is_relapse { streak.n_relapses.saturating_add(1) } else { 0 };
            let reason = format!("{n_high} windows above the limits; in the last one {window}");
            (Streak { n_relapses, ..Streak::default() }, Some(Switch { mode: config.split, reason }))
        }
        PartitionMode::Preferred | PartitionMode::Strict => {
            let is_low = window.is_below(config);
            let calm_ms = if is_low { streak.calm_ms.saturating_add(window.ms) } else { 0 };
            if !is_low || calm_ms < streak.patience_ms(config) {
                return (Streak { n_high: 0, calm_ms, ..streak }, None);
            }
            let reason = format!("calm for {} s; in the last window {window}", calm_ms / 1_000);
            let streak = Streak { shared_ms: Some(0), n_relapses: streak.n_relapses, ..Streak::default() };
            (streak, Some(Switch { mode: PartitionMode::Global, reason }))
        }
    }
}

impl Streak {
    /// How long it has to be calm this time.
    fn patience_ms(&self, config: &Config) -> u64 {
        let doubled = config.calm_ms.saturating_mul(1 << self.n_relapses.min(62));
        doubled.min(config.calm_ms_max.max(config.calm_ms))
    }
}

impl LoadWindow {
    fn is_above(&self, config: &Config) -> bool {
        let (conflicts, limit) = self.conflicts_against(&config.high);
        let is_many =
            u128::from(self.conflicts) * 1_000 >= u128::from(config.conflicts_per_s) * u128::from(self.ms);
        conflicts > limit && is_many && (!config.needs_pressure || self.is_pressed(&config.high))
    }

    fn is_pressed(&self, limits: &ModeLimits) -> bool {
        let is_full = u64::from(self.allocated_permille) > 10 * u64::from(limits.allocated_percent);
        let is_busy = u128::from(self.placed) * 1_000 > u128::from(limits.placed_per_s) * u128::from(self.ms);
        is_full || is_busy
    }

    fn is_below(&self, config: &Config) -> bool {
        let (conflicts, limit) = self.conflicts_against(&config.low);
        // Nothing done is no conflict.
        let is_calm = conflicts < limit || self.conflicts == 0;
        is_calm && (!config.needs_pressure || self.is_idle(&config.low))
    }

    fn is_idle(&self, limits: &ModeLimits) -> bool {
        let has_room = u64::from(self.allocated_permille) < 10 * u64::from(limits.allocated_percent);
        let is_slow = u128::from(self.placed) * 1_000 < u128::from(limits.placed_per_s) * u128::from(self.ms);
        has_room && is_slow
    }

    /// Conflicts and as many as the limit allows, both times a thousand.
    fn conflicts_against(&self, limits: &ModeLimits) -> (u128, u128) {
        let answers = u128::from(self.placed) + u128::from(self.conflicts);
        (u128::from(self.conflicts) * 1_000, answers * u128::from(limits.conflicts_permille))
    }
}

impl fmt::Display for LoadWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_s = u128::from(self.placed) * 1_000 / u128::from(self.ms.max(1));
        let answers = (u128::from(self.placed) + u128::from(self.conflicts)).max(1);
        let conflicts = u128::from(self.conflicts) * 1_000 / answers;
        let tenths = |permille: u128| format!("{}.{} %", permille / 10, permille % 10);
        let allocated = tenths(u128::from(self.allocated_permille));
        write!(f, "{allocated} allocated, {per_s} placed per second, {} conflicts", tenths(conflicts))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MODES: [PartitionMode; 3] =
        [PartitionMode::Global, PartitionMode::Preferred, PartitionMode::Strict];

    /// A window of 10 s: allocated per mille, placed per second, conflicts per mille of 100,000 answers' worth.
    fn window(allocated_permille: u32, per_s: u64, conflicts_permille: u64) -> LoadWindow {
        let placed = per_s * 10;
        let conflicts = (placed * conflicts_permille).div_ceil(1_000 - conflicts_permille.min(999));
        LoadWindow { ms: 10_000, allocated_permille, placed, conflicts }
    }

    /// After which window, counted from 1, the mode changes, and to what.
    fn run(config: &Config, mode: PartitionMode, windows: &[LoadWindow]) -> Vec<(usize, PartitionMode)> {
        let (mut mode, mut streak, mut switches) = (mode, Streak::default(), Vec::new());
        for (number, window) in (1..).zip(windows) {
            let (next, switch) = follow(config, mode, streak, window);
            streak = next;
            if let Some(switch) = switch {
                mode = switch.mode;
                switches.push((number, mode));
            }
        }
        switches
    }

    /// A window of 10 s with so much placed and so many conflicts.
    fn counted(placed: u64, conflicts: u64) -> LoadWindow {
        LoadWindow { ms: 10_000, allocated_permille: 300, placed, conflicts }
    }

    fn pressed() -> Config {
        Config { needs_pressure: true, ..Config::default() }
    }

    #[test]
    fn nodes_are_split_after_three_windows_of_conflicts() {
        let into = |windows: &[LoadWindow]| run(&Config::default(), PartitionMode::Global, windows);
        let split = |number| vec![(number, PartitionMode::Preferred)];
        let many = counted(9_800, 200);
        for (case, windows, expected) in [
            ("a small busy cluster", vec![counted(20_000, 5_640); 3], split(3)),
            ("a large idle one", vec![counted(9_000, 100); 3], split(3)),
            ("two are too few", vec![many; 2], vec![]),
            ("in a row", vec![many, many, counted(9_800, 0), many, many], vec![]),
            ("and again", vec![many, many, counted(9_800, 0), many, many, many], split(6)),
            ("ten a second are enough", vec![counted(1_000, 100); 9], split(3)),
            ("fewer than ten a second are not", vec![counted(1_000, 99); 9], vec![]),
            ("however large their share", vec![counted(0, 99); 9], vec![]),
            ("one per cent is not above", vec![counted(99_000, 1_000); 9], vec![]),
            ("a little more is", vec![counted(98_999, 1_000); 9], split(3)),
            ("load without conflicts", vec![window(1_000, 9_000, 0); 9], vec![]),
            ("nothing at all", vec![LoadWindow { ms: 10_000, ..LoadWindow::default() }; 9], vec![]),
        ] {
            assert_eq!(into(&windows), expected, "{case}");
        }
    }

    #[test]
    fn where_pressure_is_asked_for_conflicts_alone_split_nothing() {
        let into = |windows: &[LoadWindow]| run(&pressed(), PartitionMode::Global, windows);
        let split = |number| vec![(number, PartitionMode::Preferred)];
        let (full, busy) = (window(901, 1_000, 20), window(0, 2_001, 20));
        for (case, windows, expected) in [
            ("full", vec![full; 3], split(3)),
            ("busy", vec![busy; 3], split(3)),
            ("one, then the other", vec![full, busy, full], split(3)),
            ("in a row", vec![full, full, window(0, 1_000, 20), full, full], vec![]),
            ("at the limits is not above", vec![window(900, 2_000, 20); 9], vec![]),
            ("full without conflicts", vec![window(1_000, 9_000, 0); 9], vec![]),
            ("conflicts without load", vec![window(100, 100, 500); 9], vec![]),
            ("full with few conflicts", vec![window(1_000, 10, 20); 9], vec![]),
        ] {
            assert_eq!(into(&windows), expected, "{case}");
        }
    }

    #[test]
    fn nodes_are_shared_again_after_a_minute_of_calm() {
        let out = |windows: &[LoadWindow]| run(&Config::default(), PartitionMode::Preferred, windows);
        let calm = window(999, 9_000, 4);
        let idle = LoadWindow { ms: 10_000, ..LoadWindow::default() };
        let shared = |number| vec![(number, PartitionMode::Global)];
        for (case, windows, expected) in [
            ("a minute", vec![calm; 6], shared(6)),
            ("not yet", vec![calm; 5], vec![]),
            ("idle", vec![idle; 6], shared(6)),
            ("in a row", [vec![calm; 5], vec![window(800, 10, 6)], vec![calm; 5]].concat(), vec![]),
            ("half a per cent is not below", vec![counted(995, 5); 20], vec![]),
            ("between the limits nothing changes", vec![window(850, 1_700, 7); 50], vec![]),
        ] {
            assert_eq!(out(&windows), expected, "{case}");
        }
        // Windows of another length count by their time.
        assert_eq!(out(&[LoadWindow { ms: 25_000, ..idle }; 3]), shared(3));
    }

    #[test]
    fn where_pressure_is_asked_for_nodes_stay_split_under_it() {
        let out = |windows: &[LoadWindow]| run(&pressed(), PartitionMode::Preferred, windows);
        let calm = window(799, 1_499, 4);
        let shared = |number| vec![(number, PartitionMode::Global)];
        for (case, windows, expected) in [
            ("a minute", vec![calm; 6], shared(6)),
            ("in a row", [vec![calm; 5], vec![window(800, 10, 0)], vec![calm; 5]].concat(), vec![]),
            ("too full", vec![window(800, 10, 0); 20], vec![]),
            ("too busy", vec![window(100, 1_500, 0); 20], vec![]),
            ("too many conflicts", vec![window(100, 100, 6); 20], vec![]),
        ] {
            assert_eq!(out(&windows), expected, "{case}");
        }
    }

    #[test]
    fn there_and_back_with_reasons() {
        let config = Config::default();
        let load = [vec![window(935, 2_100, 15); 4], vec![window(700, 10, 0); 7]].concat();
        let modes = run(&config, PartitionMode::Global, &load);
        assert_eq!(modes, [(3, PartitionMode::Preferred), (10, PartitionMode::Global)]);
        let streak = Streak { n_high: 2, ..Streak::default() };
        let (_, switch) = follow(&config, PartitionMode::Global, streak, &load[0]);
        assert_eq!(
            switch.unwrap().reason,
            "3 windows above the limits; in the last one 93.5 % allocated, 2100 placed per second, 1.5 % conflicts"
        );
    }

    #[test]
    fn where_conflicts_come_back_soon_calm_lasts_twice_as_long() {
        // Shared nodes have conflicts, split ones have none, for hours.
        let config = Config { calm_ms_max: 300_000, ..Config::default() };
        let (mut mode, mut streak, mut splits) = (PartitionMode::Global, Streak::default(), Vec::new());
        let mut n_split = 0;
        for _ in 0..200 {
            let conflicts = if mode == PartitionMode::Global { 5_000 } else { 0 };
            n_split += u64::from(mode != PartitionMode::Global);
            let (next, switch) = follow(&config, mode, streak, &counted(20_000, conflicts));
            streak = next;
            if let Some(switch) = switch {
                if switch.mode == PartitionMode::Global {
                    splits.push(std::mem::take(&mut n_split) * 10);
                }
                mode = switch.mode;
            }
        }
        assert_eq!(splits[..5], [60, 120, 240, 300, 300], "seconds, up to the longest");
        // A day without any: the next time is the first one again.
        let quiet = Streak { shared_ms: Some(86_400_000), n_relapses: 7, n_high: 2, ..Streak::default() };
        let (streak, _) = follow(&config, PartitionMode::Global, quiet, &counted(20_000, 5_000));
        assert_eq!(streak.patience_ms(&config), config.calm_ms);
    }

    proptest! {
        /// Whatever the windows: switched off nothing changes; two changes are never nearer than the patience between
        /// them; and load between the limits changes nothing.
        #[test]
        fn changes_are_rare(
            windows in prop::collection::vec((0..1_100u32, 0..4_000u64, 0..30u64), 1..60),
            start in 0..3usize,
            n_windows in 0..5u32,
            needs_pressure in any::<bool>(),
        ) {
            let windows: Vec<LoadWindow> =
                windows.into_iter().map(|(full, per_s, conflicts)| window(full, per_s, conflicts)).collect();
            let config = Config { n_windows, split: PartitionMode::Strict, needs_pressure, ..Config::default() };
            let switches = run(&config, MODES[start], &windows);
            for pair in switches.windows(2) {
                let patience = if pair[1].1 == PartitionMode::Global { 6 } else { config.n_windows.max(1) as usize };
                prop_assert!(pair[1].0 - pair[0].0 >= patience, "{switches:?}");
                prop_assert_ne!(pair[0].1, pair[1].1);
            }
            for (number, mode) in &switches {
                let limits = (windows[number - 1].is_above(&config), windows[number - 1].is_below(&config));
                prop_assert_eq!(limits, (*mode == PartitionMode::Strict, *mode == PartitionMode::Global));
            }
            prop_assert_eq!(run(&Config { is_on: false, ..config.clone() }, MODES[start], &windows), []);
            let never = Config { split: PartitionMode::Global, ..config };
            prop_assert_eq!(run(&never, PartitionMode::Global, &windows), []);
        }
    }
}
