//! Plugins that go by labels, ports and use of a node.

use godel_base::resources::NETWORK;
use godel_domain::{
    allocation::ZoneSet,
    label_expression::parse,
    node::{NODE_CLASS, NodeRuntime, NodeUsage},
    node_affinity::{NodeAffinity, PreferredNodes},
    node_load::{LoadAmounts, MaxLoad, NodeLoad, ZoneLoad},
    unit::{RunSpec, Volume},
    work_kind::WorkKind,
    zone::{CpuMode, Zone, ZonePolicy, ZoneRequest},
};

use super::*;

#[test]
fn node_affinity() {
    let terms = |terms: &[&str]| Template {
        node_affinity: NodeAffinity {
            required: terms.iter().map(|term| parse(term).unwrap()).collect(),
            preferred: Vec::new(),
        },
        ..Template::default()
    };
    let labelled = |pairs: &[(&str, &str)]| {
        let labels: BTreeMap<_, _> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        cluster(0, move |spec, _| spec.labels = labels.clone())
    };
    let filter = &crate::plugins::node_selector::NodeSelector;
    let node: &[(&str, &str)] = &[("zone", "a"), ("cores", "96")];
    check(filter, &mut labelled(node), &terms(&["zone in (a, b)"]), "");
    check(filter, &mut labelled(node), &terms(&["zone = b", "cores > 64"]), "");
    check(filter, &mut labelled(&[]), &terms(&["zone != b"]), "");
    check(
        filter,
        &mut labelled(node),
        &terms(&["zone = b", "!cores, zone = a"]),
        "labels do not meet zone = b or !cores, zone = a",
    );
    check(filter, &mut labelled(&[]), &terms(&["cores > 64"]), "labels do not meet cores > 64");
}

/// Two zones of 5 cpu each.
fn of_two_zones() -> Cluster {
    cluster(0, |_, report| {
        let zone = || Zone {
            kind: "numa".to_owned(),
            capacity: Resources::new([(CPU, 5)]).unwrap(),
            ..Zone::default()
        };
        report.zones = vec![zone(), zone()];
    })
}

#[test]
fn numa_topology() {
    let filter = &crate::plugins::numa_topology::NumaTopology;
    let zoned = |cpu, policy| {
        let zones = Some(ZoneRequest { policy, cpu_mode: CpuMode::Shared });
        template(Demand { zones, ..demand(cpu, 0, None) })
    };
    check(filter, &mut of_two_zones(), &template(demand(10, 0, None)), "");
    check(filter, &mut of_two_zones(), &zoned(5, ZonePolicy::SingleZone), "");
    let too_much = "no zone of the node has as much, even when it is empty";
    check(filter, &mut of_two_zones(), &zoned(6, ZonePolicy::SingleZone), too_much);
    check(filter, &mut of_two_zones(), &zoned(6, ZonePolicy::Restricted), "");
    check(filter, &mut cluster(0, |_, _| {}), &zoned(1, ZonePolicy::Exclusive), "the node has no zones");
    check(filter, &mut cluster(0, |_, _| {}), &zoned(1, ZonePolicy::BestEffort), "");
}

#[test]
fn preferred_nodes_score_by_the_weights_that_they_meet() {
    let preferred = |weight, term| PreferredNodes { weight, term: parse(term).unwrap() };
    let template = Template {
        node_affinity: NodeAffinity {
            required: Vec::new(),
            preferred: vec![preferred(3, "zone = a"), preferred(1, "!spot")],
        },
        ..Template::default()
    };
    let profile = scores(&[("node-affinity", 1), ("spread", 1)]).unwrap();
    let score = |pairs: &[(&str, &str)]| {
        let labels: BTreeMap<_, _> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut cluster = cluster(0, move |spec, _| spec.labels = labels.clone());
        let mut ask = Ask::new(&mut cluster, &template, Pool::Guaranteed);
        profile.prepare(&cluster, &mut ask);
        let (allocation, typical) = (Allocation::default(), &Typical::default());
        let place = ScoreInput { cluster: &cluster, ask: &ask, idx: NODE.idx(), allocation, typical };
        profile.rank(&place, 0).score
    };
    // The score `spread` does not concern it, and adds nothing.
    assert_eq!(score(&[("zone", "a")]), SCORE_MAX);
    assert_eq!(score(&[("zone", "a"), ("spot", "")]), SCORE_MAX * 3 / 4);
    assert_eq!(score(&[("zone", "b")]), SCORE_MAX / 4);
    assert_eq!(score(&[("spot", "")]), 0);
}

