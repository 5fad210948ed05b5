//! Looks at what only its owner is to have: keys, sockets, identities and tokens on this machine. Nothing is opened.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use super::facts::{FileFacts, FileState, PrivateKind};
use crate::{
    context::ContextFile,
    exit::{Code, Failure},
};

/// What a person's contexts are in.
pub(super) fn of_contexts(file: &ContextFile) -> Vec<FileFacts> {
    let path = file.path();
    let mut files = vec![look(path, PrivateKind::File)];
    // A directory that was made for contexts; another one, as /tmp, may be open to others.
    if let Some(dir) = path.parent().filter(|dir| dir.file_name().is_some_and(|name| name == "godel")) {
        files.insert(0, look(dir, PrivateKind::Dir));
    }
    files.retain(|file| file.state != FileState::Absent);
    files
}

/// What state keeps beside the directory of its store, where it is not configured to be elsewhere.
///
/// # Errors
/// The directory is not there.
pub(super) fn of_state(data_dir: &Path) -> Result<Vec<FileFacts>, Failure> {
    if !data_dir.is_dir() {
        let message = format!("there is no store in {}", data_dir.display());
        return Err(Failure::new(Code::NotFound, message)
            .hint("name the directory that state has as `state.data_dir`: `--data-dir DIR`"));
    }
    let above = data_dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(vec![
        look(above, PrivateKind::AboveStore),
        look(&above.join("pki"), PrivateKind::Dir),
        look(&above.join("pki/seal.key"), PrivateKind::File),
        look(&above.join("godel.sock"), PrivateKind::File),
    ])
}

/// A directory of identities, and all that is in it.
///
/// # Errors
/// The directory is not there.
pub(super) fn of_identities(dir: &Path) -> Result<Vec<FileFacts>, Failure> {
    if !dir.is_dir() {
        let message = format!("there is no directory {}", dir.display());
        return Err(Failure::new(Code::NotFound, message).hint(
            "name the directory that services and agents have as `identity.dir`: `--identity-dir DIR`",
        ));
    }
    let mut files = vec![look(dir, PrivateKind::Dir)];
    match fs::read_dir(dir) {
        Ok(entries) => {
            let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.retain(|path| path.extension().is_some_and(|extension| extension == "pem"));
            paths.sort();
            files.extend(paths.iter().map(|path| look(path, PrivateKind::File)));
        }
        Err(error) => files[0].state = FileState::Unreadable(error.to_string()),
    }
    Ok(files)
}

fn look(path: &Path, kind: PrivateKind) -> FileFacts {
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

    fn shown(files: &[FileFacts], dir: &Path) -> Vec<(String, FileState)> {
        let below = |path: &str| path.strip_prefix(&format!("{}/", dir.display())).unwrap_or("").to_owned();
        files.iter().map(|file| (below(&file.path), file.state.clone())).collect()
    }

    #[test]
    fn a_directory_of_identities_is_looked_at_with_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let identities = dir.path().join("identity");
        assert_eq!(of_identities(&identities).unwrap_err().code, Code::NotFound);
        fs::create_dir(&identities).unwrap();
        fs::set_permissions(&identities, Permissions::from_mode(0o750)).unwrap();
        for (name, mode) in [("agent-n1.pem", 0o644), ("agent-n1.roots.pem", 0o600), ("notes", 0o644)] {
            fs::write(identities.join(name), "").unwrap();
            fs::set_permissions(identities.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let expect =
            [("identity", 0o750), ("identity/agent-n1.pem", 0o644), ("identity/agent-n1.roots.pem", 0o600)];
        let expect = expect.map(|(name, mode)| (name.to_owned(), FileState::Mode(mode)));
        assert_eq!(shown(&of_identities(&identities).unwrap(), dir.path()), expect);
    }

    #[test]
    fn what_state_keeps_is_beside_its_store() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of_state(&dir.path().join("state")).unwrap_err().code, Code::NotFound);
        for made in ["state", "pki"] {
            fs::create_dir(dir.path().join(made)).unwrap();
        }
        fs::write(dir.path().join("pki/seal.key"), "").unwrap();
        fs::set_permissions(dir.path().join("pki/seal.key"), Permissions::from_mode(0o640)).unwrap();
        let files = of_state(&dir.path().join("state")).unwrap();
        assert_eq!(files[2].state, FileState::Mode(0o640));
        assert_eq!(shown(&files, dir.path())[3], ("godel.sock".to_owned(), FileState::Absent));
    }

    #[test]
    fn a_directory_that_is_not_godels_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str| ContextFile::new(dir.path().join(path));
        assert_eq!(of_contexts(&file("contexts.yaml")), []);
        fs::write(dir.path().join("contexts.yaml"), "").unwrap();
        assert_eq!(of_contexts(&file("contexts.yaml")).len(), 1);
        fs::create_dir(dir.path().join("godel")).unwrap();
        fs::write(dir.path().join("godel/contexts.yaml"), "").unwrap();
        assert_eq!(of_contexts(&file("godel/contexts.yaml")).len(), 2);
    }
}
