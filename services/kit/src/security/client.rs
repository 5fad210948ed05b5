//! What a client shows, and whom it believes to be a server.

use std::{fmt, sync::Arc};

use godel_identity::{lease_rights::role_of_lease, names::Role};
use godel_pki::{
    leaves::OwnLeaf,
    person_tokens::read_token,
    tls::{ExpectedServer, HTTP1, TlsIdentity, unverified_config},
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};

use super::BEARER;
use crate::tls::HttpVersion;

/// What a client shows, and whom it believes to be a server; by default it speaks plain text and shows nothing. Clones share it.
#[derive(Clone, Default)]
pub struct ClientSecurity(Option<Arc<SecuredClient>>);

#[derive(Clone)]
struct SecuredClient {
    tls: ClientTls,
    token: Option<watch::Receiver<BearerToken>>,
    calls_plain_text: bool,
    /// The leaf that state refused last.
    refused: Arc<Mutex<Option<Arc<OwnLeaf>>>>,
}

#[derive(Clone)]
enum ClientTls {
    Identity(TlsIdentity),
    /// For a process that joins.
    Fixed(Arc<rustls::ClientConfig>),
}

impl ClientSecurity {
    /// TLS to `https://` addresses, with what `identity` shows and trusts when a connection begins. Plain text over TCP is not spoken then, so that
    /// nobody is led there.
    pub fn new(identity: TlsIdentity) -> Self {
        Self::of(ClientTls::Identity(identity))
    }

    /// TLS with a configuration that judges servers by itself, as [`godel_pki::tls::joining_config`].
    pub fn joining(config: Arc<rustls::ClientConfig>) -> Self {
        Self::of(ClientTls::Fixed(config))
    }

    /// TLS that believes whoever answers, and shows nothing: for pages as `/healthz`, with whose request nothing secret is sent.
    pub fn unverified() -> Self {
        Self::of(ClientTls::Fixed(unverified_config(&[HTTP1])))
    }

    fn of(tls: ClientTls) -> Self {
        Self(Some(Arc::new(SecuredClient {
            tls,
            token: None,
            calls_plain_text: false,
            refused: Arc::default(),
        })))
    }

    /// Shows the token of a person with every call over TLS; a newer token is shown once it is there. Over a unix socket the administrator is known
    /// without.
    #[must_use]
    pub fn with_token(self, token: watch::Receiver<BearerToken>) -> Self {
        self.changed(|secured| secured.token = Some(token))
    }

    /// Calls `http://` addresses too, for a time in which not everybody speaks TLS yet.
    #[must_use]
    pub fn with_plain_text(self) -> Self {
        self.changed(|secured| secured.calls_plain_text = true)
    }

    fn changed(self, change: impl FnOnce(&mut SecuredClient)) -> Self {
        Self(self.0.map(|secured| {
            let mut secured = Arc::unwrap_or_clone(secured);
            change(&mut secured);
            Arc::new(secured)
        }))
    }

    /// Whether it speaks TLS.
    pub fn speaks_tls(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it calls `http://` addresses.
    pub fn calls_plain_text(&self) -> bool {
        self.0.as_ref().is_none_or(|secured| secured.calls_plain_text)
    }

    /// The person whose token it shows, as the token says; `None`: it shows none.
    pub fn person(&self) -> Option<String> {
        let header = self.token()?.borrow().header();
        let token = header.to_str().ok()?.strip_prefix(BEARER)?;
        read_token(token).ok().map(|token| token.person)
    }

    pub(crate) fn token(&self) -> Option<watch::Receiver<BearerToken>> {
        self.0.as_ref()?.token.clone()
    }

    /// The leaf that a connection shows that begins now.
    pub(crate) fn own_leaf(&self) -> Option<Arc<OwnLeaf>> {
        match &self.0.as_ref()?.tls {
            ClientTls::Identity(identity) => identity.own(),
            ClientTls::Fixed(_) => None,
        }
    }

    /// Notes that state refuses `leaf`, or with `None` that it accepts the current one. Returns whether this is new: a process has several connections to
    /// state.
    pub(crate) fn note_refused(&self, leaf: Option<&Arc<OwnLeaf>>) -> bool {
        let Some(secured) = &self.0 else { return false };
        let mut refused = secured.refused.lock();
        let is_same = match (refused.as_ref(), leaf) {
            (Some(known), Some(leaf)) => Arc::ptr_eq(known, leaf),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        *refused = leaf.cloned();
        !is_same
    }

    /// The configuration for connections to `expected`, above which `version` is spoken; `None`: there is no TLS.
    pub(crate) fn config(
        &self,
        expected: &ExpectedServer,
        version: HttpVersion,
    ) -> Option<Arc<rustls::ClientConfig>> {
        Some(match &self.0.as_ref()?.tls {
            ClientTls::Identity(identity) => identity.client_config(expected.clone(), &[version.alpn()]),
            ClientTls::Fixed(config) => Arc::clone(config),
        })
    }
}

/// The token of a person, as it goes into a header.
#[derive(Clone)]
pub struct BearerToken(MetadataValue<Ascii>);

/// A token that cannot stand in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token has characters that no token has; get a new one from state's socket")]
pub struct UnfitToken;

impl BearerToken {
    /// The token as text, without the word before it.
    ///
    /// # Errors
    /// It has characters that a header must not have.
    pub fn new(token: &str) -> Result<Self, UnfitToken> {
        let mut value: MetadataValue<Ascii> = format!("{BEARER}{token}").parse().map_err(|_| UnfitToken)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    pub(crate) fn header(&self) -> MetadataValue<Ascii> {
        self.0.clone()
    }
}

/// Says nothing of the token itself.
impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken")
    }
}

/// The scheduler of that name.
pub fn expected_scheduler(name: &str) -> ExpectedServer {
    ExpectedServer { role: Role::Scheduler, name: Some(name.to_owned()) }
}

/// Whoever holds a lease. Of a lease that nobody can hold it is state, who answers that.
pub fn expected_holder(lease: &str) -> ExpectedServer {
    match (role_of_lease(lease), lease.strip_prefix("scheduler/")) {
        (Some(Role::Scheduler), Some(name)) => expected_scheduler(name),
        (role, _) => ExpectedServer::any_of(role.unwrap_or(Role::State)),
    }
}

impl fmt::Debug for ClientSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.speaks_tls(), self.calls_plain_text()) {
            (false, _) => "plain text",
            (true, false) => "TLS",
            (true, true) => "TLS and plain text",
        })
    }
}

/// The same one.
impl PartialEq for ClientSecurity {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_nothing_of_itself_and_must_fit_into_a_header() {
        let token = BearerToken::new("secret").unwrap();
        assert_eq!(format!("{token:?}"), "BearerToken");
        assert_eq!(token.header().to_str().unwrap(), "Bearer secret");
        assert!(BearerToken::new("two\nlines").is_err());
    }

    #[test]
    fn a_leader_is_expected_to_have_the_role_of_its_lease() {
        for (lease, role, name) in [
            ("dispatcher", Role::Dispatcher, None),
            ("binder", Role::Binder, None),
            ("scheduler/s1", Role::Scheduler, Some("s1")),
            ("member/state/main", Role::State, None),
            ("nonsense", Role::State, None),
        ] {
            let expected = ExpectedServer { role, name: name.map(str::to_owned) };
            assert_eq!(expected_holder(lease), expected, "{lease}");
        }
    }
}
