//! What an application could get, as nodes, queues, owners and other units change.

use godel_base::resources::Resources;
use godel_domain::{
    change::Change,
    node::{NodeReport, NodeSpec, Taint, TaintEffect},
    records::{Record, RecordKey},
    running_units::{Bind, Phase, Statuses},
    unit::WorkloadClass,
};
use godel_testkit::{BuildUnit as _, unit};

use super::*;
use crate::names::{HOST_ATTRIBUTE, PORT_ATTRIBUTE};

const LABEL: &str = "godel.dev/yarn-label";

fn spec(id: u32, labels: &[(&str, &str)]) -> NodeSpec {
    let host = format!("h{id}");
    let own = [(PORT_ATTRIBUTE, "8041"), (HOST_ATTRIBUTE, host.as_str())];
    let labels = own.iter().chain(labels).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    NodeSpec { id: NodeId(id), name: format!("n{id}"), labels: labels.collect(), ..NodeSpec::default() }
}

/// Two nodes of 4 CPUs and 8 GiB in two racks.
fn picture() -> YarnPicture {
    let mut picture = YarnPicture::new("yarn", "rack").with_label_key(LABEL);
    for id in [1, 2] {
        let rack = format!("r{id}");
        apply(&mut picture, Change::Put(Record::NodeSpec(spec(id, &[("rack", &rack)]))));
        let capacity = Resources::new([("cpu", 4_500), ("memory", 8 << 30), ("fpga", 2)]).unwrap();
        let report = NodeReport { id: NodeId(id), capacity, ready: true, ..NodeReport::default() };
        apply(&mut picture, Change::Put(Record::NodeReport(report)));
    }
    picture.sum_up();
    picture
}

fn apply(picture: &mut YarnPicture, change: Change) {
    picture.apply(&change, Revision(2), 5);
}

/// A unit with replicas of so many thousandths of a CPU on nodes.
fn run(picture: &mut YarnPicture, (id, queue, owner): (u64, &str, &str), milli: i64, nodes: &[u32]) {
    let mut record = unit(format!("unit-{id}")).class(WorkloadClass::Service);
    record.id = UnitId(id);
    record.spec.queue = queue.to_owned();
    record.spec.owner = owner.to_owned();
    record.spec.task_groups[0].template.demand.requests =
        Resources::new([("cpu", milli), ("memory", 1 << 30)]).unwrap();
    apply(picture, Change::Put(Record::Unit(Arc::new(record))));
    let bind = Bind {
        ordinals: (0..).take(nodes.len()).collect(),
        nodes: nodes.iter().map(|node| NodeId(*node)).collect(),
        ..Bind::default()
    };
    apply(picture, Change::Rows(UnitId(id), RunChange::Bind(bind)));
    picture.sum_up();
}

fn queue(picture: &mut YarnPicture, spec: QueueSpec) {
    apply(picture, Change::Put(Record::Queue(Arc::new(spec))));
}

fn cpu(milli: i64) -> BTreeMap<String, i64> {
    [(CPU.to_owned(), milli)].into()
}

/// CPUs that ann could get in `prod.search`.
fn cpus(picture: &YarnPicture, labels: &[&str], refused: &[&str]) -> i64 {
    let refused = refused.iter().map(|name| (*name).to_owned()).collect();
    let labels = labels.iter().copied().collect();
    let applicant = Applicant { queue: "prod.search", owner: "ann", labels: &labels, refused: &refused };
    picture.headroom(applicant).vcores
}

