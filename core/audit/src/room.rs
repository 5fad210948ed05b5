//! I1: what is bound to a node fits it, by plain sums over its rows: now from all of them, in a history from what each
//! commit does to them.

mod tenants;
mod zones;

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    ids::{NodeId, Revision},
    quantity::MILLI_WHOLE,
    resources::{RUNNING_UNITS, Resources},
};
use godel_domain::{
    allocation::{Allocation, DeviceSet},
    demand::{Demand, DeviceRequest, N_DEVICES_MAX, Pool},
    hold::Hold,
    host_port::HostPort,
    node::Device,
};

pub(super) use self::{
    tenants::{Bound, Tenants},
    zones::{ZoneSums, assigned, wrong_zones},
};
use super::{
    History,
    history::{Replay, node_name},
    unreadable::LeftOut,
    verdict::Findings,
    world::{World, WorldNode, WorldRow},
};

/// Best-effort running units above the room of their node leave within this, milliseconds: the binder's grace, and time to
/// read, to commit and to try again.
const SQUEEZED_WITHIN_MS: i64 = 60_000;

/// Sums of one node; each running unit is one of [`RUNNING_UNITS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSums {
    /// Of guaranteed running units.
    pub guaranteed: Resources,
    /// Of best-effort running units.
    pub best_effort: Resources,
    /// What guaranteed ones keep from best-effort ones, beside what is reserved for their use.
    pub kept: Resources,
    /// Milli taken per device, by index; as long as the highest index used.
    pub devices: Vec<u32>,
    /// Taken of zones.
    pub(crate) zones: ZoneSums,
    /// Ports that running units of now listen on.
    pub ports: Vec<HostPort>,
    /// Running units counted.
    pub n: usize,
}

impl NodeSums {
    pub(super) fn add(&mut self, node: Option<&WorldNode>, demand: &Demand, pool: Pool, taken: Allocation) {
        self.add_requests(demand, pool, 1);
        self.add_devices(node, demand, taken.devices);
        self.zones.add(demand, taken.zones, 1);
        self.n += 1;
    }

    fn add_devices(&mut self, node: Option<&WorldNode>, demand: &Demand, taken: DeviceSet) {
        for idx in taken.iter() {
            if self.devices.len() <= idx {
                self.devices.resize(idx + 1, 0);
            }
            self.devices[idx] = self.devices[idx].saturating_add(device_milli(node, demand, idx));
        }
    }

    fn remove(&mut self, node: Option<&WorldNode>, demand: &Demand, pool: Pool, taken: Allocation) {
        self.add_requests(demand, pool, -1);
        self.remove_devices(node, demand, taken.devices);
        self.zones.add(demand, taken.zones, -1);
        self.n = self.n.saturating_sub(1);
    }

    fn remove_devices(&mut self, node: Option<&WorldNode>, demand: &Demand, taken: DeviceSet) {
        for idx in taken.iter() {
            if let Some(sum) = self.devices.get_mut(idx) {
                *sum = sum.saturating_sub(device_milli(node, demand, idx));
            }
        }
    }

    fn subtract(&mut self, other: &Self) {
        self.guaranteed.add(&other.guaranteed, -1);
        self.best_effort.add(&other.best_effort, -1);
        for (sum, milli) in self.devices.iter_mut().zip(&other.devices) {
            *sum = sum.saturating_sub(*milli);
        }
        self.zones.subtract(&other.zones);
        self.n = self.n.saturating_sub(other.n);
    }

    /// Whether the same is taken, whatever is kept beside it.
    fn takes_as(&self, other: &Self) -> bool {
        let n_used =
            |usage: &Self| usage.devices.iter().rposition(|milli| *milli > 0).map_or(0, |last| last + 1);
        let devices = |usage: &Self| usage.devices[..n_used(usage)].to_vec();
        self.n == other.n
            && non_zero(&self.guaranteed).eq(non_zero(&other.guaranteed))
            && non_zero(&self.best_effort).eq(non_zero(&other.best_effort))
            && devices(self) == devices(other)
            && self.zones == other.zones
    }

