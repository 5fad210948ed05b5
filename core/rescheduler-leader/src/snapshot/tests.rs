//! Where running units may be moved because of the others of their unit, and who may not be moved at all.

use godel_base::ids::Revision;
use godel_domain::{
    change::Change,
    records::Record,
    running_units::{Bind, RunChange, Statuses},
    unit_affinity::{NODE, SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
};
use godel_testkit::{BuildUnit as _, node, unit};

use godel_core_rescheduler::{Filters as _, Layout, NodeIdx};

use super::*;

mod safety;

const UNIT: UnitId = UnitId(1);

fn config() -> SnapshotConfig {
    SnapshotConfig { sub_cluster_key: "sub-cluster".to_owned(), other_load: true, restart_ms: 30_000 }
}

/// Nodes 1 to 6, two in each of the racks `a`, `b` and `c`, with a unit whose replicas run on these nodes.
fn picture(record: UnitRecord, nodes: &[u32]) -> ClusterPicture {
    let mut picture = ClusterPicture::new("sub-cluster");
    let mut load = |change: Change| picture.load(&change, Revision(1), 1);
    for (id, rack) in (1..).zip(["a", "a", "b", "b", "c", "c"]) {
        let known = node(id).cpu(1_000).has("running-units", 100).label("rack", rack);
        load(Change::Put(Record::NodeSpec(known.spec)));
        load(Change::Put(Record::NodeReport(known.report)));
    }
    let demand = Arc::new(record.spec.task_groups[0].template.demand.clone());
    load(Change::Put(Record::Unit(Arc::new(record.id(UNIT)))));
    if nodes.is_empty() {
        return picture;
    }
    let ordinals: Vec<u32> = (0..).take(nodes.len()).collect();
    let nodes = nodes.iter().copied().map(NodeId).collect();
    let bind = Bind { demand, ordinals: ordinals.clone(), nodes, ..Bind::default() };
    load(Change::Rows(UNIT, RunChange::Bind(bind)));
    let phases = vec![Phase::Running; ordinals.len()];
    load(Change::Rows(UNIT, RunChange::Statuses(Statuses { ordinals, phases, ..Statuses::default() })));
    picture
}

/// The nodes to which filters let a replica move, its own included.
fn targets(picture: &ClusterPicture, ordinal: u32) -> Vec<u32> {
    let config = config();
    let PlanInput { snapshot, filters } = take(picture, &Traffic::default(), &config, 10_000);
    let layout = Layout::new(&snapshot).unwrap();
    let run = layout.running().find(|run| layout.facts(*run).id.replica.ordinal == ordinal).unwrap();
    assert_eq!(layout.facts(run).kept, None, "replica {ordinal} may move");
    let admitted = layout.nodes().filter(|node| filters.admits(&layout, run, *node));
    admitted.map(|node| layout.node(node).id.0).collect()
}

fn in_segments() -> UnitTopology {
    let segments = Some(Segments { size: 2, within: "rack".to_owned() });
    UnitTopology { segments, ..UnitTopology::default() }
}

fn in_rack() -> UnitTopology {
    UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() }
}

fn apart(topology: &str) -> UnitAffinity {
    let term = UnitTerm { units: Vec::new(), topology: topology.to_owned(), weight: 0 };
    UnitAffinity { apart: vec![term], ..UnitAffinity::default() }
}

fn even(topology: &str) -> UnitAffinity {
    let term = SpreadTerm { units: Vec::new(), topology: topology.to_owned(), max_skew: 1, weight: 0 };
    UnitAffinity { spread: vec![term], ..UnitAffinity::default() }
}

