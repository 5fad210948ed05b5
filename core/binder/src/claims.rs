//! A decision for which others have to leave, or that gathers room: all of it becomes holds, or nothing of it.

use std::{collections::BTreeMap, sync::Arc};

use godel_domain::{
    decision::{Decision, Preemption, Rejection, RejectionReason},
    hold::{self, GangTurn, Hold},
    ids::{HoldId, NodeId, Revision, UnitId},
    lifecycle,
    running_units::{Evict, EvictionReason, RunningUnits},
};
use godel_placement::preempt::{
    N_VICTIMS_MAX, QueueTally, Rights, Seeker, Sides, Spared, is_loop, min_member, staying,
};
use godel_queueing::{Amounts, Need, QueueIdx};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Accepted, Binder, Open, OpenHolds, Ticket, Verdict, Wait,
    check::{Member, Members, Refused, placed, reason, wanted, whole},
    holds::replace::{Not, TAKEN_OVER, TakenOver},
};

impl Binder {
    /// Checks a decision with victims: whether each of them may be preempted for this unit, whether their units are
    /// left whole or not at all, and whether what they leave behind suffices. Takes the room as holds.
    ///
    /// O(running units placed + victims + running units of their units).
    pub(super) fn check_claims(
        &mut self,
        decision: &Decision,
        (members, own): (Members, &[HoldId]),
        mut refused: Refused,
    ) -> Verdict {
        let Some(preemption) = decision.preemption.as_deref() else {
            return Verdict::Reject(refused.rejections);
        };
        if let Some(ticket) = self.open_of.get(&decision.unit).and_then(|tickets| tickets.last()) {
            return Verdict::Wait(self.outcome_of(*ticket));
        }
        let Some(unit) = self.units.get(&decision.unit) else {
            return Verdict::Reject(refused.rejections);
        };
        let requeues = (&self.requeues, self.revision);
        let members = match wanted(unit, &self.cluster, requeues, decision, members, &mut refused) {
            Ok(members) => members,
            Err(wait) => return Verdict::Wait(wait),
        };
        if members.len() < decision.len() {
            // Those not refused are to be placed again, with others or without.
            let rest = members.iter().map(|member| decision.groups[member.group].ordinals[member.idx]);
            let detail = "others of the decision cannot be bound any more".to_owned();
            if !members.is_empty() {
                refused.add_all(RejectionReason::MinMember, rest, NodeId(0), detail);
            }
            return Verdict::Reject(refused.rejections);
        }
        let min = unit.terms.min_member as usize;
        let counted = |rows| lifecycle::counted(rows, &unit.terms);
        let n_bound = members.len() + self.cluster.rows(decision.unit).map_or(0, counted);
        if n_bound < min {
            let detail = format!("{n_bound} of {min} would be held");
            return Verdict::Reject(whole(decision, RejectionReason::MinMember, detail));
        }
        if let Some(kept) = self.keeps_all(preemption.gathers) {
            let reason =
                if preemption.gathers { RejectionReason::GangTurn } else { RejectionReason::VictimGone };
            return Verdict::Reject(whole(decision, reason, kept));
        }
        if preemption.gathers {
            return self.check_turn(decision, &members, preemption, n_bound - members.len());
        }
        let seeker = Seeker {
            unit: decision.unit,
            priority: self.classes.value(unit.priority),
            pool: unit.pool,
            now_ms: self.now_ms,
        };
        let (queue, needs) = (unit.queue, self.needs_of(decision, &members));
        let rights = Rights::new(self.quotas.quota(), queue, &needs);
        let rights = rights.map(|rights| {
            let unsure = self.unsure(&rights, preemption);
            rights.unsure_of(unsure)
        });
        let mut tally = QueueTally::default();
        let asked = (decision, preemption);
        let taken = match self.take_over(&seeker, rights.as_ref(), asked, &mut tally) {
            Ok(taken) => taken,
            Err(Not::Wait(wait)) => return Verdict::Wait(wait),
            Err(Not::Wrong((why, node, detail))) => {
                return Verdict::Reject(at_node(decision, why, node, detail));
            }
        };
        let allowed = self.may_leave(&seeker, rights.as_ref(), preemption, tally);
        match allowed.and_then(|()| self.afford(preemption.victims())) {
            Ok(budgets) => match self.rests_on(preemption) {
                Some(wait) => Verdict::Wait(wait),
                None => self.hold(decision, &members, preemption, (None, budgets), (own, taken)),
            },
            Err((why, node, detail)) => match preemption.victims().find_map(|victim| self.comes(victim)) {
                Some(wait) => Verdict::Wait(wait),
                None => Verdict::Reject(at_node(decision, why, node, detail)),
            },
        }
    }

