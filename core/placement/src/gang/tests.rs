use std::sync::Arc;

use godel_base::{
    ids::{Revision, RunningUnitId, UnitId},
    resources::{CPU, Resources},
};
use godel_domain::{
    demand::{Demand, Pool},
    node::{Device, NodeReport, NodeSpec},
    running_units::{Bind, End, Evict, EvictionReason, PreemptionTerms, RunChange},
};
use godel_testkit::BuildDemand as _;
use proptest::prelude::*;

use super::*;

const NOW_MS: i64 = 1_000_000;

fn demand(cpu: i64, gpus: u32) -> Demand {
    godel_testkit::demand(cpu).gpus(gpus, 1_000, &[])
}

/// Nodes of 1000 milli-cores and 4 devices, with running units by node: cpu, devices, and age.
fn cluster(nodes: &[Vec<(i64, u32, i64)>]) -> Cluster {
    let mut cluster = Cluster::new();
    let mut unit = 0;
    for (id, running) in (1u32..).zip(nodes) {
        let node = NodeId(id);
        let spec = NodeSpec { id: node, name: format!("n{id}"), ..NodeSpec::default() };
        cluster.nodes_mut().put_spec(spec, Revision(1));
        let gpu = Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
        let capacity = Resources::new([(CPU, 1000)]).unwrap();
        let devices = vec![gpu; 4];
        let report = NodeReport { id: node, capacity, devices, ready: true, ..NodeReport::default() };
        cluster.nodes_mut().put_report(report, Revision(1));
        for &(cpu, gpus, age_ms) in running {
            unit += 1;
            let demand = demand(cpu, gpus);
            let shape = cluster.shape(&demand, Pool::Guaranteed);
            let Some(given) = cluster.free().room_for(shape, node.idx()) else { continue };
            let bind = Bind {
                demand: Arc::new(demand),
                ordinals: vec![0],
                nodes: vec![node],
                devices: vec![given.devices],
                ..Bind::default()
            };
            let bound_ms = NOW_MS - age_ms;
            cluster.apply_rows(UnitId(unit), &RunChange::Bind(bind), Revision(2), bound_ms);
        }
    }
    cluster.taken_mut().keep_occupants();
    cluster
}

fn ask(cluster: &mut Cluster, cpu: i64, gpus: u32, n: usize) -> GroupAsk {
    let shape = cluster.shape(&demand(cpu, gpus), Pool::Guaranteed);
    GroupAsk { unit: UnitId(u64::MAX), shape, nodes: (1..cluster.free().n_indices()).collect(), n }
}

fn nodes_of(sites: Sites) -> Vec<Vec<NodeId>> {
    sites.places.into_iter().map(|places| places.into_iter().map(|(node, _)| node).collect()).collect()
}

fn chosen(nodes: &[Vec<(i64, u32, i64)>], (cpu, gpus): (i64, u32), n: usize) -> Option<Vec<u32>> {
    let mut cluster = cluster(nodes);
    let ask = ask(&mut cluster, cpu, gpus, n);
    let mut nodes: Vec<u32> =
        choose(&cluster, &[ask], 0, NOW_MS)?.places[0].iter().map(|place| place.0.0).collect();
    nodes.sort_unstable();
    Some(nodes)
}

#[test]
fn free_room_comes_first_then_that_of_the_youngest() {
    let nodes = vec![
        vec![(1000, 0, 50)],
        vec![(1000, 0, 10)],
        vec![],
        // For 600 two have to leave, the older one too.
        vec![(400, 0, 5), (300, 0, 40), (300, 0, 30)],
        // The youngest is enough.
        vec![(600, 0, 20), (400, 0, 90)],
    ];
    assert_eq!(chosen(&nodes, (600, 0), 1), Some(vec![3]));
    assert_eq!(chosen(&nodes, (600, 0), 2), Some(vec![2, 3]));
    assert_eq!(chosen(&nodes, (600, 0), 3), Some(vec![2, 3, 5]));
    assert_eq!(chosen(&nodes, (600, 0), 4), Some(vec![2, 3, 4, 5]));
    assert_eq!(chosen(&nodes, (600, 0), 5), Some(vec![1, 2, 3, 4, 5]));
    assert_eq!(chosen(&nodes, (600, 0), 6), None, "not even once all have left");
    assert_eq!(chosen(&nodes, (500, 0), 4), Some(vec![2, 2, 3, 3]));
}

#[test]
fn devices_are_waited_for_too() {
    let nodes = vec![vec![(100, 2, 10), (100, 1, 70)], vec![(100, 3, 30)]];
    assert_eq!(chosen(&nodes, (100, 1), 2), Some(vec![1, 2]));
    assert_eq!(chosen(&nodes, (100, 3), 1), Some(vec![1]));
    assert_eq!(chosen(&nodes, (100, 4), 1), Some(vec![2]));
    assert_eq!(chosen(&nodes, (100, 4), 2), Some(vec![1, 2]));
    assert_eq!(chosen(&nodes, (100, 5), 1), None);
}

