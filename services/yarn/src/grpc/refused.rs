//! Why the adapter refuses, as gRPC statuses.

use godel_core_yarn::adapter::MasterRefusal;
use godel_core_yarn_leader::ManagerRefusal;
use godel_kit::status::{self, reason};
use godel_wire::BadField;
use tonic::{Code, Status};

const NO_METADATA: [(&str, &str); 0] = [];

/// The status of a refusal.
pub(super) fn refused(refusal: ManagerRefusal) -> Status {
    let said = refusal.to_string();
    let unknown = |name: String| {
        status::with_info(Code::NotFound, reason::UNKNOWN_NAME, said.clone(), [("name", name)])
    };
    match refusal {
        ManagerRefusal::NoApplication(id) => unknown(id.to_string()),
        ManagerRefusal::NoAttempt(id) => unknown(id.to_string()),
        ManagerRefusal::NoContainer(id) => unknown(id.to_string()),
        ManagerRefusal::NoQueue(name) => unknown(name),
        ManagerRefusal::Taken(id) => {
            let name = ("name", id.to_string());
            status::with_info(Code::AlreadyExists, reason::DUPLICATE_NAME, said, [name])
        }
        ManagerRefusal::Invalid(why) => status::invalid_argument([BadField::new("application", why)]),
        ManagerRefusal::Denied(why)
        | ManagerRefusal::NotAllowed(why)
        | ManagerRefusal::QueueNotAllowed(why) => {
            status::with_info(Code::PermissionDenied, reason::FORBIDDEN, why, NO_METADATA)
        }
        ManagerRefusal::Master(MasterRefusal::BadAsk(why)) => {
            status::invalid_argument([BadField::new("asks", why.to_string())])
        }
        ManagerRefusal::Master(MasterRefusal::NotYet(_)) => Status::unavailable(said),
        ManagerRefusal::Master(why) => {
            let attempt = match &why {
                MasterRefusal::NoAttempt(attempt)
                | MasterRefusal::NotRegistered(attempt)
                | MasterRefusal::AlreadyRegistered(attempt)
                | MasterRefusal::NoPlace(attempt)
                | MasterRefusal::WrongResponse { attempt, seen: _, expected: _ } => attempt.to_string(),
                MasterRefusal::BadAsk(_) | MasterRefusal::NotYet(_) => String::new(),
            };
            status::failed_precondition("MASTER", attempt, why.to_string())
        }
        ManagerRefusal::Standby(leader) => status::not_leader(leader.as_deref()),
        ManagerRefusal::Unavailable(why) => Status::unavailable(why),
    }
}

#[cfg(test)]
mod tests {
    use godel_core_yarn::{
        asks::BadAsk,
        ids::{YarnApplicationId, YarnAttemptId},
    };

    use super::*;

    #[test]
    fn refusals_have_codes_reasons_and_words() {
        let id = YarnApplicationId { cluster_timestamp: 17, number: 3 };
        let attempt = YarnAttemptId { application: id, number: 1 };
        for (refusal, code, reason, words) in [
            (ManagerRefusal::NoApplication(id), Code::NotFound, Some("UNKNOWN_NAME"), "application_17_0003"),
            (ManagerRefusal::NoQueue("x".into()), Code::NotFound, Some("UNKNOWN_NAME"), "`x`"),
            (ManagerRefusal::Taken(id), Code::AlreadyExists, Some("DUPLICATE_NAME"), "application_17_0003"),
            (ManagerRefusal::Invalid("too much".into()), Code::InvalidArgument, None, "too much"),
            (ManagerRefusal::Denied("not you".into()), Code::PermissionDenied, Some("FORBIDDEN"), "not you"),
            (MasterRefusal::NotRegistered(attempt).into(), Code::FailedPrecondition, None, "register"),
            (MasterRefusal::NotYet(attempt).into(), Code::Unavailable, None, "in a moment"),
            (MasterRefusal::BadAsk(BadAsk::Capability).into(), Code::InvalidArgument, None, "above 0"),
            (ManagerRefusal::Standby(None), Code::Unavailable, Some("NOT_LEADER"), "standby"),
            (ManagerRefusal::Unavailable("state is away".into()), Code::Unavailable, None, "state is away"),
        ] {
            let status = refused(refusal);
            assert_eq!(status.code(), code, "{status:?}");
            assert_eq!(status::reason_of(&status).as_deref(), reason, "{status:?}");
            assert!(status.message().contains(words), "{status:?}");
        }
        let standby = refused(ManagerRefusal::Standby(Some("http://10.0.0.1:7704".into())));
        assert_eq!(status::leader_of(&standby).as_deref(), Some("http://10.0.0.1:7704"));
    }
}
