//! Nodes that are lost or drained.

use godel_domain::{
    node::Drain,
    unit::{OnBelowMin, WorkloadClass},
};
use godel_rules::drain::DrainBlock;
use godel_testkit::web_budget;

use super::*;

fn report(node: u32, ready: bool) -> NodeReport {
    let capacity = Resources::new([("cpu", 10_000)]).unwrap();
    NodeReport { id: NodeId(node), capacity, ready, ..NodeReport::default() }
}

impl Rig {
    pub(super) fn ready(&mut self, nodes: impl IntoIterator<Item = u32>, ready: bool) {
        for node in nodes {
            put(&mut self.core, Record::NodeReport(report(node, ready)), self.now);
        }
    }

    pub(super) fn bind_on(&mut self, unit: u64, places: &[(u32, u32)]) {
        let row = |ordinal: u32| self.core.unit(UnitId(unit)).unwrap().rows.row(ordinal).incarnation;
        let incarnations = places.iter().map(|(ordinal, _)| row(*ordinal)).collect();
        let (ordinals, nodes) = places.iter().map(|(ordinal, node)| (*ordinal, NodeId(*node))).unzip();
        self.rows(unit, RunChange::Bind(Bind { ordinals, incarnations, nodes, ..Bind::default() }));
    }

    pub(super) fn evicted(&mut self, unit: u64, ordinals: &[u32], reason: EvictionReason) {
        let row = |ordinal: &u32| self.core.unit(UnitId(unit)).unwrap().rows.row(*ordinal).incarnation;
        let incarnations = ordinals.iter().map(row).collect();
        let evict = Evict {
            ordinals: ordinals.to_vec(),
            incarnations,
            reason,
            by: String::new(),
            preemptor: UnitId(0),
        };
        self.rows(unit, RunChange::Evict(evict));
    }

