//! What a running system says of itself: metrics under the names that the documents give, and logs that machines read.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, ensure};
use godel_integration_tests::{
    cluster::Cluster,
    strict,
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};

/// By reason, and shown once something has happened for a reason.
const LATER: [&str; 4] = [
    "godel_binder_evicted_total",
    "godel_binder_gang_turns_ended_total",
    "godel_binder_holds_dropped_total",
    "godel_binder_moves_refused_total",
];

/// Metrics that everybody has.
const COMMON: [&str; 8] = [
    "godel_build_info",
    "godel_connections",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
];
/// Metrics that somebody has.
const SOMEBODYS: [&str; 4] = [
    "godel_dispatcher_scheduling_seconds",
    "godel_dispatcher_queue_wait_seconds",
    "godel_dispatcher_units_by_queue",
    "godel_agent_sessions",
];

/// Whose logs are JSON: whoever of them leads, and the others.
const JSON_LOGS: [&str; 8] =
    ["state", "dispatcher-1", "dispatcher-2", "binder-1", "binder-2", "binder-3", "scheduler-1", "agent"];

/// Names as the documents and queries write them: those of counters end in `_total`.
fn names(metrics: &str) -> BTreeSet<String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .filter_map(|line| {
            let (name, kind) = line.split_once(' ')?;
            Some(match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            })
        })
        .collect()
}

/// Words in back quotes in the documents.
fn quoted() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    let documents = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for path in documents.chain([root.join("README.md"), root.join("ARCHITECTURE.md")]) {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let words = text.split('`').skip(1).step_by(2);
        found.extend(words.map(|word| (name.clone(), word.split('{').next().unwrap_or_default().to_owned())));
    }
    found
}

/// Environment of those whose logs are read here: lines as JSON, and more of them.
pub(crate) fn json_logs() -> Vec<(&'static str, &'static str, String)> {
    let json = |process| (process, "GODEL_TELEMETRY__FORMAT", "json".to_owned());
    let debug = |process| (process, "GODEL_TELEMETRY__FILTER", "info,godel_kit=debug".to_owned());
    JSON_LOGS.iter().flat_map(|process| [json(*process), debug(*process)]).collect()
}

/// Much has happened to the cluster by then: everybody has had something to say.
pub(crate) async fn metrics_and_json_logs_have_their_documented_names(cluster: &mut Cluster) {
    let shapes = ["1x cpu=8,memory=16Gi,name=edge".to_owned()];
    let metrics = "agent.metrics_listen=127.0.0.1:0".to_owned();
    cluster.start_agent("agent-2", &shapes, &[metrics], 1).await;
    cluster.wait_ready().await;
    let n_units = cluster.api.records().await.unwrap().units.len();
    for number in 0..3 {
        let uid = uuid::Uuid::now_v7().to_string();
        let unit = unit(&format!("counted-{number}"), &uid, 1, resources(100, 16), None, 0);
        cluster.api.submit(unit).await.unwrap();
    }
    cluster.wait_all_bound(n_units + 3).await;
    let (dispatcher, binder) = (cluster.leader("dispatcher").await, cluster.leader("binder").await);

    // The dispatcher counts its units once a second.
    wait_for("units by queue", LIMIT, async || {
        let shown = names(&cluster.metrics(&dispatcher).await?);
        ensure!(shown.contains("godel_dispatcher_units_by_queue"), "{shown:?}");
        Ok(())
    })
    .await;
    let mut known = BTreeSet::new();
    for process in ["state", &dispatcher, &binder, "scheduler-1"] {
        let shown = names(&cluster.metrics(process).await.unwrap());
        for name in COMMON {
            assert!(shown.contains(name), "{process} shows no {name}");
        }
        known.extend(shown);
    }
    known.extend(names(&agent_metrics(cluster).await.unwrap()));
    for name in SOMEBODYS {
        assert!(known.contains(name), "nobody shows {name}");
    }
    let bare: BTreeSet<&str> = known
        .iter()
        .filter_map(|name| name.strip_prefix("godel_"))
        .flat_map(|name| [name, name.trim_end_matches("_total")])
        .filter(|name| name.contains('_'))
        .collect();
    for (document, word) in quoted() {
        let is_metric = ["godel_", "process_"].iter().any(|first| word.starts_with(first) && word != *first);
        assert!(
            !is_metric || is_crate(&word) || known.contains(&word) || LATER.contains(&word.as_str()),
            "{document} names {word}, which nobody shows"
        );
        // The table of a scenario's keys names them as scenarios do.
        if document != "scenarios.md" {
            assert!(
                !bare.contains(word.as_str()),
                "{document}: write `{word}` with `godel_` before it, as it is shown"
            );
        }
    }

    let mut n_lines = 0;
    for process in JSON_LOGS {
        for line in cluster.log(process).lines().filter(|line| line.starts_with('{')) {
            strict::check(line).unwrap_or_else(|error| panic!("{process}: {error}: {line}"));
            assert!(!line.contains("Some(") && !line.contains("\"None\""), "{process}: {line}");
            n_lines += 1;
        }
    }
    assert!(n_lines > 20, "{n_lines} lines");
}

/// The agent took a free port, and its log says which.
async fn agent_metrics(cluster: &Cluster) -> anyhow::Result<String> {
    let log = cluster.log("agent-2");
    let line = log.lines().find(|line| line.contains("metrics address=")).context("no address in the log")?;
    let address = line.rsplit("address=").next().context("no address")?;
    Cluster::metrics_at(address.trim().parse()?).await
}

/// Names of crates look like names of metrics.
fn is_crate(word: &str) -> bool {
    ["godel_kit", "godel_state", "godel_core", "godel_store", "godel_proto", "godel_framework"]
        .iter()
        .any(|name| word.starts_with(name))
}
