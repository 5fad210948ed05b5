//! Turns of gangs: the room of a gang that waits for long is gathered as it becomes free, of one gang per sub-cluster and pool
//! at a time, or of several units that gather for one running unit each, on nodes of their own.
//!
//! The dispatcher says whose turn it is and a scheduler chooses the nodes; both may be late, or two of them. That none is
//! in the way of another one of its pool is decided here, where decisions are checked one after the other: a turn is refused while such a one
//! lives, its end under way included. Turns end like any hold, at their expiry at the latest.

use std::sync::Arc;

use godel_base::ids::{NodeId, UnitId};
use godel_cluster::Cluster;
use godel_domain::{
    decision::{Decision, Rejection, RejectionReason},
    demand::Pool,
    hold::{Borrower, GangTurn},
};
use smallvec::SmallVec;

use super::{check::whole, holds::KnownHolds, picture::BinderPicture};

/// A gang that gathers room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathering {
    /// The gang.
    pub unit: UnitId,
    /// Pool that pays.
    pub pool: Pool,
    /// Unix milliseconds.
    pub since_ms: i64,
    /// Unix milliseconds.
    pub expires_ms: i64,
    /// Running units for which there is room.
    pub n_gathered: usize,
    /// Of so many.
    pub n_wanted: usize,
}

/// Gangs that gather now, by pool. `O(holds)`.
pub(super) fn gathering(cluster: &Cluster) -> Vec<Gathering> {
    let mut gangs: Vec<Gathering> = Vec::new();
    for hold in cluster.holds().all() {
        let Some(turn) = &hold.turn else { continue };
        let (n_gathered, n_wanted) = (cluster.held().n_gathered(hold.id), hold.ordinals.len());
        match gangs.iter_mut().find(|gang| gang.unit == hold.unit) {
            Some(gang) => {
                gang.n_gathered += n_gathered;
                gang.n_wanted += n_wanted;
            }
            None => gangs.push(Gathering {
                unit: hold.unit,
                pool: hold.pool,
                since_ms: turn.since_ms,
                expires_ms: hold.expires_ms,
                n_gathered,
                n_wanted,
            }),
        }
    }
    gangs.sort_unstable_by_key(|gang| gang.pool);
    gangs
}

/// The turn that a decision asks for, if no other unit has one.
///
/// # Errors
/// One has: the rejection of all of the decision.
pub(super) fn turn_for(
    decision: &Decision,
    picture: &BinderPicture,
    holds: &KnownHolds,
) -> Result<GangTurn, Vec<Rejection>> {
    let unit = &picture.units[&decision.unit];
    let sub_cluster = unit.sub_cluster(&picture.sub_cluster_key);
    let nodes: SmallVec<[NodeId; 4]> =
        decision.groups.iter().flat_map(|group| group.nodes.iter().copied()).collect();
    if let Some(other) = holds.whose_turn(decision.unit, unit.pool, sub_cluster, &nodes) {
        let detail = format!("unit {other} gathers room");
        return Err(whole(decision, RejectionReason::GangTurn, detail));
    }
    Ok(GangTurn {
        since_ms: picture.now_ms,
        priority: picture.classes.value(unit.priority),
        sub_cluster: sub_cluster.map(Arc::from),
    })
}

/// A unit as what is gathered sees it; `None` while nothing is.
pub(super) fn borrower(unit: UnitId, picture: &BinderPicture) -> Option<Borrower> {
    let unit = picture.units.get(&unit).filter(|_| picture.cluster.free().gathering().is_any())?;
    let quota = picture.quotas.quota();
    Some(Borrower {
        priority: picture.classes.value(unit.priority),
        pool: unit.pool,
        active_deadline_ms: u64::from(unit.active_deadline_s) * 1_000,
        leaves_after_ms: picture.classes.may_be_preempted(unit).then_some(unit.min_run_ms),
        queue: quota.usage().guarantees().is_any().then(|| Arc::clone(quota.tree().shared_path(unit.queue))),
        home: Some(Arc::clone(quota.tree().shared_path(unit.queue))),
        now_ms: picture.now_ms,
    })
}
