//! Applications, attempts, containers and nodes as clients see them.

use godel_core_yarn::{
    application::{FinalStatus, PublicAppState},
    asks::ExecutionType,
    attempt::AttemptState,
    container::PublicContainerState,
};
use godel_core_yarn_leader::{AppReport, AttemptReport, ContainerReport, YarnNodeReport, YarnNodeState};
use godel_domain::names::yarn_user;
use godel_hadoop::{
    common::TokenProto,
    yarn::{
        AppTimeoutsMapProto, ApplicationAttemptReportProto, ApplicationReportProto,
        ApplicationResourceUsageReportProto, ApplicationTimeoutProto, ApplicationTimeoutTypeProto,
        ContainerReportProto, ContainerStateProto, ExecutionTypeProto, FinalApplicationStatusProto,
        LogAggregationStatusProto, NodeReportProto, NodeStateProto, NodeUpdateTypeProto, PriorityProto,
        StringLongMapProto, YarnApplicationAttemptStateProto, YarnApplicationStateProto,
    },
};

use super::{amounts, ids, labels, times};

/// What YARN shows where there is nothing.
pub(super) const NOT_AVAILABLE: &str = "N/A";
/// There is no web server on nodes.
const NO_WEB_PORT: u16 = 0;

pub(super) fn priority(priority: i32) -> PriorityProto {
    PriorityProto { priority: Some(priority) }
}

/// The text, or what YARN shows instead of an empty one.
fn shown(text: &str) -> Option<String> {
    Some(if text.is_empty() { NOT_AVAILABLE } else { text }.to_owned())
}

pub(super) fn web_address(node: &str) -> String {
    format!("{}:{NO_WEB_PORT}", ids::host_and_port(node).0)
}

pub(super) fn state_pb(state: PublicAppState) -> YarnApplicationStateProto {
    match state {
        PublicAppState::New => YarnApplicationStateProto::New,
        PublicAppState::NewSaving => YarnApplicationStateProto::NewSaving,
        PublicAppState::Submitted => YarnApplicationStateProto::Submitted,
        PublicAppState::Accepted => YarnApplicationStateProto::Accepted,
        PublicAppState::Running => YarnApplicationStateProto::Running,
        PublicAppState::Finished => YarnApplicationStateProto::Finished,
        PublicAppState::Failed => YarnApplicationStateProto::Failed,
        PublicAppState::Killed => YarnApplicationStateProto::Killed,
    }
}

pub(super) fn state_of(pb: YarnApplicationStateProto) -> Option<PublicAppState> {
    PublicAppState::ALL.into_iter().find(|state| state_pb(*state) == pb)
}

fn final_status_pb(status: FinalStatus) -> FinalApplicationStatusProto {
    match status {
        FinalStatus::Undefined => FinalApplicationStatusProto::AppUndefined,
        FinalStatus::Succeeded => FinalApplicationStatusProto::AppSucceeded,
        FinalStatus::Failed => FinalApplicationStatusProto::AppFailed,
        FinalStatus::Killed => FinalApplicationStatusProto::AppKilled,
    }
}

/// What a master says of its end. `ENDED` is for applications of several parts, which godel has not: it counts as a success.
pub(super) fn final_status_of(pb: FinalApplicationStatusProto) -> FinalStatus {
    match pb {
        FinalApplicationStatusProto::AppUndefined => FinalStatus::Undefined,
        FinalApplicationStatusProto::AppSucceeded | FinalApplicationStatusProto::AppEnded => {
            FinalStatus::Succeeded
        }
        FinalApplicationStatusProto::AppFailed => FinalStatus::Failed,
        FinalApplicationStatusProto::AppKilled => FinalStatus::Killed,
    }
}

pub(super) fn execution_pb(execution: ExecutionType) -> ExecutionTypeProto {
    match execution {
        ExecutionType::Guaranteed => ExecutionTypeProto::Guaranteed,
        ExecutionType::Opportunistic => ExecutionTypeProto::Opportunistic,
    }
}

