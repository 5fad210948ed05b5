//! Judges the file in which sled keeps a generation before sled opens it, in one pass and in bounded time.
//!
//! sled takes a frame that it cannot read for the end of its segment. That is right for the rest of a segment that was
//! being overwritten, of which nothing counts any more, and for the last segments, which a crash may have torn. Anywhere
//! else sled continues with old versions of pages, and a look-up in such a tree may never end. So a file is damaged if
//! whole frames that count stand behind one that cannot be read.
//!
//! The layout is that of sled 0.34.7 (`pagecache/logger.rs`, `pagecache/iterator.rs`, `serialization.rs`): segments of
//! 512 KiB that begin with a header, and frames with a checksum, the number of their segment and the page that they are of.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use rustc_hash::FxHashMap;

use crate::log::LogError;

/// sled's default, which every store has.
const SEGMENT: usize = 512 << 10;
const SEGMENT_HEADER: usize = 20;
/// A segment with less room than this has no further frame.
const FRAME_HEADER_MAX: usize = 32;
/// What headers are combined with, so that zeros are none.
const MASK: i64 = i64::MAX;
/// Bytes of which checksums are computed in one segment, at most: it ends for whatever stands there.
const CHECKED_BYTES_MAX: usize = 64 * SEGMENT;

/// Where in sled's log something stands.
type Lsn = i64;

/// What is known of a segment without reading its frames.
#[derive(Clone, Copy, Debug)]
struct Header {
    lsn: Lsn,
    /// Everything below was durable when this segment was begun.
    stable: Lsn,
}

/// What a frame does to its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The page begins again with this frame, or is free.
    Begins,
    /// This frame changes the page.
    Changes,
    /// It is of no page.
    None,
    /// It is the last one of its segment.
    Ends,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    effect: Effect,
    segment: u64,
    page: u64,
    len: usize,
}

/// Frames that sled does not see, because something before them cannot be read.
#[derive(Debug)]
struct Hidden {
    /// Bytes of the file that are not what was written.
    damaged: (u64, u64),
    page: u64,
    lsn: Lsn,
}

/// What was found in all segments.
#[derive(Debug, Default)]
struct Found {
    /// Where each page begins for the last time, as far as sled sees it.
    begins: FxHashMap<u64, Lsn>,
    hidden: Vec<Hidden>,
}

/// Judges the files of a generation in `dir`.
///
/// # Errors
/// They cannot be read, or are damaged in a way that sled does not notice.
pub(super) fn judge(dir: &Path) -> Result<(), LogError> {
    let path: PathBuf = dir.join("db");
    let failed = |error| LogError::io(format!("reading {}", path.display()))(error);
    let file = File::open(&path).map_err(failed)?;
    let found = read(&file).map_err(failed)?;
    let lost = found.hidden.iter().find(|hidden| {
        // A later beginning of the page makes whatever was before it useless.
        found.begins.get(&hidden.page).is_none_or(|lsn| *lsn < hidden.lsn)
    });
    match lost {
        Some(Hidden { damaged: (from, to), .. }) => Err(LogError::Corrupt(format!(
            "bytes {from} to {to} of {} are not what was written",
            path.display()
        ))),
        None => Ok(()),
    }
}

fn read(file: &File) -> io::Result<Found> {
    let n_segments = file.metadata()?.len().div_ceil(SEGMENT as u64);
    let mut stable = 0;
    for idx in 0..n_segments {
        let mut head = [0; SEGMENT_HEADER];
        if read_at(file, &mut head, idx * SEGMENT as u64)? == SEGMENT_HEADER
            && let Some(header) = header(&head)
        {
            stable = stable.max(header.stable);
        }
    }
    // From here on a crash may have torn the log: sled ends at the first frame that is not whole.
    let torn_from = stable.max(0) / SEGMENT as Lsn * SEGMENT as Lsn;
    let mut found = Found::default();
    let mut segment = vec![0; SEGMENT];
    for idx in 0..n_segments {
        let n_read = read_at(file, &mut segment, idx * SEGMENT as u64)?;
        walk(&segment[..n_read], idx * SEGMENT as u64, torn_from, &mut found);
    }
    Ok(found)
}

/// As many bytes as there are.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut n_read = 0;
    while n_read < buffer.len() {
        match file.read_at(&mut buffer[n_read..], offset + n_read as u64) {
            Ok(0) => break,
            Ok(n) => n_read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n_read)
}

/// Goes through the frames of the segment at `offset` of the file.
fn walk(bytes: &[u8], offset: u64, torn_from: Lsn, found: &mut Found) {
    let header = header(bytes).filter(|header| header.lsn % SEGMENT as Lsn == 0);
    let mut number = header.and_then(|header| u64::try_from(header.lsn / SEGMENT as Lsn).ok());
    // Of a segment whose header cannot be read sled sees nothing.
    let mut damaged_from = header.is_none().then_some(0);
    let mut damaged = (offset, offset);
    let mut at = if header.is_some() { SEGMENT_HEADER } else { 0 };
    let mut budget = CHECKED_BYTES_MAX;
    while at + FRAME_HEADER_MAX <= SEGMENT && at < bytes.len() {
        let frame = frame(&bytes[at..], &mut budget);
        let frame = frame.filter(|frame| number.is_none_or(|number| number == frame.segment));
        let Some(Frame { effect, segment, page, len }) = frame else {
            damaged_from.get_or_insert(at);
            at += 1;
            continue;
        };
        number = Some(segment);
        let lsn = i64::try_from(segment).unwrap_or(i64::MAX).saturating_mul(SEGMENT as Lsn);
        if damaged_from.is_some() && lsn >= torn_from {
            return;
        }
        if let Some(from) = damaged_from
            && damaged == (offset, offset)
        {
            damaged = (offset + from as u64, offset + at as u64);
        }
        let lsn = lsn.saturating_add(at as Lsn);
        match (effect, damaged_from) {
            (Effect::Ends, _) => return,
            (Effect::Begins, None) => {
                let last = found.begins.entry(page).or_insert(lsn);
                *last = (*last).max(lsn);
            }
            (Effect::Begins | Effect::Changes, Some(_)) => found.hidden.push(Hidden { damaged, page, lsn }),
            (Effect::Changes, None) | (Effect::None, _) => {}
        }
        at += len;
    }
}

