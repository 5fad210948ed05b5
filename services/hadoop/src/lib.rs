//! Hadoop RPC and YARN's tokens: what the YARN adapter and the agents speak with unmodified clients.
//!
//! A [`Server`] serves a table of [`Protocol`]s over version 9 of Hadoop RPC; each method is an asynchronous function of a request and its
//! [`Caller`]. Nothing in here knows what a method means, and nothing is kept over a restart.
//!
//! ```no_run
//! use godel_hadoop::{Authentication, Caller, Exception, Identity, Protocol, Server, yarn::PriorityProto};
//!
//! async fn raise(caller: Caller, asked: PriorityProto) -> Result<PriorityProto, Exception> {
//!     match caller.identity {
//!         Identity::User { effective, .. } if effective == "anna" => {
//!             Ok(PriorityProto { priority: Some(asked.priority() + 1) })
//!         }
//!         _ => Err(Exception::new("org.apache.hadoop.security.AccessControlException", "only anna may do this")),
//!     }
//! }
//!
//! # async fn serve(stop: godel_kit::CancellationToken) -> std::io::Result<()> {
//! let protocol = Protocol::new("org.example.RaisePB", 1)
//!     .method("raise", raise)
//!     .refuse("lower", "org.apache.hadoop.yarn.exceptions.YarnException", "godel does not lower priorities");
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! Server::new(Authentication::Simple).protocol(protocol).serve(listener, stop).await;
//! # Ok(())
//! # }
//! ```
//!
//! A server whose callers are masters gives [`Authentication::Token`] the passwords of their tokens ([`token::KeyedPasswords`]); their
//! identity is the identifier of the token, which nobody can make without the key.
//!
//! # Modules
//!
//! - `client`: a client of Hadoop RPC, for calls to nodes, tests and measurements.
//! - `credentials`: the credentials file, in which processes find their tokens.
//! - `digest`: DIGEST-MD5, by which clients prove that they have a token.
//! - `exception`: errors as Java exceptions.
//! - `frame`: messages on a connection.
//! - `person_token`: a person's token as clients of YARN show it.
//! - `protocol`: protocols as tables of methods.
//! - `server`: the server: connections and their limits.
//! - `session`: one connection from its first byte to its calls, without I/O.
//! - `token`: tokens of YARN, signed and checked.
//! - `writable`: numbers and texts as Hadoop writes them in files.

pub mod client;
pub mod credentials;
mod digest;
pub mod exception;
mod frame;
pub mod person_token;
pub mod protocol;
pub mod server;
mod session;
pub mod token;
mod writable;

pub use exception::Exception;
pub use protocol::{Caller, Identity, Protocol};
pub use server::{Authentication, Limits, Passwords, Server};

/// Messages of package `hadoop.common`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod common {
    include!(concat!(env!("OUT_DIR"), "/hadoop.common.rs"));
}

/// Messages of package `hadoop.yarn`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod yarn {
    include!(concat!(env!("OUT_DIR"), "/hadoop.yarn.rs"));
}
