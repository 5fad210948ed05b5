//! Calls, and what becomes of them while members are killed and paused.

use std::{
    sync::{Arc, mpsc::sync_channel},
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_etcd::{
    CallError, Client, ClientConfig, Compare, Etcd, Op, RangeRequest, Request, TxnRequest, prefix_end,
    process::{EtcdProcesses, ProcessConfig},
};
use godel_testkit::skip;

/// Longest that a test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster in a new directory; `None`: this machine has no etcd, and the test said so.
pub(crate) fn start(change: impl FnOnce(&mut ProcessConfig)) -> Option<(EtcdProcesses, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ProcessConfig::new(dir.path().join("etcd"));
    change(&mut config);
    match EtcdProcesses::start(config) {
        Ok(processes) => Some((processes, dir)),
        Err(why) => {
            skip(why);
            None
        }
    }
}

fn put(key: &str, value: &str) -> TxnRequest {
    let key = Bytes::from(key.to_owned());
    TxnRequest {
        compares: vec![Compare::Absent(key.clone())],
        ops: vec![Op::Put(key.clone(), Bytes::from(value.to_owned()))],
        reads: vec![key],
    }
}

fn all(limit: u32) -> RangeRequest {
    RangeRequest { from: "k".into(), to: prefix_end(b"k"), limit, keys_only: false }
}

/// Puts a key until it is known to be there.
pub(crate) fn put_until_known(etcd: &dyn Etcd, key: &str) {
    let start = Instant::now();
    loop {
        match etcd.txn(put(key, "v")) {
            Ok(reply) => {
                assert!(reply.succeeded || reply.reads[0].is_some());
                return;
            }
            Err(CallError::Refused(why)) => panic!("{why}"),
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

#[test]
fn transactions_and_pages_are_those_of_etcd() {
    let Some((processes, _dir)) = start(|_| {}) else { return };
    let etcd = processes.client(Duration::from_secs(5));
    for n in 0..10 {
        let reply = etcd.txn(put(&format!("k{n}"), &format!("v{n}"))).unwrap();
        assert!(reply.succeeded && reply.header.cluster > 0);
    }
    let again = etcd.txn(put("k3", "other")).unwrap();
    assert!(!again.succeeded);
    let entry = again.reads[0].clone().unwrap();
    assert_eq!((&entry.key[..], &entry.value[..]), (&b"k3"[..], &b"v3"[..]));
    let page = etcd.range(all(4)).unwrap();
    assert!(page.has_more && page.entries.len() == 4);
    let guard = |revision| TxnRequest {
        compares: vec![
            Compare::CreatedAt(entry.key.clone(), revision),
            Compare::Holds("k4".into(), "v4".into()),
        ],
        ops: vec![Op::DeleteRange("k3".into(), "k5".into())],
        reads: Vec::new(),
    };
    assert!(!etcd.txn(guard(entry.create_revision + 1)).unwrap().succeeded);
    assert!(etcd.txn(guard(entry.create_revision)).unwrap().succeeded);
    assert!(!etcd.txn(guard(entry.create_revision)).unwrap().succeeded, "it comes twice and changes nothing");
    let page = etcd.range(all(100)).unwrap();
    assert!(!page.has_more && page.entries.len() == 8);
    let sizes = etcd.sizes().unwrap();
    assert!(
        sizes.db_bytes >= sizes.in_use_bytes && sizes.in_use_bytes > 0 && !sizes.has_no_space,
        "{sizes:?}"
    );
    assert_eq!(sizes.header.cluster, page.header.cluster);
    etcd.call(Request::Compact(page.header.revision)).unwrap();
    assert_eq!(etcd.call(Request::Compact(page.header.revision)), Err(CallError::Compacted));
}

#[test]
fn an_etcd_that_is_away_is_known_as_such_and_found_again() {
    let Some((mut processes, _dir)) = start(|_| {}) else { return };
    let etcd = processes.client(Duration::from_millis(500));
    put_until_known(&*etcd, "k0");
    processes.kill(0);
    // The first call may find the connection broken; later ones find nobody, and surely were not made.
    let _ = etcd.txn(put("k1", "v"));
    let error = etcd.txn(put("k1", "v")).unwrap_err();
    assert!(error.is_surely_not_done() && error.to_string().contains("127.0.0.1"), "{error}");
    assert!(etcd.range(all(10)).is_err());
    processes.restart(0).unwrap();
    put_until_known(&*etcd, "k1");
    processes.pause(0);
    let error = etcd.txn(put("k2", "v")).unwrap_err();
    assert!(!error.is_surely_not_done(), "it may be made once the member goes on: {error}");
    processes.resume(0);
    put_until_known(&*etcd, "k2");
    assert_eq!(etcd.range(all(10)).unwrap().entries.len(), 3);
}

#[test]
fn a_member_that_is_killed_or_paused_is_left_for_another_one() {
    let Some((mut processes, _dir)) = start(|config| config.n_members = 3) else { return };
    let etcd = processes.client(Duration::from_secs(2));
    for (round, member) in (0..6).zip([0, 1, 2].into_iter().cycle()) {
        put_until_known(&*etcd, &format!("k{round}-before"));
        if round % 2 == 0 {
            processes.kill(member)
        } else {
            processes.pause(member)
        }
        put_until_known(&*etcd, &format!("k{round}-without"));
        if round % 2 == 0 { processes.restart(member).unwrap() } else { processes.resume(member) }
    }
    // Without a quorum nothing is made; with one everything goes on.
    processes.kill(0);
    processes.kill(1);
    assert!(etcd.txn(put("k-alone", "v")).is_err() && etcd.range(all(1)).is_err());
    processes.restart(0).unwrap();
    put_until_known(&*etcd, "k-again");
    let keys = etcd.range(all(100)).unwrap().entries.len();
    assert!((13..=14).contains(&keys), "each key once: {keys}");
}

#[test]
fn endpoints_of_two_clusters_are_refused() {
    let Some((one, _dir)) = start(|_| {}) else { return };
    let Some((other, _dir)) = start(|config| config.args.push("--initial-cluster-token=other".to_owned()))
    else {
        return;
    };
    let endpoints = [one.endpoints(), other.endpoints()].concat();
    let config = ClientConfig { endpoints, timeout: Duration::from_secs(5), tls: None, user: None };
    let client: Arc<dyn Etcd> = Arc::new(Client::start(&config).unwrap());
    let error = client.sizes().unwrap_err();
    assert!(matches!(&error, CallError::Refused(why) if why.contains("one cluster only")), "{error}");
}

#[test]
fn answers_come_also_without_waiting_and_when_the_client_ends() {
    let Some((processes, _dir)) = start(|_| {}) else { return };
    let etcd = processes.client(Duration::from_secs(5));
    let submit = |key: &str, delay| {
        let (sender, receiver) = sync_channel(1);
        etcd.submit(
            Request::Txn(put(key, "v")),
            delay,
            Box::new(move |outcome| sender.send(outcome).unwrap()),
        );
        receiver
    };
    let (later, now) = (submit("k1", Duration::from_millis(50)), submit("k2", Duration::ZERO));
    assert!(now.recv_timeout(PATIENCE).unwrap().is_ok());
    assert!(later.recv_timeout(PATIENCE).unwrap().is_ok());
    let never = submit("k3", PATIENCE);
    drop(etcd);
    assert!(never.recv_timeout(PATIENCE).is_err(), "its answer is dropped with the client");
}
