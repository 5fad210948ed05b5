//! What state speaks if `state.tls` is not set: TLS, except with `--insecure` and for a store that was made without TLS.

use std::{fs, io, path::Path};

use godel_store::Store;

use super::{
    first_start::{CaError, SealPlace, has_seal_key, make_seal},
    places::{self, SharedPlace},
    records,
};
use crate::config::{Config, EngineKind, TlsMode};

/// The directory of a file system that was just made, which belongs to no store.
const LOST_AND_FOUND: &str = "lost+found";

/// What is on disk before the store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundStore {
    /// Nothing.
    New,
    /// A store with a key that seals a CA.
    WithCa,
    /// A store that was made in plain text.
    WithoutCa,
}

impl Config {
    /// Decides what state speaks. The key that seals the CA of a new store is made here, before the store: if the first start is killed in between, the next
    /// one speaks TLS as well.
    ///
    /// # Errors
    /// The directories of the store or of the key cannot be read or made.
    pub fn prepare_tls(&self) -> Result<TlsMode, CaError> {
        match (self.tls, self.server.insecure, self.engine) {
            (Some(mode), ..) => return Ok(mode),
            (None, true, _) => return Ok(TlsMode::Off),
            (None, false, EngineKind::Memory) => return Ok(TlsMode::On),
            (None, false, EngineKind::Sled | EngineKind::Etcd) => {}
        }
        let place = self.seal_place();
        match find_store(&self.data_dir, &place)? {
            FoundStore::WithoutCa => Ok(TlsMode::Off),
            FoundStore::WithCa => Ok(TlsMode::On),
            FoundStore::New => {
                let parent = self.beside_data();
                fs::create_dir_all(parent).map_err(|source| unreadable(parent, source))?;
                places::check(self)?;
                make_seal(&place).map(|_| TlsMode::On)
            }
        }
    }
}

fn find_store(data_dir: &Path, place: &SealPlace) -> Result<FoundStore, CaError> {
    if has_seal_key(place, data_dir)? {
        return Ok(FoundStore::WithCa);
    }
    let is_of_store = |entry: &io::Result<fs::DirEntry>| {
        !entry.as_ref().is_ok_and(|entry| entry.file_name() == LOST_AND_FOUND)
    };
    match fs::read_dir(data_dir).and_then(|mut entries| entries.find(is_of_store).transpose()) {
        Ok(None) => Ok(FoundStore::New),
        Ok(Some(_)) => Ok(FoundStore::WithoutCa),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FoundStore::New),
        Err(source) => Err(unreadable(data_dir, source).into()),
    }
}

fn unreadable(dir: &Path, source: io::Error) -> SharedPlace {
    SharedPlace::Unreadable { dir: dir.to_owned(), source }
}

/// Refuses plain text for a store with a CA whose key is missing, unless plain text was asked for. Warns of plain text otherwise.
///
/// # Errors
/// The store has a CA, and plain text was not asked for.
pub(crate) fn judge_plain_text(config: &Config, store: &Store, address: &str) -> Result<(), CaError> {
    if config.tls.is_some() || config.server.insecure {
        tracing::warn!(address, "state answers plain text: whoever reaches this address is an administrator");
        return Ok(());
    }
    if store.read(records::trust)?.is_some() {
        return Err(config.seal_place().missing());
    }
    tracing::warn!(
        address,
        "this store was made without TLS: whoever reaches this address is an administrator. To turn on TLS, restart with `godel up --tls on`; if services \
         and agents are separate processes, restart state with `--tls migrate`, give each process a token of `godel join-token` or \
         `godel node join-token`, then restart state with `--tls on` (docs/identities.md, \"From plain text to TLS\")"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> Config {
        Config { data_dir: dir.join("state"), ..Config::default() }
    }

    #[test]
    fn new_stores_speak_tls_unless_plain_text_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut insecure = config(dir.path());
        insecure.server.insecure = true;
        assert_eq!(insecure.prepare_tls().unwrap(), TlsMode::Off);
        for mode in [TlsMode::Off, TlsMode::Migrate, TlsMode::On] {
            assert_eq!(Config { tls: Some(mode), ..insecure.clone() }.prepare_tls().unwrap(), mode);
        }
        assert!(!dir.path().join("pki").exists());
        let memory = Config { engine: EngineKind::Memory, ..config(dir.path()) };
        assert_eq!(memory.prepare_tls().unwrap(), TlsMode::On);
        assert_eq!(config(dir.path()).prepare_tls().unwrap(), TlsMode::On);
        assert!(dir.path().join("pki/seal.key").exists());
    }

    /// As when the first start is killed after it has made the key and before the store has a CA.
    #[test]
    fn start_after_an_interrupted_first_start_speaks_tls() {
        let dir = tempfile::tempdir().unwrap();
        config(dir.path()).prepare_tls().unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        fs::write(dir.path().join("state/lock"), "").unwrap();
        assert_eq!(config(dir.path()).prepare_tls().unwrap(), TlsMode::On);
    }

    /// A volume for the store may be a file system of its own.
    #[test]
    fn new_store_at_the_root_of_a_file_system_speaks_tls() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("state").join(LOST_AND_FOUND)).unwrap();
        assert_eq!(config(dir.path()).prepare_tls().unwrap(), TlsMode::On);
    }

    #[test]
    fn stores_of_plain_text_stay_so() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        fs::write(dir.path().join("state/lock"), "").unwrap();
        assert_eq!(config(dir.path()).prepare_tls().unwrap(), TlsMode::Off);
        // The key of another store beside it is not its own.
        let other = Config { data_dir: dir.path().join("other"), ..Config::default() };
        other.prepare_tls().unwrap();
        fs::create_dir(&other.data_dir).unwrap();
        assert_eq!(config(dir.path()).prepare_tls().unwrap(), TlsMode::Off);
        let key = Config { pki_dir: Some(dir.path().join("pki")), ..config(dir.path()) };
        assert_eq!(key.prepare_tls().unwrap(), TlsMode::On);
    }
}
