//! A cluster whose store is in an etcd, from the command line.

use std::{collections::BTreeSet, time::Duration};

use godel_etcd::process::{EtcdProcesses, ProcessConfig};
use godel_testkit::skip;

use crate::godel::{Killed, Up, exit_code, run, serve_alone, until_ok};

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_cluster_keeps_its_store_in_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let processes = match EtcdProcesses::start(ProcessConfig::new(dir.path().join("etcd"))) {
        Ok(processes) => processes,
        Err(why) => return skip(why),
    };
    let endpoints = processes.endpoints().join(",");
    let set = format!("state.etcd.endpoints={endpoints}");
    let flags = ["--set", "state.engine=etcd", "--set", &set, "--simulate", "4x cpu=4,memory=8Gi"];
    let up = Up::start(&flags);
    let godel = up.client();
    assert_eq!(godel.json(&["status"])["store"]["engine"], "etcd");
    let file = up.dir().join("web.yaml");
    std::fs::write(&file, crate::WEB).unwrap();
    godel.ok(&["unit", "submit", "-f", file.to_str().unwrap(), "--wait"]);
    godel.ok(&["unit", "wait", "web", "--for", "phase=running", "--timeout", "20s"]);
    // The store is checked beside the state that has it.
    let data_dir = up.dir().join("data/state");
    let data_dir = data_dir.to_str().unwrap().to_owned();
    let checked = godel.ok(&["state", "check", &data_dir, "--etcd-endpoints", &endpoints]);
    assert!(checked.contains("the store is whole") && checked.contains("KIND_UNIT: 1"), "{checked}");
    let truncate = ["state", "repair", "--truncate", &data_dir, "--set", &set];
    let running = godel.run(&truncate);
    assert!(exit_code(&running) == 1 && said(&running).contains("in use by another"), "{}", said(&running));
    let dir = up.kill();
    let whole = run(&truncate, &[]);
    assert!(exit_code(&whole) == 2 && said(&whole).contains("nothing to truncate"), "{}", said(&whole));
    let up = Up::start_in(dir, &flags);
    up.client().ok(&["unit", "wait", "web", "--for", "phase=running", "--timeout", "20s"]);
    // With another engine there would be an empty store.
    let other = run(&["serve", "state", "--data-dir", &data_dir, "--listen", "127.0.0.1:0"], &[]);
    assert!(exit_code(&other) != 0 && said(&other).contains("has its log in etcd"), "{}", said(&other));
    up.stop();
}

#[test]
fn state_is_served_from_an_etcd_that_flags_name() {
    let dir = tempfile::tempdir().unwrap();
    let processes = match EtcdProcesses::start(ProcessConfig::new(dir.path().join("etcd"))) {
        Ok(processes) => processes,
        Err(why) => return skip(why),
    };
    let endpoints = processes.endpoints().join(",");
    let data_dir = dir.path().join("state");
    let data_dir = data_dir.to_str().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = port.to_string();
    let words =
        ["state", "--engine", "etcd", "--etcd-endpoints", &endpoints, "--data-dir", data_dir, "--insecure"];
    let more = ["--listen", &listen, "--metrics-listen", "127.0.0.1:0"];
    let state: Killed = serve_alone(&[&words[..], &more].concat());
    // Its own registration is in etcd.
    let check = ["state", "check", data_dir, "--etcd-endpoints", &endpoints];
    let is_registered = (0..500).any(|_| until_ok(&check).contains("KIND_LEASE: 1"));
    assert!(is_registered, "{}", until_ok(&check));
    state.stop();
    let keys = processes.client(Duration::from_secs(5));
    let request =
        godel_etcd::RangeRequest { from: "a".into(), to: "z".into(), limit: 1_000, keys_only: true };
    let page = keys.range(request).unwrap();
    let prefixes: BTreeSet<_> = page.entries.iter().map(|entry| entry.key[..6].to_vec()).collect();
    assert_eq!(prefixes, BTreeSet::from([b"godel/".to_vec()]), "nothing is outside of the prefix");
}

#[test]
fn flags_of_an_etcd_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("state");
    let state =
        ["serve", "state", "--insecure", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
    let missing = run(&[&state[..], &["--engine", "etcd"]].concat(), &[]);
    assert!(exit_code(&missing) != 0 && said(&missing).contains("--etcd-endpoints"), "{}", said(&missing));
    let foreign = run(&["serve", "binder", "--engine", "etcd"], &[]);
    assert!(
        exit_code(&foreign) == 2 && said(&foreign).contains("nothing else has a store"),
        "{}",
        said(&foreign)
    );
    let wrong = run(&[&state[..], &["--engine", "etcd", "--etcd-endpoints", "ftp://h"]].concat(), &[]);
    assert!(
        exit_code(&wrong) != 0 && said(&wrong).contains("is not an endpoint of etcd"),
        "{}",
        said(&wrong)
    );
}
