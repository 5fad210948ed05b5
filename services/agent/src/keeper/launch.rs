//! What a YARN container needs before its command runs: its directories, its resources, its credentials and its script.
//!
//! The files are read and written as the user of the container, by a thread that becomes this user and ends: what the user may not read is not
//! brought into the container by an agent that runs as root.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink},
    path::Path,
};

use rustix::{
    process::{Gid, Uid},
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};

use crate::{
    cgroup::enter::Credentials,
    yarn::{launch::Launch, localise::localise},
};

/// Others may go through to what is theirs, and see nothing else.
const THROUGH: u32 = 0o711;
/// Directories on the way to a container: that of the run, that of all runs, and the state directory.
const N_ABOVE: usize = 3;

/// Prepares all that the command of a container finds, for another user if there is one.
///
/// # Errors
/// What cannot be prepared, as a sentence without its full stop.
pub(super) fn prepare(launch: &Launch, credentials: Option<&Credentials>) -> Result<(), String> {
    let failed = |error: io::Error| format!("the directories of its container cannot be made: {error}");
    if credentials.is_some() {
        for dir in launch.root.ancestors().take(N_ABOVE) {
            fs::set_permissions(dir, Permissions::from_mode(THROUGH)).map_err(failed)?;
        }
    }
    for dir in [launch.work_dir(), launch.local_dir(), launch.log_dir()] {
        DirBuilder::new().mode(0o700).create(&dir).map_err(failed)?;
        if let Some(user) = credentials {
            chown(&dir, Some(user.uid), Some(user.gid)).map_err(failed)?;
        }
    }
    let fill = || {
        credentials
            .map_or(Ok(()), become_user)
            .map_err(|error| format!("it cannot become its user: {error}"))?;
        fill(launch)
    };
    let filled = std::thread::scope(|scope| scope.spawn(fill).join());
    filled.unwrap_or_else(|_| Err("the thread that prepares its container has panicked".to_owned()))
}

/// The calling thread is another user from now on; no other thread is.
fn become_user(Credentials { uid, gid, groups }: &Credentials) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups)?;
    set_thread_gid(Gid::from_raw(*gid))?;
    set_thread_uid(Uid::from_raw(*uid))?;
    Ok(())
}

fn fill(launch: &Launch) -> Result<(), String> {
    let work_dir = launch.work_dir();
    let mut left = launch.resource_bytes_max;
    for resource in &launch.resources {
        localise(resource, &work_dir, &mut left)?;
    }
    let failed = |error: io::Error| format!("the files of its container cannot be written: {error}");
    write(&launch.tokens_path(), &launch.tokens, 0o600).map_err(failed)?;
    write(&launch.script_path(), launch.script().as_bytes(), 0o700).map_err(failed)?;
    // What the command writes there is what the running unit writes: bounded, and shown by `godel unit logs`.
    for (name, output) in [("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")] {
        symlink(output, launch.log_dir().join(name)).map_err(failed)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(bytes)
}
