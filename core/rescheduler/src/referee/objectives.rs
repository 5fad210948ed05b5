//! The objectives of the policies, as sums over columns of a program. What counts and does not change is a constant.

use std::collections::{BTreeMap, BTreeSet};

use godel_base::{
    ids::UnitId,
    resources::{CPU, NETWORK},
};
use godel_domain::unit::WorkloadClass;

use super::{
    moves::{MoveGroup, MoveProgram, count, number},
    program::{ColumnIdx, ProgramColumn},
};
use crate::{
    defragmentation::Aim,
    domains::LayoutDomains,
    failure_domains::FailureDomainSpread,
    goal::EPSILON,
    layout::{Layout, NodeIdx, OwnerIdx, RunIdx, ShapeIdx},
    load_balance::LoadBalance,
    snapshot::MeasuredUse,
};

/// Returns a column that is 0 or 1.
fn yes_or_no(cost: f64, known: bool) -> ProgramColumn {
    ProgramColumn { cost, most: 1.0, is_whole: true, known: f64::from(u8::from(known)) }
}

fn negated(terms: &[(ColumnIdx, f64)]) -> Vec<(ColumnIdx, f64)> {
    terms.iter().map(|(column, factor)| (*column, -factor)).collect()
}

/// Bin packing: nodes with work other than daemons.
impl MoveProgram<'_> {
    pub(super) fn count_nodes_with_work(&mut self) {
        self.program.is_whole = true;
        for node in self.at_home.nodes() {
            let works =
                |layout: &Layout<'_>, unit: RunIdx| layout.owner_facts(unit).class != WorkloadClass::Daemon;
            let n_working =
                |layout: &Layout<'_>| layout.on(node).iter().filter(|unit| works(layout, **unit)).count();
            let is_work = |group: &MoveGroup| works(&self.at_home, group.sample);
            let here = |group: &&MoveGroup| group.home == node;
            let n_leaving: f64 =
                self.groups.iter().filter(here).filter(|group| is_work(group)).map(MoveGroup::n_units).sum();
            let stays = count(n_working(&self.at_home)) > n_leaving;
            self.program.constant += f64::from(u8::from(stays));
            if !self.is_touched(node) {
                continue;
            }
            if stays {
                let rows = self.room_rows(node, None);
                self.add_room_rows(rows);
                continue;
            }
            let is_used = self.program.add_column(yes_or_no(1.0, n_working(&self.known) > 0));
            let mut has_daemons = false;
            for group in &self.groups {
                let comes = group.targets.iter().find(|(to, _)| *to == node);
                if !works(&self.at_home, group.sample) {
                    has_daemons |= group.home == node || comes.is_some();
                } else if group.home == node {
                    let mut stay: Vec<_> = group.targets.iter().map(|(_, column)| (*column, -1.0)).collect();
                    stay.push((is_used, -group.n_units()));
                    self.program.add_row(stay, -group.n_units());
                } else if let Some((_, column)) = comes {
                    let most = self.program.most(*column);
                    self.program.add_row(vec![(*column, 1.0), (is_used, -most)], 0.0);
                }
            }
            if has_daemons {
                let rows = self.room_rows(node, None);
                self.add_room_rows(rows);
            } else {
                self.add_room_if(node, is_used);
            }
        }
    }
}

/// Spread over failure domains: replicas beyond what one domain may have of their unit.
impl MoveProgram<'_> {
    pub(super) fn count_excess_replicas(&mut self, policy: &FailureDomainSpread) {
        self.program.is_whole = true;
        self.add_room();
        let domains = LayoutDomains::new(&self.at_home, policy.level.as_deref());
        let n_domains = u32::try_from(domains.len()).unwrap_or(u32::MAX).min(policy.n_domains).max(1);
        for (at, facts) in self.at_home.snapshot().units.iter().enumerate() {
            let owner = OwnerIdx::at(at);
            let n_replicas = u32::try_from(self.at_home.replicas(owner).len()).unwrap_or(u32::MAX);
            if !facts.class.spreads() || n_replicas < 2 {
                continue;
            }
            let allowed = f64::from(n_replicas.div_ceil(n_domains));
            let mut counts: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
            for unit in self.at_home.replicas(owner) {
                if let Some(domain) = domains.of(self.at_home.node_of(*unit)) {
                    counts.entry(domain).or_default().0 += 1.0;
                }
                if let Some(domain) = domains.of(self.known.node_of(*unit)) {
                    counts.entry(domain).or_default().1 += 1.0;
                }
            }
            let is_own = |group: &&MoveGroup| self.at_home.owner(group.sample) == owner;
            let targets = self.groups.iter().filter(is_own).flat_map(|group| &group.targets);
            for domain in targets.filter_map(|(node, _)| domains.of(*node)) {
                counts.entry(domain).or_default();
            }
            for (domain, (at_home, known)) in counts {
                let is_inside = |node: NodeIdx| domains.of(node) == Some(domain);
                let mut terms = self.change(is_inside, |group| self.share_of(group, owner, 1.0));
                let most = at_home + self.program.greatest(&terms) - allowed;
                if terms.is_empty() {
                    self.program.constant += most.max(0.0);
                } else if most > 0.0 {
                    let known = (known - allowed).max(0.0);
                    let column = ProgramColumn { cost: 1.0, most, is_whole: false, known };
                    terms.push((self.program.add_column(column), -1.0));
                    self.program.add_row(terms, allowed - at_home);
                }
            }
        }
    }

    /// Returns a share for replicas of one unit, and nothing for those of others.
    fn share_of(&self, group: &MoveGroup, owner: OwnerIdx, share: f64) -> f64 {
        if self.at_home.owner(group.sample) == owner { share } else { 0.0 }
    }
}

