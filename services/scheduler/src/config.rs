//! Configuration of a scheduler.

use godel_core::scheduler;
use godel_kit::config::{ClientConfig, HumanDuration, LeaseConfig, ServerConfig, TelemetryConfig};

godel_kit::section! {
    /// A scheduler.
    pub struct Config {
        /// Its name: unique, registered as `scheduler/<name>`; finds its own part of the nodes.
        pub name: String = "s1".to_owned(),
        /// Starts its rotating scans and breaks ties; 0: made from the name.
        pub seed: u64 = 0,
        /// A scan stops at so many feasible nodes more than replicas are asked for.
        pub surplus: u32 = 50,
        /// Feasible nodes are kept from one replica and unit to the next of the same template.
        pub cache: bool = true,
        /// A scan stops early at all; false looks at every node.
        pub limit_scan: bool = true,
        /// Running units held in ready, backoff and in flight together.
        pub held_max: u32 = 200_000,
        /// Running units decided and not yet answered.
        pub in_flight_max: u32 = 100_000,
        /// First wait after a second rejection in a row.
        pub backoff_min: HumanDuration = HumanDuration::from_millis(10),
        /// Longest wait after rejections.
        pub backoff_max: HumanDuration = HumanDuration::from_secs(10),
        /// What a rejection said of a node is believed so long.
        pub foreign: HumanDuration = HumanDuration::from_secs(1),
        /// Running units decided before the decisions are sent and other events are looked at.
        pub step_budget: usize = 4_096,
        /// Units without a place have running units of lower rank leave.
        pub preemption: bool = true,
        /// Longest pause before a stream is opened again.
        pub reconnect_max: HumanDuration = HumanDuration::from_millis(500),
        /// For tests: `name[:n][,…]` makes the process die at the n-th hit of a point; empty arms nothing.
        pub crash_points: String = String::new(),
    }
    sections {
        /// Where it serves.
        pub server: ServerConfig = ServerConfig::on_port(7703),
        /// How it calls other services.
        pub client: ClientConfig,
        /// Its registration.
        pub lease: LeaseConfig,
        /// Logs.
        pub telemetry: TelemetryConfig,
    }
}

impl Config {
    /// The part that decisions depend on.
    pub(crate) fn core(&self) -> scheduler::Config {
        let ms = |duration: HumanDuration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        scheduler::Config {
            name: self.name.clone(),
            surplus: self.surplus,
            cache: self.cache,
            limit_scan: self.limit_scan,
            held_max: self.held_max,
            in_flight_max: self.in_flight_max,
            backoff_ms_min: ms(self.backoff_min),
            backoff_ms_max: ms(self.backoff_max),
            foreign_ms: ms(self.foreign),
            preemption: self.preemption,
            ..scheduler::Config::default()
        }
    }

    /// The seed in force. FNV-1a: the same name gives the same seed on every machine and build.
    pub(crate) fn effective_seed(&self) -> u64 {
        if self.seed != 0 {
            return self.seed;
        }
        self.name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_by_name() {
        let named = |name: &str| Config { name: name.to_owned(), ..Config::default() };
        assert_ne!(named("s1").effective_seed(), named("s2").effective_seed());
        assert_eq!(Config { seed: 7, ..named("s1") }.effective_seed(), 7);
        assert_eq!(named("s1").core().backoff_ms_max, 10_000);
    }
}
