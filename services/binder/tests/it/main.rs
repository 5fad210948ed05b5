//! The binder against a real state service: bindings, conflicts, reconnects, leader change, evictions.
#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

mod decide;
mod failover;
#[allow(dead_code, reason = "shared by two test crates that use different parts")]
mod harness;
mod moves;
mod preempt;
mod queues;

use godel_kit::{
    CancellationToken,
    client::{Channel, channel},
    status,
};
use godel_proto::v1::{self, bind_service_client::BindServiceClient, decide_request, decide_response};
use harness::{State, client_config, eventually, lease_config, listener, server_config, soon};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// A binder in this process.
struct Binder {
    url: String,
    client: BindServiceClient<Channel>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), godel_binder::Error>>,
}

impl Binder {
    /// Calls the state service at `state_url`.
    async fn start(state_url: &str) -> Self {
        let listener = listener().await;
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = godel_binder::Config {
            server: server_config(),
            client: client_config(state_url),
            lease: lease_config(),
            ..godel_binder::Config::default()
        };
        let deps = godel_binder::Deps { listener: Some(listener), ..godel_binder::Deps::default() };
        let stop = CancellationToken::new();
        let task = tokio::spawn(godel_binder::serve(config, deps, stop.clone()));
        let client = BindServiceClient::new(channel(&url, &client_config(state_url)).unwrap());
        Self { url, client, stop, task }
    }

    async fn status(&self) -> Option<v1::GetBinderStatusResponse> {
        Some(self.client.clone().get_binder_status(v1::GetBinderStatusRequest {}).await.ok()?.into_inner())
    }

    /// Waits until it leads.
    async fn leads(&self) -> u64 {
        eventually("the binder leads", || async {
            self.status().await.filter(|status| status.leader).map(|status| status.epoch)
        })
        .await
    }

    /// Stops it and gives the lease back.
    async fn stop(self) {
        self.stop.cancel();
        soon("the binder stops", self.task).await.unwrap().unwrap();
    }

    async fn connect(&self, scheduler: &str, epoch: u64) -> Stream {
        self.try_connect(scheduler, epoch).await.unwrap()
    }

    async fn try_connect(&self, scheduler: &str, epoch: u64) -> Result<Stream, Status> {
        let (requests, outgoing) = mpsc::channel(16);
        let open = v1::DecideOpen { scheduler: scheduler.to_owned(), epoch, store_id: 0 };
        let open = v1::DecideRequest { message: Some(decide_request::Message::Open(open)) };
        requests.send(open).await.unwrap();
        let responses = self.client.clone().decide(ReceiverStream::new(outgoing)).await?.into_inner();
        let mut stream = Stream { requests, responses };
        match stream.next().await? {
            decide_response::Message::Welcome(_) => Ok(stream),
            decide_response::Message::Outcomes(_) => panic!("outcomes before the welcome"),
        }
    }

    async fn evict(&self, evictions: Vec<v1::Eviction>) -> Result<u64, Status> {
        let request = v1::EvictRunningUnitsRequest { evictions, ..Default::default() };
        Ok(self.client.clone().evict_running_units(request).await?.into_inner().revision)
    }
}

/// A scheduler's stream.
struct Stream {
    requests: mpsc::Sender<v1::DecideRequest>,
    responses: Streaming<v1::DecideResponse>,
}

impl Stream {
    async fn send(&self, decisions: Vec<v1::Decision>) {
        let message = Some(decide_request::Message::Decisions(v1::Decisions { decisions }));
        self.requests.send(v1::DecideRequest { message }).await.unwrap();
    }

    async fn next(&mut self) -> Result<decide_response::Message, Status> {
        let message = soon("the binder answers", self.responses.message()).await?;
        message
            .and_then(|response| response.message)
            .ok_or_else(|| Status::unavailable("the stream was ended"))
    }

    /// The next `n` outcomes, by decision.
    async fn outcomes(&mut self, n: usize) -> Vec<v1::Outcome> {
        let mut outcomes = Vec::new();
        while outcomes.len() < n {
            match self.next().await.unwrap() {
                decide_response::Message::Outcomes(more) => outcomes.extend(more.outcomes),
                decide_response::Message::Welcome(_) => panic!("a second welcome"),
            }
        }
        assert_eq!(outcomes.len(), n);
        outcomes.sort_by_key(|outcome| outcome.decision_id);
        outcomes
    }

    async fn decide(&mut self, decision: v1::Decision) -> v1::Outcome {
        self.send(vec![decision]).await;
        self.outcomes(1).await.remove(0)
    }
}

/// Places `(ordinal, node)` pairs of the first group, incarnation 0.
fn place(decision_id: u64, unit_id: u64, spec_revision: u64, places: &[(u32, u32)]) -> v1::Decision {
    v1::Decision {
        decision_id,
        unit_id,
        spec_revision,
        nodes_as_of: 0,
        groups: vec![v1::GroupPlacement {
            ordinals: places.iter().map(|place| place.0).collect(),
            node_ids: places.iter().map(|place| place.1).collect(),
            ..v1::GroupPlacement::default()
        }],
        claim: None,
    }
}

