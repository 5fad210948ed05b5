//! Running units by node and kind of work, for scores that put together what goes well together.
//!
//! Counts follow rows and assumptions, so that a placement costs an addition. They are kept from the first profile on that asks
//! for them: a scheduler without any pays nothing.

use godel_base::ids::{IdMap, NodeId, UnitId};
use godel_domain::work_kind::WorkKind;

/// How many running units of each kind are on a node, assumed or there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Of [`WorkKind::Latency`].
    pub latency: u32,
    /// Of [`WorkKind::Batch`].
    pub batch: u32,
}

impl KindCounts {
    /// Returns how many are of a kind; of neutral ones nobody is counted.
    pub fn of(&self, kind: WorkKind) -> u32 {
        match kind {
            WorkKind::Neutral => 0,
            WorkKind::Latency => self.latency,
            WorkKind::Batch => self.batch,
        }
    }

    fn shift(&mut self, kind: WorkKind, sign: i8) {
        let count = match kind {
            WorkKind::Neutral => return,
            WorkKind::Latency => &mut self.latency,
            WorkKind::Batch => &mut self.batch,
        };
        *count = if sign < 0 { count.saturating_sub(1) } else { *count + 1 };
    }
}

/// Kinds of units, and their running units by node.
#[derive(Clone, Debug, Default)]
pub struct WorkKinds {
    is_active: bool,
    /// Of units that are not neutral.
    kinds: IdMap<UnitId, WorkKind>,
    counts: Vec<KindCounts>,
}

impl WorkKinds {
    /// Counts from now on; to be said before any unit is known.
    pub fn begin(&mut self) {
        self.is_active = true;
    }

    /// Returns what a new list of running units begins with: nobody is counted yet, and kinds are what they were.
    pub(crate) fn reset(self) -> Self {
        Self { counts: Vec::new(), ..self }
    }

    /// Whether somebody asks for the counts.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// A unit is of a kind from now on, `nodes` being where its running units are. Returns those on which that changes a count.
    pub(crate) fn put(
        &mut self,
        unit: UnitId,
        kind: WorkKind,
        nodes: impl FnOnce() -> Vec<NodeId>,
    ) -> Vec<NodeId> {
        let was = match kind {
            WorkKind::Neutral => self.kinds.remove(&unit),
            WorkKind::Latency | WorkKind::Batch => self.kinds.insert(unit, kind),
        };
        let was = was.unwrap_or_default();
        if was == kind {
            return Vec::new();
        }
        let nodes = nodes();
        for node in &nodes {
            let counts = self.counts_of(*node);
            counts.shift(was, -1);
            counts.shift(kind, 1);
        }
        nodes
    }

    /// A unit is gone, with all of its running units.
    pub(crate) fn remove(&mut self, unit: UnitId) {
        self.kinds.remove(&unit);
    }

    /// One more (`sign` 1) or one less (-1) of a unit on a node.
    pub(crate) fn shift(&mut self, unit: UnitId, node: NodeId, sign: i8) {
        if let Some(kind) = self.kinds.get(&unit).copied() {
            self.counts_of(node).shift(kind, sign);
        }
    }

    /// Returns how many running units of each kind are on the node at an index.
    #[inline]
    pub fn of(&self, idx: usize) -> KindCounts {
        self.counts.get(idx).copied().unwrap_or_default()
    }

    fn counts_of(&mut self, node: NodeId) -> &mut KindCounts {
        let idx = node.idx();
        if self.counts.len() <= idx {
            self.counts.resize(idx + 1, KindCounts::default());
        }
        &mut self.counts[idx]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_units_whatever_is_known_first() {
        let (web, job) = (UnitId(1), UnitId(2));
        let mut kinds = WorkKinds::default();
        kinds.begin();
        // Running units before their unit's record.
        kinds.shift(web, NodeId(3), 1);
        assert_eq!(kinds.of(3), KindCounts::default());
        assert_eq!(kinds.put(web, WorkKind::Latency, || vec![NodeId(3), NodeId(3)]), [NodeId(3), NodeId(3)]);
        assert!(kinds.put(web, WorkKind::Latency, || unreachable!("nothing changes")).is_empty());
        kinds.put(job, WorkKind::Batch, Vec::new);
        kinds.shift(job, NodeId(3), 1);
        kinds.shift(job, NodeId(5), 1);
        assert_eq!((kinds.of(3), kinds.of(5).batch), (KindCounts { latency: 2, batch: 1 }, 1));
        kinds.shift(web, NodeId(3), -1);
        // A unit whose label was changed.
        kinds.put(web, WorkKind::Batch, || vec![NodeId(3)]);
        assert_eq!(kinds.of(3), KindCounts { latency: 0, batch: 2 });
        kinds.put(job, WorkKind::Neutral, || vec![NodeId(3), NodeId(5)]);
        assert_eq!(
            (kinds.of(3), kinds.of(5), kinds.of(9)),
            (KindCounts { latency: 0, batch: 1 }, KindCounts::default(), KindCounts::default())
        );
        // A new list of running units.
        let mut fresh = kinds.reset();
        assert!(fresh.is_active() && fresh.of(3) == KindCounts::default());
        fresh.shift(web, NodeId(3), 1);
        assert_eq!(fresh.of(3).batch, 1);
        fresh.remove(web);
        fresh.shift(web, NodeId(3), 1);
        assert_eq!(fresh.of(3).batch, 1, "nobody knows its kind any more");
    }
}
