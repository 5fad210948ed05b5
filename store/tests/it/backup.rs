//! Backups: of any engine, at any moment, back to any revision.

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroUsize,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use godel_base::ids::{Revision, StoreId};
use godel_proto::{
    raw,
    v1::{self, op::Op},
};
use godel_store::{
    Engine, Role, SledConfig, State, Store, StoreConfig, StorePart, StoreReadError, StoreReader,
    admin::{AdminError, UnreadablePolicy, check},
    backup::{BackupDir, BackupError, BackupManifest, Continuation, NewBackup, list, restore, verify},
    identity,
    log::memory::MemoryDisk,
};
use proptest::prelude::*;

use crate::{
    contract::on_each_engine,
    history::settle,
    support::{Dispatcher, Place, SMALL_GENERATION_BYTES, internal, node, open, partition, small, unit},
};

on_each_engine!(
    a_full_backup_and_increments_are_the_store_at_each_revision,
    an_increment_of_another_store_or_of_another_history_is_refused,
    history_that_is_gone_is_said_to_be_gone,
    a_backup_that_is_cut_off_leaves_nothing,
);

/// Copies what the store keeps, as `godel backup create` does: again if it was dropped meanwhile, and all of it if the log
/// does not go back so far.
pub(crate) fn back_up(store: &Store, dir: &Path, is_full: bool) -> BackupManifest {
    let backups = BackupDir::take(dir).unwrap();
    let mut continues = backups.continuation().unwrap().ok().filter(|_| !is_full);
    loop {
        match try_back_up(store, &backups, continues.clone()) {
            Ok(manifest) => return manifest,
            Err(StoreReadError::Compacted { .. }) => continues = None,
            Err(StoreReadError::Dropped { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn try_back_up(
    store: &Store,
    backups: &BackupDir,
    continues: Option<Continuation>,
) -> Result<BackupManifest, StoreReadError> {
    let from = continues.as_ref().map_or(Revision(0), |continues| continues.first);
    let mut reader = store.read_kept(from)?;
    let mut writer = backups.begin(of_store(store, &reader, continues)).unwrap();
    while let Some(part) = reader.next_part()? {
        writer.take(&part).unwrap();
    }
    Ok(writer.finish().unwrap())
}

fn of_store(store: &Store, reader: &StoreReader, continues: Option<Continuation>) -> NewBackup {
    NewBackup {
        store_id: store.status().store_id,
        start: reader.start(),
        continues,
        time_ms: 1_700_000_000_000,
        version: "test".to_owned(),
        engine: store.status().engine.to_owned(),
    }
}

/// Everything in a state, restored from `dir` to a memory of its own.
fn restored(dir: &Path, at: Option<u64>) -> Result<(State, u64), BackupError> {
    let disk = MemoryDisk::default();
    let engine = Engine::Memory(disk.clone());
    let report = restore(dir, at.map(Revision), &engine, &|_| Ok(()), UnreadablePolicy::Refuse)?;
    assert_eq!(Some(report.restored), at.or(Some(report.restored)));
    let store = open(small(engine));
    Ok((store.read(State::clone), report.store_id))
}

/// What a restore makes of a state.
fn renewed(state: &State, id: u64) -> State {
    let mut state = state.clone();
    identity::renew_as(&mut state, StoreId(id));
    state
}

/// The state after each commit.
struct Recorded {
    store: Store,
    dispatcher: Dispatcher,
    states: BTreeMap<u64, State>,
}

impl Recorded {
    /// A store that keeps its whole history.
    async fn open(place: &Place) -> Self {
        Self::of(open(StoreConfig { history_bytes_min: u64::MAX, ..place.config() })).await
    }

    async fn of(store: Store) -> Self {
        let dispatcher = Dispatcher::elect(&store).await;
        let states = BTreeMap::from([(1, store.read(State::clone))]);
        Self { store, dispatcher, states }
    }

    async fn write(&mut self, n: u64, bytes: usize) {
        let ops = match n % 5 {
            0 => vec![unit(n + 1), partition(&format!("p{}", n % 3), n, bytes)],
            _ => vec![partition(&format!("p{}", n % 7), n, bytes)],
        };
        let committed = self.dispatcher.submit(&self.store, ops).await.unwrap();
        self.states.insert(committed.revision.0, self.store.read(State::clone));
    }
}

async fn a_full_backup_and_increments_are_the_store_at_each_revision(place: Place) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("backups");
    let mut recorded = Recorded::open(&place).await;
    let mut made = Vec::new();
    for n in 0..120 {
        recorded.write(n, 3_000).await;
        if n % 30 == 20 {
            made.push(back_up(&recorded.store, &dir, false));
        }
    }
    assert!(made[0].is_full() && made[1..].iter().all(|backup| !backup.is_full()), "{made:?}");
    let again = back_up(&recorded.store, &dir, false);
    assert_eq!((again.continues, again.last_revision), (4, recorded.store.status().revision.0));
    // On a slow machine the first snapshot is still being written.
    settle(&recorded.store, &place, SMALL_GENERATION_BYTES).await;
    let full = back_up(&recorded.store, &dir, true);
    assert!(full.snapshot.as_ref().is_some_and(|snapshot| snapshot.base_revision > 0), "{full:?}");
    let report = verify(&dir, &|_| Ok(())).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.states.len(), 2, "{report:?}");
    assert!(report.to_string().ends_with("everything is whole"));
    for (revision, state) in &recorded.states {
        let (found, id) = restored(&dir, Some(*revision)).unwrap();
        assert!(found == renewed(state, id), "revision {revision}");
    }
    let last = recorded.states.last_key_value().map(|(_, state)| state.clone()).unwrap();
    let (found, id) = restored(&dir, None).unwrap();
    assert!(found == renewed(&last, id));
    let beyond = restored(&dir, Some(last.revision().0 + 1)).unwrap_err();
    assert!(matches!(beyond, BackupError::NotThere { .. }), "{beyond}");
    // Nobody else reads any of it.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for path in files(&dir) {
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700), "{}", path.display());
    }
}

