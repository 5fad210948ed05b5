//! What a plan knows of the units that might be preempted.

use godel_domain::ids::NodeId;

/// What is known of a unit with candidates.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Live and not leaving.
    pub(super) n_members: usize,
    pub(super) min_member: usize,
    /// Looked at once it matters.
    pub(super) members: Option<UnitMembers>,
    /// How many leave by this plan.
    pub(super) n_gone: usize,
}

/// All of a unit that is live and not leaving.
#[derive(Clone, Debug)]
pub(super) struct UnitMembers {
    /// Ordinal, node.
    pub(super) all: Vec<(u32, NodeId)>,
    /// All of them may leave.
    pub(super) may_leave: bool,
}

/// Of a unit that is not known.
pub(super) static NOBODY: UnitMembers = UnitMembers { all: Vec::new(), may_leave: false };

impl Known {
    /// How many more may leave before the unit is worth nothing.
    pub(super) fn spare(&self) -> usize {
        self.n_members.saturating_sub(self.n_gone).saturating_sub(self.min_member)
    }
}
