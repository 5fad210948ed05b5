//! The service over a store in memory, with a clock that the tests set.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use godel_base::time::Millis;
use godel_crash::CrashPoints;
use godel_identity::{
    book::IdentityChange,
    caller::Caller,
    leaves::{LeafStanding, LeafTimes, judge_leaf},
    records::IdentityRecord,
    rotation::{PERSON_TOKEN_MS, ROOT_LEAD_MS, ROOT_UNUSED_MS},
};
use godel_kit::{
    address::server_hosts,
    clock::Clock,
    status::{has_reason, reason},
};
use godel_pki::{
    leaves::{LeafUsage, PresentedLeaf},
    person_tokens::{TokenKey, check_token},
    requests::LeafKey,
    roots::{RootCert, Trust},
};
use godel_proto::v1::{self, identity_service_server::IdentityService as _};
use godel_store::{Engine, State, StoreConfig, log::memory::MemoryDisk};
use tonic::{Code, Request, Status};

use super::*;

mod joins;

/// In 2026.
const NOW: i64 = 1_790_000_000_000;
const DAY: i64 = 24 * 3_600_000;

/// Shows what it is set to, and how much of that has passed.
struct SetClock(AtomicI64, AtomicU64);

impl Clock for SetClock {
    fn now(&self) -> Millis {
        Millis(self.1.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

struct Fixture {
    disk: MemoryDisk,
    store: Store,
    clock: Arc<SetClock>,
    dir: tempfile::TempDir,
    identities: Identities,
    rpc: IdentityRpc,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Fixture {
    async fn new() -> Self {
        let (disk, dir) = (MemoryDisk::default(), tempfile::tempdir().unwrap());
        Self::start(disk, dir, Arc::new(SetClock(AtomicI64::new(NOW), AtomicU64::new(0)))).await
    }

    async fn start(disk: MemoryDisk, dir: tempfile::TempDir, clock: Arc<SetClock>) -> Self {
        let store_clock = Arc::clone(&clock);
        let config = StoreConfig::new(Engine::Memory(disk.clone()));
        let store =
            Store::open(config, Arc::new(move || store_clock.wall_ms()), CrashPoints::default()).unwrap();
        let stop = CancellationToken::new();
        let at = |name: &str| Some(dir.path().join(name));
        let config = Config {
            pki_dir: at("pki"),
            socket: at("godel.sock"),
            signing_fails_while: at("broken"),
            ..Config::default()
        };
        let mut tasks = Vec::new();
        let mut begun = ServiceTasks { service: &stop, end: &stop, running: &mut tasks };
        let hosts = ["localhost", "state.example.com"].map(str::to_owned);
        let shared: SharedClock = Arc::clone(&clock) as SharedClock;
        let identities = Identities::begin(&config, &store, shared, &hosts, &mut begun).await.unwrap();
        let rpc = identities.rpc();
        Self { disk, store, clock, dir, identities, rpc, stop, tasks }
    }

    async fn restart(self) -> Self {
        let Self { disk, store, clock, dir, identities, rpc, stop, tasks } = self;
        stop.cancel();
        drop((rpc, identities));
        for task in tasks {
            task.await.unwrap();
        }
        store.close().await;
        Self::start(disk, dir, clock).await
    }

    fn wait(&self, ms: i64) {
        self.clock.0.fetch_add(ms, Ordering::SeqCst);
    }

    async fn token(&self, role: &str, names: &str, uses: u32) -> String {
        let request = v1::CreateJoinTokenRequest {
            role: role.to_owned(),
            names: names.to_owned(),
            uses,
            ..v1::CreateJoinTokenRequest::default()
        };
        self.rpc.create_join_token(Request::new(request)).await.unwrap().into_inner().token
    }

    async fn join(&self, token: &str, name: &str) -> Result<v1::JoinResponse, Status> {
        self.join_with(token, name, &LeafKey::generate().unwrap(), &[]).await
    }

    async fn join_with(
        &self,
        token: &str,
        name: &str,
        key: &LeafKey,
        hosts: &[&str],
    ) -> Result<v1::JoinResponse, Status> {
        let (token, name, csr) = (token.to_owned(), name.to_owned(), key.request().unwrap());
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let request = v1::JoinRequest { token, name, csr, hosts, role: String::new() };
        self.rpc.join(Request::new(request)).await.map(tonic::Response::into_inner)
    }

    async fn renew(&self, caller: Caller, leaf: &v1::Leaf) -> Result<v1::RenewIdentityResponse, Status> {
        let csr = LeafKey::generate().unwrap().request().unwrap();
        let mut request = Request::new(v1::RenewIdentityRequest { csr, hosts: Vec::new() });
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(presented(leaf).times);
        self.rpc.renew_identity(request).await.map(tonic::Response::into_inner)
    }

    fn standing(&self, leaf: &v1::Leaf) -> LeafStanding {
        let PresentedLeaf { identity, times, .. } = presented(leaf);
        let ledger = &self.identities.ledger;
        let record = ledger.read(|book| book.identity(&identity.key()).map(IdentityRecord::name_record));
        judge_leaf(times, record, ledger.now_ms())
    }

    /// Whose a token is, judged by the keys that everybody trusts.
    fn person(&self, token: &str, now_ms: u64) -> Result<String, String> {
        let (cluster, keys) = self.identities.ledger.read(|book| {
            let trust = book.trust();
            let keys = trust.person_keys.iter().map(|key| TokenKey::new(key.public_key));
            (trust.cluster.clone(), keys.collect::<Vec<_>>())
        });
        let token = check_token(token, &cluster, &keys, now_ms);
        token.map(|token| token.person).map_err(|bad| bad.to_string())
    }

    async fn identities(&self) -> Vec<v1::IdentityInfo> {
        let request = Request::new(v1::ListIdentitiesRequest::default());
        self.rpc.list_identities(request).await.unwrap().into_inner().identities
    }

    async fn allow(&self, identity: &str) -> Result<(), Status> {
        let request = v1::AllowNameRequest { identity: identity.to_owned() };
        self.rpc.allow_name(Request::new(request)).await.map(drop)
    }

    async fn revoke(&self, identity: &str) -> Result<(), Status> {
        let request = v1::RevokeIdentityRequest { identity: identity.to_owned() };
        self.rpc.revoke_identity(Request::new(request)).await.map(drop)
    }

    async fn trust(&self) -> Trust {
        let trust = self
            .rpc
            .get_trust(Request::new(v1::GetTrustRequest {}))
            .await
            .unwrap()
            .into_inner()
            .trust
            .unwrap();
        let roots = trust.roots.into_iter().map(|root| RootCert::read(root.certificate).unwrap());
        Trust::new(trust.cluster.parse().unwrap(), roots.collect()).unwrap()
    }

    /// Waits until what the writer does of itself shows.
    async fn until(&self, mut is_there: impl FnMut(&State) -> bool) {
        let wait = async {
            while !self.store.read(&mut is_there) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), wait).await.expect("in time");
    }
}

fn presented(leaf: &v1::Leaf) -> PresentedLeaf {
    PresentedLeaf::read(&leaf.certificate.clone().into()).unwrap()
}

fn agent(names: &str) -> Caller {
    Caller::Agent { names: names.parse().unwrap() }
}

fn admin() -> Request<v1::IssueTokenRequest> {
    let mut request = Request::new(v1::IssueTokenRequest {});
    request.extensions_mut().insert(Caller::admin());
    request
}

#[track_caller]
fn is_refused<T>(answer: Result<T, Status>, code: Code, reason: &str) -> String {
    let status = answer.err().expect("it is refused");
    assert!(status.code() == code && has_reason(&status, reason), "{status:?}");
    status.message().to_owned()
}

#[test]
fn state_is_known_by_where_it_is_reached() {
    let more = ["state.example.com".to_owned(), "127.0.0.1".to_owned()];
    let hosts = server_hosts("https://[2001:db8::1]:7700", "0.0.0.0:7700".parse().unwrap(), &more);
    assert_eq!(hosts, ["localhost", "127.0.0.1", "::1", "2001:db8::1", "state.example.com"]);
    let hosts = server_hosts("http://node-1:7700", "10.0.0.7:7700".parse().unwrap(), &[]);
    assert_eq!(hosts, ["localhost", "127.0.0.1", "::1", "node-1", "10.0.0.7"]);
    assert!(server_names(&hosts).is_ok());
}

#[tokio::test]
async fn a_token_gives_its_name_a_leaf_once() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "", 1).await;
    let joined = fixture.join(&token, "n1").await.unwrap();
    let leaf = joined.leaf.unwrap();
    assert_eq!((leaf.identity.as_str(), leaf.issued_ms, leaf.ends_ms), ("agent/n1", NOW, NOW + DAY));
    let trust = fixture.trust().await;
    let verified = trust.verify_leaf(&leaf.certificate.clone().into(), LeafUsage::Client).unwrap();
    assert_eq!(verified.identity.key(), "agent/n1");
    assert!(trust.verify_leaf(&leaf.certificate.clone().into(), LeafUsage::Server).is_err());
    let message = is_refused(fixture.join(&token, "n2").await, Code::Unauthenticated, reason::JOIN_REFUSED);
    assert!(message.contains("used up"), "{message}");
    let other = fixture.token("agent", "", 2).await;
    let message = is_refused(fixture.join(&other, "n1").await, Code::AlreadyExists, reason::NAME_IN_USE);
    assert!(message.contains("agent/n1"), "{message}");
    fixture.join(&other, "n2").await.unwrap();
    fixture.join(&other, "n3").await.unwrap();
}

#[tokio::test]
async fn what_is_no_token_of_ours_is_refused() {
    let fixture = Fixture::new().await;
    let token = fixture.token("scheduler", "s*", 5).await;
    let parts: Vec<&str> = token.split('.').collect();
    let with = |at: usize, part: &str| {
        let mut parts = parts.clone();
        parts[at] = part;
        parts.join(".")
    };
    for wrong in [
        with(1, "other"),
        with(2, "0011223344556677"),
        with(3, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ] {
        is_refused(fixture.join(&wrong, "s1").await, Code::Unauthenticated, reason::JOIN_REFUSED);
    }
    assert_eq!(fixture.join("godel", "s1").await.unwrap_err().code(), Code::InvalidArgument);
    is_refused(fixture.join(&token, "t1").await, Code::Unauthenticated, reason::JOIN_REFUSED);
    assert_eq!(fixture.join(&token, "s/1").await.unwrap_err().code(), Code::InvalidArgument);
    // Whoever says which role he is to have is not given another one.
    let of_role = |role: &str, csr: Vec<u8>| {
        let (token, name, role) = (token.clone(), "s1".to_owned(), role.to_owned());
        Request::new(v1::JoinRequest { token, name, csr, hosts: Vec::new(), role })
    };
    let csr = || LeafKey::generate().unwrap().request().unwrap();
    let answer = fixture.rpc.join(of_role("agent", csr())).await.map(tonic::Response::into_inner);
    is_refused(answer, Code::Unauthenticated, reason::JOIN_REFUSED);
    let answer = fixture.rpc.join(of_role("cook", csr())).await;
    assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
    let csr = v1::JoinRequest { csr: vec![1], ..of_role("scheduler", Vec::new()).into_inner() };
    assert_eq!(fixture.rpc.join(Request::new(csr)).await.unwrap_err().code(), Code::InvalidArgument);
    let agents = fixture.token("agent", "", 1).await;
    let csr = LeafKey::generate().unwrap().request().unwrap();
    let (token_of, name, hosts) = (agents.clone(), "n1".to_owned(), vec!["n1".to_owned()]);
    let hosts = v1::JoinRequest { token: token_of, name, csr, hosts, role: String::new() };
    assert_eq!(fixture.rpc.join(Request::new(hosts)).await.unwrap_err().code(), Code::InvalidArgument);
    fixture.wait(3_600_000);
    is_refused(fixture.join(&token, "s1").await, Code::Unauthenticated, reason::JOIN_REFUSED);
    fixture.wait(-1);
    // None of these has used it up.
    for name in ["s1", "s2", "s3", "s4", "s5"] {
        fixture.join(&token, name).await.unwrap();
    }
    fixture.join(&agents, "n1").await.unwrap();
}

#[tokio::test]
async fn many_who_join_at_once_use_a_token_as_often_as_it_may_be() {
    let fixture = Arc::new(Fixture::new().await);
    let token = fixture.token("agent", "", 7).await;
    let joins: Vec<_> = (0..40)
        .map(|n| {
            let (fixture, token) = (Arc::clone(&fixture), token.clone());
            // Some names are asked for twice.
            tokio::spawn(async move { fixture.join(&token, &format!("n{}", n % 25)).await })
        })
        .collect();
    let mut joined = Vec::new();
    for join in joins {
        joined.extend(join.await.unwrap().ok().map(|answer| answer.leaf.unwrap().identity));
    }
    let n_joined = joined.len();
    joined.sort();
    joined.dedup();
    assert_eq!((n_joined, joined.len()), (7, 7), "{joined:?}");
    let tokens = fixture.rpc.list_join_tokens(Request::new(v1::ListJoinTokensRequest {})).await.unwrap();
    assert_eq!(tokens.into_inner().tokens[0].uses_left, 0);
}

#[tokio::test]
async fn a_name_that_is_joined_anew_ends_the_leaf_of_its_earlier_holder() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "*", 5).await;
    let first = fixture.join(&token, "n1").await.unwrap().leaf.unwrap();
    fixture.allow("agent/n1").await.unwrap();
    let second = fixture.join(&token, "n1").await.unwrap().leaf.unwrap();
    assert_eq!(fixture.standing(&second), LeafStanding::Valid);
    assert!(matches!(fixture.standing(&first), LeafStanding::Refused(_)));
    is_refused(fixture.renew(agent("n1"), &first).await, Code::PermissionDenied, reason::IDENTITY_REVOKED);
    fixture.renew(agent("n1"), &second).await.unwrap();
    is_refused(fixture.join(&token, "n1").await, Code::AlreadyExists, reason::NAME_IN_USE);
    let unknown = fixture.allow("agent/n2").await;
    is_refused(unknown, Code::NotFound, reason::UNKNOWN_NAME);
}

