//! What the leading rescheduler does: changes of the store, plans and answers come in, records and requests for moves go out.
//! No I/O, no clock.
//!
//! [`ReschedulerLeader`] follows the cluster ([`ClusterPicture`]), has plans made of it when policies are due or somebody asks, turns them into
//! movements, and drives one movement at a time. Whoever drives it (the service, the model of the whole control plane) hands it what was
//! read and what came, carries its records to the store, and gives it a [`RescheduleOutbox`] for everything that it says. A leader that begins
//! knows the records of the one before it, and nothing else: a movement is written down before the binder is asked for its moves.
//!
//! # Modules
//!
//! - `checkpoints`: when running units saved their work last.
//! - `config`: what the leader is configured with beside its policies.
//! - `gangs`: gangs that wait, and the one of which the dispatcher is asked what keeps it out.
//! - `jobs`: plans that wait to be made, one after the other.
//! - `leader`: the leader itself: who asks, what is due, and what becomes of a plan.
//! - `outbox`: what the leader says to others, and what it writes.
//! - `picture`: the cluster as the rescheduler follows it.
//! - `plan_work`: one plan to be made, of copies, so that following goes on meanwhile.
//! - `snapshot`: what plans are made of, with the scheduler's filters.
//! - `term`: the movements of one leadership: one is driven, and written down before anything follows from it.
//! - `traffic`: which units talk to one another.

mod checkpoints;
mod config;
mod gangs;
mod jobs;
mod leader;
mod outbox;
mod picture;
mod plan_work;
mod snapshot;
mod term;
mod traffic;

pub use self::{
    config::RescheduleLeaderConfig,
    leader::ReschedulerLeader,
    outbox::{
        AbortRefusal, CallRefusal, HeardRefusal, MovesAnswered, MovesAsked, MovesUnanswered, PlanAnswer,
        RescheduleNote, RescheduleOutbox, RescheduleWrite, ShownPlan, StoredMovements, WriteFailure,
        WriteTicket,
    },
    picture::{CheckpointCounts, ClusterPicture, FOLLOWS},
    plan_work::{PlanDone, PlanWork},
    snapshot::SnapshotConfig,
    term::MoveTotals,
    traffic::{KnownTraffic, Traffic, UnitName, is_weight, unit_name},
};
