//! Configuration of an agent process.

use std::{path::PathBuf, time::Duration};

use godel_kit::config::{ClientConfig, HumanDuration};

godel_kit::section! {
    /// How agents reach state and live their lives.
    pub struct Config {
        /// Connections over which the sessions are spread.
        pub connections: usize = 8,
        /// Nodes that register at the same time, over all connections.
        pub registrations_in_flight: usize = 256,
        /// Simulated durations and the pauses before restarts are divided by this.
        pub speed: f64 = 1.0,
        /// A lost session is opened again after a random time up to this.
        pub reconnect_spread: HumanDuration = HumanDuration::from_secs(5),
        /// Where terminal statuses wait until they are acknowledged; none: in memory only.
        pub state_dir: Option<PathBuf> = None,
        /// Modelled use of a simulated node: per cent of what its running units ask for.
        pub usage_percent: u32 = 50,
        /// Seed of the jitter; none: a new one for each process.
        pub seed: Option<u64> = None,
    }
    sections {
        /// How it calls state.
        pub client: ClientConfig,
    }
}

impl Config {
    /// What is wrong with it, by field; empty when nothing is.
    pub fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if !(self.speed.is_finite() && self.speed > 0.0) {
            wrong.push(format!("speed: {} is not a number above 0", self.speed));
        }
        for (key, value) in
            [("connections", self.connections), ("registrations_in_flight", self.registrations_in_flight)]
        {
            if value == 0 {
                wrong.push(format!("{key}: must be at least 1"));
            }
        }
        if self.usage_percent > 100 {
            wrong.push(format!("usage_percent: {} is more than 100", self.usage_percent));
        }
        wrong
    }

    /// A simulated duration in the time of this process.
    pub(crate) fn scaled_ms(&self, duration_ms: u64) -> u64 {
        let scaled = Duration::from_millis(duration_ms).as_secs_f64() / self.speed;
        let longest = Duration::from_secs(365 * 24 * 3600);
        let duration = Duration::try_from_secs_f64(scaled).unwrap_or(longest).min(longest);
        // At least one: 0 would run until stopped.
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_scale_with_speed_and_never_become_endless() {
        let at = |speed| Config { speed, ..Config::default() };
        assert_eq!(at(1.0).scaled_ms(1500), 1500);
        assert_eq!(at(100.0).scaled_ms(150_000), 1500);
        assert_eq!(at(1e12).scaled_ms(10), 1);
        assert_eq!(at(1e-300).scaled_ms(10), 24 * 365 * 3_600_000);
        assert_eq!(at(0.0).violations().len(), 1);
        assert_eq!(at(f64::NAN).violations().len(), 1);
        assert!(Config::default().violations().is_empty());
    }
}