fn header(bytes: &[u8]) -> Option<Header> {
    let crc = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    let number = |at: usize| Some(i64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?) ^ MASK);
    let is_whole = crc32fast::hash(bytes.get(4..SEGMENT_HEADER)?) == !crc;
    let header = Header { lsn: number(4)?, stable: number(12)? };
    (is_whole && header.lsn >= 0).then_some(header)
}

/// The frame with which `bytes` begin, if it is whole.
fn frame(bytes: &[u8], budget: &mut usize) -> Option<Frame> {
    let crc = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    let effect = match bytes.get(4)? {
        1 | 3 => Effect::None,
        2 => Effect::Ends,
        // Free pages, counters, the meta page, whole nodes.
        4..=9 => Effect::Begins,
        10 | 11 => Effect::Changes,
        _ => return None,
    };
    let mut at = 5;
    let len = usize::try_from(varint(bytes, &mut at)?).ok()?;
    let segment = varint(bytes, &mut at)?;
    let page = varint(bytes, &mut at)?;
    let body = bytes.get(at..at.checked_add(len)?)?;
    *budget = budget.checked_sub(at + len)?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(body);
    hasher.update(&bytes[4..at]);
    (hasher.finalize() == !crc).then_some(Frame { effect, segment, page, len: at + len })
}

/// A number as sled writes it, from `at` on.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    let rest = bytes.get(*at + 1..)?;
    let (value, n_more) = match first {
        0..=240 => (u64::from(first), 0),
        241..=248 => (240 + 256 * (u64::from(first) - 241) + u64::from(*rest.first()?), 1),
        249 => (2_288 + 256 * u64::from(*rest.first()?) + u64::from(*rest.get(1)?), 2),
        _ => {
            let n_more = usize::from(first) - 247;
            let mut number = [0; 8];
            number.get_mut(..n_more)?.copy_from_slice(rest.get(..n_more)?);
            (u64::from_le_bytes(number), n_more)
        }
    };
    *at += 1 + n_more;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of sled with pages that were written again and again, closed in order.
    fn written(dir: &Path) {
        let db = sled::Config::new().path(dir).cache_capacity(1 << 20).open().unwrap();
        for round in 0..3_u64 {
            for key in 0..4_000_u64 {
                let value = vec![u8::try_from((round + key) % 251).unwrap(); 300];
                db.insert((key * 7_919 % 4_001).to_be_bytes(), value).unwrap();
            }
            db.flush().unwrap();
        }
    }

    #[test]
    fn files_that_sled_wrote_are_whole_also_in_the_middle_of_writing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let db = sled::Config::new().path(&path).cache_capacity(1 << 20).open().unwrap();
        for key in 0..20_000_u64 {
            db.insert((key * 7_919 % 4_001).to_be_bytes(), vec![7; 300]).unwrap();
            if key % 1_000 == 0 {
                judge(&path).unwrap();
            }
        }
        drop(db);
        judge(&path).unwrap();
    }

    #[test]
    fn noise_in_front_of_frames_that_count_is_damage_and_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        written(&path);
        let good = std::fs::read(path.join("db")).unwrap();
        let n_segments = good.len() / SEGMENT;
        assert!(n_segments > 6, "{n_segments}");
        let mut n_damaged = 0;
        for idx in 0..n_segments {
            let mut bad = good.clone();
            let at = idx * SEGMENT + SEGMENT / 3;
            for (step, byte) in bad[at..at + 254].iter_mut().enumerate() {
                *byte ^= u8::try_from(step % 251).unwrap() | 1;
            }
            std::fs::write(path.join("db"), bad).unwrap();
            if let Err(error) = judge(&path) {
                let text = error.to_string();
                assert!(text.contains("are not what was written"), "{text}");
                n_damaged += 1;
            }
        }
        assert!(n_damaged > 0, "of {n_segments} segments");
        std::fs::write(path.join("db"), good).unwrap();
        judge(&path).unwrap();
    }

    #[test]
    fn numbers_are_read_as_sled_writes_them() {
        let read = |bytes: &[u8]| {
            let mut at = 0;
            varint(bytes, &mut at).map(|value| (value, at))
        };
        assert_eq!(read(&[240]), Some((240, 1)));
        assert_eq!(read(&[241, 1]), Some((241, 2)));
        assert_eq!(read(&[249, 1, 2]), Some((2_546, 3)));
        assert_eq!(read(&[250, 1, 0, 1]), Some((65_537, 4)));
        assert_eq!(read(&[255, 1, 0, 0, 0, 0, 0, 0, 1]), Some(((1 << 56) + 1, 9)));
        for cut in [&[][..], &[241], &[250, 1, 2]] {
            assert_eq!(read(cut), None);
        }
    }
}
