//! The life of the running units of one node: a pure state machine.
//!
//! Inputs are what state asks for and what happens here; outputs are [`Action`]s for whoever really runs things
//! and reports for state. A report stays until it is acknowledged as durable, so a lost session loses nothing;
//! an assignment, stop or acknowledgement that comes twice or late changes nothing.
//!
//! ```text
//! assign ─▶ Starting ─started─▶ Running ─ended─▶ Succeeded | Failed | Stopped ─acknowledged─▶ remembered
//!              ▲ │ stop: Stopped at once            │
//!              │ └─◀─ waits ◀─ may start again ─────┘
//!              └─ restart
//! ```
//! What ended by itself and may start again (its policy, and fewer restarts in a row than its limit) is no end:
//! it is Starting once more, with one restart more, and waits for its [`Backoff`].
//!
//! When the store behind state is another one, by a restore or a truncation, what it does not know here is left over:
//! it is stopped and never spoken of again, and nothing starts on the node before the last of it has ended. The same holds for
//! an older incarnation of what is to be started, and for what an earlier agent has left running and state tells to leave.

use std::collections::VecDeque;

use godel_base::time::Millis;
use godel_domain::{
    allocation::Allocation,
    demand::Pool,
    run_end::{RunEnd, RunEndReason},
    running_units::Phase,
    unit::RestartPolicy,
};
use godel_membership::agent_admission::{self, AssignmentRefusal, Has};
use rustc_hash::{FxHashMap, FxHashSet};

mod awaited;
mod backoff;
mod notice;
mod orders;
mod reports;
mod squeeze;
mod zone_use;

pub use self::{awaited::NotAwaiting, backoff::Backoff, notice::Notice};
pub use orders::{Key, LeftRunning, Orders, Weight, Work};

/// Ended and acknowledged running units that are remembered, so that a late copy of an assignment does not
/// start one again. The newest of one node; a copy later than so many others cannot come on an ordered stream.
const N_REMEMBERED_MAX: usize = 16;
/// Statuses in one report, where state does not say how many.
pub(crate) const N_STATUSES_MAX: usize = 4096;
/// Reports on their way; more wait.
const N_REPORTS_MAX: usize = 64;

/// Running units for which a node keeps room when they are gone: more room was a burst's.
const N_ROOM_KEPT: usize = 16;

/// What is to be said of one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Which running unit.
    pub key: Key,
    /// Which life of it.
    pub incarnation: u32,
    /// Starting, running, or an end.
    pub phase: Phase,
    /// Of an end.
    pub exit_code: i32,
    /// Times that it was started again in place.
    pub restarts: u32,
    /// It was not started here, and why.
    pub refused: Option<AssignmentRefusal>,
    /// When its command ran, and why it is over.
    pub end: RunEnd,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// As shells have it.
    pub exit_code: i32,
    /// Why and when, if it was a command.
    pub end: RunEnd,
    /// Nothing of it has run, for the sake of the node.
    pub refused: Option<AssignmentRefusal>,
}

/// What is to be done for real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start it; answer with [`NodeLife::started`] and, in the end, [`NodeLife::ended`].
    Start(Key, u32),
    /// Call [`NodeLife::restart`] later.
    Wait {
        /// Which running unit.
        key: Key,
        /// Which life of it.
        incarnation: u32,
        /// Which start of it.
        restarts: u32,
        /// How much later.
        after_ms: u64,
    },
    /// Stop it politely, by force after the grace; answer with [`NodeLife::ended`].
    Stop {
        /// Which running unit.
        key: Key,
        /// Which life of it.
        incarnation: u32,
        /// Between the polite and the forced end.
        grace_ms: u32,
        /// Why, for its end.
        reason: RunEndReason,
    },
    /// Write it down: it must not be reported before it is safe.
    Keep(Status),
    /// State has it on its disk: it need not be kept any longer.
    Forget(Status),
}

#[derive(Clone, Debug)]
struct Run {
    incarnation: u32,
    phase: Phase,
    /// Of its last end, also of one after which it was started again.
    exit_code: i32,
    stopping: bool,
    /// See [`NodeLife::notice`].
    is_noticed: bool,
    /// It is not started yet again.
    waiting: bool,
    restarts: u32,
    /// Restarts since it last ran for long: these are limited.
    in_row: u32,
    running_since: Millis,
    /// Of its last start.
    end: RunEnd,
    /// An earlier agent started it, and state has not asked for it since.
    is_adopted: bool,
    orders: Orders,
}

