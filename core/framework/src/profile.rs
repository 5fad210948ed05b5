//! Profiles, which select and weigh plugins.

mod groupers;

use std::{cmp::Reverse, fmt, sync::Arc};

use godel_base::ids::NodeId;
use godel_cluster::{Cluster, NodeBlocks, Unfit, labels::TaintVerdict};
use godel_domain::refusals::WaitReason;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ask::Ask,
    plugins::topology_domain::TopologyDomain,
    point::{AnyFilter, AnyLocator, AnyScore, Gate, RestsOn, ScoreInput},
    registry::{CANDIDATE_COSTS, CandidateSort, FILTERS, LOCATORS, SCORES, VICTIM_RULES},
};

pub use self::groupers::Groupers;

/// Heaviest score of a profile: sums of all of them are far from overflowing.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// How alike two names must be, from 0 to 1, for one to be suggested for the other.
const NEAR: f64 = 0.6;

/// A profile that is there without being configured.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// The name by which units, classes and sub-clusters choose it.
    pub name: &'static str,
    /// Its scores and their weights.
    pub scores: &'static [(&'static str, u32)],
    /// Why these.
    pub reason: &'static str,
}

/// The profiles that are there without being configured. A configured profile of the same name replaces one of them.
///
/// A full preference for a node or a domain weighs 100 times as much as packing or spreading, so that only preferences of little weight
/// beside others give way to these. Stranded devices weigh 1,000 times as much as packing or spreading: one whole point of either is worth
/// about a sixth of a thousandth of a device, so they decide between places that strand alike.
pub const BUILT_IN: [BuiltIn; 2] = [
    BuiltIn {
        name: "least-allocated",
        scores: &[
            ("device-stranding", 1_000),
            ("node-affinity", 100),
            ("unit-preference", 100),
            ("spread-preference", 100),
            ("least-allocated", 1),
            ("spread", 1),
        ],
        reason: "spreads: the loss of a node costs a service few replicas, and latency stays low; stranded devices take \
                 precedence, because they cannot be got back without moving what runs",
    },
    BuiltIn {
        name: "most-allocated",
        scores: &[
            ("device-stranding", 1_000),
            ("node-affinity", 100),
            ("unit-preference", 100),
            ("spread-preference", 100),
            ("most-allocated", 1),
        ],
        reason: "packs: whole nodes stay free for large work; stranded devices take precedence",
    },
];

/// How far a search for victims looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum PreemptionMode {
    /// At every node: the cheapest victims are found.
    #[default]
    Best,
    /// At the first few nodes on which enough can leave.
    Fast,
}

impl TryFrom<String> for PreemptionMode {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name);
            let meant = did_you_mean(&name, &known);
            format!("there is no preemption mode `{name}`{meant}; there are {}", known.join(", "))
        })
    }
}

impl From<PreemptionMode> for &'static str {
    fn from(mode: PreemptionMode) -> Self {
        mode.name()
    }
}

impl PreemptionMode {
    /// Every mode.
    pub const ALL: [Self; 2] = [Self::Best, Self::Fast];

    /// As the configuration says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Best => "best",
            Self::Fast => "fast",
        }
    }

    /// What it does, as a sentence for the docs.
    pub fn doc(self) -> &'static str {
        match self {
            Self::Best => {
                "Victims are looked for on every node that the unit may use: the cheapest are found."
            }
            Self::Fast => {
                "Victims are looked for on the first few nodes on which enough could leave: the cheapest of these are taken."
            }
        }
    }
}

/// A profile as the configuration gives it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileSpec {
    /// Names of the filters; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<String>>,
    /// The scores; at least one.
    #[serde(default)]
    pub scores: Vec<ScoreSpec>,
    /// The groupers; absent: those by topology keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groupers: Option<Vec<GrouperSpec>>,
    /// How units of this profile look for victims.
    #[serde(default, skip_serializing_if = "is_best")]
    pub preemption: PreemptionMode,
    /// Names of the rules for victims; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim_rules: Option<Vec<String>>,
    /// Names of the costs by which places with victims are compared first; the others follow in their own order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidate_sort: Vec<String>,
}

fn is_best(mode: &PreemptionMode) -> bool {
    *mode == PreemptionMode::Best
}

/// A grouper of a profile as the configuration gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrouperSpec {
    /// The name of the plugin.
    pub name: String,
    /// The arguments of the plugin; null: its defaults.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub args: Value,
}

