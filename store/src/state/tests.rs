//! Tables of who may write what and when, and transactions against a naive model.

use godel_crash::CrashPoints;
use godel_proto::{raw, v1};
use godel_wire::{TXN_BYTES_MAX, ops};
use proptest::prelude::*;

use super::*;
use crate::{
    log::{
        End, Log as _, SnapshotPart,
        memory::{MemoryDisk, MemoryLog},
    },
    role::Role,
    snapshot::SnapshotWriter,
};
mod changes;
mod conditions;
mod model;
mod pair;
mod writes;
use pair::{Pair, reason};
use writes::{
    IDENTITIES, bind, compact, delete, delete_named, evict, internal, leased, op, put_allocatable, put_block,
    put_change, put_class, put_identity, put_join_token, put_lease, put_node, put_partition,
    put_person_token, put_principal, put_queue, put_report, put_signer, put_task_group, put_trust_roots,
    put_unit, requeue, status, terms,
};

#[test]
fn each_record_has_one_writer() {
    type Ops = (&'static str, fn() -> Bytes);
    const DISPATCHERS: [&str; 12] = [
        "task group",
        "unit",
        "terms",
        "delete unit",
        "partition",
        "partition block",
        "delete partition block",
        "queue",
        "delete queue",
        "priority class",
        "delete priority class",
        "pause",
    ];
    let ops: [Ops; 36] = [
        ("task group", || put_task_group(1, 1)),
        ("unit", || put_unit(3)),
        ("terms", || terms(1, "prod")),
        ("delete unit", || delete(v1::Kind::Unit, 2)),
        ("partition", || put_partition(1)),
        ("partition block", || put_block(1, 7)),
        ("delete partition block", || delete(v1::Kind::PartitionBlock, 2)),
        ("queue", || put_queue("prod", 1)),
        ("delete queue", || delete_named(v1::Kind::Queue, "prod")),
        ("priority class", || put_class("gold", 7)),
        ("delete priority class", || delete_named(v1::Kind::PriorityClass, "gold")),
        ("pause", || op(v1::op::Op::PutPause(v1::Pause { scope: "all".into(), ..Default::default() }))),
        ("keys of YARN", || {
            let key = v1::YarnKey { key_id: 1, secret: vec![7; 32], from_ms: 5 };
            op(v1::op::Op::PutYarnKeys(v1::YarnKeys { name: "nm".into(), keys: vec![key] }))
        }),
        ("application of YARN", || {
            let application = "application_1_0001".into();
            op(v1::op::Op::PutYarnApplication(v1::YarnApplication { application, ..Default::default() }))
        }),
        ("movement", || {
            let phase = v1::MovementPhase::Done.into();
            op(v1::op::Op::PutMovement(v1::Movement { name: "m-1".into(), phase, ..Default::default() }))
        }),
        ("move rate", || op(v1::op::Op::PutMoveRate(v1::MoveRate { unit_id: 1, times_ms: vec![1] }))),
        ("allocatable", || put_allocatable(1)),
        ("bind", || bind(1, &[0], 0, 1)),
        ("evict", || evict(2, 7, 0)),
        ("requeue", || requeue(2, 7, 1)),
        ("report", || put_report(1)),
        ("status", || status(1, 0, 0, v1::RunPhase::Running)),
        ("new node", || put_node(3)),
        ("old node", || put_node(1)),
        ("delete node", || delete(v1::Kind::NodeSpec, 2)),
        ("lease", || put_lease("scheduler/s", "s", 1)),
        ("trust roots", put_trust_roots),
        ("sealed signer", put_signer),
        ("identity", || put_identity("agent/n2")),
        ("join token", || put_join_token("t2")),
        ("principal", || put_principal("ann")),
        ("token of a person", || put_person_token("t3")),
        ("change", || put_change(7)),
        ("delete identity", || delete_named(v1::Kind::Identity, "agent/n1")),
        ("delete join token", || delete_named(v1::Kind::JoinToken, "t1")),
        ("delete sealed signer", || delete_named(v1::Kind::SealedSigner, "default")),
    ];
    let may: [(&str, &[&str]); 9] = [
        ("dispatcher", &DISPATCHERS),
        ("binder", &["allocatable", "bind", "evict", "requeue"]),
        ("yarn", &["keys of YARN", "application of YARN"]),
        ("rescheduler", &["movement", "move rate"]),
        ("agent", &["report", "status", "new node"]),
        ("admin", &["new node", "old node", "delete node"]),
        ("state", &["lease"]),
        ("identities", &IDENTITIES),
        ("changes", &["change"]),
    ];
    for (who, allowed) in may {
        for (what, op) in ops {
            let mut pair = Pair::populated();
            let result = match who {
                "agent" => pair.run(Role::Agent, internal(vec![op()])),
                "admin" => pair.run(Role::Admin, internal(vec![op()])),
                "state" => pair.run(Role::State, internal(vec![op()])),
                "identities" => pair.run(Role::Identities, internal(vec![op()])),
                "changes" => pair.run(Role::Changes, internal(vec![op()])),
                lease => pair.by(lease, vec![op()]),
            };
            let forbidden = reason(result) == Some(RefusalReason::Forbidden);
            assert_eq!(!forbidden, allowed.contains(&what), "{who}: {what}");
        }
    }
    let mut pair = Pair::populated();
    pair.ok(Role::State, internal(vec![put_lease("scheduler/s", "s", 1)]));
    assert_eq!(reason(pair.by("scheduler/s", vec![put_unit(3)])), Some(RefusalReason::Forbidden));
    let lease = delete_named(v1::Kind::Lease, "binder");
    assert_eq!(reason(pair.run(Role::State, internal(vec![lease]))), Some(RefusalReason::Forbidden));
}

#[test]
fn changed_terms_leave_rows_as_they_are() {
    let mut pair = Pair::populated();
    pair.by("dispatcher", vec![terms(2, "b")]).unwrap();
    assert!(pair.head.rows().get(UnitId(2)).is_none(), "nothing of it was bound");
    pair.by("binder", vec![bind(1, &[0], 0, 1)]).unwrap();
    let rows = |pair: &Pair| {
        (pair.head.rows().get(UnitId(1)).unwrap().clone(), pair.head.rows().revision(UnitId(1)))
    };
    let (bound, revision) = rows(&pair);
    // A later operation of the transaction is refused: the terms are taken back, which the pair checks.
    let refused = pair.by("dispatcher", vec![terms(1, "b"), delete(v1::Kind::Unit, 9)]);
    assert_eq!(reason(refused), Some(RefusalReason::RowConflict));
    pair.by("dispatcher", vec![terms(1, "b")]).unwrap();
    let (changed, same) = rows(&pair);
    assert_eq!((changed.standing(0).unwrap().queue.as_deref(), &changed.rows), (Some("b"), &bound.rows));
    assert_eq!(same, revision);
}

#[test]
fn compacted_rows_are_gone_and_come_back_with_a_refused_transaction() {
    let mut pair = Pair::populated();
    pair.by("binder", vec![bind(1, &[0, 1, 2], 0, 1)]).unwrap();
    let refused = pair.by("dispatcher", vec![compact(1, &[1])]);
    assert_eq!(reason(refused), Some(RefusalReason::RowConflict), "it has not ended");
    for ordinal in [1, 2] {
        pair.run(Role::Agent, internal(vec![status(1, ordinal, 0, v1::RunPhase::Succeeded)])).unwrap();
    }
    assert_eq!(reason(pair.by("binder", vec![compact(1, &[1])])), Some(RefusalReason::Forbidden));
    // A later operation of the transaction is refused: the rows come back, which the pair checks.
    let refused = pair.by("dispatcher", vec![compact(1, &[1, 2]), delete(v1::Kind::Unit, 9)]);
    assert_eq!(reason(refused), Some(RefusalReason::RowConflict));
    let n_rows = pair.head.rows().n_rows();
    pair.by("dispatcher", vec![compact(1, &[1])]).unwrap();
    let rows = pair.head.rows().get(UnitId(1)).unwrap();
    assert_eq!((rows.rows.get(1), rows.rows.len(), pair.head.rows().n_rows()), (None, 2, n_rows - 1));
    assert_eq!(reason(pair.by("dispatcher", vec![compact(1, &[1])])), Some(RefusalReason::RowConflict));
    // Whoever reports it late changes nothing.
    pair.run(Role::Agent, internal(vec![status(1, 1, 0, v1::RunPhase::Failed)])).unwrap();
    assert_eq!(pair.head.rows().get(UnitId(1)).unwrap().rows.get(1), None);
}

#[test]
fn a_node_that_moves_among_20_000_writes_a_block() {
    let mut pair = Pair::populated();
    let mut ops = vec![put_partition(1)];
    ops.extend((1..=313).map(|block_id| put_block(block_id, 1)));
    pair.by("dispatcher", ops).unwrap();
    let before = pair.head.live_bytes();
    let moved = put_block(100, 2);
    assert!(moved.len() < 100, "{} bytes of 20,000 nodes", moved.len());
    let committed = pair.by("dispatcher", vec![moved]).unwrap();
    assert_eq!(pair.head.live_bytes(), before, "no other record is another one");
    let block = pair.head.record(v1::Kind::PartitionBlock, &Key::Id(100)).unwrap();
    assert_eq!(block.revision, committed.revision);
    pair.by("dispatcher", vec![delete(v1::Kind::PartitionBlock, 100)]).unwrap();
    assert!(pair.head.record(v1::Kind::PartitionBlock, &Key::Id(100)).is_none());
    assert_eq!(reason(pair.by("dispatcher", vec![put_block(0, 1)])), Some(RefusalReason::Invalid));
}

#[test]
fn a_task_group_is_a_part_of_its_unit() {
    let mut pair = Pair::populated();
    let unit = Key::Id(1);
    let record = |pair: &Pair| pair.head.record(v1::Kind::Unit, &unit).unwrap().clone();
    let before = record(&pair);
    let added = pair.by("dispatcher", vec![put_task_group(1, 1), put_task_group(1, 2)]).unwrap();
    let after = record(&pair);
    assert_eq!((after.revision, &after.value), (added.revision, &before.value), "it is not written again");
    assert_eq!(after.create_revision, before.create_revision);
    pair.by("dispatcher", vec![put_unit(12), put_task_group(12, 1)]).unwrap();
    let n_groups = |pair: &Pair, unit| pair.head.task_groups(UnitId(unit)).count();
    assert_eq!((n_groups(&pair, 1), n_groups(&pair, 2), n_groups(&pair, 12)), (2, 0, 1));
    assert_eq!(reason(pair.by("dispatcher", vec![put_task_group(7, 1)])), Some(RefusalReason::RowConflict));
    // Refused after the group was put: the unit has its revision again, as the pair compares.
    let refused = pair.by("dispatcher", vec![put_task_group(1, 3), put_task_group(7, 1)]);
    assert_eq!(reason(refused), Some(RefusalReason::RowConflict));
    let gone = pair.by("dispatcher", vec![delete_named(v1::Kind::TaskGroup, "1/2")]).unwrap();
    assert_eq!((n_groups(&pair, 1), record(&pair).revision), (1, gone.revision));
    // Refused after the deletion: every group is there again.
    let refused = pair.by("dispatcher", vec![delete(v1::Kind::Unit, 1), put_task_group(1, 9)]);
    assert_eq!(reason(refused), Some(RefusalReason::RowConflict));
    pair.by("dispatcher", vec![delete(v1::Kind::Unit, 1)]).unwrap();
    assert_eq!((n_groups(&pair, 1), n_groups(&pair, 12)), (0, 1), "they go with their unit, and no others");
}

#[test]
fn own_and_added_task_groups_of_a_unit_follow_one_another() {
    let mut pair = Pair::populated();
    let unit = |n_own: usize| {
        let groups = vec![v1::TaskGroup::default(); n_own];
        let spec = Some(v1::UnitSpec { task_groups: groups, ..Default::default() });
        raw::encode_op(v1::op::Op::PutUnit(v1::UnitRecord { unit_id: 12, spec, ..Default::default() }))
    };
    pair.by("dispatcher", vec![unit(2), put_task_group(12, 2)]).unwrap();
    for bad in [unit(3), unit(1), put_task_group(12, 1), put_task_group(12, 4)] {
        let refused = pair.by("dispatcher", vec![bad]);
        assert_eq!(reason(refused), Some(RefusalReason::Invalid));
    }
    pair.by("dispatcher", vec![unit(2), put_task_group(12, 2), put_task_group(12, 3)]).unwrap();
    assert_eq!(pair.head.misplaced_groups(UnitId(12)), None);
    // As an older version would have taken it.
    pair.by("dispatcher", vec![delete_named(v1::Kind::TaskGroup, "12/2")]).unwrap();
    let found = pair.head.misplaced_groups(UnitId(12)).unwrap();
    assert_eq!(found, "task_groups[2]: has no record");
}

#[test]
fn only_the_epoch_in_force_writes_and_epochs_never_come_back() {
    let mut pair = Pair::populated();
    let put = |epoch, sequence| leased("dispatcher", epoch, sequence, vec![put_partition(sequence)]);
    for epoch in [0, 2] {
        assert_eq!(reason(pair.run(Role::Leased, put(epoch, 50))), Some(RefusalReason::StaleEpoch));
    }
    let first = pair.ok(Role::Leased, put(1, 51));
    pair.ok(Role::State, internal(vec![put_lease("dispatcher", "", 1)]));
    assert_eq!(reason(pair.run(Role::Leased, put(1, 52))), Some(RefusalReason::StaleEpoch));
    assert_eq!(pair.ok(Role::Leased, put(1, 51)), first, "it was committed, so the answer says so");
    for (holder, epoch, granted) in
        [("d", 1, false), ("e", 1, false), ("e", 0, false), ("e", 2, true), ("f", 2, false), ("e", 2, true)]
    {
        let result = pair.run(Role::State, internal(vec![put_lease("dispatcher", holder, epoch)]));
        let expected = (!granted).then_some(RefusalReason::Invalid);
        assert_eq!(reason(result), expected, "{holder} {epoch}");
    }
    pair.ok(Role::Leased, put(2, 51));
    assert_eq!(pair.head.lease("dispatcher").map(|lease| lease.epoch), Some(2));
    assert_eq!(
        reason(pair.run(Role::Leased, internal(vec![put_partition(1)]))),
        Some(RefusalReason::Invalid)
    );
}

#[test]
fn a_repeated_sequence_returns_its_first_revision() {
    let mut pair = Pair::populated();
    let put = |sequence| leased("dispatcher", 1, sequence, vec![put_partition(sequence)]);
    let first = pair.ok(Role::Leased, put(1_000));
    let revision = pair.head.revision();
    assert_eq!(pair.ok(Role::Leased, put(1_000)), first);
    assert_eq!(pair.head.revision(), revision);
    for sequence in 1..window::WINDOW_LEN as u64 {
        pair.head.transact(put(1_000 + sequence), Role::Leased, 0).unwrap();
    }
    let repeated = pair.head.transact(put(1_000), Role::Leased, 0).unwrap();
    assert!(matches!(repeated, TxnOutcome::Repeated(committed) if committed == first), "{repeated:?}");
    pair.head.transact(put(9_000), Role::Leased, 0).unwrap();
    let forgotten = pair.head.transact(put(1_000), Role::Leased, 0).unwrap();
    assert!(matches!(forgotten, TxnOutcome::Applied(_)));
    let late = pair.head.transact(put(500), Role::Leased, 0).unwrap();
    assert!(matches!(late, TxnOutcome::Applied(_)), "sequences need not rise");
    let again = pair.head.transact(put(500), Role::Leased, 0).unwrap();
    assert!(matches!(again, TxnOutcome::Repeated(_)));
}

#[test]
fn preconditions_compare_revisions() {
    let mut pair = Pair::populated();
    let spec = pair.head.record(v1::Kind::Unit, &Key::Id(1)).unwrap().revision.0;
    let bound = pair.by("binder", vec![bind(1, &[0], 0, 1)]).unwrap().revision.0;
    let node = pair.head.record(v1::Kind::NodeSpec, &Key::Id(1)).unwrap().revision.0;
    let queue = pair.by("dispatcher", vec![put_queue("prod", 1)]).unwrap().revision.0;
    let id = |id| Some(v1::Key { id, name: String::new() });
    let name = |name: &str| Some(v1::Key { id: 0, name: name.into() });
    use RefusalReason::{Invalid, Precondition};
    let cases = [
        (v1::Kind::Unit, id(1), spec, None),
        (v1::Kind::Unit, id(1), spec + 1, Some(Precondition)),
        (v1::Kind::Unit, id(1), 0, Some(Precondition)),
        (v1::Kind::Unit, id(9), 0, None),
        (v1::Kind::Unit, id(9), 1, Some(Precondition)),
        (v1::Kind::NodeSpec, id(1), node, None),
        (v1::Kind::Rows, id(1), bound, None),
        (v1::Kind::Rows, id(1), bound - 1, Some(Precondition)),
        (v1::Kind::Rows, id(2), 0, None),
        (v1::Kind::Lease, name("binder"), 1, None),
        (v1::Kind::Partition, name("default"), 0, None),
        (v1::Kind::Partition, name(""), 0, Some(Invalid)),
        (v1::Kind::Queue, name("prod"), queue, None),
        (v1::Kind::Queue, name("prod"), 0, Some(Precondition)),
        (v1::Kind::Queue, name("test"), 0, None),
        (v1::Kind::Queue, id(1), 0, Some(Invalid)),
        (v1::Kind::PriorityClass, name("prod"), 0, None),
        (v1::Kind::Unit, id(0), 0, Some(Invalid)),
        (v1::Kind::Unit, None, 0, Some(Invalid)),
        (v1::Kind::Unspecified, id(1), 0, Some(Invalid)),
    ];
    for (sequence, (kind, key, revision, expected)) in (100u64..).zip(cases) {
        let mut txn = leased("binder", 1, sequence, vec![put_allocatable(1)]);
        txn.preconditions.push(v1::Precondition { kind: v1::Kind::Rows.into(), key: id(2), revision: 0 });
        txn.preconditions.push(v1::Precondition { kind: kind.into(), key: key.clone(), revision });
        let result = pair.run(Role::Leased, txn);
        if let Err(refusal) = &result {
            assert_eq!(refusal.index, 1);
        }
        assert_eq!(reason(result), expected, "{kind:?} {key:?} {revision}");
    }
}

#[test]
fn a_binding_rests_on_nodes_as_of_a_revision() {
    let mut pair = Pair::populated();
    let known = pair.head.revision().0;
    let changed = pair.ok(Role::Admin, internal(vec![put_node(2)])).revision.0;
    let mut sequence = 100;
    let mut run = |pair: &mut Pair, ops: Vec<Bytes>, nodes_as_of| {
        sequence += 1;
        pair.run(Role::Leased, raw::TxnRequest { nodes_as_of, ..leased("binder", 1, sequence, ops) })
    };
    let refusal = run(&mut pair, vec![bind(1, &[0], 0, 1), bind(1, &[1], 0, 2)], known).unwrap_err();
    assert_eq!((refusal.reason, refusal.index), (RefusalReason::NodeChanged, 1), "{refusal}");
    assert_eq!(refusal.revision.0, changed);
    run(&mut pair, vec![bind(1, &[0], 0, 1)], known).unwrap();
    run(&mut pair, vec![bind(1, &[1], 0, 2)], changed).unwrap();
    // What it has may be less now, or it is not ready any more.
    let reported = pair.ok(Role::Agent, internal(vec![put_report(2)])).revision.0;
    let refusal = run(&mut pair, vec![bind(1, &[3], 0, 2)], changed).unwrap_err();
    assert_eq!((refusal.reason, refusal.revision.0), (RefusalReason::NodeChanged, reported), "{refusal}");
    run(&mut pair, vec![bind(1, &[3], 0, 2)], reported).unwrap();
    run(&mut pair, vec![bind(1, &[2], 0, 2)], 0).unwrap();
}

#[test]
fn a_best_effort_binding_rests_on_the_use_of_its_nodes() {
    let mut pair = Pair::populated();
    let known = pair.head.revision().0;
    let usage = || op(v1::op::Op::PutNodeUsage(v1::NodeUsage { node_id: 1, ..Default::default() }));
    assert_eq!(reason(pair.by("binder", vec![usage()])), Some(RefusalReason::Forbidden));
    let changed = pair.ok(Role::Agent, internal(vec![usage()])).revision.0;
    let of = |pool: v1::Pool, ordinal| {
        op(v1::op::Op::Bind(v1::Binding {
            unit_id: 1,
            pool: pool.into(),
            ordinals: vec![ordinal],
            node_ids: vec![1],
            ..Default::default()
        }))
    };
    let mut sequence = 100;
    let mut run = |pair: &mut Pair, ops: Vec<Bytes>, nodes_as_of| {
        sequence += 1;
        pair.run(Role::Leased, raw::TxnRequest { nodes_as_of, ..leased("binder", 1, sequence, ops) })
    };
    let refusal = run(&mut pair, vec![of(v1::Pool::BestEffort, 0)], known).unwrap_err();
    assert_eq!((refusal.reason, refusal.revision.0), (RefusalReason::NodeChanged, changed), "{refusal}");
    run(&mut pair, vec![of(v1::Pool::Guaranteed, 0)], known).unwrap();
    run(&mut pair, vec![of(v1::Pool::BestEffort, 1)], changed).unwrap();
}

#[test]
fn a_hold_rests_on_its_node_and_keeps_it() {
    let mut pair = Pair::populated();
    let known = pair.head.revision().0;
    let hold = |id, node_id| {
        op(v1::op::Op::PutHold(v1::Hold { hold_id: id, node_id, unit_id: 1, ..Default::default() }))
    };
    let changed = pair.ok(Role::Agent, internal(vec![put_report(2)])).revision.0;
    let mut sequence = 100;
    let mut run = |pair: &mut Pair, ops: Vec<Bytes>, nodes_as_of| {
        sequence += 1;
        pair.run(Role::Leased, raw::TxnRequest { nodes_as_of, ..leased("binder", 1, sequence, ops) })
    };
    let refusal = run(&mut pair, vec![hold(1, 2)], known).unwrap_err();
    assert_eq!((refusal.reason, refusal.revision.0), (RefusalReason::NodeChanged, changed), "{refusal}");
    run(&mut pair, vec![hold(1, 1)], known).unwrap();
    run(&mut pair, vec![hold(2, 2)], changed).unwrap();
    assert_eq!(reason(run(&mut pair, vec![hold(3, 77)], changed)), Some(RefusalReason::RowConflict));
    let delete_node = || internal(vec![delete(v1::Kind::NodeSpec, 2)]);
    assert_eq!(reason(pair.run(Role::Admin, delete_node())), Some(RefusalReason::RowConflict));
    run(&mut pair, vec![delete(v1::Kind::Hold, 2)], changed).unwrap();
    pair.ok(Role::Admin, delete_node());
}

#[test]
fn ids_are_never_reused_also_after_deletion() {
    let mut pair = Pair::populated();
    pair.by("dispatcher", vec![put_unit(9)]).unwrap();
    for refused in [3, 8] {
        assert_eq!(reason(pair.by("dispatcher", vec![put_unit(refused)])), Some(RefusalReason::Invalid));
    }
    pair.by("dispatcher", vec![put_unit(1)]).unwrap();
    pair.by("dispatcher", vec![delete(v1::Kind::Unit, 9)]).unwrap();
    assert_eq!(reason(pair.by("dispatcher", vec![put_unit(9)])), Some(RefusalReason::Invalid));
    assert_eq!(pair.head.last_unit_id(), UnitId(9));
    assert_eq!(pair.head.next_node_id(), NodeId(3));
    pair.ok(Role::Admin, internal(vec![delete(v1::Kind::NodeSpec, 2)]));
    assert_eq!(reason(pair.run(Role::Agent, internal(vec![put_node(2)]))), Some(RefusalReason::Invalid));
    assert_eq!(
        reason(pair.run(Role::Agent, internal(vec![put_node(1 << 30)]))),
        Some(RefusalReason::Invalid)
    );
    pair.ok(Role::Agent, internal(vec![put_node(3), put_node(5)]));
    assert_eq!(pair.head.next_node_id(), NodeId(6));
}

#[test]
fn a_deletion_cascades_and_waits_for_live_rows() {
    let mut pair = Pair::populated();
    pair.by("binder", vec![bind(1, &[0, 1], 0, 1), put_allocatable(1)]).unwrap();
    assert_eq!(pair.head.rows().live_on_node(NodeId(1)), 2);
    let delete_unit = || vec![delete(v1::Kind::Unit, 1)];
    let delete_node = || internal(vec![delete(v1::Kind::NodeSpec, 1)]);
    assert_eq!(reason(pair.by("dispatcher", delete_unit())), Some(RefusalReason::RowConflict));
    assert_eq!(reason(pair.run(Role::Admin, delete_node())), Some(RefusalReason::RowConflict));
    let end = |ordinal| status(1, ordinal, 0, v1::RunPhase::Succeeded);
    pair.ok(Role::Agent, internal(vec![end(0), end(1)]));
    assert_eq!(pair.head.rows().live_on_node(NodeId(1)), 0);
    pair.ok(Role::Admin, delete_node());
    for kind in godel_proto::kinds::of_node() {
        assert_eq!(pair.head.record(kind, &Key::Id(1)), None, "{kind:?}");
    }
    pair.by("dispatcher", delete_unit()).unwrap();
    assert_eq!(pair.head.rows().get(UnitId(1)), None);
    assert_eq!(pair.head.rows().n_rows(), 0);
    assert_eq!(reason(pair.by("dispatcher", delete_unit())), Some(RefusalReason::RowConflict));
    assert_eq!(reason(pair.by("binder", vec![bind(1, &[0], 0, 2)])), Some(RefusalReason::RowConflict));
    assert_eq!(reason(pair.by("binder", vec![bind(2, &[0], 0, 1)])), Some(RefusalReason::RowConflict));
}

#[test]
fn names_come_back_after_deletion_as_new_records() {
    let mut pair = Pair::populated();
    let read = |pair: &Pair, kind, name: &str| {
        let record = pair.head.record(kind, &Key::Name(name.into()))?;
        Some((record.create_revision, record.revision))
    };
    let both = |weight: u32| vec![put_queue("prod", weight), put_class("gold", 7)];
    let created = pair.by("dispatcher", both(1)).unwrap().revision;
    let changed = pair.by("dispatcher", both(2)).unwrap().revision;
    let gone = || vec![delete_named(v1::Kind::Queue, "prod"), delete_named(v1::Kind::PriorityClass, "gold")];
    for (kind, name) in [(v1::Kind::Queue, "prod"), (v1::Kind::PriorityClass, "gold")] {
        assert_eq!(read(&pair, kind, name), Some((created, changed)));
        assert_eq!(pair.head.count(kind), 1);
    }
    pair.by("dispatcher", gone()).unwrap();
    assert_eq!(reason(pair.by("dispatcher", gone())), Some(RefusalReason::RowConflict));
    assert_eq!(pair.head.count(v1::Kind::Queue) + pair.head.count(v1::Kind::PriorityClass), 0);
    let again = pair.by("dispatcher", both(3)).unwrap().revision;
    assert_eq!(read(&pair, v1::Kind::Queue, "prod"), Some((again, again)));
    // A deletion that is refused behind it takes nothing away.
    let refused = pair.by("dispatcher", vec![gone().remove(0), delete_named(v1::Kind::Queue, "none")]);
    assert_eq!(reason(refused), Some(RefusalReason::RowConflict));
    assert_eq!(read(&pair, v1::Kind::Queue, "prod"), Some((again, again)));
}

#[test]
fn what_can_never_be_valid_is_named() {
    let unknown = Bytes::from_static(&[0xfa, 0x01, 0x00]);
    let cases: [(&str, Vec<Bytes>); 14] = [
        ("at least one", vec![]),
        ("ops[1]", vec![put_partition(1), unknown]),
        ("at most", vec![Bytes::from(vec![0; TXN_BYTES_MAX])]),
        ("unit_id", vec![put_unit(0)]),
        ("node_ids", vec![bind(1, &[0], 0, 0)]),
        ("ordinals", vec![bind(1, &[ops::N_ORDINALS_MAX], 0, 1)]),
        ("not an operation", vec![Bytes::from_static(b"x")]),
        ("UnitRecord does not decode", vec![Bytes::from_static(&[0x22, 0x02, 0x12, 0x50])]),
        ("rows are removed with their unit", vec![delete(v1::Kind::Rows, 1)]),
        ("ops[0].put_queue.meta.name: is required", vec![op(v1::op::Op::PutQueue(v1::Queue::default()))]),
        ("longer than 253 bytes", vec![put_queue(&"q".repeat(254), 1)]),
        ("Queue does not decode", vec![Bytes::from_static(&[0x3a, 0x02, 0x0a, 0x50])]),
        ("ops[0].put_priority_class.name: is required", vec![put_class("", 1)]),
        ("key.name: is required", vec![delete(v1::Kind::Queue, 1)]),
    ];
    for (expected, ops) in cases {
        let refusal = Pair::populated().by("dispatcher", ops).unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::Invalid, "{refusal}");
        assert!(refusal.message.contains(expected), "{refusal}");
    }
}

