//! File systems of a test's own: small ones, and ones whose power can be cut.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use godel_base::ids::Revision;
use godel_crash::CrashPoints;
use godel_store::{Engine, RefusalReason, Role, SledConfig, Store, StoreConfig};
use godel_testkit::skip;

use crate::support::{
    Dispatcher, PATIENCE, clock, follow, internal, lease, node, partition, read_partition, small,
};

/// A mounted file system, unmounted when dropped.
pub(crate) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Mounts `source` at `at`; why not, where this machine does not allow it.
    pub(crate) fn new(source: &Path, at: &Path, fs_type: &str, options: &str) -> Result<Self, String> {
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        run(Command::new("mount").args(["-t", fs_type, "-o", options]).arg(source).arg(at))?;
        Ok(Self { at: at.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Unmounts it; panics if somebody holds on to it.
    pub(crate) fn unmount(self) {
        let start = Instant::now();
        while let Err(error) = run(Command::new("umount").arg(&self.at)) {
            assert!(start.elapsed() < PATIENCE, "{error}");
            std::thread::yield_now();
        }
        std::mem::forget(self);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // After a failed test somebody may still hold it.
        let _ = run(Command::new("umount").arg("-l").arg(&self.at));
    }
}

/// Makes an ext4 file system in the new file `image`.
pub(crate) fn make_ext4(image: &Path, bytes: u64) -> Result<(), String> {
    let file = fs::File::create(image).and_then(|file| file.set_len(bytes));
    file.map_err(|error| error.to_string())?;
    run(Command::new("mkfs.ext4")
        .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
        .arg(image))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A directory for images, in memory where there is one: an image's syncs then cost nothing.
pub(crate) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir()
        && let Ok(dir) = tempfile::tempdir_in(memory)
    {
        return dir;
    }
    tempfile::tempdir().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_serves_reads_and_recovers() {
    let dir = scratch();
    let mount = match Mount::new(Path::new("none"), &dir.path().join("m"), "tmpfs", "size=24m") {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let config = || StoreConfig {
        generation_bytes_min: 1 << 20,
        reserve_bytes: 6 << 20,
        ..small(Engine::Sled(SledConfig::new(mount.path().join("store"))))
    };
    let store = Store::open(config(), clock(), CrashPoints::default()).unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 1, 100)]).await.unwrap();
    let ballast = mount.path().join("ballast");
    fs::write(&ballast, vec![1; 12 << 20]).unwrap();
    let mut last = 1;
    let refusal = loop {
        match dispatcher.submit(&store, vec![partition("p", last + 1, 100_000)]).await {
            Ok(_) => last += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.reason, RefusalReason::StoreFull);
    assert!(store.status().full);
    let revision = store.read(|state| state.revision());
    for _ in 0..50 {
        let refused = store.submit(internal(vec![node(1)]), Role::Admin).await.unwrap_err();
        assert_eq!(refused.reason, RefusalReason::StoreFull);
    }
    assert_eq!(read_partition(&store, "p"), Some(last));
    let mut watcher = store.watch(Revision(0)).unwrap();
    let floor = store.status().floor;
    follow(&mut watcher, floor.0, revision.0).await;
    fs::remove_file(&ballast).unwrap();
    dispatcher.submit(&store, vec![partition("p", last + 1, 100_000)]).await.unwrap();
    assert!(!store.status().full);
    store.close().await;
    let store = Store::open(config(), clock(), CrashPoints::default()).unwrap();
    assert_eq!(read_partition(&store, "p"), Some(last + 1));
    store.close().await;
    mount.unmount();
}

/// Writes until the disk refuses, and takes what is left of it.
fn fill_up(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    let mut block = vec![1; 1 << 20];
    while !block.is_empty() {
        if file.write_all(&block).is_err() {
            block.truncate(block.len() / 2);
        }
    }
}

/// Commits until the store refuses for want of room; the last generation that it took.
async fn fill_store(store: &Store, dispatcher: &Dispatcher) -> u64 {
    let mut last = 0;
    loop {
        match dispatcher.submit(store, vec![partition("p", last + 1, 100_000)]).await {
            Ok(_) => last += 1,
            Err(refusal) => {
                assert_eq!(refusal.reason, RefusalReason::StoreFull);
                return last;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_go_on_though_the_store_has_filled_its_disk() {
    let dir = scratch();
    let mount = match Mount::new(Path::new("none"), &dir.path().join("m"), "tmpfs", "size=40m") {
        Ok(mount) => mount,
        Err(why) => {
            return skip(why);
        }
    };
    let config = || StoreConfig {
        generation_bytes_min: 4 << 20,
        reserve_bytes: 12 << 20,
        history_bytes_min: u64::MAX,
        ..small(Engine::Sled(SledConfig::new(mount.path().join("store"))))
    };
    let open = || Store::open(config(), clock(), CrashPoints::default());
    let store = open().unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    let last = fill_store(&store, &dispatcher).await;
    assert!(last > 10 && store.status().full);
    // Leaders are killed and others take over, again and again.
    let mut epoch = dispatcher.epoch;
    for _ in 0..100 {
        epoch = Dispatcher::elect(&store).await.epoch;
    }
    // State itself is killed, and started on the disk as it is.
    drop(store);
    for _ in 0..3 {
        let store = open().unwrap();
        assert_eq!(read_partition(&store, "p"), Some(last));
        let dispatcher = Dispatcher::elect(&store).await;
        assert!(dispatcher.epoch > epoch);
        epoch = dispatcher.epoch;
        drop(store);
    }
    mount.unmount();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_others_filled_to_the_last_byte_is_waited_for() {
    let dir = scratch();
    let mount = match Mount::new(Path::new("none"), &dir.path().join("m"), "tmpfs", "size=40m") {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let config = || StoreConfig {
        reserve_bytes: 6 << 20,
        ..small(Engine::Sled(SledConfig::new(mount.path().join("store"))))
    };
    let open = || Store::open(config(), clock(), CrashPoints::default());
    let ballast = mount.path().join("ballast");
    let store = open().unwrap();
    let dispatcher = Dispatcher::elect(&store).await;
    dispatcher.submit(&store, vec![partition("p", 1, 100_000)]).await.unwrap();
    fill_up(&ballast);
    for role in [Role::Admin, Role::State] {
        let ops = if role == Role::State { vec![lease("binder", 1)] } else { vec![node(1)] };
        let refused = store.submit(internal(ops), role).await.unwrap_err();
        assert_eq!(refused.reason, RefusalReason::StoreFull, "{role:?}");
    }
    assert!(store.status().full);
    fs::remove_file(&ballast).unwrap();
    dispatcher.submit(&store, vec![partition("p", 2, 100_000)]).await.unwrap();
    drop(store);
    // Killed, and found full by the next start: it may be tried until there is room.
    fill_up(&ballast);
    for _ in 0..3 {
        let error = open().err().expect("there is no room for a copy");
        assert!(error.is_full(), "{error}");
    }
    fs::remove_file(&ballast).unwrap();
    let store = open().unwrap();
    assert_eq!(read_partition(&store, "p"), Some(2));
    drop(store);
    mount.unmount();
}

#[tokio::test]
async fn a_full_memory_disk_recovers_too() {
    let disk = godel_store::log::memory::MemoryDisk::default();
    let store = Store::open(small(Engine::Memory(disk.clone())), clock(), CrashPoints::default()).unwrap();
    store.submit(internal(vec![node(1)]), Role::Admin).await.unwrap();
    disk.set_capacity(Some(1_000));
    let refusal = store.submit(internal(vec![node(2)]), Role::Admin).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::StoreFull);
    disk.set_capacity(None);
    store.submit(internal(vec![node(2)]), Role::Admin).await.unwrap();
}
