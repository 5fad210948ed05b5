//! What signs: the keys of each root that is trusted, sealed in the store by the key of `pki/seal.key`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use godel_identity::{
    names::ClusterName,
    records::{ClusterTrust, PersonTokenKey, RootFingerprint, TrustedRoot},
    rotation,
};
use godel_pki::{
    seal::SealKey,
    signer::{Signer, SignerError},
    yarn_tokens::YarnSecret,
};
use godel_proto::{
    raw,
    v1::{self, op::Op},
};
use godel_wire::to_proto;

/// The keys of each root.
#[derive(Clone)]
pub(crate) struct Keys {
    seal: Arc<SealKey>,
    by_root: BTreeMap<RootFingerprint, Arc<Signer>>,
    /// For tests: nothing signs while this file exists.
    fails_while: Option<Arc<Path>>,
}

/// Why nothing signs.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A key cannot be made, opened or sealed.
    #[error(transparent)]
    Signer(#[from] SignerError),
    /// The store has no keys of the root that signs.
    #[error(
        "the store holds no key of root {root}, which signs; restore an export that has it, or make a new CA with `godel ca new`"
    )]
    Missing {
        /// The root.
        root: RootFingerprint,
    },
    /// A test makes signing fail.
    #[error("nothing is signed while {} exists (`state.signing_fails_while`)", file.display())]
    Failing {
        /// The file.
        file: PathBuf,
    },
}

impl std::fmt::Debug for Keys {
    /// Without what is secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("roots", &self.by_root.keys()).finish_non_exhaustive()
    }
}

impl Keys {
    /// None yet.
    pub(crate) fn new(seal: Arc<SealKey>) -> Self {
        Self { seal, by_root: BTreeMap::new(), fails_while: None }
    }

    /// Opens what the store holds of the roots that are trusted.
    ///
    /// # Errors
    /// Something cannot be opened.
    pub(crate) fn open(
        seal: Arc<SealKey>,
        cluster: &ClusterName,
        sealed: Vec<v1::SealedSigner>,
    ) -> Result<Self, KeysError> {
        let mut keys = Self::new(seal);
        for v1::SealedSigner { name: _, key_id, sealed } in sealed {
            keys.add(Signer::open(cluster.clone(), &sealed, &key_id, &keys.seal)?);
        }
        Ok(keys)
    }

    /// The same keys, but for a test they sign nothing while `file` exists.
    pub(crate) fn failing_while(self, file: Option<&Path>) -> Self {
        Self { fails_while: file.map(Arc::from), ..self }
    }

    /// Adds the keys of a root, and returns which.
    pub(crate) fn add(&mut self, signer: Signer) -> RootFingerprint {
        let root = fingerprint_of(&signer);
        self.by_root.insert(root, Arc::new(signer));
        root
    }

    /// The same without the keys of some roots.
    pub(crate) fn without(&self, roots: &[RootFingerprint]) -> Self {
        let mut keys = self.clone();
        keys.by_root.retain(|root, _| !roots.contains(root));
        keys
    }

    /// The same with the keys of a root, as the store has them.
    ///
    /// # Errors
    /// They cannot be opened.
    pub(crate) fn with_sealed(
        &self,
        cluster: &ClusterName,
        sealed: &v1::SealedSigner,
    ) -> Result<Self, KeysError> {
        let mut keys = self.clone();
        keys.add(Signer::open(cluster.clone(), &sealed.sealed, &sealed.key_id, &keys.seal)?);
        Ok(keys)
    }

    /// The same without the keys of the root that is called so in the store.
    pub(crate) fn without_named(&self, name: &str) -> Self {
        let mut keys = self.clone();
        keys.by_root.retain(|root, _| root.to_string() != name);
        keys
    }

    /// What signs for a root.
    ///
    /// # Errors
    /// There is nothing.
    pub(crate) fn of_root(&self, root: RootFingerprint) -> Result<&Arc<Signer>, KeysError> {
        match self.fails_while.as_deref().filter(|file| file.exists()) {
            Some(file) => Err(KeysError::Failing { file: file.to_owned() }),
            None => self.by_root.get(&root).ok_or(KeysError::Missing { root }),
        }
    }

    /// What signs at `now_ms`.
    ///
    /// # Errors
    /// There is nothing.
    pub(crate) fn signing(&self, trust: &ClusterTrust, now_ms: u64) -> Result<&Arc<Signer>, KeysError> {
        let root = rotation::signing_root(trust, now_ms).map(|root| root.fingerprint).unwrap_or_default();
        self.of_root(root)
    }

    /// What clients of YARN prove tokens by that the key called `key_id` has signed, also after that key has gone.
    pub(crate) fn yarn_secret(&self, key_id: &str) -> YarnSecret {
        YarnSecret::of(&self.seal, key_id)
    }

    /// Writes of what differs from `before`.
    ///
    /// # Errors
    /// The keys cannot be sealed.
    pub(crate) fn changed_since(&self, before: &Self) -> Result<Vec<Bytes>, KeysError> {
        let mut ops = Vec::new();
        for (root, signer) in self.by_root.iter().filter(|(root, _)| !before.by_root.contains_key(root)) {
            let sealed = signer.seal(&self.seal)?;
            let key_id = self.seal.id().to_owned();
            let record = v1::SealedSigner { name: root.to_string(), key_id, sealed };
            ops.push(raw::encode_op(Op::PutSealedSigner(record)));
        }
        let gone = before.by_root.keys().filter(|root| !self.by_root.contains_key(root));
        ops.extend(gone.map(|root| to_proto::delete_named(v1::Kind::SealedSigner, &root.to_string())));
        Ok(ops)
    }
}

/// The root that a signer signs with, trusted from `created_ms` on and signing from `signs_from_ms` on.
pub(crate) fn trusted_root(signer: &Signer, created_ms: u64, signs_from_ms: u64) -> TrustedRoot {
    TrustedRoot {
        certificate: signer.root().der().to_vec(),
        fingerprint: fingerprint_of(signer),
        created_ms,
        signs_from_ms,
        is_leaving: false,
    }
}

/// The key that checks the tokens of a signer.
pub(crate) fn person_key(signer: &Signer) -> PersonTokenKey {
    let key = signer.token_key();
    PersonTokenKey { id: key.id().to_owned(), public_key: *key.public(), ends_ms: None }
}

fn fingerprint_of(signer: &Signer) -> RootFingerprint {
    RootFingerprint(*signer.root().fingerprint().as_bytes())
}