#[tokio::test]
async fn a_revoked_identity_is_refused_until_its_name_is_allowed() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "*", 5).await;
    let leaf = fixture.join(&token, "sim-*").await.unwrap().leaf.unwrap();
    let message = is_refused(fixture.revoke("agent/sim-1").await, Code::NotFound, reason::UNKNOWN_NAME);
    assert!(message.contains("agent/sim-*"), "{message}");
    fixture.revoke("agent/sim-*").await.unwrap();
    fixture.revoke("agent/sim-*").await.unwrap();
    assert!(matches!(fixture.standing(&leaf), LeafStanding::Refused(_)));
    is_refused(fixture.renew(agent("sim-*"), &leaf).await, Code::PermissionDenied, reason::IDENTITY_REVOKED);
    is_refused(fixture.join(&token, "sim-1").await, Code::FailedPrecondition, reason::IDENTITY_REVOKED);
    let listed = fixture.identities().await;
    let standing = |identity: &str| {
        let found = listed.iter().find(|info| info.record.as_ref().unwrap().identity == identity);
        found.map(v1::IdentityInfo::standing)
    };
    assert_eq!(standing("agent/sim-*"), Some(v1::IdentityStanding::Revoked));
    assert_eq!(standing("state/main"), Some(v1::IdentityStanding::Valid));
    assert_eq!(fixture.revoke("state/main").await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(fixture.allow("state/main").await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(fixture.revoke("n1").await.unwrap_err().code(), Code::InvalidArgument);
    // Also after a restart.
    let fixture = fixture.restart().await;
    assert!(matches!(fixture.standing(&leaf), LeafStanding::Refused(_)));
    fixture.allow("agent/sim-*").await.unwrap();
    fixture.join(&token, "sim-1").await.unwrap();
    assert!(matches!(fixture.standing(&leaf), LeafStanding::Refused(_)));
}

#[tokio::test]
async fn a_leaf_is_renewed_for_a_new_key_until_long_after_its_end() {
    let fixture = Fixture::new().await;
    let token = fixture.token("scheduler", "", 5).await;
    let leaf = fixture.join(&token, "s1").await.unwrap().leaf.unwrap();
    let caller = || Caller::Member { role: Role::Scheduler, name: "s1".to_owned() };
    fixture.wait(20 * DAY);
    assert_eq!(fixture.standing(&leaf), LeafStanding::Expired);
    let renewed = fixture.renew(caller(), &leaf).await.unwrap().leaf.unwrap();
    assert_eq!((renewed.identity.as_str(), renewed.issued_ms), ("scheduler/s1", NOW + 20 * DAY));
    assert_eq!(fixture.standing(&renewed), LeafStanding::Valid);
    let trust = fixture.trust().await;
    trust.verify_leaf(&renewed.certificate.clone().into(), LeafUsage::Server).unwrap();
    fixture.wait(11 * DAY);
    is_refused(fixture.renew(caller(), &leaf).await, Code::PermissionDenied, reason::IDENTITY_REVOKED);
    fixture.renew(caller(), &renewed).await.unwrap();
    // Who comes without a leaf has none to renew.
    for nobody in [Caller::Anonymous, Caller::admin(), Caller::Unjudged] {
        assert_eq!(fixture.renew(nobody, &renewed).await.unwrap_err().code(), Code::Unauthenticated);
    }
}

#[tokio::test]
async fn a_restart_goes_on_signing_with_the_same_root_and_tokens() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "", 2).await;
    let leaf = fixture.join(&token, "n1").await.unwrap().leaf.unwrap();
    let person = fixture.rpc.issue_token(admin()).await.unwrap().into_inner();
    let fixture = fixture.restart().await;
    let trust = fixture.trust().await;
    assert_eq!(trust.roots().len(), 1);
    trust.verify_leaf(&leaf.certificate.clone().into(), LeafUsage::Client).unwrap();
    let next = fixture.join(&token, "n2").await.unwrap().leaf.unwrap();
    trust.verify_leaf(&next.certificate.into(), LeafUsage::Client).unwrap();
    is_refused(fixture.join(&token, "n3").await, Code::Unauthenticated, reason::JOIN_REFUSED);
    assert_eq!(fixture.person(&person.token, u64::try_from(NOW).unwrap()).unwrap(), "admin");
    // State shows a leaf of that root.
    let own = fixture.identities.tls.own().unwrap();
    assert_eq!(own.leaf().identity.key(), "state/main");
}

