//! Turns of gangs, with the real binder behind them.

use std::collections::BTreeSet;

use godel_domain::{
    records::Record,
    unit_affinity::{SpreadTerm, UnitTerm},
    zone::{CpuMode, ZonePolicy, ZoneRequest},
};
use godel_testkit::{TestNode, node};

use super::{
    own_domains::{gang, in_rack, racks, racks_of, segments},
    *,
};

/// Two nodes, each full of two running units of 500 that nobody preempts: of unit 1 the first, of unit 2 the second.
fn full() -> Pair {
    let mut pair = Pair::new(2);
    pair.binder.gather_for(1_000_000);
    for id in [1, 2] {
        pair.assign(&unit(id, 2, 2, cpu(500)).preemptible(false));
        pair.steps();
        let rows = pair.binder.cluster().rows().of(UnitId(id)).unwrap();
        let nodes: Vec<NodeId> = rows.live().map(|(_, row)| row.node).collect();
        assert_eq!(nodes[0], nodes[1], "packed");
    }
    pair
}

impl Pair {
    fn assign_turn(&mut self, record: &UnitRecord) {
        self.assign_with(record, &all(record), Permit { turn: true, ..Permit::default() });
    }

    fn end(&mut self, unit: u64, ordinals: &[u32]) {
        let phases = vec![Phase::Succeeded; ordinals.len()];
        let statuses = Statuses { ordinals: ordinals.to_vec(), phases, ..Statuses::default() };
        self.commit(vec![Change::Rows(UnitId(unit), RunChange::Statuses(statuses))]);
    }

    fn n_bound(&self, unit: u64) -> usize {
        self.binder.cluster().rows().of(UnitId(unit)).map_or(0, |rows| rows.live().count())
    }
}

#[test]
fn gathered_room_is_not_taken_by_others() {
    let mut pair = full();
    let gang = unit(3, 2, 2, cpu(800));
    pair.assign(&gang);
    assert_eq!(pair.steps(), [(3, ReportState::Parked)]);
    assert_eq!(pair.binder.n_holds(), 0, "it is not its turn");
    pair.assign_turn(&gang);
    assert_eq!(pair.steps(), [(3, ReportState::Parked)], "it goes on looking");
    let gathering = pair.binder.picture().gathering();
    assert_eq!((gathering[0].unit, gathering[0].n_wanted, pair.binder.n_holds()), (UnitId(3), 2, 2));
    assert_eq!(
        pair.scheduler.picture.cluster.taken().occupants.on(NodeId(1)),
        &[],
        "nobody else asks for them"
    );
    pair.end(1, &[0]);
    pair.assign(&unit(4, 1, 1, cpu(300)));
    assert_eq!(pair.steps().last(), Some(&(4, ReportState::Parked)), "what is free is gathered");
    pair.end(1, &[1]);
    pair.end(2, &[0, 1]);
    pair.leave();
    assert_eq!((pair.n_bound(3), pair.binder.n_holds()), (2, 0));
    pair.steps();
    assert_eq!(pair.n_bound(4), 0, "200 are left on each node");
    pair.end(3, &[0]);
    pair.steps();
    assert_eq!(pair.n_bound(4), 1);
}

#[test]
fn a_gang_that_fits_needs_no_turn() {
    let mut pair = full();
    pair.assign_turn(&unit(3, 3, 3, cpu(800)));
    assert_eq!(pair.steps(), [(3, ReportState::Parked)], "two nodes have no room for three");
    pair.end(1, &[0, 1]);
    pair.assign_turn(&unit(4, 2, 2, cpu(500)));
    pair.steps();
    assert_eq!((pair.n_bound(4), pair.binder.n_holds()), (2, 0));
}

#[test]
fn who_is_admitted_takes_what_is_gathered() {
    let mut pair = full();
    pair.assign_turn(&unit(3, 2, 2, cpu(800)).priority(5));
    pair.steps();
    pair.end(1, &[0, 1]);
    let cases = [
        (unit(4, 1, 1, cpu(300)).preemptible(false), false),
        (unit(5, 1, 1, cpu(300)).active_deadline_ms(950_000).priority(5), false),
        (unit(6, 1, 1, cpu(300)).active_deadline_ms(60_000), true),
        (unit(7, 1, 1, cpu(300)).priority(6), true),
        // Of the same need as one that is parked.
        (unit(8, 1, 1, cpu(300)).preemptible(false), false),
        (unit(9, 1, 1, cpu(300)).priority(6), true),
    ];
    for (spec, enters) in cases {
        pair.assign(&spec);
        pair.steps();
        assert_eq!(pair.n_bound(spec.id.0) == 1, enters, "unit {}", spec.id);
    }
}

