//! What the adapter wants done of its units, done: one worker for each application that has something to do, one action after the other.
//!
//! Every action may be done twice: sizes of task groups are absolute, ordinals are released once, and the next incarnation is asked for by what
//! the rows show. Calls are repeated until the dispatcher accepts or refuses them for good, or this adapter no longer leads.

use std::{sync::Arc, time::Duration};

use godel_base::ids::{ReplicaId, Revision};
use godel_core_yarn::{
    adapter::{AdapterTime, LaunchFailure, LaunchFailureScope, MASTER, OPPORTUNISTIC, YarnAction},
    attempt::AttemptState,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};
use godel_kit::{
    client::{Backoff, Channel},
    message::RECEIVED_BYTES_MAX,
    task,
};
use godel_membership::node_failures;
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use godel_wire::to_proto;
use tokio::time::{Instant, sleep};
use tonic::{Code, Response, Status};

use super::{
    grow::{grow, release},
    queues,
    shared::{Inner, Shared, Term},
    show::DIAGNOSTICS_MAX,
    waits,
};
use crate::{
    avoided,
    launcher::{LaunchRefusal, MasterLaunch},
    reports::YarnAmount,
    unit::{unit_name, unit_name_of, unit_spec},
};

/// Name of the dispatcher's lease.
pub(super) const DISPATCHER: &str = "dispatcher";
/// Pauses between calls that fail: the first one at most, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// One call of a node.
const LAUNCH_LIMIT: Duration = Duration::from_secs(15);
/// A master that is to be stopped is tried for so long; its unit ends it at last.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Between looks at a replica that has not ended yet.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Does what an application has to do until nothing is left, or the time of this leader is over.
pub(crate) async fn work(shared: Arc<Shared>, term: Term, id: YarnApplicationId) {
    loop {
        let action = {
            let mut inner = shared.inner.lock();
            // Another time has its own entries and its own workers.
            if term.stop.is_cancelled() {
                return;
            }
            inner.next_action(id)
        };
        let Some(action) = action else { return };
        tokio::select! {
            () = term.stop.cancelled() => return,
            () = perform(&shared, &term, action) => {}
        }
    }
}

async fn perform(shared: &Arc<Shared>, term: &Term, action: YarnAction) {
    match action {
        // The writer of records does that.
        YarnAction::PutRecord(..) => {}
        YarnAction::SubmitUnit(id) => submit(shared, id).await,
        YarnAction::Grow(id, add) => grow(shared, id, add).await,
        YarnAction::Release(id, ordinals) => release(shared, id, &ordinals).await,
        YarnAction::NextMaster(id) => next_master(shared, id).await,
        YarnAction::MoveUnit(id, queue) => {
            if let Err(status) = change_unit(shared, id, |spec| spec.queue.clone_from(&queue)).await {
                tracing::warn!(application = %id, queue, why = status.message(), "the unit stays in its queue");
            }
        }
        YarnAction::CancelUnit(id) => cancel(shared, id).await,
        YarnAction::LaunchMaster(attempt, _) => {
            task::spawn("yarn.launch", within(term.clone(), launch(Arc::clone(shared), attempt)));
        }
        YarnAction::StopMaster(attempt) => {
            task::spawn("yarn.stop", within(term.clone(), stop(Arc::clone(shared), attempt)));
        }
    }
}

async fn within(term: Term, what: impl Future<Output = ()>) {
    tokio::select! {
        () = term.stop.cancelled() => {}
        () = what => {}
    }
}

/// Whether the same call may succeed later.
fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Cancelled
            | Code::Unknown
    )
}

/// Calls the leading dispatcher until it answers for good.
pub(super) async fn call<T, F, Fut>(shared: &Shared, op: F) -> Result<T, Status>
where
    F: Fn(UnitServiceClient<Channel>) -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    loop {
        let answer = {
            let _permit = shared.calls.acquire().await.map_err(|_| Status::cancelled("the adapter stops"))?;
            let client = |channel: Channel| {
                op(UnitServiceClient::new(channel).max_decoding_message_size(RECEIVED_BYTES_MAX))
            };
            shared.context.directory.call_leader(DISPATCHER, client).await
        };
        match answer {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if is_passing(&status) => {
                shared.context.metrics.calls_retried.inc();
                tracing::debug!(code = ?status.code(), why = status.message(), "calling the dispatcher again");
                sleep(backoff.pause()).await;
            }
            Err(status) => {
                shared.context.metrics.calls_refused.inc();
                return Err(status);
            }
        }
    }
}

