//! The state of a store's directory before it is opened, and the copies of generations that protect it from a failed
//! opening.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Lock,
    files::{
        copy_dir, copy_file, create_private_dir, digest, dir_bytes, failed, files_below, make_private,
        remove_dir, remove_file, sync_dir, write_file, write_marker,
    },
    free_bytes, generation,
    watermark::{self, Found},
};
use crate::{log::LogError, loss::Loss, store::OpenError};

/// Which generations to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Every generation, with the history.
    All,
    /// The generations that are not sealed: enough for the state.
    Written,
}

/// Whether a store was ever made in `dir`.
pub(crate) fn is_store(dir: &Path) -> bool {
    Survey::of(dir).is_ok_and(|survey| !survey.is_new())
}

/// The state of a store's directory.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) watermark: Found,
    /// Content of the marker of a clean stop; `None`: the last process did not stop cleanly.
    pub(super) clean: Option<Vec<u8>>,
    /// Numbers of the generations with a marker, ascending.
    marked: Vec<u64>,
    /// Numbers of the directories of generations without one, ascending.
    unmarked: Vec<u64>,
    /// The copy made before the last opening, which did not succeed.
    aside: Option<Aside>,
}

#[derive(Debug)]
struct Aside {
    numbers: Vec<u64>,
    watermark: Found,
}

/// Where opening starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// From the store's own files.
    Own,
    /// From the copy: the last opening did not succeed.
    Copy,
    /// From the store's own files, although there is a copy: it is older than they are.
    NewerThanCopy,
}

impl Survey {
    pub(super) fn of(dir: &Path) -> Result<Self, LogError> {
        let (marked, unmarked) = numbers(dir)?;
        let clean = match fs::read(dir.join("clean")) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("reading", &dir.join("clean"))(error)),
        };
        let path = dir.join("aside");
        let aside = if dir.join("aside.ready").exists() {
            // Generations that were put back already have gone from the copy.
            let numbers = numbers_if_there(&path)?.0;
            let numbers =
                numbers.into_iter().filter(|number| generation_path(&path, *number).is_dir()).collect();
            Some(Aside { numbers, watermark: Found::read(&path)? })
        } else {
            None
        };
        Ok(Self { watermark: Found::read(dir)?, clean, marked, unmarked, aside })
    }

    /// Whether nothing was ever committed here: the directory is empty, or its creation was never finished.
    pub(super) fn is_new(&self) -> bool {
        match self.watermark {
            Found::Whole(watermark) | Found::Half(watermark) => watermark.newest == 0,
            Found::Missing => self.marked.is_empty() && self.unmarked.is_empty() && self.aside.is_none(),
            Found::Rotten => false,
        }
    }

    /// Generations that were durably created, ascending.
    pub(super) fn generations(&self) -> Vec<u64> {
        let aside = self.aside.iter().flat_map(|aside| &aside.numbers);
        let mut numbers: Vec<u64> = self.marked.iter().chain(aside).copied().chain(self.adopted()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Generations whose marker has gone, although nothing proves that they were being made or removed.
    pub(super) fn adopted(&self) -> Vec<u64> {
        let is_needed = |number: &&u64| match self.watermark.watermark() {
            Some(watermark) => (watermark.oldest..=watermark.newest).contains(*number),
            // One before all others is history at most, and may have been on its way out.
            None => self.marked.first().is_none_or(|first| first < *number),
        };
        self.unmarked.iter().filter(is_needed).copied().collect()
    }

    /// Directories of generations in which nothing can have been committed, or which had been dropped.
    pub(super) fn leftovers(&self) -> Vec<u64> {
        let Some(watermark) = self.watermark.watermark() else { return Vec::new() };
        let kept = watermark.oldest..=watermark.newest;
        self.unmarked.iter().filter(|number| !kept.contains(number)).copied().collect()
    }

    fn source(&self) -> Result<Source, String> {
        let Some(aside) = &self.aside else { return Ok(Source::Own) };
        match (self.watermark.watermark(), aside.watermark.watermark()) {
            (Some(own), Some(copy)) if own.store == copy.store => {
                Ok(if own.revision > copy.revision { Source::NewerThanCopy } else { Source::Copy })
            }
            (Some(_), Some(_)) => Err("the copy in `aside` belongs to another store".to_owned()),
            // Made by an older version, which knows no watermark.
            (None, None) if self.watermark == Found::Missing && aside.watermark == Found::Missing => {
                Ok(Source::Copy)
            }
            _ => Err("there is a copy of the store in `aside` from before a failed opening, and one of the \
                      two watermarks cannot be read: it is not known which is newer"
                .to_owned()),
        }
    }
}

/// What opening needs to know of what was there.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Generations to open, ascending.
    pub(super) numbers: Vec<u64>,
    /// There is a copy of all that sled may change.
    pub(super) is_copied: bool,
}

