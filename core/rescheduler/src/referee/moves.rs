//! Which moves a plan may make, as columns of a program, and what bounds them, as its rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use godel_base::ids::UnitId;
use godel_domain::unit::WorkloadClass;
use rustc_hash::FxHashMap;

use super::{
    PlanBound,
    program::{ColumnIdx, IntegerProgram, N_COLUMNS_MAX, ProgramColumn},
};
use crate::{
    config::RescheduleKind,
    filters::Filters,
    layout::{Layout, NodeIdx, OwnerIdx, RunIdx, ShapeDevices, ShapeIdx, UnitShape, WHOLE},
    snapshot::UnitFacts,
    workspace::PlanLimits,
};

/// Movable running units and nodes of a scope, at most.
const N_MOVABLE_MAX: usize = 300;
const N_NODES_MAX: usize = 300;

/// An integer as a number to compute with; exact up to 2^53.
pub(super) fn number(amount: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "programs need no more than 53 bits")]
    let number = amount as f64;
    number
}

pub(super) fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// Running units that a program does not tell apart.
pub(super) struct MoveGroup {
    units: Vec<RunIdx>,
    /// One of them.
    pub(super) sample: RunIdx,
    pub(super) home: NodeIdx,
    shape: ShapeIdx,
    /// Thousandths that each has of devices at home, by class.
    home_devices: Vec<(u8, i32)>,
    /// Where they may go, with how many of them do.
    pub(super) targets: Vec<(NodeIdx, ColumnIdx)>,
}

impl MoveGroup {
    pub(super) fn n_units(&self) -> f64 {
        count(self.units.len())
    }

    /// Returns the thousandths that each has at home of devices of some classes.
    fn home_milli(&self, classes: u64) -> f64 {
        let of_classes = self.home_devices.iter().filter(|(class, _)| classes >> class & 1 == 1);
        of_classes.map(|(_, milli)| f64::from(*milli)).sum()
    }
}

/// What running units have to be alike in for one group.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    home: NodeIdx,
    shape: ShapeIdx,
    home_devices: Vec<(u8, i32)>,
    targets: Vec<(NodeIdx, u32)>,
    is_daemon: bool,
    /// `None`: nothing depends on whose replica it is.
    owner: Option<OwnerIdx>,
    usage: (i64, i64),
}

/// A sum that says how much a node gets more of something than it had, and what it may get.
pub(super) struct RoomRow {
    terms: Vec<(ColumnIdx, f64)>,
    /// What is free with everything at home, not below zero: a node that has too much may keep it.
    free: f64,
    /// What it has less when all that may leave has left.
    leaving: f64,
}

/// The program of all plans within some limits, without objective.
pub(super) struct MoveProgram<'a> {
    /// Everything where the snapshot has it.
    pub(super) at_home: Layout<'a>,
    /// Everything where a plan leaves it that is known.
    pub(super) known: Layout<'a>,
    pub(super) groups: Vec<MoveGroup>,
    pub(super) program: IntegerProgram,
    /// Most moves of a plan.
    pub(super) n_moves_max: usize,
    /// Whether a node gets or loses anything, by position.
    is_touched: Vec<bool>,
    /// What may leave each node.
    pub(super) leaving: Vec<Vec<RunIdx>>,
}

impl<'a> MoveProgram<'a> {
    /// Returns the program of all moves within some limits; `None`: they are too many.
    pub(super) fn new(
        kind: &RescheduleKind,
        layout: &Layout<'a>,
        filters: &dyn Filters,
        limits: &PlanLimits,
    ) -> Option<Self> {
        let is_in_scope = |node: NodeIdx| limits.in_scope.get(node.idx()).copied().unwrap_or(true);
        let left_of = |owner: OwnerIdx| limits.owner_left.get(owner.idx()).copied().unwrap_or(u32::MAX);
        let may_move = |unit: &RunIdx| {
            limits.movable.get(unit.idx()).copied().unwrap_or(true)
                && is_in_scope(layout.home(*unit))
                && !layout.rooms().shape(layout.shape_of(*unit)).is_fixed
                && left_of(layout.owner(*unit)) > 0
                && limits.n_moves_max > 0
        };
        let movable: Vec<RunIdx> = layout.running().filter(may_move).take(N_MOVABLE_MAX + 1).collect();
        let nodes: Vec<NodeIdx> =
            layout.nodes().filter(|node| is_in_scope(*node)).take(N_NODES_MAX + 1).collect();
        if movable.len() > N_MOVABLE_MAX || (nodes.len() > N_NODES_MAX && !movable.is_empty()) {
            return None;
        }
        let mut at_home = layout.clone();
        layout.running().for_each(|unit| at_home.force(unit, layout.home(unit), layout.home_devices(unit)));
        at_home.forget_steps();
        let mut leaving = vec![Vec::new(); layout.n_nodes()];
        movable.iter().for_each(|unit| leaving[layout.home(*unit).idx()].push(*unit));
        let mut program = Self {
            at_home,
            known: layout.clone(),
            groups: Vec::new(),
            program: IntegerProgram::default(),
            n_moves_max: limits.n_moves_max,
            is_touched: vec![false; layout.n_nodes()],
            leaving,
        };
        program.add_groups(kind, &movable, &nodes, filters, limits)?;
        program.add_limits(limits);
        Some(program)
    }

