//! Room that the binder holds for units: what that means for a unit, and in words.

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, ReplicaId, RunningUnitId};
use godel_domain::{hold::Hold, running_units::Phase};

use super::{gangs, nodes::Nodes, unit_entry::UnitEntry, units::Units};

/// A hold of a unit is gone. True: what it is to place is more than its scheduler knows.
pub(super) fn remove_hold(entry: &mut UnitEntry, id: HoldId) -> Option<bool> {
    if entry.targets.remove(id) {
        return Some(false);
    }
    let at = entry.holds.iter().position(|hold| hold.id == id)?;
    let gone = entry.holds.remove(at);
    let is_pending = |replica: ReplicaId| {
        let row = entry.rows.row(replica.ordinal);
        row.phase == Phase::Pending && row.incarnation == replica.incarnation
    };
    let n_back = gone.replicas().filter(|replica| is_pending(*replica)).fold(0, |n, _| n + 1);
    if let Some(held) = entry.dispatched_mut() {
        // What comes back uses nothing until it is its queue's turn.
        held.unplaced = held.unplaced.map(|n| n.saturating_add(n_back));
    }
    // What waited for the first binding is to be placed from then on.
    Some(n_back > 0 || (entry.holds.is_empty() && entry.counts.pending > 0))
}

/// What a unit that room is held for waits for, in words: `waits for 2 victims to leave node n1`.
pub(super) fn waits_for(holds: &[Arc<Hold>], units: &Units, nodes: &Nodes) -> String {
    if let Some(turn) = gangs::turn_of(holds) {
        let nodes = godel_base::words::count(turn.n_nodes, "node");
        return format!("holds room for {} as it becomes free on {nodes}", turn.n_places);
    }
    let n_in_queue: usize = holds.iter().map(|hold| n_remaining(&hold.queue_victims, units)).sum();
    let remains = |hold: &&Arc<Hold>| n_remaining(&hold.victims, units) > 0;
    let victims_on: Vec<NodeId> = holds.iter().filter(remains).map(|hold| hold.node).collect();
    let Some(first) = victims_on.first() else {
        if n_in_queue > 0 {
            let victims = godel_base::words::count(n_in_queue, "victim");
            return format!("waits for {victims} to leave a queue that is full");
        }
        return "room is held for it".to_owned();
    };
    let n: usize = holds.iter().map(|hold| n_remaining(&hold.victims, units)).sum::<usize>() + n_in_queue;
    let victims = godel_base::words::count(n, "victim");
    let name = nodes.name_or_id(*first);
    match victims_on.len() {
        1 => format!("waits for {victims} to leave node {name}"),
        more => format!("waits for {victims} to leave node {name} and {} more", more - 1),
    }
}

fn n_remaining(victims: &[RunningUnitId], units: &Units) -> usize {
    let remains = |victim: &&RunningUnitId| {
        units.get(victim.unit).is_some_and(|entry| {
            let row = entry.rows.row(victim.replica.ordinal);
            row.phase.is_live() && row.incarnation == victim.replica.incarnation
        })
    };
    victims.iter().filter(remains).count()
}
