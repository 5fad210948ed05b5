//! The life of the running units of one node: a pure state machine.
//!
//! Inputs are what state asks for and what happens here; outputs are [`Action`]s for whoever really runs things
//! and reports for state. A report stays until it is acknowledged as durable, so a lost session loses nothing;
//! an assignment, stop or acknowledgement that comes twice or late changes nothing.
//!
//! ```text
//! assign ─▶ Starting ─started─▶ Running ─ended─▶ Succeeded | Failed | Stopped ─acknowledged─▶ remembered
//! ```

use std::collections::VecDeque;

use godel_core::rows::Phase;
use rustc_hash::FxHashMap;

/// Ended and acknowledged running units that are remembered, so that a late copy of an assignment does not
/// start one again. The newest of one node; a copy later than so many others cannot come on an ordered stream.
const N_REMEMBERED_MAX: usize = 64;
/// Statuses in one report.
const N_STATUSES_MAX: usize = 4096;
/// Reports on their way; more wait.
const N_REPORTS_MAX: usize = 64;

/// A running unit, whatever its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The unit.
    pub unit: u64,
    /// Which replica.
    pub ordinal: u32,
}

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
}

/// What is to be done for real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start it; answer with [`NodeLife::started`] and, in the end, [`NodeLife::ended`].
    Start(Key, u32),
    /// Stop it politely, by force after the grace; answer with [`NodeLife::ended`].
    Stop {
        /// Which running unit.
        key: Key,
        /// Which life of it.
        incarnation: u32,
        /// Between the polite and the forced end.
        grace_ms: u32,
    },
    /// Write it down: it must not be reported before it is safe.
    Keep(Status),
    /// State has it on its disk: it need not be kept any longer.
    Forget(Status),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    incarnation: u32,
    phase: Phase,
    exit_code: i32,
    stopping: bool,
    weight: Weight,
}

/// What a running unit asks of the node: milli-cores and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Milli-cores.
    pub cpu_milli: i64,
    /// Bytes.
    pub memory: i64,
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
    live: Weight,
    n_live: usize,
}

impl NodeLife {
    /// Takes up what a journal kept: ended before, never acknowledged.
    pub fn restore(&mut self, status: Status) {
        let Status { key, incarnation, phase, exit_code } = status;
        let run = Run { incarnation, phase, exit_code, stopping: false, weight: Weight::default() };
        self.runs.insert(key, run);
        self.dirty.push_back(status);
    }

    /// State wants it to run here.
    pub fn assign(&mut self, key: Key, incarnation: u32, weight: Weight, out: &mut Vec<Action>) {
        if let Some(run) = self.runs.get(&key) {
            if run.incarnation >= incarnation {
                return;
            }
            self.supersede(key, out);
        } else if let Some(ended) = self.remembered(key).filter(|ended| ended.incarnation >= incarnation) {
            // State seems not to know the end: say it again.
            self.dirty.push_back(ended);
            return;
        }
        let run = Run { incarnation, phase: Phase::Starting, exit_code: 0, stopping: false, weight };
        self.runs.insert(key, run);
        self.count(weight, 1);
        out.push(Action::Start(key, incarnation));
    }

