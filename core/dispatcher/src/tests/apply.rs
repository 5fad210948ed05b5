//! Committed transactions, taken whole.

use godel_domain::{
    change::{Change, Commit},
    unreadable::{Subject, Unreadable},
};

use super::*;

fn commit(revision: u64, changes: Vec<Change>) -> Commit {
    Commit { revision: Revision(revision), time_ms: 5, changes }
}

#[test]
fn a_commit_does_what_its_changes_do_one_by_one() {
    let (mut whole, mut by_hand) = (Rig::new(), Rig::new());
    let node = NodeSpec { id: NodeId(2), name: "n2".into(), ..NodeSpec::default() };
    let unit = Arc::new(spec(1, 2));
    let bind = Bind { ordinals: vec![0], incarnations: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
    let bind = RunChange::Bind(bind);
    let changes = vec![
        Change::NodeSpec(node.clone()),
        Change::UnitSpec(Arc::clone(&unit)),
        Change::Rows(UnitId(1), bind.clone()),
    ];
    whole.core.apply(&commit(11, changes), NOW);
    let revision = Revision(11);
    by_hand.core.on_node_spec(&node, NOW);
    by_hand.core.on_unit(unit, revision, (revision, 5), NOW);
    by_hand.core.on_rows(UnitId(1), &bind, revision, 5, NOW);
    by_hand.core.on_revision(revision);
    assert_eq!(whole.core.unit(UnitId(1)).unwrap().counts.live, 1);
    assert_eq!(format!("{:?}", whole.core), format!("{:?}", by_hand.core));
}

#[test]
fn rows_that_follow_unreadable_rows_are_not_applied() {
    let mut rig = Rig::new();
    rig.core.apply(&commit(11, vec![Change::UnitSpec(Arc::new(spec(1, 2)))]), NOW);
    let rows = Unreadable::new(Subject::Rows(UnitId(1)), "field", "problem");
    rig.core.apply(&commit(12, vec![Change::Unreadable(Box::new(rows))]), NOW);
    let bind = Bind { ordinals: vec![0], incarnations: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
    rig.core.apply(&commit(13, vec![Change::Rows(UnitId(1), RunChange::Bind(bind))]), NOW);
    assert_eq!(rig.core.unit(UnitId(1)).unwrap().counts.live, 0);
    assert_eq!(rig.core.revision(), Revision(13));
}