/// What a unit has of its replicas on a node.
struct ReplicaShare {
    at_home: f64,
    known: f64,
    change: Vec<(ColumnIdx, f64)>,
    most: f64,
}

/// Co-location: the share of traffic that is between nodes.
impl MoveProgram<'_> {
    pub(super) fn sum_traffic_between_nodes(&mut self) {
        self.program.is_traffic = true;
        self.add_room();
        let snapshot = self.at_home.snapshot();
        let ids = snapshot.units.iter().enumerate().map(|(at, unit)| (unit.id, OwnerIdx::at(at)));
        let running: BTreeMap<UnitId, OwnerIdx> =
            ids.filter(|(_, owner)| !self.at_home.replicas(*owner).is_empty()).collect();
        let mut pairs: BTreeMap<(OwnerIdx, OwnerIdx), f64> = BTreeMap::new();
        for pair in snapshot.traffic.iter().filter(|pair| pair.weight.is_finite() && pair.weight > 0.0) {
            let (one, other) = (running.get(&pair.between.0), running.get(&pair.between.1));
            if let (Some(one), Some(other)) = (one, other)
                && one != other
            {
                *pairs.entry((*one.min(other), *one.max(other))).or_default() += pair.weight;
            }
        }
        let total: f64 = pairs.values().sum();
        self.program.constant = if pairs.is_empty() { 0.0 } else { 1.0 };
        for ((one, other), weight) in pairs {
            let weight = weight / total;
            let homes = self.at_home.replicas(one).iter().map(|unit| self.at_home.node_of(*unit));
            for node in homes.chain(self.touched()).collect::<BTreeSet<_>>() {
                let shares = [one, other].map(|owner| self.replica_share(owner, node));
                let least = |of: fn(&ReplicaShare) -> f64| of(&shares[0]).min(of(&shares[1]));
                let (most, known) = (least(|share| share.most), least(|share| share.known));
                if shares.iter().all(|share| share.change.is_empty()) || most <= 0.0 {
                    self.program.constant -= weight * least(|share| share.at_home);
                    continue;
                }
                let column = ProgramColumn { cost: -weight, most, is_whole: false, known };
                let kept = self.program.add_column(column);
                for share in shares {
                    let mut terms = negated(&share.change);
                    terms.push((kept, 1.0));
                    self.program.add_row(terms, share.at_home);
                }
            }
        }
    }

    fn replica_share(&self, owner: OwnerIdx, node: NodeIdx) -> ReplicaShare {
        let part = 1.0 / count(self.at_home.replicas(owner).len());
        let [at_home, known] = [&self.at_home, &self.known].map(|layout| {
            let here = layout.replicas(owner).iter().filter(|unit| layout.node_of(**unit) == node);
            part * count(here.count())
        });
        let change = self.change(|other| other == node, |group| self.share_of(group, owner, part));
        let most = (at_home + self.program.greatest(&change)).min(1.0);
        ReplicaShare { at_home, known, change, most }
    }
}

