//! Decisions that claim room which is not free: the check whether the victims may be preempted, and the holds that such a
//! decision becomes.

use std::collections::BTreeMap;

use godel_base::ids::{HoldId, NodeId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    decision::{Claim, Decision, Preemption, Rejection, RejectionReason},
    hold::Hold,
    running_units::{Evict, EvictionReason, RunningUnits},
};
use godel_framework::{
    plugins::victims::whole_gang::{group_minima, min_member, staying},
    point::{Seeker, Sides, Spared, VictimInput},
    registry::may_leave,
};
use godel_placement::preempt::{N_VICTIMS_MAX, QueueTally, Rights};
use godel_queueing::{Amounts, Need, QueueIdx};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Wait,
    check::{PlacedReplica, at_node, whole},
    holds::{
        BinderHolds, KnownHolds,
        replace::{Not, TakenOver},
    },
    maxima::at_maximum,
    pending_evictions::PendingEvictions,
    picture::BinderPicture,
    under_way::UnderWay,
};

pub(super) type Wrong = (RejectionReason, NodeId, String);

/// The state against which claims are checked. A check changes nothing.
pub(super) struct ClaimCheck<'a> {
    pub(super) picture: &'a BinderPicture,
    pub(super) under_way: &'a UnderWay,
    pub(super) holds: &'a KnownHolds,
    pub(super) evictions: &'a PendingEvictions,
}

/// What an admitted claim rests on.
#[derive(Debug)]
pub(super) struct ClaimTerms {
    /// Holds of other units that the claim takes over.
    pub(super) taken: TakenOver,
    /// Disruption budgets that the victims rest on, with the revisions of their records.
    pub(super) budgets: Vec<(String, Revision)>,
}

/// Why a claim is not admitted now.
pub(super) enum ClaimRefused {
    /// A transaction under way decides it: the claim is checked again after that.
    Wait(Wait),
    /// The claim is rejected.
    Reject(Vec<Rejection>),
}

/// The victims of one unit, and the node of the first of them.
struct OfUnit {
    ordinals: Vec<u32>,
    node: NodeId,
}