#[test]
fn who_has_others_leave_takes_nothing_that_is_gathered() {
    let mut pair = full();
    pair.assign_turn(&unit(3, 2, 2, cpu(800)).priority(5));
    pair.steps();
    pair.end(1, &[0]);
    pair.commit(vec![
        Change::Put(Record::NodeSpec(node_spec(3))),
        Change::Put(Record::NodeReport(node_report(3, resources(1000, 100), 0, "A10"))),
    ]);
    pair.assign(&ranked(4, 6, 2, 1, cpu(500)));
    pair.steps();
    assert_eq!((pair.live(4), pair.binder.picture().gathering()[0].unit), (vec![3, 3], UnitId(3)));
    // One would find room where some is gathered.
    pair.assign(&ranked(5, 9, 2, 2, cpu(500)));
    pair.steps();
    assert_eq!((pair.leaving(), pair.scheduler.stats().conflicts), (vec![(4, 3), (4, 3)], 0));
}

#[test]
fn best_effort_units_use_what_is_gathered() {
    let mut pair = full();
    pair.assign_turn(&unit(3, 2, 2, cpu(800)));
    pair.steps();
    pair.end(1, &[0, 1]);
    pair.assign(&unit(4, 1, 1, cpu(700)).pool(Pool::BestEffort));
    pair.steps();
    assert_eq!(pair.n_bound(4), 1);
    assert_eq!(pair.binder.picture().gathering()[0].n_gathered, 1);
}

#[test]
fn nobody_gathers_beside_what_goes_on_for_good() {
    let mut pair = Pair::new(2);
    pair.binder.gather_for(1_000_000);
    let service = unit(1, 1, 1, cpu(500)).class(WorkloadClass::Service).preemptible(false);
    pair.assign(&service);
    pair.steps();
    let gang = unit(2, 2, 2, cpu(800));
    pair.assign_turn(&gang);
    let step = pair.scheduler.step(pair.now, 1_000);
    let report = step.reports.iter().find(|report| report.unit == gang.id).unwrap();
    let reasons = &report.refusals.as_ref().unwrap().reasons;
    assert!(reasons.iter().any(|one| one.plugin == "gang-turn"), "{reasons:?}");
    assert_eq!((report.state, pair.binder.n_holds()), (ReportState::Parked, 0));
    // What may be preempted for it is waited for.
    let gang = unit(3, 2, 2, cpu(800)).priority(5);
    let mut pair = Pair::new(2);
    pair.binder.gather_for(1_000_000);
    let min_run_ms = 1_000_000;
    pair.assign(&unit(1, 1, 1, cpu(500)).class(WorkloadClass::Service).min_run_ms(min_run_ms));
    pair.steps();
    pair.assign_turn(&gang);
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 2);
}

#[test]
fn preemptible_units_fill_gathered_room_until_the_rest_is_there() {
    let mut pair = full();
    pair.assign_turn(&unit(3, 2, 2, cpu(800)).priority(5));
    pair.steps();
    pair.end(1, &[0, 1]);
    pair.assign(&ranked(4, 1, 1, 1, cpu(1000)));
    pair.steps();
    assert_eq!(pair.n_bound(4), 1, "the gang may have it leave");
    pair.now = pair.now.plus(10_000);
    pair.steps();
    assert_eq!(pair.leaving(), [], "the rest is not there");
    pair.end(2, &[0, 1]);
    pair.now = pair.now.plus(10_000);
    pair.steps();
    assert_eq!((pair.leaving().len(), pair.binder.picture().gathering().len()), (1, 0));
    pair.leave();
    assert_eq!((pair.n_bound(3), pair.binder.n_holds()), (2, 0));
}

#[test]
fn a_gang_that_gathers_is_bound_wherever_it_fits_first() {
    let mut pair = full();
    pair.assign_turn(&unit(3, 2, 2, cpu(800)));
    pair.steps();
    pair.end(1, &[0, 1]);
    assert_eq!(pair.binder.picture().gathering()[0].n_gathered, 1);
    pair.commit(vec![
        Change::Put(Record::NodeSpec(node_spec(3))),
        Change::Put(Record::NodeReport(node_report(3, resources(1000, 100), 0, "A10"))),
    ]);
    pair.steps();
    assert_eq!((pair.n_bound(3), pair.binder.n_holds()), (2, 0), "what is gathered and a node that came");
}

