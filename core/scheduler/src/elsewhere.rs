//! Units for which room is held: as soon as they fit elsewhere they are placed there, and what is held goes.
//!
//! A unit whose first binding is held for is tried as a whole, with what is held for it as if it were free; so is a gang that
//! gathers, which may also have others leave. Of a unit that is bound each hold is tried by itself: all that is held on one
//! node, or nothing. Such a unit is parked as others are, and tried when room is gained, also on the nodes of its holds.

use godel_base::ids::{HoldId, NodeId, ReplicaId};
use godel_cluster::{Cluster, Owned, TrialMark};
use godel_domain::{decision::Decision, hold::Hold};

use super::{
    assigned_unit::{AssignedUnit, GroupWork},
    in_flight::InFlight,
    picture::{Picture, Try, topology::rules_of_parts},
};

/// What is left to try of a unit.
pub(super) enum Rest {
    /// Nothing now. How many running units were tried.
    Nothing(usize),
    /// What no room is held for.
    Of(Box<AssignedUnit>),
}

/// The first holds of a unit that are enough for its first binding, while they are tried as a whole: all that is held by them
/// together, and nothing else of the unit.
pub(super) struct Whole {
    /// What had been tried before they were lifted.
    pub(super) mark: TrialMark,
    /// Running units that they hold room for.
    pub(super) together: usize,
    /// A gang gathers all of it.
    pub(super) gathers: bool,
    /// Nodes on which others have yet to leave.
    waits_for: Vec<NodeId>,
    /// What else is pending, with the index of its task group.
    rest: Vec<(u16, Vec<ReplicaId>)>,
}

impl Whole {
    /// Takes the holds as if their room were free. `None`: the unit's record has changed, and its holds end with that.
    pub(super) fn begin(assigned: &mut AssignedUnit, ids: &[HoldId], cluster: &mut Cluster) -> Option<Self> {
        let rest: Vec<(u16, Vec<ReplicaId>)> =
            assigned.groups.iter().map(|work| (work.group, work.pending().to_vec())).collect();
        assigned.groups.iter_mut().for_each(GroupWork::clear);
        let least = usize::try_from(assigned.gang.lacking()).unwrap_or(usize::MAX);
        let mut lacks: Vec<(u16, usize)> = assigned.gang.group_lacks().collect();
        let (mut lifted, mut together) = (Vec::new(), 0);
        for id in ids {
            if together >= least && lacks.iter().all(|(_, n)| *n == 0) {
                break;
            }
            let Some(hold) = cluster.holds().get(*id).cloned() else { continue };
            let Some(work) = assigned.groups.get_mut(usize::from(hold.group)) else { continue };
            let wanted: Vec<ReplicaId> = hold.replicas().collect();
            work.add(&wanted);
            assigned
                .awaiting_hold
                .retain(|(group, replica)| *group != hold.group || !wanted.contains(replica));
            lifted.push(*id);
            together += wanted.len();
            if let Some((_, n)) = lacks.iter_mut().find(|(group, _)| *group == hold.group) {
                *n = n.saturating_sub(wanted.len());
            }
        }
        let is_turn = |id: &HoldId| cluster.holds().get(*id).is_some_and(|hold| hold.turn.is_some());
        let gathers = lifted.iter().all(is_turn);
        let waits = lifted.iter().filter(|id| !gathers && !is_ready(cluster, **id));
        let waits_for = waits.filter_map(|id| cluster.holds().get(*id)).map(|hold| hold.node).collect();
        let whole = Self { mark: cluster.trial_mark(), together, gathers, waits_for, rest };
        if together == 0 {
            whole.put_back_rest(assigned);
            return None;
        }
        let mut trial = cluster.trial();
        trial.lift_holds(&lifted);
        trial.pause();
        Some(whole)
    }

    /// Whether all of it has places. Where others have yet to leave for a hold its room is not there yet.
    pub(super) fn is_placed(&self, tried: &Try) -> bool {
        let is_there = |node: &NodeId| !self.waits_for.contains(node);
        tried.n_placed >= self.together && tried.groups.iter().flat_map(|group| &group.nodes).all(is_there)
    }

    /// What else is pending is to be placed again.
    pub(super) fn put_back_rest(self, assigned: &mut AssignedUnit) {
        for (group, rest) in self.rest {
            assigned.groups[usize::from(group)].add(&rest);
        }
    }
}

/// Tries what is held on each node by itself, and decides what fits elsewhere. Returns how many running units that is.
pub(super) fn try_each(
    picture: &mut Picture,
    in_flight: &mut InFlight,
    assigned: &mut AssignedUnit,
    ids: &[HoldId],
    decisions: &mut Vec<Decision>,
) -> usize {
    let mut n_placed = 0;
    let is_of_parts = rules_of_parts(picture, assigned).is_some();
    for id in ids {
        let Some(hold) = picture.cluster.holds().get(*id).cloned() else { continue };
        let Some(template) = assigned.groups.get(usize::from(hold.group)).map(|work| work.template) else {
            continue;
        };
        let wanted: Vec<ReplicaId> = hold.replicas().collect();
        if assigned.facts.has_volumes || is_of_parts {
            // What goes back to the node that keeps its volumes goes nowhere else, nor does what goes to a domain together with others.
            continue;
        }
        let is_whole = wanted.iter().all(|replica| assigned.awaiting_hold.contains(&(hold.group, *replica)));
        if !is_whole || is_ready(&picture.cluster, *id) {
            continue;
        }
        let mut trial = picture.cluster.trial();
        trial.lift_holds(&[*id]);
        let mark = trial.pause();
        let owned = Owned::new();
        let placement = picture.place_group(assigned, &owned, hold.group, template, &wanted);
        let n = placement.ordinals.len();
        let groups = vec![placement];
        if n < wanted.len() {
            picture.cluster.take_back(mark);
            continue;
        }
        picture.cluster.resume(mark).join();
        assigned.awaiting_hold.retain(|(group, replica)| *group != hold.group || !wanted.contains(replica));
        n_placed += n;
        in_flight.send(picture, assigned, Try { groups, n_placed: n, ..Try::default() }, decisions);
    }
    n_placed
}

/// Everyone who leaves for a hold has left, or it has gathered all of its room: the binder binds it, or it ends.
pub(super) fn is_ready(cluster: &Cluster, id: HoldId) -> bool {
    let Some(hold) = cluster.holds().get(id) else { return true };
    match hold.turn {
        Some(_) => cluster.held().has_gathered(id),
        None => hold.victims.iter().all(|victim| cluster.rows().remains(victim).is_none()),
    }
}

/// Holds that are read of what a unit holds room for elsewhere.
pub(super) fn own_holds(cluster: &Cluster, assigned: &AssignedUnit) -> Vec<HoldId> {
    let is_own = |hold: &Hold| {
        let mut replicas = hold.replicas();
        replicas.any(|replica| assigned.awaiting_hold.contains(&(hold.group, replica)))
    };
    let ids = cluster.holds().of(assigned.unit()).into_iter();
    ids.filter(|id| cluster.holds().get(*id).is_some_and(|hold| is_own(hold))).collect()
}

/// What is pending and held for is no more to be placed than that.
pub(super) fn remove_held(picture: &Picture, assigned: &mut AssignedUnit) {
    let held_now = picture.held_of(assigned.unit(), assigned.revision);
    for work in &mut assigned.groups {
        let (idx, elsewhere) = (work.group, &mut assigned.awaiting_hold);
        work.retain(|wanted| {
            let is_held = held_now.contains(wanted);
            if is_held {
                elsewhere.push((idx, *wanted));
            }
            !is_held
        });
    }
}
