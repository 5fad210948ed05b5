use std::{fs, path::Path};

use godel_base::resources::Resources;
use godel_domain::zone::Zone;

use super::*;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn stat(root: &Path, ticks: [u64; 2]) {
    let [first, second] = ticks;
    // 9 of each are idle or wait for a disk.
    let cpu = |name: &str, busy: u64| format!("{name} {busy} 0 0 5 4 0 0 0 0 0\n");
    let text = [cpu("cpu ", first + second), cpu("cpu0", first), cpu("cpu1", second), "intr 7\n".to_owned()];
    write(root, "proc/stat", &text.concat());
}

fn net(root: &Path, bytes: u64) {
    let head = "Inter-|   Receive\n face |bytes\n";
    let text = format!(
        "{head}  eth0: {bytes} 1 0 0 0 0 0 0 {bytes} 1 0 0 0 0 0 0\n    lo: 99999 1 0 0 0 0 0 0 99999 1 0 0 0 0 0 0\n"
    );
    write(root, "proc/net/dev", &text);
}

/// What a group has used, of which only the name is known.
fn usage(name: &str, cpu_us: u64, memory: u64) -> GroupUse {
    let usage = GroupUsage { cpu_us, memory, ..GroupUsage::default() };
    GroupUse { name: name.to_owned(), usage, ..GroupUse::default() }
}

#[test]
fn use_is_what_was_added_between_two_looks() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    write(root, "sys/class/net/eth0/device/numa_node", "0\n");
    let meminfo = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n";
    write(root, "proc/meminfo", meminfo);
    let of_node = "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 200 kB\nNode 0 Active(file): 50 kB\nNode 0 Inactive(file): 150 kB\n";
    write(root, "sys/devices/system/node/node0/meminfo", of_node);
    stat(root, [100, 500]);
    net(root, 1_000);
    let mut node = NodeDef::new("n", Resources::default());
    let capacity = Resources::new([("cpu", 1_000)]).unwrap();
    node.zones =
        vec![Zone { kind: "numa".to_owned(), parent: None, capacity, cpus: vec![1], threads_per_core: 1 }];
    node.memory_nodes = BTreeMap::from([(0, 0)]);
    let mut meter = Meter::new(Tree::new(root), &node);
    let key = |unit| RunKey { unit, ordinal: 0 };
    let first = [usage("1-0-0.0", 5_000_000, 10)];
    let runs = |groups: &[GroupUse]| RunsUse { groups: groups.to_vec(), ..RunsUse::default() };
    assert_eq!(meter.look(&runs(&first), Millis(1_000)), None, "nothing to compare it with");
    assert_eq!(meter.look(&runs(&first), Millis(1_050)), None, "too soon");
    stat(root, [150, 700]);
    net(root, 126_000);
    let second = [
        usage("1-0-0.0", 5_500_000, 10),
        usage("1-0-0.1", 500_000, 20),
        usage("2-0-3.7", 250_000, 40),
        usage("what is this", 9, 9),
    ];
    let rate = |bits, memory| Rates { network: Some((bits, 2 * bits)), memory };
    let rates = [("1-0-0.0", rate(8, None)), ("1-0-0.1", rate(16, Some(5))), ("what is this", rate(1, None))];
    let rates = rates.map(|(name, rates)| (name.to_owned(), rates)).into();
    let measured = meter.look(&RunsUse { rates, ..runs(&second) }, Millis(3_000)).unwrap();
    // 250 ticks in 2 s; 2 x 125,000 bytes.
    let expected = LoadAmounts { cpu: 1_250, memory: 600 << 10, network: 1_000_000 };
    assert_eq!((measured.node, measured.network), (expected, (500_000, 500_000)));
    let starts_together = Rates { network: Some((24, 48)), memory: Some(5) };
    assert_eq!(measured.rates, BTreeMap::from([((key(1), 0), starts_together)]));
    let used = |cpu_milli, memory| Use { cpu_milli, memory };
    assert_eq!(measured.runs, BTreeMap::from([((key(1), 0), used(500, 30)), ((key(2), 3), used(125, 40))]));
    let of_zone = LoadAmounts { cpu: 1_000, memory: 600 << 10, network: 1_000_000 };
    assert_eq!(measured.zones, BTreeMap::from([(0, of_zone)]));
    assert_eq!(measured.machine_memory, Memory { total: 1_000 << 10, available: 400 << 10 });
    assert_eq!(measured.group_memory, None);
}

#[test]
fn a_machine_that_says_nothing_uses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let node = NodeDef::new("n", Resources::default());
    let mut meter = Meter::new(Tree::new(dir.path()), &node);
    write(dir.path(), "proc/stat", "cpu x y\ncpuq 1\ncpu3\n");
    write(dir.path(), "proc/net/dev", "eth0: 1\nlo\n");
    let nothing = RunsUse::default();
    assert_eq!(meter.look(&nothing, Millis(0)), None);
    assert_eq!(meter.look(&nothing, Millis(1_000)), Some(Measured::default()));
}

