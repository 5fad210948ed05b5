//! Nodes that are lost.

use super::*;

fn report(node: u32, ready: bool) -> NodeReport {
    let capacity = Resources::new([("cpu", 10_000)]).unwrap();
    NodeReport { id: NodeId(node), capacity, ready, ..NodeReport::default() }
}

impl Rig {
    fn ready(&mut self, nodes: impl IntoIterator<Item = u32>, ready: bool) {
        for node in nodes {
            self.core.on_node_report(&report(node, ready), self.now);
        }
    }

    fn bind_on(&mut self, unit: u64, places: &[(u32, u32)]) {
        let row = |ordinal: u32| self.core.unit(UnitId(unit)).unwrap().rows.row(ordinal).incarnation;
        let incarnations = places.iter().map(|(ordinal, _)| row(*ordinal)).collect();
        let (ordinals, nodes) = places.iter().map(|(ordinal, node)| (*ordinal, NodeId(*node))).unzip();
        self.rows(unit, RowChange::Bind(Bind { ordinals, incarnations, nodes, ..Bind::default() }));
    }

    fn evicted(&mut self, unit: u64, ordinals: &[u32], reason: EvictionReason) {
        let row = |ordinal: &u32| self.core.unit(UnitId(unit)).unwrap().rows.row(*ordinal).incarnation;
        let incarnations = ordinals.iter().map(row).collect();
        let evict = Evict { ordinals: ordinals.to_vec(), incarnations, reason, by: String::new() };
        self.rows(unit, RowChange::Evict(evict));
    }

    /// Every wake-up of a span of time.
    fn run_for(&mut self, ms: u64) -> Vec<String> {
        let until = self.now.plus(ms);
        let mut seen = self.step();
        while let Some(at) = self.core.next_wake(self.now).filter(|at| *at <= until) {
            assert!(at > self.now || !seen.is_empty() || self.core.departures_due(self.now).is_some());
            self.now = at.max(self.now.plus(1));
            seen.extend(self.step());
        }
        self.now = until;
        seen
    }
}

#[test]
fn what_runs_on_a_lost_node_is_evicted_once_its_grace_is_over() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.submit(1..=3);
    rig.bind_on(1, &[(0, 7), (1, 8)]);
    rig.bind_on(2, &[(0, 8), (1, 9)]);
    rig.bind_on(3, &[(0, 7), (1, 7)]);
    rig.evicted(3, &[1], EvictionReason::Drained);
    rig.ready([7], false);
    assert_eq!(rig.run_for(59_999), [""; 0]);
    assert_eq!(rig.run_for(300), ["evict 1 NodeLost [0]", "evict 3 NodeLost [0, 1]"]);
    rig.core.on_evict_answer(UnitId(1), EvictionReason::NodeLost, true);
    rig.evicted(1, &[0], EvictionReason::NodeLost);
    assert_eq!(rig.core.unit(UnitId(1)).unwrap().counts.stopped, 1, "nobody else says so");
    // The binder did not answer for unit 3.
    assert_eq!(rig.run_for(2_300), ["evict 3 NodeLost [0, 1]"]);
    rig.evicted(3, &[0, 1], EvictionReason::NodeLost);
    // Bound there by a transaction that was on its way.
    rig.submit([4]);
    rig.bind_on(4, &[(0, 7), (1, 9)]);
    assert_eq!(rig.run_for(300), ["evict 4 NodeLost [0]"]);
    rig.evicted(4, &[0], EvictionReason::NodeLost);
    assert_eq!(rig.run_for(60_000), [""; 0]);
    assert_eq!((rig.core.summary().counters.repairs, rig.core.summary().nodes_not_ready), (0, 1));
}

#[test]
fn a_node_that_comes_back_in_time_keeps_everything() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.submit([1]);
    rig.bind_on(1, &[(0, 7), (1, 7)]);
    rig.ready([7], false);
    assert_eq!(rig.run_for(59_000), [""; 0]);
    rig.ready([7], true);
    assert_eq!(rig.run_for(120_000), [""; 0]);
    rig.ready([7], false);
    assert_eq!(rig.run_for(59_000), [""; 0], "grace anew");
    assert_eq!(rig.run_for(1_000), ["evict 1 NodeLost [0, 1]"]);
    // Back while the binder is asked: not asked again.
    rig.ready([7], true);
    assert_eq!(rig.run_for(10_000), [""; 0]);
}

#[test]
fn when_many_are_lost_at_once_nothing_is_evicted_until_somebody_says_so() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.submit([1]);
    rig.bind_on(1, &[(0, 7), (1, 8)]);
    rig.ready(7..=9, false);
    assert_eq!(rig.run_for(600_000), [""; 0]);
    assert_eq!(rig.core.take_brake_changes(), [BrakeChange::Engaged { lost: 3, nodes: 20 }]);
    assert!(rig.core.summary().evictions_paused);
    assert!(rig.core.resume_evictions());
    assert_eq!(rig.run_for(1_000), ["evict 1 NodeLost [0, 1]"]);
    assert_eq!(rig.core.take_brake_changes(), [BrakeChange::Released]);
    assert!(!rig.core.resume_evictions() && !rig.core.summary().evictions_paused);
}

#[test]
fn enough_nodes_back_release_the_brake() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.submit([1]);
    rig.bind_on(1, &[(0, 7), (1, 8)]);
    rig.ready(7..=9, false);
    rig.run_for(100_000);
    assert!(rig.core.summary().evictions_paused);
    rig.ready([8], true);
    assert_eq!(rig.run_for(1_000), ["evict 1 NodeLost [0]"], "two of twenty");
}

#[test]
fn a_new_leader_gives_grace_anew_and_brakes_only_for_nodes_with_something_to_lose() {
    let lost_of = |n_units: u64| {
        let mut rig = Rig::loading(Config::default());
        rig.ready(1..=20, true);
        rig.ready(7..=9, false);
        rig.submit(1..=n_units);
        for unit in 1..=n_units {
            let node = 6 + u32::try_from(unit).unwrap();
            rig.bind_on(unit, &[(0, node), (1, node)]);
        }
        rig.core.on_synced(Revision(rig.revision), rig.now);
        let early = rig.run_for(59_000);
        let late = rig.run_for(1_500);
        (early.len(), late, rig.core.summary().evictions_paused)
    };
    assert_eq!(lost_of(1), (0, vec!["evict 1 NodeLost [0, 1]".to_owned()], false));
    assert_eq!(lost_of(3), (0, vec![], true));
}

#[test]
fn a_sweep_over_many_units_is_cut_into_slices() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.submit(1..=45_000);
    rig.bind_on(44_999, &[(0, 7), (1, 9)]);
    rig.ready([7], false);
    rig.now = rig.now.plus(60_000);
    for _ in 0..2 {
        assert_eq!(rig.step(), [""; 0]);
        assert_eq!(rig.core.next_wake(rig.now), Some(rig.now), "it goes on at once");
    }
    assert_eq!(rig.step(), ["evict 44999 NodeLost [0]"]);
}
