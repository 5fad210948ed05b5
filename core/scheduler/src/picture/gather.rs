//! A gang's turn: nodes on which its room is gathered as it becomes free. And the other side of it: who is admitted to what
//! others gather.

use godel_cluster::TopologyLevel;
use godel_domain::{
    decision::{Claim, GroupPlacement},
    hold::Borrower,
    ids::ReplicaId,
};
use godel_placement::gang::{self, GroupAsk};

use super::{
    Picture, Try,
    topology::{could_hold, is_one_by_one, is_placed, look_within, required_level, rules_of_parts},
};
use crate::assigned_unit::AssignedUnit;

impl Picture {
    /// Chooses nodes on which room is gathered for the next `together` running units of a gang. Nothing is assumed there.
    /// `None`: there is no such room, or what is in it goes on for good.
    pub(crate) fn gather(&mut self, assigned: &AssignedUnit, together: usize) -> Option<Try> {
        if is_one_by_one(self, assigned)
            || rules_of_parts(self, assigned).is_some()
            || is_placed(self, assigned)
            || assigned.has_volumes
        {
            // Room is gathered node by node, whatever stands on the others.
            return None;
        }
        self.cluster.keep_occupants();
        match required_level(self, assigned) {
            None => self.gather_here(assigned, together).map(|(_, tried)| tried),
            Some(level) => self.gather_in_domain(assigned, together, &level),
        }
    }

    /// The same for a gang that has to be in one domain of a level: in the domain where that is believed to take least time.
    fn gather_in_domain(
        &mut self,
        assigned: &AssignedUnit,
        together: usize,
        level: &TopologyLevel,
    ) -> Option<Try> {
        let (number, groups) = self.cluster.groups(level);
        let mut best: Option<(i64, Try)> = None;
        for group in 0..groups.len() {
            if !could_hold(self, assigned, groups.nodes(group), together) {
                continue;
            }
            look_within(self, assigned, Some((number, group)));
            let found = self.gather_here(assigned, together);
            look_within(self, assigned, None);
            if let Some((wait_ms, tried)) = found
                && best.as_ref().is_none_or(|(least, _)| wait_ms < *least)
            {
                best = Some((wait_ms, tried));
            }
        }
        best.map(|(_, tried)| tried)
    }

    /// The same on the nodes that are looked at now, with how long it is believed to take, milliseconds.
    fn gather_here(&mut self, assigned: &AssignedUnit, together: usize) -> Option<(i64, Try)> {
        let mut asks = Vec::with_capacity(assigned.groups.len());
        let mut wanted: Vec<(u16, &[ReplicaId])> = Vec::with_capacity(assigned.groups.len());
        for (work, n) in assigned.first(together) {
            let pending = &work.pending()[..n];
            if pending.is_empty() {
                continue;
            }
            let nodes = self.placer.with_room_aside(&self.cluster, work.template, false);
            let shape = self.placer.templates.get(work.template).ask.shape();
            asks.push(GroupAsk { shape, nodes, n: pending.len() });
            wanted.push((work.group, pending));
        }
        let chosen = gang::choose(&self.cluster, &asks, assigned.priority(), self.wall_ms)?;
        let place = |((group, wanted), nodes): ((u16, &[ReplicaId]), _)| GroupPlacement {
            group,
            ordinals: wanted.iter().map(|replica| replica.ordinal).collect(),
            incarnations: incarnations(wanted),
            nodes,
            devices: Vec::new(),
            zones: Vec::new(),
        };
        let tried = Try {
            groups: wanted.into_iter().zip(chosen.nodes).map(place).collect(),
            n_placed: together,
            claim: Claim::Gathering,
            ..Try::default()
        };
        Some((chosen.wait_ms, tried))
    }

    /// Whether a unit is admitted to what some gang gathers, or to a slot of a reservation.
    pub(crate) fn is_admitted_anywhere(&self, assigned: &AssignedUnit) -> bool {
        self.may_borrow(assigned) || self.has_slots(assigned)
    }

    /// Whether a unit is admitted to what some gang gathers.
    pub(crate) fn may_borrow(&self, assigned: &AssignedUnit) -> bool {
        self.cluster.is_gathering() && self.cluster.admits(&self.borrower(assigned))
    }

    /// Places a unit once more, with room that others gather.
    pub(crate) fn place_in_gathered(&mut self, assigned: &AssignedUnit, quota: usize, tried: &mut Try) {
        if self.cluster.is_gathering() && self.cluster.lift_gathered(&self.borrower(assigned), None) {
            self.undo(assigned.unit(), &tried.groups);
            *tried = self.place(assigned, quota);
            self.cluster.settle_lifted();
        }
    }

    fn borrower(&self, assigned: &AssignedUnit) -> Borrower {
        let queue = self.shares.told_apart(assigned.queue);
        Borrower {
            priority: assigned.priority(),
            pool: assigned.pool,
            active_deadline_ms: assigned.active_deadline_ms,
            leaves_after_ms: assigned.leaves_after_ms,
            queue: queue.map(|queue| self.shares.tree().shared_path(queue).clone()),
            now_ms: self.wall_ms,
        }
    }
}

/// Empty: all 0.
fn incarnations(wanted: &[ReplicaId]) -> Vec<u32> {
    let all_first = wanted.iter().all(|replica| replica.incarnation == 0);
    if all_first { Vec::new() } else { wanted.iter().map(|replica| replica.incarnation).collect() }
}
