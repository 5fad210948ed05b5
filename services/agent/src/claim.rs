//! The state directory of an agent, and the node that it speaks for: one agent at a time has them on one machine.
//!
//! Held are a lock on the directory itself, which nobody can remove from under who has it open; the file `agent.lock`, for older binaries; the path
//! of the directory, where a new directory may have taken the place of the first one; and the uid of the node, which a copy of the
//! directory has as well. The last two are abstract sockets: they go with the process, however it ends. An agent looks at each use, and
//! once in a while, whether what it holds is still what stands there.

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{DirBuilderExt as _, MetadataExt as _},
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::{inventory::stable_uid, keeper};

/// Locked for agents that know nothing of the lock on the directory.
const LOCK: &str = "agent.lock";

/// Why a state directory, or a node, cannot be claimed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another agent uses the state directory.
    #[error(
        "another agent uses the state directory {}: stop it first, or give this one a directory of its own \
         (`agent.state_dir`)",
        .0.display()
    )]
    Locked(PathBuf),
    /// Another agent of this machine has the identity of the node.
    #[error(
        "another agent of this machine speaks for the node {node}, whose uid is {uid}: stop it first, or, if the state \
         directory of this one is a copy, remove `identity` from it"
    )]
    Copied {
        /// The node.
        node: String,
        /// Its uid.
        uid: String,
    },
    /// The state directory cannot be locked.
    #[error("the state directory {} cannot be used", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Why a state directory is an agent's no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirLoss {
    /// It was removed, or cannot be reached.
    Gone,
    /// Another directory stands in its place.
    Replaced,
    /// Another agent has taken it.
    Taken,
}

impl DirLoss {
    /// As a sentence without its subject and full stop.
    pub fn words(self) -> &'static str {
        match self {
            Self::Gone => "was removed, or cannot be reached",
            Self::Replaced => "was removed or covered, and another one stands in its place",
            Self::Taken => "is used by another agent",
        }
    }
}

/// A state directory that is one agent's alone, for as long as this lives.
#[derive(Debug)]
pub(crate) struct DirClaim {
    dir: PathBuf,
    handle: File,
    /// The file that is locked for older agents.
    file: Mutex<File>,
    _path: Option<UnixListener>,
}

impl DirClaim {
    /// Makes the directory if there is none, and takes it.
    ///
    /// # Errors
    /// Another agent has it, or it cannot be made or locked.
    pub(crate) fn take(dir: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { dir: dir.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let taken = || Error::Locked(dir.to_owned());
        let handle = File::open(dir).map_err(failed)?;
        match handle.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken()),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let file = keeper::lock(&dir.join(LOCK)).map_err(failed)?.ok_or_else(taken)?;
        let real = fs::canonicalize(dir).map_err(failed)?;
        let absolute = std::path::absolute(dir).map_err(failed)?;
        // A container may have another directory at the same path.
        let namespace = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
        let path = format!("{} {}", namespace.display(), real.display());
        let path = only(&format!("dir/{}", stable_uid(&path))).map_err(failed)?.ok_or_else(taken)?;
        Ok(Self { dir: absolute, handle, file: Mutex::new(file), _path: path })
    }

    /// Whether the directory is still where it was, and this agent's.
    ///
    /// # Errors
    /// It is not, and why.
    pub(crate) fn check(&self) -> Result<(), DirLoss> {
        // Not through the path that it had: a link may lead elsewhere now.
        if !is_same(&self.handle, fs::metadata(&self.dir))? {
            return Err(DirLoss::Replaced);
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.dir.join(LOCK);
        if matches!(is_same(&file, fs::symlink_metadata(&path)), Ok(true)) {
            return Ok(());
        }
        // Somebody has removed it. An older agent that came meanwhile has it now.
        match keeper::lock(&path) {
            Ok(Some(again)) => *file = again,
            Ok(None) => return Err(DirLoss::Taken),
            // On a full disk there may be no room for it: the lock on the directory holds.
            Err(_) => {}
        }
        Ok(())
    }
}

/// Whether what stands at a path is what is open.
fn is_same(open: &File, there: io::Result<fs::Metadata>) -> Result<bool, DirLoss> {
    let (Ok(open), Ok(there)) = (open.metadata(), there) else { return Err(DirLoss::Gone) };
    Ok((open.dev(), open.ino()) == (there.dev(), there.ino()))
}

/// Claims a node for this agent alone on this machine.
///
/// # Errors
/// Another agent speaks for it.
pub(crate) fn claim_node(node: &str, uid: &str) -> Result<Option<UnixListener>, Error> {
    match only(&format!("node/{uid}")) {
        Ok(Some(claim)) => Ok(claim),
        Ok(None) => Err(Error::Copied { node: node.to_owned(), uid: uid.to_owned() }),
        Err(error) => {
            tracing::warn!(%error, node, "whether another agent of this machine speaks for the node is not known");
            Ok(None)
        }
    }
}

/// Takes a name that one process of the machine can have; `None`: another one has it. Nothing is taken where the kernel has no such names.
fn only(name: &str) -> io::Result<Option<Option<UnixListener>>> {
    let address = SocketAddr::from_abstract_name(format!("godel-agent/{name}"))?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => Ok(Some(Some(listener))),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Some(None)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_locked(dir: &Path) -> bool {
        matches!(DirClaim::take(dir), Err(Error::Locked(_)))
    }

    #[test]
    fn one_agent_has_a_directory_whatever_becomes_of_the_lock_file() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("state");
        let first = DirClaim::take(&dir).unwrap();
        assert!(is_locked(&dir));
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(is_locked(&link), "by whatever path");
        fs::remove_file(dir.join(LOCK)).unwrap();
        assert!(is_locked(&dir), "without its lock file");
        assert_eq!(first.check(), Ok(()));
        assert!(dir.join(LOCK).exists(), "older agents find it locked again");
        fs::remove_file(dir.join(LOCK)).unwrap();
        let older = keeper::lock(&dir.join(LOCK)).unwrap().unwrap();
        assert_eq!(first.check(), Err(DirLoss::Taken));
        drop((first, older));
        assert!(DirClaim::take(&dir).is_ok(), "it goes with the process");
    }

    #[test]
    fn a_directory_that_is_gone_or_replaced_is_noticed_and_its_path_not_given_away() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("state");
        let first = DirClaim::take(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(first.check(), Err(DirLoss::Gone));
        assert!(is_locked(&dir), "the first one still lives");
        assert_eq!(first.check(), Err(DirLoss::Replaced));
        drop(first);
        assert_eq!(DirClaim::take(&dir).unwrap().check(), Ok(()));
    }

    #[test]
    fn a_copy_of_a_directory_cannot_be_used_beside_it() {
        let uid = uuid::Uuid::new_v4().to_string();
        let first = claim_node("n", &uid).unwrap();
        let error = claim_node("n", &uid).unwrap_err().to_string();
        assert!(error.contains("another agent of this machine speaks for the node n"), "{error}");
        drop(first);
        assert!(claim_node("n", &uid).unwrap().is_some());
    }
}
