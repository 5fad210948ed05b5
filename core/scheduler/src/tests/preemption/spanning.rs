//! Victims whose units lie in several domains, with the real binder behind the scheduler: they leave whole, and what they leave in each
//! domain is room for what goes there.

use godel_domain::{running_units::RunningUnits, unit::Template};

use super::{
    own_domains::{gang, in_rack, racks, segments},
    *,
};

/// Units that fill nodes: their priority, and their nodes. Those with several nodes need all of their replicas.
type Fillers = Vec<(i32, Vec<u32>)>;

/// Fillers have ids from here on, in order.
const FIRST: u64 = 101;

/// A gang with one replica on each of some nodes, which takes all of it.
fn fill_all(pair: &mut Pair, id: u64, priority: i32, nodes: &[u32]) {
    let group = |node: &u32| {
        let mut template = Template { demand: cpu(1000), ..Template::default() };
        template.node_selector.insert("host".to_owned(), format!("h{node}"));
        godel_testkit::group(&format!("on-{node}"), 1, template)
    };
    let n = u32::try_from(nodes.len()).unwrap();
    let groups = nodes.iter().map(group).collect();
    pair.assign(&ranked(id, priority, 1, 1, cpu(1)).task_groups(groups).min_member(n));
    pair.steps();
    assert_eq!(pair.live(id), nodes);
}

/// What leaves for a unit, what it costs, and where the unit runs once that has left; `None`: it has no places.
struct Outcome {
    cost: (i32, i64, usize),
    nodes: Vec<u32>,
}

fn outcome(n_racks: u32, of_rack: u32, fillers: &Fillers, unit: &UnitRecord) -> Option<Outcome> {
    let mut pair = racks(n_racks * of_rack, of_rack);
    for (id, (priority, nodes)) in (FIRST..).zip(fillers) {
        fill_all(&mut pair, id, *priority, nodes);
    }
    pair.assign(unit);
    pair.step();
    let mut victims: Vec<i32> = Vec::new();
    for (id, (priority, nodes)) in (FIRST..).zip(fillers) {
        let rows = pair.binder.cluster().rows().of(UnitId(id)).unwrap();
        let n_leaving = rows.live().filter(|(_, row)| row.eviction.is_some()).count();
        assert!(n_leaving == 0 || n_leaving == nodes.len(), "unit {id} leaves whole or not at all");
        victims.extend(vec![*priority; n_leaving]);
    }
    // Until then nothing of it runs, and then all of it: one decision has room for everything.
    let is_held = !victims.is_empty();
    assert!(!is_held || pair.live(unit.id.0).is_empty());
    pair.assert_same();
    pair.leave();
    pair.assert_same();
    let rows = pair.binder.cluster().rows().of(unit.id);
    let nodes: Vec<u32> = rows.into_iter().flat_map(RunningUnits::live).map(|(_, row)| row.node.0).collect();
    assert_eq!(pair.scheduler.stats().conflicts, 0, "the binder judges the same");
    if nodes.is_empty() {
        assert!(!is_held, "nobody leaves where nothing is placed");
        return None;
    }
    assert_eq!(nodes.len(), unit.spec.replicas() as usize);
    let sum = victims.iter().map(|priority| i64::from(*priority)).sum();
    let cost = (victims.iter().copied().max().unwrap_or(i32::MIN), sum, victims.len());
    Some(Outcome { cost, nodes })
}

/// The least that may leave for `n_parts` parts, of which each takes a whole rack: every choice of racks is looked at.
fn cheapest(n_racks: u32, of_rack: u32, fillers: &Fillers, n_parts: u32) -> Option<(i32, i64, usize)> {
    let cost = |racks: u32| {
        let is_taken = |node: &u32| racks >> ((node - 1) / of_rack) & 1 == 1;
        let leaving = fillers.iter().filter(|(_, nodes)| nodes.iter().any(is_taken));
        let victims: Vec<i32> = leaving.flat_map(|(priority, nodes)| vec![*priority; nodes.len()]).collect();
        let sum = victims.iter().map(|priority| i64::from(*priority)).sum();
        (victims.iter().copied().max().unwrap_or(i32::MIN), sum, victims.len())
    };
    (0u32..1 << n_racks).filter(|racks| racks.count_ones() == n_parts).map(cost).min()
}

#[test]
fn a_gang_in_two_racks_makes_room_in_both() {
    // One gang lies in both racks; each task group, or each segment, needs a whole rack.
    let fillers = vec![(5, vec![1, 2, 3, 4])];
    let mut by_segments = ranked(9, 100, 4, 4, cpu(1000));
    by_segments.spec.topology = segments(2);
    let by_groups = gang(9, 100, &[(2, 1000, in_rack()), (2, 900, in_rack())]);
    for unit in [by_groups, by_segments] {
        let found = outcome(2, 2, &fillers, &unit).expect("the gang leaves, and its room is enough");
        assert_eq!(found.cost, (5, 20, 4));
        let mut nodes = found.nodes;
        nodes.sort_unstable();
        assert_eq!(nodes, [1, 2, 3, 4]);
    }
}

