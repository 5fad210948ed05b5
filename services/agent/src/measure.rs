//! What a real machine and its running units use: CPU time and memory of control groups, of zones and of the whole, and what its
//! network interfaces carry.
//!
//! Counters rise for ever, so use is the difference of two looks ([`Meter::look`]). A file that cannot be read counts for
//! nothing: a machine without control groups has use of its own and none of its running units.

use std::collections::BTreeMap;

use godel_domain::{node_load::LoadAmounts, time::Millis};
use rustc_hash::FxHashMap;

use crate::{
    bandwidth::{Care, Rates},
    detect::tree::Tree,
    inventory::NodeDef,
    life::Key,
    runtime::process::RunsUse,
};

/// Directory of the network interfaces.
const NET: &str = "/sys/class/net";

/// Clock ticks of `/proc/stat` in a second: fixed by the kernel's interface on every architecture.
const TICKS_PER_S: u64 = 100;
/// Two looks that are closer say nothing: ticks are 10 ms.
const PAUSE_MS_MIN: u64 = 100;
/// Fields of a CPU in `/proc/stat` that are not idle, from the first: user, nice, system; then interrupts and what a hypervisor took.
const BUSY_FIELDS: [usize; 6] = [0, 1, 2, 5, 6, 7];

/// CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    /// Milli-cores over the time since the last look.
    pub(crate) cpu_milli: i64,
    /// Bytes now, without what the kernel could give back at once.
    pub(crate) memory: i64,
}

/// What was found at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// The machine.
    pub(crate) node: LoadAmounts,
    /// Bits per second that it receives and sends.
    pub(crate) network: (i64, i64),
    /// Its running units that have control groups, by incarnation.
    pub(crate) runs: BTreeMap<(Key, u32), Use>,
    /// Their bandwidths, where they are measured.
    pub(crate) rates: BTreeMap<(Key, u32), Rates>,
    /// What is done about the network and about memory bandwidth.
    pub(crate) care: Option<(Care, Care)>,
    /// By index.
    pub(crate) zones: BTreeMap<usize, LoadAmounts>,
    /// Memory of the machine that could be used at once, bytes.
    pub(crate) memory_available: i64,
    /// Memory of the machine, bytes.
    pub(crate) memory_total: i64,
}

/// CPUs and NUMA nodes of a zone.
#[derive(Clone, Debug)]
struct ZoneParts {
    cpus: Vec<u32>,
    memory_node: Option<u32>,
    /// The network interfaces that lie near it.
    interfaces: Vec<String>,
}

/// Counters of one look.
#[derive(Clone, Debug, Default)]
struct Counters {
    at: Millis,
    /// Busy ticks of all CPUs.
    busy: u64,
    /// Busy ticks by CPU.
    busy_of: BTreeMap<u32, u64>,
    /// Bytes received and sent, by interface.
    network: BTreeMap<String, (u64, u64)>,
    /// Microseconds.
    runs: FxHashMap<(Key, u32), u64>,
}

/// Looks at a machine again and again.
#[derive(Debug)]
pub(crate) struct Meter {
    tree: Tree,
    zones: BTreeMap<usize, ZoneParts>,
    last: Option<Counters>,
}

impl Counters {
    /// Bits per second that some interfaces have received and sent since an earlier look.
    fn traffic(&self, last: &Self, is_meant: impl Fn(&String) -> bool) -> (i64, i64) {
        let pause_ms = self.at.since(last.at).max(1);
        let bits = |more: u64| to_i64(more.saturating_mul(8_000) / pause_ms);
        let of_one = |(name, (received, sent)): (&String, &(u64, u64))| {
            // One that has just come began with nothing that counts.
            let (received_before, sent_before) =
                last.network.get(name).copied().unwrap_or((*received, *sent));
            (bits(received.saturating_sub(received_before)), bits(sent.saturating_sub(sent_before)))
        };
        let all = self.network.iter().filter(|(name, _)| is_meant(name)).map(of_one);
        all.fold((0, 0), |sum: (i64, i64), (received, sent)| {
            (sum.0.saturating_add(received), sum.1.saturating_add(sent))
        })
    }
}

