//! What a service knows of those who call it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use godel_identity::{
    caller::ADMIN,
    leaves::{LeafStanding, NameRecord, judge_leaf},
    names::ClusterName,
    permission::Principal,
};
use godel_pki::person_tokens::{BadToken, PersonToken, TokenJudge, TokenKey};
use parking_lot::RwLock;
use tokio::time::Instant;

use super::{PeerLeaf, call_log::CallLog, yarn_tokens::YarnSecrets};

/// How long what state has said counts for calls of persons: who is revoked meanwhile is refused by then.
pub(crate) const HEARD_FOR: Duration = Duration::from_secs(60);

/// What a service knows of those who call it: which keys sign persons' tokens, what is recorded of persons and of the names of processes. Whoever follows
/// the records changes it. Clones are the same one.
#[derive(Clone)]
pub struct CallerRecords(Arc<KnownCallers>);

struct KnownCallers {
    cluster: ClusterName,
    names: RwLock<HashMap<String, NameRecord>>,
    tokens: RwLock<TokenJudge>,
    people: RwLock<KnownPeople>,
    /// What clients of YARN prove their tokens by.
    yarn: RwLock<YarnSecrets>,
    /// When state last said what it knows; `None`: it is state's own knowledge.
    heard: RwLock<Option<Instant>>,
    /// Calls that were refused.
    log: CallLog,
}

/// Principals and revoked tokens.
struct KnownPeople {
    admin: Arc<Principal>,
    by_name: HashMap<String, KnownPrincipal>,
    revoked: HashSet<String>,
}

/// A principal, as what tokens of it are judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPrincipal {
    /// Who it is, and what it may do.
    pub principal: Arc<Principal>,
    /// Tokens that were made before are refused, milliseconds since 1970.
    pub refused_before_ms: u64,
}

/// A person who calls, with the token that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenBearer {
    pub(crate) token: Arc<PersonToken>,
    pub(crate) principal: Arc<Principal>,
}

impl CallerRecords {
    /// Of a cluster of which nothing is recorded: no token counts, and every leaf that its times allow. `admin` is the one principal.
    pub fn new(cluster: ClusterName) -> Self {
        let tokens = RwLock::new(TokenJudge::new(cluster.clone(), Vec::new()));
        let people = KnownPeople {
            admin: Arc::new(Principal::admin()),
            by_name: HashMap::new(),
            revoked: HashSet::new(),
        };
        let (names, yarn, heard) = (RwLock::default(), RwLock::default(), RwLock::default());
        let (people, log) = (RwLock::new(people), CallLog::new(0));
        Self(Arc::new(KnownCallers { cluster, names, tokens, people, yarn, heard, log }))
    }

    /// The calls that were refused, and those that were done without a transaction, until whoever reports them takes them.
    pub fn call_log(&self) -> &CallLog {
        &self.0.log
    }

    /// Has tokens count that one of these keys has signed.
    pub fn set_token_keys(&self, keys: Vec<TokenKey>) {
        *self.0.tokens.write() = TokenJudge::new(self.0.cluster.clone(), keys);
    }

    /// Sets what is recorded of a name, `<role>/<name>`; `None`: nothing.
    pub fn set_name(&self, key: &str, record: Option<NameRecord>) {
        let mut names = self.0.names.write();
        match record {
            Some(record) => drop(names.insert(key.to_owned(), record)),
            None => drop(names.remove(key)),
        }
    }

    /// Sets what is recorded of all names.
    pub fn replace_names(&self, names: HashMap<String, NameRecord>) {
        *self.0.names.write() = names;
    }

    /// Sets what is recorded of a principal; `None`: nothing.
    pub fn set_principal(&self, name: &str, known: Option<KnownPrincipal>) {
        let mut people = self.0.people.write();
        match known {
            Some(known) => drop(people.by_name.insert(name.to_owned(), known)),
            None => drop(people.by_name.remove(name)),
        }
    }

    /// Sets whether a token is revoked.
    pub fn set_revoked(&self, token_id: &str, is_revoked: bool) {
        let mut people = self.0.people.write();
        if is_revoked {
            people.revoked.insert(token_id.to_owned());
        } else {
            people.revoked.remove(token_id);
        }
    }

    /// Sets what is recorded of all principals, and which tokens are revoked.
    pub fn replace_people(&self, principals: Vec<KnownPrincipal>, revoked: HashSet<String>) {
        let by_name = principals.into_iter().map(|known| (known.principal.name.clone(), known)).collect();
        let mut people = self.0.people.write();
        (people.by_name, people.revoked) = (by_name, revoked);
    }

