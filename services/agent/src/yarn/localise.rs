//! Bringing resources into the working directory of a container, as the user of the container.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Component, Path},
    sync::atomic::{AtomicBool, Ordering},
};

use flate2::read::GzDecoder;
use regex::Regex;

use super::{http, launch::Resource};

/// Files of one archive.
const N_ENTRIES_MAX: usize = 500_000;
/// What a program may do with its own files.
const OWN: u32 = 0o700;
const NO_MORE_ROOM: &str =
    "the resources are larger than a container may have (agent.yarn.resource_max_bytes)";

/// What is read of a web server before it is unpacked, in the working directory.
const FETCHED: &str = ".fetched";

/// What the resources of a container may take, and whether they are still wanted.
pub(crate) struct Budget<'a> {
    /// Bytes that are left, unpacked.
    pub(crate) left: u64,
    /// The container is not wanted any more: reading ends with an error.
    pub(crate) is_stopped: &'a AtomicBool,
}

/// Reads as long as the container is wanted.
struct Wanted<'a, R> {
    from: R,
    is_stopped: &'a AtomicBool,
}

impl<R: Read> Read for Wanted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(io::Error::other("its container was stopped"));
        }
        self.from.read(buffer)
    }
}

impl Budget<'_> {
    fn wanted<R: Read>(&self, from: R) -> Wanted<'_, R> {
        Wanted { from, is_stopped: self.is_stopped }
    }

    fn take(&mut self, n: u64) -> io::Result<()> {
        self.left = self.left.checked_sub(n).ok_or_else(|| io::Error::other(NO_MORE_ROOM))?;
        Ok(())
    }
}

/// The regular expression of a pattern, which whole names have to fit.
///
/// # Errors
/// It is none, or one of Java's that looks ahead or behind.
pub(crate) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&format!("^(?:{pattern})$"))
}

/// Brings one resource there.
///
/// # Errors
/// Why it cannot be brought there, as a sentence without its full stop.
pub(crate) fn localise(resource: &Resource, work_dir: &Path, budget: &mut Budget<'_>) -> Result<(), String> {
    let Resource { link, source, server, ca_file, .. } = resource;
    bring(resource, work_dir, budget).map_err(|error| {
        let scheme = if ca_file.is_some() { "https" } else { "http" };
        let server = server.as_ref().map(|server| format!("{scheme}://{server}")).unwrap_or_default();
        format!(
            "the resource {} cannot be localised from {server}{}: {error}",
            link.display(),
            source.display()
        )
    })
}

fn bring(resource: &Resource, work_dir: &Path, budget: &mut Budget<'_>) -> io::Result<()> {
    let Resource { link, source, server, ca_file, is_archive, pattern, .. } = resource;
    let target = work_dir.join(link);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    let file = match server {
        None => open(resource)?,
        Some(server) => {
            let path = source.to_string_lossy();
            let body = http::get(server, ca_file.as_deref(), &path, budget.is_stopped)?;
            if !is_archive {
                return check_size(copy(body, &target, budget)?, resource);
            }
            // What is fetched is not counted: what is unpacked of it is, and is larger.
            let path = work_dir.join(FETCHED);
            let mut room = Budget { ..*budget };
            check_size(copy(body, &path, &mut room)?, resource)?;
            let file = File::open(&path)?;
            fs::remove_file(path)?;
            file
        }
    };
    if !is_archive {
        return copy(file, &target, budget).map(drop);
    }
    fs::create_dir(&target)?;
    let whole = source.file_name().unwrap_or_default();
    // A web server may be told more behind the name.
    let name = whole.to_string_lossy();
    let name = name.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase();
    let ends_with = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if let Some(pattern) = pattern.as_ref().filter(|_| ends_with(&[".jar"])) {
        let mut file = file;
        copy(&file, &target.join(whole), budget)?;
        file.rewind()?;
        let pattern = compile(pattern).map_err(io::Error::other)?;
        return unzip(file, &target, budget, &|name| pattern.is_match(name));
    }
    if ends_with(&[".zip", ".jar"]) {
        unzip(file, &target, budget, &|_| true)
    } else if ends_with(&[".tar.gz", ".tgz"]) {
        untar(GzDecoder::new(file), &target, budget)
    } else if ends_with(&[".tar"]) {
        untar(file, &target, budget)
    } else {
        Err(io::Error::other("archives are unpacked whose names end with .zip, .jar, .tar, .tar.gz or .tgz"))
    }
}

