//! Which units' records have to be read: those that budgets select, and those that say something about running units of others.

use std::sync::Arc;

use godel_base::ids::Revision;
use godel_cluster::{AffinityTerms, Cluster};
use godel_domain::{budget_spec::BudgetSpec, unit::UnitRecord};
use godel_rules::budget::{UnitIdentity, WantedOrdinals};

/// What changes which records of units matter.
#[derive(Debug, Default)]
pub(crate) struct UnitSelection {
    /// Rises when budgets select others than they did.
    n_changes: u64,
    /// Somewhere there are units with terms.
    follows_terms: bool,
}

impl UnitSelection {
    /// Takes what a unit says about running units, and what others' terms know it by.
    pub(crate) fn put_terms(&mut self, record: &UnitRecord, cluster: &mut Cluster) {
        let identity = || UnitIdentity::of(&record.spec);
        // A task group that had a topology may be gone.
        if record.spec.has_terms() || cluster.domains().has_terms_of(record.id) {
            let groups = record.group_topologies();
            let asks_all = cluster.units_mut().put_terms(
                record.id,
                &identity(),
                &AffinityTerms::of(&record.spec, &groups),
            );
            self.n_changes += u64::from(asks_all);
        }
        if cluster.domains().is_active() {
            cluster.units_mut().offer(record.id, &identity(), || WantedOrdinals::of(record));
        }
    }

    /// The binder refused something because of terms that are not known here: all units are to be read.
    pub(crate) fn note_unknown_terms(&mut self) {
        self.follows_terms = true;
    }

    /// A budget's record.
    pub(crate) fn put_budget(&mut self, spec: &Arc<BudgetSpec>, revision: Revision, cluster: &mut Cluster) {
        let selects_others = cluster.taken_mut().put_budget(Arc::clone(spec), revision);
        self.n_changes += u64::from(selects_others);
    }

    /// As [`Scheduler::selection`](crate::Scheduler::selection).
    pub(crate) fn number(&self, cluster: &Cluster) -> Option<u64> {
        let follows = !cluster.taken().budgets().is_empty()
            || cluster.domains().is_active()
            || cluster.taken().work.is_active()
            || self.follows_terms;
        follows.then_some(self.n_changes)
    }
}
