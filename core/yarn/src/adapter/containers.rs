//! What the cluster says of an application's running units.

use godel_base::ids::ReplicaId;

use super::{
    AdapterTerms, AdapterTime, AllocatedContainer, CompletedContainer, MASTER, OPPORTUNISTIC, YarnAction,
    YarnApplication, YarnAttempt, YarnContainer,
};
use crate::{
    asks::{AskGroup, AskGrowth, AskKey, AskTable},
    attempt::AttemptEvent,
    container::{YarnContainerEffect, YarnContainerEvent, YarnContainerState},
    exit_status::YarnExitStatus,
    ids::YarnContainerId,
};

impl YarnAttempt {
    /// The first ordinal that this attempt has asked for, of the unit that an ordinal is of.
    fn first(&self, ordinal: u32) -> u32 {
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
        self.asks_begin_after(ordinals.end);
        let id = growth.key.allocation_request_id;
        if self.request_ids.opened(id, ordinals.clone(), self.version + 1) {
            self.put(out);
        }
        self.asks.opened(growth, ordinals);
        // Its master may have wanted something else in the meantime.
        self.settle(out);
    }

    /// Replicas could not be added for an ask. They are tried again when the application is settled next.
    pub fn not_grown(&mut self, growth: &AskGrowth) {
        self.asks.not_grown(growth);
    }

    /// Ordinals before this one, of the same unit, were asked for.
    fn asks_begin_after(&mut self, ordinal: u32) {
        let next =
            if ordinal >= OPPORTUNISTIC { &mut self.next_opportunistic } else { &mut self.next_ordinal };
        *next = (*next).max(ordinal);
    }

    /// Nothing of an ordinal is kept.
    pub(super) fn forget(&mut self, ordinal: u32) {
        self.asks.forget(ordinal);
        self.request_ids.forget(ordinal);
    }

    /// After a start: an ordinal that a unit has, with its group, and its node if it has a place. What waits is released,
    /// because the master asks for it again.
    pub fn found(
        &mut self,
        ordinal: u32,
        group: AskGroup,
        node: Option<&str>,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        self.asks_begin_after(ordinal.saturating_add(1));
        let key = AskKey { group, allocation_request_id: self.request_ids.of(ordinal) };
        let is_left_over = self.state.is_over()
            || (!self.submission.keeps_containers
                && self.attempts.last().is_none_or(|attempt| ordinal < attempt.first(ordinal)));
        match node {
            Some(node) if !is_left_over => {
                let container = YarnContainer {
                    id: self.container_id(ordinal),
                    key,
                    state: YarnContainerState::New,
                    node: node.to_owned(),
                    exit: YarnExitStatus::INVALID,
                    expires: None,
                };
                self.containers.insert(ordinal, container);
                self.on_container(ordinal, YarnContainerEvent::Recover { has_ended: false }, 0, at, out);
            }
            Some(_) | None => {
                self.request_ids.forget(ordinal);
                out.push(YarnAction::Release(self.id, vec![ordinal]));
            }
        }
    }

