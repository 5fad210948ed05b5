//! What units say, to be followed by all parts of the cluster.

use godel_base::ids::UnitId;
use godel_domain::work_kind::WorkKind;
use godel_rules::budget::{UnitIdentity, WantedOrdinals};

use super::{AffinityTerms, Cluster, StandingTerms, free_view::FreeView, movers};

/// Units, to be changed: all parts of the cluster follow.
#[derive(Debug)]
pub struct UnitUpdates<'a> {
    pub(super) cluster: &'a mut Cluster,
}

impl UnitUpdates<'_> {
    /// Takes what a unit says of where its replicas go in relation to running units. Returns whether all units have to be
    /// offered; the unit itself has to be in any case.
    pub fn put_terms(&mut self, unit: UnitId, identity: &UnitIdentity, terms: &AffinityTerms<'_>) -> bool {
        let templates = if terms.affinity.spread.is_empty() { &[] } else { &terms.templates[..] };
        let mut standing: Vec<StandingTerms> = Vec::with_capacity(templates.len());
        for template in templates {
            let shape = self.cluster.shape_below(&template.demand, terms.pool, template.max_load);
            standing.push(StandingTerms::of(template, shape));
        }
        let Cluster { catalogue, records, free, taken, .. } = &mut *self.cluster;
        taken.put_terms(unit, identity, terms, &standing, FreeView { records, free, catalogue })
    }

    /// Counts running units of this unit by node from now on. `O(running units of both)` if another one was counted.
    pub fn count(&mut self, unit: UnitId) {
        self.cluster.taken.count_unit(unit, self.cluster.free.len());
    }

    /// A unit is of a kind, wherever its running units are. Without effect where nobody counts kinds.
    pub fn put_work(&mut self, unit: UnitId, kind: WorkKind) {
        if self.cluster.taken.work.is_active() {
            for node in self.cluster.taken.put_work(unit, kind) {
                self.cluster.nodes_mut().note_moved(node, false);
            }
        }
    }

    /// Follows a unit's record, for the budgets and the terms of others that select it.
    pub fn offer(&mut self, unit: UnitId, identity: &UnitIdentity, wanted: impl FnOnce() -> WantedOrdinals) {
        self.cluster.taken.offer(unit, identity, wanted);
        self.cluster.settle_opened();
    }

    /// Forgets a unit's rows and assumptions.
    pub fn remove(&mut self, unit: UnitId) {
        movers::remove(&mut self.cluster.taken, unit);
        let Cluster { taken, catalogue, free, .. } = &mut *self.cluster;
        taken.remove(catalogue, free, unit);
        let (holds, on) = self.cluster.holding();
        holds.follow_victims(on, unit);
        self.cluster.settle_opened();
    }
}
