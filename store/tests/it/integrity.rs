//! Locks, markers, copies and the watermark; who may read the files; repairs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use godel_base::ids::{NodeId, Revision, UnitId};
use godel_crash::CrashPoints;
use godel_domain::running_units::{EvictionReason, RunChange};
use godel_proto::{raw, v1};
use godel_store::{
    Engine, Key, OpenError, Role, SledConfig, Store, StoreConfig,
    admin::{AdminError, UnreadablePolicy, check, export, remove, restore, truncate},
    log::memory::MemoryDisk,
};
use godel_wire::ops::ParsedOp;

use crate::support::{
    Dispatcher, Place, clock, follow, internal, lease, node, open, open_dir, partition, queue,
    read_partition, unit, until,
};

/// A store in a directory with so many commits of one record, dropped as if it had been killed.
async fn killed(dir: &Path, n_commits: u64) {
    let store = open_dir(dir).unwrap();
    write(&store, n_commits).await;
    drop(store);
}

async fn write(store: &Store, n_commits: u64) {
    let dispatcher = Dispatcher::elect(store).await;
    let from = read_partition(store, "p").map_or(1, |last| last + 1);
    for generation in from..from + n_commits {
        dispatcher.submit(store, vec![partition("p", generation, 300)]).await.unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(path, target).unwrap();
        }
    }
}

fn is_locked(opened: Result<Store, OpenError>) -> bool {
    matches!(opened, Err(OpenError::Locked { .. }))
}

fn damaged(opened: Result<Store, OpenError>) -> String {
    match opened {
        Err(error @ OpenError::Damaged { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it must not open"),
    }
}

fn fine(_: &v1::Record) -> Result<(), String> {
    Ok(())
}

#[tokio::test]
async fn a_removed_or_replaced_lock_lets_nobody_in() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("store");
    let store = open_dir(&dir).unwrap();
    assert!(is_locked(open_dir(&dir)));
    fs::remove_file(dir.join("lock")).unwrap();
    assert!(is_locked(open_dir(&dir)), "the file is gone");
    assert!(matches!(check(&dir, &fine), Err(AdminError::Open(OpenError::Locked { .. }))));
    fs::write(dir.join("lock"), "").unwrap();
    assert!(is_locked(open_dir(&dir)), "there is another file");
    assert!(!dir.join("aside").exists(), "who is refused copies nothing");
    write(&store, 3).await;
    store.close().await;
    // An older version locks the file alone.
    let file = fs::File::options().write(true).open(dir.join("lock")).unwrap();
    file.lock().unwrap();
    assert!(is_locked(open_dir(&dir)));
    drop(file);
    assert_eq!(read_partition(&open_dir(&dir).unwrap(), "p"), Some(3));
}

#[tokio::test]
async fn a_lost_marker_of_a_generation_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    for is_closed in [false, true] {
        let dir = place.path().join(is_closed.to_string());
        let store = open_dir(&dir).unwrap();
        write(&store, 50).await;
        if is_closed {
            store.close().await;
        } else {
            drop(store);
        }
        fs::remove_file(dir.join("gen-00000001.ready")).unwrap();
        let report = check(&dir, &fine).unwrap();
        assert!(
            report.is_ok() && report.notes.iter().any(|note| note.contains("lost its marker")),
            "{report}"
        );
        // Also without what says that something was committed there.
        fs::remove_file(dir.join("watermark")).unwrap();
        let store = open_dir(&dir).unwrap();
        assert_eq!(read_partition(&store, "p"), Some(50));
        assert!(store.opened().unproven.is_some());
        assert!(dir.join("gen-00000001.ready").exists());
    }
}

