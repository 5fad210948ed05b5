//! Holds that a unit may take over: what is kept for units of lower rank counts as room for it, with what those leave who
//! leave for them.

use godel_base::ids::{HoldId, NodeId, UnitId};
use godel_cluster::{Cluster, shapes::Shape};
use godel_domain::{hold::Hold, running_units::RunningUnits};
use godel_framework::{plugins::victims::no_loop::is_loop, point::Seeker};
use godel_queueing::{Amounts, QueueIdx};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{NodeTrial, QueueTally, Rights, plan::claimed_tally};

/// What may be taken over.
#[derive(Clone, Debug, Default)]
pub struct Lent {
    /// By node; of each hold the priority, the lowest first.
    by_node: FxHashMap<NodeId, SmallVec<[(i32, HoldId); 1]>>,
    /// What leaves of queues if all of it is taken over, beside what decisions under way have leave and take over. `None`:
    /// these take nothing over.
    pub(super) tally: Option<QueueTally>,
}

impl Lent {
    /// Whether nothing may be taken over.
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        !self.by_node.is_empty() && self.by_node.contains_key(&node)
    }

    /// Gives all that is lent of a node.
    pub(super) fn give(&self, cluster: &Cluster, node: NodeId, trial: &mut NodeTrial) {
        if let Some(of_node) = self.by_node.get(&node).filter(|_| !self.by_node.is_empty()) {
            of_node.iter().for_each(|(_, id)| trial.shift_hold(cluster, *id, 1));
        }
    }

    /// Those of a node without which what is placed there has too little; the highest ranks are spared first. `trial` is the
    /// node with all that is lent and all that is placed.
    pub(super) fn needed(
        &self,
        cluster: &Cluster,
        node: NodeId,
        shape: &Shape,
        mut trial: NodeTrial,
    ) -> Vec<HoldId> {
        let mut needed = Vec::new();
        for (_, id) in self.by_node.get(&node).into_iter().flatten().rev() {
            let mut without = trial.clone();
            without.shift_hold(cluster, *id, -1);
            if without.is_sound(shape) {
                trial = without;
            } else {
                needed.push(*id);
            }
        }
        needed.sort_unstable();
        needed
    }
}

/// Why a hold may not be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeoverRefusal {
    /// It is gathered, a slot, the seeker's own, of another pool, or nobody knows for whom it stands.
    NotForOthers,
    /// The rank of its unit is not lower.
    Rank,
    /// It was taken over from the seeker, or the two would evict each other in turn.
    Loop,
}

/// Whether the hold of another unit may be taken over by a seeker: the one rule that schedulers look by and the binder checks.
/// `queue` is that of the hold and `takes` all of it; what only borrows is counted in `tally`.
///
/// # Errors
/// Why not.
pub fn may_take_over(
    cluster: &Cluster,
    seeker: &Seeker,
    hold: &Hold,
    rights: Option<&Rights<'_>>,
    queue: QueueIdx,
    takes: &Amounts,
    tally: &mut QueueTally,
) -> Result<(), TakeoverRefusal> {
    let Some(priority) = hold.priority.filter(|_| hold.is_claim()) else {
        return Err(TakeoverRefusal::NotForOthers);
    };
    if hold.unit == seeker.unit || hold.pool != seeker.pool {
        return Err(TakeoverRefusal::NotForOthers);
    }
    let sides = rights.map(|rights| rights.against(queue, takes, &QueueTally::default())).unwrap_or_default();
    if !sides.outranked(seeker.priority, priority) {
        return Err(TakeoverRefusal::Rank);
    }
    let own = cluster.rows().of(seeker.unit).map_or(&[][..], RunningUnits::preemptors);
    let none = RunningUnits::default();
    let rows = cluster.rows().of(hold.unit).unwrap_or(&none);
    // Of one unit some may have been taken over from the seeker: they go together.
    let of_owner = cluster.holds().of(hold.unit);
    let mut all = of_owner.iter().filter_map(|id| cluster.holds().get(*id));
    let was_own = all.any(|other| other.is_claim() && other.taken_from.contains(&seeker.unit));
    if was_own
        || hold.taken_from.contains(&seeker.unit)
        || is_loop(cluster, seeker.unit, own, hold.unit, rows)
    {
        return Err(TakeoverRefusal::Loop);
    }
    if let Some(rights) = rights.filter(|_| sides.rests_on_borrowing(seeker.priority, priority)) {
        rights.take(queue, takes, tally);
    }
    Ok(())
}

