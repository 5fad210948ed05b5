//! Daemons, whose replicas follow the nodes.

use godel_domain::{
    node::{Taint, TaintEffect},
    unit::WorkloadClass,
};

use super::*;

fn daemon(id: u64, zone: &str) -> UnitRecord {
    let mut record = spec(id, 1);
    record.spec.class = WorkloadClass::Daemon;
    record.spec.task_groups[0].replicas = 0;
    if !zone.is_empty() {
        record.spec.task_groups[0].template.node_selector.insert("zone".to_owned(), zone.to_owned());
    }
    UnitRecord::new(record.id, record.spec)
}

impl Rig {
    fn join(&mut self, node: u32, zone: &str, taints: &[TaintEffect]) {
        let taint = |effect: &TaintEffect| Taint {
            key: "t".to_owned(),
            value: String::new(),
            effect: *effect,
            added_ms: self.now.0.cast_signed(),
        };
        let labels = [("zone".to_owned(), zone.to_owned())].into();
        let taints = taints.iter().map(taint).collect();
        let name = format!("n{node}");
        let spec = NodeSpec { id: NodeId(node), name, labels, taints, ..NodeSpec::default() };
        self.core.on_node_spec(&spec, self.now);
        let capacity = Resources::new([("cpu", 10_000)]).unwrap();
        let report = NodeReport { id: NodeId(node), capacity, ready: true, ..NodeReport::default() };
        put(&mut self.core, Record::NodeReport(report), self.now);
    }

    /// Steps once, writes what daemons are to become, and says what was done.
    fn follow(&mut self) -> Vec<String> {
        let actions = self.core.step(self.now);
        for action in &actions {
            if let Action::Follow(record, _) = action {
                self.put((**record).clone());
            }
        }
        actions.iter().filter(|action| matches!(action, Action::Follow(..))).map(show).collect()
    }

    fn after(&mut self, ms: u64) -> Vec<String> {
        self.now = self.now.plus(ms);
        self.follow()
    }

    fn bind_at(&mut self, unit: u64, places: &[(u32, u32)]) {
        let (ordinals, nodes) = places.iter().map(|(ordinal, node)| (*ordinal, NodeId(*node))).unzip();
        self.rows(unit, RunChange::Bind(Bind { ordinals, nodes, ..Bind::default() }));
    }
}

#[test]
fn replicas_follow_nodes_that_join_and_leave() {
    let mut rig = Rig::new();
    rig.put(daemon(1, ""));
    rig.put(daemon(2, "a"));
    assert_eq!(rig.follow(), ["follow 1 [(0, 1)]"], "the only node has no zone");
    assert_eq!(rig.core.unit(UnitId(2)).unwrap().phase, UnitPhase::Queued);
    // A thousand nodes at once are one change, after the pace of the first one.
    (2..=1_001).for_each(|node| rig.join(node, "a", &[]));
    assert_eq!(rig.follow(), ["follow 2 [(0, 1000)]"]);
    assert_eq!(rig.after(199), [""; 0]);
    assert_eq!(rig.after(1), ["follow 1 [(0, 1001)]"]);
    assert_eq!(rig.after(10_000), [""; 0]);
    rig.bind_at(2, &[(0, 2), (1, 3)]);
    // Another zone, and gone for good: their replicas go.
    rig.join(2, "b", &[]);
    rig.core.on_node_deleted(NodeId(3), rig.now);
    assert_eq!(rig.follow(), ["follow 1 [(0, 1000), (1001, 1001)]", "follow 2 [(2, 1000)]"]);
    rig.core.on_node_report(&NodeReport { id: NodeId(4), ready: false, ..NodeReport::default() }, rig.now);
    assert_eq!(rig.after(10_000), [""; 0], "a lost node is waited for");
}

#[test]
fn taints_keep_new_replicas_away_or_end_those_that_are_there() {
    let mut rig = Rig::new();
    rig.join(1, "a", &[]);
    rig.join(2, "a", &[]);
    rig.put(daemon(1, "a"));
    assert_eq!(rig.follow(), ["follow 1 [(0, 2)]"]);
    rig.bind_at(1, &[(0, 1), (1, 2)]);
    rig.join(1, "a", &[TaintEffect::NoSchedule]);
    rig.join(3, "a", &[TaintEffect::NoSchedule]);
    assert_eq!(rig.after(1_000), [""; 0]);
    rig.join(1, "a", &[TaintEffect::NoExecute]);
    assert_eq!(rig.after(1_000), ["follow 1 [(1, 2)]"]);
    rig.join(3, "a", &[TaintEffect::PreferNoSchedule]);
    assert_eq!(rig.after(1_000), ["follow 1 [(1, 3)]"]);
}

#[test]
fn what_has_ended_for_good_is_replaced_after_a_while() {
    let mut rig = Rig::new();
    rig.put(daemon(1, ""));
    assert_eq!(rig.follow(), ["follow 1 [(0, 1)]"]);
    rig.bind_at(1, &[(0, 1)]);
    rig.status(1, &[0], RowPhase::Failed);
    assert_eq!(rig.after(1_000), ["follow 1 [(1, 2)]"]);
    rig.bind_at(1, &[(1, 1)]);
    rig.status(1, &[1], RowPhase::Failed);
    assert_eq!(rig.after(1_000), [""; 0], "not again at once");
    assert_eq!(rig.phase(1), UnitPhase::Running);
    // Nodes that join do not wait for that.
    rig.join(2, "", &[]);
    assert_eq!(rig.after(1_000), ["follow 1 [(1, 3)]"]);
    let until = rig.core.next_wake(rig.now).unwrap();
    assert!(until <= rig.now.plus(5 * 60_000));
    assert_eq!(rig.after(5 * 60_000), ["follow 1 [(2, 4)]"]);
}

#[test]
fn a_daemon_that_has_ended_follows_nothing() {
    let mut rig = Rig::new();
    let record = daemon(1, "");
    rig.put(record.cancelled(true));
    rig.join(2, "", &[]);
    assert_eq!(rig.after(1_000), [""; 0]);
    assert_eq!(rig.core.daemons.next_at(), None);
}
