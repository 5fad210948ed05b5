//! All that is known of identities, and what joins, renewals and administrators' calls do to it.
//!
//! There is one writer. It makes its decisions here, one after the other, signs what they allow, and commits what [`IdentityBook::take_changes`]
//! says has changed; only then is anybody answered. Where a commit fails, it makes the book anew from the store.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    joins::{JoinRefusal, JoinTerms, TOKEN_TTL_MS_MAX, TOKEN_USES_MAX, check_name_free, judge_join},
    leaves::{LeafRefusal, LeafStanding, LeafTimes, issue_time, judge_leaf},
    names::{AgentNames, Identity, Role},
    records::{ClusterTrust, IdentityRecord, JoinTokenAsk, JoinTokenRecord, RootFingerprint},
    rotation::{self, NextSigner, RotationRefusal},
};

/// Most join tokens that there may be.
pub const N_JOIN_TOKENS_MAX: usize = 1_000;
/// Longest key of an identity's record, bytes.
pub const IDENTITY_KEY_LEN_MAX: usize = 253;

/// Most identities whose leaves one join ends: they are written together.
pub const N_ENDED_MAX: usize = 1_000;

/// All that is known of identities.
#[derive(Clone, Debug)]
pub struct IdentityBook {
    trust: ClusterTrust,
    identities: BTreeMap<String, IdentityRecord>,
    tokens: BTreeMap<String, JoinTokenRecord>,
    changed: BTreeSet<BookKey>,
}

/// A record of the book.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BookKey {
    Trust,
    Identity(String),
    Token(String),
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityChange {
    /// What everybody trusts.
    Trust(ClusterTrust),
    /// An identity.
    Identity(IdentityRecord),
    /// An identity is forgotten, by its key.
    IdentityGone(String),
    /// A join token.
    Token(JoinTokenRecord),
    /// A join token is gone, by its id.
    TokenGone(String),
}

/// Why a leaf is not issued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueRefusal {
    /// The token is unknown, or its secret is another one.
    #[error("the join token is unknown, or was deleted; ask an administrator for a new one")]
    NoSuchToken,
    /// The token or the name forbids it.
    #[error(transparent)]
    Join(#[from] JoinRefusal),
    /// The name, or one that covers it or that it covers, was revoked.
    #[error(
        "{taken} was revoked; an administrator may allow the name again (`godel identity allow {taken}`)"
    )]
    Revoked {
        /// The key of the identity.
        taken: String,
    },
    /// One transaction cannot end them all.
    #[error(
        "{n} identities have names that {asked} covers; at most {N_ENDED_MAX} make way at once: join with a longer prefix"
    )]
    TooManyNames {
        /// What was asked for.
        asked: String,
        /// How many there are.
        n: usize,
    },
    /// The leaf of the caller does not count.
    #[error("{key}: {why}")]
    Leaf {
        /// The key of the identity.
        key: String,
        /// Why not.
        why: LeafRefusal,
    },
    /// The key of its record would be too long.
    #[error("the name has {len} bytes; at most {max} fit an identity of this role")]
    Long {
        /// Bytes of the name.
        len: usize,
        /// Bytes that fit.
        max: usize,
    },
}

/// Why an administrator's call does nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BookRefusal {
    /// No leaf of that name was ever issued.
    #[error("{key} has no identity{}", .covered_by.as_ref().map(|by| format!("; {by} speaks for it")).unwrap_or_default())]
    NoIdentity {
        /// The key that was asked for.
        key: String,
        /// An identity that covers the name.
        covered_by: Option<String>,
    },
    /// State cannot work without its own identity.
    #[error("{key} is state's own identity; stop state to end it")]
    Own {
        /// Its key.
        key: String,
    },
    /// No token has that id.
    #[error("there is no join token {id}")]
    NoToken {
        /// The id that was asked for.
        id: String,
    },
    /// There are too many tokens.
    #[error("there are {N_JOIN_TOKENS_MAX} join tokens; delete some (`godel join-token delete ID`)")]
    TooManyTokens,
    /// Longer than tokens may be good.
    #[error("a join token is good for at most {} days and {TOKEN_USES_MAX} uses", TOKEN_TTL_MS_MAX / 86_400_000)]
    TooMuch,
    /// A pool is of nodes.
    #[error("only agents have a pool; leave it out for role {role}")]
    PoolOfService {
        /// The role that was asked for.
        role: Role,
    },
    /// It is known already.
    #[error("there is a join token {id} already")]
    KnownToken {
        /// The id.
        id: String,
    },
}

/// Who asks to join, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAsk {
    /// Id of the join token; that the secret is right was compared before.
    pub token: String,
    /// The identity that is asked for.
    pub identity: Identity,
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

