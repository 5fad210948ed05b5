//! Whole units with a real binder: placed, parked, woken, planned, and through a change of the binder.

use godel_domain::unit::UnitRecord;
use godel_proto::{
    raw,
    v1::{self, UnitReportState},
};
use godel_wire::to_proto;

use crate::{
    Binder, Scheduler,
    harness::{Agent, Units, eventually, unit},
    played::Dispatcher,
    world,
};

pub(crate) fn assignment(record: &UnitRecord, spec_revision: u64) -> raw::UnitAssignment {
    raw::UnitAssignment {
        record: to_proto::encoded_unit(record),
        spec_revision,
        ordinals: record.iter_ordinals().collect(),
        ..raw::UnitAssignment::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_placed_parked_called_and_planned() {
    let (state, _agents) = world(2).await;
    let dispatcher = Dispatcher::new().await;
    let units = Units::new(&state, &dispatcher.url).await;
    let binder = Binder::start(&state.url);
    let scheduler = Scheduler::start(&state.url, "s1").await;
    let (mut stream, open) = dispatcher.attached().await;
    assert_eq!((open.name.as_str(), open.inventory.len(), open.credits), ("s1", 0, 200_000));
    let member = state.holder("scheduler/s1").await.unwrap();
    assert_eq!(member.epoch, open.epoch);

    let (small, gang) = (unit(1, 2, 1, 300), unit(2, 3, 3, 600));
    let small_revision = units.put(&small).await;
    stream.assign(vec![assignment(&small, small_revision)]).await;
    stream.report(1, UnitReportState::Done).await;
    state.bound(1, 2).await;

    // Three of 600 do not fit on two nodes.
    let gang_revision = units.put(&gang).await;
    stream.assign(vec![assignment(&gang, gang_revision)]).await;
    let parked = stream.report(2, UnitReportState::Parked).await;
    let refusals = parked.refusals.clone().unwrap();
    assert_eq!((refusals.nodes, refusals.reasons[0].reason.as_str()), (2, "insufficient cpu"));
    let status = scheduler.shows(|status| status.parked_units == 1).await;
    assert_eq!((status.name.as_str(), status.nodes, status.placed), ("s1", 2, 2));

    let plan =
        |replicas| v1::PlanRequest { unit: Some(to_proto::unit_spec(&unit(9, replicas, 1, 600).spec)) };
    let planned = scheduler.client.clone().plan(plan(3)).await.unwrap().into_inner();
    assert_eq!((planned.nodes.len(), planned.unplaced), (2, 1));
    assert!(planned.nodes.iter().all(|name| name.starts_with('n')), "{:?}", planned.nodes);
    let failure = scheduler.client.clone().plan(v1::PlanRequest { unit: None }).await.unwrap_err();
    assert_eq!(failure.code(), tonic::Code::InvalidArgument);

    // A third node has room for it: it is tried once it is called.
    let _third = Agent::start(&state, "n2", 1_000).await;
    let room = stream.room().await;
    assert_eq!((room.need, room.places, room.assigned), (parked.need, 3, 2));
    let called = raw::UnitAssignment { called: true, ..assignment(&gang, gang_revision) };
    stream.assign(vec![called]).await;
    stream.report(2, UnitReportState::Done).await;
    state.bound(2, 3).await;
    state.assert_bound_once().await;
    eventually("the counters are in the directory", || async {
        let member = state.holder("scheduler/s1").await?;
        (member.status?.counters.get("placed") == Some(&5)).then_some(())
    })
    .await;
    scheduler.stop().await;
    assert!(state.holder("scheduler/s1").await.is_none(), "the registration was given back");
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_the_binder_loses_and_repeats_nothing() {
    let (state, _agents) = world(4).await;
    let dispatcher = Dispatcher::new().await;
    let units = Units::new(&state, &dispatcher.url).await;
    let mut binder = Binder::start(&state.url);
    let scheduler = Scheduler::start(&state.url, "s1").await;
    let (stream, _open) = dispatcher.attached().await;
    let mut next = 1;
    for _round in 0..3 {
        let mut assignments = Vec::new();
        for id in next..next + 30 {
            let spec = unit(id, 2, 2, 5);
            assignments.push(assignment(&spec, units.put(&spec).await));
        }
        next += 30;
        stream.assign(assignments).await;
        // The next one takes over in the middle.
        let successor = Binder::start(&state.url);
        binder.stop().await;
        binder = successor;
    }
    for id in 1..next {
        state.bound(id, 2).await;
    }
    state.assert_bound_once().await;
    scheduler.shows(|status| status.in_flight == 0 && status.ready_units == 0).await;
    scheduler.stop().await;
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_share_the_nodes_without_over_committing() {
    let (state, _agents) = world(3).await;
    let dispatcher = Dispatcher::new().await;
    let units = Units::new(&state, &dispatcher.url).await;
    let binder = Binder::start(&state.url);
    let schedulers = [Scheduler::start(&state.url, "s1").await, Scheduler::start(&state.url, "s2").await];
    let (one, _) = dispatcher.attached().await;
    let (two, _) = dispatcher.attached().await;
    // 30 fit, 3 nodes of 10 each; 20 for each of the two.
    for id in 1..=40 {
        let spec = unit(id, 1, 1, 100);
        let assigned = assignment(&spec, units.put(&spec).await);
        if id % 2 == 0 { one.assign(vec![assigned]).await } else { two.assign(vec![assigned]).await }
    }
    let shown = |parked: u32| {
        let schedulers = &schedulers;
        async move {
            let (a, b) = (schedulers[0].status().await?, schedulers[1].status().await?);
            let quiet = a.in_flight + b.in_flight + a.ready_units + b.ready_units == 0;
            (quiet && a.parked_units + b.parked_units == parked).then_some(a.placed + b.placed)
        }
    };
    let placed = eventually("ten are parked", || shown(10)).await;
    assert_eq!(placed, 30);
    let mut per_node = std::collections::BTreeMap::<u32, u32>::new();
    for id in 1..=40 {
        let row = state.rows(id).await.row(0);
        if row.phase.is_live() {
            *per_node.entry(row.node.0).or_default() += 1;
        }
    }
    assert_eq!(per_node.values().copied().collect::<Vec<_>>(), [10, 10, 10]);
    for scheduler in schedulers {
        scheduler.stop().await;
    }
    binder.stop().await;
}
