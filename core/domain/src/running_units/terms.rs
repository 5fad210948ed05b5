//! Preemption terms: how bound running units stand against those that want their room, and which queue pays for them.
//!
//! The first binding of a task group writes them. They stay until the record of the unit changes what they follow from: then
//! a [`RunChange::Terms`](super::RunChange::Terms) beside the record says the terms of all that is bound. A priority class
//! that changes its priority changes nothing for what is bound.

use std::sync::Arc;

use crate::{
    priority_classes::PriorityClasses,
    queue_spec::{Band, DEFAULT_QUEUE},
    unit::UnitSpec,
};

/// How bound running units stand against those that want their room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PreemptionTerms {
    /// Higher wins.
    pub priority: i32,
    /// May have to leave for one of higher rank.
    pub preemptible: bool,
    /// Left alone so long after its binding, milliseconds.
    pub min_run_ms: u64,
    /// With fewer than these the unit is worth nothing.
    pub min_member: u32,
    /// With fewer than these of their task group the unit is worth nothing; 0: the group has no minimum of its own.
    pub group_min_member: u32,
    /// Path of the queue that pays; `None`: `default`.
    pub queue: Option<Arc<str>>,
    /// Whether it ends by itself.
    pub end: End,
    /// Its first replica is the master of an application, which ends without it.
    pub has_master: bool,
}

/// Whether a running unit gives its room back without being told to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum End {
    /// An older binder bound it: it is believed to end.
    #[default]
    Unknown,
    /// It goes on until somebody ends it.
    Never,
    /// It ends once its work is done, or its active deadline ends it.
    ByItself,
}

impl PreemptionTerms {
    /// Returns the terms of running units of a unit that are bound now, of a task group without a minimum of its own.
    pub fn of(spec: &UnitSpec, classes: &PriorityClasses) -> Self {
        let priority = classes.priority(spec);
        let is_system = Band::of(spec.pool, priority) == Band::System;
        let by_class = spec.priority_class.is_empty() || classes.may_be_preempted(&spec.priority_class);
        Self {
            priority,
            preemptible: spec.preemptible && !is_system && by_class,
            min_run_ms: spec.min_run_ms,
            min_member: spec.min_member,
            group_min_member: 0,
            queue: (spec.queue != DEFAULT_QUEUE).then(|| Arc::from(spec.queue.as_str())),
            end: spec.end(),
            has_master: spec.is_of_masters(0),
        }
    }

    /// Whether a running unit is the master of its application.
    #[inline]
    pub fn is_master(&self, ordinal: u32) -> bool {
        self.has_master && ordinal == 0
    }
}

/// Preemption terms of all that is bound of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitTerms {
    /// The terms of task groups without a minimum of their own.
    pub others: Arc<PreemptionTerms>,
    /// By task group: the minimum of its own; 0 or behind the end: none.
    pub group_minima: Vec<u32>,
}

impl UnitTerms {
    /// Returns the terms of what is bound of a unit.
    pub fn of(spec: &UnitSpec, classes: &PriorityClasses) -> Self {
        let mut group_minima: Vec<u32> = spec.task_groups.iter().map(|group| group.min_member).collect();
        let n_needed = group_minima.iter().rposition(|minimum| *minimum > 0).map_or(0, |last| last + 1);
        group_minima.truncate(n_needed);
        Self { others: Arc::new(PreemptionTerms::of(spec, classes)), group_minima }
    }

    /// Returns the terms of running units of one task group.
    pub fn of_group(&self, group: usize) -> Arc<PreemptionTerms> {
        match self.group_minima.get(group) {
            None | Some(0) => Arc::clone(&self.others),
            Some(minimum) => Arc::new(PreemptionTerms {
                group_min_member: *minimum,
                ..PreemptionTerms::clone(&self.others)
            }),
        }
    }
}

impl From<PreemptionTerms> for UnitTerms {
    fn from(terms: PreemptionTerms) -> Self {
        Self { others: Arc::new(terms), group_minima: Vec::new() }
    }
}
