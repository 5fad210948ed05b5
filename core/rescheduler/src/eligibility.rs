//! Which running units and nodes a policy may use now: its scope, what is protected, the rates of units, quiet times, and how
//! much has failed.

use std::collections::{BTreeMap, VecDeque};

use godel_base::{ids::UnitId, time::Millis};
use godel_domain::unit::WorkloadClass;

use crate::{
    config::{MoveRate, PolicyConfig, Protection, QuietTime},
    kept::kept_reason,
    layout::{Layout, NodeIdx, RunIdx},
    snapshot::{NodeFacts, UnitFacts},
    workspace::PlanLimits,
};

/// Most moves that are remembered of one unit: no more than a rate may allow.
const N_MOVES_MAX: usize = 1_024;

/// When replicas of each unit were moved, as far back as the rate looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoveLog {
    moves: BTreeMap<UnitId, VecDeque<Millis>>,
}

impl MoveLog {
    /// Takes note of a move; of one unit, times never go back.
    pub fn note(&mut self, unit: UnitId, at: Millis) {
        let times = self.moves.entry(unit).or_default();
        times.push_back(at);
        if times.len() > N_MOVES_MAX {
            times.pop_front();
        }
    }

    /// Forgets what no rate looks at any more.
    pub fn forget_before(&mut self, time: Millis) {
        self.moves.retain(|_, times| {
            while times.front().is_some_and(|at| *at < time) {
                times.pop_front();
            }
            !times.is_empty()
        });
    }

    /// Returns how many replicas of a unit may be moved now.
    pub fn n_left(&self, unit: UnitId, rate: MoveRate, now: Millis) -> u32 {
        let recent = self.moves.get(&unit).into_iter().flatten();
        let n = recent.filter(|at| now.since(**at) < rate.within_ms).count();
        // A log that is full may have forgotten some.
        if n >= N_MOVES_MAX {
            return 0;
        }
        rate.n_moves_max.saturating_sub(u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// Returns all that is remembered, to be kept where it survives a restart.
    pub fn iter(&self) -> impl Iterator<Item = (UnitId, Millis)> {
        self.moves.iter().flat_map(|(unit, times)| times.iter().map(|at| (*unit, *at)))
    }
}

/// Whether the cluster is at rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuietState {
    until: Option<Millis>,
}

impl QuietState {
    /// Takes note of how many units wait now, and says until when nothing is moved; `None`: moves may be made.
    pub fn observe(&mut self, n_pending: u64, quiet: QuietTime, now: Millis) -> Option<Millis> {
        if n_pending > quiet.n_pending_max {
            self.until = Some(now.plus(quiet.for_ms));
        }
        self.until.filter(|until| n_pending > quiet.n_pending_max || *until > now)
    }
}

/// Whether a run has to stop: of its moves that ended, more have failed than a percentage allows.
pub fn has_failed_too_often(n_failed: u64, n_ended: u64, failed_max_percent: u32) -> bool {
    u128::from(n_failed) * 100 > u128::from(n_ended) * u128::from(failed_max_percent)
}

impl Protection {
    /// Whether replicas of a unit are never moved.
    pub fn protects(&self, unit: &UnitFacts) -> bool {
        unit.class == WorkloadClass::Daemon
            || self.classes.contains(&unit.class)
            || self.units.contains(&unit.name)
            || self
                .labels
                .iter()
                .any(|expression| expression.accepts(unit.labels.get(&expression.key).map(String::as_str)))
    }
}

impl crate::config::PolicyScope {
    /// Whether a node is in the scope.
    pub fn has_node(&self, node: &NodeFacts) -> bool {
        (self.sub_clusters.is_empty() || self.sub_clusters.contains(&node.sub_cluster))
            && self
                .node_labels
                .iter()
                .all(|expression| expression.accepts(node.labels.get(&expression.key).map(String::as_str)))
    }

    /// Whether replicas of a unit are in the scope.
    pub fn has_unit(&self, unit: &UnitFacts) -> bool {
        self.queues.is_empty() || self.queues.contains(&unit.queue)
    }
}

/// Returns what bounds the next plan of a policy.
pub fn limits_of(
    layout: &Layout<'_>,
    policy: &PolicyConfig,
    protection: &Protection,
    rate: MoveRate,
    log: &MoveLog,
    seed: u64,
) -> PlanLimits {
    let snapshot = layout.snapshot();
    let in_scope: Vec<bool> = snapshot.nodes.iter().map(|node| policy.scope.has_node(node)).collect();
    let of_unit: Vec<bool> =
        snapshot.units.iter().map(|unit| policy.scope.has_unit(unit) && !protection.protects(unit)).collect();
    let is_in_scope = |node: NodeIdx| in_scope.get(node.idx()).copied().unwrap_or(false);
    let is_of_unit = |unit: RunIdx| of_unit.get(layout.owner(unit).idx()).copied().unwrap_or(false);
    let movable: Vec<bool> =
        layout.running().map(|unit| is_of_unit(unit) && kept_reason(layout, unit, false).is_none()).collect();
    let n_in_scope =
        layout.running().filter(|unit| movable[unit.idx()] && is_in_scope(layout.node_of(*unit))).count();
    let percent = usize::try_from(policy.moved_max_percent.min(100)).unwrap_or(100);
    let owner_left = snapshot.units.iter().map(|unit| log.n_left(unit.id, rate, snapshot.now)).collect();
    let n_moves_max = n_in_scope.saturating_mul(percent) / 100;
    PlanLimits { n_moves_max, movable, in_scope, busy: Vec::new(), owner_left, seed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_moved_no_more_often_than_its_rate() {
        let rate = MoveRate { n_moves_max: 2, within_ms: 100 };
        let mut log = MoveLog::default();
        let (unit, other) = (UnitId(1), UnitId(2));
        assert_eq!(log.n_left(unit, rate, Millis(0)), 2);
        log.note(unit, Millis(10));
        log.note(unit, Millis(50));
        assert_eq!((log.n_left(unit, rate, Millis(60)), log.n_left(other, rate, Millis(60))), (0, 2));
        assert_eq!(log.n_left(unit, rate, Millis(110)), 1);
        log.forget_before(Millis(50));
        assert_eq!(log.iter().collect::<Vec<_>>(), [(unit, Millis(50))]);
        assert_eq!(log.n_left(unit, rate, Millis(150)), 2);
    }

    #[test]
    fn nothing_moves_while_much_waits_and_for_a_time_after() {
        let quiet = QuietTime { n_pending_max: 5, for_ms: 100 };
        let mut state = QuietState::default();
        assert_eq!(state.observe(5, quiet, Millis(0)), None);
        assert_eq!(state.observe(6, quiet, Millis(10)), Some(Millis(110)));
        assert_eq!(state.observe(0, quiet, Millis(109)), Some(Millis(110)));
        assert_eq!(state.observe(0, quiet, Millis(110)), None);
    }

    #[test]
    fn a_run_stops_above_the_ratio_of_failures() {
        for (n_failed, n_ended, percent, expected) in
            [(0, 0, 0, false), (1, 10, 10, false), (2, 10, 10, true), (1, 1, 0, true), (5, 5, 100, false)]
        {
            assert_eq!(has_failed_too_often(n_failed, n_ended, percent), expected, "{n_failed}/{n_ended}");
        }
    }
}
