//! The CA: made at the first start, opened at every later one.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use godel_identity::{
    book::{IdentityBook, IdentityChange},
    names::ClusterName,
    records::{ClusterTrust, RootFingerprint},
};
use godel_pki::{
    fingerprints::Fingerprint,
    random::{NoRandomBytes, random_bytes},
    seal::{SealKey, SealKeyError, make_seal_key, read_seal_key},
    signer::Signer,
};
use godel_proto::raw;
use godel_store::{Role, Store, TxnRefusal};
use godel_wire::{BadField, to_proto};

use super::{
    keys::{Keys, KeysError, person_key, trusted_root},
    records,
};

/// The file of the key that seals the CA's keys in the store, in its directory.
const SEAL_KEY: &str = "seal.key";

/// Records that one transaction deletes: they fit it whatever they are called.
const N_DELETED_MAX: usize = 2_000;

/// Where the key is that seals the CA's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SealPlace {
    /// In this directory, which is made if absent.
    Dir(PathBuf),
    /// Nowhere beyond the process, as the store itself.
    Memory,
}

impl std::fmt::Display for SealPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dir(dir) => dir.join(SEAL_KEY).display().fmt(f),
            Self::Memory => f.write_str("in memory"),
        }
    }
}

/// What signs, and all that is known of identities.
pub(crate) struct OpenedCa {
    pub(crate) book: IdentityBook,
    pub(crate) keys: Keys,
    /// It was made just now.
    pub(crate) is_new: bool,
}

