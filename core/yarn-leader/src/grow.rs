//! Replicas that are added to a unit of an application.
//!
//! Opportunistic containers are replicas of a unit of the best-effort pool, which is submitted with the first of them. If a unit has no room for
//! all task groups that are wanted, those that come first are added. Groups that the dispatcher has emptied in the meantime are added again.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use godel_base::ids::Revision;
use godel_core_yarn::{
    adapter::{AdapterTime, OPPORTUNISTIC},
    asks::AskGrowth,
    ids::YarnApplicationId,
};

use crate::{
    jobs::{JobWait, StepTurn},
    names::group_name,
    outbox::{AddedGroup, GroupGrowth, UnitCall, UnitCallRefusal, UnitCallRefused, YarnUnitSubmission},
    picture::ordinals_of,
    state::LeaderState,
};

/// Requests for replicas of groups of which some were emptied in the meantime.
const N_TRIES_MAX: u32 = 3;
/// So long it may take to read that a group was emptied, milliseconds.
const EMPTIED_MS: u64 = 1_000;

/// What the dispatcher was asked last.
#[derive(Clone, Debug, Default)]
enum GrowthAsked {
    #[default]
    Nothing,
    /// To have the unit.
    Unit,
    /// To have replicas, also in these groups that were there.
    Replicas(Vec<String>),
}

/// What the dispatcher has refused.
#[derive(Clone, Debug)]
enum GrowthRefused {
    ForGood(UnitCallRefused),
    /// It may take it once it was read that one of its groups was emptied.
    Perhaps(UnitCallRefused),
}

/// Replicas that are being added to one unit.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    side: u32,
    /// What is asked for in one request each, the last one first.
    lots: Vec<Vec<AskGrowth>>,
    /// A part of it was refused: what comes after it is not asked for.
    is_full: bool,
    asked: GrowthAsked,
    n_tries: u32,
    refused: Option<GrowthRefused>,
}

/// Whether one of these groups of a unit is known to be gone.
pub(crate) fn has_lost_one(state: &LeaderState, id: YarnApplicationId, side: u32, groups: &[String]) -> bool {
    let unit = state.picture.unit_of(id, side);
    unit.is_none_or(|unit| groups.iter().any(|name| ordinals_of(&unit.record, name).is_none()))
}

impl Growth {
    pub(crate) fn new(side: u32, add: Vec<AskGrowth>) -> Self {
        let (lots, asked) = (vec![add], GrowthAsked::Nothing);
        Self { side, lots, is_full: false, asked, n_tries: 0, refused: None }
    }

    /// What is to be done for the present lot.
    pub(crate) fn turn(&mut self, state: &mut LeaderState, id: YarnApplicationId) -> StepTurn {
        if self.lots.is_empty() {
            return StepTurn::Done;
        }
        let refused = |reason, why: &str| UnitCallRefused { reason, why: why.to_owned() };
        let is_emptied = match &self.asked {
            GrowthAsked::Replicas(sized) => has_lost_one(state, id, self.side, sized),
            GrowthAsked::Nothing | GrowthAsked::Unit => false,
        };
        match self.refused.take() {
            Some(GrowthRefused::Perhaps(_)) if is_emptied => {}
            Some(GrowthRefused::Perhaps(refused) | GrowthRefused::ForGood(refused)) => {
                return self.give_up(state, id, refused);
            }
            None if self.is_full => {
                let why = "others before them were refused";
                return self.give_up(state, id, refused(UnitCallRefusal::Invalid, why));
            }
            None => {}
        }
        let is_missing = self.side == OPPORTUNISTIC && state.picture.unit_of(id, self.side).is_none();
        let application = state.application(id).ok().filter(|_| is_missing);
        if let (Some((application, _)), GrowthAsked::Nothing) = (application, &self.asked) {
            let of = application.submission();
            self.asked = GrowthAsked::Unit;
            return StepTurn::Call(UnitCall::Submit(YarnUnitSubmission {
                application: id,
                side: self.side,
                user: of.user.clone(),
                queue: of.queue.clone(),
                priority: of.priority,
                master: None,
            }));
        }
        match self.replicas(state, id) {
            Some(growth) => {
                self.n_tries += 1;
                self.asked =
                    GrowthAsked::Replicas(growth.sizes.iter().map(|(name, _)| name.clone()).collect());
                StepTurn::Call(UnitCall::Grow(growth))
            }
            None => {
                let why = "its unit is not there any more";
                self.give_up(state, id, refused(UnitCallRefusal::Gone, why))
            }
        }
    }

