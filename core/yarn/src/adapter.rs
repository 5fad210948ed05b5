//! The adapter's applications: what clients, masters, the store and the cluster say, and what is to be done about it.
//!
//! [`YarnAdapter`] owns every application with its attempts, containers and asks. Its functions take what happened and the time, and
//! add [`YarnAction`]s to an outbox: the service writes records, calls the dispatcher and starts masters. An application is a
//! scheduling unit; its master is ordinal 0, and attempt `n` is the incarnation `n - 1` of it. Every other ordinal is a container, numbered
//! by its ordinal: ids follow from the unit and from where each attempt began, and need no records of their own. Opportunistic containers are
//! running units of a second unit, whose ordinals are counted from [`OPPORTUNISTIC`] on.
//!
//! What survives a restart is [`AppRecord`]. Rows of asks do not: a master that has to register again sends all of them again.

mod attempts;
mod containers;
mod held;
mod life;
mod master;
mod record;
mod request_ids;

use std::{collections::BTreeMap, sync::Arc};

use godel_base::time::Millis;

use crate::{
    application::{AppEvent, AppState, FinalStatus},
    asks::{AskGroup, AskGrowth, AskKey, BadAsk},
    attempt::{AttemptState, UnstartedFate},
    container::YarnContainerState,
    exit_status::YarnExitStatus,
    ids::{YarnApplicationId, YarnAttemptId, YarnContainerId},
};

use self::request_ids::RequestIds;
pub use self::{
    attempts::YarnAttempts,
    held::AppContainers,
    master::AllocateCall,
    record::{AppRecord, AttemptRecord},
};

/// Ordinal of the master.
pub const MASTER: u32 = 0;
/// Ordinals from here on are those of the unit of opportunistic containers, whose ordinal 0 is never placed. Units have less than 2^30 ordinals.
pub const OPPORTUNISTIC: u32 = 1 << 31;
/// The allocation request id of asks whose master gives them none, as YARN has it.
pub const NO_REQUEST_ID: i64 = -1;

/// Both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterTime {
    /// For what expires.
    pub now: Millis,
    /// For people, Unix milliseconds.
    pub wall_ms: i64,
}

/// How the adapter works; the defaults are YARN's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterTerms {
    /// Attempts of one application (`yarn.resourcemanager.am.max-attempts`).
    pub max_attempts: u32,
    /// A master that is not heard of for so long has failed.
    pub master_expiry_ms: u64,
    /// A container that nobody starts for so long is given back.
    pub container_expiry_ms: u64,
}

impl Default for AdapterTerms {
    fn default() -> Self {
        Self { max_attempts: 2, master_expiry_ms: 600_000, container_expiry_ms: 600_000 }
    }
}

/// What was submitted, as far as it decides anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSubmission {
    /// For people.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// Queue in godel.
    pub queue: String,
    /// `SPARK`, `MAPREDUCE` and so on.
    pub kind: String,
    /// Higher wins.
    pub priority: i32,
    /// What its master needs; `None`: it runs elsewhere.
    pub master: Option<AskGroup>,
    /// Label expression of asks that have none; empty: nodes without a partition.
    pub label: String,
    /// What it wants of the attempts; not in the range of the cluster: as many as there may be.
    pub max_attempts: i32,
    /// Older failures do not count, milliseconds; 0 and less: all count.
    pub validity_interval_ms: i64,
    /// Its containers go on when its master fails.
    pub keeps_containers: bool,
    /// It is ended when it is so old, milliseconds.
    pub lifetime_ms: Option<i64>,
}

/// What is to be done. Each names its application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum YarnAction {
    /// Write its record, and say so with this version.
    PutRecord(YarnApplicationId, u64),
    /// Submit its unit, with the master as ordinal 0.
    SubmitUnit(YarnApplicationId),
    /// Add replicas to its unit.
    Grow(YarnApplicationId, Vec<AskGrowth>),
    /// Release ordinals of its unit.
    Release(YarnApplicationId, Vec<u32>),
    /// Ask for the next incarnation of ordinal 0.
    NextMaster(YarnApplicationId),
    /// Start its master on the node on which it has a place.
    LaunchMaster(YarnAttemptId, String),
    /// Stop its master.
    StopMaster(YarnAttemptId),
    /// Change the queue of its unit.
    MoveUnit(YarnApplicationId, String),
    /// Cancel its unit: it is over.
    CancelUnit(YarnApplicationId),
}

