use bytes::Bytes;
use godel_proto::{raw, v1};

use super::*;
use crate::{
    Key,
    feed::Published,
    role::Role,
    state::{RefusalReason, TxnOutcome, TxnRefusal},
};

fn put_lease(lease: &str, holder: &str, epoch: u64) -> Bytes {
    raw::encode_op(v1::op::Op::PutLease(v1::LeaseRecord {
        lease: lease.into(),
        holder: holder.into(),
        epoch,
        ..Default::default()
    }))
}

fn put_unit(unit_id: u64) -> Bytes {
    raw::encode_op(v1::op::Op::PutUnit(v1::UnitRecord { unit_id, ..Default::default() }))
}

fn put_queue(name: &str) -> Bytes {
    let meta = Some(v1::ObjectMeta { name: name.into(), ..Default::default() });
    raw::encode_op(v1::op::Op::PutQueue(v1::Queue { meta, ..Default::default() }))
}

fn by_state(ops: Vec<Bytes>) -> raw::TxnRequest {
    raw::TxnRequest { ops, ..raw::TxnRequest::default() }
}

fn by(epoch: u64, sequence: u64, ops: Vec<Bytes>) -> raw::TxnRequest {
    let writer = Some(v1::Writer { lease: "dispatcher".into(), epoch, sequence });
    raw::TxnRequest { writer, ops, ..raw::TxnRequest::default() }
}

fn run(state: &mut State, role: Role, txn: raw::TxnRequest) -> Result<Published, TxnRefusal> {
    match state.transact(txn, role, 7)? {
        TxnOutcome::Applied(published) => Ok(published),
        TxnOutcome::Repeated(committed) => panic!("repeated: {committed:?}"),
    }
}

/// With unit 1, and with the dispatcher's lease held under epoch 3.
fn state() -> State {
    let mut state = State::default();
    state.give_id(StoreId(77));
    run(&mut state, Role::State, by_state(vec![put_lease("dispatcher", "d", 3)])).unwrap();
    run(&mut state, Role::Leased, by(3, 1, vec![put_unit(1)])).unwrap();
    state
}

#[test]
fn the_first_commit_names_the_store_for_every_replay() {
    let mut state = State::default();
    state.give_id(StoreId(77));
    assert_eq!(state.store_id(), StoreId(0));
    run(&mut state, Role::State, by_state(vec![put_unit(1)])).unwrap_err();
    assert_eq!(state.store_id(), StoreId(0), "nothing was committed");
    let first = run(&mut state, Role::State, by_state(vec![put_lease("dispatcher", "d", 1)])).unwrap();
    let second = run(&mut state, Role::Leased, by(1, 1, vec![put_unit(1)])).unwrap();
    assert_eq!((first.commit.store_id, second.commit.store_id), (77, 0));
    let mut replayed = State::default();
    for published in [first, second] {
        replayed.replay(&Published::decode(published.encoded).unwrap());
    }
    assert_eq!(replayed.store_id(), StoreId(77));
    assert!(replayed == state);
}

#[test]
fn ids_are_random_and_exact_in_json() {
    let ids: std::collections::BTreeSet<u64> = (0..100).map(|_| new_id().0).collect();
    assert_eq!(ids.len(), 100);
    assert!(ids.iter().all(|id| *id > 0 && *id < 1 << 53));
}

