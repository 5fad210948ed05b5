//! What of an application survives a restart of the adapter.

use std::collections::BTreeMap;

use super::{AppSubmission, Registration, YarnApplication, YarnAttempt};
use crate::{
    application::{AppState, EndTarget, FinalStatus},
    attempt::{AttemptState, FailedAttempt, UnstartedFate},
    exit_status::YarnExitStatus,
    ids::YarnApplicationId,
};

/// One attempt, as recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Ordinals from here on were asked for by this attempt.
    pub first_ordinal: u32,
    /// The same of opportunistic containers.
    pub first_opportunistic: u32,
    /// Where its master has its place.
    pub node: Option<String>,
    /// What its master said of itself.
    pub registration: Option<Registration>,
    /// How its master says that it ended.
    pub said: Option<FinalStatus>,
    /// How its master ended.
    pub exit: YarnExitStatus,
    /// How it ended; `None`: it goes on.
    pub target: Option<EndTarget>,
    /// What follows, if no node has started its master.
    pub unstarted: Option<UnstartedFate>,
}

/// One application, as recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppRecord {
    /// Its id.
    pub id: YarnApplicationId,
    /// What was submitted.
    pub submission: AppSubmission,
    /// Its attempts in order.
    pub attempts: Vec<AttemptRecord>,
    /// Those that failed.
    pub failed: Vec<FailedAttempt>,
    /// How it ended; `None`: it goes on.
    pub target: Option<EndTarget>,
    /// The first ordinal that nobody has asked for.
    pub next_ordinal: u32,
    /// The same of opportunistic containers.
    pub next_opportunistic: u32,
    /// Allocation request ids by ordinal, of asks that have one.
    pub request_ids: BTreeMap<u32, i64>,
    /// When it was submitted, Unix milliseconds.
    pub start_ms: i64,
    /// When it ended, Unix milliseconds.
    pub finish_ms: Option<i64>,
    /// What people are told of it.
    pub diagnostics: String,
    /// Rises with each record.
    pub version: u64,
}

impl AppRecord {
    /// What is to be written of an application now.
    pub fn of(application: &YarnApplication) -> Self {
        let attempt = |attempt: &YarnAttempt| AttemptRecord {
            first_ordinal: attempt.first_ordinal,
            first_opportunistic: attempt.first_opportunistic,
            node: attempt.node.clone(),
            registration: attempt.registration.clone(),
            said: attempt.said,
            exit: attempt.exit,
            unstarted: attempt.unstarted,
            target: match attempt.state {
                AttemptState::FinalSaving { target } => Some(target),
                AttemptState::Finishing => Some(EndTarget::Finishing),
                AttemptState::Finished => Some(EndTarget::Finished),
                AttemptState::Failed => Some(EndTarget::Failed),
                AttemptState::Killed => Some(EndTarget::Killed),
                _ => None,
            },
        };
        Self {
            id: application.id,
            submission: application.submission.clone(),
            attempts: application.attempts.iter().map(attempt).collect(),
            failed: application.attempts.failed.clone(),
            target: match application.state {
                AppState::FinalSaving { target, .. } => Some(target),
                AppState::Finishing => Some(EndTarget::Finishing),
                AppState::Finished => Some(EndTarget::Finished),
                AppState::Failed => Some(EndTarget::Failed),
                AppState::Killed => Some(EndTarget::Killed),
                _ => None,
            },
            next_ordinal: application.containers.next_ordinal,
            next_opportunistic: application.containers.next_opportunistic,
            request_ids: application.containers.request_ids.to_record(),
            start_ms: application.start_ms,
            finish_ms: application.finish_ms,
            diagnostics: application.diagnostics.clone(),
            version: application.version,
        }
    }
}
