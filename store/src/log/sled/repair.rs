//! Puts a store that was repaired in the place of the damaged one, which is kept.
//!
//! Each step can be cut off anywhere: the next who takes the lock goes on with it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::files::{create_private_dir, failed, remove_dir, remove_file, sync_dir, write_file};
use crate::log::LogError;

/// Where a repaired store is made.
pub(crate) fn workshop(dir: &Path) -> PathBuf {
    dir.join("repaired")
}

/// Clears what an earlier repair left that was not finished.
pub(crate) fn clear(dir: &Path) -> Result<(), LogError> {
    remove_dir(&workshop(dir))
}

/// Replaces the store in `dir` by the one in [`workshop`], which is whole and closed. Returns where the damaged one
/// is kept.
pub(crate) fn replace(dir: &Path) -> Result<PathBuf, LogError> {
    let mut names = (1u64..).map(|n| format!("damaged-{n}"));
    let name = names.find(|name| !dir.join(name).exists()).unwrap_or_default();
    write_file(&dir.join("repaired.ready"), name.as_bytes())?;
    finish(dir)?;
    Ok(dir.join(name))
}

/// Goes on with a replacement that was cut off, if there is one.
pub(super) fn finish(dir: &Path) -> Result<(), LogError> {
    let (ready, moving) = (dir.join("repaired.ready"), dir.join("repaired.moving"));
    if ready.exists() {
        let name = fs::read_to_string(&ready).map_err(failed("reading", &ready))?;
        if name.is_empty() || name.contains('/') {
            return Err(LogError::Corrupt(format!("{} is not what was written", ready.display())));
        }
        let kept = dir.join(name);
        create_private_dir(&kept)?;
        move_all(dir, &kept, is_of_store)?;
        fs::rename(&ready, &moving).map_err(failed("renaming", &ready))?;
        sync_dir(dir)?;
    }
    if moving.exists() {
        let made = workshop(dir);
        if made.is_dir() {
            move_all(&made, dir, is_of_store)?;
        }
        remove_dir(&made)?;
        remove_file(&moving)?;
        sync_dir(dir)?;
    }
    Ok(())
}

fn is_of_store(name: &str) -> bool {
    name.starts_with("gen-") || ["watermark", "clean", "aside", "aside.ready"].contains(&name)
}

fn move_all(from: &Path, to: &Path, is_moved: fn(&str) -> bool) -> Result<(), LogError> {
    for entry in fs::read_dir(from).map_err(failed("listing", from))? {
        let entry = entry.map_err(failed("listing", from))?;
        if entry.file_name().to_str().is_some_and(is_moved) {
            fs::rename(entry.path(), to.join(entry.file_name())).map_err(failed("moving", &entry.path()))?;
        }
    }
    sync_dir(to)?;
    sync_dir(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_replacement_that_was_cut_off_is_finished() {
        // Cut off before the first move, after some of them, and between the two halves.
        for n_done in 0..4 {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path();
            let made = workshop(dir);
            create_private_dir(&made).unwrap();
            for (path, text) in [
                (dir.join("watermark"), "old"),
                (dir.join("gen-00000001.ready"), "old"),
                (dir.join("lock"), ""),
                (made.join("watermark"), "new"),
                (made.join("gen-00000001.ready"), "new"),
                (made.join("lock"), ""),
            ] {
                fs::write(path, text).unwrap();
            }
            fs::write(dir.join("repaired.ready"), "damaged-1").unwrap();
            create_private_dir(&dir.join("damaged-1")).unwrap();
            if n_done > 0 {
                fs::rename(dir.join("watermark"), dir.join("damaged-1/watermark")).unwrap();
            }
            if n_done > 1 {
                fs::rename(dir.join("gen-00000001.ready"), dir.join("damaged-1/gen-00000001.ready")).unwrap();
                fs::rename(dir.join("repaired.ready"), dir.join("repaired.moving")).unwrap();
            }
            if n_done > 2 {
                fs::rename(made.join("watermark"), dir.join("watermark")).unwrap();
            }
            finish(dir).unwrap();
            finish(dir).unwrap();
            assert_eq!(names(dir), ["damaged-1", "gen-00000001.ready", "lock", "watermark"], "{n_done}");
            assert_eq!(names(&dir.join("damaged-1")), ["gen-00000001.ready", "watermark"], "{n_done}");
            assert_eq!(fs::read_to_string(dir.join("watermark")).unwrap(), "new");
            assert_eq!(fs::read_to_string(dir.join("damaged-1/watermark")).unwrap(), "old");
        }
    }
}
