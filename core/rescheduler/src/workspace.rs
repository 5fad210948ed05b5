//! Where an algorithm works: a layout, the goal of its policy, and everything that may refuse a move.

use std::collections::BTreeMap;

use godel_domain::allocation::DeviceSet;

use crate::{
    filters::Filters,
    goal::{EPSILON, Goal},
    layout::{Layout, LayoutMark, NodeIdx, RunIdx},
    policy::PlanRefusal,
};

/// What bounds the moves of one plan.
#[derive(Clone, Debug, Default)]
pub struct PlanLimits {
    /// Most running units moved.
    pub n_moves_max: usize,
    /// Whether each running unit of the snapshot may be moved; one that is missing may.
    pub movable: Vec<bool>,
    /// Whether running units may be sent to each node of the snapshot, or away from it; one that is missing may be used.
    pub in_scope: Vec<bool>,
    /// Whether each node of the snapshot is hot by load that is not its running units': nothing is sent there. One that is missing is not.
    pub busy: Vec<bool>,
    /// How many replicas each unit of the snapshot may still have moved; one that is missing has no such limit.
    pub owner_left: Vec<u32>,
    /// What choices at random follow from.
    pub seed: u64,
}

impl PlanLimits {
    /// Returns limits that only bound the number of moves.
    pub fn of_moves(n_moves_max: usize) -> Self {
        Self { n_moves_max, ..Self::default() }
    }
}

/// How many moves were tried and refused, by what refused them.
pub type MoveRefusals = BTreeMap<PlanRefusal, u64>;

/// A layout that a policy works on.
pub struct Workspace<'a> {
    layout: Layout<'a>,
    goal: Box<dyn Goal + 'a>,
    checks: Vec<(&'static str, Box<dyn Goal + 'a>)>,
    filters: &'a dyn Filters,
    limits: &'a PlanLimits,
    refusals: MoveRefusals,
}

impl<'a> Workspace<'a> {
    /// Returns a workspace on a layout. The goals were made for this layout as it is.
    pub fn new(
        layout: Layout<'a>,
        goal: Box<dyn Goal + 'a>,
        checks: Vec<(&'static str, Box<dyn Goal + 'a>)>,
        filters: &'a dyn Filters,
        limits: &'a PlanLimits,
    ) -> Self {
        Self { layout, goal, checks, filters, limits, refusals: MoveRefusals::new() }
    }

