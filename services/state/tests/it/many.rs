use std::time::{Duration, Instant};

use godel_proto::v1::{self, RunPhase};

use crate::harness::{Agent, State, assigned, bind, connect, put_unit, registration, says, uid, until};

const N_NODES: usize = 2_000;
const N_CONNECTIONS: usize = 8;
const N_PER_NODE: usize = 5;

/// Two thousand nodes, each a stream of its own over eight connections: everything bound is delivered,
/// reported and acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_sessions_on_few_connections() {
    let state = State::start().await;
    let mut channels = Vec::new();
    for _ in 0..N_CONNECTIONS {
        channels.push(connect(&state.uri).await);
    }
    let started = Instant::now();
    let mut opening = tokio::task::JoinSet::new();
    for n in 0..N_NODES {
        let channel = channels[n % N_CONNECTIONS].clone();
        opening.spawn(async move {
            let name = format!("node-{n:04}");
            let mut client = v1::node_service_client::NodeServiceClient::new(channel.clone());
            let registered =
                client.register_node(registration(&name, &uid(&name))).await.unwrap().into_inner();
            (registered.node_id, Agent::open(&channel, &name, registered, Vec::new()).await)
        });
    }
    let agents = opening.join_all().await;
    until("all are ready", async || {
        let ready = state.list_ready().await;
        (ready == N_NODES).then_some(())
    })
    .await;
    eprintln!("registered, opened and ready: {:?}", started.elapsed());

    let started = Instant::now();
    let mut dispatcher = state.writer("dispatcher").await;
    let mut binder = state.writer("binder").await;
    dispatcher.write([put_unit(1)]).await.unwrap();
    let mut living = tokio::task::JoinSet::new();
    let nodes: Vec<u32> = agents.iter().map(|(node, _)| *node).collect();
    for (_, mut agent) in agents {
        living.spawn(async move {
            let mut n_ended = 0;
            let mut last = 0;
            while n_ended < N_PER_NODE {
                let assigned = agent.assigned_or_acks().await;
                if assigned.is_empty() {
                    continue;
                }
                let say =
                    |phase| assigned.iter().map(|(unit, ordinal, _)| says(*unit, *ordinal, phase)).collect();
                agent.report(say(RunPhase::Running)).await;
                last = agent.report(say(RunPhase::Succeeded)).await;
                n_ended += assigned.len();
            }
            agent.acked(last).await;
            agent
        });
    }
    for round in 0..N_PER_NODE {
        let ordinals: Vec<u32> = (0..N_NODES).map(|n| u32::try_from(round * N_NODES + n).unwrap()).collect();
        let v1::op::Op::Bind(mut one) = bind(1, &ordinals, 1) else { unreachable!() };
        one.node_ids.clone_from(&nodes);
        binder.write([v1::op::Op::Bind(one)]).await.unwrap();
    }
    let living = tokio::time::timeout(Duration::from_secs(60), living.join_all()).await.expect("all in time");
    let took = started.elapsed();
    eprintln!("{} placed, delivered, reported and over: {took:?}", N_NODES * N_PER_NODE);
    let phases = state.row_phases(1).await;
    assert!(phases.len() == N_NODES * N_PER_NODE && phases.iter().all(|phase| *phase == 4));
    let status = state.state().get_store_status(v1::GetStoreStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.sessions as usize, N_NODES);
    assert!(status.commits < 2_000, "reports share commits: {}", status.commits);
    drop(living);
    state.stop().await;
}

impl State {
    async fn list_ready(&self) -> usize {
        let (mut ready, mut page_token) = (0, String::new());
        loop {
            let request =
                v1::ListNodesRequest { page_size: 1_000, page_token, ..v1::ListNodesRequest::default() };
            let page = self.nodes().list_nodes(request).await.unwrap().into_inner();
            ready += page
                .nodes
                .iter()
                .filter(|node| node.report.as_ref().is_some_and(|report| report.ready))
                .count();
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return ready;
            }
        }
    }
}

impl Agent {
    /// The next assignments; empty for an acknowledgement.
    async fn assigned_or_acks(&mut self) -> Vec<(u64, u32, u32)> {
        match self.next().await {
            v1::session_response::Message::Assign(assign) => {
                assign.assignments.iter().flat_map(assigned).collect()
            }
            v1::session_response::Message::AckSequence(_) => Vec::new(),
            other => panic!("{other:?}"),
        }
    }
}
