//! The log in embedded sled 0.34.7, one directory per generation.
//!
//! What makes it durable, each point measured or read in sled's source: `flush` alone does not reach the disk
//! on Linux, so each commit is followed by `fdatasync` of sled's `db` file; values stay under 7 KiB, since
//! sled moves large messages to files that it never syncs; all chunks of a group go in one batch, which sled
//! applies atomically; `conf` and the directories are synced after creation. Opening a torn store can destroy
//! it, so an unclean stop is followed by a copy of everything before sled may touch it.
//!
//! ```text
//! <dir>/lock               held while a process has the store
//! <dir>/clean              there after an orderly end, gone while the store is open
//! <dir>/gen-00000007/      sled's files of a generation
//! <dir>/gen-00000007.ready there once the generation is durably created, gone before it is removed
//! <dir>/aside/             copy made before opening after an unclean stop
//! <dir>/aside.ready        the copy is whole: the last opening has not succeeded, the next starts from it
//! ```

mod files;

use std::{
    fs::{self, File},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use godel_core::ids::Revision;
use parking_lot::{Mutex, RwLock};

use self::files::{copy_dir, dir_bytes, remove_dir, remove_file, sync_dir, sync_path, write_marker};
use super::{Chunks, Fence, Generation, Log, LogError, LogReader, Manifest, SnapshotPart};
use crate::{
    chunk::CHUNK_BYTES_MAX,
    crash::CrashPoints,
    store::{OpenError, SledConfig, SyncMode},
};

/// The truth is in our own memory; sled's cache serves recovery and old watch history.
const CACHE_BYTES: u64 = 16 << 20;
/// sled lets go of its file a moment after the last handle is dropped.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

const KEY_BASE: &[u8] = b"m/base";
const KEY_END: &[u8] = b"m/end";
const KEY_MANIFEST: &[u8] = b"m/manifest";

/// First record of a generation; as its last one, where the next begins.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct Base {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(uint32, tag = "2")]
    previous_crc: u32,
}

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
}

#[derive(Debug)]
struct SledGeneration {
    path: PathBuf,
    number: u64,
    base: Base,
    manifest: Mutex<Option<Manifest>>,
    end: Mutex<Option<Base>>,
    /// `None` only while it is dropped.
    db: Option<sled::Db>,
    file: File,
    sync: SyncMode,
    /// Its files go with the last who reads it.
    doomed: AtomicBool,
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
        let files = Files { dir: dir.clone(), sync: config.sync, generations: RwLock::new(generations) };
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

/// Whether a store was ever made in `dir`.
pub(crate) fn is_store(dir: &Path) -> bool {
    let has_generations = |dir: &Path| generation_numbers(dir).is_ok_and(|numbers| !numbers.is_empty());
    has_generations(dir) || (dir.join("aside.ready").exists() && has_generations(&dir.join("aside")))
}

/// A copy of the generations in `dir` in the new directory `target`, from which they can be opened without
/// touching `dir`. Takes the lock of `dir` meanwhile.
pub(crate) fn copy_for_reading(dir: &Path, target: &Path) -> Result<(), OpenError> {
    let _lock = lock(dir)?;
    let aside = dir.join("aside");
    let from = if dir.join("aside.ready").exists() { aside.as_path() } else { dir };
    copy_generations(from, target)?;
    write_marker(&target.join("clean"))?;
    Ok(())
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

/// Makes sure that what sled may destroy by opening it is there a second time.
fn set_aside(dir: &Path) -> Result<(), OpenError> {
    let (aside, ready) = (dir.join("aside"), dir.join("aside.ready"));
    if ready.exists() {
        tracing::warn!(dir = %dir.display(), "the last opening did not succeed; starting from the copy made before it");
        for number in generation_numbers(dir)? {
            remove_dir(&generation_path(dir, number))?;
        }
        copy_generations(&aside, dir)?;
        return Ok(());
    }
    remove_dir(&aside)?;
    if dir.join("clean").exists() || generation_numbers(dir)?.is_empty() {
        return Ok(());
    }
    let (needed, free) = (dir_bytes(dir), free_bytes(dir)?);
    if needed > free {
        return Err(OpenError::NoSpace { needed, free });
    }
    tracing::info!(dir = %dir.display(), bytes = needed, "unclean stop: copying the store before opening it");
    copy_generations(dir, &aside)?;
    write_marker(&ready)?;
    Ok(())
}

/// Copies ready generations, durably.
fn copy_generations(from: &Path, to: &Path) -> Result<(), LogError> {
    fs::create_dir_all(to).map_err(LogError::io(format!("creating {}", to.display())))?;
    for number in generation_numbers(from)? {
        let target = generation_path(to, number);
        copy_dir(&generation_path(from, number), &target)?;
        write_marker(&target.with_extension("ready"))?;
    }
    sync_dir(to)
}

/// Numbers of the generations that are durably there, ascending.
fn generation_numbers(dir: &Path) -> Result<Vec<u64>, LogError> {
    let entries = fs::read_dir(dir).map_err(LogError::io(format!("listing {}", dir.display())))?;
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(LogError::io(format!("listing {}", dir.display())))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("gen-")?.strip_suffix(".ready"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes what a crash left of generations that were being made or removed.
fn remove_unready(dir: &Path) -> Result<(), LogError> {
    let ready = generation_numbers(dir)?;
    let entries = fs::read_dir(dir).map_err(LogError::io(format!("listing {}", dir.display())))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("gen-")?.parse::<u64>().ok());
        if number.is_some_and(|number| !ready.contains(&number)) {
            remove_dir(&entry.path())?;
        }
    }
    Ok(())
}

fn generation_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("gen-{number:08}"))
}

