//! Reports as messages of the API.

use godel_core_yarn::{
    adapter::{AllocatedContainer, CompletedContainer, Registration},
    application::{EndTarget, FinalStatus, PublicAppState},
    attempt::AttemptState,
    container::PublicContainerState,
};
use godel_core_yarn_leader::{
    AppReport, AttemptReport, ContainerReport, MasterAnswer, QueueReport, YarnAmount,
};
use godel_proto::v1;

/// Port of a master that serves no clients.
const NO_PORT: i32 = -1;

pub(super) fn amount(amount: YarnAmount) -> v1::YarnAmount {
    let YarnAmount { memory_mb, vcores, others } = amount;
    v1::YarnAmount { memory_mb, vcores, others: others.into_iter().collect() }
}

pub(super) fn app_state(state: PublicAppState) -> v1::YarnAppState {
    match state {
        PublicAppState::New => v1::YarnAppState::New,
        PublicAppState::NewSaving => v1::YarnAppState::NewSaving,
        PublicAppState::Submitted => v1::YarnAppState::Submitted,
        PublicAppState::Accepted => v1::YarnAppState::Accepted,
        PublicAppState::Running => v1::YarnAppState::Running,
        PublicAppState::Finished => v1::YarnAppState::Finished,
        PublicAppState::Failed => v1::YarnAppState::Failed,
        PublicAppState::Killed => v1::YarnAppState::Killed,
    }
}

fn final_status(status: FinalStatus) -> v1::YarnAppFinalStatus {
    match status {
        FinalStatus::Undefined => v1::YarnAppFinalStatus::Unspecified,
        FinalStatus::Succeeded => v1::YarnAppFinalStatus::Succeeded,
        FinalStatus::Failed => v1::YarnAppFinalStatus::Failed,
        FinalStatus::Killed => v1::YarnAppFinalStatus::Killed,
    }
}

fn attempt_state(state: AttemptState) -> v1::YarnAttemptState {
    match state {
        AttemptState::New => v1::YarnAttemptState::New,
        AttemptState::Submitted | AttemptState::LaunchedUnmanagedSaving => v1::YarnAttemptState::Submitted,
        AttemptState::Scheduled => v1::YarnAttemptState::Scheduled,
        AttemptState::AllocatedSaving | AttemptState::Allocated => v1::YarnAttemptState::Allocated,
        AttemptState::Launched => v1::YarnAttemptState::Launched,
        AttemptState::Running => v1::YarnAttemptState::Running,
        AttemptState::Finishing
        | AttemptState::FinalSaving { target: EndTarget::Finishing | EndTarget::Finished } => {
            v1::YarnAttemptState::Finishing
        }
        AttemptState::Finished => v1::YarnAttemptState::Finished,
        AttemptState::Failed | AttemptState::FinalSaving { target: EndTarget::Failed } => {
            v1::YarnAttemptState::Failed
        }
        AttemptState::Killed | AttemptState::FinalSaving { target: EndTarget::Killed } => {
            v1::YarnAttemptState::Killed
        }
    }
}

fn container_state(state: PublicContainerState) -> v1::YarnContainerState {
    match state {
        PublicContainerState::New => v1::YarnContainerState::New,
        PublicContainerState::Running => v1::YarnContainerState::Running,
        PublicContainerState::Complete => v1::YarnContainerState::Complete,
    }
}

/// Host, port and page of a master; before it has registered none.
fn registered(registration: Option<Registration>) -> (String, i32, String) {
    let Registration { host, rpc_port, tracking_url } =
        registration.unwrap_or_else(|| Registration { rpc_port: NO_PORT, ..Registration::default() });
    (host, rpc_port, tracking_url)
}

