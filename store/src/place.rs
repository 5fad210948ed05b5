//! Places of stores: their names, and operations on any engine before a store runs on it.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use godel_crash::CrashPoints;

use crate::{
    log::{
        Fence, Log, LogError, LogReader as _,
        etcd::{EtcdConfig, EtcdLog, is_in_etcd},
        files::{create_private_dir, failed, remove_dir, remove_file, sync_dir, write_file},
        memory::MemoryLog,
        sled::{SledLog, is_store},
    },
    store::{Engine, OpenError, SledConfig},
};

/// Name of the file with the migration mark in the directory of a store: see [`crate::migration`].
const MARK_FILE: &str = "migration";

/// The place of a store, as commands name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// Files in a directory.
    Sled(PathBuf),
    /// An etcd. The directory is that of its state on this machine; settings name the etcd.
    Etcd(PathBuf),
}

/// The text names no place of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no place of a store: name it as `sled:DIR` or `etcd:DIR`")]
pub struct BadPlace(String);

impl FromStr for StorePlace {
    type Err = BadPlace;

    fn from_str(text: &str) -> Result<Self, BadPlace> {
        match text.split_once(':') {
            Some(("sled", dir)) if !dir.is_empty() => Ok(Self::Sled(dir.into())),
            Some(("etcd", dir)) if !dir.is_empty() => Ok(Self::Etcd(dir.into())),
            _ => Err(BadPlace(text.to_owned())),
        }
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sled(dir) => write!(f, "sled:{}", dir.display()),
            Self::Etcd(dir) => write!(f, "etcd:{}", dir.display()),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sled(config) => StorePlace::Sled(config.dir.clone()).fmt(f),
            Self::Memory(_) => f.write_str("memory"),
            Self::Etcd(config) => StorePlace::Etcd(config.dir.clone()).fmt(f),
        }
    }
}

