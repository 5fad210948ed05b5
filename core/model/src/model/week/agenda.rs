//! What happens when, apart from what the parts of the control plane do by themselves.

use std::collections::BTreeMap;

use godel_base::ids::NodeId;

use super::{HOUR_MS, MINUTE_MS, N_NODES, work::WeekWork};
use crate::model::{net::Part, numbers::Numbers};

/// Each node is lost once in so long, in the mean.
const LOST_EVERY_MS: u64 = 30 * 24 * HOUR_MS;
/// A part is killed once in so long, in the mean.
const KILL_EVERY_MS: u64 = 6 * HOUR_MS;

/// Something to be done at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Errand {
    /// A unit is submitted.
    Arrive(u64),
    /// A unit is no longer wanted.
    End(u64),
    /// A node is lost.
    Lose(NodeId),
    /// A part of the control plane dies and comes back.
    Kill(Part),
    /// The rescheduler is told what is used.
    Look,
    /// The objectives are measured.
    Measure,
    /// The week is over.
    Over,
}

/// All of them, by time.
#[derive(Default)]
pub(super) struct Agenda {
    errands: BTreeMap<(u64, u64), Errand>,
    last: u64,
}

impl Agenda {
    /// Returns what happens from a beginning to an end.
    pub(super) fn of(seed: u64, begin_ms: u64, end_ms: u64, work: &WeekWork) -> Self {
        let mut agenda = Self::default();
        for (number, unit) in work.units() {
            agenda.at(unit.begin_ms, Errand::Arrive(number));
            agenda.at(unit.end_ms, Errand::End(number));
        }
        let mut numbers = Numbers::new(seed ^ 0xfa11);
        let mut at = begin_ms + HOUR_MS;
        while at < end_ms {
            let node = NodeId(1 + u32::try_from(numbers.below(u64::from(N_NODES))).expect("small"));
            agenda.at(at, Errand::Lose(node));
            at += MINUTE_MS + numbers.below(2 * LOST_EVERY_MS / u64::from(N_NODES));
        }
        at = begin_ms + HOUR_MS;
        while at < end_ms {
            let part =
                numbers.pick(&[Part::Dispatcher, Part::Binder, Part::Scheduler(0), Part::Scheduler(1)]);
            agenda.at(at, Errand::Kill(part));
            at += MINUTE_MS + numbers.below(2 * KILL_EVERY_MS);
        }
        at = begin_ms + HOUR_MS;
        while at < end_ms {
            agenda.at(at, Errand::Kill(Part::Rescheduler));
            at += MINUTE_MS + numbers.below(2 * KILL_EVERY_MS);
        }
        agenda.at(begin_ms, Errand::Measure);
        agenda.at(begin_ms + HOUR_MS, Errand::Look);
        agenda.at(end_ms, Errand::Over);
        agenda
    }

    fn at(&mut self, at: u64, errand: Errand) {
        self.last += 1;
        self.errands.insert((at, self.last), errand);
    }

    pub(super) fn after(&mut self, now: u64, ms: u64, errand: Errand) {
        self.at(now + ms, errand);
    }

    pub(super) fn pop(&mut self) -> Option<(u64, Errand)> {
        let ((at, _), errand) = self.errands.pop_first()?;
        Some((at, errand))
    }
}
