//! The trace in small, on a cluster that nothing happens to.

use std::{collections::BTreeMap, path::Path};

use godel_integration_tests::{
    cluster::{Cluster, Submission, shown},
    settings::godel_bin,
    trace::{Tasks, write_nodes},
    wait::{LIMIT, wait_for},
};

const N_TASKS: usize = 300;

/// The first check of a cluster: all that is counted is the trace.
pub(crate) async fn the_trace_in_small_is_placed_completely(cluster: &Cluster) {
    let (tasks, ledger) = (cluster.path("tasks.csv"), cluster.path("replay.ledger"));
    Tasks::first(N_TASKS).unwrap().write(&tasks).unwrap();
    replay(cluster, &tasks, &ledger);
    let records = cluster.wait_complete(&[&Submission::of_file(&ledger, N_TASKS)]).await;
    assert_eq!(records.units.len(), N_TASKS);

    let status = cluster.api.dispatcher_status().await.unwrap();
    assert_eq!(status.repairs, 0, "a healthy run needs no repair: {status:?}");
    assert_eq!(cluster.api.store_status().await.unwrap().stale_epoch_refusals, 0);
    wait_for("every scheduler's share", LIMIT, async || {
        let placed: BTreeMap<String, u64> = cluster
            .api
            .list_schedulers()
            .await?
            .into_iter()
            .map(|scheduler| (scheduler.name, scheduler.placed))
            .collect();
        let sum: u64 = placed.values().sum();
        anyhow::ensure!(sum == 300 && placed.values().all(|share| *share > 0), "{placed:?}");
        Ok(())
    })
    .await;
    cluster.wait_all_running(300).await;
}

/// `make run ARGS='--once --nodes … --tasks … --json …'`, in small.
#[test]
fn the_demo_places_the_trace_audits_and_writes_a_summary() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    write_nodes(100, &dir.path().join("nodes.csv")).unwrap();
    Tasks::first(N_TASKS).unwrap().write(&dir.path().join("tasks.csv")).unwrap();
    let output = std::process::Command::new(godel_bin())
        .args(["demo", "--once", "--nodes", &path("nodes.csv"), "--tasks", &path("tasks.csv")])
        .args(["--json", &path("summary.json"), "--data-dir", &path("data"), "--ledger", &path("ledger")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let text = shown(&output);
    for invariant in ["I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10"] {
        assert!(text.contains(invariant), "no line about {invariant}: {text}");
    }
    let summary: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("summary.json")).unwrap()).unwrap();
    assert_eq!((&summary["placed"], &summary["unplaced"]), (&N_TASKS.into(), &0.into()), "{summary}");
    assert_eq!(summary["audit"], true, "{summary}");
    for key in ["seconds", "placements_per_s", "cpu_us_per_placement", "conflicts", "gpu_allocated_pct"] {
        assert!(summary[key].is_number(), "{key}: {summary}");
    }
    assert!(summary["latency_ms"]["p99"].is_number(), "{summary}");
    assert_eq!(std::fs::read_to_string(dir.path().join("ledger")).unwrap().lines().count(), N_TASKS);
}

fn replay(cluster: &Cluster, tasks: &Path, ledger: &Path) {
    let (tasks, ledger) = (tasks.display().to_string(), ledger.display().to_string());
    let output = cluster.godel(&["trace", "replay", &tasks, "--ledger", &ledger]);
    assert!(output.status.success(), "the replay failed:\n{}", shown(&output));
}
