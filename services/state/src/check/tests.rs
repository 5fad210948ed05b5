//! Every operation × every field × values that somebody may send, made from the descriptors: a new field is covered by itself.

use std::collections::HashMap;

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_domain::running_units::{RunChange, RunningUnits};
use godel_proto::v1;
use godel_wire::ops;
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _,
    Value,
};

use super::*;
mod odd;

/// Longer than anything that fits into a transaction with something else.
const MIB: usize = 1 << 20;
/// Messages in messages that are looked into.
const DEPTH_MAX: usize = 8;

fn txn(ops: impl IntoIterator<Item = v1::op::Op>) -> raw::TxnRequest {
    raw::TxnRequest { ops: ops.into_iter().map(raw::encode_op).collect(), ..raw::TxnRequest::default() }
}

fn queue(policy: i32) -> v1::op::Op {
    v1::op::Op::PutQueue(v1::Queue { meta: Some(meta("", "evil")), policy, ..v1::Queue::default() })
}

#[test]
fn what_readers_cannot_read_is_refused_by_the_path_of_its_field() {
    assert_eq!(readable(&txn([queue(1), queue(2)])), Ok(()));
    let refusal = readable(&txn([queue(1), queue(7)])).unwrap_err();
    assert_eq!((refusal.reason, refusal.index), (RefusalReason::Invalid, 1));
    assert!(refusal.message.starts_with("ops[1].put_queue.policy: 7 is"), "{}", refusal.message);
    let torn = vec![Bytes::from_static(&[0x3a, 0x02, 0x0a, 0x05])];
    let refusal = readable(&raw::TxnRequest { ops: torn, ..raw::TxnRequest::default() }).unwrap_err();
    assert!(refusal.message.starts_with("ops[0].put_queue: "), "{}", refusal.message);
}

fn meta(namespace: &str, name: &str) -> v1::ObjectMeta {
    v1::ObjectMeta {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: "0190b0a4-0000-7000-8000-000000000001".to_owned(),
        labels: [("k".to_owned(), "v".to_owned())].into(),
        owner: "o".to_owned(),
        ..v1::ObjectMeta::default()
    }
}

fn resources() -> v1::Resources {
    v1::Resources { amounts: [("cpu".to_owned(), 5)].into() }
}

fn taint() -> v1::Taint {
    v1::Taint { key: "k".to_owned(), value: "v".to_owned(), effect: 1, added_time_ms: 0 }
}

fn device() -> v1::Device {
    v1::Device { kind: "gpu".to_owned(), model: "A".to_owned(), numa_zone: 0, details: None }
}

fn zone() -> v1::Zone {
    v1::Zone {
        kind: "numa".to_owned(),
        parent: None,
        capacity: Some(resources()),
        cpus: vec![0, 1],
        threads_per_core: 2,
    }
}

fn profile() -> v1::DeviceProfile {
    let (kind, model, name) = ("gpu".to_owned(), "A".to_owned(), "1g".to_owned());
    v1::DeviceProfile { kind, model, name, shapes: vec![1] }
}

fn demand() -> v1::Demand {
    let devices = v1::DeviceRequest {
        kind: "gpu".to_owned(),
        count: 1,
        milli_per_device: Some(500),
        models: vec!["A".to_owned()],
        terms: None,
    };
    v1::Demand { requests: Some(resources()), devices: vec![devices], host_ports: Vec::new(), zones: None }
}

fn standing() -> v1::Standing {
    v1::Standing {
        priority: -1,
        preemptible: true,
        min_run_ms: 5,
        min_member: 1,
        queue: "q".to_owned(),
        end: v1::RunningEnd::Never.into(),
        group_min_member: 0,
        has_master: false,
    }
}

