//! How fast a snapshot is written: commits must not feel it.
//!
//! Pieces are under way beside commits, one at a time. Between two of them there is a pause, as long as a piece takes, and
//! longer while commits that meet a piece take longer than those that do not.

use std::time::Duration;

/// The longest pause: a snapshot of 300 MiB, which etcd's default quota carries, takes 4 minutes then.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The shortest pause that matters.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// Commits that meet a piece may take so much longer, in percent.
const SLOWER_PERCENT: u32 = 30;
/// Weight of what came before in a moving average, of 8.
const WEIGHT: u32 = 7;

/// Watches what commits take.
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
    /// Notes what a commit took, and whether a piece was under way.
    pub(super) fn add_commit(&mut self, took: Duration, beside_piece: bool) {
        self.n_commits += 1;
        if beside_piece { self.beside_piece.add(took) } else { self.alone.add(took) }
    }

    /// Notes what a piece took; how long to wait before the next one.
    pub(super) fn add_piece(&mut self, took: Duration) -> Duration {
        if std::mem::take(&mut self.n_commits) == 0 {
            // There is no commit to hold up.
            self.pause = Duration::ZERO;
            return Duration::ZERO;
        }
        let is_slower = match (self.alone.0, self.beside_piece.0) {
            (Some(alone), Some(beside)) => beside * 100 > alone * (100 + SLOWER_PERCENT),
            // Without one of both there is nothing to compare.
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
