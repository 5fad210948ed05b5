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
}

impl WholeShapes {
    /// Returns where `n_copies` of a demand fit on nodes that accept work.
    pub fn new(layout: &Layout<'_>, shape: ShapeIdx, n_copies: u32, domains: LayoutDomains) -> Self {
        let n_copies = n_copies.max(1);
        let mut whole = Self {
            shape,
            n_copies,
            of_node: vec![0; layout.n_nodes()],
            of_domain: vec![0; domains.len()],
            is_possible: vec![false; domains.len()],
            domains,
            n_lacking: 0,
        };
        let mut possible = vec![0u32; whole.domains.len()];
        for node in layout.nodes().filter(|node| layout.node(*node).accepts) {
            let Some(domain) = whole.domains.of(node).map(|domain| domain as usize) else { continue };
            possible[domain] += layout.copies_in(shape, node, layout.empty_room(node), n_copies);
            whole.of_node[node.idx()] = whole.copies(layout, node, &[], None);
            whole.of_domain[domain] += whole.of_node[node.idx()];
        }
        for (domain, n) in possible.into_iter().enumerate() {
            whole.is_possible[domain] = n >= n_copies;
            whole.n_lacking += u32::from(whole.is_possible[domain] && whole.of_domain[domain] < n_copies);
        }
        whole
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
            layout.change_room(&mut room, node, shape, devices, -1);
        }
        layout.copies_in(self.shape, node, room, self.n_copies)
    }

    /// Returns how many domains become whole less those that cease to be, if these nodes have other numbers.
    fn n_gained(&self, changes: [(NodeIdx, u32); 2]) -> i32 {
        let mut seen: [Option<(u32, i64)>; 2] = [None; 2];
        for (node, n) in changes {
            let Some(domain) = self.domains.of(node) else { continue };
            let difference = i64::from(n) - i64::from(self.on_node(node));
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
        let known = &mut self.of_node[node.idx()];
        let of_domain = &mut self.of_domain[domain as usize];
        *of_domain = *of_domain + n - *known;
        *known = n;
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