#[test]
fn nothing_that_was_given_in_what_is_lost_is_given_again() {
    let exported = state();
    // The lost future: 1,000 units more, 1,000 grants more, some of them of leases that the export does not have.
    let mut lost = exported.clone();
    for epoch in 4..=1_000 {
        let leases = ["dispatcher", "scheduler/s9"].map(|lease| put_lease(lease, "x", epoch));
        run(&mut lost, Role::State, by_state(leases.to_vec())).unwrap();
        run(&mut lost, Role::Leased, by(epoch, 1, vec![put_unit(epoch)])).unwrap();
    }
    let mut restored = exported.clone();
    let id = renew(&mut restored);
    assert!(id.0 != 0 && id != exported.store_id());
    assert_eq!(restored.store_id(), id);
    assert!(restored.revision() > lost.revision());
    assert!(restored.last_unit_id() > lost.last_unit_id());
    assert!(restored.epoch_floor() > 1_000);
    assert_eq!(restored.next_node_id(), exported.next_node_id(), "node ids index dense arrays");
    // Everything that was committed is there as it was, under the revisions that it had.
    let unit = |state: &State| state.record(v1::Kind::Unit, &Key::Id(1)).cloned();
    assert_eq!(unit(&restored), unit(&exported));
    assert_eq!(restored.renewed_ms(), exported.commit_time_ms());

    // Ids of the lost future are over; the next ones are beyond.
    let floor = restored.epoch_floor();
    let lease = |restored: &mut State, name: &str, holder: &str, epoch| {
        let result = run(restored, Role::State, by_state(vec![put_lease(name, holder, epoch)]));
        result.map(|published| published.revision()).map_err(|refusal| refusal.reason)
    };
    for epoch in [3, 4, 1_000, floor] {
        assert_eq!(lease(&mut restored, "dispatcher", "d", epoch), Err(RefusalReason::Invalid), "{epoch}");
        assert_eq!(lease(&mut restored, "scheduler/s9", "x", epoch), Err(RefusalReason::Invalid), "{epoch}");
    }
    // The lease of the export may be written as over.
    let committed = lease(&mut restored, "dispatcher", "", 3).unwrap();
    assert_eq!(committed, Revision(exported.revision().0 + JUMP + 1));
    lease(&mut restored, "dispatcher", "d", floor + 1).unwrap();
    lease(&mut restored, "scheduler/s9", "x", floor + 1).unwrap();
    let used = |restored: &mut State, unit| {
        let txn = by(floor + 1, unit, vec![put_unit(unit)]);
        run(restored, Role::Leased, txn).map(|_| ()).map_err(|refusal| refusal.reason)
    };
    assert_eq!(used(&mut restored, 500), Err(RefusalReason::Invalid), "an id of the lost future");
    assert_eq!(used(&mut restored, JUMP + 2), Ok(()));
}

#[test]
fn a_lease_of_before_is_not_in_force_though_its_record_is_held() {
    let mut restored = state();
    renew(&mut restored);
    let refusal = run(&mut restored, Role::Leased, by(3, 2, vec![put_unit(JUMP + 2)])).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::StaleEpoch);
    // What was committed before the export was committed.
    let again = restored.transact(by(3, 1, vec![put_unit(1)]), Role::Leased, 7);
    assert!(matches!(again, Ok(TxnOutcome::Repeated(committed)) if committed.revision == Revision(2)));
}

#[test]
fn a_writer_of_another_store_is_refused_before_anything_else() {
    let mut state = state();
    let store = |store_id, txn| raw::TxnRequest { store_id, ..txn };
    let refused =
        |state: &mut State, txn| state.transact(txn, Role::Leased, 7).map_err(|refusal| refusal.reason);
    let repeated = by(3, 1, vec![put_unit(1)]);
    for txn in [repeated.clone(), by(3, 2, vec![put_queue("q")]), by(99, 1, vec![put_queue("q")])] {
        assert_eq!(refused(&mut state, store(78, txn)).unwrap_err(), RefusalReason::StoreChanged);
    }
    assert!(matches!(refused(&mut state, store(77, repeated)), Ok(TxnOutcome::Repeated(_))));
    assert!(refused(&mut state, store(77, by(3, 2, vec![put_queue("q")]))).is_ok());
    assert!(
        refused(&mut state, by(3, 3, vec![put_queue("q")])).is_ok(),
        "who does not say is not contradicted"
    );
}

#[test]
fn conditions_on_revisions_to_come_are_refused() {
    let mut state = state();
    let on = |revision, nodes_as_of| {
        let key = Some(v1::Key { id: 1, name: String::new() });
        let precondition = v1::Precondition { kind: v1::Kind::Unit.into(), key, revision };
        raw::TxnRequest { preconditions: vec![precondition], nodes_as_of, ..by(3, 2, vec![put_queue("q")]) }
    };
    for (revision, nodes_as_of, reason) in [
        (3, 0, RefusalReason::FutureRevision),
        (2, 3, RefusalReason::FutureRevision),
        (1, 2, RefusalReason::Precondition),
    ] {
        let refusal = run(&mut state, Role::Leased, on(revision, nodes_as_of)).unwrap_err();
        assert_eq!(refusal.reason, reason, "{revision} {nodes_as_of}");
        assert_eq!(refusal.revision, Revision(2));
    }
    assert!(run(&mut state, Role::Leased, on(2, 2)).is_ok());
}
