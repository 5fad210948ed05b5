//! Bindings, conflicts, repeated and lost messages, evictions.

use godel_domain::running_units::{EvictionReason, Phase};
use godel_proto::v1::{self, RejectionReason};
use godel_testkit::BuildUnit as _;

use crate::{
    Binder,
    harness::{Units, unit},
    place, reasons, world,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_on_the_last_room() {
    let (state, agents) = world(2).await;
    let (n1, n2) = (agents[0].node_id, agents[1].node_id);
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let one = units.put(&unit(1, 2, 1, 600)).await;
    let gang = units.put(&unit(2, 2, 2, 600)).await;
    let binder = Binder::start(&state.url).await;
    let epoch = binder.leads().await;
    let mut s1 = binder.connect("s1", 1).await;
    let mut s2 = binder.connect("s2", 1).await;

    let bound = s1.decide(place(1, 1, one, &[(0, n1)])).await;
    assert!(bound.revision > gang && bound.rejections.is_empty());
    let refused = s2.decide(place(1, 2, gang, &[(0, n1), (1, n2)])).await;
    assert_eq!(refused.revision, 0);
    assert_eq!(
        reasons(&refused),
        [(RejectionReason::InsufficientResources, vec![0]), (RejectionReason::MinMember, vec![1])]
    );
    assert_eq!(refused.nodes[0].node_id, n1);
    assert_eq!(refused.nodes[0].allocated.as_ref().unwrap().amounts["cpu"], 600);
    let partly = s1.decide(place(2, 1, one, &[(0, n2), (1, n2)])).await;
    assert!(partly.revision > 0);
    assert_eq!(reasons(&partly), [(RejectionReason::AlreadyBound, vec![0])]);
    assert_eq!(state.bound(1, 2).await, [n1, n2]);

    let status = binder.status().await.unwrap();
    assert_eq!((status.epoch, status.decisions, status.bound, status.txns_refused), (epoch, 3, 2, 0));
    assert_eq!(status.rejected["insufficient-resources"], 1);
    assert_eq!(status.rejected["min-member"], 1);
    state.assert_bound_once().await;
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_and_outdated_decisions_are_rejected_one_by_one() {
    let (state, agents) = world(1).await;
    let node = agents[0].node_id;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let old = units.put(&unit(1, 8, 1, 100)).await;
    let new = units.put(&unit(1, 9, 1, 100)).await;
    let cancelled = units.put(&unit(2, 1, 1, 100).cancelled(true)).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;

    let mut short = place(1, 1, new, &[(0, node), (1, node)]);
    short.groups[0].node_ids.pop();
    let mut no_group = place(2, 1, new, &[(0, node)]);
    no_group.groups[0].task_group = 1 << 20;
    let decisions = vec![
        short,
        no_group,
        v1::Decision { decision_id: 3, ..Default::default() },
        place(4, 1, new, &[(2, node), (2, node)]),
        place(5, 1, old, &[(3, node)]),
        place(6, 2, cancelled, &[(0, node)]),
        place(7, 99, new, &[(0, node)]),
        place(8, 1, new, &[(4, 0)]),
        place(9, 1, new, &[(5, 4_000_000)]),
        place(10, 1, new, &[(6, node)]),
    ];
    stream.send(decisions).await;
    let outcomes = stream.outcomes(10).await;
    let first: Vec<Option<RejectionReason>> =
        outcomes.iter().map(|outcome| outcome.rejections.first().map(v1::Rejection::reason)).collect();
    let invalid = Some(RejectionReason::Invalid);
    let changed = Some(RejectionReason::UnitChanged);
    let gone = Some(RejectionReason::NodeGone);
    assert_eq!(first, [invalid, invalid, invalid, invalid, changed, changed, changed, gone, gone, None]);
    assert!(outcomes[9].revision > 0);
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_sent_again_after_a_reconnect_is_bound_once() {
    let (state, agents) = world(4).await;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let mut decisions = Vec::new();
    for id in 1..=40 {
        let revision = units.put(&unit(id, 2, 2, 10)).await;
        let node = |shift: u64| agents[usize::try_from((id + shift) % 4).unwrap()].node_id;
        decisions.push(place(id, id, revision, &[(0, node(0)), (1, node(1))]));
    }
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    // Streams that are dropped before, while and after outcomes come; all is sent each time.
    let lost = binder.connect("s1", 1).await;
    lost.send(decisions[..20].to_vec()).await;
    drop(lost);
    let mut half_read = binder.connect("s1", 1).await;
    half_read.send(decisions.clone()).await;
    half_read.next().await.unwrap();
    drop(half_read);
    let mut stream = binder.connect("s1", 1).await;
    stream.send(decisions.clone()).await;
    stream.send(decisions[..5].to_vec()).await;
    let mut answered = std::collections::BTreeSet::new();
    while answered.len() < 40 {
        let crate::decide_response::Message::Outcomes(outcomes) = stream.next().await.unwrap() else {
            panic!("a second welcome")
        };
        for outcome in outcomes.outcomes {
            let only_bound =
                reasons(&outcome).iter().all(|(reason, _)| *reason == RejectionReason::AlreadyBound);
            assert!(only_bound, "{outcome:?}");
            answered.insert(outcome.decision_id);
        }
    }
    for id in 1..=40 {
        state.bound(id, 2).await;
    }
    state.assert_bound_once().await;
    assert_eq!(binder.status().await.unwrap().bound, 80);
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_is_ahead_of_the_watch_waits() {
    let (state, agents) = world(1).await;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let known = units.put(&unit(1, 2, 1, 100)).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    // The revision of a unit that is still to be written; others do not wait for it.
    let next = state.status().await.revision + 2;
    stream.send(vec![place(1, 2, next, &[(0, agents[0].node_id)])]).await;
    let other = stream.decide(place(2, 1, known, &[(0, agents[0].node_id)])).await;
    assert_eq!((other.decision_id, other.revision), (2, next - 1));
    assert_eq!(units.put(&unit(2, 1, 1, 100)).await, next);
    let waited = stream.outcomes(1).await.remove(0);
    assert_eq!((waited.decision_id, waited.revision > next), (1, true));
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_cancelled_in_mid_flight_is_not_bound() {
    let (state, agents) = world(1).await;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    // Cancel and bind race; whoever is first, a cancelled unit never gets a binding after its record.
    for id in 1..=30 {
        let revision = units.put(&unit(id, 1, 1, 1)).await;
        stream.send(vec![place(id, id, revision, &[(0, agents[0].node_id)])]).await;
        let cancelled = units.put(&unit(id, 1, 1, 1).cancelled(true)).await;
        let outcome = stream.outcomes(1).await.remove(0);
        if outcome.revision == 0 {
            assert_eq!(reasons(&outcome), [(RejectionReason::UnitChanged, vec![0])]);
            assert_eq!(state.rows(id).await.row(0).phase, Phase::Pending);
        } else {
            assert!(outcome.revision < cancelled, "bound after the cancellation");
        }
    }
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicted_ones_leave_and_come_back_only_if_wanted() {
    let (state, mut agents) = world(1).await;
    let node = agents[0].node_id;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let revision = units.put(&unit(1, 3, 1, 100)).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    assert!(stream.decide(place(1, 1, revision, &[(0, node), (1, node), (2, node)])).await.revision > 0);
    state.bound(1, 3).await;

    let eviction = |ordinals: &[u32], reason: v1::EvictionReason| v1::Eviction {
        unit_id: 1,
        ordinals: ordinals.to_vec(),
        reason: reason.into(),
        by: "test".to_owned(),
        ..v1::Eviction::default()
    };
    // As often as needed until the binder has read the binding.
    let drained = crate::eventually("the eviction is durable", || async {
        let asked = vec![
            eviction(&[0], v1::EvictionReason::Drained),
            eviction(&[1, 7], v1::EvictionReason::ScaledIn),
            v1::Eviction { unit_id: 44, ..eviction(&[0], v1::EvictionReason::Drained) },
        ];
        let revision = binder.evict(asked).await.unwrap();
        state.rows(1).await.row(1).eviction.is_some().then_some(revision)
    })
    .await;
    assert!(drained > 0);
    let rows = state.rows(1).await;
    assert_eq!(rows.row(0).eviction, Some(EvictionReason::Drained));
    assert_eq!((rows.row(2).eviction, rows.row(0).phase.is_live()), (None, true));
    let again = binder.evict(vec![eviction(&[0, 1], v1::EvictionReason::Cancelled)]).await.unwrap();
    assert!(again > 0);
    assert_eq!(state.rows(1).await.row(0).eviction, Some(EvictionReason::Drained), "the first reason stays");

    for ordinal in [0, 1] {
        agents[0].report(1, ordinal, 0, v1::RunPhase::Stopped).await;
    }
    let back = state.row(1, 0, |row| row.incarnation == 1).await;
    assert_eq!(back.phase, Phase::Pending);
    state.row(1, 1, |row| row.phase == Phase::Stopped && row.incarnation == 0).await;
    let mut next = place(2, 1, revision, &[(0, node)]);
    next.groups[0].incarnations = vec![1];
    assert!(stream.decide(next).await.revision > 0);
    state.row(1, 0, |row| row.incarnation == 1 && row.phase == Phase::Bound).await;
    state.assert_bound_once().await;
    binder.stop().await;
}