/// An application at a time; `token` is that of a master that runs elsewhere.
pub(super) fn application(
    report: &AppReport,
    token: Option<TokenProto>,
    now_ms: i64,
) -> ApplicationReportProto {
    let registration = report.registration.as_ref();
    let tracking_url = registration.map_or("", |registration| registration.tracking_url.as_str());
    let attempt = report.attempt.map_or_else(|| ids::no_attempt_pb(report.id), ids::attempt_pb);
    ApplicationReportProto {
        application_id: Some(ids::application_pb(report.id)),
        user: Some(yarn_user(&report.user).to_owned()),
        queue: Some(report.queue.clone()),
        name: Some(report.name.clone()),
        host: shown(registration.map_or("", |registration| registration.host.as_str())),
        rpc_port: Some(registration.map_or(-1, |registration| registration.rpc_port)),
        yarn_application_state: Some(state_pb(report.state).into()),
        tracking_url: shown(tracking_url),
        diagnostics: Some(report.diagnostics.clone()),
        start_time: Some(report.start_ms),
        finish_time: Some(report.finish_ms),
        final_application_status: Some(final_status_pb(report.final_status).into()),
        app_resource_usage: Some(usage(report)),
        original_tracking_url: shown(tracking_url),
        current_application_attempt_id: Some(attempt),
        progress: Some(report.progress),
        application_type: Some(report.kind.clone()),
        am_rm_token: token,
        application_tags: report.tags.clone(),
        log_aggregation_status: Some(LogAggregationStatusProto::LogDisabled.into()),
        unmanaged_application: Some(report.is_unmanaged),
        priority: Some(priority(report.priority)),
        app_node_label_expression: Some(if report.label.is_empty() {
            "<Not set>".to_owned()
        } else {
            report.label.clone()
        }),
        am_node_label_expression: Some(if report.master_label.is_empty() {
            "<DEFAULT_PARTITION>".to_owned()
        } else {
            report.master_label.clone()
        }),
        app_timeouts: vec![timeout(report, now_ms)],
        launch_time: Some(report.launch_ms),
        submit_time: Some(report.start_ms),
    }
}

fn usage(report: &AppReport) -> ApplicationResourceUsageReportProto {
    let (memory, vcores) = (report.memory_seconds, report.vcore_seconds);
    let seconds = amounts::seconds(memory, vcores);
    let needed = godel_core_yarn_leader::YarnAmount {
        memory_mb: report.used.memory_mb.saturating_add(report.pending.memory_mb),
        vcores: report.used.vcores.saturating_add(report.pending.vcores),
        ..godel_core_yarn_leader::YarnAmount::default()
    };
    ApplicationResourceUsageReportProto {
        num_used_containers: Some(i32::try_from(report.n_containers).unwrap_or(i32::MAX)),
        num_reserved_containers: Some(0),
        used_resources: Some(amounts::pb(&report.used)),
        reserved_resources: Some(amounts::pb(&godel_core_yarn_leader::YarnAmount::default())),
        needed_resources: Some(amounts::pb(&needed)),
        memory_seconds: Some(memory),
        vcore_seconds: Some(vcores),
        application_resource_usage_map: seconds
            .map(|(key, value)| StringLongMapProto { key: key.to_owned(), value })
            .into(),
    }
}

/// YARN shows the lifetime of every application, also of one that has none.
fn timeout(report: &AppReport, now_ms: i64) -> AppTimeoutsMapProto {
    let kind = ApplicationTimeoutTypeProto::AppTimeoutLifetime.into();
    let (expire_time, remaining_time) = match report.timeout_at_ms {
        None => ("UNLIMITED".to_owned(), -1),
        Some(at_ms) if report.finish_ms > 0 => (times::shown(at_ms), 0),
        Some(at_ms) => (times::shown(at_ms), at_ms.saturating_sub(now_ms).max(0) / 1_000),
    };
    AppTimeoutsMapProto {
        application_timeout_type: Some(kind),
        application_timeout: Some(ApplicationTimeoutProto {
            application_timeout_type: kind,
            expire_time: Some(expire_time),
            remaining_time: Some(remaining_time),
        }),
    }
}

/// States that are only about recording show the state before.
fn attempt_state_pb(state: AttemptState) -> YarnApplicationAttemptStateProto {
    use YarnApplicationAttemptStateProto as Pb;
    match state {
        AttemptState::New => Pb::AppAttemptNew,
        AttemptState::Submitted => Pb::AppAttemptSubmitted,
        AttemptState::Scheduled => Pb::AppAttemptScheduled,
        AttemptState::AllocatedSaving => Pb::AppAttemptAllocatedSaving,
        AttemptState::Allocated | AttemptState::LaunchedUnmanagedSaving => Pb::AppAttemptAllocated,
        AttemptState::Launched => Pb::AppAttemptLaunched,
        AttemptState::Running | AttemptState::FinalSaving { .. } => Pb::AppAttemptRunning,
        AttemptState::Finishing => Pb::AppAttemptFinishing,
        AttemptState::Finished => Pb::AppAttemptFinished,
        AttemptState::Failed => Pb::AppAttemptFailed,
        AttemptState::Killed => Pb::AppAttemptKilled,
    }
}

