//! How long an agent has been without contact, for keepers whose run must not go on without it.
//!
//! The file holds the boot of the machine and the time of the last contact by the clock that goes on while the machine is
//! suspended (`CLOCK_BOOTTIME`): nobody can set it.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    time::Instant,
};

use godel_kit::clock::boot_ms;

use super::files::{Run, may_pass};
use crate::procfs::boot_id;

/// Notes in `path` that there was contact `age_ms` ago. On a disk without room it is written over what is there: what must not go on
/// without contact is not to end for a full disk.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn renew(path: &Path, age_ms: u64) -> io::Result<()> {
    let fresh = path.with_extension("new");
    // Always as long: it can be written over.
    let text = format!("{} {:020}\n", boot_id(), boot_ms().saturating_sub(age_ms));
    match fs::write(&fresh, &text) {
        Err(error) if may_pass(&error) => {
            let there = OpenOptions::new().write(true).open(path)?;
            if there.metadata()?.len() < u64::try_from(text.len()).unwrap_or(u64::MAX) {
                return Err(error);
            }
            there.write_all_at(text.as_bytes(), 0)
        }
        written => written.and_then(|()| fs::rename(fresh, path)),
    }
}

/// Without contact, a run whose agent lives is ended by the agent, which knows of it a little earlier.
const SLACK_MS: u64 = 250;

/// Returns after how many milliseconds a run that began at this moment has been without contact for too long; `None`: never.
pub(super) fn alone_for_ms(run: &Run, begun: Instant) -> Option<u64> {
    if run.stop_after_ms == 0 {
        return None;
    }
    let since_start = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let age = contact_age_ms(&run.contact).unwrap_or_else(since_start);
    Some((u64::from(run.stop_after_ms) + SLACK_MS).saturating_sub(age))
}

/// Returns for how long there has been no contact; `None`: there was none since the machine was started, or nobody knows.
pub(crate) fn contact_age_ms(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let (boot, at_ms) = text.trim_end().split_once(' ')?;
    let at_ms: u64 = at_ms.parse().ok()?;
    (boot == boot_id()).then(|| boot_ms().saturating_sub(at_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_is_as_old_as_it_was_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("contact");
        assert_eq!(contact_age_ms(&path), None);
        renew(&path, 5_000).unwrap();
        assert!((5_000..65_000).contains(&contact_age_ms(&path).unwrap()));
        for wrong in ["", "another-boot 5\n", "7\n", "a b c\n"] {
            fs::write(&path, wrong).unwrap();
            assert_eq!(contact_age_ms(&path), None, "{wrong}");
        }
    }
}
