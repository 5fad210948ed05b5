//! Files and directories, durably.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;

use crate::log::LogError;

pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> LogError + use<> {
    LogError::io(format!("{what} {}", path.display()))
}

/// Options to open a file that nobody else may read; a symbolic link in its place is refused.
pub(crate) fn private_file() -> OpenOptions {
    let mut options = File::options();
    options.mode(0o600).custom_flags(i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0));
    options
}

/// Creates a directory that nobody else may enter, with those above it, if it is not there.
pub(crate) fn create_private_dir(dir: &Path) -> Result<(), LogError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("creating", dir))
}

/// Takes from others what they may do with a directory or a file.
pub(crate) fn make_private(path: &Path) -> Result<(), LogError> {
    let mode = fs::metadata(path).map_err(failed("reading", path))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o700))
        .map_err(failed("changing who may use", path))
}

/// Length and checksum of a file.
pub(crate) fn digest(path: &Path) -> Result<(u64, u32), LogError> {
    let read = private_file().read(true).open(path).and_then(|mut file| {
        let (mut len, mut crc, mut buffer) = (0, 0, vec![0; 1 << 20]);
        loop {
            let n_read = file.read(&mut buffer)?;
            if n_read == 0 {
                return Ok((len, crc));
            }
            len += n_read as u64;
            crc = crc32c::crc32c_append(crc, buffer.get(..n_read).unwrap_or_default());
        }
    });
    read.map_err(failed("reading", path))
}

/// Files below a directory by their path from it, in order. What is neither a file nor a directory is refused.
pub(crate) fn files_below(dir: &Path) -> Result<Vec<String>, LogError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("listing", dir))? {
        let entry = entry.map_err(failed("listing", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type().map_err(failed("reading", &entry.path()))? {
            kind if kind.is_dir() => {
                files.extend(files_below(&entry.path())?.into_iter().map(|file| format!("{name}/{file}")));
            }
            kind if kind.is_file() => files.push(name),
            _ => {
                return Err(LogError::Corrupt(format!(
                    "{} is neither a file nor a directory",
                    entry.path().display()
                )));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Makes a file's content durable.
pub(crate) fn sync_path(path: &Path) -> Result<(), LogError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(failed("syncing", path))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), LogError> {
    sync_path(dir)
}

/// Creates an empty file, durably.
pub(crate) fn write_marker(path: &Path) -> Result<(), LogError> {
    write_file(path, &[])
}

/// Creates a small file, durably.
pub(crate) fn write_file(path: &Path, content: &[u8]) -> Result<(), LogError> {
    let created = private_file().write(true).create(true).truncate(true).open(path);
    let written = created.and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    written.map_err(failed("creating", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Removes a file, if it is there.
pub(crate) fn remove_file(path: &Path) -> Result<(), LogError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a directory with everything in it, if it is there.
pub(crate) fn remove_dir(path: &Path) -> Result<(), LogError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Copies a directory with everything in it, durably.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> Result<(), LogError> {
    remove_dir(to)?;
    create_private_dir(to)?;
    for entry in fs::read_dir(from).map_err(failed("listing", from))? {
        let entry = entry.map_err(failed("listing", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().map_err(failed("reading", &source))? {
            kind if kind.is_dir() => copy_dir(&source, &target)?,
            kind if kind.is_file() => copy_file(&source, &target)?,
            _ => {
                return Err(LogError::Corrupt(format!(
                    "{} is neither a file nor a directory",
                    source.display()
                )));
            }
        }
    }
    sync_dir(to)
}

/// Copies a file, durably, in place of what stands there.
pub(crate) fn copy_file(from: &Path, to: &Path) -> Result<(), LogError> {
    let copied = private_file().read(true).open(from).and_then(|mut source| {
        let mut target = private_file().write(true).create(true).truncate(true).open(to)?;
        std::io::copy(&mut source, &mut target)?;
        target.sync_all()
    });
    copied.map_err(failed("copying", from))
}

/// Bytes of all files below; what vanishes meanwhile counts as nothing.
pub(crate) fn dir_bytes(dir: &Path) -> u64 {
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
