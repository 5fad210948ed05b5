//! The last transactions of a lease, so that a repeated one gets its first answer.

use std::collections::VecDeque;

use godel_base::ids::Revision;
use godel_proto::v1;
use rustc_hash::FxHashMap;

use super::Committed;

/// Transactions remembered per lease: more than a writer may have in flight.
pub(super) const WINDOW_LEN: usize = 4096;

/// The last [`WINDOW_LEN`] transactions of one lease, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    entries: VecDeque<Entry>,
    /// Highest (epoch, sequence) ever seen: what is above it is new without a search.
    highest: (u64, u64),
}

/// The last transactions of each lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Windows(pub(super) FxHashMap<String, Window>);

impl Windows {
    /// What a transaction was committed as, if it is remembered.
    pub(super) fn find(&self, writer: &v1::Writer) -> Option<Committed> {
        self.0.get(&writer.lease)?.get(writer.epoch, writer.sequence)
    }

    pub(super) fn remember(&mut self, writer: &v1::Writer, committed: Committed) {
        if !self.0.contains_key(&writer.lease) {
            self.0.insert(writer.lease.clone(), Window::default());
        }
        if let Some(window) = self.0.get_mut(&writer.lease) {
            window.push(writer.epoch, writer.sequence, committed);
        }
    }
}

/// One transaction of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) committed: Committed,
}

impl Window {
    /// What the transaction was committed as, if it is remembered.
    pub(crate) fn get(&self, epoch: u64, sequence: u64) -> Option<Committed> {
        if (epoch, sequence) > self.highest {
            return None;
        }
        self.entries
            .iter()
            .rev()
            .find(|entry| entry.epoch == epoch && entry.sequence == sequence)
            .map(|entry| entry.committed)
    }

    /// Remembers a transaction; one that is not newer than the last is known already.
    pub(crate) fn push(&mut self, epoch: u64, sequence: u64, committed: Committed) {
        if self.last().is_some_and(|last| committed.revision <= last) {
            return;
        }
        if self.entries.len() == WINDOW_LEN {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { epoch, sequence, committed });
        self.highest = self.highest.max((epoch, sequence));
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    fn last(&self) -> Option<Revision> {
        self.entries.back().map(|entry| entry.committed.revision)
    }
}
