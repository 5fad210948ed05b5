//! The records on which the kept history rests, as a stream.
//!
//! They are read from disk a piece at a time, each only when the one before has gone, so that a slow reader holds neither a
//! thread nor memory; one that stays away is cut off.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use godel_identity::caller::Caller;
use godel_kit::{message, status, task};
use godel_proto::v1;
use godel_store::{FloorReader, Record, Store, record::encode_record};
use godel_wire::ops::{rows_from_proto, rows_part_to_proto};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::is_shown;

/// Streams at a time.
const N_STREAMS_MAX: usize = 2;
/// When to ask again where so many are served.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Messages that may wait for a reader.
const N_WAITING_MAX: usize = 2;
/// A reader that takes no message for so long is cut off.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) type FloorAnswers = ReceiverStream<Result<v1::ReadFloorResponse, Status>>;
type Messages = mpsc::Sender<Result<v1::ReadFloorResponse, Status>>;

/// Who reads now.
#[derive(Debug)]
pub(super) struct FloorReading(Arc<Semaphore>);

impl Default for FloorReading {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(N_STREAMS_MAX)))
    }
}

impl FloorReading {
    /// Streams what `caller` is shown.
    pub(super) fn start(
        &self,
        store: Store,
        caller: Caller,
        stop: CancellationToken,
    ) -> Result<FloorAnswers, Status> {
        let permit = Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            let what = format!("{N_STREAMS_MAX} other readers read the start of the history");
            status::resource_exhausted(status::reason::OVERLOADED, what, RETRY_AFTER)
        })?;
        let (messages, receiver) = mpsc::channel(N_WAITING_MAX);
        task::spawn("floor", async move {
            let end = tokio::select! {
                end = run(store, caller, &messages, permit) => end.err(),
                () = stop.cancelled() => Some(status::stopping()),
                () = messages.closed() => None,
            };
            if let Some(status) = end {
                // The end of a stream says that it is whole, so a reader has to hear of this; it may have left.
                let _ = messages.send(Err(status)).await;
            }
        });
        Ok(ReceiverStream::new(receiver))
    }
}

async fn run(
    store: Store,
    caller: Caller,
    messages: &Messages,
    _permit: OwnedSemaphorePermit,
) -> Result<(), Status> {
    let mut reader = blocking(move || store.floor()).await?.map_err(lost)?;
    let (base_revision, complete_revision) = (reader.base().0, reader.complete_at().0);
    let message = |records| v1::ReadFloorResponse { records, base_revision, complete_revision };
    send(messages, message(Vec::new())).await?;
    loop {
        let shown_to = caller.clone();
        let records;
        (reader, records) = blocking(move || {
            let records = next(&mut reader, &shown_to);
            (reader, records)
        })
        .await?;
        let Some(records) = records? else { return Ok(()) };
        for part in message::parts(records) {
            send(messages, message(part)).await?;
        }
    }
}

async fn blocking<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|_| Status::internal("reading the history's start panicked"))
}

async fn send(messages: &Messages, message: v1::ReadFloorResponse) -> Result<(), Status> {
    match tokio::time::timeout(SEND_TIMEOUT, messages.send(Ok(message))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Status::cancelled("the reader has left")),
        Err(_) => Err(Status::deadline_exceeded("the reader is too slow: try again")),
    }
}

/// The next records, as a list has them.
fn next(reader: &mut FloorReader, caller: &Caller) -> Result<Option<Vec<v1::Record>>, Status> {
    let Some(records) = reader.next_records().map_err(lost)? else { return Ok(None) };
    let mut listed = Vec::with_capacity(records.len());
    for (kind, record) in records.into_iter().filter(|(kind, _)| is_shown(*kind, caller)) {
        if kind == v1::Kind::Rows {
            rows(&record, &mut listed)?;
        } else {
            listed.push(decoded(kind, &record)?);
        }
    }
    Ok(Some(listed))
}

/// A unit's rows, in parts.
fn rows(record: &Record, listed: &mut Vec<v1::Record>) -> Result<(), Status> {
    let rows = v1::UnitRows::decode(record.value.clone()).map_err(lost)?;
    let (unit, rows) = rows_from_proto(rows).map_err(lost)?;
    let mut from = Some(0);
    while let Some(start) = from {
        let (part, next) = rows_part_to_proto(unit, &rows, start);
        from = next;
        listed.push(v1::Record {
            revision: record.revision.0,
            record: Some(v1::record::Record::Rows(part)),
            ..v1::Record::default()
        });
    }
    Ok(())
}

fn decoded(kind: v1::Kind, record: &Record) -> Result<v1::Record, Status> {
    let mut encoded = BytesMut::with_capacity(record.value.len() + 48);
    encode_record(kind, record, &mut encoded);
    v1::Record::decode(Bytes::from(encoded)).map_err(lost)
}

fn lost(error: impl std::fmt::Display) -> Status {
    Status::data_loss(format!("the start of the history cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use godel_crash::CrashPoints;
    use godel_store::{Engine, StoreConfig, log::memory::MemoryDisk};
    use tokio_stream::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn more_readers_than_are_served_are_told_to_come_back() {
        let config = StoreConfig::new(Engine::Memory(MemoryDisk::default()));
        let store = Store::open(config, Arc::new(|| 0), CrashPoints::default()).unwrap();
        let floor = FloorReading::default();
        let served: Vec<_> =
            (0..N_STREAMS_MAX).map(|_| Arc::clone(&floor.0).try_acquire_owned().unwrap()).collect();
        let refused = floor.start(store.clone(), Caller::Unjudged, CancellationToken::new()).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status::retry_after(&refused), Some(RETRY_AFTER));
        drop(served);
        let answers = floor.start(store.clone(), Caller::Unjudged, CancellationToken::new()).unwrap();
        let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
        // A new store rests on nothing.
        assert_eq!(answers, [v1::ReadFloorResponse::default()]);
        // Who has read it all makes room for others.
        for _ in 0..2 * N_STREAMS_MAX {
            let mut answers = floor.start(store.clone(), Caller::Unjudged, CancellationToken::new()).unwrap();
            while answers.next().await.is_some() {}
        }
        store.close().await;
    }
}
