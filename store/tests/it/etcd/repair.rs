//! What an operator does with a store in etcd: check it, accept a loss, remove a record.

use std::path::Path;

use godel_etcd::model::{EtcdModel, Faults};
use godel_proto::v1;
use godel_store::{
    Key, OpenError, State,
    admin::{AdminError, check_etcd, remove_etcd, truncate_etcd},
    log::etcd::EtcdConfig,
};

use super::open;
use crate::support::{Dispatcher, partition, read_partition};

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
