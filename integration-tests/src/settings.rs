//! What the environment says: where the binary is and how long the tests may run. Read here and nowhere else.

use std::path::{Path, PathBuf};

/// `GODEL_BIN`, or `godel` in the target directory that this test was built into.
///
/// # Panics
/// When there is no such file, saying how to build it.
pub fn godel_bin() -> PathBuf {
    let bin = match read("GODEL_BIN") {
        Some(path) => PathBuf::from(path),
        None => next_to_tests("godel"),
    };
    assert!(bin.is_file(), "no binary at {}: run `cargo build -p godel`, or set GODEL_BIN", bin.display());
    bin
}

/// True under `make test-long` (`GODEL_TEST_LONG=1`): every random kill moment instead of a share.
pub fn is_long() -> bool {
    read("GODEL_TEST_LONG").is_some_and(|value| value == "1")
}

/// True where everything has to be tested that can be (`CI=true`).
pub fn is_ci() -> bool {
    read("CI").is_some_and(|value| value == "true")
}

/// The seed of the random tests: `GODEL_TEST_SEED`, or a fixed one.
pub fn seed() -> u64 {
    read("GODEL_TEST_SEED").and_then(|value| value.parse().ok()).unwrap_or(2024)
}

/// `target/<profile>/<name>`, seen from a test executable in `target/<profile>/deps`.
pub fn next_to_tests(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    let profile_dir = exe.ancestors().nth(2).unwrap_or_else(|| Path::new("target/debug"));
    profile_dir.join(name)
}

#[allow(clippy::disallowed_methods, reason = "the one place of the tests that reads the environment")]
fn read(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
