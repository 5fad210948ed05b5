//! What a real machine and its running units use: CPU time and memory of control groups, of zones and of the whole, and what its
//! network interfaces carry. The whole is the machine, or the control group that bounds the agent ([`scope`]).
//!
//! Counters rise for ever, so use is the difference of two looks ([`Meter::look`]). A file that cannot be read counts for
//! nothing: a machine without control groups has use of its own and none of its running units.

mod scope;

use std::collections::BTreeMap;

use godel_base::time::Millis;
use godel_core_agent::RunKey;
use godel_domain::node_load::LoadAmounts;
use rustc_hash::FxHashMap;

use crate::{
    bandwidth::{Care, Rates},
    cgroup::{GroupRecord, GroupUsage, GroupUse, reopen},
    detect::tree::Tree,
    inventory::NodeDef,
    runtime::process::RunsUse,
};
use scope::Scope;

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
    /// The machine, or the group that bounds the agent with those of its running units that lie elsewhere.
    pub(crate) node: LoadAmounts,
    /// Bits per second that it receives and sends.
    pub(crate) network: (i64, i64),
    /// Its running units that have control groups, by incarnation.
    pub(crate) runs: BTreeMap<(RunKey, u32), Use>,
    /// Their bandwidths, where they are measured.
    pub(crate) rates: BTreeMap<(RunKey, u32), Rates>,
    /// What is done about the network and about memory bandwidth.
    pub(crate) care: Option<(Care, Care)>,
    /// By index.
    pub(crate) zones: BTreeMap<usize, LoadAmounts>,
    pub(crate) machine_memory: Memory,
    /// Of the group around the agent with the lowest limit, if one is limited.
    pub(crate) group_memory: Option<Memory>,
}

/// Memory of a machine or of a limited group, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: i64,
    /// What could be used at once.
    pub(crate) available: i64,
}

/// What one running unit has used.
#[derive(Clone, Copy, Debug, Default)]
struct RunTotal {
    cpu_us: u64,
    memory: u64,
    /// Whether the group that bounds the agent does not count it.
    is_cpu_outside: bool,
    is_memory_outside: bool,
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
    /// CPU time of the group that bounds the agent, microseconds.
    scope_us: u64,
    /// Busy ticks by CPU.
    busy_of: BTreeMap<u32, u64>,
    /// Bytes received and sent, by interface.
    network: BTreeMap<String, (u64, u64)>,
    /// Microseconds.
    runs: FxHashMap<(RunKey, u32), u64>,
}

/// Looks at a machine again and again.
#[derive(Debug)]
pub(crate) struct Meter {
    tree: Tree,
    scope: Scope,
    zones: BTreeMap<usize, ZoneParts>,
    last: Option<Counters>,
}