#[tokio::test]
async fn a_person_gets_a_token_for_twelve_hours() {
    let fixture = Fixture::new().await;
    let issued = fixture.rpc.issue_token(admin()).await.unwrap().into_inner();
    let ends_ms = NOW + i64::try_from(PERSON_TOKEN_MS).unwrap();
    assert_eq!((issued.person.as_str(), issued.expires_ms), ("admin", ends_ms));
    let person = |now_ms: i64| fixture.person(&issued.token, u64::try_from(now_ms).unwrap());
    assert_eq!(person(ends_ms - 1).as_deref(), Ok("admin"));
    assert!(person(ends_ms).unwrap_err().contains("expired"));
    for nobody in [Caller::Anonymous, Caller::Unjudged, agent("n1")] {
        let mut request = Request::new(v1::IssueTokenRequest {});
        request.extensions_mut().insert(nobody);
        assert_eq!(fixture.rpc.issue_token(request).await.unwrap_err().code(), Code::PermissionDenied);
    }
    assert_eq!(
        fixture.rpc.issue_token(Request::new(v1::IssueTokenRequest {})).await.unwrap_err().code(),
        Code::PermissionDenied
    );
}

#[tokio::test]
async fn a_rotation_leaves_no_leaf_without_its_root() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "", 5).await;
    let leaf = fixture.join(&token, "n1").await.unwrap().leaf.unwrap();
    let rotated = fixture.rpc.rotate_ca(Request::new(v1::RotateCaRequest {})).await.unwrap().into_inner();
    let lead_ms = i64::try_from(ROOT_LEAD_MS).unwrap();
    assert_eq!((rotated.signs_from_ms, rotated.n_left), (NOW + lead_ms, 2));
    let again = fixture.rpc.rotate_ca(Request::new(v1::RotateCaRequest {})).await;
    is_refused(again, Code::FailedPrecondition, reason::ROTATION_UNDER_WAY);
    let trust = fixture.trust().await;
    assert_eq!(trust.roots().len(), 2);
    // The new one is trusted before it signs.
    let old = Trust::new(trust.cluster().clone(), vec![trust.roots()[0].clone()]).unwrap();
    let new = Trust::new(trust.cluster().clone(), vec![trust.roots()[1].clone()]).unwrap();
    let early = fixture.renew(agent("n1"), &leaf).await.unwrap().leaf.unwrap();
    old.verify_leaf(&early.certificate.clone().into(), LeafUsage::Client).unwrap();
    fixture.wait(lead_ms - 1_000);
    let person = fixture.rpc.issue_token(admin()).await.unwrap().into_inner();
    fixture.wait(1_000);
    // State itself shows a leaf of it at once.
    let is_new = || {
        let own = fixture.identities.tls.own().unwrap();
        let chain = godel_pki::pem::read_certificates(&own.to_pem()).unwrap();
        new.verify_leaf(&chain[0], LeafUsage::Server).is_ok()
    };
    fixture.until(|_| is_new()).await;
    let renewed = fixture.renew(agent("n1"), &early).await.unwrap();
    let late = renewed.leaf.unwrap();
    new.verify_leaf(&late.certificate.clone().into(), LeafUsage::Client).unwrap();
    assert!(fixture.identities().await.iter().all(|info| !info.has_leaving_root));
    // Nobody has a leaf of the old one. But the holder may not have received the new one, and comes once more with the leaf before.
    assert_eq!(fixture.trust().await.roots().len(), 2);
    fixture.clock.1.fetch_add(ROOT_UNUSED_MS, Ordering::SeqCst);
    let late = fixture.renew(agent("n1"), &early).await.unwrap().leaf.unwrap();
    // Then it goes, and with it its keys. Its tokens count on.
    fixture.until(|state| state.records(v1::Kind::SealedSigner, None).count() == 1).await;
    fixture.until(|_| fixture.identities.tls.trust().roots().len() == 1).await;
    let now_ms = fixture.identities.ledger.now_ms();
    assert_eq!(fixture.person(&person.token, now_ms).as_deref(), Ok("admin"));
    let fixture = fixture.restart().await;
    let trust = fixture.trust().await;
    trust.verify_leaf(&late.certificate.clone().into(), LeafUsage::Client).unwrap();
    assert!(trust.verify_leaf(&leaf.certificate.into(), LeafUsage::Client).is_err());
    fixture.rpc.rotate_ca(Request::new(v1::RotateCaRequest {})).await.unwrap();
}