/// Load balance: for each node and measure above the threshold 1, and by how much it is above.
impl MoveProgram<'_> {
    pub(super) fn sum_heat(&mut self, policy: &LoadBalance) {
        self.add_room();
        for node in self.at_home.nodes() {
            let has = &self.at_home.node(node).capacity;
            let (cpu, network) = (has.get(CPU), has.get(NETWORK));
            self.add_heat(node, policy.hot, cpu, |usage| usage.cpu_milli);
            self.add_heat(node, policy.hot, network, |usage| usage.network_bps);
        }
    }

    fn add_heat(&mut self, node: NodeIdx, hot: f64, capacity: i64, of: fn(&MeasuredUse) -> i64) {
        if capacity <= 0 {
            return;
        }
        let share_of = |usage: &MeasuredUse| number(of(usage)) / number(capacity);
        let above = |layout: &Layout<'_>| {
            let others = share_of(&layout.node(node).other_use);
            let used: f64 = layout.on(node).iter().map(|unit| share_of(&layout.facts(*unit).usage)).sum();
            others + used - hot
        };
        let (at_home, known) = (above(&self.at_home), above(&self.known));
        let share = |group: &MoveGroup| share_of(&self.at_home.facts(group.sample).usage);
        let change = self.change(|other| other == node, share);
        let coming = change.iter().filter(|(_, share)| *share > 0.0);
        let coming = UsedShares::new(coming.map(|(column, share)| (*share, self.program.most(*column))));
        let here = self.groups.iter().filter(|group| group.home == node);
        let leaving = UsedShares::new(here.map(|group| (share(group), group.n_units())));
        let most = at_home + coming.sum(count(self.n_moves_max));
        if !is_hot(most) {
            return;
        }
        let Some(n_leaving_min) = leaving.n_until(at_home) else {
            // It is hot whatever leaves it.
            self.program.constant += 1.0 + at_home;
            change.iter().for_each(|(column, share)| self.program.add_cost(*column, *share));
            return;
        };
        let excess = ProgramColumn { cost: 1.0, most, is_whole: false, known: known.max(0.0) };
        let excess = self.program.add_column(excess);
        let counts_as_hot = self.program.add_column(yes_or_no(1.0, is_hot(known)));
        for (column, factor) in [(excess, -1.0), (counts_as_hot, -most)] {
            let mut terms = change.clone();
            terms.push((column, factor));
            self.program.add_row(terms, -at_home);
        }
        if n_leaving_min > 0.0 {
            // The relaxation counts a hot node in parts: it is cool only if so many have left.
            let mut stay = self.sum(|group, _| if group.home == node { -1.0 } else { 0.0 });
            stay.push((counts_as_hot, -n_leaving_min));
            self.program.add_row(stay, -n_leaving_min);
        }
    }
}

/// Whether a node that is this much above the threshold is hot.
fn is_hot(above: f64) -> bool {
    above > EPSILON
}

/// Shares of a node that running units use, and how many use each, greatest first.
struct UsedShares(Vec<(f64, f64)>);

impl UsedShares {
    fn new(shares: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut shares: Vec<(f64, f64)> = shares.collect();
        shares.sort_by(|a, b| b.0.total_cmp(&a.0));
        Self(shares)
    }

    /// Returns what the `n_max` greatest sum up to.
    fn sum(&self, n_max: f64) -> f64 {
        let (mut sum, mut n_left) = (0.0, n_max);
        for (share, n) in &self.0 {
            sum += share * n.min(n_left);
            n_left = (n_left - n).max(0.0);
        }
        sum
    }

    /// Returns how many have to leave at least until a node is not hot that is this much above the threshold; `None`: it always is.
    fn n_until(&self, above: f64) -> Option<f64> {
        // In doubt, fewer do.
        let (mut above, mut n_gone) = (above - 2.0 * EPSILON, 0.0);
        for (share, n) in self.0.iter().filter(|(share, _)| *share > 0.0) {
            let needed = if is_hot(above) { (above / share).ceil().min(*n) } else { 0.0 };
            above -= share * needed;
            n_gone += needed;
        }
        (!is_hot(above)).then_some(n_gone)
    }
}

/// The demand that is to have room, and where.
struct RoomAim {
    shape: ShapeIdx,
    n_copies: u32,
    /// Nodes whose room has a column for the demand.
    nodes: Vec<NodeIdx>,
}

