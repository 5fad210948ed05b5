use std::time::Duration;

use godel_kit::{
    config::HumanDuration,
    status::{has_reason, reason},
};
use godel_proto::v1::{self, RunPhase, session_request::Message as Up, session_response::Message as Down};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::harness::{Agent, State, bind, evict, put_unit, put_unit_of, registration, says, uid, until};

fn quick(config: &mut godel_state::Config) {
    config.heartbeat_interval = HumanDuration::from_millis(50);
    config.node_lease_ttl = HumanDuration::from_millis(300);
    config.node_scan_interval = HumanDuration::from_millis(20);
    config.session_open_timeout = HumanDuration::from_millis(300);
}

async fn ready(state: &State, name: &str, wanted: bool) {
    until("readiness", async || (state.node(name).await.report.unwrap().ready == wanted).then_some(())).await;
}

async fn agent_reports(state: &State) -> Vec<v1::ListAgentReportsResponse> {
    let answer = state.state().list_agent_reports(v1::ListAgentReportsRequest {}).await.unwrap();
    answer.into_inner().collect::<Result<_, _>>().await.unwrap()
}

#[tokio::test]
async fn a_running_unit_is_assigned_reported_and_over() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let registered = state.register("n1").await;
    assert!(!state.node("n1").await.report.unwrap().ready, "not before its session");
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    ready(&state, "n1", true).await;

    dispatcher.write([put_unit(1)]).await.unwrap();
    binder.write([bind(1, &[0, 1, 2], registered.node_id)]).await.unwrap();
    match agent.next().await {
        v1::session_response::Message::Assign(assign) => {
            let [first] = &assign.assignments[..] else { panic!("{assign:?}") };
            assert_eq!(
                (first.ordinal, &first.more_ordinals[..]),
                (0, &[1, 2][..]),
                "one for all that is alike"
            );
            assert_eq!(first.demand, Some(crate::harness::demand()));
            let run = first.run.as_ref().unwrap();
            assert_eq!((run.simulated_duration_ms(), first.unit_name.as_str()), (1, "default/unit-1"));
        }
        other => panic!("{other:?}"),
    }
    let sequence = agent.report((0..3).map(|ordinal| says(1, ordinal, RunPhase::Running)).collect()).await;
    agent.acked(sequence).await;
    assert_eq!(state.row_phases(1).await, [3, 3, 3]);
    let said = agent_reports(&state).await;
    assert_eq!((said.len(), said[0].connected, said[0].running.len()), (1, true, 3));

    binder.write([evict(1, &[1])]).await.unwrap();
    assert_eq!(agent.stopped().await, [(1, 1, 70)], "with the unit's grace");
    let stopped = v1::RunStatus { exit_code: 143, restarts: 2, ..says(1, 1, RunPhase::Stopped) };
    let sequence = agent.report(vec![stopped, says(1, 2, RunPhase::Failed)]).await;
    agent.acked(sequence).await;
    assert_eq!(state.row_phases(1).await, [3, 6, 5]);
    assert_eq!(state.node("n1").await.running_units, 1);
    assert_eq!(agent_reports(&state).await[0].running.len(), 1);
    state.stop().await;
}

#[tokio::test]
async fn a_restart_count_survives_agent_and_state() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let registered = state.register("n1").await;
    dispatcher.write([put_unit(1)]).await.unwrap();
    binder.write([bind(1, &[0, 1], registered.node_id)]).await.unwrap();
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    assert_eq!(agent.assigned().await.len(), 2);
    let again = |phase, restarts| v1::RunStatus { restarts, ..says(1, 0, phase) };
    let mut phases = Vec::new();
    for (phase, restarts) in [
        (RunPhase::Running, 0),
        (RunPhase::Starting, 1),
        // Late, of the life before.
        (RunPhase::Running, 0),
        (RunPhase::Running, 1),
    ] {
        let sequence = agent.report(vec![again(phase, restarts)]).await;
        agent.acked(sequence).await;
        phases.push((state.row_phases(1).await[0], row_restarts(&state).await[0]));
    }
    assert_eq!(phases, [(3, 0), (2, 1), (2, 1), (3, 1)]);
    // Several before anything of them is durable; the other running unit is not touched.
    let reports = [(RunPhase::Starting, 2), (RunPhase::Running, 2), (RunPhase::Starting, 3)];
    let sequence = agent.report(reports.map(|(phase, restarts)| again(phase, restarts)).to_vec()).await;
    agent.acked(sequence).await;
    assert_eq!((state.row_phases(1).await, row_restarts(&state).await), (vec![2, 1], vec![3, 0]));

    // Neither the agent nor state remembers anything but the records.
    drop(agent);
    let state = state.restart().await;
    let registered = state.register("n1").await;
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    match agent.next().await {
        v1::session_response::Message::Assign(assign) => {
            let told: Vec<_> = assign.assignments.iter().map(|one| (one.ordinal, one.restarts)).collect();
            assert_eq!(told, [(0, 3), (1, 0)], "where the count goes on");
        }
        other => panic!("{other:?}"),
    }
    state.stop().await;
}

