//! Whom services are to refuse, as they ask for it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use godel_identity::{book::IdentityChange, leaves::NameRecord};
use godel_pki::random::{NoRandomBytes, random_bytes};
use godel_proto::v1;
use parking_lot::RwLock;

use super::{
    records::{signed, trust_to_proto},
    writer::IdentityLedger,
};

/// The names that are refused, or have leaves that are, with a version that changes along with them and with the roots. Clones share it.
#[derive(Clone)]
pub(crate) struct RefusedNames(Arc<Refused>);

struct Refused {
    /// Begins at random, so that none of an earlier run is taken for one of this.
    version: AtomicU64,
    names: RwLock<BTreeMap<String, NameRecord>>,
}

impl RefusedNames {
    /// Follows what is recorded.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn follow(ledger: &IdentityLedger) -> Result<Self, NoRandomBytes> {
        let version = AtomicU64::new(u64::from_le_bytes(random_bytes()?) | 1 << 63);
        let refused = Self(Arc::new(Refused { version, names: RwLock::default() }));
        let changed = refused.clone();
        ledger.follow(move |change| changed.change(change));
        Ok(refused)
    }

    fn change(&self, change: &IdentityChange) {
        let mut names = self.0.names.write();
        let is_news = match change {
            IdentityChange::Trust(_) => true,
            IdentityChange::Identity(record) => {
                let (key, known) = (record.identity.key(), record.name_record());
                if known == NameRecord::default() {
                    names.remove(&key).is_some()
                } else {
                    names.insert(key, known) != Some(known)
                }
            }
            IdentityChange::IdentityGone(key) => names.remove(key).is_some(),
            IdentityChange::Token(_) | IdentityChange::TokenGone(_) => false,
        };
        if is_news {
            // Read with the names, under their lock.
            self.0.version.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What a service does not know yet that knows `version`.
    pub(crate) fn since(&self, version: u64, ledger: &IdentityLedger) -> v1::GetCallersResponse {
        // Before the names: roots that change meanwhile come with the next version.
        let trust = ledger.read(|book| trust_to_proto(book.trust()));
        let now_ms = signed(ledger.now_ms());
        let names = self.0.names.read();
        let current = self.0.version.load(Ordering::Relaxed);
        if version == current {
            return v1::GetCallersResponse { version, now_ms, ..v1::GetCallersResponse::default() };
        }
        let refused = names.iter().map(|(identity, record)| v1::RefusedName {
            identity: identity.clone(),
            refused_before_ms: signed(record.refused_before_ms),
            is_revoked: record.is_revoked,
        });
        v1::GetCallersResponse { version: current, now_ms, trust: Some(trust), refused: refused.collect() }
    }
}
