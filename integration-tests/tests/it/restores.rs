//! A store that has lost its latest commits, by a restore or a truncation, while everything but state goes on running.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::kills::AWAY;
use anyhow::{Context as _, ensure};
use godel_integration_tests::{
    cluster::{Cluster, Layout, shown},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

/// A cluster whose only node is this machine.
async fn start() -> Cluster {
    let layout = Layout { n_nodes: 0, n_dispatchers: 1, n_schedulers: 2, n_binders: 2, ..Layout::default() };
    let mut cluster = Cluster::start(layout).await;
    cluster.start_agent_of_this_machine("machine", "machine", &[]).await;
    cluster.wait_ready().await;
    cluster
}

/// A unit of one running unit that says in a file when it starts and when it ends, until it is stopped. It takes a
/// moment to end.
fn service(cluster: &Cluster, name: &str) -> v1::UnitSpec {
    let file = order(cluster);
    let say = |what: &str| format!("echo {name} {what} >> {}", file.display());
    let script = format!(
        "trap 'sleep 0.3; {}; exit 0' TERM; {}; while :; do sleep 0.02; done",
        say("ended"),
        say("started")
    );
    let mut unit = unit(name, "", 1, resources(10, 1), None, 0);
    unit.workload_class = v1::WorkloadClass::Service.into();
    let run = v1::RunSpec {
        command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
        stop_grace_ms: 20_000,
        ..v1::RunSpec::default()
    };
    unit.task_groups[0].template.as_mut().unwrap().run = Some(run);
    unit
}

fn order(cluster: &Cluster) -> PathBuf {
    cluster.path("order")
}

/// What the running units have said so far.
fn said(cluster: &Cluster) -> Vec<String> {
    let text = fs::read_to_string(order(cluster)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Submits as soon as somebody takes it.
async fn submit(cluster: &Cluster, name: &str) {
    let mut unit = service(cluster, name);
    // The same one at each try.
    unit.meta.as_mut().unwrap().uid = uuid::Uuid::now_v7().to_string();
    wait_for(&format!("{name} to be taken"), LIMIT, async || {
        cluster.api.submit(unit.clone()).await.map(drop)
    })
    .await;
}

/// Units by name, with their phases, as the dispatcher lists them.
async fn units(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, v1::UnitPhase>> {
    let answer = cluster.api.units().await?.list_units(v1::ListUnitsRequest::default()).await?;
    let name = |unit: &v1::Unit| {
        unit.spec
            .as_ref()
            .and_then(|spec| spec.meta.as_ref())
            .map(|meta| meta.name.clone())
            .unwrap_or_default()
    };
    Ok(answer.into_inner().units.iter().map(|unit| (name(unit), unit.phase())).collect())
}

async fn wait_running(cluster: &Cluster, names: &[&str]) {
    wait_for(&format!("{names:?} and nothing else to run"), LIMIT, async || {
        let units = units(cluster).await?;
        ensure!(units.keys().map(String::as_str).eq(names.iter().copied()), "{units:?}");
        ensure!(units.values().all(|phase| *phase == v1::UnitPhase::Running), "{units:?}");
        let said = said(cluster);
        for name in names {
            ensure!(said.contains(&format!("{name} started")), "{said:?}");
        }
        Ok(())
    })
    .await;
}

/// What the agent says runs, by name of its unit.
async fn reported(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let records = cluster.api.records().await?;
    let request = v1::ListAgentReportsRequest {};
    let mut reports = cluster.api.state().list_agent_reports(request).await?.into_inner();
    let mut names = Vec::new();
    while let Some(report) = reports.message().await? {
        for run in report.running {
            let unit = records.units.get(&run.unit_id).context("it runs what is unknown")?;
            let meta = unit.spec.as_ref().and_then(|spec| spec.meta.clone());
            names.push(meta.unwrap_or_default().name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

async fn watch(
    cluster: &Cluster,
    from_revision: u64,
    store_id: u64,
) -> anyhow::Result<Streaming<v1::WatchUnitsResponse>> {
    let request = v1::WatchUnitsRequest { from_revision, store_id, ..v1::WatchUnitsRequest::default() };
    Ok(cluster.api.units().await?.watch_units(request).await?.into_inner())
}

fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

/// How the latest commits are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// An older export is restored.
    Restored,
    /// The log is cut off, and what is left of it is all that is to be.
    Truncated,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_store_under_running_parts_is_all_there_is() {
    let mut cluster = start().await;
    cluster.announce(AWAY);
    cluster.announce(&["the store is another one", "the store was restored from a backup or truncated"]);
    for loss in [Loss::Restored, Loss::Truncated] {
        lose_the_latest_commits(&mut cluster, loss).await;
    }
    cluster.assert_quiet();
}

/// Copies the generations of a store, which a restart goes on writing, over those in `to`.
fn copy_generations(from: &Path, to: &Path) {
    let is_generation = |path: &Path| path.is_dir() && path.to_string_lossy().contains("gen-");
    for path in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(path.file_name().unwrap());
        if is_generation(&path) {
            let _absent = fs::remove_dir_all(&target);
            fs::create_dir_all(&target).unwrap();
            for file in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
                if file.is_file() {
                    fs::copy(&file, target.join(file.file_name().unwrap())).unwrap();
                }
            }
        }
    }
}

/// Units come, the commits of some of them are lost, and one more comes: what is left runs, and is deleted for whatever comes next.
async fn lose_the_latest_commits(cluster: &mut Cluster, loss: Loss) {
    let round = format!("{loss:?}").to_lowercase();
    let named = |name: &str| format!("{name}-{round}");
    let (kept, lost_units, new) = (named("a"), ["b", "c", "d"].map(named), named("x"));
    submit(cluster, &kept).await;
    wait_running(cluster, &[&kept]).await;
    let (data, lost, export) =
        (cluster.path("state"), cluster.path(&named("lost")), cluster.path(&named("export")));
    let export = export.to_str().unwrap();
    let admin = |cluster: &Cluster, args: &[&str]| {
        let output = cluster.godel(args);
        assert!(output.status.success(), "{args:?}: {}", shown(&output));
    };
    cluster.stop("state").await;
    match loss {
        Loss::Restored => admin(cluster, &["state", "export", data.to_str().unwrap(), export]),
        Loss::Truncated => copy_generations(&data, &lost),
    }
    cluster.restart("state");
    cluster.wait_ready().await;

    // The future that is lost: further units, and another leader of the binder.
    for name in &lost_units {
        submit(cluster, name).await;
    }
    let [b, c, d] = &lost_units;
    wait_running(cluster, &[&kept, b, c, d]).await;
    let before = cluster.api.store_status().await.unwrap();
    let mut changes = watch(cluster, before.revision + 1, before.store_id).await.unwrap();
    cluster.stop("state").await;
    match loss {
        Loss::Restored => {
            fs::rename(&data, &lost).unwrap();
            admin(cluster, &["state", "restore", export, data.to_str().unwrap()]);
        }
        Loss::Truncated => {
            copy_generations(&lost, &data);
            let damaged = cluster.godel(&["state", "check", data.to_str().unwrap()]);
            assert!(!damaged.status.success() && shown(&damaged).contains("missing"), "{}", shown(&damaged));
            admin(cluster, &["state", "repair", "--truncate", data.to_str().unwrap()]);
        }
    }
    cluster.restart("state");
    cluster.note("the latest commits are lost");
    submit(cluster, &new).await;
    wait_running(cluster, &[&kept, &new]).await;
    let after = cluster.api.store_status().await.unwrap();
    assert_ne!(after.store_id, before.store_id);
    wait_for("the agent to run what there is", LIMIT, async || {
        let reported = reported(cluster).await?;
        ensure!(reported == [kept.as_str(), &new], "{reported:?}");
        Ok(())
    })
    .await;

    // What is unknown has ended before anything new has started; what was there before goes on.
    let said = said(cluster);
    let at =
        |line: &str| said.iter().position(|said| said == line).unwrap_or_else(|| panic!("{line}: {said:?}"));
    for name in &lost_units {
        assert!(at(&format!("{name} ended")) < at(&format!("{new} started")), "{said:?}");
    }
    let of_kept = format!("{kept} ");
    let said_by_kept: Vec<_> = said.iter().filter(|line| line.starts_with(&of_kept)).collect();
    assert_eq!(said_by_kept, [&format!("{kept} started")]);

    // Who watched is told, and so is who comes back with a revision of before.
    let ended = loop {
        match changes.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a watch says why it ends"),
            Err(status) => break status,
        }
    };
    // Of the leader's end, or of the other store, whichever it hears of first.
    assert!(matches!(ended.code(), Code::Unavailable | Code::OutOfRange), "{ended}");
    for (store_id, expected) in [(before.store_id, "STORE_CHANGED"), (0, "COMPACTED")] {
        let refused = match watch(cluster, before.revision + 1, store_id).await {
            Ok(mut changes) => changes.message().await.unwrap_err(),
            Err(error) => error.downcast::<Status>().unwrap(),
        };
        assert!(refused.code() == Code::OutOfRange && reason(&refused) == expected, "{refused}");
    }
    cluster.audit(&[]);
    cluster.delete_units(&[&kept, &new]);
}