async fn an_increment_of_another_store_or_of_another_history_is_refused(place: Place) {
    let dir = tempfile::tempdir().unwrap();
    let mut recorded = Recorded::open(&place).await;
    recorded.write(1, 100).await;
    back_up(&recorded.store, dir.path(), false);
    // The same revisions with other content.
    let other = Place::memory();
    let mut other = Recorded::open(&other).await;
    for n in 2..6 {
        other.write(n, 100).await;
    }
    let backups = BackupDir::take(dir.path()).unwrap();
    let continues = backups.continuation().unwrap().unwrap();
    let mut reader = other.store.read_kept(continues.first).unwrap();
    let mut new = of_store(&other.store, &reader, Some(continues.clone()));
    assert!(matches!(backups.begin(new.clone()), Err(BackupError::BadStream { .. })), "another id");
    new.store_id = continues.store_id;
    let mut writer = backups.begin(new).unwrap();
    let part = reader.next_part().unwrap().unwrap();
    let refused = writer.take(&part).unwrap_err();
    assert!(matches!(refused, BackupError::Diverged { number: 1 }), "{refused}");
    drop(writer);
    let future = recorded.store.read_kept(Revision(recorded.store.status().revision.0 + 2));
    assert!(matches!(future, Err(StoreReadError::Future { .. })), "{future:?}");
    assert_eq!(list(dir.path()).unwrap().len(), 1);
}

async fn history_that_is_gone_is_said_to_be_gone(place: Place) {
    let mut recorded = Recorded::of(place.open()).await;
    recorded.write(1, 100).await;
    let floor = |recorded: &Recorded| recorded.store.status().floor;
    let mut slow = recorded.store.read_kept(Revision(1)).unwrap();
    let first = slow.start().last;
    let mut n = 2;
    while floor(&recorded) == Revision(1) {
        recorded.write(n, 3_000).await;
        n += 1;
    }
    let gone = recorded.store.read_kept(Revision(1)).unwrap_err();
    assert!(matches!(gone, StoreReadError::Compacted { floor } if floor > Revision(1)), "{gone}");
    // A reader that had begun has either what it was promised, or hears why not.
    match slow.next_part() {
        Ok(Some(StorePart::Log(chunks))) => assert!(!chunks.is_empty() && first > Revision(1)),
        Err(StoreReadError::Dropped { .. }) => {}
        other => panic!("{other:?}"),
    }
}

