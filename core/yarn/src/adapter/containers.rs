//! What the cluster says of an application's running units.

use godel_base::ids::ReplicaId;

use super::{
    AdapterTerms, AdapterTime, AppContainers, MASTER, OPPORTUNISTIC, YarnAction, YarnApplication, YarnAttempt,
};
use crate::{
    asks::{AskGroup, AskGrowth, AskTable},
    attempt::AttemptEvent,
    exit_status::YarnExitStatus,
};

impl YarnAttempt {
    /// The first ordinal that this attempt has asked for, of the unit that an ordinal is of.
    pub(super) fn first(&self, ordinal: u32) -> u32 {
        if ordinal >= OPPORTUNISTIC { self.first_opportunistic } else { self.first_ordinal }
    }

    /// How the container of its master ended, as YARN says it; `None`: it has not, or is not known to.
    pub fn how_ended(&self) -> Option<String> {
        let has_ended = self.exit != YarnExitStatus::INVALID;
        has_ended.then(|| format!("AM Container for {} exited with exitCode: {}", self.id, self.exit.0))
    }
}

impl YarnApplication {
    /// Replicas were added for an ask: these ordinals.
    pub fn grown(&mut self, growth: &AskGrowth, ordinals: std::ops::Range<u32>, out: &mut Vec<YarnAction>) {
        if self.containers.opened(growth, ordinals, self.version + 1) {
            self.put(out);
        }
        // Its master may have wanted something else in the meantime.
        self.containers.settle(out);
    }

    /// After a start: an ordinal that a unit has, with its group, its node if it has a place, and how it ended if it has. What waits is released,
    /// because the master asks for it again. Whether its master heard of an end is not known: it is told again.
    pub fn found(
        &mut self,
        ordinal: u32,
        group: AskGroup,
        node: Option<&str>,
        ended: Option<YarnExitStatus>,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let is_left_over = self.state.is_over()
            || (!self.submission.keeps_containers
                && self.attempts.last().is_none_or(|attempt| ordinal < attempt.first(ordinal)));
        let place = node.filter(|_| !is_left_over).map(|node| (self.attempts.container_id(ordinal), node));
        let has_place = place.is_some();
        self.containers.found(ordinal, group, place, at, out);
        if let Some(exit) = ended.filter(|_| has_place) {
            self.containers.ended(ordinal, exit, at, out);
        }
    }

    /// A running unit has a place on a node, `host:port`, of a rack.
    pub fn placed(
        &mut self,
        replica: ReplicaId,
        node: &str,
        rack: &str,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let ReplicaId { ordinal, incarnation } = replica;
        if ordinal != MASTER {
            let id = self.attempts.container_id(ordinal);
            self.containers.placed(id, node, rack, terms.container_expiry_ms, at, out);
        } else if incarnation == self.attempts.incarnation()
            && let Some(attempt) = self.attempts.all.last_mut()
        {
            attempt.node = Some(node.to_owned());
            self.on_attempt(AttemptEvent::ContainerAllocated, terms, at, out);
        }
    }

    /// A running unit has ended, whether it had a place or not.
    pub fn ended(
        &mut self,
        replica: ReplicaId,
        exit: YarnExitStatus,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let ReplicaId { ordinal, incarnation } = replica;
        if ordinal != MASTER {
            self.containers.ended(ordinal, exit, at, out);
        } else if incarnation == self.attempts.incarnation()
            && let Some(attempt) = self.attempts.all.last_mut()
        {
            attempt.exit = exit;
            self.on_attempt(AttemptEvent::MasterEnded, terms, at, out);
        }
    }

    /// Its containers that have a place, and what it asks for.
    pub fn containers(&self) -> &AppContainers {
        &self.containers
    }

    /// The same, to be told what becomes of them.
    pub fn containers_mut(&mut self) -> &mut AppContainers {
        &mut self.containers
    }

    /// What it asks for.
    pub fn asks(&self) -> &AskTable {
        &self.containers.asks
    }
}
