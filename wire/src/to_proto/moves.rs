//! Moves of running units.

use godel_domain::requested_move::{MoveRefusal, RequestedMove};
use godel_proto::v1;

use super::rejection_reason;

/// A move as it is asked for.
pub fn requested_move(of: &RequestedMove) -> v1::RequestedMove {
    let RequestedMove { running, to, wanted } = of;
    v1::RequestedMove {
        unit_id: running.unit.0,
        ordinal: running.replica.ordinal,
        incarnation: running.replica.incarnation,
        to_node_id: to.0,
        device_mask: wanted.devices.0,
        zone_mask: wanted.zones.zones.0,
        core_mask: wanted.zones.cores.0,
    }
}

/// Why a running unit is not moved.
pub fn move_refusal(refusal: &MoveRefusal) -> v1::MoveRefusal {
    let MoveRefusal { reason, later, detail } = refusal;
    v1::MoveRefusal { reason: rejection_reason(*reason).into(), later: *later, detail: detail.clone() }
}