    fn add_groups(
        &mut self,
        kind: &RescheduleKind,
        movable: &[RunIdx],
        nodes: &[NodeIdx],
        filters: &dyn Filters,
        limits: &PlanLimits,
    ) -> Option<()> {
        let mut n_movable_of: FxHashMap<OwnerIdx, u32> = FxHashMap::default();
        for unit in movable {
            *n_movable_of.entry(self.at_home.owner(*unit)).or_default() += 1;
        }
        let left_of = |owner: OwnerIdx| limits.owner_left.get(owner.idx()).copied().unwrap_or(u32::MAX);
        let counted = counted_owners(kind, &self.at_home);
        let n_max = u32::try_from(movable.len()).unwrap_or(u32::MAX);
        let mut fitting: FxHashMap<(ShapeIdx, NodeIdx), u32> = FxHashMap::default();
        let mut groups: BTreeMap<GroupKey, Vec<RunIdx>> = BTreeMap::new();
        for unit in movable {
            let layout = &self.at_home;
            let (home, shape, owner) = (layout.home(*unit), layout.shape_of(*unit), layout.owner(*unit));
            let mut targets = Vec::new();
            for node in nodes.iter().filter(|node| **node != home) {
                let n_fitting =
                    *fitting.entry((shape, *node)).or_insert_with(|| self.n_fitting(shape, *node, n_max));
                if n_fitting > 0 && filters.admits(layout, *unit, *node) {
                    targets.push((*node, n_fitting));
                }
            }
            let is_limited = left_of(owner) < n_movable_of.get(&owner).copied().unwrap_or(0);
            let usage = layout.facts(*unit).usage;
            let key = GroupKey {
                home,
                shape,
                home_devices: home_devices(layout, *unit),
                targets,
                is_daemon: layout.owner_facts(*unit).class == WorkloadClass::Daemon,
                owner: (is_limited || counted[owner.idx()]).then_some(owner),
                usage: match kind {
                    RescheduleKind::LoadBalance(_) => (usage.cpu_milli, usage.network_bps),
                    _ => (0, 0),
                },
            };
            groups.entry(key).or_default().push(*unit);
        }
        if groups.keys().map(|key| key.targets.len()).sum::<usize>() > N_COLUMNS_MAX {
            return None;
        }
        for (key, units) in groups.into_iter().filter(|(key, _)| !key.targets.is_empty()) {
            let n_units = u32::try_from(units.len()).unwrap_or(u32::MAX);
            let n_moves_max = u32::try_from(limits.n_moves_max).unwrap_or(u32::MAX);
            let most = key.owner.map_or(u32::MAX, left_of).min(n_moves_max).min(n_units);
            let targets = key.targets.into_iter().map(|(node, n_fitting)| {
                let n_there = units.iter().filter(|unit| self.known.node_of(**unit) == node).count();
                let column = ProgramColumn {
                    cost: 0.0,
                    most: f64::from(most.min(n_fitting)),
                    is_whole: true,
                    known: count(n_there),
                };
                self.is_touched[node.idx()] = true;
                (node, self.program.add_column(column))
            });
            let targets = targets.collect();
            self.is_touched[key.home.idx()] = true;
            let Some(&sample) = units.first() else { continue };
            let (home, shape, home_devices) = (key.home, key.shape, key.home_devices);
            self.groups.push(MoveGroup { units, sample, home, shape, home_devices, targets });
        }
        Some(())
    }

    /// Returns how many running units of a demand there could be room for on a node whatever leaves it, at most `n_max`.
    pub(super) fn n_fitting(&self, shape: ShapeIdx, node: NodeIdx, n_max: u32) -> u32 {
        let layout = &self.at_home;
        if !self.is_plain(shape) {
            return n_max;
        }
        layout.rooms().copies_in(shape, node, layout.room_without(node, &self.leaving[node.idx()]), n_max)
    }

