//! A generation of the log in etcd, as far as this process knows it.

use std::sync::atomic::{AtomicU64, Ordering};

use godel_base::ids::Revision;
use parking_lot::Mutex;

use super::keys::GenerationKeys;
use crate::log::{End, Generation, Manifest};

/// A generation. Readers hold a reference, and the generation is not deleted while they do.
#[derive(Debug)]
pub(super) struct EtcdGeneration {
    pub(super) base: Revision,
    pub(super) previous_crc: u32,
    pub(super) keys: GenerationKeys,
    manifest: Mutex<Option<Manifest>>,
    end: Mutex<Option<End>>,
    log_bytes: AtomicU64,
    /// First revisions of its groups, in order; `None` until they are listed. A watcher resumes in the middle of a log, and
    /// etcd can find the last key before a given key only by reading all of them.
    firsts: Mutex<Option<Vec<Revision>>>,
}

impl EtcdGeneration {
    pub(super) fn new(base: Revision, previous_crc: u32, keys: GenerationKeys) -> Self {
        Self {
            base,
            previous_crc,
            keys,
            manifest: Mutex::default(),
            end: Mutex::default(),
            log_bytes: AtomicU64::new(0),
            firsts: Mutex::default(),
        }
    }

    pub(super) fn describe(&self) -> Generation {
        Generation {
            base: self.base,
            previous_crc: self.previous_crc,
            manifest: self.manifest(),
            end: *self.end.lock(),
        }
    }

    pub(super) fn manifest(&self) -> Option<Manifest> {
        *self.manifest.lock()
    }

    pub(super) fn set_manifest(&self, manifest: Manifest) {
        *self.manifest.lock() = Some(manifest);
    }

    pub(super) fn set_end(&self, end: End) {
        *self.end.lock() = Some(end);
        self.log_bytes.store(end.bytes, Ordering::Relaxed);
    }

    pub(super) fn set_log_bytes(&self, bytes: u64) {
        self.log_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the size of its log and of its snapshot.
    pub(super) fn bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed) + self.manifest().map_or(0, |manifest| manifest.bytes)
    }

    /// Adds a group of `bytes` bytes to the end of its log.
    pub(super) fn add_group(&self, first: Revision, bytes: u64) {
        self.log_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(firsts) = &mut *self.firsts.lock() {
            firsts.push(first);
        }
    }

    pub(super) fn set_firsts(&self, mut firsts: Vec<Revision>) {
        firsts.dedup();
        *self.firsts.lock() = Some(firsts);
    }

    pub(super) fn has_firsts(&self) -> bool {
        self.firsts.lock().is_some()
    }

    /// Returns the first revision of the group that contains `revision`, if the groups are listed.
    pub(super) fn group_of(&self, revision: Revision) -> Option<Revision> {
        let firsts = self.firsts.lock();
        let firsts = firsts.as_ref()?;
        let behind = firsts.partition_point(|first| *first <= revision);
        behind.checked_sub(1).and_then(|at| firsts.get(at)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::etcd::keys::StoreKeys;

    #[test]
    fn the_group_of_a_revision_is_found() {
        let base = Revision(10);
        let generation = EtcdGeneration::new(base, 0, StoreKeys::new("p/", 1).generation(base));
        assert_eq!(generation.group_of(Revision(11)), None, "nothing is listed");
        generation.set_firsts([11, 11, 15].map(Revision).to_vec());
        generation.add_group(Revision(20), 100);
        for (revision, first) in [
            (10, None),
            (11, Some(11)),
            (14, Some(11)),
            (15, Some(15)),
            (19, Some(15)),
            (20, Some(20)),
            (99, Some(20)),
        ] {
            assert_eq!(generation.group_of(Revision(revision)), first.map(Revision), "{revision}");
        }
        assert_eq!(generation.bytes(), 100);
    }
}