impl Measured {
    /// Memory that is wanting until so many per cent are available, of the machine and of the group that limits the agent; not
    /// positive: none.
    pub(crate) fn memory_short(&self, low_percent: i64) -> i64 {
        let short = |memory: Memory| memory.total / 100 * low_percent - memory.available;
        let of_machine = short(self.machine_memory);
        self.group_memory.map_or(of_machine, |group| of_machine.max(short(group)))
    }
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
        Self { zones: parts.collect(), scope: scope::find(&tree), tree, last: None }
    }

    /// Returns whose use counts as that of the node.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
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
        let runs = self.totals(groups);
        counters.runs = runs.iter().map(|(run, total)| (*run, total.cpu_us)).collect();
        let last = self.last.replace(counters)?;
        let counters = self.last.as_ref()?;
        let pause_ms = now.since(last.at).max(1);
        let milli_of_ticks = |ticks: u64| to_i64(ticks.saturating_mul(1_000_000 / TICKS_PER_S) / pause_ms);
        let machine_memory = memory(&self.tree.text("/proc/meminfo").unwrap_or_default());
        let mut outside = Use::default();
        let runs = runs.into_iter().map(|(run, total)| {
            // A group that has just been made began with nothing.
            let before = last.runs.get(&run).copied().unwrap_or(0);
            let cpu_milli = to_i64(total.cpu_us.saturating_sub(before) / pause_ms);
            let memory = to_i64(total.memory);
            outside.cpu_milli += if total.is_cpu_outside { cpu_milli } else { 0 };
            outside.memory += if total.is_memory_outside { memory } else { 0 };
            (run, Use { cpu_milli, memory })
        });
        let runs: BTreeMap<(RunKey, u32), Use> = runs.collect();
        let cpu = match &self.scope.cpu {
            Some(_) => to_i64(counters.scope_us.saturating_sub(last.scope_us) / pause_ms) + outside.cpu_milli,
            None => milli_of_ticks(counters.busy.saturating_sub(last.busy)),
        };
        let used_memory = match &self.scope.memory {
            Some(group) => to_i64(usage_of(group).memory) + outside.memory,
            None => (machine_memory.total - machine_memory.available).max(0),
        };
        // What the node uses in a zone is part of what the machine uses there, and of what the node uses at all.
        let cpu_max = self.scope.cpu.as_ref().map_or(i64::MAX, |_| cpu);
        let memory_max = self.scope.memory.as_ref().map_or(i64::MAX, |_| used_memory);
        let zones = self.zones.iter().map(|(at, parts)| {
            let ticks = parts.cpus.iter().map(|cpu| {
                let of = |counters: &Counters| counters.busy_of.get(cpu).copied().unwrap_or(0);
                of(counters).saturating_sub(of(&last))
            });
            let memory = parts.memory_node.map_or(0, |node| self.memory_of_node(node));
            let (received, sent) = counters.traffic(&last, |name| parts.interfaces.contains(name));
            let network = received.saturating_add(sent);
            let cpu = milli_of_ticks(ticks.sum()).min(cpu_max);
            (*at, LoadAmounts { cpu, memory: memory.min(memory_max), network })
        });
        let network = counters.traffic(&last, |_| true);
        let mut rates_of: BTreeMap<(RunKey, u32), Rates> = BTreeMap::new();
        for (name, rates) in rates {
            let Some(run) = run_of(name) else { continue };
            let sum = rates_of.entry(run).or_default();
            *sum = sum.plus(*rates);
        }
        Some(Measured {
            node: LoadAmounts { cpu, memory: used_memory, network: network.0.saturating_add(network.1) },
            network,
            runs,
            rates: rates_of,
            care: care.clone(),
            zones: zones.collect(),
            machine_memory,
            group_memory: self.scope.memory_limit.as_ref().map(|(group, total)| {
                let used = to_i64(usage_of(group).memory);
                Memory { total: *total, available: (total - used).max(0) }
            }),
        })
    }

    /// What running units have used, by the groups of their starts: those in place have a group each.
    fn totals(&self, groups: &[GroupUse]) -> BTreeMap<(RunKey, u32), RunTotal> {
        let is_outside = |group: &GroupRecord, scope: &Option<GroupRecord>| {
            scope.as_ref().is_some_and(|scope| !group.is_within(scope))
        };
        let mut totals: BTreeMap<(RunKey, u32), RunTotal> = BTreeMap::new();
        for GroupUse { name, group, usage } in groups {
            let Some(run) = run_of(name) else { continue };
            let total = totals.entry(run).or_default();
            total.cpu_us += usage.cpu_us;
            total.memory += usage.memory;
            total.is_cpu_outside = is_outside(group, &self.scope.cpu);
            total.is_memory_outside = is_outside(group, &self.scope.memory);
        }
        totals
    }

    fn counters(&self, at: Millis) -> Counters {
        let stat = self.tree.text("/proc/stat").unwrap_or_default();
        let scope_us = self.scope.cpu.as_ref().map_or(0, |group| usage_of(group).cpu_us);
        let mut counters = Counters { at, scope_us, network: self.network(), ..Counters::default() };
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

fn usage_of(group: &GroupRecord) -> GroupUsage {
    reopen(group).usage()
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
pub(crate) fn run_of(name: &str) -> Option<(RunKey, u32)> {
    crate::logs::run_of(name.rsplit_once('.')?.0)
}

fn to_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