impl Meter {
    /// Looks at the machine below a root.
    pub(crate) fn new(tree: Tree, node: &NodeDef) -> Self {
        let assigned = node.zones.iter().enumerate().filter(|(_, zone)| zone.is_assigned());
        let interfaces = tree.names(NET);
        let parts = assigned.map(|(at, zone)| {
            let memory_node = node.memory_nodes.get(&at).copied();
            let is_near = |name: &&String| {
                let numa = tree.number::<i64>(&format!("{NET}/{name}/device/numa_node"));
                numa.is_some_and(|numa| memory_node.map(i64::from) == Some(numa))
            };
            let interfaces = interfaces.iter().filter(is_near).cloned().collect();
            (at, ZoneParts { cpus: zone.cpus.clone(), memory_node, interfaces })
        });
        Self { zones: parts.collect(), tree, last: None }
    }

    /// What is used since the last look; `None` at the first, or if the last was a moment ago.
    pub(crate) fn look(
        &mut self,
        RunsUse { groups, rates, care }: &RunsUse,
        now: Millis,
    ) -> Option<Measured> {
        let is_soon = self.last.as_ref().is_some_and(|last| now.since(last.at) < PAUSE_MS_MIN);
        if is_soon {
            return None;
        }
        let mut counters = self.counters(now);
        let mut runs: BTreeMap<(Key, u32), (u64, u64)> = BTreeMap::new();
        for (name, usage) in groups {
            // Starts in place have a group each.
            let Some(run) = run_of(name) else { continue };
            let (cpu_us, memory) = runs.entry(run).or_default();
            *cpu_us += usage.cpu_us;
            *memory += usage.memory;
        }
        counters.runs = runs.iter().map(|(run, (cpu_us, _))| (*run, *cpu_us)).collect();
        let last = self.last.replace(counters)?;
        let counters = self.last.as_ref()?;
        let pause_ms = now.since(last.at).max(1);
        let milli_of_ticks = |ticks: u64| to_i64(ticks.saturating_mul(1_000_000 / TICKS_PER_S) / pause_ms);
        let memory = memory(&self.tree.text("/proc/meminfo").unwrap_or_default());
        let runs = runs.into_iter().map(|(run, (cpu_us, memory))| {
            // A group that has just been made began with nothing.
            let before = last.runs.get(&run).copied().unwrap_or(0);
            let cpu_milli = to_i64(cpu_us.saturating_sub(before) / pause_ms);
            (run, Use { cpu_milli, memory: to_i64(memory) })
        });
        let zones = self.zones.iter().map(|(at, parts)| {
            let ticks = parts.cpus.iter().map(|cpu| {
                let of = |counters: &Counters| counters.busy_of.get(cpu).copied().unwrap_or(0);
                of(counters).saturating_sub(of(&last))
            });
            let memory = parts.memory_node.map_or(0, |node| self.memory_of_node(node));
            let (received, sent) = counters.traffic(&last, |name| parts.interfaces.contains(name));
            let network = received.saturating_add(sent);
            (*at, LoadAmounts { cpu: milli_of_ticks(ticks.sum()), memory, network })
        });
        let network = counters.traffic(&last, |_| true);
        let mut rates_of: BTreeMap<(Key, u32), Rates> = BTreeMap::new();
        for (name, rates) in rates {
            let Some(run) = run_of(name) else { continue };
            let sum = rates_of.entry(run).or_default();
            *sum = sum.plus(*rates);
        }
        Some(Measured {
            node: LoadAmounts {
                cpu: milli_of_ticks(counters.busy.saturating_sub(last.busy)),
                memory: (memory.total - memory.available).max(0),
                network: network.0.saturating_add(network.1),
            },
            network,
            runs: runs.collect(),
            rates: rates_of,
            care: care.clone(),
            zones: zones.collect(),
            memory_available: memory.available,
            memory_total: memory.total,
        })
    }

