//! Who leaves for a decision while it is put together, and which hold each of them backs.

use godel_base::ids::RunningUnitId;
use godel_cluster::Cluster;
use godel_domain::decision::{GroupPlacement, NodeVictims, Preemption};
use godel_placement::{place::templates::TemplateId, preempt::SoFar};
use godel_queueing::{Need, QueueIdx};

use crate::assigned_unit::{AssignedUnit, GroupWork};

/// Describes replicas of one task group that a decision still needs, and what the decision has already.
#[derive(Debug)]
pub(super) struct SoughtReplicas<'a> {
    pub(super) template: TemplateId,
    pub(super) n: usize,
    pub(super) queue: QueueIdx,
    /// All that is asked of the queue at once.
    pub(super) needs: &'a [Need],
    /// Who leaves for the decision already.
    pub(super) preemption: &'a Preemption,
    /// What the search may take of those.
    pub(super) so_far: SoFar,
}

impl<'a> SoughtReplicas<'a> {
    /// Returns `n` more replicas of a task group. `placed`: what the decision places, of any task group.
    pub(super) fn new<'p>(
        cluster: &Cluster,
        assigned: &AssignedUnit,
        work: &GroupWork,
        n: usize,
        needs: &'a [Need],
        preemption: &'a Preemption,
        placed: impl Iterator<Item = &'p GroupPlacement>,
    ) -> Self {
        let so_far = may_take(cluster, preemption, work.group, placed);
        Self { template: work.template, n, queue: assigned.queue, needs, preemption, so_far }
    }
}

/// Adds victims to those that leave the same node for the same task group.
pub(super) fn add_victims(preemption: &mut Preemption, more: NodeVictims) {
    let known = preemption.nodes.iter_mut().find(|on| (on.group, on.node) == (more.group, more.node));
    let Some(known) = known else { return preemption.nodes.push(more) };
    known.victims.extend(more.victims);
    known.victims.sort_unstable();
    known.holds.extend(more.holds);
    known.holds.sort_unstable();
}

/// Running units that leave for a decision and back nothing so far back what is placed of a task group on their nodes. Returns those that
/// are none of these.
pub(super) fn back(
    cluster: &Cluster,
    preemption: &mut Preemption,
    group: u16,
    freed: Vec<RunningUnitId>,
) -> Vec<RunningUnitId> {
    let mut unknown = Vec::new();
    for member in freed {
        let at = preemption.others.iter().position(|other| *other == member);
        let Some((at, rows)) = at.zip(cluster.rows().of(member.unit)) else {
            unknown.push(member);
            continue;
        };
        preemption.others.remove(at);
        let node = rows.row(member.replica.ordinal).node;
        add_victims(preemption, NodeVictims { group, node, victims: vec![member], holds: Vec::new() });
    }
    unknown
}

/// What a search for more of a task group may take of those who leave for its decision already; `placed` is what the decision places.
fn may_take<'a>(
    cluster: &Cluster,
    preemption: &Preemption,
    group: u16,
    placed: impl Iterator<Item = &'a GroupPlacement>,
) -> SoFar {
    if preemption.is_empty() {
        return SoFar::default();
    }
    let of_group = preemption.nodes.iter().filter(|on| on.group == group).flat_map(|on| &on.victims);
    let leaving = of_group.chain(&preemption.others).copied();
    let places = placed.filter(|placement| placement.group == group).flat_map(|placement| {
        let given = (0..placement.nodes.len()).map(|idx| placement.allocation(idx));
        placement.nodes.iter().copied().zip(given)
    });
    SoFar::new(cluster, leaving, places)
}