/// Defragmentation: domains that could have the room and lack it, or how many fewer than enough have it.
impl MoveProgram<'_> {
    pub(super) fn count_domains_without_room(&mut self, aim: &Aim) {
        let Aim::Room { demand, n_copies, level, n_enough, .. } = aim else { return };
        self.program.is_whole = true;
        let shape = self.at_home.rooms_mut().intern(demand);
        self.known.rooms_mut().intern(demand);
        let mut aim = RoomAim { shape, n_copies: (*n_copies).max(1), nodes: Vec::new() };
        let domains = LayoutDomains::new(&self.at_home, level.as_deref());
        let mut lacking = Vec::new();
        let (mut n_whole, mut n_whole_known) = (0.0, 0.0);
        for domain in 0..u32::try_from(domains.len()).unwrap_or(u32::MAX) {
            let (is_possible, copies) = self.copies_of(&mut aim, domains.nodes(domain));
            if n_enough.is_none() && !is_possible {
                continue;
            }
            let cost = if n_enough.is_none() { 1.0 } else { 0.0 };
            match copies {
                DomainCopies::Always => (n_whole, n_whole_known) = (n_whole + 1.0, n_whole_known + 1.0),
                DomainCopies::Never => self.program.constant += cost,
                DomainCopies::Maybe { n_fixed, columns, is_known } => {
                    let lacks = self.program.add_column(yes_or_no(cost, !is_known));
                    let needed = f64::from(aim.n_copies);
                    let mut terms: Vec<_> = columns.iter().map(|column| (*column, -1.0)).collect();
                    terms.push((lacks, -needed));
                    self.program.add_row(terms, f64::from(n_fixed) - needed);
                    n_whole_known += f64::from(u8::from(is_known));
                    lacking.push((lacks, 1.0));
                }
            }
        }
        for node in self.touched().into_iter().filter(|node| !aim.nodes.contains(node)) {
            let rows = self.room_rows(node, None);
            self.add_room_rows(rows);
        }
        if let Some(n_enough) = n_enough {
            let (most, known) = (f64::from(*n_enough), (f64::from(*n_enough) - n_whole_known).max(0.0));
            let n_may_be_whole = n_whole + count(lacking.len());
            lacking.push((
                self.program.add_column(ProgramColumn { cost: 1.0, most, is_whole: false, known }),
                -1.0,
            ));
            self.program.add_row(lacking, n_may_be_whole - most);
        }
    }

    /// Returns whether a domain would have the room if it were empty, and whether it has.
    fn copies_of(&mut self, aim: &mut RoomAim, nodes: &[NodeIdx]) -> (bool, DomainCopies) {
        let (mut n_fixed, mut n_possible, mut n_known, mut n_most) = (0u32, 0u32, 0u32, 0u32);
        let mut open = Vec::new();
        for node in nodes.iter().copied().filter(|node| self.at_home.node(*node).accepts) {
            let copies =
                |layout: &Layout<'_>, room| layout.rooms().copies_in(aim.shape, node, room, aim.n_copies);
            n_possible += copies(&self.at_home, self.at_home.rooms().empty_room(node));
            let now = copies(&self.known, self.known.room_without(node, &[]));
            n_known += now;
            if self.is_touched(node) {
                let most = self.n_fitting(aim.shape, node, aim.n_copies);
                n_most += most;
                open.push((node, most, now));
            } else {
                n_fixed += now;
            }
        }
        let is_possible = n_possible >= aim.n_copies;
        if n_fixed >= aim.n_copies {
            return (is_possible, DomainCopies::Always);
        }
        if n_fixed + n_most < aim.n_copies {
            return (is_possible, DomainCopies::Never);
        }
        let columns = open.into_iter().filter(|(_, most, _)| *most > 0).map(|(node, most, now)| {
            let known = f64::from(now.min(most));
            let column = ProgramColumn { cost: 0.0, most: f64::from(most), is_whole: true, known };
            let column = self.program.add_column(column);
            let rows = self.room_rows(node, Some((column, aim.shape)));
            self.add_room_rows(rows);
            aim.nodes.push(node);
            if most == 1 && self.is_plain(aim.shape) {
                self.add_conflicts(aim.shape, node, column);
            }
            column
        });
        let columns = columns.collect();
        (is_possible, DomainCopies::Maybe { n_fixed, columns, is_known: n_known >= aim.n_copies })
    }

    /// Demands of what leaves no room on its node for one running unit of a demand that it leaves, whole groups alike: the relaxation would count
    /// parts of the demand otherwise.
    fn add_conflicts(&mut self, shape: ShapeIdx, node: NodeIdx, copies: ColumnIdx) {
        for group in self.groups.iter().filter(|group| group.home == node) {
            let gone: Vec<RunIdx> =
                self.leaving[node.idx()].iter().copied().filter(|unit| *unit != group.sample).collect();
            let room = self.at_home.room_without(node, &gone);
            if self.at_home.rooms().fit_room(shape, node, &room).is_some() {
                continue;
            }
            let mut terms: Vec<_> = group.targets.iter().map(|(_, column)| (*column, -1.0)).collect();
            terms.push((copies, group.n_units()));
            self.program.add_row(terms, 0.0);
        }
    }
}

/// How many running units of a demand a domain has room for.
enum DomainCopies {
    /// Enough, whatever is moved.
    Always,
    /// Too few, whatever is moved.
    Never,
    /// As many as columns say, and some on nodes that do not change.
    Maybe { n_fixed: u32, columns: Vec<ColumnIdx>, is_known: bool },
}
