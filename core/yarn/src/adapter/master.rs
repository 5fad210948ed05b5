//! What masters call: register, allocate, finish; how they are started, and what becomes of an application whose master a node does not start.
//!
//! What was never started goes elsewhere and uses up no attempt, as replicas of other units do; what no node starts has failed at once, whatever
//! attempts it has left. The rule for both is [`TriedNodes`](godel_membership::node_failures::TriedNodes).

use super::{
    AdapterTerms, AdapterTime, AllocateAnswer, AllocatedContainer, LaunchFailure, MasterRefusal,
    Registration, YarnAction, YarnApplication,
};
use crate::{
    application::{AppState, EndTarget, FinalStatus},
    asks::{AllocateTurn, AskRow, BlacklistChange, next_response, turn},
    attempt::{AttemptEvent, AttemptState},
    ids::{YarnAttemptId, YarnContainerId},
};

/// A call of `allocate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocateCall {
    /// The response that the master has seen last.
    pub seen: i32,
    /// Rows that are different, or all of them.
    pub asks: Vec<AskRow>,
    /// Hosts and racks that it does not want, and those that it wants again.
    pub blacklist: BlacklistChange,
    /// Containers that it gives back.
    pub release: Vec<YarnContainerId>,
    /// Where its page is from now on; `None`: where it was.
    pub tracking_url: Option<String>,
}

impl YarnApplication {
    /// Whether the master of an attempt comes before its attempt is recorded, or before it is known that the master was started: what it
    /// waits for is under way.
    pub fn is_early(&self, attempt: YarnAttemptId) -> bool {
        let is_under_way = match self.state {
            AppState::New
            | AppState::NewSaving
            | AppState::Submitted
            | AppState::Accepted
            | AppState::Running => true,
            AppState::FinalSaving { .. }
            | AppState::Finishing
            | AppState::Finished
            | AppState::Failed
            | AppState::Killing { .. }
            | AppState::Killed => false,
        };
        let Some(current) = self.attempts.last() else { return is_under_way && attempt.number == 1 };
        is_under_way
            && match current.state {
                AttemptState::New
                | AttemptState::Submitted
                | AttemptState::Scheduled
                | AttemptState::AllocatedSaving
                | AttemptState::Allocated
                | AttemptState::LaunchedUnmanagedSaving => current.id == attempt,
                // The next one follows once that is recorded.
                AttemptState::FinalSaving { target: EndTarget::Failed } => {
                    self.submission.master.is_some()
                        && current.id.number.checked_add(1) == Some(attempt.number)
                }
                AttemptState::FinalSaving { .. }
                | AttemptState::Launched
                | AttemptState::Running
                | AttemptState::Finishing
                | AttemptState::Finished
                | AttemptState::Failed
                | AttemptState::Killed => false,
            }
    }

    /// A master registers. What it is told of containers that earlier attempts have left it.
    ///
    /// # Errors
    /// It is not the current one, has registered before, or comes early: then nothing has happened, and it may call again.
    pub fn register(
        &mut self,
        attempt: YarnAttemptId,
        registration: Registration,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) -> Result<Vec<AllocatedContainer>, MasterRefusal> {
        if self.is_early(attempt) {
            return Err(MasterRefusal::NotYet(attempt));
        }
        let current =
            self.attempts.all.last_mut().filter(|current| current.id == attempt && !current.state.is_over());
        let current = current.ok_or(MasterRefusal::NoAttempt(attempt))?;
        if current.state != AttemptState::Launched {
            // One that failed or was killed before it had registered has nothing to register for.
            let is_running = current.state == AttemptState::Running || current.registration.is_some();
            return Err(match is_running {
                true => MasterRefusal::AlreadyRegistered(attempt),
                false => MasterRefusal::NoAttempt(attempt),
            });
        }
        current.registration = Some(registration);
        current.last = AllocateAnswer::default();
        self.attempts.hear(at);
        self.on_attempt(AttemptEvent::Registered, terms, at, out);
        self.put(out);
        Ok(self.containers.known())
    }