    /// What is to be asked of the dispatcher so that the unit has the replicas of the present lot.
    fn replicas(&self, state: &mut LeaderState, id: YarnApplicationId) -> Option<GroupGrowth> {
        state.application(id).ok()?;
        let unit = state.picture.unit_of(id, self.side)?;
        let mut by_group: BTreeMap<String, VecDeque<AskGrowth>> = BTreeMap::new();
        for growth in self.lots.last()? {
            let name = group_name(&growth.group(), &growth.wish);
            by_group.entry(name).or_default().push_back(growth.clone());
        }
        let (mut sizes, mut added) = (Vec::new(), Vec::new());
        for (name, growing) in &by_group {
            let n: u32 = growing.iter().map(|growth| growth.n).fold(0, u32::saturating_add);
            let Some(first) = growing.front() else { continue };
            match ordinals_of(&unit.record, name) {
                Some(known) => {
                    let replicas = u32::try_from(known.len()).unwrap_or(u32::MAX).saturating_add(n);
                    sizes.push((name.clone(), replicas));
                }
                None => added.push(AddedGroup {
                    name: name.clone(),
                    group: first.group(),
                    wish: Arc::clone(&first.wish),
                    replicas: n,
                }),
            }
        }
        if let Some(entry) = state.entries.get_mut(&id) {
            // Ordinals are given to keys when the unit is read, before any of them can have a place.
            entry.growing = by_group.into_iter().collect();
        }
        Some(GroupGrowth { application: id, side: self.side, sizes, added })
    }

    /// The dispatcher has answered what it was asked last.
    pub(crate) fn answered(
        &mut self,
        id: YarnApplicationId,
        answer: Result<Revision, UnitCallRefused>,
        at: AdapterTime,
    ) -> StepTurn {
        match (&self.asked, answer) {
            (GrowthAsked::Unit, Ok(revision)) => StepTurn::Wait(JobWait::ReadOn(revision)),
            (_, Ok(revision)) => StepTurn::Wait(JobWait::Read(revision)),
            (GrowthAsked::Replicas(sized), Err(refused))
                if self.n_tries < N_TRIES_MAX
                    && !sized.is_empty()
                    && refused.reason == UnitCallRefusal::Invalid =>
            {
                // The dispatcher may have emptied a group of which the adapter has not read that yet.
                self.refused = Some(GrowthRefused::Perhaps(refused));
                let (side, groups) = (self.side, sized.clone());
                let until = at.now.plus(EMPTIED_MS);
                StepTurn::Wait(JobWait::GroupLost { application: id, side, groups, until })
            }
            (_, Err(refused)) => {
                self.refused = Some(GrowthRefused::ForGood(refused));
                StepTurn::Again
            }
        }
    }

    /// The replicas of the present lot were added, and read.
    pub(crate) fn grown(&mut self, state: &mut LeaderState, id: YarnApplicationId) -> StepTurn {
        self.next_lot();
        let growing = state.entries.get_mut(&id).map(|entry| std::mem::take(&mut entry.growing));
        let left: Vec<AskGrowth> =
            growing.unwrap_or_default().into_iter().flat_map(|(_, growing)| growing).collect();
        not_grown(state, id, &left);
        StepTurn::Again
    }

    /// The replicas of the present lot could not be added: a half of them may be.
    fn give_up(
        &mut self,
        state: &mut LeaderState,
        id: YarnApplicationId,
        refused: UnitCallRefused,
    ) -> StepTurn {
        let mut lot = self.next_lot();
        let is_refused = refused.reason == UnitCallRefusal::Invalid;
        if is_refused && !self.is_full && lot.len() > 1 {
            let second = lot.split_off(lot.len().div_ceil(2));
            self.lots.extend([second, lot]);
            return StepTurn::Again;
        }
        self.is_full |= is_refused;
        if let Some(entry) = state.entries.get_mut(&id) {
            entry.growing.clear();
            entry.is_growth_refused = true;
        }
        not_grown(state, id, &lot);
        StepTurn::Say("no containers could be added to the unit", refused.why)
    }

    fn next_lot(&mut self) -> Vec<AskGrowth> {
        (self.asked, self.n_tries) = (GrowthAsked::Nothing, 0);
        self.lots.pop().unwrap_or_default()
    }
}

fn not_grown(state: &mut LeaderState, id: YarnApplicationId, left: &[AskGrowth]) {
    // One that is gone wants nothing.
    let _ = state.adapter.with(id, |application, _| {
        left.iter().for_each(|growth| application.containers_mut().not_grown(growth));
    });
}
