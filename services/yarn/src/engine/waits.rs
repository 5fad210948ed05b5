//! What applications wait for whose master has no place, as the dispatcher knows it: asked again every second, some applications at a time.
//!
//! The sentences begin as those of YARN's CapacityScheduler do, since people and tools look for them.

use std::{sync::Arc, time::Duration};

use godel_core_yarn::{
    adapter::YarnApplication, application::PublicAppState, attempt::AttemptState, ids::YarnApplicationId,
};
use godel_kit::client::Channel;
use godel_proto::v1::{self, unit_service_client::UnitServiceClient};
use tokio::time::{sleep, timeout};

use super::{
    act::{DISPATCHER, LOOK},
    shared::{AppEntry, Inner, Shared, Term},
};
use crate::unit::unit_name;

/// Applications that are asked after in one look; the next look goes on after them.
const N_LOOKED_MAX: usize = 50;
/// One answer of the dispatcher.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Reasons in one sentence.
const N_REASONS_MAX: usize = 3;
/// Characters of a sentence.
const WORDS_MAX: usize = 2_000;

const NOT_ACTIVATED: &str = "Application is added to the scheduler and is not yet activated";
const NO_PLACE: &str = "Application is Activated, waiting for resources to be assigned for AM";
const NOT_STARTED: &str = "AM container is allocated, waiting for its node to start it";
const NOT_REGISTERED: &str = "AM container is launched, waiting for AM container to Register with RM";
const UNMANAGED: &str = "Application has an unmanaged AM, waiting for it to Register with RM";

/// Asks until the time of this leader is over.
pub(crate) async fn look(shared: Arc<Shared>, term: Term) {
    let mut after = None;
    loop {
        let ids = waiting(&shared.inner.lock(), after);
        after = ids.last().copied();
        for id in ids {
            tokio::select! {
                () = term.stop.cancelled() => return,
                answer = ask(&shared, id) => {
                    // While the dispatcher does not answer, what it said last stands.
                    if let Some(unit) = answer {
                        note_place(&shared, id, for_place(&unit));
                    }
                }
            }
        }
        tokio::select! {
            () = term.stop.cancelled() => return,
            () = sleep(LOOK) => {}
        }
    }
}

/// Whether the master of an application has no place yet.
fn has_no_place(application: &YarnApplication) -> bool {
    application.attempts().last().is_some_and(|attempt| attempt.state == AttemptState::Scheduled)
}

/// The next applications whose masters have no place: after one, and then from the first one on.
fn waiting(inner: &Inner, after: Option<YarnApplicationId>) -> Vec<YarnApplicationId> {
    let all = || inner.adapter.iter().filter(|of| has_no_place(of)).map(YarnApplication::id);
    let later: Vec<YarnApplicationId> =
        all().filter(|id| after.is_none_or(|after| *id > after)).take(N_LOOKED_MAX).collect();
    if later.is_empty() { all().take(N_LOOKED_MAX).collect() } else { later }
}

async fn ask(shared: &Shared, id: YarnApplicationId) -> Option<v1::Unit> {
    let request = v1::GetUnitRequest {
        namespace: shared.context.config.namespace.clone(),
        name: unit_name(id),
        page_size: 1,
        ..v1::GetUnitRequest::default()
    };
    let answer = shared.context.directory.call_leader(DISPATCHER, |channel: Channel| {
        let (mut client, request) = (UnitServiceClient::new(channel), request.clone());
        async move { client.get_unit(request).await }
    });
    timeout(ANSWER_LIMIT, answer).await.ok()?.ok()?.into_inner().unit
}

/// Why the master of a unit has no place.
fn for_place(unit: &v1::Unit) -> String {
    let refusals = unit.refusals.clone().unwrap_or_default();
    let is_queue = refusals.reasons.first().is_none_or(|reason| {
        ["queue", "pause", "profile", "admission", "unreadable"].contains(&reason.plugin.as_str())
    });
    let reason = |of: &v1::RefusalCount| match of.nodes {
        0 => of.reason.clone(),
        n => format!("{} ({})", of.reason, godel_base::words::count(n as usize, "node")),
    };
    let mut why: Vec<String> = refusals.reasons.iter().take(N_REASONS_MAX).map(reason).collect();
    if !refusals.nearest_miss.is_empty() {
        why.push(refusals.nearest_miss);
    }
    if !unit.waits_for.is_empty() {
        why.push(unit.waits_for.clone());
    }
    let begin = if is_queue && unit.waits_for.is_empty() { NOT_ACTIVATED } else { NO_PLACE };
    if why.is_empty() {
        let queue = unit.spec.as_ref().map(|spec| spec.queue.as_str()).unwrap_or_default();
        why.push(format!("it waits for its turn in queue {queue}"));
    }
    sentence(begin, &why.join("; "))
}

