//! A server's side of a handshake.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use super::{SCHEMES, TlsIdentity, words::handshake_error};
use crate::leaves::LeafUsage;

/// Judges the certificate of a client, if it shows one: whether a root of the cluster has issued it for clients.
#[derive(Debug)]
pub(super) struct ClientJudge {
    identity: TlsIdentity,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientJudge {
    pub(super) fn new(identity: TlsIdentity, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { identity, algorithms }
    }
}

impl ClientCertVerifier for ClientJudge {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: a process has one leaf and shows it.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let judged = self.identity.trust().verify_leaf(end_entity, LeafUsage::Client);
        judged.map(|_| ClientCertVerified::assertion()).map_err(handshake_error)
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

/// Shows the leaf that the process has at this moment, to every client.
#[derive(Debug)]
pub(super) struct ServerLeafSource(pub(super) TlsIdentity);

impl ResolvesServerCert for ServerLeafSource {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.own().map(|own| own.certified())
    }
}