    /// Whether more room never takes fewer running units of a demand. Where several requests of one accept the same devices, it may: which
    /// request gets which device depends on their order.
    pub(super) fn is_plain(&self, shape: ShapeIdx) -> bool {
        plain_asks(self.at_home.rooms().shape(shape)).is_some()
    }

    /// No more moves than a plan may have, of a unit than its rate allows, and of a group than it has running units.
    fn add_limits(&mut self, limits: &PlanLimits) {
        let all = self.sum(|_, _| 1.0);
        self.program.add_row(all, count(limits.n_moves_max));
        let owners: BTreeSet<OwnerIdx> =
            self.groups.iter().map(|group| self.at_home.owner(group.sample)).collect();
        for owner in owners {
            let Some(left) = limits.owner_left.get(owner.idx()) else { continue };
            let n_movable =
                self.leaving.iter().flatten().filter(|unit| self.at_home.owner(**unit) == owner).count();
            // Where that cannot be too many, groups may be of several units.
            if usize::try_from(*left).is_ok_and(|left| left < n_movable) {
                let of_owner =
                    self.sum(|group, _| f64::from(u8::from(self.at_home.owner(group.sample) == owner)));
                self.program.add_row(of_owner, f64::from(*left));
            }
        }
        for group in &self.groups {
            let of_group = group.targets.iter().map(|(_, column)| (*column, 1.0)).collect();
            self.program.add_row(of_group, group.n_units());
        }
    }

    /// Returns a sum over all moves, of which each running unit that goes to a node adds as much as `each` says.
    pub(super) fn sum(&self, each: impl Fn(&MoveGroup, NodeIdx) -> f64) -> Vec<(ColumnIdx, f64)> {
        let columns =
            self.groups.iter().flat_map(|group| group.targets.iter().map(move |target| (group, target)));
        let terms = columns.map(|(group, (node, column))| (*column, each(group, *node)));
        terms.filter(|(_, factor)| *factor != 0.0).collect()
    }

    /// Returns by how much what some nodes have changes, if each running unit of a group has as much as `of_group` says.
    pub(super) fn change(
        &self,
        nodes: impl Fn(NodeIdx) -> bool,
        of_group: impl Fn(&MoveGroup) -> f64,
    ) -> Vec<(ColumnIdx, f64)> {
        let mut terms = Vec::new();
        for group in &self.groups {
            let (each, is_here) = (of_group(group), nodes(group.home));
            if each != 0.0 {
                let changing = group.targets.iter().filter(|(to, _)| nodes(*to) != is_here);
                terms.extend(changing.map(|(_, column)| (*column, if is_here { -each } else { each })));
            }
        }
        terms
    }

    pub(super) fn is_touched(&self, node: NodeIdx) -> bool {
        self.is_touched[node.idx()]
    }

    /// Returns the nodes that get or lose something.
    pub(super) fn touched(&self) -> Vec<NodeIdx> {
        self.at_home.nodes().filter(|node| self.is_touched(*node)).collect()
    }

    /// Keeps on each node what it gets within what it has.
    pub(super) fn add_room(&mut self) {
        for node in self.touched() {
            let rows = self.room_rows(node, None);
            self.add_room_rows(rows);
        }
    }

    /// Keeps on a node what it gets within what it has if a column is 1, and lets nothing that may leave be there if it is 0.
    pub(super) fn add_room_if(&mut self, node: NodeIdx, is_used: ColumnIdx) {
        for RoomRow { mut terms, free, leaving } in self.room_rows(node, None) {
            // No more than this is there, whatever room there is.
            let coming: f64 =
                terms.iter().map(|(column, factor)| factor.max(0.0) * self.program.most(*column)).sum();
            terms.push((is_used, -(leaving + free.min(coming))));
            self.program.add_row(terms, -leaving);
        }
    }

