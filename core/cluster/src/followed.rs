//! Records that change nothing but the cluster, as every decider follows them.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_domain::{
    change::Change,
    records::{Record, RecordKey},
};

use super::Cluster;

/// Follows a change of a node's records, of a reservation or of a hold, and the end of a disruption budget; others change nothing.
pub fn follow_record(cluster: &mut Cluster, change: &Change, revision: Revision) {
    match change {
        Change::Put(Record::NodeSpec(spec)) => cluster.nodes_mut().put_spec(spec.clone(), revision),
        Change::Put(Record::NodeReport(report)) => cluster.nodes_mut().put_report(report.clone(), revision),
        Change::Put(Record::NodeAllocatable(allocatable)) => {
            cluster.nodes_mut().put_allocatable(allocatable.id, allocatable.amounts.clone(), revision);
        }
        Change::Put(Record::NodeUsage(usage)) => cluster.nodes_mut().put_usage(usage.clone(), revision),
        Change::Gone(RecordKey::NodeSpec(node)) => cluster.nodes_mut().remove(*node),
        Change::Put(Record::Reservation(spec)) => cluster.holds_mut().put_reservation(Arc::clone(spec)),
        Change::Gone(RecordKey::Reservation(name)) => cluster.holds_mut().remove_reservation(name),
        Change::Put(Record::Hold(hold)) => cluster.held_mut().put(Arc::clone(hold)),
        Change::Gone(RecordKey::Hold(id)) => drop(cluster.held_mut().remove(*id)),
        Change::Gone(RecordKey::Budget(name)) => cluster.taken_mut().remove_budget(name),
        _ => {}
    }
}
