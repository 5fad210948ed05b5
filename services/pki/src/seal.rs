//! The key that a signer is sealed with, and its file `pki/seal.key`.
//!
//! The store holds the signer sealed (AES-256-GCM), so that a copy of the store signs nothing. Who has the file may sign: whoever runs another
//! state, or restores a backup on another machine, is given it.

use std::{fmt, io, path::Path};

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use zeroize::Zeroizing;

use crate::{
    fingerprints::{hex, sha256},
    private_files::{self, PrivateFileError},
    random::{NoRandomBytes, random_bytes},
};

/// Bytes of the key.
pub const SEAL_KEY_BYTES: usize = 32;
/// What sealed bytes begin with.
const VERSION: u8 = 1;

/// The key of `pki/seal.key`.
pub struct SealKey {
    id: String,
    key: LessSafeKey,
    /// What other secrets are derived with.
    derives: hmac::Key,
}

impl SealKey {
    /// The key of these bytes.
    pub fn new(bytes: &[u8; SEAL_KEY_BYTES]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, bytes).expect("a key of AES-256 has 32 bytes");
        let derives = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        Self { id: hex(&sha256(bytes)[..8]), key: LessSafeKey::new(key), derives }
    }

    /// A secret of this purpose: the same for the same key, and nothing about the key or another purpose can be learnt from it.
    pub(crate) fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        let mut secret = Zeroizing::new([0; 32]);
        secret.copy_from_slice(hmac::sign(&self.derives, purpose.as_bytes()).as_ref());
        secret
    }

    /// What it is recognised by, 16 hexadecimal digits. It gives nothing away of the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Seals `plain`. What is sealed is opened under the same `purpose` only.
    pub(crate) fn seal(&self, purpose: &str, plain: &[u8]) -> Result<Vec<u8>, NoRandomBytes> {
        let nonce: [u8; NONCE_LEN] = random_bytes()?;
        let mut sealed = vec![VERSION];
        sealed.extend_from_slice(&nonce);
        let mut body = plain.to_vec();
        self.key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(purpose), &mut body)
            .expect("AES-GCM seals what has less than 64 GiB");
        sealed.extend_from_slice(&body);
        Ok(sealed)
    }

    /// Opens what was sealed; `None` if it was sealed with another key, for another purpose, or changed since.
    pub(crate) fn open(&self, purpose: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (&[VERSION], rest) = sealed.split_first_chunk::<1>()? else { return None };
        let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>()?;
        let mut body = Zeroizing::new(body.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let n_bytes = self.key.open_in_place(nonce, Aad::from(purpose), &mut body).ok()?.len();
        body.truncate(n_bytes);
        Some(body)
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealKey({})", self.id)
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum SealKeyError {
    /// The file.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The file holds something else.
    #[error(
        "{path} has {n_bytes} bytes, but a key to seal with has {SEAL_KEY_BYTES}: it is damaged; put back a copy, or make a new CA with \
         `godel ca new`"
    )]
    Size {
        /// Of the file.
        path: String,
        /// Its bytes.
        n_bytes: usize,
    },
    /// A key cannot be made.
    #[error(transparent)]
    Random(#[from] NoRandomBytes),
}

impl SealKeyError {
    /// Whether there is no file.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::File(error) if error.kind() == Some(io::ErrorKind::NotFound))
    }
}

/// Makes a key and its file, which must not exist, with mode 0600. The file is on disk when it returns.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn make_seal_key(path: &Path) -> Result<SealKey, SealKeyError> {
    let bytes = Zeroizing::new(random_bytes()?);
    private_files::create(path, &*bytes)?;
    Ok(SealKey::new(&bytes))
}

/// Reads the key of a file.
///
/// # Errors
/// There is none, others may read it, or it holds something else.
pub fn read_seal_key(path: &Path) -> Result<SealKey, SealKeyError> {
    let bytes = private_files::read(path, SEAL_KEY_BYTES + 1)?;
    let size = |_| SealKeyError::Size { path: path.display().to_string(), n_bytes: bytes.len() };
    let bytes: &[u8; SEAL_KEY_BYTES] = bytes.as_slice().try_into().map_err(size)?;
    Ok(SealKey::new(bytes))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn what_is_sealed_is_opened_by_the_same_key_for_the_same_purpose() {
        let key = SealKey::new(&[7; 32]);
        let sealed = key.seal("signer c", b"secret").unwrap();
        assert_eq!(key.open("signer c", &sealed).unwrap().as_slice(), b"secret");
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_ne!(sealed, key.seal("signer c", b"secret").unwrap(), "a nonce is used once");
        assert!(key.open("signer d", &sealed).is_none());
        assert!(SealKey::new(&[8; 32]).open("signer c", &sealed).is_none());
        for at in 0..sealed.len() {
            let mut tampered = sealed.clone();
            tampered[at] ^= 1;
            assert!(key.open("signer c", &tampered).is_none(), "byte {at}");
            assert!(key.open("signer c", &sealed[..at]).is_none(), "{at} bytes");
        }
    }

    #[test]
    fn the_file_of_the_key_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("seal.key");
        assert!(read_seal_key(&path).unwrap_err().is_absent());
        let made = make_seal_key(&path).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.permissions().mode() & 0o7777, meta.len()), (0o600, 32));
        assert_eq!(read_seal_key(&path).unwrap().id(), made.id());
        // A second start makes no other key.
        let refusal = make_seal_key(&path).unwrap_err();
        assert!(!refusal.is_absent() && refusal.to_string().contains("exists already"), "{refusal}");
        assert_eq!(read_seal_key(&path).unwrap().id(), made.id());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left over");
        for mode in [0o640, 0o604, 0o622, 0o610] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refusal = read_seal_key(&path).unwrap_err().to_string();
            assert!(refusal.contains("chmod 600"), "{mode:o}: {refusal}");
        }
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for n_bytes in [0, 31, 33, 5_000] {
            let path = dir.path().join(format!("{n_bytes}.key"));
            private_files::create(&path, &vec![1; n_bytes]).unwrap();
            assert!(!read_seal_key(&path).unwrap_err().is_absent(), "{n_bytes} bytes");
        }
    }
}
