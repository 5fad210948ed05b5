//! The log as readers use it, and the files that stay open for them.

use std::sync::Arc;

use bytes::Bytes;
use godel_base::ids::Revision;

use super::{
    Files,
    files::{dir_bytes, remove_dir},
    generation::{Db, SledGeneration, engine, log_key, log_key_first, snapshot_key},
    looking,
};
use crate::log::{Chunks, Generation, LogError, LogReader};

/// Sealed generations that stay open after they were read. A watcher reads one after the other, in small steps.
const RECENT_MAX: usize = 3;

impl Files {
    pub(super) fn generation(&self, base: Revision) -> Result<Arc<SledGeneration>, LogError> {
        let generations = self.generations.read();
        let found = generations.iter().find(|generation| generation.base.revision == base.0);
        found.cloned().ok_or_else(|| LogError::Corrupt(format!("there is no generation with base {base}")))
    }

    pub(super) fn newest(&self) -> Result<Arc<SledGeneration>, LogError> {
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
    pub(super) fn decide(&self) -> Result<(), LogError> {
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

impl LogReader for Files {
    fn generations(&self) -> Vec<Generation> {
        self.generations.read().iter().map(|generation| generation.describe()).collect()
    }

    fn scan(&self, base: Revision, from: Revision) -> Result<Chunks, LogError> {
        let db = self.db(base)?;
        let range = log_key(0, 0)..=log_key(from.0, u16::MAX);
        let before = db.look(move |db| db.range(range).next_back().transpose())?;
        let first = before.and_then(|(key, _)| log_key_first(&key)).unwrap_or(0);
        entries(db, log_key(first, 0), vec![b'l' + 1])
    }

    fn snapshot(&self, base: Revision, attempt: u64) -> Result<Chunks, LogError> {
        let db = self.db(base)?;
        entries(db, snapshot_key(attempt, 0, 0), snapshot_key(attempt, u64::MAX, u16::MAX))
    }

    fn disk_bytes(&self) -> u64 {
        dir_bytes(&self.dir)
    }
}

/// Values of a range of keys; the generation's files stay as long as this is read.
fn entries(db: Arc<Db>, from: Vec<u8>, to: Vec<u8>) -> Result<Chunks, LogError> {
    let (range, kept) = (db.range(from..to), Arc::clone(&db));
    let mut items = db.items(range.map(move |entry| {
        let _kept = &kept;
        entry.map(|(_, value)| Bytes::copy_from_slice(&value)).map_err(engine)
    }))?;
    let mut has_failed = false;
    Ok(Box::new(std::iter::from_fn(move || {
        if has_failed {
            return None;
        }
        let next = db.next_of(&mut items).transpose()?.flatten();
        has_failed = next.is_err();
        Some(next)
    })))
}
