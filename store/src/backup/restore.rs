//! Creates a store from backups.

use std::path::Path;

use godel_base::ids::Revision;

use super::{BackupError, chain, list_locked, read::state_at, readable};
use crate::{
    admin::{self, ContentCheck, UnreadablePolicy},
    identity,
    store::Engine,
};

/// The result of [`restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// Number of the last backup that was read.
    pub number: u64,
    /// Id of the store that was backed up.
    pub from_store_id: u64,
    /// The revision that was restored.
    pub restored: u64,
    /// Id of the new store.
    pub store_id: u64,
    /// Revision of the new store, from which its own commits continue.
    pub revision: u64,
}

/// Creates a store in `engine`, which must be empty, from revision `at` of the backups in `dir`, or from the newest revision. It
/// is another store, see [`identity`]; its records keep their revisions and uids.
///
/// # Errors
/// The target is not empty, no backup has the revision, a backup that is needed is damaged or has records that `content` cannot
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
