//! A server's side of a handshake.

use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
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

    signatures_of_tls13!();
}