/// Copies the generations that sled may damage by opening them, unless the files are bit for bit those of the last clean
/// stop. Sealed generations are not copied: nothing writes to them, and the state does not depend on them.
pub(super) fn prepare(dir: &Path, survey: &Survey) -> Result<Prepared, OpenError> {
    let (aside, ready) = (dir.join("aside"), dir.join("aside.ready"));
    let numbers = survey.generations();
    match survey.source().map_err(|what| OpenError::Damaged { what, loss: Loss::default() })? {
        Source::Copy => {
            tracing::warn!(
                dir = %dir.display(),
                "the last opening failed; starting from the copy made before it"
            );
            copy_generations(&aside, dir, survey.aside.as_ref().map_or(&[][..], |aside| &aside.numbers))?;
            return Ok(Prepared { numbers, is_copied: true });
        }
        Source::NewerThanCopy => {
            tracing::warn!(
                dir = %dir.display(),
                "commits were made after the copy in `aside`; it is not used"
            );
            remove_file(&ready)?;
        }
        Source::Own => {}
    }
    remove_dir(&aside)?;
    let written: Vec<u64> = numbers.iter().filter(|number| !is_sealed(dir, **number)).copied().collect();
    let is_as_left = survey.clean.as_ref().is_some_and(|clean| is_as_left(dir, &written, clean));
    if is_as_left || written.is_empty() {
        return Ok(Prepared { numbers, is_copied: false });
    }
    let needed = written.iter().map(|number| dir_bytes(&generation_path(dir, *number))).sum();
    let free = free_bytes(dir)?;
    if needed > free {
        return Err(OpenError::NoSpace { needed, free });
    }
    tracing::info!(
        dir = %dir.display(),
        bytes = needed,
        "copying the last generation before opening it, because the last process did not stop cleanly"
    );
    copy_generations(dir, &aside, &written)?;
    if survey.watermark != Found::Missing {
        copy_file(&watermark::path(dir), &watermark::path(&aside))?;
    }
    write_marker(&ready)?;
    Ok(Prepared { numbers, is_copied: true })
}

/// Restores what [`prepare`] copied. sled must have closed the files.
pub(super) fn put_back(dir: &Path) -> Result<(), LogError> {
    let (aside, ready) = (dir.join("aside"), dir.join("aside.ready"));
    for number in numbers_if_there(&aside)?.0 {
        let (copy, own) = (generation_path(&aside, number), generation_path(dir, number));
        // Without the copy it was put back before.
        if copy.is_dir() {
            remove_dir(&own)?;
            fs::rename(&copy, &own).map_err(failed("putting back", &own))?;
        }
    }
    sync_dir(dir)?;
    remove_file(&ready)?;
    sync_dir(dir)?;
    remove_dir(&aside)
}

/// Defects of the source that a copy for reading does not show.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// Generations that have lost their marker; the next opening gives them one again.
    pub(crate) unmarked: Vec<u64>,
    /// What keeps the store from opening, whatever is in its files.
    pub(crate) problem: Option<String>,
    /// The watermark, in words, if something is wrong with it.
    pub(crate) watermark: Option<&'static str>,
}

