//! The watermark: how far the log was synced, in a small file of fixed size beside it.
//!
//! Two slots are written in turn, in place, so that one of them is whole whatever happens. A slot is written after
//! the log's sync and before the answers; the file itself is synced in the background, at most once a second. What it
//! claims is so a lower bound of what must be there: after `kill -9` the last group, after a loss of power one of the
//! last second or so. Where the log is in an etcd, the slot says in which one, and how far that had come.

use std::{
    fs::File,
    io::{ErrorKind, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, Thread},
    time::{Duration, Instant},
};

use super::{
    LogError,
    files::{private_file, sync_dir},
};

/// Slots are apart by this, so that no torn write of the device takes both.
const SLOT_BYTES: usize = 4096;
const N_SLOTS: u64 = 2;
/// First bytes of a slot; the last one is the version of its format: of a log in files, and of one in an etcd.
const MAGIC_FILES: u64 = u64::from_be_bytes(*b"godelwm\x01");
const MAGIC_ETCD: u64 = u64::from_be_bytes(*b"godelwm\x02");
const FIELDS_BYTES: usize = 8 * 8 + 4;
/// What a slot of a log in an etcd has beyond that.
const ETCD_BYTES: usize = 2 * 8;
/// The file is synced once in this time, if it was written.
const SYNC_PERIOD: Duration = Duration::from_secs(1);

/// What must be in the directory of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// Of this store, and of no other.
    pub(crate) store: u64,
    /// Counts what was written here; the higher one of two slots holds.
    pub(crate) sequence: u64,
    /// Number of the oldest generation that was not removed.
    pub(crate) oldest: u64,
    /// Number of the generation that takes the commits.
    pub(crate) newest: u64,
    /// First revision of the history.
    pub(crate) floor: u64,
    /// Revision behind which the newest generation begins.
    pub(crate) base: u64,
    /// Last revision that was synced.
    pub(crate) revision: u64,
    /// Checksum of the last chunk up to there.
    pub(crate) crc: u32,
    /// Where the log is, if that is an etcd.
    pub(crate) etcd: Option<EtcdMark>,
}

/// The etcd in which a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EtcdMark {
    /// Id of its cluster.
    pub(crate) cluster: u64,
    /// Its revision when it was last heard of.
    pub(crate) revision: u64,
}

/// What a watermark file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Both slots are whole.
    Whole(Watermark),
    /// One slot is whole. The other one may have had a little more.
    Half(Watermark),
    /// There is no file, or nothing was written to it.
    Missing,
    /// There is a file, and nothing of it is whole.
    Rotten,
}

impl Found {
    pub(crate) fn watermark(&self) -> Option<&Watermark> {
        match self {
            Self::Whole(watermark) | Self::Half(watermark) => Some(watermark),
            Self::Missing | Self::Rotten => None,
        }
    }

    /// Reads the watermark in `dir`.
    pub(crate) fn read(dir: &Path) -> Result<Self, LogError> {
        let path = path(dir);
        let mut bytes = Vec::new();
        let read = private_file().read(true).open(&path).and_then(|file| {
            // More is of no use.
            file.take(N_SLOTS * SLOT_BYTES as u64).read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => Ok(Self::decode(&bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::Missing),
            Err(error) => Err(LogError::io(format!("reading {}", path.display()))(error)),
        }
    }

    fn decode(bytes: &[u8]) -> Self {
        let slots: Vec<Watermark> = bytes.chunks(SLOT_BYTES).filter_map(Watermark::decode).collect();
        match slots.iter().max_by_key(|slot| slot.sequence) {
            Some(latest) if slots.len() as u64 == N_SLOTS => Self::Whole(*latest),
            Some(latest) => Self::Half(*latest),
            // It was being made.
            None if bytes.iter().all(|byte| *byte == 0) => Self::Missing,
            None => Self::Rotten,
        }
    }
}

impl Watermark {
    fn encode(&self) -> Vec<u8> {
        let Self { store, sequence, oldest, newest, floor, base, revision, crc, etcd } = *self;
        let mut bytes = Vec::with_capacity(FIELDS_BYTES + ETCD_BYTES + 4);
        let magic = if etcd.is_some() { MAGIC_ETCD } else { MAGIC_FILES };
        for field in [magic, store, sequence, oldest, newest, floor, base, revision] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend(crc.to_be_bytes());
        if let Some(EtcdMark { cluster, revision }) = etcd {
            bytes.extend(cluster.to_be_bytes());
            bytes.extend(revision.to_be_bytes());
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_be_bytes());
        bytes
    }

    fn decode(slot: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_be_bytes(slot.get(at..at + 8)?.try_into().ok()?));
        let fields_bytes = match number(0)? {
            MAGIC_FILES => FIELDS_BYTES,
            MAGIC_ETCD => FIELDS_BYTES + ETCD_BYTES,
            _ => return None,
        };
        let (fields, rest) = slot.split_at_checked(fields_bytes)?;
        if crc32c::crc32c(fields).to_be_bytes() != rest.get(..4)? {
            return None;
        }
        let field = |idx: usize| number(8 * idx);
        let of_etcd =
            || Some(EtcdMark { cluster: number(FIELDS_BYTES)?, revision: number(FIELDS_BYTES + 8)? });
        Some(Self {
            store: field(1)?,
            sequence: field(2)?,
            oldest: field(3)?,
            newest: field(4)?,
            floor: field(5)?,
            base: field(6)?,
            revision: field(7)?,
            crc: u32::from_be_bytes(fields.get(64..68)?.try_into().ok()?),
            etcd: if fields_bytes > FIELDS_BYTES { Some(of_etcd()?) } else { None },
        })
    }
}

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("watermark")
}