async fn submit(shared: &Arc<Shared>, id: YarnApplicationId) {
    let spec = shared.inner.lock().application(id).ok().map(|(application, _)| {
        let of = application.submission();
        unit_spec(&shared.context.config, id, &of.user, &of.queue, of.priority, of.master.as_ref())
    });
    let Some(spec) = spec else { return };
    let answer = submit_spec(shared, spec).await;
    shared.context.crash.hit("yarn.after-submit");
    match answer {
        Ok(revision) => {
            shared.until_read(revision).await;
            shared
                .run_on(id, |application, terms, at, out| application.unit_answered(Ok(()), terms, at, out));
            // Its master may have had a place before the application knew that it has a unit.
            show_master(shared, id);
        }
        Err(status) => {
            let why = format!("The application was refused: {}", status.message());
            shared.run_on(id, |application, terms, at, out| {
                application.unit_answered(Err(&why), terms, at, out);
            });
        }
    }
}

/// Tells an application where its master is by now.
fn show_master(shared: &Arc<Shared>, id: YarnApplicationId) {
    // Who follows has read it.
    let _ = shared.run(|inner, at, out| tell_master(inner, id, at, out));
}

/// The same under the lock.
pub(crate) fn tell_master(
    inner: &mut Inner,
    id: YarnApplicationId,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    let Some(entry) = inner.picture.unit(id) else { return };
    let row = entry.row(MASTER);
    let Some(node) = inner.picture.launch_node(row.node) else { return };
    let rack = inner.picture.rack(row.node);
    let replica = ReplicaId::new(MASTER, row.incarnation);
    if row.phase.is_live() || row.phase.is_ended() {
        // There is one: the unit is of it.
        let _ = inner.adapter.with(id, |application, terms| {
            let node = format!("{}:{}", node.host, node.port);
            application.placed(replica, &node, &rack, terms, at, out);
        });
    }
    if row.phase.is_ended() {
        end_master(inner, id, row.incarnation, at, out);
    }
}

/// Tells an application that an incarnation of its master has ended, or that its command never ran.
pub(crate) fn end_master(
    inner: &mut Inner,
    id: YarnApplicationId,
    incarnation: u32,
    at: AdapterTime,
    out: &mut Vec<YarnAction>,
) {
    let Inner { picture, adapter, entries, .. } = inner;
    let Some(unit) = picture.unit(id) else { return };
    let (row, exit) = (unit.row(MASTER), unit.exit_of(MASTER));
    let is_it = row.incarnation == incarnation && row.eviction.is_none();
    let lack = unit.end(MASTER).reason.filter(|reason| is_it && node_failures::is_lack(*reason));
    let Some(reason) = lack else {
        // There is one: the unit is of it.
        let _ = adapter.with(id, |application, terms| {
            application.ended(ReplicaId::new(MASTER, incarnation), exit, terms, at, out);
        });
        return;
    };
    let node = picture.launch_node(row.node).map_or_else(|| "its node".to_owned(), |node| node.name);
    let meta = &unit.record.spec;
    let why = format!(
        "{node} could not start it ({}): `godel unit logs {}/{MASTER} -n {}` shows what it lacks",
        reason.name(),
        meta.name,
        meta.namespace
    );
    let noted = usize::try_from(incarnation).ok().zip(entries.get_mut(&id));
    if let Some(notes) = noted.and_then(|(idx, entry)| entry.notes.attempts.get_mut(idx)) {
        notes.diagnostics.clone_from(&why);
    }
    let _ = adapter.with(id, |application, terms| {
        let has_other_node = avoided::has_other_node(picture, id, application.tried_nodes().nodes());
        let failure = LaunchFailure { why: &why, scope: LaunchFailureScope::Node, has_other_node };
        application.master_never_ran(incarnation, failure, terms, at, out);
    });
}

pub(super) async fn submit_spec(shared: &Shared, spec: v1::UnitSpec) -> Result<Revision, Status> {
    let request = v1::SubmitUnitRequest { unit: Some(spec) };
    let answer = call(shared, async |mut client| client.submit_unit(request.clone()).await);
    Ok(Revision(answer.await?.revision))
}

