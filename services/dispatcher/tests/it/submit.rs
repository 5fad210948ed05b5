//! Submission: durability, duplicates, violations, streams, limits; reading units.

use std::collections::BTreeSet;

use godel_kit::{config::HumanDuration, status};
use godel_proto::v1;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::world::{LONG, Process, World, eventually, fields, unit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_is_durable_listed_and_found_again() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    world.node("n1", 32_000).await;
    let web = unit("web", 2);
    let uid = web.meta.as_ref().unwrap().uid.clone();
    eventually("the dispatcher knows the node", || async {
        let probe = dispatcher.submit(unit(&uuid::Uuid::now_v7().to_string(), 1)).await;
        probe.infeasible.is_empty().then_some(())
    })
    .await;

    let first = dispatcher.submit(web.clone()).await;
    assert!(first.unit_id > 0 && first.revision > 0 && !first.duplicate);
    assert_eq!((first.uid.as_str(), first.infeasible.as_str()), (uid.as_str(), ""));
    assert!(first.defaults.contains(&"min_member = 1".to_owned()), "{:?}", first.defaults);
    let second = dispatcher.submit(web.clone()).await;
    assert!(second.duplicate && second.unit_id == first.unit_id && second.revision == first.revision);

    let mut other = web.clone();
    other.meta.as_mut().unwrap().uid = uuid::Uuid::now_v7().to_string();
    let refused =
        dispatcher.units().submit_unit(v1::SubmitUnitRequest { unit: Some(other) }).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(status::has_reason(&refused, status::reason::DUPLICATE_NAME));

    let mut large = unit("large", 1);
    let demand = large.task_groups[0].template.as_mut().unwrap().demand.as_mut().unwrap();
    demand.requests.as_mut().unwrap().amounts.insert("cpu".to_owned(), 64_000);
    let flagged = dispatcher.submit(large).await;
    assert_eq!(flagged.infeasible, "task group `main`: asks for 64 cpu; the largest node has 32");
    let shown = dispatcher.phase("large", v1::UnitPhase::Unschedulable).await;
    assert_eq!(shown.refusals.unwrap().reasons[0].plugin, "admission");

    // By name, uid and unique prefixes.
    for name in ["web", "we", uid.as_str(), &uid[..35]] {
        let shown = dispatcher.get(name).await;
        let (spec, meta) = (shown.unit.clone().unwrap().spec.unwrap(), first.revision);
        let found = spec.meta.unwrap();
        assert_eq!(
            (found.name.as_str(), found.create_revision, found.revision),
            ("web", meta, meta),
            "{name}"
        );
        assert!(found.create_time_ms > 0);
        assert_eq!(shown.running_units.len(), 2);
        assert_eq!(shown.unit.unwrap().counts.unwrap().pending, 2);
    }
    let get = |name: &str| v1::GetUnitRequest { name: name.to_owned(), ..Default::default() };
    let missing = dispatcher.units().get_unit(get("nope")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert_eq!(dispatcher.units().get_unit(get("")).await.unwrap_err().code(), Code::InvalidArgument);
    world.end([dispatcher]).await;
}

/// The same again is the first one's answer, whatever became of the unit; anything else under its uid is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_uid_belongs_to_one_unit() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let web = unit("web", 2);
    let uid = web.meta.as_ref().unwrap().uid.clone();
    assert!(!dispatcher.submit(web.clone()).await.duplicate);
    let wider =
        v1::ScaleUnitRequest { name: "web".to_owned(), replicas: 5, ..v1::ScaleUnitRequest::default() };
    dispatcher.units().scale_unit(wider).await.unwrap();
    assert!(dispatcher.submit(web.clone()).await.duplicate);
    let mut renamed = web.clone();
    renamed.meta.as_mut().unwrap().name = "web2".to_owned();
    let mut larger = web.clone();
    larger.task_groups[0].replicas = 5;
    let demand = larger.task_groups[0].template.as_mut().unwrap().demand.as_mut().unwrap();
    demand.requests.as_mut().unwrap().amounts.insert("fpga".to_owned(), 1);
    for (unit, expected) in
        [(renamed, "differs in name:"), (larger, "differs in replicas, template.requests.fpga:")]
    {
        let request = v1::SubmitUnitRequest { unit: Some(unit) };
        let refused = dispatcher.units().submit_unit(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert!(status::has_reason(&refused, status::reason::DUPLICATE_UID));
        let expected = format!("uid {uid} is that of unit default/web; this one {expected}");
        assert!(refused.message().starts_with(&expected), "{}", refused.message());
    }
    // Also on a stream.
    let items = [v1::SubmitUnitsRequest { index: 0, unit: Some(web.clone()) }];
    let mut answers = dispatcher.units().submit_units(tokio_stream::iter(items)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!((answer.durable_below, answer.errors.len()), (1, 0));
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_wrong_is_named_at_once() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let mut bad = unit("Web", 0);
    bad.workload_class = 77;
    bad.queue = "/".into();
    let refused =
        dispatcher.units().submit_unit(v1::SubmitUnitRequest { unit: Some(bad) }).await.unwrap_err();
    let expect = ["meta.name", "workload_class", "task_groups[0].replicas", "queue"].map(str::to_owned);
    assert_eq!(fields(&refused), (Code::InvalidArgument, expect.to_vec()));
    let none = dispatcher.units().submit_unit(v1::SubmitUnitRequest { unit: None }).await.unwrap_err();
    assert_eq!(fields(&none), (Code::InvalidArgument, vec!["unit".to_owned()]));
    let mut big = unit("big", 1);
    big.meta.as_mut().unwrap().labels.insert("a".into(), "x".repeat(70_000));
    let refused =
        dispatcher.units().submit_unit(v1::SubmitUnitRequest { unit: Some(big) }).await.unwrap_err();
    assert!(fields(&refused).1.contains(&"unit".to_owned()), "{refused:?}");
    let list =
        v1::ListUnitsRequest { page_size: 5_000, page_token: "x".into(), phase: 99, ..Default::default() };
    let refused = dispatcher.units().list_units(list).await.unwrap_err();
    assert_eq!(fields(&refused).1, ["page_size", "page_token", "phase"]);
    let mut torn = unit("torn", 1);
    let mut second = torn.task_groups[0].clone();
    second.name = "second".into();
    let selector = &mut second.template.as_mut().unwrap().node_selector;
    selector.insert(godel_domain::sub_cluster::KEY.into(), "gpu".into());
    torn.task_groups.push(second);
    let refused =
        dispatcher.units().submit_unit(v1::SubmitUnitRequest { unit: Some(torn) }).await.unwrap_err();
    assert_eq!(fields(&refused), (Code::InvalidArgument, vec!["task_groups".to_owned()]));
    assert!(refused.message().contains("`second` sub-cluster `gpu`"), "{refused:?}");
    let mode = v1::SetPartitionModeRequest { mode: 99, automatic: false };
    let refused = dispatcher.dispatch().set_partition_mode(mode).await.unwrap_err();
    assert_eq!(fields(&refused), (Code::InvalidArgument, vec!["mode".to_owned()]));
    world.end([dispatcher]).await;
}

/// Sends items on one stream and reads until the watermark or the end.
async fn stream(
    to: &Process,
    items: Vec<v1::SubmitUnitsRequest>,
) -> (u64, Vec<v1::SubmitError>, Result<(), tonic::Status>) {
    let n_items = items.len() as u64;
    let (sender, receiver) = mpsc::channel(64);
    let sending = tokio::spawn(async move {
        for item in items {
            if sender.send(item).await.is_err() {
                return;
            }
        }
    });
    let mut answers = to.units().submit_units(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let (mut below, mut errors) = (0, Vec::new());
    let end = loop {
        match timeout(LONG, answers.message()).await.expect("an answer") {
            Ok(Some(answer)) => {
                assert!(answer.durable_below >= below && answer.durable_below <= n_items);
                below = answer.durable_below;
                errors.extend(answer.errors);
            }
            Ok(None) => break Ok(()),
            Err(status) => break Err(status),
        }
    };
    sending.await.unwrap();
    (below, errors, end)
}

fn items(units: impl IntoIterator<Item = v1::UnitSpec>) -> Vec<v1::SubmitUnitsRequest> {
    (0..).zip(units).map(|(index, unit)| v1::SubmitUnitsRequest { index, unit: Some(unit) }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_makes_all_good_items_durable_and_names_the_bad_ones() {
    let world = World::new().await;
    // A queue that pauses the stream many times.
    let config = godel_dispatcher::Config { admission_queue_kib: 64, ..world.config() };
    let dispatcher = world.dispatcher_with(config).await;
    dispatcher.leads().await;
    let mut units: Vec<v1::UnitSpec> = (0..2_000).map(|number| unit(&format!("u{number:04}"), 1)).collect();
    units[7].task_groups.clear();
    units[1_999].meta.as_mut().unwrap().name = "u0000".into();
    units[100] = units[99].clone();
    units[200].queue = "none".into();
    units[300].priority_class = "none".into();
    let (below, mut errors, end) = stream(&dispatcher, items(units.clone())).await;
    end.unwrap();
    assert_eq!(below, 2_000);
    errors.sort_by_key(|error| error.index);
    let shown: Vec<_> = errors.iter().map(|error| (error.index, Code::from(error.code))).collect();
    let expect = [
        (7, Code::InvalidArgument),
        (200, Code::FailedPrecondition),
        (300, Code::FailedPrecondition),
        (1_999, Code::AlreadyExists),
    ];
    assert_eq!(shown, expect);
    assert_eq!(errors[0].violations[0].field, "task_groups");
    assert_eq!(dispatcher.status().await.units, 1_995);
    // The same again: nothing new.
    let (below, errors, end) = stream(&dispatcher, items(units)).await;
    end.unwrap();
    assert_eq!((below, errors.len()), (2_000, 4));
    let status = dispatcher.status().await;
    assert_eq!((status.units, status.queued_units, status.repairs), (1_995, 1_995, 0));

    let mut seen = BTreeSet::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListUnitsRequest { page_size: 300, page_token, ..Default::default() };
        let page = dispatcher.units().list_units(request).await.unwrap().into_inner();
        assert_eq!(page.total, 1_995);
        for unit in page.units {
            let name = unit.spec.unwrap().meta.unwrap().name;
            assert!(seen.last().is_none_or(|last| *last < name), "in order");
            seen.insert(name);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen.len(), 1_995);
    let running = v1::ListUnitsRequest { phase: v1::UnitPhase::Running.into(), ..Default::default() };
    assert_eq!(dispatcher.units().list_units(running).await.unwrap().into_inner().total, 0);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_with_a_wrong_index_ends() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let mut items = items([unit("a", 1), unit("b", 1)]);
    items[1].index = 5;
    let (below, errors, end) = stream(&dispatcher, items).await;
    assert_eq!((below, errors.len()), (1, 0));
    assert_eq!(fields(&end.unwrap_err()), (Code::InvalidArgument, vec!["index".to_owned()]));
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_submissions_of_one_uid_make_one_unit() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let unit = unit("once", 1);
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let (mut client, unit) = (dispatcher.units(), unit.clone());
        calls.spawn(async move {
            client.submit_unit(v1::SubmitUnitRequest { unit: Some(unit) }).await.unwrap().into_inner()
        });
    }
    let answers = calls.join_all().await;
    assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1);
    let distinct: BTreeSet<_> = answers.iter().map(|answer| (answer.unit_id, answer.revision)).collect();
    assert_eq!(distinct.len(), 1);
    world.end([dispatcher]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_refuses_with_a_hint() {
    // Long enough that the leader still leads while state is gone.
    let world = World::with_lease(HumanDuration::from_secs(60)).await;
    let config = godel_dispatcher::Config { admission_queue_kib: 64, ..world.config() };
    let dispatcher = world.dispatcher_with(config).await;
    dispatcher.leads().await;
    world.state_stop.cancel();
    let World { stop, state_task, .. } = world;
    state_task.await.unwrap();
    let mut calls = JoinSet::new();
    for number in 0..64 {
        let mut client = dispatcher.units();
        let unit = unit(&format!("u{number}"), 1);
        calls.spawn(async move { client.submit_unit(v1::SubmitUnitRequest { unit: Some(unit) }).await });
    }
    let refused = eventually("the queue is full", || async {
        let unit = unit("late", 1);
        let call = dispatcher.units().submit_unit(v1::SubmitUnitRequest { unit: Some(unit) }).await;
        call.err().filter(|refused| refused.code() == Code::ResourceExhausted)
    })
    .await;
    assert!(
        status::retry_after(&refused).is_some() && status::has_reason(&refused, status::reason::OVERLOADED)
    );
    drop(calls);
    dispatcher.stop.cancel();
    dispatcher.task.await.unwrap();
    stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_streams_end_with_a_reason_when_the_leader_goes() {
    let world = World::new().await;
    let dispatcher = world.dispatcher().await;
    dispatcher.leads().await;
    let (sender, receiver) = mpsc::channel(4);
    sender.send(items([unit("a", 1)]).remove(0)).await.unwrap();
    let mut answers =
        dispatcher.units().submit_units(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let first = timeout(LONG, answers.message()).await.unwrap().unwrap().unwrap();
    assert_eq!((first.durable_below, first.errors.len()), (1, 0));
    let watch = v1::WatchUnitsRequest::default();
    let mut watch = dispatcher.units().watch_units(watch).await.unwrap().into_inner();
    assert_eq!(timeout(LONG, watch.message()).await.unwrap().unwrap().unwrap().units.len(), 1);
    dispatcher.stop.cancel();
    let submitting = timeout(LONG, answers.message()).await.unwrap().unwrap_err();
    assert_eq!(submitting.code(), Code::Unavailable);
    while let Some(message) = timeout(LONG, watch.message()).await.unwrap().transpose() {
        if let Err(status) = message {
            assert_eq!(status.code(), Code::Unavailable);
            break;
        }
    }
    drop(sender);
    world.end([dispatcher]).await;
}
