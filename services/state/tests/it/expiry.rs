//! Nodes whose agents' certificates expire while their sessions are open.

use std::sync::Arc;

use godel_kit::{
    clock::SharedClock,
    security::ClientSecurity,
    status::{has_reason, reason},
};
use godel_pki::requests::LeafKey;
use godel_proto::v1::{
    self, identity_service_client::IdentityServiceClient, node_service_client::NodeServiceClient,
    session_request::Message,
};
use godel_state::TlsMode;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

use crate::{
    harness::{PATIENCE, registration, uid, until},
    joining::{HOUR_MS, JumpingClock},
    tls::SecuredState,
};

#[tokio::test]
async fn node_of_an_expired_agent_is_closed_until_the_agent_has_renewed_itself() {
    let clock = JumpingClock::new();
    let dir = tempfile::tempdir().unwrap();
    let state = SecuredState::start_at(dir, TlsMode::On, Arc::clone(&clock) as SharedClock).await;
    let leaf = state.join(&state.join_token("agent").await, "n1").await.unwrap();
    let channel = state.tls(ClientSecurity::new(state.identity(Some(leaf)).await));
    let mut agents_client = NodeServiceClient::new(channel.clone());
    let register = || registration("n1", &uid("n1"));
    let registered = agents_client.register_node(register()).await.unwrap().into_inner();
    let (up, requests) = mpsc::channel(1_024);
    let say = async |message| up.send(v1::SessionRequest { message: Some(message) }).await.unwrap();
    let v1::RegisterNodeResponse { node_id, epoch, .. } = registered;
    let open = v1::SessionOpen { node_id, uid: uid("n1"), epoch, ..v1::SessionOpen::default() };
    say(Message::Open(open)).await;
    let mut down = agents_client.session(ReceiverStream::new(requests)).await.unwrap().into_inner();
    let heartbeat = async || say(Message::Heartbeat(v1::Heartbeat::default())).await;
    let mut admin = NodeServiceClient::new(state.socket());
    let request = || v1::GetNodeRequest { name: "n1".to_owned() };
    let mut node = async || admin.get_node(request()).await.unwrap().into_inner().node.unwrap();
    let is_ready = |node: &v1::Node| node.report.as_ref().unwrap().ready;
    let since_ms = |node: &v1::Node| node.spec.as_ref().unwrap().identity_expired_since_ms;
    let open = until("it is ready", async || Some(node().await).filter(is_ready)).await;
    assert_eq!(since_ms(&open), None);

    clock.jump(25 * HOUR_MS);
    let expired = until("it has expired", async || {
        heartbeat().await;
        Some(node().await).filter(|node| since_ms(node).is_some())
    });
    let expired = expired.await;
    assert!(is_ready(&expired) && expired.connected, "its session stays: {expired:?}");
    let refused = agents_client.register_node(register()).await.unwrap_err();
    assert!(has_reason(&refused, reason::IDENTITY_EXPIRED), "{refused:?}");
    let uncordon =
        v1::UpdateNodeRequest { name: "n1".to_owned(), cordoned: Some(false), ..Default::default() };
    let mut administrator = NodeServiceClient::new(state.socket());
    administrator.update_node(uncordon).await.unwrap();
    assert_eq!(since_ms(&node().await), since_ms(&expired), "no administrator renews an agent");

    let csr = LeafKey::generate().unwrap().request().unwrap();
    let renewal = v1::RenewIdentityRequest { csr, hosts: Vec::new() };
    IdentityServiceClient::new(channel).renew_identity(renewal).await.unwrap();
    let renewed = until("it is renewed", async || {
        heartbeat().await;
        Some(node().await).filter(|node| since_ms(node).is_none())
    });
    assert!(is_ready(&renewed.await), "it was all the time");

    let revoked = v1::RevokeIdentityRequest { identity: "agent/n1".to_owned() };
    IdentityServiceClient::new(state.socket()).revoke_identity(revoked).await.unwrap();
    let end = async { while let Some(Ok(_)) = down.next().await {} };
    tokio::time::timeout(PATIENCE, end).await.expect("its session ends");
}
