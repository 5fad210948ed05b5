//! What of an application survives a restart of the adapter.

use std::collections::BTreeMap;

use super::{AppSubmission, Registration};
use crate::{
    application::{AppTarget, FinalStatus},
    attempt::{AttemptTarget, FailedAttempt, UnstartedFate},
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
    pub target: Option<AttemptTarget>,
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
    pub target: Option<AppTarget>,
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
