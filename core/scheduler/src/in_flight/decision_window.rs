//! How far a scheduler decides ahead of the binder's answers.
//!
//! The further ahead, the more of its decisions rest on a picture that other schedulers have changed since, and
//! each conflict costs a second decision. The window doubles after a round (a window's worth of answers) with
//! few conflicts and halves after one with many, between two bounds: alone, a scheduler is soon limited by
//! the configured maximum only; among others on the same nodes it goes as far ahead as pays.
//! Increase and decrease by feedback as in Jacobson, "Congestion avoidance and control" (SIGCOMM '88).

/// Smallest window: keeps the binder busy over one commit.
const SIZE_MIN: u64 = 64;
/// A round with more than one conflict in this number of answers halves the window …
const CONFLICT_EVERY_SHRINK: u64 = 16;
/// … one with fewer than one in this number doubles it.
const CONFLICT_EVERY_GROW: u64 = 64;

/// Running units that may be without an outcome, and the answers of this round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionWindow {
    size: u64,
    max: u64,
    n_answers: u64,
    n_conflicts: u64,
}

impl DecisionWindow {
    pub(crate) fn new(max: u32) -> Self {
        let max = u64::from(max).max(1);
        Self { size: SIZE_MIN.min(max), max, n_answers: 0, n_conflicts: 0 }
    }

    /// Whether one more decision may be made with `in_flight` running units unanswered.
    pub(crate) fn is_open(&self, in_flight: u64) -> bool {
        in_flight < self.size
    }

    /// Answers for `n_answers` running units, `n_conflicts` of them conflicts.
    pub(crate) fn on_answers(&mut self, n_answers: u64, n_conflicts: u64) {
        self.n_answers += n_answers;
        self.n_conflicts += n_conflicts;
        if self.n_answers < self.size {
            return;
        }
        if self.n_conflicts * CONFLICT_EVERY_SHRINK > self.n_answers {
            self.size = (self.size / 2).max(SIZE_MIN.min(self.max));
        } else if self.n_conflicts * CONFLICT_EVERY_GROW < self.n_answers {
            self.size = (self.size * 2).min(self.max);
        }
        (self.n_answers, self.n_conflicts) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_alone_shrinks_among_others_and_stays_within_bounds() {
        let mut window = DecisionWindow::new(1_000);
        let mut sizes = vec![window.size];
        for conflicts in [0, 0, 0, 0, 0, 63, 16, 100, 500, 500, 500, 500, 500] {
            window.on_answers(window.size, conflicts);
            sizes.push(window.size);
        }
        assert_eq!(sizes, [64, 128, 256, 512, 1_000, 1_000, 500, 500, 250, 125, 64, 64, 64, 64]);
        assert!(window.is_open(63) && !window.is_open(64));
        assert!(DecisionWindow::new(0).is_open(0));
    }
}