#[test]
fn host_ports() {
    let ports = |texts: &[&str]| {
        let host_ports = texts.iter().map(|text| text.parse().unwrap()).collect();
        template(Demand { host_ports, ..Demand::default() })
    };
    let filter = &crate::plugins::host_ports::HostPorts;
    let taken = || {
        let mut cluster = cluster(0, |_, _| {});
        let shape = cluster.shape(&ports(&["80", "53/udp"]).demand, Pool::Guaranteed);
        cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), shape, NODE, Allocation::default());
        cluster
    };
    check(filter, &mut cluster(0, |_, _| {}), &ports(&["80"]), "");
    check(filter, &mut taken(), &ports(&[]), "");
    check(filter, &mut taken(), &ports(&["8080", "53/tcp", "80/udp"]), "");
    check(filter, &mut taken(), &ports(&["8080", "80"]), "port 80/tcp is taken");
    check(filter, &mut taken(), &ports(&["53/udp"]), "port 53/udp is taken");
    let mut freed = taken();
    freed.forget(RunningUnitId::new(UnitId(1), 0, 0));
    check(filter, &mut freed, &ports(&["80", "53/udp"]), "");
}

#[test]
fn node_class() {
    let classed =
        || cluster(0, |spec, _| spec.labels = [(NODE_CLASS.to_owned(), "virtual".to_owned())].into());
    let selects = |term: &str| Template {
        node_affinity: NodeAffinity { required: vec![parse(term).unwrap()], preferred: Vec::new() },
        ..Template::default()
    };
    let refused = "node is of class virtual, which the unit does not name";
    let any = Template::default();
    let filter = &crate::plugins::node_class::NodeClass;
    check(filter, &mut cluster(0, |_, _| {}), &any, "");
    check(filter, &mut classed(), &any, refused);
    check(filter, &mut classed(), &selects("zone != a"), refused);
    check(filter, &mut classed(), &selects("godel.dev/node-class"), "");
    let node_selector = [(NODE_CLASS.to_owned(), "virtual".to_owned())].into();
    check(filter, &mut classed(), &Template { node_selector, ..Template::default() }, "");
}

#[test]
fn runtime() {
    let on = |runtime| cluster(0, move |_, report| report.runtime = runtime);
    let of = |run: RunSpec| Template { run, ..Template::default() };
    let filter = &crate::plugins::runtime::Runtime;
    let refused = "node runs processes, and the replica has no command";
    let command = RunSpec { command: vec!["sleep".to_owned()], ..RunSpec::default() };
    let later = RunSpec { await_command_ms: Some(1), ..RunSpec::default() };
    let simulated = RunSpec { simulated_duration_ms: Some(1), ..RunSpec::default() };
    let image = RunSpec { image: Some("web:1".to_owned()), ..command.clone() };
    for runtime in
        [NodeRuntime::Unknown, NodeRuntime::Simulated, NodeRuntime::Processes, NodeRuntime::Containers]
    {
        let idle = if runtime.runs_processes() { refused } else { "" };
        let runs_images = matches!(runtime, NodeRuntime::Simulated | NodeRuntime::Containers);
        let refused = if runs_images { "" } else { "node runs no images" };
        check(filter, &mut on(runtime), &of(image.clone()), refused);
        check(filter, &mut on(runtime), &of(RunSpec::default()), idle);
        for run in [&command, &later, &simulated] {
            check(filter, &mut on(runtime), &of(run.clone()), "");
        }
    }
    // A node of another kind elsewhere makes no difference; one that changes its kind does, also for who was prepared before.
    let mut cluster = on(NodeRuntime::Simulated);
    let mut ask = Ask::new(&mut cluster, &of(RunSpec::default()), Pool::Guaranteed);
    let profile = built_in("most-allocated");
    profile.prepare(&cluster, &mut ask);
    let report = cluster.nodes().report(NODE).unwrap().clone();
    let other = NodeReport { id: NodeId(7), runtime: NodeRuntime::Processes, ..report.clone() };
    cluster.nodes_mut().put_report(other, Revision(2));
    profile.prepare(&cluster, &mut ask);
    assert!(ask.admits(&cluster, NODE.idx()) && !ask.admits(&cluster, 7));
    cluster.nodes_mut().put_report(NodeReport { runtime: NodeRuntime::Processes, ..report }, Revision(3));
    profile.prepare(&cluster, &mut ask);
    assert!(!ask.admits(&cluster, NODE.idx()));
}