    /// What shows a victim whose binding is under way, or not read yet: its scheduler may have heard of it before.
    fn comes(&self, victim: &hold::Member) -> Option<Wait> {
        let member = (victim.ordinal, victim.incarnation);
        let binds = |ticket: &&Ticket| self.open.get(*ticket).is_some_and(|open| open.contains(member));
        self.open_of.get(&victim.unit)?.iter().find(binds).map(|ticket| self.outcome_of(*ticket))
    }

    /// What has the rest of a victim's unit leave, where its commit may still be refused: the unit would be left below its
    /// minimum and not leave whole.
    fn rests_on(&self, preemption: &Preemption) -> Option<Wait> {
        let mut taken: BTreeMap<UnitId, usize> = BTreeMap::new();
        preemption.victims().for_each(|victim| *taken.entry(victim.unit).or_default() += 1);
        let broken = |(unit, n_taken): &(UnitId, usize)| {
            let rows = self.cluster.rows(*unit)?;
            let n_left = staying(rows).count().saturating_sub(*n_taken);
            (n_left > 0 && n_left < min_member(rows)).then_some(*unit)
        };
        let unit = taken.into_iter().find_map(|of_unit| broken(&of_unit))?;
        let has_it_leave = |open: &Open| open.holds().victims.iter().any(|(victim, _)| *victim == unit);
        self.open.iter().find(|(_, open)| has_it_leave(open)).map(|(ticket, _)| self.outcome_of(*ticket))
    }

    /// Takes room for all of a decision as holds, what its victims leave, by the leave of these budgets, or what a gang's
    /// turn gathers. The unit's `own` holds go, and those that it takes over.
    pub(super) fn hold(
        &mut self,
        decision: &Decision,
        members: &[Member],
        preemption: &Preemption,
        (turn, budgets): (Option<GangTurn>, Vec<(String, Revision)>),
        (own, mut taken): (&[HoldId], TakenOver),
    ) -> Verdict {
        let unit = &self.units[&decision.unit];
        let (queue, spec_revision) = (unit.queue, unit.revision);
        let priority = Some(self.classes.value(unit.priority));
        let judged = self.revision;
        let mut gone = self.gone_with(own, placed(decision, members));
        gone.extend(taken.ids.iter().map(|id| (*id, TAKEN_OVER)));
        let lifted: Vec<HoldId> = gone.iter().map(|(id, _)| *id).collect();
        self.holds.lift(&lifted, &mut self.cluster, &mut self.quotas);
        let lasts_ms = if turn.is_some() { self.holds.turn_ms() } else { self.holds.hold_ms() };
        let mut holds: Vec<Arc<Hold>> = Vec::new();
        let mut refusal = None;
        let (made, at_maximum) = match self.backed_holds(decision, members, (preemption, queue)) {
            Ok(made) => made,
            Err(rejections) => {
                refusal = Some(rejections);
                (Vec::new(), false)
            }
        };
        for mut hold in made {
            if let Some((victims, from)) = taken.by_place.remove(&(hold.group, hold.node)) {
                hold.victims.extend(victims);
                hold.victims.sort_unstable();
                hold.taken_from = from;
            }
            let group = &self.units[&decision.unit].groups[usize::from(hold.group)];
            let hold = Hold {
                id: self.holds.next(),
                spec_revision,
                demand: Arc::clone(self.cluster.demand(group.shape)),
                pool: self.units[&decision.unit].pool,
                expires_ms: self.now_ms.saturating_add(lasts_ms),
                queue: self.quotas.path(queue).cloned(),
                judged,
                priority,
                turn: turn.clone(),
                at_maximum,
                ..hold
            };
            let shape = group.shape;
            let (selector, tolerations) = group.constraint();
            let mut may = self.cluster.usable(hold.node);
            if may.is_ok() && self.cluster.changed_at(hold.node) > decision.nodes_as_of {
                may = self.cluster.allows(selector, tolerations, hold.node);
            }
            let fits = may.and_then(|()| match turn {
                Some(_) => self.cluster.could_hold(shape, &hold),
                None => {
                    let mut masks = (0..hold.ordinals.len()).map(|idx| hold.device_mask(idx));
                    masks.try_for_each(|mask| self.cluster.suits(shape, hold.node, mask))?;
                    self.cluster.fits_hold(shape, &hold)
                }
            });
            if let Err(wrong) = fits {
                let (why, detail) = reason(wrong);
                refusal = Some(at_node(decision, why, hold.node, detail));
                break;
            }
            // There is room for all of them together.
            let need = self.need_of_hold(&hold);
            self.quotas.add_need(queue, need);
            let hold = Arc::new(hold);
            self.cluster.put_hold(Arc::clone(&hold));
            self.holds.begin(Arc::clone(&hold), queue, need);
            holds.push(hold);
        }
        self.holds.settle(&lifted, &mut self.cluster, &mut self.quotas);
        if let Some(rejections) = refusal {
            for hold in holds {
                self.give_up(hold.id);
            }
            self.follow_again(&lifted);
            return Verdict::Reject(rejections);
        }
        let ticket = self.open(decision, members, queue, super::Needs::new());
        if let Some(open) = self.open.get_mut(&ticket) {
            let victims: Vec<_> = preemption.victims().map(|victim| (victim.unit, victim.ordinal)).collect();
            let made = holds.iter().map(|hold| hold.id).collect();
            open.holds = Some(Box::new(OpenHolds { made, victims: victims.clone(), ..OpenHolds::default() }));
            self.leave(&victims);
        }
        self.end_with(ticket, &gone);
        Verdict::Bind(Box::new(Accepted {
            ticket,
            unit: decision.unit,
            unit_revision: decision.spec_revision,
            queue,
            binds: Vec::new(),
            holds,
            evictions: evictions(decision.unit, preemption),
            ends: Vec::new(),
            rejections: Vec::new(),
            budgets,
            slots: Vec::new(),
            gone,
        }))
    }

