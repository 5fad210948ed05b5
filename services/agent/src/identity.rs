//! The identity of a node: a uid for each installation, made once.
//!
//! With a state directory the uid is random and kept there, in `identity/NAME`: it belongs to the directory and the name of the node. So
//! another machine with the same name has another uid, and a node that is given another name is another node. Without a state directory
//! the uid follows from the machine's id and the name of the node; where there is no such id either, it is another one after each start.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::inventory::stable_uid;

/// The directory in the state directory with a file for each node.
const DIR: &str = "identity";
/// Where the machine's id is, the same for as long as it is installed.
const MACHINE_IDS: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];
/// Letters of a machine's id.
const MACHINE_ID_LEN: usize = 32;

/// Where a uid is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// From the state directory.
    StateDir,
    /// From the machine's id.
    MachineId,
    /// From nowhere: it is another one after the next start.
    Random,
}

/// Why a node has no identity.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read or written.
    #[error(
        "the identity of node {name} in {file} cannot be read or written: check the owner of the directory and its disk"
    )]
    File {
        /// The node.
        name: String,
        /// Its file.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file has no uid.
    #[error(
        "{file} must have the uid of node {name}, and has no UUID: restore the file, or remove it, which makes the node \
         another one, to which the name goes once the old one is lost"
    )]
    NotUuid {
        /// The node.
        name: String,
        /// Its file.
        file: PathBuf,
    },
}

/// Returns the uid of the node `name` on this machine, whose files are below `root`. With a state directory it is made now if there is none
/// yet; one that does not outlive the process is warned of. `name` is a valid name of a node.
///
/// # Errors
/// The file of the node cannot be read or written, or has no UUID.
pub fn of(name: &str, state_dir: Option<&Path>, root: &Path) -> Result<String, Error> {
    let (uid, origin) = find(name, state_dir, root)?;
    if origin == Origin::Random {
        tracing::warn!(
            node = name,
            "this machine has no id, so its node is another one after each start, which waits for the end of the one \
             before: set agent.state_dir (--state-dir)"
        );
    }
    Ok(uid)
}

fn find(name: &str, state_dir: Option<&Path>, root: &Path) -> Result<(String, Origin), Error> {
    if let Some(dir) = state_dir {
        return in_dir(name, &dir.join(DIR)).map(|uid| (uid, Origin::StateDir));
    }
    Ok(match machine_id(root) {
        Some(id) => (stable_uid(&format!("{id} {name}")), Origin::MachineId),
        None => (uuid::Uuid::new_v4().to_string(), Origin::Random),
    })
}

/// Returns the uid that the agent of the node `name` on this machine has, without making one; `None`: it has none yet, or there is no
/// knowing which.
///
/// # Errors
/// The file of the node cannot be read, or has no UUID.
pub fn known(name: &str, state_dir: Option<&Path>, root: &Path) -> Result<Option<String>, Error> {
    let Some(dir) = state_dir else {
        return Ok(machine_id(root).map(|id| stable_uid(&format!("{id} {name}"))));
    };
    let file = dir.join(DIR).join(name);
    match fs::read_to_string(&file) {
        Ok(text) => read(name, &file, &text).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { name: name.to_owned(), file, source }),
    }
}

fn machine_id(root: &Path) -> Option<String> {
    MACHINE_IDS.iter().find_map(|path| {
        let text = fs::read_to_string(root.join(path)).ok()?;
        let id = text.trim();
        // `uninitialized` stands there before the first start.
        let is_id = id.len() == MACHINE_ID_LEN && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| id.to_ascii_lowercase())
    })
}

fn in_dir(name: &str, dir: &Path) -> Result<String, Error> {
    let file = dir.join(name);
    let failed = |source| Error::File { name: name.to_owned(), file: file.clone(), source };
    match fs::read_to_string(&file) {
        Ok(text) => read(name, &file, &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(name, dir, &file).map_err(failed)?;
            // Another agent may have been faster.
            let text = fs::read_to_string(&file).map_err(failed)?;
            read(name, &file, &text)
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Error::NotUuid { name: name.to_owned(), file })
        }
        Err(error) => Err(failed(error)),
    }
}

