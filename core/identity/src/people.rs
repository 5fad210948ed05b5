//! Principals and their tokens: who they are, what they may do, and which tokens are refused before their end.
//!
//! The owner of state's socket, [`ADMIN`], is there without a record. A token is a record from its creation to some time after its end, so that a
//! revoked one stays refused as long as it would count; tokens of sessions, which the socket gives, are none and end by [`PrincipalRecord::refused_before_ms`].

use std::collections::{BTreeMap, BTreeSet};

use godel_domain::names::{self, NAMESPACE_LEN_MAX};

use crate::{
    caller::ADMIN,
    leaves::EXPIRED_GRACE_MS,
    permission::{ALL_NAMESPACES, PersonRole, Principal},
};

/// Most principals that there may be. With [`PRINCIPAL_BYTES_MAX`] all of them fit one answer to a member, which is 2 MiB at most.
pub const N_PRINCIPALS_MAX: usize = 1_000;
/// Most tokens of persons that there may be, revoked and expired ones included.
pub const N_PERSON_TOKENS_MAX: usize = 1_000;
/// How long a token is good at most, milliseconds.
pub const PERSON_TOKEN_TTL_MS_MAX: u64 = 90 * 24 * 3_600_000;
/// Bytes of all groups, namespaces and queues of one principal, at most.
pub const PRINCIPAL_BYTES_MAX: usize = 1_000;

/// A principal as recorded. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalRecord {
    /// Who it is, and what it may do.
    pub principal: Principal,
    /// Time of its creation.
    pub created_ms: u64,
    /// Tokens that were made before are refused.
    pub refused_before_ms: u64,
}

/// A token that was made for a principal. Who shows it proves that by its signature: nothing of it is secret here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonTokenRecord {
    /// Names the token.
    pub id: String,
    /// Whose it is.
    pub principal: String,
    /// Time of its creation, milliseconds since 1970, whole seconds.
    pub created_ms: u64,
    /// Its end, milliseconds since 1970, whole seconds.
    pub ends_ms: u64,
    /// It is refused.
    pub is_revoked: bool,
}

/// What is asked of a principal that is made or changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrincipalAsk {
    /// Another role; `None`: that which it has, or `user`.
    pub role: Option<PersonRole>,
    /// Further groups.
    pub groups: Vec<String>,
    /// Further namespaces.
    pub namespaces: Vec<String>,
    /// Further queues.
    pub queues: Vec<String>,
    /// Another default namespace; `None`: that which it has.
    pub default_namespace: Option<String>,
    /// The lists take the place of those that there are.
    pub replaces_lists: bool,
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeopleChange {
    /// A principal.
    Principal(PrincipalRecord),
    /// A principal is gone, by its name.
    PrincipalGone(String),
    /// A token.
    Token(PersonTokenRecord),
    /// A token is forgotten, by its id.
    TokenGone(String),
}

/// Why a call about principals or their tokens does nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeopleRefusal {
    /// A name cannot be one.
    #[error("{why}")]
    BadName {
        /// The path of the field.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The lists are too long.
    #[error(
        "the groups, namespaces and queues of one principal have {len} bytes; at most {PRINCIPAL_BYTES_MAX}"
    )]
    Long {
        /// Their bytes.
        len: usize,
    },
    /// The administrator is what it is.
    #[error(
        "{ADMIN} is the owner of state's socket: it cannot be changed or deleted, and gets its token there (`godel context login`)"
    )]
    Admin,
    /// No principal has that name.
    #[error("there is no principal {name}; `godel principal list` shows them")]
    NoPrincipal {
        /// The name that was asked for.
        name: String,
    },
    /// The principal is there, and is another one.
    #[error(
        "principal {name} is there already, with other permissions; change them with `godel principal set {name}`, or leave them out"
    )]
    OtherTerms {
        /// Its name.
        name: String,
    },
    /// No token has that id.
    #[error("there is no token {id}; `godel token list` shows them")]
    NoToken {
        /// The id that was asked for.
        id: String,
    },
    /// There are too many principals.
    #[error(
        "there are {N_PRINCIPALS_MAX} principals; delete those that nobody needs (`godel principal delete NAME`)"
    )]
    TooManyPrincipals,
    /// There are too many tokens.
    #[error(
        "there are {N_PERSON_TOKENS_MAX} tokens that have not ended; `godel token list` shows them: they are forgotten when they have ended, so make \
         tokens for shorter (`--ttl`)"
    )]
    TooManyTokens,
    /// Longer than tokens may be good.
    #[error("a token is good for at least 1 s and at most {} days", PERSON_TOKEN_TTL_MS_MAX / 86_400_000)]
    BadTtl,
    /// It is known already.
    #[error("there is a token {id} already")]
    KnownToken {
        /// The id.
        id: String,
    },
}

