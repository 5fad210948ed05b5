//! Starting a process inside a control group, and as another user.
//!
//! A process that is moved after it has begun may have started others before, which then are outside for good: a script that
//! puts something into the background and ends is fast enough. So the child moves itself, between fork and exec, which
//! the standard library offers as an unsafe function only. It becomes another user in the same place, because it has to be in its
//! group first: a user who is not root may not move itself. The use is sound because all that runs there are system calls,
//! one `write` for each file, one for each mount and one for each part of the credentials: nothing is allocated, no lock is taken, and the files
//! were opened before the fork.
#![allow(unsafe_code, reason = "the child has to move itself between fork and exec; see above")]

use std::{ffi::CString, fs::File, io, io::Write as _, os::unix::process::CommandExt as _, process::Command};

use rustix::{
    fs::Mode,
    mount::{MountPropagationFlags, mount_bind, mount_change},
    process::{Gid, Uid, umask},
    thread::{UnshareFlags, set_thread_gid, set_thread_groups, set_thread_uid, unshare_unsafe},
};

/// The kernel's number for the process that writes.
const ITSELF: &[u8] = b"0";

/// Another user, with its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// Has a command begin in a group, of which `files` are the lists of processes, as another user if there is one, seeing the first of each of `mounts`
/// in the place of the second one. A failure to move
/// is not one to start: who starts the command looks for it in the group. A failure to become the other user is, or to see a mount.
pub(crate) fn begin_as(
    command: &mut Command,
    files: Vec<File>,
    mounts: Vec<(CString, CString)>,
    credentials: Option<Credentials>,
    mask: u32,
) {
    let credentials = credentials.map(|Credentials { uid, gid, groups }| {
        let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
        (Uid::from_raw(uid), Gid::from_raw(gid), groups)
    });
    let enter = move || -> io::Result<()> {
        for mut file in &files {
            let _outside = file.write(ITSELF);
        }
        if !mounts.is_empty() {
            // Nobody else sees its mounts, and it sees those that others make later.
            // SAFETY: the child has one thread, and no directory of its own but the one that it is started in.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
            mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
        }
        for (directory, path) in &mounts {
            mount_bind(directory.as_c_str(), path.as_c_str())?;
        }
        umask(Mode::from_raw_mode(mask));
        // The child has one thread: what holds for the thread holds for the process.
        if let Some((uid, gid, groups)) = &credentials {
            set_thread_groups(groups)?;
            set_thread_gid(*gid)?;
            set_thread_uid(*uid)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only, as the module says.
    unsafe { command.pre_exec(enter) };
}
