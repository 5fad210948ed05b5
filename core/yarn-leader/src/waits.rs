//! What applications wait for whose master has no place, as the dispatcher knows it: it is asked every second, some applications at a time.
//!
//! The sentences begin as those of YARN's CapacityScheduler do, since people and tools look for them.

use godel_core_yarn::{
    adapter::YarnApplication, application::PublicAppState, attempt::AttemptState, ids::YarnApplicationId,
};
use godel_domain::refusals::RefusalCount;

use crate::state::{AppEntry, LeaderState};

/// Applications that are asked after in one look; the next look goes on after them.
const N_LOOKED_MAX: usize = 50;
/// Reasons in one sentence.
const N_REASONS_MAX: usize = 3;
/// Characters of a sentence.
const WORDS_MAX: usize = 2_000;

const NOT_ACTIVATED: &str = "Application is added to the scheduler and is not yet activated";
const NO_PLACE: &str = "Application is Activated, waiting for resources to be assigned for AM";
const NOT_STARTED: &str = "AM container is allocated, waiting for its node to start it";
const NOT_REGISTERED: &str = "AM container is launched, waiting for AM container to Register with RM";
const UNMANAGED: &str = "Application has an unmanaged AM, waiting for it to Register with RM";

/// Whether the master of an application has no place yet.
pub(crate) fn has_no_place(application: &YarnApplication) -> bool {
    application.attempts().last().is_some_and(|attempt| attempt.state == AttemptState::Scheduled)
}

/// The next applications whose masters have no place: after one, and then from the first one on.
pub(crate) fn waiting(state: &LeaderState, after: Option<YarnApplicationId>) -> Vec<YarnApplicationId> {
    let all = || state.adapter.iter().filter(|of| has_no_place(of)).map(YarnApplication::id);
    let later: Vec<YarnApplicationId> =
        all().filter(|id| after.is_none_or(|after| *id > after)).take(N_LOOKED_MAX).collect();
    if later.is_empty() { all().take(N_LOOKED_MAX).collect() } else { later }
}

/// Why a unit waits, as the dispatcher says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitWaits {
    /// Why nodes, or its queue, do not take it: the most frequent reasons first.
    pub reasons: Vec<RefusalCount>,
    /// The node that came nearest to fitting, in words; empty: none came near.
    pub nearest_miss: String,
    /// What else it waits for, in words; empty: nothing.
    pub waits_for: String,
    /// Its queue.
    pub queue: String,
}

/// Why the master of a unit has no place.
pub(crate) fn for_place(unit: &UnitWaits) -> String {
    let is_queue = unit.reasons.first().is_none_or(|reason| {
        ["queue", "pause", "profile", "admission", "unreadable"].contains(&&*reason.plugin)
    });
    let reason = |of: &RefusalCount| match of.nodes {
        0 => of.reason.clone(),
        n => format!("{} ({})", of.reason, godel_base::words::count(n as usize, "node")),
    };
    let mut why: Vec<String> = unit.reasons.iter().take(N_REASONS_MAX).map(reason).collect();
    why.extend([&unit.nearest_miss, &unit.waits_for].into_iter().filter(|said| !said.is_empty()).cloned());
    let begin = if is_queue && unit.waits_for.is_empty() { NOT_ACTIVATED } else { NO_PLACE };
    if why.is_empty() {
        why.push(format!("it waits for its turn in queue {}", unit.queue));
    }
    sentence(begin, &why.join("; "))
}

/// Why the master of an application was not started yet.
pub(crate) fn for_launch(why: &str) -> String {
    sentence(NOT_STARTED, why)
}

fn sentence(begin: &str, why: &str) -> String {
    format!("{begin}: {why}").chars().take(WORDS_MAX).collect()
}

/// What people are told of an application that is accepted and does not run yet; empty: nothing.
pub(crate) fn shown(application: &YarnApplication, entry: &AppEntry) -> String {
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

    fn unit(reasons: &[(&'static str, &str, u32)]) -> UnitWaits {
        let reason = |(plugin, reason, nodes): &(&'static str, &str, u32)| RefusalCount {
            plugin: (*plugin).into(),
            reason: (*reason).to_owned(),
            nodes: *nodes,
        };
        UnitWaits {
            reasons: reasons.iter().map(reason).collect(),
            queue: "lab".to_owned(),
            ..UnitWaits::default()
        }
    }

    #[test]
    fn what_an_application_waits_for_is_said_as_yarn_says_it() {
        let full = unit(&[("queue", "queue lab is at its maximum of cpu", 0)]);
        assert_eq!(for_place(&full), format!("{NOT_ACTIVATED}: queue lab is at its maximum of cpu"));
        let nowhere = unit(&[("resources-fit", "insufficient memory", 2), ("node-selector", "no label", 1)]);
        let said = for_place(&nowhere);
        assert_eq!(said, format!("{NO_PLACE}: insufficient memory (2 nodes); no label (1 node)"));
        assert_eq!(for_place(&unit(&[])), format!("{NOT_ACTIVATED}: it waits for its turn in queue lab"));
        let held = UnitWaits { waits_for: "waits for 2 victims to leave".to_owned(), ..unit(&[]) };
        assert_eq!(for_place(&held), format!("{NO_PLACE}: waits for 2 victims to leave"));
    }
}
