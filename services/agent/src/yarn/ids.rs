//! Ids of containers, as YARN writes them.

use std::fmt;

use godel_hadoop::yarn::{ApplicationAttemptIdProto, ApplicationIdProto, ContainerIdProto};
use serde::{Deserialize, Serialize};

/// Bits of a container's number below those that count restarts of a ResourceManager.
const EPOCH_SHIFT: u32 = 40;

/// One attempt of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct AttemptId {
    pub(crate) cluster_ms: i64,
    pub(crate) application: i32,
    pub(crate) attempt: i32,
}

/// One container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ContainerId {
    pub(crate) attempt: AttemptId,
    pub(crate) number: i64,
}

impl AttemptId {
    pub(crate) fn of(pb: &ApplicationAttemptIdProto) -> Option<Self> {
        let application = pb.application_id.as_ref()?;
        Some(Self {
            cluster_ms: application.cluster_timestamp?,
            application: application.id?,
            attempt: pb.attempt_id?,
        })
    }

    /// Whether both are of one application.
    pub(crate) fn is_same_application(self, other: Self) -> bool {
        (self.cluster_ms, self.application) == (other.cluster_ms, other.application)
    }

    fn to_proto(self) -> ApplicationAttemptIdProto {
        let Self { cluster_ms, application, attempt } = self;
        let application = ApplicationIdProto { id: Some(application), cluster_timestamp: Some(cluster_ms) };
        ApplicationAttemptIdProto { application_id: Some(application), attempt_id: Some(attempt) }
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster_ms, application, attempt } = self;
        write!(f, "appattempt_{cluster_ms}_{application:04}_{attempt:06}")
    }
}

impl ContainerId {
    pub(crate) fn of(pb: &ContainerIdProto) -> Option<Self> {
        Some(Self { attempt: AttemptId::of(pb.app_attempt_id.as_ref()?)?, number: pb.id? })
    }

    pub(crate) fn to_proto(self) -> ContainerIdProto {
        ContainerIdProto {
            app_id: None,
            app_attempt_id: Some(self.attempt.to_proto()),
            id: Some(self.number),
        }
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttemptId { cluster_ms, application, attempt } = self.attempt;
        let (epoch, number) = (self.number >> EPOCH_SHIFT, self.number & ((1 << EPOCH_SHIFT) - 1));
        f.write_str("container_")?;
        if epoch > 0 {
            write!(f, "e{epoch:02}_")?;
        }
        write!(f, "{cluster_ms}_{application:04}_{attempt:02}_{number:06}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_yarn_does() {
        let attempt = AttemptId { cluster_ms: 1_000, application: 7, attempt: 2 };
        assert_eq!(attempt.to_string(), "appattempt_1000_0007_000002");
        let id = ContainerId { attempt, number: 3 };
        assert_eq!(id.to_string(), "container_1000_0007_02_000003");
        let later = ContainerId { number: (4 << EPOCH_SHIFT) | 12_345_678, ..id };
        assert_eq!(later.to_string(), "container_e04_1000_0007_02_12345678");
        assert_eq!(ContainerId::of(&later.to_proto()), Some(later));
        assert_eq!(ContainerId::of(&ContainerIdProto { id: Some(1), ..ContainerIdProto::default() }), None);
    }
}
