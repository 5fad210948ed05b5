//! Which member answers a call that comes to state: state forwards what is for clients, so that one address is enough.

use godel_base::time::Millis;
use godel_domain::change::Lease;

use crate::leases::{Leases, STATES, Shown};

/// A part of the control plane that answers calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingPart {
    /// State itself.
    State,
    /// The leading dispatcher.
    Dispatcher,
    /// The leading binder.
    Binder,
    /// Any scheduler, or the one that the caller names.
    Scheduler,
    /// The leading YARN adapter.
    Yarn,
    /// The leading rescheduler.
    Rescheduler,
}

/// Services and the parts that serve them.
pub const SERVICES: [(&str, ServingPart); 15] = [
    ("godel.v1.StateService", ServingPart::State),
    ("godel.v1.NodeService", ServingPart::State),
    ("godel.v1.MemberService", ServingPart::State),
    ("godel.v1.LogService", ServingPart::State),
    ("godel.v1.IdentityService", ServingPart::State),
    ("godel.v1.ChangeService", ServingPart::State),
    ("godel.v1.UnitService", ServingPart::Dispatcher),
    ("godel.v1.QueueService", ServingPart::Dispatcher),
    ("godel.v1.BudgetService", ServingPart::Dispatcher),
    ("godel.v1.ReservationService", ServingPart::Dispatcher),
    ("godel.v1.DispatchService", ServingPart::Dispatcher),
    ("godel.v1.BindService", ServingPart::Binder),
    ("godel.v1.SchedulerService", ServingPart::Scheduler),
    ("godel.v1.YarnService", ServingPart::Yarn),
    ("godel.v1.RescheduleService", ServingPart::Rescheduler),
];

/// Methods that members call among themselves, of services that clients call too.
const BETWEEN_MEMBERS: [&str; 4] = [
    "godel.v1.DispatchService/Attach",
    "godel.v1.BindService/Decide",
    "godel.v1.BindService/EvictRunningUnits",
    "godel.v1.BindService/MoveRunningUnits",
];

/// What becomes of a call that comes to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// It is for a member of that part.
    To(ServingPart),
    /// Members make it directly.
    Refused(ServingPart),
    /// State answers it, or nobody does.
    Here,
}

/// What becomes of a call of `path`, as `/godel.v1.UnitService/SubmitUnit`.
pub fn forwarding(path: &str) -> Forwarding {
    let method = path.strip_prefix('/').unwrap_or(path);
    match part_of(method.split('/').next().unwrap_or_default()) {
        None | Some(ServingPart::State) => Forwarding::Here,
        Some(part) if BETWEEN_MEMBERS.contains(&method) => Forwarding::Refused(part),
        Some(part) => Forwarding::To(part),
    }
}

/// Calls that a state which follows answers itself, from what it has read: of records alone. All others it passes on to the leader.
const OF_FOLLOWERS: [&str; 7] = [
    "/godel.v1.ChangeService/ListChanges",
    "/godel.v1.ChangeService/WatchChanges",
    "/godel.v1.MemberService/WatchLeader",
    "/godel.v1.StateService/ListRecords",
    "/godel.v1.StateService/ReadFloor",
    "/godel.v1.StateService/ReadStore",
    "/godel.v1.StateService/Watch",
];
/// Says who leads: answered by every state, at any time.
const WATCH_LEADER: &str = "/godel.v1.MemberService/WatchLeader";
/// Says how a state fares, and why nothing is committed.
const STATUS: &str = "/godel.v1.StateService/GetStoreStatus";

/// What becomes of a call of `path` that comes to a state which follows another one.
pub fn forwarding_of_follower(path: &str) -> Forwarding {
    match forwarding(path) {
        Forwarding::Here if is_of_state(path) && !OF_FOLLOWERS.contains(&path) => {
            Forwarding::To(ServingPart::State)
        }
        other => other,
    }
}

/// Whether the answer to a call of `path` depends on who leads, so that a state gives it only while it is certain to lead, or to have read what the leader has.
pub fn needs_leader(path: &str) -> bool {
    is_of_state(path) && ![WATCH_LEADER, STATUS].contains(&path)
}

/// Whether a call of `path` reads records, and nothing that the leader alone knows.
pub fn reads_records(path: &str) -> bool {
    OF_FOLLOWERS.contains(&path) && path != WATCH_LEADER
}

