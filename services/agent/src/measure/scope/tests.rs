use std::{fs, os::unix::fs::symlink, path::Path};

use super::*;

/// What `memory.stat` of version 1 says of a container.
const MEMORY_STAT_V1: &str = "cache 24162304\nrss 1806336\nrss_huge 0\nmapped_file 4096\nswap 0\ninactive_anon 1646592\n\
    active_anon 12288\ninactive_file 8540160\nactive_file 15622144\nunevictable 0\n\
    hierarchical_memory_limit 1073741824\ntotal_cache 24162304\ntotal_rss 1806336\ntotal_inactive_file 8540160\n";
/// What `cpu.stat` of version 2 says of a group with a quota.
const CPU_STAT_V2: &str = "usage_usec 7340000\nuser_usec 5200000\nsystem_usec 2140000\nnr_periods 120\n\
    nr_throttled 3\nthrottled_usec 91000\nnr_bursts 0\nburst_usec 0\n";

struct Machine(tempfile::TempDir);

impl Machine {
    /// Four CPUs and 8 GiB; the agent is in the namespaces that the machine starts with.
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.write("sys/devices/system/cpu/online", "0-3\n");
        machine.write("proc/meminfo", "MemTotal:        8388608 kB\nMemAvailable:    4194304 kB\n");
        machine.namespace("cgroup", FIRST_NAMESPACE);
        machine.namespace("pid", FIRST_PROCESSES);
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn namespace(&self, kind: &str, name: &str) {
        let dir = self.0.path().join("proc/self/ns");
        fs::create_dir_all(&dir).unwrap();
        let _there_is_none = fs::remove_file(dir.join(kind));
        symlink(name, dir.join(kind)).unwrap();
    }

    /// Version 1 as systemd mounts it, and as Docker mounts it into a container: below the root `mounted`.
    fn v1(&self, mounted: &str, group: &str) {
        let mounts = [("cpu,cpuacct", 30), ("memory", 31)].map(|(names, id)| {
            format!("{id} 24 0:{id} {mounted} /sys/fs/cgroup/{names} rw,nosuid,relatime - cgroup cgroup rw,{names}\n")
        });
        self.write("proc/self/mountinfo", &mounts.concat());
        self.write("proc/self/cgroup", &format!("5:memory:{group}\n4:cpu,cpuacct:{group}\n0::/\n"));
    }

    fn v1_group(&self, group: &str, quota: &str, limit: &str) {
        let cpu = format!("sys/fs/cgroup/cpu,cpuacct{group}");
        self.write(&format!("{cpu}/cpu.cfs_quota_us"), quota);
        self.write(&format!("{cpu}/cpu.cfs_period_us"), "100000\n");
        self.write(&format!("{cpu}/cpuacct.usage"), "7340000000\n");
        let memory = format!("sys/fs/cgroup/memory{group}");
        self.write(&format!("{memory}/memory.limit_in_bytes"), limit);
        self.write(&format!("{memory}/memory.usage_in_bytes"), "25968640\n");
        self.write(&format!("{memory}/memory.stat"), MEMORY_STAT_V1);
    }

    fn v2(&self, group: &str) {
        let mount =
            "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        self.write("proc/self/mountinfo", mount);
        self.write("proc/self/cgroup", &format!("0::{group}\n"));
        self.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    }

    /// What only groups beside the root of the machine have.
    fn v2_group(&self, group: &str, quota: &str, limit: &str) {
        let dir = format!("sys/fs/cgroup{group}");
        self.write(&format!("{dir}/cgroup.controllers"), "cpuset cpu io memory pids\n");
        self.write(&format!("{dir}/cpu.max"), quota);
        self.write(&format!("{dir}/cpu.stat"), CPU_STAT_V2);
        self.write(&format!("{dir}/memory.max"), limit);
        self.write(&format!("{dir}/memory.current"), "25968640\n");
        self.write(&format!("{dir}/memory.stat"), "anon 1806336\nfile 24162304\ninactive_file 8540160\n");
    }

    fn scope(&self) -> Scope {
        find(&Tree::new(self.0.path()))
    }

    /// The groups of CPU time, memory and the memory limit, below the mounts.
    fn found(&self) -> [Option<String>; 3] {
        let Scope { cpu, memory, memory_limit } = self.scope();
        let limit = memory_limit.map(|(group, _)| group);
        [cpu, memory, limit].map(|group| {
            let dir = group?.dir().strip_prefix(self.0.path().join("sys/fs/cgroup")).unwrap().to_owned();
            Some(dir.to_str().unwrap().to_owned())
        })
    }
}

fn groups(names: [&str; 3]) -> [Option<String>; 3] {
    names.map(|name| (name != "machine").then(|| name.to_owned()))
}

const MACHINE: [&str; 3] = ["machine"; 3];
const NO_LIMIT_V1: &str = "9223372036854771712\n";

#[test]
fn the_innermost_of_container_and_lowest_limit_bounds_the_node() {
    let none = ContainerScope { has_own_groups: false, has_own_processes: false };
    let processes = ContainerScope { has_own_processes: true, ..none };
    let own_groups = ContainerScope { has_own_groups: true, ..processes };
    // From the inside; the last group is that of the machine where that can be seen.
    for (limits, sees_machine, container, expected) in [
        (&[None, None][..], true, none, None),
        (&[None, Some(2_000), None], true, none, Some(1)),
        (&[Some(3_000), Some(2_000), None], true, none, Some(1)),
        (&[Some(2_000), Some(2_000), None], true, none, Some(0)),
        (&[Some(1_000), Some(2_000), None], true, none, Some(0)),
        (&[None], true, none, None),
        (&[], true, none, None),
        (&[None, None, None], true, processes, Some(0)),
        (&[None, Some(2_000), None], true, processes, Some(0)),
        (&[None], true, processes, None),
        (&[None, None], false, own_groups, Some(1)),
        (&[Some(500), None], false, own_groups, Some(0)),
        (&[None, Some(500)], false, own_groups, Some(1)),
        (&[], false, own_groups, None),
    ] {
        let level = |(at, limit): (usize, &Option<i64>)| Level {
            limit: *limit,
            is_machine: sees_machine && at + 1 == limits.len(),
        };
        let levels: Vec<Level> = limits.iter().enumerate().map(level).collect();
        assert_eq!(bound(&levels, container), expected, "{limits:?} {container:?}");
    }
}