/// The watermark of an open store.
#[derive(Debug)]
pub(crate) struct WatermarkFile {
    file: Arc<File>,
    path: PathBuf,
    last: Watermark,
    syncing: Arc<Syncing>,
    thread: Option<JoinHandle<()>>,
    /// Of that thread.
    waker: Thread,
}

#[derive(Debug, Default)]
struct Syncing {
    is_dirty: AtomicBool,
    ends: AtomicBool,
}

impl WatermarkFile {
    /// Opens the file of `dir` or makes it anew, saying `watermark`, durably.
    pub(crate) fn open(dir: &Path, watermark: Watermark) -> Result<Self, LogError> {
        let path = path(dir);
        let failed = |what: &str| LogError::io(format!("{what} {}", path.display()));
        let file = private_file().read(true).write(true).create(true).truncate(false).open(&path);
        let file = Arc::new(file.map_err(failed("opening"))?);
        let size = SLOT_BYTES as u64 * N_SLOTS;
        if file.metadata().map_err(failed("reading"))?.len() != size {
            // Written, not only sized: later writes must find their blocks.
            file.set_len(0)
                .and_then(|()| file.write_all_at(&vec![0; SLOT_BYTES * 2], 0))
                .map_err(failed("writing"))?;
        }
        let syncing = Arc::new(Syncing::default());
        let (of_thread, synced) = (Arc::clone(&syncing), Arc::clone(&file));
        let thread = std::thread::Builder::new()
            .name("store-watermark".to_owned())
            .spawn(move || of_thread.run(&synced))
            .map_err(LogError::io("starting the thread that syncs the watermark"))?;
        let waker = thread.thread().clone();
        let mut opened = Self { file, path, last: watermark, syncing, thread: Some(thread), waker };
        // Both slots.
        opened.write(watermark)?;
        opened.write_durably(watermark)?;
        sync_dir(dir)?;
        Ok(opened)
    }

    pub(crate) fn last(&self) -> Watermark {
        self.last
    }

    /// Writes what is true now, with the next sequence. It is synced within a second or so.
    pub(crate) fn write(&mut self, watermark: Watermark) -> Result<(), LogError> {
        let watermark = Watermark { sequence: self.last.sequence + 1, ..watermark };
        let offset = watermark.sequence % N_SLOTS * SLOT_BYTES as u64;
        let written = self.file.write_all_at(&watermark.encode(), offset);
        written.map_err(|error| LogError::io(format!("writing {}", self.path.display()))(error))?;
        self.last = watermark;
        if !self.syncing.is_dirty.swap(true, Ordering::AcqRel) {
            self.waker.unpark();
        }
        Ok(())
    }

    /// As [`WatermarkFile::write`], durable when it returns.
    pub(crate) fn write_durably(&mut self, watermark: Watermark) -> Result<(), LogError> {
        self.write(watermark)?;
        self.file.sync_all().map_err(LogError::io(format!("syncing {}", self.path.display())))
    }
}

