//! What each RPC needs of its caller.
//!
//! What members and agents do among themselves is theirs alone; of calls that people make, the table has the least role of the person
//! ([`crate::permission`]). This says who may call at all. What a call is about, the service judges that answers it: whose records, nodes and
//! leases ([`crate::lease_rights`], [`Caller::speaks_for`]), and in which namespace ([`crate::permission::allow`]).

mod http;
mod yarn;

use std::fmt;

use self::yarn::APPLICATIONS;
pub(crate) use self::yarn::is_of_yarn;
pub use self::{
    http::{HTTP_NEEDS, page_of},
    yarn::YARN_NEEDS,
};
use crate::{
    caller::Caller,
    leaves::{self, LeafRefusal, LeafStanding},
    names::Role::{self, Agent, Binder, Dispatcher, Rescheduler, Scheduler, State, Yarn},
    permission::{
        CallObject, ObjectScope, PermissionRefusal,
        PersonRole::{self, Admin, Operator, User, Viewer},
        Principal,
    },
};

/// What a call needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Anyone,
    /// A leaf or a token, of whomever.
    Identified,
    /// A person of at least this role.
    Person(PersonRole, ObjectScope),
    /// A leaf of one of these roles.
    Roles(&'static [Role]),
    /// A person of at least this role, or a leaf of one of those.
    PersonOr(PersonRole, ObjectScope, &'static [Role]),
    /// The token of an application's master.
    Master,
}

impl Needs {
    /// The least role of a person, and what the person is bound to; `None`: no person may call.
    pub fn of_persons(self) -> Option<(PersonRole, ObjectScope)> {
        match self {
            Self::Anyone | Self::Identified => Some((Viewer, ObjectScope::Cluster)),
            Self::Person(least, scope) | Self::PersonOr(least, scope, _) => Some((least, scope)),
            Self::Roles(_) | Self::Master => None,
        }
    }

    /// The roles of leaves that may call; `None`: every leaf.
    pub fn of_leaves(self) -> Option<&'static [Role]> {
        match self {
            Self::Anyone | Self::Identified => None,
            Self::Person(..) | Self::Master => Some(&[]),
            Self::Roles(roles) | Self::PersonOr(_, _, roles) => Some(roles),
        }
    }
}

/// What a call needs, in words.
impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roles = match self {
            Self::Anyone => return f.write_str("nothing"),
            Self::Master => return f.write_str("the token of an application's master"),
            Self::Identified => return f.write_str("a certificate of this cluster or a person's token"),
            Self::Person(least, _) => return write!(f, "a person's token of role {least}"),
            Self::Roles(roles) => roles,
            Self::PersonOr(least, _, roles) => {
                write!(f, "a person's token of role {least} or ")?;
                roles
            }
        };
        f.write_str("a certificate of role ")?;
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

/// Whoever reads.
const READ: Needs = Needs::Person(Viewer, ObjectScope::Cluster);
/// Whoever reads, and of units those of its own namespaces.
const SEE: Needs = Needs::Person(Viewer, ObjectScope::Sight);
/// Whoever changes units, in its own namespaces.
const UNITS: Needs = Needs::Person(User, ObjectScope::Namespace);
/// Whoever runs the cluster.
const OPERATE: Needs = Needs::Person(Operator, ObjectScope::Cluster);
/// Whoever says what others may do.
const ADMINISTER: Needs = Needs::Person(Admin, ObjectScope::Cluster);
/// Whoever asks for itself, and administrators for everybody.
const OWN: Needs = Needs::Person(Viewer, ObjectScope::Own);

/// Units of the role `user`, and of leaves of these roles.
const fn units_or(roles: &'static [Role]) -> Needs {
    Needs::PersonOr(User, ObjectScope::Namespace, roles)
}

/// Whoever reads, of units those of its own namespaces, and leaves of these roles.
const fn see_or(roles: &'static [Role]) -> Needs {
    Needs::PersonOr(Viewer, ObjectScope::Sight, roles)
}

/// Persons of at least this role, and leaves of those.
const fn person_or(least: PersonRole, roles: &'static [Role]) -> Needs {
    Needs::PersonOr(least, ObjectScope::Cluster, roles)
}

