//! When it is a node's fault that what is placed there fails.
//!
//! A replica that ends badly right after its start is one that may be its own fault, or its node's. It is the node's if commands fail there that
//! run elsewhere. What fails elsewhere as well, and runs nowhere, says nothing about nodes: a broken command never counts. Several replicas
//! that fail and of which nobody knows how they do elsewhere make a node *suspect*: it ranks lower, so that it becomes known. With
//! the proof it is *bad*.
//!
//! Jobs that all differ never give that proof. A node is *barren* where several different ones fail, nothing that began of late does well, and
//! others of their queues that began of late do well elsewhere. It is treated as a bad one, but only a part of the nodes may be so at a time:
//! many different broken jobs look like it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use godel_base::{
    ids::{NodeId, UnitId},
    time::Millis,
};
use godel_domain::{
    node::{NodeReport, NodeSpec, TaintEffect},
    run_end::RunEndReason,
    unit::Template,
};

/// Key of the taint of a node that is suspect.
pub const SUSPECT: &str = "godel.dev/units-fail";
/// Ends of one node that are kept.
const N_ENDS_MAX: usize = 64;
/// Of so many nodes one may be barren at a time.
const NODES_OF_A_BARREN_ONE: usize = 10;
/// Nodes of which ends are kept.
const N_NODES_MAX: usize = 1_024;
/// Different nodes on which a replica is tried that none of them can start: no other one will.
const N_NODES_TRIED_MAX: usize = 3;
/// Tries in all: a replica may come back to one of those nodes.
const N_TRIES_MAX: usize = 5;

/// When nodes are suspect or bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureConfig {
    /// Replicas that have to fail; 0: never.
    pub n_replicas: usize,
    /// Within so long, milliseconds.
    pub window_ms: u64,
    /// A command that ran for longer has not failed at once, milliseconds.
    pub quick_ms: u64,
    /// A suspect node gets nothing at first for so long, milliseconds.
    pub hold_ms: u64,
}

impl Default for FailureConfig {
    fn default() -> Self {
        Self { n_replicas: 3, window_ms: 60_000, quick_ms: 10_000, hold_ms: 5_000 }
    }
}

/// A replica that ended badly right after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuickEnd {
    /// Which replica.
    pub replica: (UnitId, u32),
    /// Stands for its command: what is the same does the same.
    pub kind: u64,
    /// For so long it ran, milliseconds.
    pub ran_ms: u64,
    /// When that was heard.
    pub at: Millis,
}

/// How a command does on other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// It runs, or has ended well, on another node.
    pub runs: bool,
    /// It failed at once on another node.
    pub fails: bool,
    /// Another node would take it.
    pub could_run: bool,
    /// Other units of its queue that began of late run, or have ended well, on another node.
    pub others_run: bool,
}

/// What is thought of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeVerdict {
    /// Nothing speaks against it.
    Sound,
    /// What fails there may run elsewhere.
    Suspect,
    /// Different commands fail there, and nothing else does well, while others do elsewhere.
    Barren,
    /// What fails there runs elsewhere.
    Bad,
}

/// What a node has done of late for what did not fail there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsHere {
    /// Nothing that began of late runs, or has ended well.
    Nothing,
    /// Something does.
    Something,
}