impl Drop for WatermarkFile {
    fn drop(&mut self) {
        self.syncing.ends.store(true, Ordering::Release);
        self.waker.unpark();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that syncs the watermark has panicked");
        }
    }
}

impl Syncing {
    fn run(&self, file: &File) {
        while !self.ends.load(Ordering::Acquire) {
            if !self.is_dirty.load(Ordering::Acquire) {
                std::thread::park();
                continue;
            }
            let due = Instant::now() + SYNC_PERIOD;
            while !self.ends.load(Ordering::Acquire)
                && let Some(left) = due.checked_duration_since(Instant::now())
            {
                std::thread::park_timeout(left);
            }
            self.is_dirty.store(false, Ordering::Release);
            if let Err(error) = file.sync_data() {
                // It claims less after a loss of power; nothing else.
                tracing::warn!(%error, "the watermark of the store could not be synced");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn mark(revision: u64) -> Watermark {
        let etcd = None;
        Watermark { store: 7, oldest: 2, newest: 3, floor: 5, base: 9, revision, crc: 77, sequence: 0, etcd }
    }

    #[test]
    fn a_slot_says_in_which_etcd_the_log_is() {
        let etcd = Some(EtcdMark { cluster: u64::MAX - 1, revision: 12 });
        for watermark in [Watermark { etcd, ..mark(4) }, mark(4)] {
            assert_eq!(Watermark::decode(&watermark.encode()), Some(watermark));
        }
    }

    #[test]
    fn the_last_of_two_slots_holds_and_either_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Found::read(dir.path()).unwrap(), Found::Missing);
        let mut file = WatermarkFile::open(dir.path(), mark(10)).unwrap();
        for revision in 11..20 {
            file.write(mark(revision)).unwrap();
            let Found::Whole(found) = Found::read(dir.path()).unwrap() else { panic!("both are whole") };
            assert_eq!(found, Watermark { sequence: found.sequence, ..mark(revision) });
        }
        let last = file.last();
        drop(file);
        let whole = fs::read(path(dir.path())).unwrap();
        assert_eq!(whole.len(), 2 * SLOT_BYTES);
        let last_slot = usize::try_from(last.sequence % N_SLOTS).unwrap() * SLOT_BYTES;
        for (slot, expected) in [(last_slot, 18), (SLOT_BYTES - last_slot, 19)] {
            let mut rotten = whole.clone();
            rotten[slot + 20] ^= 1;
            let found = Found::decode(&rotten);
            assert!(matches!(found, Found::Half(found) if found.revision == expected), "{found:?}");
        }
        assert_eq!(Found::decode(&[]), Found::Missing);
        assert_eq!(Found::decode(&[0; 2 * SLOT_BYTES]), Found::Missing);
        assert_eq!(Found::decode(&[1; 2 * SLOT_BYTES]), Found::Rotten);
        // A file of another size is made anew, and goes on behind what was known.
        fs::write(path(dir.path()), [1; 100]).unwrap();
        let file = WatermarkFile::open(dir.path(), last).unwrap();
        assert_eq!(Found::read(dir.path()).unwrap(), Found::Whole(file.last()));
        assert_eq!(file.last(), Watermark { sequence: last.sequence + 2, ..last });
    }

    proptest! {
        #[test]
        fn no_damage_raises_what_is_claimed(
            revision in 1..u64::MAX,
            at in 0..2 * SLOT_BYTES,
            garbage in prop::collection::vec(any::<u8>(), 0..200),
            cut in 0..2 * SLOT_BYTES,
            cuts in any::<bool>(),
        ) {
            let slot = |sequence, revision| {
                let mut bytes = Watermark { sequence, ..mark(revision) }.encode();
                bytes.resize(SLOT_BYTES, 0);
                bytes
            };
            let mut bytes = [slot(4, revision - 1), slot(5, revision)].concat();
            if cuts {
                bytes.truncate(cut);
            }
            let end = (at + garbage.len()).min(bytes.len());
            if at < end {
                bytes[at..end].copy_from_slice(&garbage[..end - at]);
            }
            if let Some(found) = Found::decode(&bytes).watermark() {
                prop_assert!(found.revision == revision || found.revision == revision - 1);
                prop_assert_eq!(*found, Watermark { sequence: found.sequence, ..mark(found.revision) });
            }
        }
    }
}