/// Why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientRefusal {
    /// No such application (ApplicationNotFoundException).
    #[error("there is no application {0}; `godel yarn app list` shows what there is")]
    NoApplication(YarnApplicationId),
    /// Another application has the id (YarnException).
    #[error("application {0} was submitted already, with another specification: ask for a new id")]
    Taken(YarnApplicationId),
}

/// Why a master is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MasterRefusal {
    /// Another attempt has followed, or there never was one (ApplicationAttemptNotFoundException).
    #[error("attempt {0} is not the current one of its application: its master should end")]
    NoAttempt(YarnAttemptId),
    /// Its attempt is about to be recorded, or its start to be known (RetriableException).
    #[error("attempt {0} is not recorded or its master not started yet: register again in a moment")]
    NotYet(YarnAttemptId),
    /// Its master has no place yet: there is nothing that could fail (YarnException).
    #[error("the master of attempt {0} has no place yet: wait until it has one, or kill the application")]
    NoPlace(YarnAttemptId),
    /// It has not registered, or the adapter has started again (ApplicationMasterNotRegisteredException).
    #[error(
        "the master of attempt {0} is not registered: it has to register and to send all it asks for again"
    )]
    NotRegistered(YarnAttemptId),
    /// It has registered already (InvalidApplicationMasterRequestException).
    #[error("the master of attempt {0} is registered already")]
    AlreadyRegistered(YarnAttemptId),
    /// It has not seen the last response (InvalidApplicationMasterRequestException).
    #[error("the master of attempt {attempt} has seen response {seen}, and the last one was {expected}")]
    WrongResponse {
        /// Whose.
        attempt: YarnAttemptId,
        /// As it says.
        seen: i32,
        /// The last one.
        expected: i32,
    },
    /// What it asks for is not valid, see [`BadAsk::exception`].
    #[error(transparent)]
    BadAsk(#[from] BadAsk),
}

impl MasterRefusal {
    /// The class of the exception by which clients of YARN tell refusals apart.
    pub fn exception(&self) -> &'static str {
        match self {
            Self::NoAttempt(_) => "org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException",
            Self::NotYet(_) => "org.apache.hadoop.ipc.RetriableException",
            Self::NoPlace(_) => "org.apache.hadoop.yarn.exceptions.YarnException",
            Self::NotRegistered(_) => {
                "org.apache.hadoop.yarn.exceptions.ApplicationMasterNotRegisteredException"
            }
            Self::AlreadyRegistered(_) | Self::WrongResponse { .. } => {
                "org.apache.hadoop.yarn.exceptions.InvalidApplicationMasterRequestException"
            }
            Self::BadAsk(bad) => bad.exception(),
        }
    }
}

/// A master was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchFailure<'a> {
    /// A sentence for people.
    pub why: &'a str,
    /// What that says of other nodes.
    pub scope: LaunchFailureScope,
    /// There is a node that could be used, beside those of [`YarnAttempts::tried_nodes`].
    pub has_other_node: bool,
}

/// Where a master cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchFailureScope {
    /// Its node was not reached in time.
    Late,
    /// Its node does not start it, and would not if it were asked again.
    Node,
    /// No node can start it.
    Everywhere,
}

/// What a master says of itself when it registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Where it runs.
    pub host: String,
    /// Port for clients; -1: none.
    pub rpc_port: i32,
    /// Its page.
    pub tracking_url: String,
}

/// A container that a master hears of for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedContainer {
    /// Its id.
    pub id: YarnContainerId,
    /// Its ordinal.
    pub ordinal: u32,
    /// Where it has its place: host and port, as `n1:8041`.
    pub node: String,
    /// For what it was asked.
    pub key: AskKey,
}

/// A container that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedContainer {
    /// Its id.
    pub id: YarnContainerId,
    /// How.
    pub exit: YarnExitStatus,
}

/// Answer to `allocate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocateAnswer {
    /// To be named by the next call.
    pub response_id: i32,
    /// Since the last answer.
    pub allocated: Vec<AllocatedContainer>,
    /// Since the last answer.
    pub completed: Vec<CompletedContainer>,
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct YarnAttempt {
    /// Its id.
    pub id: YarnAttemptId,
    /// Where it is.
    pub state: AttemptState,
    /// Ordinals from here on were asked for by this attempt; those before by earlier ones.
    first_ordinal: u32,
    /// The same of opportunistic containers.
    first_opportunistic: u32,
    /// Where its master has its place, as `host:port`.
    pub node: Option<String>,
    /// What its master said of itself.
    pub registration: Option<Registration>,
    said: Option<FinalStatus>,
    /// How its master ended.
    pub exit: YarnExitStatus,
    /// What follows, if no node has started its master.
    unstarted: Option<UnstartedFate>,
    /// When its master was heard of last.
    heard: Millis,
    last: AllocateAnswer,
}

