//! The records on which the kept history rests, as a stream.

use bytes::{Bytes, BytesMut};
use godel_identity::caller::Caller;
use godel_kit::message;
use godel_proto::v1;
use godel_store::{FloorReader, Record, Store, record::encode_record};
use godel_wire::ops::{rows_from_proto, rows_part_to_proto};
use prost::Message as _;
use tonic::Status;

use super::{
    disk_stream::{DiskMessages, blocking},
    is_shown,
};

/// Streams what `caller` is shown.
pub(super) async fn run(
    store: Store,
    caller: Caller,
    messages: DiskMessages<v1::ReadFloorResponse>,
) -> Result<(), Status> {
    let mut reader = blocking(move || store.floor()).await?.map_err(lost)?;
    let (base_revision, complete_revision) = (reader.base().0, reader.complete_at().0);
    let message = |records| v1::ReadFloorResponse { records, base_revision, complete_revision };
    messages.send(message(Vec::new())).await?;
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
            messages.send(message(part)).await?;
        }
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
    use std::sync::Arc;

    use godel_crash::CrashPoints;
    use godel_kit::CancellationToken;
    use godel_store::{Engine, StoreConfig, log::memory::MemoryDisk};
    use tokio_stream::StreamExt as _;

    use super::{super::disk_stream::DiskReading, *};

    #[tokio::test]
    async fn a_new_store_rests_on_nothing() {
        let config = StoreConfig::new(Engine::Memory(MemoryDisk::default()));
        let store = Store::open(config, Arc::new(|| 0), CrashPoints::default()).unwrap();
        let reading = DiskReading::new("floor");
        let of = store.clone();
        let answers =
            reading.start(CancellationToken::new(), |messages| run(of, Caller::Unjudged, messages)).unwrap();
        let answers: Vec<_> = answers.map(Result::unwrap).collect().await;
        assert_eq!(answers, [v1::ReadFloorResponse::default()]);
        store.close().await;
    }
}
