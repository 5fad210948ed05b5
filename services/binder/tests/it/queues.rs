//! Maxima of queues: never more than allowed, whatever changes meanwhile.

use std::collections::BTreeMap;

use godel_domain::{
    change::Change,
    records::{Record, RecordKey},
    running_units::RunChange,
    unit::UnitRecord,
};
use godel_proto::v1::{self, RejectionReason, state_service_client::StateServiceClient};
use godel_testkit::BuildUnit as _;
use godel_wire::from_proto;

use crate::{
    Binder,
    harness::{State, Units, soon, unit},
    place, reasons, world,
};

fn queue(path: &str, cpu: Option<i64>, max_running_units: u32) -> v1::op::Op {
    v1::op::Op::PutQueue(v1::Queue {
        meta: Some(v1::ObjectMeta {
            name: path.to_owned(),
            uid: "00000000-0000-4000-8000-000000000001".to_owned(),
            ..v1::ObjectMeta::default()
        }),
        max: cpu.map(|cpu| v1::Resources { amounts: [("cpu".to_owned(), cpu)].into() }),
        weight: Some(1),
        policy: v1::QueuePolicy::Priority.into(),
        max_running_units: (max_running_units > 0).then_some(max_running_units),
        ..v1::Queue::default()
    })
}

fn in_queue(path: &str, unit: UnitRecord) -> UnitRecord {
    unit.queue(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_and_what_ends_makes_room() {
    let (state, mut agents) = world(2).await;
    let (n1, n2) = (agents[0].node_id, agents[1].node_id);
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    units.write(queue("prod", Some(500), 0)).await;
    units.write(queue("prod.search", None, 0)).await;
    units.write(queue("none", Some(0), 0)).await;
    let one = units.put(&in_queue("prod.search", unit(1, 4, 1, 200))).await;
    let gang = units.put(&in_queue("prod.search", unit(2, 2, 2, 100))).await;
    let nothing = units.put(&in_queue("none", unit(3, 1, 1, 1))).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;

    let partly = stream.decide(place(1, 1, one, &[(0, n1), (1, n2), (2, n1)])).await;
    assert!(partly.revision > 0);
    assert_eq!(reasons(&partly), [(RejectionReason::QueueFull, vec![2])]);
    let rejection = &partly.rejections[0];
    assert_eq!((rejection.detail.as_str(), rejection.node_id), ("queue prod is at its maximum of cpu", 0));
    assert!(partly.nodes.is_empty(), "it is not about a node");
    // 100 are left: a gang of two of 100 each gets nothing.
    let whole = stream.decide(place(2, 2, gang, &[(0, n1), (1, n2)])).await;
    assert_eq!(whole.revision, 0);
    let refused: Vec<u32> = whole.rejections.iter().flat_map(|one| one.ordinals.clone()).collect();
    assert_eq!(refused, [1, 0]);
    assert!(whole.rejections.iter().all(|one| one.reason() == RejectionReason::QueueFull));
    let never = stream.decide(place(3, 3, nothing, &[(0, n1)])).await;
    assert_eq!(reasons(&never), [(RejectionReason::QueueFull, vec![0])]);
    assert_eq!(binder.status().await.unwrap().rejected["queue-full"], 4);

    agents[0].report(1, 0, 0, v1::RunPhase::Succeeded).await;
    state.row(1, 0, |row| row.phase.is_ended()).await;
    // A new leader counts the same from the records alone.
    drop(stream);
    binder.stop().await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    let bound = stream.decide(place(4, 2, gang, &[(0, n1), (1, n2)])).await;
    assert!(bound.revision > 0 && bound.rejections.is_empty(), "{bound:?}");
    let full = stream.decide(place(5, 1, one, &[(2, n1)])).await;
    assert_eq!(reasons(&full), [(RejectionReason::QueueFull, vec![2])]);
    units.write(queue("prod", Some(600), 0)).await;
    crate::eventually("the binder reads the raised maximum", || async {
        // Nobody else decides for this unit.
        (binder.status().await?.revision >= state.status().await.revision).then_some(())
    })
    .await;
    assert!(stream.decide(place(6, 1, one, &[(2, n1)])).await.revision > 0);
    never_above(&state).await;
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_maximum_that_changes_while_a_binding_is_under_way_is_kept() {
    const N: u64 = 60;
    let (state, agents) = world(1).await;
    let units = Units::new(&state, "http://127.0.0.1:1").await;
    let mut revisions = Vec::new();
    for id in 1..=N {
        let path = if id % 2 == 0 { "a.b" } else { "a.c" };
        revisions.push(units.put(&in_queue(path, unit(id, 2, 1, 1))).await);
    }
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut stream = binder.connect("s1", 1).await;
    let node = agents[0].node_id;
    let mut n_full = 0;
    for (id, revision) in (1..=N).zip(revisions) {
        stream.send(vec![place(id, id, revision, &[(0, node), (1, node)])]).await;
        // Set, lowered, raised and deleted beside it: the binding rests on the one before, or is checked again.
        let op = match id % 4 {
            0 => v1::op::Op::Delete(v1::Delete {
                kind: v1::Kind::Queue.into(),
                key: Some(v1::Key { name: "a".to_owned(), id: 0 }),
            }),
            1 => queue("a", Some(i64::try_from(id).unwrap()), 0),
            2 => queue("a", None, u32::try_from(id / 2).unwrap()),
            _ => queue("a", Some(i64::try_from(2 * id).unwrap()), 0),
        };
        units.write(op).await;
        let outcome = stream.outcomes(1).await.remove(0);
        assert!(outcome.rejections.iter().all(|one| one.reason() == RejectionReason::QueueFull));
        n_full += usize::from(!outcome.rejections.is_empty());
    }
    assert!(n_full > 0, "no maximum was ever met");
    never_above(&state).await;
    state.assert_bound_once().await;
    binder.stop().await;
}

/// Replays all that was committed: no binding raises a queue above a maximum in force.
async fn never_above(state: &State) {
    let end = state.status().await.revision;
    let request = v1::WatchRequest { from_revision: 0, kinds: Vec::new(), ..v1::WatchRequest::default() };
    let mut watch = StateServiceClient::new(state.channel.clone()).watch(request).await.unwrap().into_inner();
    let (mut queue_of, mut cpu_of) = (BTreeMap::new(), BTreeMap::new());
    let mut records = BTreeMap::new();
    let mut live: BTreeMap<(u64, u32), (String, i64)> = BTreeMap::new();
    loop {
        let message = soon("the watch goes on", watch.message()).await.unwrap().unwrap();
        for op in message.commits.iter().flat_map(|commit| commit.ops.iter()) {
            match from_proto::op(op).unwrap() {
                Change::Put(Record::Unit(record)) => {
                    cpu_of.insert(record.id, record.spec.task_groups[0].template.demand.requests.get("cpu"));
                    queue_of.insert(record.id, record.spec.queue.clone());
                }
                Change::Put(Record::Queue(spec)) => {
                    records.insert(spec.name.clone(), spec);
                }
                Change::Gone(RecordKey::Queue(path)) => {
                    records.remove(&path);
                }
                Change::Rows(unit, RunChange::Bind(bind)) => {
                    for ordinal in bind.ordinals {
                        live.insert((unit.0, ordinal), (queue_of[&unit].clone(), cpu_of[&unit]));
                    }
                    let path = &queue_of[&unit];
                    for (level, spec) in records.iter().filter(|(level, _)| is_below(path, level)) {
                        let below = || live.values().filter(|(queue, _)| is_below(queue, level));
                        let cpu: i64 = below().map(|(_, cpu)| cpu).sum();
                        assert!(spec.max.get("cpu").is_none_or(|max| cpu <= *max), "{level}: cpu {cpu}");
                        let n = below().count();
                        let n_max = spec.max_running_units as usize;
                        assert!(n_max == 0 || n <= n_max, "{level}: {n} of {n_max}");
                    }
                }
                Change::Rows(unit, RunChange::Statuses(statuses)) => {
                    for (ordinal, phase) in statuses.ordinals.iter().zip(&statuses.phases) {
                        if phase.is_ended() {
                            live.remove(&(unit.0, *ordinal));
                        }
                    }
                }
                _ => {}
            }
        }
        if message.revision >= end {
            return;
        }
    }
}

fn is_below(path: &str, above: &str) -> bool {
    path == above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'))
}
