mod budgets;
mod looks;
mod masters;
mod modes;
mod naive;
mod queues;

use std::{collections::BTreeSet, sync::Arc};

use godel_base::{
    ids::{Revision, RunningUnitId},
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    allocation::{Allocation, DeviceSet},
    demand::{Demand, DeviceRequest, Pool},
    node::{Device, NodeReport, NodeSpec},
    queue_spec::QueueSpec,
    running_units::{Bind, Evict, EvictionReason, PreemptionTerms, RunChange, RunningUnit, RunningUnits},
};
use godel_framework::{
    plugins::victims::whole_gang::{min_member, staying},
    point::{Rank, Sides, VictimInput},
    registry::{CANDIDATE_COSTS, may_leave},
};
use godel_queueing::{Need, Quota};
use godel_testkit::BuildDemand as _;
use proptest::prelude::*;

use super::*;

const NOW_MS: i64 = 1_000_000;

fn demand(cpu: i64, memory: i64, milli: u32) -> Demand {
    godel_testkit::demand(cpu).memory(memory).gpus(1, milli, &[])
}

fn cluster(n_nodes: u32) -> Cluster {
    let mut cluster = Cluster::new();
    for id in (1..=n_nodes).map(NodeId) {
        let gpu = Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0, details: None };
        cluster
            .nodes_mut()
            .put_spec(NodeSpec { id, name: format!("n{id}"), ..NodeSpec::default() }, Revision(1));
        let capacity = Resources::new([(CPU, 8_000), (MEMORY, 16)]).unwrap();
        let report = NodeReport {
            id,
            capacity,
            devices: vec![gpu.clone(), gpu],
            ready: true,
            ..NodeReport::default()
        };
        cluster.nodes_mut().put_report(report, Revision(1));
    }
    cluster
}

/// A unit as it runs: replicas by node, all alike.
#[derive(Clone, Debug)]
struct Running {
    id: u64,
    priority: i32,
    preemptible: bool,
    /// Its ordinal 0 is the master of an application.
    has_master: bool,
    min_member: u32,
    min_run_ms: u64,
    pool: Pool,
    queue: &'static str,
    cpu: i64,
    milli: u32,
    since_ms: i64,
    nodes: Vec<u32>,
    evicting: Vec<u32>,
}

fn running(id: u64, priority: i32, cpu: i64, nodes: &[u32]) -> Running {
    Running {
        id,
        priority,
        preemptible: true,
        has_master: false,
        min_member: 1,
        min_run_ms: 0,
        pool: Pool::Guaranteed,
        queue: "default",
        cpu,
        milli: 0,
        since_ms: 1_000,
        nodes: nodes.to_vec(),
        evicting: Vec::new(),
    }
}

