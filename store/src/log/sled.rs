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
//! What must be there says the watermark, a small file of fixed size that is written after each sync. It is read
//! before anything is opened or removed; what it claims and the log lacks is damage, and then everything is put back
//! as it was.
//!
//! The directory itself is locked while a process has the store, and `lock` too, for older versions.
//!
//! ```text
//! <dir>/lock                locked while a process has the store
//! <dir>/watermark           how far the log was synced
//! <dir>/clean               there after an orderly end, with checksums of what was written; gone while it is open
//! <dir>/gen-00000007/       sled's files of a generation
//! <dir>/gen-00000007.sealed what is known of a generation that is history
//! <dir>/gen-00000007.ready  there once the generation is durably created, gone before it is removed
//! <dir>/aside/              copy made before opening after an unclean stop
//! <dir>/looking/            copies of history, while it is not decided whether the store opens
//! <dir>/aside.ready         the copy is whole: the last opening has not succeeded, the next starts from it
//! <dir>/repaired/           what `admin::truncate` makes
//! <dir>/repaired.ready      that is whole, and takes the place of what is here
//! <dir>/damaged-1/          what was here before
//! ```

mod aside;
pub(crate) mod files;
mod generation;
pub(crate) mod repair;
mod watermark;

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    hash::{BuildHasher as _, RandomState},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use godel_domain::ids::Revision;
use parking_lot::{Mutex, RwLock};

use self::{
    aside::{Survey, generation_path, prepare, put_back, ready_path, remove_leftovers, write_clean},
    files::{
        create_private_dir, dir_bytes, make_private, private_file, remove_dir, remove_file, sync_dir,
        write_file, write_marker,
    },
    generation::{
        Base, Db, SledGeneration, engine, log_key, log_key_first, remove_sled_snapshots, snapshot_key,
        wait_until_closed,
    },
    watermark::{Found, Watermark, WatermarkFile},
};
use super::{
    Chunks, Claim, Claimed, End, Fence, Generation, Log, LogError, LogReader, Manifest, SnapshotPart,
};
use crate::{
    crash::CrashPoints,
    history::Extent,
    store::{OpenError, SledConfig, SyncMode},
};

pub(crate) use self::aside::{Copied, Which, copy_for_reading, is_store};

/// Sealed generations that stay open after they were read. A watcher reads one after the other, in small steps.
const RECENT_MAX: usize = 3;

/// The engine. See the module.
#[derive(Debug)]
pub struct SledLog {
    files: Arc<Files>,
    crash: CrashPoints,
    /// What was found of it on opening.
    found: Found,
    /// There once it was written by this process.
    watermark: Option<WatermarkFile>,
    /// What could not be opened.
    unopened: Vec<String>,
    /// Generations that have lost their marker.
    adopted: Vec<u64>,
    /// Directories in which nothing was committed.
    leftovers: Vec<u64>,
    /// There is a copy of what sled may have changed by opening it, or this is one.
    is_copied: bool,
    /// Content of the marker of an orderly end, which has gone by opening it.
    clean: Option<Vec<u8>>,
    _lock: Option<Lock>,
}

/// Held by the one process that has a store.
#[derive(Debug)]
pub(crate) struct Lock {
    _dir: File,
    _file: File,
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
    /// Copies of sealed generations by number, while it is not decided whether the store opens: until then nothing
    /// is to be changed, and sled changes what it opens.
    looked_at: Mutex<Option<BTreeMap<u64, Arc<Db>>>>,
}