/// Records that name a root of which nobody has a leaf would let the root go that everybody has.
#[tokio::test]
async fn nothing_is_recorded_while_nothing_signs() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "", 2).await;
    let leaf = fixture.join(&token, "n1").await.unwrap().leaf.unwrap();
    let before = fixture.identities().await;
    let broken = fixture.dir.path().join("broken");
    std::fs::write(&broken, "").unwrap();
    fixture.wait(DAY);
    for refused in [
        fixture.renew(agent("n1"), &leaf).await.unwrap_err(),
        fixture.join(&token, "n2").await.unwrap_err(),
        fixture.rpc.issue_token(admin()).await.unwrap_err(),
    ] {
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Internal, "state cannot sign: its log says why")
        );
    }
    let records =
        |infos: Vec<v1::IdentityInfo>| infos.into_iter().map(|info| info.record).collect::<Vec<_>>();
    assert_eq!(records(fixture.identities().await), records(before));
    std::fs::remove_file(&broken).unwrap();
    fixture.renew(agent("n1"), &leaf).await.unwrap();
    fixture.join(&fixture.token("agent", "", 1).await, "n2").await.unwrap();
}

#[tokio::test]
async fn tokens_are_listed_without_their_secrets_and_deleted() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "n*", 3).await;
    let (id, secret) = {
        let mut parts = token.split('.').skip(2);
        (parts.next().unwrap().to_owned(), parts.next().unwrap().to_owned())
    };
    let listed =
        fixture.rpc.list_join_tokens(Request::new(v1::ListJoinTokensRequest {})).await.unwrap().into_inner();
    let info = &listed.tokens[0];
    assert_eq!((info.token_id.as_str(), info.names.as_str(), info.uses_left), (id.as_str(), "n*", 3));
    assert_eq!(info.expires_ms - info.created_ms, 3_600_000);
    assert!(!format!("{listed:?}").contains(&secret));
    let stored =
        fixture.store.read(|state| state.records(v1::Kind::JoinToken, None).next().unwrap().1.value.clone());
    assert!(!stored.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()));
    let delete = || Request::new(v1::DeleteJoinTokenRequest { token_id: id.clone() });
    fixture.rpc.delete_join_token(delete()).await.unwrap();
    is_refused(fixture.rpc.delete_join_token(delete()).await, Code::NotFound, reason::UNKNOWN_NAME);
    is_refused(fixture.join(&token, "n1").await, Code::Unauthenticated, reason::JOIN_REFUSED);
    for (role, names, ttl_ms, uses) in
        [("king", "", 0, 0), ("agent", "A", 0, 0), ("agent", "", u64::MAX, 0), ("agent", "", 0, u32::MAX)]
    {
        let request = v1::CreateJoinTokenRequest {
            role: role.to_owned(),
            names: names.to_owned(),
            ttl_ms,
            uses,
            pool: String::new(),
        };
        let refused = fixture.rpc.create_join_token(Request::new(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
}

/// Whoever judges callers knows of a revocation before it is answered.
#[tokio::test]
async fn followers_hear_of_all_that_is_durable() {
    let fixture = Fixture::new().await;
    let token = fixture.token("agent", "", 5).await;
    fixture.join(&token, "n1").await.unwrap();
    let heard: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let hears = Arc::clone(&heard);
    fixture.identities.ledger.follow(move |change| {
        hears.lock().push(match change {
            IdentityChange::Trust(trust) => format!("{} roots", trust.roots.len()),
            IdentityChange::Identity(record) => format!("{} {}", record.identity.key(), record.is_revoked),
            IdentityChange::Token(token) => format!("{} uses", token.terms.uses_left),
            IdentityChange::IdentityGone(_) | IdentityChange::TokenGone(_) => "gone".to_owned(),
            IdentityChange::Person(change) => format!("{change:?}"),
        });
    });
    let hear = || std::mem::take(&mut *heard.lock());
    assert_eq!(hear(), ["1 roots", "agent/n1 false", "state/main false", "4 uses"]);
    fixture.revoke("agent/n1").await.unwrap();
    assert_eq!(hear(), ["agent/n1 true"]);
    fixture.join(&token, "n2").await.unwrap();
    assert_eq!(hear(), ["agent/n2 false", "3 uses"]);
    fixture.join(&token, "n2").await.unwrap_err();
    assert_eq!(hear(), [""; 0]);
    fixture.rpc.rotate_ca(Request::new(v1::RotateCaRequest {})).await.unwrap();
    assert_eq!(hear(), ["2 roots"]);
}

#[tokio::test]
async fn without_a_ca_nothing_is_issued() {
    let rpc = IdentityRpc::without_ca();
    let refused = rpc.get_trust(Request::new(v1::GetTrustRequest {})).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(rpc.issue_token(admin()).await.unwrap_err().code(), Code::FailedPrecondition);
}

/// What holds of times that are read back: whole seconds.
#[tokio::test]
async fn leaves_say_what_is_recorded() {
    let fixture = Fixture::new().await;
    fixture.wait(999);
    let token = fixture.token("agent", "", 1).await;
    let leaf = fixture.join(&token, "n1").await.unwrap().leaf.unwrap();
    let times: LeafTimes = presented(&leaf).times;
    let recorded = fixture.identities().await;
    let record = recorded[0].record.as_ref().unwrap();
    assert_eq!(i64::try_from(times.issued_ms()).unwrap(), record.issued_ms);
    assert_eq!(i64::try_from(times.not_after_ms).unwrap(), record.ends_ms);
    assert_eq!((record.issued_ms, record.ends_ms), (leaf.issued_ms, leaf.ends_ms));
}