async fn next_master(shared: &Arc<Shared>, id: YarnApplicationId) {
    let is_wanted = |inner: &Inner| {
        let Ok((application, _)) = inner.application(id) else { return false };
        let waits =
            application.attempts().last().is_some_and(|attempt| attempt.state == AttemptState::Scheduled);
        let incarnation = application.master_incarnation();
        waits && inner.picture.unit(id).is_some_and(|unit| unit.row(MASTER).incarnation < incarnation)
    };
    // Whatever is on its node leaves first; what the dispatcher has yet to read it refuses.
    let is_there =
        |inner: &Inner| inner.picture.unit(id).is_some_and(|unit| unit.row(MASTER).phase.is_live());
    shared.until(|inner| !is_wanted(inner) || !is_there(inner)).await;
    let preferred_nodes = preferred_nodes(&shared.inner.lock(), id);
    let mut backoff = Backoff::new(PAUSE.0, LOOK);
    let request = v1::RetryUnitRequest {
        namespace: shared.context.config.namespace.clone(),
        name: unit_name(id),
        ordinals: vec![MASTER],
        preferred_nodes,
        ..v1::RetryUnitRequest::default()
    };
    while is_wanted(&shared.inner.lock()) {
        let answer = call(shared, async |mut client| client.retry_unit(request.clone()).await).await;
        match answer {
            Ok(answer) => return shared.until_read(Revision(answer.revision)).await,
            Err(status) if status.code() == Code::FailedPrecondition => sleep(backoff.pause()).await,
            Err(status) => {
                tracing::warn!(application = %id, why = status.message(), "there is no next master");
                return;
            }
        }
    }
}

/// What the next master prefers: nodes on which no master of its application has failed.
fn preferred_nodes(inner: &Inner, id: YarnApplicationId) -> Vec<v1::PreferredNodes> {
    let failed = inner.application(id).map(|(application, _)| application.failed_nodes());
    avoided::preferred(&failed.unwrap_or_default(), inner.picture.launch_nodes())
}

/// Changes the units of an application as a whole, but for their task groups: first the one with its master, whose refusal counts.
///
/// # Errors
/// Why the dispatcher refuses that for good.
pub(crate) async fn change_unit(
    shared: &Arc<Shared>,
    id: YarnApplicationId,
    change: impl Fn(&mut v1::UnitSpec),
) -> Result<(), Status> {
    for side in [MASTER, OPPORTUNISTIC] {
        let spec = {
            let inner = shared.inner.lock();
            let unit = inner.picture.unit_of(id, side).filter(|unit| side == MASTER || unit.is_alive());
            unit.map(|unit| to_proto::unit_spec(&unit.record.spec))
        };
        let Some(mut spec) = spec else { continue };
        change(&mut spec);
        let request = v1::UpdateUnitRequest { unit: Some(spec), ..v1::UpdateUnitRequest::default() };
        let answer = call(shared, async |mut client| client.update_unit(request.clone()).await).await?;
        shared.until_read(Revision(answer.revision)).await;
    }
    Ok(())
}

async fn cancel(shared: &Arc<Shared>, id: YarnApplicationId) {
    for side in [OPPORTUNISTIC, MASTER] {
        let is_there =
            |inner: &Inner| inner.picture.unit_of(id, side).is_some_and(|unit| !unit.record.status.cancelled);
        if !is_there(&shared.inner.lock()) {
            continue;
        }
        let request = v1::CancelUnitRequest {
            namespace: shared.context.config.namespace.clone(),
            name: unit_name_of(id, side),
            expected_revision: 0,
        };
        let answer = call(shared, async |mut client| client.cancel_unit(request.clone()).await).await;
        match answer {
            Ok(_) => {}
            Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => {}
            Err(status) => {
                tracing::warn!(application = %id, why = status.message(), "the unit could not be cancelled");
            }
        }
    }
}

