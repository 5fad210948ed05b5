//! Holds: one transaction takes the victims' room, another binds it once they have left, whoever leads by then.

use godel_domain::{running_units::Phase, unit::UnitRecord};
use godel_proto::v1::{self, RejectionReason, state_service_client::StateServiceClient};
use godel_testkit::BuildUnit as _;
use godel_wire::from_proto;

use crate::{
    Binder, eventually,
    harness::{State, Units, unit},
    place, reasons, world,
};

fn standing(priority: i32, unit: UnitRecord) -> UnitRecord {
    unit.priority(priority).preemptible(true)
}

/// A decision for which ordinals of another unit have to leave a node.
fn claim(mut decision: v1::Decision, node_id: u32, unit_id: u64, ordinals: &[u32]) -> v1::Decision {
    let victim = |ordinal: &u32| v1::Victim { unit_id, ordinal: *ordinal, incarnation: 0 };
    let victims = ordinals.iter().map(victim).collect();
    let nodes = vec![v1::NodeVictims { task_group: 0, node_id, victims, ..v1::NodeVictims::default() }];
    let preemption = v1::Preemption { nodes, ..v1::Preemption::default() };
    decision.claim = Some(v1::decision::Claim::Preemption(preemption));
    decision
}

pub(super) async fn holds(state: &State) -> Vec<v1::Hold> {
    let request = v1::ListRecordsRequest { kinds: vec![v1::Kind::Hold.into()], ..Default::default() };
    let page =
        StateServiceClient::new(state.channel.clone()).list_records(request).await.unwrap().into_inner();
    page.records
        .into_iter()
        .filter_map(|record| match record.record {
            Some(v1::record::Record::Hold(hold)) => Some(hold),
            _ => None,
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_held_and_bound_by_the_next_leader() {
    let (state, mut agents) = world(1).await;
    let node = agents[0].node_id;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let low = units.put(&standing(1, unit(1, 2, 1, 500))).await;
    let high = units.put(&standing(9, unit(2, 1, 1, 600))).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    let bound = stream.decide(place(1, 1, low, &[(0, node), (1, node)])).await;
    assert!(bound.revision > 0 && !bound.held);

    let short = stream.decide(claim(place(2, 2, high, &[(0, node)]), node, 1, &[0])).await;
    assert_eq!(reasons(&short), [(RejectionReason::InsufficientResources, vec![0])]);
    assert_eq!(short.nodes.len(), 1, "with the node as it is");
    let held = stream.decide(claim(place(3, 2, high, &[(0, node)]), node, 1, &[0, 1])).await;
    assert!(held.held && held.revision > 0 && held.rejections.is_empty(), "{held:?}");
    let [hold] = holds(&state).await.try_into().unwrap();
    assert_eq!((hold.unit_id, hold.node_id, hold.ordinals.as_slice()), (2, node, &[0][..]));
    assert_eq!(hold.victims.len(), 2);
    let rows = state.rows(1).await;
    assert_eq!(rows.preemptors(), [godel_base::ids::UnitId(2)]);
    // The first wins.
    let late = units.put(&standing(99, unit(3, 1, 1, 600))).await;
    let late = stream.decide(claim(place(4, 3, late, &[(0, node)]), node, 1, &[0, 1])).await;
    assert_eq!(reasons(&late), [(RejectionReason::VictimGone, vec![0])]);

    drop(stream);
    binder.stop().await;
    agents[0].report(1, 0, 0, v1::RunPhase::Stopped).await;
    agents[0].report(1, 1, 0, v1::RunPhase::Stopped).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    assert_eq!(state.bound(2, 1).await, [node]);
    assert!(holds(&state).await.is_empty());
    // The victims are pending again.
    state.row(1, 1, |row| row.incarnation == 1 && row.phase == Phase::Pending).await;
    state.assert_bound_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_goes_when_its_unit_is_cancelled() {
    let (state, mut agents) = world(1).await;
    let node = agents[0].node_id;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let low = units.put(&standing(1, unit(1, 1, 1, 900))).await;
    let unit = standing(9, unit(2, 1, 1, 600));
    let high = units.put(&unit).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    stream.decide(place(1, 1, low, &[(0, node)])).await;
    let held = stream.decide(claim(place(2, 2, high, &[(0, node)]), node, 1, &[0])).await;
    assert!(held.held, "{held:?}");
    units.put(&unit.cancelled(true)).await;
    eventually("the hold is gone", || async { holds(&state).await.is_empty().then_some(()) }).await;
    agents[0].report(1, 0, 0, v1::RunPhase::Stopped).await;
    // The eviction ran to its end, and the room is anybody's.
    state.row(1, 0, |row| row.incarnation == 1).await;
    let mut again = place(3, 1, low, &[(0, node)]);
    again.groups[0].incarnations = vec![1];
    let bound = stream.decide(again).await;
    assert!(bound.revision > 0 && !bound.held && bound.rejections.is_empty(), "{bound:?}");
    assert!(from_proto::outcome(bound).rejections.is_empty());
}