/// Why the master of an application was not started yet.
pub(super) fn for_launch(why: &str) -> String {
    sentence(NOT_STARTED, why)
}

fn sentence(begin: &str, why: &str) -> String {
    format!("{begin}: {why}").chars().take(WORDS_MAX).collect()
}

/// Notes what an application waits for.
pub(super) fn note(shared: &Shared, id: YarnApplicationId, waits: String) {
    if let Some(entry) = shared.inner.lock().entries.get_mut(&id) {
        entry.waits = waits;
    }
}

/// The same of one whose master had no place when that was asked.
fn note_place(shared: &Shared, id: YarnApplicationId, waits: String) {
    let mut inner = shared.inner.lock();
    let still_waits = inner.adapter.get(id).is_some_and(has_no_place);
    if let Some(entry) = inner.entries.get_mut(&id).filter(|_| still_waits) {
        entry.waits = waits;
    }
}

/// What people are told of an application that is accepted and does not run yet; empty: nothing.
pub(super) fn shown(application: &YarnApplication, entry: &AppEntry) -> String {
    let Some(attempt) = application.attempts().last() else { return String::new() };
    if application.public_state() != PublicAppState::Accepted {
        return String::new();
    }
    let begin = match attempt.state {
        AttemptState::Scheduled => NOT_ACTIVATED,
        AttemptState::AllocatedSaving | AttemptState::Allocated => NOT_STARTED,
        AttemptState::Launched if application.submission().master.is_none() => return UNMANAGED.to_owned(),
        AttemptState::Launched => return NOT_REGISTERED.to_owned(),
        AttemptState::New
        | AttemptState::Submitted
        | AttemptState::LaunchedUnmanagedSaving
        | AttemptState::Running
        | AttemptState::FinalSaving { .. }
        | AttemptState::Finishing
        | AttemptState::Finished
        | AttemptState::Failed
        | AttemptState::Killed => return String::new(),
    };
    if entry.waits.is_empty() { begin.to_owned() } else { entry.waits.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(reasons: &[(&str, &str, u32)]) -> v1::Unit {
        let reason = |(plugin, reason, nodes): &(&str, &str, u32)| v1::RefusalCount {
            plugin: (*plugin).to_owned(),
            reason: (*reason).to_owned(),
            nodes: *nodes,
        };
        let reasons: Vec<v1::RefusalCount> = reasons.iter().map(reason).collect();
        let refusals = (!reasons.is_empty()).then(|| v1::Refusals { reasons, ..v1::Refusals::default() });
        let spec = Some(v1::UnitSpec { queue: "lab".to_owned(), ..v1::UnitSpec::default() });
        v1::Unit { spec, refusals, ..v1::Unit::default() }
    }

    #[test]
    fn what_an_application_waits_for_is_said_as_yarn_says_it() {
        let full = unit(&[("queue", "queue lab is at its maximum of cpu", 0)]);
        assert_eq!(for_place(&full), format!("{NOT_ACTIVATED}: queue lab is at its maximum of cpu"));
        let nowhere = unit(&[("resources-fit", "insufficient memory", 2), ("node-selector", "no label", 1)]);
        let said = for_place(&nowhere);
        assert_eq!(said, format!("{NO_PLACE}: insufficient memory (2 nodes); no label (1 node)"));
        assert_eq!(for_place(&unit(&[])), format!("{NOT_ACTIVATED}: it waits for its turn in queue lab"));
        let held = v1::Unit { waits_for: "waits for 2 victims to leave".to_owned(), ..unit(&[]) };
        assert_eq!(for_place(&held), format!("{NO_PLACE}: waits for 2 victims to leave"));
    }
}
