//! The mode follows the load, unless it was set by hand; who owns which node follows the strategy.

use godel_domain::{change::Change, records::Record};
use godel_rules::partition;

use super::*;

/// Two schedulers with streams, and the first split written.
fn rig() -> Rig {
    rig_with(Config::default())
}

fn rig_with(config: Config) -> Rig {
    let mut rig = Rig::with(config);
    for (name, epoch) in [("a", 1), ("b", 2)] {
        rig.core.streams().on_lease(&lease(name, epoch, "h"), rig.now);
    }
    rig.now = rig.now.plus(500);
    written(&mut rig).expect("names of schedulers");
    rig
}

/// What a step writes of the split; it is committed.
fn written(rig: &mut Rig) -> Option<Partition> {
    let split = rig.core.step(rig.now).into_iter().find_map(|action| {
        let Action::WritePartition(split) = action else { return None };
        Some(split)
    })?;
    commit(rig, split.clone());
    Some(split)
}

/// What is written for it.
fn commit(rig: &mut Rig, split: Partition) -> Vec<Change> {
    let (revision, changes) = (rig.next(), rig.core.partition.records.changes_to(&split));
    rig.core.partition.on_written(changes.clone(), revision);
    assert_eq!(rig.core.partition().records().whole().slots, split.slots);
    changes
}

/// A window in which `a` has so many more placements and conflicts than before.
fn window(rig: &mut Rig, said: &mut (u64, u64), more: (u64, u64)) -> Option<Partition> {
    *said = (said.0 + more.0, said.1 + more.1);
    let (placed, conflicts) = *said;
    rig.core.partition.shuffler.on_counted(vec![SchedulerCounts {
        scheduler: "a".into(),
        epoch: Epoch(1),
        placed,
        conflicts,
    }]);
    rig.now = rig.now.plus(10_000);
    written(rig)
}

#[test]
fn the_mode_follows_the_load_there_and_back() {
    let mut rig = rig();
    let mut said = (1_000_000, 500_000);
    rig.core.assignments.wall_ms = 77;
    assert_eq!(window(&mut rig, &mut said, (0, 0)), None, "what was counted before is not of this window");
    let busy = (30_000, 600);
    assert_eq!(window(&mut rig, &mut said, busy), None);
    assert_eq!(window(&mut rig, &mut said, busy), None);
    let split = window(&mut rig, &mut said, busy).expect("three in a row");
    assert_eq!((split.mode, split.by_hand, split.changed_ms), (PartitionMode::Preferred, false, 77));
    assert!(split.reason.ends_with("3000 placed per second, 1.9 % conflicts"), "{}", split.reason);
    assert_eq!((rig.core.partition().mode(), split.slots.len()), (PartitionMode::Preferred, 1));
    // Calm for a minute.
    let mut windows = 0;
    let back = loop {
        windows += 1;
        assert!(windows <= 6, "six windows are a minute");
        if let Some(back) = window(&mut rig, &mut said, (10, 0)) {
            break back;
        }
    };
    assert_eq!((windows, back.mode), (6, PartitionMode::Global));
    assert_eq!(rig.core.summary().counters.repairs, 0);
}

#[test]
fn a_mode_set_by_hand_stays_until_it_is_left_to_the_load() {
    let mut rig = rig();
    let (mut said, busy) = ((0, 0), (30_000, 600));
    window(&mut rig, &mut said, (0, 0));
    let fixed = rig.set_mode(ModeChoice::Fixed(PartitionMode::Global)).expect("it is fixed now");
    assert_eq!((fixed.by_hand, fixed.reason.as_str()), (true, "set by hand"));
    commit(&mut rig, fixed);
    assert_eq!(rig.set_mode(ModeChoice::Fixed(PartitionMode::Global)), None);
    for _ in 0..9 {
        assert_eq!(window(&mut rig, &mut said, busy), None);
    }
    let auto = rig.set_mode(ModeChoice::Automatic).expect("left to the load");
    assert!(!auto.by_hand && auto.mode == PartitionMode::Global);
    commit(&mut rig, auto);
    let windows: Vec<bool> = (0..3).map(|_| window(&mut rig, &mut said, busy).is_some()).collect();
    assert_eq!(windows, [false, false, true], "what came before does not count");
    // Who owns what follows the schedulers, and says nothing of the mode.
    rig.core.streams().on_lease(&lease("c", 3, "h"), rig.now);
    rig.now = rig.now.plus(500);
    let joined = written(&mut rig).expect("three now");
    assert_eq!((joined.schedulers.len(), joined.mode), (3, PartitionMode::Preferred));
    assert!(joined.reason.contains("above the limits"), "{}", joined.reason);
}

