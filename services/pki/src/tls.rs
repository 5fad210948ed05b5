//! Configurations of servers and clients, which follow changes of leaf and roots while they run.
//!
//! A [`TlsIdentity`] is what a process shows and trusts. The configurations that it makes look at it in each handshake, so that a renewed leaf
//! and changed roots count from the next connection on, and nothing is configured anew. Connections that are open stay as they are: a service
//! judges the leaf of its caller again with each call.
//!
//! * TLS 1.3 only, and no resumption: whoever was revoked shows its certificate again with every connection.
//! * A server asks for a client's certificate and accepts none; one that another cluster has issued, that was tampered with, or that is a
//!   server's only, ends the handshake. Times are not judged: an expired leaf still renews itself.
//! * A client wants a leaf of the role, and the name, that it means to call. It does not look at host names, and it accepts a server that has
//!   expired for up to 30 days, so that a cluster whose renewals failed goes on.
//!
//! Without a leaf of its own a process is a client without certificate, as people's tools are; its servers refuse every handshake.

/// How signatures of handshakes are checked, in both directions: those of TLS 1.3 alone, by the keys that leaves have.
macro_rules! signatures_of_tls13 {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            SCHEMES.to_vec()
        }
    };
}

mod client;
mod server;
mod words;

use std::sync::Arc;

use godel_identity::names::{ClusterName, Role};
use parking_lot::RwLock;
use rustls::{
    ClientConfig, ServerConfig, SignatureScheme,
    client::{ResolvesClientCert, Resumption},
    crypto::{CryptoProvider, ring},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
    version::TLS13,
};

use crate::{fingerprints::Fingerprint, leaves::OwnLeaf, roots::Trust};

pub use client::UnfitServer;
pub use words::{explain, explain_io, unfit_client, unfit_server};

/// What gRPC speaks over TLS.
pub const HTTP2: &[u8] = b"h2";
/// What metrics and REST speak over TLS, beside [`HTTP2`].
pub const HTTP1: &[u8] = b"http/1.1";

/// Tells what time it is, in milliseconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The server that a client means to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedServer {
    /// Its role.
    pub role: Role,
    /// Its name; `None`: any of that role.
    pub name: Option<String>,
}

impl ExpectedServer {
    /// Any server of a role.
    pub fn any_of(role: Role) -> Self {
        Self { role, name: None }
    }
}

/// What a process shows and trusts in handshakes. Clones are the same one.
#[derive(Clone)]
pub struct TlsIdentity {
    held: Arc<RwLock<Held>>,
    clock: WallClock,
}

struct Held {
    trust: Arc<Trust>,
    own: Option<Arc<OwnLeaf>>,
}

impl TlsIdentity {
    /// With a leaf, or without one as a person's client. `clock` is asked in handshakes of clients: how long a server's leaf has expired.
    pub fn new(trust: Trust, own: Option<OwnLeaf>, clock: WallClock) -> Self {
        let held = Held { trust: Arc::new(trust), own: own.map(Arc::new) };
        Self { held: Arc::new(RwLock::new(held)), clock }
    }

    /// What it trusts.
    pub fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.held.read().trust)
    }

    /// What it shows.
    pub fn own(&self) -> Option<Arc<OwnLeaf>> {
        self.held.read().own.clone()
    }

    /// Trusts other roots from the next handshake on.
    pub fn replace_trust(&self, trust: Trust) {
        self.held.write().trust = Arc::new(trust);
    }

    /// Shows another leaf from the next handshake on.
    pub fn replace_own(&self, own: OwnLeaf) {
        self.held.write().own = Some(Arc::new(own));
    }

    /// The configuration of a server that speaks `protocols`, the first one preferred, as [`HTTP2`].
    pub fn server_config(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let provider = provider();
        let verifier = server::ClientJudge::new(self.clone(), provider.signature_verification_algorithms);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has cipher suites of TLS 1.3")
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(OwnLeafSource(self.clone())));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Arc::new(config)
    }

    /// The configuration of a client that calls such a server and speaks `protocols`, the first one preferred.
    pub fn client_config(&self, expected: ExpectedServer, protocols: &[&[u8]]) -> Arc<ClientConfig> {
        let judge = client::KnownMember { identity: self.clone(), expected };
        client_config(judge, Some(self), protocols)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.clock)()
    }
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.held.read();
        f.debug_struct("TlsIdentity")
            .field("trust", &held.trust)
            .field("own", &held.own)
            .finish_non_exhaustive()
    }
}

/// The configuration of a client that joins: it trusts state of that cluster if its leaf is of the root with that fingerprint, which the
/// join token carries, and shows no certificate. The root is among the certificates that a server of godel shows. No times are judged: who
/// joins may have a clock that was never set.
pub fn joining_config(cluster: ClusterName, root: Fingerprint, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    client_config(client::PinnedRoot { cluster, root }, None, protocols)
}

/// The configuration of a client that believes whoever answers, and shows no certificate: for questions with which nothing secret is sent and whose
/// answer is worth no more than one in plain text, as that of `/healthz`.
pub fn unverified_config(protocols: &[&[u8]]) -> Arc<ClientConfig> {
    client_config(client::AnyServer, None, protocols)
}

/// The configuration of a client that believes whom `judge` lets pass, and shows the leaf of `own`.
fn client_config(
    judge: impl client::JudgesServer + 'static,
    own: Option<&TlsIdentity>,
    protocols: &[&[u8]],
) -> Arc<ClientConfig> {
    let provider = provider();
    let verifier = client::ServerVerifier::new(judge, provider.signature_verification_algorithms);
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has cipher suites of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match own {
        Some(own) => config.with_client_cert_resolver(Arc::new(OwnLeafSource(own.clone()))),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = Resumption::disabled();
    // Servers are known by their identity: where they were found is nobody else's business.
    config.enable_sni = false;
    Arc::new(config)
}

/// Shows the leaf that the process has at the moment of the handshake, if it has one.
#[derive(Debug)]
struct OwnLeafSource(TlsIdentity);

impl OwnLeafSource {
    fn certified(&self) -> Option<Arc<CertifiedKey>> {
        self.0.own().map(|own| own.certified())
    }
}

impl ResolvesClientCert for OwnLeafSource {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }

    fn has_certs(&self) -> bool {
        self.0.own().is_some()
    }
}

impl ResolvesServerCert for OwnLeafSource {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }
}

/// Signatures of the keys that leaves have.
const SCHEMES: [SignatureScheme; 2] = [SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519];

/// What is computed with: the cheapest of what is safe first. AES with 128 bits takes two thirds of the time of that with 256.
fn provider() -> Arc<CryptoProvider> {
    use ring::{cipher_suite, kx_group};
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519, kx_group::SECP256R1],
        ..ring::default_provider()
    })
}

#[cfg(test)]
mod tests;
