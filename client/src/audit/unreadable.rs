//! Records and operations that cannot be read: told apart by their keys, which mostly still can.

use bytes::Bytes;
use godel_audit::{RecordSubject, UnreadableRecord};
use godel_base::ids::{NodeId, Revision, UnitId};
use godel_proto::v1;
use godel_wire::BadField;
use prost::Message as _;

/// Most that are kept; of what comes beyond only the number is known.
const N_KEPT_MAX: usize = 10_000;

/// What could not be read, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Unreadables {
    all: std::collections::BTreeSet<UnreadableRecord>,
    n_more: usize,
}

impl Unreadables {
    pub(super) fn add(
        &mut self,
        kind: RecordSubject,
        what: String,
        bad: BadField,
        revision: Option<Revision>,
    ) {
        if self.all.len() >= N_KEPT_MAX {
            self.n_more += 1;
            return;
        }
        let BadField { path: field, description: why } = bad;
        self.all.insert(UnreadableRecord { kind, what, field, why, revision });
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
            kind: RecordSubject::Unknown,
            what: format!("{} more", self.n_more),
            field: "record".to_owned(),
            why: "too many to be kept".to_owned(),
            revision: None,
        });
        self.all.iter().cloned().chain(more).collect()
    }
}

/// What a listed record is of.
pub(super) fn key_of_record(record: &v1::Record) -> (RecordSubject, String) {
    use v1::record::Record;
    let Some(record) = &record.record else {
        return (RecordSubject::Unknown, "a record without a kind".to_owned());
    };
    match record {
        Record::NodeSpec(pb) => node("record", pb.node_id),
        Record::NodeReport(pb) => node("report", pb.node_id),
        Record::NodeAllocatable(pb) => node("allocatable", pb.node_id),
        Record::NodeUsage(pb) => node("use", pb.node_id),
        Record::Unit(pb) => unit(pb.unit_id),
        Record::TaskGroup(pb) => unit(pb.unit_id),
        Record::Lease(pb) => (RecordSubject::Lease, format!("lease {}", pb.lease)),
        Record::Partition(_) => (RecordSubject::Partition, "the partition".to_owned()),
        Record::PartitionBlock(pb) => (RecordSubject::Partition, format!("partition block {}", pb.block_id)),
        Record::Queue(pb) => (RecordSubject::Queue, format!("queue {}", name(&pb.meta))),
        Record::PriorityClass(pb) => (RecordSubject::PriorityClass, format!("priority class {}", pb.name)),
        Record::Hold(pb) => hold(pb.hold_id),
        Record::Pause(pb) => (RecordSubject::Pause, format!("pause {}", pb.scope)),
        Record::DisruptionBudget(pb) => (RecordSubject::Budget, format!("disruption budget {}", pb.name)),
        Record::Reservation(pb) => (RecordSubject::Reservation, format!("reservation {}", pb.name)),
        Record::YarnKeys(pb) => (RecordSubject::YarnKeys, format!("YARN keys {}", pb.name)),
        Record::YarnApplication(pb) => yarn_application(&pb.application),
        Record::Movement(pb) => movement(&pb.name),
        Record::MoveRate(pb) => move_rate(pb.unit_id),
        Record::UnitHistory(pb) => history(pb.unit_id),
        Record::Rows(pb) => rows(pb.unit_id),
    }
}

/// What an operation of a commit is of.
pub(super) fn key_of_op(encoded: &Bytes) -> (RecordSubject, String) {
    use v1::op::Op;
    let unknown = || (RecordSubject::Unknown, "an operation of no known kind".to_owned());
    let Some(op) = v1::Op::decode(encoded.clone()).ok().and_then(|op| op.op) else { return unknown() };
    match op {
        Op::PutNodeSpec(pb) => node("record", pb.node_id),
        Op::PutNodeReport(pb) => node("report", pb.node_id),
        Op::PutNodeAllocatable(pb) => node("allocatable", pb.node_id),
        Op::PutNodeUsage(pb) => node("use", pb.node_id),
        Op::PutUnit(pb) => unit(pb.unit_id),
        Op::PutTaskGroup(pb) => unit(pb.unit_id),
        Op::PutLease(pb) => (RecordSubject::Lease, format!("lease {}", pb.lease)),
        Op::PutPartition(_) => (RecordSubject::Partition, "the partition".to_owned()),
        Op::PutPartitionBlock(pb) => (RecordSubject::Partition, format!("partition block {}", pb.block_id)),
        Op::PutQueue(pb) => (RecordSubject::Queue, format!("queue {}", name(&pb.meta))),
        Op::PutPriorityClass(pb) => (RecordSubject::PriorityClass, format!("priority class {}", pb.name)),
        Op::PutHold(pb) => hold(pb.hold_id),
        Op::PutPause(pb) => (RecordSubject::Pause, format!("pause {}", pb.scope)),
        Op::PutDisruptionBudget(pb) => (RecordSubject::Budget, format!("disruption budget {}", pb.name)),
        Op::PutReservation(pb) => (RecordSubject::Reservation, format!("reservation {}", pb.name)),
        Op::PutYarnKeys(pb) => (RecordSubject::YarnKeys, format!("YARN keys {}", pb.name)),
        Op::PutYarnApplication(pb) => yarn_application(&pb.application),
        Op::PutMovement(pb) => movement(&pb.name),
        Op::PutMoveRate(pb) => move_rate(pb.unit_id),
        Op::PutUnitHistory(pb) => history(pb.unit_id),
        Op::Delete(pb) => deleted(&pb).unwrap_or_else(unknown),
        Op::Bind(pb) => rows(pb.unit_id),
        Op::Evict(pb) => rows(pb.unit_id),
        Op::RunStatus(pb) => rows(pb.unit_id),
        Op::Requeue(pb) => rows(pb.unit_id),
        Op::ChangeTerms(pb) => rows(pb.unit_id),
        Op::Compact(pb) => rows(pb.unit_id),
    }
}

