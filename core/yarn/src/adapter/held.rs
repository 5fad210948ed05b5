//! Containers of an application: what is asked for, what has a place, and what its master has not heard of.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::Arc,
};

use super::{
    AdapterTime, AllocatedContainer, CompletedContainer, MASTER, OPPORTUNISTIC, YarnAction, YarnContainer,
    request_ids::RequestIds,
};
use crate::{
    asks::{AskGroup, AskGrowth, AskKey, AskTable},
    container::{PublicContainerState, YarnContainerEffect, YarnContainerEvent, YarnContainerState},
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnContainerId},
};

/// Containers of one application, and what it asks for.
#[derive(Clone, Debug)]
pub struct AppContainers {
    application: YarnApplicationId,
    pub(super) asks: AskTable,
    by_ordinal: BTreeMap<u32, YarnContainer>,
    /// Ordinals with a place of which the master has not heard.
    fresh: VecDeque<u32>,
    ended: Vec<CompletedContainer>,
    /// The first ordinal that nobody has asked for yet.
    pub(super) next_ordinal: u32,
    /// The same of opportunistic containers.
    pub(super) next_opportunistic: u32,
    pub(super) request_ids: RequestIds,
}

impl YarnContainer {
    fn new(id: YarnContainerId, key: AskKey, node: &str) -> Self {
        let (state, exit) = (YarnContainerState::New, YarnExitStatus::INVALID);
        Self { id, key, state, node: node.to_owned(), exit, expires: None }
    }
}

impl AppContainers {
    pub(super) fn none_of(application: YarnApplicationId, label: &str) -> Self {
        let mut asks = AskTable::default();
        asks.set_label(label);
        Self {
            application,
            asks,
            by_ordinal: BTreeMap::new(),
            fresh: VecDeque::new(),
            ended: Vec::new(),
            // Ordinal 0 is the master, or stands for one that runs elsewhere.
            next_ordinal: MASTER + 1,
            next_opportunistic: OPPORTUNISTIC + 1,
            request_ids: RequestIds::default(),
        }
    }

    /// Replicas were added for an ask: these ordinals. Whether that is recorded, with a version.
    pub(super) fn opened(&mut self, growth: &AskGrowth, ordinals: Range<u32>, version: u64) -> bool {
        self.begin_after(ordinals.end);
        let id = growth.key.allocation_request_id;
        let is_recorded = self.request_ids.opened(id, ordinals.clone(), version);
        self.asks.opened(growth, ordinals);
        is_recorded
    }

    /// After a start: an ordinal that a unit has, with its group, and its id and node if it has a place and goes on to be the application's.
    pub(super) fn found(
        &mut self,
        ordinal: u32,
        group: AskGroup,
        place: Option<(YarnContainerId, &str)>,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        self.begin_after(ordinal.saturating_add(1));
        let Some((id, node)) = place else {
            self.request_ids.forget(ordinal);
            out.push(YarnAction::Release(self.application, vec![ordinal]));
            return;
        };
        let key = AskKey { group, allocation_request_id: self.request_ids.of(ordinal) };
        self.by_ordinal.insert(ordinal, YarnContainer::new(id, key, node));
        self.on_event(ordinal, YarnContainerEvent::Recover { has_ended: false }, 0, at, out);
    }

    /// A running unit has a place on a node, `host:port`, of a rack.
    pub(super) fn placed(
        &mut self,
        id: YarnContainerId,
        node: &str,
        rack: &str,
        expiry_ms: u64,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let Some(ordinal) = ordinal_of(id).filter(|ordinal| !self.by_ordinal.contains_key(ordinal)) else {
            return;
        };
        // Masters ask for hosts, and containers have ports too.
        let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
        let Some((key, _)) = self.asks.placed(ordinal, host, rack) else {
            // Nobody waits for it: the ask was taken back, or its master has to send it again.
            out.push(YarnAction::Release(self.application, vec![ordinal]));
            return;
        };
        self.by_ordinal.insert(ordinal, YarnContainer::new(id, key, node));
        self.on_event(ordinal, YarnContainerEvent::Start, expiry_ms, at, out);
    }