    fn add_requests(&mut self, demand: &Demand, pool: Pool, times: i64) {
        let sum = match pool {
            Pool::Guaranteed => &mut self.guaranteed,
            Pool::BestEffort => &mut self.best_effort,
        };
        sum.add(&demand.requests, times);
        sum.add_amount(RUNNING_UNITS, times);
    }
}

impl NodeSums {
    /// What a guaranteed row keeps from best-effort ones.
    fn reserve(&mut self, node: Option<&WorldNode>, demand: &Demand, pool: Pool, row: &WorldRow) {
        if let (Some(node), Pool::Guaranteed) = (node, pool) {
            let kept = node.kept(&demand.requests, row.bound_time_ms);
            kept.for_each(|(name, amount)| self.kept.add_amount(name, amount));
            self.kept.add_amount(RUNNING_UNITS, 1);
        }
    }

    /// All that a hold may gather, and every device where it wants some: as others see it.
    pub(super) fn add_gathered(&mut self, hold: &Hold) {
        for idx in 0..hold.ordinals.len() {
            let given = Allocation { zones: hold.allocation(idx).zones, ..Allocation::default() };
            self.add(None, &hold.demand, hold.pool, given);
        }
        if !hold.demand.devices.is_empty() {
            self.devices = vec![MILLI_WHOLE; N_DEVICES_MAX];
        }
    }

    /// What a hold takes beyond those that still take it for it, or that are in it. One that gathers takes what is free,
    /// whatever that is.
    fn add_hold(&mut self, world: &World, hold: &Hold, is_whole: bool) {
        if hold.turn.is_some() {
            return;
        }
        let (mut beyond, covered) = beyond(world, hold, is_whole);
        self.zones.join(&std::mem::take(&mut beyond.zones).beyond(&covered.zones));
        for (sum, beyond, covered) in [
            (&mut self.guaranteed, &beyond.guaranteed, &covered.guaranteed),
            (&mut self.best_effort, &beyond.best_effort, &covered.best_effort),
        ] {
            beyond
                .iter()
                .for_each(|(name, amount)| sum.add_amount(name, (amount - covered.get(name)).max(0)));
        }
        for (idx, milli) in beyond.devices.iter().enumerate() {
            if self.devices.len() <= idx {
                self.devices.resize(idx + 1, 0);
            }
            let covered = covered.devices.get(idx).copied().unwrap_or(0);
            self.devices[idx] = self.devices[idx].saturating_add(milli.saturating_sub(covered));
        }
    }

    /// What a hold keeps from best-effort running units, beyond the same. A slot of a reservation keeps nothing.
    fn keep_hold(&mut self, world: &World, hold: &Hold, is_whole: bool) {
        if hold.turn.is_some() || hold.pool != Pool::Guaranteed || hold.slot.is_some() {
            return;
        }
        let mut covered = Self::default();
        let node = world.nodes.get(&hold.node);
        for (demand, pool, row) in covering(world, hold, is_whole) {
            covered.reserve(node, demand, pool, row);
        }
        let n = i64::try_from(hold.ordinals.len()).unwrap_or(i64::MAX);
        for (name, amount) in hold.demand.requests.iter().chain([(RUNNING_UNITS, 1)]) {
            self.kept.add_amount(name, (amount.saturating_mul(n) - covered.kept.get(name)).max(0));
        }
    }
}

/// All that a hold is for, and what is still taken of that for it.
fn beyond(world: &World, hold: &Hold, is_whole: bool) -> (NodeSums, NodeSums) {
    let (mut beyond, mut covered) = (NodeSums::default(), NodeSums::default());
    let node = world.nodes.get(&hold.node);
    for idx in 0..hold.ordinals.len() {
        beyond.add(node, &hold.demand, hold.pool, hold.allocation(idx));
    }
    for (demand, pool, row) in covering(world, hold, is_whole) {
        covered.add(node, demand, pool, row.allocation);
    }
    (beyond, covered)
}

