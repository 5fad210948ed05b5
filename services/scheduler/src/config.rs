//! Configuration of a scheduler.

use std::collections::BTreeMap;

use godel_core_scheduler as scheduler;
use godel_domain::{defaults, sub_cluster, unit::WorkloadClass};
use godel_framework::profile::{Profile, ProfileError, ProfileSpec};
use godel_kit::config::{
    BadKey, ClientConfig, HumanDuration, IdentityConfig, LeaseConfig, ServerConfig, TelemetryConfig,
};
use godel_placement::profiles::{BadProfiles, ProfileChooser, ProfileSettings, Profiles};
use serde::{Deserialize, Serialize};

godel_kit::section! {
    /// A scheduler.
    pub struct Config {
        /// Name of the scheduler: unique, registered as `scheduler/<name>`. The dispatcher assigns nodes by this
        /// name. Empty: the name of the host.
        pub name: String = String::new(),
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
        /// Profiles by name, in a file: `{gpu: {scores: [{name: device-stranding, weight: 1000}, {name: most-allocated,
        /// weight: 1, args: {resources: {gpu: 3}}}]}}`. `filters` lists filters by name; all by default. `preemption` is
        /// `best` (default: the cheapest victims of all nodes) or `fast` (of the first few nodes). `candidate_sort` lists
        /// the costs by which places with victims are compared first, and `victim_rules` the rules for victims; all by
        /// default. `groupers` lists the groupers, as `[{name: unit-topology, args: {order: free-capacity}}]`; by default those
        /// by topology keys. A profile named `least-allocated` or `most-allocated` replaces the built-in one. Every scheduler
        /// should have the same profiles. See docs/plugins.md.
        pub profiles: BTreeMap<String, CheckedProfile> = BTreeMap::new(),
        /// Longest pause before a stream is opened again.
        pub reconnect_max: HumanDuration = HumanDuration::from_millis(500),
        /// For tests: `name[:n][,…]` aborts the process at the n-th hit of a crash point. Empty: no crash point is
        /// armed.
        pub crash_points: String = String::new(),
    }
    sections {
        /// What chooses a profile for units that name none.
        pub profile_of: ProfileOfConfig,
        /// The gRPC server.
        pub server: ServerConfig = ServerConfig::on_port(7703),
        /// Clients of other services.
        pub client: ClientConfig,
        /// The certificate of the process.
        pub identity: IdentityConfig,
        /// The lease of the registration.
        pub lease: LeaseConfig,
        /// Logs.
        pub telemetry: TelemetryConfig,
    }
}

godel_kit::section! {
    /// What chooses a profile for units that name none.
    pub struct ProfileOfConfig {
        /// Names of profiles by workload class, as `{service: least-allocated}`. Default: the table in docs/lifecycle.md.
        pub class: BTreeMap<ClassName, String> = BTreeMap::new(),
        /// Names of profiles by sub-cluster, as `{gpu: most-allocated}`. A sub-cluster comes before the class. See
        /// docs/sub-clusters.md.
        pub sub_cluster: BTreeMap<String, String> = BTreeMap::new(),
    }
}

/// A profile that is valid by itself: a wrong one is refused with the file that it is from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ProfileSpec", into = "ProfileSpec")]
pub struct CheckedProfile(ProfileSpec);

impl TryFrom<ProfileSpec> for CheckedProfile {
    type Error = ProfileError;

    fn try_from(spec: ProfileSpec) -> Result<Self, ProfileError> {
        Profile::new(&spec)?;
        Ok(Self(spec))
    }
}

impl From<CheckedProfile> for ProfileSpec {
    fn from(profile: CheckedProfile) -> Self {
        profile.0
    }
}

/// A workload class by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClassName(WorkloadClass);

impl TryFrom<String> for ClassName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let names = || defaults::TABLE.iter().map(|line| (defaults::class_name(line.class), line.class));
        let found = names().find(|(known, _)| *known == name);
        found.map(|(_, class)| Self(class)).ok_or_else(|| {
            let known: Vec<&str> = names().map(|(known, _)| known).collect();
            format!("there is no workload class `{name}`; there are {}", known.join(", "))
        })
    }
}

