//! Leadership: what is followed, what a leader begins with, and how it ends.

use std::time::Duration;

use godel_base::ids::UnitId;
use godel_core_rescheduler_leader::StoredMovements;
use godel_kit::{
    client::{Backoff, Channel},
    informer::{FollowEvent, list_page},
    lease::Leadership,
    txn::TxnPipeline,
};
use godel_proto::v1::{self, record::Record};
use prost::Message as _;
use tonic::Status;

use super::{Engine, ReschedulerGrant};
use crate::record;

/// Records in a page of a list.
const PAGE_SIZE: u32 = 200;
/// Pauses between lists that fail.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

impl Engine {
    pub(super) fn on_leadership(&mut self) {
        let leadership = self.leadership.borrow_and_update().clone();
        match leadership {
            Leadership::Leader { epoch, since, fence } => {
                if self.out.grant.as_ref().is_some_and(|known| known.fence.is_grant(&fence)) {
                    return;
                }
                self.step_down();
                tracing::info!(epoch = epoch.0, revision = since.0, "elected");
                let pipeline = TxnPipeline::spawn(self.state.clone(), fence.clone(), &self.config.txn);
                self.out.grant = Some(ReschedulerGrant { fence, since, pipeline });
            }
            Leadership::Standby { .. } => self.step_down(),
        }
    }

    /// Stops acting. Who leads next begins with what is recorded.
    pub(super) fn step_down(&mut self) {
        self.leader.step_down(&mut self.out);
        if self.out.grant.as_ref().is_some_and(|grant| !grant.fence.is_valid()) {
            self.out.grant = None;
        }
    }

    /// It is elected, has read everything up to the grant, and does not lead yet.
    pub(super) fn may_begin(&self) -> bool {
        let Some(ReschedulerGrant { fence, since, .. }) = &self.out.grant else { return false };
        let has_read = self.leader.picture().read().is_some_and(|read| read >= *since);
        self.leader.may_lead() && fence.is_valid() && has_read
    }

    /// Reads every movement, and leads.
    pub(super) async fn begin(&mut self) {
        let Some(ReschedulerGrant { fence, .. }) = &self.out.grant else { return };
        let records = tokio::select! {
            () = fence.lost() => return,
            records = list(&self.state) => records,
        };
        let mut stored = StoredMovements::default();
        for found in records {
            match found {
                Record::Movement(pb) => {
                    let name = pb.name.clone();
                    match record::read(pb) {
                        Ok(movement) => stored.movements.push(movement),
                        Err(why) => {
                            self.out.metrics.records_unread.inc();
                            tracing::warn!(
                                movement = name,
                                why,
                                "a movement cannot be read, and is left alone"
                            );
                        }
                    }
                }
                Record::MoveRate(pb) => {
                    let times = pb.times_ms.iter().filter_map(|time| u64::try_from(*time).ok());
                    stored.rates.push((UnitId(pb.unit_id), times.collect()));
                }
                _ => {}
            }
        }
        self.leader.lead(stored, &mut self.out);
    }

    pub(super) fn on_follow(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Reset { store } => self.leader.reset(store, &mut self.out),
            FollowEvent::Loaded(records) => {
                for loaded in &records {
                    self.leader.picture_mut().load(&loaded.change, loaded.revision, loaded.create_time_ms);
                }
            }
            FollowEvent::Synced { revision } => self.leader.picture_mut().on_synced(revision),
            FollowEvent::Committed(commit) => self.leader.picture_mut().apply(&commit),
        }
    }
}

/// Every record of the rescheduler, tried until the store answers.
async fn list(state: &Channel) -> Vec<Record> {
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    loop {
        match list_once(state).await {
            Ok(records) => return records,
            Err(status) => {
                tracing::debug!(code = ?status.code(), why = status.message(), "listing movements again");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

async fn list_once(state: &Channel) -> Result<Vec<Record>, Status> {
    let mut records = Vec::new();
    let mut page_token = String::new();
    loop {
        let kinds = vec![v1::Kind::Movement.into(), v1::Kind::MoveRate.into()];
        let request = v1::ListRecordsRequest { kinds, page_size: PAGE_SIZE, page_token };
        let page = list_page(state.clone(), request).await?;
        for encoded in page.records {
            match v1::Record::decode(encoded) {
                Ok(v1::Record { record, .. }) => records.extend(record),
                Err(bad) => {
                    tracing::warn!(%bad, "a record of the rescheduler cannot be read, and is left alone")
                }
            }
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(records);
        }
    }
}