/// A node in a container of version 1 with a quota of 1.5 CPUs and 1 GiB, on a machine that others keep busy.
#[test]
fn a_node_with_a_quota_uses_what_its_group_uses_and_its_units_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let own = "/docker/1f0c";
    write(root, "sys/devices/system/cpu/online", "0-3\n");
    write(root, "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
    let mounts = "30 24 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                  31 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    write(root, "proc/self/mountinfo", mounts);
    write(root, "proc/self/cgroup", &format!("5:memory:{own}\n4:cpu,cpuacct:{own}\n"));
    let cpu_dir = format!("sys/fs/cgroup/cpu,cpuacct{own}");
    let memory_dir = format!("sys/fs/cgroup/memory{own}");
    write(root, &format!("{cpu_dir}/cpu.cfs_quota_us"), "150000\n");
    write(root, &format!("{cpu_dir}/cpu.cfs_period_us"), "100000\n");
    write(root, &format!("{memory_dir}/memory.limit_in_bytes"), "1073741824\n");
    write(root, &format!("{memory_dir}/memory.usage_in_bytes"), "838860800\n");
    write(root, &format!("{memory_dir}/memory.stat"), "inactive_file 1\ntotal_inactive_file 104857600\n");
    let look_at = |cpu_us: u64, ticks: u64| {
        write(root, &format!("{cpu_dir}/cpuacct.usage"), &format!("{}\n", cpu_us * 1_000));
        // Nearly all of it is others' work.
        stat(root, [ticks, ticks]);
    };
    let group = |path: &str, (name, cpu_us, memory): (&str, u64, u64)| {
        let group = |mount: &str, controller| {
            let dir = root.join(format!("sys/fs/cgroup/{mount}{path}"));
            GroupRecord::of_controller(controller, dir)
        };
        let both = group("cpu,cpuacct", "cpuacct").joined(group("memory", "memory"));
        GroupUse { group: both, ..usage(name, cpu_us, memory) }
    };
    let runs = |below_us, beside_us| RunsUse {
        groups: vec![
            group("/docker/1f0c/godel-1/1-0-0.0", ("1-0-0.0", below_us, 200 << 20)),
            group("/docker/77aa", ("2-0-0.0", beside_us, 50 << 20)),
        ],
        ..RunsUse::default()
    };
    let mut node = NodeDef::new("n", Resources::default());
    let capacity = Resources::new([("cpu", 1_500)]).unwrap();
    let zone =
        Zone { kind: "numa".to_owned(), parent: None, capacity, cpus: vec![0, 1], threads_per_core: 1 };
    node.zones = vec![zone];
    look_at(1_000_000, 100);
    let mut meter = Meter::new(Tree::new(root), &node);
    assert_eq!(meter.look(&runs(500_000, 300_000), Millis(1_000)), None, "nothing to compare it with");
    look_at(2_600_000, 300);
    let measured = meter.look(&runs(1_700_000, 700_000), Millis(3_000)).unwrap();
    // 1.6 s of the group, in which 1.2 s of the first unit are, and 0.4 s of the container beside it, in 2 s.
    let expected = LoadAmounts { cpu: 800 + 200, memory: (700 + 50) << 20, network: 0 };
    assert_eq!(measured.node, expected);
    let of_unit = |unit, cpu_milli, memory| ((RunKey { unit, ordinal: 0 }, 0), Use { cpu_milli, memory });
    let of_units = BTreeMap::from([of_unit(1, 600, 200 << 20), of_unit(2, 200, 50 << 20)]);
    assert_eq!(measured.runs, of_units);
    // The CPUs of the zone were busy for 4 s in all.
    assert_eq!(measured.zones[&0].cpu, 1_000);
    assert_eq!(measured.group_memory, Some(Memory { total: 1 << 30, available: 324 << 20 }));
}

#[test]
fn memory_is_short_where_the_machine_or_the_limit_is() {
    let memory = |total, available| Memory { total, available };
    for (machine, group, expected) in [
        (memory(1_000, 500), None, -470),
        (memory(1_000, 10), None, 20),
        (memory(1_000, 500), Some(memory(200, 1)), 5),
        (memory(1_000, 500), Some(memory(200, 100)), -94),
        (memory(1_000, 10), Some(memory(200, 100)), 20),
    ] {
        let measured = Measured { machine_memory: machine, group_memory: group, ..Measured::default() };
        assert_eq!(measured.memory_short(3), expected, "{machine:?} {group:?}");
    }
}
