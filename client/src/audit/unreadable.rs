//! Records and operations that cannot be read.

use std::collections::BTreeSet;

use godel_audit::UnreadableRecord;
use godel_base::ids::Revision;
use godel_domain::{records::RecordKey, unreadable::Unreadable};

/// Most that are kept; of what comes beyond only the number is known.
const N_KEPT_MAX: usize = 10_000;

/// What could not be read, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Unreadables {
    all: BTreeSet<UnreadableRecord>,
    n_more: usize,
}

impl Unreadables {
    pub(super) fn add(&mut self, unreadable: Unreadable, revision: Option<Revision>) {
        if self.all.len() >= N_KEPT_MAX {
            self.n_more += 1;
            return;
        }
        let Unreadable { key, field, problem, .. } = unreadable;
        self.all.insert(UnreadableRecord { key, field, why: problem, revision });
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.n_more += other.n_more;
        self.all.extend(other.all);
    }

    pub(super) fn first(&self) -> Option<&UnreadableRecord> {
        self.all.first()
    }

    /// All of them. Where they are too many, nothing is judged.
    pub(super) fn to_vec(&self) -> Vec<UnreadableRecord> {
        let more = (self.n_more > 0).then(|| UnreadableRecord {
            key: RecordKey::Unknown,
            field: "record".to_owned(),
            why: format!("{} more, too many to be kept", self.n_more),
            revision: None,
        });
        self.all.iter().cloned().chain(more).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use godel_base::ids::{NodeId, UnitId};
    use godel_domain::change::Change;
    use godel_proto::{raw, v1};
    use godel_wire::from_proto;

    use super::*;

    fn bad(change: Change) -> Unreadable {
        match change {
            Change::Unreadable(bad) => *bad,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_by_kind_key_and_field() {
        let taints = vec![v1::Taint { effect: 99, ..v1::Taint::default() }];
        let spec = v1::NodeSpec { node_id: 7, taints, ..v1::NodeSpec::default() };
        let op = raw::encode_op(v1::op::Op::PutNodeSpec(spec.clone()));
        let mut unreadable = Unreadables::default();
        unreadable.add(bad(from_proto::read_op(&op)), Some(Revision(12)));
        let record = v1::Record { record: Some(v1::record::Record::NodeSpec(spec)), ..v1::Record::default() };
        // Two lists say the same.
        for _ in 0..2 {
            unreadable.add(bad(from_proto::read_record(record.clone()).change), None);
        }
        let all = unreadable.to_vec();
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|one| one.key == RecordKey::NodeSpec(NodeId(7))));
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert!(texts.iter().any(|text| text.starts_with("node spec 7: record.taints[0]")), "{texts:?}");
        assert!(texts.iter().any(|text| text.ends_with("(revision 12)")), "{texts:?}");
        let noise = bad(from_proto::read_op(&Bytes::from_static(&[0xff])));
        assert_eq!(noise.key, RecordKey::Unknown);
    }

    #[test]
    fn too_many_are_counted_and_make_everything_unknown() {
        let mut unreadable = Unreadables::default();
        for id in 0..=N_KEPT_MAX as u64 {
            unreadable.add(Unreadable::new(RecordKey::Unit(UnitId(id)), "x", "bad"), None);
        }
        let all = unreadable.to_vec();
        assert_eq!(all.len(), N_KEPT_MAX + 1);
        let last = all.last().unwrap();
        assert_eq!((&last.key, last.why.as_str()), (&RecordKey::Unknown, "1 more, too many to be kept"));
    }
}
