//! The attempts of an application, and where their masters were.

use std::{collections::BTreeSet, ops::Deref};

use godel_membership::node_failures::TriedNodes;

use super::{AdapterTime, LaunchFailure, LaunchFailureScope, MASTER, YarnAttempt};
use crate::{
    application::EndTarget,
    attempt::{AttemptState, FailedAttempt, UnstartedFate},
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};

/// Attempts of one application, the first one first.
#[derive(Clone, Debug)]
pub struct YarnAttempts {
    application: YarnApplicationId,
    pub(super) all: Vec<YarnAttempt>,
    /// Those that have failed by themselves.
    pub(super) failed: Vec<FailedAttempt>,
}

impl Deref for YarnAttempts {
    type Target = [YarnAttempt];

    fn deref(&self) -> &[YarnAttempt] {
        &self.all
    }
}

impl YarnAttempts {
    pub(super) fn none_of(application: YarnApplicationId) -> Self {
        Self { application, all: Vec::new(), failed: Vec::new() }
    }

    /// An ordinal belongs to the attempt that asked for it.
    pub(super) fn container_id(&self, ordinal: u32) -> YarnContainerId {
        let asked = |attempt: &&YarnAttempt| attempt.first(ordinal) <= ordinal;
        let attempt = self.iter().rev().find(asked).or(self.first());
        let attempt =
            attempt.map_or(YarnAttemptId { application: self.application, number: 1 }, |attempt| attempt.id);
        YarnContainerId { attempt, epoch: 0, number: u64::from(ordinal) + 1 }
    }

    /// The container of the current master.
    pub fn master(&self) -> Option<YarnContainerId> {
        let attempt = self.current()?;
        Some(YarnContainerId { attempt, epoch: 0, number: u64::from(MASTER) + 1 })
    }

    /// Where its masters have failed by themselves, or because of their nodes, as `host:port`: the next one had better go elsewhere.
    pub fn failed_nodes(&self) -> BTreeSet<&str> {
        let is_bad = |exit: YarnExitStatus| exit.counts_as_failure() || exit == YarnExitStatus::DISKS_FAILED;
        let has_failed = |state: AttemptState| {
            state == AttemptState::Failed || state == AttemptState::FinalSaving { target: EndTarget::Failed }
        };
        let failed = self.iter().filter(|attempt| has_failed(attempt.state) && is_bad(attempt.exit));
        failed.filter_map(|attempt| attempt.node.as_deref()).collect()
    }

    /// The current master was heard of.
    pub(super) fn hear(&mut self, at: AdapterTime) {
        if let Some(attempt) = self.all.last_mut() {
            attempt.heard = at.now;
        }
    }

    /// The attempt that is under way, or was the last one.
    pub fn current(&self) -> Option<YarnAttemptId> {
        self.last().map(|attempt| attempt.id)
    }

    /// Incarnation of ordinal 0 that is the current master.
    pub fn incarnation(&self) -> u32 {
        self.last().map_or(0, |attempt| attempt.id.number - 1)
    }

    /// Nodes of the current attempt and of those right before it that no node has started, as `host:port`.
    pub fn tried_nodes(&self) -> TriedNodes<&str> {
        let n_before = self.iter().rev().skip(1);
        let n_unstarted = n_before.take_while(|attempt| attempt.unstarted.is_some()).count();
        let n_skipped = self.len().saturating_sub(n_unstarted + 1);
        let mut tried = TriedNodes::default();
        self.iter()
            .skip(n_skipped)
            .filter_map(|attempt| attempt.node.as_deref())
            .for_each(|node| tried.note(node));
        tried
    }

    /// Decides what follows from the failure of the current attempt. What people are told of that.
    pub(super) fn note_unstarted(&mut self, failure: LaunchFailure<'_>) -> Option<String> {
        let LaunchFailure { why, scope, has_other_node } = failure;
        let goes_elsewhere = self.tried_nodes().goes_elsewhere(|_| has_other_node);
        let current = self.all.last_mut()?;
        let is_awaited = matches!(
            current.state,
            AttemptState::Scheduled
                | AttemptState::AllocatedSaving
                | AttemptState::Allocated
                | AttemptState::Launched
        );
        if !is_awaited {
            return None;
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
        Some(format!("The master of {} was not started: {why}", current.id))
    }

    /// The page of the current master is somewhere else from now on. Whether that is news.
    pub(super) fn move_page(&mut self, url: &str) -> bool {
        let registered = self.all.last_mut().and_then(|attempt| attempt.registration.as_mut());
        let moved = registered.filter(|registration| registration.tracking_url != url);
        moved.map(|registration| url.clone_into(&mut registration.tracking_url)).is_some()
    }
}
