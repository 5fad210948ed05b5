//! Machines as trees that are written by hand, after real ones.

mod broken;
mod servers;
mod trees;

use godel_domain::zone::show_cpus;

use super::*;
use crate::detect::tests::trees::{Machine, Shape};

/// A configuration for tests: no library of the machine that runs them is asked.
fn config() -> Config {
    Config { nvml_library: "/nowhere/libnvidia-ml.so.1".to_owned(), ..Config::default() }
}

fn found_with(machine: &Machine, config: &Config) -> Found {
    super::machine(machine.root(), None, config).unwrap()
}

fn found(machine: &Machine) -> Found {
    found_with(machine, &config())
}

/// Kind, parent, CPUs and gibibytes of each zone.
fn zones(node: &NodeDef) -> Vec<(String, Option<u8>, String, i64)> {
    let zone = |zone: &Zone| {
        let mut cpus = zone.cpus.clone();
        cpus.sort_unstable();
        (zone.kind.clone(), zone.parent, show_cpus(&cpus), zone.capacity.get(MEMORY) >> 30)
    };
    node.zones.iter().map(zone).collect()
}

fn zone(kind: &str, parent: Option<u8>, cpus: &str, gib: i64) -> (String, Option<u8>, String, i64) {
    (kind.to_owned(), parent, cpus.to_owned(), gib)
}

#[test]
fn host_names_become_lower_case_or_are_refused_with_advice() {
    let name = |name, host| node_name(name, Some(host)).map_err(|error| error.to_string());
    assert_eq!(name(None, "GPU-Node-01.example"), Ok("gpu-node-01.example".to_owned()));
    assert_eq!(name(Some("n1"), "GPU-Node_01"), Ok("n1".to_owned()));
    let rule = "is not allowed: lower-case letters, digits, `-` and `.` are";
    assert_eq!(
        name(None, "GPU-Node_01"),
        Err(format!(
            "the host name `GPU-Node_01` cannot be a node's name: `_` {rule}; give the node another one with --name"
        ))
    );
    assert_eq!(name(Some("N1"), "n1"), Err(format!("`N1` cannot be a node's name: `N` {rule}")));
    assert!(name(None, "").is_err());
    assert!(node_name(None, None).is_err());
    assert!(node_name(Some("n"), None).is_ok());
}

#[test]
fn this_machine_has_cpus_and_memory() {
    let node = this_machine(Some("me"), &Config::default()).unwrap();
    assert!(node.capacity.get(CPU) >= 1000 && node.capacity.get(MEMORY) > 1 << 20);
    assert_eq!(node.name, "me");
}

#[test]
fn a_laptop_has_one_zone_whose_cores_are_single_cpus() {
    let machine = Machine::new();
    for cpu in 0..8 {
        let first = cpu / 2 * 2;
        machine.cpu(cpu, 0, &format!("{first}-{}", first + 1), "0-15");
    }
    (8..16).for_each(|cpu| machine.cpu(cpu, 0, &cpu.to_string(), "0-15"));
    machine.write("sys/devices/system/cpu/online", "0-15\n");
    machine.write("sys/devices/system/node/online", "0\n");
    machine.numa(0, "0-15", 32);
    machine.memory(32);
    machine.nic("enp0s31f6", "e1000e", -1, None);
    machine.nic("wlp0s20f3", "iwlwifi", -1, Some(-1));
    machine.write("sys/class/net/lo/operstate", "unknown\n");
    machine.write("sys/class/net/docker0/speed", "10000\n");
    machine.disk("nvme0n1", 953, false, false);
    machine.disk("sda", 64, false, true);
    machine.write("sys/block/loop0/size", "8192\n");

    let Found { node, warnings } = found(&machine);
    assert_eq!(zones(&node), [zone("socket", None, "", 0), zone("numa", Some(0), "0-15", 32)]);
    assert_eq!(node.zones[1].cores().len(), 16);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("cores of one NUMA node have different numbers of usable hyper-threads"));
    // An interface without hardware, one that is down, and what is built into the processor are no devices.
    let devices: Vec<_> =
        node.devices.iter().map(|device| (device.model.as_str(), device.numa_zone)).collect();
    assert_eq!(devices, [("iwlwifi", 1)]);
    assert_eq!(
        (node.attributes["disks-nvme"].as_str(), node.attributes["disks-nvme-gib"].as_str()),
        ("1", "953")
    );
    assert!(!node.attributes.contains_key("disks-ssd"), "removable");
    assert_eq!(node.attributes["kernel"], "6.8.0-45-generic");
    assert_eq!(node.capacity.get(CPU), 16_000);
}

