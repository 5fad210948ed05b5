//! Traffic of running units: counted by nftables, kept by the queues of interfaces.
//!
//! A table of nftables finds the packets of a control group: with version 2 by its path, with version 1 by the class that the
//! controller `net_cls` gives them. Each run has a chain that counts what it receives, and one that counts what it sends and names
//! the class of the queue (HTB, `tc`) that its packets go through. Received packets are counted and not kept: they have
//! crossed the wire by then. The functions that write both are pure; [`Network`] is what the kernel has been told.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{Care, Member, commands::Commands, lives};
use crate::{
    cgroup::{GroupRecord, Traffic},
    detect::tree::Tree,
};

pub(super) const NFT: &str = "nft";
pub(super) const TC: &str = "tc";
/// What `nft` takes paths of groups to be below.
const CGROUPS: &str = "/sys/fs/cgroup";
const NET: &str = "/sys/class/net";
/// Names of the tables of agents begin with it.
const PREFIX: &str = "godel-";
/// The root of the classes of an interface, what is in no other class, and best-effort work.
const ROOT: u16 = 0xfffe;
const REST: u16 = 0xffff;
const BEST_EFFORT: u16 = 0xfffd;
/// Classes of single runs.
const RUNS: std::ops::Range<u16> = 0x10..0xfff0;
/// Handles of the queues of agents begin with it: `67` and a number of the agent.
const HANDLES: u16 = 0x6700;
/// Bytes that a class may send before its neighbour of the same priority.
const QUANTUM: u32 = 60_000;
/// Part of an interface that everybody has at least: what is in no class, and all of best-effort work.
const LEAST_PERCENT: i64 = 1;
/// Lowest rate of a class, bits per second.
const RATE_MIN: i64 = 8_000;
const MEGA: i64 = 1_000_000;
/// Looks after a failure before it is tried again, at most.
const N_SKIPPED_MAX: u32 = 256;

/// Bytes received and sent.
pub(super) type Counted = (u64, u64);

/// How a table finds the packets of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Key {
    /// By a class, which stands in a file of the group.
    Class(PathBuf),
    /// By its path, so many groups below the root.
    Path { path: String, level: u8 },
}

/// Rules of a table that look for packets of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Class,
    Level(u8),
}

/// A run as the kernel was told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    /// The control group of the run.
    group: GroupRecord,
    minor: u16,
    key: Key,
    /// Bits per second that it sends at most; `None`: it has no class of its own.
    rate: Option<i64>,
    is_best_effort: bool,
}

impl Told {
    fn form(&self) -> Form {
        match &self.key {
            Key::Class(_) => Form::Class,
            Key::Path { level, .. } => Form::Level(*level),
        }
    }

    /// The class through which its packets go; `None`: that of the rest.
    fn class(&self) -> Option<u16> {
        if self.is_best_effort { Some(BEST_EFFORT) } else { self.rate.map(|_| self.minor) }
    }
}

/// An interface whose queue has classes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    /// Bits per second.
    rate: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Network {
    commands: Commands,
    table: String,
    /// Of the queues, and of the classes of version 1.
    major: u16,
    /// None: nothing is kept, and why.
    interfaces: Vec<Interface>,
    why_not: String,
    /// Bits per second that running units may ask for.
    offered: i64,
    told: BTreeMap<String, Told>,
    /// As the table knows them; empty: there is no table.
    forms: BTreeSet<Form>,
    counted: BTreeMap<String, Counted>,
    /// The table is not as it should be, since so many failures.
    n_failures: u32,
    n_skipped: u32,
}