pub(super) fn application(report: AppReport) -> v1::YarnApplicationStatus {
    let AppReport {
        id,
        name,
        user,
        queue,
        kind,
        tags,
        priority,
        state,
        final_status: ended,
        diagnostics,
        start_ms,
        launch_ms,
        finish_ms,
        progress,
        attempt,
        is_launched: _,
        registration,
        master_node,
        is_unmanaged,
        label,
        master_label: _,
        used,
        n_containers,
        pending,
        n_pending,
        memory_seconds,
        vcore_seconds,
        timeout_at_ms,
    } = report;
    let (master_host, master_rpc_port, tracking_url) = registered(registration);
    v1::YarnApplicationStatus {
        application_id: id.to_string(),
        name,
        user,
        queue,
        kind,
        tags,
        priority,
        state: app_state(state).into(),
        final_status: final_status(ended).into(),
        diagnostics,
        start_ms,
        launch_ms,
        finish_ms,
        progress,
        attempt_id: attempt.map(|id| id.to_string()).unwrap_or_default(),
        master_node: master_node.unwrap_or_default(),
        master_host,
        master_rpc_port,
        tracking_url,
        unmanaged: is_unmanaged,
        used: Some(amount(used)),
        containers: n_containers,
        pending: Some(amount(pending)),
        pending_containers: n_pending,
        memory_seconds,
        vcore_seconds,
        timeout_at_ms,
        label,
    }
}

pub(super) fn attempt(report: AttemptReport) -> v1::YarnAttempt {
    let AttemptReport { id, state, master, node, registration, diagnostics, start_ms, finish_ms } = report;
    let (master_host, master_rpc_port, tracking_url) = registered(registration);
    v1::YarnAttempt {
        attempt_id: id.to_string(),
        state: attempt_state(state).into(),
        container_id: master.map(|id| id.to_string()).unwrap_or_default(),
        node: node.unwrap_or_default(),
        master_host,
        master_rpc_port,
        tracking_url,
        diagnostics,
        start_ms,
        finish_ms,
    }
}

pub(super) fn container(report: ContainerReport) -> v1::YarnContainer {
    let ContainerReport { id, key, amount: given, state, node, start_ms, finish_ms, exit, diagnostics } =
        report;
    v1::YarnContainer {
        container_id: id.to_string(),
        amount: Some(amount(given)),
        state: container_state(state).into(),
        node,
        priority: key.map_or(0, |key| key.group.priority),
        start_ms,
        finish_ms,
        exit_status: exit,
        diagnostics,
    }
}

pub(super) fn queue(report: QueueReport) -> v1::YarnQueue {
    let QueueReport {
        path,
        capacity,
        maximum_capacity,
        absolute_capacity,
        absolute_maximum_capacity,
        absolute_used_capacity,
        used_capacity,
        is_running,
        used,
        pending,
        n_containers,
        n_pending_containers,
        n_active,
        n_pending,
        submit_owners,
        is_leaf,
    } = report;
    v1::YarnQueue {
        path,
        capacity,
        maximum_capacity,
        absolute_capacity,
        absolute_maximum_capacity,
        absolute_used_capacity,
        used_capacity,
        running: is_running,
        used: Some(amount(used)),
        pending: Some(amount(pending)),
        containers: n_containers,
        pending_containers: n_pending_containers,
        active_applications: n_active,
        pending_applications: n_pending,
        submit_owners,
        leaf: is_leaf,
    }
}

pub(super) fn allocated(container: AllocatedContainer) -> v1::YarnAllocatedContainer {
    let AllocatedContainer { id, ordinal: _, node, key } = container;
    v1::YarnAllocatedContainer {
        container_id: id.to_string(),
        node,
        amount: Some(amount(YarnAmount::from_capability(&key.group.capability))),
        priority: key.group.priority,
        allocation_request_id: key.allocation_request_id,
    }
}

pub(super) fn allocation(answer: MasterAnswer) -> v1::AllocateResponse {
    let completed = |CompletedContainer { id, exit }| v1::YarnCompletedContainer {
        container_id: id.to_string(),
        exit_status: exit.0,
    };
    v1::AllocateResponse {
        response_id: answer.answer.response_id,
        allocated: answer.answer.allocated.into_iter().map(allocated).collect(),
        completed: answer.answer.completed.into_iter().map(completed).collect(),
        headroom: Some(amount(answer.headroom)),
        nodes: answer.n_nodes,
        preempted: answer.preempted.iter().map(ToString::to_string).collect(),
        priority: answer.priority,
    }
}
