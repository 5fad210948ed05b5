//! What is kept of applications and their attempts beside what decides anything.

use std::sync::Arc;

/// What is kept of an attempt beside what decides anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptNotes {
    /// When it began, Unix milliseconds.
    pub start_ms: i64,
    /// When its master was started, Unix milliseconds; 0: not yet.
    pub launch_ms: i64,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub finish_ms: i64,
    /// What people are told of its end.
    pub diagnostics: String,
}

/// The same of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppNotes {
    /// How its master is started, as the client sent it; empty: it runs elsewhere.
    pub launch: Arc<[u8]>,
    /// Words for filters of lists.
    pub tags: Vec<String>,
    /// What is kept of its attempts.
    pub attempts: Vec<AttemptNotes>,
    /// MiB-seconds and CPU-seconds, as far as they are known without the unit.
    pub used_seconds: (i64, i64),
}
