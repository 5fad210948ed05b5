//! One generation in sled's files.

use std::{
    fs::{self, File},
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use parking_lot::Mutex;

use super::{
    aside::{generation_path, ready_path, seal_path},
    files::{
        copy_dir, create_private_dir, make_private, remove_dir, remove_file, sync_dir, sync_path, write_file,
        write_marker,
    },
    frames,
    guard::{self, Items, Lost, Patience},
};
use crate::{
    chunk::CHUNK_BYTES_MAX,
    log::{End, Generation, LogError, Manifest},
    store::SyncMode,
};

/// The truth is in our own memory; sled's cache serves recovery and old watch history.
const CACHE_BYTES: u64 = 4 << 20;
/// sled lets go of its file a moment after the last handle is dropped.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

const KEY_BASE: &[u8] = b"m/base";
const KEY_END: &[u8] = b"m/end";
const KEY_MANIFEST: &[u8] = b"m/manifest";

/// First record of a generation.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Base {
    #[prost(uint64, tag = "1")]
    pub(super) revision: u64,
    #[prost(uint32, tag = "2")]
    pub(super) previous_crc: u32,
    /// Of the watermark that goes with it; 0 if an older version made it.
    #[prost(uint64, tag = "3")]
    pub(super) store: u64,
}

/// All that is to know of a generation that is not written to any more.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Seal {
    #[prost(message, required, tag = "1")]
    base: Base,
    #[prost(message, optional, tag = "2")]
    manifest: Option<Manifest>,
    #[prost(message, required, tag = "3")]
    end: End,
}

/// The seal of the generation in `path`; `None` if it has none that is whole.
pub(super) fn read_seal(path: &Path) -> Option<Seal> {
    from_meta(&fs::read(seal_path(path)).ok()?)
}

#[derive(Debug)]
pub(super) struct SledGeneration {
    dir: Arc<GenerationDir>,
    pub(super) number: u64,
    pub(super) base: Base,
    manifest: Mutex<Option<Manifest>>,
    end: Mutex<Option<End>>,
    /// Its open files, until it is sealed.
    written: Mutex<Option<Arc<Db>>>,
    /// Its open files once it is sealed, as long as somebody reads them.
    read: Mutex<Weak<Db>>,
    sync: SyncMode,
}

/// Open files of a generation.
#[derive(Debug)]
pub(super) struct Db {
    // Closed before the directory may go.
    db: sled::Db,
    file: File,
    dir: Arc<GenerationDir>,
}

/// The directory of a generation; if it is doomed it goes with the last who uses it.
#[derive(Debug)]
struct GenerationDir {
    path: PathBuf,
    doomed: AtomicBool,
    /// sled was given up while it read here, see [`guard`].
    given_up: AtomicBool,
}

impl Drop for GenerationDir {
    fn drop(&mut self) {
        if self.doomed.load(Ordering::Acquire)
            && let Err(error) = remove_dir(&self.path)
        {
            // It has no marker any more: the next start removes it.
            tracing::warn!(%error, path = %self.path.display(), "an old generation could not be removed");
        }
    }
}

impl GenerationDir {
    fn new(dir: &Path, number: u64) -> Arc<Self> {
        let (doomed, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { path: generation_path(dir, number), doomed, given_up })
    }

    /// Lets sled read; not again once it was given up here.
    fn guarded<T>(&self, read: impl FnOnce() -> Result<T, Lost>) -> Result<T, LogError> {
        if self.given_up.load(Ordering::Acquire) {
            return Err(Lost::Endless.error(&self.path));
        }
        read().map_err(|lost| {
            if lost == Lost::Endless {
                self.given_up.store(true, Ordering::Release);
            }
            lost.error(&self.path)
        })
    }
}

impl Deref for Db {
    type Target = sled::Db;

    fn deref(&self) -> &sled::Db {
        &self.db
    }
}

