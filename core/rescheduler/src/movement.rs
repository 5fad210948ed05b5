//! Movements: one run of a policy that is executed, with every move of it and how far that is.
//!
//! The rescheduler keeps a movement as a record, so that another one goes on where it stood. What a movement does next is decided by
//! [`crate::MovementDriver`].

use std::collections::BTreeMap;

use godel_base::ids::{NodeId, Revision, RunningUnitId, UnitId};
use godel_domain::allocation::DeviceSet;

/// What made a policy run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunCause {
    /// Its period was over.
    Period,
    /// A time of its table came.
    Cron,
    /// The process got the signal.
    Signal,
    /// Somebody called for it by RPC.
    Rpc,
    /// Somebody called for it by HTTP.
    Http,
    /// A gang has waited for room for so long that it asks by itself.
    Waiting,
}

impl RunCause {
    /// Every cause, in order.
    pub const ALL: [Self; 6] = [Self::Period, Self::Cron, Self::Signal, Self::Rpc, Self::Http, Self::Waiting];

    /// Returns its name, as records have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Period => "period",
            Self::Cron => "cron",
            Self::Signal => "signal",
            Self::Rpc => "rpc",
            Self::Http => "http",
            Self::Waiting => "waiting",
        }
    }

    /// Returns the cause of a name; `None`: there is no such cause.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

/// How far a movement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MovementPhase {
    /// Moves are being made.
    Running,
    /// All moves have ended.
    Done,
    /// More of its moves failed than may.
    Stopped,
    /// Somebody ended it.
    Aborted,
    /// It took too long.
    Expired,
}

/// How far one move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MovePhase {
    /// Its batch has not begun, or the binder refused it for now.
    Waiting,
    /// The binder holds its target, and the running unit leaves.
    Leaving,
    /// The running unit has left, and its successor has no node yet.
    Pending,
    /// Its successor is bound and does not run yet.
    Starting,
    /// Its successor runs on the recommended node.
    Moved,
    /// Its successor runs on another node.
    Mismatched,
    /// It is not made.
    Refused,
    /// It is not made, because its movement ended before.
    Aborted,
    /// Its successor did not run in time.
    TimedOut,
}

impl MovePhase {
    /// Whether nothing of the move is left to be done.
    pub fn is_ended(self) -> bool {
        match self {
            Self::Waiting | Self::Leaving | Self::Pending | Self::Starting => false,
            Self::Moved | Self::Mismatched | Self::Refused | Self::Aborted | Self::TimedOut => true,
        }
    }

    /// Whether its running unit was told to leave and does not run again yet.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Leaving | Self::Pending | Self::Starting)
    }

    /// Whether it ended otherwise than it was planned. What its movement gave up is no failure.
    pub fn has_failed(self) -> bool {
        matches!(self, Self::Mismatched | Self::Refused | Self::TimedOut)
    }
}

/// Why a running unit moves, as a record keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedReason {
    /// Why this unit.
    pub why_unit: String,
    /// Why this node.
    pub why_node: String,
    /// Why now.
    pub why_now: String,
    /// The numbers that say so, by name.
    pub numbers: Vec<(String, f64)>,
}

/// One running unit that a movement moves.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementMove {
    /// The running unit that leaves. Its next incarnation is to run on the target.
    pub id: RunningUnitId,
    /// Namespace and name of its unit.
    pub unit: String,
    /// The node that it leaves, by id and name.
    pub from: (NodeId, String),
    /// The node that is recommended, by id and name.
    pub to: (NodeId, String),
    /// The devices that are recommended.
    pub devices: DeviceSet,
    /// The batch that makes it, from 0.
    pub batch: u32,
    /// Whether the recommended node is only a spare one on the way.
    pub is_detour: bool,
    /// What it costs, milliseconds of work.
    pub cost_ms: u64,
    /// Why it is made.
    pub reason: RecordedReason,
    /// How far it is.
    pub phase: MovePhase,
    /// The node that its successor is bound to, by id and name.
    pub actual: Option<(NodeId, String)>,
    /// Why it was refused, or is asked for again.
    pub detail: String,
    /// How often the binder was asked for it. It is counted, and recorded, before that.
    pub n_tries: u32,
    /// When its phase changed last, Unix milliseconds.
    pub changed_ms: i64,
    /// The ordinal that replaces it, where replacements start first.
    pub surge_ordinal: Option<u32>,
}

/// A run of a policy that is executed.
#[derive(Clone, Debug, PartialEq)]
pub struct MovementRecord {
    /// Its name: the policy, or `room`, and the number.
    pub name: String,
    /// The policy; empty: it makes room for a unit.
    pub policy: String,
    /// Rises with each movement.
    pub number: u64,
    /// The unit that it makes room for.
    pub for_unit: Option<UnitId>,
    /// When it was created, Unix milliseconds.
    pub created_ms: i64,
    /// What its plan rests on.
    pub plan_revision: Revision,
    /// The objective as things were, and after all moves.
    pub objective: (f64, f64),
    /// What the policy found.
    pub finding: String,
    /// How far it is.
    pub phase: MovementPhase,
    /// The phase that it will end in, if that is decided already.
    pub ending: Option<MovementPhase>,
    /// When it ended, Unix milliseconds; 0: it goes on.
    pub ended_ms: i64,
    /// Why it ended as it did.
    pub message: String,
    /// How many batches it has.
    pub n_batches: u32,
    /// The batch that is being made.
    pub batch: u32,
    /// How often the rest of its plan was made anew.
    pub n_replans: u32,
    /// What caused it.
    pub cause: RunCause,
    /// Its moves, by batch.
    pub moves: Vec<MovementMove>,
}

/// How many moves of a movement ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCounts {
    /// All of them.
    pub all: u32,
    /// Those whose successors run on the recommended node.
    pub moved: u32,
    /// Those whose successors run on another node.
    pub mismatched: u32,
    /// Those that were refused or timed out.
    pub failed: u32,
    /// Those that were given up with their movement.
    pub aborted: u32,
}

impl MovementRecord {
    /// Whether nothing of it is left to be done.
    pub fn is_ended(&self) -> bool {
        self.phase != MovementPhase::Running
    }

    /// Returns how many replicas failed to move, and how many moves have come to an end, by replica: one that failed several times counts
    /// once, and one that moved in the end has not failed.
    pub fn n_failed(&self) -> (u64, u64) {
        let mut ended: BTreeMap<(UnitId, u32), MovePhase> = BTreeMap::new();
        let outcomes =
            self.moves.iter().filter(|one| one.phase.is_ended() && one.phase != MovePhase::Aborted);
        for one in outcomes {
            ended.insert((one.id.unit, one.id.replica.ordinal), one.phase);
        }
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        (count(ended.values().filter(|phase| phase.has_failed()).count()), count(ended.len()))
    }

    /// Counts its moves by how they ended.
    pub fn counts(&self) -> MoveCounts {
        self.counts_of(|_| true)
    }

    /// Counts some of its moves by how they ended.
    pub fn counts_of(&self, is_counted: impl Fn(&MovementMove) -> bool) -> MoveCounts {
        let mut counts = MoveCounts::default();
        for one in self.moves.iter().filter(|one| is_counted(one)) {
            counts.all += 1;
            match one.phase {
                MovePhase::Waiting | MovePhase::Leaving | MovePhase::Pending | MovePhase::Starting => {}
                MovePhase::Moved => counts.moved += 1,
                MovePhase::Mismatched => counts.mismatched += 1,
                MovePhase::Refused | MovePhase::TimedOut => counts.failed += 1,
                MovePhase::Aborted => counts.aborted += 1,
            }
        }
        counts
    }
}
