//! Ids and node addresses as YARN's messages have them.

use godel_core_yarn::ids::{YarnApplicationId, YarnAttemptId, YarnContainerId};
use godel_hadoop::{
    Exception, exception,
    yarn::{ApplicationAttemptIdProto, ApplicationIdProto, ContainerIdProto, NodeIdProto},
};

fn missing(what: &str) -> Exception {
    Exception::new(exception::YARN, format!("the request has no whole id of {what}"))
}

/// The id of an application, if it is whole.
fn whole_application(pb: ApplicationIdProto) -> Option<YarnApplicationId> {
    let number = u32::try_from(pb.id?).ok()?;
    Some(YarnApplicationId { cluster_timestamp: pb.cluster_timestamp?, number })
}

fn whole_attempt(pb: ApplicationAttemptIdProto) -> Option<YarnAttemptId> {
    let application = whole_application(pb.application_id?)?;
    Some(YarnAttemptId { application, number: u32::try_from(pb.attempt_id?).ok()? })
}

pub(super) fn application(pb: Option<ApplicationIdProto>) -> Result<YarnApplicationId, Exception> {
    pb.and_then(whole_application).ok_or_else(|| missing("an application"))
}

pub(super) fn attempt(pb: Option<ApplicationAttemptIdProto>) -> Result<YarnAttemptId, Exception> {
    pb.and_then(whole_attempt).ok_or_else(|| missing("an attempt"))
}

pub(super) fn container(pb: Option<ContainerIdProto>) -> Result<YarnContainerId, Exception> {
    let whole = |pb: ContainerIdProto| {
        let attempt = whole_attempt(pb.app_attempt_id?)?;
        Some(YarnContainerId::from_bits(attempt, pb.id?))
    };
    pb.and_then(whole).ok_or_else(|| missing("a container"))
}

pub(super) fn application_pb(id: YarnApplicationId) -> ApplicationIdProto {
    let YarnApplicationId { cluster_timestamp, number } = id;
    ApplicationIdProto { id: Some(number.cast_signed()), cluster_timestamp: Some(cluster_timestamp) }
}

pub(super) fn attempt_pb(id: YarnAttemptId) -> ApplicationAttemptIdProto {
    let application_id = Some(application_pb(id.application));
    ApplicationAttemptIdProto { application_id, attempt_id: Some(id.number.cast_signed()) }
}

/// What stands in a report where there is no attempt: clients of YARN expect some id.
pub(super) fn no_attempt_pb(application: YarnApplicationId) -> ApplicationAttemptIdProto {
    let application_id = Some(application_pb(application));
    ApplicationAttemptIdProto { application_id, attempt_id: Some(-1) }
}

pub(super) fn container_pb(id: YarnContainerId) -> ContainerIdProto {
    ContainerIdProto { app_id: None, app_attempt_id: Some(attempt_pb(id.attempt)), id: Some(id.bits()) }
}

pub(super) fn node_pb(host: &str, port: u16) -> NodeIdProto {
    NodeIdProto { host: Some(host.to_owned()), port: Some(port.into()) }
}

/// Host and port of `host:port`; a text without a port has port 0.
pub(super) fn host_and_port(address: &str) -> (&str, u16) {
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    parts.unwrap_or((address, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_as_they_were_sent() {
        let application_id = YarnApplicationId { cluster_timestamp: 9, number: 3 };
        let attempt_id = YarnAttemptId { application: application_id, number: 2 };
        let id = YarnContainerId { attempt: attempt_id, epoch: 1, number: 7 };
        assert_eq!(container(Some(container_pb(id))), Ok(id));
        assert_eq!(attempt(Some(attempt_pb(attempt_id))), Ok(attempt_id));
        assert!(attempt(Some(no_attempt_pb(application_id))).is_err());
        for broken in [None, Some(ContainerIdProto { id: Some(1), ..ContainerIdProto::default() })] {
            assert_eq!(container(broken).unwrap_err().message, "the request has no whole id of a container");
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        assert_eq!(host_and_port("n1:8041"), ("n1", 8_041));
        assert_eq!(host_and_port("n1"), ("n1", 0));
        assert_eq!(host_and_port("n1:x"), ("n1:x", 0));
    }
}