#[tokio::test]
async fn a_lost_watermark_is_said_and_made_anew() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("store");
    killed(&dir, 20).await;
    for content in [None, Some(Vec::new()), Some(vec![7; 8192])] {
        match &content {
            None => fs::remove_file(dir.join("watermark")).unwrap(),
            Some(content) => fs::write(dir.join("watermark"), content).unwrap(),
        }
        let report = check(&dir, &fine).unwrap();
        assert!(report.is_ok() && report.notes.iter().any(|note| note.contains("watermark")), "{report}");
        let store = open_dir(&dir).unwrap();
        assert!(store.opened().unproven.is_some(), "{content:?}");
        assert_eq!(read_partition(&store, "p"), Some(20));
        drop(store);
        let store = open_dir(&dir).unwrap();
        assert_eq!(store.opened().unproven, None, "{content:?}");
        assert_eq!(check(&dir, &fine).err().map(|error| error.to_string().contains("in use")), Some(true));
    }
}

#[tokio::test]
async fn files_from_before_the_last_commits_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let (dir, older) = (place.path().join("store"), place.path().join("older"));
    killed(&dir, 30).await;
    copy(&dir.join("gen-00000001"), &older);
    let store = open_dir(&dir).unwrap();
    write(&store, 12).await;
    let revision = store.status().revision.0;
    store.close().await;
    fs::remove_dir_all(dir.join("gen-00000001")).unwrap();
    fs::rename(&older, dir.join("gen-00000001")).unwrap();
    let text = damaged(open_dir(&dir));
    // Thirty commits and the election before them are there, the second election and what came then is not.
    assert!(text.contains("from revision 32 on: at least 13 acknowledged ones"), "{text}");
    for hint in ["state check", "state repair --truncate", "state restore"] {
        assert!(text.contains(hint), "{text}");
    }
    let report = check(&dir, &fine).unwrap();
    let loss = report.loss.unwrap();
    assert_eq!(
        (loss.from, loss.n_commits(), report.acknowledged),
        (32, Some(13), Some(revision)),
        "{report}"
    );
    let report = truncate(&dir).unwrap();
    assert_eq!((report.recovered, report.loss), (31, loss));
    assert!(report.kept_in.join("gen-00000001/db").exists() && report.kept_in.join("watermark").exists());
    assert!(matches!(truncate(&dir), Err(AdminError::NotDamaged { .. })));
    let store = open_dir(&dir).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(30));
    write(&store, 5).await;
    store.close().await;
    assert!(check(&dir, &fine).unwrap().is_ok());
}

#[tokio::test]
async fn the_saved_copy_returns_only_if_nothing_was_committed() {
    let place = tempfile::tempdir().unwrap();
    let (dir, earlier) = (place.path().join("store"), place.path().join("earlier"));
    let set_aside = |from: &Path| {
        copy(from, &dir.join("aside"));
        for other in ["lock", "clean"] {
            let _absent = fs::remove_file(dir.join("aside").join(other));
        }
        fs::write(dir.join("aside.ready"), "").unwrap();
    };
    killed(&dir, 50).await;
    copy(&dir, &earlier);
    killed(&dir, 50).await;
    set_aside(&earlier);
    let store = open_dir(&dir).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(100), "an older copy took the place of newer files");
    assert!(!dir.join("aside").exists() && !dir.join("aside.ready").exists());
    drop(store);
    // The last opening was cut off, and left its traces.
    let whole = place.path().join("whole");
    copy(&dir, &whole);
    set_aside(&whole);
    fs::write(dir.join("gen-00000001/db"), b"half opened").unwrap();
    let store = open_dir(&dir).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(100));
    drop(store);
    // Nothing says which is newer.
    set_aside(&whole);
    fs::write(dir.join("watermark"), b"rot").unwrap();
    let text = damaged(open_dir(&dir));
    assert!(text.contains("it is not known which is newer"), "{text}");
    assert!(!check(&dir, &fine).unwrap().is_ok());
    assert!(dir.join("aside.ready").exists() && dir.join("aside/gen-00000001/db").exists());
}

