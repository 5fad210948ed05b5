//! What a cluster trusts: its name and its roots. There are two roots while one replaces the other.

use std::{fmt, sync::Arc};

use godel_identity::names::{ClusterName, Identity};
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::{
    fingerprints::Fingerprint,
    leaves::{BadLeaf, LeafUsage, PresentedLeaf},
    pem::{self, BadPem},
};

/// Most roots at once: one that is followed by another, and room for a second change before the first has ended.
pub const N_ROOTS_MAX: usize = 4;
/// Largest root, bytes: ours have about 400.
pub const ROOT_BYTES_MAX: usize = 4 << 10;

/// How roots sign.
const SIGNATURES: &[&dyn SignatureVerificationAlgorithm] = &[webpki::ring::ECDSA_P256_SHA256];

/// The certificate of a root.
#[derive(Clone)]
pub struct RootCert {
    der: CertificateDer<'static>,
    anchor: TrustAnchor<'static>,
    fingerprint: Fingerprint,
}

impl RootCert {
    /// Reads a root in DER.
    ///
    /// # Errors
    /// [`BadTrust::Root`].
    pub fn read(der: impl Into<CertificateDer<'static>>) -> Result<Self, BadTrust> {
        let der = der.into();
        if der.len() > ROOT_BYTES_MAX {
            return Err(BadTrust::Root);
        }
        let anchor = anchor_from_trusted_cert(&der).map_err(|_| BadTrust::Root)?.to_owned();
        Ok(Self { fingerprint: Fingerprint::of(&der), anchor, der })
    }

    /// The certificate.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// What it is recognised by.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for RootCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootCert({})", self.fingerprint)
    }
}

impl PartialEq for RootCert {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for RootCert {}

/// What cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTrust {
    /// Not a root's certificate.
    #[error("a root is not a certificate in DER of at most {ROOT_BYTES_MAX} bytes")]
    Root,
    /// None, or too many.
    #[error("{0} roots; a cluster has 1 to {N_ROOTS_MAX}")]
    Number(usize),
    /// Not text with certificates.
    #[error(transparent)]
    Pem(#[from] BadPem),
    /// Of another cluster.
    #[error("the name of the cluster")]
    Cluster,
    /// None of them has issued the leaf.
    #[error("no root of the cluster has issued the certificate")]
    OtherRoot,
}

/// Why a leaf is not one of this cluster, or not for what it is used for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnfitLeaf {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] BadLeaf),
    /// No root of the cluster has issued it.
    #[error(
        "no root of cluster {cluster} has issued the certificate; it belongs to another cluster, or to a root that was dropped"
    )]
    Foreign {
        /// Whose roots are trusted.
        cluster: ClusterName,
    },
    /// A root's name is on it, but not its signature.
    #[error(
        "the signature on the certificate is wrong: it was tampered with, or issued under the name of another root"
    )]
    Tampered,
    /// A client's leaf is used as a server's, or the other way round.
    #[error("the certificate is not for a {usage}")]
    OtherUsage {
        /// What it is used for.
        usage: LeafUsage,
    },
    /// Its identity names another cluster.
    #[error("the certificate is of {identity}, but this is cluster {cluster}")]
    OtherCluster {
        /// What it says.
        identity: Identity,
        /// Whose roots are trusted.
        cluster: ClusterName,
    },
}

/// The name of a cluster and its roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    cluster: ClusterName,
    roots: Arc<[RootCert]>,
    anchors: Arc<[TrustAnchor<'static>]>,
}

impl Trust {
    /// With one to [`N_ROOTS_MAX`] roots.
    ///
    /// # Errors
    /// [`BadTrust::Number`].
    pub fn new(cluster: ClusterName, roots: Vec<RootCert>) -> Result<Self, BadTrust> {
        if roots.is_empty() || roots.len() > N_ROOTS_MAX {
            return Err(BadTrust::Number(roots.len()));
        }
        let anchors = roots.iter().map(|root| root.anchor.clone()).collect();
        Ok(Self { cluster, roots: roots.into(), anchors })
    }

    /// From a file with the certificates of roots.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read_pem(cluster: ClusterName, text: &str) -> Result<Self, BadTrust> {
        let roots = pem::read_certificates(text)?.into_iter().map(RootCert::read);
        Self::new(cluster, roots.collect::<Result<_, _>>()?)
    }

    /// The certificates of the roots as text, as `--cacert` of other tools wants them.
    pub fn to_pem(&self) -> String {
        pem::write_certificates(self.roots.iter().map(RootCert::der))
    }

    /// The cluster.
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// Its roots.
    pub fn roots(&self) -> &[RootCert] {
        &self.roots
    }

    /// Whether a root is among them.
    pub fn has_root(&self, fingerprint: Fingerprint) -> bool {
        self.roots.iter().any(|root| root.fingerprint == fingerprint)
    }

    /// The root that has issued a leaf.
    ///
    /// # Errors
    /// [`BadTrust::OtherRoot`].
    pub fn root_of(&self, leaf: &CertificateDer<'_>) -> Result<&RootCert, BadTrust> {
        let has_issued = |root: &&RootCert| {
            let alone = Self::new(self.cluster.clone(), vec![(*root).clone()]);
            alone.is_ok_and(|alone| alone.verify_leaf(leaf, LeafUsage::Client).is_ok())
        };
        self.roots.iter().find(has_issued).ok_or(BadTrust::OtherRoot)
    }

    /// Reads a leaf that one of the roots has issued itself, for the cluster and for that use. Whether it has expired is not judged, nor
    /// whether its name is revoked: that is `godel_identity::leaves::judge_leaf`.
    ///
    /// # Errors
    /// Why it is not such a leaf.
    pub fn verify_leaf(
        &self,
        der: &CertificateDer<'_>,
        usage: LeafUsage,
    ) -> Result<PresentedLeaf, UnfitLeaf> {
        let leaf = PresentedLeaf::read(der)?;
        let parsed = EndEntityCert::try_from(der).map_err(|_| BadLeaf::Encoding)?;
        let needed = match usage {
            LeafUsage::Client => KeyUsage::client_auth(),
            LeafUsage::Server => KeyUsage::server_auth(),
        };
        // At a moment at which it is valid, so that the chain is judged and the time is not.
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_millis(leaf.times.not_before_ms));
        let verified = parsed.verify_for_usage(SIGNATURES, &self.anchors, &[], at, needed, None, None);
        if let Err(error) = verified {
            return Err(self.unfit(&error, usage));
        }
        let is_for_use = match usage {
            LeafUsage::Client => leaf.is_for_clients,
            LeafUsage::Server => leaf.is_for_servers && leaf.identity.role().is_server(),
        };
        if !is_for_use {
            return Err(UnfitLeaf::OtherUsage { usage });
        }
        if *leaf.identity.cluster() != self.cluster {
            return Err(UnfitLeaf::OtherCluster { identity: leaf.identity, cluster: self.cluster.clone() });
        }
        Ok(leaf)
    }

    fn unfit(&self, error: &webpki::Error, usage: LeafUsage) -> UnfitLeaf {
        match error {
            webpki::Error::UnknownIssuer => UnfitLeaf::Foreign { cluster: self.cluster.clone() },
            webpki::Error::InvalidSignatureForPublicKey => UnfitLeaf::Tampered,
            webpki::Error::RequiredEkuNotFoundContext(_) => UnfitLeaf::OtherUsage { usage },
            _ => UnfitLeaf::Unreadable(BadLeaf::Encoding),
        }
    }
}

#[cfg(test)]
mod tests;
