//! The sessions of a node with state, one after the other, and the store that they are of.

use godel_base::ids::StoreId;

use crate::{AgentAction, AgentOutbox, reports::N_STATUSES_MAX};

/// Jitter of heartbeats, taken off the interval, where state does not say how much.
const JITTER_PERCENT: u64 = 10;
/// More is never taken off: state has to hear of the node in time, and not much more often.
const JITTER_PERCENT_MAX: u64 = 50;

/// What state says of a session that it welcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionTerms {
    /// Between two heartbeats.
    pub heartbeat_ms: u64,
    /// State gives the node up once it has not heard of it for so long.
    pub lease_ms: u64,
    /// So much is taken off the time between two heartbeats at most; `None`: as the agent likes.
    pub jitter_percent: Option<u64>,
    /// Statuses in one report at most; `None`: as the agent likes.
    pub n_statuses_max: Option<usize>,
    /// The store behind state; 0: not known.
    pub store: u64,
}

/// What becomes of a node as its session is of another store than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreChange {
    /// The store before.
    pub before: u64,
    /// The store now.
    pub store: u64,
}

/// See the module.
#[derive(Debug)]
pub struct AgentSession {
    generation: u64,
    /// From the first message of a session to its loss.
    is_open: bool,
    is_welcomed: bool,
    was_welcomed: bool,
    jitter_percent: u64,
    n_statuses_max: usize,
    store: u64,
    is_other_store: bool,
}

impl AgentSession {
    pub(crate) fn new(store: u64) -> Self {
        Self {
            generation: 0,
            is_open: false,
            is_welcomed: false,
            was_welcomed: false,
            jitter_percent: JITTER_PERCENT,
            n_statuses_max: N_STATUSES_MAX,
            store,
            is_other_store: false,
        }
    }

    /// Which one it is; timers and messages of an earlier one mean nothing.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether messages and timers of a session of this number mean anything.
    #[inline]
    pub fn is_open_as(&self, generation: u64) -> bool {
        self.is_open && self.generation == generation
    }

    /// State has welcomed some session, at some time.
    pub fn was_welcomed(&self) -> bool {
        self.was_welcomed
    }

    /// The store that the last welcomed session was of; 0: none, or not known.
    #[inline]
    pub fn store(&self) -> u64 {
        self.store
    }

    /// Whether what is here means anything to the store behind state: while the present session is of another one, and not welcomed yet,
    /// nothing is said.
    #[inline]
    pub fn may_report(&self) -> bool {
        self.is_open && !self.is_other_store
    }

    /// Statuses in one report at most.
    #[inline]
    pub(crate) fn n_statuses_max(&self) -> usize {
        self.n_statuses_max
    }

    /// So many milliseconds are taken off `heartbeat_ms` at most.
    #[inline]
    pub(crate) fn early_ms_max(&self, heartbeat_ms: u64) -> u64 {
        heartbeat_ms * self.jitter_percent / 100
    }

    /// The node is registered in a store. Returns whether it begins anew there.
    pub(crate) fn open(&mut self, store: u64) -> bool {
        self.generation += 1;
        self.is_open = true;
        self.is_other_store = !StoreId(self.store).may_be(StoreId(store));
        !self.was_welcomed || store != self.store
    }

    /// Returns whether the session was not welcomed before.
    pub(crate) fn welcome(&mut self, terms: &SessionTerms) -> bool {
        self.jitter_percent = terms.jitter_percent.unwrap_or(JITTER_PERCENT).min(JITTER_PERCENT_MAX);
        self.n_statuses_max = terms.n_statuses_max.unwrap_or(N_STATUSES_MAX);
        self.was_welcomed = true;
        !std::mem::replace(&mut self.is_welcomed, true)
    }

    /// The session that begins is of `store`. Returns the change, if it was of a known one before.
    pub(crate) fn settle_store(&mut self, store: u64, out: &mut AgentOutbox) -> Option<StoreChange> {
        self.is_other_store = false;
        if store == 0 || store == self.store {
            return None;
        }
        let before = std::mem::replace(&mut self.store, store);
        // Behind the entries of what is left over, which are forgotten: until then they are of the store before.
        out.push(AgentAction::KeepStore(store));
        (before != 0).then_some(StoreChange { before, store })
    }

    /// It is over. Returns whether it was welcomed.
    pub(crate) fn lose(&mut self) -> bool {
        self.generation += 1;
        self.is_open = false;
        std::mem::take(&mut self.is_welcomed)
    }
}
