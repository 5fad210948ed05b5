//! One table per plugin: a node, a template, and what the plugin says.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use godel_base::{
    ids::{NodeId, Revision, RunningUnitId, UnitId},
    resources::{CPU, MEMORY, Resources},
};
use godel_cluster::{Cluster, StandingTerms, Unfit};
use godel_domain::{
    allocation::Allocation,
    demand::{Demand, DeviceRequest, Pool},
    node::{Device, NodeReport, NodeSpec, Taint, TaintEffect, Toleration},
    unit::Template,
};
use godel_testkit::BuildDemand as _;
use serde_json::{Value, json};

use crate::{
    ask::Ask,
    point::{AnyFilter, AnyScore, RestsOn, SCORE_MAX, ScoreInput},
    profile::{BUILT_IN, NodeScore, Profile, ProfileError, ProfileSpec, ScoreSpec, WEIGHT_MAX},
    registry::{
        CANDIDATE_COSTS, FILTERS, GROUPERS, LOCATORS, RECOMMENDERS, RESERVES, SCORES, VICTIM_RULES, admit,
        concerned,
    },
    typical::Typical,
};

mod args;
mod nodes;
mod recommended;

const NODE: NodeId = NodeId(1);

/// One node with 10 cpu, 100 memory, `n_gpus` A10; then whatever the case changes.
pub(super) fn cluster(n_gpus: usize, change: impl Fn(&mut NodeSpec, &mut NodeReport)) -> Cluster {
    let gpu = Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
    let capacity = Resources::new([(CPU, 10), (MEMORY, 100)]).unwrap();
    let mut spec = NodeSpec { id: NODE, name: "n1".to_owned(), ..NodeSpec::default() };
    let devices = vec![gpu; n_gpus];
    let mut report = NodeReport { id: NODE, capacity, devices, ready: true, ..NodeReport::default() };
    change(&mut spec, &mut report);
    let mut cluster = Cluster::new();
    cluster.nodes_mut().put_report(report, Revision(1));
    cluster.nodes_mut().put_spec(spec, Revision(1));
    cluster
}

pub(super) fn demand(cpu: i64, memory: i64, gpus: Option<(u32, u32)>) -> Demand {
    let (count, milli) = gpus.unwrap_or_default();
    godel_testkit::demand(cpu).memory(memory).gpus(count, milli, &["A10"])
}

fn template(demand: Demand) -> Template {
    Template { demand, ..Template::default() }
}

/// What one filter says, with and without words; empty when the node passes.
#[track_caller]
fn check(filter: &dyn AnyFilter, cluster: &mut Cluster, template: &Template, expected: &str) {
    let mut ask = Ask::new(cluster, template, Pool::Guaranteed);
    built_in("most-allocated").prepare(cluster, &mut ask);
    let refusal = filter.check(cluster, ask.on_node(), NODE).err();
    assert_eq!(refusal.as_ref().map_or(String::new(), ToString::to_string), expected);
    let gate = filter.prepare(cluster, &ask);
    assert_eq!(gate.is_none_or(|gate| gate.passes(cluster, NODE.idx())), expected.is_empty());
    if filter.rests_on() != RestsOn::Room {
        assert_eq!(binder_admits(cluster, &ask, true).err(), refusal, "the binder says the same");
    }
    check_standing(cluster, &ask, template);
}

/// Whether the node counts for spreads is what the filters say that rest on its records, and the room of the node if nothing ran there.
#[track_caller]
fn check_standing(cluster: &Cluster, ask: &Ask, template: &Template) {
    let standing =
        |filter: &&&dyn AnyFilter| filter.rests_on() == RestsOn::Records || filter.name() == "node-ready";
    let refusal =
        FILTERS.iter().filter(standing).find_map(|filter| filter.check(cluster, ask.on_node(), NODE).err());
    let has_room = cluster.free().n_fit_empty(ask.shape(), NODE.idx(), 1) > 0;
    let takes = cluster.free().takes(&StandingTerms::of(template, ask.shape()), NODE.idx());
    assert_eq!(takes, refusal.is_none() && has_room, "{refusal:?}");
}

