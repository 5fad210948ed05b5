//! What state speaks if nobody has said so: TLS, but for a store that was made without it.

use std::{fs, io, path::Path};

use godel_store::Store;

use super::{
    first_start::{CaError, SealPlace, has_seal_key, make_seal},
    places::{self, SharedPlace},
    records,
};
use crate::config::{Config, EngineKind, TlsMode};

/// What is on disk of a store before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundStore {
    /// Nothing.
    New,
    /// It has a key that seals a CA.
    WithCa,
    /// It was made in plain text.
    WithoutCa,
}

impl Config {
    /// Says what state is to speak. The key that seals the CA of a new store is made here, before the store is: a first start that is killed in between
    /// is followed by one that speaks TLS as well.
    ///
    /// # Errors
    /// The directories of the store or of the key cannot be read or made.
    pub fn prepare_tls(&self) -> Result<TlsMode, CaError> {
        match (self.tls, self.server.insecure, self.engine) {
            (Some(mode), ..) => return Ok(mode),
            (None, true, _) => return Ok(TlsMode::Off),
            (None, false, EngineKind::Memory) => return Ok(TlsMode::On),
            (None, false, EngineKind::Sled) => {}
        }
        let place = self.seal_place();
        match look(&self.data_dir, &place)? {
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

/// Looks at what there is of a store.
fn look(data_dir: &Path, place: &SealPlace) -> Result<FoundStore, CaError> {
    if has_seal_key(place, data_dir)? {
        return Ok(FoundStore::WithCa);
    }
    match fs::read_dir(data_dir).and_then(|mut files| files.next().transpose()) {
        Ok(None) => Ok(FoundStore::New),
        Ok(Some(_)) => Ok(FoundStore::WithoutCa),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FoundStore::New),
        Err(source) => Err(unreadable(data_dir, source).into()),
    }
}

fn unreadable(dir: &Path, source: io::Error) -> SharedPlace {
    SharedPlace::Unreadable { dir: dir.to_owned(), source }
}

/// Refuses to serve a store with a CA in plain text because the key that seals the CA was not found; says what plain text means otherwise.
///
/// # Errors
/// The store has a CA, and nobody has asked for plain text.
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
        "this store was made without TLS: whoever reaches this address is an administrator. `godel up --tls on` turns TLS on; where members and \
         agents are processes of their own, restart state with `--tls migrate`, give each a token of `godel join-token` or \
         `godel node join-token`, and restart it with `--tls on` at last (docs/identities.md)"
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

    /// As after a kill between the key and the store's CA.
    #[test]
    fn a_start_that_got_as_far_as_the_key_is_followed_by_one_with_tls() {
        let dir = tempfile::tempdir().unwrap();
        config(dir.path()).prepare_tls().unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        fs::write(dir.path().join("state/lock"), "").unwrap();
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
