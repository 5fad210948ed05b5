use super::*;
use crate::output::{Format, NASTY, assert_shown, fields, table};

#[test]
fn a_node_shows_its_use() {
    let node = v1::Node {
        node_id: 3,
        spec: Some(v1::NodeSpec {
            node_id: 3,
            meta: Some(v1::ObjectMeta { name: "n-3".to_owned(), ..v1::ObjectMeta::default() }),
            cordoned: true,
            taints: vec![v1::Taint {
                key: "gpu".to_owned(),
                value: "only".to_owned(),
                effect: 1,
                added_time_ms: 0,
            }],
            ..v1::NodeSpec::default()
        }),
        report: Some(v1::NodeReport {
            devices: vec![
                v1::Device {
                    kind: "gpu".to_owned(),
                    model: "A10".to_owned(),
                    numa_zone: 0,
                    details: None
                };
                2
            ],
            ready: true,
            ..v1::NodeReport::default()
        }),
        allocatable: Some(v1::Resources { amounts: [("cpu".to_owned(), 32_000)].into_iter().collect() }),
        allocated: Some(v1::Resources { amounts: [("cpu".to_owned(), 1_500)].into_iter().collect() }),
        device_free_milli: vec![0, 540],
        running_units: 2,
        usage: Some(v1::Resources { amounts: [("cpu".to_owned(), 7_000)].into_iter().collect() }),
        best_effort_allocatable: Some(v1::Resources {
            amounts: [("cpu".to_owned(), 31_000)].into_iter().collect(),
        }),
        best_effort_allocated: Some(v1::Resources {
            amounts: [("cpu".to_owned(), 20_500)].into_iter().collect(),
        }),
        held_running_units: 3,
        held: Some(v1::Resources { amounts: [("cpu".to_owned(), 6_000)].into_iter().collect() }),
        slots: vec![v1::NodeSlots { reservation: "web".to_owned(), slots: 2, used: 1 }],
        load: Some(v1::NodeLoad {
            p50: None,
            p95: Some(v1::LoadAmounts { cpu: 8_000, memory: 0, network: 0 }),
        }),
        ..v1::Node::default()
    };
    let view = NodeView::from(&node);
    assert_eq!(
        table(Format::Table, std::slice::from_ref(&view)),
        "NAME  STATUS          UNITS  HELD  SLOTS  CPU     MEMORY  GPU\n\
         n-3   Ready,Cordoned  2      3     1/2    1.5/32  0/0     1.46/2 A10\n"
    );
    assert_eq!(view.load_line().unwrap(), "95th percentile cpu 8/32, memory 0/0");
    assert_eq!(view.held_lines(), ["for 3 running units: cpu=6", "2 slots of reservation web, 1 used"]);
    let wide = table(Format::Wide, &[view]);
    assert!(wide.contains("gpu=only:no-schedule") && wide.contains("20.5/31  0/0        7"), "{wide}");
    let drained = |running_units, ready| {
        let drain = Some(v1::NodeDrain { since_ms: 1, deadline_ms: 0, running_units: 9 });
        let report = Some(v1::NodeReport { ready, ..v1::NodeReport::default() });
        let spec = Some(v1::NodeSpec { drain, ..v1::NodeSpec::default() });
        NodeView::from(&v1::Node { spec, report, running_units, ..v1::Node::default() })
    };
    assert_eq!(drained(2, true).status, "Ready,Draining");
    assert_eq!(drained(2, true).drain.unwrap().to_string(), "7 of 9 running units have left");
    assert_eq!(drained(0, false).status, "NotReady,Drained");
    let (trouble, images_trouble) = ("its disk is full".to_owned(), "no engine".to_owned());
    let report = Some(v1::NodeReport { ready: true, trouble, images_trouble, ..v1::NodeReport::default() });
    let troubled = NodeView::from(&v1::Node { report, ..v1::Node::default() });
    let said = (troubled.status.as_str(), troubled.trouble.as_str(), troubled.images_trouble.as_str());
    assert_eq!(said, ("Ready,StartsNothing,NoImages", "its disk is full", "no engine"));
}

#[test]
fn the_column_of_gpus_counts_gpus() {
    let device = |kind: &str, model: &str| v1::Device {
        kind: kind.to_owned(),
        model: model.to_owned(),
        numa_zone: 0,
        details: None,
    };
    let gpus = |devices: Vec<v1::Device>| {
        let device_free_milli = vec![1_000; devices.len()];
        let report = Some(v1::NodeReport { devices, ..v1::NodeReport::default() });
        NodeView::from(&v1::Node { report, device_free_milli, ..v1::Node::default() }).row()[7].clone()
    };
    assert_eq!(gpus(vec![device("nic", "virtio_net")]), "");
    assert_eq!(gpus(vec![device("nic", "virtio_net"), device("gpu", "A10")]), "0/1 A10");
    assert_eq!(gpus(vec![device("gpu", "A10"), device("gpu", "H100"), device("gpu", "A10")]), "0/3 A10,H100");
}

