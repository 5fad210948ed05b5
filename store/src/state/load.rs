//! The state from and to a snapshot: records, rows, and the counters beside them.

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, StoreId, UnitId};
use godel_proto::v1;
use godel_wire::ops::{self, OpError};
use prost::Message as _;

use super::{Committed, State, Window, kind_idx};
use crate::record::Record;

/// What a snapshot says beside records and rows.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Counters {
    #[prost(uint64, tag = "1")]
    pub(crate) revision: u64,
    #[prost(int64, tag = "2")]
    pub(crate) commit_time_ms: i64,
    #[prost(uint64, tag = "3")]
    pub(crate) last_unit_id: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) next_node_id: u32,
    #[prost(message, repeated, tag = "5")]
    pub(crate) windows: Vec<WindowColumns>,
    #[prost(uint64, tag = "6")]
    pub(crate) store_id: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) epoch_floor: u64,
    /// Absent: never restored nor truncated.
    #[prost(int64, optional, tag = "8")]
    pub(crate) renewed_ms: Option<i64>,
}

/// The sequence window of one lease, oldest first. Columns of equal length.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WindowColumns {
    #[prost(string, tag = "1")]
    pub(crate) lease: String,
    #[prost(uint64, repeated, tag = "2")]
    pub(crate) epochs: Vec<u64>,
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) sequences: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) revisions: Vec<u64>,
    #[prost(int64, repeated, tag = "5")]
    pub(crate) commit_times_ms: Vec<i64>,
}

impl State {
    pub(crate) fn counters(&self) -> Counters {
        let mut windows: Vec<WindowColumns> = self
            .windows
            .0
            .iter()
            .map(|(lease, window)| {
                let mut columns = WindowColumns { lease: lease.clone(), ..WindowColumns::default() };
                for entry in window.entries() {
                    columns.epochs.push(entry.epoch);
                    columns.sequences.push(entry.sequence);
                    columns.revisions.push(entry.committed.revision.0);
                    columns.commit_times_ms.push(entry.committed.commit_time_ms);
                }
                columns
            })
            .collect();
        windows.sort_by(|a, b| a.lease.cmp(&b.lease));
        Counters {
            revision: self.revision.0,
            commit_time_ms: self.commit_time_ms,
            last_unit_id: self.last_unit_id.0,
            next_node_id: self.next_node_id.0,
            windows,
            store_id: self.store_id.0,
            epoch_floor: self.epoch_floor,
            renewed_ms: (self.renewed_ms != i64::MIN).then_some(self.renewed_ms),
        }
    }

    /// Puts the counters of a snapshot in place. Its revision is where the replay must at least arrive.
    pub(crate) fn load_counters(&mut self, counters: Counters) {
        self.revision = Revision(counters.revision);
        self.commit_time_ms = counters.commit_time_ms;
        self.last_unit_id = UnitId(counters.last_unit_id);
        self.next_node_id = NodeId(counters.next_node_id);
        self.store_id = StoreId(counters.store_id);
        self.epoch_floor = counters.epoch_floor;
        self.renewed_ms = counters.renewed_ms.unwrap_or(i64::MIN);
        for columns in counters.windows {
            let mut window = Window::default();
            let entries = columns.epochs.iter().zip(&columns.sequences);
            for ((epoch, sequence), (revision, time)) in
                entries.zip(columns.revisions.iter().zip(&columns.commit_times_ms))
            {
                let committed = Committed { revision: Revision(*revision), commit_time_ms: *time };
                window.push(*epoch, *sequence, committed);
            }
            self.windows.0.insert(columns.lease, window);
        }
    }

    /// Puts a record of a snapshot in place.
    ///
    /// # Errors
    /// Its value does not decode.
    pub(crate) fn load_record(&mut self, kind: v1::Kind, record: Record) -> Result<(), OpError> {
        if kind == v1::Kind::Rows {
            return self.load_rows(record.value, record.revision);
        }
        let key = ops::record_key(kind, &record.value)?;
        let idx = kind_idx(kind).ok_or(OpError::Unknown)?;
        self.set_record(idx, &key, Some(record), None);
        Ok(())
    }

    fn load_rows(&mut self, value: Bytes, revision: Revision) -> Result<(), OpError> {
        let proto =
            v1::UnitRows::decode(value).map_err(|_| OpError::Malformed { message: "RunningUnits" })?;
        let (unit, rows) = ops::rows_from_proto(proto)?;
        self.rows.insert(unit, rows, revision);
        Ok(())
    }
}