/// What each RPC of the API needs, and those of gRPC's own services, by path and in order of it.
pub const NEEDS: &[(&str, Needs)] = &[
    // The dispatcher evicts what exceeds its limits; the rescheduler moves. People ask those two.
    ("/godel.v1.BindService/Decide", Needs::Roles(&[Scheduler])),
    ("/godel.v1.BindService/EvictRunningUnits", Needs::Roles(&[Dispatcher])),
    ("/godel.v1.BindService/GetBinderStatus", READ),
    ("/godel.v1.BindService/MoveRunningUnits", Needs::Roles(&[Rescheduler])),
    ("/godel.v1.BudgetService/CreateBudget", ADMINISTER),
    ("/godel.v1.BudgetService/DeleteBudget", ADMINISTER),
    ("/godel.v1.BudgetService/GetBudget", SEE),
    ("/godel.v1.BudgetService/ListBudgets", SEE),
    ("/godel.v1.BudgetService/UpdateBudget", ADMINISTER),
    // Of others, everybody sees what was done in its own namespaces.
    ("/godel.v1.ChangeService/ListChanges", READ),
    ("/godel.v1.ChangeService/ReportCalls", Needs::Roles(READERS)),
    ("/godel.v1.ChangeService/WatchChanges", READ),
    ("/godel.v1.DispatchService/Attach", Needs::Roles(&[Scheduler])),
    ("/godel.v1.DispatchService/GetDispatcherStatus", READ),
    ("/godel.v1.DispatchService/GetDrain", SEE),
    ("/godel.v1.DispatchService/ListSchedulers", READ),
    ("/godel.v1.DispatchService/ResumeEvictions", OPERATE),
    ("/godel.v1.DispatchService/SetPartitionMode", OPERATE),
    ("/godel.v1.DispatchService/SetPause", OPERATE),
    ("/godel.v1.IdentityService/AllowName", ADMINISTER),
    ("/godel.v1.IdentityService/CanI", READ),
    ("/godel.v1.IdentityService/CreateJoinToken", ADMINISTER),
    ("/godel.v1.IdentityService/CreateToken", ADMINISTER),
    ("/godel.v1.IdentityService/DeleteJoinToken", ADMINISTER),
    ("/godel.v1.IdentityService/DeletePrincipal", ADMINISTER),
    ("/godel.v1.IdentityService/GetCallers", Needs::Roles(HOLDERS)),
    ("/godel.v1.IdentityService/GetTrust", Needs::Anyone),
    ("/godel.v1.IdentityService/IssueToken", READ),
    // The join token says who joins.
    ("/godel.v1.IdentityService/Join", Needs::Anyone),
    ("/godel.v1.IdentityService/ListIdentities", ADMINISTER),
    ("/godel.v1.IdentityService/ListJoinTokens", ADMINISTER),
    ("/godel.v1.IdentityService/ListPrincipals", ADMINISTER),
    ("/godel.v1.IdentityService/ListTokens", OWN),
    ("/godel.v1.IdentityService/RenewIdentity", Needs::Roles(&Role::ALL)),
    ("/godel.v1.IdentityService/RevokeIdentity", ADMINISTER),
    ("/godel.v1.IdentityService/RevokeToken", OWN),
    ("/godel.v1.IdentityService/RotateCa", ADMINISTER),
    ("/godel.v1.IdentityService/SetPrincipal", ADMINISTER),
    ("/godel.v1.IdentityService/WhoAmI", READ),
    ("/godel.v1.LogService/ReadLog", SEE),
    ("/godel.v1.LogService/SendLog", Needs::Roles(&[Agent])),
    ("/godel.v1.MemberService/AcquireLease", Needs::Roles(HOLDERS)),
    ("/godel.v1.MemberService/ListMembers", Needs::Identified),
    ("/godel.v1.MemberService/ReleaseLease", Needs::Roles(HOLDERS)),
    ("/godel.v1.MemberService/RenewLease", Needs::Roles(HOLDERS)),
    ("/godel.v1.MemberService/WatchLeader", Needs::Identified),
    // An agent deletes the record of its own node when it leaves for good.
    ("/godel.v1.NodeService/DeleteNode", OPERATE),
    ("/godel.v1.NodeService/DeregisterNode", person_or(Operator, &[Agent])),
    ("/godel.v1.NodeService/GetNode", see_or(&[Agent])),
    ("/godel.v1.NodeService/GiveNotice", OPERATE),
    ("/godel.v1.NodeService/ListNodes", READ),
    ("/godel.v1.NodeService/ListRunProcesses", OPERATE),
    ("/godel.v1.NodeService/ListRunUsage", see_or(&[Rescheduler])),
    ("/godel.v1.NodeService/RegisterNode", Needs::Roles(&[Agent])),
    ("/godel.v1.NodeService/Session", Needs::Roles(&[Agent])),
    // The adapter drains nodes for administrators of YARN.
    ("/godel.v1.NodeService/UpdateNode", person_or(Operator, &[Yarn])),
    ("/godel.v1.QueueService/ApplyQueues", ADMINISTER),
    ("/godel.v1.QueueService/CreatePriorityClass", ADMINISTER),
    ("/godel.v1.QueueService/CreateQueue", ADMINISTER),
    ("/godel.v1.QueueService/DeletePriorityClass", ADMINISTER),
    ("/godel.v1.QueueService/DeleteQueue", ADMINISTER),
    ("/godel.v1.QueueService/GetPriorityClass", READ),
    ("/godel.v1.QueueService/GetQueue", READ),
    ("/godel.v1.QueueService/ListPriorityClasses", READ),
    ("/godel.v1.QueueService/ListQueues", READ),
    ("/godel.v1.QueueService/UpdatePriorityClass", ADMINISTER),
    ("/godel.v1.QueueService/UpdateQueue", ADMINISTER),
    ("/godel.v1.RescheduleService/AbortMovement", OPERATE),
    ("/godel.v1.RescheduleService/GetMovement", SEE),
    ("/godel.v1.RescheduleService/GetRescheduleStatus", READ),
    ("/godel.v1.RescheduleService/ListMovements", SEE),
    ("/godel.v1.RescheduleService/ListPolicies", SEE),
    ("/godel.v1.RescheduleService/MakeRoomFor", OPERATE),
    ("/godel.v1.RescheduleService/PlanPolicy", OPERATE),
    ("/godel.v1.RescheduleService/ReportCheckpoint", UNITS),
    ("/godel.v1.RescheduleService/ReportTraffic", OPERATE),
    ("/godel.v1.RescheduleService/RunPolicy", OPERATE),
    ("/godel.v1.ReservationService/CreateReservation", ADMINISTER),
    ("/godel.v1.ReservationService/DeleteReservation", ADMINISTER),
    ("/godel.v1.ReservationService/GetReservation", SEE),
    ("/godel.v1.ReservationService/ListReservations", SEE),
    ("/godel.v1.ReservationService/UpdateReservation", ADMINISTER),
    ("/godel.v1.SchedulerService/GetSchedulerStatus", READ),
    ("/godel.v1.SchedulerService/Plan", UNITS),
    ("/godel.v1.StateService/GetRevision", Needs::Roles(&[State])),
    ("/godel.v1.StateService/GetStoreStatus", Needs::Identified),
    ("/godel.v1.StateService/ListAgentReports", READ),
    // `godel audit` reads the records themselves. What is sealed or YARN's own, state leaves out by role.
    ("/godel.v1.StateService/ListRecords", person_or(Operator, READERS)),
    ("/godel.v1.StateService/ReadFloor", ADMINISTER),
    // A backup holds what the store holds.
    ("/godel.v1.StateService/ReadStore", ADMINISTER),
    ("/godel.v1.StateService/Transact", Needs::Roles(WRITERS)),
    ("/godel.v1.StateService/Txn", Needs::Roles(WRITERS)),
    ("/godel.v1.StateService/Watch", person_or(Operator, READERS)),
    // The adapter submits, changes and ends the units of its applications; the rescheduler asks why a gang waits.
    ("/godel.v1.UnitService/CancelUnit", units_or(&[Yarn])),
    ("/godel.v1.UnitService/DeleteUnit", UNITS),
    ("/godel.v1.UnitService/GetUnit", see_or(&[Rescheduler, Yarn])),
    ("/godel.v1.UnitService/ListUnitHistory", SEE),
    ("/godel.v1.UnitService/ListUnits", SEE),
    ("/godel.v1.UnitService/ResumeUnit", UNITS),
    ("/godel.v1.UnitService/RetryUnit", units_or(&[Yarn])),
    ("/godel.v1.UnitService/ScaleUnit", UNITS),
    ("/godel.v1.UnitService/StopRunningUnits", UNITS),
    ("/godel.v1.UnitService/SubmitUnit", units_or(&[Yarn])),
    ("/godel.v1.UnitService/SubmitUnits", UNITS),
    ("/godel.v1.UnitService/SuspendUnit", UNITS),
    ("/godel.v1.UnitService/UpdateUnit", units_or(&[Yarn])),
    ("/godel.v1.UnitService/WatchUnits", SEE),
    ("/godel.v1.YarnService/Allocate", APPLICATIONS),
    ("/godel.v1.YarnService/FinishMaster", APPLICATIONS),
    ("/godel.v1.YarnService/GetApplication", READ),
    ("/godel.v1.YarnService/KillApplication", APPLICATIONS),
    ("/godel.v1.YarnService/ListApplications", READ),
    ("/godel.v1.YarnService/ListAttempts", READ),
    ("/godel.v1.YarnService/ListContainers", READ),
    ("/godel.v1.YarnService/ListYarnQueues", READ),
    ("/godel.v1.YarnService/MoveApplication", APPLICATIONS),
    ("/godel.v1.YarnService/NewApplication", APPLICATIONS),
    ("/godel.v1.YarnService/RegisterMaster", APPLICATIONS),
    ("/godel.v1.YarnService/SubmitApplication", APPLICATIONS),
    ("/godel.v1.YarnService/UpdateApplication", APPLICATIONS),
    // Probes say who they are no more than those of `/healthz`.
    ("/grpc.health.v1.Health/Check", Needs::Anyone),
    ("/grpc.health.v1.Health/List", Needs::Anyone),
    ("/grpc.health.v1.Health/Watch", Needs::Anyone),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Needs::Identified),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Needs::Identified),
];

