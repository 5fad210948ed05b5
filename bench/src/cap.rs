//! A ceiling on the processor time of one process: a control group of its own, made here and removed again.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use godel_client::exit::Failure;

/// Where systems have their control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// Short, so that what is capped pauses for milliseconds: the kernel takes quotas from one millisecond.
const PERIOD_US: u32 = 20_000;
/// What that comes to.
pub(super) const PER_CENT_MIN: i64 = 5;
/// A killed process leaves its group a moment later: so many looks, and the time between two.
const N_LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_millis(20);

/// See the module. To be dropped after the process has ended.
pub(super) struct Cap {
    group: PathBuf,
}

impl Cap {
    /// So many hundredths of a core for a process, all of its threads together.
    ///
    /// # Errors
    /// This takes root, and a kernel whose `cpu` controller is to be had here.
    pub(super) fn new(pid: u32, per_cent: u32) -> Result<Self, Failure> {
        let quota_us = PERIOD_US / 100 * per_cent;
        let (parent, limits) = limits(Path::new(GROUPS), quota_us).ok_or_else(|| {
            Failure::failed(format!(
                "{GROUPS} has no `cpu` controller: the CPU of processes cannot be limited"
            ))
        })?;
        let group = parent.join(format!("godel-bench-{pid}"));
        let failed = |error: std::io::Error| {
            Failure::failed(format!("{} cannot limit a process: {error}", group.display()))
                .hint("this needs root")
        };
        fs::create_dir(&group).map_err(failed)?;
        let cap = Self { group: group.clone() };
        for (file, text) in limits {
            fs::write(group.join(file), text).map_err(failed)?;
        }
        fs::write(group.join("cgroup.procs"), pid.to_string()).map_err(failed)?;
        Ok(cap)
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        for _ in 0..N_LOOKS {
            if fs::remove_dir(&self.group).is_ok() {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

type Limits = Vec<(&'static str, String)>;

/// The group to make others in, and what to write into theirs: of the unified hierarchy, else of the older one.
fn limits(groups: &Path, quota_us: u32) -> Option<(PathBuf, Limits)> {
    let controllers = fs::read_to_string(groups.join("cgroup.controllers")).unwrap_or_default();
    if controllers.split_whitespace().any(|controller| controller == "cpu") {
        // Where this is not allowed it may be so already: the group's own file tells.
        let _not_allowed = fs::write(groups.join("cgroup.subtree_control"), "+cpu");
        return Some((groups.to_owned(), vec![("cpu.max", format!("{quota_us} {PERIOD_US}"))]));
    }
    let cpu = groups.join("cpu");
    let older = cpu.join("cpu.cfs_quota_us").exists();
    let limits =
        vec![("cpu.cfs_period_us", PERIOD_US.to_string()), ("cpu.cfs_quota_us", quota_us.to_string())];
    older.then_some((cpu, limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hierarchies_are_known() {
        let dir = tempfile::tempdir().unwrap();
        assert!(limits(dir.path(), 2_000).is_none());
        let older = dir.path().join("cpu");
        fs::create_dir(&older).unwrap();
        fs::write(older.join("cpu.cfs_quota_us"), "-1").unwrap();
        let expected =
            vec![("cpu.cfs_period_us", "20000".to_owned()), ("cpu.cfs_quota_us", "2000".to_owned())];
        assert_eq!(limits(dir.path(), 2_000), Some((older, expected)));
        fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io").unwrap();
        let unified = vec![("cpu.max", "2000 20000".to_owned())];
        assert_eq!(limits(dir.path(), 2_000), Some((dir.path().to_owned(), unified)));
    }
}
