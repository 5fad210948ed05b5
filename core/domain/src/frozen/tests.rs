use std::sync::Arc;

use super::*;
use crate::{
    hold::Hold,
    node::{NodeReport, NodeSpec},
    queue_spec::QueueSpec,
    records::{Record, RecordKey},
    running_units::{Bind, RunningUnits, Statuses},
};

fn bad(subject: RecordKey) -> Change {
    Change::Unreadable(Box::new(Unreadable::new(subject, "field", "problem")))
}

fn frozen(subjects: impl IntoIterator<Item = RecordKey>) -> Frozen {
    let mut frozen = Frozen::default();
    for subject in subjects {
        assert!(frozen.note(&bad(subject)).is_news);
    }
    frozen
}

#[test]
fn an_unreadable_record_freezes_its_object_until_it_is_readable() {
    let node = NodeId(7);
    let report = NodeReport { id: node, ..NodeReport::default() };
    let spec = NodeSpec { id: node, ..NodeSpec::default() };
    for (subject, thaws) in [
        (RecordKey::NodeReport(node), Change::Put(Record::NodeReport(report))),
        (RecordKey::NodeSpec(node), Change::Put(Record::NodeSpec(spec))),
        (RecordKey::NodeAllocatable(node), Change::Gone(RecordKey::NodeSpec(node))),
        (RecordKey::NodeUsage(node), Change::Gone(RecordKey::NodeUsage(node))),
    ] {
        let mut frozen = frozen([subject.clone()]);
        assert!(frozen.has_node(node) && !frozen.has_node(NodeId(8)), "{subject}");
        assert!(!frozen.keeps_all() && !frozen.keeps_budgets() && !frozen.is_all());
        let noted = frozen.note(&thaws);
        assert_eq!((noted.is_news, noted.nodes.into_iter().collect::<Vec<_>>()), (true, vec![node]));
        assert!(frozen.is_empty() && !frozen.has_node(node));
    }
    let mut frozen = frozen([RecordKey::Queue("a".to_owned()), RecordKey::Budget("b".to_owned())]);
    assert!(frozen.keeps_all() && frozen.keeps_budgets());
    assert!(frozen.note(&Change::Gone(RecordKey::Budget("b".to_owned()))).is_news);
    assert!(frozen.keeps_all() && !frozen.keeps_budgets());
    assert!(frozen.note(&Change::Put(Record::Queue(Arc::new(QueueSpec::new("a"))))).is_news);
    assert!(!frozen.keeps_all() && frozen.is_empty());
}

#[test]
fn a_node_stays_frozen_until_all_of_its_records_can_be_read() {
    let node = NodeId(7);
    let mut frozen = frozen([RecordKey::NodeReport(node), RecordKey::NodeAllocatable(node)]);
    let _ = frozen.note(&bad(RecordKey::NodeReport(node)));
    assert_eq!(frozen.len(), 2, "the same record again");
    let _ = frozen.note(&Change::Put(Record::NodeReport(NodeReport { id: node, ..NodeReport::default() })));
    assert!(frozen.has_node(node) && !frozen.has_report(node));
    let _ = frozen.note(&Change::Gone(RecordKey::NodeSpec(node)));
    assert!(!frozen.has_node(node));
}

#[test]
fn an_unreadable_hold_freezes_its_node_and_unit() {
    let unreadable = Unreadable {
        nodes: AffectedNodes::Of(vec![NodeId(3)]),
        unit: Some(UnitId(9)),
        queue: Some("prod.search".to_owned()),
        ..Unreadable::new(RecordKey::Hold(HoldId(1)), "pool", "9")
    };
    let mut frozen = Frozen::default();
    let _ = frozen.note(&Change::Unreadable(Box::new(unreadable)));
    assert!(frozen.has_node(NodeId(3)) && !frozen.has_node(NodeId(4)));
    assert!(frozen.unit(UnitId(9)).is_some() && frozen.unit(UnitId(8)).is_none());
    assert!(frozen.has_holds() && frozen.has_hold(HoldId(1)) && !frozen.has_hold(HoldId(2)));

    let _ = frozen.note(&Change::Put(Record::Hold(Arc::new(Hold { id: HoldId(1), ..Hold::default() }))));
    assert!(frozen.is_empty());
}

#[test]
fn after_a_missed_row_operation_rows_are_void_until_listed() {
    let unit = UnitId(5);
    let nodes = AffectedNodes::Of(vec![NodeId(1)]);
    let missed = Unreadable { nodes, ..Unreadable::new(RecordKey::Rows(unit), "pool", "9") };
    let mut frozen = Frozen::default();
    let _ = frozen.note(&Change::Unreadable(Box::new(missed)));
    let bind = Bind { ordinals: vec![4], nodes: vec![NodeId(2)], ..Bind::default() };
    let noted = frozen.note(&Change::Rows(unit, RunChange::Bind(bind)));
    assert!(noted.is_void && frozen.has_node(NodeId(1)) && frozen.has_node(NodeId(2)));
    let statuses = RunChange::Statuses(Statuses::default());
    assert!(frozen.note(&Change::Rows(unit, statuses.clone())).is_void);
    assert!(!frozen.note(&Change::Rows(UnitId(6), statuses)).is_void);
    assert!(frozen.note(&Change::RowsLoaded(unit, RunningUnits::default())).is_news);
    assert!(!frozen.has_node(NodeId(1)) && !frozen.has_node(NodeId(2)) && frozen.is_empty());
}

#[test]
fn a_pause_that_cannot_be_read_is_in_force() {
    let of = |scope: &str| frozen([RecordKey::Pause(scope.to_owned())]);
    let in_prod = |scope: &Scope| *scope == Scope::Queue("prod".to_owned());
    for (scope, is_paused) in [
        ("all", true),
        ("everything\n", true),
        ("sub-cluster/a", true),
        ("queue/prod", true),
        ("queue/dev", false),
        ("preemption", false),
    ] {
        assert_eq!(of(scope).pause(in_prod).is_some(), is_paused, "{scope}");
        assert!(of(scope).keeps_all(), "nobody has to leave: {scope}");
    }
}

#[test]
fn a_change_without_a_key_freezes_all_until_the_next_list() {
    let mut frozen = frozen([RecordKey::Unknown]);
    assert!(frozen.is_all() && frozen.has_node(NodeId(1)) && frozen.has_report(NodeId(1)));
    assert!(frozen.unit(UnitId(1)).is_some() && frozen.keeps_all() && frozen.keeps_budgets());
    let report = NodeReport { id: NodeId(1), ..NodeReport::default() };
    assert!(!frozen.note(&Change::Put(Record::NodeReport(report))).is_news);
    frozen.reset();
    assert!(frozen.is_empty() && !frozen.has_node(NodeId(1)));
}
