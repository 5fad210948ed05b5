//! What the dispatcher has yet to hear of units.

use std::sync::Arc;

use godel_domain::{
    refusals::Refusals,
    unit_report::{ReportState, UnitReport},
};

use crate::assigned_unit::AssignedUnit;

/// Reports of units, each with the number of assignments that were taken before it.
#[derive(Debug, Default)]
pub(crate) struct ReportQueue {
    reports: Vec<UnitReport>,
    /// Assignments of this stream.
    pub(super) n_assigned: u64,
}

impl ReportQueue {
    /// Adds what became of a unit. `need`: the number of what a parked unit lacks; else 0.
    pub(super) fn push(
        &mut self,
        assigned: &AssignedUnit,
        state: ReportState,
        refusals: Option<Arc<Refusals>>,
        need: u64,
    ) {
        let is_parked = state == ReportState::Parked;
        let unplaced = u32::try_from(assigned.pending()).unwrap_or(u32::MAX);
        let mut lacking: Vec<u32> =
            assigned.pending_groups().filter(|_| is_parked).map(|work| work.group.into()).collect();
        lacking.sort_unstable();
        lacking.dedup();
        self.reports.push(UnitReport {
            unit: assigned.unit(),
            spec_revision: assigned.revision,
            state,
            refusals,
            need,
            unplaced: is_parked.then_some(unplaced),
            lacking,
            assigned: self.n_assigned,
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<UnitReport> {
        std::mem::take(&mut self.reports)
    }
}
