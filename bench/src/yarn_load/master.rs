//! The master of an unmanaged application, played: it submits, registers, asks, gives back and says goodbye by the adapter's gRPC API.
//!
//! A master of YARN calls each second or so and hears late of what it got. This one is rung by the watch when there is something to hear, so that
//! thousands of them cost little while they wait.

use std::{sync::Arc, time::Duration};

use godel_client::{client::Client, exit::Failure};
use godel_proto::v1;
use tokio::sync::Notify;

use super::watched::{Seen, WatchedApplications};

/// What every container has: memory in MiB, CPUs.
pub(super) const CONTAINER: (i64, i64) = (1_024, 1);
/// Who submits.
const USER: &str = "bench";
/// First and longest pause before the adapter is asked again for what it will know soon.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// See the module.
pub(super) struct Master {
    client: Client,
    watched: Arc<WatchedApplications>,
    bell: Arc<Notify>,
    application: String,
    attempt: String,
    /// The response that it has seen last.
    response: i32,
    /// Containers that it was told of.
    n_heard: u32,
}

/// Grows from call to call while nothing comes of them.
pub(super) struct CallPause(Duration);

impl Default for CallPause {
    fn default() -> Self {
        Self(PAUSES.0)
    }
}

impl CallPause {
    /// The next one.
    pub(super) fn next(&mut self) -> Duration {
        let next = self.0;
        self.0 = (next * 2).min(PAUSES.1);
        next
    }
}

impl Master {
    /// Submits an application to a queue; its record is durable.
    pub(super) async fn submit(
        client: &Client,
        watched: &Arc<WatchedApplications>,
        name: &str,
        queue: &str,
    ) -> Result<Self, Failure> {
        let given = client.yarn(async |mut yarn| yarn.new_application(v1::NewApplicationRequest {}).await);
        let application = given.await?.application_id;
        let request = v1::SubmitApplicationRequest {
            application_id: application.clone(),
            name: name.to_owned(),
            user: USER.to_owned(),
            queue: queue.to_owned(),
            kind: "MAPREDUCE".to_owned(),
            ..v1::SubmitApplicationRequest::default()
        };
        let bell = watched.bell(&application);
        client.yarn(async |mut yarn| yarn.submit_application(request.clone()).await).await?;
        let (client, watched) = (client.clone(), Arc::clone(watched));
        Ok(Self { client, watched, bell, application, attempt: String::new(), response: 0, n_heard: 0 })
    }

    /// Its application.
    pub(super) fn application(&self) -> &str {
        &self.application
    }

    /// Waits until its attempt may register, and registers.
    pub(super) async fn register(&mut self) -> Result<(), Failure> {
        let mut pause = CallPause::default();
        loop {
            if self.seen().has_attempt
                && let Some(attempt) = self.launched().await?
            {
                self.attempt = attempt;
                break;
            }
            self.rung(pause.next()).await;
        }
        let request = v1::RegisterMasterRequest {
            attempt_id: self.attempt.clone(),
            ..v1::RegisterMasterRequest::default()
        };
        self.client.yarn(async |mut yarn| yarn.register_master(request.clone()).await).await?;
        Ok(())
    }

    async fn launched(&self) -> Result<Option<String>, Failure> {
        let request = v1::ListAttemptsRequest { application_id: self.application.clone() };
        let mut answer = self.client.yarn(async |mut yarn| yarn.list_attempts(request.clone()).await).await?;
        let last = answer.attempts.pop();
        Ok(last.filter(|last| last.state() == v1::YarnAttemptState::Launched).map(|last| last.attempt_id))
    }

    /// Says what it asks for anew, what it gives back, and hears what it has.
    pub(super) async fn allocate(
        &mut self,
        asks: Vec<v1::YarnAsk>,
        release: Vec<String>,
    ) -> Result<v1::AllocateResponse, Failure> {
        let request = v1::AllocateRequest {
            attempt_id: self.attempt.clone(),
            response_id: Some(self.response),
            asks,
            release,
            ..v1::AllocateRequest::default()
        };
        let answer = self.client.yarn(async |mut yarn| yarn.allocate(request.clone()).await).await?;
        self.response = answer.response_id;
        self.n_heard += u32::try_from(answer.allocated.len()).unwrap_or(u32::MAX);
        Ok(answer)
    }

    /// Says goodbye, until that is recorded.
    pub(super) async fn finish(&self) -> Result<(), Failure> {
        let request = v1::FinishMasterRequest {
            attempt_id: self.attempt.clone(),
            final_status: v1::YarnAppFinalStatus::Succeeded.into(),
            ..v1::FinishMasterRequest::default()
        };
        let mut pause = CallPause::default();
        loop {
            let answer = self.client.yarn(async |mut yarn| yarn.finish_master(request.clone()).await).await?;
            if answer.done {
                return self.has_succeeded().await;
            }
            self.rung(pause.next()).await;
        }
    }

    /// Everybody is told by now that its application has finished with success.
    async fn has_succeeded(&self) -> Result<(), Failure> {
        let request = v1::GetApplicationRequest { application_id: self.application.clone() };
        let answer = self.client.yarn(async |mut yarn| yarn.get_application(request.clone()).await).await?;
        let shown = answer.application.unwrap_or_default();
        let (state, status) = (shown.state(), shown.final_status());
        if (state, status) == (v1::YarnAppState::Finished, v1::YarnAppFinalStatus::Succeeded) {
            return Ok(());
        }
        Err(Failure::failed(format!("{} is {state:?} and {status:?} after its end", self.application)))
    }

    /// What the watch has seen of its application.
    pub(super) fn seen(&self) -> Seen {
        self.watched.seen(&self.application)
    }

    /// More containers have a place than it was told of.
    pub(super) fn may_hear(&self) -> bool {
        self.seen().n_bound > self.n_heard
    }

    /// Waits until it is rung, for so long at most.
    pub(super) async fn rung(&self, limit: Duration) {
        // Either way it looks again.
        let _ = tokio::time::timeout(limit, self.bell.notified()).await;
    }
}

/// Asks for so many containers anywhere.
pub(super) fn ask(priority: i32, n: u32) -> v1::YarnAsk {
    let (memory_mb, vcores) = CONTAINER;
    v1::YarnAsk {
        priority: Some(priority),
        amount: Some(v1::YarnAmount { memory_mb, vcores, ..v1::YarnAmount::default() }),
        containers: Some(n),
        ..v1::YarnAsk::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second() {
        let mut pause = CallPause::default();
        let pauses: Vec<u128> = (0..10).map(|_| pause.next().as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    }
}
