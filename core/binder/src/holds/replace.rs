//! Holds that go with what a decision binds or holds instead: the unit's own, as it fits elsewhere, and those of units of lower
//! rank that it takes over.
//!
//! Until the transaction's fate is known they count beside what takes their place, so whatever becomes of it nobody else has
//! got their room, on a node or in a queue.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_cluster::{Cluster, TrialMark};
use godel_domain::{
    decision::{Claim, Decision, Preemption, RejectionReason},
    hold::{Hold, N_TAKEN_FROM_MAX},
    lifecycle,
};
use godel_framework::point::Seeker;
use godel_placement::preempt::{QueueTally, Rights, TakeoverRefusal, may_take_over};
use godel_queueing::{Amounts, QueueIdx};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::{
    BinderHolds, HoldState,
    known::{KnownHold, KnownHolds},
};
use crate::{
    Wait,
    claims::{ClaimCheck, Wrong},
    picture::BinderPicture,
    quotas::Quotas,
};

/// Their unit was placed elsewhere.
pub(crate) const ELSEWHERE: &str = "elsewhere";
/// Who moves there was placed, there or elsewhere.
pub(crate) const PLACED: &str = "placed";
/// A unit of higher rank has them now.
pub(crate) const TAKEN_OVER: &str = "taken-over";

/// Holds, few at a time.
pub(crate) type HoldIds = SmallVec<[HoldId; 2]>;

/// Holds of others that a decision ends, and what goes over to its own.
#[derive(Debug, Default)]
pub(crate) struct TakenOver {
    /// All of them, those that are worth nothing without the others included; ascending.
    pub(crate) ids: Vec<HoldId>,
    /// By task group and node of the decision: who leaves for it, and from whom it is taken.
    pub(crate) by_place: BTreeMap<(u16, NodeId), (Vec<RunningUnitId>, Vec<UnitId>)>,
}

/// Why nothing is taken over now.
pub(crate) enum Not {
    Wait(Wait),
    Wrong(Wrong),
}

impl TakenOver {
    /// Who leaves for what is taken over.
    pub(crate) fn victims(&self) -> impl Iterator<Item = &RunningUnitId> {
        self.by_place.values().flat_map(|(victims, _)| victims)
    }
}

impl KnownHolds {
    /// Takes no account of some holds until [`Self::restore`], on nodes and in queues, nor of what victims give up there for
    /// their units: those at a maximum go together. What moves counts in its queue meanwhile, until it has a place.
    pub(crate) fn lift(&self, ids: &[HoldId], cluster: &mut Cluster, quotas: &mut Quotas) -> TrialMark {
        let mut trial = cluster.trial();
        trial.lift_holds(ids);
        let mark = trial.pause();
        for kept in self.whole(ids) {
            quotas.give_back(kept.payer, kept.need);
        }
        self.lend_reliefs(ids, quotas, -1);
        mark
    }

    /// Takes account again of holds that were lifted; what was tried meanwhile stays.
    pub(crate) fn restore(
        &self,
        mark: TrialMark,
        ids: &[HoldId],
        cluster: &mut Cluster,
        quotas: &mut Quotas,
    ) {
        cluster.resume(mark).join();
        for kept in self.whole(ids) {
            quotas.add_need(kept.payer, kept.need);
        }
        self.lend_reliefs(ids, quotas, 1);
    }

    /// As [`Self::lift`], and does not count those that move to them either: they are held for once more.
    pub(crate) fn lift_with_movers(
        &self,
        ids: &[HoldId],
        cluster: &mut Cluster,
        quotas: &mut Quotas,
    ) -> TrialMark {
        let mark = self.lift(ids, cluster, quotas);
        self.shift_movers(&self.movers_to(ids), quotas, -1);
        mark
    }

    pub(crate) fn restore_with_movers(
        &self,
        mark: TrialMark,
        ids: &[HoldId],
        cluster: &mut Cluster,
        quotas: &mut Quotas,
    ) {
        self.restore(mark, ids, cluster, quotas);
        self.shift_movers(&self.movers_to(ids), quotas, 1);
    }

    /// Replicas that move to some of these holds and count, with their holds.
    fn movers_to(&self, ids: &[HoldId]) -> SmallVec<[(HoldId, ReplicaId); 2]> {
        let holds = ids.iter().filter_map(|id| self.by_id.get(id));
        let counted = holds.filter(|kept| kept.hold.movement.is_some() && kept.need.n > 0);
        counted.filter_map(|kept| Some((kept.hold.id, kept.hold.replicas().next()?))).collect()
    }

    /// Those of some holds that count in their queues for as long as they are there, or in none.
    fn whole<'a>(&'a self, ids: &'a [HoldId]) -> impl Iterator<Item = &'a KnownHold> {
        let holds = ids.iter().filter_map(|id| self.by_id.get(id));
        holds.filter(|kept| kept.hold.movement.is_none())
    }

