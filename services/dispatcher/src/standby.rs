//! What a dispatcher that does not lead knows: it follows the store, so that it has read everything when it is elected.
//!
//! Nothing is decided here. A term takes the standby with it, and when that is over the next one begins with nothing: what a leader holds beside the
//! records means nothing to another term.

use std::sync::Arc;

use godel_base::ids::{Revision, StoreId, UnitId};
use godel_core_dispatcher::{Dispatcher, FOLLOWS};
use godel_domain::{change::Commit, txn::Receipt};
use godel_kit::{
    CancellationToken,
    client::retry_idempotent,
    informer::{FollowConfig, FollowEvent, Informer, OwnWrites, Shared},
    message::RECEIVED_BYTES_MAX,
};
use godel_proto::v1::{self, state_service_client::StateServiceClient};
use godel_rules::lost_nodes;

use crate::engine::TermContext;

/// A follower of the store, and what it has read.
pub(crate) struct Standby {
    context: Arc<TermContext>,
    pub(crate) core: Dispatcher,
    pub(crate) follower: Informer,
    /// Units that a term writes, for the follower.
    pub(crate) written: OwnWrites,
    /// The store that is followed; 0 before it is known.
    pub(crate) store: StoreId,
    /// Everything up to here is known; `None` while a list is read.
    pub(crate) read: Option<Revision>,
    /// Grace of lost nodes, milliseconds, as state has said.
    pub(crate) node_grace_ms: u64,
}

impl Standby {
    /// One that has read nothing yet, and follows until `stop`.
    pub(crate) async fn begin(context: Arc<TermContext>, stop: CancellationToken) -> Self {
        let StartValues { node_grace_ms, .. } = start_values(&context).await;
        let written = OwnWrites::default();
        let shared = Shared { written: written.clone(), unread: context.unread.clone() };
        let state = context.directory.state();
        let follower = Informer::spawn_with(state, FOLLOWS, FollowConfig::default(), shared, stop);
        let core = Dispatcher::new(context.config.core(node_grace_ms));
        Self { context, core, follower, written, store: StoreId(0), read: None, node_grace_ms }
    }

    /// Takes in what the follower has read.
    pub(crate) fn on_follow(&mut self, event: FollowEvent) {
        let now = self.context.clock.now();
        match event {
            FollowEvent::Reset { store } => {
                if self.store != store {
                    // Nothing that was read means anything in another store.
                    self.core = Dispatcher::new(self.context.config.core(self.node_grace_ms));
                    self.store = store;
                }
                self.read = None;
                self.core.on_reset();
            }
            FollowEvent::Loaded(records) => {
                for record in records {
                    let created =
                        Receipt { revision: record.create_revision, time_ms: record.create_time_ms };
                    self.core.on_change(&record.change, record.revision, created, now);
                }
            }
            FollowEvent::Synced { revision } => {
                self.core.on_followed(revision, now);
                self.read = Some(revision);
            }
            FollowEvent::Committed(Commit { revision, time_ms, changes }) => {
                for change in &changes {
                    self.core.on_change(change, revision, Receipt { revision, time_ms }, now);
                }
                self.core.on_followed(revision, now);
                self.read = Some(revision);
            }
        }
        self.core.assignments_mut().forget_counts();
    }
}

/// What state says to a leader at its election, and to a standby.
pub(crate) struct StartValues {
    /// Ids up to this one were used. To a leader the answer is final: whoever led before can write no more.
    pub(crate) last_unit_id: UnitId,
    /// Grace of lost nodes, milliseconds.
    pub(crate) node_grace_ms: u64,
}

/// Asks state until it answers.
pub(crate) async fn start_values(context: &TermContext) -> StartValues {
    let policy = context.directory.policy();
    loop {
        let answer = retry_idempotent(&policy, || async {
            let mut client = StateServiceClient::new(context.directory.state())
                .max_decoding_message_size(RECEIVED_BYTES_MAX);
            client.get_store_status(v1::GetStoreStatusRequest {}).await
        })
        .await;
        match answer {
            Ok(status) => {
                let status = status.into_inner();
                let node_grace_ms = match status.node_grace_ms {
                    // A state that does not say.
                    0 => lost_nodes::Config::default().grace_ms,
                    grace_ms => grace_ms,
                };
                return StartValues { last_unit_id: UnitId(status.last_unit_id), node_grace_ms };
            }
            // The lease is lost soon if state stays away.
            Err(failure) => tracing::info!(code = ?failure.code(), "state does not answer, asking again"),
        }
    }
}
