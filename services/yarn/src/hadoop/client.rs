//! ApplicationClientProtocol, which `yarn`, Spark, Flink and other clients call.

use std::sync::Arc;

use godel_core_yarn::{
    AppAccess,
    container::PublicContainerState,
    ids::{YarnApplicationId, YarnContainerId},
};
use godel_core_yarn_leader::{
    AppFilter, AppReport, ContainerReport, LaunchNode, ManagerRefusal, YarnNodeReport, YarnNodeState,
};
use godel_domain::names::yarn_user;
use godel_hadoop::{
    Caller, Exception, Identity, Protocol, exception,
    yarn::{
        ApplicationReportProto, ApplicationsRequestScopeProto, FailApplicationAttemptRequestProto,
        FailApplicationAttemptResponseProto, GetApplicationAttemptReportRequestProto,
        GetApplicationAttemptReportResponseProto, GetApplicationAttemptsRequestProto,
        GetApplicationAttemptsResponseProto, GetApplicationReportRequestProto,
        GetApplicationReportResponseProto, GetApplicationsRequestProto, GetApplicationsResponseProto,
        GetClusterMetricsRequestProto, GetClusterMetricsResponseProto, GetClusterNodesRequestProto,
        GetClusterNodesResponseProto, GetContainerReportRequestProto, GetContainerReportResponseProto,
        GetContainersRequestProto, GetContainersResponseProto, GetNewApplicationRequestProto,
        GetNewApplicationResponseProto, KillApplicationRequestProto, KillApplicationResponseProto,
        MoveApplicationAcrossQueuesRequestProto, MoveApplicationAcrossQueuesResponseProto,
        SignalContainerRequestProto, SignalContainerResponseProto, SubmitApplicationRequestProto,
        SubmitApplicationResponseProto, UpdateApplicationPriorityRequestProto,
        UpdateApplicationPriorityResponseProto, UpdateApplicationTimeoutsRequestProto,
        UpdateApplicationTimeoutsResponseProto, YarnClusterMetricsProto,
    },
};
use godel_kit::clock::SharedClock;

use super::{
    amounts, ids, labels,
    node_calls::{NodeCall, NodeCalls, NodeError},
    queues,
    refusal::{FEATURE_NOT_ENABLED, for_clients, refused},
    reports, submission, times,
    tokens::Tokens,
};
use crate::{ResourceManager, YarnCaller};

pub(super) const PROTOCOL: &str = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB";

/// Serves clients.
pub(super) struct ClientFace {
    pub(super) manager: Arc<dyn ResourceManager>,
    pub(super) tokens: Tokens,
    pub(super) nodes: NodeCalls,
    pub(super) clock: SharedClock,
}

/// Adds a method that is answered from memory.
fn read<Q, A>(
    protocol: Protocol,
    face: &Arc<ClientFace>,
    name: &'static str,
    read: fn(&ClientFace, &Caller, Q) -> Result<A, Exception>,
) -> Protocol
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
{
    let face = Arc::clone(face);
    protocol.method(name, move |caller, request| std::future::ready(read(&face, &caller, request)))
}

/// Adds a method that reads all nodes.
fn of_nodes<Q, A>(
    protocol: Protocol,
    face: &Arc<ClientFace>,
    name: &'static str,
    read: fn(&[YarnNodeReport], &Q) -> A,
) -> Protocol
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
{
    let face = Arc::clone(face);
    protocol.method(name, move |_, request| {
        std::future::ready(face.manager.nodes().map(|nodes| read(&nodes, &request)).map_err(for_clients))
    })
}

pub(super) fn protocol(face: ClientFace) -> Protocol {
    let face = Arc::new(face);
    refusals(changes(reads(Protocol::new(PROTOCOL, 1), &face), &face))
}