    /// Holds for all of a decision, those of a unit whose queue is at its maximum backed by who leaves there; and whether it is.
    ///
    /// # Errors
    /// The queue has no room, or nobody has to leave.
    fn backed_holds(
        &mut self,
        decision: &Decision,
        members: &[Member],
        (preemption, queue): (&Preemption, QueueIdx),
    ) -> Result<(Vec<Hold>, bool), Vec<Rejection>> {
        let mut made = holds_of(decision, members, preemption);
        let needs: Vec<Need> = made.iter().map(|hold| self.need_of_hold(hold)).collect();
        let queue_victims = self
            .at_maximum(decision.unit, queue, &needs, preemption)
            .map_err(|limit| whole(decision, RejectionReason::QueueFull, self.quotas.words(limit)))?;
        if let (Some(victims), Some(first)) = (&queue_victims, made.first_mut()) {
            first.queue_victims.clone_from(victims);
        }
        let at_maximum = queue_victims.is_some();
        if !at_maximum && !preemption.gathers && preemption.claims.is_empty() {
            let detail = "nobody has to leave: there is room in the queue by now".to_owned();
            return Err(whole(decision, RejectionReason::VictimGone, detail));
        }
        Ok((made, at_maximum))
    }
}

pub(super) type Wrong = (RejectionReason, NodeId, String);

/// Victims of one unit.
struct OfUnit {
    ordinals: Vec<u32>,
    node: NodeId,
}

impl Binder {
    /// What a hold of a unit that is known takes of its queue.
    fn need_of_hold(&mut self, hold: &Hold) -> Need {
        let shape = self.units[&hold.unit].groups[usize::from(hold.group)].shape;
        let n = u32::try_from(hold.ordinals.len()).unwrap_or(u32::MAX);
        self.quotas.need(shape, n, &self.cluster)
    }

    /// What the unit's queue may claim for all that a decision adds to it.
    fn needs_of(&mut self, decision: &Decision, members: &[Member]) -> Vec<Need> {
        if !self.quotas.quota().usage().has_guarantees() {
            return Vec::new();
        }
        let of_group = members.chunk_by(|a, b| a.group == b.group);
        of_group
            .filter_map(|members| {
                let group = usize::from(decision.groups[members[0].group].group);
                let shape = self.units.get(&decision.unit)?.groups.get(group)?.shape;
                let n = u32::try_from(members.len()).unwrap_or(u32::MAX);
                Some(self.quotas.need(shape, n, &self.cluster))
            })
            .collect()
    }

