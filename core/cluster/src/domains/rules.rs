//! The terms of a unit, resolved to counters.

use godel_base::ids::UnitId;
use godel_domain::{
    demand::Pool,
    label_expression::{self, LabelExpression},
    unit::{Template, UnitSpec},
    unit_affinity::{SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{GroupTopology, Segments, UnitTopology},
};
use smallvec::SmallVec;

use super::{
    Begin, CounterIdx, Domains, N_NAMED_MAX, TopologyLevel,
    counter::Counted,
    takers::{StandingTerms, TakersIdx},
};
use crate::unfit::Unfit;

/// What a unit says of where its replicas go in relation to running units.
#[derive(Clone, Debug)]
pub struct AffinityTerms<'a> {
    /// In relation to others.
    pub affinity: &'a UnitAffinity,
    /// In relation to one another.
    pub topology: &'a UnitTopology,
    /// The same of its task groups.
    pub groups: &'a [GroupTopology],
    /// Templates of its task groups, if it is spread: spreads count the domains that these can use.
    pub templates: Vec<&'a Template>,
    /// The pool that pays.
    pub pool: Pool,
}

impl<'a> AffinityTerms<'a> {
    /// Returns the terms of a unit, `groups` being those of its task groups.
    pub fn of(spec: &'a UnitSpec, groups: &'a [GroupTopology]) -> Self {
        let is_spread = !spec.affinity.spread.is_empty();
        let groups_of_spread = spec.task_groups.iter().filter(|_| is_spread);
        let templates = groups_of_spread.map(|group| &group.template).collect();
        Self { affinity: &spec.affinity, topology: &spec.topology, groups, templates, pool: spec.pool }
    }
}

/// Where the replicas of a unit go in relation to running units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitRules {
    /// Beside units of these.
    pub near: SmallVec<[NearRule; 1]>,
    /// Apart from units of these.
    pub apart: SmallVec<[ApartRule; 1]>,
    /// Spread evenly.
    pub spread: SmallVec<[SpreadRule; 1]>,
    /// By task group, which nodes take replicas of it: the domains of these count in spreads. Empty without spreads.
    pub(super) takers: SmallVec<[TakersIdx; 1]>,
    /// Running units of units that keep it away.
    pub kept_away: SmallVec<[CounterIdx; 1]>,
    /// The topology keys by which its first replicas go together.
    pub keys: TopologyKeys,
    /// Groups of replicas, each in one domain.
    pub segments: Option<SegmentRule>,
    /// Of the task groups that have a topology of their own, by position; empty: none has one.
    pub groups: Vec<GroupRules>,
}

/// The topology keys of a unit, or of a task group, by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyKeys {
    /// The key of which all replicas have to be in one domain.
    pub required: Option<usize>,
    /// Keys of which all replicas are in one domain if that is possible, the narrowest first.
    pub preferred: Vec<usize>,
    /// The key of which the nodes of all replicas have to have the same value.
    pub homogeneous: Option<usize>,
}

impl TopologyKeys {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        let Self { required, preferred, homogeneous } = self;
        required.is_none() && preferred.is_empty() && homogeneous.is_none()
    }

    /// Whether all replicas have to be alike in some key.
    pub fn is_required(&self) -> bool {
        self.required.is_some() || self.homogeneous.is_some()
    }

    /// Returns the level of which all replicas have to be in one group; empty if none is required.
    pub fn required_level(&self) -> TopologyLevel {
        let homogeneous = self.homogeneous.filter(|key| self.required != Some(*key));
        self.required.into_iter().chain(homogeneous).collect()
    }
}

/// Where the replicas of one task group go in relation to one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRules {
    /// Position of the task group in its unit.
    pub group: u16,
    /// The topology keys by which its replicas go together.
    pub keys: TopologyKeys,
    /// All of its replicas as one segment. They are in one domain of its level, which is empty if the task group requires none.
    pub whole: SegmentRule,
    /// Groups of its replicas, each in one domain.
    pub segments: Option<SegmentRule>,
}

