//! Whom services are to refuse, as they ask for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use godel_identity::{book::IdentityChange, leaves::NameRecord, people::PeopleChange};
use godel_kit::security::{CallerRecords, KnownPrincipal, Role};
use godel_pki::random::{NoRandomBytes, random_bytes};
use godel_proto::v1;
use godel_wire::to_proto;
use parking_lot::RwLock;

use super::{
    keys::Keys,
    records::{signed, trust_to_proto},
    writer::IdentityLedger,
};

/// Has a server judge persons by what has changed of them.
pub(super) fn note_person(known: &CallerRecords, change: &PeopleChange) {
    match change {
        PeopleChange::Principal(record) => {
            let principal = Arc::new(record.principal.clone());
            let name = &record.principal.name;
            let refused_before_ms = record.refused_before_ms;
            known.set_principal(name, Some(KnownPrincipal { principal, refused_before_ms }));
        }
        PeopleChange::PrincipalGone(name) => known.set_principal(name, None),
        PeopleChange::Token(token) => known.set_revoked(&token.id, token.is_revoked),
        PeopleChange::TokenGone(id) => known.set_revoked(id, false),
    }
}

/// Whom to refuse and whom to trust, with a version that changes along with it. Clones share it.
#[derive(Clone)]
pub(crate) struct RefusedNames(Arc<Refused>);

struct Refused {
    /// Begins at random, so that none of an earlier run is taken for one of this.
    version: AtomicU64,
    told: RwLock<ToldCallers>,
}

/// What services are told.
#[derive(Default)]
struct ToldCallers {
    trust: v1::TrustRoots,
    /// The names that are refused, or have leaves that are.
    names: BTreeMap<String, NameRecord>,
    principals: BTreeMap<String, v1::Principal>,
    /// Tokens of persons that are refused before their end.
    revoked: BTreeSet<String>,
}

impl RefusedNames {
    /// Follows what is recorded.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn follow(ledger: &IdentityLedger) -> Result<Self, NoRandomBytes> {
        let version = AtomicU64::new(u64::from_le_bytes(random_bytes()?) | 1 << 63);
        let refused = Self(Arc::new(Refused { version, told: RwLock::default() }));
        let changed = refused.clone();
        ledger.follow(move |change| changed.change(change));
        Ok(refused)
    }

    fn change(&self, change: &IdentityChange) {
        let mut told = self.0.told.write();
        if told.apply(change) {
            // Read with what it is the version of, under its lock.
            self.0.version.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What a service does not know yet that knows `version`. An adapter of YARN also gets what its clients prove tokens by.
    pub(crate) fn since(
        &self,
        version: u64,
        role: Option<Role>,
        ledger: &IdentityLedger,
    ) -> v1::GetCallersResponse {
        let (now_ms, keys) = (signed(ledger.now_ms()), ledger.keys());
        let told = self.0.told.read();
        let current = self.0.version.load(Ordering::Relaxed);
        if version == current {
            return v1::GetCallersResponse { version, now_ms, ..v1::GetCallersResponse::default() };
        }
        let refused = told.names.iter().map(|(identity, record)| v1::RefusedName {
            identity: identity.clone(),
            refused_before_ms: signed(record.refused_before_ms),
            is_revoked: record.is_revoked,
        });
        v1::GetCallersResponse {
            version: current,
            now_ms,
            trust: Some(told.trust.clone()),
            refused: refused.collect(),
            principals: told.principals.values().cloned().collect(),
            revoked_tokens: told.revoked.iter().cloned().collect(),
            yarn_token_keys: if role == Some(Role::Yarn) {
                yarn_keys(&told.trust, &keys)
            } else {
                Vec::new()
            },
        }
    }
}

/// What clients of YARN prove tokens by that one of the cluster's keys has signed.
fn yarn_keys(trust: &v1::TrustRoots, keys: &Keys) -> Vec<v1::YarnTokenKey> {
    let told = trust.person_keys.iter().map(|key| {
        let secret = keys.yarn_secret(&key.key_id).bytes().to_vec();
        v1::YarnTokenKey { key_id: key.key_id.clone(), secret }
    });
    told.collect()
}

impl ToldCallers {
    /// Makes a change. Returns whether services are to hear of it.
    fn apply(&mut self, change: &IdentityChange) -> bool {
        match change {
            IdentityChange::Trust(trust) => {
                self.trust = trust_to_proto(trust);
                true
            }
            IdentityChange::Identity(record) => {
                let (key, known) = (record.identity.key(), record.name_record());
                if known == NameRecord::default() {
                    self.names.remove(&key).is_some()
                } else {
                    self.names.insert(key, known) != Some(known)
                }
            }
            IdentityChange::IdentityGone(key) => self.names.remove(key).is_some(),
            IdentityChange::Token(_) | IdentityChange::TokenGone(_) => false,
            IdentityChange::Person(change) => self.apply_person(change),
        }
    }

    fn apply_person(&mut self, change: &PeopleChange) -> bool {
        match change {
            PeopleChange::Principal(record) => {
                let (name, told) = (record.principal.name.clone(), to_proto::principal(record));
                self.principals.insert(name, told.clone()) != Some(told)
            }
            PeopleChange::PrincipalGone(name) => self.principals.remove(name).is_some(),
            PeopleChange::Token(token) if token.is_revoked => self.revoked.insert(token.id.clone()),
            PeopleChange::Token(_) => false,
            PeopleChange::TokenGone(id) => self.revoked.remove(id),
        }
    }
}
