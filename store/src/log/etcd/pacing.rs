//! How fast a snapshot is written, so that it does not slow commits down.
//!
//! Pieces are written beside the commits, one at a time. Between two pieces there is a pause as long as a piece takes, and
//! longer while commits that coincide with a piece take longer than other commits.

use std::time::Duration;

/// The longest pause. With it, a snapshot of 300 MiB, for which the default quota of etcd suffices, takes 4 minutes.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The shortest pause that matters.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// How much longer commits that coincide with a piece may take, in percent.
const SLOWER_PERCENT: u32 = 30;
/// Weight of the previous value in a moving average, in eighths.
const WEIGHT: u32 = 7;

/// Compares how long commits take with and without a piece.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    alone: Average,
    beside_piece: Average,
    pause: Duration,
    /// Commits since the last piece ended.
    n_commits: u64,
}

#[derive(Debug, Default)]
struct Average(Option<Duration>);

impl Average {
    fn add(&mut self, value: Duration) {
        self.0 = Some(self.0.map_or(value, |average| (average * WEIGHT + value) / (WEIGHT + 1)));
    }
}

impl Pacer {
    /// Records how long a commit took, and whether a piece was in progress.
    pub(super) fn add_commit(&mut self, took: Duration, beside_piece: bool) {
        self.n_commits += 1;
        if beside_piece { self.beside_piece.add(took) } else { self.alone.add(took) }
    }

    /// Records how long a piece took. Returns the pause before the next one.
    pub(super) fn add_piece(&mut self, took: Duration) -> Duration {
        if std::mem::take(&mut self.n_commits) == 0 {
            // There is no commit to slow down.
            self.pause = Duration::ZERO;
            return Duration::ZERO;
        }
        let is_slower = match (self.alone.0, self.beside_piece.0) {
            (Some(alone), Some(beside)) => beside * 100 > alone * (100 + SLOWER_PERCENT),
            // A comparison needs both averages.
            _ => true,
        };
        self.pause = if is_slower { (2 * self.pause).max(PAUSE_MIN) } else { self.pause / 2 };
        self.pause = self.pause.max(took).min(PAUSE_MAX);
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn pauses(pacer: &mut Pacer, alone: u64, beside: u64) -> Vec<Duration> {
        let pause = |_| {
            pacer.add_commit(ms(alone), false);
            pacer.add_commit(ms(beside), true);
            pacer.add_piece(ms(2))
        };
        (0..30).map(pause).collect()
    }

    #[test]
    fn pauses_grow_while_commits_feel_the_pieces_and_shrink_afterwards() {
        let mut pacer = Pacer::default();
        let slow = pauses(&mut pacer, 4, 8);
        assert!(slow.is_sorted() && slow[0] >= ms(2) && slow[29] == PAUSE_MAX, "{slow:?}");
        let quick = pauses(&mut pacer, 4, 4);
        assert_eq!(quick[29], ms(2), "as long as a piece takes");
    }

    #[test]
    fn no_pause_is_made_where_nothing_is_committed() {
        let mut pacer = Pacer::default();
        assert_eq!(pacer.add_piece(ms(2)), Duration::ZERO);
        pacer.add_commit(ms(3), true);
        assert!(pacer.add_piece(ms(2)) > Duration::ZERO);
        assert_eq!(pacer.add_piece(ms(2)), Duration::ZERO);
    }
}
