//! Task groups with topologies of their own, and victims for what goes to one domain together, with the real binder behind the
//! scheduler.

use godel_domain::{
    records::Record,
    running_units::{Requeue, RunningUnits},
    unit::TaskGroup,
    unit_topology::{Segments, UnitTopology},
};

use super::*;

/// Node `id` is in rack `(id - 1) / of_rack`, and in a switch with the next one; each has 1,000 cpu.
pub(super) fn racks(n_nodes: u32, of_rack: u32) -> Pair {
    let mut pair = Pair::new(0);
    for id in 1..=n_nodes {
        let labels = [
            ("rack".to_owned(), format!("r{}", (id - 1) / of_rack)),
            ("switch".to_owned(), format!("s{}", (id - 1) / 2)),
            ("host".to_owned(), format!("h{id}")),
        ];
        pair.commit(vec![
            Change::Put(Record::NodeSpec(NodeSpec { labels: labels.into(), ..node_spec(id) })),
            Change::Put(Record::NodeReport(node_report(id, resources(1000, 100), 0, "A10"))),
        ]);
    }
    pair
}

pub(super) fn in_rack() -> UnitTopology {
    UnitTopology { required: "rack".to_owned(), ..UnitTopology::default() }
}

pub(super) fn segments(size: u32) -> UnitTopology {
    let segments = Some(Segments { size, within: "rack".to_owned() });
    UnitTopology { segments, ..UnitTopology::default() }
}

/// A gang of task groups, each with its replicas, the cpu of a replica, and its topology. All replicas are needed.
pub(super) fn gang(id: u64, priority: i32, groups: &[(u32, i64, UnitTopology)]) -> UnitRecord {
    let group = |(idx, (replicas, amount, topology)): (usize, &(u32, i64, UnitTopology))| {
        let template = Template { demand: cpu(*amount), ..Template::default() };
        let topology = Some(Box::new(topology.clone())).filter(|topology| !topology.is_empty());
        TaskGroup {
            min_member: *replicas,
            topology,
            ..godel_testkit::group(&format!("g{idx}"), *replicas, template)
        }
    };
    let groups: Vec<TaskGroup> = groups.iter().enumerate().map(group).collect();
    let all: u32 = groups.iter().map(|group| group.replicas).sum();
    ranked(id, priority, 1, 1, cpu(1)).task_groups(groups).min_member(all)
}

/// Racks of the live replicas of a unit, by ordinal.
pub(super) fn racks_of(pair: &Pair, id: u64, of_rack: u32) -> Vec<u32> {
    let rows = pair.binder.cluster().rows().of(UnitId(id));
    rows.into_iter().flat_map(RunningUnits::live).map(|(_, row)| (row.node.0 - 1) / of_rack).collect()
}

/// One running unit that takes all of a node.
pub(super) fn fill(pair: &mut Pair, id: u64, node: u32, priority: i32) {
    let mut filler = ranked(id, priority, 1, 1, cpu(1000));
    filler.spec.task_groups[0].template.node_selector.insert("host".to_owned(), format!("h{node}"));
    pair.assign(&filler);
    pair.steps();
    assert_eq!(pair.live(id), [node]);
}

#[test]
fn each_task_group_has_a_rack_that_holds_it() {
    // Three nodes to a rack: no rack holds both groups.
    let mut pair = racks(6, 3);
    pair.assign(&gang(1, 0, &[(3, 800, in_rack()), (2, 800, in_rack())]));
    pair.steps();
    let racks = racks_of(&pair, 1, 3);
    assert!(racks.len() == 5 && racks[..3] == [racks[0]; 3] && racks[3..] == [1 - racks[0]; 2], "{racks:?}");
}

#[test]
fn an_earlier_task_group_makes_way_for_a_later_one() {
    // The first group fits into each rack, the second one only into the one of which the first one would take a part.
    for first in [1, 2] {
        let mut pair = racks(6, 3);
        fill(&mut pair, 2, if first == 1 { 1 } else { 4 }, 0);
        pair.assign(&gang(3, 0, &[(1, 1000, in_rack()), (3, 1000, in_rack())]));
        pair.steps();
        let (small, large) = if first == 1 { (0, 1) } else { (1, 0) };
        assert_eq!(racks_of(&pair, 3, 3), [small, large, large, large]);
    }
}

