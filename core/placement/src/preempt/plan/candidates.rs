//! Running units that might leave a node.

use godel_base::ids::UnitId;
use godel_cluster::{
    ShapeId,
    devices::NodeDevices,
    shapes::{COUNT, Shape},
};
use godel_domain::allocation::{Allocation, DeviceSet};
use godel_framework::point::Rank;

/// A candidate on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct VictimCandidate {
    pub(super) unit: UnitId,
    pub(super) ordinal: u32,
    /// Its task group.
    pub(super) group: u16,
    pub(super) rank: Rank,
    /// It is the master of an application.
    pub(super) is_master: bool,
    pub(super) shape: ShapeId,
    pub(super) allocation: Allocation,
    pub(super) since: i64,
    /// Its unit would be too small without it.
    pub(super) breaks: bool,
    /// Thousandths of the ask that it gives back.
    pub(super) parts: i64,
}

/// Items of one unit each; they stand in order of units.
pub(super) fn by_unit(items: &[VictimCandidate]) -> impl Iterator<Item = &[VictimCandidate]> {
    items.chunk_by(|a, b| a.unit == b.unit)
}

/// Thousandths of an ask that a running unit gives back, of the resource of which it is the least; `given` are its devices on
/// the node.
pub(super) fn parts(ask: &Shape, takes: &Shape, node: &NodeDevices, given: DeviceSet) -> i64 {
    let of = |id: u8| takes.asks.iter().find(|(known, _)| *known == id).map_or(0, |(_, amount)| *amount);
    // Everybody is one running unit.
    let asked = ask.asks.iter().filter(|(id, amount)| *amount > 0 && *id != COUNT);
    let resources = asked.map(|(id, amount)| of(*id).saturating_mul(1000) / amount);
    let is_mixed = ask.devices.len() > 1 || takes.devices.len() > 1;
    let devices = ask.devices.iter().map(|wanted| {
        let given = if is_mixed { node.accepted(wanted, given) } else { given };
        let milli: i64 = given.iter().map(|idx| i64::from(node.milli_of(&takes.devices, idx))).sum();
        milli.saturating_mul(1000) / (i64::from(wanted.count) * i64::from(wanted.milli)).max(1)
    });
    resources.chain(devices).min().unwrap_or(0)
}
