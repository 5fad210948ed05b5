//! One address is enough: state forwards what clients call, and services among themselves call each other.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use godel_integration_tests::{
    api::channel,
    cluster::{Cluster, shown},
    reflect::{Protocol, ReflectionClient},
    trace::{resources, unit},
    wait::{LIMIT, wait_for},
};
use godel_proto::v1::{
    self, bind_service_client::BindServiceClient, dispatch_service_client::DispatchServiceClient,
    queue_service_client::QueueServiceClient, scheduler_service_client::SchedulerServiceClient,
    unit_service_client::UnitServiceClient,
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt as _;

/// What the command line asks of all services.
const ASKED: [&str; 7] = [
    "UnitService/SubmitUnit",
    "UnitService/ScaleUnit",
    "QueueService/ListQueues",
    "DispatchService/ListSchedulers",
    "BindService/GetBinderStatus",
    "SchedulerService/Plan",
    "SchedulerService/GetSchedulerStatus",
];

/// A connection to state, which is all that a client outside has.
fn door(cluster: &Cluster) -> Channel {
    channel(&format!("http://{}", cluster.address("state"))).unwrap()
}

fn units(cluster: &Cluster) -> UnitServiceClient<Channel> {
    UnitServiceClient::new(door(cluster))
}

/// Reason and metadata of an answer.
fn reason(status: &Status, key: &str) -> (String, Option<String>) {
    let info = status.get_details_error_info();
    info.map(|mut info| (info.reason, info.metadata.remove(key))).unwrap_or_default()
}

fn web(name: &str, replicas: u32) -> v1::UnitSpec {
    v1::UnitSpec {
        workload_class: v1::WorkloadClass::Service.into(),
        ..unit(name, "", replicas, resources(100, 1), None, 0)
    }
}

/// Watches a unit through state until so many replicas are bound; the revision of that.
async fn watch_bound(cluster: &Cluster, name: &str, n_bound: u32) -> Result<u64> {
    let request = v1::WatchUnitsRequest { name: name.to_owned(), ..v1::WatchUnitsRequest::default() };
    let mut changes = units(cluster).watch_units(request).await?.into_inner();
    while let Some(change) = changes.next().await {
        let change = change?;
        let counts = change.units.first().and_then(|unit| unit.counts).unwrap_or_default();
        if counts.bound == n_bound {
            return Ok(change.revision);
        }
    }
    anyhow::bail!("the watch ended")
}

pub(crate) async fn clients_need_the_address_of_state_alone(cluster: &Cluster) {
    let door = door(cluster);
    let n_submitted = cluster.api.dispatcher_status().await.unwrap().submitted;
    let mut binder = BindServiceClient::new(door.clone());
    let status = binder.get_binder_status(v1::GetBinderStatusRequest {}).await.unwrap().into_inner();
    let n_bound = status.bound;
    // Calls, a stream of answers, and a stream in both directions.
    let mut units = units(cluster);
    let n_units = units.list_units(v1::ListUnitsRequest::default()).await.unwrap().into_inner().total;
    units.submit_unit(v1::SubmitUnitRequest { unit: Some(web("one", 3)) }).await.unwrap();
    tokio::time::timeout(LIMIT, watch_bound(cluster, "one", 3)).await.expect("bound replicas").unwrap();
    let bulk =
        (0..50).map(|index| v1::SubmitUnitsRequest { index, unit: Some(web(&format!("bulk-{index}"), 1)) });
    let mut answers = units.submit_units(tokio_stream::iter(bulk)).await.unwrap().into_inner();
    let mut durable_below = 0;
    while durable_below < 50 {
        let answer = answers.next().await.expect("an answer").unwrap();
        assert!(answer.errors.is_empty(), "{answer:?}");
        durable_below = durable_below.max(answer.durable_below);
    }
    let listed = units.list_units(v1::ListUnitsRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.total, n_units + 51);
    // Who answers is who is asked for.
    QueueServiceClient::new(door.clone()).list_queues(v1::ListQueuesRequest::default()).await.unwrap();
    let mut dispatch = DispatchServiceClient::new(door.clone());
    let status =
        dispatch.get_dispatcher_status(v1::GetDispatcherStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.submitted, n_submitted + 51);
    // It counts what is durable, and others may have read that before.
    wait_for("the binder to count three more", LIMIT, async || {
        let request = v1::GetBinderStatusRequest {};
        let status = binder.clone().get_binder_status(request).await?.into_inner();
        ensure!(status.bound >= n_bound + 3, "{n_bound} before: {status:?}");
        Ok(())
    })
    .await;
    let mut schedulers = SchedulerServiceClient::new(door.clone());
    for name in ["scheduler-1", "scheduler-2", "scheduler-3"] {
        let mut request = Request::new(v1::GetSchedulerStatusRequest {});
        request.metadata_mut().insert("godel-scheduler", name.parse().unwrap());
        let status = schedulers.get_scheduler_status(request).await.unwrap().into_inner();
        assert_eq!(status.name, name);
    }
    let any = schedulers.get_scheduler_status(v1::GetSchedulerStatusRequest {}).await.unwrap().into_inner();
    assert!(any.name.starts_with("scheduler-"), "{any:?}");
    let mut request = Request::new(v1::GetSchedulerStatusRequest {});
    request.metadata_mut().insert("godel-scheduler", "nobody".parse().unwrap());
    let nobody = schedulers.get_scheduler_status(request).await.unwrap_err();
    assert_eq!(nobody.code(), Code::Unavailable);
    assert_eq!(reason(&nobody, "lease"), ("NO_LEADER".to_owned(), Some("scheduler/nobody".to_owned())));
    // What members call among themselves is theirs.
    let evict = binder.evict_running_units(v1::EvictRunningUnitsRequest::default()).await.unwrap_err();
    assert_eq!(evict.code(), Code::Unimplemented);
    assert!(evict.message().contains("a call between members"), "{evict}");
    // Answers of leaders arrive as they are.
    let unknown = v1::GetUnitRequest { name: "nothing".to_owned(), ..v1::GetUnitRequest::default() };
    assert_eq!(units.get_unit(unknown).await.unwrap_err().code(), Code::NotFound);
    let all = ReflectionClient::new(door, Protocol::V1).list_services().await.unwrap();
    for service in ["UnitService", "QueueService", "BindService", "SchedulerService", "StateService"] {
        assert!(all.contains(&format!("godel.v1.{service}")), "{service} in {all:?}");
    }
}

/// Calls of a method that state has finished, whoever answered them.
async fn n_finished(cluster: &Cluster, method: &str) -> Result<u64> {
    let metrics = cluster.metrics("state").await?;
    let label = format!("{method}\"");
    let counts = metrics.lines().filter_map(|line| {
        let is_counted = line.starts_with("godel_rpc_finished_total") && line.contains(&label);
        if is_counted { line.rsplit(' ').next()?.parse::<u64>().ok() } else { None }
    });
    Ok(counts.sum())
}

pub(crate) async fn the_command_line_speaks_to_state_alone(cluster: &Cluster) {
    let mut before = Vec::new();
    for method in ASKED {
        before.push(n_finished(cluster, method).await.unwrap());
    }
    for args in [
        &["unit", "submit", "--name=said", "--class=service", "--replicas=2", "--cpu=100m", "--memory=1Mi"][..],
        &["unit", "wait", "said", "--for=phase=running", "--timeout=60s"],
        &["unit", "scale", "said", "--replicas=4"],
        &["queue", "list"],
        &["scheduler", "list"],
        &["status"],
        &["unit", "plan", "--name=x", "--class=service", "--replicas=1", "--cpu=1", "--memory=1Mi"],
        &["audit"],
    ] {
        let output = cluster.godel(args);
        assert!(output.status.success(), "{args:?}: {}", shown(&output));
    }
    for (method, n_before) in ASKED.into_iter().zip(before) {
        // A call is counted once its answer is out.
        wait_for(&format!("{method} to have gone through state"), LIMIT, async || {
            let n = n_finished(cluster, method).await?;
            ensure!(n > n_before, "{n} calls, {n_before} before");
            Ok(())
        })
        .await;
    }
}

pub(crate) async fn a_leader_that_dies_is_followed_through_state(cluster: &mut Cluster) {
    let mut units = units(cluster);
    units.submit_unit(v1::SubmitUnitRequest { unit: Some(web("before", 2)) }).await.unwrap();
    let request = v1::WatchUnitsRequest { name: "before".to_owned(), ..v1::WatchUnitsRequest::default() };
    let mut changes = units.watch_units(request).await.unwrap().into_inner();
    changes.next().await.expect("the unit").unwrap();
    let leader = cluster.leader("dispatcher").await;
    cluster.kill(&leader);
    // An open stream ends with an answer that says to open it again, and who is away.
    let ended = loop {
        match tokio::time::timeout(LIMIT, changes.next()).await.expect("an end").expect("a status") {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    let address = format!("http://{}", cluster.address(&leader));
    assert_eq!(reason(&ended, "address"), ("UNREACHABLE".to_owned(), Some(address)));
    // Whatever is asked meanwhile is refused for now, until the other one leads.
    wait_for("a submission", LIMIT, async || {
        match units.clone().submit_unit(v1::SubmitUnitRequest { unit: Some(web("after", 2)) }).await {
            Ok(_) => Ok(()),
            Err(status) => {
                // A dispatcher that has just begun to lead reads first, and gives no reason.
                let known = ["", "UNREACHABLE", "NO_LEADER", "NOT_LEADER"].contains(&&*reason(&status, "").0);
                assert!(status.code() == Code::Unavailable && known, "{status:?}");
                Err(status)
            }
        }
    })
    .await;
    tokio::time::timeout(LIMIT, watch_bound(cluster, "after", 2)).await.expect("bound replicas").unwrap();
    let scaled = cluster.godel(&["unit", "scale", "after", "--replicas=3"]);
    assert!(scaled.status.success(), "{}", shown(&scaled));
    tokio::time::timeout(LIMIT, watch_bound(cluster, "after", 3)).await.expect("bound replicas").unwrap();

    let last = cluster.leader("dispatcher").await;
    let address = cluster.address(&last);
    cluster.kill(&last);
    let output = cluster.godel(&["unit", "list"]);
    let text = shown(&output);
    let is_named = text.contains(&format!("dispatcher at http://{address} does not answer"))
        || text.contains("no dispatcher leads");
    assert!(output.status.code() == Some(3) && is_named, "{text}");
    assert!(!text.contains("state at http://127.0.0.1:7700 does not"), "{text}");
    wait_for("nobody leads", LIMIT, async || {
        let failed = units.clone().list_units(v1::ListUnitsRequest::default()).await.err();
        let failed = failed.context("somebody answers")?;
        assert_eq!(failed.code(), Code::Unavailable, "{failed}");
        ensure!(
            reason(&failed, "lease") == ("NO_LEADER".to_owned(), Some("dispatcher".to_owned())),
            "{failed}"
        );
        Ok(())
    })
    .await;
    let output = cluster.godel(&["unit", "list"]);
    let text = shown(&output);
    assert!(output.status.code() == Some(3) && text.contains("no dispatcher leads; state at"), "{text}");
    let output = cluster.godel(&["node", "list"]);
    assert!(output.status.success(), "state answers: {}", shown(&output));
    for name in [leader, last] {
        cluster.restart(&name);
    }
    cluster.wait_ready().await;
}

pub(crate) async fn forwarded_calls_end_at_their_limits(cluster: &mut Cluster) {
    cluster.kill("state");
    cluster.restart_with("state", &[("GODEL_STATE__FORWARDED_MAX".to_owned(), "2".to_owned())]);
    cluster.wait_ready().await;
    let mut units = units(cluster);
    let watch = |units: &UnitServiceClient<Channel>| {
        let mut units = units.clone();
        async move { units.watch_units(v1::WatchUnitsRequest::default()).await }
    };
    // Of two streams one connection may have one.
    let first = watch(&units).await.unwrap();
    let refused = watch(&units).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused, "").0.as_str()), (Code::ResourceExhausted, "OVERLOADED"));
    let other = UnitServiceClient::new(door(cluster));
    let second = watch(&other).await.unwrap();
    units.list_units(v1::ListUnitsRequest::default()).await.expect("calls have places of their own");
    drop((first, second));
    wait_for("a place", LIMIT, async || watch(&units).await.map(drop)).await;

    // A leader that hangs costs the caller its own deadline and no more.
    let leader = cluster.leader("dispatcher").await;
    cluster.freeze(&leader);
    let mut request = Request::new(v1::ListUnitsRequest::default());
    request.set_timeout(Duration::from_millis(300));
    let late = tokio::time::timeout(LIMIT, units.list_units(request)).await.expect("an answer").unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late}");
    cluster.thaw(&leader);
    cluster.kill("state");
    cluster.restart("state");
    cluster.wait_ready().await;
}

