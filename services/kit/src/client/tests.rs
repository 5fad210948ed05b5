use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use godel_base::ids::Epoch;
use godel_proto::v1::{self, state_service_client::StateServiceClient};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{Backoff, Channel, Directory, Leader, RetryPolicy, channel, retry, retry_idempotent};
use crate::{
    config::ClientConfig,
    status,
    telemetry::CURRENT_REQUEST_ID,
    tests::fake::{Fake, Grant, client_config, soon},
};

const POLICY: RetryPolicy = RetryPolicy {
    attempts: 4,
    base: Duration::from_millis(1),
    max: Duration::from_millis(4),
    deadline: Duration::from_millis(200),
};

/// Tries until `status` has been given `n_failures` times; gives the result and the number of tries.
async fn tries(policy: &RetryPolicy, n_failures: u32, status: Status) -> (Result<u32, Status>, u32) {
    let count = AtomicU32::new(0);
    let result = retry(policy, || async {
        let n = count.fetch_add(1, Ordering::SeqCst);
        if n < n_failures { Err(status.clone()) } else { Ok(n) }
    })
    .await;
    (result, count.load(Ordering::SeqCst))
}

#[tokio::test]
async fn tries_are_bounded_and_only_for_retryable_codes() {
    let (result, n_tries) = tries(&POLICY, 2, Status::unavailable("starting")).await;
    assert_eq!((result.unwrap(), n_tries), (2, 3));
    let (result, n_tries) = tries(&POLICY, 99, Status::unavailable("starting")).await;
    assert_eq!((result.unwrap_err().code(), n_tries), (Code::Unavailable, 4));
    for status in
        [Status::invalid_argument("bad"), Status::aborted("moved"), Status::deadline_exceeded("late")]
    {
        let (result, n_tries) = tries(&POLICY, 99, status.clone()).await;
        assert_eq!((result.unwrap_err().code(), n_tries), (status.code(), 1));
    }
    let mut left = 2;
    let result = retry_idempotent(&POLICY, || {
        left -= 1;
        let result = if left > 0 { Err(Status::deadline_exceeded("late")) } else { Ok(()) };
        async { result }
    });
    result.await.unwrap();
}