#[tokio::test]
async fn a_rotten_snapshot_is_made_anew_from_the_one_before() {
    let disk = MemoryDisk::default();
    let place = Place::Memory(disk.clone());
    let config = || StoreConfig { generation_bytes_min: 20_000, ..place.config() };
    let store = open(config());
    let dispatcher = Dispatcher::elect(&store).await;
    for generation in 1..=60 {
        let name = format!("p{}", generation % 5);
        dispatcher.submit(&store, vec![partition(&name, generation, 1_000)]).await.unwrap();
    }
    until("a snapshot is complete", || disk.has_complete_snapshot()).await;
    let state = store.read(|state| state.clone());
    drop(store);
    disk.edit_snapshot(|chunks| {
        let mut rotten = chunks[0].to_vec();
        rotten[40] ^= 1;
        chunks[0] = rotten.into();
    });
    for _ in 0..2 {
        let store = Store::open(config(), clock(), CrashPoints::default()).unwrap();
        assert!(store.read(|found| *found == state));
        // Another snapshot takes its place, and needs the one before no more.
        until("a snapshot is complete again", || disk.has_complete_snapshot()).await;
        drop(store);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn nobody_else_may_read_a_store_or_an_export() {
    let place = tempfile::tempdir().unwrap();
    let (dir, file) = (place.path().join("a/store"), place.path().join("state.export"));
    let store = open_dir(&dir).unwrap();
    write(&store, 3).await;
    store.close().await;
    export(&dir, &file).unwrap();
    assert_eq!((mode(&dir), mode(&dir.join("gen-00000001")), mode(&file)), (0o700, 0o700, 0o600));
    for private in
        ["watermark", "clean", "lock", "gen-00000001.ready", "gen-00000001/db", "gen-00000001/conf"]
    {
        assert_eq!(mode(&dir.join(private)), 0o600, "{private}");
    }
    // One that an older version made.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    open_dir(&dir).unwrap().close().await;
    assert_eq!(mode(&dir), 0o700);
}

#[tokio::test]
async fn an_export_overwrites_nothing_and_follows_no_link() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("store");
    killed(&dir, 3).await;
    let (victim, file) = (place.path().join("victim"), place.path().join("state.export"));
    fs::write(&victim, "precious").unwrap();
    let exists = |file: &Path| matches!(export(&dir, file), Err(AdminError::Exists { .. }));
    assert!(exists(&victim));
    symlink(&victim, &file).unwrap();
    assert!(exists(&file));
    fs::remove_file(&file).unwrap();
    symlink(place.path().join("nowhere"), &file).unwrap();
    assert!(exists(&file), "a link to nothing is there too");
    fs::remove_file(&file).unwrap();
    symlink(&victim, place.path().join(format!("state.export.part-{}", std::process::id()))).unwrap();
    assert!(matches!(export(&dir, &file), Err(AdminError::Io { .. })));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // In the store itself.
    for name in ["lock", "watermark"] {
        let path = dir.join(name);
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        assert!(open_dir(&dir).is_err(), "{name}");
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(read_partition(&open_dir(&dir).unwrap(), "p"), Some(3));
}

#[tokio::test]
async fn a_record_that_nobody_can_read_is_named_and_can_be_removed() {
    let place = tempfile::tempdir().unwrap();
    let (dir, file) = (place.path().join("store"), place.path().join("state.export"));
    let store = open_dir(&dir).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![queue("good", 1), queue("evil", 666)]).await.unwrap();
    store.close().await;
    let readable = |record: &v1::Record| match &record.record {
        Some(v1::record::Record::Queue(queue)) if queue.weight() == 666 => Err("weight: evil".to_owned()),
        _ => Ok(()),
    };
    let report = check(&dir, &readable).unwrap();
    assert_eq!(report.unreadable, ["KIND_QUEUE evil: weight: evil"]);
    assert!(!report.is_ok() && report.loss.is_none(), "{report}");
    export(&dir, &file).unwrap();
    let other = place.path().join("other");
    let Err(AdminError::Unreadable { records, .. }) =
        restore(&file, &other, &readable, UnreadablePolicy::Refuse)
    else {
        panic!("it must be refused")
    };
    assert_eq!(records, report.unreadable);
    assert!(!other.exists());
    restore(&file, &other, &readable, UnreadablePolicy::Keep).unwrap();
    let evil = Key::Name("evil".to_owned());
    for dir in [&dir, &other] {
        let before = check(dir, &readable).unwrap().revision;
        let report = remove(dir, v1::Kind::Queue, &evil, 7).unwrap();
        assert_eq!((report.revision, &report.removed[..]), (before + 1, &["KIND_QUEUE evil".to_owned()][..]));
        assert!(check(dir, &readable).unwrap().is_ok());
        let again = remove(dir, v1::Kind::Queue, &evil, 7).unwrap_err();
        assert!(again.to_string().contains("does not exist"), "{again}");
        let lease = Key::Name("dispatcher".to_owned());
        assert!(matches!(remove(dir, v1::Kind::Lease, &lease, 7), Err(AdminError::NotRemoved { .. })));
        let store = open_dir(dir).unwrap();
        assert_eq!(store.read(|state| state.count(v1::Kind::Queue)), 1);
        // A commit of its own: watchers see it.
        let mut watcher = store.watch(Revision(report.revision)).unwrap();
        let seen = follow(&mut watcher, report.revision, report.revision).await;
        assert_eq!(seen[0].changes, [ParsedOp::Delete { kind: v1::Kind::Queue, key: evil.clone() }]);
    }
}

fn bind(unit: u64, ordinals: &[u32], node: u32) -> Bytes {
    raw::encode_op(v1::op::Op::Bind(v1::Binding {
        unit_id: unit,
        ordinals: ordinals.to_vec(),
        node_ids: vec![node; ordinals.len()],
        ..Default::default()
    }))
}

/// Two nodes, two units with running units on both.
async fn running(dir: &Path) {
    let store = open_dir(dir).unwrap();
    store.submit(internal(vec![node(1), node(2)]), Role::Admin).await.unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![unit(1), unit(2)]).await.unwrap();
    store.submit(internal(vec![lease("binder", 1)]), Role::State).await.unwrap();
    let writer = Some(v1::Writer { lease: "binder".into(), epoch: 1, sequence: 1 });
    let ops = vec![bind(1, &[0, 1], 1), bind(1, &[2], 2), bind(2, &[0], 1), bind(2, &[1], 2)];
    store.submit(raw::TxnRequest { writer, ops, ..Default::default() }, Role::Leased).await.unwrap();
    store.close().await;
}