    /// Every wake-up of a span of time.
    pub(super) fn run_for(&mut self, ms: u64) -> Vec<String> {
        let until = self.now.plus(ms);
        let mut seen = self.step();
        while let Some(at) = self.core.next_wake(self.now).filter(|at| *at <= until) {
            assert!(
                at > self.now
                    || !seen.is_empty()
                    || self.core.node_evictions.next_at(self.core.assignments.wall_ms, self.now).is_some()
            );
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
    rig.core.assignments.ends.on_evict_answer(UnitId(1), EvictionReason::NodeLost, true);
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
fn a_mass_loss_of_nodes_evicts_nothing_until_resumed() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.submit([1]);
    rig.bind_on(1, &[(0, 7), (1, 8)]);
    rig.ready(7..=9, false);
    assert_eq!(rig.run_for(600_000), [""; 0]);
    assert_eq!(rig.core.node_evictions.take_brake_changes(), [BrakeChange::Engaged { lost: 3, nodes: 20 }]);
    assert!(rig.core.summary().evictions_paused);
    assert!(rig.core.node_evictions.resume_evictions());
    assert_eq!(rig.run_for(1_000), ["evict 1 NodeLost [0, 1]"]);
    assert_eq!(rig.core.node_evictions.take_brake_changes(), [BrakeChange::Released]);
    assert!(!rig.core.node_evictions.resume_evictions() && !rig.core.summary().evictions_paused);
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
fn a_new_leader_restarts_grace_and_brakes_only_for_used_nodes() {
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

impl Rig {
    fn drain(&mut self, node: u32, drain: Option<Drain>) {
        let spec = NodeSpec { id: NodeId(node), name: format!("n{node}"), drain, ..NodeSpec::default() };
        self.core.on_node_spec(&spec, self.now);
    }

    /// With running units at `places`, all running.
    fn running(&mut self, record: UnitRecord, places: &[(u32, u32)]) {
        let unit = record.id.0;
        self.put(record);
        self.bind_on(unit, places);
        let ordinals: Vec<u32> = places.iter().map(|(ordinal, _)| *ordinal).collect();
        self.status(unit, &ordinals, RowPhase::Running);
    }

    /// They leave, and run elsewhere.
    fn moved(&mut self, unit: u64, ordinals: &[u32], node: u32) {
        self.evicted(unit, ordinals, EvictionReason::Drained);
        self.status(unit, ordinals, RowPhase::Stopped);
        let next = |ordinal: &u32| self.core.unit(UnitId(unit)).unwrap().rows.row(*ordinal).incarnation + 1;
        let incarnations = ordinals.iter().map(next).collect();
        self.rows(
            unit,
            RunChange::Requeue(Requeue { ordinals: ordinals.to_vec(), incarnations, anew: false }),
        );
        let places: Vec<(u32, u32)> = ordinals.iter().map(|ordinal| (*ordinal, node)).collect();
        self.bind_on(unit, &places);
        self.status(unit, ordinals, RowPhase::Running);
    }

    fn blocks(&self, node: u32) -> Vec<String> {
        let view = self.core.node_evictions().drain_view(NodeId(node), 10);
        view.blocked.iter().map(|(unit, block)| format!("{unit}: {block}")).collect()
    }
}

const DRAIN: Drain = Drain { since_ms: 1, deadline_ms: None, running_units: 9 };

fn of_class(id: u64, replicas: u32, class: WorkloadClass, min_member: u32) -> UnitRecord {
    spec(id, replicas).class(class).min_member(min_member)
}

#[test]
fn a_drain_evicts_services_one_by_one_and_gangs_whole() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.running(of_class(1, 3, WorkloadClass::Service, 1), &[(0, 7), (1, 7), (2, 8)]);
    rig.running(of_class(2, 2, WorkloadClass::Gang, 2), &[(0, 7), (1, 8)]);
    rig.running(of_class(3, 1, WorkloadClass::Service, 1), &[(0, 7)]);
    rig.running(of_class(4, 3, WorkloadClass::Batch, 1), &[(0, 7), (1, 7), (2, 7)]);
    rig.drain(7, Some(DRAIN));
    let first =
        ["evict 1 Drained [0]", "evict 2 Drained [0]", "evict 3 Drained [0]", "evict 4 Drained [0, 1]"];
    assert_eq!(rig.run_for(300), first);
    assert_eq!(rig.core.summary().nodes_draining, 1);
    rig.evicted(1, &[0], EvictionReason::Drained);
    assert_eq!(rig.run_for(300), [""; 0], "its successor has to run first");
    assert_eq!(rig.blocks(7), ["1: 2 of 3 replicas are available, one may be missing at a time"]);
    rig.status(1, &[0], RowPhase::Stopped);
    rig.rows(1, RunChange::Requeue(Requeue { ordinals: vec![0], incarnations: vec![1], anew: false }));
    rig.bind_on(1, &[(0, 8)]);
    assert_eq!(rig.run_for(300), [""; 0], "bound is not running");
    rig.status(1, &[0], RowPhase::Running);
    assert_eq!(rig.run_for(300), ["evict 1 Drained [1]"]);
    rig.moved(1, &[1], 8);
    rig.moved(2, &[0], 8);
    rig.moved(3, &[0], 8);
    rig.moved(4, &[0, 1], 8);
    assert_eq!(rig.run_for(300), ["evict 4 Drained [2]"]);
    rig.moved(4, &[2], 8);
    assert_eq!(rig.run_for(10_000), [""; 0]);
    let summary = rig.core.summary();
    assert_eq!((summary.nodes_draining, summary.counters.repairs), (0, 0));
}

#[test]
fn after_its_deadline_a_drain_spares_nothing() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.running(of_class(1, 4, WorkloadClass::Batch, 3), &[(0, 7), (1, 7), (2, 7)]);
    rig.core.assignments.wall_ms = 5_000;
    rig.drain(7, Some(Drain { deadline_ms: Some(9_000), ..DRAIN }));
    assert_eq!(rig.run_for(300), [""; 0]);
    let standing = godel_rules::drain::Standing { replicas: 4, available: 3 };
    let block = DrainBlock::MinMember { standing, min_member: 3 };
    assert_eq!(rig.core.node_evictions().drain_view(NodeId(7), 10).blocked, [(UnitId(1), block)]);
    rig.core.assignments.wall_ms = 9_000;
    assert_eq!(rig.run_for(300), ["evict 1 Drained [0, 1, 2]"]);
}

#[test]
fn a_drain_that_ends_evicts_nobody_any_more() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.running(of_class(1, 3, WorkloadClass::Service, 1), &[(0, 7), (1, 7), (2, 7)]);
    rig.drain(7, Some(DRAIN));
    assert_eq!(rig.run_for(300), ["evict 1 Drained [0]"]);
    rig.drain(7, Some(Drain { deadline_ms: Some(1), ..DRAIN }));
    rig.evicted(1, &[0], EvictionReason::Drained);
    rig.drain(7, None);
    rig.moved(1, &[0], 8);
    assert_eq!(rig.run_for(10_000), [""; 0]);
    assert_eq!(
        (rig.core.summary().nodes_draining, rig.core.node_evictions().drain_view(NodeId(7), 10).n_units),
        (0, 0)
    );
    // Drained again: found again.
    rig.drain(7, Some(DRAIN));
    assert_eq!(rig.run_for(300), ["evict 1 Drained [1]"]);
}

#[test]
fn what_is_not_wanted_or_does_not_run_yet_is_not_spared() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.running(of_class(1, 3, WorkloadClass::Service, 1), &[(0, 8), (1, 8)]);
    rig.bind_on(1, &[(2, 7)]);
    rig.running(of_class(2, 2, WorkloadClass::Service, 1), &[(0, 7), (1, 7)]);
    rig.put(of_class(2, 2, WorkloadClass::Service, 1).cancelled(true));
    rig.drain(7, Some(DRAIN));
    assert_eq!(rig.run_for(300), ["evict 2 Cancelled [1, 0]", "evict 1 Drained [2]"]);
}

