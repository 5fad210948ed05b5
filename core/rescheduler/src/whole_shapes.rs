//! Where whole demands fit: the nodes, or the topology domains, that have room for so many running units of a demand.

use crate::{
    domains::LayoutDomains,
    goal::{CheckPoint, Goal},
    layout::{Layout, NodeIdx, RunIdx, ShapeIdx},
};

/// How many domains have room for a number of running units of one demand, kept up to date.
#[derive(Clone, Debug)]
pub struct WholeShapes {
    shape: ShapeIdx,
    n_copies: u32,
    domains: LayoutDomains,
    /// Running units that fit on each node now, at most `n_copies`.
    of_node: Vec<u32>,
    of_domain: Vec<u32>,
    /// Domains that would have the room if they were empty.
    is_possible: Vec<bool>,
    n_lacking: u32,
    limits: ShareLimits,
    /// Running units that fit on the nodes of each share, and how many of them count.
    of_share: Vec<u32>,
}

/// How many running units of a demand may stand together, whatever room there is: on each node, and in each share of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShareLimits {
    /// By node; one that is missing has no limit.
    pub(crate) of_node: Vec<u32>,
    /// The share that each node is of; `None`, and one that is missing: none.
    pub(crate) share_of: Vec<Option<u32>>,
    /// By share. All nodes of a share are of one domain.
    pub(crate) of_share: Vec<u32>,
}

impl ShareLimits {
    fn on(&self, node: NodeIdx) -> u32 {
        self.of_node.get(node.idx()).copied().unwrap_or(u32::MAX)
    }

    /// Returns the share of a node.
    pub(crate) fn share(&self, node: NodeIdx) -> Option<u32> {
        self.share_of.get(node.idx()).copied().flatten()
    }

    fn counted(&self, share: u32, n: u32) -> u32 {
        n.min(self.of_share.get(share as usize).copied().unwrap_or(u32::MAX))
    }
}

impl WholeShapes {
    /// Returns where `n_copies` of a demand fit on nodes that accept work.
    pub fn new(layout: &Layout<'_>, shape: ShapeIdx, n_copies: u32, domains: LayoutDomains) -> Self {
        Self::within(layout, shape, n_copies, domains, ShareLimits::default())
    }

    /// Returns the same where only so many count on a node and in a share.
    pub(crate) fn within(
        layout: &Layout<'_>,
        shape: ShapeIdx,
        n_copies: u32,
        domains: LayoutDomains,
        limits: ShareLimits,
    ) -> Self {
        let n_copies = n_copies.max(1);
        let mut whole = Self {
            shape,
            n_copies,
            of_node: vec![0; layout.n_nodes()],
            of_domain: vec![0; domains.len()],
            is_possible: vec![false; domains.len()],
            domains,
            n_lacking: 0,
            of_share: vec![0; limits.of_share.len()],
            limits,
        };
        let mut possible_in = vec![0u32; whole.of_share.len()];
        let mut possible = vec![0u32; whole.domains.len()];
        for node in layout.nodes().filter(|node| layout.node(*node).accepts) {
            let Some(domain) = whole.domains.of(node).map(|domain| domain as usize) else { continue };
            let n_possible = layout.rooms().copies_in(shape, node, layout.rooms().empty_room(node), n_copies);
            let n_possible = n_possible.min(whole.limits.on(node));
            let n = whole.copies(layout, node, &[], None);
            whole.of_node[node.idx()] = n;
            match whole.limits.share(node) {
                Some(share) => {
                    possible[domain] += whole.grow_share(&mut possible_in, share, n_possible);
                    let mut of_share = std::mem::take(&mut whole.of_share);
                    whole.of_domain[domain] += whole.grow_share(&mut of_share, share, n);
                    whole.of_share = of_share;
                }
                None => {
                    possible[domain] += n_possible;
                    whole.of_domain[domain] += n;
                }
            }
        }
        for (domain, n) in possible.into_iter().enumerate() {
            whole.is_possible[domain] = n >= n_copies;
            whole.n_lacking += u32::from(whole.is_possible[domain] && whole.of_domain[domain] < n_copies);
        }
        whole
    }

    /// Adds running units to a share, and returns how many of them count.
    fn grow_share(&self, of_share: &mut [u32], share: u32, n: u32) -> u32 {
        let Some(sum) = of_share.get_mut(share as usize) else { return n };
        let before = self.limits.counted(share, *sum);
        *sum += n;
        self.limits.counted(share, *sum) - before
    }

    /// Whether one more running unit of the demand would count on a node, if it had room there.
    pub(crate) fn counts_more(&self, node: NodeIdx, n_on_node: u32) -> bool {
        let counts_in = |share: u32| {
            let known = self.of_share.get(share as usize).copied().unwrap_or(0);
            self.limits.counted(share, known + 1) > self.limits.counted(share, known)
        };
        n_on_node < self.limits.on(node) && self.limits.share(node).is_none_or(counts_in)
    }

    /// Returns how many running units may stand together.
    pub(crate) fn limits(&self) -> &ShareLimits {
        &self.limits
    }

    /// Returns how many more running units of the demand would count in a share.
    pub(crate) fn left_in(&self, share: u32) -> u32 {
        let known = self.of_share.get(share as usize).copied().unwrap_or(0);
        self.limits.of_share.get(share as usize).map_or(u32::MAX, |most| most.saturating_sub(known))
    }

    /// Returns how many domains have the room.
    pub fn n_whole(&self) -> usize {
        self.of_domain.iter().filter(|n| **n >= self.n_copies).count()
    }

