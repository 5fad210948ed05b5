//! Who may write which record.

use godel_domain::rows::RowChange;
use godel_proto::v1;

use crate::ops::ParsedOp;

/// On whose behalf a transaction is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A service, by the lease of its writer: [`Writes::of_lease`] says what it may write; fenced.
    Leased,
    /// State itself, for an agent's session.
    Agent,
    /// State itself, for an administrator's call.
    Admin,
    /// State itself, as the judge of leases.
    State,
    /// An operator, on a store that no process serves.
    Repair,
}

/// What a transaction writes as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writes {
    /// The dispatcher's records: units, queues, priority classes, disruption budgets, reservations, pauses and the
    /// partition.
    Dispatcher,
    /// The binder's: placements, evictions, requeues, grants, holds.
    Binder,
    /// An agent's: its node's report and use, run status, and its own first registration.
    Agent,
    /// An administrator's: how nodes may be used.
    Admin,
    /// The judge's: leases.
    State,
    /// An operator's on a closed store: what cannot be read goes.
    Repair,
}

impl Writes {
    /// What the holder of `lease` may write as; `None`: nothing.
    pub fn of_lease(lease: &str) -> Option<Self> {
        match lease {
            "dispatcher" => Some(Self::Dispatcher),
            "binder" => Some(Self::Binder),
            _ => None,
        }
    }

    /// Whether it may make `op`. `exists` says whether the record is there already.
    pub(crate) fn may(self, op: &ParsedOp, exists: impl Fn() -> bool) -> bool {
        use v1::Kind;
        match op {
            ParsedOp::Put { kind, .. } => match kind {
                Kind::UnitSpec
                | Kind::Partition
                | Kind::PartitionBlock
                | Kind::Queue
                | Kind::PriorityClass
                | Kind::DisruptionBudget
                | Kind::Reservation
                | Kind::Pause => self == Self::Dispatcher,
                Kind::NodeGrant | Kind::Hold => self == Self::Binder,
                Kind::NodeReport | Kind::NodeUsage => self == Self::Agent,
                Kind::NodeSpec => self == Self::Admin || (self == Self::Agent && !exists()),
                Kind::Lease => self == Self::State,
                Kind::Unspecified | Kind::Rows => false,
            },
            ParsedOp::Delete { kind, .. } => match kind {
                Kind::UnitSpec
                | Kind::Partition
                | Kind::PartitionBlock
                | Kind::Queue
                | Kind::PriorityClass
                | Kind::DisruptionBudget
                | Kind::Reservation
                | Kind::Pause => self == Self::Dispatcher || self == Self::Repair,
                Kind::NodeGrant | Kind::Hold => self == Self::Binder || self == Self::Repair,
                Kind::NodeSpec => self == Self::Admin || self == Self::Repair,
                // A report goes with its node.
                Kind::NodeReport | Kind::NodeUsage => self == Self::Repair,
                // An epoch must never be forgotten, so no lease ever goes.
                Kind::Lease | Kind::Unspecified | Kind::Rows => false,
            },
            ParsedOp::Rows { change, .. } => match **change {
                RowChange::Bind(_) | RowChange::Requeue(_) => self == Self::Binder,
                RowChange::Evict(_) => self == Self::Binder || self == Self::Repair,
                RowChange::Statuses(_) => self == Self::Agent,
            },
        }
    }
}