#[test]
fn a_drained_node_that_is_lost_is_lost() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.running(of_class(1, 3, WorkloadClass::Service, 1), &[(0, 7), (1, 7), (2, 8)]);
    rig.drain(7, Some(DRAIN));
    assert_eq!(rig.run_for(300), ["evict 1 Drained [0]"]);
    rig.evicted(1, &[0], EvictionReason::Drained);
    rig.ready([7], false);
    assert_eq!(rig.run_for(60_300), ["evict 1 NodeLost [0, 1]"]);
}

#[test]
fn what_is_left_of_a_broken_gang_leaves_too_or_the_unit_ends() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    let places = [(0, 7), (1, 8), (2, 8)];
    let of = |id, on_below_min| of_class(id, 3, WorkloadClass::Gang, 3).on_below_min(on_below_min);
    rig.running(of(1, OnBelowMin::Keep), &places);
    rig.running(of(2, OnBelowMin::Restart), &places);
    rig.running(of(3, OnBelowMin::Stop), &places);
    assert_eq!(rig.run_for(1_000), [""; 0]);
    for unit in 1..=3 {
        rig.evicted(unit, &[0], EvictionReason::NodeLost);
    }
    assert_eq!(rig.step(), ["evict 2 BelowMin [2, 1]", "end 3 Some(BelowMin)"]);
    // The store did not take it, or nobody answered.
    assert_eq!(rig.run_for(2_000), ["evict 2 BelowMin [2, 1]", "end 3 Some(BelowMin)"]);
    rig.put(of(3, OnBelowMin::Stop).ended(Some(godel_domain::unit::UnitEnd::BelowMin)));
    assert_eq!((rig.phase(3), rig.step()), (UnitPhase::Failed, vec!["evict 3 BelowMin [2, 1]".to_owned()]));
    rig.evicted(2, &[1, 2], EvictionReason::BelowMin);
    rig.evicted(3, &[1, 2], EvictionReason::BelowMin);
    assert_eq!(rig.run_for(1_000), [""; 0]);
    rig.status(3, &[1, 2], RowPhase::Stopped);
    assert_eq!((rig.core.summary().ended, rig.core.summary().counters.repairs), (1, 0));
}

