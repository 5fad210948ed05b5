//! Trees that miss files, hold garbage or contradict themselves.

use super::*;

const SHAPE: Shape = Shape { sockets: 2, numa: 1, cores: 4, threads: 2, l3: 4, gib: 8 };
const NODE_0: &str = "sys/devices/system/node/node0";
const CPU_0: &str = "sys/devices/system/cpu/cpu0/topology";

fn intact() -> Machine {
    let machine = Machine::new().shaped(SHAPE);
    machine.nvidia("0000:18:00.0", 0);
    machine.nic("eth0", "mlx5_core", 1, Some(1_000));
    machine
}

#[test]
fn numa_nodes_that_make_no_sense_leave_a_flat_node() {
    type Break = fn(&Machine);
    let cases: [(Break, &str); 6] = [
        (|machine| machine.write("sys/devices/system/node/online", "\u{0}\u{1}x"), "node/online says `"),
        (
            |machine| machine.remove(&format!("{NODE_0}/cpulist")),
            "node0/cpulist is missing or no list of CPUs",
        ),
        (
            |machine| machine.write(&format!("{NODE_0}/cpulist"), "0-99999999\n"),
            "node0/cpulist is missing or no",
        ),
        (
            |machine| machine.write(&format!("{NODE_0}/meminfo"), "\n"),
            "node0/meminfo is missing or has no MemTotal",
        ),
        (|machine| machine.write(&format!("{NODE_0}/cpulist"), "0-3,8-12\n"), "CPU 12 is in 2 NUMA nodes"),
        (|machine| machine.write(&format!("{NODE_0}/cpulist"), "0-2,8-11\n"), "CPU 3 is in 0 NUMA nodes"),
    ];
    for (broken, expected) in cases {
        let machine = intact();
        broken(&machine);
        let Found { node, warnings } = found(&machine);
        assert!(node.zones.is_empty(), "{expected}");
        assert_eq!(
            (node.capacity.get(CPU), node.capacity.get(MEMORY) >> 30, node.devices.len()),
            (16_000, 16, 2)
        );
        let said = warnings.iter().any(|warning| {
            warning.contains(expected) && warning.ends_with("the node is one whole, without zones")
        });
        assert!(said, "{expected}: {warnings:?}");
    }
}

#[test]
fn cores_that_contradict_one_another_are_counted_as_cpus() {
    for broken in ["", "nonsense", "0", "1,9", "0-3"] {
        let machine = intact();
        machine.write(&format!("{CPU_0}/thread_siblings_list"), broken);
        let Found { node, warnings } = found(&machine);
        let numa: Vec<usize> =
            node.zones.iter().filter(|zone| zone.is_assigned()).map(|zone| zone.cores().len()).collect();
        assert_eq!(numa, [8, 8], "{broken}");
        assert!(warnings[0].starts_with("the lists of CPUs that share a core are missing"), "{warnings:?}");
    }
}

