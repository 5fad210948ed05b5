use godel_identity::leaves::LeafTimes;
use rustls::{
    AlertDescription, ClientConnection, HandshakeKind, ServerConnection,
    pki_types::{CertificateDer, ServerName},
    version::TLS12,
};

use super::*;
use crate::{
    fixtures::{DAY, NOW, clock, order, own, process, signer, trust},
    leaves::{OwnLeaf, PresentedLeaf},
    requests::LeafKey,
    roots::UnfitLeaf,
    signer::{LeafOrder, Signer},
};

/// Both ends of a connection after a handshake, and what ended it at either.
struct Shaken {
    client: ClientConnection,
    server: ServerConnection,
    client_error: Option<rustls::Error>,
    server_error: Option<rustls::Error>,
}

impl Shaken {
    fn is_open(&self) -> bool {
        self.client_error.is_none()
            && self.server_error.is_none()
            && !self.client.is_handshaking()
            && !self.server.is_handshaking()
    }

    /// Whom the server takes the client for.
    fn caller(&self) -> Option<PresentedLeaf> {
        let shown = self.server.peer_certificates()?;
        Some(PresentedLeaf::read(&shown[0]).unwrap())
    }

    fn unfit_server(&self) -> &UnfitServer {
        unfit_server(self.client_error.as_ref().unwrap()).unwrap()
    }

    fn unfit_client(&self) -> &UnfitLeaf {
        unfit_client(self.server_error.as_ref().unwrap()).unwrap()
    }
}

fn shake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Shaken {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut shaken = Shaken {
        client: ClientConnection::new(Arc::clone(client), name).unwrap(),
        server: ServerConnection::new(Arc::clone(server)).unwrap(),
        client_error: None,
        server_error: None,
    };
    // A handshake has three flights; alerts and tickets come after it.
    for _ in 0..8 {
        let mut flight = Vec::new();
        while shaken.client.wants_write() {
            shaken.client.write_tls(&mut flight).unwrap();
        }
        let mut rest = flight.as_slice();
        while !rest.is_empty() && shaken.server_error.is_none() {
            shaken.server.read_tls(&mut rest).unwrap();
            shaken.server_error = shaken.server.process_new_packets().err();
        }
        let mut flight = Vec::new();
        while shaken.server.wants_write() {
            shaken.server.write_tls(&mut flight).unwrap();
        }
        let mut rest = flight.as_slice();
        while !rest.is_empty() && shaken.client_error.is_none() {
            shaken.client.read_tls(&mut rest).unwrap();
            shaken.client_error = shaken.client.process_new_packets().err();
        }
    }
    shaken
}

fn calls(client: &TlsIdentity, role: Role, server: &TlsIdentity) -> Shaken {
    shake(&client.client_config(ExpectedServer::any_of(role), &[HTTP2]), &server.server_config(&[HTTP2]))
}

/// A process of a cluster whose leaf was issued then.
fn issued_at(signer: &Signer, key: &str, issued_ms: u64) -> TlsIdentity {
    let leaf_key = LeafKey::generate().unwrap();
    let ordered = LeafOrder { times: LeafTimes::of_issue(issued_ms, DAY), ..order(signer, key) };
    let issued = signer.issue(&ordered, &leaf_key.public()).unwrap();
    let own = OwnLeaf::new(issued.der, signer.root(), &leaf_key).unwrap();
    TlsIdentity::new(trust(&[signer]), Some(own), clock(NOW))
}

/// A process whose leaf was changed after it was issued: one text in it became another.
fn tampered(signer: &Signer, key: &str, from: &str, to: &str) -> TlsIdentity {
    let leaf_key = LeafKey::generate().unwrap();
    let mut der = signer.issue(&order(signer, key), &leaf_key.public()).unwrap().der.to_vec();
    let at = der.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    der[at..at + from.len()].copy_from_slice(to.as_bytes());
    let own = OwnLeaf::new(CertificateDer::from(der), signer.root(), &leaf_key).unwrap();
    TlsIdentity::new(trust(&[signer]), Some(own), clock(NOW))
}

