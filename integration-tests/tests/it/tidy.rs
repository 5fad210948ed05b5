//! Dependencies point one way: `cli → services → kit, store → core`, and `core` knows no runtime and no wire.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

/// What each crate may use of ours.
const MAY_USE: [(&str, &[&str]); 9] = [
    ("godel-proto", &[]),
    ("godel-core", &[]),
    ("godel-store", &["godel-core", "godel-proto"]),
    ("godel-kit", &["godel-core", "godel-proto", "godel-store"]),
    ("godel-state", &["godel-core", "godel-proto", "godel-store", "godel-kit"]),
    ("godel-dispatcher", &["godel-core", "godel-proto", "godel-kit"]),
    ("godel-scheduler", &["godel-core", "godel-proto", "godel-kit"]),
    ("godel-binder", &["godel-core", "godel-proto", "godel-kit"]),
    ("godel-agent", &["godel-core", "godel-proto", "godel-kit"]),
];

/// Not in `core`: runtime, wire, disk, clocks.
const NOT_IN_CORE: [&str; 7] = ["tokio", "tonic", "prost", "bytes", "sled", "rand", "uuid"];

#[test]
fn dependencies_point_one_way() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let uses: BTreeMap<&str, Vec<&str>> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let normal =
                package["dependencies"].as_array().unwrap().iter().filter(|used| used["kind"].is_null());
            (package["name"].as_str().unwrap(), normal.map(|used| used["name"].as_str().unwrap()).collect())
        })
        .collect();
    for (package, may_use) in MAY_USE {
        for used in uses[package].iter().filter(|used| used.starts_with("godel")) {
            assert!(may_use.contains(used), "{package} must not depend on {used}");
        }
    }
    for used in &uses["godel-core"] {
        assert!(!NOT_IN_CORE.contains(used), "core must not depend on {used}");
    }
}
