//! What a book of identities has changed, to be written.

use crate::{
    people::PeopleChange,
    records::{ClusterTrust, IdentityRecord, JoinTokenRecord},
};

/// A record of the book.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BookKey {
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
    /// A principal or a token of one.
    Person(PeopleChange),
}
