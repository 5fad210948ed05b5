//! Opening the log in an etcd: this process takes the store over and becomes its only writer, or only reads it.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_etcd::{CallError, Compare, Entry, Etcd, Header, Op, TxnRequest};
use parking_lot::RwLock;

use super::{
    EtcdConfig, EtcdLog,
    beside::Beside,
    compaction::Compaction,
    generation::EtcdGeneration,
    hold::BootTime,
    keys::{KeyRange, StoreKeys, next_key},
    pacing::Pacer,
    reading::{Shared, read_page, unread},
    records::{BeginRecord, FenceRecord, HeldFence, open, seal},
    space::Space,
};
use crate::{
    log::{
        End, LogError, Manifest,
        files::{create_private_dir, make_private, private_file},
        sled::is_store,
        watermark::{EtcdMark, Found},
    },
    store::OpenError,
};

/// Maximum number of attempts to take the fence.
const N_FENCE_TRIES: u32 = 16;

/// The purpose for which a log is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The log will be served, if the watermark belongs to this etcd.
    Serve,
    /// What is left of the store becomes another store.
    Repair,
    /// The log is read while another process serves it.
    Look,
    /// The log is followed while another process serves it, and may be taken over.
    Follow,
}

/// The generations in etcd.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) generations: Vec<Arc<EtcdGeneration>>,
    /// Bases of generations that are being deleted.
    pub(super) dropping: Vec<Revision>,
    /// Number of the store in the newest generation.
    pub(super) store: Option<u64>,
    pub(super) problems: Vec<String>,
}

impl EtcdLog {
    /// Opens the store in etcd, or creates one. The process that served it before is fenced off, unless the store has to be refused
    /// anyway.
    ///
    /// # Errors
    /// See [`OpenError`]. [`OpenError::is_away`] says whether etcd does not answer, so that a later attempt may succeed.
    pub fn open(config: &EtcdConfig, crash: CrashPoints) -> Result<Self, OpenError> {
        Self::open_for(config, Purpose::Serve, crash)
    }

    /// Opens the store to make another store of what is left, even if the watermark belongs to another etcd.
    ///
    /// # Errors
    /// As [`EtcdLog::open`].
    pub(crate) fn open_for_repair(config: &EtcdConfig) -> Result<Self, OpenError> {
        Self::open_for(config, Purpose::Repair, CrashPoints::default())
    }

    /// Opens the store only to read it, while another process may serve it. Concurrent commits may look torn.
    ///
    /// # Errors
    /// As [`EtcdLog::open`].
    pub(crate) fn open_to_look(config: &EtcdConfig) -> Result<Self, OpenError> {
        Self::open_for(config, Purpose::Look, CrashPoints::default())
    }

    /// Opens the store to follow it, while another process may serve it, until this one takes it over. There may be no store yet.
    ///
    /// # Errors
    /// As [`EtcdLog::open`].
    pub(crate) fn open_to_follow(config: &EtcdConfig, crash: CrashPoints) -> Result<Self, OpenError> {
        Self::open_for(config, Purpose::Follow, crash)
    }

