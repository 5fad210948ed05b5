//! All that is known of identities, and what joins, renewals and administrators' calls do to it.
//!
//! There is one writer. It makes its decisions here, one after the other, signs what they allow, and commits what [`IdentityBook::take_changes`]
//! says has changed; only then is anybody answered. Where a commit fails, it makes the book anew from the store.

mod changes;
mod refusals;

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{ids::StoreId, time::Millis};

use self::changes::BookKey;
pub use self::{
    changes::IdentityChange,
    refusals::{BookRefusal, IssueRefusal},
};
use crate::{
    joins::{JoinTerms, TOKEN_TTL_MS_MAX, TOKEN_USES_MAX, check_name_free, judge_join},
    leaves::{BACKDATED_MS, LeafStanding, LeafTimes, issue_time, judge_leaf},
    names::{AgentNames, Identity, Role},
    people::People,
    records::{
        ClusterTrust, HASH_LEN, IdentityRecord, JoinTokenAsk, JoinTokenRecord, LastJoin, RootFingerprint,
    },
    rotation::{self, NextSigner, RotationRefusal, UnusedRoots},
};

/// Most join tokens that there may be.
pub const N_JOIN_TOKENS_MAX: usize = 1_000;
/// Longest key of an identity's record, bytes.
pub const IDENTITY_KEY_LEN_MAX: usize = 253;

/// Most identities whose leaves one join ends: they are written together.
pub const N_ENDED_MAX: usize = 1_000;
/// Most identities that are forgotten at once.
pub const N_FORGOTTEN_MAX: usize = 256;
/// Changes after which a commit takes no further decision. With the largest one, which ends [`N_ENDED_MAX`] identities, a commit has at most 1,258
/// changes of at most 700 bytes: it fits a transaction of 1 MiB, with the roots and their keys.
pub const N_ROUND_CHANGES_MAX: usize = 256;
/// For how long the clock must say that an identity has long expired, milliseconds: a clock that is set wrong and set right again ends nobody.
pub const SURELY_ENDED_MS: u64 = 10 * 60_000;

/// All that is known of identities.
#[derive(Clone, Debug)]
pub struct IdentityBook {
    trust: ClusterTrust,
    identities: BTreeMap<String, IdentityRecord>,
    tokens: BTreeMap<String, JoinTokenRecord>,
    people: People,
    changed: BTreeSet<BookKey>,
    /// Identities that have long expired, by key. Not stored.
    long_expired: BTreeMap<String, SeenExpired>,
    /// Roots that signed no last leaf, which are kept for a while. Not stored.
    unused_roots: UnusedRoots,
}

/// Since when the clock has said of an identity, at every look, that its time is over.
#[derive(Clone, Copy, Debug)]
struct SeenExpired {
    /// It cannot be renewed.
    expired: Millis,
    /// It may be forgotten.
    forgettable: Option<Millis>,
}

/// Who asks to join, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAsk {
    /// Id of the join token; that the secret is right was compared before.
    pub token: String,
    /// The identity that is asked for.
    pub identity: Identity,
    /// SHA-256 of the public key that the leaf is for.
    pub key_hash: [u8; HASH_LEN],
}

/// The leaf that a decision allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafGrant {
    /// Whose.
    pub identity: Identity,
    /// Its times.
    pub times: LeafTimes,
    /// What signs it.
    pub root: RootFingerprint,
    /// Pool of an agent's nodes; empty for none.
    pub pool: String,
}

/// When leaves are issued, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssueClock {
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Lifetime of a leaf, milliseconds.
    pub lifetime_ms: u64,
}

/// When it is looked what nobody needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TidyClock {
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// The same moment on a clock that nobody sets.
    pub monotonic: Millis,
}

impl IdentityBook {
    /// What the store holds.
    pub fn new(
        trust: ClusterTrust,
        identities: impl IntoIterator<Item = IdentityRecord>,
        tokens: impl IntoIterator<Item = JoinTokenRecord>,
    ) -> Self {
        let identities = identities.into_iter().map(|record| (record.identity.key(), record)).collect();
        let tokens = tokens.into_iter().map(|token| (token.id.clone(), token)).collect();
        Self {
            trust,
            identities,
            tokens,
            people: People::default(),
            changed: BTreeSet::new(),
            long_expired: BTreeMap::new(),
            unused_roots: UnusedRoots::default(),
        }
    }

