//! Plans that wait to be made, one after the other.

use std::collections::VecDeque;

use godel_base::ids::UnitId;
use godel_core_rescheduler::RunCause;

/// Plans that wait for their turn.
pub(crate) const N_JOBS_MAX: usize = 16;

/// Somebody wants a plan.
#[derive(Debug)]
pub(crate) enum PlanJob<C> {
    /// A policy runs; somebody may wait for it.
    Run { policy: String, cause: RunCause, caller: Option<C> },
    /// Somebody wants to see the plan of a policy.
    Show { policy: String, caller: C },
    /// Somebody wants room for a unit, or the unit does.
    Room { unit: UnitId, dry_run: bool, caller: Option<C> },
    /// The rest of the movement that is being made is planned anew.
    Replan,
}

impl<C> PlanJob<C> {
    /// Returns who waits for it.
    pub(crate) fn into_caller(self) -> Option<C> {
        match self {
            Self::Run { caller, .. } | Self::Room { caller, .. } => caller,
            Self::Show { caller, .. } => Some(caller),
            Self::Replan => None,
        }
    }
}

/// The plan that is being made.
#[derive(Debug)]
pub(crate) struct PlanUnderWay<C> {
    pub(crate) job: PlanJob<C>,
    /// The leadership for which it is made.
    pub(crate) term: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct PlanQueue<C> {
    waiting: VecDeque<PlanJob<C>>,
    under_way: Option<PlanUnderWay<C>>,
    n_begun: u64,
}

impl<C> Default for PlanQueue<C> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), under_way: None, n_begun: 0 }
    }
}

impl<C> PlanQueue<C> {
    /// Nothing is planned, and nothing waits for it.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_none() && self.waiting.is_empty()
    }

    /// As many wait as may.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= N_JOBS_MAX
    }

    pub(crate) fn push(&mut self, job: PlanJob<C>) {
        self.waiting.push_back(job);
    }

    /// The next plan is that of the rest of the movement that is being made.
    pub(crate) fn replan(&mut self) {
        self.waiting.push_front(PlanJob::Replan);
    }

    /// Takes the next one, unless another one is being made.
    pub(crate) fn pop(&mut self) -> Option<PlanJob<C>> {
        if self.under_way.is_some() { None } else { self.waiting.pop_front() }
    }

    /// A plan is being made from now on; returns its number.
    pub(crate) fn begin(&mut self, job: PlanJob<C>, term: u64) -> u64 {
        self.n_begun = self.n_begun.wrapping_add(1);
        self.under_way = Some(PlanUnderWay { job, term });
        self.n_begun
    }

    /// The plan that was being made has ended.
    pub(crate) fn end(&mut self) -> Option<PlanUnderWay<C>> {
        self.under_way.take()
    }

    /// Nothing that waits is made any more.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = C> {
        std::mem::take(&mut self.waiting).into_iter().filter_map(PlanJob::into_caller)
    }
}