fn reasons(outcome: &v1::Outcome) -> Vec<(v1::RejectionReason, Vec<u32>)> {
    outcome.rejections.iter().map(|rejection| (rejection.reason(), rejection.ordinals.clone())).collect()
}

/// A state with `n_nodes` ready nodes of 1,000 milli-cores, where the schedulers s1 and s2 are registered under
/// epoch 1.
async fn world(n_nodes: usize) -> (State, Vec<harness::Agent>) {
    let state = State::start().await;
    for scheduler in ["scheduler/s1", "scheduler/s2"] {
        assert_eq!(state.acquire(scheduler, "test", "http://127.0.0.1:1").await, 1);
    }
    let mut agents = Vec::new();
    for idx in 0..n_nodes {
        agents.push(harness::Agent::start(&state, &format!("n{idx}"), 1_000).await);
    }
    (state, agents)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_named() {
    let (state, _agents) = world(0).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;

    let first = |message| v1::DecideRequest { message };
    let open = |scheduler: &str, epoch| {
        decide_request::Message::Open(v1::DecideOpen { scheduler: scheduler.to_owned(), epoch, store_id: 0 })
    };
    let cases = [
        first(None),
        first(Some(decide_request::Message::Decisions(v1::Decisions::default()))),
        first(Some(open("", 1))),
        first(Some(open("s1", 0))),
    ];
    for case in cases {
        let (requests, outgoing) = mpsc::channel(1);
        requests.send(case.clone()).await.unwrap();
        let mut responses =
            binder.client.clone().decide(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        let failure = soon("the stream is refused", responses.message()).await.unwrap_err();
        assert_eq!(status::violations_of(&failure)[0].path, "open", "{case:?}");
    }

    let failure = binder
        .evict(vec![v1::Eviction { unit_id: 1, ordinals: vec![1], reason: 77, ..Default::default() }])
        .await;
    assert!(!status::violations_of(&failure.unwrap_err()).is_empty());
    let _open = binder.connect("s1", 1).await;
    let failure = binder.try_connect("s1", 2).await.err().unwrap();
    assert!(status::has_reason(&failure, status::reason::STALE_EPOCH), "nobody has it yet: {failure:?}");
    assert_eq!(state.acquire("scheduler/s1", "test", "http://127.0.0.1:1").await, 2);
    let failure = binder.try_connect("s1", 1).await.err().unwrap();
    assert!(status::has_reason(&failure, status::reason::STALE_EPOCH), "{failure:?}");
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_stores_and_future_revisions_are_refused_at_once() {
    let (state, _agents) = world(1).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let store = state.status().await;
    let evict = async |store_id, read_revision| {
        let eviction = v1::Eviction {
            unit_id: 1,
            ordinals: vec![0],
            reason: v1::EvictionReason::Drained.into(),
            ..Default::default()
        };
        let request = v1::EvictRunningUnitsRequest { evictions: vec![eviction], read_revision, store_id };
        soon("an answer", binder.client.clone().evict_running_units(request)).await
    };
    assert!(evict(store.store_id, store.revision).await.is_ok(), "nothing of it is there any more");
    for (store_id, read_revision, expected) in [
        (store.store_id + 1, 0, status::reason::STORE_CHANGED),
        (store.store_id, store.revision + 1_000, status::reason::FUTURE_REVISION),
        (0, store.revision + 1_000, status::reason::FUTURE_REVISION),
    ] {
        let refused = evict(store_id, read_revision).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
        assert!(status::has_reason(&refused, expected), "{refused}");
    }
    for (store_id, is_taken) in [(store.store_id, true), (0, true), (store.store_id + 1, false)] {
        let (requests, outgoing) = mpsc::channel(1);
        let open = v1::DecideOpen { scheduler: "s1".to_owned(), epoch: 1, store_id };
        let open = v1::DecideRequest { message: Some(decide_request::Message::Open(open)) };
        requests.send(open).await.unwrap();
        let answer = binder.client.clone().decide(ReceiverStream::new(outgoing)).await.unwrap();
        let first = soon("an answer", answer.into_inner().message()).await;
        match first {
            Ok(_) => assert!(is_taken),
            Err(refused) => {
                assert!(
                    !is_taken && status::has_reason(&refused, status::reason::STORE_CHANGED),
                    "{refused}"
                );
            }
        }
    }
    binder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_stream_replaces_the_older() {
    let (state, _agents) = world(0).await;
    let binder = Binder::start(&state.url).await;
    binder.leads().await;
    let mut first = binder.connect("s1", 1).await;
    let _second = binder.connect("s1", 1).await;
    assert_eq!(first.next().await.unwrap_err().code(), tonic::Code::Aborted);
    binder.stop().await;
}
