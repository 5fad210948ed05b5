//! Raw clients, and the few reads that every test needs. Shares no code with the services: what it finds
//! is found independently of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use godel_proto::{raw, v1};
use prost::Message as _;
use tokio::sync::OnceCell;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};
use v1::{
    bind_service_client::BindServiceClient, dispatch_service_client::DispatchServiceClient,
    identity_service_client::IdentityServiceClient, member_service_client::MemberServiceClient,
    node_service_client::NodeServiceClient, queue_service_client::QueueServiceClient,
    scheduler_service_client::SchedulerServiceClient, state_service_client::StateServiceClient,
    unit_service_client::UnitServiceClient,
};

/// Deadline of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest page that `ListRecords` gives.
const PAGE_SIZE: u32 = 10_000;

/// No message is larger.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Knows where state is, and finds everything else from there.
#[derive(Clone, Debug)]
pub struct Api {
    state: Channel,
    /// Leaders are reached through state, at whose socket this is the administrator.
    is_through_state: bool,
    /// Of the administrator, for pages over TLS.
    token: Arc<OnceCell<String>>,
}

/// A client of one scheduler, directly or through state.
pub type SchedulerClient = SchedulerServiceClient<InterceptedService<Channel, NamedScheduler>>;

/// Says to state which scheduler a call is for.
#[derive(Clone, Debug)]
pub struct NamedScheduler(MetadataValue<Ascii>);

impl Interceptor for NamedScheduler {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("godel-scheduler", self.0.clone());
        Ok(request)
    }
}

/// All records of a moment.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Specs by unit_id.
    pub units: BTreeMap<u64, v1::UnitRecord>,
    /// Revision at which a unit was created, by unit_id.
    pub created: BTreeMap<u64, u64>,
    /// Rows by unit_id.
    pub rows: BTreeMap<u64, v1::UnitRows>,
    /// By node_id.
    pub nodes: BTreeMap<u32, v1::NodeReport>,
    /// Revision of the list.
    pub revision: u64,
}

impl Api {
    /// A client of the control plane whose state is at `state`, `http://IP:PORT` or `unix:PATH`.
    pub fn new(state: &str) -> Result<Self> {
        Ok(Self {
            state: channel(state)?,
            is_through_state: state.starts_with("unix:"),
            token: Arc::default(),
        })
    }

    /// A join token for many processes of a role, under any name.
    pub async fn make_join_token(&self, role: &str) -> Result<String> {
        let request = v1::CreateJoinTokenRequest {
            role: role.into(),
            names: "*".into(),
            uses: 100,
            ..v1::CreateJoinTokenRequest::default()
        };
        let made = IdentityServiceClient::new(self.state.clone()).create_join_token(request).await?;
        Ok(made.into_inner().token)
    }

    /// A token of the administrator, taken once.
    pub async fn token(&self) -> Result<&str> {
        let issue = async || {
            let mut identities = IdentityServiceClient::new(self.state.clone());
            let issued = identities.issue_token(v1::IssueTokenRequest {}).await?;
            Ok::<_, anyhow::Error>(issued.into_inner().token)
        };
        Ok(self.token.get_or_try_init(issue).await?)
    }

    /// Client.
    pub fn state(&self) -> StateServiceClient<Channel> {
        StateServiceClient::new(self.state.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Client.
    pub fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.state.clone())
    }

    /// Client.
    pub fn members(&self) -> MemberServiceClient<Channel> {
        MemberServiceClient::new(self.state.clone())
    }

    /// Client of the leading dispatcher.
    pub async fn units(&self) -> Result<UnitServiceClient<Channel>> {
        Ok(UnitServiceClient::new(self.leader_channel("dispatcher").await?))
    }

    /// Client of the leading dispatcher.
    pub async fn queues(&self) -> Result<QueueServiceClient<Channel>> {
        Ok(QueueServiceClient::new(self.leader_channel("dispatcher").await?))
    }

    /// Client of the leading dispatcher.
    pub async fn budgets(&self) -> Result<v1::budget_service_client::BudgetServiceClient<Channel>> {
        let channel = self.leader_channel("dispatcher").await?;
        Ok(v1::budget_service_client::BudgetServiceClient::new(channel))
    }

    /// Client of the leading dispatcher.
    pub async fn reservations(
        &self,
    ) -> Result<v1::reservation_service_client::ReservationServiceClient<Channel>> {
        let channel = self.leader_channel("dispatcher").await?;
        Ok(v1::reservation_service_client::ReservationServiceClient::new(channel))
    }

    /// Client of the leading dispatcher.
    pub async fn dispatch(&self) -> Result<DispatchServiceClient<Channel>> {
        Ok(DispatchServiceClient::new(self.leader_channel("dispatcher").await?))
    }

    /// Client of the leading binder.
    pub async fn binder(&self) -> Result<BindServiceClient<Channel>> {
        Ok(BindServiceClient::new(self.leader_channel("binder").await?))
    }

    /// Client of the leading rescheduler.
    pub async fn rescheduler(
        &self,
    ) -> Result<v1::reschedule_service_client::RescheduleServiceClient<Channel>> {
        let channel = self.leader_channel("rescheduler").await?;
        Ok(v1::reschedule_service_client::RescheduleServiceClient::new(channel))
    }

    /// Client of the scheduler of that name.
    pub async fn scheduler(&self, name: &str) -> Result<SchedulerClient> {
        let channel = self.leader_channel(&format!("scheduler/{name}")).await?;
        Ok(SchedulerServiceClient::with_interceptor(channel, NamedScheduler(name.parse()?)))
    }

