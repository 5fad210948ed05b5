//! `godel bench` on real processes, small.

use serde_json::Value;

use crate::{exit_code, has_no_etcd, run};

fn e2e(flags: &[&str]) -> Value {
    bench("e2e", flags)
}

/// Runs a benchmark on 20 nodes with a directory of its own; what it reports.
pub(crate) fn bench(verb: &str, flags: &[&str]) -> Value {
    bench_if_there_is_etcd(verb, flags).unwrap()
}

/// The same of one that may need an etcd; `None`: this machine has none, and the test said so.
fn bench_if_there_is_etcd(verb: &str, flags: &[&str]) -> Option<Value> {
    crate::godel();
    let dir = tempfile::tempdir().unwrap();
    let (json, data) = (dir.path().join("report.json"), dir.path().join("data"));
    let mut words = vec![verb, "--nodes", "20", "--json", json.to_str().unwrap()];
    words.extend(["--data-dir", data.to_str().unwrap()]);
    words.extend(flags);
    let output = run(&words);
    if has_no_etcd(&output) {
        return None;
    }
    assert_eq!(exit_code(&output), 0, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0, "a run that went well leaves nothing behind");
    Some(serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap())
}

#[test]
fn a_service_is_placed_measured_and_audited() {
    let report = e2e(&["--units", "4", "--replicas", "50", "--schedulers", "2", "--repeat", "2"]);
    assert_eq!((&report["workload"], &report["nodes"]), (&"service".into(), &20.into()));
    assert_eq!((&report["schedulers"], &report["placements"]), (&2.into(), &200.into()));
    assert_eq!((&report["audit"], &report["agents"]), (&true.into(), &"detached".into()));
    for field in ["seconds", "placements_per_s"] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}: {report}");
    }
    // The system counts CPU time in hundredths of a second, which so little work may not reach.
    assert!(report["cpu_us_per_placement"].is_number(), "{report}");
    let latency = |rank: &str| report["latency_ms"][rank].as_f64().unwrap();
    assert!(latency("p50") > 0.0 && latency("p50") <= latency("p90") && latency("p99") <= latency("max"));
    assert!(
        latency("max")
            <= report["runs"][0]["seconds"]
                .as_f64()
                .unwrap()
                .max(report["runs"][1]["seconds"].as_f64().unwrap())
                * 1000.0
                + 1.0
    );
    for process in ["state", "dispatcher", "binder", "s1", "s2", "load"] {
        assert!(report["cpu_s"][process].is_number(), "{process}: {report}");
        assert!(report["rss_mib"][process].as_f64().unwrap() > 0.0, "{process}: {report}");
    }
    assert!(report["bytes_written"].as_u64().is_some() && report["conflicts"].as_u64().is_some());
    assert_eq!(report["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_user_submits_over_tls_with_a_token_of_its_own() {
    let report = e2e(&["--workload", "single", "--units", "50", "--tls", "--user"]);
    assert_eq!((&report["placements"], &report["audit"]), (&50.into(), &true.into()));
}

#[test]
fn an_etcd_of_three_members_is_measured_member_by_member() {
    let flags = ["--engine", "etcd", "--members", "3", "--units", "2", "--replicas", "50"];
    let Some(report) = bench_if_there_is_etcd("e2e", &flags) else { return };
    assert_eq!((&report["engine"], &report["placements"]), (&"etcd, 3 members".into(), &100.into()));
    for process in ["state", "etcd1", "etcd2", "etcd3"] {
        assert!(report["cpu_s"][process].is_number(), "{process}: {report}");
        assert!(report["rss_mib"][process].as_f64().unwrap() > 0.0, "{process}: {report}");
    }
    assert_eq!(report["audit"], true);
}

#[test]
fn latency_is_told_before_a_snapshot_and_beside_it() {
    let flags = ["--units", "2000", "--rate", "1000", "--running-units", "1500", "--replicas", "10"];
    let report = bench("latency", &flags);
    let snapshot = &report["snapshot"];
    assert_eq!((&snapshot["running_units"], &snapshot["replicas"]), (&1500.into(), &10.into()));
    // So few may be written between two looks at the log.
    assert!(snapshot["seconds"].as_f64().unwrap() >= 0.0, "{report}");
    assert!(snapshot["before_ms"]["p99"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!((&report["placements"], &report["audit"]), (&2000.into(), &true.into()));
}

#[test]
fn what_agents_run_is_followed_to_its_end() {
    let report = e2e(&["--agents", "--units", "2", "--replicas", "50"]);
    assert_eq!((&report["agents"], &report["placements"]), (&"attached".into(), &100.into()));
    assert!(report["cpu_s"]["agents"].is_number(), "{report}");
}

#[test]
fn single_calls_and_a_full_cluster_are_measured_too() {
    let report = e2e(&["--workload", "unary", "--units", "100", "--clients", "4"]);
    assert_eq!((&report["units"], &report["placements"]), (&100.into(), &100.into()));
    let report = e2e(&["--workload", "full", "--partition", "preferred", "--ablate", "cache,scan"]);
    assert_eq!((&report["placements"], &report["half_full"]["placements"]), (&400.into(), &400.into()));
    assert_eq!(report["ablate"], serde_json::json!(["cache", "scan"]));
}

#[test]
fn more_than_fits_is_refused_before_anything_starts() {
    let output = run(&["e2e", "--nodes", "1", "--units", "3", "--replicas", "100"]);
    assert_eq!(exit_code(&output), 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is room for 200"));
}

#[test]
fn units_that_come_and_go_leave_nothing_behind() {
    let flags = ["--running-units", "200", "--warm-up", "50", "--rate", "400", "--replicas", "10"];
    let flags = [&flags[..], &["--run-ms", "50"]].concat();
    let report = bench("endurance", &flags);
    assert_eq!((&report["workload"], &report["agents"]), (&"endurance".into(), &"attached".into()));
    assert_eq!((&report["units"], &report["placements"]), (&25.into(), &250.into()));
    assert_eq!((&report["audit"], &report["offered_per_s"]), (&true.into(), &400.into()));
    let growth = &report["endurance"];
    assert_eq!(growth["warm_up"], 50);
    for process in ["state", "dispatcher", "binder", "s1", "agents", "load"] {
        assert!(growth["memory_slope_mib_per_million"][process].is_number(), "{process}: {growth}");
        assert!(growth["rss_start_mib"][process].as_f64().unwrap() > 0.0, "{process}: {growth}");
        assert!(growth["memory_mib"][process].as_array().unwrap().len() > 1, "{process}: {growth}");
        assert!(growth["rss_end_mib"][process].as_f64().unwrap() > 0.0, "{process}: {growth}");
    }
    assert!(growth["memory_slope_max_mib_per_million"].is_number(), "{growth}");
    assert!(growth["disk_mib"].as_f64().unwrap() > 0.0 && growth["disk_allowed_mib"].is_number());
    assert_eq!(growth["disk_within_contract"], true);
    for tenth in ["latency_first_tenth_ms", "latency_last_tenth_ms"] {
        assert!(growth[tenth]["p99"].as_f64().unwrap() > 0.0, "{tenth}: {growth}");
    }
    assert!(growth["p99_ratio"].as_f64().unwrap() > 0.0, "{growth}");
}

#[test]
fn at_ten_times_capacity_nothing_admitted_is_lost() {
    let flags = ["--seconds", "2", "--seconds-before", "2", "--unloaded-rate", "20", "--clients", "64"];
    // Few in hand, so that some are refused whatever this machine can place.
    let flags = [&flags[..], &["--set", "dispatcher.calls_in_hand_max=4"]].concat();
    let report = bench("overload", &flags);
    assert_eq!((&report["workload"], &report["seconds"]), (&"overload".into(), &2.into()));
    let n = |field: &str| report[field].as_u64().unwrap();
    assert!(n("unloaded_units") > 0 && n("admitted") > 0 && n("refused") > 0, "{report}");
    assert_eq!(n("attempts"), n("admitted") + n("refused"), "each refusal had a hint: {report}");
    assert_eq!((n("lost"), &report["audit"]), (0, &true.into()));
    assert!(report["offered_per_s"].as_f64().unwrap() > 9.9 * report["capacity_per_s"].as_f64().unwrap());
    for process in ["state", "dispatcher", "binder", "s1", "agents", "load"] {
        assert!(report["rss_end_mib"][process].as_f64().unwrap() > 0.0, "{process}: {report}");
    }
    assert!(report["p99_ratio"].is_number() && report["admitted_ms"]["p99"].is_number(), "{report}");
}

#[test]
fn a_full_cluster_says_why_nothing_fits() {
    let report = bench("explain", &["--calls", "5"]);
    assert_eq!((&report["workload"], &report["placements"]), (&"explain".into(), &400.into()));
    assert_eq!(report["audit"], true);
    let explain = &report["explain"];
    assert_eq!((&explain["calls"], &explain["nodes_refusing"]), (&5.into(), &20.into()));
    for kind in ["get_unit_ms", "plan_ms"] {
        assert!(explain[kind]["p50"].as_f64().unwrap() > 0.0, "{kind}: {explain}");
        assert!(explain[kind]["p99"].as_f64().unwrap() <= explain[kind]["max"].as_f64().unwrap());
    }
}

#[test]
fn masters_of_yarn_get_containers_and_then_write_nothing() {
    let flags = ["--masters", "6", "--containers", "20", "--seconds", "1", "--repeat", "2"];
    let report = bench("yarn", &flags);
    assert_eq!((&report["workload"], &report["nodes"]), (&"yarn".into(), &20.into()));
    assert_eq!((&report["masters"], &report["containers"]), (&6.into(), &120.into()));
    assert_eq!((&report["audit"], report["runs"].as_array().unwrap().len()), (&true.into(), 2));
    let at = |field: &str| report[field].as_f64().unwrap();
    assert!(at("containers_per_s") > 0.0 && at("allocate_calls") > 6.0, "{report}");
    assert!(at("allocate_s") >= 1.0 && at("allocate_calls_per_s") > 0.0, "{report}");
    let ms = |rank: &str| report["allocate_ms"][rank].as_f64().unwrap();
    assert!(0.0 < ms("p50") && ms("p50") <= ms("p99") && ms("p99") <= ms("max"), "{report}");
    for process in ["yarn", "state", "load"] {
        for field in ["container_cpu_us_by_process", "call_cpu_us_by_process"] {
            assert!(report[field][process].is_number(), "{field} of {process}: {report}");
        }
    }
    let refused = run(&["yarn", "--nodes", "1", "--masters", "3", "--containers", "34"]);
    assert_eq!(exit_code(&refused), 2, "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn applications_of_yarn_at_a_rate_all_finish() {
    let report = bench("yarn-submissions", &["--rate", "20", "--minutes", "0.1"]);
    assert_eq!((&report["workload"], &report["offered_per_s"]), (&"yarn-submissions".into(), &20.into()));
    for field in ["submitted", "units_seen", "containers_seen", "finished_seen"] {
        assert_eq!(report[field], 120, "{field}: {report}");
    }
    assert_eq!((&report["lost"], &report["audit"]), (&0.into(), &true.into()));
    let p50 = |what: &str| report[what]["p50"].as_f64().unwrap();
    assert!(0.0 < p50("submission_ms") && p50("submission_ms") <= p50("container_ms"), "{report}");
    assert!(p50("container_ms") <= p50("finished_ms") && report["achieved_per_s"].is_number(), "{report}");
    for process in ["state", "dispatcher", "binder", "s1", "agents", "yarn", "load"] {
        assert!(report["rss_start_mib"][process].as_f64().unwrap() > 0.0, "{process}: {report}");
        assert!(report["rss_end_mib"][process].as_f64().unwrap() > 0.0, "{process}: {report}");
    }
}

#[test]
fn jobs_of_a_trace_are_replayed_as_applications_of_yarn() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/swim/FB-2009_samples_24_times_1hr_0.tsv");
    let flags = ["--jobs", "60", "--speed", "1000", "--windows-min", "0", "--trace", trace];
    let report = bench("yarn-replay", &flags);
    assert_eq!((&report["workload"], &report["speed"]), (&"yarn-replay".into(), &1000.into()));
    assert_eq!((&report["jobs"], &report["containers"]), (&60.into(), &233.into()));
    assert_eq!((&report["lost"], &report["audit"]), (&0.into(), &true.into()));
    assert_eq!(report["configured_percent"], serde_json::json!({"half": 50, "third": 30, "fifth": 20}));
    for queue in ["half", "third", "fifth"] {
        assert!(report["shares_percent"][queue].is_number(), "{queue}: {report}");
    }
    assert!(report["job_ms"]["p50"].as_f64().unwrap() > 0.0 && report["windows_all"].is_u64(), "{report}");
}

#[test]
fn a_replay_in_which_no_queue_waits_says_so() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/swim/FB-2009_samples_24_times_1hr_0.tsv");
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    let flags = ["--jobs", "5", "--speed", "1000", "--nodes", "2", "--trace", trace, "--data-dir", &data];
    let output = run(&[&["yarn-replay"][..], &flags[..]].concat());
    assert_eq!(exit_code(&output), 1);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("all queues waited in 0 of") && said.contains("take fewer nodes or more jobs"),
        "{said}"
    );
    let output = run(&["yarn-replay", "--trace", "nowhere.tsv"]);
    assert_eq!(exit_code(&output), 2);
}

#[test]
fn every_kind_of_policy_is_planned_on_a_cluster_that_runs() {
    let report = bench("reschedule", &["--per-node", "5"]);
    assert_eq!((&report["workload"], &report["running_units"]), (&"reschedule".into(), &100.into()));
    let plans = report["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 6, "{report}");
    for plan in plans {
        let objective = |field: &str| plan[field].as_f64().unwrap();
        assert!(objective("objective_after") <= objective("objective_before"), "{plan}");
        assert!(plan["answer_ms"].as_u64() >= plan["planning_ms"].as_u64(), "{plan}");
    }
    assert!(plans.iter().any(|plan| plan["moves"].as_u64() > Some(0)), "{report}");
    assert!(report["rss_mib"].as_f64().unwrap() > 0.0 && report["audit"] == true, "{report}");
}