/// Judges a node by its quick ends. A replica for which there is no other node never counts: the node is the last one that it could use.
pub fn judge(
    ends: &[QuickEnd],
    elsewhere: impl Fn(&QuickEnd) -> Elsewhere,
    here: RunsHere,
    config: &FailureConfig,
) -> NodeVerdict {
    let (mut known, mut open) = (BTreeSet::new(), BTreeSet::new());
    let (mut units, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for end in ends {
        let Elsewhere { runs, fails, could_run, others_run } = elsewhere(end);
        if !could_run || fails && !runs {
            continue;
        }
        open.insert(end.replica);
        if runs {
            known.insert(end.replica);
        }
        if others_run {
            units.insert(end.replica.0);
            kinds.insert(end.kind);
        }
    }
    match config.n_replicas {
        0 => NodeVerdict::Sound,
        n if known.len() >= n => NodeVerdict::Bad,
        n if here == RunsHere::Nothing && units.len().min(kinds.len()) >= n => NodeVerdict::Barren,
        n if open.len() >= n => NodeVerdict::Suspect,
        _ => NodeVerdict::Sound,
    }
}

/// Whether one more node may be quarantined as barren, of so many nodes of which so many are.
pub fn may_be_barren(n_barren: usize, n_nodes: usize) -> bool {
    n_barren < (n_nodes / NODES_OF_A_BARREN_ONE).max(1)
}

/// Whether an end says that the node lacks what the command needs, and another one may have it.
pub fn is_lack(reason: RunEndReason) -> bool {
    match reason {
        RunEndReason::CommandNotFound
        | RunEndReason::CommandNotExecutable
        | RunEndReason::NoDirectory
        | RunEndReason::NoUser
        | RunEndReason::UserNotPermitted
        | RunEndReason::PrincipalNotPermitted
        | RunEndReason::CannotStart => true,
        RunEndReason::Exited
        | RunEndReason::Signalled
        | RunEndReason::OutOfMemory
        | RunEndReason::Told
        | RunEndReason::AgentStopped
        | RunEndReason::NoContact
        | RunEndReason::Lost
        | RunEndReason::Rebooted
        | RunEndReason::Squeezed => false,
    }
}

/// Where a replica was tried, or the master of an application, that no node has started yet.
///
/// One rule for all: what one node does not start goes elsewhere and uses up no attempt, since nothing has run; what several nodes do not start,
/// or all that it could use, has failed at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriedNodes<N> {
    nodes: Vec<N>,
    n_tries: usize,
}

impl<N> Default for TriedNodes<N> {
    fn default() -> Self {
        Self { nodes: Vec::new(), n_tries: 0 }
    }
}

impl<N: PartialEq> TriedNodes<N> {
    /// One more try, on this node.
    pub fn note(&mut self, node: N) {
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
        self.n_tries += 1;
    }

    /// The nodes, in the order of their first tries.
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }

    /// Whether it is worth another try: `finds_other` says whether there is a node beside these that could be used, and is asked last.
    pub fn goes_elsewhere(&self, finds_other: impl FnOnce(&[N]) -> bool) -> bool {
        self.nodes.len() < N_NODES_TRIED_MAX && self.n_tries < N_TRIES_MAX && finds_other(&self.nodes)
    }
}

/// Whether a node takes new replicas and could ever hold one of this template, whatever is on it now.
pub fn could_use(spec: &NodeSpec, report: &NodeReport, template: &Template) -> bool {
    let label = |key: &str| spec.labels.get(key).or_else(|| report.attributes.get(key)).map(String::as_str);
    let selects = template.node_selector.iter().all(|(key, value)| label(key) == Some(value.as_str()));
    let tolerates = spec
        .taints
        .iter()
        .filter(|taint| taint.effect.is_hard())
        .all(|taint| template.tolerations.iter().any(|toleration| toleration.tolerates(taint)));
    let holds = template.demand.requests.iter().all(|(name, amount)| report.capacity.get(name) >= amount);
    let has_devices = template.demand.devices.iter().all(|asked| {
        let fits = |device: &&godel_domain::node::Device| {
            device.kind == asked.kind && (asked.models.is_empty() || asked.models.contains(&device.model))
        };
        report.devices.iter().filter(fits).count() >= usize::try_from(asked.count).unwrap_or(usize::MAX)
    });
    report.can_start()
        && !spec.is_closed()
        && report.max_running_units > 0
        && report.runtime.takes(&template.run)
        && selects
        && template.node_affinity.admits(label)
        && tolerates
        && holds
        && has_devices
}

/// Quick ends of late, by node.
#[derive(Clone, Debug, Default)]
pub struct QuickEnds {
    by_node: BTreeMap<NodeId, VecDeque<QuickEnd>>,
}

impl QuickEnds {
    /// One more.
    pub fn note(&mut self, node: NodeId, end: QuickEnd) {
        if self.by_node.len() >= N_NODES_MAX && !self.by_node.contains_key(&node) {
            return;
        }
        let ends = self.by_node.entry(node).or_default();
        ends.retain(|known| known.replica != end.replica);
        if ends.len() == N_ENDS_MAX {
            ends.pop_front();
        }
        ends.push_back(end);
    }

    /// Forgets what is older than the window.
    pub fn prune(&mut self, now: Millis, config: &FailureConfig) {
        self.by_node.retain(|_, ends| {
            ends.retain(|end| now.since(end.at) < config.window_ms);
            !ends.is_empty()
        });
    }