    /// Returns what bounds how much a node gets: amounts, and thousandths of devices of each set of classes that somebody asks for. So many
    /// running units of a demand as a column says are there as well.
    pub(super) fn room_rows(&self, node: NodeIdx, more: Option<(ColumnIdx, ShapeIdx)>) -> Vec<RoomRow> {
        let layout = &self.at_home;
        let shape = |group: &MoveGroup| layout.rooms().shape(group.shape);
        let of_more = |each: &dyn Fn(&UnitShape) -> f64| {
            more.map(|(column, shape)| (column, each(layout.rooms().shape(shape))))
                .filter(|(_, factor)| *factor > 0.0)
        };
        let here = |group: &&MoveGroup| group.home == node;
        let mut rows = Vec::new();
        for (at, free) in layout.rooms().free_amounts(node).iter().enumerate() {
            let amount = |shape: &UnitShape| number(shape.amounts[at]);
            let mut terms = self.change(|other| other == node, |group| amount(shape(group)));
            terms.extend(of_more(&amount));
            let leaving =
                self.groups.iter().filter(here).map(|group| group.n_units() * amount(shape(group))).sum();
            rows.push(RoomRow { terms, free: number((*free).max(0)), leaving });
        }
        let classes = layout.rooms().device_classes(node);
        let has_classes = classes.iter().fold(0u64, |set, class| set | 1 << class);
        let comes = |group: &&MoveGroup| group.targets.iter().any(|(to, _)| *to == node);
        let shapes =
            self.groups.iter().filter(comes).map(|group| group.shape).chain(more.map(|(_, shape)| shape));
        let asked = |shape: ShapeIdx| plain_asks(layout.rooms().shape(shape)).into_iter().flatten();
        let mut sets: BTreeSet<u64> = shapes.flat_map(asked).map(|ask| ask.classes() & has_classes).collect();
        sets.insert(sets.iter().fold(0, |all, set| all | set));
        for set in sets.into_iter().filter(|set| *set != 0) {
            let milli = |shape: &UnitShape| milli_within(shape, has_classes, set);
            let mut terms = self.sum(|group, to| match (group.home == node, to == node) {
                (_, true) => milli(shape(group)),
                (true, false) => -group.home_milli(set),
                (false, false) => 0.0,
            });
            terms.extend(of_more(&milli));
            let left = layout
                .rooms()
                .devices_left(node)
                .iter()
                .zip(classes)
                .filter(|(_, class)| set >> **class & 1 == 1);
            let free = left.map(|(left, _)| f64::from((*left).max(0))).sum();
            let leaving =
                self.groups.iter().filter(here).map(|group| group.n_units() * group.home_milli(set)).sum();
            rows.push(RoomRow { terms, free, leaving });
        }
        rows
    }

    pub(super) fn add_room_rows(&mut self, rows: Vec<RoomRow>) {
        rows.into_iter().for_each(|row| self.program.add_row(row.terms, row.free));
    }

    pub(super) fn solve(&self, time_limit: Duration) -> Option<PlanBound> {
        self.program.solve(time_limit)
    }
}

/// Whose replicas the objective counts apart, by position.
fn counted_owners(kind: &RescheduleKind, layout: &Layout<'_>) -> Vec<bool> {
    let snapshot = layout.snapshot();
    let talk: BTreeSet<UnitId> =
        snapshot.traffic.iter().flat_map(|pair| [pair.between.0, pair.between.1]).collect();
    let is_counted = |unit: &UnitFacts| match kind {
        RescheduleKind::Spread(_) => unit.class.spreads(),
        RescheduleKind::Colocation(_) => talk.contains(&unit.id),
        RescheduleKind::LoadBalance(_) | RescheduleKind::Defragmentation(_) | RescheduleKind::Binpack(_) => {
            false
        }
    };
    snapshot.units.iter().map(is_counted).collect()
}

/// Returns the thousandths that a running unit takes of devices at home, by class.
fn home_devices(layout: &Layout<'_>, unit: RunIdx) -> Vec<(u8, i32)> {
    let (classes, shape) =
        (layout.rooms().device_classes(layout.home(unit)), layout.rooms().shape(layout.shape_of(unit)));
    let mut of_class: BTreeMap<u8, i32> = BTreeMap::new();
    for class in layout.home_devices(unit).iter().filter_map(|device| classes.get(device)) {
        *of_class.entry(*class).or_default() += shape.milli_of(*class);
    }
    of_class.into_iter().collect()
}

/// Returns what a demand asks of devices; `None`: two of its requests accept the same devices.
fn plain_asks(shape: &UnitShape) -> Option<&[ShapeDevices]> {
    let mut seen = 0;
    for ask in &shape.devices {
        if seen & ask.classes() != 0 {
            return None;
        }
        seen |= ask.classes();
    }
    Some(&shape.devices)
}

/// Returns the thousandths that a demand takes of devices of a set of classes for sure, on a node that has devices of some classes.
fn milli_within(shape: &UnitShape, has_classes: u64, set: u64) -> f64 {
    let asks = plain_asks(shape).into_iter().flatten();
    let within = asks.filter(|ask| ask.classes() & has_classes & !set == 0);
    // A share is of one device.
    within.map(|ask| f64::from(ask.milli) * f64::from(if ask.milli < WHOLE { 1 } else { ask.count })).sum()
}
