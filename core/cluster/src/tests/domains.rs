//! Terms of units against a count from scratch.

use godel_domain::{
    hold::{Hold, MovementTarget},
    label_expression::{LabelExpression, parse},
    node::{NODE_CLASS, NodeReport, NodeRuntime, NodeSpec, Taint, TaintEffect, Toleration},
    unit::Template,
    unit_affinity::{NODE, SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::UnitTopology,
};
use godel_rules::budget::{UnitIdentity, WantedOrdinals};

use super::*;

mod movers;
mod trial;

const N_NODES: u32 = 6;

/// Groups that a grouper has made are known until others are, and are no level of keys.
#[test]
fn made_groups_stand_beside_those_of_keys() {
    let mut cluster = Cluster::new();
    let (number, groups) = cluster.taken_mut().domains.groups.put(&[vec![1, 70], vec![2]]);
    assert_eq!((groups.len(), groups.nodes(0), groups.nodes(1)), (2, &[1, 70][..], &[2][..]));
    let of = |cluster: &Cluster, group| {
        let within = GroupRef::new(number, group);
        (0..128).filter(|idx| cluster.domains().groups.is_in(within, *idx)).collect::<Vec<usize>>()
    };
    assert_eq!((of(&cluster, 0), of(&cluster, 1), of(&cluster, 2)), (vec![1, 70], vec![2], vec![]));
    assert_eq!(cluster.taken_mut().domains.groups_at(&Vec::new()).1.len(), 0, "no level of keys");
    assert!(cluster.domains().groups.keys_of(number).is_empty());
    let (again, _) = cluster.taken_mut().domains.groups.put(&[vec![3]]);
    assert_eq!((again, of(&cluster, 0), of(&cluster, 1)), (number, vec![3], vec![]));
}

const N_UNITS: u64 = 5;
const N_ORDINALS: u32 = 3;

#[derive(Clone, Debug)]
enum Event {
    /// Rack, and what it is like.
    Node(u32, Option<u8>, Kind),
    Gone(u32),
    Assume(u64, u32, u32),
    Forget(u64, u32),
    /// What is assumed is bound, and nothing is held for it any more.
    Bind(u64, u32),
    /// A movement has a running unit leave, and room is held for it on a node.
    Move(u64, u32, u32),
    /// Who leaves has left.
    Left(u64, u32),
    /// What is held for a replica goes.
    Unhold(u64, u32),
    Terms(u64, usize),
    Remove(u64),
    Reset,
}

/// What a node is like, whatever runs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It takes everything.
    Open,
    Cordoned,
    NotReady,
    /// With a taint that even units tolerate.
    Tainted,
    /// Of a class that no unit names.
    OfClass,
    /// Without the label that units above 3 ask for.
    Plain,
    /// Too small for any replica.
    Small,
    /// It runs processes: odd units have no command.
    Processes,
    /// It may have no running unit at all.
    Full,
}

const KINDS: [Kind; 9] = [
    Kind::Open,
    Kind::Cordoned,
    Kind::NotReady,
    Kind::Tainted,
    Kind::OfClass,
    Kind::Plain,
    Kind::Small,
    Kind::Processes,
    Kind::Full,
];

/// Whether a node of a kind ever takes a replica of a unit.
fn takes(kind: Kind, unit: u64) -> bool {
    match kind {
        Kind::Open => true,
        Kind::Cordoned | Kind::NotReady | Kind::OfClass | Kind::Small | Kind::Full => false,
        Kind::Tainted => unit.is_multiple_of(2),
        Kind::Plain => unit <= 3,
        Kind::Processes => unit.is_multiple_of(2),
    }
}

fn template(unit: u64) -> Template {
    let mut template = Template { demand: demand(1, 0, 0, &[]), ..Template::default() };
    if unit > 3 {
        template.node_selector.insert("disk".to_owned(), "ssd".to_owned());
    }
    if unit.is_multiple_of(2) {
        let key = "only".to_owned();
        template.tolerations.push(Toleration { key, value: None, effect: None, tolerated_s: None });
        template.run.command = vec!["serve".to_owned()];
    }
    template
}

