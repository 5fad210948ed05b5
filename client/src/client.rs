//! The client's side of the API: one address, everything else is found there.

mod leaders;
#[cfg(test)]
mod tests;

use std::time::Duration;

use godel_kit::{
    client::{BadAddress, Channel, Directory, FailedCall, retry_idempotent},
    config::{ClientConfig, HumanDuration},
    message::RECEIVED_BYTES_MAX,
    status,
};
use godel_proto::v1::{
    self, bind_service_client::BindServiceClient, change_service_client::ChangeServiceClient,
    identity_service_client::IdentityServiceClient, log_service_client::LogServiceClient,
    node_service_client::NodeServiceClient, scheduler_service_client::SchedulerServiceClient,
    state_service_client::StateServiceClient,
};
use tonic::Status;

use crate::{
    access::Access,
    exit::{Code, Failure},
    output::shown,
    pages::{PAGE_SIZE, read_all, read_pages},
};

/// Lease of the YARN adapter, which a cluster need not have.
const YARN: &str = "yarn";

/// Calls the control plane. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    directory: Directory,
    address: String,
}

impl Client {
    /// A client of the state service at `address`, for a person: it speaks to that address alone, because others may be out of
    /// reach from here, and state forwards its calls. Nothing is opened yet.
    ///
    /// # Errors
    /// The address is malformed.
    pub fn new(access: impl Into<Access>) -> Result<Self, Failure> {
        let Access { address, security } = access.into();
        // A person waits: give up soon, and say what to do.
        let config = ClientConfig {
            state: address,
            security,
            retry_attempts: 5,
            retry_deadline: HumanDuration::from_secs(10),
            ..ClientConfig::default()
        };
        Self::of(Directory::through_state(&config))
    }

    /// A client that keeps trying for as long as a restart of the servers takes, and speaks to that address alone.
    ///
    /// # Errors
    /// The address is malformed.
    pub fn patient(access: impl Into<Access>) -> Result<Self, Failure> {
        Self::of(Directory::through_state(&patient(access.into())))
    }

    /// A client as patient, which calls leaders directly: for measurements, and for programs among the services.
    ///
    /// # Errors
    /// The address is malformed.
    pub fn direct(access: impl Into<Access>) -> Result<Self, Failure> {
        Self::of(Directory::new(&patient(access.into())))
    }

    fn of(directory: Result<Directory, BadAddress>) -> Result<Self, Failure> {
        let directory = directory.map_err(|bad| Failure::chain(Code::Usage, &bad))?;
        let address = directory.config().state.clone();
        Ok(Self { directory, address })
    }