#[test]
fn a_virtual_machine_without_numa_nodes_is_one_zone() {
    let machine = Machine::new();
    (0..4).for_each(|cpu| machine.cpu(cpu, cpu, &cpu.to_string(), &cpu.to_string()));
    machine.write("sys/devices/system/cpu/online", "0-3\n");
    machine.memory(16);
    machine.nic("eth0", "virtio_net", -1, Some(-1));
    machine.disk("vda", 100, true, false);
    let Found { node, warnings } = found(&machine);
    assert_eq!(warnings, [""; 0]);
    // Each CPU is a socket: the one zone is in none, and its CPUs share no cache.
    let [whole, caches @ ..] = &zones(&node)[..] else { unreachable!() };
    assert_eq!((whole, caches.len()), (&zone("numa", None, "0-3", 16), 4));
    assert_eq!((node.devices[0].kind.as_str(), node.devices[0].numa_zone), ("nic", 0));
    assert_eq!(node.attributes["disks-hdd"], "1");
}

#[test]
fn memory_of_nodes_without_cpus_is_a_zone_of_its_own() {
    let shape = Shape { sockets: 2, numa: 1, cores: 2, threads: 2, l3: 2, gib: 64 };
    let machine = Machine::new().shaped(shape);
    machine.numa(2, "", 256);
    machine.write("sys/devices/system/node/online", "0-2\n");
    for (node, row) in [(0, "10 21 14"), (1, "21 10 24"), (2, "14 24 10")] {
        machine.write(&format!("sys/devices/system/node/node{node}/distance"), row);
    }
    machine.memory(384);
    let Found { node, warnings } = found(&machine);
    let expected = [
        zone("socket", None, "", 0),
        zone("socket", None, "", 0),
        zone("numa", Some(0), "0-1,4-5", 64),
        zone("numa", Some(1), "2-3,6-7", 64),
        zone("numa", None, "", 256),
    ];
    assert_eq!((zones(&node), warnings), (expected.to_vec(), Vec::new()));
    assert_eq!(node.zones[2].cpus, [0, 4, 1, 5]);
    assert!(node.zones[4].is_assigned());
    assert_eq!(node.memory_nodes, BTreeMap::from([(2, 0), (3, 1), (4, 2)]));
    assert_eq!((node.capacity.get(MEMORY) >> 30, node.zones[4].capacity.len()), (384, 1));
    assert_eq!(node.attributes["numa-distances"], "10,21,14;21,10,24;14,24,10");
}

#[test]
fn limits_of_version_2_and_a_reserve_cap_the_node() {
    let machine = Machine::new().shaped(Shape { sockets: 2, numa: 1, cores: 4, threads: 1, l3: 4, gib: 64 });
    machine.group(
        "",
        "/system.slice/godel.service",
        &[
            ("/system.slice/godel.service/cpu.max", "max 100000"),
            ("/system.slice/cpu.max", "350000 100000"),
            ("/system.slice/godel.service/memory.max", "max"),
            ("/system.slice/memory.max", "68719476736"),
            ("/system.slice/godel.service/cpuset.cpus.effective", "1-7"),
        ],
    );
    machine.write("proc/self/status", "Name:\tgodel\nCpus_allowed_list:\t0-5\nMems_allowed_list:\t0-1\n");
    let reserved = Config { reserve_cpu: "500m".into(), reserve_memory: "4Gi".into(), ..config() };
    let Found { node, warnings } = found_with(&machine, &reserved);
    assert_eq!((node.capacity.get(CPU), node.capacity.get(MEMORY) >> 30), (3_000, 60));
    let expected = [
        zone("socket", None, "", 0),
        zone("socket", None, "", 0),
        zone("numa", Some(0), "1-3", 30),
        zone("numa", Some(1), "4-5", 30),
    ];
    assert_eq!((zones(&node), warnings), (expected.to_vec(), Vec::new()));
    let of_zones: Vec<i64> = node.zones[2..].iter().map(|zone| zone.capacity.get(CPU)).collect();
    assert_eq!(of_zones, [3_000, 2_000], "no zone has more than the node");

    let greedy = Config { reserve_cpu: "4".into(), ..config() };
    let error = super::machine(machine.root(), None, &greedy).unwrap_err().to_string();
    assert_eq!(error, "agent.reserve_cpu is 4, but the machine has only 3.5");
}