fn unit() -> v1::UnitRecord {
    let template = v1::Template {
        demand: Some(demand()),
        node_selector: [("zone".to_owned(), "a".to_owned())].into(),
        tolerations: vec![v1::Toleration { key: "k".to_owned(), effect: 1, ..v1::Toleration::default() }],
        run: Some(v1::RunSpec { command: vec!["true".to_owned()], ..v1::RunSpec::default() }),
        ..v1::Template::default()
    };
    let group = v1::TaskGroup {
        name: "main".to_owned(),
        replicas: 2,
        template: Some(template),
        ..v1::TaskGroup::default()
    };
    let spec = v1::UnitSpec {
        meta: Some(meta("default", "u")),
        workload_class: 3,
        task_groups: vec![group],
        queue: "q".to_owned(),
        pool: 1,
        restart_policy: 1,
        profile: "least-allocated".to_owned(),
        priority_class: "gold".to_owned(),
        on_eviction: 1,
        on_below_min: 1,
        preemptible: Some(true),
        ..v1::UnitSpec::default()
    };
    let ranges = vec![v1::OrdinalRange { start: 0, end: 1 }, v1::OrdinalRange { start: 3, end: 4 }];
    let ordinals = vec![v1::OrdinalRanges { ranges }];
    let status = v1::UnitStatus { ordinals, ended: 1, ..v1::UnitStatus::default() };
    v1::UnitRecord { unit_id: 7, spec: Some(spec), status: Some(status) }
}

fn hold() -> v1::Hold {
    v1::Hold {
        hold_id: 5,
        node_id: 1,
        unit_id: 7,
        demand: Some(demand()),
        pool: 1,
        ordinals: vec![0, 1],
        incarnations: vec![0, 1],
        device_masks: vec![1, 2],
        victims: vec![v1::Victim { unit_id: 8, ordinal: 1, incarnation: 0 }],
        at_maximum: true,
        queue_victims: vec![v1::Victim { unit_id: 9, ordinal: 0, incarnation: 1 }],
        queue: "q".to_owned(),
        ..v1::Hold::default()
    }
}

/// What an agent says of its node.
fn node_report() -> v1::NodeReport {
    v1::NodeReport {
        node_id: 1,
        capacity: Some(resources()),
        zones: vec![zone()],
        profiles: vec![profile()],
        devices: vec![device()],
        ready: true,
        attributes: [("zone".to_owned(), "a".to_owned())].into(),
        max_running_units: Some(9),
        runtime: v1::NodeRuntime::Processes.into(),
        address: "node.example".to_owned(),
        trouble: "its disk is full".to_owned(),
        images_trouble: "its engine is away".to_owned(),
    }
}