/// What is measured of [`NODE`], which has 10 cpu, 100 memory and 1,000 network.
fn measure(cluster: &mut Cluster, revision: u64, p50: [i64; 3], p95: [i64; 3]) {
    let amounts = |[cpu, memory, network]: [i64; 3]| LoadAmounts { cpu, memory, network };
    let load = Some(NodeLoad { p50: amounts(p50), p95: amounts(p95) });
    cluster
        .nodes_mut()
        .put_usage(NodeUsage { id: NODE, as_of_ms: 1, load, ..NodeUsage::default() }, Revision(revision));
}

#[test]
fn load_threshold() {
    let limited = |cpu, memory| Template { max_load: MaxLoad { cpu, memory }, ..Template::default() };
    let node = |load: Option<[i64; 3]>| {
        let mut cluster = cluster(0, |_, _| {});
        load.into_iter().for_each(|p95| measure(&mut cluster, 2, [0; 3], p95));
        cluster
    };
    let filter = &crate::plugins::load_threshold::LoadThreshold;
    let (both, cpu) = (limited(Some(80), Some(50)), "more than 80 % of cpu is used");
    check(filter, &mut node(Some([10, 100, 0])), &Template::default(), "");
    check(filter, &mut node(None), &both, "");
    check(filter, &mut node(Some([8, 50, 0])), &both, "");
    check(filter, &mut node(Some([9, 50, 0])), &both, cpu);
    check(filter, &mut node(Some([9, 51, 0])), &both, cpu);
    check(filter, &mut node(Some([8, 51, 0])), &both, "more than 50 % of memory is used");
    check(filter, &mut node(Some([99, 50, 0])), &limited(None, Some(50)), "");
    check(filter, &mut node(Some([99, 0, 0])), &limited(Some(100), None), "");
    // What is known no longer refuses nobody.
    let mut forgotten = node(Some([9, 51, 0]));
    forgotten.nodes_mut().put_usage(NodeUsage { id: NODE, as_of_ms: 1, ..NodeUsage::default() }, Revision(3));
    check(filter, &mut forgotten, &both, "");
}

/// Of [`NODE`] with two zones: cpu and memory that are used of the node, and cpu that is used of each zone; `None`: it is not known.
fn measure_zones(cluster: &mut Cluster, node: [i64; 2], zones: [Option<i64>; 2]) {
    let both = |cpu, memory| {
        let amounts = LoadAmounts { cpu, memory, network: 0 };
        NodeLoad { p50: amounts, p95: amounts }
    };
    let of_zone = |(zone, cpu): (u8, Option<i64>)| Some(ZoneLoad { zone, load: both(cpu?, 0) });
    let zone_loads = (0..).zip(zones).filter_map(of_zone).collect();
    let load = Some(both(node[0], node[1]));
    cluster.nodes_mut().put_usage(
        NodeUsage { id: NODE, as_of_ms: 1, load, zone_loads, ..NodeUsage::default() },
        Revision(2),
    );
}