    /// A running unit has ended, whether it had a place or not.
    pub(super) fn ended(
        &mut self,
        ordinal: u32,
        exit: YarnExitStatus,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let Some(container) = self.by_ordinal.get_mut(&ordinal) else { return self.forget(ordinal) };
        container.exit = exit;
        if container.state == YarnContainerState::Allocated {
            // Nobody has fetched it: another one comes in its place.
            self.asks.lost(ordinal);
            self.on_event(ordinal, YarnContainerEvent::Kill, 0, at, out);
            self.settle(out);
        } else {
            self.on_event(ordinal, YarnContainerEvent::Finish, 0, at, out);
        }
    }

    /// Replicas could not be added for an ask. They are tried again when it is settled next.
    pub fn not_grown(&mut self, growth: &AskGrowth) {
        self.asks.not_grown(growth);
    }

    /// Ordinals before this one, of the same unit, were asked for.
    fn begin_after(&mut self, ordinal: u32) {
        let next =
            if ordinal >= OPPORTUNISTIC { &mut self.next_opportunistic } else { &mut self.next_ordinal };
        *next = (*next).max(ordinal);
    }

    /// Nothing of an ordinal is kept.
    fn forget(&mut self, ordinal: u32) {
        self.asks.forget(ordinal);
        self.request_ids.forget(ordinal);
    }

    /// A node has started a running unit.
    pub fn started(&mut self, ordinal: u32, at: AdapterTime, out: &mut Vec<YarnAction>) {
        self.on_event(ordinal, YarnContainerEvent::Launch, 0, at, out);
    }

    fn on_event(
        &mut self,
        ordinal: u32,
        event: YarnContainerEvent,
        expiry_ms: u64,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let Some(container) = self.by_ordinal.get_mut(&ordinal) else { return };
        let Some((state, effects)) = container.state.after(event) else { return };
        container.state = state;
        for effect in effects {
            match effect {
                YarnContainerEffect::Watch => container.expires = Some(at.now.plus(expiry_ms)),
                YarnContainerEffect::Unwatch => container.expires = None,
                YarnContainerEffect::TellAllocated => self.fresh.push_back(ordinal),
                YarnContainerEffect::Stop => out.push(YarnAction::Release(self.application, vec![ordinal])),
                YarnContainerEffect::TellEnded => {
                    self.ended.push(CompletedContainer { id: container.id, exit: container.exit });
                    self.fresh.retain(|fresh| *fresh != ordinal);
                    self.asks.forget(ordinal);
                    self.request_ids.forget(ordinal);
                }
            }
        }
        if self
            .by_ordinal
            .get(&ordinal)
            .is_some_and(|container| container.state.public() == PublicContainerState::Complete)
        {
            self.by_ordinal.remove(&ordinal);
        }
    }

    /// Its master gives containers back, by id; those that it does not have are left out.
    pub(super) fn release(&mut self, ids: &[YarnContainerId], at: AdapterTime, out: &mut Vec<YarnAction>) {
        for id in ids {
            let Some(ordinal) = ordinal_of(*id) else { continue };
            let known = self.by_ordinal.get_mut(&ordinal).filter(|container| container.id == *id);
            let Some(container) = known else { continue };
            container.exit = YarnExitStatus::ABORTED;
            self.on_event(ordinal, YarnContainerEvent::Release, 0, at, out);
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
            self.on_event(ordinal, YarnContainerEvent::Acquire, expiry_ms, at, out);
            self.asks.fetched(ordinal);
            if let Some(YarnContainer { id, key, node, .. }) = self.by_ordinal.get(&ordinal).cloned() {
                allocated.push(AllocatedContainer { id, ordinal, node, key });
            }
        }
        allocated
    }