    /// Who holds a lease now.
    pub async fn holder(&self, lease: &str) -> Result<v1::Member> {
        let found = self.list_members(lease).await?.into_iter().find(|member| member.lease == lease);
        found.filter(|member| !member.holder.is_empty()).with_context(|| format!("nobody holds {lease}"))
    }

    /// All members whose lease begins with `prefix`.
    pub async fn list_members(&self, prefix: &str) -> Result<Vec<v1::Member>> {
        let request = v1::ListMembersRequest { prefix: prefix.into() };
        Ok(self.members().list_members(request).await?.into_inner().members)
    }

    /// Counters of the store.
    pub async fn store_status(&self) -> Result<v1::GetStoreStatusResponse> {
        Ok(self.state().get_store_status(v1::GetStoreStatusRequest {}).await?.into_inner())
    }

    /// Counters of the leading dispatcher.
    pub async fn dispatcher_status(&self) -> Result<v1::GetDispatcherStatusResponse> {
        let request = v1::GetDispatcherStatusRequest {};
        Ok(self.dispatch().await?.get_dispatcher_status(request).await?.into_inner())
    }

    /// Schedulers as the leading dispatcher sees them.
    pub async fn list_schedulers(&self) -> Result<Vec<v1::SchedulerStatus>> {
        let request = v1::ListSchedulersRequest {};
        Ok(self.dispatch().await?.list_schedulers(request).await?.into_inner().schedulers)
    }

    /// One unit with its running units.
    pub async fn get_unit(&self, name: &str) -> Result<v1::GetUnitResponse> {
        let request = v1::GetUnitRequest { name: name.into(), ..Default::default() };
        Ok(self.units().await?.get_unit(request).await?.into_inner())
    }

    /// Submits through the leading dispatcher.
    pub async fn submit(&self, unit: v1::UnitSpec) -> Result<v1::SubmitUnitResponse> {
        let request = v1::SubmitUnitRequest { unit: Some(unit) };
        Ok(self.units().await?.submit_unit(request).await?.into_inner())
    }

    /// Every unit, its rows and every node report, page by page.
    pub async fn records(&self) -> Result<Records> {
        let kinds = [v1::Kind::Unit, v1::Kind::Rows, v1::Kind::NodeReport];
        let mut records = Records::default();
        let mut page_token = String::new();
        loop {
            let request = v1::ListRecordsRequest {
                kinds: kinds.iter().map(|kind| (*kind).into()).collect(),
                page_size: PAGE_SIZE,
                page_token,
            };
            let page = self.state().list_records(request).await?.into_inner();
            records.revision = page.revision;
            for record in page.records {
                match record.record {
                    Some(v1::record::Record::Unit(unit)) => {
                        records.created.insert(unit.unit_id, record.create_revision);
                        records.units.insert(unit.unit_id, unit);
                    }
                    Some(v1::record::Record::Rows(rows)) => {
                        // A large unit's come in several records.
                        let joined = records.rows.entry(rows.unit_id).or_default();
                        joined.unit_id = rows.unit_id;
                        joined.blocks.extend(rows.blocks);
                    }
                    Some(v1::record::Record::NodeReport(report)) => {
                        records.nodes.insert(report.node_id, report);
                    }
                    other => bail!("a record of a kind that was not asked for: {other:?}"),
                }
            }
            if page.next_page_token.is_empty() {
                return Ok(records);
            }
            page_token = page.next_page_token;
        }
    }

    /// Waits on a watch for the first commit from `from_revision` on that `accept` accepts.
    pub async fn watch_until(
        &self,
        from_revision: u64,
        kinds: &[v1::Kind],
        mut accept: impl FnMut(&raw::Commit) -> bool,
    ) -> Result<raw::Commit> {
        let request = v1::WatchRequest {
            from_revision,
            kinds: kinds.iter().map(|kind| (*kind).into()).collect(),
            ..v1::WatchRequest::default()
        };
        let mut stream = self.state().watch(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            if let Some(commit) = response.commits.into_iter().find(|commit| accept(commit)) {
                return Ok(commit);
            }
        }
        bail!("the watch ended")
    }

    async fn leader_channel(&self, lease: &str) -> Result<Channel> {
        if self.is_through_state {
            return Ok(self.state.clone());
        }
        channel(&self.holder(lease).await?.address)
    }
}

/// A lazily connected channel to `http://ip:port`, or `unix:PATH`, with time-outs.
pub fn channel(address: &str) -> Result<Channel> {
    let address = if address.contains("://") || address.starts_with("unix:") {
        address.to_owned()
    } else {
        format!("http://{address}")
    };
    let endpoint =
        Endpoint::from_shared(address.clone()).with_context(|| format!("bad address {address:?}"))?;
    Ok(endpoint.connect_timeout(Duration::from_secs(2)).timeout(CALL_TIMEOUT).connect_lazy())
}

/// Whether a commit binds something.
pub fn binds(commit: &raw::Commit) -> bool {
    commit
        .ops
        .iter()
        .any(|op| matches!(v1::Op::decode(op.clone()), Ok(v1::Op { op: Some(v1::op::Op::Bind(_)) })))
}

/// Epoch under which a commit was written as `lease`; `None` for another writer.
pub fn writer_epoch(commit: &raw::Commit, lease: &str) -> Option<u64> {
    commit.writer.as_ref().filter(|writer| writer.lease == lease).map(|writer| writer.epoch)
}
