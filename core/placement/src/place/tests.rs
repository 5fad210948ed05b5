//! Lists of candidates, the index of free room and scans that stop early, against a look at every node with every filter and
//! every score: they find a node whenever there is one, only nodes that pass, and the best one where scans go all the way.

use godel_base::{
    ids::{Revision, RunningUnitId},
    resources::{CPU, MEMORY, NETWORK, Resources},
};
use godel_cluster::AffinityTerms;
use godel_domain::{
    demand::{DeviceRequest, Pool},
    host_port::{HostPort, Protocol},
    label_expression::parse,
    node::{Device, NodeReport, NodeSpec, NodeUsage, Taint, TaintEffect, Toleration},
    node_affinity::{NodeAffinity, PreferredNodes},
    node_load::{LoadAmounts, MaxLoad, NodeLoad, ZoneLoad},
    unit::{UnitRecord, WorkloadClass},
    unit_affinity::{NODE, SpreadTerm, UnitAffinity, UnitTerm},
    work_kind::WorkKind,
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest},
};
use godel_framework::{
    Profile, ScoreInput,
    profile::{NodeScore, ProfileSpec},
    registry::SCORES,
};
use godel_rules::budget::{UnitIdentity, WantedOrdinals};
use godel_testkit::{BuildUnit as _, unit};
use proptest::prelude::*;

use super::*;
use crate::profiles::ProfileSettings;

/// More than one block, so that the index has something to skip.
const N_NODES: u32 = BLOCK as u32 + 6;

#[derive(Clone, Debug)]
enum ClusterEvent {
    /// A node, its rack, whether it is open, tainted and large.
    Node(u32, u32, (bool, bool, bool)),
    /// What is used of a node, in tenths of a large one; `None`: it is not known.
    Load(u32, Option<i64>),
    /// A unit of a kind.
    Unit(usize, u32),
    /// The n-th running unit ends.
    End(usize),
}

fn event() -> impl Strategy<Value = ClusterEvent> {
    let node = || 1..=N_NODES;
    prop_oneof![
        2 => (node(), 0..4u32, (prop::bool::weighted(0.9), prop::bool::weighted(0.2), any::<bool>()))
            .prop_map(|(node, rack, how)| ClusterEvent::Node(node, rack, how)),
        2 => (node(), prop::option::weighted(0.8, 0..10i64)).prop_map(|(node, used)| ClusterEvent::Load(node, used)),
        6 => (0..N_KINDS, 1..5u32).prop_map(|(kind, replicas)| ClusterEvent::Unit(kind, replicas)),
        3 => (0..60usize).prop_map(ClusterEvent::End),
    ]
}

/// One of six large nodes opens, closes, gets or loses a soft taint.
fn few_open() -> impl Strategy<Value = ClusterEvent> {
    prop_oneof![
        3 => (1..=6u32, any::<bool>(), any::<bool>())
            .prop_map(|(node, is_open, is_tainted)| ClusterEvent::Node(node, 0, (is_open, is_tainted, true))),
        4 => (1..3u32).prop_map(|replicas| ClusterEvent::Unit(N_KINDS - 1, replicas)),
        2 => (0..20usize).prop_map(ClusterEvent::End),
    ]
}

const N_KINDS: usize = 15;