    fn open_for(config: &EtcdConfig, purpose: Purpose, crash: CrashPoints) -> Result<Self, OpenError> {
        if is_store(&config.dir) {
            return Err(OpenError::OtherEngine { dir: config.dir.clone(), engine: "sled" });
        }
        let dir = mark_dir(&config.dir);
        let lock = if purpose == Purpose::Look { None } else { Some(own(&dir, &config.dir)?) };
        let place = lock.as_ref().map(number_of).transpose()?.unwrap_or(0);
        let found = Found::read(&dir)?;
        let etcd = Arc::clone(&config.etcd);
        let sizes = etcd.sizes().map_err(unread)?;
        let fence_key = StoreKeys::fence(&config.prefix);
        // What a member says of its size may be old: it need not know what the others have agreed on. A read does.
        let (before, now) = look_at_fence(&*etcd, &fence_key)?;
        let mark = EtcdMark { cluster: now.cluster, revision: now.revision };
        let line = before.map_or(0, |fence| fence.record.line);
        let mut keys = StoreKeys::new(&config.prefix, line);
        let mut listing = list(&*etcd, &keys)?;
        let mut unopened = judge_mark(&found, mark, &dir);
        unopened.extend(listing.judge(&found, &config.prefix, &dir));
        let own_holder = FenceHolder {
            words: own_name(&config.dir),
            address: config.address.clone(),
            place,
            ..FenceHolder::default()
        };
        let mut taken = None;
        // A process that will not serve the store must not fence off the one that does.
        if purpose == Purpose::Repair || (purpose == Purpose::Serve && unopened.is_empty()) {
            let fence = take_fence(&*etcd, &fence_key, &own_holder)?;
            // The previous process may have committed since the first listing.
            keys = StoreKeys::new(&config.prefix, fence.held.record.line);
            listing = list(&*etcd, &keys)?;
            if purpose == Purpose::Serve {
                unopened = listing.judge(&found, &config.prefix, &dir);
            }
            taken = Some(fence);
        }
        let Listing { generations, dropping, store, .. } = listing;
        let known = found.watermark().map(|watermark| watermark.store).filter(|store| *store > 0);
        let is_new = purpose == Purpose::Serve && generations.is_empty() && unopened.is_empty();
        let mut log = Self {
            beside: Beside::new(Arc::clone(&etcd)),
            shared: Arc::new(Shared { etcd, generations: RwLock::new(generations) }),
            keys,
            fence: taken.as_ref().map(|fence| fence.held.clone()),
            hold: None,
            own: own_holder,
            store: store.or(known).unwrap_or_else(|| rand::random_range(1..u64::MAX)),
            mark,
            tail: Bytes::new(),
            started: None,
            dir,
            found,
            watermark: None,
            unopened,
            dropping,
            space: Space::new(config.quota_bytes, sizes, Instant::now()),
            pacer: Pacer::default(),
            compaction: Compaction::new(config.compacts, config.compaction_age),
            crash,
            _lock: lock,
        };
        if is_new {
            log.begin_store()?;
        }
        if let Some(fence) = taken.filter(|_| purpose == Purpose::Serve) {
            log.keep_hold(fence.sent);
        }
        Ok(log)
    }
}

/// Returns the directory of the watermark of a store in etcd.
pub(crate) fn mark_dir(dir: &Path) -> std::path::PathBuf {
    dir.join("etcd")
}

/// Whether the log of the state in `dir` is in an etcd, that is, whether `dir` has the watermark of one.
pub fn is_in_etcd(dir: &Path) -> bool {
    Found::read(&mark_dir(dir)).is_ok_and(|found| found != Found::Missing)
}