#[test]
fn load_threshold_of_zones() {
    let node = |used: i64, zones| {
        let mut cluster = of_two_zones();
        measure_zones(&mut cluster, [used, 0], zones);
        cluster
    };
    let limited = |cpu, policy| {
        let zones = Some(ZoneRequest { policy, cpu_mode: CpuMode::Shared });
        let demand = Demand { zones, ..demand(cpu, 0, None) };
        Template { demand, max_load: MaxLoad { cpu: Some(60), memory: None }, ..Template::default() }
    };
    let filter = &crate::plugins::load_threshold::LoadThreshold;
    let (none, of_node) =
        ("too few zones of which no more than 60 % of cpu is used", "more than 60 % of cpu is used");
    let single = limited(1, ZonePolicy::SingleZone);
    check(filter, &mut node(9, [Some(3), Some(5)]), &single, "");
    check(filter, &mut node(0, [Some(4), Some(4)]), &single, none);
    check(filter, &mut node(0, [Some(4), Some(4)]), &limited(1, ZonePolicy::Exclusive), none);
    // Of a zone of which nothing is known the node is judged.
    check(filter, &mut node(6, [Some(4), None]), &single, "");
    check(filter, &mut node(7, [Some(4), None]), &single, none);
    // Who needs two zones needs two that are calm.
    check(filter, &mut node(0, [Some(3), Some(4)]), &limited(8, ZonePolicy::Restricted), none);
    check(filter, &mut node(9, [Some(3), Some(3)]), &limited(8, ZonePolicy::Restricted), "");
    // Who is content with the node is judged by the node.
    check(filter, &mut node(7, [Some(0), Some(0)]), &limited(1, ZonePolicy::BestEffort), of_node);
    check(filter, &mut node(6, [Some(5), Some(5)]), &limited(1, ZonePolicy::BestEffort), "");
    check(
        filter,
        &mut node(7, [Some(0), Some(0)]),
        &Template { demand: demand(1, 0, None), ..single.clone() },
        of_node,
    );

    // The calm zone is given, though the other one would be by what is left of it; if that is taken, none is.
    let numa = &crate::plugins::numa_topology::NumaTopology;
    let mut cluster = node(9, [Some(4), Some(3)]);
    let fits = |cluster: &mut Cluster| {
        let ask = Ask::new(cluster, &single, Pool::Guaranteed);
        cluster.free().room_for(ask.shape(), NODE.idx())
    };
    let given = fits(&mut cluster).unwrap().zones;
    assert_eq!(given.zones, ZoneSet(0b10));
    let all_of_it = cluster.shape(&limited(5, ZonePolicy::SingleZone).demand, Pool::Guaranteed);
    let taken = Allocation { zones: given, ..Allocation::default() };
    cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), all_of_it, NODE, taken);
    assert_eq!(fits(&mut cluster), None);
    let why = "no zone has enough free, and is used as little as asked for";
    check(numa, &mut cluster, &single, why);
    check(filter, &mut cluster, &single, "");
}

#[test]
fn measured_use_of_zones_counts_for_who_is_given_some() {
    let score = |policy: Option<ZonePolicy>, zones| {
        let mut cluster = of_two_zones();
        measure_zones(&mut cluster, [8, 0], zones);
        let scores = vec![ScoreSpec {
            name: "load-aware".to_owned(),
            weight: 1,
            args: json!({"cpu": 1, "memory": 0}),
        }];
        let profile = Profile::new(&ProfileSpec { scores, ..ProfileSpec::default() }).unwrap();
        let zones = policy.map(|policy| ZoneRequest { policy, cpu_mode: CpuMode::Shared });
        let asks = template(Demand { zones, ..demand(1, 0, None) });
        let mut ask = Ask::new(&mut cluster, &asks, Pool::Guaranteed);
        profile.prepare(&cluster, &mut ask);
        let allocation = cluster.free().room_for(ask.shape(), NODE.idx()).unwrap();
        let typical = &Typical::default();
        let place = ScoreInput { cluster: &cluster, ask: &ask, idx: NODE.idx(), allocation, typical };
        profile.rank(&place, 0).score
    };
    let part = |tenths: i64| SCORE_MAX * tenths / 10;
    let near = |score: i64, expected: i64| assert!((score - expected).abs() <= 1, "{score}, not {expected}");
    // Of zone 0 two of five are used, and one more is asked for; of the node 8 of 10.
    near(score(Some(ZonePolicy::SingleZone), [Some(2), Some(5)]), part(4));
    near(score(Some(ZonePolicy::SingleZone), [None, Some(5)]), part(1));
    near(score(Some(ZonePolicy::BestEffort), [Some(2), Some(5)]), part(1));
    near(score(None, [Some(2), Some(5)]), part(1));
}