impl GroupRules {
    /// Whether all of the task group has to be in one domain.
    pub fn needs_level(&self) -> bool {
        self.keys.is_required()
    }

    /// Returns what a node has to meet because of other replicas of the task group.
    fn required(&self) -> impl Iterator<Item = &SegmentRule> {
        self.needs_level().then_some(&self.whole).into_iter().chain(&self.segments)
    }
}

/// Groups of replicas, each in one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRule {
    /// Replicas of a segment, 1 at least.
    pub size: u32,
    /// Segments are counted from this ordinal.
    first: u32,
    /// The ordinals that are of segments, as half-open ranges; empty: all.
    members: SmallVec<[(u32, u32); 1]>,
    /// The domains in which segments may be: nodes that are alike in the key, and in what the whole unit or task group requires.
    pub level: TopologyLevel,
}

impl SegmentRule {
    /// Returns the number of the segment that an ordinal is of.
    pub fn of(&self, ordinal: u32) -> u32 {
        ordinal.saturating_sub(self.first) / self.size.max(1)
    }

    /// Returns the ordinals of a segment.
    pub fn ordinals(&self, segment: u32) -> impl Iterator<Item = u32> {
        let start = self.first.saturating_add(segment.saturating_mul(self.size));
        let end = start.saturating_add(self.size);
        let all = self.members.is_empty().then_some((start, end));
        let ranges = all.into_iter().chain(self.members.iter().copied());
        ranges.flat_map(move |(from, to)| from.max(start)..to.min(end))
    }
}

/// Replicas go to domains where some units run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearRule {
    counter: CounterIdx,
    /// The unit itself is one of these: its first replica may go anywhere while none of them runs.
    may_begin: bool,
    /// The unit itself is meant, whatever its labels.
    is_own: bool,
    /// 0: required.
    pub weight: i64,
    words: String,
}

/// Replicas go to domains where none of some units runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApartRule {
    counter: CounterIdx,
    /// Where its own running units are counted for those that it keeps away, if it does.
    keeping: Option<CounterIdx>,
    is_own: bool,
    /// 0: required.
    pub weight: i64,
    words: String,
}

/// Running units are spread evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadRule {
    pub(super) counter: CounterIdx,
    is_own: bool,
    /// A replica of the unit is so many more of those that are counted: one, or none.
    adds: u32,
    max_skew: u32,
    /// 0: required.
    pub weight: i64,
    words: String,
}

impl UnitRules {
    /// Counters that count the unit itself, whatever its labels.
    pub(super) fn own_counters(&self) -> impl Iterator<Item = CounterIdx> {
        let near = self.near.iter().filter(|rule| rule.is_own).map(|rule| rule.counter);
        let own_apart = self.apart.iter().filter(|rule| rule.is_own).map(|rule| rule.counter);
        let keeping = self.apart.iter().filter_map(|rule| rule.keeping);
        let spread = self.spread.iter().filter(|rule| rule.is_own).map(|rule| rule.counter);
        near.chain(own_apart).chain(keeping).chain(spread)
    }

    /// Counters that its terms use.
    pub(super) fn all_counters(&self) -> impl Iterator<Item = CounterIdx> {
        let near = self.near.iter().map(|rule| rule.counter);
        let apart = self.apart.iter().flat_map(|rule| [Some(rule.counter), rule.keeping]).flatten();
        near.chain(apart).chain(self.spread.iter().map(|rule| rule.counter))
    }

    /// Returns each spread with the nodes that take replicas of each task group.
    pub(super) fn spreads_by_takers(&self) -> impl Iterator<Item = (&SpreadRule, TakersIdx)> {
        self.spread.iter().flat_map(|rule| self.takers.iter().map(move |takers| (rule, *takers)))
    }

