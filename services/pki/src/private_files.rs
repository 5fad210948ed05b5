//! Files that nobody but their owner may read: keys, tokens, contexts.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use zeroize::Zeroizing;

use crate::{fingerprints::hex, random::random_bytes};

/// Of a file that is its owner's alone.
const MODE: u32 = 0o600;
/// Of a directory of such files.
const DIR_MODE: u32 = 0o700;
/// What others may not have of it.
const OTHERS: u32 = 0o077;

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// Others may read or change it.
    #[error(
        "{path} has mode {mode:04o}: others may read or change it; say `chmod 600 {path}`, and make what is in it anew if others could"
    )]
    Open {
        /// Of the file.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// Somebody else's.
    #[error("{path} belongs to uid {owner}, and this process runs as {own}; say `chown {own} {path}`")]
    Owner {
        /// Of the file.
        path: String,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        own: u32,
    },
    /// Larger than what is looked for.
    #[error("{path} has more than {max} bytes; it is not the file that was meant")]
    Long {
        /// Of the file.
        path: String,
        /// Most bytes.
        max: usize,
    },
    /// Not a file.
    #[error("{path} is no regular file")]
    NoFile {
        /// Of what is there.
        path: String,
    },
    /// There is one already.
    #[error("{path} exists already; nothing was written")]
    Exists {
        /// Of the file.
        path: String,
    },
    /// The system refuses.
    #[error("cannot {verb} {path}")]
    System {
        /// What was tried.
        verb: &'static str,
        /// Of the file.
        path: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

impl PrivateFileError {
    /// What kind of error the system said; `None` if it said none.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::System { source, .. } => Some(source.kind()),
            Self::Exists { .. } => Some(io::ErrorKind::AlreadyExists),
            Self::Open { .. } | Self::Owner { .. } | Self::Long { .. } | Self::NoFile { .. } => None,
        }
    }
}

/// Writes a file that does not exist yet, with mode 0600. It is there as a whole or not at all, and on disk when this returns.
///
/// # Errors
/// [`PrivateFileError::Exists`], and what the system refuses.
pub fn create(path: &Path, bytes: &[u8]) -> Result<(), PrivateFileError> {
    write_beside(path, bytes, |written| match fs::hard_link(written, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(PrivateFileError::Exists { path: path.display().to_string() })
        }
        linked => linked.map_err(|source| failed("create", path, source)),
    })
}

/// Writes a file with mode 0600, in the place of the one that is there. Readers see the one or the other as a whole.
///
/// # Errors
/// What the system refuses.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), PrivateFileError> {
    write_beside(path, bytes, |written| {
        fs::rename(written, path).map_err(|source| failed("replace", path, source))
    })
}

/// Makes a directory with mode 0700, and those above it, where they are absent. What was made is on disk when this returns.
///
/// # Errors
/// What the system refuses.
pub fn create_dir(dir: &Path) -> Result<(), PrivateFileError> {
    let absent: Vec<&Path> =
        dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.is_dir()).collect();
    let made = DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir);
    made.map_err(|source| failed("make", dir, source))?;
    absent.into_iter().try_for_each(sync_parent)
}

/// Has the name of a file on disk.
fn sync_parent(path: &Path) -> Result<(), PrivateFileError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| failed("sync", folder, source))
}

/// Writes a file of another name beside `path`, and lets `put` give it its name.
fn write_beside(
    path: &Path,
    bytes: &[u8],
    put: impl FnOnce(&Path) -> Result<(), PrivateFileError>,
) -> Result<(), PrivateFileError> {
    let random: [u8; 8] = random_bytes().map_err(|error| failed("write", path, io::Error::other(error)))?;
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", hex(&random)));
    let beside = path.with_file_name(name);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(&beside)
        .and_then(|mut file| {
            // The mask of the process may have taken bits away.
            file.set_permissions(fs::Permissions::from_mode(MODE))?;
            file.write_all(bytes)?;
            file.sync_all()
        })
        .map_err(|source| failed("write", path, source));
    let put = written.and_then(|()| put(&beside));
    // Renamed, it is there no more.
    let _ = fs::remove_file(&beside);
    put?;
    sync_parent(path)
}

/// Reads a file of at most `max` bytes that is this process's own, or root's, and that nobody else may read or change.
///
/// # Errors
/// Whose else it is, that it is too long, and what the system refuses.
pub fn read(path: &Path, max: usize) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
    let file = File::open(path).map_err(|source| failed("read", path, source))?;
    // Of what is open: the name may mean another file by now.
    let meta = file.metadata().map_err(|source| failed("read", path, source))?;
    let shown = || path.display().to_string();
    if !meta.is_file() {
        return Err(PrivateFileError::NoFile { path: shown() });
    }
    let (owner, own, mode) = (meta.uid(), rustix::process::geteuid().as_raw(), meta.mode() & 0o7777);
    if owner != own && owner != 0 {
        return Err(PrivateFileError::Owner { path: shown(), owner, own });
    }
    if mode & OTHERS != 0 {
        return Err(PrivateFileError::Open { path: shown(), mode });
    }
    let most = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(most).read_to_end(&mut bytes).map_err(|source| failed("read", path, source))?;
    if bytes.len() > max { Err(PrivateFileError::Long { path: shown(), max }) } else { Ok(bytes) }
}

fn failed(verb: &'static str, path: &Path, source: io::Error) -> PrivateFileError {
    PrivateFileError::System { verb, path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_stays_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("context");
        replace(&path, b"one").unwrap();
        let reader = File::open(&path).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "one");
        assert_eq!(read(&path, 3).unwrap().as_slice(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(matches!(read(&path, 2), Err(PrivateFileError::Long { .. })));
    }

    #[test]
    fn a_directory_is_made_with_those_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("a/b");
        for _ in 0..2 {
            create_dir(&made).unwrap();
            assert_eq!(fs::metadata(&made).unwrap().mode() & 0o7777, 0o700);
        }
        create(&made.join("file"), b"").unwrap();
        let refusal = create_dir(&made.join("file")).unwrap_err();
        assert!(refusal.to_string().starts_with("cannot make "), "{refusal}");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read(dir.path(), 9), Err(PrivateFileError::NoFile { .. })));
        let absent = read(&dir.path().join("absent"), 9).unwrap_err();
        assert_eq!(absent.kind(), Some(io::ErrorKind::NotFound));
        let nowhere = create(&dir.path().join("absent/file"), b"").unwrap_err();
        assert_eq!(nowhere.kind(), Some(io::ErrorKind::NotFound));
    }
}
