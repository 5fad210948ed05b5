//! Which processes really run: asked of those nodes alone that run any, when somebody wants to know.

use godel_proto::v1::{self, session_request::Message as Up, session_response::Message as Down};
use tokio_stream::StreamExt as _;

use crate::harness::{Agent, State, registration, uid};

async fn connect(state: &State, name: &str, runtime: v1::NodeRuntime) -> Agent {
    let mut registration = registration(name, &uid(name));
    registration.report.as_mut().unwrap().runtime = runtime.into();
    let registered = state.nodes().register_node(registration).await.unwrap().into_inner();
    Agent::open(&state.channel, name, registered, Vec::new()).await
}

/// The id of the question that an agent is asked.
async fn asked(agent: &mut Agent) -> u64 {
    match agent.next().await {
        Down::Processes(v1::ProcessesRequest { request_id }) => request_id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nodes_with_processes_say_what_runs_and_no_others() {
    let state = State::start().await;
    let mut real = connect(&state, "real", v1::NodeRuntime::Processes).await;
    let mut silent = connect(&state, "silent", v1::NodeRuntime::Containers).await;
    let mut simulated = connect(&state, "simulated", v1::NodeRuntime::Simulated).await;
    let mut nodes = state.nodes();
    let mut answers = nodes.list_run_processes(v1::ListRunProcessesRequest {}).await.unwrap().into_inner();
    let request_id = asked(&mut real).await;
    assert_eq!(asked(&mut silent).await, request_id);
    let running = vec![v1::RunProcesses { unit_id: 7, ordinal: 1, incarnation: 2, processes: 3 }];
    let orphans = vec![v1::OrphanProcess { pid: 42, name: "sleep".to_owned(), ..Default::default() }];
    let report = v1::ProcessesReport { request_id, running, orphans, failure: String::new() };
    // An answer to another question, and a second answer, are nobody's.
    let other = v1::ProcessesReport { request_id: request_id ^ 1, ..Default::default() };
    for report in [&other, &report, &other, &report] {
        real.send(Up::Processes(report.clone())).await;
    }
    let first = answers.next().await.unwrap().unwrap();
    assert_eq!((first.node.as_str(), &first.running), ("real", &report.running));
    assert_eq!((&first.orphans, first.failure.as_str()), (&report.orphans, ""));
    let second = answers.next().await.unwrap().unwrap();
    assert_eq!((second.node.as_str(), second.running.len()), ("silent", 0));
    assert!(second.failure.contains("has not answered"), "{second:?}");
    assert!(answers.next().await.is_none());
    // The first thing that a simulated node hears is something else.
    let kept = v1::KeptLogs { unit_ids: vec![9] };
    simulated.send(Up::KeptLogs(kept)).await;
    assert!(matches!(simulated.next().await, Down::ForgetLogs(_)));
    state.stop().await;
}