impl Run {
    fn new(incarnation: u32, phase: Phase, orders: Orders) -> Self {
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

    fn status(&self, key: Key) -> Status {
        let exit_code = if self.phase.is_ended() { self.exit_code } else { 0 };
        let Self { incarnation, phase, restarts, end, .. } = *self;
        Status { key, incarnation, phase, exit_code, restarts, refused: None, end }
    }

    /// Whether an end by itself with `exit_code` is none.
    fn may_restart(&self, exit_code: i32) -> bool {
        let wanted = match self.orders.restart_policy {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => exit_code != 0,
            RestartPolicy::Always => true,
        };
        wanted && !self.stopping && self.in_row < self.orders.max_restarts
    }
}

/// All running units of one node.
#[derive(Debug, Default)]
pub struct NodeLife {
    /// Live ones, and ended ones not yet acknowledged.
    runs: FxHashMap<Key, Run>,
    remembered: VecDeque<Status>,
    /// To be reported, in order.
    dirty: VecDeque<Status>,
    /// Reported, not acknowledged.
    in_flight: VecDeque<(u64, Vec<Status>)>,
    last_sequence: u64,
    /// What guaranteed and best-effort ones ask for.
    live: (Weight, Weight),
    n_live: usize,
    backoff: Backoff,
    /// Of another store, or of an incarnation that is over, told to stop, not ended yet.
    left_over: FxHashMap<(Key, u32), Run>,
    /// Left running by an earlier agent, told to stop, not ended yet.
    leaving: FxHashSet<(Key, u32)>,
    /// Not started before all of these have ended.
    held: Vec<(Key, u32)>,
}

impl NodeLife {
    /// A node on which nothing runs.
    pub fn new(backoff: Backoff) -> Self {
        Self { backoff, ..Self::default() }
    }

    /// Takes up what a journal kept: ended before, never acknowledged.
    pub fn restore(&mut self, status: Status) {
        let Status { key, incarnation, phase, exit_code, restarts, refused: _, end } = status;
        let orders = Orders { restarts, ..Orders::default() };
        self.runs.insert(key, Run { exit_code, end, ..Run::new(incarnation, phase, orders) });
        self.dirty.push_back(status);
    }

    /// Takes up what an earlier agent has left running. False: a journal has kept its end, or a later incarnation is here.
    pub fn adopt(
        &mut self,
        key: Key,
        incarnation: u32,
        orders: Orders,
        left: LeftRunning,
        now: Millis,
    ) -> bool {
        let LeftRunning { restarts, in_row, started_ms } = left;
        if self.runs.get(&key).is_some_and(|run| run.incarnation >= incarnation) {
            return false;
        }
        self.count(&orders, 1);
        let run = Run::new(incarnation, left.phase(), orders);
        let end = RunEnd { started_ms, ..RunEnd::default() };
        self.runs.insert(key, Run { restarts, in_row, end, running_since: now, is_adopted: true, ..run });
        true
    }

    /// State wants it to run here, bound since it was told what the node has: checked before, and refused if `told` to.
    ///
    /// # Errors
    /// It is not started, and why. That is reported.
    pub fn offer(
        &mut self,
        key: Key,
        incarnation: u32,
        orders: Orders,
        has: &Has,
        told: bool,
        out: &mut Vec<Action>,
    ) -> Result<(), AssignmentRefusal> {
        let of_run = self.runs.get(&key).map(|run| run.incarnation);
        let known = of_run.max(self.remembered(key).map(|ended| ended.incarnation));
        let is_new = known.is_none_or(|known| known < incarnation);
        let checked = if told { Err(AssignmentRefusal::Told) } else { self.recheck(key, &orders, has) };
        if let (true, Err(refusal)) = (is_new, checked) {
            self.supersede(key, out);
            self.never_started(key, incarnation, Some(refusal), out);
            return Err(refusal);
        }
        self.assign(key, incarnation, orders, out);
        Ok(())
    }

