//! When parked units search for victims again, though no room has come free.

use godel_base::time::Millis;

use crate::park::{Parked, WaitKey};

/// A search that failed is not repeated before, milliseconds.
pub(crate) const SEARCH_EVERY_MS: u64 = 1_000;

/// When parked units search again.
#[derive(Debug, Default)]
pub(crate) struct SearchTimes {
    /// All of them.
    again_at: Option<Millis>,
    /// Those above a priority: somebody of it has got room that they did not see free.
    newly_below: Option<(Millis, i32)>,
    /// Some did not search while there seemed to be room for them.
    was_put_off: bool,
}

impl SearchTimes {
    /// All parked units search again, at a time.
    pub(crate) fn search_again_at(&mut self, at: Millis) {
        self.again_at = Some(self.again_at.map_or(at, |other| other.min(at)));
    }

    /// Parked units of higher priority search in a while.
    pub(crate) fn search_above(&mut self, priority: i32, parked: &Parked, now: Millis) {
        if !parked.is_idle() {
            let (at, lowest) = self.newly_below.unwrap_or((now.plus(SEARCH_EVERY_MS), priority));
            self.newly_below = Some((at, lowest.min(priority)));
        }
    }

    /// A unit that was called found no place: those search in a while that did not since there seemed to be room for it.
    pub(crate) fn on_call_failed(&mut self, now: Millis) {
        if std::mem::take(&mut self.was_put_off) {
            self.search_again_at(now.plus(SEARCH_EVERY_MS));
        }
    }

    /// Returns the first time.
    pub(crate) fn next(&self) -> Option<Millis> {
        let below = self.newly_below.map(|(at, _)| at);
        self.again_at.into_iter().chain(below).min()
    }

    /// If it is time for all: the needs without room of those that search.
    pub(crate) fn take_all_due(&mut self, parked: &Parked, now: Millis) -> Option<Vec<WaitKey>> {
        self.again_at.take_if(|at| *at <= now)?;
        self.was_put_off |= parked.has_open();
        Some(parked.without_room())
    }

    /// If it is time for those above a priority: the needs without room of those that search.
    pub(crate) fn take_above_due(&mut self, parked: &Parked, now: Millis) -> Option<Vec<WaitKey>> {
        let (_, lowest) = self.newly_below.take_if(|(at, _)| *at <= now)?;
        self.was_put_off |= parked.has_open();
        Some(parked.above(lowest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_counts_and_is_over_once_taken() {
        let (mut times, parked) = (SearchTimes::default(), Parked::default());
        times.search_again_at(Millis(500));
        times.search_again_at(Millis(900));
        // Nobody waits.
        times.search_above(3, &parked, Millis(0));
        assert_eq!((times.next(), times.take_all_due(&parked, Millis(499))), (Some(Millis(500)), None));
        assert_eq!(times.take_all_due(&parked, Millis(500)), Some(Vec::new()));
        assert_eq!((times.next(), times.take_above_due(&parked, Millis(9_999))), (None, None));
        // Nothing was put off.
        times.on_call_failed(Millis(500));
        assert_eq!(times.next(), None);
    }
}
