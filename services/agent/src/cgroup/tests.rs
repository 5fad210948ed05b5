//! Groups in trees that are written by hand, and real ones where this process may make them.

use std::{
    fs,
    process::{Child, Command},
};

use godel_testkit::skip;
use tempfile::TempDir;

use super::*;

const NAME: &str = "of-a-test";

/// Tests of one process run beside each other: each has an agent of its own.
fn real_name() -> String {
    static N: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), N.fetch_add(1, Ordering::Relaxed))
}

/// A machine on which this process is in `/own`.
struct Machine(TempDir);

impl Machine {
    fn new(groups: &str, mounts: &[(&str, &str, &str)]) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.put("proc/self/cgroup", groups);
        let line = |(place, kind, options): &(&str, &str, &str)| {
            format!("35 24 0:30 / {place} rw - {kind} {kind} rw,{options}\n")
        };
        machine.put("proc/self/mountinfo", &mounts.iter().map(line).collect::<String>());
        machine
    }

    fn v2(controllers: &str) -> Self {
        let machine = Self::new("0::/own\n", &[("/sys/fs/cgroup", "cgroup2", "")]);
        machine.put("sys/fs/cgroup/own/cgroup.controllers", controllers);
        machine
    }

    fn v1() -> Self {
        let mounts = ["cpu,cpuacct", "memory", "cpuset", "freezer"];
        let places = mounts.map(|mount| (format!("/sys/fs/cgroup/{mount}"), mount));
        let mounts: Vec<(&str, &str, &str)> =
            places.iter().map(|(place, mount)| (place.as_str(), "cgroup", *mount)).collect();
        let machine =
            Self::new("5:freezer:/own\n4:memory:/own\n3:cpuset:/own\n2:cpu,cpuacct:/own\n0::/\n", &mounts);
        for (_, _, mount) in mounts {
            fs::create_dir_all(machine.path(&format!("sys/fs/cgroup/{mount}/own"))).unwrap();
        }
        machine.put("sys/fs/cgroup/cpuset/own/cpuset.cpus", "0-7\n");
        machine.put("sys/fs/cgroup/cpuset/own/cpuset.mems", "0-1\n");
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn open(&self) -> (Result<Groups, String>, Vec<String>) {
        let mut warnings = Vec::new();
        (Groups::open(self.0.path(), None, NAME, &mut warnings), warnings)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }
}

fn limits() -> GroupLimits {
    GroupLimits {
        cpu_milli: Some(1_500),
        cpu_weight_milli: 2_000,
        memory: Some(64 << 20),
        memory_soft: Some(32 << 20),
        cpus: vec![0, 4, 1, 5],
        memory_nodes: vec![1],
    }
}

/// The group of this process as an agent, below the group that it is in.
fn own() -> String {
    format!("own/godel-{NAME}")
}