#[test]
fn task_groups_stay_inside_of_the_domain_of_their_unit() {
    let mut pair = racks(8, 4);
    let on_switch = UnitTopology { required: "switch".to_owned(), ..UnitTopology::default() };
    let mut unit = gang(1, 0, &[(2, 1000, on_switch.clone()), (2, 1000, on_switch)]);
    unit.spec.topology = in_rack();
    pair.assign(&unit);
    pair.steps();
    let (racks, switches) = (racks_of(&pair, 1, 4), racks_of(&pair, 1, 2));
    assert!(racks.len() == 4 && racks.iter().all(|rack| *rack == racks[0]), "{racks:?}");
    assert!(switches[0] == switches[1] && switches[2] == switches[3] && switches[0] != switches[2]);
}

#[test]
fn a_preferred_domain_is_taken_where_one_holds_the_group() {
    let prefers = UnitTopology { preferred: vec!["rack".to_owned()], ..UnitTopology::default() };
    let mut pair = racks(6, 3);
    pair.assign(&gang(1, 0, &[(3, 1000, prefers.clone()), (1, 1000, UnitTopology::default())]));
    pair.steps();
    let racks = racks_of(&pair, 1, 3);
    assert!(racks.len() == 4 && racks[..3] == [racks[0]; 3], "{racks:?}");
    // Each rack has room for one more: two are placed all the same, unless they have to be in one.
    let mut pair = self::racks(4, 2);
    fill(&mut pair, 2, 1, 0);
    fill(&mut pair, 3, 3, 0);
    pair.assign(&gang(4, 0, &[(2, 1000, in_rack())]));
    pair.steps();
    pair.assign(&gang(5, 0, &[(2, 1000, prefers)]));
    pair.steps();
    assert_eq!((pair.live(4).len(), pair.live(5).len()), (0, 2));
}

#[test]
fn segments_of_a_task_group_begin_with_its_first_ordinal() {
    // Ordinal 0 is the launcher, and 1 to 3 and 4 to 6 are segments.
    let mut pair = racks(9, 3);
    pair.assign(&gang(1, 0, &[(1, 1000, UnitTopology::default()), (6, 1000, segments(3))]));
    pair.steps();
    let racks = racks_of(&pair, 1, 3);
    assert!(racks.len() == 7 && racks[1..4] == [racks[1]; 3] && racks[4..] == [racks[4]; 3], "{racks:?}");
}

#[test]
fn a_replacement_goes_to_the_rack_of_its_task_group() {
    let mut pair = racks(9, 3);
    let record = gang(1, 0, &[(2, 1000, in_rack()), (1, 1000, UnitTopology::default())]);
    pair.assign(&record);
    pair.steps();
    let racks = racks_of(&pair, 1, 3);
    assert!(racks.len() == 3 && racks[0] == racks[1]);
    let left = Statuses {
        ordinals: vec![1],
        incarnations: vec![0],
        phases: vec![Phase::Stopped],
        ..Statuses::default()
    };
    pair.commit(vec![Change::Rows(UnitId(1), RunChange::Statuses(left))]);
    let again = Requeue { ordinals: vec![1], incarnations: vec![1], anew: false };
    pair.commit(vec![Change::Rows(UnitId(1), RunChange::Requeue(again))]);
    let revision = pair.commit(vec![Change::Put(Record::Unit(Arc::new(record.clone())))]);
    let wanted = [ReplicaId::new(1, 1)];
    pair.scheduler.on_assign(&assignment(&record, revision, &wanted, 0), pair.now);
    pair.steps();
    assert_eq!(racks_of(&pair, 1, 3)[..2], [racks[0]; 2]);
}

/// Racks of some nodes with the priority of what fills each of them; 0: nothing does.
type Filled = Vec<Vec<i32>>;

