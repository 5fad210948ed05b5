//! What an operator does with a store in etcd: check it, export it, accept a loss, remove a record.

use std::{collections::BTreeMap, path::Path};

use godel_base::ids::{Revision, StoreId};
use godel_crash::CrashPoints;
use godel_etcd::model::{EtcdModel, Faults};
use godel_proto::v1;
use godel_store::{
    Engine, Key, OpenError, SledConfig, State,
    admin::{
        AdminError, ExportReport, UnreadablePolicy, check_etcd, export_etcd, remove_etcd, restore,
        truncate_etcd,
    },
    identity,
    log::etcd::EtcdConfig,
    migration::migrate,
};

use super::open;
use crate::support::{Dispatcher, open_dir, partition, read_partition, unit};

fn etcd(model: &EtcdModel, dir: &Path) -> EtcdConfig {
    EtcdConfig::new(model.connect(), dir)
}

/// A store of ten commits in a backup, with ten more that the backup lacks.
async fn with_restored_backup(model: &EtcdModel, dir: &Path) {
    for generations in [1..10, 10..20] {
        let store = open(model, dir).unwrap();
        let dispatcher = Dispatcher::elect(&store).await;
        let backup = (model.dump(), model.revisions().last);
        for generation in generations.clone() {
            dispatcher.submit(&store, vec![partition("p", generation, 3_000)]).await.unwrap();
        }
        store.close().await;
        if generations.start == 10 {
            model.restore(backup.0, backup.1);
            model.set_cluster(99);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_is_accepted_makes_another_store() {
    let (model, dir) = (EtcdModel::new(1), tempfile::tempdir().unwrap());
    with_restored_backup(&model, dir.path()).await;
    let report = check_etcd(&etcd(&model, dir.path()), &|_| Ok(())).unwrap();
    // Two leases and nine commits are there, ten are not.
    assert_eq!(
        (report.revision, report.loss.map(|loss| (loss.from, loss.n_commits()))),
        (11, Some((12, Some(10))))
    );
    assert!(!report.is_ok() && report.to_string().contains("the cluster 63"), "{report}");
    let damaged = model.dump();
    let old_id = report.store_id;
    let report = truncate_etcd(&etcd(&model, dir.path())).unwrap();
    assert_eq!((report.recovered, report.loss.n_commits()), (11, Some(10)));
    assert_eq!(report.kept_in, Path::new("godel/00000000/"));
    // The damaged one stays as it was.
    let kept: Vec<_> =
        model.dump().into_iter().filter(|(key, _)| key.starts_with(b"godel/00000000/")).collect();
    assert_eq!(kept.len() + 1, damaged.len());
    assert!(kept.iter().all(|entry| damaged.contains(entry)));
    let checked = check_etcd(&etcd(&model, dir.path()), &|_| Ok(())).unwrap();
    assert!(checked.is_ok() && checked.store_id != old_id, "{checked}");
    let again = truncate_etcd(&etcd(&model, dir.path())).unwrap_err();
    assert!(matches!(again, AdminError::NotDamaged { .. }), "{again:?}");
    let store = open(&model, dir.path()).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(9));
    assert!(store.read(State::revision).0 > 1 << 40, "no revision is given twice");
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 30, 100)]).await.unwrap();
    store.close().await;
    assert_eq!(read_partition(&open(&model, dir.path()).unwrap(), "p"), Some(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_that_is_cut_off_is_made_again() {
    let (mut n_cut, mut n_whole) = (0, 0);
    for seed in 0..20 {
        let (model, dir) = (EtcdModel::new(seed), tempfile::tempdir().unwrap());
        with_restored_backup(&model, dir.path()).await;
        for _ in 0..200 {
            model.set_faults(Faults { held: 0, outage: 60, ..Faults::many() });
            let session = model.connect();
            let repaired = truncate_etcd(&EtcdConfig::new(session.clone(), dir.path()));
            session.cut();
            match repaired {
                Ok(report) => {
                    assert_eq!(report.recovered % (1 << 40), 11);
                    n_whole += 1;
                    break;
                }
                // The one before was whole, and nobody had heard of it.
                Err(AdminError::NotDamaged { .. }) => break,
                Err(AdminError::Open(OpenError::Log(_))) => n_cut += 1,
                Err(error) => panic!("seed {seed}: {error:?}"),
            }
        }
        model.set_faults(Faults::default());
        model.settle();
        let store = open(&model, dir.path()).unwrap();
        assert_eq!(read_partition(&store, "p"), Some(9), "seed {seed}");
        store.close().await;
    }
    assert!(n_cut > 3 && n_whole > 3, "{n_cut} cut off, {n_whole} whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_store_is_checked_and_fenced_off_by_a_removal() {
    let (model, dir, other) = (EtcdModel::new(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(&model, dir.path()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 1, 100)]).await.unwrap();
    let report = check_etcd(&etcd(&model, dir.path()), &|_| Ok(())).unwrap();
    assert!(report.is_ok() && report.revision == 2, "{report}");
    dispatcher.submit(&store, vec![partition("p", 2, 100)]).await.unwrap();
    let key = Key::Name("p".into());
    let removed = remove_etcd(&etcd(&model, other.path()), v1::Kind::Partition, &key, 0).unwrap();
    assert_eq!(removed.revision, 4);
    assert!(dispatcher.submit(&store, vec![partition("p", 3, 100)]).await.is_err());
    drop(store);
    assert_eq!(read_partition(&open(&model, dir.path()).unwrap(), "p"), None);
}

/// Checks that a restore of an export gives `state`, as another store.
fn assert_exported(file: &Path, to: &Path, state: &State, report: &ExportReport) {
    assert_eq!((report.revision, report.store_id), (state.revision().0, state.store_id().0));
    let restored = restore(file, to, &|_| Ok(()), UnreadablePolicy::Refuse).unwrap();
    let mut expected = state.clone();
    identity::renew_as(&mut expected, StoreId(restored.store_id));
    assert!(open_dir(to).unwrap().read(|found| *found == expected), "revision {}", report.revision);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_exported_while_it_is_served_and_once_it_has_moved() {
    let (model, dir, files) = (EtcdModel::new(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = |name: String| files.path().join(name);
    let config = etcd(&model, dir.path());
    let none = export_etcd(&config, &file("none".to_owned())).unwrap_err();
    assert!(matches!(&none, AdminError::NoStoreAt { place } if place.starts_with("etcd:")), "{none:?}");
    let store = open(&model, dir.path()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    let mut states = BTreeMap::new();
    for round in 0..6_u64 {
        let begun = store.status().revision;
        states.insert(begun.0, store.read(State::clone));
        let (config, to) = (etcd(&model, dir.path()), file(format!("served-{round}")));
        let exported = tokio::task::spawn_blocking(move || export_etcd(&config, &to));
        // Generations come and go meanwhile.
        for id in round * 60 + 1..=round * 60 + 60 {
            let ops = vec![unit(id), partition(&format!("p{}", id % 5), id, 3_000)];
            let committed = dispatcher.submit(&store, ops).await.unwrap();
            states.insert(committed.revision.0, store.read(State::clone));
        }
        let report = exported.await.unwrap().unwrap();
        assert!(report.revision >= begun.0, "{report:?} lacks what was acknowledged up to {begun}");
        let to = file(format!("restored-{round}"));
        assert_exported(&file(format!("served-{round}")), &to, &states[&report.revision], &report);
    }
    // On a slow machine the first snapshots are still being written.
    while store.status().floor == Revision(1) {
        dispatcher.submit(&store, vec![partition("p", 1, 3_000)]).await.unwrap();
    }
    let state = store.read(State::clone);
    store.close().await;
    let target = Engine::Sled(SledConfig::new(file("moved".to_owned())));
    migrate(&Engine::Etcd(config.clone()), &target, &CrashPoints::default()).unwrap();
    assert!(matches!(open(&model, dir.path()), Err(OpenError::Moved { .. })));
    let report = export_etcd(&config, &file("moved-1".to_owned())).unwrap();
    assert_exported(&file("moved-1".to_owned()), &file("restored".to_owned()), &state, &report);
    let again = export_etcd(&config, &file("moved-1".to_owned())).unwrap_err();
    assert!(matches!(again, AdminError::Exists { .. }), "{again:?}");
    let checked = check_etcd(&config, &|_| Ok(())).unwrap();
    assert!(checked.is_ok() && checked.to_string().contains("note: it was moved to sled:"), "{checked}");
}