fn event() -> impl Strategy<Value = Event> {
    let (node, unit, ordinal) = (0..N_NODES, 1..=N_UNITS, 0..N_ORDINALS);
    prop_oneof![
        3 => (node.clone(), proptest::option::weighted(0.8, 0..3u8), 0..KINDS.len())
            .prop_map(|(node, rack, kind)| Event::Node(node, rack, KINDS[kind])),
        1 => node.clone().prop_map(Event::Gone),
        6 => (unit.clone(), ordinal.clone(), node).prop_map(|(unit, ordinal, node)| Event::Assume(unit, ordinal, node)),
        3 => (unit.clone(), ordinal.clone()).prop_map(|(unit, ordinal)| Event::Forget(unit, ordinal)),
        5 => (unit.clone(), ordinal.clone()).prop_map(|(unit, ordinal)| Event::Bind(unit, ordinal)),
        4 => (unit.clone(), ordinal.clone(), 0..N_NODES).prop_map(|(unit, ordinal, to)| Event::Move(unit, ordinal, to)),
        3 => (unit.clone(), ordinal.clone()).prop_map(|(unit, ordinal)| Event::Left(unit, ordinal)),
        1 => (unit.clone(), ordinal).prop_map(|(unit, ordinal)| Event::Unhold(unit, ordinal)),
        3 => (unit.clone(), 0..TERMS.len()).prop_map(|(unit, terms)| Event::Terms(unit, terms)),
        1 => unit.prop_map(Event::Remove),
        1 => Just(Event::Reset),
    ]
}

/// Kind of term, units, topology key, weight.
const TERMS: [&[(&str, &str, &str, u32)]; 8] = [
    &[("near", "app = a", "rack", 0)],
    &[("near", "", "rack", 0), ("apart", "", NODE, 0)],
    &[("apart", "app in (a, b)", NODE, 0)],
    &[("apart", "app = b", "rack", 0), ("near", "app = a", NODE, 7)],
    &[("spread", "", "rack", 0)],
    &[("spread", "app", NODE, 0), ("apart", "app = a", "rack", 3)],
    &[("near", "nothing", "rack", 0)],
    &[("spread", "app = b", "rack", 5)],
];

fn conditions(text: &str) -> Vec<LabelExpression> {
    if text.is_empty() { Vec::new() } else { parse(text).unwrap() }
}

fn affinity(terms: usize) -> UnitAffinity {
    let mut affinity = UnitAffinity::default();
    for (kind, units, topology, weight) in TERMS[terms] {
        let (units, topology, weight) = (conditions(units), (*topology).to_owned(), *weight);
        match *kind {
            "near" => affinity.near.push(UnitTerm { units, topology, weight }),
            "apart" => affinity.apart.push(UnitTerm { units, topology, weight }),
            _ => affinity.spread.push(SpreadTerm { units, topology, max_skew: 1, weight }),
        }
    }
    affinity
}

/// Units 1 and 2 are `app=a`, 3 is `app=b`, the others have no label.
fn app(unit: u64) -> Option<&'static str> {
    match unit {
        1 | 2 => Some("a"),
        3 => Some("b"),
        _ => None,
    }
}

fn identity(unit: u64) -> UnitIdentity {
    UnitIdentity::new("default", &format!("u{unit}"), app(unit).map(|app| ("app", app)).into_iter())
}

fn put_terms(cluster: &mut Cluster, unit: u64, affinity: &UnitAffinity, templates: &[&Template]) -> bool {
    let topology = UnitTopology::default();
    let (groups, templates) = (&[], templates.to_vec());
    let terms = AffinityTerms { affinity, topology: &topology, groups, templates, pool: Pool::Guaranteed };
    cluster.units_mut().put_terms(UnitId(unit), &identity(unit), &terms)
}