    /// Most of the time the sums say that there is room.
    fn recheck(&self, key: Key, orders: &Orders, has: &Has) -> Result<(), AssignmentRefusal> {
        let takes = orders.takes();
        let sum = self.live.0.plus(orders.weight);
        if orders.allocation == Allocation::default()
            && sum.cpu_milli <= has.cpu_milli
            && sum.memory <= has.memory
        {
            return Ok(());
        }
        // What is told to leave gives its room; what has another incarnation does.
        let stays = |known: &Key, run: &Run| run.phase.is_live() && !run.stopping && *known != key;
        let staying = self.runs.iter().filter(|(known, run)| stays(known, run));
        agent_admission::check(has, staying.map(|(_, run)| run.orders.takes()), &takes)
    }

    /// State wants it to run here.
    pub fn assign(&mut self, key: Key, incarnation: u32, orders: Orders, out: &mut Vec<Action>) {
        if let Some(run) = self.runs.get_mut(&key) {
            if run.incarnation >= incarnation {
                run.is_adopted &= run.incarnation > incarnation;
                return;
            }
            self.supersede(key, out);
        } else if let Some(ended) = self.remembered(key).filter(|ended| ended.incarnation >= incarnation) {
            // State seems not to know the end: say it again.
            self.dirty.push_back(ended);
            return;
        }
        self.count(&orders, 1);
        let mut run = Run::new(incarnation, Phase::Starting, orders);
        if self.holds() {
            run.waiting = true;
            self.held.push((key, incarnation));
        } else {
            out.push(Action::Start(key, incarnation));
        }
        self.runs.insert(key, run);
    }

    /// Another store does not know it here, perhaps not even its unit: it ends, and nobody wants to hear of it.
    pub fn abandon(&mut self, key: Key, incarnation: u32, grace_ms: u32, out: &mut Vec<Action>) {
        let Some(run) = self.runs.remove(&key) else { return };
        if run.incarnation != incarnation {
            self.runs.insert(key, run);
            return;
        }
        if !run.phase.is_live() {
            out.push(Action::Forget(run.status(key)));
            return;
        }
        if run.waiting {
            self.count(&run.orders, -1);
            return;
        }
        if !run.stopping {
            let grace_ms = grace_ms.max(run.orders.stop_grace_ms);
            out.push(Action::Stop { key, incarnation, grace_ms, reason: RunEndReason::Told });
        }
        self.left_over.insert((key, incarnation), run);
    }

    /// Another agent speaks for the node: whatever runs here ends, and nobody wants to hear of it. What is assigned here again is not
    /// started before the last of it has ended.
    pub fn disown(&mut self, out: &mut Vec<Action>) {
        let mut all: Vec<(Key, u32, u32)> =
            self.runs.iter().map(|(key, run)| (*key, run.incarnation, run.orders.stop_grace_ms)).collect();
        all.sort_unstable();
        for (key, incarnation, grace_ms) in all {
            self.abandon(key, incarnation, grace_ms, out);
        }
        self.change_store();
    }

    /// Something of another store still runs here.
    pub fn has_left_over(&self) -> bool {
        !self.left_over.is_empty()
    }

    /// Since when it runs, if it does.
    pub fn running_since(&self, key: Key, incarnation: u32) -> Option<Millis> {
        let run = self.runs.get(&key).filter(|run| run.incarnation == incarnation)?;
        (run.phase == Phase::Running).then_some(run.running_since)
    }

    /// What it does, if it lives here.
    pub fn work(&self, key: Key, incarnation: u32) -> Option<&Work> {
        let run = self.runs.get(&key).filter(|run| run.incarnation == incarnation && run.phase.is_live())?;
        Some(&run.orders.work)
    }

    /// State wants it to leave.
    pub fn stop(&mut self, key: Key, incarnation: u32, grace_ms: u32, out: &mut Vec<Action>) {
        match self.runs.get(&key) {
            Some(run) if run.incarnation > incarnation => return,
            Some(run) if run.incarnation == incarnation => {
                self.stop_live(key, grace_ms, RunEndReason::Told, out);
                return;
            }
            Some(_) => self.supersede(key, out),
            None => {
                if let Some(ended) = self.remembered(key).filter(|ended| ended.incarnation >= incarnation) {
                    self.dirty.push_back(ended);
                    return;
                }
            }
        }
        // Never started here. It is over, and a late assignment must not start it.
        self.never_started(key, incarnation, None, out);
    }

