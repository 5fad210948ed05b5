//! What agents of this machine run, as `/proc` shows it: nothing here asks godel.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;

/// Ending what was told to end at once takes no longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process, and the moment it began: numbers are used again.
pub type Process = (u32, u64);

/// Processes that have not ended, with what `of` finds in the file `file` of each.
fn processes(file: &str, mut is_one: impl FnMut(&[u8]) -> bool) -> BTreeSet<Process> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let content = fs::read(entry.path().join(file)).unwrap_or_default();
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, stat)) = stat.rsplit_once(") ") else { continue };
        let began = stat.split(' ').nth(19).and_then(|word| word.parse().ok());
        if let Some(began) = began.filter(|_| !stat.starts_with(['Z', 'X']) && is_one(&content)) {
            found.insert((pid, began));
        }
    }
    found
}

/// Processes with `name=value` in their environment.
pub fn with_env(name: &str, value: &str) -> BTreeSet<Process> {
    let wanted = format!("{name}={value}");
    processes("environ", |content| content.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes()))
}

/// The keepers of runs below a state directory.
pub fn keepers(state_dir: &Path) -> BTreeSet<Process> {
    let runs = state_dir.join("runs").display().to_string();
    processes("cmdline", |content| {
        let words: Vec<&[u8]> = content.split(|byte| *byte == 0).collect();
        words.contains(&&b"keep"[..]) && words.iter().any(|word| word.starts_with(runs.as_bytes()))
    })
}

/// Ends everything that agents with state directories in `dir` have left running.
pub(crate) fn end(dir: &Path) {
    let begun = Instant::now();
    let state_dirs = || {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.join("runs").is_dir())
    };
    while state_dirs().any(|state_dir| !keepers(&state_dir).is_empty()) && begun.elapsed() < PATIENCE {
        for run in
            state_dirs().flat_map(|state_dir| fs::read_dir(state_dir.join("runs")).into_iter().flatten())
        {
            let Ok(run) = run else { continue };
            let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
            let control = OpenOptions::new().write(true).custom_flags(flags).open(run.path().join("control"));
            // One that has just ended does not hear it.
            let _ended = control.and_then(|mut control| control.write_all(b"stop 0 told\n"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
