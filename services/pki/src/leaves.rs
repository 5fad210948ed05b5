//! What a leaf says, and the leaf that a process has of its own.

use std::fmt;

use godel_identity::{
    leaves::LeafTimes,
    names::{BadIdentity, Identity},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{crypto::ring::sign::any_supported_type, sign::CertifiedKey};
use std::sync::Arc;
use webpki::EndEntityCert;

use crate::{
    asn1,
    fingerprints::{Fingerprint, hex},
    pem::{self, BadPem},
    requests::{BadKey, LeafKey},
    roots::RootCert,
};

/// Largest leaf, bytes: ours have less than 1 KiB, with the most names 5 KiB.
pub const LEAF_BYTES_MAX: usize = 16 << 10;

/// What a leaf is used for in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafUsage {
    /// By who opens the connection.
    Client,
    /// By who is called.
    Server,
}

impl fmt::Display for LeafUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// Not a leaf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLeaf {
    /// Not a certificate that is read here.
    #[error("not a certificate of at most {LEAF_BYTES_MAX} bytes that a root of godel issues")]
    Encoding,
    /// Its times are before 1970 or end before they begin.
    #[error("the times of the certificate make no sense")]
    Times,
    /// It names no identity, or several.
    #[error("the certificate names {0} identities; a leaf has one, as a URI among its alternative names")]
    Identities(usize),
    /// What it names is no identity.
    #[error("the identity that the certificate names is none")]
    Identity(#[from] BadIdentity),
}

/// What a leaf says of itself. Believe it after [`Trust::verify_leaf`](crate::roots::Trust::verify_leaf), or of a peer whose handshake has succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentedLeaf {
    /// Whose it is.
    pub identity: Identity,
    /// When it is valid, and when it was issued.
    pub times: LeafTimes,
    /// Its number, in hexadecimal digits; different for every leaf.
    pub serial: String,
    /// It may be used by who opens connections.
    pub is_for_clients: bool,
    /// It may be used by who is called.
    pub is_for_servers: bool,
}

impl PresentedLeaf {
    /// Reads a leaf in DER. Who has signed it is not judged.
    ///
    /// # Errors
    /// Why it is not a leaf.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, BadLeaf> {
        if der.len() > LEAF_BYTES_MAX {
            return Err(BadLeaf::Encoding);
        }
        let fields = asn1::read_certificate(der).ok_or(BadLeaf::Encoding)?;
        let parsed = EndEntityCert::try_from(der).map_err(|_| BadLeaf::Encoding)?;
        let ms = |s: i64| u64::try_from(s).ok().and_then(|s| s.checked_mul(1_000)).ok_or(BadLeaf::Times);
        let times =
            LeafTimes { not_before_ms: ms(fields.not_before_s)?, not_after_ms: ms(fields.not_after_s)? };
        if times.not_after_ms < times.not_before_ms {
            return Err(BadLeaf::Times);
        }
        let uris: Vec<&str> = parsed.valid_uri_names().collect();
        let [uri] = uris[..] else { return Err(BadLeaf::Identities(uris.len())) };
        Ok(Self {
            identity: uri.parse()?,
            times,
            serial: hex(parsed.serial()),
            is_for_clients: fields.is_for_clients,
            is_for_servers: fields.is_for_servers,
        })
    }
}

/// Why a leaf and a key are not a process's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOwnLeaf {
    /// The certificate.
    #[error(transparent)]
    Leaf(#[from] BadLeaf),
    /// The text of the certificates.
    #[error(transparent)]
    Pem(#[from] BadPem),
    /// The key.
    #[error(transparent)]
    Key(#[from] BadKey),
    /// The key is that of another leaf.
    #[error("the key is not that of the certificate; the two files belong to different issues: join again")]
    OtherKey,
}

/// The leaf of this process, with its key and the root that has issued it.
#[derive(Clone)]
pub struct OwnLeaf {
    leaf: PresentedLeaf,
    certified: Arc<CertifiedKey>,
}

impl OwnLeaf {
    /// Puts together what was issued and the key that it was issued for.
    ///
    /// # Errors
    /// The leaf cannot be read, or is for another key.
    pub fn new(leaf: CertificateDer<'static>, root: &RootCert, key: &LeafKey) -> Result<Self, BadOwnLeaf> {
        Self::of_chain(vec![leaf, root.der().clone()], key)
    }

    /// From the text of the leaf and its root, and the key.
    ///
    /// # Errors
    /// As [`Self::new`], and what is wrong with the text.
    pub fn read_pem(chain: &str, key: &LeafKey) -> Result<Self, BadOwnLeaf> {
        Self::of_chain(pem::read_certificates(chain)?, key)
    }

    fn of_chain(chain: Vec<CertificateDer<'static>>, key: &LeafKey) -> Result<Self, BadOwnLeaf> {
        let leaf = PresentedLeaf::read(chain.first().ok_or(BadPem::NoCertificate)?)?;
        let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.pkcs8()));
        let private = any_supported_type(&private).map_err(|_| BadKey::Encoding)?;
        let certified = CertifiedKey::new(chain, private);
        certified.keys_match().map_err(|_| BadOwnLeaf::OtherKey)?;
        Ok(Self { leaf, certified: Arc::new(certified) })
    }

    /// What the leaf says.
    pub fn leaf(&self) -> &PresentedLeaf {
        &self.leaf
    }

    /// The root that has issued it.
    pub fn root(&self) -> Fingerprint {
        // The root is the last of the chain.
        Fingerprint::of(self.certified.cert.last().map_or(&[], |root| root.as_ref()))
    }

    /// The text of the leaf and its root, for a file. Neither is secret.
    pub fn to_pem(&self) -> String {
        pem::write_certificates(&self.certified.cert)
    }

    /// As `rustls` takes it.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

impl fmt::Debug for OwnLeaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnLeaf").field("leaf", &self.leaf).finish_non_exhaustive()
    }
}
