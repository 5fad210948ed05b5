//! When nodes are split over schedulers without being told to, and when they are shared again.
//!
//! Schedulers that share all nodes place best while there is room and little to do. On a full cluster, or with much to
//! place, they pick the same nodes at the same time, and each conflict costs a second decision: then each one begins with
//! nodes of its own. What decides is counted in windows; to go there takes less than to come back, so that a load near
//! a limit does not make nodes change hands over and over.

use std::fmt;

use crate::change::PartitionMode;

/// Limits and patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether the mode ever changes by itself.
    pub is_on: bool,
    /// How nodes are split when sharing them does not do.
    pub split: PartitionMode,
    /// Length of a window, milliseconds.
    pub window_ms: u64,
    /// Above these the load is too high for sharing.
    pub high: Limits,
    /// So many windows in a row above `high` split the nodes.
    pub n_windows: u32,
    /// Below these, all of them, the load is low again.
    pub low: Limits,
    /// Windows below `low` in a row share the nodes again once they last so long together, milliseconds.
    pub calm_ms: u64,
}

/// What a window is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
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
            high: Limits { allocated_percent: 90, placed_per_s: 2_000, conflicts_permille: 10 },
            n_windows: 3,
            low: Limits { allocated_percent: 80, placed_per_s: 1_500, conflicts_permille: 5 },
            calm_ms: 60_000,
        }
    }
}

/// What was counted in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
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
}

/// The mode is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// To this one.
    pub mode: PartitionMode,
    /// Why, in words.
    pub reason: String,
}

/// What one more window makes of the streak and, perhaps, of the mode. Pure; a switch begins a new streak.
pub fn follow(
    config: &Config,
    mode: PartitionMode,
    streak: Streak,
    window: &Window,
) -> (Streak, Option<Switch>) {
    if !config.is_on || window.ms == 0 {
        return (Streak::default(), None);
    }
    match mode {
        PartitionMode::Global => {
            let n_high = if window.is_above(&config.high) { streak.n_high.saturating_add(1) } else { 0 };
            // A split that is none would be written for nothing.
            if n_high < config.n_windows.max(1) || config.split == PartitionMode::Global {
                return (Streak { n_high, calm_ms: 0 }, None);
            }
            let reason = format!("{n_high} windows above the limits; in the last one {window}");
            (Streak::default(), Some(Switch { mode: config.split, reason }))
        }
        PartitionMode::Preferred | PartitionMode::Strict => {
            let is_low = window.is_below(&config.low);
            let calm_ms = if is_low { streak.calm_ms.saturating_add(window.ms) } else { 0 };
            if !is_low || calm_ms < config.calm_ms {
                return (Streak { n_high: 0, calm_ms }, None);
            }
            let reason = format!("calm for {} s; in the last window {window}", calm_ms / 1_000);
            (Streak::default(), Some(Switch { mode: PartitionMode::Global, reason }))
        }
    }
}

impl Window {
    fn is_above(&self, limits: &Limits) -> bool {
        let is_full = u64::from(self.allocated_permille) > 10 * u64::from(limits.allocated_percent);
        let is_busy = u128::from(self.placed) * 1_000 > u128::from(limits.placed_per_s) * u128::from(self.ms);
        let (conflicts, limit) = self.conflicts_against(limits);
        (is_full || is_busy) && conflicts > limit
    }

    fn is_below(&self, limits: &Limits) -> bool {
        let has_room = u64::from(self.allocated_permille) < 10 * u64::from(limits.allocated_percent);
        let is_idle = u128::from(self.placed) * 1_000 < u128::from(limits.placed_per_s) * u128::from(self.ms);
        let (conflicts, limit) = self.conflicts_against(limits);
        // Nothing done is no conflict.
        has_room && is_idle && (conflicts < limit || self.conflicts == 0)
    }

    /// Conflicts and as many as the limit allows, both times a thousand.
    fn conflicts_against(&self, limits: &Limits) -> (u128, u128) {
        let answers = u128::from(self.placed) + u128::from(self.conflicts);
        (u128::from(self.conflicts) * 1_000, answers * u128::from(limits.conflicts_permille))
    }
}

/// `93.5 % allocated, 2100 placed per second, 1.5 % conflicts`
impl fmt::Display for Window {
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
    fn window(allocated_permille: u32, per_s: u64, conflicts_permille: u64) -> Window {
        let placed = per_s * 10;
        let conflicts = (placed * conflicts_permille).div_ceil(1_000 - conflicts_permille.min(999));
        Window { ms: 10_000, allocated_permille, placed, conflicts }
    }

