//! The tree of queues as the auditor sees it: what each uses, who waits, and whose turn it is.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use godel_base::{
    ids::{NodeId, UnitId},
    quantity::MILLI_WHOLE,
    resources::Resources,
};
use godel_domain::{
    demand::{Demand, Pool},
    queue_spec::{Band, parent},
    running_units::Phase,
    unit::{Template, UnitRecord, UnitSpec},
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::{
    queues::{RUNNING_UNITS, Used, levels},
    world::{World, WorldRow},
};

pub(super) const N_BANDS: usize = Band::ALL.len();
/// Units that wait that are looked at for one place.
const N_UNITS_MAX: usize = 32;
/// Shares that differ by less are equal: the dispatcher knows the size of the cluster to a hundredth.
const SHARE_MARGIN: f64 = 0.02;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LevelIdx(usize);

impl LevelIdx {
    /// Above all queues.
    pub(super) const ROOT: Self = Self(0);
}

/// Whose turn it is among siblings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Has its guarantee, or none.
    borrows: bool,
    /// Dominant share for its weight.
    share: f64,
}

impl Turn {
    pub(super) fn order(&self, other: &Self) -> Ordering {
        self.borrows.cmp(&other.borrows).then(self.share.total_cmp(&other.share))
    }

    /// Beyond doubt.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        match self.borrows.cmp(&other.borrows) {
            Ordering::Less => true,
            Ordering::Equal => self.share * (1.0 + SHARE_MARGIN) < other.share,
            Ordering::Greater => false,
        }
    }
}

/// A unit that waits.
#[derive(Clone, Copy, Debug)]
struct WaitingUnit {
    queue: LevelIdx,
    band: Band,
    since_ms: i64,
    priority: i32,
    kind: WaitKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitKind {
    /// Nothing but room and its queue can keep it waiting.
    Plain,
    /// More than one running unit at once: its queue may pay for it before it is bound.
    Gang,
    Other,
}

#[derive(Clone, Debug, Default)]
struct Level {
    path: String,
    above: usize,
    below: Vec<usize>,
    used: Used,
    weight: f64,
    guaranteed: BTreeMap<String, i64>,
    has_maximum: bool,
    /// When it last came to use less.
    eased_ms: Option<i64>,
    /// By band, those of it and of those below.
    n_waiting: [u32; N_BANDS],
    n_gangs: [u32; N_BANDS],
    /// By band, its own that are plain.
    plain: [BTreeSet<UnitId>; N_BANDS],
    /// Twice what others got before it.
    owed: [u32; N_BANDS],
}

/// Queues by number; the first one is above all.
#[derive(Debug)]
pub(super) struct Levels {
    all: Vec<Level>,
    by_path: FxHashMap<String, usize>,
    units: FxHashMap<UnitId, WaitingUnit>,
    nodes: FxHashMap<NodeId, Resources>,
    total: Resources,
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            all: vec![Level::default()],
            by_path: FxHashMap::default(),
            units: FxHashMap::default(),
            nodes: FxHashMap::default(),
            total: Resources::default(),
        }
    }
}

impl Levels {
    pub(super) fn find(&self, path: &str) -> Option<LevelIdx> {
        self.by_path.get(path).copied().map(LevelIdx)
    }

    pub(super) fn path(&self, level: LevelIdx) -> &str {
        &self.all[level.0].path
    }

    fn intern(&mut self, path: &str) -> LevelIdx {
        if let Some(known) = self.find(path) {
            return known;
        }
        let above = parent(path).map_or(LevelIdx::ROOT, |above| self.intern(above)).0;
        let idx = self.all.len();
        self.all.push(Level { path: path.to_owned(), above, weight: 1.0, ..Level::default() });
        self.all[above].below.push(idx);
        self.by_path.insert(path.to_owned(), idx);
        LevelIdx(idx)
    }

    /// The queue and those above it.
    pub(super) fn upwards(&self, queue: LevelIdx) -> SmallVec<[LevelIdx; 4]> {
        let above = |level: &LevelIdx| Some(LevelIdx(self.all[level.0].above));
        std::iter::successors(Some(queue), above).take_while(|level| *level != LevelIdx::ROOT).collect()
    }

    /// Queues have other records.
    pub(super) fn follow_records(&mut self, world: &World) {
        for path in world.queues.keys() {
            self.intern(path);
        }
        for level in &mut self.all[1..] {
            let record = world.queues.get(&level.path).map(|record| &record.value);
            level.weight = record.map_or(1.0, |record| f64::from(record.weight.max(1)));
            level.guaranteed = record.map(|record| record.min.clone()).unwrap_or_default();
            level.has_maximum = record.is_some_and(|record| record.has_limits());
        }
        // Of each resource the larger of its own and the sum over those below, which have higher numbers.
        for idx in (1..self.all.len()).rev() {
            let mut below: BTreeMap<String, i64> = BTreeMap::new();
            for child in &self.all[idx].below {
                for (name, amount) in &self.all[*child].guaranteed {
                    *below.entry(name.clone()).or_default() += amount;
                }
            }
            let own = &mut self.all[idx].guaranteed;
            for (name, amount) in below {
                let known = own.entry(name).or_default();
                *known = amount.max(*known);
            }
            own.retain(|_, amount| *amount > 0);
        }
    }