impl SledLog {
    /// Opens the store's files, or makes new ones; takes the lock.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: &SledConfig, crash: CrashPoints) -> Result<Self, OpenError> {
        let dir = &config.dir;
        create_private_dir(dir)?;
        let lock = lock(dir)?;
        if let Err(error) = make_private(dir) {
            tracing::warn!(%error, "others may read the store");
        }
        let survey = Survey::of(dir)?;
        let log = Self { _lock: Some(lock), ..Self::unlocked(config, crash, survey.watermark.clone()) };
        if survey.is_new() {
            return log.begin_store();
        }
        let prepared = prepare(dir, &survey)?;
        remove_dir(&looking(dir))?;
        remove_file(&dir.join("clean"))?;
        sync_dir(dir)?;
        *log.files.looked_at.lock() = Some(BTreeMap::new());
        let mut log = Self {
            adopted: survey.adopted(),
            leftovers: survey.leftovers(),
            is_copied: prepared.is_copied,
            clean: survey.clean,
            ..log
        };
        match log.open_generations(&prepared.numbers) {
            Ok(()) => Ok(log),
            Err(error) => {
                if let Err(error) = Box::new(log).abandon() {
                    tracing::error!(%error, "the store could not be put back as it was");
                }
                Err(error.into())
            }
        }
    }

    /// Opens a copy made by [`copy_for_reading`], which may be changed.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn open_copy(dir: &Path) -> Result<Self, OpenError> {
        let survey = Survey::of(dir)?;
        let mut log = Self::unlocked(&SledConfig::new(dir), CrashPoints::default(), survey.watermark.clone());
        log.is_copied = true;
        log.open_generations(&survey.generations())?;
        Ok(log)
    }

    fn unlocked(config: &SledConfig, crash: CrashPoints, found: Found) -> Self {
        let files = Files {
            dir: config.dir.clone(),
            sync: config.sync,
            generations: RwLock::default(),
            recent: Mutex::default(),
            looked_at: Mutex::default(),
        };
        Self {
            files: Arc::new(files),
            crash,
            found,
            watermark: None,
            unopened: Vec::new(),
            adopted: Vec::new(),
            leftovers: Vec::new(),
            is_copied: false,
            clean: None,
            _lock: None,
        }
    }

    /// The first generation of a new store.
    fn begin_store(mut self) -> Result<Self, OpenError> {
        let dir = self.files.dir.clone();
        let store = RandomState::new().hash_one(&dir).max(1);
        // Before the generation: a generation without a watermark has lost it. It has no newest until there is one.
        let first = Watermark { store, oldest: 1, newest: 0, floor: 1, ..Watermark::default() };
        self.watermark = Some(WatermarkFile::open(&dir, first)?);
        self.create(Base { revision: 0, previous_crc: 0, store })?;
        self.put_snapshot(Revision(0), SnapshotPart::Complete(Manifest::default()))?;
        self.mark_generations(Revision(0), 0)?;
        // What was found is what was just written: nothing is missing of a new store.
        if let Some(file) = &self.watermark {
            self.found = Found::Whole(file.last());
        }
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent)?;
        }
        Ok(self)
    }

    /// Opens what can be opened; notes what is damaged.
    fn open_generations(&mut self, numbers: &[u64]) -> Result<(), LogError> {
        let mut generations = Vec::new();
        for number in numbers {
            let open = || SledGeneration::open(&self.files.dir, *number, self.files.sync);
            let opened = match open() {
                // sled's snapshot only spares it a look at the whole log, and what it finds there is checked.
                Err(LogError::Corrupt(what)) if self.is_copied => {
                    let gone = remove_sled_snapshots(&generation_path(&self.files.dir, *number))?;
                    if gone { open() } else { Err(LogError::Corrupt(what)) }
                }
                opened => opened,
            };
            match opened {
                Ok(generation) => generations.push(Arc::new(generation)),
                Err(LogError::Corrupt(what)) => self.unopened.push(what),
                Err(error) => {
                    *self.files.generations.write() = generations;
                    return Err(error);
                }
            }
        }
        if numbers.is_empty() {
            self.unopened.push("no generation is there".to_owned());
        }
        *self.files.generations.write() = generations;
        if let Found::Half(watermark) = self.found {
            tracing::warn!(
                revision = watermark.revision,
                "one of the two slots of the watermark cannot be read; the other one proves this revision"
            );
        }
        Ok(())
    }

    fn create(&mut self, base: Base) -> Result<(), LogError> {
        let number = self.files.generations.read().last().map_or(1, |newest| newest.number + 1);
        let generation = SledGeneration::create(&self.files.dir, number, base, self.files.sync)?;
        self.files.generations.write().push(Arc::new(generation));
        Ok(())
    }

    /// What ties watermark and generations of this store together, and to no other.
    fn store(&self) -> u64 {
        let written = self.watermark.as_ref().map(|watermark| watermark.last().store);
        let of_generation = self.files.generations.read().last().map(|newest| newest.base.store);
        let found = self.found.watermark().map(|found| found.store);
        let known = [written, of_generation, found].into_iter().flatten().find(|store| *store > 0);
        known.unwrap_or_else(|| RandomState::new().hash_one(&self.files.dir).max(1))
    }

    /// Notes which generations there are, the log ending at `last` with `crc`; before anything is committed to a new
    /// one, and before an old one goes.
    fn mark_generations(&mut self, last: Revision, crc: u32) -> Result<(), LogError> {
        let store = self.store();
        let generations = self.files.generations.read();
        let (Some(oldest), Some(newest)) = (generations.first(), generations.last()) else { return Ok(()) };
        let watermark = Watermark {
            store,
            sequence: self.found.watermark().map_or(0, |found| found.sequence),
            oldest: oldest.number,
            newest: newest.number,
            floor: oldest.base.revision + 1,
            base: newest.base.revision,
            revision: last.0,
            crc,
        };
        drop(generations);
        match &mut self.watermark {
            Some(file) => file.write_durably(watermark),
            None => {
                self.watermark = Some(WatermarkFile::open(&self.files.dir, watermark)?);
                Ok(())
            }
        }
    }

    /// Closes all files; waits until sled has let go of those that are written.
    fn close_files(&mut self) -> Vec<u64> {
        let generations = std::mem::take(&mut *self.files.generations.write());
        let written: Vec<u64> = generations
            .iter()
            .filter(|generation| !generation.is_sealed())
            .map(|generation| generation.number)
            .collect();
        drop(generations);
        drop(std::mem::take(&mut *self.files.recent.lock()));
        written
    }
}

