//! Units with terms and topologies, with the real binder behind the scheduler.

use godel_domain::{
    label_expression::parse,
    records::Record,
    reservation_spec::ReservationSpec,
    running_units::RunningUnits,
    unit_affinity::{NODE, SpreadTerm, UnitAffinity, UnitTerm},
    unit_topology::{Segments, UnitTopology},
};

use super::*;

/// Node `id` is in rack `(id - 1) / of_rack`; each has 1,000 cpu.
fn racks(n_nodes: u32, of_rack: u32) -> Pair {
    let mut pair = Pair::new(0);
    for id in 1..=n_nodes {
        let labels = [("rack".to_owned(), format!("r{}", (id - 1) / of_rack))].into();
        pair.commit(vec![
            Change::Put(Record::NodeSpec(NodeSpec { labels, ..node_spec(id) })),
            Change::Put(Record::NodeReport(node_report(id, resources(1000, 100), 0, "A10"))),
        ]);
    }
    pair
}

fn in_rack(record: UnitRecord) -> UnitRecord {
    with_topology(record, UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() })
}

fn with_topology(mut record: UnitRecord, topology: UnitTopology) -> UnitRecord {
    record.spec.topology = topology;
    record
}

fn with_affinity(mut record: UnitRecord, affinity: UnitAffinity) -> UnitRecord {
    record.spec.affinity = affinity;
    record
}

fn term(units: &str, topology: &str) -> UnitTerm {
    let units = if units.is_empty() { Vec::new() } else { parse(units).unwrap() };
    UnitTerm { units, topology: topology.to_owned(), weight: 0 }
}

/// Reads the records of units again, as a scheduler does that has learned of terms.
fn read_again(pair: &mut Pair, records: &[&UnitRecord]) {
    assert!(pair.scheduler.selection().is_some());
    for record in records {
        let change = Change::Put(Record::Unit(Arc::new((*record).clone())));
        pair.scheduler.load(&change, Revision(pair.revision), 1, pair.now);
    }
    pair.steps();
}

/// Racks of a unit's live replicas, with how many are in each.
fn racks_of(pair: &Pair, record: &UnitRecord, of_rack: u32) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for (_, row) in
        pair.scheduler.picture.cluster.rows().of(record.id).into_iter().flat_map(RunningUnits::live)
    {
        *counts.entry((row.node.0 - 1) / of_rack).or_default() += 1;
    }
    counts
}

#[test]
fn a_gang_that_requires_a_rack_goes_to_one_that_holds_it() {
    // Racks of 3 nodes; the first one is half taken.
    let mut pair = racks(9, 3);
    let filler = unit(1, 2, 1, cpu(600));
    let filler =
        with_topology(filler, UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() });
    pair.assign(&filler);
    pair.steps();
    for id in 2..=3 {
        let gang = in_rack(unit(id, 3, 3, cpu(900)));
        pair.assign(&gang);
        pair.steps();
        let racks = racks_of(&pair, &gang, 3);
        assert_eq!(racks.values().sum::<usize>(), 3);
        assert_eq!(racks.len(), 1, "{racks:?}");
    }
    // What is left is in three racks together.
    let late = in_rack(unit(4, 3, 3, cpu(900)));
    pair.assign(&late);
    pair.steps();
    assert!(racks_of(&pair, &late, 3).is_empty());
}

#[test]
fn the_narrowest_preferred_domain_that_holds_a_gang_comes_first() {
    let mut pair = racks(6, 3);
    let topology = UnitTopology {
        required: "rack".to_owned(),
        preferred: vec![NODE.to_owned()],
        ..UnitTopology::default()
    };
    let on_node = with_topology(unit(1, 3, 3, cpu(300)), topology.clone());
    pair.assign(&on_node);
    pair.steps();
    let nodes = |pair: &Pair, record: &UnitRecord| -> std::collections::BTreeSet<u32> {
        let rows = pair.scheduler.picture.cluster.rows().of(record.id);
        rows.into_iter().flat_map(RunningUnits::live).map(|(_, row)| row.node.0).collect()
    };
    assert_eq!(nodes(&pair, &on_node).len(), 1);
    // No node holds three of these, a rack does.
    let in_rack = with_topology(unit(2, 3, 3, cpu(600)), topology);
    pair.assign(&in_rack);
    pair.steps();
    assert_eq!((nodes(&pair, &in_rack).len(), racks_of(&pair, &in_rack, 3).len()), (3, 1));
}

#[test]
fn a_gang_preempts_in_the_rack_where_that_costs_least() {
    let mut pair = racks(6, 2);
    for (id, priority) in [(1, 7), (2, 5), (3, 6)] {
        let filler = in_rack(ranked(id, priority, 2, 2, cpu(1000)));
        pair.assign(&filler);
        pair.steps();
        assert_eq!(racks_of(&pair, &filler, 2).len(), 1);
    }
    let gang = in_rack(ranked(9, 10, 2, 2, cpu(1000)));
    pair.assign(&gang);
    pair.steps();
    let leaving: Vec<u64> = pair.leaving().iter().map(|(unit, _)| *unit).collect();
    assert_eq!(leaving, [2, 2], "those of the lowest priority, of one rack, in one decision");
    pair.leave();
    assert_eq!(racks_of(&pair, &gang, 2).len(), 1);
}

