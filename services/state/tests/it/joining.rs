//! Processes that join a cluster, keep their identity, renew it and are revoked, as services and agents do.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use godel_base::time::Millis;
use godel_kit::{
    CancellationToken,
    clock::{Clock, SharedClock, SystemClock},
    config::{ClientConfig, IdentityConfig},
    member::{JoinError, MemberIdentity, NewMember, take_identity},
    security::{Caller, PeerLeaf, Role, ServerSecurity, Transport},
    status::{has_reason, reason},
};
use godel_pki::leaves::PresentedLeaf;
use godel_proto::v1::{
    self, identity_service_client::IdentityServiceClient, node_service_client::NodeServiceClient,
    state_service_client::StateServiceClient,
};
use godel_state::TlsMode;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use prost::Message as _;
use tempfile::TempDir;
use tonic::{Code, Status};

use crate::{
    harness::PATIENCE,
    tls::{SecuredState, status_of},
};

pub(crate) const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// The machine's clock, with a wall clock that a test sets forward.
pub(crate) struct JumpingClock {
    clock: SharedClock,
    ahead_ms: AtomicI64,
}

impl JumpingClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { clock: SystemClock::shared(), ahead_ms: AtomicI64::new(0) })
    }

    pub(crate) fn jump(&self, ms: i64) {
        self.ahead_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms() + self.ahead_ms.load(Ordering::SeqCst)
    }
}

/// A process that joins, with the directory of its identity.
pub(crate) struct Joiner {
    dir: TempDir,
    config: IdentityConfig,
    member: NewMember,
    client: ClientConfig,
    clock: SharedClock,
}

impl Joiner {
    pub(crate) fn new(state: &SecuredState, role: Role, name: &str, clock: SharedClock) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let of_dir = dir.path().join("identity").display().to_string();
        let client = ClientConfig { state: format!("https://{}", state.place), ..ClientConfig::default() };
        let hosts = if role == Role::Agent { Vec::new() } else { vec!["localhost".to_owned()] };
        Self {
            dir,
            config: IdentityConfig { dir: of_dir, ..IdentityConfig::default() },
            member: NewMember { role, name: name.to_owned(), hosts },
            client,
            clock,
        }
    }

    /// Has a token in a file with that mode.
    pub(crate) async fn with_token(mut self, state: &SecuredState, role: &str, mode: u32) -> Self {
        let token = state.join_token(role).await;
        let file = self.dir.path().join("token");
        fs::write(&file, token.to_text().as_bytes()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        self.config.join_file = file.display().to_string();
        self
    }

    pub(crate) async fn take(&self, stop: &CancellationToken) -> Result<MemberIdentity, JoinError> {
        let taken =
            take_identity(&self.config, self.member.clone(), &self.client, Arc::clone(&self.clock), stop);
        tokio::time::timeout(PATIENCE, taken).await.unwrap().map(|taken| taken.expect("state speaks TLS"))
    }

    fn file(&self) -> String {
        let name = format!("{}-{}.pem", self.member.role, self.member.name);
        let path = Path::new(&self.config.dir).join(name);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        fs::read_to_string(path).unwrap()
    }
}

/// Waits until `reached`.
pub(crate) async fn until(what: &str, mut reached: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !reached().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.unwrap_or_else(|_| panic!("never reached: {what}"));
}

async fn revoke(state: &SecuredState, identity: &str) {
    let request = v1::RevokeIdentityRequest { identity: identity.to_owned() };
    IdentityServiceClient::new(state.socket()).revoke_identity(request).await.unwrap();
}

async fn allow(state: &SecuredState, identity: &str) {
    let request = v1::AllowNameRequest { identity: identity.to_owned() };
    IdentityServiceClient::new(state.socket()).allow_name(request).await.unwrap();
}

