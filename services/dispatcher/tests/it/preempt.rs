//! Holds and preemptions as the dispatcher follows and shows them.

use std::sync::Arc;

use godel_base::ids::{HoldId, NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::{
    change::Change,
    demand::Demand,
    hold::Hold,
    records::Record,
    running_units::{Evict, EvictionReason, RunChange},
};
use godel_proto::v1;
use godel_wire::to_proto;

use crate::world::{Binder, Scheduler, World, eventually, unit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_replicas_wait_for_victims_and_return_without_the_hold() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let (node, binder) = (world.node("n1", 32_000).await, Binder::new(&world).await);
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 100).await;
    let low = dispatcher.submit(unit("low", 1)).await;
    scheduler.units(1).await;
    binder.bind(low.unit_id, &[0], node, 0).await;
    let high = dispatcher.submit(unit("high", 1)).await;
    let assigned = scheduler.units(1).await.remove(0);

    let evict = Evict {
        ordinals: vec![0],
        incarnations: Vec::new(),
        reason: EvictionReason::Preempted,
        by: format!("unit {}", high.unit_id),
        preemptor: UnitId(high.unit_id),
    };
    let hold = Hold {
        id: HoldId(1 << 32),
        node: NodeId(node),
        unit: UnitId(high.unit_id),
        spec_revision: Revision(high.revision),
        demand: Arc::new(Demand::default()),
        ordinals: vec![0],
        victims: vec![RunningUnitId::new(UnitId(low.unit_id), 0, 0)],
        expires_ms: i64::MAX,
        ..Hold::default()
    };
    let evicted = to_proto::row_op(UnitId(low.unit_id), &RunChange::Evict(evict));
    let put = Change::Put(Record::Hold(Arc::new(hold.clone())));
    binder.commit(vec![evicted, to_proto::op(&put).unwrap()]).await;
    scheduler.report(&assigned, v1::UnitReportState::Parked, "no room").await;
    let shown = eventually("it waits for the other to leave", || async {
        dispatcher.get("high").await.unit.filter(|unit| unit.waits_for.contains("to leave node n1"))
    })
    .await;
    assert_eq!(shown.phase(), v1::UnitPhase::Scheduling, "{shown:?}");
    let victim = dispatcher.get("low").await.unit.unwrap();
    assert_eq!(victim.preempted_by, ["default/high"]);
    assert_eq!(victim.counts.unwrap_or_default().evicting, 1);
    let last = dispatcher.get("low").await.running_units[0].last_eviction.clone().unwrap();
    assert_eq!((last.incarnation, last.reason()), (0, v1::EvictionReason::Preempted));
    assert_eq!(last.by, "unit default/high");

    // Whoever attaches anew is given what is held too, as it may fit elsewhere; and without the hold once more.
    scheduler.again(&dispatcher, &[], 100).await;
    let held = scheduler.units(1).await.remove(0);
    assert_eq!((crate::world::record_of(&held).unit_id, held.ordinals.as_slice()), (high.unit_id, &[0][..]));
    binder.commit(vec![to_proto::delete(v1::Kind::Hold, hold.id.0)]).await;
    let again = scheduler.units(1).await.remove(0);
    assert_eq!(
        (crate::world::record_of(&again).unit_id, again.ordinals.as_slice()),
        (high.unit_id, &[0][..])
    );
    world.end([dispatcher]).await;
}