/// Copies the generations of `dir` to the empty directory `target`, where they can be opened without changing `dir`.
pub(crate) fn copy_for_reading(
    dir: &Path,
    target: &Path,
    which: Which,
    _: &Lock,
) -> Result<Copied, OpenError> {
    let survey = Survey::of(dir)?;
    let mut numbers = survey.generations();
    if which == Which::Written {
        numbers.retain(|number| !is_sealed(dir, *number));
    }
    make_private(target)?;
    copy_generations(dir, target, &numbers)?;
    // Where nothing says which is newer, the own files are what is looked at.
    let source = survey.source();
    if source == Ok(Source::Copy)
        && let Some(aside) = &survey.aside
    {
        copy_generations(&dir.join("aside"), target, &aside.numbers)?;
    }
    let watermark = match survey.watermark {
        Found::Whole(_) => None,
        Found::Half(_) => Some("one of the two slots of the watermark cannot be read"),
        Found::Missing => Some("there is no watermark: it is not known whether the log went further"),
        Found::Rotten => Some("the watermark cannot be read: it is not known whether the log went further"),
    };
    if survey.watermark != Found::Missing {
        copy_file(&watermark::path(dir), &watermark::path(target))?;
    }
    Ok(Copied { unmarked: survey.adopted(), problem: source.err(), watermark })
}

/// Copies generations, durably.
fn copy_generations(from: &Path, to: &Path, numbers: &[u64]) -> Result<(), LogError> {
    create_private_dir(to)?;
    for number in numbers {
        let (source, target) = (generation_path(from, *number), generation_path(to, *number));
        if source.is_dir() {
            copy_dir(&source, &target)?;
        }
        if let Ok(seal) = fs::read(seal_path(&source)) {
            write_file(&seal_path(&target), &seal)?;
        }
        write_marker(&ready_path(&target))?;
    }
    sync_dir(to)
}

/// Files as an orderly end left them.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Clean {
    #[prost(message, repeated, tag = "1")]
    files: Vec<CleanFile>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct CleanFile {
    /// From the directory of the store.
    #[prost(string, tag = "1")]
    path: String,
    #[prost(uint64, tag = "2")]
    len: u64,
    #[prost(uint32, tag = "3")]
    crc: u32,
}

/// Writes the marker of a clean stop durably, with the fingerprints of the files of these generations.
pub(super) fn write_clean(dir: &Path, written: &[u64]) -> Result<(), LogError> {
    let clean = Clean { files: fingerprint(dir, written)? };
    write_file(&dir.join("clean"), &generation::meta(&clean))
}

/// Whether the files of the generations are to the bit what they were at an orderly end, which left `clean`. A marker
/// without content is of an older version, which did not look.
fn is_as_left(dir: &Path, written: &[u64], clean: &[u8]) -> bool {
    let Some(clean) = generation::from_meta::<Clean>(clean) else { return false };
    match fingerprint(dir, written) {
        Ok(files) if files == clean.files => true,
        Ok(_) => {
            tracing::warn!(dir = %dir.display(), "files of the store have changed since its clean stop");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "files of the store cannot be compared with their state at the stop");
            false
        }
    }
}

fn fingerprint(dir: &Path, numbers: &[u64]) -> Result<Vec<CleanFile>, LogError> {
    let mut files = Vec::new();
    for number in numbers {
        let path = generation_path(dir, *number);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for file in files_below(&path)? {
            let (len, crc) = digest(&path.join(&file))?;
            files.push(CleanFile { path: format!("{name}/{file}"), len, crc });
        }
    }
    Ok(files)
}

fn is_sealed(dir: &Path, number: u64) -> bool {
    generation::read_seal(&generation_path(dir, number)).is_some()
}

fn numbers_if_there(dir: &Path) -> Result<(Vec<u64>, Vec<u64>), LogError> {
    if dir.is_dir() { numbers(dir) } else { Ok((Vec::new(), Vec::new())) }
}

/// Numbers of the generations with a marker, and of the directories without one, each ascending.
fn numbers(dir: &Path) -> Result<(Vec<u64>, Vec<u64>), LogError> {
    let entries = fs::read_dir(dir).map_err(failed("listing", dir))?;
    let (mut marked, mut dirs) = (Vec::new(), Vec::new());
    for entry in entries {
        let entry = entry.map_err(failed("listing", dir))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("gen-")) else { continue };
        match name.strip_suffix(".ready") {
            Some(number) => marked.extend(number.parse::<u64>().ok()),
            None if entry.path().is_dir() => dirs.extend(name.parse::<u64>().ok()),
            None => {}
        }
    }
    marked.sort_unstable();
    dirs.sort_unstable();
    dirs.retain(|number| !marked.contains(number));
    Ok((marked, dirs))
}

