//! The log in embedded sled 0.34.7, one directory per generation.
//!
//! What makes it durable, each point measured or read in sled's source: `flush` alone does not reach the disk
//! on Linux, so each commit is followed by `fdatasync` of sled's `db` file; values stay under 7 KiB, since
//! sled moves large messages to files that it never syncs; the chunks of a group go in one batch, which sled
//! applies atomically, or are a single entry, which is atomic anyway; `conf` and the directories are synced after creation. Opening a torn store can destroy
//! it, so an unclean stop is followed by a copy of all that was being written before sled may touch it.
//!
//! Once the snapshot of a generation is complete, those before it are history: they are sealed, which says
//! durably that nothing is written there any more, and closed. Recovery neither copies nor opens sealed generations;
//! their files are opened when a watcher reads them, and closed when others are read instead.
//!
//! ```text
//! <dir>/lock                held while a process has the store
//! <dir>/clean               there after an orderly end, gone while the store is open
//! <dir>/gen-00000007/       sled's files of a generation
//! <dir>/gen-00000007.sealed what is known of a generation that is history
//! <dir>/gen-00000007.ready  there once the generation is durably created, gone before it is removed
//! <dir>/aside/              copy made before opening after an unclean stop
//! <dir>/aside.ready         the copy is whole: the last opening has not succeeded, the next starts from it
//! ```

mod aside;
mod files;
mod generation;