/// A score of a profile as the configuration gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreSpec {
    /// The name of the plugin.
    pub name: String,
    /// 1 to [`WEIGHT_MAX`].
    #[serde(default = "one")]
    pub weight: u32,
    /// The arguments of the plugin; null: its defaults.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub args: Value,
}

const fn one() -> u32 {
    1
}

impl ProfileSpec {
    /// Returns a profile of scores by name and weight, with all filters and default arguments.
    pub fn of_scores(scores: &[(&str, u32)]) -> Self {
        let score = |(name, weight): &(&str, u32)| ScoreSpec {
            name: (*name).to_owned(),
            weight: *weight,
            args: Value::Null,
        };
        Self { scores: scores.iter().map(score).collect(), ..Self::default() }
    }
}

/// A profile that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {fault}")]
pub struct ProfileError {
    /// The key within the profile, as `scores[1].name`.
    pub key: String,
    /// What is wrong there.
    pub fault: ProfileFault,
}

/// What is wrong at a key of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileFault {
    /// No plugin of this kind has this name.
    #[error("there is no {kind} `{name}`{}; there are {}", did_you_mean(name, allowed), allowed.join(", "))]
    Unknown {
        /// `filter`, `score`, `grouper`, `victim rule` or `candidate cost`.
        kind: &'static str,
        /// As given.
        name: String,
        /// The names that there are.
        allowed: Vec<&'static str>,
    },
    /// The binder checks it in any case: a profile without it would only collect rejections.
    #[error("the {kind} `{name}` cannot be left out, because the binder checks it; allowed is the whole list: {}", allowed.join(", "))]
    Missing {
        /// `filter` or `victim rule`.
        kind: &'static str,
        /// What the list leaves out.
        name: &'static str,
        /// The names that there are.
        allowed: Vec<&'static str>,
    },
    /// It would not tell one node from another, or overflow.
    #[error("{0} is not allowed; a weight is 1 to {WEIGHT_MAX}")]
    Weight(u32),
    /// Two entries are of one plugin.
    #[error("duplicate {kind} `{name}`")]
    Duplicate {
        /// `score`, `grouper` or `candidate cost`.
        kind: &'static str,
        /// As given.
        name: String,
    },
    /// The plugin refuses its arguments.
    #[error("{0}")]
    Args(String),
    /// All nodes would be alike.
    #[error("a profile has one score at least; there are {}", .0.join(", "))]
    NoScore(Vec<&'static str>),
}

/// A known name that is near to an unknown one, as a question; empty if none is near.
pub(crate) fn did_you_mean(name: &str, known: &[&str]) -> String {
    let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(name, known);
    let nearest = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|known| likeness(known) > NEAR) {
        Some(nearest) => format!(" (did you mean `{nearest}`?)"),
        None => String::new(),
    }
}

impl ProfileFault {
    fn at(self, key: impl Into<String>) -> ProfileError {
        ProfileError { key: key.into(), fault: self }
    }
}

/// A selection of plugins.
#[derive(Clone)]
pub struct Profile {
    filters: Vec<&'static dyn AnyFilter>,
    scores: Vec<(Arc<dyn AnyScore>, i64)>,
    groupers: Groupers,
    preemption: PreemptionMode,
    candidate_sort: CandidateSort,
}

