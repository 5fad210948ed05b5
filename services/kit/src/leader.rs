//! The terms of a leader: when one begins and ends, the grant under which it writes, and the records with which it begins.

#[cfg(test)]
mod tests;

use std::time::Duration;

use godel_base::ids::Revision;
use godel_proto::v1::{self, record::Record};
use prost::Message as _;
use tokio::sync::watch;
use tonic::Status;

use crate::{
    client::{Backoff, Channel},
    config::TxnConfig,
    informer::list_page,
    lease::{Fence, Leadership},
    txn::TxnPipeline,
};

/// Records in a page of a list.
const PAGE_SIZE: u32 = 500;
/// The first and the longest pause between lists that fail.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A grant of the leader's lease.
#[derive(Clone, Debug)]
pub struct LeaderGrant {
    /// Says at any moment whether the grant is still good.
    pub fence: Fence,
    /// Store revision of the grant: the leader acts once it has read up to here.
    pub since: Revision,
    /// The writer under this grant. There is one for each: the store tells transactions apart by their numbers under a grant.
    pub pipeline: TxnPipeline,
}

/// What happened to the leadership. Whatever was led before is over with either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermChange {
    /// A grant has come: see [`LeaderTerms::grant`].
    Elected,
    /// There is no grant any more.
    Ended {
        /// Address of the holder, if somebody holds the lease and it is known.
        leader: Option<String>,
    },
}

/// Follows an election, and holds the grant of the present term.
#[derive(Debug)]
pub struct LeaderTerms {
    leadership: watch::Receiver<Leadership>,
    state: Channel,
    txn: TxnConfig,
    grant: Option<LeaderGrant>,
}

impl LeaderTerms {
    /// The terms of the election that `leadership` tells of, whose transactions go to `state`.
    pub fn new(mut leadership: watch::Receiver<Leadership>, state: Channel, txn: TxnConfig) -> Self {
        // The present leadership counts as a change.
        leadership.mark_changed();
        Self { leadership, state, txn, grant: None }
    }

    /// Waits for the next change; `None` when the election is over. No change is lost if the call is dropped.
    pub async fn changed(&mut self) -> Option<TermChange> {
        loop {
            let lost = async {
                match &self.grant {
                    Some(grant) => grant.fence.lost().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.leadership.changed() => changed.ok()?,
                () = lost => {
                    self.end();
                    return Some(TermChange::Ended { leader: None });
                }
            }
            let leadership = self.leadership.borrow_and_update().clone();
            match leadership {
                Leadership::Leader { epoch, since, fence } => {
                    if self.grant.as_ref().is_some_and(|grant| grant.fence.is_grant(&fence)) {
                        continue;
                    }
                    tracing::info!(lease = fence.lease(), epoch = epoch.0, revision = since.0, "elected");
                    let pipeline = TxnPipeline::spawn(self.state.clone(), fence.clone(), &self.txn);
                    self.grant = Some(LeaderGrant { fence, since, pipeline });
                    return Some(TermChange::Elected);
                }
                Leadership::Standby { leader } => {
                    self.end();
                    return Some(TermChange::Ended { leader });
                }
            }
        }
    }

    /// The grant of the present term, valid or not.
    pub fn grant(&self) -> Option<&LeaderGrant> {
        self.grant.as_ref()
    }

    /// The grant of the present term, if the leader may act at this moment.
    pub fn valid_grant(&self) -> Option<&LeaderGrant> {
        self.grant.as_ref().filter(|grant| grant.fence.is_valid())
    }

    /// Address of the holder, if somebody else holds the lease and it is known.
    pub fn other_leader(&self) -> Option<String> {
        match &*self.leadership.borrow() {
            Leadership::Standby { leader } => leader.clone(),
            Leadership::Leader { .. } => None,
        }
    }

    /// Gives the grant up; the next term begins with another one.
    pub fn end(&mut self) {
        if let Some(grant) = self.grant.take() {
            tracing::info!(
                lease = grant.fence.lease(),
                epoch = grant.fence.epoch().0,
                "no longer the leader"
            );
        }
    }

    /// Every record of these kinds, asked for until the store answers; `None` without a grant, or when it is lost first.
    /// What does not decode is logged and left out.
    pub async fn list(&self, kinds: &[v1::Kind]) -> Option<Vec<Record>> {
        let fence = &self.grant.as_ref()?.fence;
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
        let listed = async {
            loop {
                match list(&self.state, kinds).await {
                    Ok(records) => return records,
                    Err(status) => {
                        tracing::debug!(code = ?status.code(), why = status.message(), "listing records again");
                        tokio::time::sleep(backoff.pause()).await;
                    }
                }
            }
        };
        tokio::select! {
            () = fence.lost() => None,
            records = listed => Some(records),
        }
    }
}

async fn list(state: &Channel, kinds: &[v1::Kind]) -> Result<Vec<Record>, Status> {
    let kinds: Vec<i32> = kinds.iter().map(|kind| i32::from(*kind)).collect();
    let mut records = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListRecordsRequest { kinds: kinds.clone(), page_size: PAGE_SIZE, page_token };
        let page = list_page(state.clone(), request).await?;
        for encoded in page.records {
            match v1::Record::decode(encoded) {
                Ok(v1::Record { record, .. }) => records.extend(record),
                Err(bad) => tracing::warn!(%bad, "a record cannot be read, and is left alone"),
            }
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(records);
        }
    }
}
