//! What of an application survives a restart of the adapter.

use std::collections::{BTreeMap, VecDeque};

use super::{
    AdapterTerms, AdapterTime, AllocateAnswer, AppSubmission, Registration, YarnAction, YarnApplication,
    YarnAttempt,
};
use crate::{
    application::{AppEvent, AppState, AppTarget, FinalStatus, RecoveredApp},
    asks::AskTable,
    attempt::{AttemptEvent, AttemptState, AttemptTarget, FailedAttempt},
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnAttemptId},
};

/// One attempt, as recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Ordinals from here on were asked for by this attempt.
    pub first_ordinal: u32,
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
    /// When it was submitted, Unix milliseconds.
    pub start_ms: i64,
    /// When it ended, Unix milliseconds.
    pub finish_ms: Option<i64>,
    /// What people are told of it.
    pub diagnostics: String,
    /// Rises with each record.
    pub version: u64,
}

impl YarnApplication {
    pub(super) fn new(id: YarnApplicationId, submission: AppSubmission, at: AdapterTime) -> Self {
        Self {
            id,
            // The master is ordinal 0; one that runs elsewhere has none.
            next_ordinal: u32::from(submission.master.is_some()),
            submission,
            state: AppState::New,
            attempts: Vec::new(),
            failed: Vec::new(),
            asks: AskTable::default(),
            containers: BTreeMap::new(),
            fresh: VecDeque::new(),
            ended: Vec::new(),
            start_ms: at.wall_ms,
            finish_ms: None,
            diagnostics: String::new(),
            version: 0,
            awaited: 0,
            attempt_awaited: 0,
        }
    }

    /// What is to be written now.
    pub fn record(&self) -> AppRecord {
        let attempt = |attempt: &YarnAttempt| AttemptRecord {
            first_ordinal: attempt.first_ordinal,
            node: attempt.node.clone(),
            registration: attempt.registration.clone(),
            said: attempt.said,
            exit: attempt.exit,
            target: match attempt.state {
                AttemptState::FinalSaving { target } => Some(target),
                AttemptState::Finishing => Some(AttemptTarget::Finishing),
                AttemptState::Finished => Some(AttemptTarget::Finished),
                AttemptState::Failed => Some(AttemptTarget::Failed),
                AttemptState::Killed => Some(AttemptTarget::Killed),
                _ => None,
            },
        };
        AppRecord {
            id: self.id,
            submission: self.submission.clone(),
            attempts: self.attempts.iter().map(attempt).collect(),
            failed: self.failed.clone(),
            target: match self.state {
                AppState::FinalSaving { target, .. } => Some(target),
                AppState::Finishing => Some(AppTarget::Finishing),
                AppState::Finished => Some(AppTarget::Finished),
                AppState::Failed => Some(AppTarget::Failed),
                AppState::Killed => Some(AppTarget::Killed),
                _ => None,
            },
            next_ordinal: self.next_ordinal,
            start_ms: self.start_ms,
            finish_ms: self.finish_ms,
            diagnostics: self.diagnostics.clone(),
            version: self.version,
        }
    }

    pub(super) fn from_record(record: AppRecord, at: AdapterTime) -> Self {
        let mut application = Self::new(record.id, record.submission, at);
        let attempt = |(number, attempt): (u32, AttemptRecord)| YarnAttempt {
            id: YarnAttemptId { application: record.id, number },
            state: AttemptState::New,
            first_ordinal: attempt.first_ordinal,
            node: attempt.node,
            registration: attempt.registration,
            said: attempt.said,
            exit: attempt.exit,
            heard: at.now,
            last: AllocateAnswer::default(),
        };
        let targets: Vec<Option<AttemptTarget>> =
            record.attempts.iter().map(|attempt| attempt.target).collect();
        application.attempts = (1..).zip(record.attempts).map(attempt).collect();
        for (attempt, target) in application.attempts.iter_mut().zip(targets) {
            let is_without_place = target.is_none() && attempt.node.is_none();
            if is_without_place && application.submission.master.is_some() {
                attempt.state = AttemptState::Scheduled;
            } else if let Some((state, _)) = attempt.state.after(AttemptEvent::Recover(target)) {
                // The last one tells its application in a moment.
                attempt.state = state;
            }
        }
        application.failed = record.failed;
        application.next_ordinal = record.next_ordinal;
        application.start_ms = record.start_ms;
        application.finish_ms = record.finish_ms;
        application.diagnostics = record.diagnostics;
        application.version = record.version;
        let recovered = match (record.target, application.attempts.is_empty()) {
            (Some(target), _) => RecoveredApp::Over(target),
            (None, true) => RecoveredApp::WithoutAttempt,
            (None, false) => RecoveredApp::WithAttempts,
        };
        if let Some((state, _)) = application.state.after(AppEvent::Recover(recovered)) {
            application.state = state;
        }
        application
    }

    /// Whether a master was started before the record was read is not known; starting it twice does nothing.
    fn launch_again(&self, out: &mut Vec<YarnAction>) {
        if let Some(attempt) = self.attempts.last().filter(|attempt| attempt.registration.is_none())
            && let Some(node) = &attempt.node
        {
            out.push(YarnAction::LaunchMaster(attempt.id, node.clone()));
        }
    }

    /// Goes on where the record ends: what was to be told is told again.
    pub(super) fn resume(&mut self, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>) {
        match (self.state, self.attempts.last().map(|attempt| attempt.state)) {
            (AppState::Submitted, _) => out.push(YarnAction::SubmitUnit(self.id)),
            (AppState::Finished | AppState::Failed | AppState::Killed, _) => {
                out.push(YarnAction::CancelUnit(self.id));
            }
            (AppState::Accepted, Some(AttemptState::Failed)) => self.attempt_failed(terms, at, out),
            (AppState::Accepted, Some(AttemptState::Scheduled)) if self.attempts.len() > 1 => {
                out.push(YarnAction::NextMaster(self.id));
            }
            (AppState::Accepted, Some(AttemptState::Launched)) => self.launch_again(out),
            (AppState::Accepted, Some(AttemptState::Killed)) => {
                self.on_app(AppEvent::AttemptKilled, terms, at, out);
            }
            (AppState::Accepted, Some(AttemptState::Finished)) => {
                self.on_app(AppEvent::AttemptFinished, terms, at, out);
            }
            _ => {}
        }
    }
}