fn reads(protocol: Protocol, face: &Arc<ClientFace>) -> Protocol {
    let protocol = read(protocol, face, "getApplicationReport", ClientFace::application);
    let protocol = read(protocol, face, "getApplications", ClientFace::applications);
    let protocol = read(protocol, face, "getClusterMetrics", ClientFace::metrics);
    let protocol = read(protocol, face, "getClusterNodes", ClientFace::cluster_nodes);
    let protocol = read(protocol, face, "getQueueInfo", queues::info);
    let protocol = read(protocol, face, "getQueueUserAcls", queues::user_acls);
    let protocol = read(protocol, face, "getApplicationAttemptReport", ClientFace::attempt);
    let protocol = read(protocol, face, "getApplicationAttempts", ClientFace::attempts);
    let protocol = read(protocol, face, "getContainerReport", ClientFace::container);
    let protocol = read(protocol, face, "getContainers", ClientFace::containers);
    let protocol = read(protocol, face, "getResourceTypeInfo", queues::resource_types);
    let protocol = of_nodes(protocol, face, "getNodeToLabels", |nodes, _: &queues::NoRequest| {
        labels::nodes_to_labels(nodes)
    });
    let protocol = of_nodes(protocol, face, "getLabelsToNodes", labels::labels_to_nodes);
    let protocol = of_nodes(protocol, face, "getClusterNodeLabels", |nodes, _: &queues::NoRequest| {
        labels::cluster_labels(nodes)
    });
    let protocol = of_nodes(protocol, face, "getClusterNodeAttributes", |nodes, _: &queues::NoRequest| {
        labels::cluster_attributes(nodes)
    });
    let protocol = of_nodes(protocol, face, "getAttributesToNodes", labels::attributes_to_nodes);
    of_nodes(protocol, face, "getNodesToAttributes", labels::nodes_to_attributes)
}

/// Adds a method that changes something.
macro_rules! changes {
    ($protocol:expr, $face:expr, $($name:literal => $method:ident),+ $(,)?) => {{
        let protocol = $protocol;
        $(
            let face = Arc::clone($face);
            let protocol = protocol.method($name, move |caller, request| Arc::clone(&face).$method(caller, request));
        )+
        protocol
    }};
}

fn changes(protocol: Protocol, face: &Arc<ClientFace>) -> Protocol {
    changes!(
        protocol, face,
        "getNewApplication" => new_application,
        "submitApplication" => submit,
        "forceKillApplication" => kill,
        "failApplicationAttempt" => fail_attempt,
        "moveApplicationAcrossQueues" => move_application,
        "updateApplicationPriority" => set_priority,
        "updateApplicationTimeouts" => set_timeouts,
        "signalToContainer" => signal,
    )
}

/// Calls that are answered with what to do instead.
fn refusals(protocol: Protocol) -> Protocol {
    let no_tokens = "godel issues no delegation tokens: clients and masters need none with simple authentication \
                     (hadoop.security.authentication=simple)";
    let no_profiles = "Resource profile is not enabled: godel has no resource profiles; ask for memory, vcores and devices by their amounts";
    let no_reservations =
        "Reservation is not enabled: godel has no reservations of YARN; reserve with `godel reservation`";
    let mut protocol = protocol.refuse("getResourceProfiles", FEATURE_NOT_ENABLED, no_profiles).refuse(
        "getResourceProfile",
        FEATURE_NOT_ENABLED,
        no_profiles,
    );
    for name in ["getDelegationToken", "renewDelegationToken", "cancelDelegationToken"] {
        protocol = protocol.refuse(name, exception::IO, no_tokens);
    }
    let reservations = [
        "getNewReservation",
        "submitReservation",
        "updateReservation",
        "deleteReservation",
        "listReservations",
    ];
    for name in reservations {
        protocol = protocol.refuse(name, exception::YARN, no_reservations);
    }
    protocol
}

/// On whose behalf a caller calls: where callers are judged the name of its principal, and otherwise what it says.
fn user(caller: &Caller) -> Result<&str, Exception> {
    match &caller.identity {
        Identity::User { effective, .. } => Ok(effective),
        Identity::Token(_) => Err(Exception::new(
            exception::ACCESS_CONTROL,
            "this call is for clients, who say which user they are, and not for holders of tokens",
        )),
    }
}

/// The same with the call for the change log.
fn by(caller: &Caller) -> Result<YarnCaller, Exception> {
    let row = format!("hadoop/ApplicationClientProtocol/{}", caller.method);
    Ok(YarnCaller::new(user(caller)?, &row, &caller.address.to_string()))
}

impl ClientFace {
    async fn new_application(
        self: Arc<Self>,
        _: Caller,
        _: GetNewApplicationRequestProto,
    ) -> Result<GetNewApplicationResponseProto, Exception> {
        let (id, maximum) = self.manager.new_application().await.map_err(for_clients)?;
        Ok(GetNewApplicationResponseProto {
            application_id: Some(ids::application_pb(id)),
            maximum_capability: Some(amounts::pb(&maximum)),
        })
    }

