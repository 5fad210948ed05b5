//! Groups of `resctrl` in a tree that is written by hand: few machines have the real one.

use tempfile::TempDir;

use super::*;
use crate::bandwidth::BandwidthAsk;

const GIB: i64 = 1 << 30;

/// A machine with two sockets of two CPUs, each with an L3 cache and a way to the memory.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.put("sys/fs/resctrl/schemata", "    MB:0=100;1=100\n    L3:0=fff;1=fff\n");
        machine.put("sys/fs/resctrl/tasks", "");
        machine.put("sys/fs/resctrl/info/MB/min_bandwidth", "10\n");
        machine.put("sys/fs/resctrl/info/MB/bandwidth_gran", "10\n");
        machine.put("sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\n");
        fs::create_dir(machine.path("sys/fs/resctrl/mon_groups")).unwrap();
        for cpu in 0..4 {
            let caches = format!("sys/devices/system/cpu/cpu{cpu}/cache");
            machine.put(&format!("{caches}/index0/level"), "1\n");
            machine.put(&format!("{caches}/index3/level"), "3\n");
            machine.put(&format!("{caches}/index3/id"), &format!("{}\n", cpu / 2));
            machine.put(&format!("{caches}/index3/shared_cpu_list"), if cpu < 2 { "0-1\n" } else { "2-3\n" });
        }
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

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(&format!("sys/fs/resctrl/{path}"))).unwrap_or_default()
    }

    fn has(&self, path: &str) -> bool {
        self.path(&format!("sys/fs/resctrl/{path}")).exists()
    }

    /// The kernel makes this directory with each group.
    fn make_best_effort(&self) {
        fs::create_dir_all(self.path("sys/fs/resctrl/godel-x-best-effort/mon_groups")).unwrap();
    }

    /// The kernel removes the files of a group with it.
    fn empty(&self, group: &str) {
        let group = self.path(&format!("sys/fs/resctrl/{group}"));
        for file in ["tasks", "schemata"] {
            let _absent = fs::remove_file(group.join(file));
        }
        for dir in ["mon_groups", "mon_data/mon_L3_00", "mon_data/mon_L3_01", "mon_data"] {
            let _counter = fs::remove_file(group.join(dir).join("mbm_total_bytes"));
            let _absent = fs::remove_dir(group.join(dir));
        }
    }

    fn open(&self, offered: i64) -> Result<Resctrl, String> {
        Resctrl::open(&Tree::new(self.0.path()), "x", offered)
    }

    /// A run with one process, which has two threads.
    fn member(&self, name: &str, pid: u32, ask: BandwidthAsk) -> Member {
        let dir = self.path(&format!("groups/{name}"));
        self.put(&format!("groups/{name}/cgroup.procs"), &format!("{pid}\n"));
        for thread in [pid, pid + 1] {
            fs::create_dir_all(self.path(&format!("proc/{pid}/task/{thread}"))).unwrap();
        }
        let group = serde_json::from_value(serde_json::json!({"dirs": [["", dir]]})).unwrap();
        Member { name: name.to_owned(), group, ask }
    }
}

fn asks(memory: i64, cpus: &[u32]) -> BandwidthAsk {
    BandwidthAsk { memory: Some(memory), cpus: cpus.to_vec(), ..BandwidthAsk::default() }
}

