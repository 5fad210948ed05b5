//! What is to be done about holds: which of them become bindings now, and which end.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{HoldId, ReplicaId, Revision, RunningUnitId, UnitId};
use godel_cluster::Trial;
use godel_domain::{
    allocation::Allocation,
    hold::Hold,
    lifecycle,
    running_units::{Bind, Phase},
};
use smallvec::SmallVec;

use super::{BinderHolds, HoldState};
use crate::{
    Accepted,
    check::{UnitAsks, first_to_run, may_stand},
    maxima::keep_together,
    moves::why_move_ends,
    picture::BinderPicture,
    quotas::GroupNeeds,
    under_way::{OpenHolds, UnderWay},
    unit::Unit,
};

/// What is to be done about holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldWork {
    /// Their victims have left: they are bound.
    Bind(Box<Accepted>),
    /// Slots of a reservation are held.
    Reserve {
        /// Name and revision of its record: a precondition.
        reservation: (String, Revision),
        /// Ascending.
        holds: Vec<Arc<Hold>>,
    },
    /// They go: each with the revision of its record, and why.
    Drop {
        /// Ascending.
        holds: Vec<(HoldId, Revision)>,
        /// As metrics name it.
        why: &'static str,
    },
}

/// The records of nodes count as they were when a hold was judged.
const AS_JUDGED: Revision = Revision(u64::MAX);

impl BinderHolds {
    /// As [`Binder::take_hold_work`](crate::Binder::take_hold_work), slots of reservations aside; `expiries` are those of
    /// reservations.
    pub(crate) fn take_work(
        &mut self,
        picture: &mut BinderPicture,
        under_way: &mut UnderWay,
        expiries: impl Iterator<Item = i64>,
    ) -> Vec<HoldWork> {
        self.is_stale = false;
        picture.cluster.free_mut().gathering.take_met();
        let later = self.known.by_id.values().map(|kept| kept.hold.expires_ms).chain(expiries);
        self.expiry_ms = later.filter(|at| *at > picture.now_ms).min();
        let mut by_unit: BTreeMap<UnitId, Vec<HoldId>> = BTreeMap::new();
        let mut ended: BTreeMap<&'static str, Vec<HoldId>> = BTreeMap::new();
        for (id, kept) in &self.known.by_id {
            if kept.revision.is_none() || kept.state != HoldState::Held || kept.hold.slot.is_some() {
                continue;
            }
            if kept.hold.movement.is_none() {
                by_unit.entry(kept.hold.unit).or_default().push(*id);
            } else if let Some(why) = why_move_ends(&kept.hold, picture)
                && !picture.is_hold_frozen(&kept.hold)
                && !under_way.has_unit(kept.hold.unit)
            {
                ended.entry(why).or_default().push(*id);
            }
        }
        let mut work: Vec<HoldWork> = ended.into_iter().map(|(why, ids)| self.end(&ids, why)).collect();
        let work_of = |(unit, ids): (UnitId, Vec<HoldId>)| self.work_of(unit, &ids, picture, under_way);
        work.extend(by_unit.into_iter().flat_map(work_of));
        work
    }

    fn work_of(
        &mut self,
        unit: UnitId,
        ids: &[HoldId],
        picture: &mut BinderPicture,
        under_way: &mut UnderWay,
    ) -> Vec<HoldWork> {
        if under_way.has_unit(unit) {
            // Looked at again when it is known what becomes of that.
            return Vec::new();
        }
        if ids.iter().any(|id| picture.is_hold_frozen(&self.known.by_id[id].hold)) {
            // Looked at again when something has come that can be read.
            return Vec::new();
        }
        let mut dead: BTreeMap<&'static str, Vec<HoldId>> = BTreeMap::new();
        let mut ready = Vec::new();
        for &id in ids {
            match self.judge(id, picture) {
                Fate::Waits => {}
                Fate::Ready => ready.push(id),
                Fate::Ends(why) => dead.entry(why).or_default().push(id),
            }
        }
        let team = keep_together(&self.known, ids, &mut dead, &mut ready);
        let terms = picture.units.get(&unit).map(|unit| &unit.terms);
        let rows = picture.cluster.rows().of(unit);
        let counted = terms.zip(rows).map(|(terms, rows)| lifecycle::counted(rows, terms));
        let mut count = counted.unwrap_or_default();
        let is_first = terms.is_some_and(|terms| !terms.is_reached(&count));
        if is_first && let Some(why) = dead.keys().next().copied() {
            // Fewer than a first binding are worth nothing.
            return vec![self.end(ids, why)];
        }
        let mut work: Vec<HoldWork> = dead.into_iter().map(|(why, ids)| self.end(&ids, why)).collect();
        if let Some(terms) = terms {
            for hold in ready.iter().map(|id| &self.known.by_id[id].hold) {
                terms.add(&mut count, hold.group, hold.ordinals.len());
            }
        }
        if !ready.is_empty() && terms.is_none_or(|terms| terms.is_reached(&count)) {
            let is_whole = is_first || team.iter().any(|id| ready.contains(id));
            work.push(self.convert(unit, &ready, is_whole, picture, under_way));
        }
        work
    }

