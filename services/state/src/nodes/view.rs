//! Nodes as shown: records joined with what is bound and with what the session knows.

use std::collections::BTreeMap;

use bytes::Bytes;
use godel_base::{
    ids::{NodeId, Revision, RunningUnitId, UnitId},
    quantity::MILLI_WHOLE,
    resources::{CPU, MEMORY, Resources},
};
use godel_domain::{
    allocation::DeviceSet,
    demand::{Demand, Pool},
    running_units::{GroupDemand, RunningUnit},
};
use godel_membership::node_identity::{NodeConflict, RivalKind};
use godel_proto::v1;
use godel_store::{Key as RecordKey, Record, State};
use godel_wire::to_proto;
use prost::Message as _;

use crate::{feed::live_on, sessions::NodeSessions};

/// What running units take on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoomTaken {
    amounts: Resources,
    best_effort: Resources,
    /// What guaranteed ones keep from best-effort ones beside what is reserved for their use.
    kept: Resources,
    /// Milli by device.
    devices: Vec<u32>,
    n_running_units: u32,
}

/// A node's records and what is bound there, at one revision.
struct Found {
    spec: Record,
    report: Option<Bytes>,
    grant: Option<Bytes>,
    usage: Option<v1::NodeUsage>,
    taken: RoomTaken,
}

impl RoomTaken {
    /// Adds one running unit; `is_covered` says whether its use is known and reserved. `kind` is that of a device of the node.
    pub(crate) fn add<'a>(
        &mut self,
        demand: &Demand,
        pool: Pool,
        taken: DeviceSet,
        kind: impl Fn(usize) -> Option<&'a str>,
        is_covered: bool,
    ) {
        match pool {
            Pool::BestEffort => self.best_effort.add(&demand.requests, 1),
            Pool::Guaranteed => {
                self.amounts.add(&demand.requests, 1);
                let counts = |name: &str| !is_covered || (name != CPU && name != MEMORY);
                let kept = demand.requests.iter().filter(|(name, _)| counts(name));
                self.kept.add(&Resources::new(kept).unwrap_or_default(), 1);
            }
        }
        self.n_running_units += 1;
        for device in taken.iter() {
            let Some(milli) = demand.device_milli(kind(device)) else { return };
            if self.devices.len() <= device {
                self.devices.resize(device + 1, 0);
            }
            self.devices[device] += milli;
        }
    }

    /// Milli left of each of `n_devices`.
    pub(crate) fn device_free_milli(&self, n_devices: usize) -> Vec<u32> {
        let used = |device: usize| self.devices.get(device).copied().unwrap_or(0);
        (0..n_devices).map(|device| MILLI_WHOLE.saturating_sub(used(device))).collect()
    }
}

/// Room that is held, by node: for units that wait, and in slots of reservations.
#[derive(Debug, Default)]
pub(crate) struct HeldRoomByNode(BTreeMap<u32, Held>);

#[derive(Clone, Debug, Default)]
struct Held {
    n_running_units: u32,
    amounts: Resources,
    /// Slots and those of them that somebody is in, by reservation.
    slots: BTreeMap<String, (u32, u32)>,
}

impl HeldRoomByNode {
    /// As the records of holds say now. `O(holds)`.
    pub(crate) fn of(hub: &NodeSessions) -> Self {
        let values: Vec<Bytes> = hub.store.read(|state| {
            state.records(v1::Kind::Hold, None).map(|(_, record)| record.value.clone()).collect()
        });
        let holds: Vec<v1::Hold> =
            values.into_iter().filter_map(|value| v1::Hold::decode(value).ok()).collect();
        let entered: Vec<bool> =
            hub.store.read(|state| holds.iter().map(|hold| is_entered(state, hold)).collect());
        let mut room = Self::default();
        for (hold, is_entered) in holds.into_iter().zip(entered) {
            room.add(hold, is_entered);
        }
        room
    }

    fn add(&mut self, hold: v1::Hold, is_entered: bool) {
        let held = self.0.entry(hold.node_id).or_default();
        let n = u32::try_from(hold.ordinals.len()).unwrap_or(u32::MAX);
        if let Some(slot) = hold.slot {
            let (slots, used) = held.slots.entry(slot.reservation).or_default();
            *slots = slots.saturating_add(n);
            *used = used.saturating_add(if is_entered { n } else { 0 });
            return;
        }
        held.n_running_units = held.n_running_units.saturating_add(n);
        // What cannot be read counts nothing here: this is only shown.
        if let Some(Ok(demand)) = hold.demand.map(godel_wire::from_proto::demand) {
            held.amounts.add(&demand.requests, i64::from(n));
        }
    }
}