pub(super) fn attempt(report: &AttemptReport) -> ApplicationAttemptReportProto {
    let AttemptReport { id, state, master, node: _, registration, diagnostics, start_ms, finish_ms } = report;
    let registration = registration.as_ref();
    let tracking_url = registration.map_or("", |registration| registration.tracking_url.as_str());
    ApplicationAttemptReportProto {
        application_attempt_id: Some(ids::attempt_pb(*id)),
        host: shown(registration.map_or("", |registration| registration.host.as_str())),
        rpc_port: Some(registration.map_or(-1, |registration| registration.rpc_port)),
        tracking_url: shown(tracking_url),
        diagnostics: Some(diagnostics.clone()),
        yarn_application_attempt_state: Some(attempt_state_pb(*state).into()),
        am_container_id: master.map(ids::container_pb),
        original_tracking_url: shown(tracking_url),
        start_time: Some(*start_ms),
        finish_time: Some(*finish_ms),
    }
}

pub(super) fn container(report: &ContainerReport) -> ContainerReportProto {
    let ContainerReport { id, key, amount, state, node, start_ms, finish_ms, exit, diagnostics } = report;
    let (host, port) = ids::host_and_port(node);
    let (wanted, execution) =
        key.as_ref().map_or((0, ExecutionType::Guaranteed), |key| (key.group.priority, key.group.execution));
    let state = match state {
        PublicContainerState::New => ContainerStateProto::CNew,
        PublicContainerState::Running => ContainerStateProto::CRunning,
        PublicContainerState::Complete => ContainerStateProto::CComplete,
    };
    ContainerReportProto {
        container_id: Some(ids::container_pb(*id)),
        resource: Some(amounts::pb(amount)),
        node_id: Some(ids::node_pb(host, port)),
        priority: Some(priority(wanted)),
        creation_time: Some(*start_ms),
        finish_time: Some(*finish_ms),
        diagnostics_info: Some(diagnostics.clone()),
        log_url: Some(NOT_AVAILABLE.to_owned()),
        container_exit_status: Some(*exit),
        container_state: Some(state.into()),
        node_http_address: Some(web_address(node)),
        execution_type: Some(execution_pb(execution).into()),
    }
}

fn node_state_pb(state: YarnNodeState) -> NodeStateProto {
    match state {
        YarnNodeState::Running => NodeStateProto::NsRunning,
        YarnNodeState::Decommissioning => NodeStateProto::NsDecommissioning,
        YarnNodeState::Decommissioned => NodeStateProto::NsDecommissioned,
        YarnNodeState::Lost => NodeStateProto::NsLost,
        YarnNodeState::Unhealthy => NodeStateProto::NsUnhealthy,
    }
}

/// Whether one of the asked states is that of a node; none asked: every state is.
pub(super) fn is_asked(states: &[NodeStateProto], state: YarnNodeState) -> bool {
    states.is_empty() || states.contains(&node_state_pb(state))
}

pub(super) fn node(report: &YarnNodeReport) -> NodeReportProto {
    let YarnNodeReport {
        host, port, rack, state, total, used, n_containers, label, health, heard_ms, ..
    } = report;
    NodeReportProto {
        node_id: Some(ids::node_pb(host, *port)),
        http_address: Some(format!("{host}:{NO_WEB_PORT}")),
        rack_name: Some(rack.clone()),
        used: Some(amounts::pb(used)),
        capability: Some(amounts::pb(total)),
        num_containers: Some(i32::try_from(*n_containers).unwrap_or(i32::MAX)),
        node_state: Some(node_state_pb(*state).into()),
        health_report: Some(health.clone()),
        last_health_report_time: Some(*heard_ms),
        node_labels: Some(label.clone()).into_iter().filter(|label| !label.is_empty()).collect(),
        node_update_type: None,
        node_attributes: labels::attributes(report),
    }
}

/// A node that has changed, for a master.
pub(super) fn changed_node(report: &YarnNodeReport) -> NodeReportProto {
    let update = match report.state {
        YarnNodeState::Running => NodeUpdateTypeProto::NodeUsable,
        YarnNodeState::Decommissioning => NodeUpdateTypeProto::NodeDecommissioning,
        YarnNodeState::Decommissioned | YarnNodeState::Lost | YarnNodeState::Unhealthy => {
            NodeUpdateTypeProto::NodeUnusable
        }
    };
    NodeReportProto { node_update_type: Some(update.into()), ..node(report) }
}