/// What a node is to be told of the master of an attempt; `None`: it is not on a node.
fn master_launch(shared: &Shared, attempt: YarnAttemptId) -> Option<MasterLaunch> {
    let inner = shared.inner.lock();
    let (application, entry) = inner.application(attempt.application).ok()?;
    let row = inner.picture.unit(attempt.application)?.row(MASTER);
    if !row.phase.is_live() || row.incarnation.checked_add(1) != Some(attempt.number) {
        return None;
    }
    let (node, unit) = inner.picture.place(attempt.application, MASTER)?;
    let submission = application.submission();
    let capability = submission.master.as_ref().map(|master| &master.capability);
    let wanted = u32::try_from(submission.max_attempts).unwrap_or(0);
    let most = shared.context.config.max_attempts;
    Some(MasterLaunch {
        attempt,
        container: YarnContainerId { attempt, epoch: 0, number: u64::from(MASTER) + 1 },
        node,
        unit,
        amount: capability.map(YarnAmount::from_capability).unwrap_or_default(),
        user: submission.user.clone(),
        queue: queues::yarn_name(&shared.context.config.root_queue, &submission.queue),
        launch: entry.notes.launch.clone(),
        submit_ms: application.times_ms().0,
        max_attempts: if (1..=most).contains(&wanted) { wanted } else { most },
    })
}

async fn launch(shared: Arc<Shared>, attempt: YarnAttemptId) {
    // It waits for a place no more.
    waits::note(&shared, attempt.application, String::new());
    let deadline = Instant::now() + *shared.context.config.launch_timeout;
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    let id = attempt.application;
    let launched = loop {
        let Some(launch) = master_launch(&shared, attempt) else { return };
        let node = launch.node.name.clone();
        let answer = tokio::time::timeout(LAUNCH_LIMIT, shared.context.launcher.launch(launch)).await;
        let why = match answer {
            Ok(Ok(())) => break Ok(()),
            Ok(Err(LaunchRefusal::Refused(why))) => break Err((why, LaunchFailureScope::Node)),
            Ok(Err(LaunchRefusal::Hopeless(why))) => break Err((why, LaunchFailureScope::Everywhere)),
            Ok(Err(LaunchRefusal::Unavailable(why))) => why,
            Err(_) => format!("node {node} did not answer"),
        };
        if Instant::now() >= deadline {
            break Err((why, LaunchFailureScope::Late));
        }
        tracing::debug!(%attempt, node, why, "starting the application master again");
        waits::note(&shared, id, waits::for_launch(&why));
        sleep(backoff.pause()).await;
    };
    shared.context.crash.hit("yarn.after-launch");
    let metrics = &shared.context.metrics;
    if let Err((why, _)) = &launched {
        metrics.launches_failed.inc();
        tracing::warn!(%attempt, why, "the application master could not be started");
    } else {
        metrics.launched.inc();
    }
    // Who follows starts it again.
    let _ = shared.run(|inner, at, out| {
        let noted = usize::try_from(attempt.number).ok().and_then(|number| number.checked_sub(1));
        let entry = inner.entries.get_mut(&id).zip(noted);
        let notes = entry.and_then(|(entry, idx)| {
            entry.waits.clear();
            entry.notes.attempts.get_mut(idx)
        });
        match (notes, &launched) {
            (Some(notes), Ok(())) if notes.launch_ms == 0 => notes.launch_ms = at.wall_ms,
            (Some(notes), Err((why, _))) => notes.diagnostics = why.chars().take(DIAGNOSTICS_MAX).collect(),
            (Some(_) | None, _) => {}
        }
        let Inner { picture, adapter, .. } = inner;
        // It was there when its place was looked up.
        let _ = adapter.with(id, |application, terms| {
            let launched = launched.as_ref().copied().map_err(|(why, scope)| {
                let has_other_node = avoided::has_other_node(picture, id, application.tried_nodes().nodes());
                LaunchFailure { why, scope: *scope, has_other_node }
            });
            application.master_launched(attempt, launched, terms, at, out);
        });
    });
    // It may wait to be registered.
    shared.note_change();
}

/// Has a master stopped where it runs. One that cannot be reached ends with its node or with its unit.
async fn stop(shared: Arc<Shared>, attempt: YarnAttemptId) {
    let deadline = Instant::now() + STOP_LIMIT;
    let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
    while let Some(launch) = master_launch(&shared, attempt) {
        let answer = tokio::time::timeout(LAUNCH_LIMIT, shared.context.launcher.stop(launch)).await;
        match answer {
            Ok(Ok(()) | Err(LaunchRefusal::Refused(_) | LaunchRefusal::Hopeless(_))) => return,
            Ok(Err(LaunchRefusal::Unavailable(_))) | Err(_) if Instant::now() < deadline => {
                sleep(backoff.pause()).await;
            }
            Ok(Err(LaunchRefusal::Unavailable(why))) => {
                tracing::warn!(%attempt, why, "the application master could not be stopped");
                return;
            }
            Err(_) => return,
        }
    }
}