#[test]
fn one_large_unit_gathers_as_a_gang_does() {
    let mut pair = full();
    let large = unit(3, 1, 1, cpu(1000)).preemptible(false);
    pair.assign(&large);
    assert_eq!(pair.steps(), [(3, ReportState::Parked)]);
    assert_eq!(pair.binder.n_holds(), 0, "it is not its turn");
    pair.assign_turn(&large);
    pair.steps();
    let gathering = pair.binder.picture().gathering();
    assert_eq!((gathering[0].unit, gathering[0].n_wanted, pair.binder.n_holds()), (UnitId(3), 1, 1));
    let (NodeId(node), first) = {
        let holds = pair.binder.cluster().holds().all();
        (holds[0].node, if pair.live(1)[0] == holds[0].node.0 { 1 } else { 2 })
    };
    pair.end(first, &[0]);
    // What is free there is kept from small units, but from those that end in time.
    pair.assign(&unit(4, 1, 1, cpu(300)).preemptible(false));
    assert_eq!(pair.steps().last(), Some(&(4, ReportState::Parked)));
    pair.assign(&unit(5, 1, 1, cpu(300)).active_deadline_ms(60_000));
    pair.steps();
    assert_eq!((pair.n_bound(4), pair.live(5)), (0, vec![node]));
    pair.end(5, &[0]);
    pair.end(first, &[1]);
    pair.leave();
    assert_eq!((pair.live(3), pair.binder.n_holds()), (vec![node], 0));
    assert_eq!(pair.scheduler.stats().conflicts, 0);
}

#[test]
fn a_unit_of_several_large_replicas_gathers_for_one_of_them_at_a_time() {
    let mut pair = full();
    let large = unit(3, 2, 1, cpu(1000)).preemptible(false);
    for n_bound in [1, 2] {
        let permit = Permit { turn: true, places_max: Some(1), ..Permit::default() };
        pair.assign_with(&large, &all(&large), permit);
        pair.steps();
        assert_eq!(
            (pair.binder.n_holds(), pair.binder.picture().gathering()[0].n_wanted),
            (1, 1),
            "{n_bound}"
        );
        let node = pair.binder.cluster().holds().all()[0].node.0;
        let filler = if pair.live(1).first() == Some(&node) { 1 } else { 2 };
        pair.end(filler, &[0, 1]);
        pair.leave();
        assert_eq!((pair.n_bound(3), pair.binder.n_holds()), (n_bound, 0));
    }
}

#[test]
fn one_large_unit_gathers_nothing_beside_what_goes_on_for_good() {
    let mut pair = Pair::new(2);
    pair.binder.gather_for(1_000_000);
    let services = unit(1, 2, 1, cpu(600)).class(WorkloadClass::Service).preemptible(false);
    pair.assign(&services);
    pair.steps();
    pair.assign_turn(&unit(2, 1, 1, cpu(800)));
    let step = pair.scheduler.step(pair.now, 1_000);
    let report = step.reports.iter().find(|report| report.unit == UnitId(2)).unwrap();
    let reasons = &report.refusals.as_ref().unwrap().reasons;
    assert!(reasons.iter().any(|one| one.plugin == "gang-turn"), "{reasons:?}");
    assert_eq!((report.state, pair.binder.n_holds()), (ReportState::Parked, 0));
}

#[test]
fn one_large_unit_that_fits_elsewhere_first_is_bound_there() {
    let mut pair = full();
    let large = unit(3, 1, 1, cpu(1000)).preemptible(false);
    pair.assign_turn(&large);
    pair.steps();
    assert_eq!(pair.binder.n_holds(), 1);
    pair.commit(vec![
        Change::Put(Record::NodeSpec(node_spec(3))),
        Change::Put(Record::NodeReport(node_report(3, resources(1000, 100), 0, "A10"))),
    ]);
    pair.steps();
    assert_eq!((pair.live(3), pair.binder.n_holds()), (vec![3], 0));
}