#[test]
fn commit_times_strictly_rise_whatever_the_clock_does() {
    let mut state = State::default();
    let mut last = 0;
    for (wall, expected) in [(100, 100), (50, 101), (101, 102), (500, 500), (-7, 501)] {
        let txn = internal(vec![put_node(1)]);
        let Ok(TxnOutcome::Applied(published)) = state.transact(txn, Role::Admin, wall) else {
            panic!("refused")
        };
        assert_eq!(published.commit.commit_time_ms, expected);
        assert!(published.commit.commit_time_ms > last);
        last = published.commit.commit_time_ms;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Transactions are accepted exactly when the naive model accepts them, change exactly what it says, and
    /// refused ones change nothing (checked by `Pair`).
    #[test]
    fn transactions_follow_the_model(txns in proptest::collection::vec(model::txn(), 1..60)) {
        let mut pair = Pair::populated();
        let mut model = model::Model::populated();
        for steps in txns {
            prop_assert_eq!(pair.steps(&steps), model.run(&steps), "{:?}", steps);
            prop_assert_eq!(&model::Model::of(&pair.head), &model);
        }
    }

    /// A snapshot taken piece by piece while transactions go on, with the log from its base replayed onto it,
    /// is the state that nobody ever took a snapshot of.
    #[test]
    fn snapshots_taken_while_transactions_go_on_are_exact(
        before in proptest::collection::vec(model::txn(), 0..30),
        meanwhile in proptest::collection::vec((model::txn(), 0..3u32), 0..40),
        piece_bytes in 1..64usize,
    ) {
        let mut pair = Pair::populated();
        for steps in before {
            pair.steps(&steps);
        }
        let base = pair.head.revision();
        let mut log = MemoryLog::open(MemoryDisk::default());
        log.put_snapshot(base, SnapshotPart::Begin(End::default())).unwrap();
        let mut snapshot = SnapshotWriter::new(base, base.0, piece_bytes);
        let mut manifest = None;
        let n_before = pair.commits.len();
        for (steps, n_pieces) in meanwhile {
            pair.steps(&steps);
            for _ in 0..n_pieces {
                if manifest.is_none() {
                    manifest = snapshot.step(&pair.head, &mut log, &CrashPoints::default()).unwrap();
                }
            }
        }
        while manifest.is_none() {
            manifest = snapshot.step(&pair.head, &mut log, &CrashPoints::default()).unwrap();
        }
        let mut loaded = crate::snapshot::load(&*log.reader(), base, &manifest.unwrap()).unwrap();
        for commit in &pair.commits[n_before..] {
            loaded.replay(commit);
        }
        prop_assert!(loaded == pair.head, "{loaded:#?}\n{:#?}", pair.head);
        prop_assert_eq!(&model::Model::of(&loaded), &model::Model::of(&pair.head));
    }
}

#[test]
fn nothing_is_lost_on_a_node_that_is_ready() {
    let mut pair = Pair::populated();
    let lost = || {
        vec![op(v1::op::Op::Evict(v1::Eviction {
            unit_id: 1,
            ordinals: vec![0],
            reason: v1::EvictionReason::NodeLost.into(),
            ..Default::default()
        }))]
    };
    let ready = |ready| {
        let report = v1::NodeReport { node_id: 1, ready, ..Default::default() };
        internal(vec![op(v1::op::Op::PutNodeReport(report))])
    };
    pair.ok(Role::Leased, leased("binder", 1, 900, vec![bind(1, &[0], 0, 1)]));
    pair.ok(Role::Agent, ready(true));
    let refusal = pair.run(Role::Leased, leased("binder", 1, 901, lost())).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::RowConflict, "{refusal:?}");
    assert!(refusal.message.contains("is ready"), "{refusal:?}");
    pair.ok(Role::Agent, ready(false));
    pair.ok(Role::Leased, leased("binder", 1, 902, lost()));
    assert_eq!(pair.head.rows().live_on_node(NodeId(1)), 0, "it was the end");
}