    async fn submit(
        self: Arc<Self>,
        caller: Caller,
        request: SubmitApplicationRequestProto,
    ) -> Result<SubmitApplicationResponseProto, Exception> {
        let user = user(&caller)?;
        let context = request.application_submission_context.unwrap_or_default();
        let cluster = self.manager.cluster().map_err(for_clients)?;
        let (least, most) = (&cluster.minimum_allocation, &cluster.maximum_allocation);
        let (id, submitted) = submission::read(context, user, least, most)?;
        self.manager.submit(id, &by(&caller)?, submitted).await.map_err(for_clients)?;
        Ok(SubmitApplicationResponseProto {})
    }

    async fn kill(
        self: Arc<Self>,
        caller: Caller,
        request: KillApplicationRequestProto,
    ) -> Result<KillApplicationResponseProto, Exception> {
        let by = by(&caller)?;
        let id = ids::application(request.application_id)?;
        let mut why =
            format!("Application {id} was killed by user {} at {}", yarn_user(&by.user), caller.address.ip());
        if let Some(said) = request.diagnostics.filter(|said| !said.is_empty()) {
            why = format!("{said} {why}");
        }
        let is_over = self.manager.kill(id, &by, &why).await.map_err(for_clients)?;
        Ok(KillApplicationResponseProto { is_kill_completed: Some(is_over) })
    }

    async fn fail_attempt(
        self: Arc<Self>,
        caller: Caller,
        request: FailApplicationAttemptRequestProto,
    ) -> Result<FailApplicationAttemptResponseProto, Exception> {
        let id = ids::attempt(request.application_attempt_id)?;
        self.manager.fail_attempt(id, &by(&caller)?).await.map_err(for_clients)?;
        Ok(FailApplicationAttemptResponseProto {})
    }

    async fn move_application(
        self: Arc<Self>,
        caller: Caller,
        request: MoveApplicationAcrossQueuesRequestProto,
    ) -> Result<MoveApplicationAcrossQueuesResponseProto, Exception> {
        let id = ids::application(Some(request.application_id))?;
        self.manager.move_to(id, &by(&caller)?, &request.target_queue).await.map_err(for_clients)?;
        Ok(MoveApplicationAcrossQueuesResponseProto {})
    }

    async fn set_priority(
        self: Arc<Self>,
        caller: Caller,
        request: UpdateApplicationPriorityRequestProto,
    ) -> Result<UpdateApplicationPriorityResponseProto, Exception> {
        let id = ids::application(Some(request.application_id))?;
        let asked = request.application_priority.priority.unwrap_or(0);
        let set = self.manager.set_priority(id, &by(&caller)?, asked).await.map_err(for_clients)?;
        Ok(UpdateApplicationPriorityResponseProto { application_priority: Some(reports::priority(set)) })
    }

    async fn set_timeouts(
        self: Arc<Self>,
        caller: Caller,
        request: UpdateApplicationTimeoutsRequestProto,
    ) -> Result<UpdateApplicationTimeoutsResponseProto, Exception> {
        let by = by(&caller)?;
        let id = ids::application(Some(request.application_id))?;
        // There is one kind of timeout.
        let Some(timeout) = request.application_timeouts.first() else {
            return Err(refused(
                "At least one ApplicationTimeoutType should be configured for updating timeouts.",
            ));
        };
        let said = timeout.expire_time();
        let at_ms = times::read(said).ok_or_else(|| {
            refused(format!(
                "Expire time is not in ISO8601 format, such as 2026-01-31T20:15:00.000+0000: `{said}`"
            ))
        })?;
        if at_ms <= self.clock.wall_ms() {
            return Err(refused(format!(
                "Expire time is less than current time, current-time={}, expire-time={said}",
                times::shown(self.clock.wall_ms())
            )));
        }
        self.manager.set_timeout(id, &by, at_ms).await.map_err(for_clients)?;
        Ok(UpdateApplicationTimeoutsResponseProto { application_timeouts: request.application_timeouts })
    }

