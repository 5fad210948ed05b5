//! Requests to the binder: make running units leave that nobody wants any more.

use godel_base::ids::{StoreId, UnitId};
use godel_core_dispatcher::EvictRequest;
use godel_domain::running_units::EvictionReason;
use godel_kit::{CancellationToken, client::Directory, message::RECEIVED_BYTES_MAX};
use godel_proto::v1::{self, bind_service_client::BindServiceClient};
use tokio::sync::mpsc;

use super::EVICT_QUEUE;
use crate::convert;

/// Lease of the binder's leader.
const BINDER: &str = "binder";

/// What became of a request.
pub(super) struct EvictAnswer {
    pub(super) units: Vec<(UnitId, EvictionReason)>,
    /// Durable; otherwise to be asked again.
    pub(super) done: bool,
}

/// Starts the task that asks, one request after the other, within the retry bounds.
pub(super) fn spawn(
    directory: Directory,
    store: StoreId,
    over: CancellationToken,
) -> (mpsc::Sender<Vec<EvictRequest>>, mpsc::Receiver<EvictAnswer>) {
    let (requests, mut waiting) = mpsc::channel::<Vec<EvictRequest>>(EVICT_QUEUE);
    let (sender, answers) = mpsc::channel(EVICT_QUEUE);
    godel_kit::task::spawn("evictions", async move {
        while let Some(requests) = waiting.recv().await {
            let units = requests.iter().map(|request| (request.unit, request.reason)).collect();
            let read = requests.iter().map(|request| request.read).max().unwrap_or_default();
            let message = v1::EvictRunningUnitsRequest {
                read_revision: read.0,
                evictions: requests.into_iter().map(convert::eviction).collect(),
                store_id: store.0,
            };
            let call = directory.call_leader(BINDER, |channel| {
                let message = message.clone();
                let mut client =
                    BindServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
                async move { client.evict_running_units(message).await }
            });
            let answer = tokio::select! {
                () = over.cancelled() => return,
                answer = call => answer,
            };
            if let Err(failure) = &answer {
                tracing::info!(
                    code = ?failure.code(),
                    why = failure.message(),
                    "the binder did not take evictions, asking again later"
                );
            }
            if sender.send(EvictAnswer { units, done: answer.is_ok() }).await.is_err() {
                return;
            }
        }
    });
    (requests, answers)
}
