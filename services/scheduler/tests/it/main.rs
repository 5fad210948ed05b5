//! A scheduler between a real state service, a real or played binder, and a played dispatcher.
#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

#[allow(dead_code, reason = "shared by two test crates that use different parts")]
#[path = "../../../binder/tests/it/harness.rs"]
mod harness;
mod played;
mod preempt;
mod streams;
mod whole;
mod work;

use godel_kit::{
    CancellationToken,
    client::{Channel, channel},
};
use godel_proto::v1::{self, scheduler_service_client::SchedulerServiceClient};
use harness::{State, client_config, eventually, lease_config, listener, server_config, soon};

/// A scheduler in this process.
struct Scheduler {
    client: SchedulerServiceClient<Channel>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), godel_scheduler::Error>>,
}

impl Scheduler {
    async fn start(state_url: &str, name: &str) -> Self {
        let listener = listener().await;
        let url = format!("http://{}", listener.local_addr().unwrap());
        let config = godel_scheduler::Config {
            name: name.to_owned(),
            server: server_config(),
            client: client_config(state_url),
            lease: lease_config(),
            ..godel_scheduler::Config::default()
        };
        let deps = godel_scheduler::Deps { listener: Some(listener), ..godel_scheduler::Deps::default() };
        let stop = CancellationToken::new();
        let task = tokio::spawn(godel_scheduler::serve(config, deps, stop.clone()));
        let client = SchedulerServiceClient::new(channel(&url, &client_config(state_url)).unwrap());
        Self { client, stop, task }
    }

    async fn status(&self) -> Option<v1::GetSchedulerStatusResponse> {
        Some(
            self.client
                .clone()
                .get_scheduler_status(v1::GetSchedulerStatusRequest {})
                .await
                .ok()?
                .into_inner(),
        )
    }

    /// Waits until its status is as wanted.
    async fn shows(
        &self,
        wanted: impl Fn(&v1::GetSchedulerStatusResponse) -> bool,
    ) -> v1::GetSchedulerStatusResponse {
        eventually("the scheduler's status is as wanted", || async {
            self.status().await.filter(|s| wanted(s))
        })
        .await
    }

    async fn stop(self) {
        self.stop.cancel();
        soon("the scheduler stops", self.task).await.unwrap().unwrap();
    }
}

/// A real binder in this process.
struct Binder {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), godel_binder::Error>>,
}

impl Binder {
    fn start(state_url: &str) -> Self {
        let config = godel_binder::Config {
            server: server_config(),
            client: client_config(state_url),
            lease: lease_config(),
            ..godel_binder::Config::default()
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(godel_binder::serve(config, godel_binder::Deps::default(), stop.clone()));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        soon("the binder stops", self.task).await.unwrap().unwrap();
    }
}

/// A state with ready nodes of 1,000 milli-cores.
async fn world(n_nodes: usize) -> (State, Vec<harness::Agent>) {
    let state = State::start().await;
    let mut agents = Vec::new();
    for idx in 0..n_nodes {
        agents.push(harness::Agent::start(&state, &format!("n{idx}"), 1_000).await);
    }
    (state, agents)
}

#[tokio::test]
async fn a_name_that_cannot_be_registered_is_refused() {
    let config = godel_scheduler::Config { name: "No/Name".to_owned(), ..godel_scheduler::Config::default() };
    let ended =
        godel_scheduler::serve(config, godel_scheduler::Deps::default(), CancellationToken::new()).await;
    assert!(matches!(ended, Err(godel_scheduler::Error::Name { .. })));
}