    /// What a node has is part of the cluster.
    pub(super) fn follow_node(&mut self, world: &World, id: NodeId) {
        let node = world.nodes.get(&id).filter(|node| node.spec.is_some());
        let mut has = Resources::default();
        if let Some((node, report)) = node.and_then(|node| Some((node, node.report.as_ref()?))) {
            has = node.allocatable().into_owned();
            for device in &report.value.devices {
                has.add_amount(&device.kind, i64::from(MILLI_WHOLE));
            }
        }
        let had = self.nodes.insert(id, has.clone()).unwrap_or_default();
        self.total.add(&had, -1);
        self.total.add(&has, 1);
    }

    pub(super) fn count(&mut self, queue: &str, demand: &Demand, times: i64, now_ms: i64) {
        for path in levels(queue) {
            let level = self.intern(path);
            let level = &mut self.all[level.0];
            level.used.add(demand, times);
            if times < 0 {
                level.eased_ms = level.eased_ms.max(Some(now_ms));
            }
        }
    }

    pub(super) fn eased_ms(&self, level: LevelIdx) -> Option<i64> {
        self.all[level.0].eased_ms
    }

    /// A unit has another record or other rows: whether it waits now.
    pub(super) fn follow_unit(&mut self, world: &World, id: UnitId, now_ms: i64) {
        let before = self.units.get(&id).map(|wait| wait.since_ms);
        let unit = world.units.get(&id);
        let record = unit.and_then(|unit| unit.record.as_ref()).map(|record| &*record.value);
        let waiting =
            unit.zip(record).filter(|(_, record)| record.is_wanted() && record.spec.pool == Pool::Guaranteed);
        let kind = waiting.and_then(|(unit, record)| kind(record, &unit.rows));
        let Some((kind, record)) = kind.zip(record) else { return self.forget_unit(id) };
        let wait = WaitingUnit {
            queue: self.intern(&record.spec.queue),
            band: band(world, &record.spec),
            priority: priority(world, &record.spec),
            since_ms: before.unwrap_or(now_ms),
            kind,
        };
        self.forget_unit(id);
        self.units.insert(id, wait);
        self.note(id, wait, true);
    }

    pub(super) fn forget_unit(&mut self, id: UnitId) {
        if let Some(wait) = self.units.remove(&id) {
            self.note(id, wait, false);
        }
    }

    fn note(&mut self, id: UnitId, wait: WaitingUnit, is_new: bool) {
        let band = wait.band.idx();
        let plain = &mut self.all[wait.queue.0].plain[band];
        if is_new && wait.kind == WaitKind::Plain {
            plain.insert(id);
        } else {
            plain.remove(&id);
        }
        let count = |n: u32| if is_new { n + 1 } else { n.saturating_sub(1) };
        for at in self.upwards(wait.queue).into_iter().chain([LevelIdx::ROOT]) {
            let level = &mut self.all[at.0];
            level.n_waiting[band] = count(level.n_waiting[band]);
            if wait.kind == WaitKind::Gang {
                level.n_gangs[band] = count(level.n_gangs[band]);
            }
        }
    }

    /// Whether anything waits beside what these are of, or these are several.
    pub(super) fn has_others(&self, given: &BTreeSet<(LevelIdx, Band)>) -> bool {
        let all: u32 = self.all[0].n_waiting.iter().sum();
        let own = |(queue, band): &(LevelIdx, Band)| self.all[queue.0].n_waiting[band.idx()];
        given.len() > 1 || given.iter().map(own).sum::<u32>() < all
    }

    /// Other queues below the same one with units of a band that wait.
    pub(super) fn siblings(&self, level: LevelIdx, band: Band) -> impl Iterator<Item = LevelIdx> {
        let above = &self.all[self.all[level.0].above];
        let others = above.below.iter().copied().map(LevelIdx).filter(move |other| *other != level);
        others.filter(move |other| {
            let of = &self.all[other.0];
            of.n_waiting[band.idx()] > 0 && of.n_gangs[band.idx()] == 0
        })
    }

    /// Units of a band that wait in a queue or below it.
    pub(super) fn waiting(&self, queue: LevelIdx, band: Band) -> impl Iterator<Item = UnitId> {
        let all = self.units.iter().filter(move |(_, wait)| wait.band == band);
        all.filter(move |(_, wait)| wait.queue == queue || self.upwards(wait.queue).contains(&queue))
            .map(|(id, _)| *id)
    }

