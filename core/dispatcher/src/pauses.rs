//! Units that administrators keep from being handed out.

use std::sync::Arc;

use godel_domain::{
    ids::UnitId,
    pause::{Pause, Pauses, Scope},
    refusals::{RefusalCount, Refusals},
    sub_cluster,
    time::Millis,
};

use super::{Dispatcher, ListedRecords, Revocation, Settle, UnitEntry, Whereabouts};

impl Dispatcher {
    /// A pause's record: what is with schedulers of its scope comes back, and waits.
    pub fn on_pause(&mut self, pause: Pause, now: Millis) {
        if let Some(listed) = &mut self.listed {
            listed.pauses.insert(pause.scope.clone());
        }
        if self.pauses.put(pause) {
            self.follow_pauses(now);
        }
    }

    /// A pause's record is gone.
    pub fn on_pause_deleted(&mut self, scope: &Scope, now: Millis) {
        if self.pauses.remove(scope) {
            self.follow_pauses(now);
        }
    }

    /// Pauses in force.
    pub fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// After a list: what it did not show is over.
    pub(super) fn forget_pauses(&mut self, listed: &ListedRecords, now: Millis) {
        let known: Vec<Scope> = self.pauses.iter().map(|pause| pause.scope.clone()).collect();
        for scope in known.iter().filter(|scope| !listed.pauses.contains(*scope)) {
            self.on_pause_deleted(scope, now);
        }
    }

    /// Looks at every unit: pauses are rare.
    pub(super) fn follow_pauses(&mut self, now: Millis) {
        if self.settle == Settle::Loading {
            return;
        }
        let units: Vec<UnitId> = self.unit_ids.iter().copied().collect();
        for unit in units {
            self.refresh(unit, now);
        }
    }

    /// A unit that wants places is not handed out, and whoever has it hears so.
    pub(super) fn set_aside(&mut self, unit: UnitId, now: Millis) {
        let Some(entry) = self.units.get_mut(&unit) else { return };
        match std::mem::replace(&mut entry.place, Whereabouts::Paused) {
            Whereabouts::Dispatched(held) => self.take_back(unit, held, Revocation::Tell),
            Whereabouts::Queued(waiting) => {
                self.queues.remove(&waiting);
            }
            Whereabouts::Unsettled => {
                self.unsettled.remove(&unit);
            }
            Whereabouts::Idle | Whereabouts::Paused => {}
        }
        self.refresh_ends(unit, now);
    }

    /// Why a unit that is set aside waits.
    pub(super) fn paused(&self, entry: &UnitEntry) -> Option<Arc<Refusals>> {
        if entry.place != Whereabouts::Paused {
            return None;
        }
        let spec = &entry.spec;
        if let Some(why) = self.frozen_for(spec.id) {
            let reasons = vec![RefusalCount { plugin: "unreadable", reason: why.to_string(), nodes: 0 }];
            return Some(Arc::new(Refusals { reasons, ..Refusals::default() }));
        }
        let pause = self.pauses.keeping(&spec.queue, |key| sub_cluster::of(spec, key))?;
        let what = match &pause.scope {
            Scope::All | Scope::Preemption => "everything is paused by an administrator".to_owned(),
            Scope::Queue(path) => format!("queue {path} is paused by an administrator"),
            Scope::SubCluster(name) => format!("sub-cluster {name} is paused by an administrator"),
        };
        let reason = if pause.reason.is_empty() { what } else { format!("{what}: {}", pause.reason) };
        let reasons = vec![RefusalCount { plugin: "pause", reason, nodes: 0 }];
        Some(Arc::new(Refusals { reasons, ..Refusals::default() }))
    }
}
