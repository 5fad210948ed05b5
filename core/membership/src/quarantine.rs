//! When a node whose agent refuses what it is assigned gets nothing more for a while.
//!
//! One refusal may be chance; some within a short time are a node that is not what it says. The count is kept in memory by
//! whoever hears the agents: after a restart it begins anew. The quarantine itself is in the node's record.

use std::collections::VecDeque;

use godel_base::time::Millis;

use crate::agent_admission::AssignmentRefusal;

/// When a node is quarantined, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// After so many refusals; 0: never.
    pub n_refusals: usize,
    /// Within so long, milliseconds.
    pub window_ms: u64,
    /// For so long, milliseconds.
    pub lasts_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { n_refusals: 3, window_ms: 60_000, lasts_ms: 600_000 }
    }
}

/// Refusals of one node, of late.
#[derive(Clone, Debug, Default)]
pub struct NodeRefusals(VecDeque<Millis>);

impl NodeRefusals {
    /// One more refusal, for `why`. The reason in words if the node is to be quarantined for it; then the count begins anew.
    pub fn note(&mut self, why: AssignmentRefusal, now: Millis, config: &Config) -> Option<String> {
        if !why.counts_against_node() {
            return None;
        }
        self.0.push_back(now);
        while self.0.front().is_some_and(|at| now.since(*at) >= config.window_ms.max(1)) {
            self.0.pop_front();
        }
        let n = self.0.len();
        if config.n_refusals == 0 || n < config.n_refusals {
            self.0.truncate(config.n_refusals.max(1));
            return None;
        }
        self.0.clear();
        let seconds = config.window_ms.div_ceil(1_000);
        Some(format!("{n} assignments refused within {seconds} s, the last for {}", why.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_within_the_window_are_too_many() {
        let config = Config { n_refusals: 3, window_ms: 1_000, lasts_ms: 0 };
        let mut refusals = NodeRefusals::default();
        let mut at = |ms| refusals.note(AssignmentRefusal::Room, Millis(ms), &config).is_some();
        assert_eq!([0, 500, 1_000, 1_500, 1_999].map(&mut at), [false, false, false, false, true]);
        // The count begins anew.
        assert_eq!([2_000, 2_001, 2_002].map(&mut at), [false, false, true]);
    }

    #[test]
    fn what_a_node_says_by_itself_does_not_count() {
        let config = Config { n_refusals: 1, window_ms: 1_000, lasts_ms: 0 };
        let counts =
            |why: &AssignmentRefusal| NodeRefusals::default().note(*why, Millis(1), &config).is_some();
        let counted: Vec<_> =
            AssignmentRefusal::ALL.into_iter().filter(counts).map(AssignmentRefusal::name).collect();
        assert_eq!(counted, ["room", "devices", "zones", "told", "keeper"]);
    }

    #[test]
    fn switched_off_it_never_happens_and_keeps_nothing() {
        let config = Config { n_refusals: 0, ..Config::default() };
        let mut refusals = NodeRefusals::default();
        assert!((0..100).all(|ms| refusals.note(AssignmentRefusal::Devices, Millis(ms), &config).is_none()));
        assert!(refusals.0.len() <= 1);
    }

    #[test]
    fn the_reason_says_how_many_and_why() {
        let config = Config { n_refusals: 1, window_ms: 60_000, lasts_ms: 0 };
        let reason = NodeRefusals::default().note(AssignmentRefusal::Devices, Millis(5), &config).unwrap();
        assert_eq!(reason, "1 assignments refused within 60 s, the last for devices");
    }
}