    fn never_started(
        &mut self,
        key: Key,
        incarnation: u32,
        refused: Option<AssignmentRefusal>,
        out: &mut Vec<Action>,
    ) {
        let end = RunEnd::default();
        let status =
            Status { key, incarnation, phase: Phase::Stopped, exit_code: 0, restarts: 0, refused, end };
        out.push(Action::Keep(status));
        self.restore(status);
    }

    /// It runs, since `started_ms` by the clock of the machine; 0: it is simulated.
    pub fn started(&mut self, key: Key, incarnation: u32, started_ms: i64, now: Millis) {
        let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
        if let Some(run) = run.filter(|run| run.phase == Phase::Starting && !run.waiting) {
            run.phase = Phase::Running;
            run.running_since = now;
            run.end = RunEnd { started_ms, ..RunEnd::default() };
            self.dirty.push_back(run.status(key));
        }
    }

    /// It is over, or has to be started again.
    pub fn ended(&mut self, key: Key, incarnation: u32, ended: Ended, now: Millis, out: &mut Vec<Action>) {
        let Ended { exit_code, end, refused } = ended;
        let was_left_over = self.left_over.remove(&(key, incarnation));
        if let Some(run) = &was_left_over {
            self.count(&run.orders, -1);
        }
        let was_leaving = self.leaving.remove(&(key, incarnation));
        if was_left_over.is_some() || was_leaving {
            self.release(out);
        }
        if was_left_over.is_some() {
            return;
        }
        let Some(run) = self.runs.get_mut(&key) else { return };
        if run.incarnation != incarnation || !run.phase.is_live() || run.waiting {
            return;
        }
        if let Some(why) = refused.filter(|_| !run.stopping) {
            return self.give_back(key, why, out);
        }
        run.exit_code = exit_code;
        run.end = end;
        if run.phase == Phase::Running && now.since(run.running_since) >= self.backoff.reset_ms {
            run.in_row = 0;
        }
        if run.may_restart(exit_code) {
            let after_ms = self.backoff.pause_ms(key, incarnation, run.in_row);
            run.phase = Phase::Starting;
            run.waiting = true;
            run.in_row += 1;
            run.restarts = run.restarts.saturating_add(1);
            run.end = RunEnd::default();
            self.dirty.push_back(run.status(key));
            out.push(Action::Wait { key, incarnation, restarts: run.restarts, after_ms });
            return;
        }
        let phase = match (run.stopping, exit_code) {
            (true, _) => Phase::Stopped,
            (false, 0) => Phase::Succeeded,
            (false, _) => Phase::Failed,
        };
        self.finish(key, phase, out);
    }

    /// Whether something that has to end first still runs.
    fn holds(&self) -> bool {
        !self.left_over.is_empty() || !self.leaving.is_empty()
    }

    /// Starts what is held, if nothing holds it any more.
    fn release(&mut self, out: &mut Vec<Action>) {
        if self.holds() {
            return;
        }
        for (key, incarnation) in std::mem::take(&mut self.held) {
            let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
            if let Some(run) = run.filter(|run| run.phase == Phase::Starting && run.waiting) {
                run.waiting = false;
                out.push(Action::Start(key, incarnation));
            }
        }
    }

    /// It has waited long enough for its start number `restarts`.
    pub fn restart(&mut self, key: Key, incarnation: u32, restarts: u32, out: &mut Vec<Action>) {
        if self.held.contains(&(key, incarnation)) {
            return;
        }
        let Some(run) = self.runs.get_mut(&key) else { return };
        if run.incarnation == incarnation && run.restarts == restarts && run.waiting {
            run.waiting = false;
            out.push(Action::Start(key, incarnation));
        }
    }

    /// Without contact for `alone_ms`: stops what has to stop by then, before state may give it away. Returns
    /// after how long the next has to.
    pub fn stop_without_contact(&mut self, alone_ms: u64, out: &mut Vec<Action>) -> Option<u32> {
        let mut overdue = Vec::new();
        let mut next = None;
        for (key, run) in &self.runs {
            let stop_after_ms = run.orders.stop_after_ms;
            if stop_after_ms == 0 || !run.phase.is_live() || run.stopping {
                continue;
            }
            if alone_ms >= u64::from(stop_after_ms) {
                overdue.push(*key);
            } else {
                next = Some(next.map_or(stop_after_ms, |least: u32| least.min(stop_after_ms)));
            }
        }
        overdue.sort_unstable();
        for key in overdue {
            self.stop_live(key, 0, RunEndReason::NoContact, out);
        }
        next
    }