    async fn signal(
        self: Arc<Self>,
        caller: Caller,
        request: SignalContainerRequestProto,
    ) -> Result<SignalContainerResponseProto, Exception> {
        let by = by(&caller)?;
        let command = request.command();
        let id = ids::container(Some(request.container_id))?;
        self.manager.allow(id.attempt.application, &by, AppAccess::Modify).map_err(for_clients)?;
        // To the node the caller is who submitted the application: the adapter has judged whether that is right.
        let submitter = self.manager.application(id.attempt.application).map_err(for_clients)?.user;
        let found = self.find(id)?;
        if found.state != PublicContainerState::Running {
            return Err(refused(format!("{id} does not run, and cannot be signalled")));
        }
        let (host, port) = ids::host_and_port(&found.node);
        let node = LaunchNode { name: host.to_owned(), host: host.to_owned(), port };
        let call = NodeCall { attempt: id.attempt, user: &submitter, node: &node };
        self.nodes.signal(call, ids::container_pb(id), command).await.map_err(|error| match error {
            NodeError::Refused(exception) => exception,
            NodeError::Unavailable(why) => for_clients(ManagerRefusal::Unavailable(why)),
        })?;
        self.manager.note_done(id.attempt.application, &by);
        Ok(SignalContainerResponseProto {})
    }

    /// An application as its clients see it; the token of a master that runs elsewhere is for its submitter alone.
    pub(super) fn shown(&self, caller: &Caller, report: &AppReport) -> ApplicationReportProto {
        let is_submitter = user(caller).is_ok_and(|user| user == report.user);
        // Earlier, a master that has its token would be refused.
        let attempt = report.attempt.filter(|_| report.is_unmanaged && is_submitter && report.is_launched);
        // A report without its token is asked for again until there is a key.
        let token = attempt.and_then(|attempt| self.tokens.master(attempt).ok());
        reports::application(report, token, self.clock.wall_ms())
    }

    /// Takes from reports what a caller may not see.
    pub(super) fn hide(&self, caller: &Caller, reports: &mut [AppReport]) {
        self.manager.hide(user(caller).unwrap_or_default(), reports);
    }

    /// Whether a caller may see attempts and containers of an application.
    fn may_see(&self, caller: &Caller, id: YarnApplicationId) -> Result<(), Exception> {
        let by = by(caller).unwrap_or_default();
        self.manager.allow(id, &by, AppAccess::View).map_err(|refusal| match refusal {
            ManagerRefusal::NotAllowed(_) => {
                let user = yarn_user(&by.user);
                refused(format!("User {user} does not have privilege to see this application {id}"))
            }
            other => for_clients(other),
        })
    }

    fn application(
        &self,
        caller: &Caller,
        request: GetApplicationReportRequestProto,
    ) -> Result<GetApplicationReportResponseProto, Exception> {
        let id = ids::application(request.application_id)?;
        let mut report = self.manager.application(id).map_err(for_clients)?;
        self.hide(caller, std::slice::from_mut(&mut report));
        Ok(GetApplicationReportResponseProto { application_report: Some(self.shown(caller, &report)) })
    }

    fn applications(
        &self,
        caller: &Caller,
        request: GetApplicationsRequestProto,
    ) -> Result<GetApplicationsResponseProto, Exception> {
        let states = request.application_states().filter_map(reports::state_of).collect();
        let scope = request.scope();
        let between = |begin: Option<i64>, end: Option<i64>| {
            (begin.is_some() || end.is_some()).then(|| (begin.unwrap_or(i64::MIN), end.unwrap_or(i64::MAX)))
        };
        let mut filter = AppFilter {
            states,
            kinds: request.application_types,
            tags: request.application_tags.iter().map(|tag| tag.to_ascii_lowercase()).collect(),
            users: request.users,
            queues: request.queues,
            started_ms: between(request.start_begin, request.start_end),
            finished_ms: between(request.finish_begin, request.finish_end),
            name: request.name,
            limit: request.limit.and_then(|limit| usize::try_from(limit).ok()),
            ..AppFilter::default()
        };
        if scope == ApplicationsRequestScopeProto::Own {
            let user = user(caller)?;
            if !filter.users.is_empty() && !filter.users.iter().any(|asked| asked == yarn_user(user)) {
                return Ok(GetApplicationsResponseProto::default());
            }
            filter.users = vec![user.to_owned()];
        }
        let mut found = self.manager.applications(&filter).map_err(for_clients)?;
        if scope == ApplicationsRequestScopeProto::Own {
            // The name of a principal is also that of a user who has not proved it.
            let user = user(caller)?;
            found.retain(|report| report.user == user);
        }
        if scope == ApplicationsRequestScopeProto::Viewable {
            self.manager.retain_viewable(user(caller)?, &mut found);
        }
        self.hide(caller, &mut found);
        Ok(GetApplicationsResponseProto {
            applications: found.iter().map(|report| self.shown(caller, report)).collect(),
        })
    }