/// All principals and tokens, with what has changed of them since it was taken.
#[derive(Clone, Debug, Default)]
pub struct People {
    principals: BTreeMap<String, PrincipalRecord>,
    tokens: BTreeMap<String, PersonTokenRecord>,
    changed: BTreeSet<PeopleKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeopleKey {
    Principal(String),
    Token(String),
}

impl PrincipalRecord {
    fn new(principal: Principal, created_ms: u64) -> Self {
        Self { principal, created_ms, refused_before_ms: 0 }
    }
}

impl PersonTokenRecord {
    /// Whether it ended so long ago that no step of a clock by a month makes it count.
    fn is_forgettable(&self, now_ms: u64) -> bool {
        self.ends_ms.saturating_add(EXPIRED_GRACE_MS) <= now_ms
    }
}

impl People {
    /// What the store holds.
    pub fn new(
        principals: impl IntoIterator<Item = PrincipalRecord>,
        tokens: impl IntoIterator<Item = PersonTokenRecord>,
    ) -> Self {
        let principals = principals.into_iter().map(|record| (record.principal.name.clone(), record));
        let tokens = tokens.into_iter().map(|token| (token.id.clone(), token));
        Self { principals: principals.collect(), tokens: tokens.collect(), changed: BTreeSet::new() }
    }

    /// Records of principals by name. That of [`ADMIN`] is among them only if its tokens were ever revoked.
    pub fn principals(&self) -> impl Iterator<Item = &PrincipalRecord> {
        self.principals.values()
    }

    /// Tokens by id.
    pub fn tokens(&self) -> impl Iterator<Item = &PersonTokenRecord> {
        self.tokens.values()
    }

    /// The token with this id.
    pub fn token(&self, id: &str) -> Option<&PersonTokenRecord> {
        self.tokens.get(id)
    }

    /// The principal of this name, [`ADMIN`] included.
    pub fn principal(&self, name: &str) -> Option<Principal> {
        let known = self.principals.get(name).map(|record| record.principal.clone());
        known.or_else(|| (name == ADMIN).then(Principal::admin))
    }

    /// When a token that is made now counts as made: in whole seconds, and after the last time at which all of its principal were revoked.
    pub fn issue_ms(&self, name: &str, now_ms: u64) -> u64 {
        let refused_before_ms = self.principals.get(name).map_or(0, |record| record.refused_before_ms);
        (now_ms / 1_000 * 1_000).max(refused_before_ms)
    }

    /// The latest end of a token that is not refused.
    pub fn last_end_ms(&self) -> u64 {
        let counting = self.tokens.values().filter(|token| !token.is_revoked);
        counting.map(|token| token.ends_ms).max().unwrap_or_default()
    }

    /// Makes a principal, or changes it.
    ///
    /// # Errors
    /// It is the administrator, has a bad name, or there are too many.
    pub fn set_principal(
        &mut self,
        name: &str,
        ask: PrincipalAsk,
        now_ms: u64,
    ) -> Result<&PrincipalRecord, PeopleRefusal> {
        if name == ADMIN {
            return Err(PeopleRefusal::Admin);
        }
        let known = self.principals.get(name).map(|record| record.principal.clone());
        if known.is_none() && self.principals.len() >= N_PRINCIPALS_MAX {
            return Err(PeopleRefusal::TooManyPrincipals);
        }
        let principal = ask.onto(known.unwrap_or_else(|| Principal::new(name, PersonRole::User)));
        check(&principal)?;
        self.changed.insert(PeopleKey::Principal(name.to_owned()));
        let fresh = || PrincipalRecord::new(principal.clone(), now_ms);
        let record = self.principals.entry(name.to_owned()).or_insert_with(fresh);
        record.principal = principal;
        Ok(record)
    }

