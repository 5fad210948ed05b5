//! Private keys of P-256 and Ed25519, as `rcgen` signs with them.
//!
//! `rcgen` is built without cryptography of its own: with it, a second parser of certificates would come into the tree.

use rcgen::{PublicKeyData, SignatureAlgorithm, SigningKey};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _},
};
use zeroize::Zeroizing;

use crate::{fingerprints::sha256, random::NoRandomBytes};

/// Bytes of the identifier of a key in certificates.
const KEY_ID_BYTES: usize = 20;

/// A private key with its public one.
pub(crate) struct KeyPair {
    /// As it is written.
    pkcs8: Zeroizing<Vec<u8>>,
    kind: KeyKind,
}

enum KeyKind {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl KeyPair {
    /// A new key of P-256.
    pub(crate) fn generate_p256() -> Result<Self, NoRandomBytes> {
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
        Self::read(made.map_err(|_| NoRandomBytes)?.as_ref()).ok_or(NoRandomBytes)
    }

    /// A new key of Ed25519.
    pub(crate) fn generate_ed25519() -> Result<Self, NoRandomBytes> {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        Self::read(made.map_err(|_| NoRandomBytes)?.as_ref()).ok_or(NoRandomBytes)
    }

    /// Reads a key in PKCS #8; `None`: it is of another kind, or not a key.
    pub(crate) fn read(pkcs8: &[u8]) -> Option<Self> {
        let p256 = || EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &SystemRandom::new());
        let kind = match p256() {
            Ok(key) => KeyKind::P256(key),
            // Other tools write it without the public key.
            Err(_) => KeyKind::Ed25519(Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8).ok()?),
        };
        Some(Self { pkcs8: Zeroizing::new(pkcs8.to_vec()), kind })
    }

    /// In PKCS #8.
    pub(crate) fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// Signs bytes; it fails for want of random bytes only.
    pub(crate) fn sign_bytes(&self, bytes: &[u8]) -> Result<Vec<u8>, NoRandomBytes> {
        match &self.kind {
            KeyKind::P256(key) => {
                let signature = key.sign(&SystemRandom::new(), bytes);
                signature.map(|signature| signature.as_ref().to_vec()).map_err(|_| NoRandomBytes)
            }
            KeyKind::Ed25519(key) => Ok(key.sign(bytes).as_ref().to_vec()),
        }
    }
}

impl PublicKeyData for KeyPair {
    fn der_bytes(&self) -> &[u8] {
        match &self.kind {
            KeyKind::P256(key) => key.public_key().as_ref(),
            KeyKind::Ed25519(key) => key.public_key().as_ref(),
        }
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match &self.kind {
            KeyKind::P256(_) => &rcgen::PKCS_ECDSA_P256_SHA256,
            KeyKind::Ed25519(_) => &rcgen::PKCS_ED25519,
        }
    }
}

impl SigningKey for KeyPair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.sign_bytes(message).map_err(|_| rcgen::Error::RemoteKeyError)
    }
}

/// What certificates call a public key.
pub(crate) fn key_id(public: &[u8]) -> Vec<u8> {
    sha256(public)[..KEY_ID_BYTES].to_vec()
}