/// Kinds that between them concern every filter and every score; those from `PLAIN` on have terms about running units.
fn record(kind: usize, id: u64, replicas: u32) -> UnitRecord {
    let mut record = unit(format!("u{id}")).id(UnitId(id)).replicas(replicas).profile("all");
    let labels = [("app".to_owned(), format!("a{}", kind % 3))].into();
    record.spec.labels = labels;
    record.spec.class = if kind.is_multiple_of(2) { WorkloadClass::Service } else { WorkloadClass::Batch };
    let template = &mut record.spec.task_groups[0].template;
    let cpu = if kind.is_multiple_of(3) { 3_000 } else { 1_000 };
    template.demand.requests = Resources::new([(CPU, cpu), (MEMORY, 1), (NETWORK, 10)]).unwrap();
    let term = |units: &str, topology: &str, weight| UnitTerm {
        units: if units.is_empty() { Vec::new() } else { parse(units).unwrap() },
        topology: topology.to_owned(),
        weight,
    };
    let spread = |topology: &str, weight| SpreadTerm {
        units: Vec::new(),
        topology: topology.to_owned(),
        max_skew: 1,
        weight,
    };
    let affinity = &mut record.spec.affinity;
    match kind {
        0 => template.node_affinity.required.push(parse("rack in (r0, r1)").unwrap()),
        1 => template.demand.host_ports.push(HostPort { port: 80, protocol: Protocol::Tcp }),
        2 => template.max_load = MaxLoad { cpu: Some(50), memory: None },
        3 => {
            template.node_selector = [("rack".to_owned(), "r2".to_owned())].into();
            let preferred = PreferredNodes { weight: 3, term: parse("large").unwrap() };
            template.node_affinity = NodeAffinity { required: Vec::new(), preferred: vec![preferred] };
        }
        4 => {
            let toleration =
                Toleration { key: "busy".to_owned(), value: None, effect: None, tolerated_s: None };
            template.tolerations.push(toleration);
        }
        5 => template.demand.devices.push(DeviceRequest {
            kind: "gpu".to_owned(),
            count: 1,
            milli: 500,
            models: Vec::new(),
            terms: None,
        }),
        6 => *affinity = UnitAffinity { apart: vec![term("", NODE, 0)], ..UnitAffinity::default() },
        7 => *affinity = UnitAffinity { near: vec![term("app = a0", "rack", 0)], ..UnitAffinity::default() },
        8 => {
            *affinity =
                UnitAffinity { spread: vec![spread("rack", 0), spread(NODE, 5)], ..UnitAffinity::default() }
        }
        9 => {
            let apart = vec![term("app in (a0, a1)", "rack", 7)];
            *affinity =
                UnitAffinity { near: vec![term("app = a2", NODE, 3)], apart, ..UnitAffinity::default() };
        }
        10 => {
            *affinity = UnitAffinity { apart: vec![term("app = a1", NODE, 0)], ..UnitAffinity::default() };
            template.max_load = MaxLoad { cpu: Some(70), memory: Some(90) };
            template.demand.host_ports.push(HostPort { port: 53, protocol: Protocol::Udp });
        }
        11 => {
            let (policy, cpu_mode) = (ZonePolicy::SingleZone, CpuMode::Dedicated);
            template.demand.zones = Some(ZoneRequest { policy, cpu_mode });
        }
        // Judged by the zones that it would be given.
        12 | 13 => {
            let policy = if kind == 12 { ZonePolicy::SingleZone } else { ZonePolicy::Restricted };
            template.demand.zones = Some(ZoneRequest { policy, cpu_mode: CpuMode::Shared });
            template.max_load = MaxLoad { cpu: Some(60), memory: None };
        }
        _ => {}
    }
    record
}

const PLAIN: usize = 6;

struct PlacerWorld {
    cluster: Cluster,
    placer: Placer,
    profile: Profile,
    /// Lists end with each unit, and scans look at every node: the best is found.
    is_exact: bool,
    /// Scans look at every node.
    looks_at_all: bool,
    bound: Vec<(RunningUnitId, NodeId)>,
    n_units: u64,
    revision: u64,
}

impl PlacerWorld {
    fn new(cache: bool, limit_scan: bool, is_exact: bool) -> Self {
        let scores: Vec<(&str, u32)> = SCORES.iter().map(|score| (score.name, 1)).collect();
        let spec = ProfileSpec::of_scores(&scores);
        let own = [("all".to_owned(), spec.clone())].into();
        let profiles = Profiles::new(&ProfileSettings { own, ..ProfileSettings::default() }).unwrap();
        let mut cluster = Cluster::new();
        profiles.intern(&mut cluster);
        assert!(cluster.taken().work.is_active());
        let placer = Placer::new(Settings { profiles, seed: 7, surplus: 24, cache, limit_scan });
        let profile = Profile::new(&spec).unwrap();
        let mut world = Self {
            cluster,
            placer,
            profile,
            is_exact,
            looks_at_all: !limit_scan,
            bound: Vec::new(),
            n_units: 0,
            revision: 0,
        };
        for node in 1..=N_NODES {
            world.apply(&ClusterEvent::Node(node, node % 4, (true, false, node % 5 == 0)));
        }
        // Templates in use keep their lists.
        (0..N_KINDS).for_each(|kind| _ = world.known(&record(kind, 1_000 + kind as u64, 1)));
        world
    }

