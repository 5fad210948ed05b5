//! As whom a run starts, where its node has a table of local users.

use std::{ffi::OsStr, fs, os::unix::fs::MetadataExt as _, path::Path};

use godel_core_agent::{LocalUser, LocalUserRefusal, LocalUserRow, choose_user};
use godel_domain::run_end::RunEndReason;

use super::{
    command::{CannotStart, User, find_user},
    files::Run,
};

/// Name of the program under which services and agents run.
const PROGRAM: &str = "godel";
/// Where a person keeps the tokens of clusters, below the home directory.
const CONTEXTS: &str = ".config/godel/contexts.yaml";

/// Puts the number of the user into a run as which it may start, and for a container that of the group.
///
/// # Errors
/// It may not run as the user that it names.
pub(super) fn choose(run: Run) -> Result<Run, CannotStart> {
    if run.users.is_empty() {
        return Ok(run);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let rows: Vec<LocalUserRow> = run
        .users
        .iter()
        .map(|row| LocalUserRow { user: row.user.clone(), administers: row.administers })
        .collect();
    let find = |wanted: &str| {
        let User { name, uid, gid, .. } = find_user(wanted, &users)?;
        Some(LocalUser { name, uid, gid })
    };
    let administers = |user: &LocalUser| {
        let home = find_user(&user.uid.to_string(), &users).map(|user| user.home);
        home.is_some_and(|home| Path::new(&home).join(CONTEXTS).exists()) || runs_services(user.uid)
    };
    let chosen = choose_user(run.user.as_deref(), &rows, &find, &administers);
    let LocalUser { uid, gid, .. } = chosen.map_err(|refusal| {
        let reason = match refusal {
            LocalUserRefusal::NotThere { .. } => RunEndReason::NoUser,
            _ => RunEndReason::UserNotPermitted,
        };
        CannotStart::new(reason, refusal.to_string())
    })?;
    // Users in an image have other names.
    let user = if run.container.is_some() { format!("{uid}:{gid}") } else { uid.to_string() };
    Ok(Run { user: Some(user), ..run })
}

/// Whether a service or an agent of a cluster runs under this number.
fn runs_services(uid: u32) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        let is_program = || {
            let Ok(program) = fs::read_link(entry.path().join("exe")) else { return false };
            let name = program.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
            // So the kernel names a program whose file was replaced since.
            name.trim_end_matches(" (deleted)") == PROGRAM
        };
        entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == uid) && is_program()
    })
}