    /// Those that have a place, by ordinal.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &YarnContainer)> {
        self.by_ordinal.iter().map(|(ordinal, container)| (*ordinal, container))
    }

    /// One of them.
    pub fn get(&self, ordinal: u32) -> Option<&YarnContainer> {
        self.by_ordinal.get(&ordinal)
    }

    /// Its master knows that these have ended, or will never ask: the unit counts them no longer.
    pub(super) fn give_up_ended(&self, ended: &[CompletedContainer], out: &mut Vec<YarnAction>) {
        let ordinals: Vec<u32> = ended.iter().filter_map(|ended| ordinal_of(ended.id)).collect();
        if !ordinals.is_empty() {
            out.push(YarnAction::Release(self.application, ordinals));
        }
    }

    pub(super) fn take_ended(&mut self) -> Vec<CompletedContainer> {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn expire(&mut self, at: AdapterTime, out: &mut Vec<YarnAction>) {
        let is_due = |container: &YarnContainer| container.expires.is_some_and(|due| at.now > due);
        let due: Vec<u32> = self
            .by_ordinal
            .iter()
            .filter(|(_, container)| is_due(container))
            .map(|(ordinal, _)| *ordinal)
            .collect();
        for ordinal in due {
            if let Some(container) = self.by_ordinal.get_mut(&ordinal) {
                container.exit = YarnExitStatus::ABORTED;
            }
            self.on_event(ordinal, YarnContainerEvent::Expire, 0, at, out);
        }
    }

    /// All containers end with their attempt.
    pub(super) fn kill(&mut self, at: AdapterTime, out: &mut Vec<YarnAction>) {
        let mut fetched = Vec::new();
        for (ordinal, container) in &mut self.by_ordinal {
            container.exit = YarnExitStatus::KILLED_BY_RESOURCEMANAGER;
            if container.state == YarnContainerState::Allocated {
                fetched.push(*ordinal);
            }
        }
        // The room of what nobody has fetched goes back, too.
        if !fetched.is_empty() {
            out.push(YarnAction::Release(self.application, fetched));
        }
        let ordinals: Vec<u32> = self.by_ordinal.keys().copied().collect();
        for ordinal in ordinals {
            self.on_event(ordinal, YarnContainerEvent::Kill, 0, at, out);
        }
    }

    /// Whatever was asked for and has no place is not wanted any more: the next master asks anew.
    pub(super) fn drop_asks(&mut self, keeps_refused: bool, out: &mut Vec<YarnAction>) {
        let waiting = self.asks.clear();
        if !keeps_refused {
            self.asks.set_refused(Arc::default());
        }
        waiting.iter().for_each(|ordinal| self.request_ids.forget(*ordinal));
        if !waiting.is_empty() {
            out.push(YarnAction::Release(self.application, waiting));
        }
    }

    /// What has been fetched or runs, for a master that does not know it.
    pub(super) fn known(&self) -> Vec<AllocatedContainer> {
        let is_known = |state| matches!(state, YarnContainerState::Acquired | YarnContainerState::Running);
        let known = self.by_ordinal.iter().filter(|(_, container)| is_known(container.state));
        let shown = known.map(|(ordinal, container)| AllocatedContainer {
            id: container.id,
            ordinal: *ordinal,
            node: container.node.clone(),
            key: container.key.clone(),
        });
        shown.collect()
    }

    /// Has the unit fit what is asked for. Nothing is asked for twice.
    pub fn settle(&mut self, out: &mut Vec<YarnAction>) {
        let changes = self.asks.settle();
        for ordinal in &changes.release {
            self.forget(*ordinal);
        }
        if !changes.release.is_empty() {
            out.push(YarnAction::Release(self.application, changes.release));
        }
        if !changes.add.is_empty() {
            out.push(YarnAction::Grow(self.application, changes.add));
        }
    }
}

/// The ordinal by which a container is numbered; `None`: no container has that number.
fn ordinal_of(id: YarnContainerId) -> Option<u32> {
    u32::try_from(id.number.checked_sub(1)?).ok()
}
