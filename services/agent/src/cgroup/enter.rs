//! Starting a process inside a control group.
//!
//! A process that is moved after it has begun may have started others before, which then are outside for good: a script that
//! puts something into the background and ends is fast enough. So the child moves itself, between fork and exec, which
//! the standard library offers as an unsafe function only. The use is sound because all that runs there is one `write` system
//! call for each file: nothing is allocated, no lock is taken, and the files were opened before the fork.
#![allow(unsafe_code, reason = "the child has to move itself between fork and exec; see above")]

use std::{fs::File, io::Write as _, os::unix::process::CommandExt as _, process::Command};

/// The kernel's number for the process that writes.
const ITSELF: &[u8] = b"0";

/// Has a command begin in a group, of which `files` are the lists of processes. A failure to move is not one to start: who
/// starts the command looks for it in the group.
pub(super) fn begin_in(command: &mut Command, files: Vec<File>) {
    let enter = move || {
        for mut file in &files {
            let _outside = file.write(ITSELF);
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only, as the module says.
    unsafe { command.pre_exec(enter) };
}