/// An operation of each kind that is as it should be.
#[allow(clippy::too_many_lines, reason = "one of every kind")]
fn samples() -> Vec<v1::op::Op> {
    use v1::op::Op;
    let amount = v1::BudgetAmount { amount: Some(v1::budget_amount::Amount::Count(1)) };
    let name = || "n".to_owned();
    vec![
        Op::PutNodeSpec(v1::NodeSpec {
            node_id: 1,
            meta: Some(meta("default", "n1")),
            taints: vec![taint()],
            drain: Some(v1::NodeDrain::default()),
            quarantine: Some(v1::NodeQuarantine::default()),
            notice: Some(v1::NodeNotice::default()),
            identity_expired_since_ms: Some(1),
            ..v1::NodeSpec::default()
        }),
        Op::PutNodeReport(node_report()),
        Op::PutNodeAllocatable(v1::NodeAllocatable { node_id: 1, allocatable: Some(resources()) }),
        Op::PutNodeUsage(v1::NodeUsage {
            node_id: 1,
            reserved: Some(resources()),
            as_of_ms: 1,
            ..v1::NodeUsage::default()
        }),
        Op::PutUnit(unit()),
        Op::PutLease(v1::LeaseRecord {
            lease: "scheduler/s1".to_owned(),
            holder: "h".to_owned(),
            address: "http://a".to_owned(),
            epoch: 1,
            ttl_ms: 3_000,
        }),
        Op::PutPartition(v1::Partition {
            name: "default".to_owned(),
            mode: 1,
            schedulers: vec!["s1".to_owned()],
            node_ids: vec![1, 2],
            slots: vec![0, 0],
            ..v1::Partition::default()
        }),
        Op::PutPartitionBlock(v1::PartitionBlock { block_id: 1, slots: vec![0, 1, 2] }),
        Op::PutQueue(v1::Queue {
            meta: Some(meta("", "prod")),
            min: Some(resources()),
            max: Some(resources()),
            weight: Some(1),
            policy: 1,
            submit_owners: vec![name()],
            max_running_units: Some(3),
            owner_weights: [(name(), 2)].into(),
            max_per_owner: Some(resources()),
            am_share_milli: Some(5),
        }),
        Op::PutPriorityClass(v1::PriorityClass { name: name(), value: 1, ..v1::PriorityClass::default() }),
        Op::PutDisruptionBudget(v1::DisruptionBudget {
            name: name(),
            namespace: "default".to_owned(),
            selector: [("app".to_owned(), "web".to_owned())].into(),
            limit: Some(v1::disruption_budget::Limit::MaxUnavailable(amount)),
            ..v1::DisruptionBudget::default()
        }),
        Op::PutReservation(v1::Reservation {
            name: name(),
            namespace: "default".to_owned(),
            selector: [("app".to_owned(), "web".to_owned())].into(),
            slots: 2,
            demand: Some(demand()),
            node_selector: [("zone".to_owned(), "a".to_owned())].into(),
            ..v1::Reservation::default()
        }),
        Op::PutTaskGroup(v1::TaskGroupRecord {
            unit_id: 7,
            task_group: 1,
            group: unit().spec.unwrap_or_default().task_groups.into_iter().next(),
            ordinals: Some(v1::OrdinalRanges { ranges: vec![v1::OrdinalRange { start: 1, end: 3 }] }),
        }),
        Op::PutUnitHistory(v1::UnitHistory {
            unit_id: 7,
            namespace: "default".to_owned(),
            name: name(),
            workload_class: 3,
            phase: v1::UnitPhase::Completed.into(),
            ended: v1::UnitEnd::Deadline.into(),
            resource_seconds: [("cpu".to_owned(), 9)].into(),
            runs: Some(v1::RunHistoryColumns {
                ordinals: vec![0, 1],
                incarnations: vec![0, 2],
                phases: vec![v1::RunPhase::Succeeded.into(), v1::RunPhase::Failed.into()],
                node_ids: vec![1, 2],
                exit_codes: vec![0, 3],
                restarts: vec![0, 1],
                bound_times_ms: vec![1, 1],
                ended_times_ms: vec![2, 2],
            }),
            ..v1::UnitHistory::default()
        }),
        Op::PutHold(hold()),
        Op::PutYarnKeys(v1::YarnKeys {
            name: "nm".to_owned(),
            keys: vec![v1::YarnKey { key_id: 1, secret: vec![7; 32], from_ms: 5 }],
        }),
        Op::PutYarnApplication(v1::YarnApplication {
            application: "application_1_0001".to_owned(),
            version: 1,
            ..v1::YarnApplication::default()
        }),
        Op::PutMovement(v1::Movement {
            name: "pack-1".to_owned(),
            phase: v1::MovementPhase::Running.into(),
            moves: vec![v1::MovementMove {
                unit_id: 7,
                from_node_id: 1,
                to_node_id: 2,
                phase: v1::MovePhase::Waiting.into(),
                ..v1::MovementMove::default()
            }],
            ..v1::Movement::default()
        }),
        Op::PutMoveRate(v1::MoveRate { unit_id: 7, times_ms: vec![1, 2] }),
        Op::PutTrustRoots(v1::TrustRoots {
            name: "default".to_owned(),
            cluster: "godel-1".to_owned(),
            roots: vec![v1::TrustRoot {
                certificate: vec![7; 300],
                created_ms: 5,
                signs_from_ms: 5,
                is_leaving: false,
            }],
            person_keys: vec![v1::PersonKey { key_id: "p1".to_owned(), public_key: vec![7; 32], ends_ms: 0 }],
            store_id: 7,
            clears_identities: true,
        }),
        Op::PutSealedSigner(v1::SealedSigner {
            name: "0b".repeat(32),
            key_id: "s1".to_owned(),
            sealed: vec![7; 300],
        }),
        Op::PutIdentity(v1::IdentityRecord {
            identity: "agent/sim-*".to_owned(),
            joined_ms: 5_500,
            issued_ms: 5_000,
            ends_ms: 9_000,
            root_fingerprint: vec![7; 32],
            join_token: "k3x9".to_owned(),
            join_key_sha256: vec![7; 32],
            ..v1::IdentityRecord::default()
        }),
        Op::PutJoinToken(v1::JoinToken {
            token_id: "k3x9".to_owned(),
            secret_sha256: vec![7; 32],
            role: "agent".to_owned(),
            names: "sim-*".to_owned(),
            pool: "best-effort".to_owned(),
            created_ms: 5,
            expires_ms: 9,
            uses_left: 1,
        }),
        Op::PutPrincipal(v1::Principal {
            name: "ann".to_owned(),
            role: "user".to_owned(),
            groups: vec!["etl".to_owned()],
            namespaces: vec!["team-a".to_owned(), "team-b".to_owned()],
            queues: vec!["batch".to_owned()],
            default_namespace: "ann".to_owned(),
            created_ms: 5,
            tokens_refused_before_ms: 6_000,
        }),
        Op::PutPersonToken(v1::PersonToken {
            token_id: "k3x9".to_owned(),
            principal: "ann".to_owned(),
            created_ms: 5_000,
            ends_ms: 9_000,
            is_revoked: true,
        }),
        odd::change(),
        Op::PutPause(v1::Pause { scope: "queue/prod".to_owned(), since_ms: 1, ..v1::Pause::default() }),
        Op::Delete(v1::Delete { kind: v1::Kind::Queue.into(), key: Some(v1::Key { id: 3, name: name() }) }),
        Op::Bind(v1::Binding {
            unit_id: 7,
            demand: Some(demand()),
            pool: 1,
            ordinals: vec![0, 1],
            incarnations: vec![0, 0],
            node_ids: vec![1, 2],
            device_masks: vec![1, 1],
            standing: Some(standing()),
            ..v1::Binding::default()
        }),
        Op::Evict(v1::Eviction {
            unit_id: 7,
            ordinals: vec![0, 1],
            incarnations: vec![0, 0],
            reason: 1,
            by: "u".to_owned(),
            preemptor_id: 0,
        }),
        Op::RunStatus(statuses()),
        Op::Requeue(v1::Requeue { unit_id: 7, ordinals: vec![0, 1], incarnations: vec![1, 1], anew: false }),
        Op::ChangeTerms(v1::TermsChange { unit_id: 7, standing: Some(standing()), group_minima: vec![0, 2] }),
        Op::Compact(v1::Compaction {
            unit_id: 7,
            ordinals: vec![0, 1],
            incarnations: vec![0, 0],
            task_groups: vec![1],
        }),
    ]
}

