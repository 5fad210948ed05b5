//! Files and directories, durably.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::Path,
};

use crate::log::LogError;

fn failed(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> LogError {
    LogError::io(format!("{what} {}", path.display()))
}

/// Makes a file's content durable.
pub(super) fn sync_path(path: &Path) -> Result<(), LogError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(failed("syncing", path))
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), LogError> {
    sync_path(dir)
}

/// Creates an empty file, durably.
pub(super) fn write_marker(path: &Path) -> Result<(), LogError> {
    write_file(path, &[])
}

/// Creates a small file, durably.
pub(super) fn write_file(path: &Path, content: &[u8]) -> Result<(), LogError> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.map_err(failed("creating", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Removes a file, if it is there.
pub(super) fn remove_file(path: &Path) -> Result<(), LogError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a directory with everything in it, if it is there.
pub(super) fn remove_dir(path: &Path) -> Result<(), LogError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Copies a directory with everything in it, durably.
pub(super) fn copy_dir(from: &Path, to: &Path) -> Result<(), LogError> {
    remove_dir(to)?;
    fs::create_dir_all(to).map_err(failed("creating", to))?;
    for entry in fs::read_dir(from).map_err(failed("listing", from))? {
        let entry = entry.map_err(failed("listing", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_dir(&source, &target)?;
        } else {
            fs::copy(&source, &target).map_err(failed("copying", &source))?;
            sync_path(&target)?;
        }
    }
    sync_dir(to)
}

/// Bytes of all files below; what vanishes meanwhile counts as nothing.
pub(super) fn dir_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => dir_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}