/// Those that take the room of a hold: its victims, unless it `is_whole`, and who is in its slot.
fn covering<'a>(
    world: &'a World,
    hold: &'a Hold,
    is_whole: bool,
) -> impl Iterator<Item = (&'a Demand, Pool, &'a WorldRow)> {
    let victims = hold.victims.iter().filter(move |_| !is_whole);
    let occupant = hold.slot.as_ref().and_then(|slot| slot.occupant.as_ref());
    victims.chain(occupant).filter_map(move |victim| {
        let unit = world.units.get(&victim.unit)?;
        let row = unit.rows.get(&victim.replica.ordinal)?;
        // Who leaves is not counted then.
        let covers = row.is_live()
            && !(is_whole && row.eviction.is_some())
            && (row.incarnation, row.node) == (victim.replica.incarnation, hold.node);
        let (demand, pool) = unit.demands.get(&row.group).filter(|_| covers)?;
        Some((demand.as_ref(), *pool, row))
    })
}

/// Sums per node over the rows for which `counts` says yes.
pub(super) fn usage(world: &World, counts: impl Fn(&WorldRow) -> bool) -> BTreeMap<NodeId, NodeSums> {
    let mut sums: BTreeMap<NodeId, NodeSums> = BTreeMap::new();
    for unit in world.units.values() {
        for row in unit.rows.values().filter(|row| row.is_live() && counts(row)) {
            if let Some((demand, pool)) = unit.demands.get(&row.group) {
                let of_node = sums.entry(row.node).or_default();
                of_node.add(world.nodes.get(&row.node), demand, *pool, row.allocation);
                of_node.ports.extend(&demand.host_ports);
                of_node.reserve(world.nodes.get(&row.node), demand, *pool, row);
            }
        }
    }
    sums
}

fn non_zero(resources: &Resources) -> impl Iterator<Item = (&str, i64)> {
    resources.iter().filter(|(_, amount)| *amount != 0)
}

/// More than there is.
pub(super) struct Excess {
    of: Of,
    words: String,
}

/// What there is too little of.
enum Of {
    Resource(String),
    /// A device of which more is taken than one.
    Device,
    /// A device that is not there.
    Gone,
    /// A port that several running units have.
    Port,
    /// A zone, by index.
    Zone(usize),
    /// Devices of a kind, of which some that are held are not there, or are others.
    Kind(String),
}

/// What is wrong with `usage` on `node`.
pub(super) fn excess(node: &WorldNode, usage: &NodeSums) -> Vec<Excess> {
    let allocatable = node.allocatable();
    let of = |name: &str| match name {
        RUNNING_UNITS => node.max_running_units(),
        name => allocatable.get(name),
    };
    let mut wrong = excess_of("guaranteed", &usage.guaranteed, of);
    let n_devices = node.report.as_ref().map_or(0, |report| report.value.devices.len());
    for (idx, milli) in usage.devices.iter().enumerate() {
        if *milli > 0 && idx >= n_devices {
            wrong.push(Excess { of: Of::Gone, words: format!("device {idx} of {n_devices}") });
        } else if *milli > MILLI_WHOLE {
            let words = format!("device {idx} {milli} of {MILLI_WHOLE} milli");
            wrong.push(Excess { of: Of::Device, words });
        }
    }
    let mut ports = usage.ports.clone();
    ports.sort_unstable();
    for same in ports.chunk_by(PartialEq::eq).filter(|same| same.len() > 1) {
        let words = format!("port {} is that of {} running units", same[0], same.len());
        wrong.push(Excess { of: Of::Port, words });
    }
    wrong.extend(usage.zones.excess(node));
    wrong
}

fn excess_of(pool: &str, taken: &Resources, allocatable: impl Fn(&str) -> i64) -> Vec<Excess> {
    let over = taken.iter().filter(|(name, sum)| *sum > allocatable(name));
    let excess = |(name, sum): (&str, i64)| Excess {
        of: Of::Resource(name.to_owned()),
        words: format!("{pool} {name} {sum} of {}", allocatable(name)),
    };
    over.map(excess).collect()
}

