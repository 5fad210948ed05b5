//! The numbers by which masters tell their asks apart (allocation request ids), kept with the ordinals that were opened for them.
//!
//! A unit does not know them, so they stand in the record of the application. A container is not shown to its master before the record
//! with its number is written: after a restart it has the same number.

use std::collections::BTreeMap;

use super::NO_REQUEST_ID;

/// Numbers by ordinal, without those of asks that have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestIds {
    /// Each with the version of the record in which it stands first.
    known: BTreeMap<u32, (i64, u64)>,
    /// Version of the newest record in the store.
    saved: u64,
}

impl RequestIds {
    /// As a record in the store says.
    pub(super) fn recorded(ids: BTreeMap<u32, i64>, version: u64) -> Self {
        Self {
            known: ids.into_iter().map(|(ordinal, id)| (ordinal, (id, version))).collect(),
            saved: version,
        }
    }

    /// Ordinals were opened; `version` is that of the next record. Whether that has to be written for them.
    pub(super) fn opened(&mut self, id: i64, ordinals: std::ops::Range<u32>, version: u64) -> bool {
        if id == NO_REQUEST_ID || ordinals.is_empty() {
            return false;
        }
        self.known.extend(ordinals.map(|ordinal| (ordinal, (id, version))));
        true
    }

    /// The number of an ordinal.
    pub(super) fn of(&self, ordinal: u32) -> i64 {
        self.known.get(&ordinal).map_or(NO_REQUEST_ID, |(id, _)| *id)
    }

    /// Whether the number of an ordinal would survive a restart.
    pub(super) fn is_saved(&self, ordinal: u32) -> bool {
        self.known.get(&ordinal).is_none_or(|(_, version)| *version <= self.saved)
    }

    /// A record was written.
    pub(super) fn on_saved(&mut self, version: u64) {
        self.saved = self.saved.max(version);
    }

    /// An ordinal was released or has ended.
    pub(super) fn forget(&mut self, ordinal: u32) {
        self.known.remove(&ordinal);
    }

    /// As they are recorded.
    pub(super) fn to_record(&self) -> BTreeMap<u32, i64> {
        self.known.iter().map(|(ordinal, (id, _))| (*ordinal, *id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_once_their_record_is_written() {
        let mut ids = RequestIds::recorded([(3, 7)].into(), 4);
        assert!(ids.is_saved(3) && ids.is_saved(99));
        assert_eq!((ids.of(3), ids.of(99)), (7, NO_REQUEST_ID));
        assert!(ids.opened(8, 4..6, 5) && !ids.opened(NO_REQUEST_ID, 6..7, 5) && !ids.opened(8, 6..6, 5));
        assert!(!ids.is_saved(4) && !ids.is_saved(5) && ids.is_saved(6));
        ids.on_saved(5);
        ids.on_saved(1);
        assert!(ids.is_saved(4));
        ids.forget(3);
        assert_eq!(ids.to_record(), [(4, 8), (5, 8)].into());
    }
}
