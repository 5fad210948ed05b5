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
//! Damaged files may keep sled busy for ever. So each file is judged before sled opens it (`frames`), and sled reads on a
//! thread that is given up if it does not come to an end (`guard`).
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
mod frames;
mod generation;
mod guard;
mod reading;
pub(crate) mod repair;
mod writing;

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File},
    hash::{BuildHasher as _, RandomState},
    path::{Path, PathBuf},
    sync::Arc,
};

use godel_base::ids::Revision;
use parking_lot::{Mutex, RwLock};

use self::{
    aside::{Survey, generation_path, prepare},
    files::{create_private_dir, make_private, private_file, remove_dir, remove_file, sync_dir},
    generation::{Base, Db, SledGeneration, remove_sled_snapshots},
    watermark::{Found, Watermark, WatermarkFile},
};
use godel_crash::CrashPoints;

use super::{Log as _, LogError, Manifest, SnapshotPart, files, watermark};
use crate::store::{OpenError, SledConfig, SyncMode};

pub(crate) use self::aside::{Copied, Which, copy_for_reading, is_store};

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
            tracing::warn!(%error, "other users may read the store");
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
                    tracing::error!(%error, "the store could not be restored to its previous state");
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
            etcd: None,
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

#[cfg(test)]
mod tests;