/// Why there is no CA.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A record of the store cannot be read.
    #[error("a record of identities cannot be read: {0}; run `godel state check` for details")]
    Record(#[from] BadField),
    /// The key that seals is gone.
    #[error(
        "{} is missing, and the store's CA is sealed with it: copy it from where state ran before, or make a new CA with `godel ca new`, \
         which nodes and members join again", .path.display()
    )]
    NoSealKey {
        /// Where it should be.
        path: PathBuf,
    },
    /// The key that seals cannot be made or read.
    #[error(transparent)]
    SealKey(#[from] SealKeyError),
    /// The directory of the key cannot be made.
    #[error("{} cannot be made", .dir.display())]
    Dir {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What signs cannot be made or opened.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The system gives no random bytes.
    #[error(transparent)]
    Random(#[from] NoRandomBytes),
    /// The store does not take the CA.
    #[error("the store does not take the CA")]
    Write(#[source] TxnRefusal),
}

/// Opens the CA of a store, or makes one if it has none. A new one is called `cluster`, or a name made at random.
///
/// The key that seals is on disk before the store has anything sealed with it: a start that ended in between goes on with it.
///
/// # Errors
/// See [`CaError`].
pub(crate) async fn open(
    store: &Store,
    place: &SealPlace,
    cluster: Option<ClusterName>,
    now_ms: u64,
) -> Result<OpenedCa, CaError> {
    let fingerprint = |der: &[u8]| RootFingerprint(*Fingerprint::of(der).as_bytes());
    let known = store.read(|state| {
        let book = records::book(state, fingerprint)?;
        Ok::<_, BadField>(book.map(|book| (book, records::sealed(state))))
    })?;
    let Some((book, sealed)) = known else {
        return make(store, place, cluster, now_ms).await;
    };
    let seal = Arc::new(read_seal(place)?);
    let trust = book.trust();
    let of_roots = sealed?
        .into_iter()
        .filter(|sealed| trust.roots.iter().any(|root| root.fingerprint.to_string() == sealed.name));
    let keys = Keys::open(seal, &trust.cluster, of_roots.collect())?;
    keys.signing(trust, now_ms)?;
    Ok(OpenedCa { book, keys, is_new: false })
}

/// Makes a new CA in place of one whose key is lost. The cluster keeps its name; everybody joins again, under any name.
///
/// # Errors
/// See [`CaError`].
pub(crate) async fn replace(
    store: &Store,
    place: &SealPlace,
    cluster: Option<ClusterName>,
    now_ms: u64,
) -> Result<OpenedCa, CaError> {
    let known = store.read(records::cluster)?;
    let made = make(store, place, known.or(cluster), now_ms).await?;
    let keeps: Vec<String> =
        made.book.trust().roots.iter().map(|root| root.fingerprint.to_string()).collect();
    let mut gone = store.read(records::keys_of_holders);
    gone.retain(|(_, key)| !keeps.contains(key));
    for some in gone.chunks(N_DELETED_MAX) {
        let ops = some.iter().map(|(kind, key)| to_proto::delete_named(*kind, key)).collect();
        let txn = raw::TxnRequest { ops, ..raw::TxnRequest::default() };
        store.submit(txn, Role::Identities).await.map_err(CaError::Write)?;
    }
    Ok(made)
}

async fn make(
    store: &Store,
    place: &SealPlace,
    cluster: Option<ClusterName>,
    now_ms: u64,
) -> Result<OpenedCa, CaError> {
    let seal = Arc::new(make_seal(place)?);
    let cluster = match cluster {
        Some(cluster) => cluster,
        None => ClusterName::generate(u32::from_be_bytes(random_bytes()?)),
    };
    let signer = Signer::make(cluster.clone()).map_err(KeysError::from)?;
    let roots = vec![trusted_root(&signer, now_ms, now_ms)];
    let trust = ClusterTrust { cluster, roots, person_keys: vec![person_key(&signer)] };
    let none = Keys::new(seal);
    let mut keys = none.clone();
    keys.add(signer);
    let mut ops = keys.changed_since(&none)?;
    ops.push(records::op(IdentityChange::Trust(trust.clone())));
    let txn = raw::TxnRequest { ops, ..raw::TxnRequest::default() };
    store.submit(txn, Role::Identities).await.map_err(CaError::Write)?;
    Ok(OpenedCa { book: IdentityBook::new(trust, [], []), keys, is_new: true })
}

/// The key that seals what a new CA has: that of an earlier start that did not get further, if there is one.
fn make_seal(place: &SealPlace) -> Result<SealKey, CaError> {
    let SealPlace::Dir(dir) = place else { return Ok(SealKey::new(&random_bytes()?)) };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| CaError::Dir { dir: dir.clone(), source })?;
    let path = dir.join(SEAL_KEY);
    match read_seal_key(&path) {
        Err(error) if error.is_absent() => Ok(make_seal_key(&path)?),
        found => Ok(found?),
    }
}

fn read_seal(place: &SealPlace) -> Result<SealKey, CaError> {
    let path = match place {
        SealPlace::Dir(dir) => dir.join(SEAL_KEY),
        // What is sealed in memory is gone with its key; a test may keep the store.
        SealPlace::Memory => return Err(CaError::NoSealKey { path: Path::new(SEAL_KEY).to_owned() }),
    };
    match read_seal_key(&path) {
        Err(error) if error.is_absent() => Err(CaError::NoSealKey { path }),
        found => Ok(found?),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use godel_crash::CrashPoints;
    use godel_proto::v1;
    use godel_store::{Engine, StoreConfig, log::memory::MemoryDisk};

    use super::*;

    const NOW: u64 = 1_790_000_000_000;

    fn open_store(disk: &MemoryDisk) -> Store {
        let config = StoreConfig::new(Engine::Memory(disk.clone()));
        Store::open(config, Arc::new(|| 1), CrashPoints::default()).unwrap()
    }

    #[tokio::test]
    async fn a_ca_is_made_once_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (place, disk) = (SealPlace::Dir(dir.path().join("a/pki")), MemoryDisk::default());
        let store = open_store(&disk);
        let made = open(&store, &place, None, NOW).await.unwrap();
        assert!(made.is_new);
        let trust = made.book.trust().clone();
        assert!(trust.cluster.as_str().starts_with("godel-") && trust.cluster.as_str().len() == 14);
        let mode = |path: &str| dir.path().join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a/pki"), mode("a/pki/seal.key")), (0o700, 0o600));
        store.close().await;
        // Whatever name is configured then: the cluster keeps its own.
        let store = open_store(&disk);
        let again = open(&store, &place, Some("other".parse().unwrap()), NOW + 1).await.unwrap();
        assert!(!again.is_new);
        assert_eq!(*again.book.trust(), trust);
        let root = trust.roots[0].fingerprint;
        let keys = [&made.keys, &again.keys].map(|keys| keys.of_root(root).unwrap().token_key());
        assert_eq!(keys[0], keys[1]);
        assert_eq!(store.read(|state| state.records(v1::Kind::SealedSigner, None).count()), 1);
        store.close().await;
    }

    #[tokio::test]
    async fn a_start_that_did_not_get_further_goes_on_with_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let place = SealPlace::Dir(dir.path().to_owned());
        let key = make_seal_key(&dir.path().join(SEAL_KEY)).unwrap();
        let store = open_store(&MemoryDisk::default());
        open(&store, &place, Some("c1".parse().unwrap()), NOW).await.unwrap();
        let sealed = store.read(records::sealed).unwrap();
        assert_eq!(sealed[0].key_id, key.id());
        store.close().await;
    }

    #[tokio::test]
    async fn a_new_ca_replaces_one_whose_key_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (place, store) = (SealPlace::Dir(dir.path().to_owned()), open_store(&MemoryDisk::default()));
        let old = open(&store, &place, None, NOW).await.unwrap();
        let identity = v1::IdentityRecord {
            identity: "agent/n1".to_owned(),
            root_fingerprint: vec![7; 32],
            ..v1::IdentityRecord::default()
        };
        let ops = vec![raw::encode_op(v1::op::Op::PutIdentity(identity))];
        store.submit(raw::TxnRequest { ops, ..raw::TxnRequest::default() }, Role::Identities).await.unwrap();
        std::fs::remove_file(dir.path().join(SEAL_KEY)).unwrap();
        let new = replace(&store, &place, Some("other".parse().unwrap()), NOW).await.unwrap();
        assert_eq!(new.book.trust().cluster, old.book.trust().cluster);
        assert_ne!(new.book.trust().roots, old.book.trust().roots);
        let again = open(&store, &place, None, NOW).await.unwrap();
        assert_eq!(again.book.trust(), new.book.trust());
        assert_eq!(again.book.identities().count(), 0, "everybody joins again");
        assert_eq!(store.read(|state| state.records(v1::Kind::SealedSigner, None).count()), 1);
        store.close().await;
    }

    #[tokio::test]
    async fn without_its_key_a_ca_is_not_opened_and_nothing_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let (place, disk) = (SealPlace::Dir(dir.path().to_owned()), MemoryDisk::default());
        let store = open_store(&disk);
        open(&store, &place, None, NOW).await.unwrap();
        let revision = store.status().revision;
        std::fs::rename(dir.path().join(SEAL_KEY), dir.path().join("elsewhere")).unwrap();
        let missing = open(&store, &place, None, NOW).await.err().unwrap();
        assert!(matches!(&missing, CaError::NoSealKey { .. }), "{missing}");
        assert!(missing.to_string().contains("godel ca new"), "{missing}");
        // Nor with another one.
        make_seal_key(&dir.path().join(SEAL_KEY)).unwrap();
        let wrong = open(&store, &place, None, NOW).await.err().unwrap();
        assert!(wrong.to_string().contains("seal.key"), "{wrong}");
        assert_eq!(store.status().revision, revision);
        store.close().await;
    }
}
