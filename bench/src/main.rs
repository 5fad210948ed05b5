//! `godel-bench`, which `godel bench` runs.

// What a benchmark awaits lies in what awaits it, from its load to the stream of one call: deeper than the compiler looks by default.
#![recursion_limit = "256"]

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
