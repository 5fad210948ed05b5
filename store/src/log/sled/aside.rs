//! Generations as directories: which there are, and copies of them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    files::{copy_dir, dir_bytes, remove_dir, remove_file, sync_dir, write_file, write_marker},
    free_bytes, generation, lock,
};
use crate::{log::LogError, store::OpenError};

/// Generations to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// With the history.
    All,
    /// Without those that are sealed: enough for the state.
    Written,
}

/// Whether a store was ever made in `dir`.
pub(crate) fn is_store(dir: &Path) -> bool {
    let has_generations = |dir: &Path| generation_numbers(dir).is_ok_and(|numbers| !numbers.is_empty());
    has_generations(dir) || (dir.join("aside.ready").exists() && has_generations(&dir.join("aside")))
}

/// A copy of the generations in `dir` in the new directory `target`, from which they can be opened without
/// touching `dir`. Takes the lock of `dir` meanwhile.
pub(crate) fn copy_for_reading(dir: &Path, target: &Path, which: Which) -> Result<(), OpenError> {
    let _lock = lock(dir)?;
    let mut numbers = generation_numbers(dir)?;
    if which == Which::Written {
        numbers.retain(|number| !is_sealed(dir, *number));
    }
    copy_generations(dir, target, &numbers)?;
    let aside = dir.join("aside");
    if dir.join("aside.ready").exists() {
        copy_generations(&aside, target, &generation_numbers(&aside)?)?;
    }
    write_marker(&target.join("clean"))?;
    Ok(())
}

/// Makes sure that what sled may destroy by opening it is there a second time. Nobody writes to sealed
/// generations, and the state does not rest on them.
pub(super) fn set_aside(dir: &Path) -> Result<(), OpenError> {
    let (aside, ready) = (dir.join("aside"), dir.join("aside.ready"));
    if ready.exists() {
        tracing::warn!(dir = %dir.display(), "the last opening did not succeed; starting from the copy made before it");
        copy_generations(&aside, dir, &generation_numbers(&aside)?)?;
        return Ok(());
    }
    remove_dir(&aside)?;
    let mut written = generation_numbers(dir)?;
    written.retain(|number| !is_sealed(dir, *number));
    if dir.join("clean").exists() || written.is_empty() {
        return Ok(());
    }
    let needed = written.iter().map(|number| dir_bytes(&generation_path(dir, *number))).sum();
    let free = free_bytes(dir)?;
    if needed > free {
        return Err(OpenError::NoSpace { needed, free });
    }
    tracing::info!(dir = %dir.display(), bytes = needed, "unclean stop: copying what was being written before opening it");
    copy_generations(dir, &aside, &written)?;
    write_marker(&ready)?;
    Ok(())
}

/// Copies generations, durably.
fn copy_generations(from: &Path, to: &Path, numbers: &[u64]) -> Result<(), LogError> {
    fs::create_dir_all(to).map_err(LogError::io(format!("creating {}", to.display())))?;
    for number in numbers {
        let (source, target) = (generation_path(from, *number), generation_path(to, *number));
        copy_dir(&source, &target)?;
        if let Ok(seal) = fs::read(seal_path(&source)) {
            write_file(&seal_path(&target), &seal)?;
        }
        write_marker(&ready_path(&target))?;
    }
    sync_dir(to)
}

fn is_sealed(dir: &Path, number: u64) -> bool {
    generation::read_seal(&generation_path(dir, number)).is_some()
}

/// Numbers of the generations that are durably there, ascending.
pub(super) fn generation_numbers(dir: &Path) -> Result<Vec<u64>, LogError> {
    let entries = fs::read_dir(dir).map_err(LogError::io(format!("listing {}", dir.display())))?;
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(LogError::io(format!("listing {}", dir.display())))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("gen-")?.strip_suffix(".ready"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes what a crash left of generations that were being made or removed.
pub(super) fn remove_unready(dir: &Path) -> Result<(), LogError> {
    let ready = generation_numbers(dir)?;
    let entries = fs::read_dir(dir).map_err(LogError::io(format!("listing {}", dir.display())))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("gen-")) else { continue };
        let number = name.strip_suffix(".sealed").unwrap_or(name).parse::<u64>().ok();
        if number.is_some_and(|number| !ready.contains(&number)) {
            if entry.path().is_dir() {
                remove_dir(&entry.path())?;
            } else {
                remove_file(&entry.path())?;
            }
        }
    }
    Ok(())
}

pub(super) fn generation_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("gen-{number:08}"))
}

/// The marker beside a generation's directory.
pub(super) fn ready_path(generation: &Path) -> PathBuf {
    generation.with_extension("ready")
}

/// The seal beside a generation's directory.
pub(super) fn seal_path(generation: &Path) -> PathBuf {
    generation.with_extension("sealed")
}