    /// Deletes a principal. Its tokens stay refused if another one gets the name.
    ///
    /// # Errors
    /// There is none of this name, or it is the administrator.
    pub fn delete_principal(&mut self, name: &str) -> Result<(), PeopleRefusal> {
        if name == ADMIN {
            return Err(PeopleRefusal::Admin);
        }
        self.principals.remove(name).ok_or_else(|| PeopleRefusal::NoPrincipal { name: name.to_owned() })?;
        self.changed.insert(PeopleKey::Principal(name.to_owned()));
        self.revoke_recorded(name);
        Ok(())
    }

    /// Records a token that ends `ttl_ms` after its creation, and makes its principal if there is none. What is asked of a principal that is there must be
    /// what it is.
    ///
    /// # Errors
    /// It asks for too much, there are too many, or the principal is another one. Nothing has changed then, but that tokens that have ended may be forgotten.
    pub fn create_token(
        &mut self,
        id: &str,
        name: &str,
        ask: PrincipalAsk,
        ttl_ms: u64,
        now_ms: u64,
    ) -> Result<PersonTokenRecord, PeopleRefusal> {
        let is_ttl = (1_000..=PERSON_TOKEN_TTL_MS_MAX).contains(&ttl_ms);
        if !is_ttl {
            return Err(PeopleRefusal::BadTtl);
        }
        if name == ADMIN {
            return Err(PeopleRefusal::Admin);
        }
        if self.tokens.contains_key(id) {
            return Err(PeopleRefusal::KnownToken { id: id.to_owned() });
        }
        let known = self.principals.get(name).map(|record| record.principal.clone());
        let is_new = known.is_none();
        if known.is_some_and(|known| ask.clone().onto(known.clone()) != known) {
            return Err(PeopleRefusal::OtherTerms { name: name.to_owned() });
        }
        self.make_room_for_token(now_ms)?;
        if is_new {
            self.set_principal(name, ask, now_ms)?;
        }
        let created_ms = self.issue_ms(name, now_ms);
        let token = PersonTokenRecord {
            id: id.to_owned(),
            principal: name.to_owned(),
            created_ms,
            ends_ms: created_ms.saturating_add(ttl_ms / 1_000 * 1_000),
            is_revoked: false,
        };
        self.changed.insert(PeopleKey::Token(id.to_owned()));
        self.tokens.insert(id.to_owned(), token.clone());
        Ok(token)
    }

    /// Refuses a token from now on. Revoked twice is revoked once.
    ///
    /// # Errors
    /// There is none with this id.
    pub fn revoke_token(&mut self, id: &str) -> Result<&PersonTokenRecord, PeopleRefusal> {
        let token = self.tokens.get_mut(id).ok_or_else(|| PeopleRefusal::NoToken { id: id.to_owned() })?;
        token.is_revoked = true;
        self.changed.insert(PeopleKey::Token(id.to_owned()));
        Ok(token)
    }

    /// Refuses all tokens that a principal has, those of sessions too. Returns how many recorded ones counted until now.
    ///
    /// # Errors
    /// There is no such principal.
    pub fn revoke_all(&mut self, name: &str, now_ms: u64) -> Result<usize, PeopleRefusal> {
        let none = || PeopleRefusal::NoPrincipal { name: name.to_owned() };
        let principal = self.principal(name).ok_or_else(none)?;
        let last_ms =
            self.tokens.values().filter(|token| token.principal == name).map(|token| token.created_ms);
        // Tokens say in whole seconds when they were made.
        let refused_before_ms = last_ms.max().unwrap_or_default().max(now_ms) / 1_000 * 1_000 + 1_000;
        let fresh = || PrincipalRecord::new(principal, now_ms);
        let record = self.principals.entry(name.to_owned()).or_insert_with(fresh);
        record.refused_before_ms = record.refused_before_ms.max(refused_before_ms);
        self.changed.insert(PeopleKey::Principal(name.to_owned()));
        Ok(self.revoke_recorded(name))
    }

    fn revoke_recorded(&mut self, name: &str) -> usize {
        let counting = self.tokens.values_mut().filter(|token| token.principal == name && !token.is_revoked);
        let revoked = counting.map(|token| {
            token.is_revoked = true;
            PeopleKey::Token(token.id.clone())
        });
        let revoked: Vec<PeopleKey> = revoked.collect();
        let n_revoked = revoked.len();
        self.changed.extend(revoked);
        n_revoked
    }

