//! Where the key and the socket of a state are unless configured, and that no two states have the same ones.
//!
//! Both are beside the directory of the store, so that the directory above is to be one cluster's own: others may not make files in it, and a file
//! in `pki` names the store that it belongs to. The name is that of the directory alone: the whole may be moved or copied.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use godel_pki::private_files::{self, PrivateFileError};

use crate::config::{Config, EngineKind};

/// The file in `pki` that names the store, as the directory beside which `pki` is.
const OWNER: &str = "store";
/// Longest name of a directory.
const NAME_LEN_MAX: usize = 255;
/// Whoever else may make files in a directory.
const OTHERS_WRITE: u32 = 0o002;

/// The key or the socket would be in a place that is not this store's alone.
#[derive(Debug, thiserror::Error)]
pub enum SharedPlace {
    /// Anybody may make files there.
    #[error(
        "others may write into {}, where state would have `pki` and `godel.sock`: move `state.data_dir` into a directory of its own, or set \
         `state.pki_dir` and `state.socket`",
        .dir.display()
    )]
    OpenToOthers {
        /// The directory.
        dir: PathBuf,
    },
    /// Another store's key is there.
    #[error(
        "{} is of the store in {}: this one needs its own key and socket; set `state.pki_dir` and `state.socket`, or move `state.data_dir` into a \
         directory of its own",
        .pki.display(),
        .other.display()
    )]
    OfOtherStore {
        /// The directory of the key.
        pki: PathBuf,
        /// The other store.
        other: PathBuf,
    },
    /// It cannot be told.
    #[error("{} cannot be read", .dir.display())]
    Unreadable {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Whose it is cannot be read or written.
    #[error(transparent)]
    File(#[from] PrivateFileError),
}

/// That the default places of `config`, whose store exists, are not where others may make files.
///
/// # Errors
/// [`SharedPlace::OpenToOthers`].
pub(crate) fn check(config: &Config) -> Result<(), SharedPlace> {
    let is_configured = config.pki_dir.is_some() && config.socket.is_some();
    if config.engine == EngineKind::Memory || is_configured {
        return Ok(());
    }
    let dir = config.beside_data();
    let meta = fs::metadata(dir).map_err(|source| SharedPlace::Unreadable { dir: dir.to_owned(), source })?;
    if meta.permissions().mode() & OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(SharedPlace::OpenToOthers { dir: dir.to_owned() })
}

/// Takes the directory `pki` beside `data_dir` for the store there, which has no CA yet.
///
/// # Errors
/// It is another store's.
pub(super) fn claim_key(pki: &Path, data_dir: &Path) -> Result<(), SharedPlace> {
    let other =
        owner(pki)?.filter(|owner| *owner != name_of(data_dir)).map(|owner| data_dir.with_file_name(owner));
    match other {
        Some(other) if other.is_dir() => Err(SharedPlace::OfOtherStore { pki: pki.to_owned(), other }),
        // The directory of the store was renamed, or removed.
        Some(_) | None => keep_key(pki, data_dir),
    }
}

/// Says that the key in `pki` is that of the store in `data_dir`: its CA is sealed with it. One that was restored beside its original has the same key.
///
/// # Errors
/// The file cannot be written.
pub(super) fn keep_key(pki: &Path, data_dir: &Path) -> Result<(), SharedPlace> {
    let name = name_of(data_dir);
    if owner(pki)?.as_ref() != Some(&name) {
        private_files::replace(&pki.join(OWNER), name.as_bytes())?;
    }
    Ok(())
}

/// Whether the key in `pki` is not another store's than the one in `data_dir`.
pub(super) fn is_of(pki: &Path, data_dir: &Path) -> Result<bool, SharedPlace> {
    Ok(owner(pki)?.is_none_or(|owner| owner == name_of(data_dir)))
}

fn owner(pki: &Path) -> Result<Option<String>, PrivateFileError> {
    match private_files::read(&pki.join(OWNER), NAME_LEN_MAX) {
        Ok(name) => Ok(Some(String::from_utf8_lossy(&name).into_owned())),
        Err(error) if error.kind() == Some(io::ErrorKind::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The working directory itself has no name.
fn name_of(data_dir: &Path) -> String {
    data_dir.file_name().map_or(".".into(), |name| name.to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path, store: &str) -> Config {
        let data_dir = dir.join(store);
        fs::create_dir_all(&data_dir).unwrap();
        Config { data_dir, ..Config::default() }
    }

    #[test]
    fn two_stores_do_not_share_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|store| config(dir.path(), store).data_dir);
        let pki = dir.path().join("pki");
        private_files::create_dir(&pki).unwrap();
        claim_key(&pki, &one).unwrap();
        claim_key(&pki, &one).unwrap();
        let refusal = claim_key(&pki, &two).unwrap_err().to_string();
        for word in ["/pki is of the store in ", "/one: ", "`state.pki_dir`", "`state.socket`"] {
            assert!(refusal.contains(word), "{refusal}");
        }
        // A copy of the whole, and a store that was renamed, take their key along.
        let copy = tempfile::tempdir().unwrap();
        private_files::create_dir(&copy.path().join("pki")).unwrap();
        private_files::create(&copy.path().join("pki/store"), b"one").unwrap();
        claim_key(&copy.path().join("pki"), &config(copy.path(), "one").data_dir).unwrap();
        fs::remove_dir(&one).unwrap();
        claim_key(&pki, &two).unwrap();
        // And so does one that was restored beside its original.
        fs::create_dir(&one).unwrap();
        keep_key(&pki, &one).unwrap();
        assert_eq!(owner(&pki).unwrap().as_deref(), Some("one"));
    }

    #[test]
    fn what_others_may_write_into_is_no_place_for_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), "state");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let refusal = check(&config).unwrap_err().to_string();
        assert!(
            refusal.starts_with("others may write into ") && refusal.contains("`state.pki_dir`"),
            "{refusal}"
        );
        check(&Config { engine: EngineKind::Memory, ..config.clone() }).unwrap();
        let places = (Some(dir.path().join("pki")), Some(dir.path().join("godel.sock")));
        check(&Config { pki_dir: places.0, socket: places.1, ..config }).unwrap();
        for mode in [0o700, 0o755, 0o775] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            check(&self::config(dir.path(), "state")).unwrap();
        }
    }
}
