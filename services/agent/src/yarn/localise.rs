//! Bringing resources into the working directory of a container, as the user of the container.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Component, Path},
};

use flate2::read::GzDecoder;

use super::launch::Resource;

/// Files of one archive.
const N_ENTRIES_MAX: usize = 500_000;
/// What a program may do with its own files.
const OWN: u32 = 0o700;
const NO_MORE_ROOM: &str =
    "the resources are larger than a container may have (agent.yarn.resource_max_bytes)";

/// Brings one resource there; `left` is what the resources may still take, unpacked.
///
/// # Errors
/// Why it cannot be brought there, as a sentence without its full stop.
pub(crate) fn localise(resource: &Resource, work_dir: &Path, left: &mut u64) -> Result<(), String> {
    let Resource { link, source, .. } = resource;
    bring(resource, work_dir, left).map_err(|error| {
        format!("the resource {} cannot be localised from {}: {error}", link.display(), source.display())
    })
}

fn bring(resource: &Resource, work_dir: &Path, left: &mut u64) -> io::Result<()> {
    let Resource { link, source, bytes, changed_ms, is_archive } = resource;
    let file = File::open(source)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let was_ms = metadata.mtime() * 1_000 + metadata.mtime_nsec() / 1_000_000;
    if (metadata.len(), was_ms) != (*bytes, *changed_ms) {
        return Err(io::Error::other(format!(
            "it has changed: {bytes} bytes of {changed_ms} were expected, and it has {} of {was_ms}",
            metadata.len()
        )));
    }
    let target = work_dir.join(link);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if !is_archive {
        return copy(file, &target, left);
    }
    fs::create_dir(&target)?;
    let name = source.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let ends_with = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    if ends_with(&[".zip", ".jar"]) {
        unzip(file, &target, left)
    } else if ends_with(&[".tar.gz", ".tgz"]) {
        untar(GzDecoder::new(file), &target, left)
    } else if ends_with(&[".tar"]) {
        untar(file, &target, left)
    } else {
        Err(io::Error::other("archives are unpacked whose names end with .zip, .jar, .tar, .tar.gz or .tgz"))
    }
}

/// Writes a file of at most `left` bytes.
fn copy(from: impl Read, target: &Path, left: &mut u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWN).open(target)?;
    let n = io::copy(&mut from.take(left.saturating_add(1)), &mut file)?;
    take(n, left)
}

fn take(n: u64, left: &mut u64) -> io::Result<()> {
    *left = left.checked_sub(n).ok_or_else(|| io::Error::other(NO_MORE_ROOM))?;
    Ok(())
}

fn escapes(name: &str) -> io::Error {
    io::Error::other(format!("its entry `{name}` leads out of its directory"))
}

fn too_many() -> io::Error {
    io::Error::other(format!("it has more than {N_ENTRIES_MAX} files"))
}

fn unzip(file: File, target: &Path, left: &mut u64) -> io::Result<()> {
    let mut archive = zip::ZipArchive::new(file).map_err(io::Error::other)?;
    if archive.len() > N_ENTRIES_MAX {
        return Err(too_many());
    }
    for idx in 0..archive.len() {
        let entry = archive.by_index(idx).map_err(io::Error::other)?;
        let name = entry.name().map_err(io::Error::other)?.into_owned();
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
        copy(entry, &path, left)?;
    }
    Ok(())
}

fn untar(input: impl Read, target: &Path, left: &mut u64) -> io::Result<()> {
    let mut archive = tar::Archive::new(input);
    for (n, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        if n >= N_ENTRIES_MAX {
            return Err(too_many());
        }
        take(entry.size(), left)?;
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
        let (source, bytes) = (source.to_owned(), metadata.len());
        Resource { link: "a/x".into(), source, bytes, changed_ms, is_archive }
    }

    /// Localises into a fresh directory, with so many bytes left.
    fn bring_there(resource: &Resource, mut left: u64) -> Result<tempfile::TempDir, String> {
        let dir = tempfile::tempdir().unwrap();
        localise(resource, dir.path(), &mut left).map(|()| dir)
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
        let shorter = Resource { bytes: 4, ..resource(&source, false) };
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
}