/// Whether somebody is in the slot of a reservation.
fn is_entered(state: &State, hold: &v1::Hold) -> bool {
    let occupant = hold.slot.as_ref().and_then(|slot| slot.occupant.as_ref());
    occupant.is_some_and(|occupant| {
        let row = state.rows().get(UnitId(occupant.unit_id)).map(|rows| rows.row(occupant.ordinal));
        row.is_some_and(|row| row.phase.is_live() && row.incarnation == occupant.incarnation)
    })
}

/// A node, if it is registered.
pub(crate) fn node(hub: &NodeSessions, node: NodeId, held: &HeldRoomByNode) -> Option<v1::Node> {
    let slot = hub.slot(node)?;
    let (keys, connected, usage, guaranteed_usage, parts, conflict) = {
        let cell = slot.cell.lock();
        let conflict = cell.agent.conflict.as_ref().filter(|conflict| !conflict.is_over(hub.wall_ms()));
        let conflict = conflict.map(|conflict| self::conflict(conflict));
        let parts = (
            (cell.agent.zone_usage.to_vec(), cell.agent.device_usage.to_vec()),
            (cell.agent.network, cell.agent.bandwidth.as_deref().cloned()),
        );
        let usages = (cell.agent.usage.clone(), cell.agent.guaranteed_usage.clone(), parts);
        (bound_keys(&cell), cell.is_connected(), usages.0, usages.1, usages.2, conflict)
    };
    let found = hub.store.read(|state| find(state, node, &keys))?;
    // State wrote these records and checked them before.
    let report = found.report.map(|value| v1::NodeReport::decode(value).unwrap_or_default());
    let grant = found.grant.and_then(|value| v1::NodeAllocatable::decode(value).ok()?.allocatable);
    let n_devices = report.as_ref().map_or(0, |report| report.devices.len());
    let allocatable = grant.or_else(|| report.as_ref()?.capacity.clone());
    let usage_of_guaranteed = found.usage.as_ref().filter(|usage| usage.as_of_ms > i64::MIN);
    let reserved = usage_of_guaranteed.and_then(|usage| usage.reserved.clone());
    let (load, zone_loads) = found.usage.map(|usage| (usage.load, usage.zone_loads)).unwrap_or_default();
    let ((zone_usage, device_usage), (network, bandwidth)) = parts;
    let held = held.0.get(&node.0).cloned().unwrap_or_default();
    let slots = held.slots.into_iter();
    Some(v1::Node {
        held_running_units: held.n_running_units,
        held: (held.n_running_units > 0).then(|| to_proto::resources(&held.amounts)),
        slots: slots.map(|(reservation, (slots, used))| v1::NodeSlots { reservation, slots, used }).collect(),
        node_id: node.0,
        spec: Some(shown_spec(&found.spec)),
        best_effort_allocatable: allocatable
            .clone()
            .map(|all| less(less(all, reserved.as_ref()), Some(&to_proto::resources(&found.taken.kept)))),
        best_effort_allocated: Some(to_proto::resources(&found.taken.best_effort)),
        guaranteed_usage,
        zone_usage,
        device_usage,
        reserved,
        load,
        zone_loads,
        network,
        bandwidth,
        allocatable,
        allocated: Some(to_proto::resources(&found.taken.amounts)),
        device_free_milli: found.taken.device_free_milli(n_devices),
        running_units: found.taken.n_running_units,
        connected,
        usage,
        report,
        conflict,
    })
}

/// What is left, never less than nothing.
fn less(mut amounts: v1::Resources, taken: Option<&v1::Resources>) -> v1::Resources {
    for (name, amount) in taken.into_iter().flat_map(|taken| &taken.amounts) {
        if let Some(left) = amounts.amounts.get_mut(name) {
            *left = left.saturating_sub(*amount).max(0);
        }
    }
    amounts
}