impl IdentityBook {
    /// What the store holds.
    pub fn new(
        trust: ClusterTrust,
        identities: impl IntoIterator<Item = IdentityRecord>,
        tokens: impl IntoIterator<Item = JoinTokenRecord>,
    ) -> Self {
        let identities = identities.into_iter().map(|record| (record.identity.key(), record)).collect();
        let tokens = tokens.into_iter().map(|token| (token.id.clone(), token)).collect();
        Self { trust, identities, tokens, changed: BTreeSet::new() }
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
        changed.into_iter().map(change).collect()
    }

    /// All that is known, as changes that make the same of an empty book.
    pub fn all(&self) -> impl Iterator<Item = IdentityChange> {
        let identities = self.identities.values().cloned().map(IdentityChange::Identity);
        let tokens = self.tokens.values().cloned().map(IdentityChange::Token);
        std::iter::once(IdentityChange::Trust(self.trust.clone())).chain(identities).chain(tokens)
    }

    /// Makes a change that another book has made.
    pub fn apply(&mut self, change: IdentityChange) {
        match change {
            IdentityChange::Trust(trust) => self.trust = trust,
            IdentityChange::Identity(record) => drop(self.identities.insert(record.identity.key(), record)),
            IdentityChange::IdentityGone(key) => drop(self.identities.remove(&key)),
            IdentityChange::Token(token) => drop(self.tokens.insert(token.id.clone(), token)),
            IdentityChange::TokenGone(id) => drop(self.tokens.remove(&id)),
        }
    }

    /// Issues the first leaf of an identity for a join token, and counts the use. Whatever leaves of the name there were are refused from now
    /// on, and so are those of names that overlap it and were allowed to be joined again.
    ///
    /// # Errors
    /// The token is no good for it, or somebody holds the name. Nothing has changed then.
    pub fn join(&mut self, ask: &JoinAsk, clock: IssueClock) -> Result<LeafGrant, IssueRefusal> {
        let JoinAsk { token, identity } = ask;
        let key = identity.key();
        let token = self.tokens.get(token).ok_or(IssueRefusal::NoSuchToken)?;
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
        let (token, pool) = (token.id.clone(), token.pool.clone());
        Ok(self.issue_first(identity, &pool, Some(&token), &overlapping, clock))
    }

    /// Issues state's own leaf, which nobody can keep it from.
    pub fn issue_own(&mut self, identity: &Identity, clock: IssueClock) -> LeafGrant {
        match self.identities.get(&identity.key()) {
            // A state that starts again may find its leaf gone: it goes on as the same.
            Some(record) => {
                let issued_ms =
                    issue_time(clock.now_ms, None).max(record.issued_ms).max(record.refused_before_ms);
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
        // The holder stays the same, so its leaves need not be told apart by their times.
        let last_ms = record.map_or(times.issued_ms(), |record| record.issued_ms);
        let issued_ms = issue_time(clock.now_ms, None).max(last_ms);
        if record.is_none() {
            self.check_free(identity, &self.overlapping(identity), clock.now_ms)?;
            self.identities.insert(key, IdentityRecord::new(identity, "", times.issued_ms()));
        }
        Ok(self.issue_next(identity, issued_ms, clock))
    }

    /// Makes a join token, and forgets those that have expired.
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
    /// It has no leaf: the name is free already, unless another one covers it.
    pub fn allow(&mut self, identity: &Identity) -> Result<&IdentityRecord, BookRefusal> {
        let key = identity.key();
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
        rotation::add_root(&mut self.trust, next, self.identities.values(), now_ms)?;
        self.changed.insert(BookKey::Trust);
        Ok(())
    }

    /// Drops what nobody needs any more: roots without leaves, tokens long expired, identities long gone. Returns the roots.
    pub fn tidy(&mut self, now_ms: u64) -> Vec<RootFingerprint> {
        let dropped = rotation::drop_unused_roots(&mut self.trust, self.identities.values(), now_ms);
        let has_ended_keys = rotation::drop_ended_keys(&mut self.trust, now_ms);
        if has_ended_keys || !dropped.is_empty() {
            self.changed.insert(BookKey::Trust);
        }
        let gone = self.identities.values().filter(|record| record.is_forgettable(now_ms));
        let gone: Vec<String> = gone.map(|record| record.identity.key()).collect();
        for key in gone {
            self.identities.remove(&key);
            self.changed.insert(BookKey::Identity(key));
        }
        dropped
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

    /// Issues a leaf to a new holder of a name: the leaves of earlier holders are refused.
    fn issue_first(
        &mut self,
        identity: &Identity,
        pool: &str,
        token: Option<&str>,
        overlapping: &[String],
        clock: IssueClock,
    ) -> LeafGrant {
        if let Some(token) = token.and_then(|token| self.tokens.get_mut(token)) {
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
        let record =
            IdentityRecord { refused_before_ms, ..IdentityRecord::new(identity, pool, clock.now_ms) };
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
            (record.issued_ms, record.root) = (times.issued_ms(), root);
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

fn agent_key(name: &str) -> String {
    format!("{}/{name}", Role::Agent)
}

#[cfg(test)]
mod tests;