/// What the binder says of the node, which asks the filters that concern a replica.
fn binder_admits(cluster: &Cluster, ask: &Ask, has_changed: bool) -> Result<(), Unfit> {
    let on_node = ask.on_node();
    admit(cluster, on_node, concerned(cluster, &on_node), NODE, has_changed)
}

/// A plugin by name.
pub(super) fn score_of(name: &str, args: Value) -> Arc<dyn AnyScore> {
    SCORES.iter().find(|score| score.name == name).unwrap().build(&args).unwrap()
}

fn built_in(name: &str) -> Profile {
    let built_in = BUILT_IN.iter().find(|profile| profile.name == name).unwrap();
    Profile::new(&ProfileSpec::of_scores(built_in.scores)).unwrap()
}

#[test]
fn node_ready() {
    let any = template(Demand::default());
    let filter = &super::node_ready::NodeReady;
    check(filter, &mut cluster(0, |_, _| {}), &any, "");
    check(filter, &mut cluster(0, |_, report| report.ready = false), &any, "node is not ready");
    check(filter, &mut cluster(0, |spec, _| spec.cordoned = true), &any, "node is cordoned");
    let mut gone = cluster(0, |_, _| {});
    gone.nodes_mut().remove(NODE);
    check(filter, &mut gone, &any, "node is gone");
    let mut unreported = Cluster::new();
    unreported.nodes_mut().put_spec(NodeSpec { id: NODE, ..NodeSpec::default() }, Revision(1));
    check(filter, &mut unreported, &any, "node is not ready");
}

#[test]
fn node_selector() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = |own: &[(&str, &str)], found: &[(&str, &str)]| {
        let own: BTreeMap<_, _> = own.iter().map(|(key, value)| pair(key, value)).collect();
        let found: BTreeMap<_, _> = found.iter().map(|(key, value)| pair(key, value)).collect();
        cluster(0, move |spec, report| (spec.labels, report.attributes) = (own.clone(), found.clone()))
    };
    let select = |pairs: &[(&str, &str)]| {
        let node_selector = pairs.iter().map(|(key, value)| pair(key, value)).collect();
        Template { node_selector, ..Template::default() }
    };
    let filter = &super::node_selector::NodeSelector;
    check(filter, &mut labels(&[], &[]), &select(&[]), "");
    check(filter, &mut labels(&[("zone", "a")], &[]), &select(&[("zone", "a")]), "");
    check(filter, &mut labels(&[], &[("zone", "a")]), &select(&[("zone", "a")]), "");
    check(
        filter,
        &mut labels(&[("zone", "b")], &[("zone", "a")]),
        &select(&[("zone", "a")]),
        "no label zone=a",
    );
    check(
        filter,
        &mut labels(&[("zone", "a")], &[]),
        &select(&[("rack", "7"), ("zone", "a")]),
        "no label rack=7",
    );
    check(
        filter,
        &mut labels(&[("zone", "a")], &[("rack", "7")]),
        &select(&[("rack", "7"), ("zone", "a")]),
        "",
    );
}

#[test]
fn taints() {
    let taint =
        |value: &str, effect| Taint { key: "gpu".to_owned(), value: value.to_owned(), effect, added_ms: 0 };
    let tainted = |taint: Taint| cluster(0, move |spec, _| spec.taints = vec![taint.clone()]);
    let tolerate_for = |tolerated_s, key: &str, value: Option<&str>, effect| Template {
        tolerations: vec![Toleration {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect,
            tolerated_s,
        }],
        ..Template::default()
    };
    let tolerate = |key: &str, value, effect| tolerate_for(None, key, value, effect);
    let none = Template::default();
    let filter = &super::taints::Taints;
    let hard = TaintEffect::NoSchedule;
    let soft = TaintEffect::PreferNoSchedule;
    check(filter, &mut cluster(0, |_, _| {}), &none, "");
    check(filter, &mut tainted(taint("only", hard)), &none, "taint gpu=only not tolerated");
    check(filter, &mut tainted(taint("", hard)), &none, "taint gpu not tolerated");
    check(filter, &mut tainted(taint("only", soft)), &none, "");
    check(filter, &mut tainted(taint("only", hard)), &tolerate("gpu", Some("only"), None), "");
    check(filter, &mut tainted(taint("only", hard)), &tolerate("", None, Some(hard)), "");
    let evicts = TaintEffect::NoExecute;
    check(filter, &mut tainted(taint("", evicts)), &none, "taint gpu not tolerated");
    check(
        filter,
        &mut tainted(taint("", evicts)),
        &tolerate("gpu", None, Some(hard)),
        "taint gpu not tolerated",
    );
    check(filter, &mut tainted(taint("", evicts)), &tolerate("gpu", None, Some(evicts)), "");
    check(
        filter,
        &mut tainted(taint("", evicts)),
        &tolerate_for(Some(7), "gpu", None, Some(evicts)),
        "taint gpu tolerated for a time only: nothing new comes",
    );
    let other = tolerate("gpu", Some("shared"), None);
    check(filter, &mut tainted(taint("only", hard)), &other, "taint gpu=only not tolerated");
    let softly = tolerate("gpu", None, Some(soft));
    check(filter, &mut tainted(taint("only", hard)), &softly, "taint gpu=only not tolerated");
}

