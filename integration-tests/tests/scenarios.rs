//! One test for each file in `scenarios/`, named after it. The format is in `docs/scenarios.md`.
//!
//! What a runner asks of a test binary is little: to list tests, and to run those of some names. So a new file is a new
//! test without a line of Rust.

use std::{
    io::{self, Write as _},
    panic,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser as _;
use godel_integration_tests::scenario;

/// Arguments of test binaries, those that `cargo test` and `cargo nextest` give.
#[derive(clap::Parser)]
struct Args {
    /// Runs tests whose names contain one of these; all without.
    filters: Vec<String>,
    /// The whole name.
    #[arg(long)]
    exact: bool,
    #[arg(long)]
    list: bool,
    /// Only ignored tests: there are none.
    #[arg(long)]
    ignored: bool,
    #[arg(long)]
    nocapture: bool,
    #[arg(long)]
    format: Option<String>,
    #[arg(long)]
    test_threads: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let wanted = scenarios(&dir).into_iter().filter(|(name, _)| args.wants(name));
    let mut failed = false;
    for (name, path) in wanted {
        if args.list {
            say(&format!("{name}: test"));
            continue;
        }
        let is_well = panic::catch_unwind(|| run(&path)).is_ok();
        failed |= !is_well;
        say(&format!("test {name} ... {}", if is_well { "ok" } else { "FAILED" }));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Args {
    fn wants(&self, name: &str) -> bool {
        let is_named =
            |filter: &String| if self.exact { name == filter } else { name.contains(filter.as_str()) };
        !self.ignored && (self.filters.is_empty() || self.filters.iter().any(is_named))
    }
}

/// Names and files, in order of names.
fn scenarios(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = dir.read_dir().unwrap_or_else(|error| panic!("cannot read {}: {error}", dir.display()));
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let yaml = paths.filter(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    let named = yaml.filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path)));
    let mut scenarios: Vec<_> = named.collect();
    scenarios.sort();
    scenarios
}

fn run(path: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("threads can be started").block_on(scenario::run(path));
}

fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
