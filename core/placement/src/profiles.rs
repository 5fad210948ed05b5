//! The profiles of a scheduler: by name, and by what chooses them.

use std::{collections::BTreeMap, sync::Arc};

use godel_cluster::{Cluster, SubClusterId};
use godel_domain::{
    defaults,
    names::{self, BadName},
    unit::WorkloadClass,
};
use godel_framework::{
    Profile,
    profile::{BUILT_IN, ProfileError, ProfileSpec},
};

/// A profile by its place in a scheduler's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProfileId(u16);

/// The profile that a unit is placed by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProfileChoice {
    /// It is configured.
    Known(ProfileId),
    /// The unit names one that is not: no node takes it.
    Unknown(Arc<str>),
}

impl ProfileChoice {
    /// The first profile of every list.
    pub(crate) const FIRST: Self = Self::Known(ProfileId(0));
}

/// Which profiles there are, and what chooses one of them for units that name none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileSettings {
    /// Profiles by name, beside the built-in ones or in their place.
    pub own: BTreeMap<String, ProfileSpec>,
    /// Names of profiles by workload class, where they are not the classes' defaults.
    pub by_class: Vec<(WorkloadClass, String)>,
    /// Names of profiles by sub-cluster.
    pub by_sub_cluster: BTreeMap<String, String>,
}

/// What has a profile for units that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileChooser {
    /// A workload class.
    Class(WorkloadClass),
    /// A sub-cluster.
    SubCluster(String),
}

/// Profiles that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProfiles {
    /// No unit could name the profile.
    #[error("`{name}` cannot be the name of a profile: {source}")]
    Name {
        /// As given.
        name: String,
        /// What is wrong with it.
        source: BadName,
    },
    /// A profile is wrong by itself.
    #[error("the profile `{name}` is not valid")]
    Profile {
        /// Its name.
        name: String,
        /// What is wrong with it.
        source: ProfileError,
    },
    /// A class or a sub-cluster has a profile that does not exist.
    #[error("there is no profile `{name}`; there are {}", known.join(", "))]
    Unknown {
        /// The class or sub-cluster.
        chooser: ProfileChooser,
        /// The name of the profile.
        name: String,
        /// Names that exist.
        known: Vec<String>,
    },
}

/// The profiles of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiles {
    all: Vec<(String, Profile)>,
    by_class: Vec<(WorkloadClass, ProfileId)>,
    /// The first integers of sub-clusters are those of this list, in its order.
    by_sub_cluster: Vec<(String, ProfileId)>,
}

impl Default for Profiles {
    fn default() -> Self {
        Self::new(&ProfileSettings::default()).expect("the built-in profiles are valid")
    }
}

impl Profiles {
    /// Builds all profiles.
    ///
    /// # Errors
    /// The first profile that is not valid, or the first class or sub-cluster whose profile does not exist.
    pub fn new(settings: &ProfileSettings) -> Result<Self, BadProfiles> {
        for name in settings.own.keys() {
            let checked = names::name(name, names::NAMESPACE_LEN_MAX);
            checked.map_err(|source| BadProfiles::Name { name: name.clone(), source })?;
        }
        let mut specs: BTreeMap<&str, ProfileSpec> =
            BUILT_IN.iter().map(|profile| (profile.name, ProfileSpec::of_scores(profile.scores))).collect();
        specs.extend(settings.own.iter().map(|(name, spec)| (name.as_str(), spec.clone())));
        let build = |(name, spec): (&str, ProfileSpec)| match Profile::new(&spec) {
            Ok(profile) => Ok((name.to_owned(), profile)),
            Err(source) => Err(BadProfiles::Profile { name: name.to_owned(), source }),
        };
        let mut profiles = Self {
            all: specs.into_iter().map(build).collect::<Result<_, _>>()?,
            by_class: Vec::new(),
            by_sub_cluster: Vec::new(),
        };
        for line in &defaults::TABLE {
            let own = settings.by_class.iter().find(|(class, _)| *class == line.class);
            let name = own.map_or(line.profile, |(_, name)| name);
            let id = profiles.chosen(name, || ProfileChooser::Class(line.class))?;
            profiles.by_class.push((line.class, id));
        }
        for (sub_cluster, name) in &settings.by_sub_cluster {
            let id = profiles.chosen(name, || ProfileChooser::SubCluster(sub_cluster.clone()))?;
            profiles.by_sub_cluster.push((sub_cluster.clone(), id));
        }
        Ok(profiles)
    }

    fn chosen(&self, name: &str, chooser: impl FnOnce() -> ProfileChooser) -> Result<ProfileId, BadProfiles> {
        let unknown = || BadProfiles::Unknown {
            chooser: chooser(),
            name: name.to_owned(),
            known: self.all.iter().map(|(name, _)| name.clone()).collect(),
        };
        self.find(name).ok_or_else(unknown)
    }

    fn find(&self, name: &str) -> Option<ProfileId> {
        let at = self.all.iter().position(|(known, _)| known == name)?;
        u16::try_from(at).ok().map(ProfileId)
    }

