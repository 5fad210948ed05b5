//! Refusals as YARN's exceptions: clients tell refusals apart by the class, and people read the message.

use godel_core_yarn_leader::ManagerRefusal;
use godel_hadoop::{Exception, exception};

pub(super) const INVALID_RESOURCE_REQUEST: &str =
    "org.apache.hadoop.yarn.exceptions.InvalidResourceRequestException";
pub(super) const INVALID_RELEASE: &str = "org.apache.hadoop.yarn.exceptions.InvalidContainerReleaseException";
pub(super) const FEATURE_NOT_ENABLED: &str =
    "org.apache.hadoop.yarn.exceptions.YARNFeatureNotEnabledException";
const NO_APPLICATION: &str = "org.apache.hadoop.yarn.exceptions.ApplicationNotFoundException";
const NO_ATTEMPT: &str = "org.apache.hadoop.yarn.exceptions.ApplicationAttemptNotFoundException";
const NO_CONTAINER: &str = "org.apache.hadoop.yarn.exceptions.ContainerNotFoundException";
/// Clients that know several addresses go to the next one.
const STANDBY: &str = "org.apache.hadoop.ipc.StandbyException";
/// Clients try again.
const RETRIABLE: &str = "org.apache.hadoop.ipc.RetriableException";

/// A refusal without a class of its own.
pub(super) fn refused(message: impl Into<String>) -> Exception {
    Exception::new(exception::YARN, message)
}

/// What a client or an administrator is told.
pub(super) fn for_clients(refusal: ManagerRefusal) -> Exception {
    let message = refusal.to_string();
    match refusal {
        ManagerRefusal::NoApplication(id) => Exception::new(
            NO_APPLICATION,
            format!(
                "Application with id '{id}' doesn't exist in RM. Please check that the job submission was successful."
            ),
        ),
        ManagerRefusal::NoAttempt(id) => {
            Exception::new(NO_ATTEMPT, format!("ApplicationAttempt with id '{id}' doesn't exist in RM."))
        }
        ManagerRefusal::NoContainer(id) => {
            Exception::new(NO_CONTAINER, format!("Container with id '{id}' doesn't exist in RM."))
        }
        ManagerRefusal::NoQueue(_) | ManagerRefusal::Taken(_) | ManagerRefusal::Invalid(_) => {
            refused(message)
        }
        ManagerRefusal::Denied(_) => Exception::new(exception::ACCESS_CONTROL, message),
        // YARN wraps what it throws for these: clients see the class of the cause in the text.
        ManagerRefusal::NotAllowed(_) | ManagerRefusal::QueueNotAllowed(_) => {
            refused(format!("{}: {message}", exception::ACCESS_CONTROL))
        }
        ManagerRefusal::Master(refusal) => Exception::new(refusal.exception(), message),
        ManagerRefusal::Standby(_) => Exception::new(STANDBY, message),
        ManagerRefusal::Unavailable(_) => Exception::new(RETRIABLE, message),
    }
}

/// What a master is told: one whose application or attempt is not there should end.
pub(super) fn for_masters(refusal: ManagerRefusal) -> Exception {
    match refusal {
        ManagerRefusal::NoApplication(_) | ManagerRefusal::NoAttempt(_) => {
            Exception::new(NO_ATTEMPT, format!("{refusal}: its master should end"))
        }
        other => for_clients(other),
    }
}

#[cfg(test)]
mod tests {
    use godel_core_yarn::{
        adapter::MasterRefusal,
        asks::BadAsk,
        ids::{YarnApplicationId, YarnAttemptId},
    };

    use super::*;

    #[test]
    fn refusals_have_the_classes_of_yarn() {
        let application = YarnApplicationId { cluster_timestamp: 1, number: 2 };
        let attempt = YarnAttemptId { application, number: 1 };
        let class = |refusal| for_clients(refusal).class.rsplit('.').next().unwrap_or_default().to_owned();
        assert_eq!(class(ManagerRefusal::NoApplication(application)), "ApplicationNotFoundException");
        assert_eq!(class(ManagerRefusal::NoAttempt(attempt)), "ApplicationAttemptNotFoundException");
        assert_eq!(class(ManagerRefusal::Taken(application)), "YarnException");
        assert_eq!(class(ManagerRefusal::Standby(None)), "StandbyException");
        assert_eq!(class(ManagerRefusal::Denied("no".to_owned())), "AccessControlException");
        let not_allowed = for_clients(ManagerRefusal::NotAllowed("User eve cannot".to_owned()));
        assert!(not_allowed.class.ends_with(".YarnException"), "{not_allowed}");
        assert!(not_allowed.message.ends_with(".AccessControlException: User eve cannot"), "{not_allowed}");
        assert_eq!(class(ManagerRefusal::Unavailable("wait".to_owned())), "RetriableException");
        assert_eq!(class(MasterRefusal::BadAsk(BadAsk::Rows).into()), "InvalidResourceRequestException");
        for (bad, expected) in [
            (BadAsk::Label("slow".to_owned()), "InvalidLabelResourceRequestException"),
            (BadAsk::Resource("yarn.io/gpu".to_owned()), "ResourceNotFoundException"),
            (BadAsk::BlacklistAny, "InvalidResourceBlacklistRequestException"),
        ] {
            assert_eq!(class(MasterRefusal::BadAsk(bad).into()), expected);
        }
        let told = for_masters(ManagerRefusal::NoApplication(application));
        assert_eq!(told.class, NO_ATTEMPT);
        assert_eq!(for_masters(MasterRefusal::NotYet(attempt).into()).class, RETRIABLE);
        let told = for_masters(MasterRefusal::NotRegistered(attempt).into());
        assert!(told.class.ends_with(".ApplicationMasterNotRegisteredException"), "{told}");
    }
}
