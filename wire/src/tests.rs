mod strategies;
mod zeros;

use std::sync::Arc;

use bytes::Bytes;
use godel_base::{
    ids::{Epoch, HoldId, NodeId, Revision, RunningUnitId, UnitId},
    resources::Resources,
};
use godel_domain::{
    allocation::{CoreSet, DeviceSet, GivenZones, ZoneSet},
    change::{Block, Change, Lease, Partition, PartitionMode},
    decision::{
        Claim, Decision, FreshNode, GroupPlacement, NodeVictims, Outcome, Preemption, Rejection,
        RejectionReason,
    },
    demand::{Demand, Pool},
    hold::{GangTurn, Hold, MovementTarget, Slot},
    node::NodeAllocatable,
    node::{NodeSpec, NodeUsage},
    node_load::ZoneLoad,
    pause::{Pause, Scope},
    queue_spec::{QueuePolicy, QueueSpec},
    records::{Record, RecordKey, RecordKind, StoredKey},
    reservation_spec::ReservationSpec,
    running_units::RunningUnits,
    submission::{GroupChanges, GroupSubmission},
    task_group_record::TaskGroupKey,
    unit::UnitRecord,
};
use godel_proto::{
    kinds::{self, KINDS, KeyForm},
    raw, v1,
};
use godel_rules::admission::grow::{group_bytes, grow};
use proptest::{collection::vec, option, prelude::*};
use prost::Message as _;

use super::{BadField, from_proto, to_proto};
use strategies::{node_load, node_report, node_spec, priority_class, queue, row_change, unit_record};

proptest! {
    #[test]
    fn nodes_come_back(spec in node_spec(), report in node_report(), load in option::of(node_load()), of_zone in node_load()) {
        prop_assert_eq!(from_proto::node_spec(to_proto::node_spec(&spec)), Ok(spec));
        let (id, amounts) = (report.id, report.capacity.clone());
        prop_assert_eq!(from_proto::node_report(to_proto::node_report(&report)), Ok(report));
        comes_back(Record::NodeAllocatable(NodeAllocatable { id, amounts: amounts.clone() }));
        let zone_loads = [1, 63].map(|zone| ZoneLoad { zone, load: of_zone }).to_vec();
        let usage = NodeUsage { id, reserved: amounts, as_of_ms: i64::from(id.0) - 7, load, zone_loads };
        comes_back(Record::NodeUsage(usage));
    }

    #[test]
    fn units_come_back(record in unit_record()) {
        let put = to_proto::put_unit(&record);
        let message = to_proto::unit_record(&record);
        let decoded = v1::UnitRecord::decode(to_proto::encoded_unit(&record));
        prop_assert_eq!(decoded.as_ref(), Ok(&message));
        prop_assert_eq!(v1::Op::decode(put.clone()).unwrap().op, Some(v1::op::Op::PutUnit(message)));
        let change = from_proto::op(&put);
        prop_assert_eq!(change, Ok(Change::Put(Record::Unit(Arc::new(record)))));
    }

    #[test]
    fn added_task_groups_come_back(record in unit_record(), n_own in 1u16..3) {
        let mut record = record;
        record.status.own_groups = n_own.min(u16::try_from(record.spec.task_groups.len()).unwrap());
        let own = from_proto::op(&to_proto::put_unit(&record));
        prop_assert_eq!(own, Ok(Change::Put(Record::Unit(Arc::new(record.own())))));
        for added in record.added_since(&record.own()) {
            let message = to_proto::task_group_record(&added);
            let without_ordinals = v1::TaskGroupRecord { ordinals: None, ..message.clone() };
            prop_assert!(without_ordinals.encoded_len() <= group_bytes(&added.group));
            let loaded = v1::Record { record: Some(v1::record::Record::TaskGroup(message)), ..v1::Record::default() };
            let change = Change::Put(Record::TaskGroup(Arc::new(added)));
            prop_assert_eq!(from_proto::op(&to_proto::op(&change).unwrap()), Ok(change.clone()));
            prop_assert_eq!(from_proto::record(loaded).unwrap().change, change);
        }
    }

    #[test]
    fn queues_and_priority_classes_come_back(spec in queue(), class in priority_class()) {
        prop_assert_eq!(from_proto::given_queue(to_proto::queue(&spec)), (spec.clone(), vec![]));
        comes_back(Record::Queue(Arc::new(spec.clone())));
        let record = Some(v1::record::Record::Queue(to_proto::queue(&spec)));
        let loaded = from_proto::record(v1::Record { revision: 3, record, ..v1::Record::default() }).unwrap();
        prop_assert_eq!(loaded.change, Change::Put(Record::Queue(Arc::new(spec))));
        comes_back(Record::PriorityClass(class));
    }

    #[test]
    fn row_changes_come_back(change in row_change()) {
        let op = to_proto::row_op(UnitId(7), &change);
        prop_assert_eq!(from_proto::op(&op), Ok(Change::Rows(UnitId(7), change)));
    }

    #[test]
    fn rows_come_back(changes in vec(row_change(), 0..8)) {
        let mut rows = RunningUnits::default();
        for (revision, change) in (1..).zip(&changes) {
            if rows.check(change).is_ok() {
                rows.apply(change, Revision(revision), 1_000, |_, _, _| {});
            }
        }
        let listed = to_proto::unit_rows(UnitId(7), &rows);
        let (unit, loaded) = from_proto::unit_rows(listed).unwrap();
        prop_assert_eq!(unit, UnitId(7));
        prop_assert_eq!(loaded.live().collect::<Vec<_>>(), rows.live().collect::<Vec<_>>());
        for ordinal in 0..10 {
            prop_assert_eq!(loaded.row(ordinal), rows.row(ordinal));
        }
    }

    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..64)) {
        let _ = from_proto::op(&Bytes::from(bytes));
    }
}

