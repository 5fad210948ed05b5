//! Log lines that strangers can cause: one of a kind in ten seconds is enough.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The pause between two lines of a kind.
const PAUSE: Duration = Duration::from_secs(10);

/// When a line of a kind was last written.
#[derive(Debug, Default)]
pub struct Quiet(Mutex<Option<Instant>>);

impl Quiet {
    /// Whether the line may be written now.
    pub fn may_speak(&self) -> bool {
        self.may_speak_at(Instant::now())
    }

    fn may_speak_at(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let may = last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE);
        if may {
            *last = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_in_a_while() {
        let (quiet, start) = (Quiet::default(), Instant::now());
        assert!(quiet.may_speak_at(start) && !quiet.may_speak_at(start));
        let later = start + PAUSE;
        assert!(quiet.may_speak_at(later) && !quiet.may_speak_at(later));
    }
}