/// What is cheapest for parts of so many replicas, each in one rack and each replica on a node of its own; `None`: nowhere.
fn cheapest(filled: &Filled, parts: &[u32]) -> Option<(i32, i64, usize)> {
    let n_choices = filled.len().pow(u32::try_from(parts.len()).unwrap());
    let cost = |choice: usize| {
        let mut wanted = vec![0; filled.len()];
        let mut choice = choice;
        for part in parts {
            wanted[choice % filled.len()] += *part as usize;
            choice /= filled.len();
        }
        let mut victims: Vec<i32> = Vec::new();
        for (rack, n) in filled.iter().zip(wanted) {
            let mut nodes = rack.clone();
            nodes.sort_unstable();
            victims.extend(nodes.get(..n)?.iter().filter(|priority| **priority > 0));
        }
        let sum = victims.iter().map(|priority| i64::from(*priority)).sum();
        Some((victims.iter().copied().max().unwrap_or(i32::MIN), sum, victims.len()))
    };
    (0..n_choices).filter_map(cost).min()
}

/// What leaves for a unit of priority 100 beside what fills the racks; `None`: it has no places.
fn found(filled: &Filled, unit: &UnitRecord) -> Option<(i32, i64, usize)> {
    let of_rack = u32::try_from(filled[0].len()).unwrap();
    let mut pair = racks(of_rack * u32::try_from(filled.len()).unwrap(), of_rack);
    let priorities: Vec<i32> = filled.iter().flatten().copied().collect();
    for (node, priority) in (1..).zip(&priorities).filter(|(_, priority)| **priority > 0) {
        fill(&mut pair, 100 + u64::from(node), node, *priority);
    }
    pair.assign(unit);
    pair.step();
    let victims: Vec<i32> =
        pair.leaving().iter().map(|(id, _)| priorities[usize::try_from(*id).unwrap() - 101]).collect();
    if victims.is_empty() && pair.live(unit.id.0).is_empty() {
        return None;
    }
    // One decision has room for all of it.
    let n_held: usize = pair.binder.cluster().holds().all().into_iter().map(|hold| hold.ordinals.len()).sum();
    assert_eq!(n_held + pair.live(unit.id.0).len(), unit.spec.replicas() as usize);
    let sum = victims.iter().map(|priority| i64::from(*priority)).sum();
    Some((victims.iter().copied().max().unwrap_or(i32::MIN), sum, victims.len()))
}

#[test]
fn victims_of_parts_are_the_cheapest_of_all_choices() {
    let mut seed = 7u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let (mut n_found, mut n_preempted) = (0, 0);
    for case in 0..60 {
        let (n_racks, n_nodes) = (2 + below(2), 2 + below(2));
        let mut priority = || i32::try_from(below(7)).unwrap();
        let filled: Filled = (0..n_racks).map(|_| (0..n_nodes).map(|_| priority()).collect()).collect();
        let small = |n: u64| u32::try_from(n).unwrap();
        let (parts, unit) = match case % 3 {
            0 => {
                let parts: Vec<u32> = (0..2).map(|_| small(1 + below(n_nodes))).collect();
                let groups: Vec<_> = parts.iter().map(|n| (*n, 1000, in_rack())).collect();
                (parts, gang(9, 100, &groups))
            }
            1 => {
                let parts: Vec<u32> = (0..3).map(|_| small(1 + below(2))).collect();
                let groups: Vec<_> = parts.iter().map(|n| (*n, 1000, in_rack())).collect();
                (parts, gang(9, 100, &groups))
            }
            _ => {
                let parts = vec![2; 1 + usize::try_from(below(2)).unwrap()];
                let mut unit = ranked(9, 100, parts.iter().sum(), parts.iter().sum(), cpu(1000));
                unit.spec.topology = segments(2);
                (parts, unit)
            }
        };
        let expected = cheapest(&filled, &parts);
        assert_eq!(found(&filled, &unit), expected, "{filled:?} {parts:?}");
        n_found += usize::from(expected.is_some());
        n_preempted += usize::from(expected.is_some_and(|(_, _, n)| n > 0));
    }
    assert!(n_preempted > 20 && n_found < 60, "{n_preempted} of {n_found}");
}

