//! A file system of a member's own, in memory, which can be filled to the last byte. It needs the rights of root.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A file that takes all room that is left.
const BALLAST: &str = "ballast";
/// Written at once.
const BLOCK_BYTES: usize = 1 << 20;

/// A mounted file system, unmounted when dropped.
#[derive(Debug)]
pub(super) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Mounts one of so many bytes, or says why that is not possible here.
    pub(super) fn mount(at: &Path, bytes: u64) -> Result<Self, String> {
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let options = format!("size={bytes},mode=0700");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(at))?;
        Ok(Self { at: at.to_owned() })
    }

    /// Takes all room that is left.
    pub(super) fn fill(&self) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(self.at.join(BALLAST))?;
        let mut block = vec![1; BLOCK_BYTES];
        while !block.is_empty() {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => block.truncate(block.len() / 2),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives that room back.
    pub(super) fn free(&self) -> io::Result<()> {
        match fs::remove_file(self.at.join(BALLAST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The member has ended; if something else still looks into it, it goes once that ends.
        let _in_use = run(Command::new("umount").arg("-l").arg(&self.at));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Removes what is in a directory, and leaves the directory.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
    }
    Ok(())
}