#[test]
fn a_replica_moves_where_the_others_of_its_unit_let_it() {
    let of_group = |topology: UnitTopology| {
        move |unit: UnitRecord| {
            unit.edit(|unit| unit.spec.task_groups[0].topology = Some(Box::new(topology.clone())))
        }
    };
    let with = |replicas| unit("u").replicas(replicas).cpu(100);
    // What it is about, the unit, the nodes of its replicas, which of these moves, and where it may go.
    type Case<'a> = (&'a str, UnitRecord, &'a [u32], u32, &'a [u32]);
    let cases: [Case<'_>; 11] = [
        ("no terms", with(2), &[1, 3], 0, &[1, 2, 3, 4, 5, 6]),
        // Ordinals 0 and 1 are one segment, 2 and 3 the next one, 4 is alone.
        ("a segment", with(5).topology(in_segments()), &[1, 1, 3, 4, 5], 0, &[1, 2]),
        ("the next segment", with(5).topology(in_segments()), &[1, 1, 3, 4, 5], 3, &[3, 4]),
        ("alone in its segment", with(5).topology(in_segments()), &[1, 1, 3, 4, 5], 4, &[1, 2, 3, 4, 5, 6]),
        ("a segment of a group", of_group(in_segments())(with(4)), &[1, 2, 5, 6], 1, &[1, 2]),
        ("one rack", with(2).topology(in_rack()), &[3, 3], 0, &[3, 4]),
        ("one rack for a group", of_group(in_rack())(with(2)), &[3, 3], 1, &[3, 4]),
        // Its own place does not count: it is gone when its successor comes.
        ("alone in its rack", with(1).topology(in_rack()), &[3], 0, &[1, 2, 3, 4, 5, 6]),
        ("apart by racks", with(2).affinity(apart("rack")), &[1, 3], 0, &[1, 2, 5, 6]),
        ("apart by nodes", with(2).affinity(apart(NODE)), &[1, 3], 0, &[1, 2, 4, 5, 6]),
        // Without itself the racks have 1, 1 and 1 of the unit, and any of them may have one more.
        ("spread", with(4).affinity(even("rack")), &[1, 2, 3, 5], 0, &[1, 2, 3, 4, 5, 6]),
    ];
    for (what, record, nodes, ordinal, expected) in cases {
        assert_eq!(targets(&picture(record, nodes), ordinal), expected, "{what}");
    }
}

#[test]
fn the_picture_is_as_before_when_terms_were_judged() {
    let picture = picture(unit("u").replicas(2).cpu(100).affinity(apart("rack")), &[1, 3]);
    let config = config();
    let PlanInput { snapshot, filters, .. } = take(&picture, &Traffic::default(), &config, 10_000);
    let layout = Layout::new(&snapshot).unwrap();
    let admitted = |ordinal: u32| -> Vec<u32> {
        let run = layout.running().find(|run| layout.facts(*run).id.replica.ordinal == ordinal).unwrap();
        let nodes = layout.nodes().filter(|node| filters.admits(&layout, run, *node));
        nodes.map(|node| layout.node(node).id.0).collect()
    };
    for _ in 0..2 {
        assert_eq!(admitted(0), [1, 2, 5, 6]);
        assert_eq!(admitted(1), [3, 4, 5, 6]);
    }
}

#[test]
fn a_gang_that_waits_sees_the_rack_of_those_that_have_a_place() {
    let group = |unit: &mut UnitRecord| unit.spec.task_groups[0].topology = Some(Box::new(in_rack()));
    let record = unit("u").replicas(3).cpu(100).gang(3).edit(group);
    let picture = picture(record, &[3]);
    let mut input = take(&picture, &Traffic::default(), &config(), 10_000);
    let gang = waiting_gang(&mut input, &picture.units[&UNIT], &picture).unwrap();
    let gang = gang.gang;
    assert_eq!((gang.parts.len(), gang.parts[0].n_members), (1, 2));
    assert_eq!(seen(&input, &waiting::level_of(0)), ["3 b", "4 b"]);
}

/// The nodes that a part of a gang may use, with its domains.
fn seen(input: &PlanInput, label: &str) -> Vec<String> {
    let of = |node: &NodeFacts| Some(format!("{} {}", node.id.0, node.labels.get(label)?.replace('\n', ",")));
    input.snapshot.nodes.iter().filter_map(of).collect()
}