#[test]
fn whoever_is_told_to_leave_is_as_good_as_gone() {
    let mut cluster = cluster(&[vec![(1000, 0, 10)], vec![(1000, 0, 900)]]);
    let evict = Evict {
        ordinals: vec![0],
        incarnations: Vec::new(),
        reason: EvictionReason::Drained,
        by: String::new(),
        preemptor: UnitId(0),
    };
    cluster.apply_rows(UnitId(2), &RunChange::Evict(evict), Revision(3), NOW_MS);
    let ask = ask(&mut cluster, 1000, 0, 1);
    assert_eq!(nodes_of(choose(&cluster, &[ask], 0, NOW_MS).unwrap()), [[NodeId(2)]]);
}

/// Which nodes a gang of priority 5 would gather on, where each is full of one that stands so.
fn chosen_beside(standings: &[PreemptionTerms], n: usize) -> Option<Vec<u32>> {
    let mut cluster = cluster(&vec![vec![]; standings.len()]);
    let demand = demand(1000, 0);
    for (id, standing) in (1u32..).zip(standings) {
        let bind = Bind {
            demand: Arc::new(demand.clone()),
            ordinals: vec![0],
            nodes: vec![NodeId(id)],
            standing: Some(Arc::new(standing.clone())),
            ..Bind::default()
        };
        cluster.apply_rows(UnitId(u64::from(id)), &RunChange::Bind(bind), Revision(2), NOW_MS);
    }
    let ask = ask(&mut cluster, 700, 0, n);
    let chosen = nodes_of(choose(&cluster, &[ask], 5, NOW_MS)?);
    Some(chosen[0].iter().map(|node| node.0).collect())
}

#[test]
fn nobody_waits_for_what_neither_ends_nor_may_be_preempted() {
    let stays = |priority, preemptible| PreemptionTerms {
        priority,
        preemptible,
        end: End::Never,
        ..PreemptionTerms::default()
    };
    let cases = [
        (stays(0, false), false),
        (stays(5, true), false),
        (stays(4, true), true),
        (PreemptionTerms { end: End::ByItself, ..stays(9, false) }, true),
        // Of an older binder.
        (PreemptionTerms { end: End::Unknown, ..stays(9, false) }, true),
    ];
    for (standing, is_waited_for) in cases {
        let chosen = chosen_beside(std::slice::from_ref(&standing), 1);
        assert_eq!(chosen.is_some(), is_waited_for, "{standing:?}");
    }
    let nodes = [stays(0, false), stays(0, true), PreemptionTerms { end: End::ByItself, ..stays(9, false) }];
    assert_eq!(chosen_beside(&nodes, 2), Some(vec![2, 3]));
    assert_eq!(chosen_beside(&nodes, 3), None, "of three nodes one never has room");
}

#[test]
fn groups_share_what_is_left() {
    let mut cluster = cluster(&[vec![], vec![(1000, 0, 10)]]);
    let asks = [ask(&mut cluster, 700, 0, 1), ask(&mut cluster, 400, 0, 2), ask(&mut cluster, 200, 0, 1)];
    let nodes = nodes_of(choose(&cluster, &asks, 0, NOW_MS).unwrap());
    assert_eq!(nodes, [vec![NodeId(1)], vec![NodeId(2), NodeId(2)], vec![NodeId(1)]]);
}

proptest! {
    #[test]
    fn the_chosen_victims_free_room_in_the_shortest_wait(
        nodes in prop::collection::vec(
            prop::collection::vec((100i64..700, 0u32..3, 0i64..100), 0..5), 1..5),
        cpu in 100i64..1_000,
        gpus in 0u32..4,
        n in 1usize..6,
    ) {
        let mut cluster = cluster(&nodes);
        let ask = ask(&mut cluster, cpu, gpus, n);
        let shape = ask.shape;
        // How many a node holds once all of at most some age have left, the plainest way.
        let holds = |node: u32, age_ms: i64| {
            let mut cluster = cluster.clone();
            for one in cluster.taken().occupants.on(NodeId(node)).to_vec() {
                if NOW_MS - one.since_ms <= age_ms {
                    cluster.units_mut().remove(one.unit);
                }
            }
            (0..n).take_while(|ordinal| {
                let given = cluster.free().room_for(shape, NodeId(node).idx());
                let ordinal = u32::try_from(*ordinal).unwrap();
                given.into_iter().for_each(|given| {
                    cluster.assume(RunningUnitId::new(UnitId(999), ordinal, 0), shape, NodeId(node), given);
                });
                given.is_some()
            }).count()
        };
        let ids = 1..=u32::try_from(nodes.len()).unwrap();
        let in_all = |age_ms: i64| ids.clone().map(|node| holds(node, age_ms)).sum::<usize>();
        let shortest = (-1..=100).find(|age_ms| in_all(*age_ms) >= n);
        let chosen = choose(&cluster, &[ask], 0, NOW_MS).map(nodes_of);
        prop_assert_eq!(chosen.is_some(), shortest.is_some());
        if let (Some(chosen), Some(age_ms)) = (chosen, shortest) {
            prop_assert_eq!(chosen[0].len(), n);
            for node in ids {
                let of_node = chosen[0].iter().filter(|one| one.0 == node).count();
                prop_assert!(of_node <= holds(node, age_ms), "{of_node} on {node} after {age_ms}");
            }
        }
    }
}
