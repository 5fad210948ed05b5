//! The keeper of one running unit alone, as the tests of this crate start it: `keeper DIR`. The binary `godel` has the same as `godel
//! agent keep DIR`.

use std::{path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    match std::env::args_os().nth(1).map(PathBuf::from) {
        Some(dir) => godel_agent::keeper::keep(&dir),
        None => ExitCode::FAILURE,
    }
}