pub(crate) async fn services_say_whether_they_can_work(cluster: &mut Cluster) {
    let health = |cluster: &Cluster, name: &str| {
        let address = cluster.metrics_address(name).unwrap().to_string();
        let output = cluster.godel(&["health", &address]);
        (output.status.success(), shown(&output))
    };
    let members = ["dispatcher-1", "dispatcher-2", "binder-1", "binder-2", "scheduler-1", "scheduler-3"];
    for name in members.into_iter().chain(["state"]) {
        // A standby is as well as a leader.
        wait_for(name, LIMIT, async || {
            let (is_well, said) = health(cluster, name);
            ensure!(is_well, "{said}");
            Ok(())
        })
        .await;
    }
    cluster.kill("state");
    let (is_well, said) = health(cluster, "state");
    assert!(!is_well && said.contains("nothing answers /healthz"), "{said}");
    for name in members {
        wait_for(name, LIMIT, async || {
            let (is_well, said) = health(cluster, name);
            let is_so =
                !is_well && (said.contains("state has not answered") || said.contains("not registered"));
            ensure!(is_so, "{said}");
            Ok(())
        })
        .await;
    }
    cluster.restart("state");
    for name in members {
        wait_for(name, LIMIT, async || {
            let (is_well, said) = health(cluster, name);
            ensure!(is_well, "{said}");
            Ok(())
        })
        .await;
    }
    cluster.wait_ready().await;
}