#[test]
fn a_service_without_limits_is_the_machine_and_a_slice_with_a_quota_is_not() {
    let machine = Machine::new();
    machine.v2("/godel.slice/godel-agent.service/agent");
    machine.v2_group("/godel.slice", "max 100000\n", "max\n");
    machine.v2_group("/godel.slice/godel-agent.service", "max 100000\n", "max\n");
    machine.v2_group("/godel.slice/godel-agent.service/agent", "max 100000\n", "max\n");
    assert_eq!(machine.found(), groups(MACHINE));
    machine.v2_group("/godel.slice", "200000 100000\n", "max\n");
    assert_eq!(machine.found(), groups(["godel.slice", "machine", "machine"]));
    let group = "/godel.slice/godel-agent.service";
    machine.v2_group(group, "max 100000\n", "1073741824\n");
    assert_eq!(machine.found(), groups(["godel.slice", &group[1..], &group[1..]]));
    // As much as the machine has is no limit.
    machine.v2_group("/godel.slice", "400000 100000\n", "max\n");
    machine.v2_group(group, "max 100000\n", "8589934592\n");
    assert_eq!(machine.found(), groups(MACHINE));
}

#[test]
fn a_container_of_version_2_is_its_outermost_group() {
    let machine = Machine::new();
    machine.namespace("cgroup", "cgroup:[4026532480]");
    machine.namespace("pid", "pid:[4026532481]");
    machine.v2("/agent");
    machine.v2_group("", "max 100000\n", "max\n");
    machine.v2_group("/agent", "max 100000\n", "max\n");
    assert_eq!(machine.found(), groups(["", "", "machine"]), "without limits as well");
    machine.v2_group("", "150000 100000\n", "1073741824\n");
    assert_eq!(machine.found(), groups(["", "", ""]));
    let Scope { cpu, memory_limit, .. } = machine.scope();
    let usage = crate::cgroup::reopen(&cpu.unwrap()).usage();
    assert_eq!((usage.cpu_us, usage.memory), (7_340_000, 25_968_640 - 8_540_160));
    assert_eq!(memory_limit.unwrap().1, 1 << 30);
}

#[test]
fn a_container_of_version_1_is_its_group_however_it_is_mounted() {
    for (mounted, below) in [("/", "/docker/1f0c"), ("/docker/1f0c", "")] {
        let machine = Machine::new();
        machine.namespace("pid", "pid:[4026532481]");
        machine.v1(mounted, "/docker/1f0c");
        machine.v1_group(below, "-1\n", NO_LIMIT_V1);
        let of = |controllers: &str| format!("{controllers}{below}");
        let [cpu, memory] = [of("cpu,cpuacct"), of("memory")];
        assert_eq!(machine.found(), groups([&cpu, &memory, "machine"]), "{mounted}");
        machine.v1_group(below, "150000\n", "1073741824\n");
        assert_eq!(machine.found(), groups([&cpu, &memory, &memory]), "{mounted}");
        let Scope { cpu, memory, .. } = machine.scope();
        assert_eq!(crate::cgroup::reopen(&cpu.unwrap()).usage().cpu_us, 7_340_000);
        assert_eq!(crate::cgroup::reopen(&memory.unwrap()).usage().memory, 25_968_640 - 8_540_160);
    }
}

#[test]
fn what_cannot_be_seen_or_is_not_counted_is_the_machine() {
    let machine = Machine::new();
    assert_eq!(machine.scope(), Scope::default(), "no control groups");
    // Its group is not in what is mounted.
    machine.namespace("pid", "pid:[4026532481]");
    machine.v1("/docker/other", "/docker/1f0c");
    machine.v1_group("", "150000\n", "1073741824\n");
    assert_eq!(machine.found(), groups(MACHINE));
    // The root of the machine, in a namespace of processes.
    machine.v1("/", "/");
    assert_eq!(machine.found(), groups(["machine", "machine", "memory"]));
    // The controller of CPU time has other groups than that of quotas.
    let machine = Machine::new();
    let mounts = "30 24 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  31 24 0:31 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n";
    machine.write("proc/self/mountinfo", mounts);
    machine.write("proc/self/cgroup", "2:cpuacct:/\n1:cpu:/limited\n");
    machine.write("sys/fs/cgroup/cpu/limited/cpu.cfs_quota_us", "150000\n");
    machine.write("sys/fs/cgroup/cpu/limited/cpu.cfs_period_us", "100000\n");
    machine.write("sys/fs/cgroup/cpuacct/cpuacct.usage", "7340000000\n");
    assert_eq!(machine.found(), groups(MACHINE));
    machine.write("proc/self/cgroup", "2:cpuacct:/limited\n1:cpu:/limited\n");
    assert_eq!(machine.found(), groups(MACHINE), "nothing counts there");
    machine.write("sys/fs/cgroup/cpuacct/limited/cpuacct.usage", "7340000000\n");
    assert_eq!(machine.found(), groups(["cpuacct/limited", "machine", "machine"]));
    assert!(Path::new(machine.scope().cpu.unwrap().dir()).ends_with("cpuacct/limited"));
}
