//! The benchmarks as a user runs them, small: that they work and report what they promise, not how fast. Those on real
//! processes need `godel` beside `godel-bench`: `cargo build -p godel` puts it there.

#![allow(clippy::unwrap_used, reason = "tests")]

mod limits;
mod restart;
mod runs;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use godel_testkit::skip;

/// Runs the program to its end; the test runner ends one that does not.
fn run(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_godel-bench"));
    command.args(words).env_remove("GODEL_ADDR").output().unwrap()
}

fn exit_code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// Whether it failed because no etcd is installed; the test then says so.
fn has_no_etcd(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    let has_none = exit_code(output) == 1 && said.contains("no `etcd` is in PATH");
    if has_none {
        skip(said);
    }
    has_none
}

/// The operator's program beside it.
fn godel() -> PathBuf {
    let godel = Path::new(env!("CARGO_BIN_EXE_godel-bench")).with_file_name("godel");
    assert!(godel.is_file(), "no program at {}: run `cargo build -p godel`", godel.display());
    godel
}

#[test]
fn the_operators_program_becomes_this_one() {
    let of_godel = Command::new(godel()).args(["bench", "e2e", "--help"]).output().unwrap();
    let of_bench = run(&["e2e", "--help"]);
    assert_eq!((exit_code(&of_godel), &of_godel.stdout), (0, &of_bench.stdout));
    let help = String::from_utf8_lossy(&of_godel.stdout).into_owned();
    assert!(help.contains("Usage: godel bench e2e") && help.contains("--schedulers"), "{help}");
    let wrong = Command::new(godel()).args(["-o", "json", "bench", "--nonsense"]).output().unwrap();
    assert_eq!(exit_code(&wrong), 2, "{}", String::from_utf8_lossy(&wrong.stderr));
}