#[test]
fn a_full_cluster_counts_bindings_from_the_process_start() {
    let shuffle = godel_rules::partition_mode::Config {
        needs_pressure: true,
        ..godel_rules::partition_mode::Config::default()
    };
    let mut rig = rig_with(Config { shuffle, ..Config::default() });
    // 95 of the 100 replicas that the only node holds.
    rig.put(spec(1, 95));
    rig.bind(1, &(0..95).collect::<Vec<_>>());
    let count = |rig: &mut Rig, epoch, placed, conflicts| {
        rig.core.partition.shuffler.on_counted(vec![SchedulerCounts {
            scheduler: "b".into(),
            epoch: Epoch(epoch),
            placed,
            conflicts,
        }]);
        rig.now = rig.now.plus(10_000);
        written(rig)
    };
    assert_eq!(count(&mut rig, 2, 900, 900), None);
    assert_eq!(count(&mut rig, 2, 1_000, 1_000), None);
    assert_eq!(count(&mut rig, 7, 100, 100), None, "another process");
    assert_eq!(count(&mut rig, 2, 999, 999), None, "the old one says no more");
    assert_eq!(count(&mut rig, 7, 200, 200), None);
    assert_eq!(count(&mut rig, 7, 300, 300), None);
    let split = count(&mut rig, 7, 400, 400).expect("95 per cent and conflicts");
    assert!(split.reason.contains("95.0 % allocated"), "{}", split.reason);
}

#[test]
fn a_node_that_joins_many_costs_one_small_record() {
    for strategy in [StrategyKind::EvenCount, StrategyKind::FreeResources] {
        let mut rig = rig_with(Config { strategy, ..Config::default() });
        let join = |rig: &mut Rig, id: u32| {
            let node = NodeSpec { id: NodeId(id), name: format!("n{id}"), ..NodeSpec::default() };
            rig.core.on_node_spec(&node, rig.now);
            let capacity = Resources::new([("cpu", 10_000)]).unwrap();
            let report = NodeReport { id: NodeId(id), capacity, ready: true, ..NodeReport::default() };
            rig.core.on_node_report(&report, rig.now);
        };
        (1..=20_000).for_each(|id| join(&mut rig, id));
        let split = rig.set_mode(ModeChoice::Fixed(PartitionMode::Preferred)).expect("a change");
        assert_eq!(commit(&mut rig, split).len(), 1 + 313);
        join(&mut rig, 20_001);
        rig.now = rig.now.plus(500);
        let step = rig.core.step(rig.now);
        let [Action::WritePartition(split)] = step.as_slice() else { panic!("{step:?}") };
        let changes = commit(&mut rig, split.clone());
        let [Change::Put(Record::PartitionBlock(block))] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!((block.number, block.slots.len()), (20_001 / 64, 34));
        assert!(!rig.core.partition.is_writing);
    }
}

/// A second node like the first, of a rack each.
fn two_nodes(rig: &mut Rig) {
    for id in [1, 2] {
        let labels = BTreeMap::from([("rack".to_owned(), format!("r{id}"))]);
        let node = NodeSpec { id: NodeId(id), name: format!("n{id}"), labels, ..NodeSpec::default() };
        rig.core.on_node_spec(&node, rig.now);
        let capacity = Resources::new([("cpu", 10_000)]).unwrap();
        let report = NodeReport { id: NodeId(id), capacity, ready: true, ..NodeReport::default() };
        rig.core.on_node_report(&report, rig.now);
    }
}

#[test]
fn a_node_that_is_full_weighs_less() {
    let mut rig = Rig::new();
    two_nodes(&mut rig);
    rig.put(spec(1, 90));
    rig.bind(1, &(0..90).collect::<Vec<_>>());
    let weights = rig.core.nodes.weights(&rig.core.assignments.units);
    let whole = partition::share([("cpu", 10_000)].into_iter(), &rig.core.nodes.capacities.total());
    let taken = 90 * partition::share([("cpu", 100)].into_iter(), &rig.core.nodes.capacities.total());
    assert_eq!(weights[1..], [partition::weight(whole, taken), partition::weight(whole, 0)]);
    assert!(weights[1] * 4 < weights[2], "{weights:?}");
}

#[test]
fn another_rack_splits_nodes_anew() {
    for strategy in [StrategyKind::EvenCount, StrategyKind::Topology] {
        let mut rig = rig_with(Config { strategy, ..Config::default() });
        two_nodes(&mut rig);
        let split = rig.set_mode(ModeChoice::Fixed(PartitionMode::Strict)).expect("a change");
        commit(&mut rig, split);
        assert_eq!(rig.core.partition.due, None);
        let labels = BTreeMap::from([("rack".to_owned(), "r2".to_owned())]);
        let node = NodeSpec { id: NodeId(1), name: "n1".into(), labels, ..NodeSpec::default() };
        rig.core.on_node_spec(&node, rig.now);
        assert_eq!(rig.core.partition.due.is_some(), strategy == StrategyKind::Topology);
        let split = rig.core.partition.split(PartitionMode::Strict, &rig.core.nodes, &rig.core.assignments);
        assert_eq!(split.is_some(), strategy == StrategyKind::Topology, "{split:?}");
    }
}