async fn row_restarts(state: &State) -> Vec<u32> {
    match state.list(&[v1::Kind::Rows]).await.remove(0).record {
        Some(v1::record::Record::Rows(rows)) => {
            rows.blocks.into_iter().flat_map(|block| block.restarts).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn assignments_carry_the_terms_for_disconnects_and_restarts() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let registered = state.register("n1").await;
    let classes = [
        (v1::WorkloadClass::Service, 2, 0),
        (v1::WorkloadClass::Stateful, 1, 55_000),
        (v1::WorkloadClass::Batch, 1, 0),
        (v1::WorkloadClass::Batch, 2, 55_000),
        (v1::WorkloadClass::Gang, 1, 55_000),
        (v1::WorkloadClass::Stream, 2, 0),
    ];
    for (unit_id, (class, min_member, _)) in (1..).zip(classes) {
        let v1::op::Op::PutUnit(record) = put_unit_of(unit_id, 2) else { unreachable!() };
        let spec = v1::UnitSpec {
            workload_class: class.into(),
            min_member: Some(min_member),
            restart_policy: v1::RestartPolicy::OnFailure.into(),
            max_restarts: Some(7),
            ..record.spec.unwrap()
        };
        let record = v1::UnitRecord { spec: Some(spec), ..record };
        dispatcher.write([v1::op::Op::PutUnit(record)]).await.unwrap();
        binder.write([bind(unit_id, &[0], registered.node_id)]).await.unwrap();
    }
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    match agent.next().await {
        v1::session_response::Message::Assign(assign) => {
            for (told, (class, _, stop_after_ms)) in assign.assignments.iter().zip(classes) {
                assert_eq!(told.stop_after_disconnect_ms, stop_after_ms, "{class:?}");
                assert_eq!((told.restart_policy(), told.max_restarts), (v1::RestartPolicy::OnFailure, 7));
            }
            assert_eq!(assign.assignments.len(), classes.len());
        }
        other => panic!("{other:?}"),
    }
    // A heartbeat is answered if it asks for it.
    agent.send(Up::Heartbeat(v1::Heartbeat::default())).await;
    agent.send(Up::Heartbeat(v1::Heartbeat { echo: 42, ..v1::Heartbeat::default() })).await;
    assert_eq!(agent.next().await, v1::session_response::Message::HeartbeatEcho(42));
    state.stop().await;
}

#[tokio::test]
async fn repeated_and_lost_messages_change_nothing() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let registered = state.register("n1").await;
    dispatcher.write([put_unit(1)]).await.unwrap();
    binder.write([bind(1, &[0, 1, 2], registered.node_id)]).await.unwrap();
    let mut first = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    assert_eq!(first.assigned().await.len(), 3);
    let sequence = first.report(vec![says(1, 0, RunPhase::Running), says(1, 1, RunPhase::Succeeded)]).await;
    let again = first.report(vec![says(1, 0, RunPhase::Running), says(1, 1, RunPhase::Succeeded)]).await;
    first.acked(again).await;
    assert_eq!((sequence, again), (1, 2));
    let revision = state.list(&[v1::Kind::Rows]).await[0].revision;

    // The stream breaks; the acknowledgement may be lost; the agent comes back with its full set.
    let running = vec![says(1, 0, RunPhase::Running), says(1, 1, RunPhase::Succeeded)];
    let mut second = Agent::open(&state.channel, "n1", registered, running).await;
    assert_eq!(second.assigned().await, [(1, 2, 0)], "only what it does not have");
    second.acked(0).await;
    assert_eq!(state.list(&[v1::Kind::Rows]).await[0].revision, revision, "nothing new, nothing written");
    let ended = first.try_next().await.unwrap_err();
    assert!(ended.code() == Code::Aborted && has_reason(&ended, "SESSION_REPLACED"), "{ended}");
    // A report that goes back, of another incarnation, and of a unit that nobody knows.
    let old = v1::RunStatus { incarnation: 4, ..says(1, 2, RunPhase::Running) };
    let statuses = vec![says(1, 0, RunPhase::Starting), old, says(77, 0, RunPhase::Running)];
    let sequence = second.report(statuses).await;
    assert_eq!(second.stopped().await, [(1, 2, 0), (77, 0, 0)], "what is not current is stopped");
    second.acked(sequence).await;
    assert_eq!(state.row_phases(1).await, [3, 4, 1]);
    state.stop().await;
}

#[tokio::test]
async fn an_agent_that_comes_back_is_compared_with_the_rows() {
    let state = State::start().await;
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    let registered = state.register("n1").await;
    dispatcher.write([put_unit(1), put_unit(2)]).await.unwrap();
    binder.write([bind(1, &[0, 1, 2, 3], registered.node_id)]).await.unwrap();
    binder.write([evict(1, &[2, 3])]).await.unwrap();
    let state = state.restart().await;
    // It runs 0 and 2 and something that is not its own; it never got 1 and 3.
    let running = [(1, 0), (1, 2), (9, 5)].map(|(unit, ordinal)| says(unit, ordinal, RunPhase::Running));
    let registered = state.register("n1").await;
    let mut agent = Agent::open(&state.channel, "n1", registered, running.to_vec()).await;
    assert_eq!(agent.stopped().await, [(1, 2, 70), (1, 3, 70), (9, 5, 0)]);
    assert_eq!(agent.assigned().await, [(1, 1, 0)]);
    agent.acked(0).await;
    assert_eq!(state.row_phases(1).await, [3, 1, 3, 6], "what was told to leave and is not there is over");
    state.stop().await;
}

#[tokio::test]
async fn a_silent_node_is_lost_and_comes_back() {
    let state = State::start_with(|config| {
        quick(config);
        config.node_lease_ttl = HumanDuration::from_millis(1_000);
    })
    .await;
    let registered = state.register("n1").await;
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    ready(&state, "n1", true).await;
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_millis(1_500) {
        agent.heartbeat(None).await;
        assert!(state.node("n1").await.report.unwrap().ready, "heartbeats keep it");
    }
    ready(&state, "n1", false).await;
    assert!(state.node("n1").await.connected, "its stream is open, but nothing is heard");
    agent.heartbeat(None).await;
    ready(&state, "n1", true).await;
    drop(agent);
    ready(&state, "n1", false).await;
    assert!(!state.node("n1").await.connected);
    let _back = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    ready(&state, "n1", true).await;
    state.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_readiness_for_a_full_lease() {
    let state = State::start().await;
    let registered = state.register("n1").await;
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    ready(&state, "n1", true).await;
    drop(agent);
    let state = state.restart().await;
    assert!(state.node("n1").await.report.unwrap().ready);
    // The epoch of the registration before the restart is good enough to come back.
    let _back = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    state.stop().await;
}

#[tokio::test]
async fn a_changed_inventory_is_recorded() {
    let state = State::start().await;
    let registered = state.register("n1").await;
    let agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    ready(&state, "n1", true).await;
    let mut report = registration("n1", &uid("n1")).report.unwrap();
    report.devices.push(v1::Device {
        kind: "gpu".to_owned(),
        model: "V100".to_owned(),
        numa_zone: 1,
        details: None,
    });
    report.node_id = 999;
    agent.send(Up::Report(report)).await;
    until("the new device", async || {
        let report = state.node("n1").await.report.unwrap();
        (report.devices.len() == 3 && report.ready && report.node_id == registered.node_id).then_some(())
    })
    .await;
    state.stop().await;
}

#[tokio::test]
async fn sessions_that_may_not_be_are_refused() {
    let state = State::start_with(quick).await;
    let first = state.register("n1").await;
    let newer = state.register("n1").await;
    let _agent = Agent::open(&state.channel, "n1", newer, Vec::new()).await;
    let unknown = v1::RegisterNodeResponse { node_id: 99, epoch: 1, ..Default::default() };
    let zero = v1::RegisterNodeResponse { node_id: 0, epoch: 1, ..Default::default() };
    let no_epoch = v1::RegisterNodeResponse { epoch: 0, ..newer };
    let nothing = vec![v1::RunStatus::default()];
    for (name, registered, running, code, why) in [
        ("n1", first, vec![], Code::FailedPrecondition, Some(reason::STALE_EPOCH)),
        ("other", newer, vec![], Code::FailedPrecondition, Some("NODE_REPLACED")),
        ("n1", unknown, vec![], Code::NotFound, Some(reason::UNKNOWN_NAME)),
        ("n1", zero, vec![], Code::InvalidArgument, None),
        ("n1", no_epoch, vec![], Code::InvalidArgument, None),
        ("n1", newer, nothing, Code::InvalidArgument, None),
    ] {
        let mut refused = Agent::try_open(&state.channel, name, registered, running).await;
        let status = refused.try_next().await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(why.is_none_or(|why| has_reason(&status, why)), "{status}");
    }
    state.stop().await;
}

#[tokio::test]
async fn a_session_opens_with_the_last_part_of_its_opening() {
    let state = State::start_with(quick).await;
    let v1::RegisterNodeResponse { node_id, epoch, .. } = state.register("n1").await;
    let part = |unit: u64, epoch: u64, more: bool| {
        let running = vec![says(unit, 0, RunPhase::Running)];
        let uid = uid("n1");
        let open = v1::SessionOpen { node_id, uid, epoch, running, more, ..v1::SessionOpen::default() };
        v1::SessionRequest { message: Some(Up::Open(open)) }
    };
    let session = async |parts: Vec<v1::SessionRequest>| {
        let requests = tokio_stream::iter(parts).chain(tokio_stream::pending());
        state.nodes().session(requests).await.unwrap().into_inner()
    };
    let mut whole = session(vec![part(1, epoch, true), part(2, epoch, true), part(3, epoch, false)]).await;
    let welcome = whole.next().await.unwrap().unwrap().message.unwrap();
    assert!(matches!(welcome, Down::Welcome(_)), "{welcome:?}");
    // Nobody knows these units: each is told to stop, so each part was heard.
    let mut stopped = Vec::new();
    while stopped.len() < 3 {
        if let Down::Stop(stop) = whole.next().await.unwrap().unwrap().message.unwrap() {
            stopped.extend(stop.stops.iter().map(|stop| stop.unit_id));
        }
    }
    stopped.sort_unstable();
    assert_eq!(stopped, [1, 2, 3]);
    let mut mixed = session(vec![part(1, epoch, true), part(2, epoch + 1, false)]).await;
    assert_eq!(mixed.next().await.unwrap().unwrap_err().code(), Code::InvalidArgument);
    state.stop().await;
}

#[tokio::test]
async fn bad_messages_end_the_session_and_nothing_else() {
    let state = State::start_with(quick).await;
    let registered = state.register("n1").await;
    let open = v1::SessionOpen {
        node_id: registered.node_id,
        uid: uid("n1"),
        epoch: 9,
        ..v1::SessionOpen::default()
    };
    let negative = crate::harness::resources(&[("cpu", -1)]);
    let bad_status = v1::RunStatusReport { sequence: 1, statuses: vec![says(1, 0, RunPhase::Unspecified)] };
    let bad_report = v1::NodeReport { devices: vec![v1::Device::default(); 65], ..v1::NodeReport::default() };
    for message in [
        Up::Open(open),
        Up::Heartbeat(v1::Heartbeat { usage: Some(negative.clone()), ..Default::default() }),
        Up::Heartbeat(v1::Heartbeat { guaranteed_usage: Some(negative), ..Default::default() }),
        Up::Status(bad_status),
        Up::Report(bad_report),
    ] {
        let registered = state.register("n1").await;
        let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
        agent.send(message).await;
        assert_eq!(agent.try_next().await.unwrap_err().code(), Code::InvalidArgument);
    }
    // Something else before open, and nothing at all.
    let first = Up::Heartbeat(v1::Heartbeat::default());
    let requests = tokio_stream::iter([v1::SessionRequest { message: Some(first) }]);
    let mut answers = state.nodes().session(requests).await.unwrap().into_inner();
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::InvalidArgument);
    let mut answers = state.nodes().session(tokio_stream::pending()).await.unwrap().into_inner();
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    state.stop().await;
}

#[tokio::test]
async fn a_stop_ends_sessions_politely() {
    let state = State::start().await;
    let registered = state.register("n1").await;
    let mut agent = Agent::open(&state.channel, "n1", registered, Vec::new()).await;
    let stopping = tokio::spawn(state.stop());
    let ended = agent.try_next().await.unwrap_err();
    assert!(ended.code() == Code::Unavailable && has_reason(&ended, reason::STOPPING), "{ended}");
    drop(agent);
    stopping.await.unwrap();
}