/// Removes what a crash left of generations that were being made or removed.
pub(super) fn remove_leftovers(dir: &Path, numbers: &[u64]) -> Result<(), LogError> {
    for number in numbers {
        let path = generation_path(dir, *number);
        remove_dir(&path)?;
        remove_file(&seal_path(&path))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        log::{
            Log as _,
            sled::{SledLog, watermark::Watermark},
        },
        store::SledConfig,
    };
    use godel_crash::CrashPoints;

    #[test]
    fn files_are_copied_unless_they_are_what_an_orderly_end_left() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("store");
        Box::new(SledLog::open(&SledConfig::new(&dir), CrashPoints::default()).unwrap()).close().unwrap();
        let is_copied = || {
            let prepared = prepare(&dir, &Survey::of(&dir).unwrap()).unwrap();
            remove_file(&dir.join("aside.ready")).unwrap();
            remove_dir(&dir.join("aside")).unwrap();
            prepared.is_copied
        };
        assert!(!is_copied());
        let (db, clean) = (dir.join("gen-00000001/db"), dir.join("clean"));
        let good = fs::read(&db).unwrap();
        let mut changed = good.clone();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        fs::write(&db, changed).unwrap();
        assert!(is_copied(), "a bit");
        fs::write(&db, good).unwrap();
        assert!(!is_copied());
        fs::write(dir.join("gen-00000001/snap.0000000000000001"), "").unwrap();
        assert!(is_copied(), "a file");
        fs::remove_file(dir.join("gen-00000001/snap.0000000000000001")).unwrap();
        fs::write(&clean, "").unwrap();
        assert!(is_copied(), "an older version looked at nothing");
        fs::remove_file(&clean).unwrap();
        assert!(is_copied(), "it was killed");
    }

    fn at(revision: u64) -> Found {
        Found::Whole(Watermark { store: 1, oldest: 2, newest: 4, revision, ..Watermark::default() })
    }

    fn survey(watermark: Found, aside: Option<Found>) -> Survey {
        let aside = aside.map(|watermark| Aside { numbers: vec![4], watermark });
        Survey { watermark, clean: None, marked: vec![3], unmarked: vec![1, 2, 4, 5], aside }
    }

    #[test]
    fn the_copy_goes_back_only_if_nothing_was_committed_since() {
        let other = Found::Whole(Watermark { store: 2, revision: 9, ..Watermark::default() });
        // (own watermark, that of the copy, where opening starts)
        let table = [
            (at(9), None, Some(Source::Own)),
            (at(9), Some(at(9)), Some(Source::Copy)),
            (at(10), Some(at(9)), Some(Source::NewerThanCopy)),
            // One slot is rotten: it says less than it did.
            (at(8), Some(at(9)), Some(Source::Copy)),
            (Found::Missing, Some(Found::Missing), Some(Source::Copy)),
            (Found::Missing, Some(at(9)), None),
            (Found::Rotten, Some(at(9)), None),
            (Found::Rotten, Some(Found::Rotten), None),
            (at(9), Some(Found::Missing), None),
            (at(9), Some(other), None),
        ];
        for (own, copy, expected) in table {
            let what = format!("{own:?}, {copy:?}");
            assert_eq!(survey(own, copy).source().ok(), expected, "{what}");
        }
    }

    #[test]
    fn a_directory_without_marker_goes_only_if_proven_empty() {
        let known = survey(at(9), None);
        assert_eq!((known.adopted(), known.leftovers()), (vec![2, 4], vec![1, 5]));
        assert_eq!(known.generations(), [2, 3, 4]);
        for watermark in [Found::Missing, Found::Rotten] {
            let unknown = survey(watermark, None);
            assert_eq!((unknown.adopted(), unknown.leftovers()), (vec![4, 5], vec![]));
        }
    }
}
