//! The life of the running units of one node.
//!
//! Inputs are what state asks for and what happens here; outputs are [`AgentAction`]s for whoever really runs things
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
//! it is Starting once more, with one restart more, and waits for its [`RestartBackoff`].
//!
//! When the store behind state is another one, by a restore or a truncation, what it does not know here is left over:
//! it is stopped and never spoken of again, and nothing starts on the node before the last of it has ended. The same holds for
//! an older incarnation of what is to be started, and for what an earlier agent has left running and state tells to leave.

use godel_base::time::Millis;
use godel_domain::{
    allocation::Allocation,
    demand::Pool,
    run_end::{RunEnd, RunEndReason},
    running_units::Phase,
};
use godel_membership::agent_admission::{self, AssignmentRefusal, Has};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    AgentAction, AgentOutbox, HowEnded, LeftRunning, LiveWeights, LocalRun, PoolWeights, RestartBackoff,
    RunKey, RunOrders, RunStatus, StatusReports, ended_runs::EndedRuns, weights,
};

mod commands;
mod stops;

pub use self::commands::NotAwaiting;
pub(crate) use self::stops::StopNotice;

/// Running units for which a node keeps room when they are gone: more room was a burst's.
const N_ROOM_KEPT: usize = 16;

/// All running units of one node.
#[derive(Debug)]
pub struct NodeLife<P> {
    /// Live ones, and ended ones not yet acknowledged.
    runs: FxHashMap<RunKey, LocalRun<P>>,
    remembered: EndedRuns,
    reports: StatusReports,
    live: LiveWeights,
    backoff: RestartBackoff,
    /// Of another store, or of an incarnation that is over, told to stop, not ended yet.
    left_over: FxHashMap<(RunKey, u32), LocalRun<P>>,
    /// Left running by an earlier agent, told to stop, not ended yet.
    leaving: FxHashSet<(RunKey, u32)>,
    /// Not started before all of these have ended.
    held: Vec<(RunKey, u32)>,
}

impl<P> NodeLife<P> {
    /// A node on which nothing runs.
    pub fn new(backoff: RestartBackoff) -> Self {
        Self {
            runs: FxHashMap::default(),
            remembered: EndedRuns::default(),
            reports: StatusReports::default(),
            live: LiveWeights::default(),
            backoff,
            left_over: FxHashMap::default(),
            leaving: FxHashSet::default(),
            held: Vec::new(),
        }
    }

    /// Takes up what a journal kept: ended before, never acknowledged.
    pub fn restore(&mut self, status: RunStatus) {
        let RunStatus { key, incarnation, phase, exit_code, restarts, refused: _, end } = status;
        let orders = RunOrders { restarts, ..RunOrders::default() };
        self.runs.insert(key, LocalRun { exit_code, end, ..LocalRun::new(incarnation, phase, orders) });
        self.reports.say(status);
    }

    /// Takes up what an earlier agent has left running. False: a journal has kept its end, or a later incarnation is here.
    pub fn adopt(
        &mut self,
        key: RunKey,
        incarnation: u32,
        orders: RunOrders<P>,
        left: LeftRunning,
        now: Millis,
    ) -> bool {
        let LeftRunning { restarts, in_row, started_ms } = left;
        if self.runs.get(&key).is_some_and(|run| run.incarnation >= incarnation) {
            return false;
        }
        self.live.add(orders.weight, orders.pool);
        let run = LocalRun::new(incarnation, left.phase(), orders);
        let end = RunEnd { started_ms, ..RunEnd::default() };
        self.runs
            .insert(key, LocalRun { restarts, in_row, end, running_since: now, is_adopted: true, ..run });
        true
    }