    /// Forgets what was seen on a node.
    pub fn forget(&mut self, node: NodeId) {
        self.by_node.remove(&node);
    }

    /// Ends that are kept of a node.
    pub fn n_on(&self, node: NodeId) -> usize {
        self.by_node.get(&node).map_or(0, VecDeque::len)
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// The ends on each node.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, Vec<QuickEnd>)> + '_ {
        self.by_node.iter().map(|(node, ends)| (*node, ends.iter().copied().collect()))
    }

    /// Whether a kind failed on another node.
    pub fn fails_elsewhere(&self, kind: u64, than: NodeId) -> bool {
        let others = self.by_node.iter().filter(|(node, _)| **node != than);
        others.flat_map(|(_, ends)| ends).any(|end| end.kind == kind)
    }
}

/// The effect of the taint of a node that has been suspect for so long: nothing is placed there at first, so that what comes shows elsewhere
/// how it does; then the node ranks lower; `None`: it is over.
pub fn suspicion(since: Millis, now: Millis, config: &FailureConfig) -> Option<TaintEffect> {
    match now.since(since) {
        ms if ms < config.hold_ms => Some(TaintEffect::NoSchedule),
        ms if ms < config.window_ms.max(config.hold_ms) => Some(TaintEffect::PreferNoSchedule),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use godel_base::resources::Resources;
    use godel_domain::unit::RunSpec;
    use proptest::prelude::*;

    use super::*;

    fn end(unit: u64, kind: u64) -> QuickEnd {
        QuickEnd { replica: (UnitId(unit), 0), kind, ran_ms: 3, at: Millis(0) }
    }

    const UNKNOWN: Elsewhere = Elsewhere { runs: false, fails: false, could_run: true, others_run: false };
    const RUNS: Elsewhere = Elsewhere { runs: true, ..UNKNOWN };
    const FAILS: Elsewhere = Elsewhere { fails: true, others_run: true, ..UNKNOWN };
    const LAST: Elsewhere = Elsewhere { runs: true, could_run: false, others_run: true, ..UNKNOWN };
    const OTHERS: Elsewhere = Elsewhere { others_run: true, ..UNKNOWN };

    #[test]
    fn a_node_is_bad_when_what_fails_there_runs_elsewhere() {
        let ends = [end(1, 7), end(2, 7), end(3, 7)];
        let of =
            |elsewhere: Elsewhere| judge(&ends, |_| elsewhere, RunsHere::Nothing, &FailureConfig::default());
        assert_eq!(of(RUNS), NodeVerdict::Bad);
        assert_eq!(of(UNKNOWN), NodeVerdict::Suspect);
        assert_eq!(of(FAILS), NodeVerdict::Sound, "a broken command");
        assert_eq!(of(LAST), NodeVerdict::Sound, "the last node that it could use");
        assert_eq!(of(Elsewhere { runs: true, ..FAILS }), NodeVerdict::Bad, "two bad nodes");
        let off = FailureConfig { n_replicas: 0, ..FailureConfig::default() };
        assert_eq!(judge(&ends, |_| RUNS, RunsHere::Nothing, &off), NodeVerdict::Sound);
        let few = judge(&ends[..2], |_| RUNS, RunsHere::Something, &FailureConfig::default());
        assert_eq!(few, NodeVerdict::Sound);
    }

    #[test]
    fn a_node_is_barren_where_different_units_fail_and_others_do_well_elsewhere() {
        let differ = [end(1, 7), end(2, 8), end(3, 9)];
        let config = FailureConfig::default();
        let of = |ends: &[QuickEnd], elsewhere, here| judge(ends, |_| elsewhere, here, &config);
        assert_eq!(of(&differ, OTHERS, RunsHere::Nothing), NodeVerdict::Barren);
        assert_eq!(
            of(&differ, OTHERS, RunsHere::Something),
            NodeVerdict::Suspect,
            "something does well there"
        );
        assert_eq!(of(&differ, UNKNOWN, RunsHere::Nothing), NodeVerdict::Suspect, "nothing does elsewhere");
        assert_eq!(of(&differ, FAILS, RunsHere::Nothing), NodeVerdict::Sound, "they fail elsewhere too");
        assert_eq!(of(&differ, LAST, RunsHere::Nothing), NodeVerdict::Sound, "they could use no other node");
        let same = [end(1, 7), end(2, 7), end(3, 7)];
        assert_eq!(of(&same, OTHERS, RunsHere::Nothing), NodeVerdict::Suspect, "one command of three units");
        let one = [end(1, 7), end(1, 8), end(1, 9)];
        assert_ne!(of(&one, OTHERS, RunsHere::Nothing), NodeVerdict::Barren, "one unit of three commands");
        let proven = Elsewhere { runs: true, ..OTHERS };
        assert_eq!(of(&differ, proven, RunsHere::Nothing), NodeVerdict::Bad);
        let off = FailureConfig { n_replicas: 0, ..config };
        assert_eq!(judge(&differ, |_| OTHERS, RunsHere::Nothing, &off), NodeVerdict::Sound);
    }

    #[test]
    fn a_tenth_of_the_nodes_may_be_barren_and_one_always() {
        let most = |n_nodes| (0..).take_while(|n| may_be_barren(*n, n_nodes)).count();
        assert_eq!([0, 1, 2, 19, 20, 100].map(most), [1, 1, 1, 1, 2, 10]);
    }

    fn elsewhere() -> impl Strategy<Value = Elsewhere> {
        let bools = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        bools.prop_map(|(runs, fails, could_run, others_run)| Elsewhere {
            runs,
            fails,
            could_run,
            others_run,
        })
    }

    fn here() -> impl Strategy<Value = RunsHere> {
        prop_oneof![Just(RunsHere::Nothing), Just(RunsHere::Something)]
    }

    proptest! {
        /// Whatever else fails, commands that fail everywhere and replicas without another node change nothing.
        #[test]
        fn what_fails_everywhere_never_counts(
            ends in prop::collection::vec((0u64..6, 0u64..4), 0..20),
            known in prop::collection::vec(elsewhere(), 4),
            broken in prop::collection::vec(10u64..40, 0..20),
            is_last in any::<bool>(),
            here in here(),
        ) {
            let config = FailureConfig::default();
            let of = |end: &QuickEnd| match usize::try_from(end.kind).ok().and_then(|kind| known.get(kind)) {
                Some(known) => *known,
                None if is_last => LAST,
                None => FAILS,
            };
            let mut all: Vec<QuickEnd> = ends.iter().map(|(unit, kind)| end(*unit, *kind)).collect();
            let before = judge(&all, of, here, &config);
            all.extend(broken.iter().map(|unit| end(*unit, 9)));
            prop_assert_eq!(judge(&all, of, here, &config), before);
        }

        /// A node is bad by so many different replicas only, each of which runs elsewhere.
        #[test]
        fn a_bad_node_has_its_proofs(
            ends in prop::collection::vec((0u64..6, 0u64..4), 0..20),
            known in prop::collection::vec(elsewhere(), 4),
        ) {
            let config = FailureConfig::default();
            let all: Vec<QuickEnd> = ends.iter().map(|(unit, kind)| end(*unit, *kind)).collect();
            let of = |end: &QuickEnd| known[usize::try_from(end.kind).unwrap()];
            let proofs: BTreeSet<_> = all
                .iter()
                .filter(|end| of(end).runs && of(end).could_run)
                .map(|end| end.replica)
                .collect();
            let verdict = judge(&all, of, RunsHere::Nothing, &config);
            prop_assert_eq!(verdict == NodeVerdict::Bad, proofs.len() >= config.n_replicas);
        }

        /// A node is barren by so many units with different commands only, each with another node to go to and others of its queue that do
        /// well elsewhere, where nothing does well; and what more fails never makes a verdict milder.
        #[test]
        fn a_barren_node_has_its_witnesses(
            ends in prop::collection::vec((0u64..6, 0u64..6), 0..20),
            known in prop::collection::vec(elsewhere(), 6),
            here in here(),
        ) {
            let config = FailureConfig::default();
            let all: Vec<QuickEnd> = ends.iter().map(|(unit, kind)| end(*unit, *kind)).collect();
            let of = |end: &QuickEnd| known[usize::try_from(end.kind).unwrap()];
            let verdict = judge(&all, of, here, &config);
            let counts = |end: &&QuickEnd| {
                let Elsewhere { runs, fails, could_run, others_run } = of(end);
                could_run && others_run && (runs || !fails)
            };
            let units: BTreeSet<_> = all.iter().filter(counts).map(|end| end.replica.0).collect();
            let kinds: BTreeSet<_> = all.iter().filter(counts).map(|end| end.kind).collect();
            let has_witnesses = units.len() >= config.n_replicas && kinds.len() >= config.n_replicas;
            if verdict == NodeVerdict::Barren {
                prop_assert!(has_witnesses && here == RunsHere::Nothing);
            } else {
                let is_milder = verdict < NodeVerdict::Barren;
                prop_assert!(!(is_milder && has_witnesses && here == RunsHere::Nothing));
            }
            prop_assert!(judge(&all[..all.len() / 2], of, here, &config) <= verdict);
            prop_assert!(judge(&all, of, RunsHere::Something, &config) <= verdict);
        }
    }

    #[test]
    fn ends_are_kept_for_the_window_and_one_of_each_replica() {
        let config = FailureConfig::default();
        let mut ends = QuickEnds::default();
        let at = |unit, ms| QuickEnd { at: Millis(ms), ..end(unit, 7) };
        for (node, unit, ms) in [(1, 1, 0), (1, 2, 5_000), (1, 2, 6_000), (2, 3, 0)] {
            ends.note(NodeId(node), at(unit, ms));
        }
        assert!(ends.fails_elsewhere(7, NodeId(1)) && !ends.fails_elsewhere(8, NodeId(1)));
        ends.prune(Millis(60_000), &config);
        assert_eq!(ends.iter().collect::<Vec<_>>(), [(NodeId(1), vec![at(2, 6_000)])]);
        assert!(!ends.fails_elsewhere(7, NodeId(1)));
        ends.forget(NodeId(1));
        assert!(ends.is_empty());
        (0..2_000).for_each(|unit| ends.note(NodeId(1), at(unit, 0)));
        assert_eq!(ends.iter().next().unwrap().1.len(), N_ENDS_MAX);
    }

    #[test]
    fn what_several_nodes_or_all_do_not_start_has_failed() {
        let of = |nodes: &[u32]| {
            let mut tried = TriedNodes::default();
            nodes.iter().for_each(|node| tried.note(*node));
            tried
        };
        assert!(of(&[1]).goes_elsewhere(|tried| tried == [1]) && of(&[1, 2]).goes_elsewhere(|_| true));
        assert!(!of(&[1]).goes_elsewhere(|_| false), "there is no other node");
        assert!(!of(&[1, 2, 3]).goes_elsewhere(|_| true), "three nodes do not start it");
        assert!(of(&[1, 2, 1, 2]).goes_elsewhere(|tried| tried == [1, 2]));
        assert!(!of(&[1, 2, 1, 2, 1]).goes_elsewhere(|_| true), "it comes back to them again and again");
    }

    #[test]
    fn a_suspect_node_gets_nothing_and_then_ranks_lower_until_it_is_over() {
        let config = FailureConfig::default();
        let at = |ms: u64| suspicion(Millis(1_000), Millis(1_000 + ms), &config);
        assert_eq!(at(0), Some(TaintEffect::NoSchedule));
        assert_eq!(at(4_999), Some(TaintEffect::NoSchedule));
        assert_eq!(at(5_000), Some(TaintEffect::PreferNoSchedule));
        assert_eq!(at(60_000), None);
    }

    #[test]
    fn a_node_could_be_used_by_what_it_could_ever_hold() {
        let spec = NodeSpec { id: NodeId(1), ..NodeSpec::default() };
        let capacity = Resources::new([("cpu", 4_000)]).unwrap();
        let report = NodeReport { id: NodeId(1), ready: true, capacity, ..NodeReport::default() };
        let run = RunSpec { command: vec!["true".to_owned()], ..RunSpec::default() };
        let mut template = Template { run, ..Template::default() };
        template.demand.requests = Resources::new([("cpu", 4_000)]).unwrap();
        assert!(could_use(&spec, &report, &template));
        let closed = NodeSpec { cordoned: true, ..spec.clone() };
        let full = NodeReport { trouble: "its disk is full".to_owned(), ..report.clone() };
        assert!(!could_use(&closed, &report, &template) && !could_use(&spec, &full, &template));
        template.node_selector.insert("gpu".to_owned(), "yes".to_owned());
        assert!(!could_use(&spec, &report, &template));
        template.node_selector.clear();
        template.demand.requests = Resources::new([("cpu", 4_001)]).unwrap();
        assert!(!could_use(&spec, &report, &template));
    }
}
