//! What each RPC needs of its caller.
//!
//! Until there is permission, a person may make every call that people make: what members and agents do among themselves is theirs alone.
//! This says who may call at all. Whose records, nodes and leases a call is about, the service judges that answers it
//! ([`crate::lease_rights`], [`Caller::speaks_for`]).

use std::fmt;

use crate::{
    caller::Caller,
    leaves::{self, LeafRefusal, LeafStanding},
    names::Role::{self, Agent, Binder, Dispatcher, Rescheduler, Scheduler, State, Yarn},
};

/// What a call needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Anyone,
    /// A leaf or a token, of whomever.
    Identified,
    /// A person.
    Person,
    /// A leaf of one of these roles.
    Roles(&'static [Role]),
    /// A person, or a leaf of one of these roles.
    PersonOr(&'static [Role]),
}

/// What a call needs, in words.
impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (person, roles): (&str, &[Role]) = match self {
            Self::Anyone => return f.write_str("nothing"),
            Self::Identified => return f.write_str("a certificate of this cluster or a person's token"),
            Self::Person => return f.write_str("a person's token"),
            Self::Roles(roles) => ("", roles),
            Self::PersonOr(roles) => ("a person's token or ", roles),
        };
        write!(f, "{person}a certificate of role ")?;
        for (at, role) in roles.iter().enumerate() {
            let gap = if at == 0 {
                ""
            } else if at + 1 == roles.len() {
                " or "
            } else {
                ", "
            };
            write!(f, "{gap}{role}")?;
        }
        Ok(())
    }
}

/// Who writes records.
const WRITERS: &[Role] = &[Dispatcher, Binder, Rescheduler, Yarn];
/// Who follows records.
const READERS: &[Role] = &[Dispatcher, Binder, Scheduler, Rescheduler, Yarn];
/// Who holds leases.
const HOLDERS: &[Role] = &[State, Dispatcher, Binder, Scheduler, Rescheduler, Yarn];