#[test]
fn a_gang_that_requires_a_rack_gathers_in_the_one_that_is_free_first() {
    // Racks of two nodes, all of them full: what is in the first one runs longest.
    let mut pair = Pair::new(0);
    pair.binder.gather_for(1_000_000);
    for id in 1..=4 {
        let labels =
            [("rack".to_owned(), format!("r{}", (id - 1) / 2)), ("host".to_owned(), format!("h{id}"))];
        pair.commit(vec![
            Change::Put(Record::NodeSpec(NodeSpec { labels: labels.into(), ..node_spec(id) })),
            Change::Put(Record::NodeReport(node_report(id, resources(1000, 100), 0, "A10"))),
        ]);
    }
    // Of the second rack one node is taken by what goes on for good, so that the youngest of all is of no use.
    for (id, host, goes_on) in [(1, "h1", false), (2, "h2", false), (3, "h3", true), (4, "h4", false)] {
        let class = if goes_on { WorkloadClass::Service } else { WorkloadClass::Batch };
        let mut filler = unit(id, 1, 1, cpu(1000)).preemptible(false).class(class);
        filler.spec.task_groups[0].template.node_selector.insert("host".to_owned(), host.to_owned());
        pair.assign(&filler);
        pair.steps();
        assert_eq!(pair.n_bound(id), 1);
    }
    let mut gang = unit(5, 2, 2, cpu(800));
    gang.spec.topology.required = "rack".to_owned();
    pair.assign_turn(&gang);
    pair.steps();
    let nodes: BTreeSet<u32> =
        pair.binder.cluster().holds().all().into_iter().map(|hold| hold.node.0).collect();
    assert_eq!((nodes, pair.binder.picture().gathering().len()), ([1, 2].into(), 1));
    pair.end(1, &[0]);
    pair.steps();
    assert_eq!(pair.n_bound(5), 0);
    pair.end(2, &[0]);
    pair.leave();
    let nodes: BTreeSet<u32> = pair.live(5).into_iter().collect();
    assert_eq!((nodes, pair.binder.n_holds()), ([1, 2].into(), 0));
}

/// Racks of nodes, each full of a running unit that nobody preempts: unit `100 + id` on node `id`. Those on `stays` go on for good.
fn full_racks(n_nodes: u32, of_rack: u32, stays: &[u32]) -> Pair {
    let mut pair = racks(n_nodes, of_rack);
    pair.binder.gather_for(1_000_000);
    for node in 1..=n_nodes {
        let class = if stays.contains(&node) { WorkloadClass::Service } else { WorkloadClass::Batch };
        let mut filler = unit(100 + u64::from(node), 1, 1, cpu(1000)).preemptible(false).class(class);
        filler.spec.task_groups[0].template.node_selector.insert("host".to_owned(), format!("h{node}"));
        pair.assign(&filler);
        pair.steps();
        assert_eq!(pair.n_bound(100 + u64::from(node)), 1);
    }
    pair
}

impl Pair {
    fn gathers_on(&self) -> Vec<u32> {
        let holds = self.binder.cluster().holds().all();
        let of = |hold: &&Arc<Hold>| vec![hold.node.0; hold.ordinals.len()];
        let mut nodes: Vec<u32> = holds.iter().flat_map(of).collect();
        nodes.sort_unstable();
        nodes
    }

    /// The gang has its turn, and everyone who is on the nodes where it gathers room ends: it is bound there, all of it.
    fn gather_and_bind(&mut self, gang: &UnitRecord) -> Vec<u32> {
        self.assign_turn(gang);
        self.steps();
        let nodes = self.gathers_on();
        assert_eq!(self.binder.picture().gathering().len(), usize::from(!nodes.is_empty()));
        let mut on: Vec<u32> = nodes.clone();
        on.dedup();
        on.iter().for_each(|node| self.end(100 + u64::from(*node), &[0]));
        self.leave();
        self.assert_same();
        let n_bound = if nodes.is_empty() { 0 } else { gang.spec.replicas() as usize };
        assert_eq!((self.n_bound(gang.id.0), self.binder.n_holds()), (n_bound, 0));
        assert_eq!(self.scheduler.stats().conflicts, 0);
        nodes
    }
}

