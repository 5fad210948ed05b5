//! Queues at work: who may submit, what is handed out, what is shown, also after a restart and beside changes.

use std::collections::BTreeSet;

use godel_kit::status;
use godel_proto::v1;
use tokio::task::JoinSet;
use tonic::Code;

use crate::{
    queue_records::{amounts, class, queue, unit_in},
    world::{Binder, Scheduler, World, eventually, record_of, unit},
};

fn name_of(unit: &godel_proto::raw::UnitAssignment) -> String {
    record_of(unit).spec.unwrap().meta.unwrap().name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_goes_where_it_is_welcome() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let team = v1::Queue { submit_owners: vec!["ann".into()], ..queue("prod.search") };
    dispatcher.apply(vec![queue("prod"), team], vec![class("gold", 7)]).await.unwrap();
    let by = |owner: &str, unit: v1::UnitSpec| {
        let mut unit = unit;
        unit.meta.as_mut().unwrap().owner = owner.to_owned();
        unit
    };

    let unknown = dispatcher.try_submit(unit_in("none", "a")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::FailedPrecondition);
    assert_eq!(unknown.message(), "there is no queue `none`: create it first, or name another one");
    let inner = dispatcher.try_submit(unit_in("prod", "a")).await.unwrap_err();
    assert_eq!(inner.code(), Code::FailedPrecondition);
    assert!(inner.message().contains("prod.search"), "{inner:?}");
    let denied = dispatcher.try_submit(by("bob", unit_in("prod.search", "a"))).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert_eq!(status::metadata_of(&denied, "by").as_deref(), Some("prod.search"));
    let mut both = unit_in("none", "a");
    both.priority_class = "silver".into();
    let both = dispatcher.try_submit(both).await.unwrap_err();
    assert!(both.code() == Code::FailedPrecondition && both.message().ends_with("(and 1 more)"), "{both:?}");
    let by_hand = v1::UnitSpec { priority: Some(1_000_000_000), ..unit("a", 1) };
    assert_eq!(dispatcher.try_submit(by_hand).await.unwrap_err().code(), Code::InvalidArgument);
    // The name and the uid of what was refused are free.
    let mut good = by("ann", unit_in("prod.search", "a"));
    good.priority_class = "gold".into();
    let first = dispatcher.try_submit(good.clone()).await.unwrap();
    // What is known stays so, whatever the queue says since.
    let closed = v1::Queue { submit_owners: vec!["eve".into()], ..queue("prod.search") };
    dispatcher.update(closed, 0).await.unwrap();
    let again = dispatcher.try_submit(good).await.unwrap();
    assert!(again.duplicate && again.unit_id == first.unit_id);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_maximum_holds_units_back_and_says_so() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let (node, binder) = (world.node("n1", 32_000).await, Binder::new(&world).await);
    // Room for two of 500 each.
    let small = v1::Queue { max: amounts(&[("cpu", 1_000)]), ..queue("small") };
    dispatcher.create(small.clone()).await.unwrap();
    let mut ids = Vec::new();
    for name in ["a", "b", "c", "d"] {
        ids.push(dispatcher.submit(unit_in("small", name)).await.unit_id);
    }
    dispatcher.submit(unit("other", 1)).await;
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 100).await;
    let got: BTreeSet<String> = scheduler.units(3).await.iter().map(name_of).collect();
    assert_eq!(got, ["a", "b", "other"].map(str::to_owned).into());
    let refusals =
        eventually("c says why it waits", || async { dispatcher.get("c").await.unit?.refusals }).await;
    assert_eq!(refusals.reasons[0].plugin, "queue");
    assert_eq!(refusals.reasons[0].reason, "queue small is at its maximum of cpu");

    binder.bind(ids[0], &[0], node, 0).await;
    let usage = eventually("one is bound", || async {
        let usage = dispatcher.queue("small").await.unwrap().usage.unwrap();
        (usage.running_units == 1).then_some(usage)
    })
    .await;
    assert_eq!((usage.used.clone(), usage.pending_units), (amounts(&[("cpu", 500)]), 3));
    assert_eq!((usage.used_with_children, usage.borrowed), (usage.used.clone(), usage.used));
    // A larger maximum lets one more go, and a later one its rest.
    dispatcher.update(v1::Queue { max: amounts(&[("cpu", 1_500)]), ..small.clone() }, 0).await.unwrap();
    assert_eq!(name_of(&scheduler.units(1).await[0]), "c");
    dispatcher.update(v1::Queue { max: None, ..small }, 0).await.unwrap();
    assert_eq!(name_of(&scheduler.units(1).await[0]), "d");
    assert_eq!(dispatcher.status().await.repairs, 0);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_keeps_records_and_usage() {
    let world = World::new().await;
    let first = world.dispatcher().await;
    first.leads().await;
    let (node, binder) = (world.node("n1", 32_000).await, Binder::new(&world).await);
    let tree = vec![queue("prod"), v1::Queue { max: amounts(&[("cpu", 1_000)]), ..queue("prod.search") }];
    first.apply(tree, vec![class("gold", 7)]).await.unwrap();
    let web = v1::UnitSpec { priority_class: "gold".into(), ..unit_in("prod.search", "web") };
    let web = first.submit(web).await;
    let gone = first.create(queue("gone")).await.unwrap().revision;
    first.delete("gone", gone).await.unwrap();
    let mut scheduler = Scheduler::new(&world, &first, "s1", 100).await;
    let held = scheduler.units(1).await;
    binder.bind(web.unit_id, &[0], node, 0).await;
    let look = |usage: &v1::QueueUsage| (usage.used_with_children.clone(), usage.running_units);
    let before = eventually("it is bound", || async {
        let shown = first.queue("prod").await.unwrap();
        (shown.usage.as_ref().unwrap().running_units == 1).then_some(shown)
    })
    .await;
    assert_eq!(look(before.usage.as_ref().unwrap()).0, amounts(&[("cpu", 500)]));
    assert_eq!(
        before.usage.as_ref().unwrap().used,
        None,
        "a queue with others below it uses nothing of its own"
    );
    first.stop.cancel();
    first.task.await.unwrap();

    let second = world.dispatcher().await;
    second.leads().await;
    assert_eq!(second.queue("prod").await.unwrap(), before);
    assert_eq!(second.list(500).await.0, ["default", "prod", "prod.search"]);
    assert!(second.delete("prod.search", 0).await.unwrap_err().message().contains("default/web"));
    let delete = v1::DeletePriorityClassRequest { name: "gold".into(), expected_revision: 0 };
    let used = second.queues().delete_priority_class(delete).await.unwrap_err();
    assert_eq!(used.code(), Code::FailedPrecondition);
    // What is bound counts against the maximum: one more fits, two do not.
    scheduler.again(&second, &[], 100).await;
    let two = v1::UnitSpec { min_member: Some(2), ..unit_in("prod.search", "two") };
    let two = v1::UnitSpec { task_groups: unit("two", 2).task_groups, ..two };
    second.submit(two).await;
    second.submit(unit_in("prod.search", "one")).await;
    assert_eq!(name_of(&scheduler.units(1).await[0]), "one");
    assert_eq!(name_of(&held[0]), "web");
    assert_eq!(second.status().await.repairs, 0);
    world.end([second]).await;
}