#[test]
fn resources_fit() {
    let filter = &super::resources_fit::ResourcesFit;
    check(filter, &mut cluster(0, |_, _| {}), &template(demand(10, 100, None)), "");
    check(filter, &mut cluster(0, |_, _| {}), &template(demand(11, 101, None)), "insufficient cpu");
    check(filter, &mut cluster(0, |_, _| {}), &template(demand(0, 101, None)), "insufficient memory");
    let fpga = |n: i64| {
        template(Demand {
            requests: Resources::new([("fpga", n)]).unwrap(),
            devices: Vec::new(),
            host_ports: Vec::new(),
            zones: None,
        })
    };
    check(filter, &mut cluster(0, |_, _| {}), &fpga(1), "insufficient fpga");
    let has_fpga = |_: &mut NodeSpec, report: &mut NodeReport| {
        report.capacity = Resources::new([("fpga", 2)]).unwrap();
    };
    check(filter, &mut cluster(0, has_fpga), &fpga(2), "");
    check(filter, &mut cluster(0, has_fpga), &fpga(3), "insufficient fpga");
    let mut shrunk = cluster(0, |_, _| {});
    let shape = shrunk.shape(&demand(10, 0, None), Pool::Guaranteed);
    shrunk.assume(RunningUnitId::new(UnitId(1), 0, 0), shape, NODE, Allocation::default());
    shrunk.nodes_mut().put_allocatable(NODE, Resources::new([(CPU, 5)]).unwrap(), Revision(2));
    check(filter, &mut shrunk, &template(demand(1, 0, None)), "insufficient cpu");
    check(filter, &mut shrunk, &template(Demand::default()), "");
}

#[test]
fn device() {
    let filter = &super::device::Devices;
    check(filter, &mut cluster(0, |_, _| {}), &template(demand(1, 1, None)), "");
    check(filter, &mut cluster(0, |_, _| {}), &template(demand(1, 1, Some((1, 1000)))), "no gpu");
    check(filter, &mut cluster(2, |_, _| {}), &template(demand(1, 1, Some((2, 1000)))), "");
    check(
        filter,
        &mut cluster(2, |_, _| {}),
        &template(demand(1, 1, Some((3, 1000)))),
        "gpu: 2 free of 3 asked",
    );
    let other = |_: &mut NodeSpec, report: &mut NodeReport| report.devices[0].model = "T4".to_owned();
    check(filter, &mut cluster(1, other), &template(demand(1, 1, Some((1, 10)))), "no gpu of model A10");
}

/// The score of placing `demand` on node 1 when `before` is there already.
fn score(plugin: &dyn AnyScore, n_gpus: usize, before: &Demand, demand: &Demand, typical: &[Demand]) -> i64 {
    score_on(plugin, cluster(n_gpus, |_, _| {}), before, demand, typical)
}