    fn lend_reliefs(&self, ids: &[HoldId], quotas: &mut Quotas, sign: i128) {
        let holds = ids.iter().filter_map(|id| self.get(*id));
        let mut units: SmallVec<[UnitId; 2]> =
            holds.filter(|hold| hold.at_maximum).map(|hold| hold.unit).collect();
        units.sort_unstable();
        units.dedup();
        self.reliefs.lend(&units, quotas.quota_mut(), sign);
    }

    /// Holds of a unit that go if what a decision places is bound, or held with victims: it may bind elsewhere while room is
    /// held for it, and have others leave while it gathers. Nobody else leaves for what some leave for already.
    pub(crate) fn replaced_by(&self, decision: &Decision, picture: &BinderPicture) -> HoldIds {
        if self.by_id.is_empty() || !self.replicas.contains_key(&decision.unit) {
            return HoldIds::new();
        }
        let placed: FxHashSet<ReplicaId> =
            decision.groups.iter().flat_map(|placement| placement.replicas()).collect();
        // What is held at a maximum of the queue goes together, with its last binding or not at all.
        let may_go = |hold: &Hold| {
            let by_claim = match &decision.claim {
                Claim::FreeRoom => true,
                Claim::Preemption(_) => hold.turn.is_some() || hold.movement.is_some(),
                Claim::Gathering => false,
            };
            by_claim && !hold.at_maximum
        };
        let mut ids = picture.cluster.holds().of(decision.unit);
        ids.retain(|id| {
            self.by_id.get(id).is_some_and(|kept| {
                kept.revision.is_some()
                    && kept.state == HoldState::Held
                    && may_go(&kept.hold)
                    && !picture.is_hold_frozen(&kept.hold)
                    && kept.hold.replicas().any(|replica| placed.contains(&replica))
            })
        });
        ids
    }

    /// Running units for which these holds are.
    pub(crate) fn replicas_of(&self, ids: &[HoldId]) -> FxHashSet<ReplicaId> {
        let holds = ids.iter().filter_map(|id| self.get(*id));
        holds.flat_map(Hold::replicas).collect()
    }

    /// Of a unit's own holds those go of which something is placed by a decision.
    pub(crate) fn gone_with(
        &self,
        own: &[HoldId],
        placed: impl Iterator<Item = ReplicaId>,
    ) -> Vec<(HoldId, &'static str)> {
        if own.is_empty() {
            return Vec::new();
        }
        let placed: FxHashSet<ReplicaId> = placed.collect();
        let holds = own.iter().filter_map(|id| self.get(*id));
        let gone = holds.filter(|hold| hold.replicas().any(|replica| placed.contains(&replica)));
        gone.map(|hold| (hold.id, if hold.movement.is_some() { PLACED } else { ELSEWHERE })).collect()
    }

    /// Holds have their victims again, who left for others in the meantime.
    pub(crate) fn follow_again(&self, ids: &[HoldId], cluster: &mut Cluster) {
        for kept in ids.iter().filter_map(|id| self.by_id.get(id)) {
            if kept.hold.is_claim() && kept.state == HoldState::Held {
                cluster.held_mut().put(Arc::clone(&kept.hold));
            }
        }
    }
}