impl Network {
    /// Finds out what the machine can do, and makes the queues if the node offers `network`.
    pub(super) fn open(
        tree: &Tree,
        commands: Commands,
        name: &str,
        wanted: &[String],
        offered: i64,
    ) -> Result<Self, String> {
        let listed = commands.run(NFT, &["-j", "list", "tables"], "")?;
        let table = format!("{PREFIX}{name}");
        for left in left_over(tree, &listed).into_iter().chain([table.clone()]) {
            commands.run(NFT, &["-f", "-"], &without_table(&left))?;
        }
        let major =
            HANDLES | u16::from(name.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte)));
        let mut network = Self {
            commands,
            table,
            major,
            interfaces: Vec::new(),
            why_not: "the node offers no `network` that units could ask for".to_owned(),
            offered,
            told: BTreeMap::new(),
            forms: BTreeSet::new(),
            counted: BTreeMap::new(),
            n_failures: 0,
            n_skipped: 0,
        };
        if offered > 0 {
            network.make_queues(tree, wanted);
        }
        Ok(network)
    }

    fn make_queues(&mut self, tree: &Tree, wanted: &[String]) {
        let names = if wanted.is_empty() { hardware(tree) } else { wanted.to_vec() };
        let mut why_not = Vec::new();
        for name in &names {
            let speed = tree.number::<i64>(&format!("{NET}/{name}/speed")).filter(|mbps| *mbps > 0);
            let rate = speed.map_or(self.offered, |mbps| mbps.saturating_mul(MEGA));
            let interface = Interface { name: name.clone(), rate };
            match self.make_queue(&interface) {
                Ok(()) => self.interfaces.push(interface),
                Err(why) => why_not.push(format!("{name}: {why}")),
            }
        }
        if names.is_empty() {
            why_not.push(
                "no network interface is hardware and up: name one with `agent.network_interfaces`"
                    .to_owned(),
            );
        }
        self.why_not = why_not.join("; ");
    }

    fn make_queue(&self, interface: &Interface) -> Result<(), String> {
        let shown = self.commands.run(TC, &["qdisc", "show", "dev", &interface.name, "root"], "")?;
        let is_own = match root_handle(&shown) {
            None => false,
            Some(handle) if handle == format!("{:x}:", self.major) => true,
            Some(handle) => {
                return Err(format!(
                    "its queue {handle} is somebody else's and stays as it is: remove it (`tc qdisc del dev {} root`) to have \
                     running units kept",
                    interface.name
                ));
            }
        };
        let batch = queue(interface, self.major, is_own, self.offered);
        self.commands.run(TC, &["-batch", "-"], &batch).map(|_| ())
    }

    pub(super) fn care(&self) -> Care {
        if self.n_failures > 0 {
            return Care::Accounted(self.why_not.clone());
        }
        if self.interfaces.is_empty() {
            Care::Measured(self.why_not.clone())
        } else {
            Care::Kept(self.why_not.clone())
        }
    }

    /// One more run is about to begin.
    pub(super) fn join(&mut self, member: &Member) {
        if self.told.contains_key(&member.name) || self.n_failures > 0 {
            return;
        }
        let Some(told) = self.to_tell(member) else { return };
        let form = told.form();
        self.told.insert(member.name.clone(), told.clone());
        let written = if self.forms.contains(&form) {
            let classes = class_lines(&self.interfaces, self.major, &told);
            let lines = chains(&self.table, &member.name, &told, self.mark(&told), 0, 0);
            self.class(&told).and_then(|()| self.tell(&classes, &lines))
        } else {
            self.write_all()
        };
        self.note(written);
    }

    /// Takes care of exactly these runs. Returns the counters, if they are wanted.
    pub(super) fn keep_to(&mut self, members: &[Member], is_due: bool) -> Option<BTreeMap<String, Counted>> {
        if self.n_failures > 0 && self.n_skipped < N_SKIPPED_MAX.min(1 << self.n_failures.min(8)) {
            self.n_skipped += 1;
            return None;
        }
        let gone: Vec<String> = {
            let is_there = |name: &String| members.iter().any(|member| member.name == *name);
            self.told.keys().filter(|name| !is_there(name)).cloned().collect()
        };
        if !self.forms.is_empty() && (is_due || !gone.is_empty()) {
            match self.commands.run(NFT, &["-j", "list", "counters", "table", "inet", &self.table], "") {
                Ok(listed) => self.counted = counters(&listed),
                // Somebody has flushed all tables, as firewalls do when they start: it is made anew.
                Err(_) => self.forms.clear(),
            }
        }
        let is_lost = self.forms.is_empty() && !self.told.is_empty();
        if !gone.is_empty() || is_lost || self.n_failures > 0 {
            for name in &gone {
                self.counted.remove(name);
            }
            let left: Vec<Told> = gone.iter().filter_map(|name| self.told.remove(name)).collect();
            let batch: String = left.iter().map(|told| self.without_class(told)).collect();
            if !batch.is_empty() {
                // A class that a queue has lost is as good as removed.
                let _lost = self.commands.run(TC, &["-force", "-batch", "-"], &batch);
            }
            let written = self.write_all();
            self.note(written);
        }
        for member in members {
            self.join(member);
        }
        is_due.then(|| self.counted.clone())
    }

    /// Makes the table and the classes of all runs anew; none, if nothing runs.
    fn write_all(&mut self) -> Result<(), String> {
        self.forms = self.told.values().map(Told::form).collect();
        if self.told.is_empty() {
            return self.commands.run(NFT, &["-f", "-"], &without_table(&self.table)).map(|_| ());
        }
        let mut classes = String::new();
        let mut lines = table(&self.table, &self.forms);
        for (name, told) in &self.told {
            self.class(told)?;
            classes.push_str(&class_lines(&self.interfaces, self.major, told));
            let (received, sent) = self.counted.get(name).copied().unwrap_or_default();
            lines.push_str(&chains(&self.table, name, told, self.mark(told), received, sent));
        }
        self.tell(&classes, &lines)
    }

    /// With version 1 a group carries the number by which its packets are found.
    fn class(&self, told: &Told) -> Result<(), String> {
        let Key::Class(file) = &told.key else { return Ok(()) };
        let written = std::fs::write(file, format!("{:#x}", self.class_id(told)));
        written.map_err(|error| format!("{} cannot be written: {error}", file.display()))
    }

    fn class_id(&self, told: &Told) -> u32 {
        u32::from(self.major) << 16 | u32::from(told.minor)
    }

    fn mark(&self, told: &Told) -> Mark {
        let class = told.class().filter(|_| !self.interfaces.is_empty());
        Mark { id: self.class_id(told), class: class.map(|minor| (self.major, minor)) }
    }

    /// Classes first: packets that name one that is not there go with the rest.
    fn tell(&self, classes: &str, lines: &str) -> Result<(), String> {
        if !classes.is_empty() {
            self.commands.run(TC, &["-batch", "-"], classes)?;
        }
        self.commands.run(NFT, &["-f", "-"], lines).map(|_| ())
    }

    fn without_class(&self, told: &Told) -> String {
        let own = told.rate.filter(|_| !told.is_best_effort);
        let line = |interface: &Interface| {
            format!("class del dev {} classid {:x}:{:x}\n", interface.name, self.major, told.minor)
        };
        own.map_or_else(String::new, |_| self.interfaces.iter().map(line).collect())
    }

    /// What the kernel is told of a run; `None`: its packets cannot be found.
    fn to_tell(&self, member: &Member) -> Option<Told> {
        let key = match member.group.traffic()? {
            Traffic::ClassFile(file) => Key::Class(file),
            Traffic::Directory { dir, depth } => {
                let path = dir.strip_prefix(CGROUPS).ok()?.to_str()?.to_owned();
                Key::Path { path, level: u8::try_from(depth).ok()? }
            }
        };
        let taken: BTreeSet<u16> = self.told.values().map(|told| told.minor).collect();
        let minor = RUNS.into_iter().find(|minor| !taken.contains(minor))?;
        let ask = &member.ask;
        let rate = ask.network.filter(|_| !ask.is_best_effort);
        Some(Told { group: member.group.clone(), minor, key, rate, is_best_effort: ask.is_best_effort })
    }

    /// Notes whether the kernel has taken what it was told. The first failure is a warning; it is tried again at longer and longer pauses.
    fn note(&mut self, written: Result<(), String>) {
        self.n_skipped = 0;
        match written {
            Ok(()) => {
                if self.n_failures > 0 {
                    tracing::info!("the network use of running units is measured again");
                }
                self.n_failures = 0;
            }
            Err(why) => {
                if self.n_failures == 0 {
                    tracing::warn!(why, "the network use of running units is neither measured nor kept");
                }
                self.why_not = why;
                self.n_failures += 1;
            }
        }
    }
}

