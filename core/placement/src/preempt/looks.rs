//! What is known of nodes while places are taken on them: the cheapest comes first.

use std::{cmp::Reverse, collections::BinaryHeap};

use rustc_hash::FxHashMap;

use super::{Cost, plan::NodeChoice};

/// What is known of a node.
#[derive(Clone, Debug)]
pub(super) enum Look {
    /// It costs no less.
    Glance(Cost),
    Close(NodeChoice),
}

impl Look {
    pub(super) fn cost(&self) -> Cost {
        match self {
            Self::Glance(cost) => *cost,
            Self::Close(choice) => choice.cost,
        }
    }
}

/// The last look at each node.
#[derive(Debug)]
pub(super) struct Looks {
    /// Every cost that a node ever had. Of those of one node only the last counts.
    order: BinaryHeap<Reverse<Cost>>,
    /// The last look, where it is not the first: of most nodes none is needed. `None`: there is nothing more to get.
    again: FxHashMap<usize, Option<Look>>,
    /// By node: it is looked at.
    is_asked: Vec<bool>,
}

impl Looks {
    /// A first look at each of some nodes.
    pub(super) fn new(
        nodes: impl IntoIterator<Item = usize>,
        mut glance: impl FnMut(usize) -> Option<Cost>,
    ) -> Self {
        let mut is_asked = Vec::new();
        let mut ask = |idx: usize| {
            if idx >= is_asked.len() {
                is_asked.resize(idx + 1, false);
            }
            is_asked[idx] = true;
            glance(idx)
        };
        let costs: Vec<Reverse<Cost>> = nodes.into_iter().filter_map(|idx| ask(idx).map(Reverse)).collect();
        Self { order: costs.into(), again: FxHashMap::default(), is_asked }
    }

    /// The cheapest node. Until it is looked at again nothing is to be had there.
    pub(super) fn cheapest(&mut self) -> Option<(usize, Look)> {
        while let Some(Reverse(cost)) = self.order.pop() {
            let look = match self.again.insert(cost.idx, None) {
                None => Some(Look::Glance(cost)),
                Some(last) if last.as_ref().is_none_or(|last| last.cost() == cost) => last,
                Some(last) => {
                    self.again.insert(cost.idx, last);
                    None
                }
            };
            if let Some(look) = look {
                return Some((cost.idx, look));
            }
        }
        None
    }

    /// A node is looked at again.
    pub(super) fn set(&mut self, idx: usize, look: Option<Look>) {
        let last = self.again.get(&idx).and_then(Option::as_ref).map(Look::cost);
        // As dear as before it is in the order already: that grows with what changes, not with how often somebody looks.
        let moved = look.as_ref().map(Look::cost).filter(|cost| last != Some(*cost));
        self.order.extend(moved.map(Reverse));
        self.again.insert(idx, look);
    }

    /// Whether a node is looked at.
    pub(super) fn has(&self, idx: usize) -> bool {
        self.is_asked.get(idx).is_some_and(|is_asked| *is_asked)
    }

    /// All that are looked at.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.is_asked.len()).filter(|idx| self.has(*idx))
    }
}