#[test]
fn measured_use_counts_where_it_is_known() {
    let score = |args: Value, load: Option<([i64; 3], [i64; 3])>| {
        let scores = vec![ScoreSpec { name: "load-aware".to_owned(), weight: 1, args }];
        let profile = Profile::new(&ProfileSpec { scores, ..ProfileSpec::default() }).unwrap();
        let network = |amount| [(CPU, 10), (MEMORY, 100), (NETWORK, amount)];
        let mut cluster = cluster(0, |_, report| report.capacity = Resources::new(network(1_000)).unwrap());
        // Of 10 cpu 6 are requested; the replica asks for 2.
        let taken = cluster.shape(&demand(6, 0, None), Pool::Guaranteed);
        cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), taken, NODE, Allocation::default());
        load.into_iter().for_each(|(p50, p95)| measure(&mut cluster, 2, p50, p95));
        let asks = Resources::new([(CPU, 2), (NETWORK, 100)]).unwrap();
        let asks = template(Demand { requests: asks, ..Demand::default() });
        let mut ask = Ask::new(&mut cluster, &asks, Pool::Guaranteed);
        profile.prepare(&cluster, &mut ask);
        let (allocation, typical) = (Allocation::default(), &Typical::default());
        let place = ScoreInput { cluster: &cluster, ask: &ask, idx: NODE.idx(), allocation, typical };
        profile.rank(&place, 0).score
    };
    let part = |tenths: i64| SCORE_MAX * tenths / 10;
    let near = |score: i64, expected: i64| assert!((score - expected).abs() <= 1, "{score}, not {expected}");
    let cpu = json!({"cpu": 1, "memory": 0});
    near(score(cpu.clone(), Some(([0; 3], [0; 3]))), part(8));
    near(score(cpu.clone(), Some(([0; 3], [3, 0, 0]))), part(5));
    near(score(cpu.clone(), Some(([0; 3], [20, 0, 0]))), 0);
    near(score(cpu, None), part(2));
    let both = Some(([1, 30, 500], [5, 90, 800]));
    near(score(json!({"percentile": "p50", "memory": 0}), both), part(7));
    near(score(json!({"percentile": "p95", "memory": 0}), both), part(3));
    near(score(json!({"percentile": "p50"}), both), part(7));
    near(score(json!({"cpu": 0, "memory": 0, "network": 2}), both), part(1));
    near(score(json!({"cpu": 0, "memory": 0, "network": 2}), None), part(9));
    near(score(json!({"cpu": 1, "memory": 0, "network": 1}), both), part(2));
    let entry = SCORES.iter().find(|score| score.name == "load-aware").unwrap();
    assert!(entry.build(&json!({"cpu": 0, "memory": 0})).is_err());
    let wrong = entry.build(&json!({"percentile": "p99"})).unwrap_err();
    assert_eq!(wrong.field.as_deref(), Some("percentile"));
    assert!(wrong.reason.ends_with("allowed is: `p50` or `p95`"), "{wrong:?}");
}

#[test]
fn complements_are_preferred_by_kind_and_by_use() {
    let latency = WorkKind::Latency;
    let score = |args: Value, work: WorkKind, on_node: WorkKind, load: Option<[i64; 3]>| {
        let scores = vec![ScoreSpec { name: "complementary".to_owned(), weight: 1, args }];
        let profile = Profile::new(&ProfileSpec { scores, ..ProfileSpec::default() }).unwrap();
        let mut cluster = cluster(0, |_, _| {});
        if profile.counts_work() {
            cluster.taken_mut().work.begin();
        }
        cluster.units_mut().put_work(UnitId(1), on_node);
        let taken = cluster.shape(&demand(6, 0, None), Pool::Guaranteed);
        cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), taken, NODE, Allocation::default());
        load.into_iter().for_each(|used| measure(&mut cluster, 2, used, [10, 100, 0]));
        let mut ask = Ask::new(&mut cluster, &template(demand(0, 5, None)), Pool::Guaranteed).of_work(work);
        profile.prepare(&cluster, &mut ask);
        let (allocation, typical) = (Allocation::default(), &Typical::default());
        let place = ScoreInput { cluster: &cluster, ask: &ask, idx: NODE.idx(), allocation, typical };
        profile.rank(&place, 0).score
    };
    let near = |score: i64, expected: i64| assert!((score - expected).abs() <= 2, "{score}, not {expected}");
    let kinds = json!({"resources": 0});
    near(score(kinds.clone(), latency, WorkKind::Batch, None), 66_666);
    near(score(kinds.clone(), latency, latency, None), 33_333);
    near(score(kinds.clone(), latency, WorkKind::Neutral, None), 50_000);
    near(score(kinds, WorkKind::Neutral, WorkKind::Batch, None), 0);
    // It asks for memory: 60 % of cpu is requested, 20 % and 90 % of memory are measured.
    let resources = json!({"kinds": 0});
    near(score(resources.clone(), latency, latency, None), 80_000);
    near(score(resources.clone(), latency, latency, Some([2, 0, 0])), 60_000);
    near(score(resources, latency, latency, Some([0, 90, 0])), 5_000);
    near(score(json!({"percentile": "p95"}), latency, WorkKind::Batch, Some([2, 0, 0])), 58_333);
    let entry = SCORES.iter().find(|score| score.name == "complementary").unwrap();
    assert!(entry.build(&json!({"kinds": 0, "resources": 0})).is_err());
}

