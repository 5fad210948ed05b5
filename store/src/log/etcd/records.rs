//! Records in etcd other than chunks.

use bytes::Bytes;
use godel_etcd::{Compare, Entry};
use prost::Message;

use crate::log::LogError;

/// Names the process that may write. A process that takes the store over replaces this record.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct FenceRecord {
    /// Counts the processes that have taken the store over.
    #[prost(uint64, tag = "1")]
    pub(super) number: u64,
    /// Random number of the process, which tells two processes apart that take the store over at once.
    #[prost(fixed64, tag = "2")]
    pub(super) token: u64,
    /// The valid line of keys.
    #[prost(uint32, tag = "3")]
    pub(super) line: u32,
    /// Which process it is, for people. Older versions have none.
    #[prost(string, tag = "4")]
    pub(super) holder: String,
    /// The address at which the process answers calls. Empty: it has given the store back, or answers none.
    #[prost(string, tag = "5")]
    pub(super) address: String,
    /// Random number of the data directory of the process; 0: it is not known.
    #[prost(fixed64, tag = "6")]
    pub(super) place: u64,
}

impl FenceRecord {
    /// That the process of this record has taken the log over.
    pub(super) fn taken_over(&self) -> LogError {
        let by = if self.holder.is_empty() { String::new() } else { format!(": {}", self.holder) };
        LogError::Fenced { by }
    }
}

/// The begin of a generation.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct BeginRecord {
    /// The log of the generation begins behind this revision.
    #[prost(uint64, tag = "1")]
    pub(super) base: u64,
    /// Checksum of the last chunk of the log before it.
    #[prost(uint32, tag = "2")]
    pub(super) previous_crc: u32,
    /// Random number of the store, which its watermarks and generations share.
    #[prost(fixed64, tag = "3")]
    pub(super) store: u64,
}

/// Appends the checksum of a record to it.
pub(super) fn seal(record: &impl Message) -> Bytes {
    let mut bytes = record.encode_to_vec();
    let crc = crc32c::crc32c(&bytes);
    bytes.extend(crc.to_be_bytes());
    bytes.into()
}

/// Decodes the record in a value and verifies its checksum.
pub(super) fn open<M: Message + Default>(key: &Bytes, value: &Bytes) -> Result<M, LogError> {
    let record = value.split_last_chunk::<4>().and_then(|(bytes, crc)| {
        let is_whole = crc32c::crc32c(bytes).to_be_bytes() == *crc;
        M::decode(bytes).ok().filter(|_| is_whole)
    });
    record.ok_or_else(|| {
        LogError::Corrupt(format!(
            "the key {} of etcd is damaged: its checksum differs",
            String::from_utf8_lossy(key)
        ))
    })
}

/// The fence that this process holds.
#[derive(Clone, Debug)]
pub(super) struct HeldFence {
    pub(super) key: Bytes,
    pub(super) record: FenceRecord,
    value: Bytes,
}

impl HeldFence {
    pub(super) fn new(key: Bytes, record: FenceRecord) -> Self {
        Self { key, value: seal(&record), record }
    }

    /// Returns the next fence of the same process.
    pub(super) fn next(&self) -> Self {
        let number = self.record.number + 1;
        Self::new(self.key.clone(), FenceRecord { number, ..self.record.clone() })
    }

    /// Returns the fence that says that its process has given the store back: nobody holds it.
    pub(super) fn given_back(&self) -> Self {
        let FenceRecord { number, line, .. } = self.record;
        Self::new(self.key.clone(), FenceRecord { number: number + 1, line, ..FenceRecord::default() })
    }

    /// Returns the comparison that each transaction of the holder makes.
    pub(super) fn compare(&self) -> Compare {
        Compare::Holds(self.key.clone(), self.value.clone())
    }

    /// Whether another process holds the fence, given the current value of its key.
    pub(super) fn is_lost(&self, entry: Option<&Entry>) -> bool {
        entry.is_none_or(|entry| entry.value != self.value)
    }

    /// That it is another's, given what its key holds.
    pub(super) fn lost_to(&self, entry: Option<&Entry>) -> LogError {
        let record = entry.and_then(|entry| open::<FenceRecord>(&self.key, &entry.value).ok());
        record.map_or_else(LogError::fenced, |record| record.taken_over())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_changed_is_not_read() {
        let record = BeginRecord { base: 7, previous_crc: 8, store: 9 };
        let (key, sealed) = (Bytes::from_static(b"k"), seal(&record));
        assert_eq!(open::<BeginRecord>(&key, &sealed).unwrap(), record);
        for at in 0..sealed.len() {
            let mut rotten = sealed.to_vec();
            rotten[at] ^= 4;
            assert!(open::<BeginRecord>(&key, &rotten.into()).is_err(), "{at}");
        }
        assert!(open::<BeginRecord>(&key, &Bytes::new()).is_err());
    }

    #[test]
    fn a_fence_is_lost_to_a_process_with_another_token() {
        let record = FenceRecord {
            number: 1,
            token: 2,
            line: 3,
            holder: "process 4 on host b".to_owned(),
            address: String::new(),
            place: 0,
        };
        let own = HeldFence::new("f".into(), record.clone());
        let other = HeldFence::new("f".into(), FenceRecord { token: 3, ..record });
        let held = |fence: &HeldFence| Entry { value: fence.value.clone(), ..Entry::default() };
        assert!(!own.is_lost(Some(&held(&own))));
        assert!(own.is_lost(Some(&held(&other))) && own.is_lost(None));
        assert!(own.lost_to(Some(&held(&other))).to_string().ends_with("log: process 4 on host b"));
        assert!(own.lost_to(None).to_string().ends_with("another process has taken over the log"));
    }
}