/// The same on node 1 of a cluster.
pub(super) fn score_on(
    plugin: &dyn AnyScore,
    mut cluster: Cluster,
    before: &Demand,
    demand: &Demand,
    typical: &[Demand],
) -> i64 {
    let taken = cluster.shape(before, Pool::Guaranteed);
    let given = cluster.free().pick(taken, NODE).unwrap();
    if *before != Demand::default() {
        cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), taken, NODE, given);
    }
    let mut seen = Typical::default();
    for demand in typical {
        seen.note(cluster.shape(demand, Pool::Guaranteed), 1);
    }
    let mut ask = Ask::new(&mut cluster, &template(demand.clone()), Pool::Guaranteed);
    built_in("most-allocated").prepare(&cluster, &mut ask);
    let allocation = cluster.free().pick(ask.shape(), NODE).unwrap();
    let score = plugin.score(&ScoreInput {
        cluster: &cluster,
        ask: &ask,
        idx: NODE.idx(),
        allocation,
        typical: &seen,
    });
    assert!((0..=SCORE_MAX).contains(&score), "{score}");
    score
}

#[test]
fn most_and_least_allocated_are_mirror_images() {
    let [most, least] = ["most-allocated", "least-allocated"].map(|name| score_of(name, Value::Null));
    let nothing = Demand::default();
    for (n_gpus, before, placed, expected) in [
        (0, nothing.clone(), demand(5, 50, None), 50),
        (0, nothing.clone(), demand(10, 100, None), 100),
        (0, demand(4, 40, None), demand(5, 50, None), 90),
        (2, nothing.clone(), demand(6, 60, Some((1, 1000))), 56),
        (2, demand(1, 10, Some((1, 1000))), demand(1, 10, Some((1, 500))), 38),
        // What asks for no cpu or memory counts more than all of this small node has.
        (0, nothing.clone(), demand(0, 50, None), 75),
        (0, demand(5, 0, None), demand(5, 0, None), 100),
    ] {
        let scored = score(&*most, n_gpus, &before, &placed, &[]);
        assert_eq!(scored / 1000, expected, "{before:?} then {placed:?}");
        assert_eq!(score(&*least, n_gpus, &before, &placed, &[]), SCORE_MAX - scored);
    }
}

#[test]
fn device_stranding_keeps_devices_usable() {
    let plugin = &score_of("device-stranding", Value::Null);
    let nothing = Demand::default();
    let whole = demand(5, 1, Some((1, 1000)));
    let half = demand(1, 1, Some((1, 500)));
    let (typical, none) = ([whole.clone()], nothing.clone());
    let neutral = SCORE_MAX / 2;
    // Without devices nothing can strand, and such nodes come first for work without devices.
    assert_eq!(score(&**plugin, 0, &none, &demand(1, 1, None), &typical), SCORE_MAX);
    assert!(score(&**plugin, 2, &none, &demand(1, 1, None), &typical) <= neutral);
    // Of two whole devices with cpu for two: taking one with its cpu strands nothing.
    assert_eq!(score(&**plugin, 2, &none, &whole, &typical), neutral);
    // Taking one with more cpu than its part strands the other.
    assert!(score(&**plugin, 2, &none, &demand(6, 1, Some((1, 1000))), &typical) < neutral);
    // A share is better taken from a begun device than from a whole one.
    assert!(score(&**plugin, 2, &half, &half, &typical) > score(&**plugin, 2, &none, &half, &typical));
    // What is stranded already may be taken: it gets better.
    assert!(score(&**plugin, 2, &demand(6, 1, None), &demand(1, 1, Some((1, 1000))), &typical) > neutral);
}

/// How many thousandths of `left` so many of `demand` as fit together take, one after the other.
fn taken_together(mut free: [i64; 2], left: &mut [i64], demand: &Demand) -> i64 {
    let Some(DeviceRequest { count, milli, .. }) = demand.devices.first().cloned() else { return 0 };
    let milli = i64::from(milli);
    let mut taken = 0;
    loop {
        free = [free[0] - demand.requests.get(CPU), free[1] - demand.requests.get(MEMORY)];
        let fitting: Vec<usize> = (0..left.len()).filter(|idx| left[*idx] >= milli).collect();
        if free.iter().any(|free| *free < 0) || fitting.len() < count as usize {
            return taken;
        }
        for idx in fitting.into_iter().take(count as usize) {
            left[idx] -= milli;
            taken += milli;
        }
    }
}

