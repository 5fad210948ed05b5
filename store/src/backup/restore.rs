//! Makes a store from backups.

use std::path::Path;

use godel_base::ids::Revision;

use super::{BackupError, chain, list_locked, read::state_at, readable};
use crate::{
    admin::{self, ContentCheck, UnreadablePolicy},
    identity,
    store::Engine,
};

/// What [`restore`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// The last backup that was needed.
    pub number: u64,
    /// The store that was backed up.
    pub from_store_id: u64,
    /// The revision that was restored.
    pub restored: u64,
    /// The new store.
    pub store_id: u64,
    /// Its revision: its own commits continue from there.
    pub revision: u64,
}

/// Makes a store in `engine`, which must be empty, of revision `at`, or of the newest one that the backups in `dir` have. It
/// is another store, see [`identity`]; its records keep their revisions and uids.
///
/// # Errors
/// The target holds something, no backup has the revision, one that is needed is damaged, it holds what `content` cannot
/// read, or the store cannot be written.
pub fn restore(
    dir: &Path,
    at: Option<Revision>,
    engine: &Engine,
    content: ContentCheck<'_>,
    unreadable: UnreadablePolicy,
) -> Result<RestoreReport, BackupError> {
    admin::refuse_used(engine)?;
    let (backups, _lock) = list_locked(dir)?;
    let manifests = readable(&backups);
    let chain = match (at, backups.last()) {
        (Some(at), _) => chain::covering(&manifests, at.0).map_err(|what| BackupError::NotThere { what })?,
        (None, Some(last)) => {
            let found = match &last.manifest {
                Ok(_) => chain::chain(&manifests, last.number),
                Err(what) => Err(format!("backup {}: {what}", last.number)),
            };
            found.map_err(|what| BackupError::Damaged {
                what: format!("{what}; name an older revision to restore with `--at`"),
            })?
        }
        (None, None) => return Err(BackupError::NoBackup { dir: dir.to_owned() }),
    };
    let Some(last) = chain.last() else { return Err(BackupError::NoBackup { dir: dir.to_owned() }) };
    let restored = at.map_or(last.last_revision, |at| at.0);
    let mut state = state_at(dir, &chain, restored)?;
    let records = admin::unreadable(&state, content);
    if !records.is_empty() && unreadable == UnreadablePolicy::Refuse {
        return Err(BackupError::Unreadable { records });
    }
    let store_id = identity::renew(&mut state);
    admin::make_store(&state, engine)?;
    Ok(RestoreReport {
        number: last.number,
        from_store_id: last.store_id,
        restored,
        store_id: store_id.0,
        revision: state.revision().0,
    })
}
