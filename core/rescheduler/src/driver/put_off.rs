//! Moves that wait: for their unit, which cannot spare a running unit yet, or for the binder, which said later or nothing.

use godel_base::seed::mix;

use super::{DriverTerms, MovementDriver, span};
use crate::movement::MovePhase;

impl MovementDriver {
    /// A move whose unit could not spare its running unit for long is not made.
    pub(super) fn give_up_unspared(&mut self, at: usize, terms: &DriverTerms, now_ms: i64) -> bool {
        let one = &self.movement.moves[at];
        let is_put_off = one.phase == MovePhase::Waiting && self.asking[at].n_later > 0;
        if !is_put_off || now_ms < one.changed_ms.saturating_add(span(terms.move_timeout_ms)) {
            return false;
        }
        let why = format!("its unit could not spare it in time: {}", one.detail);
        self.refuse(at, why, now_ms)
    }

    /// Returns the replicas of the unit of a move that are missing because of other moves, or may be: rows may be behind what the binder said.
    pub(super) fn missing(&self, at: usize) -> Vec<u32> {
        let moves = self.movement.moves.iter().zip(&self.asking).enumerate();
        let unit = self.movement.moves[at].id.unit;
        let others = moves.filter(|(other, (one, asking))| {
            let may_begin = one.phase == MovePhase::Waiting && (asking.is_in_flight || asking.is_unheard);
            let is_going = one.phase.is_under_way() || may_begin;
            *other != at && one.id.unit == unit && is_going && one.surge_ordinal.is_none()
        });
        others.map(|(_, (one, _))| one.id.replica.ordinal).collect()
    }

    /// A move whose unit cannot spare its running unit yet waits.
    pub(super) fn put_off(&mut self, at: usize, why: String, terms: &DriverTerms, now_ms: i64) -> bool {
        self.retry_later(at, terms, now_ms);
        let detail = &mut self.movement.moves[at].detail;
        let has_changed = *detail != why;
        *detail = why;
        has_changed
    }

    /// Doubles the time until the binder is asked again, by chance up to a quarter longer. A movement that ends asks no more.
    pub(super) fn retry_later(&mut self, at: usize, terms: &DriverTerms, now_ms: i64) {
        if self.movement.ending.is_some() {
            self.give_up_waiting(now_ms);
            return;
        }
        let asking = &mut self.asking[at];
        let (least, most) = terms.retry_ms;
        let pause = least.saturating_mul(1 << asking.n_later.min(20)).min(most).max(1);
        asking.n_later = asking.n_later.saturating_add(1);
        let position = u64::try_from(at).unwrap_or(u64::MAX);
        let jitter =
            mix(self.movement.number ^ mix(position) ^ u64::from(asking.n_later)) % (pause / 4).max(1);
        asking.retry_ms = now_ms.saturating_add(span(pause.saturating_add(jitter)));
    }
}
