//! The lives of an application and its attempts, one driving the other, from their first event or from their record.

use godel_domain::names::DIAGNOSTICS_LEN_MAX;

use super::{
    AdapterTerms, AdapterTime, AllocateAnswer, AppContainers, AppRecord, AppSubmission, AttemptRecord,
    MasterRefusal, RequestIds, YarnAction, YarnApplication, YarnAttempt, YarnAttempts,
};
use crate::{
    application::{
        AppEffect, AppEvent, AppState, EndTarget, FinalStatus, PublicAppState, RecoveredApp, final_status,
    },
    attempt::{AttemptEffect, AttemptEvent, AttemptState, AttemptTerms, FailedAttempt, UnstartedFate},
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnAttemptId},
};

impl YarnApplication {
    pub(super) fn new(id: YarnApplicationId, submission: AppSubmission, at: AdapterTime) -> Self {
        Self {
            id,
            containers: AppContainers::none_of(id, &submission.label),
            attempts: YarnAttempts::none_of(id),
            submission,
            state: AppState::New,
            start_ms: at.wall_ms,
            finish_ms: None,
            diagnostics: String::new(),
            version: 0,
            awaited: 0,
            attempt_awaited: 0,
        }
    }

    pub(super) fn from_record(record: AppRecord, at: AdapterTime) -> Self {
        let mut application = Self::new(record.id, record.submission, at);
        let attempt = |(number, attempt): (u32, AttemptRecord)| YarnAttempt {
            id: YarnAttemptId { application: record.id, number },
            state: AttemptState::New,
            first_ordinal: attempt.first_ordinal,
            first_opportunistic: attempt.first_opportunistic,
            node: attempt.node,
            registration: attempt.registration,
            said: attempt.said,
            exit: attempt.exit,
            unstarted: attempt.unstarted,
            heard: at.now,
            last: AllocateAnswer::default(),
        };
        let targets: Vec<Option<EndTarget>> = record.attempts.iter().map(|attempt| attempt.target).collect();
        application.attempts.all = (1..).zip(record.attempts).map(attempt).collect();
        for (attempt, target) in application.attempts.all.iter_mut().zip(targets) {
            let is_without_place = target.is_none() && attempt.node.is_none();
            if is_without_place && application.submission.master.is_some() {
                attempt.state = AttemptState::Scheduled;
            } else if let Some((state, _)) = attempt.state.after(AttemptEvent::Recover(target)) {
                // The last one tells its application in a moment.
                attempt.state = state;
            }
        }
        application.attempts.failed = record.failed;
        application.containers.next_ordinal = record.next_ordinal;
        application.containers.next_opportunistic = record.next_opportunistic;
        application.containers.request_ids = RequestIds::recorded(record.request_ids, record.version);
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
            (AppState::Accepted, Some(AttemptState::Launched)) => {
                // Whether it was started before the record was read is not known; starting it twice does nothing.
                let last = self.attempts.last().filter(|attempt| attempt.registration.is_none());
                if let Some((attempt, node)) = last.and_then(|last| Some((last.id, last.node.clone()?))) {
                    out.push(YarnAction::LaunchMaster(attempt, node));
                }
            }
            (AppState::Accepted, Some(AttemptState::Killed)) => {
                self.on_app(AppEvent::AttemptKilled, terms, at, out);
            }
            (AppState::Accepted | AppState::Finishing, Some(AttemptState::Finished)) => {
                self.on_app(AppEvent::AttemptFinished, terms, at, out);
            }
            _ => {}
        }
    }

    pub(super) fn on_app(
        &mut self,
        event: AppEvent,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let Some((state, effects)) = self.state.after(event) else { return };
        self.state = state;
        for effect in effects {
            match effect {
                AppEffect::SaveNew => self.awaited = self.put(out),
                AppEffect::SaveFinal => {
                    // As the ResourceManager does: what is written is when it began to end.
                    self.finish_ms.get_or_insert(at.wall_ms);
                    self.awaited = self.put(out);
                }
                AppEffect::AddToScheduler => out.push(YarnAction::SubmitUnit(self.id)),
                AppEffect::StartAttempt => self.start_attempt(terms, at, out),
                AppEffect::RecoverAttempts => {}
                AppEffect::KillAttempt => self.on_attempt(AttemptEvent::Kill, terms, at, out),
                AppEffect::ChangeQueue => {
                    out.push(YarnAction::MoveUnit(self.id, self.submission.queue.clone()));
                    self.put(out);
                }
                AppEffect::End => {
                    if self.finish_ms.is_none() {
                        // It ended with its attempt, and nothing of its own was to be written before.
                        self.finish_ms = Some(at.wall_ms);
                        self.put(out);
                    }
                    out.push(YarnAction::CancelUnit(self.id));
                }
            }
        }
    }

    pub(super) fn on_attempt(
        &mut self,
        event: AttemptEvent,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        let Some(attempt) = self.attempts.all.last_mut() else { return };
        let Some((state, effects)) = attempt.state.after(event) else { return };
        attempt.state = state;
        let id = attempt.id;
        let node = attempt.node.clone().unwrap_or_default();
        let is_unmanaged = self.submission.master.is_none();
        for effect in effects {
            match effect {
                AttemptEffect::AddToScheduler => {
                    self.on_attempt(AttemptEvent::Added { is_unmanaged }, terms, at, out);
                }
                // The first master is the unit's ordinal 0 from its submission on.
                AttemptEffect::AskForMaster if id.number == 1 => {}
                AttemptEffect::AskForMaster => out.push(YarnAction::NextMaster(self.id)),
                AttemptEffect::SaveNew | AttemptEffect::SaveFinal => self.attempt_awaited = self.put(out),
                AttemptEffect::Launch => out.push(YarnAction::LaunchMaster(id, node.clone())),
                AttemptEffect::StopMaster => out.push(YarnAction::StopMaster(id)),
                AttemptEffect::TellRegistered => self.on_app(AppEvent::AttemptRegistered, terms, at, out),
                AttemptEffect::TellUnregistered => self.on_app(AppEvent::AttemptUnregistered, terms, at, out),
                AttemptEffect::TellFinished => self.on_app(AppEvent::AttemptFinished, terms, at, out),
                AttemptEffect::TellFailed => self.attempt_failed(terms, at, out),
                AttemptEffect::TellKilled => self.on_app(AppEvent::AttemptKilled, terms, at, out),
                // The application keeps what has ended, for this master or the next one.
                AttemptEffect::KeepEnded => {}
            }
        }
    }

    fn start_attempt(&mut self, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>) {
        let number = u32::try_from(self.attempts.len() + 1).unwrap_or(u32::MAX);
        self.attempts.all.push(YarnAttempt {
            id: YarnAttemptId { application: self.id, number },
            state: AttemptState::New,
            first_ordinal: self.containers.next_ordinal,
            first_opportunistic: self.containers.next_opportunistic,
            node: None,
            registration: None,
            said: None,
            exit: YarnExitStatus::INVALID,
            unstarted: None,
            heard: at.now,
            last: super::AllocateAnswer::default(),
        });
        self.on_attempt(AttemptEvent::Start, terms, at, out);
    }

    pub(super) fn attempt_failed(&mut self, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>) {
        let exit = self.attempts.last().map_or(YarnExitStatus::INVALID, |attempt| attempt.exit);
        let unstarted = self.attempts.last().and_then(|attempt| attempt.unstarted);
        if unstarted.is_none() {
            self.attempts.failed.push(FailedAttempt { ended_ms: at.wall_ms, exit });
        }
        let attempts = AttemptTerms {
            max_of_application: self.submission.max_attempts,
            max_of_cluster: terms.max_attempts,
            validity_interval_ms: self.submission.validity_interval_ms,
            is_unmanaged: self.submission.master.is_none(),
        };
        self.containers.drop_asks(self.submission.keeps_containers, out);
        if !self.submission.keeps_containers {
            self.containers.kill(at, out);
            let ended = self.containers.take_ended();
            self.containers.give_up_ended(&ended, out);
        }
        let may_retry = match unstarted {
            Some(UnstartedFate::Elsewhere) => !attempts.is_unmanaged,
            Some(UnstartedFate::Nowhere) => false,
            None => attempts.may_retry(&self.attempts.failed, at.wall_ms),
        };
        if let (false, Some(last)) = (may_retry, self.attempts.last()) {
            let said = match unstarted {
                Some(_) => format!(
                    "Application failed: no node starts its master, which was to run on {}",
                    self.attempts.tried_nodes().nodes().join(", ")
                ),
                None => format!(
                    "Application failed {} times (global limit {}){}",
                    last.id.number,
                    terms.max_attempts,
                    last.how_ended().map(|how| format!(" due to {how}")).unwrap_or_default()
                ),
            };
            self.say(&said);
        }
        self.on_app(AppEvent::AttemptFailed { may_retry }, terms, at, out);
    }

    /// A record is written, and all before it.
    pub fn saved(&mut self, version: u64, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>) {
        self.containers.request_ids.on_saved(version);
        if (1..=version).contains(&self.attempt_awaited) {
            self.attempt_awaited = 0;
            let state = self.attempts.last().map(|attempt| attempt.state);
            let is_final = matches!(state, Some(AttemptState::FinalSaving { .. }));
            let event = if is_final { AttemptEvent::UpdateSaved } else { AttemptEvent::NewSaved };
            self.on_attempt(event, terms, at, out);
        }
        if (1..=version).contains(&self.awaited) {
            self.awaited = 0;
            let is_final = matches!(self.state, AppState::FinalSaving { .. });
            let event = if is_final { AppEvent::UpdateSaved } else { AppEvent::NewSaved };
            self.on_app(event, terms, at, out);
        }
    }

    /// The dispatcher has answered: the unit is queued, or refused for a reason.
    pub fn unit_answered(
        &mut self,
        answer: Result<(), &str>,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        match answer {
            Ok(()) => self.on_app(AppEvent::Accepted, terms, at, out),
            Err(why) => {
                self.say(why);
                self.on_app(AppEvent::Rejected, terms, at, out);
            }
        }
    }

    /// Somebody ends it, and says why.
    pub fn kill(&mut self, why: &str, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>) {
        if !self.state.is_over() && !matches!(self.state, AppState::Killing { .. }) {
            self.say(why);
        }
        self.on_app(AppEvent::Kill, terms, at, out);
    }

    /// Its unit was cancelled or deleted: what had not said that it is done is killed, and nothing of the rest runs any more.
    pub fn unit_gone(&mut self, why: &str, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>) {
        match self.state {
            AppState::Finishing => self.on_app(AppEvent::AttemptFinished, terms, at, out),
            state if !state.is_over() => self.kill(why, terms, at, out),
            _ => {}
        }
    }

    /// Somebody has its current attempt fail, and says why. What has ended already stays as it is.
    ///
    /// # Errors
    /// Another attempt has followed, there never was one, or its master has no place yet: the next one would wait for the same place.
    pub fn fail_attempt(
        &mut self,
        attempt: YarnAttemptId,
        why: &str,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) -> Result<(), MasterRefusal> {
        if self.attempts.last().is_none_or(|current| current.id != attempt) {
            return Err(MasterRefusal::NoAttempt(attempt));
        }
        let waits =
            |state| matches!(state, AttemptState::New | AttemptState::Submitted | AttemptState::Scheduled);
        let is_managed = self.submission.master.is_some();
        if is_managed && self.attempts.last().is_some_and(|current| waits(current.state)) {
            return Err(MasterRefusal::NoPlace(attempt));
        }
        if !self.state.is_over() {
            self.say(why);
            self.on_attempt(AttemptEvent::Fail, terms, at, out);
        }
        Ok(())
    }

    /// It goes to another queue.
    pub fn change_queue(
        &mut self,
        queue: String,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        if !self.state.is_over() && self.submission.queue != queue {
            self.submission.queue = queue;
            self.on_app(AppEvent::Move, terms, at, out);
        }
    }

    /// It has another priority. Whether it is recorded as another one.
    pub fn change_priority(&mut self, priority: i32, out: &mut Vec<YarnAction>) -> bool {
        let changes = !self.state.is_over() && self.submission.priority != priority;
        if changes {
            self.submission.priority = priority;
            self.put(out);
        }
        changes
    }

    /// It ends when it is this old, milliseconds.
    pub fn change_lifetime(&mut self, lifetime_ms: Option<i64>, out: &mut Vec<YarnAction>) {
        if !self.state.is_over() && self.submission.lifetime_ms != lifetime_ms {
            self.submission.lifetime_ms = lifetime_ms;
            self.put(out);
        }
    }

    /// Whatever has waited for too long.
    pub(super) fn expire(&mut self, terms: AdapterTerms, at: AdapterTime, out: &mut Vec<YarnAction>) {
        if self.state.is_over() {
            return;
        }
        let is_due = |heard| at.now.since(heard) > terms.master_expiry_ms;
        let is_watched =
            |state| matches!(state, AttemptState::Launched | AttemptState::Running | AttemptState::Finishing);
        if self.attempts.last().is_some_and(|attempt| is_watched(attempt.state) && is_due(attempt.heard)) {
            self.say("the application master was not heard of for too long");
            self.on_attempt(AttemptEvent::Expire, terms, at, out);
        }
        self.containers.expire(at, out);
        // Places have counted rows down, or hosts have other racks.
        if self.state == AppState::Running && self.containers.asks.is_unsettled() {
            self.containers.settle(out);
        }
        let age = at.wall_ms.saturating_sub(self.start_ms);
        if self.submission.lifetime_ms.is_some_and(|lifetime| age >= lifetime) {
            self.kill("the application was killed: it is as old as its lifetime", terms, at, out);
        }
    }

    /// A new version of its record; the version.
    pub(super) fn put(&mut self, out: &mut Vec<YarnAction>) -> u64 {
        self.version += 1;
        out.push(YarnAction::PutRecord(self.id, self.version));
        self.version
    }

    /// Adds a line for people.
    pub(super) fn say(&mut self, line: &str) {
        if !self.diagnostics.is_empty() {
            self.diagnostics.push('\n');
        }
        self.diagnostics.push_str(line);
        let over = self.diagnostics.len().saturating_sub(DIAGNOSTICS_LEN_MAX);
        let over = (over..self.diagnostics.len()).find(|at| self.diagnostics.is_char_boundary(*at));
        self.diagnostics.drain(..over.unwrap_or(0));
    }

    /// Its id.
    pub fn id(&self) -> YarnApplicationId {
        self.id
    }

    /// Where it is, as everybody sees it.
    pub fn public_state(&self) -> PublicAppState {
        self.state.public()
    }

    /// How it ended, if it did.
    pub fn final_status(&self) -> FinalStatus {
        final_status(self.attempts.last().and_then(|attempt| attempt.said), self.state)
    }

    /// What people are told of it.
    pub fn diagnostics(&self) -> &str {
        &self.diagnostics
    }

    /// What was submitted, with what was changed of it since.
    pub fn submission(&self) -> &AppSubmission {
        &self.submission
    }

    /// Its attempts, the first one first.
    pub fn attempts(&self) -> &YarnAttempts {
        &self.attempts
    }

    /// When it was submitted, and when it ended, Unix milliseconds.
    pub fn times_ms(&self) -> (i64, Option<i64>) {
        (self.start_ms, self.finish_ms.filter(|_| self.is_over()))
    }

    /// Nothing more becomes of it.
    pub fn is_over(&self) -> bool {
        self.state.is_over()
    }
}