    /// Whether it says where replicas may go, in relation to others or to one another.
    pub fn restricts_by_others(&self) -> bool {
        !self.kept_away.is_empty()
            || self.near.iter().any(|rule| rule.weight == 0)
            || self.apart.iter().any(|rule| rule.weight == 0)
    }

    /// Whether it says how evenly replicas have to be spread.
    pub fn restricts_by_spread(&self) -> bool {
        self.spread.iter().any(|rule| rule.weight == 0)
    }

    /// Whether it prefers some domains.
    pub fn prefers(&self) -> bool {
        self.near.iter().any(|rule| rule.weight > 0) || self.apart.iter().any(|rule| rule.weight > 0)
    }

    /// Whether it prefers even spreads.
    pub fn prefers_spread(&self) -> bool {
        self.spread.iter().any(|rule| rule.weight > 0)
    }
}

/// The units of a term, as people write them.
fn words(term: &[LabelExpression], topology: &str) -> String {
    match term {
        [] => format!("the unit itself in its {topology}"),
        units => format!("units of {} in the {topology}", label_expression::show(units)),
    }
}

impl UnitRules {
    /// Returns the rules of a task group that has a topology of its own.
    pub fn of_group(&self, group: u16) -> Option<&GroupRules> {
        self.groups.iter().find(|rules| rules.group == group)
    }

    /// Returns the segments of which a replica of a task group may be one: of the unit, and of the task group.
    pub fn segments_of(&self, group: u16) -> impl Iterator<Item = &SegmentRule> {
        self.segments.iter().chain(self.of_group(group).into_iter().flat_map(GroupRules::required))
    }

    /// Whether some of its replicas go together to one domain each: segments, or task groups with a topology of their own.
    pub fn has_parts(&self) -> bool {
        self.segments.is_some() || !self.groups.is_empty()
    }
}

impl Begin<'_> {
    /// A level of these topology keys, those that are empty left out.
    fn level<'a>(&mut self, keys: impl IntoIterator<Item = &'a String>) -> TopologyLevel {
        let mut level: TopologyLevel = Vec::new();
        for key in keys.into_iter().filter(|key| !key.is_empty()) {
            let key = self.topology(key);
            if !level.contains(&key) {
                level.push(key);
            }
        }
        level
    }

    pub(super) fn segments(&mut self, topology: &UnitTopology) -> Option<SegmentRule> {
        let Segments { size, within } = topology.segments.as_ref()?;
        let level = self.level([within, &topology.required, &topology.homogeneous]);
        Some(SegmentRule { size: (*size).max(1), first: 0, members: SmallVec::new(), level })
    }

    pub(super) fn group(&mut self, of: &GroupTopology) -> GroupRules {
        let GroupTopology { group, topology, first, ordinals } = of;
        let members: SmallVec<[(u32, u32); 1]> = SmallVec::from_slice(ordinals);
        let keys = self.keys(topology);
        let level = keys.required_level();
        let whole = SegmentRule { size: u32::MAX, first: 0, members: members.clone(), level };
        let segments = self.segments(topology).map(|rule| SegmentRule { first: *first, members, ..rule });
        GroupRules { group: *group, keys, whole, segments }
    }

    pub(super) fn near(&mut self, term: &UnitTerm) -> NearRule {
        NearRule {
            counter: self.selected(&term.topology, &term.units),
            may_begin: self.is_selected(&term.units),
            is_own: term.units.is_empty(),
            weight: i64::from(term.weight),
            words: words(&term.units, &term.topology),
        }
    }

    pub(super) fn apart(&mut self, term: &UnitTerm) -> ApartRule {
        let keeps = term.weight == 0 && !term.units.is_empty();
        let keeping = keeps.then(|| {
            let selector = self.selector(&term.units);
            self.counter(&term.topology, Counted::Keeping(selector))
        });
        ApartRule {
            counter: self.selected(&term.topology, &term.units),
            keeping,
            is_own: term.units.is_empty(),
            weight: i64::from(term.weight),
            words: words(&term.units, &term.topology),
        }
    }

    pub(super) fn spread(&mut self, term: &SpreadTerm) -> SpreadRule {
        SpreadRule {
            counter: self.selected(&term.topology, &term.units),
            is_own: term.units.is_empty(),
            adds: u32::from(self.is_selected(&term.units)),
            max_skew: term.max_skew,
            weight: i64::from(term.weight),
            words: words(&term.units, &term.topology),
        }
    }
}

