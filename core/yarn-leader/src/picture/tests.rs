//! What changes of units and nodes mean to applications.

use godel_domain::{
    node::NodeReport,
    records::{Record, RecordKey, RecordKind},
    running_units::{Bind, Evict, Statuses},
    unit::CompactedRuns,
};
use godel_testkit::{BuildUnit as _, check_follows, unit};

use super::*;

const APPLICATION: &str = "application-1-0001";

fn application() -> YarnApplicationId {
    application_of(APPLICATION).unwrap().0
}

fn record(groups: &[(&str, &[(u32, u32)])]) -> Arc<UnitRecord> {
    let mut record = unit(APPLICATION).class(WorkloadClass::Yarn);
    record.spec.namespace = "yarn".to_owned();
    record.spec.queue = "prod.search".to_owned();
    let template = record.spec.task_groups[0].clone();
    record.spec.task_groups.clear();
    record.status.ordinals.clear();
    for (name, ranges) in groups {
        let mut group = template.clone();
        group.name = (*name).to_owned();
        group.template.demand.requests = Resources::new([("cpu", 1_000), ("memory", 1 << 30)]).unwrap();
        record.spec.task_groups.push(group);
        record.status.ordinals.push(ranges.to_vec());
    }
    Arc::new(record)
}

fn node(picture: &mut YarnPicture, id: u32, labels: &[(&str, &str)], ready: bool) {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let spec = NodeSpec { id: NodeId(id), name: format!("n{id}"), labels, ..NodeSpec::default() };
    let capacity = Resources::new([("cpu", 4_000), ("memory", 8 << 30)]).unwrap();
    let report = NodeReport { id: NodeId(id), capacity, ready, ..NodeReport::default() };
    picture.apply(&Change::Put(Record::NodeSpec(spec)), Revision(1), 1);
    picture.apply(&Change::Put(Record::NodeReport(report)), Revision(1), 1);
}

fn picture() -> YarnPicture {
    let mut picture = YarnPicture::new("yarn", "rack");
    node(&mut picture, 1, &[(PORT_ATTRIBUTE, "8041"), (HOST_ATTRIBUTE, "10.0.0.1"), ("rack", "r1")], true);
    node(&mut picture, 2, &[(PORT_ATTRIBUTE, "8042")], false);
    node(&mut picture, 3, &[], true);
    picture
}

fn rows(change: RunChange) -> Change {
    Change::Rows(UnitId(1), change)
}

fn events(picture: &mut YarnPicture, change: &Change) -> Vec<UnitEvent> {
    picture
        .apply(change, Revision(2), 5)
        .map(|(id, events)| {
            assert_eq!(id, application());
            events
        })
        .unwrap_or_default()
}

#[test]
fn a_unit_tells_its_application_what_happens() {
    let mut picture = picture();
    let first = record(&[("master", &[(0, 1)])]);
    assert_eq!(events(&mut picture, &Change::Put(Record::Unit(Arc::clone(&first)))), []);
    let grown = record(&[("master", &[(0, 1)]), ("g1-0", &[(1, 3)])]);
    assert_eq!(
        events(&mut picture, &Change::Put(Record::Unit(grown))),
        [UnitEvent::Added("g1-0".to_owned(), vec![1, 2])]
    );
    let bind = Bind { group: 1, ordinals: vec![1], nodes: vec![NodeId(1)], ..Bind::default() };
    let placed = UnitEvent::Placed { ordinal: 1, incarnation: 0, node: NodeId(1) };
    assert_eq!(events(&mut picture, &rows(RunChange::Bind(bind))), [placed]);
    let statuses = |phase, exit_code| {
        rows(RunChange::Statuses(Statuses {
            ordinals: vec![1],
            phases: vec![phase],
            exit_codes: vec![exit_code],
            ..Statuses::default()
        }))
    };
    assert_eq!(events(&mut picture, &statuses(Phase::Starting, 0)), []);
    assert_eq!(events(&mut picture, &statuses(Phase::Running, 0)), [UnitEvent::Started(1)]);
    let ended = UnitEvent::Ended { ordinal: 1, incarnation: 0, exit: YarnExitStatus(7) };
    assert_eq!(events(&mut picture, &statuses(Phase::Failed, 7)), [ended]);
    let cancelled = UnitRecord {
        status: godel_domain::unit::UnitStatus { cancelled: true, ..first.status.clone() },
        ..(*first).clone()
    };
    assert_eq!(events(&mut picture, &Change::Put(Record::Unit(Arc::new(cancelled)))), [UnitEvent::Gone]);
    assert_eq!(events(&mut picture, &Change::Gone(RecordKey::Unit(UnitId(1)))), [UnitEvent::Gone]);
    assert!(picture.unit(application()).is_none());
}