/// What is written does not grow with the unit: the first addition writes the unit's own record once more.
#[test]
fn the_thousandth_added_group_writes_no_more_than_the_second() {
    let rows = RunningUnits::default();
    let mut record = godel_testkit::unit("app");
    let mut written = Vec::new();
    for idx in 0..1_000 {
        let requests = vec![("cpu".to_owned(), 100)];
        let group = GroupSubmission {
            name: format!("g{idx:03}"),
            replicas: 1,
            requests,
            ..GroupSubmission::default()
        };
        let changes = GroupChanges { added: vec![group], ..GroupChanges::default() };
        let next = grow(&record, &rows, &changes).unwrap().unwrap().record;
        let groups = next.added_since(&record).map(|group| Change::Put(Record::TaskGroup(Arc::new(group))));
        let own = (next.own() != record.own()).then(|| Change::Put(Record::Unit(Arc::new(next.clone()))));
        written.push(
            own.into_iter().chain(groups).map(|change| to_proto::op(&change).unwrap().len()).sum::<usize>(),
        );
        record = next;
    }
    assert!(written[0] > 100, "{written:?}");
    // Only the numbers in it take more bytes as they grow.
    assert!(written[1..].iter().all(|bytes| (40..60).contains(bytes)), "{written:?}");
    assert_eq!((record.spec.task_groups.len(), record.iter_ordinals().last()), (1_001, Some(1_000)));
}

#[test]
fn a_task_group_that_cannot_be_read_is_known_by_its_key() {
    let record = v1::TaskGroupRecord { unit_id: 7, task_group: 2, ..v1::TaskGroupRecord::default() };
    let change = from_proto::read_op(&raw::encode_op(v1::op::Op::PutTaskGroup(record)));
    let Change::Unreadable(unreadable) = change else { panic!("{change:?}") };
    assert_eq!(unreadable.key, RecordKey::TaskGroup(TaskGroupKey { unit: UnitId(7), idx: 2 }));
    assert_eq!(unreadable.to_string(), "task group 7/2 cannot be read: group: missing");
    let gone = Change::Gone(RecordKey::TaskGroup(TaskGroupKey { unit: UnitId(7), idx: 2 }));
    assert_eq!(from_proto::op(&to_proto::op(&gone).unwrap()), Ok(gone));
}

fn victim(unit: u64) -> RunningUnitId {
    RunningUnitId::new(UnitId(unit), 3, 1)
}

