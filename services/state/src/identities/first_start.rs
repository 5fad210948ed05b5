//! The CA: made at the first start, opened at every later one.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use godel_identity::{
    book::{IdentityBook, IdentityChange},
    names::ClusterName,
    records::{ClusterTrust, RootFingerprint},
};
use godel_pki::{
    fingerprints::Fingerprint,
    private_files::{self, PrivateFileError},
    random::{NoRandomBytes, random_bytes},
    seal::{SealKey, SealKeyError, make_seal_key, read_seal_key},
    signer::Signer,
};
use godel_proto::{
    raw,
    v1::{self, op::Op},
};
use godel_store::{Role, State, Store, TxnRefusal};
use godel_wire::{BadField, to_proto};

use super::{
    keys::{Keys, KeysError, person_key, trusted_root},
    places::{self, SharedPlace},
    records,
};

/// The file of the key that seals the CA's keys in the store, in its directory.
const SEAL_KEY: &str = "seal.key";

/// Records that one transaction deletes beside what it writes: they fit it whatever they are called. All tokens and keys are among the first ones.
const N_DELETED_MAX: usize = 2_100;

/// Where the key is that seals the CA's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SealPlace {
    /// In this directory, which is made if absent.
    Dir(PathBuf),
    /// In the directory `pki` beside that of the store, which is this store's alone.
    Beside {
        /// The directory of the store.
        data_dir: PathBuf,
        /// Beside it.
        pki: PathBuf,
    },
    /// Nowhere beyond the process, as the store itself.
    Memory,
}

impl SealPlace {
    /// The directory of the key; none in memory.
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Dir(dir) | Self::Beside { pki: dir, .. } => Some(dir),
            Self::Memory => None,
        }
    }

    /// The key is not there.
    pub(super) fn missing(&self) -> CaError {
        CaError::NoSealKey { path: self.dir().unwrap_or(Path::new("")).join(SEAL_KEY) }
    }
}

