//! The start of masters, and what becomes of an application whose master a node does not start.
//!
//! What was never started goes elsewhere and uses up no attempt, as replicas of other units do; what no node starts has failed at once, whatever
//! attempts it has left. The rule for both is [`TriedNodes`].

use godel_rules::node_failures::TriedNodes;

use super::{AdapterTerms, AdapterTime, LaunchFailure, LaunchFailureScope, YarnAction, YarnApplication};
use crate::{
    attempt::{AttemptEvent, AttemptState, UnstartedFate},
    ids::YarnAttemptId,
};

impl YarnApplication {
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