#[test]
fn holds_come_back() {
    let hold = Hold {
        id: HoldId(1 << 33),
        node: NodeId(4),
        unit: UnitId(7),
        spec_revision: Revision(9),
        group: 2,
        demand: Arc::new(Demand::default()),
        pool: Pool::BestEffort,
        ordinals: vec![0, 4],
        incarnations: vec![0, 2],
        devices: vec![DeviceSet(1), DeviceSet(2)],
        zones: vec![GivenZones { zones: ZoneSet(4), cores: CoreSet(9) }, GivenZones::NONE],
        victims: vec![victim(5), victim(6)],
        at_maximum: true,
        queue_victims: vec![victim(8)],
        expires_ms: 77,
        queue: Some(Arc::from("a.b")),
        judged: Revision(8),
        priority: Some(0),
        taken_from: vec![UnitId(3), UnitId(5)],
        turn: Some(GangTurn { since_ms: 5, priority: -3, sub_cluster: Some(Arc::from("gpu")) }),
        slot: None,
        movement: None,
    };
    let movement = Some(MovementTarget { movement: Arc::from("binpack-7"), from: victim(7) });
    let target = Hold { movement, turn: None, ..hold.clone() };
    comes_back(Record::Hold(Arc::new(target.clone())));
    let mut nobody = to_proto::hold(&target);
    nobody.movement = Some(v1::MovementTarget::default());
    assert_eq!(from_proto::hold(nobody).unwrap_err().path, "movement.from");
    let slot = Some(Slot { reservation: Arc::from("kept"), occupant: Some(victim(5)) });
    let slot = Hold { unit: UnitId(0), slot, ..hold.clone() };
    comes_back(Record::Hold(Arc::new(slot)));
    comes_back(Record::Hold(Arc::new(hold)));
    let gone = to_proto::delete(v1::Kind::Hold, 5);
    assert_eq!(from_proto::op(&gone), Ok(Change::Gone(RecordKey::Hold(HoldId(5)))));
    let short = v1::Hold { hold_id: 1, node_id: 1, unit_id: 1, incarnations: vec![1], ..v1::Hold::default() };
    assert_eq!(from_proto::hold(short).unwrap_err().path, "incarnations");
}

#[test]
fn reservations_come_back() {
    let spec = ReservationSpec {
        name: "kept".to_owned(),
        namespace: "prod".to_owned(),
        selector: [("app".to_owned(), "web".to_owned())].into(),
        slots: 3,
        demand: Demand::default(),
        node_selector: [("zone".to_owned(), "a".to_owned())].into(),
        expires_ms: Some(9),
        description: "spare".to_owned(),
    };
    comes_back(Record::Reservation(Arc::new(spec)));
    let devices = v1::DeviceRequest { count: 65, ..v1::DeviceRequest::default() };
    let demand =
        Some(v1::Demand { requests: None, devices: vec![devices], host_ports: Vec::new(), zones: None });
    let (_, bad) = from_proto::given_reservation(v1::Reservation { demand, ..v1::Reservation::default() });
    assert_eq!(bad.iter().map(|bad| bad.path.as_str()).collect::<Vec<_>>(), ["demand.devices[0].count"]);
}

#[test]
fn decisions_and_outcomes_come_back() {
    let decision = Decision {
        id: 3,
        unit: UnitId(7),
        spec_revision: Revision(9),
        nodes_as_of: Revision(8),
        groups: vec![GroupPlacement {
            group: 1,
            ordinals: vec![0, 4],
            incarnations: vec![],
            nodes: vec![NodeId(1), NodeId(2)],
            devices: vec![DeviceSet(1), DeviceSet(2)],
            zones: vec![ZoneSet(3).into(), ZoneSet(1).into()],
        }],
        claim: Claim::from(Preemption {
            nodes: vec![NodeVictims {
                group: 1,
                node: NodeId(2),
                victims: vec![victim(5), victim(6)],
                holds: vec![HoldId(1 << 33)],
            }],
            others: vec![victim(7)],
        }),
    };
    assert_eq!(from_proto::decision(to_proto::decision(&decision)), decision);
    for claim in [Claim::FreeRoom, Claim::Gathering] {
        let decision = Decision { claim, ..decision.clone() };
        assert_eq!(from_proto::decision(to_proto::decision(&decision)), decision);
    }
    for reason in RejectionReason::ALL {
        let outcome = Outcome {
            decision_id: 3,
            unit: UnitId(7),
            revision: Revision(0),
            held: reason == RejectionReason::Invalid,
            rejections: vec![Rejection {
                reason,
                ordinals: vec![4],
                node: NodeId(2),
                detail: "cpu".to_owned(),
            }],
            nodes: vec![FreshNode {
                node: NodeId(2),
                pool: Pool::BestEffort,
                allocated: Resources::new([("cpu", 5)]).unwrap(),
                device_free_milli: vec![1000, 0],
                revision: Revision(8),
            }],
        };
        assert_eq!(from_proto::outcome(to_proto::outcome(&outcome)), outcome);
    }
    // A reason of a newer binder is a refusal all the same.
    let unknown = v1::Rejection { reason: 99, ..v1::Rejection::default() };
    let outcome = v1::Outcome { rejections: vec![unknown], ..v1::Outcome::default() };
    assert_eq!(from_proto::outcome(outcome).rejections[0].reason, RejectionReason::Invalid);
}