/// Best-effort resources of which more is taken than there is.
fn best_effort_excess(node: &WorldNode, usage: &NodeSums) -> Vec<Excess> {
    let allocatable = node.best_effort_allocatable(&usage.kept);
    excess_of("best-effort", &usage.best_effort, |name| allocatable.get(name))
}

/// The devices that a node has reported.
fn devices_of(node: Option<&WorldNode>) -> &[Device] {
    node.and_then(|node| node.report.as_ref()).map_or(&[], |report| &report.value.devices)
}

/// Thousandths that a running unit takes of a device of a node.
fn device_milli(node: Option<&WorldNode>, demand: &Demand, idx: usize) -> u32 {
    let kind = devices_of(node).get(idx).map(|device| device.kind.as_str());
    demand.device_milli(kind).unwrap_or(MILLI_WHOLE)
}

/// Kinds of devices of which some that are held on a node may not be there, or may not be of those asked for. Where not all
/// devices of a running unit are held together, the missing one may be of any kind that is asked for.
fn astray_kinds<'a>(node: &WorldNode, demand: &'a Demand, held: DeviceSet) -> impl Iterator<Item = &'a str> {
    let devices: Vec<&Device> = held.iter().filter_map(|idx| devices_of(Some(node)).get(idx)).collect();
    let serves = |device: &&&Device| demand.devices.iter().any(|request| request.accepts(device));
    let is_astray = !demand.devices.is_empty() && devices.iter().filter(serves).count() < held.len() as usize;
    let is_whole = held.len() == demand.devices.iter().map(|request| request.count).sum::<u32>();
    let is_short = move |request: &&DeviceRequest| {
        let n_serving = devices.iter().filter(|device| request.accepts(device)).count();
        is_astray && (!is_whole || n_serving < request.count as usize)
    };
    demand.devices.iter().filter(is_short).map(|request| request.kind.as_str())
}

/// By node, kinds of devices of which a running unit holds one that its node no longer has.
pub(super) fn short_kinds(world: &World) -> BTreeMap<NodeId, BTreeSet<&str>> {
    let mut short: BTreeMap<NodeId, BTreeSet<&str>> = BTreeMap::new();
    for unit in world.units.values() {
        for row in unit.rows.values().filter(|row| row.is_live() && !row.allocation.devices.is_empty()) {
            if let Some((demand, _)) = unit.demands.get(&row.group)
                && let Some(node) = world.nodes.get(&row.node)
            {
                for kind in astray_kinds(node, demand, row.allocation.devices) {
                    short.entry(row.node).or_default().insert(kind);
                }
            }
        }
    }
    short
}

/// What is wrong with the devices of one placement, in words.
pub(super) fn wrong_devices(node: &WorldNode, demand: &Demand, given: DeviceSet) -> Option<String> {
    let Some(first) = demand.devices.first() else {
        return (!given.is_empty()).then(|| format!("devices {:#b} without a request", given.0));
    };
    let is_profile =
        |request: &DeviceRequest| request.terms.as_ref().is_some_and(|terms| !terms.profile.is_empty());
    let n_asked: u32 = demand.devices.iter().map(|request| request.count).sum();
    // The slices of a profile are as many as it says.
    let is_exact = !demand.devices.iter().any(is_profile);
    if is_exact && given.len() != n_asked {
        return Some(format!("{} devices instead of {n_asked}", given.len()));
    }
    let devices = devices_of(Some(node));
    let wrong = given.iter().find_map(|idx| {
        let Some(device) = devices.get(idx) else { return Some(format!("device {idx} does not exist")) };
        match demand.devices.iter().find(|request| request.kind == device.kind) {
            None => Some(format!("device {idx} is a {}, not a {}", device.kind, first.kind)),
            Some(request) if !request.accepts(device) => {
                let models = request.models.join("|");
                Some(format!("device {idx} is a {}, not one of {models}", device.model))
            }
            Some(_) => None,
        }
    });
    wrong.or_else(|| {
        let n_given =
            |request: &DeviceRequest| given.iter().filter(|idx| request.accepts(&devices[*idx])).count();
        let is_short = |request: &&DeviceRequest| {
            if is_profile(request) {
                n_given(request) == 0
            } else {
                n_given(request) != request.count as usize
            }
        };
        let short = demand.devices.iter().find(is_short)?;
        Some(format!("{} of kind {} instead of {}", n_given(short), short.kind, short.count))
    })
}

