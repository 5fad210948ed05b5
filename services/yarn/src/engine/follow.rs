//! The task that follows the store, leads when the lease is granted, and looks at the clock once a second.

use std::{sync::Arc, time::Duration};

use godel_core_yarn::application::PublicAppState;
use godel_core_yarn_leader::StoredApp;
use godel_domain::{change::Change, records::Record};
use godel_kit::{
    CancellationToken,
    informer::{FollowEvent, Informer},
    leader::{LeaderGrant, LeaderTerms, TermChange},
    service::Error,
};
use godel_proto::v1;
use tokio::time::interval;

use super::{Led, Shared, Term};
use crate::{keys::KeySource, metrics::StateLabel, record, rules::acls_of_launch};

/// Between looks at the clock.
const TICK: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Engine {
    pub(super) shared: Arc<Shared>,
    pub(super) follower: Informer,
    pub(super) terms: LeaderTerms,
    pub(super) keys: KeySource,
}

impl Engine {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The store cannot be followed any more, or the election is over.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut ticks = interval(TICK);
        let shared = Arc::clone(&self.shared);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                change = self.terms.changed() => match change {
                    Some(TermChange::Elected) => self.step_down(None),
                    Some(TermChange::Ended { leader }) => self.step_down(leader),
                    None if stop.is_cancelled() => break,
                    None => return Err(Error::Lease),
                },
                event = self.follower.next() => match event {
                    Some(event) => self.on_follow(event),
                    None if stop.is_cancelled() => break,
                    None => return Err(Error::Informer),
                },
                () = shared.written.notified() => {}
                _ = ticks.tick() => self.on_tick(),
            }
            if self.may_begin() {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = self.begin() => {}
                }
            }
        }
        Ok(())
    }

    fn step_down(&mut self, leader: Option<String>) {
        self.shared.run(|led, _, out| led.step_down(leader, out));
    }

    /// It is elected, has read everything up to the grant, and does not lead yet.
    fn may_begin(&self) -> bool {
        let grant = self.terms.valid_grant();
        grant.is_some_and(|grant| self.shared.led.lock().leader.may_lead(grant.since))
    }

    /// Reads every application, and leads.
    async fn begin(&mut self) {
        let Some(records) = self.terms.list(&[v1::Kind::YarnApplication]).await else { return };
        let Some(LeaderGrant { pipeline, .. }) = self.terms.valid_grant() else { return };
        let mut stored = Vec::with_capacity(records.len());
        for record in records {
            let v1::record::Record::YarnApplication(pb) = record else { continue };
            let name = pb.application.clone();
            match record::read(pb) {
                Ok((record, notes)) => {
                    let acls = acls_of_launch(&notes.launch);
                    stored.push(StoredApp { record, notes, acls });
                }
                Err(bad) => {
                    self.shared.context.metrics.records_unread.inc();
                    tracing::warn!(application = name, %bad, "an application cannot be read, and is left alone");
                }
            }
        }
        let term = Term { pipeline: pipeline.clone(), stop: CancellationToken::new() };
        self.shared.run_led(|Led { leader, term: led_by }, at, out| {
            leader.lead(stored, at, out);
            *led_by = Some(term);
        });
        self.on_tick();
    }

    fn on_follow(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Reset { .. } => {
                // What is known of units is not known any more: as after a start.
                let leader = self.terms.other_leader();
                self.shared.run(|led, _, out| led.reset(leader, out));
            }
            FollowEvent::Loaded(records) => {
                records.iter().for_each(|loaded| self.on_keys(&loaded.change));
                self.shared.run(|leader, _, _| {
                    for loaded in &records {
                        leader.load(&loaded.change, loaded.revision, loaded.create_time_ms);
                    }
                });
            }
            FollowEvent::Synced { revision } => {
                self.shared.run(|leader, at, out| leader.on_synced(revision, at, out));
            }
            FollowEvent::Committed(commit) => {
                commit.changes.iter().for_each(|change| self.on_keys(change));
                self.shared.run(|leader, at, out| leader.apply(&commit, at, out));
            }
        }
    }

    /// Hands keys to those who sign and check tokens.
    fn on_keys(&self, change: &Change) {
        if let Change::Put(Record::YarnKeys(keys)) = change {
            self.keys.on_keys(keys);
        }
    }

    fn on_tick(&mut self) {
        let shown = self.shared.run(|leader, at, out| {
            leader.tick(at, &mut rand::random, out);
            leader.leads().then(|| (leader.shown(at.wall_ms).counts(), leader.read()))
        });
        let Some(((states, n_containers), read)) = shown else { return };
        let metrics = &self.shared.context.metrics;
        for state in PublicAppState::ALL {
            let n = states.get(&state).map_or(0, |n| i64::try_from(*n).unwrap_or(i64::MAX));
            metrics.applications.get_or_create(&StateLabel { state: state.name() }).set(n);
        }
        metrics.containers.set(i64::try_from(n_containers).unwrap_or(i64::MAX));
        metrics.revision.set(read.map_or(0, |read| i64::try_from(read.0).unwrap_or(i64::MAX)));
    }
}

impl Drop for Engine {
    /// However it ends, nobody waits for it any more.
    fn drop(&mut self) {
        self.step_down(None);
    }
}
