//! What is in hand, and what the loop tells the call limiter.

use std::sync::Arc;

use godel_base::ids::{IdMap, UnitId};
use godel_core_dispatcher::Dispatcher;
use godel_rules::overload::{self, OverloadLimits};
use tokio::time::Instant;

use super::outbox::EngineOutbox;
use crate::{
    call_limiter::{CallLimiter, CallPermit},
    config::Config,
};

/// Between two looks at all that is in hand: what is not owed any more for a reason that nobody reports, such as a pause.
const SWEEP: std::time::Duration = std::time::Duration::from_millis(100);

/// Units submitted by calls that the control plane owes an answer, and how many more it takes.
pub(super) struct OverloadControl {
    pub(super) call_limiter: Arc<CallLimiter>,
    control: overload::Overload,
    started: Instant,
    swept_at: Instant,
    in_hand: IdMap<UnitId, CallPermit>,
}

impl OverloadControl {
    pub(super) fn new(config: &Config) -> Self {
        let limits =
            OverloadLimits { usual: config.calls_in_hand_max, overloaded: config.calls_in_hand_overloaded };
        let (control, started) = (overload::Overload::new(limits), Instant::now());
        let call_limiter = CallLimiter::new(control.limit(), control.pause());
        Self { call_limiter, control, started, swept_at: started, in_hand: IdMap::default() }
    }

    /// A unit is on its way to the store.
    pub(super) fn take(&mut self, unit: UnitId, pass: Option<CallPermit>) {
        if let Some(pass) = pass {
            self.in_hand.insert(unit, pass);
        }
    }

    /// Whether the control plane owes an answer about a unit.
    pub(super) fn owes(&self, unit: UnitId) -> bool {
        self.in_hand.contains_key(&unit)
    }

    /// Nothing is owed any more: some of it is bound, or it waits for something else.
    pub(super) fn release(&mut self, unit: UnitId) {
        self.in_hand.remove(&unit);
    }
}

impl EngineOutbox {
    /// Sets the call limiter as things are now.
    pub(super) fn update_limits(&mut self, core: &Dispatcher) {
        let OverloadControl { call_limiter, control, started, swept_at, in_hand } = &mut self.overload;
        if swept_at.elapsed() >= SWEEP {
            *swept_at = Instant::now();
            let pending = core.pending();
            in_hand.retain(|unit, _| pending.is_owed(*unit));
        }
        if control.step(call_limiter.take_counted(), call_limiter.in_hand(), started.elapsed()) {
            call_limiter.set(control.limit(), control.pause());
        }
        let metrics = &self.context.metrics;
        metrics.in_hand.set(call_limiter.in_hand().into());
        metrics.in_hand_max.set(control.limit().into());
        self.mind_streams(core);
    }

    /// Streams are read while not too much waits for schedulers.
    pub(super) fn mind_streams(&self, core: &Dispatcher) {
        let call_limiter = &self.overload.call_limiter;
        // Closed at the maximum, open again at half of it: in between there is enough to do.
        let (backlog, most) =
            (core.pending().count_backlog(), self.context.config.streams_backlog_max.max(1));
        call_limiter.set_open(if call_limiter.is_open() { backlog < most } else { backlog <= most / 2 });
        self.context.metrics.streams_paused.set((!call_limiter.is_open()).into());
    }
}
