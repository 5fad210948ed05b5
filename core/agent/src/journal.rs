//! What an agent has to keep over its own end: ends that state may not know of, and the store that they are of.

use std::{collections::BTreeMap, sync::Arc};

use crate::{RunKey, RunStatus};

/// Something that is written down, with the name of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// It has ended on this node and state may not know.
    Ended(Arc<str>, RunStatus),
    /// State knows.
    Acknowledged(Arc<str>, RunStatus),
    /// What is kept of this node is of this store.
    Store(Arc<str>, u64),
}

/// What entries come to, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalKept {
    /// Ends that state may not know.
    pub ended: BTreeMap<(Arc<str>, RunKey), RunStatus>,
    /// The store of what is kept, by name of the node.
    pub stores: BTreeMap<Arc<str>, u64>,
}

impl JournalKept {
    /// Takes over one more entry.
    pub fn apply(&mut self, entry: &JournalEntry) {
        match entry {
            JournalEntry::Ended(node, status) => {
                self.ended.insert((Arc::clone(node), status.key), *status);
            }
            JournalEntry::Acknowledged(node, status) => {
                let key = (Arc::clone(node), status.key);
                if self.ended.get(&key).is_some_and(|known| known.incarnation <= status.incarnation) {
                    self.ended.remove(&key);
                }
            }
            JournalEntry::Store(node, store) => {
                self.stores.insert(Arc::clone(node), *store);
            }
        }
    }
}