#[test]
fn members_know_each_other_by_identity() {
    let signer = signer("c");
    let (state, agent) = (process(&signer, "state/main"), process(&signer, "agent/sim-*"));
    let shaken = calls(&agent, Role::State, &state);
    assert!(shaken.is_open(), "{:?} {:?}", shaken.client_error, shaken.server_error);
    assert_eq!(shaken.caller().unwrap().identity.to_string(), "spiffe://c/agent/sim-*");
    assert_eq!(shaken.server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(shaken.server.alpn_protocol(), Some(HTTP2));
    assert_eq!(shaken.server.server_name(), None, "no name is sent");
}

#[test]
fn a_client_without_certificate_is_accepted_and_unknown() {
    let signer = signer("c");
    let person = TlsIdentity::new(trust(&[&signer]), None, clock(NOW));
    let shaken = calls(&person, Role::State, &process(&signer, "state/main"));
    assert!(shaken.is_open());
    assert_eq!(shaken.caller(), None);
    // Who has no leaf is nobody's server.
    assert!(!calls(&person, Role::State, &person).is_open());
}

#[test]
fn a_client_of_another_cluster_is_refused() {
    let (own, imitation) = (signer("c"), signer("c"));
    let state = process(&own, "state/main");
    let client =
        TlsIdentity::new(trust(&[&own]), Some(crate::fixtures::own(&imitation, "agent/n1")), clock(NOW));
    let shaken = calls(&client, Role::State, &state);
    assert!(matches!(shaken.unfit_client(), UnfitLeaf::Foreign { .. }));
    let alert = shaken.client_error.unwrap();
    assert_eq!(alert, rustls::Error::AlertReceived(AlertDescription::CertificateUnknown));
    assert!(explain(&alert).contains("join again with a join token"), "{}", explain(&alert));
}

#[test]
fn a_tampered_client_is_refused() {
    let signer = signer("c");
    let state = process(&signer, "state/main");
    for to in ["c/agent/n2", "c/state/n1", "d/agent/n1"] {
        let shaken = calls(&tampered(&signer, "agent/n1", "c/agent/n1", to), Role::State, &state);
        assert_eq!(*shaken.unfit_client(), UnfitLeaf::Tampered, "{to}");
    }
}

#[test]
fn a_client_must_have_the_key_of_its_leaf() {
    let signer = signer("c");
    let (state, agent) = (process(&signer, "state/main"), own(&signer, "agent/n1"));
    let thief = own(&signer, "agent/n2").certified();
    let stolen = CertifiedKeySource(Arc::new(rustls::sign::CertifiedKey::new(
        agent.certified().cert.clone(),
        Arc::clone(&thief.key),
    )));
    let mut config = ClientConfig::clone(&state.client_config(ExpectedServer::any_of(Role::State), &[HTTP2]));
    config.client_auth_cert_resolver = Arc::new(stolen);
    let shaken = shake(&Arc::new(config), &state.server_config(&[HTTP2]));
    assert!(shaken.server_error.is_some() && !shaken.is_open());
}

/// Shows one certificate.
#[derive(Debug)]
struct CertifiedKeySource(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for CertifiedKeySource {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn an_expired_client_may_connect() {
    let signer = signer("c");
    let state = process(&signer, "state/main");
    for issued_ms in [NOW - 2 * DAY, NOW - 400 * DAY, NOW + 5 * DAY] {
        let shaken = calls(&issued_at(&signer, "agent/n1", issued_ms), Role::State, &state);
        assert!(shaken.is_open(), "{issued_ms}");
        assert_eq!(shaken.caller().unwrap().times.issued_ms(), issued_ms);
    }
}

#[test]
fn an_expired_server_is_called_for_thirty_days() {
    let signer = signer("c");
    let agent = process(&signer, "agent/n1");
    for (issued_ms, is_called) in [
        (NOW - 2 * DAY, true),
        (NOW - 31 * DAY + 1_000, true),
        (NOW - 31 * DAY, false),
        (NOW + 400 * DAY, true),
    ] {
        let shaken = calls(&agent, Role::State, &issued_at(&signer, "state/main", issued_ms));
        assert_eq!(shaken.is_open(), is_called, "{issued_ms}");
        if !is_called {
            assert!(matches!(shaken.unfit_server(), UnfitServer::LongExpired(_)));
        }
    }
}

#[test]
fn a_server_of_another_cluster_is_not_called() {
    let (own, imitation) = (signer("c"), signer("c"));
    let shaken = calls(&process(&own, "agent/n1"), Role::State, &process(&imitation, "state/main"));
    assert!(matches!(shaken.unfit_server(), UnfitServer::Leaf(UnfitLeaf::Foreign { .. })));
    let words = explain(shaken.client_error.as_ref().unwrap());
    assert!(
        words.starts_with("the server is not one of this cluster: no root of cluster c has issued"),
        "{words}"
    );
}

#[test]
fn a_tampered_server_is_not_called() {
    let signer = signer("c");
    let server = tampered(&signer, "state/main", "state/main", "state/evil");
    let shaken = calls(&process(&signer, "agent/n1"), Role::State, &server);
    assert_eq!(*shaken.unfit_server(), UnfitServer::Leaf(UnfitLeaf::Tampered));
}

#[test]
fn a_server_of_another_role_or_name_is_not_called() {
    let signer = signer("c");
    let agent = process(&signer, "agent/n1");
    let shaken = calls(&agent, Role::State, &process(&signer, "scheduler/s1"));
    let words = explain(shaken.client_error.as_ref().unwrap());
    assert!(words.starts_with("the server is scheduler/s1, and a server of role state was meant"), "{words}");
    let named = |name: &str| ExpectedServer { role: Role::Scheduler, name: Some(name.to_owned()) };
    let server = process(&signer, "scheduler/s1").server_config(&[HTTP2]);
    assert!(shake(&agent.client_config(named("s1"), &[HTTP2]), &server).is_open());
    let shaken = shake(&agent.client_config(named("s2"), &[HTTP2]), &server);
    assert!(matches!(shaken.unfit_server(), UnfitServer::Other { .. }));
}

#[test]
fn an_agent_is_nobodys_server() {
    let signer = signer("c");
    for role in Role::ALL {
        let shaken = calls(&process(&signer, "scheduler/s1"), role, &process(&signer, "agent/n1"));
        let refusal = UnfitServer::Leaf(UnfitLeaf::OtherUsage { usage: crate::leaves::LeafUsage::Server });
        assert_eq!(*shaken.unfit_server(), refusal, "{role}");
    }
}

#[test]
fn older_versions_of_tls_are_refused() {
    let signer = signer("c");
    let state = process(&signer, "state/main");
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let expected = ExpectedServer::any_of(Role::State);
    let judge = client::KnownMember { identity: state.clone(), expected: expected.clone() };
    let judge = client::ServerVerifier::new(judge, algorithms);
    let old_client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(judge))
        .with_no_client_auth();
    let shaken = shake(&Arc::new(old_client), &state.server_config(&[HTTP2]));
    assert!(!shaken.is_open());
    for error in [shaken.client_error.unwrap(), shaken.server_error.unwrap()] {
        assert!(explain(&error).contains("only TLS 1.3 is accepted"), "{error:?}: {}", explain(&error));
    }
    let old_server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(OwnLeafSource(state.clone())));
    let shaken = shake(&state.client_config(expected, &[HTTP2]), &Arc::new(old_server));
    assert!(!shaken.is_open());
    assert!(explain(&shaken.server_error.unwrap()).contains("only TLS 1.3 is accepted"));
}

#[test]
fn another_protocol_is_refused() {
    let signer = signer("c");
    let state = process(&signer, "state/main");
    let client = state.client_config(ExpectedServer::any_of(Role::State), &[HTTP1]);
    let shaken = shake(&client, &state.server_config(&[HTTP2]));
    assert_eq!(
        shaken.client_error,
        Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol))
    );
    let shaken = shake(&client, &state.server_config(&[HTTP2, HTTP1]));
    assert_eq!(shaken.server.alpn_protocol(), Some(HTTP1));
}

