//! What a YARN container needs before its command runs: its directories, its resources, its credentials and its script.
//!
//! The files are read and written as the user of the container, by a thread that becomes this user and ends: what the user may not read is not
//! brought into the container by an agent that runs as root.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use godel_domain::run_end::RunEndReason;
use rustix::{
    process::{Gid, Uid},
    thread::{set_thread_gid, set_thread_groups, set_thread_uid},
};

use super::stops;
use crate::{
    cgroup::enter::Credentials,
    yarn::{
        launch::Launch,
        localise::{Budget, localise},
    },
};

/// Others may go through to what is theirs, and see nothing else.
const THROUGH: u32 = 0o711;
/// Directories on the way to a container: that of the run, that of all runs, and the state directory.
const N_ABOVE: usize = 3;
/// Between looks into the control pipe while resources are brought there.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a container is not prepared.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotPrepared {
    /// It was told to stop before.
    Stopped(RunEndReason),
    /// Something cannot be prepared, as a sentence without its full stop.
    Failed(String),
}

/// Prepares all that the command of a container finds, for another user if there is one. What comes through the control pipe meanwhile is heard.
///
/// # Errors
/// It is told to stop, or something cannot be prepared.
pub(super) fn prepare(
    launch: &Launch,
    credentials: Option<&Credentials>,
    control: &File,
) -> Result<(), NotPrepared> {
    let failed = |error: io::Error| {
        NotPrepared::Failed(format!("the directories of its container cannot be made: {error}"))
    };
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
    let is_stopped = AtomicBool::new(false);
    let fill = || {
        credentials
            .map_or(Ok(()), become_user)
            .map_err(|error| format!("it cannot become its user: {error}"))?;
        fill(launch, &is_stopped)
    };
    let mut told = None;
    let filled = std::thread::scope(|scope| {
        let filling = scope.spawn(fill);
        while !filling.is_finished() {
            if told.is_none() {
                told = heard(control);
                is_stopped.store(told.is_some(), Ordering::Relaxed);
            }
            std::thread::sleep(PAUSE);
        }
        filling.join()
    });
    if let Some(reason) = told {
        return Err(NotPrepared::Stopped(reason));
    }
    let filled =
        filled.unwrap_or_else(|_| Err("the thread that prepares its container has panicked".to_owned()));
    filled.map_err(NotPrepared::Failed)
}

/// Why it is to stop, if somebody has written so.
fn heard(mut control: &File) -> Option<RunEndReason> {
    let mut bytes = [0; 512];
    // The pipe does not block: there is nothing, or whole lines.
    let n = control.read(&mut bytes).ok()?;
    stops(bytes.get(..n)?).first().map(|(_, reason)| *reason)
}

/// The calling thread is another user from now on; no other thread is.
fn become_user(Credentials { uid, gid, groups }: &Credentials) -> io::Result<()> {
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups)?;
    set_thread_gid(Gid::from_raw(*gid))?;
    set_thread_uid(Uid::from_raw(*uid))?;
    Ok(())
}

fn fill(launch: &Launch, is_stopped: &AtomicBool) -> Result<(), String> {
    let work_dir = launch.work_dir();
    let mut budget = Budget { left: launch.resource_bytes_max, is_stopped };
    for resource in &launch.resources {
        localise(resource, &work_dir, &mut budget)?;
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

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, time::Instant};

    use super::*;
    use crate::yarn::launch::Resource;

    #[test]
    fn a_stop_is_heard_while_resources_are_fetched() {
        let dir = tempfile::tempdir().unwrap();
        // It accepts, and says nothing.
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let resource = Resource {
            link: "f".into(),
            source: "/f".into(),
            server: Some(server.local_addr().unwrap().to_string()),
            ..Resource::default()
        };
        let launch = Launch { root: dir.path().to_owned(), resources: vec![resource], ..Launch::default() };
        let control = super::super::control(dir.path()).unwrap();
        (&control).write_all(b"stop 1000 squeezed\n").unwrap();
        let began = Instant::now();
        let prepared = prepare(&launch, None, &control);
        assert_eq!(prepared, Err(NotPrepared::Stopped(RunEndReason::Squeezed)));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(!launch.script_path().exists());
    }
}
