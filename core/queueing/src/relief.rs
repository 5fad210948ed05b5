//! What victims give up in a queue for the holds that they back.
//!
//! A hold of a unit whose queue was at a maximum counts in that queue beside the victims that have yet to leave it. Until they
//! have, it takes there only what they do not: of each resource what all such holds of the unit ask for together, less what
//! their victims below that queue take. So the queue is never above its maximum, and what a victim leaves is nobody else's.

use std::{collections::BTreeMap, sync::Arc};

use godel_base::ids::{HoldId, IdMap, IdSet, RunningUnitId, UnitId};
use godel_domain::hold::Hold;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::{Amounts, QueueIdx, Quota, at, usage::sum_of};

/// Holds that victims in a queue back, by the unit that they are for.
#[derive(Debug, Default)]
pub struct Reliefs {
    teams: IdMap<UnitId, Team>,
    /// By unit: whose teams its running units back.
    backed: IdMap<UnitId, SmallVec<[UnitId; 1]>>,
    stale: IdSet<UnitId>,
}

/// All such holds of one unit.
#[derive(Debug, Default)]
struct Team {
    queue: QueueIdx,
    holds: BTreeMap<HoldId, Arc<Hold>>,
    /// As counted last, by level.
    lent: Vec<(QueueIdx, Amounts)>,
}

impl Reliefs {
    /// A hold as it is, known or not; others than those at a maximum are of no matter.
    pub fn put(&mut self, hold: &Arc<Hold>, queue: QueueIdx) {
        if !hold.at_maximum {
            return;
        }
        let team = self.teams.entry(hold.unit).or_default();
        team.queue = queue;
        team.holds.insert(hold.id, Arc::clone(hold));
        for victim in hold.all_victims() {
            let backed = self.backed.entry(victim.unit).or_default();
            if !backed.contains(&hold.unit) {
                backed.push(hold.unit);
            }
        }
        self.stale.insert(hold.unit);
    }

    /// A hold is gone.
    pub fn remove(&mut self, hold: &Hold) {
        if hold.at_maximum
            && let Some(team) = self.teams.get_mut(&hold.unit)
        {
            team.holds.remove(&hold.id);
            self.stale.insert(hold.unit);
        }
    }

    /// Whether the running units of a unit back some of these.
    pub fn is_backed_by(&self, unit: UnitId) -> bool {
        self.backed.contains_key(&unit)
    }

    /// Rows or queue of a unit have changed.
    pub fn look_at(&mut self, unit: UnitId) {
        if let Some(backed) = self.backed.get(&unit) {
            self.stale.extend(backed.iter().copied());
        }
    }

    /// Something has to be counted anew.
    pub fn is_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Counts what has changed. `pays` says of a victim that is still there the queue that it counts in, and what it takes.
    pub fn recount(
        &mut self,
        quota: &mut Quota,
        pays: impl Fn(&Quota, &RunningUnitId) -> Option<(QueueIdx, Amounts)>,
    ) {
        for unit in std::mem::take(&mut self.stale) {
            let Some(team) = self.teams.get_mut(&unit) else { continue };
            for (level, amounts) in std::mem::take(&mut team.lent) {
                quota.usage_mut().sums_mut().lend(level, &amounts, -1);
            }
            if team.holds.is_empty() {
                self.teams.remove(&unit);
                self.backed.retain(|_, backed| {
                    backed.retain(|other| *other != unit);
                    !backed.is_empty()
                });
                continue;
            }
            team.lent = lent(quota, team.queue, &team.asked(quota), &team.victims(), &pays);
            for (level, amounts) in &team.lent {
                quota.usage_mut().sums_mut().lend(*level, amounts, 1);
            }
        }
    }

    /// What is lent for the holds of some units counts no more (`sign` -1), or again (1). Nothing may be stale.
    pub fn lend(&self, units: &[UnitId], quota: &mut Quota, sign: i128) {
        for (level, amounts) in
            units.iter().filter_map(|unit| self.teams.get(unit)).flat_map(|team| &team.lent)
        {
            quota.usage_mut().sums_mut().lend(*level, amounts, sign);
        }
    }

    /// What would be lent if so much more were held for a unit, backed by these as well: more than now, by level. Nothing may
    /// be stale.
    pub fn more(
        &self,
        quota: &Quota,
        unit: UnitId,
        queue: QueueIdx,
        asked: &[i128],
        victims: impl Iterator<Item = RunningUnitId>,
        pays: impl Fn(&Quota, &RunningUnitId) -> Option<(QueueIdx, Amounts)>,
    ) -> Vec<(QueueIdx, Amounts)> {
        let known = self.teams.get(&unit);
        let mut all = known.map(|team| team.asked(quota)).unwrap_or_default();
        sum_of(&mut all, asked, 1);
        let mut backing = known.map(Team::victims).unwrap_or_default();
        backing.extend(victims);
        let mut more = lent(quota, queue, &all, &backing, &pays);
        for (level, before) in known.into_iter().flat_map(|team| &team.lent) {
            if let Some((_, amounts)) = more.iter_mut().find(|(other, _)| other == level) {
                sum_of(amounts, before, -1);
            }
        }
        more
    }
}

impl Team {
    fn asked(&self, quota: &Quota) -> Amounts {
        let mut asked = Amounts::new();
        for hold in self.holds.values() {
            let n = i128::try_from(hold.ordinals.len()).unwrap_or(i128::MAX);
            sum_of(&mut asked, &quota.usage().amounts_of(&hold.demand), n);
        }
        asked
    }

    fn victims(&self) -> FxHashSet<RunningUnitId> {
        self.holds.values().flat_map(|hold| hold.all_victims().copied()).collect()
    }
}

/// Of each queue from one upwards what is asked there and taken by victims below it.
pub fn lent<'a>(
    quota: &Quota,
    queue: QueueIdx,
    asked: &[i128],
    victims: impl IntoIterator<Item = &'a RunningUnitId>,
    pays: impl Fn(&Quota, &RunningUnitId) -> Option<(QueueIdx, Amounts)>,
) -> Vec<(QueueIdx, Amounts)> {
    let mut given: Vec<(QueueIdx, Amounts)> =
        quota.tree().upwards(queue).map(|level| (level, Amounts::new())).collect();
    for (of, takes) in victims.into_iter().filter_map(|victim| pays(quota, victim)) {
        for (_, sum) in
            given.iter_mut().filter(|(level, _)| quota.tree().upwards(of).any(|other| other == *level))
        {
            sum_of(sum, &takes, 1);
        }
    }
    for (_, sum) in &mut given {
        sum.iter_mut().enumerate().for_each(|(idx, amount)| *amount = at(asked, idx).min(*amount));
    }
    given
}
