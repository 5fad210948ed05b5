//! What a process keeps of its identity: one file with the key, the leaf and its root, so that they change together, and one with all roots.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use godel_pki::{
    leaves::OwnLeaf,
    private_files::{self, PrivateFileError},
    requests::LeafKey,
    roots::Trust,
};

use super::{Damage, HeldIdentity, JoinError, NewMember};
use crate::config::IdentityConfig;

/// Longest file of an identity, bytes: a key and a few certificates.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Longest file of a join token, bytes.
const TOKEN_BYTES_MAX: usize = 4_096;
/// Standard input in place of a file.
const STDIN: &str = "-";

/// The files of one identity.
#[derive(Clone, Debug)]
pub(crate) struct IdentityFiles {
    key: String,
    /// Key, leaf and its root.
    own: PathBuf,
    roots: PathBuf,
}

impl IdentityFiles {
    /// Where a process keeps its identity; `None`: in memory alone.
    pub(crate) fn of(config: &IdentityConfig, member: &NewMember) -> Option<Self> {
        if config.token.0.is_some() {
            return None;
        }
        let key = format!("{}/{}", member.role, member.name);
        // A name has no slash, and `*` stands in names of files as any other character.
        let stem = format!("{}-{}", member.role, member.name);
        let dir = Path::new(&config.dir);
        Some(Self { key, own: dir.join(format!("{stem}.pem")), roots: dir.join(format!("{stem}.roots.pem")) })
    }

    /// What was kept; `None`: nothing.
    ///
    /// # Errors
    /// The files cannot be read, or hold no identity of this process.
    pub(crate) fn read(&self) -> Result<Option<HeldIdentity>, JoinError> {
        let text = match read_private(&self.own, FILE_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == Some(io::ErrorKind::NotFound) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let roots = read_private(&self.roots, FILE_BYTES_MAX)?;
        let read = self.parse(&text, &roots);
        read.map(Some).map_err(|source| JoinError::Damaged { path: self.own.display().to_string(), source })
    }

    fn parse(&self, own: &str, roots: &str) -> Result<HeldIdentity, Damage> {
        let key = LeafKey::read_pem(own)?;
        let own = OwnLeaf::read_pem(own, &key)?;
        let found = own.leaf().identity.key();
        if found != self.key {
            return Err(Damage::Other { found, own: self.key.clone() });
        }
        let trust = Trust::read_pem(own.leaf().identity.cluster().clone(), roots)?;
        Ok(HeldIdentity { key, own, trust })
    }

    /// Keeps an identity in place of the one before.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn write(&self, held: &HeldIdentity) -> Result<(), PrivateFileError> {
        if let Some(dir) = self.own.parent() {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
            made.map_err(|source| PrivateFileError::System {
                verb: "make",
                path: dir.display().to_string(),
                source,
            })?;
        }
        // The roots first: a leaf without the roots to judge others by is of no use.
        self.write_trust(&held.trust)?;
        let mut text = held.key.to_pem();
        text.push_str(&held.own.to_pem());
        private_files::replace(&self.own, text.as_bytes())
    }

    /// Keeps other roots.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn write_trust(&self, trust: &Trust) -> Result<(), PrivateFileError> {
        private_files::replace(&self.roots, trust.to_pem().as_bytes())
    }

    /// When the file of the leaf was last written; `None`: it is not there.
    pub(crate) fn changed_at(&self) -> Option<SystemTime> {
        fs::metadata(&self.own).and_then(|meta| meta.modified()).ok()
    }
}

fn read_private(path: &Path, max: usize) -> Result<String, PrivateFileError> {
    let bytes = private_files::read(path, max)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text of a join token: a file that nobody else may read, or standard input.
///
/// # Errors
/// What the system refuses, and files that others may read.
pub(crate) fn read_token_text(file: &str) -> Result<String, PrivateFileError> {
    if file != STDIN {
        return read_private(Path::new(file), TOKEN_BYTES_MAX);
    }
    let mut text = String::new();
    let most = u64::try_from(TOKEN_BYTES_MAX).unwrap_or(u64::MAX);
    let read = io::stdin().lock().take(most).read_to_string(&mut text);
    let source =
        |source| PrivateFileError::System { verb: "read", path: "standard input".to_owned(), source };
    read.map(|_| text).map_err(source)
}