fn statuses() -> v1::RunStatuses {
    v1::RunStatuses {
        unit_id: 7,
        ordinals: vec![0, 1],
        incarnations: vec![0, 0],
        phases: vec![2, 3],
        exit_codes: vec![0, 0],
        restarts: vec![0, 0],
        reasons: vec![0, 0],
        started_times_ms: vec![0, 0],
        ended_times_ms: vec![0, 0],
    }
}

/// Values of one kind that somebody may send.
fn values(kind: &Kind) -> Vec<Value> {
    match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => [0, -1, i32::MAX, i32::MIN].map(Value::I32).to_vec(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => [0, -1, i64::MAX, i64::MIN].map(Value::I64).to_vec(),
        Kind::Uint32 | Kind::Fixed32 => [0, 1, u32::MAX].map(Value::U32).to_vec(),
        Kind::Uint64 | Kind::Fixed64 => [0, 1, u64::MAX].map(Value::U64).to_vec(),
        Kind::Bool => [false, true].map(Value::Bool).to_vec(),
        Kind::Float | Kind::Double => vec![Value::F64(-1.0), Value::F64(f64::NAN)],
        Kind::Enum(_) => [0, 1, -1, 99, i32::MAX].map(Value::EnumNumber).to_vec(),
        Kind::String => ["", "a\u{1}b", "\u{7f}", "\u{85}"]
            .map(|text| Value::String(text.to_owned()))
            .into_iter()
            .chain([Value::String("x".repeat(MIB))])
            .collect(),
        Kind::Bytes => vec![Value::Bytes(Bytes::new()), Value::Bytes(vec![0; MIB].into())],
        Kind::Message(message) => vec![Value::Message(DynamicMessage::new(message.clone()))],
    }
}

