//! Running units that have ended and that state knows to have: the newest ones of a node are remembered, so that a late copy of an assignment
//! does not start one again.

use std::collections::VecDeque;

use crate::{RunKey, RunStatus};

/// The newest of one node; a copy later than so many others cannot come on an ordered stream.
pub(crate) const N_REMEMBERED_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct EndedRuns(VecDeque<RunStatus>);

impl EndedRuns {
    pub(crate) fn remember(&mut self, status: RunStatus) {
        let Self(known) = self;
        known.retain(|known| known.key != status.key);
        if known.len() == N_REMEMBERED_MAX {
            known.pop_front();
        }
        // All of it at once: what a node remembers is bounded, and so it is from its first end on.
        known.reserve_exact(N_REMEMBERED_MAX - known.len());
        known.push_back(status);
    }

    pub(crate) fn of(&self, key: RunKey) -> Option<RunStatus> {
        self.0.iter().find(|known| known.key == key).copied()
    }

    pub(crate) fn forget_all(&mut self) {
        self.0.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
