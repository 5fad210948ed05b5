//! Who may write which record.

use godel_domain::running_units::RunChange;
use godel_proto::{
    kinds::{KindInfo, Owner},
    v1,
};
use godel_wire::ops::ParsedOp;

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
    /// State itself, for joins, renewals and administrators' calls on identities.
    Identities,
    /// State itself, for calls without a transaction of their own, and for lines of the change log that are too old.
    Changes,
    /// An operator, on a store that no process serves.
    Repair,
}

/// What a transaction writes as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writes {
    /// The dispatcher's records: units, queues, priority classes, disruption budgets, reservations, pauses and the
    /// partition.
    Dispatcher,
    /// The binder's: placements, evictions, requeues, allocatables, holds.
    Binder,
    /// The YARN adapter's: the keys of YARN's tokens, and its applications.
    Yarn,
    /// The rescheduler's: its movements, and when replicas of units were moved.
    Rescheduler,
    /// An agent's: its node's report and use, run status, and its own first registration.
    Agent,
    /// An administrator's: how nodes may be used.
    Admin,
    /// The judge's: leases.
    State,
    /// The keeper's of identities: roots, what signs, who was issued leaves, and join tokens.
    Identities,
    /// The change log's: its lines. Those that a transaction of others comes with are written so too.
    Changes,
    /// An operator's on a closed store: what cannot be read goes.
    Repair,
}

impl Writes {
    /// What the holder of `lease` may write as; `None`: nothing.
    pub fn of_lease(lease: &str) -> Option<Self> {
        match lease {
            "dispatcher" => Some(Self::Dispatcher),
            "binder" => Some(Self::Binder),
            "yarn" => Some(Self::Yarn),
            "rescheduler" => Some(Self::Rescheduler),
            _ => None,
        }
    }

    /// Whether it may make `op`. `exists` says whether the record is there already.
    pub(crate) fn may(self, op: &ParsedOp, exists: impl Fn() -> bool) -> bool {
        match op {
            ParsedOp::Put { kind, .. } => {
                self.owns(*kind) || (*kind == v1::Kind::NodeSpec && self == Self::Agent && !exists())
            }
            ParsedOp::Delete { kind, .. } => {
                match KindInfo::of(*kind).map(|entry| (entry.owner, entry.of_node)) {
                    // An epoch must never be forgotten, so no lease ever goes. Running units go with their unit.
                    None | Some((Owner::State | Owner::Operations, _)) => false,
                    // A report goes with its node.
                    Some((Owner::Agent, true)) => self == Self::Repair,
                    Some(_) => self.owns(*kind) || self == Self::Repair,
                }
            }
            ParsedOp::Rows { change, .. } => match **change {
                RunChange::Bind(_) | RunChange::Requeue(_) => self == Self::Binder,
                RunChange::Evict(_) => self == Self::Binder || self == Self::Repair,
                RunChange::Statuses(_) => self == Self::Agent,
                RunChange::Terms(_) | RunChange::Compact(_) => self == Self::Dispatcher,
            },
        }
    }

    /// Whether its conditions may name a record of a kind: those of identities concern nobody else.
    pub(crate) fn may_rest_on(self, kind: v1::Kind) -> bool {
        KindInfo::of(kind).is_none_or(|entry| entry.owner != Owner::Identities) || self.owns(kind)
    }

    /// Whether records of a kind are its own.
    fn owns(self, kind: v1::Kind) -> bool {
        match KindInfo::of(kind).map(|entry| entry.owner) {
            None | Some(Owner::Operations) => false,
            Some(Owner::Dispatcher) => self == Self::Dispatcher,
            Some(Owner::Binder) => self == Self::Binder,
            Some(Owner::Yarn) => self == Self::Yarn,
            Some(Owner::Rescheduler) => self == Self::Rescheduler,
            Some(Owner::Agent) => self == Self::Agent,
            Some(Owner::Admin) => self == Self::Admin,
            Some(Owner::State) => self == Self::State,
            Some(Owner::Identities) => self == Self::Identities,
            Some(Owner::Changes) => self == Self::Changes,
        }
    }
}
