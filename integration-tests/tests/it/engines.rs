//! A control plane whose store moves from files to an etcd and back under load, and backups that are restored into both.
//! Everything but state goes on running.

use std::{fs, path::Path};

use anyhow::ensure;
use godel_etcd::process::{EtcdProcesses, ProcessConfig};
use godel_integration_tests::{
    cluster::{Cluster, Layout},
    wait::{LIMIT, wait_for},
};
use godel_testkit::skip;

use crate::{
    backups::{Listed, run, settled_backup, small_generations},
    kills::{AWAY, DURATION_MS, finish},
};

/// Tasks that stay through everything.
const N_STAYING: usize = 100;
/// Tasks that come meanwhile, one each few milliseconds, and end soon.
const N_MEANWHILE: usize = 300;
const INTERVAL_MS: u64 = 15;

/// A control plane, and an etcd to which its store may go.
struct Movable {
    cluster: Cluster,
    etcd: EtcdProcesses,
    _dir: tempfile::TempDir,
}

impl Movable {
    /// `None`: this machine has no etcd, and the test said so.
    async fn start() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let etcd = match EtcdProcesses::start(ProcessConfig::new(dir.path().join("etcd"))) {
            Ok(etcd) => etcd,
            Err(why) => {
                skip(why);
                return None;
            }
        };
        let layout = Layout {
            n_dispatchers: 1,
            n_schedulers: 2,
            n_binders: 2,
            settings: small_generations(),
            ..Layout::default()
        };
        let mut cluster = Cluster::start(layout).await;
        cluster.announce(AWAY);
        Some(Self { cluster, etcd, _dir: dir })
    }

    fn endpoints(&self) -> String {
        self.etcd.endpoints().join(",")
    }

    /// Starts state on a store that was made beside its own, in place of that, and waits until everything is as before.
    async fn serve(&mut self, made: &Path, engine: &str) {
        let data = self.cluster.path("state");
        fs::rename(&data, made.with_extension("before")).unwrap();
        fs::rename(made, &data).unwrap();
        let env = [
            ("GODEL_STATE__ENGINE".to_owned(), engine.to_owned()),
            ("GODEL_STATE__ETCD__ENDPOINTS".to_owned(), self.endpoints()),
        ];
        self.cluster.restart_with("state", &env);
        self.cluster.wait_ready().await;
        assert_eq!(self.cluster.api.store_status().await.unwrap().engine, engine);
    }

    /// What was listed before is listed still; there may be more.
    async fn wait_listed(&self, before: &Listed) {
        wait_for("the same lists", LIMIT, async || {
            let after = Listed::of(&self.cluster.api.records().await?);
            ensure!(after.only(before) == *before, "other lists");
            Ok(())
        })
        .await;
    }

    /// Exports a store to a file of that name, and returns the revision of the export.
    fn exported_revision(&self, store: &Path, name: &str) -> u64 {
        let (store, file) = (store.display().to_string(), self.cluster.path(name).display().to_string());
        let exported =
            run(&self.cluster, &["state", "export", &store, &file, "--etcd-endpoints", &self.endpoints()]);
        exported["revision"].as_u64().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_moves_to_an_etcd_and_back_under_load() {
    let Some(mut movable) = Movable::start().await else { return };
    let staying = movable.cluster.submit_tasks(N_STAYING, 5, 0);
    movable.cluster.wait_submitted(&staying).await;
    movable.cluster.wait_complete(&[&staying]).await;
    // From then on no row of them changes.
    movable.cluster.wait_all_running(u64::try_from(N_STAYING).unwrap()).await;
    let before = Listed::of(&movable.cluster.api.records().await.unwrap());
    let store_id = movable.cluster.api.store_status().await.unwrap().store_id;
    let mut submissions = vec![staying];
    for (source, target, name) in [("sled", "etcd", "in-etcd"), ("etcd", "sled", "in-files")] {
        let load = movable.cluster.submit_tasks(N_MEANWHILE, INTERVAL_MS, DURATION_MS);
        movable.cluster.wait_acknowledged(&load, N_MEANWHILE / 3).await;
        movable.cluster.stop("state").await;
        movable.cluster.note(&format!("moving to {target}, {} acknowledged", load.read().unwrap().len()));
        let (data, made) = (movable.cluster.path("state"), movable.cluster.path(name));
        let place = |engine: &str, dir: &Path| format!("{engine}:{}", dir.display());
        let (from, to, endpoints) = (place(source, &data), place(target, &made), movable.endpoints());
        let args = ["state", "migrate", "--from", &from, "--to", &to, "--etcd-endpoints", &endpoints];
        let moved = run(&movable.cluster, &args);
        assert_eq!(moved["store_id"].as_u64(), Some(store_id), "{moved}");
        let revision = moved["revision"].as_u64().unwrap();
        if source == "etcd" {
            // Where it was it can still be read.
            assert_eq!(movable.exported_revision(&data, "moved.export"), revision);
        }
        movable.serve(&made, target).await;
        movable.wait_listed(&before).await;
        if target == "etcd" {
            // It is read beside the state that serves it.
            let data = movable.cluster.path("state");
            assert!(movable.exported_revision(&data, "served.export") >= revision);
        }
        movable.cluster.wait_submitted(&load).await;
        submissions.push(load);
    }
    finish(&movable.cluster, &submissions).await;
    movable.wait_listed(&before).await;
    assert_eq!(movable.cluster.api.store_status().await.unwrap().store_id, store_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_are_restored_into_an_etcd_and_into_files() {
    let Some(mut movable) = Movable::start().await else { return };
    let cluster = &mut movable.cluster;
    cluster.announce(&["the store is another one", "the store was restored from a backup or truncated"]);
    let dir = cluster.path("backups").display().to_string();
    let mut submissions = Vec::new();
    for engine in ["etcd", "sled"] {
        let cluster = &mut movable.cluster;
        let submission = cluster.submit_tasks(N_STAYING, 5, 0);
        cluster.wait_submitted(&submission).await;
        submissions.push(submission);
        let ledgers: Vec<_> = submissions.iter().collect();
        cluster.wait_complete(&ledgers).await;
        cluster.wait_all_running(u64::try_from(ledgers.len() * N_STAYING).unwrap()).await;
        // The second one is made by a state whose store is in an etcd.
        let (records, backup) = settled_backup(cluster, &dir).await;
        assert_eq!(backup["kind"], "full", "{backup}");
        let old = cluster.api.store_status().await.unwrap();
        cluster.stop("state").await;
        let made = cluster.path(&format!("restored-{engine}"));
        let made_shown = made.display().to_string();
        let endpoints = movable.endpoints();
        let mut args = vec!["backup", "restore", &dir, "--data-dir", &made_shown];
        if engine == "etcd" {
            args.extend(["--etcd-endpoints", &endpoints]);
        }
        let restored = run(&movable.cluster, &args);
        assert_ne!(restored["store_id"].as_u64(), Some(old.store_id), "{restored}");
        movable.serve(&made, engine).await;
        let new = movable.cluster.api.store_status().await.unwrap();
        assert_eq!(Some(new.store_id), restored["store_id"].as_u64());
        assert!(new.revision > old.revision);
        movable.wait_listed(&Listed::of(&records)).await;
        let ledgers: Vec<_> = submissions.iter().collect();
        movable.cluster.audit(&ledgers);
    }
    finish(&movable.cluster, &submissions).await;
}