fn refusal(joined: Result<MemberIdentity, JoinError>) -> Status {
    match joined {
        Err(JoinError::Refused { status, .. }) => *status,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_service_keeps_its_identity_through_restarts_and_renews_it() {
    let clock = JumpingClock::new();
    let state =
        SecuredState::start_at(tempfile::tempdir().unwrap(), TlsMode::On, Arc::clone(&clock) as SharedClock)
            .await;
    // Its own clock is never set: state's counts.
    let joiner = Joiner::new(&state, Role::Scheduler, "s1", SystemClock::shared());
    assert!(matches!(joiner.take(&CancellationToken::new()).await, Err(JoinError::NoToken { .. })));
    let joiner = joiner.with_token(&state, "scheduler", 0o600).await;
    let stop = CancellationToken::new();
    let member = joiner.take(&stop).await.unwrap();
    status_of(state.tls(member.client.clone())).await.unwrap();
    let first = joiner.file();

    // A third of a life later it has another leaf.
    clock.jump(9 * HOUR_MS);
    until("it renews", async || joiner.file() != first).await;
    status_of(state.tls(member.client)).await.unwrap();
    stop.cancel();

    // It starts again with the same flags; the token is used up.
    let stop = CancellationToken::new();
    let member = joiner.take(&stop).await.unwrap();
    status_of(state.tls(member.client)).await.unwrap();
    stop.cancel();

    // It was away for long: what it kept renews itself.
    clock.jump(5 * DAY_MS);
    let (stop, second) = (CancellationToken::new(), joiner.file());
    let without_token = IdentityConfig { join_file: String::new(), ..joiner.config.clone() };
    let joiner = Joiner { config: without_token, ..joiner };
    let member = joiner.take(&stop).await.unwrap();
    until("it renews", async || joiner.file() != second).await;
    status_of(state.tls(member.client)).await.unwrap();
    stop.cancel();

    // Away for too long it needs another token.
    clock.jump(40 * DAY_MS);
    let joiner = joiner.with_token(&state, "scheduler", 0o600).await;
    let member = joiner.take(&CancellationToken::new()).await.unwrap();
    // State has to see first that its own leaf is too old by now.
    until("it is answered", async || status_of(state.tls(member.client.clone())).await.is_ok()).await;
}

#[tokio::test]
async fn joins_that_are_wrong_are_refused_with_what_to_do() {
    let state = SecuredState::start(TlsMode::On).await;
    let (stop, clock) = (CancellationToken::new(), SystemClock::shared());
    let joiner = |role, name: &str| Joiner::new(&state, role, name, Arc::clone(&clock));
    // Others may read the token.
    let open = joiner(Role::Binder, "b1").with_token(&state, "binder", 0o644).await.take(&stop).await;
    assert!(matches!(open, Err(JoinError::File(_))), "{open:?}");
    // A token of another role.
    let other = joiner(Role::Binder, "b1").with_token(&state, "scheduler", 0o600).await.take(&stop).await;
    let other = refusal(other);
    assert!(has_reason(&other, reason::JOIN_REFUSED) && other.message().contains("scheduler"), "{other:?}");
    // Somebody else has the name.
    let first = joiner(Role::Binder, "b2").with_token(&state, "binder", 0o600).await;
    first.take(&stop).await.unwrap();
    let second = joiner(Role::Binder, "b2").with_token(&state, "binder", 0o600).await;
    let taken = refusal(second.take(&stop).await);
    assert!(has_reason(&taken, reason::NAME_IN_USE), "{taken:?}");
    // The token is used up, by whoever else shows it.
    let mut thief = joiner(Role::Binder, "b3");
    thief.config.join_file.clone_from(&first.config.join_file);
    let used = refusal(thief.take(&stop).await);
    assert!(has_reason(&used, reason::JOIN_REFUSED), "{used:?}");
    // Another cluster's state at that address.
    let others = SecuredState::start(TlsMode::On).await;
    let stray = joiner(Role::Binder, "b4").with_token(&others, "binder", 0o600).await.take(&stop).await;
    assert!(matches!(stray, Err(JoinError::NotState { .. })), "{stray:?}");
}

#[tokio::test]
async fn who_is_revoked_is_refused_by_services_too_until_the_name_is_allowed() {
    let state = SecuredState::start(TlsMode::On).await;
    let (stop, clock) = (CancellationToken::new(), SystemClock::shared());
    let service = Joiner::new(&state, Role::Dispatcher, "d1", Arc::clone(&clock));
    let service = service.with_token(&state, "dispatcher", 0o600).await.take(&stop).await.unwrap().server;
    let agent = Joiner::new(&state, Role::Agent, "n1", Arc::clone(&clock));
    let agent = agent.with_token(&state, "agent", 0o600).await;
    let own = agent.take(&stop).await.unwrap();
    let ask = async |security| {
        let request = v1::GetNodeRequest { name: "n1".to_owned() };
        NodeServiceClient::new(state.tls(security)).get_node(request).await.unwrap_err()
    };
    assert_eq!(ask(own.client.clone()).await.code(), Code::NotFound, "it may ask");
    let shown = leaf_of(&agent);
    let judged = |service: &ServerSecurity| service.judge_page(&shown, &HeaderMap::new(), "GET /metrics");
    assert!(matches!(judged(&service), Ok(Caller::Agent { .. })));
    // A person's token counts there as at state.
    let mut headers = HeaderMap::new();
    let token = format!("Bearer {}", state.token().await);
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&token).unwrap());
    let bare = Transport::Tls { leaf: None };
    until("the service knows whose tokens count", async || {
        service.judge_page(&bare, &headers, "GET /nothing").is_ok_and(|caller| caller == Caller::admin())
    })
    .await;

    revoke(&state, "agent/n1").await;
    assert_eq!(ask(own.client).await.code(), Code::Unauthenticated);
    until("the service refuses it", async || judged(&service).is_err()).await;
    // What it kept does not count any more, and a new token alone gives no name that is revoked.
    let agent = agent.with_token(&state, "agent", 0o600).await;
    let revoked = refusal(agent.take(&stop).await);
    assert!(has_reason(&revoked, reason::IDENTITY_REVOKED), "{revoked:?}");
    allow(&state, "agent/n1").await;
    let again = agent.take(&stop).await.unwrap();
    assert_eq!(ask(again.client).await.code(), Code::NotFound);
    // The older leaf stays refused.
    until("the service knows the name again", async || {
        service.judge_page(&leaf_of(&agent), &HeaderMap::new(), "GET /metrics").is_ok()
    })
    .await;
    assert!(judged(&service).is_err());
}