/// Whether the leader asks what keeps the store before it answers a call of `path`: the answer must have all that another leader may have answered
/// meanwhile.
pub fn confirms_leader(path: &str) -> bool {
    reads_records(path) || path == "/godel.v1.StateService/GetRevision"
}

/// Whether state serves the service of `path`.
fn is_of_state(path: &str) -> bool {
    let service = path.strip_prefix('/').unwrap_or(path).split('/').next().unwrap_or_default();
    part_of(service) == Some(ServingPart::State)
}

/// Which part serves a service.
pub fn part_of(service: &str) -> Option<ServingPart> {
    SERVICES.iter().find(|(known, _)| *known == service).map(|(_, part)| *part)
}

/// Nobody can answer: nobody holds the lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody holds lease {lease}")]
pub struct NoMember {
    /// The lease, or `scheduler/` if any scheduler would do.
    pub lease: String,
}

/// Which member answers: whoever leads; of schedulers the one called `scheduler`, or without a name the one that renewed
/// its lease last, because one that has died has not. Of several the first by name.
///
/// # Errors
/// Nobody holds the lease.
pub fn member(
    part: ServingPart,
    scheduler: Option<&str>,
    leases: &Leases,
    now: Millis,
) -> Result<Lease, NoMember> {
    let lease = match (part, scheduler) {
        (ServingPart::State, _) => STATES.to_owned(),
        (ServingPart::Dispatcher, _) => "dispatcher".to_owned(),
        (ServingPart::Binder, _) => "binder".to_owned(),
        (ServingPart::Yarn, _) => "yarn".to_owned(),
        (ServingPart::Rescheduler, _) => "rescheduler".to_owned(),
        (ServingPart::Scheduler, Some(name)) => format!("scheduler/{name}"),
        (ServingPart::Scheduler, None) => "scheduler/".to_owned(),
    };
    let is_any = part == ServingPart::State || (part == ServingPart::Scheduler && scheduler.is_none());
    let age_ms = |shown: &Shown<'_>| u64::from(shown.lease.ttl_ms).saturating_sub(shown.remaining_ms);
    let found = leases
        .list(&lease, now)
        .filter(|shown| (is_any || shown.lease.name == lease) && shown.remaining_ms > 0)
        .min_by_key(age_ms)
        .map(|shown| shown.lease.clone());
    found.ok_or(NoMember { lease })
}

#[cfg(test)]
mod tests {
    use godel_base::ids::Epoch;

    use super::*;

    #[test]
    fn calls_of_clients_are_forwarded_and_no_others() {
        for (path, expected) in [
            ("/godel.v1.UnitService/SubmitUnit", Forwarding::To(ServingPart::Dispatcher)),
            ("/godel.v1.UnitService/SubmitUnits", Forwarding::To(ServingPart::Dispatcher)),
            ("/godel.v1.DispatchService/SetPause", Forwarding::To(ServingPart::Dispatcher)),
            ("/godel.v1.DispatchService/Attach", Forwarding::Refused(ServingPart::Dispatcher)),
            ("/godel.v1.BindService/GetBinderStatus", Forwarding::To(ServingPart::Binder)),
            ("/godel.v1.BindService/Decide", Forwarding::Refused(ServingPart::Binder)),
            ("/godel.v1.BindService/EvictRunningUnits", Forwarding::Refused(ServingPart::Binder)),
            ("/godel.v1.BindService/MoveRunningUnits", Forwarding::Refused(ServingPart::Binder)),
            ("/godel.v1.SchedulerService/Plan", Forwarding::To(ServingPart::Scheduler)),
            ("/godel.v1.YarnService/ListApplications", Forwarding::To(ServingPart::Yarn)),
            ("/godel.v1.YarnService/Allocate", Forwarding::To(ServingPart::Yarn)),
            ("/godel.v1.RescheduleService/RunPolicy", Forwarding::To(ServingPart::Rescheduler)),
            ("/godel.v1.StateService/Txn", Forwarding::Here),
            ("/godel.v1.LogService/ReadLog", Forwarding::Here),
            ("/grpc.health.v1.Health/Check", Forwarding::Here),
            ("/godel.v1.UnitServices/SubmitUnit", Forwarding::Here),
            ("/", Forwarding::Here),
            ("", Forwarding::Here),
        ] {
            assert_eq!(forwarding(path), expected, "{path}");
        }
    }