#[test]
fn units_that_are_not_yarns_take_room() {
    let mut picture = picture();
    assert_eq!(cpus(&picture, &[""], &[]), 8, "half a CPU on each node is none");
    run(&mut picture, (1, "default", "bob"), 4_000, &[1]);
    assert_eq!(cpus(&picture, &[""], &[]), 4);
    // It asks for less from now on.
    run(&mut picture, (1, "default", "bob"), 3_000, &[]);
    assert_eq!(cpus(&picture, &[""], &[]), 5);
    let stopped = Statuses {
        ordinals: vec![0],
        phases: vec![Phase::Stopped],
        exit_codes: vec![0],
        ..Statuses::default()
    };
    apply(&mut picture, Change::Rows(UnitId(1), RunChange::Statuses(stopped)));
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 8);
    run(&mut picture, (2, "default", "bob"), 1_000, &[1, 2]);
    assert_eq!(cpus(&picture, &[""], &[]), 6);
    apply(&mut picture, Change::Gone(RecordKey::Unit(UnitId(2))));
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 8);
    assert!(picture.others.by_node.is_empty() && picture.others.by_owner.is_empty());
    // What gives way takes none.
    let mut record = unit("unit-3").class(WorkloadClass::Batch);
    record.id = UnitId(3);
    record.spec.pool = Pool::BestEffort;
    apply(&mut picture, Change::Put(Record::Unit(Arc::new(record))));
    let bind = Bind { ordinals: vec![0], nodes: vec![NodeId(1)], ..Bind::default() };
    apply(&mut picture, Change::Rows(UnitId(3), RunChange::Bind(bind)));
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 8);
}

#[test]
fn only_nodes_that_an_application_may_have_count() {
    let mut picture = picture();
    assert_eq!(cpus(&picture, &[""], &["h2"]), 4);
    assert_eq!(cpus(&picture, &[""], &["/r2", "h2", "h7"]), 4, "a node is left out once");
    assert_eq!(cpus(&picture, &["fast"], &[]), 0);
    assert!(!picture.has_label("fast") && picture.has_resource("fpga") && !picture.has_resource("gpu"));
    apply(&mut picture, Change::Put(Record::NodeSpec(spec(2, &[("rack", "r2"), (LABEL, "fast")]))));
    picture.sum_up();
    assert_eq!((cpus(&picture, &[""], &[]), cpus(&picture, &["fast"], &[])), (4, 4));
    assert_eq!((cpus(&picture, &["", "fast"], &[]), cpus(&picture, &[""], &["h2"])), (8, 4));
    assert!(picture.has_label("fast"));
    // Nodes that take nothing new.
    let taint = |effect| Taint { key: "k".to_owned(), value: String::new(), effect, added_ms: 0 };
    for (is_taken, closed) in [
        (false, NodeSpec { cordoned: true, ..spec(1, &[]) }),
        (false, NodeSpec { taints: vec![taint(TaintEffect::NoSchedule)], ..spec(1, &[]) }),
        (true, NodeSpec { taints: vec![taint(TaintEffect::PreferNoSchedule)], ..spec(1, &[]) }),
    ] {
        apply(&mut picture, Change::Put(Record::NodeSpec(closed)));
        picture.sum_up();
        assert_eq!(cpus(&picture, &[""], &[]) > 0, is_taken);
    }
    apply(&mut picture, Change::Gone(RecordKey::NodeSpec(NodeId(1))));
    picture.sum_up();
    assert_eq!((cpus(&picture, &[""], &[]), picture.places.racks.len()), (0, 1));
    assert!(
        YarnPicture::default().has_label("fast") && YarnPicture::default().has_resource("gpu"),
        "nothing is known"
    );
}

#[test]
fn queues_and_their_owners_bound_the_room() {
    let mut picture = picture();
    run(&mut picture, (1, "prod.search", "ann"), 1_000, &[1]);
    run(&mut picture, (2, "prod.web", "ann"), 1_000, &[1]);
    run(&mut picture, (3, "prod.search", "bob"), 1_000, &[2]);
    assert_eq!(cpus(&picture, &[""], &[]), 5);
    queue(&mut picture, QueueSpec { max: cpu(6_000), ..QueueSpec::new("prod") });
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 3, "of the queue above, with all that is below it");
    queue(&mut picture, QueueSpec { max_per_owner: cpu(2_500), ..QueueSpec::new("prod.search") });
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 1, "of the owner in the queue");
    queue(&mut picture, QueueSpec { max_per_owner: cpu(2_000), ..QueueSpec::new("prod") });
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 0, "of the owner in the queue above");
    queue(&mut picture, QueueSpec { max_running_units: 3, ..QueueSpec::new("prod") });
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 0, "so many may run");
    queue(&mut picture, QueueSpec { max_running_units: 4, ..QueueSpec::new("prod") });
    picture.sum_up();
    assert_eq!(cpus(&picture, &[""], &[]), 1);
}
