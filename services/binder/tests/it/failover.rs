//! Standbys, a leader that stops, and a leader that is cut off and comes back.

use godel_kit::status;
use godel_proto::v1;

use crate::{
    Binder,
    harness::{Units, Wire, eventually, unit},
    place, reasons, world,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_names_the_leader_and_takes_over() {
    let (state, agents) = world(2).await;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let leader = Binder::start(&state.url).await;
    let old_epoch = leader.leads().await;
    let standby = Binder::start(&state.url).await;
    let failure = eventually("the standby knows the leader", || async {
        let failure = standby.try_connect("s1", 1).await.err()?;
        status::leader_of(&failure).is_some().then_some(failure)
    })
    .await;
    assert_eq!(status::leader_of(&failure).as_deref(), Some(leader.url.as_str()));
    let evicting =
        standby.evict(vec![v1::Eviction { unit_id: 1, ordinals: vec![0], reason: 1, ..Default::default() }]);
    assert!(status::has_reason(&evicting.await.unwrap_err(), status::reason::NOT_LEADER));

    let mut decisions = Vec::new();
    for id in 1..=20 {
        let revision = units.put(&unit(id, 2, 2, 10)).await;
        decisions.push(place(id, id, revision, &[(0, agents[0].node_id), (1, agents[1].node_id)]));
    }
    let mut stream = leader.connect("s1", 1).await;
    stream.send(decisions.clone()).await;
    leader.stop().await;
    // Some may have been answered; the rest ends with the stream.
    while stream.next().await.is_ok() {}

    assert!(standby.leads().await > old_epoch);
    let mut stream = standby.connect("s1", 1).await;
    stream.send(decisions).await;
    for outcome in stream.outcomes(20).await {
        assert!(reasons(&outcome).iter().all(|(reason, _)| *reason == v1::RejectionReason::AlreadyBound));
    }
    for id in 1..=20 {
        state.bound(id, 2).await;
    }
    state.assert_bound_once().await;
    standby.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_cut_off_changes_nothing_any_more() {
    let (state, agents) = world(1).await;
    let node = agents[0].node_id;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    // Room for one of the two.
    let first = units.put(&unit(1, 1, 1, 600)).await;
    let second = units.put(&unit(2, 1, 1, 600)).await;
    let wire = Wire::to(&state.url).await;
    let old = Binder::start(&wire.url).await;
    let old_epoch = old.leads().await;
    let mut old_stream = old.connect("s1", 1).await;
    let new = Binder::start(&state.url).await;
    let before = state.status().await.stale_epoch_refusals;

    // Its transaction is on the wire when it freezes, and arrives when another one leads.
    wire.freeze();
    old_stream.send(vec![place(1, 1, first, &[(0, node)])]).await;
    assert!(new.leads().await > old_epoch);
    let mut stream = new.connect("s2", 1).await;
    assert!(stream.decide(place(1, 2, second, &[(0, node)])).await.revision > 0);
    wire.thaw();
    eventually("the old transaction is refused", || async {
        (state.status().await.stale_epoch_refusals > before).then_some(())
    })
    .await;
    // It drops what was under way without an answer.
    old_stream.next().await.expect_err("an answer from a leader that lost its lease");
    assert_eq!(state.bound(2, 1).await, [node]);
    assert_eq!(state.rows(1).await.row(0).node.0, 0);

    // Sent again to the leader, it is judged there.
    let mut again = new.connect("s1", 1).await;
    let outcome = again.decide(place(1, 1, first, &[(0, node)])).await;
    assert_eq!(reasons(&outcome), [(v1::RejectionReason::InsufficientResources, vec![0])]);
    state.assert_bound_once().await;
    old.stop().await;
    new.stop().await;
}