    fn apply(&mut self, event: &ClusterEvent) {
        self.revision += 1;
        let revision = Revision(self.revision);
        match *event {
            ClusterEvent::Node(node, rack, (is_open, is_tainted, is_large)) => {
                let (id, large) = (NodeId(node), ("large".to_owned(), String::new()));
                let labels =
                    [("rack".to_owned(), format!("r{rack}"))].into_iter().chain(is_large.then_some(large));
                let taint =
                    |effect| Taint { key: "busy".to_owned(), value: String::new(), effect, added_ms: 0 };
                let effect = if is_large { TaintEffect::PreferNoSchedule } else { TaintEffect::NoSchedule };
                let taints = is_tainted.then(|| taint(effect)).into_iter().collect();
                let spec = NodeSpec {
                    id,
                    cordoned: !is_open,
                    labels: labels.collect(),
                    taints,
                    ..NodeSpec::default()
                };
                let cpu = if is_large { 8_000 } else { 4_000 };
                let capacity = Resources::new([(CPU, cpu), (MEMORY, 16), (NETWORK, 1_000)]).unwrap();
                let gpu =
                    Device { kind: "gpu".to_owned(), model: "A".to_owned(), numa_zone: 0, details: None };
                let devices = if is_large { vec![gpu] } else { Vec::new() };
                self.cluster.nodes_mut().put_spec(spec, revision);
                let zone = |at: u32| Zone {
                    capacity: Resources::new([(CPU, cpu / 2)]).unwrap(),
                    cpus: (4 * at..4 * at + if is_large { 4 } else { 2 }).collect(),
                    ..Zone::default()
                };
                let zones = if node % 3 == 0 { vec![zone(0), zone(1)] } else { Vec::new() };
                let report =
                    NodeReport { id, capacity, devices, zones, ready: true, ..NodeReport::default() };
                self.cluster.nodes_mut().put_report(report, revision);
            }
            ClusterEvent::Load(node, used) => {
                let amounts =
                    |used: i64| LoadAmounts { cpu: used * 800, memory: used, network: 100 * (9 - used) };
                let load = used.map(|used| NodeLoad { p50: amounts(used / 2), p95: amounts(used) });
                // One zone is used as much as the other one is not; of some neither is known.
                let of_zone = |(zone, used)| ZoneLoad {
                    zone,
                    load: NodeLoad { p50: amounts(used / 2), p95: amounts(used / 2) },
                };
                let zone_loads = match used {
                    Some(used) if used != 5 => [(0, used), (1, 9 - used)].map(of_zone).to_vec(),
                    Some(_) | None => Vec::new(),
                };
                let usage = NodeUsage {
                    id: NodeId(node),
                    as_of_ms: i64::MIN,
                    load,
                    zone_loads,
                    ..NodeUsage::default()
                };
                self.cluster.nodes_mut().put_usage(usage, revision);
            }
            ClusterEvent::Unit(kind, replicas) => self.place(kind, replicas),
            ClusterEvent::End(nth) => {
                if nth < self.bound.len() {
                    let (id, _) = self.bound.swap_remove(nth);
                    self.cluster.forget(id);
                }
            }
        }
    }

    /// What every node says of one more replica, by all filters and scores.
    fn look(&mut self, template: TemplateId) -> BTreeMap<NodeId, NodeScore> {
        let entry = self.placer.templates.get_mut(template);
        self.profile.prepare(&self.cluster, &mut entry.ask);
        let (cluster, ask, typical) = (&self.cluster, &entry.ask, &self.placer.typical);
        let passing = cluster.nodes().ids().filter(|node| self.profile.check(cluster, ask, *node).is_ok());
        let rated = passing.map(|node| {
            let allocation =
                cluster.free().room_for(ask.shape(), node.idx()).expect("the filters found room");
            let place = ScoreInput { cluster, ask, idx: node.idx(), allocation, typical };
            (node, self.profile.rank(&place, 0))
        });
        rated.collect()
    }