impl Drop for Network {
    /// What goes on without the agent stays counted and kept.
    fn drop(&mut self) {
        if self.told.values().any(|told| lives(&told.group)) {
            return;
        }
        let line = |interface: &Interface| format!("qdisc del dev {} root\n", interface.name);
        let batch: String = self.interfaces.iter().map(line).collect();
        if !batch.is_empty() {
            let _stays = self.commands.run(TC, &["-force", "-batch", "-"], &batch);
        }
        if !self.forms.is_empty() {
            let _stays = self.commands.run(NFT, &["-f", "-"], &without_table(&self.table));
        }
    }
}

/// What a chain does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// By which version 1 knows them.
    id: u32,
    /// The class that they go through.
    class: Option<(u16, u16)>,
}

/// The interfaces that are hardware and up.
fn hardware(tree: &Tree) -> Vec<String> {
    let is_up = |name: &String| {
        let path = format!("{NET}/{name}");
        tree.has(&format!("{path}/device"))
            && tree.text(&format!("{path}/operstate")).as_deref() == Some("up")
    };
    tree.names(NET).into_iter().filter(is_up).collect()
}

/// The handle of the queue that somebody has given an interface; `None`: it has the kernel's own.
fn root_handle(shown: &str) -> Option<&str> {
    let mut words = shown.lines().next()?.split_ascii_whitespace();
    let handle = words.nth(2)?;
    (handle != "0:").then_some(handle)
}

