use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{
    demand::{Demand, DeviceRequest},
    ids::Revision,
    node::{Device, NodeReport, NodeSpec},
    resources::{CPU, MEMORY, Resources},
    rows::{Bind, Evict, EvictionReason, RowChange},
};

const NOW_MS: i64 = 1_000_000;

fn demand(cpu: i64, memory: i64, milli: u32) -> Demand {
    let devices =
        (milli > 0).then(|| DeviceRequest { kind: "gpu".to_owned(), count: 1, milli, models: Vec::new() });
    Demand { requests: Resources::new([(CPU, cpu), (MEMORY, memory)]).unwrap(), devices }
}

fn cluster(n_nodes: u32) -> Cluster {
    let mut cluster = Cluster::new();
    for id in (1..=n_nodes).map(NodeId) {
        let gpu = Device { kind: "gpu".to_owned(), model: "A10".to_owned(), numa_zone: 0 };
        cluster.put_spec(NodeSpec { id, name: format!("n{id}"), ..NodeSpec::default() }, Revision(1));
        let capacity = Resources::new([(CPU, 8_000), (MEMORY, 16)]).unwrap();
        let report = NodeReport {
            id,
            capacity,
            devices: vec![gpu.clone(), gpu],
            ready: true,
            ..NodeReport::default()
        };
        cluster.put_report(report, Revision(1));
    }
    cluster
}

/// A unit as it runs: replicas by node, all alike.
#[derive(Clone, Debug)]
struct Running {
    id: u64,
    priority: i32,
    preemptible: bool,
    min_member: u32,
    min_run_ms: u64,
    pool: Pool,
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
        min_member: 1,
        min_run_ms: 0,
        pool: Pool::Guaranteed,
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
    let standing = Standing {
        priority: unit.priority,
        preemptible: unit.preemptible,
        min_run_ms: unit.min_run_ms,
        min_member: unit.min_member,
    };
    let (mut ordinals, mut nodes, mut device_masks) = (Vec::new(), Vec::new(), Vec::new());
    for (ordinal, node) in (0u32..).zip(&unit.nodes) {
        let node = NodeId(*node);
        if cluster.fits(shape, node).is_ok()
            && let Some(mask) = cluster.pick_devices(shape, node)
        {
            cluster.assume(UnitId(unit.id), ordinal, 0, shape, node, mask);
            ordinals.push(ordinal);
            nodes.push(node);
            device_masks.push(mask);
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
        device_masks,
        standing: Some(Arc::new(standing)),
        ..Bind::default()
    };
    cluster.apply_rows(UnitId(unit.id), &RowChange::Bind(bind), Revision(2), unit.since_ms);
    if !unit.evicting.is_empty() {
        let evict = Evict {
            ordinals: unit.evicting.clone(),
            incarnations: Vec::new(),
            reason: EvictionReason::Drained,
            by: String::new(),
            preemptor: UnitId(0),
        };
        cluster.apply_rows(UnitId(unit.id), &RowChange::Evict(evict), Revision(3), NOW_MS);
    }
}

const SEEKER: Seeker = Seeker { unit: UnitId(99), priority: 50, pool: Pool::Guaranteed, now_ms: NOW_MS };

fn seek(cluster: &mut Cluster, ask: &Demand, wanted: usize) -> Found {
    let shape = cluster.shape(ask, Pool::Guaranteed);
    let nodes = 1..cluster.n_slots();
    search(cluster, &SEEKER, &FxHashSet::default(), shape, nodes, wanted)
}

fn victims(found: &Found) -> Vec<(u64, u32)> {
    let all = found.claims.values().flatten().chain(&found.others);
    let mut all: Vec<(u64, u32)> = all.map(|victim| (victim.unit.0, victim.ordinal)).collect();
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
    assert!(search(&mut cluster, &SEEKER, &claimed, shape, [1], 1).places.is_empty());
}

#[test]
fn nobody_preempts_who_preempted_it() {
    let mut cluster = cluster(1);
    run(&mut cluster, &running(1, 0, 8_000, &[1]));
    let mut rows = UnitRows::default();
    rows.set_preemptors(vec![UnitId(1)]);
    cluster.load_rows(SEEKER.unit, rows);
    let found = seek(&mut cluster, &demand(8_000, 1, 0), 1);
    assert_eq!((found.places.len(), found.n_loops), (0, 1));
}

fn any_running() -> impl Strategy<Value = Running> {
    let standing = (0i32..6, 0u32..8, 1u32..4, 0u64..4);
    let takes = (1i64..5, 0u32..3, 0i64..5);
    (standing, takes, proptest::collection::vec(1u32..5, 1..5), proptest::collection::vec(0u32..4, 0..2))
        .prop_map(|((priority, odd, min_member, min_run), (cpu, milli, since), nodes, evicting)| Running {
            id: 0,
            priority: priority * 12,
            preemptible: odd != 0,
            min_member,
            min_run_ms: if min_run == 0 { 997_500 } else { 0 },
            pool: if odd == 1 { Pool::BestEffort } else { Pool::Guaranteed },
            cpu: cpu * 1_000,
            milli: milli * 500,
            since_ms: since * 1_000,
            evicting: evicting.into_iter().filter(|ordinal| (*ordinal as usize) < nodes.len()).collect(),
            nodes,
        })
}

/// Everything anew for each replica and node, without index, first look or memory.
mod naive {
    use super::*;

