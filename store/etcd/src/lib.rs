//! The calls of etcd that the store makes, over gRPC, and a model of etcd for tests. It knows nothing of the store.
//!
//! A call ends by its deadline with one of three outcomes: it was executed, it surely was not, or the outcome is unknown
//! ([`CallError`]). A caller that changes something must be able to make the same call again.
//!
//! # Modules
//!
//! - `client`: a client of etcd: a thread with connections to several endpoints of one cluster.
//! - `connection`: connections to one endpoint, in plain text or over TLS.
//! - `error`: why a call returned no answer.
//! - `kv`: requests and answers, and the trait that the store uses to call an etcd.
//! - `model`: an etcd in memory that answers late, twice or never.
//! - `process`: an etcd of one's own on this machine, for tests and measurements.
//! - `wire`: conversion of requests and answers to and from the messages of etcd.

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
    Answer, Compare, Entry, Etcd, Header, Op, Page, PendingReply, RangeRequest, Reply, Request, Sizes,
    TxnReply, TxnRequest, prefix_end,
};