fn history(id: u64) -> (RecordSubject, String) {
    (RecordSubject::History, format!("history of unit {id}"))
}

fn yarn_application(id: &str) -> (RecordSubject, String) {
    (RecordSubject::YarnApplication, format!("YARN application {id}"))
}

fn movement(name: &str) -> (RecordSubject, String) {
    (RecordSubject::Rescheduling, format!("movement {name}"))
}

fn move_rate(id: u64) -> (RecordSubject, String) {
    (RecordSubject::Rescheduling, format!("move rate of unit {id}"))
}

fn deleted(pb: &v1::Delete) -> Option<(RecordSubject, String)> {
    let key = pb.key.clone().unwrap_or_default();
    let named = |kind: RecordSubject, what: &str| Some((kind, format!("{what} {}", key.name)));
    match v1::Kind::try_from(pb.kind).ok()? {
        v1::Kind::NodeSpec | v1::Kind::NodeReport | v1::Kind::NodeAllocatable | v1::Kind::NodeUsage => {
            Some(node("record", u32::try_from(key.id).ok()?))
        }
        v1::Kind::Unit => Some(unit(key.id)),
        v1::Kind::TaskGroup => Some(unit(key.name.split_once('/')?.0.parse().ok()?)),
        v1::Kind::UnitHistory => Some(history(key.id)),
        v1::Kind::Rows => Some(rows(key.id)),
        v1::Kind::Hold => Some(hold(key.id)),
        v1::Kind::Partition => Some((RecordSubject::Partition, "the partition".to_owned())),
        v1::Kind::PartitionBlock => Some((RecordSubject::Partition, format!("partition block {}", key.id))),
        v1::Kind::Lease => named(RecordSubject::Lease, "lease"),
        v1::Kind::Queue => named(RecordSubject::Queue, "queue"),
        v1::Kind::PriorityClass => named(RecordSubject::PriorityClass, "priority class"),
        v1::Kind::DisruptionBudget => named(RecordSubject::Budget, "disruption budget"),
        v1::Kind::Reservation => named(RecordSubject::Reservation, "reservation"),
        v1::Kind::YarnKeys => named(RecordSubject::YarnKeys, "YARN keys"),
        v1::Kind::YarnApplication => named(RecordSubject::YarnApplication, "YARN application"),
        v1::Kind::Movement => named(RecordSubject::Rescheduling, "movement"),
        v1::Kind::MoveRate => Some(move_rate(key.id)),
        v1::Kind::Pause => named(RecordSubject::Pause, "pause"),
        v1::Kind::Unspecified => None,
    }
}

fn name(meta: &Option<v1::ObjectMeta>) -> &str {
    meta.as_ref().map_or("?", |meta| meta.name.as_str())
}

fn node(what: &str, id: u32) -> (RecordSubject, String) {
    (RecordSubject::Node(NodeId(id)), format!("{what} of node {id}"))
}

fn unit(id: u64) -> (RecordSubject, String) {
    (RecordSubject::Unit(UnitId(id)), format!("unit {id}"))
}

fn rows(id: u64) -> (RecordSubject, String) {
    (RecordSubject::Rows(UnitId(id)), format!("rows of unit {id}"))
}

fn hold(id: u64) -> (RecordSubject, String) {
    (RecordSubject::Hold, format!("hold {id}"))
}

#[cfg(test)]
mod tests {
    use godel_proto::raw;
    use godel_wire::from_proto;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_named_by_kind_key_and_field() {
        let taints = vec![v1::Taint { effect: 99, ..v1::Taint::default() }];
        let spec = v1::NodeSpec { node_id: 7, taints, ..v1::NodeSpec::default() };
        let op = raw::encode_op(v1::op::Op::PutNodeSpec(spec.clone()));
        let mut unreadable = Unreadables::default();
        let (kind, what) = key_of_op(&op);
        unreadable.add(kind, what, from_proto::op(&op).unwrap_err(), Some(Revision(12)));
        let record = v1::Record { record: Some(v1::record::Record::NodeSpec(spec)), ..v1::Record::default() };
        let (kind, what) = key_of_record(&record);
        let bad = from_proto::record(record).unwrap_err();
        // Two lists say the same.
        unreadable.add(kind, what.clone(), bad.clone(), None);
        unreadable.add(kind, what, bad, None);
        let all = unreadable.to_vec();
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|one| one.kind == RecordSubject::Node(NodeId(7))));
        let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert!(texts[0].starts_with("record of node 7: record.taints[0]"), "{}", texts[0]);
        assert!(texts[1].ends_with("(revision 12)"), "{}", texts[1]);
    }

    #[test]
    fn bytes_that_are_no_operation_are_of_no_known_kind() {
        assert_eq!(key_of_op(&Bytes::from_static(&[0xff])).0, RecordSubject::Unknown);
        assert_eq!(key_of_op(&Bytes::new()).0, RecordSubject::Unknown);
    }

    #[test]
    fn too_many_are_counted_and_make_everything_unknown() {
        let mut unreadable = Unreadables::default();
        for id in 0..=N_KEPT_MAX as u64 {
            let (kind, what) = unit(id);
            unreadable.add(kind, what, BadField::new("x", "bad"), None);
        }
        let all = unreadable.to_vec();
        assert_eq!(all.len(), N_KEPT_MAX + 1);
        assert_eq!(
            all.last().map(|one| (one.kind, one.what.as_str())),
            Some((RecordSubject::Unknown, "1 more"))
        );
    }
}