    /// The same with these principals and tokens.
    #[must_use]
    pub fn with_people(self, people: People) -> Self {
        Self { people, ..self }
    }

    /// Principals and their tokens.
    pub fn people(&self) -> &People {
        &self.people
    }

    /// Principals and their tokens, to change them.
    pub fn people_mut(&mut self) -> &mut People {
        &mut self.people
    }

    /// What everybody trusts.
    pub fn trust(&self) -> &ClusterTrust {
        &self.trust
    }

    /// Identities by role and name.
    pub fn identities(&self) -> impl Iterator<Item = &IdentityRecord> {
        self.identities.values()
    }

    /// Join tokens by id.
    pub fn tokens(&self) -> impl Iterator<Item = &JoinTokenRecord> {
        self.tokens.values()
    }

    /// The join token with this id.
    pub fn token(&self, id: &str) -> Option<&JoinTokenRecord> {
        self.tokens.get(id)
    }

    /// The identity with this key, as `agent/n1`.
    pub fn identity(&self, key: &str) -> Option<&IdentityRecord> {
        self.identities.get(key)
    }

    /// How many records have changed since [`Self::take_changes`].
    pub fn n_changed(&self) -> usize {
        self.changed.len() + self.people.n_changed()
    }

    /// What has changed since this was called last.
    pub fn take_changes(&mut self) -> Vec<IdentityChange> {
        let changed = std::mem::take(&mut self.changed);
        let change = |key| match key {
            BookKey::Trust => IdentityChange::Trust(self.trust.clone()),
            BookKey::Identity(key) => match self.identities.get(&key) {
                Some(record) => IdentityChange::Identity(record.clone()),
                None => IdentityChange::IdentityGone(key),
            },
            BookKey::Token(id) => match self.tokens.get(&id) {
                Some(token) => IdentityChange::Token(token.clone()),
                None => IdentityChange::TokenGone(id),
            },
        };
        let people = self.people.take_changes();
        changed.into_iter().map(change).chain(people.into_iter().map(IdentityChange::Person)).collect()
    }

    /// All that is known, as changes that make the same of an empty book.
    pub fn all(&self) -> impl Iterator<Item = IdentityChange> {
        let identities = self.identities.values().cloned().map(IdentityChange::Identity);
        let tokens = self.tokens.values().cloned().map(IdentityChange::Token);
        let people = self.people.all().map(IdentityChange::Person);
        std::iter::once(IdentityChange::Trust(self.trust.clone()))
            .chain(identities)
            .chain(tokens)
            .chain(people)
    }

    /// Makes a change that another book has made.
    pub fn apply(&mut self, change: IdentityChange) {
        match change {
            IdentityChange::Trust(trust) => self.trust = trust,
            IdentityChange::Identity(record) => drop(self.identities.insert(record.identity.key(), record)),
            IdentityChange::IdentityGone(key) => drop(self.identities.remove(&key)),
            IdentityChange::Token(token) => drop(self.tokens.insert(token.id.clone(), token)),
            IdentityChange::TokenGone(id) => drop(self.tokens.remove(&id)),
            IdentityChange::Person(change) => self.people.apply(change),
        }
    }

