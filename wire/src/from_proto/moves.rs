//! Moves of running units.

use godel_base::ids::RunningUnitId;
use godel_domain::{
    allocation::{Allocation, CoreSet, DeviceSet, GivenZones, ZoneSet},
    requested_move::{MoveRefusal, RequestedMove},
};
use godel_proto::v1;

use super::{BadField, Result, decision::rejection_reason, node_id, unit_id};

/// A move as it is asked for.
///
/// # Errors
/// An id is 0 or out of range.
pub fn requested_move(pb: v1::RequestedMove) -> Result<RequestedMove> {
    let v1::RequestedMove {
        unit_id: unit,
        ordinal,
        incarnation,
        to_node_id,
        device_mask,
        zone_mask,
        core_mask,
    } = pb;
    let zones = GivenZones { zones: ZoneSet(zone_mask), cores: CoreSet(core_mask) };
    Ok(RequestedMove {
        running: RunningUnitId::new(unit_id(unit, "unit_id")?, ordinal, incarnation),
        to: node_id(to_node_id, "to_node_id")?,
        wanted: Allocation { devices: DeviceSet(device_mask), zones },
    })
}

/// Why a running unit is not moved.
///
/// # Errors
/// The reason is unknown, or missing.
pub fn move_refusal(pb: v1::MoveRefusal) -> Result<MoveRefusal> {
    let v1::MoveRefusal { reason, later, detail } = pb;
    let reason = rejection_reason(reason)?.ok_or_else(|| BadField::new("reason", "missing"))?;
    Ok(MoveRefusal { reason, later, detail })
}