#[test]
fn a_lost_member_of_a_segment_preempts_in_its_rack() {
    let mut pair = racks(4, 2);
    let mut record = ranked(1, 9, 2, 2, cpu(1000));
    record.spec.topology = segments(2);
    pair.assign(&record);
    pair.steps();
    let rack = racks_of(&pair, 1, 2)[0];
    let left = Statuses {
        ordinals: vec![1],
        incarnations: vec![0],
        phases: vec![Phase::Stopped],
        ..Statuses::default()
    };
    pair.commit(vec![Change::Rows(UnitId(1), RunChange::Statuses(left))]);
    // One of higher priority than those in the other rack takes the place.
    for (id, node) in (2..).zip((1..=4).filter(|node| !pair.live(1).contains(node)).collect::<Vec<_>>()) {
        fill(&mut pair, id, node, if (node - 1) / 2 == rack { 5 } else { 1 });
    }
    let again = Requeue { ordinals: vec![1], incarnations: vec![1], anew: false };
    pair.commit(vec![Change::Rows(UnitId(1), RunChange::Requeue(again))]);
    let revision = pair.commit(vec![Change::Put(Record::Unit(Arc::new(record.clone())))]);
    pair.scheduler.on_assign(&assignment(&record, revision, &[ReplicaId::new(1, 1)], 0), pair.now);
    pair.step();
    let nodes: Vec<u32> = pair.leaving().iter().map(|(_, node)| (node - 1) / 2).collect();
    assert_eq!(nodes, [rack]);
}

/// A unit of one replica, to which a group of two is added that needs a rack.
fn with_added(id: u64, priority: i32) -> (UnitRecord, UnitRecord) {
    let before = ranked(id, priority, 1, 1, cpu(1000));
    let mut after = before.clone();
    let template = Template { demand: cpu(1000), ..Template::default() };
    let topology = Some(Box::new(in_rack()));
    after.spec.task_groups.push(TaskGroup { topology, ..godel_testkit::group("added", 2, template) });
    after.status.ordinals.push(vec![(1, 3)]);
    after.status.own_groups = 1;
    (before, after)
}

#[test]
fn an_added_group_begins_in_a_rack_that_holds_it() {
    // The first rack has one node left, the second one two.
    let mut pair = racks(5, 3);
    let (before, after) = with_added(1, 0);
    fill(&mut pair, 2, 1, 0);
    pair.assign(&before);
    pair.steps();
    let added = [ReplicaId::new(1, 0), ReplicaId::new(2, 0)];
    let revision = pair.commit(vec![Change::Put(Record::Unit(Arc::new(after.clone())))]);
    pair.scheduler.on_assign(&assignment(&after, revision, &added, 1), pair.now);
    pair.steps();
    let racks = racks_of(&pair, 1, 3);
    assert!(racks.len() == 3 && racks[1] == racks[2], "{racks:?}");
    assert_eq!(pair.scheduler.stats().conflicts, 0);
}

#[test]
fn an_added_group_preempts_in_a_rack_that_holds_all_of_it() {
    // The cheapest node is in the rack in which only one may leave.
    let mut pair = racks(4, 2);
    for (id, node, priority) in [(2, 1, 1), (3, 2, 50), (4, 3, 3)] {
        fill(&mut pair, id, node, priority);
    }
    let (before, after) = with_added(1, 9);
    pair.assign(&before);
    pair.steps();
    assert_eq!(pair.live(1), [4]);
    let added = [ReplicaId::new(1, 0), ReplicaId::new(2, 0)];
    let revision = pair.commit(vec![Change::Put(Record::Unit(Arc::new(after.clone())))]);
    pair.scheduler.on_assign(&assignment(&after, revision, &added, 1), pair.now);
    pair.step();
    // No rack holds both: one begins where that costs least, and the other one waits there.
    assert_eq!(pair.leaving(), [(2, 1)]);
    // With two racks that may hold it all of it begins in one.
    let mut pair = racks(6, 2);
    for (id, node, priority) in [(2, 1, 1), (3, 2, 50), (4, 3, 3), (5, 4, 4), (6, 5, 60)] {
        fill(&mut pair, id, node, priority);
    }
    pair.assign(&before);
    pair.steps();
    let revision = pair.commit(vec![Change::Put(Record::Unit(Arc::new(after.clone())))]);
    pair.scheduler.on_assign(&assignment(&after, revision, &added, 1), pair.now);
    pair.step();
    assert_eq!(pair.leaving(), [(4, 3), (5, 4)]);
}
