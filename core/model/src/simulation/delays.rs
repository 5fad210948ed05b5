//! What takes how long: the modelled part of the simulation.

use std::{fmt, str::FromStr, time::Duration};

/// Nanoseconds of virtual time.
pub type Nanos = u64;

/// CPU of one part: so much for each unit in a lot, and so much for each running unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCost {
    unit: Nanos,
    placement: Nanos,
}

impl WorkCost {
    /// A scheduler's try of a unit and place of a running unit. In `core` alone 6.4 µs a try of a single replica, 9.9 of a
    /// gang of ten and 0.39 a place of a service; the rest is decoding the unit and encoding the decision.
    pub const PLAIN: Self = Self { unit: 10_000, placement: 500 };
    /// The same for shapes of the trace, 34 µs and 1.3 in `core`: devices make each node cost more to rate.
    pub const MIXED: Self = Self { unit: 36_000, placement: 1_500 };

    /// Returns the cost of units and running units.
    pub fn of(self, n_units: usize, n_placements: usize) -> Nanos {
        times(self.unit, n_units).saturating_add(times(self.placement, n_placements))
    }
}

fn times(nanos: Nanos, n: usize) -> Nanos {
    nanos.saturating_mul(Nanos::try_from(n).unwrap_or(Nanos::MAX))
}

impl FromStr for WorkCost {
    type Err = String;

    /// Microseconds, as `13+0.5`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (unit, placement) = text
            .split_once('+')
            .ok_or_else(|| format!("`{text}`: microseconds per unit + per running unit, as 13+0.5"))?;
        Ok(Self { unit: nanos(unit)?, placement: nanos(placement)? })
    }
}

impl fmt::Display for WorkCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", micros(self.unit), micros(self.placement))
    }
}

fn nanos(text: &str) -> Result<Nanos, String> {
    let micros: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number of microseconds"))?;
    let duration = Duration::try_from_secs_f64(micros / 1e6).map_err(|error| format!("`{text}`: {error}"))?;
    Nanos::try_from(duration.as_nanos()).map_err(|_| format!("`{text}` is too long"))
}

fn micros(nanos: Nanos) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e6
}

/// A delay, written in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay(pub(super) Nanos);

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        nanos(text).map(Self)
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        micros(self.0).fmt(f)
    }
}

/// What everything in a simulation takes; every part has a core of its own.
#[derive(Clone, Copy, Debug)]
pub struct SimulationDelays {
    /// Dispatcher: admitting a unit and making it durable.
    pub submit: WorkCost,
    /// Dispatcher: assigning a unit.
    pub dispatch: WorkCost,
    /// Scheduler: trying a unit, and each place.
    pub scheduler: WorkCost,
    /// Binder: checking a decision.
    pub binder: WorkCost,
    /// State: logging and applying a unit's record or its rows.
    pub state: WorkCost,
    /// State: sending a unit's change to one follower.
    pub fan_out: WorkCost,
    /// Dispatcher, binder and each scheduler: reading a unit's change.
    pub follow: WorkCost,
    /// State: a synced group commit, during which the next one collects.
    pub commit: Delay,
    /// From the commit until a follower has the change.
    pub watch: Delay,
    /// A message from one service to another.
    pub hop: Delay,
}
