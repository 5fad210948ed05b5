//! The rescheduler's decisions: which running units should be elsewhere, why, and in which order they get there.
//!
//! A [`ClusterSnapshot`] goes in, a [`ReschedulePlan`] and its [`MoveBatches`] come out: no clock, no input or output, and what
//! looks like chance follows from a seed. A policy is a [`Detector`], an [`Algorithm`] and a [`Goal`]; [`make_plan`] runs all
//! alike, keeps what [`Filters`], the goals of other policies and [`PlanLimits`] forbid from being moved, and never raises a policy's
//! own objective. [`order_moves`] says in which order moves are made.
//!
//! [`PolicyManager`] says which policy runs when, [`plan_policy`] makes its plan, and [`MovementDriver`] says how a movement goes on that
//! executes one. The leader, `godel-core-rescheduler-leader`, does what they say.
//!
//! # Modules
//!
//! - `binpack`: bin packing: as few nodes as possible have work.
//! - `clearing`: which running units have to leave a node so that something fits there, and where they go.
//! - `colocation`: co-location: units that talk to one another share nodes.
//! - `columns`: exact search where it is affordable: two nodes at a time share out what they have.
//! - `config`: which policies there are, when each runs and on what, and everything that is wrong with that.
//! - `cron`: times as cron writes them.
//! - `defragmentation`: defragmentation: whole devices, nodes or domains become free.
//! - `domains`: which domain each node is of.
//! - `driver`: what a movement does next, from its record and from where its running units are.
//! - `eligibility`: which running units and nodes a policy may use now.
//! - `failure_domains`: spread over failure domains: no domain takes too many replicas of a unit down with it.
//! - `filters`: what says whether a running unit may be on a node.
//! - `fragmentation`: the fragmentation of devices: which share of what is idle typical work cannot use.
//! - `generator`: in which order moves are made, as few batches as capacity and disruption budgets allow.
//! - `goal`: what a policy wants of a layout, and what other policies must not do.
//! - `kept`: what keeps a running unit where it is, whatever a policy wants.
//! - `layout`: who is where, with what is free, and moves that can be undone.
//! - `load_balance`: load balance: no node is hot by what its running units really use.
//! - `manager`: which policies run when, and what holds them back.
//! - `movement`: runs of policies that are executed, with every move and how far it is.
//! - `planning`: from a snapshot to what a movement executes.
//! - `policy`: what a policy is, and how its plan is made.
//! - `referee`: what no plan can do better, by integer programs.
//! - `refused`: what the binder refused of late, and is not planned again.
//! - `requests`: gangs that wait and ask for room by themselves.
//! - `room`: room on demand for a gang that waits.
//! - `search`: local search by annealing, within the limit of moves.
//! - `snapshot`: what the rescheduler is given.
//! - `trigger`: when a policy runs.
//! - `usage`: what running units used of late, as percentiles.
//! - `whole_shapes`: where whole demands fit.
//! - `workspace`: where an algorithm works: a layout, and everything that may refuse a move.

mod binpack;
mod clearing;
mod colocation;
mod columns;
mod config;
mod cron;
mod defragmentation;
mod domains;
mod driver;
mod eligibility;
mod failure_domains;
mod filters;
mod fragmentation;
mod generator;
mod goal;
mod kept;
mod layout;
mod load_balance;
mod manager;
mod movement;
mod planning;
mod policy;
mod referee;
mod refused;
mod requests;
mod room;
mod search;
mod snapshot;
#[cfg(test)]
mod tests;
mod trigger;
mod usage;
mod whole_shapes;
mod workspace;

pub use self::{
    binpack::Binpack,
    clearing::{Clearing, cheapest_clearing, evacuate},
    colocation::Colocation,
    config::{
        ConfigFault, MoveRate, N_POLICIES_MAX, PERIOD_MIN_MS, PolicyConfig, PolicyScope, Protection,
        QuietTime, RescheduleConfig, RescheduleKind,
    },
    cron::{BadCron, CronTable},
    defragmentation::{Aim, Defragmentation},
    domains::LayoutDomains,
    driver::{
        DriverStep, DriverTerms, MoveReply, MovementDriver, MovementWorld, N_FAILED_SPARED, ReplicaView,
    },
    eligibility::{MoveLog, QuietState, has_failed_too_often, limits_of},
    failure_domains::FailureDomainSpread,
    filters::{Filters, NodeFilters},
    fragmentation::{Fragmentation, TypicalDemand},
    generator::{MoveBatches, MoveStep, N_EXACT_MAX, order_moves, order_moves_within},
    goal::{CheckPoint, EPSILON, Goal},
    kept::KeptReason,
    layout::{
        BadSnapshot, Layout, LayoutMark, LayoutRooms, NodeIdx, OwnerIdx, RunIdx, ShapeDevices, ShapeIdx,
        UnitShape,
    },
    load_balance::{HotNodes, LoadBalance},
    manager::{DuePolicy, PolicyManager, PolicyState, RunRefusal},
    movement::{
        MoveCounts, MovePhase, MovementMove, MovementPhase, MovementRecord, RecordedReason, RunCause,
    },
    planning::{OrderedPlan, PlanFault, PlanTerms, plan_policy, plan_room},
    policy::{
        Algorithm, CheckedBy, Detection, Detector, PlanRefusal, PlannedMove, Policy, Reason, ReschedulePlan,
        make_plan, moves_of,
    },
    referee::{PlanBound, bound_of},
    refused::{FORGET_MS, RefusedMoves},
    requests::{RoomRequests, lacks_room_alone},
    room::{GangPart, MemberLimit, WaitingGang, let_in},
    search::{Annealing, Draws, Propose, anneal},
    snapshot::{
        BudgetRoom, ClusterSnapshot, MeasuredUse, NodeFacts, RunningFacts, TrafficShare, UnitFacts,
        cost_of_move, last_checkpoint,
    },
    trigger::{Trigger, next_due_ms},
    usage::{N_LOOKS_KEPT_MAX, NodeUseTable, UsageHistory, UsageTable},
    whole_shapes::WholeShapes,
    workspace::{MoveRefusals, PlanLimits, Workspace},
};