#[test]
fn limits_of_version_1_cap_the_node() {
    let machine = Machine::new().shaped(Shape { sockets: 1, numa: 2, cores: 2, threads: 1, l3: 2, gib: 8 });
    machine.group(
        "cpu,cpuacct",
        "/docker/a",
        &[
            ("/docker/a/cpu.cfs_quota_us", "150000"),
            ("/docker/a/cpu.cfs_period_us", "100000"),
            ("/docker/cpu.cfs_quota_us", "-1"),
            ("/docker/cpu.cfs_period_us", "100000"),
        ],
    );
    machine.group(
        "memory",
        "/docker/a",
        &[
            ("/docker/a/memory.limit_in_bytes", "9223372036854771712"),
            ("/docker/memory.limit_in_bytes", "4294967296"),
        ],
    );
    machine.group("cpuset", "/docker/a", &[("/docker/a/cpuset.cpus", "2-3"), ("/docker/a/cpuset.mems", "1")]);
    let Found { node, warnings } = found(&machine);
    assert_eq!((node.capacity.get(CPU), node.capacity.get(MEMORY) >> 30), (1_500, 4));
    let expected = [zone("socket", None, "", 0), zone("numa", Some(0), "2-3", 4)];
    assert_eq!((zones(&node), warnings), (expected.to_vec(), Vec::new()));
}

#[test]
fn a_container_sees_its_own_group_below_the_mount() {
    let machine = Machine::new();
    machine.write("proc/self/cgroup", "0::/kubepods/pod1/c1\n");
    machine.write(
        "proc/self/mountinfo",
        "30 24 0:26 /kubepods/pod1 /sys/fs/my\\040groups rw - cgroup2 cgroup rw\n",
    );
    let hierarchies = limits::hierarchies(&Tree::new(machine.root()));
    assert_eq!(hierarchies[0].dirs(), ["/sys/fs/my groups/c1", "/sys/fs/my groups"]);
    machine.write("proc/self/cgroup", "0::/../other\n");
    machine.write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
    assert_eq!(limits::hierarchies(&Tree::new(machine.root())), []);
}

#[test]
fn an_inventory_file_says_what_is_not_found() {
    let machine = Machine::new().shaped(Shape { sockets: 1, numa: 2, cores: 2, threads: 1, l3: 2, gib: 8 });
    machine.nic("eth0", "mlx5_core", 1, Some(100_000));
    machine.write(
        "godel.toml",
        "replace_devices = ['nic']\n\
         [attributes]\nrack = 'r7'\nkernel = ''\n\
         [capacity]\nmemory = '8Gi'\nlicence = 2\n\
         [[devices]]\nkind = 'fpga'\nmodel = 'U250'\ncount = 2\nnuma = 1\n\
         [[devices]]\nkind = 'nic'\ngbps = 25\n",
    );
    let fixed = Config { inventory: Some(machine.root().join("godel.toml")), ..config() };
    let Found { node, warnings } = found_with(&machine, &fixed);
    assert_eq!(warnings, [""; 0]);
    assert_eq!((node.capacity.get(MEMORY) >> 30, node.capacity.get("licence")), (8, 2));
    assert_eq!((node.attributes["rack"].as_str(), node.attributes["kernel"].as_str()), ("r7", ""));
    assert!(!node.attributes.contains_key("nics"));
    let devices: Vec<_> = node
        .devices
        .iter()
        .map(|device| (device.kind.as_str(), device.numa_zone, device.known().gbps))
        .collect();
    // Nobody knows where the card is: it is near no zone that is assigned.
    assert_eq!(devices, [("fpga", 2, 0), ("fpga", 2, 0), ("nic", 3, 25)]);
    assert_eq!(zones(&node)[3], zone("elsewhere", None, "", 0));
    assert_eq!(zones(&node)[1], zone("numa", Some(0), "0-1", 4), "a zone has its part of what the node has");

    machine.write("godel.toml", "zones = []\n[[devices]]\nkind = 'fpga'\nnuma = 7\n");
    let Found { node, .. } = found_with(&machine, &fixed);
    assert!(node.zones.is_empty() && node.devices[1].numa_zone == 0);
    machine.write("godel.toml", "\nzone = []\n");
    let error = super::machine(machine.root(), None, &fixed).unwrap_err().to_string();
    assert!(error.contains("godel.toml:2: unknown field `zone`, expected one of"), "{error}");
    let missing = Config { inventory: Some("/nowhere.toml".into()), ..config() };
    let error = super::machine(machine.root(), None, &missing).unwrap_err().to_string();
    assert_eq!(error, "the inventory file /nowhere.toml cannot be read");
}