impl BinderHolds {
    /// The ends of these holds are under way.
    pub(crate) fn begin_ends(&mut self, gone: &[(HoldId, &'static str)]) {
        for (id, _) in gone {
            if let Some(kept) = self.known.by_id.get_mut(id) {
                kept.state = HoldState::Ending;
            }
        }
    }

    /// The transaction that was to end these holds was refused.
    pub(crate) fn keep_ended(&mut self, ids: &[HoldId], cluster: &mut Cluster) {
        for id in ids {
            let Some(kept) = self.known.by_id.get_mut(id).filter(|kept| kept.state == HoldState::Ending)
            else {
                continue;
            };
            kept.state = HoldState::Held;
            self.is_stale = true;
        }
        self.known.follow_again(ids, cluster);
    }
}

impl<'a> ClaimCheck<'a> {
    /// What a decision takes over from units of lower rank, or why it may not. A unit that was never bound needs all of its
    /// holds, so all go. What had to be of a queue that borrows is counted in `tally`.
    pub(crate) fn take_over(
        &self,
        seeker: &Seeker,
        rights: Option<&Rights<'_>>,
        decision: &Decision,
        preemption: &Preemption,
        tally: &mut QueueTally,
    ) -> Result<TakenOver, Not> {
        let mut taken = TakenOver::default();
        let mut owners: FxHashMap<UnitId, NodeId> = FxHashMap::default();
        for on_node in &preemption.nodes {
            let is_place = |placement: &&godel_domain::decision::GroupPlacement| {
                placement.group == on_node.group && placement.nodes.contains(&on_node.node)
            };
            for id in &on_node.holds {
                let wrong = |why: &str| {
                    Err(Not::Wrong((RejectionReason::Invalid, on_node.node, format!("hold {id} {why}"))))
                };
                if taken.ids.contains(id) {
                    return wrong("stands twice");
                }
                if decision.groups.iter().find(is_place).is_none() {
                    return wrong("is taken over for nobody on its node");
                }
                let hold = self.may_be_taken(*id, decision.nodes_as_of, on_node.node)?;
                taken.ids.push(*id);
                owners.entry(hold.unit).or_insert(on_node.node);
                let (victims, from) = taken.by_place.entry((on_node.group, on_node.node)).or_default();
                victims.extend(
                    hold.victims
                        .iter()
                        .filter(|victim| self.picture.cluster.rows().remains(victim).is_some()),
                );
                from.extend(hold.taken_from.iter().chain([&hold.unit]));
            }
        }
        let mut owners: Vec<(UnitId, NodeId)> = owners.into_iter().collect();
        owners.sort_unstable();
        for (owner, node) in owners {
            self.with_the_rest(owner, &mut taken.ids);
            self.outranks_owner(seeker, rights, owner, node, &taken.ids, tally).map_err(Not::Wrong)?;
        }
        taken.ids.sort_unstable();
        for (victims, from) in taken.by_place.values_mut() {
            victims.sort_unstable();
            let mut newest: Vec<UnitId> = Vec::new();
            for unit in from.drain(..).rev() {
                if !newest.contains(&unit) && newest.len() < N_TAKEN_FROM_MAX {
                    newest.push(unit);
                }
            }
            newest.reverse();
            *from = newest;
        }
        Ok(taken)
    }

    /// A hold that is there and of which nothing is under way.
    fn may_be_taken(&self, id: HoldId, nodes_as_of: Revision, node: NodeId) -> Result<&'a Hold, Not> {
        let kept = self.holds.by_id.get(&id);
        if kept.is_none() && nodes_as_of > self.picture.revision {
            // Its scheduler has read of it, we have not.
            return Err(Not::Wait(Wait::Revision(nodes_as_of)));
        }
        let gone = || {
            let detail = format!("hold {id} is not there any more");
            Not::Wrong((RejectionReason::VictimGone, node, detail))
        };
        let kept = kept.filter(|kept| kept.hold.node == node).ok_or_else(gone)?;
        if let Some(wait) = self.under_way.outcome_of_last(kept.hold.unit) {
            return Err(Not::Wait(wait));
        }
        let is_settled = kept.revision.is_some() && kept.state == HoldState::Held;
        if is_settled && !self.picture.is_hold_frozen(&kept.hold) { Ok(&kept.hold) } else { Err(gone()) }
    }

    /// All holds of a unit that are worth nothing without those of it that are taken: of one that lacks its first binding
    /// all that there are, and those at a maximum, which were counted together.
    fn with_the_rest(&self, owner: UnitId, ids: &mut Vec<HoldId>) {
        let terms = self.picture.units.get(&owner).map(|unit| &unit.terms);
        let rows = self.picture.cluster.rows().of(owner);
        let count = |terms| rows.map(|rows| lifecycle::counted(rows, terms)).unwrap_or_default();
        let is_first = terms.is_some_and(|terms| !terms.is_reached(&count(terms)));
        let of_owner = |id: &HoldId| self.holds.get(*id).filter(|hold| hold.unit == owner);
        let at_maximum = ids.iter().filter_map(of_owner).any(|hold| hold.at_maximum);
        for id in self.picture.cluster.holds().of(owner) {
            let Some(kept) = self.holds.by_id.get(&id).filter(|kept| kept.state == HoldState::Held) else {
                continue;
            };
            if !ids.contains(&id)
                && kept.hold.movement.is_none()
                && (is_first || (at_maximum && kept.hold.at_maximum))
            {
                ids.push(id);
            }
        }
    }

    /// Whether a seeker outranks the unit of holds, all of which count at once.
    fn outranks_owner(
        &self,
        seeker: &Seeker,
        rights: Option<&Rights<'_>>,
        owner: UnitId,
        node: NodeId,
        ids: &[HoldId],
        tally: &mut QueueTally,
    ) -> Result<(), Wrong> {
        let of_owner = || {
            let kept = ids.iter().filter_map(|id| self.holds.by_id.get(id));
            kept.filter(|kept| kept.hold.unit == owner)
        };
        let mut takes = Amounts::new();
        for kept in of_owner().filter(|_| rights.is_some()) {
            let sum = self.picture.quotas.quota().usage().sum(&[kept.need]);
            takes.resize(takes.len().max(sum.len()), 0);
            takes.iter_mut().zip(&sum).for_each(|(takes, amount)| *takes += amount);
        }
        // Of one unit they were made at different times: the one of the highest rank decides.
        let Some(first) = of_owner().max_by_key(|kept| kept.hold.priority) else { return Ok(()) };
        let queue: QueueIdx = first.queue;
        let refused = |reason, why: &str| Err((reason, node, format!("what is held for unit {owner} {why}")));
        match may_take_over(&self.picture.cluster, seeker, &first.hold, rights, queue, &takes, tally) {
            Ok(()) => Ok(()),
            Err(TakeoverRefusal::NotForOthers) => refused(RejectionReason::VictimGone, "is not for others"),
            Err(TakeoverRefusal::Rank) => {
                refused(RejectionReason::VictimGone, "is for one whose rank is not lower")
            }
            Err(TakeoverRefusal::Loop) => refused(
                RejectionReason::PreemptionLoop,
                "was taken over from this one, or it preempted this one",
            ),
        }
    }
}