impl ClaimCheck<'_> {
    /// Checks that each victim may be preempted for this unit, that each victim's unit keeps its minimum or is evicted whole,
    /// and that disruption budgets allow it. `needs` is what the decision adds to its queue.
    ///
    /// # Errors
    /// A rule forbids it, or a transaction under way has to be seen first.
    pub(super) fn judge(
        &self,
        seeker: &Seeker,
        decision: &Decision,
        preemption: &Preemption,
        queue: QueueIdx,
        needs: &[Need],
    ) -> Result<ClaimTerms, ClaimRefused> {
        let rejected =
            |(why, node, detail): Wrong| ClaimRefused::Reject(at_node(decision, why, node, detail));
        let rights = Rights::new(self.picture.quotas.quota(), queue, needs);
        let rights = rights.map(|rights| {
            let unsure = self.unsure(&rights, preemption);
            rights.unsure_of(unsure)
        });
        let mut tally = QueueTally::default();
        let taken = match self.take_over(seeker, rights.as_ref(), decision, preemption, &mut tally) {
            Ok(taken) => taken,
            Err(Not::Wait(wait)) => return Err(ClaimRefused::Wait(wait)),
            Err(Not::Wrong(wrong)) => return Err(rejected(wrong)),
        };
        let allowed = self.may_leave(seeker, rights.as_ref(), preemption, tally);
        match allowed.and_then(|()| self.picture.afford(preemption.victims())) {
            Ok(budgets) => match self.rests_on(preemption) {
                Some(wait) => Err(ClaimRefused::Wait(wait)),
                None => Ok(ClaimTerms { taken, budgets }),
            },
            Err(wrong) => match preemption.victims().find_map(|victim| self.binding_under_way(victim)) {
                Some(wait) => Err(ClaimRefused::Wait(wait)),
                None => Err(rejected(wrong)),
            },
        }
    }

    /// Returns what to wait for if the binding of a victim is under way or not read yet: the scheduler may know it earlier.
    fn binding_under_way(&self, victim: &RunningUnitId) -> Option<Wait> {
        self.under_way.outcome_for(victim)
    }

    /// Returns the transaction under way that evicts the rest of a victim's unit, if the claim is only allowed because of it:
    /// if that transaction is refused, the unit would be left below its minimum.
    fn rests_on(&self, preemption: &Preemption) -> Option<Wait> {
        let mut taken: BTreeMap<UnitId, Vec<u32>> = BTreeMap::new();
        preemption
            .victims()
            .for_each(|victim| taken.entry(victim.unit).or_default().push(victim.replica.ordinal));
        let broken = |(unit, taken): &(UnitId, Vec<u32>)| {
            let rows = self.picture.cluster.rows().of(*unit)?;
            let n_left = staying(rows).count().saturating_sub(taken.len());
            let is_broken = n_left < min_member(rows) || lacks_of_group(rows, taken, |_| true);
            (n_left > 0 && is_broken).then_some(*unit)
        };
        let unit = taken.into_iter().find_map(|of_unit| broken(&of_unit))?;
        self.under_way.evicting(unit).next().map(|(ticket, _)| self.under_way.outcome_of(ticket))
    }

    /// Returns what transactions under way add to queues, by queue. Empty if neither a victim nor what is taken over is of a
    /// queue with a guarantee.
    ///
    /// `O(decisions under way + holds)`.
    fn unsure(&self, rights: &Rights<'_>, preemption: &Preemption) -> FxHashMap<QueueIdx, Amounts> {
        let (usage, tree) = (rights.quota().usage(), rights.quota().tree());
        let mut unsure: FxHashMap<QueueIdx, Amounts> = FxHashMap::default();
        let is_concerned = |victim: &RunningUnitId| {
            self.picture.cluster.rows().of(victim.unit).is_some_and(|rows| {
                let (queue, takes) = self.picture.pays(
                    rights.quota(),
                    victim.unit,
                    rows,
                    rows.row(victim.replica.ordinal).group,
                );
                tree.upwards(queue).any(|level| usage.guarantees().concerns(level, &takes))
            })
        };
        let is_concerned_hold = |id: &HoldId| {
            self.holds.pays(*id).is_some_and(|(queue, need)| {
                let takes = usage.sum(&[need]);
                tree.upwards(queue).any(|level| usage.guarantees().concerns(level, &takes))
            })
        };
        let mut taken_over = preemption.nodes.iter().flat_map(|on_node| &on_node.holds);
        if !preemption.victims().any(is_concerned) && !taken_over.any(is_concerned_hold) {
            return unsure;
        }
        let under_way = self.under_way.needs().map(|(payer, need)| (usage.owners().queue(payer), need));
        for (queue, need) in under_way.chain(self.holds.uncommitted_needs()) {
            let amounts = usage.sum(&[need]);
            for level in tree.upwards(queue) {
                let sum = unsure.entry(level).or_default();
                sum.resize(sum.len().max(amounts.len()), 0);
                sum.iter_mut().zip(&amounts).for_each(|(sum, amount)| *sum += amount);
            }
        }
        unsure
    }

    /// Checks all victims: each is named once, may be preempted, and its unit keeps its minimum or is evicted whole. `tally`
    /// is what is taken over.
    fn may_leave(
        &self,
        seeker: &Seeker,
        rights: Option<&Rights<'_>>,
        preemption: &Preemption,
        mut tally: QueueTally,
    ) -> Result<(), Wrong> {
        if preemption.n_victims() > N_VICTIMS_MAX {
            let detail = format!(
                "{}, more than {N_VICTIMS_MAX}",
                godel_base::words::count(preemption.n_victims(), "victim")
            );
            return Err((RejectionReason::Invalid, NodeId(0), detail));
        }
        let mut seen: FxHashSet<(UnitId, u32)> = FxHashSet::default();
        let mut by_unit: BTreeMap<UnitId, OfUnit> = BTreeMap::new();
        let nodes = preemption.nodes.iter();
        let claimed = nodes.flat_map(|on| on.victims.iter().map(|one| (one, Some(on.node))));
        for (victim, on) in claimed.chain(preemption.others.iter().map(|one| (one, None))) {
            let (unit, ordinal) = (victim.unit, victim.replica.ordinal);
            if !seen.insert((unit, ordinal)) {
                let detail = format!("unit {unit}, {ordinal} stands twice");
                return Err((RejectionReason::Invalid, NodeId(0), detail));
            }
            let node = self.may_one_leave(seeker, rights, victim, on)?;
            let of_unit = by_unit.entry(unit).or_insert_with(|| OfUnit { ordinals: Vec::new(), node });
            of_unit.ordinals.push(ordinal);
        }
        let own = self.preemptors_of(seeker.unit);
        if let Some((unit, of_unit)) = by_unit.iter().find(|(unit, _)| own.contains(unit)) {
            let detail = format!("unit {unit} preempted this one before");
            return Err((RejectionReason::PreemptionLoop, of_unit.node, detail));
        }
        for (unit, of_unit) in &by_unit {
            let Some(rows) = self.picture.cluster.rows().of(*unit) else { continue };
            let is_there = |ordinal| !self.evictions.is_victim(*unit, ordinal);
            let n_staying = staying(rows).filter(|(ordinal, _)| is_there(*ordinal)).count();
            let n_left = n_staying.saturating_sub(of_unit.ordinals.len());
            let is_broken = n_left < min_member(rows) || lacks_of_group(rows, &of_unit.ordinals, is_there);
            if n_left > 0 && is_broken {
                let detail = format!("unit {unit} would be left below its minimum and not leave whole");
                return Err((RejectionReason::VictimGone, NodeId(0), detail));
            }
            if let Some(rights) = rights {
                let is_gang = n_left == 0 && min_member(rows) > 1;
                self.tally(rights, seeker.priority, *unit, rows, &of_unit.ordinals, is_gang, &mut tally);
            }
        }
        if let Some(queue) = rights.and_then(|rights| rights.overdrawn(&tally)) {
            let node = by_unit.values().next().map_or(NodeId(0), |of_unit| of_unit.node);
            let path = self.picture.quotas.quota().tree().path(queue);
            let detail = format!("queue {path} borrows less than is claimed back");
            return Err((RejectionReason::VictimGone, node, detail));
        }
        Ok(())
    }

    /// Returns the units for which running units of `unit` are being evicted by transactions that are not read yet.
    fn preemptors_of(&self, unit: UnitId) -> Vec<UnitId> {
        let mut staying = self.picture.cluster.rows().of(unit).into_iter().flat_map(RunningUnits::live);
        if !staying.any(|(ordinal, _)| self.evictions.is_victim(unit, ordinal)) {
            return Vec::new();
        }
        self.under_way.evicting(unit).map(|(_, open)| open.unit).collect()
    }

    /// Returns the node of a victim if it may be preempted now.
    fn may_one_leave(
        &self,
        seeker: &Seeker,
        rights: Option<&Rights<'_>>,
        victim: &RunningUnitId,
        on: Option<NodeId>,
    ) -> Result<NodeId, Wrong> {
        let RunningUnitId { unit, replica: ReplicaId { ordinal, incarnation } } = *victim;
        let gone = |node, why: &str| {
            Err((RejectionReason::VictimGone, node, format!("unit {unit}, {ordinal}: {why}")))
        };
        let Some(rows) = self.picture.cluster.rows().of(unit) else {
            return gone(on.unwrap_or_default(), "is not there");
        };
        let row = rows.row(ordinal);
        let node = on.unwrap_or(row.node);
        if row.incarnation != incarnation
            || node != row.node
            || self.evictions.is_victim(unit, ordinal)
            || self.evictions.is_asked(*victim)
        {
            return gone(node, "is not there, or leaves already");
        }
        let own = self.picture.cluster.rows().of(seeker.unit).map_or(&[][..], |rows| rows.preemptors());
        let sides = rights.map_or_else(Sides::default, |rights| {
            let (queue, takes) = self.picture.pays(rights.quota(), unit, rows, row.group);
            rights.against(queue, &takes, &QueueTally::default())
        });
        let judged = VictimInput::new(&self.picture.cluster, seeker, own, unit, rows, ordinal, &row, sides);
        match may_leave(&judged) {
            Ok(()) => Ok(node),
            Err(Spared::Refused(why)) => gone(node, why),
            Err(Spared::Until(_)) => gone(node, "has not run long enough"),
            Err(Spared::Budget) => gone(node, "is kept by a disruption budget"),
            Err(Spared::Last) => gone(node, "is the master of its application"),
            Err(Spared::Loop) => {
                let detail = format!("unit {unit} preempted this one before, by itself or by way of others");
                Err((RejectionReason::PreemptionLoop, node, detail))
            }
        }
    }

    /// Counts the victims of a unit that may be preempted only because their queue borrows; a gang counts as a whole.
    fn tally(
        &self,
        rights: &Rights<'_>,
        priority: i32,
        unit: UnitId,
        rows: &RunningUnits,
        ordinals: &[u32],
        is_gang: bool,
        tally: &mut QueueTally,
    ) {
        let mut whole = Amounts::new();
        let mut queue = QueueIdx::DEFAULT;
        for &ordinal in ordinals {
            let group = rows.row(ordinal).group;
            let takes;
            (queue, takes) = self.picture.pays(rights.quota(), unit, rows, group);
            let sides = rights.against(queue, &takes, &QueueTally::default());
            let own = rows.standing(group).map_or(0, |standing| standing.priority);
            if !sides.rests_on_borrowing(priority, own) {
                continue;
            }
            if !is_gang {
                rights.take(queue, &takes, tally);
                continue;
            }
            whole.resize(whole.len().max(takes.len()), 0);
            whole.iter_mut().zip(&takes).for_each(|(sum, amount)| *sum += amount);
        }
        if !whole.is_empty() {
            rights.take(queue, &whole, tally);
        }
    }
}

