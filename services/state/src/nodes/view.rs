//! Nodes as shown: records joined with what is bound and with what the session knows.

use std::sync::Arc;

use bytes::Bytes;
use godel_core::{
    demand::{Demand, MILLI_WHOLE, N_DEVICES_MAX},
    ids::{NodeId, Revision, UnitId},
    resources::Resources,
    rows::Row,
};
use godel_kit::to_proto;
use godel_proto::v1;
use godel_store::{Key as RecordKey, Record, State};
use prost::Message as _;

use crate::{
    feed::live_on,
    sessions::{Hub, cell::Key},
};

/// What running units take on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    amounts: Resources,
    /// Milli by device.
    devices: Vec<u32>,
    n_running_units: u32,
}

/// A node's records and what is bound there, at one revision.
struct Found {
    spec: Record,
    report: Option<Bytes>,
    grant: Option<Bytes>,
    taken: Taken,
}

impl Taken {
    /// Adds one running unit.
    pub(crate) fn add(&mut self, demand: &Demand, device_mask: u64) {
        self.amounts.add(&demand.requests, 1);
        self.n_running_units += 1;
        let Some(request) = &demand.devices else { return };
        for device in (0..N_DEVICES_MAX).filter(|device| device_mask >> device & 1 == 1) {
            if self.devices.len() <= device {
                self.devices.resize(device + 1, 0);
            }
            self.devices[device] += request.milli;
        }
    }

    /// Milli left of each of `n_devices`.
    pub(crate) fn device_free_milli(&self, n_devices: usize) -> Vec<u32> {
        let used = |device: usize| self.devices.get(device).copied().unwrap_or(0);
        (0..n_devices).map(|device| MILLI_WHOLE.saturating_sub(used(device))).collect()
    }
}

/// A node, if it is registered.
pub(crate) fn node(hub: &Hub, node: NodeId) -> Option<v1::Node> {
    let slot = hub.slot(node)?;
    let (keys, connected, usage) = {
        let cell = slot.cell.lock();
        (bound_keys(&cell), cell.is_connected(), cell.usage.clone())
    };
    let found = hub.store.read(|state| find(state, node, &keys))?;
    // State wrote these records and checked them before.
    let report = found.report.map(|value| v1::NodeReport::decode(value).unwrap_or_default());
    let grant = found.grant.and_then(|value| v1::NodeGrant::decode(value).ok()?.allocatable);
    let n_devices = report.as_ref().map_or(0, |report| report.devices.len());
    Some(v1::Node {
        node_id: node.0,
        spec: Some(shown_spec(&found.spec)),
        allocatable: grant.or_else(|| report.as_ref()?.capacity.clone()),
        allocated: Some(to_proto::resources(&found.taken.amounts)),
        device_free_milli: found.taken.device_free_milli(n_devices),
        running_units: found.taken.n_running_units,
        connected,
        usage,
        report,
    })
}

/// What is bound to a node, by unit and ordinal, at most `limit`.
pub(crate) fn bound(hub: &Hub, node: NodeId, limit: usize) -> Vec<v1::BoundRunningUnit> {
    let Some(slot) = hub.slot(node) else { return Vec::new() };
    let keys = bound_keys(&slot.cell.lock());
    let mut live: Vec<(Key, Row)> = hub.store.read(|state| live_on(state, node, &keys));
    live.truncate(limit);
    let mut units: Vec<u64> = live.iter().map(|(key, _)| key.unit).collect();
    units.dedup();
    let names = hub.templates.unit_names(&hub.store, &units);
    live.into_iter()
        .map(|(key, row)| v1::BoundRunningUnit {
            unit_id: key.unit,
            ordinal: key.ordinal,
            incarnation: key.incarnation,
            phase: to_proto::phase(row.phase).into(),
            unit_name: names.get(&key.unit).cloned().unwrap_or_default(),
            device_mask: row.device_mask,
        })
        .collect()
}

/// A node's NodeSpec with the revisions of its record.
pub(crate) fn spec(hub: &Hub, node: NodeId) -> Option<v1::NodeSpec> {
    let key = RecordKey::Id(u64::from(node.0));
    let record = hub.store.read(|state| state.record(v1::Kind::NodeSpec, &key).cloned())?;
    Some(shown_spec(&record))
}

/// Labels of a node: those found by its agent, and over them the administrators'.
pub(crate) fn has_labels<'a>(
    hub: &Hub,
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

fn bound_keys(cell: &crate::sessions::cell::Cell) -> Vec<Key> {
    cell.entries().iter().filter(|entry| entry.bound).map(|entry| entry.report.key).collect()
}

fn shown_spec(record: &Record) -> v1::NodeSpec {
    let Record { create_revision: Revision(create_revision), revision: Revision(revision), .. } = *record;
    let mut spec = v1::NodeSpec::decode(record.value.clone()).unwrap_or_default();
    let meta = spec.meta.get_or_insert_default();
    (meta.create_revision, meta.revision, meta.create_time_ms) =
        (create_revision, revision, record.create_time_ms);
    spec
}

fn find(state: &State, node: NodeId, keys: &[Key]) -> Option<Found> {
    let key = RecordKey::Id(u64::from(node.0));
    let value = |kind| state.record(kind, &key).map(|record| record.value.clone());
    let mut taken = Taken::default();
    for (key, row) in live_on(state, node, keys) {
        if let Some(demand) = demand_of(state, key, &row) {
            taken.add(demand, row.device_mask);
        }
    }
    Some(Found {
        spec: state.record(v1::Kind::NodeSpec, &key)?.clone(),
        report: value(v1::Kind::NodeReport),
        grant: value(v1::Kind::NodeGrant),
        taken,
    })
}

fn demand_of<'a>(state: &'a State, key: Key, row: &Row) -> Option<&'a Arc<Demand>> {
    let group = state.rows(UnitId(key.unit))?.groups.get(usize::from(row.group))?;
    group.as_ref().map(|group| &group.demand)
}

#[cfg(test)]
mod tests {
    use godel_core::demand::DeviceRequest;

    use super::*;

    #[test]
    fn what_is_taken_adds_up() {
        let gpus = |count, milli| Demand {
            requests: Resources::new([("cpu", 500)]).unwrap(),
            devices: Some(DeviceRequest { kind: "gpu".to_owned(), count, milli, models: Vec::new() }),
        };
        let mut taken = Taken::default();
        taken.add(&gpus(2, 1000), 0b110);
        taken.add(&gpus(1, 300), 0b1);
        taken.add(&gpus(1, 300), 0b1);
        taken.add(&Demand { devices: None, ..gpus(1, 1) }, 0);
        assert_eq!((taken.amounts.get("cpu"), taken.n_running_units), (2_000, 4));
        assert_eq!(taken.device_free_milli(4), [400, 0, 0, 1000]);
    }
}
