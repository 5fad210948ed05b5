//! What tests of the faces start with: ids, amounts, nodes, queues and applications.

use std::collections::BTreeMap;

use godel_core_yarn::{
    adapter::{AllocateCall, AppSubmission, Registration},
    asks::{ANY, AskGroup, AskKey, AskRow, ExecutionType},
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_core_yarn_leader::{QueueReport, SubmittedApp, YarnAmount, YarnNodeReport, YarnNodeState};

/// First part of ids of applications.
pub(crate) const CLUSTER: i64 = 1_700_000_000_000;
/// When applications are submitted.
pub(crate) const START: i64 = 1_700_000_100_000;
pub(super) const RACK: &str = "/default-rack";

pub(crate) fn app_id(number: u32) -> YarnApplicationId {
    YarnApplicationId { cluster_timestamp: CLUSTER, number }
}

pub(crate) fn attempt_id(number: u32) -> YarnAttemptId {
    YarnAttemptId { application: app_id(number), number: 1 }
}

pub(crate) fn amount(memory_mb: i64, vcores: i64) -> YarnAmount {
    YarnAmount { memory_mb, vcores, others: BTreeMap::new() }
}

/// A running node with two containers.
pub(crate) fn node(host: &str) -> YarnNodeReport {
    YarnNodeReport {
        host: host.to_owned(),
        port: 8_041,
        rack: RACK.to_owned(),
        state: YarnNodeState::Running,
        total: amount(8_192, 8),
        used: amount(2_048, 2),
        n_containers: 2,
        label: String::new(),
        attributes: BTreeMap::new(),
        heard_ms: START,
        health: String::new(),
    }
}

/// A queue with a share of its parent, of which a quarter is used.
pub(crate) fn queue(path: &str, capacity: f32) -> QueueReport {
    QueueReport {
        path: path.to_owned(),
        capacity,
        maximum_capacity: 100.0,
        absolute_capacity: capacity,
        absolute_maximum_capacity: 100.0,
        absolute_used_capacity: 12.5,
        used_capacity: 25.0,
        is_running: true,
        used: amount(2_048, 2),
        pending: amount(1_024, 1),
        n_containers: 2,
        n_pending_containers: 1,
        n_active: 1,
        n_pending: 0,
        submit_owners: Vec::new(),
        is_leaf: path != "root",
    }
}

/// A node that runs and one that is lost.
pub(super) fn nodes() -> Vec<YarnNodeReport> {
    let attributes: BTreeMap<_, _> = [("godel.dev/os".to_owned(), "linux".to_owned())].into();
    let lost = YarnNodeReport { state: YarnNodeState::Lost, label: "gpu".to_owned(), ..node("n2") };
    [node("n1"), lost].map(|node| YarnNodeReport { attributes: attributes.clone(), ..node }).into()
}

/// Queues, of which one is for a single user.
pub(super) fn queues() -> Vec<QueueReport> {
    let night = QueueReport { submit_owners: vec!["ann".to_owned()], ..queue("root.night", 50.0) };
    vec![queue("root", 100.0), queue("root.default", 50.0), night]
}

/// Two applications that are alike, and one of somebody else.
pub(super) fn submitted() -> [SubmittedApp; 3] {
    let of = |user: &str, kind: &str, tags: &[&str]| SubmittedApp {
        submission: AppSubmission {
            name: "word count".to_owned(),
            user: user.to_owned(),
            queue: "root.default".to_owned(),
            kind: kind.to_owned(),
            priority: 0,
            master: Some(group(0)),
            label: String::new(),
            max_attempts: 2,
            validity_interval_ms: -1,
            keeps_containers: false,
            lifetime_ms: None,
        },
        launch: [].into(),
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
    };
    let spark = of("ann", "SPARK", &["night", "etl"]);
    [spark.clone(), spark, of("bob", "MAPREDUCE", &[])]
}

pub(super) fn registration() -> Registration {
    Registration { host: "n1".to_owned(), rpc_port: 40_193, tracking_url: "http://n1:4040".to_owned() }
}

/// The first call of a master: it asks for one container.
pub(super) fn ask() -> AllocateCall {
    let key = AskKey { group: group(7), allocation_request_id: 5 };
    let row = AskRow { key, name: ANY.to_owned(), n: 1, relax_locality: true, label: None };
    AllocateCall { asks: vec![row], ..AllocateCall::default() }
}

fn group(priority: i32) -> AskGroup {
    let capability = amount(1_024, 1).to_capability();
    AskGroup { priority, execution: ExecutionType::Guaranteed, capability, label: String::new() }
}