#[test]
fn device_stranding_is_the_rise_of_what_typical_work_leaves() {
    let gpus = [None, Some((1, 1000)), Some((2, 1000)), Some((1, 300)), Some((1, 550))];
    let demands: Vec<Demand> = gpus
        .iter()
        .flat_map(|gpus| [(1, 10), (4, 1), (3, 30)].map(|(cpu, memory)| demand(cpu, memory, *gpus)))
        .collect();
    let mut n_scores = [0; 3];
    for (before, placed) in
        demands.iter().flat_map(|before| demands.iter().map(move |placed| (before, placed)))
    {
        // On four devices, lowest first: `before`, then `placed` on the fitting device with the least left.
        let mut free = [10, 100];
        let mut left = [1000; 4];
        let mut opened = 0;
        let mut take = |demand: &Demand, free: &mut [i64; 2], left: &mut [i64; 4]| {
            opened = 0;
            *free = [free[0] - demand.requests.get(CPU), free[1] - demand.requests.get(MEMORY)];
            let (count, milli) =
                demand.devices.first().map_or((0, 0), |ask| (ask.count, i64::from(ask.milli)));
            for _ in 0..count {
                let fitting = (0..4).filter(|idx| left[*idx] >= milli);
                let idx = fitting.min_by_key(|idx| left[*idx]).unwrap();
                opened += i64::from(left[idx] == 1000 && milli < 1000);
                left[idx] -= milli;
            }
            opened
        };
        take(before, &mut free, &mut left);
        let (free_before, left_before) = (free, left);
        let opened = take(placed, &mut free, &mut left);
        for typical in demands.iter().filter(|typical| !typical.devices.is_empty()) {
            let stranded = |free: [i64; 2], left: [i64; 4]| {
                left.iter().sum::<i64>() - taken_together(free, &mut left.clone(), typical)
            };
            let rise = stranded(free, left) - stranded(free_before, left_before) + 30 * opened;
            let expected = (SCORE_MAX / 2 - 6 * rise).clamp(0, SCORE_MAX);
            let expected = if placed.devices.is_empty() { expected / 2 } else { expected };
            let plugin = &score_of("device-stranding", Value::Null);
            let scored = score(&**plugin, 4, before, placed, std::slice::from_ref(typical));
            assert_eq!(scored, expected, "{before:?} then {placed:?} for {typical:?}");
            n_scores[usize::from(rise > 0) + 2 * usize::from(rise < 0)] += 1;
        }
    }
    assert!(n_scores.iter().all(|n| *n > 10), "each case occurs: {n_scores:?}");
}

#[test]
fn shares_are_those_of_a_division() {
    for (all, taken) in [(1, 0), (7, 3), (96_000, 31_337), (400 << 30, 123_456_789_012), (16 << 40, 1 << 40)]
    {
        let capacity = move |_: &mut NodeSpec, report: &mut NodeReport| {
            report.capacity = Resources::new([(CPU, all), (MEMORY, all)]).unwrap();
        };
        let mut cluster = cluster(0, capacity);
        let any = cluster.shape(&Demand::default(), Pool::Guaranteed);
        let exact = (i128::from(all - taken) * i128::from(SCORE_MAX) / i128::from(all)) as i64;
        for id in [0, 1] {
            let share = cluster.free().room(any).share(NODE.idx(), id, all - taken);
            assert!((exact - 1..=exact).contains(&share), "{share} of {exact}");
            assert_eq!(cluster.free().room(any).share(NODE.idx(), id, -1), 0);
        }
    }
    let mut none = cluster(0, |_, report| report.capacity = Resources::default());
    let any = none.shape(&Demand::default(), Pool::Guaranteed);
    assert_eq!(none.free().room(any).share(NODE.idx(), 0, 5), 0, "a node without any has nothing left");
}

#[test]
fn packed_ranks_are_in_the_order_of_ranks() {
    let mut ranks = Vec::new();
    for soft_taints in [0, 1, u32::MAX] {
        for score in [i64::MIN, -1, 0, 1, SCORE_MAX * 1_001, i64::MAX] {
            for tie in [0, 1, u32::MAX] {
                ranks.push(NodeScore { soft_taints: Reverse(soft_taints), score, tie });
            }
        }
    }
    for (a, b) in ranks.iter().flat_map(|a| ranks.iter().map(move |b| (a, b))) {
        assert_eq!(a.cmp(b), a.packed().cmp(&b.packed()), "{a:?} and {b:?}");
    }
}

