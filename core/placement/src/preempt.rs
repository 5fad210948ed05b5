//! The search for victims: the running units that are preempted so that others of one template find room.
//!
//! The victim rules of the framework say who may leave. Of those on a node the search spares as many as it can, the
//! highest rank first. Masters of applications leave once nobody else is enough. Going below a unit's minimum means that the whole unit leaves, wherever it is, at its whole cost.
//! Nor do more running units of a disruption budget leave than it allows, over all that is found.
//! The node with the least `Cost` is taken, again and again until all replicas have a place: one search serves a whole
//! template, and what leaves for one replica makes room for the next ones.
//!
//! Nodes on which too little could leave are dropped at a first look, without asking anything of their victims. It also says
//! the least that a node can cost; only nodes whose turn comes are looked at closely.

use std::collections::BTreeMap;

use godel_base::ids::{HoldId, NodeId, RunningUnitId, UnitId};
use godel_cluster::{Cluster, ShapeId};
use godel_domain::allocation::Allocation;
use godel_framework::{point::Seeker, registry::CandidateKey};
use godel_queueing::{Lack, Quota};
use rustc_hash::FxHashSet;

mod lent;
mod looks;
mod plan;
mod preference;
mod rank;
mod so_far;
#[cfg(test)]
mod tests;
mod trial;

use self::plan::VictimPlan;
pub(crate) use self::trial::NodeTrial;
pub use self::{
    lent::{Lent, TakeoverRefusal, beside, lendable, may_take_over},
    plan::paid,
    preference::Preference,
    rank::{QueueTally, Rights},
    so_far::SoFar,
};

/// Most victims of one decision.
pub const N_VICTIMS_MAX: usize = 4_096;

/// Nodes on which enough could leave that a fast search compares beyond those that it needs: a few that cost little are found among
/// these as often as not, and a search that stops there does not grow with the cluster.
pub const N_FAST_MORE: usize = 16;
/// Domains in which enough can leave that a fast search compares.
pub const N_FAST_DOMAINS: usize = 4;
/// Looks at nodes that cost as much as the cheapest one, two for each, for the scores to choose among: a place costs that many more at
/// most.
const N_ALIKE_MAX: usize = 6;

/// Says for which replicas a search looks for victims, and what it has to respect.
#[derive(Clone, Copy, Debug)]
pub struct VictimQuery<'a> {
    /// The unit that looks for room.
    pub seeker: &'a Seeker,
    /// What each of its replicas takes.
    pub shape: ShapeId,
    /// What the seeker's queue may claim for all that it asks; `None` while no queue guarantees anything.
    pub rights: Option<&'a Rights<'a>>,
    /// Victims of decisions under way.
    pub claimed: &'a FxHashSet<(UnitId, u32)>,
    /// What the decision has already that the search is for.
    pub so_far: &'a SoFar,
    /// Holds that may be taken over.
    pub lent: &'a Lent,
}

/// What a node costs; the least is taken. Field order is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// By the costs of the profile.
    key: CandidateKey,
    idx: usize,
}

/// Places, and the victims for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Node of each replica, and what the replica is given there.
    pub places: Vec<(NodeId, Allocation)>,
    /// On nodes with places, ascending.
    pub claims: BTreeMap<NodeId, Vec<RunningUnitId>>,
    /// On other nodes, ascending.
    pub others: Vec<RunningUnitId>,
    /// Running units that leave for the decision already, on nodes with places: their room is taken. Ascending.
    pub freed: Vec<RunningUnitId>,
    /// Holds on nodes with places that are taken over, ascending.
    pub taken: BTreeMap<NodeId, Vec<HoldId>>,
    /// Units that were spared because the seeker was preempted for them.
    pub n_loops: usize,
    /// When somebody will have run long enough, Unix milliseconds.
    pub retry_ms: Option<i64>,
    /// Somebody was spared because of a disruption budget.
    pub is_kept: bool,
    /// Somebody was spared who is the master of an application: with a seeker that does not spare them more may be found.
    pub is_master_spared: bool,
}

/// Looks for places for `wanted` replicas of a shape on some nodes. `claimed` are victims of decisions under way, `rights`
/// what the seeker's queue may claim for all that it asks, `None` while no queue guarantees anything.
///
/// `O(nodes + running units on them)`, and for each place as much again for the nodes that its victims' units are on; for
/// all nodes whenever a victim's queue borrows no more.
#[cfg(test)]
fn search(
    cluster: &mut Cluster,
    seeker: &Seeker,
    claimed: &FxHashSet<(UnitId, u32)>,
    rights: Option<&Rights<'_>>,
    shape: ShapeId,
    nodes: impl IntoIterator<Item = usize>,
    wanted: usize,
) -> Found {
    let (so_far, lent) = (&SoFar::default(), &Lent::default());
    let query = VictimQuery { seeker, shape, rights, claimed, so_far, lent };
    search_lent(cluster, &query, nodes, wanted, &Preference::default())
}

/// The same where some holds may be taken over, beside what the decision has so far.
pub fn search_lent(
    cluster: &mut Cluster,
    query: &VictimQuery<'_>,
    nodes: impl IntoIterator<Item = usize>,
    wanted: usize,
    preference: &Preference<'_>,
) -> Found {
    cluster.taken_mut().keep_occupants();
    let mut plan = VictimPlan::new(cluster, query);
    preference.fill(&mut plan, nodes, wanted);
    plan.found()
}

/// Queues that are at a maximum, as a search for victims in them sees it.
pub struct Full<'a> {
    /// Queues, what they use and what they may.
    pub quota: &'a Quota,
    /// What is lacking, the lowest queue first; not empty.
    pub lacks: &'a [Lack],
    /// Units with running units below them, in order.
    pub units: &'a [UnitId],
}

/// The victims in full queues for what has places on nodes without any, and whether enough can leave.
pub fn relieve(cluster: &mut Cluster, query: &VictimQuery<'_>, full: &Full<'_>) -> (Found, bool) {
    cluster.taken_mut().keep_occupants();
    let mut plan = VictimPlan::new(cluster, query);
    let is_relieved = plan.relieve(full);
    (plan.found(), is_relieved)
}

/// Looks for places for a unit whose queues are at a maximum: running units below them leave until all of it fits there too. Those
/// that have to make room on nodes are of these queues as well, where that is enough. No places if too few can leave.
pub fn search_full(
    cluster: &mut Cluster,
    query: &VictimQuery<'_>,
    nodes: &[usize],
    wanted: usize,
    full: &Full<'_>,
    preference: &Preference<'_>,
) -> Found {
    cluster.taken_mut().keep_occupants();
    if let Some(highest) = full.lacks.last() {
        let mut plan = VictimPlan::new(cluster, query);
        plan.limit_to_queue(full.quota, highest.queue);
        preference.fill(&mut plan, nodes.iter().copied(), wanted);
        if plan.n_places() >= wanted && plan.relieve(full) {
            return plan.found();
        }
    }
    let mut plan = VictimPlan::new(cluster, query);
    if plan.relieve(full) {
        preference.fill(&mut plan, nodes.iter().copied(), wanted);
    }
    plan.found()
}