    /// What queues use by what is under way, by level; nothing where no victim's queue guarantees what it takes.
    ///
    /// `O(decisions under way + holds)`.
    fn unsure(&self, rights: &Rights<'_>, preemption: &Preemption) -> FxHashMap<QueueIdx, Amounts> {
        let (usage, tree) = (rights.quota().usage(), rights.quota().tree());
        let mut unsure: FxHashMap<QueueIdx, Amounts> = FxHashMap::default();
        let is_concerned = |victim: &hold::Member| {
            self.cluster.rows(victim.unit).is_some_and(|rows| {
                let (queue, takes) = self.pays(rights, victim.unit, rows, rows.row(victim.ordinal).group);
                tree.upwards(queue).any(|level| usage.concerns(level, &takes))
            })
        };
        if !preemption.victims().any(is_concerned) {
            return unsure;
        }
        let bindings =
            self.open.values().flat_map(|open| open.needs.iter().map(|(_, need)| (open.queue, *need)));
        for (queue, need) in bindings.chain(self.holds.made()) {
            let amounts = usage.sum(&[need]);
            for level in tree.upwards(queue) {
                let sum = unsure.entry(level).or_default();
                sum.resize(sum.len().max(amounts.len()), 0);
                sum.iter_mut().zip(&amounts).for_each(|(sum, amount)| *sum += amount);
            }
        }
        unsure
    }

