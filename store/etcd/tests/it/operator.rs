//! What operators do, and what they are called for: lost members, full disks, a quota that is used up.

use std::time::{Duration, Instant};

use godel_etcd::{
    CallError, Client, ClientConfig, Compare, Etcd, Op, RangeRequest, TxnRequest, prefix_end,
    process::EtcdProcesses,
};

use crate::client::{PATIENCE, put_until_known, start};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Of a member's disk: two segments of its log, and some data.
const DISK_BYTES: u64 = 512 << 20;
const QUOTA_BYTES: u64 = 16 << 20;

/// A client of one member alone.
fn client_of(processes: &EtcdProcesses, member: usize) -> Client {
    let endpoints = vec![processes.endpoints()[member].clone()];
    Client::start(&ClientConfig { endpoints, timeout: TIMEOUT, tls: None, user: None }).unwrap()
}

fn keys(etcd: &dyn Etcd) -> Result<Vec<String>, CallError> {
    let page =
        etcd.range(RangeRequest { from: "k".into(), to: prefix_end(b"k"), limit: 100, keys_only: true })?;
    Ok(page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned()).collect())
}

/// Puts large values until one is refused.
fn put_until_refused(etcd: &dyn Etcd, mut is_over: impl FnMut(&CallError) -> bool) {
    let begun = Instant::now();
    loop {
        let ops = vec![Op::Put("ballast".into(), vec![b'x'; 256 << 10].into())];
        if let Err(error) = etcd.txn(TxnRequest { ops, ..TxnRequest::default() })
            && is_over(&error)
        {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing is refused");
    }
}

#[test]
fn a_member_that_was_lost_is_replaced() {
    let Some((mut processes, _dir)) = start(|config| config.n_members = 3) else { return };
    let etcd = processes.client(TIMEOUT);
    put_until_known(&*etcd, "k0");
    let leader = processes.leader().unwrap();
    processes.lose(leader).unwrap();
    assert!(processes.has_ended(leader) && !processes.data_dir(leader).join("member").exists());
    put_until_known(&*etcd, "k1");
    assert_ne!(processes.leader(), Some(leader));
    processes.replace(leader).unwrap();
    put_until_known(&*etcd, "k2");
    let alone = client_of(&processes, leader);
    let begun = Instant::now();
    while keys(&alone).as_deref() != Ok(&["k0".to_owned(), "k1".to_owned(), "k2".to_owned()]) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", keys(&alone));
    }
    // With it there is a majority.
    processes.kill((leader + 1) % 3);
    put_until_known(&*etcd, "k3");
}

#[test]
fn a_full_disk_ends_its_member_until_there_is_room() {
    let Some((mut processes, _dir)) = start(|config| config.disk_bytes = Some(DISK_BYTES)) else { return };
    let etcd = processes.client(TIMEOUT);
    put_until_known(&*etcd, "k0");
    processes.fill_disk(0).unwrap();
    put_until_refused(&*etcd, |_| processes.has_ended(0));
    processes.free_disk(0).unwrap();
    processes.restart(0).unwrap();
    put_until_known(&*etcd, "k1");
    assert_eq!(keys(&*etcd).unwrap(), ["k0", "k1"]);
}

#[test]
fn writes_come_back_after_room_was_made() {
    let Some((processes, _dir)) = start(|config| {
        config.n_members = 3;
        config.quota_bytes = Some(QUOTA_BYTES);
    }) else {
        return;
    };
    let etcd = processes.client(TIMEOUT);
    put_until_known(&*etcd, "k0");
    put_until_refused(&*etcd, |error| *error == CallError::NoSpace);
    let put = TxnRequest {
        compares: vec![Compare::Absent("k1".into())],
        ops: vec![Op::Put("k1".into(), "v".into())],
        reads: Vec::new(),
    };
    assert_eq!(etcd.txn(put), Err(CallError::NoSpace));
    processes.free_space().unwrap();
    put_until_known(&*etcd, "k1");
    assert!(!etcd.sizes().unwrap().has_no_space);
}