/// What stays on each node, with what is held there.
fn staying(world: &World) -> BTreeMap<NodeId, NodeSums> {
    let mut staying = usage(world, |row| row.eviction.is_none());
    for hold in world.holds.values() {
        staying.entry(hold.value.node).or_default().add_hold(world, &hold.value, true);
    }
    staying
}

/// Nodes on which more stays than they have. One that has come to have less keeps what runs there, so a state alone does not
/// tell whether that is a fault.
pub(super) fn above(world: &World) -> BTreeSet<NodeId> {
    let is_above = |(id, sums): &(NodeId, NodeSums)| {
        world.nodes.get(id).is_some_and(|node| !excess(node, sums).is_empty())
    };
    staying(world).into_iter().filter(is_above).map(|(id, _)| id).collect()
}

/// The state now, and every revision from which on the history can be judged.
pub(super) fn check(world: &World, history: &History, replay: &Replay, left: &LeftOut<'_>) -> Findings {
    let mut findings = Findings::default();
    check_slots(world, &mut findings);
    let mut n_rows = 0;
    // It is not known whether these have come to have less.
    let mut unknown: BTreeSet<NodeId> =
        replay.began_above.intersection(&replay.world.shrunk).copied().collect();
    for (id, sums) in &staying(world) {
        n_rows += sums.n;
        match world.nodes.get(id) {
            None if sums.n == 0 || left.nodes.contains(id) => {}
            None => findings.add(|| format!("{} running units on node {id}, which does not exist", sums.n)),
            // It keeps what runs and gets nothing new.
            Some(_) if replay.world.shrunk.contains(id) => {}
            Some(node) => {
                let wrong = excess(node, sums);
                if !history.has_start() && !wrong.is_empty() {
                    unknown.insert(*id);
                    continue;
                }
                for wrong in wrong {
                    findings.add(|| {
                        format!("node {}: {} (revision {})", node.name(), wrong.words, world.revision)
                    });
                }
            }
        }
    }
    check_squeezed(world, history, &mut findings);
    check_each_placement(world, &replay.world.shrunk, &mut findings);
    findings.extend(&replay.room);
    let how = match history.gap() {
        None => {
            let n = history.commits.iter().filter(|commit| commit.revision > history.judged_after()).count();
            format!("also at each of {n} revisions{}", history.since())
        }
        Some(gap) => {
            findings.not_judged(gap);
            "now".to_owned()
        }
    };
    if let Some(first) = unknown.first() {
        findings.not_judged(format!(
            "{} nodes had more bound than they have when the history begins, as {}: they may have come to have less before",
            unknown.len(),
            node_name(world, *first)
        ));
    }
    let n_holds = world.holds.len();
    let terms = match replay.terms.n_judged() {
        0 => String::new(),
        n => format!("; the domains of {n} bindings"),
    };
    findings.checked(format!(
        "{} nodes, {n_rows} running units, {n_holds} holds, {how}{terms}",
        world.nodes.len()
    ));
    findings
}

