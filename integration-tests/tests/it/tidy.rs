//! Dependencies point one way: `cli → services → kit, store → core`, and `core` knows no runtime and no wire.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

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

/// Keys of a JSON log line that are not an event's own.
const TAKEN: [&str; 7] = ["message", "level", "target", "timestamp", "span", "spans", "fields"];

/// Rust files below a folder.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// From the bracket that `text` begins with to the one that closes it. Brackets in texts come in pairs here.
fn in_brackets(text: &str) -> &str {
    let mut depth = 0;
    let end = text.char_indices().find_map(|(at, char)| {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    });
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn a_log_line_has_no_field_that_every_line_has() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for folder in ["services", "store", "cli", "core"] {
        rust_files(&root.join(folder), &mut files);
    }
    let mut n_lines = 0;
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        for level in ["error", "warn", "info", "debug", "trace"] {
            for (at, start) in text.match_indices(&format!("tracing::{level}!(")) {
                let line = in_brackets(&text[at + start.len() - 1..]);
                n_lines += 1;
                for key in TAKEN {
                    let named = line.contains(&format!("{key} = ")) || line.contains(&format!("?{key},"));
                    assert!(!named, "{}: a field called {key}: {line}", path.display());
                }
            }
        }
    }
    assert!(n_lines > 50, "{n_lines} found");
}