    /// Returns how many domains could have the room and have not.
    pub fn n_lacking(&self) -> u32 {
        self.n_lacking
    }

    /// Returns the demand.
    pub fn shape(&self) -> ShapeIdx {
        self.shape
    }

    /// Returns how many running units of the demand one domain is to have room for.
    pub fn n_copies(&self) -> u32 {
        self.n_copies
    }

    /// Returns the domains.
    pub fn domains(&self) -> &LayoutDomains {
        &self.domains
    }

    /// Whether a domain has the room now.
    pub fn is_whole(&self, domain: u32) -> bool {
        self.of_domain.get(domain as usize).is_some_and(|n| *n >= self.n_copies)
    }

    /// Whether a domain would have the room if it were empty.
    pub fn is_possible(&self, domain: u32) -> bool {
        self.is_possible.get(domain as usize).copied().unwrap_or(false)
    }

    /// Returns how many running units of the demand fit on a node now, at most as many as one domain is to have room for.
    pub fn on_node(&self, node: NodeIdx) -> u32 {
        self.of_node.get(node.idx()).copied().unwrap_or(0)
    }

    /// Returns how many fit in a domain now.
    pub fn in_domain(&self, domain: u32) -> u32 {
        self.of_domain.get(domain as usize).copied().unwrap_or(0)
    }

    fn copies(&self, layout: &Layout<'_>, node: NodeIdx, gone: &[RunIdx], comes: Option<RunIdx>) -> u32 {
        let mut room = layout.room_without(node, gone);
        if let Some(unit) = comes {
            let shape = layout.shape_of(unit);
            let Some(devices) = layout.devices_for(unit, node) else { return 0 };
            layout.rooms().change_room(&mut room, node, shape, devices, -1);
        }
        layout.rooms().copies_in(self.shape, node, room, self.n_copies).min(self.limits.on(node))
    }

    /// Returns how many domains become whole less those that cease to be, if these nodes have other numbers.
    fn n_gained(&self, changes: [(NodeIdx, u32); 2]) -> i32 {
        let mut seen: [Option<(u32, i64)>; 2] = [None; 2];
        let mut grown: Option<(u32, i64)> = None;
        for (node, n) in changes {
            let Some(domain) = self.domains.of(node) else { continue };
            let mut difference = i64::from(n) - i64::from(self.on_node(node));
            if let Some(share) = self.limits.share(node) {
                let known = i64::from(self.of_share.get(share as usize).copied().unwrap_or(0));
                let before = known + grown.filter(|(other, _)| *other == share).map_or(0, |(_, more)| more);
                grown = Some((share, before + difference - known));
                let counted = |n: i64| i64::from(self.limits.counted(share, u32::try_from(n).unwrap_or(0)));
                difference = counted(before + difference) - counted(before);
            }
            match &mut seen {
                [Some((known, sum)), _] if *known == domain => *sum += difference,
                [first @ None, _] => *first = Some((domain, difference)),
                [_, second] => *second = Some((domain, difference)),
            }
        }
        let needed = i64::from(self.n_copies);
        let gains = seen.iter().flatten().map(|(domain, difference)| {
            let before = i64::from(self.in_domain(*domain));
            i32::from(before + difference >= needed) - i32::from(before >= needed)
        });
        gains.sum()
    }

    fn update(&mut self, layout: &Layout<'_>, node: NodeIdx) {
        let Some(domain) = self.domains.of(node) else { return };
        if !layout.node(node).accepts {
            return;
        }
        let n = self.copies(layout, node, &[], None);
        let was_whole = self.is_whole(domain);
        let known = std::mem::replace(&mut self.of_node[node.idx()], n);
        let (before, after) = match self.limits.share(node) {
            Some(share) => {
                let sum = self.of_share[share as usize];
                self.of_share[share as usize] = sum + n - known;
                (self.limits.counted(share, sum), self.limits.counted(share, sum + n - known))
            }
            None => (known, n),
        };
        let of_domain = &mut self.of_domain[domain as usize];
        *of_domain = *of_domain + after - before;
        match (was_whole, self.is_whole(domain)) {
            (true, false) => self.n_lacking += 1,
            (false, true) => self.n_lacking -= 1,
            (true, true) | (false, false) => {}
        }
    }
}

/// The goal that few domains lack the room.
impl Goal for WholeShapes {
    fn value(&self) -> f64 {
        f64::from(self.n_lacking)
    }

    fn change(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> f64 {
        let from = layout.node_of(unit);
        if from == to {
            return 0.0;
        }
        let accepting = |node: NodeIdx, n: u32| if layout.node(node).accepts { n } else { 0 };
        let left = accepting(from, self.copies(layout, from, &[unit], None));
        let entered = match self.on_node(to) {
            0 => 0,
            _ => accepting(to, self.copies(layout, to, &[], Some(unit))),
        };
        -f64::from(self.n_gained([(from, left), (to, entered)]))
    }

    fn on_moved(&mut self, layout: &Layout<'_>, _unit: RunIdx, from: NodeIdx, to: NodeIdx) {
        self.update(layout, from);
        self.update(layout, to);
    }

    fn objection(&self, layout: &Layout<'_>, unit: RunIdx, to: NodeIdx) -> Option<CheckPoint> {
        if self.on_node(to) == 0 {
            return None;
        }
        (self.change(layout, unit, to) > 0.0).then_some(CheckPoint::Enter)
    }
}