impl Profile {
    /// Selects and weighs plugins.
    ///
    /// # Errors
    /// The first key that is wrong: a name that the registry does not know, a filter or victim rule left out that the binder checks
    /// anyway, a weight out of range, arguments that a plugin refuses, or no score at all.
    pub fn new(spec: &ProfileSpec) -> Result<Self, ProfileError> {
        if let Some(filters) = &spec.filters {
            let all = FILTERS.iter().map(|filter| filter.name()).collect();
            check_complete("filters", "filter", filters, all)?;
        }
        if let Some(rules) = &spec.victim_rules {
            let all = VICTIM_RULES.iter().map(|rule| rule.name).collect();
            check_complete("victim_rules", "victim rule", rules, all)?;
        }
        let candidate_sort = candidate_sort(&spec.candidate_sort)?;
        let groupers = Groupers::new(spec.groupers.as_deref())?;
        let names = || SCORES.iter().map(|score| score.name).collect();
        let mut scores: Vec<(Arc<dyn AnyScore>, i64)> = Vec::with_capacity(spec.scores.len());
        for (idx, ScoreSpec { name, weight, args }) in spec.scores.iter().enumerate() {
            let key = |field: &str| format!("scores[{idx}].{field}");
            let Some(entry) = SCORES.iter().find(|score| score.name == name) else {
                let unknown = ProfileFault::Unknown { kind: "score", name: name.clone(), allowed: names() };
                return Err(unknown.at(key("name")));
            };
            if scores.iter().any(|(other, _)| other.name() == entry.name) {
                return Err(ProfileFault::Duplicate { kind: "score", name: name.clone() }.at(key("name")));
            }
            if !(1..=WEIGHT_MAX).contains(weight) {
                return Err(ProfileFault::Weight(*weight).at(key("weight")));
            }
            let score = entry.build(args).map_err(|wrong| {
                let key = wrong.field.map_or_else(|| key("args"), |field| key(&format!("args.{field}")));
                ProfileFault::Args(wrong.reason).at(key)
            })?;
            scores.push((score, i64::from(*weight)));
        }
        if scores.is_empty() {
            return Err(ProfileFault::NoScore(names()).at("scores"));
        }
        // In registry order, whatever the order of names: it decides whom a refused node is counted for.
        let (filters, preemption) = (FILTERS.to_vec(), spec.preemption);
        Ok(Self { filters, scores, groupers, preemption, candidate_sort })
    }

    /// Returns the groupers, which say in which groups of nodes first replicas are tried.
    pub fn groupers(&self) -> &Groupers {
        &self.groupers
    }

    /// How its units look for victims.
    pub fn preemption(&self) -> PreemptionMode {
        self.preemption
    }

    /// The order in which its units compare places for which running units leave.
    pub fn candidate_sort(&self) -> CandidateSort {
        self.candidate_sort
    }

    /// Whether one of its scores reads the running units by kind of work.
    pub fn counts_work(&self) -> bool {
        self.scores.iter().any(|(score, _)| score.counts_work())
    }

    /// Resolves what a template asks for, as the cluster is now; cheap while the cluster knows the same labels and taints. To be
    /// called before the nodes are looked at, by the same profile each time.
    pub fn prepare(&self, cluster: &Cluster, ask: &mut Ask) {
        let version = cluster.catalogue().labels().version();
        if ask.labels_version == version {
            return;
        }
        ask.labels_version = version;
        ask.verdicts = cluster.catalogue().labels().verdicts(&ask.requirements().tolerations).into();
        let preferred = ask.requirements().node_affinity.preferred.iter();
        ask.preferred = preferred
            .map(|one| (i64::from(one.weight), cluster.catalogue().labels().resolve(&one.term)))
            .collect();
        let concerned = self.scores.iter().enumerate().filter(|(_, (score, _))| score.concerns(ask));
        ask.scores = concerned.fold(0, |bits, (at, _)| bits | 1 << at);
        // The last filters of the registry refuse most often: they come first.
        let judging = self.filters.iter().rev().filter(|filter| filter.rests_on() != RestsOn::Room);
        let nowhere = ask.is_nowhere().then(|| Arc::new(Nowhere) as Arc<dyn Gate>);
        ask.gates =
            nowhere.into_iter().chain(judging.filter_map(|filter| filter.prepare(cluster, ask))).collect();
    }