fn free_bytes(dir: &Path) -> Result<u64, LogError> {
    let stat = rustix::fs::statvfs(dir)
        .map_err(|error| LogError::io(format!("asking for free space in {}", dir.display()))(error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn engine(error: sled::Error) -> LogError {
    match error {
        sled::Error::Corruption { .. } => LogError::Corrupt(format!("sled: {error}")),
        error => LogError::Engine(error.to_string()),
    }
}

/// Opens sled's files; an error or a panic there is data loss on this replica.
fn open_db(path: &Path, sync: SyncMode) -> Result<sled::Db, LogError> {
    let flush_every_ms = match sync {
        SyncMode::Full => Some(500),
        SyncMode::Unsafe => None,
    };
    let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES).flush_every_ms(flush_every_ms);
    let start = Instant::now();
    loop {
        match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(sled::Error::Io(error))) if is_locked(&error) && start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            // Not what is in the files: the disk, or who may use them.
            Ok(Err(sled::Error::Io(error))) => {
                return Err(LogError::io(format!("opening {}", path.display()))(error));
            }
            Ok(Err(error)) => {
                return Err(LogError::Corrupt(format!("{} does not open: {error}", path.display())));
            }
            Err(_) => {
                return Err(LogError::Corrupt(format!("{}: sled panicked on opening it", path.display())));
            }
        }
    }
}

fn is_locked(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.to_string().contains("could not acquire lock")
}

impl SledGeneration {
    fn open(dir: &Path, number: u64, sync: SyncMode) -> Result<Self, LogError> {
        let path = generation_path(dir, number);
        if !path.join("db").is_file() {
            return Err(LogError::Corrupt(format!("{} is not there", path.join("db").display())));
        }
        let db = open_db(&path, sync)?;
        let base = read_meta::<Base>(&db, KEY_BASE)?
            .ok_or_else(|| LogError::Corrupt(format!("{} has lost its beginning", path.display())))?;
        let manifest = read_meta::<Manifest>(&db, KEY_MANIFEST)?;
        let end = read_meta::<Base>(&db, KEY_END)?;
        let generation = Self::with(path, number, base, db, sync)?;
        *generation.manifest.lock() = manifest;
        *generation.end.lock() = end;
        Ok(generation)
    }

