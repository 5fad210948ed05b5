//! Volumes: directories that a node keeps for a replica, as long as there is a record of its unit.
//!
//! ```text
//! <state directory>/volumes/UNIT-ORDINAL-UID.json   what is kept for the replica, and of which store its unit is
//! <state directory>/volumes/UNIT-ORDINAL-UID/NAME/  one volume
//! ```
//!
//! Nothing but the end of the unit removes a volume: not the end of a run, nor that of the node's record. An id of another store may be that of
//! another unit, so that what is of another store stays until somebody removes it by hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use godel_core_agent::RunKey;
use serde::{Deserialize, Serialize};

/// Below the state directory.
pub(crate) const VOLUMES: &str = "volumes";
const RECORD: &str = "json";
/// Others may go through to what is theirs, and see nothing else.
const THROUGH: u32 = 0o711;
/// For its owner.
const OWN: u32 = 0o700;
/// For whatever user the image of a container has: nobody else gets there.
const OF_CONTAINER: u32 = 0o777;

/// A volume as a unit asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// Unique in the template.
    pub name: String,
    /// Room that must be free when it is made.
    pub bytes: u64,
    /// Where the program finds it; `None`: where it is.
    pub path: Option<String>,
}

/// The volumes of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Volumes {
    /// All of them, of all nodes' replicas.
    pub(crate) root: PathBuf,
    /// Uid of the unit.
    pub(crate) uid: String,
    /// The store of the unit.
    pub(crate) store: u64,
    pub(crate) asked: Vec<Volume>,
}

/// What is kept for a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct KeptVolumes {
    pub(crate) unit: u64,
    pub(crate) ordinal: u32,
    pub(crate) store: u64,
    /// Bytes by name.
    pub(crate) volumes: BTreeMap<String, u64>,
}

impl Volumes {
    fn dir(&self, key: RunKey) -> PathBuf {
        let uid: String =
            self.uid.chars().filter(|char| char.is_ascii_alphanumeric() || *char == '-').collect();
        self.root.join(format!("{}-{}-{uid}", key.unit, key.ordinal))
    }

    /// The directory of each volume, with the volume.
    pub(crate) fn dirs(&self, key: RunKey) -> impl Iterator<Item = (PathBuf, &Volume)> {
        let dir = self.dir(key);
        self.asked.iter().map(move |volume| (dir.join(&volume.name), volume))
    }

    /// What the program finds in its environment: the path of each volume.
    pub(crate) fn environment(&self, key: RunKey) -> impl Iterator<Item = (String, String)> {
        self.dirs(key).map(|(dir, volume)| {
            let name = volume.name.to_ascii_uppercase().replace('-', "_");
            let path = volume.path.clone().unwrap_or_else(|| dir.to_string_lossy().into_owned());
            (format!("GODEL_VOLUME_{name}"), path)
        })
    }

    /// Makes what is not there yet, for a container or for a process with this owner.
    ///
    /// # Errors
    /// Why it cannot be made, as a sentence without its full stop.
    pub(crate) fn prepare(&self, key: RunKey, is_container: bool) -> Result<(), String> {
        if self.asked.is_empty() {
            return Ok(());
        }
        let (dir, record) = (self.dir(key), self.dir(key).with_extension(RECORD));
        let mut kept = read(&record).unwrap_or_default();
        (kept.unit, kept.ordinal, kept.store) = (key.unit, key.ordinal, self.store);
        let mode = if is_container { OF_CONTAINER } else { OWN };
        let failed = |error: io::Error| format!("its volumes cannot be made in {}: {error}", dir.display());
        make(&self.root, THROUGH).map_err(failed)?;
        self.check_room(&kept)?;
        make(&dir, THROUGH).map_err(failed)?;
        for (path, volume) in self.dirs(key) {
            make(&path, mode).map_err(failed)?;
            kept.volumes.insert(volume.name.clone(), volume.bytes);
        }
        if read(&record).as_ref() != Some(&kept) {
            write(&record, &kept).map_err(failed)?;
        }
        Ok(())
    }

    /// Whether there is room for what is not there yet: free, and not promised to other volumes.
    fn check_room(&self, kept: &KeptVolumes) -> Result<(), String> {
        let is_new = |volume: &&Volume| !kept.volumes.contains_key(&volume.name);
        let asked: u64 = self.asked.iter().filter(is_new).map(|volume| volume.bytes).sum();
        if asked == 0 {
            return Ok(());
        }
        let at = self.root.display();
        let disk = rustix::fs::statvfs(&self.root)
            .map_err(|error| format!("the disk of its volumes, {at}, cannot be looked at: {error}"))?;
        let promised: u64 = all(&self.root).flat_map(|kept| kept.volumes.into_values()).sum();
        let (free, size) = (disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
        let room = free.min(size.saturating_sub(promised));
        if asked > room {
            return Err(format!(
                "its volumes need {asked} bytes, and of the disk of {at} {free} are free and {promised} of {size} are promised to \
                 other volumes: ask for less, or for another node"
            ));
        }
        Ok(())
    }

    /// Gives the volumes to the user of a process.
    ///
    /// # Errors
    /// As of the operating system.
    pub(crate) fn give(&self, key: RunKey, uid: u32, gid: u32) -> io::Result<()> {
        self.dirs(key).try_for_each(|(dir, _)| std::os::unix::fs::chown(dir, Some(uid), Some(gid)))
    }
}

fn make(dir: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Whatever bits new files of this process do not get.
        made => made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(mode))),
    }
}

