//! What a backup is made of: the store's chunks, for those who may have them.

use godel_kit::status::{has_reason, reason};
use godel_proto::v1::{self, op::Op, read_store_response::Part};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

use crate::harness::{PATIENCE, State, put_large_unit, put_unit};

#[derive(Default)]
struct Received {
    start: v1::StoreStart,
    snapshot: Vec<Vec<u8>>,
    log: Vec<Vec<u8>>,
    n_messages: usize,
}

async fn read(state: &State, from_revision: u64, store_id: u64) -> Result<Received, Status> {
    let request = v1::ReadStoreRequest { from_revision, store_id };
    let mut stream = state.state().read_store(request).await?.into_inner();
    let mut received = Received::default();
    while let Some(answer) =
        tokio::time::timeout(PATIENCE, stream.next()).await.expect("in time").transpose()?
    {
        match answer.part.unwrap() {
            Part::Start(start) => {
                assert_eq!(received.n_messages, 0);
                received.start = start;
            }
            Part::Snapshot(of) => {
                assert!(received.log.is_empty());
                received.snapshot.extend(of.chunks);
            }
            Part::Log(of) => received.log.extend(of.chunks),
        }
        received.n_messages += 1;
    }
    Ok(received)
}

fn bytes(chunks: &[Vec<u8>]) -> u64 {
    chunks.iter().map(|chunk| chunk.len() as u64).sum()
}

#[tokio::test]
async fn snapshot_and_log_come_whole_and_the_log_alone_from_a_revision_on() {
    let state = State::start_with(|config| {
        config.generation_bytes_min = 64 << 10;
    })
    .await;
    let mut dispatcher = state.writer("dispatcher").await;
    let new = read(&state, 0, 0).await.unwrap();
    let snapshot = new.start.snapshot.unwrap();
    assert_eq!((snapshot.base_revision, snapshot.pieces, new.start.first_revision), (0, 0, 1));
    assert!(new.snapshot.is_empty() && !new.log.is_empty());
    let mut last = 0;
    // Until the newest complete snapshot is one with records.
    let whole = loop {
        for _ in 0..20 {
            last += 1;
            dispatcher.write([put_large_unit(last, 8_000)]).await.unwrap();
        }
        let whole = read(&state, 0, new.start.store_id).await.unwrap();
        if whole.start.first_revision > 1 {
            break whole;
        }
    };
    let v1::StoreStart { first_revision, last_revision, snapshot, .. } = whole.start.clone();
    let snapshot = snapshot.unwrap();
    assert_eq!(snapshot.base_revision + 1, first_revision);
    assert_eq!(bytes(&whole.snapshot), snapshot.bytes);
    assert!(whole.n_messages >= 2 && whole.start.engine == "memory" && !whole.start.version.is_empty());
    let log = read(&state, first_revision, new.start.store_id).await.unwrap();
    assert_eq!((log.start.snapshot, log.snapshot.len()), (None, 0));
    assert!(log.log.starts_with(&whole.log[..]) && log.start.last_revision >= last_revision);
    let none = read(&state, log.start.last_revision + 1, 0).await.unwrap();
    assert_eq!((none.log.len(), none.start.first_revision), (0, log.start.last_revision + 1));
    state.stop().await;
}

#[tokio::test]
async fn what_does_not_go_on_from_a_revision_is_refused() {
    let state = State::start().await;
    let start = read(&state, 0, 0).await.unwrap().start;
    for (from, store_id, expected) in [
        (start.last_revision + 100, 0, reason::FUTURE_REVISION),
        (start.last_revision + 1, start.store_id + 1, reason::STORE_CHANGED),
    ] {
        let Err(refused) = read(&state, from, store_id).await else { panic!("{expected}") };
        assert!(refused.code() == Code::OutOfRange && has_reason(&refused, expected), "{refused}");
    }
    state.stop().await;
    let state = State::start_with(|config| {
        config.generation_bytes_min = 4 << 10;
        config.history_bytes_min = 0;
    })
    .await;
    let mut dispatcher = state.writer("dispatcher").await;
    let floor = async || {
        let status = state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap();
        status.into_inner().floor_revision
    };
    while floor().await == 1 {
        // Always the same one, so that snapshots stay small and generations short.
        dispatcher.write([put_large_unit(1, 2_000)]).await.unwrap();
    }
    let Err(gone) = read(&state, 1, 0).await else { panic!("the first commit is there still") };
    assert!(gone.code() == Code::OutOfRange && has_reason(&gone, reason::COMPACTED), "{gone}");
    state.stop().await;
}

/// What signs is in a backup as it is in the store.
#[tokio::test]
async fn what_signs_is_there_in_its_sealed_form() {
    let sealed = *b"keys of the CA, sealed; to none!";
    let signer =
        v1::SealedSigner { name: "default".to_owned(), key_id: "s1".to_owned(), sealed: sealed.to_vec() };
    let state = State::start_with_records(|_| (), vec![Op::PutSealedSigner(signer)]).await;
    state.writer("dispatcher").await.write([put_unit(1)]).await.unwrap();
    let read = read(&state, 0, 0).await.unwrap();
    assert!(read.log.iter().any(|chunk| chunk.windows(sealed.len()).any(|bytes| bytes == sealed)));
    state.stop().await;
}