/// What a call of `path`, as `/godel.v1.UnitService/SubmitUnit`, or of a page, as `GET /metrics`, needs. What nobody serves needs an
/// administrator.
pub fn needs_of(path: &str) -> Needs {
    row_of(path).map_or(ADMINISTER, |(_, needs)| needs)
}

/// The path as the table has it; `None`: nobody serves it.
pub fn known_path(path: &str) -> Option<&'static str> {
    row_of(path).map(|(known, _)| known)
}

fn row_of(path: &str) -> Option<(&'static str, Needs)> {
    let table = match path {
        _ if is_of_yarn(path) => YARN_NEEDS,
        _ if path.starts_with('/') => NEEDS,
        _ => HTTP_NEEDS,
    };
    let found = table.binary_search_by_key(&path, |(known, _)| known);
    found.ok().map(|at| table[at])
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
    /// The person may not.
    #[error(transparent)]
    Permission(#[from] PermissionRefusal),
    /// Nothing is recorded of the person.
    #[error(
        "there is no principal {name}: it was deleted, or made a moment ago; call again in a few seconds, or ask an administrator \
         (`godel token create {name}`)"
    )]
    NoPrincipal {
        /// What the person is called.
        name: String,
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
            Self::Unknown { .. } | Self::NoPrincipal { .. } | Self::Expired { .. } | Self::Refused { .. } => {
                true
            }
            Self::NotAllowed { .. } | Self::Permission(_) => false,
        }
    }
}

