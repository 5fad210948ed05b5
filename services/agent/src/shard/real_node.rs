//! What a real node has beside its running units; a simulated one has nothing of it.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    sync::{Arc, Mutex},
};

use super::{condition::Watched, processes::ProcessLooks};
use crate::{Config, claim::DirClaim, logs::LogSenders, runtime::process::Home};

/// See the module.
pub(super) struct RealNode {
    pub(super) config: Arc<Config>,
    /// How a keeper is started; see [`crate::Deps::keeper`].
    pub(super) keeper: Vec<OsString>,
    /// The state directory is this agent's alone.
    pub(super) claim: Option<Arc<DirClaim>>,
    /// The runs of the node.
    pub(super) home: Option<Arc<Home>>,
    /// Logs that are being sent.
    pub(super) senders: LogSenders,
    /// What state asks of the processes of the node.
    pub(super) looks: ProcessLooks,
    /// Units of which the node keeps logs and has nothing else; state is asked which of them are gone.
    pub(super) log_units: Arc<Mutex<BTreeSet<u64>>>,
    /// What the node can do, as it was found last.
    pub(super) condition: Watched,
}

impl RealNode {
    pub(super) fn new(config: Arc<Config>, keeper: Vec<OsString>, claim: Option<Arc<DirClaim>>) -> Self {
        Self {
            config,
            keeper,
            claim,
            home: None,
            senders: LogSenders::default(),
            looks: ProcessLooks::default(),
            log_units: Arc::default(),
            condition: Watched::default(),
        }
    }

    /// State has heard of the node so long ago. Keepers stop what has to stop when this agent cannot.
    pub(super) fn renew_contact(&self, age_ms: Option<u64>) {
        if let (Some(home), Some(age_ms)) = (&self.home, age_ms) {
            home.renew_contact(age_ms);
        }
    }

    /// What is kept of the node is of this store from now on.
    pub(super) fn set_store(&self, store: u64) {
        if let Some(home) = &self.home {
            home.set_store(store);
        }
    }
}
