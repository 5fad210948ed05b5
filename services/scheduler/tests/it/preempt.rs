//! Victims on the wire: the decision that names them, and what becomes of it.

use godel_proto::v1::{self, UnitReportState};
use godel_testkit::BuildUnit as _;
use godel_wire::to_proto;

use crate::{
    Scheduler,
    harness::{State, Units, unit},
    played::{AttachStream, DecideStream, Dispatcher, PlayedBinder},
    work::assignment,
    world,
};

/// Binds replica 0 of unit 1, which takes 900 of the 1,000 of a node.
async fn occupy(state: &State, epoch: u64, node_id: u32, standing: v1::Standing) {
    let unit = unit(1, 1, 1, 900);
    let demand = Some(to_proto::demand(&unit.spec.task_groups[0].template.demand));
    let bind = v1::Binding {
        unit_id: 1,
        ordinals: vec![0],
        node_ids: vec![node_id],
        demand,
        pool: v1::Pool::Guaranteed.into(),
        standing: Some(standing),
        ..v1::Binding::default()
    };
    let writer = v1::Writer { lease: "binder".to_owned(), epoch, sequence: 1 };
    state.txn(writer, vec![v1::op::Op::Bind(bind)]).await.unwrap();
}

struct Played {
    state: State,
    _agents: Vec<crate::harness::Agent>,
    node_id: u32,
    binder: PlayedBinder,
    binder_epoch: u64,
    dispatcher: Dispatcher,
}

impl Played {
    async fn new() -> Self {
        let (state, agents) = world(1).await;
        let (dispatcher, binder) = (Dispatcher::new().await, PlayedBinder::new().await);
        let binder_epoch = state.acquire("binder", "test", &binder.url).await;
        Self { state, node_id: agents[0].node_id, _agents: agents, binder, binder_epoch, dispatcher }
    }

    async fn streams(&self) -> (Scheduler, AttachStream, DecideStream) {
        let scheduler = Scheduler::start(&self.state.url, "s1").await;
        let (attach, _) = self.dispatcher.attached().await;
        let (decide, _) = self.binder.connected().await;
        (scheduler, attach, decide)
    }
}

fn victims(decision: &v1::Decision) -> Vec<(u32, u64, u32)> {
    let Some(v1::decision::Claim::Preemption(preemption)) = &decision.claim else { return Vec::new() };
    let victims = preemption.nodes.iter().flat_map(|on| on.victims.iter().map(|one| (on.node_id, one)));
    victims.map(|(node_id, one)| (node_id, one.unit_id, one.ordinal)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_names_its_victims_until_the_room_is_held() {
    let played = Played::new().await;
    let units = Units::new(&played.state, &played.dispatcher.url).await;
    units.put(&unit(1, 1, 1, 900)).await;
    let standing = v1::Standing { priority: 1, preemptible: true, min_member: 1, ..v1::Standing::default() };
    occupy(&played.state, played.binder_epoch, played.node_id, standing).await;
    let (scheduler, attach, mut decide) = played.streams().await;
    let high = unit(2, 1, 1, 600).priority(9);
    attach.assign(vec![assignment(&high, units.put(&high).await)]).await;
    let first = decide.decisions().await.remove(0);
    assert_eq!(victims(&first), [(played.node_id, 1, 0)]);
    assert_eq!(first.groups[0].node_ids, [played.node_id]);

    // Another one was faster, or seems to have been: it looks again.
    let gone = v1::Rejection {
        reason: v1::RejectionReason::VictimGone.into(),
        ordinals: vec![0],
        node_id: played.node_id,
        detail: String::new(),
    };
    let answer = |decision: &v1::Decision| v1::Outcome {
        decision_id: decision.decision_id,
        unit_id: decision.unit_id,
        ..v1::Outcome::default()
    };
    decide.answer(vec![v1::Outcome { rejections: vec![gone], ..answer(&first) }]).await;
    let second = decide.decisions().await.remove(0);
    assert!(second.decision_id > first.decision_id);
    assert_eq!(victims(&second), victims(&first));
    // Held: it stays, and is tried elsewhere once that is read.
    decide.answer(vec![v1::Outcome { held: true, revision: 1_000, ..answer(&second) }]).await;
    // Counters follow a moment later.
    let status = scheduler.shows(|status| status.in_flight == 0 && status.conflicts == 1).await;
    assert_eq!(status.placed, 0, "what is held is not placed yet");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_s_guarantee_and_the_queue_that_pays_are_followed() {
    let played = Played::new().await;
    let units = Units::new(&played.state, &played.dispatcher.url).await;
    units.put(&unit(1, 1, 1, 900)).await;
    let queue = "lab".to_owned();
    let standing =
        v1::Standing { priority: 9, preemptible: true, min_member: 1, queue, ..v1::Standing::default() };
    occupy(&played.state, played.binder_epoch, played.node_id, standing).await;
    let (scheduler, mut attach, mut decide) = played.streams().await;
    let own = unit(2, 1, 1, 600).priority(1).queue("own");
    attach.assign(vec![assignment(&own, units.put(&own).await)]).await;
    attach.report(2, UnitReportState::Parked).await;
    let min = v1::Resources { amounts: [("cpu".to_owned(), 600)].into() };
    let meta = v1::ObjectMeta { name: "own".to_owned(), ..v1::ObjectMeta::default() };
    let record = v1::Queue { meta: Some(meta), min: Some(min), weight: Some(1), ..v1::Queue::default() };
    units.write(v1::op::Op::PutQueue(record)).await;
    assert_eq!(victims(&decide.decisions().await[0]), [(played.node_id, 1, 0)], "its priority is lower");
    scheduler.stop().await;
}
