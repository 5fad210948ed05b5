//! Schedulers: assignments within credits, what becomes of units whose scheduler dies, a change of leader, the
//! split of nodes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use godel_kit::{config::HumanDuration, status};
use godel_proto::{
    raw,
    v1::{self, attach_request::Message},
};
use tonic::Code;

use crate::world::{Binder, Scheduler, World, eventually, record_of, unit};

fn names(units: &[raw::UnitAssignment]) -> Vec<String> {
    units.iter().map(|unit| record_of(unit).spec.unwrap().meta.unwrap().name).collect()
}

fn held(unit: &raw::UnitAssignment) -> (u64, u64) {
    (record_of(unit).unit_id, unit.spec_revision)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_go_to_schedulers_within_credits_and_are_bound() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let (node, binder) = (world.node("n1", 32_000).await, Binder::new(&world).await);
    for name in ["a", "b"] {
        dispatcher.submit(unit(name, 2)).await;
    }
    // It lacks something else than the one that is parked, or it would wait with it.
    dispatcher.submit(v1::UnitSpec { active_deadline_ms: Some(600_000), ..unit("c", 2) }).await;
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 4).await;
    let units = scheduler.units(2).await;
    assert_eq!(names(&units), ["a", "b"]);
    assert_eq!((units[0].ordinals.as_slice(), units[0].bound), (&[0, 1][..], 0));
    assert_eq!(dispatcher.phase("a", v1::UnitPhase::Scheduling).await.scheduler, "s1");
    binder.bind(held(&units[0]).0, &[0, 1], node, 1).await;
    let bound = dispatcher.phase("a", v1::UnitPhase::Scheduled).await;
    assert!(bound.bound_time_ms > 0 && bound.scheduler.is_empty());
    assert_eq!(bound.counts.unwrap().bound, 2);
    let shown = dispatcher.get("a").await.running_units;
    assert_eq!(
        (shown[0].node.as_str(), shown[0].devices.as_slice(), shown[0].device_model.as_str()),
        ("n1", &[0][..], "A10")
    );
    scheduler.report(&units[1], v1::UnitReportState::Parked, "insufficient cpu").await;
    let parked = dispatcher.phase("b", v1::UnitPhase::Unschedulable).await;
    assert_eq!(parked.refusals.unwrap().reasons[0].reason, "insufficient cpu");
    scheduler.say(Message::Credits(10)).await;
    assert_eq!(names(&scheduler.units(1).await), ["c"]);
    let listed = eventually("the scheduler is shown", || async {
        let request = v1::ListSchedulersRequest {};
        let listed = dispatcher.dispatch().list_schedulers(request).await.unwrap().into_inner().schedulers;
        (listed.len() == 1 && listed[0].nodes == 1 && listed[0].placed == 7).then_some(listed)
    })
    .await;
    assert_eq!((listed[0].units, listed[0].parked_units, listed[0].running_units), (2, 1, 2));
    assert!(listed[0].attached && listed[0].lease_remaining_ms > 0);
    assert_eq!(dispatcher.status().await.repairs, 0);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_dead_scheduler_go_to_another() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let mut first = Scheduler::new(&world, &dispatcher, "s1", 100).await;
    for name in ["a", "b"] {
        dispatcher.submit(unit(name, 2)).await;
        first.units(1).await;
    }
    let mut second = Scheduler::new(&world, &dispatcher, "s2", 100).await;
    let epoch = first.epoch;
    first.leave().await;
    assert_eq!(names(&second.units(2).await), ["a", "b"]);
    let status = dispatcher.status().await;
    assert_eq!((status.redispatched, status.repairs, status.queued_units), (2, 0, 0));
    let stale = Scheduler::attach(&dispatcher, "s1", epoch, &[], 1).await.err().unwrap();
    assert!(status::has_reason(&stale, status::reason::STALE_EPOCH), "{stale:?}");
    // A stream that does not open with an inventory.
    let (up, messages) = tokio::sync::mpsc::channel(1);
    up.send(v1::AttachRequest { message: Some(Message::Credits(1)) }).await.unwrap();
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    let mut down = dispatcher.dispatch().attach(messages).await.unwrap().into_inner();
    assert_eq!(down.message().await.unwrap_err().code(), Code::InvalidArgument);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_has_read_everything_before_it_leads() {
    let world = World::new().await;
    let first = world.dispatcher().await;
    first.leads().await;
    first.submit(unit("before", 2)).await;
    let n_lists = || world.n_calls("ListRecords");
    let have_listed = async |n: u64| {
        let is_so = || std::future::ready((n_lists() == n).then_some(()));
        eventually(&format!("{n} lists"), is_so).await;
    };
    have_listed(1).await;
    let standby = world.dispatcher().await;
    have_listed(2).await;
    first.submit(unit("after", 2)).await;
    first.stop.cancel();
    first.task.await.unwrap();
    standby.leads().await;
    for name in ["before", "after"] {
        assert!(standby.get(name).await.unit.is_some(), "{name}");
    }
    assert_eq!(n_lists(), 2, "nothing was listed at the election");
    // So does the next one.
    let third = world.dispatcher().await;
    have_listed(3).await;
    standby.stop.cancel();
    standby.task.await.unwrap();
    third.leads().await;
    assert_eq!(third.status().await.repairs, 0);
    world.end([third]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_goes_on_where_the_old_one_was() {
    let world = World::new().await;
    let first = world.dispatcher().await;
    first.leads().await;
    let standby = world.dispatcher().await;
    let refused = eventually("the standby knows the leader", || async {
        let request = v1::SubmitUnitRequest { unit: Some(unit("x", 1)) };
        let refused = standby.units().submit_unit(request).await.unwrap_err();
        status::leader_of(&refused).map(|leader| (leader, refused))
    })
    .await;
    assert_eq!((refused.0.as_str(), refused.1.code()), (first.address.as_str(), Code::Unavailable));

    let once = unit("a", 2);
    let submitted = first.submit(once.clone()).await;
    let mut one = Scheduler::new(&world, &first, "s1", 2).await;
    let held_by_one = one.units(1).await;
    first.submit(unit("b", 2)).await;
    let (stop, task) = (first.stop.clone(), first.task);
    stop.cancel();
    task.await.unwrap();
    assert!(one.next().await.is_none(), "the stream ends");

    standby.leads().await;
    let again = standby.submit(once).await;
    assert!(again.duplicate && again.unit_id == submitted.unit_id);
    // What it holds stays with it, what it should not hold is taken away, what waited comes.
    one.again(&standby, &[held(&held_by_one[0]), (777, 3)], 100).await;
    assert_eq!(one.revoked().await, [777]);
    assert_eq!(names(&one.units(1).await), ["b"]);
    standby.submit(unit("c", 1)).await;
    let last = one.units(1).await;
    assert_eq!(names(&last), ["c"]);
    assert!(held(&last[0]).0 > submitted.unit_id);
    assert_eq!(standby.get("a").await.unit.unwrap().scheduler, "s1");
    assert_eq!(standby.status().await.repairs, 0);
    world.end([standby]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_split_when_the_mode_says_so() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    for number in 0..4 {
        world.node(&format!("n{number}"), 1_000).await;
    }
    let _one = Scheduler::new(&world, &dispatcher, "s1", 1).await;
    let two = Scheduler::new(&world, &dispatcher, "s2", 1).await;
    let shares = |expect: &'static [u32], mode: v1::PartitionMode| {
        let dispatch = dispatcher.dispatch();
        eventually("the shares are even", move || {
            let mut dispatch = dispatch.clone();
            async move {
                let listed =
                    dispatch.list_schedulers(v1::ListSchedulersRequest {}).await.unwrap().into_inner();
                let nodes: Vec<u32> = listed.schedulers.iter().map(|one| one.nodes).collect();
                (nodes == expect && listed.partition_mode() == mode).then_some(())
            }
        })
    };
    shares(&[4, 4], v1::PartitionMode::Global).await;
    let preferred =
        v1::SetPartitionModeRequest { mode: v1::PartitionMode::Preferred.into(), ..Default::default() };
    let set = dispatcher.dispatch().set_partition_mode(preferred).await.unwrap().into_inner();
    assert!(set.revision > 0);
    shares(&[2, 2], v1::PartitionMode::Preferred).await;
    let same = dispatcher.dispatch().set_partition_mode(preferred).await.unwrap().into_inner();
    assert!(same.revision >= set.revision);
    two.leave().await;
    shares(&[4], v1::PartitionMode::Preferred).await;
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mode_follows_the_load_unless_it_is_set_by_hand() {
    let world = World::new().await;
    let shuffle = godel_dispatcher::ShuffleConfig {
        window: HumanDuration::from_millis(100),
        windows: 1,
        placed_per_s_above: 1,
        // Longer than between two renewals, between which nobody says anything.
        calm: HumanDuration::from_secs(2),
        ..godel_dispatcher::ShuffleConfig::default()
    };
    let dispatcher = world.dispatcher_with(godel_dispatcher::Config { shuffle, ..world.config() }).await;
    dispatcher.leads().await;
    world.node("n1", 1_000).await;
    let is_busy = Arc::new(AtomicBool::new(true));
    let (busy, n_said) = (Arc::clone(&is_busy), AtomicU64::new(0));
    let counters = move || {
        let more = if busy.load(Ordering::SeqCst) { 1_000 } else { 0 };
        let n = n_said.fetch_add(more, Ordering::SeqCst) + more;
        vec![("placed", n), ("conflicts", n)]
    };
    let _one = Scheduler::counting(&world, &dispatcher, "s1", 1, counters).await;
    let shown = async |mode: v1::PartitionMode, by_hand: bool, reason: &'static str| {
        eventually(&format!("{mode:?}: {reason}"), || async {
            let status = dispatcher.status().await;
            let found = (status.partition_mode(), status.partition_by_hand) == (mode, by_hand);
            (found && status.partition_reason.contains(reason)).then_some(status.partition_change_time_ms)
        })
        .await
    };
    let split_ms = shown(v1::PartitionMode::Preferred, false, "50.0 % conflicts").await;
    is_busy.store(false, Ordering::SeqCst);
    let shared_ms = shown(v1::PartitionMode::Global, false, "calm for").await;
    assert!(split_ms > 0 && shared_ms > split_ms);
    let set = async |mode: v1::PartitionMode, automatic: bool| {
        let request = v1::SetPartitionModeRequest { mode: mode.into(), automatic };
        dispatcher.dispatch().set_partition_mode(request).await
    };
    set(v1::PartitionMode::Strict, false).await.unwrap();
    shown(v1::PartitionMode::Strict, true, "by hand").await;
    let both = set(v1::PartitionMode::Strict, true).await.unwrap_err();
    assert_eq!(both.code(), tonic::Code::InvalidArgument);
    set(v1::PartitionMode::Unspecified, true).await.unwrap();
    shown(v1::PartitionMode::Global, false, "calm for").await;
    assert_eq!(dispatcher.status().await.repairs, 0);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inventory_in_many_messages_is_adopted_and_revoked_as_one() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 100).await;
    for name in ["a", "b", "c"] {
        dispatcher.submit(unit(name, 1)).await;
    }
    let units = scheduler.units(3).await;
    // It has lost one of the three, and says the others in its first and its last message.
    let mut inventory: Vec<(u64, u64)> = (1_000_000..1_100_000).map(|unknown| (unknown, 7)).collect();
    inventory.insert(0, held(&units[0]));
    inventory.push(held(&units[2]));
    scheduler.again(&dispatcher, &inventory, 100).await;
    let mut revoked = Vec::new();
    while revoked.len() < 100_000 {
        let part = scheduler.revoked().await;
        assert!(part.len() <= 40_000, "{}", part.len());
        revoked.extend(part);
    }
    assert!(revoked.into_iter().eq(1_000_000..1_100_000));
    assert_eq!(names(&scheduler.units(1).await), ["b"]);

    // What is no inventory ends the stream, and so does one that comes late.
    let part = v1::Inventory { units: Vec::new(), more: false };
    scheduler.say(Message::Inventory(part)).await;
    assert!(scheduler.next().await.is_none());
    assert_eq!(dispatcher.status().await.repairs, 0);
    world.end([dispatcher]).await;
}