/// Each slot of a reservation is held once, and nobody is in two.
fn check_slots(world: &World, findings: &mut Findings) {
    let (mut slots, mut occupants) = (BTreeMap::new(), BTreeMap::new());
    for hold in world.holds.values().map(|hold| &hold.value) {
        let Some(slot) = &hold.slot else { continue };
        let key = (&slot.reservation, &hold.ordinals);
        if let Some(other) = slots.insert(key, hold.id) {
            findings.add(|| {
                let (name, id) = (&slot.reservation, hold.id);
                format!("slot {:?} of reservation {name} is held twice, by {other} and {id}", hold.ordinals)
            });
        }
        let Some(occupant) = slot.occupant else { continue };
        let row = world.units.get(&occupant.unit).and_then(|unit| unit.rows.get(&occupant.replica.ordinal));
        let is_in = |row: &&WorldRow| {
            row.is_live() && (row.incarnation, row.node) == (occupant.replica.incarnation, hold.node)
        };
        if row.filter(is_in).is_some()
            && let Some(other) = occupants.insert(occupant, hold.id)
        {
            let (unit, ordinal) = (occupant.unit, occupant.replica.ordinal);
            findings.add(|| format!("unit {unit}, {ordinal} is in two slots, {other} and {}", hold.id));
        }
    }
}

/// Nodes whose best-effort running units should long have been squeezed.
fn check_squeezed(world: &World, history: &History, findings: &mut Findings) {
    let Some(now_ms) = history.commits.last().map(|commit| commit.time_ms) else { return };
    let mut sums = usage(world, |_| true);
    let mut staying = usage(world, |row| row.eviction.is_none());
    let mut changed: BTreeMap<NodeId, Revision> = BTreeMap::new();
    for row in world.units.values().flat_map(|unit| unit.rows.values()) {
        let last = changed.entry(row.node).or_default();
        *last = row.revision.max(*last);
    }
    for hold in world.holds.values() {
        let node = hold.value.node;
        let all = sums.entry(node).or_default();
        all.add_hold(world, &hold.value, false);
        all.keep_hold(world, &hold.value, false);
        staying.entry(node).or_default().add_hold(world, &hold.value, false);
        let last = changed.entry(node).or_default();
        *last = hold.revision.max(*last);
    }
    for (id, mut sums) in sums {
        let Some(node) = world.nodes.get(&id) else { continue };
        sums.best_effort = staying.remove(&id).unwrap_or_default().best_effort;
        let wrong = best_effort_excess(node, &sums);
        if wrong.is_empty() {
            continue;
        }
        let of_node = [
            changed.get(&id).copied(),
            node.usage.as_ref().map(|record| record.revision),
            node.report.as_ref().map(|record| record.revision),
            node.allocatable.as_ref().map(|record| record.revision),
        ];
        let last = of_node.into_iter().flatten().max().unwrap_or_default();
        // What was before the history has lasted since its beginning at the least.
        let commit = history.commits.iter().rfind(|commit| commit.revision <= last);
        let since = commit.or(history.commits.first());
        let for_ms = now_ms.saturating_sub(since.map_or(now_ms, |commit| commit.time_ms));
        if for_ms > SQUEEZED_WITHIN_MS {
            let words: Vec<&str> = wrong.iter().map(|wrong| wrong.words.as_str()).collect();
            findings.add(|| format!("node {}: {} for {for_ms} ms", node.name(), words.join(", ")));
        }
    }
}

fn check_each_placement(world: &World, shrunk: &BTreeSet<NodeId>, findings: &mut Findings) {
    for (id, unit) in &world.units {
        for (ordinal, row) in unit.rows.iter().filter(|(_, row)| row.is_live()) {
            let Some((demand, _)) = unit.demands.get(&row.group) else {
                findings.add(|| format!("unit {} (id {id}) ordinal {ordinal}: no demand known", unit.name()));
                continue;
            };
            let node = world.nodes.get(&row.node).filter(|_| !shrunk.contains(&row.node));
            let Some(node) = node else { continue };
            let wrong = wrong_devices(node, demand, row.allocation.devices);
            if let Some(wrong) = wrong.or_else(|| wrong_zones(node, demand, row.allocation.zones)) {
                findings.add(|| format!("{}/{ordinal} on {}: {wrong}", unit.name(), node.name()));
            }
        }
    }
}