    fn judge(&self, id: HoldId, picture: &BinderPicture) -> Fate {
        let hold = &self.known.by_id[&id].hold;
        let Some(unit) = picture.units.get(&hold.unit) else { return Fate::Ends("changed") };
        let rows = picture.cluster.rows().of(hold.unit);
        let is_wanted = |replica: ReplicaId| {
            let row = rows.map(|rows| rows.row(replica.ordinal)).unwrap_or_default();
            row.phase == Phase::Pending && row.incarnation == replica.incarnation
        };
        if !unit.is_wanted || unit.revision != hold.spec_revision || !hold.replicas().all(is_wanted) {
            return Fate::Ends("changed");
        }
        // Those before it of an ordered unit ran when it was judged: one that is lost since comes first again.
        if hold.ordinals.iter().any(|ordinal| first_to_run(unit, rows, *ordinal).is_some()) {
            return Fate::Ends("changed");
        }
        if picture.cluster.nodes().usable(hold.node).is_err() {
            return Fate::Ends("node-lost");
        }
        if hold.expires_ms <= picture.now_ms {
            return Fate::Ends("expired");
        }
        if hold.all_victims().any(|victim| picture.cluster.rows().remains(victim).is_some()) {
            return Fate::Waits;
        }
        if hold.turn.is_some() && !picture.cluster.held().has_gathered(id) {
            return Fate::Waits;
        }
        Fate::Ready
    }

    pub(crate) fn end(&mut self, ids: &[HoldId], why: &'static str) -> HoldWork {
        let mut holds = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(kept) = self.known.by_id.get_mut(id) {
                kept.state = HoldState::Ending;
                holds.push((*id, kept.revision.unwrap_or_default()));
            }
        }
        HoldWork::Drop { holds, why }
    }

    /// Holds become bindings; those whose node has shrunk or changed meanwhile end, and with them the others if all of
    /// them are needed.
    fn convert(
        &mut self,
        unit: UnitId,
        ids: &[HoldId],
        is_whole: bool,
        picture: &mut BinderPicture,
        under_way: &mut UnderWay,
    ) -> HoldWork {
        let (queue, payer) = (picture.units[&unit].queue, picture.units[&unit].payer);
        let standings = picture.classes.standings(&picture.units[&unit], picture.quotas.path(queue));
        let holds: Vec<Arc<Hold>> = ids.iter().map(|id| Arc::clone(&self.known.by_id[id].hold)).collect();
        let known: &Unit = &picture.units[&unit];
        let mut trial = picture.cluster.trial();
        trial.lift_holds(ids);
        let given = assume_all(unit, known, &holds, &mut trial);
        let is_bound = |at: &usize| given[*at].iter().all(Option::is_some);
        if !(0..holds.len()).all(|at| is_bound(&at)) {
            drop(trial);
            let unfit: Vec<HoldId> = (0..ids.len()).filter(|at| !is_bound(at)).map(|at| ids[at]).collect();
            self.is_stale = true;
            return self.end(if is_whole { ids } else { &unfit }, "no-room");
        }
        trial.join();
        picture.cluster.keep_trial();
        ids.iter().for_each(|id| {
            picture.cluster.held_mut().remove(*id);
        });
        let mut binds: BTreeMap<u16, Bind> = BTreeMap::new();
        let mut replicas = SmallVec::new();
        for (hold, given) in holds.iter().zip(given) {
            let bind = binds.entry(hold.group).or_insert_with(|| Bind {
                group: hold.group,
                demand: Arc::clone(&hold.demand),
                pool: hold.pool,
                standing: Some(standings.of(hold.group)),
                ..Bind::default()
            });
            for (replica, given) in hold.replicas().zip(given) {
                let given = given.unwrap_or_default();
                replicas.push(replica);
                bind.ordinals.push(replica.ordinal);
                bind.incarnations.push(replica.incarnation);
                bind.nodes.push(hold.node);
                bind.devices.push(given.devices);
                bind.zones.push(given.zones);
            }
        }
        let mut needs = GroupNeeds::new();
        let mut ends = Vec::with_capacity(ids.len());
        for id in ids {
            let kept = &self.known.by_id[id];
            ends.push((*id, kept.revision.unwrap_or_default()));
            needs.push((kept.hold.group, kept.need));
        }
        let holds = OpenHolds { converted: ids.to_vec(), ..OpenHolds::default() };
        let ticket = under_way.open(unit, replicas, payer, needs, Some(Box::new(holds)));
        for id in ids {
            if let Some(kept) = self.known.by_id.get_mut(id) {
                kept.state = HoldState::Converting(ticket);
            }
        }
        let unit_revision = picture.units[&unit].revision;
        let binds = binds.into_values().map(tidy).collect();
        let accepted = Accepted::new(ticket, unit, unit_revision, queue);
        HoldWork::Bind(Box::new(Accepted { binds, ends, ..accepted }))
    }
}