    pub(super) fn search(
        cluster: &Cluster,
        shape: ShapeId,
        wanted: usize,
    ) -> Vec<(NodeId, Vec<(UnitId, u32)>)> {
        let mut gone: BTreeSet<(UnitId, u32)> = BTreeSet::new();
        let mut placed: Vec<(NodeId, u64)> = Vec::new();
        let mut steps = Vec::new();
        while placed.len() < wanted {
            let nodes = (1..cluster.n_slots()).map(|idx| NodeId(u32::try_from(idx).unwrap()));
            let best = nodes.filter_map(|node| on_node(cluster, shape, node, &gone, &placed)).min();
            let Some((_, node, victims, mask)) = best else { break };
            gone.extend(victims.iter().copied());
            placed.push((node, mask));
            steps.push((node, victims));
        }
        steps
    }

    type Key = (Option<i32>, i64, usize, usize, i64, Reverse<i64>);

    fn units(cluster: &Cluster) -> impl Iterator<Item = (UnitId, &UnitRows)> {
        (1..=40).map(UnitId).filter_map(|unit| Some((unit, cluster.rows(unit)?)))
    }

    fn may(unit: UnitId, rows: &UnitRows, row: &Row) -> bool {
        SEEKER.may_preempt(unit, rows, row, &[]).is_ok()
    }

    fn room(
        cluster: &Cluster,
        shape: ShapeId,
        node: NodeId,
        without: &BTreeSet<(UnitId, u32)>,
        placed: &[(NodeId, u64)],
    ) -> Option<u64> {
        let mut after = cluster.clone();
        for (unit, rows) in units(cluster) {
            for (ordinal, row) in rows.live().filter(|(ordinal, _)| without.contains(&(unit, *ordinal))) {
                let statuses = crate::rows::Statuses {
                    ordinals: vec![ordinal],
                    incarnations: vec![row.incarnation],
                    phases: vec![crate::rows::Phase::Stopped],
                    ..crate::rows::Statuses::default()
                };
                after.apply_rows(unit, &RowChange::Statuses(statuses), Revision(9), NOW_MS);
            }
        }
        for (ordinal, (node, mask)) in (0u32..).zip(placed) {
            after.assume(SEEKER.unit, 1_000 + ordinal, 0, shape, *node, *mask);
        }
        after.fits(shape, node).ok().and_then(|()| after.pick_devices(shape, node))
    }

