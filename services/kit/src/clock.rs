//! The clocks of the shell: `core` gets `now` as an argument, services read it here.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use godel_domain::time::Millis;
use tokio::time::Instant;

/// Reads the time.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic milliseconds since some fixed moment of this process.
    fn now(&self) -> Millis;
    /// Unix milliseconds; may jump.
    fn wall_ms(&self) -> i64;
}

/// A clock that can be handed around.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clocks. Its monotonic part follows `tokio::time`, so that tests can pause it.
#[derive(Clone, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Starts at 0.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// As a [`SharedClock`].
    pub fn shared() -> SharedClock {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        Millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn wall_ms(&self) -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

/// A clock that moves only when told to; both of its faces show the same number.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// Starts at `ms`.
    pub fn new(ms: u64) -> Self {
        Self { ms: Arc::new(AtomicU64::new(ms)) }
    }

    /// Moves it forward.
    pub fn advance(&self, ms: u64) {
        self.ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        Millis(self.ms.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> i64 {
        i64::try_from(self.ms.load(Ordering::SeqCst)).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_when_told() {
        let clock = ManualClock::new(5);
        clock.clone().advance(7);
        assert_eq!((clock.now(), clock.wall_ms()), (Millis(12), 12));
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.now() >= first && clock.wall_ms() > 1_600_000_000_000);
    }
}
