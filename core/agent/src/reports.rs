//! What a node says to state: reports in order, each kept until state has it on its disk.

use std::collections::VecDeque;

use crate::RunStatus;

/// Statuses in one report, where state does not say how many.
pub(crate) const N_STATUSES_MAX: usize = 4096;
/// Reports on their way; more wait.
pub(crate) const N_REPORTS_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct StatusReports {
    /// To be reported, in order.
    pub(crate) waiting: VecDeque<RunStatus>,
    /// Reported, not acknowledged.
    pub(crate) in_flight: VecDeque<StatusReport>,
    last_sequence: u64,
}

/// Statuses that are said together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusReport {
    /// Counts from 1 in each session.
    pub sequence: u64,
    /// What is said.
    pub statuses: Vec<RunStatus>,
}

impl StatusReports {
    pub(crate) fn say(&mut self, status: RunStatus) {
        self.waiting.push_back(status);
    }

    /// A session begins. What was on its way is to be reported again, in new sequences.
    pub(crate) fn begin(&mut self) {
        while let Some(lost) = self.in_flight.pop_back() {
            self.take_back(lost);
        }
        self.last_sequence = 0;
    }

    fn take_back(&mut self, report: StatusReport) {
        for status in report.statuses.into_iter().rev() {
            self.waiting.push_front(status);
        }
    }

    /// The next report with at most `n_max` statuses, if there is something to say and not too much is on its way.
    pub fn next(&mut self, n_max: usize) -> Option<StatusReport> {
        if self.waiting.is_empty() || self.in_flight.len() >= N_REPORTS_MAX {
            return None;
        }
        // What a burst has made large is handed on with it: thousands of nodes may live in one process.
        let rest = self.waiting.split_off(self.waiting.len().min(n_max.max(1)));
        let statuses = Vec::from(std::mem::replace(&mut self.waiting, rest));
        self.last_sequence += 1;
        let report = StatusReport { sequence: self.last_sequence, statuses };
        self.in_flight.push_back(report.clone());
        Some(report)
    }

    /// The first report that is durable now that every one up to `sequence` is.
    pub(crate) fn pop_durable(&mut self, sequence: u64) -> Option<Vec<RunStatus>> {
        let is_durable = self.in_flight.front().is_some_and(|first| first.sequence <= sequence);
        if is_durable { self.in_flight.pop_front().map(|report| report.statuses) } else { None }
    }

    /// Something waits to be reported.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Of the rest nothing is said any more.
    pub(crate) fn retain(&mut self, is_here: impl Fn(&RunStatus) -> bool) {
        self.waiting.retain(&is_here);
        self.in_flight.iter_mut().for_each(|report| report.statuses.retain(&is_here));
    }
}
