//! What the binder refused of late: a plan does not ask for it again while nothing has changed that the refusal can rest on.
//!
//! A target was refused for a unit, or a replica whatever its target. Both are forgotten when the record of the unit changes; a target also when
//! something changes on its node. What rests on running units elsewhere (terms, rows of the unit) is forgotten after [`FORGET_MS`].

use std::{collections::BTreeMap, sync::Arc};

use godel_base::{
    ids::{NodeId, RunningUnitId, UnitId},
    time::Millis,
};
use godel_domain::{decision::RejectionReason, unit::UnitRecord};

use crate::driver::MoveReply;

/// How long a refusal counts that may end without a change of the unit's record or of the node, milliseconds.
pub const FORGET_MS: u64 = 600_000;
/// Refusals that are remembered, of targets and of replicas each; beyond them the oldest are forgotten.
const N_REFUSED_MAX: usize = 4_096;

#[derive(Clone, Debug)]
struct MoveRefused {
    record: Arc<UnitRecord>,
    /// The generation of the node; `None`: it does not matter.
    generation: Option<u64>,
    /// `None`: it does not end by itself.
    until: Option<Millis>,
    at: Millis,
}

/// Refusals of the binder.
#[derive(Clone, Debug, Default)]
pub struct RefusedMoves {
    targets: BTreeMap<(UnitId, NodeId), MoveRefused>,
    replicas: BTreeMap<RunningUnitId, MoveRefused>,
}

impl RefusedMoves {
    /// Takes note of a refusal to move a running unit of a unit to a node, which has this generation. What the binder may allow later is not
    /// remembered.
    pub fn note(
        &mut self,
        running: RunningUnitId,
        record: &Arc<UnitRecord>,
        node: NodeId,
        generation: u64,
        reason: RejectionReason,
        now: Millis,
    ) {
        let until = || Some(now.plus(FORGET_MS));
        let record = Arc::clone(record);
        match MoveReply::refused(reason, false, String::new()) {
            MoveReply::TargetTaken(_) => {
                let is_about_others =
                    matches!(reason, RejectionReason::UnitAffinity | RejectionReason::TopologySpread);
                let until = if is_about_others { until() } else { None };
                let refused = MoveRefused { record, generation: Some(generation), until, at: now };
                self.targets.insert((running.unit, node), refused);
                forget_oldest(&mut self.targets);
            }
            MoveReply::Refused(_) => {
                let refused = MoveRefused { record, generation: None, until: until(), at: now };
                self.replicas.insert(running, refused);
                forget_oldest(&mut self.replicas);
            }
            MoveReply::Moved | MoveReply::Surges(_) | MoveReply::Later(_) | MoveReply::UnderWay(_) => {}
        }
    }

    /// Forgets what no longer counts, by the records of units and the generations of nodes as they are now.
    pub fn forget_changed<'r>(
        &mut self,
        record_of: impl Fn(UnitId) -> Option<&'r Arc<UnitRecord>>,
        generation_of: impl Fn(NodeId) -> u64,
        now: Millis,
    ) {
        let counts = |unit: UnitId, refused: &MoveRefused| {
            record_of(unit).is_some_and(|record| Arc::ptr_eq(record, &refused.record))
                && refused.until.is_none_or(|until| until > now)
        };
        self.targets.retain(|(unit, node), refused| {
            counts(*unit, refused)
                && refused.generation.is_none_or(|generation| generation == generation_of(*node))
        });
        self.replicas.retain(|running, refused| counts(running.unit, refused));
    }

    /// Whether a node was refused for a unit.
    pub fn has_target(&self, unit: UnitId, node: NodeId) -> bool {
        !self.targets.is_empty() && self.targets.contains_key(&(unit, node))
    }

    /// Whether a running unit was refused whatever its target.
    pub fn has_replica(&self, running: RunningUnitId) -> bool {
        !self.replicas.is_empty() && self.replicas.contains_key(&running)
    }
}

fn forget_oldest<K: Copy + Ord>(refused: &mut BTreeMap<K, MoveRefused>) {
    if refused.len() > N_REFUSED_MAX
        && let Some(oldest) = refused.iter().min_by_key(|(_, refused)| refused.at).map(|(key, _)| *key)
    {
        refused.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use godel_base::ids::ReplicaId;
    use godel_testkit::BuildUnit as _;

    use super::*;

    const NODE: NodeId = NodeId(3);
    const NOW: Millis = Millis(1_000);

    fn running(unit: u64) -> RunningUnitId {
        RunningUnitId { unit: UnitId(unit), replica: ReplicaId::new(0, 0) }
    }

    fn record(unit: u64) -> Arc<UnitRecord> {
        Arc::new(godel_testkit::unit("u").id(UnitId(unit)))
    }

    #[test]
    fn a_target_counts_as_refused_until_the_node_or_the_unit_changes() {
        let (one, changed) = (record(1), record(1));
        for (now_record, generation, later_ms, reason, expected) in [
            (&one, 7, 0, RejectionReason::InsufficientResources, true),
            (&one, 7, FORGET_MS * 9, RejectionReason::InsufficientResources, true),
            (&one, 8, 0, RejectionReason::InsufficientResources, false),
            (&changed, 7, 0, RejectionReason::InsufficientResources, false),
            (&one, 7, FORGET_MS - 1, RejectionReason::UnitAffinity, true),
            // Who stands in its way may be on another node of the domain.
            (&one, 7, FORGET_MS, RejectionReason::TopologySpread, false),
        ] {
            let mut refused = RefusedMoves::default();
            refused.note(running(1), &one, NODE, 7, reason, NOW);
            assert!(refused.has_target(UnitId(1), NODE) && !refused.has_replica(running(1)));
            assert!(!refused.has_target(UnitId(1), NodeId(4)) && !refused.has_target(UnitId(2), NODE));
            refused.forget_changed(|_| Some(now_record), |_| generation, NOW.plus(later_ms));
            assert_eq!(refused.has_target(UnitId(1), NODE), expected, "{reason:?} {generation} {later_ms}");
        }
    }

    #[test]
    fn a_replica_that_may_not_move_counts_as_refused_on_every_node() {
        let one = record(1);
        let mut refused = RefusedMoves::default();
        refused.note(running(1), &one, NODE, 7, RejectionReason::NotMovable, NOW);
        assert!(refused.has_replica(running(1)) && !refused.has_target(UnitId(1), NODE));
        refused.forget_changed(|_| Some(&one), |_| 8, NOW);
        assert!(refused.has_replica(running(1)), "its node does not matter");
        refused.forget_changed(|_| None, |_| 8, NOW);
        assert!(!refused.has_replica(running(1)), "its unit is gone");
    }

    #[test]
    fn the_oldest_refusals_are_forgotten() {
        let mut refused = RefusedMoves::default();
        let one = record(1);
        for (at, node) in (0..).zip(0..u32::try_from(N_REFUSED_MAX + 5).unwrap()) {
            let reason = RejectionReason::InsufficientResources;
            refused.note(running(1), &one, NodeId(node), 0, reason, Millis(at));
        }
        assert_eq!(refused.targets.len(), N_REFUSED_MAX);
        assert!(!refused.has_target(UnitId(1), NodeId(4)) && refused.has_target(UnitId(1), NodeId(5)));
    }
}
