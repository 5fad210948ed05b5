//! The log in memory, for tests: the same rules, and faults on demand.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use godel_base::ids::Revision;
use parking_lot::Mutex;

use super::{
    Chunks, Claim, Claimed, End, Fence, Generation, Log, LogError, LogReader, Manifest, SnapshotPart,
};
use crate::history::Extent;

/// What a memory log keeps. Clones share it, so a store opened on a clone finds what another one wrote.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<Mutex<Disk>>);

#[derive(Debug, Default)]
struct Disk {
    generations: Vec<MemoryGeneration>,
    fence: u64,
    capacity: Option<u64>,
    fail_next: bool,
    claimed: Option<Claimed>,
    mark: Option<Vec<u8>>,
}

#[derive(Debug)]
struct MemoryGeneration {
    base: Revision,
    previous_crc: u32,
    manifest: Option<Manifest>,
    end: Option<End>,
    /// By first revision and place.
    log: BTreeMap<(u64, u16), Bytes>,
    /// By attempt, piece and place.
    snapshot: BTreeMap<(u64, u64, u16), Bytes>,
}

impl MemoryGeneration {
    fn new(base: Revision, previous_crc: u32, manifest: Option<Manifest>) -> Self {
        Self { base, previous_crc, manifest, end: None, log: BTreeMap::new(), snapshot: BTreeMap::new() }
    }

    fn bytes(&self) -> u64 {
        let chunks = self.log.values().chain(self.snapshot.values());
        chunks.map(|chunk| chunk.len() as u64).sum()
    }
}

impl Disk {
    fn bytes(&self) -> u64 {
        self.generations.iter().map(MemoryGeneration::bytes).sum()
    }

    fn generation(&mut self, base: Revision) -> Result<&mut MemoryGeneration, LogError> {
        self.generations
            .iter_mut()
            .find(|generation| generation.base == base)
            .ok_or_else(|| LogError::Corrupt(format!("there is no generation with base {base}")))
    }
}

impl MemoryDisk {
    /// Limits the bytes that fit; `None` is no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }

    /// Says what is known of how far the log must go, until the next commit.
    pub fn set_claimed(&self, claimed: Claimed) {
        self.0.lock().claimed = Some(claimed);
    }

    /// Makes the next append fail.
    pub fn fail_next_append(&self) {
        self.0.lock().fail_next = true;
    }

    /// Changes stored log chunks: `change` sees those of the newest generation in order and may edit them.
    pub fn edit_log(&self, change: impl FnOnce(&mut Vec<Bytes>)) {
        let mut disk = self.0.lock();
        let Some(generation) = disk.generations.last_mut() else { return };
        let keys: Vec<_> = generation.log.keys().copied().collect();
        let mut chunks: Vec<_> = std::mem::take(&mut generation.log).into_values().collect();
        change(&mut chunks);
        generation.log = keys.into_iter().zip(chunks).filter(|(_, chunk)| !chunk.is_empty()).collect();
    }

    /// Changes the stored chunks of the newest generation's snapshot: `change` sees those of the attempt that was
    /// completed, in order, and may edit them.
    pub fn edit_snapshot(&self, change: impl FnOnce(&mut Vec<Bytes>)) {
        let mut disk = self.0.lock();
        let Some(generation) = disk.generations.last_mut() else { return };
        let attempt = generation.manifest.map_or(0, |manifest| manifest.attempt);
        let stored = generation.snapshot.range(Self::attempt(attempt));
        let (keys, mut chunks): (Vec<_>, Vec<_>) = stored.map(|(key, chunk)| (*key, chunk.clone())).unzip();
        change(&mut chunks);
        generation.snapshot.extend(keys.into_iter().zip(chunks));
    }

    /// The newest generation has a snapshot that is complete and can be read.
    pub fn has_complete_snapshot(&self) -> bool {
        let newest = self.generations().pop();
        newest.is_some_and(|newest| {
            newest.manifest.is_some_and(|manifest| {
                manifest.n_pieces > 0 && crate::snapshot::load(self, newest.base, &manifest).is_ok()
            })
        })
    }

    /// Forgets everything but the mark of a migration.
    pub(crate) fn clear(&self) {
        let mut disk = self.0.lock();
        disk.generations.clear();
        disk.claimed = None;
    }

    /// What a migration has left.
    pub(crate) fn mark(&self) -> Option<Vec<u8>> {
        self.0.lock().mark.clone()
    }

    /// Leaves the mark of a migration.
    pub(crate) fn set_mark(&self, mark: Option<Vec<u8>>) {
        self.0.lock().mark = mark;
    }

    /// Whether both are clones of one disk.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn attempt(attempt: u64) -> std::ops::RangeInclusive<(u64, u64, u16)> {
        (attempt, 0, 0)..=(attempt, u64::MAX, u16::MAX)
    }

    /// Loses the newest generation's snapshot, as if it had never been completed.
    pub fn lose_snapshot(&self) {
        if let Some(newest) = self.0.lock().generations.last_mut() {
            newest.manifest = None;
            newest.snapshot.clear();
        }
    }

    /// Loses a whole generation, by its place from the oldest.
    pub fn lose_generation(&self, idx: usize) {
        self.0.lock().generations.remove(idx);
    }
}