/// Whether a task group has fewer left than its own minimum once some of those that stay are taken, `is_there` saying who counts.
fn lacks_of_group(rows: &RunningUnits, taken: &[u32], is_there: impl Fn(u32) -> bool) -> bool {
    group_minima(rows).any(|(group, minimum)| {
        let of_group = || staying(rows).filter(|(ordinal, row)| row.group == group && is_there(*ordinal));
        let n_taken = taken.iter().filter(|ordinal| rows.row(**ordinal).group == group).count();
        n_taken > 0 && of_group().count().saturating_sub(n_taken) < minimum
    })
}

/// Returns the holds of a whole decision, and whether its queue is at a maximum. Then victims in that queue back the holds.
///
/// # Errors
/// The queue has no room even then, or nothing is evicted.
pub(super) fn backed_holds(
    decision: &Decision,
    members: &[PlacedReplica],
    queue: QueueIdx,
    taken: &TakenOver,
    holds: &mut BinderHolds,
    picture: &mut BinderPicture,
) -> Result<(Vec<Hold>, bool), Vec<Rejection>> {
    let mut made = holds_of(decision, members);
    let needs: Vec<Need> = made.iter().map(|hold| picture.need_of_hold(hold)).collect();
    let queue_victims = at_maximum(holds, picture, decision.unit, queue, &needs, &decision.claim, taken)
        .map_err(|limit| whole(decision, RejectionReason::QueueFull, picture.quotas.words(limit)))?;
    if let (Some(victims), Some(first)) = (&queue_victims, made.first_mut()) {
        first.queue_victims.clone_from(victims);
    }
    let at_maximum = queue_victims.is_some();
    let is_backed = |preemption: &Preemption| !preemption.nodes.is_empty();
    if !at_maximum && !decision.claim.preemption().is_none_or(is_backed) {
        let detail = "nobody has to leave: there is room in the queue by now".to_owned();
        return Err(whole(decision, RejectionReason::VictimGone, detail));
    }
    Ok((made, at_maximum))
}