impl From<ClassName> for String {
    fn from(class: ClassName) -> Self {
        defaults::class_name(class.0).to_owned()
    }
}

/// Configured profiles that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`scheduler.{key}`: {reason}")]
pub struct BadProfile {
    key: String,
    reason: String,
}

impl From<BadProfiles> for BadProfile {
    fn from(bad: BadProfiles) -> Self {
        let reason = bad.to_string();
        match bad {
            BadProfiles::Name { name, .. } => Self { key: format!("profiles.{name}"), reason },
            BadProfiles::Profile { name, source: ProfileError { key, fault } } => {
                Self { key: format!("profiles.{name}.{key}"), reason: fault.to_string() }
            }
            BadProfiles::Unknown { chooser: ProfileChooser::Class(class), .. } => {
                Self { key: format!("profile_of.class.{}", defaults::class_name(class)), reason }
            }
            BadProfiles::Unknown { chooser: ProfileChooser::SubCluster(name), .. } => {
                Self { key: format!("profile_of.sub_cluster.{name}"), reason }
            }
        }
    }
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
            profiles: self.profiles()?,
            sub_cluster_key: self.sub_cluster_key.clone(),
        })
    }

    /// Whether all profiles that are chosen exist.
    ///
    /// # Errors
    /// The first key that names one that does not.
    pub fn check(&self) -> Result<(), BadKey> {
        self.profiles()
            .map(drop)
            .map_err(|BadProfile { key, reason }| BadKey { key: format!("scheduler.{key}"), reason })
    }

    fn profiles(&self) -> Result<Profiles, BadProfile> {
        let own = self.profiles.iter().map(|(name, profile)| (name.clone(), profile.0.clone()));
        let settings = ProfileSettings {
            own: own.collect(),
            by_class: self.profile_of.class.iter().map(|(class, name)| (class.0, name.clone())).collect(),
            by_sub_cluster: self.profile_of.sub_cluster.clone(),
        };
        Ok(Profiles::new(&settings)?)
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
    use std::error::Error as _;

    use godel_kit::config::Loader;

    use super::*;

    #[test]
    fn seeds_differ_by_name() {
        let named = |name: &str| Config { name: name.to_owned(), ..Config::default() };
        assert_ne!(named("s1").effective_seed(), named("s2").effective_seed());
        assert_eq!(Config { seed: 7, ..named("s1") }.effective_seed(), 7);
        assert_eq!(named("s1").core().unwrap().backoff_ms_max, 10_000);
    }

    fn load(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("godel.yaml");
        std::fs::write(&path, text).unwrap();
        Loader::new().file(path).load().map_err(|error| {
            let cause = error.source().map(ToString::to_string).unwrap_or_default();
            format!("{error}: {cause}")
        })
    }

    #[test]
    fn profiles_and_what_chooses_them_are_read() {
        let config = load(
            "profiles:\n  gpu: {scores: [{name: device-stranding, weight: 5}, {name: most-allocated, args: {resources: {gpu: 3}}}]}\n\
             profile_of: {class: {training: gpu}, sub_cluster: {gpu: gpu, web: least-allocated}}\n",
        );
        let profiles = config.unwrap().core().unwrap().profiles;
        assert_ne!(profiles, Profiles::default());
    }

    #[test]
    fn a_bad_profile_is_refused_with_file_key_and_what_is_allowed() {
        for (text, said) in [
            (
                "profiles: {gpu: {scores: [{name: most-allocatd}]}}",
                "`scores[0].name`: there is no score `most-allocatd` (did you mean `most-allocated`?); there are balanced-allocation, \
                 complementary, cpu-memory-ratio, \
                 device-stranding, dominant-fit, least-allocated, load-aware, most-allocated, node-affinity, spread, spread-preference, \
                 unit-preference",
            ),
            (
                "profiles: {gpu: {scores: [{name: spread, weight: 0}]}}",
                "`scores[0].weight`: 0 is not allowed",
            ),
            (
                "profiles: {gpu: {scores: [{name: spread, args: {n: 1}}]}}",
                "`scores[0].args.n`: `spread` has no argument `n`; it has none",
            ),
            (
                "profiles: {gpu: {scores: [{name: load-aware, args: {cpus: 1}}]}}",
                "`scores[0].args.cpus`: `load-aware` has no argument `cpus` (did you mean `cpu`?); it has percentile, cpu, memory, network",
            ),
            (
                "profiles: {gpu: {scores: [{name: load-aware, args: {cpu: 1, memory: -1}}]}}",
                "expected u32; allowed is: whole number",
            ),
            (
                "profiles: {gpu: {scores: [{name: load-aware, args: {cpu: 0, memory: 0}}]}}",
                "`scores[0].args`: `cpu`, `memory` or `network` is above 0",
            ),
            ("profiles: {gpu: {scores: []}}", "`scores`: a profile has one score at least"),
            (
                "profiles: {gpu: {score: []}}",
                "unknown field `score`, expected one of `filters`, `scores`, `groupers`, `preemption`, `victim_rules`, \
                 `candidate_sort`",
            ),
            (
                "profiles: {gpu: {scores: [{name: spread}], groupers: [{name: resource-bukket}]}}",
                "`groupers[0].name`: there is no grouper `resource-bukket` (did you mean `resource-bucket`?); there are unit-topology, \
                 homogeneous, resource-bucket",
            ),
            (
                "profiles: {gpu: {scores: [{name: spread}], groupers: [{name: resource-bucket, args: {buckets: 1}}]}}",
                "`groupers[0].args`: `buckets`: 1 is not allowed; it is 2 to 8",
            ),
            (
                "profiles: {gpu: {scores: [{name: spread}], preemption: quick}}",
                "there is no preemption mode `quick`; there are best, fast",
            ),
            (
                "profiles: {gpu: {scores: [{name: spread}], candidate_sort: [fewest-victim]}}",
                "`candidate_sort[0]`: there is no candidate cost `fewest-victim` (did you mean `fewest-victims`?); there are no-victims",
            ),
            (
                "profiles: {gpu: {scores: [{name: spread}], victim_rules: [min-run]}}",
                "`victim_rules`: the victim rule `not-leaving` cannot be left out, because the binder checks it; allowed is the whole list: \
                 not-leaving, ",
            ),
            ("profile_of: {class: {gan: gpu}}", "there is no workload class `gan`; there are service, "),
        ] {
            let wrong = load(text).unwrap_err();
            assert!(wrong.contains("godel.yaml") && wrong.contains(said), "{text}: {wrong}");
            assert!(wrong.contains("profile"), "the key: {wrong}");
        }
    }

    #[test]
    fn what_is_wrong_has_a_line() {
        for (wrong, line) in [
            ("{name: most-allocatd}", 5),
            ("{name: spread, weight: 0}", 5),
            ("{name: spread, wait: 1}", 5),
            ("{name: spread, weight: many}", 5),
            ("{name: load-aware,\n           args: {\n             cpus: 1}}", 7),
        ] {
            let text = format!(
                "profiles:\n  gpu:\n    scores:\n      - {{name: device-stranding}}\n      - {wrong}\nsurplus: 3\n"
            );
            let said = load(&text).unwrap_err();
            assert!(said.contains(&format!("godel.yaml:{line}: ")), "{wrong}: {said}");
        }
        let groupers = "profiles:\n  gpu:\n    scores: [{name: spread}]\n    groupers:\n      - {name: unit-topology}\n      - name: resource-bucket\n        args:\n          bucket: 3\n";
        let said = load(groupers).unwrap_err();
        assert!(said.contains("godel.yaml:8: "), "{said}");
        let said = load("surplus: 3\nprofile_of:\n  class:\n    gan: gpu\n").unwrap_err();
        assert!(said.contains("godel.yaml:"), "{said}");
    }

    #[test]
    fn a_profile_that_does_not_exist_is_refused_with_its_key() {
        for (text, key) in [
            ("profile_of: {class: {gang: fast}}", "class.gang"),
            ("profile_of: {sub_cluster: {gpu: fast}}", "sub_cluster.gpu"),
        ] {
            let wrong = load(text).unwrap().core().unwrap_err().to_string();
            let said = "there is no profile `fast`; there are least-allocated, most-allocated";
            assert_eq!(wrong, format!("`scheduler.profile_of.{key}`: {said}"));
        }
    }
}