    /// The address of state.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Who serves where.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The state service.
    pub fn state(&self) -> StateServiceClient<Channel> {
        StateServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX)
    }

    /// Nodes, as state serves them.
    pub fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX)
    }

    /// Logs of running units, as state serves them.
    pub fn logs(&self) -> LogServiceClient<Channel> {
        LogServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX)
    }

    /// The change log, as state serves it.
    pub fn changes(&self) -> ChangeServiceClient<Channel> {
        ChangeServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX)
    }

    /// Identities, as state serves them.
    pub fn identities(&self) -> IdentityServiceClient<Channel> {
        IdentityServiceClient::new(self.directory.state()).max_decoding_message_size(RECEIVED_BYTES_MAX)
    }

    /// A call that may be made twice, within the retry bounds.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn read<T, F: Future<Output = Result<T, Status>>>(
        &self,
        op: impl Fn() -> F,
    ) -> Result<T, Failure> {
        retry_idempotent(&self.directory.policy(), op).await.map_err(|status| self.explain(status))
    }

    /// What state answered, or that it does not.
    pub fn explain(&self, status: Status) -> Failure {
        answer_of("state", &self.address, status)
    }

    /// What the holder of a lease answered; that it does not; or that nobody leads.
    pub fn explain_leader(&self, lease: &str, failed: FailedCall) -> Failure {
        let FailedCall { leader, status } = failed;
        match leader {
            Some(address) => answer_of(lease, &address, status),
            None if status.message().starts_with("nobody holds lease") && lease == YARN => {
                let said = format!("no YARN adapter leads; state at {} answers", shown(&self.address));
                Failure::new(Code::Unreachable, said)
                    .hint("start one with `godel serve yarn`: see docs/yarn.md")
            }
            None if status.message().starts_with("nobody holds lease") => {
                let said = format!("no {lease} leads; state at {} answers", shown(&self.address));
                Failure::new(Code::Unreachable, said)
                    .hint(format!("start one with `godel serve {lease}`, or everything with `godel up`"))
            }
            None => self.explain(status),
        }
    }

    /// Every node.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn list_nodes(&self, selector: &[(String, String)]) -> Result<Vec<v1::Node>, Failure> {
        read_all(async |page_token| {
            let label_selector = selector.iter().cloned().collect();
            let request = v1::ListNodesRequest { page_size: PAGE_SIZE, page_token, label_selector };
            let page = self.read(async || self.nodes().list_nodes(request.clone()).await).await?.into_inner();
            Ok((page.nodes, page.next_page_token))
        })
        .await
    }

    /// Units that match, at most `limit`, and how many match in all.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn list_units(
        &self,
        request: v1::ListUnitsRequest,
        limit: usize,
    ) -> Result<(Vec<v1::Unit>, usize), Failure> {
        let mut total = 0;
        let (units, _) = read_pages(limit, async |page_token| {
            let request = v1::ListUnitsRequest { page_size: PAGE_SIZE, page_token, ..request.clone() };
            let page = self.units(async |mut client| client.list_units(request.clone()).await).await?;
            total = usize::try_from(page.total).unwrap_or(usize::MAX);
            Ok((page.units, page.next_page_token))
        })
        .await?;
        Ok((units, total))
    }

    /// Every queue with its usage.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn list_queues(&self) -> Result<Vec<v1::QueueStatus>, Failure> {
        read_all(async |page_token| {
            let request = v1::ListQueuesRequest { page_size: PAGE_SIZE, page_token };
            let page = self.queues(async |mut client| client.list_queues(request.clone()).await).await?;
            Ok((page.queues, page.next_page_token))
        })
        .await
    }

    /// Every priority class.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn list_priority_classes(&self) -> Result<Vec<v1::PriorityClassStatus>, Failure> {
        read_all(async |page_token| {
            let request = v1::ListPriorityClassesRequest { page_size: PAGE_SIZE, page_token };
            let page =
                self.queues(async |mut client| client.list_priority_classes(request.clone()).await).await?;
            Ok((page.priority_classes, page.next_page_token))
        })
        .await
    }

    /// Every disruption budget with what it allows.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn list_budgets(&self) -> Result<Vec<v1::DisruptionBudgetStatus>, Failure> {
        read_all(async |page_token| {
            let request = v1::ListBudgetsRequest { page_size: PAGE_SIZE, page_token };
            let page = self.budgets(async |mut client| client.list_budgets(request.clone()).await).await?;
            Ok((page.budgets, page.next_page_token))
        })
        .await
    }

    /// Every reservation with what it holds.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn list_reservations(&self) -> Result<Vec<v1::ReservationStatus>, Failure> {
        read_all(async |page_token| {
            let request = v1::ListReservationsRequest { page_size: PAGE_SIZE, page_token };
            let page =
                self.reservations(async |mut client| client.list_reservations(request.clone()).await).await?;
            Ok((page.reservations, page.next_page_token))
        })
        .await
    }

    /// One unit with its running units.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn get_unit(&self, namespace: &str, name: &str) -> Result<v1::GetUnitResponse, Failure> {
        self.units(async |mut client| {
            client
                .get_unit(v1::GetUnitRequest {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    ..v1::GetUnitRequest::default()
                })
                .await
        })
        .await
    }

    /// One unit with all of its running units, however many pages they fill; the unit as the first page shows it.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn get_whole_unit(&self, namespace: &str, name: &str) -> Result<v1::GetUnitResponse, Failure> {
        let mut whole = self.get_unit(namespace, name).await?;
        let first = std::mem::take(&mut whole.next_page_token);
        if first.is_empty() {
            return Ok(whole);
        }
        let rest = read_all(async |page_token: String| {
            let page_token = if page_token.is_empty() { first.clone() } else { page_token };
            let request = v1::GetUnitRequest {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                page_token,
                ..v1::GetUnitRequest::default()
            };
            let page = self.units(async |mut client| client.get_unit(request.clone()).await);
            let page = page.await?;
            Ok((page.running_units, page.next_page_token))
        });
        whole.running_units.extend(rest.await?);
        Ok(whole)
    }

    /// Sizes, revisions and counters of the store.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn store_status(&self) -> Result<v1::GetStoreStatusResponse, Failure> {
        self.read(async || self.state().get_store_status(v1::GetStoreStatusRequest {}).await)
            .await
            .map(tonic::Response::into_inner)
    }

    /// Queue lengths and counters of the dispatcher.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn dispatcher_status(&self) -> Result<v1::GetDispatcherStatusResponse, Failure> {
        self.dispatch(async |mut client| {
            client.get_dispatcher_status(v1::GetDispatcherStatusRequest {}).await
        })
        .await
    }

    /// Schedulers with lease, load and counters.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn schedulers(&self) -> Result<v1::ListSchedulersResponse, Failure> {
        self.dispatch(async |mut client| client.list_schedulers(v1::ListSchedulersRequest {}).await).await
    }

    /// A scheduler's own view.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn scheduler_status(
        &self,
        scheduler: &v1::SchedulerStatus,
    ) -> Result<v1::GetSchedulerStatusResponse, Failure> {
        let answer = self.scheduler(scheduler)?.get_scheduler_status(v1::GetSchedulerStatusRequest {}).await;
        Ok(answer.map_err(|status| answer_of("scheduler", &scheduler.address, status))?.into_inner())
    }

    /// What a scheduler would do with a unit.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn plan(
        &self,
        scheduler: &v1::SchedulerStatus,
        unit: v1::UnitSpec,
    ) -> Result<v1::PlanResponse, Failure> {
        let service = self.scheduler(scheduler)?;
        let policy = self.directory.policy();
        let request = v1::PlanRequest { unit: Some(unit) };
        let answer = retry_idempotent(&policy, async || service.clone().plan(request.clone()).await);
        let answer = answer.await.map_err(|status| answer_of("scheduler", &scheduler.address, status));
        Ok(answer?.into_inner())
    }

    fn scheduler(&self, scheduler: &v1::SchedulerStatus) -> Result<SchedulerServiceClient<Channel>, Failure> {
        let channel = self.directory.scheduler(&scheduler.name, &scheduler.address);
        let channel = channel.map_err(|bad| Failure::chain(Code::Failed, &bad))?;
        Ok(SchedulerServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
    }

    /// Counters of the leading binder.
    ///
    /// # Errors
    /// What the server answered.
    pub async fn binder_status(&self) -> Result<v1::GetBinderStatusResponse, Failure> {
        let connect = |channel| BindServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX);
        self.leader("binder", connect, async |mut client| {
            client.get_binder_status(v1::GetBinderStatusRequest {}).await
        })
        .await
    }

    /// Waits until state, a dispatcher and a binder answer.
    ///
    /// # Errors
    /// They do not within `timeout`.
    pub async fn wait_ready(&self, timeout: Duration) -> Result<(), Failure> {
        let ready = async {
            loop {
                let answers = self.dispatcher_status().await.is_ok() && self.binder_status().await.is_ok();
                if answers {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(timeout, ready).await.map_err(|_| {
            Failure::new(Code::Timeout, format!("the services at {} are not ready", self.address))
        })
    }
}

/// Keeps trying for as long as a restart of the servers takes.
fn patient(Access { address, security }: Access) -> ClientConfig {
    ClientConfig {
        state: address,
        security,
        retry_attempts: 200,
        retry_deadline: HumanDuration::from_secs(60),
        retry_max: HumanDuration::from_millis(500),
        ..ClientConfig::default()
    }
}

/// What a server answered, with its name and address where they help: where it does not answer, or not as it should.
pub(crate) fn answer_of(service: &str, address: &str, status: Status) -> Failure {
    use tonic::Code as Rpc;
    let (code, address) = (status.code(), shown(address).into_owned());
    let is_said = status::has_reason(&status, status::reason::UNREACHABLE);
    let is_away = status::has_reason(&status, status::reason::AGENT_AWAY);
    let failure = Failure::from(status);
    match code {
        // State answers, and what helps is on the node.
        Rpc::Unavailable if is_away => Failure { hint: None, ..failure },
        // State could not reach it, and says so.
        Rpc::Unavailable if is_said => failure,
        Rpc::Unavailable => failure.during(format!("{service} at {address} does not answer")),
        Rpc::DeadlineExceeded | Rpc::Cancelled | Rpc::Unimplemented | Rpc::DataLoss => {
            failure.during(format!("{service} at {address}"))
        }
        Rpc::Unknown | Rpc::Internal => failure.during(format!("{service} at {address}")),
        _ => failure,
    }
}