#[test]
fn task_groups_and_segments_of_a_gang_are_parts_of_it() {
    let waits = |record: UnitRecord, nodes: &[u32]| {
        let picture = picture(record, nodes);
        let mut input = take(&picture, &Traffic::default(), &config(), 10_000);
        let gang = waiting_gang(&mut input, &picture.units[&UNIT], &picture);
        gang.map(|ask| {
            let gang = ask.gang;
            (gang.parts.iter().map(|part| part.n_members).collect::<Vec<_>>(), gang.within, input)
        })
    };
    // Segments of two replicas, each in a rack; of the first one, a replica runs in rack b.
    let (parts, within, input) =
        waits(unit("u").replicas(5).cpu(100).gang(3).topology(in_segments()), &[3]).unwrap();
    assert_eq!((parts, within), (vec![1, 2], None), "a segment that is begun is placed whole");
    assert_eq!(seen(&input, &waiting::level_of(0)), ["3 b", "4 b"]);
    assert_eq!(seen(&input, &waiting::level_of(1)), ["1 a", "2 a", "3 b", "4 b", "5 c", "6 c"]);
    // Two task groups in one rack, one of them on one node.
    let template = unit("u").cpu(200).spec.task_groups[0].template.clone();
    let mut other = godel_testkit::group("other", 2, template);
    other.topology = Some(Box::new(UnitTopology { required: NODE.to_owned(), ..UnitTopology::default() }));
    let record = unit("u").replicas(2).cpu(100).gang(4).topology(in_rack()).group(other);
    let (parts, within, input) = waits(record, &[]).unwrap();
    assert_eq!((parts, within.as_deref()), (vec![2, 2], Some("godel.dev/room-within")));
    assert_eq!(seen(&input, "godel.dev/room-within")[..2], ["1 a", "2 a"]);
    assert_eq!(seen(&input, &waiting::level_of(1))[..2], ["1 a,n1", "2 a,n2"]);
    let nested = UnitTopology { required: "rack".to_owned(), ..in_segments() };
    let around = unit("u").replicas(4).cpu(100).gang(4);
    let around = around.edit(|unit| unit.spec.task_groups[0].topology = Some(Box::new(nested.clone())));
    assert!(waits(around, &[]).err().unwrap().contains("around their segments"));
}

#[test]
fn what_is_not_measured_counts_as_what_is_asked_for() {
    let with_network = |unit: &mut UnitRecord| {
        unit.spec.task_groups[0]
            .template
            .demand
            .requests
            .add(&Resources::new([(NETWORK, 5_000)]).unwrap(), 1);
    };
    let mut picture = picture(unit("u").replicas(2).cpu(100).edit(with_network), &[1, 2]);
    let measured = MeasuredUse { cpu_milli: 3, network_bps: 4 };
    picture.usage = Arc::new([(UNIT, [(1, measured)].into())].into_iter().collect());
    let PlanInput { snapshot, .. } = take(&picture, &Traffic::default(), &config(), 10_000);
    let mut usage: Vec<(u32, MeasuredUse)> =
        snapshot.running.iter().map(|running| (running.id.replica.ordinal, running.usage)).collect();
    usage.sort_unstable_by_key(|(ordinal, _)| *ordinal);
    assert_eq!(usage, [(0, MeasuredUse { cpu_milli: 100, network_bps: 5_000 }), (1, measured)]);
}

/// When the replicas saved their work last, in order of their ordinals.
fn checkpoints(picture: &ClusterPicture) -> Vec<Option<u64>> {
    let PlanInput { mut snapshot, .. } = take(picture, &Traffic::default(), &config(), 10_000);
    snapshot.running.sort_unstable_by_key(|running| running.id.replica.ordinal);
    snapshot.running.iter().map(|running| running.checkpoint_at.map(|at| at.0)).collect()
}

#[test]
fn a_template_says_how_often_replicas_save_their_work() {
    let every = |ms| {
        let with = |unit: &mut UnitRecord| unit.spec.task_groups[0].template.run.checkpoint_every_ms = ms;
        picture(unit("u").replicas(2).cpu(100).edit(with), &[1, 2])
    };
    // They were bound at 1 ms.
    assert_eq!(checkpoints(&every(Some(3_000))), [Some(9_001), Some(9_001)]);
    assert_eq!(checkpoints(&every(Some(20_000))), [Some(1), Some(1)]);
    assert_eq!(checkpoints(&every(None)), [None, None]);
}

#[test]
fn what_replicas_report_comes_before_their_template_until_they_end() {
    let with = |unit: &mut UnitRecord| {
        unit.spec.task_groups[0].template.run.checkpoint_every_ms = Some(3_000);
    };
    let mut picture = picture(unit("u").replicas(2).cpu(100).edit(with), &[1, 2]);
    let incarnation = picture.cluster.rows().of(UNIT).unwrap().row(0).incarnation;
    let id = RunningUnitId::new(UNIT, 0, incarnation);
    Arc::make_mut(&mut picture.checkpoints).report(id, Millis(1), Millis(7_000));
    picture.count_waiting();
    assert_eq!(checkpoints(&picture), [Some(7_000), Some(9_001)]);
    // It ends, and what comes in its place has saved nothing.
    let (ordinals, phases) = (vec![0], vec![Phase::Failed]);
    let statuses = Statuses { ordinals, phases, exit_codes: vec![1], ..Statuses::default() };
    picture.load(&Change::Rows(UNIT, RunChange::Statuses(statuses)), Revision(2), 2);
    picture.count_waiting();
    assert_eq!(picture.checkpoints.len(), 0);
}