#[test]
fn a_node_takes_one_replica_of_a_daemon() {
    let filter = &crate::plugins::daemon::DaemonFilter;
    let locator = LOCATORS.iter().find(|locator| locator.name() == "daemon-nodes").unwrap();
    let mut cluster = cluster(0, |_, _| {});
    let any = template(demand(1, 1, None));
    let plain = Ask::new(&mut cluster, &any, Pool::Guaranteed);
    assert!(locator.locate(&cluster, &plain).is_none(), "of no concern to other units");
    let (unit, other) = (UnitId(5), UnitId(6));
    let [one, two] = [unit, other].map(|unit| Some(cluster.taken_mut().put_daemon(unit)));
    let [of_one, of_two] = [one, two].map(|daemon| plain.clone().of_daemon(daemon));
    let verdict = |cluster: &Cluster, ask: &Ask| {
        let refusal = filter.check(cluster, ask.on_node(), NODE).err().map(|refusal| refusal.to_string());
        let passes = filter.prepare(cluster, ask).is_none_or(|gate| gate.passes(cluster, NODE.idx()));
        assert_eq!(passes, refusal.is_none());
        assert_eq!(binder_admits(cluster, ask, false).is_err(), refusal.is_some(), "the binder looks too");
        (refusal.unwrap_or_default(), cluster.nodes().located(locator.locate(cluster, ask)).count())
    };
    assert_eq!(verdict(&cluster, &of_one), (String::new(), 1));
    let id = RunningUnitId::new(unit, 3, 0);
    cluster.assume(id, of_one.shape(), NODE, Allocation::default());
    assert_eq!(verdict(&cluster, &of_one), ("a replica of the unit is on the node".to_owned(), 0));
    assert_eq!(verdict(&cluster, &of_two), (String::new(), 1));
    assert_eq!(verdict(&cluster, &plain), (String::new(), 1));
    assert_eq!(locator.elsewhere(&cluster, &of_one).unwrap().0, "daemon");
    cluster.forget(id);
    assert_eq!(verdict(&cluster, &of_one), (String::new(), 1));
}

#[test]
fn a_replica_goes_back_to_the_node_of_its_volumes() {
    let filter = &crate::plugins::volume::VolumeFilter;
    let locator = LOCATORS.iter().find(|locator| locator.name() == "volume-node").unwrap();
    let mut cluster = cluster(0, |_, _| {});
    let mut asked = template(demand(1, 1, None));
    asked.run.volumes = vec![Volume { name: "data".to_owned(), bytes: 1, path: None }];
    let fresh = Ask::new(&mut cluster, &asked, Pool::Guaranteed);
    let far = NodeId(NODE.0 + 70);
    cluster
        .nodes_mut()
        .put_spec(NodeSpec { id: far, name: "far".to_owned(), ..NodeSpec::default() }, Revision(1));
    let [here, there] = [NODE, far].map(|node| fresh.clone().of_volumes_on(node));
    let verdict = |cluster: &Cluster, ask: &Ask| {
        let refusal = filter.check(cluster, ask.on_node(), NODE).err().map(|refusal| refusal.to_string());
        let passes = filter.prepare(cluster, ask).is_none_or(|gate| gate.passes(cluster, NODE.idx()));
        assert_eq!(passes, refusal.is_none());
        assert_eq!(binder_admits(cluster, ask, false).is_err(), refusal.is_some(), "the binder looks too");
        let located: Option<Vec<NodeId>> =
            locator.locate(cluster, ask).map(|blocks| cluster.nodes().located(Some(blocks)).collect());
        (refusal.unwrap_or_default(), located)
    };
    assert_eq!(verdict(&cluster, &fresh), (String::new(), None), "it has not run yet");
    assert_eq!(verdict(&cluster, &here), (String::new(), Some(vec![NODE])));
    let elsewhere = "the volumes of the replica are on node far";
    assert_eq!(verdict(&cluster, &there), (elsewhere.to_owned(), Some(vec![far])));
    let (name, refusal) = locator.elsewhere(&cluster, &there).unwrap();
    assert_eq!((name, refusal.to_string().as_str()), ("volume", elsewhere));
    cluster.nodes_mut().remove(far);
    assert_eq!(verdict(&cluster, &there), (String::new(), None), "the volumes are lost");
}