    /// Notes that state has said just now what it knows. From now on persons are refused when it has not for a minute.
    pub fn note_heard(&self) {
        *self.0.heard.write() = Some(Instant::now());
    }

    #[cfg(test)]
    pub(crate) fn set_heard(&self, heard: Option<Instant>) {
        *self.0.heard.write() = heard;
    }

    /// For how long state has said nothing, if that is too long to judge persons by.
    pub(crate) fn silence(&self) -> Option<Duration> {
        self.silence_at(Instant::now())
    }

    fn silence_at(&self, now: Instant) -> Option<Duration> {
        let silence = now.saturating_duration_since((*self.0.heard.read())?);
        (silence >= HEARD_FOR).then_some(silence)
    }

    /// What is recorded of the principal of that name.
    pub(crate) fn principal(&self, name: &str) -> Option<Arc<Principal>> {
        self.0.people.read().principal(name)
    }

    /// How a leaf counts at `now_ms`.
    pub(crate) fn standing(&self, leaf: &PeerLeaf, now_ms: u64) -> LeafStanding {
        let record = self.0.names.read().get(&leaf.key).copied();
        judge_leaf(leaf.presented.times, record, now_ms)
    }

    /// Whose token it is, and what that one may do.
    pub(crate) fn bearer(&self, token: &str, now_ms: u64) -> Result<TokenBearer, BadToken> {
        let token = self.0.tokens.read().judge(token, now_ms)?;
        let principal = self.0.people.read().bearer(&token)?;
        Ok(TokenBearer { token, principal })
    }

    pub(super) fn yarn_secrets(&self) -> &RwLock<YarnSecrets> {
        &self.0.yarn
    }

    /// Whose token it is of which a client of YARN has proved what it says, and what that one may do.
    pub(super) fn bearer_of_said(&self, said: &str, now_ms: u64) -> Result<TokenBearer, BadToken> {
        let token = self.0.tokens.read().judge_said(said, now_ms)?;
        let principal = self.0.people.read().bearer(&token)?;
        Ok(TokenBearer { token, principal })
    }

    /// What a token says that would count, if somebody proved it.
    pub(super) fn judge_unproven(&self, said: &str, now_ms: u64) -> Result<PersonToken, BadToken> {
        let token = self.0.tokens.read().check_said(said, now_ms)?;
        self.0.people.read().bearer(&token)?;
        Ok(token)
    }

    /// Judges again a token that has counted, and that its principal may do what it might.
    pub(crate) fn judge_again(&self, bearer: &TokenBearer, now_ms: u64) -> Result<(), BadToken> {
        let TokenBearer { token, principal } = bearer;
        self.0.tokens.read().judge_again(token, now_ms)?;
        if self.0.people.read().bearer(token)? == *principal {
            return Ok(());
        }
        Err(BadToken::ChangedPrincipal(principal.name.clone()))
    }
}

impl KnownPeople {
    fn principal(&self, name: &str) -> Option<Arc<Principal>> {
        let known = self.by_name.get(name).map(|known| &known.principal);
        known.or_else(|| (name == ADMIN).then_some(&self.admin)).cloned()
    }

    /// What the person of a token may do whose signature was right.
    fn bearer(&self, token: &PersonToken) -> Result<Arc<Principal>, BadToken> {
        let refused_before_ms = self.by_name.get(&token.person).map_or(0, |known| known.refused_before_ms);
        if token.issued_ms < refused_before_ms || self.revoked.contains(&token.id) {
            return Err(BadToken::Revoked);
        }
        self.principal(&token.person).ok_or_else(|| BadToken::NoPrincipal(token.person.clone()))
    }
}