#[derive(Clone, Copy, Default)]
struct Row {
    incarnation: u32,
    /// Where it runs.
    node: Option<u32>,
    leaves: bool,
}

#[derive(Default)]
struct World {
    cluster: Cluster,
    nodes: BTreeMap<u32, (Option<u8>, Kind)>,
    /// What is assumed, with the incarnation.
    placed: BTreeMap<(u64, u32), (u32, u32)>,
    rows: BTreeMap<(u64, u32), Row>,
    /// Targets: incarnation and node.
    holds: BTreeMap<(u64, u32), (u32, u32)>,
    terms: BTreeMap<u64, usize>,
    /// Those whose records are known.
    units: std::collections::BTreeSet<u64>,
    revision: u64,
}

impl World {
    fn offer(&mut self, unit: u64) {
        self.units.insert(unit);
        self.cluster.units_mut().offer(UnitId(unit), &identity(unit), WantedOrdinals::default);
    }

    fn put_node(&mut self, node: u32) {
        let (rack, kind) = self.nodes[&node];
        self.revision += 1;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut labels: BTreeMap<String, String> =
            rack.map(|rack| pair("rack", &format!("r{rack}"))).into_iter().collect();
        labels.extend((kind != Kind::Plain).then(|| pair("disk", "ssd")));
        labels.extend((kind == Kind::OfClass).then(|| pair(NODE_CLASS, "virtual")));
        let id = NodeId(node);
        let (key, value) = ("only".to_owned(), String::new());
        let taint = Taint { key, value, effect: TaintEffect::NoSchedule, added_ms: 0 };
        let taints = if kind == Kind::Tainted { vec![taint] } else { Vec::new() };
        let spec = NodeSpec { id, labels, taints, cordoned: kind == Kind::Cordoned, ..NodeSpec::default() };
        self.cluster.nodes_mut().put_spec(spec, Revision(self.revision));
        let cpu = if kind == Kind::Small { 0 } else { 1_000 };
        let report = NodeReport {
            id,
            ready: kind != Kind::NotReady,
            capacity: Resources::new([(CPU, cpu)]).unwrap(),
            max_running_units: if kind == Kind::Full { 0 } else { 100 },
            runtime: if kind == Kind::Processes { NodeRuntime::Processes } else { NodeRuntime::Simulated },
            ..NodeReport::default()
        };
        self.cluster.nodes_mut().put_report(report, Revision(self.revision));
    }