    /// After a start: an ordinal that had a place and has ended. Whether its master heard of the end is not known: it is told again.
    pub fn found_ended(
        &mut self,
        ordinal: u32,
        group: AskGroup,
        node: &str,
        exit: YarnExitStatus,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        self.found(ordinal, group, Some(node), at, out);
        if let Some(container) = self.containers.get_mut(&ordinal) {
            container.exit = exit;
            self.on_container(ordinal, YarnContainerEvent::Finish, 0, at, out);
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
        if Self::is_master(ordinal) {
            if incarnation == self.master_incarnation()
                && let Some(attempt) = self.attempts.last_mut()
            {
                attempt.node = Some(node.to_owned());
                self.on_attempt(AttemptEvent::ContainerAllocated, terms, at, out);
            }
            return;
        }
        if self.containers.contains_key(&ordinal) {
            return;
        }
        // Masters ask for hosts, and containers have ports too.
        let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
        let Some((key, _)) = self.asks.placed(ordinal, host, rack) else {
            // Nobody waits for it: the ask was taken back, or its master has to send it again.
            out.push(YarnAction::Release(self.id, vec![ordinal]));
            return;
        };
        let container = YarnContainer {
            id: self.container_id(ordinal),
            key,
            state: YarnContainerState::New,
            node: node.to_owned(),
            exit: YarnExitStatus::INVALID,
            expires: None,
        };
        self.containers.insert(ordinal, container);
        self.on_container(ordinal, YarnContainerEvent::Start, terms.container_expiry_ms, at, out);
    }

    /// A node has started a running unit.
    pub fn started(&mut self, ordinal: u32, at: AdapterTime, out: &mut Vec<YarnAction>) {
        self.on_container(ordinal, YarnContainerEvent::Launch, 0, at, out);
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
        if Self::is_master(ordinal) {
            if incarnation == self.master_incarnation()
                && let Some(attempt) = self.attempts.last_mut()
            {
                attempt.exit = exit;
                self.on_attempt(AttemptEvent::MasterEnded, terms, at, out);
            }
            return;
        }
        if let Some(container) = self.containers.get_mut(&ordinal) {
            container.exit = exit;
            if container.state == YarnContainerState::Allocated {
                // Nobody has fetched it: another one comes in its place.
                self.asks.lost(ordinal);
                self.on_container(ordinal, YarnContainerEvent::Kill, 0, at, out);
                self.settle(out);
            } else {
                self.on_container(ordinal, YarnContainerEvent::Finish, 0, at, out);
            }
        } else {
            self.forget(ordinal);
        }
    }

    pub(super) fn on_container(
        &mut self,
        ordinal: u32,
        event: YarnContainerEvent,
        expiry_ms: u64,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let Some(container) = self.containers.get_mut(&ordinal) else { return };
        let Some((state, effects)) = container.state.after(event) else { return };
        container.state = state;
        for effect in effects {
            match effect {
                YarnContainerEffect::Watch => container.expires = Some(at.now.plus(expiry_ms)),
                YarnContainerEffect::Unwatch => container.expires = None,
                YarnContainerEffect::TellAllocated => self.fresh.push_back(ordinal),
                YarnContainerEffect::Stop => out.push(YarnAction::Release(self.id, vec![ordinal])),
                YarnContainerEffect::TellEnded => {
                    self.ended.push(CompletedContainer { id: container.id, exit: container.exit });
                    self.fresh.retain(|fresh| *fresh != ordinal);
                    self.asks.forget(ordinal);
                    self.request_ids.forget(ordinal);
                }
            }
        }
        if self.containers.get(&ordinal).is_some_and(|container| {
            container.state.public() == crate::container::PublicContainerState::Complete
        }) {
            self.containers.remove(&ordinal);
        }
    }

    /// Its master gives containers back, by id; those that it does not have are left out.
    pub(super) fn release(&mut self, ids: &[YarnContainerId], at: AdapterTime, out: &mut Vec<YarnAction>) {
        for id in ids {
            let Some(ordinal) = ordinal_of(*id) else { continue };
            let known = self.containers.get_mut(&ordinal).filter(|container| container.id == *id);
            let Some(container) = known else { continue };
            container.exit = YarnExitStatus::ABORTED;
            self.on_container(ordinal, YarnContainerEvent::Release, 0, at, out);
        }
    }

    /// What its master has not heard of, from now on known to it.
    pub(super) fn acquire(
        &mut self,
        expiry_ms: u64,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) -> Vec<AllocatedContainer> {
        // Numbers of asks survive a restart once they are recorded.
        let (ready, later): (Vec<u32>, Vec<u32>) =
            self.fresh.iter().partition(|ordinal| self.request_ids.is_saved(**ordinal));
        self.fresh = later.into();
        let mut allocated = Vec::with_capacity(ready.len());
        for ordinal in ready {
            self.on_container(ordinal, YarnContainerEvent::Acquire, expiry_ms, at, out);
            self.asks.fetched(ordinal);
            if let Some(YarnContainer { id, key, node, .. }) = self.containers.get(&ordinal).cloned() {
                allocated.push(AllocatedContainer { id, ordinal, node, key });
            }
        }
        allocated
    }

    /// Its containers that have a place, by ordinal.
    pub fn containers(&self) -> impl Iterator<Item = (u32, &YarnContainer)> {
        self.containers.iter().map(|(ordinal, container)| (*ordinal, container))
    }

    /// One of them.
    pub fn container(&self, ordinal: u32) -> Option<&YarnContainer> {
        self.containers.get(&ordinal)
    }

    /// The container of the current master.
    pub fn current_master(&self) -> Option<YarnContainerId> {
        let attempt = self.current_attempt()?;
        Some(YarnContainerId { attempt, epoch: 0, number: u64::from(MASTER) + 1 })
    }

    /// What it asks for.
    pub fn asks(&self) -> &AskTable {
        &self.asks
    }

    /// Its master knows that these have ended, or will never ask: the unit counts them no longer.
    pub(super) fn give_up_ended(&self, ended: &[CompletedContainer], out: &mut Vec<YarnAction>) {
        let ordinals: Vec<u32> = ended.iter().filter_map(|ended| ordinal_of(ended.id)).collect();
        if !ordinals.is_empty() {
            out.push(YarnAction::Release(self.id, ordinals));
        }
    }

    pub(super) fn take_ended(&mut self) -> Vec<CompletedContainer> {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn expire_containers(&mut self, at: AdapterTime, out: &mut Vec<YarnAction>) {
        let is_due = |container: &YarnContainer| container.expires.is_some_and(|due| at.now > due);
        let due: Vec<u32> = self
            .containers
            .iter()
            .filter(|(_, container)| is_due(container))
            .map(|(ordinal, _)| *ordinal)
            .collect();
        for ordinal in due {
            if let Some(container) = self.containers.get_mut(&ordinal) {
                container.exit = YarnExitStatus::ABORTED;
            }
            self.on_container(ordinal, YarnContainerEvent::Expire, 0, at, out);
        }
    }

    /// All containers end with their attempt.
    pub(super) fn kill_containers(&mut self, at: AdapterTime, out: &mut Vec<YarnAction>) {
        let mut fetched = Vec::new();
        for (ordinal, container) in &mut self.containers {
            container.exit = YarnExitStatus::KILLED_BY_RESOURCEMANAGER;
            if container.state == YarnContainerState::Allocated {
                fetched.push(*ordinal);
            }
        }
        // The room of what nobody has fetched goes back, too.
        if !fetched.is_empty() {
            out.push(YarnAction::Release(self.id, fetched));
        }
        let ordinals: Vec<u32> = self.containers.keys().copied().collect();
        for ordinal in ordinals {
            self.on_container(ordinal, YarnContainerEvent::Kill, 0, at, out);
        }
    }

    /// Whatever was asked for and has no place is not wanted any more: the next master asks anew.
    pub(super) fn drop_asks(&mut self, out: &mut Vec<YarnAction>) {
        let waiting = self.asks.clear();
        if !self.submission.keeps_containers {
            self.asks.set_refused(std::sync::Arc::default());
        }
        waiting.iter().for_each(|ordinal| self.request_ids.forget(*ordinal));
        if !waiting.is_empty() {
            out.push(YarnAction::Release(self.id, waiting));
        }
    }

    /// An ordinal belongs to the attempt that asked for it.
    pub(super) fn container_id(&self, ordinal: u32) -> YarnContainerId {
        let asked = |attempt: &&YarnAttempt| attempt.first(ordinal) <= ordinal;
        let attempt = self.attempts.iter().rev().find(asked).or(self.attempts.first());
        let attempt = attempt
            .map_or(crate::ids::YarnAttemptId { application: self.id, number: 1 }, |attempt| attempt.id);
        YarnContainerId { attempt, epoch: 0, number: u64::from(ordinal) + 1 }
    }
}

/// The ordinal by which a container is numbered; `None`: no container has that number.
fn ordinal_of(id: YarnContainerId) -> Option<u32> {
    u32::try_from(id.number.checked_sub(1)?).ok()
}