    #[allow(clippy::type_complexity, reason = "a test's own")]
    fn on_node(
        cluster: &Cluster,
        shape: ShapeId,
        node: NodeId,
        gone: &BTreeSet<(UnitId, u32)>,
        placed: &[(NodeId, u64)],
    ) -> Option<(Key, NodeId, Vec<(UnitId, u32)>, u64)> {
        let fits = |without: &BTreeSet<(UnitId, u32)>| room(cluster, shape, node, without, placed);
        if let Some(mask) = fits(gone) {
            return Some(((None, 0, 0, 0, 0, Reverse(i64::MAX)), node, Vec::new(), mask));
        }
        let spare = |unit: UnitId, rows: &UnitRows| {
            let n = staying(rows).filter(|(ordinal, _)| !gone.contains(&(unit, *ordinal))).count();
            n.saturating_sub(min_member(rows))
        };
        // Sort key, member.
        let mut items = Vec::new();
        for (unit, rows) in units(cluster) {
            let whole = staying(rows).all(|(_, row)| may(unit, rows, row));
            let mut own: Vec<(u32, &Row)> = rows
                .live()
                .filter(|(ordinal, row)| {
                    row.node == node && may(unit, rows, row) && !gone.contains(&(unit, *ordinal))
                })
                .collect();
            own.sort_by_key(|(ordinal, row)| (Reverse(row.bound_time_ms), *ordinal));
            for (at, (ordinal, row)) in own.into_iter().enumerate() {
                let breaks = at >= spare(unit, rows);
                if !breaks || whole {
                    let group = rows.groups[0].as_ref().unwrap();
                    let ask = cluster.demand(shape);
                    let parts = |name| group.demand.requests.get(name) * 1_000 / ask.requests.get(name);
                    let mut least = parts(CPU).min(parts(MEMORY));
                    if let Some(asked) = &ask.devices {
                        let milli = group.demand.devices.as_ref().map_or(0, |devices| devices.milli);
                        least = least.min(i64::from(milli) * 1_000 / i64::from(asked.milli));
                    }
                    let priority = rows.standing(row.group).unwrap().priority;
                    items.push((
                        (Reverse(priority), !breaks, least, row.bound_time_ms, unit, ordinal),
                        (unit, ordinal),
                    ));
                }
            }
        }
        items.sort_unstable();
        let all: BTreeSet<(UnitId, u32)> =
            gone.iter().copied().chain(items.iter().map(|(_, member)| *member)).collect();
        fits(&all)?;
        let mut forced: BTreeSet<UnitId> = BTreeSet::new();
        loop {
            let mut left = all.clone();
            for (_, member) in &items {
                if !forced.contains(&member.0) {
                    left.remove(member);
                    if fits(&left).is_none() {
                        left.insert(*member);
                    }
                }
            }
            let leaving: Vec<(UnitId, u32)> = left.difference(gone).copied().collect();
            let broken: Vec<UnitId> = units(cluster)
                .filter(|(unit, rows)| {
                    leaving.iter().filter(|member| member.0 == *unit).count() > spare(*unit, rows)
                        && !forced.contains(unit)
                })
                .map(|(unit, _)| unit)
                .collect();
            if !broken.is_empty() {
                forced.extend(broken);
                continue;
            }
            let mut victims: BTreeSet<(UnitId, u32)> = leaving.into_iter().collect();
            for (unit, rows) in units(cluster).filter(|(unit, _)| forced.contains(unit)) {
                victims.extend(
                    staying(rows).map(|(ordinal, _)| (unit, ordinal)).filter(|one| !gone.contains(one)),
                );
            }
            let rows = |(unit, ordinal): &(UnitId, u32)| cluster.rows(*unit).unwrap().row(*ordinal);
            let priorities = victims
                .iter()
                .map(|one| cluster.rows(one.0).unwrap().standing(rows(one).group).unwrap().priority);
            let key = (
                priorities.clone().max(),
                priorities.map(|priority| i64::from(priority) + (1 << 31) + 1).sum(),
                victims.len(),
                forced.len(),
                victims.iter().map(|one| NOW_MS - rows(one).bound_time_ms).sum(),
                Reverse(victims.iter().map(|one| rows(one).bound_time_ms).min().unwrap_or(i64::MAX)),
            );
            return Some((key, node, victims.into_iter().collect(), fits(&left)?));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn agrees_with_the_naive_search(
        units in proptest::collection::vec(any_running(), 0..10),
        cpu in 1i64..9,
        milli in 0u32..3,
        wanted in 1usize..5,
    ) {
        let mut cluster = cluster(4);
        for (id, unit) in (1u64..).zip(&units) {
            run(&mut cluster, &Running { id, ..unit.clone() });
        }
        let ask = demand(cpu * 1_000, 1, milli * 500);
        let shape = cluster.shape(&ask, Pool::Guaranteed);
        let expected = naive::search(&cluster, shape, wanted);
        let found = seek(&mut cluster, &ask, wanted);
        let nodes: Vec<u32> = expected.iter().map(|(node, _)| node.0).collect();
        prop_assert_eq!(places(&found), nodes);
        let mut all: Vec<(u64, u32)> =
            expected.iter().flat_map(|(_, victims)| victims).map(|(unit, ordinal)| (unit.0, *ordinal)).collect();
        all.sort_unstable();
        prop_assert_eq!(victims(&found), all);
        // Whoever leaves may be preempted, and of each unit enough stay, or none.
        for (id, _) in victims(&found) {
            let rows = cluster.rows(UnitId(id)).unwrap();
            let n_leaving = victims(&found).iter().filter(|(unit, _)| *unit == id).count();
            let n_staying = staying(rows).count();
            prop_assert!(n_leaving == n_staying || n_staying - n_leaving >= min_member(rows));
        }
    }

    /// Kept from row to row, who is where is the same as counted anew.
    #[test]
    fn occupants_follow_rows(units in proptest::collection::vec(any_running(), 1..10)) {
        let (mut kept, mut anew) = (cluster(4), cluster(4));
        kept.keep_occupants();
        for (id, unit) in (1u64..).zip(&units) {
            let unit = Running { id, ..unit.clone() };
            run(&mut kept, &unit);
            run(&mut anew, &unit);
            if id % 3 == 0 {
                let statuses = crate::rows::Statuses {
                    ordinals: vec![0],
                    phases: vec![crate::rows::Phase::Stopped],
                    ..crate::rows::Statuses::default()
                };
                for cluster in [&mut kept, &mut anew] {
                    let change = RowChange::Statuses(statuses.clone());
                    cluster.apply_rows(UnitId(id), &change, Revision(5), NOW_MS);
                }
            }
        }
        anew.keep_occupants();
        for node in (1..5).map(NodeId) {
            let sorted = |cluster: &Cluster| {
                let mut on: Vec<_> = cluster.occupants(node).to_vec();
                on.sort_unstable_by_key(|one| (one.unit, one.ordinal));
                on
            };
            prop_assert_eq!(sorted(&kept), sorted(&anew));
        }
    }
}
