//! State with TLS: how it is reached, by whom, and what each of them may do.

use std::{path::PathBuf, sync::Arc};

use godel_etcd::model::Session;
use godel_kit::{
    CancellationToken,
    client::{Channel, channel},
    clock::{SharedClock, SystemClock},
    config::ClientConfig,
    security::{BearerToken, ClientSecurity, TlsIdentity, wall_clock},
    status::{has_reason, reason},
};
use godel_pki::{
    join_tokens::JoinToken,
    leaves::OwnLeaf,
    requests::LeafKey,
    roots::{RootCert, Trust},
    tls::{HTTP2, joining_config},
};
use godel_proto::v1::{
    self, identity_service_client::IdentityServiceClient, member_service_client::MemberServiceClient,
    node_service_client::NodeServiceClient, state_service_client::StateServiceClient,
};
use godel_state::{Config, Deps, Error, TlsMode};
use godel_store::{Engine, log::etcd::EtcdConfig};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tonic::{Code, Status};

use crate::harness::PATIENCE;

/// A state with TLS, on a disk.
pub(crate) struct SecuredState {
    dir: TempDir,
    /// `host:port`.
    pub(crate) place: String,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), Error>>,
}

impl SecuredState {
    pub(crate) async fn start(tls: TlsMode) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), tls).await
    }

    async fn start_in(dir: TempDir, tls: TlsMode) -> Self {
        Self::start_at(dir, tls, SystemClock::shared()).await
    }

    /// By that clock.
    pub(crate) async fn start_at(dir: TempDir, tls: TlsMode, clock: SharedClock) -> Self {
        Self::start_with(dir, tls, clock, |_| ()).await
    }

    /// With another configuration.
    pub(crate) async fn start_with(
        dir: TempDir,
        tls: TlsMode,
        clock: SharedClock,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        Self::start_on(dir, tls, clock, None, change).await
    }

    /// One of several states with one store in the etcd of `session`. The key that seals the CA is that of `other`, if there is one.
    pub(crate) async fn start_one_of(session: Arc<Session>, name: &str, other: Option<&Self>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        if let Some(other) = other {
            std::fs::create_dir(&pki).unwrap();
            std::fs::copy(other.dir.path().join("pki/seal.key"), pki.join("seal.key")).unwrap();
            std::fs::set_permissions(&pki, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        }
        let engine = Engine::Etcd(EtcdConfig::new(session, dir.path().join("state")));
        let named = |config: &mut Config| {
            config.name = name.to_owned();
            config.pki_dir = Some(pki);
            config.etcd.shared = true;
        };
        Self::start_on(dir, TlsMode::On, SystemClock::shared(), Some(engine), named).await
    }

    async fn start_on(
        dir: TempDir,
        tls: TlsMode,
        clock: SharedClock,
        engine: Option<Engine>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config { data_dir: dir.path().join("state"), tls: Some(tls), ..Config::default() };
        config.server.metrics = false;
        change(&mut config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let deps = Deps { listener: Some(listener), clock, engine, ..Deps::default() };
        let serving = tokio::spawn(godel_state::serve(config, deps, stop.clone()));
        let state = Self { dir, place, stop, serving };
        let answered = async {
            while state.trust(state.socket()).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, answered).await.unwrap();
        state
    }

    pub(crate) async fn stop(self) -> TempDir {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
        self.dir
    }

    fn socket_path(&self) -> PathBuf {
        self.dir.path().join("godel.sock")
    }

    pub(crate) fn socket(&self) -> Channel {
        channel(&format!("unix:{}", self.socket_path().display()), &ClientConfig::default()).unwrap()
    }

    fn plain(&self) -> Channel {
        channel(&format!("http://{}", self.place), &ClientConfig::default()).unwrap()
    }

    pub(crate) fn tls(&self, security: ClientSecurity) -> Channel {
        let config = ClientConfig { security, ..ClientConfig::default() };
        channel(&format!("https://{}", self.place), &config).unwrap()
    }

    async fn trust(&self, channel: Channel) -> Result<Trust, Status> {
        let answer =
            IdentityServiceClient::new(channel).get_trust(v1::GetTrustRequest {}).await?.into_inner();
        let trust = answer.trust.unwrap();
        let roots = trust.roots.into_iter().map(|root| RootCert::read(root.certificate).unwrap()).collect();
        Ok(Trust::new(trust.cluster.parse().unwrap(), roots).unwrap())
    }

    /// What a client shows and trusts.
    pub(crate) async fn identity(&self, own: Option<OwnLeaf>) -> TlsIdentity {
        let trust = self.trust(self.socket()).await.unwrap();
        TlsIdentity::new(trust, own, wall_clock(SystemClock::shared()))
    }

    /// A person's token, from the socket.
    pub(crate) async fn token(&self) -> String {
        let mut identities = IdentityServiceClient::new(self.socket());
        identities.issue_token(v1::IssueTokenRequest {}).await.unwrap().into_inner().token
    }

    pub(crate) async fn join_token(&self, role: &str) -> JoinToken {
        let request = v1::CreateJoinTokenRequest { role: role.to_owned(), ..Default::default() };
        let answer = IdentityServiceClient::new(self.socket()).create_join_token(request).await.unwrap();
        answer.into_inner().token.parse().unwrap()
    }

    /// Joins as a process that knows its token alone.
    pub(crate) async fn join(&self, token: &JoinToken, name: &str) -> Result<OwnLeaf, Status> {
        let security =
            ClientSecurity::joining(joining_config(token.cluster().clone(), token.root(), &[HTTP2]));
        let key = LeafKey::generate().unwrap();
        let request = v1::JoinRequest {
            token: token.to_text().to_string(),
            name: name.to_owned(),
            csr: key.request().unwrap(),
            ..v1::JoinRequest::default()
        };
        let answer = IdentityServiceClient::new(self.tls(security)).join(request).await?.into_inner();
        let root = RootCert::read(answer.trust.unwrap().roots[0].certificate.clone()).unwrap();
        Ok(OwnLeaf::new(answer.leaf.unwrap().certificate.into(), &root, &key).unwrap())
    }
}

pub(crate) async fn status_of(channel: Channel) -> Result<(), Status> {
    let mut state = StateServiceClient::new(channel);
    state.get_store_status(v1::GetStoreStatusRequest {}).await.map(drop)
}

/// Takes a lease, which services alone may.
pub(crate) async fn lease(channel: Channel) -> Result<(), Status> {
    let request = v1::AcquireLeaseRequest {
        lease: "binder".to_owned(),
        holder: "tester".to_owned(),
        address: "https://127.0.0.1:1".to_owned(),
        ttl_ms: 60_000,
    };
    MemberServiceClient::new(channel).acquire_lease(request).await.map(drop)
}

#[tokio::test]
async fn state_answers_whom_it_knows_and_each_may_do_its_own() {
    let state = SecuredState::start(TlsMode::On).await;
    // Whoever may open the socket administers; nobody is a service there.
    status_of(state.socket()).await.unwrap();
    assert_eq!(lease(state.socket()).await.unwrap_err().code(), Code::PermissionDenied);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(state.socket_path()).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    // Nobody is answered in plain text.
    let refused = status_of(state.plain()).await.unwrap_err();
    assert!(has_reason(&refused, reason::TLS_REQUIRED), "{refused:?}");
    // Over TLS everybody learns whom to trust, and nothing else without a token.
    let nobody = ClientSecurity::new(state.identity(None).await);
    state.trust(state.tls(nobody.clone())).await.unwrap();
    let refused = status_of(state.tls(nobody.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    let with = |token: &str| nobody.clone().with_token(watch::channel(BearerToken::new(token).unwrap()).1);
    let token = state.token().await;
    status_of(state.tls(with(&token))).await.unwrap();
    assert_eq!(lease(state.tls(with(&token))).await.unwrap_err().code(), Code::PermissionDenied);
    let tampered = status_of(state.tls(with(&token.replace('.', ".x")))).await.unwrap_err();
    assert_eq!(tampered.code(), Code::Unauthenticated, "{tampered:?}");
    state.stop().await;
}

#[tokio::test]
async fn who_joins_calls_by_its_role_until_it_is_revoked() {
    let state = SecuredState::start(TlsMode::On).await;
    let token = state.join_token("agent").await;
    let leaf = state.join(&token, "n1").await.unwrap();
    assert_eq!(
        state.join(&token, "n2").await.unwrap_err().code(),
        Code::Unauthenticated,
        "it was good for one"
    );
    let other = state.join_token("agent").await;
    let taken = state.join(&other, "n1").await.unwrap_err();
    assert!(has_reason(&taken, reason::NAME_IN_USE), "{taken:?}");

    let agent = ClientSecurity::new(state.identity(Some(leaf)).await);
    let mut nodes = NodeServiceClient::new(state.tls(agent.clone()));
    let request = v1::GetNodeRequest { name: "n1".to_owned() };
    assert_eq!(nodes.get_node(request.clone()).await.unwrap_err().code(), Code::NotFound, "it may ask");
    let listed = nodes.list_nodes(v1::ListNodesRequest::default()).await.unwrap_err();
    assert_eq!(listed.code(), Code::PermissionDenied, "{listed:?}");
    assert_eq!(lease(state.tls(agent)).await.unwrap_err().code(), Code::PermissionDenied);

    // A binder has its lease, and no other one.
    let token = state.join_token("binder").await;
    let leaf = state.join(&token, "b1").await.unwrap();
    let binder = ClientSecurity::new(state.identity(Some(leaf)).await);
    lease(state.tls(binder)).await.unwrap();

    let revoked = v1::RevokeIdentityRequest { identity: "agent/n1".to_owned() };
    IdentityServiceClient::new(state.socket()).revoke_identity(revoked).await.unwrap();
    // On the connection that is open too.
    let refused = nodes.get_node(request).await.unwrap_err();
    // The connection may be over already.
    assert!(
        has_reason(&refused, reason::IDENTITY_REFUSED) || refused.code() == Code::Unavailable,
        "{refused:?}"
    );
    state.stop().await;
}

#[tokio::test]
async fn state_says_what_it_speaks_and_how_many_identities_there_are() {
    let state = SecuredState::start(TlsMode::Migrate).await;
    let plain = StateServiceClient::new(state.plain());
    let read =
        async || plain.clone().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
    let status = read().await;
    assert!(!status.version.is_empty() && status.now_ms > 0, "{status:?}");
    let security = status.security.unwrap();
    assert_eq!((security.tls(), security.plain_text_connections), (v1::TlsMode::Migrate, 1));
    let own = v1::IdentityCounts { valid: 1, ..Default::default() };
    assert_eq!(security.identities, Some(own));
    let token = state.join_token("agent").await;
    state.join(&token, "n1").await.unwrap();
    let revoked = v1::RevokeIdentityRequest { identity: "agent/n1".to_owned() };
    IdentityServiceClient::new(state.socket()).revoke_identity(revoked).await.unwrap();
    let counts = read().await.security.unwrap().identities;
    assert_eq!(counts, Some(v1::IdentityCounts { valid: 1, revoked: 1, ..Default::default() }));
    state.stop().await;
}

#[tokio::test]
async fn a_directory_of_today_migrates_and_its_ca_stays() {
    let state = SecuredState::start(TlsMode::Migrate).await;
    status_of(state.plain()).await.unwrap();
    let trusted = state.identity(None).await;
    let security = ClientSecurity::new(trusted.clone())
        .with_token(watch::channel(BearerToken::new(&state.token().await).unwrap()).1);
    status_of(state.tls(security.clone())).await.unwrap();
    let before = trusted.trust().to_pem();
    let dir = state.stop().await;
    // Roots and tokens outlive a restart, and plain text is over once it is turned off.
    let state = SecuredState::start_in(dir, TlsMode::On).await;
    assert_eq!(state.trust(state.socket()).await.unwrap().to_pem(), before);
    status_of(state.tls(security)).await.unwrap();
    let refused = status_of(state.plain()).await.unwrap_err();
    assert!(has_reason(&refused, reason::TLS_REQUIRED), "{refused:?}");
    state.stop().await;
}
