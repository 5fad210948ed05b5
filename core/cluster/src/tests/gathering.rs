//! Holds that gather, against a twin that knows nothing of them.

use godel_base::ids::{HoldId, RunningUnitId};
use godel_domain::{
    allocation::{Allocation, DeviceSet},
    hold::{Borrower, GangTurn, Hold},
};

use super::*;

const EXPIRES_MS: i64 = 1_000_000;

fn hold(id: u64, node: u32, n: u32, demand: Demand, pool: Pool) -> Arc<Hold> {
    Arc::new(Hold {
        id: HoldId(id),
        node: NodeId(node),
        unit: UnitId(100),
        demand: Arc::new(demand),
        pool,
        ordinals: (0..n).collect(),
        expires_ms: EXPIRES_MS,
        turn: Some(GangTurn { since_ms: 0, priority: 5, sub_cluster: None }),
        ..Hold::default()
    })
}

fn free(cluster: &mut Cluster, pool: Pool, node: u32) -> i64 {
    let shape = cluster.shape(&demand(1, 0, 0, &[]), pool);
    cluster.free().room(shape).free(NodeId(node).idx())[0]
}

/// Running units of a shape that a node has room for, `n` at most.
fn n_fit(cluster: &Cluster, shape: ShapeId, node: u32, n: u32) -> u32 {
    let mut cluster = cluster.clone();
    for ordinal in 0..n {
        let Some(mask) = cluster.free().room_for(shape, NodeId(node).idx()) else { return ordinal };
        cluster.assume(RunningUnitId::new(UnitId(200), ordinal, 0), shape, NodeId(node), mask);
    }
    n
}

proptest! {
    #[test]
    fn a_hold_gathers_what_is_free_up_to_what_it_needs(
        before in prop::collection::vec(event(), 0..20),
        after in prop::collection::vec(event(), 0..40),
        n in 1..3u32,
        cpu in 0..900i64,
        gpus in 0..3u32,
        best_effort in any::<bool>(),
    ) {
        // What is foreign is counted from what is taken, which a twin sees otherwise.
        let told = |event: &&Event| !matches!(event, Event::Foreign(..));
        let pool = if best_effort { Pool::BestEffort } else { Pool::Guaranteed };
        let needs = demand(cpu, gpus, 1000, &[]);
        let (mut cluster, mut twin) = (Cluster::new(), Cluster::new());
        let (mut records, mut others) = (Records::default(), Records::default());
        for (revision, event) in (1u64..).zip(before.iter().filter(told)) {
            records.apply(&mut cluster, event, revision);
            others.apply(&mut twin, event, revision);
        }
        let (shape, _) = (cluster.shape(&needs, pool), twin.shape(&needs, pool));
        for node in 1..=N_NODES {
            cluster.held_mut().put(hold(node.into(), node, n, needs.clone(), pool));
        }
        let n_before = before.len() as u64;
        for (revision, event) in (n_before + 1..).zip(after.iter().filter(told)) {
            records.apply(&mut cluster, event, revision);
            others.apply(&mut twin, event, revision);
            let n_slots = twin.free().n_indices();
            for node in (1..=N_NODES).filter(|node| NodeId(*node).idx() < n_slots) {
                let without = free(&mut twin, pool, node);
                let gathered = without.clamp(0, cpu * i64::from(n));
                prop_assert_eq!(free(&mut cluster, pool, node), without - gathered, "cpu of {}", node);
                if pool == Pool::Guaranteed {
                    let of_best_effort = free(&mut twin, Pool::BestEffort, node);
                    prop_assert_eq!(free(&mut cluster, Pool::BestEffort, node), of_best_effort);
                }
                let id = HoldId(node.into());
                prop_assert_eq!(cluster.held().has_gathered(id), n_fit(&twin, shape, node, n) == n, "{}", node);
                prop_assert!(cluster.held().n_gathered(id) <= n as usize);
                let whole = |cluster: &Cluster| u32::from(cluster.free().devices(NodeId(node).idx()).room().whole);
                let left = whole(&twin).saturating_sub(n * gpus);
                prop_assert_eq!(whole(&cluster), left, "whole devices of {}", node);
            }
        }
        for node in 1..=N_NODES {
            cluster.held_mut().remove(HoldId(node.into()));
        }
        prop_assert!(!cluster.free().gathering().is_any() && !cluster.holds().is_any());
        prop_assert_eq!(picture(&mut cluster), picture(&mut twin));
    }
}

/// A node of 1000 milli-cores and 4 devices, 700 of them taken by unit 3 for now.
fn taken() -> Cluster {
    let (mut cluster, mut records) = (Cluster::new(), Records::default());
    let events = [Event::Spec(1, false), Event::Report(1, 1000, 4, true), Event::Bind(3, 0, 1, 0)];
    for (revision, event) in (1u64..).zip(&events) {
        records.apply(&mut cluster, event, revision);
    }
    cluster
}

