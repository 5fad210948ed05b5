//! What is kept of one unit.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    explain::Refusals,
    ids::{Revision, UnitId},
    lifecycle::{self, Counts, Phase, Soft},
    queue::Waiting,
    rows::UnitRows,
    time::Millis,
    unit::UnitSpec,
};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) spec: Arc<UnitSpec>,
    pub(super) revision: Revision,
    pub(super) rows_revision: Revision,
    pub(super) create_revision: Revision,
    pub(super) create_time_ms: i64,
    pub(super) rows: UnitRows,
    pub(super) counts: Counts,
    pub(super) phase: Phase,
    pub(super) place: Place,
    /// Schedulers that gave it back.
    pub(super) tried: SmallVec<[u32; 2]>,
    pub(super) refusals: Option<Arc<Refusals>>,
    /// Commit time of the first binding; 0 before.
    pub(super) bound_time_ms: i64,
    /// Set once it is over: when its record goes.
    pub(super) delete_at: Option<Millis>,
    /// A transaction that deletes it is on its way.
    pub(super) deleting: bool,
    /// No node known now could ever hold one of its replicas.
    pub(super) infeasible: bool,
}

/// Where the pending running units of a unit are. `Idle` exactly when there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Idle,
    /// Read at the start; waits for schedulers to come back and say what they hold.
    Unsettled,
    Queued(Waiting),
    Held(Held),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) scheduler: usize,
    pub(super) parked: bool,
    /// The scheduler says that all is bound; the rows have yet to say so.
    pub(super) done_at: Option<Millis>,
    /// Revision of the record that the scheduler works with.
    pub(super) revision: Revision,
    /// Running units counted as outstanding at the scheduler.
    pub(super) load: u32,
    /// The scheduler has yet to hear of the newest record or rows.
    pub(super) resend: bool,
}

impl Entry {
    pub(super) fn new(spec: Arc<UnitSpec>, revision: Revision, created: (Revision, i64)) -> Self {
        let counts = Counts::of(&spec, &UnitRows::default());
        let phase = lifecycle::phase(&spec, &counts, Soft::Waiting);
        Self {
            spec,
            revision,
            rows_revision: Revision(0),
            create_revision: created.0,
            create_time_ms: created.1,
            rows: UnitRows::default(),
            counts,
            phase,
            place: Place::Idle,
            tried: SmallVec::new(),
            refusals: None,
            bound_time_ms: 0,
            delete_at: None,
            deleting: false,
            infeasible: false,
        }
    }

    pub(super) fn soft(&self) -> Soft {
        match self.place {
            Place::Held(held) if held.parked => Soft::Parked,
            _ if self.infeasible => Soft::Parked,
            Place::Held(_) => Soft::Held,
            Place::Idle | Place::Unsettled | Place::Queued(_) => Soft::Waiting,
        }
    }

    pub(super) fn waiting(&self, unit: UnitId, again: bool) -> Waiting {
        Waiting { unit, priority: self.spec.priority, again, running_units: self.counts.pending }
    }

    /// Whether something of it had a node before.
    pub(super) fn was_placed(&self) -> bool {
        !self.rows.rows.is_empty()
    }
}