#[test]
fn what_a_gang_leaves_elsewhere_is_room_for_others_of_the_unit() {
    // No topology: the second task group finds the room of those who leave for the first one, and nobody else has to leave.
    let fillers = vec![(1, vec![1, 2]), (2, vec![3])];
    let any = godel_domain::unit_topology::UnitTopology::default();
    let unit = gang(9, 100, &[(1, 1000, any.clone()), (1, 900, any)]);
    let found = outcome(1, 3, &fillers, &unit).unwrap();
    assert_eq!((found.cost, found.nodes), ((1, 2, 2), vec![1, 2]));
}

#[test]
fn dear_racks_that_share_a_gang_are_cheaper_together() {
    // Rack 0 costs least alone; racks 1 and 2 cost less together than rack 0 and one of them.
    let fillers = vec![(3, vec![1]), (3, vec![2]), (4, vec![3, 5]), (4, vec![4, 6])];
    let mut unit = ranked(9, 100, 4, 4, cpu(1000));
    unit.spec.topology = segments(2);
    let found = outcome(3, 2, &fillers, &unit).unwrap();
    assert_eq!(found.cost, (4, 16, 4));
    assert!(found.nodes.iter().all(|node| *node > 2), "{:?}", found.nodes);
}

#[test]
fn victims_in_several_racks_are_the_cheapest_of_all_choices() {
    let mut seed = 11u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let (mut n_spanning, mut n_found) = (0, 0);
    for case in 0..90 {
        let small = |n: u64| u32::try_from(n).unwrap();
        let (n_racks, of_rack) = (small(2 + below(3)), small(1 + below(2)));
        let n_parts = small(1 + below(u64::from(n_racks.min(3))));
        // Each node is empty, or filled by a unit of its own or by one of two gangs; some are of too high a rank.
        let mut fillers: Fillers =
            vec![(small_priority(below(4)), Vec::new()), (small_priority(below(9)), Vec::new())];
        for node in 1..=n_racks * of_rack {
            match below(5) {
                0 => {}
                1 => fillers.push((small_priority(below(9)), vec![node])),
                gang => fillers[usize::try_from(gang % 2).unwrap()].1.push(node),
            }
        }
        fillers.retain(|(_, nodes)| !nodes.is_empty());
        let unit = if case % 2 == 0 {
            let groups: Vec<_> =
                (0..n_parts).map(|part| (of_rack, 1000 - i64::from(part), in_rack())).collect();
            gang(9, 8, &groups)
        } else {
            let mut unit = ranked(9, 8, n_parts * of_rack, n_parts * of_rack, cpu(1000));
            unit.spec.topology = segments(of_rack);
            unit
        };
        // Nobody of its own rank or above leaves.
        let expected = cheapest_below(n_racks, of_rack, &fillers, n_parts);
        let found = outcome(n_racks, of_rack, &fillers, &unit);
        let cost = found.as_ref().map(|found| found.cost);
        assert_eq!(cost, expected, "case {case}: {n_parts} of {n_racks} racks of {of_rack}: {fillers:?}");
        n_found += usize::from(cost.is_some());
        n_spanning += usize::from(cost.is_some_and(|(.., n)| n > (n_parts * of_rack) as usize));
    }
    assert!(n_spanning >= 5 && n_found < 90, "{n_spanning} of {n_found}");
}

fn small_priority(n: u64) -> i32 {
    i32::try_from(n).unwrap() + 1
}

/// The same where those of priority 8 and above stay.
fn cheapest_below(n_racks: u32, of_rack: u32, fillers: &Fillers, n_parts: u32) -> Option<(i32, i64, usize)> {
    let stays = |priority: i32| priority >= 8;
    let is_open = |rack: &u32| {
        let mut nodes = fillers.iter().filter(|(priority, _)| stays(*priority)).flat_map(|(_, nodes)| nodes);
        !nodes.any(|node| (node - 1) / of_rack == *rack)
    };
    let open: Vec<u32> = (0..n_racks).filter(is_open).collect();
    let at = |node: u32| open.iter().position(|rack| *rack == (node - 1) / of_rack);
    // Racks that stay as they are are left out; what leaves there leaves all the same.
    let renamed = |node: &u32| match at(*node) {
        Some(rack) => u32::try_from(rack).unwrap() * of_rack + 1,
        None => n_racks * of_rack + 1,
    };
    let fillers: Fillers = fillers
        .iter()
        .filter(|(priority, _)| !stays(*priority))
        .map(|(priority, nodes)| (*priority, nodes.iter().map(renamed).collect()))
        .collect();
    cheapest(u32::try_from(open.len()).unwrap(), of_rack, &fillers, n_parts)
}
