//! Turns of gangs, and other holds that go with a decision, as they are told and counted.

use godel_core_binder::Accepted;
use godel_domain::{hold::GangTurn, ids::UnitId};

use super::{BinderLeader, WhyLabel};

impl BinderLeader {
    /// The turn that a decision of its gang ends: it fits elsewhere, or has others leave.
    pub(super) fn turn_ended(&self, accepted: &Accepted) -> Option<(UnitId, GangTurn, &'static str)> {
        let (unit, turn) = accepted.gone.iter().find_map(|(id, _)| self.binder.turn_of(*id))?;
        Some((unit, turn, if accepted.holds.is_empty() { "bound" } else { "preempts" }))
    }

    /// Holds that are given up or taken over are gone.
    pub(super) fn count_gone(&self, accepted: &Accepted) {
        for (_, why) in &accepted.gone {
            self.metrics.holds_dropped.get_or_create(&WhyLabel { why }).inc();
        }
    }

    /// A gang's turn is durable.
    pub(super) fn begin_turn(&self, accepted: &Accepted) {
        let Some((hold, turn)) = accepted.holds.first().and_then(|hold| Some((hold, hold.turn.as_ref()?)))
        else {
            return;
        };
        self.metrics.gang_turns.inc();
        let places = accepted.holds.iter().map(|hold| hold.ordinals.len()).sum::<usize>();
        let (unit, nodes, until_ms) = (hold.unit.0, accepted.holds.len(), hold.expires_ms);
        let sub_cluster = turn.sub_cluster.as_deref().unwrap_or_default();
        let (pool, priority) = (hold.pool, turn.priority);
        tracing::info!(unit, places, nodes, ?pool, sub_cluster, priority, until_ms, "a gang gathers room");
    }
}