#[test]
fn each_segment_gathers_in_one_rack() {
    // Of the third rack one node never has room.
    let mut pair = full_racks(9, 3, &[7]);
    let mut gang = unit(5, 6, 6, cpu(1000));
    gang.spec.topology = segments(3);
    pair.gather_and_bind(&gang);
    let racks = racks_of(&pair, 5, 3);
    assert!(racks[..3] == [racks[0]; 3] && racks[3..] == [1 - racks[0]; 3], "{racks:?}");
    // A segment more has no rack.
    let mut pair = full_racks(9, 3, &[7]);
    let mut gang = unit(5, 9, 9, cpu(1000));
    gang.spec.topology = segments(3);
    assert_eq!(pair.gather_and_bind(&gang), [] as [u32; 0]);
}

#[test]
fn each_task_group_gathers_in_its_rack() {
    // The second group fits into the second rack only, of which the first one would take a part: there it would be soonest.
    let mut pair = full_racks(6, 3, &[1]);
    let two = gang(5, 0, &[(1, 1000, in_rack()), (3, 1000, in_rack())]);
    assert_eq!(pair.gather_and_bind(&two).len(), 4);
    assert_eq!(racks_of(&pair, 5, 3), [0, 1, 1, 1]);
}

#[test]
fn replicas_that_keep_apart_gather_on_different_nodes() {
    let mut pair = full_racks(4, 2, &[]);
    let mut gang = unit(5, 3, 3, cpu(300));
    let term = UnitTerm { units: Vec::new(), topology: "host".to_owned(), weight: 0 };
    gang.spec.affinity.apart.push(term);
    let nodes: BTreeSet<u32> = pair.gather_and_bind(&gang).into_iter().collect();
    assert_eq!(nodes.len(), 3);
    // So do those that listen on the same port.
    let mut pair = full_racks(3, 3, &[]);
    assert_eq!(pair.gather_and_bind(&unit(5, 3, 3, with_port(300))), [1, 2, 3]);
}

#[test]
fn spread_replicas_are_bound_in_an_order_that_is_even() {
    // Each rack has room for all of them; what is held on the first one is bound before what is held on the second one.
    let mut pair = full_racks(6, 3, &[]);
    let mut gang = unit(5, 6, 6, cpu(1000));
    let (units, topology) = (Vec::new(), "rack".to_owned());
    gang.spec.affinity.spread.push(SpreadTerm { units, topology, max_skew: 1, weight: 0 });
    assert_eq!(pair.gather_and_bind(&gang), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn zones_are_gathered_as_they_become_free() {
    // Two zones of 4 CPUs on each node, and in each of them somebody with 2 CPUs of his own.
    let zoned = |policy, cpu_mode, amount: i64| Demand {
        requests: resources(amount, 1),
        devices: Vec::new(),
        host_ports: Vec::new(),
        zones: Some(ZoneRequest { policy, cpu_mode }),
    };
    let mut pair = Pair::new(0);
    pair.binder.gather_for(1_000_000);
    for id in 1..=2 {
        let TestNode { spec, report } = node(id).memory(64).zones(2, 1, 4, 1);
        pair.commit(vec![Change::Put(Record::NodeSpec(spec)), Change::Put(Record::NodeReport(report))]);
    }
    let dedicated = |amount| zoned(ZonePolicy::SingleZone, CpuMode::Dedicated, amount);
    for id in 101..=104 {
        // One on each zone: two would have no room beside another one for a while.
        let filler = unit(id, 1, 1, dedicated(3_000)).preemptible(false);
        pair.assign(&filler);
        pair.steps();
        assert_eq!(pair.n_bound(id), 1);
    }
    let gang = unit(5, 2, 2, dedicated(4_000));
    pair.assign_turn(&gang);
    pair.steps();
    assert_eq!(
        (pair.binder.picture().gathering().len(), pair.binder.picture().gathering()[0].n_wanted),
        (1, 2)
    );
    // The core that is free in a zone is gathered: where nobody gathers it is there.
    let small = unit(6, 4, 1, dedicated(1_000)).preemptible(false);
    pair.assign(&small);
    pair.steps();
    assert_eq!(pair.n_bound(6), 2, "the other zones");
    for id in 101..=104 {
        pair.end(id, &[0]);
        pair.leave();
    }
    assert_eq!((pair.n_bound(5), pair.binder.n_holds()), (2, 0));
    let rows = pair.binder.cluster().rows().of(UnitId(5)).unwrap();
    assert!(rows.live().all(|(_, row)| row.allocation.zones.cores.len() == 4));
    pair.assert_same();
    assert_eq!(pair.scheduler.stats().conflicts, 0);
}