    /// Issues the first leaf of an identity for a join token, and counts the use. Whatever leaves of the name there were are refused from now
    /// on, and so are those of names that overlap it and were allowed to be joined again.
    ///
    /// A join that is repeated with the same token for the same key, because its answer was lost, is answered with another leaf of the same
    /// holder. It counts no use, so it may be repeated until the token expires.
    ///
    /// # Errors
    /// The token is no good for it, or somebody holds the name. Nothing has changed then.
    pub fn join(&mut self, ask: &JoinAsk, clock: IssueClock) -> Result<LeafGrant, IssueRefusal> {
        let JoinAsk { token, identity, key_hash } = ask;
        let key = identity.key();
        let token = self.tokens.get(token).ok_or(IssueRefusal::NoSuchToken)?;
        let join = LastJoin { token: token.id.clone(), key_hash: *key_hash };
        let repeated = self.identities.get(&key).filter(|record| {
            let is_held = record.is_held(clock.now_ms);
            is_held && record.last_join.as_ref() == Some(&join) && clock.now_ms < token.terms.expires_ms
        });
        if let Some(record) = repeated {
            return Ok(self.issue_next(identity, next_issue_ms(record, clock.now_ms), clock));
        }
        judge_join(&token.terms, identity, clock.now_ms)?;
        if key.len() > IDENTITY_KEY_LEN_MAX {
            let max = IDENTITY_KEY_LEN_MAX - (key.len() - identity.name().len());
            return Err(IssueRefusal::Long { len: identity.name().len(), max });
        }
        let overlapping = self.overlapping(identity);
        self.check_free(identity, &overlapping, clock.now_ms)?;
        if overlapping.len() > N_ENDED_MAX {
            return Err(IssueRefusal::TooManyNames { asked: key, n: overlapping.len() });
        }
        let pool = token.pool.clone();
        Ok(self.issue_first(identity, &pool, Some(join), &overlapping, clock))
    }

    /// Issues state's own leaf, which nobody can keep it from.
    pub fn issue_own(&mut self, identity: &Identity, clock: IssueClock) -> LeafGrant {
        match self.identities.get_mut(&identity.key()) {
            // A state that starts again may find its leaf gone: it goes on as the same. While it had another name, this one may have been revoked.
            Some(record) => {
                (record.is_revoked, record.may_join_again, record.last_join) = (false, false, None);
                let issued_ms = next_issue_ms(record, clock.now_ms);
                self.issue_next(identity, issued_ms, clock)
            }
            None => self.issue_first(identity, "", None, &[], clock),
        }
    }

    /// Issues the next leaf of whoever calls with a leaf of these times. An expired one will do. A store that was restored from a backup does not
    /// know who joined since: who holds a leaf stays who it is, unless somebody has the name meanwhile.
    ///
    /// # Errors
    /// The leaf does not count, or somebody else has the name. Nothing has changed then.
    pub fn renew(
        &mut self,
        identity: &Identity,
        times: LeafTimes,
        clock: IssueClock,
    ) -> Result<LeafGrant, IssueRefusal> {
        let key = identity.key();
        let record = self.identities.get(&key);
        let standing = judge_leaf(times, record.map(IdentityRecord::name_record), clock.now_ms);
        if let LeafStanding::Refused(why) = standing {
            return Err(IssueRefusal::Leaf { key, why });
        }
        let issued_ms = match record {
            Some(record) => next_issue_ms(record, clock.now_ms),
            None => {
                self.check_free(identity, &self.overlapping(identity), clock.now_ms)?;
                let issued_ms = times.issued_ms();
                let record = IdentityRecord { issued_ms, ..IdentityRecord::new(identity, "", issued_ms) };
                next_issue_ms(self.identities.entry(key).or_insert(record), clock.now_ms)
            }
        };
        Ok(self.issue_next(identity, issued_ms, clock))
    }

    /// Says in which store the book is. Another one than before was restored from a backup or truncated: it does not know how often join tokens were
    /// used since, and all of them are dropped. Returns whether it is another one.
    pub fn enter_store(&mut self, store: StoreId) -> bool {
        let before = std::mem::replace(&mut self.trust.store, store);
        if before == store {
            return false;
        }
        self.changed.insert(BookKey::Trust);
        let is_other = !before.may_be(store);
        if is_other {
            self.changed.extend(std::mem::take(&mut self.tokens).into_keys().map(BookKey::Token));
        }
        is_other
    }