#[test]
fn segments_are_each_in_one_rack_and_fill_one_after_the_other() {
    let mut pair = racks(8, 2);
    let segments = Some(Segments { size: 3, within: "rack".to_owned() });
    // A rack holds four: one segment of three each.
    let record = with_topology(unit(1, 9, 9, cpu(500)), UnitTopology { segments, ..UnitTopology::default() });
    pair.assign(&record);
    pair.steps();
    let rows = pair.scheduler.picture.cluster.rows().of(record.id).unwrap();
    let rack = |ordinal: u32| (rows.row(ordinal).node.0 - 1) / 2;
    for segment in 0..3 {
        assert!((0..3).all(|at| rack(segment * 3 + at) == rack(segment * 3)), "segment {segment}");
    }
    assert_eq!(racks_of(&pair, &record, 2).len(), 3);
}

#[test]
fn units_keep_apart_whoever_comes_first() {
    let mut pair = racks(4, 2);
    let mut noisy = unit(1, 1, 1, cpu(100));
    noisy.spec.labels = [("app".to_owned(), "noisy".to_owned())].into();
    pair.assign(&noisy);
    pair.steps();
    let apart = UnitAffinity { apart: vec![term("app = noisy", "rack")], ..UnitAffinity::default() };
    let quiet = with_affinity(unit(2, 1, 1, cpu(100)), apart);
    pair.assign(&quiet);
    read_again(&mut pair, &[&noisy, &quiet]);
    let (of_noisy, of_quiet) = (racks_of(&pair, &noisy, 2), racks_of(&pair, &quiet, 2));
    assert!(of_quiet.len() == 1 && of_noisy.keys().all(|rack| !of_quiet.contains_key(rack)));
    // One more of the noisy kind does not go to the quiet one's rack either.
    let mut noisy = unit(3, 12, 1, cpu(200));
    noisy.spec.labels = [("app".to_owned(), "noisy".to_owned())].into();
    pair.assign(&noisy);
    pair.steps();
    let racks = racks_of(&pair, &noisy, 2);
    assert!(!racks.is_empty() && racks.keys().all(|rack| !of_quiet.contains_key(rack)), "{racks:?}");
}

#[test]
fn replicas_spread_over_racks_of_different_size() {
    let mut pair = racks(5, 2);
    let spread = SpreadTerm { units: Vec::new(), topology: "rack".to_owned(), max_skew: 1, weight: 0 };
    let record = with_affinity(
        unit(1, 6, 1, cpu(100)),
        UnitAffinity { spread: vec![spread], ..UnitAffinity::default() },
    );
    pair.assign(&record);
    pair.steps();
    assert_eq!(racks_of(&pair, &record, 2), [(0, 2), (1, 2), (2, 2)].into());
}

#[test]
fn a_gang_of_a_full_queue_preempts_in_one_rack() {
    let mut pair = racks(4, 2);
    let max = [("cpu".to_owned(), 4_000)].into();
    pair.commit(vec![Change::Put(Record::Queue(Arc::new(QueueSpec { max, ..QueueSpec::new("q") })))]);
    // The two of the lowest priority are in different racks.
    for (id, priority, rack) in [(1, 1, "r0"), (2, 3, "r0"), (3, 1, "r1"), (4, 2, "r1")] {
        let mut filler = of("q", ranked(id, priority, 1, 1, cpu(1000)));
        filler.spec.task_groups[0].template.node_selector.insert("rack".to_owned(), rack.to_owned());
        pair.assign(&filler);
        pair.steps();
    }
    let gang = in_rack(of("q", ranked(9, 10, 2, 2, cpu(1000))));
    pair.assign_with(&gang, &all(&gang), Permit { at_maximum: true, ..Permit::default() });
    pair.steps();
    assert_eq!(pair.leaving().iter().map(|(unit, _)| *unit).collect::<Vec<_>>(), [3, 4]);
    pair.leave();
    assert_eq!(racks_of(&pair, &gang, 2), [(1, 2)].into());
}

#[test]
fn a_gang_takes_slots_of_its_rack_only() {
    let mut pair = racks(4, 2);
    let labels: BTreeMap<String, String> = [("team".to_owned(), "own".to_owned())].into();
    let reservation = ReservationSpec {
        name: "r".to_owned(),
        namespace: "default".to_owned(),
        selector: labels.clone(),
        slots: 2,
        demand: cpu(1000),
        ..ReservationSpec::default()
    };
    // One slot in each rack, and beside that of the first one nothing is free.
    let slot = |number| Hold {
        id: HoldId(1 + u64::from(number)),
        node: NodeId(1 + 2 * number),
        demand: Arc::new(cpu(1000)),
        ordinals: vec![number],
        slot: Some(Slot { reservation: Arc::from("r"), occupant: None }),
        ..Hold::default()
    };
    let slots = [0, 1].map(|number| Change::Put(Record::Hold(Arc::new(slot(number)))));
    pair.commit([Change::Put(Record::Reservation(Arc::new(reservation)))].into_iter().chain(slots).collect());
    let mut filler = unit(1, 1, 1, cpu(1000));
    filler.spec.task_groups[0].template.node_selector.insert("rack".to_owned(), "r0".to_owned());
    pair.assign(&filler);
    pair.steps();
    let gang = in_rack(unit(2, 2, 2, cpu(1000)).labels(labels));
    pair.assign(&gang);
    pair.step();
    assert_eq!((racks_of(&pair, &gang, 2), pair.scheduler.stats().conflicts), ([(1, 2)].into(), 0));
}