/// Binds what fits, as a binder would.
fn run(cluster: &mut Cluster, unit: &Running) {
    let demand = demand(unit.cpu, 1, unit.milli);
    let shape = cluster.shape(&demand, unit.pool);
    let standing = PreemptionTerms {
        priority: unit.priority,
        preemptible: unit.preemptible,
        min_run_ms: unit.min_run_ms,
        min_member: unit.min_member,
        has_master: unit.has_master,
        queue: Some(Arc::from(unit.queue)),
        ..PreemptionTerms::default()
    };
    let (mut ordinals, mut nodes, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for (ordinal, node) in (0u32..).zip(&unit.nodes) {
        let node = NodeId(*node);
        if cluster.free().fits(shape, node).is_ok()
            && let Some(given) = cluster.free().pick(shape, node)
        {
            cluster.assume(RunningUnitId::new(UnitId(unit.id), ordinal, 0), shape, node, given);
            ordinals.push(ordinal);
            nodes.push(node);
            devices.push(given.devices);
        }
    }
    if ordinals.is_empty() {
        return;
    }
    let bind = Bind {
        demand: Arc::new(demand),
        pool: unit.pool,
        ordinals,
        nodes,
        devices,
        standing: Some(Arc::new(standing)),
        ..Bind::default()
    };
    cluster.apply_rows(UnitId(unit.id), &RunChange::Bind(bind), Revision(2), unit.since_ms);
    if !unit.evicting.is_empty() {
        let evict = Evict {
            ordinals: unit.evicting.clone(),
            incarnations: Vec::new(),
            reason: EvictionReason::Drained,
            by: String::new(),
            preemptor: UnitId(0),
        };
        cluster.apply_rows(UnitId(unit.id), &RunChange::Evict(evict), Revision(3), NOW_MS);
    }
}

const SEEKER: Seeker =
    Seeker { unit: UnitId(99), priority: 50, pool: Pool::Guaranteed, now_ms: NOW_MS, spares_masters: false };

fn seek(cluster: &mut Cluster, ask: &Demand, wanted: usize) -> Found {
    seek_with(cluster, None, ask, wanted)
}

fn seek_with(cluster: &mut Cluster, rights: Option<&Rights<'_>>, ask: &Demand, wanted: usize) -> Found {
    let shape = cluster.shape(ask, Pool::Guaranteed);
    let nodes = 1..cluster.free().n_indices();
    search(cluster, &SEEKER, &FxHashSet::default(), rights, shape, nodes, wanted)
}

fn victims(found: &Found) -> Vec<(u64, u32)> {
    let all = found.claims.values().flatten().chain(&found.others);
    let mut all: Vec<(u64, u32)> = all.map(|victim| (victim.unit.0, victim.replica.ordinal)).collect();
    all.sort_unstable();
    all
}

fn places(found: &Found) -> Vec<u32> {
    found.places.iter().map(|(node, _)| node.0).collect()
}

#[test]
fn the_lowest_rank_leaves_and_no_more_than_needed() {
    let mut cluster = cluster(2);
    run(&mut cluster, &running(1, 10, 4_000, &[1, 1]));
    run(&mut cluster, &running(2, 5, 4_000, &[2]));
    run(&mut cluster, &running(3, 20, 4_000, &[2]));
    let found = seek(&mut cluster, &demand(4_000, 1, 0), 1);
    assert_eq!((places(&found), victims(&found)), (vec![2], vec![(2, 0)]));
    let found = seek(&mut cluster, &demand(8_000, 1, 0), 1);
    assert_eq!((places(&found), victims(&found)), (vec![1], vec![(1, 0), (1, 1)]), "highest rank first");
    assert_eq!(places(&seek(&mut cluster, &demand(9_000, 1, 0), 1)), [] as [u32; 0]);
}

#[test]
fn of_equal_rank_who_gives_back_more_leaves() {
    let mut cluster = cluster(1);
    run(&mut cluster, &running(1, 5, 6_000, &[1]));
    run(&mut cluster, &running(2, 5, 2_000, &[1]));
    assert_eq!(victims(&seek(&mut cluster, &demand(2_000, 0, 0), 1)), [(1, 0)]);
}

#[test]
fn no_more_leave_for_one_decision_than_it_may_name() {
    let n = u32::try_from(N_VICTIMS_MAX).unwrap() / 16;
    let mut cluster = cluster(n + 1);
    for node in 1..=n + 1 {
        // None of them is the seeker's own unit, which would stay in any case.
        let id = SEEKER.unit.0 + u64::from(node);
        run(&mut cluster, &running(id, 0, 500, &[node; 16]));
    }
    let found = seek(&mut cluster, &demand(8_000, 1, 0), n as usize + 1);
    assert_eq!((found.places.len(), victims(&found).len()), (n as usize, N_VICTIMS_MAX));
}

#[test]
fn one_search_serves_all_replicas() {
    let mut cluster = cluster(3);
    run(&mut cluster, &running(1, 10, 8_000, &[1]));
    run(&mut cluster, &running(2, 5, 4_000, &[2, 2, 3, 3]));
    let found = seek(&mut cluster, &demand(2_000, 1, 0), 3);
    // What leaves for the first makes room for the second.
    assert_eq!(found.places.len(), 3);
    assert_eq!(victims(&found).len(), 2);
    assert!(victims(&found).iter().all(|(unit, _)| *unit == 2));
}

#[test]
fn a_gang_leaves_whole_at_its_whole_cost() {
    let mut cluster = cluster(4);
    run(&mut cluster, &Running { min_member: 3, ..running(1, 5, 8_000, &[1, 2, 3]) });
    run(&mut cluster, &running(2, 5, 8_000, &[4]));
    let found = seek(&mut cluster, &demand(8_000, 1, 0), 1);
    assert_eq!((places(&found), victims(&found)), (vec![4], vec![(2, 0)]), "one is cheaper than a gang");
    let found = seek(&mut cluster, &demand(8_000, 1, 0), 2);
    assert_eq!(victims(&found), [(1, 0), (1, 1), (1, 2), (2, 0)]);
    assert_eq!(found.others.len(), 2);
    let found = seek(&mut cluster, &demand(8_000, 1, 0), 4);
    assert_eq!(found.places.len(), 4, "who leaves in any case makes room for nothing more");
    assert!(found.others.is_empty());
}

#[test]
fn some_are_spared() {
    let ask = demand(8_000, 1, 0);
    for spared in [
        Running { priority: 50, ..running(1, 0, 8_000, &[1]) },
        Running { preemptible: false, ..running(1, 0, 8_000, &[1]) },
        Running { evicting: vec![0], ..running(1, 0, 8_000, &[1]) },
        Running { id: 99, ..running(1, 0, 8_000, &[1]) },
        Running { min_run_ms: 10_000_000, ..running(1, 0, 8_000, &[1]) },
    ] {
        let mut cluster = cluster(1);
        run(&mut cluster, &spared);
        let found = seek(&mut cluster, &ask, 1);
        assert!(found.places.is_empty(), "{spared:?}");
        assert_eq!(found.retry_ms.is_some(), spared.min_run_ms > 0);
    }
    let mut cluster_of_both = cluster(1);
    run(&mut cluster_of_both, &Running { pool: Pool::BestEffort, ..running(1, 0, 8_000, &[1]) });
    let found = seek(&mut cluster_of_both, &ask, 1);
    assert_eq!(found.places.len(), 1, "the other pool takes no room of this one");
    assert!(victims(&found).is_empty(), "and none of it has to leave");
    let mut cluster = cluster(1);
    run(&mut cluster, &running(1, 0, 8_000, &[1]));
    let claimed = [(UnitId(1), 0)].into_iter().collect();
    let shape = cluster.shape(&ask, Pool::Guaranteed);
    assert!(search(&mut cluster, &SEEKER, &claimed, None, shape, [1], 1).places.is_empty());
}

#[test]
fn nobody_preempts_who_preempted_it() {
    let mut cluster = cluster(1);
    run(&mut cluster, &running(1, 0, 8_000, &[1]));
    let mut rows = RunningUnits::default();
    rows.set_lineage(vec![UnitId(1)], Vec::new());
    cluster.load_rows(SEEKER.unit, rows);
    let found = seek(&mut cluster, &demand(8_000, 1, 0), 1);
    assert_eq!((found.places.len(), found.n_loops), (0, 1));
}

#[test]
fn what_decisions_under_way_claim_of_a_gang_is_gone() {
    let mut cluster = cluster(2);
    // Of four, two are needed; node 1 has three of them.
    run(&mut cluster, &Running { min_member: 2, ..running(1, 0, 2_000, &[2, 1, 1, 1]) });
    let shape = cluster.shape(&demand(6_000, 1, 0), Pool::Guaranteed);
    let mut beside = |claimed: &[(UnitId, u32)]| {
        let claimed = claimed.iter().copied().collect();
        victims(&search(&mut cluster, &SEEKER, &claimed, None, shape, [1], 1))
    };
    assert_eq!(beside(&[]).len(), 2, "the gang goes on with two");
    assert_eq!(beside(&[(UnitId(1), 0)]), [(1, 1), (1, 2), (1, 3)], "it would be left with one");
}

#[test]
fn a_round_of_evictions_is_made_once() {
    let (first, second, third) = (UnitId(1), UnitId(2), SEEKER.unit);
    let found = |lineages: &[(UnitId, &[UnitId])]| {
        let mut cluster = cluster(1);
        run(&mut cluster, &running(1, 0, 8_000, &[1]));
        for (unit, preemptors) in lineages {
            let mut rows = cluster.rows().of(*unit).cloned().unwrap_or_default();
            rows.set_lineage(preemptors.to_vec(), Vec::new());
            cluster.load_rows(*unit, rows);
        }
        let found = seek(&mut cluster, &demand(8_000, 1, 0), 1);
        (found.places.len(), found.n_loops)
    };
    let fourth = UnitId(3);
    let way_back = [(third, &[second][..]), (second, &[first])];
    assert_eq!(found(&way_back), (1, 0), "the first time");
    assert_eq!(found(&[way_back[0], way_back[1], (first, &[third])]), (0, 1), "round once");
    let by_way_of_two = [way_back[0], (second, &[fourth]), (fourth, &[first]), (first, &[third])];
    assert_eq!(found(&by_way_of_two), (0, 1), "a longer one");
    assert_eq!(found(&[way_back[0], (first, &[third])]), (1, 0), "who evicts anew without a round");
    let odd = [(third, &[second][..]), (second, &[third]), (first, &[third])];
    assert_eq!(found(&odd), (1, 0), "a round of others");
}

fn any_running() -> impl Strategy<Value = Running> {
    let standing = (0i32..6, 0u32..8, 1u32..4, 0u64..4);
    let takes = (1i64..5, 0u32..3, 0i64..5, proptest::sample::select(QUEUES.to_vec()));
    (standing, takes, proptest::collection::vec(1u32..5, 1..5), proptest::collection::vec(0u32..4, 0..2))
        .prop_map(|((priority, odd, min_member, min_run), (cpu, milli, since, queue), nodes, evicting)| {
            Running {
                queue,
                id: 0,
                priority: priority * 12,
                preemptible: odd != 0,
                has_master: false,
                min_member,
                min_run_ms: if min_run == 0 { 997_500 } else { 0 },
                pool: if odd == 1 { Pool::BestEffort } else { Pool::Guaranteed },
                cpu: cpu * 1_000,
                milli: milli * 500,
                since_ms: since * 1_000,
                evicting: evicting.into_iter().filter(|ordinal| (*ordinal as usize) < nodes.len()).collect(),
                nodes,
            }
        })
}

const QUEUES: [&str; 4] = ["default", "a.x", "a.y", "b"];

/// Queues with these guarantees (path, cores, thousandths of a GPU), and all that runs counted.
fn quota(cluster: &Cluster, mins: &[(&'static str, i64, i64)]) -> Quota {
    let mut quota = Quota::default();
    for (path, cores, milli) in mins {
        let amounts = [(CPU, cores * 1_000), ("gpu", *milli)].into_iter().filter(|(_, amount)| *amount > 0);
        let min = amounts.map(|(name, amount)| (name.to_owned(), amount)).collect();
        quota.put(Arc::new(QueueSpec { min, ..QueueSpec::new(*path) }));
    }
    for (_, rows) in cluster.rows().all() {
        for (_, row) in rows.live() {
            let group = rows.groups[usize::from(row.group)].as_ref().unwrap();
            let queue = quota.queue(group.standing.as_ref().unwrap().queue.as_deref().unwrap());
            let need = Need { ask: quota.usage_mut().intern(&group.demand), n: 1 };
            quota.usage_mut().add(queue, need);
            if row.eviction.is_some() {
                quota.usage_mut().note_leaving(queue, need, 1);
            }
        }
    }
    quota
}

#[test]
fn a_queue_reclaims_its_guarantee_whatever_the_priority() {
    let mut cluster = cluster(2);
    run(&mut cluster, &Running { queue: "b", ..running(1, 90, 4_000, &[1, 1, 2, 2]) });
    let ask = demand(4_000, 1, 0);
    let places = |cluster: &mut Cluster, mins: &[(&'static str, i64, i64)], queue: &str, n: u32| {
        let mut quota = quota(cluster, mins);
        let queue = quota.queue(queue);
        let need = Need { ask: quota.usage_mut().intern(&ask), n };
        let rights = Rights::new(&quota, queue, &[need]);
        seek_with(cluster, rights.as_ref(), &ask, n as usize).places.len()
    };
    let mut placed = |mins: &[(&'static str, i64, i64)], queue, n| places(&mut cluster, mins, queue, n);
    assert_eq!(placed(&[], "a.x", 1), 0, "its priority is lower");
    assert_eq!(placed(&[("a.x", 4, 0)], "a.x", 1), 1);
    assert_eq!(placed(&[("a.x", 4, 0)], "a.x", 2), 0, "together they are beyond it");
    assert_eq!(placed(&[("a.x", 4, 0)], "a.y", 1), 1, "what a sibling is guaranteed is their parent's");
    assert_eq!(placed(&[("a.x", 0, 1_000)], "a.x", 1), 0, "nobody promised CPU");
    assert_eq!(placed(&[("a.x", 16, 0), ("b", 4, 0)], "a.x", 4), 3, "the last one has its guarantee");
    assert_eq!(placed(&[("a.x", 16, 0), ("b", 7, 0)], "a.x", 4), 3, "whoever runs when it borrows");
    assert_eq!(placed(&[("a.x", 16, 0), ("b", 16, 0)], "a.x", 4), 0);
    assert_eq!(placed(&[("b", 16, 0)], "b", 1), 0, "among one's own the priority decides");
}

#[test]
fn who_borrows_spares_who_does_not_and_siblings_owe_each_other() {
    let mut cluster = cluster(2);
    run(&mut cluster, &Running { queue: "a.y", ..running(1, 0, 8_000, &[1]) });
    run(&mut cluster, &Running { queue: "b", ..running(2, 10, 8_000, &[2]) });
    let ask = demand(8_000, 1, 0);
    let victims_for = |cluster: &mut Cluster, mins: &[(&'static str, i64, i64)], queue: &str| {
        let mut quota = quota(cluster, mins);
        let queue = quota.queue(queue);
        let need = Need { ask: quota.usage_mut().intern(&ask), n: 1 };
        let rights = Rights::new(&quota, queue, &[need]);
        victims(&seek_with(cluster, rights.as_ref(), &ask, 1))
    };
    assert_eq!(victims_for(&mut cluster, &[], "default"), [(1, 0)], "the lowest priority");
    assert_eq!(
        victims_for(&mut cluster, &[("a.y", 8, 0)], "default"),
        [(2, 0)],
        "but not who is guaranteed it"
    );
    // `a` as a whole has what it is guaranteed, `a.x` has nothing of it: `a.y` uses it.
    assert_eq!(victims_for(&mut cluster, &[("a", 8, 0), ("a.x", 8, 0), ("b", 8, 0)], "a.x"), [(1, 0)]);
    let gpu = Running { queue: "b", milli: 1_000, ..running(3, 90, 1, &[1]) };
    let mut with_gpu = self::cluster(1);
    run(&mut with_gpu, &gpu);
    let mut quota = quota(&with_gpu, &[("a.x", 8, 0)]);
    let queue = quota.queue("a.x");
    let wants = demand(8_000, 1, 1_000);
    let need = Need { ask: quota.usage_mut().intern(&wants), n: 1 };
    let rights = Rights::new(&quota, queue, &[need]);
    assert!(
        seek_with(&mut with_gpu, rights.as_ref(), &wants, 1).places.is_empty(),
        "CPU is no claim to devices"
    );
}

#[test]
fn only_what_two_queues_do_not_share_is_a_claim() {
    let mut quota = quota(&cluster(1), &[("a", 8, 0)]);
    let (x, y, b) = (quota.queue("a.x"), quota.queue("a.y"), quota.queue("b"));
    let ask = demand(4_000, 1, 0);
    let need = Need { ask: quota.usage_mut().intern(&ask), n: 1 };
    let rights = Rights::new(&quota, x, &[need]).unwrap();
    let takes = quota.usage().amounts_of(&ask);
    let against = |queue| rights.against(queue, &takes, &QueueTally::default());
    assert_eq!(against(y), Sides { seeker: false, other: false }, "both are of `a`");
    assert_eq!(against(b), Sides { seeker: true, other: false });
    assert_eq!(against(x), Sides { seeker: true, other: true }, "one queue: the priority decides");
    // Nothing runs in a queue with others below it, but a queue may be known before its units are gone.
    let a = quota.tree().find("a").unwrap();
    assert_eq!(against(a), Sides { seeker: true, other: true }, "of one line: it is all of `a`");
    let of_all = Rights::new(&quota, a, &[need]).unwrap();
    let below = of_all.against(x, &takes, &QueueTally::default());
    assert_eq!(below, Sides { seeker: true, other: true }, "and the other way round");
    let too_much = Rights::new(&quota, x, &[Need { n: 3, ..need }]).unwrap();
    for queue in [x, y, b] {
        assert_eq!(too_much.against(queue, &takes, &QueueTally::default()), Sides::default());
    }
    // Not `a.x`, but `a` and so the root.
    assert_eq!(rights.reach(), 0b110);
}

#[test]
fn what_is_taken_may_end_that_a_queue_borrows() {
    let mut cluster = cluster(2);
    run(&mut cluster, &Running { queue: "b", ..running(1, 0, 4_000, &[1, 1, 2]) });
    let mut quota = quota(&cluster, &[("a.x", 8, 0), ("b", 4, 0)]);
    let (x, b) = (quota.queue("a.x"), quota.queue("b"));
    let ask = demand(4_000, 1, 0);
    let need = Need { ask: quota.usage_mut().intern(&ask), n: 1 };
    let rights = Rights::new(&quota, x, &[need]).unwrap();
    let takes = quota.usage().amounts_of(&ask);
    let mut tally = QueueTally::default();
    assert!(!rights.take(b, &takes, &mut tally), "8 of 4 cores are left");
    assert_eq!(rights.overdrawn(&tally), None);
    assert!(rights.take(b, &takes, &mut tally));
    assert_eq!(rights.overdrawn(&tally), None);
    assert!(!rights.take(b, &takes, &mut tally), "it did not borrow");
    assert_eq!(rights.overdrawn(&tally), Some(b));
}

#[test]
fn a_spared_borrower_is_looked_at_again() {
    let mut cluster = cluster(2);
    run(&mut cluster, &Running { queue: "b", ..running(1, 60, 4_000, &[1]) });
    // The first look at node 2 sees the small one, the second that the large one has to leave: dearer than node 1.
    run(&mut cluster, &Running { queue: "b", ..running(2, 55, 1_000, &[2]) });
    run(&mut cluster, &Running { queue: "b", ..running(3, 61, 4_000, &[2]) });
    let ask = demand(6_000, 1, 0);
    let found = |cluster: &mut Cluster, min: i64| {
        let mut quota = quota(cluster, &[("a.x", 16, 0), ("b", min, 0)]);
        let queue = quota.queue("a.x");
        let need = Need { ask: quota.usage_mut().intern(&ask), n: 2 };
        let rights = Rights::new(&quota, queue, &[need]);
        victims(&seek_with(cluster, rights.as_ref(), &ask, 2))
    };
    assert_eq!(found(&mut cluster, 4), [(1, 0), (3, 0)], "5 of 4 cores are left");
    assert_eq!(found(&mut cluster, 5), [(1, 0)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn agrees_with_the_naive_search(
        units in proptest::collection::vec(any_running(), 0..10),
        cpu in 1i64..9,
        milli in 0u32..3,
        wanted in 1usize..5,
        mins in prop_oneof![
            Just(vec![]),
            proptest::collection::vec(
                (proptest::sample::select(vec!["a", "a.x", "a.y", "b", "default"]), 0i64..13, 0i64..3), 1..5),
        ],
        queue in proptest::sample::select(QUEUES.to_vec()),
        order in Just((0..CANDIDATE_COSTS.len()).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        // Where queues claim, a node that was looked at may only become dearer, which holds for the order of the ranks.
        let order = if mins.is_empty() { order } else { (0..CANDIDATE_COSTS.len()).collect() };
        let mut cluster = cluster(4);
        for (id, unit) in (1u64..).zip(&units) {
            run(&mut cluster, &Running { id, ..unit.clone() });
        }
        let ask = demand(cpu * 1_000, 1, milli * 500);
        let shape = cluster.shape(&ask, Pool::Guaranteed);
        let mins: Vec<_> = mins.into_iter().map(|(path, cores, gpus)| (path, cores, gpus * 1_000)).collect();
        let mut quota = quota(&cluster, &mins);
        let idx = quota.queue(queue);
        let need = Need { ask: quota.usage_mut().intern(&ask), n: u32::try_from(wanted).unwrap() };
        let rights = Rights::new(&quota, idx, &[need]);
        let claim = naive::Wanted { quota: &quota, queue, ask: &ask, wanted };
        let expected = naive::search(&cluster, (&claim, &order), shape, wanted);
        let preference = Preference { sort: modes::sort_of(&order), ..Preference::default() };
        let claimed = FxHashSet::default();
        let (so_far, lent) = (&SoFar::default(), &Lent::default());
        let query =
            VictimQuery { seeker: &SEEKER, shape, rights: rights.as_ref(), claimed: &claimed, so_far, lent };
        let nodes = 1..cluster.free().n_indices();
        let found = search_lent(&mut cluster, &query, nodes, wanted, &preference);
        let nodes: Vec<u32> = expected.iter().map(|(node, _)| node.0).collect();
        prop_assert_eq!(places(&found), nodes);
        let mut all: Vec<(u64, u32)> =
            expected.iter().flat_map(|(_, victims)| victims).map(|(unit, ordinal)| (unit.0, *ordinal)).collect();
        all.sort_unstable();
        prop_assert_eq!(victims(&found), all);
        // Whoever leaves may be preempted, and of each unit enough stay, or none.
        for (id, _) in victims(&found) {
            let rows = cluster.rows().of(UnitId(id)).unwrap();
            let n_leaving = victims(&found).iter().filter(|(unit, _)| *unit == id).count();
            let n_staying = staying(rows).count();
            prop_assert!(n_leaving == n_staying || n_staying - n_leaving >= min_member(rows));
        }
    }

    /// Kept from row to row, who is where is the same as counted anew.
    #[test]
    fn occupants_follow_rows(units in proptest::collection::vec(any_running(), 1..10)) {
        let (mut kept, mut anew) = (cluster(4), cluster(4));
        kept.taken_mut().keep_occupants();
        for (id, unit) in (1u64..).zip(&units) {
            let unit = Running { id, ..unit.clone() };
            run(&mut kept, &unit);
            run(&mut anew, &unit);
            if id % 3 == 0 {
                let statuses = godel_domain::running_units::Statuses {
                    ordinals: vec![0],
                    phases: vec![godel_domain::running_units::Phase::Stopped],
                    ..godel_domain::running_units::Statuses::default()
                };
                for cluster in [&mut kept, &mut anew] {
                    let change = RunChange::Statuses(statuses.clone());
                    cluster.apply_rows(UnitId(id), &change, Revision(5), NOW_MS);
                }
            }
        }
        anew.taken_mut().keep_occupants();
        for node in (1..5).map(NodeId) {
            let sorted = |cluster: &Cluster| {
                let mut on: Vec<_> = cluster.taken().occupants.on(node).to_vec();
                on.sort_unstable_by_key(|one| (one.unit, one.ordinal));
                on
            };
            prop_assert_eq!(sorted(&kept), sorted(&anew));
        }
    }
}

#[test]
fn an_overfull_node_is_no_candidate() {
    // Two of 3,000 milli-cores each, with a device, on a node of 8,000 and two of them.
    let small = |milli| Running { milli, ..running(1, 0, 3_000, &[1, 1]) };
    let ask = demand(3_000, 1, 0);
    let with_device = demand(10, 1, 1_000);
    let shrunk = |cpu: i64, n_devices: usize, unit: &Running| {
        let mut cluster = cluster(1);
        run(&mut cluster, unit);
        let report = cluster.nodes().report(NodeId(1)).unwrap().clone();
        let capacity = Resources::new([(CPU, cpu), (MEMORY, 16)]).unwrap();
        let devices = report.devices[..n_devices].to_vec();
        cluster.nodes_mut().put_report(NodeReport { capacity, devices, ..report }, Revision(5));
        cluster
    };
    let found = |cluster: &mut Cluster, ask: &Demand| victims(&seek(cluster, ask, 1));
    assert_eq!(found(&mut shrunk(6_000, 2, &small(0)), &ask), [(1, 0)], "all of it is in use, and fits");
    assert_eq!(found(&mut shrunk(5_999, 2, &small(0)), &ask), []);
    // Of what is not short victims are sought as before.
    assert_eq!(found(&mut shrunk(5_999, 2, &small(1_000)), &with_device), []);
    assert_eq!(found(&mut shrunk(8_000, 2, &small(1_000)), &with_device), [(1, 0)]);
    assert_eq!(found(&mut shrunk(8_000, 1, &small(1_000)), &with_device), []);
    assert_eq!(found(&mut shrunk(6_000, 1, &small(1_000)), &ask), [(1, 0)]);
}
