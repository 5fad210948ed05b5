//! How many running units of each task group take room now that did not before, and how many of these are told to leave.

use godel_domain::running_units::{RunningUnit, RunningUnits};
use smallvec::SmallVec;

/// How many running units more (or fewer) of each task group take room, and how many of these are told to leave.
#[derive(Debug, Default)]
pub struct GroupDeltas {
    live: ByGroup,
    leaving: ByGroup,
}

#[derive(Debug, Default)]
struct ByGroup {
    /// The group that turned last: mostly the only one.
    last: (u16, i64),
    others: SmallVec<[(u16, i64); 2]>,
}

impl ByGroup {
    fn add(&mut self, group: u16, n: i64) {
        if self.last.0 != group {
            self.switch(group);
        }
        self.last.1 += n;
    }

    #[cold]
    fn switch(&mut self, group: u16) {
        let known = self.others.iter().position(|(known, _)| *known == group);
        let next = known.map_or((group, 0), |at| self.others.swap_remove(at));
        self.others.push(std::mem::replace(&mut self.last, next));
    }

    fn iter(&self) -> impl Iterator<Item = (u16, i64)> + '_ {
        self.others.iter().copied().chain([self.last]).filter(|(_, n)| *n != 0)
    }
}

impl GroupDeltas {
    /// Returns all that a unit's rows take.
    pub fn of(rows: &RunningUnits) -> Self {
        let mut turns = Self::default();
        for (_, row) in rows.live() {
            turns.live.add(row.group, 1);
            if row.eviction.is_some() {
                turns.leaving.add(row.group, 1);
            }
        }
        turns
    }

    /// Returns how many take room, by task group.
    pub fn iter(&self) -> impl Iterator<Item = (u16, i64)> + '_ {
        self.live.iter()
    }

    /// Returns how many are told to leave, by task group.
    pub fn leaving(&self) -> impl Iterator<Item = (u16, i64)> + '_ {
        self.leaving.iter()
    }

    /// A row was `before` and is `after` now.
    // Once for each row of each commit: a call costs a tenth of following it.
    #[inline(always)]
    pub(super) fn note(&mut self, before: &RunningUnit, after: &RunningUnit) {
        match (before.phase.is_live(), after.phase.is_live()) {
            (false, true) => self.live.add(after.group, 1),
            (true, false) => self.live.add(before.group, -1),
            (true, true) | (false, false) => {}
        }
        match (is_leaving(before), is_leaving(after)) {
            (false, true) => self.leaving.add(after.group, 1),
            (true, false) => self.leaving.add(before.group, -1),
            (true, true) | (false, false) => {}
        }
    }
}

/// It takes room and is told to leave.
fn is_leaving(row: &RunningUnit) -> bool {
    row.phase.is_live() && row.eviction.is_some()
}