impl Db {
    fn open(dir: &Arc<GenerationDir>, sync: SyncMode) -> Result<Arc<Self>, LogError> {
        let path = dir.path.join("db");
        let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let at = dir.path.clone();
        let open = || guard::call(Patience::for_bytes(bytes), move || open_db(&at, sync));
        let db = dir.guarded(open)??;
        let file = File::open(&path).map_err(LogError::io(format!("opening {}", path.display())))?;
        for private in [&dir.path, &path, &dir.path.join("conf")] {
            make_private(private)?;
        }
        Ok(Arc::new(Self { db, file, dir: Arc::clone(dir) }))
    }

    /// Opens files that must be there already.
    fn open_existing(dir: &Arc<GenerationDir>, sync: SyncMode) -> Result<Arc<Self>, LogError> {
        let path = dir.path.join("db");
        if path.is_file() {
            frames::judge(&dir.path)?;
            return Self::open(dir, sync);
        }
        Err(LogError::Corrupt(format!("{} is not there", path.display())))
    }

    fn base(&self) -> Result<Base, LogError> {
        let lost = || LogError::Corrupt(format!("{} has lost its beginning", self.dir.path.display()));
        read_meta(self, KEY_BASE)?.ok_or_else(lost)
    }

    /// What `read` finds, on a thread of its own.
    pub(super) fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&sled::Db) -> sled::Result<T> + Send + 'static,
    ) -> Result<T, LogError> {
        let db = self.db.clone();
        self.dir.guarded(|| guard::call(Patience::LOOK, move || read(&db)))?.map_err(engine)
    }

    /// Items that are read on a thread of their own.
    pub(super) fn items<T: Send + 'static>(
        &self,
        read: impl Iterator<Item = T> + Send + 'static,
    ) -> Result<Items<T>, LogError> {
        self.dir.guarded(|| guard::items(Patience::LOOK, read))
    }

    /// The next one of [`Db::items`].
    pub(super) fn next_of<T>(&self, items: &mut Items<T>) -> Result<Option<T>, LogError> {
        self.dir.guarded(|| items.next())
    }

    pub(super) fn is_doomed(&self) -> bool {
        self.dir.doomed.load(Ordering::Acquire)
    }

    pub(super) fn sync_all(&self) -> Result<(), LogError> {
        self.flush().map_err(engine)?;
        self.file.sync_all().map_err(LogError::io("syncing the log"))
    }
}

pub(super) fn engine(error: sled::Error) -> LogError {
    match error {
        sled::Error::Io(error) if is_of_system(&error) => LogError::io("log engine")(error),
        error => LogError::Corrupt(words(&error)),
    }
}

/// What sled finds in its files, in words.
fn words(error: &sled::Error) -> String {
    match error {
        sled::Error::Corruption { .. } => "sled finds that its files are corrupted".to_owned(),
        error => format!("sled: {error}"),
    }
}

/// Whether the disk failed, or who may use it; else it is what stands in the files: an end that comes too early.
fn is_of_system(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some()
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
            // sled tells its lock by words; whoever has it does not let go.
            Ok(Err(sled::Error::Io(error))) if is_of_system(&error) || is_locked(&error) => {
                return Err(LogError::io(format!("opening {}", path.display()))(error));
            }
            Ok(Err(error)) => {
                return Err(LogError::Corrupt(format!(
                    "{} does not open: {}",
                    path.display(),
                    words(&error)
                )));
            }
            Err(_) => {
                return Err(LogError::Corrupt(format!("{}: sled panicked while opening it", path.display())));
            }
        }
    }
}

/// Removes the files in `path` in which sled notes where its pages are; whether there were any.
pub(super) fn remove_sled_snapshots(path: &Path) -> Result<bool, LogError> {
    let Ok(entries) = fs::read_dir(path) else { return Ok(false) };
    let mut gone = false;
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("snap.")) {
            remove_file(&entry.path())?;
            gone = true;
        }
    }
    Ok(gone)
}

