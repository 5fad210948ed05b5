//! As whom the cluster is administered on this machine: who owns its files, keeps tokens, or runs its services.

use std::{
    ffi::OsStr,
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use godel_core_agent::{AdministersBy, Administrator};

use crate::{
    procfs,
    runtime::process::strays::{KEEPS, value},
};

/// Name of the program under which services and agents run.
const PROGRAM: &str = "godel";
/// Where a person keeps the tokens of clusters, below the home directory.
const CONTEXTS: &str = ".config/godel";
/// The variable of what runs in a unit.
const RUN: &str = "GODEL_RUN";
/// Entries of a directory of the cluster that are looked at.
const N_ENTRIES_MAX: usize = 1_000;
/// Processes between one of a unit and its keeper that are looked at.
const N_PARENTS_MAX: usize = 64;

/// All who are known. `paths` are files and directories of the cluster, `homes` the users of the table with their home directories.
pub(super) fn gather(paths: &[PathBuf], homes: &[(u32, String)]) -> Vec<Administrator> {
    let mut found = Vec::new();
    paths.iter().for_each(|path| owners(path, &mut found));
    for (uid, home) in homes {
        let contexts = Path::new(home).join(CONTEXTS);
        if fs::read_dir(&contexts).is_ok_and(|mut entries| entries.next().is_some()) {
            let why = AdministersBy::Contexts(contexts.display().to_string());
            found.push(Administrator { uid: *uid, why });
        }
    }
    found.extend(running());
    found
}

/// Who owns a path, or something directly in it.
fn owners(path: &Path, found: &mut Vec<Administrator>) {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(N_ENTRIES_MAX);
    let inside = entries.map(|entry| entry.path());
    for path in std::iter::once(path.to_owned()).chain(inside) {
        // A link has an owner, and what it leads to.
        let owners = [fs::symlink_metadata(&path), fs::metadata(&path)];
        for uid in owners.into_iter().flatten().map(|about| about.uid()) {
            if !found.iter().any(|known| known.uid == uid) {
                found.push(Administrator { uid, why: AdministersBy::Owns(path.display().to_string()) });
            }
        }
    }
}

/// As whom services and agents run.
fn running() -> Vec<Administrator> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_cluster = pids.filter(|pid| is_program(*pid) && !is_of_unit(*pid));
    of_cluster
        .flat_map(|pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            uids(&status).into_iter().map(move |uid| Administrator { uid, why: AdministersBy::Runs(pid) })
        })
        .collect()
}

fn is_program(pid: u32) -> bool {
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(program) => {
            let name = program.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
            // So the kernel names a program whose file was replaced since.
            name.trim_end_matches(" (deleted)") == PROGRAM
        }
        // An agent in a container may not look at it.
        Err(error) => error.kind() == ErrorKind::PermissionDenied && procfs::name(pid) == PROGRAM,
    }
}

/// Whether a process belongs to a running unit: the program of a unit may be called like the cluster's, and its user stays who it is.
fn is_of_unit(pid: u32) -> bool {
    let parent = |pid: &u32| procfs::stat(*pid).map(|stat| stat.parent).filter(|parent| *parent > 0);
    let mut line = std::iter::successors(Some(pid), parent).take(N_PARENTS_MAX);
    line.any(|pid| {
        let environment = procfs::environment(pid);
        value(&environment, RUN).is_some() || value(&environment, KEEPS).is_some()
    })
}

/// The users of a process: also of one that may not be looked at otherwise, whose directory in `/proc` is root's.
fn uids(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let mut uids: Vec<u32> =
        line.into_iter().flat_map(str::split_ascii_whitespace).filter_map(|uid| uid.parse().ok()).collect();
    uids.sort_unstable();
    uids.dedup();
    uids
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::{
            fs::{PermissionsExt as _, chown, symlink},
            process::CommandExt as _,
        },
        process::Command,
    };

    use super::*;

    #[test]
    fn owners_of_files_of_the_cluster_administer_it() {
        if !rustix::process::geteuid().is_root() {
            return godel_testkit::skip("this test does not run as root");
        }
        let dir = tempfile::tempdir().unwrap();
        let [pki, link, other] = ["pki", "join", "other"].map(|name| dir.path().join(name));
        fs::create_dir(&pki).unwrap();
        fs::write(&other, "").unwrap();
        symlink(&other, &link).unwrap();
        chown(&pki, Some(4_711), None).unwrap();
        chown(&other, Some(4_712), None).unwrap();
        let home = dir.path().join("home");
        fs::create_dir_all(home.join(CONTEXTS)).unwrap();
        let homes = [(4_713, home.display().to_string())];
        let known = |homes: &[(u32, String)], uid: u32| {
            let found = gather(&[dir.path().to_owned()], homes);
            found.into_iter().find(|known| known.uid == uid).map(|known| known.why.to_string())
        };
        assert_eq!(known(&homes, 4_711), Some(format!("owns {}", pki.display())));
        assert!(known(&homes, 4_712).is_some_and(|why| why.starts_with("owns ")));
        assert_eq!(known(&homes, 4_713), None, "the directory is empty");
        fs::write(home.join(CONTEXTS).join("contexts.yaml"), "").unwrap();
        let contexts = home.join(CONTEXTS);
        assert_eq!(known(&homes, 4_713), Some(format!("keeps tokens in {}", contexts.display())));
        assert_eq!(known(&[], 4_713), None);
    }

    #[test]
    fn who_runs_the_program_of_the_cluster_administers_it_unless_a_unit_does() {
        if !rustix::process::geteuid().is_root() {
            return godel_testkit::skip("this test does not run as root");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let program = dir.path().join(PROGRAM);
        let sleep = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| Path::new(path).exists());
        fs::copy(sleep.unwrap(), &program).unwrap();
        // Whoever may not read the program runs it as a process that others may not look at.
        fs::set_permissions(&program, Permissions::from_mode(0o711)).unwrap();
        let start = |uid: u32, run: &[(&str, &str)]| {
            Command::new(&program).arg("60").uid(uid).env_clear().envs(run.iter().copied()).spawn().unwrap()
        };
        let mut children = [start(4_731, &[]), start(4_732, &[(RUN, "mark")])];
        let is_known = |uid: u32| running().iter().any(|known| known.uid == uid);
        // It has a moment between its start and the program.
        while children.iter().any(|child| !is_program(child.id())) {
            std::thread::yield_now();
        }
        let known = [is_known(4_731), is_known(4_732)];
        children.iter_mut().for_each(|child| {
            child.kill().unwrap();
            child.wait().unwrap();
        });
        assert_eq!(known, [true, false]);
    }

    #[test]
    fn a_process_is_known_by_its_status_whoever_may_look_at_it() {
        assert_eq!(uids("Name:\tgodel\nUid:\t950\t950\t0\t950\nGid:\t1\t1\t1\t1\n"), [0, 950]);
        assert_eq!(uids("Name:\tgodel\n"), [] as [u32; 0]);
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(uids(&own).contains(&rustix::process::geteuid().as_raw()));
    }
}
