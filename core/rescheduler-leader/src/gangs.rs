//! Gangs that wait, and the one of which the dispatcher is asked what keeps it out.

use std::collections::BTreeSet;

use godel_base::ids::UnitId;
use godel_core_rescheduler::RoomRequests;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct GangQuestions {
    requests: RoomRequests,
    asking: Option<UnitId>,
}

impl GangQuestions {
    /// Takes note of the gangs that wait; one asks when it has waited for `after_ms`.
    pub(crate) fn observe(&mut self, waiting: &BTreeSet<UnitId>, after_ms: u64, now_ms: u64) {
        self.requests.observe(waiting, after_ms, now_ms);
    }

    /// Whether an answer of the dispatcher is on its way.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Returns the gang that asks now.
    pub(crate) fn due(&self, now_ms: u64) -> Option<UnitId> {
        self.requests.due(now_ms)
    }

    /// The dispatcher is asked about a gang.
    pub(crate) fn ask(&mut self, gang: UnitId) {
        self.asking = Some(gang);
    }

    /// The dispatcher has answered, or has not.
    pub(crate) fn on_answer(&mut self) {
        self.asking = None;
    }

    /// A gang that has asked asks again later.
    pub(crate) fn put_off(&mut self, gang: UnitId, after_ms: u64, now_ms: u64) {
        self.requests.note_asked(gang, after_ms, now_ms);
    }
}