    /// The locator that a scan uses for a template: that of the domain in which the unit is tried, else of those that concern it
    /// the one with the fewest blocks.
    pub fn locator(&self, cluster: &Cluster, ask: &Ask) -> Option<&'static dyn AnyLocator> {
        if ask.within().is_some() {
            return Some(&TopologyDomain);
        }
        let n_blocks = |locator: &&'static dyn AnyLocator| Some(locator.locate(cluster, ask)?.len());
        let concerned = LOCATORS.into_iter().filter_map(|locator| Some((n_blocks(&locator)?, locator)));
        concerned.min_by_key(|(n_blocks, _)| *n_blocks).map(|(_, locator)| locator)
    }

    /// The blocks of nodes that a template may use.
    pub fn locate<'a>(&self, cluster: &'a Cluster, ask: &'a Ask) -> NodeBlocks<'a> {
        if ask.is_nowhere() {
            return Some(&[]);
        }
        self.locator(cluster, ask)?.locate(cluster, ask)
    }

    /// Whether a node passes all filters, with the plugin and the reason if not.
    ///
    /// # Errors
    /// The first filter that refuses, and why.
    pub fn check(&self, cluster: &Cluster, ask: &Ask, node: NodeId) -> Result<(), (&'static str, Unfit)> {
        for filter in &self.filters {
            filter.check(cluster, ask.on_node(), node).map_err(|refusal| (filter.name(), refusal))?;
        }
        Ok(())
    }

    /// The rank of a place that passed all filters.
    #[inline]
    pub fn rank(&self, place: &ScoreInput<'_>, tie: u32) -> NodeScore {
        let soft_taints = match place.ask.verdict(place.cluster.nodes().node_taints(place.idx)) {
            TaintVerdict::Soft(taints) => Reverse(taints),
            TaintVerdict::Refused => Reverse(u32::MAX),
        };
        let (mut score, mut left) = (0, place.ask.scores);
        while left != 0
            && let Some((one, weight)) = self.scores.get(left.trailing_zeros() as usize)
        {
            score += one.score(place).saturating_mul(*weight);
            left &= left - 1;
        }
        NodeScore { soft_taints, score, tie }
    }
}

/// Refuses a list of plugins that names an unknown one, or leaves out one that the binder checks in any case.
fn check_complete(
    key: &str,
    kind: &'static str,
    names: &[String],
    allowed: Vec<&'static str>,
) -> Result<(), ProfileError> {
    if let Some(idx) = names.iter().position(|name| !allowed.contains(&name.as_str())) {
        let unknown = ProfileFault::Unknown { kind, name: names[idx].clone(), allowed };
        return Err(unknown.at(format!("{key}[{idx}]")));
    }
    match allowed.iter().copied().find(|known| !names.iter().any(|name| name == known)) {
        Some(name) => Err(ProfileFault::Missing { kind, name, allowed }.at(key)),
        None => Ok(()),
    }
}

/// The order that begins with the costs of some names.
fn candidate_sort(names: &[String]) -> Result<CandidateSort, ProfileError> {
    const KIND: &str = "candidate cost";
    let mut first: Vec<usize> = Vec::with_capacity(names.len());
    for (idx, name) in names.iter().enumerate() {
        let key = || format!("candidate_sort[{idx}]");
        let Some(known) = CANDIDATE_COSTS.iter().position(|cost| cost.name == name) else {
            let allowed = CANDIDATE_COSTS.iter().map(|cost| cost.name).collect();
            return Err(ProfileFault::Unknown { kind: KIND, name: name.clone(), allowed }.at(key()));
        };
        if first.contains(&known) {
            return Err(ProfileFault::Duplicate { kind: KIND, name: name.clone() }.at(key()));
        }
        first.push(known);
    }
    Ok(CandidateSort::beginning_with(&first))
}

/// The gate of a template that no node takes.
#[derive(Debug)]
struct Nowhere;

impl Gate for Nowhere {
    fn name(&self) -> &'static str {
        WaitReason::Profile.name()
    }

    fn passes(&self, _cluster: &Cluster, _idx: usize) -> bool {
        false
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filters: Vec<_> = self.filters.iter().map(|filter| filter.name()).collect();
        f.debug_struct("Profile")
            .field("filters", &filters)
            .field("scores", &self.scores)
            .field("groupers", &self.groupers)
            .field("preemption", &self.preemption)
            .field("candidate_sort", &self.candidate_sort.names())
            .finish()
    }
}

impl PartialEq for Profile {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Eq for Profile {}

/// Order of nodes that passed all filters: the greatest is taken. Field order is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeScore {
    /// Soft taints (`PreferNoSchedule`) not tolerated: fewer first.
    pub soft_taints: Reverse<u32>,
    /// Weighted sum of the profile's scores.
    pub score: i64,
    /// Seeded hash of node and unit.
    pub tie: u32,
}

impl NodeScore {
    /// One number in the same order: comparing it takes two instructions.
    #[inline]
    pub fn packed(self) -> u128 {
        let score = self.score.cast_unsigned() ^ (1 << 63);
        u128::from(!self.soft_taints.0) << 96 | u128::from(score) << 32 | u128::from(self.tie)
    }

    /// Returns the number of soft taints in a packed score.
    #[inline]
    pub fn soft_taints_of(packed: u128) -> u32 {
        !u32::try_from(packed >> 96).unwrap_or(0)
    }
}
