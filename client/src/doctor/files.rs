//! Reads the modes of what only its owner may access: keys, sockets, identities and tokens on this machine. No file is opened.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use super::facts::{FileFacts, FileState, PrivateKind};
use crate::{
    context::ContextFile,
    exit::{Code, Failure},
};

/// Checks that `dir`, which the caller named as the directory of a store, is a directory.
///
/// # Errors
/// It does not exist, is no directory, or this user cannot tell.
pub fn check_store_dir(dir: &Path) -> Result<(), Failure> {
    check_dir(dir, || {
        Failure::new(Code::NotFound, format!("there is no store in {}", dir.display()))
            .hint("name the directory that state has as `state.data_dir`: `--data-dir DIR`")
    })
}

/// Reads the file with a person's contexts, if there is one.
pub(super) fn read_contexts(file: &ContextFile) -> Vec<FileFacts> {
    let path = file.path();
    let mut files = vec![read_mode(path, PrivateKind::File)];
    // Only a directory that was made for contexts must be private; another one, such as /tmp, may be open to others.
    if let Some(dir) = path.parent().filter(|dir| dir.file_name().is_some_and(|name| name == "godel")) {
        files.insert(0, read_mode(dir, PrivateKind::Dir));
    }
    files.retain(|file| file.state != FileState::Absent);
    files
}

/// Reads what state keeps beside the directory of its store, unless it is configured to be elsewhere.
///
/// # Errors
/// As [`check_store_dir`].
pub(super) fn read_state(data_dir: &Path) -> Result<Vec<FileFacts>, Failure> {
    check_store_dir(data_dir)?;
    let above = data_dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(vec![
        read_mode(above, PrivateKind::AboveStore),
        read_mode(&above.join("pki"), PrivateKind::Dir),
        read_mode(&above.join("pki/seal.key"), PrivateKind::File),
        read_mode(&above.join("godel.sock"), PrivateKind::File),
    ])
}

/// Reads a directory of identities and the files in it.
///
/// # Errors
/// The directory does not exist, is no directory, or this user cannot tell.
pub(super) fn read_identities(dir: &Path) -> Result<Vec<FileFacts>, Failure> {
    check_dir(dir, || {
        Failure::new(Code::NotFound, format!("there is no directory {}", dir.display()))
            .hint("name the directory that services and agents have as `identity.dir`: `--identity-dir DIR`")
    })?;
    let mut files = vec![read_mode(dir, PrivateKind::Dir)];
    match fs::read_dir(dir) {
        Ok(entries) => {
            let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.retain(|path| path.extension().is_some_and(|extension| extension == "pem"));
            paths.sort();
            files.extend(paths.iter().map(|path| read_mode(path, PrivateKind::File)));
        }
        Err(error) => files[0].state = FileState::Unreadable(error.to_string()),
    }
    Ok(files)
}

/// Checks that `dir` is a directory; `missing` is the failure if it is not. A directory that this user cannot see is another failure.
fn check_dir(dir: &Path, missing: impl FnOnce() -> Failure) -> Result<(), Failure> {
    match fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(missing()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(missing())
        }
        Err(error) => Err(Failure::failed(format!("{} cannot be read: {error}", dir.display()))
            .hint("run the command as the owner of the directory, for example with `sudo -u godel`")),
    }
}

fn read_mode(path: &Path, kind: PrivateKind) -> FileFacts {
    let state = match fs::metadata(path) {
        Ok(meta) => FileState::Mode(meta.permissions().mode() & 0o7777),
        Err(error) if error.kind() == io::ErrorKind::NotFound => FileState::Absent,
        Err(error) => FileState::Unreadable(error.to_string()),
    };
    FileFacts { path: path.display().to_string(), kind, state }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn directory_that_cannot_be_seen_is_not_called_absent() {
        let dir = tempfile::tempdir().unwrap();
        // A name that is too long fails as a directory without permission does, also for root.
        let unseen = dir.path().join("x".repeat(300));
        for failure in [check_store_dir(&unseen).unwrap_err(), read_identities(&unseen).unwrap_err()] {
            assert_eq!(failure.code, Code::Failed, "{failure}");
            assert!(failure.to_string().contains("cannot be read: "), "{failure}");
        }
        fs::write(dir.path().join("file"), "").unwrap();
        for missing in ["nowhere", "file", "file/below"] {
            assert_eq!(check_store_dir(&dir.path().join(missing)).unwrap_err().code, Code::NotFound);
        }
    }

    fn shown(files: &[FileFacts], dir: &Path) -> Vec<(String, FileState)> {
        let below = |path: &str| path.strip_prefix(&format!("{}/", dir.display())).unwrap_or("").to_owned();
        files.iter().map(|file| (below(&file.path), file.state.clone())).collect()
    }

    #[test]
    fn a_directory_read_identities_is_looked_at_with_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let identities = dir.path().join("identity");
        assert_eq!(read_identities(&identities).unwrap_err().code, Code::NotFound);
        fs::create_dir(&identities).unwrap();
        fs::set_permissions(&identities, Permissions::from_mode(0o750)).unwrap();
        for (name, mode) in [("agent-n1.pem", 0o644), ("agent-n1.roots.pem", 0o600), ("notes", 0o644)] {
            fs::write(identities.join(name), "").unwrap();
            fs::set_permissions(identities.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let expect =
            [("identity", 0o750), ("identity/agent-n1.pem", 0o644), ("identity/agent-n1.roots.pem", 0o600)];
        let expect = expect.map(|(name, mode)| (name.to_owned(), FileState::Mode(mode)));
        assert_eq!(shown(&read_identities(&identities).unwrap(), dir.path()), expect);
    }

    #[test]
    fn key_and_socket_of_state_are_beside_its_store() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_state(&dir.path().join("state")).unwrap_err().code, Code::NotFound);
        for made in ["state", "pki"] {
            fs::create_dir(dir.path().join(made)).unwrap();
        }
        fs::write(dir.path().join("pki/seal.key"), "").unwrap();
        fs::set_permissions(dir.path().join("pki/seal.key"), Permissions::from_mode(0o640)).unwrap();
        let files = read_state(&dir.path().join("state")).unwrap();
        assert_eq!(files[2].state, FileState::Mode(0o640));
        assert_eq!(shown(&files, dir.path())[3], ("godel.sock".to_owned(), FileState::Absent));
    }

    #[test]
    fn only_a_directory_named_godel_must_be_private() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str| ContextFile::new(dir.path().join(path));
        assert_eq!(read_contexts(&file("contexts.yaml")), []);
        fs::write(dir.path().join("contexts.yaml"), "").unwrap();
        assert_eq!(read_contexts(&file("contexts.yaml")).len(), 1);
        fs::create_dir(dir.path().join("godel")).unwrap();
        fs::write(dir.path().join("godel/contexts.yaml"), "").unwrap();
        assert_eq!(read_contexts(&file("godel/contexts.yaml")).len(), 2);
    }
}