/// What each RPC of the API needs, and those of gRPC's own services, by path and in order of it.
pub const NEEDS: &[(&str, Needs)] = &[
    // The dispatcher evicts what exceeds its limits; the rescheduler moves. People ask those two.
    ("/godel.v1.BindService/Decide", Needs::Roles(&[Scheduler])),
    ("/godel.v1.BindService/EvictRunningUnits", Needs::Roles(&[Dispatcher])),
    ("/godel.v1.BindService/GetBinderStatus", Needs::Person),
    ("/godel.v1.BindService/MoveRunningUnits", Needs::Roles(&[Rescheduler])),
    ("/godel.v1.BudgetService/CreateBudget", Needs::Person),
    ("/godel.v1.BudgetService/DeleteBudget", Needs::Person),
    ("/godel.v1.BudgetService/GetBudget", Needs::Person),
    ("/godel.v1.BudgetService/ListBudgets", Needs::Person),
    ("/godel.v1.BudgetService/UpdateBudget", Needs::Person),
    ("/godel.v1.DispatchService/Attach", Needs::Roles(&[Scheduler])),
    ("/godel.v1.DispatchService/GetDispatcherStatus", Needs::Person),
    ("/godel.v1.DispatchService/GetDrain", Needs::Person),
    ("/godel.v1.DispatchService/ListSchedulers", Needs::Person),
    ("/godel.v1.DispatchService/ResumeEvictions", Needs::Person),
    ("/godel.v1.DispatchService/SetPartitionMode", Needs::Person),
    ("/godel.v1.DispatchService/SetPause", Needs::Person),
    ("/godel.v1.IdentityService/AllowName", Needs::Person),
    ("/godel.v1.IdentityService/CreateJoinToken", Needs::Person),
    ("/godel.v1.IdentityService/DeleteJoinToken", Needs::Person),
    ("/godel.v1.IdentityService/GetCallers", Needs::Roles(HOLDERS)),
    ("/godel.v1.IdentityService/GetTrust", Needs::Anyone),
    ("/godel.v1.IdentityService/IssueToken", Needs::Person),
    // The join token says who joins.
    ("/godel.v1.IdentityService/Join", Needs::Anyone),
    ("/godel.v1.IdentityService/ListIdentities", Needs::Person),
    ("/godel.v1.IdentityService/ListJoinTokens", Needs::Person),
    ("/godel.v1.IdentityService/RenewIdentity", Needs::Roles(&Role::ALL)),
    ("/godel.v1.IdentityService/RevokeIdentity", Needs::Person),
    ("/godel.v1.IdentityService/RotateCa", Needs::Person),
    ("/godel.v1.LogService/ReadLog", Needs::Person),
    ("/godel.v1.LogService/SendLog", Needs::Roles(&[Agent])),
    ("/godel.v1.MemberService/AcquireLease", Needs::Roles(HOLDERS)),
    ("/godel.v1.MemberService/ListMembers", Needs::Identified),
    ("/godel.v1.MemberService/ReleaseLease", Needs::Roles(HOLDERS)),
    ("/godel.v1.MemberService/RenewLease", Needs::Roles(HOLDERS)),
    // An agent deletes the record of its own node when it leaves for good.
    ("/godel.v1.NodeService/DeleteNode", Needs::Person),
    ("/godel.v1.NodeService/DeregisterNode", Needs::PersonOr(&[Agent])),
    ("/godel.v1.NodeService/GetNode", Needs::PersonOr(&[Agent])),
    ("/godel.v1.NodeService/GiveNotice", Needs::Person),
    ("/godel.v1.NodeService/ListNodes", Needs::Person),
    ("/godel.v1.NodeService/ListRunProcesses", Needs::Person),
    ("/godel.v1.NodeService/ListRunUsage", Needs::PersonOr(&[Rescheduler])),
    ("/godel.v1.NodeService/RegisterNode", Needs::Roles(&[Agent])),
    ("/godel.v1.NodeService/Session", Needs::Roles(&[Agent])),
    // The adapter drains nodes for administrators of YARN.
    ("/godel.v1.NodeService/UpdateNode", Needs::PersonOr(&[Yarn])),
    ("/godel.v1.QueueService/ApplyQueues", Needs::Person),
    ("/godel.v1.QueueService/CreatePriorityClass", Needs::Person),
    ("/godel.v1.QueueService/CreateQueue", Needs::Person),
    ("/godel.v1.QueueService/DeletePriorityClass", Needs::Person),
    ("/godel.v1.QueueService/DeleteQueue", Needs::Person),
    ("/godel.v1.QueueService/GetPriorityClass", Needs::Person),
    ("/godel.v1.QueueService/GetQueue", Needs::Person),
    ("/godel.v1.QueueService/ListPriorityClasses", Needs::Person),
    ("/godel.v1.QueueService/ListQueues", Needs::Person),
    ("/godel.v1.QueueService/UpdatePriorityClass", Needs::Person),
    ("/godel.v1.QueueService/UpdateQueue", Needs::Person),
    ("/godel.v1.RescheduleService/AbortMovement", Needs::Person),
    ("/godel.v1.RescheduleService/GetMovement", Needs::Person),
    ("/godel.v1.RescheduleService/GetRescheduleStatus", Needs::Person),
    ("/godel.v1.RescheduleService/ListMovements", Needs::Person),
    ("/godel.v1.RescheduleService/ListPolicies", Needs::Person),
    ("/godel.v1.RescheduleService/MakeRoomFor", Needs::Person),
    ("/godel.v1.RescheduleService/PlanPolicy", Needs::Person),
    ("/godel.v1.RescheduleService/ReportCheckpoint", Needs::Person),
    ("/godel.v1.RescheduleService/ReportTraffic", Needs::Person),
    ("/godel.v1.RescheduleService/RunPolicy", Needs::Person),
    ("/godel.v1.ReservationService/CreateReservation", Needs::Person),
    ("/godel.v1.ReservationService/DeleteReservation", Needs::Person),
    ("/godel.v1.ReservationService/GetReservation", Needs::Person),
    ("/godel.v1.ReservationService/ListReservations", Needs::Person),
    ("/godel.v1.ReservationService/UpdateReservation", Needs::Person),
    ("/godel.v1.SchedulerService/GetSchedulerStatus", Needs::Person),
    ("/godel.v1.SchedulerService/Plan", Needs::Person),
    ("/godel.v1.StateService/GetStoreStatus", Needs::Identified),
    ("/godel.v1.StateService/ListAgentReports", Needs::Person),
    // `godel audit` reads the records themselves. What is sealed or YARN's own, state leaves out by role.
    ("/godel.v1.StateService/ListRecords", Needs::PersonOr(READERS)),
    ("/godel.v1.StateService/ReadFloor", Needs::Person),
    // A backup holds what the store holds.
    ("/godel.v1.StateService/ReadStore", Needs::Person),
    ("/godel.v1.StateService/Transact", Needs::Roles(WRITERS)),
    ("/godel.v1.StateService/Txn", Needs::Roles(WRITERS)),
    ("/godel.v1.StateService/Watch", Needs::PersonOr(READERS)),
    // The adapter submits, changes and ends the units of its applications; the rescheduler asks why a gang waits.
    ("/godel.v1.UnitService/CancelUnit", Needs::PersonOr(&[Yarn])),
    ("/godel.v1.UnitService/DeleteUnit", Needs::Person),
    ("/godel.v1.UnitService/GetUnit", Needs::PersonOr(&[Rescheduler, Yarn])),
    ("/godel.v1.UnitService/ListUnitHistory", Needs::Person),
    ("/godel.v1.UnitService/ListUnits", Needs::Person),
    ("/godel.v1.UnitService/ResumeUnit", Needs::Person),
    ("/godel.v1.UnitService/RetryUnit", Needs::PersonOr(&[Yarn])),
    ("/godel.v1.UnitService/ScaleUnit", Needs::Person),
    ("/godel.v1.UnitService/StopRunningUnits", Needs::Person),
    ("/godel.v1.UnitService/SubmitUnit", Needs::PersonOr(&[Yarn])),
    ("/godel.v1.UnitService/SubmitUnits", Needs::Person),
    ("/godel.v1.UnitService/SuspendUnit", Needs::Person),
    ("/godel.v1.UnitService/UpdateUnit", Needs::PersonOr(&[Yarn])),
    ("/godel.v1.UnitService/WatchUnits", Needs::Person),
    ("/godel.v1.YarnService/Allocate", Needs::Person),
    ("/godel.v1.YarnService/FinishMaster", Needs::Person),
    ("/godel.v1.YarnService/GetApplication", Needs::Person),
    ("/godel.v1.YarnService/KillApplication", Needs::Person),
    ("/godel.v1.YarnService/ListApplications", Needs::Person),
    ("/godel.v1.YarnService/ListAttempts", Needs::Person),
    ("/godel.v1.YarnService/ListContainers", Needs::Person),
    ("/godel.v1.YarnService/ListYarnQueues", Needs::Person),
    ("/godel.v1.YarnService/MoveApplication", Needs::Person),
    ("/godel.v1.YarnService/NewApplication", Needs::Person),
    ("/godel.v1.YarnService/RegisterMaster", Needs::Person),
    ("/godel.v1.YarnService/SubmitApplication", Needs::Person),
    ("/godel.v1.YarnService/UpdateApplication", Needs::Person),
    // Probes say who they are no more than those of `/healthz`.
    ("/grpc.health.v1.Health/Check", Needs::Anyone),
    ("/grpc.health.v1.Health/List", Needs::Anyone),
    ("/grpc.health.v1.Health/Watch", Needs::Anyone),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Needs::Identified),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Needs::Identified),
];

