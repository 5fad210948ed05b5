//! Rates nodes for replicas of a template: which of them are candidates, and how good they are.

use godel_base::{ids::NodeId, seed::mix};
use godel_cluster::{Cluster, room::BlockMask};
use godel_domain::allocation::Allocation;
use godel_framework::{Profile, ScoreInput, Typical};

use super::{candidates::Candidate, templates::TemplateEntry, view::View};

/// Looks at nodes.
pub(super) struct Rater<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) profile: &'a Profile,
    pub(super) typical: &'a Typical,
    /// Of seed and unit.
    pub(super) ties: u64,
}

impl Rater<'_> {
    /// A node with room for a template, which would be given `allocation` there: a candidate if it passes all filters.
    #[inline(always)]
    pub(super) fn rate(
        &self,
        entry: &TemplateEntry,
        idx: usize,
        allocation: Allocation,
    ) -> Option<Candidate> {
        if !entry.ask.admits(self.cluster, idx) {
            return None;
        }
        let node = u32::try_from(idx).ok()?;
        let place =
            ScoreInput { cluster: self.cluster, ask: &entry.ask, idx, allocation, typical: self.typical };
        let rank = self.profile.rank(&place, tie(self.ties, idx));
        Some(Candidate::new(rank, node, self.cluster.free().generations().of(NodeId(node))))
    }

    /// Rates those nodes of a list again that have changed: others' work may have made them better.
    pub(super) fn rate_changed(&self, view: &View, entry: &mut TemplateEntry, wanted: usize) {
        let has_changed = |candidate: &Candidate| {
            candidate.generation() != self.cluster.free().generations().of(candidate.node())
        };
        self.rate_again(view, entry, wanted, has_changed);
    }

    pub(super) fn rate_again(
        &self,
        view: &View,
        entry: &mut TemplateEntry,
        wanted: usize,
        is_due: impl Fn(&Candidate) -> bool,
    ) {
        let reach = entry.candidates.reach;
        let mut kept = entry.candidates.take_all();
        kept.retain_mut(|candidate| {
            let node = candidate.node();
            if !is_due(candidate) {
                return true;
            }
            let is_near = view.reaches_node(reach, node.idx());
            let room =
                if is_near { self.cluster.free().room_for(entry.ask.shape(), node.idx()) } else { None };
            match room.and_then(|allocation| self.rate(entry, node.idx(), allocation)) {
                Some(fresh) => {
                    *candidate = fresh;
                    true
                }
                None => false,
            }
        });
        entry.candidates.fill(kept, wanted);
    }

    /// Finds candidates up to `limit` among some nodes of the block that begins at `first`.
    pub(super) fn scan(
        &self,
        entry: &TemplateEntry,
        first: usize,
        nodes: BlockMask,
        limit: usize,
        found: &mut Vec<Candidate>,
    ) -> Seen {
        let shape = entry.ask.shape();
        let mut seen = Seen { n_nodes: 0, has_room: false, stopped_at: None };
        let mut rest = nodes;
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            if found.len() >= limit {
                seen.stopped_at = Some(at);
                break;
            }
            rest &= rest - 1;
            seen.n_nodes += 1;
            if let Some(allocation) = self.cluster.free().room_for(shape, first + at) {
                seen.has_room = true;
                found.extend(self.rate(entry, first + at, allocation));
            }
        }
        seen
    }
}

/// What a look at nodes of a block saw.
pub(super) struct Seen {
    pub(super) n_nodes: usize,
    pub(super) has_room: bool,
    /// The node that was not looked at any more, by its place in the block.
    pub(super) stopped_at: Option<usize>,
}

/// Seeded hash of node and unit: breaks ties. In a kept list, the unit is the one for which the node was looked at.
fn tie(ties: u64, idx: usize) -> u32 {
    let hash = mix(ties ^ (idx as u64).rotate_left(32));
    u32::try_from(hash >> 32).unwrap_or(0)
}
