//! A client's side of a handshake.

use std::sync::Arc;

use godel_identity::{
    leaves::EXPIRED_GRACE_MS,
    names::{ClusterName, Identity, Role},
};
use rustls::{
    DigitallySignedStruct, Error, PeerIncompatible, SignatureScheme,
    client::{
        ResolvesClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    sign::CertifiedKey,
};

use super::{ExpectedServer, SCHEMES, TlsIdentity, words::handshake_error};
use crate::{
    fingerprints::Fingerprint,
    leaves::LeafUsage,
    roots::{RootCert, Trust, UnfitLeaf},
};

/// Why a server is not the one that was meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitServer {
    /// Its leaf is not one of the cluster, or not a server's.
    #[error("the server is not one of this cluster")]
    Leaf(#[from] UnfitLeaf),
    /// Another member.
    #[error("the server is {}, and {} was meant; the address is another one's", .found.key(), meant(.expected))]
    Other {
        /// Whom it was taken for.
        expected: ExpectedServer,
        /// Who it is.
        found: Identity,
    },
    /// Its leaf expired too long ago.
    #[error(
        "the certificate of the server {} expired more than 30 days ago by the clock of this machine; set the clock, or have the server join \
         again",
        .0.key()
    )]
    LongExpired(Identity),
    /// It shows no root with the fingerprint of the join token.
    #[error(
        "the server shows no root with the fingerprint {pinned} of the join token: it is another cluster, or the CA was changed since the \
         token was made; nothing was sent. Check the address, and ask an administrator for a new join token"
    )]
    OtherRoot {
        /// Of the join token.
        pinned: Fingerprint,
    },
}

fn meant(expected: &ExpectedServer) -> String {
    match &expected.name {
        Some(name) => format!("{}/{name}", expected.role),
        None => format!("a server of role {}", expected.role),
    }
}

/// Judges the certificate of a server: whether it is the member that was meant.
#[derive(Debug)]
pub(super) struct ServerJudge {
    identity: TlsIdentity,
    expected: ExpectedServer,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerJudge {
    pub(super) fn new(
        identity: TlsIdentity,
        expected: ExpectedServer,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { identity, expected, algorithms }
    }

    fn judge(&self, leaf: &CertificateDer<'_>) -> Result<(), UnfitServer> {
        let leaf = self.identity.trust().verify_leaf(leaf, LeafUsage::Server)?;
        check_expected(&self.expected, &leaf.identity)?;
        if self.identity.now_ms().saturating_sub(leaf.times.not_after_ms) >= EXPIRED_GRACE_MS {
            return Err(UnfitServer::LongExpired(leaf.identity));
        }
        Ok(())
    }
}

fn check_expected(expected: &ExpectedServer, found: &Identity) -> Result<(), UnfitServer> {
    let is_named = expected.name.as_ref().is_none_or(|name| name == found.name());
    if expected.role == found.role() && is_named {
        return Ok(());
    }
    Err(UnfitServer::Other { expected: expected.clone(), found: found.clone() })
}

impl ServerCertVerifier for ServerJudge {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(end_entity).map(|()| ServerCertVerified::assertion()).map_err(handshake_error)
    }

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
}

/// Judges the server that somebody joins by: whether it is state, and of the root that the join token names.
#[derive(Debug)]
pub(super) struct PinnedRoot {
    cluster: ClusterName,
    root: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedRoot {
    pub(super) fn new(
        cluster: ClusterName,
        root: Fingerprint,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { cluster, root, algorithms }
    }

    fn judge(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), UnfitServer> {
        let root = others.iter().find(|other| Fingerprint::of(other) == self.root);
        let root = root.ok_or(UnfitServer::OtherRoot { pinned: self.root })?;
        let unreadable = |_| UnfitServer::OtherRoot { pinned: self.root };
        let root = RootCert::read(root.clone().into_owned()).map_err(unreadable)?;
        let trust = Trust::new(self.cluster.clone(), vec![root]).map_err(unreadable)?;
        let leaf = trust.verify_leaf(leaf, LeafUsage::Server)?;
        check_expected(&ExpectedServer::any_of(Role::State), &leaf.identity)
    }
}

impl ServerCertVerifier for PinnedRoot {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged = self.judge(end_entity, intermediates);
        judged.map(|()| ServerCertVerified::assertion()).map_err(handshake_error)
    }

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
}

/// Shows the leaf that the process has at this moment, if it has one.
#[derive(Debug)]
pub(super) struct ClientLeafSource(pub(super) TlsIdentity);

impl ResolvesClientCert for ClientLeafSource {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.own().map(|own| own.certified())
    }

    fn has_certs(&self) -> bool {
        self.0.own().is_some()
    }
}