/// What a call of `path`, as `/godel.v1.UnitService/SubmitUnit`, needs. A path that nobody serves needs a person.
pub fn needs_of(path: &str) -> Needs {
    let found = NEEDS.binary_search_by_key(&path, |(known, _)| known);
    found.map_or(Needs::Person, |at| NEEDS[at].1)
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallerRefusal {
    /// Who calls is not known.
    #[error(
        "{path} needs {needs}, and the call came with neither a certificate nor a token; use the context that `godel up` or the \
         administrator of the cluster has written"
    )]
    Unknown {
        /// Of the call.
        path: String,
        /// What it needs.
        needs: Needs,
    },
    /// Who calls may not.
    #[error("{path} needs {needs}; {caller} called")]
    NotAllowed {
        /// Of the call.
        path: String,
        /// What it needs.
        needs: Needs,
        /// Who called.
        caller: Caller,
    },
    /// An expired leaf does not suffice for the call.
    #[error(
        "the certificate of {caller} has expired; until it is renewed, its holder keeps its session and the leases that it holds, and begins \
         nothing new"
    )]
    Expired {
        /// Who called.
        caller: Caller,
    },
    /// The leaf does not count.
    #[error("the certificate of {caller} is refused: {why}")]
    Refused {
        /// Who called.
        caller: Caller,
        /// Why it does not count.
        why: LeafRefusal,
    },
}

