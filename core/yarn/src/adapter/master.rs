//! What masters call: register, allocate, finish; how they are started, and what becomes of an application whose master a node does not start.
//!
//! What was never started goes elsewhere and uses up no attempt, as replicas of other units do; what no node starts has failed at once, whatever
//! attempts it has left. The rule for both is [`TriedNodes`].

use godel_membership::node_failures::TriedNodes;

use super::{
    AdapterTerms, AdapterTime, AllocateAnswer, AllocatedContainer, LaunchFailure, LaunchFailureScope,
    MasterRefusal, Registration, YarnAction, YarnApplication,
};
use crate::{
    application::{AppState, FinalStatus},
    asks::{AllocateTurn, AskRow, BlacklistChange, next_response, turn},
    attempt::{AttemptEvent, AttemptState, AttemptTarget, UnstartedFate},
    container::YarnContainerState,
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
                AttemptState::FinalSaving { target: AttemptTarget::Failed } => {
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
            self.attempts.last_mut().filter(|current| current.id == attempt && !current.state.is_over());
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
        self.hear(at);
        self.on_attempt(AttemptEvent::Registered, terms, at, out);
        self.put(out);
        Ok(self.known_containers())
    }

    /// What has been fetched or runs, for a master that does not know it.
    fn known_containers(&self) -> Vec<AllocatedContainer> {
        let is_known = |state| matches!(state, YarnContainerState::Acquired | YarnContainerState::Running);
        let known = self.containers.iter().filter(|(_, container)| is_known(container.state));
        let shown = known.map(|(ordinal, container)| AllocatedContainer {
            id: container.id,
            ordinal: *ordinal,
            node: container.node.clone(),
            key: container.key.clone(),
        });
        shown.collect()
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
                self.hear(at);
                return Ok(last);
            }
            AllocateTurn::Wrong { expected } => {
                return Err(MasterRefusal::WrongResponse { attempt, seen: call.seen, expected });
            }
            AllocateTurn::Next => {}
        }
        let has_changed = self.asks.take(&call.asks, &call.blacklist)?;
        self.hear(at);
        if let Some(url) = &call.tracking_url {
            self.move_page(url, out);
        }
        self.give_up_ended(&last.completed, out);
        self.release(&call.release, at, out);
        if has_changed {
            self.settle(out);
        }
        let answer = AllocateAnswer {
            response_id: next_response(last.response_id),
            allocated: self.acquire(terms.container_expiry_ms, at, out),
            completed: self.take_ended(),
        };
        if let Some(current) = self.attempts.last_mut() {
            current.last = answer.clone();
        }
        Ok(answer)
    }

    /// Its page is somewhere else from now on, which is recorded.
    fn move_page(&mut self, url: &str, out: &mut Vec<YarnAction>) {
        let registered = self.attempts.last_mut().and_then(|attempt| attempt.registration.as_mut());
        if let Some(registration) = registered.filter(|registration| registration.tracking_url != url) {
            url.clone_into(&mut registration.tracking_url);
            self.put(out);
        }
    }

    /// Has the unit fit what is asked for. Nothing is asked for twice.
    pub fn settle(&mut self, out: &mut Vec<YarnAction>) {
        let changes = self.asks.settle();
        for ordinal in &changes.release {
            self.forget(*ordinal);
        }
        if !changes.release.is_empty() {
            out.push(YarnAction::Release(self.id, changes.release));
        }
        if !changes.add.is_empty() {
            out.push(YarnAction::Grow(self.id, changes.add));
        }
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
        let current = self.attempts.last_mut().filter(|current| current.id == attempt);
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
        self.hear(at);
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
        self.hear(at);
        match launched {
            Ok(()) => self.on_attempt(AttemptEvent::Launched, terms, at, out),
            Err(failure) => {
                self.note_unstarted(failure);
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
        if incarnation == self.master_incarnation() {
            self.note_unstarted(failure);
            self.on_attempt(AttemptEvent::MasterEnded, terms, at, out);
        }
    }

    /// Nodes of the current attempt and of those right before it that no node has started, as `host:port`.
    pub fn tried_nodes(&self) -> TriedNodes<&str> {
        let n_before = self.attempts.iter().rev().skip(1);
        let n_unstarted = n_before.take_while(|attempt| attempt.unstarted.is_some()).count();
        let n_skipped = self.attempts.len().saturating_sub(n_unstarted + 1);
        let mut tried = TriedNodes::default();
        self.attempts
            .iter()
            .skip(n_skipped)
            .filter_map(|attempt| attempt.node.as_deref())
            .for_each(|node| tried.note(node));
        tried
    }

    /// Says why the current attempt has failed, and decides what follows.
    fn note_unstarted(&mut self, failure: LaunchFailure<'_>) {
        let LaunchFailure { why, scope, has_other_node } = failure;
        let goes_elsewhere = self.tried_nodes().goes_elsewhere(|_| has_other_node);
        let Some(current) = self.attempts.last_mut() else { return };
        let is_awaited = matches!(
            current.state,
            AttemptState::Scheduled
                | AttemptState::AllocatedSaving
                | AttemptState::Allocated
                | AttemptState::Launched
        );
        if !is_awaited {
            return;
        }
        current.unstarted = match scope {
            LaunchFailureScope::Everywhere => Some(UnstartedFate::Nowhere),
            LaunchFailureScope::Node | LaunchFailureScope::Late if goes_elsewhere => {
                Some(UnstartedFate::Elsewhere)
            }
            LaunchFailureScope::Node => Some(UnstartedFate::Nowhere),
            // It may be reached later: it counts as one that failed by itself.
            LaunchFailureScope::Late => None,
        };
        let line = format!("The master of {} was not started: {why}", current.id);
        self.say(&line);
    }
}