    fn apply(&mut self, event: &Event) {
        let shape = self.cluster.shape(&demand(1, 0, 0, &[]), Pool::Guaranteed);
        match *event {
            Event::Node(node, rack, kind) => {
                self.nodes.insert(node, (rack, kind));
                self.put_node(node);
            }
            Event::Gone(node) => {
                self.nodes.remove(&node);
                self.cluster.nodes_mut().remove(NodeId(node));
            }
            Event::Assume(unit, ordinal, node) => {
                self.offer(unit);
                let row = self.row(unit, ordinal);
                if row.node.is_some() {
                    return;
                }
                self.placed.insert((unit, ordinal), (row.incarnation, node));
                let id = RunningUnitId::new(UnitId(unit), ordinal, row.incarnation);
                self.cluster.assume(id, shape, NodeId(node), Allocation::default());
            }
            Event::Forget(unit, ordinal) => {
                if let Some((incarnation, _)) = self.placed.remove(&(unit, ordinal)) {
                    self.cluster.forget(RunningUnitId::new(UnitId(unit), ordinal, incarnation));
                }
            }
            Event::Bind(..) | Event::Move(..) | Event::Left(..) | Event::Unhold(..) => self.run(event),
            Event::Terms(unit, terms) => {
                self.terms.insert(unit, terms);
                let template = template(unit);
                let asks_all = put_terms(&mut self.cluster, unit, &affinity(terms), &[&template]);
                self.offer(unit);
                for other in self.units.clone().into_iter().filter(|_| asks_all) {
                    self.offer(other);
                }
            }
            Event::Remove(unit) => {
                self.terms.remove(&unit);
                self.units.remove(&unit);
                self.placed.retain(|(of, _), _| *of != unit);
                self.rows.retain(|(of, _), _| *of != unit);
                for ordinal in 0..N_ORDINALS {
                    self.run(&Event::Unhold(unit, ordinal));
                }
                self.cluster.units_mut().remove(UnitId(unit));
            }
            Event::Reset => {
                self.cluster.reset();
                self.rows.clear();
                self.holds.clear();
                self.nodes
                    .keys()
                    .copied()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|node| self.put_node(node));
            }
        }
    }

    fn row(&self, unit: u64, ordinal: u32) -> Row {
        self.rows.get(&(unit, ordinal)).copied().unwrap_or_default()
    }

    fn change(&mut self, unit: u64, change: &RunChange) {
        self.revision += 1;
        self.cluster.apply_rows(UnitId(unit), change, Revision(self.revision), 0);
    }

    /// What happens to running units and to what is held for them.
    fn run(&mut self, event: &Event) {
        match *event {
            Event::Bind(unit, ordinal) => {
                let row = self.row(unit, ordinal);
                let Some((incarnation, node)) = self.placed.get(&(unit, ordinal)).copied() else { return };
                if incarnation != row.incarnation || row.node.is_some() {
                    return;
                }
                self.placed.remove(&(unit, ordinal));
                self.rows.insert((unit, ordinal), Row { incarnation, node: Some(node), leaves: false });
                let bind = Bind {
                    demand: Arc::new(demand(1, 0, 0, &[])),
                    ordinals: vec![ordinal],
                    incarnations: vec![incarnation],
                    nodes: vec![NodeId(node)],
                    ..Bind::default()
                };
                self.change(unit, &RunChange::Bind(bind));
                self.run(&Event::Unhold(unit, ordinal));
            }
            Event::Move(unit, ordinal, to) => {
                let row = self.row(unit, ordinal);
                if row.node.is_none() || row.leaves {
                    return;
                }
                let incarnation = row.incarnation;
                self.rows.insert((unit, ordinal), Row { leaves: true, ..row });
                self.holds.insert((unit, ordinal), (incarnation + 1, to));
                let from = RunningUnitId::new(UnitId(unit), ordinal, incarnation);
                let hold = Hold {
                    id: hold_id(unit, ordinal),
                    node: NodeId(to),
                    unit: UnitId(unit),
                    demand: Arc::new(demand(1, 0, 0, &[])),
                    ordinals: vec![ordinal],
                    incarnations: vec![incarnation + 1],
                    movement: Some(MovementTarget { movement: Arc::from("m"), from }),
                    ..Hold::default()
                };
                let evict = Evict {
                    ordinals: vec![ordinal],
                    incarnations: vec![incarnation],
                    reason: EvictionReason::Rescheduled,
                    by: String::new(),
                    preemptor: UnitId(0),
                };
                if to % 2 == 0 {
                    self.cluster.held_mut().put(Arc::new(hold));
                    self.change(unit, &RunChange::Evict(evict));
                } else {
                    self.change(unit, &RunChange::Evict(evict));
                    self.cluster.held_mut().put(Arc::new(hold));
                }
            }
            Event::Left(unit, ordinal) => {
                let row = self.row(unit, ordinal);
                if !row.leaves {
                    return;
                }
                let incarnation = row.incarnation + 1;
                self.rows.insert((unit, ordinal), Row { incarnation, ..Row::default() });
                let (ordinals, incarnations) = (vec![ordinal], vec![incarnation]);
                let phases = vec![Phase::Stopped];
                let stopped =
                    Statuses { ordinals, phases, incarnations: vec![row.incarnation], ..Statuses::default() };
                self.change(unit, &RunChange::Statuses(stopped));
                let again = Requeue { ordinals: vec![ordinal], incarnations, ..Requeue::default() };
                self.change(unit, &RunChange::Requeue(again));
            }
            Event::Unhold(unit, ordinal) => {
                self.holds.remove(&(unit, ordinal));
                self.cluster.held_mut().remove(hold_id(unit, ordinal));
            }
            _ => unreachable!("not of running units: {event:?}"),
        }
    }

    /// Where a replica counts: if `stays`, for those that are to be near to it, and for what is spread.
    fn places(&self, id: (u64, u32), stays: bool) -> Vec<u32> {
        let row = self.row(id.0, id.1);
        let placed = self.placed.get(&id).map(|(_, node)| *node);
        let mut places: Vec<u32> = row.node.filter(|_| !(stays && row.leaves)).into_iter().collect();
        places.extend(placed);
        if let Some((_, target)) = self.holds.get(&id).copied()
            && placed.is_none_or(|node| !stays && node != target)
        {
            places.push(target);
        }
        places
    }

    fn domain(&self, key: &str, node: u32) -> Option<String> {
        let (rack, _) = self.nodes.get(&node)?;
        if key == NODE { Some(format!("n{node}")) } else { rack.map(|rack| format!("r{rack}")) }
    }

    fn selects(&self, of: u64, units: &[LabelExpression], other: u64) -> bool {
        let label = |key: &str| app(other).filter(|_| key == "app");
        if units.is_empty() { of == other } else { units.iter().all(|one| one.accepts(label(&one.key))) }
    }

    /// How many of those that a term selects are in a domain; `None`: anywhere.
    fn count(
        &self,
        (of, units): (u64, &[LabelExpression]),
        key: &str,
        domain: Option<&str>,
        stays: bool,
    ) -> usize {
        let there = |node: &u32| domain.is_none() || self.domain(key, *node).as_deref() == domain;
        let units = (1..=N_UNITS).filter(|unit| self.selects(of, units, *unit));
        let ids = units.flat_map(|unit| (0..N_ORDINALS).map(move |ordinal| (unit, ordinal)));
        ids.flat_map(|id| self.places(id, stays)).filter(there).count()
    }

    /// Whether a unit may go to a node, by near and apart, and by its spreads.
    fn expected(&self, unit: u64, node: u32) -> (bool, bool) {
        let own = self.terms.get(&unit).map(|terms| affinity(*terms)).unwrap_or_default();
        let mut may = true;
        for term in own.near.iter().filter(|term| term.weight == 0) {
            let domain = self.domain(&term.topology, node);
            let n = |domain: Option<&str>| self.count((unit, &term.units), &term.topology, domain, true);
            let begins = n(None) == 0 && self.selects(unit, &term.units, unit);
            may &= domain.is_some_and(|domain| n(Some(&domain)) > 0 || begins);
        }
        for term in own.apart.iter().filter(|term| term.weight == 0) {
            let domain = self.domain(&term.topology, node);
            let n = |domain: String| self.count((unit, &term.units), &term.topology, Some(&domain), false);
            may &= domain.is_none_or(|domain| n(domain) == 0);
        }
        for (other, terms) in &self.terms {
            let affinity = affinity(*terms);
            let keeping = affinity.apart.iter().filter(|term| term.weight == 0 && !term.units.is_empty());
            for term in keeping.filter(|term| self.selects(*other, &term.units, unit)) {
                let domain = self.domain(&term.topology, node);
                let there = |at: &u32| domain.is_some() && self.domain(&term.topology, *at) == domain;
                let of_other = (0..N_ORDINALS).flat_map(|ordinal| self.places((*other, ordinal), false));
                may &= !of_other.into_iter().any(|at| there(&at));
            }
        }
        let mut even = true;
        for term in own.spread.iter().filter(|term| term.weight == 0) {
            let count = |domain: &str| self.count((unit, &term.units), &term.topology, Some(domain), true);
            let open = self.nodes.iter().filter(|(_, (_, kind))| takes(*kind, unit));
            let domains = open.filter_map(|(node, _)| self.domain(&term.topology, *node));
            let least = domains.map(|domain| count(&domain)).min().unwrap_or(0);
            let adds = usize::from(self.selects(unit, &term.units, unit));
            let domain = self.domain(&term.topology, node);
            even &= domain.is_some_and(|domain| (count(&domain) + adds).saturating_sub(least) <= 1);
        }
        (may, even)
    }

    fn check(&self) {
        for unit in &self.units {
            for node in 0..N_NODES {
                let idx = node as usize;
                let rules = self.cluster.domains().rules_of(UnitId(*unit));
                let (may, even) = rules.as_ref().map_or((true, true), |rules| {
                    let may = self.cluster.domains().is_admitted(rules, idx);
                    assert_eq!(may, self.cluster.domains().admits(rules, node as usize).is_ok());
                    let takers = self.cluster.domains().takers_of(rules, |_| true);
                    let spreads = |rule| self.cluster.domains().is_even(rule, takers, idx);
                    (may, rules.spread.iter().all(spreads))
                });
                assert_eq!((may, even), self.expected(*unit, node), "unit {unit} on node {node}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn terms_say_what_a_count_from_scratch_says(events in proptest::collection::vec(event(), 1..60)) {
        let mut world = World::default();
        for event in &events {
            world.apply(event);
            world.check();
        }
    }
}

fn hold_id(unit: u64, ordinal: u32) -> HoldId {
    HoldId(unit * 100 + u64::from(ordinal))
}

/// Nodes 0 and 1 in a rack, 2 in another one; a unit that goes near `app=a`, and one that goes apart from `app=b`.
fn near_and_apart() -> World {
    let mut world = World::default();
    for (node, rack) in [(0, 0), (1, 0), (2, 1)] {
        world.apply(&Event::Node(node, Some(rack), Kind::Open));
    }
    world.apply(&Event::Terms(4, 0));
    world.apply(&Event::Terms(5, 3));
    gained(&mut world);
    world
}

fn gained(world: &mut World) -> Vec<u32> {
    let mut nodes = Vec::new();
    world.cluster.free_mut().generations.take_gained(&mut nodes);
    nodes.sort_unstable();
    nodes.dedup();
    nodes.into_iter().map(|node| node.0).collect()
}

#[test]
fn what_comes_and_goes_opens_nodes_to_others() {
    let mut world = near_and_apart();
    world.apply(&Event::Assume(1, 0, 1));
    assert_eq!(gained(&mut world), [0, 1], "its rack is one that `near` asks for now");
    world.apply(&Event::Assume(3, 0, 2));
    gained(&mut world);
    world.apply(&Event::Forget(3, 0));
    assert!(gained(&mut world).contains(&2), "its rack is free of what `apart` excludes");
}

#[test]
fn counters_that_nothing_uses_are_dropped() {
    let mut world = World::default();
    world.apply(&Event::Node(0, Some(0), Kind::Open));
    for round in 0..3_000u64 {
        let unit = 10 + round;
        let label = format!("job = j{round}");
        let term = UnitTerm { units: parse(&label).unwrap(), topology: NODE.to_owned(), weight: 0 };
        let affinity = UnitAffinity { apart: vec![term], ..UnitAffinity::default() };
        put_terms(&mut world.cluster, unit, &affinity, &[]);
        world.cluster.units_mut().offer(UnitId(unit), &identity(unit), WantedOrdinals::default);
        world.cluster.units_mut().remove(UnitId(unit));
    }
    assert!(world.cluster.domains().n_counters() < 3_000, "{}", world.cluster.domains().n_counters());
}