impl CallerRefusal {
    /// Whether who calls is not known (`UNAUTHENTICATED`), other than not allowed to (`PERMISSION_DENIED`).
    pub fn is_unauthenticated(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::Expired { .. } | Self::Refused { .. } => true,
            Self::NotAllowed { .. } => false,
        }
    }
}

/// Whether `caller` may call `path`. `standing` is how its leaf is judged at this moment, [`LeafStanding::Valid`] for callers without one.
///
/// A call that needs nothing is open to everyone, so also to those whose leaf counts no more: that is how they come back.
///
/// # Errors
/// Why it may not.
pub fn judge_call(path: &str, caller: &Caller, standing: LeafStanding) -> Result<(), CallerRefusal> {
    let needs = needs_of(path);
    if needs == Needs::Anyone || *caller == Caller::Unjudged {
        return Ok(());
    }
    match standing {
        LeafStanding::Refused(why) => return Err(CallerRefusal::Refused { caller: caller.clone(), why }),
        LeafStanding::Expired if !leaves::may_call_expired(path) => {
            return Err(CallerRefusal::Expired { caller: caller.clone() });
        }
        LeafStanding::Expired | LeafStanding::Valid => {}
    }
    let is_person = caller.person().is_some();
    let has_role = |roles: &[Role]| caller.role().is_some_and(|role| roles.contains(&role));
    let is_allowed = match needs {
        Needs::Anyone => true,
        Needs::Identified => *caller != Caller::Anonymous,
        Needs::Person => is_person,
        Needs::Roles(roles) => has_role(roles),
        Needs::PersonOr(roles) => is_person || has_role(roles),
    };
    match (is_allowed, caller) {
        (true, _) => Ok(()),
        (false, Caller::Anonymous) => Err(CallerRefusal::Unknown { path: path.to_owned(), needs }),
        (false, caller) => {
            Err(CallerRefusal::NotAllowed { path: path.to_owned(), needs, caller: caller.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> Caller {
        Caller::Agent { names: "n1".parse().unwrap() }
    }

    fn member(role: Role) -> Caller {
        Caller::Member { role, name: "x".to_owned() }
    }

    /// Who may call, with a leaf that is valid: `P` a person, `A` an agent, `-` nobody known, and the first letters of roles, `R` being the
    /// rescheduler and `C` a scheduler.
    fn may(path: &str) -> String {
        let callers = [
            ('P', Caller::admin()),
            ('A', agent()),
            ('S', member(State)),
            ('D', member(Dispatcher)),
            ('B', member(Binder)),
            ('C', member(Scheduler)),
            ('R', member(Rescheduler)),
            ('Y', member(Yarn)),
            ('-', Caller::Anonymous),
        ];
        let allowed =
            callers.iter().filter(|(_, caller)| judge_call(path, caller, LeafStanding::Valid).is_ok());
        allowed.map(|(letter, _)| letter).collect()
    }

    #[test]
    fn calls_are_bound_to_roles() {
        for (path, allowed) in [
            ("/godel.v1.StateService/Txn", "DBRY"),
            ("/godel.v1.StateService/Transact", "DBRY"),
            ("/godel.v1.StateService/Watch", "PDBCRY"),
            ("/godel.v1.StateService/ReadStore", "P"),
            ("/godel.v1.MemberService/AcquireLease", "SDBCRY"),
            ("/godel.v1.MemberService/ListMembers", "PASDBCRY"),
            ("/godel.v1.NodeService/Session", "A"),
            ("/godel.v1.NodeService/DeregisterNode", "PA"),
            ("/godel.v1.DispatchService/Attach", "C"),
            ("/godel.v1.BindService/Decide", "C"),
            ("/godel.v1.BindService/EvictRunningUnits", "D"),
            ("/godel.v1.BindService/MoveRunningUnits", "R"),
            ("/godel.v1.UnitService/SubmitUnit", "PY"),
            ("/godel.v1.UnitService/GetUnit", "PRY"),
            ("/godel.v1.QueueService/DeleteQueue", "P"),
            ("/grpc.health.v1.Health/Check", "PASDBCRY-"),
            ("/godel.v1.NoService/NoCall", "P"),
            ("", "P"),
        ] {
            assert_eq!(may(path), allowed, "{path}");
        }
    }

    #[test]
    fn plain_text_that_may_do_everything_may() {
        for (path, _) in NEEDS {
            assert_eq!(judge_call(path, &Caller::Unjudged, LeafStanding::Valid), Ok(()));
        }
    }

    #[test]
    fn the_table_is_in_order() {
        assert!(NEEDS.is_sorted_by(|(before, _), (after, _)| before < after));
        for (path, needs) in NEEDS {
            assert_eq!(needs_of(path), *needs);
        }
    }

    #[test]
    fn an_expired_leaf_does_what_its_holder_is_already() {
        let callers = || Role::ALL.into_iter().filter(|role| role.is_server()).map(member).chain([agent()]);
        let expired: Vec<&str> = NEEDS
            .iter()
            .filter(|(path, needs)| {
                *needs != Needs::Anyone
                    && callers().any(|caller| judge_call(path, &caller, LeafStanding::Expired).is_ok())
            })
            .map(|(path, _)| *path)
            .collect();
        assert_eq!(
            expired,
            [
                "/godel.v1.BindService/Decide",
                "/godel.v1.BindService/EvictRunningUnits",
                "/godel.v1.BindService/MoveRunningUnits",
                "/godel.v1.DispatchService/Attach",
                "/godel.v1.IdentityService/GetCallers",
                "/godel.v1.IdentityService/RenewIdentity",
                "/godel.v1.MemberService/ListMembers",
                "/godel.v1.MemberService/ReleaseLease",
                "/godel.v1.MemberService/RenewLease",
                "/godel.v1.NodeService/Session",
                "/godel.v1.StateService/GetStoreStatus",
                "/godel.v1.StateService/ListRecords",
                "/godel.v1.StateService/Transact",
                "/godel.v1.StateService/Txn",
                "/godel.v1.StateService/Watch",
            ]
        );
        let refusal =
            judge_call("/godel.v1.NodeService/RegisterNode", &agent(), LeafStanding::Expired).unwrap_err();
        assert!(refusal.is_unauthenticated());
        assert!(refusal.to_string().starts_with("the certificate of agent/n1 has expired; "), "{refusal}");
        // Nobody begins to lead: who has lost a lease renews its leaf first.
        let acquire =
            judge_call("/godel.v1.MemberService/AcquireLease", &member(Binder), LeafStanding::Expired);
        assert!(matches!(acquire, Err(CallerRefusal::Expired { .. })));
        // A leader goes on with all that its lease is for.
        for (role, path) in [
            (Binder, "/godel.v1.StateService/Transact"),
            (Binder, "/godel.v1.StateService/Watch"),
            (Dispatcher, "/godel.v1.BindService/EvictRunningUnits"),
            (Scheduler, "/godel.v1.DispatchService/Attach"),
            (Scheduler, "/godel.v1.StateService/ListRecords"),
        ] {
            assert_eq!(judge_call(path, &member(role), LeafStanding::Expired), Ok(()), "{role} {path}");
        }
        // Expired or not, what is bound to other roles stays so.
        let refusal = judge_call("/godel.v1.NodeService/Session", &member(Binder), LeafStanding::Expired);
        assert!(matches!(refusal, Err(CallerRefusal::NotAllowed { .. })));
    }

    #[test]
    fn a_refused_leaf_does_nothing_but_what_anyone_may() {
        let refused = LeafStanding::Refused(LeafRefusal::Revoked);
        for (path, needs) in NEEDS {
            let allowed = judge_call(path, &agent(), refused).is_ok();
            assert_eq!(allowed, *needs == Needs::Anyone, "{path}");
        }
    }

    #[test]
    fn a_refusal_says_what_the_call_needs() {
        let refused = |path, caller| judge_call(path, &caller, LeafStanding::Valid).unwrap_err();
        let refusal = refused("/godel.v1.StateService/Txn", agent());
        let needs = "a certificate of role dispatcher, binder, rescheduler or yarn";
        assert_eq!(refusal.to_string(), format!("/godel.v1.StateService/Txn needs {needs}; agent/n1 called"));
        assert!(!refusal.is_unauthenticated());
        let refusal = refused("/godel.v1.UnitService/GetUnit", Caller::Anonymous);
        let needs = "a person's token or a certificate of role rescheduler or yarn";
        assert!(refusal.to_string().contains(needs), "{refusal}");
        assert!(refusal.is_unauthenticated());
    }
}
