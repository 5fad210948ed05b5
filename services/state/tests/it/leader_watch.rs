use godel_proto::v1;
use tokio_stream::StreamExt as _;
use tonic::{Code, Streaming};

use crate::harness::{PATIENCE, State, acquire};

async fn watch(state: &State, beat_interval_ms: u32) -> Streaming<v1::WatchLeaderResponse> {
    let request = v1::WatchLeaderRequest { beat_interval_ms };
    state.members().watch_leader(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<v1::WatchLeaderResponse>) -> Option<v1::WatchLeaderResponse> {
    let next = tokio::time::timeout(PATIENCE, stream.next()).await.expect("a message in time");
    match next {
        Some(Ok(message)) => Some(message),
        Some(Err(end)) => {
            assert_eq!(end.code(), Code::Unavailable, "{end}");
            None
        }
        None => None,
    }
}

#[tokio::test]
async fn a_single_state_leads_and_its_term_grows_with_each_start() {
    let state = State::start().await;
    let mut stream = watch(&state, 0).await;
    let first = next(&mut stream).await.unwrap();
    let status = state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((first.leads, first.address.as_str(), first.term), (true, state.uri.as_str(), 1));
    assert_eq!((first.revision, first.store_id), (status.revision, status.store_id));
    let mut beats = watch(&state, 50).await;
    assert_eq!(next(&mut beats).await.unwrap(), first);
    let granted = acquire(&state.channel, "binder", "a", 60_000).await.unwrap();
    // Beats say how far this state is.
    while next(&mut beats).await.unwrap().revision < granted.revision {}
    let state = state.restart().await;
    assert_eq!(next(&mut stream).await, None);
    while next(&mut beats).await.is_some() {}
    let second = next(&mut watch(&state, 0).await).await.unwrap();
    assert_eq!((second.leads, second.term, second.store_id), (true, 2, first.store_id));
    state.stop().await;
}