#[test]
fn runs_have_groups_with_what_they_ask_for() {
    let machine = Machine::new();
    // What an earlier agent of the name has left, and one that has ended; others' groups stay.
    for left in [
        "godel-x-1-0-0.0",
        "godel-4000000-2-0-0.0",
        "mon_groups/godel-x-3-0-0.0",
        "others",
        "godel-y-1-0-0.0",
    ] {
        fs::create_dir(machine.path(&format!("sys/fs/resctrl/{left}"))).unwrap();
    }
    let mut resctrl = machine.open(100 * GIB).unwrap();
    assert_eq!(resctrl.care(), Care::Kept(String::new()));
    let left = [
        "godel-x-1-0-0.0",
        "godel-4000000-2-0-0.0",
        "mon_groups/godel-x-3-0-0.0",
        "others",
        "godel-y-1-0-0.0",
    ];
    machine.make_best_effort();
    assert_eq!(left.map(|left| machine.has(left)), [false, false, false, true, true]);

    // 20 of 50 GiB/s of one way, in steps of 10 %.
    let near = machine.member("7-0-1.0", 100, asks(20 * GIB, &[2, 3]));
    let tasks = resctrl.join(&near).unwrap();
    assert_eq!(tasks, machine.path("sys/fs/resctrl/godel-x-7-0-1.0/tasks"));
    assert_eq!(machine.text("godel-x-7-0-1.0/schemata"), "MB:1=40\n");
    // 15 GiB/s of both.
    let far = machine.member("8-0-0.0", 200, asks(30 * GIB, &[]));
    let least = machine.member("9-0-0.0", 300, asks(1, &[0]));
    let rest = machine.member("10-0-0.0", 400, BandwidthAsk::default());
    let idle = machine.member("11-0-0.0", 500, BandwidthAsk { is_best_effort: true, ..asks(GIB, &[]) });
    let all = [near, far, least, rest, idle];
    resctrl.keep_to(&all);
    assert_eq!(machine.text("godel-x-8-0-0.0/schemata"), "MB:0=30;1=30\n");
    assert_eq!(machine.text("godel-x-9-0-0.0/schemata"), "MB:0=10\n");
    // Best-effort work has what nobody asks for, together.
    assert_eq!(machine.text("godel-x-best-effort/schemata"), "MB:0=60;1=30\n");
    // Threads that were outside are moved, each by itself.
    for (group, tasks) in [
        ("godel-x-7-0-1.0", "100\n101\n"),
        ("mon_groups/godel-x-10-0-0.0", "400\n401\n"),
        ("godel-x-best-effort/mon_groups/godel-x-11-0-0.0", "500\n501\n"),
    ] {
        assert_eq!(machine.text(&format!("{group}/tasks")), tasks, "{group}");
    }
    resctrl.keep_to(&all);
    assert_eq!(machine.text("godel-x-7-0-1.0/tasks"), "100\n101\n", "they are inside");

    for (way, bytes) in [("00", "1000\n"), ("01", "Unavailable\n")] {
        let counter = format!("sys/fs/resctrl/godel-x-8-0-0.0/mon_data/mon_L3_{way}/mbm_total_bytes");
        machine.put(&counter, bytes);
    }
    assert_eq!(resctrl.counts(), BTreeMap::from([("8-0-0.0".to_owned(), 1_000)]));

    // Who has gone leaves its part to the others.
    machine.empty("godel-x-8-0-0.0");
    resctrl.keep_to(&[all[0].clone(), all[4].clone()]);
    assert!(!machine.has("godel-x-8-0-0.0"));
    assert_eq!(machine.text("godel-x-best-effort/schemata"), "MB:0=100;1=60\n");
    // What lives when the agent ends stays as it is.
    machine.put("groups/7-0-1.0/cgroup.procs", "");
    machine.empty("godel-x-7-0-1.0");
    drop(resctrl);
    assert!(!machine.has("godel-x-7-0-1.0") && machine.has("godel-x-best-effort/schemata"));
}

#[test]
fn shares_may_be_in_mebibytes_per_second() {
    let machine = Machine::new();
    machine.put("proc/self/mountinfo", "61 24 0:50 / /sys/fs/resctrl rw - resctrl resctrl rw,mba_MBps\n");
    let mut resctrl = machine.open(2 * GIB).unwrap();
    resctrl.join(&machine.member("1-0-0.0", 100, asks(GIB / 2, &[0])));
    assert_eq!(machine.text("godel-x-1-0-0.0/schemata"), "MB:0=512\n");
    machine.make_best_effort();
    resctrl.join(&machine.member(
        "2-0-0.0",
        200,
        BandwidthAsk { is_best_effort: true, ..BandwidthAsk::default() },
    ));
    assert_eq!(machine.text("godel-x-best-effort/schemata"), "MB:0=512;1=1024\n");
}

#[test]
fn what_a_machine_cannot_is_said() {
    let machine = Machine::new();
    let why = |offered: i64| machine.open(offered).map(|opened| opened.care());
    let none = Care::Measured("the node offers no `memory-bandwidth` that units could ask for".to_owned());
    assert_eq!(why(0), Ok(none));
    fs::remove_dir_all(machine.path("sys/fs/resctrl/info/MB")).unwrap();
    assert_eq!(why(GIB), Ok(Care::Measured("the CPUs cannot keep memory bandwidth".to_owned())));
    machine.put("sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\n");
    let neither = "the CPUs cannot keep memory bandwidth, and the CPUs do not count it";
    assert_eq!(why(GIB), Err(neither.to_owned()));
    let none = Resctrl::open(&Tree::new(machine.path("nothing").as_path()), "x", GIB).unwrap_err();
    assert!(none.starts_with("`resctrl` is not mounted"), "{none}");
}

#[test]
fn without_a_free_group_a_run_is_left_out_until_one_goes() {
    let machine = Machine::new();
    let mut resctrl = machine.open(100 * GIB).unwrap();
    let (first, second) =
        (machine.member("1-0-0.0", 100, asks(GIB, &[])), machine.member("2-0-0.0", 200, asks(GIB, &[])));
    assert!(resctrl.join(&first).is_some());
    // In the place of what the kernel says when all numbers of groups are taken.
    machine.put("sys/fs/resctrl/godel-x-2-0-0.0", "no directory");
    assert_eq!(resctrl.join(&second), None);
    fs::remove_file(machine.path("sys/fs/resctrl/godel-x-2-0-0.0")).unwrap();
    assert_eq!(resctrl.join(&second), None, "not again and again");
    machine.empty("godel-x-1-0-0.0");
    resctrl.keep_to(std::slice::from_ref(&second));
    assert!(machine.has("godel-x-2-0-0.0/schemata"));
}
