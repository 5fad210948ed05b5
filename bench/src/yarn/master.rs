//! One application whose master runs here: applied for, registered, given containers and ended over Hadoop RPC, as a client of YARN does it.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use godel_client::exit::{Code, Failure};
use godel_hadoop::{
    client::{CallError, Client, Shows},
    common::TokenProto,
    yarn::{
        AllocateRequestProto, AllocateResponseProto, ApplicationIdProto, ApplicationReportProto,
        ApplicationSubmissionContextProto, FinalApplicationStatusProto, FinishApplicationMasterRequestProto,
        FinishApplicationMasterResponseProto, GetApplicationAttemptReportRequestProto,
        GetApplicationAttemptReportResponseProto, GetApplicationReportRequestProto,
        GetApplicationReportResponseProto, GetNewApplicationRequestProto, GetNewApplicationResponseProto,
        PriorityProto, RegisterApplicationMasterRequestProto, RegisterApplicationMasterResponseProto,
        ResourceProto, ResourceRequestProto, SubmitApplicationRequestProto, SubmitApplicationResponseProto,
        YarnApplicationAttemptStateProto, YarnApplicationStateProto,
    },
};
use prost::Message;
use tokio::time::sleep;

use super::adapter::Faces;
use crate::cluster::{POLL, STALL_TIMEOUT};

const CLIENT: &str = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB";
const MASTER: &str = "org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB";
/// Who submits: the token of a master is shown to nobody else.
const USER: &str = "bench";
/// For a connection and for each call.
const WITHIN: Duration = Duration::from_secs(60);
/// What each container takes: YARN's least.
const CONTAINER: (i64, i32) = (1_024, 1);

/// A registered master.
pub(super) struct HadoopMaster {
    id: ApplicationIdProto,
    connection: Client,
    /// The answer that it has seen last.
    seen: i32,
    /// Numbers of its containers.
    containers: BTreeSet<i64>,
}

/// A connection of a client, who says who it is and is believed.
pub(super) async fn client_of(at: SocketAddr) -> Result<Client, Failure> {
    let shows = Shows::User { effective: USER.to_owned(), real: None };
    Client::connect(at, CLIENT, 1, &shows, WITHIN)
        .await
        .map_err(|error| failed(&error, "connecting as a client"))
}

/// A new application: the first call that only a leading adapter answers.
pub(super) async fn new_application(client: &mut Client) -> Result<ApplicationIdProto, Failure> {
    let new: GetNewApplicationResponseProto =
        call(client, "getNewApplication", &GetNewApplicationRequestProto {}).await?;
    new.application_id.ok_or_else(|| Failure::failed("getNewApplication: there is no id"))
}

/// Where an application is.
pub(super) async fn state_of(
    client: &mut Client,
    id: ApplicationIdProto,
) -> Result<YarnApplicationStateProto, Failure> {
    Ok(report(client, id).await?.yarn_application_state())
}

impl HadoopMaster {
    /// Submits an application whose master runs elsewhere, waits until it is launched, and registers as that master.
    pub(super) async fn register(at: Faces, number: usize) -> Result<Self, Failure> {
        let mut client = client_of(at.client).await?;
        let id = new_application(&mut client).await?;
        let context = ApplicationSubmissionContextProto {
            application_id: Some(id),
            application_name: Some(format!("bench-{number}")),
            unmanaged_am: Some(true),
            ..ApplicationSubmissionContextProto::default()
        };
        let request = SubmitApplicationRequestProto { application_submission_context: Some(context) };
        let _submitted: SubmitApplicationResponseProto =
            call(&mut client, "submitApplication", &request).await?;
        let token = launched(&mut client, id).await?;
        let mut connection = Client::connect(at.master, MASTER, 1, &Shows::Token(token), WITHIN)
            .await
            .map_err(|error| failed(&error, "connecting as a master"))?;
        let request = RegisterApplicationMasterRequestProto {
            host: Some("localhost".to_owned()),
            rpc_port: Some(-1),
            ..RegisterApplicationMasterRequestProto::default()
        };
        let _registered: RegisterApplicationMasterResponseProto =
            call(&mut connection, "registerApplicationMaster", &request).await?;
        Ok(Self { id, connection, seen: 0, containers: BTreeSet::new() })
    }

    /// Its application.
    pub(super) fn id(&self) -> ApplicationIdProto {
        self.id
    }

    /// Asks for so many containers, and calls until all have come.
    pub(super) async fn fetch(mut self, n: usize) -> Result<Self, Failure> {
        let mut ask = vec![row(n)];
        let mut moved_at = Instant::now();
        loop {
            let answer = self.allocate(std::mem::take(&mut ask)).await?;
            if !answer.allocated_containers.is_empty() {
                moved_at = Instant::now();
            }
            self.take(&answer)?;
            if self.containers.len() >= n {
                return Ok(self);
            }
            if moved_at.elapsed() > STALL_TIMEOUT {
                let (n_come, waited) = (self.containers.len(), STALL_TIMEOUT.as_secs());
                let text = format!("{n_come} of {n} containers have come, and no other one for {waited} s");
                return Err(Failure::new(Code::Timeout, text));
            }
            sleep(POLL).await;
        }
    }

