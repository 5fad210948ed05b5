//! `godel-bench`, which `godel bench` runs.

use std::process::ExitCode;

use clap::Parser as _;
use godel_bench::Args;
use godel_client::process;

/// As in `godel`, so that what is measured here is measured there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    process::run(process::n_cores(), godel_bench::run(Args::parse()))
}
