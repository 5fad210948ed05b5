//! The keys of an etcd, with revisions and compaction.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    CallError,
    kv::{Compare, Entry, Op, Page, RangeRequest, TxnReply, TxnRequest},
};

/// What etcd's own bookkeeping of a key takes, about.
const KEY_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct Keys {
    keys: BTreeMap<Bytes, Held>,
    pub(super) revision: u64,
    pub(super) compacted: u64,
    /// Bytes of what was superseded or deleted, by the revision of that.
    dead: BTreeMap<u64, u64>,
    /// The file: it never shrinks.
    pub(super) db_bytes: u64,
}

#[derive(Clone, Debug)]
struct Held {
    value: Bytes,
    create_revision: u64,
}

impl Default for Keys {
    fn default() -> Self {
        // An empty etcd is at revision 1.
        Self { keys: BTreeMap::new(), revision: 1, compacted: 0, dead: BTreeMap::new(), db_bytes: 0 }
    }
}

fn bytes(key: &Bytes, value: &Bytes) -> u64 {
    (key.len() + value.len() + KEY_BYTES) as u64
}

impl Keys {
    pub(super) fn of(entries: Vec<(Bytes, Bytes)>, revision: u64) -> Self {
        let held = |value| Held { value, create_revision: revision };
        let keys = entries.into_iter().map(|(key, value)| (key, held(value))).collect();
        Self { keys, revision, ..Self::default() }
    }

    pub(super) fn all(&self) -> Vec<(Bytes, Bytes)> {
        self.keys.iter().map(|(key, held)| (key.clone(), held.value.clone())).collect()
    }

    pub(super) fn in_use_bytes(&self) -> u64 {
        let live: u64 = self.keys.iter().map(|(key, held)| bytes(key, &held.value)).sum();
        live + self.dead.values().sum::<u64>()
    }

    pub(super) fn range(&self, request: &RangeRequest) -> Page {
        let RangeRequest { from, to, limit, keys_only } = request;
        let limit = usize::try_from(*limit).unwrap_or(usize::MAX);
        let mut found = self.keys.range(from.clone()..).take_while(|(key, _)| *key < to);
        let entries = found.by_ref().take(limit).map(|(key, held)| Entry {
            key: key.clone(),
            value: if *keys_only { Bytes::new() } else { held.value.clone() },
            create_revision: held.create_revision,
        });
        let entries = entries.collect();
        Page { entries, has_more: found.next().is_some(), ..Page::default() }
    }

    /// Makes a transaction, as etcd does: all of it or nothing.
    pub(super) fn apply(&mut self, txn: &TxnRequest) -> TxnReply {
        if !txn.compares.iter().all(|compare| self.holds(compare)) {
            let reads = txn.reads.iter().map(|key| {
                self.keys.get(key).map(|held| Entry {
                    key: key.clone(),
                    value: held.value.clone(),
                    create_revision: held.create_revision,
                })
            });
            return TxnReply { reads: reads.collect(), ..TxnReply::default() };
        }
        let next = self.revision + 1;
        let mut has_changed = false;
        for op in &txn.ops {
            has_changed |= self.make(op, next);
        }
        if has_changed {
            self.revision = next;
        }
        self.db_bytes = self.db_bytes.max(self.in_use_bytes());
        TxnReply { succeeded: true, ..TxnReply::default() }
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Absent(key) => !self.keys.contains_key(key),
            Compare::Present(key) => self.keys.contains_key(key),
            Compare::CreatedAt(key, revision) => {
                self.keys.get(key).map_or(0, |held| held.create_revision) == *revision
            }
            Compare::Holds(key, value) => self.keys.get(key).is_some_and(|held| held.value == *value),
        }
    }

    /// Whether it changed something.
    fn make(&mut self, op: &Op, revision: u64) -> bool {
        match op {
            Op::Put(key, value) => {
                let before = self.keys.get(key);
                let create_revision = before.map_or(revision, |before| before.create_revision);
                let dead = before.map_or(0, |before| bytes(key, &before.value));
                *self.dead.entry(revision).or_default() += dead;
                self.keys.insert(key.clone(), Held { value: value.clone(), create_revision });
                true
            }
            Op::Delete(key) => self.delete(key, revision),
            Op::DeleteRange(from, to) => {
                let keys: Vec<_> = self
                    .keys
                    .range(from.clone()..)
                    .map(|(key, _)| key.clone())
                    .take_while(|key| key < to)
                    .collect();
                keys.iter().fold(false, |has_changed, key| self.delete(key, revision) | has_changed)
            }
        }
    }

    fn delete(&mut self, key: &Bytes, revision: u64) -> bool {
        let Some(held) = self.keys.remove(key) else { return false };
        *self.dead.entry(revision).or_default() += bytes(key, &held.value);
        true
    }

    pub(super) fn compact(&mut self, revision: u64) -> Result<(), CallError> {
        if revision <= self.compacted {
            return Err(CallError::Compacted);
        }
        if revision > self.revision {
            return Err(CallError::Refused("required revision is a future revision".to_owned()));
        }
        self.compacted = revision;
        self.dead = self.dead.split_off(&(revision + 1));
        Ok(())
    }
}