#[test]
fn opportunistic_containers_are_of_a_unit_of_their_own() {
    let mut picture = picture();
    picture.apply(&Change::Put(Record::Unit(record(&[("master", &[(0, 1)])]))), Revision(1), 1);
    let of = |groups: &[(&str, &[(u32, u32)])]| {
        let mut record = (*record(groups)).clone();
        record.id = UnitId(2);
        record.spec.name = format!("{APPLICATION}-opportunistic");
        Change::Put(Record::Unit(Arc::new(record)))
    };
    assert_eq!(events(&mut picture, &of(&[("none", &[(0, 1)])])), []);
    let grown = of(&[("none", &[(0, 1)]), ("o1-0", &[(1, 3)])]);
    let first = OPPORTUNISTIC + 1;
    assert_eq!(events(&mut picture, &grown), [UnitEvent::Added("o1-0".to_owned(), vec![first, first + 1])]);
    let bind = Bind { group: 1, ordinals: vec![1], nodes: vec![NodeId(1)], ..Bind::default() };
    let placed = UnitEvent::Placed { ordinal: first, incarnation: 0, node: NodeId(1) };
    assert_eq!(events(&mut picture, &Change::Rows(UnitId(2), RunChange::Bind(bind))), [placed]);
    let (node, unit) = picture.place(application(), first).unwrap();
    assert_eq!((node.name.as_str(), unit.unit_id, unit.ordinal), ("n1", 2, 1));
    assert_eq!(picture.place(application(), 0), None, "its master has no place");
    assert_eq!(picture.units_of(application()).count(), 2);
    let gone = Change::Gone(RecordKey::Unit(UnitId(2)));
    assert_eq!((events(&mut picture, &gone), picture.units_of(application()).count()), (vec![], 1));
}

#[test]
fn units_that_are_over_are_forgotten_but_for_the_newest_ends() {
    let mut picture = picture();
    picture.read = Some(Revision(1));
    let of = |id: u64, cancelled| {
        let mut record = (*record(&[("master", &[(0, 1)])])).clone();
        record.id = UnitId(id);
        record.spec.name = format!("application-1-{id:04}");
        record.status.cancelled = cancelled;
        Change::Put(Record::Unit(Arc::new(record)))
    };
    let bind = || RunChange::Bind(Bind { ordinals: vec![0], nodes: vec![NodeId(1)], ..Bind::default() });
    let stopped = |ended_ms| {
        let ends = vec![RunEnd { ended_ms, ..RunEnd::default() }];
        RunChange::Statuses(Statuses {
            ordinals: vec![0],
            phases: vec![Phase::Stopped],
            ends,
            ..Statuses::default()
        })
    };
    // The second one ends first, the fourth one still runs though it is cancelled, and the fifth one is alive.
    for (id, ended_ms) in [(1, 30), (2, 10), (3, 20), (4, 0), (5, 0)] {
        picture.apply(&of(id, false), Revision(2), 1);
        picture.apply(&Change::Rows(UnitId(id), bind()), Revision(2), 1);
        if id != 5 {
            picture.apply(&of(id, true), Revision(3), 2);
        }
        if ended_ms > 0 {
            picture.apply(&Change::Rows(UnitId(id), stopped(ended_ms)), Revision(4), 3);
        }
    }
    let known = |picture: &YarnPicture| {
        let ids = (1..=5).map(|number| YarnApplicationId { cluster_timestamp: 1, number });
        ids.filter(|id| picture.unit(*id).is_some()).map(|id| id.number).collect::<Vec<_>>()
    };
    picture.forget_over(3);
    assert_eq!(known(&picture), [1, 2, 3, 4, 5]);
    picture.forget_over(2);
    assert_eq!(known(&picture), [1, 3, 4, 5]);
    picture.forget_over(0);
    assert_eq!(known(&picture), [4, 5]);
    assert_eq!(picture.apply(&of(2, true), Revision(5), 4), None, "what was forgotten does not come back");
    assert_eq!(picture.apply(&Change::Gone(RecordKey::Unit(UnitId(2))), Revision(6), 5), None);
    assert_eq!(known(&picture), [4, 5]);
}