#[test]
fn freed_room_is_gathered_and_completion_is_reported_once() {
    let mut cluster = taken();
    cluster.held_mut().put(hold(1, 1, 2, demand(400, 0, 0, &[]), Pool::Guaranteed));
    assert_eq!((cluster.held().n_gathered(HoldId(1)), cluster.free().gathering().is_met()), (0, false));
    assert_eq!(free(&mut cluster, Pool::Guaranteed, 1), 0);
    let ended = row_change(&Event::End(3, 0), 3, 0, 0);
    cluster.apply_rows(UnitId(3), &ended, Revision(9), 9);
    assert_eq!((cluster.held().n_gathered(HoldId(1)), cluster.held().has_gathered(HoldId(1))), (2, true));
    assert_eq!(free(&mut cluster, Pool::Guaranteed, 1), 200);
    assert!(cluster.free_mut().gathering.take_met() && !cluster.free_mut().gathering.take_met());
    // A node that shrinks takes it back.
    cluster.nodes_mut().put_allocatable(NodeId(1), Resources::new([(CPU, 500)]).unwrap(), Revision(10));
    assert_eq!((cluster.held().n_gathered(HoldId(1)), cluster.held().has_gathered(HoldId(1))), (1, false));
}

#[test]
fn devices_are_gathered_one_by_one() {
    let mut cluster = taken();
    let one = cluster.shape(&demand(0, 1, 1000, &[]), Pool::Guaranteed);
    cluster.assume(RunningUnitId::new(UnitId(7), 0, 0), one, NodeId(1), DeviceSet(0b0001).into());
    cluster.held_mut().put(hold(1, 1, 1, demand(0, 4, 1000, &[]), Pool::Guaranteed));
    assert!(!cluster.held().has_gathered(HoldId(1)));
    assert_eq!(cluster.free().pick(one, NodeId(1)), None, "three of four are kept");
    cluster.forget(RunningUnitId::new(UnitId(7), 0, 0));
    assert!(cluster.held().has_gathered(HoldId(1)));
    assert_eq!(cluster.free().pick(one, NodeId(1)), None);
    cluster.held_mut().remove(HoldId(1));
    assert_eq!(cluster.free().pick(one, NodeId(1)), Some(DeviceSet(0b0001).into()));
}

#[test]
fn a_hold_must_be_possible() {
    let mut cluster = taken();
    let cases = [
        (demand(500, 0, 0, &[]), 2, true),
        (demand(500, 0, 0, &[]), 3, false),
        (demand(0, 2, 1000, &[]), 2, true),
        (demand(0, 2, 1000, &[]), 3, false),
        (demand(0, 1, 500, &[]), 8, true),
        (demand(0, 1, 500, &[]), 9, false),
        (demand(0, 1, 1000, &["A"]), 1, false),
    ];
    for (needs, n, possible) in cases {
        let shape = cluster.shape(&needs, Pool::Guaranteed);
        let hold = hold(1, 1, n, needs.clone(), Pool::Guaranteed);
        assert_eq!(cluster.held().could_hold(shape, &hold).is_ok(), possible, "{n} of {needs:?}");
    }
}

#[test]
fn who_is_admitted_takes_what_was_gathered() {
    let mut cluster = taken();
    cluster.held_mut().put(hold(1, 1, 1, demand(1000, 0, 0, &[]), Pool::Guaranteed));
    let shape = cluster.shape(&demand(200, 0, 0, &[]), Pool::Guaranteed);
    let borrower = |priority| Borrower { priority, ..Borrower::default() };
    assert!(!cluster.trial().lift_gathered(&borrower(5), None));
    assert!(cluster.free().fits(shape, NodeId(1)).is_err());
    for only in [None, Some(NodeId(1))] {
        let mut trial = cluster.trial();
        assert!(trial.lift_gathered(&borrower(6), only));
        assert!(trial.free().fits(shape, NodeId(1)).is_ok());
        trial.assume(RunningUnitId::new(UnitId(9), 0, 0), shape, NodeId(1), Allocation::default());
        trial.join();
        cluster.keep_trial();
        assert_eq!(free(&mut cluster, Pool::Guaranteed, 1), 0, "the rest is gathered again");
        assert!(cluster.free().fits(shape, NodeId(1)).is_err());
        cluster.forget(RunningUnitId::new(UnitId(9), 0, 0));
    }
    assert!(!cluster.trial().lift_gathered(&borrower(6), Some(NodeId(2))));
}
