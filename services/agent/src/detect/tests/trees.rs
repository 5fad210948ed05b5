//! Trees of procfs and sysfs that tests write by hand, after real machines.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A machine's procfs and sysfs in a temporary directory.
pub(super) struct Machine {
    dir: TempDir,
}

/// Sockets, NUMA nodes and cores of a machine that is the same everywhere.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) sockets: u32,
    /// Per socket.
    pub(super) numa: u32,
    /// Per NUMA node.
    pub(super) cores: u32,
    pub(super) threads: u32,
    /// Cores with one L3 cache.
    pub(super) l3: u32,
    /// Per NUMA node.
    pub(super) gib: u64,
}

/// Numbers as Linux lists them.
fn list(numbers: impl IntoIterator<Item = u32>) -> String {
    numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

impl Machine {
    /// A machine of which only the name and the kernel are known.
    pub(super) fn new() -> Self {
        let machine = Self { dir: tempfile::tempdir().unwrap() };
        machine.write("proc/sys/kernel/hostname", "host\n");
        machine.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
        machine
    }

    pub(super) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.dir.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    pub(super) fn link(&self, path: &str, target: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// One CPU as the kernel describes it.
    pub(super) fn cpu(&self, cpu: u32, socket: u32, core: &str, l3: &str) {
        let path = format!("sys/devices/system/cpu/cpu{cpu}");
        self.write(&format!("{path}/topology/physical_package_id"), &format!("{socket}\n"));
        self.write(&format!("{path}/topology/thread_siblings_list"), &format!("{core}\n"));
        for (idx, level) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
            self.write(&format!("{path}/cache/index{idx}/level"), &format!("{level}\n"));
            let shared = if level == 3 { l3 } else { core };
            self.write(&format!("{path}/cache/index{idx}/shared_cpu_list"), &format!("{shared}\n"));
        }
    }

    /// One NUMA node.
    pub(super) fn numa(&self, node: u32, cpus: &str, gib: u64) {
        let path = format!("sys/devices/system/node/node{node}");
        self.write(&format!("{path}/cpulist"), &format!("{cpus}\n"));
        let kib = gib << 20;
        let meminfo =
            format!("\nNode {node} MemTotal:       {kib} kB\nNode {node} MemFree:        1024 kB\n");
        self.write(&format!("{path}/meminfo"), &meminfo);
    }

    pub(super) fn memory(&self, gib: u64) {
        self.write("proc/meminfo", &format!("MemTotal:       {} kB\nMemFree:        1024 kB\n", gib << 20));
    }

    /// CPUs, NUMA nodes and memory of a machine that is the same everywhere, as Linux numbers them: the first thread of
    /// every core, then the second ones.
    pub(super) fn shaped(self, shape: Shape) -> Self {
        let Shape { sockets, numa, cores, threads, l3, gib } = shape;
        let n_nodes = sockets * numa;
        let n_cores = n_nodes * cores;
        let threads_of = |core: u32| (0..threads).map(move |thread| core + thread * n_cores);
        for core in 0..n_cores {
            let group = core / l3 * l3;
            let shared = list((0..threads).flat_map(|t| (group..group + l3).map(move |c| c + t * n_cores)));
            for cpu in threads_of(core) {
                self.cpu(cpu, core / cores / numa, &list(threads_of(core)), &shared);
            }
        }
        self.write("sys/devices/system/cpu/online", &format!("0-{}\n", n_cores * threads - 1));
        self.write("sys/devices/system/node/online", &format!("0-{}\n", n_nodes - 1));
        for node in 0..n_nodes {
            let of =
                (0..threads).flat_map(|t| (node * cores..(node + 1) * cores).map(move |c| c + t * n_cores));
            self.numa(node, &list(of), gib);
            let distance = |other: u32| match other {
                other if other == node => "10",
                other if other / numa == node / numa => "12",
                _ => "21",
            };
            let row = (0..n_nodes).map(distance).collect::<Vec<_>>().join(" ");
            self.write(&format!("sys/devices/system/node/node{node}/distance"), &format!("{row}\n"));
        }
        self.memory(u64::from(n_nodes) * gib);
        self
    }

    pub(super) fn nic(&self, name: &str, driver: &str, numa: i32, speed: Option<i64>) {
        let path = format!("sys/class/net/{name}");
        self.write(&format!("{path}/operstate"), if speed.is_some() { "up\n" } else { "down\n" });
        self.write(&format!("{path}/device/numa_node"), &format!("{numa}\n"));
        self.link(&format!("{path}/device/driver"), &format!("../../../bus/pci/drivers/{driver}"));
        if let Some(mbps) = speed {
            self.write(&format!("{path}/speed"), &format!("{mbps}\n"));
        }
    }

    pub(super) fn disk(&self, name: &str, gib: u64, turns: bool, removable: bool) {
        let path = format!("sys/block/{name}");
        self.write(&format!("{path}/size"), &format!("{}\n", gib << 21));
        self.write(&format!("{path}/queue/rotational"), if turns { "1\n" } else { "0\n" });
        self.write(&format!("{path}/removable"), if removable { "1\n" } else { "0\n" });
        self.write(&format!("{path}/device/vendor"), "x\n");
    }

    /// A GPU of which NVIDIA's driver knows.
    pub(super) fn nvidia(&self, bus: &str, numa: i32) {
        self.write(
            &format!("proc/driver/nvidia/gpus/{bus}/information"),
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 470\nGPU Firmware: \t 550.54\n",
        );
        self.write(&format!("sys/bus/pci/devices/{bus}/numa_node"), &format!("{numa}\n"));
    }

    /// A group of this process in a hierarchy of version 1 or 2 that is mounted as most systems do.
    pub(super) fn group(&self, controllers: &str, group: &str, files: &[(&str, &str)]) {
        let mount = if controllers.is_empty() {
            "/sys/fs/cgroup".to_owned()
        } else {
            format!("/sys/fs/cgroup/{controllers}")
        };
        let kind = if controllers.is_empty() { "cgroup2" } else { "cgroup" };
        let id = u32::from(!controllers.is_empty());
        let mut text = fs::read_to_string(self.root().join("proc/self/cgroup")).unwrap_or_default();
        writeln!(text, "{id}:{controllers}:{group}").unwrap();
        self.write("proc/self/cgroup", &text);
        let mut text = fs::read_to_string(self.root().join("proc/self/mountinfo")).unwrap_or_default();
        writeln!(text, "35 24 0:30 / {mount} rw,nosuid - {kind} {kind} rw,{controllers}").unwrap();
        self.write("proc/self/mountinfo", &text);
        for (name, value) in files {
            self.write(&format!("{}{name}", mount.trim_start_matches('/')), &format!("{value}\n"));
        }
    }

    /// Compiles the stand-in for NVIDIA's library with some definitions, and returns where it is.
    pub(super) fn nvml(&self, definitions: &[&str]) -> String {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/detect/tests/nvml.c");
        let library: PathBuf = self.dir.path().join("libnvidia-ml.so.1");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
        compiler.args(definitions.iter().map(|definition| format!("-D{definition}")));
        let output = compiler.output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        library.display().to_string()
    }
}
