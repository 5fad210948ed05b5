//! The state on which the kept history rests: the snapshot of the oldest generation, read piece by piece.
//!
//! Whoever judges a history commit by commit needs the state before its first commit. A snapshot is taken while
//! transactions go on, so each of its records is as it was at some revision from the base on; with the commits up to the
//! revision at which it was complete they are the state at that revision.

use bytes::Bytes;
use godel_base::ids::Revision;
use godel_proto::v1;

use crate::{
    chunk::Assembler,
    log::{Chunks, LogError, LogReader, Manifest},
    record::Record,
    snapshot::split_records,
};

/// Reads the records on which the kept history rests. What it reads stays as long as it does.
pub struct FloorReader {
    base: Revision,
    manifest: Manifest,
    chunks: Chunks,
    assembler: Assembler,
    crc: u32,
    n_pieces: u64,
    rest: Bytes,
}

impl std::fmt::Debug for FloorReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { base, manifest, n_pieces, .. } = self;
        let mut shown = f.debug_struct("FloorReader");
        shown
            .field("base", base)
            .field("manifest", manifest)
            .field("n_pieces", n_pieces)
            .finish_non_exhaustive()
    }
}

impl FloorReader {
    pub(crate) fn open(reader: &dyn LogReader) -> Result<Self, LogError> {
        let oldest = reader.generations().into_iter().next();
        let oldest = oldest.ok_or_else(|| LogError::Corrupt("no generation is there".to_owned()))?;
        let base = oldest.base;
        let manifest = oldest
            .manifest
            .ok_or_else(|| LogError::Corrupt(format!("the snapshot of generation {base} is not complete")))?;
        Ok(Self {
            base,
            manifest,
            chunks: if manifest.n_pieces == 0 {
                Box::new(std::iter::empty())
            } else {
                reader.snapshot(base, manifest.attempt)?
            },
            assembler: Assembler::new(Some(0), Some(0)),
            crc: 0,
            n_pieces: 0,
            rest: Bytes::new(),
        })
    }

    /// The history begins behind this revision.
    pub fn base(&self) -> Revision {
        self.base
    }

    /// With all commits from the base up to this revision the records are the state at this revision.
    pub fn complete_at(&self) -> Revision {
        Revision(self.manifest.end_revision).max(self.base)
    }

    /// Some more records, perhaps none; `None` behind the last ones. Reads from disk.
    ///
    /// # Errors
    /// It is gone, or not whole.
    pub fn next_records(&mut self) -> Result<Option<Vec<(v1::Kind, Record)>>, LogError> {
        let bad = |base, what| LogError::Corrupt(format!("snapshot of generation {base}: {what}"));
        while self.n_pieces < self.manifest.n_pieces {
            let Some(chunk) = self.chunks.next() else { break };
            let pushed = self.assembler.push(&chunk?).map_err(|what| bad(self.base, what))?;
            let Some(piece) = pushed else { continue };
            self.crc = piece.crc;
            self.n_pieces += 1;
            // The last one has the counters.
            if self.n_pieces < self.manifest.n_pieces {
                let records = split_records(&mut self.rest, piece.payload);
                return records.map(Some).map_err(|what| bad(self.base, what));
            }
        }
        let is_whole = self.n_pieces == self.manifest.n_pieces && self.crc == self.manifest.crc;
        if !is_whole || !self.rest.is_empty() {
            return Err(bad(self.base, "it is incomplete".to_owned()));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use godel_proto::raw;

    use super::*;
    use crate::{Engine, Key, Role, State, Store, StoreConfig, log::memory::MemoryDisk};
    use godel_crash::CrashPoints;

    fn config(disk: &MemoryDisk) -> StoreConfig {
        StoreConfig {
            generation_bytes_min: 2_000,
            snapshot_piece_bytes: 500,
            history_bytes_min: 0,
            history_age_min: std::time::Duration::MAX,
            ..StoreConfig::new(Engine::Memory(disk.clone()))
        }
    }

    fn open(disk: &MemoryDisk) -> Store {
        Store::open(config(disk), Arc::new(|| 0), CrashPoints::default()).unwrap()
    }

    async fn put(store: &Store, node_id: u32, name: String) -> Revision {
        let meta = Some(v1::ObjectMeta { name, ..v1::ObjectMeta::default() });
        let node = v1::NodeSpec { node_id, meta, ..v1::NodeSpec::default() };
        let txn = raw::TxnRequest {
            ops: vec![raw::encode_op(v1::op::Op::PutNodeSpec(node))],
            ..raw::TxnRequest::default()
        };
        store.submit(txn, Role::Admin).await.unwrap().revision
    }

    fn all(reader: &mut FloorReader) -> BTreeMap<Key, Record> {
        let mut records = BTreeMap::new();
        while let Some(some) = reader.next_records().unwrap() {
            for (kind, record) in some {
                records.insert(godel_wire::ops::record_key(kind, &record.value).unwrap(), record);
            }
        }
        records
    }

    #[tokio::test]
    async fn a_new_store_rests_on_nothing() {
        let store = open(&MemoryDisk::default());
        put(&store, 1, "a".to_owned()).await;
        let mut reader = store.floor().unwrap();
        assert_eq!((reader.base(), reader.complete_at()), (Revision(0), Revision(0)));
        assert_eq!(all(&mut reader), BTreeMap::new());
        store.close().await;
    }

    #[tokio::test]
    async fn a_snapshot_and_later_commits_make_the_state() {
        let disk = MemoryDisk::default();
        let store = open(&disk);
        for n in 0..200 {
            put(&store, 1 + n % 7, format!("node-{n}-{}", "x".repeat(60))).await;
        }
        let mut reader = store.floor().unwrap();
        let base = reader.base();
        assert!(base > Revision(0), "older generations are gone");
        assert!(reader.complete_at() >= base);
        let mut records = all(&mut reader);
        let now = store.read(State::revision);
        let mut watcher = store.watch(Revision(base.0 + 1)).unwrap();
        while watcher.position() <= now {
            for published in watcher.next().await.unwrap() {
                for change in &published.changes {
                    let godel_wire::ops::ParsedOp::Put { key, value, .. } = change else {
                        panic!("{change:?}")
                    };
                    let record = records.get_mut(key).expect("all nodes are older than the history");
                    if record.revision < published.revision() {
                        (record.value, record.revision) = (value.clone(), published.revision());
                    }
                }
            }
        }
        let nodes = v1::Kind::NodeSpec;
        let expected: BTreeMap<Key, Record> = store.read(|state| {
            state.records(nodes, None).map(|(key, record)| (key.clone(), record.clone())).collect()
        });
        assert_eq!(records, expected);
        store.close().await;
    }
}
