//! What the store keeps of identities: who was issued leaves, join tokens, and the roots that everybody trusts.

use std::fmt;

use godel_base::ids::StoreId;

use crate::{
    joins::{JoinNames, JoinTerms},
    leaves::{EXPIRED_GRACE_MS, LeafStanding, LeafTimes, NameRecord, judge_leaf},
    names::{ClusterName, Identity},
};

/// Bytes of a SHA-256.
pub const HASH_LEN: usize = 32;

/// SHA-256 of a root's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RootFingerprint(pub [u8; HASH_LEN]);

/// In hexadecimal, as join tokens have it.
impl fmt::Display for RootFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// An identity that was issued leaves. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityRecord {
    /// Whose leaves.
    pub identity: Identity,
    /// Issue of the first leaf.
    pub joined_ms: u64,
    /// Latest issue of a leaf, in whole seconds. It never goes back.
    pub issued_ms: u64,
    /// End of the last leaf.
    pub ends_ms: u64,
    /// Leaves that were issued before are refused.
    pub refused_before_ms: u64,
    /// All leaves are refused.
    pub is_revoked: bool,
    /// One join may have the name.
    pub may_join_again: bool,
    /// Pool of an agent's nodes; empty for none.
    pub pool: String,
    /// The root that signed the last leaf.
    pub root: RootFingerprint,
    /// The join that made its holder; `None`: state itself, and who joined before a backup was restored.
    pub last_join: Option<LastJoin>,
}

/// What a join is recognised by when it is repeated because its answer was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastJoin {
    /// Id of the join token.
    pub token: String,
    /// SHA-256 of the public key for which the leaf was issued.
    pub key_hash: [u8; HASH_LEN],
}

impl IdentityRecord {
    /// Who was issued nothing yet.
    pub(crate) fn new(identity: &Identity, pool: &str, joined_ms: u64) -> Self {
        Self {
            identity: identity.clone(),
            joined_ms,
            issued_ms: 0,
            ends_ms: 0,
            refused_before_ms: 0,
            is_revoked: false,
            may_join_again: false,
            pool: pool.to_owned(),
            root: RootFingerprint::default(),
            last_join: None,
        }
    }

    /// What leaves of the name are judged by.
    pub fn name_record(&self) -> NameRecord {
        NameRecord { refused_before_ms: self.refused_before_ms, is_revoked: self.is_revoked }
    }

    /// The times of the last leaf.
    pub fn last_leaf(&self) -> LeafTimes {
        LeafTimes::of_issue(self.issued_ms, self.ends_ms.saturating_sub(self.issued_ms))
    }

    /// How the last leaf counts at `now_ms`.
    pub fn standing(&self, now_ms: u64) -> LeafStanding {
        judge_leaf(self.last_leaf(), Some(self.name_record()), now_ms)
    }

    /// Whether somebody may hold a leaf of the name that counts at `now_ms`, or renews itself.
    pub fn is_held(&self, now_ms: u64) -> bool {
        !matches!(self.standing(now_ms), LeafStanding::Refused(_))
    }

    /// Whether all leaves are refused, whatever the time is.
    pub fn is_refused(&self) -> bool {
        self.is_revoked || self.issued_ms < self.refused_before_ms
    }

    /// Whether every leaf has ended too long ago to be renewed.
    pub fn has_long_expired(&self, now_ms: u64) -> bool {
        self.ends_ms.saturating_add(EXPIRED_GRACE_MS) <= now_ms
    }

    /// Whether nothing depends on the record any more: every leaf has ended so long ago that no step of a clock by a month makes one count.
    pub fn is_forgettable(&self, now_ms: u64) -> bool {
        !self.is_revoked && self.ends_ms.saturating_add(2 * EXPIRED_GRACE_MS) <= now_ms
    }

    /// Ends every leaf that there is.
    pub fn refuse_leaves(&mut self) {
        self.refused_before_ms = self.refused_before_ms.max(self.issued_ms.saturating_add(1_000));
    }
}

/// A join token, without its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinTokenRecord {
    /// Names the token.
    pub id: String,
    /// SHA-256 of its secret.
    pub secret_hash: [u8; HASH_LEN],
    /// What it is good for.
    pub terms: JoinTerms,
    /// Pool of the nodes that join with it; empty for none.
    pub pool: String,
    /// Time of its creation, milliseconds since 1970.
    pub created_ms: u64,
}

impl fmt::Debug for JoinTokenRecord {
    /// Without the hash: nobody needs to see it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, secret_hash: _, terms, pool, created_ms } = self;
        let mut shown = f.debug_struct("JoinTokenRecord");
        shown.field("id", id).field("terms", terms).field("pool", pool).field("created_ms", created_ms);
        shown.finish_non_exhaustive()
    }
}

/// What an administrator asks a join token for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTokenAsk {
    /// The role that it is good for.
    pub role: crate::names::Role,
    /// The names that it is good for.
    pub names: JoinNames,
    /// Pool of the nodes that join with it; empty for none.
    pub pool: String,
    /// How long it is good, milliseconds.
    pub ttl_ms: u64,
    /// How many identities it is good for.
    pub n_uses: u32,
}

/// A root that leaves are signed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedRoot {
    /// The certificate, DER.
    pub certificate: Vec<u8>,
    /// SHA-256 of the certificate.
    pub fingerprint: RootFingerprint,
    /// Time of its creation, milliseconds since 1970.
    pub created_ms: u64,
    /// It signs from this time on, milliseconds since 1970: by then everybody has heard of it.
    pub signs_from_ms: u64,
    /// A younger root replaces it.
    pub is_leaving: bool,
}

/// A key that checks persons' tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonTokenKey {
    /// Names the key in the header of tokens.
    pub id: String,
    /// Ed25519 public key.
    pub public_key: [u8; 32],
    /// Tokens that it has signed count until then, milliseconds since 1970; `None`: it signs.
    pub ends_ms: Option<u64>,
}

/// What everybody trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterTrust {
    /// The trust domain.
    pub cluster: ClusterName,
    /// The store that it was written in; another one was restored from a backup of it. 0: not known.
    pub store: StoreId,
    /// The roots, the oldest first; there is always one that is not leaving, and it is the last.
    pub roots: Vec<TrustedRoot>,
    /// Keys that check persons' tokens, the oldest first; the last one signs.
    pub person_keys: Vec<PersonTokenKey>,
}