    /// A master says what it wants and what it gives back, and hears what has become of the rest. A call that changes
    /// nothing asks for nothing to be done.
    ///
    /// # Errors
    /// It is not the current one, has not registered, has missed an answer, or asks for what cannot be.
    pub fn allocate(
        &mut self,
        attempt: YarnAttemptId,
        call: &AllocateCall,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) -> Result<AllocateAnswer, MasterRefusal> {
        let current =
            self.attempts.last().filter(|current| current.id == attempt && !current.state.is_over());
        let current = current.ok_or(MasterRefusal::NoAttempt(attempt))?;
        if current.state != AttemptState::Running {
            return Err(MasterRefusal::NotRegistered(attempt));
        }
        let last = current.last.clone();
        match turn(call.seen, last.response_id) {
            AllocateTurn::Repeat => {
                self.attempts.hear(at);
                return Ok(last);
            }
            AllocateTurn::Wrong { expected } => {
                return Err(MasterRefusal::WrongResponse { attempt, seen: call.seen, expected });
            }
            AllocateTurn::Next => {}
        }
        let has_changed = self.containers.asks.take(&call.asks, &call.blacklist)?;
        self.attempts.hear(at);
        // Where its page is is recorded.
        if call.tracking_url.as_ref().is_some_and(|url| self.attempts.move_page(url)) {
            self.put(out);
        }
        self.containers.give_up_ended(&last.completed, out);
        self.containers.release(&call.release, at, out);
        if has_changed {
            self.containers.settle(out);
        }
        let answer = AllocateAnswer {
            response_id: next_response(last.response_id),
            allocated: self.containers.acquire(terms.container_expiry_ms, at, out),
            completed: self.containers.take_ended(),
        };
        if let Some(current) = self.attempts.all.last_mut() {
            current.last = answer.clone();
        }
        Ok(answer)
    }

    /// A master says goodbye. Whether that is recorded: until then it calls again.
    ///
    /// # Errors
    /// It is not the current one, or has not registered.
    pub fn finish(
        &mut self,
        attempt: YarnAttemptId,
        said: FinalStatus,
        tracking_url: &str,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) -> Result<bool, MasterRefusal> {
        let is_unmanaged = self.submission.master.is_none();
        let current = self.attempts.all.last_mut().filter(|current| current.id == attempt);
        let current = current.ok_or(MasterRefusal::NoAttempt(attempt))?;
        let Some(registration) = &mut current.registration else {
            return Err(MasterRefusal::NotRegistered(attempt));
        };
        if current.state == AttemptState::Running {
            if !tracking_url.is_empty() {
                tracking_url.clone_into(&mut registration.tracking_url);
            }
            current.said = Some(said);
            self.on_attempt(AttemptEvent::Unregistered { is_unmanaged }, terms, at, out);
        } else if current.state == AttemptState::Launched {
            return Err(MasterRefusal::NotRegistered(attempt));
        }
        self.attempts.hear(at);
        Ok(matches!(self.state, AppState::Finishing) || self.state.is_over())
    }

    /// Its master was started, or could not be for a reason.
    pub fn master_launched(
        &mut self,
        attempt: YarnAttemptId,
        launched: Result<(), LaunchFailure<'_>>,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        if self.attempts.last().is_none_or(|current| current.id != attempt) {
            return;
        }
        self.attempts.hear(at);
        match launched {
            Ok(()) => self.on_attempt(AttemptEvent::Launched, terms, at, out),
            Err(failure) => {
                self.say_unstarted(failure);
                self.on_attempt(AttemptEvent::LaunchFailed, terms, at, out);
            }
        }
    }

    /// An incarnation of its master has ended although its command never ran: what its node was to prepare for it failed.
    pub fn master_never_ran(
        &mut self,
        incarnation: u32,
        failure: LaunchFailure<'_>,
        terms: AdapterTerms,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) {
        if incarnation == self.attempts.incarnation() {
            self.say_unstarted(failure);
            self.on_attempt(AttemptEvent::MasterEnded, terms, at, out);
        }
    }

    /// Says why the current attempt has failed, and decides what follows.
    fn say_unstarted(&mut self, failure: LaunchFailure<'_>) {
        if let Some(line) = self.attempts.note_unstarted(failure) {
            self.say(&line);
        }
    }
}