/// Returns the holds of a decision by task group and node, without the fields that only the binder knows.
fn holds_of(decision: &Decision, members: &[PlacedReplica]) -> Vec<Hold> {
    let mut holds: BTreeMap<(u16, NodeId), Hold> = BTreeMap::new();
    for member in members {
        let placement = &decision.groups[member.group];
        let (group, node) = (placement.group, placement.nodes[member.idx]);
        let hold = holds.entry((group, node)).or_insert_with(|| Hold {
            node,
            unit: decision.unit,
            group,
            ..Hold::default()
        });
        hold.ordinals.push(placement.ordinals[member.idx]);
        hold.incarnations.push(placement.incarnation(member.idx));
        hold.devices.push(member.allocation.devices);
        hold.zones.push(member.allocation.zones);
    }
    for on_node in decision.claim.preemption().iter().flat_map(|preemption| &preemption.nodes) {
        if let Some(hold) = holds.get_mut(&(on_node.group, on_node.node)) {
            hold.victims.clone_from(&on_node.victims);
        }
    }
    let shorten = |mut hold: Hold| {
        if hold.incarnations.iter().all(|incarnation| *incarnation == 0) {
            hold.incarnations.clear();
        }
        if hold.devices.iter().all(|devices| devices.is_empty()) {
            hold.devices.clear();
        }
        if hold.zones.iter().all(|zones| zones.is_empty()) {
            hold.zones.clear();
        }
        hold
    };
    holds.into_values().map(shorten).collect()
}

/// Returns the evictions that a claim causes, by unit.
pub(super) fn evictions_of(preemptor: UnitId, claim: &Claim) -> Vec<(UnitId, Evict)> {
    let mut by_unit: BTreeMap<UnitId, Vec<ReplicaId>> = BTreeMap::new();
    for victim in claim.victims() {
        by_unit.entry(victim.unit).or_default().push(victim.replica);
    }
    let evict = |mut replicas: Vec<ReplicaId>| {
        replicas.sort_unstable();
        let (ordinals, incarnations) = ReplicaId::columns(replicas);
        let by = format!("unit {preemptor}");
        Evict { ordinals, incarnations, reason: EvictionReason::Preempted, by, preemptor }
    };
    by_unit.into_iter().map(|(unit, replicas)| (unit, evict(replicas))).collect()
}