pub(crate) async fn those_who_do_not_read_hold_up_nobody(cluster: &Cluster) {
    const N_UNITS: u64 = 200;
    const N_WATCHES: usize = 100;
    let mut units = units(cluster);
    let n_units = units.list_units(v1::ListUnitsRequest::default()).await.unwrap().into_inner().total;
    // A first message of a watch that is more than the window of a stream.
    let long = |index| {
        let mut spec = web(&format!("long-{index}"), 1);
        let template = spec.task_groups[0].template.get_or_insert_default();
        let run = template.run.get_or_insert_default();
        run.env.insert("LONG".to_owned(), "x".repeat(4_000));
        v1::SubmitUnitsRequest { index, unit: Some(spec) }
    };
    let all: Vec<_> = (0..N_UNITS).map(long).collect();
    let mut answers = units.submit_units(tokio_stream::iter(all)).await.unwrap().into_inner();
    while answers.next().await.expect("an answer").unwrap().durable_below < N_UNITS {}
    // More of them than fit into the window that a connection usually has.
    let mut unread = Vec::new();
    for _ in 0..N_WATCHES {
        unread.push(units.watch_units(v1::WatchUnitsRequest::default()).await.unwrap());
    }
    // All of them and this one come over one connection from the dispatcher.
    let mut other = UnitServiceClient::new(door(cluster));
    for _ in 0..20 {
        let page =
            other.list_units(v1::ListUnitsRequest { page_size: 100, ..v1::ListUnitsRequest::default() });
        let listed = tokio::time::timeout(LIMIT, page).await.expect("an answer").unwrap().into_inner();
        assert_eq!(u64::from(listed.total), u64::from(n_units) + N_UNITS);
    }
    drop(unread);
}
