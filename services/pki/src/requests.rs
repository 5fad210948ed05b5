//! Keys of leaves, and requests for a leaf (PKCS #10).
//!
//! A request proves that who sends it has the key. Names and usages that it asks for are not followed: state knows who asks.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, PublicKeyData, SignatureAlgorithm};
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};
use rustls::pki_types::{CertificateSigningRequestDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use zeroize::Zeroizing;

use crate::{asn1, fingerprints::sha256, keys::KeyPair, pem, random::NoRandomBytes};

/// Largest request, bytes: ours have about 200, those of other tools up to 2 KiB as text.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;

const EC_PUBLIC_KEY: &[u64] = &[1, 2, 840, 10_045, 2, 1];
const CURVE_P256: &[u64] = &[1, 2, 840, 10_045, 3, 1, 7];
const ECDSA_WITH_SHA256: &[u64] = &[1, 2, 840, 10_045, 4, 3, 2];
const ED25519_OID: &[u64] = &[1, 3, 101, 112];

/// Bytes of a point of P-256 that is not compressed.
const P256_KEY_BYTES: usize = 65;
/// Bytes of a public key of Ed25519.
const ED25519_KEY_BYTES: usize = 32;

/// Not the key of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// It cannot be read.
    #[error("not a private key of P-256 or Ed25519 in PKCS #8; make a new one by joining again")]
    Encoding,
    /// It cannot be made, or does not sign.
    #[error(transparent)]
    Random(#[from] NoRandomBytes),
}

/// The private key of a leaf.
pub struct LeafKey(KeyPair);

impl LeafKey {
    /// A new key of P-256.
    ///
    /// # Errors
    /// [`BadKey::Random`].
    pub fn generate() -> Result<Self, BadKey> {
        Ok(Self(KeyPair::generate_p256()?))
    }

    /// Reads a key as [`Self::to_pem`] writes it.
    ///
    /// # Errors
    /// [`BadKey::Encoding`].
    pub fn read_pem(text: &str) -> Result<Self, BadKey> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes()).map_err(|_| BadKey::Encoding)?;
        KeyPair::read(der.secret_pkcs8_der()).map(Self).ok_or(BadKey::Encoding)
    }

    /// The key as text, for a file that nobody else reads.
    pub fn to_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(pem::write("PRIVATE KEY", self.0.pkcs8()))
    }

    /// A request for a leaf with this key, in DER.
    ///
    /// # Errors
    /// [`BadKey::Random`]: a signature needs random bytes.
    pub fn request(&self) -> Result<Vec<u8>, BadKey> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.0).map_err(|_| NoRandomBytes)?;
        Ok(request.der().to_vec())
    }

    /// The public key, for who issues its own leaf.
    pub fn public(&self) -> LeafPublicKey {
        LeafPublicKey { bytes: self.0.der_bytes().to_vec(), algorithm: self.0.algorithm() }
    }

    pub(crate) fn pkcs8(&self) -> &[u8] {
        self.0.pkcs8()
    }
}

impl fmt::Debug for LeafKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeafKey(..)")
    }
}

/// A public key that a leaf may be issued for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafPublicKey {
    bytes: Vec<u8>,
    algorithm: &'static SignatureAlgorithm,
}

impl LeafPublicKey {
    /// SHA-256 of the key, by which a request for the same key is recognised.
    pub fn sha256(&self) -> [u8; 32] {
        sha256(&self.bytes)
    }
}

impl PublicKeyData for LeafPublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

/// Why no leaf is issued for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// Too many bytes.
    #[error("the certificate request has {0} bytes; at most {REQUEST_BYTES_MAX} are read")]
    Long(usize),
    /// It cannot be read.
    #[error("not a certificate request (PKCS #10) in PEM or DER")]
    Encoding,
    /// Another kind of key.
    #[error(
        "the key of the certificate request is of another kind; make one of P-256 (ECDSA with SHA-256) or Ed25519"
    )]
    OtherKey,
    /// Not signed by its key.
    #[error("the certificate request is not signed by its own key")]
    Signature,
}

/// The key of a request in PEM or DER, if the request is signed by that key. All names and usages that it asks for are left aside.
///
/// # Errors
/// Why no leaf is issued for it.
pub fn check_request(request: &[u8]) -> Result<LeafPublicKey, BadRequest> {
    if request.len() > REQUEST_BYTES_MAX {
        return Err(BadRequest::Long(request.len()));
    }
    let text = request.trim_ascii();
    let fields = if text.starts_with(b"-----BEGIN") {
        let der = CertificateSigningRequestDer::from_pem_slice(text).map_err(|_| BadRequest::Encoding)?;
        asn1::read_request(&der)
    } else {
        asn1::read_request(request)
    };
    let fields = fields.ok_or(BadRequest::Encoding)?;
    let (kind, curve) = &fields.key_oids;
    let is_p256 = asn1::is(kind, EC_PUBLIC_KEY)
        && curve.as_ref().is_some_and(|curve| asn1::is(curve, CURVE_P256))
        && asn1::is(&fields.signature_oid, ECDSA_WITH_SHA256)
        && fields.key.len() == P256_KEY_BYTES;
    let is_ed25519 = asn1::is(kind, ED25519_OID)
        && curve.is_none()
        && asn1::is(&fields.signature_oid, ED25519_OID)
        && fields.key.len() == ED25519_KEY_BYTES;
    let (verification, algorithm): (&'static dyn VerificationAlgorithm, _) = if is_p256 {
        (&ECDSA_P256_SHA256_ASN1, &rcgen::PKCS_ECDSA_P256_SHA256)
    } else if is_ed25519 {
        (&ED25519, &rcgen::PKCS_ED25519)
    } else {
        return Err(BadRequest::OtherKey);
    };
    let key = UnparsedPublicKey::new(verification, &fields.key);
    key.verify(&fields.signed, &fields.signature).map_err(|_| BadRequest::Signature)?;
    Ok(LeafPublicKey { bytes: fields.key, algorithm })
}

#[cfg(test)]
mod tests;
