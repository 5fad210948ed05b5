//! Stores right above or below a directory that holds none: whoever names the wrong one of both must not get an empty store.

use std::path::Path;

use crate::{
    log::sled::is_store,
    store::{Engine, OpenError},
};

/// Refuses to make a store in a directory right below or above another one: whoever names the directory means that one, and would get
/// an empty one.
///
/// # Errors
/// There is such a store.
pub(crate) fn refuse(engine: &Engine) -> Result<(), OpenError> {
    let dir = match engine {
        Engine::Sled(config) => &config.dir,
        Engine::Memory(_) | Engine::Etcd(_) => return Ok(()),
    };
    if is_store(dir) {
        return Ok(());
    }
    // The parent of a name of one part is the working directory.
    let above =
        dir.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let below = dir.join("state");
    match [above, Some(&below)].into_iter().flatten().find(|near| is_store(near)) {
        Some(found) => Err(OpenError::Elsewhere { dir: dir.clone(), found: found.to_owned() }),
        None => Ok(()),
    }
}

/// How the store in `found` is started by somebody who named `dir`.
pub(crate) fn start_of(found: &Path, dir: &Path) -> String {
    let serve = format!("`godel serve state --data-dir {}`", found.display());
    if found.starts_with(dir) {
        return format!("start it with {serve} or `godel up --data-dir {}`", dir.display());
    }
    format!("start it with {serve}, or move its files to {} for `godel up`", dir.display())
}