#[test]
fn a_block_of_a_partition_comes_back_and_is_small() {
    for slots in [vec![1; 64], vec![0, 0, 2], vec![200; 64]] {
        let block = Change::Put(Record::PartitionBlock(Block { number: 20_000 / Block::N_NODES, slots }));
        let op = to_proto::op(&block).unwrap();
        assert!(op.len() < 160, "{} bytes for a node that moves", op.len());
        assert_eq!(from_proto::op(&op), Ok(block));
        from_proto::check_op(&op).unwrap();
    }
    let gone = Change::Put(Record::PartitionBlock(Block { number: 0, slots: Vec::new() }));
    let op = to_proto::op(&gone).unwrap();
    assert_eq!(from_proto::op(&op), Ok(gone));
    for (block_id, n, field) in [(0, 1, "block_id"), (70_000, 1, "block_id"), (1, 65, "slots")] {
        let pb = v1::PartitionBlock { block_id, slots: vec![1; n] };
        let op = raw::encode_op(v1::op::Op::PutPartitionBlock(pb));
        let path = format!("put_partition_block.{field}");
        assert_eq!(from_proto::check_op(&op).unwrap_err().path, path);
    }
}

#[test]
fn leases_partitions_and_deletions_come_back() {
    let lease = Lease {
        name: "binder".to_owned(),
        holder: "h".to_owned(),
        address: "http://x".to_owned(),
        epoch: Epoch(4),
        ttl_ms: 3000,
    };
    assert_eq!(from_proto::lease(to_proto::lease(&lease)), Ok(lease));
    for mode in [PartitionMode::Global, PartitionMode::Preferred, PartitionMode::Strict] {
        let partition = Partition {
            mode,
            generation: 2,
            schedulers: vec!["s1".to_owned(), "s2".to_owned()],
            slots: vec![(NodeId(1), 1), (NodeId(2), 0)],
            by_hand: mode == PartitionMode::Strict,
            reason: "why".to_owned(),
            changed_ms: 5,
        };
        comes_back(Record::Partition(partition));
    }
    let named = [Scope::Queue("prod.search".to_owned()), Scope::SubCluster("gpu".to_owned())];
    for scope in [Scope::All, Scope::Preemption].into_iter().chain(named) {
        let (reason, sub_cluster_key) = ("why".to_owned(), "part".to_owned());
        let pause = Pause { scope: scope.clone(), since_ms: 5, reason, sub_cluster_key };
        comes_back(Record::Pause(pause));
        let gone = from_proto::op(&to_proto::delete_named(v1::Kind::Pause, &scope.to_string()));
        assert_eq!(gone, Ok(Change::Gone(RecordKey::Pause(scope.to_string()))));
    }
    let gone = from_proto::op(&to_proto::delete(v1::Kind::Unit, 7));
    assert_eq!(gone, Ok(Change::Gone(RecordKey::Unit(UnitId(7)))));
    let gone = from_proto::op(&to_proto::delete(v1::Kind::NodeSpec, 7));
    assert_eq!(gone, Ok(Change::Gone(RecordKey::NodeSpec(NodeId(7)))));
    let gone = from_proto::op(&to_proto::delete_named(v1::Kind::Queue, "prod.search"));
    assert_eq!(gone, Ok(Change::Gone(RecordKey::Queue("prod.search".to_owned()))));
    let gone = from_proto::op(&to_proto::delete_named(v1::Kind::PriorityClass, "gold"));
    assert_eq!(gone, Ok(Change::Gone(RecordKey::PriorityClass("gold".to_owned()))));
}