    fn create(dir: &Path, number: u64, base: Base, sync: SyncMode) -> Result<Self, LogError> {
        let path = generation_path(dir, number);
        remove_dir(&path)?;
        let db = open_db(&path, sync)?;
        let generation = Self::with(path, number, base, db, sync)?;
        generation.write([(KEY_BASE.to_vec(), &meta(&base)[..])], &CrashPoints::default())?;
        if sync == SyncMode::Full {
            for name in ["conf", "db"] {
                sync_path(&generation.path.join(name))?;
            }
            for sub in [generation.path.join("blobs"), generation.path.clone()] {
                if sub.is_dir() {
                    sync_dir(&sub)?;
                }
            }
            sync_dir(dir)?;
        }
        write_marker(&generation.path.with_extension("ready"))?;
        Ok(generation)
    }

    fn with(path: PathBuf, number: u64, base: Base, db: sled::Db, sync: SyncMode) -> Result<Self, LogError> {
        let db_path = path.join("db");
        let file = File::open(&db_path).map_err(LogError::io(format!("opening {}", db_path.display())))?;
        Ok(Self {
            path,
            number,
            base,
            manifest: Mutex::new(None),
            end: Mutex::new(None),
            db: Some(db),
            file,
            sync,
            doomed: AtomicBool::new(false),
        })
    }

    fn db(&self) -> &sled::Db {
        self.db.as_ref().expect("taken by drop only")
    }

    /// Writes entries in one batch. They are durable when it returns.
    fn write<'a>(
        &self,
        entries: impl IntoIterator<Item = (Vec<u8>, &'a [u8])>,
        crash: &CrashPoints,
    ) -> Result<(), LogError> {
        let mut batch = sled::Batch::default();
        for (key, value) in entries {
            if value.len() > CHUNK_BYTES_MAX {
                return Err(LogError::Engine(format!("a value of {} bytes is too large", value.len())));
            }
            batch.insert(key, value);
        }
        let db = self.db();
        db.apply_batch(batch).map_err(engine)?;
        crash.hit("store.after-append");
        if self.sync == SyncMode::Full {
            db.flush().map_err(engine)?;
            self.file.sync_data().map_err(LogError::io(format!("syncing {}", self.path.display())))?;
        }
        Ok(())
    }

    fn describe(&self) -> Generation {
        Generation {
            base: Revision(self.base.revision),
            previous_crc: self.base.previous_crc,
            manifest: *self.manifest.lock(),
            end: self.end.lock().map(|end| Revision(end.revision)),
        }
    }

    /// Says, durably, that the next generation exists, so that its loss is noticed.
    fn put_end(&self, next: Base) -> Result<(), LogError> {
        if self.end.lock().is_none() {
            self.write([(KEY_END.to_vec(), &meta(&next)[..])], &CrashPoints::default())?;
            *self.end.lock() = Some(next);
        }
        Ok(())
    }
}

impl Drop for SledGeneration {
    fn drop(&mut self) {
        drop(self.db.take());
        if self.doomed.load(Ordering::Acquire)
            && let Err(error) = remove_dir(&self.path)
        {
            // It has no marker any more: the next start removes it.
            tracing::warn!(%error, path = %self.path.display(), "an old generation could not be removed");
        }
    }
}

/// A small record with its checksum.
fn meta(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    let crc = crc32c::crc32c(&bytes);
    bytes.splice(0..0, crc.to_be_bytes());
    bytes
}

fn read_meta<M: prost::Message + Default>(db: &sled::Db, key: &[u8]) -> Result<Option<M>, LogError> {
    let Some(value) = db.get(key).map_err(engine)? else { return Ok(None) };
    let name = || String::from_utf8_lossy(key).into_owned();
    let body = value
        .split_at_checked(4)
        .filter(|(crc, body)| crc32c::crc32c(body).to_be_bytes() == *crc)
        .map(|(_, body)| body)
        .ok_or_else(|| LogError::Corrupt(format!("{}: checksum differs", name())))?;
    M::decode(body).map(Some).map_err(|_| LogError::Corrupt(format!("{} does not decode", name())))
}

fn log_key(first: u64, index: u16) -> Vec<u8> {
    let mut key = vec![b'l'];
    key.extend(first.to_be_bytes());
    key.extend(index.to_be_bytes());
    key
}

fn snapshot_key(attempt: u64, piece: u64, index: u16) -> Vec<u8> {
    let mut key = vec![b's'];
    key.extend(attempt.to_be_bytes());
    key.extend(piece.to_be_bytes());
    key.extend(index.to_be_bytes());
    key
}