    fn counters(&self, at: Millis) -> Counters {
        let stat = self.tree.text("/proc/stat").unwrap_or_default();
        let mut counters = Counters { at, network: self.network(), ..Counters::default() };
        for line in stat.lines() {
            let Some(rest) = line.strip_prefix("cpu") else { continue };
            let mut fields = rest.split_ascii_whitespace();
            let number = if rest.starts_with(' ') { None } else { fields.next() };
            let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
            let busy = BUSY_FIELDS.iter().map(|at| ticks.get(*at).copied().unwrap_or(0)).sum();
            match number.map(str::parse) {
                None => counters.busy = busy,
                Some(Ok(cpu)) => drop(counters.busy_of.insert(cpu, busy)),
                Some(Err(_)) => {}
            }
        }
        counters
    }

    /// Bytes that the interfaces of the machine have received and sent: not those that only exist within it.
    fn network(&self) -> BTreeMap<String, (u64, u64)> {
        let text = self.tree.text("/proc/net/dev").unwrap_or_default();
        let of_line = |line: &str| {
            let (name, rest) = line.split_once(':')?;
            if !self.tree.has(&format!("{NET}/{}/device", name.trim())) {
                return None;
            }
            let fields: Vec<u64> =
                rest.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
            Some((name.trim().to_owned(), (*fields.first()?, *fields.get(8)?)))
        };
        text.lines().filter_map(of_line).collect()
    }

    /// Memory of a NUMA node that is in use, without files that the kernel could drop.
    fn memory_of_node(&self, node: u32) -> i64 {
        let path = format!("/sys/devices/system/node/node{node}/meminfo");
        let text = self.tree.text(&path).unwrap_or_default();
        // As `Node 0 MemTotal:  1024 kB`.
        let of = |name: &str| field(&text, name).unwrap_or(0);
        (of("MemTotal:") - of("MemFree:") - of("Active(file):") - of("Inactive(file):")).max(0)
    }
}

struct Memory {
    total: i64,
    available: i64,
}

fn memory(meminfo: &str) -> Memory {
    let of = |name| field(meminfo, name);
    let total = of("MemTotal:").unwrap_or(0);
    // Kernels before 3.14 do not say it.
    Memory { total, available: of("MemAvailable:").or_else(|| of("MemFree:")).unwrap_or(total) }
}

/// The bytes behind a name that is a word of a line, which the kernel gives in KiB.
fn field(text: &str, name: &str) -> Option<i64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| *word != name);
        words.next()?;
        Some(words.next()?.parse::<i64>().ok()?.saturating_mul(1024))
    })
}

/// The incarnation whose group has this name, as `UNIT-ORDINAL-INCARNATION.N`.
pub(crate) fn run_of(name: &str) -> Option<(Key, u32)> {
    crate::logs::run_of(name.rsplit_once('.')?.0)
}

