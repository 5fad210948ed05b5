//! What a look at a node sees: decisions under way beside it, who gives back most, and members elsewhere.

use super::*;

/// Binds one more running unit of a unit.
fn bind(
    cluster: &mut Cluster,
    (unit, ordinal): (u64, u32),
    node: u32,
    demand: &Demand,
    standing: &PreemptionTerms,
    since_ms: i64,
) {
    let node = NodeId(node);
    let shape = cluster.shape(demand, Pool::Guaranteed);
    let bind = Bind {
        demand: Arc::new(demand.clone()),
        pool: Pool::Guaranteed,
        ordinals: vec![ordinal],
        nodes: vec![node],
        devices: vec![cluster.free().pick(shape, node).unwrap().devices],
        standing: Some(Arc::new(standing.clone())),
        ..Bind::default()
    };
    cluster.apply_rows(UnitId(unit), &RunChange::Bind(bind), Revision(2), since_ms);
}

fn standing(min_member: u32, min_run_ms: u64) -> PreemptionTerms {
    PreemptionTerms { priority: 5, preemptible: true, min_run_ms, min_member, ..PreemptionTerms::default() }
}

#[test]
fn beside_a_decision_under_way_others_of_its_node_may_leave() {
    let mut cluster = cluster(1);
    run(&mut cluster, &running(1, 5, 4_000, &[1]));
    run(&mut cluster, &running(2, 5, 4_000, &[1]));
    let shape = cluster.shape(&demand(4_000, 1, 0), Pool::Guaranteed);
    // The decision takes the room of unit 1, which has not left yet.
    cluster.assume(RunningUnitId::new(UnitId(7), 0, 0), shape, NodeId(1), Allocation::default());
    let claimed = [(UnitId(1), 0)].into_iter().collect();
    let found = search(&mut cluster, &SEEKER, &claimed, None, shape, [1], 2);
    assert_eq!((places(&found), victims(&found)), (vec![1], vec![(2, 0)]));
}

#[test]
fn devices_freed_for_a_decision_belong_to_it_alone() {
    let gpus = |count| Demand {
        devices: vec![DeviceRequest {
            kind: "gpu".to_owned(),
            count,
            milli: 1_000,
            models: Vec::new(),
            terms: None,
        }],
        ..demand(1_000, 1, 0)
    };
    let claimed = [(UnitId(1), 0)].into_iter().collect();
    let beside = |n_first, n_second| {
        let mut cluster = cluster(1);
        bind(&mut cluster, (1, 0), 1, &gpus(n_first), &standing(1, 0), 1_000);
        if n_second > 0 {
            bind(&mut cluster, (2, 0), 1, &gpus(n_second), &standing(1, 0), 1_000);
        }
        let shape = cluster.shape(&gpus(1), Pool::Guaranteed);
        // The decision takes one of the devices of unit 1, which has not left yet.
        cluster.assume(RunningUnitId::new(UnitId(7), 0, 0), shape, NodeId(1), DeviceSet(1).into());
        let found = search(&mut cluster, &SEEKER, &claimed, None, shape, [1], 2);
        (found.places.clone(), victims(&found))
    };
    assert_eq!(beside(2, 0), (vec![], vec![]), "the other one is in use as long as unit 1 is there");
    assert_eq!(
        beside(1, 1),
        (vec![(NodeId(1), DeviceSet(0b10).into())], vec![(2, 0)]),
        "that of unit 2 is not promised yet"
    );
}

#[test]
fn nobody_is_waited_for_on_a_node_that_has_too_little() {
    let retry_ms = |priority_of_other| {
        let mut cluster = cluster(1);
        run(&mut cluster, &Running { min_run_ms: 1_500_000, ..running(1, 5, 2_000, &[1]) });
        run(&mut cluster, &running(2, priority_of_other, 6_000, &[1]));
        seek(&mut cluster, &demand(8_000, 1, 0), 1).retry_ms
    };
    assert_eq!(retry_ms(5), Some(1_501_000));
    assert_eq!(retry_ms(60), None, "the other one stays in any case");
}