/// Takes room for all that some holds are for, which are lifted; of each what its replicas are given, `None`: nothing, as it does not fit,
/// or may not stand beside what is bound by now: a hold keeps room, and neither ports nor domains.
///
/// Who may not stand beside what is bound may be able to once others of these are there, as replicas that are spread: whoever is refused is
/// asked again as long as that helps somebody.
fn assume_all(
    id: UnitId,
    unit: &Unit,
    holds: &[Arc<Hold>],
    trial: &mut Trial<'_>,
) -> Vec<Vec<Option<Allocation>>> {
    let asks = UnitAsks::of(trial, id, unit);
    let mut given: Vec<Vec<Option<Allocation>>> =
        holds.iter().map(|hold| vec![None; hold.ordinals.len()]).collect();
    loop {
        let mut n_more = 0;
        for (hold, given) in holds.iter().zip(&mut given) {
            let group = &unit.groups[usize::from(hold.group)];
            let asked = asks.asked(trial, id, hold.group, group);
            let shape = trial.shape(&hold.demand, hold.pool);
            for (idx, replica) in hold.replicas().enumerate() {
                if given[idx].is_some() {
                    continue;
                }
                let may = may_stand(trial, &asked, replica.ordinal, hold.node, AS_JUDGED);
                let fits = may.and_then(|()| trial.free().fits(shape, hold.node));
                let granted = fits.and_then(|()| match hold.allocation(idx) {
                    // Which ones was open until they were free.
                    open if hold.turn.is_some() && open == Allocation::default() => {
                        Ok(trial.free().pick(shape, hold.node).unwrap_or_default())
                    }
                    chosen => trial.free().grant(shape, hold.node, chosen),
                });
                if let Ok(allocation) = granted {
                    let replica = RunningUnitId { unit: hold.unit, replica };
                    trial.assume(replica, shape, hold.node, allocation);
                    given[idx] = Some(allocation);
                    n_more += 1;
                }
            }
        }
        if n_more == 0 || given.iter().flatten().all(Option::is_some) {
            return given;
        }
    }
}

/// What becomes of a hold now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Its victims are still there, or it gathers.
    Waits,
    /// They have left, or all is gathered.
    Ready,
    Ends(&'static str),
}

/// Columns in order of ordinals; those of nothing but 0 are empty.
fn tidy(mut bind: Bind) -> Bind {
    let mut order: Vec<usize> = (0..bind.ordinals.len()).collect();
    order.sort_unstable_by_key(|idx| bind.ordinals[*idx]);
    bind.ordinals = order.iter().map(|idx| bind.ordinals[*idx]).collect();
    bind.incarnations = order.iter().map(|idx| bind.incarnations[*idx]).collect();
    bind.nodes = order.iter().map(|idx| bind.nodes[*idx]).collect();
    bind.devices = order.iter().map(|idx| bind.devices[*idx]).collect();
    bind.zones = order.iter().map(|idx| bind.zones[*idx]).collect();
    if bind.incarnations.iter().all(|incarnation| *incarnation == 0) {
        bind.incarnations.clear();
    }
    if bind.devices.iter().all(|devices| devices.is_empty()) {
        bind.devices.clear();
    }
    if bind.zones.iter().all(|zones| zones.is_empty()) {
        bind.zones.clear();
    }
    bind
}
