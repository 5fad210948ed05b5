use std::net::SocketAddr;

use godel_kit::status::{has_reason, reason};
use godel_proto::v1;
use tokio::net::{TcpListener, TcpSocket};
use tonic::transport::Channel;

use crate::harness::{State, acquire, connect, until};

/// Longer than any test waits: no lease of these tests expires.
const TTL_MS: u32 = 60_000;

/// An address that is taken, and at which nobody listens.
fn deaf_address() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Takes a lease for a holder at `address`, over a connection of its own.
async fn hold(state: &State, lease: &str, address: SocketAddr) -> (Channel, u64) {
    let own = connect(&state.uri).await;
    let granted = acquire(&own, lease, &address.to_string(), TTL_MS).await.unwrap();
    (own, granted.epoch)
}

async fn is_held(state: &State, lease: &str) -> bool {
    match acquire(&state.channel, lease, "standby", TTL_MS).await {
        Ok(_) => false,
        Err(refused) => {
            assert!(has_reason(&refused, reason::LEASE_HELD), "{refused}");
            true
        }
    }
}

async fn until_free(state: &State, lease: &str) {
    until("the lease is free", async || (!is_held(state, lease).await).then_some(())).await;
}

#[tokio::test]
async fn the_lease_of_a_dead_holder_ends_with_its_connection() {
    let state = State::start().await;
    for lease in ["dispatcher", "binder", "yarn", "rescheduler", "scheduler/s1", "member/agent/a"] {
        let (_port, address) = deaf_address();
        let (own, epoch) = hold(&state, lease, address).await;
        assert!(is_held(&state, lease).await);
        drop(own);
        until_free(&state, lease).await;
        let late = v1::RenewLeaseRequest { lease: lease.to_owned(), epoch, ..Default::default() };
        let late = state.members().renew_lease(late).await.unwrap_err();
        assert!(has_reason(&late, reason::STALE_EPOCH), "{late}");
    }
    state.stop().await;
}

#[tokio::test]
async fn the_connection_of_the_last_renewal_counts() {
    let state = State::start().await;
    let (_port, address) = deaf_address();
    let (first, epoch) = hold(&state, "binder", address).await;
    let second = connect(&state.uri).await;
    let renewal = v1::RenewLeaseRequest { lease: "binder".to_owned(), epoch, ..Default::default() };
    let renew = |channel: &Channel| {
        let mut members = v1::member_service_client::MemberServiceClient::new(channel.clone());
        let renewal = renewal.clone();
        async move { members.renew_lease(renewal).await }
    };
    renew(&second).await.unwrap();
    drop(first);
    // Long after the first connection is gone, as another lease shows that ends with the one after it.
    let (_other_port, other) = deaf_address();
    let (own, _) = hold(&state, "yarn", other).await;
    drop(own);
    until_free(&state, "yarn").await;
    renew(&second).await.unwrap();
    drop(second);
    until_free(&state, "binder").await;
    state.stop().await;
}

#[tokio::test]
async fn a_holder_that_still_listens_keeps_its_lease() {
    let state = State::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut own, epoch) = hold(&state, "binder", listener.local_addr().unwrap()).await;
    for _ in 0..3 {
        drop(own);
        // State asks once, and lets it go.
        listener.accept().await.unwrap();
        // What a death would write comes before the next change of a lease.
        acquire(&state.channel, "yarn", "standby", TTL_MS).await.unwrap();
        assert!(is_held(&state, "binder").await);
        own = connect(&state.uri).await;
        let renewal = v1::RenewLeaseRequest { lease: "binder".to_owned(), epoch, ..Default::default() };
        let mut members = v1::member_service_client::MemberServiceClient::new(own.clone());
        members.renew_lease(renewal).await.unwrap();
    }
    state.stop().await;
}