#[tokio::test]
async fn the_deadline_bounds_tries_and_pauses() {
    let policy = RetryPolicy { attempts: 1_000_000, ..POLICY };
    let (result, n_tries) = tries(&policy, u32::MAX, Status::unavailable("starting")).await;
    assert_eq!(result.unwrap_err().code(), Code::Unavailable);
    assert!(n_tries < policy.attempts);

    let hanging: Result<(), Status> = retry(&POLICY, std::future::pending).await;
    assert_eq!(hanging.unwrap_err().code(), Code::DeadlineExceeded);

    // A hint beyond the deadline is not waited for; one within it is.
    let patient = |after| status::resource_exhausted(status::reason::OVERLOADED, "full", after);
    let (result, n_tries) = tries(&POLICY, 1, patient(Duration::from_secs(60))).await;
    assert!(result.is_err() && n_tries == 1);
    let start = Instant::now();
    let (result, _) = tries(&POLICY, 1, patient(Duration::from_millis(20))).await;
    assert!(result.is_ok() && start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn pauses_grow_to_the_ceiling_and_start_anew() {
    let (base, max) = (Duration::from_millis(10), Duration::from_millis(35));
    let mut backoff = Backoff::new(base, max);
    for ceiling in [10, 20, 35, 35] {
        assert!(backoff.pause() <= Duration::from_millis(ceiling));
    }
    backoff.reset();
    assert!(backoff.pause() <= base);
}

#[test]
fn addresses_are_checked() {
    let config = ClientConfig::default();
    let directory = |state: &str| Directory::new(&ClientConfig { state: state.to_owned(), ..config.clone() });
    assert!(directory("not an address").unwrap_err().to_string().contains("`not an address`"));
}

async fn get_status(channel: Channel) -> Result<(), Status> {
    StateServiceClient::new(channel).get_store_status(v1::GetStoreStatusRequest {}).await.map(|_| ())
}

#[tokio::test]
async fn request_ids_are_made_and_sent_along() {
    let fake = Fake::new();
    let served = fake.serve().await;
    get_status(served.channel()).await.unwrap();
    CURRENT_REQUEST_ID.scope("from-outside".to_owned(), get_status(served.channel())).await.unwrap();
    let ids = fake.with(|world| world.request_ids.clone());
    assert_eq!((ids.len(), ids[1].as_str()), (2, "from-outside"));
    assert!(uuid::Uuid::parse_str(&ids[0]).is_ok(), "{}", ids[0]);
}

#[tokio::test]
async fn an_unanswered_call_ends_at_its_timeout() {
    let fake = Fake::new();
    fake.with(|world| world.block_status = true);
    let served = fake.serve().await;
    let config = ClientConfig { request_timeout: Duration::from_millis(30).into(), ..client_config() };
    // Without a scheme it is taken for http.
    let channel = channel(&served.address.to_string(), &config).unwrap();
    let code = soon("the timeout", get_status(channel)).await.unwrap_err().code();
    // Whoever is faster says it: our own side as CANCELLED or DEADLINE_EXCEEDED, the server as the latter.
    assert!(matches!(code, Code::DeadlineExceeded | Code::Cancelled), "{code:?}");
}

fn hold(fake: &Fake, lease: &str, address: &str, epoch: u64) {
    let grant = Grant {
        holder: "h".to_owned(),
        address: address.to_owned(),
        epoch,
        deadline: None,
        ..Grant::default()
    };
    fake.with(|world| world.leases.insert(lease.to_owned(), grant));
}

#[tokio::test]
async fn leaders_are_found_and_followed_when_they_move() {
    let state = Fake::new();
    let (old, new) = (Fake::new(), Fake::new());
    let (served, served_old, served_new) = (state.serve().await, old.serve().await, new.serve().await);
    let directory = Directory::new(&ClientConfig { state: served.url(), ..client_config() }).unwrap();
    let none = directory.leader("dispatcher").await.unwrap_err();
    assert_eq!(none.code(), Code::Unavailable);

    hold(&state, "dispatcher", &served_old.url(), 1);
    let spawned = directory.clone();
    let call = async move { spawned.call_leader("dispatcher", get_status).await };
    crate::task::spawn("call", call).await.unwrap().unwrap();
    assert_eq!((old.with(|world| world.status_calls), new.with(|world| world.status_calls)), (1, 0));

    // The old leader stands by and knows the new one; state is not even asked.
    old.with(|world| world.leader = Some(served_new.url()));
    directory.call_leader("dispatcher", get_status).await.unwrap();
    assert_eq!(new.with(|world| world.status_calls), 1);

    // The new one dies; state knows who is next.
    served_new.kill().await;
    old.with(|world| world.leader = None);
    hold(&state, "dispatcher", &served_old.url(), 3);
    directory.call_leader("dispatcher", get_status).await.unwrap();
    let leader = Leader { address: served_old.url(), epoch: Epoch(3) };
    assert_eq!(directory.leader("dispatcher").await.unwrap(), leader);
    assert_eq!(directory.members("disp").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_followed_lease_shows_each_holder() {
    let state = Fake::new();
    let served = state.serve().await;
    let directory = Directory::new(&ClientConfig { state: served.url(), ..client_config() }).unwrap();
    let mut leader = directory.follow("binder");
    for epoch in 1..=2 {
        hold(&state, "binder", "http://127.0.0.1:1", epoch);
        let seen = |known: &Option<Leader>| known.as_ref().is_some_and(|known| known.epoch == Epoch(epoch));
        soon("the holder", leader.wait_for(seen)).await.unwrap();
    }
    state.with(|world| world.leases.clear());
    soon("nobody", leader.wait_for(Option::is_none)).await.unwrap();
}