/// The engine on a [`MemoryDisk`].
#[derive(Debug)]
pub struct MemoryLog {
    disk: MemoryDisk,
    fence: Fence,
}

impl MemoryLog {
    /// Takes the disk over: whoever had it before is fenced off.
    pub fn open(disk: MemoryDisk) -> Self {
        let mut inner = disk.0.lock();
        inner.fence += 1;
        if inner.generations.is_empty() {
            inner.generations.push(MemoryGeneration::new(Revision(0), 0, Some(Manifest::default())));
        }
        let fence = Fence(inner.fence);
        drop(inner);
        Self { disk, fence }
    }
}

impl Log for MemoryLog {
    fn append(&mut self, first: Revision, chunks: &[Bytes], fence: Fence) -> Result<(), LogError> {
        let mut disk = self.disk.0.lock();
        if fence.0 < disk.fence {
            return Err(LogError::fenced());
        }
        if std::mem::take(&mut disk.fail_next) {
            return Err(LogError::Engine("told to fail".to_owned()));
        }
        let Some(generation) = disk.generations.last_mut() else {
            return Err(LogError::Corrupt("there is no generation".to_owned()));
        };
        generation.log.extend((0u16..).zip(chunks).map(|(idx, chunk)| ((first.0, idx), chunk.clone())));
        Ok(())
    }

    fn synced(&mut self, last: Revision, crc: u32) -> Result<(), LogError> {
        let mut disk = self.disk.0.lock();
        let floor = disk.generations.first().map_or(Revision(1), |oldest| Revision(oldest.base.0 + 1));
        disk.claimed = Some(Claimed::AtLeast(Claim { floor, last, crc }));
        Ok(())
    }

    fn claimed(&self) -> Claimed {
        self.disk.0.lock().claimed.clone().unwrap_or(Claimed::Never)
    }

    fn put_snapshot(&mut self, revision: Revision, part: SnapshotPart<'_>) -> Result<(), LogError> {
        let mut disk = self.disk.0.lock();
        match part {
            SnapshotPart::Begin(end) => {
                if let Some(newest) = disk.generations.last_mut() {
                    newest.end = Some(end);
                }
                disk.generations.push(MemoryGeneration::new(revision, end.crc, None));
            }
            SnapshotPart::Piece { attempt, piece, chunks } => {
                let generation = disk.generation(revision)?;
                let chunks = (0u16..).zip(chunks).map(|(idx, chunk)| ((attempt, piece, idx), chunk.clone()));
                generation.snapshot.extend(chunks);
            }
            SnapshotPart::Complete(manifest) => disk.generation(revision)?.manifest = Some(manifest),
        }
        Ok(())
    }

    fn drop_before(&mut self, revision: Revision) -> Result<(), LogError> {
        self.disk.0.lock().generations.retain(|generation| generation.base >= revision);
        Ok(())
    }

    fn drop_after(&mut self, revision: Revision) -> Result<(), LogError> {
        for generation in &mut self.disk.0.lock().generations {
            generation.log.retain(|(first, _), _| *first <= revision.0);
        }
        Ok(())
    }

    fn fence(&self) -> Fence {
        self.fence
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::new(self.disk.clone())
    }

    fn free_bytes(&self) -> Result<Option<u64>, LogError> {
        let disk = self.disk.0.lock();
        Ok(disk.capacity.map(|capacity| capacity.saturating_sub(disk.bytes())))
    }

    fn opened(&mut self, _generations: &[Extent], last: Revision, crc: u32) -> Result<(), LogError> {
        self.synced(last, crc)
    }

    fn abandon(self: Box<Self>) -> Result<(), LogError> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), LogError> {
        Ok(())
    }
}

impl LogReader for MemoryDisk {
    fn generations(&self) -> Vec<Generation> {
        let disk = self.0.lock();
        let generations = disk.generations.iter();
        generations
            .map(|MemoryGeneration { base, previous_crc, manifest, end, .. }| Generation {
                base: *base,
                previous_crc: *previous_crc,
                manifest: *manifest,
                end: *end,
            })
            .collect()
    }

    fn scan(&self, base: Revision, from: Revision) -> Result<Chunks, LogError> {
        let mut disk = self.0.lock();
        let log = &disk.generation(base)?.log;
        let start = log.range(..=(from.0, u16::MAX)).next_back().map_or(0, |((first, _), _)| *first);
        let chunks: Vec<_> = log.range((start, 0)..).map(|(_, chunk)| Ok(chunk.clone())).collect();
        Ok(Box::new(chunks.into_iter()))
    }

    fn snapshot(&self, base: Revision, attempt: u64) -> Result<Chunks, LogError> {
        let mut disk = self.0.lock();
        let pieces = disk.generation(base)?.snapshot.range(Self::attempt(attempt));
        let chunks: Vec<_> = pieces.map(|(_, chunk)| Ok(chunk.clone())).collect();
        Ok(Box::new(chunks.into_iter()))
    }

    fn disk_bytes(&self) -> u64 {
        self.0.lock().bytes()
    }
}