#[test]
fn what_was_used_includes_what_was_compacted() {
    let mut picture = picture();
    let mut of = (*record(&[("master", &[(0, 1)])])).clone();
    let used = [("cpu".to_owned(), 2_500), ("memory".to_owned(), 700)].into();
    of.status.compacted = Some(Box::new(CompactedRuns { used, ..CompactedRuns::default() }));
    assert_eq!(picture.used_seconds(application(), 0), None);
    picture.apply(&Change::Put(Record::Unit(Arc::new(of))), Revision(1), 1);
    assert_eq!(picture.used_seconds(application(), 0), Some((700, 2)));
    let bind = Bind { ordinals: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
    picture.apply(&rows(RunChange::Bind(bind)), Revision(1), 500);
    assert_eq!(picture.used_seconds(application(), 4_000), Some((700, 2)), "it has not started");
    let (ordinals, phases) = (vec![0], vec![Phase::Running]);
    let running = Statuses { ordinals, phases, ..Statuses::default() };
    picture.apply(&rows(RunChange::Statuses(running)), Revision(2), 1_000);
    assert_eq!(picture.used_seconds(application(), 4_000), Some((700 + 3 * 1_024, 5)));
}

#[test]
fn a_lost_node_ends_what_is_there() {
    let mut picture = picture();
    picture.apply(&Change::Put(Record::Unit(record(&[("master", &[(0, 1)])]))), Revision(1), 1);
    let bind = Bind { ordinals: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
    picture.apply(&rows(RunChange::Bind(bind)), Revision(1), 1);
    let evict = Evict {
        ordinals: vec![0],
        incarnations: Vec::new(),
        reason: EvictionReason::NodeLost,
        by: String::new(),
        preemptor: UnitId(0),
    };
    let ended = UnitEvent::Ended { ordinal: 0, incarnation: 0, exit: YarnExitStatus::ABORTED };
    assert_eq!(events(&mut picture, &rows(RunChange::Evict(evict))), [ended]);
}

#[test]
fn what_leaves_for_others_is_known_until_it_has_ended() {
    let mut picture = picture();
    let of = record(&[("master", &[(0, 1)]), ("g1-0", &[(1, 4)])]);
    picture.apply(&Change::Put(Record::Unit(of)), Revision(1), 1);
    let bind = Bind { group: 1, ordinals: vec![1, 2, 3], nodes: vec![NodeId(1); 3], ..Bind::default() };
    picture.apply(&rows(RunChange::Bind(bind)), Revision(1), 1);
    let leaving = |picture: &YarnPicture| picture.leaving(application()).collect::<Vec<u32>>();
    assert!(leaving(&picture).is_empty());
    let evict = |ordinals: Vec<u32>, reason| {
        let by = String::new();
        rows(RunChange::Evict(Evict { ordinals, incarnations: vec![], reason, by, preemptor: UnitId(0) }))
    };
    picture.apply(&evict(vec![2, 3], EvictionReason::Preempted), Revision(2), 2);
    assert_eq!(leaving(&picture), [2, 3]);
    // The same after a list.
    let listed = picture.unit(application()).unwrap().rows.clone();
    picture.apply(&Change::RowsLoaded(UnitId(1), listed), Revision(2), 2);
    assert_eq!(leaving(&picture), [2, 3]);
    let stopped = Statuses { ordinals: vec![2], phases: vec![Phase::Stopped], ..Statuses::default() };
    picture.apply(&rows(RunChange::Statuses(stopped)), Revision(3), 3);
    assert_eq!(leaving(&picture), [3]);
    picture.apply(&evict(vec![3], EvictionReason::NodeLost), Revision(4), 4);
    assert!(leaving(&picture).is_empty());
}

#[test]
fn nodes_are_called_by_host_and_port() {
    let mut picture = picture();
    let named = |picture: &YarnPicture, id| {
        picture
            .launch_node(NodeId(id))
            .map(|node| format!("{}:{} {}", node.host, node.port, picture.rack(NodeId(id))))
    };
    assert_eq!(named(&picture, 1).as_deref(), Some("10.0.0.1:8041 /r1"));
    assert_eq!(named(&picture, 2).as_deref(), Some("n2:8042 /default-rack"));
    assert_eq!(named(&picture, 3), None, "it starts no containers");
    assert_eq!(state_of(&picture.nodes[&NodeId(2)], 0), YarnNodeState::Lost);
    let n_changes = picture.n_node_changes;
    node(&mut picture, 2, &[(PORT_ATTRIBUTE, "8042")], true);
    assert!(picture.n_node_changes > n_changes && picture.nodes[&NodeId(2)].change > n_changes);
}

#[test]
fn what_is_taken_is_summed_up_by_node_and_queue() {
    let mut picture = picture();
    picture.apply(&Change::Put(Record::Unit(record(&[("master", &[(0, 2)])]))), Revision(1), 1);
    let bind = Bind { ordinals: vec![0, 1], nodes: vec![NodeId(1); 2], ..Bind::default() };
    picture.apply(&rows(RunChange::Bind(bind)), Revision(1), 1);
    picture.sum_up();
    let sums = &picture.sums;
    assert_eq!(
        (sums.n_nodes, sums.n_containers, sums.total.memory_mb, sums.used.memory_mb),
        (1, 2, 8_192, 2_048)
    );
    assert_eq!(sums.by_node[&NodeId(1)].1, 2);
    let paths: Vec<&str> = sums.by_queue.keys().map(String::as_str).collect();
    assert_eq!(paths, ["prod", "prod.search"]);
    assert_eq!(sums.largest.vcores, 4);
}

#[test]
fn the_picture_follows_what_the_adapter_declares_but_keys() {
    let follows: Vec<RecordKind> =
        FOLLOWS.iter().copied().filter(|kind| *kind != RecordKind::YarnKeys).collect();
    check_follows(
        &follows,
        || YarnPicture::new("yarn", "rack"),
        |picture, change| {
            picture.apply(change, Revision(1), 1);
        },
    );
}