#[test]
fn version_2_writes_one_directory() {
    let machine = Machine::v2("cpuset cpu io memory pids\n");
    // What an agent has left behind that has ended.
    fs::create_dir_all(machine.path("sys/fs/cgroup/own/godel-4000000/1-0-0.7")).unwrap();
    let (groups, warnings) = machine.open();
    let groups = groups.unwrap();
    assert_eq!((groups.version(), warnings.len()), (2, 0));
    assert!(!machine.path("sys/fs/cgroup/own/godel-4000000").exists());
    let (group, failed) = groups.make("7-0-1", &limits()).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    let dir = format!("sys/fs/cgroup/{}/7-0-1.0", own());
    let file = |name: &str| machine.text(&format!("{dir}/{name}"));
    for (name, expected) in [
        ("cpu.max", "150000 100000"),
        ("cpu.weight", "79"),
        ("memory.max", "67108864"),
        ("memory.swap.max", "0"),
        ("memory.high", "33554432"),
        ("cpuset.cpus", "0-1,4-5"),
        ("cpuset.mems", "1"),
    ] {
        assert_eq!(file(name), expected, "{name}");
    }
    machine.put(&format!("{dir}/cgroup.procs"), "78\n77\n");
    assert_eq!(group.pids().unwrap(), [77, 78]);
    assert_eq!(reopen(&group.record()).pids().unwrap(), [77, 78], "another process finds it");
    assert_eq!(groups.pids(), [("7-0-1.0".to_owned(), vec![77, 78])]);
    group.set_frozen(true).unwrap();
    assert_eq!(file("cgroup.freeze"), "1");
    machine.put(&format!("{dir}/cgroup.kill"), "");
    group.kill().unwrap();
    assert_eq!(file("cgroup.kill"), "1");
    assert_eq!(group.usage(), GroupUsage::default());
    machine.put(&format!("{dir}/cpu.stat"), "usage_usec 1234\nuser_usec 1000\n");
    machine.put(&format!("{dir}/memory.current"), "4096\n");
    machine.put(&format!("{dir}/memory.events"), "oom 2\noom_kill 1\noom_group_kill 0\n");
    assert_eq!(group.usage(), GroupUsage { cpu_us: 1_234, memory: 4_096, n_oom_kills: 1 });
    // Lower limits than any process can live with are raised; no limit is one that is written too.
    let unlimited = GroupLimits { cpu_milli: Some(1), memory: Some(1), ..GroupLimits::default() };
    let (group, _) = groups.make("7-0-1", &unlimited).unwrap();
    let file = |name: &str| machine.text(&format!("sys/fs/cgroup/{}/7-0-1.1/{name}", own()));
    assert_eq!((file("cpu.max"), file("cpu.weight")), ("10000 100000".to_owned(), "1".to_owned()));
    assert_eq!((file("memory.max"), file("memory.high")), ("16777216".to_owned(), "max".to_owned()));
    group.set_cpu_limit(None).unwrap();
    assert_eq!((file("cpu.max"), file("cpuset.cpus")), ("max 100000".to_owned(), String::new()));
}

