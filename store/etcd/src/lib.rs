//! The calls of etcd that the store makes, over gRPC, and a model of etcd for tests. It knows nothing of the store.
//!
//! A call ends within its deadline with one of few outcomes: it was done, it surely was not, or that is not known
//! ([`CallError`]). A caller that changes something must be able to make the same call again.
//!
//! # Modules
//!
//! - `client`: a client of etcd: a thread with connections to several endpoints of one cluster.
//! - `connection`: connections to one endpoint, in plain text or over TLS.
//! - `error`: how a call ended that brought no answer.
//! - `kv`: requests and answers, and what the store needs of an etcd.
//! - `model`: an etcd in memory that answers late, twice or never.
//! - `process`: an etcd of one's own on this machine, for tests and measurements.
//! - `wire`: requests and answers as etcd's messages.

mod client;
mod connection;
mod error;
mod kv;
pub mod model;
pub mod process;
mod wire;

pub use client::{Client, ClientConfig, User};
pub use connection::{CertificateFiles, TlsFiles};
pub use error::{CallError, ClientError};
pub use kv::{
    Answer, Compare, Entry, Etcd, Header, Op, Page, RangeRequest, Reply, Request, Sizes, TxnReply,
    TxnRequest, prefix_end,
};