    /// Returns the layout as it is now.
    pub fn layout(&self) -> &Layout<'a> {
        &self.layout
    }

    /// Returns the policy's goal.
    pub fn goal(&self) -> &dyn Goal {
        &*self.goal
    }

    /// Returns what bounds the moves.
    pub fn limits(&self) -> &'a PlanLimits {
        self.limits
    }

    /// Returns how many moves were refused by what.
    pub fn refusals(&self) -> &MoveRefusals {
        &self.refusals
    }

    /// Returns the layout, which ends the work.
    pub fn into_layout(self) -> Layout<'a> {
        self.layout
    }

    /// Whether a running unit may be moved at all: it is not protected and its node is in the scope of the policy.
    pub fn is_movable(&self, unit: RunIdx) -> bool {
        self.limits.movable.get(unit.idx()).copied().unwrap_or(true)
            && self.is_in_scope(self.layout.home(unit))
    }

    /// Whether a node is in the scope of the policy.
    pub fn is_in_scope(&self, node: NodeIdx) -> bool {
        self.limits.in_scope.get(node.idx()).copied().unwrap_or(true)
    }

    /// Whether a running unit may be moved, and the plan may have one move more or has moved it already.
    pub fn may_still_move(&self, unit: RunIdx) -> bool {
        let is_full = self.layout.n_moved() >= self.limits.n_moves_max;
        self.is_movable(unit) && (!is_full || self.layout.is_moved(unit))
    }

    /// Returns what refuses a move for which there is room; `None`: nothing.
    pub fn refusal(&self, unit: RunIdx, to: NodeIdx) -> Option<PlanRefusal> {
        let refusal = self.own_refusal(unit, to, self.limits.n_moves_max);
        refusal.or_else(|| self.check_refusal(unit, to))
    }

    fn own_refusal(&self, unit: RunIdx, to: NodeIdx, n_moves_max: usize) -> Option<PlanRefusal> {
        if !self.is_movable(unit) {
            return Some(PlanRefusal::Protected);
        }
        let home = self.layout.home(unit);
        if to == home {
            return None;
        }
        if !self.is_in_scope(to) {
            return Some(PlanRefusal::Scope);
        }
        if self.limits.busy.get(to.idx()).copied().unwrap_or(false) {
            return Some(PlanRefusal::OtherLoad);
        }
        if self.layout.node_of(unit) == home {
            if self.layout.n_moved() >= n_moves_max {
                return Some(PlanRefusal::PlanLimit);
            }
            let owner = self.layout.owner(unit);
            let left = self.limits.owner_left.get(owner.idx()).copied().unwrap_or(u32::MAX);
            if self.layout.n_moved_of(owner) >= left {
                return Some(PlanRefusal::OwnerRate);
            }
        }
        (!self.filters.admits(&self.layout, unit, to)).then_some(PlanRefusal::Filters)
    }

    fn check_refusal(&self, unit: RunIdx, to: NodeIdx) -> Option<PlanRefusal> {
        self.checks.iter().find_map(|(name, check)| {
            let point = check.objection(&self.layout, unit, to)?;
            Some(PlanRefusal::Check(name, point))
        })
    }

    /// Whether a running unit has room on a node and nothing refuses the move.
    pub fn may_move(&self, unit: RunIdx, to: NodeIdx) -> bool {
        to != self.layout.node_of(unit) && self.layout.has_room(unit, to) && self.refusal(unit, to).is_none()
    }

    /// Returns by how much a move would change the policy's objective; below zero is better.
    pub fn change(&self, unit: RunIdx, to: NodeIdx) -> f64 {
        self.goal.change(&self.layout, unit, to)
    }

    /// Moves a running unit if it has room and nothing refuses; says whether it moved.
    pub fn try_move(&mut self, unit: RunIdx, to: NodeIdx) -> bool {
        self.try_move_within(unit, to, self.limits.n_moves_max)
    }

    /// Like [`try_move`](Self::try_move), with another limit on the moves of the plan, as inside an exchange.
    pub(crate) fn try_move_within(&mut self, unit: RunIdx, to: NodeIdx, n_moves_max: usize) -> bool {
        let from = self.layout.node_of(unit);
        if to == from || !self.layout.has_room(unit, to) {
            return false;
        }
        let refusal = self.own_refusal(unit, to, n_moves_max).or_else(|| self.check_refusal(unit, to));
        if let Some(refusal) = refusal {
            *self.refusals.entry(refusal).or_default() += 1;
            return false;
        }
        if !self.layout.relocate(unit, to) {
            return false;
        }
        self.tell_goals(unit, from, to);
        true
    }

    /// Lets two running units change places if both have room then and nothing refuses; says whether they did.
    pub fn try_exchange(&mut self, one: RunIdx, other: RunIdx) -> bool {
        let (here, there) = (self.layout.node_of(one), self.layout.node_of(other));
        if here == there {
            return false;
        }
        let Some(there_devices) = self.devices_instead(one, there, other) else { return false };
        let Some(here_devices) = self.devices_instead(other, here, one) else { return false };
        let mark = self.mark();
        for (unit, from, to, devices) in
            [(one, here, there, there_devices), (other, there, here, here_devices)]
        {
            if let Some(refusal) = self.refusal(unit, to) {
                *self.refusals.entry(refusal).or_default() += 1;
                self.undo_to(mark);
                return false;
            }
            self.layout.force(unit, to, devices);
            self.tell_goals(unit, from, to);
        }
        true
    }

    /// Puts running units where they have room together, though maybe not one after the other; says whether nothing refused.
    /// If something did, some of them are there: the caller undoes it.
    pub(crate) fn try_reassign(&mut self, change: &[(RunIdx, NodeIdx, DeviceSet)]) -> bool {
        for (unit, to, devices) in change {
            let refusal = self.own_refusal(*unit, *to, usize::MAX).or_else(|| self.check_refusal(*unit, *to));
            if let Some(refusal) = refusal {
                *self.refusals.entry(refusal).or_default() += 1;
                return false;
            }
            let from = self.layout.node_of(*unit);
            self.layout.force(*unit, *to, *devices);
            self.tell_goals(*unit, from, *to);
        }
        self.layout.n_moved() <= self.limits.n_moves_max
    }

    /// Returns the devices that a running unit would get on a node in the place of another one.
    fn devices_instead(&self, unit: RunIdx, node: NodeIdx, gone: RunIdx) -> Option<DeviceSet> {
        let (layout, shape) = (&self.layout, self.layout.shape_of(unit));
        if layout.rooms().shape(shape).is_fixed {
            return None;
        }
        let devices = layout.rooms().fit_room(shape, node, &layout.room_without(node, &[gone]))?;
        (node != layout.home(unit) || devices == layout.home_devices(unit)).then_some(devices)
    }

    fn tell_goals(&mut self, unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        self.goal.on_moved(&self.layout, unit, from, to);
        for (_, check) in &mut self.checks {
            check.on_moved(&self.layout, unit, from, to);
        }
    }

    /// Returns the point in the history of the layout that it is at.
    pub fn mark(&self) -> LayoutMark {
        self.layout.mark()
    }

    /// Undoes every move after a mark.
    pub fn undo_to(&mut self, mark: LayoutMark) {
        while let Some(undone) = self.layout.undo_one(mark) {
            if let Some((unit, from)) = undone {
                self.tell_goals(unit, from, self.layout.node_of(unit));
            }
        }
    }

    /// Forgets the history, so that a long search needs no memory. Marks made before are void.
    pub fn forget_steps(&mut self) {
        self.layout.forget_steps();
    }

    /// Sends running units back to where the snapshot has them if the objective does not rise by that, dearest first, until no
    /// more go.
    pub fn send_home_what_gains_nothing(&mut self) {
        let mut moved: Vec<RunIdx> =
            self.layout.running().filter(|unit| self.layout.is_moved(*unit)).collect();
        moved.sort_by_key(|unit| (std::cmp::Reverse(self.layout.cost(*unit)), *unit));
        loop {
            let n_before = moved.len();
            moved.retain(|unit| {
                let home = self.layout.home(*unit);
                self.change(*unit, home) > EPSILON || !self.try_move(*unit, home)
            });
            if moved.len() == n_before {
                return;
            }
        }
    }

    /// Returns what is moved, where to, and with which devices.
    pub(crate) fn state(&self) -> Vec<(RunIdx, NodeIdx, DeviceSet)> {
        let layout = &self.layout;
        let moved = layout.running().filter(|unit| layout.is_moved(*unit));
        moved.map(|unit| (unit, layout.node_of(unit), layout.devices(unit))).collect()
    }

    /// Goes back to a state in which the workspace was. Marks made before are void.
    pub(crate) fn return_to(&mut self, state: &[(RunIdx, NodeIdx, DeviceSet)]) {
        for (unit, at, _) in self.state() {
            let home = self.layout.home(unit);
            self.layout.force(unit, home, self.layout.home_devices(unit));
            self.tell_goals(unit, at, home);
        }
        for (unit, node, devices) in state {
            let home = self.layout.home(*unit);
            self.layout.force(*unit, *node, *devices);
            self.tell_goals(*unit, home, *node);
        }
        self.layout.forget_steps();
    }
}