/// Ordinals that a commit ends as lost, by unit.
fn lost(changes: &[ParsedOp]) -> Vec<(u64, Vec<u32>)> {
    let lost = changes.iter().filter_map(|change| match change {
        ParsedOp::Rows { unit, change } => match &**change {
            RunChange::Evict(evict) if evict.reason == EvictionReason::NodeLost => {
                Some((unit.0, evict.ordinals.clone()))
            }
            _ => None,
        },
        _ => None,
    });
    lost.collect()
}

#[tokio::test]
async fn running_units_of_what_is_removed_end_as_lost() {
    let place = tempfile::tempdir().unwrap();
    // (what is removed, which running units end, how many are left)
    let table = [
        (v1::Kind::Unit, vec![(1, vec![0, 1, 2])], 2),
        (v1::Kind::NodeSpec, vec![(1, vec![0, 1]), (2, vec![0])], 2),
    ];
    for (kind, expected, n_left) in table {
        let dir: PathBuf = place.path().join(kind.as_str_name());
        running(&dir).await;
        let report = remove(&dir, kind, &Key::Id(1), 7).unwrap();
        let n_said = report.removed.iter().filter(|line| line.contains("end as lost")).count();
        assert_eq!(n_said, expected.len(), "{report:?}");
        let store = open_dir(&dir).unwrap();
        let mut watcher = store.watch(Revision(report.revision)).unwrap();
        let seen = follow(&mut watcher, report.revision, report.revision).await;
        assert_eq!(lost(&seen[0].changes), expected, "{kind:?}");
        store.read(|state| {
            assert!(state.record(kind, &Key::Id(1)).is_none());
            let live: usize = state.rows().iter(None).map(|(_, _, rows)| rows.live().count()).sum();
            assert_eq!(live, n_left, "{kind:?}");
            let on_node = |node| state.rows().live_on_node(NodeId(node));
            assert_eq!(on_node(1) + on_node(2), u32::try_from(n_left).unwrap());
            assert_eq!(state.rows().get(UnitId(1)).is_none(), kind == v1::Kind::Unit);
        });
    }
}

