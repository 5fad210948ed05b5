//! Who leaves for a decision while it is put together, and which hold each of them backs.

use godel_base::ids::RunningUnitId;
use godel_cluster::Cluster;
use godel_domain::decision::{GroupPlacement, NodeVictims, Preemption};
use godel_placement::{place::templates::TemplateId, preempt::SoFar};
use godel_queueing::{Need, QueueIdx};

/// Describes replicas of one task group that a decision still needs, and what the decision has already.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoughtReplicas<'a> {
    pub(super) template: TemplateId,
    pub(super) n: usize,
    pub(super) queue: QueueIdx,
    /// All that is asked of the queue at once.
    pub(super) needs: &'a [Need],
    /// Who leaves for the decision already.
    pub(super) preemption: &'a Preemption,
    pub(super) so_far: &'a SoFar,
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

/// What a search for more of a task group may take of those who leave for its decision already; `placed` is what the decision places of
/// that task group.
pub(super) fn may_take<'a>(
    cluster: &Cluster,
    preemption: &Preemption,
    group: u16,
    placed: impl IntoIterator<Item = &'a GroupPlacement>,
) -> SoFar {
    if preemption.is_empty() {
        return SoFar::default();
    }
    let of_group = preemption.nodes.iter().filter(|on| on.group == group).flat_map(|on| &on.victims);
    let leaving = of_group.chain(&preemption.others).copied();
    let places = placed.into_iter().flat_map(|placement| {
        let given = (0..placement.nodes.len()).map(|idx| placement.allocation(idx));
        placement.nodes.iter().copied().zip(given)
    });
    SoFar::new(cluster, leaving, places)
}