    /// State wants it to leave.
    pub fn stop(&mut self, key: Key, incarnation: u32, grace_ms: u32, out: &mut Vec<Action>) {
        match self.runs.get_mut(&key) {
            Some(run) if run.incarnation > incarnation => return,
            Some(run) if run.incarnation == incarnation => {
                if run.phase.is_live() && !run.stopping {
                    run.stopping = true;
                    out.push(Action::Stop { key, incarnation, grace_ms });
                }
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
        let status = Status { key, incarnation, phase: Phase::Stopped, exit_code: 0 };
        out.push(Action::Keep(status));
        self.restore(status);
    }

    /// It runs.
    pub fn started(&mut self, key: Key, incarnation: u32) {
        let run = self.runs.get_mut(&key).filter(|run| run.incarnation == incarnation);
        if let Some(run) = run.filter(|run| run.phase == Phase::Starting) {
            run.phase = Phase::Running;
            self.dirty.push_back(Status { key, incarnation, phase: Phase::Running, exit_code: 0 });
        }
    }

    /// It is over.
    pub fn ended(&mut self, key: Key, incarnation: u32, exit_code: i32, out: &mut Vec<Action>) {
        let Some(run) = self.runs.get_mut(&key) else { return };
        if run.incarnation != incarnation || !run.phase.is_live() {
            return;
        }
        run.phase = match (run.stopping, exit_code) {
            (true, _) => Phase::Stopped,
            (false, 0) => Phase::Succeeded,
            (false, _) => Phase::Failed,
        };
        run.exit_code = exit_code;
        let (weight, status) = (run.weight, Status { key, incarnation, phase: run.phase, exit_code });
        self.count(weight, -1);
        self.dirty.push_back(status);
        out.push(Action::Keep(status));
    }

    /// Without contact for too long: state may give everything away.
    pub fn stop_all(&mut self, out: &mut Vec<Action>) {
        for (key, run) in &mut self.runs {
            if run.phase.is_live() && !run.stopping {
                run.stopping = true;
                out.push(Action::Stop { key: *key, incarnation: run.incarnation, grace_ms: 0 });
            }
        }
    }

    /// A session begins: everything that runs here, and every end not yet acknowledged. What was on its way
    /// is to be reported again, in new sequences.
    pub fn open(&mut self) -> Vec<Status> {
        let lost = std::mem::take(&mut self.in_flight);
        for (_, statuses) in lost.into_iter().rev() {
            for status in statuses.into_iter().rev() {
                self.dirty.push_front(status);
            }
        }
        self.last_sequence = 0;
        let mut all: Vec<Status> = self
            .runs
            .iter()
            .map(|(key, run)| Status {
                key: *key,
                incarnation: run.incarnation,
                phase: run.phase,
                exit_code: run.exit_code,
            })
            .collect();
        all.sort_unstable_by_key(|status| status.key);
        all
    }

    /// The next report, if there is something to say and not too much is on its way.
    pub fn next_report(&mut self) -> Option<(u64, Vec<Status>)> {
        if self.dirty.is_empty() || self.in_flight.len() >= N_REPORTS_MAX {
            return None;
        }
        let n = self.dirty.len().min(N_STATUSES_MAX);
        let statuses: Vec<Status> = self.dirty.drain(..n).collect();
        self.last_sequence += 1;
        self.in_flight.push_back((self.last_sequence, statuses.clone()));
        Some((self.last_sequence, statuses))
    }

    /// The last report could not be sent after all.
    pub fn unsent(&mut self) {
        if let Some((sequence, statuses)) = self.in_flight.pop_back() {
            self.last_sequence = sequence - 1;
            for status in statuses.into_iter().rev() {
                self.dirty.push_front(status);
            }
        }
    }

    /// Every report up to `sequence` is durable.
    pub fn acknowledged(&mut self, sequence: u64, out: &mut Vec<Action>) {
        while self.in_flight.front().is_some_and(|(first, _)| *first <= sequence) {
            let Some((_, statuses)) = self.in_flight.pop_front() else { return };
            for status in statuses.into_iter().filter(|status| status.phase.is_ended()) {
                let same =
                    self.runs.get(&status.key).is_some_and(|run| run.incarnation == status.incarnation);
                if same {
                    self.runs.remove(&status.key);
                    self.remember(status);
                    out.push(Action::Forget(status));
                }
            }
        }
    }

    /// Something waits to be reported.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Running units that live here.
    pub fn n_live(&self) -> usize {
        self.n_live
    }

    /// What the live ones ask for.
    pub fn weight(&self) -> Weight {
        self.live
    }

    /// A newer incarnation is current: the one here leaves, and nobody wants to hear of it.
    fn supersede(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(run) = self.runs.remove(&key) else { return };
        if run.phase.is_live() {
            self.count(run.weight, -1);
            out.push(Action::Stop { key, incarnation: run.incarnation, grace_ms: 0 });
        } else {
            let status =
                Status { key, incarnation: run.incarnation, phase: run.phase, exit_code: run.exit_code };
            out.push(Action::Forget(status));
        }
    }

    fn count(&mut self, weight: Weight, sign: i64) {
        self.live.cpu_milli += sign * weight.cpu_milli;
        self.live.memory += sign * weight.memory;
        self.n_live = if sign > 0 { self.n_live + 1 } else { self.n_live.saturating_sub(1) };
    }

    fn remember(&mut self, status: Status) {
        self.remembered.retain(|known| known.key != status.key);
        if self.remembered.len() == N_REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(status);
    }

    fn remembered(&self, key: Key) -> Option<Status> {
        self.remembered.iter().find(|known| known.key == key).copied()
    }
}

#[cfg(test)]
mod tests;
