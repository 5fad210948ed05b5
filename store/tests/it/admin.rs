//! Check, export and restore of closed stores.

use godel_base::ids::{Revision, StoreId};
use godel_proto::{
    raw,
    v1::{self, op::Op},
};
use godel_store::{
    RefusalReason, Role, Store,
    admin::{AdminError, UnreadablePolicy, check, export, restore},
    identity,
};
use prost::Message as _;

use crate::support::{
    Dispatcher, internal, node, open_dir, partition, priority_class, queue, read_partition, unit,
};

async fn fill(store: &Store) {
    let dispatcher = Dispatcher::elect(store).await;
    store.submit(internal(vec![node(1), node(2)]), Role::Admin).await.unwrap();
    dispatcher.submit(store, vec![queue("prod", 1), queue("prod.search", 2)]).await.unwrap();
    dispatcher.submit(store, vec![priority_class("gold", 7)]).await.unwrap();
    for id in 1..=150 {
        let ops = vec![unit(id), partition(&format!("p{}", id % 9), id, 2_000)];
        dispatcher.submit(store, ops).await.unwrap();
    }
}

#[tokio::test]
async fn an_export_restores_to_the_same_state_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, file) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("state.export"));
    let store = open_dir(&from).unwrap();
    fill(&store).await;
    let state = store.read(|state| state.clone());
    assert!(matches!(export(&from, &file), Err(AdminError::Open(_))), "the store is in use");
    assert!(!file.exists());
    drop(store);
    let report = export(&from, &file).unwrap();
    assert_eq!(report.revision, state.revision().0);
    assert_eq!(report.bytes, std::fs::metadata(&file).unwrap().len());
    let restored = restore(&file, &to, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
    assert_eq!(restored.bytes, report.bytes);
    assert!(restored.revision > report.revision && restored.store_id != report.store_id);
    let mut renewed = state.clone();
    identity::renew_as(&mut renewed, StoreId(restored.store_id));
    assert!(matches!(
        restore(&file, &to, &|_| Ok(()), UnreadablePolicy::Refuse),
        Err(AdminError::NotEmpty { .. })
    ));
    for (dir, state) in [(&from, &state), (&to, &renewed)] {
        let report = check(dir, &|_| Ok(())).unwrap();
        assert!(report.is_ok());
        for (kind, count) in [("KIND_UNIT", 150), ("KIND_QUEUE", 2), ("KIND_PRIORITY_CLASS", 1)] {
            assert!(report.records.contains(&(kind, count)), "{report}");
        }
        let store = open_dir(dir).unwrap();
        assert!(store.read(|found| found == state));
        assert_eq!(report.store_id, store.status().store_id);
        store.close().await;
    }
    let store = open_dir(&to).unwrap();
    assert_eq!(store.status().floor, Revision(restored.revision + 1));
    let dispatcher = Dispatcher::elect(&store).await;
    let refused = dispatcher.submit(&store, vec![unit(151)]).await.unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Invalid, "it may have been given in what is lost");
    dispatcher.submit(&store, vec![unit(renewed.last_unit_id().0 + 1)]).await.unwrap();
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// A restore goes on signing with the same `pki/seal.key`: what signs is in an export, as it was sealed.
#[tokio::test]
async fn an_export_holds_what_signs_in_its_sealed_form_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to, file) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("state.export"));
    let signer =
        v1::SealedSigner { name: "default".to_owned(), key_id: "s1".to_owned(), sealed: (0..200).collect() };
    let token = v1::JoinToken {
        token_id: "t1".to_owned(),
        secret_sha256: vec![9; 32],
        role: "agent".to_owned(),
        ..v1::JoinToken::default()
    };
    let store = open_dir(&from).unwrap();
    let ops = [Op::PutSealedSigner(signer.clone()), Op::PutJoinToken(token)].map(raw::encode_op);
    store.submit(internal(ops.to_vec()), Role::Identities).await.unwrap();
    store.close().await;
    export(&from, &file).unwrap();
    restore(&file, &to, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
    let restored = open_dir(&to).unwrap();
    let kinds = [v1::Kind::SealedSigner, v1::Kind::JoinToken];
    let found = restored.read(|state| {
        let values = kinds.map(|kind| state.records(kind, None).next().unwrap().1.value.clone());
        values.map(|value| value.to_vec())
    });
    assert_eq!(v1::SealedSigner::decode(&found[0][..]).unwrap(), signer);
    restored.close().await;
    let report = check(&to, &|_| Ok(())).unwrap();
    assert!(report.records.contains(&("KIND_SEALED_SIGNER", 1)), "{report}");
    // What a check says names no bytes of it.
    assert!(!format!("{report} {report:?}").contains("100, 101"));
}

#[tokio::test]
async fn a_damaged_export_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (from, file) = (dir.path().join("a"), dir.path().join("state.export"));
    let store = open_dir(&from).unwrap();
    fill(&store).await;
    store.close().await;
    export(&from, &file).unwrap();
    let good = std::fs::read(&file).unwrap();
    let mut damaged = vec![Vec::new(), good[..good.len() - 1].to_vec(), good[..good.len() / 2].to_vec()];
    for byte in [0, 15, 17, 21, 40, good.len() / 2, good.len() - 1] {
        let mut rotten = good.clone();
        rotten[byte] ^= 1;
        damaged.push(rotten);
    }
    for (idx, bytes) in damaged.into_iter().enumerate() {
        std::fs::write(&file, bytes).unwrap();
        let target = dir.path().join(format!("b{idx}"));
        let error = restore(&file, &target, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap_err();
        assert!(matches!(error, AdminError::BadExport { .. }), "{idx}: {error}");
        assert!(!target.exists());
    }
}

#[tokio::test]
async fn check_reports_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    assert!(matches!(check(&path, &|_| Ok(())), Err(AdminError::NoStore { .. })));
    let store = open_dir(&path).unwrap();
    fill(&store).await;
    let revision = store.read(|state| state.revision().0);
    let last = read_partition(&store, "p6").unwrap();
    drop(store);
    let report = check(&path, &|_| Ok(())).unwrap();
    assert!(report.is_ok(), "{report}");
    assert_eq!(report.revision, revision);
    assert!(report.generations.len() >= 2 && report.generations.iter().any(|generation| generation.complete));
    assert_eq!(report.generations.last().unwrap().last, revision);
    assert!(report.to_string().contains("the store is whole"));
    // Rot in the middle of sled's file.
    let newest = format!("gen-{:08}", newest_generation(&path));
    let db = path.join(newest).join("db");
    let good = std::fs::read(&db).unwrap();
    let mut rotten = good.clone();
    let middle = 64..good.len().min(40_000);
    rotten[middle].iter_mut().step_by(97).for_each(|byte| *byte ^= 0x55);
    std::fs::write(&db, &rotten).unwrap();
    let report = check(&path, &|_| Ok(())).unwrap();
    assert!(!report.is_ok(), "{report}");
    assert_eq!(std::fs::read(&db).unwrap(), rotten, "check changed the store");
    assert!(export(&path, &dir.path().join("export")).is_err());
    std::fs::write(&db, good).unwrap();
    let store = open_dir(&path).unwrap();
    assert_eq!(read_partition(&store, "p6"), Some(last));
}

fn newest_generation(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let numbers = entries.filter_map(|name| name.to_str()?.strip_prefix("gen-")?.parse().ok());
    numbers.max().unwrap()
}
