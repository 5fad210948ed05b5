//! Nodes as shown: records joined with what is bound and with what the session knows.

use bytes::Bytes;
use godel_core::{
    demand::{Demand, MILLI_WHOLE, N_DEVICES_MAX, Pool},
    ids::{NodeId, Revision, UnitId},
    resources::{CPU, MEMORY, Resources},
    rows::{GroupDemand, Row},
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
    taken: Taken,
}

impl Taken {
    /// Adds one running unit; `is_covered` says whether its use is known and reserved.
    pub(crate) fn add(&mut self, demand: &Demand, pool: Pool, device_mask: u64, is_covered: bool) {
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
    let (keys, connected, usage, guaranteed_usage) = {
        let cell = slot.cell.lock();
        (bound_keys(&cell), cell.is_connected(), cell.usage.clone(), cell.guaranteed_usage.clone())
    };
    let found = hub.store.read(|state| find(state, node, &keys))?;
    // State wrote these records and checked them before.
    let report = found.report.map(|value| v1::NodeReport::decode(value).unwrap_or_default());
    let grant = found.grant.and_then(|value| v1::NodeGrant::decode(value).ok()?.allocatable);
    let n_devices = report.as_ref().map_or(0, |report| report.devices.len());
    let allocatable = grant.or_else(|| report.as_ref()?.capacity.clone());
    let reserved = found.usage.and_then(|usage| usage.reserved);
    Some(v1::Node {
        node_id: node.0,
        spec: Some(shown_spec(&found.spec)),
        best_effort_allocatable: allocatable
            .clone()
            .map(|all| less(less(all, reserved.as_ref()), Some(&to_proto::resources(&found.taken.kept)))),
        best_effort_allocated: Some(to_proto::resources(&found.taken.best_effort)),
        guaranteed_usage,
        reserved,
        allocatable,
        allocated: Some(to_proto::resources(&found.taken.amounts)),
        device_free_milli: found.taken.device_free_milli(n_devices),
        running_units: found.taken.n_running_units,
        connected,
        usage,
        report,
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
    let usage = value(v1::Kind::NodeUsage).and_then(|value| v1::NodeUsage::decode(value).ok());
    for (key, row) in live_on(state, node, keys) {
        if let Some(group) = demand_of(state, key, &row) {
            let is_covered = usage.as_ref().is_some_and(|usage| row.bound_time_ms <= usage.as_of_ms);
            taken.add(&group.demand, group.pool, row.device_mask, is_covered);
        }
    }
    Some(Found {
        spec: state.record(v1::Kind::NodeSpec, &key)?.clone(),
        report: value(v1::Kind::NodeReport),
        grant: value(v1::Kind::NodeGrant),
        usage,
        taken,
    })
}

fn demand_of<'a>(state: &'a State, key: Key, row: &Row) -> Option<&'a GroupDemand> {
    let group = state.rows(UnitId(key.unit))?.groups.get(usize::from(row.group))?;
    group.as_ref()
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
        taken.add(&gpus(2, 1000), Pool::Guaranteed, 0b110, false);
        taken.add(&gpus(1, 300), Pool::Guaranteed, 0b1, true);
        taken.add(&gpus(1, 300), Pool::BestEffort, 0b1, false);
        taken.add(&Demand { devices: None, ..gpus(1, 1) }, Pool::BestEffort, 0, false);
        assert_eq!((taken.amounts.get(CPU), taken.n_running_units), (1_000, 4));
        assert_eq!((taken.best_effort.get(CPU), taken.kept.get(CPU)), (1_000, 500));
        assert_eq!(taken.device_free_milli(4), [400, 0, 0, 1000]);
    }
}
