//! A place for the socket of a state that keeps nothing.

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use godel_client::exit::{Code, Failure};

/// A directory of this process's user alone, which is removed at the end.
pub(super) struct PrivateDir(PathBuf);

impl PrivateDir {
    /// # Errors
    /// What the system refuses.
    pub(super) fn make() -> Result<Self, Failure> {
        let runtime = godel_kit::config::env("XDG_RUNTIME_DIR").map(PathBuf::from);
        let within = runtime.filter(|dir| dir.is_dir()).unwrap_or_else(std::env::temp_dir);
        let dir = within.join(format!("godel-{}", uuid::Uuid::new_v4().simple()));
        let made = fs::DirBuilder::new().mode(0o700).create(&dir);
        made.map(|()| Self(dir.clone())).map_err(|error| {
            Failure::new(
                Code::Failed,
                format!("a private directory cannot be made at {}: {error}", dir.display()),
            )
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // The system empties what is left in such places.
        let _ = fs::remove_dir_all(&self.0);
    }
}
