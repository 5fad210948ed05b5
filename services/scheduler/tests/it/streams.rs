//! Reconnects with lost and repeated messages, against played servers.

use godel_proto::v1::{self, UnitReportState};

use crate::{
    Scheduler,
    harness::{State, Units, Wire, eventually, unit},
    played::{Dispatcher, PlayedBinder},
    work::assignment,
    world,
};

async fn played_binder(state: &State) -> PlayedBinder {
    let binder = PlayedBinder::new().await;
    state.acquire("binder", "test", &binder.url).await;
    binder
}

fn outcome(decision: &v1::Decision, revision: u64, rejections: Vec<v1::Rejection>) -> v1::Outcome {
    v1::Outcome {
        decision_id: decision.decision_id,
        unit_id: decision.unit_id,
        revision,
        rejections,
        nodes: Vec::new(),
        held: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecided_decisions_are_sent_again_in_order() {
    let (state, _agents) = world(2).await;
    let dispatcher = Dispatcher::new().await;
    let binder = played_binder(&state).await;
    let units = Units::new(&state, &dispatcher.url).await;
    let scheduler = Scheduler::start(&state.url, "s1").await;
    let (mut attach, _) = dispatcher.attached().await;
    let (mut decide, open) = binder.connected().await;
    assert_eq!(
        (open.scheduler.as_str(), open.epoch),
        ("s1", state.holder("scheduler/s1").await.unwrap().epoch)
    );
    let mut assigned = Vec::new();
    for id in 1..=3 {
        let spec = unit(id, 2, 2, 10);
        assigned.push(assignment(&spec, units.put(&spec).await));
    }
    attach.assign(assigned).await;
    let mut sent = Vec::new();
    while sent.len() < 3 {
        sent.extend(decide.decisions().await);
    }
    // Nothing was answered: all of it again. Then the first is answered, and the rest again.
    drop(decide);
    let (mut decide, _) = binder.connected().await;
    let again = decide.decisions().await;
    assert_eq!(again, sent);
    decide.answer(vec![outcome(&sent[0], 1_000, Vec::new())]).await;
    attach.report(sent[0].unit_id, UnitReportState::Done).await;
    drop(decide);
    let (mut decide, _) = binder.connected().await;
    assert_eq!(decide.decisions().await, sent[1..]);
    // Repeated answers, answers to what was never asked, and answers that were bound before the reconnect.
    let bound_before = v1::Rejection {
        reason: v1::RejectionReason::AlreadyBound.into(),
        ordinals: vec![0, 1],
        node_id: sent[2].groups[0].node_ids[0],
        detail: String::new(),
    };
    let answers = vec![
        outcome(&sent[0], 1_000, Vec::new()),
        outcome(&v1::Decision { decision_id: 9_999, unit_id: 77, ..v1::Decision::default() }, 5, Vec::new()),
        outcome(&sent[1], 1_001, Vec::new()),
        outcome(&sent[1], 1_001, Vec::new()),
        outcome(&sent[2], 0, vec![bound_before]),
    ];
    decide.answer(answers).await;
    let status = scheduler.shows(|status| status.in_flight == 0).await;
    assert_eq!(status.conflicts, 0);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_dispatcher_stream_opens_with_everything_held() {
    let (state, _agents) = world(1).await;
    let dispatcher = Dispatcher::new().await;
    let binder = played_binder(&state).await;
    let units = Units::new(&state, &dispatcher.url).await;
    let scheduler = Scheduler::start(&state.url, "s1").await;
    let (mut attach, _) = dispatcher.attached().await;
    let (mut decide, _) = binder.connected().await;
    let (large, fits) = (unit(1, 1, 1, 5_000), unit(2, 1, 1, 10));
    let (large_revision, fits_revision) = (units.put(&large).await, units.put(&fits).await);
    attach.assign(vec![assignment(&large, large_revision), assignment(&fits, fits_revision)]).await;
    assert_eq!(decide.decisions().await[0].unit_id, 2);
    attach.report(1, UnitReportState::Parked).await;
    drop(attach);

    // Both are in the inventory, and why the one is parked is said again.
    let (mut attach, open) = dispatcher.attached().await;
    let held: Vec<(u64, u64)> =
        open.inventory.iter().map(|held| (held.unit_id, held.spec_revision)).collect();
    assert_eq!(held, [(1, large_revision), (2, fits_revision)]);
    assert_eq!(open.credits, 199_999);
    let parked = attach.report(1, UnitReportState::Parked).await;
    assert!(parked.refusals.is_some());
    // The same assignment again changes nothing; a revoked unit is gone.
    attach.assign(vec![assignment(&fits, fits_revision)]).await;
    attach.revoke(&[1, 55]).await;
    scheduler.shows(|status| status.parked_units == 0 && status.in_flight == 1).await;
    drop(attach);
    let (_attach, open) = dispatcher.attached().await;
    assert_eq!(open.inventory.len(), 1);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_registration_starts_anew_with_another_epoch() {
    let (state, _agents) = world(1).await;
    let wire = Wire::to(&state.url).await;
    let dispatcher = Dispatcher::new().await;
    let binder = played_binder(&state).await;
    let units = Units::new(&state, &dispatcher.url).await;
    let scheduler = Scheduler::start(&wire.url, "s1").await;
    let (mut attach, first) = dispatcher.attached().await;
    let (mut decide, _) = binder.connected().await;
    let spec = unit(1, 1, 1, 10);
    let assigned = assignment(&spec, units.put(&spec).await);
    attach.assign(vec![assigned]).await;
    let sent = decide.decisions().await;

    wire.freeze();
    // It stops by itself: both streams end.
    while attach.next().await.is_some() {}
    while decide.next().await.is_some() {}
    eventually("the registration expires", || async {
        state.holder("scheduler/s1").await.is_none().then_some(())
    })
    .await;
    wire.thaw();
    let (_attach, second) = dispatcher.attached().await;
    assert!(second.epoch > first.epoch);
    assert_eq!(second.inventory.len(), 1);
    let (mut decide, open) = binder.connected().await;
    assert_eq!(open.epoch, second.epoch);
    assert_eq!(decide.decisions().await, sent);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_another_store_a_scheduler_begins_anew() {
    let (state, agents) = world(2).await;
    let dispatcher = Dispatcher::new().await;
    let binder = played_binder(&state).await;
    let scheduler = Scheduler::start(&state.url, "s1").await;
    let old = state.status().await.store_id;
    {
        let units = Units::new(&state, &dispatcher.url).await;
        let (attach, open) = dispatcher.attached().await;
        assert_eq!((open.store_id, open.inventory.len()), (old, 0));
        let (mut decide, open) = binder.connected().await;
        assert_eq!(open.store_id, old);
        let spec = unit(7, 2, 2, 10);
        attach.assign(vec![assignment(&spec, units.put(&spec).await)]).await;
        assert_eq!(decide.decisions().await[0].unit_id, 7);
    }
    drop(agents);
    let state = state.replace().await;
    let new = state.status().await.store_id;
    assert_ne!(new, old);
    state.acquire("binder", "test", &binder.url).await;
    let units = Units::new(&state, &dispatcher.url).await;
    let _agent = crate::harness::Agent::start(&state, "n9", 1_000).await;
    // Streams that were opened before it knew are ended by its own lease's end.
    let (attach, open) = loop {
        let (attach, open) = dispatcher.attached().await;
        if open.store_id == new {
            break (attach, open);
        }
    };
    assert!(open.inventory.is_empty(), "what it held is of the other store: {open:?}");
    let mut decide = loop {
        let (decide, open) = binder.connected().await;
        if open.store_id == new {
            break decide;
        }
    };
    // The same id, of another unit.
    let spec = unit(7, 1, 1, 10);
    attach.assign(vec![assignment(&spec, units.put(&spec).await)]).await;
    let decisions = decide.decisions().await;
    let [decision] = &decisions[..] else {
        panic!("what was undecided is of the other store: {decisions:?}")
    };
    assert_eq!((decision.unit_id, decision.groups[0].ordinals.len()), (7, 1));
    scheduler.stop().await;
}
