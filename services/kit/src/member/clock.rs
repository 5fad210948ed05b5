//! The time at state, by which everything is judged.

use std::sync::Arc;

use godel_pki::tls::WallClock;
use parking_lot::RwLock;

use crate::clock::SharedClock;

/// The time at state: the wall clock of this machine until state has said what time it is there, and what has passed since. Clones share it.
#[derive(Clone)]
pub(crate) struct StateClock {
    own: SharedClock,
    heard: Arc<RwLock<Option<HeardTime>>>,
}

/// State's time at a moment of this machine.
#[derive(Clone, Copy)]
struct HeardTime {
    own_ms: u64,
    state_ms: u64,
}

/// The moment at which state was asked.
#[derive(Clone, Copy)]
pub(crate) struct Asked(u64);

impl StateClock {
    pub(crate) fn new(own: SharedClock) -> Self {
        Self { own, heard: Arc::default() }
    }

    /// Milliseconds since 1970, at state.
    pub(crate) fn now_ms(&self) -> u64 {
        match *self.heard.read() {
            // The monotonic clock: what somebody does to the wall clock of this machine moves nothing.
            Some(HeardTime { own_ms, state_ms }) => {
                state_ms.saturating_add(self.own.now().0.saturating_sub(own_ms))
            }
            None => self.machine_ms(),
        }
    }

    /// Milliseconds since 1970, on this machine.
    pub(crate) fn machine_ms(&self) -> u64 {
        u64::try_from(self.own.wall_ms()).unwrap_or(0)
    }

    /// Notes that state is asked now.
    pub(crate) fn ask(&self) -> Asked {
        Asked(self.own.now().0)
    }

    /// Learns the time of an answer: the middle between question and answer is its moment.
    pub(crate) fn learn(&self, asked: Asked, state_ms: i64) {
        let Some(state_ms) = u64::try_from(state_ms).ok().filter(|ms| *ms > 0) else { return };
        let own_ms = asked.0 + self.own.now().0.saturating_sub(asked.0) / 2;
        *self.heard.write() = Some(HeardTime { own_ms, state_ms });
    }

    /// As handshakes and judges ask for it.
    pub(crate) fn wall_clock(&self) -> WallClock {
        let clock = self.clone();
        Arc::new(move || clock.now_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn what_state_says_counts_and_time_goes_on_from_there() {
        let own = Arc::new(ManualClock::new(1_000));
        let clock = StateClock::new(Arc::clone(&own) as SharedClock);
        assert_eq!(clock.now_ms(), clock.machine_ms());
        let asked = clock.ask();
        own.advance(200);
        clock.learn(asked, 5_000_000);
        assert_eq!(clock.now_ms(), 5_000_100, "half of the way has passed since");
        own.advance(1_000);
        assert_eq!(clock.now_ms(), 5_001_100);
        clock.learn(clock.ask(), 0);
        assert_eq!(clock.now_ms(), 5_001_100, "an answer without a time says nothing");
    }
}
