//! What the store keeps, as a stream of the engine's chunks: for backups.

use bytes::Bytes;
use godel_base::ids::{Revision, StoreId};
use godel_kit::{
    VERSION,
    status::{self, reason, with_info},
};
use godel_proto::v1::{self, read_store_response::Part};
use godel_store::{SnapshotStart, StorePart, StoreReadError, StoreStart};
use tonic::{Code, Status};

use super::disk_stream::{DiskMessages, blocking};
use crate::sessions::NodeSessions;

/// Refuses a revision that belongs to another store.
pub(super) fn check(hub: &NodeSessions, request: &v1::ReadStoreRequest) -> Result<(), Status> {
    let (asked, id) = (StoreId(request.store_id), hub.store_id());
    if id.may_be(asked) {
        return Ok(());
    }
    hub.metrics.refused(reason::STORE_CHANGED);
    Err(status::store_changed(asked, id))
}

/// Streams the snapshot and the log, or the log from a revision on.
pub(super) async fn run(
    hub: std::sync::Arc<NodeSessions>,
    request: v1::ReadStoreRequest,
    messages: DiskMessages<v1::ReadStoreResponse>,
) -> Result<(), Status> {
    let from = Revision(request.from_revision);
    let store = hub.store.clone();
    let refused = |error| refused(&hub, from, error);
    let mut reader = blocking(move || store.read_kept(from)).await?.map_err(refused)?;
    messages.send(message(Part::Start(start(&hub, reader.start())))).await?;
    loop {
        let part;
        (reader, part) = blocking(move || {
            let part = reader.next_part();
            (reader, part)
        })
        .await?;
        let Some(part) = part.map_err(refused)? else { return Ok(()) };
        messages.send(message(part_to_proto(part))).await?;
    }
}

fn message(part: Part) -> v1::ReadStoreResponse {
    v1::ReadStoreResponse { part: Some(part) }
}

fn start(hub: &NodeSessions, start: StoreStart) -> v1::StoreStart {
    let StoreStart { snapshot, first, last } = start;
    v1::StoreStart {
        store_id: hub.store_id().0,
        first_revision: first.0,
        last_revision: last.0,
        snapshot: snapshot.map(|SnapshotStart { base, previous_crc, manifest }| v1::StoreSnapshot {
            base_revision: base.0,
            previous_crc,
            attempt: manifest.attempt,
            pieces: manifest.n_pieces,
            crc: manifest.crc,
            end_revision: manifest.end_revision,
            bytes: manifest.bytes,
        }),
        now_ms: hub.wall_ms(),
        version: VERSION.to_owned(),
        engine: hub.store.engine().to_owned(),
    }
}

fn part_to_proto(part: StorePart) -> Part {
    let chunks =
        |chunks: Vec<Bytes>| v1::StoreChunks { chunks: chunks.iter().map(|chunk| chunk.to_vec()).collect() };
    match part {
        StorePart::Snapshot(of) => Part::Snapshot(chunks(of)),
        StorePart::Log(of) => Part::Log(chunks(of)),
    }
}

fn refused(hub: &NodeSessions, from: Revision, error: StoreReadError) -> Status {
    match error {
        StoreReadError::Compacted { floor } => {
            hub.metrics.refused(reason::COMPACTED);
            status::compacted(floor.0)
        }
        StoreReadError::Future { last } => {
            hub.metrics.refused(reason::FUTURE_REVISION);
            status::future_revision(from, last)
        }
        StoreReadError::Dropped { base } => {
            let message = format!("{}: ask again", StoreReadError::Dropped { base });
            with_info(Code::Aborted, reason::COMPACTED, message, [("base", base.to_string())])
        }
        StoreReadError::Log(error) => {
            tracing::warn!(%error, from = from.0, "the store cannot be read for a backup");
            Status::data_loss(format!("the store cannot be read: {error}"))
        }
    }
}
