//! Why a leaf is not issued, and why a call of an administrator does nothing.

use super::{N_ENDED_MAX, N_JOIN_TOKENS_MAX};
use crate::{
    joins::{JoinRefusal, TOKEN_TTL_MS_MAX, TOKEN_USES_MAX},
    leaves::LeafRefusal,
    names::Role,
};

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
    #[error(
        "{key} is state's own identity: it can be neither revoked nor given to others; stop state to end it"
    )]
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
    #[error(
        "there are {N_JOIN_TOKENS_MAX} join tokens that may still be used; `godel join-token list` shows them: delete those that nobody \
         needs (`godel join-token delete ID`), or make one token with more uses (`--uses`)"
    )]
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