impl Domains {
    /// Whether the node at an index is where a replica of a unit with these rules may go, but for spreads.
    ///
    /// # Errors
    /// The first rule that keeps it away.
    pub fn admits(&self, rules: &UnitRules, idx: usize) -> Result<(), Unfit> {
        let refused = |words: &str| Err(Unfit::UnitAffinity { reason: words.to_owned() });
        for rule in rules.near.iter().filter(|rule| rule.weight == 0) {
            match self.count_staying(rule.counter, idx) {
                Some(1..) => {}
                Some(0) if rule.may_begin && self.n_staying(rule.counter) == 0 => {}
                _ => return refused(&format!("not near {}", rule.words)),
            }
        }
        for rule in rules.apart.iter().filter(|rule| rule.weight == 0) {
            if self.count(rule.counter, idx).is_some_and(|n| n > 0) {
                return refused(&format!("not apart from {}", rule.words));
            }
        }
        if rules.kept_away.iter().any(|counter| self.count(*counter, idx).is_some_and(|n| n > 0)) {
            return refused("kept away by a running unit");
        }
        Ok(())
    }

    /// Whether replicas of a unit have to be near to those of another one, as far as both are known.
    pub fn has_to_be_near(&self, unit: UnitId, other: UnitId) -> bool {
        let (Some(rules), Some(known)) = (self.terms.get(&unit), self.units.get(&other)) else {
            return false;
        };
        let mut required = rules.near.iter().filter(|rule| rule.weight == 0);
        required.any(|rule| known.counters.binary_search(&rule.counter).is_ok())
    }

    /// As [`Self::admits`], without words (hot path).
    #[inline]
    pub fn is_admitted(&self, rules: &UnitRules, idx: usize) -> bool {
        let has = |counter: CounterIdx| self.count(counter, idx).is_some_and(|n| n > 0);
        let is_near = |rule: &NearRule| {
            rule.weight > 0
                || match self.count_staying(rule.counter, idx) {
                    Some(n) => n > 0 || (rule.may_begin && self.n_staying(rule.counter) == 0),
                    None => false,
                }
        };
        rules.near.iter().all(is_near)
            && !rules.apart.iter().any(|rule| rule.weight == 0 && has(rule.counter))
            && !rules.kept_away.iter().any(|counter| has(*counter))
    }

    /// By how much one more replica of a unit makes the domain of a node fuller than the one with the fewest, of those with nodes that take
    /// replicas of its template; `None`: the node is in no domain.
    #[inline]
    pub(super) fn skew(&self, rule: &SpreadRule, takers: Option<TakersIdx>, idx: usize) -> Option<u32> {
        let n = self.count_staying(rule.counter, idx)?.saturating_add(rule.adds);
        Some(n.saturating_sub(self.least(rule.counter, takers)))
    }

    /// Returns the least that stay of a counter of a spread in any domain with a node that takes replicas of a template.
    pub(crate) fn least(&self, idx: CounterIdx, takers: Option<TakersIdx>) -> u32 {
        let counter = self.counter(idx);
        counter.zip(takers).map_or(0, |(counter, takers)| counter.least(takers))
    }