/// Whatever comes first: never is there a unit that names a queue that is gone, or one with others below it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submissions_and_changes_of_their_queue_do_not_cross() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    for round in 0..40 {
        let (flat, deep) = (format!("flat{round}"), format!("deep{round}"));
        dispatcher.apply(vec![queue(&flat), queue(&deep)], vec![class(&flat, 5)]).await.unwrap();
        let mut tasks = JoinSet::new();
        for number in 0..8 {
            let (mut units, flat, deep) = (dispatcher.units(), flat.clone(), deep.clone());
            tasks.spawn(async move {
                let name = format!("r{round}-{number}");
                let unit = match number % 4 {
                    0 | 1 => unit_in(&flat, &name),
                    2 => unit_in(&deep, &name),
                    _ => v1::UnitSpec { priority_class: flat, ..unit(&name, 1) },
                };
                let request = v1::SubmitUnitRequest { unit: Some(unit) };
                match units.submit_unit(request).await {
                    Ok(_) => true,
                    Err(refused) => {
                        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
                        false
                    }
                }
            });
        }
        let mut queues = dispatcher.queues();
        let (path, below) = (flat.clone(), format!("{deep}.a"));
        tasks.spawn(async move {
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
            let delete = v1::DeleteQueueRequest { name: path.clone(), expected_revision: 0 };
            let _ = queues.delete_queue(delete).await;
            let _ = queues.create_queue(v1::CreateQueueRequest { queue: Some(queue(&below)) }).await;
            let delete = v1::DeletePriorityClassRequest { name: path, expected_revision: 0 };
            let _ = queues.delete_priority_class(delete).await;
            true
        });
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        let known: BTreeSet<String> = dispatcher.list(1_000).await.0.into_iter().collect();
        let list = v1::ListUnitsRequest { page_size: 1_000, ..v1::ListUnitsRequest::default() };
        let units = dispatcher.units().list_units(list).await.unwrap().into_inner().units;
        let get = v1::GetPriorityClassRequest { name: flat.clone() };
        let has_class = dispatcher.queues().get_priority_class(get).await.is_ok();
        for spec in units.into_iter().filter_map(|unit| unit.spec) {
            assert!(known.contains(&spec.queue), "{} is gone, and a unit names it", spec.queue);
            assert!(!known.contains(&format!("{}.a", spec.queue)), "{} has one below it", spec.queue);
            assert!(has_class || spec.priority_class != flat, "class {flat} is gone");
        }
    }
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_moves_the_units_that_name_it() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    dispatcher.apply(Vec::new(), vec![class("gold", -5)]).await.unwrap();
    dispatcher.submit(unit("plain", 1)).await;
    dispatcher.submit(v1::UnitSpec { priority_class: "gold".into(), ..unit("golden", 1) }).await;
    let own = v1::UnitSpec { priority_class: "gold".into(), priority: Some(-6), ..unit("own", 1) };
    dispatcher.submit(own).await;
    dispatcher.apply(Vec::new(), vec![class("gold", 1_000_000)]).await.unwrap();
    let mut scheduler = Scheduler::new(&world, &dispatcher, "s1", 1).await;
    assert_eq!(name_of(&scheduler.units(1).await[0]), "golden", "online now");
    scheduler.say(v1::attach_request::Message::Credits(10)).await;
    let rest: Vec<String> = scheduler.units(2).await.iter().map(name_of).collect();
    assert_eq!(rest, ["plain", "own"]);
    world.end([dispatcher]).await;
}
