//! What must hold at the end of a test, found from the raw records alone. `godel audit` checks more; this
//! is a second, simpler opinion that shares nothing with it.

use std::collections::{BTreeMap, BTreeSet};

use godel_proto::v1;

use crate::{api::Records, submit::Acknowledged};

/// Running units of units that are not cancelled and have no place, as `name/ordinal` (at most 20), and how
/// many there are.
pub fn unbound(records: &Records) -> (Vec<String>, usize) {
    let mut names = Vec::new();
    let mut n_unbound = 0;
    let is_cancelled = |unit: &v1::UnitRecord| unit.status.as_ref().is_some_and(|status| status.cancelled);
    for (unit_id, unit) in records.units.iter().filter(|(_, unit)| !is_cancelled(unit)) {
        let placed = placed_ordinals(records.rows.get(unit_id));
        for ordinal in wanted_ordinals(unit) {
            if !placed.contains(&ordinal) {
                n_unbound += 1;
                if names.len() < 20 {
                    names.push(format!("{}/{ordinal}", name(unit)));
                }
            }
        }
    }
    (names, n_unbound)
}

/// Everything wrong with the records: over-committed nodes and devices, lost or doubled submissions.
pub fn problems(records: &Records, ledger: &[Acknowledged]) -> Vec<String> {
    let mut problems = over_committed(records);
    problems.extend(doubled(records));
    problems.extend(lost(records, ledger));
    problems
}

fn wanted_ordinals(unit: &v1::UnitRecord) -> impl Iterator<Item = u32> {
    let groups = unit.status.iter().flat_map(|status| &status.ordinals);
    groups.flat_map(|group| &group.ranges).flat_map(|range| range.start..range.end)
}

fn placed_ordinals(rows: Option<&v1::UnitRows>) -> BTreeSet<u32> {
    let blocks = rows.into_iter().flat_map(|rows| rows.blocks.iter());
    blocks
        .flat_map(|block| block.ordinals.iter().zip(&block.phases))
        .filter(|(_, phase)| **phase != i32::from(v1::RunPhase::Unspecified))
        .map(|(ordinal, _)| *ordinal)
        .collect()
}

/// Phases in which a running unit holds its room.
fn is_live(phase: i32) -> bool {
    matches!(
        v1::RunPhase::try_from(phase),
        Ok(v1::RunPhase::Bound | v1::RunPhase::Starting | v1::RunPhase::Running)
    )
}

#[derive(Default)]
struct Taken {
    amounts: BTreeMap<String, i64>,
    /// Milli taken per device.
    devices: BTreeMap<u32, u32>,
}

fn over_committed(records: &Records) -> Vec<String> {
    let mut taken: BTreeMap<u32, Taken> = BTreeMap::new();
    for block in records.rows.values().flat_map(|rows| &rows.blocks) {
        let Some(demand) = &block.demand else { continue };
        for (idx, node_id) in block.node_ids.iter().enumerate() {
            if !block.phases.get(idx).copied().is_some_and(is_live) {
                continue;
            }
            let node = taken.entry(*node_id).or_default();
            for (resource, amount) in demand.requests.iter().flat_map(|requests| &requests.amounts) {
                *node.amounts.entry(resource.clone()).or_default() += amount;
            }
            let report = records.nodes.get(node_id);
            let mask = block.device_masks.get(idx).copied().unwrap_or_default();
            for device in (0..64).filter(|device| mask >> device & 1 == 1) {
                let kind = report
                    .and_then(|report| report.devices.get(usize::try_from(device).ok()?))
                    .map(|device| &device.kind);
                let of_kind = demand.devices.iter().find(|devices| Some(&devices.kind) == kind);
                let milli =
                    of_kind.or(demand.devices.first()).map_or(0, |devices| devices.milli_per_device());
                *node.devices.entry(device).or_default() += milli;
            }
        }
    }
    let mut problems = Vec::new();
    for (node_id, taken) in taken {
        let Some(report) = records.nodes.get(&node_id) else {
            problems.push(format!("running units on node {node_id}, which does not exist"));
            continue;
        };
        let capacity = report.capacity.clone().unwrap_or_default().amounts;
        for (resource, amount) in taken.amounts {
            let has = capacity.get(&resource).copied().unwrap_or_default();
            if amount > has {
                problems.push(format!("node {node_id}: {amount} of {resource} taken, has {has}"));
            }
        }
        for (device, milli) in taken.devices {
            let exists = usize::try_from(device).is_ok_and(|device| device < report.devices.len());
            if milli > 1000 || !exists {
                problems.push(format!("node {node_id}: {milli} milli taken of device {device}"));
            }
        }
    }
    problems
}