fn to_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Best-effort running units that end so that `short` bytes become free: those first that are furthest above what they asked for.
/// Each has what it uses and what it asked for.
pub(crate) fn to_squeeze(short: i64, runs: &[((Key, u32), Use, i64)]) -> Vec<(Key, u32)> {
    let mut by_excess: Vec<_> = runs.iter().filter(|(_, used, _)| used.memory > 0).collect();
    by_excess.sort_by_key(|(run, used, asked)| (asked - used.memory, *run));
    let mut freed = 0;
    let enough = by_excess.into_iter().take_while(|(_, used, _)| {
        let needs_more = freed < short;
        freed += used.memory;
        needs_more
    });
    enough.map(|(run, ..)| *run).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use godel_domain::{resources::Resources, zone::Zone};

    use super::*;
    use crate::cgroup::GroupUsage;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn stat(root: &Path, ticks: [u64; 2]) {
        let [first, second] = ticks;
        // 9 of each are idle or wait for a disk.
        let cpu = |name: &str, busy: u64| format!("{name} {busy} 0 0 5 4 0 0 0 0 0\n");
        let text =
            [cpu("cpu ", first + second), cpu("cpu0", first), cpu("cpu1", second), "intr 7\n".to_owned()];
        write(root, "proc/stat", &text.concat());
    }

    fn net(root: &Path, bytes: u64) {
        let head = "Inter-|   Receive\n face |bytes\n";
        let text = format!(
            "{head}  eth0: {bytes} 1 0 0 0 0 0 0 {bytes} 1 0 0 0 0 0 0\n    lo: 99999 1 0 0 0 0 0 0 99999 1 0 0 0 0 0 0\n"
        );
        write(root, "proc/net/dev", &text);
    }

    fn usage(cpu_us: u64, memory: u64) -> GroupUsage {
        GroupUsage { cpu_us, memory, ..GroupUsage::default() }
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
        node.zones = vec![Zone {
            kind: "numa".to_owned(),
            parent: None,
            capacity,
            cpus: vec![1],
            threads_per_core: 1,
        }];
        node.memory_nodes = BTreeMap::from([(0, 0)]);
        let mut meter = Meter::new(Tree::new(root), &node);
        let key = |unit| Key { unit, ordinal: 0 };
        let first = [("1-0-0.0".to_owned(), usage(5_000_000, 10))];
        let runs =
            |groups: &[(String, GroupUsage)]| RunsUse { groups: groups.to_vec(), ..RunsUse::default() };
        assert_eq!(meter.look(&runs(&first), Millis(1_000)), None, "nothing to compare it with");
        assert_eq!(meter.look(&runs(&first), Millis(1_050)), None, "too soon");
        stat(root, [150, 700]);
        net(root, 126_000);
        let second = [
            ("1-0-0.0".to_owned(), usage(5_500_000, 10)),
            ("1-0-0.1".to_owned(), usage(500_000, 20)),
            ("2-0-3.7".to_owned(), usage(250_000, 40)),
            ("what is this".to_owned(), usage(9, 9)),
        ];
        let rate = |bits, memory| Rates { network: Some((bits, 2 * bits)), memory };
        let rates =
            [("1-0-0.0", rate(8, None)), ("1-0-0.1", rate(16, Some(5))), ("what is this", rate(1, None))];
        let rates = rates.map(|(name, rates)| (name.to_owned(), rates)).into();
        let measured = meter.look(&RunsUse { rates, ..runs(&second) }, Millis(3_000)).unwrap();
        // 250 ticks in 2 s; 2 x 125,000 bytes.
        let expected = LoadAmounts { cpu: 1_250, memory: 600 << 10, network: 1_000_000 };
        assert_eq!((measured.node, measured.network), (expected, (500_000, 500_000)));
        let starts_together = Rates { network: Some((24, 48)), memory: Some(5) };
        assert_eq!(measured.rates, BTreeMap::from([((key(1), 0), starts_together)]));
        let used = |cpu_milli, memory| Use { cpu_milli, memory };
        assert_eq!(
            measured.runs,
            BTreeMap::from([((key(1), 0), used(500, 30)), ((key(2), 3), used(125, 40))])
        );
        let of_zone = LoadAmounts { cpu: 1_000, memory: 600 << 10, network: 1_000_000 };
        assert_eq!(measured.zones, BTreeMap::from([(0, of_zone)]));
        assert_eq!((measured.memory_available, measured.memory_total), (400 << 10, 1_000 << 10));
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

    #[test]
    fn who_is_furthest_above_its_request_ends_first() {
        let run = |unit, memory, asked| ((Key { unit, ordinal: 0 }, 0), Use { cpu_milli: 0, memory }, asked);
        let runs = [run(1, 50, 100), run(2, 80, 10), run(3, 90, 50), run(4, 0, 0), run(5, 80, 10)];
        for (short, expected) in [
            (0, vec![]),
            (-5, vec![]),
            (1, vec![2]),
            (80, vec![2]),
            (81, vec![2, 5]),
            (200, vec![2, 5, 3]),
            (9_999, vec![2, 5, 3, 1]),
        ] {
            let squeezed: Vec<u64> = to_squeeze(short, &runs).iter().map(|(key, _)| key.unit).collect();
            assert_eq!(squeezed, expected, "{short}");
        }
    }
}