/// Takes the store in `dir` for this process, and finishes a repair that was cut off.
pub(crate) fn lock(dir: &Path) -> Result<Lock, OpenError> {
    let taken = |file: File| match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::Locked { dir: dir.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(LogError::io("locking the store")(error).into()),
    };
    // The directory cannot be removed from under who has it open: this is what holds.
    let handle = File::open(dir).map_err(LogError::io(format!("opening {}", dir.display())))?;
    let handle = taken(handle)?;
    let path = dir.join("lock");
    let file = private_file().create(true).truncate(false).write(true).open(&path);
    let file = taken(file.map_err(LogError::io(format!("opening {}", path.display())))?)?;
    repair::finish(dir)?;
    Ok(Lock { _dir: handle, _file: file })
}

/// Where generations are copied to that must be looked at before it is known whether the store opens.
fn looking(dir: &Path) -> PathBuf {
    dir.join("looking")
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
        if generation.is_sealed()
            && let Some(looked_at) = &mut *self.looked_at.lock()
        {
            if let Some(db) = looked_at.get(&generation.number) {
                return Ok(Arc::clone(db));
            }
            let db = generation.copy_open(&looking(&self.dir))?;
            looked_at.insert(generation.number, Arc::clone(&db));
            return Ok(db);
        }
        let db = generation.db()?;
        if generation.is_sealed() {
            self.keep_open(Arc::clone(&db));
        }
        Ok(db)
    }

    /// It is decided whether the store opens: copies that were made for that go.
    fn decide(&self) -> Result<(), LogError> {
        drop(self.looked_at.lock().take());
        remove_dir(&looking(&self.dir))
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

    fn synced(&mut self, last: Revision, crc: u32) -> Result<(), LogError> {
        let Some(file) = &mut self.watermark else { return Ok(()) };
        let watermark = Watermark { revision: last.0, crc, ..file.last() };
        file.write(watermark)
    }

    fn claimed(&self) -> Claimed {
        let of_generation = self.files.generations.read().last().map_or(0, |newest| newest.base.store);
        match &self.found {
            Found::Whole(watermark) | Found::Half(watermark) => {
                if of_generation > 0 && of_generation != watermark.store {
                    return Claimed::Lost("the watermark is of another store".to_owned());
                }
                Claimed::AtLeast(Claim {
                    floor: Revision(watermark.floor),
                    last: Revision(watermark.revision),
                    crc: watermark.crc,
                })
            }
            Found::Rotten => Claimed::Lost("the watermark cannot be read".to_owned()),
            Found::Missing if of_generation > 0 => Claimed::Lost("the watermark is missing".to_owned()),
            Found::Missing => Claimed::Never,
        }
    }

    fn unopened(&self) -> Vec<String> {
        self.unopened.clone()
    }

    fn put_snapshot(&mut self, revision: Revision, part: SnapshotPart<'_>) -> Result<(), LogError> {
        match part {
            SnapshotPart::Begin(end) => {
                let before = self.files.newest()?;
                let store = self.store();
                self.create(Base { revision: revision.0, previous_crc: end.crc, store })?;
                self.mark_generations(revision, end.crc)?;
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
        if dropped.is_empty() {
            return Ok(());
        }
        if let Some(file) = &self.watermark {
            let Watermark { revision, crc, .. } = file.last();
            self.mark_generations(Revision(revision), crc)?;
        }
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

    fn copy_bytes(&self) -> u64 {
        let generations = self.files.generations.read();
        let written = generations.iter().filter(|generation| !generation.is_sealed());
        written.map(|generation| generation.written_bytes()).sum()
    }

    fn opened(&mut self, extents: &[Extent], last: Revision, crc: u32) -> Result<(), LogError> {
        let dir = &self.files.dir.clone();
        self.files.decide()?;
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
        let complete = generations.iter().rposition(|generation| generation.describe().manifest.is_some());
        for older in generations.iter().take(complete.unwrap_or(0)) {
            // It has lost its seal, or a crash came before it had one.
            older.seal()?.into_iter().for_each(close_aside);
        }
        for number in std::mem::take(&mut self.adopted) {
            tracing::warn!(generation = number, "a generation had lost its marker; it has one again");
            write_marker(&ready_path(&generation_path(dir, number)))?;
        }
        // What is here is good and durable: the copy is not needed any more. It goes before the watermark is written,
        // or a kill in between would leave a copy that a watermark contradicts.
        remove_file(&dir.join("aside.ready"))?;
        sync_dir(dir)?;
        self.mark_generations(last, crc)?;
        remove_leftovers(dir, &std::mem::take(&mut self.leftovers))?;
        remove_dir(&dir.join("aside"))
    }

    fn abandon(mut self: Box<Self>) -> Result<(), LogError> {
        let dir = self.files.dir.clone();
        self.files.decide()?;
        for number in self.close_files() {
            wait_until_closed(&generation_path(&dir, number));
        }
        if !self.is_copied {
            return Ok(());
        }
        put_back(&dir)?;
        self.clean.as_ref().map_or(Ok(()), |clean| write_file(&dir.join("clean"), clean))
    }

    fn close(mut self: Box<Self>) -> Result<(), LogError> {
        for generation in self.files.generations.read().iter().filter(|generation| !generation.is_sealed()) {
            generation.db()?.sync_all()?;
        }
        if let Some(file) = &mut self.watermark {
            let last = file.last();
            file.write_durably(last)?;
        }
        let dir = self.files.dir.clone();
        let written = self.close_files();
        // What sled does at its very end belongs to what it leaves.
        if written.iter().all(|number| wait_until_closed(&generation_path(&dir, *number))) {
            return write_clean(&dir, &written);
        }
        tracing::warn!("somebody still reads the store: its end is not marked as orderly");
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store;

    #[test]
    fn a_store_of_an_older_version_gets_a_watermark() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, config) = (dir.path(), SledConfig::new(dir.path()));
        let base = Base { revision: 0, previous_crc: 0, store: 0 };
        let generation = SledGeneration::create(dir, 1, base, SyncMode::Full).unwrap();
        generation.complete(Manifest::default()).unwrap();
        drop(generation);
        let log = SledLog::open(&config, CrashPoints::default()).unwrap();
        assert_eq!(log.claimed(), Claimed::Never);
        let (log, ..) = store::recover(Box::new(log)).unwrap();
        drop(log);
        let found = Found::read(dir).unwrap();
        let Found::Whole(watermark) = found else { panic!("{found:?}") };
        assert!(watermark.store > 0 && (watermark.oldest, watermark.newest) == (1, 1));
        let log = SledLog::open(&config, CrashPoints::default()).unwrap();
        assert!(log.claimed().claim().is_some());
        let (log, ..) = store::recover(Box::new(log)).unwrap();
        // It can be lost again without harm: its generation does not know it.
        drop(log);
        remove_file(&dir.join("watermark")).unwrap();
        assert_eq!(SledLog::open(&config, CrashPoints::default()).unwrap().claimed(), Claimed::Never);
    }

    #[test]
    fn a_store_that_was_never_finished_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, config) = (dir.path(), SledConfig::new(dir.path()));
        let first = Watermark { store: 7, oldest: 1, newest: 0, floor: 1, ..Watermark::default() };
        drop(WatermarkFile::open(dir, first).unwrap());
        let base = Base { revision: 0, previous_crc: 0, store: 7 };
        drop(SledGeneration::create(dir, 1, base, SyncMode::Full).unwrap());
        assert!(!is_store(dir));
        let log = SledLog::open(&config, CrashPoints::default()).unwrap();
        store::recover(Box::new(log)).unwrap();
        assert!(is_store(dir));
        // The watermark of another store proves nothing.
        let mut other = Found::read(dir).unwrap().watermark().copied().unwrap();
        other.store += 1;
        other.revision = 1_000;
        drop(WatermarkFile::open(dir, other).unwrap());
        let log = SledLog::open(&config, CrashPoints::default()).unwrap();
        assert!(matches!(log.claimed(), Claimed::Lost(why) if why.contains("another store")));
    }
}
