//! The phases of running units, followed through the operations of the store: which transitions happened.

use std::collections::BTreeMap;

use godel_domain::running_units::{Phase, PhaseChange, Progress};
use godel_proto::v1;
use godel_wire::from_proto;

use super::covers::{TRANSITION, Traces};

/// Where a running unit is.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    incarnation: u32,
    progress: Progress,
}

/// By unit and ordinal. A row that is not there is pending with incarnation 0.
#[derive(Debug, Default)]
pub(super) struct Lives(BTreeMap<(u64, u32), Life>);

fn at(column: &[u32], idx: usize) -> u32 {
    column.get(idx).copied().unwrap_or(0)
}

impl Lives {
    pub(super) fn bind(&mut self, bind: &v1::Binding, traces: &mut Traces) {
        for (idx, ordinal) in bind.ordinals.iter().enumerate() {
            let incarnation = at(&bind.incarnations, idx);
            self.step((bind.unit_id, *ordinal), traces, |life| {
                let is_next = life.progress.phase == Phase::Pending && life.incarnation == incarnation;
                is_next.then_some(Life { incarnation, progress: of(Phase::Bound) })
            });
        }
    }

    /// Only an eviction from a lost node is an end.
    pub(super) fn evict(&mut self, evict: &v1::Eviction, traces: &mut Traces) {
        if evict.reason() != v1::EvictionReason::NodeLost {
            return;
        }
        for (idx, ordinal) in evict.ordinals.iter().enumerate() {
            let incarnation = at(&evict.incarnations, idx);
            self.step((evict.unit_id, *ordinal), traces, |life| {
                let Progress { phase, restarts } = life.progress;
                let ends = phase.is_live() && life.incarnation == incarnation;
                let progress = Progress { phase: Phase::Stopped, restarts };
                ends.then_some(Life { incarnation, progress })
            });
        }
    }

    /// What comes late, or twice, changes nothing.
    pub(super) fn report(&mut self, statuses: &v1::RunStatuses, traces: &mut Traces) {
        for (idx, (ordinal, said)) in statuses.ordinals.iter().zip(&statuses.phases).enumerate() {
            let incarnation = at(&statuses.incarnations, idx);
            let next = Progress {
                phase: from_proto::phase(*said).unwrap_or_default(),
                restarts: at(&statuses.restarts, idx),
            };
            self.step((statuses.unit_id, *ordinal), traces, |life| {
                let changes = life.incarnation == incarnation && life.progress.may_become(next);
                changes.then(|| Life { incarnation, progress: life.progress.followed_by(next) })
            });
        }
    }

    pub(super) fn requeue(&mut self, requeue: &v1::Requeue, traces: &mut Traces) {
        for (ordinal, incarnation) in requeue.ordinals.iter().zip(&requeue.incarnations) {
            self.step((requeue.unit_id, *ordinal), traces, |life| {
                let returns = life.progress.phase.is_ended() && *incarnation == life.incarnation + 1;
                returns.then_some(Life { incarnation: *incarnation, progress: of(Phase::Pending) })
            });
        }
    }

    fn step(&mut self, key: (u64, u32), traces: &mut Traces, next: impl FnOnce(&Life) -> Option<Life>) {
        let life = self.0.entry(key).or_default();
        let Some(next) = next(life) else { return };
        if let Some(change) = PhaseChange::between(life.progress, next.progress) {
            traces.add(TRANSITION, change.to_string());
        }
        *life = next;
    }
}

fn of(phase: Phase) -> Progress {
    Progress { phase, restarts: 0 }
}