#[test]
fn queue_files_fill_in_defaults_and_name_every_error() {
    let meta = v1::ObjectMeta { name: "prod".to_owned(), revision: 9, ..v1::ObjectMeta::default() };
    let plain = v1::Queue { meta: Some(meta.clone()), ..v1::Queue::default() };
    assert_eq!(from_proto::given_queue(plain.clone()), (QueueSpec::new("prod"), vec![]));
    // A maximum of nothing is not the same as none.
    let nothing = v1::Resources { amounts: [("cpu".to_owned(), 0)].into() };
    let closed = from_proto::queue(v1::Queue { max: Some(nothing), ..plain.clone() }).unwrap();
    assert_eq!(closed.max, [("cpu".to_owned(), 0)].into());

    let meta = v1::ObjectMeta { namespace: "default".to_owned(), ..meta };
    let bad = v1::Queue { meta: Some(meta), policy: 99, weight: Some(7), ..plain.clone() };
    let (spec, fields) = from_proto::given_queue(bad.clone());
    assert_eq!((spec.weight, spec.policy), (7, QueuePolicy::Priority));
    let paths: Vec<&str> = fields.iter().map(|bad| bad.path.as_str()).collect();
    assert_eq!(paths, ["meta.namespace", "policy"]);
    assert_eq!(from_proto::queue(bad).unwrap_err().path, "meta.namespace");
    let negative = v1::Resources { amounts: [("cpu".to_owned(), -1)].into() };
    let negative = v1::Queue { min: Some(negative), ..plain };
    assert_eq!(from_proto::queue(negative).unwrap_err().path, "min[\"cpu\"]");
    assert_eq!(from_proto::queue(v1::Queue::default()).unwrap_err().path, "meta.name");
    assert_eq!(from_proto::priority_class(v1::PriorityClass::default()).unwrap_err().path, "name");
}

#[test]
fn listed_records_carry_their_revisions() {
    let spec = v1::NodeSpec { node_id: 3, ..v1::NodeSpec::default() };
    let record = v1::Record {
        create_revision: 4,
        revision: 9,
        create_time_ms: 11,
        record: Some(v1::record::Record::NodeSpec(spec)),
    };
    let loaded = from_proto::record(record).unwrap();
    assert_eq!(
        (loaded.create_revision, loaded.revision, loaded.create_time_ms),
        (Revision(4), Revision(9), 11)
    );
    assert!(matches!(loaded.change, Change::Put(Record::NodeSpec(NodeSpec { id: NodeId(3), .. }))));
    assert_eq!(from_proto::record(v1::Record::default()).unwrap_err().path, "record");
}

