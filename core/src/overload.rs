//! When to come back, for callers that were refused because too many units are in hand.
//!
//! A unit is in hand from the beginning of its call until it is first bound, or until it is known that it has to wait for
//! something else than the control plane: room, a quota, a pause. What is in hand is the rate times the delay (Little 1961),
//! so a limit of the one bounds the other.
//!
//! Who is refused is told when to come back: later and later while more are refused than admitted, so that refusing
//! takes no more of the control plane than admitting does, however many try.

use std::time::Duration;

/// Between two looks at what came.
const TICK: Duration = Duration::from_millis(100);
/// Bounds of the hint.
const HINT: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_secs(5);

/// What happened at the door since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Units taken in hand.
    pub admitted: u32,
    /// Calls refused.
    pub refused: u32,
}

impl Counted {
    fn add(&mut self, more: Self) {
        self.admitted = self.admitted.saturating_add(more.admitted);
        self.refused = self.refused.saturating_add(more.refused);
    }
}

/// When to come back: follows how many are refused for each one admitted.
#[derive(Debug)]
pub struct Hint {
    pause: Duration,
    /// What came since the last look, and when that was.
    tick: (Duration, Counted),
    /// What came since the hint last changed.
    window: (Duration, Counted),
}

impl Default for Hint {
    fn default() -> Self {
        let none = (Duration::ZERO, Counted::default());
        Self { pause: Duration::from_millis(10), tick: none, window: none }
    }
}

impl Hint {
    /// When to come back, on average.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// What was counted since the last call: call often. As many come back as are admitted, so that a few are always
    /// there to take what gets free. True when the hint may have changed.
    pub fn step(&mut self, counted: Counted, now: Duration) -> bool {
        self.tick.1.add(counted);
        if now.saturating_sub(self.tick.0) < TICK {
            return false;
        }
        let (_, tick) = std::mem::replace(&mut self.tick, (now, Counted::default()));
        self.window.1.add(tick);
        let Counted { admitted, refused } = self.window.1;
        let pause = if tick.refused == 0 {
            self.pause / 2
        } else if now.saturating_sub(self.window.0) < self.pause * 3 / 2 {
            // Those who were told the last one have yet to come back.
            return false;
        } else if refused > admitted.saturating_mul(2) {
            self.pause * 2
        } else if refused > admitted {
            self.pause * 5 / 4
        } else if refused < admitted / 2 {
            self.pause * 3 / 4
        } else {
            self.pause
        };
        self.window = (now, Counted::default());
        self.pause = pause.clamp(*HINT.start(), *HINT.end());
        true
    }
}

/// A hint for one caller: half of `hint` to one and a half, drawn from `seed`, so that those who were refused together
/// do not come back together.
pub fn spread(hint: Duration, seed: u64) -> Duration {
    let permille = 500 + crate::dispatcher::policy::mix(seed) % 1_001;
    hint * u32::try_from(permille).unwrap_or(1_000) / 1_000
}

#[cfg(test)]
mod tests;
