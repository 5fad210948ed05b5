//! The last evictions of replicas.

use std::sync::Arc;

use godel_base::ids::{ReplicaId, Revision};
use godel_domain::running_units::{EVICTED_BY_LEN_MAX, LastEviction};
use godel_proto::v1;

use super::{eviction_reason_from_proto, eviction_reason_to_proto};

/// The last eviction of a replica.
pub fn last_eviction_to_proto(eviction: &LastEviction) -> v1::LastEviction {
    let LastEviction { replica: ReplicaId { ordinal, incarnation }, reason, by, revision } = eviction;
    v1::LastEviction {
        ordinal: *ordinal,
        incarnation: *incarnation,
        reason: eviction_reason_to_proto(Some(*reason)).into(),
        by: by.to_string(),
        revision: revision.0,
    }
}

/// The inverse of [`last_eviction_to_proto`]. One for a reason of a later version is none: it never makes rows unreadable.
pub(super) fn last_eviction_from_proto(eviction: &v1::LastEviction) -> Option<LastEviction> {
    let v1::LastEviction { ordinal, incarnation, reason, by, revision } = eviction;
    let reason = eviction_reason_from_proto(*reason).ok()??;
    let by: Arc<str> = by[..by.floor_char_boundary(EVICTED_BY_LEN_MAX)].into();
    let replica = ReplicaId::new(*ordinal, *incarnation);
    Some(LastEviction { replica, reason, by, revision: Revision(*revision) })
}