#[test]
fn wrong_fields_are_named() {
    let amounts = |name: &str, amount| v1::Resources { amounts: [(name.to_owned(), amount)].into() };
    let device = |count, milli| v1::DeviceRequest {
        kind: "gpu".to_owned(),
        count,
        milli_per_device: Some(milli),
        models: vec![],
        terms: None,
    };
    let with_demand = |demand: v1::Demand| {
        let mut unit = to_proto::unit_record(&a_unit());
        let template = v1::Template { demand: Some(demand), ..v1::Template::default() };
        unit.spec.as_mut().unwrap().task_groups[0].template = Some(template);
        from_proto::unit_record(unit).unwrap_err().path
    };
    let path = "spec.task_groups[0].template.demand";
    let negative = v1::Demand {
        requests: Some(amounts("cpu", -1)),
        devices: Vec::new(),
        host_ports: Vec::new(),
        zones: None,
    };
    assert_eq!(with_demand(negative), format!("{path}.requests.amounts[cpu]"));
    for (count, milli, field) in
        [(0, 1000, "count"), (65, 1000, "count"), (1, 0, "milli_per_device"), (2, 500, "milli_per_device")]
    {
        let demand = v1::Demand {
            requests: None,
            devices: vec![device(count, milli)],
            host_ports: Vec::new(),
            zones: None,
        };
        assert_eq!(with_demand(demand), format!("{path}.devices[0].{field}"));
    }
    let twice =
        v1::Demand { requests: None, devices: vec![device(1, 1000); 2], host_ports: Vec::new(), zones: None };
    assert_eq!(with_demand(twice), format!("{path}.devices[1].kind"));
    let many =
        v1::Demand { requests: None, devices: vec![device(1, 1000); 5], host_ports: Vec::new(), zones: None };
    assert_eq!(with_demand(many), format!("{path}.devices"));

    let with_affinity = |affinity: v1::UnitAffinity| {
        let mut unit = to_proto::unit_record(&a_unit());
        unit.spec.as_mut().unwrap().affinity = Some(affinity);
        from_proto::unit_record(unit).map_err(|bad| bad.path)
    };
    let spread = vec![v1::SpreadTerm { topology: "rack".to_owned(), ..v1::SpreadTerm::default() }];
    let skewless = v1::UnitAffinity { spread, ..v1::UnitAffinity::default() };
    assert_eq!(with_affinity(skewless), Err("spec.affinity.spread[0].max_skew".to_owned()));
    let units = vec![v1::LabelExpression { key: "app".to_owned(), ..v1::LabelExpression::default() }];
    let near = vec![v1::UnitTerm { units, ..v1::UnitTerm::default() }];
    let vague = v1::UnitAffinity { near, ..v1::UnitAffinity::default() };
    assert_eq!(with_affinity(vague), Err("spec.affinity.near[0].units[0].operator".to_owned()));
    // A message without a term says as little as none.
    assert_eq!(with_affinity(v1::UnitAffinity::default()), Ok(a_unit()));

    let check = |op: v1::op::Op, path: &str| {
        assert_eq!(from_proto::op(&raw::encode_op(op)).unwrap_err().path, path);
    };
    let binding = v1::Binding { unit_id: 1, ordinals: vec![0], node_ids: vec![1], ..v1::Binding::default() };
    check(v1::op::Op::Bind(v1::Binding { unit_id: 0, ..binding.clone() }), "unit_id");
    check(v1::op::Op::Bind(v1::Binding { node_ids: vec![], ..binding.clone() }), "node_ids");
    check(v1::op::Op::Bind(v1::Binding { node_ids: vec![0], ..binding.clone() }), "node_ids");
    check(v1::op::Op::Bind(v1::Binding { device_masks: vec![1, 2], ..binding.clone() }), "device_masks");
    check(v1::op::Op::Bind(v1::Binding { zone_masks: vec![1, 2], ..binding.clone() }), "zone_masks");
    check(v1::op::Op::Bind(v1::Binding { pool: 99, ..binding }), "pool");
    check(v1::op::Op::Evict(v1::Eviction { unit_id: 1, ..v1::Eviction::default() }), "reason");
    check(v1::op::Op::PutLease(v1::LeaseRecord::default()), "lease");
    let split = v1::Partition { node_ids: vec![1], slots: vec![0], ..v1::Partition::default() };
    check(v1::op::Op::PutPartition(split), "slots[0]");
    check(v1::op::Op::PutQueue(v1::Queue::default()), "meta.name");
    let nameless = v1::Delete { kind: v1::Kind::Queue.into(), key: Some(v1::Key::default()) };
    check(v1::op::Op::Delete(nameless), "key.name");
    let taint = v1::Taint { key: "k".to_owned(), ..v1::Taint::default() };
    let node = v1::NodeSpec { node_id: 1, taints: vec![taint], ..v1::NodeSpec::default() };
    check(v1::op::Op::PutNodeSpec(node), "taints[0].effect");
    assert_eq!(from_proto::op(&Bytes::from_static(&[0xff])).unwrap_err().path, "op");
    assert_eq!(from_proto::op(&Bytes::new()).unwrap_err(), BadField::new("op", "missing"));
}

fn put(record: Record) -> Bytes {
    to_proto::op(&Change::Put(record)).unwrap()
}

fn comes_back(record: Record) {
    assert_eq!(from_proto::op(&put(record.clone())), Ok(Change::Put(record)));
}

fn a_unit() -> UnitRecord {
    godel_testkit::unit("web")
}

#[test]
fn both_tables_of_records_agree() {
    assert_eq!(RecordKind::ALL.len(), KINDS.len());
    for info in &KINDS {
        let kind = RecordKind::of_number(info.kind as i32).unwrap();
        assert_eq!((kind.is_of_node(), kinds::puts_whole(info.kind as u32)), (info.of_node, info.is_whole()));
        let stored = match info.key {
            KeyForm::Node | KeyForm::Id => StoredKey::Id(7),
            KeyForm::Name if kind == RecordKind::TaskGroup => StoredKey::Name("7/3".to_owned()),
            KeyForm::Name => StoredKey::Name("queue/a".to_owned()),
        };
        let key = RecordKey::read(kind, stored.clone()).unwrap();
        assert_eq!(key.kind(), Some(kind), "{}", info.name);
        assert!(key.stored() == Some(stored) || key == RecordKey::Partition, "{}", info.name);
        let other = match info.key {
            KeyForm::Name => StoredKey::Id(7),
            KeyForm::Node | KeyForm::Id => StoredKey::Name("a".to_owned()),
        };
        let is_any = matches!(key, RecordKey::Foreign(_) | RecordKey::Partition);
        assert!(is_any || RecordKey::read(kind, other).is_none(), "{}", info.name);
    }
}
