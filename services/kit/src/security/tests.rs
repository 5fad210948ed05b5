//! A cluster of identities for tests: a signer, leaves, and what servers and clients make of them.

use std::{sync::Arc, time::Duration};

use godel_identity::{
    leaves::{LIFETIME_MS, LeafTimes, NameRecord},
    names::{ClusterName, Identity},
    permission::Principal,
};
use godel_pki::{
    leaves::OwnLeaf,
    person_tokens::{TokenOrder, make_token},
    requests::{LeafKey, check_request},
    roots::Trust,
    signer::{LeafOrder, ServerNames, Signer},
};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{BearerToken, CallerRecords, ClientSecurity, KnownPrincipal, ServerSecurity, TlsIdentity};

/// When leaves are issued, milliseconds.
const NOW_MS: u64 = 1_790_000_000_000;

/// A cluster with its signer.
pub(crate) struct TestCluster {
    pub(crate) signer: Signer,
    records: CallerRecords,
    now_ms: Arc<Mutex<u64>>,
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        let cluster: ClusterName = "c".parse().unwrap();
        let signer = Signer::make(cluster.clone()).unwrap();
        let records = CallerRecords::new(cluster);
        records.set_token_keys(vec![signer.token_key()]);
        Self { signer, records, now_ms: Arc::new(Mutex::new(NOW_MS)) }
    }

    /// What trusts this cluster and shows no leaf.
    pub(crate) fn nobody(&self) -> TlsIdentity {
        self.identity(None)
    }

    /// What has the leaf of `<role>/<name>`.
    pub(crate) fn process(&self, key: &str) -> TlsIdentity {
        self.identity(Some(self.leaf(key)))
    }

    /// What trusts this cluster and shows that.
    pub(crate) fn identity(&self, own: Option<OwnLeaf>) -> TlsIdentity {
        let now_ms = Arc::clone(&self.now_ms);
        TlsIdentity::new(self.trust(), own, Arc::new(move || *now_ms.lock()))
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust::new(self.signer.cluster().clone(), vec![self.signer.root().clone()]).unwrap()
    }

    /// A leaf for `<role>/<name>`.
    pub(crate) fn leaf(&self, key: &str) -> OwnLeaf {
        let identity: Identity = format!("spiffe://c/{key}").parse().unwrap();
        let times = LeafTimes::of_issue(NOW_MS, LIFETIME_MS);
        let order = LeafOrder { identity, times, server_names: ServerNames::default() };
        let own = LeafKey::generate().unwrap();
        let issued = self.signer.issue(&order, &check_request(&own.request().unwrap()).unwrap()).unwrap();
        OwnLeaf::new(issued.der, self.signer.root(), &own).unwrap()
    }

    /// A server with the leaf of `<role>/<name>`.
    pub(crate) fn server(&self, key: &str) -> ServerSecurity {
        self.server_of(self.process(key))
    }

    pub(crate) fn server_of(&self, identity: TlsIdentity) -> ServerSecurity {
        let now_ms = Arc::clone(&self.now_ms);
        ServerSecurity::new(identity, self.records.clone(), Arc::new(move || *now_ms.lock()))
    }

    /// A client that shows no leaf.
    pub(crate) fn stranger(&self) -> ClientSecurity {
        ClientSecurity::new(self.nobody())
    }

    /// A client with the leaf of `<role>/<name>`.
    pub(crate) fn member(&self, key: &str) -> ClientSecurity {
        ClientSecurity::new(self.process(key))
    }

    /// A client of the administrator, whose token is good for an hour from now.
    pub(crate) fn person(&self) -> ClientSecurity {
        self.client_of("admin", "t1")
    }

    /// The header with a token of that person, of that id, that ends after `lifetime_ms`.
    pub(crate) fn token_of(&self, person: &str, id: &str, lifetime_ms: u64) -> BearerToken {
        let issued_ms = *self.now_ms.lock();
        let expires_ms = issued_ms + lifetime_ms;
        let order = TokenOrder { person, id, issued_ms, expires_ms, is_session: false };
        BearerToken::new(&make_token(&self.signer, &order).unwrap()).unwrap()
    }

    /// The header with a token of the administrator that ends after `lifetime_ms`.
    pub(crate) fn token_for(&self, lifetime_ms: u64) -> BearerToken {
        self.token_of("admin", "t1", lifetime_ms)
    }

    /// Sets what is recorded of a principal.
    pub(crate) fn set_principal(&self, principal: Principal) {
        let name = principal.name.clone();
        let known = KnownPrincipal { principal: Arc::new(principal), refused_before_ms: 0 };
        self.records.set_principal(&name, Some(known));
    }

    /// Lets that much time pass since state was heard.
    pub(crate) fn silence(&self, silence: Duration) {
        self.records.set_heard(Instant::now().checked_sub(silence));
    }

    /// A client of that person, with a token that is good for an hour.
    pub(crate) fn client_of(&self, person: &str, token_id: &str) -> ClientSecurity {
        let (_, token) = watch::channel(self.token_of(person, token_id, 3_600_000));
        self.stranger().with_token(token)
    }

    /// Revokes a token.
    pub(crate) fn revoke_token(&self, id: &str) {
        self.records.set_revoked(id, true);
    }

    /// Has no token count any more.
    pub(crate) fn drop_token_keys(&self) {
        self.records.set_token_keys(Vec::new());
    }

    /// Revokes `<role>/<name>`.
    pub(crate) fn revoke(&self, key: &str) {
        let record = NameRecord { is_revoked: true, ..NameRecord::default() };
        self.records.set_name(key, Some(record));
    }

    /// Takes that back.
    pub(crate) fn forget_revocation(&self, key: &str) {
        self.records.set_name(key, None);
    }

    /// Lets time pass.
    pub(crate) fn pass_ms(&self, ms: u64) {
        *self.now_ms.lock() += ms;
    }
}