    /// Makes a join token, and forgets those that have expired. Where there is no room for it, the oldest one that is used up is forgotten; until then
    /// it answers joins that are repeated.
    ///
    /// # Errors
    /// It asks for too much, or there are too many.
    pub fn create_token(
        &mut self,
        id: String,
        secret_hash: [u8; 32],
        ask: JoinTokenAsk,
        now_ms: u64,
    ) -> Result<&JoinTokenRecord, BookRefusal> {
        let JoinTokenAsk { role, names, pool, ttl_ms, n_uses } = ask;
        if ttl_ms > TOKEN_TTL_MS_MAX || n_uses > TOKEN_USES_MAX {
            return Err(BookRefusal::TooMuch);
        }
        if role != Role::Agent && !pool.is_empty() {
            return Err(BookRefusal::PoolOfService { role });
        }
        if self.tokens.contains_key(&id) {
            return Err(BookRefusal::KnownToken { id });
        }
        self.forget_expired_tokens(now_ms);
        if self.tokens.len() >= N_JOIN_TOKENS_MAX {
            self.forget_oldest_spent_token();
        }
        if self.tokens.len() >= N_JOIN_TOKENS_MAX {
            return Err(BookRefusal::TooManyTokens);
        }
        let terms = JoinTerms { role, names, expires_ms: now_ms.saturating_add(ttl_ms), uses_left: n_uses };
        let token = JoinTokenRecord { id: id.clone(), secret_hash, terms, pool, created_ms: now_ms };
        self.changed.insert(BookKey::Token(id.clone()));
        Ok(self.tokens.entry(id).or_insert(token))
    }

    /// Deletes a join token.
    ///
    /// # Errors
    /// There is none with this id.
    pub fn delete_token(&mut self, id: &str) -> Result<(), BookRefusal> {
        self.tokens.remove(id).ok_or_else(|| BookRefusal::NoToken { id: id.to_owned() })?;
        self.changed.insert(BookKey::Token(id.to_owned()));
        Ok(())
    }

    /// Refuses all leaves of an identity, and keeps others from its name. Revoked twice is revoked once.
    ///
    /// # Errors
    /// It has no leaf, or is state's own.
    pub fn revoke(&mut self, identity: &Identity, own: &Identity) -> Result<&IdentityRecord, BookRefusal> {
        let key = identity.key();
        if identity == own {
            return Err(BookRefusal::Own { key });
        }
        let covered_by = self.covering(identity);
        let Some(record) = self.identities.get_mut(&key) else {
            return Err(BookRefusal::NoIdentity { key, covered_by });
        };
        record.is_revoked = true;
        record.may_join_again = false;
        record.refuse_leaves();
        self.changed.insert(BookKey::Identity(key));
        Ok(record)
    }

    /// Lets one join have a name that is held or was revoked.
    ///
    /// # Errors
    /// It has no leaf: the name is free already, unless another one covers it. Or it is state's own.
    pub fn allow(&mut self, identity: &Identity, own: &Identity) -> Result<&IdentityRecord, BookRefusal> {
        let key = identity.key();
        if identity == own {
            return Err(BookRefusal::Own { key });
        }
        let covered_by = self.covering(identity);
        let Some(record) = self.identities.get_mut(&key) else {
            return Err(BookRefusal::NoIdentity { key, covered_by });
        };
        record.may_join_again = true;
        self.changed.insert(BookKey::Identity(key));
        Ok(record)
    }

    /// Takes a new root.
    ///
    /// # Errors
    /// Another one is leaving still.
    pub fn rotate(&mut self, next: NextSigner, now_ms: u64) -> Result<(), RotationRefusal> {
        let tokens_end_ms = self.people.last_end_ms();
        rotation::add_root(&mut self.trust, next, self.identities.values(), tokens_end_ms, now_ms)?;
        self.changed.insert(BookKey::Trust);
        Ok(())
    }

    /// Has a key check tokens at least until `ends_ms`, because it has signed one that ends then.
    pub fn keep_person_key(&mut self, id: &str, ends_ms: u64) {
        if rotation::keep_key(&mut self.trust, id, ends_ms) {
            self.changed.insert(BookKey::Trust);
        }
    }

