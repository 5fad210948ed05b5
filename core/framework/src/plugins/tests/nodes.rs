//! Plugins that go by labels, ports and use of a node.

use godel_domain::{
    label_expression::parse,
    node::{NODE_CLASS, NodeUsage},
    node_affinity::{NodeAffinity, PreferredNodes},
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

#[test]
fn numa_topology() {
    let filter = &crate::plugins::numa_topology::NumaTopology;
    let zoned = |cpu, policy| {
        let zones = Some(ZoneRequest { policy, cpu_mode: CpuMode::Shared });
        template(Demand { zones, ..demand(cpu, 0, None) })
    };
    let of_two_zones = || {
        cluster(0, |_, report| {
            let zone = || Zone {
                kind: "numa".to_owned(),
                capacity: Resources::new([(CPU, 5)]).unwrap(),
                ..Zone::default()
            };
            report.zones = vec![zone(), zone()];
        })
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
fn measured_use_counts_where_it_is_known() {
    let profile = Profile::new(&ProfileSpec {
        filters: None,
        scores: vec![ScoreSpec {
            name: "load-aware".to_owned(),
            weight: 1,
            args: json!({"cpu": 1, "memory": 0}),
        }],
    })
    .unwrap();
    // Of 10 cpu 6 are requested; the replica asks for 2.
    let score = |used: Option<i64>| {
        let mut cluster = cluster(0, |_, _| {});
        let taken = cluster.shape(&demand(6, 0, None), Pool::Guaranteed);
        cluster.assume(RunningUnitId::new(UnitId(1), 0, 0), taken, NODE, Allocation::default());
        if let Some(used) = used {
            let reserved = Resources::new([(CPU, used)]).unwrap();
            cluster.put_usage(NodeUsage { id: NODE, reserved, as_of_ms: 1 }, Revision(2));
        }
        let mut ask = Ask::new(&mut cluster, &template(demand(2, 0, None)), Pool::Guaranteed);
        profile.prepare(&cluster, &mut ask);
        let (allocation, typical) = (Allocation::default(), &Typical::default());
        let place = ScoreInput { cluster: &cluster, ask: &ask, idx: NODE.idx(), allocation, typical };
        profile.rank(&place, 0).score
    };
    let part = |tenths: i64| SCORE_MAX * tenths / 10;
    let near = |score: i64, expected: i64| assert!((score - expected).abs() <= 1, "{score}, not {expected}");
    near(score(Some(0)), part(8));
    near(score(Some(3)), part(5));
    near(score(Some(20)), 0);
    near(score(None), part(2));
    let wrong = SCORES.iter().find(|score| score.name == "load-aware").unwrap();
    assert!(wrong.build(&json!({"cpu": 0, "memory": 0})).is_err());
}
