//! Configuration of a scheduler.

use std::collections::BTreeMap;

use godel_core_scheduler as scheduler;
use godel_domain::sub_cluster;
use godel_framework::{Profile, ProfileError};
use godel_kit::config::{ClientConfig, HumanDuration, LeaseConfig, ServerConfig, TelemetryConfig};
use godel_placement::place::Profiles;

godel_kit::section! {
    /// A scheduler.
    pub struct Config {
        /// Name of the scheduler: unique, registered as `scheduler/<name>`. The dispatcher assigns nodes by this
        /// name.
        pub name: String = "s1".to_owned(),
        /// Seed for the start of node scans and for ties between nodes. 0: derived from the name.
        pub seed: u64 = 0,
        /// A scan stops when it has found this many feasible nodes more than replicas are requested.
        pub surplus: u32 = 50,
        /// Keep feasible nodes from one replica and unit to the next with the same template.
        pub cache: bool = true,
        /// Stop scans early (`surplus`). `false` scans every node.
        pub limit_scan: bool = true,
        /// Maximum number of running units in ready, backoff and in flight together. Those that back off after many
        /// rejections are not counted.
        pub held_max: u32 = 200_000,
        /// Maximum number of running units decided and not yet answered.
        pub in_flight_max: u32 = 100_000,
        /// First backoff, after the second rejection in a row.
        pub backoff_min: HumanDuration = HumanDuration::from_millis(10),
        /// Longest backoff after rejections.
        pub backoff_max: HumanDuration = HumanDuration::from_secs(10),
        /// How long the scheduler uses the state of a node that a rejection reported, until the watch shows that
        /// state.
        pub foreign: HumanDuration = HumanDuration::from_secs(1),
        /// Running units decided per step, before decisions are sent and other events are processed.
        pub step_budget: usize = 4_096,
        /// Preempt running units of lower rank for units without a place.
        pub preemption: bool = true,
        /// Node label whose value is the sub-cluster of the node; if the label is absent, the attribute of that name.
        /// Must equal the dispatcher's key.
        pub sub_cluster_key: String = sub_cluster::KEY.to_owned(),
        /// Score plugins and their weights by sub-cluster, as `{gpu: {device-stranding: 1000, most-allocated: 1}}`.
        /// They replace the scoring profile of every unit of the sub-cluster. See docs/sub-clusters.md.
        pub sub_cluster_scores: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new(),
        /// Longest pause before a stream is opened again.
        pub reconnect_max: HumanDuration = HumanDuration::from_millis(500),
        /// For tests: `name[:n][,…]` aborts the process at the n-th hit of a crash point. Empty: no crash point is
        /// armed.
        pub crash_points: String = String::new(),
    }
    sections {
        /// The gRPC server.
        pub server: ServerConfig = ServerConfig::on_port(7703),
        /// Clients of other services.
        pub client: ClientConfig,
        /// The lease of the registration.
        pub lease: LeaseConfig,
        /// Logs.
        pub telemetry: TelemetryConfig,
    }
}

/// A profile of a sub-cluster that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the scores of sub-cluster `{sub_cluster}` in `scheduler.sub_cluster_scores` are not a valid profile"
)]
pub struct BadProfile {
    sub_cluster: String,
    source: ProfileError,
}

impl Config {
    /// The part that decisions depend on.
    ///
    /// # Errors
    /// The first profile that makes no sense.
    pub(crate) fn core(&self) -> Result<scheduler::Config, BadProfile> {
        let ms = |duration: HumanDuration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Ok(scheduler::Config {
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
            profiles: Profiles { sub_clusters: self.profiles()?, ..Profiles::default() },
            sub_cluster_key: self.sub_cluster_key.clone(),
        })
    }

    fn profiles(&self) -> Result<Vec<(String, Profile)>, BadProfile> {
        let profile = |(name, scores): (&String, &BTreeMap<String, u32>)| {
            let scores: Vec<_> = scores.iter().map(|(name, weight)| (&**name, i64::from(*weight))).collect();
            let profile = Profile::of_scores(&scores);
            profile
                .map(|profile| (name.clone(), profile))
                .map_err(|source| BadProfile { sub_cluster: name.clone(), source })
        };
        self.sub_cluster_scores.iter().map(profile).collect()
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
        assert_eq!(named("s1").core().unwrap().backoff_ms_max, 10_000);
    }

    #[test]
    fn a_bad_profile_of_a_sub_cluster_is_refused_whole() {
        let scored = |scores: &[(&str, u32)]| {
            let own = |(name, weight): &(&str, u32)| ((*name).to_owned(), *weight);
            let good = ("cpu".to_owned(), BTreeMap::from([own(&("least-allocated", 1))]));
            let tested = ("gpu".to_owned(), scores.iter().map(own).collect());
            Config { sub_cluster_scores: BTreeMap::from([good, tested]), ..Config::default() }
        };
        let profiles = scored(&[("most-allocated", 2)]).core().unwrap().profiles;
        let named: Vec<&str> = profiles.sub_clusters.iter().map(|(name, _)| &**name).collect();
        assert_eq!(named, ["cpu", "gpu"]);
        for (scores, said) in [
            (&[("most-allocatd", 1)][..], "no plugin is named \"most-allocatd\""),
            (&[("most-allocated", 0)], "weighs 0: not in 1..=1000000"),
            (&[], "there is no score in it"),
        ] {
            let wrong = scored(scores).core().unwrap_err();
            assert!(wrong.to_string().contains("sub-cluster `gpu`"), "{wrong}");
            assert!(wrong.source.to_string().contains(said), "{wrong:?}");
        }
    }
}
