//! What takes how long: the modelled part of the simulation.
//!
//! Of the defaults, the deciders' own work (dispatcher 3.7 µs a unit; binder 5.1 a unit and 0.22 a running unit, both with the
//! reading of changes; scheduler: see [`Cost::PLAIN`]) was timed in `core` on a release build, the better of two runs on
//! a machine that was not quiet. The rest is estimated and not measured: encoding, state, fan-out, the latencies. A
//! figure of a simulation is as good as these; `godel bench e2e` gives CPU by process to put in their place.

use std::{fmt, str::FromStr, time::Duration};

use clap::Args;

/// Nanoseconds of virtual time.
pub(super) type Nanos = u64;

/// CPU of one part: so much for each unit in a lot, and so much for each running unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    unit: Nanos,
    placement: Nanos,
}

impl Cost {
    /// A scheduler's try of a unit and place of a running unit. In `core` alone 6.4 µs a try of a single replica, 9.9 of a
    /// gang of ten and 0.39 a place of a service; the rest is decoding the unit and encoding the decision.
    pub(super) const PLAIN: Self = Self { unit: 10_000, placement: 500 };
    /// The same for shapes of the trace, 34 µs and 1.3 in `core`: devices make each node cost more to rate.
    pub(super) const MIXED: Self = Self { unit: 36_000, placement: 1_500 };

    pub(super) fn of(self, n_units: usize, n_placements: usize) -> Nanos {
        times(self.unit, n_units).saturating_add(times(self.placement, n_placements))
    }
}

fn times(nanos: Nanos, n: usize) -> Nanos {
    nanos.saturating_mul(Nanos::try_from(n).unwrap_or(Nanos::MAX))
}

impl FromStr for Cost {
    type Err = String;

    /// Microseconds, as `13+0.5`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (unit, placement) = text
            .split_once('+')
            .ok_or_else(|| format!("`{text}`: microseconds per unit + per running unit, as 13+0.5"))?;
        Ok(Self { unit: nanos(unit)?, placement: nanos(placement)? })
    }
}

impl fmt::Display for Cost {
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

/// A latency in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Latency(pub(super) Nanos);

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        nanos(text).map(Self)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        micros(self.0).fmt(f)
    }
}

/// Every part has a core of its own. Costs are CPU-microseconds as `PER_UNIT+PER_RUNNING_UNIT`, encoding and
/// decoding included; a unit that comes back after a conflict costs again.
#[derive(Args, Clone, Debug)]
pub(super) struct Delays {
    /// Dispatcher: admitting a unit and making it durable.
    #[arg(long, default_value = "5+0.02", value_name = "COST", help_heading = "Delays")]
    pub(super) submit_us: Cost,
    /// Dispatcher: assigning a unit.
    #[arg(long, default_value = "5+0.05", value_name = "COST", help_heading = "Delays")]
    pub(super) dispatch_us: Cost,
    /// Scheduler: trying a unit, and each place. Default 10+0.5, or 36+1.5 for the mixed workload.
    #[arg(long, value_name = "COST", help_heading = "Delays")]
    pub(super) scheduler_us: Option<Cost>,
    /// Binder: checking a decision.
    #[arg(long, default_value = "6+0.25", value_name = "COST", help_heading = "Delays")]
    pub(super) binder_us: Cost,
    /// State: logging and applying a unit's record or its rows.
    #[arg(long, default_value = "4+0.4", value_name = "COST", help_heading = "Delays")]
    pub(super) state_us: Cost,
    /// State: sending a unit's change to one follower.
    #[arg(long, default_value = "0.2+0.01", value_name = "COST", help_heading = "Delays")]
    pub(super) fan_out_us: Cost,
    /// Dispatcher, binder and each scheduler: reading a unit's change.
    #[arg(long, default_value = "1+0.1", value_name = "COST", help_heading = "Delays")]
    pub(super) follow_us: Cost,
    /// State: a synced group commit, during which the next one collects.
    #[arg(long, default_value = "300", value_name = "US", help_heading = "Delays")]
    pub(super) commit_us: Latency,
    /// From the commit until a follower has the change.
    #[arg(long, default_value = "100", value_name = "US", help_heading = "Delays")]
    pub(super) watch_us: Latency,
    /// A message from one service to another.
    #[arg(long, default_value = "50", value_name = "US", help_heading = "Delays")]
    pub(super) hop_us: Latency,
}