    /// Drops what nobody needs any more: roots without leaves, keys of tokens that have ended, and at most [`N_FORGOTTEN_MAX`] identities that are long
    /// gone. Returns the roots. What only the clock ends is dropped once the clock has said so for [`SURELY_ENDED_MS`].
    pub fn tidy(&mut self, TidyClock { now_ms, monotonic }: TidyClock) -> Vec<RootFingerprint> {
        self.see_long_expired(now_ms, monotonic);
        let is_sure = |since: Millis| monotonic.since(since) >= SURELY_ENDED_MS;
        let has_surely_expired =
            |key: &str| self.long_expired.get(key).is_some_and(|seen| is_sure(seen.expired));
        let may_renew =
            self.identities.iter().filter(|(key, record)| !record.is_refused() && !has_surely_expired(key));
        let used: BTreeSet<RootFingerprint> = may_renew.map(|(_, record)| record.root).collect();
        let kept = self.unused_roots.note(&self.trust, used, monotonic);
        let gone = self.long_expired.iter().filter(|(_, seen)| seen.forgettable.is_some_and(is_sure));
        let gone: Vec<String> = gone.map(|(key, _)| key.clone()).take(N_FORGOTTEN_MAX).collect();
        let dropped = rotation::drop_unused_roots(&mut self.trust, &kept, now_ms);
        let has_ended_keys = rotation::drop_ended_keys(&mut self.trust, now_ms);
        if has_ended_keys || !dropped.is_empty() {
            self.changed.insert(BookKey::Trust);
        }
        for key in gone {
            self.identities.remove(&key);
            self.long_expired.remove(&key);
            self.changed.insert(BookKey::Identity(key));
        }
        dropped
    }

    /// Notes which identities have long expired, and forgets it of those that have not.
    fn see_long_expired(&mut self, now_ms: u64, monotonic: Millis) {
        let Self { identities, long_expired, .. } = self;
        let is_ended = |record: &IdentityRecord| record.has_long_expired(now_ms);
        long_expired.retain(|key, _| identities.get(key).is_some_and(is_ended));
        for (key, record) in identities.iter().filter(|(_, record)| is_ended(record)) {
            let first = SeenExpired { expired: monotonic, forgettable: None };
            let seen = long_expired.entry(key.clone()).or_insert(first);
            seen.forgettable = record.is_forgettable(now_ms).then(|| seen.forgettable.unwrap_or(monotonic));
        }
    }

    /// Whether a root is leaving.
    pub fn is_rotating(&self) -> bool {
        self.trust.roots.iter().any(|root| root.is_leaving)
    }

    /// How many identities hold a leaf of a root that is leaving.
    pub fn n_with_leaving_root(&self, now_ms: u64) -> usize {
        let leaving: BTreeSet<RootFingerprint> =
            self.trust.roots.iter().filter(|root| root.is_leaving).map(|root| root.fingerprint).collect();
        let held = self.identities.values().filter(|record| record.is_held(now_ms));
        held.filter(|record| leaving.contains(&record.root)).count()
    }

    fn forget_expired_tokens(&mut self, now_ms: u64) {
        let changed = &mut self.changed;
        self.tokens.retain(|id, token| {
            let is_good = token.terms.expires_ms > now_ms;
            if !is_good {
                changed.insert(BookKey::Token(id.clone()));
            }
            is_good
        });
    }

    fn forget_oldest_spent_token(&mut self) {
        let spent = self.tokens.values().filter(|token| token.terms.uses_left == 0);
        let Some(oldest) = spent.min_by_key(|token| token.created_ms).map(|token| token.id.clone()) else {
            return;
        };
        self.tokens.remove(&oldest);
        self.changed.insert(BookKey::Token(oldest));
    }

    /// Issues a leaf to a new holder of a name: the leaves of earlier holders are refused.
    fn issue_first(
        &mut self,
        identity: &Identity,
        pool: &str,
        join: Option<LastJoin>,
        overlapping: &[String],
        clock: IssueClock,
    ) -> LeafGrant {
        if let Some(token) = join.as_ref().and_then(|join| self.tokens.get_mut(&join.token)) {
            token.terms.uses_left = token.terms.uses_left.saturating_sub(1);
            self.changed.insert(BookKey::Token(token.id.clone()));
        }
        for key in overlapping {
            let Some(record) = self.identities.get_mut(key) else { continue };
            record.refuse_leaves();
            (record.is_revoked, record.may_join_again) = (false, false);
            self.changed.insert(BookKey::Identity(key.clone()));
        }
        let key = identity.key();
        let before = self.identities.get(&key);
        // Leaves that were refused by their times stay refused.
        let last_ms =
            before.map(|record| record.issued_ms.max(record.refused_before_ms.saturating_sub(1_000)));
        let issued_ms = issue_time(clock.now_ms, last_ms);
        // Also of those that a restored store knows nothing of.
        let refused_before_ms = issued_ms;
        let record = IdentityRecord {
            refused_before_ms,
            last_join: join,
            ..IdentityRecord::new(identity, pool, clock.now_ms)
        };
        self.identities.insert(key, record);
        self.issue_next(identity, issued_ms, clock)
    }