#[test]
fn a_drain_waits_for_budgets_until_its_deadline() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    rig.core.on_change(
        &Change::Put(Record::Budget(Arc::new(web_budget(2)))),
        Revision(1),
        Receipt { revision: Revision(1), time_ms: 1 },
        rig.now,
    );
    let labelled = |id, class, min_member| {
        of_class(id, 3, class, min_member).labels([("app".to_owned(), "web".to_owned())].into())
    };
    rig.running(labelled(1, WorkloadClass::Batch, 1), &[(0, 7), (1, 7), (2, 8)]);
    rig.running(labelled(2, WorkloadClass::Gang, 3), &[(0, 7), (1, 7), (2, 8)]);
    rig.running(of_class(3, 1, WorkloadClass::Batch, 1), &[(0, 7)]);
    let shown = rig.core.budgets().view("web").unwrap();
    assert_eq!((shown.n_units, shown.used.expected, shown.used.available), (2, 6, 6));
    assert_eq!((shown.floor, shown.allowed), (4, 2));
    rig.drain(7, Some(DRAIN));
    // The first unit uses it up, the gang can spare none of its own and would leave whole.
    assert_eq!(rig.run_for(300), ["evict 1 Drained [0, 1]", "evict 3 Drained [0]"]);
    // What the binder is asked for counts already.
    let blocked = ["2: disruption budget web: 4 of 6 are available, max_unavailable 2"];
    assert_eq!(rig.blocks(7), blocked);
    rig.evicted(1, &[0, 1], EvictionReason::Drained);
    rig.moved(3, &[0], 8);
    assert_eq!(rig.run_for(300), [""; 0]);
    assert_eq!(rig.blocks(7), blocked);
    rig.status(1, &[0, 1], RowPhase::Stopped);
    rig.rows(1, RunChange::Requeue(Requeue { ordinals: vec![0, 1], incarnations: vec![1, 1], anew: false }));
    rig.bind_on(1, &[(0, 8), (1, 8)]);
    assert_eq!(rig.run_for(300), [""; 0], "bound is not running");
    rig.status(1, &[0, 1], RowPhase::Running);
    assert_eq!(rig.run_for(300), ["evict 2 Drained [0, 1]"]);
    // A stricter one, and then the deadline.
    rig.core.on_change(
        &Change::Put(Record::Budget(Arc::new(web_budget(0)))),
        Revision(2),
        Receipt { revision: Revision(1), time_ms: 1 },
        rig.now,
    );
    assert_eq!(rig.run_for(5_000), [""; 0]);
    assert_eq!(rig.blocks(7), ["2: disruption budget web: 6 of 6 are available, max_unavailable 0"]);
    rig.core.assignments.wall_ms = 9_000;
    rig.drain(7, Some(Drain { deadline_ms: Some(9_000), ..DRAIN }));
    assert_eq!(rig.run_for(300), ["evict 2 Drained [0, 1]"]);
    assert_eq!(rig.core.summary().counters.repairs, 0);
}

#[test]
fn a_list_without_a_budget_ends_it() {
    let mut rig = Rig::new();
    rig.core.on_change(
        &Change::Put(Record::Budget(Arc::new(web_budget(0)))),
        Revision(1),
        Receipt { revision: Revision(1), time_ms: 1 },
        rig.now,
    );
    rig.core.on_reset();
    rig.core.on_change(
        &Change::Put(Record::Budget(Arc::new(web_budget(1)))),
        Revision(2),
        Receipt { revision: Revision(1), time_ms: 1 },
        rig.now,
    );
    rig.core.on_synced(Revision(rig.revision), rig.now);
    assert_eq!(rig.core.budgets().view("web").unwrap().versions.revision, Revision(2));
    rig.core.on_reset();
    rig.core.on_synced(Revision(rig.revision), rig.now);
    assert!(rig.core.budgets().view("web").is_none());
}