use std::{
    collections::VecDeque,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use godel_core::ids::Revision;
use parking_lot::{Mutex, RwLock};

pub(crate) use self::aside::{Which, copy_for_reading, is_store};
use self::{
    aside::{generation_numbers, remove_unready, set_aside},
    files::{dir_bytes, remove_dir, remove_file, sync_dir, write_marker},
    generation::{Base, Db, SledGeneration, engine, log_key, log_key_first, snapshot_key},
};
use super::{Chunks, End, Fence, Generation, Log, LogError, LogReader, Manifest, SnapshotPart};
use crate::{
    crash::CrashPoints,
    history::Extent,
    store::{OpenError, SledConfig, SyncMode},
};

/// Sealed generations that stay open after they were read. A watcher reads one after the other, in small steps.
const RECENT_MAX: usize = 3;

/// The engine. See the module.
#[derive(Debug)]
pub struct SledLog {
    files: Arc<Files>,
    crash: CrashPoints,
    _lock: File,
}

/// What the writer and the readers share.
#[derive(Debug)]
struct Files {
    dir: PathBuf,
    sync: SyncMode,
    /// Oldest first.
    generations: RwLock<Vec<Arc<SledGeneration>>>,
    /// Sealed generations read last, the latest at the end.
    recent: Mutex<VecDeque<Arc<Db>>>,
}

impl SledLog {
    /// Opens the store's files, or makes new ones; takes the lock.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: &SledConfig, crash: CrashPoints) -> Result<Self, OpenError> {
        let dir = &config.dir;
        fs::create_dir_all(dir).map_err(LogError::io(format!("creating {}", dir.display())))?;
        let lock = lock(dir)?;
        set_aside(dir)?;
        remove_file(&dir.join("clean"))?;
        remove_unready(dir)?;
        sync_dir(dir)?;
        let mut generations = Vec::new();
        for number in generation_numbers(dir)? {
            generations.push(Arc::new(SledGeneration::open(dir, number, config.sync)?));
        }
        let files = Files {
            dir: dir.clone(),
            sync: config.sync,
            generations: RwLock::new(generations),
            recent: Mutex::default(),
        };
        let mut log = Self { files: Arc::new(files), crash, _lock: lock };
        if log.files.generations.read().is_empty() {
            log.create(Base { revision: 0, previous_crc: 0 })?;
            log.put_snapshot(Revision(0), SnapshotPart::Complete(Manifest::default()))?;
            if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                sync_dir(parent)?;
            }
        }
        Ok(log)
    }

    fn create(&mut self, base: Base) -> Result<(), LogError> {
        let number = self.files.generations.read().last().map_or(1, |newest| newest.number + 1);
        let generation = SledGeneration::create(&self.files.dir, number, base, self.files.sync)?;
        self.files.generations.write().push(Arc::new(generation));
        Ok(())
    }
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(LogError::io(format!("opening {}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::Locked { dir: dir.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(LogError::io("locking the store")(error).into()),
    }
}

fn free_bytes(dir: &Path) -> Result<u64, LogError> {
    let stat = rustix::fs::statvfs(dir)
        .map_err(|error| LogError::io(format!("asking for free space in {}", dir.display()))(error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Closes files that are written no more, with sled's cache and tables of them. sled may take its time: commits need
/// not wait.
fn close_aside(db: Arc<Db>) {
    let closing = std::thread::Builder::new().name("store-close".to_owned()).spawn(move || drop(db));
    if let Err(error) = closing {
        tracing::debug!(%error, "closed without a thread of its own");
    }
}

impl Files {
    fn generation(&self, base: Revision) -> Result<Arc<SledGeneration>, LogError> {
        let generations = self.generations.read();
        let found = generations.iter().find(|generation| generation.base.revision == base.0);
        found.cloned().ok_or_else(|| LogError::Corrupt(format!("there is no generation with base {base}")))
    }

    fn newest(&self) -> Result<Arc<SledGeneration>, LogError> {
        let newest = self.generations.read().last().cloned();
        newest.ok_or_else(|| LogError::Corrupt("there is no generation".to_owned()))
    }

    /// The open files of a generation; sealed ones stay open until others were read.
    fn db(&self, base: Revision) -> Result<Arc<Db>, LogError> {
        let generation = self.generation(base)?;
        let db = generation.db()?;
        if generation.is_sealed() {
            self.keep_open(Arc::clone(&db));
        }
        Ok(db)
    }

    fn keep_open(&self, db: Arc<Db>) {
        let mut recent = self.recent.lock();
        recent.retain(|other| !Arc::ptr_eq(other, &db));
        recent.push_back(db);
        let closed = if recent.len() > RECENT_MAX { recent.pop_front() } else { None };
        // sled may take its time; nobody else need wait.
        drop(recent);
        drop(closed);
    }
}

impl Log for SledLog {
    fn append(&mut self, first: Revision, chunks: &[Bytes], _fence: Fence) -> Result<(), LogError> {
        let entries = (0u16..).zip(chunks).map(|(index, chunk)| (log_key(first.0, index), &chunk[..]));
        self.files.newest()?.write(entries, &self.crash)
    }

    fn put_snapshot(&mut self, revision: Revision, part: SnapshotPart<'_>) -> Result<(), LogError> {
        match part {
            SnapshotPart::Begin(end) => {
                let before = self.files.newest()?;
                self.create(Base { revision: revision.0, previous_crc: end.crc })?;
                before.put_end(end)
            }
            SnapshotPart::Piece { attempt, piece, chunks } => {
                let entries =
                    (0u16..).zip(chunks).map(|(idx, chunk)| (snapshot_key(attempt, piece, idx), &chunk[..]));
                self.files.generation(revision)?.write(entries, &CrashPoints::default())
            }
            SnapshotPart::Complete(manifest) => {
                self.files.generation(revision)?.complete(manifest)?;
                let generations = self.files.generations.read().clone();
                for older in generations.iter().filter(|older| older.base.revision < revision.0) {
                    older.seal()?.into_iter().for_each(close_aside);
                }
                Ok(())
            }
        }
    }

    fn drop_before(&mut self, revision: Revision) -> Result<(), LogError> {
        let mut generations = self.files.generations.write();
        let keep = generations.iter().position(|generation| generation.base.revision >= revision.0);
        let dropped: Vec<_> = generations.drain(..keep.unwrap_or(0)).collect();
        drop(generations);
        for generation in &dropped {
            generation.doom()?;
        }
        let closed: VecDeque<_> = {
            let mut recent = self.files.recent.lock();
            let (closed, kept) = recent.drain(..).partition(|db| db.is_doomed());
            *recent = kept;
            closed
        };
        drop(closed);
        sync_dir(&self.files.dir)
    }

    fn drop_after(&mut self, revision: Revision) -> Result<(), LogError> {
        for generation in self.files.generations.read().iter().filter(|generation| !generation.is_sealed()) {
            let db = generation.db()?;
            for key in db.range(log_key(revision.0 + 1, 0)..vec![b'l' + 1]).keys() {
                db.remove(key.map_err(engine)?).map_err(engine)?;
            }
            generation.write([], &CrashPoints::default())?;
        }
        Ok(())
    }

    fn fence(&self) -> Fence {
        // The lock on the directory is the fence.
        Fence(0)
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::clone(&self.files) as Arc<dyn LogReader>
    }

    fn free_bytes(&self) -> Result<Option<u64>, LogError> {
        free_bytes(&self.files.dir).map(Some)
    }

    fn opened(&mut self, extents: &[Extent]) -> Result<(), LogError> {
        let dir = &self.files.dir;
        let generations = self.files.generations.read().clone();
        for generation in generations.iter().filter(|generation| !generation.is_sealed()) {
            // What sled changed while it opened is made durable before the copy goes.
            generation.write([], &CrashPoints::default())?;
        }
        for pair in generations.windows(2) {
            // A crash may have come between the creation of the second and this.
            let next = pair[1].base;
            if let Some(&ended) = extents.iter().find(|extent| extent.base.0 == pair[0].base.revision) {
                pair[0].put_end(End::new(Revision(next.revision), next.previous_crc, ended))?;
            }
        }
        remove_file(&dir.join("aside.ready"))?;
        sync_dir(dir)?;
        remove_dir(&dir.join("aside"))
    }

    fn close(self: Box<Self>) -> Result<(), LogError> {
        let generations = std::mem::take(&mut *self.files.generations.write());
        for generation in generations.iter().filter(|generation| !generation.is_sealed()) {
            generation.db()?.sync_all()?;
        }
        drop(generations);
        drop(std::mem::take(&mut *self.files.recent.lock()));
        write_marker(&self.files.dir.join("clean"))
    }
}

impl LogReader for Files {
    fn generations(&self) -> Vec<Generation> {
        self.generations.read().iter().map(|generation| generation.describe()).collect()
    }

    fn scan(&self, base: Revision, from: Revision) -> Result<Chunks, LogError> {
        let db = self.db(base)?;
        let before = db.range(log_key(0, 0)..=log_key(from.0, u16::MAX)).next_back();
        let first = match before {
            Some(entry) => log_key_first(&entry.map_err(engine)?.0).unwrap_or(0),
            None => 0,
        };
        Ok(entries(db, log_key(first, 0), vec![b'l' + 1]))
    }

    fn snapshot(&self, base: Revision, attempt: u64) -> Result<Chunks, LogError> {
        let db = self.db(base)?;
        Ok(entries(db, snapshot_key(attempt, 0, 0), snapshot_key(attempt, u64::MAX, u16::MAX)))
    }

    fn disk_bytes(&self) -> u64 {
        dir_bytes(&self.dir)
    }
}

/// Values of a range of keys; the generation's files stay as long as this is read.
fn entries(db: Arc<Db>, from: Vec<u8>, to: Vec<u8>) -> Chunks {
    let range = db.range(from..to);
    Box::new(range.map(move |entry| {
        let _kept = &db;
        entry.map(|(_, value)| Bytes::copy_from_slice(&value)).map_err(engine)
    }))
}