/// An audit reads every revision: those of which it is shown nothing must not seem to be missing.
#[tokio::test]
async fn a_watch_of_all_kinds_delivers_revisions_that_hold_join_tokens_alone() {
    let state = SecuredState::start(TlsMode::On).await;
    for _ in 0..3 {
        state.join_token("agent").await;
    }
    let mut client = StateServiceClient::new(state.socket());
    let status = client.get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
    let request = v1::WatchRequest { from_revision: 1, ..v1::WatchRequest::default() };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    let (mut revisions, mut n_hidden) = (Vec::new(), 0);
    // What is shown of them is that somebody made them.
    let is_logged = |op: &[u8]| matches!(v1::Op::decode(op).unwrap().op, Some(v1::op::Op::PutChange(_)));
    while revisions.last().is_none_or(|last| *last < status.revision) {
        let answer = tokio::time::timeout(PATIENCE, watch.message()).await.unwrap().unwrap().unwrap();
        revisions.extend(answer.commits.iter().map(|commit| commit.revision));
        n_hidden += answer.commits.iter().filter(|commit| commit.ops.iter().all(|op| is_logged(op))).count();
    }
    assert_eq!(revisions, (1..=status.revision).collect::<Vec<_>>());
    assert!(n_hidden >= 3, "{n_hidden}");
}

/// A connection with the leaf that a process has kept.
fn leaf_of(joiner: &Joiner) -> Transport {
    let chain = godel_pki::pem::read_certificates(&joiner.file()).unwrap();
    let presented = PresentedLeaf::read(&chain[0]).unwrap();
    let identity = &presented.identity;
    let leaf = PeerLeaf { key: identity.key(), caller: Caller::of_identity(identity), presented };
    Transport::Tls { leaf: Some(Box::new(leaf)) }
}