impl fmt::Debug for CallerRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerRecords").field("cluster", &self.0.cluster).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use godel_identity::permission::PersonRole;
    use godel_pki::{
        person_tokens::{TokenOrder, make_token},
        signer::Signer,
    };

    use super::*;

    struct Records {
        signer: Signer,
        records: CallerRecords,
    }

    impl Records {
        fn new() -> Self {
            let cluster: ClusterName = "c".parse().unwrap();
            let signer = Signer::make(cluster.clone()).unwrap();
            Self { signer, records: CallerRecords::new(cluster) }
        }

        fn token(&self, person: &str, id: &str) -> String {
            let order = TokenOrder { person, id, issued_ms: 1_000, expires_ms: 9_000, is_session: false };
            make_token(&self.signer, &order).unwrap()
        }

        fn person(&self, token: &str, now_ms: u64) -> Result<String, BadToken> {
            self.records.bearer(token, now_ms).map(|bearer| bearer.principal.name.clone())
        }

        fn set(&self, principal: Principal, refused_before_ms: u64) {
            let name = principal.name.clone();
            let known = KnownPrincipal { principal: Arc::new(principal), refused_before_ms };
            self.records.set_principal(&name, Some(known));
        }
    }

    #[test]
    fn a_token_counts_until_it_expires_or_its_key_goes() {
        let known = Records::new();
        let (records, token) = (&known.records, known.token("admin", "t1"));
        assert!(matches!(known.person(&token, 1_000), Err(BadToken::OtherKey(_))), "nothing is recorded");
        records.set_token_keys(vec![known.signer.token_key()]);
        for now_ms in [1_000, 8_999] {
            assert_eq!(known.person(&token, now_ms).as_deref(), Ok("admin"));
        }
        assert_eq!(known.person(&token, 9_000), Err(BadToken::Expired));
        assert_eq!(known.person(&token[1..], 1_000), Err(BadToken::Form));
        let counted = records.bearer(&token, 1_000).unwrap();
        assert_eq!(records.judge_again(&counted, 8_999), Ok(()));
        records.set_token_keys(Vec::new());
        assert!(matches!(known.person(&token, 1_000), Err(BadToken::OtherKey(_))));
        assert!(records.judge_again(&counted, 1_000).is_err());
    }

    #[test]
    fn a_token_counts_while_its_principal_is_there_and_it_is_not_revoked() {
        let known = Records::new();
        let (records, token) = (&known.records, known.token("ann", "t1"));
        records.set_token_keys(vec![known.signer.token_key()]);
        assert_eq!(known.person(&token, 1_000), Err(BadToken::NoPrincipal("ann".to_owned())));
        let user = Principal::new("ann", PersonRole::User);
        known.set(user.clone(), 0);
        let counted = records.bearer(&token, 1_000).unwrap();
        assert_eq!(*counted.principal, user);
        records.set_revoked("t1", true);
        assert_eq!(known.person(&token, 1_000), Err(BadToken::Revoked));
        assert_eq!(records.judge_again(&counted, 1_000), Err(BadToken::Revoked));
        assert_eq!(known.person(&known.token("ann", "t2"), 1_000).as_deref(), Ok("ann"));
        records.set_revoked("t1", false);
        // Of what was recorded anew as it was, nothing has changed.
        known.set(user.clone(), 1_000);
        assert_eq!(records.judge_again(&counted, 1_000), Ok(()));
        known.set(user.clone(), 1_001);
        assert_eq!(known.person(&token, 1_000), Err(BadToken::Revoked));
        known.set(Principal::new("ann", PersonRole::Viewer), 0);
        let changed = Err(BadToken::ChangedPrincipal("ann".to_owned()));
        assert_eq!(records.judge_again(&counted, 1_000), changed);
        records.set_principal("ann", None);
        assert!(matches!(records.judge_again(&counted, 1_000), Err(BadToken::NoPrincipal(_))));
    }

    #[test]
    fn the_administrator_is_there_without_a_record_and_its_sessions_end_with_one() {
        let known = Records::new();
        let (records, token) = (&known.records, known.token("admin", "t1"));
        records.set_token_keys(vec![known.signer.token_key()]);
        assert_eq!(known.person(&token, 1_000).as_deref(), Ok("admin"));
        let admin = KnownPrincipal { principal: Arc::new(Principal::admin()), refused_before_ms: 2_000 };
        records.replace_people(vec![admin], HashSet::new());
        assert_eq!(known.person(&token, 1_000), Err(BadToken::Revoked));
        records.replace_people(Vec::new(), HashSet::from(["t1".to_owned()]));
        assert_eq!(known.person(&token, 1_000), Err(BadToken::Revoked));
    }

    #[test]
    fn persons_are_refused_when_state_was_not_heard_for_a_minute() {
        let records = Records::new().records;
        let late = |ms| Instant::now() + HEARD_FOR + Duration::from_millis(ms);
        assert_eq!(records.silence_at(late(60_000)), None, "state knows by itself");
        let before = Instant::now();
        records.note_heard();
        assert_eq!(records.silence_at(before + HEARD_FOR - Duration::from_millis(1)), None);
        assert!(records.silence_at(late(1)).is_some_and(|silence| silence >= HEARD_FOR));
        assert_eq!(records.silence(), None);
    }
}