    #[test]
    fn a_follower_answers_what_reads_records_and_passes_on_the_rest() {
        for (path, expected) in [
            ("/godel.v1.StateService/ListRecords", Forwarding::Here),
            ("/godel.v1.StateService/Watch", Forwarding::Here),
            ("/godel.v1.MemberService/WatchLeader", Forwarding::Here),
            ("/grpc.health.v1.Health/Check", Forwarding::Here),
            ("/godel.v1.StateService/Txn", Forwarding::To(ServingPart::State)),
            ("/godel.v1.StateService/GetRevision", Forwarding::To(ServingPart::State)),
            ("/godel.v1.NodeService/Session", Forwarding::To(ServingPart::State)),
            ("/godel.v1.MemberService/RenewLease", Forwarding::To(ServingPart::State)),
            ("/godel.v1.UnitService/SubmitUnit", Forwarding::To(ServingPart::Dispatcher)),
            ("/godel.v1.BindService/Decide", Forwarding::Refused(ServingPart::Binder)),
        ] {
            assert_eq!(forwarding_of_follower(path), expected, "{path}");
        }
        for (path, needs, reads) in [
            ("/godel.v1.StateService/ListRecords", true, true),
            ("/godel.v1.NodeService/Session", true, false),
            ("/godel.v1.MemberService/WatchLeader", false, false),
            ("/godel.v1.StateService/GetStoreStatus", false, false),
            ("/grpc.health.v1.Health/Check", false, false),
        ] {
            assert_eq!((needs_leader(path), reads_records(path)), (needs, reads), "{path}");
        }
    }

    fn lease(name: &str, ttl_ms: u32) -> Lease {
        Lease {
            name: name.to_owned(),
            holder: "h".to_owned(),
            address: format!("http://{name}"),
            epoch: Epoch(1),
            ttl_ms,
        }
    }

    fn found(
        leases: &Leases,
        part: ServingPart,
        scheduler: Option<&str>,
        now: u64,
    ) -> Result<String, String> {
        let member = member(part, scheduler, leases, Millis(now));
        member.map(|lease| lease.name).map_err(|nobody| nobody.to_string())
    }

    #[test]
    fn leaders_and_schedulers_are_found_while_their_leases_last() {
        use ServingPart::{Binder, Dispatcher, Rescheduler, Scheduler, Yarn};
        let mut leases = Leases::default();
        for name in ["dispatcher", "scheduler/a", "scheduler/b", "yarn", "rescheduler"] {
            leases.apply(lease(name, 3_000), Millis(0));
        }
        leases.renew("scheduler/b", Epoch(1), None, Millis(500)).unwrap();
        let found = |part, scheduler, now| found(&leases, part, scheduler, now);
        assert_eq!(found(Dispatcher, None, 1_000).unwrap(), "dispatcher");
        assert_eq!(found(Binder, None, 1_000).unwrap_err(), "nobody holds lease binder");
        assert_eq!(found(Yarn, None, 1_000).unwrap(), "yarn");
        assert_eq!(found(Rescheduler, None, 1_000).unwrap(), "rescheduler");
        assert_eq!(found(Yarn, None, 3_000).unwrap_err(), "nobody holds lease yarn");
        assert_eq!(found(Scheduler, None, 1_000).unwrap(), "scheduler/b", "it has renewed last");
        assert_eq!(found(Scheduler, Some("a"), 1_000).unwrap(), "scheduler/a");
        assert_eq!(found(Scheduler, Some("c"), 1_000).unwrap_err(), "nobody holds lease scheduler/c");
        assert_eq!(found(Dispatcher, None, 3_000).unwrap_err(), "nobody holds lease dispatcher");
        assert_eq!(found(Scheduler, None, 3_499).unwrap(), "scheduler/b");
        assert_eq!(found(Scheduler, Some("a"), 3_499).unwrap_err(), "nobody holds lease scheduler/a");
        assert_eq!(found(Scheduler, None, 3_500).unwrap_err(), "nobody holds lease scheduler/");
    }

    #[test]
    fn the_first_by_name_of_schedulers_that_are_alike() {
        let mut leases = Leases::default();
        for name in ["scheduler/b", "scheduler/a"] {
            leases.apply(lease(name, 3_000), Millis(0));
        }
        assert_eq!(found(&leases, ServingPart::Scheduler, None, 10).unwrap(), "scheduler/a");
        // A name is a whole one.
        assert!(found(&leases, ServingPart::Scheduler, Some(""), 10).is_err());
        assert!(found(&leases, ServingPart::Scheduler, Some("a/b"), 10).is_err());
    }
}