    /// State wants it to run here, bound since it was told what the node has: checked before, and refused if `told` to.
    ///
    /// # Errors
    /// It is not started, and why. That is reported.
    pub fn offer(
        &mut self,
        key: RunKey,
        incarnation: u32,
        orders: RunOrders<P>,
        has: &Has,
        told: bool,
        out: &mut AgentOutbox,
    ) -> Result<(), AssignmentRefusal> {
        let of_run = self.runs.get(&key).map(|run| run.incarnation);
        let known = of_run.max(self.remembered.of(key).map(|ended| ended.incarnation));
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
    fn recheck(&self, key: RunKey, orders: &RunOrders<P>, has: &Has) -> Result<(), AssignmentRefusal> {
        let takes = orders.takes();
        let sum = self.live.weights().guaranteed.plus(orders.weight);
        if orders.allocation == Allocation::default()
            && sum.cpu_milli <= has.cpu_milli
            && sum.memory <= has.memory
        {
            return Ok(());
        }
        // What is told to leave gives its room; what has another incarnation does.
        let staying = self.runs.iter().filter(|(known, run)| run.stays() && **known != key);
        agent_admission::check(has, staying.map(|(_, run)| run.orders.takes()), &takes)
    }

    /// State wants it to run here.
    pub fn assign(&mut self, key: RunKey, incarnation: u32, orders: RunOrders<P>, out: &mut AgentOutbox) {
        if let Some(run) = self.runs.get_mut(&key) {
            if run.incarnation >= incarnation {
                run.is_adopted &= run.incarnation > incarnation;
                return;
            }
            self.supersede(key, out);
        } else if let Some(ended) = self.remembered.of(key).filter(|ended| ended.incarnation >= incarnation) {
            // State seems not to know the end: say it again.
            self.reports.say(ended);
            return;
        }
        self.live.add(orders.weight, orders.pool);
        let mut run = LocalRun::new(incarnation, Phase::Starting, orders);
        if self.holds() {
            run.waiting = true;
            self.held.push((key, incarnation));
        } else {
            out.push(AgentAction::Start(key, incarnation));
        }
        self.runs.insert(key, run);
    }

    /// Something of another store still runs here.
    pub fn has_left_over(&self) -> bool {
        !self.left_over.is_empty()
    }

    /// One that lives here.
    #[inline]
    pub fn live_run(&self, key: RunKey, incarnation: u32) -> Option<&LocalRun<P>> {
        self.runs.get(&key).filter(|run| run.incarnation == incarnation && run.phase.is_live())
    }

    /// What live ones ask for, and how many they are.
    #[inline]
    pub fn live(&self) -> &LiveWeights {
        &self.live
    }

    /// Returns what running units that live here ask of some zones: each of those that it was given the same, or of all of them.
    pub fn zone_weights(&self, zones: &[usize]) -> Vec<PoolWeights> {
        let live = self.runs.values().filter(|run| run.phase.is_live());
        weights::of_zones(zones, live.map(|run| &run.orders))
    }

    /// Best-effort running units that are not told to leave, and the bytes of memory that each asks for.
    pub fn best_effort(&self) -> impl Iterator<Item = (RunKey, u32, i64)> {
        let stay = self.runs.iter().filter(|(_, run)| run.stays() && run.orders.pool == Pool::BestEffort);
        stay.map(|(key, run)| (*key, run.incarnation, run.orders.weight.memory))
    }

    /// What is to be said to state.
    #[inline]
    pub fn reports(&self) -> &StatusReports {
        &self.reports
    }

    /// The same, to take reports from it.
    #[inline]
    pub(crate) fn reports_mut(&mut self) -> &mut StatusReports {
        &mut self.reports
    }

    /// What is here: everything that runs, and every end not yet acknowledged.
    pub fn statuses(&self) -> impl Iterator<Item = RunStatus> {
        self.runs.iter().map(|(key, run)| run.status(*key))
    }

    /// A session begins: everything that runs here, and every end not yet acknowledged. What was on its way
    /// is to be reported again, in new sequences.
    pub fn open(&mut self) -> Vec<RunStatus> {
        self.reports.begin();
        let mut all: Vec<RunStatus> = self.statuses().collect();
        all.sort_unstable_by_key(|status| status.key);
        all
    }

    /// Every report up to `sequence` is durable.
    pub fn acknowledged(&mut self, sequence: u64, out: &mut AgentOutbox) {
        while let Some(statuses) = self.reports.pop_durable(sequence) {
            for status in statuses.into_iter().filter(|status| status.phase.is_ended()) {
                let same =
                    self.runs.get(&status.key).is_some_and(|run| run.incarnation == status.incarnation);
                if same {
                    self.runs.remove(&status.key);
                    self.remembered.remember(status);
                    out.push(AgentAction::Forget(status));
                }
            }
        }
        let (room, len) = (self.runs.capacity(), self.runs.len());
        if room > N_ROOM_KEPT && len < room / 4 {
            self.runs.shrink_to(2 * len);
        }
    }

    /// What is here now is another store's, with everything that is left over taken out of it: what was to be said
    /// about that is not said, and what was remembered of ends was true in the other store only.
    pub fn change_store(&mut self) {
        self.remembered.forget_all();
        let runs = &self.runs;
        self.reports
            .retain(|status| runs.get(&status.key).is_some_and(|run| run.incarnation == status.incarnation));
    }

    /// It runs, since `started_ms` by the clock of the machine; 0: it is simulated.
    pub fn started(&mut self, key: RunKey, incarnation: u32, started_ms: i64, now: Millis) {
        let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
        if let Some(run) = run.filter(|run| run.phase == Phase::Starting && !run.waiting) {
            run.phase = Phase::Running;
            run.running_since = now;
            run.end = RunEnd { started_ms, ..RunEnd::default() };
            self.reports.say(run.status(key));
        }
    }

    /// It is over, or has to be started again. `since`: it is the run that began then which has ended; of what had its name in another
    /// store it is none.
    pub fn ended(
        &mut self,
        key: RunKey,
        incarnation: u32,
        ended: HowEnded,
        since: Option<Millis>,
        now: Millis,
        out: &mut AgentOutbox,
    ) {
        let began = self.live_run(key, incarnation).and_then(LocalRun::running_since);
        if since.is_some() && began != since {
            return;
        }
        let HowEnded { exit_code, end, refused } = ended;
        let was_left_over = self.left_over.remove(&(key, incarnation));
        if let Some(run) = &was_left_over {
            self.live.take(run.orders.weight, run.orders.pool);
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
            self.reports.say(run.status(key));
            out.push(AgentAction::Wait { key, incarnation, restarts: run.restarts, after_ms });
            return;
        }
        let phase = match (run.stopping, exit_code) {
            (true, _) => Phase::Stopped,
            (false, 0) => Phase::Succeeded,
            (false, _) => Phase::Failed,
        };
        self.finish(key, phase, None, out);
    }

    /// It has waited long enough for its start number `restarts`.
    pub fn restart(&mut self, key: RunKey, incarnation: u32, restarts: u32, out: &mut AgentOutbox) {
        if self.held.contains(&(key, incarnation)) {
            return;
        }
        let Some(run) = self.runs.get_mut(&key) else { return };
        if run.incarnation == incarnation && run.restarts == restarts && run.waiting {
            run.waiting = false;
            out.push(AgentAction::Start(key, incarnation));
        }
    }

    fn never_started(
        &mut self,
        key: RunKey,
        incarnation: u32,
        refused: Option<AssignmentRefusal>,
        out: &mut AgentOutbox,
    ) {
        let end = RunEnd::default();
        let status =
            RunStatus { key, incarnation, phase: Phase::Stopped, exit_code: 0, restarts: 0, refused, end };
        out.push(AgentAction::Keep(status));
        self.restore(status);
    }

    /// This start of it came to nothing for the sake of the node. That is no end of its own, whatever its policy says: it returns
    /// elsewhere as its next incarnation, and no attempt is used up.
    fn give_back(&mut self, key: RunKey, why: AssignmentRefusal, out: &mut AgentOutbox) {
        let Some(run) = self.runs.get_mut(&key) else { return };
        (run.exit_code, run.end) = (0, RunEnd::default());
        self.finish(key, Phase::Stopped, Some(why), out);
    }

    fn finish(
        &mut self,
        key: RunKey,
        phase: Phase,
        refused: Option<AssignmentRefusal>,
        out: &mut AgentOutbox,
    ) {
        let Some(run) = self.runs.get_mut(&key) else { return };
        (run.phase, run.waiting) = (phase, false);
        let status = RunStatus { refused, ..run.status(key) };
        self.live.take(run.orders.weight, run.orders.pool);
        self.reports.say(status);
        out.push(AgentAction::Keep(status));
    }

    /// Whether something that has to end first still runs.
    fn holds(&self) -> bool {
        !self.left_over.is_empty() || !self.leaving.is_empty()
    }

    /// Starts what is held, if nothing holds it any more.
    fn release(&mut self, out: &mut AgentOutbox) {
        if self.holds() {
            return;
        }
        for (key, incarnation) in std::mem::take(&mut self.held) {
            let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
            if let Some(run) = run.filter(|run| run.phase == Phase::Starting && run.waiting) {
                run.waiting = false;
                out.push(AgentAction::Start(key, incarnation));
            }
        }
    }

    /// A newer incarnation is current: the one here leaves, before the newer one starts, and nobody wants to hear of it.
    fn supersede(&mut self, key: RunKey, out: &mut AgentOutbox) {
        let Some(run) = self.runs.remove(&key) else { return };
        if !run.phase.is_live() {
            out.push(AgentAction::Forget(run.status(key)));
        } else if run.waiting {
            self.live.take(run.orders.weight, run.orders.pool);
        } else {
            self.leaving.remove(&(key, run.incarnation));
            out.push(run.stop(key, 0, RunEndReason::Told));
            self.left_over.insert((key, run.incarnation), run);
        }
    }
}

#[cfg(test)]
mod tests;
