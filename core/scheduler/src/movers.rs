//! Replicas that a movement moves are placed on their targets before anything else of their unit, and whatever that waits for: the room
//! there is theirs alone. One whose target does not take it any more is placed as any other.

use godel_base::ids::{NodeId, ReplicaId, RunningUnitId};
use godel_domain::decision::{Decision, GroupPlacement};
use godel_placement::place::templates::TemplateId;

use super::{
    assigned_unit::{AssignedUnit, GroupWork},
    in_flight::InFlight,
    picture::{Picture, Try, join_groups},
};

/// A replica with its target.
struct MovingReplica {
    group: u16,
    template: TemplateId,
    replica: ReplicaId,
    to: NodeId,
}

/// Decides on all replicas of a unit that go to their targets. Returns how many that are.
pub(super) fn place_on_targets(
    picture: &mut Picture,
    in_flight: &mut InFlight,
    assigned: &mut AssignedUnit,
    decisions: &mut Vec<Decision>,
) -> usize {
    let moving = moving(picture, assigned);
    if moving.is_empty() {
        return 0;
    }
    // Those of a unit that lacks its minimum come back with the others.
    let together = assigned.together(&picture.cluster);
    let unit = assigned.unit();
    let mark = picture.cluster.trial_mark();
    let mut groups: Vec<GroupPlacement> = Vec::new();
    for MovingReplica { group, template, replica, to } in moving {
        let id = RunningUnitId { unit, replica };
        let lifted = picture.cluster.lift_target(id);
        let fits = fits_segments(picture, group, id, to);
        let shape = picture.placer.templates.get(template).ask.shape();
        let choice = if fits { picture.enter_target(template, shape, to, id) } else { None };
        if let Some(mark) = lifted {
            picture.cluster.resume(mark).join();
        }
        if let Some(choice) = choice {
            let mut placement = GroupPlacement { group, ..GroupPlacement::default() };
            placement.push(replica, choice.node, choice.allocation);
            groups.push(placement);
        }
    }
    let n_placed = groups.len();
    if n_placed == 0 || n_placed < together {
        picture.cluster.take_back(mark);
        return 0;
    }
    for placement in &groups {
        let is_placed = |replica: &ReplicaId| placement.replicas().any(|placed| placed == *replica);
        for work in assigned.groups.iter_mut().filter(|work| work.group == placement.group) {
            work.retain(|replica| !is_placed(replica));
        }
    }
    join_groups(&mut groups);
    in_flight.send(picture, assigned, Try { groups, n_placed, ..Try::default() }, decisions);
    n_placed
}

/// The pending replicas of a unit that have a target, in order of the holds.
fn moving(picture: &Picture, assigned: &AssignedUnit) -> Vec<MovingReplica> {
    let unit = assigned.unit();
    if !picture.cluster.holds().has_of(unit) {
        return Vec::new();
    }
    let holds = picture.cluster.holds().of(unit).into_iter().filter_map(|id| picture.cluster.holds().get(id));
    let targets = holds.filter(|hold| hold.movement.is_some());
    let wanted = targets.flat_map(|hold| hold.replicas().map(|replica| (replica, hold.node)));
    let mut moving: Vec<MovingReplica> = Vec::new();
    for (replica, to) in wanted {
        let is_pending = |work: &&GroupWork| work.pending().binary_search(&replica).is_ok();
        let is_new = moving.iter().all(|known| known.replica != replica);
        if let Some(work) = assigned.pending_groups().find(is_pending).filter(|_| is_new) {
            moving.push(MovingReplica { group: work.group, template: work.template, replica, to });
        }
    }
    moving
}

/// Whether a replica may go to a node as the segments go that it is of, those of its unit and those of its task group.
fn fits_segments(picture: &Picture, group: u16, id: RunningUnitId, to: NodeId) -> bool {
    if !picture.cluster.domains().is_active() {
        return true;
    }
    let Some(rules) = picture.cluster.domains().rules_of(id.unit) else { return true };
    let fits = |rule| picture.cluster.taken().fits_segment(id.unit, rule, id.replica.ordinal, to).is_ok();
    rules.segments_of(group).all(fits)
}