fn read(name: &str, file: &Path, text: &str) -> Result<String, Error> {
    let uid = uuid::Uuid::try_parse(text.trim());
    let uid = uid.map_err(|_| Error::NotUuid { name: name.to_owned(), file: file.to_owned() })?;
    Ok(uid.to_string())
}

/// Makes the file, whole or not at all, unless there is one.
fn make(name: &str, dir: &Path, file: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let uid = uuid::Uuid::new_v4();
    // No name of a node begins with a full stop.
    let fresh = dir.join(format!(".{name}.{}", uid.simple()));
    let written = (|| {
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        writeln!(out, "{uid}")?;
        out.sync_all()?;
        match fs::hard_link(&fresh, file) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    })();
    let removed = fs::remove_file(&fresh);
    written.and(removed)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_made_once_for_each_directory_and_name() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let nowhere = Path::new("/nowhere");
        let uid = |dir: &Path, name: &str| {
            let (uid, origin) = find(name, Some(&dir.join("deep/state")), nowhere).unwrap();
            assert_eq!(origin, Origin::StateDir);
            assert_eq!(uuid::Uuid::try_parse(&uid).unwrap().to_string(), uid);
            uid
        };
        let state_dir = one.path().join("deep/state");
        let known = |name: &str| known(name, Some(&state_dir), nowhere).unwrap();
        assert_eq!(known("n-1"), None);
        let first = uid(one.path(), "n-1");
        assert_eq!((known("n-1"), known("n-2")), (Some(first.clone()), None));
        assert_eq!(first, uid(one.path(), "n-1"));
        assert_ne!(first, uid(one.path(), "n-2"));
        assert_ne!(first, uid(other.path(), "n-1"));
        let left: Vec<_> = fs::read_dir(one.path().join("deep/state/identity")).unwrap().collect();
        assert_eq!(left.len(), 2, "nothing else is left there: {left:?}");
    }

    #[test]
    fn without_a_directory_it_follows_from_machine_and_name() {
        let machine = |path: &str, text: &str| {
            let root = tempfile::tempdir().unwrap();
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
            let uid = |name| find(name, None, root.path()).unwrap();
            assert_eq!(uid("n").1, uid("m").1);
            let (uid_known, of_start) = (known("n", None, root.path()).unwrap(), uid("n"));
            assert_eq!(uid_known, (of_start.1 == Origin::MachineId).then_some(of_start.0));
            assert_ne!(uid("n").0, uid("m").0);
            uid("n")
        };
        let id = "0123456789abcdef0123456789abcdef";
        let (uid, origin) = machine("etc/machine-id", &format!("{id}\n"));
        assert_eq!(origin, Origin::MachineId);
        assert_eq!(machine("var/lib/dbus/machine-id", &id.to_uppercase()), (uid.clone(), origin));
        let (other, origin) = machine("etc/machine-id", &id.replace('0', "1"));
        assert!(other != uid && origin == Origin::MachineId);
        for none in ["", "uninitialized\n", &id[1..]] {
            assert_eq!(machine("etc/machine-id", none).1, Origin::Random);
        }
    }

    #[test]
    fn a_file_that_is_no_uuid_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(DIR)).unwrap();
        for text in [&b""[..], b"n-1\n", b"\xff\xfe"] {
            fs::write(dir.path().join(DIR).join("n-1"), text).unwrap();
            let error = find("n-1", Some(dir.path()), Path::new("/")).unwrap_err();
            assert!(matches!(error, Error::NotUuid { .. }), "{error}");
            assert!(error.to_string().contains("identity/n-1"), "{error}");
        }
        fs::write(dir.path().join("file"), "").unwrap();
        let error = find("n-1", Some(&dir.path().join("file")), Path::new("/")).unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
    }
}