#[test]
fn a_session_is_never_resumed() {
    let signer = signer("c");
    let (state, agent) = (process(&signer, "state/main"), process(&signer, "agent/n1"));
    // A client that would resume, as other tools do.
    let mut willing =
        ClientConfig::clone(&agent.client_config(ExpectedServer::any_of(Role::State), &[HTTP2]));
    willing.resumption = Resumption::in_memory_sessions(8);
    let (willing, server) = (Arc::new(willing), state.server_config(&[HTTP2]));
    for _ in 0..3 {
        let shaken = shake(&willing, &server);
        assert_eq!(shaken.client.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(shaken.client.tls13_tickets_received(), 0);
        assert_eq!(shaken.caller().unwrap().identity.key(), "agent/n1", "the leaf is shown again");
    }
}

#[test]
fn leaf_and_roots_are_replaced_while_configurations_are_in_use() {
    let (old, new) = (signer("c"), signer("c"));
    let (state, agent) = (process(&old, "state/main"), process(&old, "agent/n1"));
    let server = state.server_config(&[HTTP2]);
    let client = agent.client_config(ExpectedServer::any_of(Role::State), &[HTTP2]);
    assert!(shake(&client, &server).is_open());
    // Another root comes: everybody trusts both, then gets new leaves in any order, then the old one goes.
    for process in [&state, &agent] {
        process.replace_trust(trust(&[&old, &new]));
        assert!(shake(&client, &server).is_open());
    }
    for (process, key) in [(&state, "state/main"), (&agent, "agent/n1")] {
        process.replace_own(own(&new, key));
        assert!(shake(&client, &server).is_open());
    }
    for process in [&agent, &state] {
        process.replace_trust(trust(&[&new]));
        assert!(shake(&client, &server).is_open());
    }
    // Who has slept through all of it is refused by both.
    let late = process(&old, "agent/n2");
    assert!(matches!(
        calls(&late, Role::State, &state).unfit_server(),
        UnfitServer::Leaf(UnfitLeaf::Foreign { .. })
    ));
    late.replace_trust(trust(&[&old, &new]));
    assert!(matches!(calls(&late, Role::State, &state).unfit_client(), UnfitLeaf::Foreign { .. }));
}

#[test]
fn who_joins_trusts_the_root_of_its_token_only() {
    let (own, imitation) = (signer("c"), signer("c"));
    let state = process(&own, "state/main").server_config(&[HTTP2]);
    let joins = |cluster: &str, signer: &Signer, server: &Arc<ServerConfig>| {
        shake(&joining_config(cluster.parse().unwrap(), signer.root().fingerprint(), &[HTTP2]), server)
    };
    let shaken = joins("c", &own, &state);
    assert!(shaken.is_open(), "{:?}", shaken.client_error);
    assert_eq!(shaken.caller(), None);
    // Another fingerprint: another cluster, or somebody in between.
    let shaken = joins("c", &imitation, &state);
    assert_eq!(*shaken.unfit_server(), UnfitServer::OtherRoot { pinned: imitation.root().fingerprint() });
    let words = explain(shaken.client_error.as_ref().unwrap());
    assert!(words.contains("nothing was sent"), "{words}");
    let shaken = joins("d", &own, &state);
    assert!(matches!(shaken.unfit_server(), UnfitServer::Leaf(UnfitLeaf::OtherCluster { .. })));
    // A member that is not state, and an agent, which has a leaf of the right root.
    let shaken = joins("c", &own, &process(&own, "scheduler/s1").server_config(&[HTTP2]));
    assert!(matches!(shaken.unfit_server(), UnfitServer::Other { .. }));
    let shaken = joins("c", &own, &process(&own, "agent/n1").server_config(&[HTTP2]));
    assert!(matches!(shaken.unfit_server(), UnfitServer::Leaf(UnfitLeaf::OtherUsage { .. })));
}

#[test]
fn a_root_that_is_shown_beside_the_leaf_of_another_does_not_count() {
    let (own, imitation) = (signer("c"), signer("c"));
    // Whoever is in between knows the root, which is public.
    let leaf_key = LeafKey::generate().unwrap();
    let issued = imitation.issue(&order(&imitation, "state/main"), &leaf_key.public()).unwrap();
    let shown = OwnLeaf::new(issued.der, own.root(), &leaf_key).unwrap();
    let between = TlsIdentity::new(trust(&[&own]), Some(shown), clock(NOW)).server_config(&[HTTP2]);
    let joins = joining_config("c".parse().unwrap(), own.root().fingerprint(), &[HTTP2]);
    let shaken = shake(&joins, &between);
    assert!(matches!(shaken.unfit_server(), UnfitServer::Leaf(UnfitLeaf::Foreign { .. })));
}

#[test]
fn who_verifies_nobody_shows_nothing() {
    let (own, other) = (signer("c"), signer("d"));
    for server in [process(&own, "state/main"), process(&other, "binder/b")] {
        let shaken = shake(&unverified_config(&[HTTP1]), &server.server_config(&[HTTP1]));
        assert!(shaken.is_open(), "{:?}", shaken.client_error);
        assert_eq!(shaken.caller(), None);
    }
}