/// What is bound to a node, by unit and ordinal, at most `limit`.
pub(crate) fn bound(hub: &NodeSessions, node: NodeId, limit: usize) -> Vec<v1::BoundRunningUnit> {
    let Some(slot) = hub.slot(node) else { return Vec::new() };
    let keys = bound_keys(&slot.cell.lock());
    let live = hub.store.read(|state| {
        let mut live = live_on(state, node, &keys);
        live.truncate(limit);
        let with_demand = |(key, row): (RunningUnitId, RunningUnit)| {
            let group =
                state.rows().get(key.unit).and_then(|rows| rows.groups.get(usize::from(row.group))?.clone());
            (key, row, group.map(|group| group.demand))
        };
        live.into_iter().map(with_demand).collect::<Vec<_>>()
    });
    let mut units: Vec<u64> = live.iter().map(|(key, ..)| key.unit.0).collect();
    units.dedup();
    let names = hub.templates.unit_names(&hub.store, &units);
    live.into_iter()
        .map(|(key, row, demand)| v1::BoundRunningUnit {
            unit_id: key.unit.0,
            ordinal: key.replica.ordinal,
            incarnation: key.replica.incarnation,
            phase: to_proto::phase(row.phase).into(),
            unit_name: names.get(&key.unit.0).cloned().unwrap_or_default(),
            device_mask: row.allocation.devices.0,
            zone_mask: row.allocation.zones.zones.0,
            core_mask: row.allocation.zones.cores.0,
            demand: demand.as_deref().map(to_proto::demand),
        })
        .collect()
}

/// Another agent that claims a node.
pub(crate) fn conflict(conflict: &NodeConflict) -> v1::NodeConflict {
    let NodeConflict { rival, first_ms, last_ms, n_attempts, .. } = conflict;
    let kind = match rival.kind {
        RivalKind::OtherInstallation => v1::NodeConflictKind::OtherInstallation,
        RivalKind::SameInstallation => v1::NodeConflictKind::SameInstallation,
    };
    v1::NodeConflict {
        kind: kind.into(),
        first_ms: *first_ms,
        last_ms: *last_ms,
        attempts: *n_attempts,
        address: rival.address.clone(),
        uid: rival.uid.clone(),
    }
}

/// A node's NodeSpec with the revisions of its record.
pub(crate) fn spec(hub: &NodeSessions, node: NodeId) -> Option<v1::NodeSpec> {
    let key = RecordKey::Id(u64::from(node.0));
    let record = hub.store.read(|state| state.record(v1::Kind::NodeSpec, &key).cloned())?;
    Some(shown_spec(&record))
}

/// Labels of a node: those found by its agent, and over them the administrators'.
pub(crate) fn has_labels<'a>(
    hub: &NodeSessions,
    node: NodeId,
    mut selector: impl Iterator<Item = (&'a String, &'a String)>,
) -> bool {
    let key = RecordKey::Id(u64::from(node.0));
    let (spec, report) = hub.store.read(|state| {
        let value = |kind| state.record(kind, &key).map(|record| record.value.clone());
        (value(v1::Kind::NodeSpec), value(v1::Kind::NodeReport))
    });
    let spec = spec.and_then(|value| v1::NodeSpec::decode(value).ok()).unwrap_or_default();
    let report = report.and_then(|value| v1::NodeReport::decode(value).ok()).unwrap_or_default();
    let labels = spec.meta.unwrap_or_default().labels;
    selector.all(|(key, value)| labels.get(key).or_else(|| report.attributes.get(key)) == Some(value))
}

fn bound_keys(cell: &crate::sessions::cell::Cell) -> Vec<RunningUnitId> {
    cell.entries().iter().filter(|entry| entry.bound).map(|entry| entry.key).collect()
}

fn shown_spec(record: &Record) -> v1::NodeSpec {
    let Record { create_revision: Revision(create_revision), revision: Revision(revision), .. } = *record;
    let mut spec = v1::NodeSpec::decode(record.value.clone()).unwrap_or_default();
    let meta = spec.meta.get_or_insert_default();
    (meta.create_revision, meta.revision, meta.create_time_ms) =
        (create_revision, revision, record.create_time_ms);
    spec
}

