//! Nodes with taints that evict, and units that start again as a whole.

use godel_domain::{
    node::{Taint, TaintEffect, Toleration},
    unit::{OnFailure, UnitEnd},
};

use super::*;

const ADDED_MS: i64 = 100_000;

fn taint(key: &str) -> Taint {
    Taint { key: key.to_owned(), value: String::new(), effect: TaintEffect::NoExecute, added_ms: ADDED_MS }
}

/// A unit of two replicas that tolerates what evicts with these keys, for so long.
fn tolerant(id: u64, tolerated: &[(&str, Option<u32>)]) -> UnitRecord {
    let mut record = spec(id, 2);
    let one = |(key, tolerated_s): &(&str, Option<u32>)| Toleration {
        key: (*key).to_owned(),
        value: None,
        effect: Some(TaintEffect::NoExecute),
        tolerated_s: *tolerated_s,
    };
    record.spec.task_groups[0].template.tolerations = tolerated.iter().map(one).collect();
    record
}

impl Rig {
    fn taint(&mut self, node: u32, taints: Vec<Taint>) {
        let spec = NodeSpec { id: NodeId(node), name: format!("n{node}"), taints, ..NodeSpec::default() };
        self.core.on_node_spec(&spec, self.now);
    }

    /// The time of day goes on with the steps, a second at a time.
    fn seconds(&mut self, n: u32) -> Vec<String> {
        let mut seen = Vec::new();
        for _ in 0..n {
            seen.extend(self.run_for(1_000));
            self.core.assignments.wall_ms += 1_000;
        }
        seen
    }
}

fn tainted() -> Rig {
    let mut rig = Rig::new();
    rig.core.assignments.wall_ms = ADDED_MS;
    rig.ready(1..=20, true);
    for unit in [tolerant(1, &[]), tolerant(2, &[("dead", Some(10))]), tolerant(3, &[("", None)])] {
        rig.put(unit);
    }
    for unit in 1..=3 {
        rig.bind_on(unit, &[(0, 7), (1, 8)]);
    }
    rig
}

#[test]
fn untolerated_taints_evict_at_once_and_others_in_time() {
    let mut rig = tainted();
    assert_eq!(rig.seconds(2), [""; 0]);
    rig.core.assignments.wall_ms = ADDED_MS;
    rig.taint(7, vec![taint("dead")]);
    assert_eq!(rig.seconds(1), ["evict 1 Tainted [0]"]);
    rig.evicted(1, &[0], EvictionReason::Tainted);
    assert_eq!(rig.seconds(9), [""; 0], "tolerated for ten seconds");
    assert_eq!(rig.seconds(1), ["evict 2 Tainted [0]"]);
    rig.evicted(2, &[0], EvictionReason::Tainted);
    assert_eq!(rig.seconds(60), [""; 0], "tolerated for ever");
    assert!(
        rig.core.node_evictions.next_at(rig.core.assignments.wall_ms, rig.now).is_none(),
        "nobody is looked at again"
    );
    assert_eq!(rig.core.summary().counters.repairs, 0);
}

#[test]
fn a_new_leader_counts_from_the_taint_on() {
    let mut rig = Rig::new();
    rig.core.assignments.wall_ms = ADDED_MS + 9_000;
    rig.taint(7, vec![taint("dead")]);
    rig.ready(1..=20, true);
    rig.put(tolerant(2, &[("dead", Some(10))]));
    rig.bind_on(2, &[(0, 7), (1, 8)]);
    assert_eq!(rig.seconds(1), [""; 0]);
    assert_eq!(rig.seconds(1), ["evict 2 Tainted [0]"]);
}

#[test]
fn a_removed_taint_evicts_nobody() {
    let mut rig = tainted();
    rig.taint(7, vec![taint("dead")]);
    assert_eq!(rig.seconds(1), ["evict 1 Tainted [0]"]);
    rig.evicted(1, &[0], EvictionReason::Tainted);
    rig.taint(7, Vec::new());
    assert_eq!(rig.seconds(60), [""; 0]);
    // Another taint, which the second one does not tolerate at all.
    rig.taint(7, vec![Taint { added_ms: rig.core.assignments.wall_ms, ..taint("worse") }]);
    assert_eq!(rig.seconds(1), ["evict 2 Tainted [0]"]);
    rig.evicted(2, &[0], EvictionReason::Tainted);
    // What comes there in spite of it, by a transaction on its way.
    rig.put(tolerant(4, &[]));
    rig.bind_on(4, &[(0, 8), (1, 7)]);
    assert_eq!(rig.seconds(1), ["evict 4 Tainted [1]"]);
}

#[test]
fn while_many_nodes_are_lost_no_taint_evicts() {
    let mut rig = tainted();
    rig.ready(11..=13, false);
    assert_eq!(rig.seconds(1), [""; 0]);
    rig.taint(7, vec![taint("dead")]);
    assert_eq!(rig.seconds(30), [""; 0]);
    assert!(rig.core.node_evictions.resume_evictions());
    assert_eq!(rig.seconds(1), ["evict 1 Tainted [0]", "evict 2 Tainted [0]"]);
}

#[test]
fn a_unit_stops_starts_again_or_goes_on_after_a_failure() {
    let mut rig = Rig::new();
    rig.ready(1..=20, true);
    let of = |id, on_failure| spec(id, 3).on_failure(on_failure).max_restarts(1).min_member(3);
    for (id, on_failure) in [(1, OnFailure::Keep), (2, OnFailure::Stop), (3, OnFailure::Restart)] {
        rig.put(of(id, on_failure));
        rig.bind_on(id, &[(0, 7), (1, 8), (2, 9)]);
        rig.status(id, &[0, 1, 2], RowPhase::Running);
    }
    assert_eq!(rig.run_for(1_000), [""; 0]);
    for id in 1..=3 {
        rig.status(id, &[1], RowPhase::Failed);
    }
    assert_eq!(rig.step(), ["end 2 Some(Failure)", "end 3 None"]);
    assert_eq!((rig.phase(1), rig.phase(3)), (UnitPhase::Running, UnitPhase::Queued));
    rig.put(of(2, OnFailure::Stop).ended(Some(UnitEnd::Failure)));
    let restarting = of(3, OnFailure::Restart).restarting(true).whole_restarts(1);
    rig.put(restarting.clone());
    assert_eq!(rig.step(), ["evict 2 Failure [2, 0]", "evict 3 Failure [2, 0]"]);
    assert_eq!(rig.phase(2), UnitPhase::Failed);
    rig.evicted(3, &[0, 2], EvictionReason::Failure);
    rig.status(3, &[0, 2], RowPhase::Stopped);
    assert_eq!(rig.run_for(1_000).iter().filter(|line| line.starts_with("end 3")).count(), 0);
    // All of it comes back, and then it is wanted again; the second failure is the end.
    rig.rows(
        3,
        RunChange::Requeue(Requeue { ordinals: vec![0, 1, 2], incarnations: vec![1; 3], anew: false }),
    );
    assert_eq!(rig.step().iter().filter(|line| *line == "end 3 None").count(), 1);
    rig.put(restarting.restarting(false));
    assert_eq!(rig.core.unit(UnitId(3)).unwrap().counts.pending, 3);
    rig.bind_on(3, &[(0, 7), (1, 8), (2, 9)]);
    rig.status(3, &[1], RowPhase::Failed);
    assert!(rig.step().contains(&"end 3 Some(Failure)".to_owned()));
}
