//! The model does what etcd does, and the faults that are drawn happen.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::{
    Compare,
    kv::{Op, RangeRequest, prefix_end},
};

fn put(key: &'static str, value: &'static str) -> TxnRequest {
    let (key, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()));
    TxnRequest {
        compares: vec![Compare::Absent(key.clone())],
        ops: vec![Op::Put(key.clone(), value)],
        reads: vec![key],
    }
}

fn all(etcd: &dyn Etcd) -> Vec<String> {
    let range =
        RangeRequest { from: Bytes::from_static(b"a"), to: prefix_end(b"z"), limit: 100, keys_only: false };
    let page = etcd.range(range).unwrap();
    page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).collect()
}

#[test]
fn transactions_are_made_whole_or_not_at_all() {
    let model = EtcdModel::new(1);
    let session = model.connect();
    let etcd: &dyn Etcd = &*session;
    assert!(etcd.txn(put("a", "1")).unwrap().succeeded);
    let again = etcd.txn(put("a", "2")).unwrap();
    assert!(!again.succeeded);
    assert_eq!(again.reads[0].as_ref().map(|entry| &entry.value[..]), Some(&b"1"[..]));
    assert_eq!(all(etcd), ["1"]);
    let revision = model.revisions().last;
    let delete = TxnRequest { ops: vec![Op::DeleteRange("a".into(), "b".into())], ..TxnRequest::default() };
    assert_eq!(etcd.txn(delete.clone()).unwrap().header.revision, revision + 1);
    assert_eq!(etcd.txn(delete).unwrap().header.revision, revision + 1, "nothing is left to change");
    let used = etcd.sizes().unwrap().in_use_bytes;
    etcd.call(Request::Compact(revision + 1)).unwrap();
    assert!(etcd.sizes().unwrap().in_use_bytes < used, "what was deleted takes room until it is compacted");
}

#[test]
fn pages_are_cut_and_go_on() {
    let model = EtcdModel::new(1);
    let session = model.connect();
    let etcd: &dyn Etcd = &*session;
    for key in ["a", "b", "c"] {
        etcd.txn(put(key, key)).unwrap();
    }
    let range = |from: &'static str, limit| RangeRequest {
        from: Bytes::from_static(from.as_bytes()),
        to: Bytes::from_static(b"z"),
        limit,
        keys_only: true,
    };
    let page = etcd.range(range("a", 2)).unwrap();
    assert!(page.has_more && page.entries.len() == 2 && page.entries[0].value.is_empty());
    assert!(!etcd.range(range("b", 2)).unwrap().has_more);
}

#[test]
fn an_alarm_refuses_what_takes_room_and_nothing_else() {
    let model = EtcdModel::new(1);
    let session = model.connect();
    let etcd: &dyn Etcd = &*session;
    etcd.txn(put("a", "1")).unwrap();
    model.set_alarm(true);
    assert_eq!(etcd.txn(put("b", "1")), Err(CallError::NoSpace));
    assert!(etcd.sizes().unwrap().has_no_space);
    let delete = TxnRequest { ops: vec![Op::Delete("a".into())], ..TxnRequest::default() };
    assert!(etcd.txn(delete).unwrap().succeeded);
    model.set_alarm(false);
    assert!(etcd.txn(put("b", "1")).unwrap().succeeded);
}

/// Without these the tests of the store would prove nothing.
#[test]
fn every_fault_happens() {
    let model = EtcdModel::new(7);
    model.set_faults(Faults::many());
    let session = model.connect();
    let etcd: &dyn Etcd = &*session;
    let (mut n_unknown, mut n_not_done, mut n_held) = (0, 0, 0);
    for n in 0..2_000_u32 {
        let key = Bytes::from(format!("k{n:05}"));
        let txn = TxnRequest { ops: vec![Op::Put(key, Bytes::new())], ..TxnRequest::default() };
        if n % 4 == 0 {
            let is_answered = Arc::new(AtomicBool::new(false));
            let answered = Arc::clone(&is_answered);
            let answer: Answer = Box::new(move |_| answered.store(true, Ordering::Relaxed));
            session.submit(Request::Txn(txn), Duration::ZERO, answer);
            n_held += u32::from(!is_answered.load(Ordering::Relaxed));
            continue;
        }
        match etcd.txn(txn) {
            Err(CallError::Unknown(_)) => n_unknown += 1,
            Err(CallError::NotDone(_)) => n_not_done += 1,
            _ => {}
        }
    }
    let happened = model.happened();
    assert!(n_unknown > 100 && n_not_done > 10 && n_held > 100, "{n_unknown} {n_not_done} {n_held}");
    assert!(happened.late_changes > 50 && happened.outages > 20 && happened.refused > 10, "{happened:?}");
    model.set_faults(Faults::default());
    model.settle();
    assert!(model.0.lock().held.is_empty() && model.0.lock().late.is_empty());
}

#[test]
fn nothing_comes_from_a_process_that_has_ended_but_what_is_under_way() {
    let model = EtcdModel::new(3);
    let session = model.connect();
    let etcd: &dyn Etcd = &*session;
    model.set_faults(Faults { late: 1_000, ..Faults::default() });
    assert!(etcd.txn(put("a", "1")).is_err());
    session.cut();
    assert!(matches!(etcd.txn(put("b", "1")), Err(CallError::NotDone(_))));
    model.set_faults(Faults::default());
    model.settle();
    assert_eq!(all(&*model.connect()), ["1"]);
}