    /// Forgets tokens that ended long ago. Where there is no room, also the one that ended first.
    fn make_room_for_token(&mut self, now_ms: u64) -> Result<(), PeopleRefusal> {
        let gone: Vec<String> = self
            .tokens
            .values()
            .filter(|token| token.is_forgettable(now_ms))
            .map(|token| token.id.clone())
            .collect();
        gone.into_iter().for_each(|id| self.forget_token(id));
        if self.tokens.len() >= N_PERSON_TOKENS_MAX {
            let ended = self.tokens.values().filter(|token| token.ends_ms <= now_ms);
            let first = ended.min_by_key(|token| token.ends_ms).map(|token| token.id.clone());
            self.forget_token(first.ok_or(PeopleRefusal::TooManyTokens)?);
        }
        Ok(())
    }

    fn forget_token(&mut self, id: String) {
        self.tokens.remove(&id);
        self.changed.insert(PeopleKey::Token(id));
    }

    /// How many records have changed since [`Self::take_changes`].
    pub(crate) fn n_changed(&self) -> usize {
        self.changed.len()
    }

    /// What has changed since this was called last.
    pub(crate) fn take_changes(&mut self) -> Vec<PeopleChange> {
        let change = |key| match key {
            PeopleKey::Principal(name) => match self.principals.get(&name) {
                Some(record) => PeopleChange::Principal(record.clone()),
                None => PeopleChange::PrincipalGone(name),
            },
            PeopleKey::Token(id) => match self.tokens.get(&id) {
                Some(token) => PeopleChange::Token(token.clone()),
                None => PeopleChange::TokenGone(id),
            },
        };
        std::mem::take(&mut self.changed).into_iter().map(change).collect()
    }

    /// All that is known, as changes.
    pub(crate) fn all(&self) -> impl Iterator<Item = PeopleChange> {
        let principals = self.principals.values().cloned().map(PeopleChange::Principal);
        principals.chain(self.tokens.values().cloned().map(PeopleChange::Token))
    }

    /// Makes a change that was made elsewhere.
    pub(crate) fn apply(&mut self, change: PeopleChange) {
        match change {
            PeopleChange::Principal(record) => {
                drop(self.principals.insert(record.principal.name.clone(), record));
            }
            PeopleChange::PrincipalGone(name) => drop(self.principals.remove(&name)),
            PeopleChange::Token(token) => drop(self.tokens.insert(token.id.clone(), token)),
            PeopleChange::TokenGone(id) => drop(self.tokens.remove(&id)),
        }
    }
}

impl PrincipalAsk {
    /// The principal as it is asked for.
    fn onto(self, mut principal: Principal) -> Principal {
        let Self { role, groups, namespaces, queues, default_namespace, replaces_lists } = self;
        principal.role = role.unwrap_or(principal.role);
        if let Some(namespace) = default_namespace {
            principal.default_namespace = namespace;
        }
        let Principal { groups: own_groups, namespaces: own_namespaces, queues: own_queues, .. } =
            &mut principal;
        for (own, further) in [(own_groups, groups), (own_namespaces, namespaces), (own_queues, queues)] {
            if replaces_lists {
                own.clear();
            }
            own.extend(further);
            own.sort();
            own.dedup();
        }
        principal
    }
}

/// That all names of a principal can be names, and are not too many.
fn check(principal: &Principal) -> Result<(), PeopleRefusal> {
    let Principal { name, role: _, groups, namespaces, queues, default_namespace } = principal;
    let bad = |field, word: &str, why: names::BadName| {
        let why = format!("`{}`: {why}", word.escape_debug());
        PeopleRefusal::BadName { field, why }
    };
    let default = Some(default_namespace).filter(|namespace| !namespace.is_empty());
    for (field, words) in [
        ("principal", vec![name]),
        ("groups", groups.iter().collect()),
        ("namespaces", namespaces.iter().collect()),
        ("default_namespace", default.into_iter().collect()),
    ] {
        for word in words {
            let is_all = field == "namespaces" && word == ALL_NAMESPACES;
            if !is_all {
                names::name(word, NAMESPACE_LEN_MAX).map_err(|why| bad(field, word, why))?;
            }
        }
    }
    for queue in queues {
        names::queue(queue).map_err(|why| bad("queues", queue, why))?;
    }
    let len = [groups, namespaces, queues].into_iter().flatten().map(|word| word.len() + 1).sum();
    if len > PRINCIPAL_BYTES_MAX { Err(PeopleRefusal::Long { len }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