/// Holds whose rank is lower than a seeker's, but for those of `nodes` and those that decisions under way have `taken`. What a
/// queue borrows is lent as a whole or not at all, beside the victims that are `claimed`. `O(holds + claimed)`.
pub fn lendable(
    cluster: &Cluster,
    seeker: &Seeker,
    rights: Option<&Rights<'_>>,
    pays: impl Fn(&Hold) -> (QueueIdx, Amounts),
    nodes: &[NodeId],
    taken: &FxHashSet<HoldId>,
    claimed: &FxHashSet<(UnitId, u32)>,
) -> Lent {
    let mut lent = beside(cluster, rights, &pays, taken, claimed);
    let mut leaves = lent.tally.take().unwrap_or_default();
    // Of a unit that was never bound the first hold that is taken counts for all: they go together.
    let mut whole: FxHashMap<UnitId, bool> = FxHashMap::default();
    let others = cluster.holds().claims().into_iter().filter(|hold| !taken.contains(&hold.id));
    for hold in others.filter(|hold| !nodes.contains(&hold.node)) {
        let goes_whole =
            rights.is_some() && !cluster.rows().of(hold.unit).is_some_and(RunningUnits::was_placed);
        let known = whole.get(&hold.unit).copied().filter(|_| goes_whole);
        let may_take = known.unwrap_or_else(|| {
            let (queue, mut takes) = pays(hold);
            if goes_whole {
                takes = all_of(cluster, hold.unit, &pays);
            }
            let mut tally = leaves.clone();
            let may_take = may_take_over(cluster, seeker, hold, rights, queue, &takes, &mut tally).is_ok()
                && rights.is_none_or(|rights| rights.overdrawn(&tally).is_none());
            if may_take {
                leaves = tally;
            }
            whole.insert(hold.unit, may_take);
            may_take
        });
        if may_take {
            let priority = hold.priority.unwrap_or_default();
            lent.by_node.entry(hold.node).or_default().push((priority, hold.id));
        }
    }
    lent.by_node.values_mut().for_each(|of_node| of_node.sort_unstable());
    lent.tally = Some(leaves);
    lent
}

/// What all holds of a unit take.
fn all_of(cluster: &Cluster, unit: UnitId, pays: &impl Fn(&Hold) -> (QueueIdx, Amounts)) -> Amounts {
    let mut takes = Amounts::new();
    let holds = cluster.holds().of(unit);
    for hold in holds.iter().filter_map(|id| cluster.holds().get(*id)).filter(|hold| hold.is_claim()) {
        let (_, of_one) = pays(hold);
        takes.resize(takes.len().max(of_one.len()), 0);
        takes.iter_mut().zip(&of_one).for_each(|(takes, amount)| *takes += amount);
    }
    takes
}

/// Nothing more is lent beside what decisions under way have `taken`, which queues lose as they do the victims that are
/// `claimed`.
pub fn beside(
    cluster: &Cluster,
    rights: Option<&Rights<'_>>,
    pays: impl Fn(&Hold) -> (QueueIdx, Amounts),
    taken: &FxHashSet<HoldId>,
    claimed: &FxHashSet<(UnitId, u32)>,
) -> Lent {
    let mut tally = claimed_tally(cluster, claimed, rights);
    for hold in cluster.holds().claims().into_iter().filter(|hold| taken.contains(&hold.id)) {
        let (queue, takes) = pays(hold);
        if let Some(rights) = rights {
            rights.take(queue, &takes, &mut tally);
        }
    }
    Lent { tally: Some(tally), ..Lent::default() }
}
