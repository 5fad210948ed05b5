//! A client's side of a handshake.

use std::fmt;

use godel_identity::{
    leaves::EXPIRED_GRACE_MS,
    names::{ClusterName, Identity, Role},
};
use rustls::{
    DigitallySignedStruct, Error, PeerIncompatible, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
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

/// Judges the leaf that a server shows.
pub(super) trait JudgesServer: fmt::Debug + Send + Sync {
    /// # Errors
    /// Why it is not the server that was meant. `others` are the certificates that came with the leaf.
    fn judge(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), UnfitServer>;
}

/// The member that was meant, by the roots and the clock of this process.
#[derive(Debug)]
pub(super) struct KnownMember {
    pub(super) identity: TlsIdentity,
    pub(super) expected: ExpectedServer,
}

impl JudgesServer for KnownMember {
    fn judge(&self, leaf: &CertificateDer<'_>, _: &[CertificateDer<'_>]) -> Result<(), UnfitServer> {
        let leaf = self.identity.trust().verify_leaf(leaf, LeafUsage::Server)?;
        check_expected(&self.expected, &leaf.identity)?;
        if self.identity.now_ms().saturating_sub(leaf.times.not_after_ms) >= EXPIRED_GRACE_MS {
            return Err(UnfitServer::LongExpired(leaf.identity));
        }
        Ok(())
    }
}

/// State of the cluster whose root a join token names.
#[derive(Debug)]
pub(super) struct PinnedRoot {
    pub(super) cluster: ClusterName,
    pub(super) root: Fingerprint,
}

impl JudgesServer for PinnedRoot {
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

/// Whoever answers.
#[derive(Debug)]
pub(super) struct AnyServer;

impl JudgesServer for AnyServer {
    fn judge(&self, _: &CertificateDer<'_>, _: &[CertificateDer<'_>]) -> Result<(), UnfitServer> {
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

/// Judges a server, and its signature of the handshake.
#[derive(Debug)]
pub(super) struct ServerVerifier<J> {
    judge: J,
    algorithms: WebPkiSupportedAlgorithms,
}

impl<J> ServerVerifier<J> {
    pub(super) fn new(judge: J, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { judge, algorithms }
    }
}

impl<J: JudgesServer> ServerCertVerifier for ServerVerifier<J> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged = self.judge.judge(end_entity, intermediates);
        judged.map(|()| ServerCertVerified::assertion()).map_err(handshake_error)
    }

    signatures_of_tls13!();
}