/// One container that has or had a place, until its master has heard of its end.
#[derive(Clone, Debug)]
pub struct YarnContainer {
    /// Its id.
    pub id: YarnContainerId,
    /// For what it was asked.
    pub key: AskKey,
    /// Where it is.
    pub state: YarnContainerState,
    /// Where it has its place, as `host:port`.
    pub node: String,
    /// How it ended.
    pub exit: YarnExitStatus,
    /// It must be started before.
    expires: Option<Millis>,
}

/// One application.
#[derive(Clone, Debug)]
pub struct YarnApplication {
    id: YarnApplicationId,
    submission: AppSubmission,
    state: AppState,
    attempts: YarnAttempts,
    containers: AppContainers,
    start_ms: i64,
    finish_ms: Option<i64>,
    diagnostics: String,
    /// Of its newest record.
    version: u64,
    /// Records that must be written before application and attempt go on.
    awaited: u64,
    attempt_awaited: u64,
}

/// Every application.
#[derive(Clone, Debug, Default)]
pub struct YarnAdapter {
    terms: AdapterTerms,
    applications: BTreeMap<YarnApplicationId, YarnApplication>,
    /// The rack of each host of the cluster.
    racks: Arc<BTreeMap<String, String>>,
}

impl YarnAdapter {
    /// Without applications.
    pub fn new(terms: AdapterTerms) -> Self {
        Self { terms, ..Self::default() }
    }

    /// Takes a submission; the same again changes nothing.
    ///
    /// # Errors
    /// Another one has that id.
    pub fn submit(
        &mut self,
        id: YarnApplicationId,
        submission: AppSubmission,
        at: AdapterTime,
        out: &mut Vec<YarnAction>,
    ) -> Result<(), ClientRefusal> {
        if let Some(known) = self.applications.get(&id) {
            return if known.submission == submission { Ok(()) } else { Err(ClientRefusal::Taken(id)) };
        }
        let application = self.applications.entry(id).or_insert(YarnApplication::new(id, submission, at));
        application.containers.asks.set_racks(&self.racks);
        application.on_app(AppEvent::Start, self.terms, at, out);
        Ok(())
    }

    /// An application.
    pub fn get(&self, id: YarnApplicationId) -> Option<&YarnApplication> {
        self.applications.get(&id)
    }

    /// Every application, in order of id.
    pub fn iter(&self) -> impl Iterator<Item = &YarnApplication> {
        self.applications.values()
    }

    /// Has an application live on.
    ///
    /// # Errors
    /// There is none.
    pub fn with<T>(
        &mut self,
        id: YarnApplicationId,
        what: impl FnOnce(&mut YarnApplication, AdapterTerms) -> T,
    ) -> Result<T, ClientRefusal> {
        let application = self.applications.get_mut(&id).ok_or(ClientRefusal::NoApplication(id))?;
        Ok(what(application, self.terms))
    }

    /// What has expired by now, of all applications. Costs follow their number.
    pub fn tick(&mut self, at: AdapterTime, out: &mut Vec<YarnAction>) {
        for application in self.applications.values_mut() {
            application.expire(self.terms, at, out);
        }
    }

    /// Takes over in which rack each host is. What waits follows with the next [`Self::tick`].
    pub fn set_racks(&mut self, racks: Arc<BTreeMap<String, String>>) {
        if self.racks == racks {
            return;
        }
        self.racks = racks;
        for application in self.applications.values_mut() {
            application.containers.asks.set_racks(&self.racks);
        }
    }

    /// Takes a record over after a start. Its unit's running units are told next.
    pub fn recover(&mut self, record: AppRecord, at: AdapterTime, out: &mut Vec<YarnAction>) {
        let id = record.id;
        let mut application = YarnApplication::from_record(record, at);
        application.containers.asks.set_racks(&self.racks);
        application.resume(self.terms, at, out);
        self.applications.insert(id, application);
    }

    /// Forgets an application that is over, and whose record is deleted.
    pub fn forget(&mut self, id: YarnApplicationId) {
        if self.applications.get(&id).is_some_and(|application| application.state.is_over()) {
            self.applications.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