/// Opens a file of this machine that is what was submitted.
fn open(resource: &Resource) -> io::Result<File> {
    let Resource { source, bytes, changed_ms, .. } = resource;
    let file = File::open(source)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let was_ms = metadata.mtime() * 1_000 + metadata.mtime_nsec() / 1_000_000;
    if (Some(metadata.len()), was_ms) != (*bytes, *changed_ms) {
        return Err(io::Error::other(format!(
            "it has changed: {} bytes of {changed_ms} were expected, and it has {} of {was_ms}",
            bytes.unwrap_or(0),
            metadata.len()
        )));
    }
    Ok(file)
}

/// A web server says no time of a file that could be compared, and often no size.
fn check_size(n: u64, resource: &Resource) -> io::Result<()> {
    match resource.bytes {
        Some(bytes) if bytes != n => {
            Err(io::Error::other(format!("it has changed: {bytes} bytes were expected, and it has {n}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// Writes a file of at most what is left. Returns its bytes.
fn copy(from: impl Read, target: &Path, budget: &mut Budget<'_>) -> io::Result<u64> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWN).open(target)?;
    let n = io::copy(&mut budget.wanted(from).take(budget.left.saturating_add(1)), &mut file)?;
    budget.take(n)?;
    Ok(n)
}

fn escapes(name: &str) -> io::Error {
    io::Error::other(format!("its entry `{name}` leads out of its directory"))
}

fn too_many() -> io::Error {
    io::Error::other(format!("it has more than {N_ENTRIES_MAX} files"))
}

fn unzip(
    file: File,
    target: &Path,
    budget: &mut Budget<'_>,
    is_meant: &dyn Fn(&str) -> bool,
) -> io::Result<()> {
    let mut archive = zip::ZipArchive::new(file).map_err(io::Error::other)?;
    if archive.len() > N_ENTRIES_MAX {
        return Err(too_many());
    }
    for idx in 0..archive.len() {
        let entry = archive.by_index(idx).map_err(io::Error::other)?;
        let name = entry.name().map_err(io::Error::other)?.into_owned();
        if !is_meant(&name) {
            continue;
        }
        let path = target.join(entry.enclosed_name().ok_or_else(|| escapes(&name))?);
        if entry.is_symlink() {
            return Err(io::Error::other(format!("its entry `{name}` is a link: use a tar archive")));
        }
        if entry.is_dir() {
            fs::create_dir_all(&path)?;
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        copy(entry, &path, budget)?;
    }
    Ok(())
}

fn untar(input: impl Read, target: &Path, budget: &mut Budget<'_>) -> io::Result<()> {
    let is_stopped = budget.is_stopped;
    let mut archive = tar::Archive::new(Wanted { from: input, is_stopped });
    for (n, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        if n >= N_ENTRIES_MAX {
            return Err(too_many());
        }
        budget.take(entry.size())?;
        let path = entry.path()?.into_owned();
        let is_inside =
            path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        // The crate also refuses to write through a link that leads out of the directory.
        if !is_inside || !entry.unpack_in(target)? {
            return Err(escapes(&path.to_string_lossy()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn resource(source: &Path, is_archive: bool) -> Resource {
        let metadata = fs::metadata(source).unwrap();
        let changed_ms = metadata.mtime() * 1_000 + metadata.mtime_nsec() / 1_000_000;
        let (source, bytes) = (source.to_owned(), Some(metadata.len()));
        Resource { link: "a/x".into(), source, bytes, changed_ms, is_archive, ..Resource::default() }
    }

    /// Localises into a fresh directory, with so many bytes left.
    fn bring_there(resource: &Resource, left: u64) -> Result<tempfile::TempDir, String> {
        let dir = tempfile::tempdir().unwrap();
        let is_stopped = AtomicBool::new(false);
        localise(resource, dir.path(), &mut Budget { left, is_stopped: &is_stopped }).map(|()| dir)
    }

    fn zip_of(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        for (name, text) in entries {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn tar_of(name: &str, text: &str) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(u64::try_from(text.len()).unwrap());
        header.set_mode(0o755);
        header.set_cksum();
        let mut tar = tar::Builder::new(Vec::new());
        tar.append(&header, text.as_bytes()).unwrap();
        tar.into_inner().unwrap()
    }

    #[test]
    fn files_are_copied_if_they_are_what_was_submitted() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("f");
        fs::write(&source, "hello").unwrap();
        let found = bring_there(&resource(&source, false), 5).unwrap();
        assert_eq!(fs::read_to_string(found.path().join("a/x")).unwrap(), "hello");
        let message = |resource: &Resource, left| bring_there(resource, left).unwrap_err();
        assert!(message(&resource(&source, false), 4).contains(NO_MORE_ROOM));
        let older = Resource { changed_ms: 1, ..resource(&source, false) };
        assert!(message(&older, 5).contains("it has changed: 5 bytes of 1 were expected"));
        let shorter = Resource { bytes: Some(4), ..resource(&source, false) };
        assert!(message(&shorter, 5).contains("it has changed: 4 bytes"));
        assert!(message(&resource(dir.path(), false), 5).contains("it is no file"));
    }

    #[test]
    fn archives_are_unpacked_within_their_directory() {
        let dir = tempfile::tempdir().unwrap();
        let archive = |name: &str, bytes: Vec<u8>| {
            let source = dir.path().join(name);
            fs::write(&source, bytes).unwrap();
            resource(&source, true)
        };
        let gzipped = |bytes: &[u8]| {
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            gz.write_all(bytes).unwrap();
            gz.finish().unwrap()
        };
        let all = [
            archive("a.zip", zip_of(&[("d/f", "hello")])),
            archive("a.tar", tar_of("d/f", "hello")),
            archive("a.TGZ", gzipped(&tar_of("d/f", "hello"))),
        ];
        for one in &all {
            let found = bring_there(one, 100).unwrap();
            assert_eq!(fs::read_to_string(found.path().join("a/x/d/f")).unwrap(), "hello", "{one:?}");
            assert!(bring_there(one, 4).unwrap_err().contains(NO_MORE_ROOM), "{one:?}");
        }
        let out = [archive("b.zip", zip_of(&[("../f", "x")])), archive("b.tar", tar_of("../f", "x"))];
        for one in &out {
            assert!(bring_there(one, 100).unwrap_err().contains("leads out of its directory"), "{one:?}");
        }
        assert!(bring_there(&archive("c.rar", vec![1]), 100).unwrap_err().contains(".tar.gz or .tgz"));
        assert!(bring_there(&archive("c.zip", vec![1]), 100).is_err());
    }

    #[test]
    fn of_a_jar_with_a_pattern_only_some_is_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("job.jar");
        fs::write(&source, zip_of(&[("lib/a", "1"), ("classes/b", "2"), ("other/c", "3")])).unwrap();
        let pattern = Some("(?:classes/|lib/).*".to_owned());
        let found = bring_there(&Resource { pattern, ..resource(&source, true) }, 1_000).unwrap();
        let there = |name: &str| found.path().join("a/x").join(name).exists();
        assert!(there("job.jar") && there("lib/a") && there("classes/b") && !there("other/c"));
        assert!(compile("(?<=a)b").is_err());
    }

    #[test]
    fn resources_are_fetched_from_web_servers() {
        let fetched = |answer: &[u8], resource: &Resource| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
            let (server, served) = http::tests::serve([head.as_bytes(), answer].concat());
            let found = bring_there(&Resource { server: Some(server), ..resource.clone() }, 100);
            served.join().unwrap();
            found
        };
        let file = Resource { link: "f".into(), source: "/d/f".into(), ..Resource::default() };
        let found = fetched(b"hello", &file).unwrap();
        assert_eq!(fs::read_to_string(found.path().join("f")).unwrap(), "hello");
        let other = fetched(b"hello", &Resource { bytes: Some(4), ..file.clone() }).unwrap_err();
        assert!(
            other.contains("4 bytes were expected, and it has 5") && other.contains("http://127.0.0.1:"),
            "{other}"
        );
        let zip = Resource {
            link: "x".into(),
            source: "/d/a.zip?v=1".into(),
            is_archive: true,
            ..Resource::default()
        };
        let found = fetched(&zip_of(&[("d", "hi")])[..], &zip);
        assert!(
            found.as_ref().is_err_and(|why| why.contains(NO_MORE_ROOM)),
            "it takes more than 100 bytes: {found:?}"
        );
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_brought_there() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a.tar");
        fs::write(&source, tar_of("f", "hello")).unwrap();
        let is_stopped = AtomicBool::new(true);
        for is_archive in [false, true] {
            let to = tempfile::tempdir().unwrap();
            let mut budget = Budget { left: 10_000, is_stopped: &is_stopped };
            let why = localise(&resource(&source, is_archive), to.path(), &mut budget).unwrap_err();
            assert!(why.contains("its container was stopped"), "{why}");
        }
    }
}
