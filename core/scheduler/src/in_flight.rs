//! Decisions in flight: those without an outcome, how many there may be, and those that were answered and not read yet.

use std::collections::BTreeMap;

use godel_base::ids::ReplicaId;
use godel_domain::decision::{Decision, GroupPlacement};

use super::{
    assigned_unit::AssignedUnit,
    picture::{Picture, Try, join_groups},
};

mod decision_window;
mod unread;

use self::decision_window::DecisionWindow;
pub(super) use self::unread::{Read, Unread};

/// Decisions that the binder has been told.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Without an outcome, by id.
    undecided: BTreeMap<u64, Decision>,
    /// With an outcome.
    pub(super) unread: Unread,
    last_id: u64,
    /// Running units in `undecided`.
    n_running_units: u64,
    window: DecisionWindow,
    /// Running units bound.
    n_placed: u64,
    /// Running units refused because another party was faster.
    n_conflicts: u64,
}

impl InFlight {
    /// Of `n_max` running units at most.
    pub(super) fn new(n_max: u32) -> Self {
        Self {
            undecided: BTreeMap::new(),
            unread: Unread::default(),
            last_id: 0,
            n_running_units: 0,
            window: DecisionWindow::new(n_max),
            n_placed: 0,
            n_conflicts: 0,
        }
    }

    /// Decides what a try has placed, if it has placed anything: it is pending no more.
    pub(super) fn decide(
        &mut self,
        picture: &mut Picture,
        assigned: &mut AssignedUnit,
        tried: Try,
        decisions: &mut Vec<Decision>,
    ) {
        if tried.n_placed == 0 {
            return;
        }
        let mut tried = tried;
        tried.groups.iter().for_each(|placement| assigned.advance(placement));
        if assigned.facts.has_volumes {
            join_groups(&mut tried.groups);
        }
        self.send(picture, assigned, tried, decisions);
    }

    /// Decides on what is pending no more.
    pub(super) fn send(
        &mut self,
        picture: &mut Picture,
        assigned: &mut AssignedUnit,
        tried: Try,
        decisions: &mut Vec<Decision>,
    ) {
        self.last_id += 1;
        let decision = Decision {
            id: self.last_id,
            unit: assigned.unit(),
            spec_revision: assigned.revision,
            nodes_as_of: picture.as_of(),
            groups: tried.groups.into_iter().filter(|group| !group.ordinals.is_empty()).collect(),
            claim: tried.claim,
        };
        let Picture { shares, placer, cluster, .. } = picture;
        cluster.keep_trial();
        shares.count_decision(assigned, &decision, &placer.templates, cluster);
        assigned.decisions.push(decision.id);
        assigned.gang.note_decided(&decision.groups);
        self.n_running_units += tried.n_placed as u64;
        self.undecided.insert(decision.id, decision.clone());
        decisions.push(decision);
    }

    /// Takes out the decision that an outcome is of; `None`: it is not known (any more).
    pub(super) fn take(&mut self, id: u64) -> Option<Decision> {
        let decision = self.undecided.remove(&id)?;
        self.n_running_units -= decision.len() as u64;
        Some(decision)
    }

    /// Counts an outcome: how many running units were decided, bound, and refused because another party was faster.
    pub(super) fn count_answers(&mut self, n_decided: usize, n_bound: usize, n_conflicts: usize) {
        self.n_placed += n_bound as u64;
        self.n_conflicts += n_conflicts as u64;
        self.window.on_answers(n_decided as u64, n_conflicts as u64);
    }

    /// Whether one more decision may be made now.
    pub(super) fn is_open(&self) -> bool {
        self.window.is_open(self.n_running_units)
    }

    /// Returns a decision without an outcome.
    pub(super) fn get(&self, id: u64) -> Option<&Decision> {
        self.undecided.get(&id)
    }

    /// Returns the id of the last decision that was made.
    pub(super) fn last_id(&self) -> u64 {
        self.last_id
    }

    /// Returns the decisions without an outcome, in order.
    pub(super) fn undecided(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.undecided.values()
    }

    /// Running units in decisions without an outcome.
    pub(super) fn n_running_units(&self) -> u64 {
        self.n_running_units
    }

    /// Running units bound so far.
    pub(super) fn n_placed(&self) -> u64 {
        self.n_placed
    }

    /// Running units refused so far because another party was faster.
    pub(super) fn n_conflicts(&self) -> u64 {
        self.n_conflicts
    }

    /// Takes out of a new assignment what decisions under way place already.
    pub(super) fn remove_decided(&self, assigned: &mut AssignedUnit) {
        let decisions = assigned.decisions.iter().filter_map(|id| self.undecided.get(id)).collect::<Vec<_>>();
        decisions.iter().for_each(|decision| assigned.gang.note_decided(&decision.groups));
        let mut decided: Vec<ReplicaId> = Vec::new();
        let of_decisions = decisions.iter().flat_map(|decision| &decision.groups);
        decided.extend(of_decisions.flat_map(GroupPlacement::replicas));
        decided.sort_unstable();
        let (again, elsewhere) = std::mem::take(&mut assigned.awaiting_hold)
            .into_iter()
            .partition(|(_, wanted)| decided.binary_search(wanted).is_ok());
        (assigned.wanted_again, assigned.awaiting_hold) = (again, elsewhere);
        for group in &mut assigned.groups {
            let (idx, again) = (group.group, &mut assigned.wanted_again);
            group.retain(|wanted| {
                let is_decided = decided.binary_search(wanted).is_ok();
                if is_decided {
                    again.push((idx, *wanted));
                }
                !is_decided
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use godel_base::ids::NodeId;
    use godel_domain::demand::Demand;

    use super::*;
    use crate::{Config, tests};

    #[test]
    fn what_is_in_flight_is_not_to_be_placed_again() {
        let mut picture = Picture::new(&Config::default(), 1);
        let (mut in_flight, mut decisions) = (InFlight::new(100), Vec::new());
        let spec = tests::unit(1, 3, 1, Demand::default());
        let mut assigned = tests::assigned(&mut picture, &spec, 1);
        in_flight.decide(&mut picture, &mut assigned, Try::default(), &mut decisions);
        assert_eq!((decisions.len(), in_flight.undecided().len()), (0, 0), "nothing has a place");
        let (ordinals, nodes) = (vec![0, 1], vec![NodeId(1), NodeId(2)]);
        let groups = vec![GroupPlacement { ordinals, nodes, ..GroupPlacement::default() }];
        let tried = Try { groups, n_placed: 2, ..Try::default() };
        in_flight.decide(&mut picture, &mut assigned, tried, &mut decisions);
        assert_eq!((assigned.pending(), in_flight.n_running_units()), (1, 2));
        let mut again = tests::assigned(&mut picture, &spec, 1);
        again.decisions = assigned.decisions.clone();
        in_flight.remove_decided(&mut again);
        assert_eq!(again.pending(), 1);
        assert_eq!(again.wanted_again, [(0, ReplicaId::new(0, 0)), (0, ReplicaId::new(1, 0))]);
        assert_eq!(in_flight.take(decisions[0].id), Some(decisions[0].clone()));
        assert_eq!((in_flight.n_running_units(), in_flight.take(decisions[0].id)), (0, None));
    }
}