async fn a_backup_that_is_cut_off_leaves_nothing(place: Place) {
    let dir = tempfile::tempdir().unwrap();
    let mut recorded = Recorded::open(&place).await;
    for n in 0..200 {
        recorded.write(n, 3_000).await;
    }
    back_up(&recorded.store, dir.path(), false);
    recorded.write(200, 3_000).await;
    let backups = BackupDir::take(dir.path()).unwrap();
    assert!(matches!(BackupDir::take(dir.path()), Err(BackupError::Locked { .. })));
    assert!(matches!(verify(dir.path(), &|_| Ok(())), Err(BackupError::Locked { .. })));
    let mut reader = recorded.store.read_kept(Revision(0)).unwrap();
    // Without a log behind the snapshot the first part is all.
    while reader.start().first > reader.start().last {
        recorded.write(201, 3_000).await;
        reader = recorded.store.read_kept(Revision(0)).unwrap();
    }
    let part = reader.next_part().unwrap().unwrap();
    let mut writer = backups.begin(of_store(&recorded.store, &reader, None)).unwrap();
    writer.take(&part).unwrap();
    let unfinished = writer.finish().unwrap_err();
    assert!(matches!(unfinished, BackupError::BadStream { .. }), "{unfinished}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // A process that was killed could not take it away.
    fs::create_dir(dir.path().join("part-000002")).unwrap();
    fs::write(dir.path().join("part-000002/log.chunks"), "half").unwrap();
    assert!(verify(dir.path(), &|_| Ok(())).is_err(), "it is locked still");
    drop(backups);
    assert!(verify(dir.path(), &|_| Ok(())).unwrap().is_ok());
    drop(BackupDir::take(dir.path()).unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// All files of all backups.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for backup in fs::read_dir(dir).unwrap() {
        files.extend(fs::read_dir(backup.unwrap().path()).unwrap().map(|file| file.unwrap().path()));
    }
    files.sort();
    files
}

fn prune(backups: &BackupDir, keep: usize) -> Result<Vec<u64>, BackupError> {
    backups.prune(NonZeroUsize::new(keep).unwrap())
}

#[tokio::test]
async fn pruning_keeps_what_the_newest_rest_on() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::memory();
    let mut recorded = Recorded::open(&place).await;
    for (n, is_full) in [(1, true), (2, false), (3, true), (4, false)] {
        recorded.write(n, 100).await;
        back_up(&recorded.store, dir.path(), is_full);
    }
    let backups = BackupDir::take(dir.path()).unwrap();
    let none: [u64; 0] = [];
    assert_eq!(prune(&backups, 3).unwrap(), none);
    assert_eq!(prune(&backups, 1).unwrap(), [2, 1]);
    drop(backups);
    let left: Vec<u64> = list(dir.path()).unwrap().iter().map(|entry| entry.number).collect();
    assert_eq!(left, [3, 4]);
    assert!(verify(dir.path(), &|_| Ok(())).unwrap().is_ok());
    recorded.write(5, 100).await;
    assert_eq!(back_up(&recorded.store, dir.path(), false).number, 5);
    // What cannot be read is not counted: nothing goes.
    fs::write(dir.path().join("backup-000003/manifest"), "?").unwrap();
    let backups = BackupDir::take(dir.path()).unwrap();
    let refused = prune(&backups, 1).unwrap_err();
    assert!(refused.to_string().ends_with("nothing was deleted"), "{refused}");
    assert!(backups.continuation().unwrap().unwrap_err().unwrap().contains("backup 3"));
}