#[test]
fn small_gaps_cost_only_what_they_say() {
    let machine = intact();
    machine.write(&format!("{CPU_0}/physical_package_id"), "-1\n");
    machine.write("sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "what");
    machine.write(&format!("{NODE_0}/distance"), "10\n");
    machine.write("sys/class/net/eth0/speed", "fast");
    machine.write("sys/class/net/eth0/device/numa_node", "99");
    machine.write("sys/block/sda/size", "-3");
    machine.write("proc/self/cgroup", "::::\n0::\nx");
    machine.write("proc/self/mountinfo", "1 2 - \n- cgroup2\n35 24 0:30 / /sys/fs/cgroup rw - cgroup2\n");
    machine.write("proc/self/status", "Cpus_allowed_list:\t?\nMems_allowed_list:\t\n");
    let Found { node, warnings } = found(&machine);
    let kinds: Vec<&str> = node.zones.iter().map(|zone| zone.kind.as_str()).collect();
    // The one socket that is known, both NUMA nodes, and where the network card may be.
    assert_eq!(kinds, ["socket", "numa", "numa", "elsewhere"]);
    assert_eq!((node.zones[1].parent, node.zones[2].parent, node.devices[1].numa_zone), (None, Some(0), 3));
    assert!(!node.attributes.contains_key("numa-distances"));
    assert_eq!(warnings.len(), 1, "the missing library alone: {warnings:?}");
}

#[test]
fn without_sysfs_the_processors_of_procfs_are_counted() {
    let machine = Machine::new();
    machine.memory(4);
    machine.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\nbogus\nprocessor\n");
    let Found { node, warnings } = found(&machine);
    assert!(node.zones.is_empty());
    assert_eq!((node.capacity.get(CPU), node.capacity.get(MEMORY) >> 30), (2_000, 4));
    let expected = "/sys/devices/system/cpu cannot be read: the CPUs of /proc/cpuinfo are counted, and nothing is known \
                    of sockets and cores";
    assert_eq!(warnings, [expected]);
    machine.remove("proc/cpuinfo");
    assert_eq!(found(&machine).node.capacity.get(CPU), 1_000);
}

#[test]
fn a_machine_without_memory_or_name_is_refused() {
    let machine = intact();
    machine.remove("proc/meminfo");
    let Found { node, warnings } = found(&machine);
    assert_eq!(node.capacity.get(MEMORY) >> 30, 16);
    assert!(warnings.iter().any(|warning| warning.contains("the memory of the NUMA nodes is counted")));
    machine.remove("sys/devices/system/node");
    let error = super::super::machine(machine.root(), None, &config()).unwrap_err();
    assert!(matches!(error, Error::NoMemory), "{error}");
    machine.write("godel.toml", "[capacity]\nmemory = '2Gi'\n");
    let fixed = Config { inventory: Some(machine.root().join("godel.toml")), ..config() };
    assert_eq!(found_with(&machine, &fixed).node.capacity.get(MEMORY), 2 << 30);
    machine.remove("proc/sys/kernel/hostname");
    let error = super::super::machine(machine.root(), None, &config()).unwrap_err();
    assert!(matches!(error, Error::NoHostName), "{error}");
}

#[test]
fn cpus_that_are_offline_or_not_allowed_are_not_offered() {
    let machine = intact();
    machine.write("sys/devices/system/cpu/online", "0-7,9-15\n");
    let Found { node, warnings } = found(&machine);
    assert_eq!(node.capacity.get(CPU), 15_000);
    assert!(warnings[0].starts_with("cores of one NUMA node have different numbers"), "{warnings:?}");
    machine.write("proc/self/status", "Cpus_allowed_list:\t64-65\n");
    let Found { node, warnings } = found(&machine);
    assert_eq!(node.capacity.get(CPU), 15_000);
    assert!(warnings[0].starts_with("none of the CPUs that this process may use is online"), "{warnings:?}");
}

#[test]
fn every_file_of_a_tree_may_be_missing_or_garbage() {
    let files = |machine: &Machine| {
        let (mut found, mut left) = (Vec::new(), vec![machine.root().to_owned()]);
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    left.push(entry.path())
                } else if kind.is_file() {
                    found.push(entry.path())
                }
            }
        }
        found
    };
    let machine = Machine::new().shaped(Shape { sockets: 1, numa: 2, cores: 2, threads: 2, l3: 2, gib: 8 });
    machine.nic("eth0", "mlx5_core", 1, Some(1_000));
    machine.disk("sda", 10, true, false);
    machine.group("", "/a", &[("/a/cpu.max", "200000 100000"), ("/a/memory.max", "9999999999")]);
    let files = files(&machine);
    assert!(files.len() > 70, "{}", files.len());
    for file in files {
        let before = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let _refused_or_flatter = super::super::machine(machine.root(), None, &config());
        for garbage in
            [&b""[..], b"\xff\xfe\x00", b"-1", b"99999999999999999999", b"0-0-0", b"max max", b"\n\n: kB"]
        {
            std::fs::write(&file, garbage).unwrap();
            if let Ok(found) = super::super::machine(machine.root(), None, &config()) {
                from_proto::node_report(found.node.report()).unwrap();
            }
        }
        std::fs::write(&file, before).unwrap();
    }
}

#[test]
fn memory_that_no_node_has_is_shared_by_all_zones() {
    let machine = intact();
    machine.memory(24);
    let Found { node, warnings } = found(&machine);
    let of_zones: Vec<i64> = node.zones.iter().map(|zone| zone.capacity.get(MEMORY) >> 30).collect();
    assert_eq!((node.capacity.get(MEMORY) >> 30, of_zones), (24, vec![0, 0, 12, 12]));
    assert_eq!(warnings.len(), 1, "the missing library alone: {warnings:?}");
}