fn doubled(records: &Records) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let uids = records.units.values().filter_map(meta).map(|meta| &meta.uid);
    uids.filter(|uid| !seen.insert((*uid).clone())).map(|uid| format!("uid {uid} exists twice")).collect()
}

fn lost(records: &Records, ledger: &[Acknowledged]) -> Vec<String> {
    let by_uid: BTreeMap<&str, (&str, u64)> = records
        .units
        .iter()
        .filter_map(|(unit_id, unit)| Some((unit_id, meta(unit)?)))
        .map(|(unit_id, meta)| (meta.uid.as_str(), (meta.name.as_str(), records.created[unit_id])))
        .collect();
    let mut problems = Vec::new();
    for entry in ledger {
        match by_uid.get(entry.uid.as_str()) {
            Some((name, created)) if *name == entry.name && *created <= entry.revision => {}
            Some(found) => problems.push(format!("{entry:?} was acknowledged, there is {found:?}")),
            None => problems.push(format!("acknowledged, but lost: {entry:?}")),
        }
    }
    problems
}

fn meta(unit: &v1::UnitRecord) -> Option<&v1::ObjectMeta> {
    unit.spec.as_ref()?.meta.as_ref()
}

fn name(unit: &v1::UnitRecord) -> String {
    meta(unit).map(|meta| meta.name.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace;

    /// One node with 1 CPU and 1 device; one unit with `n_bound` of 2 ordinals on it, 600 milli CPU each.
    fn records(n_bound: u32) -> Records {
        let spec = trace::unit("web", "uid-1", 2, trace::resources(600, 1), None, 0);
        let ranges = vec![v1::OrdinalRange { start: 0, end: 2 }];
        let status = v1::UnitStatus { ordinals: vec![v1::OrdinalRanges { ranges }], ..Default::default() };
        let n_rows = usize::try_from(n_bound).unwrap();
        let block = v1::RowBlock {
            demand: spec.task_groups[0].template.clone().unwrap().demand,
            ordinals: (0..n_bound).collect(),
            phases: vec![v1::RunPhase::Running.into(); n_rows],
            node_ids: vec![1; n_rows],
            ..Default::default()
        };
        let report =
            v1::NodeReport { node_id: 1, capacity: Some(trace::resources(1000, 10)), ..Default::default() };
        Records {
            units: BTreeMap::from([(
                1,
                v1::UnitRecord { unit_id: 1, spec: Some(spec), status: Some(status) },
            )]),
            created: BTreeMap::from([(1, 5)]),
            rows: BTreeMap::from([(
                1,
                v1::UnitRows { unit_id: 1, blocks: vec![block], ..Default::default() },
            )]),
            nodes: BTreeMap::from([(1, report)]),
            revision: 9,
        }
    }

    #[test]
    fn finds_what_is_unbound_over_committed_and_lost() {
        let acknowledged =
            |uid: &str, revision| Acknowledged { uid: uid.into(), name: "web".into(), revision };
        let one = records(1);
        assert_eq!(unbound(&one), (vec!["web/1".to_owned()], 1));
        assert_eq!(problems(&one, &[acknowledged("uid-1", 5)]), Vec::<String>::new());
        assert_eq!(problems(&one, &[acknowledged("uid-1", 4), acknowledged("uid-2", 5)]).len(), 2);
        let two = records(2);
        assert_eq!(unbound(&two).1, 0);
        assert_eq!(problems(&two, &[]), vec!["node 1: 1200 of cpu taken, has 1000"]);
    }
}