    /// Whether all victims may be preempted, each once, and their units stay whole enough or go whole; `tally` is what is
    /// taken over.
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
                godel_domain::words::count(preemption.n_victims(), "victim")
            );
            return Err((RejectionReason::Invalid, NodeId(0), detail));
        }
        let mut seen: FxHashSet<(UnitId, u32)> = FxHashSet::default();
        let mut by_unit: BTreeMap<UnitId, OfUnit> = BTreeMap::new();
        let claims = preemption.claims.iter();
        let claimed = claims.flat_map(|claim| claim.victims.iter().map(|one| (one, Some(claim.node))));
        for (victim, on) in claimed.chain(preemption.others.iter().map(|one| (one, None))) {
            let (unit, ordinal) = (victim.unit, victim.ordinal);
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
            let Some(rows) = self.cluster.rows(*unit) else { continue };
            let is_there = |ordinal| !self.holds.is_leaving(*unit, ordinal);
            let n_staying = staying(rows).filter(|(ordinal, _)| is_there(*ordinal)).count();
            let n_left = n_staying.saturating_sub(of_unit.ordinals.len());
            if n_left > 0 && n_left < min_member(rows) {
                let detail = format!("unit {unit} would be left below its minimum and not leave whole");
                return Err((RejectionReason::VictimGone, NodeId(0), detail));
            }
            if let Some(rights) = rights {
                let is_gang = n_left == 0 && min_member(rows) > 1;
                self.tally(
                    (rights, seeker.priority),
                    (*unit, rows),
                    (&of_unit.ordinals, is_gang),
                    &mut tally,
                );
            }
        }
        if let Some(queue) = rights.and_then(|rights| rights.overdrawn(&tally)) {
            let node = by_unit.values().next().map_or(NodeId(0), |of_unit| of_unit.node);
            let path = self.quotas.quota().tree().path(queue);
            let detail = format!("queue {path} borrows less than is claimed back");
            return Err((RejectionReason::VictimGone, node, detail));
        }
        Ok(())
    }

    /// Units for which running units of a unit are about to leave: its rows do not say so yet.
    fn preemptors_of(&self, unit: UnitId) -> Vec<UnitId> {
        let mut staying = self.cluster.rows(unit).into_iter().flat_map(RunningUnits::live);
        if !staying.any(|(ordinal, _)| self.holds.is_leaving(unit, ordinal)) {
            return Vec::new();
        }
        let has_it_leave = |open: &&Open| open.holds().victims.iter().any(|(victim, _)| *victim == unit);
        self.open.values().filter(has_it_leave).map(|open| open.unit).collect()
    }

    /// The node of a victim, if it may be preempted as things are.
    fn may_one_leave(
        &self,
        seeker: &Seeker,
        rights: Option<&Rights<'_>>,
        victim: &hold::Member,
        on: Option<NodeId>,
    ) -> Result<NodeId, Wrong> {
        let hold::Member { unit, ordinal, incarnation } = *victim;
        let gone = |node, why: &str| {
            Err((RejectionReason::VictimGone, node, format!("unit {unit}, {ordinal}: {why}")))
        };
        let Some(rows) = self.cluster.rows(unit) else { return gone(on.unwrap_or_default(), "is not there") };
        let row = rows.row(ordinal);
        let node = on.unwrap_or(row.node);
        if row.incarnation != incarnation
            || node != row.node
            || self.holds.is_leaving(unit, ordinal)
            || self.departs(unit, ordinal, incarnation)
        {
            return gone(node, "is not there, or leaves already");
        }
        if self.cluster.has_slots() && self.cluster.slot_of(victim).is_some() {
            return gone(node, "is in a slot of a reservation");
        }
        let own = self.cluster.rows(seeker.unit).map_or(&[][..], |rows| rows.preemptors());
        let sides = rights.map_or_else(Sides::default, |rights| {
            let (queue, takes) = self.pays(rights, unit, rows, row.group);
            rights.against(queue, &takes, &QueueTally::default())
        });
        let is_loop = || is_loop(&self.cluster, (seeker.unit, own), unit, rows);
        match seeker.may_preempt(unit, rows, &row, sides, is_loop) {
            Ok(()) => Ok(node),
            Err(Spared::Gone) => gone(node, "leaves already"),
            Err(Spared::NotPreemptible) => gone(node, "is not preemptible"),
            Err(Spared::Rank) => gone(node, "its rank is not lower"),
            Err(Spared::Pool) => gone(node, "is of another pool"),
            Err(Spared::Until(_)) => gone(node, "has not run long enough"),
            Err(Spared::Loop) => {
                let detail = format!("unit {unit} preempted this one before, by itself or by way of others");
                Err((RejectionReason::PreemptionLoop, node, detail))
            }
        }
    }

    /// The queue of a running unit, and what it takes of it.
    fn pays(
        &self,
        rights: &Rights<'_>,
        unit: UnitId,
        rows: &RunningUnits,
        group: u16,
    ) -> (QueueIdx, Amounts) {
        let queue = self.units.get(&unit).map_or(QueueIdx::DEFAULT, |unit| unit.queue);
        let group = rows.groups.get(usize::from(group)).and_then(Option::as_ref);
        let usage = rights.quota().usage();
        (queue, group.map(|group| usage.amounts_of(&group.demand)).unwrap_or_default())
    }

    /// Counts those victims of a unit that have to leave only because its queue borrows; a gang leaves at once.
    fn tally(
        &self,
        (rights, priority): (&Rights<'_>, i32),
        (unit, rows): (UnitId, &RunningUnits),
        (ordinals, is_gang): (&[u32], bool),
        tally: &mut QueueTally,
    ) {
        let mut whole = Amounts::new();
        let mut queue = QueueIdx::DEFAULT;
        for &ordinal in ordinals {
            let group = rows.row(ordinal).group;
            let takes;
            (queue, takes) = self.pays(rights, unit, rows, group);
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

/// By task group and node, without what only the binder knows.
fn holds_of(decision: &Decision, members: &[Member], preemption: &Preemption) -> Vec<Hold> {
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
        hold.device_masks.push(member.mask);
    }
    for claim in &preemption.claims {
        if let Some(hold) = holds.get_mut(&(claim.group, claim.node)) {
            hold.victims.clone_from(&claim.victims);
        }
    }
    let shorten = |mut hold: Hold| {
        if hold.incarnations.iter().all(|incarnation| *incarnation == 0) {
            hold.incarnations.clear();
        }
        if hold.device_masks.iter().all(|mask| *mask == 0) {
            hold.device_masks.clear();
        }
        hold
    };
    holds.into_values().map(shorten).collect()
}

/// By unit.
fn evictions(preemptor: UnitId, preemption: &Preemption) -> Vec<(UnitId, Evict)> {
    let mut by_unit: BTreeMap<UnitId, Vec<(u32, u32)>> = BTreeMap::new();
    for victim in preemption.victims() {
        by_unit.entry(victim.unit).or_default().push((victim.ordinal, victim.incarnation));
    }
    let evict = |mut members: Vec<(u32, u32)>| {
        members.sort_unstable();
        let (ordinals, incarnations) = members.into_iter().unzip();
        let by = format!("unit {preemptor}");
        Evict { ordinals, incarnations, reason: EvictionReason::Preempted, by, preemptor }
    };
    by_unit.into_iter().map(|(unit, members)| (unit, evict(members))).collect()
}

/// One rejection of everything, about a node: its fresh state goes along.
fn at_node(decision: &Decision, reason: RejectionReason, node: NodeId, detail: String) -> Vec<Rejection> {
    let mut rejections = whole(decision, reason, detail);
    rejections.iter_mut().for_each(|rejection| rejection.node = node);
    rejections
}
