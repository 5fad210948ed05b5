//! Reading of small files below a root directory: `/`, or a tree that a test has written.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Largest file that is read: those of procfs and sysfs are smaller.
const N_BYTES_MAX: u64 = 4 << 20;
/// Most entries of one directory.
const N_ENTRIES_MAX: usize = 16_384;
/// Highest number of a CPU or NUMA node, above what Linux can be built for (8,192 CPUs).
const NUMBER_MAX: u32 = 16_383;

/// A directory that stands for the root of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Returns the tree below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Returns where the file is that the machine calls `path`.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns what a file says, without white space around it; `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        fs::File::open(self.path(path)).ok()?.take(N_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the number that a file says.
    pub(crate) fn number<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the numbers that a file lists, ascending.
    pub(crate) fn list(&self, path: &str) -> Option<Vec<u32>> {
        numbers(&self.text(path)?)
    }

    /// Whether there is a file or directory.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Returns the name of what a link leads to.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the names in a directory in order; none of one that cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().take(N_ENTRIES_MAX).flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the numbers behind a prefix of names in a directory, ascending: 0 and 1 of `node0`, `node1`.
    pub(crate) fn numbered(&self, path: &str, prefix: &str) -> Vec<u32> {
        let number = |name: &String| name.strip_prefix(prefix)?.parse().ok().filter(|n| *n <= NUMBER_MAX);
        let mut found: Vec<u32> = self.names(path).iter().filter_map(number).collect();
        found.sort_unstable();
        found
    }
}

/// Reads a list in the notation of Linux, `0-3,8`; empty for an empty text, `None` for what is no list.
pub(crate) fn numbers(text: &str) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > NUMBER_MAX {
            return None;
        }
        found.extend(first..=last);
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

/// Returns the bytes in a line `NAME: 123 kB` of a file like `/proc/meminfo`.
pub(crate) fn kib_line(text: &str, name: &str) -> Option<i64> {
    let value = |line: &str| {
        let (_, value) = line.split_once(name)?;
        let kib: i64 = value.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024).filter(|bytes| *bytes >= 0)
    };
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_read_or_refused() {
        assert_eq!(numbers("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(numbers("5,1-2,2"), Some(vec![1, 2, 5]));
        assert_eq!(numbers(""), Some(Vec::new()));
        for wrong in ["a", "3-1", "0-", "0-4294967295", "-1", "1 2"] {
            assert_eq!(numbers(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_memory_total_is_found() {
        let total = |text| kib_line(text, "MemTotal");
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       2048 kB\n"), Some(2 << 20));
        assert_eq!(total("Node 0 MemTotal:       2048 kB\n"), Some(2 << 20));
        assert_eq!(total("MemTotal: lots\n"), None);
        assert_eq!(total("MemTotal: -4 kB\n"), None);
        assert_eq!(total(""), None);
    }
}
