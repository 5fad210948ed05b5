//! The reading end of a log.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use super::{Segment, segments};

/// How often a log is looked at anew when a file is removed while it is being read.
const N_TRIES: usize = 8;
/// Bytes that are searched at a time for the beginning of a line.
const BLOCK: u64 = 64 << 10;

/// Bytes of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Where `bytes` begin in the log: later than asked for if what was there is removed already.
    pub start: u64,
    /// As they were written.
    pub bytes: Vec<u8>,
    /// Where to read on.
    pub next: u64,
    /// Where the log ends now. A follower that is there waits, and asks again.
    pub end: u64,
}

/// Reads at most `n_bytes_max` bytes of the log in `dir` from `offset` on. An offset beyond the end reads nothing.
///
/// # Errors
/// There is no such log, or it cannot be read.
pub fn read(dir: &Path, offset: u64, n_bytes_max: usize) -> io::Result<Part> {
    let mut tries = 0;
    loop {
        match read_once(&segments(dir)?, offset, n_bytes_max) {
            // It was removed by who writes: what was asked for begins later now.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < N_TRIES => tries += 1,
            answer => return answer,
        }
    }
}

fn read_once(segments: &[Segment], offset: u64, n_bytes_max: usize) -> io::Result<Part> {
    let first = segments.first().map_or(0, |oldest| oldest.start);
    let end = segments.last().map_or(0, |newest| newest.start + newest.len);
    let start = offset.clamp(first, end.max(first));
    let mut part = Part { start, bytes: Vec::new(), next: start, end };
    for segment in segments {
        let n_wanted = n_bytes_max.saturating_sub(part.bytes.len());
        let has_next = (segment.start..segment.start + segment.len).contains(&part.next);
        if n_wanted == 0 || !has_next {
            continue;
        }
        let mut file = File::open(&segment.path)?;
        file.seek(SeekFrom::Start(part.next - segment.start))?;
        let n_left = (segment.start + segment.len - part.next).min(to_u64(n_wanted));
        let n_read = file.take(n_left).read_to_end(&mut part.bytes)?;
        part.next += to_u64(n_read);
    }
    Ok(part)
}

/// Finds where the last `n_lines` lines of the log in `dir` begin; a last line without its end counts as one. The answer is at most
/// `n_bytes_max` before the end, and not before what is kept.
///
/// # Errors
/// There is no such log, or it cannot be read.
pub fn last_lines(dir: &Path, n_lines: usize, n_bytes_max: u64) -> io::Result<u64> {
    let end = read(dir, u64::MAX, 0)?.end;
    let least = end.saturating_sub(n_bytes_max);
    let (mut at, mut n_found) = (end, 0);
    if n_lines == 0 {
        return Ok(end);
    }
    while at > least {
        let from = at.saturating_sub(BLOCK).max(least);
        let part = read(dir, from, usize::try_from(at - from).unwrap_or(usize::MAX))?;
        for (idx, byte) in part.bytes.iter().enumerate().rev() {
            let behind = part.start + to_u64(idx) + 1;
            // The end of the last line begins no line.
            if *byte == b'\n' && behind < end {
                n_found += 1;
                if n_found == n_lines {
                    return Ok(behind);
                }
            }
        }
        if part.start > from || part.bytes.is_empty() {
            // What comes before is removed.
            return Ok(part.start);
        }
        at = from;
    }
    Ok(at)
}

fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
