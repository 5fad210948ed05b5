//! How many units are taken in hand, and when callers that were refused come back.
//!
//! A unit is in hand from the beginning of its call until it is first bound, or until it is known that it has to wait for
//! something else than the control plane: room, a quota, a pause. What is in hand is the rate times the delay (Little 1961),
//! so a limit of the one bounds the other.
//!
//! There are two limits. While all who call can be in hand, a high one: what waits together is committed together, which
//! is good for the rate. Once some had to be refused there is an overload, and a low one holds, so that what is admitted
//! takes hardly longer than without load. How many call is how many are in hand and, of those refused, the rate at which
//! they come times the pause between two tries (Little again). When they are no more than the high limit the overload is
//! over, so a control plane that could take all of them does not stay slow.
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
pub struct CallCounts {
    /// Units taken in hand.
    pub admitted: u32,
    /// Calls refused.
    pub refused: u32,
}

impl CallCounts {
    fn add(&mut self, more: Self) {
        self.admitted = self.admitted.saturating_add(more.admitted);
        self.refused = self.refused.saturating_add(more.refused);
    }
}

/// Units in hand at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverloadLimits {
    /// While nobody has to be refused; at least 1.
    pub usual: u32,
    /// In an overload; at least 1, and never more than `usual`.
    pub overloaded: u32,
}

/// Sets limit and hint by how many are refused for each one admitted.
#[derive(Debug)]
pub struct Overload {
    limits: OverloadLimits,
    is_on: bool,
    pause: Duration,
    /// What came since the last look, and when that was.
    tick: (Duration, CallCounts),
    /// What came since the hint last changed, and when that was.
    window: (Duration, CallCounts),
}

impl Overload {
    /// Nobody has been refused yet.
    pub fn new(limits: OverloadLimits) -> Self {
        let none = (Duration::ZERO, CallCounts::default());
        Self { limits, is_on: false, pause: Duration::from_millis(10), tick: none, window: none }
    }

    /// Callers had to be refused, and are too many still.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Units in hand at most, as things are.
    pub fn limit(&self) -> u32 {
        let OverloadLimits { usual, overloaded } = self.limits;
        if self.is_on { overloaded.min(usual).max(1) } else { usual.max(1) }
    }

    /// When to come back, on average.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// What was counted since the last call, and how many are in hand: call often. As many come back as are admitted, so
    /// that a few are always there to take what gets free. True when limit or hint may have changed.
    pub fn step(&mut self, counted: CallCounts, in_hand: u32, now: Duration) -> bool {
        self.tick.1.add(counted);
        if now.saturating_sub(self.tick.0) < TICK {
            return false;
        }
        let (_, tick) = std::mem::replace(&mut self.tick, (now, CallCounts::default()));
        self.window.1.add(tick);
        let (since, CallCounts { admitted, refused }) = self.window;
        let span = now.saturating_sub(since);
        let was_on = std::mem::replace(&mut self.is_on, tick.refused > 0);
        let pause = if tick.refused == 0 {
            self.pause / 2
        } else if !was_on {
            self.pause
        } else if span < self.pause * 3 / 2 {
            // Those who were told the last one have yet to come back.
            return false;
        } else {
            let n_away = u128::from(refused) * self.pause.as_nanos() / span.as_nanos().max(1);
            let are_too_many = u128::from(in_hand) + n_away > u128::from(self.limits.usual);
            // Refusing so many may take so long that they come back later than they are told, and seem fewer.
            let are_most_refused = refused > admitted.saturating_mul(2);
            self.is_on = are_most_refused || are_too_many;
            if are_most_refused {
                self.pause * 2
            } else if refused > admitted {
                self.pause * 5 / 4
            } else if refused < admitted / 2 {
                self.pause * 3 / 4
            } else {
                self.pause
            }
        };
        self.window = (now, CallCounts::default());
        self.pause = pause.clamp(*HINT.start(), *HINT.end());
        true
    }
}

/// A hint for one caller: half of `hint` to one and a half, drawn from `seed`, so that those who were refused together
/// do not come back together.
pub fn spread(hint: Duration, seed: u64) -> Duration {
    let permille = 500 + godel_base::seed::mix(seed) % 1_001;
    hint * u32::try_from(permille).unwrap_or(1_000) / 1_000
}

#[cfg(test)]
mod tests;
