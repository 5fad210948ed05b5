//! Leadership: what is followed, what a leader begins with, and how it ends.

use std::time::Duration;

use godel_base::ids::UnitId;
use godel_core_rescheduler::MovementDriver;
use godel_domain::requested_move::MOVEMENT_LEN_MAX;
use godel_kit::{
    client::{Backoff, Channel},
    informer::{FollowEvent, list_page},
    lease::Leadership,
    status,
    txn::TxnPipeline,
};
use godel_proto::v1::{self, record::Record};
use prost::Message as _;
use tonic::Status;

use super::{Driven, Engine, Grant, Term};
use crate::record;

/// Records in a page of a list.
const PAGE_SIZE: u32 = 200;
/// Pauses between lists that fail.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
const _: () = assert!(MOVEMENT_LEN_MAX >= 63 + 1 + 16, "the name of a policy and a number fit");

impl Engine {
    pub(super) fn on_leadership(&mut self) {
        let leadership = self.parts.leadership.borrow_and_update().clone();
        match leadership {
            Leadership::Leader { epoch, since, fence } => {
                if self.grant.as_ref().is_some_and(|known| known.fence.is_grant(&fence)) {
                    return;
                }
                self.step_down();
                tracing::info!(epoch = epoch.0, revision = since.0, "elected");
                let pipeline = TxnPipeline::spawn(self.state.clone(), fence.clone(), &self.parts.config.txn);
                self.grant = Some(Grant { fence, since, pipeline });
            }
            Leadership::Standby { .. } => self.step_down(),
        }
    }

    /// Stops acting. Who leads next begins with what is recorded.
    pub(super) fn step_down(&mut self) {
        if self.term.take().is_some() {
            tracing::info!("no longer the leader");
        }
        let refused = self.not_leading();
        for job in self.jobs.drain(..) {
            job.refuse(refused.clone());
        }
        self.after_record.drain(..).for_each(|answer| answer(Some(refused.clone())));
        if self.grant.as_ref().is_some_and(|grant| !grant.fence.is_valid()) {
            self.grant = None;
        }
        self.parts.metrics.leader.set(0);
    }

    /// Why it does nothing: somebody else leads, or it has not read enough yet.
    pub(super) fn not_leading(&self) -> Status {
        match &*self.parts.leadership.borrow() {
            Leadership::Standby { leader } => status::not_leader(leader.as_deref()),
            Leadership::Leader { .. } => Status::unavailable("the rescheduler has not read the store yet"),
        }
    }

    /// It is elected, has read everything up to the grant, and does not lead yet.
    pub(super) fn may_begin(&self) -> bool {
        let Some(Grant { fence, since, .. }) = &self.grant else { return false };
        self.term.is_none() && fence.is_valid() && self.picture.read.is_some_and(|read| read >= *since)
    }

    /// Reads every movement, and leads.
    pub(super) async fn begin(&mut self) {
        let Some(Grant { fence, .. }) = &self.grant else { return };
        let records = tokio::select! {
            () = fence.lost() => return,
            records = list(&self.state) => records,
        };
        let mut term = Term::default();
        self.manager.forget_all_moves();
        for found in records {
            match found {
                Record::Movement(pb) => {
                    let name = pb.name.clone();
                    match record::read(pb) {
                        Ok(movement) => {
                            term.movements.insert(movement.number, movement);
                        }
                        Err(why) => {
                            self.parts.metrics.records_unread.inc();
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
                    self.manager.load_moves(UnitId(pb.unit_id), times.collect::<Vec<_>>());
                }
                _ => {}
            }
        }
        let n_movements = term.movements.len();
        let open = term.movements.values().find(|movement| !movement.is_ended()).cloned();
        if let Some(movement) = open {
            tracing::info!(movement = movement.name, "goes on");
            term.driven = Some(Driven::of_record(movement));
        }
        self.term = Some(term);
        self.parts.metrics.leader.set(1);
        tracing::info!(n_movements, "leading");
    }

    pub(super) fn on_follow(&mut self, event: FollowEvent) {
        match event {
            FollowEvent::Reset { store } => {
                // What is known of running units is not known any more: as after a start.
                self.step_down();
                let key = self.parts.config.sub_cluster_key.clone();
                self.picture.reset(store, &key);
            }
            FollowEvent::Loaded(records) => {
                for loaded in &records {
                    self.picture.load(&loaded.change, loaded.revision, loaded.create_time_ms);
                }
            }
            FollowEvent::Synced { revision } => {
                self.picture.read = self.picture.read.max(Some(revision));
            }
            FollowEvent::Committed(commit) => self.picture.apply(&commit),
        }
    }
}

impl Driven {
    pub(super) fn of_record(movement: godel_core_rescheduler::MovementRecord) -> Self {
        let recorded = Some(movement.clone());
        let driver = MovementDriver::new(movement);
        Self { driver, recorded, is_replanned: false, next_ms: None }
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