    fn metrics(
        &self,
        _: &Caller,
        _: GetClusterMetricsRequestProto,
    ) -> Result<GetClusterMetricsResponseProto, Exception> {
        let nodes = self.manager.cluster().map_err(for_clients)?.nodes;
        let n = |state| i32::try_from(nodes.get(&state).copied().unwrap_or(0)).unwrap_or(i32::MAX);
        let n_all = nodes.values().fold(0_u32, |sum, n| sum.saturating_add(*n));
        Ok(GetClusterMetricsResponseProto {
            cluster_metrics: Some(YarnClusterMetricsProto {
                num_node_managers: Some(i32::try_from(n_all).unwrap_or(i32::MAX)),
                num_decommissioned_nms: Some(n(YarnNodeState::Decommissioned)),
                num_active_nms: Some(n(YarnNodeState::Running)),
                num_lost_nms: Some(n(YarnNodeState::Lost)),
                num_unhealthy_nms: Some(n(YarnNodeState::Unhealthy)),
                num_rebooted_nms: Some(0),
            }),
        })
    }

    fn cluster_nodes(
        &self,
        _: &Caller,
        request: GetClusterNodesRequestProto,
    ) -> Result<GetClusterNodesResponseProto, Exception> {
        let states: Vec<_> = request.node_states().collect();
        let nodes = self.manager.nodes().map_err(for_clients)?;
        let asked = nodes.iter().filter(|node| reports::is_asked(&states, node.state));
        Ok(GetClusterNodesResponseProto { node_reports: asked.map(reports::node).collect() })
    }

    fn attempt(
        &self,
        caller: &Caller,
        request: GetApplicationAttemptReportRequestProto,
    ) -> Result<GetApplicationAttemptReportResponseProto, Exception> {
        let id = ids::attempt(request.application_attempt_id)?;
        self.may_see(caller, id.application)?;
        let attempts = self.manager.attempts(id.application).map_err(for_clients)?;
        let found = attempts.iter().find(|attempt| attempt.id == id);
        let found = found.ok_or_else(|| for_clients(ManagerRefusal::NoAttempt(id)))?;
        Ok(GetApplicationAttemptReportResponseProto {
            application_attempt_report: Some(reports::attempt(found)),
        })
    }

    fn attempts(
        &self,
        caller: &Caller,
        request: GetApplicationAttemptsRequestProto,
    ) -> Result<GetApplicationAttemptsResponseProto, Exception> {
        let id = ids::application(request.application_id)?;
        self.may_see(caller, id)?;
        let attempts = self.manager.attempts(id).map_err(for_clients)?;
        Ok(GetApplicationAttemptsResponseProto {
            application_attempts: attempts.iter().map(reports::attempt).collect(),
        })
    }

    fn find(&self, id: YarnContainerId) -> Result<ContainerReport, Exception> {
        let containers = self.manager.containers(id.attempt).map_err(for_clients)?;
        let found = containers.into_iter().find(|container| container.id == id);
        found.ok_or_else(|| for_clients(ManagerRefusal::NoContainer(id)))
    }

    fn container(
        &self,
        caller: &Caller,
        request: GetContainerReportRequestProto,
    ) -> Result<GetContainerReportResponseProto, Exception> {
        let id = ids::container(request.container_id)?;
        self.may_see(caller, id.attempt.application)?;
        let found = self.find(id)?;
        Ok(GetContainerReportResponseProto { container_report: Some(reports::container(&found)) })
    }

    fn containers(
        &self,
        caller: &Caller,
        request: GetContainersRequestProto,
    ) -> Result<GetContainersResponseProto, Exception> {
        let id = ids::attempt(request.application_attempt_id)?;
        self.may_see(caller, id.application)?;
        let containers = self.manager.containers(id).map_err(for_clients)?;
        Ok(GetContainersResponseProto { containers: containers.iter().map(reports::container).collect() })
    }
}