impl std::fmt::Display for SealPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.dir() {
            Some(dir) => dir.join(SEAL_KEY).display().fmt(f),
            None => f.write_str("in memory"),
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
    #[error("the directory of the key that seals the CA cannot be made")]
    Dir(#[source] PrivateFileError),
    /// The key, or the socket, would be another store's too.
    #[error(transparent)]
    Place(#[from] SharedPlace),
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
    if let Some(trust) = store.read(records::trust)?.filter(|trust| trust.clears_identities) {
        clear_identities(store, trust).await?;
    }
    let Some(mut found) = look(store, place, now_ms)? else {
        let (made, mut ops) = draw_up(store, place, cluster, now_ms)?;
        ops.push(records::op(IdentityChange::Trust(made.book.trust().clone())));
        write(store, ops).await?;
        return Ok(made);
    };
    let book = &mut found.book;
    if let SealPlace::Beside { data_dir, pki } = place {
        places::keep_key(pki, data_dir)?;
    }
    if book.enter_store(store.read(State::coming_store_id)) {
        tracing::warn!(
            "the store was restored from a backup or truncated: all join tokens are dropped, make new ones; what was revoked since the backup \
             is not revoked any more, revoke it again"
        );
    }
    let changes = book.take_changes();
    if !changes.is_empty() {
        write(store, changes.into_iter().map(records::op).collect()).await?;
    }
    Ok(found)
}

/// Opens the CA of a store without changing anything; `None`: it has none.
///
/// # Errors
/// See [`CaError`].
pub(super) fn look(store: &Store, place: &SealPlace, now_ms: u64) -> Result<Option<OpenedCa>, CaError> {
    let known = store.read(|state| {
        let book = records::book(state, fingerprint_of)?;
        Ok::<_, BadField>(book.map(|book| (book, records::sealed(state))))
    })?;
    let Some((book, sealed)) = known else { return Ok(None) };
    let seal = Arc::new(read_seal(place)?);
    let trust = book.trust();
    let of_roots = sealed?
        .into_iter()
        .filter(|sealed| trust.roots.iter().any(|root| root.fingerprint.to_string() == sealed.name));
    let keys = Keys::open(seal, &trust.cluster, of_roots.collect())?;
    keys.signing(trust, now_ms)?;
    Ok(Some(OpenedCa { book, keys, is_new: false }))
}

/// SHA-256 of a certificate.
pub(super) fn fingerprint_of(der: &[u8]) -> RootFingerprint {
    RootFingerprint(*Fingerprint::of(der).as_bytes())
}

/// Makes a new CA in place of one whose key is lost. The cluster keeps its name; everybody joins again, under any name.
///
/// One transaction replaces the CA. Identities that are too many for it are deleted after it, by the next start if this one does not get there.
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
    let (made, key_ops) = draw_up(store, place, known.or(cluster), now_ms)?;
    if let Some(trust) = put_in_place(store, &made, key_ops).await? {
        clear_identities(store, trust).await?;
    }
    Ok(made)
}

/// Writes a new CA in place of another one. Returns the roots as written if identities of the other one are left.
async fn put_in_place(
    store: &Store,
    made: &OpenedCa,
    key_ops: Vec<Bytes>,
) -> Result<Option<v1::TrustRoots>, CaError> {
    let gone = store.read(records::keys_of_holders);
    let mut ops: Vec<Bytes> =
        gone.iter().take(N_DELETED_MAX).map(|(kind, key)| to_proto::delete_named(*kind, key)).collect();
    ops.extend(key_ops);
    let clears_identities = gone.len() > N_DELETED_MAX;
    let trust = v1::TrustRoots { clears_identities, ..records::trust_to_proto(made.book.trust()) };
    ops.push(raw::encode_op(Op::PutTrustRoots(trust.clone())));
    write(store, ops).await?;
    Ok(Some(trust).filter(|_| clears_identities))
}

/// Deletes the identities that an earlier CA has left, and says in the roots that they are gone.
async fn clear_identities(store: &Store, trust: v1::TrustRoots) -> Result<(), CaError> {
    loop {
        let left: Vec<String> = store.read(|state| {
            let keys = state.records(v1::Kind::Identity, None).map(|(key, _)| key.to_string());
            keys.take(N_DELETED_MAX + 1).collect()
        });
        let mut ops: Vec<Bytes> = left
            .iter()
            .take(N_DELETED_MAX)
            .map(|key| to_proto::delete_named(v1::Kind::Identity, key))
            .collect();
        let is_last = left.len() <= N_DELETED_MAX;
        if is_last {
            ops.push(raw::encode_op(Op::PutTrustRoots(v1::TrustRoots {
                clears_identities: false,
                ..trust.clone()
            })));
        }
        write(store, ops).await?;
        if is_last {
            return Ok(());
        }
    }
}

/// A new CA, and what writes its keys.
fn draw_up(
    store: &Store,
    place: &SealPlace,
    cluster: Option<ClusterName>,
    now_ms: u64,
) -> Result<(OpenedCa, Vec<Bytes>), CaError> {
    let seal = Arc::new(make_seal(place)?);
    let cluster = match cluster {
        Some(cluster) => cluster,
        None => ClusterName::generate(u32::from_be_bytes(random_bytes()?)),
    };
    let signer = Signer::make(cluster.clone()).map_err(KeysError::from)?;
    let roots = vec![trusted_root(&signer, now_ms, now_ms)];
    let in_store = store.read(State::coming_store_id);
    let trust = ClusterTrust { cluster, store: in_store, roots, person_keys: vec![person_key(&signer)] };
    let none = Keys::new(seal);
    let mut keys = none.clone();
    keys.add(signer);
    let ops = keys.changed_since(&none)?;
    Ok((OpenedCa { book: IdentityBook::new(trust, [], []), keys, is_new: true }, ops))
}

async fn write(store: &Store, ops: Vec<Bytes>) -> Result<(), CaError> {
    let txn = raw::TxnRequest { ops, ..raw::TxnRequest::default() };
    store.submit(txn, Role::Identities).await.map(drop).map_err(CaError::Write)
}

/// Whether the key of the store in `data_dir` is in its place.
pub(super) fn has_seal_key(place: &SealPlace, data_dir: &Path) -> Result<bool, CaError> {
    let Some(dir) = place.dir() else { return Ok(false) };
    let is_there = dir.join(SEAL_KEY).try_exists();
    let is_there = is_there.map_err(|source| SharedPlace::Unreadable { dir: dir.to_owned(), source })?;
    let is_own = match place {
        SealPlace::Beside { pki, .. } => places::is_of(pki, data_dir)?,
        SealPlace::Dir(_) | SealPlace::Memory => true,
    };
    Ok(is_there && is_own)
}

/// The key that seals what a new CA has: that of an earlier start that did not get further, if there is one.
pub(super) fn make_seal(place: &SealPlace) -> Result<SealKey, CaError> {
    let Some(dir) = place.dir() else { return Ok(SealKey::new(&random_bytes()?)) };
    private_files::create_dir(dir).map_err(CaError::Dir)?;
    if let SealPlace::Beside { data_dir, .. } = place {
        places::claim_key(dir, data_dir)?;
    }
    let path = dir.join(SEAL_KEY);
    match read_seal_key(&path) {
        Err(error) if error.is_absent() => Ok(make_seal_key(&path)?),
        found => Ok(found?),
    }
}

fn read_seal(place: &SealPlace) -> Result<SealKey, CaError> {
    // What is sealed in memory is gone with its key; a test may keep the store.
    let Some(dir) = place.dir() else { return Err(place.missing()) };
    match read_seal_key(&dir.join(SEAL_KEY)) {
        Err(error) if error.is_absent() => Err(place.missing()),
        found => Ok(found?),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use godel_crash::CrashPoints;
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

    async fn put_identities(store: &Store, n: usize) {
        let put = |n: usize| {
            let identity = v1::IdentityRecord {
                identity: format!("agent/n{n}"),
                root_fingerprint: vec![7; 32],
                ..v1::IdentityRecord::default()
            };
            raw::encode_op(Op::PutIdentity(identity))
        };
        let ops: Vec<Bytes> = (0..n).map(put).collect();
        for ops in ops.chunks(1_000) {
            write(store, ops.to_vec()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_new_ca_is_there_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (place, disk) = (SealPlace::Dir(dir.path().to_owned()), MemoryDisk::default());
        let store = open_store(&disk);
        let n_left = |store: &Store| store.read(|state| state.records(v1::Kind::Identity, None).count());
        open(&store, &place, None, NOW).await.unwrap();
        put_identities(&store, 5).await;
        let before = store.status().revision.0;
        let second = replace(&store, &place, None, NOW).await.unwrap();
        assert_eq!((store.status().revision.0, n_left(&store)), (before + 1, 0), "one transaction");
        assert_eq!(open(&store, &place, None, NOW).await.unwrap().book.trust(), second.book.trust());
        // Too many for one: it ends after the first, which has the CA as a whole.
        put_identities(&store, 2 * N_DELETED_MAX).await;
        let (third, key_ops) =
            draw_up(&store, &place, Some(second.book.trust().cluster.clone()), NOW).unwrap();
        let trust = put_in_place(&store, &third, key_ops).await.unwrap().unwrap();
        assert!(trust.clears_identities && n_left(&store) > N_DELETED_MAX);
        store.close().await;
        let store = open_store(&disk);
        let opened = open(&store, &place, None, NOW).await.unwrap();
        assert_eq!(opened.book.trust(), third.book.trust());
        assert_eq!((opened.book.identities().count(), n_left(&store)), (0, 0), "the next start goes on");
        assert_eq!(store.read(records::trust).unwrap().map(|trust| trust.clears_identities), Some(false));
        store.close().await;
    }

    #[tokio::test]
    async fn join_tokens_of_another_store_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let (place, store) = (SealPlace::Dir(dir.path().to_owned()), open_store(&MemoryDisk::default()));
        let made = open(&store, &place, None, NOW).await.unwrap();
        assert_eq!(made.book.trust().store, store.read(State::store_id));
        let token = v1::JoinToken {
            token_id: "t1".to_owned(),
            secret_sha256: vec![7; 32],
            role: "agent".to_owned(),
            expires_ms: i64::MAX,
            ..v1::JoinToken::default()
        };
        write(&store, vec![raw::encode_op(Op::PutJoinToken(token))]).await.unwrap();
        put_identities(&store, 1).await;
        assert_eq!(open(&store, &place, None, NOW).await.unwrap().book.tokens().count(), 1);
        // As a restore leaves it: written in a store with another id.
        let before = v1::TrustRoots { store_id: 7, ..records::trust_to_proto(made.book.trust()) };
        write(&store, vec![raw::encode_op(Op::PutTrustRoots(before))]).await.unwrap();
        for _ in 0..2 {
            let opened = open(&store, &place, None, NOW).await.unwrap();
            assert_eq!((opened.book.tokens().count(), opened.book.identities().count()), (0, 1));
            assert_eq!(opened.book.trust(), made.book.trust());
        }
        assert_eq!(store.read(|state| state.records(v1::Kind::JoinToken, None).count()), 0);
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