fn find(state: &State, node: NodeId, keys: &[RunningUnitId]) -> Option<Found> {
    let key = RecordKey::Id(u64::from(node.0));
    let value = |kind| state.record(kind, &key).map(|record| record.value.clone());
    let mut taken = RoomTaken::default();
    let report = value(v1::Kind::NodeReport);
    let devices =
        report.clone().and_then(|value| v1::NodeReport::decode(value).ok()).unwrap_or_default().devices;
    let kind = |device: usize| devices.get(device).map(|device| device.kind.as_str());
    let usage = value(v1::Kind::NodeUsage).and_then(|value| v1::NodeUsage::decode(value).ok());
    for (key, row) in live_on(state, node, keys) {
        if let Some(group) = demand_of(state, key, &row) {
            let is_covered = usage.as_ref().is_some_and(|usage| row.bound_time_ms <= usage.as_of_ms);
            taken.add(&group.demand, group.pool, row.allocation.devices, kind, is_covered);
        }
    }
    Some(Found {
        spec: state.record(v1::Kind::NodeSpec, &key)?.clone(),
        report,
        grant: value(v1::Kind::NodeAllocatable),
        usage,
        taken,
    })
}

fn demand_of<'a>(state: &'a State, key: RunningUnitId, row: &RunningUnit) -> Option<&'a GroupDemand> {
    let group = state.rows().get(key.unit)?.groups.get(usize::from(row.group))?;
    group.as_ref()
}

#[cfg(test)]
mod tests {
    use godel_domain::demand::DeviceRequest;

    use super::*;

    #[test]
    fn what_is_taken_adds_up() {
        let gpus = |count, milli| Demand {
            requests: Resources::new([("cpu", 500)]).unwrap(),
            devices: vec![DeviceRequest {
                kind: "gpu".to_owned(),
                count,
                milli,
                models: Vec::new(),
                terms: None,
            }],
            host_ports: Vec::new(),
            zones: None,
        };
        let mut taken = RoomTaken::default();
        let kind = |_: usize| Some("gpu");
        taken.add(&gpus(2, 1000), Pool::Guaranteed, DeviceSet(0b110), kind, false);
        taken.add(&gpus(1, 300), Pool::Guaranteed, DeviceSet(0b1), kind, true);
        taken.add(&gpus(1, 300), Pool::BestEffort, DeviceSet(0b1), kind, false);
        let none = Demand { devices: Vec::new(), ..gpus(1, 1) };
        taken.add(&none, Pool::BestEffort, DeviceSet(0), kind, false);
        assert_eq!((taken.amounts.get(CPU), taken.n_running_units), (1_000, 4));
        assert_eq!((taken.best_effort.get(CPU), taken.kept.get(CPU)), (1_000, 500));
        assert_eq!(taken.device_free_milli(4), [400, 0, 0, 1000]);
        let nic =
            DeviceRequest { kind: "nic".to_owned(), count: 1, milli: 250, models: Vec::new(), terms: None };
        let both = Demand { devices: vec![gpus(1, 500).devices[0].clone(), nic], ..Demand::default() };
        let kind = |device: usize| Some(if device == 3 { "nic" } else { "gpu" });
        taken.add(&both, Pool::BestEffort, DeviceSet(0b1001), kind, false);
        assert_eq!(taken.device_free_milli(4), [0, 0, 0, 750], "each device by the request of its kind");
    }

    #[test]
    fn held_room_and_slots_are_told_by_node() {
        let demand = |cpu: i64| {
            let requests = v1::Resources { amounts: [(CPU.to_owned(), cpu)].into_iter().collect() };
            Some(v1::Demand {
                requests: Some(requests),
                devices: Vec::new(),
                host_ports: Vec::new(),
                zones: None,
            })
        };
        let hold = |node_id: u32, ordinals: &[u32], cpu: i64, reservation: &str| v1::Hold {
            node_id,
            ordinals: ordinals.to_vec(),
            demand: demand(cpu),
            slot: (!reservation.is_empty())
                .then(|| v1::ReservationSlot { reservation: reservation.to_owned(), occupant: None }),
            ..v1::Hold::default()
        };
        let mut room = HeldRoomByNode::default();
        room.add(hold(1, &[0, 1], 500, ""), false);
        room.add(hold(1, &[4], 2_000, ""), false);
        room.add(hold(1, &[0], 700, "web"), false);
        room.add(hold(1, &[1], 700, "web"), true);
        room.add(hold(2, &[2], 700, "web"), false);
        let one = &room.0[&1];
        assert_eq!((one.n_running_units, one.amounts.get(CPU), &one.slots["web"]), (3, 3_000, &(2, 1)));
        assert_eq!((room.0[&2].n_running_units, &room.0[&2].slots["web"]), (0, &(1, 0)));
    }
}