/// Commands of `tc` for the queue of an interface, which has replaced an earlier one of its own.
fn queue(interface: &Interface, major: u16, is_own: bool, offered: i64) -> String {
    let Interface { name, rate } = interface;
    let least = (rate / 100 * LEAST_PERCENT).max(RATE_MIN);
    // What running units cannot ask for is everybody else's.
    let rest = rate.saturating_sub(offered).max(least);
    let removed = if is_own { format!("qdisc del dev {name} root\n") } else { String::new() };
    let class = |parent: String, minor: u16, rate: i64, rest: String| {
        format!(
            "class add dev {name} parent {parent} classid {major:x}:{minor:x} htb rate {rate}bit{rest} quantum {QUANTUM}\n"
        )
    };
    let within = || format!("{major:x}:{ROOT:x}");
    [
        removed,
        format!("qdisc add dev {name} root handle {major:x}: htb default {REST:x}\n"),
        class(format!("{major:x}:"), ROOT, *rate, String::new()),
        class(within(), REST, rest, format!(" ceil {rate}bit prio 1")),
        class(within(), BEST_EFFORT, least, format!(" ceil {rate}bit prio 7")),
    ]
    .concat()
}

/// Commands of `tc` for the class of a run on each interface; none for a run that shares one.
fn class_lines(interfaces: &[Interface], major: u16, told: &Told) -> String {
    let Some(rate) = told.rate.filter(|_| !told.is_best_effort) else { return String::new() };
    let line = |Interface { name, rate: whole }: &Interface| {
        let rate = rate.clamp(RATE_MIN, (*whole).max(RATE_MIN));
        format!(
            "class replace dev {name} parent {major:x}:{ROOT:x} classid {major:x}:{:x} htb rate {rate}bit ceil {rate}bit prio 0 quantum {QUANTUM}\n",
            told.minor
        )
    };
    interfaces.iter().map(line).collect()
}

