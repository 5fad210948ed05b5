//! How far the first binding of a unit is: what counts towards its minima, and what decisions under way may add.

use godel_domain::{
    decision::{Decision, GroupPlacement},
    lifecycle::{self, GangTerms},
    running_units::RunningUnits,
};

/// Progress of a unit, and of its task groups, towards their minima.
#[derive(Clone, Debug)]
pub(crate) struct GangProgress {
    /// The unit's minimum size and what happens below it.
    terms: GangTerms,
    /// Known number of bound running units.
    pub(crate) bound: u32,
    /// Number of running units in decisions that the binder has not answered.
    in_flight: u32,
    /// The same for each task group with a minimum of its own, in the order of [`GangTerms::groups`].
    groups: Vec<GroupProgress>,
}

/// Progress of a task group with a minimum of its own.
#[derive(Clone, Copy, Debug, Default)]
struct GroupProgress {
    bound: usize,
    in_flight: usize,
}

impl GangProgress {
    pub(crate) fn new(terms: GangTerms) -> Self {
        let groups = vec![GroupProgress::default(); terms.groups().len()];
        Self { terms, bound: 0, in_flight: 0, groups }
    }

    /// Returns the number of replicas that must be placed together before any of them is bound.
    pub(crate) fn lacking(&self) -> u32 {
        let n = self.terms.min_member.saturating_sub(self.bound.saturating_add(self.in_flight));
        if self.groups.is_empty() {
            return n;
        }
        let of_groups: usize = self.group_lacks().map(|(_, n)| n).sum();
        n.max(u32::try_from(of_groups).unwrap_or(u32::MAX))
    }

    /// Whether some task group has a minimum of its own.
    pub(crate) fn has_group_minima(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns the task groups that lack something of a minimum of their own, and how many replicas each of them lacks.
    pub(crate) fn group_lacks(&self) -> impl Iterator<Item = (u16, usize)> {
        self.terms.groups().iter().zip(&self.groups).filter_map(|(minimum, progress)| {
            let n = (minimum.min_member as usize).saturating_sub(progress.bound + progress.in_flight);
            (n > 0).then_some((minimum.group, n))
        })
    }

    /// Counts rows towards the minima, as the binder does. If nobody of a gang is left, nothing else counts.
    pub(crate) fn count_rows(&mut self, rows: &RunningUnits) {
        if lifecycle::has_left(rows, &self.terms) {
            self.forget_bound();
        } else if self.lacking() == 0 {
            return;
        }
        let counted = lifecycle::counted(rows, &self.terms);
        self.bound = self.bound.max(u32::try_from(counted.total).unwrap_or(u32::MAX));
        for (progress, n) in self.groups.iter_mut().zip(counted.of_groups()) {
            progress.bound = progress.bound.max(n);
        }
    }

    /// What was bound has to come back whole.
    pub(crate) fn forget_bound(&mut self) {
        self.bound = 0;
        self.groups.iter_mut().for_each(|progress| progress.bound = 0);
    }

    /// Counts the replicas of a decision that the binder has yet to answer.
    pub(crate) fn note_decided(&mut self, placements: &[GroupPlacement]) {
        for placement in placements {
            let n = placement.ordinals.len();
            self.in_flight = self.in_flight.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
            if let Some(progress) = self.group_mut(placement.group) {
                progress.in_flight += n;
            }
        }
    }

    /// Counts what is bound of a decision that the binder has answered. `n_refused`: how many replicas of a task group are not.
    pub(crate) fn note_answered(
        &mut self,
        decision: &Decision,
        n_bound: usize,
        n_refused: impl Fn(u16) -> usize,
    ) {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.in_flight = self.in_flight.saturating_sub(count(decision.len()));
        self.bound = self.bound.saturating_add(count(n_bound));
        for placement in &decision.groups {
            let Some(progress) = self.group_mut(placement.group) else { continue };
            let n = placement.ordinals.len();
            progress.in_flight = progress.in_flight.saturating_sub(n);
            progress.bound += if n_bound > 0 { n.saturating_sub(n_refused(placement.group)) } else { 0 };
        }
    }

    fn group_mut(&mut self, group: u16) -> Option<&mut GroupProgress> {
        let at = self.terms.groups().iter().position(|minimum| minimum.group == group)?;
        self.groups.get_mut(at)
    }
}