/// Locks the watermark in `dir`, of the state in `of`, because two processes must not write the same watermark.
fn own(dir: &Path, of: &Path) -> Result<File, OpenError> {
    create_private_dir(of)?;
    create_private_dir(dir)?;
    if let Err(error) = make_private(dir) {
        tracing::warn!(%error, "other users may read the watermark");
    }
    let path = dir.join("lock");
    let file = private_file().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(LogError::io(format!("opening {}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::Locked { dir: of.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(LogError::io("locking the watermark")(error).into()),
    }
}

/// Returns the random number of a data directory, which is in the file that this process has locked.
fn number_of(lock: &File) -> Result<u64, LogError> {
    let failed = || LogError::io("the number of the data directory");
    let mut number = [0; 8];
    match lock.read_exact_at(&mut number, 0) {
        Ok(()) => return Ok(u64::from_be_bytes(number)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(failed()(error)),
    }
    let number: u64 = rand::random_range(1..u64::MAX);
    lock.write_all_at(&number.to_be_bytes(), 0).map_err(failed())?;
    lock.sync_all().map_err(failed())?;
    Ok(number)
}

/// Returns the reasons why the watermark does not belong to this etcd, which is `now` at that revision, if any.
fn judge_mark(found: &Found, now: EtcdMark, dir: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let Some(mark) = found.watermark().and_then(|watermark| watermark.etcd) else { return problems };
    let dir = dir.display();
    if mark.cluster != now.cluster {
        problems.push(format!(
            "the etcd that answers is the cluster {:x}, but the watermark in {dir} is of the cluster {:x}: name that \
             one's endpoints, or accept what a restored backup lacks",
            now.cluster, mark.cluster
        ));
    } else if mark.revision > now.revision {
        problems.push(format!(
            "etcd is at revision {}, but was at revision {} when the watermark in {dir} was written: it was restored \
             from a backup, or has lost what it had acknowledged",
            now.revision, mark.revision
        ));
    }
    problems
}

/// Reads the fence, if a process has ever taken it.
pub(super) fn read_fence(etcd: &dyn Etcd, key: &Bytes) -> Result<Option<HeldFence>, LogError> {
    look_at_fence(etcd, key).map(|(fence, _)| fence)
}

/// Reads the fence, and the id and revision of the etcd that answered.
fn look_at_fence(etcd: &dyn Etcd, key: &Bytes) -> Result<(Option<HeldFence>, Header), LogError> {
    let range = KeyRange { from: key.clone(), to: next_key(key) };
    let page = read_page(etcd, &range, 1, false)?;
    let read = |entry: &Entry| Ok(HeldFence::new(key.clone(), open::<FenceRecord>(key, &entry.value)?));
    Ok((page.entries.first().map(read).transpose()?, page.header))
}

/// Returns the host and the data directory of the process that [`own_name`] has described.
fn place_of(words: &str) -> Option<(&str, &str)> {
    words.split_once(" on ")?.1.split_once(", whose data directory is ")
}

/// Describes this process, whose state is in `dir`, so that an operator finds it.
fn own_name(dir: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "an unknown host" } else { host.trim() };
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    format!("process {} on {host}, whose data directory is {}", std::process::id(), dir.display())
}

/// The process that holds the store, as its fence names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceHolder {
    /// Number of the fence, which is higher for each process that takes the store over.
    pub number: u64,
    /// Which process it is, for people.
    pub words: String,
    /// The address at which it answers calls. Empty: it has given the store back, or answers none.
    pub address: String,
    /// Random number of its data directory; 0: it is not known.
    pub(super) place: u64,
    /// It was an earlier process in the data directory of this one, and has ended: this one has the lock of the directory.
    pub is_predecessor: bool,
    /// It runs on the host of this one: an address of the loopback is its own.
    pub is_on_this_host: bool,
}

impl FenceHolder {
    /// The holder of `fence`, as the process `own` sees it.
    pub(super) fn of(fence: &HeldFence, own: &Self) -> Self {
        let FenceRecord { number, holder: words, address, place, .. } = fence.record.clone();
        let (here, there) = (place_of(&own.words), place_of(&words));
        // A directory may have been copied to another machine, with its number.
        let is_predecessor = place != 0 && place == own.place && here.is_some() && here == there;
        let is_on_this_host = here.is_some() && here.map(|here| here.0) == there.map(|there| there.0);
        Self { number, words, address, place, is_predecessor, is_on_this_host }
    }
}

/// A fence that this process has taken.
pub(super) struct TakenFence {
    pub(super) held: HeldFence,
    /// When the transaction was sent that took it.
    pub(super) sent: BootTime,
}

/// Takes the fence from whoever holds it, after which the transactions of other processes change nothing.
fn take_fence(etcd: &dyn Etcd, key: &Bytes, own: &FenceHolder) -> Result<TakenFence, LogError> {
    let taken = take_fence_if(etcd, key, own, |_| true)?;
    taken.ok_or_else(|| LogError::Unknown("the store in etcd could not be taken over".to_owned()))
}

/// Takes the fence, as long as `may_take` says so of its holder. `None`: it does not.
pub(super) fn take_fence_if(
    etcd: &dyn Etcd,
    key: &Bytes,
    own: &FenceHolder,
    may_take: impl Fn(Option<&HeldFence>) -> bool,
) -> Result<Option<TakenFence>, LogError> {
    let token = rand::random_range(1..u64::MAX);
    let mut last = None;
    let mut sent = BootTime::now();
    for _ in 0..N_FENCE_TRIES {
        let before = read_fence(etcd, key)?;
        if let Some(held) = &before
            && held.record.token == token
        {
            return Ok(Some(TakenFence { held: held.clone(), sent }));
        }
        if !may_take(before.as_ref()) {
            return Ok(None);
        }
        let (number, line) = before.as_ref().map_or((0, 0), |held| (held.record.number, held.record.line));
        let record = FenceRecord {
            number: number + 1,
            token,
            line,
            holder: own.words.clone(),
            address: own.address.clone(),
            place: own.place,
        };
        sent = BootTime::now();
        match change_fence(etcd, key, before.as_ref(), record) {
            Ok(Some(held)) => {
                if let Some(before) = before {
                    tracing::info!(from = before.record.holder, "the store in etcd was taken over");
                }
                return Ok(Some(TakenFence { held, sent }));
            }
            // Another process was quicker, or an earlier attempt was applied and its answer was lost.
            Ok(None) => {}
            Err(error @ CallError::Refused(_)) => return Err(unread(error)),
            Err(error) => last = Some(error),
        }
    }
    let why =
        last.map_or_else(|| "other processes take it at the same time".to_owned(), |error| error.to_string());
    Err(LogError::Unknown(format!("the store in etcd could not be taken over: {why}")))
}

/// Replaces the fence `before`. Returns `None` if the current fence is another one.
pub(super) fn change_fence(
    etcd: &dyn Etcd,
    key: &Bytes,
    before: Option<&HeldFence>,
    record: FenceRecord,
) -> Result<Option<HeldFence>, CallError> {
    let compare = before.map_or_else(|| Compare::Absent(key.clone()), HeldFence::compare);
    let ops = vec![Op::Put(key.clone(), seal(&record))];
    let reply = etcd.txn(TxnRequest { compares: vec![compare], ops, reads: Vec::new() })?;
    Ok(reply.succeeded.then(|| HeldFence::new(key.clone(), record)))
}

/// Lists the generations without reading their contents.
pub(super) fn list(etcd: &dyn Etcd, keys: &StoreKeys) -> Result<Listing, LogError> {
    let mut listing = Listing::default();
    let mut range = keys.all();
    while let Some(entry) = read_page(etcd, &range, 1, true)?.entries.first() {
        let Some(base) = keys.base_of(&entry.key) else {
            let key = String::from_utf8_lossy(&entry.key);
            listing.problems.push(format!("the key {key} of etcd does not belong to this store"));
            range = range.behind(&entry.key);
            continue;
        };
        range.from = keys.generation(base).all().to;
        listing.add(etcd, keys, base)?;
    }
    Ok(listing)
}

impl Listing {
    /// Returns the reasons why the watermark in `dir` does not belong to this store, if any.
    fn judge(&self, found: &Found, prefix: &str, dir: &Path) -> Vec<String> {
        let mut problems = self.problems.clone();
        let Some(watermark) = found.watermark() else { return problems };
        match self.store {
            Some(store) if store != watermark.store => problems.push(format!(
                "the store below `{prefix}` in etcd is another one than that of the watermark in {}",
                dir.display()
            )),
            // A store whose process ended while it was being created has no commits.
            None if problems.is_empty() && watermark.revision > 0 => {
                problems.push(format!("etcd holds no store below `{prefix}`"));
            }
            _ => {}
        }
        problems
    }

    fn add(&mut self, etcd: &dyn Etcd, keys: &StoreKeys, base: Revision) -> Result<(), LogError> {
        let of = keys.generation(base);
        let mut entries = read_page(etcd, &of.head(), 3, false)?.entries;
        let manifest = KeyRange { from: of.manifest(), to: next_key(&of.manifest()) };
        entries.extend(read_page(etcd, &manifest, 1, false)?.entries);
        let value = |key: &Bytes| entries.iter().find(|entry| entry.key == *key).map(|entry| &entry.value);
        if value(&of.dropping()).is_some() {
            self.dropping.push(base);
            return Ok(());
        }
        let read = || -> Result<_, LogError> {
            let key = of.begin();
            let lost =
                || LogError::Corrupt(format!("the key {} of etcd is gone", String::from_utf8_lossy(&key)));
            let begin: BeginRecord = open(&key, value(&key).ok_or_else(lost)?)?;
            if begin.base != base.0 {
                return Err(LogError::Corrupt(format!(
                    "generation {base} in etcd has the begin of another generation"
                )));
            }
            let end = value(&of.end()).map(|value| open::<End>(&of.end(), value)).transpose()?;
            let manifest =
                value(&of.manifest()).map(|value| open::<Manifest>(&of.manifest(), value)).transpose()?;
            Ok((begin, end, manifest))
        };
        match read() {
            Ok((begin, end, manifest)) => {
                let generation = EtcdGeneration::new(base, begin.previous_crc, of.clone());
                if let Some(end) = end {
                    generation.set_end(end);
                }
                if let Some(manifest) = manifest {
                    generation.set_manifest(manifest);
                }
                self.store = Some(begin.store);
                self.generations.push(Arc::new(generation));
                Ok(())
            }
            Err(LogError::Corrupt(what)) => {
                self.problems.push(what);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
