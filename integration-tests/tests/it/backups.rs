//! Backups of a control plane under load, and what is restored from them while everything but state goes on running; and a
//! store that moves and comes back.

use std::{collections::BTreeMap, fs, path::Path, process::Output};

use crate::kills::AWAY;
use anyhow::ensure;
use godel_integration_tests::{
    api::Records,
    cluster::{Cluster, Layout, shown},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use serde_json::Value;

/// Tasks that are submitted, one each few milliseconds.
const N_TASKS: usize = 400;
const INTERVAL_MS: u64 = 15;

/// Snapshots are written and history is dropped while backups are made.
pub(crate) fn small_generations() -> Vec<(String, String)> {
    let set = |key: &str, value: &str| (format!("state.{key}"), value.to_owned());
    vec![
        set("generation_bytes_min", "262144"),
        set("history_bytes_min", "524288"),
        set("history_age_min", "1s"),
    ]
}

fn succeeded(output: &Output) -> Value {
    assert!(output.status.success(), "{}", shown(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", shown(output)))
}

pub(crate) fn run(cluster: &Cluster, args: &[&str]) -> Value {
    succeeded(&cluster.godel(&[args, &["-o", "json"]].concat()))
}

/// What a list shows of units, their running units and nodes: what no session changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listed {
    units: BTreeMap<u64, v1::UnitRecord>,
    created: BTreeMap<u64, u64>,
    rows: BTreeMap<u64, v1::UnitRows>,
    nodes: Vec<u32>,
}

impl Listed {
    pub(crate) fn of(records: &Records) -> Self {
        let Records { units, created, rows, nodes, .. } = records.clone();
        Self { units, created, rows, nodes: nodes.into_keys().collect() }
    }

    /// Keeps only the units that another list has.
    pub(crate) fn only(mut self, of: &Self) -> Self {
        self.units.retain(|id, _| of.units.contains_key(id));
        self.created.retain(|id, _| of.units.contains_key(id));
        self.rows.retain(|id, _| of.units.contains_key(id));
        self
    }
}

/// The state of a cluster in which nothing changes any more, and a backup of it.
pub(crate) async fn settled_backup(cluster: &Cluster, dir: &str) -> (Records, Value) {
    wait_for("a backup of everything", LIMIT, async || {
        let before = cluster.api.records().await?;
        let backup = run(cluster, &["backup", "create", dir]);
        let after = cluster.api.records().await?;
        ensure!(Listed::of(&before) == Listed::of(&after), "units change still");
        Ok((after, backup))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_backed_up_under_load_is_restored_whole() {
    let layout = Layout {
        n_nodes: 100,
        n_dispatchers: 1,
        n_schedulers: 2,
        n_binders: 2,
        settings: small_generations(),
        ..Layout::default()
    };
    let mut cluster = Cluster::start(layout).await;
    let dir = cluster.path("backups").display().to_string();
    let submission = cluster.submit_tasks(N_TASKS, INTERVAL_MS, 0);
    let mut made = Vec::new();
    while submission.read().map_or(0, |acknowledged| acknowledged.len()) < N_TASKS {
        made.push(run(&cluster, &["backup", "create", &dir]));
    }
    cluster.wait_submitted(&submission).await;
    cluster.wait_complete(&[&submission]).await;
    // From then on no row changes.
    cluster.wait_all_running(u64::try_from(N_TASKS).unwrap()).await;
    assert!(made.len() >= 3, "{} backups under load", made.len());
    assert_eq!(made[0]["kind"], "full");
    assert!(made[1..].iter().any(|backup| backup["kind"] == "increment"), "{made:?}");
    let revision = |backup: &Value| backup["revision"].as_u64().unwrap();
    assert!(made.is_sorted_by_key(revision));
    let middle = revision(&made[made.len() / 2]);
    let (before, newest) = settled_backup(&cluster, &dir).await;
    let verified = run(&cluster, &["backup", "verify", &dir]);
    assert_eq!(verified["ok"], true, "{verified}");
    let restorable = |at: u64| {
        let ranges = verified["restorable"].as_array().unwrap();
        ranges
            .iter()
            .any(|range| (range["from"].as_u64().unwrap()..=range["to"].as_u64().unwrap()).contains(&at))
    };
    assert!(restorable(revision(&newest)), "{verified}");
    // A revision in the middle of the load is a whole store, too.
    let at = made.iter().map(revision).find(|at| *at >= middle && restorable(*at)).unwrap();
    let past = cluster.path("past").display().to_string();
    let restored = run(&cluster, &["backup", "restore", &dir, "--at", &at.to_string(), "--data-dir", &past]);
    assert_eq!(restored["restored_revision"].as_u64(), Some(at), "{restored}");
    let checked = run(&cluster, &["state", "check", &past]);
    assert_eq!(checked["ok"], true, "{checked}");

    restore_newest(&mut cluster, &dir, &before).await;
    cluster.audit(&[&submission]);
    move_there_and_back(&mut cluster).await;
    cluster.audit(&[&submission]);
    cluster.assert_quiet();
}

/// State comes back on what was restored; the lists are as they were.
async fn restore_newest(cluster: &mut Cluster, dir: &str, before: &Records) {
    cluster.announce(AWAY);
    cluster.announce(&["the store is another one", "the store was restored from a backup or truncated"]);
    let data = cluster.path("state");
    let old = cluster.api.store_status().await.unwrap();
    cluster.stop("state").await;
    fs::rename(&data, cluster.path("lost")).unwrap();
    let restored = run(cluster, &["backup", "restore", dir, "--data-dir", &data.display().to_string()]);
    assert_ne!(restored["store_id"].as_u64(), Some(old.store_id));
    cluster.restart("state");
    cluster.wait_ready().await;
    let new = cluster.api.store_status().await.unwrap();
    assert_eq!(Some(new.store_id), restored["store_id"].as_u64());
    assert!(new.revision > old.revision);
    wait_for("the same lists", LIMIT, async || {
        let after = cluster.api.records().await?;
        ensure!(Listed::of(&after) == Listed::of(before), "other lists");
        Ok(())
    })
    .await;
    // What goes on from there is another chain in the same directory.
    let full = run(cluster, &["backup", "create", dir]);
    assert_eq!((&full["kind"], &full["created"]), (&"full".into(), &true.into()), "{full}");
}

/// State moves to another directory and back: the same store, which nobody takes for another one.
async fn move_there_and_back(cluster: &mut Cluster) {
    let before = cluster.api.store_status().await.unwrap();
    let records = cluster.api.records().await.unwrap();
    let (data, other) = (cluster.path("state"), cluster.path("moved"));
    let place = |dir: &Path| format!("sled:{}", dir.display());
    cluster.stop("state").await;
    let moved = run(cluster, &["state", "migrate", "--from", &place(&data), "--to", &place(&other)]);
    assert_eq!(moved["store_id"].as_u64(), Some(before.store_id), "{moved}");
    // Where it was it is not served any more.
    cluster.announce(&["cannot be opened", "was moved to"]);
    cluster.restart("state");
    cluster.wait_ended("state").await;
    assert!(cluster.log("state").contains("was moved to sled:"), "{}", cluster.log("state"));
    let again = cluster.godel(&["state", "migrate", "--from", &place(&other), "--to", &place(&data)]);
    assert!(shown(&again).contains("is not empty"), "{}", shown(&again));
    fs::remove_dir_all(&data).unwrap();
    let back = run(cluster, &["state", "migrate", "--from", &place(&other), "--to", &place(&data)]);
    assert_eq!((&back["revision"], &back["bytes"]), (&moved["revision"], &moved["bytes"]), "{back}");
    cluster.restart("state");
    cluster.wait_ready().await;
    let after = cluster.api.store_status().await.unwrap();
    assert_eq!(after.store_id, before.store_id);
    wait_for("the same lists", LIMIT, async || {
        let found = cluster.api.records().await?;
        ensure!(Listed::of(&found) == Listed::of(&records), "other lists");
        Ok(())
    })
    .await;
}
