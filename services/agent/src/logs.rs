//! What running units write: files of bounded size, written by keepers and read by anybody.
//!
//! Everything that one incarnation of a replica writes, to standard output and standard error and over all its starts in place,
//! is one sequence of bytes in the order in which it was written. It is stored in
//!
//! ```text
//! STATE_DIR/logs/UNIT-ORDINAL-INCARNATION/OFFSET
//! ```
//!
//! Each file begins at the byte of the sequence that its name says, with 20 digits, so the order of the names is the order of the
//! content and a reader never has to follow a renamed file: it asks for bytes from an offset ([`read()`]), for the offset of the last
//! lines ([`last_lines`]), and follows by asking again from where the last answer ended. The newest file is appended to until it
//! has `agent.log_max_bytes`; then the next one begins, and only then the oldest beyond `agent.log_files` is removed. So at
//! least the last `log_max_bytes * (log_files - 1)` bytes are there at any time.

mod read;
mod send;
mod sweep;
mod write;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub use read::{Part, last_lines, read};
pub(crate) use send::{LogAsked, LogSenders};
pub(crate) use sweep::{LogLimits, sweep};
pub(crate) use write::LogWriter;

use godel_core_agent::RunKey;

/// Digits of a file's name.
const N_DIGITS: usize = 20;

/// The name of the directory of one incarnation of a replica.
pub fn dir_name(key: RunKey, incarnation: u32) -> String {
    format!("{}-{}-{incarnation}", key.unit, key.ordinal)
}

/// The incarnation whose directory has this name; `None`: no agent gave it.
pub(crate) fn run_of(name: &str) -> Option<(RunKey, u32)> {
    let mut parts = name.split('-');
    let key = RunKey { unit: parts.next()?.parse().ok()?, ordinal: parts.next()?.parse().ok()? };
    let incarnation = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((key, incarnation))
}

/// One file of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// Its first byte in the whole log.
    start: u64,
    len: u64,
    path: PathBuf,
}

fn segment_path(dir: &Path, start: u64) -> PathBuf {
    dir.join(format!("{start:0N_DIGITS$}"))
}

/// The files of a log in order. One that is removed meanwhile is left out.
fn segments(dir: &Path) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let start = name.to_str().filter(|name| name.len() == N_DIGITS).and_then(|name| name.parse().ok());
        let (Some(start), Ok(about)) = (start, entry.metadata()) else { continue };
        if about.is_file() {
            found.push(Segment { start, len: about.len(), path: entry.path() });
        }
    }
    found.sort_unstable_by_key(|segment| segment.start);
    Ok(found)
}

#[cfg(test)]
mod tests;