#[test]
fn version_1_writes_a_directory_in_each_hierarchy() {
    let machine = Machine::v1();
    let (groups, warnings) = machine.open();
    let groups = groups.unwrap();
    assert_eq!((groups.version(), warnings), (1, Vec::new()));
    let (group, failed) = groups.make("7-0-1", &limits()).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    let file =
        |mount: &str, name: &str| machine.text(&format!("sys/fs/cgroup/{mount}/{}/7-0-1.0/{name}", own()));
    for (mount, name, expected) in [
        ("cpu,cpuacct", "cpu.cfs_quota_us", "150000"),
        ("cpu,cpuacct", "cpu.cfs_period_us", "100000"),
        ("cpu,cpuacct", "cpu.shares", "2048"),
        ("memory", "memory.limit_in_bytes", "67108864"),
        ("memory", "memory.soft_limit_in_bytes", "33554432"),
        ("cpuset", "cpuset.cpus", "0-1,4-5"),
        ("cpuset", "cpuset.mems", "1"),
    ] {
        assert_eq!(file(mount, name), expected, "{name}");
    }
    machine.put(&format!("sys/fs/cgroup/freezer/{}/7-0-1.0/cgroup.procs", own()), "77\n");
    let again = reopen(&group.record());
    assert_eq!((again.lists(), again.pids().unwrap()), (group.lists(), vec![77]), "another process finds it");
    assert_eq!(groups.pids(), [("7-0-1.0".to_owned(), vec![77])]);
    assert_eq!(group.lists().len(), 4);
    again.set_frozen(true).unwrap();
    assert_eq!(file("freezer", "freezer.state"), "FROZEN");
    let put = |mount: &str, name: &str, text: &str| {
        machine.put(&format!("sys/fs/cgroup/{mount}/{}/7-0-1.0/{name}", own()), text);
    };
    put("cpu,cpuacct", "cpuacct.usage", "1234567\n");
    put("memory", "memory.usage_in_bytes", "4096\n");
    put("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    assert_eq!(group.usage(), GroupUsage { cpu_us: 1_234, memory: 4_096, n_oom_kills: 3 });
    // Without CPUs and memory nodes of its own it has those around it: version 1 takes no process into one without.
    groups.make("8-0-0", &GroupLimits::default()).unwrap();
    let file = |name: &str| machine.text(&format!("sys/fs/cgroup/cpuset/{}/8-0-0.1/{name}", own()));
    assert_eq!((file("cpuset.cpus").as_str(), file("cpuset.mems").as_str()), ("0-7", "0-1"));
}

#[test]
fn the_version_that_has_the_controllers_is_taken() {
    let (groups, _) = Machine::v2("cpu io\n").open();
    let why = groups.unwrap_err();
    assert!(why.starts_with("no control groups are mounted; give the agent a group of its own"), "{why}");
    let machine = Machine::v1();
    fs::remove_dir_all(machine.path("sys/fs/cgroup/cpuset")).unwrap();
    let (groups, warnings) = machine.open();
    assert_eq!(groups.unwrap().version(), 1);
    assert_eq!(warnings, ["the controller `cpuset` of control groups cannot be used: zones are not kept"]);
    for mount in ["cpu,cpuacct", "memory"] {
        fs::remove_dir_all(machine.path(&format!("sys/fs/cgroup/{mount}"))).unwrap();
    }
    let why = machine.open().0.unwrap_err();
    let dir = machine.path("sys/fs/cgroup/cpu,cpuacct/own");
    assert!(why.starts_with(&format!("control group {}/godel-", dir.display())), "{why}");
    assert!(
        why.contains("cannot be made: No such file or directory") && why.contains("agent.cgroup_root"),
        "{why}"
    );
}

#[test]
fn version_2_makes_groups_beside_an_agent_in_a_group_of_its_own() {
    for (around, is_made) in [("godel.service", true), ("user.slice", false)] {
        let group = format!("{around}/agent");
        let machine = Machine::new(&format!("0::/{group}\n"), &[("/sys/fs/cgroup", "cgroup2", "")]);
        machine.put(&format!("sys/fs/cgroup/{group}/cgroup.controllers"), "cpu memory\n");
        machine.put(&format!("sys/fs/cgroup/{around}/cgroup.procs"), "");
        // The kernel refuses it while processes are in the group itself.
        fs::create_dir(machine.path(&format!("sys/fs/cgroup/{group}/cgroup.subtree_control"))).unwrap();
        let (groups, _) = machine.open();
        let own = machine.path(&format!("sys/fs/cgroup/{around}/godel-{NAME}"));
        assert_eq!((groups.is_ok(), own.exists()), (is_made, is_made), "{around}");
        if let Err(why) = groups {
            assert!(
                why.contains("gives its controllers to no groups in it") && why.contains("Delegate=yes"),
                "{why}"
            );
        }
    }
}

#[test]
fn the_next_agent_finds_the_group_of_the_one_before() {
    let machine = Machine::v2("cpu memory\n");
    let own = machine.path(&format!("sys/fs/cgroup/{}", self::own()));
    let kept = {
        let groups = machine.open().0.unwrap();
        let (kept, _) = groups.make("1-0-0", &GroupLimits::default()).unwrap();
        machine.put(&format!("sys/fs/cgroup/{}/1-0-0.0/cgroup.procs", self::own()), "77\n");
        kept.record()
    };
    assert!(own.join("1-0-0.0").is_dir(), "something lives in it");
    let groups = machine.open().0.unwrap();
    fs::create_dir(own.join("2-0-0.9")).unwrap();
    let (new, _) = groups.make("1-0-0", &GroupLimits::default()).unwrap();
    assert_ne!(new.record(), kept, "a group is made, not found");
    fs::create_dir(own.join("3-0-0.0")).unwrap();
    groups.sweep(&[kept, new.record()]);
    let mut left: Vec<String> =
        inner(&own).map(|dir| dir.file_name().unwrap().to_string_lossy().into()).collect();
    left.sort_unstable();
    assert_eq!(left, ["1-0-0.0", "1-0-0.1"]);
}

#[test]
fn another_group_may_be_named() {
    let machine = Machine::v2("cpu memory\n");
    machine.put("sys/fs/cgroup/units/cgroup.controllers", "cpu memory\n");
    let groups = Groups::open(machine.0.path(), Some("/units/"), NAME, &mut Vec::new()).unwrap();
    groups.make("1-0-0", &GroupLimits::default()).unwrap();
    let own = format!("sys/fs/cgroup/units/godel-{NAME}");
    assert!(machine.path(&format!("{own}/1-0-0.0")).is_dir());
    assert_eq!(machine.text("sys/fs/cgroup/units/cgroup.subtree_control"), "+cpuset");
}

/// Groups of this machine; `None`, said in the output of the test, where it has none that can be written.
fn real() -> Option<Groups> {
    let mut warnings = Vec::new();
    match Groups::open(Path::new("/"), None, &real_name(), &mut warnings) {
        Ok(groups) => Some(groups),
        Err(why) => {
            skip(why);
            None
        }
    }
}

fn start(group: &dyn Cgroup, script: &str) -> Child {
    let mut command = Command::new("sh");
    enter::begin_as(command.args(["-c", script]), group.open_lists().unwrap(), Vec::new(), None, 0o022);
    command.spawn().unwrap()
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

#[test]
fn real_groups_hold_limit_freeze_and_end_processes() {
    let Some(groups) = real() else { return };
    let cpus = Tree::new(Path::new("/")).list("/sys/devices/system/cpu/online").unwrap();
    let limits = GroupLimits {
        cpu_milli: Some(200),
        cpu_weight_milli: 200,
        memory: Some(32 << 20),
        cpus: cpus[..1].to_vec(),
        ..GroupLimits::default()
    };
    let (group, failed) = groups.make("test", &limits).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    // One process spins and has left the session, one has ended, one waits.
    let mut child = start(&*group, "setsid sh -c 'while :; do :; done' & sleep 1000");
    wait_until(|| group.pids().unwrap().len() == 3);
    let before = group.usage();
    wait_until(|| group.usage().cpu_us > before.cpu_us + 20_000);
    let only = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    assert!(only.contains(&format!("Cpus_allowed_list:\t{}\n", cpus[0])), "{only}");
    group.set_frozen(true).unwrap();
    group.set_frozen(false).unwrap();
    assert!(group.remove().is_err(), "something is in it");
    group.kill().unwrap();
    child.wait().unwrap();
    wait_until(|| group.pids().unwrap().is_empty());
    group.remove().unwrap();
}

#[test]
fn a_real_group_that_needs_too_much_memory_loses_a_process() {
    let Some(groups) = real() else { return };
    let limits = GroupLimits { memory: Some(24 << 20), ..GroupLimits::default() };
    let (group, _) = groups.make("hog", &limits).unwrap();
    let mut child = start(&*group, "head -c 200000000 /dev/zero | tail");
    child.wait().unwrap();
    assert!(group.usage().n_oom_kills > 0, "{:?}", group.usage());
    wait_until(|| group.remove().is_ok());
}

#[test]
fn groups_that_others_have_made_are_found_by_their_processes() {
    let v1 = Machine::v1();
    let tree = Tree::new(v1.0.path());
    v1.put("proc/7/cgroup", "5:freezer:/own\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n");
    v1.put("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "8192\n");
    v1.put("sys/fs/cgroup/memory/docker/abc/memory.stat", "total_inactive_file 4096\n");
    v1.put("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpuacct.usage", "7000000\n");
    let usage = reopen(&of_process(&tree, 7).unwrap()).usage();
    assert_eq!(usage, GroupUsage { cpu_us: 7_000, memory: 4_096, n_oom_kills: 0 });
    v1.put("proc/8/cgroup", "4:memory:/own\n2:cpu,cpuacct:/own\n0::/\n");
    assert_eq!(of_process(&tree, 8), None, "that of this process");
    assert_eq!(of_process(&tree, 9), None, "it has ended");
    let v2 = Machine::v2("cpu memory\n");
    v2.put("proc/7/cgroup", "0::/system.slice/docker-abc.scope\n");
    v2.put("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    v2.put("sys/fs/cgroup/system.slice/docker-abc.scope/cgroup.controllers", "cpu memory\n");
    v2.put("sys/fs/cgroup/system.slice/docker-abc.scope/cpu.stat", "usage_usec 9\n");
    let usage = reopen(&of_process(&Tree::new(v2.0.path()), 7).unwrap()).usage();
    assert_eq!(usage.cpu_us, 9);
}
