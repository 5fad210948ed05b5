//! The benchmarks of the parts, quickly: that they work and report what they promise, not how fast.

use serde_json::Value;

use crate::{exit_code, has_no_etcd, run};

/// The cases of a benchmark's file.
fn cases(words: &[&str]) -> Vec<Value> {
    cases_if_there_is_etcd(words).unwrap()
}

/// The same of one that may need an etcd; `None`: this machine has none, and the test said so.
fn cases_if_there_is_etcd(words: &[&str]) -> Option<Vec<Value>> {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let output = run(&[words, &["--quick", "--json", json.to_str().unwrap()]].concat());
    if has_no_etcd(&output) {
        return None;
    }
    assert_eq!(exit_code(&output), 0, "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(report["bench"], words[0]);
    assert!(report["load_average"].is_number());
    let cases = report["cases"].as_array().unwrap().clone();
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(table.lines().count(), cases.len() + 1, "{table}");
    Some(cases)
}

fn names(cases: &[Value], field: &str) -> Vec<String> {
    cases.iter().map(|case| case[field].as_str().unwrap().to_owned()).collect()
}

/// All of `fields` are positive in each case.
fn assert_positive(cases: &[Value], fields: &[&str]) {
    for case in cases {
        for field in fields {
            assert!(case[*field].as_f64().unwrap() > 0.0, "{field}: {case}");
        }
    }
}

#[test]
fn core_times_the_scenarios_asked_for() {
    let cases = cases(&["core", "--only", "binder"]);
    assert_eq!(names(&cases, "scenario"), ["binder-service", "binder-single"]);
    assert_eq!((&cases[0]["ops"], &cases[1]["ops"]), (&20_000.into(), &5_000.into()));
    assert_positive(&cases, &["ns_per_op_median", "ns_per_op_min", "ops_per_s", "samples"]);
    assert_eq!(cases[0]["checksum"].as_str().unwrap().len(), 16);
    let output = run(&["core", "--only", "nothing"]);
    assert_eq!(exit_code(&output), 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains("scheduler-mixed"));
}

#[test]
fn the_store_bench_commits_what_services_send() {
    let dir = tempfile::tempdir().unwrap();
    let cases = cases(&["store", "--data-dir", dir.path().to_str().unwrap()]);
    assert_eq!(names(&cases, "case"), ["put-serial", "put-64", "put-100", "bind-1000", "bind-100x1"]);
    assert_positive(&cases, &["txns", "ops", "seconds", "txns_per_s", "ops_per_s", "txns_per_sync"]);
    for (case, ops_each) in cases.iter().zip([1, 1, 100, 1_000, 100]) {
        let field = |name: &str| case[name].as_u64().unwrap();
        // Of the last transaction the units may have run out.
        assert_eq!(field("ops").div_ceil(ops_each), field("txns"), "{case}");
        assert!(case["latency_ms"]["p50"].as_f64() <= case["latency_ms"]["p99"].as_f64(), "{case}");
        assert!(case["bytes_written"].is_u64() && case["cpu_us_per_op"].is_f64(), "{case}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_bare_client_puts_what_the_store_has_put_in_an_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["store", "--engine", "etcd", "--data-dir", dir.path().to_str().unwrap()];
    let Some(cases) = cases_if_there_is_etcd(&flags) else { return };
    let of_store = ["put-serial", "put-64", "put-100", "bind-1000", "bind-100x1"];
    let all: Vec<String> = of_store
        .iter()
        .flat_map(|case| [(*case).to_owned(), format!("{case}-bare"), format!("{case}-bare-2")])
        .collect();
    assert_eq!(names(&cases, "case"), all);
    assert_positive(&cases, &["txns", "ops", "seconds", "txns_per_s", "ops_per_s", "of_bare"]);
    for case in cases.chunks(3) {
        assert_eq!((&case[0]["ops"], &case[1]["txns"]), (&case[2]["ops"], &case[2]["txns"]), "{case:?}");
        assert_eq!(case[1]["of_bare"], 1.0, "{case:?}");
    }
    // One transaction of etcd for each commit, as long as none waits for another.
    assert_eq!(cases[0]["txns"], cases[1]["txns"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn wire_measures_calls_and_streams_between_two_processes() {
    let dir = tempfile::tempdir().unwrap();
    let cases = cases(&["wire", "--data-dir", dir.path().to_str().unwrap()]);
    let expect = ["unary-1", "unary-64", "unary-64-service", "stream-1", "stream-100", "decision-1000"];
    assert_eq!(names(&cases, "case"), expect);
    assert_positive(&cases, &["items", "seconds", "items_per_s", "item_bytes", "items_per_message"]);
    for case in &cases[..5] {
        assert!((140..=160).contains(&case["item_bytes"].as_u64().unwrap()), "{case}");
    }
    assert_eq!(cases[4]["items"].as_u64().unwrap() % 100, 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