#[tokio::test]
async fn a_restored_store_on_disk_is_another_one_and_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let (dir, target) = (place.path().join("backups"), place.path().join("restored"));
    let source = Place::sled();
    let mut recorded = Recorded::open(&source).await;
    recorded.store.submit(internal(vec![node(1), node(2)]), Role::Admin).await.unwrap();
    let signer =
        v1::SealedSigner { name: "default".to_owned(), key_id: "s1".to_owned(), sealed: (0..200).collect() };
    let ops = vec![raw::encode_op(Op::PutSealedSigner(signer))];
    recorded.store.submit(internal(ops), Role::Identities).await.unwrap();
    recorded.write(3, 3_000).await;
    back_up(&recorded.store, &dir, false);
    let engine = Engine::Sled(SledConfig::new(&target));
    let policy = UnreadablePolicy::Refuse;
    let unreadable = restore(&dir, None, &engine, &|_| Err("no".to_owned()), policy).unwrap_err();
    assert!(matches!(unreadable, BackupError::Unreadable { .. }) && !target.exists(), "{unreadable}");
    let report = restore(&dir, None, &engine, &|_| Ok(()), policy).unwrap();
    assert_ne!(report.store_id, report.from_store_id);
    assert_eq!(report.restored, recorded.store.status().revision.0);
    let again = restore(&dir, None, &engine, &|_| Ok(()), policy).unwrap_err();
    assert!(matches!(again, BackupError::Store(AdminError::NotEmpty { .. })), "{again}");
    let checked = check(&target, &|_| Ok(())).unwrap();
    assert!(checked.is_ok() && checked.records.contains(&("KIND_SEALED_SIGNER", 1)), "{checked}");
    let store = open(small(engine));
    assert!(store.read(|found| *found == renewed(&recorded.store.read(State::clone), report.store_id)));
    // Of the new store a new full backup is made in the same directory.
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 1, 10)]).await.unwrap();
    let backups = BackupDir::take(&dir).unwrap();
    let continues = backups.continuation().unwrap().unwrap();
    assert_ne!(continues.store_id, store.status().store_id);
    drop(backups);
    assert!(back_up(&store, &dir, true).is_full());
    let report = verify(&dir, &|_| Ok(())).unwrap();
    assert!(report.is_ok() && report.states.len() == 2, "{report}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Increments at random points; then each byte that is changed is found, and each revision is as it was.
    #[test]
    fn random_stores_come_back_and_damage_is_found(
        steps in prop::collection::vec((0..4_u8, 10..6_000_usize), 3..40),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..=255_u8), 12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let place = Place::memory();
        let states = runtime.block_on(async {
            let mut recorded = Recorded::of(place.open()).await;
            for (n, (step, bytes)) in (0u64..).zip(&steps) {
                recorded.write(n, *bytes).await;
                if *step == 0 {
                    back_up(&recorded.store, dir.path(), n % 5 == 4);
                }
            }
            back_up(&recorded.store, dir.path(), false);
            recorded.states
        });
        let report = verify(dir.path(), &|_| Ok(())).unwrap();
        prop_assert_eq!(&report.problems, &Vec::<String>::new());
        let mut n_restored = 0;
        for (revision, state) in &states {
            let is_there = report.states.iter().any(|verified| (verified.from..=verified.revision).contains(revision));
            match restored(dir.path(), Some(*revision)) {
                Ok((found, id)) => {
                    n_restored += 1;
                    prop_assert!(found == renewed(state, id), "revision {}", revision);
                }
                Err(error) => prop_assert!(!is_there, "revision {}: {}", revision, error),
            }
        }
        prop_assert!(n_restored > 0);
        let files = files(dir.path());
        for (file, at, change) in &damages {
            let path = file.get(&files);
            let good = fs::read(path).unwrap();
            if good.is_empty() {
                continue;
            }
            let mut rotten = good.clone();
            rotten[at.index(good.len())] ^= change;
            fs::write(path, rotten).unwrap();
            let report = verify(dir.path(), &|_| Ok(())).unwrap();
            prop_assert!(!report.is_ok(), "{}", path.display());
            fs::write(path, &good[..at.index(good.len())]).unwrap();
            prop_assert!(!verify(dir.path(), &|_| Ok(())).unwrap().is_ok(), "{} is cut off", path.display());
            fs::write(path, good).unwrap();
        }
        prop_assert!(verify(dir.path(), &|_| Ok(())).unwrap().is_ok());
    }
}
