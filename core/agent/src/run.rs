//! One running unit on a node.

use godel_base::time::Millis;
use godel_domain::{
    run_end::{RunEnd, RunEndReason},
    running_units::Phase,
    unit::RestartPolicy,
};

use crate::{AgentAction, RunKey, RunOrders, RunStatus, RunWork};

/// See the module.
#[derive(Clone, Debug)]
pub struct LocalRun<P> {
    pub(crate) incarnation: u32,
    pub(crate) phase: Phase,
    /// Of its last end, also of one after which it was started again.
    pub(crate) exit_code: i32,
    pub(crate) stopping: bool,
    /// See [`NodeLife::notice`](crate::NodeLife::notice).
    pub(crate) is_noticed: bool,
    /// It is not started yet again.
    pub(crate) waiting: bool,
    pub(crate) restarts: u32,
    /// Restarts since it last ran for long: these are limited.
    pub(crate) in_row: u32,
    pub(crate) running_since: Millis,
    /// Of its last start.
    pub(crate) end: RunEnd,
    /// An earlier agent started it, and state has not asked for it since.
    pub(crate) is_adopted: bool,
    pub(crate) orders: RunOrders<P>,
}

impl<P> LocalRun<P> {
    pub(crate) fn new(incarnation: u32, phase: Phase, orders: RunOrders<P>) -> Self {
        Self {
            incarnation,
            phase,
            exit_code: 0,
            stopping: false,
            is_noticed: false,
            waiting: false,
            restarts: orders.restarts,
            // Whether it ran for long under an agent that has forgotten it is not known.
            in_row: orders.restarts,
            running_since: Millis(0),
            end: RunEnd::default(),
            is_adopted: false,
            orders,
        }
    }

    /// What state says of it.
    #[inline]
    pub fn orders(&self) -> &RunOrders<P> {
        &self.orders
    }

    /// Times that it was started again in place.
    #[inline]
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Of these since it last ran for long.
    #[inline]
    pub fn restarts_in_row(&self) -> u32 {
        self.in_row
    }

    /// Whether it waits for its command.
    pub fn is_awaiting(&self) -> bool {
        !self.stopping && self.phase == Phase::Starting && matches!(self.orders.work, RunWork::Awaited { .. })
    }

    /// Since when it runs, if it does.
    pub fn running_since(&self) -> Option<Millis> {
        (self.phase == Phase::Running).then_some(self.running_since)
    }

    pub(crate) fn status(&self, key: RunKey) -> RunStatus {
        let exit_code = if self.phase.is_ended() { self.exit_code } else { 0 };
        let Self { incarnation, phase, restarts, end, .. } = *self;
        RunStatus { key, incarnation, phase, exit_code, restarts, refused: None, end }
    }

    pub(crate) fn stop(&self, key: RunKey, grace_ms: u32, reason: RunEndReason) -> AgentAction {
        AgentAction::Stop { key, incarnation: self.incarnation, grace_ms, reason }
    }

    /// It lives, and is not told to leave.
    pub(crate) fn stays(&self) -> bool {
        self.phase.is_live() && !self.stopping
    }

    /// Whether an end by itself with `exit_code` is none.
    pub(crate) fn may_restart(&self, exit_code: i32) -> bool {
        let wanted = match self.orders.restart_policy {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => exit_code != 0,
            RestartPolicy::Always => true,
        };
        wanted && !self.stopping && self.in_row < self.orders.max_restarts
    }
}
