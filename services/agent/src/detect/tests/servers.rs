//! Large machines, and GPUs.

use godel_kit::config::HumanDuration;

use super::*;
use crate::detect::nvml::{GpuUse, Nvml};

/// Two sockets with 56 cores each, four H100 near each, with switches between them.
fn gpu_server() -> Machine {
    let shape = Shape { sockets: 2, numa: 1, cores: 56, threads: 2, l3: 56, gib: 1024 };
    let machine = Machine::new().shaped(shape);
    for (bus, numa) in
        [("18", 0), ("29", 0), ("3a", 0), ("4b", 0), ("88", 1), ("99", 1), ("aa", 1), ("bb", 1)]
    {
        machine.nvidia(&format!("0000:{bus}:00.0"), numa);
    }
    for card in 0..8 {
        machine.nic(&format!("ens{card}np0"), "mlx5_core", card / 4, Some(400_000));
    }
    machine.nic("eno1", "ixgbe", 0, Some(10_000));
    machine.nic("eno2", "ixgbe", 0, None);
    machine.nic("ens0v0", "mlx5_core", 0, Some(400_000));
    machine.write("sys/class/net/ens0v0/device/physfn/vendor", "0x15b3\n");
    (0..4).for_each(|disk| machine.disk(&format!("nvme{disk}n1"), 3_576, false, false));
    machine.write("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "16\n");
    machine.write("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "0\n");
    machine
}

fn with_library(library: String) -> Config {
    Config { nvml_library: library, ..Config::default() }
}

/// Model, zone and group of links of each GPU.
fn gpus(node: &NodeDef) -> Vec<(&str, u32, u32)> {
    let gpus = node.devices.iter().filter(|device| device.kind == "gpu");
    gpus.map(|gpu| (gpu.model.as_str(), gpu.numa_zone, gpu.known().link_group)).collect()
}

#[test]
fn a_server_with_eight_gpus_has_them_near_its_sockets() {
    let machine = gpu_server();
    let library = machine.nvml(&[]);
    let Found { node, warnings } = found_with(&machine, &with_library(library));
    assert_eq!(warnings, [""; 0]);
    let expected = [
        zone("socket", None, "", 0),
        zone("socket", None, "", 0),
        zone("numa", Some(0), "0-55,112-167", 1008),
        zone("numa", Some(1), "56-111,168-223", 1024),
    ];
    assert_eq!(zones(&node), expected);
    assert_eq!((node.zones[2].cores().len(), &node.zones[2].cpus[..4]), (56, &[0, 112, 1, 113][..]));
    assert_eq!(node.zones[2].capacity.get("hugepages-1Gi"), 16 << 30);
    assert_eq!((node.capacity.get(CPU), node.capacity.get(MEMORY) >> 30), (224_000, 2032));
    let h100 = |zone| ("H100-80GB-HBM3", zone, 1);
    assert_eq!(gpus(&node), [h100(2), h100(2), h100(2), h100(2), h100(3), h100(3), h100(3), h100(3)]);
    let first = node.devices[0].known();
    assert_eq!((first.memory, first.link.as_str()), (81_559 << 20, "nvlink"));
    assert_eq!(node.attributes[GPU_MODEL], "H100-80GB-HBM3");
    let nics: Vec<_> = node.devices[8..].iter().map(|nic| (nic.known().gbps, nic.numa_zone)).collect();
    let fast = |zone| (400, zone);
    assert_eq!(nics, [(10, 2), fast(2), fast(2), fast(2), fast(2), fast(3), fast(3), fast(3), fast(3)]);
    assert!(node.attributes["nics"].starts_with("eno1,ens0np0,ens1np0"));
    assert_eq!(
        (node.attributes["disks-nvme"].as_str(), node.attributes["numa-distances"].as_str()),
        ("4", "10,21;21,10")
    );
}

#[test]
fn gpus_that_are_linked_in_a_mesh_are_groups_of_each_with_each() {
    let machine = gpu_server();
    let library = machine.nvml(&["MESH", "NAME=\"Tesla V100-SXM2-16GB\"", "MIB=16160ull"]);
    let Found { node, .. } = found_with(&machine, &with_library(library));
    let groups: Vec<u32> = gpus(&node).iter().map(|(.., group)| *group).collect();
    assert_eq!(groups, [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(gpus(&node)[0].0, "Tesla-V100-SXM2-16GB");
}

#[test]
fn a_gpu_that_does_not_answer_is_left_out_with_a_warning() {
    let machine = gpu_server();
    let library = machine.nvml(&["LOST=2"]);
    let Found { node, warnings } = found_with(&machine, &with_library(library));
    assert_eq!(gpus(&node).len(), 7);
    let expected = [
        "GPU 2 of NVIDIA's management library is left out: nvmlDeviceGetHandleByIndex_v2: the GPU has fallen off the bus (15)",
        "GPU 0000:3a:00.0 is left out: NVIDIA's driver lists it, but the management library does not",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn without_a_working_library_the_driver_lists_the_gpus() {
    let machine = gpu_server();
    let unknown = "memory and links of NVIDIA's GPUs are not known";
    for (definitions, why) in [
        (None, ": there is no /nowhere/libnvidia-ml.so.1"),
        (Some("INIT=18"), "nvmlInit_v2: the driver and the library are of different versions (18)"),
        (Some("INIT=9"), "nvmlInit_v2: the driver is not loaded (9)"),
        (Some("NO_COUNT"), "it has no function nvmlDeviceGetCount_v2"),
    ] {
        let library = match definitions {
            None => config().nvml_library,
            Some(definition) => machine.nvml(&[definition]),
        };
        let Found { node, warnings } = found_with(&machine, &with_library(library));
        assert_eq!(gpus(&node)[7], ("H100-80GB-HBM3", 3, 0), "{why}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let said = format!(": {}", warnings[0]);
        assert!(said.contains(why) && said.ends_with(unknown), "{said}");
    }
    machine.write("libnvidia-ml.so.1", "no library");
    let library = machine.root().join("libnvidia-ml.so.1").display().to_string();
    let Found { warnings, .. } = found_with(&machine, &with_library(library));
    assert!(warnings[0].contains("does not work") && warnings[0].contains("file too short"), "{warnings:?}");
}

#[test]
fn a_library_that_hangs_is_left_alone() {
    let machine = gpu_server();
    let library = machine.nvml(&["HANGS"]);
    let patient = Config { nvml_timeout: HumanDuration::from_millis(50), ..with_library(library) };
    let Found { node, warnings } = found_with(&machine, &patient);
    assert_eq!(gpus(&node)[7], ("H100-80GB-HBM3", 3, 0));
    assert!(warnings[0].contains("does not answer within 0.05 s"), "{warnings:?}");
}

#[test]
fn the_library_says_what_gpus_are_used() {
    let machine = gpu_server();
    let used = |percent, gib: i64| GpuUse { percent, memory: gib << 30 };
    let nvml = Nvml::open(&machine.nvml(&["N_GPUS=3"])).unwrap();
    assert_eq!(nvml.uses(), [used(0, 0), used(10, 1), used(20, 2)]);
    assert!(Nvml::open("/nowhere/libnvidia-ml.so.1").is_err());
}

#[test]
fn a_node_with_more_cores_than_a_zone_may_have_is_divided() {
    let shape = Shape { sockets: 2, numa: 1, cores: 96, threads: 2, l3: 8, gib: 768 };
    let Found { node, warnings } = found(&Machine::new().shaped(shape));
    let kinds = |kind: &str| node.zones.iter().filter(|zone| zone.kind == kind).count();
    assert_eq!((kinds("socket"), kinds("numa"), kinds("part"), kinds("l3")), (2, 2, 4, 24));
    assert_eq!(warnings[0], "NUMA node 0 has 96 cores, more than 64: it is divided into 2 parts");
    assert_eq!(warnings.len(), 2);
    let first = node.zones.iter().find(|zone| zone.kind == "part").unwrap();
    assert_eq!((first.cores().len(), first.capacity.get(MEMORY) >> 30, first.parent), (48, 384, Some(2)));
    assert!(!node.zones[2].is_assigned());
    assert_eq!(node.memory_nodes.values().copied().collect::<Vec<_>>(), [0, 0, 1, 1], "by part");
    // One cache for all: parts of single cores.
    let shape = Shape { sockets: 1, numa: 1, cores: 144, threads: 1, l3: 144, gib: 96 };
    let Found { node, .. } = found(&Machine::new().shaped(shape));
    let parts = node.zones.iter().filter(|zone| zone.kind == "part");
    assert_eq!(parts.map(|zone| zone.cores().len()).collect::<Vec<_>>(), [48, 48, 48]);
}

#[test]
fn zones_beyond_the_limit_make_the_node_coarser() {
    let shape = Shape { sockets: 2, numa: 4, cores: 16, threads: 2, l3: 2, gib: 64 };
    let Found { node, warnings } = found(&Machine::new().shaped(shape));
    assert_eq!((node.zones.len(), node.zones[9].kind.as_str()), (10, "numa"));
    assert_eq!(warnings, ["more than 63 zones: groups of cores with one L3 cache are left out"]);
    let shape = Shape { sockets: 16, numa: 8, cores: 1, threads: 1, l3: 1, gib: 1 };
    let Found { node, warnings } = found(&Machine::new().shaped(shape));
    assert!(node.zones.is_empty() && node.capacity.get(CPU) == 128_000);
    assert_eq!(warnings, ["144 sockets and NUMA nodes, at most 63: the node is one whole"]);
}

#[test]
fn cards_of_amd_are_found_with_their_links() {
    let machine = Machine::new().shaped(Shape { sockets: 1, numa: 2, cores: 4, threads: 1, l3: 4, gib: 8 });
    let kfd = "sys/class/kfd/kfd/topology/nodes";
    machine.write(&format!("{kfd}/0/properties"), "cpu_cores_count 8\nsimd_count 0\n");
    for (node, bus, numa) in [(1, 0x0c, 0), (2, 0x22, 1)] {
        let location = bus << 8;
        let text = format!("cpu_cores_count 0\nsimd_count 1216\ndomain 0\nlocation_id {location}\n");
        machine.write(&format!("{kfd}/{node}/properties"), &text);
        machine.write(&format!("{kfd}/{node}/io_links/0/properties"), "type 2\nnode_from 1\nnode_to 0\n");
        let link = format!("type 11\nnode_from {node}\nnode_to {}\n", 3 - node);
        machine.write(&format!("{kfd}/{node}/io_links/1/properties"), &link);
        let device = format!("sys/bus/pci/devices/0000:{bus:02x}:00.0");
        machine.write(&format!("{device}/vendor"), "0x1002\n");
        machine.write(&format!("{device}/product_name"), "AMD Instinct MI300X\n");
        machine.write(&format!("{device}/mem_info_vram_total"), &format!("{}\n", 192u64 << 30));
        machine.write(&format!("{device}/numa_node"), &format!("{numa}\n"));
    }
    let Found { node, warnings } = found(&machine);
    assert_eq!(
        (gpus(&node), warnings),
        (vec![("AMD-Instinct-MI300X", 1, 1), ("AMD-Instinct-MI300X", 2, 1)], Vec::new())
    );
    let first = node.devices[0].known();
    assert_eq!((first.memory >> 30, first.link.as_str()), (192, "xgmi"));
}

#[test]
fn infiniband_ports_have_a_rate_where_the_interface_has_none() {
    let machine = Machine::new().shaped(Shape { sockets: 1, numa: 1, cores: 2, threads: 1, l3: 2, gib: 8 });
    machine.nic("ib0", "mlx5_core", 0, None);
    let port = "sys/class/net/ib0/device/infiniband/mlx5_0/ports/1";
    machine.write(&format!("{port}/state"), "4: ACTIVE\n");
    machine.write(&format!("{port}/rate"), "200 Gb/sec (4X HDR)\n");
    assert_eq!(found(&machine).node.devices[0].known().gbps, 200);
    machine.write(&format!("{port}/state"), "1: DOWN\n");
    assert!(found(&machine).node.devices.is_empty());
}
