//! Pure rules over identities: what processes and people are called, what each call needs, how long a certificate counts, and who may join.
//!
//! A process has an *identity*, `spiffe://<cluster>/<role>/<name>`, which its certificate, the *leaf*, carries. A call is judged by its
//! *caller*: a member, an agent, a person, or nobody known. Everything here is a function of names, times in milliseconds since 1970, and
//! records; it knows no clock, no socket and no cryptography, which is `services/pki`.
//!
//! # Modules
//!
//! - `book`: all that is known of identities, and what joins, renewals and administrators do to it.
//! - `caller`: whom a call is judged by, and what a call through state says of that.
//! - `change_log`: what of the change log a principal sees, which calls are merged into one line, and which lines go.
//! - `joins`: who gets an identity for a join token, and under which name.
//! - `lease_rights`: who may acquire which lease.
//! - `leaves`: how long a leaf counts, when it is renewed, and what an expired one may still do.
//! - `names`: clusters, roles and identities, and which nodes an agent speaks for.
//! - `needs`: what each RPC needs of its caller.
//! - `people`: principals and their tokens.
//! - `permission`: what a principal may do.
//! - `records`: what the store keeps of identities.
//! - `rotation`: how one root replaces another.
//! - `session_leaf`: the leaf of an agent during a session, which outlives a leaf.

pub mod book;
pub mod caller;
pub mod change_log;
pub mod joins;
pub mod lease_rights;
pub mod leaves;
pub mod names;
pub mod needs;
pub mod people;
pub mod permission;
pub mod records;
pub mod rotation;
pub mod session_leaf;