    /// With `more` used than it is.
    pub(super) fn rank_of(&self, level: LevelIdx, more: Option<&Used>) -> Turn {
        let level = &self.all[level.0];
        let used = |name: &str| level.used.get(name) + more.map_or(0, |more| more.get(name));
        let mut met = level.guaranteed.iter().map(|(name, min)| used(name) >= *min);
        let borrows = level.guaranteed.is_empty() || met.any(|is_met| is_met);
        let names = level.used.names().chain(more.into_iter().flat_map(Used::names));
        let share = |name: &str| {
            let total = self.total.get(name);
            if total > 0 { used(name) as f64 / total as f64 } else { 0.0 }
        };
        let share = names.map(share).fold(0.0, f64::max);
        // Half of what one of its running units takes.
        let half = share / (2 * used(RUNNING_UNITS).max(1)) as f64;
        Turn { borrows, share: (share + half) / level.weight }
    }

    /// Somebody else got what a queue was entitled to. Twice what is owed to it now.
    pub(super) fn owe(&mut self, level: LevelIdx, band: Band) -> u32 {
        let owed = &mut self.all[level.0].owed[band.idx()];
        *owed += 2;
        *owed
    }

    /// It got so much.
    pub(super) fn pay(&mut self, level: LevelIdx, band: Band, n: u32) {
        let owed = &mut self.all[level.0].owed[band.idx()];
        *owed = owed.saturating_sub(n);
    }

    /// Nothing is owed to it.
    pub(super) fn forgive(&mut self, level: LevelIdx, band: Band) {
        self.all[level.0].owed[band.idx()] = 0;
    }

    /// A plain unit of a queue, or of those below it, of no lower priority, that waits since a time or longer and of which one running unit `fits`,
    /// where no maximum may be in its way; and since when it waits.
    pub(super) fn find_waiting(
        &self,
        world: &World,
        queue: LevelIdx,
        band: Band,
        priority: i32,
        known_since_ms: i64,
        fits: impl Fn(&Template) -> bool,
    ) -> Option<(UnitId, i64)> {
        let band = band.idx();
        if self.upwards(queue).into_iter().any(|level| self.all[level.0].has_maximum) {
            return None;
        }
        let mut n_left = N_UNITS_MAX;
        let mut stack = vec![queue.0];
        while let Some(at) = stack.pop() {
            let level = &self.all[at];
            if level.n_waiting[band] == 0 || level.has_maximum {
                continue;
            }
            stack.extend(&level.below);
            let mut tried: Option<&Template> = None;
            for id in level.plain[band].iter().take(n_left) {
                n_left -= 1;
                let wait = self
                    .units
                    .get(id)
                    .filter(|wait| wait.since_ms <= known_since_ms && wait.priority >= priority);
                let record = world.units.get(id).and_then(|unit| unit.record.as_ref());
                let Some((wait, record)) = wait.zip(record) else { continue };
                let template = &record.value.spec.task_groups[0].template;
                if tried != Some(template) && fits(template) {
                    return Some((*id, wait.since_ms));
                }
                tried = Some(template);
            }
        }
        None
    }
}

/// The band of a unit as it is submitted now.
pub(super) fn band(world: &World, spec: &UnitSpec) -> Band {
    Band::of(spec.pool, priority(world, spec))
}

/// The priority of a unit as it is submitted now.
pub(super) fn priority(world: &World, spec: &UnitSpec) -> i32 {
    let class = world.priority_classes.get(&spec.priority_class);
    class.map_or(spec.priority, |class| class.value.value)
}

/// `None`: nothing of it waits.
fn kind(record: &UnitRecord, rows: &BTreeMap<u32, WorldRow>) -> Option<WaitKind> {
    let mut ordinals = record.iter_ordinals();
    let is_pending = |ordinal: u32| rows.get(&ordinal).is_none_or(|row| row.phase == Phase::Pending);
    if !ordinals.any(is_pending) {
        return None;
    }
    // What ended or left once may come back later than it could.
    let is_first_life = rows.iter().all(|(_, row)| row.incarnation == 0);
    Some(match record.spec.task_groups.as_slice() {
        _ if record.spec.min_member > 1 => WaitKind::Gang,
        [group]
            if is_first_life
                && group.template.node_selector.is_empty()
                && group.template.node_affinity.is_empty()
                && group.template.max_load.is_any()
                && group.template.demand.host_ports.is_empty()
                && !record.spec.goes_by_unit()
                && !record.spec.is_ordered()
                && record.spec.active_deadline_ms == 0
                && record.spec.scheduling_timeout_ms == 0 =>
        {
            WaitKind::Plain
        }
        _ => WaitKind::Other,
    })
}
