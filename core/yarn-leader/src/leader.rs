//! The leader itself: what it follows, when it leads, and what it writes.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_core_yarn::{adapter::AdapterTime, ids::YarnApplicationId};
use godel_domain::{
    change::{Change, Commit},
    records::Record,
    yarn_keys::YARN_SECRET_LEN,
};

use crate::{
    access::AdapterRules,
    config::YarnLeaderConfig,
    follow::{replay, tell},
    outbox::{StoredApp, YarnNote, YarnOrder},
    shown::YarnShown,
    state::{AppEntry, LeaderRole},
    work::YarnWork,
};

#[cfg(test)]
mod tests;

/// Ticks until replicas that the dispatcher has refused are asked for again.
const N_TICKS_REFUSED: u32 = 10;

/// The leading adapter, or one that follows to lead next. `C` is a client that waits for an answer, `M` a master that registers.
#[derive(Debug)]
pub struct YarnLeader<C, M> {
    pub(crate) work: YarnWork<C, M>,
    n_ticks: u32,
}

/// What it follows, and when it leads.
impl<C, M> YarnLeader<C, M> {
    /// One that stands by and knows nothing.
    pub fn new(config: YarnLeaderConfig, rules: AdapterRules, started_ms: i64) -> Self {
        Self { work: YarnWork::new(config, rules, started_ms), n_ticks: 0 }
    }

    /// What it has under way, to hear the answers to its orders.
    pub fn work(&mut self) -> &mut YarnWork<C, M> {
        &mut self.work
    }

    /// What is shown of it now, and who may do what.
    pub fn shown(&self, now_ms: i64) -> YarnShown<'_> {
        YarnShown { state: &self.work.state, now_ms }
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.work.state.leads()
    }

    /// The revision up to which it has read; `None` while a list is read.
    pub fn read(&self) -> Option<Revision> {
        self.work.state.picture.read
    }

    /// Whether the records that it leads with may be read now: it does not lead, has read the store up to a revision, nothing that it wrote
    /// is on its way, and it has not lost track of that since the last tick.
    pub fn may_lead(&self, since: Revision) -> bool {
        let has_read = self.read().is_some_and(|read| read >= since);
        has_read && !self.leads() && self.work.left_over.is_none() && !self.work.awaits_tick
    }

    /// Stops acting; `Some`: another one leads, there. What was not recorded is forgotten: nobody was told of it.
    pub fn step_down(&mut self, leader: Option<String>, out: &mut Vec<YarnOrder<C, M>>) {
        self.work.step_down(leader, out);
    }

    /// Leads, with what those before it have recorded.
    pub fn lead(&mut self, stored: Vec<StoredApp>, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        self.work.step_down(None, out);
        let state = &mut self.work.state;
        let (mut actions, mut last_timestamp) = (Vec::new(), 0);
        for StoredApp { record, notes, acls } in stored {
            last_timestamp = last_timestamp.max(record.id.cluster_timestamp);
            state.entries.insert(record.id, AppEntry::new(notes, acls, record.version));
            state.adapter.recover(record, at, &mut actions);
        }
        // No id is given twice: not those of an earlier leader, even if the clock went back.
        state.cluster_timestamp = at.wall_ms.max(last_timestamp.saturating_add(1));
        state.next_number = 1;
        let ids: Vec<YarnApplicationId> = state.entries.keys().copied().collect();
        for id in ids {
            replay(state, id, at, &mut actions);
        }
        state.picture.sum_up();
        state.role = LeaderRole::Leading;
        out.push(YarnOrder::Note(YarnNote::Leads(state.entries.len())));
        self.work.settle(actions, at, out);
    }

    /// A list of everything follows: what is known of units is not known any more, as after a start.
    pub fn reset(&mut self, leader: Option<String>, out: &mut Vec<YarnOrder<C, M>>) {
        self.work.step_down(leader, out);
        self.work.state.picture.reset();
    }

    /// Takes one record of the list.
    pub fn load(&mut self, change: &Change, revision: Revision, created_ms: i64) {
        if let Change::Put(Record::YarnKeys(keys)) = change {
            self.work.state.keys.on_keys(keys);
        }
        self.work.state.picture.apply(change, revision, created_ms);
    }

    /// The list is read, as of a revision.
    pub fn on_synced(&mut self, revision: Revision, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        self.work.state.picture.read = Some(revision);
        self.work.go_on(at, out);
    }

    /// Takes one commit.
    pub fn apply(&mut self, commit: &Commit, at: AdapterTime, out: &mut Vec<YarnOrder<C, M>>) {
        for change in &commit.changes {
            let state = &mut self.work.state;
            if let Change::Put(Record::YarnKeys(keys)) = change {
                state.keys.on_keys(keys);
                state.are_keys_written = false;
            }
            let events = state.picture.apply(change, commit.revision, commit.time_ms);
            // A standby only follows.
            if let Some((id, events)) = events.filter(|(_, events)| !events.is_empty() && state.leads()) {
                let mut actions = Vec::new();
                events.into_iter().for_each(|event| tell(state, id, event, at, &mut actions));
                self.work.settle(actions, at, out);
            }
        }
        self.work.state.picture.read = Some(commit.revision);
        self.work.go_on(at, out);
    }

    /// Looks at the clock, once a second. Keys that are due are made from `secret`.
    pub fn tick(
        &mut self,
        at: AdapterTime,
        secret: &mut dyn FnMut() -> [u8; YARN_SECRET_LEN],
        out: &mut Vec<YarnOrder<C, M>>,
    ) {
        self.n_ticks = self.n_ticks.wrapping_add(1);
        self.work.awaits_tick = false;
        let state = &mut self.work.state;
        state.picture.forget_over(state.config.completed_max);
        state.picture.sum_up();
        if !state.leads() {
            return;
        }
        let mut actions = Vec::new();
        state.adapter.set_racks(Arc::clone(&state.picture.places.racks));
        state.adapter.tick(at, &mut actions);
        state.renew_keys(at, secret);
        state.forget_oldest();
        if self.n_ticks.is_multiple_of(N_TICKS_REFUSED) {
            state.ask_again(&mut actions);
        }
        self.work.settle(actions, at, out);
        self.work.go_on(at, out);
        self.work.end_late_changes(at, out);
        self.work.look(out);
    }
}