#[test]
fn a_gang_stays_whole_while_one_of_it_elsewhere_may_not_leave() {
    for (min_run_ms, n_victims) in [(0, 2), (500_000, 0)] {
        let mut cluster = cluster(2);
        let (takes, standing) = (demand(8_000, 1, 0), standing(2, min_run_ms));
        bind(&mut cluster, (1, 0), 1, &takes, &standing, 1_000);
        bind(&mut cluster, (1, 1), 2, &takes, &standing, NOW_MS - 1_000);
        assert_eq!(victims(&seek(&mut cluster, &takes, 1)).len(), n_victims, "{min_run_ms}");
    }
}

#[test]
fn what_leaves_of_each_of_two_units_counts_for_those_elsewhere() {
    let mut cluster = cluster(3);
    // Of unit 2 one may leave.
    run(&mut cluster, &running(1, 5, 4_000, &[1]));
    run(&mut cluster, &Running { min_member: 2, ..running(2, 5, 4_000, &[1, 2, 3]) });
    run(&mut cluster, &running(3, 6, 4_000, &[2]));
    run(&mut cluster, &Running { preemptible: false, ..running(4, 5, 4_000, &[3]) });
    let ask = demand(8_000, 1, 0);
    let found = seek(&mut cluster, &ask, 1);
    assert_eq!((places(&found), victims(&found)), (vec![1], vec![(1, 0), (2, 0)]));
    let found = seek(&mut cluster, &ask, 2);
    assert_eq!(places(&found), [1, 2]);
    assert_eq!(victims(&found), [(1, 0), (2, 0), (2, 1), (2, 2), (3, 0)], "a second one breaks it");
}

#[test]
fn of_equal_rank_the_victim_freeing_more_scarce_room_leaves() {
    let takes = |cpu, count| Demand {
        requests: Resources::new([(CPU, cpu)]).unwrap(),
        devices: vec![DeviceRequest {
            kind: "gpu".to_owned(),
            count,
            milli: 1_000,
            models: Vec::new(),
            terms: None,
        }],
        host_ports: Vec::new(),
        zones: None,
    };
    // Cores and GPUs of each of two; for so many GPUs either has to leave.
    let cases =
        [(1, (3_000, 2), (1_500, 3), 1), (1, (3_000, 1), (2_000, 2), 2), (2, (3_000, 2), (1_500, 3), 2)];
    for (n_gpus, first, second, expected) in cases {
        let mut cluster = cluster(1);
        let gpu = Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
        let report = NodeReport {
            id: NodeId(1),
            capacity: Resources::new([(CPU, 8_000)]).unwrap(),
            devices: vec![gpu; (first.1 + second.1) as usize],
            ready: true,
            ..NodeReport::default()
        };
        cluster.nodes_mut().put_report(report, Revision(2));
        for (unit, (cpu, count)) in [(1, first), (2, second)] {
            bind(&mut cluster, (unit, 0), 1, &takes(cpu, count), &standing(1, 0), 1_000);
        }
        let found = seek(&mut cluster, &takes(1_000, n_gpus), 1);
        assert_eq!(victims(&found), [(expected, 0)], "{n_gpus} {first:?} {second:?}");
    }
}

#[test]
fn a_gang_is_not_broken_from_a_node_that_had_room_at_first() {
    let mut cluster = cluster(3);
    // Two of four are needed; nodes 1 and 2 have room for one each before anybody leaves.
    run(&mut cluster, &Running { min_member: 2, ..running(1, 5, 2_000, &[1, 1, 2, 3]) });
    let shape = cluster.shape(&demand(4_000, 1, 0), Pool::Guaranteed);
    let mut found = |n| search(&mut cluster, &SEEKER, &FxHashSet::default(), None, shape, [1, 2], n);
    assert_eq!((places(&found(2)), victims(&found(2))), (vec![1, 2], vec![]));
    assert_eq!((places(&found(3)), victims(&found(3))), (vec![1, 2, 2], vec![(1, 2)]));
    let found = found(4);
    assert_eq!((places(&found), victims(&found).len()), (vec![1, 2, 2, 1], 4), "the gang leaves whole");
}
