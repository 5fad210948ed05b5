//! The task that follows the store, leads when the lease is granted, and looks at the clock once a second.

use std::{sync::Arc, time::Duration};

use godel_base::ids::Revision;
use godel_core_yarn::application::PublicAppState;
use godel_core_yarn_leader::StoredApp;
use godel_domain::{change::Change, records::Record};
use godel_kit::{
    CancellationToken,
    client::{Backoff, Channel},
    informer::{FollowEvent, Informer, list_page},
    lease::{Fence, Leadership},
    service::Error,
    txn::TxnPipeline,
};
use godel_proto::v1;
use prost::Message as _;
use tokio::{sync::watch, time::interval};
use tonic::Status;

use super::{Led, Shared, Term};
use crate::{keys::KeySource, metrics::StateLabel, record, rules::acls_of_launch};

/// Between looks at the clock.
const TICK: Duration = Duration::from_secs(1);
/// Records in a page of a list.
const PAGE_SIZE: u32 = 500;
/// Pauses between lists that fail.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// See the module.
pub(super) struct Engine {
    pub(super) shared: Arc<Shared>,
    pub(super) follower: Informer,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) state: Channel,
    pub(super) keys: KeySource,
    /// The grant under which it leads or is about to.
    pub(super) grant: Option<Grant>,
}

/// The lease, as granted.
#[derive(Debug)]
pub(super) struct Grant {
    fence: Fence,
    since: Revision,
    /// One for each grant: the store tells transactions apart by their numbers under it.
    pipeline: TxnPipeline,
}

impl Engine {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The store cannot be followed any more, or the election is over.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut ticks = interval(TICK);
        let shared = Arc::clone(&self.shared);
        self.on_leadership();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.leadership.changed() => match changed {
                    Ok(()) => self.on_leadership(),
                    Err(_) if stop.is_cancelled() => break,
                    Err(_) => return Err(Error::Lease),
                },
                () = lost(self.grant.as_ref()) => self.step_down(None),
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

    fn on_leadership(&mut self) {
        let leadership = self.leadership.borrow_and_update().clone();
        match leadership {
            Leadership::Leader { epoch, since, fence } => {
                if self.grant.as_ref().is_some_and(|known| known.fence.is_grant(&fence)) {
                    return;
                }
                self.step_down(None);
                tracing::info!(epoch = epoch.0, revision = since.0, "elected");
                let txn = &self.shared.context.config.txn;
                let pipeline = TxnPipeline::spawn(self.state.clone(), fence.clone(), txn);
                self.grant = Some(Grant { fence, since, pipeline });
            }
            Leadership::Standby { leader } => {
                self.grant = None;
                self.step_down(leader);
            }
        }
    }

    fn step_down(&mut self, leader: Option<String>) {
        self.shared.run(|led, _, out| led.step_down(leader, out));
        if self.grant.as_ref().is_some_and(|grant| !grant.fence.is_valid()) {
            self.grant = None;
        }
    }

    /// It is elected, has read everything up to the grant, and does not lead yet.
    fn may_begin(&self) -> bool {
        let Some(Grant { fence, since, .. }) = &self.grant else { return false };
        fence.is_valid() && self.shared.led.lock().leader.may_lead(*since)
    }

    /// Reads every application, and leads.
    async fn begin(&mut self) {
        let Some(Grant { fence, pipeline, .. }) = &self.grant else { return };
        let records = tokio::select! {
            () = fence.lost() => return,
            records = list(&self.state) => records,
        };
        let mut stored = Vec::with_capacity(records.len());
        for pb in records {
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
                let leader = match &*self.leadership.borrow() {
                    Leadership::Standby { leader } => leader.clone(),
                    Leadership::Leader { .. } => None,
                };
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

/// Every record of an application, tried until the store answers.
async fn list(state: &Channel) -> Vec<v1::YarnApplication> {
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    loop {
        match list_once(state).await {
            Ok(records) => return records,
            Err(status) => {
                tracing::debug!(code = ?status.code(), why = status.message(), "listing applications again");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

async fn list_once(state: &Channel) -> Result<Vec<v1::YarnApplication>, Status> {
    let mut records = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRecordsRequest {
            kinds: vec![v1::Kind::YarnApplication.into()],
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = list_page(state.clone(), request).await?;
        for encoded in page.records {
            match v1::Record::decode(encoded) {
                Ok(v1::Record { record: Some(v1::record::Record::YarnApplication(pb)), .. }) => {
                    records.push(pb)
                }
                Ok(_) => {}
                Err(bad) => tracing::warn!(%bad, "an application cannot be read, and is left alone"),
            }
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(records);
        }
    }
}

impl Drop for Engine {
    /// However it ends, nobody waits for it any more.
    fn drop(&mut self) {
        self.step_down(None);
    }
}

async fn lost(grant: Option<&Grant>) {
    match grant {
        Some(grant) => grant.fence.lost().await,
        None => std::future::pending().await,
    }
}