    fn issue_next(&mut self, identity: &Identity, issued_ms: u64, clock: IssueClock) -> LeafGrant {
        let root = rotation::signing_root(&self.trust, clock.now_ms);
        let root = root.map_or(RootFingerprint::default(), |root| root.fingerprint);
        let times = LeafTimes::of_issue(issued_ms, clock.lifetime_ms);
        let key = identity.key();
        let mut pool = String::new();
        if let Some(record) = self.identities.get_mut(&key) {
            (record.issued_ms, record.root) = (record.issued_ms.max(times.issued_ms()), root);
            record.ends_ms = record.ends_ms.max(times.not_after_ms);
            pool.clone_from(&record.pool);
        }
        self.changed.insert(BookKey::Identity(key));
        LeafGrant { identity: identity.clone(), times, root, pool }
    }

    /// Whether nobody holds a name that overlaps, and none of them was revoked, unless it may be joined again.
    fn check_free(
        &self,
        identity: &Identity,
        overlapping: &[String],
        now_ms: u64,
    ) -> Result<(), IssueRefusal> {
        let records = overlapping.iter().filter_map(|key| self.identities.get(key));
        let blocking: Vec<&IdentityRecord> = records
            .filter(|record| !record.may_join_again && (record.is_revoked || record.is_held(now_ms)))
            .collect();
        if let Some(revoked) = blocking.iter().find(|record| record.is_revoked) {
            return Err(IssueRefusal::Revoked { taken: revoked.identity.key() });
        }
        Ok(check_name_free(identity, blocking.iter().map(|record| &record.identity))?)
    }

    /// Keys of the identities whose names overlap one: of an agent those that may speak for a node of the other.
    fn overlapping(&self, identity: &Identity) -> Vec<String> {
        let Some(names) = identity.agent_names() else {
            let key = identity.key();
            return if self.identities.contains_key(&key) { vec![key] } else { Vec::new() };
        };
        let mut keys = self.covering_prefixes(&names);
        match &names {
            AgentNames::One(_) => {
                keys.extend(Some(identity.key()).filter(|key| self.identities.contains_key(key)))
            }
            AgentNames::Prefixed(prefix) => {
                let from = agent_key(prefix);
                let within =
                    self.identities.range(from.clone()..).take_while(|(key, _)| key.starts_with(&from));
                keys.extend(within.map(|(key, _)| key.clone()));
            }
        }
        keys
    }

    /// Keys of the agents for shorter prefixes, which speak for all of these names.
    fn covering_prefixes(&self, names: &AgentNames) -> Vec<String> {
        let (AgentNames::One(text) | AgentNames::Prefixed(text)) = names;
        let is_one = matches!(names, AgentNames::One(_));
        // All names are ASCII.
        let ends = (0..=text.len()).filter(|end| is_one || *end < text.len());
        let prefixes = ends.filter_map(|end| text.get(..end));
        let keys = prefixes.map(|prefix| agent_key(&format!("{prefix}*")));
        keys.filter(|key| self.identities.contains_key(key)).collect()
    }

    /// An agent for a prefix of names that covers the identity.
    fn covering(&self, identity: &Identity) -> Option<String> {
        let names = identity.agent_names()?;
        self.covering_prefixes(&names).into_iter().next_back()
    }
}

/// When the next leaf of a holder that stays the same counts as issued. Its leaves need not be told apart by their times, so it is now, but not before the
/// last one. A last one that is not valid yet was issued while the clock was ahead, and does not count for that.
fn next_issue_ms(record: &IdentityRecord, now_ms: u64) -> u64 {
    let is_ahead = record.issued_ms > now_ms.saturating_add(BACKDATED_MS);
    let last_ms = if is_ahead { 0 } else { record.issued_ms };
    issue_time(now_ms, None).max(last_ms).max(record.refused_before_ms)
}

fn agent_key(name: &str) -> String {
    format!("{}/{name}", Role::Agent)
}

#[cfg(test)]
mod tests;