/// A filter that is not asked lets every node pass.
#[test]
fn filters_are_left_out_only_where_they_pass_all() {
    let taint = |effect| Taint { key: "gpu".to_owned(), value: String::new(), effect, added_ms: 0 };
    let names = |cluster: &mut Cluster, template: &Template| {
        let mut ask = Ask::new(cluster, template, Pool::Guaranteed);
        built_in("most-allocated").prepare(cluster, &mut ask);
        format!("{:?}", ask.gates())
    };
    let tainted = |effect| cluster(0, move |spec, _| spec.taints = vec![taint(effect)]);
    let any = Template::default();
    let selecting =
        Template { node_selector: [("zone".to_owned(), "a".to_owned())].into(), ..Template::default() };
    assert_eq!(names(&mut cluster(2, |_, _| {}), &any), r#"["node-ready"]"#);
    assert_eq!(names(&mut cluster(0, |_, _| {}), &selecting), r#"["node-selector", "node-ready"]"#);
    assert_eq!(names(&mut tainted(TaintEffect::NoSchedule), &any), r#"["taints", "node-ready"]"#);
    assert_eq!(names(&mut tainted(TaintEffect::PreferNoSchedule), &any), r#"["node-ready"]"#);
}

#[test]
fn soft_taints_come_before_scores() {
    let rank = |n_taints: usize| {
        let soft = |key: usize| Taint {
            key: key.to_string(),
            value: String::new(),
            effect: TaintEffect::PreferNoSchedule,
            added_ms: 0,
        };
        let mut cluster = cluster(0, |spec, _| spec.taints = (0..n_taints).map(soft).collect());
        let filled = cluster.shape(&demand(n_taints as i64, 0, None), Pool::Guaranteed);
        cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), filled, NODE, Allocation::default());
        let mut ask = Ask::new(&mut cluster, &template(demand(1, 1, None)), Pool::Guaranteed);
        let profile = built_in("most-allocated");
        profile.prepare(&cluster, &mut ask);
        let typical = Typical::default();
        let place = ScoreInput {
            cluster: &cluster,
            ask: &ask,
            idx: NODE.idx(),
            allocation: Allocation::default(),
            typical: &typical,
        };
        profile.rank(&place, 0)
    };
    assert!(rank(0) > rank(1));
    assert!(rank(1) > rank(3));
}

fn scores(scores: &[(&str, u32)]) -> Result<Profile, ProfileError> {
    Profile::new(&ProfileSpec::of_scores(scores))
}

#[test]
fn profiles_know_their_plugins() {
    let names: Vec<String> = FILTERS.iter().map(|filter| filter.name().to_owned()).collect();
    let packs = [
        ("device-stranding", 1_000),
        ("node-affinity", 100),
        ("unit-preference", 100),
        ("spread-preference", 100),
        ("most-allocated", 1),
    ];
    let of = |filters: &[String]| {
        Profile::new(&ProfileSpec { filters: Some(filters.to_vec()), ..ProfileSpec::of_scores(&packs) })
    };
    assert_eq!(of(&names).unwrap(), built_in("most-allocated"));
    assert_eq!(scores(&packs).unwrap(), built_in("most-allocated"));
    assert_ne!(built_in("most-allocated"), built_in("least-allocated"));
    let said = |wrong: Result<Profile, ProfileError>| wrong.unwrap_err().to_string();
    assert_eq!(
        said(of(&["luck".to_owned()])),
        "`filters[0]`: there is no filter `luck`; there are node-ready, node-class, runtime, node-selector, taints, daemon, volume, unit-affinity, \
         topology-spread, host-ports, load-threshold, device, resources-fit, numa-topology"
    );
    assert_eq!(
        said(of(&names[1..])),
        "`filters`: the filter `node-ready` cannot be left out, because the binder checks it; allowed is the whole list: node-ready, \
         node-class, runtime, node-selector, taints, daemon, volume, unit-affinity, topology-spread, host-ports, load-threshold, device, \
         resources-fit, numa-topology"
    );
    assert_eq!(
        said(scores(&[("spread", 1), ("best", 1)])),
        "`scores[1].name`: there is no score `best`; there are balanced-allocation, complementary, cpu-memory-ratio, device-stranding, dominant-fit, least-allocated, load-aware, most-allocated, node-affinity, spread, spread-preference, unit-preference"
    );
    assert_eq!(said(scores(&[("spread", 1), ("spread", 2)])), "`scores[1].name`: duplicate score `spread`");
    assert_eq!(
        said(scores(&[])),
        "`scores`: a profile has one score at least; there are balanced-allocation, complementary, cpu-memory-ratio, device-stranding, dominant-fit, least-allocated, load-aware, most-allocated, node-affinity, spread, spread-preference, unit-preference"
    );
    for weight in [0, WEIGHT_MAX + 1] {
        assert_eq!(
            said(scores(&[("device-stranding", 1), ("most-allocated", weight)])),
            format!("`scores[1].weight`: {weight} is not allowed; a weight is 1 to 1000000")
        );
    }
}

#[test]
fn resources_count_by_their_weights() {
    let nothing = Demand::default();
    let of = |resources: Value| score_of("most-allocated", json!({ "resources": resources }));
    // Taken after the placement: 60 % of cpu, 50 % of memory, half of the devices.
    let placed = demand(6, 50, Some((1, 1000)));
    for (resources, expected) in [
        (json!({"memory": 0, "gpu": 0}), 60),
        (json!({"cpu": 0, "gpu": 0}), 50),
        (json!({"cpu": 0, "memory": 0}), 50),
        (json!({"cpu": 8}), 58),
        (json!({"cpu": 3, "memory": 1, "gpu": 0}), 57),
    ] {
        let plugin = of(resources.clone());
        assert_eq!(score(&*plugin, 2, &nothing, &placed, &[]) / 1000, expected, "{resources}");
    }
    let devices = of(json!({"cpu": 0, "memory": 0}));
    assert_eq!(score(&*devices, 0, &nothing, &demand(5, 5, None), &[]), SCORE_MAX, "no devices on the node");
}

#[test]
fn plugins_have_unique_names_and_complete_documentation() {
    let filters = FILTERS.iter().map(|filter| (filter.name(), filter.doc()));
    let locators = LOCATORS.iter().map(|locator| (locator.name(), locator.doc()));
    let recommenders = RECOMMENDERS.iter().map(|one| (one.name(), one.doc()));
    let scores = SCORES.iter().map(|score| (score.name, score.doc));
    let preemption = VICTIM_RULES.iter().chain(&CANDIDATE_COSTS).map(|one| (one.name, one.doc));
    let mut names = BTreeSet::new();
    let reserves = RESERVES.iter().map(|kind| (kind.name, kind.doc));
    let groupers = GROUPERS.iter().map(|grouper| (grouper.name, grouper.doc));
    let all = filters.chain(locators).chain(recommenders).chain(groupers).chain(scores);
    for (name, doc) in all.chain(reserves).chain(preemption) {
        assert!(names.insert(name), "{name}");
        assert!(doc.ends_with('.') && !doc.contains("  "), "{name}: {doc}");
    }
    let scores = SCORES.iter().map(|score| (score.name, score.fields, score.defaults));
    let groupers = GROUPERS.iter().map(|grouper| (grouper.name, grouper.fields, grouper.defaults));
    for (name, fields, defaults) in scores.chain(groupers) {
        let documented: BTreeSet<&str> = fields.iter().map(|field| field.name).collect();
        let defaults = defaults();
        let keys: BTreeSet<&str> = defaults.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(documented, keys, "{name}");
    }
}

#[test]
fn a_template_without_a_configured_profile_fits_nowhere() {
    let mut cluster = cluster(0, |_, _| {});
    let mut ask = Ask::new(&mut cluster, &Template::default(), Pool::Guaranteed).nowhere(true);
    let profile = built_in("most-allocated");
    profile.prepare(&cluster, &mut ask);
    assert!(!ask.admits(&cluster, NODE.idx()));
    assert_eq!(profile.locate(&cluster, &ask), Some(&[][..]));
}