    /// Interns the sub-clusters that have a profile, and lets the cluster count what some profile reads. To be called before all
    /// else.
    pub fn intern(&self, cluster: &mut Cluster) {
        if self.all.iter().any(|(_, profile)| profile.counts_work()) {
            cluster.taken_mut().work.begin();
        }
        for (idx, (name, _)) in self.by_sub_cluster.iter().enumerate() {
            let id = cluster.catalogue_mut().sub_cluster(name);
            debug_assert_eq!(id.idx(), idx, "each name once, and before all others");
        }
    }

    /// Whether some profile splits nodes for units without topology keys as well.
    pub(crate) fn group_all(&self) -> bool {
        self.all.iter().any(|(_, profile)| profile.groupers().is_for_all())
    }

    /// The profile of a unit: the one that it names, else that of its sub-cluster, else that of its class.
    pub(crate) fn choose(
        &self,
        name: &str,
        class: WorkloadClass,
        sub_cluster: Option<SubClusterId>,
    ) -> ProfileChoice {
        if !name.is_empty() {
            let known = self.find(name).map(ProfileChoice::Known);
            return known.unwrap_or_else(|| ProfileChoice::Unknown(name.into()));
        }
        let of_sub_cluster = sub_cluster.and_then(|id| self.by_sub_cluster.get(id.idx()));
        if let Some((_, id)) = of_sub_cluster {
            return ProfileChoice::Known(*id);
        }
        let of_class = self.by_class.iter().find(|(known, _)| *known == class);
        of_class.map_or(ProfileChoice::FIRST, |(_, id)| ProfileChoice::Known(*id))
    }

    /// Returns a profile; any of them for a name that is not configured.
    pub(crate) fn of(&self, choice: &ProfileChoice) -> &Profile {
        let idx = match choice {
            ProfileChoice::Known(ProfileId(idx)) => usize::from(*idx),
            ProfileChoice::Unknown(_) => 0,
        };
        &self.all[idx].1
    }

    /// Why a unit waits whose profile is not configured.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let known: Vec<&str> = self.all.iter().map(|(name, _)| &**name).collect();
        format!("the scheduler has no profile `{name}`; it has {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(own: &[(&str, &[(&str, u32)])]) -> ProfileSettings {
        let own = own.iter().map(|(name, scores)| ((*name).to_owned(), ProfileSpec::of_scores(scores)));
        ProfileSettings { own: own.collect(), ..ProfileSettings::default() }
    }

    fn name(profiles: &Profiles, choice: &ProfileChoice) -> String {
        match choice {
            ProfileChoice::Known(ProfileId(idx)) => profiles.all[usize::from(*idx)].0.clone(),
            ProfileChoice::Unknown(name) => format!("no {name}"),
        }
    }

    #[test]
    fn unit_then_sub_cluster_then_class() {
        let settings = ProfileSettings {
            by_class: vec![(WorkloadClass::Service, "gpu".to_owned())],
            by_sub_cluster: BTreeMap::from([("a".to_owned(), "most-allocated".to_owned())]),
            ..settings(&[("gpu", &[("device-stranding", 1)])])
        };
        let profiles = Profiles::new(&settings).unwrap();
        let mut cluster = Cluster::new();
        profiles.intern(&mut cluster);
        let [a, b] = ["a", "b"].map(|name| Some(cluster.catalogue_mut().sub_cluster(name)));
        for (own, class, sub_cluster, expected) in [
            ("", WorkloadClass::Service, None, "gpu"),
            ("", WorkloadClass::Service, b, "gpu"),
            ("", WorkloadClass::Service, a, "most-allocated"),
            ("", WorkloadClass::Stateful, None, "least-allocated"),
            ("", WorkloadClass::Batch, None, "most-allocated"),
            ("least-allocated", WorkloadClass::Service, a, "least-allocated"),
            ("fast", WorkloadClass::Service, a, "no fast"),
        ] {
            assert_eq!(name(&profiles, &profiles.choose(own, class, sub_cluster)), expected);
        }
        assert_eq!(
            profiles.unknown("fast"),
            "the scheduler has no profile `fast`; it has gpu, least-allocated, most-allocated"
        );
    }

    #[test]
    fn a_configured_profile_replaces_a_built_in_one() {
        let own = Profiles::new(&settings(&[("most-allocated", &[("most-allocated", 3)])])).unwrap();
        assert_eq!(own.all.len(), BUILT_IN.len());
        assert_ne!(own, Profiles::default());
    }

    #[test]
    fn bad_profiles_are_refused_with_what_is_allowed() {
        let bad = Profiles::new(&settings(&[("gpu", &[("luck", 1)])])).unwrap_err();
        let BadProfiles::Profile { name, source } = &bad else { panic!("{bad}") };
        assert_eq!((name.as_str(), source.key.as_str()), ("gpu", "scores[0].name"));
        let bad = Profiles::new(&settings(&[("GPU", &[("spread", 1)])])).unwrap_err();
        assert!(bad.to_string().starts_with("`GPU` cannot be the name of a profile: "), "{bad}");
        let by_class = vec![(WorkloadClass::Gang, "gpu".to_owned())];
        let unknown = Profiles::new(&ProfileSettings { by_class, ..ProfileSettings::default() }).unwrap_err();
        assert!(matches!(
            &unknown,
            BadProfiles::Unknown { chooser: ProfileChooser::Class(WorkloadClass::Gang), .. }
        ));
        assert_eq!(
            unknown.to_string(),
            "there is no profile `gpu`; there are least-allocated, most-allocated"
        );
    }
}
