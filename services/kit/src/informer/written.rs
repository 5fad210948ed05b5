//! Units that the follower's owner wrote itself: their operations come back as they were sent, and need no
//! second decoding.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use godel_base::ids::UnitId;
use godel_domain::{change::Change, records::Record, unit::UnitRecord};
use godel_proto::raw;
use parking_lot::Mutex;

/// By unit: the encoded operation and what it means.
type WrittenUnits = HashMap<UnitId, (Bytes, Arc<UnitRecord>)>;

/// Units sent to the store whose commits the follower has yet to see. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites(Arc<Mutex<WrittenUnits>>);

impl OwnWrites {
    /// Units with their encoded operations, about to be sent.
    pub fn extend(&self, units: impl IntoIterator<Item = (Bytes, Arc<UnitRecord>)>) {
        self.0.lock().extend(units.into_iter().map(|(op, spec)| (spec.id, (op, spec))));
    }

    /// The store refused them, or nobody knows.
    pub fn forget(&self, units: impl IntoIterator<Item = UnitId>) {
        let mut written = self.0.lock();
        for unit in units {
            written.remove(&unit);
        }
    }

    /// What a list shows is not watched.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    /// The change that `op` makes if it is byte for byte one of these. Each is asked for once.
    pub(super) fn take(&self, op: &Bytes) -> Option<Change> {
        let unit = UnitId(raw::put_unit_id(op)?);
        let (sent, record) = self.0.lock().remove(&unit)?;
        (sent == *op).then_some(Change::Put(Record::Unit(record)))
    }
}

#[cfg(test)]
mod tests {
    use godel_proto::v1;
    use godel_wire::{from_proto, to_proto};

    use super::*;

    fn unit() -> UnitRecord {
        let spec = v1::UnitSpec {
            workload_class: v1::WorkloadClass::Batch.into(),
            pool: v1::Pool::Guaranteed.into(),
            restart_policy: v1::RestartPolicy::Never.into(),
            profile: "most-allocated".to_owned(),
            ..v1::UnitSpec::default()
        };
        let unit = v1::UnitRecord { unit_id: 300, spec: Some(spec), ..v1::UnitRecord::default() };
        from_proto::unit_record(unit).unwrap()
    }

    #[test]
    fn only_the_very_bytes_are_known_and_only_once() {
        let record = Arc::new(unit());
        let op = to_proto::put_unit(&record);
        let written = OwnWrites::default();
        assert_eq!(written.take(&op), None);
        written.extend([(op.clone(), Arc::clone(&record))]);
        assert_eq!(written.take(&to_proto::delete(godel_proto::v1::Kind::Unit, record.id.0)), None);
        assert_eq!(written.take(&op), Some(Change::Put(Record::Unit(Arc::clone(&record)))));
        assert_eq!(written.take(&op), None);

        let mut other = (*record).clone();
        other.status.cancelled = !record.status.cancelled;
        written.extend([(op.clone(), Arc::clone(&record))]);
        assert_eq!(written.take(&to_proto::put_unit(&other)), None);
        for forget in
            [|written: &OwnWrites, unit| written.forget([unit]), |written: &OwnWrites, _| written.clear()]
        {
            written.extend([(op.clone(), Arc::clone(&record))]);
            forget(&written, record.id);
            assert_eq!(written.take(&op), None);
        }
    }
}