#[test]
fn a_list_counts_what_succeeded_and_says_that_there_are_more_nodes() {
    let row = |counts: v1::UnitCounts, more_nodes| {
        let nodes = ["n-1", "n-2", "n-3"].map(str::to_owned).to_vec();
        UnitView::from(&v1::Unit { counts: Some(counts), nodes, more_nodes, ..v1::Unit::default() }).row()
    };
    let counts = v1::UnitCounts {
        replicas: 3_000,
        bound: 3_000,
        running: 2_990,
        succeeded: 4,
        ..v1::UnitCounts::default()
    };
    assert_eq!((&row(counts, true)[3][..], &row(counts, true)[8][..]), ("2994/3000", "n-1,n-2,n-3,..."));
    assert_eq!(row(counts, false)[8], "n-1,n-2,n-3", "more replicas than nodes");
    let done = v1::UnitCounts { replicas: 10, succeeded: 10, ..v1::UnitCounts::default() };
    assert_eq!(row(done, false)[3], "10/10");
}

#[test]
fn phases_are_words_both_ways() {
    assert_eq!(phase(v1::UnitPhase::Unschedulable), "Unschedulable");
    assert_eq!(parse_phase("Running"), Some(v1::UnitPhase::Running));
    assert_eq!(parse_phase("asleep"), None);
    for word in PHASES {
        assert!(parse_phase(word).is_some(), "{word}");
    }
}

#[test]
fn field_names_of_json_are_stable() {
    let unit = v1::Unit {
        refusals: Some(v1::Refusals {
            reasons: vec![v1::RefusalCount {
                plugin: "device".to_owned(),
                reason: "no free gpu".to_owned(),
                nodes: 4,
            }],
            nearest_miss: "n-1 lacks 1 gpu".to_owned(),
            nodes: 4,
            attempts: 2,
        }),
        ..v1::Unit::default()
    };
    let json = serde_json::to_value(UnitView::from(&unit)).unwrap();
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "name",
        "namespace",
        "unit_id",
        "uid",
        "phase",
        "class",
        "replicas",
        "pending",
        "bound",
        "running",
        "succeeded",
        "failed",
        "min_member",
        "queue",
        "priority",
        "priority_class",
        "preemptible",
        "min_run_ms",
        "max_surge",
        "scheduling_timeout_ms",
        "active_deadline_ms",
        "ended",
        "waits_for",
        "preempted_by",
        "sub_cluster",
        "owner",
        "scheduler",
        "create_time_ms",
        "bound_time_ms",
        "revision",
        "nodes",
        "more_nodes",
        "reason",
        "labels",
        "refusals",
    ];
    expected.sort_unstable();
    let mut keys = keys;
    keys.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(json["refusals"]["reasons"][0]["nodes"], 4);
}

#[test]
fn a_queue_shows_what_it_uses_is_guaranteed_may_use_and_borrows() {
    let amounts = |amounts: &[(&str, i64)]| {
        let amounts = amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect();
        Some(v1::Resources { amounts })
    };
    let status = v1::QueueStatus {
        queue: Some(v1::Queue {
            meta: Some(v1::ObjectMeta { name: "prod".to_owned(), revision: 12, ..v1::ObjectMeta::default() }),
            max_running_units: Some(30),
            policy: v1::QueuePolicy::FairShare.into(),
            ..v1::Queue::default()
        }),
        usage: Some(v1::QueueUsage {
            used_with_children: amounts(&[("cpu", 6_500), ("gpu", 1_500), ("fpga", 2)]),
            guaranteed: amounts(&[("cpu", 4_000)]),
            borrowed: amounts(&[("cpu", 2_500), ("gpu", 1_500)]),
            max: amounts(&[("cpu", 8_000), ("gpu", 0)]),
            pending_units: 4,
            running_units: 7,
            ..v1::QueueUsage::default()
        }),
    };
    let view = QueueView::from(&status);
    assert_eq!(
        table(Format::Table, std::slice::from_ref(&view)),
        "NAME  WEIGHT  POLICY      PENDING  RUNNING  CPU           MEMORY  GPU\n\
         prod  1       fair-share  4        7/30     6.5/4/8 +2.5  0/0/-   1.5/0/0 +1.5\n"
    );
    assert!(table(Format::Wide, std::slice::from_ref(&view)).contains("fpga=2/0/-"));
    let json = serde_json::to_value(&view).unwrap();
    let mut keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "am_share",
            "borrowed",
            "create_time_ms",
            "guaranteed",
            "labels",
            "max",
            "max_in_force",
            "max_per_owner",
            "max_running_units",
            "min",
            "name",
            "owner",
            "owner_weights",
            "pending_units",
            "policy",
            "revision",
            "running_units",
            "submit_owners",
            "uid",
            "used",
            "used_with_children",
            "weight"
        ]
    );
}