#[tokio::test]
async fn files_changed_after_an_orderly_stop_are_copied_first() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("store");
    let store = open_dir(&dir).unwrap();
    write(&store, 40).await;
    store.close().await;
    // As it was left: nothing is copied.
    open_dir(&dir).unwrap().close().await;
    let db = dir.join("gen-00000001/db");
    let mut bytes = fs::read(&db).unwrap();
    let at = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    bytes[at] ^= 4;
    fs::write(&db, &bytes).unwrap();
    let clean = fs::read(dir.join("clean")).unwrap();
    damaged(open_dir(&dir));
    assert!(fs::read(&db).unwrap() == bytes, "what sled made of it was left");
    assert!(fs::read(dir.join("clean")).unwrap() == clean);
    bytes[at] ^= 4;
    fs::write(&db, bytes).unwrap();
    assert_eq!(read_partition(&open_dir(&dir).unwrap(), "p"), Some(40));
}

/// Noise in a file of sled: where whole pages stand behind it, sled continues with older ones, and searches for ever.
#[tokio::test]
async fn noise_in_front_of_whole_frames_is_refused_before_sled_opens_the_file() {
    const SEGMENT: usize = 512 << 10;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("store");
    // One generation, of many segments.
    let engine = Engine::Sled(SledConfig::new(&dir));
    let config = StoreConfig { generation_bytes_min: u64::MAX, ..StoreConfig::new(engine) };
    let store = Store::open(config, clock(), CrashPoints::default()).unwrap();
    write(&store, 4_000).await;
    store.close().await;
    let newest = &dir.join("gen-00000001/db");
    let good = fs::read(newest).unwrap();
    let mut refused = None;
    for segment in 0..good.len() / SEGMENT {
        let mut bad = good.clone();
        let at = segment * SEGMENT + SEGMENT / 3;
        for (step, byte) in bad[at..at + 254].iter_mut().enumerate() {
            *byte ^= u8::try_from(step % 251).unwrap() | 1;
        }
        fs::write(newest, &bad).unwrap();
        let report = check(&dir, &fine).unwrap();
        let said = report.problems.iter().find(|problem| problem.contains("are not what was written"));
        let Some(said) = said else { continue };
        assert!(said.contains(&newest.display().to_string()), "{said}");
        assert!(report.loss.is_some_and(|loss| loss.from > 0), "it says from which revision on: {report}");
        let text = damaged(open_dir(&dir));
        assert!(text.contains("are not what was written") && text.contains("godel state repair"), "{text}");
        assert_eq!(fs::read(newest).unwrap(), bad, "nothing was changed");
        refused = Some(bad);
    }
    fs::write(newest, refused.unwrap()).unwrap();
    truncate(&dir).unwrap();
    assert!(check(&dir, &fine).unwrap().is_ok());
    open_dir(&dir).unwrap().close().await;
}

#[tokio::test]
async fn no_store_is_made_right_above_or_below_another_one() {
    let place = tempfile::tempdir().unwrap();
    let rest = place.path().join("rest");
    killed(&rest, 1).await;
    let refused = |dir: &Path| match open_dir(dir) {
        Err(error @ OpenError::Elsewhere { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it must not open"),
    };
    let said = refused(&rest.join("state"));
    assert!(said.contains(&format!("godel serve state --data-dir {}", rest.display())), "{said}");
    assert!(!rest.join("state").exists(), "nothing was made");
    // The other way round.
    let up = place.path().join("up");
    killed(&up.join("state"), 1).await;
    let said = refused(&up);
    assert!(said.contains(&format!("godel up --data-dir {}", up.display())), "{said}");
    open_dir(&rest).unwrap().close().await;
    open_dir(&up.join("state")).unwrap().close().await;
}