fn map_keys(kind: &Kind) -> Vec<MapKey> {
    match kind {
        Kind::String => ["", "k", "a\u{1}b"]
            .map(|text| MapKey::String(text.to_owned()))
            .into_iter()
            .chain([MapKey::String("x".repeat(MIB))])
            .collect(),
        other => panic!("no map has keys of {other:?} yet: say here which of them are to be tried"),
    }
}

/// A message with one field changed in one way, and where.
type Mutant = (String, DynamicMessage);

fn mutants(message: &DynamicMessage, path: &str, depth: usize) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for field in message.descriptor().fields() {
        let path = format!("{path}.{}", field.name());
        let mut with = |value: Value| {
            let mut mutant = message.clone();
            mutant.set_field(&field, value);
            mutants.push((path.clone(), mutant));
        };
        if field.is_map() {
            map_values(&field).into_iter().for_each(&mut with);
        } else if field.is_list() {
            list_values(message, &field).into_iter().for_each(&mut with);
        } else {
            values(&field.kind()).into_iter().for_each(&mut with);
        }
        let mut unset = message.clone();
        unset.clear_field(&field);
        mutants.push((path.clone(), unset));
        if depth < DEPTH_MAX
            && let Kind::Message(inner) = field.kind()
            && !field.is_map()
        {
            mutants.extend(nested(message, &field, &inner, &path, depth));
        }
    }
    mutants
}

fn map_values(field: &FieldDescriptor) -> Vec<Value> {
    let Kind::Message(entry) = field.kind() else { panic!("a map is of entries") };
    let (keys, of) =
        (map_keys(&entry.map_entry_key_field().kind()), values(&entry.map_entry_value_field().kind()));
    let mut maps = vec![Value::Map(HashMap::new())];
    for key in &keys {
        maps.extend(of.iter().map(|value| Value::Map([(key.clone(), value.clone())].into())));
    }
    let many = (0..100).map(|n| (MapKey::String(format!("k{n}")), of[0].clone()));
    maps.push(Value::Map(many.collect()));
    maps
}

/// Another length than its sisters have, nothing, and each value as its first.
fn list_values(message: &DynamicMessage, field: &FieldDescriptor) -> Vec<Value> {
    let now = message.get_field(field).as_list().unwrap_or_default().to_vec();
    let of = values(&field.kind());
    let mut lists = vec![Vec::new(), now.iter().take(1).cloned().collect()];
    lists.push(now.iter().cloned().chain(of.first().cloned()).collect());
    lists.push(vec![of[0].clone(); 70]);
    for value in of {
        let mut list = now.clone();
        match list.first_mut() {
            Some(first) => *first = value,
            None => list.push(value),
        }
        lists.push(list);
    }
    lists.into_iter().map(Value::List).collect()
}

/// Mutants of the message, or of the first one of a list, in a field.
fn nested(
    message: &DynamicMessage,
    field: &FieldDescriptor,
    inner: &MessageDescriptor,
    path: &str,
    depth: usize,
) -> Vec<Mutant> {
    let now = message.get_field(field).into_owned();
    let (first, rest) = match &now {
        Value::List(list) => match list.split_first() {
            Some((Value::Message(first), rest)) => (first.clone(), rest.to_vec()),
            Some(_) | None => (DynamicMessage::new(inner.clone()), Vec::new()),
        },
        Value::Message(one) => (one.clone(), Vec::new()),
        _ => return Vec::new(),
    };
    mutants(&first, path, depth + 1)
        .into_iter()
        .map(|(path, changed)| {
            let mut mutant = message.clone();
            let changed = Value::Message(changed);
            mutant.set_field(
                field,
                match field.is_list() {
                    true => Value::List(std::iter::once(changed).chain(rest.iter().cloned()).collect()),
                    false => changed,
                },
            );
            (path, mutant)
        })
        .collect()
}

