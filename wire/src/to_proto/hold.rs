//! Room on a node that is kept for someone.

use godel_domain::hold::{GangTurn, Hold, MovementTarget, Slot};
use godel_proto::v1;

use super::{demand, pool, running_unit_id};
use crate::zones;

/// Room kept for someone.
pub fn hold(hold: &Hold) -> v1::Hold {
    let Hold {
        id,
        node,
        unit,
        spec_revision,
        group,
        demand: takes,
        pool: pays,
        ordinals,
        incarnations,
        devices,
        zones,
        victims,
        at_maximum,
        queue_victims,
        expires_ms,
        queue,
        judged,
        priority,
        taken_from,
        turn,
        slot,
        movement,
    } = hold;
    v1::Hold {
        hold_id: id.0,
        node_id: node.0,
        unit_id: unit.0,
        spec_revision: spec_revision.0,
        task_group: u32::from(*group),
        demand: Some(demand(takes)),
        pool: pool(*pays).into(),
        ordinals: ordinals.clone(),
        incarnations: incarnations.clone(),
        device_masks: devices.iter().map(|devices| devices.0).collect(),
        zone_masks: zones::zone_masks(zones),
        core_masks: zones::core_masks(zones),
        victims: victims.iter().map(running_unit_id).collect(),
        at_maximum: *at_maximum,
        queue_victims: queue_victims.iter().map(running_unit_id).collect(),
        expires_ms: *expires_ms,
        queue: queue.as_deref().unwrap_or_default().to_owned(),
        judged_revision: judged.0,
        priority: *priority,
        taken_from: taken_from.iter().map(|unit| unit.0).collect(),
        turn: turn.as_ref().map(|GangTurn { since_ms, priority, sub_cluster }| v1::GangTurn {
            since_ms: *since_ms,
            priority: *priority,
            sub_cluster: sub_cluster.as_deref().unwrap_or_default().to_owned(),
        }),
        slot: slot.as_ref().map(|Slot { reservation, occupant }| v1::ReservationSlot {
            reservation: reservation.to_string(),
            occupant: occupant.as_ref().map(running_unit_id),
        }),
        movement: movement.as_ref().map(|MovementTarget { movement, from }| v1::MovementTarget {
            movement: movement.to_string(),
            from: Some(running_unit_id(from)),
        }),
    }
}
