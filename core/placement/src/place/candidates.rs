//! The nodes known to hold a template, best first.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use godel_base::ids::{NodeId, UnitId};
use godel_framework::NodeScore;

use super::view::NodeReach;

/// Sorting pays when more than one candidate in this number will be used.
const SORT_FROM: usize = 8;

/// A node that fitted when it was looked at. The order is the rank, then the lower index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// [`NodeScore::packed`].
    rank: u128,
    node: Reverse<u32>,
    generation: u64,
}

/// Candidates of one template. What a scan found is sorted once and read off from its end; what was looked at
/// again since then is in a heap. Taking turns over many nodes that way costs a comparison or two each, where
/// letting each sink through one heap costs its depth.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// As the scan found them, the best one last.
    found: Vec<Candidate>,
    again: BinaryHeap<Candidate>,
    /// Of which nodes they are.
    pub(super) reach: NodeReach,
    /// The unit that used the list last.
    pub(super) unit: UnitId,
    /// Replicas of later units that may go on with the list.
    pub(super) uses_left: usize,
    /// The number of soft taints that the best candidate had when the scan was made.
    pub(super) n_soft_taints: u32,
}

impl Candidate {
    pub(super) fn new(rank: NodeScore, node: u32, generation: u64) -> Self {
        Self { rank: rank.packed(), node: Reverse(node), generation }
    }

    pub(super) fn node(&self) -> NodeId {
        NodeId(self.node.0)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    fn n_soft_taints(&self) -> u32 {
        NodeScore::soft_taints_of(self.rank)
    }
}

impl Candidates {
    pub(super) fn clear(&mut self) {
        self.found.clear();
        self.again.clear();
    }

    /// All of them in no order; the list is empty until it is filled.
    pub(super) fn take_all(&mut self) -> Vec<Candidate> {
        let (found, again) = (std::mem::take(&mut self.found), std::mem::take(&mut self.again).into_vec());
        // The longer array stays in use.
        let (mut all, few) =
            if found.capacity() > again.capacity() { (found, again) } else { (again, found) };
        all.extend(few);
        all
    }

    /// What a scan found, of which about `wanted` will be used.
    pub(super) fn fill(&mut self, mut found: Vec<Candidate>, wanted: usize) {
        if wanted.saturating_mul(SORT_FROM) < found.len() {
            self.again = found.into();
        } else {
            found.sort_unstable();
            self.found = found;
        }
        self.n_soft_taints = self.best().map_or(0, Candidate::n_soft_taints);
    }

    /// Whether even the best one has more soft taints than the best one that the scan found: a node that is not in the list may come first.
    pub(super) fn is_outranked(&self) -> bool {
        self.best().is_some_and(|best| best.n_soft_taints() > self.n_soft_taints)
    }

    /// The best one.
    pub(super) fn best(&self) -> Option<&Candidate> {
        self.found.last().max(self.again.peek())
    }

    /// Puts the best one where it belongs as it was found now, or takes it out.
    pub(super) fn replace_best(&mut self, fresh: Option<Candidate>) {
        if self.found.last() > self.again.peek() {
            self.found.pop();
            self.again.extend(fresh);
        } else if let Some(mut top) = self.again.peek_mut() {
            match fresh {
                Some(fresh) => *top = fresh,
                None => {
                    PeekMut::pop(top);
                }
            }
        }
    }
}