/// As state judges: before the writer, and by the parse of the writer.
fn taken(op: &Bytes) -> Result<(), String> {
    let txn = raw::TxnRequest { ops: vec![op.clone()], ..raw::TxnRequest::default() };
    readable(&txn).map_err(|refusal| refusal.message)?;
    ops::parse(op).map(|_| ()).map_err(|error| error.to_string())
}

/// As everybody reads what was taken: on the watch, and on a list.
fn read(op: &Bytes) -> Result<(), String> {
    let change = from_proto::op(op).map_err(|bad| bad.to_string())?;
    if let godel_domain::change::Change::Rows(unit, rows) = &change {
        let mut listed = RunningUnits::default();
        if let RunChange::Bind(_) = rows
            && listed.check(rows).is_ok()
        {
            listed.apply(rows, Revision(1), 1, |_, _, _| {});
        }
        let rows = v1::record::Record::Rows(ops::rows_to_proto(*unit, &listed));
        let record = v1::Record { record: Some(rows), ..v1::Record::default() };
        from_proto::check_record(&record).map_err(|bad| bad.to_string())?;
        return from_proto::record(record).map(|_| ()).map_err(|bad| bad.to_string());
    }
    let (field, payload) = raw::op_payload(op).ok_or("no payload")?;
    match i32::try_from(field).ok().and_then(|field| v1::Kind::try_from(field).ok()) {
        Some(kind) => from_proto::check_value(kind, &payload).map_err(|bad| bad.to_string()),
        // A deletion.
        None => Ok(()),
    }
}

#[test]
fn state_and_readers_accept_the_same_records() {
    let pool = DescriptorPool::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap();
    let descriptor = pool.get_message_by_name("godel.v1.Op").unwrap();
    let mut seen = Vec::new();
    for sample in samples() {
        let valid = raw::encode_op(sample);
        assert_eq!((taken(&valid), read(&valid)), (Ok(()), Ok(())));
        let message = DynamicMessage::decode(descriptor.clone(), valid.clone()).unwrap();
        let (field, inner) = message.fields().next().map(|(field, value)| (field, value.clone())).unwrap();
        let Value::Message(inner) = inner else { panic!("an operation is a message") };
        let (mut n, mut n_refused) = (0, 0);
        for (path, mutant) in mutants(&inner, field.name(), 0) {
            let mut op = DynamicMessage::new(descriptor.clone());
            op.set_field(&field, Value::Message(mutant));
            let op = Bytes::from(op.encode_to_vec());
            n += 1;
            match (taken(&op), read(&op)) {
                (Ok(()), Err(why)) => panic!("{path}: state takes what its readers refuse: {why}"),
                (Ok(()), Ok(())) => {}
                (Err(_), _) => n_refused += 1,
            }
            // And nobody stops at it, whatever it is.
            let _ = from_proto::read_op(&op);
        }
        assert!(n_refused > 0, "nothing of {} is refused", field.name());
        println!("{:>22}: {n_refused:>4} of {n:>4} refused", field.name());
        seen.push(field.number());
    }
    let missing: Vec<String> = descriptor
        .fields()
        .filter(|field| !seen.contains(&field.number()))
        .map(|field| field.name().to_owned())
        .collect();
    assert_eq!(missing, [""; 0], "operations without a sample");
}

/// The field of `Op` says the name of each in messages.
#[test]
fn every_operation_has_the_name_of_its_field() {
    let pool = DescriptorPool::decode(godel_proto::FILE_DESCRIPTOR_SET).unwrap();
    for field in pool.get_message_by_name("godel.v1.Op").unwrap().fields() {
        assert_eq!(raw::op_name(field.number()), Some(field.name()));
    }
}
