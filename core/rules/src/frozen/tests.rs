use std::sync::Arc;

use godel_domain::{
    hold::Hold,
    node::{NodeReport, NodeSpec},
    queue_spec::QueueSpec,
    running_units::{Bind, RunningUnits, Statuses},
};
use godel_queueing::Quota;

use super::*;

fn bad(subject: Subject) -> Change {
    Change::Unreadable(Box::new(Unreadable::new(subject, "field", "problem")))
}

fn frozen(subjects: impl IntoIterator<Item = Subject>) -> Frozen {
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
        (Subject::NodeReport(node), Change::NodeReport(report)),
        (Subject::NodeSpec(node), Change::NodeSpec(spec)),
        (Subject::NodeAllocatable(node), Change::NodeDeleted(node)),
        (Subject::NodeUsage(node), Change::UnreadableGone(Subject::NodeUsage(node))),
    ] {
        let mut frozen = frozen([subject.clone()]);
        assert!(frozen.has_node(node) && !frozen.has_node(NodeId(8)), "{subject}");
        assert!(!frozen.keeps_all() && !frozen.keeps_budgets() && !frozen.is_all());
        let noted = frozen.note(&thaws);
        assert_eq!((noted.is_news, noted.nodes.into_iter().collect::<Vec<_>>()), (true, vec![node]));
        assert!(frozen.is_empty() && !frozen.has_node(node));
    }
    let mut frozen = frozen([Subject::Queue("a".to_owned()), Subject::Budget("b".to_owned())]);
    assert!(frozen.keeps_all() && frozen.keeps_budgets());
    assert!(frozen.note(&Change::BudgetDeleted("b".to_owned())).is_news);
    assert!(frozen.keeps_all() && !frozen.keeps_budgets());
    assert!(frozen.note(&Change::Queue(Arc::new(QueueSpec::new("a")))).is_news);
    assert!(!frozen.keeps_all() && frozen.is_empty());
}

#[test]
fn a_node_stays_frozen_until_all_of_its_records_can_be_read() {
    let node = NodeId(7);
    let mut frozen = frozen([Subject::NodeReport(node), Subject::NodeAllocatable(node)]);
    let _ = frozen.note(&bad(Subject::NodeReport(node)));
    assert_eq!(frozen.len(), 2, "the same record again");
    let _ = frozen.note(&Change::NodeReport(NodeReport { id: node, ..NodeReport::default() }));
    assert!(frozen.has_node(node) && !frozen.has_report(node));
    let _ = frozen.note(&Change::NodeDeleted(node));
    assert!(!frozen.has_node(node));
}

#[test]
fn an_unreadable_hold_freezes_its_node_unit_and_full_queue() {
    let unreadable = Unreadable {
        nodes: AffectedNodes::Of(vec![NodeId(3)]),
        unit: Some(UnitId(9)),
        queue: Some("prod.search".to_owned()),
        ..Unreadable::new(Subject::Hold(HoldId(1)), "pool", "9")
    };
    let mut frozen = Frozen::default();
    let _ = frozen.note(&Change::Unreadable(Box::new(unreadable)));
    assert!(frozen.has_node(NodeId(3)) && !frozen.has_node(NodeId(4)));
    assert!(frozen.unit(UnitId(9)).is_some() && frozen.unit(UnitId(8)).is_none());
    assert!(frozen.has_holds() && frozen.has_hold(HoldId(1)) && !frozen.has_hold(HoldId(2)));

    let mut quota = Quota::default();
    let [search, ads, other] = ["prod.search", "prod.ads", "dev"].map(|path| quota.queue(path));
    let queue = |quota: &Quota, queue| frozen.queue(quota.tree(), queue, |_| None).is_some();
    assert!(!queue(&quota, search), "no maximum is under way to be passed");
    let max = [("cpu".to_owned(), 5)].into();
    quota.put(Arc::new(QueueSpec { max, ..QueueSpec::new("prod") }));
    assert!(queue(&quota, search) && queue(&quota, ads), "they share the maximum of prod");
    assert!(!queue(&quota, other));
    let _ = frozen.note(&Change::Hold(Arc::new(Hold { id: HoldId(1), ..Hold::default() })));
    assert!(frozen.is_empty());
}

#[test]
fn a_queue_freezes_those_below_it_and_rows_freeze_their_queues() {
    let mut quota = Quota::default();
    let [prod, search, dev] = ["prod", "prod.search", "dev"].map(|path| quota.queue(path));
    let of_queue = frozen([Subject::Queue("prod".to_owned())]);
    let is = |frozen: &Frozen, quota: &Quota, queue| frozen.queue(quota.tree(), queue, |_| None).is_some();
    assert!(is(&of_queue, &quota, prod) && is(&of_queue, &quota, search) && !is(&of_queue, &quota, dev));

    let of_rows = frozen([Subject::Rows(UnitId(1))]);
    assert!(!is(&of_rows, &quota, search));
    quota.put(Arc::new(QueueSpec { max_running_units: 2, ..QueueSpec::new("prod.search") }));
    assert!(is(&of_rows, &quota, search), "whose they are is not known: it may be this one");
    assert!(!is(&of_rows, &quota, dev) && !is(&of_rows, &quota, prod));
    let elsewhere = of_rows.queue(quota.tree(), search, |_| Some(dev));
    assert_eq!(elsewhere, None);
}

#[test]
fn after_a_missed_row_operation_rows_are_void_until_listed() {
    let unit = UnitId(5);
    let nodes = AffectedNodes::Of(vec![NodeId(1)]);
    let missed = Unreadable { nodes, ..Unreadable::new(Subject::Rows(unit), "pool", "9") };
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
    let of = |scope: &str| frozen([Subject::Pause(scope.to_owned())]);
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
    let mut frozen = frozen([Subject::Unknown]);
    let quota = Quota::default();
    assert!(frozen.is_all() && frozen.has_node(NodeId(1)) && frozen.has_report(NodeId(1)));
    assert!(frozen.unit(UnitId(1)).is_some() && frozen.keeps_all() && frozen.keeps_budgets());
    assert!(frozen.queue(quota.tree(), QueueIdx::DEFAULT, |_| None).is_some());
    let report = NodeReport { id: NodeId(1), ..NodeReport::default() };
    assert!(!frozen.note(&Change::NodeReport(report)).is_news);
    frozen.reset();
    assert!(frozen.is_empty() && !frozen.has_node(NodeId(1)));
}
