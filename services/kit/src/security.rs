//! Who is at the other end of a connection, and by whom a call is judged.
//!
//! A server with [`ServerSecurity`] speaks TLS, and each of its calls has a [`Caller`]: it is found by the leaf of the connection, by the token of the
//! call, or, in a call that state has passed on, by what state says. Each call is judged anew, so that a leaf that expires or is revoked stops to
//! count while its connection is open; a connection whose leaf is refused ends with all that is open on it, and a stream that a person has opened
//! ends with the token. Without security, calls come in plain text and are [`Caller::Unjudged`].
//!
//! A client with [`ClientSecurity`] speaks TLS to `https://` addresses, and only to servers of the role that it means to call.
//!
//! The rules are those of `godel-identity`, the cryptography that of `godel-pki`; [`CallerRecords`] are what a service knows of who may call.

mod call_log;
mod client;
mod permits;
mod person_call;
mod records;
mod server;
mod yarn_tokens;

#[cfg(test)]
pub(crate) mod tests;

use godel_identity::names::Identity;
pub use godel_identity::{
    caller::Caller,
    names::Role,
    permission::{CallObject, PermissionRefusal, PersonRole, Principal},
};
use godel_pki::leaves::{BadLeaf, PresentedLeaf};
pub use godel_pki::tls::{ExpectedServer, TlsIdentity, WallClock};
use rustls::pki_types::CertificateDer;

pub use self::{
    call_log::CallLog,
    client::{BearerToken, ClientSecurity, UnfitToken, expected_holder, expected_scheduler},
    permits::{ListedNames, permit_submission, permit_update},
    person_call::{PersonCall, person_call},
    records::{CallerRecords, KnownPrincipal},
    server::ServerSecurity,
    yarn_tokens::ForeignCall,
};
pub(crate) use self::{
    records::TokenBearer,
    server::{JudgedCall, RefusedCall, logged_method, passed_on_address},
};
use crate::clock::SharedClock;

/// How a connection came, and who has proved to be at its other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In plain text over TCP.
    PlainText,
    /// Over a unix socket, which its owner alone may open.
    Unix,
    /// Over TLS.
    Tls {
        /// What the other side has shown; `None`: nothing.
        leaf: Option<Box<PeerLeaf>>,
    },
}

/// The leaf at the other end of a connection, which a root of the cluster has issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLeaf {
    /// What it says.
    pub presented: PresentedLeaf,
    /// The key of its record: `<role>/<name>`.
    pub key: String,
    /// By whom a call is judged that comes with it.
    pub caller: Caller,
}

impl PeerLeaf {
    /// Reads the leaf of a handshake that has succeeded.
    pub(crate) fn read(leaf: &CertificateDer<'_>) -> Result<Self, BadLeaf> {
        let presented = PresentedLeaf::read(leaf)?;
        let identity: &Identity = &presented.identity;
        Ok(Self { key: identity.key(), caller: Caller::of_identity(identity), presented })
    }
}

/// What stands before a token in the header `authorization`.
const BEARER: &str = "Bearer ";

static ANONYMOUS: Caller = Caller::Anonymous;

/// By whom a call is judged, as each server says: [`Caller::Unjudged`] on one without security. A request that came through no server is nobody's.
pub fn caller<T>(request: &tonic::Request<T>) -> &Caller {
    request.extensions().get().unwrap_or(&ANONYMOUS)
}

/// The wall clock of `clock`, as leaves and tokens are judged by.
pub fn wall_clock(clock: SharedClock) -> WallClock {
    std::sync::Arc::new(move || u64::try_from(clock.wall_ms()).unwrap_or(0))
}