fn read(record: &Path) -> Option<KeptVolumes> {
    serde_json::from_slice(&fs::read(record).ok()?).ok()
}

fn write(record: &Path, kept: &KeptVolumes) -> io::Result<()> {
    let fresh = record.with_extension("new");
    fs::write(&fresh, serde_json::to_vec(kept)?)?;
    fs::File::open(&fresh)?.sync_all()?;
    fs::rename(&fresh, record)
}

fn records(root: &Path) -> impl Iterator<Item = (PathBuf, KeptVolumes)> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == RECORD);
    entries.filter(is_record).filter_map(|path| read(&path).map(|kept| (path, kept)))
}

/// What is kept for all replicas.
pub(crate) fn all(root: &Path) -> impl Iterator<Item = KeptVolumes> {
    records(root).map(|(_, kept)| kept)
}

/// When something was made or removed last; `None`: nothing ever was.
pub(crate) fn changed_at(root: &Path) -> Option<SystemTime> {
    fs::metadata(root).ok()?.modified().ok()
}

/// Removes the volumes of units of `store` that are `gone`, but for those of `live` units. Returns the other units of it that are not live.
pub(crate) fn sweep(root: &Path, gone: &BTreeSet<u64>, live: &BTreeSet<u64>, store: u64) -> BTreeSet<u64> {
    let mut left = BTreeSet::new();
    for (record, kept) in records(root).filter(|(_, kept)| kept.store == store && !live.contains(&kept.unit))
    {
        if !gone.contains(&kept.unit) {
            left.insert(kept.unit);
            continue;
        }
        let removed = fs::remove_dir_all(record.with_extension("")).and_then(|()| fs::remove_file(&record));
        if let Err(error) = removed {
            tracing::warn!(unit_id = kept.unit, %error, "volumes of a unit that is gone cannot be removed");
            left.insert(kept.unit);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RunKey = RunKey { unit: 7, ordinal: 2 };

    fn volumes(root: &Path, asked: &[(&str, u64)]) -> Volumes {
        let volume =
            |(name, bytes): &(&str, u64)| Volume { name: (*name).to_owned(), bytes: *bytes, path: None };
        let asked = asked.iter().map(volume).collect();
        Volumes { root: root.join(VOLUMES), uid: "u-1/..".to_owned(), store: 5, asked }
    }

    #[test]
    fn volumes_are_made_once_and_keep_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let one = volumes(dir.path(), &[("data", 10)]);
        one.prepare(KEY, false).unwrap();
        let data = dir.path().join("volumes/7-2-u-1/data");
        let mode = fs::metadata(&data).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, OWN);
        fs::write(data.join("file"), "text").unwrap();
        let more = volumes(dir.path(), &[("data", 10), ("wal-1", 20)]);
        more.prepare(KEY, false).unwrap();
        assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "text");
        let env: Vec<_> = more.environment(KEY).map(|(name, path)| (name, path.ends_with("wal-1"))).collect();
        assert_eq!(env, [("GODEL_VOLUME_DATA".into(), false), ("GODEL_VOLUME_WAL_1".into(), true)]);
        let kept: Vec<KeptVolumes> = all(&more.root).collect();
        assert_eq!(kept[0].volumes, BTreeMap::from([("data".to_owned(), 10), ("wal-1".to_owned(), 20)]));
        assert_eq!((kept.len(), kept[0].unit, kept[0].ordinal), (1, 7, 2));
    }

    #[test]
    fn volumes_larger_than_the_disk_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let said = volumes(dir.path(), &[("data", 1 << 59)]).prepare(KEY, false).unwrap_err();
        assert!(said.contains("ask for less, or for another node"), "{said}");
        assert_eq!(all(&dir.path().join(VOLUMES)).count(), 0, "nothing was promised");
    }

    #[test]
    fn volumes_go_with_their_unit_and_its_store_only() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join(VOLUMES);
        let key = |unit| RunKey { unit, ordinal: 0 };
        for unit in [1, 2, 3] {
            volumes(dir.path(), &[("data", 1)]).prepare(key(unit), true).unwrap();
        }
        let gone = BTreeSet::from([1, 2]);
        assert_eq!(sweep(&root, &gone, &BTreeSet::from([2]), 6), BTreeSet::new(), "another store");
        assert_eq!(sweep(&root, &gone, &BTreeSet::from([2]), 5), BTreeSet::from([3]), "unit 2 runs");
        assert_eq!(all(&root).map(|kept| kept.unit).collect::<BTreeSet<_>>(), BTreeSet::from([2, 3]));
        assert!(!root.join("1-0-u-1").exists() && root.join("2-0-u-1/data").exists());
    }
}
