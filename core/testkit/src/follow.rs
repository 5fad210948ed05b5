//! Whether a follower takes the records that it declares, and no others.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use godel_base::ids::{HoldId, NodeId, UnitId};
use godel_domain::{
    change::{Block, Change, Lease, Partition, PartitionMode},
    hold::Hold,
    lifecycle::UnitPhase,
    node::{NodeAllocatable, NodeUsage},
    pause::{Pause, Scope},
    queue_spec::{PriorityClass, QueueSpec},
    records::{ForeignKey, Record, RecordKind, StoredKey},
    reservation_spec::ReservationSpec,
    running_units::{Bind, RunChange},
    task_group_record::TaskGroupRecord,
    unit::WorkloadClass,
    unit_affinity::{UnitAffinity, UnitTerm},
    unit_history::UnitHistory,
    yarn_keys::{YARN_SECRET_LEN, YarnKey, YarnKeys},
};

use crate::{BuildUnit as _, demand, node, unit, web_budget};

/// Applies a record of each kind to a new follower, and panics where something changes though it does not follow the kind, or nothing though it
/// does. Deciders see task groups as parts of units.
pub fn check_follows<F: Debug>(follows: &[RecordKind], new: impl Fn() -> F, apply: impl Fn(&mut F, &Change)) {
    for kind in RecordKind::ALL.iter().copied().filter(|kind| *kind != RecordKind::TaskGroup) {
        let mut follower = new();
        // Nobody follows these: what changes is how far everything is read. Rows are of a unit.
        apply(&mut follower, &change(RecordKind::MoveRate));
        if kind == RecordKind::Rows {
            apply(&mut follower, &change(RecordKind::Unit));
        }
        let before = format!("{follower:?}");
        apply(&mut follower, &change(kind));
        let is_followed = format!("{follower:?}") != before;
        assert_eq!(is_followed, follows.contains(&kind), "{}", kind.title());
    }
}

/// A change of a kind that whoever follows it has to note.
fn change(kind: RecordKind) -> Change {
    let node = node(1).cpu(1_000);
    let id = NodeId(1);
    Change::Put(match kind {
        RecordKind::NodeSpec => Record::NodeSpec(node.spec),
        RecordKind::NodeReport => Record::NodeReport(node.report),
        RecordKind::NodeAllocatable => {
            Record::NodeAllocatable(NodeAllocatable { id, amounts: node.report.capacity })
        }
        RecordKind::NodeUsage => {
            Record::NodeUsage(NodeUsage { id, reserved: node.report.capacity, ..NodeUsage::default() })
        }
        RecordKind::Unit => {
            let term = UnitTerm { units: Vec::new(), topology: "zone".to_owned(), weight: 0 };
            let affinity = UnitAffinity { apart: vec![term], ..UnitAffinity::default() };
            let mut record = unit("web").id(UnitId(1)).cpu(100);
            record.spec.affinity = affinity;
            Record::Unit(Arc::new(record))
        }
        RecordKind::TaskGroup => {
            let group = unit("web").spec.task_groups.remove(0);
            Record::TaskGroup(Arc::new(TaskGroupRecord {
                unit: UnitId(1),
                idx: 1,
                group,
                ordinals: vec![(1, 2)],
            }))
        }
        RecordKind::UnitHistory => Record::UnitHistory(Arc::new(history())),
        RecordKind::Queue => Record::Queue(Arc::new(QueueSpec::new("prod"))),
        RecordKind::PriorityClass => Record::PriorityClass(PriorityClass {
            name: "high".to_owned(),
            value: 7,
            preemptible: false,
            description: String::new(),
        }),
        RecordKind::Budget => Record::Budget(Arc::new(web_budget(1))),
        RecordKind::Reservation => {
            let spec = ReservationSpec { name: "kept".to_owned(), slots: 1, ..ReservationSpec::default() };
            Record::Reservation(Arc::new(spec))
        }
        RecordKind::Pause => Record::Pause(Pause {
            scope: Scope::All,
            since_ms: 1,
            reason: String::new(),
            sub_cluster_key: String::new(),
        }),
        RecordKind::Hold => {
            let (unit, demand) = (UnitId(1), Arc::new(demand(100)));
            Record::Hold(Arc::new(Hold {
                id: HoldId(1),
                node: id,
                unit,
                demand,
                ordinals: vec![0],
                ..Hold::default()
            }))
        }
        RecordKind::Lease => {
            let (name, holder) = ("scheduler/a".to_owned(), "a".to_owned());
            Record::Lease(Lease { name, holder, ttl_ms: 1_000, ..Lease::default() })
        }
        RecordKind::Partition => {
            let schedulers = vec!["a".to_owned(), "b".to_owned()];
            let (mode, generation) = (PartitionMode::Strict, 1);
            Record::Partition(Partition { mode, generation, schedulers, ..Partition::default() })
        }
        RecordKind::PartitionBlock => Record::PartitionBlock(Block { number: 0, slots: vec![1, 2] }),
        RecordKind::YarnKeys => {
            let keys = vec![YarnKey { id: 1, secret: [7; YARN_SECRET_LEN], from_ms: 1 }];
            Record::YarnKeys(YarnKeys { name: "nm".to_owned(), keys })
        }
        RecordKind::YarnApplication => foreign(kind, StoredKey::Name("application_1_1".to_owned())),
        RecordKind::Movement => foreign(kind, StoredKey::Name("balance-1".to_owned())),
        RecordKind::MoveRate => foreign(kind, StoredKey::Id(1)),
        RecordKind::TrustRoots | RecordKind::SealedSigner => {
            foreign(kind, StoredKey::Name("default".to_owned()))
        }
        RecordKind::Identity => foreign(kind, StoredKey::Name("agent/n1".to_owned())),
        RecordKind::JoinToken | RecordKind::PersonToken => foreign(kind, StoredKey::Name("k3x9".to_owned())),
        RecordKind::Principal => foreign(kind, StoredKey::Name("ann".to_owned())),
        RecordKind::Change => foreign(kind, StoredKey::Id(4_096)),
        RecordKind::Rows => {
            let demand = Arc::new(demand(100));
            let bind = Bind { demand, ordinals: vec![0], nodes: vec![id], ..Bind::default() };
            return Change::Rows(UnitId(1), RunChange::Bind(bind));
        }
    })
}

fn foreign(kind: RecordKind, key: StoredKey) -> Record {
    Record::Foreign(ForeignKey { kind, key })
}

fn history() -> UnitHistory {
    UnitHistory {
        id: UnitId(9),
        namespace: "default".to_owned(),
        name: "gone".to_owned(),
        uid: "uid-of-gone".to_owned(),
        owner: String::new(),
        queue: "default".to_owned(),
        class: WorkloadClass::Service,
        phase: UnitPhase::Cancelled,
        ended: None,
        created_ms: 1,
        bound_ms: 1,
        ended_ms: 1,
        replicas: 1,
        succeeded: 0,
        failed: 0,
        run_ms: 1,
        used: BTreeMap::new(),
        runs: Vec::new(),
        starts: 1,
        principal: "person/ann".to_owned(),
    }
}