/// Removes a table, whether it is there or not.
fn without_table(table: &str) -> String {
    format!("add table inet {table}\ndelete table inet {table}\n")
}

/// Replaces a table by one that knows nobody.
fn table(table: &str, forms: &BTreeSet<Form>) -> String {
    let mut text = without_table(table);
    text.push_str(&format!("add table inet {table}\n"));
    let kinds: BTreeSet<(&str, &str)> = forms
        .iter()
        .map(|form| match form {
            Form::Class => ("class", "typeof meta cgroup"),
            Form::Level(_) => ("path", "type cgroupsv2"),
        })
        .collect();
    for (kind, of) in kinds {
        for way in ["sent", "received"] {
            text.push_str(&format!("add map inet {table} {way}-{kind} {{ {of} : verdict; }}\n"));
        }
    }
    for (way, hook) in [("sent", "output"), ("received", "input")] {
        text.push_str(&format!(
            "add chain inet {table} {hook} {{ type filter hook {hook} priority 0; policy accept; }}\n"
        ));
        for form in forms {
            let rule = match form {
                Form::Class => format!("meta cgroup vmap @{way}-class"),
                Form::Level(level) => format!("socket cgroupv2 level {level} vmap @{way}-path"),
            };
            text.push_str(&format!("add rule inet {table} {hook} {rule}\n"));
        }
    }
    text
}

/// Adds a run to a table, with what was counted of it before.
fn chains(table: &str, name: &str, told: &Told, mark: Mark, received: u64, sent: u64) -> String {
    let class = mark
        .class
        .map_or_else(String::new, |(major, minor)| format!(" meta priority set {major:x}:{minor:x}"));
    let (kind, key) = match &told.key {
        Key::Class(_) => ("class", format!("{:#x}", mark.id)),
        Key::Path { path, .. } => ("path", format!("\"{path}\"")),
    };
    let mut text = String::new();
    for (way, first, bytes, class) in [("sent", "s", sent, class.as_str()), ("received", "r", received, "")] {
        text.push_str(&format!(
            "add counter inet {table} {first}-{name} {{ packets 0 bytes {bytes} }}\n\
             add chain inet {table} {way}-{name}\n\
             add rule inet {table} {way}-{name} counter name {first}-{name}{class}\n\
             add element inet {table} {way}-{kind} {{ {key} : jump {way}-{name} }}\n"
        ));
    }
    text
}

/// What `nft` lists as JSON: objects under their kinds.
fn objects(listed: &str, kind: &str) -> Vec<serde_json::Value> {
    let parsed: serde_json::Value = serde_json::from_str(listed).unwrap_or_default();
    let all = parsed.get("nftables").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
    all.into_iter().filter_map(|object| object.get(kind).cloned()).collect()
}

/// Bytes received and sent, by run.
fn counters(listed: &str) -> BTreeMap<String, Counted> {
    let mut found: BTreeMap<String, Counted> = BTreeMap::new();
    for counter in objects(listed, "counter") {
        let name = counter.get("name").and_then(serde_json::Value::as_str).unwrap_or_default();
        let bytes = counter.get("bytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
        match name.split_once('-') {
            Some(("r", run)) => found.entry(run.to_owned()).or_default().0 = bytes,
            Some(("s", run)) => found.entry(run.to_owned()).or_default().1 = bytes,
            _ => {}
        }
    }
    found
}

/// Tables that agents without a state directory have left that have ended.
fn left_over(tree: &Tree, listed: &str) -> Vec<String> {
    let named = objects(listed, "table");
    let names = named.iter().filter_map(|table| table.get("name").and_then(serde_json::Value::as_str));
    let is_left = |name: &&str| {
        let pid = name.strip_prefix(PREFIX).filter(|pid| pid.parse::<u32>().is_ok());
        pid.is_some_and(|pid| !tree.has(&format!("/proc/{pid}")))
    };
    names.filter(is_left).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