/// Whether `caller` may call `path`. `principal` is what is recorded of it if it is a person. `standing` is how its leaf is judged at this moment,
/// [`LeafStanding::Valid`] for callers without one.
///
/// A call that needs nothing is open to everyone, so also to those whose leaf counts no more: that is how they come back.
///
/// # Errors
/// Why it may not.
pub fn judge_call(
    path: &str,
    caller: &Caller,
    principal: Option<&Principal>,
    standing: LeafStanding,
) -> Result<(), CallerRefusal> {
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
    match caller {
        Caller::Unjudged => Ok(()),
        Caller::Anonymous => Err(CallerRefusal::Unknown { path: path.to_owned(), needs }),
        Caller::Person { name } => {
            let none = || CallerRefusal::NoPrincipal { name: name.clone() };
            let principal = principal.filter(|principal| principal.name == *name).ok_or_else(none)?;
            Ok(PermissionRefusal::judge(principal, path, &CallObject::default())?)
        }
        Caller::Member { .. } | Caller::Agent { .. } => {
            let has_role = |roles: &[Role]| caller.role().is_some_and(|role| roles.contains(&role));
            if needs.of_leaves().is_none_or(has_role) {
                return Ok(());
            }
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

    /// As [`judge_call`]; a person is the administrator.
    fn judge_call(path: &str, caller: &Caller, standing: LeafStanding) -> Result<(), CallerRefusal> {
        super::judge_call(path, caller, Some(&Principal::admin()), standing)
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
        for table in [NEEDS, HTTP_NEEDS] {
            assert!(table.is_sorted_by(|(before, _), (after, _)| before < after));
            for (path, needs) in table {
                assert_eq!(needs_of(path), *needs);
            }
        }
    }

    #[test]
    fn pages_are_known_by_method_and_path() {
        for (method, path, page) in [
            ("GET", "/metrics", "GET /metrics"),
            ("HEAD", "/metrics", "GET /metrics"),
            ("GET", "/healthz", "GET /healthz"),
            ("POST", "/policies/spread/run", "POST /policies/{name}/run"),
        ] {
            assert_eq!(page_of(method, path), page);
            assert!(HTTP_NEEDS.iter().any(|(known, _)| *known == page), "{page}");
        }
        for (method, path) in
            [("POST", "/metrics"), ("GET", "/"), ("DELETE", "/policies/spread/run"), ("POST", "/policies/x")]
        {
            assert_eq!(needs_of(page_of(method, path)), ADMINISTER, "{method} {path}");
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
                "/godel.v1.MemberService/WatchLeader",
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
    fn a_person_is_judged_by_what_is_recorded_of_it() {
        let ann = Caller::Person { name: "ann".to_owned() };
        let judge = |path, principal| super::judge_call(path, &ann, principal, LeafStanding::Valid);
        let (list, cancel) = ("/godel.v1.UnitService/ListUnits", "/godel.v1.UnitService/CancelUnit");
        let other = Principal::admin();
        for nothing in [None, Some(&other)] {
            let refusal = judge(list, nothing).unwrap_err();
            assert!(refusal.is_unauthenticated());
            assert!(refusal.to_string().starts_with("there is no principal ann: "), "{refusal}");
            assert_eq!(judge("/grpc.health.v1.Health/Check", nothing), Ok(()));
        }
        let viewer = Principal::new("ann", Viewer);
        assert_eq!(judge(list, Some(&viewer)), Ok(()));
        let refusal = judge(cancel, Some(&viewer)).unwrap_err();
        assert!(!refusal.is_unauthenticated());
        let expected = format!(
            "{cancel} needs role user; ann has role viewer: an administrator may change that (`godel principal set ann --role user`)"
        );
        assert_eq!(refusal.to_string(), expected);
    }

    #[test]
    fn a_refusal_says_what_the_call_needs() {
        let refused = |path, caller| judge_call(path, &caller, LeafStanding::Valid).unwrap_err();
        let refusal = refused("/godel.v1.StateService/Txn", agent());
        let needs = "a certificate of role dispatcher, binder, rescheduler or yarn";
        assert_eq!(refusal.to_string(), format!("/godel.v1.StateService/Txn needs {needs}; agent/n1 called"));
        assert!(!refusal.is_unauthenticated());
        let refusal = refused("/godel.v1.NodeService/Session", Caller::admin());
        let needs = "a certificate of role agent";
        let expected = format!("/godel.v1.NodeService/Session needs {needs}; admin is a person");
        assert_eq!(refusal.to_string(), expected);
        let refusal = refused("/godel.v1.UnitService/GetUnit", Caller::Anonymous);
        let needs = "a person's token of role viewer or a certificate of role rescheduler or yarn";
        assert!(refusal.to_string().contains(needs), "{refusal}");
        assert!(refusal.is_unauthenticated());
    }
}
