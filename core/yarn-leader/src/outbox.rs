//! What the leader wants done, and what it is answered.

use std::sync::Arc;

use godel_core_yarn::{
    AppAcls,
    adapter::AppRecord,
    asks::{AskGroup, wishes::AskWish},
    ids::{YarnApplicationId, YarnAttemptId},
};
use godel_domain::{change_line::CallCause, unit::UnitRecord, yarn_keys::YarnKeys};

use crate::{
    answers::{ManagerRefusal, MasterLaunch, RegisterAnswer},
    avoided::AvoidedNodes,
    notes::AppNotes,
};

/// Names what an answer is to. Counts from 1 over all leaderships: an answer to an earlier one is not taken for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobTicket(pub u64);

/// Something that the leader wants done. `C` is a client that waits, `M` a master: the leader keeps them and hands them back with the answer.
#[derive(Clone, Debug)]
pub enum YarnOrder<C, M> {
    /// Write records in one transaction, on behalf of these calls. The answer comes by [`on_written`](crate::YarnWork::on_written); nothing else is written before.
    Write(JobTicket, Vec<YarnWrite>, Vec<CallCause>),
    /// Call the dispatcher until it answers for good. The answer comes by [`on_called`](crate::YarnWork::on_called).
    Call(JobTicket, UnitCall),
    /// Have a node start a master. The answer comes by [`on_launched`](crate::YarnWork::on_launched).
    Launch(JobTicket, Box<MasterLaunch>),
    /// The same to stop it.
    Stop(JobTicket, Box<MasterLaunch>),
    /// Come back by [`on_paused`](crate::YarnWork::on_paused) in a while: something is tried again then.
    Pause(JobTicket, OrderedPause),
    /// Ask the dispatcher what keeps the units of these applications waiting: by [`on_place`](crate::YarnWork::on_place) for each, and by
    /// [`on_looked`](crate::YarnWork::on_looked) in the end.
    AskPlaces(JobTicket, Vec<YarnApplicationId>),
    /// The answer to a client.
    Answer(C, Result<(), ManagerRefusal>),
    /// The answer to a master that registers.
    AnswerMaster(M, Result<RegisterAnswer, ManagerRefusal>),
    /// Something happened that is counted or logged.
    Note(YarnNote),
}

/// How long to pause: longer with each failure, and not always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedPause {
    /// Failures in a row before this one.
    pub n_before: u32,
    /// The longest pause, milliseconds.
    pub most_ms: u64,
}

/// A change of the adapter's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum YarnWrite {
    /// An application is as this says.
    Application(Box<AppRecord>, AppNotes),
    /// An application is forgotten.
    ApplicationGone(YarnApplicationId),
    /// Keys that sign tokens.
    Keys(YarnKeys),
}

/// Why records are not (known to be) written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordsFailure {
    /// The store refused the transaction.
    Refused,
    /// The leadership ended before the answer.
    LeaseLost,
}

/// What a leader begins with: an application as those before it have recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredApp {
    /// Its record.
    pub record: AppRecord,
    /// What is kept beside.
    pub notes: AppNotes,
    /// What it allows others than its user.
    pub acls: AppAcls,
}

/// A call of the dispatcher about a unit of an application. Its sides are [`MASTER`](godel_core_yarn::adapter::MASTER) for the unit with the
/// master, and [`OPPORTUNISTIC`](godel_core_yarn::adapter::OPPORTUNISTIC).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitCall {
    /// Submit it; the same again changes nothing.
    Submit(YarnUnitSubmission),
    /// Add replicas.
    Grow(GroupGrowth),
    /// Release replicas, by the ordinals of the unit.
    Release(YarnApplicationId, u32, Vec<u32>),
    /// Change it as a whole.
    Change(Arc<UnitRecord>, ChangedField),
    /// Have the master run once more, if possible not on these nodes.
    Retry(YarnApplicationId, AvoidedNodes),
    /// Cancel it.
    Cancel(YarnApplicationId, u32),
}

/// A unit that is to be submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YarnUnitSubmission {
    /// Whose it is.
    pub application: YarnApplicationId,
    /// Which of its units.
    pub side: u32,
    /// Who submitted the application.
    pub user: String,
    /// Its queue in godel.
    pub queue: String,
    /// Its priority.
    pub priority: i32,
    /// What its master needs; `None`: a replica that finds no node stands for it.
    pub master: Option<AskGroup>,
}

/// Replicas that are to be added to a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupGrowth {
    /// Whose unit it is.
    pub application: YarnApplicationId,
    /// Which of its units.
    pub side: u32,
    /// Task groups that it has, and how many replicas they have then.
    pub sizes: Vec<(String, u32)>,
    /// Task groups that it does not have yet.
    pub added: Vec<AddedGroup>,
}

/// A task group that is to be added to a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedGroup {
    /// Its name.
    pub name: String,
    /// What its containers are.
    pub group: AskGroup,
    /// Where they are wanted.
    pub wish: Arc<AskWish>,
    /// How many.
    pub replicas: u32,
}

/// What is changed of a unit as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedField {
    /// It goes to a queue.
    Queue(String),
    /// It has a priority.
    Priority(i32),
}

/// The dispatcher refuses a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitCallRefused {
    /// Why, as far as it decides anything.
    pub reason: UnitCallRefusal,
    /// Why, in words.
    pub why: String,
}

/// Why the dispatcher refuses a call, as far as it decides anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitCallRefusal {
    /// There is no such unit.
    Gone,
    /// Not as the unit is now.
    NotNow,
    /// What is asked for cannot be.
    Invalid,
    /// Something else.
    Other,
}

/// Something that is counted or logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum YarnNote {
    /// It leads, with so many applications.
    Leads(usize),
    /// It leads no longer.
    SteppedDown,
    /// An application was submitted.
    Submitted,
    /// A master was started.
    Launched,
    /// A master could not be started, in words.
    LaunchFailed(YarnAttemptId, String),
    /// A master could not be stopped, in words.
    StopFailed(YarnAttemptId, String),
    /// The dispatcher refused something: what came of it, and why.
    Refused(YarnApplicationId, &'static str, String),
}