/// First revision in a log key.
fn log_key_first(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?))
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
}

impl Log for SledLog {
    fn append(&mut self, first: Revision, chunks: &[Bytes], _fence: Fence) -> Result<(), LogError> {
        let entries = (0u16..).zip(chunks).map(|(index, chunk)| (log_key(first.0, index), &chunk[..]));
        self.files.newest()?.write(entries, &self.crash)
    }

    fn put_snapshot(&mut self, revision: Revision, part: SnapshotPart<'_>) -> Result<(), LogError> {
        match part {
            SnapshotPart::Begin { previous_crc } => {
                let (before, base) = (self.files.newest()?, Base { revision: revision.0, previous_crc });
                self.create(base)?;
                before.put_end(base)
            }
            SnapshotPart::Piece { attempt, piece, chunks } => {
                let entries =
                    (0u16..).zip(chunks).map(|(idx, chunk)| (snapshot_key(attempt, piece, idx), &chunk[..]));
                self.files.generation(revision)?.write(entries, &CrashPoints::default())
            }
            SnapshotPart::Complete(manifest) => {
                let generation = self.files.generation(revision)?;
                let entry = meta(&manifest);
                generation.write([(KEY_MANIFEST.to_vec(), &entry[..])], &CrashPoints::default())?;
                *generation.manifest.lock() = Some(manifest);
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
            remove_file(&generation.path.with_extension("ready"))?;
            generation.doomed.store(true, Ordering::Release);
        }
        sync_dir(&self.files.dir)
    }

    fn drop_after(&mut self, revision: Revision) -> Result<(), LogError> {
        for generation in self.files.generations.read().iter() {
            let db = generation.db();
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

    fn opened(&mut self) -> Result<(), LogError> {
        let dir = &self.files.dir;
        for generation in self.files.generations.read().iter() {
            // What sled changed while it opened is made durable before the copy goes.
            generation.write([], &CrashPoints::default())?;
        }
        for pair in self.files.generations.read().windows(2) {
            // A crash may have come between the creation of the second and this.
            pair[0].put_end(pair[1].base)?;
        }
        remove_file(&dir.join("aside.ready"))?;
        sync_dir(dir)?;
        remove_dir(&dir.join("aside"))
    }

    fn close(self: Box<Self>) -> Result<(), LogError> {
        let generations = std::mem::take(&mut *self.files.generations.write());
        for generation in &generations {
            generation.db().flush().map_err(engine)?;
            generation.file.sync_all().map_err(LogError::io("syncing the log"))?;
        }
        drop(generations);
        write_marker(&self.files.dir.join("clean"))
    }
}

impl LogReader for Files {
    fn generations(&self) -> Vec<Generation> {
        self.generations.read().iter().map(|generation| generation.describe()).collect()
    }

    fn scan(&self, base: Revision, from: Revision) -> Result<Chunks, LogError> {
        let generation = self.generation(base)?;
        let before = generation.db().range(log_key(0, 0)..=log_key(from.0, u16::MAX)).next_back();
        let first = match before {
            Some(entry) => log_key_first(&entry.map_err(engine)?.0).unwrap_or(0),
            None => 0,
        };
        Ok(entries(generation, log_key(first, 0), vec![b'l' + 1]))
    }

    fn snapshot(&self, base: Revision, attempt: u64) -> Result<Chunks, LogError> {
        let generation = self.generation(base)?;
        Ok(entries(generation, snapshot_key(attempt, 0, 0), snapshot_key(attempt, u64::MAX, u16::MAX)))
    }

    fn disk_bytes(&self) -> u64 {
        dir_bytes(&self.dir)
    }
}

/// Values of a range of keys; the generation's files stay as long as this is read.
fn entries(generation: Arc<SledGeneration>, from: Vec<u8>, to: Vec<u8>) -> Chunks {
    let range = generation.db().range(from..to);
    Box::new(range.map(move |entry| {
        let _kept = &generation;
        entry.map(|(_, value)| Bytes::copy_from_slice(&value)).map_err(engine)
    }))
}
