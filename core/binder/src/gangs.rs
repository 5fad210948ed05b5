//! GroupDeltas of gangs: the room of a gang that waits for long is gathered as it becomes free, of one gang per sub-cluster and pool
//! at a time.
//!
//! The dispatcher says whose turn it is and a scheduler chooses the nodes; both may be late, or two of them. That no two
//! gangs of a pool gather that may want the same nodes is decided here, where decisions are checked one after the other: a turn is refused while another
//! lives, its end under way included. GroupDeltas end like any hold, at their expiry at the latest.

use std::sync::Arc;

use godel_domain::{
    decision::{Decision, Preemption, RejectionReason},
    demand::Pool,
    hold::{Borrower, GangTurn},
    ids::{HoldId, UnitId},
};

use super::{
    Binder, Verdict,
    check::{Member, whole},
    holds::replace::TakenOver,
};

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

impl Binder {
    /// Gangs gather room for so long at most, milliseconds.
    pub fn gather_for(&mut self, turn_ms: u64) {
        self.holds.turn_ms = Some(turn_ms);
    }

    /// The value of this label is a node's sub-cluster: gangs of different ones gather at the same time.
    pub fn set_sub_cluster_key(&mut self, key: &str) {
        key.clone_into(&mut self.sub_cluster_key);
    }

    /// Gangs that gather now, by pool. `O(holds)`.
    pub fn gathering(&self) -> Vec<Gathering> {
        let mut gangs: Vec<Gathering> = Vec::new();
        for hold in self.cluster.holds() {
            let Some(turn) = &hold.turn else { continue };
            let (n_gathered, n_wanted) = (self.cluster.n_gathered(hold.id), hold.ordinals.len());
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

    /// The unit and turn that a hold is of, also while its end is under way.
    pub fn turn_of(&self, id: HoldId) -> Option<(UnitId, GangTurn)> {
        let hold = self.holds.hold(id)?;
        Some((hold.unit, hold.turn.clone()?))
    }

    /// Checks a turn: that it is of a gang's first binding, `n_bound` of it being there, and no other gang's.
    pub(super) fn check_turn(
        &mut self,
        decision: &Decision,
        members: &[Member],
        preemption: &Preemption,
        n_bound: usize,
    ) -> Verdict {
        let unit = &self.units[&decision.unit];
        let is_first = unit.terms.min_member > 1 && n_bound < unit.terms.min_member as usize;
        if !is_first || preemption.n_victims() > 0 {
            let detail = "room is gathered for first bindings of gangs, and nobody leaves for it".to_owned();
            return Verdict::Reject(whole(decision, RejectionReason::Invalid, detail));
        }
        let sub_cluster = unit.sub_cluster(&self.sub_cluster_key);
        if let Some(other) = self.holds.whose_turn(unit.pool, sub_cluster) {
            let detail = format!("unit {other} gathers room");
            return Verdict::Reject(whole(decision, RejectionReason::GangTurn, detail));
        }
        let turn = GangTurn {
            since_ms: self.now_ms,
            priority: self.classes.value(unit.priority),
            sub_cluster: sub_cluster.map(Arc::from),
        };
        self.hold(decision, members, preemption, (Some(turn), Vec::new()), (&[], TakenOver::default()))
    }

    /// A unit as what is gathered sees it; `None` while nothing is.
    pub(super) fn borrower(&self, unit: UnitId) -> Option<Borrower> {
        let unit = self.units.get(&unit).filter(|_| self.cluster.is_gathering())?;
        let quota = self.quotas.quota();
        Some(Borrower {
            priority: self.classes.value(unit.priority),
            pool: unit.pool,
            active_deadline_ms: u64::from(unit.active_deadline_s) * 1_000,
            leaves_after_ms: self.classes.may_be_preempted(unit).then_some(unit.min_run_ms),
            queue: quota.usage().has_guarantees().then(|| Arc::clone(quota.tree().shared_path(unit.queue))),
            now_ms: self.now_ms,
        })
    }
}
