//! What the leading YARN adapter does: changes of the store, calls of clients and masters, and answers come in; records, calls of the
//! dispatcher and of nodes, and answers to callers go out. No I/O, no clock.
//!
//! [`YarnLeader`] follows the cluster, has every application with its notes, and drives what follows from them: one action after the other for
//! the unit of each application, one try after the other for each master that is to be started. Whoever drives it (the service, or a test) hands
//! it what was read and what was answered with the time, and carries out its [`YarnOrder`]s. A leader that begins knows the records of the
//! one before it, and nothing else. Who has to know that something is recorded is answered when it is.
//!
//! # Modules
//!
//! - `access`: who may do what, asked by every face.
//! - `answers`: what is asked of the adapter, what it answers, and why it refuses.
//! - `avoided`: where the next master of an application had better not go.
//! - `calls`: what clients ask of the leader.
//! - `config`: what the leader is configured with.
//! - `follow`: what changes of units mean to applications, one after the other or after a start.
//! - `grow`: replicas that are added to the unit of an application.
//! - `jobs`: what is done about the units of applications, one step after the other.
//! - `keys`: the keys that sign YARN's tokens, and when they are due.
//! - `launches`: masters that are being started and stopped.
//! - `leader`: the leader itself: what it follows, when it leads, and what it writes.
//! - `masters`: what masters ask of the leader.
//! - `names`: how units and their task groups are named.
//! - `notes`: what is kept of applications beside what decides anything.
//! - `outbox`: what the leader wants done.
//! - `picture`: the cluster as the adapter follows it: nodes, queues, units of applications.
//! - `queues`: names of queues: godel's paths and what YARN's clients call them.
//! - `reports`: what is shown of applications, attempts, containers, nodes and queues.
//! - `show`: how reports are made.
//! - `shown`: what faces are shown of the adapter.
//! - `state`: what the leader knows: applications with what is kept of them, and what is to be written.
//! - `used`: what an application has used: MiB-seconds and CPU-seconds of what ran.
//! - `waits`: what applications wait for whose master has no place.
//! - `work`: what the leader has under way, and the answers to its orders.

mod access;
mod answers;
mod avoided;
mod calls;
mod config;
mod follow;
mod grow;
mod jobs;
mod keys;
mod launches;
mod leader;
mod masters;
mod names;
mod notes;
mod outbox;
mod picture;
mod queues;
mod reports;
mod show;
mod shown;
mod state;
mod used;
mod waits;
mod work;

pub use self::{
    access::{AdapterRules, GroupQuestions},
    answers::{
        AppCaller, AppSubmitter, ContainerPlace, LaunchNode, LaunchRefusal, LaunchUnit, ManagerRefusal,
        MasterAnswer, MasterLaunch, RegisterAnswer, SubmittedApp,
    },
    avoided::AvoidedNodes,
    config::YarnLeaderConfig,
    jobs::CHANGE_LIMIT_MS,
    keys::KEY_NAMES,
    leader::YarnLeader,
    names::{
        DEFAULT_RACK, HOST_ATTRIBUTE, MASTER_GROUP, PORT_ATTRIBUTE, asked_of, group_name, unit_name,
        unit_name_of,
    },
    notes::{AppNotes, AttemptNotes},
    outbox::{
        AddedGroup, ChangedField, GroupGrowth, JobTicket, OrderedPause, RecordsFailure, StoredApp, UnitCall,
        UnitCallRefusal, UnitCallRefused, YarnNote, YarnOrder, YarnUnitSubmission, YarnWrite,
    },
    picture::FOLLOWS,
    reports::{
        AppFilter, AppReport, AttemptReport, ClusterReport, ContainerReport, QueueReport, YarnAmount,
        YarnNodeReport, YarnNodeState,
    },
    shown::YarnShown,
    waits::UnitWaits,
    work::YarnWork,
};
