//! What state reports about what it speaks and about the certificates that it has issued.

use godel_kit::{address::Speech, metrics::Metrics, security::ServerSecurity};
use godel_proto::v1;

use crate::identities::{Identities, IdentityLedger};

/// What the port of this state speaks, and where its callers are counted.
pub(crate) struct OwnSecurity {
    speech: Speech,
    metrics: Metrics,
    /// Identities; `None` without TLS.
    ledger: Option<IdentityLedger>,
}

impl OwnSecurity {
    /// For a server with this security, which counts its connections in `metrics`.
    pub(crate) fn new(security: &ServerSecurity, metrics: &Metrics, identities: Option<&Identities>) -> Self {
        let ledger = identities.map(|identities| identities.ledger.clone());
        Self { speech: security.speech(), metrics: metrics.clone(), ledger }
    }

    pub(super) fn to_proto(&self) -> v1::StateSecurity {
        let tls = match self.speech {
            Speech::PlainText => v1::TlsMode::Off,
            Speech::Both => v1::TlsMode::Migrate,
            Speech::Tls => v1::TlsMode::On,
        };
        v1::StateSecurity {
            tls: tls.into(),
            plain_text_connections: self.metrics.plain_text_connections(),
            identities: self.ledger.as_ref().map(IdentityLedger::count_standings),
        }
    }
}