    /// The agent is being stopped and ends what it runs, each with its own grace.
    pub fn stop_with_agent(&mut self, out: &mut Vec<Action>) {
        let mut live: Vec<(Key, u32)> = self
            .runs
            .iter()
            .filter(|(_, run)| run.phase.is_live())
            .map(|(key, run)| (*key, run.orders.stop_grace_ms))
            .collect();
        live.sort_unstable();
        for (key, grace_ms) in live {
            self.stop_live(key, grace_ms, RunEndReason::AgentStopped, out);
        }
    }

    /// The longest time that one of them may take to end when it is told to.
    pub fn longest_grace_ms(&self) -> u32 {
        let live = self.runs.values().filter(|run| run.phase.is_live());
        live.map(|run| run.orders.stop_grace_ms).max().unwrap_or(0)
    }

    /// The number of restarts and of those in a row, for the next start.
    pub fn restarts(&self, key: Key) -> (u32, u32) {
        self.runs.get(&key).map_or((0, 0), |run| (run.restarts, run.in_row))
    }

    /// Running units that live here.
    pub fn n_live(&self) -> usize {
        self.n_live
    }

    /// A newer incarnation is current: the one here leaves, before the newer one starts, and nobody wants to hear of it.
    fn supersede(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(run) = self.runs.remove(&key) else { return };
        if !run.phase.is_live() {
            out.push(Action::Forget(run.status(key)));
        } else if run.waiting {
            self.count(&run.orders, -1);
        } else {
            let incarnation = run.incarnation;
            self.leaving.remove(&(key, incarnation));
            out.push(Action::Stop { key, incarnation, grace_ms: 0, reason: RunEndReason::Told });
            self.left_over.insert((key, incarnation), run);
        }
    }

    /// Makes a live one leave; one that waits to be started again is gone at once.
    fn stop_live(&mut self, key: Key, grace_ms: u32, reason: RunEndReason, out: &mut Vec<Action>) {
        let Some(run) = self.runs.get_mut(&key).filter(|run| run.phase.is_live()) else { return };
        let incarnation = run.incarnation;
        if run.waiting {
            self.finish(key, Phase::Stopped, out);
        } else if !run.stopping {
            run.stopping = true;
            if run.is_adopted {
                self.leaving.insert((key, incarnation));
            }
            out.push(Action::Stop { key, incarnation, grace_ms, reason });
        }
    }

    fn finish(&mut self, key: Key, phase: Phase, out: &mut Vec<Action>) {
        let Some(run) = self.runs.get_mut(&key) else { return };
        run.phase = phase;
        run.waiting = false;
        let (weight, pool, status) = (run.orders.weight, run.orders.pool, run.status(key));
        self.count_of(weight, pool, -1);
        self.dirty.push_back(status);
        out.push(Action::Keep(status));
    }

    fn count(&mut self, orders: &Orders, sign: i64) {
        self.count_of(orders.weight, orders.pool, sign);
    }

    fn count_of(&mut self, weight: Weight, pool: Pool, sign: i64) {
        let live = match pool {
            Pool::Guaranteed => &mut self.live.0,
            Pool::BestEffort => &mut self.live.1,
        };
        live.cpu_milli += sign * weight.cpu_milli;
        live.memory += sign * weight.memory;
        live.network += sign * weight.network;
        self.n_live = if sign > 0 { self.n_live + 1 } else { self.n_live.saturating_sub(1) };
    }

    fn remember(&mut self, status: Status) {
        self.remembered.retain(|known| known.key != status.key);
        if self.remembered.len() == N_REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        // All of it at once: what a node remembers is bounded, and so it is from its first end on.
        self.remembered.reserve_exact(N_REMEMBERED_MAX - self.remembered.len());
        self.remembered.push_back(status);
    }

    fn remembered(&self, key: Key) -> Option<Status> {
        self.remembered.iter().find(|known| known.key == key).copied()
    }
}

#[cfg(test)]
mod tests;