impl Engine {
    /// Returns the name of the engine: `sled`, `etcd` or `memory`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sled(_) => "sled",
            Self::Memory(_) => "memory",
            Self::Etcd(_) => "etcd",
        }
    }

    /// Returns the place as commands name it.
    pub fn shown(&self) -> String {
        match self {
            Self::Sled(config) => config.dir.display().to_string(),
            Self::Memory(_) | Self::Etcd(_) => self.to_string(),
        }
    }

    /// Opens the log, or creates one, as the only process that has it open.
    pub(crate) fn open_log(&self, crash: CrashPoints) -> Result<Box<dyn Log>, OpenError> {
        Ok(match self {
            Self::Memory(disk) => Box::new(MemoryLog::open(disk.clone())),
            Self::Sled(config) if is_in_etcd(&config.dir) => {
                return Err(OpenError::OtherEngine { dir: config.dir.clone(), engine: "etcd" });
            }
            Self::Sled(config) => Box::new(SledLog::open(config, crash)?),
            Self::Etcd(config) => Box::new(EtcdLog::open(config, crash)?),
        })
    }

    /// Whether a store was ever created in the place.
    pub(crate) fn holds_store(&self) -> Result<bool, LogError> {
        match self {
            Self::Sled(config) => Ok(is_store(&config.dir)),
            Self::Memory(disk) => Ok(!disk.generations().is_empty()),
            Self::Etcd(config) => config.holds_store(),
        }
    }

    /// Whether the place contains anything except a migration mark.
    pub(crate) fn holds_anything(&self) -> Result<bool, LogError> {
        match self {
            Self::Sled(config) => Ok(!entries_but_mark(&config.dir)?.is_empty()),
            Self::Memory(_) => self.holds_store(),
            Self::Etcd(config) => config.holds_anything(),
        }
    }

    /// Removes everything except the migration mark.
    pub(crate) fn clear(&self) -> Result<(), LogError> {
        match self {
            Self::Sled(config) => {
                for path in entries_but_mark(&config.dir)? {
                    if path.is_dir() { remove_dir(&path)? } else { remove_file(&path)? }
                }
            }
            Self::Memory(disk) => disk.clear(),
            Self::Etcd(config) => config.clear()?,
        }
        Ok(())
    }

    /// Reads the encoded migration mark.
    pub(crate) fn read_mark(&self) -> Result<Option<Vec<u8>>, LogError> {
        match self {
            Self::Sled(config) => {
                let path = config.dir.join(MARK_FILE);
                match fs::read(&path) {
                    Ok(mark) => Ok(Some(mark)),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(failed("reading", &path)(error)),
                }
            }
            Self::Memory(disk) => Ok(disk.mark()),
            Self::Etcd(config) => config.read_mark(),
        }
    }

    /// Writes the migration mark durably, or removes it.
    pub(crate) fn write_mark(&self, mark: Option<&[u8]>) -> Result<(), LogError> {
        match self {
            Self::Sled(config) => {
                let path = config.dir.join(MARK_FILE);
                let Some(mark) = mark else {
                    remove_file(&path)?;
                    return sync_dir(&config.dir);
                };
                create_private_dir(&config.dir)?;
                // The mark is renamed into place, so that no process ever reads a part of it.
                let temporary = config.dir.join(format!("{MARK_FILE}.part"));
                write_file(&temporary, mark)?;
                fs::rename(&temporary, &path).map_err(failed("writing", &path))?;
                sync_dir(&config.dir)
            }
            Self::Memory(disk) => {
                disk.set_mark(mark.map(<[u8]>::to_vec));
                Ok(())
            }
            Self::Etcd(config) => config.write_mark(mark),
        }
    }

    /// Writes the mark of a migration as the process that holds the log under this fence. In an etcd it fails with an error if
    /// another process has taken the log over.
    pub(crate) fn write_mark_as(&self, mark: &[u8], fence: Fence) -> Result<(), LogError> {
        match self {
            Self::Sled(_) | Self::Memory(_) => self.write_mark(Some(mark)),
            Self::Etcd(config) => config.write_mark_as(mark, fence),
        }
    }

    /// Returns the place with an absolute directory, which need not exist.
    pub(crate) fn absolute(&self) -> Result<Self, LogError> {
        Ok(match self {
            Self::Sled(config) => Self::Sled(SledConfig { dir: absolute(&config.dir)?, ..config.clone() }),
            Self::Memory(disk) => Self::Memory(disk.clone()),
            Self::Etcd(config) => Self::Etcd(EtcdConfig { dir: absolute(&config.dir)?, ..config.clone() }),
        })
    }

    /// Whether both engines are the same place.
    pub(crate) fn is_same(&self, other: &Self) -> Result<bool, LogError> {
        match (self, other) {
            (Self::Sled(one), Self::Sled(other)) => Ok(one.dir == other.dir),
            (Self::Memory(one), Self::Memory(other)) => Ok(one.is_same(other)),
            (Self::Etcd(one), Self::Etcd(other)) => one.is_same(other),
            (Self::Sled(_) | Self::Memory(_) | Self::Etcd(_), _) => Ok(false),
        }
    }
}

/// Returns the absolute path of a directory, which need not exist.
fn absolute(dir: &Path) -> Result<PathBuf, LogError> {
    match dir.canonicalize() {
        Ok(dir) => Ok(dir),
        Err(_) => std::path::absolute(dir).map_err(failed("finding", dir)),
    }
}

fn entries_but_mark(dir: &Path) -> Result<Vec<PathBuf>, LogError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("listing", dir))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("listing", dir))?;
        if entry.file_name() != MARK_FILE {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_as_they_are_named() {
        for text in ["sled:/var/lib/godel/state", "etcd:/var/lib/godel/state"] {
            assert_eq!(text.parse::<StorePlace>().unwrap().to_string(), text);
        }
        for text in ["", "sled", "sled:", "/var/lib/godel", "memory", "disk:/x", "etcd:"] {
            let refused = text.parse::<StorePlace>().unwrap_err();
            assert!(refused.to_string().contains("`sled:DIR` or `etcd:DIR`"), "{text}");
        }
    }
}