    /// After which window, counted from 1, the mode changes, and to what.
    fn run(config: &Config, mode: PartitionMode, windows: &[Window]) -> Vec<(usize, PartitionMode)> {
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

    #[test]
    fn nodes_are_split_after_three_windows_of_load_and_conflicts() {
        let into = |windows: &[Window]| run(&Config::default(), PartitionMode::Global, windows);
        let split = |number| vec![(number, PartitionMode::Preferred)];
        let (full, busy) = (window(901, 10, 20), window(0, 2_001, 20));
        for (case, windows, expected) in [
            ("full", vec![full; 3], split(3)),
            ("busy", vec![busy; 3], split(3)),
            ("one, then the other", vec![full, busy, full], split(3)),
            ("two are too few", vec![full; 2], vec![]),
            ("in a row", vec![full, full, window(0, 10, 20), full, full], vec![]),
            ("and again", vec![full, full, window(0, 10, 20), full, full, full], split(6)),
            ("at the limits is not above", vec![window(900, 2_000, 20); 9], vec![]),
            ("full without conflicts", vec![window(1_000, 9_000, 0); 9], vec![]),
            ("one per cent is not above", vec![Window { conflicts: 1, ..window(1_000, 9, 0) }; 9], split(3)),
            ("conflicts without load", vec![window(100, 100, 500); 9], vec![]),
            ("nothing at all", vec![Window { ms: 10_000, ..Window::default() }; 9], vec![]),
        ] {
            assert_eq!(into(&windows), expected, "{case}");
        }
        let at_limit = Window { ms: 10_000, allocated_permille: 1_000, placed: 99, conflicts: 1 };
        assert_eq!(into(&[at_limit; 9]), [], "1 of 100 is not above 1 %");
    }

    #[test]
    fn nodes_are_shared_again_after_a_minute_of_calm() {
        let out = |windows: &[Window]| run(&Config::default(), PartitionMode::Preferred, windows);
        let calm = window(799, 1_499, 4);
        let idle = Window { ms: 10_000, ..Window::default() };
        let shared = |number| vec![(number, PartitionMode::Global)];
        for (case, windows, expected) in [
            ("a minute", vec![calm; 6], shared(6)),
            ("not yet", vec![calm; 5], vec![]),
            ("idle", vec![idle; 6], shared(6)),
            ("in a row", [vec![calm; 5], vec![window(800, 10, 0)], vec![calm; 5]].concat(), vec![]),
            ("too full", vec![window(800, 10, 0); 20], vec![]),
            ("too busy", vec![window(100, 1_500, 0); 20], vec![]),
            ("too many conflicts", vec![window(100, 100, 6); 20], vec![]),
            ("between the limits nothing changes", vec![window(850, 1_700, 7); 50], vec![]),
        ] {
            assert_eq!(out(&windows), expected, "{case}");
        }
        // Windows of another length count by their time.
        assert_eq!(out(&[Window { ms: 25_000, ..idle }; 3]), shared(3));
    }

    #[test]
    fn there_and_back_with_reasons() {
        let config = Config::default();
        let load = [vec![window(935, 2_100, 15); 4], vec![window(700, 10, 0); 7]].concat();
        let modes = run(&config, PartitionMode::Global, &load);
        assert_eq!(modes, [(3, PartitionMode::Preferred), (10, PartitionMode::Global)]);
        let streak = Streak { n_high: 2, calm_ms: 0 };
        let (_, switch) = follow(&config, PartitionMode::Global, streak, &load[0]);
        assert_eq!(
            switch.unwrap().reason,
            "3 windows above the limits; in the last one 93.5 % allocated, 2100 placed per second, 1.5 % conflicts"
        );
    }

    proptest! {
        /// Whatever the windows: switched off nothing changes; two changes are never nearer than the patience between
        /// them; and load between the limits changes nothing.
        #[test]
        fn changes_are_rare(
            windows in prop::collection::vec((0..1_100u32, 0..4_000u64, 0..30u64), 1..60),
            start in 0..3usize,
            n_windows in 0..5u32,
        ) {
            let windows: Vec<Window> =
                windows.into_iter().map(|(full, per_s, conflicts)| window(full, per_s, conflicts)).collect();
            let config = Config { n_windows, split: PartitionMode::Strict, ..Config::default() };
            let switches = run(&config, MODES[start], &windows);
            for pair in switches.windows(2) {
                let patience = if pair[1].1 == PartitionMode::Global { 6 } else { config.n_windows.max(1) as usize };
                prop_assert!(pair[1].0 - pair[0].0 >= patience, "{switches:?}");
                prop_assert_ne!(pair[0].1, pair[1].1);
            }
            for (number, mode) in &switches {
                let limits = (windows[number - 1].is_above(&config.high), windows[number - 1].is_below(&config.low));
                prop_assert_eq!(limits, (*mode == PartitionMode::Strict, *mode == PartitionMode::Global));
            }
            prop_assert_eq!(run(&Config { is_on: false, ..config.clone() }, MODES[start], &windows), []);
            let never = Config { split: PartitionMode::Global, ..config };
            prop_assert_eq!(run(&never, PartitionMode::Global, &windows), []);
        }
    }
}