/// Waits until sled has let go of the files in `path`: it may write to them until then. Whether it has.
pub(super) fn wait_until_closed(path: &Path) -> bool {
    let Ok(file) = File::open(path.join("db")) else { return true };
    let start = Instant::now();
    while file.try_lock().is_err() {
        if start.elapsed() >= LOCK_PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

fn is_locked(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.to_string().contains("could not acquire lock")
}

impl SledGeneration {
    /// A generation that is there; the files of a sealed one are left alone.
    pub(super) fn open(dir: &Path, number: u64, sync: SyncMode) -> Result<Self, LogError> {
        let dir = GenerationDir::new(dir, number);
        let (base, manifest, end, written) = match read_seal(&dir.path) {
            Some(Seal { base, manifest, end }) => (base, manifest, Some(end), None),
            None => {
                let db = Db::open_existing(&dir, sync)?;
                let (manifest, end) = (read_meta(&db, KEY_MANIFEST)?, read_meta(&db, KEY_END)?);
                (db.base()?, manifest, end, Some(db))
            }
        };
        let (manifest, end, written) = (Mutex::new(manifest), Mutex::new(end), Mutex::new(written));
        Ok(Self { dir, number, base, manifest, end, written, read: Mutex::default(), sync })
    }

    pub(super) fn create(dir: &Path, number: u64, base: Base, sync: SyncMode) -> Result<Self, LogError> {
        let generation_dir = GenerationDir::new(dir, number);
        let path = &generation_dir.path;
        remove_dir(path)?;
        create_private_dir(path)?;
        let db = Db::open(&generation_dir, sync)?;
        let generation = Self {
            dir: Arc::clone(&generation_dir),
            number,
            base,
            manifest: Mutex::new(None),
            end: Mutex::new(None),
            written: Mutex::new(Some(db)),
            read: Mutex::default(),
            sync,
        };
        generation.write([(KEY_BASE.to_vec(), &meta(&base)[..])], &CrashPoints::default())?;
        if sync == SyncMode::Full {
            for name in ["conf", "db"] {
                sync_path(&path.join(name))?;
            }
            for sub in [path.join("blobs"), path.clone()] {
                if sub.is_dir() {
                    sync_dir(&sub)?;
                }
            }
            sync_dir(dir)?;
        }
        write_marker(&ready_path(path))?;
        Ok(generation)
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.written.lock().is_none()
    }

    /// Its open files; those of a sealed generation are opened if nobody has them open.
    pub(super) fn db(&self) -> Result<Arc<Db>, LogError> {
        if let Some(db) = &*self.written.lock() {
            return Ok(Arc::clone(db));
        }
        // Opening takes its time: only those wait for it who read this generation too.
        let mut read = self.read.lock();
        if let Some(db) = read.upgrade() {
            return Ok(db);
        }
        let db = self.own(Db::open_existing(&self.dir, self.sync)?)?;
        *read = Arc::downgrade(&db);
        Ok(db)
    }

    /// Bytes of the file that takes the log; of a sealed generation none.
    pub(super) fn written_bytes(&self) -> u64 {
        let written = self.written.lock();
        let file = written.as_ref().map(|db| &db.file);
        file.and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len())
    }

    /// Open files of a copy of this generation, made in the directory `at`.
    pub(super) fn copy_open(&self, at: &Path) -> Result<Arc<Db>, LogError> {
        let copy = GenerationDir::new(at, self.number);
        if !self.dir.path.is_dir() {
            return Err(LogError::Corrupt(format!("{} is not there", self.dir.path.display())));
        }
        copy_dir(&self.dir.path, &copy.path)?;
        self.own(Db::open_existing(&copy, self.sync)?)
    }

    /// Open files, if they are of this generation.
    fn own(&self, db: Arc<Db>) -> Result<Arc<Db>, LogError> {
        if db.base()? == self.base {
            return Ok(db);
        }
        Err(LogError::Corrupt(format!("{} is another generation", self.dir.path.display())))
    }

    /// Writes all entries or none. They are durable when it returns.
    pub(super) fn write<'a>(
        &self,
        entries: impl IntoIterator<Item = (Vec<u8>, &'a [u8])>,
        crash: &CrashPoints,
    ) -> Result<(), LogError> {
        let mut entries: Vec<(Vec<u8>, &[u8])> = entries.into_iter().collect();
        if let Some((_, value)) = entries.iter().find(|(_, value)| value.len() > CHUNK_BYTES_MAX) {
            return Err(LogError::Engine(format!("a value of {} bytes is too large", value.len())));
        }
        let db = self.db()?;
        if let [(key, value)] = &mut entries[..] {
            // Atomic by itself. A batch would cost a second write, with a thread's wake-up and a wait of its own.
            db.insert(std::mem::take(key), *value).map_err(engine)?;
        } else {
            let mut batch = sled::Batch::default();
            for (key, value) in entries {
                batch.insert(key, value);
            }
            db.apply_batch(batch).map_err(engine)?;
        }
        crash.hit("store.after-append");
        if self.sync == SyncMode::Full {
            db.flush().map_err(engine)?;
            db.file.sync_data().map_err(LogError::io(format!("syncing {}", self.dir.path.display())))?;
        }
        Ok(())
    }

    pub(super) fn describe(&self) -> Generation {
        Generation {
            base: Revision(self.base.revision),
            previous_crc: self.base.previous_crc,
            manifest: *self.manifest.lock(),
            end: *self.end.lock(),
        }
    }

    /// Says, durably, that the snapshot is complete.
    pub(super) fn complete(&self, manifest: Manifest) -> Result<(), LogError> {
        self.write([(KEY_MANIFEST.to_vec(), &meta(&manifest)[..])], &CrashPoints::default())?;
        *self.manifest.lock() = Some(manifest);
        Ok(())
    }

    /// Says, durably, that the next generation exists, so that its loss is noticed.
    pub(super) fn put_end(&self, end: End) -> Result<(), LogError> {
        if self.end.lock().is_none() {
            self.write([(KEY_END.to_vec(), &meta(&end)[..])], &CrashPoints::default())?;
            *self.end.lock() = Some(end);
        }
        Ok(())
    }

    /// Says, durably, that this is history; its open files, if it was not yet.
    pub(super) fn seal(&self) -> Result<Option<Arc<Db>>, LogError> {
        let (Some(db), Some(end)) = (self.written.lock().clone(), *self.end.lock()) else { return Ok(None) };
        let seal = Seal { base: self.base, manifest: *self.manifest.lock(), end };
        write_file(&seal_path(&self.dir.path), &meta(&seal))?;
        *self.read.lock() = Arc::downgrade(&db);
        *self.written.lock() = None;
        Ok(Some(db))
    }

    /// Lets its files go with the last who reads them.
    pub(super) fn doom(&self) -> Result<(), LogError> {
        remove_file(&ready_path(&self.dir.path))?;
        remove_file(&seal_path(&self.dir.path))?;
        self.dir.doomed.store(true, Ordering::Release);
        Ok(())
    }
}

/// A small record with its checksum.
pub(super) fn meta(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    let crc = crc32c::crc32c(&bytes);
    bytes.splice(0..0, crc.to_be_bytes());
    bytes
}

fn read_meta<M: prost::Message + Default>(db: &Db, key: &'static [u8]) -> Result<Option<M>, LogError> {
    let Some(value) = db.look(move |db| db.get(key))? else { return Ok(None) };
    let bad = || LogError::Corrupt(format!("{} is not what was written", String::from_utf8_lossy(key)));
    from_meta(&value).map(Some).ok_or_else(bad)
}

/// What [`meta`] made; `None` if its checksum differs.
pub(super) fn from_meta<M: prost::Message + Default>(bytes: &[u8]) -> Option<M> {
    let (crc, body) = bytes.split_at_checked(4)?;
    let body = (crc32c::crc32c(body).to_be_bytes() == crc).then_some(body)?;
    M::decode(body).ok()
}

pub(super) fn log_key(first: u64, index: u16) -> Vec<u8> {
    let mut key = vec![b'l'];
    key.extend(first.to_be_bytes());
    key.extend(index.to_be_bytes());
    key
}

pub(super) fn snapshot_key(attempt: u64, piece: u64, index: u16) -> Vec<u8> {
    let mut key = vec![b's'];
    key.extend(attempt.to_be_bytes());
    key.extend(piece.to_be_bytes());
    key.extend(index.to_be_bytes());
    key
}

/// First revision in a log key.
pub(super) fn log_key_first(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?))
}