/// Every text of a view is [`NASTY`]: what people see of it.
fn check_shown<V: View>(view: &V) {
    let of_one = fields(10, view);
    assert_shown(&of_one);
    assert_eq!(of_one.lines().count(), V::COLUMNS.len() + V::WIDE.len(), "{of_one}");
    let rows = table(Format::Wide, std::slice::from_ref(view));
    assert_shown(&rows);
    assert_eq!(rows.lines().count(), 2, "{rows}");
}

#[test]
fn control_characters_in_names_and_reasons_are_shown_escaped() {
    let nasty = || NASTY.to_owned();
    let labels = || [(nasty(), nasty())].into_iter().collect();
    let meta = || v1::ObjectMeta {
        namespace: nasty(),
        name: nasty(),
        uid: nasty(),
        labels: labels(),
        owner: nasty(),
        ..v1::ObjectMeta::default()
    };
    let amounts = || Some(v1::Resources { amounts: [(nasty(), 1)].into_iter().collect() });
    let unit = v1::Unit {
        spec: Some(v1::UnitSpec {
            meta: Some(meta()),
            queue: nasty(),
            priority_class: nasty(),
            ..v1::UnitSpec::default()
        }),
        scheduler: nasty(),
        ..v1::Unit::default()
    };
    check_shown(&UnitView::from(&unit));
    let run = v1::RunningUnit {
        task_group: nasty(),
        node: nasty(),
        devices: vec![0],
        device_model: nasty(),
        ..v1::RunningUnit::default()
    };
    check_shown(&RunningUnitView::from(&run));
    let node = v1::Node {
        spec: Some(v1::NodeSpec {
            meta: Some(meta()),
            taints: vec![v1::Taint { key: nasty(), value: nasty(), effect: 1, added_time_ms: 0 }],
            ..v1::NodeSpec::default()
        }),
        report: Some(v1::NodeReport {
            devices: vec![v1::Device { kind: nasty(), model: nasty(), numa_zone: 0, details: None }],
            attributes: labels(),
            ..v1::NodeReport::default()
        }),
        ..v1::Node::default()
    };
    check_shown(&NodeView::from(&node));
    let queue = v1::QueueStatus {
        queue: Some(v1::Queue {
            meta: Some(meta()),
            submit_owners: vec![nasty()],
            owner_weights: [(nasty(), 2)].into(),
            ..v1::Queue::default()
        }),
        usage: Some(v1::QueueUsage { used_with_children: amounts(), ..v1::QueueUsage::default() }),
    };
    check_shown(&QueueView::from(&queue));
    let class = v1::PriorityClassStatus {
        priority_class: Some(v1::PriorityClass {
            name: nasty(),
            description: nasty(),
            ..v1::PriorityClass::default()
        }),
        ..v1::PriorityClassStatus::default()
    };
    check_shown(&PriorityClassView::from(&class));
    let budget = v1::DisruptionBudgetStatus {
        budget: Some(v1::DisruptionBudget {
            name: nasty(),
            namespace: nasty(),
            unit: nasty(),
            selector: labels(),
            description: nasty(),
            ..v1::DisruptionBudget::default()
        }),
        ..v1::DisruptionBudgetStatus::default()
    };
    check_shown(&BudgetView::from(&budget));
    let reservation = v1::ReservationStatus {
        reservation: Some(v1::Reservation {
            name: nasty(),
            namespace: nasty(),
            selector: labels(),
            node_selector: labels(),
            description: nasty(),
            ..v1::Reservation::default()
        }),
        places: vec![v1::ReservedPlace { node: nasty(), unit: nasty(), ..v1::ReservedPlace::default() }],
        ..v1::ReservationStatus::default()
    };
    let view = ReservationView::from(&reservation);
    check_shown(&view);
    assert_shown(&view.places());
    assert_eq!(view.places().lines().count(), 1);
    let scheduler = v1::SchedulerStatus { name: nasty(), address: nasty(), ..v1::SchedulerStatus::default() };
    check_shown(&SchedulerView::from(&scheduler));
}
