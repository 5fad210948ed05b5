//! How a client reaches a cluster: where it is, whom it believes there, and what it shows.

use godel_kit::security::ClientSecurity;

/// An address of state, and what is spoken there.
#[derive(Clone, Debug)]
pub struct Access {
    /// `https://host:port`, `http://host:port` or `unix:/path`.
    pub address: String,
    /// Whom it believes to be a server, and what it shows.
    pub security: ClientSecurity,
}

impl From<&str> for Access {
    /// In plain text, or over a unix socket.
    fn from(address: &str) -> Self {
        Self { address: address.to_owned(), security: ClientSecurity::default() }
    }
}

impl From<&String> for Access {
    fn from(address: &String) -> Self {
        Self::from(address.as_str())
    }
}

impl From<&Self> for Access {
    fn from(access: &Self) -> Self {
        access.clone()
    }
}
