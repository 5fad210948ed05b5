//! What faces are shown of the adapter, from memory.

use std::collections::BTreeMap;

use godel_core_yarn::{
    application::PublicAppState,
    ids::{YarnApplicationId, YarnAttemptId},
};

use crate::{
    answers::ManagerRefusal,
    reports::{
        AppFilter, AppReport, AttemptReport, ClusterReport, ContainerReport, QueueReport, YarnNodeReport,
    },
    show,
    state::LeaderState,
};

/// What is shown of the adapter, and who may do what.
#[derive(Clone, Copy, Debug)]
pub struct YarnShown<'a> {
    pub(crate) state: &'a LeaderState,
    pub(crate) now_ms: i64,
}

/// What is shown. A standby shows the cluster alone.
impl YarnShown<'_> {
    /// An application.
    ///
    /// # Errors
    /// There is none, or this adapter stands by; so with all that follow.
    pub fn application(&self, id: YarnApplicationId) -> Result<AppReport, ManagerRefusal> {
        let (application, entry) = self.state.application(id)?;
        Ok(show::application(self.state, application, entry, self.now_ms))
    }

    /// Applications that a filter lets through, the newest first.
    ///
    /// # Errors
    /// As before.
    pub fn applications(&self, filter: &AppFilter) -> Result<Vec<AppReport>, ManagerRefusal> {
        self.state.term()?;
        Ok(show::applications(self.state, filter, self.now_ms))
    }

    /// Applications by kind and public state.
    ///
    /// # Errors
    /// As before.
    pub fn statistics(&self) -> Result<BTreeMap<(String, PublicAppState), u64>, ManagerRefusal> {
        self.state.term()?;
        let mut counts = BTreeMap::new();
        for application in self.state.adapter.iter() {
            let key = (application.submission().kind.clone(), application.public_state());
            *counts.entry(key).or_default() += 1;
        }
        Ok(counts)
    }

    /// Attempts of an application, the first one first.
    ///
    /// # Errors
    /// As before.
    pub fn attempts(&self, id: YarnApplicationId) -> Result<Vec<AttemptReport>, ManagerRefusal> {
        let (application, entry) = self.state.application(id)?;
        Ok(show::attempts(application, entry))
    }

    /// Containers that an attempt has.
    ///
    /// # Errors
    /// As before.
    pub fn containers(&self, id: YarnAttemptId) -> Result<Vec<ContainerReport>, ManagerRefusal> {
        let known = self.state.application(id.application);
        let (application, _) = known.map_err(|refusal| match refusal {
            ManagerRefusal::NoApplication(_) => ManagerRefusal::NoAttempt(id),
            other => other,
        })?;
        if !application.attempts().iter().any(|attempt| attempt.id == id) {
            return Err(ManagerRefusal::NoAttempt(id));
        }
        Ok(show::containers(self.state, application, id))
    }

    /// Every node that runs containers of YARN.
    ///
    /// # Errors
    /// As before.
    pub fn nodes(&self) -> Result<Vec<YarnNodeReport>, ManagerRefusal> {
        self.state.term()?;
        Ok(show::nodes(self.state, self.now_ms, 0))
    }

    /// The names in godel of nodes that a client names by their hosts, with or without their ports, or by these names.
    ///
    /// # Errors
    /// As before; there is no such node, or several have that host.
    pub fn node_names(&self, asked: &[String]) -> Result<Vec<String>, ManagerRefusal> {
        self.state.term()?;
        asked.iter().map(|node| show::node_name(self.state, node)).collect()
    }

    /// Queues in YARN's shape, those above before those below.
    ///
    /// # Errors
    /// As before.
    pub fn queues(&self) -> Result<Vec<QueueReport>, ManagerRefusal> {
        self.state.term()?;
        Ok(show::queues(self.state))
    }

    /// Applications by public state, and containers that have a place.
    pub fn counts(&self) -> (BTreeMap<PublicAppState, u64>, u64) {
        (show::states(self.state), self.state.picture.sums.n_containers)
    }

    /// The cluster; a standby shows itself too.
    pub fn cluster(&self) -> ClusterReport {
        show::cluster(self.state)
    }
}