    /// Calls without changing anything, one call after the other. How long each took.
    pub(super) async fn call_until(mut self, end: Instant) -> Result<(Self, Vec<Duration>), Failure> {
        let mut took = Vec::new();
        let mut began = Instant::now();
        while began < end {
            let answer = self.allocate(Vec::new()).await?;
            let now = Instant::now();
            took.push(now - began);
            began = now;
            let n_new = answer.allocated_containers.len();
            if n_new > 0 || !answer.completed_container_statuses.is_empty() {
                let n_ended = answer.completed_container_statuses.len();
                let text = format!("{n_new} containers more than asked for have come, {n_ended} have ended");
                return Err(Failure::failed(text));
            }
        }
        Ok((self, took))
    }

    /// Says goodbye.
    pub(super) async fn finish(mut self) -> Result<(), Failure> {
        let request = FinishApplicationMasterRequestProto {
            final_application_status: Some(FinalApplicationStatusProto::AppSucceeded.into()),
            ..FinishApplicationMasterRequestProto::default()
        };
        let began = Instant::now();
        loop {
            let answer: FinishApplicationMasterResponseProto =
                call(&mut self.connection, "finishApplicationMaster", &request).await?;
            if answer.is_unregistered() {
                return Ok(());
            }
            if began.elapsed() > STALL_TIMEOUT {
                return Err(Failure::new(Code::Timeout, "the end of a master is not recorded"));
            }
            sleep(POLL).await;
        }
    }

    async fn allocate(&mut self, ask: Vec<ResourceRequestProto>) -> Result<AllocateResponseProto, Failure> {
        let request =
            AllocateRequestProto { ask, response_id: Some(self.seen), ..AllocateRequestProto::default() };
        let answer: AllocateResponseProto = call(&mut self.connection, "allocate", &request).await?;
        self.seen = answer.response_id();
        Ok(answer)
    }

    /// Takes containers, each of which comes once and stays.
    fn take(&mut self, answer: &AllocateResponseProto) -> Result<(), Failure> {
        if let Some(ended) = answer.completed_container_statuses.first() {
            let (exit, why) = (ended.exit_status(), ended.diagnostics());
            return Err(Failure::failed(format!("a container has ended with {exit}: {why}")));
        }
        for container in &answer.allocated_containers {
            let number = container.id.unwrap_or_default().id();
            if container.container_token.is_none() || !self.containers.insert(number) {
                let text = format!("container {number} has no token, or has come twice");
                return Err(Failure::failed(text));
            }
        }
        Ok(())
    }
}

/// The token of a master whose attempt is launched: one that registers before has failed.
async fn launched(client: &mut Client, id: ApplicationIdProto) -> Result<TokenProto, Failure> {
    use YarnApplicationStateProto::{Failed, Finished, Killed};
    let began = Instant::now();
    loop {
        let report = report(client, id).await?;
        let attempt = report.current_application_attempt_id.filter(|attempt| attempt.attempt_id() > 0);
        if let (Some(token), Some(_)) = (report.am_rm_token.clone(), attempt) {
            let request = GetApplicationAttemptReportRequestProto { application_attempt_id: attempt };
            let shown: GetApplicationAttemptReportResponseProto =
                call(client, "getApplicationAttemptReport", &request).await?;
            let shown = shown.application_attempt_report.unwrap_or_default();
            if shown.yarn_application_attempt_state() == YarnApplicationAttemptStateProto::AppAttemptLaunched
            {
                return Ok(token);
            }
        }
        let state = report.yarn_application_state();
        if matches!(state, Failed | Finished | Killed) || began.elapsed() > STALL_TIMEOUT {
            let text = format!("an application is {state:?} and not launched: {}", report.diagnostics());
            return Err(Failure::new(Code::Timeout, text));
        }
        sleep(POLL).await;
    }
}

async fn report(client: &mut Client, id: ApplicationIdProto) -> Result<ApplicationReportProto, Failure> {
    let request = GetApplicationReportRequestProto { application_id: Some(id) };
    let answer: GetApplicationReportResponseProto = call(client, "getApplicationReport", &request).await?;
    answer.application_report.ok_or_else(|| Failure::failed("getApplicationReport: there is no report"))
}

/// Containers anywhere.
fn row(n: usize) -> ResourceRequestProto {
    let (memory, virtual_cores) = CONTAINER;
    let capability = ResourceProto {
        memory: Some(memory),
        virtual_cores: Some(virtual_cores),
        ..ResourceProto::default()
    };
    ResourceRequestProto {
        priority: Some(PriorityProto { priority: Some(1) }),
        resource_name: Some("*".to_owned()),
        capability: Some(capability),
        num_containers: Some(i32::try_from(n).unwrap_or(i32::MAX)),
        ..ResourceRequestProto::default()
    }
}

async fn call<Q: Message, A: Message + Default>(
    client: &mut Client,
    method: &'static str,
    request: &Q,
) -> Result<A, Failure> {
    client.call(method, request).await.map_err(|error| failed(&error, method))
}

fn failed(error: &CallError, what: &str) -> Failure {
    Failure::chain(Code::Failed, error).during(what)
}
