//! What an administrator has paused.

use godel_domain::{pause::Pause, record_change::DESCRIPTION_LEN_MAX};
use godel_proto::v1;

use crate::{
    BadField,
    from_proto::{
        self,
        check::{names::text, sense::words},
    },
};

pub(super) fn read(pb: v1::Pause) -> Result<Pause, BadField> {
    let v1::Pause { scope, since_ms, reason, sub_cluster_key } = pb;
    Ok(Pause { scope: from_proto::pause_scope(&scope)?, since_ms, reason, sub_cluster_key })
}

/// What an administrator has paused.
pub fn write(pause: &Pause) -> v1::Pause {
    let Pause { scope, since_ms, reason, sub_cluster_key } = pause;
    v1::Pause {
        scope: scope.to_string(),
        since_ms: *since_ms,
        reason: reason.clone(),
        sub_cluster_key: sub_cluster_key.clone(),
    }
}

pub(super) fn check_names(pause: &Pause) -> Result<(), BadField> {
    text("scope", &pause.scope.to_string())?;
    text("sub_cluster_key", &pause.sub_cluster_key)
}

pub(super) fn check_sense(pb: &v1::Pause) -> Result<(), BadField> {
    words("reason", &pb.reason, DESCRIPTION_LEN_MAX)
}