    /// Returns the domain that holds a spread back, as the label and its value: of those that count the first one with the fewest. `None` with the
    /// key `node`, and where more than a few domains would have to be looked through.
    pub(crate) fn emptiest(&self, idx: CounterIdx, takers: Option<TakersIdx>) -> Option<(&str, &str)> {
        let (counter, takers) = self.counter(idx).zip(takers)?;
        let topology =
            self.topologies.get(counter.topology).filter(|topology| topology.n_domains() <= N_NAMED_MAX)?;
        let least = counter.least(takers);
        let open =
            self.takers.open(takers, counter.topology).filter(|domain| counter.staying(*domain) == least);
        let value = open.filter_map(|domain| topology.value_of(domain)).min()?;
        Some((&topology.key, value))
    }

    /// Returns which nodes take replicas of a template of a unit, for its spreads; `None`: its terms were taken before the template was
    /// known.
    pub fn takers_of(&self, rules: &UnitRules, is_of: impl Fn(&StandingTerms) -> bool) -> Option<TakersIdx> {
        rules.takers.iter().copied().find(|takers| self.takers.terms(*takers).is_some_and(&is_of))
    }

    /// Whether a required spread allows one more replica on a node.
    #[inline]
    pub fn is_even(&self, rule: &SpreadRule, takers: Option<TakersIdx>, idx: usize) -> bool {
        rule.weight > 0 || self.skew(rule, takers, idx).is_some_and(|skew| skew <= rule.max_skew)
    }

    /// Whether two nodes are of one domain as segments go.
    pub(crate) fn is_one_segment(&self, rule: &SegmentRule, one: usize, other: usize) -> bool {
        rule.level.iter().all(|key| {
            let Some(topology) = self.topologies.get(*key) else { return false };
            topology.of(one).is_some() && topology.of(one) == topology.of(other)
        })
    }

    /// Returns the part of the preferred terms, by weight, that a node meets, in thousandths.
    pub fn preference(&self, rules: &UnitRules, idx: usize) -> i64 {
        let has = |counter: CounterIdx| self.count(counter, idx).is_some_and(|n| n > 0);
        let keeps = |counter: CounterIdx| self.count_staying(counter, idx).is_some_and(|n| n > 0);
        let near = rules.near.iter().map(|rule| (rule.weight, keeps(rule.counter)));
        let apart = rules.apart.iter().map(|rule| (rule.weight, !has(rule.counter)));
        let (mut met, mut all) = (0, 0);
        for (weight, is_met) in near.chain(apart) {
            all += weight;
            met += if is_met { weight } else { 0 };
        }
        met * 1_000 / all.max(1)
    }

    /// Returns how many more the domain of a node has than the fewest, by the preferred spreads, as a mean by weight in
    /// hundredths. A node in no domain is as full as can be.
    pub fn unevenness(&self, rules: &UnitRules, takers: Option<TakersIdx>, idx: usize) -> i64 {
        let (mut sum, mut all) = (0i64, 0i64);
        for rule in rules.spread.iter().filter(|rule| rule.weight > 0) {
            let skew = self.skew(rule, takers, idx).map_or(i64::from(u32::MAX), i64::from);
            sum = sum.saturating_add(rule.weight.saturating_mul(skew).saturating_mul(100));
            all += rule.weight;
        }
        sum / all.max(1)
    }

    /// Whether required spreads allow one more replica on a node, in words.
    ///
    /// # Errors
    /// The first spread that does not, with the domain that holds it back.
    pub fn check_spread(
        &self,
        rule: &SpreadRule,
        takers: Option<TakersIdx>,
        idx: usize,
    ) -> Result<(), Unfit> {
        if self.is_even(rule, takers, idx) {
            return Ok(());
        }
        let reason = match self.skew(rule, takers, idx) {
            None => format!("in no domain of a spread of {}", rule.words),
            Some(_) => {
                let full = format!("as many of {} as the spread allows", rule.words);
                match self.emptiest(rule.counter, takers) {
                    Some((key, value)) => {
                        format!("{full}: {key} {value} has {}", self.least(rule.counter, takers))
                    }
                    None => full,
                }
            }
        };
        Err(Unfit::TopologySpread { reason })
    }
}
