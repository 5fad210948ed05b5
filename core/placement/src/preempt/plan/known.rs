//! What a plan knows of the units that might be preempted.

use godel_base::ids::{NodeId, UnitId};
use godel_domain::running_units::{RunningUnit, RunningUnits};
use godel_framework::plugins::victims::whole_gang::{group_minima, staying};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// What is known of a unit with candidates.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Live and not leaving.
    pub(super) n_members: usize,
    pub(super) min_member: usize,
    /// The task groups with a minimum of their own.
    pub(super) groups: SmallVec<[VictimGroup; 0]>,
    /// Looked at once it matters.
    pub(super) members: Option<UnitMembers>,
    /// How many leave by this plan.
    pub(super) n_gone: usize,
}

/// A task group of a unit with candidates.
#[derive(Clone, Copy, Debug)]
pub(super) struct VictimGroup {
    pub(super) group: u16,
    /// Live and not leaving, by this plan or otherwise.
    pub(super) n_members: usize,
    pub(super) min_member: usize,
}

/// All of a unit that is live and not leaving.
#[derive(Clone, Debug)]
pub(super) struct UnitMembers {
    /// Ordinal, node.
    pub(super) all: Vec<(u32, NodeId)>,
    /// The unit may leave whole.
    pub(super) may_leave: bool,
}

/// Of a unit that is not known.
pub(super) static NOBODY: UnitMembers = UnitMembers { all: Vec::new(), may_leave: false };

/// How many more may leave before a unit is worth nothing, as its running units are gone through.
#[derive(Clone, Debug)]
pub(super) struct Spare {
    total: usize,
    of_groups: SmallVec<[(u16, usize); 0]>,
}

/// Live running units of a unit that do not leave, without those that decisions under way have leave: the binder counts them as gone, or
/// waits for that.
pub(super) fn unclaimed<'a>(
    unit: UnitId,
    rows: &'a RunningUnits,
    claimed: &'a FxHashSet<(UnitId, u32)>,
) -> impl Iterator<Item = (u32, &'a RunningUnit)> {
    staying(rows).filter(move |(ordinal, _)| !claimed.contains(&(unit, *ordinal)))
}

/// The task groups of a unit that have a minimum of their own, without those that decisions under way have leave.
pub(super) fn known_groups(
    unit: UnitId,
    rows: &RunningUnits,
    claimed: &FxHashSet<(UnitId, u32)>,
) -> SmallVec<[VictimGroup; 0]> {
    let of_group = |(group, min_member)| {
        let members = unclaimed(unit, rows, claimed).filter(|(_, row)| row.group == group);
        VictimGroup { group, n_members: members.count(), min_member }
    };
    group_minima(rows).map(of_group).collect()
}

impl Known {
    /// How many more may leave before the unit is worth nothing, whatever their task groups are.
    pub(super) fn least_spare(&self) -> usize {
        let of_groups = self.groups.iter().map(VictimGroup::spare);
        of_groups.fold(self.total_spare(), usize::min)
    }

    /// How many more may leave before the unit is worth nothing.
    pub(super) fn spare(&self) -> Spare {
        let of_groups = self.groups.iter().map(|group| (group.group, group.spare()));
        Spare { total: self.total_spare(), of_groups: of_groups.collect() }
    }

    /// Whether the unit cannot do without running units of these task groups.
    pub(super) fn is_broken_by(&self, mut leaving: impl Iterator<Item = u16>) -> bool {
        let mut spare = self.spare();
        leaving.any(|group| !spare.take(group))
    }

    /// One of a task group leaves by this plan.
    pub(super) fn note_gone(&mut self, group: u16) {
        self.n_gone += 1;
        if let Some(known) = self.groups.iter_mut().find(|known| known.group == group) {
            known.n_members = known.n_members.saturating_sub(1);
        }
    }

    fn total_spare(&self) -> usize {
        self.n_members.saturating_sub(self.n_gone).saturating_sub(self.min_member)
    }
}

impl VictimGroup {
    fn spare(&self) -> usize {
        self.n_members.saturating_sub(self.min_member)
    }
}

impl Spare {
    /// Takes one of a task group. False: the unit cannot do without it.
    pub(super) fn take(&mut self, group: u16) -> bool {
        let of_group = self.of_groups.iter_mut().find(|(known, _)| *known == group).map(|(_, n)| n);
        if self.total == 0 || of_group.as_ref().is_some_and(|n| **n == 0) {
            return false;
        }
        self.total -= 1;
        if let Some(n) = of_group {
            *n -= 1;
        }
        true
    }
}
