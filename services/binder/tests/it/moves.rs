//! Moves: held and leaving in one transaction, placed by any scheduler, whoever leads by then.

use godel_domain::running_units::{EvictionReason, Phase};
use godel_kit::{
    clock::{Clock as _, SystemClock},
    status,
};
use godel_proto::v1::{self, RejectionReason};

use crate::{
    Binder,
    harness::{State, Units, unit},
    place,
    preempt::holds,
    reasons, world,
};

/// Moves of the first incarnation of a replica each.
fn request(moves: &[(u64, u32, u32)]) -> v1::MoveRunningUnitsRequest {
    let one = |(unit_id, ordinal, to_node_id): &(u64, u32, u32)| v1::RequestedMove {
        unit_id: *unit_id,
        ordinal: *ordinal,
        to_node_id: *to_node_id,
        ..v1::RequestedMove::default()
    };
    let expires_ms = SystemClock::new().wall_ms() + 600_000;
    v1::MoveRunningUnitsRequest {
        movement: "binpack-1".to_owned(),
        moves: moves.iter().map(one).collect(),
        expires_ms,
        ..v1::MoveRunningUnitsRequest::default()
    }
}

impl Binder {
    async fn move_units(
        &self,
        request: v1::MoveRunningUnitsRequest,
    ) -> Result<v1::MoveRunningUnitsResponse, tonic::Status> {
        Ok(self.client.clone().move_running_units(request).await?.into_inner())
    }
}

/// Why each move is refused; `None`: it is made.
fn refusals(answer: &v1::MoveRunningUnitsResponse) -> Vec<Option<(RejectionReason, bool)>> {
    let refusal = |refused: &v1::MoveRefusal| (refused.reason(), refused.later);
    answer.answers.iter().map(|answer| answer.refused.as_ref().map(refusal)).collect()
}

async fn running(state: &State) -> Units<'_> {
    Units::new(state, "http://127.0.0.1:1").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_survives_its_binder_and_is_made_once() {
    let (state, mut agents) = world(3).await;
    let nodes: Vec<u32> = agents.iter().map(|agent| agent.node_id).collect();
    let units = running(&state).await;
    let web = units.put(&unit(1, 2, 1, 600)).await;
    let other = units.put(&unit(2, 1, 1, 600)).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    let bound = stream.decide(place(1, 1, web, &[(0, nodes[0]), (1, nodes[1])])).await;
    assert!(bound.revision > 0 && bound.rejections.is_empty(), "{bound:?}");
    for (at, agent) in agents.iter_mut().take(2).enumerate() {
        agent.report(1, u32::try_from(at).unwrap(), 0, v1::RunPhase::Running).await;
    }
    for ordinal in [0, 1] {
        state.row(1, ordinal, |row| row.phase == Phase::Running).await;
    }

    // The second one would lie beside the first one.
    let asked = request(&[(1, 0, nodes[2]), (1, 1, nodes[2])]);
    let answer = binder.move_units(asked.clone()).await.unwrap();
    assert_eq!(refusals(&answer), [None, Some((RejectionReason::InsufficientResources, false))]);
    let [hold] = holds(&state).await.try_into().unwrap();
    assert_eq!(
        (hold.node_id, hold.ordinals.as_slice(), hold.incarnations.as_slice()),
        (nodes[2], &[0][..], &[1][..])
    );
    assert_eq!(answer.answers[0].hold_id, hold.hold_id);
    let from = hold.movement.unwrap_or_default().from.unwrap();
    assert_eq!((from.unit_id, from.ordinal, from.incarnation), (1, 0, 0));
    let row = state.row(1, 0, |row| row.eviction.is_some()).await;
    assert_eq!((row.eviction, row.phase), (Some(EvictionReason::Rescheduled), Phase::Running));
    assert_eq!(&*state.rows(1).await.last_eviction(0).unwrap().by, "movement binpack-1");
    assert!(state.rows(1).await.row(1).eviction.is_none(), "nothing of a refused move is done");
    let full = stream.decide(place(2, 2, other, &[(0, nodes[2])])).await;
    assert_eq!(reasons(&full), [(RejectionReason::InsufficientResources, vec![0])]);

    // The binder dies between the hold and the binding, and so does the scheduler.
    drop(stream);
    binder.stop().await;
    agents[0].report(1, 0, 0, v1::RunPhase::Stopped).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let again = binder.move_units(asked.clone()).await.unwrap();
    assert_eq!(refusals(&again)[0], None);
    assert_eq!(again.answers[0].hold_id, hold.hold_id, "it is the same one");
    state.row(1, 0, |row| row.incarnation == 1 && row.phase == Phase::Pending).await;
    let mut stream = binder.connect("s2", 1).await;
    let full = stream.decide(place(3, 2, other, &[(0, nodes[2])])).await;
    assert_eq!(reasons(&full), [(RejectionReason::InsufficientResources, vec![0])]);
    let mut next = place(4, 1, web, &[(0, nodes[2])]);
    next.groups[0].incarnations = vec![1];
    let bound = stream.decide(next).await;
    assert!(bound.revision > 0 && bound.rejections.is_empty(), "{bound:?}");
    assert!(holds(&state).await.is_empty(), "the hold goes with the binding");
    state.row(1, 0, |row| row.node.0 == nodes[2] && row.incarnation == 1).await;
    let made = binder.move_units(request(&[(1, 0, nodes[2])])).await.unwrap();
    assert_eq!((refusals(&made), made.answers[0].hold_id), (vec![None], 0));
    state.assert_bound_once().await;
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_moves_are_refused_as_a_whole() {
    let (state, agents) = world(1).await;
    let node = agents[0].node_id;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let asked = request(&[(1, 0, node)]);
    for (case, wrong) in [
        ("no name", v1::MoveRunningUnitsRequest { movement: String::new(), ..asked.clone() }),
        ("no moves", v1::MoveRunningUnitsRequest { moves: Vec::new(), ..asked.clone() }),
        ("over", v1::MoveRunningUnitsRequest { expires_ms: 1, ..asked.clone() }),
        ("twice", request(&[(1, 0, node), (1, 0, node)])),
        ("no unit", request(&[(0, 0, node)])),
        ("no node", request(&[(1, 0, 0)])),
    ] {
        let refused = binder.move_units(wrong).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{case}");
    }
    let store = v1::MoveRunningUnitsRequest { store_id: 7, ..asked.clone() };
    let refused = binder.move_units(store).await.unwrap_err();
    assert!(status::has_reason(&refused, status::reason::STORE_CHANGED), "{refused:?}");
    let future = v1::MoveRunningUnitsRequest { read_revision: 1 << 40, ..asked.clone() };
    assert_eq!(binder.move_units(future).await.unwrap_err().code(), tonic::Code::OutOfRange);
    let unknown = binder.move_units(asked.clone()).await.unwrap();
    assert_eq!(refusals(&unknown), [Some((RejectionReason::NotThere, false))]);
    let moved = v1::Eviction {
        unit_id: 1,
        ordinals: vec![0],
        reason: v1::EvictionReason::Rescheduled.into(),
        ..v1::Eviction::default()
    };
    let refused = binder.evict(vec![moved]).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "an eviction without a target");
    let standby = Binder::start(&state.url).await;
    let refused = standby.move_units(asked).await.unwrap_err();
    assert!(status::has_reason(&refused, status::reason::NOT_LEADER), "{refused:?}");
    standby.stop().await;
    binder.stop().await;
}