    fn place(&mut self, kind: usize, replicas: u32) {
        self.n_units += 1;
        let record = record(kind, self.n_units, replicas);
        let (id, spec) = (record.id, &record.spec);
        let template = self.known(&record);
        if self.is_exact {
            self.placer.templates.clear_candidates();
        }
        self.placer.begin(&mut self.cluster, template, id, replicas as usize);
        for ordinal in 0..replicas {
            let seen = self.look(template);
            let wanted = (replicas - ordinal) as usize;
            let n_scans = self.placer.misses;
            let Some(choice) = self.placer.next(&mut self.cluster, template, id, wanted) else {
                assert!(seen.is_empty(), "kind {kind}: nothing was found, though {seen:?} pass");
                break;
            };
            let Some(rank) = seen.get(&choice.node) else {
                panic!("kind {kind}: {:?} was chosen, which does not pass", choice.node)
            };
            if self.looks_at_all {
                // A list goes on with what it knows, but with nothing that got a soft taint since, unless every node has one.
                let fewest = seen.values().map(|seen| seen.soft_taints.0).min().unwrap_or(0);
                let listed = match self.placer.misses == n_scans {
                    true => self.placer.templates.get(template).candidates.n_soft_taints,
                    false => fewest,
                };
                assert!(
                    rank.soft_taints.0 <= listed.max(fewest),
                    "kind {kind}: {:?} has {} soft taints, others {fewest}",
                    choice.node,
                    rank.soft_taints.0
                );
            }
            if self.is_exact {
                let best = seen.values().max().unwrap();
                assert_eq!(rank, best, "kind {kind}: {:?} is not the best", choice.node);
            }
            let running = RunningUnitId::new(id, ordinal, 0);
            let shape = self.cluster.shape(&spec.task_groups[0].template.demand, Pool::Guaranteed);
            self.cluster.assume(running, shape, choice.node, choice.allocation);
            self.bound.push((running, choice.node));
        }
        self.placer.templates.release(template);
    }

    /// The template of a unit that the cluster knows from now on.
    fn known(&mut self, record: &UnitRecord) -> TemplateId {
        let (id, spec) = (record.id, &record.spec);
        let identity = UnitIdentity::of(spec);
        if spec.has_terms() {
            self.cluster.units_mut().put_terms(id, &identity, &AffinityTerms::of(spec, &[]));
        }
        self.cluster.units_mut().offer(id, &identity, || WantedOrdinals::of(record));
        self.cluster.units_mut().put_work(id, WorkKind::of(spec));
        let spreads = spec.class.spreads() && spec.replicas() > 1;
        self.placer.intern(&mut self.cluster, &spec.task_groups[0].template, id, spec, spreads)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn short_cuts_find_what_a_look_at_every_node_finds(events in prop::collection::vec(event(), 1..60)) {
        for (cache, limit_scan, is_exact) in
            [(true, true, false), (false, true, false), (true, false, false), (true, false, true), (false, false, true)]
        {
            let mut world = PlacerWorld::new(cache, limit_scan, is_exact);
            for event in &events {
                world.apply(event);
            }
        }
    }

    /// Few nodes take new work, and which do changes, so that lists of candidates run low.
    #[test]
    fn a_known_node_with_a_new_soft_taint_comes_behind_those_that_open(events in prop::collection::vec(few_open(), 1..60)) {
        let mut world = PlacerWorld::new(true, false, false);
        (1..=N_NODES).for_each(|node| world.apply(&ClusterEvent::Node(node, 0, (false, false, true))));
        for event in &events {
            world.apply(event);
        }
    }

    /// Who waits is told of every node on which there may be room now.
    #[test]
    fn nodes_that_come_to_pass_have_gained(events in prop::collection::vec(event(), 1..60)) {
        let mut world = PlacerWorld::new(true, true, false);
        let templates: Vec<TemplateId> =
            (0..PLAIN).map(|kind| world.known(&record(kind, 2_000 + kind as u64, 1))).collect();
        for event in &events {
            let before: Vec<_> = templates.iter().map(|template| world.look(*template)).collect();
            let mut gained = Vec::new();
            world.cluster.free_mut().generations.take_gained(&mut gained);
            gained.clear();
            world.apply(event);
            world.cluster.free_mut().generations.take_gained(&mut gained);
            for (template, before) in templates.iter().zip(before) {
                for node in world.look(*template).into_keys().filter(|node| !before.contains_key(node)) {
                    prop_assert!(gained.contains(&node), "{node:?} passes since {event:?}");
                }
            }
        }
    }
}
